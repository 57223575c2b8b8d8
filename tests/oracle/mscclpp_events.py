"""Events of a run of an MSCCL++ plan (the raw JSON object), thread by thread, and what must come before each.

Written from the description of the format alone: it shares nothing with the product. Every thread of every block does
its operations. Which wait sees which signal is fixed here; data are not moved. Each access to data becomes an *event*,
and for each event the set of events that must come before it is kept: the earlier ones of its thread; those before a
nop, a barrier, a release that was acquired; the packets that it reads; the earlier requests of its port channel. A
relaxed signal adds nothing but "this kernel has begun".

Beginning and end of a kernel are events, too: at its beginning a rank's input and output belong to someone else and are
overwritten; at its end the caller reads and overwrites both at once. A packet is ordered after the data that it is made
of, not after other stores of its thread.

Elements are as in the executor: of a range of bytes element e (16 bytes; 8 for packets) is done by thread e mod N.
"""

from __future__ import annotations

from collections import defaultdict

from oracle.mscclpp_cells import Addresses, digest, positions

#: Bytes of an element, and the formats (r: raw data, p: packets) of the first operand and of the others, on both sides.
_DATA = {
    **dict.fromkeys(("copy", "put", "get", "re", "res", "rre", "rres", "glres", "gstore"), (16, "rr", "rr")),
    **dict.fromkeys(("ppkt", "cpkt"), (8, "rr", "pp")),
    **dict.fromkeys(("rppkt", "gstorepkt"), (8, "pp", "pp")),
    **dict.fromkeys(("repkt", "respkt", "recpkt", "recspkt"), (8, "rp", "rp")),
    "upkt": (8, "pp", "rr"),
}
_PAIRWISE = ("copy", "put", "get", "ppkt", "cpkt", "upkt")
#: Requests of port channels: signal after the put, wait until the put is done.
_REQUESTS = {"put": (False, False), "pws": (True, False), "pwsf": (True, True), "ppkt": (False, False)}


class Thread:
    """`last`: events that the next must come after; `begun`: bits of the kernels known to have begun."""

    __slots__ = ("begun", "index", "last", "step", "waiting")

    def __init__(self, index):
        self.index, self.step, self.waiting = index, 0, False
        self.last, self.begun = [], 0


class Block:
    def __init__(self, rank, number, description, shape):
        self.rank, self.number, self.description = rank, number, description
        self.threads = [Thread(index) for index in range(shape.threads)]
        self.arrived = 0
        self.steps, self.elements = [], {}
        for index, op in enumerate(description["ops"]):
            if op["name"] != "pipeline":
                self.add(op, index, None)
                continue
            loop = op["iter_context"]
            for start in range(0, loop["num_chunks"] * shape.chunk, shape.iteration):
                for inner in op["ops"]:
                    self.add(inner, index, (start, shape.iteration))

    def add(self, op, index, window):
        if op["name"] == "rppkt" and op.get("channel_type") == "port":
            for name in ("read packets", "nop", "ppkt"):
                self.steps.append(({**op, "name": name}, index, window))
        else:
            self.steps.append((op, index, window))


class Execution:
    """Events of one or more calls of a plan, in one order of blocks (`rng`: any; None: as numbered).

    `lenient`: relaxed signals and waits order data, too.
    """

    def __init__(self, plan, shape, calls=1, rng=None, lenient=False):
        self.plan, self.shape, self.addresses = plan, shape, Addresses(plan, shape)
        self.gpus, self.ranks, self.calls = plan["gpus"], len(plan["gpus"]), calls
        self.relaxed = () if lenient else ("rlxsignal", "rlxwait")
        self.before, self.moves, self.call_of, self.labels = [], [], [], []
        self.log = defaultdict(list)  # cell: (event, whether it writes)
        self.begins, self.ends, self.captures = {}, {}, {}
        self.signals, self.seen, self.chains = defaultdict(list), defaultdict(int), defaultdict(list)
        self.releases, self.taken, self.barriers = defaultdict(list), defaultdict(int), defaultdict(list)
        self.writers, self.users = defaultdict(list), defaultdict(set)
        self.running = {rank: self.start(rank, 0) for rank in range(self.ranks)}
        self.stuck = self.control(rng)

    # Events

    def event(self, after, moves=(), label=None, call=0):
        """A new event after others, with moves (sources, destinations, constant, raw), of which values are sums."""
        before = 0
        for other in after:
            before |= self.before[other] | 1 << other
        number = len(self.before)
        self.before.append(before)
        self.moves.append(moves)
        self.labels.append(label)
        self.call_of.append(call)
        for sources, destinations, _, _ in moves:
            for cell in sources:
                self.log[cell].append((number, False))
            for cell in destinations:
                self.log[cell].append((number, True))
                if cell[1] == "p":
                    self.writers[call, cell].append(number)
                    if len(self.writers[call, cell]) == 2:
                        self.users["packets", cell] |= {0, 1}
        return number

    def data(self, block, thread, moves, after):
        """An event of a block that moves data: not before a peer's kernel that is known to have begun, has begun."""
        call, touched = self.running[block.rank][0], {cell[0] for move in moves for cell in (*move[0], *move[1])}
        begun = [self.begins[rank, call] for rank in sorted(touched) if thread.begun >> (call * self.ranks + rank) & 1]
        label = (block.rank, block.number, block.steps[thread.step][1])
        return self.event([*after, *begun], moves, label, call)

    def makings(self, thread, moves):
        """Events ordered before a thread that touch the cells of a packet, or of what it is made of."""
        earlier = 0
        for event in thread.last:
            earlier |= self.before[event] | 1 << event
        cells = {cell: False for move in moves for cell in move[0]}
        cells |= {cell: True for move in moves for cell in move[1]}
        return [
            event
            for cell, writes in cells.items()
            for event, wrote in self.log[cell]
            if earlier >> event & 1 and (writes or wrote)
        ]

    def start(self, rank, call):
        """Call a rank's kernel: its input is there from now on; the former contents of its output are not."""
        cells = {cell: digest("former", call, cell) for cell in self.addresses.buffer(rank, "o")}
        cells |= {c: digest("input", rank, at, call) for at, c in enumerate(self.addresses.buffer(rank, "i"))}
        after = [self.ends[rank, call - 1]] if call else []
        begin = self.event(after, [((), (cell,), value, False) for cell, value in cells.items()], (rank, "begin"))
        self.begins[rank, call] = begin
        blocks = [Block(rank, n, block, self.shape) for n, block in enumerate(self.gpus[rank]["threadblocks"])]
        for thread in (thread for block in blocks for thread in block.threads):
            thread.last, thread.begun = [begin], 1 << (call * self.ranks + rank)
        return call, blocks, cells

    def finish(self, rank):
        """End a rank's kernel: the caller reads input and output, and overwrites them. Call it again if need be."""
        call, blocks, cells = self.running[rank]
        after = {event for block in blocks for thread in block.threads for event in thread.last}
        moves = [((), (cell,), digest("later", call, cell), False) for cell in cells]
        self.ends[rank, call] = end = self.event([self.begins[rank, call], *sorted(after)], moves, (rank, "end"))
        self.captures[end] = list(cells)
        if call + 1 < self.calls:
            self.running[rank] = self.start(rank, call + 1)
        else:
            del self.running[rank]

    # Control

    def control(self, rng):
        """Let threads go on as long as any can; where they stay if they do not end."""
        moved = True
        while moved and self.running:
            moved = False
            blocks = [block for rank in sorted(self.running) for block in self.running[rank][1]]
            if rng:
                rng.shuffle(blocks)
            for block in blocks:
                for thread in block.threads:
                    while thread.step < len(block.steps) and self.advance(block, thread):
                        moved = True
            for rank, (_, blocks, _) in sorted(self.running.items()):
                if all(thread.step == len(block.steps) for block in blocks for thread in block.threads):
                    self.finish(rank)
                    moved = True
        places = {
            (block.rank, block.number, block.steps[thread.step][1])
            for _, blocks, _ in self.running.values()
            for block in blocks
            for thread in block.threads
            if thread.step < len(block.steps)
        }
        return sorted(places)

    def advance(self, block, thread):
        """Do the next operation of a thread; False if it has to wait."""
        op, _, window = block.steps[thread.step]
        name, channel = op["name"], op.get("channel_type")
        if name in ("nop", "barrier"):
            return self.meet(block, thread, op)
        if channel == "port" and name in _REQUESTS:
            self.request(block, thread, op, window)
        elif name in _DATA or name == "read packets":
            if not self.move(block, thread, op, window):
                return False
        elif name in ("sem_acquire", "sem_release"):
            ids = op["semaphore_ids"]
            if thread.index < len(ids) and not self.semaphore(block, thread, name, (block.rank, ids[thread.index])):
                return False
        elif name in ("signal", "rlxsignal", "wait", "rlxwait", "flush"):
            ids = op["channel_ids"]
            if thread.index < len(ids):
                own, peer = self.channel(block, channel, ids[thread.index])
                if name == "flush":
                    thread.last = [*thread.last, *self.chains[own]]
                elif name.endswith("signal"):
                    self.signal(block, thread, own, peer, channel == "memory" and name in self.relaxed)
                elif not self.wait(block, thread, own, channel == "memory" and name in self.relaxed):
                    return False
        else:
            raise KeyError(name)
        thread.step += 1
        return True

    def meet(self, block, thread, op):
        """nop, and barrier once the block's threads have met."""
        if thread.waiting:
            return False
        thread.waiting = True
        block.arrived += 1
        if block.arrived < len(block.threads):
            return False
        blocks = [block]
        if op["name"] == "barrier":
            blocks = self.barriers[block.rank, op["barrier_id"]]
            blocks.append(block)
            if len(blocks) < op["num_threadblocks"]:
                return False
            self.barriers[block.rank, op["barrier_id"]] = []
        threads = [thread for block in blocks for thread in block.threads]
        joined = self.event({event for thread in threads for event in thread.last})
        begun = 0
        for other in threads:
            begun |= other.begun
        for other in threads:
            other.last, other.begun, other.waiting = [joined], begun, False
            other.step += 1
        for met in blocks:
            met.arrived = 0
        return True

    def channel(self, block, kind, position):
        """Names of both directions of a channel: (the side that receives, its peer, type, number)."""
        number = positions(block.description["channels"], "channel_type", kind, "channel_ids")[position]
        peers = [p for entry in self.gpus[block.rank]["channels"] if entry["channel_type"] == kind
                 for p in entry["connected_to"]]  # fmt: skip
        peer = peers[number]
        ordinal = peers[:number].count(peer)
        return (block.rank, peer, kind, ordinal), (peer, block.rank, kind, ordinal)

    def signal(self, block, thread, own, peer, relaxed):
        self.users["signal", peer].add((block.rank, block.number))
        event = None
        if not relaxed:
            event = self.event([*thread.last, *self.chains[own]])
            if own[2] == "port":
                self.chains[own] = [event]
            else:
                thread.last = [event]
        self.signals[peer].append((event, thread.begun))

    def wait(self, block, thread, own, relaxed):
        self.users["wait", own].add((block.rank, block.number))
        count = self.seen[own] + 1
        if len(self.signals[own]) < count:
            return False
        self.seen[own] = count
        for event, begun in self.signals[own][:count]:
            thread.begun |= begun
            if not relaxed and event is not None:
                thread.last = [*thread.last, event]
        thread.last = [self.event(thread.last)]
        return True

    def semaphore(self, block, thread, name, key):
        self.users[name, key].add((block.rank, block.number))
        if name == "sem_release":
            thread.last = [self.event(thread.last)]
            self.releases[key].append((thread.last[0], thread.begun))
            return True
        free = self.gpus[key[0]]["semaphores"][key[1]]["init_value"]
        if free + len(self.releases[key]) <= self.taken[key]:
            return False
        self.taken[key] += 1
        seen = self.releases[key][: max(0, self.taken[key] - free)]
        thread.last = [self.event([*thread.last, *(event for event, _ in seen)])]
        for _, begun in seen:
            thread.begun |= begun
        return True

    # Data

    def ranges(self, block, op, reference, kind, window):
        """Cells of an operand: one list for every rank that it stands for."""
        start, size = 0, reference["size"] * self.shape.chunk
        if "tbg_info" in op:
            share, group = op["tbg_info"]["tb_id"], op["tbg_info"]["tbg_size"]
            each, rest = divmod(size, group)
            start, size = share * each + min(share, rest), each + (share < rest)
        if window:
            start, size = start + window[0], max(0, min(window[1], size - window[0]))
        if "switch_channel_id" in reference:
            groups = [(entry.get("buffer_type") or entry["buff"], group["ranks"])
                      for entry in self.gpus[block.rank]["channels"] if entry["channel_type"] == "switch"
                      for group in entry["rank_groups"]]  # fmt: skip
            numbers = positions(block.description["channels"], "channel_type", "switch", "channel_ids")
            buffer, ranks = groups[numbers[reference["switch_channel_id"]]]
        elif "buffer_id" in reference:
            refs = block.description["remote_buffer_refs"]
            numbers = positions(refs, "access_channel_type", op["channel_type"], "remote_buffer_ids")
            remote = self.gpus[block.rank]["remote_buffers"][numbers[reference["buffer_id"]]]
            buffer, ranks = remote["type"], [remote["rank"]]
        else:
            buffer, ranks = reference["type"], [block.rank]
        at = reference["index"] * self.shape.chunk + start
        if buffer == "s" and self.shape.wrap:
            at = reference["index"] * self.shape.wrap + start % self.shape.wrap
        half = 0
        if buffer == "s":
            buffer = {"r": "s", "p": "p"}[kind]
            if self.plan.get("use_double_scratch_buffer"):
                half = self.running[block.rank][0] % 2 << 40
        cells = range(2 * at, 2 * (at + size))
        return [[self.addresses.cell(rank, buffer, half + cell) for cell in cells] for rank in ranks]

    def rows(self, block, op, window, formats):
        """Rows of (lists of cells read, lists of cells written)."""
        sources, destinations = op.get("src_buff", []), op.get("dst_buff", [])
        rows = [(sources, destinations)]
        if op["name"] in (*_PAIRWISE, *_REQUESTS):
            if len(sources) == 1:
                sources = sources * len(destinations)
            rows = [([s], [d]) for s, d in zip(sources, destinations, strict=True)]
        for row in rows[: 1 if op["name"] == "copy" else None]:
            sides = []
            for references, (first, others) in zip(row, formats, strict=True):
                cells = [self.ranges(block, op, r, others if n else first, window) for n, r in enumerate(references)]
                sides.append([line for lines in cells for line in lines])
            yield zip(zip(*sides[0], strict=True), zip(*sides[1], strict=True), strict=True)

    def move(self, block, thread, op, window):
        """Do a thread's elements of an operation; False if a packet that it reads was not sent."""
        polls = op["name"] == "read packets"
        if thread.step not in block.elements:
            unit, *formats = _DATA["rppkt" if polls else op["name"]]
            shares = block.elements[thread.step] = defaultdict(list)
            for row in self.rows(block, op, window, formats):
                moves = [(sources, () if polls else written, 0, False) for sources, written in row]
                for element, at in enumerate(range(0, len(moves), unit // 8)):
                    shares[element % len(block.threads)].append(moves[at : at + unit // 8])
        call, share = self.running[block.rank][0], block.elements[thread.step].get(thread.index, ())
        received = [[(call, cell) for move in moves for cell in move[0] if cell[1] == "p"] for moves in share]
        if any(packet not in self.writers for packets in received for packet in packets):
            return False
        for moves, packets in zip(share, received, strict=True):
            sent = [self.writers[packet][0] for packet in packets]
            if any(cell[1] == "p" for move in moves for cell in move[1]):
                thread.last = [*thread.last, self.data(block, thread, moves, [*self.makings(thread, moves), *sent])]
            else:
                thread.last = [self.data(block, thread, moves, [*thread.last, *sent])]
        return True

    def request(self, block, thread, op, window):
        """Thread i asks the proxy for pair i: it reads and writes later, after the channel's earlier requests."""
        raw = op["name"] == "ppkt"
        rows = list(self.rows(block, op, window, ("pp", "pp") if raw else ("rr", "rr")))
        if thread.index >= len(rows):
            return
        own, peer = self.channel(block, "port", op["channel_ids"][thread.index])
        moves = [(sources, written, 0, raw) for sources, written in rows[thread.index]]
        put = self.data(block, thread, moves, [*thread.last, *self.chains[own]])
        self.chains[own] = [put]
        signals, flushes = _REQUESTS[op["name"]]
        if signals:
            self.signal(block, thread, own, peer, False)
        if flushes:
            thread.last = [*thread.last, *self.chains[own]]
