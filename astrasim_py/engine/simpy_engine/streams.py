"""Streams: chunks of planned collectives, which wait in queues of each NPU and run phase after phase.

A queue is a SimPy resource of the NPU: so many streams run at once, the others wait, of higher priority first, then
in the order of arrival. A stream that ends its phase on this rank leaves the queue, whose first waiter starts, and
joins the queue of its next phase at the back. None of this takes time or costs an event.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from simpy import Environment, Resource

from astrasim_py.system.plan import Chunk, Instance, Phase

if TYPE_CHECKING:
    from astrasim_py.engine.simpy_engine.npu import Npu


class Session:
    """One planned collective under way."""

    __slots__ = ("end", "instance", "left", "start")

    def __init__(self, instance: Instance, start: int) -> None:
        self.instance = instance
        self.start = start
        self.end = -1
        self.left = len(instance.members)


class Share:
    """One rank's part in a planned collective: the workload's node, and how many streams are not done.

    Where the planner gives turns, `turn` is the next one of each queue, `turns` their number, and `early` the streams
    that came before theirs.
    """

    __slots__ = ("early", "left", "node", "session", "turn", "turns")

    def __init__(self, session: Session, node: int) -> None:
        self.session = session
        self.node = node
        self.left = len(session.instance.chunks)
        self.turn: dict[int, int] = {}
        self.turns = Counter(
            visit.queue for stream in session.instance.chunks if stream.turns for visit in stream.phases
        )
        self.early: dict[tuple[int, int], Run] = {}


class Run:
    """One stream on one rank."""

    __slots__ = ("arrival", "phase", "share", "stream")

    def __init__(self, share: Share, stream: Chunk) -> None:
        self.share = share
        self.stream = stream
        self.phase = 0
        #: Its place in the order in which streams came to the queues of this NPU.
        self.arrival = 0

    @property
    def visit(self) -> Phase:
        """Its phase."""
        return self.stream.phases[self.phase]

    def slice(self, rank: int) -> int:
        """Index of the slice in which a rank takes part in this phase."""
        visit = self.visit
        return visit.first + visit.call_of[rank]


class Queue(Resource):
    """Streams of one queue of one NPU: those that run, in the order in which they began, and those that wait."""

    def __init__(self, env: Environment, capacity: int) -> None:
        super().__init__(env, capacity)
        self.line: list[tuple[int, int, int, Run]] = []

    def join(self, run: Run) -> None:
        """A stream waits for its turn."""
        heappush(self.line, (-run.stream.priority, -run.visit.priority, run.arrival, run))

    def next(self) -> Run | None:
        """The stream that starts now; None if none waits, or no more can run."""
        if not self.line or len(self.users) == self._capacity:
            return None
        run = heappop(self.line)[-1]
        self.users.append(run)
        return run


class Streams:
    """All queues of one NPU.

    Parameters
    ----------
    npu : Npu
    capacity : tuple of int
        Streams that each queue runs at once.
    """

    def __init__(self, npu: Npu, capacity: tuple[int, ...]) -> None:
        self.npu = npu
        self.queues = [Queue(npu.env, most) for most in capacity]
        #: Streams whose turn it is, with the row of the node that let them begin.
        self._starting: deque[tuple[Run, int]] = deque()
        #: Of each queue the collectives that have turns left, in order of dispatch.
        self._shares: list[deque[Share]] = [deque() for _ in capacity]
        self._arrivals = 0
        self._busy = False

    def begin(self, session: Session, node: int) -> None:
        """This rank dispatches a planned collective, its workload's `node`."""
        share = Share(session, node)
        streams = session.instance.chunks
        if not streams:
            self.done(share, -1)
            return
        row = self.npu.blocks[0].row + node
        for queue in share.turns:
            self._shares[queue].append(share)
        for stream in streams:
            run = Run(share, stream)
            if stream.phases:
                self.join(run)
            else:
                self.finish(run, -1)
        for queue in range(len(self.queues)):
            self.serve(queue, row)
        self.start()

    def join(self, run: Run) -> None:
        """A stream arrives at the queue of its phase; before its turn it is held back."""
        self._arrivals += 1
        run.arrival = self._arrivals
        queue = run.visit.queue
        if run.stream.turns:
            turn = run.stream.turns[run.phase]
            if self._shares[queue][0] is not run.share or turn != run.share.turn.get(queue, 0):
                run.share.early[queue, turn] = run
                return
        self.queues[queue].join(run)

    def serve(self, queue: int, row: int) -> None:
        """Start as many streams of a queue as can run."""
        while (run := self.queues[queue].next()) is not None:
            self._starting.append((run, row))
            if run.stream.turns:
                self.took_turn(run.share, queue)

    def took_turn(self, share: Share, queue: int) -> None:
        """A stream has taken its collective's turn; it may be the turn of one that was held back."""
        turn = share.turn[queue] = share.turn.get(queue, 0) + 1
        shares = self._shares[queue]
        if turn == share.turns[queue]:
            shares.popleft()
        following = shares[0].early.pop((queue, shares[0].turn.get(queue, 0)), None) if shares else None
        if following is not None:
            self.queues[queue].join(following)

    def ended(self, run: Run, row: int) -> None:
        """A stream has ended its phase on this rank, with the node in `row`."""
        queue = run.visit.queue
        self.queues[queue].users.remove(run)
        self.serve(queue, row)
        if run.phase + 1 < len(run.stream.phases):
            run.phase += 1
            self.join(run)
            self.serve(run.visit.queue, row)
        else:
            self.finish(run, row)
        self.start()

    def finish(self, run: Run, row: int) -> None:
        """A stream is done."""
        share = run.share
        share.left -= 1
        if not share.left:
            self.done(share, row)

    def done(self, share: Share, row: int) -> None:
        """This rank is done with a planned collective."""
        npu, session = self.npu, share.session
        session.left -= 1
        if not session.left:
            session.end = npu.env.now
            del npu.engine.sessions[session.instance.index]
        npu.blocks[0].complete(share.node, row)

    def start(self) -> None:
        """Splice the slices of all streams whose turn it is; one with nothing to do on this rank ends at once."""
        if self._busy:
            return
        self._busy = True
        npu, starting = self.npu, self._starting
        engine, rank = npu.engine, npu.rank
        while starting:
            run, row = starting.popleft()
            index = run.slice(rank)
            call = engine.call(index)
            block = engine.algorithm_block(npu, index, call, run.share.node)
            if block is None:
                npu.leave(call, index)
                self.ended(run, row)
                continue
            block.stream = run
            block.released_by(block.template.shape.roots, row)
            npu.blocks[index + 1] = block
            block.release_roots()
        self._busy = False

    def waiting(self) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
        """Streams that wait: this rank, the slice, the queue, and the slices that run there."""
        rank = self.npu.rank
        for number, queue in enumerate(self.queues):
            running = tuple(run.slice(rank) for run in queue.users)
            early = {run: None for user in queue.users for run in user.share.early.values()}
            line = [entry[-1] for entry in sorted(queue.line, key=lambda entry: entry[:3])]
            for run in (*line, *(run for run in early if run.visit.queue == number)):
                yield rank, run.slice(rank), number, running
