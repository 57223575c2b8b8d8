"""Costs of a library's calls and messages under a profile (formulas: docs/dialects.md).

* peer: where `step` is less, that is the least time between posts; rings never wait for it. An all_to_all, gather or
  scatter that does not post everything at once has a launch longer by one `peer`.
* LL: messages between pairs of ranks use one channel; peers with which a rank begins at once share the channels, at
  least one each. A connection of two ranks sends one message after the other; an algorithm that names channels has a
  connection for each instead. A message holds a link for bytes / B only, but is not gone before its pace is over.
* switch: only the load of an all_reduce in the switch is simulated: every rank sends S + u bytes through it.
* ``protocol: fastest`` simulates each protocol once per collective, size and shape of group, and keeps the answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np

from astrasim_py.builders.draft import Draft, finish_rotated
from astrasim_py.chakra.schema import MISSING
from astrasim_py.collectives.chunks import PROTOCOL_SLOTS, SLOT_BYTES, Buffer
from astrasim_py.core.choices import FASTEST, SWITCH
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import format_size, transfer_ps
from astrasim_py.dialects.plans.lower import has_roles, paced_channels, with_costs
from astrasim_py.dialects.thread_blocks.lower import has_thread_blocks
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation
from astrasim_py.program.selection import Way
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import (
    COMPUTE,
    COPY_ROW,
    LAUNCH_ROW,
    NO_SLOT,
    RECV,
    SEND,
    BlockCosts,
    Connections,
    Counters,
    LinkCosts,
    Programs,
    RankProgram,
    Structure,
)
from astrasim_py.topology.model import Topology
from astrasim_py.topology.profile import Choice, LibraryProfile

#: Collectives that a library makes of messages between pairs of ranks, all sent at once.
_OF_PAIRS = ("all_to_all", "gather", "scatter")
#: Share of the bytes on the wire that are data: LL adds a flag to every 4 bytes, LL128 8 bytes to every 120.
_DATA = {"LL": Fraction(1, 2), "LL128": Fraction(15, 16)}


@dataclass(frozen=True, slots=True)
class CallCosts:
    """Costs of a call: ps before its first messages, by member, after its last, and between messages of a rank; what
    its messages cost."""

    launch: tuple[int, ...]
    copy: int
    post: int
    pace: Fraction | None
    links: LinkCosts
    protocol: str


def chosen_by_table(problem: Problem, collective: str, size: int, ranks: int) -> Choice:
    """The choice of a profile's table for a call; empty if the scenario names a protocol."""
    network = problem.network
    if network.profile is None or network.protocol != FASTEST:
        return Choice()
    return network.profile.chosen(collective, size, ranks)


def beyond_the_rows(plan: Plan) -> list[str]:
    """Where a plan exceeds the measured rows of its network's profile; one line each."""
    profile, topology = plan.problem.network.profile, plan.problem.topology
    calls = [i for i in plan.instances.values if i.only_call is not None and len(i.members) > 1]
    if not calls:
        return []
    texts: list[str] = []
    low, high = profile.sizes
    others = sorted({len(i.members) for i in calls if not min(profile.ranks) <= len(i.members) <= max(profile.ranks)})
    if others:
        measured, listing = (", ".join(map(str, listed)) for listed in (profile.ranks, others))
        texts.append(f"calls of {listing} ranks; {profile.library} was measured with {measured}")
    if any(i.size and not low <= i.size <= high for i in calls):
        texts.append(f"calls of sizes beyond {format_size(low)} to {format_size(high)}, the measured ones")
    inside = {topology.bandwidths[code] for code in np.unique(topology.bandwidth_class[topology.in_node])}
    if inside - {profile.link}:
        listing = ", ".join(f"{float(rate) / 1e9:g}" for rate in sorted(inside))
        texts.append(f"links of {listing} GB/s; {float(profile.link) / 1e9:g} GB/s were measured")
    network = profile.network
    across = any(not topology.one_node([plan.npu_of[rank] for rank in i.members]) for i in calls)
    if across and (network is None or not network.fitted):
        texts.append("calls between nodes, which were not measured")
    if any(i.algorithm is not None and i.algorithm.source == SWITCH for i in calls):
        texts.append(
            "calls reduced in the switch, which adds no formats of a byte; for those write switch_reduction: false"
        )
    for parts, costs, stated in (
        ("thread blocks", profile.programs, has_thread_blocks),
        ("operations of a plan", profile.plans, has_roles),
    ):
        algorithms = [] if costs else [c.algorithm for c in plan.calls.values if c.algorithm is not None]
        names = [algorithm.name for algorithm in algorithms if stated(algorithm)]
        if names:
            text = f"{parts} of {names[0]}, which have no costs: it is charged like the library's own collectives"
            texts.append(text)
    return texts


def at_best(problem: Problem, profile: LibraryProfile) -> Topology:
    """The topology with the least latency and the highest rate that any message has on each link under a profile."""
    topology = problem.topology
    library = LibraryCosts(problem)
    costs = [library.links(protocol) for protocol in profile.protocols]
    costs += [library.links(protocol, "plans") for protocol in profile.plans or ()]
    latency = np.min([topology.latency_ps, *(cost.latency_ps for cost in costs)], axis=0)
    rates = np.stack([topology.bandwidth_class, *(cost.rate_class for cost in costs)])
    best = [(*column, ps) for *column, ps in zip(*rates.tolist(), latency.tolist(), strict=True)]
    links: dict[tuple[int, ...], list[int]] = {}
    for link, kind in enumerate(best):
        links.setdefault(kind, []).append(link)
    listed = (topology.bandwidths, *(cost.rates for cost in costs))
    changes = (
        (links_here, max(rates[code] for rates, code in zip(listed, kind, strict=False)), kind[-1])
        for kind, links_here in links.items()
    )
    return topology.changed(links=changes)


class LibraryCosts:
    """Costs of the calls of one problem under the profile of its network."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.profile = problem, problem.network.profile
        self.topology: Topology = problem.topology
        self.links = cache(self._links)
        #: Whether an algorithm is charged as a plan.
        self.is_plan = cache(lambda algorithm: self.profile.plans is not None and has_roles(algorithm))

    def ways(self, algorithm: Algorithm, size: int, npus: tuple[int, ...]) -> list[Way]:
        """The library's candidates for a call of `size` bytes by an algorithm."""
        network, switch = self.problem.network, self.profile.switch
        choice = chosen_by_table(self.problem, algorithm.collective, size, len(npus))
        if algorithm.source == SWITCH:
            return [Way(algorithm, SWITCH)]
        if self.is_plan(algorithm):
            return [Way(algorithm, self._stated_protocol(algorithm, self.profile.plans, "plans"))]
        protocols = tuple(self.profile.protocols)
        if network.protocol != FASTEST:
            protocols = (network.protocol,)
        elif algorithm.protocol in protocols or choice.protocol is not None:
            protocols = (algorithm.protocol if algorithm.protocol in protocols else choice.protocol,)
        if not set(protocols) & {*self.profile.protocols, SWITCH}:
            of = f"no {network.protocol} of a library" if self.profile.protocols else "costs of given programs alone"
            problem = f"has {of}, and {algorithm.name} names no thread blocks"
            raise ScenarioError("network.profile", problem, "give a program of MSCCL-IR, or drop the profile")
        choices = [Way(algorithm, protocol) for protocol in protocols]
        reduces = network.switch_reduction and algorithm.collective in switch.collectives
        reduces = reduces and len(npus) >= switch.ranks and choice.algorithm in (None, SWITCH)
        if reduces and self.topology.switch_of(npus) is not None:
            load = Way(switch_load(algorithm.collective, len(npus)), SWITCH)
            choices = [load] if choice.algorithm == SWITCH and not algorithm.protocol else [*choices, load]
        return choices

    def by_blocks(self, algorithm: Algorithm, *, one_node: bool) -> BlockCosts | None:
        """Costs of an algorithm's steps by thread block; None: the library's own costs apply.

        `one_node`: whether its members are in one node. Raises ScenarioError: no costs under its protocol.
        """
        profile = self.profile
        if profile.programs is None or not has_thread_blocks(algorithm):
            return None
        protocol = self._stated_protocol(algorithm, profile.programs, "programs")
        costs, network = profile.programs[protocol], profile.network
        return BlockCosts(
            protocol=protocol,
            launch=costs.launch + (0 if one_node or network is None else network.launch),
            step=costs.step,
            rate=costs.rate,
            links=self.links(protocol, "programs"),
            slots=PROTOCOL_SLOTS[protocol],
            slice=costs.slice or SLOT_BYTES[protocol],
            waits_half=protocol == "Simple",
        )

    def _stated_protocol(self, algorithm: Algorithm, costs: Mapping[str, object], kind: str) -> str:
        """The protocol of a given program or plan; `costs`: by protocol. Raises ScenarioError: none under it."""
        stated = self.problem.network.protocol or FASTEST
        protocol = stated if stated != FASTEST else algorithm.protocol or "Simple"
        if protocol not in costs:
            problem = f"has costs of {kind} under {' and '.join(costs)}, and {algorithm.name} is under {protocol}"
            raise ScenarioError("network.profile", problem, f"write protocol: {next(iter(costs))}")
        return protocol

    def _links(self, protocol: str, section: str = "protocols") -> LinkCosts:
        """Latency and rate of every link under a protocol; `section`: of the profile, that has them.

        Inside a node a message has one latency, that of its protocol, on the link to its destination; between nodes
        that of the profile's network, or, where it has none, those of the links. Messages of plans have these, too.
        """
        topology, profile, inside = self.topology, self.profile, self.topology.in_node
        ends = topology.dst < topology.npus
        latency = np.where(inside, 0, topology.latency_ps)
        between = Fraction(1)
        if protocol == SWITCH:
            rate = profile.switch.rate
        else:
            costs = getattr(profile, section)[protocol]
            if section == "protocols":
                latency[inside & ends], rate = costs.step, costs.rate
            else:
                latency[inside & ends], rate = costs.latency, costs.link
            if profile.network is not None:
                between = Fraction(str(profile.network.efficiency))
            if profile.network is not None and section != "plans":
                latency[~inside] = np.where(ends, profile.network.steps.get(protocol, 0), 0)[~inside]
                between *= _DATA.get(protocol, 1)
        share = Fraction(1) if rate is None else rate / profile.link
        rates = tuple(rate * factor for factor in (share, between) for rate in topology.bandwidths)
        classes = topology.bandwidth_class + np.where(inside, 0, len(topology.bandwidths))
        return LinkCosts(latency_ps=latency, rate_class=classes, rates=rates)

    def of_call(
        self, algorithm: Algorithm, protocol: str, programs: Programs, size: int, *, one_node: bool
    ) -> CallCosts:
        """Costs of a call by an algorithm, whose `programs` are bound to a full buffer of `size` bytes.

        `one_node`: whether its members are in one node.
        """
        profile, n = self.profile, algorithm.ranks
        network, of_pairs = profile.network, algorithm.collective in _OF_PAIRS
        more = network.launch if network is not None and not one_node else 0
        if protocol == SWITCH:
            return CallCosts((profile.switch.launch + more,), 0, 0, None, self.links(protocol), protocol)
        if self.is_plan(algorithm):
            plan = profile.plans[protocol]
            return CallCosts((plan.launch + more,), 0, 0, plan.rate, self.links(protocol, "plans"), protocol)
        costs, pace, copies = profile.protocols[protocol], None, profile.copy_rate is not None
        different = programs.different
        if costs.channel_rate is not None:
            channels = 1
            if not of_pairs and not _has_channels(algorithm):
                most = max(_peers(program, (SEND,)) for program in different)
                channels = max(1, profile.channels_for(size, n) // max(1, most))
            pace = costs.channel_rate * channels
            copies &= not of_pairs
        launch = costs.launch + more
        # If all messages between pairs are posted at the start, the launch includes their posting.
        at_once = of_pairs and not any((p.structure.need[p.structure.kind == SEND] > 0).any() for p in different)
        peers = [_peers(program) if at_once else min(_peers(program), 1) for program in different]
        return CallCosts(
            launch=tuple(launch + profile.peer * count * of_pairs for count in peers),
            # A message's latency has the time that posting it takes.
            post=0 if at_once else min(profile.peer, costs.step),
            copy=transfer_ps(size, profile.copy_rate * n) if copies else 0,
            pace=pace,
            links=self.links(protocol),
            protocol=protocol,
        )

    def charged(
        self,
        algorithm: Algorithm,
        programs: Programs,
        costs: CallCosts,
        structure: Callable[..., Structure],
    ) -> tuple[Programs, Connections]:
        """Programs and connections of a call with its costs; `structure`: as for `charged`."""
        plan = self.is_plan(algorithm)
        if plan:
            programs = with_costs(algorithm, programs, self.profile, costs.protocol, structure)
        with_call = charged(programs, costs, structure)
        return with_call, connections_of(algorithm, with_call, costs, plan=plan)


def _has_channels(algorithm: Algorithm) -> bool:
    """Whether an algorithm itself spreads its messages over several channels."""
    return bool(algorithm.first.column("channel").max(initial=MISSING) > 0)


def _peers(program: RankProgram, kinds: tuple[int, ...] = (SEND, RECV)) -> int:
    """Ranks to which a program sends, or from which it receives, at once."""
    first = program.structure.need == 0
    return max(len(np.unique(program.peer[first & (program.structure.kind == kind)])) for kind in kinds)


def charged(programs: Programs, costs: CallCosts, structure: Callable[..., Structure]) -> Programs:
    """Programs between a node `launch` and a node `copy`.

    `structure`: as for `astrasim_py.dialects.library.lower_connections.cut_steps`.
    """
    different = programs.different
    launches = costs.launch * (len(different) // len(costs.launch))
    return programs.with_different(
        _charged(program, launch, costs.copy, structure) for program, launch in zip(different, launches, strict=True)
    )


def _charged(program: RankProgram, launch: int, copy: int, structure: Callable[..., Structure]) -> RankProgram:
    old, counters, n = program.structure, program.counters, len(program)
    if not n:
        return program
    parent = np.repeat(np.arange(n), np.diff(old.succ_ptr))
    ends = np.diff(old.succ_ptr) == 0
    if counters is not None:
        ends &= ~counters.detached
    ends = np.flatnonzero(ends)
    child = np.concatenate([old.succ, old.roots, np.full(len(ends), n + 1)]).astype(np.int64)
    parent = np.concatenate([parent, np.full(len(old.roots), n), ends])
    order = np.lexsort((parent, child))
    need = np.append(old.need, [0, len(ends)])
    need[old.roots] += 1
    last = int(program.node_id[-1])
    more = {
        "rows": (LAUNCH_ROW, COPY_ROW), "nbytes": (0, 0), "duration": (launch, copy), "peer": (-1, -1), "tag": (0, 0),
        "slot": (NO_SLOT, NO_SLOT), "instance": (-1, -1), "node_id": (last + 1, last + 2),
    }  # fmt: skip
    kind = np.append(old.kind, np.array([COMPUTE, COMPUTE], dtype=old.kind.dtype))
    columns: dict[str, Any] = {
        name: np.append(getattr(program, name), np.array(values, dtype=getattr(program, name).dtype))
        for name, values in more.items()
    }
    return replace(
        program,
        structure=structure(kind, need, child[order], parent[order]),
        counters=None if counters is None else _without(counters),
        **columns,
    )


def _without(counters: Counters) -> Counters:
    """Counters of a program with two more nodes, which do not count."""
    usual = {"counts": -1, "of": -1, "k": 0, "start": -1, "detached": False}
    columns: dict[str, Any] = {
        name: np.append(getattr(counters, name), np.full(2, value, getattr(counters, name).dtype))
        for name, value in usual.items()
    }
    return replace(counters, **columns)


def connections_of(algorithm: Algorithm, programs: Programs, costs: CallCosts, *, plan: bool = False) -> Connections:
    """The connections of a call: one per pair of ranks, or per pair and channel; of a `plan` where a block paces.

    The messages of a rank on one channel are posted one after the other.
    """
    rotated = programs.rotation is not None
    table = algorithm.first if rotated else algorithm.program
    channels = paced_channels(table) if plan else table.column("channel")
    numbers, count = [], 0
    for program, low in zip(programs.different, table.bounds.tolist(), strict=False):
        sends = np.flatnonzero(program.structure.kind == SEND)
        channel = channels[program.rows[sends] + low]
        if plan:
            sends, channel = sends[channel >= 0], channel[channel >= 0]
        numbers_of = np.full((2, len(program)), -1, dtype=np.int64)
        for number, ends in zip(numbers_of, ((program.peer[sends], channel), (channel,)), strict=True):
            number[sends] = count + np.unique(np.stack(ends), axis=1, return_inverse=True)[1].ravel()
            count = int(number.max(initial=count - 1)) + 1
        numbers.append(numbers_of)
    return Connections(
        protocol=costs.protocol,
        pace=costs.pace,
        links=costs.links,
        connection=tuple(number for number, _ in numbers),
        post_ps=costs.post,
        posts=tuple(posts for _, posts in numbers) if costs.post else (),
        of_member=count if rotated else 0,
    )


@cache
def switch_load(collective: str, ranks: int) -> Algorithm:
    """The load of a reduction in a switch: each rank sends its buffer and one shard to the next one, through it."""
    algorithm = finish_rotated(partial(_to_the_next, ranks), Rotation((ranks,)), SWITCH, collective)
    return replace(algorithm, source=SWITCH)


def _to_the_next(n: int, which: np.ndarray) -> Draft:
    draft = Draft(len(which), n)
    rank = which[:, None]
    draft.send(peer=(rank + 1) % n, tag=0, idx=0, cnt=n + 1, src=(Buffer.INPUT, 0))
    draft.recv(peer=(rank - 1) % n, tag=0, idx=0, cnt=n + 1, dst=(Buffer.OUTPUT, 0))
    return draft
