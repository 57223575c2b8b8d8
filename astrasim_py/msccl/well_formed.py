"""Checks of programs: problems that no runtime could execute, and warnings for single runtimes.

Runtimes are named by what they are: *classic* is the runtime that MSCCL began with, *Azure* the executor that took
its place, *RCCL* AMD's. Their limits differ; only what none of them accepts makes a program ill-formed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import (
    READING,
    RECEIVING,
    REDUCING,
    SENDING,
    WRITING,
    Gpu,
    MscclProgram,
    MscclStep,
    ThreadBlock,
)
from astrasim_py.msccl.step_table import rooted, sharded, stated_root

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
RUNTIMES = (
    Runtime("the classic runtime", 216, 256, 32, _CLASSIC),
    Runtime("Azure's runtime", 1024, 256, 32, _AZURE),
    Runtime("RCCL", 64, 64, 128, _AZURE),
)
#: XML elements that the parser of all of them holds for a rank, and children of one element.
MAX_NODES, MAX_CHILDREN = 4096, 1024
#: Local reductions that are executed as one.
MAX_FUSED = 16


def findings(program: MscclProgram) -> Findings:
    """Check a program against the rules of its format.

    Returns `problems` make it ill-formed; the first is the most important. Every sentence begins with ``file:line:``.
    """
    check = _Check(program)
    check.run()
    return Findings(check.problems.sentences(), check.warnings.sentences())


def refuse_ill_formed(program: MscclProgram) -> None:
    """Raise AlgorithmError, ``file:line: what, why, what to write instead``, for the first problem of a program."""
    problems = findings(program).problems
    if problems:
        place, _, sentence = problems[0].partition(": ")
        problem, _, remedy = sentence.partition("; ")
        raise AlgorithmError(place, problem, remedy or "mend the program")


class _Sentences:
    """Sentences by kind: the first of each and how many there are."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.first: dict[str, tuple[int, str]] = {}
        self.count: dict[str, int] = {}

    def again(self, kind: str) -> bool:
        """Count another one of a kind; False if it is the first."""
        if kind not in self.count:
            return False
        self.count[kind] += 1
        return True

    def add(self, kind: str, line: int, text: str) -> None:
        if not self.again(kind):
            self.first[kind], self.count[kind] = (line, text), 1

    def sentences(self) -> tuple[str, ...]:
        """In the order of `_KINDS`."""
        out = []
        for kind in sorted(self.first, key=_KINDS.index):
            line, text = self.first[kind]
            more = self.count[kind] - 1
            out.append(f"{self.source}:{line}: {text}" + (f" (and {more} more like it)" if more else ""))
        return tuple(out)


#: Kinds of problems, then of warnings, the most important first.
_KINDS = (
    *("collective", "shards", "ids", "peer", "channel", "owner", "peerless", "numbering", "steps", "count"),
    *("nowhere", "nop", "unpublished", "chain", "access", "unequal", "unmatched", "nchannels"),
    *("root", "never", "window", "operands", "trailing", "idle", "ignored", "unused", "fused"),
    *("runtime 0", "runtime 1", "runtime 2", "parser"),
)


class _Check:
    def __init__(self, program: MscclProgram) -> None:
        self.program = program
        self.problems, self.warnings = _Sentences(program.source), _Sentences(program.source)
        #: (source, target, channel) -> steps that send on it, steps that receive.
        self.sent: dict[tuple[int, int, int], list[tuple[MscclStep, str]]] = {}
        self.received: dict[tuple[int, int, int], list[tuple[MscclStep, str]]] = {}
        self.channels = 0

    def run(self) -> None:
        self._collective()
        for gpu in self.program.gpus:
            self._gpu(gpu)
        self._connections()
        self._channels()
        self._runtimes()

    # -- the whole program

    def _collective(self) -> None:
        program, line = self.program, self.program.line
        known = frozenset().union(*(runtime.collectives for runtime in RUNTIMES))
        if program.coll not in known:
            text = f'coll="{program.coll[:40]}" is known to no runtime; write one of {", ".join(sorted(known))}'
            self.problems.add("collective", line, text)
            return
        chunks, ranks = program.nchunksperloop, program.ngpus
        if sharded(program.coll) and chunks % ranks:
            text = f'nchunksperloop="{chunks}" does not divide by {ranks} ranks; {program.coll} needs a multiple'
            self.problems.add("shards", line, text)
        if rooted(program.coll) and stated_root(program) is None:
            text = f"the root of {program.coll} is stated nowhere: rank 0 is taken; write root=… in the name"
            self.warnings.add("root", line, text)
        if program.inplace == 0 and program.outofplace == 0:
            self.warnings.add("never", line, 'inplace="0" outofplace="0" means that it is never selected')
        low, high = program.min_bytes or 0, program.max_bytes
        if high is not None and high and low > high:
            text = f"the window from {low} to {high} bytes is empty: it is never selected"
            self.warnings.add("window", line, text)

    def _channels(self) -> None:
        stated, line = self.program.nchannels, self.program.line
        if stated < self.channels:
            text = f'nchannels="{stated}", but channel {self.channels - 1} is used; write {self.channels}'
            self.problems.add("nchannels", line, text)
        elif stated > self.channels:
            text = f'nchannels="{stated}", but only channels below {self.channels} are used'
            self.warnings.add("unused", line, text)

    def _connections(self) -> None:
        for key in sorted(self.sent.keys() | self.received.keys()):
            sends, receives = self.sent.get(key, []), self.received.get(key, [])
            source, target, channel = key
            where = f"channel {channel} from rank {source} to rank {target}"
            if len(sends) != len(receives):
                # The first step that has no partner.
                longer, paired = max(sends, receives, key=len), min(len(sends), len(receives))
                step, _ = longer[paired]
                text = f"{where} has {len(sends)} sends, but {len(receives)} receives; each send needs one receive"
                self.problems.add("unmatched", step.line, text)
            for (send, sender), (receive, receiver) in zip(sends, receives, strict=False):
                if send.cnt != receive.cnt:
                    text = f"{receiver} receives {receive.cnt} chunks, but {sender} (line {send.line}) sends {send.cnt}"
                    self.problems.add("unequal", receive.line, f"{text}: cnt must be equal")
                    break

    # -- one rank

    def _gpu(self, gpu: Gpu) -> None:
        by_id = {tb.id: tb for tb in reversed(gpu.tbs)}
        if len(by_id) != len(gpu.tbs) or (by_id and max(by_id) >= len(gpu.tbs)):
            self._ids(gpu)
        owners: dict[tuple[str, int, int], ThreadBlock] = {}
        limit = _limits(self.program, gpu)
        for tb in gpu.tbs:
            self._thread_block(gpu, tb, owners)
            self._steps(gpu, tb, by_id, limit)

    def _ids(self, gpu: Gpu) -> None:
        count = len(gpu.tbs)
        free = min(set(range(count)) - {tb.id for tb in gpu.tbs}, default=0)
        seen: set[int] = set()
        for tb in gpu.tbs:
            if tb.id in seen:
                text = f"rank {gpu.id} has thread block {tb.id} twice; number thread blocks 0, 1, 2 …"
                self.problems.add("ids", tb.line, text)
            elif tb.id >= count:
                text = f"rank {gpu.id} has thread block {tb.id}, but no {free}; number thread blocks without gaps"
                self.problems.add("ids", tb.line, text)
            seen.add(tb.id)

    def _thread_block(self, gpu: Gpu, tb: ThreadBlock, owners: dict) -> None:
        name = f"rank {gpu.id} tb {tb.id}"
        for side, peer, word in (("send", tb.send, "sends to"), ("recv", tb.recv, "receives from")):
            if peer < 0:
                continue
            if peer >= self.program.ngpus:
                text = f"{name} {word} rank {peer}, which is not one of {self.program.ngpus}"
                self.problems.add("peer", tb.line, f"{text}; write a rank, or -1 for none")
            elif peer == gpu.id:
                self.problems.add("peer", tb.line, f"{name} {word} its own rank; write another one, or -1 for none")
            other = owners.setdefault((side, peer, tb.chan), tb)
            if other is not tb:
                text = (
                    f"{name} {word} rank {peer} on channel {tb.chan}, as tb {other.id} (line {other.line}) does; "
                    "give each connection one thread block"
                )
                self.problems.add("owner", tb.line, text)
        if tb.chan < 0 and (tb.send >= 0 or tb.recv >= 0):
            self.problems.add("channel", tb.line, f'{name} has a peer, but chan="{tb.chan}"; write a channel from 0')
        if tb.chan >= self.channels and tb.chan >= 0:
            self.channels = tb.chan + 1
        if len(tb.steps) > MAX_STEPS:
            text = f"{name} has {len(tb.steps)} steps, more than {MAX_STEPS}; spread them over thread blocks"
            self.problems.add("steps", tb.line, text)

    def _steps(self, gpu: Gpu, tb: ThreadBlock, by_id: dict[int, ThreadBlock], limit: dict[str, int]) -> None:
        rank, problems = gpu.id, self.problems
        send, recv = tb.send, tb.recv
        ranks = self.program.ngpus
        sent = self.sent.setdefault((rank, send, tb.chan), []) if 0 <= send < ranks else []
        received = self.received.setdefault((recv, rank, tb.chan), []) if 0 <= recv < ranks else []
        chain: MscclStep | None = None  # the first of the nops just before
        run: tuple[str, str, int, int] | None = None  # source buffer, destination and length of a run of `re`

        def name(step: MscclStep) -> str:
            return f"rank {rank} tb {tb.id} step {step.s}"

        for number, step in enumerate(tb.steps):
            s, kind, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, hasdep, line = step
            if s != number and not problems.again("numbering"):
                problems.add("numbering", line, f'{name(step)} should have s="{number}": number steps 0, 1, 2 …')
            if depid >= 0:
                self._dependency(step, name, by_id)
            elif deps >= 0:
                self.warnings.add("ignored", line, f'{name(step)}: deps="{deps}" means nothing without a depid')
            if kind == "nop":
                if depid < 0:
                    text = f"{name(step)} is a nop without a dependency: runtimes number the steps after it differently"
                    self.warnings.add("idle", line, text)
                elif chain is None:
                    chain = step
                continue
            if chain is not None:
                if depid < 0:
                    text = (
                        f"{name(step)} follows nops (from line {chain.line}), but has no dependency of its own; "
                        "put the last of them on it"
                    )
                    problems.add("chain", line, text)
                chain = None
            if not 0 < cnt <= MAX_COUNT and not problems.again("count"):
                problems.add("count", line, f"{name(step)} moves {cnt} chunks; write 1 to {MAX_COUNT}")
            if kind in READING and not 0 <= srcoff <= limit[srcbuf] - cnt:
                self._beyond(step, name, "reads", srcbuf, srcoff, gpu, limit)
            if kind in WRITING and not 0 <= dstoff <= limit[dstbuf] - cnt:
                self._beyond(step, name, "writes", dstbuf, dstoff, gpu, limit)
            if kind in SENDING:
                sent.append((step, f"rank {rank}"))
                if send < 0 and not problems.again("peerless"):
                    text = f"{name(step)} ({kind}) sends, but its thread block has no peer to send to; write send=…"
                    problems.add("peerless", line, text)
            if kind in RECEIVING:
                received.append((step, f"rank {rank}"))
                if recv < 0 and not problems.again("peerless"):
                    text = f"{name(step)} ({kind}) receives, but its thread block has no peer to receive from"
                    problems.add("peerless", line, f"{text}; write recv=…")
                if kind in REDUCING and (srcoff != dstoff or srcbuf != dstbuf):
                    self._operands(step, gpu, name)
            if kind == "re" and run and depid < 0 and run[:3] == (srcbuf, dstbuf, dstoff):
                run = (*run[:3], run[3] + 1)
                if run[3] == 2:
                    text = "reductions that runtimes fuse: the order of their addition depends on the size"
                    self.warnings.add("fused", line, text)
            else:
                run = (srcbuf, dstbuf, dstoff, 1) if kind == "re" else None
            if hasdep or (run and run[3] == MAX_FUSED):
                run = None
        if chain is not None:
            text = f"{name(chain)} and what follows are nops at the end of a thread block, which runtimes drop"
            self.warnings.add("trailing", chain.line, text)

    def _dependency(self, step: MscclStep, name: Callable[[MscclStep], str], by_id: dict[int, ThreadBlock]) -> None:
        """Check that the awaited step exists and is published."""
        tb = by_id.get(step.depid)
        target = tb.steps[step.deps] if tb is not None and 0 <= step.deps < len(tb.steps) else None
        if target is None:
            kind = "nowhere"
        elif target.type == "nop":
            kind = "nop"
        elif not target.hasdep:
            kind = "unpublished"
        else:
            return
        if self.problems.again(kind):
            return
        if tb is None:
            text = "but its rank has no such thread block"
        elif target is None:
            held = f"steps 0 to {len(tb.steps) - 1}" if tb.steps else "no steps"
            text = f"but that thread block has {held}"
        elif kind == "nop":
            text = f"a nop (line {target.line}), which is never published"
        else:
            text = f'which is not published; write hasdep="1" there (line {target.line})'
        what = f"{name(step)} waits for tb {step.depid} step {step.deps}"
        self.problems.add(kind, step.line, f"{what}, {text}")

    def _beyond(
        self,
        step: MscclStep,
        name: Callable[[MscclStep], str],
        word: str,
        buffer: str,
        offset: int,
        gpu: Gpu,
        limit: dict,
    ) -> None:
        if self.problems.again("access"):
            return
        declared = {"i": gpu.i_chunks, "o": gpu.o_chunks, "s": gpu.s_chunks}[buffer]
        last = f" to {buffer}[{offset + step.cnt - 1}]" if step.cnt > 1 else ""
        reach = f", {limit[buffer]} with what it shares with the other" if limit[buffer] > declared else ""
        text = f'{name(step)} {word} {buffer}[{offset}]{last}, but {buffer}_chunks="{declared}"{reach}'
        self.problems.add("access", step.line, text)

    def _operands(self, step: MscclStep, gpu: Gpu, name: Callable[[MscclStep], str]) -> None:
        _, kind, srcbuf, srcoff, dstbuf, dstoff, *_ = step
        if self._cell(gpu, srcbuf, srcoff) == self._cell(gpu, dstbuf, dstoff):
            return
        text = (
            f"{name(step)} ({kind}) names {srcbuf}[{srcoff}] and {dstbuf}[{dstoff}]: runtimes read both as cells of "
            "this rank, which producers do not always mean"
        )
        self.warnings.add("operands", step.line, text)

    def _cell(self, gpu: Gpu, buffer: str, offset: int) -> tuple[str, int]:
        """A cell by one name, where input and output are one buffer."""
        program = self.program
        if not program.inplace or buffer == "s":
            return buffer, offset
        first = gpu.id * (program.nchunksperloop // program.ngpus)
        shifted = {"allgather": "i", "reduce_scatter": "o", "reducescatter": "o"}.get(program.coll)
        return "i", offset + (first if buffer == shifted else 0)

    # -- what runtimes accept

    def _runtimes(self) -> None:
        program = self.program
        most_tbs = max(program.gpus, key=lambda gpu: len(gpu.tbs))
        longest = max((tb for gpu in program.gpus for tb in gpu.tbs), key=lambda tb: len(tb.steps), default=None)
        steps = len(longest.steps) if longest else 0
        minded: dict[str, list[str]] = {}
        for runtime in RUNTIMES:
            minds = []
            if len(most_tbs.tbs) > runtime.thread_blocks:
                limit = runtime.thread_blocks
                minds.append(f"{len(most_tbs.tbs)} thread blocks on rank {most_tbs.id} (at most {limit})")
            if runtime.steps < steps <= MAX_STEPS:
                minds.append(f"{steps} steps in a thread block (at most {runtime.steps})")
            if self.channels > runtime.channels:
                minds.append(f"{self.channels} channels (at most {runtime.channels})")
            if program.coll not in runtime.collectives:
                minds.append(f'coll="{program.coll[:40]}"')
            minds += self._classic() if runtime.collectives is _CLASSIC else self._azure()
            if minds:
                minded.setdefault("; ".join(minds), []).append(runtime.name)
        for number, (minds, names) in enumerate(minded.items()):
            text = f"{' and '.join(names)} {'do' if len(names) > 1 else 'does'} not take it: {minds}"
            self.warnings.add(f"runtime {number}", program.line, text)
        self._parser()

    def _azure(self) -> list[str]:
        program = self.program
        stated = {"outofplace": program.outofplace, "minBytes": program.min_bytes, "maxBytes": program.max_bytes}
        lacking = [name for name, value in stated.items() if value is None]
        return ["no " + ", ".join(lacking)] if lacking else []

    def _classic(self) -> list[str]:
        program, minds = self.program, []
        if not program.name:
            minds.append("no name")
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
            self.warnings.add("parser", program.line, f"runtimes do not read {'; '.join(minds)}")


def _limits(program: MscclProgram, gpu: Gpu) -> dict[str, int]:
    """Chunks of a rank's buffers that may be accessed by each name, in place also those of the other name."""
    i, o = gpu.i_chunks, gpu.o_chunks
    if program.inplace:
        first = gpu.id * (program.nchunksperloop // program.ngpus)
        if program.coll == "allgather":
            i, o = max(i, o - first), max(o, first + i if i else 0)
        elif program.coll in ("reduce_scatter", "reducescatter"):
            i, o = max(i, first + o if o else 0), max(o, i - first)
        else:
            i = o = max(i, o)
    return {"i": i, "o": o, "s": gpu.s_chunks}
