"""`Program`: who does what in an algorithm, as one table of the nodes of all ranks.

Columns have the names of Chakra's attributes (`astrasim_py.chakra.schema.INT_COLUMNS`): peers are ``comm_dst`` and
``comm_src``, sizes in chunks ``msg_chunk_idx`` and ``msg_chunk_cnt``, what is read and written ``src_buf``,
``src_off``, ``dst_buf`` and ``dst_off``. Rows are in the order of ranks, and within a rank in that of its trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import TraceError


class Unusable(Exception):
    """The program cannot be executed: it is ill-formed, or (unknown) does not say enough."""

    def __init__(self, problem: str, *, unknown: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.unknown = problem, unknown


class Program:
    """The nodes of all ranks in one table.

    `bounds`: int64[ranks + 1]: rank r has rows bounds[r] to bounds[r + 1] - 1; `rank`: of each row. `type`: int8[rows].
    `node_id`: uint64[rows]. `columns`: int64[rows] each, MISSING where a node has none. `ptr`, `parents`: CSR of the
    rows that a row waits for, data and control dependencies. `payload`: the row whose data a node takes; `fused`: the
    first row of the fused step it is part of; -1 for none, as by default. `place`: position in a topological order of
    the rank, by default that of the rows. `inputs`, `outputs`: declared chunks of the ranks' largest input and output
    buffer, 0 where nothing is declared.
    """

    def __init__(
        self,
        *,
        bounds: np.ndarray,
        type: np.ndarray,
        node_id: np.ndarray,
        columns: Mapping[str, np.ndarray],
        ptr: np.ndarray,
        parents: np.ndarray,
        payload: np.ndarray | None = None,
        fused: np.ndarray | None = None,
        place: np.ndarray | None = None,
        inputs: int = 0,
        outputs: int = 0,
    ) -> None:
        self.bounds, self.type, self.node_id, self.ptr, self.parents = bounds, type, node_id, ptr, parents
        self._columns = dict(columns)
        self.inputs, self.outputs = inputs, outputs
        self.rank = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        nothing = np.full(len(type), -1, dtype=np.int64)
        self.payload = nothing if payload is None else payload
        self.fused = nothing if fused is None else fused
        self.place = np.arange(len(type)) - bounds[self.rank] if place is None else place

    @classmethod
    def of_traces(cls, traces: Sequence[ExecutionTrace]) -> Program:
        """The table of one trace per rank; TraceError and Unusable tell of nodes that are named and not there."""
        traces = list(traces)
        bounds = np.cumsum([0, *map(len, traces)])
        edges, parents, place, payload, fused = [], [], [], [], []
        for rank, (trace, start) in enumerate(zip(traces, bounds.tolist(), strict=False)):
            ptr, rows = trace.parents("data+ctrl")
            edges.append(np.diff(ptr))
            parents.append(rows + start)
            place.append(_places(trace))
            payload.append(_rows_named(trace, "payload", start, rank, "takes data of"))
            fused.append(_rows_named(trace, "fused", start, rank, "is fused with"))
        names = [name for name in INT_COLUMNS if any(trace.has_column(name) for trace in traces)]
        return cls(
            bounds=bounds, type=np.concatenate([trace.type for trace in traces]),
            node_id=np.concatenate([trace.node_id for trace in traces]),
            columns={name: np.concatenate([trace.column(name) for trace in traces]) for name in names},
            ptr=np.concatenate([[0], np.cumsum(np.concatenate(edges))]), parents=np.concatenate(parents),
            payload=np.concatenate(payload), fused=np.concatenate(fused), place=np.concatenate(place),
            inputs=_declared(traces, "msccl_i_chunks"), outputs=_declared(traces, "msccl_o_chunks"),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.type)

    @property
    def ranks(self) -> int:
        return len(self.bounds) - 1

    def column(self, name: str) -> np.ndarray:
        """int64[rows]: an integer attribute of every node, MISSING where it has none."""
        if name not in self._columns:
            self._columns[name] = np.full(len(self), MISSING, dtype=np.int64)
            if name == "payload":
                given = np.flatnonzero(self.payload >= 0)
                self._columns[name][given] = self.node_id[self.payload[given]]
        return self._columns[name]

    def has(self, name: str) -> bool:
        return name in self._columns and bool((self._columns[name] != MISSING).any())

    def with_columns_only(self, names: Collection[str]) -> Program:
        """The same program without its other columns, and without fused steps."""
        made = copy(self)
        made._columns = {name: column for name, column in self._columns.items() if name in names}
        made.fused = np.full(len(self), -1, dtype=np.int64)
        return made

    def some(self, ranks: Sequence[int] | np.ndarray) -> Program:
        """The table of some ranks, which become its ranks 0, 1, …; one may come several times."""
        ranks = np.asarray(ranks, dtype=np.int64)
        owner, at = ranges(np.diff(self.bounds)[ranks])
        row = self.bounds[ranks][owner] + at
        bounds = np.searchsorted(owner, np.arange(len(ranks) + 1))
        shift = (bounds[:-1] - self.bounds[ranks])[owner]
        waiting, at = ranges(np.diff(self.ptr)[row])
        return Program(
            bounds=bounds, type=self.type[row], node_id=self.node_id[row],
            columns={name: column[row] for name, column in self._columns.items()},
            ptr=np.searchsorted(waiting, np.arange(len(row) + 1)),
            parents=self.parents[self.ptr[row][waiting] + at] + shift[waiting],
            payload=np.where(self.payload[row] < 0, -1, self.payload[row] + shift),
            fused=np.where(self.fused[row] < 0, -1, self.fused[row] + shift), place=self.place[row],
            inputs=self.inputs, outputs=self.outputs,
        )  # fmt: skip

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> Program:
        """The same program with some columns, int64[rows] each, in place of its own."""
        made = copy(self)
        made._columns = {**self._columns, **columns}
        return made

    def traces(self) -> tuple[ExecutionTrace, ...]:
        """One trace per rank, with rows counted from 0 as ids; ranks of equal structure share it."""
        self.column("payload")
        columns = {name: column for name, column in self._columns.items() if self.has(name)}
        structures: dict[bytes, tuple[np.ndarray, Csr, np.ndarray]] = {}
        out = []
        for low, high in pairwise(self.bounds.tolist()):
            edges = slice(int(self.ptr[low]), int(self.ptr[high]))
            ptr, parents = self.ptr[low : high + 1] - self.ptr[low], self.parents[edges] - low
            kinds = self.type[low:high]
            key = kinds.tobytes() + b"|" + ptr.tobytes() + b"|" + parents.tobytes()
            if key not in structures:
                structures[key] = kinds, Csr(ptr, parents.astype(np.uint64)), np.arange(high - low, dtype=np.uint64)
            kinds, deps, ids = structures[key]
            own = {name: column[low:high] for name, column in columns.items()}
            out.append(ExecutionTrace.from_columns(node_id=ids, type=kinds, data_deps=deps, **own))
        return tuple(out)

    @cached_property
    def child(self) -> np.ndarray:
        return graph.owners(self.ptr)

    def node(self, row: int) -> str:
        return f"rank {int(self.rank[row])} node {int(self.node_id[row])}"

    def waits_for(self, row: int, other: int, budget: list[int]) -> bool:
        """True if a node can only begin when another of its rank is done; takes as many steps off `budget`."""
        floor = int(self.place[other])
        stack, seen = [row], {row}
        while stack:
            current = stack.pop()
            for parent in self.parents[self.ptr[current] : self.ptr[current + 1]].tolist():
                if parent == other:
                    return True
                if parent not in seen and self.place[parent] > floor:
                    seen.add(parent)
                    stack.append(parent)
            budget[0] -= 1
            if budget[0] < 0:
                raise Unusable("who receives what takes too long to find out; give every message a tag", unknown=True)
        return False


def ranges(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For counts[i] elements of every i: their i, and their number 0, 1 … within it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def numbered(group: np.ndarray, *turns: np.ndarray) -> np.ndarray:
    """Numbers 0, 1 … within each group, in the order of the turns, the last of which counts most."""
    order = np.lexsort((*turns, group))
    out = np.empty(len(group), dtype=np.int64)
    out[order] = np.arange(len(group)) - np.searchsorted(group[order], group[order])
    return out


class ProgramTraces(Sequence[ExecutionTrace]):
    """Traces of a program, made when they are asked for first."""

    def __init__(self, program: Program) -> None:
        self.program = program

    @cached_property
    def _made(self) -> tuple[ExecutionTrace, ...]:
        return self.program.traces()

    def __len__(self) -> int:
        return self.program.ranks

    def __reduce__(self):
        return type(self), (self.program,)

    def __getitem__(self, index):
        return self._made[index]

    def __iter__(self) -> Iterator[ExecutionTrace]:
        return iter(self._made)


def _declared(traces: Sequence[ExecutionTrace], name: str) -> int:
    """The largest whole number that the metadata of the traces states under a name, or 0."""
    stated = (trace.meta(name) for trace in traces)
    return max((value for value in stated if type(value) is int), default=0)


def _places(trace: ExecutionTrace) -> np.ndarray:
    """Place of each row in the topological order; where there is a cycle, any will do, as it never ends."""
    at = np.arange(len(trace))
    try:
        at[trace.order("data+ctrl")] = np.arange(len(trace))
    except TraceError:
        trace.parents("data+ctrl")
    return at


def _rows_named(trace: ExecutionTrace, name: str, start: int, rank: int, what: str) -> np.ndarray:
    """int64[n]: rows of the nodes that a column of ids names, counted from `start`; -1 where it names none."""
    if not len(trace) or not trace.has_column(name):
        return np.full(len(trace), -1, dtype=np.int64)
    ids = trace.column(name)
    found = trace.rows_of(np.where(ids < 0, 0, ids).astype(np.uint64))
    lost = np.flatnonzero((ids != MISSING) & ((found < 0) | (ids < 0)))
    if len(lost):
        node = int(trace.node_id[lost[0]])
        raise Unusable(f"rank {rank} node {node} {what} {int(ids[lost[0]])}, which is not there")
    return np.where(ids == MISSING, -1, found + start)
