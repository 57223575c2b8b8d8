"""Operations of a plan that is being written: by what they access, not yet by positions in lists."""

from dataclasses import dataclass, field

from astrasim_py.mscclpp import limits
from astrasim_py.mscclpp.ir import MEMORY, PORT
from astrasim_py.mscclpp.operations import KINDS
from astrasim_py.mscclpp.stores import BlockName


@dataclass(frozen=True, slots=True)
class Range:
    """Chunks of a buffer of a rank; `cell`: number of the first one over all ranks."""

    rank: int
    buffer: str
    first: int
    size: int
    cell: int


#: Two blocks that share a channel, the one of the lower rank first.
Channel = tuple[BlockName, BlockName]


@dataclass(slots=True)
class Instruction:
    """An operation of a plan. `channels`: to the blocks that it has to do with, whether or not it names them.
    `semaphores`: as (block that releases, block that acquires). `blocks`: that meet at a barrier."""

    name: str
    sources: tuple[Range, ...] = ()
    targets: tuple[Range, ...] = ()
    channel_type: str = ""
    channels: tuple[Channel, ...] = ()
    semaphores: tuple[tuple[int, int], ...] = ()
    blocks: int = 0

    @property
    def ranges(self) -> tuple[Range, ...]:
        return (*self.sources, *self.targets)


@dataclass(slots=True)
class BlockDraft:
    """The operations of a thread block; nops are added where its threads must meet."""

    instructions: list[Instruction] = field(default_factory=list)
    #: Since the last nop: what was accessed, as (packets, begin, end, unit, writes), and whether something was awaited.
    accesses: list[tuple[bool, int, int, str, bool]] = field(default_factory=list)
    awaited: bool = False

    def meet(self) -> None:
        """Add a nop, unless nothing happened since the last one."""
        if self.accesses or self.awaited:
            self.instructions.append(Instruction("nop"))
            self.accesses, self.awaited = [], False

    def meet_others(self, blocks: int) -> None:
        """Add a barrier of so many blocks of the rank, which is a nop, too."""
        self.instructions.append(Instruction("barrier", blocks=blocks))
        self.accesses, self.awaited = [], False

    def wait(self, name: str, channel_type: str = "", **operands) -> None:
        self.instructions.append(Instruction(name, channel_type=channel_type, **operands))
        self.awaited = True

    def tell(self, name: str, channel_type: str = "", **operands) -> None:
        """Let others know of all that was done and awaited before."""
        self.meet()
        self.instructions.append(Instruction(name, channel_type=channel_type, **operands))

    def work(self, instruction: Instruction) -> None:
        """Add an operation on cells, which may join the one before."""
        kind, port = KINDS[instruction.name], instruction.channel_type == PORT
        unit = "port" if port and not kind.reads_packets else str(kind.unit)
        accesses = []
        for ranges, rule, writes in (
            (instruction.sources, kind.reads_packets, False),
            (instruction.targets, kind.writes_packets, True),
        ):
            for number, covered in enumerate(ranges):
                packet = rule == "all" or (rule == "rest" and number > 0)
                accesses.append((packet, covered.cell, covered.cell + covered.size, unit, writes))
        if self.awaited or any(_other_threads(a, b) for a in self.accesses for b in accesses):
            self.meet()
        self.accesses += accesses
        if not self._joined(instruction):
            self.instructions.append(instruction)

    def _joined(self, new: Instruction) -> bool:
        """True if an operation is done as a part of the one before."""
        last = self.instructions[-1] if self.instructions else None
        if last is None or new.channel_type != MEMORY or len(new.sources) != 1:
            return False
        together = {("re", "put"): "res", ("repkt", "ppkt"): "respkt"}.get((last.name, new.name), "")
        sums = bool(together) or (last.name, new.name) in (("res", "put"), ("respkt", "ppkt"))
        if sums and last.targets[0] == new.sources[0] and len(last.targets) < limits.MAX_TARGETS:
            last.name, last.channel_type = together or last.name, MEMORY
            last.targets += new.targets
            last.channels += new.channels
            return True
        alike = last.name == new.name in ("put", "ppkt") and last.channel_type == MEMORY
        if alike and last.sources[0].buffer == new.sources[0].buffer and len(last.targets) < limits.MAX_TARGETS:
            last.sources += new.sources
            last.targets += new.targets
            last.channels += new.channels
            return True
        return False


def _other_threads(a: tuple[bool, int, int, str, bool], b: tuple[bool, int, int, str, bool]) -> bool:
    """True if two accesses need a nop between: one writes what another thread uses in the other instruction."""
    if a[0] != b[0] or not (a[4] or b[4]) or a[2] <= b[1] or b[2] <= a[1]:
        return False
    return a[1] != b[1] or a[3] != b[3] or a[3] == "port"


def channel_of(a: BlockName, b: BlockName) -> Channel:
    return (a, b) if a < b else (b, a)


def channel_ends(channel: Channel) -> tuple[int, int]:
    return channel[0].rank, channel[1].rank
