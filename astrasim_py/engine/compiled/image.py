"""From a Plan to the Image that the kernel runs on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.engine.compiled import layout as at
from astrasim_py.engine.compiled.builder import Builder, Connected, Image, Turned
from astrasim_py.system.plan import RECV, SEND, CollectiveCall, Instance, Matching, Plan, RankProgram

#: Most entries of a table of peers or routes by position and delta; beyond, the kernel computes them.
MAX_TABLE = 2**24


def image_of(plan: Plan, *, rows: bool = False) -> Image:
    """The Image of a Plan.

    Parameters
    ----------
    plan : Plan
    rows : bool
        Whether nodes will be recorded.

    Raises
    ------
    UsageError
        A network model of the user's own.
    SimulationError
        More than 2^31 - 1 nodes, or links of routes.
    """
    return _Lowering(plan, rows).image()


class _Lowering:
    """Working state of `image_of`."""

    def __init__(self, plan: Plan, rows: bool) -> None:
        self.plan, self.rows = plan, rows
        self.builder = Builder(plan.problem)
        self.npus = plan.problem.topology.npus
        self.npu_of = np.array(plan.npu_of, dtype=np.int64)
        self.asks = plan.problem.semantics.rendezvous_bytes > 0
        self.by_bytes = plan.problem.semantics.message_match == "bytes"
        self.partners: dict[tuple[int, int], tuple[list[np.ndarray], int]] = {}
        self.templates: dict[tuple, tuple[tuple[int, ...], list[np.ndarray]]] = {}
        self.slices: dict[int, int] = {}
        self.maps: dict[tuple[int, int], int] = {}
        self.turned: dict[tuple, tuple[int, int, Turned, np.ndarray | None]] = {}
        self.channels = 0

    def image(self) -> Image:
        """The whole."""
        plan, builder, topology = self.plan, self.builder, self.plan.problem.topology
        builder.links(topology.latency_ps, topology.bandwidths, topology.bandwidth_class)
        if plan.route_links is None:
            builder.computed_routes()
        else:
            builder.routes(plan.route_ptr, plan.route_links, plan.route_pairs)
        self.workload()
        for instance in plan.instances:
            self.instance(instance)
        builder.head[at.H_SHARED_CHANNELS] = self.channels
        return builder.image()

    def first_rows(self, index: int) -> np.ndarray | None:
        """First row of each member of a slice (-1: of each rank) in the node table."""
        return self.plan.first_rows(index) if self.rows else None

    # -- where messages meet --------------------------------------------------------------------------------

    def partner(self, programs: Sequence[RankProgram], matching: Matching) -> tuple[list[np.ndarray], int]:
        """By member, the node of the partner of each send and receive, or ~channel; and the number of channels."""
        key = id(programs), id(matching)
        if key in self.partners:
            return self.partners[key]
        distinct = {id(p): p for p in programs}
        if not any((p.peer >= 0).any() for p in distinct.values()):
            nobody = {each: np.zeros(len(p), dtype=np.int64) for each, p in distinct.items()}
            self.partners[key] = [nobody[id(p)] for p in programs], 0
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
        """Nodes of a program whose messages need a route to the peer."""
        kind = program.structure.kind
        return np.flatnonzero((kind == SEND) | (kind == RECV) if self.asks else kind == SEND)

    def route_numbers(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Numbers of the routes between ranks."""
        pairs = self.npu_of[sources] * self.npus + self.npu_of[targets]
        return np.searchsorted(self.plan.route_pairs, pairs)

    # -- workloads ------------------------------------------------------------------------------------------

    def workload(self) -> None:
        """Templates of all workloads, and the ranks."""
        plan, builder = self.plan, self.builder
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
                # A program without messages is that of all ranks that have it.
                if id(program) not in silent:
                    silent[id(program)] = not (program.peer >= 0).any()
                if id(program) not in known or not silent[id(program)]:
                    nodes = self.routed(program)
                    route = None
                    if len(nodes) and plan.route_links is not None:
                        route = np.full(len(program), -1, dtype=np.int64)
                        route[nodes] = self.route_numbers(rank, first + program.peer[nodes])
                    known[id(program)] = builder.template(program, partners[position], route, slots=True)
                npu = plan.npu_of[rank]
                builder.rank(
                    npu,
                    known[id(program)],
                    first=first,
                    delay=plan.start_delay[rank],
                    job=number,
                    server=npu // memory.npus_per_node if memory.kind == "per_node" else 0,
                    capacity=capacity,
                    row=-1 if rows is None else int(rows[rank]),
                    channels=place,
                )

    # -- collectives ----------------------------------------------------------------------------------------

    def instance(self, instance: Instance) -> None:
        """One collective call and its slices."""
        builder = self.builder
        if instance.whole is not None:
            first = self.slice(instance.whole, instance.index, instance.first, planned=False)
            builder.instance(first, instance.members)
            return
        streams = []
        for stream in instance.chunks:
            visits = []
            for phase, visit in enumerate(stream.phases):
                for k, part in enumerate(visit.calls):
                    self.slice(part, instance.index, visit.first + k, planned=True)
                turn = stream.turns[phase] if stream.turns else 0
                visits.append((visit.queue, visit.priority, visit.first, turn, self.who_is_where(visit, instance)))
            streams.append((stream.priority, bool(stream.turns), visits))
        planner = self.plan.problem.jobs[instance.job].planner
        builder.instance(instance.first, instance.members, streams, len(planner.capacity))

    def who_is_where(self, visit, instance: Instance) -> int:
        """Table of the slice of each member in a visit, and the position there."""
        key = id(visit.call_of), id(instance.members)
        if key not in self.maps:
            place = np.zeros((self.plan.ranks, 2), dtype=np.int64)
            for k, part in enumerate(visit.calls):
                members = np.asarray(part.members, dtype=np.int64)
                place[members, 0], place[members, 1] = k, np.arange(len(members))
            self.maps[key] = self.builder.visit_of(place[np.asarray(instance.members, dtype=np.int64)])
        return self.maps[key]

    def slice(self, part: CollectiveCall, instance: int, index: int, *, planned: bool) -> int:
        """One slice."""
        rows = self.first_rows(index)
        if id(part) in self.slices:
            return self.builder.same_slice(self.slices[id(part)], instance=instance, planned=planned, rows=rows)
        common = {"instance": instance, "planned": planned, "rows": rows}
        if not len(part.programs):
            made = self.builder.slice(part.members, (), **common)
        elif part.rotation is not None:
            made = self.rotated_slice(part, common)
        else:
            made = self.plain_slice(part, common, shared=self.by_bytes and not planned)
        self.slices[id(part)] = made
        return made

    def plain_slice(self, part: CollectiveCall, common: dict, *, shared: bool) -> int:
        """A slice of a program per member."""
        programs, fifos = part.programs, part.connections
        partners, channels = self.partner(programs, part.matching)
        key = id(programs), id(part.matching), id(fifos)
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
                numbers.append(self.builder.template(program, partners[position], route, connected=connected))
                peers_of.append(peers.astype(np.int64))
            self.templates[key] = tuple(numbers), peers_of
        templates, peers_of = self.templates[key]
        routes = None
        if self.plan.route_links is not None:
            members = np.asarray(part.members, dtype=np.int64)
            routes = np.zeros((len(members), max(map(len, peers_of))), dtype=np.int64)
            for position, peers in enumerate(peers_of):
                routes[position, : len(peers)] = self.route_numbers(members[position], members[peers])
        if shared:
            self.channels = max(self.channels, channels)
        connections = 0
        if fifos is not None:
            connections = max(int(c.max(initial=-1)) for c in fifos.connection) + 1
        return self.builder.slice(
            part.members,
            templates,
            routes=routes,
            channels=channels,
            shared=shared,
            messages=0 if fifos is None else fifos.messages,
            connections=connections,
            **common,
        )

    def rotated_slice(self, part: CollectiveCall, common: dict) -> int:
        """A slice of one program for all members, its peers turned."""
        base, n = part.base, len(part.members)
        extra, low = None, base.nbytes
        if not part.uniform_bytes:
            positions = np.arange(n, dtype=np.int64)
            low, high = base.nbytes.copy(), base.nbytes.copy()
            step = max(1, 2**22 // max(len(base), 1))
            for begin in range(0, n, step):
                block = part.nbytes_matrix(positions[begin : begin + step])
                np.minimum(low, block.min(axis=0), out=low)
                np.maximum(high, block.max(axis=0), out=high)
            if (high - low).max(initial=0) > 1:
                return self.plain_slice(part, common, shared=False)
            extra = np.empty((n, len(base)), dtype=np.uint8)
            for begin in range(0, n, step):
                extra[begin : begin + step] = part.nbytes_matrix(positions[begin : begin + step]) - low
        key = "rotated", id(base), id(part.matching)
        if key not in self.turned:
            self.turned[key] = self.turn(part, low)
        made, channels, turned, peers = self.turned[key]
        routes = None
        if peers is not None and self.plan.route_links is not None:
            members = np.asarray(part.members, dtype=np.int64)
            # A delta that only receives use has no route.
            routes = np.minimum(
                self.route_numbers(members[:, None], members[peers]), max(len(self.plan.route_pairs) - 1, 0)
            )
        return self.builder.slice(
            part.members, made, rotation=turned, routes=routes, extra_bytes=extra, channels=channels, **common
        )

    def turn(self, part: CollectiveCall, nbytes: np.ndarray) -> tuple[int, int, Turned, np.ndarray | None]:
        """What all slices of one rotated program share: template, channels of a member, and peers."""
        base, rotation, n = part.base, part.rotation, len(part.members)
        messages = np.flatnonzero(base.peer >= 0)
        deltas, number = np.unique(base.peer[messages], return_inverse=True)
        peer = np.full(len(base), -1, dtype=np.int64)
        peer[messages] = number
        made = self.builder.template(base, part.matching.partner, peer=peer, nbytes=nbytes)
        peers = None
        if len(deltas) and n * len(deltas) <= MAX_TABLE:
            positions = np.arange(n, dtype=np.int64)
            peers = np.stack([rotation.shift(positions, int(d)) for d in deltas], axis=1)
        partner = np.asarray(part.matching.partner)[messages]
        channels = int((~partner[partner < 0]).max(initial=-1)) + 1
        return made, channels, self.builder.turned(peers, tuple(rotation.dims), deltas.astype(np.int64)), peers
