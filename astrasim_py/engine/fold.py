"""Folding: if all ranks behave alike, only one rank is simulated.

`astrasim_py.system.symmetry` shows that rotations map the plan to itself. Then rank 0 runs alone, and each of its links
represents a class of links. Rank 0 sends a message to the rank at distance d; rotated, that is the message that it
receives from the rank at distance -d. Every other rank sees the same traffic on its links as rank 0 on its own. The
figures of rank 0 are those of every rank, and the figures of a class are those of each of its links.

Why this is exact. Suppose that up to some instant all ranks have behaved alike. The events of the instant are taken in
the order of their numbers, which is the same order within each rank. Their effects on a rank (nodes completed, slots
freed) do not depend on that order, and ranks dispatch after all of them. Only one thing depends on the order of events
of different ranks: which message gets a link first, if two ranks issued them at one time and both request it at one
time. The simulation detects and refuses this. It also refuses messages that take no time, which could be delivered
between the dispatches of two ranks at one instant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from astrasim_py.core.choices import FOLDED
from astrasim_py.core.errors import FoldError
from astrasim_py.core.jit import cpu_s
from astrasim_py.core.records import Records, Table
from astrasim_py.engine.recorder import LinkTotals, make_records
from astrasim_py.engine.simpy.dialects import DialectSimulation
from astrasim_py.engine.simpy.network import Link, LinkRequest, Message
from astrasim_py.engine.simpy.simulation import LimitReached, OpenCall
from astrasim_py.system.plan import RECV, SEND, CollectiveCall, Instance, Matching, Phase, Plan, RankProgram
from astrasim_py.system.symmetry import Symmetry, calls_of, peers_in, refuse, symmetry_of

_LEVELS = ("summary", "links")


class FoldedPlan(Plan):
    """The plan of rank 0. Peers are indices into `Symmetry.deltas`, links are the classes in use."""

    @property
    def ranks(self) -> int:
        return 1


def run_folded(plan: Plan, level: str) -> Records:
    """Simulate rank 0 of a plan and return the Records of all ranks.

    `level`: ``summary`` or ``links``. The Records equal those of the full run: makespan, figures of all ranks and
    links, collectives, and counts of messages, hops and events. An event limit counts simulated events. Raises
    FoldError: the ranks are not alike, or cannot be shown to be; the level needs single ranks; or one rank alone takes
    more events than the limit. Raises SimulationError: as for the full run.
    """
    if level not in _LEVELS:
        raise FoldError("fold", f'level "{level}" records single ranks', "record summary or links, or run without fold")
    begin = cpu_s()
    symmetry = symmetry_of(plan)
    records = FoldedSimulation(symmetry, level).run()
    return unfold(symmetry, records, cpu_s() - begin)


# -- the plan of one rank ----------------------------------------------------------------------------------------


def fold(symmetry: Symmetry) -> FoldedPlan:
    """The plan of rank 0 alone."""
    plan, topology = symmetry.plan, symmetry.plan.problem.topology
    deltas, used = symmetry.deltas, symmetry.used
    sample = symmetry.links.first[used]
    quotient = replace(
        topology,
        npus=max(len(deltas), 1),
        vertices=max(len(deltas), 1),
        src=np.zeros(len(used), dtype=np.int32),
        dst=np.zeros(len(used), dtype=np.int32),
        latency_ps=topology.latency_ps[sample],
        bandwidth_class=topology.bandwidth_class[sample],
        dims=(),
        switches=(),
        router=None,
        renumbered=None,
    )
    calls: list[CollectiveCall] = []
    known: dict[CollectiveCall, CollectiveCall] = {}
    instances = [_instance(symmetry, i, number, calls, known) for number, i in enumerate(symmetry.called)]
    base = plan.workload[0]
    renumbered = np.full(len(plan.instances) + 1, -1, dtype=np.int32)
    renumbered[list(symmetry.called)] = np.arange(len(instances))
    workload, p2p = _program(symmetry, base, base.peer.astype(np.int64))
    return FoldedPlan(
        problem=replace(plan.problem, topology=quotient),
        npu_of=tuple(range(max(len(deltas), 1))),
        job_of=(0,),
        first_rank=(0,),
        workload=(replace(workload, instance=renumbered[base.instance]),),
        p2p=(p2p,),
        instances=tuple(instances),
        calls=tuple(calls),
        start_delay=tuple(plan.start_delay[:1]),
        route_pairs=np.arange(len(deltas), dtype=np.int64),
        route_ptr=symmetry.route_ptr,
        route_links=np.searchsorted(used, symmetry.route_class).astype(np.int32),
        sizes=plan.sizes,
    )


def _instance(
    symmetry: Symmetry,
    index: int,
    number: int,
    calls: list[CollectiveCall],
    known: dict[CollectiveCall, CollectiveCall],
) -> Instance:
    """Rank 0's part of a collective; its calls are appended to `calls`."""
    instance, first = symmetry.plan.instances[index], len(calls)
    for _, call in calls_of(instance, 0):
        if call not in known:
            known[call] = _call(symmetry, call)
        calls.append(known[call])
    mine = itertools.count(first)
    chunks = []
    for chunk in instance.chunks:
        places = [(phase, next(mine)) for phase in chunk.phases]
        phases = tuple(Phase(phase.queue, phase.priority, at, (calls[at],), {0: 0}) for phase, at in places)
        chunks.append(replace(chunk, phases=phases))
    only_call = calls[first] if instance.only_call is not None else None
    return replace(instance, index=number, members=(0,), first=first, only_call=only_call, chunks=tuple(chunks))


def _call(symmetry: Symmetry, call: CollectiveCall) -> CollectiveCall:
    """Rank 0's part of a call."""
    programs, matching = (), None
    if call.programs:
        program, matching = _program(symmetry, *peers_in(call, call.members.index(0)))
        programs = (program,)
    return CollectiveCall(members=(0,), algorithm=call.algorithm, programs=programs, matching=matching)


def _program(symmetry: Symmetry, program: RankProgram, peers: np.ndarray) -> tuple[RankProgram, Matching]:
    """A program whose peers are indices of deltas, and the matching of its sends with its own rotated receives."""
    at = np.flatnonzero(peers >= 0)
    kind = program.structure.kind[at]
    # A receive from the rank at distance d matches this rank's send to distance -d, rotated.
    towards = np.where(kind == RECV, symmetry.group.unshift(0, peers[at]), peers[at])
    channels, inverse = np.unique(np.stack([towards, program.tag[at]]), axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    number = channels.shape[1]
    sent = np.bincount(inverse[kind == SEND], minlength=number)
    received = np.bincount(inverse[kind == RECV], minlength=number)
    meet = np.zeros(len(program), dtype=np.int64)
    meet[at] = np.where(((sent == 1) & (received == 1))[inverse], inverse, ~inverse)
    numbers = np.where(peers >= 0, 0, -1).astype(np.int32)
    sends = program.structure.kind == SEND
    numbers[sends] = np.searchsorted(symmetry.deltas, peers[sends])
    return replace(program, peer=numbers), Matching(match_key=(meet,))


# -- the run -----------------------------------------------------------------------------------------------------


class WatchedLink(Link):
    """A link class; `watch` is called with every request for it."""

    watch: Callable[[Link, Message], None]

    def request(self, message: Message) -> LinkRequest:
        self.watch(self, message)
        return super().request(message)


class FoldedSimulation(DialectSimulation):
    """A run of one rank, which receives its own messages."""

    link_class = WatchedLink

    def __init__(self, symmetry: Symmetry, level: str) -> None:
        self.symmetry = symmetry
        self._addresses = tuple(range(max(len(symmetry.deltas), 1)))
        super().__init__(fold(symmetry), level)
        self.workloads[0].members = self._addresses
        ptr, anchors = symmetry.route_ptr.tolist(), symmetry.route_anchor.tolist()
        self._anchors = [anchors[a:b] for a, b in itertools.pairwise(ptr)]
        #: Link class → time of the latest requests, and their anchors by issue time.
        self._asked: dict[int, tuple[int, dict[int, int]]] = {}
        for link in self.links.values():
            link.watch = self.refuse_ties
        self._refuse_instant_messages()

    def _refuse_instant_messages(self) -> None:
        programs = [*self.plan.workload, *(p for call in self.plan.calls for p in call.programs)]
        for program in dict.fromkeys(programs):
            at = program.structure.kind == SEND
            for peer, nbytes in set(zip(program.peer[at].tolist(), program.nbytes[at].tolist(), strict=True)):
                if not any(link.arrival(nbytes) for link in self.route(0, peer)):
                    raise refuse(f"a message of {nbytes} bytes takes no time, and the order of ranks matters")

    def route(self, src: int, dst: int) -> list[Link]:
        """Link classes from this rank to a delta."""
        ptr = self.plan.route_ptr
        return [self.links[c] for c in self.plan.route_links[ptr[dst] : ptr[dst + 1]].tolist()]

    def open_call(self, index: int) -> OpenCall:
        call = super().open_call(index)
        call.members = self._addresses
        return call

    def refuse_ties(self, link: Link, message: Message) -> None:
        """Refuse if messages that different ranks issued at one time request one link at one time."""
        delta = message.graph.program.peer[message.node]
        anchor, now = self._anchors[delta][message.at], self.env.now
        since, found = self._asked.get(link.index, (-1, {}))
        if since != now:
            found = {}
            self._asked[link.index] = now, found
        other = found.setdefault(message.since, anchor)
        if other != anchor:
            raise self._tie(link.index, other, anchor, now)

    def _tie(self, link: int, one: int, other: int, now: int) -> FoldError:
        symmetry = self.symmetry
        first = int(symmetry.links.first[symmetry.used[link]])
        at = int(symmetry.links.anchor[first])
        ranks = sorted(int(symmetry.group.unshift(at, anchor)) for anchor in (one, other))
        return refuse(
            f"ranks {ranks[0]} and {ranks[1]} ask for link {symmetry.plan.problem.topology.link_name(first)} at the "
            f"same time ({now} ps), and only their numbers decide who goes first"
        )

    def check_events(self) -> None:
        try:
            super().check_events()
        except LimitReached:
            # The full run would stop among events of one instant, where ranks are no longer alike.
            problem = f"one NPU alone takes more than {self.max_events} events (--max-events)"
            remedy = "raise that limit, or run it without fold to see how far it comes"
            raise FoldError("fold", problem, remedy) from None

    def waits(self):
        waits = super().waits()
        if not any(self.progress()) and not waits["unreceived"]:
            return waits
        raise FoldError("fold", "the run gets stuck", "run it without fold to see who waits for whom")


# -- records of all ranks ---------------------------------------------------------------------------------------------


def unfold(symmetry: Symmetry, records: Records, cpu_s: float) -> Records:
    """Expand the records of one rank to those of all ranks."""
    plan = symmetry.plan
    n = plan.ranks
    found = np.stack([records.collective["start"], records.collective["end"]], axis=1)
    spans = np.full((len(plan.instances), 2), -1, dtype=np.int64)
    for number, instances in enumerate(symmetry.called.values()):
        spans[list(instances)] = found[number]
    left = records.outcome.unfinished
    ranks_left = tuple(range(n)) if left else ()
    return make_records(
        plan,
        records.level,
        finish=np.full(n, records.finish[0]),
        compute=np.full(n, records.compute[0]),
        exposed=np.full(n, records.exposed_comm[0]),
        spans=spans,
        links=_links(symmetry, records.link),
        messages=records.messages * n,
        message_hops=records.message_hops * n,
        events=records.events * n,
        outcome=replace(records.outcome, unfinished=left * n, unfinished_ranks=ranks_left),
        engine=records.engine + FOLDED,
        cpu_s=cpu_s,
    )


def _links(symmetry: Symmetry, table: Table) -> LinkTotals:
    """Totals of every link in the full run's records, copied from its class."""
    classes = symmetry.links.of
    row = np.full(len(symmetry.links.first), -1, dtype=np.int32)
    row[symmetry.used[table["link"]]] = np.arange(table.height)
    rows = row[classes]
    if symmetry.tabled:
        used = np.flatnonzero(rows >= 0)
        return LinkTotals(used, *(table[name][rows[used]] for name in LinkTotals._fields[1:]))
    totals = (np.append(table[name], 0)[rows] for name in LinkTotals._fields[1:])
    return LinkTotals(np.arange(len(classes)), *totals)
