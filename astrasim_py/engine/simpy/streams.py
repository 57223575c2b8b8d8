"""Streams: chunks of collectives that a planner has cut, which wait in queues of each NPU and run phase after phase.

So many streams of a queue run at once, the others wait, of higher priority first, then in order of arrival. A stream
that ends its phase on this rank leaves the queue, whose first waiter starts, and joins the queue of its next phase.
None of this takes time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heappop, heappush

from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.system.plan import Instance, PlannedStream, Visit


class Session:
    """One planned collective under way."""

    def __init__(self, instance: Instance, start: int) -> None:
        self.instance, self.start, self.end, self.left = instance, start, -1, len(instance.members)


class Share:
    """One rank's part in a planned collective: the workload's node, and how many streams are not done.

    Where the planner gives turns, `turn` is the next one of each queue, `turns` their number, and `early` the streams
    that came before theirs.
    """

    def __init__(self, session: Session, node: int) -> None:
        streams = session.instance.streams
        self.session, self.node, self.left = session, node, len(streams)
        self.turn: Counter[int] = Counter()
        self.turns = Counter(visit.queue for stream in streams if stream.turns for visit in stream.visits)
        self.early: dict[tuple[int, int], Run] = {}


class Run:
    """One stream on one rank."""

    def __init__(self, share: Share, stream: PlannedStream) -> None:
        self.share, self.stream, self.phase = share, stream, 0
        #: Its place in the order in which streams came to the queues of this NPU.
        self.arrival = 0

    @property
    def visit(self) -> Visit:
        """Its phase."""
        return self.stream.visits[self.phase]

    def slice(self, rank: int) -> int:
        """Index of the slice in which a rank takes part in this phase."""
        return self.visit.first + self.visit.slice_of[rank]


class Queue:
    """Streams of one queue of one NPU: those that run, in the order in which they began, and those that wait."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.running: list[Run] = []
        self.line: list[tuple[int, int, int, Run]] = []
        #: Collectives that have turns left here, in order of dispatch.
        self.shares: deque[Share] = deque()

    def join(self, run: Run) -> None:
        """A stream waits for its turn."""
        heappush(self.line, (-run.stream.priority, -run.visit.priority, run.arrival, run))

    def next(self) -> Run | None:
        """The stream that starts now; None if none waits, or no more can run."""
        if not self.line or len(self.running) == self.capacity:
            return None
        self.running.append(heappop(self.line)[-1])
        return self.running[-1]


class Streams:
    """All queues of one NPU, by the number of streams that each runs at once."""

    def __init__(self, npu: Npu, capacity: tuple[int, ...]) -> None:
        self.npu = npu
        self.queues = [Queue(most) for most in capacity]
        #: Streams whose turn it is, with the row of the node that let them begin.
        self._starting: deque[tuple[Run, int]] = deque()
        self._arrivals = 0
        self._busy = False

    def begin(self, session: Session, node: int) -> None:
        """This rank dispatches a planned collective, its workload's `node`."""
        share = Share(session, node)
        streams = session.instance.streams
        if not streams:
            self.done(share, -1)
            return
        for queue in share.turns:
            self.queues[queue].shares.append(share)
        for stream in streams:
            run = Run(share, stream)
            if stream.visits:
                self.join(run)
            else:
                self.finish(run, -1)
        row = self.npu.graphs[-1].row + node
        for queue in self.queues:
            self.serve(queue, row)
        self.start()

    def join(self, run: Run) -> None:
        """A stream arrives at the queue of its phase; before its turn it is held back."""
        self._arrivals += 1
        run.arrival = self._arrivals
        queue, share, number = self.queues[run.visit.queue], run.share, run.visit.queue
        if run.stream.turns:
            turn = run.stream.turns[run.phase]
            if queue.shares[0] is not share or turn != share.turn[number]:
                share.early[number, turn] = run
                return
        queue.join(run)

    def serve(self, queue: Queue, row: int) -> None:
        """Start as many streams of a queue as can run."""
        while (run := queue.next()) is not None:
            self._starting.append((run, row))
            if run.stream.turns:
                self.took_turn(run.share, queue, run.visit.queue)

    def took_turn(self, share: Share, queue: Queue, number: int) -> None:
        """A stream has taken its collective's turn; it may be the turn of one that was held back."""
        share.turn[number] += 1
        if share.turn[number] == share.turns[number]:
            queue.shares.popleft()
        if queue.shares:
            first = queue.shares[0]
            following = first.early.pop((number, first.turn[number]), None)
            if following is not None:
                queue.join(following)

    def ended(self, run: Run, row: int) -> None:
        """A stream has ended its phase on this rank, with the node in `row`."""
        queue = self.queues[run.visit.queue]
        queue.running.remove(run)
        self.serve(queue, row)
        if run.phase + 1 < len(run.stream.visits):
            run.phase += 1
            self.join(run)
            self.serve(self.queues[run.visit.queue], row)
        else:
            self.finish(run, row)
        self.start()

    def finish(self, run: Run, row: int) -> None:
        """A stream is done."""
        run.share.left -= 1
        if not run.share.left:
            self.done(run.share, row)

    def done(self, share: Share, row: int) -> None:
        """This rank is done with a planned collective."""
        session = share.session
        session.left -= 1
        if not session.left:
            session.end = self.npu.env.now
        self.npu.graphs[-1].complete(share.node, row)

    def start(self) -> None:
        """Splice the slices of all streams whose turn it is; one with nothing to do on this rank ends at once."""
        if self._busy:
            return
        self._busy = True
        while self._starting:
            run, row = self._starting.popleft()
            self.splice(run, row)
        self._busy = False

    def splice(self, run: Run, row: int) -> None:
        """Splice the slice of a stream's phase."""
        parent = self.npu.graphs[-1].row + run.share.node
        self.npu.splice(run.slice(self.npu.rank), parent, row, lambda last: self.ended(run, last))

    def waiting(self) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
        """Streams that wait: this rank, the slice, the queue, and the slices that run there."""
        rank = self.npu.rank
        for number, queue in enumerate(self.queues):
            running = tuple(run.slice(rank) for run in queue.running)
            early = dict.fromkeys(run for user in queue.running for run in user.share.early.values())
            line = [entry[-1] for entry in sorted(queue.line, key=lambda entry: entry[:3])]
            for run in (*line, *(run for run in early if run.visit.queue == number)):
                yield rank, run.slice(rank), number, running


class StreamingNpu(Npu):
    """An NPU with queues of streams, where a planner cuts collectives."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        planner = simulation.plan.problem.jobs[simulation.plan.job_of[rank]].planner
        self.streams = None if planner is None else Streams(self, planner.capacity)

    def collective(self, graph, node):
        simulation = self.simulation
        number = graph.lists.call[node]
        instance = simulation.plan.instances[number]
        if instance.whole is not None:
            super().collective(graph, node)
            return
        if number not in simulation.begun:
            simulation.begun[number] = Session(instance, self.env.now)
        self.streams.begin(simulation.begun[number], node)
