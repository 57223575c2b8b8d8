"""A second engine, small and slow, that shares nothing with the first but the Plan.

It writes the rules of the order at one instant down as they are stated: a heap of (time, number), applied one at a
time; when none is left at the present time, the lowest dirty rank dispatches in waves.
"""

from __future__ import annotations

import heapq

from astrasim_py.core.units import transfer_ps
from astrasim_py.system.plan import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND


class Replay:
    """Runs a plan under native semantics; afterwards `nodes` and `hops` hold what happened.

    Attributes
    ----------
    nodes : dict of (rank, instance, node index) to [start, end]
    hops : list of (link, requested, start, free, bytes)
    """

    def __init__(self, plan):
        self.plan, self.problem = plan, plan.problem
        self.heap, self.op, self.now = [], 0, 0
        self.nodes, self.hops = {}, []
        self.free, self.memory_free = {}, {}
        self.need, self.ready, self.left = {}, {}, {}
        self.dirty = set()
        self.mail, self.sent, self.posted = {}, {}, {}
        semantics = self.problem.semantics
        self.capacity = {1: semantics.cpu_slots, 2: semantics.compute_slots, 3: semantics.comm_slots}
        self.used, self.refused = {}, {}
        self.pending_members = {i.index: len(i.members) for i in plan.instances}
        self.freed, self.held, self.entered = set(), {}, {}

    # -- graph ----------------------------------------------------------------------------------------------

    def program(self, rank, index):
        if index < 0:
            return self.plan.workload[rank]
        instance = self.plan.instances[index]
        return instance.programs[instance.members.index(rank)]

    def open(self, rank, index):
        structure = self.program(rank, index).structure
        self.need[rank, index] = structure.need.copy()
        self.left[rank, index] = len(structure.need)
        for root in structure.roots:
            self.make_ready(rank, index, int(root))

    def make_ready(self, rank, index, node):
        self.ready.setdefault(rank, []).append((index, node))
        self.dirty.add(rank)

    def complete(self, rank, index, node):
        self.nodes[rank, index, node][1] = self.now
        program = self.program(rank, index)
        if program.structure.kind[node] != SEND:
            self.free_slot(rank, index, node)
        if index < 0:
            slot = int(program.slot[node])
            if slot and self.capacity[slot] is not None:
                self.used[rank, slot] -= 1
                for waiting in self.refused.pop((rank, slot), []):
                    self.make_ready(rank, *waiting)
        structure = program.structure
        for successor in structure.succ[structure.succ_ptr[node] : structure.succ_ptr[node + 1]]:
            self.need[rank, index][successor] -= 1
            if self.need[rank, index][successor] == 0:
                self.make_ready(rank, index, int(successor))
        self.left[rank, index] -= 1
        if self.left[rank, index] == 0 and index >= 0:
            self.complete(rank, -1, self.caller[rank, index])

    # -- slots of connections -------------------------------------------------------------------------------

    def of_connection(self, what, rank, index, node):
        instance = self.plan.instances[index] if index >= 0 else None
        if instance is None or instance.fifos is None:
            return -1
        return int(getattr(instance.fifos, what)[instance.members.index(rank)][node])

    def may_send(self, rank, index, node):
        needed = self.of_connection("needs", rank, index, node)
        if needed < 0 or (index, needed) in self.freed:
            return True
        self.held[index, needed] = (rank, index, node)
        return False

    def free_slot(self, rank, index, node):
        message = self.of_connection("frees", rank, index, node)
        if message >= 0:
            self.freed.add((index, message))
            if (index, message) in self.held:
                self.make_ready(*self.held.pop((index, message)))

    # -- time -----------------------------------------------------------------------------------------------

    def at(self, time, number, action):
        heapq.heappush(self.heap, (time, number, action))

    def number(self):
        self.op += 1
        return self.op

    def run(self):
        self.caller = {}
        for rank in range(self.plan.ranks):
            delay = self.plan.start_delay[rank]
            if delay:
                self.at(delay, self.number(), lambda r=rank: self.open(r, -1))
            else:
                self.open(rank, -1)
        while True:
            if self.heap and self.heap[0][0] == self.now:
                heapq.heappop(self.heap)[2]()
            elif self.dirty:
                rank = min(self.dirty)
                self.dirty.discard(rank)
                self.dispatch(rank)
                self.dirty.discard(rank)
            elif self.heap:
                self.now = self.heap[0][0]
            else:
                return self

    def dispatch(self, rank):
        while self.ready.get(rank):
            wave, self.ready[rank] = sorted(self.ready[rank]), []
            for index, node in wave:
                self.issue(rank, index, node)

    def issue(self, rank, index, node):
        program = self.program(rank, index)
        if index < 0:
            slot = int(program.slot[node])
            if slot and self.capacity[slot] is not None:
                if self.used.get((rank, slot), 0) >= self.capacity[slot]:
                    self.refused.setdefault((rank, slot), []).append((index, node))
                    return
                self.used[rank, slot] = self.used.get((rank, slot), 0) + 1
        kind = program.structure.kind[node]
        if kind == SEND:
            if not self.may_send(rank, index, node):
                return
            self.free_slot(rank, index, node)
        self.nodes[rank, index, node] = [self.now, None]
        if kind in (SEND, RECV):
            peer = int(program.peer[node])
            other = self.plan.instances[index].members[peer] if index >= 0 else self.rank_of(rank, peer)
            pair = (rank, other) if kind == SEND else (other, rank)
            key = (index if index >= 0 else -1 - self.plan.job_of[rank], *pair, int(program.tag[node]))
            counters = self.sent if kind == SEND else self.posted
            counters[key] = counters.get(key, 0) + 1
            key = (*key, counters[key])
            if kind == SEND:
                self.send(rank, index, node, other, key, int(program.nbytes[node]))
            elif self.mail.get(key) == "arrived":
                self.complete(rank, index, node)
            else:
                self.mail[key] = (rank, index, node)
        elif kind in (COMPUTE, MEMORY):
            end = self.now + int(program.duration[node])
            memory = self.problem.memory
            if kind == MEMORY and memory.kind != "per_npu":
                server = self.plan.npu_of[rank] // memory.npus_per_node if memory.kind == "per_node" else 0
                end = max(self.memory_free.get(server, 0), self.now) + int(program.duration[node])
                self.memory_free[server] = end
            if end == self.now:
                self.complete(rank, index, node)
            else:
                self.at(end, self.number(), lambda: self.complete(rank, index, node))
        elif kind == COLLECTIVE:
            call = int(program.call[node])
            self.caller[rank, call] = node
            if self.plan.instances[call].programs and len(self.program(rank, call)):
                self.open(rank, call)
            else:
                self.complete(rank, index, node)
        else:
            self.complete(rank, index, node)

    def rank_of(self, rank, peer):
        return self.plan.first_rank[self.plan.job_of[rank]] + peer

    # -- network --------------------------------------------------------------------------------------------

    def send(self, rank, index, node, other, key, nbytes):
        topology, network = self.problem.topology, self.problem.network
        route = topology.route(self.plan.npu_of[rank], self.plan.npu_of[other])
        number = self.number()
        injected = network.send_completes == "injected"

        def rate(link):
            return topology.bandwidths[int(topology.bandwidth_class[link])]

        fifos = self.plan.instances[index].fifos if index >= 0 else None
        longer = fifos.latency_ps if fifos else 0

        def latency(link):
            return int(topology.latency_ps[link]) + longer

        def delivered():
            if not injected:
                self.complete(rank, index, node)
            waiting = self.mail.get(key)
            self.mail[key] = "arrived"
            if waiting is not None:
                self.complete(*waiting)

        def inject(time):
            if injected:
                self.at(time, self.number(), lambda: self.complete(rank, index, node))

        def analytical():
            length = transfer_ps(nbytes, min(rate(link) for link in route))
            self.at(self.now + sum(map(latency, route)) + length, number, delivered)
            inject(self.now + length)

        def reach(i, tail):
            link = route[i]
            start = max(self.now, self.free.get(link, 0))
            end = start + transfer_ps(nbytes, rate(link))
            if network.model == "cut_through":
                end = max(end, tail)
            tail = end + latency(link)
            head = start + latency(link) if network.model == "cut_through" else tail
            self.free[link] = tail if network.link_busy == "latency+bytes" else end
            self.hops.append((link, self.now, start, self.free[link], nbytes))
            if i + 1 < len(route):
                self.at(head, number, lambda: reach(i + 1, tail))
            else:
                self.at(tail, number, delivered)
            if i == 0:
                inject(end)

        first = analytical if network.model == "analytical" else lambda: reach(0, self.now)
        asks = self.now
        if fifos and fifos.bandwidth:
            connection = index, self.of_connection("connection", rank, index, node)
            enters, pace = max(self.now, self.entered.get(connection, 0)), transfer_ps(nbytes, fifos.bandwidth)
            self.entered[connection] = enters + pace
            asks = enters + max(0, pace - transfer_ps(nbytes, rate(route[0])))
        if asks > self.now:
            self.at(asks, number, first)
        else:
            first()
