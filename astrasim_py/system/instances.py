"""Instances of collectives: the k-th call of a group on one member is the k-th on every other.

Ranks that share a trace form one *kind*, which is read once. Ranks of a kind that call the same groups have one
*binding*. The calls of a kind under the names of one group are a *part*.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra.schema import COLLECTIVE_CODES, COLLECTIVE_OF_CODE, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import COLLECTIVES
from astrasim_py.core.conditions import hold
from astrasim_py.core.errors import TraceError
from astrasim_py.system.durations import node_place
from astrasim_py.system.problem import CollectiveRequest, Job
from astrasim_py.system.semantics import Semantics

_ROOTED = [COLLECTIVE_CODES[name] for name, each in COLLECTIVES.items() if each.rooted]
WORLD = "world"


class _Part(NamedTuple):
    kind: int
    names: tuple[str, ...]  # of groups or roles in the trace


class _CallsOfGroup(NamedTuple):
    """The calls of a group: as its first member makes them (`table`), the `rows` of each part, and the first call of
    equal type, size and root (`like`, int64[k])."""

    table: np.ndarray
    rows: dict[_Part, np.ndarray]
    like: np.ndarray


class JobInstances:
    """The collective calls of one job, grouped into instances.

    `kind_of`, `binding_of`: int64[ranks], each numbered by first ranks. `calls`: by kind, int32 by node: the number of
    a collective call of the kind, -1 for other nodes. `bound`: by binding, int32: the instance of each call.
    `group`, `number`: int64 by instance: its group, and which of its calls it is. `like`: int64 by instance: the first
    one of equal group, type, size and root.

    Raises TraceError: calls without type, size or group, or calls that differ between members of a group.
    """

    def __init__(self, job: Job, semantics: Semantics) -> None:
        self.job, self.workload = job, job.workload
        self.dependencies = job.ordered_by(semantics)
        self.groups = {WORLD: tuple(range(job.ranks))}
        self.groups |= {name: self.workload.members(name) for name in self.workload.groups}
        traces = self.workload.traces
        number = {trace: kind for kind, trace in enumerate(dict.fromkeys(traces))}
        self.traces = list(number)
        self.kind_of = np.fromiter(map(number.__getitem__, traces), dtype=np.int64, count=len(traces))
        self.calls: list[np.ndarray] = []
        #: By kind and name: rows of the trace, in the order of the calls.
        self.rows: list[dict[str, np.ndarray]] = [self._read(trace) for trace in self.traces]
        #: By binding and group: the part that calls it.
        self.parts: list[dict[str, _Part]] = []
        self.binding_of = self._bind()
        self._agreed: dict[tuple, _CallsOfGroup] = {}
        self.of_group = {name: self._match_calls(name) for name in dict.fromkeys(chain.from_iterable(self.parts))}
        self._number()

    def _read(self, trace: ExecutionTrace) -> dict[str, np.ndarray]:
        # Cycles are an error in every trace, with or without collectives.
        order = trace.order(self.dependencies)
        rows = order[trace.type[order] == NodeType.COMM_COLL]
        self.calls.append(np.full(len(trace), -1, dtype=np.int32))
        self.calls[-1][rows] = np.arange(len(rows))
        codes, names = trace.group_of()
        index = {name: i for i, name in enumerate(dict.fromkeys((*names, "")))}
        name_of = np.array([*map(index.__getitem__, names), index[""]], dtype=np.int64)[codes[rows]]
        used = name_of[np.sort(np.unique(name_of, return_index=True)[1])].tolist()
        return {list(index)[i]: rows[name_of == i] for i in used}

    def _bind(self) -> np.ndarray:
        """int64[ranks]: the binding of each rank; adds their parts. Refuses groups that a rank cannot call."""
        members = {name: frozenset(ranks) for name, ranks in self.groups.items()}
        bindings: dict[tuple, int] = {}
        everyone: dict[int, int] = {}  # of kinds that call groups of all ranks only
        binding_of = np.empty(self.job.ranks, dtype=np.int64)
        for rank, kind in enumerate(self.kind_of.tolist()):
            if kind in everyone:
                binding_of[rank] = everyone[kind]
                continue
            groups = []
            for name, rows in self.rows[kind].items():
                group = self.workload.group(name, rank)
                groups.append(WORLD if group in ("", "0") else group)
                if rank not in members.get(groups[-1], ()):
                    self._refuse_group(node_place(self.traces[kind], int(rows[0]), f"rank {rank}"), rank, group)
            binding_of[rank] = number = bindings.setdefault((kind, *groups), len(bindings))
            if not self.workload.roles and all(len(members[group]) == self.job.ranks for group in groups):
                everyone[kind] = number
            if number == len(self.parts):
                names: dict[str, tuple[str, ...]] = {}
                for name, group in zip(self.rows[kind], groups, strict=True):
                    names[group] = (*names.get(group, ()), name)
                self.parts.append({group: _Part(kind, calls_of) for group, calls_of in names.items()})
        return binding_of

    def _refuse_group(self, place: str, rank: int, name: str) -> None:
        """Raise TraceError: a rank calls an undefined group, or one without that rank."""
        if name not in self.groups:
            remedy = "give the workload's groups (a JSON file of id: [ranks])"
            raise TraceError(place, f'its group "{name}" is not defined', remedy)
        raise TraceError(place, f'rank {rank} is not a member of its group "{name}" {list(self.groups[name])[:16]}')

    def _match_calls(self, name: str) -> _CallsOfGroup:
        """Order the calls of a group so that its members agree: by dependencies, else by node id."""
        members = np.asarray(self.groups[name], dtype=np.int64)
        bindings = self.binding_of[members]
        parts: dict[_Part, int] = {}
        for at in np.sort(np.unique(bindings, return_index=True)[1]).tolist():
            rank = int(members[at])
            parts.setdefault(self.parts[bindings[at]].get(name, _Part(int(self.kind_of[rank]), ())), rank)
        key = len(members), *parts
        if key not in self._agreed:
            self._agreed[key] = self._agree(name, parts)
        return self._agreed[key]

    def _agree(self, name: str, parts: dict[_Part, int]) -> _CallsOfGroup:
        for by_id in (False, True):
            rows = {part: self._ordered(part, by_id) for part in parts}
            first, *others = (self.table(name, part, rank, rows[part]) for part, rank in parts.items())
            if all(np.array_equal(other[:, :3], first[:, :3]) for other in others):
                break
        else:
            self.refuse_difference(name, parts, {part: self._ordered(part, by_id=False) for part in parts})
        leader = next(iter(parts))
        node = self.traces[leader.kind].node_id[rows[leader]].astype(np.int64)
        conditions = [hold(condition, node) for condition in getattr(self.job.algorithms, "nodes", ())]
        same = first[:, :3] if self.job.planner is None else first
        different = np.column_stack([same, *conditions])
        _, like, inverse = np.unique(different, axis=0, return_index=True, return_inverse=True)
        return _CallsOfGroup(first, rows, like[inverse.ravel()])

    def _ordered(self, part: _Part, by_id: bool) -> np.ndarray:
        """Rows of the calls of a part, by node id or by dependencies."""
        rows = np.concatenate([np.zeros(0, np.int64), *(self.rows[part.kind][name] for name in part.names)])
        key = self.traces[part.kind].node_id if by_id else self.calls[part.kind]
        return rows[np.argsort(key[rows])]

    def _number(self) -> None:
        """Number the calls of each binding that no earlier one makes, in order of execution."""
        count, numbers = 0, {}
        self.bound: list[np.ndarray] = []
        kinds = self.kind_of[np.unique(self.binding_of, return_index=True)[1]]
        for kind, parts in zip(kinds.tolist(), self.parts, strict=True):
            numbers_of = self.calls[kind]
            calls = {name: numbers_of[self.of_group[name].rows[part]] for name, part in parts.items()}
            bound = np.zeros(int(numbers_of.max(initial=-1)) + 1, dtype=np.int32)
            new = [name for name in parts if name not in numbers]
            for name in new:
                bound[calls[name]] = 1
            order = count + np.cumsum(bound, dtype=np.int64) - 1
            for name in new:
                numbers[name] = order[calls[name]]
            count += int(bound.sum())
            for name in parts:
                bound[calls[name]] = numbers[name]
            self.bound.append(bound)
        self.group, self.number, self.like = np.empty((3, count), dtype=np.int64)
        for number, (name, own) in enumerate(numbers.items()):
            self.group[own], self.number[own], self.like[own] = (
                number,
                np.arange(len(own)),
                own[self.of_group[name].like],
            )
        self.called = list(numbers)

    def table(self, name: str, part: _Part, rank: int, rows: np.ndarray) -> np.ndarray:
        """int64[k, 5]: the calls of a group by a rank: type, full buffer, root; stated bytes, priority."""
        trace, n = self.traces[part.kind], len(self.groups[name])
        names = ("comm_type", "coll_size", "comm_size", "comm_root", "comm_priority")
        code, exact, stated, root, priority = (trace.column(column)[rows] for column in names)
        is_known = np.isin(code, list(COLLECTIVE_OF_CODE))
        gathers = code == COLLECTIVE_CODES["all_gather"]
        size_own = np.where((stated == MISSING) & (code == COLLECTIVE_CODES["barrier"]), 0, stated)
        absent = exact == MISSING
        large = absent & gathers & (size_own > 2**62 // max(n, 1))
        size = np.where(absent, np.where(gathers & (size_own > 0), size_own * np.where(large, 1, n), size_own), exact)
        root = np.where((root == MISSING) | ~np.isin(code, _ROOTED), 0, root)
        odd = np.flatnonzero(~is_known | (size < 0) | (root < 0) | (root >= n))
        if len(odd):
            row = int(odd[0])
            place = node_place(trace, int(rows[row]), f"rank {rank}")
            raise _wrong(place, int(code[row]), int(size[row]), int(root[row]), n)
        if large.any():
            place = node_place(trace, int(rows[np.argmax(large)]), f"rank {rank}")
            raise TraceError(place, "moves 2^62 B or more", "write its bytes")
        stated = np.where(absent, stated, np.where(gathers, exact // n, exact))
        return np.stack([code, size, root, np.maximum(stated, 0), np.where(priority == MISSING, 0, priority)], axis=1)

    def refuse_difference(self, name: str, parts: dict[_Part, int], rows: dict[_Part, np.ndarray]) -> None:
        """Raise TraceError with the first call that differs between two members of a group."""
        tables = {part: self.table(name, part, rank, rows[part])[:, :3] for part, rank in parts.items()}
        leader, *others = parts

        def first_difference(part: _Part) -> int:
            both = min(len(tables[leader]), len(tables[part]))
            differ = np.flatnonzero((tables[leader][:both] != tables[part][:both]).any(axis=1))
            return int(differ[0]) if len(differ) else both

        other = min((p for p in others if not np.array_equal(tables[p], tables[leader])), key=first_difference)
        k = first_difference(other)

        def said(part: _Part) -> str:
            if k >= len(tables[part]):
                return f"rank {parts[part]} makes no such call"
            code, size, root = tables[part][k].tolist()
            at = f", root {root}" if code in _ROOTED else ""
            node = int(self.traces[part.kind].node_id[rows[part][k]])
            return f"rank {parts[part]} calls {COLLECTIVE_OF_CODE[code]} of {size} B{at} (node {node})"

        holder = leader if k < len(tables[leader]) else other
        remedy = "let every member call the same collectives in the same order"
        if name == WORLD and len(self.workload.groups.get("0", ())) not in (0, self.job.ranks):
            remedy = 'group "0" is all ranks: give the group of fewer ranks another name'
        raise TraceError(
            node_place(self.traces[holder.kind], int(rows[holder][k]), f"rank {parts[holder]}"),
            f'members of group "{name}" differ at their collective number {k + 1}: {said(leader)}, {said(other)}',
            remedy,
        )

    def row_of(self, index: int, rank: int) -> tuple[ExecutionTrace, int]:
        """Trace and row of a rank's call that is an instance."""
        name = self.called[self.group[index]]
        part = self.parts[self.binding_of[rank]][name]
        return self.traces[part.kind], int(self.of_group[name].rows[part][self.number[index]])

    def place(self, index: int) -> str:
        """Place of the node of an instance's lowest rank, for messages."""
        rank = min(self.groups[self.called[self.group[index]]])
        return node_place(*self.row_of(index, rank), f"rank {rank}")

    def request(self, index: int) -> CollectiveRequest:
        """The call of an instance, as the first member of its group makes it."""
        name, k = self.called[self.group[index]], int(self.number[index])
        members = self.groups[name]
        trace, row = self.row_of(index, members[0])
        code, full, root, stated, priority = self.of_group[name].table[k].tolist()
        has_dims = self.job.planner is not None and trace.raw is not None
        involved = trace.attribute(row, "involved_dim") if has_dims else None
        return CollectiveRequest(
            type=COLLECTIVE_OF_CODE[code],
            size=stated,
            members=members,
            group=name,
            node=int(trace.node_id[row]),
            priority=priority,
            dims=tuple(map(bool, involved)) if isinstance(involved, tuple) else None,
            number=k,
            root=root,
            full=full,
        )


def _wrong(place: str, code: int, size: int, root: int, n: int) -> TraceError:
    """The error for a collective call without a known type, size or root."""
    if code not in COLLECTIVE_OF_CODE:
        if code == MISSING:
            remedy = "write 0 for ALL_REDUCE, …; or, of a wrapper such as nccl:…, untyped: compute beside trace"
            return TraceError(place, "lacks comm_type", remedy)
        return TraceError(place, f"comm_type {code} is unknown", "write one of 0..9 (ALL_REDUCE is 0)")
    if size < 0:
        problem = "lacks comm_size" if size == MISSING else f"comm_size {size} is negative"
        return TraceError(place, problem, "write its bytes, 0 or more")
    return TraceError(place, f"root {root} is not a position in a group of {n}")
