"""A second engine, small and slow, that shares nothing with the first but the Plan.

It writes the rules of the order at one instant down as they are stated: a heap of (time, number), applied one at a
time; when none is left at the present time, the lowest dirty rank dispatches in waves.
"""

from __future__ import annotations

import heapq

from astrasim_py.core.units import transfer_ps
from astrasim_py.system.programs import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND


class Replay:
    """Runs a plan under native semantics; afterwards `nodes` and `hops` hold what happened.

    Attributes
    ----------
    nodes : dict of (rank, slice, node index) to [start, end]
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
        self.scheduled = semantics.event_order == "scheduled"
        self.rendezvous = semantics.rendezvous_bytes
        self.due, self.woken = {}, []
        self.counted, self.wanted, self.asked = {}, {}, {}
        self.running, self.lines, self.turn, self.arrivals = {}, {}, {}, 0
        self.phase, self.streams_left, self.most_running, self.called = {}, {}, {}, {}
        self.starting, self.draining, self.came = [], False, {}
        self.freed, self.held, self.entered, self.waiting = set(), {}, {}, {}

    # -- graph ----------------------------------------------------------------------------------------------

    def program(self, rank, index):
        if index < 0:
            return self.plan.workload[rank]
        part = self.plan.calls[index]
        return part.programs[part.members.index(rank)]

    def open(self, rank, index):
        structure, counters = self.program(rank, index).structure, self.program(rank, index).counters
        if counters is not None:
            self.counted[rank, index] = [0] * counters.number
            self.wanted[rank, index] = {
                int(node): int(counters.k[node])
                for node in range(len(counters.of))
                if counters.of[node] >= 0 and counters.start[node] < 0
            }
        self.need[rank, index] = structure.need.copy()
        self.left[rank, index] = len(structure.need)
        for root in structure.roots:
            self.make_ready(rank, index, int(root))

    def make_ready(self, rank, index, node):
        self.ready.setdefault(rank, []).append((index, node))
        self.dirty.add(rank)
        if rank not in self.woken:
            self.woken.append(rank)

    def complete(self, rank, index, node):
        self.nodes[rank, index, node][1] = self.now
        program = self.program(rank, index)
        counters = program.counters
        if counters is not None and counters.detached[node]:
            return
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
            self.fulfil(rank, index, int(successor))
        if counters is not None:
            self.count(rank, index, node, counters)
        self.leave(rank, index)

    def fulfil(self, rank, index, node):
        self.need[rank, index][node] -= 1
        if self.need[rank, index][node] == 0:
            self.make_ready(rank, index, node)

    def count(self, rank, index, node, counters):
        counted, wanted = self.counted[rank, index], self.wanted[rank, index]
        if counters.counts[node] >= 0:
            counter = int(counters.counts[node])
            counted[counter] += 1
            for waiter in [w for w, k in wanted.items() if counters.of[w] == counter and counted[counter] == k]:
                del wanted[waiter]
                self.fulfil(rank, index, waiter)
        for waiter in range(len(counters.of)):
            if counters.of[waiter] >= 0 and counters.start[waiter] == node:
                wanted[waiter] = counted[int(counters.of[waiter])] + int(counters.k[waiter])

    def leave(self, rank, index):
        """One node fewer that the block waits for."""
        self.left[rank, index] -= 1
        if self.left[rank, index] == 0 and index >= 0:
            if index in self.plan.place_of:
                self.phase_ended(rank, index)
            else:
                self.complete(rank, -1, self.caller[rank, index])

    # -- streams --------------------------------------------------------------------------------------------

    def begin_streams(self, rank, call, node):
        streams = self.plan.instances[call].chunks
        self.called.setdefault(rank, []).append(call)
        self.caller[rank, ("streams", call)] = node
        self.streams_left[rank, call] = len(streams)
        for number in range(len(streams)):
            self.phase[rank, call, number] = -1
            self.next_phase(rank, call, number)
        if not streams:
            self.complete(rank, -1, node)
        self.serve(rank)
        self.drain()

    def visit(self, rank, call, number):
        return self.plan.instances[call].chunks[number].phases[self.phase[rank, call, number]]

    def next_phase(self, rank, call, number):
        self.phase[rank, call, number] += 1
        if self.phase[rank, call, number] == len(self.plan.instances[call].chunks[number].phases):
            self.streams_left[rank, call] -= 1
            if self.streams_left[rank, call] == 0:
                self.complete(rank, -1, self.caller[rank, ("streams", call)])
            return
        self.arrivals += 1
        visit = self.visit(rank, call, number)
        self.came[rank, visit.first + visit.call_of[rank]] = self.arrivals
        self.lines.setdefault((rank, visit.queue), []).append((self.arrivals, call, number))

    def phase_ended(self, rank, index):
        call, (number, _) = self.plan.instance_of[index], self.plan.place_of[index]
        queue = self.visit(rank, call, number).queue
        self.running[rank, queue].remove((call, number))
        self.serve(rank, queue)
        self.next_phase(rank, call, number)
        self.serve(rank)
        self.drain()

    def drain(self):
        """Begin the phases whose turn has come, in that order; an empty one ends at once."""
        if self.draining:
            return
        self.draining = True
        while self.starting:
            self.start_phase(*self.starting.pop(0))
        self.draining = False

    def may_start(self, rank, queue, call, number):
        turns = self.plan.instances[call].chunks[number].turns
        if not turns:
            return True
        first = next(c for c in self.called[rank] if self.turn.get((rank, queue, c), 0) < self.turns_of(c, queue))
        return first == call and turns[self.phase[rank, call, number]] == self.turn.get((rank, queue, call), 0)

    def turns_of(self, call, queue):
        streams = self.plan.instances[call].chunks
        return sum(visit.queue == queue for stream in streams if stream.turns for visit in stream.phases)

    def serve(self, rank, only=None):
        """Start streams of this rank that wait, as long as one may."""
        capacity = self.problem.jobs[self.plan.job_of[rank]].planner.capacity
        for queue in range(len(capacity)) if only is None else (only,):
            running = self.running.setdefault((rank, queue), [])
            while len(running) < capacity[queue]:
                line = [
                    (-self.plan.instances[c].chunks[s].priority, -self.visit(rank, c, s).priority, arrival, c, s)
                    for arrival, c, s in self.lines.get((rank, queue), [])
                    if self.may_start(rank, queue, c, s)
                ]
                if not line:
                    break
                _, _, arrival, call, number = min(line)
                self.lines[rank, queue].remove((arrival, call, number))
                if self.plan.instances[call].chunks[number].turns:
                    self.turn[rank, queue, call] = self.turn.get((rank, queue, call), 0) + 1
                running.append((call, number))
                self.most_running[rank, queue] = max(self.most_running.get((rank, queue), 0), len(running))
                self.starting.append((rank, call, number))

    def start_phase(self, rank, call, number):
        visit = self.visit(rank, call, number)
        index = visit.first + visit.call_of[rank]
        if len(self.program(rank, index)):
            self.open(rank, index)
        else:
            self.phase_ended(rank, index)

    # -- slots of connections -------------------------------------------------------------------------------

    def of_connection(self, what, rank, index, node):
        part = self.plan.calls[index] if index >= 0 else None
        if part is None or part.connections is None:
            return -1
        listed = getattr(part.connections, what)
        return int(listed[part.members.index(rank) % len(listed)][node]) if listed else -1

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

    def number(self, start=None):
        """Place in the order of issue; or of scheduling, of what is scheduled at `start`."""
        self.op += 1
        return (self.now if start is None else start, self.op) if self.scheduled else self.op

    def timer(self, rank, time, action):
        if not self.scheduled:
            self.at(time, self.number(), action)
            return
        key = self.due.get((rank, time))
        if key is None:
            key = self.due[rank, time] = (*self.number(), 0)
        else:
            key = (*key[:2], self.number()[1])

        def fire():
            self.due.pop((rank, time), None)
            action()

        self.at(time, key, fire)

    def run(self):
        self.caller = {}
        for rank in range(self.plan.ranks):
            delay = self.plan.start_delay[rank]
            if delay:
                self.at(delay, self.number(), lambda r=rank: self.open(r, -1))
            else:
                self.open(rank, -1)
        while True:
            if self.scheduled and self.woken:
                rank = self.woken[0]
                self.dispatch(rank)
                self.woken.remove(rank)
            elif self.heap and self.heap[0][0] == self.now:
                heapq.heappop(self.heap)[2]()
            elif self.dirty and not self.scheduled:
                rank = min(self.dirty)
                self.dirty.discard(rank)
                self.dispatch(rank)
                self.dirty.discard(rank)
            elif self.heap:
                self.now = self.heap[0][0]
            else:
                return self

    def place(self, rank, index, node):
        """Chunks go in the order of calls; of scheduled ones that which came to its queue first goes first."""
        came = self.came.get((rank, index), 0) if self.scheduled else 0
        return came, index, node

    def dispatch(self, rank):
        while self.ready.get(rank):
            wave, self.ready[rank] = sorted(self.ready[rank], key=lambda each: self.place(rank, *each)), []
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
        if program.counters is not None and program.counters.detached[node]:
            self.leave(rank, index)
        if kind in (SEND, RECV):
            peer = int(program.peer[node])
            other = self.plan.calls[index].members[peer] if index >= 0 else self.rank_of(rank, peer)
            pair = (rank, other) if kind == SEND else (other, rank)
            key = (index if index >= 0 else -1 - self.plan.job_of[rank], *pair, int(program.tag[node]))
            counters = self.sent if kind == SEND else self.posted
            counters[key] = counters.get(key, 0) + 1
            key = (*key, counters[key])
            if kind == SEND and self.rendezvous and key not in self.asked:
                self.asked[key] = lambda: self.send(rank, index, node, other, key, int(program.nbytes[node]))
            elif kind == SEND and self.rendezvous and self.scheduled:
                nbytes = int(program.nbytes[node])
                self.at(self.now, self.number(), lambda: self.send(rank, index, node, other, key, nbytes))
            elif kind == SEND:
                self.send(rank, index, node, other, key, int(program.nbytes[node]))
            elif self.mail.get(key) == "arrived":
                if self.scheduled:
                    self.at(self.now, self.number(), lambda: self.complete(rank, index, node))
                else:
                    self.complete(rank, index, node)
            else:
                self.mail[key] = (rank, index, node)
                if self.rendezvous:
                    self.send(rank, index, node, other, key, self.rendezvous, request=True)
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
                self.timer(rank, end, lambda: self.complete(rank, index, node))
        elif kind == COLLECTIVE:
            number = int(program.instance[node])
            instance, call = self.plan.instances[number], int(self.plan.instances.first[number])
            if instance.only_call is None:
                self.begin_streams(rank, number, node)
                return
            self.caller[rank, call] = node
            if instance.only_call and instance.only_call.programs and len(self.program(rank, call)):
                self.open(rank, call)
            else:
                self.complete(rank, index, node)
        else:
            self.complete(rank, index, node)

    def rank_of(self, rank, peer):
        return self.plan.first_rank[self.plan.job_of[rank]] + peer

    # -- network --------------------------------------------------------------------------------------------

    def send(self, rank, index, node, other, key, nbytes, *, request=False):
        topology, network = self.problem.topology, self.problem.network
        route = topology.route(self.plan.npu_of[rank], self.plan.npu_of[other])
        number = self.number()
        injected = network.send_completes == "injected" and not request

        fifos = self.plan.calls[index].connections if index >= 0 and not request else None
        longer = fifos.latency_ps if fifos else 0
        costs = fifos.links if fifos else None
        entered = None

        def rate(link):
            if costs:
                return costs.rates[costs.rate_class[link]]
            return topology.bandwidths[int(topology.bandwidth_class[link])]

        def latency(link):
            return int((costs or topology).latency_ps[link]) + longer

        def delivered():
            if request:
                waiting = self.asked.get(key)
                self.asked[key] = None
                if waiting is not None:
                    waiting()
                return
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
            if entered is not None:
                self.free[link] = start + transfer_ps(nbytes, rate(link))
            self.hops.append((link, self.now, start, self.free[link], nbytes))
            key = self.number(start) if self.scheduled else number
            if i + 1 < len(route):
                self.at(head, key, lambda: reach(i + 1, tail))
            else:
                self.at(tail, key, delivered)
            if i == 0:
                inject(end)

        def serve(i, asked):
            link = route[i]
            end = self.now + transfer_ps(nbytes, rate(link))
            free = arrival = end + latency(link)
            if network.link_busy != "latency+bytes":
                free = end
            self.hops.append((link, asked, self.now, free, nbytes))
            self.at(arrival, self.number(), (lambda: wait(i + 1)) if i + 1 < len(route) else delivered)
            self.at(free, self.number(), lambda: freed(link))
            if i == 0:
                inject(end)

        def freed(link):
            if self.waiting[link]:
                self.waiting[link].pop(0)()
            else:
                del self.waiting[link]

        def wait(i):
            asked = self.now
            if route[i] in self.waiting:
                self.waiting[route[i]].append(lambda: serve(i, asked))
            else:
                self.waiting[route[i]] = []
                serve(i, asked)

        def begin():
            if self.scheduled and network.model == "store_and_forward":
                wait(0)
            else:
                reach(0, self.now if entered is None else entered)

        first = analytical if network.model == "analytical" else begin
        asks = self.now
        if fifos and fifos.pace:
            connection = index, rank, self.of_connection("connection", rank, index, node)
            enters, pace = max(self.now, self.entered.get(connection, 0)), transfer_ps(nbytes, fifos.pace)
            self.entered[connection] = enters + pace
            if costs:
                asks, entered = enters, enters + pace
            else:
                asks = enters + max(0, pace - transfer_ps(nbytes, rate(route[0])))
        if asks > self.now:
            self.at(asks, number, first)
        else:
            first()
