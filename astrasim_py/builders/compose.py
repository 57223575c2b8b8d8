"""One algorithm after the other, as one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import lcm

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish
from astrasim_py.builders.ordered import OrderedProgram, checked, spread
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM, promise_of
from astrasim_py.collectives.contract import MAX_OUTPUTS, Cell, Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import numbered
from astrasim_py.program.algorithm import Algorithm

#: Most terms of a computed contract.
MAX_TERMS = 2**24


def compose(
    first: Algorithm, second: Algorithm, *, barrier: bool = False, name: str = "", verify: bool = True
) -> Algorithm:
    """One algorithm after the other, as one: what the first leaves in its output is the input of the second.

    The second begins on every cell as soon as the first is done with it; with `barrier` a rank begins the second when
    it is done with the first. The outcome is a named collective where its contract is that of one, and custom
    otherwise. In place, both work on one buffer; else the second reads what the first wrote from scratch.

    Parameters
    ----------
    first, second : Algorithm
        Of equally many ranks, both in place or both not; their chunks are cut to a common number.
    barrier : bool
        A rank begins the second when it is done with all of the first.
    name : str
        By default both names.
    verify : bool
        Verify the result.

    Returns
    -------
    Algorithm

    Raises
    ------
    AlgorithmError
        The second needs a chunk that the first does not promise.

    Examples
    --------
    >>> from astrasim_py.builders.registry import build
    >>> compose(build("ring", "reduce_scatter", 4), build("direct", "all_gather", 4))
    Algorithm(ring+direct: all_reduce, 4 ranks, 4 chunks)
    """
    place = f"{first.name} + {second.name}"
    if first.ranks != second.ranks:
        raise AlgorithmError(place, f"has {first.ranks} ranks, then {second.ranks}", "take as many in both")
    if first.in_place != second.in_place:
        ways = [f"{a.name} is {'' if a.in_place else 'not '}in place" for a in (first, second)]
        raise AlgorithmError(place, " and ".join(ways), "make both in place, or neither")
    check_nodes(place, first.nodes + second.nodes)
    n, total = first.ranks, lcm(first.chunks or 1, second.chunks or 1)
    if n * total > MAX_OUTPUTS:
        raise AlgorithmError(place, f"{n} ranks of {total} chunks are too many to compare", "use fewer")
    halves = first_half, second_half = [_Half(algorithm, total) for algorithm in (first, second)]
    collective, root, contract = _composed(place, first_half, second_half)
    in_place = first.in_place
    draft = Draft(n, total)
    # Scratch: the data handed over, if not in place; then that of the first, then of the second.
    below = np.full(n, 0 if in_place else total)
    buffers = [Buffer.INPUT, Buffer.SCRATCH, Buffer.OUTPUT]
    if in_place:
        buffers = [Buffer.OUTPUT if promise_of(collective).gathers else Buffer.INPUT] * 3
    shift = turns = 0
    keep_lines = first.source == second.source or not first_half.has_lines or not second_half.has_lines
    for half, where in zip(halves, (buffers[:2], buffers[1:]), strict=True):
        values = half.placed(where, below, keep_lines or half is first_half)
        below = below + half.scratch
        values["order"] = half.at + shift
        values["payload"] = np.where(half.payload >= 0, half.payload + shift, NONE)
        turns = _retag(half, values, turns)
        draft.extend(half.size, values)
        draft.depend(half.child + shift, half.parent + shift)
        shift += half.size
    if barrier:
        _hold(draft, first_half, second_half)
    else:
        draft.depend(*_hazards(first_half, second_half, in_place))
    source = next((half.algorithm.source for half in halves if half.has_lines), first.source)
    result = finish(
        draft, name or f"{first.name}+{second.name}", collective, root=root, in_place=in_place, contract=contract,
        source=source, protocol=first.protocol if first.protocol == second.protocol else "",
    )  # fmt: skip
    return checked(result, place) if verify else result


class _Half(OrderedProgram):
    """One of two algorithms that are put together, its chunks cut to the common number."""

    def __init__(self, algorithm: Algorithm, total: int) -> None:
        super().__init__(algorithm, "composed")
        self.total, self.factor = total, total // algorithm.chunks
        self.has_lines = bool((self.columns["source_line"] > 0).any())
        self.scratch = np.zeros(algorithm.ranks, dtype=np.int64)
        for cells in (self.reads, self.writes):
            in_scratch = cells >= self.layout.scratch
            ends = (cells - self.layout.scratch + self.count)[in_scratch] * self.factor
            np.maximum.at(self.scratch, self.rank[in_scratch], ends)

    def placed(self, where: Sequence[Buffer], below: np.ndarray, lines: bool) -> dict[str, np.ndarray]:
        """Columns of its nodes, with the cells where they come to lie: input, output, and scratch from `below`."""
        columns, factor, lay = self.columns, self.factor, self.layout
        values = {name: columns[name] for name in ("comm_src", "comm_dst", "comp_op", "channel")}
        values |= {"type": self.type, "rank": self.rank}
        for name in ("msg_chunk_idx", "msg_chunk_cnt"):
            values[name] = np.where(columns[name] < 0, MISSING, columns[name] * factor)
        values["source_line"] = columns["source_line"] if lines else np.full(self.size, MISSING)
        in_buffer, out_buffer = where
        for side, cell in (("src", self.reads), ("dst", self.writes)):
            kind = [cell < 0, cell >= lay.scratch, (cell >= lay.output) & (lay.output > 0)]
            values[f"{side}_buf"] = np.select(kind, [MISSING, Buffer.SCRATCH, out_buffer], in_buffer)
            scratch = below[self.rank] + (cell - lay.scratch) * factor
            values[f"{side}_off"] = np.select(kind, [MISSING, scratch, (cell - lay.output) * factor], cell * factor)
        return values

    def contract(self) -> Contract:
        """Its contract in cells: of the one buffer in place, else of the input and of the output buffer."""
        algorithm = self.algorithm
        if algorithm.collective == CUSTOM:
            if algorithm.contract is None:
                problem = f"{algorithm.name} is custom, and nothing says what it promises"
                raise AlgorithmError(algorithm.source or algorithm.name, problem, "give a contract")
            return spread(algorithm.contract, self.factor)
        return _in_cells(algorithm.collective, algorithm.ranks, self.total, algorithm.root, algorithm.in_place)

    def written_at(self, cells: np.ndarray, rank: int, cell: int, last: bool) -> str:
        """Origin of the first node that reads a cell, or of the last that writes it; empty if there is none."""
        unit = cell // self.factor
        rows = np.flatnonzero((self.rank == rank) & (cells >= 0) & (cells <= unit) & (unit < cells + self.count))
        rows = rows[np.argsort(self.at[rows])]
        return self.origin(int(rows[-1 if last else 0])) if len(rows) else ""


def _in_cells(collective: str, n: int, total: int, root: int | None, in_place: bool) -> Contract:
    contract = Contract.of(collective, n, total, root)
    per = total // n
    promise = promise_of(collective)
    if not in_place or not (promise.gathers or promise.scatters):
        return contract
    inputs, outputs = contract.inputs, contract.outputs
    if promise.gathers:
        inputs = None if inputs is None else frozenset((r, r * per + k) for r, k in inputs)
        moved = [{(r, r * per + k): 1} for r in range(n) for k in range(per)]
        outputs = {cell: moved[cell[1]] for cell in outputs}
    else:
        outputs = {(r, r * per + k): terms for (r, k), terms in outputs.items()}
    return replace(contract, inputs=inputs, outputs=outputs)


def _composed(place: str, first: _Half, second: _Half) -> tuple[str, int | None, Contract | None]:
    before, after = first.contract(), second.contract()
    outputs: dict[Cell, Mapping[Cell, int]] = {}
    budget = MAX_TERMS
    summed: dict[tuple, Mapping[Cell, int]] = {}
    for cell, terms in after.outputs.items():
        for terms_needed in terms:
            if terms_needed not in before.outputs:
                raise _mismatch(place, first, second, terms_needed)
        if len(terms) == 1 and 1 in terms.values():
            outputs[cell] = before.outputs[next(iter(terms))]
            continue
        key = tuple(terms.items())
        if key not in summed:
            total: dict[Cell, int] = {}
            for terms_needed, times in terms.items():
                for leaf, often in before.outputs[terms_needed].items():
                    total[leaf] = total.get(leaf, 0) + times * often
                budget -= len(before.outputs[terms_needed])
            if budget < 0:
                raise AlgorithmError(place, "promises too much to work out", "use fewer ranks or chunks")
            summed[key] = total
        outputs[cell] = summed[key]
    roots = [r for r in (first.algorithm.root, second.algorithm.root) if r is not None]
    contract = replace(before, outputs=outputs, place=place)
    return _named(contract, dict.fromkeys(roots), first.algorithm.in_place)


def _named(contract: Contract, roots: Iterable[int], in_place: bool) -> tuple[str, int | None, Contract | None]:
    """The collective whose contract this is, and its root; custom, with the contract, where it is none's."""
    n, total = contract.ranks, contract.chunks
    for collective, promise in COLLECTIVES.items():
        if collective == "barrier" or (promise.sharded and total % n):
            continue
        size = promise.output_chunks(n, total)
        if len(contract.outputs) != size * (1 if promise.to_root else n):
            continue
        for root in roots if promise.rooted else [None]:
            other = _in_cells(collective, n, total, root, in_place)
            # A collective may define more than this needs.
            inputs = other.inputs is None or contract.inputs == other.inputs
            if inputs and _same_outputs(contract.outputs, other.outputs):
                return collective, root, None
    return CUSTOM, None, contract


def _same_outputs(outputs: Mapping[Cell, Mapping[Cell, int]], other: Mapping[Cell, Mapping[Cell, int]]) -> bool:
    if outputs.keys() != other.keys():
        return False
    last: tuple[object, object] = (None, None)
    for cell, terms in outputs.items():
        # Neighbouring cells often share one mapping.
        if (terms is not last[0] or other[cell] is not last[1]) and terms != other[cell]:
            return False
        last = terms, other[cell]
    return True


def _mismatch(place: str, first: _Half, second: _Half, cell: Cell) -> AlgorithmError:
    rank, chunk = cell
    output = 0 if first.algorithm.in_place else first.layout.output * first.factor
    reader = second.written_at(second.reads, rank, chunk, last=False)
    writer = first.written_at(first.writes, rank, chunk + output, last=True)
    problem = f"rank {rank} chunk {chunk}: the {second.algorithm.collective} of {second.algorithm.name} needs it"
    problem += f" ({reader})" if reader else ""
    problem += f", but the {first.algorithm.collective} of {first.algorithm.name} does not promise it"
    problem += f" (last written at {writer})" if writer else " (and does not write it)"
    return AlgorithmError(place, problem, "compose what fits together")


def _retag(half: _Half, values: dict[str, np.ndarray], turns: int) -> int:
    """Number messages of each pair of ranks in their order, from `turns`; returns where the next begin."""
    tag = np.full(half.size, MISSING, dtype=np.int64)
    sends = np.flatnonzero(half.type == NodeType.COMM_SEND)
    tag[sends] = turns + numbered(half.pair[sends], half.turn[sends], half.columns["channel"][sends])
    receives = np.flatnonzero(half.sender >= 0)
    tag[receives] = tag[half.sender[receives]]
    values["comm_tag"] = tag
    return int(tag.max(initial=turns - 1)) + 1


def _hazards(first: _Half, second: _Half, in_place: bool) -> tuple[np.ndarray, np.ndarray]:
    """Dependencies of the second's nodes on the first's: after the last write, and before a write after all reads."""
    # Cell -> the node of the first that wrote it last, and those that read it since.
    last: dict[int, list[int]] = {}
    shared = first.total
    output = 0 if in_place else first.layout.output

    def touched(half: _Half, cells: np.ndarray, base: int) -> list[range]:
        begin = (cells - base) * half.factor
        inside = (cells >= 0) & (begin >= 0) & (begin < shared)
        begin = np.where(inside, begin + half.rank * shared, 0)
        end = np.where(inside, begin + half.count * half.factor, 0)
        return list(map(range, begin.tolist(), end.tolist()))

    reads, writes = touched(first, first.reads, output), touched(first, first.writes, output)
    for g in first.sequence:
        for cell in reads[g]:
            last.setdefault(cell, [NONE]).append(g)
        for cell in writes[g]:
            last[cell] = [g]
    edges = []
    reads, writes = touched(second, second.reads, 0), touched(second, second.writes, 0)
    for g in second.sequence:
        for cell in reads[g]:
            writer = last.get(cell, [NONE])[0]
            if writer >= 0:
                edges.append((g, writer))
        for cell in writes[g]:
            # Whatever touches the cell later waits for this node.
            writer, *readers = last.pop(cell, [NONE])
            edges += [(g, before) for before in readers or [writer] if before >= 0]
    child, parent = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return child + first.size, parent


def _hold(draft: Draft, first: _Half, second: _Half) -> None:
    """Let every rank begin the second when it is done with the first."""
    sinks = np.setdiff1d(np.arange(first.size), first.parent)
    sources = np.setdiff1d(np.arange(second.size), second.child)
    ranks = np.unique(first.rank[sinks])
    joins = np.full(first.algorithm.ranks, NONE, dtype=np.int64)
    joins[ranks] = draft.join(ranks, order=first.size - 1)
    draft.depend(joins[first.rank[sinks]], sinks)
    held = sources[joins[second.rank[sources]] != NONE]
    draft.depend(held + first.size, joins[second.rank[held]])
