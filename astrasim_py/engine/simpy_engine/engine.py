"""The engine: runs a Plan on SimPy and returns its Records.

Order at one instant is part of the result, so that two engines can agree:

1. Every timed action (send, compute, memory request, start delay) takes the next number of one counter when it is
   issued and has one pending event, keyed (time, number); that number is the priority of its SimPy event.
2. Applying an event is synchronous and issues nothing: a rank that got a ready node is woken.
3. Wake-ups have priorities above all numbers, lowest rank first: a rank dispatches when nothing else is left at
   this time, and events that it makes for this same time come before the next rank.

Under ``event_order: scheduled`` it is as in ASTRA-sim: events of one time are taken in the order in which they were
scheduled (every hop anew, when its link begins to serve it; the timers of one rank for one time together with their
first), and whom an event makes ready dispatches before the next event.
"""

from __future__ import annotations

import time
from fractions import Fraction

import simpy

from astrasim_py.core.records import Outcome, Records
from astrasim_py.core.units import PS_PER_NS, transfer_ps
from astrasim_py.engine.recorder import Recorder, unequal_bytes, used_links
from astrasim_py.engine.simpy_engine.fifo import Connections, FifoMixin, Paced
from astrasim_py.engine.simpy_engine.link import Link
from astrasim_py.engine.simpy_engine.network import MODELS, Clock, Message, Request
from astrasim_py.engine.simpy_engine.npu import Npu, Timer
from astrasim_py.engine.simpy_engine.splice import INSTANCE_SHIFT, Block, Call, Space, Template, Templates, block_class
from astrasim_py.engine.simpy_engine.streams import Session
from astrasim_py.engine.stuck import Posted, explain_stuck, ranks_left
from astrasim_py.system.plan import Plan

#: SimPy's own priorities are 0 and 1: numbers of actions start above them.
FIRST_OP = 2
#: Under ``event_order: scheduled`` a number is (time of scheduling, counter).
_TIME_SHIFT = 40


class LimitReached(Exception):
    """The run has reached one of its limits."""


class MemoryServer(simpy.Resource):
    """A remote memory that serves one request at a time, in order of request; `free` as for links."""

    def __init__(self, env: simpy.Environment) -> None:
        super().__init__(env, capacity=1)
        self.free = 0


class Engine:
    """State of one run.

    Attributes
    ----------
    plan : Plan
    env : simpy.Environment
        Its clock counts picoseconds.
    op : int
        Next number of a timed action.
    """

    def __init__(self, plan: Plan, level: str) -> None:
        self.plan = plan
        self.env = Clock() if plan.problem.semantics.event_order == "scheduled" else simpy.Environment()
        self.op = FIRST_OP
        self.hops = 0
        self.sent = 0
        self.limits = plan.problem.limits
        self.most = self.limits.max_events + FIRST_OP
        self.record_nodes = level in ("nodes", "messages")
        self.record_messages = level == "messages"
        self.recorder = Recorder(plan, level)
        self.counting = level != "summary"
        self.floor_ns = plan.problem.semantics.rounding == "floor_ns"
        self.links = self._links()
        self.templates = Templates()
        self.calls: dict[int, Call] = {}
        #: Instance → when it began and ended.
        self.spans: dict[int, Call | Session] = {}
        self.sessions: dict[int, Session] = {}
        self._positions: dict[tuple[int, ...], dict[int, int]] = {}
        self._block_classes: dict[tuple[bool, bool, bool], type[Block]] = {}
        self.scheduled_first = plan.problem.semantics.event_order == "scheduled"
        self.scheduled = FIRST_OP
        self.rendezvous = plan.problem.semantics.rendezvous_bytes
        if self.rendezvous:
            self.send, self.deliver = self.send_when_asked, self.deliver_either
        self.memory_servers: dict[int, MemoryServer] = {}
        network = plan.problem.network
        self.model = network.factory(self) if network.factory else MODELS[network.model](self)
        if network.msccl is not None:
            self.model = Paced(self, self.model)
        self.injected = network.send_completes == "injected"
        self.by_bytes = plan.problem.semantics.message_match == "bytes"
        shared = Space()
        self.p2p_spaces = [shared if self.by_bytes else Space() for _ in plan.problem.jobs]
        self.shared_space = shared
        self.npus = [Npu(self, rank) for rank in range(plan.ranks)]
        job_ranks = [tuple(range(f, f + j.ranks)) for f, j in zip(plan.first_rank, plan.problem.jobs, strict=True)]
        for npu in self.npus:
            job = plan.job_of[npu.rank]
            npu.members = job_ranks[job]
            position = npu.rank - plan.first_rank[job]
            template = self.templates.get(plan.workload[npu.rank], plan.p2p[job], position, of_workload=True)
            make = self.block_class(template, of_workload=True)
            npu.blocks[0] = make(npu, template, -1, self.p2p_spaces[job], None, -1)

    def _links(self) -> dict[int, Link]:
        plan, topology = self.plan, self.plan.problem.topology
        links: dict[int, Link] = {}
        holds: dict[int, dict[int, int]] = {}
        tables: dict[tuple[int, int], tuple[dict[int, int], dict[int, int]]] = {}
        for index in used_links(plan).tolist():
            bandwidth = int(topology.bandwidth_class[index])
            latency = int(topology.latency_ps[index])
            if (bandwidth, latency) not in tables:
                rate = topology.bandwidths[bandwidth]
                if bandwidth not in holds:
                    holds[bandwidth] = self.serialization(rate)
                hold = holds[bandwidth]
                if self.floor_ns:
                    per_ns = float(rate) / 1e9
                    hop = {b: int(latency / PS_PER_NS + b / per_ns) * PS_PER_NS for b in plan.sizes}
                else:
                    hop = {b: ps + latency for b, ps in hold.items()}
                tables[bandwidth, latency] = (hold, hop)
            hold, hop = tables[bandwidth, latency]
            links[index] = Link(self.env, index, latency, hold, hop, self.counting)
        return links

    def serialization(self, rate: Fraction) -> dict[int, int]:
        """bytes → ps at a rate in bytes per second, for every size of a message."""
        if self.floor_ns:
            # ASTRA-sim: each delay is one floor of a double in nanoseconds.
            per_ns = float(rate) / 1e9
            return {b: int(b / per_ns) * PS_PER_NS for b in self.plan.sizes}
        return {b: transfer_ps(b, rate) for b in self.plan.sizes}

    # -- what NPUs ask for ----------------------------------------------------------------------------------

    def number(self) -> int:
        """The next number in the order of issue."""
        op = self.op
        self.op = op + 1
        return self.number_at(self.env.now) if self.scheduled_first else op

    def number_at(self, start: int) -> int:
        """Number of an event that is scheduled at `start` ps."""
        self.scheduled += 1
        return start << _TIME_SHIFT | self.scheduled

    def start(self, npu: Npu, delay: int) -> None:
        """Make the first nodes of a rank ready, `delay` ps from now."""
        npu.awake = False
        if delay:
            timer = Timer(self.env, self._begin, npu.blocks[0], -1)
            self.env.schedule(timer, self.number(), delay)
        else:
            npu.blocks[0].release_roots()
            if npu.ready:
                npu.poke()

    def _begin(self, timer: Timer) -> None:
        timer.block.release_roots()
        if timer.block.npu.ready:
            timer.block.npu.poke()

    def after(self, duration: int, block: Block, node: int) -> None:
        """Complete `node` `duration` ps from now."""
        if self.scheduled_first:
            self.op += 1
            timer = Timer(self.env, _ended_together, block, node)
            self.env.schedule(timer, block.npu.due_at(self, self.env.now + duration), duration)
        else:
            self.env.schedule(Timer(self.env, _ended, block, node), self.number(), duration)

    def afterwards(self, block: Block, node: int) -> None:
        """Complete `node` now, after what is scheduled for now already."""
        self.env.schedule(Timer(self.env, _ended, block, node), self.number())

    def memory_request(self, block: Block, node: int) -> None:
        """Serve a remote-memory node."""
        memory = self.plan.problem.memory
        duration = block.duration[node]
        now = self.env.now
        if memory.kind == "per_npu":
            end = now + duration
        else:
            key = block.npu.npu // memory.npus_per_node if memory.kind == "per_node" else 0
            server = self.memory_servers.get(key)
            if server is None:
                server = self.memory_servers[key] = MemoryServer(self.env)
            end = server.free = max(server.free, now) + duration
        if end > now:
            self.after(end - now, block, node)
        else:
            block.complete(node)

    def destination(self, message: Message) -> int:
        """Rank that a message goes to."""
        block = message.block
        return block.members[block.peer[message.node]]

    def route(self, npu: Npu, dst: int) -> list[Link]:
        """Links from an NPU to a rank."""
        pair = npu.npu * self.plan.problem.topology.npus + self.plan.npu_of[dst]
        route = npu.routes[dst] = [self.links[i] for i in self.plan.routes[pair]]
        return route

    def send(self, block: Block, node: int, meet: int, now: int, since: int = -1) -> None:
        """Send; what was issued earlier, at `since`."""
        npu = block.npu
        dst = block.members[block.peer[node]]
        route = npu.routes.get(dst)
        if route is None:
            route = self.route(npu, dst)
        issued = now if since < 0 else since
        message = Message(self.env, block, node, meet, block.nbytes[node], route, self.number(), issued)
        self.sent += 1
        self.hops += len(route)
        if self.record_messages:
            message.row = self.recorder.message(message, dst, int(block.template.program.tag[node]), now)
        self.model.send(message, now)

    def send_when_asked(self, block: Block, node: int, meet: int, now: int) -> None:
        """Under the rendezvous: a send goes once its receiver has asked for it."""
        asked = block.space.asked
        request = asked.pop(meet, None)
        if request is None:
            asked[meet] = (block, node, now)
            return
        if self.record_messages:
            self.recorder.received(request.row, block.row + node)
        if self.scheduled_first:
            # ASTRA-sim's sender receives the request, which takes an event like every receive of what is there.
            timer = Timer(self.env, lambda _: Engine.send(self, block, node, meet, self.env.now, now), block, node)
            self.env.schedule(timer, self.number())
        else:
            Engine.send(self, block, node, meet, now)

    def ask(self, block: Block, node: int, meet: int, now: int) -> None:
        """Under the rendezvous: a receive is posted, and asks for its message."""
        npu = block.npu
        dst = block.members[block.peer[node]]
        route = npu.routes.get(dst)
        if route is None:
            route = self.route(npu, dst)
        request = Request(self.env, block, node, meet, self.rendezvous, route, self.number(), now)
        self.sent += 1
        self.hops += len(route)
        if self.record_messages:
            request.row = self.recorder.message(request, dst, int(block.template.program.tag[node]), now)
        self.model.send(request, now)

    def deliver_either(self, message: Message) -> None:
        """Under the rendezvous: a message is at its destination, or what asks for one."""
        if not message.asks:
            Engine.deliver(self, message)
            return
        if self.record_messages:
            self.recorder.delivered(message.row, self.env.now)
        asked = message.block.space.asked
        waiting = asked.pop(message.meet, None)
        if waiting is None:
            asked[message.meet] = message
            return
        block, node, since = waiting
        if self.record_messages:
            self.recorder.received(message.row, block.row + node)
        Engine.send(self, block, node, message.meet, self.env.now, since)

    def inject_at(self, message: Message, at: int) -> None:
        """The send of `message` completes at `at` ps, once its tail has entered the network."""
        if message.asks:
            return
        timer = Timer(self.env, _ended, message.block, message.node)
        self.env.schedule(timer, self.number(), at - self.env.now)

    def deliver(self, message: Message) -> None:
        """The tail of a message is at its destination: its send completes, then its receive if posted."""
        sender = message.block
        if self.record_messages:
            self.recorder.delivered(message.row, self.env.now)
        if not self.injected:
            sender.complete(message.node)
        table = sender.table
        waiting = table.pop(message.meet, None)
        if waiting is None:
            table[message.meet] = message
            return
        block, node, _ = waiting
        self.match(message, block, node)
        block.complete(node, sender.row + message.node)

    def match(self, message: Message, block: Block, node: int) -> None:
        """A send and a receive have met: they must be of equal bytes."""
        if message.bytes != block.nbytes[node]:
            who = [
                (b.npu.rank, (b.base >> INSTANCE_SHIFT) - 1, n)
                for b, n in ((message.block, message.node), (block, node))
            ]
            raise unequal_bytes(self.plan, who[0], message.bytes, who[1])
        if self.record_messages:
            self.recorder.received(message.row, block.row + node)

    # -- collectives ----------------------------------------------------------------------------------------

    def call(self, index: int) -> Call:
        """The slice `index`, opened by whoever comes first."""
        call = self.calls.get(index)
        if call is None:
            plan = self.plan
            part = plan.calls[index]
            members = part.members
            instance = plan.instances[plan.instance_of[index]]
            whole = instance.whole is not None
            positions = self._positions.get(members)
            if positions is None:
                positions = self._positions[members] = {rank: p for p, rank in enumerate(members)}
            # A rotated slice meets nothing else, and numbers its meeting points itself.
            shared = self.by_bytes and whole and part.rotation is None
            space = self.shared_space if shared else Space()
            call = self.calls[index] = Call(members, positions, space, self.env.now)
            if whole:
                self.spans[instance.index] = call
        return call

    def session(self, index: int) -> Session:
        """The planned collective `index`, opened by whoever comes first."""
        session = self.sessions.get(index)
        if session is None:
            session = self.sessions[index] = Session(self.plan.instances[index], self.env.now)
            self.spans[index] = session
        return session

    def block_class(self, template: Template, of_workload: bool = False) -> type[Block]:
        """What a template's blocks are."""
        counting = template.counts is not None
        connected = not of_workload and template.fifos is not None and template.slot is template.needs
        key = (of_workload, counting, connected)
        found = self._block_classes.get(key)
        if found is None:
            mixin = FifoMixin if connected else None
            found = self._block_classes[key] = block_class(
                recorded=self.record_nodes, of_workload=of_workload, counting=counting, mixin=mixin
            )
        return found

    def algorithm_block(self, npu: Npu, index: int, call: Call, parent: int) -> Block | None:
        """The block of one member, None if it has nothing to do."""
        part = self.plan.calls[index]
        if not part.programs:
            return None
        position = call.positions[npu.rank]
        fifos = part.connections
        template = self.templates.get(part.programs[position], part.matching, position, fifos=fifos)
        if not template.count:
            return None
        if fifos is not None and call.connections is None:
            call.connections = Connections(fifos)
        make = self.block_class(template)
        return make(npu, template, index, call.space, call, parent)

    def call_done(self, index: int) -> None:
        """Every member has left: only the span is kept."""
        del self.calls[index]

    def block_done(self, block: Block) -> None:
        """Keep the rows of a finished block."""
        if self.record_nodes:
            block.flush(self.recorder)

    # -- the run --------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Too many events have been made: nothing comes after this dispatch, not even who was woken before."""
        self.env.schedule(Timer(self.env, self._reached, None, -1), -1)

    def _reached(self, _: Timer) -> None:
        raise LimitReached(f"more than {self.limits.max_events} events (--max-events)")

    def run(self) -> Outcome:
        """Run until nothing is left to do, or a limit is reached."""
        limit = self.limits.max_sim_time_ps
        try:
            if limit is None:
                self.env.run()
            else:  # run(until=…) would leave its own stop event behind, as if work were left
                while self.env.peek() <= limit:
                    self.env.step()
        except LimitReached as reached:
            return self.cut_short(str(reached))
        if limit is not None and self.env.peek() != float("inf"):
            return self.cut_short(f"simulated time went beyond {limit} ps (--max-sim-time)")
        unfinished = self.unfinished()
        unreceived = self.unreceived()
        if unfinished or unreceived:
            return explain_stuck(
                self.plan,
                self.progress(),
                self.posted(),
                unreceived,
                unfinished,
                self.held(),
                unasked=self.unasked(),
                uncounted=self.uncounted(),
                queued=self.queued(),
            )
        return Outcome()

    def cut_short(self, cause: str) -> Outcome:
        """The outcome at a limit."""
        return Outcome(
            status="limit", cause=cause, unfinished=self.unfinished(), unfinished_ranks=ranks_left(self.progress())
        )

    def unfinished(self) -> int:
        """Nodes of live blocks that are not done."""
        return sum(block.left for npu in self.npus for block in npu.blocks.values())

    def spaces(self) -> list[Space]:
        """Every space in which something may still be waiting."""
        spaces = self.p2p_spaces + [self.calls[i].space for i in sorted(self.calls)]
        return list({id(space): space for space in spaces}.values())

    def posted(self) -> list[Posted]:
        """Receives that wait for a message."""
        found = []
        for space in self.spaces():
            for entry in space.table.values():
                if isinstance(entry, tuple):
                    block, node, since = entry
                    found.append(self._posted(block, node, since))
        return sorted(found)

    def unreceived(self) -> list[Posted]:
        """Messages that arrived and were never received."""
        messages = [m for space in self.spaces() for m in space.table.values() if isinstance(m, Message)]
        return sorted(self._posted(m.block, m.node, m.since) for m in messages)

    def held(self) -> list[Posted]:
        """Sends that wait for a free slot of their connection."""
        connections = [c for c in (self.calls[i].connections for i in sorted(self.calls)) if c is not None]
        return sorted(self._posted(*waiting) for c in connections for waiting in c.waiting.values())

    def unasked(self) -> list[Posted]:
        """Under the rendezvous: sends that nobody has asked for."""
        entries = [e for space in self.spaces() for e in space.asked.values() if isinstance(e, tuple)]
        return sorted(self._posted(*entry) for entry in entries)

    def uncounted(self) -> list[tuple[Posted, int, int, int]]:
        """Nodes that wait for nothing but a count: with their counter, its count, and the count they wait for."""
        found = []
        for block in (block for npu in self.npus for block in npu.blocks.values() if block.template.counts):
            for counter, waiting in enumerate(block.waiting):
                for count, node in waiting:
                    if block.need[node] == 1:
                        found.append((self._posted(block, node, -1), counter, block.counted[counter], count))
        return sorted(found)

    def queued(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Streams that wait for their turn: rank, slice, queue, and the slices that run there."""
        return [entry for npu in self.npus if npu.streams is not None for entry in npu.streams.waiting()]

    def _posted(self, block: Block, node: int, since: int) -> Posted:
        program = block.template.program
        peer = block.peer[node]
        return Posted(
            rank=block.npu.rank,
            slice=(block.base >> INSTANCE_SHIFT) - 1,
            node=int(program.node_id[node]),
            peer=block.members[peer] if peer >= 0 else -1,
            tag=int(program.tag[node]),
            bytes=block.nbytes[node],
            since=since,
            kind=block.kind[node],
            row=int(program.rows[node]),
        )

    def progress(self) -> list[int]:
        """Unfinished nodes by rank."""
        return [sum(block.left for block in npu.blocks.values()) for npu in self.npus]

    def records(self, outcome: Outcome, cpu_s: float) -> Records:
        """Everything that this run leaves behind."""
        for npu in self.npus:
            for block in npu.blocks.values():
                if self.record_nodes and block.left:
                    block.flush(self.recorder)
            if npu.blocks[0].left:
                npu.finish = npu.accounted
        astra = self.plan.problem.semantics.exposed == "finish_minus_compute"
        return self.recorder.records(
            finish=[npu.finish for npu in self.npus],
            compute=[npu.compute_ps for npu in self.npus],
            exposed=[npu.finish - npu.compute_sum_ps if astra else npu.exposed_ps for npu in self.npus],
            spans={i: (c.start, c.end) for i, c in self.spans.items()},
            links=self.links,
            messages=self.sent,
            hops=self.hops,
            events=self.op - FIRST_OP,
            outcome=outcome,
            engine="simpy",
            cpu_s=cpu_s,
        )


def _ended(timer: Timer) -> None:
    timer.block.complete(timer.node)


def _ended_together(timer: Timer) -> None:
    timer.block.npu.due.pop(timer.env.now, None)
    timer.block.complete(timer.node)


def run(plan: Plan, level: str) -> Records:
    """Run a plan and record at `level`.

    Raises
    ------
    SimulationError
        A matched send and receive of unequal bytes.
    """
    begin = time.process_time()
    engine = Engine(plan, level)
    outcome = engine.run()
    return engine.records(outcome, time.process_time() - begin)
