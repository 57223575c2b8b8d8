"""An independent verifier of MSCCL-IR programs, straight from the XML text: naive, slow, sharing nothing.

It runs the program: every thread block is a sequential interpreter over bounded FIFOs, polled until nothing moves.
Values are multisets, added for real under several random schedules; happens-before is a full transitive closure.
"""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, deque
from dataclasses import dataclass, field

SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
RECEIVES, SENDS = ("r", "rcs", "rrc", "rrs", "rrcs"), ("s", "rcs", "rrs", "rrcs")
READS, WRITES = ("s", "rrc", "rrs", "rrcs", "cpy", "re"), ("r", "rcs", "rrc", "rrcs", "cpy", "re")
COLLECTIVES = {"allreduce", "allgather", "alltoall", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"}
SHARDED = ("allgather", "alltoall", "reduce_scatter", "gather", "scatter")


@dataclass
class Judgement:
    """What the oracle finds; None where it cannot be said.

    `wrong_cells` has one count per schedule. `min_slots` is None where no number of slots suffices.
    """

    problems: list[str] = field(default_factory=list)
    collective: str = ""
    slots: int | None = None
    ends: bool | None = None  # with unbounded slots
    min_slots: int | None = None
    min_slots_large: int | None = None
    wrong_cells: tuple[int, ...] | None = None
    cells: int | None = None
    races: int | None = None
    race_cells: int | None = None
    order_consistent: bool | None = None

    @property
    def well_formed(self):
        return not self.problems

    @property
    def terminates(self):
        return None if self.ends is None else self.min_slots is not None and self.min_slots <= self.slots

    @property
    def correct(self):
        return None if self.wrong_cells is None else not any(self.wrong_cells)

    @property
    def fine(self):
        """All four verdicts are good."""
        return bool(self.well_formed and self.terminates and self.correct and self.races == 0)


class Op:
    """A real step: nops have become dependencies of the next one."""

    def __init__(self, tb, index, step):
        self.tb, self.index, self.type = tb, index, step["type"]
        self.src, self.dst = (step["srcbuf"], step["srcoff"]), (step["dstbuf"], step["dstoff"])
        self.count = step["cnt"]
        self.waits = []  # ops, or None for a wait that nothing ends


class Tb:
    def __init__(self, rank, attributes):
        self.rank, self.id = rank, attributes["id"]
        self.send, self.recv, self.chan = attributes["send"], attributes["recv"], attributes["chan"]
        self.steps, self.ops = [], []


class Program:
    """The XML as objects, with everything that makes it ill-formed in `problems`."""

    def __init__(self, text):
        self.problems, self.runnable = [], False
        try:
            begin = text.index("<algo")
            end = text.find("</algo>", begin)
            root = ElementTree.fromstring(text[begin : end + 7] if end >= 0 else text[begin:])
            self.read(root)
        except (ValueError, KeyError, ElementTree.ParseError) as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def need(self, condition, sentence):
        if not condition:
            self.problems.append(sentence)
        return bool(condition)

    def read(self, root):
        get = root.attrib
        self.name, self.proto = get.get("name", ""), get["proto"]
        self.n, self.chunks = int(get["ngpus"]), int(get["nchunksperloop"])
        self.inplace, channels = int(get["inplace"]) == 1, int(get["nchannels"])
        self.coll = {"reducescatter": "reduce_scatter"}.get(get["coll"], get["coll"])
        usable = self.need(self.proto in SLOTS, "proto")
        usable &= self.need(self.coll in COLLECTIVES or self.coll == "custom", "coll")
        usable &= self.need(self.n >= 1 and self.chunks >= 1, "ngpus, nchunksperloop")
        self.by_name()
        if self.coll in SHARDED:
            self.need(self.chunks % self.n == 0, "nchunksperloop is no multiple of ngpus")
        self.per = self.chunks // self.n
        self.tbs, self.sizes = [], {}
        ranks = []
        for gpu in root.iter("gpu"):
            rank = int(gpu.attrib["id"])
            ranks.append(rank)
            for letter in "ios":
                self.sizes[rank, letter] = int(gpu.attrib[letter + "_chunks"])
            ids = []
            for element in gpu.iter("tb"):
                tb = Tb(rank, {key: int(element.attrib[key]) for key in ("id", "send", "recv", "chan")})
                ids.append(tb.id)
                for step in element.iter("step"):
                    numbers = ("s", "srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
                    tb.steps.append({**step.attrib, **{key: int(step.attrib[key]) for key in numbers}})
                self.tbs.append(tb)
            usable &= self.need(sorted(ids) == list(range(len(ids))), f"thread-block ids of gpu {rank}")
        usable &= self.need(sorted(ranks) == list(range(self.n)), "gpu ids")
        if not usable:
            return
        self.need(all(tb.chan >= 0 for tb in self.tbs), "negative channel")
        self.need(all(tb.chan < channels for tb in self.tbs), "channel beyond nchannels")
        self.runnable = not [tb for tb in self.tbs if not self.check(tb)]
        if self.runnable:
            self.link()
            self.connect()

    def by_name(self):
        """The collective of a custom program that says it in its name."""
        self.root = 0
        said = re.match(r"(Broadcast|Reduce|Gather|Scatter)\(n=(\d+),root=(\d+)\)", self.name)
        if self.coll == "custom" and said:
            self.coll, self.root = said[1].lower(), int(said[3])
        elif self.coll == "custom" and re.match(r"alltonext-(forward|backward)", self.name):
            self.coll = re.match(r"alltonext-(forward|backward)", self.name)[0]

    def check(self, tb):
        """One thread block by itself; whether it can be run at all."""
        usable = True
        for peer in (tb.send, tb.recv):
            usable &= self.need(-1 <= peer < self.n and peer != tb.rank, f"peer {peer} of gpu {tb.rank} tb {tb.id}")
        self.need(len(tb.steps) <= 256, "more than 256 steps")
        for index, step in enumerate(tb.steps):
            place, kind, count = f"gpu {tb.rank} tb {tb.id} step {index}", step["type"], step["cnt"]
            self.need(step["s"] == index, f"{place}: s")
            self.need(step["hasdep"] in (0, 1), f"{place}: hasdep")
            self.need(min(step[key] for key in ("srcoff", "dstoff", "depid", "deps")) >= -1, f"{place}: below -1")
            if not self.need(kind in READS + WRITES + ("nop",), f"{place}: type"):
                usable = False
                continue
            usable &= self.need(kind not in SENDS or tb.send >= 0, f"{place}: no send peer")
            usable &= self.need(kind not in RECEIVES or tb.recv >= 0, f"{place}: no recv peer")
            usable &= self.need(0 <= count <= 71, f"{place}: cnt")
            if kind != "nop":
                usable &= self.need(count > 0, f"{place}: cnt 0")
            if kind in READS:
                usable &= self.inside(tb.rank, step["srcbuf"], step["srcoff"], count, place)
            if kind in WRITES:
                usable &= self.inside(tb.rank, step["dstbuf"], step["dstoff"], count, place)
        return usable

    def inside(self, rank, buffer, offset, count, place):
        """Every chunk must be declared, by this name or, where buffers alias, by the other."""
        if (rank, buffer) not in self.sizes or offset < 0:
            return self.need(False, f"{place}: buffer or offset")
        cells = {self.cell(rank, letter, k) for letter in "ios" for k in range(self.sizes[rank, letter])}
        there = all(self.cell(rank, buffer, offset + k) in cells for k in range(count))
        self.need(there, f"{place}: beyond the buffer")
        return True

    def link(self):
        """Ops of the steps, and what they wait for."""
        self.ops = []
        at = {}
        for tb in self.tbs:
            for index, step in enumerate(tb.steps):
                if step["type"] != "nop":
                    op = Op(tb, index, step)
                    tb.ops.append(op)
                    self.ops.append(op)
                    at[tb.rank, tb.id, index] = op
        blocks = {(tb.rank, tb.id): tb for tb in self.tbs}
        for tb in self.tbs:
            waiting = []
            for index, step in enumerate(tb.steps):
                place = f"gpu {tb.rank} tb {tb.id} step {index}"
                if (step["depid"] < 0) != (step["deps"] < 0):
                    self.problems.append(f"{place}: half a dependency")
                nop = step["type"] == "nop"
                if waiting and not nop and step["depid"] < 0:
                    self.problems.append(f"{place}: nops before a step without dependency")
                if step["depid"] >= 0:
                    waiting.append(self.wait(tb.rank, step, blocks, at, place))
                if not nop:
                    at[tb.rank, tb.id, index].waits, waiting = waiting, []

    def wait(self, rank, step, blocks, at, place):
        other = blocks.get((rank, step["depid"]))
        if other is None or not 0 <= step["deps"] < len(other.steps):
            self.problems.append(f"{place}: waits for what does not exist")
            return None
        target = other.steps[step["deps"]]
        if target["type"] == "nop" or target["hasdep"] != 1:
            self.problems.append(f"{place}: waits for what does not publish")
        for index in range(step["deps"], len(other.steps)):
            if other.steps[index]["type"] != "nop" and other.steps[index]["hasdep"] == 1:
                return at[rank, other.id, index]
        return None

    def connect(self):
        """Both sides of every connection, which must agree."""
        self.senders, self.receivers = {}, {}
        for tb in self.tbs:
            for table, key, there in (
                (self.senders, (tb.rank, tb.send, tb.chan), tb.send >= 0),
                (self.receivers, (tb.recv, tb.rank, tb.chan), tb.recv >= 0),
            ):
                if there:
                    if not self.need(key not in table, f"two thread blocks on one side of connection {key}"):
                        self.runnable = False
                    table[key] = tb
        for key in {*self.senders, *self.receivers}:
            gives = [op.count for op in self.senders[key].ops if op.type in SENDS] if key in self.senders else []
            takes = [op.count for op in self.receivers[key].ops if op.type in RECEIVES] if key in self.receivers else []
            self.need(len(gives) == len(takes), f"{len(gives)} sends, {len(takes)} receives on {key}")
            if any(a != b for a, b in zip(gives, takes, strict=False)):
                self.problems.append(f"counts differ on {key}")
                self.runnable = False

    def cell(self, rank, buffer, offset):
        """The place in memory; aliases of calls in place have one name."""
        if self.inplace and buffer == "o" and self.coll in ("reduce_scatter", "scatter"):
            return rank, "i", rank * self.per + offset
        if self.inplace and buffer == "i" and self.coll in ("allgather", "gather"):
            return rank, "o", rank * self.per + offset
        if self.inplace and buffer == "o" and self.coll not in ("allgather", "gather"):
            return rank, "i", offset
        return rank, buffer, offset

    def touched(self, op):
        """Cells that an op reads, and those that it writes."""
        rank = op.tb.rank
        src = [self.cell(rank, op.src[0], op.src[1] + j) for j in range(op.count)] if op.type in READS else []
        dst = [self.cell(rank, op.dst[0], op.dst[1] + j) for j in range(op.count)] if op.type in WRITES else []
        return (src + dst if op.type == "re" else src), dst

    def inputs(self):
        """Cell -> (rank, chunk) at the start."""
        size = self.per if self.coll in ("allgather", "gather") else self.chunks
        only = (self.root,) if self.coll in ("broadcast", "scatter") else range(self.n)
        return {self.cell(r, "i", k): (r, k) for r in only for k in range(size)}

    def outputs(self):
        """Cell -> Counter that it must hold at the end; None where nobody says."""
        n, c, per, coll = self.n, self.chunks, self.per, self.coll

        def everywhere(value, size=c, ranks=range(n)):
            return {self.cell(r, "o", k): Counter(value(r, k)) for r in ranks for k in range(size)}

        if coll == "allreduce":
            return everywhere(lambda r, k: [(q, k) for q in range(n)])
        if coll == "reduce":
            return everywhere(lambda r, k: [(q, k) for q in range(n)], ranks=[self.root])
        if coll == "reduce_scatter":
            return everywhere(lambda r, k: [(q, r * per + k) for q in range(n)], per)
        if coll in ("allgather", "gather"):
            ranks = range(n) if coll == "allgather" else [self.root]
            return everywhere(lambda r, k: [(k // max(1, per), k % max(1, per))], ranks=ranks)
        if coll == "alltoall":
            return everywhere(lambda r, k: [(k // per, r * per + k % per)])
        if coll == "broadcast":
            return everywhere(lambda r, k: [(self.root, k)])
        if coll == "scatter":
            return everywhere(lambda r, k: [(self.root, r * per + k)], per)
        if coll == "alltonext-forward":
            return everywhere(lambda r, k: [(r - 1, k)], ranks=range(1, n))
        if coll == "alltonext-backward":
            return everywhere(lambda r, k: [(r + 1, k)], ranks=range(n - 1))
        return None


class Run:
    """One execution; `move(tb)` does the next message of a thread block's next op, if it can."""

    def __init__(self, program, slots, *, large=False, values=False):
        self.program, self.slots, self.large = program, slots, large
        self.fifo = {key: deque() for key in {*program.senders, *program.receivers}}
        self.pc = dict.fromkeys(program.tbs, 0)
        self.part = dict.fromkeys(program.tbs, 0)
        self.done = set()
        self.memory = {c: (Counter([v]), v) for c, v in program.inputs().items()} if values else None

    def move(self, tb):
        at = self.pc[tb]
        if at == len(tb.ops):
            return False
        op = tb.ops[at]
        if any(wait not in self.done for wait in op.waits):
            return False
        source = self.fifo[tb.recv, tb.rank, tb.chan] if op.type in RECEIVES else None
        target = self.fifo[tb.rank, tb.send, tb.chan] if op.type in SENDS else None
        if source is not None and not source:
            return False
        if target is not None and len(target) >= self.slots:
            return False
        received = source.popleft() if source is not None else None
        data = self.work(op, received) if self.memory is not None else None
        if target is not None:
            target.append(data)
        self.part[tb] += 1
        if self.part[tb] == (op.count if self.large and (source is not None or target is not None) else 1):
            self.part[tb] = 0
            self.pc[tb] += 1
            self.done.add(op)
        return True

    def work(self, op, received):
        rank = op.tb.rank
        src = [self.program.cell(rank, op.src[0], op.src[1] + j) for j in range(op.count)]
        dst = [self.program.cell(rank, op.dst[0], op.dst[1] + j) for j in range(op.count)]
        data = received
        if op.type in READS:
            local = [self.look(cell) for cell in src]
            data = local if received is None else [self.add(a, b) for a, b in zip(received, local, strict=True)]
        if op.type == "re":
            data = [self.add(self.look(cell), value) for cell, value in zip(dst, data, strict=True)]
        if op.type in WRITES:
            self.memory.update(zip(dst, data, strict=True))
        return data

    def look(self, cell):
        """A cell's multiset and expression tree; nobody knows what is in one that nobody wrote."""
        return self.memory.get(cell, (Counter(["undefined"]), "undefined"))

    def add(self, a, b):
        left, right = sorted((a[1], b[1]), key=repr)
        return a[0] + b[0], "undefined" if "undefined" in (left, right) else Tree.of(left, right)

    def poll(self, rng=None):
        """Until nothing moves; whether everything is done and every message taken."""
        order, moved = list(self.pc), True
        while moved:
            moved = False
            if rng:
                rng.shuffle(order)
            for tb in order:
                for _ in range(rng.choice((1, 1, 2, 5)) if rng else 10**9):
                    if not self.move(tb):
                        break
                    moved = True
        return len(self.done) == len(self.program.ops)


class Tree:
    """A sum of two expressions, one object per different sum, so that equal trees are the same object."""

    known: dict = {}  # noqa: RUF012

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    @classmethod
    def of(cls, left, right):
        if (left, right) not in cls.known:
            cls.known[left, right] = cls(f"+{len(cls.known)}")
        return cls.known[left, right]


def smallest_slots(program, *, large=False):
    """The least number of slots with which the program ends, upwards from 1; None if there is none."""
    load = Counter()
    for op in program.ops:
        if op.type in SENDS:
            load[op.tb.send, op.tb.rank, op.tb.chan] += op.count if large else 1
    most = max(load.values(), default=1)
    if not Run(program, most, large=large).poll():
        return None
    return next(s for s in range(1, most + 1) if Run(program, s, large=large).poll())


def ancestors(program):
    """Op -> bits of all ops that happen before it, without the edges that slots add; None with a cycle."""
    number = {op: g for g, op in enumerate(program.ops)}
    before = {op: {w for w in op.waits if w is not op} for op in program.ops}
    for tb in program.tbs:
        for a, b in zip(tb.ops, tb.ops[1:], strict=False):
            before[b].add(a)
    for key in program.senders.keys() & program.receivers.keys():
        sends = [op for op in program.senders[key].ops if op.type in SENDS]
        receives = [op for op in program.receivers[key].ops if op.type in RECEIVES]
        for a, b in zip(sends, receives, strict=False):
            before[b].add(a)
    bits, left = {}, list(program.ops)
    while left:
        rest = []
        for op in left:
            if all(p in bits for p in before[op]):
                bits[op] = 0
                for p in before[op]:
                    bits[op] |= bits[p] | 1 << number[p]
            else:
                rest.append(op)
        if len(rest) == len(left):
            return None
        left = rest
    return bits


def races(program, bits):
    """Unordered pairs of ops of different thread blocks on a common cell, one of them writing; and cells of them."""
    number = {op: g for g, op in enumerate(program.ops)}
    reads, writes = {}, {}
    for op in program.ops:
        read, written = program.touched(op)
        for cell in read:
            reads.setdefault(cell, set()).add(op)
        for cell in written:
            writes.setdefault(cell, set()).add(op)
    pairs = Counter()
    for cell, writers in writes.items():
        for pair in {frozenset((w, a)) for w in writers for a in writers | reads.get(cell, set()) if w.tb is not a.tb}:
            a, b = pair
            if not bits[a] >> number[b] & 1 and not bits[b] >> number[a] & 1:
                pairs[pair] += 1
    return len(pairs), sum(pairs.values())


def judge(text, *, schedules=3, seed=1, large=True, outputs=None):
    """All verdicts on an XML text.

    `outputs` gives what cells must hold ({(rank, chunk): {(rank, chunk): times}}) where the program does not say.
    """
    program = Program(text)
    result = Judgement(problems=program.problems)
    if not program.runnable:
        return result
    result.slots, result.collective = SLOTS[program.proto], program.coll
    result.min_slots = smallest_slots(program)
    result.ends = result.min_slots is not None
    if not result.ends:
        return result
    if large:
        result.min_slots_large = smallest_slots(program, large=True)
    bits = ancestors(program)
    result.races, result.race_cells = races(program, bits)
    expected = program.outputs()
    if outputs is not None:
        expected = {program.cell(r, "o", k): Counter(v) for (r, k), v in outputs.items()}
    wrong, ordered = [], []
    Tree.known.clear()
    for schedule in range(schedules):
        run = Run(program, 10**9, values=True)
        run.poll(random.Random(seed * 1000 + schedule))
        if expected is not None:
            wrong.append(sum(run.look(cell)[0] != value for cell, value in expected.items()))
        ordered.append(same_order(program, run))
    if expected is not None:
        result.cells, result.wrong_cells = len(expected), tuple(wrong)
    result.order_consistent = all(ordered)
    return result


def same_order(program, run):
    """Whether every rank of an allreduce adds the same numbers in the same order, chunk by chunk, or none at all."""
    if program.coll != "allreduce":
        return True
    chunks = ({run.look(program.cell(r, "o", k))[1] for r in range(program.n)} for k in range(program.chunks))
    return all(len(trees) == 1 or not any(isinstance(tree, Tree) for tree in trees) for trees in chunks)
