"""Folding: if all ranks are symmetric, one is simulated, and each of its links represents a class of links.

Ranks can lose symmetry only where messages that different ranks issued at one time request one link at one time: their
order depends on rank numbers. The run detects and refuses this (docs/engines.md).
"""

import itertools
from dataclasses import replace

import numpy as np

from astrasim_py.core.choices import FOLDED
from astrasim_py.core.compiling import cpu_s
from astrasim_py.core.errors import FoldError
from astrasim_py.core.records import Records, Table
from astrasim_py.engine.recorder import LINK_TOTALS, make_records
from astrasim_py.engine.simpy.dialects import rules_of
from astrasim_py.engine.simpy.network import Link, LinkRequest, Message
from astrasim_py.engine.simpy.simulation import LimitReached, OpenCall, Simulation, following
from astrasim_py.system.matching import Matching
from astrasim_py.system.plan import CollectiveCall, Plan
from astrasim_py.system.programs import RECV, SEND, Programs
from astrasim_py.system.repeated import Repeated
from astrasim_py.system.symmetry import Symmetry, calls_of, peers_in, refuse, symmetry_of

_LEVELS = ("summary", "links")


def check_level(level: str) -> None:
    """Raise FoldError: the level needs single ranks."""
    if level not in _LEVELS:
        raise FoldError("fold", f'level "{level}" records single ranks', "record summary or links, or run without fold")


def run_folded(plan: Plan, level: str) -> Records:
    """Simulate rank 0 of a plan and return the Records of all ranks, which equal those of the full run.

    `level`: ``summary`` or ``links``. An event limit counts simulated events. Raises FoldError: the ranks are not
    symmetric, or cannot be shown to be; or one rank alone takes more events than the limit.
    """
    begin = cpu_s()
    symmetry = symmetry_of(plan)
    records = following(FoldedSimulation, *rules_of(plan))(symmetry, level).run()
    return unfold(symmetry, records, cpu_s() - begin)


def fold(symmetry: Symmetry) -> Plan:
    """The plan of rank 0 alone, over the first link of each class."""
    plan, home = symmetry.plan, int(symmetry.plan.npu_of[0])
    calls, made = list(plan.calls), {}
    for instance in symmetry.called:
        for index, call in calls_of(plan.instances, instance, 0):
            if call not in made:
                made[call] = _call(symmetry, call)
            calls[index] = made[call]
    workload = Programs.of([plan.workload[0]])
    return replace(
        plan,
        workload=workload,
        p2p=(_own_matching(symmetry, workload, workload[0].peer.astype(np.int64)),),
        calls=Repeated.of(calls),
        route_pairs=home * plan.problem.topology.vertices + np.asarray(plan.npu_of, dtype=np.int64)[symmetry.deltas],
        route_ptr=symmetry.route_ptr,
        route_links=symmetry.links.first[symmetry.route_class],
    )


def _call(symmetry: Symmetry, call: CollectiveCall) -> CollectiveCall:
    """Rank 0's part of a call."""
    if not call.programs:
        return call
    position = call.members.index(0)
    # No other position is asked for.
    programs = Programs.everywhere(call.programs[position], len(call.programs))
    return replace(call, programs=programs, matching=_own_matching(symmetry, programs, peers_in(call, position)[1]))


def _own_matching(symmetry: Symmetry, programs: Programs, peers: np.ndarray) -> Matching:
    """The sends of a program matched with its own rotated receives, on channels; `peers`: ranks, by node."""
    at, program = np.flatnonzero(peers >= 0), programs.different[0]
    kind = program.structure.kind[at]
    # A receive from the rank at distance d matches this rank's send to distance -d, rotated.
    towards = np.where(kind == RECV, symmetry.group.unshift(0, peers[at]), peers[at])
    channel = np.unique(np.stack([towards, program.tag[at]]), axis=1, return_inverse=True)[1].reshape(-1)
    begin, end = (np.broadcast_to(np.int64(each), len(programs)) for each in (0, len(at)))
    return Matching(programs, begin, end, at, ~channel, kind == RECV)


class WatchedLink(Link):
    """A link that represents its class; every request for it is watched."""

    def request(self, message: Message) -> LinkRequest:  # type: ignore[override]  # as of its parent
        self.simulation.refuse_tie(self, message)
        return super().request(message)


class FoldedSimulation(Simulation):
    """A run of one rank, which receives its own messages."""

    link_class = WatchedLink

    def __init__(self, symmetry: Symmetry, level: str) -> None:
        super().__init__(fold(symmetry), level)
        self.symmetry = symmetry
        self.recorder.members_left = [1] * len(self.plan.instances)
        #: Destination → the anchors of the links on the way to it.
        self._anchors: dict[int, list[int]] = {}
        for rank, (a, b) in zip(symmetry.deltas.tolist(), itertools.pairwise(symmetry.route_ptr.tolist()), strict=True):
            self._anchors[self.plan.npu_of[rank]] = symmetry.route_anchor[a:b].tolist()
        #: Link class → time of the latest requests, and their anchors by issue time.
        self._asked: dict[int, tuple[int, dict[int, int]]] = {}
        self._refuse_instant_messages()

    def _refuse_instant_messages(self) -> None:
        calls = [call for i in self.symmetry.called for _, call in calls_of(self.symmetry.plan.instances, i, 0)]
        found = [peers_in(call, call.members.index(0)) for call in dict.fromkeys(calls) if call.programs]
        for program, peers in [(self.plan.workload[0], self.plan.workload[0].peer), *found]:
            at = program.structure.kind == SEND
            for rank, nbytes in set(zip(peers[at].tolist(), program.nbytes[at].tolist(), strict=True)):
                route = self.route(self.pair(self.plan.npu_of[0], self.plan.npu_of[rank]))
                if not any(link.crossing(nbytes) for link in route):
                    raise refuse(f"a message of {nbytes} bytes takes no time, and the order of ranks matters")

    def open_call(self, index: int) -> OpenCall:
        call = super().open_call(index)
        call.left = 1
        return call

    def refuse_tie(self, link: Link, message: Message) -> None:
        """Refuse if messages that different ranks issued at one time request one link at one time."""
        anchor, now = self._anchors[message.dst][message.at], self.env.now
        since, found = self._asked.get(link.index, (-1, {}))
        if since != now:
            found = {}
            self._asked[link.index] = now, found
        other = found.setdefault(message.since, anchor)
        if other == anchor:
            return
        at, name = int(self.symmetry.links.anchor[link.index]), self.plan.problem.topology.link_name(link.index)
        ranks = sorted(int(self.symmetry.group.unshift(at, each)) for each in (anchor, other))
        raise refuse(
            f"ranks {ranks[0]} and {ranks[1]} ask for link {name} at the same time ({now} ps), and only their numbers "
            f"decide who goes first"
        )

    def check_events(self) -> None:
        try:
            super().check_events()
        except LimitReached:
            # The full run would stop between events of one instant, where ranks differ.
            problem = f"one NPU alone takes more than {self.max_events} events (--max-events)"
            remedy = "raise that limit, or run it without fold to see how far it comes"
            raise FoldError("fold", problem, remedy) from None

    def waits(self):
        raise FoldError("fold", "the run gets stuck", "run it without fold to see who waits for whom")


def unfold(symmetry: Symmetry, records: Records, cpu_s: float) -> Records:
    """Expand the records of one rank to those of all ranks."""
    plan = symmetry.plan
    n = plan.ranks
    spans = np.stack([records.collective["start"], records.collective["end"]], axis=1)
    for instance, others in symmetry.called.items():
        spans[list(others)] = spans[instance]
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


def _links(symmetry: Symmetry, table: Table) -> dict[str, np.ndarray]:
    """Totals of every link in the full run's records, copied from its class."""
    classes = symmetry.links.of
    row = np.full(len(symmetry.links.first), -1, dtype=np.int32)
    row[classes[table["link"]]] = np.arange(table.height)
    rows = row[classes]
    totals = {name: np.append(table[name], 0) for name in LINK_TOTALS[1:]}
    used = np.flatnonzero(rows >= 0) if symmetry.tabled else np.arange(len(classes))
    return {"link": used, **{name: column[rows[used]] for name, column in totals.items()}}
