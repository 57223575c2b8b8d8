"""Convert a Plan to the kernel's input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.units import INT64_MAX
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.tables import Connected, KernelInput, Rotated, Tables
from astrasim_py.system.plan import RECV, SEND, CollectiveCall, Instance, Matching, Plan, RankProgram
from astrasim_py.system.problem import Problem

#: Maximum entries of a table of peers or routes by position and delta; the kernel computes larger ones.
MAX_TABLE = 2**24
_MODELS = {
    "cut_through": records.CUT_THROUGH,
    "store_and_forward": records.STORE_AND_FORWARD,
    "analytical": records.ANALYTICAL,
}


def kernel_input(plan: Plan, *, rows: bool = False) -> KernelInput:
    """Convert a Plan to the kernel's input.

    `rows`: record nodes. Raises UsageError: a user-defined network model. Raises SimulationError: more than 2^31 - 1
    nodes or route links.
    """
    return _Building(plan, rows).input()


def _constants(problem: Problem) -> dict[str, int]:
    """Constants of a run that depend on the problem only; -1: none."""
    network, semantics, limits = problem.network, problem.semantics, problem.limits
    if network.factory is not None:
        raise UsageError("engine", "a network model of one's own runs on the SimPy engine only", "write --engine simpy")
    max_time = limits.max_sim_time_ps
    return dict.fromkeys(records.CONSTANTS, -1) | {
        "model": _MODELS[network.model],
        "hold_latency": network.link_busy == "latency+bytes",
        "injected": network.send_completes == "injected",
        "counts_references": network.send_completes == "injected",
        "scheduled": semantics.event_order == "scheduled",
        "has_servers": problem.memory.kind in ("per_node", "pool"),
        "max_events": min(limits.max_events, INT64_MAX),
        "max_time": -1 if max_time is None else min(max_time, INT64_MAX),
        "computed": 0,
        "npus": problem.topology.npus,
    }


class _Building:
    """Working state of `kernel_input`."""

    def __init__(self, plan: Plan, rows: bool) -> None:
        self.plan, self.rows = plan, rows
        self.tables = Tables(plan.problem, _constants(plan.problem))
        self.npus = plan.problem.topology.npus
        self.npu_of = np.array(plan.npu_of, dtype=np.int64)
        self.asks = plan.problem.semantics.rendezvous_bytes > 0
        self.by_bytes = plan.problem.semantics.message_match == "bytes"
        self.partners: dict[tuple, tuple[list[np.ndarray], int]] = {}
        self.templates: dict[tuple, tuple[tuple[int, ...], list[np.ndarray]]] = {}
        self.calls: dict[CollectiveCall, int] = {}
        self.maps: dict[tuple, int] = {}
        self.rotations: dict[tuple, tuple[int, int, Rotated, np.ndarray | None]] = {}
        self.channels = 0

    def input(self) -> KernelInput:
        """Build the complete input."""
        plan, tables = self.plan, self.tables
        if plan.route_links is None:
            tables.compute_routes()
        else:
            tables.routes(plan.route_ptr, plan.route_links, plan.route_pairs)
        self.workload()
        for instance in plan.instances:
            self.instance(instance)
        tables.constants["shared_channels"] = self.channels
        return tables.input()

    def first_rows(self, index: int) -> np.ndarray | None:
        """First row of each member of a slice (-1: of each rank) in the node table."""
        return self.plan.first_rows(index) if self.rows else None

    # -- matching of messages --------------------------------------------------------------------------------

    def partner(self, programs: Sequence[RankProgram], matching: Matching) -> tuple[list[np.ndarray], int]:
        """Partner node (or ~channel) of each send and receive, by member, and the number of channels."""
        key = programs, matching
        if key in self.partners:
            return self.partners[key]
        distinct = dict.fromkeys(programs)
        if not any((p.peer >= 0).any() for p in distinct):
            nobody = {p: np.zeros(len(p), dtype=np.int64) for p in distinct}
            self.partners[key] = [nobody[p] for p in programs], 0
            return self.partners[key]
        meets = [np.asarray(matching.match_key[p]) for p in range(len(programs))]
        messages = [np.flatnonzero(p.peer >= 0) for p in programs]
        every = np.concatenate([m[i] for m, i in zip(meets, messages, strict=True)] or [np.zeros(0, np.int64)])
        receive = np.concatenate(
            [p.structure.kind[i] == RECV for p, i in zip(programs, messages, strict=True)] or [np.zeros(0, bool)]
        )
        node = np.concatenate([*messages, np.zeros(0, np.int64)])
        top = int(every.max(initial=-1)) + 1
        sends, receives = np.zeros(top, dtype=np.int64), np.zeros(top, dtype=np.int64)
        single = every >= 0
        sends[every[single & ~receive]] = node[single & ~receive]
        receives[every[single & receive]] = node[single & receive]
        other = every.copy()
        other[single & ~receive] = receives[every[single & ~receive]]
        other[single & receive] = sends[every[single & receive]]
        channels = 0
        if not single.all():
            if self.by_bytes:
                channels = int((~every[~single]).max()) + 1
            else:
                known, number = np.unique(~every[~single], return_inverse=True)
                other[~single] = ~number
                channels = len(known)
        ends = np.cumsum([len(i) for i in messages])
        found = []
        for program, where, part in zip(programs, messages, np.split(other, ends[:-1]), strict=True):
            column = np.zeros(len(program), dtype=np.int64)
            column[where] = part
            found.append(column)
        self.partners[key] = found, channels
        return self.partners[key]

    def routed(self, program: RankProgram) -> np.ndarray:
        """Nodes of a program whose messages need a route."""
        kind = program.structure.kind
        return np.flatnonzero((kind == SEND) | (kind == RECV) if self.asks else kind == SEND)

    def route_numbers(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Route numbers between pairs of ranks."""
        pairs = self.npu_of[sources] * self.npus + self.npu_of[targets]
        return np.searchsorted(self.plan.route_pairs, pairs)

    # -- workloads ------------------------------------------------------------------------------------------

    def workload(self) -> None:
        """Add the templates of all workloads, and the ranks."""
        plan, tables = self.plan, self.tables
        memory, jobs = plan.problem.memory, plan.problem.jobs
        known: dict[int, int] = {}
        silent: dict[int, bool] = {}
        rows = self.first_rows(-1)
        for number, (first, job) in enumerate(zip(plan.first_rank, jobs, strict=True)):
            programs = plan.workload[first : first + job.ranks]
            partners, channels = self.partner(programs, plan.p2p[number])
            place = 0 if self.by_bytes else self.channels
            self.channels = max(self.channels, channels) if self.by_bytes else self.channels + channels
            capacity = () if job.planner is None else job.planner.capacity
            for position, program in enumerate(programs):
                rank = first + position
                # Ranks with the same program share one template if it has no messages.
                if program not in silent:
                    silent[program] = not (program.peer >= 0).any()
                if program not in known or not silent[program]:
                    nodes = self.routed(program)
                    route = None
                    if len(nodes) and plan.route_links is not None:
                        route = np.full(len(program), -1, dtype=np.int64)
                        route[nodes] = self.route_numbers(rank, first + program.peer[nodes])
                    known[program] = tables.template(program, partners[position], route, workload=True)
                npu = plan.npu_of[rank]
                tables.rank(
                    capacity,
                    npu=npu,
                    template=known[program],
                    first=first,
                    delay=plan.start_delay[rank],
                    server=npu // memory.npus_per_node if memory.kind == "per_node" else 0,
                    row=-1 if rows is None else int(rows[rank]),
                    channels=place,
                )

    # -- collectives ----------------------------------------------------------------------------------------

    def instance(self, instance: Instance) -> None:
        """Add an instance and its calls."""
        tables, fields = self.tables, {}
        if instance.only_call is not None:
            first = self.call(instance.only_call, instance.index, instance.first, planned=False)
        else:
            first, chunks = instance.first, []
            for chunk in instance.chunks:
                phases = []
                for number, phase in enumerate(chunk.phases):
                    for k, part in enumerate(phase.calls):
                        self.call(part, instance.index, phase.first + k, planned=True)
                    turn = chunk.turns[number] if chunk.turns else 0
                    phases.append((phase.queue, phase.priority, phase.first, turn, self.members_of(phase, instance)))
                chunks.append((chunk.priority, bool(chunk.turns), phases))
            planner = self.plan.problem.jobs[instance.job].planner
            fields = tables.chunks(chunks, len(planner.capacity))
        at = tables.ranks_of(instance.members)[1]
        tables.instances.add(first=first, members=len(instance.members), sorted=at, **fields)

    def members_of(self, phase, instance: Instance) -> int:
        """Add each member's call in a phase (from 0) and its position there; returns their place."""
        key = phase.calls, instance.members
        if key not in self.maps:
            place = np.zeros((self.plan.ranks, 2), dtype=np.int64)
            for k, part in enumerate(phase.calls):
                members = np.asarray(part.members, dtype=np.int64)
                place[members, 0], place[members, 1] = k, np.arange(len(members))
            self.maps[key] = self.tables.ints.add(place[np.asarray(instance.members, dtype=np.int64)])
        return self.maps[key]

    def call(self, part: CollectiveCall, instance: int, index: int, *, planned: bool) -> int:
        """Add a call."""
        rows = self.first_rows(index)
        if part in self.calls:
            return self.tables.same_call(self.calls[part], instance, rows)
        fields = None
        if not len(part.programs):
            fields = self.tables.plain((), None)
        elif part.rotation is not None:
            fields = self.rotated(part)
        if fields is None:
            fields = self.plain(part, shared=self.by_bytes and not planned and part.rotation is None)
        made = self.tables.call(instance, part.members, rows, **fields)
        self.calls[part] = made
        return made

    def plain(self, part: CollectiveCall, *, shared: bool) -> dict[str, int]:
        """Fields of a call of a program per member."""
        programs, fifos = part.programs, part.connections
        partners, channels = self.partner(programs, part.matching)
        key = programs, part.matching, fifos
        if key not in self.templates:
            numbers, peers_of = [], []
            for position, program in enumerate(programs):
                nodes = self.routed(program)
                peers, column = np.unique(program.peer[nodes], return_inverse=True)
                route = np.full(len(program), -1, dtype=np.int64)
                route[nodes] = column
                connected = None
                if fifos is not None:
                    needs, frees, of = (c[position] for c in (fifos.needs, fifos.frees, fifos.connection))
                    connected = Connected(needs, frees, of, fifos.latency_ps)
                numbers.append(self.tables.template(program, partners[position], route, connected=connected))
                peers_of.append(peers.astype(np.int64))
            self.templates[key] = tuple(numbers), peers_of
        templates, peers_of = self.templates[key]
        routes = None
        if self.plan.route_links is not None:
            members = np.asarray(part.members, dtype=np.int64)
            routes = np.zeros((len(members), max(map(len, peers_of))), dtype=np.int64)
            for position, peers in enumerate(peers_of):
                routes[position, : len(peers)] = self.route_numbers(members[position], members[peers])
        fields = self.tables.plain(templates, routes)
        if shared:
            # Messages match in the shared communicator.
            self.channels = max(self.channels, channels)
            fields["flags"] |= records.SHARED
        else:
            fields["channels"] = channels
        if fifos is not None:
            connections = max(int(c.max(initial=-1)) for c in fifos.connection) + 1
            fields |= {"messages": fifos.messages, "connections": connections}
        return fields

    def rotated(self, part: CollectiveCall) -> dict[str, int] | None:
        """Fields of a call with one program for all members; None if their bytes differ too much."""
        base, n = part.base, len(part.members)
        extra, low = None, base.nbytes
        if not part.uniform_bytes:
            positions = np.arange(n, dtype=np.int64)
            low, high = base.nbytes.copy(), base.nbytes.copy()
            step = max(1, 2**22 // max(len(base), 1))
            for begin in range(0, n, step):
                block = part.programs.nbytes_matrix(positions[begin : begin + step])
                np.minimum(low, block.min(axis=0), out=low)
                np.maximum(high, block.max(axis=0), out=high)
            if (high - low).max(initial=0) > 1:
                return None
            extra = np.empty((n, len(base)), dtype=np.uint8)
            for begin in range(0, n, step):
                extra[begin : begin + step] = part.programs.nbytes_matrix(positions[begin : begin + step]) - low
        key = base, part.matching
        if key not in self.rotations:
            self.rotations[key] = self.rotation(part, low)
        template, channels, rotation, peers = self.rotations[key]
        routes = None
        if peers is not None and self.plan.route_links is not None:
            members = np.asarray(part.members, dtype=np.int64)
            # Deltas that only receives use have no route.
            routes = np.minimum(
                self.route_numbers(members[:, None], members[peers]), max(len(self.plan.route_pairs) - 1, 0)
            )
        return self.tables.rotated(template, rotation, n, routes, extra) | {"channels": channels * n}

    def rotation(self, part: CollectiveCall, nbytes: np.ndarray) -> tuple[int, int, Rotated, np.ndarray | None]:
        """Data shared by all calls of a rotated program: template, channels of a member, and peers."""
        base, rotation, n = part.base, part.rotation, len(part.members)
        messages = np.flatnonzero(base.peer >= 0)
        deltas, number = np.unique(base.peer[messages], return_inverse=True)
        peer = np.full(len(base), -1, dtype=np.int64)
        peer[messages] = number
        made = self.tables.template(base, part.matching.partner, peer=peer, nbytes=nbytes)
        peers = None
        if len(deltas) and n * len(deltas) <= MAX_TABLE:
            positions = np.arange(n, dtype=np.int64)
            peers = np.stack([rotation.shift(positions, int(d)) for d in deltas], axis=1)
        partner = np.asarray(part.matching.partner)[messages]
        channels = int((~partner[partner < 0]).max(initial=-1)) + 1
        return made, channels, self.tables.rotation(peers, tuple(rotation.dims), deltas.astype(np.int64)), peers
