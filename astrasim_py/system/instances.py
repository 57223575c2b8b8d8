"""Instances of collectives: the k-th call of a group on one member is the k-th on every other.

Ranks that share a trace form one *kind*; each kind is read once.
"""

import numpy as np

from astrasim_py.chakra.schema import COLLECTIVE_NAMES, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import COLLECTIVES
from astrasim_py.core.errors import TraceError
from astrasim_py.system.durations import node_place
from astrasim_py.system.problem import CollectiveRequest, Job
from astrasim_py.system.semantics import Semantics

_CODES = {name: code for code, name in COLLECTIVE_NAMES.items()}
_ROOTED = [_CODES[name] for name, each in COLLECTIVES.items() if each.rooted]
WORLD = "world"


class JobInstances:
    """The collective calls of one job, grouped into instances.

    `kind_of`: int64[ranks], kinds numbered by their first ranks. `calls`: by kind, int32 by node: the instance that it
    starts, -1 for none. `requests`, `places`: by instance, its call and the place of its first node.

    Raises TraceError: calls without type, size or group, or calls that differ between members of a group.
    """

    def __init__(self, job: Job, semantics: Semantics) -> None:
        self.job = job
        self.dependencies = job.dependencies or semantics.dependencies
        self.groups = {WORLD: tuple(range(job.ranks)), **job.workload.groups}
        every = job.workload.traces
        number = {trace: kind for kind, trace in enumerate(dict.fromkeys(every))}
        self.traces = list(number)
        self.kind_of = np.fromiter(map(number.__getitem__, every), dtype=np.int64, count=len(every))
        self.first = np.unique(self.kind_of, return_index=True)[1]
        #: By kind and group: rows of the trace, in the order of the calls.
        self.rows: list[dict[str, np.ndarray]] = [self._read(kind) for kind in range(len(self.traces))]
        #: By group: the calls of its first member, as in `_table`.
        self.tables: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for rows in self.rows for name in rows):
            self._match_calls(name)
        self.calls: list[np.ndarray] = []
        self.requests: list[CollectiveRequest] = []
        self.places: list[str] = []
        numbers = {name: np.full(len(table), -1, dtype=np.int64) for name, table in self.tables.items()}
        for kind in range(len(self.traces)):
            self._number(kind, numbers)

    def _match_calls(self, name: str) -> None:
        """Order the calls of a group so that its members agree: by dependencies, else by node id."""
        kinds, nothing = self.kinds(name), np.zeros(0, dtype=np.int64)
        by_dependencies = {kind: self.rows[kind].get(name, nothing) for kind in kinds}
        by_id = {k: r[np.argsort(self.traces[k].node_id[r], kind="stable")] for k, r in by_dependencies.items()}
        for rows in (by_dependencies, by_id):
            first, *others = (self.table(name, kind, rank, rows[kind]) for kind, rank in kinds.items())
            if all(np.array_equal(other[:, :3], first[:, :3]) for other in others):
                self.tables[name] = first
                for kind in kinds:
                    if name in self.rows[kind]:
                        self.rows[kind][name] = rows[kind]
                return
        self.refuse_difference(name, kinds, by_dependencies)

    def _number(self, kind: int, numbers: dict[str, np.ndarray]) -> None:
        """Number the calls of a kind that no earlier kind makes, in order of appearance."""
        trace = self.traces[kind]
        for name, k in self.new_calls(kind, numbers):
            numbers[name][k] = len(self.requests)
            self.requests.append(self.request(name, k))
            self.places.append(node_place(trace, int(self.rows[kind][name][k]), f"rank {self.first[kind]}"))
        call = np.full(len(trace), -1, dtype=np.int32)
        for name, rows in self.rows[kind].items():
            call[rows] = numbers[name]
        self.calls.append(call)

    def collective_rows(self, kind: int) -> np.ndarray:
        """Rows of all collective nodes of a kind, in order."""
        trace = self.traces[kind]
        # Cycles are an error in every trace, with or without collectives.
        order = trace.order(self.dependencies)
        return order[trace.type[order] == NodeType.COMM_COLL]

    def _read(self, kind: int) -> dict[str, np.ndarray]:
        trace, rows = self.traces[kind], self.collective_rows(kind)
        codes, names = trace.group_of()
        names = [WORLD if name in ("", "0", WORLD) else name for name in (*names, WORLD)]
        index = {name: i for i, name in enumerate(dict.fromkeys(names))}
        group = np.array([index[name] for name in names], dtype=np.int64)[codes[rows]]
        used = group[np.sort(np.unique(group, return_index=True)[1])].tolist()
        spelled = list(index)
        self._check_groups(kind, [(int(rows[np.argmax(group == i)]), spelled[i]) for i in used])
        return {spelled[i]: rows[group == i] for i in used}

    def _check_groups(self, kind: int, used: list[tuple[int, str]]) -> None:
        """Refuse calls of undefined groups, and calls by ranks that are not members."""
        wrong = []
        for at, (row, name) in enumerate(used):
            ranks, members = [int(self.first[kind])], self.job.workload.groups.get(name)
            if members is not None:
                sharing = np.flatnonzero(self.kind_of == kind) if len(self.traces) < self.job.ranks else ranks
                ranks = np.setdiff1d(sharing, members).tolist()
            if ranks and (members is not None or name != WORLD):
                wrong.append((ranks[0], at, row, name))
        if not wrong:
            return
        rank, _, row, name = min(wrong)
        place = node_place(self.traces[kind], row, f"rank {rank}")
        if name not in self.groups:
            remedy = "give the workload's groups (a JSON file of id: [ranks])"
            raise TraceError(place, f'its group "{name}" is not defined', remedy)
        raise TraceError(place, f'rank {rank} is not a member of its group "{name}" {list(self.groups[name])[:16]}')

    def kinds(self, name: str) -> dict[int, int]:
        """Kinds of the members of a group, the first member's first, and the first member of each."""
        members = self.job.workload.groups.get(name)
        kinds = self.kind_of if members is None else self.kind_of[np.asarray(members, dtype=np.int64)]
        first = np.sort(np.unique(kinds, return_index=True)[1])
        ranks = first if members is None else np.asarray(members, dtype=np.int64)[first]
        return dict(zip(kinds[first].tolist(), ranks.tolist(), strict=True))

    def table(self, name: str, kind: int, rank: int, rows: np.ndarray) -> np.ndarray:
        """int64[k, 5]: the calls of a group by a rank of a kind: type, full buffer, root; stated bytes, priority."""
        trace, n = self.traces[kind], len(self.groups[name])
        names = ("comm_type", "coll_size", "comm_size", "comm_root", "comm_priority")
        code, exact, stated, root, priority = (trace.column(column)[rows] for column in names)
        known = np.isin(code, list(COLLECTIVE_NAMES))
        gathers = code == _CODES["all_gather"]
        own = np.where((stated == MISSING) & (code == _CODES["barrier"]), 0, stated)
        absent = exact == MISSING
        large = absent & gathers & (own > 2**62 // max(n, 1))
        size = np.where(absent, np.where(gathers & (own > 0), own * np.where(large, 1, n), own), exact)
        root = np.where((root == MISSING) | ~np.isin(code, _ROOTED), 0, root)
        odd = np.flatnonzero(~known | (size < 0) | (root < 0) | (root >= n))
        if len(odd):
            at = int(odd[0])
            values = (int(column[at]) for column in (code, size, root))
            raise _wrong(node_place(trace, int(rows[at]), f"rank {rank}"), *values, n)
        if large.any():
            place = node_place(trace, int(rows[np.argmax(large)]), f"rank {rank}")
            raise TraceError(place, "moves 2^62 B or more", "write its bytes")
        stated = np.where(absent, stated, np.where(gathers, exact // n, exact))
        return np.stack([code, size, root, np.maximum(stated, 0), np.where(priority == MISSING, 0, priority)], axis=1)

    def refuse_difference(self, name: str, kinds: dict[int, int], rows: dict[int, np.ndarray]) -> None:
        """Raise, naming the first call in which two members of a group differ."""
        tables = {kind: self.table(name, kind, rank, rows[kind])[:, :3] for kind, rank in kinds.items()}
        leader, *others = kinds

        def first_difference(kind: int) -> int:
            both = min(len(tables[leader]), len(tables[kind]))
            differ = np.flatnonzero((tables[leader][:both] != tables[kind][:both]).any(axis=1))
            return int(differ[0]) if len(differ) else both

        other = min((k for k in others if not np.array_equal(tables[k], tables[leader])), key=first_difference)
        k = first_difference(other)

        def said(kind: int) -> str:
            if k >= len(tables[kind]):
                return f"rank {kinds[kind]} makes no such call"
            code, size, root = tables[kind][k].tolist()
            at = f", root {root}" if code in _ROOTED else ""
            node = int(self.traces[kind].node_id[rows[kind][k]])
            return f"rank {kinds[kind]} calls {COLLECTIVE_NAMES[code]} of {size} B{at} (node {node})"

        holder = leader if k < len(tables[leader]) else other
        raise TraceError(
            node_place(self.traces[holder], int(rows[holder][k]), f"rank {kinds[holder]}"),
            f'members of group "{name}" differ at their collective number {k + 1}: {said(leader)}, {said(other)}',
            "let every member call the same collectives in the same order",
        )

    def new_calls(self, kind: int, numbers: dict[str, np.ndarray]) -> list[tuple[str, int]]:
        """Calls (group, number) of a kind that no earlier kind makes, in order of execution."""
        if not any((numbers[name] < 0).any() for name in self.rows[kind]):
            return []
        found = {row: (name, k) for name, rows in self.rows[kind].items() for k, row in enumerate(rows.tolist())}
        calls = (found[row] for row in self.collective_rows(kind).tolist())
        return [(name, k) for name, k in calls if numbers[name][k] < 0]

    def request(self, name: str, k: int) -> CollectiveRequest:
        """The `k`-th call of a group, as its first member makes it."""
        members = self.groups[name]
        trace: ExecutionTrace = self.job.workload.traces[members[0]]
        row = int(self.rows[self.kind_of[members[0]]][name][k])
        code, full, root, stated, priority = self.tables[name][k].tolist()
        involved = trace.attribute(row, "involved_dim") if self.job.planner is not None else None
        return CollectiveRequest(
            type=COLLECTIVE_NAMES[code],
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
    if code not in COLLECTIVE_NAMES:
        what = "lacks comm_type" if code == MISSING else f"comm_type {code} is unknown"
        return TraceError(place, what, "write one of 0..9 (ALL_REDUCE is 0)")
    if size < 0:
        what = "lacks comm_size" if size == MISSING else f"comm_size {size} is negative"
        return TraceError(place, what, "write its bytes, 0 or more")
    return TraceError(place, f"root {root} is not a position in a group of {n}")
