"""Collectives cut into chunks, which wait in queues of each NPU and run phase after phase.

A queue runs up to its capacity of chunks at once; the others wait, higher priority first, then by arrival. A chunk that
ends a phase on this rank leaves the queue, whose first waiter starts, and joins the queue of its next phase. None of
this takes time.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush

from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.engine.simpy.simulation import Simulation
from astrasim_py.system.plan import Chunk, Phase
from astrasim_py.system.programs import AFTER_CALLS


class RankChunk:
    """A chunk of the collective `node` on one rank: `place` numbers the phase that it is in or waits for."""

    def __init__(self, node: int, planned: Chunk) -> None:
        self.node, self.planned, self.place, self.number = node, planned, 0, 0

    @property
    def phase(self) -> Phase:
        """The phase that it is in or waits for."""
        return self.planned.phases[self.place]

    @property
    def turn(self) -> tuple[int, int] | None:
        """Its place among the chunks of its queue, where the planner gives one: collective and number."""
        return (self.node, self.planned.turns[self.place]) if self.planned.turns else None

    def call(self, rank: int) -> int:
        """Index of the rank's call in this phase."""
        return self.phase.first + self.phase.call_of[rank]


class Queue:
    """Chunks of one queue of one NPU: the running ones, in order of their begins, and the waiting ones.

    Chunks with turns join the `line` one at a time: `turns` are those left, in order, and `early` holds the chunks
    that arrived before their turn.
    """

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.capacity = number, capacity
        self.running: list[RankChunk] = []
        self.line: list[tuple[int, int, int, RankChunk]] = []
        self.turns: deque[tuple[int, int]] = deque()
        self.early: dict[tuple[int, int], RankChunk] = {}

    def join(self, chunk: RankChunk) -> None:
        """A chunk waits here; before its turn it is held back."""
        if chunk.turn is not None and chunk.turn != self.turns[0]:
            self.early[chunk.turn] = chunk
        else:
            heappush(self.line, (-chunk.planned.priority, -chunk.phase.priority, chunk.number, chunk))

    def starting(self, row: int) -> Iterator[tuple[RankChunk, int]]:
        """Chunks that start now, as many as can run, each with the row of the node that lets them begin."""
        while self.line and len(self.running) < self.capacity:
            chunk = heappop(self.line)[-1]
            self.running.append(chunk)
            if chunk.turn is not None:
                self.turns.popleft()
                if self.turns and self.turns[0] in self.early:
                    self.join(self.early.pop(self.turns[0]))
            yield chunk, row


class ChunkingNpu(Npu):
    """An NPU with queues of chunks, where a planner cuts collectives."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        planner = simulation.plan.problem.jobs[simulation.plan.job_of[rank]].planner
        self.queues = [] if planner is None else [Queue(number, most) for number, most in enumerate(planner.capacity)]
        self.arrivals = itertools.count()
        #: Collective node → its chunks that are not done.
        self.chunks_left: dict[int, int] = {}
        self.starting: deque[tuple[RankChunk, int]] = deque()

    def collective(self, graph, node):
        instance = self.simulation.plan.instances[graph.program.instance[node]]
        if instance.only_call is not None:
            super().collective(graph, node)
            return
        turns = Counter(phase.queue for chunk in instance.chunks if chunk.turns for phase in chunk.phases)
        for queue, count in turns.items():
            self.queues[queue].turns.extend((node, turn) for turn in range(count))
        chunks = [RankChunk(node, chunk) for chunk in instance.chunks if chunk.phases]
        self.chunks_left[node] = len(chunks)
        for chunk in chunks:
            chunk.number = next(self.arrivals)
            self.queues[chunk.phase.queue].join(chunk)
        self.splice_chunks([start for queue in self.queues for start in queue.starting(graph.row + node)])
        if not chunks:
            graph.complete(node)

    def splice_chunks(self, starting: list[tuple[RankChunk, int]]) -> None:
        """Splice the calls of chunks that start; one with nothing to do on this rank ends at once, and others start."""
        by_arrival, idle = self.simulation.plan.problem.semantics.event_order == "scheduled", not self.starting
        self.starting.extend(starting)
        while idle and self.starting:
            chunk, row = self.starting[0]
            parent, order = self.graphs[-1].row + chunk.node, AFTER_CALLS + chunk.number if by_arrival else None
            self.splice(chunk.call(self.rank), parent, row, partial(self.end_phase, chunk), order)
            self.starting.popleft()

    def end_phase(self, chunk: RankChunk, row: int) -> None:
        """A chunk has ended its phase on this rank, with the node in `row`."""
        queue = self.queues[chunk.phase.queue]
        queue.running.remove(chunk)
        starting = list(queue.starting(row))
        if chunk.place + 1 < len(chunk.planned.phases):
            chunk.place, chunk.number = chunk.place + 1, next(self.arrivals)
            queue = self.queues[chunk.phase.queue]
            queue.join(chunk)
            starting += queue.starting(row)
        else:
            self.chunks_left[chunk.node] -= 1
            if not self.chunks_left[chunk.node]:
                self.graphs[-1].complete(chunk.node, row)
        self.splice_chunks(starting)

    def waiting(self) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
        """Chunks that wait: this rank, the call, the queue, and the calls that run there."""
        for queue in self.queues:
            running = tuple(chunk.call(self.rank) for chunk in queue.running)
            collectives = {chunk.node for chunk in queue.running}
            early = (chunk for chunk in queue.early.values() if chunk.node in collectives)
            for chunk in (*(entry[-1] for entry in queue.line), *early):
                yield self.rank, chunk.call(self.rank), queue.number, running


class ChunkingSimulation(Simulation):
    """A run in which a planner cuts collectives."""

    def npu_rules(self):
        return [ChunkingNpu, *super().npu_rules()]

    def waits(self):
        npus = [npu for npu in self.npus if isinstance(npu, ChunkingNpu)]
        return replace(super().waits(), queued=[entry for npu in npus for entry in npu.waiting()])
