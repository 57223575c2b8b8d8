"""Checks of programs: problems that no runtime could execute, and warnings for single runtimes.

Runtimes are named by what they are: *classic* is the runtime that MSCCL began with, *Azure* the executor that took
its place, *RCCL* AMD's. Their limits differ; only what none of them accepts makes a program ill-formed.
"""

from collections import Counter
from typing import NamedTuple

from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl import ir

#: Most chunks of one step, and most steps of one thread block.
MAX_COUNT, MAX_STEPS = 71, 256


class Findings(NamedTuple):
    """Problems of a program, and warnings of single runtimes; one sentence per kind, with the first place."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


class Runtime(NamedTuple):
    """Limits of a runtime, and the names of its collectives."""

    name: str
    thread_blocks: int
    steps: int
    channels: int
    collectives: frozenset[str]


_COMMON = frozenset(("allgather", "allreduce", "alltoall", "broadcast", "reduce"))
_CLASSIC = _COMMON | {"custom", "reduce_scatter"}
_AZURE = _COMMON | {"alltoallv", "gather", "recv", "reducescatter", "scatter", "send"}
#: Runtimes by dialect. RCCL reads the same XML as Azure's, but runs less of it.
RUNTIMES = {
    "classic": Runtime("the classic runtime", 216, 256, 32, _CLASSIC),
    "azure": Runtime("Azure's runtime", 1024, 256, 32, _AZURE),
    "rccl": Runtime("RCCL", 64, 64, 128, _AZURE),
}
#: XML elements that the parser of all of them holds for a rank, and children of one element.
MAX_NODES, MAX_CHILDREN = 4096, 1024
#: Local reductions that are executed as one.
MAX_FUSED = 16


def findings(program: ir.MscclProgram) -> Findings:
    """Check a program against the rules of its format.

    Returns `problems` make it ill-formed; the first is the most important. Every sentence begins with ``file:line:``.
    """
    check = _Check(program)
    return Findings(check.sentences(_PROBLEMS), check.sentences(_WARNINGS))


def refused_by(program: ir.MscclProgram) -> list[str]:
    """Names of the runtimes that do not take a program."""
    refusing = {name for names in _Check(program).refusals().values() for name in names}
    return [runtime.name for runtime in RUNTIMES.values() if runtime.name in refusing]


def refuse_ill_formed(program: ir.MscclProgram) -> None:
    """Raise AlgorithmError, ``file:line: what, why, what to write instead``, for the first problem of a program."""
    problems = findings(program).problems
    if problems:
        place, _, sentence = problems[0].partition(": ")
        problem, _, remedy = sentence.partition("; ")
        raise AlgorithmError(place, problem, remedy or "correct the program")


#: Kinds of problems, then of warnings, the most important first.
_PROBLEMS = (
    *("collective", "shards", "ids", "peer", "channel", "owner", "peerless", "numbering", "steps", "count"),
    *("nowhere", "nop", "unpublished", "chain", "access", "unequal", "unmatched", "nchannels"),
)
_WARNINGS = (
    *("root", "never", "window", "operands", "trailing", "idle", "ignored", "unused", "fused"),
    *("runtime 0", "runtime 1", "runtime 2", "parser"),
)


class _Check:
    def __init__(self, program: ir.MscclProgram) -> None:
        self.program = program
        #: By kind the line and text of the first defect, and how many there are.
        self.first: dict[str, tuple[int, str]] = {}
        self.count: Counter[str] = Counter()
        #: (source, target, channel) -> steps that send on it, steps that receive.
        self.sent: dict[tuple[int, int, int], list[ir.MscclStep]] = {}
        self.received: dict[tuple[int, int, int], list[ir.MscclStep]] = {}
        self.channels = 0
        self._collective()
        for gpu in program.gpus:
            self._gpu(gpu)
        self._connections()
        self._channels()
        self._runtimes()

    def add(self, kind: str, text: str, line: int | None = None) -> None:
        """Note a defect; without a line it is one of the whole program."""
        self.first.setdefault(kind, (self.program.line if line is None else line, text))
        self.count[kind] += 1

    def sentences(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        out = []
        for kind in kinds:
            if kind in self.first:
                line, text = self.first[kind]
                more = f" (and {self.count[kind] - 1} more like it)" if self.count[kind] > 1 else ""
                out.append(f"{self.program.source}:{line}: {text}{more}")
        return tuple(out)

    # -- the whole program

    def _collective(self) -> None:
        program = self.program
        names = frozenset().union(*(runtime.collectives for runtime in RUNTIMES.values()))
        if program.coll not in names:
            text = f'coll="{program.coll[:40]}" is known to no runtime; write one of {", ".join(sorted(names))}'
            self.add("collective", text)
            return
        chunks, ranks, promise = program.nchunksperloop, program.ngpus, promise_of(ir.named(program.coll))
        if promise.sharded and chunks % ranks:
            text = f'nchunksperloop="{chunks}" does not divide by {ranks} ranks; {program.coll} needs a multiple'
            self.add("shards", text)
        if promise.rooted and ir.stated_root(program) is None:
            self.add("root", f"the root of {program.coll} is stated nowhere: rank 0 is taken; write root=… in the name")
        if program.inplace == 0 and program.outofplace == 0:
            self.add("never", 'inplace="0" outofplace="0" means that it is never selected')
        low, high = program.min_bytes or 0, program.max_bytes
        if high is not None and high and low > high:
            self.add("window", f"the window from {low} to {high} bytes is empty: it is never selected")

    def _channels(self) -> None:
        stated, used = self.program.nchannels, self.channels
        if stated < used:
            self.add("nchannels", f'nchannels="{stated}", but channel {used - 1} is used; write {used}')
        elif stated > used:
            self.add("unused", f'nchannels="{stated}", but only channels below {used} are used')

    def _connections(self) -> None:
        for key in sorted(self.sent.keys() | self.received.keys()):
            sends, receives = self.sent.get(key, []), self.received.get(key, [])
            source, target, channel = key
            if len(sends) != len(receives):
                # The first step that has no partner.
                step = max(sends, receives, key=len)[min(len(sends), len(receives))]
                text = f"{len(sends)} sends, but {len(receives)} receives; each send needs one receive"
                self.add("unmatched", f"channel {channel} from rank {source} to rank {target} has {text}", step.line)
            for send, receive in zip(sends, receives, strict=False):
                if send.cnt != receive.cnt:
                    text = f"rank {target} receives {receive.cnt} chunks, but rank {source} (line {send.line}) sends "
                    self.add("unequal", f"{text}{send.cnt}: cnt must be equal", receive.line)
                    break

    # -- one rank

    def _gpu(self, gpu: ir.Gpu) -> None:
        self.gpu, self.by_id = gpu, {tb.id: tb for tb in reversed(gpu.tbs)}
        if len(self.by_id) != len(gpu.tbs) or (self.by_id and max(self.by_id) >= len(gpu.tbs)):
            self._ids(gpu)
        owners: dict[tuple[str, int, int], ir.ThreadBlock] = {}
        self.shift, self.limit = _aliases(self.program, gpu)
        for tb in gpu.tbs:
            self.block = f"rank {gpu.id} tb {tb.id}"
            self._thread_block(tb, owners)
            self._steps(tb)

    def _ids(self, gpu: ir.Gpu) -> None:
        count = len(gpu.tbs)
        free = min(set(range(count)) - {tb.id for tb in gpu.tbs}, default=0)
        seen: set[int] = set()
        for tb in gpu.tbs:
            has = f"rank {gpu.id} has thread block {tb.id}"
            if tb.id in seen:
                self.add("ids", f"{has} twice; number thread blocks 0, 1, 2 …", tb.line)
            elif tb.id >= count:
                self.add("ids", f"{has}, but no {free}; number thread blocks without gaps", tb.line)
            seen.add(tb.id)

    def _thread_block(self, tb: ir.ThreadBlock, owners: dict) -> None:
        name, ranks = self.block, self.program.ngpus
        for side, peer, word in (("send", tb.send, "sends to"), ("recv", tb.recv, "receives from")):
            if peer < 0:
                continue
            if peer >= ranks:
                text = f"rank {peer}, which is not one of {ranks}; write a rank, or -1 for none"
                self.add("peer", f"{name} {word} {text}", tb.line)
            elif peer == self.gpu.id:
                self.add("peer", f"{name} {word} its own rank; write another one, or -1 for none", tb.line)
            other = owners.setdefault((side, peer, tb.chan), tb)
            if other is not tb:
                text = f"{name} {word} rank {peer} on channel {tb.chan}, as tb {other.id} (line {other.line}) does"
                self.add("owner", f"{text}; give each connection one thread block", tb.line)
        if tb.chan < 0 and (tb.send >= 0 or tb.recv >= 0):
            self.add("channel", f'{name} has a peer, but chan="{tb.chan}"; write a channel from 0', tb.line)
        self.channels = max(self.channels, tb.chan + 1)
        if len(tb.steps) > MAX_STEPS:
            text = f"{len(tb.steps)} steps, more than {MAX_STEPS}; spread them over thread blocks"
            self.add("steps", f"{name} has {text}", tb.line)

    def _steps(self, tb: ir.ThreadBlock) -> None:
        rank, ranks, limit = self.gpu.id, self.program.ngpus, self.limit
        sent = self.sent.setdefault((rank, tb.send, tb.chan), []) if 0 <= tb.send < ranks else []
        received = self.received.setdefault((tb.recv, rank, tb.chan), []) if 0 <= tb.recv < ranks else []
        chain: ir.MscclStep | None = None  # the first of the nops just before
        run: tuple[str, str, int, int] | None = None  # source buffer, destination and length of a run of `re`
        for number, step in enumerate(tb.steps):
            s, kind, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, hasdep, line = step
            name = f"{self.block} step {s}"
            if s != number:
                self.add("numbering", f'{name} should have s="{number}": number steps 0, 1, 2 …', line)
            if depid >= 0:
                self._dependency(step, name)
            elif deps >= 0:
                self.add("ignored", f'{name}: deps="{deps}" means nothing without a depid', line)
            if kind == "nop":
                if depid < 0:
                    text = "is a nop without a dependency: runtimes number the steps after it differently"
                    self.add("idle", f"{name} {text}", line)
                else:
                    chain = chain or step
                continue
            if chain is not None:
                if depid < 0:
                    text = f"{name} follows nops (from line {chain.line}), but has no dependency of its own"
                    self.add("chain", f"{text}; put the last of them on it", line)
                chain = None
            if not 0 < cnt <= MAX_COUNT:
                self.add("count", f"{name} moves {cnt} chunks; write 1 to {MAX_COUNT}", line)
            if kind in ir.READING and not 0 <= srcoff <= limit[srcbuf] - cnt:
                self._beyond(step, f"{name} reads", srcbuf, srcoff)
            if kind in ir.WRITING and not 0 <= dstoff <= limit[dstbuf] - cnt:
                self._beyond(step, f"{name} writes", dstbuf, dstoff)
            if kind in ir.SENDING:
                sent.append(step)
                if tb.send < 0:
                    text = f"{name} ({kind}) sends, but its thread block has no peer to send to; write send=…"
                    self.add("peerless", text, line)
            if kind in ir.RECEIVING:
                received.append(step)
                if tb.recv < 0:
                    text = f"{name} ({kind}) receives, but its thread block has no peer to receive from; write recv=…"
                    self.add("peerless", text, line)
                if kind in ir.REDUCING and self._cell(srcbuf, srcoff) != self._cell(dstbuf, dstoff):
                    text = (
                        f"{name} ({kind}) names {srcbuf}[{srcoff}] and {dstbuf}[{dstoff}]: runtimes read both as cells "
                        "of this rank, which producers do not always mean"
                    )
                    self.add("operands", text, line)
            if kind == "re" and run and depid < 0 and run[:3] == (srcbuf, dstbuf, dstoff):
                run = (*run[:3], run[3] + 1)
                if run[3] == 2:
                    text = "reductions that runtimes fuse: the order of their addition depends on the size"
                    self.add("fused", text, line)
            else:
                run = (srcbuf, dstbuf, dstoff, 1) if kind == "re" else None
            if hasdep or (run and run[3] == MAX_FUSED):
                run = None
        if chain is not None:
            text = f"{self.block} step {chain.s} and what follows are nops at the end of a thread block, which "
            self.add("trailing", f"{text}runtimes drop", chain.line)

    def _dependency(self, step: ir.MscclStep, name: str) -> None:
        """Check that the awaited step exists and is published."""
        tb = self.by_id.get(step.depid)
        target = tb.steps[step.deps] if tb is not None and 0 <= step.deps < len(tb.steps) else None
        if tb is None:
            kind, text = "nowhere", "but its rank has no such thread block"
        elif target is None:
            held = f"steps 0 to {len(tb.steps) - 1}" if tb.steps else "no steps"
            kind, text = "nowhere", f"but that thread block has {held}"
        elif target.type == "nop":
            kind, text = "nop", f"a nop (line {target.line}), which is never published"
        elif not target.hasdep:
            kind = "unpublished"
            text = f'which is not published; write hasdep="1" there (line {target.line})'
        else:
            return
        self.add(kind, f"{name} waits for tb {step.depid} step {step.deps}, {text}", step.line)

    def _beyond(self, step: ir.MscclStep, does: str, buffer: str, offset: int) -> None:
        declared = {"i": self.gpu.i_chunks, "o": self.gpu.o_chunks, "s": self.gpu.s_chunks}[buffer]
        last = f" to {buffer}[{offset + step.cnt - 1}]" if step.cnt > 1 else ""
        limit = self.limit[buffer]
        reach = f", {limit} with what it shares with the other" if limit > declared else ""
        self.add("access", f'{does} {buffer}[{offset}]{last}, but {buffer}_chunks="{declared}"{reach}', step.line)

    def _cell(self, buffer: str, offset: int) -> tuple[str, int]:
        """A cell by one name, where input and output are one buffer."""
        if not self.program.inplace or buffer == "s":
            return buffer, offset
        return "i", offset + self.shift[buffer]

    # -- what runtimes accept

    def refusals(self) -> dict[str, list[str]]:
        """Reasons, and the runtimes that do not take the program because of them."""
        program = self.program
        most = max(program.gpus, key=lambda gpu: len(gpu.tbs))
        blocks, steps = len(most.tbs), max((len(tb.steps) for gpu in program.gpus for tb in gpu.tbs), default=0)
        minded: dict[str, list[str]] = {}
        for runtime in RUNTIMES.values():
            minds = []
            if blocks > runtime.thread_blocks:
                minds.append(f"{blocks} thread blocks on rank {most.id} (at most {runtime.thread_blocks})")
            if runtime.steps < steps <= MAX_STEPS:
                minds.append(f"{steps} steps in a thread block (at most {runtime.steps})")
            if self.channels > runtime.channels:
                minds.append(f"{self.channels} channels (at most {runtime.channels})")
            if program.coll not in runtime.collectives:
                minds.append(f'coll="{program.coll[:40]}"')
            minds += self._classic() if runtime.collectives is _CLASSIC else self._azure()
            if minds:
                minded.setdefault("; ".join(minds), []).append(runtime.name)
        return minded

    def _runtimes(self) -> None:
        for number, (reasons, names) in enumerate(self.refusals().items()):
            do = "do" if len(names) > 1 else "does"
            self.add(f"runtime {number}", f"{' and '.join(names)} {do} not take it: {reasons}")
        self._parser()

    def _azure(self) -> list[str]:
        stated = dict(zip(ir.ALGO_ATTRIBUTES, self.program, strict=False))
        lacking = [name for name in ("outofplace", "minBytes", "maxBytes") if stated[name] is None]
        return ["no " + ", ".join(lacking)] if lacking else []

    def _classic(self) -> list[str]:
        program, minds = self.program, [] if self.program.name else ["no name"]
        chunks, ranks = program.nchunksperloop, program.ngpus
        for letter, part in (("i", "allgather"), ("o", "reduce_scatter")):
            share = ranks if program.coll == part else 1
            for gpu in program.gpus:
                size = gpu.i_chunks if letter == "i" else gpu.o_chunks
                if size and size * share != chunks:
                    minds.append(f'{letter}_chunks="{size}" on rank {gpu.id} for nchunksperloop="{chunks}"')
                    break
        return minds

    def _parser(self) -> None:
        """Limits of the simple parser that all runtimes share."""
        program = self.program
        minds = list(program.layout)
        for gpu in program.gpus:
            nodes = 1 + len(program.gpus) + len(gpu.tbs) + sum(len(tb.steps) for tb in gpu.tbs)
            if nodes > MAX_NODES:
                minds.append(f"{nodes} elements for rank {gpu.id} (at most {MAX_NODES})")
                break
        if len(program.gpus) > MAX_CHILDREN:
            minds.append(f"{len(program.gpus)} elements in one (at most {MAX_CHILDREN})")
        if program.nthreads is not None and program.nthreads % 32:
            minds.append(f'nthreads="{program.nthreads}", no multiple of 32')
        if minds:
            self.add("parser", f"runtimes do not read {'; '.join(minds)}")


def _aliases(program: ir.MscclProgram, gpu: ir.Gpu) -> tuple[dict[str, int], dict[str, int]]:
    """Where a rank's input and output begin in the buffer that they share in place; and how much each name reaches."""
    size = {"i": gpu.i_chunks, "o": gpu.o_chunks, "s": gpu.s_chunks}
    first = gpu.id * (program.nchunksperloop // program.ngpus)
    shift = {
        "i": first * (program.coll == "allgather"),
        "o": first * (program.coll in ("reduce_scatter", "reducescatter")),
    }
    if program.inplace:
        end = max(begin + size[name] if size[name] else 0 for name, begin in shift.items())
        size |= {name: max(size[name], end - begin) for name, begin in shift.items()}
    return shift, size
