"""An MSCCL++ execution plan as in its JSON: blocks of operations, channels, and references to chunks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import NamedTuple, TypeAlias

#: Collectives by the name that a plan gives them; plans for anything else have no contract.
COLLECTIVES: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
PROTOCOLS = ("Simple", "LL")
MEMORY, PORT, SWITCH = CHANNEL_TYPES = ("memory", "port", "switch")
#: Letters of buffers.
INPUT, OUTPUT, SCRATCH = BUFFERS = ("i", "o", "s")
#: How many times as many iterations as another a pipeline has in verification, at most.
MAX_RATIO = 64


class Local(NamedTuple):
    """Chunks [first, first + size) of a buffer of the rank."""

    buffer: str
    first: int
    size: int


class Remote(NamedTuple):
    """Chunks of a buffer of another rank, which stands at this position in the list of the thread block."""

    position: int
    first: int
    size: int


class Grouped(NamedTuple):
    """Chunks of the buffer of a switch channel, the same on all its ranks."""

    position: int
    first: int
    size: int


Reference: TypeAlias = Local | Remote | Grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of a thread block. `path`: where it stands in the file."""

    name: str
    path: str
    sources: tuple[Reference, ...] = ()
    targets: tuple[Reference, ...] = ()
    channel_type: str = ""
    channels: tuple[int, ...] = ()  # positions in the list of the thread block
    semaphores: tuple[int, ...] = ()
    barrier: int = -1
    blocks: int = 0  # that meet at a barrier
    share: tuple[int, int] = (0, 1)  # of a group of thread blocks: number, and how many
    unit_bytes: int = 0  # of a pipeline
    chunks: int = 0
    iterations: int = 0  # of the pipeline that it is in, where that is unrolled
    inner: tuple["Operation", ...] = ()


class RemoteBuffer(NamedTuple):
    """A buffer of another rank."""

    rank: int
    buffer: str


class SwitchChannel(NamedTuple):
    """A buffer of a group of ranks that a switch loads and stores."""

    buffer: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadBlock:
    """A thread block: its operations, and the channels and remote buffers that their positions mean, by channel type:
    numbers of those of the rank."""

    operations: tuple[Operation, ...]
    channels: Mapping[str, tuple[int, ...]]
    remote_buffers: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A rank: chunks of its buffers, its thread blocks, and what these share.

    `peers`: by channel type the ranks at the other end of its channels.
    """

    chunks: Mapping[str, int]
    blocks: tuple[ThreadBlock, ...]
    peers: Mapping[str, tuple[int, ...]]
    switches: tuple[SwitchChannel, ...]
    remote_buffers: tuple[RemoteBuffer, ...]
    semaphores: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan. `document` is its JSON object, `text` that of its file `source`, `warnings` what to know of it."""

    name: str
    collective: str
    protocol: str
    in_place: bool
    gpus: tuple[Gpu, ...]
    reuses: bool = False  # scratch of 64 MiB, whatever the message
    double_scratch: bool = False
    alignment: int = 16
    threads: int = 1024
    least: int = 0  # bytes
    most: int = 2**64 - 1
    source: str = ""
    document: Mapping[str, object] = field(default_factory=dict, repr=False)
    text: str = field(default="", repr=False, compare=False)
    warnings: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.gpus)

    @property
    def place(self) -> str:
        return self.source or self.name or "plan"


def walk(plan: Plan) -> Iterator[tuple[int, int, Operation]]:
    """All operations with their rank and thread block; a pipeline before its inner ones."""
    for rank, gpu in enumerate(plan.gpus):
        for number, block in enumerate(gpu.blocks):
            for operation in block.operations:
                yield rank, number, operation
                for inner in operation.inner:
                    yield rank, number, inner


def pipelined(plan: Plan) -> bool:
    return any(operation.name == "pipeline" for *_, operation in walk(plan))


def iterations_by_byte(plan: Plan) -> list[Fraction]:
    """Iterations of each pipeline for a byte of a chunk."""
    return [Fraction(op.chunks, op.unit_bytes) for *_, op in walk(plan) if op.name == "pipeline"]


def iterations_of_longest(plan: Plan, shortest: int) -> int:
    """Iterations of the longest pipeline of a plan where the shortest one has so many, at most MAX_RATIO times that."""
    by_byte = iterations_by_byte(plan)
    return shortest * min(ceil(max(by_byte) / min(by_byte)), MAX_RATIO) if by_byte else shortest


def reached(gpu: Gpu, block: ThreadBlock, channel_type: str, reference: Remote) -> RemoteBuffer:
    """The buffer that a remote reference of an operation means."""
    return gpu.remote_buffers[block.remote_buffers[channel_type][reference.position]]


def group_of(gpu: Gpu, block: ThreadBlock, reference: Grouped) -> SwitchChannel:
    """The switch channel that a reference of an operation means."""
    return gpu.switches[block.channels[SWITCH][reference.position]]
