"""A verified algorithm as an MSCCL++ execution plan.

Blocks, and what orders stores, are those of `astrasim_py.mscclpp.stores`. Ranks of a node have memory channels, others
port channels. Two blocks that send to each other share one channel. At the begin each waits until the other's kernel
runs; a send is a put, a nop and a signal, a receive a wait and a nop. A receive that reduces, or whose cells may still
be in use when its message is sent, takes it from scratch. Blocks of a rank wait for each other by semaphores. Under LL
messages are packets in scratch, of which there are two halves, and need no signals.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError, UsageError
from astrasim_py.msccl.lower import check_cells, graph_of
from astrasim_py.msccl.operations import RECEIVE, RECEIVE_REDUCE, SEND, Cells, Operation, scratch_ends
from astrasim_py.msccl.places import Places
from astrasim_py.mscclpp import limits
from astrasim_py.mscclpp.documents import rank_documents
from astrasim_py.mscclpp.drafts import BlockDraft, Instruction, Range, channel_of
from astrasim_py.mscclpp.ir import COLLECTIVES, INPUT, MEMORY, OUTPUT, PORT, PROTOCOLS, SCRATCH
from astrasim_py.mscclpp.stores import BlockName, Orders, StoreBlocks
from astrasim_py.program.algorithm import Algorithm, place_of

_LETTERS = {Buffer.INPUT: INPUT, Buffer.OUTPUT: OUTPUT, Buffer.SCRATCH: SCRATCH}
_NAMES = {name: plan_name for plan_name, name in COLLECTIVES.items()}
#: Assignments of thread blocks that are tried to keep within the limits.
_ATTEMPTS = 12
#: Thread blocks of a GPU at most. They wait for each other, so all must run at once: an A100 has so many processors.
MAX_BLOCKS = 108
#: Operations at most, since what comes before each one is held as bits: half a GiB for so many.
MAX_STEPS = 2**16
_BYTES = 2**64 - 1
_T = TypeVar("_T")


def plan_document(
    algorithm: Algorithm,
    *,
    protocol: str | None = None,
    npus_per_node: int | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
) -> dict[str, object]:
    """The JSON object of a plan for an algorithm.

    Parameters
    ----------
    algorithm : Algorithm
        One that verification passes, of a collective that plans name.
    protocol : str, optional
        ``Simple``, or ``LL`` for small sizes; that of the algorithm by default, else Simple.
    npus_per_node : int, optional
        Ranks that reach each other's memory: the first so many, and so on. All by default.
    min_bytes, max_bytes : int, optional
        Sizes of the full buffer, in bytes, for which executors take the plan.

    Raises
    ------
    AlgorithmError
        A collective or an algorithm that plans cannot express, or one beyond the limits of executors.
    UsageError
        An unknown protocol, or numbers that are none.
    """
    place = place_of(algorithm)
    if algorithm.collective not in _NAMES:
        problem = f"plans have no {algorithm.collective}"
        raise AlgorithmError(place, problem, f"keep it as .et, or write one of {', '.join(_NAMES)}")
    check_cells(algorithm, place, "an execution plan")
    words = " or ".join(PROTOCOLS)
    if protocol is not None and protocol not in PROTOCOLS:
        raise UsageError("protocol", f"plans have no {protocol}", f"write {words}")
    protocol = protocol or algorithm.protocol or "Simple"
    if protocol not in PROTOCOLS:
        raise AlgorithmError(place, f"has the protocol {protocol}, which plans have not", f"give the protocol {words}")
    node = algorithm.ranks if npus_per_node is None else npus_per_node
    if node < 1:
        raise UsageError("npus_per_node", f"{node} is no number of NPUs", "write a whole number from 1")
    window = window_of(min_bytes, max_bytes)
    promise = promise_of(algorithm.collective)
    given, needed = (rule(algorithm.ranks, algorithm.chunks) for rule in (promise.input_chunks, promise.output_chunks))
    return {
        "name": algorithm.name,
        "collective": _NAMES[algorithm.collective],
        "protocol": protocol,
        "inplace": algorithm.in_place,
        "reuse_resources": False,
        "gpus": [
            {"id": rank, "input_chunks": given, "output_chunks": needed, **gpu}
            for rank, gpu in enumerate(_within_limits(algorithm, protocol == "LL", node, place))
        ],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": protocol == "LL",
        "buffer_alignment": 16,
        **window,
    }


def window_of(min_bytes: int | None, max_bytes: int | None) -> dict[str, int]:
    """The sizes, in bytes, for which executors take a plan; all by default. Raises UsageError: none."""
    low, high = 0 if min_bytes is None else min_bytes, _BYTES if max_bytes is None else max_bytes
    if not 0 <= low <= high <= _BYTES:
        raise UsageError("max_bytes", f"{low} to {high} bytes hold no size", "write a window that holds a size")
    return {"min_message_size": low, "max_message_size": high}


def _within_limits(algorithm: Algorithm, packets: bool, node: int, place: str) -> list[dict[str, object]]:
    """Thread blocks and channels of all ranks."""
    graph = graph_of(algorithm, place)
    ops = graph.operations()
    remedy = "use fewer chunks, or an algorithm of fewer messages"
    if len(ops) > MAX_STEPS:
        raise AlgorithmError(place, f"has {len(ops)} operations, and plans are written of {MAX_STEPS}", remedy)
    orders = Orders(ops)
    answered = orders.answered()
    across = [op for op in ops if op.kind == SEND and op.rank // node != op.peer.rank // node]
    messages = _Messages(
        packets=packets,
        node=node,
        direct=set() if packets else {op.number for op in ops if op.kind == RECEIVE and orders.stores_directly(op)},
        flushed=set() if packets else orders.overwritten_unread(across),
        unanswered={op.number for op in across if not answered(op)},
    )
    if not packets:
        orders.drop_implied()
    most, merged = max(limits.MAX_OPERATIONS, len(ops)), 1
    for attempt in range(_ATTEMPTS):
        blocks = StoreBlocks(ops, algorithm.ranks, most, merged)
        needed = max(map(len, blocks.blocks))
        if needed > MAX_BLOCKS and attempt == 0:
            # Not even one for each peer.
            merged = -(-needed // MAX_BLOCKS)
            blocks = StoreBlocks(ops, algorithm.ranks, most, merged)
            needed = max(map(len, blocks.blocks))
        if needed > MAX_BLOCKS:
            problem = f"needs {needed} thread blocks of a gpu, and at most {MAX_BLOCKS} surely run at once"
            raise AlgorithmError(place, problem, remedy)
        blocks.connect()
        writer = _PlanWriter(blocks, Places(scratch_ends(graph.steps), graph.cells), messages)
        longest = max((len(written) for written in writer.written.values()), default=0)
        if longest <= limits.MAX_OPERATIONS or most == 1:
            break
        busiest = max(
            max(sum(op.kind == SEND for op in block.operations), block.local)
            for of_rank in blocks.blocks
            for block in of_rank
        )
        most = max(1, min(most - 1, busiest * limits.MAX_OPERATIONS // (longest + 1)))
    for block, written in writer.written.items():
        for problem in _beyond(written):
            where = f"rank {block.rank} block {block.number}"
            raise AlgorithmError(place, f"{where} {problem}", remedy)
    return rank_documents(writer.written, writer.places.ends)


def _beyond(written: list[Instruction]) -> Iterator[str]:
    """What executors have no room for in a thread block."""
    if len(written) > limits.MAX_OPERATIONS:
        yield f"has {len(written)} operations, and executors run {limits.MAX_OPERATIONS}"
    for kind in (MEMORY, PORT):
        of_kind = [instruction for instruction in written if instruction.channel_type == kind]
        channels = {channel for instruction in of_kind for channel in instruction.channels}
        if len(channels) > limits.MAX_CHANNELS:
            yield f"has {len(channels)} {kind} channels, and executors have {limits.MAX_CHANNELS}"
        buffers = {(target.rank, target.buffer) for instruction in of_kind for target in instruction.targets}
        if len(buffers) > limits.MAX_REMOTE_BUFFERS:
            yield f"has {len(buffers)} remote buffers, and executors have {limits.MAX_REMOTE_BUFFERS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """How messages are sent, by numbers of their operations. `direct`: receives whose cells are stored into. `flushed`:
    sends that must be waited for. `unanswered`: those between nodes whose arrival is not sure at the end."""

    packets: bool
    node: int
    direct: set[int]
    flushed: set[int]
    unanswered: set[int]

    def type_of(self, a: int, b: int) -> str:
        """The channels between two ranks."""
        return MEMORY if a // self.node == b // self.node else PORT


class _PlanWriter:
    """The operations of all blocks (`written`), and the channels, buffers and semaphores that these name."""

    def __init__(self, blocks: StoreBlocks, places: Places, messages: _Messages) -> None:
        self.blocks, self.places, self.messages = blocks, places, messages
        #: By number of a receive, the scratch that its message comes into.
        self.arrivals: dict[int, Cells] = {}
        #: By number of a send: whether it ends with a signal. By number of a receive: for which signal it waits.
        self.signals: set[int] = set()
        self.signal_of: dict[int, int] = {}
        self.numbered = {
            BlockName(rank, number): block.operations
            for rank, of_rank in enumerate(blocks.blocks)
            for number, block in enumerate(of_rank)
        }
        for operations in self.numbered.values():
            self._number_signals(operations)
        self.senders = {name for name, held in self.numbered.items() if any(op.kind == SEND for op in held)}
        self.senders_of = Counter(name.rank for name in self.senders)
        self.written = {block: self._write(block, operations) for block, operations in self.numbered.items()}

    # -- operations

    def _number_signals(self, operations: list[Operation]) -> None:
        """Decide which sends of a block end with a signal, and how many their receives wait for."""
        signals: dict[BlockName, int] = defaultdict(int)
        for send, following in pairwise([*operations, None]):
            if send is None or send.kind != SEND:
                continue
            peer = self.blocks.peer_block(send)
            self.signal_of[send.peer.number] = signals[peer] + 1
            flushes = send.number in self.messages.flushed
            if flushes or following is None or not self.blocks.share_signal(send, following):
                signals[peer] += 1
                self.signals.add(send.number)

    def _write(self, block: BlockName, operations: list[Operation]) -> list[Instruction]:
        written = BlockDraft()
        if not self.messages.packets:
            self._begin(block, operations, written)
        last = {self.blocks.peer_block(op): op.number for op in operations if op.kind == SEND}
        waits: dict[BlockName, int] = defaultdict(int)
        release_to: list[int] = []
        for index, op in enumerate(operations):
            awaited = self.blocks.waits[block.rank][block.number][index]
            pairs = [(other, block.number) for other, _ in awaited]
            for batch in _batched(pairs, limits.MAX_SEMAPHORES):
                written.wait("sem_acquire", semaphores=batch)
            if op.kind == SEND:
                self._send(block, op, written, is_last=op.number == last[self.blocks.peer_block(op)])
            elif op.kind in (RECEIVE, RECEIVE_REDUCE):
                self._receive(block, op, written, waits)
            else:
                for kind, source, target in self.places.work(op):
                    self._local(op, written, kind, source, target)
            release_to += self.blocks.releases.get((block, index), ())
            if release_to and (op.kind != SEND or op.number in self.signals):
                for batch in _batched([(block.number, other) for other in release_to], limits.MAX_SEMAPHORES):
                    written.tell("sem_release", semaphores=batch)
                release_to = []
        return written.instructions

    def _begin(self, block: BlockName, operations: list[Operation], written: BlockDraft) -> None:
        """Let peers that store into this rank know that it runs, and wait for those that it stores into."""
        for name, kinds in (("signal", (RECEIVE, RECEIVE_REDUCE)), ("wait", (SEND,))):
            peers = dict.fromkeys(self.blocks.peer_block(op) for op in operations if op.kind in kinds)
            for channel_type, prefix in ((MEMORY, "rlx"), (PORT, "")):
                of_type = [p for p in peers if self.messages.type_of(block.rank, p.rank) == channel_type]
                channels = [channel_of(block, peer) for peer in of_type]
                for batch in _batched(channels, limits.MAX_OPERATION_CHANNELS):
                    add = written.tell if name == "signal" else written.wait
                    add(prefix + name, channel_type, channels=batch)
        # Blocks that begin together take links in their order, which is that of the algorithm's sends.
        if block in self.senders and self.senders_of[block.rank] > 1:
            written.meet_others(self.senders_of[block.rank])

    def _send(self, block: BlockName, op: Operation, written: BlockDraft, *, is_last: bool) -> None:
        (_, cells, _), *_ = self.places.work(op)
        source = _range(op, cells)
        target = _range(op.peer, self._arrival(op.peer))
        peer = self.blocks.peer_block(op)
        channel_type = self.messages.type_of(op.rank, op.peer.rank)
        channels = (channel_of(block, peer),)
        if self.messages.packets:
            self._send_packets(op, written, source, Instruction("", (), (target,), channel_type, channels))
        elif channel_type == MEMORY:
            written.work(Instruction("put", (source,), (target,), MEMORY, channels))
            if op.number in self.signals:
                written.tell("signal", MEMORY, channels=channels)
        else:
            flushes = op.number in self.messages.flushed or (is_last and op.number in self.messages.unanswered)
            name = "put" if op.number not in self.signals else "pwsf" if flushes else "pws"
            written.work(Instruction(name, (source,), (target,), PORT, channels))

    def _send_packets(self, op: Operation, written: BlockDraft, source: Range, sent: Instruction) -> None:
        """Send cells as packets: forwarded ones, or those of raw data, which proxies do not make."""
        feeder, name = op.feeder, "ppkt"
        # Raw data may join those of the operation before.
        joins = sent.channel_type == MEMORY and [last.name for last in written.instructions[-1:]] == ["ppkt"]
        received = feeder is not None and feeder.kind == RECEIVE and feeder.count == op.count
        if feeder and received and not joins and self.places.cells(feeder)[2] == source.cell:
            source, name = _range(feeder, self._arrival(feeder)), "rppkt"
        if name == "ppkt" and sent.channel_type == PORT:
            packets = _range(op, self.places.unused(op.rank, op.count))
            written.work(Instruction("cpkt", (source,), (packets,)))
            source, name = packets, "rppkt"
        written.work(replace(sent, name=name, sources=(source,)))

    def _arrival(self, op: Operation) -> Cells:
        """The cells that the message of a receive comes into."""
        if op.number in self.messages.direct:
            return self.places.cells(op)
        if op.number not in self.arrivals:
            self.arrivals[op.number] = self.places.unused(op.rank, op.count)
        return self.arrivals[op.number]

    def _receive(self, block: BlockName, op: Operation, written: BlockDraft, waits: dict[BlockName, int]) -> None:
        peer = self.blocks.peer_block(op)
        if not self.messages.packets:
            while waits[peer] < self.signal_of[op.number]:
                waits[peer] += 1
                written.wait("wait", self.messages.type_of(op.rank, peer.rank), channels=(channel_of(block, peer),))
            if op.number in self.messages.direct:
                return
        arrival, target = _range(op, self._arrival(op)), _range(op, self.places.cells(op))
        packets = self.messages.packets
        if op.kind == RECEIVE:
            written.work(Instruction("upkt" if packets else "copy", (arrival,), (target,)))
        else:
            (_, source, _), *_ = self.places.work(op)
            written.work(Instruction("repkt" if packets else "re", (_range(op, source), arrival), (target,)))

    def _local(self, op: Operation, written: BlockDraft, kind: str, source: Cells, target: Cells) -> None:
        first, last = _range(op, source), _range(op, target)
        if kind == "cpy":
            written.work(Instruction("copy", (first,), (last,)))
        else:
            written.work(Instruction("re", (last, first), (last,)))


def _batched(items: Sequence[_T], most: int) -> Iterator[tuple[_T, ...]]:
    """Some items, at most so many at a time."""
    for begin in range(0, len(items), most):
        yield tuple(items[begin : begin + most])


def _range(op: Operation, cells: Cells) -> Range:
    buffer, first, cell = cells
    return Range(op.rank, _LETTERS[Buffer(buffer)], first, op.count, cell)
