"""Live graphs: a program's lists, and the blocks that are spliced from them at dispatch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.system.channels import Fifos
from astrasim_py.system.plan import Matching, Program, Structure

if TYPE_CHECKING:
    from astrasim_py.engine.simpy_engine.engine import Engine
    from astrasim_py.engine.simpy_engine.npu import Npu

#: A ready node is one integer, (instance + 1) << INSTANCE_SHIFT | node: sorting it gives the order of dispatch.
INSTANCE_SHIFT = 32
NODE_MASK = (1 << INSTANCE_SHIFT) - 1


class Shape:
    """A structure as Python lists, shared by every program of that shape."""

    __slots__ = ("kind", "need", "roots", "succ")

    def __init__(self, structure: Structure) -> None:
        self.kind: list[int] = structure.kind.tolist()
        self.need: list[int] = structure.need.tolist()
        self.roots: list[int] = structure.roots.tolist()
        ptr, succ = structure.succ_ptr.tolist(), structure.succ.tolist()
        self.succ: list[tuple[int, ...]] = [tuple(succ[a:b]) for a, b in itertools.pairwise(ptr)]


class Template:
    """A program as Python lists: what a block is made from."""

    __slots__ = (
        "call",
        "connection",
        "count",
        "duration",
        "fifos",
        "frees",
        "meet",
        "nbytes",
        "needs",
        "peer",
        "program",
        "shape",
        "slot",
    )

    def __init__(
        self,
        program: Program,
        shape: Shape,
        meet: np.ndarray | None,
        of_workload: bool,
        fifos: Fifos | None = None,
        position: int = 0,
    ) -> None:
        self.program = program
        self.shape = shape
        self.count = len(program)
        self.nbytes: list[int] = program.nbytes.tolist()
        self.duration: list[int] = program.duration.tolist()
        self.peer: list[int] = program.peer.tolist()
        self.meet: list[int] = meet.tolist() if meet is not None else []
        self.slot: list[int] = program.slot.tolist() if of_workload else []
        self.call: list[int] = program.call.tolist() if of_workload else []
        self.fifos = fifos
        if fifos is not None:
            self.needs: list[int] = fifos.needs[position].tolist()
            self.frees: list[int] = fifos.frees[position].tolist()
            self.connection: list[int] = fifos.connection[position].tolist()
            if max(self.needs + self.frees, default=-1) >= 0:
                self.slot = self.needs  # nodes must be admitted


class Templates:
    """Templates by program and matching, each made once."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, Shape] = {}
        self._templates: dict[tuple, Template] = {}

    def get(
        self,
        program: Program,
        matching: Matching | None,
        position: int,
        of_workload: bool = False,
        fifos: Fifos | None = None,
    ) -> Template:
        """The template of one program in one space."""
        key = (id(program), id(matching), position)
        template = self._templates.get(key)
        if template is None:
            structure = program.structure
            shape = self._shapes.get(structure.key)
            if shape is None:
                shape = self._shapes[structure.key] = Shape(structure)
            meet = matching.meet[position] if matching is not None else None
            template = self._templates[key] = Template(program, shape, meet, of_workload, fifos, position)
        return template


class Space:
    """Where sends and receives meet.

    `table` holds, by meeting point, a message that has arrived or the receive that waits for it; the counters
    number the sends and receives posted on a channel of several messages.
    """

    __slots__ = ("posted", "sent", "table")

    def __init__(self) -> None:
        self.table: dict[int, object] = {}
        self.sent: dict[int, int] = {}
        self.posted: dict[int, int] = {}


def numbered(counters: dict[int, int], meet: int) -> int:
    """Meeting point of the next send or receive posted on a channel of several messages."""
    channel = ~meet
    k = counters.get(channel, 0)
    counters[channel] = k + 1
    return ~(channel << 40 | k)


class Call:
    """One collective instance under way: its space, and who is still in it."""

    __slots__ = ("connections", "end", "left", "members", "positions", "space", "start")

    def __init__(self, members: tuple[int, ...], positions: dict[int, int], space: Space, start: int) -> None:
        #: Under the MSCCL link model: the state of its connections (`fifo.Connections`).
        self.connections = None
        self.members = members
        self.positions = positions
        self.space = space
        self.left = len(positions)
        self.start = start
        self.end = -1


class Block:
    """A program spliced into one rank's live graph."""

    __slots__ = (
        "base",
        "call",
        "duration",
        "kind",
        "left",
        "meet",
        "members",
        "nbytes",
        "need",
        "npu",
        "parent",
        "peer",
        "row",
        "slot",
        "space",
        "succ",
        "table",
        "template",
    )

    def __init__(self, npu: Npu, template: Template, index: int, space: Space, call: Call | None, parent: int) -> None:
        self.npu = npu
        self.template = template
        self.base = (index + 1) << INSTANCE_SHIFT
        self.space = space
        self.table = space.table
        self.call = call
        #: Ranks by position in the group (of a workload: by rank in the job).
        self.members = npu.members if call is None else call.members
        self.kind = template.shape.kind
        self.meet = template.meet
        self.nbytes = template.nbytes
        self.duration = template.duration
        self.peer = template.peer
        self.slot = template.slot
        #: Collective node of the workload that this block carries out, -1 for the workload itself.
        self.parent = parent
        self.need = template.shape.need.copy()
        self.succ = template.shape.succ
        self.left = template.count
        self.row = -1

    def release_roots(self) -> None:
        """The first nodes are ready."""
        base = self.base
        self.npu.ready.extend([base + root for root in self.template.shape.roots])

    def complete(self, node: int, ended_by: int = -1) -> None:
        """`node` is done: release what waited for it alone; the last one ends the collective."""
        npu, need, base = self.npu, self.need, self.base
        ready = npu.ready
        for successor in self.succ[node]:
            left = need[successor] - 1
            need[successor] = left
            if not left:
                ready.append(base + successor)
        self.left -= 1
        if not self.left:
            npu.block_done(self, -1)
        if npu.ready and not npu.awake:
            npu.poke()


class RecordedBlock(Block):
    """A block that also writes down when its nodes ran and what released them."""

    __slots__ = ("end", "ended", "released", "start")

    def __init__(self, npu: Npu, template: Template, index: int, space: Space, call: Call | None, parent: int) -> None:
        super().__init__(npu, template, index, space, call, parent)
        n = template.count
        self.row = npu.engine.plan.node_rows[0][npu.rank, index]
        self.start = [-1] * n
        self.end = [-1] * n
        released = npu.blocks[0].row + parent if parent >= 0 else -1
        self.released = [released] * n
        self.ended = [-1] * n

    def complete(self, node: int, ended_by: int = -1) -> None:
        row = self.row + node
        self.end[node] = self.npu.env.now
        self.ended[node] = ended_by
        npu, need, base = self.npu, self.need, self.base
        for successor in self.succ[node]:
            left = need[successor] - 1
            need[successor] = left
            if not left:
                self.released[successor] = row
                npu.ready.append(base + successor)
        self.left -= 1
        if not self.left:
            npu.block_done(self, row)
        if npu.ready and not npu.awake:
            npu.poke()

    def flush(self, recorder) -> None:
        """Copy this block's rows into the node table."""
        recorder.block(self.row, self.start, self.end, self.released, self.ended)


class SlotsMixin:
    """What a workload's block adds: slots, and the accounts of compute and exposed communication."""

    __slots__ = ()

    def complete(self, node: int, ended_by: int = -1) -> None:
        npu = self.npu
        npu.node_ended(self, node)
        super().complete(node, ended_by)


class WorkloadBlock(SlotsMixin, Block):
    """The live graph of a rank's workload."""

    __slots__ = ()


class RecordedWorkloadBlock(SlotsMixin, RecordedBlock):
    """The same, recorded."""

    __slots__ = ()


def block_class(engine: Engine, of_workload: bool) -> type[Block]:
    """The leanest block for what is to be recorded."""
    if of_workload:
        return RecordedWorkloadBlock if engine.record_nodes else WorkloadBlock
    return RecordedBlock if engine.record_nodes else Block
