"""Races: two steps that touch one cell, at least one writing it, and nothing says which is first.

"Nothing" means no path of dependencies, thread-block order and messages; full queues do not count, as a program must
not rest on how small they are. One order of execution is enough to look at: between two accesses of a cell that are
not ordered there are two neighbours in that order which are not ordered either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from astrasim_py.program.buffers import Layout
from astrasim_py.program.steps import NEVER, Steps
from astrasim_py.verification.termination import Flow

#: Sources whose descendants are followed at once.
_BATCH = 4096
#: Pairs that are counted at most, about, and pairs of accesses that are looked at for it.
MAX_PAIRS, MAX_LOOKED = 200_000, 5_000_000


@dataclass(frozen=True, slots=True)
class Race:
    """Two steps that race for a cell; `second` writes it, or `first` does."""

    first: int
    second: int
    cell: int


@dataclass(slots=True)
class Accesses:
    """The findings of a scan of all accesses."""

    races: int  # unordered pairs of steps
    first: Race | None
    dead: list[int]  # steps whose write is overwritten, or left in scratch, before anybody reads it
    redundant: list[int]  # steps with a dependency that their others imply


def scan(where: Layout, flow: Flow) -> Accesses:
    """Look for races, dead writes and redundant dependencies."""
    steps = where.steps
    neighbours, dead = _neighbours(where, flow.sequence)
    size = len(steps)
    parents = steps.parents
    doubtful = [(key, cells) for key, cells in neighbours.items() if key // size not in parents[key % size]]
    # Steps with several parents, of which one may imply another.
    several = [g for g, waits in enumerate(steps.waits) if waits and len(parents[g]) > 1]
    implied = [p * size + q for g in several for p in steps.waits[g] for q in parents[g] if NEVER not in (p, q)]
    redundant: list[int] = []
    if doubtful or implied:
        within = _within_ranks(steps, flow.sequence, [*(key for key, _ in doubtful), *implied])
        doubtful = [(key, cells) for key, cells in doubtful if key not in within]
        for g in several:
            if any(p * size + q in within for p in steps.waits[g] for q in parents[g] if NEVER not in (p, q)):
                redundant.append(g)
    if doubtful:
        ordered = _ordered(steps, flow, [key for key, _ in doubtful])
        doubtful = [(key, cells) for key, cells in doubtful if key not in ordered]
    if not doubtful:
        return Accesses(0, None, dead, redundant)
    key, cells = doubtful[0]
    first = Race(*divmod(key, size), cells[0])
    raced = {cell for _, cells in doubtful for cell in cells}
    # Those that are counted may all be ordered where there are more than are counted.
    return Accesses(max(1, _count(where, flow, raced)), first, dead, redundant)


def _neighbours(where: Layout, sequence: list[int]) -> tuple[dict[int, list[int]], list[int]]:
    """Conflicting accesses that follow each other on some cell, as first · N + second -> cells; and dead writes."""
    steps, reads, writes, stride = where.steps, where.reads, where.writes, where.stride
    size, counts, chain = len(steps), steps.count, steps.chain
    cells = stride * steps.ranks
    writer = [-1] * cells
    readers: list[list[int] | None] = [None] * cells
    pairs: dict[int, list[int]] = {}
    dead: dict[int, None] = {}
    alone = [takes < 0 and payload < 0 for takes, payload in zip(steps.takes, steps.payload, strict=True)]
    reduces = steps.reduces
    for g in sequence:
        count = counts[g]
        source, target = reads[g], writes[g]
        mine = chain[g]
        if source >= 0:
            for cell in range(source, source + count):
                w = writer[cell]
                if w >= 0 and (mine < 0 or chain[w] != mine):
                    pairs.setdefault(w * size + g, []).append(cell)
                if readers[cell] is None:
                    readers[cell] = [g]
                else:
                    readers[cell].append(g)
        if target >= 0:
            adds = reduces[g] and alone[g]
            for cell in range(target, target + count):
                w, before = writer[cell], readers[cell]
                if before is not None:
                    for r in before:
                        if r != g and (mine < 0 or chain[r] != mine):
                            pairs.setdefault(r * size + g, []).append(cell)
                    readers[cell] = None
                elif w >= 0:
                    if mine < 0 or chain[w] != mine:
                        pairs.setdefault(w * size + g, []).append(cell)
                    if not adds:
                        dead[w] = None
                writer[cell] = g
    for rank in range(steps.ranks):
        for cell in range(rank * stride + where.scratch, (rank + 1) * stride):
            if writer[cell] >= 0 and readers[cell] is None:
                dead[writer[cell]] = None
    return pairs, list(dead)


def _follow(
    steps: Steps, rows: Iterable[int], sources: list[int], sender: list[int] | None, known: list[int]
) -> dict[int, int]:
    """Set `known` of every row to those of `sources` that come before it, as bits; the bit of each source."""
    bit = {g: i for i, g in enumerate(sources)}
    parents = steps.parents
    for g in rows:
        mask = 0
        for p in parents[g] if sender is None else (*parents[g], sender[g]):
            if p >= 0:
                mask |= known[p]
                if p in bit:
                    mask |= 1 << bit[p]
        known[g] = mask
    return bit


def _asked(
    steps: Steps, rows: Iterable[int], sender: list[int] | None, keys: Mapping[int, list[int]], known: list[int]
) -> set[int]:
    """Those of the pairs first · N + second, given by their first, that are ordered over the given rows."""
    size, sources, found = len(steps), sorted(keys), set()
    for start in range(0, len(sources), _BATCH):
        bit = _follow(steps, rows, sources[start : start + _BATCH], sender, known)
        found.update(key for g, at in bit.items() for key in keys[g] if known[key % size] >> at & 1)
    return found


def _by_source(keys: Iterable[int], size: int) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for key in keys:
        found.setdefault(key // size, []).append(key)
    return found


def _within_ranks(steps: Steps, sequence: list[int], keys: Iterable[int]) -> set[int]:
    """Those of the pairs, both of one rank, that its own dependencies order."""
    wanted: list[dict[int, list[int]]] = [{} for _ in range(steps.ranks)]
    for g, asked in _by_source(keys, len(steps)).items():
        wanted[steps.rank[g]][g] = asked
    rows: list[list[int]] = [[] for _ in range(steps.ranks)]
    for g in sequence:
        rows[steps.rank[g]].append(g)
    found, known = set(), [0] * len(steps)
    for mine, asked in zip(rows, wanted, strict=True):
        found |= _asked(steps, mine, None, asked, known)
        for g in mine:
            known[g] = 0
    return found


def _ordered(steps: Steps, flow: Flow, keys: Iterable[int]) -> set[int]:
    """Those of the pairs that are ordered, by whatever ranks."""
    return _asked(steps, flow.sequence, flow.sender, _by_source(keys, len(steps)), [0] * len(steps))


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
                return len(pairs) - len(_ordered(steps, flow, pairs))
            for a, wrote_before in accesses[:i]:
                if (wrote or wrote_before) and a != b and (chain[a] < 0 or chain[a] != chain[b]):
                    pairs.add(a * size + b)
    return len(pairs) - len(_ordered(steps, flow, pairs))
