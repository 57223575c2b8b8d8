"""Collectives that a planner has cut into chunks: these wait in queues of each NPU and run phase after phase.

A queue runs so many chunks at once; the others wait, higher priority first, then in order of arrival. A chunk that ends
a phase on this rank leaves the queue, whose first waiter starts, and joins the queue of its next phase. None of this
takes time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heappop, heappush

from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.system.plan import Chunk, Instance, Phase


class Pipeline:
    """A planned collective under way."""

    def __init__(self, instance: Instance, start: int) -> None:
        self.instance, self.start, self.end, self.left = instance, start, -1, len(instance.members)


class RankPipeline:
    """A planned collective on one rank: its node in the workload, and how many chunks are not done.

    Where the planner gives turns, `turn` is the next turn of each queue, `turns` their number, and `early` holds the
    chunks that came before their turn.
    """

    def __init__(self, pipeline: Pipeline, node: int) -> None:
        chunks = pipeline.instance.chunks
        self.pipeline, self.node, self.left = pipeline, node, len(chunks)
        self.turn: Counter[int] = Counter()
        self.turns = Counter(phase.queue for chunk in chunks if chunk.turns for phase in chunk.phases)
        self.early: dict[tuple[int, int], RankChunk] = {}


class RankChunk:
    """One chunk on one rank."""

    def __init__(self, pipeline: RankPipeline, chunk: Chunk) -> None:
        self.pipeline, self.chunk, self.place = pipeline, chunk, 0
        #: Its place in the order in which chunks came to the queues of this NPU.
        self.arrival = 0

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
        self.pipelines: deque[RankPipeline] = deque()

    def join(self, chunk: RankChunk) -> None:
        """Add a chunk to the line; before its turn it is held back."""
        pipeline = chunk.pipeline
        if chunk.chunk.turns:
            turn = chunk.chunk.turns[chunk.place]
            if self.pipelines[0] is not pipeline or turn != pipeline.turn[self.number]:
                pipeline.early[self.number, turn] = chunk
                return
        self.wait(chunk)

    def wait(self, chunk: RankChunk) -> None:
        """Add a chunk to the line."""
        heappush(self.line, (-chunk.chunk.priority, -chunk.phase.priority, chunk.arrival, chunk))

    def next(self) -> RankChunk | None:
        """The chunk that starts now; None if none waits, or no more can run."""
        if not self.line or len(self.running) == self.capacity:
            return None
        chunk = heappop(self.line)[-1]
        self.running.append(chunk)
        if chunk.chunk.turns:
            self.took_turn(chunk.pipeline)
        return chunk

    def took_turn(self, pipeline: RankPipeline) -> None:
        """A chunk has taken the turn of its collective; a chunk that was held back may be next."""
        pipeline.turn[self.number] += 1
        if pipeline.turn[self.number] == pipeline.turns[self.number]:
            self.pipelines.popleft()
        if self.pipelines:
            first = self.pipelines[0]
            following = first.early.pop((self.number, first.turn[self.number]), None)
            if following is not None:
                self.wait(following)


class ChunkQueues:
    """All queues of one NPU."""

    def __init__(self, npu: Npu, capacity: tuple[int, ...]) -> None:
        self.npu = npu
        self.queues = [Queue(number, most) for number, most in enumerate(capacity)]
        #: Chunks whose turn it is, with the row of the node that let them begin.
        self._starting: deque[tuple[RankChunk, int]] = deque()
        self._arrivals = 0
        self._busy = False

    def begin(self, pipeline: Pipeline, node: int) -> None:
        """This rank dispatches a planned collective, `node` of its workload."""
        mine = RankPipeline(pipeline, node)
        if not pipeline.instance.chunks:
            self.done(mine, -1)
            return
        for queue in mine.turns:
            self.queues[queue].pipelines.append(mine)
        for chunk in pipeline.instance.chunks:
            if chunk.phases:
                self.join(RankChunk(mine, chunk))
            else:
                self.finish(RankChunk(mine, chunk), -1)
        for queue in self.queues:
            self.serve(queue, self.npu.graphs[-1].row + node)
        self.start()

    def join(self, chunk: RankChunk) -> None:
        """A chunk arrives at the queue of its phase."""
        self._arrivals += 1
        chunk.arrival = self._arrivals
        self.queues[chunk.phase.queue].join(chunk)

    def serve(self, queue: Queue, row: int) -> None:
        """Start as many chunks of a queue as can run."""
        while (chunk := queue.next()) is not None:
            self._starting.append((chunk, row))

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
            self.finish(chunk, row)
        self.start()

    def finish(self, chunk: RankChunk, row: int) -> None:
        """A chunk is done."""
        chunk.pipeline.left -= 1
        if not chunk.pipeline.left:
            self.done(chunk.pipeline, row)

    def done(self, mine: RankPipeline, row: int) -> None:
        """This rank is done with a planned collective."""
        pipeline = mine.pipeline
        pipeline.left -= 1
        if not pipeline.left:
            pipeline.end = self.npu.env.now
        self.npu.graphs[-1].complete(mine.node, row)

    def start(self) -> None:
        """Splice the calls of all chunks whose turn it is; one with nothing to do on this rank ends at once."""
        if self._busy:
            return
        self._busy = True
        while self._starting:
            self.splice(*self._starting.popleft())
        self._busy = False

    def splice(self, chunk: RankChunk, row: int) -> None:
        """Splice the call of the phase of a chunk."""
        parent = self.npu.graphs[-1].row + chunk.pipeline.node
        self.npu.splice(chunk.call(self.npu.rank), parent, row, lambda last: self.end_phase(chunk, last))

    def waiting(self) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
        """Chunks that wait: this rank, the call, the queue, and the calls that run there."""
        rank = self.npu.rank
        for queue in self.queues:
            running = tuple(chunk.call(rank) for chunk in queue.running)
            early = dict.fromkeys(chunk for user in queue.running for chunk in user.pipeline.early.values())
            line = [entry[-1] for entry in sorted(queue.line, key=lambda entry: entry[:3])]
            for chunk in (*line, *(chunk for chunk in early if chunk.phase.queue == queue.number)):
                yield rank, chunk.call(rank), queue.number, running


class ChunkingNpu(Npu):
    """An NPU with queues of chunks, where a planner cuts collectives."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        planner = simulation.plan.problem.jobs[simulation.plan.job_of[rank]].planner
        self.queues = None if planner is None else ChunkQueues(self, planner.capacity)

    def collective(self, graph, node):
        number, begun = graph.lists.instance[node], self.simulation.begun
        instance = self.simulation.plan.instances[number]
        if instance.whole is not None:
            super().collective(graph, node)
            return
        if number not in begun:
            begun[number] = Pipeline(instance, self.env.now)
        self.queues.begin(begun[number], node)
