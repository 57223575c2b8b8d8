"""Plans in Python: what every thread block puts, signals and waits for; nops are added where its threads must meet.

>>> program = OneSided("all_gather", ranks=2)
>>> for rank in range(2):
...     block, peer = program.block(rank), 1 - rank
...     block.signal(peer, relaxed=True)
...     block.wait(peer, relaxed=True)
...     block.put(("o", rank), peer, ("o", rank))
...     block.signal(peer)
...     block.wait(peer)
>>> from astrasim_py.mscclpp.verify import verify_plan
>>> verify_plan(program.plan()).passes
True
"""

from collections import Counter

from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.mscclpp.documents import rank_documents
from astrasim_py.mscclpp.drafts import BlockDraft, Channel, Instruction, Range, channel_of
from astrasim_py.mscclpp.ir import BUFFERS, COLLECTIVES, INPUT, MEMORY, OUTPUT, PORT, SCRATCH, Plan
from astrasim_py.mscclpp.reader import plan_of
from astrasim_py.mscclpp.stores import BlockName

#: A chunk, or the first of some: letter of the buffer (``i``, ``o``, ``s``), and number.
Chunk = tuple[str, int]
#: Numbers of cells of a rank, by which operations that need a nop between are found.
_STRIDE, _OF_SCRATCH = 2**40, 2**39


class OneSided:
    """A plan in the making.

    Parameters
    ----------
    collective : str
        all_reduce, all_gather, reduce_scatter or all_to_all.
    ranks : int
    chunks : int, optional
        Of the full buffer; one for each rank by default.
    protocol : str
        ``Simple`` or ``LL``.
    in_place : bool
    name : str

    Raises
    ------
    AlgorithmError
        Another collective, or chunks that do not divide among the ranks.
    """

    def __init__(
        self,
        collective: str,
        ranks: int,
        chunks: int | None = None,
        *,
        protocol: str = "Simple",
        in_place: bool = True,
        name: str = "one_sided",
    ) -> None:
        self.name, self.collective, self.ranks = name, collective, ranks
        self.protocol, self.in_place = protocol, in_place
        self.chunks = ranks if chunks is None else chunks
        if collective not in COLLECTIVES.values():
            raise AlgorithmError(name, f"plans have no {collective}", f"write one of {', '.join(COLLECTIVES.values())}")
        promise = promise_of(collective)
        if self.chunks < 1 or (promise.sharded and self.chunks % ranks):
            raise AlgorithmError(name, f"has {self.chunks} chunks for {ranks} ranks", f"write a multiple of {ranks}")
        self.inputs, self.outputs = promise.input_chunks(ranks, self.chunks), promise.output_chunks(ranks, self.chunks)
        self.scratch = [0] * ranks
        self._blocks: dict[BlockName, Block] = {}
        self._of_rank: Counter[int] = Counter()

    def block(self, rank: int) -> "Block":
        """A new thread block of a rank; the k-th ones of two ranks share channels unless they say otherwise."""
        if not 0 <= rank < self.ranks:
            raise AlgorithmError(self.name, f"{rank} is not one of {self.ranks} ranks", f"write 0 to {self.ranks - 1}")
        block = BlockName(rank, self._of_rank[rank])
        self._of_rank[rank] += 1
        return self._blocks.setdefault(block, Block(self, block))

    def plan(self) -> Plan:
        """The plan. Raises AlgorithmError: a chunk, channel or block that is not there."""
        written = {block: self._blocks[block].draft.instructions for block in sorted(self._blocks)}
        names = {ours: theirs for theirs, ours in COLLECTIVES.items()}
        documents = rank_documents(written, self.scratch)
        document = {
            "name": self.name,
            "collective": names[self.collective],
            "protocol": self.protocol,
            "inplace": self.in_place,
            "gpus": [
                {"id": rank, "input_chunks": self.inputs, "output_chunks": self.outputs, **gpu}
                for rank, gpu in enumerate(documents)
            ],
            "use_double_scratch_buffer": self.protocol == "LL",
        }
        return plan_of(document, self.name)

    def range(self, rank: int, chunk: Chunk, size: int) -> Range:
        buffer, first = chunk
        if buffer not in BUFFERS:
            raise AlgorithmError(self.name, f'"{buffer}" is no buffer', "write i, o or s")
        cell = rank * _STRIDE + first
        if buffer == SCRATCH:
            self.scratch[rank] = max(self.scratch[rank], first + size)
            cell += _OF_SCRATCH
        elif not self.in_place:
            cell += self.chunks * (buffer == OUTPUT)
        elif (self.inputs, self.outputs) != (self.chunks, self.chunks):
            # A shard is at its place in the other buffer.
            shard = INPUT if self.inputs < self.outputs else OUTPUT
            cell += rank * min(self.inputs, self.outputs) * (buffer == shard)
        return Range(rank, buffer, first, size, cell)


class Block:
    """A thread block: its operations, in order. Chunks are (buffer, number); `size`: how many from there."""

    def __init__(self, program: OneSided, name: BlockName) -> None:
        self.program, self.name, self.draft = program, name, BlockDraft()

    def put(self, source: Chunk, peer: int, target: Chunk, size: int = 1, *, port: bool = False) -> None:
        """Store chunks on another rank; under LL as packets into its scratch. `port`: by a proxy, with a signal."""
        name = "pwsf" if port else "ppkt" if self.program.protocol == "LL" else "put"
        channels = (self._channel(peer),) if port else ()
        self._work(name, [(self.name.rank, source)], [(peer, target)], size, PORT if port else MEMORY, channels)

    def get(self, peer: int, source: Chunk, target: Chunk, size: int = 1) -> None:
        """Load chunks of another rank."""
        self._work("get", [(peer, source)], [(self.name.rank, target)], size, MEMORY)

    def copy(self, source: Chunk, target: Chunk, size: int = 1) -> None:
        """Copy chunks of the rank; under LL from packets of scratch."""
        packets = self.program.protocol == "LL" and source[0] == SCRATCH
        self._work("upkt" if packets else "copy", [(self.name.rank, source)], [(self.name.rank, target)], size)

    def reduce(self, target: Chunk, source: Chunk, peer: int | None = None, size: int = 1) -> None:
        """Add chunks to others: of the rank (under LL packets of scratch), or of a peer."""
        packets = self.program.protocol == "LL" and source[0] == SCRATCH and peer is None
        name = "rre" if peer is not None else "repkt" if packets else "re"
        owner = self.name.rank if peer is None else peer
        sources = [(self.name.rank, target), (owner, source)]
        self._work(name, sources, [(self.name.rank, target)], size, "" if peer is None else MEMORY)

    def signal(self, peer: int, *, relaxed: bool = False, port: bool = False) -> None:
        """Count in a channel to a peer, after all that the block has done; `relaxed`: say only that it runs."""
        name = "rlxsignal" if relaxed and not port else "signal"
        self.draft.tell(name, PORT if port else MEMORY, channels=(self._channel(peer),))

    def wait(self, peer: int, *, relaxed: bool = False, port: bool = False) -> None:
        """Wait for the next signal of a peer."""
        name = "rlxwait" if relaxed and not port else "wait"
        self.draft.wait(name, PORT if port else MEMORY, channels=(self._channel(peer),))

    def _channel(self, peer: int) -> Channel:
        return channel_of(self.name, BlockName(peer, self.name.number))

    def _work(
        self, name: str, sources: list[tuple[int, Chunk]], targets: list[tuple[int, Chunk]], size: int,
        channel_type: str = "", channels: tuple[Channel, ...] = (),
    ) -> None:  # fmt: skip
        read, written = ([self.program.range(rank, chunk, size) for rank, chunk in side] for side in (sources, targets))
        self.draft.work(Instruction(name, tuple(read), tuple(written), channel_type, channels))
