"""Reading of Kineto's traces: the files that `torch.profiler` exports."""

import json
from array import array
from collections import Counter
from collections.abc import Callable

import numpy as np

from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.json_stream import elements, unheard
from astrasim_py.pytorch.recording import DEVICE, MAX_RANKS, Category, Events, RecordedGroup, RecordedStep, Recording
from astrasim_py.pytorch.steps import LONGEST, choose_step, encodable, find_steps, nanoseconds

LISTED = "traceEvents"
#: Categories as Kineto writes them now and as it wrote them before PyTorch 1.11, in lower case.
CATEGORIES = {
    "cpu_op": Category.OP,
    "operator": Category.OP,
    "user_annotation": Category.ANNOTATION,
    "runtime": Category.CALL,
    "cuda_runtime": Category.CALL,
    "cuda_driver": Category.CALL,
    "hip_runtime": Category.CALL,
    "xpu_runtime": Category.CALL,
    "xpu_driver": Category.CALL,
    "privateuse1_runtime": Category.CALL,
    "privateuse1_driver": Category.CALL,
    "kernel": Category.KERNEL,
    "memcpy": Category.MEMCPY,
    "gpu_memcpy": Category.MEMCPY,
    "memset": Category.MEMSET,
    "gpu_memset": Category.MEMSET,
    "cuda_sync": Category.SYNC,
}
#: Spans in which a backend of c10d on the host moves data.
CPU_BACKENDS = ("gloo:", "mpi:", "ucc:")
#: Ranges that libraries of devices mark.
MARKS = ("nccl:", "rccl:", "xccl:", "hccl:", "oneccl:", "cncl:", "mccl:")
#: Beginnings of names of host events with facts about communication.
COMMUNICATION = ("record_param_comms", "c10d::", "_c10d_functional", "c10d_functional", *MARKS, *CPU_BACKENDS)
#: Arguments that are lists.
_LISTS = {"Concrete Inputs", "Input Dims", "Input type"}
#: Arguments that columns hold already, and others without facts about communication.
_COLUMN_ARGS = {"correlation", "External id", "external id", "Record function id", "Ev Idx", "Input Strides"}
_HEADER = {"distributedInfo", "baseTimeNanoseconds"}
_COLUMNS = {  # array's type of each column while events are read
    "category": "b",
    "name": "i",
    "start": "q",
    "duration": "q",
    "thread": "i",
    "correlation": "q",
    "external_id": "q",
    "record_id": "q",
    "device": "i",
    "stream": "q",
}
_NO_STREAM = 2**32 - 1


def read_recording(
    source: str, step: int | str | None = "median", tell: Callable[[float], None] = unheard
) -> Recording:
    """Read one step of a Kineto trace.

    `source`: a JSON file, gzip'd or not, or ``archive!member`` of a tar archive. `step`: the number of a step,
    ``"median"`` (by duration, the first and the last left out), or None for the whole recording, which is also read
    where there are no steps. `tell`: takes the share that has been read.

    The file is read twice, event by event; memory is that of the events kept. Raises TraceError: not readable, not
    JSON, cut short, an impossible time, nothing in it that ran on a device or was sent. Raises UsageError: no such
    step.
    """
    steps = find_steps(source, lambda share: tell(share / 2))
    window = choose_step(steps, step, source)
    table = _EventTable(source, window)
    header: dict[str, object] = {}
    for key, value in elements(source, LISTED, lambda share: tell(0.5 + share / 2)):
        if key == LISTED:
            if isinstance(value, dict):
                table.add(value)
        elif key in _HEADER:
            header[key] = value
    if not table.counts.keys() & {c.name for c in DEVICE} and not table.communicates:
        problem = "has neither work of a device nor collectives of the host"
        raise TraceError(source, problem, f"its categories: {', '.join(sorted(table.found)) or 'none'}")
    return table.recording(header, steps)


class _EventTable:
    """Columns of the events of a window."""

    def __init__(self, source: str, window: RecordedStep | None) -> None:
        self.source, self.window = source, window
        self.first, self.last = (window.start, window.end) if window else (-(2**62), 2**62)
        self.columns = {name: array(code) for name, code in _COLUMNS.items()}
        self.append = [column.append for column in self.columns.values()]
        self.names: dict[str, int] = {}
        self.threads: dict[tuple, int] = {}
        self.args: dict[int, dict] = {}
        self.distinct: dict[str, dict] = {}  # by text: most calls of a step have arguments like others
        self.found: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.communicates = self.fractions = False
        self.seen = 0

    def add(self, event: dict) -> None:
        """Keep an event if it is of a known category and may touch the window."""
        self.seen += 1
        if event.get("ph") != "X":
            return
        written = event.get("cat")
        category = CATEGORIES.get(written) if isinstance(written, str) else None
        if category is None:
            category = CATEGORIES.get(str(written).lower())
            if category is None:
                if len(self.found) < 100:
                    self.found[str(written)[:40]] += 1
                return
        self.counts[category.name] += 1
        start, duration = self.time(event, "ts"), self.time(event, "dur")
        if duration < 0:
            self.fail(f"its dur is {event['dur']}", "a duration cannot be negative")
        name = event.get("name")
        name = name if isinstance(name, str) else str(name)
        host = category <= Category.CALL
        communicates = host and name.startswith(COMMUNICATION)
        self.communicates |= communicates and not name.startswith(MARKS)
        if start + duration <= self.first > start or (host and start >= self.last):
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        process, thread = event.get("pid"), event.get("tid")
        if communicates or category == Category.SYNC or "Collective name" in args:
            kept = {key: value for key, value in args.items() if key not in _COLUMN_ARGS}
            kept = {key: value for key, value in kept.items() if key not in _LISTS or isinstance(value, list)}
            try:
                self.args[len(self.columns["start"])] = self.distinct.setdefault(json.dumps(kept), kept)
            except RecursionError:
                self.fail("its args are nested too deeply", "it is no recording of PyTorch")
        row = (
            category,
            self.names.setdefault(name, len(self.names)),
            start,
            duration,
            self.threads.setdefault((_plain(process), _plain(thread)), len(self.threads)),
            integer(args.get("correlation")),
            integer(args.get("External id", args.get("external id"))),
            integer(args.get("Record function id")),
            -1 if host else integer(args.get("device", process), most=2**31),
            -1 if host else integer(args.get("stream", thread)),
        )
        for append, value in zip(self.append, row, strict=True):
            append(value)

    def time(self, event: dict, key: str) -> int:
        value = event.get(key, 0 if key == "dur" else None)
        try:
            ns = nanoseconds(value)
        except ValueError:
            self.fail(f"its {key} is {str(value)[:40]}", "write microseconds")
        self.fractions |= ns % 1000 != 0
        return ns

    def column(self, name: str) -> np.ndarray:
        """One column, in order of the file."""
        return np.frombuffer(self.columns[name], _COLUMNS[name])

    def fail(self, problem: str, remedy: str) -> None:
        raise TraceError(f"{self.source}: event {self.seen}", problem, remedy)

    def recording(self, header: dict, steps: tuple[RecordedStep, ...]) -> Recording:
        """Order the events, link the device's work to its calls, and leave out other steps."""
        start, duration, category = (self.column(name) for name in ("start", "duration", "category"))
        kept, backlog, launch = _membership(category, start, self.column("correlation"), self.first, self.last)
        zero = self.window.start if self.window else int(start[kept & ~backlog].min(initial=2**62))
        if zero == 2**62:
            zero = int(start.min(initial=0))
        backlog &= start + duration > zero
        threads, numbers = _in_order(self.threads)
        self.columns["thread"] = array(_COLUMNS["thread"], numbers[self.column("thread")].tobytes())
        rows = np.flatnonzero(kept)
        ties = [self.column(name)[rows] for name in ("stream", "thread", "correlation", "record_id", "external_id")]
        rows = rows[np.lexsort((*ties, category[rows] == Category.CALL, -duration[rows], start[rows]))]
        place = np.full(len(start) + 1, -1, np.int32)  # the last entry is for events without a call
        place[rows] = np.arange(len(rows), dtype=np.int32)
        del start, duration, category, kept, ties
        self.append.clear()  # they hold the columns, too
        columns = {}
        for name in _COLUMNS:  # one at a time: a second copy of all of them would be large
            columns[name] = self.column(name)[rows]
            del self.columns[name]
        columns["start"] -= zero
        columns["stream"][columns["stream"] == _NO_STREAM] = -1
        args = sorted((int(place[row]), args) for row, args in self.args.items() if place[row] >= 0)
        events = Events(**columns, launch=place[launch[rows]], args=dict(args))
        left = np.flatnonzero(backlog[rows])
        if self.window:
            step = RecordedStep(self.window.name, 0, self.window.end - zero)
        else:
            host = events.category <= Category.CALL
            step = RecordedStep("", 0, int(events.end[host].max(initial=0)))
        base = integer(header.get("baseTimeNanoseconds"), default=0, most=LONGEST)
        rank, world, groups = _distributed(header.get("distributedInfo"))
        if max(rank or 0, world or 0) >= MAX_RANKS:
            problem = f"says that it is rank {rank} of {world}"
            raise TraceError(self.source, problem, f"there may be at most {MAX_RANKS} ranks")
        return Recording(
            source=self.source,
            rank=rank,
            world_size=world,
            groups=groups,
            base_ns=base + zero,
            resolution_ns=1000 if self.fractions else 2000,
            step=step,
            steps=tuple(RecordedStep(s.name, s.start - zero, s.end - zero) for s in steps),
            names=tuple(map(encodable, self.names)),
            threads=threads,
            events=events,
            backlog=left,
            counts=dict(sorted(self.counts.items())),
        )


def _membership(
    category: np.ndarray, start: np.ndarray, correlation: np.ndarray, first: int, last: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which events to keep, which of them are left from before the window, and the row of the call of each.

    Work of a device belongs to the window if a call in it launched it. Work without a call (it may be older than the
    recording) is judged by its correlation, which rises in order of calls.
    """
    device = (category >= Category.KERNEL) & (category <= Category.MEMSET)
    calls = np.flatnonzero((category == Category.CALL) & (correlation >= 0) & (start >= first))
    known, first_call = np.unique(correlation[calls], return_index=True)
    launch = np.full(len(start), -1, np.int32)
    dependent = np.flatnonzero((device | (category == Category.SYNC)) & (correlation >= 0))
    if len(known):
        place = np.searchsorted(known, correlation[dependent]).clip(max=len(known) - 1)
        launch[dependent] = np.where(known[place] == correlation[dependent], calls[first_call[place]], -1)
    linked = launch >= 0
    lowest, highest = (int(known[0]), int(known[-1])) if len(known) else (-1, 2**62)
    unknown = correlation < 0
    backlog = device & ~linked & ((~unknown & (correlation < lowest)) | (start < first))
    inside = linked | ((unknown | ((correlation >= lowest) & (correlation <= highest))) & (start < last))
    sync = (category == Category.SYNC) & (linked | (start < last))
    kept = (category <= Category.CALL) | (device & (inside | backlog)) | sync
    return kept, backlog, launch


def integer(value: object, default: int = -1, most: int = 2**63) -> int:
    """A number of the arguments, which some versions write as text; the default where it is none."""
    if type(value) is not int:
        try:
            value = int(value) if isinstance(value, str) else default
        except ValueError:
            return default
    return value if -most <= value < most else default


def _plain(value: object) -> int | str:
    """The name of a process or thread; early versions wrote numbers as text."""
    number = integer(value, default=-(2**63))
    return str(value) if number == -(2**63) else number


def _in_order(threads: dict[tuple, int]) -> tuple[tuple[tuple, ...], np.ndarray]:
    """Threads by process and thread, wherever in the file they first were; int32, the new number of each."""
    ordered = sorted(threads, key=lambda thread: [(isinstance(part, str), part) for part in thread])
    numbers = np.empty(len(threads), np.int32)
    numbers[[threads[thread] for thread in ordered]] = np.arange(len(threads))
    return tuple(ordered), numbers


def _distributed(info: object) -> tuple[int | None, int | None, tuple[RecordedGroup, ...]]:
    """Rank, number of ranks and process groups of the header."""
    info = info if isinstance(info, dict) else {}
    rank, world = (integer(info.get(key), default=-1) for key in ("rank", "world_size"))
    configured = info.get("pg_config")
    groups = (
        [group_of(entry) for entry in configured if isinstance(entry, dict)] if isinstance(configured, list) else []
    )
    return None if rank < 0 else rank, None if world < 1 else world, tuple(groups)


def group_of(entry: dict) -> RecordedGroup:
    """A process group as the header of Kineto, or a node of the host's trace, describes it."""
    ranks = entry.get("ranks")
    if isinstance(ranks, str):
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            ranks = []
    ranks = tuple(r for r in ranks if type(r) is int) if isinstance(ranks, list) else ()
    size = integer(entry.get("pg_size", entry.get("group_size")), default=len(ranks))
    return RecordedGroup(str(entry.get("pg_name") or ""), str(entry.get("pg_desc") or ""), size, ranks)
