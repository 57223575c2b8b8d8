"""From an engine's raw counts to Records. Rows of the node table are fixed by the Plan, whatever ran when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.records import (
    HOP_COLUMNS,
    LEVELS,
    LINK_COLUMNS,
    MESSAGE_COLUMNS,
    Coded,
    Outcome,
    Records,
    Table,
    empty_table,
)
from astrasim_py.system.plan import KIND_NAMES, Plan, Program, Slice


class Recorder:
    """Collects what the level asks for while an engine runs.

    Parameters
    ----------
    plan : Plan
    level : str
        One of `astrasim_py.core.records.LEVELS`.
    """

    def __init__(self, plan: Plan, level: str) -> None:
        if level not in LEVELS:
            raise ValueError(f"unknown record level {level!r}")
        self.plan = plan
        self.level = level
        if level in ("nodes", "messages"):
            rows = plan.node_rows[1]
            self.start, self.end, self.released, self.ended = (np.full(rows, -1, dtype=np.int64) for _ in range(4))
        self._messages: dict[str, list[int]] = {name: [] for name in MESSAGE_COLUMNS}
        self._hops: dict[str, list[int]] = {name: [] for name in HOP_COLUMNS}

    # -- nodes ----------------------------------------------------------------------------------------------

    def block(self, row: int, start: list[int], end: list[int], released: list[int], ended: list[int]) -> None:
        """The rows of one program, from `row` on."""
        stop = row + len(start)
        self.start[row:stop] = start
        self.end[row:stop] = end
        self.released[row:stop] = released
        self.ended[row:stop] = ended

    def late(self, row: int, end: int) -> None:
        """A detached send was delivered after its block had ended."""
        self.end[row] = end

    # -- messages -------------------------------------------------------------------------------------------

    def message(self, message, dst: int, tag: int, posted: int) -> int:
        """A send was issued; returns its row."""
        columns = self._messages
        row = len(columns["src"])
        block = message.block
        for name, value in (
            ("instance", self.plan.instance_at((block.base >> 32) - 1)),
            ("src", block.npu.rank),
            ("dst", dst),
            ("tag", tag),
            ("bytes", message.bytes),
            ("posted", posted),
            ("start", -1),
            ("delivered", -1),
            ("hops", len(message.route)),
            ("queued", 0),
            ("send_node", block.row + message.node),
            ("recv_node", -1),
        ):
            columns[name].append(value)
        return row

    def message_started(self, row: int, start: int) -> None:
        """Its first link was granted."""
        self._messages["start"][row] = start

    def hop(self, row: int, link: int, requested: int, start: int, end: int) -> None:
        """A message holds a link from `start` to `end`."""
        self._messages["queued"][row] += start - requested
        for name, value in zip(HOP_COLUMNS, (row, link, requested, start, end), strict=True):
            self._hops[name].append(value)

    def delivered(self, row: int, at: int) -> None:
        """Its tail has arrived."""
        self._messages["delivered"][row] = at

    def received(self, row: int, recv_node: int) -> None:
        """It was matched."""
        self._messages["recv_node"][row] = recv_node

    # -- the end --------------------------------------------------------------------------------------------

    def records(
        self,
        *,
        finish: Sequence[int],
        compute: Sequence[int],
        exposed: Sequence[int],
        spans: Mapping[int, tuple[int, int]],
        links: Mapping[int, object],
        messages: int,
        hops: int,
        events: int,
        outcome: Outcome,
        engine: str,
        cpu_s: float,
    ) -> Records:
        """Freeze everything."""
        tables: dict[str, Table] = {}
        if self.level in ("nodes", "messages"):
            tables["node"] = node_table(self.plan, self.start, self.end, self.released, self.ended)
        if self.level == "messages":
            tables["message"] = Table({n: np.array(v, dtype=np.int64) for n, v in self._messages.items()})
            tables["hop"] = Table({n: np.array(v, dtype=np.int64) for n, v in self._hops.items()})
        as_array = [np.array(v, dtype=np.int64) for v in (finish, compute, exposed)]
        for array in as_array:
            array.setflags(write=False)
        return Records(
            level=self.level,
            makespan=max(finish, default=0),
            finish=as_array[0],
            compute=as_array[1],
            exposed_comm=as_array[2],
            messages=messages,
            message_hops=hops,
            events=events,
            collective=self._collective_table(spans),
            link=self._link_table(links),
            outcome=outcome,
            engine=engine,
            cpu_s=cpu_s,
            **tables,
        )

    def _collective_table(self, spans: Mapping[int, tuple[int, int]]) -> Table:
        instances = self.plan.instances
        jobs = self.plan.problem.jobs
        ends = [spans.get(i.index, (-1, -1)) for i in instances]

        def text(values: list[str]) -> np.ndarray:
            column = np.empty(len(values), dtype=object)
            column[:] = values
            return column

        def number(values: list[int]) -> np.ndarray:
            return np.array(values, dtype=np.int64)

        return Table(
            {
                "instance": number([i.index for i in instances]),
                "job": text([jobs[i.job].name for i in instances]),
                "group": text([i.group for i in instances]),
                "type": text([i.type for i in instances]),
                "size": number([i.size for i in instances]),
                "algorithm": text([i.algorithm_name for i in instances]),
                "ranks": number([len(i.members) for i in instances]),
                "start": number([e[0] for e in ends]),
                "end": number([e[1] for e in ends]),
                "bound": number([i.bound for i in instances]),
            }
        )

    def _link_table(self, links: Mapping[int, object]) -> Table:
        if not links:
            return empty_table(LINK_COLUMNS)
        topology = self.plan.problem.topology
        order = sorted(links)
        used = [links[i] for i in order]
        counted = self.level != "summary"
        unknown = np.full(len(used), -1, dtype=np.int64)

        def counts(name: str) -> np.ndarray:
            return np.array([getattr(link, name) for link in used], dtype=np.int64) if counted else unknown

        index = np.array(order, dtype=np.int64)
        return Table(
            {
                "link": index,
                "src": topology.src[index].astype(np.int64),
                "dst": topology.dst[index].astype(np.int64),
                "bytes": np.array([link.bytes for link in used], dtype=np.int64),
                "busy": counts("busy"),
                "messages": counts("messages"),
                "max_queue": counts("max_queue"),
                "queued": counts("queued"),
            }
        )


def node_table(plan: Plan, start: np.ndarray, end: np.ndarray, released: np.ndarray, ended: np.ndarray) -> Table:
    """The node table from what an engine measured.

    Parameters
    ----------
    plan : Plan
    start, end, released, ended : numpy.ndarray
        int64[rows] each: columns ``start``, ``end``, ``released_by`` and ``ended_by``.
    """
    first, total = plan.node_rows
    rank, node, instance = (np.empty(total, dtype=np.int64) for _ in range(3))
    kind, name = np.empty(total, dtype=np.int8), np.empty(total, dtype=np.int32)
    names = _Names()
    for index in range(-1, len(plan.slices)):
        part = plan.slices[index] if index >= 0 else None
        number, offset = plan.instance_at(index), plan.node_offset.get(index, 0)
        stream = plan.place_of.get(index)
        prefix = "" if stream is None else f"chunk {stream[0]} phase {stream[1]} "
        for member, program in _running(plan, part):
            row = first[member, index]
            stop = row + len(program)
            rank[row:stop] = member
            instance[row:stop] = number
            node[row:stop] = program.node_id
            if offset:
                node[row:stop] += offset
            kind[row:stop] = program.structure.kind
            name[row:stop] = names.codes(program, prefix)
    return Table(
        {
            "rank": rank,
            "node": node,
            "instance": instance,
            "kind": Coded(kind, KIND_NAMES),
            "name": Coded(name, names.labels),
            "start": start,
            "end": end,
            "released_by": released,
            "ended_by": ended,
        }
    )


def _running(plan: Plan, part: Slice | None) -> Iterator[tuple[int, Program]]:
    """Ranks and what they run in a slice (None: the workload); where all run one program, that of the first."""
    if part is None:
        return zip(range(plan.ranks), plan.workload, strict=True)
    base = getattr(part, "base", None)
    return zip(part.members, part.programs, strict=False) if base is None else ((r, base) for r in part.members)


class _Names:
    """Names of nodes as codes of the distinct ones."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.of_trace: dict[int, tuple[ExecutionTrace, Coded]] = {}  # the trace too: while it lives its id is its own
        self.of_labels: dict[tuple[int, str], np.ndarray] = {}

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.index)

    def codes(self, program: Program, prefix: str) -> np.ndarray | int:
        """Of the nodes of a program."""
        trace = program.trace
        if not trace.has_names:
            return self.code(prefix.rstrip())
        key = id(trace)
        if key not in self.of_trace:
            self.of_trace[key] = trace, Coded.of(list(trace.names))
        names = self.of_trace[key][1]
        if (key, prefix) not in self.of_labels:
            texts = [f"{prefix}{label}".rstrip() if prefix else label for label in names.labels]
            self.of_labels[key, prefix] = np.array([self.code(text) for text in texts], dtype=np.int32)
        return self.of_labels[key, prefix][names.codes[program.rows]]

    def code(self, text: str) -> int:
        """Of one name."""
        return self.index.setdefault(text, len(self.index))
