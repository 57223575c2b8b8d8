"""Dependencies of the operations and CPU pieces of a step: edges of each kind, by their evidence."""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator
from heapq import heappop, heappush
from itertools import pairwise, takewhile

import numpy as np

from astrasim_py.chakra.graph import plain_array
from astrasim_py.pytorch.kineto import integer
from astrasim_py.pytorch.pieces import Work, calls_by_kind
from astrasim_py.pytorch.recording import Category, Recording

#: How long after a call that makes a stream wait the waiting operation is launched, at most, ns.
_WAIT_REACH_NS = 400_000
#: How soon after the end of what it waited for an operation starts, at most, ns.
_WAIT_START_NS = 15_000
_LATEST = 2**62
#: Most overlapping operations that the next one of a lane needs: the last ones to end.
_MOST = 8


Pair = tuple[int, int]


class _InOrder:
    """Operations in order of a time."""

    def __init__(self, times: array, ops: np.ndarray):
        ops = ops[np.argsort(np.frombuffer(times, np.int64)[ops], kind="stable")]
        self.ops, self.times = plain_array(ops), plain_array(np.frombuffer(times, np.int64)[ops])

    def after(self, time: int) -> Iterator[int]:
        """Those at or after a time, the first one first."""
        return map(self.ops.__getitem__, range(bisect_left(self.times, time), len(self.ops)))

    def before(self, time: int) -> Iterator[int]:
        """Those before a time, the last one first."""
        return map(self.ops.__getitem__, range(bisect_left(self.times, time) - 1, -1, -1))


class DeviceEdges:
    """Finds what the operations of a step wait for, and which of them its CPU pieces wait for.

    Operations are numbered as in `work`, calls by their row in the recording.
    """

    def __init__(self, recording: Recording, work: Work, communicating: Collection[int] = ()):
        self.recording, self.events, self.work = recording, recording.events, work
        self.slack = recording.resolution_ns
        events, launched = self.events, work.call >= 0
        #: When each operation was launched; the backlog before all.
        self.launched = plain_array(
            np.where(launched, events.start[work.call], np.where(work.backlog, -_LATEST, work.start))
        )
        self.correlation = plain_array(np.where(work.backlog, -1, events.correlation[work.row]))
        self.starts, self.ends = plain_array(work.start), plain_array(work.end)
        operations = np.arange(len(work.row))
        self.by_end, self.by_launch = _InOrder(self.ends, operations), _InOrder(self.launched, operations)
        threads = np.where(launched, events.thread[work.call], -1)
        self.of_thread = self._each(threads, len(recording.threads))
        self.of_lane = self._each(work.lane, len(work.lanes))
        self.ended_of_lane = [_InOrder(self.ends, np.array(of.ops, np.int64)) for of in self.of_lane]
        self.returns = events.end
        #: Recorded waits by row of the call.
        self.known = {int(events.launch[row]): int(row) for row in np.flatnonzero(events.category == Category.SYNC)}
        self.calls = calls_by_kind(recording)
        self.communicating = communicating

    def _each(self, places: np.ndarray, count: int) -> list[_InOrder]:
        """Operations in order of launch, of each of `count` threads or lanes."""
        ops = np.argsort(places, kind="stable")
        bounds = np.searchsorted(places[ops], np.arange(count + 1))
        return [_InOrder(self.launched, ops[low:high]) for low, high in pairwise(bounds.tolist())]

    def streams(self) -> list[Pair]:
        """From the operations of a lane that had ended to the next one of the lane.

        Where operations overlap, as the branches of a graph do, the next one needs all that ended meanwhile.
        """
        out = []
        for lane in range(len(self.work.lanes)):
            running: list[Pair] = []  # heap of (end, operation) that none of the lane needs yet
            ended: list[int] = []  # needs of the operation before
            for op in np.flatnonzero(self.work.lane == lane).tolist():
                limit, before = self.starts[op] + self.slack, []
                while running and running[0][0] <= limit:
                    before.append(heappop(running)[1])
                ended = before[-_MOST:] or ended
                out += [(other, op) for other in ended]
                heappush(running, (self.ends[op], op))
        return out

    # -- streams that wait for events --------------------------------------------------------------------------

    def waits(self, needs: np.ndarray) -> list[Pair]:
        """From the operation that an event was recorded after to the first one launched after the wait for it.

        `needs`: int64, when all else that each operation needs has ended. Where the recording explains any wait, the
        others wait for nothing; else the times decide, else the order of the launches.
        """
        calls = self.calls["wait"].tolist()
        if any(call in self.known for call in calls):
            pairs = [self._known_wait(call) for call in calls if call in self.known]
        else:
            pairs = [self._wait_by_times(call, needs) or self._wait_by_order(call) for call in calls]
        return list(dict.fromkeys(pair for pair in pairs if pair))

    def _known_wait(self, call: int) -> Pair | None:
        sync = self.known[call]
        lane, other = self._lane(sync, "stream"), self._lane(sync, "wait_on_stream")
        if lane < 0 or lane == other:
            return None
        target, source = next(self.of_lane[lane].after(int(self.events.start[call])), -1), self._recorded(sync, call)
        return (source, target) if min(source, target) >= 0 else None

    def _wait_by_times(self, call: int, needs: np.ndarray) -> Pair | None:
        """The wait whose source ended just before the target started and later than all else the target needs."""
        issued = int(self.events.start[call])
        best, lanes = None, set()
        for target in self.by_launch.after(issued):
            lane, begin = self.work.lane[target], self.starts[target]
            if self.launched[target] > issued + _WAIT_REACH_NS:
                break
            if lane in lanes:
                continue
            lanes.add(lane)
            earliest = max(begin - _WAIT_START_NS, int(needs[target]) + 3 * self.slack + 1)
            for source in self.by_end.before(begin + self.slack + 1):
                if self.ends[source] < earliest:
                    break
                if self.work.lane[source] != lane and self.launched[source] < issued:
                    wait = (self.ends[source] - begin, source, target)
                    best = wait if best is None else max(best, wait)
                    break
        return best[1:] if best else None

    def _wait_by_order(self, call: int) -> Pair | None:
        """The wait for what the thread used before, where its next launch communicates, else for what ended last."""
        issued, thread_ops = int(self.events.start[call]), self.of_thread[int(self.events.thread[call])]
        target = next(thread_ops.after(issued), -1)
        if target < 0:
            return None
        lane = self.work.lane[target]
        row = int(self.work.row[target])
        if row in self.communicating or "nccl" in self.recording.names[self.events.name[row]].lower():
            source = next((op for op in thread_ops.before(issued) if self.work.lane[op] != lane), -1)
        else:
            limit = self.starts[target] + self.slack + 1
            others = (of for other, of in enumerate(self.ended_of_lane) if other != lane)
            latest = [next((op for op in of.before(limit) if self.launched[op] < issued), -1) for of in others]
            source = max((op for op in latest if op >= 0), key=self.ends.__getitem__, default=-1)
        return (source, target) if source >= 0 else None

    # -- the CPU waits for the device --------------------------------------------------------------------------

    def synchronisations(self) -> list[Pair]:
        """From operations to the calls that return once they have ended: pairs of operation and row of the call.

        A thread waits for each operation only once.
        """
        out: list[Pair] = []
        done: set[tuple[int, int]] = set()
        kinds = {call: kind for kind in ("device", "stream", "event") for call in self.calls[kind].tolist()}
        for call, kind in sorted(kinds.items()):
            thread = int(self.events.thread[call])
            new = [op for op in self._awaited(kind, call) if op >= 0 and (thread, op) not in done]
            returned = int(self.returns[call]) + self.slack
            done.update((thread, op) for op in new if self.ends[op] <= returned)
            out += [(op, call) for op in new]
        return out

    def _awaited(self, kind: str, call: int) -> list[int]:
        """Operations that one call of the runtime waits for; -1 for none."""
        begin, until = int(self.events.start[call]), int(self.returns[call]) + self.slack
        if kind == "device":
            return [self._last_before(lane, begin) for lane in range(len(self.work.lanes))]
        sync = self.known.get(call, -1)
        lane = self._lane(sync, "stream" if kind == "stream" else "wait_on_stream") if sync >= 0 else -1
        if lane >= 0:
            return [self._last_before(lane, begin) if kind == "stream" else self._recorded(sync, call)]
        recent = takewhile(lambda op: self.ends[op] >= begin, self.by_end.before(until + 1))
        inside = next((op for op in recent if self.launched[op] < begin), -1)
        if inside < 0 and kind == "stream":
            inside = next(self.of_thread[int(self.events.thread[call])].before(begin), -1)
        return [inside]

    # -- looking up --------------------------------------------------------------------------------------------

    def _lane(self, sync: int, key: str) -> int:
        """The lane of a stream that a recorded wait names; -1 if it ran nothing."""
        args = self.events.args.get(sync, {})
        stream = int(self.events.stream[sync]) if key == "stream" else integer(args.get(key))
        lanes = [lane for lane, (_, other) in enumerate(self.work.lanes) if other == stream]
        same = [lane for lane in lanes if self.work.lanes[lane][0] == self.events.device[sync]]
        return next(iter(same or lanes), -1)

    def _recorded(self, sync: int, call: int) -> int:
        """Last operation on the stream before the record of the event that was waited for; -1 if there is none."""
        lane = self._lane(sync, "wait_on_stream")
        record = integer(self.events.args.get(sync, {}).get("wait_on_cuda_event_record_corr_id"))
        if lane < 0 or record < 0:
            return self._last_before(lane, int(self.events.start[call]))
        return next((op for op in self.of_lane[lane].before(_LATEST) if self.correlation[op] < record), -1)

    def _last_before(self, lane: int, time: int) -> int:
        """Last operation launched on a lane before a time; -1 if there is none."""
        return next(self.of_lane[lane].before(time), -1) if lane >= 0 else -1
