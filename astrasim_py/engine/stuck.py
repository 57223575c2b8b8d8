"""Explanation of a stuck run: the waiting nodes, their peers, since when they wait, and a cycle of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from astrasim_py.chakra.schema import MISSING
from astrasim_py.core.records import Outcome, WaitingNode
from astrasim_py.core.units import format_time
from astrasim_py.engine.recorder import ranks_left
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import KIND_NAMES, RECV

#: Maximum waiting nodes reported per rank.
_PER_RANK = 4


class Posted(NamedTuple):
    """A receive that waits for its message, or a message that waits for its receive; `since`: its issue time."""

    rank: int
    call: int
    node: int
    peer: int
    tag: int
    bytes: int
    since: int
    kind: int
    row: int

    @classmethod
    def of(cls, plan: Plan, rank: int, call: int, node: int, since: int) -> Posted:
        """A node of the program of a rank in a call (-1: its workload)."""
        program = plan.program(rank, call)
        columns = (program.node_id, program.peer, program.tag, program.nbytes, program.structure.kind, program.rows)
        number, peer, tag, nbytes, kind, row = (int(column[node]) for column in columns)
        if peer >= 0:
            peer = plan.calls[call].members[peer] if call >= 0 else plan.first_rank[plan.job_of[rank]] + peer
        return cls(rank, call, number, peer, tag, nbytes, since, kind, row)

    @classmethod
    def awaiting(cls, plan: Plan, rank: int, call: int, node: int, since: int) -> Posted:
        """A step of a thread block that waits for the head of its message, as its receive."""
        steps = plan.program(rank, call).blocks
        assert steps is not None  # of a program of thread blocks
        members = zip(plan.calls[call].members, plan.calls[call].programs, strict=True)
        blocks = ((peer, program.tag, program.blocks) for peer, program in members if program.blocks is not None)
        sends = ((peer, tag[block.gives == steps.takes[node]]) for peer, tag, block in blocks)
        peer, tag = next((peer, int(tags[0])) for peer, tags in sends if len(tags))
        return cls.of(plan, rank, call, node, since)._replace(kind=RECV, peer=peer, tag=tag)


@dataclass(frozen=True)
class Waits:
    """What is waited for at the end of a stuck run."""

    #: Receives without message, and messages without receive.
    posted: Sequence[Posted]
    unreceived: Sequence[Posted]
    #: Sends that wait for a slot of their connection.
    held: Sequence[Posted] = ()
    #: Sends that no receive has requested, under the rendezvous.
    unasked: Sequence[Posted] = ()
    #: Nodes that wait only for a count: with the counter, its count, and the count they need.
    uncounted: Sequence[tuple[Posted, int, int, int]] = ()
    #: Chunks that wait for their turn: rank, call, queue, and the calls that run there.
    queued: Sequence[tuple[int, int, int, tuple[int, ...]]] = ()
    #: Pairs of NPUs with a message that no path is left for.
    without_path: Sequence[tuple[int, int]] = ()
    #: Messages that a network model of the user's own still carries.
    undelivered: int = 0


def explain_stuck(plan: Plan, progress: Sequence[int], waits: Waits) -> Outcome:
    """Explain why no event is left although nodes are unfinished; `progress`: unfinished nodes by rank."""
    posted, unreceived = waits.posted, waits.unreceived
    if plan.problem.network.split:
        posted, unreceived = whole_messages(posted), whole_messages(unreceived)
    turns = {(rank, index): (queue, running) for rank, index, queue, running in waits.queued}
    # Messages that hold a slot of a connection are explained by the sends that wait for a slot.
    explained = {send.call for send in waits.held}
    unreceived = [m for m in unreceived if m.call not in explained or not progress[m.peer]]
    waits_for: dict[int, set[int]] = {}
    for entry in (*posted, *waits.held, *waits.unasked):
        waits_for.setdefault(entry.rank, set()).add(entry.peer)

    def lost(receive: Posted) -> WaitingNode:
        why = _turn(plan, receive, turns) or _no_message(plan, receive, progress, unreceived)
        pair = plan.npu_of[receive.peer], plan.npu_of[receive.rank]
        if pair in waits.without_path:
            why = f"no path is left from {' to '.join(_vertex(plan, end) for end in pair)}"
        return _waiting(plan, receive, why)

    def unwanted(send: Posted) -> WaitingNode:
        why = _turn(plan, send, turns) or f"{plan.rank_name(send.peer)} has not posted its receive"
        return replace(_waiting(plan, send, why), asks=True)

    waiting = [
        *((receive.rank, partial(lost, receive)) for receive in posted),
        *((send.rank, partial(_waiting_for_slot, plan, send)) for send in waits.held),
        *((send.rank, partial(unwanted, send)) for send in waits.unasked),
        *((entry[0].rank, partial(_waiting_for_count, plan, *entry)) for entry in waits.uncounted),
    ]
    of_rank: dict[int, list[Callable[[], WaitingNode]]] = {}
    for rank, describe in waiting:
        of_rank.setdefault(rank, []).append(describe)
    # The trace of a rank of an algorithm may take long to build.
    few = [describe() for listed in of_rank.values() for describe in listed[:_PER_RANK]]
    few += [
        _waiting(plan, m, f"was delivered to {plan.rank_name(m.peer)}, which never receives it") for m in unreceived
    ]
    cycle = _cycle(waits_for)
    stuck_ranks, n = sum(map(bool, progress[: plan.npu_ranks])), plan.npu_ranks
    switches = dict(enumerate(plan.switches, n))
    if waits.without_path:
        cause, cycle = f"stuck: {_cut_off(plan, waits.without_path)}", ()
    elif waits.undelivered:
        model, number = plan.problem.network.model, waits.undelivered
        cause, cycle = f"stuck: {model} never delivers {number} message{'s' if number > 1 else ''}", ()
    elif cycle:
        ring = "→".join(switches.get(rank, str(rank)) for rank in (*cycle, cycle[0]))
        cause = f"deadlock: ranks wait for each other in a ring, {ring}"
        if waits.held:
            number = len(waits.held)
            cause += f"; {number} send{'s wait' if number > 1 else ' waits'} for a free slot"
    elif any(progress):
        lacking = "messages that nobody sends" if waits_for or not waits.uncounted else "completions that never come"
        subject = f"{stuck_ranks} of {n} ranks wait" if stuck_ranks else "no rank waits, but switches do,"
        cause = f"stuck: {subject} for {lacking}"
    else:
        cause = f"stuck: {len(unreceived)} message{'s' if len(unreceived) > 1 else ''} sent and never received"
    jobs = list(dict.fromkeys(entry.job for entry in sorted(few, key=lambda entry: entry.rank) if entry.job))
    if jobs:
        cause += f"; in job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}"
    return Outcome(
        status="stuck",
        cause=cause,
        waiting=tuple(sorted(few, key=lambda entry: (entry.rank, entry.instance, entry.node))),
        cycle=cycle,
        unfinished=sum(progress),
        unfinished_ranks=ranks_left(progress),
        switches=switches,
    )


def _cut_off(plan: Plan, pairs: Sequence[tuple[int, int]]) -> str:
    """Which pairs of NPUs have no path, and which links have failed, and when."""
    topology, failed = plan.problem.topology, dict[int, int]()
    for time, state in plan.states:
        failed = {link: failed.get(link, time) for link in state.links.lost}
    named = _some([f"{topology.link_name(link)} at {format_time(time)}" for link, time in failed.items()])
    ends = [f"{topology.vertex_name(a)} to {topology.vertex_name(b)}" for a, b in pairs]
    return f"no path is left between NPUs ({_some(ends)}); failed for good: {named}"


def _vertex(plan: Plan, vertex: int) -> str:
    topology = plan.problem.topology
    return f"{'NPU' if vertex < topology.npus else 'switch'} {topology.vertex_name(vertex)}"


def _some(names: Sequence[str]) -> str:
    """The first of some names."""
    more = f" and {len(names) - _PER_RANK} more" if len(names) > _PER_RANK else ""
    return ", ".join(names[:_PER_RANK]) + more


def whole_messages(parts: Sequence[Posted]) -> list[Posted]:
    """Messages with waiting parts, and the bytes of these parts."""
    messages: dict[tuple[int, int, int], Posted] = {}
    for part in parts:
        key = part.rank, part.call, part.row
        posted = messages.get(key, part._replace(bytes=0))
        messages[key] = posted._replace(bytes=posted.bytes + part.bytes)
    return list(messages.values())


def _turn(plan: Plan, entry: Posted, turns: Mapping[tuple[int, int], tuple[int, tuple[int, ...]]]) -> str:
    """The turn that the peer's chunk waits for in a queue; empty if it waits for none."""
    if (entry.peer, entry.call) not in turns:
        return ""
    queue, running = turns[entry.peer, entry.call]
    ahead = ", ".join(f"chunk {chunk} phase {phase}" for chunk, phase in (plan.place_of[i] for i in running))
    return f"on rank {entry.peer} it waits for its turn in queue {queue} behind {ahead}"


def _no_message(plan: Plan, receive: Posted, progress: Sequence[int], unreceived: Sequence[Posted]) -> str:
    for message in unreceived:
        same = message.rank == receive.peer and message.peer == receive.rank and message.call == receive.call
        if same and (message.tag != receive.tag or message.bytes != receive.bytes):
            return (
                f"{plan.rank_name(message.rank)} sent it tag {message.tag}, {message.bytes} B instead "
                f"(node {message.node}): the tags or sizes differ"
            )
    if not progress[receive.peer]:
        return f"{plan.rank_name(receive.peer)} has finished and sends no such message"
    return f"{plan.rank_name(receive.peer)} has not sent it"


def _waiting(plan: Plan, entry: Posted, reason: str) -> WaitingNode:
    trace, receives = plan.trace(entry.rank, entry.call), entry.kind == RECV
    name = trace.names[entry.row] if len(trace.names) else ""
    block, step = (int(trace.column(c)[entry.row]) for c in ("tb_id", "local_time_step"))
    if not name and MISSING not in (block, step):  # an unnamed node of a thread block is named by its place there
        name = f"tb {block} step {step}"
    if entry.call in plan.place_of:
        chunk, phase = plan.place_of[entry.call]
        name = f"chunk {chunk} phase {phase} {name}".rstrip()
    return WaitingNode(
        rank=entry.rank,
        node=entry.node + plan.node_offset.get(entry.call, 0),
        name=name,
        kind=KIND_NAMES[entry.kind],
        instance=plan.instance_at(entry.call),
        job=plan.job_name(entry.rank),
        src=entry.peer if receives else entry.rank,
        dst=entry.rank if receives else entry.peer,
        tag=entry.tag,
        bytes=entry.bytes,
        since=entry.since,
        reason=reason,
    )


def _waiting_for_slot(plan: Plan, send: Posted) -> WaitingNode:
    costs = plan.calls[send.call].connections or plan.calls[send.call].by_blocks
    slots = 0 if costs is None else costs.slots
    channel = int(plan.trace(send.rank, send.call).column("channel")[send.row])
    hold = f"{slots} slots hold messages" if slots > 1 else "1 slot holds a message"
    reason = f"the connection's {hold} that rank {send.peer} has not taken"
    waiting = _waiting(plan, send, reason)
    return replace(waiting, slots=slots, channel=-1 if channel == MISSING else channel)


def _waiting_for_count(plan: Plan, node: Posted, counter: int, count: int, wanted: int) -> WaitingNode:
    reason = f"counter {counter} has {count} of the {wanted} completions that it waits for"
    start = int(plan.trace(node.rank, node.call).column("count_from")[node.row])
    if start != MISSING:
        reason += f", counted from the end of node {start}"
    return replace(_waiting(plan, node, reason), counter=counter)


def _cycle(waits_for: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Ranks of one cycle of waits, starting at its lowest; empty if there is none."""
    import networkx

    graph = networkx.DiGraph((rank, peer) for rank in sorted(waits_for) for peer in sorted(waits_for[rank]))
    try:
        ring = [rank for rank, _ in networkx.find_cycle(graph)]
    except networkx.NetworkXNoCycle:
        return ()
    low = ring.index(min(ring))
    return tuple(ring[low:] + ring[:low])


def explanation(outcome: Outcome) -> list[str]:
    """An outcome as lines of text: the cause, then a table of the waiting nodes."""
    if outcome.status == "done":
        return []
    lines, switches = [outcome.cause], outcome.switches

    def who(rank: int) -> str:
        return f"switch {switches[rank]}" if rank in switches else f"rank {rank}"

    jobs = {entry.job for entry in outcome.waiting}
    wide = max(map(len, jobs | {"job"})) if any(jobs) else 0
    if outcome.waiting:
        lines.append(f"  {'job':<{wide}}  rank  node  waits for" if wide else "  rank  node  waits for")
    for entry in outcome.waiting:
        where = f"{switches.get(entry.rank, entry.rank):>6}  {entry.node:>4}"
        if wide:
            where = f"  {entry.job:<{wide}}{where}"
        inside = f" in collective {entry.instance}" if entry.instance >= 0 else ""
        name = f' "{entry.name}"' if entry.name else ""
        prefix = "since"
        if entry.kind == "recv" and entry.counter < 0:
            missing = f"a message from {who(entry.src)}, tag {entry.tag}, {entry.bytes} B"
        elif entry.counter >= 0:
            missing = "a count"
        elif entry.asks:
            missing = f"{who(entry.dst)} to receive its message, tag {entry.tag}, {entry.bytes} B"
        elif entry.slots:
            on = f"channel {entry.channel}" if entry.channel >= 0 else f"tag {entry.tag}"
            missing = f"a free slot to send {entry.bytes} B to {who(entry.dst)} on {on}"
        else:
            prefix = "sent at"
            missing = f"its message to {who(entry.dst)}, tag {entry.tag}, {entry.bytes} B"
        since = f", {prefix} {format_time(entry.since)}" if entry.since >= 0 else ""
        lines.append(f"{where}  {missing}{inside}{name}{since}: {entry.reason}")
    if outcome.unfinished:
        lines.append(f"  {outcome.unfinished} nodes never completed")
    return lines
