"""Making an Image piece by piece: links, routes, templates, slices, instances, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import SimulationError, UsageError
from astrasim_py.core.units import INT64_MAX, PS_PER_NS, transfer_ps
from astrasim_py.engine.compiled import layout as at
from astrasim_py.system.plan import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND, Counters, RankProgram
from astrasim_py.system.problem import Problem
from astrasim_py.system.routes import lowest_dimension

_MODELS = {"cut_through": at.CUT_THROUGH, "store_and_forward": at.STORE_AND_FORWARD, "analytical": at.ANALYTICAL}


class Image(NamedTuple):
    """What the kernel reads and does not write: see `astrasim_py.engine.compiled.layout` for the columns."""

    head: np.ndarray  # int64[HEAD]
    node: np.ndarray  # int32[nodes, 8]
    ints: np.ndarray  # int32
    longs: np.ndarray  # int64
    tmpl: np.ndarray  # int64[templates, TEMPLATE]
    slices: np.ndarray  # int64[slices, SLICE]
    calls: np.ndarray  # int64[instances, CALL]
    ranks: np.ndarray  # int64[ranks, KNOWN]
    link: np.ndarray  # int64[links, 3]: latency, hold and hop in `longs`
    small: np.ndarray  # uint8
    path: np.ndarray  # int32: links of the routes, one route after the other
    pairs: np.ndarray  # int64: pair of NPUs of each route, ascending; empty where nobody asks
    tags: np.ndarray  # int64, by node of a template; not for the kernel


class Turned(NamedTuple):
    """Who is whose peer in rotated slices of one program: places in the image."""

    peers: int  # in `ints`: peer by position and number of a delta; -1: the kernel finds it from `dims`
    deltas: int  # how many
    dims: int  # in `ints`: number of dimensions, these, digits of each delta


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """Connections of one template under the MSCCL link model: columns of `astrasim_py.system.plan.MscclConnections`."""

    needs: np.ndarray
    frees: np.ndarray
    connection: np.ndarray
    latency_ps: int


class _Pool:
    """Arrays one after the other."""

    def __init__(self, dtype: type) -> None:
        self.dtype = dtype
        self.parts: list[np.ndarray] = []
        self.size = 0

    def add(self, values: Sequence[int] | np.ndarray) -> int:
        """Append values; returns where they begin."""
        part = np.asarray(values, dtype=self.dtype).ravel()
        begin = self.size
        self.parts.append(part)
        self.size += len(part)
        return begin

    def array(self) -> np.ndarray:
        """All of them; never empty, so that the type of an argument is always the same."""
        return np.concatenate([*self.parts, np.zeros(1, dtype=self.dtype)])


class Builder:
    """An Image in the making.

    Parameters
    ----------
    problem : Problem
        Its network model, semantics, memory and limits hold for the run.
    """

    def __init__(self, problem: Problem) -> None:
        network, semantics, limits = problem.network, problem.semantics, problem.limits
        if network.factory is not None:
            raise UsageError(
                "engine", "a network model of one's own runs on the SimPy engine only", "write --engine simpy"
            )
        self.problem = problem
        self.floor_ns = semantics.rounding == "floor_ns"
        self.ints, self.longs, self.small = _Pool(np.int32), _Pool(np.int64), _Pool(np.uint8)
        self.head = np.full(at.HEAD, -1, dtype=np.int64)
        self.head[at.H_MODEL] = _MODELS[network.model]
        self.head[at.H_HOLD_LATENCY] = network.link_busy == "latency+bytes"
        self.head[at.H_INJECTED] = network.send_completes == "injected"
        self.head[at.H_SCHEDULED] = semantics.event_order == "scheduled"
        self.head[at.H_REFS] = network.send_completes == "injected"
        slots = (semantics.cpu_slots, semantics.compute_slots, semantics.comm_slots)
        self.head[at.H_CAPACITY + 1 : at.H_CAPACITY + 4] = [-1 if c is None else min(c, 2**31) for c in slots]
        self.head[at.H_SERVERS] = problem.memory.kind in ("per_node", "pool")
        self.head[at.H_MAX_EVENTS] = min(limits.max_events, INT64_MAX)
        if limits.max_sim_time_ps is not None:
            self.head[at.H_MAX_TIME] = min(limits.max_sim_time_ps, INT64_MAX)
        self.head[at.H_COMPUTED] = 0
        self.request = semantics.rendezvous_bytes
        self.pace = network.msccl.channel_bandwidth if network.msccl is not None else None
        self.programs: list[RankProgram] = []
        self.bytes_of: list[np.ndarray] = []
        self.peers: list[np.ndarray] = []
        self.partners: list[np.ndarray] = []
        self.routes_of: list[np.ndarray | None] = []
        self.slots_of: list[bool] = []
        self.rows: list[list[int]] = []
        self.first: list[int] = [0]
        self.extra_sizes: list[np.ndarray] = []
        self.slices: list[list[int]] = []
        self.calls: list[list[int]] = []
        self.ranks: list[list[int]] = []
        self.variants: dict[int, int] = {0: 0}
        self.structures: dict[bytes, tuple[int, int]] = {}
        self.members: dict[object, tuple[int, int]] = {}
        self.templates_at: dict[tuple, int] = {}
        self.capacities: dict[tuple[int, ...], int] = {(): 0}
        self.keep: list[object] = []
        self.path, self.ptr = np.zeros(0, np.int32), np.zeros(1, np.int64)
        self.pairs = np.zeros(0, np.int64)
        self.latency, self.rate_class = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.rates: tuple[Fraction, ...] = ()
        self.words_of_slices = self.streams = self.running = self.joint = 0

    # -- network --------------------------------------------------------------------------------------------

    def links(self, latency: np.ndarray, rates: Sequence[Fraction], rate_class: np.ndarray) -> None:
        """The links.

        Parameters
        ----------
        latency : numpy.ndarray
            int64[links], ps.
        rates : sequence of Fraction
            Bytes per second.
        rate_class : numpy.ndarray
            int[links]: index into `rates`.
        """
        self.latency, self.rates = np.asarray(latency, dtype=np.int64), tuple(rates)
        self.rate_class = np.asarray(rate_class, dtype=np.int64)

    def routes(self, ptr: np.ndarray, path: np.ndarray, pairs: np.ndarray | None = None) -> None:
        """The routes: CSR of links; `pairs` (src NPU × NPUs + dst NPU, ascending) where they are looked up."""
        self.ptr = np.asarray(ptr, dtype=np.int64)
        self.path = np.require(path, dtype=np.int32, requirements=["C", "W"])
        if pairs is not None:
            self.pairs = np.require(pairs, dtype=np.int64, requirements=["C", "W"])

    def computed_routes(self) -> None:
        """Routes are computed by the kernel: of a topology whose routes are `walked`.

        Not under the analytical model, whose delays are by route.
        """
        topology = self.problem.topology
        dims = topology.dims
        sizes = np.array([d.size for d in dims], dtype=np.int64)
        self.head[at.H_COMPUTED], self.head[at.H_NDIMS] = 1, len(dims)
        self.head[at.H_SHAPE] = self.ints.add(sizes)
        self.head[at.H_WRAPS] = self.ints.add([d.kind == "ring" for d in dims])
        npu = np.arange(topology.npus, dtype=np.int64)
        steps = np.full((topology.npus, len(dims), 2), -1, dtype=np.int64)
        weight = 1
        for d, dim in enumerate(dims):
            digit = npu // weight % dim.size
            for way, change in enumerate((1, -1)):
                other = npu + ((digit + change) % dim.size - digit) * weight
                near = (digit + change >= 0) & (digit + change < dim.size) if dim.kind != "ring" else digit >= 0
                # Between two there is but one way, which the tie-break takes for both.
                near &= other != npu
                ptr, links = topology.routes(npu[near], other[near])
                steps[near, d, way] = links[ptr[:-1]]
            weight *= dim.size
        self.head[at.H_STEPS] = self.ints.add(steps)

    # -- templates ------------------------------------------------------------------------------------------

    def template(
        self,
        program: RankProgram,
        partner: np.ndarray,
        route: np.ndarray | None = None,
        *,
        slots: bool = False,
        peer: np.ndarray | None = None,
        nbytes: np.ndarray | None = None,
        connected: Connected | None = None,
    ) -> int:
        """A program in its space, from which blocks are made; returns its number.

        Parameters
        ----------
        program : RankProgram
        partner : numpy.ndarray
            int[n]: of a send the node of its receive in the peer's program, of a receive that of its send; or
            ``~channel`` where several messages meet.
        route : numpy.ndarray, optional
            int[n]: number of the route to the peer (a workload); column of the slice's table of routes (a slice).
        slots : bool
            It is a workload, whose nodes take slots.
        peer, nbytes : numpy.ndarray, optional
            In place of the program's own.
        connected : Connected, optional
            Under the MSCCL link model.
        """
        structure, n = program.structure, len(program)
        if structure.key not in self.structures:
            self.structures[structure.key] = (self.ints.add(structure.succ), self.ints.add(structure.roots))
            self.keep.append(structure)
        roots = self.structures[structure.key][1]
        flags, words = (at.F_WORKLOAD if slots else 0), -(-n // 8)
        row = [0] * at.TEMPLATE
        many = np.flatnonzero(structure.need >= at.MOST_NEEDS)
        row[at.T_EXTRAS], row[at.T_NEXTRAS] = self.ints.add(structure.need[many]), len(many)
        words += len(many)
        row[at.T_COUNTED] = words
        if program.counters is not None:
            if program.counters.number:
                flags |= at.F_COUNTING
                words += self._counters(program.counters, row, n)
            if program.counters.detached.any():
                flags |= at.F_ADMITTED
                self.head[at.H_REFS] = 1
        if connected is not None:
            flags |= at.F_PACED
            if max(connected.needs.max(initial=-1), connected.frees.max(initial=-1)) >= 0:
                flags |= at.F_FIFO | at.F_ADMITTED
            row[at.T_FIFO] = self.ints.add(np.stack([connected.needs, connected.frees, connected.connection]))
            row[at.T_LONGER] = connected.latency_ps
            row[at.T_VARIANT] = self.variants.setdefault(connected.latency_ps, len(self.variants))
        row[at.T_FIRST], row[at.T_COUNT] = self.first[-1], n
        row[at.T_ROOTS], row[at.T_NROOTS] = roots, len(structure.roots)
        row[at.T_FLAGS], row[at.T_WORDS] = flags, max(words, 1)
        self.first.append(self.first[-1] + n)
        self.programs.append(program)
        self.bytes_of.append(program.nbytes if nbytes is None else nbytes)
        self.peers.append(program.peer if peer is None else peer)
        self.partners.append(partner)
        self.routes_of.append(route)
        self.slots_of.append(slots)
        self.rows.append(row)
        return len(self.rows) - 1

    def _counters(self, counters: Counters, row: list[int], n: int) -> int:
        """Tables of the counters of a template; returns the words that a block needs for them."""
        order = np.flatnonzero(counters.start >= 0)
        order = order[np.argsort(counters.start[order], kind="stable")]
        begins = np.searchsorted(counters.start[order], np.arange(n))
        ends = np.searchsorted(counters.start[order], np.arange(n), side="right")
        base = self.longs.add(order)
        row[at.T_COUNTING] = self.longs.add(
            np.stack([counters.counts, counters.of, counters.k, base + begins, ends - begins], axis=1)
        )
        words, waiting = 2 * counters.number, []
        for counter in range(counters.number):
            mine = np.flatnonzero(counters.of == counter)
            first = mine[counters.start[mine] < 0]
            first = first[np.lexsort((first, counters.k[first]))]
            begin = self.longs.add(np.stack([counters.k[first], first], axis=1))
            waiting += [words, len(mine), begin, len(first)]
            words += 2 * len(mine)
        row[at.T_COUNTERS], row[at.T_WAITING] = counters.number, self.longs.add(waiting)
        return words

    # -- slices, instances, ranks ---------------------------------------------------------------------------

    def ranks_of(self, members: Sequence[int]) -> tuple[int, int]:
        """Where members stand by position, and sorted with their positions."""
        key = members if isinstance(members, range) else tuple(members)
        if key not in self.members:
            ranks = np.asarray(members, dtype=np.int64)
            order = np.argsort(ranks, kind="stable")
            self.members[key] = (self.ints.add(ranks), self.ints.add(np.concatenate([ranks[order], order])))
        return self.members[key]

    def slice(
        self,
        members: Sequence[int],
        templates: Sequence[int] | int,
        *,
        instance: int,
        rotation: Turned | None = None,
        routes: np.ndarray | None = None,
        extra_bytes: np.ndarray | None = None,
        channels: int = 0,
        shared: bool = False,
        planned: bool = False,
        messages: int = 0,
        connections: int = 0,
        rows: np.ndarray | None = None,
    ) -> int:
        """One algorithm among some ranks; returns its number.

        Parameters
        ----------
        members : sequence of int
            Ranks by position.
        templates : sequence of int, or int
            One by position; one for all of a rotated slice; none where there is nothing to do.
        instance : int
            The instance that it is of; ascending.
        rotation : Turned, optional
            From `turned`.
        routes : numpy.ndarray, optional
            int32[members, columns]: number of the route from each member by the column that its templates state; in a
            rotated slice by the number of the delta.
        extra_bytes : numpy.ndarray, optional
            Rotated, uint8[members, nodes] of 0 or 1: what a member's messages are longer than those of the template.
        channels : int
            Channels of several messages in its space, and by member in a rotated slice.
        shared : bool
            Its messages meet in the space that everything shares.
        planned : bool
            It is a phase of a stream.
        messages, connections : int
            Under the MSCCL link model.
        rows : numpy.ndarray, optional
            int64[members]: first row of each in the node table.
        """
        row, n = [0] * at.SLICE, len(members)
        row[at.S_INSTANCE], row[at.S_MEMBERS], row[at.S_RANKS] = instance, n, self.ranks_of(members)[0]
        flags = (at.F_SHARED if shared else 0) | (at.F_PLANNED if planned else 0)
        row[at.S_PEERS] = row[at.S_ROUTES] = row[at.S_BYTES] = row[at.S_ROWS] = -1
        if rotation is not None:
            flags |= at.F_ROTATED
            row[at.S_TEMPLATES] = int(templates)
            row[at.S_PEERS], row[at.S_DELTAS], row[at.S_DIMS] = rotation
            if extra_bytes is not None:
                row[at.S_BYTES] = self.small.add(extra_bytes)
                template = int(templates)
                self.extra_sizes.append(self.bytes_of[template][extra_bytes.any(axis=0)] + 1)
            row[at.S_CHANNELS] = channels * n
            if joint := self._joint(self.rows[int(templates)]):
                flags |= at.F_JOINT
                self.joint = max(self.joint, -(-n * joint // 8))
        else:
            if not isinstance(templates, tuple):
                templates = tuple(templates)
            if not templates:
                flags |= at.F_EMPTY
            if templates not in self.templates_at:
                self.templates_at[templates] = self.ints.add(templates)
            row[at.S_TEMPLATES] = self.templates_at[templates]
            if routes is not None:
                row[at.S_DELTAS] = routes.shape[1]
            row[at.S_CHANNELS] = 0 if shared else channels
        if routes is not None:
            row[at.S_ROUTES] = self.ints.add(routes)
        row[at.S_FLAGS], row[at.S_MESSAGES], row[at.S_CONNECTIONS] = flags, messages, connections
        if rows is not None:
            row[at.S_ROWS] = self.longs.add(rows)
        self.words_of_slices = max(
            self.words_of_slices, n + 2 * row[at.S_CHANNELS] + 2 * messages + connections + 3 * 4
        )
        self.slices.append(row)
        return len(self.slices) - 1

    def turned(self, peers: np.ndarray | None, dims: tuple[int, ...], deltas: np.ndarray) -> Turned:
        """Peers of rotated slices, for `slice`.

        Parameters
        ----------
        peers : numpy.ndarray or None
            int[members, deltas]: peer by position and number of a delta; None: found by the kernel.
        dims : tuple of int
        deltas : numpy.ndarray
            int64[deltas]: what is added to a position, digit by digit.
        """
        digits, rest = [], np.asarray(deltas, dtype=np.int64)
        for size in dims:
            digits.append(rest % size)
            rest = rest // size
        of_delta = np.stack(digits, axis=1) if digits else np.zeros((len(deltas), 0), dtype=np.int64)
        return Turned(
            -1 if peers is None else self.ints.add(peers),
            len(deltas),
            self.ints.add(np.concatenate([[len(digits)], dims, of_delta.ravel()])),
        )

    def same_slice(self, of: int, *, instance: int, planned: bool, rows: np.ndarray | None = None) -> int:
        """A slice like another one, which another instance carries out; returns its number."""
        row = self.slices[of].copy()
        row[at.S_INSTANCE] = instance
        row[at.S_FLAGS] = row[at.S_FLAGS] & ~at.F_PLANNED | (at.F_PLANNED if planned else 0)
        row[at.S_ROWS] = -1 if rows is None else self.longs.add(rows)
        self.slices.append(row)
        return len(self.slices) - 1

    def instance(
        self,
        first: int,
        members: Sequence[int],
        streams: Sequence[tuple[int, bool, Sequence[tuple[int, int, int, int, int]]]] | None = None,
        queues: int = 0,
    ) -> int:
        """A collective call; returns its number, which is what the workload's node calls.

        Parameters
        ----------
        first : int
            Its first slice.
        members : sequence of int
        streams : sequence of (int, bool, visits), optional
            Of a planned collective: priority, whether it has turns, and visits as (queue, priority, first slice,
            turn, where `visit_of` has put who is in which slice).
        queues : int
            Queues of its planner.
        """
        row = [0] * at.CALL
        row[at.I_FIRST], row[at.I_MEMBERS], row[at.I_SORTED] = first, len(members), self.ranks_of(members)[1]
        if streams is not None:
            row[at.I_PLANNED] = 1
            flat, turns = [], [0] * max(queues, 1)
            for priority, has_turns, visits in streams:
                flat += [priority, self.longs.add(np.array(visits, dtype=np.int64)), len(visits), int(has_turns)]
                for visit in visits if has_turns else ():
                    turns[visit[0]] += 1
            row[at.I_STREAMS], row[at.I_NSTREAMS] = self.longs.add(flat), len(streams)
            row[at.I_TURNS] = self.longs.add(turns)
            self.streams += len(streams)
        self.calls.append(row)
        return len(self.calls) - 1

    def visit_of(self, slice_and_position: np.ndarray) -> int:
        """int[members, 2]: by position in the instance the slice of a visit, from 0, and the position there."""
        return self.ints.add(slice_and_position)

    def rank(
        self,
        npu: int,
        template: int,
        *,
        first: int = 0,
        delay: int = 0,
        job: int = 0,
        server: int = 0,
        capacity: Sequence[int] = (),
        row: int = -1,
        channels: int = -1,
    ) -> int:
        """The next rank; returns its number.

        Parameters
        ----------
        npu, template : int
            Its NPU, and the template of its workload.
        first : int
            First rank of its job.
        delay : int
            ps before its first dispatch.
        job, server : int
            Its job, and the memory server of its NPU.
        capacity : sequence of int
            Streams that each of its queues runs at once.
        row : int
            First row of its workload in the node table.
        channels : int
            Place of its job's first channel among those of all jobs.
        """
        running = [min(int(c), 2**31) for c in capacity]
        self.running = max(self.running, min(sum(running), 2**31))
        known = self.capacities.setdefault(tuple(running), -1)
        if known < 0:
            known = self.capacities[tuple(running)] = self.longs.add(running)
        self.ranks.append([npu, template, first, delay, job, server, len(running), known, row, channels])
        return len(self.ranks) - 1

    # -- all together ---------------------------------------------------------------------------------------

    def image(self) -> Image:
        """The Image.

        Raises
        ------
        SimulationError
            More nodes than 2^31 - 1.
        """
        kinds = [p.structure.kind for p in self.programs]
        kind = np.concatenate([*kinds, np.zeros(0, np.int8)]).astype(np.int32)
        if len(kind) >= 2**31 - 1 or self.ints.size >= 2**31 - 1 or len(self.path) >= 2**31 - 1:
            raise SimulationError(self.problem.topology.name, "has more than 2^31 - 1 nodes or links of routes")
        nbytes = np.concatenate([*self.bytes_of, np.zeros(0, np.int64)])
        message = (kind == SEND) | (kind == RECV)
        every = np.unique(np.concatenate([_runs(nbytes[message]), [self.request], *self.extra_sizes]))
        sent = np.unique(np.concatenate([_runs(nbytes[kind == SEND]), [self.request], *self.extra_sizes]))
        node = np.zeros((max(len(kind), 1), 8), dtype=np.int32)
        used = node[: len(kind)]
        used[:, at.N_KIND] = kind
        used[message, at.N_SIZE] = np.searchsorted(every, nbytes[message])
        duration = np.concatenate([*(p.duration for p in self.programs), np.zeros(0, np.int64)])
        timed = (kind == COMPUTE) | (kind == MEMORY)
        durations = np.unique(_runs(duration[timed]))
        used[timed, at.N_SIZE] = np.searchsorted(durations, duration[timed])
        used[:, at.N_EXTRA] = -1
        small = np.zeros(len(kind), dtype=np.uint8)
        for t, program in enumerate(self.programs):
            self._fill(used[self.first[t] : self.first[t + 1]], small[self.first[t] : self.first[t + 1]], t, program)
        self.head[at.H_DURATIONS] = self.longs.add(durations)
        self.head[at.H_SIZES], self.head[at.H_NSIZES] = self.longs.add(every), len(every)
        if self.request:
            self.head[at.H_REQUEST] = int(np.searchsorted(every, self.request))
        self.head[at.H_ROUTE_PTR] = self.longs.add(self.ptr)
        self.head[at.H_RANKS], self.head[at.H_SLICES] = len(self.ranks), len(self.slices)
        self.head[at.H_NODES] = len(kind)
        self.head[at.H_NPUS] = self.problem.topology.npus
        link = self._link_rows(every, sent)
        if self.pace is not None:
            self.head[at.H_PACE] = self.longs.add(self._serialization(self.pace, every, sent))
        if self.head[at.H_MODEL] == at.ANALYTICAL:
            self._delays(every, sent)
        self._room()
        slices = _matrix(self.slices, at.SLICE)
        slices[slices[:, at.S_BYTES] >= 0, at.S_BYTES] += len(small)
        return Image(
            head=self.head,
            node=node,
            ints=self.ints.array(),
            longs=self.longs.array(),
            tmpl=_matrix(self.rows, at.TEMPLATE),
            slices=slices,
            calls=_matrix(self.calls, at.CALL),
            ranks=_matrix(self.ranks, at.KNOWN),
            link=link,
            small=np.concatenate([small, *self.small.parts, np.zeros(1, dtype=np.uint8)]),
            path=self.path if len(self.path) else np.zeros(1, dtype=np.int32),
            pairs=self.pairs if len(self.pairs) else np.zeros(1, dtype=np.int64),
            tags=np.concatenate([*(p.tag for p in self.programs), np.zeros(0, np.int64)]),
        )

    def _fill(self, rows: np.ndarray, small: np.ndarray, t: int, program: RankProgram) -> None:
        """Node rows of one template."""
        structure = program.structure
        if self.slots_of[t]:
            rows[:, at.N_KIND] |= program.slot.astype(np.int32) << 3
        if program.counters is not None:
            rows[program.counters.detached, at.N_KIND] |= at.DETACHED
        calls = structure.kind == COLLECTIVE
        rows[calls, at.N_SIZE] = program.instance[calls]
        rows[:, at.N_PEER] = self.peers[t]
        rows[:, at.N_MEET] = self.partners[t]
        rows[:, at.N_SUCC] = self.structures[structure.key][0] + structure.succ_ptr[:-1]
        rows[:, at.N_NSUCC] = np.diff(structure.succ_ptr)
        rows[:, at.N_ROUTE] = -1 if self.routes_of[t] is None else self.routes_of[t]
        many = np.flatnonzero(structure.need >= at.MOST_NEEDS)
        rows[many, at.N_EXTRA] = np.arange(len(many))
        small[:] = np.minimum(structure.need, at.MOST_NEEDS)

    def _serialization(self, rate: Fraction, every: np.ndarray, sent: np.ndarray) -> np.ndarray:
        """int64[sizes]: ps at a rate, -1 where that is beyond 63 bits or nobody sends that size."""
        per_ns = float(rate) / 1e9 if self.floor_ns else 0.0
        out = np.full(len(every), -1, dtype=np.int64)
        for i, b in zip(np.searchsorted(every, sent).tolist(), sent.tolist(), strict=True):
            # ASTRA-sim: each delay is one floor of a double in nanoseconds.
            ps = int(b / per_ns) * PS_PER_NS if self.floor_ns else transfer_ps(b, rate)
            out[i] = ps if ps <= INT64_MAX else -1
        return out

    def _link_rows(self, every: np.ndarray, sent: np.ndarray) -> np.ndarray:
        """int64[links, 3]: latency, and where the times by size stand."""
        rows = np.zeros((max(len(self.latency), 1), 3), dtype=np.int64)
        if not len(self.latency):
            return rows
        hold = np.array([self.longs.add(self._serialization(rate, every, sent)) for rate in self.rates])
        rows[:, 0], rows[:, 1], rows[:, 2] = self.latency, hold[self.rate_class], -1
        if self.floor_ns and self.head[at.H_MODEL] == at.STORE_AND_FORWARD:
            both, number = np.unique(np.stack([self.rate_class, self.latency]), axis=1, return_inverse=True)
            where = np.searchsorted(every, sent)
            places = []
            for which, latency in both.T.tolist():
                per_ns = float(self.rates[which]) / 1e9
                hop = np.full(len(every), -1, dtype=np.int64)
                times = [int(latency / PS_PER_NS + b / per_ns) * PS_PER_NS for b in sent.tolist()]
                hop[where] = [ps if ps <= INT64_MAX else -1 for ps in times]
                places.append(self.longs.add(hop))
            rows[:, 2] = np.array(places)[number.ravel()]
        return rows

    def _delays(self, every: np.ndarray, sent: np.ndarray) -> None:
        """Analytical model: (delivery, injection) by class of route, extra latency and size."""
        of_route, classes = self._route_classes()
        self.head[at.H_ROUTE_CLASS] = self.ints.add(of_route)
        self.head[at.H_VARIANTS] = len(self.variants)
        where = np.searchsorted(every, sent).tolist()
        sizes = sent.tolist()
        table = np.full((len(classes), len(self.variants), len(every), 2), -1, dtype=np.int64)
        for c, (hops, latency, rate) in enumerate(classes):
            for longer, v in self.variants.items():
                total = latency + hops * longer
                # Of the lowest dimension ASTRA-sim's double is that of one hop, times the hops.
                each = total // hops
                in_ns = hops * (each / PS_PER_NS) if self.lowest_dim else total / PS_PER_NS
                for i, b in zip(where, sizes, strict=True):
                    if self.floor_ns:
                        length = b / (float(rate) / 1e9)
                        both = int(in_ns + length) * PS_PER_NS, int(length) * PS_PER_NS
                    else:
                        length = transfer_ps(b, rate)
                        both = total + length, length
                    table[c, v, i] = [ps if ps <= INT64_MAX else -1 for ps in both]
        self.head[at.H_DELAYS] = self.longs.add(table)

    @property
    def lowest_dim(self) -> bool:
        """Whether the analytical model charges for the lowest dimension only."""
        return self.problem.semantics.analytical_route == "lowest_dim" and bool(self.problem.topology.dims)

    def _route_classes(self) -> tuple[np.ndarray, list[tuple[int, int, Fraction]]]:
        """Class of each route, and of each class the hops, their latency in sum, and the rate."""
        if self.lowest_dim:
            known: dict[tuple, int] = {}
            number = np.zeros(len(self.ptr) - 1, dtype=np.int64)
            npus = self.problem.topology.npus
            for i, pair in enumerate(self.pairs.tolist()):
                hops, rate, latency = lowest_dimension(self.problem.topology, *divmod(pair, npus))
                number[i] = known.setdefault((hops, hops * latency, rate), len(known))
            return number, list(known)
        if len(self.ptr) < 2:
            return np.zeros(0, dtype=np.int64), []
        hops = np.diff(self.ptr)
        total = np.add.reduceat(self.latency[self.path], self.ptr[:-1])
        order = sorted(range(len(self.rates)), key=lambda r: self.rates[r])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        slowest = np.minimum.reduceat(place[self.rate_class[self.path]], self.ptr[:-1])
        classes, number = np.unique(np.stack([hops, total, slowest]), axis=1, return_inverse=True)
        return number.ravel(), [(h, t, self.rates[order[r]]) for h, t, r in classes.T.tolist()]

    @staticmethod
    def _joint(row: list[int]) -> int:
        """Nodes of a template of which no more is kept than a byte each; else 0."""
        plain = not row[at.T_NEXTRAS] and not row[at.T_FLAGS] & at.F_COUNTING
        return row[at.T_COUNT] if plain else 0

    def _room(self) -> None:
        """How much memory one step of the kernel can take at most."""
        words = max((row[at.T_WORDS] for row in self.rows), default=1)
        nodes = max((row[at.T_COUNT] for row in self.rows), default=1)
        starts = min(self.running, self.streams) + 2 if self.streams else 2
        queues = max((row[at.K_QUEUES] for row in self.ranks), default=0)
        blocks = starts * (words + self.words_of_slices + 64)
        shares = self.streams * (at.RUN + 8) + at.SHARE + 2 * queues + 16
        # Sizes of the arena are at most a quarter too large.
        joint = (starts if self.streams else 1) * (5 * self.joint // 4 + 8)
        self.head[at.H_ROOM] = 2 * (blocks + shares) + 8 * nodes * (starts + 1) + joint + 1024
        self.head[at.H_BLOCKS] = starts + 8


def _runs(values: np.ndarray) -> np.ndarray:
    """The first of every run of equal values: few, where messages of one size follow each other."""
    return values[np.flatnonzero(np.diff(values, prepend=~values[:1]))] if len(values) else values


def _matrix(rows: list[list[int]], width: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64).reshape(-1, width) if rows else np.zeros((1, width), dtype=np.int64)
