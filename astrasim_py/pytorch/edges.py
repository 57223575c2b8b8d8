"""What the operations and CPU pieces of a step need: edges of each kind, by the evidence there is for them."""

from bisect import bisect_left
from enum import IntEnum

import numpy as np

from astrasim_py.pytorch.pieces import Work, calls_by_kind
from astrasim_py.pytorch.recording import Category, Recording

#: How long after a call that makes a stream wait the waiting operation is launched, at most, ns.
_WAIT_REACH_NS = 400_000
#: How soon after the end of what it waited for an operation starts, at most, ns.
_WAIT_START_NS = 15_000
_EARLIEST = -(2**62)


class EdgeKind(IntEnum):
    """Why one node waits for another."""

    CPU = 0  # the thread's piece before
    LAUNCH = 1  # the call that launched it
    STREAM = 2  # the operation before on its stream
    WAIT = 3  # an operation of another stream: an event
    SYNC = 4  # a CPU piece waits for the device
    HANDOVER = 5  # a CPU piece waits for another thread
    GAP = 6  # unexplained time before a node
    CALL = 7  # communication


Pair = tuple[int, int]


class DeviceEdges:
    """Finds what the operations of a step wait for, and which of them its CPU pieces wait for.

    Operations are numbered as in `work`, calls by their row in the recording.
    """

    def __init__(self, recording: Recording, work: Work):
        self.recording, self.events, self.work = recording, recording.events, work
        self.slack = recording.resolution_ns
        events, launched = self.events, work.call >= 0
        #: When each operation was launched; the backlog before all.
        self.launched = np.where(launched, events.start[work.call], np.where(work.backlog, _EARLIEST, work.start))
        self.of_thread = np.where(launched, events.thread[work.call], -1)
        #: Of each lane: its operations in order of launch, and those of them that end last so far.
        lanes = range(len(work.lanes))
        self.lane_ops = [self._by_launch(np.flatnonzero(work.lane == lane)) for lane in lanes]
        self.lane_times = [self.launched[ops].tolist() for ops in self.lane_ops]
        #: Recorded waits by row of the call.
        self.known = {int(events.launch[row]): int(row) for row in np.flatnonzero(events.category == Category.SYNC)}
        self.starts, self.ends = work.start.tolist(), work.end.tolist()
        self.calls = calls_by_kind(recording)

    def _by_launch(self, ops: np.ndarray) -> np.ndarray:
        return ops[np.lexsort((self.work.start[ops], self.launched[ops]))]

    def streams(self) -> list[Pair]:
        """From the operations of a lane that had ended to the next one of the lane.

        Where operations overlap, as the branches of a graph do, the next one needs all that ended meanwhile.
        """
        out = []
        for lane in range(len(self.work.lanes)):
            running: list[int] = []  # operations that none of the lane needs yet
            done: list[int] = []  # what the operation before needs
            for op in np.flatnonzero(self.work.lane == lane).tolist():
                limit = self.starts[op] + self.slack
                ended = [other for other in running if self.ends[other] <= limit]
                if ended:
                    done, running = ended, [other for other in running if self.ends[other] > limit]
                out += [(other, op) for other in done]
                running.append(op)
        return out

    # -- streams that wait for events --------------------------------------------------------------------------

    def waits(self, needs: np.ndarray) -> list[Pair]:
        """From the operation that an event was recorded after to the first one launched after the wait for it.

        `needs`: int64, when all else that each operation needs has ended. Where the recording explains any wait, the
        others wait for nothing; else the times tell, else the order of the launches.
        """
        calls = self.calls["wait"].tolist()
        if any(call in self.known for call in calls):
            pairs = [self._known_wait(call) for call in calls if call in self.known]
        else:
            pairs = [self._wait_by_times(call, needs) or self._wait_by_order(call) for call in calls]
        return list(dict.fromkeys(pair for pair in pairs if pair))

    def _known_wait(self, call: int) -> Pair | None:
        sync = self.known[call]
        lane, other = self._lane(int(self.events.stream[sync])), self._lane(self._said(sync, "wait_on_stream"))
        target, source = self._first_after(lane, int(self.events.start[call])), self._recorded(sync, call)
        return (source, target) if min(source, target) >= 0 and lane != other else None

    def _wait_by_times(self, call: int, needs: np.ndarray) -> Pair | None:
        """The wait whose source ended just before the target started and later than all else the target needs."""
        at = int(self.events.start[call])
        best = None
        for lane in range(len(self.work.lanes)):
            target = self._first_after(lane, at)
            if target < 0 or self.launched[target] > at + _WAIT_REACH_NS:
                continue
            begin = self.starts[target]
            earliest = max(begin - _WAIT_START_NS, int(needs[target]) + 3 * self.slack + 1)
            for other in range(len(self.work.lanes)):
                source = -1 if other == lane else self._ended_in(other, at, earliest, begin + self.slack)
                if source >= 0:
                    found = (self.ends[source] - begin, source, target)
                    best = found if best is None else max(best, found)
        return best[1:] if best else None

    def _wait_by_order(self, call: int) -> Pair | None:
        """The wait for what the thread used before, where its next launch is NCCL's, else for what ended last."""
        at, thread = int(self.events.start[call]), int(self.events.thread[call])
        mine = self._thread_ops(thread)
        times = mine[0]
        place = bisect_left(times, at)
        if place == len(times):
            return None
        target = mine[1][place]
        lane = int(self.work.lane[target])
        if self._is_nccl(target):
            source = next((op for op in reversed(mine[1][:place]) if self.work.lane[op] != lane), -1)
        else:
            limit = self.starts[target] + self.slack
            found = [self._ended_in(o, at, _EARLIEST, limit) for o in range(len(self.work.lanes)) if o != lane]
            source = max((op for op in found if op >= 0), key=self.ends.__getitem__, default=-1)
        return (source, target) if source >= 0 else None

    def _thread_ops(self, thread: int) -> tuple[list[int], list[int]]:
        """When a thread launched operations, and which."""
        cache = self.__dict__.setdefault("_threads", {})
        if thread not in cache:
            ops = self._by_launch(np.flatnonzero(self.of_thread == thread))
            cache[thread] = self.launched[ops].tolist(), ops.tolist()
        return cache[thread]

    def _is_nccl(self, op: int) -> bool:
        return "nccl" in self.recording.names[self.events.name[self.work.row[op]]].lower()

    # -- the CPU waits for the device --------------------------------------------------------------------------

    def synchronisations(self) -> list[Pair]:
        """From operations to the calls that return once they have ended: pairs of operation and row of the call."""
        out = []
        for kind in ("device", "stream", "event"):
            for call in self.calls[kind].tolist():
                out += [(op, call) for op in self._awaited(kind, call)]
        return out

    def _awaited(self, kind: str, call: int) -> list[int]:
        """Operations that one call of the runtime waits for."""
        at = int(self.events.start[call])
        until = at + int(self.events.duration[call]) + self.slack
        lanes = range(len(self.work.lanes))
        sync = self.known.get(call, -1)
        if kind == "device":
            found = [self._last_before(lane, at) for lane in lanes]
        elif kind == "stream" and sync >= 0 and self._lane(int(self.events.stream[sync])) >= 0:
            found = [self._last_before(self._lane(int(self.events.stream[sync])), at)]
        elif kind == "event" and sync >= 0 and self._lane(self._said(sync, "wait_on_stream")) >= 0:
            found = [self._recorded(sync, call)]
        else:
            inside = [self._ended_in(lane, at, at, until) for lane in lanes]
            found = [max((op for op in inside if op >= 0), key=self.ends.__getitem__, default=-1)]
            if found == [-1] and kind == "stream":
                times, ops = self._thread_ops(int(self.events.thread[call]))
                found = ops[: bisect_left(times, at)][-1:]
        return [op for op in found if op >= 0]

    # -- looking up --------------------------------------------------------------------------------------------

    def _said(self, sync: int, key: str) -> int:
        value = self.events.args.get(sync, {}).get(key, -1)
        return int(value) if value is not None else -1

    def _lane(self, stream: int) -> int:
        """The lane of a stream; -1 if it ran nothing."""
        return next((lane for lane, (_, other) in enumerate(self.work.lanes) if other == stream), -1)

    def _recorded(self, sync: int, call: int) -> int:
        """Last operation on the stream before the record of the event that was waited for; -1 if there is none."""
        lane, record = (
            self._lane(self._said(sync, "wait_on_stream")),
            self._said(sync, "wait_on_cuda_event_record_corr_id"),
        )
        if lane < 0 or record < 0:
            return self._last_before(lane, int(self.events.start[call]))
        ops = self.lane_ops[lane]
        correlations = np.where(self.work.backlog[ops], -1, self.events.correlation[self.work.row[ops]])
        before = np.flatnonzero(correlations < record)
        return int(ops[before[-1]]) if len(before) else -1

    def _first_after(self, lane: int, at: int) -> int:
        """First operation launched on a lane at or after a time; -1 if there is none."""
        place = bisect_left(self.lane_times[lane], at) if lane >= 0 else 0
        return int(self.lane_ops[lane][place]) if lane >= 0 and place < len(self.lane_ops[lane]) else -1

    def _last_before(self, lane: int, at: int) -> int:
        """Last operation launched on a lane before a time; -1 if there is none."""
        place = bisect_left(self.lane_times[lane], at) if lane >= 0 else 0
        return int(self.lane_ops[lane][place - 1]) if place else -1

    def _ended_in(self, lane: int, launched_before: int, earliest: int, latest: int) -> int:
        """Operation of a lane, launched before a time, that ended last within [earliest, latest]; -1 if none did."""
        ops = self.lane_ops[lane]
        for place in range(bisect_left(self.lane_times[lane], launched_before) - 1, -1, -1):
            end = self.ends[ops[place]]
            if end <= latest:
                return int(ops[place]) if end >= earliest else -1
        return -1
