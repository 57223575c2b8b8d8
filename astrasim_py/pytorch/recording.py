"""`Recording`: what PyTorch's profiler recorded of one step of one rank, as columns."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Category(IntEnum):
    """Category of an event."""

    OP = 0  # an operator of the host
    ANNOTATION = 1  # a range that the program, or a backend of c10d, marked
    CALL = 2  # of the runtime or the driver of the device
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    SYNC = 6  # a wait that the device recorded (cuda_sync)


#: Most ranks of a job, and of a group.
MAX_RANKS = 2**20
#: Categories of work on a device; all of `Category` up to and including CALL are work of the host.
DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


class RecordedStep(NamedTuple):
    """One iteration: its annotation, ns."""

    name: str
    start: int
    end: int


class RecordedGroup(NamedTuple):
    """A process group of the header or of the host's trace; `ranks` is empty for all ranks, or if unknown."""

    name: str
    description: str
    size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events in order of (start, longest first, operators before calls, ids); a missing number is -1."""

    category: np.ndarray  # int8, a `Category`
    name: np.ndarray  # int32, an index of `Recording.names`
    start: np.ndarray  # int64, ns since `Recording.base_ns`
    duration: np.ndarray  # int64, ns
    thread: np.ndarray  # int32, an index of `Recording.threads`
    correlation: np.ndarray  # int64, equal for a call and the device's work that it launched
    external_id: np.ndarray  # int64
    record_id: np.ndarray  # int64, "Record function id": equal to rf_id of a node of the host's trace
    device: np.ndarray  # int32
    stream: np.ndarray  # int64
    launch: np.ndarray  # int32, the row of the call that launched a device's work or a wait
    #: Arguments of SYNC events, of work with "Collective name", and of ops and annotations of communication.
    args: dict[int, dict]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> np.ndarray:
        return self.start + self.duration

    @property
    def on_device(self) -> np.ndarray:
        """bool: kernels, copies and fills."""
        return (self.category >= Category.KERNEL) & (self.category <= Category.MEMSET)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One step of one rank.

    Times count from `base_ns`, the begin of the step (or of the whole recording, if it has no steps), which is itself
    absolute. `step` is the window: ops and calls that touch it are events, and work that was launched in it.
    """

    source: str
    rank: int | None
    world_size: int | None
    groups: tuple[RecordedGroup, ...]
    base_ns: int
    resolution_ns: int  # 2,000 where all times are whole microseconds, else 1,000
    step: RecordedStep  # its start is 0; its name is empty if it is the whole recording
    steps: tuple[RecordedStep, ...]  # all of the file
    names: tuple[str, ...]
    threads: tuple[tuple, ...]  # (process, thread), in order
    events: Events
    backlog: np.ndarray  # rows of the device's work that was launched earlier and runs on in the step
    counts: dict[str, int]  # of the whole file: events by category

    @property
    def work(self) -> np.ndarray:
        """Rows of the device's work that belongs to the step, in order; what had ended before it does not."""
        rows = np.flatnonzero(self.events.on_device & ((self.events.start >= 0) | (self.events.end > 0)))
        return np.setdiff1d(rows, self.backlog, assume_unique=True)

    @property
    def span_ns(self) -> int:
        """From the start of the step to its end, or to the end of the last work that was launched in it."""
        return int(max(self.step.end, self.events.end[self.work].max(initial=0)))
