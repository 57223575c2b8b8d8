"""CPU threads cut into pieces: at launches, at synchronisations, and at hand-overs between threads."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from astrasim_py.pytorch.recording import Category, Recording

#: Least time that a thread is silent while another one works for it, ns.
SILENCE_NS = 20_000
#: Least time that a copy's call blocks beyond the start of the copy to count as a synchronisation, ns.
BLOCKED_NS = 5_000
#: Threads among which hand-overs are searched for: those with the most events.
_MOST_THREADS = 64
_NEVER = 2**62
_SYNCHRONISATIONS = {
    "DeviceSynchronize": "device",
    "CtxSynchronize": "device",
    "Free": "device",
    "StreamSynchronize": "stream",
    "EventSynchronize": "event",
    "StreamWaitEvent": "wait",
    "Memcpy": "copy",
    "MemcpyWithStream": "copy",
}
_CALL = re.compile(r"(?:cuda|hip|cu)(?P<what>[A-Z]\w*?)(?:_v\d+|_pt[sd]z)*")


@dataclass(frozen=True)
class Work:
    """Device operations of a step in order of start, with the calls that launched them."""

    row: np.ndarray  # in the recording; of the last operation where one stands for the backlog of a lane
    start: np.ndarray  # ns
    end: np.ndarray
    lane: np.ndarray  # index into `lanes`
    call: np.ndarray  # row of the call that launched it; -1 where unknown
    backlog: np.ndarray  # bool: it stands for all that was launched on the lane before the step
    lanes: tuple[tuple[int, int], ...]  # device and stream


@dataclass(frozen=True)
class Pieces:
    """Pieces of the CPU threads, sorted by thread and end.

    Each lasts from the end of what it needs, at least the piece before it on its thread, to its `end`.
    """

    thread: np.ndarray
    end: np.ndarray  # ns
    of_call: dict[int, int]  # row of a call → the piece that ends with it
    handed: list[tuple[int, int]]  # the second piece needs the first one, of another thread

    def after(self, piece: int) -> int:
        """The next piece of the same thread; -1 if there is none."""
        following = piece + 1
        return following if following < len(self.end) and self.thread[following] == self.thread[piece] else -1


def calls_by_kind(recording: Recording) -> dict[str, np.ndarray]:
    """Rows of the calls that wait for the device, by what they wait for: device, stream, event, wait or copy."""
    kinds: dict[str, list[int]] = {}
    for code, name in enumerate(recording.names):
        match = _CALL.fullmatch(name)
        if match and match["what"] in _SYNCHRONISATIONS:
            kinds.setdefault(_SYNCHRONISATIONS[match["what"]], []).append(code)
    rows = np.flatnonzero(recording.events.category == Category.CALL)
    codes = recording.events.name[rows]
    return {kind: rows[np.isin(codes, kinds.get(kind, []))] for kind in dict.fromkeys(_SYNCHRONISATIONS.values())}


def device_work(recording: Recording) -> Work:
    """The operations of a step, and one for the backlog of each lane."""
    events = recording.events
    rows = recording.work
    keys = np.stack([events.device, events.stream], axis=1)
    lanes, lane = np.unique(keys[np.concatenate([rows, recording.backlog])], axis=0, return_inverse=True)
    lane = lane.reshape(-1).astype(np.int64)
    lane_of, earlier = lane[: len(rows)], lane[len(rows) :]
    ends = events.end[recording.backlog]
    latest = np.lexsort((ends, earlier))
    last = latest[np.flatnonzero(np.diff(earlier[latest], append=-1))]
    until = ends[last]
    for i, number in enumerate(earlier[last].tolist()):  # the backlog ends before the first operation of its lane
        until[i] = min(until[i], events.start[rows[lane_of == number]].min(initial=until[i]))
    row = np.concatenate([recording.backlog[last], rows]).astype(np.int64)
    backlog = np.arange(len(row)) < len(last)
    start = np.where(backlog, 0, events.start[row])
    end = np.concatenate([until, events.end[rows]])
    call = np.where(backlog, -1, events.launch[row]).astype(np.int64)
    order = np.argsort(start, kind="stable")
    lane = np.concatenate([earlier[last], lane_of])[order]
    of_lanes = tuple(map(tuple, lanes.tolist()))
    return Work(row[order], start[order], end[order], lane, call[order], backlog[order], of_lanes)


def launch_ends(recording: Recording, work: Work) -> np.ndarray:
    """When the launch of each operation was done, ns: at its return, but not after the operation started; else -1."""
    begin = recording.events.start[work.call]
    waited = np.clip(work.start - begin, 0, recording.events.duration[work.call])
    return np.where(work.call >= 0, begin + waited, -1)


def blocking_copies(recording: Recording, work: Work) -> np.ndarray:
    """Copies whose call returned after they had ended: bool of each operation."""
    events = recording.events
    is_copy = np.isin(work.call, calls_by_kind(recording)["copy"])
    late = events.end[work.call] - work.end > BLOCKED_NS
    return (work.call >= 0) & (events.category[work.row] == Category.MEMCPY) & (late | is_copy)


def cut_threads(
    recording: Recording, work: Work, launched: np.ndarray, synchronisations: np.ndarray, hand_overs: bool = True
) -> Pieces:
    """Cut the threads of a recording into pieces.

    `work`: what they launch. `launched`: when the launch of each operation was done, ns. `synchronisations`: rows of
    the calls that wait for the device. `hand_overs`: cut where one thread hands over to another, too.
    """
    events = recording.events
    calls, first = np.unique(work.call, return_index=True)
    calls, at_launch = calls[calls >= 0], launched[first[calls >= 0]]
    t0, t1 = recording.step.start, recording.step.end
    synchronisations = np.setdiff1d(synchronisations, calls)
    inside = synchronisations[(events.start[synchronisations] >= t0) & (events.start[synchronisations] < t1)]
    hands = _hand_overs(recording) if hand_overs else []
    main = main_thread(recording)
    ends = [] if main < 0 else [t1]
    time = np.concatenate([at_launch, events.start[inside], [moment for moment, *_ in hands], ends]).astype(np.int64)
    thread = np.concatenate(
        [events.thread[calls], events.thread[inside], [p for _, p, *_ in hands], [main] * len(ends)]
    )
    row = np.concatenate([calls, inside, np.full(len(hands) + len(ends), -1)]).astype(np.int64)
    order = np.lexsort((np.arange(len(time)), time, thread))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    time, thread, row = time[order], thread[order].astype(np.int64), row[order]
    of_call = {int(r): int(i) for i, r in enumerate(row) if r >= 0}
    handed = []
    for number, (_, _, other, since) in enumerate(hands):
        low, high = np.searchsorted(thread, (other, other + 1))
        target = low + int(np.searchsorted(time[low:high], since))
        if target < high:
            handed.append((int(place[len(calls) + len(inside) + number]), target))
    return Pieces(thread, time, of_call, handed)


def main_thread(recording: Recording) -> int:
    """Thread of the step's annotation, else the one with the most calls, else operations; -1 without any."""
    events, name = recording.events, recording.step.name
    of_step = (events.category == Category.ANNOTATION) & (events.start == recording.step.start)
    for row in np.flatnonzero(of_step):
        if recording.names[events.name[row]] == name:
            return int(events.thread[row])
    for category in (Category.CALL, Category.OP, Category.ANNOTATION):
        threads = events.thread[events.category == category]
        if len(threads):
            return int(np.bincount(threads).argmax())
    return -1


def _hand_overs(recording: Recording) -> list[tuple[int, int, int, int]]:
    """Hand-overs as (end of the work of P, P, Q, time): the first piece of Q that ends then or later needs it.

    Where P is silent, and Q was idle when that began, P hands over to the first work of Q inside; if Q is idle again
    when P goes on, the last work of Q that ended inside hands over to P.
    """
    events = recording.events
    host = np.flatnonzero(events.category <= Category.CALL)
    counts = Counter(events.thread[host].tolist())
    start, stop = (column.clip(0, recording.step.end) for column in (events.start, events.end))
    bursts = {}  # of each thread: from one silence of it to the next
    for thread in sorted(thread for thread, _ in counts.most_common(_MOST_THREADS)):
        rows = host[events.thread[host] == thread]
        begin, end = busy(start[rows], stop[rows], events.category[rows] == Category.ANNOTATION)
        cut = np.flatnonzero(begin[1:] - end[:-1] >= SILENCE_NS)
        bursts[thread] = begin[np.r_[0, cut + 1]], end[np.r_[cut, len(end) - 1]]
    hand_overs = set()
    for p, (p_begin, p_end) in bursts.items():
        since, until = p_end[:-1], p_begin[1:]  # P is silent
        for q, (q_begin, q_end) in bursts.items():
            first, last = np.searchsorted(q_begin, since), np.searchsorted(q_end, until, side="right") - 1
            idle = np.append(q_end, 0)[first - 1] * (first > 0) <= since
            for i in np.flatnonzero(idle & (np.append(q_begin, _NEVER)[first] < until) & (p != q)).tolist():
                hand_overs.add((int(since[i]), p, q, int(q_begin[first[i]])))
            idle = np.append(q_begin, _NEVER)[last + 1] >= until
            for i in np.flatnonzero(idle & (np.append(q_end, -1)[last] > since) & (p != q)).tolist():
                hand_overs.add((int(q_end[last[i]]), q, p, int(until[i])))
    return sorted(hand_overs)


def busy(start: np.ndarray, end: np.ndarray, ranges: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Stretches in which a thread works, given its operations by start: begins and ends, ns.

    A thread works at the bounds of an operation, and all through one that encloses no other and is none of `ranges`
    (bool), which the program only marked.
    """
    leaf = np.r_[start[1:] >= end[:-1], np.ones(len(start[:1]), bool)]
    leaf &= True if ranges is None else ~ranges
    begin = np.concatenate([start, end, start[leaf]])
    until = np.concatenate([start, end, end[leaf]])
    order = np.argsort(begin, kind="stable")
    begin, until = begin[order], np.maximum.accumulate(until[order])
    new = np.r_[np.ones(len(begin[:1]), bool), begin[1:] > until[:-1]]
    return begin[new], until[np.r_[np.flatnonzero(new)[1:] - 1, len(until) - 1]] if len(begin) else until
