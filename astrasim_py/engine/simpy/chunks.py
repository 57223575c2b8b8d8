"""Collectives that a planner has cut into chunks: these wait in queues of each NPU and run phase after phase.

A queue runs so many chunks at once; the others wait, higher priority first, then in order of arrival. A chunk that ends
a phase on this rank leaves the queue, whose first waiter starts, and joins the queue of its next phase. None of this
takes time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from heapq import heappop, heappush

from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.engine.simpy.simulation import OpenCall
from astrasim_py.system.plan import Chunk, Instance, Phase

#: Under ``event_order: scheduled`` chunks are dispatched after the calls of collectives that are not cut.
AFTER_CALLS = 1 << 30


class RankCollective:
    """A planned collective on one rank: its node in the workload, and how many chunks are not done.

    Where the planner gives turns, `turn` is the next turn of each queue, `turns` their number, and `early` holds the
    chunks that came before their turn.
    """

    def __init__(self, instance: Instance, opened, node: int) -> None:
        self.instance, self.opened, self.node, self.left = instance, opened, node, len(instance.chunks)
        self.turn: Counter[int] = Counter()
        self.turns = Counter(phase.queue for chunk in instance.chunks if chunk.turns for phase in chunk.phases)
        self.early: dict[tuple[int, int], RankChunk] = {}


class RankChunk:
    """A chunk on one rank: `place` numbers the phase that it runs or waits for, `arrival` its place in the line."""

    def __init__(self, collective: RankCollective, chunk: Chunk) -> None:
        self.collective, self.chunk, self.place, self.arrival = collective, chunk, 0, 0

    @property
    def phase(self) -> Phase:
        """The phase that it runs or waits for."""
        return self.chunk.phases[self.place]

    def call(self, rank: int) -> int:
        """Index of the call in which a rank takes part in this phase."""
        return self.phase.first + self.phase.call_of[rank]


class Queue:
    """Chunks of one queue of one NPU: those that run, in the order in which they began, and those that wait."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.capacity = number, capacity
        self.running: list[RankChunk] = []
        self.line: list[tuple[int, int, int, RankChunk]] = []
        #: Collectives that have turns left here, in order of dispatch.
        self.collectives: deque[RankCollective] = deque()

    def join(self, chunk: RankChunk) -> None:
        """A chunk waits here; before its turn it is held back."""
        collective = chunk.collective
        if chunk.chunk.turns:
            turn = chunk.chunk.turns[chunk.place]
            if self.collectives[0] is not collective or turn != collective.turn[self.number]:
                collective.early[self.number, turn] = chunk
                return
        self.wait(chunk)

    def wait(self, chunk: RankChunk) -> None:
        """Add a chunk to the line."""
        heappush(self.line, (-chunk.chunk.priority, -chunk.phase.priority, chunk.arrival, chunk))

    def starting(self) -> Iterator[RankChunk]:
        """Chunks that start now, as many as can run."""
        while self.line and len(self.running) < self.capacity:
            chunk = heappop(self.line)[-1]
            self.running.append(chunk)
            if chunk.chunk.turns:
                self.take_turn(chunk.collective)
            yield chunk

    def take_turn(self, collective: RankCollective) -> None:
        """A chunk has taken the turn of its collective; a chunk that was held back may be next."""
        collective.turn[self.number] += 1
        if collective.turn[self.number] == collective.turns[self.number]:
            self.collectives.popleft()
        if self.collectives:
            first = self.collectives[0]
            following = first.early.pop((self.number, first.turn[self.number]), None)
            if following is not None:
                self.wait(following)


class ChunkingNpu(Npu):
    """An NPU with queues of chunks, where a planner cuts collectives."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        planner = simulation.plan.problem.jobs[simulation.plan.job_of[rank]].planner
        self.queues = [] if planner is None else [Queue(number, most) for number, most in enumerate(planner.capacity)]
        #: Chunks whose turn it is, with the row of the node that let them begin.
        self.starting: deque[tuple[RankChunk, int]] = deque()
        self.arrivals, self.splicing = 0, False
        #: ASTRA-sim starts a chunk as soon as its queue serves it; else chunks are dispatched in the order of calls.
        self.by_arrival = simulation.plan.problem.semantics.event_order == "scheduled"

    def collective(self, graph, node):
        instance = self.simulation.plan.instances[graph.lists.instance[node]]
        if instance.only_call is not None:
            super().collective(graph, node)
            return
        begun = self.simulation.begun
        if instance.index not in begun:
            begun[instance.index] = OpenCall(instance.members, None, self.env.now)
        collective = RankCollective(instance, begun[instance.index], node)
        for queue in collective.turns:
            self.queues[queue].collectives.append(collective)
        for chunk in (RankChunk(collective, chunk) for chunk in instance.chunks):
            if chunk.chunk.phases:
                self.join(chunk)
            else:
                collective.left -= 1
        if not collective.left:
            self.end_collective(collective, -1)
        for queue in self.queues:
            self.serve(queue, graph.row + node)
        self.splice_chunks()

    def join(self, chunk: RankChunk) -> None:
        """A chunk arrives at the queue of its phase."""
        self.arrivals += 1
        chunk.arrival = self.arrivals
        self.queues[chunk.phase.queue].join(chunk)

    def serve(self, queue: Queue, row: int) -> None:
        """Start as many chunks of a queue as can run."""
        self.starting.extend((chunk, row) for chunk in queue.starting())

    def splice_chunks(self) -> None:
        """Splice the calls of all chunks whose turn it is; one with nothing to do on this rank ends at once."""
        if self.splicing:
            return
        self.splicing = True
        while self.starting:
            chunk, row = self.starting.popleft()
            parent = self.graphs[-1].row + chunk.collective.node
            order = AFTER_CALLS + chunk.arrival if self.by_arrival else None
            self.splice(chunk.call(self.rank), parent, row, partial(self.end_phase, chunk), order)
        self.splicing = False

    def end_phase(self, chunk: RankChunk, row: int) -> None:
        """A chunk has ended its phase on this rank, with the node in `row`."""
        queue = self.queues[chunk.phase.queue]
        queue.running.remove(chunk)
        self.serve(queue, row)
        if chunk.place + 1 < len(chunk.chunk.phases):
            chunk.place += 1
            self.join(chunk)
            self.serve(self.queues[chunk.phase.queue], row)
        else:
            chunk.collective.left -= 1
            if not chunk.collective.left:
                self.end_collective(chunk.collective, row)
        self.splice_chunks()

    def end_collective(self, collective: RankCollective, row: int) -> None:
        """This rank is done with a planned collective."""
        collective.opened.left -= 1
        if not collective.opened.left:
            collective.opened.end = self.env.now
        self.graphs[-1].complete(collective.node, row)

    def waiting(self) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
        """Chunks that wait: this rank, the call, the queue, and the calls that run there."""
        for queue in self.queues:
            running = tuple(chunk.call(self.rank) for chunk in queue.running)
            early = dict.fromkeys(chunk for user in queue.running for chunk in user.collective.early.values())
            line = [entry[-1] for entry in sorted(queue.line, key=lambda entry: entry[:3])]
            for chunk in (*line, *(chunk for chunk in early if chunk.phase.queue == queue.number)):
                yield self.rank, chunk.call(self.rank), queue.number, running
