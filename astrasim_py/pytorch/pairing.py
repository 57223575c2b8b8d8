"""The kernel of each call that the host states, whatever its name.

It is, in this order: the one that was launched in the range of the call, by its name or by not being a computation; the
one that names a range by its ``External id``; for calls that are issued together, the kernel that is
launched after them; and for what is left, the kernels of libraries, or of the only stream that fits, in order.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.pytorch.facts import MESSAGES, RECORD, kernel_kind, kind_of
from astrasim_py.pytorch.recording import Category, Recording
from astrasim_py.pytorch.statements import NodeOf, Statement, kind_said, stated

#: Names of libraries that c10d calls, and words for what their kernels do.
_LIBRARY = re.compile(r"(?<![a-z])(?:n|r|ms|one|h|x|m|cn)?ccl|hcom_", re.IGNORECASE)
_DOES = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast", re.IGNORECASE)
#: Functions that communicate beside c10d.
_BESIDE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|nvshmem|deep_ep|multimem", re.I
)
#: Functions that compute or copy beside the kernel of a call.
_COMPUTES = re.compile(
    r"\bat::|elementwise|triton_|gemm|cutlass|cudnn|\bcub::|thrust|copy|fill|memset|cat_?array|concat|convert|transpose",
    re.IGNORECASE,
)
#: Names of kinds, told at most.
_TOLD = 3


@dataclass(frozen=True)
class Paired:
    """Which calls each kernel carries out, as numbers of `said`; and what is left."""

    said: Sequence[Statement]
    of: Mapping[int, list[int]]  # by row of the kernel
    notes: Sequence[str]


def pair(recording: Recording, node_of: NodeOf, by_name: set[int]) -> Paired:
    """The kernel of each call. `by_name`: rows of kernels that communicate by their names or arguments."""
    statements, mute = stated(recording, node_of)
    if not statements and not mute:
        return Paired((), {}, _lonely(recording, by_name, {}))
    pairing = _Pairing(recording, statements, by_name)
    pairing.by_launch()
    for way in (pairing.by_external_id, pairing.together, pairing.in_order, pairing.by_stream):
        if pairing.free:
            way()
    notes = [*pairing.left(), *pairing.muted(mute), *_lonely(recording, by_name, pairing.of)]
    return Paired(statements, pairing.of, notes)


class _Pairing:
    def __init__(self, recording: Recording, statements: list[Statement], by_name: set[int]) -> None:
        events = recording.events
        self.recording, self.events, self.said, self.named = recording, events, statements, by_name
        self.kernels = recording.work[events.category[recording.work] == Category.KERNEL]
        self.like = [_looks_like(name) for name in recording.names]
        self.computes = [bool(_COMPUTES.search(name)) for name in recording.names]
        self.of: dict[int, list[int]] = {}
        self.free = set(range(len(statements)))
        self.launched = self._launched()

    def _launched(self) -> np.ndarray:
        """Number of the call in whose range each kernel was launched; -1 for none."""
        events, calls = self.events, np.full(len(self.kernels), -1, np.int64)
        launch = events.launch[self.kernels]
        known = np.flatnonzero(launch >= 0)
        by_thread = defaultdict(list)
        for number, statement in enumerate(self.said):
            by_thread[statement.thread].append(number)
        for thread, numbers in by_thread.items():
            starts, ends = (np.array([getattr(self.said[n], key) for n in numbers]) for key in ("start", "end"))
            of_thread = known[events.thread[launch[known]] == thread]
            times = events.start[launch[of_thread]]
            place = np.searchsorted(starts, times, side="right") - 1
            inside = (place >= 0) & (times <= ends[place])
            calls[of_thread[inside]] = np.array(numbers)[place[inside]]
        return calls

    def _take(self, kernel: int, calls: Sequence[int]) -> None:
        self.of[kernel] = list(calls)
        self.free -= {*calls}

    def _candidates(self, number: int, kernels: Sequence[int]) -> None:
        """Take the kernels of a call: those that are named so, else the likeliest of the others."""
        candidates = [row for row in kernels if row in self.named]
        free = [row for row in kernels if row not in self.of]
        likely = [row for row in free if self.like[self.events.name[row]]]
        likely = likely or [row for row in free if not self.computes[self.events.name[row]]]
        if not candidates and likely:
            candidates = [max(likely, key=lambda row: (int(self.events.duration[row]), row))]
        for row in candidates:
            self._take(row, [number])

    def by_launch(self) -> None:
        inside = defaultdict(list)
        for place in np.flatnonzero(self.launched >= 0).tolist():
            inside[int(self.launched[place])].append(int(self.kernels[place]))
        for number, kernels in sorted(inside.items()):
            self._candidates(number, kernels)

    def by_external_id(self) -> None:
        """External ids of old recordings are correlations, which mean nothing here."""
        ids: dict[int, int] = {}
        for number in sorted(self.free):
            for row in (self.said[number].row, *self.said[number].around):
                ids.setdefault(int(self.events.external_id[row]), number)
        ids.pop(-1, None)
        external = self.events.external_id[self.kernels]
        is_external = (external >= 0) & (external != self.events.correlation[self.kernels]) & (self.launched < 0)
        kernels_of = defaultdict(list)
        for place in np.flatnonzero(is_external).tolist():
            if int(external[place]) in ids and int(self.kernels[place]) not in self.of:
                kernels_of[ids[int(external[place])]].append(int(self.kernels[place]))
        for number, kernels in sorted(kernels_of.items()):
            self._candidates(number, kernels)

    def _lone(self) -> list[int]:
        """Kernels that communicate by their names, without a call, in order of launch."""
        rows = [row for row in self.kernels.tolist() if row not in self.of]
        rows = [row for row in rows if row in self.named or self.like[self.events.name[row]]]
        return sorted(rows, key=lambda row: (int(self.events.correlation[row]), int(self.events.start[row]), row))

    def together(self) -> None:
        """Give a kernel that is launched outside of all calls those just before it on its thread that have none.

        Nothing else is launched between calls that are issued together.
        """
        events, by_thread = self.events, defaultdict(list)
        for number, statement in enumerate(self.said):
            by_thread[statement.thread].append((statement.end, number))
        launch = events.launch[self.kernels]
        launch = launch[launch >= 0]
        launches = {thread: np.sort(events.start[launch[events.thread[launch] == thread]]) for thread in by_thread}
        for row in self._lone():
            launch = int(events.launch[row])
            thread, time = int(events.thread[launch]), int(events.start[launch])
            if launch < 0 or thread not in by_thread:
                continue
            before, calls = by_thread[thread], []
            for end, number in reversed(before[: bisect_right(before, (time, len(self.said)))]):
                between = np.diff(np.searchsorted(launches[thread], [end, time]))[0]
                if between or number not in self.free or not self._fits(row, number):
                    break
                calls.append(number)
                time = self.said[number].start
            if calls:
                self._take(row, calls[::-1])

    def _fits(self, row: int, number: int) -> bool:
        """Whether a kernel may carry out a call, by its name: of a library, and of no other kind."""
        name, kind = self.recording.names[self.events.name[row]], kind_said(self.said[number].facts)
        by_name = kernel_kind(name)
        if not by_name:
            does = _DOES.search(_function(name))
            by_name = kind_of(does[0]) if does else "" if by_name == "" or _LIBRARY.search(name) else None
        messages = by_name == "all_to_all" and kind in (*MESSAGES, "gather", "scatter")
        return by_name in ("", kind) or messages

    def in_order(self) -> None:
        """Give each kernel that is left the first call before it whose kind fits."""
        calls: dict[str, deque[int]] = defaultdict(deque)
        for number in sorted(self.free):
            calls[kind_said(self.said[number].facts)].append(number)
        for row in sorted(self._lone(), key=lambda row: (int(self.events.start[row]), row)):
            heads = [queue[0] for queue in calls.values() if queue and self._fits(row, queue[0])]
            if heads and self.said[min(heads)].start <= int(self.events.start[row]):
                number = min(heads)
                self._take(row, [calls[kind_said(self.said[number].facts)].popleft()])

    def by_stream(self) -> None:
        """Take the only stream that has as many other kernels as calls are left, each after its call."""
        calls, events = sorted(self.free), self.events
        threads = {statement.thread for statement in self.said}
        streams = defaultdict(list)
        for row in self.kernels.tolist():
            launch = int(events.launch[row])
            if row not in self.of and (launch < 0 or int(events.thread[launch]) not in threads):
                streams[int(events.device[row]), int(events.stream[row])].append(row)
        fitting = [
            rows
            for rows in streams.values()
            if len(rows) == len(calls)
            and not any(self.computes[events.name[row]] for row in rows)
            and all(events.start[row] >= self.said[n].start for row, n in zip(rows, calls, strict=True))
        ]
        if len(fitting) == 1:
            for row, number in zip(fitting[0], calls, strict=True):
                self._take(row, [number])

    def left(self) -> list[str]:
        """A line about calls of the step without a kernel."""
        last = self.recording.step.end
        unpaired = [self.said[n] for n in sorted(self.free) if self.said[n].start >= 0 and self.said[n].end <= last]
        if not unpaired:
            return []
        kinds = Counter(kind_said(statement.facts) for statement in unpaired)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        single = len(unpaired) == 1
        text = f"{len(unpaired)} host call{'' if single else 's'} ({shown}) found no kernel"
        return [f"{text}: {'it is' if single else 'they are'} not in the workload"]

    def muted(self, mute: Sequence[int]) -> list[str]:
        """A line about ranges that say nothing of the calls whose kernels they launched, nor do these."""
        events, count = self.events, 0
        launched = self.kernels[events.launch[self.kernels] >= 0]
        launch = events.launch[launched]
        order = np.lexsort((events.start[launch], events.thread[launch]))
        launched, thread, start = launched[order], events.thread[launch][order], events.start[launch][order]
        for row in mute:
            first, last = (np.searchsorted(thread, events.thread[row], side) for side in ("left", "right"))
            ends = events.start[row], events.start[row] + events.duration[row] + 1
            low, high = first + np.searchsorted(start[first:last], ends)
            inside = launched[low:high].tolist()
            is_known = any(
                kernel_kind(self.recording.names[events.name[kernel]]) or kernel in events.args or kernel in self.of
                for kernel in inside
            )
            count += bool(inside) and not is_known
        if not count:
            return []
        text = f"{count} host call{'s' * (count > 1)} ({RECORD}) that launched kernels do not say what was called"
        return [f"{text}: add the host's trace (et), or name them by trace convert --map-kernel"]


def _function(name: str) -> str:
    """The name of a function without its arguments."""
    return re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]


def _looks_like(name: str) -> bool:
    """Whether the name of a function is of communication."""
    function = _function(name)
    return kernel_kind(name) is not None or bool(_LIBRARY.search(function) or _BESIDE.search(function))


def _lonely(recording: Recording, by_name: set[int], of: Mapping[int, list[int]]) -> list[str]:
    """A line about kernels that look like communication, of which neither a call nor their name says more."""
    events = recording.events
    codes = {code for code, name in enumerate(recording.names) if _looks_like(name)}
    alike = recording.work[np.isin(events.name[recording.work], list(codes))]
    kernels = alike[events.category[alike] == Category.KERNEL]
    rows = [row for row in kernels.tolist() if row not in by_name and row not in of]
    if not rows:
        return []
    names = dict.fromkeys(recording.names[events.name[row]][:60] for row in rows)
    shown = ", ".join(list(names)[:_TOLD]) + ", …" * (len(names) > _TOLD)
    head = "1 kernel without a host call looks" if len(rows) == 1 else f"{len(rows)} kernels without a host call look"
    text = f"{head} like communication ({shown}) and {'stays' if len(rows) == 1 else 'stay'} computation"
    return [f"{text}; name the call by trace convert --map-kernel"]
