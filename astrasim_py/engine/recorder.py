"""Records of a run, from an engine's counts. The Plan fixes the order of rows of the node table."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import SimulationError
from astrasim_py.core.records import (
    HOP_COLUMNS,
    LINK_COLUMNS,
    MESSAGE_COLUMNS,
    NO_RATE,
    NODE_COLUMNS,
    Categorical,
    Outcome,
    Records,
    Table,
    empty_table,
)
from astrasim_py.system.call_sizes import size_doubt
from astrasim_py.system.plan import CollectiveCall, Plan
from astrasim_py.system.programs import (
    ADDED,
    COLLECTIVE,
    COMPUTE,
    COMPUTE_SLOT,
    INSTANT,
    KIND_NAMES,
    MEMORY,
    SOFTWARE,
    RankProgram,
)


class Recorder:
    """Collects the records of the SimPy engine at a level of `astrasim_py.core.choices.LEVELS`."""

    def __init__(self, plan: Plan, level: str) -> None:
        self.plan, self.level = plan, level
        self.with_nodes, self.with_messages = level in ("nodes", "messages"), level == "messages"
        if self.with_nodes:
            self._nodes = np.full((4, plan.row_count), -1, dtype=np.int64)
            self._start, self._end, self._released, self._ended = self._nodes
        self.messages = self.hops = 0
        self._messages: dict[str, list[int]] = {name: [] for name in MESSAGE_COLUMNS}
        self._hops: dict[str, list[int]] = {name: [] for name in HOP_COLUMNS}
        self._spans = np.full((len(plan.instances), 2), -1, dtype=np.int64)
        self.members_left = plan.instances.column(lambda instance: len(instance.members)).tolist()
        self._times = [_RankTimes() for _ in range(plan.ranks)]

    def work_begins(self, graph, node: int, now: int) -> None:
        """Record that a node of a workload begins."""
        kind, times, instance = graph.program.kind[node], self._times[graph.npu.rank], graph.program.instance[node]
        times.change(kind, 1, now)
        if graph.npu.is_switch:
            return
        if kind == COLLECTIVE and self._spans[instance, 0] < 0:
            self._spans[instance, 0] = now
        if kind == COMPUTE and graph.program.slot[node] == COMPUTE_SLOT:
            times.compute_sum += graph.program.duration[node]

    def work_ends(self, graph, node: int, now: int) -> None:
        """Record that a node of a workload ends."""
        kind, times, instance = graph.program.kind[node], self._times[graph.npu.rank], graph.program.instance[node]
        times.change(kind, -1, now)
        times.finish = now
        if kind == COLLECTIVE and not graph.npu.is_switch:
            self.members_left[instance] -= 1
            if not self.members_left[instance]:
                self._spans[instance, 1] = now

    def first_row(self, rank: int, index: int) -> int:
        """Row of the first node of a call (-1: the workload) on a rank."""
        return self.plan.first_row(rank, index) if self.with_nodes else 0

    def released(self, row: int, by: int) -> None:
        """Record the node that released a node, as rows."""
        if self.with_nodes:
            self._released[row] = by

    def spliced(self, row: int, nodes: int, by: int) -> None:
        """Record the collective node as the releaser of algorithm nodes that have none yet."""
        if self.with_nodes:
            self._released[row : row + nodes] = by

    def started(self, row: int, now: int) -> None:
        """Record that a node is issued."""
        if self.with_nodes:
            self._start[row] = now

    def ended(self, row: int, now: int, by: int = -1) -> None:
        """Record that a node is done, and the row of the node that ended it."""
        if self.with_nodes:
            self._end[row], self._ended[row] = now, by

    def message(self, message, dst: int, now: int) -> int:
        """Record a message sent to a rank; returns its row."""
        graph, node = message.graph, message.node
        self.messages += 1
        self.hops += len(message.route)
        if not self.with_messages:
            return -1
        known = {
            "instance": self.plan.instance_at(graph.index),
            "src": graph.npu.rank,
            "dst": dst,
            "tag": graph.program.tag[node],
            "bytes": message.bytes,
            "posted": now,
            "hops": len(message.route),
            "queued": 0,
            "send_node": graph.row + node,
        }
        for name, column in self._messages.items():
            column.append(known.get(name, -1))
        return self.messages - 1

    def more_hops(self, row: int, number: int) -> None:
        """Record how many links a message takes beyond those of its first route."""
        self.hops += number
        if self.with_messages:
            self._messages["hops"][row] += number

    def note(self, row: int, column: str, value: int) -> None:
        """Record when a message started or was delivered, or its receiving node."""
        if self.with_messages:
            self._messages[column][row] = value

    def hop(self, message: int, link: int, requested: int) -> int:
        """Record a message's request for a link; returns the row of the hop."""
        if self.with_messages:
            for column, value in zip(self._hops.values(), (message, link, requested, -1, -1), strict=True):
                column.append(value)
        return len(self._hops["link"]) - 1

    def hop_served(self, row: int, start: int, end: int) -> None:
        """Record that a message holds the link from `start` to `end`."""
        if not self.with_messages:
            return
        hops, messages = self._hops, self._messages
        hops["start"][row], hops["end"][row] = start, end
        message = hops["message"][row]
        messages["queued"][message] += start - hops["requested"][row]
        if messages["start"][message] < 0:
            messages["start"][message] = start

    def records(self, links: Mapping[int, object], outcome: Outcome, **known: Any) -> Records:
        """Return the Records; `known`: other arguments of `make_records`."""
        tables: dict[str, Table] = {}
        if self.with_nodes:
            tables["node"] = node_table(self.plan, *self._nodes)
        if self.with_messages:
            tables["message"], tables["hop"] = (
                Table({name: np.array(values, dtype=np.int64) for name, values in columns.items()})
                for columns in (self._messages, self._hops)
            )
        totals = [[index, *(getattr(link, name) for name in LINK_TOTALS[1:])] for index, link in sorted(links.items())]
        columns = np.array(totals, dtype=np.int64).reshape(-1, len(LINK_TOTALS)).T
        times, summed = self._times, self.plan.problem.semantics.exposed == "finish_minus_compute"
        for rank in outcome.unfinished_ranks:
            times[rank].finish = times[rank].since
        return make_records(
            self.plan,
            self.level,
            finish=[each.finish for each in times],
            compute=[each.compute for each in times],
            exposed=[each.finish - each.compute_sum if summed else each.exposed for each in times],
            spans=self._spans,
            links=dict(zip(LINK_TOTALS, columns, strict=True)),
            messages=self.messages,
            message_hops=self.hops,
            outcome=outcome,
            **known,
            **tables,
        )


class _RankTimes:
    """Times of one rank, ps: `since` the last begin or end of a node, `computing` and `communicating` so many nodes."""

    def __init__(self) -> None:
        self.computing = self.communicating = self.since = 0
        self.finish = self.compute = self.exposed = self.compute_sum = 0

    def change(self, kind: int, begins: int, now: int) -> None:
        """A node begins (1) or ends (-1): charge the time since the last such change."""
        if kind in (MEMORY, INSTANT, SOFTWARE):
            return
        if self.computing:
            self.compute += now - self.since
        elif self.communicating:
            self.exposed += now - self.since
        self.since = now
        if kind == COMPUTE:
            self.computing += begins
        else:
            self.communicating += begins


#: Traffic of links, int64 by link; the links ascend.
LINK_TOTALS = ("link", "bytes", "busy", "messages", "max_queue", "queued", "held_up")
#: Those that are known at every level.
_ALWAYS = ("bytes", "held_up")


def ranks_left(progress: Sequence[int]) -> tuple[int, ...]:
    """Ranks that have unfinished nodes; `progress`: unfinished nodes by rank."""
    return tuple(rank for rank, left in enumerate(progress) if left)


def used_links(plan: Plan) -> np.ndarray:
    """Links that have a row in the records: those on a route, or all links if routes are computed."""
    if plan.route_links is None:
        return np.arange(len(plan.problem.topology.src))
    tables = [plan.route_links, *(state.path for state in dict.fromkeys(state for _, state in plan.states))]
    return np.unique(np.concatenate(tables)).astype(np.int64)


def make_records(
    plan: Plan,
    level: str,
    *,
    finish: Sequence[int] | np.ndarray,
    compute: Sequence[int] | np.ndarray,
    exposed: Sequence[int] | np.ndarray,
    spans: np.ndarray,
    links: Mapping[str, np.ndarray],
    **known: Any,
) -> Records:
    """The Records of a run.

    `finish`, `compute`, `exposed`: by rank, ps. `spans`: int64[instances, 2]: begin and end of each, ps; -1: it did not
    begin or end. `known`: other fields of `Records`. Raises OverflowError: a time beyond 2^63 - 1 ps.
    """
    # A switch belongs to no job: it ends with the ranks.
    by_rank = [np.array(values[: plan.npu_ranks], dtype=np.int64) for values in (finish, compute, exposed)]
    for array in by_rank:
        array.setflags(write=False)
    return Records(
        level=level,
        makespan=int(by_rank[0].max(initial=0)),
        finish=by_rank[0],
        compute=by_rank[1],
        exposed_comm=by_rank[2],
        collective=_collective_table(plan, spans),
        link=_link_table(plan, links, counted=level != "summary"),
        network_model=str(plan.problem.network.model),
        **known,
    )


def _collective_table(plan: Plan, spans: np.ndarray) -> Table:
    instances, jobs = plan.instances, plan.problem.jobs
    return Table(
        {
            "instance": np.arange(len(instances)),
            "job": instances.column(lambda i: jobs[i.job].name, object),
            "group": instances.column(lambda i: i.group, object),
            "type": instances.column(lambda i: i.type, object),
            "size": instances.column(lambda i: i.size),
            "algorithm": instances.column(lambda i: i.algorithm_name, object),
            "ranks": instances.column(lambda i: len(i.members)),
            "start": spans[:, 0],
            "end": spans[:, 1],
            "bound": instances.column(lambda i: NO_RATE if size_doubt(i, plan.problem.semantics) else i.bound),
        }
    )


def _link_table(plan: Plan, links: Mapping[str, np.ndarray], *, counted: bool) -> Table:
    link, topology = links["link"], plan.problem.topology
    if not len(link):
        return empty_table(LINK_COLUMNS)
    unknown = np.full(len(link), -1, dtype=np.int64)
    ends = {"src": topology.src[link].astype(np.int64), "dst": topology.dst[link].astype(np.int64)}
    totals = {name: links[name] if counted or name in _ALWAYS else unknown for name in LINK_TOTALS[1:]}
    return Table({"link": link, **ends, **totals})


def unequal_bytes(
    plan: Plan, sender: tuple[int, int, int], nbytes: int, receiver: tuple[int, int, int]
) -> SimulationError:
    """The error for a matched send (of `nbytes`) and receive of unequal bytes, each as rank, call, node."""

    def side(rank: int, index: int, node: int) -> str:
        program = plan.program(rank, index)
        return f"{KIND_NAMES[program.structure.kind[node]]} node {int(program.node_id[node])} of rank {rank}"

    program, node = plan.program(*receiver[:2]), receiver[2]
    return SimulationError(
        plan.trace(*receiver[:2]).place or plan.trace(*sender[:2]).place,
        f"{side(*sender)} sends {nbytes} B and {side(*receiver)} expects {int(program.nbytes[node])} B "
        f"(tag {int(program.tag[node])})",
        "give both the same size",
    )


def node_table(plan: Plan, start: np.ndarray, end: np.ndarray, released: np.ndarray, ended: np.ndarray) -> Table:
    """The node table from an engine's measurements, int64[rows] each."""
    # Columns of the Plan double the memory; most readers need the times only.
    planned = dict.fromkeys(NODE_COLUMNS, partial(_planned, plan))
    return Table({**planned, "start": start, "end": end, "released_by": released, "ended_by": ended})


def _planned(plan: Plan) -> dict[str, np.ndarray | Categorical]:
    """The columns of the node table that the Plan determines."""
    total = plan.row_count
    rank, node, instance = np.empty((3, total), dtype=np.int64)
    kind, name = np.empty(total, dtype=np.int8), np.empty(total, dtype=np.int32)
    labels: dict[str, int] = {}

    def code(label: str) -> int:
        return labels.setdefault(label, len(labels))

    @cache
    def codes(trace: ExecutionTrace, prefix: str) -> np.ndarray:
        names = Categorical.of(list(trace.names)) if trace.has_names else Categorical(np.zeros(len(trace), int), ("",))
        return np.array([code(f"{prefix}{label}".rstrip() if prefix else label) for label in names.labels])[names.codes]

    for index in range(-1, len(plan.calls)):
        call = plan.calls[index] if index >= 0 else None
        number, offset = plan.instance_at(index), plan.node_offset.get(index, 0)
        stream = plan.place_of.get(index)
        prefix = "" if stream is None else f"chunk {stream[0]} phase {stream[1]} "
        named = call is None or (call.algorithm is not None and call.algorithm.named)
        for (member, program), row in zip(_running(plan, call), plan.first_rows(index).tolist(), strict=True):
            stop = row + len(program)
            rank[row:stop] = member
            instance[row:stop] = number
            node[row:stop] = program.node_id.astype(np.int64) + offset
            kind[row:stop] = program.structure.kind
            rows = np.maximum(program.rows, 0)
            name[row:stop] = codes(plan.trace(member, index), prefix)[rows] if named else code(prefix.rstrip())
            for at in np.flatnonzero(program.rows < 0).tolist():
                name[row + at] = code(ADDED[int(program.rows[at])])
    return {
        "rank": rank,
        "node": node,
        "instance": instance,
        "kind": Categorical(kind, KIND_NAMES),
        "name": Categorical(name, tuple(labels)),
    }


def _running(plan: Plan, part: CollectiveCall | None) -> Iterator[tuple[int, RankProgram]]:
    """Ranks and the programs that they share in a call (None: the workload)."""
    if part is None:
        return zip(range(plan.ranks), plan.workload.shared, strict=True)
    return zip(part.members, part.programs.shared, strict=False)
