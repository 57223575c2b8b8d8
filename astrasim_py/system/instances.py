"""Which collective calls of a job belong together: the k-th of a group on one member is the k-th on every other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.chakra.schema import COLLECTIVE_NAMES, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import TraceError
from astrasim_py.system.planner_api import CollectiveRequest
from astrasim_py.system.problem import Job
from astrasim_py.system.rank_programs import node_place
from astrasim_py.system.semantics import Semantics

_CODES = {name: code for code, name in COLLECTIVE_NAMES.items()}
#: Rooted collectives, whose root is the position of a member in its group.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
_ROOTED = np.array([_CODES[name] for name in ROOTED], dtype=np.int64)
WORLD = "world"


class Instances:
    """Collective calls of workloads."""

    def __init__(self, semantics: Semantics) -> None:
        self.semantics = semantics
        self.columns: dict[int, tuple] = {}
        self.keep: list[object] = []  # keeps objects alive whose id() is a key

    def of_job(self, job: Job) -> tuple[np.ndarray, list[np.ndarray], list[dict]]:
        """Collective calls of one job.

        Returns
        -------
        kind : numpy.ndarray
            int64[ranks]: ranks of one kind share a trace; kinds are numbered by their first ranks.
        calls : list of numpy.ndarray
            By kind, int32: the instance that each node starts, -1 where it starts none.
        instances : list of dict
            What each instance is.
        """
        work = _Sequences(self, job)
        for name in work.names:
            if not work.agree(name):
                work.by_id(name)
                if not work.agree(name):
                    work.in_order(name)
                    self.diverging(job, name, work.groups[name], work.of_ranks(name))
        local = {name: np.full(work.count(name), -1, dtype=np.int64) for name in work.names}
        calls, instances = [], []
        for kind, trace in enumerate(work.traces):
            call = np.full(len(trace), -1, dtype=np.int32)
            calls.append(call)
            # Instances are numbered as they appear, rank after rank.
            for name, number in work.appearance(kind, local):
                local[name][number] = len(instances)
                instances.append(self.described(job, work, name, number, len(instances), kind))
            for name, rows in work.rows[kind].items():
                call[rows] = local[name]
        return work.kind_of, calls, instances

    def described(self, job: Job, work: _Sequences, name: str, number: int, index: int, kind: int) -> dict:
        """What an instance is: the ``number``-th call of a group, met first on ranks of a kind."""
        members = work.groups[name]
        signature = work.signature(name, number)
        leader = work.leader(name)
        rank, row = int(work.first[kind]), int(work.rows[kind][name][number])
        first = int(work.rows[leader][name][number])
        return {
            "local": index,
            "group": name,
            "type": signature[0],
            "size": signature[1],
            "root": signature[2],
            "members": members,
            "place": node_place(work.traces[kind], row, f"rank {rank}"),
            "node": int(work.traces[leader].node_id[first]),
            "request": self.request(job, (name, number), signature, members, first) if job.planner else None,
        }

    def of_shared(self, job: Job) -> tuple[np.ndarray, list[dict]] | None:
        """The same where all ranks share one trace and call collectives of all of them only; else None."""
        trace = job.workload.traces[0]
        if WORLD in job.workload.groups or any(other is not trace for other in job.workload.traces):
            return None
        codes, names = trace.group_of()
        used = np.unique(codes[trace.type == NodeType.COMM_COLL]).tolist()
        if any(code >= 0 and names[code] not in ("", "0", WORLD) for code in used):
            return None
        _, calls, instances = self.of_job(job)
        return calls[0], instances

    def request(
        self, job: Job, key: tuple[str, int], signature: tuple, members: Sequence[int], row: int
    ) -> CollectiveRequest:
        """What a planner is asked of the call ``(group, number)``, a node of its first member."""
        group, number = key
        kind, size, root = signature
        trace = job.workload.traces[members[0]]
        _, exact, stated, _, priority = (int(column[row]) for column in self.columns_of(trace))
        if exact != MISSING:
            stated = exact // len(members) if kind == "all_gather" else exact
        involved = trace.node(row).get("involved_dim")
        return CollectiveRequest(
            type=kind,
            size=max(stated, 0),
            members=tuple(members),
            group=group,
            node=int(trace.node_id[row]),
            priority=0 if priority == MISSING else priority,
            dims=tuple(map(bool, involved)) if isinstance(involved, tuple) else None,
            number=number,
            root=root,
            full=size,
        )

    def columns_of(self, trace: ExecutionTrace) -> tuple[np.ndarray, ...]:
        """The columns that describe collectives, kept per trace."""
        columns = self.columns.get(id(trace))
        if columns is None:
            names = ("comm_type", "coll_size", "comm_size", "comm_root", "comm_priority")
            columns = self.columns[id(trace)] = tuple(trace.column(name) for name in names)
            self.keep.append(trace)
        return columns

    def signature(self, trace: ExecutionTrace, row: int, rank: int, n: int) -> tuple[str, int, int]:
        """Type, full-buffer bytes and root of a collective node."""
        code, size, comm_size, root, _ = (int(column[row]) for column in self.columns_of(trace))
        if code not in COLLECTIVE_NAMES:
            what = "lacks comm_type" if code == MISSING else f"comm_type {code} is unknown"
            raise TraceError(node_place(trace, row, f"rank {rank}"), what, "write one of 0..9 (ALL_REDUCE is 0)")
        kind = COLLECTIVE_NAMES[code]
        if size == MISSING:
            size = comm_size
            if size == MISSING and kind == "barrier":
                size = 0
            elif kind == "all_gather" and size > 0:
                size *= n
        if size < 0:
            what = "lacks comm_size" if size == MISSING else f"comm_size {size} is negative"
            raise TraceError(node_place(trace, row, f"rank {rank}"), what, "write its bytes, 0 or more")
        root = 0 if root == MISSING or kind not in ROOTED else root
        if not 0 <= root < n:
            raise TraceError(node_place(trace, row, f"rank {rank}"), f"root {root} is not a position in a group of {n}")
        return kind, size, root

    def table(self, trace: ExecutionTrace, rows: np.ndarray, rank: int, n: int) -> np.ndarray:
        """int64[k, 3]: code of the type, full-buffer bytes and root of collective nodes; see `signature`."""
        code, size, stated, root, _ = (column[rows] for column in self.columns_of(trace))
        known = np.isin(code, np.array(list(COLLECTIVE_NAMES), dtype=np.int64))
        gathers, barrier = code == _CODES["all_gather"], code == _CODES["barrier"]
        absent = size == MISSING
        own = np.where(stated == MISSING, np.where(barrier, 0, MISSING), stated)
        # Beyond int64 the exact arithmetic of `signature` takes over.
        large = absent & gathers & (own > 2**62 // max(n, 1))
        scaled = np.where(gathers & (own > 0) & ~large, own * np.where(large, 1, n), own)
        size = np.where(absent, scaled, size)
        root = np.where((root == MISSING) | ~np.isin(code, _ROOTED), 0, root)
        odd = np.flatnonzero(~known | (size < 0) | (root < 0) | (root >= n) | large)
        for row in rows[odd].tolist():
            self.signature(trace, row, rank, n)
        if len(odd):
            raise TraceError(
                node_place(trace, int(rows[odd[0]]), f"rank {rank}"), "moves 2^62 B or more", "write its bytes"
            )
        return np.stack([code, size, root], axis=1)

    def diverging(self, job: Job, name: str, members: Sequence[int], rows: dict[int, list[int]]) -> None:
        """Raise, naming the first call in which two members of a group differ."""
        traces = job.workload.traces
        best: tuple[int, int, int] | None = None
        for rank in members[1:]:
            mine, theirs = rows.get(members[0], []), rows.get(rank, [])
            for k in range(max(len(mine), len(theirs))):
                a = self.signature(traces[members[0]], mine[k], members[0], len(members)) if k < len(mine) else None
                b = self.signature(traces[rank], theirs[k], rank, len(members)) if k < len(theirs) else None
                if a != b:
                    if best is None or k < best[0]:
                        best = (k, members[0], rank)
                    break
        if best is None:
            return
        k, first, other = best

        def said(rank: int) -> str:
            calls = rows.get(rank, [])
            if k >= len(calls):
                return f"rank {rank} makes no such call"
            kind, size, root = self.signature(traces[rank], calls[k], rank, len(members))
            at = f", root {root}" if kind in ROOTED else ""
            return f"rank {rank} calls {kind} of {size} B{at} (node {int(traces[rank].node_id[calls[k]])})"

        holder = first if k < len(rows.get(first, [])) else other
        raise TraceError(
            node_place(traces[holder], rows[holder][k], f"rank {holder}"),
            f'members of group "{name}" differ at their collective number {k + 1}: {said(first)}, {said(other)}',
            "let every member call the same collectives in the same order",
        )


class _Sequences:
    """The collective nodes of a job, in the order in which ranks call them: by kind of rank and by group.

    Attributes
    ----------
    groups : mapping of str to tuple of int
    kind_of : numpy.ndarray
        int64[ranks].
    traces : list of ExecutionTrace
        By kind.
    first : numpy.ndarray
        int64, by kind: the first rank.
    rows : list of dict of str to numpy.ndarray
        By kind and group, int64: rows of the trace, in the order of the calls.
    names : list of str
        Groups that are called, in order of appearance.
    """

    def __init__(self, calls: Instances, job: Job) -> None:
        self.calls, self.job = calls, job
        self.groups = {WORLD: tuple(range(job.ranks)), **job.workload.groups}
        every = job.workload.traces
        ids = np.fromiter(map(id, every), dtype=np.uint64, count=len(every))
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        by_first = np.argsort(first)
        number = np.empty(len(first), dtype=np.int64)
        number[by_first] = np.arange(len(first))
        self.kind_of, self.first = number[which], first[by_first]
        self.traces = [every[rank] for rank in self.first.tolist()]
        self.members = {name: np.asarray(group, dtype=np.int64) for name, group in job.workload.groups.items()}
        self.dependencies = job.dependencies or calls.semantics.dependencies
        self.rows: list[dict[str, np.ndarray]] = []
        self.called: list[tuple[np.ndarray, list[str]]] = []
        for kind in range(len(self.traces)):
            self._add(kind)
        self.names = list(dict.fromkeys(name for rows in self.rows for name in rows))
        self._tables: dict[tuple[str, int], np.ndarray] = {}
        self._kinds: dict[str, dict[int, int]] = {}

    def _add(self, kind: int) -> None:
        """Read the collective nodes of a trace."""
        trace = self.traces[kind]
        # Cycles are an error in every trace, with or without collectives.
        order = trace.order(self.dependencies)
        rows = order[trace.type[order] == NodeType.COMM_COLL]
        codes, names = trace.group_of()
        codes = codes[rows]
        spelled = [WORLD if name in ("", "0", WORLD) else name for name in (*names, WORLD)]
        first = np.sort(np.unique(codes, return_index=True)[1])
        used = list(dict.fromkeys(spelled[code] for code in codes[first].tolist()))
        self._check_groups(kind, rows, codes, spelled, used)
        of_code = np.array([used.index(name) if name in used else -1 for name in spelled], dtype=np.int64)
        which = of_code[codes]
        self.rows.append({name: rows[which == i] for i, name in enumerate(used)})
        self.called.append((which, used))

    def _check_groups(self, kind: int, rows: np.ndarray, codes: np.ndarray, spelled: list, used: list) -> None:
        """Refuse calls of groups that are not defined, or of which a rank is no member."""
        wrong = []
        for name in used:
            if name == WORLD and name not in self.members:
                continue
            rank = int(self.first[kind])
            if name in self.members:
                sharing = np.flatnonzero(self.kind_of == kind) if len(self.traces) < len(self.kind_of) else [rank]
                outside = np.setdiff1d(sharing, self.members[name])
                if not len(outside):
                    continue
                rank = int(outside[0])
            at = np.flatnonzero(np.array([other == name for other in spelled])[codes])[0]
            wrong.append((rank, int(at), name))
        if not wrong:
            return
        rank, at, name = min(wrong)
        place = node_place(self.traces[kind], int(rows[at]), f"rank {rank}")
        if name not in self.groups:
            remedy = "give the workload's groups (a JSON file of id: [ranks])"
            raise TraceError(place, f'its group "{name}" is not defined', remedy)
        members = list(self.groups[name])[:16]
        raise TraceError(place, f'rank {rank} is not a member of its group "{name}" {members}')

    def kinds(self, name: str) -> dict[int, int]:
        """Kinds of the members of a group, the first member's first, and the first member of each."""
        if name not in self._kinds:
            members = self.members.get(name)
            kinds = self.kind_of if members is None else self.kind_of[members]
            first = np.sort(np.unique(kinds, return_index=True)[1])
            ranks = first if members is None else members[first]
            self._kinds[name] = dict(zip(kinds[first].tolist(), ranks.tolist(), strict=True))
        return self._kinds[name]

    def leader(self, name: str) -> int:
        """Kind of the first member of a group."""
        return next(iter(self.kinds(name)))

    def table(self, name: str, kind: int) -> np.ndarray:
        """Signatures of the calls of a group by ranks of a kind."""
        key = (name, kind)
        if key not in self._tables:
            rows = self.rows[kind].get(name, np.zeros(0, dtype=np.int64))
            rank, n = self.kinds(name)[kind], len(self.groups[name])
            self._tables[key] = self.calls.table(self.traces[kind], rows, rank, n)
        return self._tables[key]

    def agree(self, name: str) -> bool:
        """Whether all members of a group make the same calls."""
        first = self.table(name, self.leader(name))
        return all(np.array_equal(self.table(name, kind), first) for kind in self.kinds(name))

    def count(self, name: str) -> int:
        """Calls of a group on which its members agree."""
        return len(self.table(name, self.leader(name)))

    def signature(self, name: str, number: int) -> tuple[str, int, int]:
        """Type, full-buffer bytes and root of a call."""
        code, size, root = self.table(name, self.leader(name))[number].tolist()
        return COLLECTIVE_NAMES[code], size, root

    def by_id(self, name: str) -> None:
        """Take the calls of a group in ascending node id."""
        for kind in self.kinds(name):
            rows = self.rows[kind].get(name)
            if rows is not None:
                self.rows[kind][name] = rows[np.argsort(self.traces[kind].node_id[rows], kind="stable")]
            self._tables.pop((name, kind), None)

    def in_order(self, name: str) -> None:
        """Take them in the order of the dependencies again."""
        for kind in self.kinds(name):
            rows = self.rows[kind].get(name)
            if rows is not None:
                order = self.traces[kind].order(self.dependencies)
                self.rows[kind][name] = order[np.isin(order, rows)]

    def of_ranks(self, name: str) -> dict[int, list[int]]:
        """Rows of the calls of a group by member."""
        found = {rank: self.rows[int(self.kind_of[rank])].get(name) for rank in self.groups[name]}
        return {rank: rows.tolist() for rank, rows in found.items() if rows is not None}

    def appearance(self, kind: int, local: dict[str, np.ndarray]) -> list[tuple[str, int]]:
        """Calls (group, number) of a kind that no kind before makes, in its order of execution."""
        if not any((local[name] < 0).any() for name in self.rows[kind]):
            return []
        which, used = self.called[kind]
        order = self.traces[kind].order(self.dependencies)
        rows = order[self.traces[kind].type[order] == NodeType.COMM_COLL]
        number = np.empty(len(self.traces[kind]), dtype=np.int64)
        for name in used:
            own = self.rows[kind][name]
            number[own] = np.arange(len(own))
        numbers = number[rows].tolist()
        names = [used[i] for i in which.tolist()]
        return [(name, k) for name, k in zip(names, numbers, strict=True) if local[name][k] < 0]
