"""The engine: runs a Plan on SimPy and returns its Records.

Order at one instant is part of the result, so that two engines can agree:

1. Every timed action (send, compute, memory request, start delay) takes the next number of one counter when it is
   issued and has one pending event, keyed (time, number); that number is the priority of its SimPy event.
2. Applying an event is synchronous and issues nothing: a rank that got a ready node is woken.
3. Wake-ups have priorities above all numbers, lowest rank first: a rank dispatches when nothing else is left at
   this time, and events that it makes for this same time come before the next rank.
"""

from __future__ import annotations

import time
from fractions import Fraction

import simpy

from astrasim_py.core.records import Outcome, Records
from astrasim_py.core.units import PS_PER_NS, transfer_ps
from astrasim_py.engine.recorder import Recorder
from astrasim_py.engine.simpy_engine.fifo import Connections, FifoBlock, Paced, RecordedFifoBlock
from astrasim_py.engine.simpy_engine.link import Link
from astrasim_py.engine.simpy_engine.network import MODELS, Message
from astrasim_py.engine.simpy_engine.npu import Npu, Timer, unequal_bytes
from astrasim_py.engine.simpy_engine.splice import INSTANCE_SHIFT, Block, Call, Space, Templates, block_class
from astrasim_py.engine.stuck import Posted, explain_stuck
from astrasim_py.system.plan import Plan

#: SimPy's own priorities are 0 and 1: numbers of actions start above them.
FIRST_OP = 2


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
        self.env = simpy.Environment()
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
        self.call_spans: dict[int, Call] = {}
        self._positions: dict[tuple[int, ...], dict[int, int]] = {}
        self.algorithm_block_class = block_class(self, of_workload=False)
        self.fifo_block_class = RecordedFifoBlock if self.record_nodes else FifoBlock
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
        workload_block = block_class(self, of_workload=True)
        self.npus = [Npu(self, rank) for rank in range(plan.ranks)]
        job_ranks = [tuple(range(f, f + j.ranks)) for f, j in zip(plan.first_rank, plan.problem.jobs, strict=True)]
        for npu in self.npus:
            job = plan.job_of[npu.rank]
            npu.members = job_ranks[job]
            position = npu.rank - plan.first_rank[job]
            template = self.templates.get(plan.workload[npu.rank], plan.p2p[job], position, of_workload=True)
            npu.blocks[0] = workload_block(npu, template, -1, self.p2p_spaces[job], None, -1)

    def _links(self) -> dict[int, Link]:
        plan, topology = self.plan, self.plan.problem.topology
        links: dict[int, Link] = {}
        holds: dict[int, dict[int, int]] = {}
        tables: dict[tuple[int, int], tuple[dict[int, int], dict[int, int]]] = {}
        for index in sorted(set(plan.route_links.tolist())):
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
        return op

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
        self.env.schedule(Timer(self.env, _ended, block, node), self.number(), duration)

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

    def send(self, block: Block, node: int, meet: int, now: int) -> None:
        """Issue a send."""
        npu = block.npu
        dst = block.members[block.peer[node]]
        route = npu.routes.get(dst)
        if route is None:
            route = self.route(npu, dst)
        op = self.op
        self.op = op + 1
        message = Message(self.env, block, node, meet, block.nbytes[node], route, op)
        self.sent += 1
        self.hops += len(route)
        if self.record_messages:
            message.row = self.recorder.message(message, dst, int(block.template.program.tag[node]), now)
        self.model.send(message, now)

    def inject_at(self, message: Message, at: int) -> None:
        """The send of `message` completes at `at` ps, once its tail has entered the network."""
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
            raise unequal_bytes(message, block, node)
        if self.record_messages:
            self.recorder.received(message.row, block.row + node)

    # -- collectives ----------------------------------------------------------------------------------------

    def call(self, index: int) -> Call:
        """The collective instance `index`, opened by whoever comes first."""
        call = self.calls.get(index)
        if call is None:
            members = self.plan.instances[index].members
            positions = self._positions.get(members)
            if positions is None:
                positions = self._positions[members] = {rank: p for p, rank in enumerate(members)}
            space = self.shared_space if self.by_bytes else Space()
            call = self.calls[index] = Call(members, positions, space, self.env.now)
            self.call_spans[index] = call
        return call

    def algorithm_block(self, npu: Npu, index: int, call: Call, parent: int) -> Block | None:
        """The block of one member, None if it has nothing to do."""
        instance = self.plan.instances[index]
        if not instance.programs:
            return None
        position = call.positions[npu.rank]
        fifos = instance.fifos
        template = self.templates.get(instance.programs[position], instance.matching, position, fifos=fifos)
        if not template.count:
            return None
        if fifos is not None and call.connections is None:
            call.connections = Connections(fifos)
        make = self.fifo_block_class if template.slot else self.algorithm_block_class
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
        """Too many events have been made."""
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
            return Outcome(status="limit", cause=str(reached), unfinished=self.unfinished())
        unfinished = self.unfinished()
        if limit is not None and self.env.peek() != float("inf"):
            cause = f"simulated time went beyond {limit} ps (--max-sim-time)"
            return Outcome(status="limit", cause=cause, unfinished=unfinished)
        unreceived = self.unreceived()
        if unfinished or unreceived:
            return explain_stuck(
                self.plan, self.progress(), self.posted(), unreceived, self.calls, unfinished, self.held()
            )
        return Outcome()

    def unfinished(self) -> int:
        """Nodes of live blocks that are not done."""
        return sum(block.left for npu in self.npus for block in npu.blocks.values())

    def spaces(self) -> list[Space]:
        """Every space in which something may still be waiting."""
        if self.by_bytes:
            return [self.shared_space]
        return self.p2p_spaces + [self.calls[i].space for i in sorted(self.calls)]

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
        return sorted(self._posted(m.block, m.node, self.env.now) for m in messages)

    def held(self) -> list[Posted]:
        """Sends that wait for a free slot of their connection."""
        connections = [c for c in (self.calls[i].connections for i in sorted(self.calls)) if c is not None]
        return sorted(self._posted(*waiting) for c in connections for waiting in c.waiting.values())

    def _posted(self, block: Block, node: int, since: int) -> Posted:
        program = block.template.program
        return Posted(
            rank=block.npu.rank,
            instance=(block.base >> INSTANCE_SHIFT) - 1,
            node=int(program.node_id[node]),
            peer=block.members[block.peer[node]],
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
            spans={i: (c.start, c.end) for i, c in self.call_spans.items()},
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
