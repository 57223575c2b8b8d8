"""`Program`: who does what in an algorithm, as one table of the nodes of all ranks.

Columns have the names of Chakra's attributes (`astrasim_py.chakra.schema.INT_COLUMNS`): peers are ``comm_dst`` and
``comm_src``, sizes in chunks ``msg_chunk_idx`` and ``msg_chunk_cnt``, what is read and written ``src_buf``,
``src_off``, ``dst_buf`` and ``dst_off``. Rows are in the order of ranks, and within a rank in that of its trace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.rows import ranges


class Unusable(Exception):
    """The program cannot be executed: it is ill-formed, or (unknown) incomplete."""

    def __init__(self, problem: str, *, unknown: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.unknown = problem, unknown


@dataclass(eq=False, kw_only=True)
class Program:
    """The nodes of all ranks in one table.

    `bounds`: int64[ranks + 1]: rank r has rows bounds[r] to bounds[r + 1] - 1; `rank`: of each row. `type`: int8[rows].
    `node_id`: uint64[rows]. `columns`: int64[rows] each, MISSING where a node has none; those that name nodes hold ids.
    `ptr`, `parents`: CSR of the rows that a row waits for, data and control dependencies. `places`: the ranks' files,
    empty where a builder made them. `inputs`, `outputs`: declared chunks of the ranks' largest input and output buffer,
    0 where nothing is declared. `actors`: names of the last ranks, which are switches.
    """

    bounds: np.ndarray
    type: np.ndarray
    node_id: np.ndarray
    columns: dict[str, np.ndarray]
    ptr: np.ndarray
    parents: np.ndarray
    places: Sequence[str] = ()
    inputs: int = 0
    outputs: int = 0
    actors: tuple[str, ...] = ()

    @classmethod
    def of_traces(cls, traces: Sequence[ExecutionTrace], dependencies: str = "data+ctrl") -> Program:
        """The table of one trace per rank. Raises TraceError: a dependency on a node that is not there."""
        traces = list(traces)
        bounds = np.cumsum([0, *map(len, traces)])
        edges = [trace.parents(dependencies) for trace in traces]
        columns = {
            name: _joined([trace.column(name) for trace in traces])
            for name in INT_COLUMNS
            if any(trace.has_column(name) for trace in traces)
        }
        if any(trace.duration_micros.any() for trace in traces):
            columns["duration_micros"] = _joined([trace.duration_micros for trace in traces])
        return cls(
            bounds=bounds, type=_joined([trace.type for trace in traces]),
            node_id=_joined([trace.node_id for trace in traces]), columns=columns,
            ptr=np.concatenate([[0], np.cumsum(np.concatenate([np.diff(ptr) for ptr, _ in edges]))]),
            parents=np.concatenate([rows + start for (_, rows), start in zip(edges, bounds.tolist(), strict=False)]),
            places=[trace.place for trace in traces],
            inputs=_declared(traces, "msccl_i_chunks"), outputs=_declared(traces, "msccl_o_chunks"),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.type)

    @property
    def ranks(self) -> int:
        return len(self.bounds) - 1

    def column(self, name: str) -> np.ndarray:
        """int64[rows]: an integer attribute of every node, MISSING where it has none."""
        if name not in self.columns:
            self.columns[name] = np.broadcast_to(np.int64(MISSING), len(self))
        return self.columns[name]

    @property
    def duration_micros(self) -> np.ndarray:
        """uint64[rows]: whole microseconds, 0 where a node states none."""
        return self.columns.get("duration_micros", np.broadcast_to(np.uint64(0), (len(self),)))

    def has(self, name: str) -> bool:
        return name in self.columns and bool((self.columns[name] != MISSING).any())

    def with_columns_only(self, names: Collection[str]) -> Program:
        """The same program without its other columns, and without fused steps."""
        remaining = {*names, "payload"} - {"fused"}
        return replace(self, columns={name: column for name, column in self.columns.items() if name in remaining})

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> Program:
        """The same program with some columns, int64[rows] each, in place of its own."""
        return replace(self, columns={**self.columns, **columns})

    def some(self, ranks: Sequence[int] | np.ndarray) -> Program:
        """The table of some ranks, which become its ranks 0, 1, …; one may come several times."""
        ranks = np.asarray(ranks, dtype=np.int64)
        owner, offset = ranges(np.diff(self.bounds)[ranks])
        row = self.bounds[ranks][owner] + offset
        bounds = np.searchsorted(owner, np.arange(len(ranks) + 1))
        shift = (bounds[:-1] - self.bounds[ranks])[owner]
        waiting, offset = ranges(np.diff(self.ptr)[row])
        return replace(
            self, bounds=bounds, type=self.type[row], node_id=self.node_id[row],
            columns={name: column[row] for name, column in self.columns.items()},
            ptr=np.searchsorted(waiting, np.arange(len(row) + 1)),
            parents=self.parents[self.ptr[row][waiting] + offset] + shift[waiting],
            places=[self.places[rank] for rank in ranks.tolist()] if self.places else (), actors=(),
        )  # fmt: skip

    def traces(self) -> tuple[ExecutionTrace, ...]:
        """One trace per rank, with rows counted from 0 as ids; ranks of equal structure share it."""
        columns = {name: column for name, column in self.columns.items() if self.has(name)}
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
            part = {name: column[low:high] for name, column in columns.items()}
            out.append(ExecutionTrace.from_columns(node_id=ids, type=kinds, data_deps=deps, **part))
        return tuple(out)

    @cached_property
    def rank(self) -> np.ndarray:
        return graph.owners(self.bounds)

    @cached_property
    def child(self) -> np.ndarray:
        return graph.owners(self.ptr)

    @cached_property
    def by_id(self) -> np.ndarray:
        """int64[rows]: rows by rank and ascending id."""
        ascending = (self.node_id[1:] > self.node_id[:-1]) | (self.rank[1:] != self.rank[:-1])
        return np.arange(len(self)) if ascending.all() else np.lexsort((self.node_id, self.rank))

    @cached_property
    def place(self) -> np.ndarray:
        """int64[rows]: place in the topological order of the rank; that of the row where there is a cycle."""
        index = np.arange(len(self)) - self.bounds[self.rank]
        order = graph.topological_order(self.ptr, self.parents, np.argsort(self.by_id))
        complete = np.bincount(self.rank[order], minlength=self.ranks) == np.diff(self.bounds)
        order = order[complete[self.rank[order]]]
        order = order[np.argsort(self.rank[order], kind="stable")]
        place = index.copy()
        place[order] = index[np.sort(order)]
        return place

    @cached_property
    def payload(self) -> np.ndarray:
        """int64[rows]: the row whose data a node takes, -1 for none. Raises Unusable: it is not there."""
        return self._named("payload", "takes data of")

    @cached_property
    def step(self) -> np.ndarray:
        """int64[rows]: the first row of a node's fused step, else its own. Raises Unusable: it is not there."""
        fused = self._named("fused", "is fused with")
        return np.where(fused < 0, np.arange(len(self)), fused)

    def _named(self, name: str, verb: str) -> np.ndarray:
        if not self.has(name):
            return np.full(len(self), -1, dtype=np.int64)
        ids, rows = self.column(name), self.rows_named(name)
        lost = np.flatnonzero((ids != MISSING) & (rows < 0))
        if len(lost):
            raise Unusable(f"{self.node(int(lost[0]))} {verb} {int(ids[lost[0]])}, which is not there")
        return rows

    def rows_named(self, name: str) -> np.ndarray:
        """int64[rows]: the row of the same rank whose id a column has, -1 where there is none."""
        ids = self.column(name)
        distinct, code = np.unique(self.node_id, return_inverse=True)
        id_code = np.minimum(np.searchsorted(distinct, np.maximum(ids, 0).astype(np.uint64)), len(distinct) - 1)
        keys, key = (self.rank * len(distinct) + value for value in (code, id_code))
        position = np.minimum(np.searchsorted(keys[self.by_id], key), len(self) - 1)
        rows = self.by_id[position]
        return np.where((ids >= 0) & (self.node_id[rows] == ids.astype(np.uint64)) & (keys[rows] == key), rows, -1)

    def node(self, row: int) -> str:
        return f"{self.position_name(int(self.rank[row]))} node {int(self.node_id[row])}"

    def position_name(self, position: int) -> str:
        """``rank 3``, or ``switch leaf0``."""
        return named(position, self.ranks - len(self.actors), self.actors)

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
                raise Unusable("matching sends and receives takes too long; give every message a tag", unknown=True)
        return False


def named(position: int, ranks: int, actors: Sequence[str]) -> str:
    """A rank or a switch of an algorithm, or a rank that is not there, in words."""
    switches = range(ranks, ranks + len(actors))
    return f"switch {actors[position - ranks]}" if position in switches else f"rank {position}"


def counted(ranks: int, actors: Sequence[str]) -> str:
    """How many ranks and switches an algorithm has, in words."""
    switches = f" and {len(actors)} switch{'es' if len(actors) > 1 else ''}" if actors else ""
    return f"{ranks} ranks{switches}"


def file_of(nodes: ExecutionTrace | Program, row: int) -> str:
    """The file that a node comes from, empty where it was built."""
    if isinstance(nodes, Program):
        return nodes.places[nodes.rank[row]] if nodes.places else ""
    return nodes.place


def _declared(traces: Sequence[ExecutionTrace], name: str) -> int:
    """The largest whole number that the metadata of the traces states under a name, or 0."""
    stated = (trace.meta(name) for trace in traces)
    return max((value for value in stated if type(value) is int), default=0)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
