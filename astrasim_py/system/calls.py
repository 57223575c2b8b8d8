"""Which collective calls of a job belong together: the k-th of a group on one member is the k-th on every other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.chakra.trace import COLLECTIVE_NAMES, MISSING, ExecutionTrace, NodeType
from astrasim_py.core.errors import TraceError
from astrasim_py.system.planning import Call
from astrasim_py.system.problem import Job
from astrasim_py.system.programs import node_place
from astrasim_py.system.semantics import Semantics

#: Rooted collectives, whose root is the position of a member in its group.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
WORLD = "world"


class Calls:
    """Collective calls of workloads."""

    def __init__(self, semantics: Semantics) -> None:
        self.semantics = semantics
        self.columns: dict[int, tuple] = {}
        self.keep: list[object] = []  # keeps objects alive whose id() is a key

    def of_job(self, job: Job) -> tuple[list[np.ndarray], list[dict]]:
        """Instances of one job: for every rank the instance of each node, and what each instance is."""
        alike = self.of_shared(job)
        if alike is not None:
            return [alike[0]] * job.ranks, alike[1]
        ranks = job.ranks
        groups = {WORLD: tuple(range(ranks)), **job.workload.groups}
        call = [np.full(len(t), -1, dtype=np.int32) for t in job.workload.traces]
        sequences: dict[str, dict[int, list[int]]] = {}
        appearance: list[tuple[int, int, str]] = []
        for rank, trace in enumerate(job.workload.traces):
            rows = np.flatnonzero(trace.type == NodeType.COMM_COLL)
            if not len(rows):
                # Cycles are an error in every trace, with or without collectives.
                trace.order(job.dependencies or self.semantics.dependencies)
                continue
            order = trace.order(job.dependencies or self.semantics.dependencies)
            place = np.empty(len(trace), dtype=np.int64)
            place[order] = np.arange(len(trace))
            rows = rows[np.argsort(place[rows], kind="stable")]
            codes, names = trace.group_of()
            for row in rows.tolist():
                code = int(codes[row])
                name = names[code] if code >= 0 else ""
                name = WORLD if name in ("", "0", WORLD) else name
                if name not in groups:
                    raise TraceError(
                        node_place(trace, row, f"rank {rank}"),
                        f'its group "{name}" is not defined',
                        "give the workload's groups (a JSON file of id: [ranks])",
                    )
                if rank not in groups[name]:
                    raise TraceError(
                        node_place(trace, row, f"rank {rank}"),
                        f'rank {rank} is not a member of its group "{name}" {list(groups[name])[:16]}',
                    )
                sequences.setdefault(name, {}).setdefault(rank, []).append(row)
                appearance.append((rank, row, name))
        described: dict[tuple[str, int], dict] = {}
        for name in sequences:
            members = groups[name]
            if not self.same_calls(job, name, members, sequences[name]):
                by_id = {
                    rank: sorted(rows, key=lambda r, t=job.workload.traces[rank]: int(t.node_id[r]))
                    for rank, rows in sequences[name].items()
                }
                if self.same_calls(job, name, members, by_id):
                    sequences[name] = by_id
                else:
                    self.diverging(job, name, members, sequences[name])
        position: dict[tuple[int, int], tuple[str, int]] = {}
        for name, by_rank in sequences.items():
            for rank, rows in by_rank.items():
                for k, row in enumerate(rows):
                    position[rank, row] = (name, k)
        instances: list[dict] = []
        for rank, row, _ in appearance:
            key = position[rank, row]
            if key not in described:
                trace = job.workload.traces[rank]
                members = groups[key[0]]
                kind, size, root = self.signature(trace, row, rank, len(members))
                described[key] = {
                    "local": len(instances),
                    "group": key[0],
                    "type": kind,
                    "size": size,
                    "root": root,
                    "members": members,
                    "place": node_place(trace, row, f"rank {rank}"),
                    "node": int(job.workload.traces[members[0]].node_id[sequences[key[0]][members[0]][key[1]]]),
                    "call": self.call(job, key, (kind, size, root), members, sequences) if job.planner else None,
                }
                instances.append(described[key])
            call[rank][row] = described[key]["local"]
        return call, instances

    def of_shared(self, job: Job) -> tuple[np.ndarray, list[dict]] | None:
        """The same where all ranks share one trace and call collectives of all of them only; else None."""
        trace = job.workload.traces[0]
        if WORLD in job.workload.groups or any(other is not trace for other in job.workload.traces):
            return None
        rows = np.flatnonzero(trace.type == NodeType.COMM_COLL)
        codes, names = trace.group_of()
        if any(code >= 0 and names[code] not in ("", "0", WORLD) for code in np.unique(codes[rows]).tolist()):
            return None
        members = tuple(range(job.ranks))
        order = trace.order(job.dependencies or self.semantics.dependencies)
        rows = order[np.isin(order, rows)].tolist()
        call = np.full(len(trace), -1, dtype=np.int32)
        call[rows] = np.arange(len(rows))
        instances = []
        for number, row in enumerate(rows):
            kind, size, root = self.signature(trace, row, 0, len(members))
            key, calls = (WORLD, number), {WORLD: {0: rows}}
            instances.append(
                {
                    "local": number,
                    "group": WORLD,
                    "type": kind,
                    "size": size,
                    "root": root,
                    "members": members,
                    "place": node_place(trace, row, "rank 0"),
                    "node": int(trace.node_id[row]),
                    "call": self.call(job, key, (kind, size, root), members, calls) if job.planner else None,
                }
            )
        return call, instances

    def call(self, job: Job, key: tuple[str, int], signature: tuple, members: Sequence[int], rows: dict) -> Call:
        """What a planner is asked of the call ``(group, number)``."""
        group, number = key
        kind, size, root = signature
        row = rows[group][members[0]][number]
        trace = job.workload.traces[members[0]]
        _, exact, stated, _, priority = (int(column[row]) for column in self.columns_of(trace))
        if exact != MISSING:
            stated = exact // len(members) if kind == "all_gather" else exact
        involved = trace.node(row).get("involved_dim")
        return Call(
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

    def same_calls(self, job: Job, name: str, members: Sequence[int], rows: dict[int, list[int]]) -> bool:
        def column(rank: int) -> list:
            trace = job.workload.traces[rank]
            return [self.signature(trace, row, rank, len(members)) for row in rows.get(rank, [])]

        first = column(members[0])
        return all(column(rank) == first for rank in members[1:])

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
