"""Joining: each call to the operator around it, and each operator to its node in the host's trace."""

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from astrasim_py.pytorch.host_trace import HostTrace
from astrasim_py.pytorch.kineto import CPU_BACKENDS
from astrasim_py.pytorch.recording import Category, Recording

#: Number of successive names that must agree where two traces match again after a difference.
AGREE = 4
#: Least share of operators, or of nodes, that must be joined if two traces are of one run.
SAME_RUN = 0.9
#: Places from which joining by names is tried where the first leads nowhere.
MOST_STARTS = 100


def enclosing(recording: Recording) -> np.ndarray:
    """int32 per event: the row of the innermost operator on its thread around its start, or of the annotation there.

    Of host events only; -1 for none. For calls annotations count only where there is no operator. A range that overlaps
    another without nesting, and the spans of a backend, enclose nothing.
    """
    events = recording.events
    innermost = np.full(len(events), -1, np.int32)
    spans = {code for code, name in enumerate(recording.names) if name.startswith(CPU_BACKENDS)}
    host = np.flatnonzero(events.category <= Category.CALL)
    stacks: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)  # by thread: (end, row, is an operator)
    columns = (host, *(c[host] for c in (events.category, events.name, events.thread, events.start, events.end)))
    for row, category, name, thread, start, end in zip(*(column.data for column in columns), strict=True):
        stack = stacks[thread]
        if category == Category.CALL:
            around = [(op, is_operator) for last, op, is_operator in reversed(stack) if last >= start]
            innermost[row] = next((op for op, is_operator in around if is_operator), around[0][0] if around else -1)
            continue
        while stack and stack[-1][0] <= start:
            stack.pop()
        innermost[row] = stack[-1][1] if stack else -1
        if name not in spans and (not stack or end <= stack[-1][0] + recording.resolution_ns):
            stack.append((end, row, category == Category.OP))
    return innermost


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """Which node of the host's trace each operator is."""

    host_row: np.ndarray  # int32 per event of the recording, a row of the host's trace; -1 for none
    by_record_id: bool  # else by names in order of start
    strangers: bool  # the two traces are of two processes: of another rank or run, even where all names agree
    joined: int
    operators: int  # of the recording
    nodes: int  # of the host's trace

    @property
    def rate(self) -> float:
        """Share joined of the operators, or of the nodes if that is larger: either may hold more iterations."""
        return self.joined / max(1, min(self.operators, self.nodes))

    @property
    def same_run(self) -> bool:
        return self.rate >= SAME_RUN

    @property
    def how(self) -> str:
        """Key by which operators and nodes were joined."""
        return "by record id" if self.by_record_id else "by names"

    def __str__(self) -> str:
        counts = f"{self.joined} of {self.operators} operators, of {self.nodes} nodes"
        doubt = ": of another rank or run" if self.strangers else ""
        return f"{100 * self.rate:.1f} % joined {self.how} ({counts}){doubt if self.same_run else ': not the same run'}"


def join(recording: Recording, host: HostTrace) -> Joined:
    """Find the node of each operator: by record id if that fits, else by the order of names on each thread."""
    events = recording.events
    operators = np.flatnonzero(events.category <= Category.ANNOTATION)
    codes = {name: code for code, name in enumerate(host.names)}
    here = np.array([codes.get(name, -1) for name in recording.names], np.int64)[events.name[operators]]
    rows = np.full(len(events), -1, np.int32)
    rows[operators] = _by_record_id(events.record_id[operators], here, host)
    by_record_id = int((rows >= 0).sum()) >= SAME_RUN * max(1, len(operators))
    if not by_record_id:
        rows[operators] = _by_names(events.thread[operators], here, host)
    processes = {recording.threads[thread][0] for thread in np.unique(events.thread[operators]).tolist()} - {"None"}
    strangers = host.process >= 0 and bool(processes) and host.process not in processes
    return Joined(rows, by_record_id, strangers, int((rows >= 0).sum()), len(operators), len(host))


def _by_record_id(record_ids: np.ndarray, names: np.ndarray, host: HostTrace) -> np.ndarray:
    known, rows = np.unique(host.record_ids, return_index=True)
    if not len(known):
        return np.full(len(record_ids), -1)
    place = np.searchsorted(known, record_ids).clip(max=len(known) - 1)
    row = rows[place]
    return np.where((known[place] == record_ids) & (record_ids >= 0) & (host.name[row] == names), row, -1)


def _by_names(threads: np.ndarray, names: np.ndarray, host: HostTrace) -> np.ndarray:
    """Pair threads by common names, most first, and walk each pair."""
    host_rows = np.full(len(names), -1)
    lanes = {thread: np.flatnonzero(threads == thread) for thread in np.unique(threads).tolist()}
    hosts = {thread: np.flatnonzero(host.threads == thread) for thread in np.unique(host.threads).tolist()}
    counts = [
        {t: Counter(of[r].tolist()) for t, r in rows.items()} for rows, of in ((lanes, names), (hosts, host.name))
    ]
    common = [((a & b).total(), left, right) for left, a in counts[0].items() for right, b in counts[1].items()]
    paired: set[tuple[str, int]] = set()
    for count, left, right in sorted(common, key=lambda pair: (-pair[0], *pair[1:])):
        if count and not paired & {("mine", left), ("theirs", right)}:
            paired |= {("mine", left), ("theirs", right)}
            for place, other in _best_walk(names[lanes[left]].tolist(), host.name[hosts[right]].tolist()):
                host_rows[lanes[left][place]] = hosts[right][other]
    return host_rows


def _best_walk(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """`_walk` from the place in `left` that joins most: the host's trace may hold only one of many iterations."""
    best = _walk(left, right)
    if len(best) < SAME_RUN * len(right) and len(left) > 2 * len(right) and best:
        mark = right[best[0][1] : best[0][1] + AGREE]
        starts = [i for i in range(1, len(left)) if left[i] == mark[0] and left[i : i + AGREE] == mark]
        for start in starts[:: 1 + len(starts) // MOST_STARTS]:
            walked = [(i + start, other) for i, other in _walk(left[start : start + 2 * len(right)], right)]
            best = max(best, walked, key=len)
    return best


def _walk(left: list[int], right: list[int]) -> list[tuple[int, int]]:
    """Places of equal names in two sequences; after a difference the nearest place where `AGREE` of them agree."""
    padding = [-2] * AGREE  # so that the two ends agree
    left, right, length, other = left + padding, right + padding, len(left), len(right)
    grams: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place in range(other):
        grams[tuple(right[place : place + AGREE])].append(place)
    pairs, i, j = [], 0, 0
    while i < length and j < other:
        if left[i] == right[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        best, meet, ahead = length + other, (length, other), 0
        while ahead < best and i + ahead < length:
            places = grams.get(tuple(left[i + ahead : i + ahead + AGREE]), ())
            first = bisect_left(places, j)
            if first < len(places) and ahead + places[first] - j < best:
                best, meet = ahead + places[first] - j, (i + ahead, places[first])
            ahead += 1
        i, j = meet
    return pairs
