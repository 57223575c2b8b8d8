"""Live graphs: a program's lists, and the blocks that are spliced from them at dispatch."""

from __future__ import annotations

import itertools
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.system.plan import Counters, Matching, MscclConnections, RankProgram, Structure

if TYPE_CHECKING:
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


class Counts:
    """Counters of a program as Python lists."""

    __slots__ = ("counts", "detached", "from_node", "initial", "k", "of")

    def __init__(self, counters: Counters) -> None:
        self.counts: list[int] = counters.counts.tolist()
        self.of: list[int] = counters.of.tolist()
        self.k: list[int] = counters.k.tolist()
        self.detached: list[bool] = counters.detached.tolist()
        #: By counter: (count, node) of the nodes that wait for a count from the start, ascending (so a heap).
        self.initial: list[list[tuple[int, int]]] = [[] for _ in range(counters.number)]
        #: Node → the nodes whose count begins with its completion.
        self.from_node: dict[int, list[int]] = {}
        for node, (counter, start) in enumerate(zip(self.of, counters.start.tolist(), strict=True)):
            if counter >= 0 and start < 0:
                self.initial[counter].append((self.k[node], node))
            elif counter >= 0:
                self.from_node.setdefault(start, []).append(node)
        for waiting in self.initial:
            waiting.sort()


class Template:
    """A program as Python lists: what a block is made from."""

    __slots__ = (
        "call",
        "connection",
        "count",
        "counts",
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
        program: RankProgram,
        shape: Shape,
        meet: np.ndarray | None,
        of_workload: bool,
        fifos: MscclConnections | None = None,
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
        self.call: list[int] = program.instance.tolist() if of_workload else []
        self.counts = None if program.counters is None else Counts(program.counters)
        self.fifos = fifos
        if self.counts is not None and any(self.counts.detached):
            self.slot = self.counts.detached  # nodes must be admitted
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
        program: RankProgram,
        matching: Matching | None,
        position: int,
        of_workload: bool = False,
        fifos: MscclConnections | None = None,
    ) -> Template:
        """The template of one program in one space."""
        key = (id(program), id(matching), position)
        template = self._templates.get(key)
        if template is None:
            structure = program.structure
            shape = self._shapes.get(structure.key)
            if shape is None:
                shape = self._shapes[structure.key] = Shape(structure)
            meet = matching.match_key[position] if matching is not None else None
            template = self._templates[key] = Template(program, shape, meet, of_workload, fifos, position)
        return template


class Space:
    """Where sends and receives meet.

    `table` holds, by meeting point, a message that has arrived or the receive that waits for it; the counters
    number the sends and receives posted on a channel of several messages. Under the rendezvous `asked` holds, by
    meeting point, what the receiver has asked with, or the send that waits to be asked.
    """

    __slots__ = ("asked", "posted", "sent", "table")

    def __init__(self) -> None:
        self.table: dict[int, object] = {}
        self.asked: dict[int, object] = {}
        self.sent: dict[int, int] = {}
        self.posted: dict[int, int] = {}


def numbered(counters: dict[int, int], meet: int) -> int:
    """Meeting point of the next send or receive posted on a channel of several messages."""
    channel = ~meet
    k = counters.get(channel, 0)
    counters[channel] = k + 1
    return ~(channel << 40 | k)


class Call:
    """One slice under way (mostly a whole collective): its space, and who is still in it."""

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
        "counted",
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
        "stream",
        "succ",
        "table",
        "template",
        "waiting",
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
        #: Stream (`streams.Run`) that this block is a phase of.
        self.stream = None
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

    def released_by(self, rows: list[int], row: int) -> None:
        """The node in `row` of the node table has made `rows` of this block ready."""

    def admit(self, node: int) -> bool:
        """Whether a ready node of an algorithm may be issued."""
        return True

    def issued(self, node: int) -> None:
        """A detached send is issued now."""

    def landed(self, node: int) -> None:
        """A detached send has been delivered."""


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

    def released_by(self, rows: list[int], row: int) -> None:
        for node in rows:
            self.released[node] = row

    def issued(self, node: int) -> None:
        self.start[node] = self.npu.env.now

    def landed(self, node: int) -> None:
        self.end[node] = self.npu.env.now
        if not self.left:  # the block is in the node table already
            self.npu.engine.recorder.late(self.row + node, self.npu.env.now)


class CountingMixin:
    """What a block with counters or detached sends adds."""

    __slots__ = ()

    def __init__(self, npu: Npu, template: Template, index: int, space: Space, call: Call | None, parent: int) -> None:
        super().__init__(npu, template, index, space, call, parent)
        counts = template.counts
        #: Completions by counter, and what waits for how many of them, as heaps.
        self.counted = [0] * len(counts.initial)
        self.waiting = [waiting.copy() for waiting in counts.initial]

    def admit(self, node: int) -> bool:
        """A detached send leaves the block when it is issued."""
        if not super().admit(node):
            return False
        if self.template.counts.detached[node]:
            self.issued(node)
            self.left -= 1
            if not self.left:
                self.npu.block_done(self, self.row + node if self.row >= 0 else -1)
        return True

    def complete(self, node: int, ended_by: int = -1) -> None:
        counts = self.template.counts
        if counts.detached[node]:
            self.landed(node)
            return
        super().complete(node, ended_by)
        if not self.left:
            return
        counter = counts.counts[node]
        reached: list[int] = []
        if counter >= 0:
            count = self.counted[counter] = self.counted[counter] + 1
            waiting = self.waiting[counter]
            while waiting and waiting[0][0] == count:
                reached.append(heappop(waiting)[1])
        for waiter in counts.from_node.get(node, ()):
            counter = counts.of[waiter]
            heappush(self.waiting[counter], (self.counted[counter] + counts.k[waiter], waiter))
        if reached:
            self.reach(reached, node)

    def reach(self, nodes: list[int], by: int) -> None:
        """The completion of node `by` is the one that `nodes` have counted to."""
        npu, need = self.npu, self.need
        for node in nodes:
            need[node] -= 1
        ready = [node for node in nodes if not need[node]]
        self.released_by(ready, self.row + by)
        npu.ready.extend([self.base + node for node in ready])
        if npu.ready and not npu.awake:
            npu.poke()


class SlotsMixin:
    """What a workload's block adds: slots, and the accounts of compute and exposed communication."""

    __slots__ = ()

    def complete(self, node: int, ended_by: int = -1) -> None:
        npu = self.npu
        npu.node_ended(self, node)
        super().complete(node, ended_by)


def block_class(
    *, recorded: bool, of_workload: bool = False, counting: bool = False, mixin: type | None = None
) -> type[Block]:
    """The leanest class of block for what it has to do.

    Parameters
    ----------
    recorded : bool
        It writes down when its nodes ran.
    of_workload : bool
        It has slots, and the accounts of compute and exposed communication.
    counting : bool
        It has counters or detached sends.
    mixin : type, optional
        What else it must do (`fifo.FifoMixin`).
    """
    wanted = [CountingMixin] if counting else []
    wanted += [SlotsMixin] if of_workload else []
    wanted += [] if mixin is None else [mixin]
    base = RecordedBlock if recorded else Block
    if not wanted:
        return base
    bases = (*wanted, base)
    return type("".join(c.__name__.removesuffix("Mixin") for c in bases), bases, {"__slots__": ()})
