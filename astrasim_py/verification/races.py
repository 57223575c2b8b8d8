"""Races: two unordered steps that use one cell, at least one of them writing it.

"Unordered" means no path of dependencies, thread-block order and messages; full queues do not count, as a program must
not depend on their size. One order of execution is enough to look at: between two accesses of a cell that are
not ordered there are two neighbours in that order which are not ordered either.
"""

from collections.abc import Iterable
from typing import NamedTuple

from astrasim_py.program.steps import NEVER, Layout, Steps
from astrasim_py.verification.termination import Flow

#: Sources whose descendants are followed at once.
_BATCH = 4096
#: Pairs that are counted at most, about, and pairs of accesses that are looked at for it.
MAX_PAIRS, MAX_LOOKED = 200_000, 5_000_000


class Race(NamedTuple):
    """Two steps that race for a cell; `second` writes it, or `first` does."""

    first: int
    second: int
    cell: int


class Accesses(NamedTuple):
    """The findings of a scan of all accesses."""

    races: int  # unordered pairs of steps
    first: Race | None
    dead: list[int]  # steps whose write is overwritten, or left in scratch, without a read
    redundant: list[int]  # steps with a dependency that their others imply


def scan(where: Layout, flow: Flow) -> Accesses:
    steps, size = where.steps, len(where.steps)
    neighbours, dead = conflicts(where, flow.sequence)
    parents = steps.parents
    # Steps with several parents, of which one may imply another.
    implied = {
        g: [p * size + q for p in waits for q in parents[g] if p != q and NEVER not in (p, q)]
        for g, waits in enumerate(steps.waits)
        if waits and len(parents[g]) > 1
    }
    within = _within_ranks(steps, flow.sequence, [key for keys in implied.values() for key in keys])
    redundant = [g for g, keys in implied.items() if not within.isdisjoint(keys)]
    doubtful = unordered(steps, flow, neighbours)
    if not doubtful:
        return Accesses(0, None, dead, redundant)
    first = Race(*divmod(doubtful[0], size), neighbours[doubtful[0]][0])
    raced = {cell for key in doubtful for cell in neighbours[key]}
    # If there are more pairs than are counted, all counted ones may be ordered.
    return Accesses(max(1, _count(where, flow, raced)), first, dead, redundant)


def unordered(steps: Steps, flow: Flow, keys: Iterable[int]) -> list[int]:
    """Those of the pairs first · N + second, both of one rank, that nothing orders, in the order given."""
    size = len(steps)
    doubtful = [key for key in keys if key // size not in steps.parents[key % size]]
    within = _within_ranks(steps, flow.sequence, doubtful)
    doubtful = [key for key in doubtful if key not in within]
    ordered = _ordered(steps, flow.sequence, flow.sender, doubtful)
    return [key for key in doubtful if key not in ordered]


def conflicts(where: Layout, sequence: list[int]) -> tuple[dict[int, list[int]], list[int]]:
    """Conflicting accesses that follow each other on some cell, as first · N + second -> cells; and dead writes."""
    steps, size, chain = where.steps, len(where.steps), where.steps.chain
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    pairs: dict[int, list[int]] = {}
    dead: dict[int, None] = {}

    def conflict(first: int, second: int, cell: int) -> None:
        if first != second and (chain[first] < 0 or chain[first] != chain[second]):
            pairs.setdefault(first * size + second, []).append(cell)

    for g in sequence:
        count, source, target = steps.count[g], where.reads[g], where.writes[g]
        for cell in range(source, source + count) if source >= 0 else ():
            if cell in writer:
                conflict(writer[cell], g, cell)
            readers.setdefault(cell, []).append(g)
        adds = steps.reduces[g] and steps.takes[g] < 0 and steps.payload[g] < 0
        for cell in range(target, target + count) if target >= 0 else ():
            before = readers.pop(cell, ())
            for reader in before:
                conflict(reader, g, cell)
            if not before and cell in writer:
                conflict(writer[cell], g, cell)
                if not adds:
                    dead[writer[cell]] = None
            writer[cell] = g
    for cell in sorted(writer):
        if cell % where.stride >= where.scratch and cell not in readers:
            dead[writer[cell]] = None
    return pairs, list(dead)


def _ordered(steps: Steps, rows: Iterable[int], sender: list[int] | None, keys: Iterable[int]) -> set[int]:
    """Those of the pairs first · N + second that are ordered over the given rows: by dependencies, and by messages."""
    size, parents = len(steps), steps.parents
    keys_of: dict[int, list[int]] = {}
    for key in keys:
        keys_of.setdefault(key // size, []).append(key)
    sources, ordered = sorted(keys_of), set[int]()
    for start in range(0, len(sources), _BATCH):
        bit = {g: 1 << i for i, g in enumerate(sources[start : start + _BATCH])}
        #: The sources that come before each row, and that row itself, as bits.
        masks: dict[int, int] = {-1: 0}
        for g in rows:
            mask = bit.get(g, 0)
            for p in parents[g] if sender is None else (*parents[g], sender[g]):
                mask |= masks[p]
            masks[g] = mask
        ordered.update(key for g, bits in bit.items() for key in keys_of[g] if masks.get(key % size, 0) & bits)
    return ordered


def _within_ranks(steps: Steps, sequence: list[int], keys: Iterable[int]) -> set[int]:
    """Those of the pairs, both of one rank, that its own dependencies order."""
    keys_of: list[list[int]] = [[] for _ in range(steps.positions)]
    for key in keys:
        keys_of[steps.rank[key // len(steps)]].append(key)
    rows: list[list[int]] = [[] for _ in range(steps.positions)]
    for g in sequence if any(keys_of) else ():
        rows[steps.rank[g]].append(g)
    return set().union(*(_ordered(steps, part, None, pairs) for part, pairs in zip(rows, keys_of, strict=True)))


def _count(where: Layout, flow: Flow, cells: set[int]) -> int:
    """Unordered conflicting pairs of steps over the given cells, each pair once."""
    steps = where.steps
    touch: dict[int, list[tuple[int, bool]]] = {cell: [] for cell in sorted(cells)}
    for g in flow.sequence:
        count = steps.count[g]
        for base, wrote in ((where.reads[g], False), (where.writes[g], True)):
            if base >= 0:
                for cell in range(base, base + count):
                    if cell in touch:
                        touch[cell].append((g, wrote))
    pairs: set[int] = set()
    size, chain, looked = len(steps), steps.chain, 0
    for accesses in touch.values():
        for i, (b, wrote) in enumerate(accesses):
            looked += i
            if len(pairs) > MAX_PAIRS or looked > MAX_LOOKED:
                return len(pairs) - len(_ordered(steps, flow.sequence, flow.sender, pairs))
            for a, wrote_before in accesses[:i]:
                if (wrote or wrote_before) and a != b and (chain[a] < 0 or chain[a] != chain[b]):
                    pairs.add(a * size + b)
    return len(pairs) - len(_ordered(steps, flow.sequence, flow.sender, pairs))
