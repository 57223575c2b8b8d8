"""A second simulator of ASTRA-sim's system layer, written as ASTRA-sim works: callbacks, packets, event lists.

It shares nothing with the package but the reader of ETs: rules are those of the published semantics of ASTRA-sim 2.x's
analytical backends, each algorithm a state machine that reacts to packets, where the package has traces. Slow.
"""

from __future__ import annotations

import heapq
import json
from collections import defaultdict, deque
from functools import partial
from math import prod
from pathlib import Path

import yaml

from astrasim_py.chakra.et_io import read_trace
from astrasim_py.chakra.schema import NodeType

AR, AG, A2A, RS = "AR", "AG", "A2A", "RS"
KINDS = {0: AR, 2: AG, 6: A2A, 7: RS}
KEYS = {AR: "all-reduce", AG: "all-gather", A2A: "all-to-all", RS: "reduce-scatter"}
COMP, SEND, RECV, COLL, LOAD, STORE = "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL", "MEM_LOAD", "MEM_STORE"


class DoesNotFinish(Exception):
    """ASTRA-sim hangs or aborts."""


class Clock:
    """Events in order of time, then of scheduling."""

    def __init__(self):
        self.now, self.heap, self.count = 0, [], 0

    def at(self, delay, what):
        self.count += 1
        heapq.heappush(self.heap, (self.now + delay, self.count, what))

    def run(self):
        while self.heap:
            self.now, _, what = heapq.heappop(self.heap)
            what()


class Network:
    """Messages: delay, links, matching."""

    def __init__(self, clock, config, backend):
        self.clock, self.aware = clock, backend != "congestion_unaware"
        self.kinds, self.sizes = config["topology"], config["npus_count"]
        self.rate = [float(b) * 2**30 / 1e9 for b in config["bandwidth"]]
        self.latency = [float(x) for x in config["latency"]]
        if backend == "congestion_aware" and (len(self.sizes) > 1 or (self.kinds[0], self.sizes[0]) == ("Ring", 2)):
            raise DoesNotFinish("network")
        self.counts = defaultdict(int)
        self.entries = {}
        self.busy, self.waiting = set(), defaultdict(deque)

    def address(self, npu):
        found = []
        for n in self.sizes:
            found.append(npu % n)
            npu //= n
        return found

    def send(self, src, dst, size, tag, done):
        if size <= 0 or (src == dst and not self.aware):
            raise DoesNotFinish("message")
        key = ("s", tag, src, dst, size)
        number = self.counts[key]
        self.counts[key] += 1
        entry = self.entries.setdefault((*key[1:], number), {})
        entry["send"] = done
        arrived = partial(self.arrive, (*key[1:], number))
        if self.aware:
            self.hop(deque(self.route(src, dst)), size, arrived)
        else:
            d = next(d for d, (a, b) in enumerate(zip(self.address(src), self.address(dst), strict=True)) if a != b)
            a, b, n = self.address(src)[d], self.address(dst)[d], self.sizes[d]
            hops = {"Ring": min((a - b) % n, (b - a) % n), "FullyConnected": 1, "Switch": 2}[self.kinds[d]]
            self.clock.at(int(hops * self.latency[d] + size / self.rate[d]), arrived)

    def receive(self, src, dst, size, tag, done):
        key = ("r", tag, src, dst, size)
        number = self.counts[key]
        self.counts[key] += 1
        entry = self.entries.setdefault((*key[1:], number), {})
        if "arrived" in entry:
            del self.entries[(*key[1:], number)]
            self.clock.at(0, done)
        else:
            entry["receive"] = done

    def arrive(self, key):
        entry = self.entries[key]
        entry["arrived"] = True
        entry["send"]()
        if "receive" in entry:
            del self.entries[key]
            entry["receive"]()

    def route(self, src, dst):
        """(from, to, dimension) of every hop, dimension by dimension."""
        here, there = self.address(src), self.address(dst)
        for d, n in enumerate(self.sizes):
            while here[d] != there[d]:
                old = tuple(here)
                if self.kinds[d] == "Switch":
                    device = ("switch", d, *old[:d], *old[d + 1 :])
                    here[d] = there[d]
                    yield old, device, d
                    yield device, tuple(here), d
                    continue
                if self.kinds[d] == "Ring":
                    up = (there[d] - here[d]) % n
                    here[d] = (here[d] + (1 if up <= n - up else -1)) % n
                else:
                    here[d] = there[d]
                yield old, tuple(here), d

    def hop(self, left, size, arrived):
        if not left:
            arrived()
            return
        a, b, d = left.popleft()
        if (a, b) in self.busy:
            self.waiting[a, b].append((d, size, left, arrived))
        else:
            self.transmit((a, b), d, size, left, arrived)

    def transmit(self, link, d, size, left, arrived):
        self.busy.add(link)
        time = size / self.rate[d]
        self.clock.at(int(self.latency[d] + time), lambda: self.hop(left, size, arrived))
        self.clock.at(int(time), lambda: self.freed(link))

    def freed(self, link):
        self.busy.discard(link)
        if self.waiting[link]:
            self.transmit(link, *self.waiting[link].popleft())


class Packets:
    """What ring, direct and halvingDoubling have in common: packets that pass the endpoint, and sends they allow."""

    def __init__(self, npu, stream, phase):
        self.npu, self.stream, self.phase = npu, stream, phase
        self.members, self.n = phase.members, len(phase.members)
        self.me = self.members.index(npu.id)
        self.kind, self.flips = phase.kind, False
        self.packets, self.free, self.received = deque(), 0, 0
        self.plain = self.flagged = 0
        self.window = 1
        self.size = phase.size // self.n if phase.kind != AG else phase.size
        self.set_up()

    def start(self):
        if self.n == 1:
            raise DoesNotFinish("one member")
        for _ in range(self.window):
            self.insert()

    def insert(self):
        if self.plain == self.flagged == 0:
            self.plain, self.flagged = self.window, self.cycle()
            self.flips = not self.flips
        flagged, reduces = not self.plain, False
        last = flagged and self.flagged <= self.window
        if self.plain:
            self.plain -= 1
        else:
            self.flagged -= 1
            reduces = self.kind == RS or (self.kind == AR and self.flips)
        size = self.size
        self.packets.append((size, *self.peers()))
        self.advance()

        # Whole ns after the bus or the endpoint, then those of the reduction.
        first, second = self.phase.delay, 3 * self.npu.memory_time(size) if reduces else None
        bus = self.npu.sim.system
        if bus.get("model-shared-bus"):
            there, memory = (
                int(int(bus["L"]) + 2 * int(bus["o"]) + rate * (size - 1)) for rate in (float(bus["G"]), 0.0038)
            )
            first = there + memory
            if flagged:
                first = (there + memory) * (1 if last else 2)
            if reduces:
                second += size // 100 * bus.get("local-reduction-delay", 1) + 50 + 2 * memory

        def passed():
            if second is not None:
                self.npu.later(second, self.general)
            else:
                self.general()

        self.npu.later(first, passed)

    def general(self):
        self.free += 1
        self.ready()
        self.leave()

    def ready(self):
        if not (self.packets and self.count and self.free):
            return
        size, to, source = self.packets.popleft()
        network = self.npu.network
        tag = self.stream.tag
        self.free -= 1
        self.count -= 1
        network.send(self.npu.id, to, size, tag, lambda: None)
        network.receive(source, self.npu.id, size, tag, self.packet)

    def packet(self):
        self.received += 1
        self.insert()

    def leave(self):
        if self.count == 0 and self.free == self.window:
            self.count = -1
            self.stream.next_phase()

    def neighbour(self, steps):
        return self.members[(self.me + steps * self.phase.direction) % self.n]


class Ring(Packets):
    def set_up(self):
        n = self.n
        self.count = {AR: 2 * (n - 1), A2A: n * (n - 1) // 2}.get(self.kind, n - 1)

    def cycle(self):
        return self.n - 1

    def peers(self):
        return self.neighbour(1), self.neighbour(-1)

    def advance(self):
        pass


class Direct(Packets):
    def set_up(self):
        n = self.n
        self.count = 2 * (n - 1) if self.kind == AR else n - 1
        self.window = min(self.phase.window or n - 1, n - 1)
        self.distance = 1

    def cycle(self):
        return self.window if not self.phase.local else (self.n - 1) * self.window

    def peers(self):
        return self.neighbour(self.distance), self.neighbour(-self.distance)

    def advance(self):
        self.distance = self.distance + 1 if self.distance < self.n - 1 else 1

    def general(self):
        self.free += 1
        middle = self.n - 1
        if self.kind == AR and self.count <= middle:
            if self.received < middle:
                return
            for _ in range(self.window):
                self.ready()
        else:
            self.ready()
        self.leave()


class HalvingDoubling(Packets):
    def set_up(self):
        n = self.n
        if n & (n - 1) or self.kind == A2A:
            raise DoesNotFinish("halvingDoubling")
        self.steps = n.bit_length() - 1
        self.count = 2 * self.steps if self.kind == AR else self.steps
        self.size = self.phase.size if self.kind == AG else self.phase.size // 2
        self.offset, self.grows = (n // 2, False) if self.kind == AG else (1, True)

    def cycle(self):
        return self.steps - 1

    def peers(self):
        steps = self.offset if self.me // max(self.offset, 1) % 2 == 0 else -self.offset
        peer = self.members[(self.me + steps) % self.n]
        return peer, peer

    def advance(self):
        if self.grows:
            self.offset, self.size = self.offset * 2, self.size // 2
            if self.offset == self.n and self.kind == AR:
                self.grows = False
        if not self.grows:
            self.offset, self.size = self.offset // 2, self.size * 2


class Tree:
    """doubleBinaryTree: up, then down, whole chunks."""

    def __init__(self, npu, stream, phase):
        self.npu, self.stream, self.size, self.delay = npu, stream, phase.size, phase.delay
        members = phase.members
        n = len(members)
        if n & (n - 1):
            raise DoesNotFinish("doubleBinaryTree")
        root, rest = (members[-1], members[:-1]) if phase.tree == 0 else (members[0], members[1:])
        self.parent, self.children = {root: None}, defaultdict(list)

        def grow(part, above):
            if part:
                top = part[len(part) // 2]
                self.parent[top] = above
                self.children[above].append(top)
                grow(part[: len(part) // 2], top)
                grow(part[len(part) // 2 + 1 :], top)

        grow(rest, root)
        self.up, self.down = self.parent[npu.id], self.children[npu.id]
        self.reduced = 0

    def send(self, to):
        self.npu.network.send(self.npu.id, to, self.size, self.stream.tag, lambda: None)

    def receive(self, source, done):
        self.npu.network.receive(source, self.npu.id, self.size, self.stream.tag, done)

    def charged(self, then):
        self.npu.later(self.delay, lambda: self.npu.later(3 * self.npu.memory_time(self.size), then))

    def start(self):
        if not self.down:
            self.npu.later(self.delay, self.leaf)
        for child in self.down:
            self.receive(child, lambda: self.charged(self.child))

    def leaf(self):
        self.send(self.up)
        self.receive(self.up, lambda: self.npu.later(self.delay, self.stream.next_phase))

    def child(self):
        self.reduced += 1
        if self.reduced < len(self.down):
            return
        if self.up is None:
            self.finish()
        else:
            self.send(self.up)
            self.receive(self.up, lambda: self.charged(self.finish))

    def finish(self):
        for child in self.down:
            self.send(child)
        self.stream.next_phase()


class Custom:
    """An injected ET: all ready nodes at once, in ascending id."""

    def __init__(self, npu, stream, nodes, members):
        self.npu, self.stream, self.nodes, self.members = npu, stream, nodes, members
        self.left = {i: len(set(node["deps"])) for i, node in nodes.items()}
        self.children = defaultdict(list)
        for i, node in nodes.items():
            for parent in set(node["deps"]):
                self.children[parent].append(i)
        self.open = len(nodes)

    def start(self):
        self.issue(sorted(i for i, left in self.left.items() if not left))

    def issue(self, ready):
        for i in ready:
            node = self.nodes[i]
            if max(node["dst"] or 0, node["src"] or 0) >= len(self.members):
                raise DoesNotFinish("rank of an injected algorithm")
            done = partial(self.done, i)
            network, me = self.npu.network, self.npu.id
            if node["type"] == SEND:
                network.send(me, self.members[node["dst"]], node["size"], node["tag"], done)
            elif node["type"] == RECV:
                network.receive(self.members[node["src"]], me, node["size"], node["tag"], done)
            elif node["type"] == COMP:
                self.npu.later(node["micros"] * 1000 or 1, done)

    def done(self, i):
        self.open -= 1
        ready = []
        for child in self.children[i]:
            self.left[child] -= 1
            if not self.left[child]:
                ready.append(child)
        self.issue(sorted(ready))
        if not self.open:
            self.stream.next_phase()


class Phase:
    def __init__(self, **what):
        self.__dict__.update(what)


class Stream:
    def __init__(self, npu, tag, phases, done):
        self.npu, self.tag, self.phases, self.done, self.queue = npu, tag, deque(phases), done, None

    def next_phase(self):
        old, self.queue = self.queue, None
        if old is not None:
            self.npu.running[old].remove(self)
        if self.phases:
            self.phase = self.phases.popleft()
            self.queue = self.phase.queue
            self.npu.waiting[self.queue].append(self)
        if old is not None:
            self.npu.serve(old)
        if self.queue is not None:
            self.npu.serve(self.queue)
        else:
            self.done()


class Npu:
    """Workload, slots, queues and timers of one NPU."""

    def __init__(self, sim, rank, nodes):
        self.sim, self.id, self.nodes, self.clock, self.network = sim, rank, nodes, sim.clock, sim.network
        self.ticks = {}
        self.running, self.waiting = defaultdict(list), defaultdict(deque)
        self.streams = defaultdict(int)
        self.trees, self.turns, self.turns_first, self.turns_last = (defaultdict(int) for _ in range(4))
        self.left = {i: len(set(node["deps"])) for i, node in nodes.items()}
        self.children = defaultdict(list)
        for i, node in nodes.items():
            for parent in set(node["deps"]):
                if parent not in nodes:
                    raise DoesNotFinish("dangling dependency")
                self.children[parent].append(i)
        self.ready = sorted(i for i, left in self.left.items() if not left)
        self.used = {"cpu": None, "comp": None, "comm": None}
        self.open, self.finish, self.compute = len(nodes), None, 0

    def later(self, delay, what):
        """Callbacks of one tick run together, where the first of them was registered."""
        at = self.clock.now + delay
        if not at:
            raise DoesNotFinish("an event at time 0")
        if at in self.ticks:
            self.ticks[at].append(what)
            return
        self.ticks[at] = [what]

        def run():
            for one in self.ticks[at]:
                one()
            del self.ticks[at]

        self.clock.at(delay, run)

    def memory_time(self, size):
        rate = self.sim.system.get("local-mem-bw", 0)
        return int(size / float(rate)) if rate else 0

    def serve(self, queue):
        while self.waiting[queue] and len(self.running[queue]) < self.sim.capacity:
            stream = self.waiting[queue].popleft()
            self.running[queue].append(stream)
            stream.runner = self.sim.runner(self, stream, stream.phase)
            stream.runner.start()

    # -- workload ----------------------------------------------------------------------------------------------
    def issue(self):
        again = []
        for i in self.ready:
            node = self.nodes[i]
            slot = "cpu" if node["cpu"] else "comp" if node["type"] == COMP else "comm"
            if not node["cpu"] and node["type"] == RECV:
                slot = None
            if slot is not None and self.used[slot] is not None:
                again.append(i)
                continue
            if slot is not None:
                self.used[slot] = i
            self.carry_out(i, node, lambda i=i, slot=slot: self.complete(i, slot))
        # Nodes that completions inside `carry_out` made ready are tried at the next completion.
        self.ready = sorted(again)

    def complete(self, i, slot):
        if slot is not None:
            self.used[slot] = None
        for child in self.children[i]:
            self.left[child] -= 1
            if not self.left[child]:
                self.ready.append(child)
        self.ready.sort()
        self.open -= 1
        self.issue()
        if not self.open:
            self.finish = self.clock.now

    def carry_out(self, i, node, done):
        system, kind = self.sim.system, node["type"]
        if kind == COMP:
            time = node["micros"] * 1000 or 1
            if system.get("roofline-enabled") and not node["cpu"]:
                if node["tensor"] == 0:
                    raise DoesNotFinish("tensor_size 0")
                intensity = node["ops"] / node["tensor"]
                perf = min(float(system["local-mem-bw"]) * 1e9 * intensity, float(system["peak-perf"]) * 1e12)
                time = int(node["ops"] / perf * 1e9)
            if not node["cpu"]:
                self.compute += time
            self.later(time, done)
        elif kind in (LOAD, STORE):
            self.sim.remote(self, node["tensor"], done)
        elif kind == SEND:
            self.sim.send(self.id, node["dst"], node["size"], node["tag"], done)
        elif kind == RECV:
            self.sim.receive(node["src"], self.id, node["size"], node["tag"], done)
        elif kind == COLL:
            self.collective(node, i, done)
        else:
            raise DoesNotFinish(kind)

    def collective(self, node, i, done):
        sim = self.sim
        kind = KINDS[node["comm"]]
        members = sim.groups[node["group"]]
        group = node["group"] if len(members) < sim.npus else ""
        injected = sim.per_node.get(i) or sim.injected.get(kind)
        streams = []
        left = []

        def finished():
            left.pop()
            if not left:
                done()

        if injected:
            nodes = sim.algorithm(f"{injected}.{sorted(members).index(self.id)}.et")
            phase = Phase(queue=(0, 0), custom=(nodes, members))
            streams = [Stream(self, None, [phase], finished)]
        else:
            if sim.delay == 0:
                raise DoesNotFinish("endpoint-delay 0")
            size, splits = node["size"], sim.system["preferred-dataset-splits"]
            chunk = size // splits
            if kind != AG and chunk < sim.npus:
                chunk, size = sim.npus, splits * sim.npus
            if chunk == 0:
                raise DoesNotFinish("chunk of 0 bytes")
            for _ in range(-(-size // chunk)):
                self.streams[group] += 1
                tag = ("native", group, self.streams[group])
                streams.append(Stream(self, tag, sim.phases(self, kind, chunk, members, group), finished))
        left += streams
        for stream in streams:
            stream.next_phase()


class Simulation:
    """One run, from ASTRA-sim's files."""

    def __init__(self, case):
        self.clock = Clock()
        network = yaml.safe_load(Path(case.network).read_text())
        self.network = Network(self.clock, network, case.backend)
        self.sizes = network["npus_count"]
        self.npus = prod(self.sizes)
        self.system = json.loads(Path(case.system).read_text())
        self.memory = json.loads(Path(case.memory).read_text()) if case.memory else {}
        self.folder, self.queues = Path(case.folder), case.queues_per_dim
        self.delay = int(self.system.get("endpoint-delay", 10) * case.injection_scale)
        self.capacity = -(-self.system.get("active-chunks-per-dimension", 1) // self.queues)
        self.groups = {"": list(range(self.npus)), "0": list(range(self.npus))}
        if case.groups:
            self.groups.update(json.loads(Path(case.groups).read_text()))
        self.injected = {}
        for kind, key in KEYS.items():
            if f"{key}-implementation-custom" in self.system:
                self.injected[kind] = self.folder / self.system[f"{key}-implementation-custom"][0]
        self.per_node = {}
        if "per-node-custom-implementation" in self.system:
            found = yaml.safe_load((self.folder / self.system["per-node-custom-implementation"]).read_text())
            self.per_node = {int(k): self.folder / v for k, v in found.items()}
        if case.rendezvous:
            self.network = Rendezvous(self.network)
        self.send, self.receive = self.network.send, self.network.receive
        self.memory_queue, self.memory_busy = defaultdict(deque), set()
        self.files = {}
        self.all = [Npu(self, rank, self.algorithm(path)) for rank, path in enumerate(case.workload)]

    def run(self):
        """(finish, exposed communication) of every NPU, ns."""
        for npu in self.all:
            npu.issue()
        self.clock.run()
        if any(npu.finish is None for npu in self.all):
            raise DoesNotFinish("unfinished")
        return tuple(n.finish for n in self.all), tuple(n.finish - n.compute for n in self.all)

    def algorithm(self, path):
        path = str(path)
        if path not in self.files:
            self.files[path] = nodes_of(path)
        return self.files[path]

    def runner(self, npu, stream, phase):
        if hasattr(phase, "custom"):
            return Custom(npu, stream, *phase.custom)
        return {"ring": Ring, "direct": Direct, "halvingDoubling": HalvingDoubling, "doubleBinaryTree": Tree}[
            phase.algorithm
        ](npu, stream, phase)

    def phases(self, npu, kind, size, members, group):
        """What one chunk does, dimension by dimension."""
        words = self.system[f"{KEYS[kind]}-implementation"]
        common = {"delay": self.delay, "local": False}
        if group:
            word, window = parsed(words[0] if len(words) == 1 else "ring")
            common = {"delay": 10, "local": True}
            if word == "doubleBinaryTree":
                raise DoesNotFinish("a tree over a ring")
            dims = [(0, list(members), word, window)]
        elif words[0].startswith("one"):
            dims = [(0, list(range(self.npus)), *parsed(words[0]))]
        else:
            dims, stride = [], 1
            for d, n in enumerate(self.sizes):
                base = npu.id - npu.id // stride % n * stride
                dims.append((d, [base + a * stride for a in range(n)], *parsed(words[d])))
                stride *= n
        dims = [d for d in dims if len(d[1]) > 1]
        baseline = self.system.get("collective-optimization") == "baseline"
        found = []

        def visit(dim, what, part):
            nonlocal size
            d, line, word, window = dim
            q, half = self.queues, self.queues // 2
            if q == 1:
                turn, direction = 0, -1 if part == "last" else 1
            elif part == "any":
                turn = npu.turns[d] % q
                npu.turns[d] += 1
                direction = 1 if turn < half else -1
            elif part == "first":
                turn, direction = npu.turns_first[d] % half, 1
                npu.turns_first[d] += 1
            else:
                turn, direction = half + npu.turns_last[d] % (q - half), -1
                npu.turns_last[d] += 1
            tree = 0
            if word == "doubleBinaryTree":
                # Every type of collective has logical dimensions of its own.
                tree = npu.trees[kind, d] % 2
                npu.trees[kind, d] += 1
            found.append(
                Phase(
                    queue=(d, turn), direction=direction, members=line, algorithm=word, window=window, kind=what,
                    size=size, tree=tree, **common,
                )
            )  # fmt: skip
            if word != "doubleBinaryTree":
                size = {RS: size // len(line), AG: size * len(line)}.get(what, size)

        if kind != AR or baseline:
            for dim in dims[::-1] if kind == AG else dims:
                visit(dim, kind, "any")
        else:
            for dim in dims[:-1]:
                visit(dim, RS, "first")
            visit(dims[-1], AR, "first")
            for dim in dims[-2::-1]:
                visit(dim, AG, "last")
        return found

    def remote(self, npu, size, done):
        kind = self.memory.get("memory-type", "NO_MEMORY_EXPANSION")
        if kind == "NO_MEMORY_EXPANSION":
            raise DoesNotFinish(kind)
        time = int(self.memory["remote-mem-latency"] + size // self.memory["remote-mem-bw"])
        if kind == "PER_NPU_MEMORY_EXPANSION":
            npu.later(time, done)
            return
        key = npu.id // self.memory["num-npus-per-node"] if kind == "PER_NODE_MEMORY_EXPANSION" else 0
        self.memory_queue[key].append((npu, time, done))
        self.serve_memory(key)

    def serve_memory(self, key):
        if key in self.memory_busy or not self.memory_queue[key]:
            return
        self.memory_busy.add(key)
        npu, time, done = self.memory_queue[key].popleft()

        def over():
            self.memory_busy.discard(key)
            self.serve_memory(key)
            done()

        npu.later(time, over)


class Rendezvous:
    """The receiver asks first, with 8192 bytes."""

    def __init__(self, network):
        self.network = network

    def send(self, src, dst, size, tag, done):
        self.network.receive(dst, src, 8192, ("rts", tag), lambda: self.network.send(src, dst, size, tag, done))

    def receive(self, src, dst, size, tag, done):
        self.network.send(dst, src, 8192, ("rts", tag), lambda: None)
        self.network.receive(src, dst, size, tag, done)


def parsed(word):
    """(algorithm, window)."""
    if word.startswith("one"):
        word = word[3].lower() + word[4:]
    if word.startswith("direct"):
        return "direct", int(word[6:] or 0)
    return word, 0


def nodes_of(path):
    """Nodes of an ET as dicts by id."""
    trace = read_trace(path)
    found = {}
    for row in range(len(trace)):
        node = trace.node(row)
        get = partial(trace.attribute, row)
        found[int(node.id)] = {
            "type": NodeType(node.type).name,
            "deps": [int(d) for d in (*node.data_deps, *node.ctrl_deps)],
            "micros": int(node.duration_micros),
            "cpu": bool(get("is_cpu_op", False)),
            "ops": int(get("num_ops", 0)),
            "tensor": int(get("tensor_size", 0)),
            "comm": get("comm_type"),
            "size": int(get("comm_size", 0)),
            "src": get("comm_src"),
            "dst": get("comm_dst"),
            "tag": get("comm_tag"),
            "group": get("pg_name", "") or "",
        }
    return found
