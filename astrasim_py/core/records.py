"""Records: the results of a run, as columns. Integer picoseconds and integer bytes.

The engine fills them; later stages only read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.core.extras import optional_module
from astrasim_py.core.rows import numbered
from astrasim_py.core.shown import Shown
from astrasim_py.core.units import format_time

if TYPE_CHECKING:
    import pandas

COLLECTIVE_COLUMNS = (
    "instance",  # static index of the collective call
    "job",  # index of the job it belongs to
    "group",  # name of the communicator group
    "type",  # all_reduce, all_gather, …
    "size",  # full buffer, bytes
    "algorithm",  # name of the algorithm that was spliced
    "ranks",  # members of the group
    "start",  # first dispatch on any member, ps
    "end",  # last completion on any member, ps
    "bound",  # lower bound of its duration, ps; -1 where none applies; `NO_RATE`
)
#: `bytes` and `held_up` (messages that waited behind one that a slower link fed) are exact at every level; from `links`
#: on the rest is filled, below it is -1.
LINK_COLUMNS = ("link", "src", "dst", "bytes", "busy", "messages", "max_queue", "queued", "held_up")
NODE_COLUMNS = (
    "rank",
    "node",  # id in the trace (of the workload, or of the algorithm's rank trace)
    "instance",  # -1 for a workload node
    "kind",  # compute, send, recv, collective, memory, metadata
    "name",
    "start",  # ps: issued
    "end",  # ps: completed
    "released_by",  # row of the node whose completion let this one start (a dependency, or the holder of its
    # slot), -1 for none; for the first nodes of a spliced algorithm the collective's own row: they begin when it does
    "ended_by",  # row of the node that completed this one: the matched send of a receive that had to wait, the
    # last algorithm node of a collective; -1 for a node that ended by itself
)
MESSAGE_COLUMNS = (
    "instance",  # -1 for point-to-point of the workload
    "src",  # sending rank
    "dst",  # receiving rank
    "tag",
    "bytes",
    "posted",  # ps: send issued
    "start",  # ps: first link granted
    "delivered",  # ps: tail at the destination
    "hops",
    "queued",  # ps: waiting for links, summed over hops
    "send_node",  # row in the node table
    "recv_node",  # row in the node table, -1 if never received
)
HOP_COLUMNS = ("message", "link", "requested", "start", "end")
#: In place of a bound: the messages are not known to be those of the size, so that size over time is no bandwidth.
NO_RATE = -2
#: Columns of these tables that are times, ps.
_PICOSECONDS = ("start", "end", "bound", "busy", "queued", "posted", "delivered", "requested", "latency")
#: Columns (begin, end, bytes, rate) that describe a transfer.
_RATES = (("start", "end", "size", "algbw_GBps"), ("posted", "delivered", "bytes", "GBps"))


def _nanoseconds(ps: np.ndarray) -> np.ndarray:
    return np.where(ps >= 0, ps / 1000, np.nan)


class Categorical:
    """A column of text, stored as distinct texts and one code per row.

    `codes`: whole numbers, 1-D: indices into `labels`.
    """

    def __init__(self, codes: np.ndarray, labels: Sequence[str]) -> None:
        self.codes, self.labels = _read_only(codes), tuple(labels)

    @classmethod
    def of(cls, texts: Sequence[str]) -> Categorical:
        """A column from its texts, row by row."""
        index: dict[str, int] = {}
        codes = [index.setdefault(text, len(index)) for text in texts]
        return cls(np.array(codes, dtype=np.int32), tuple(index))

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def texts(self) -> np.ndarray:
        """The column as an array of str."""
        labels = np.array([*self.labels, None], dtype=object)
        return _read_only(labels[self.codes])


def _read_only(values: np.ndarray) -> np.ndarray:
    array = values.view()
    array.setflags(write=False)
    return array


def _column_of(values: Sequence | np.ndarray | Categorical) -> np.ndarray | Categorical:
    if isinstance(values, Categorical):
        return values
    if not isinstance(values, np.ndarray):
        kind = object if len(values) and isinstance(values[0], str) else None if len(values) else np.int64
        values = np.array(values, dtype=kind)
    return _read_only(values)


class Table(Mapping[str, np.ndarray]):
    """Named columns of equal length, read-only, in the given order.

    A column may be a function that returns columns by name, this one and others: it is called when one is first used.
    """

    def __init__(self, columns: Mapping[str, Sequence | np.ndarray | Categorical | Callable]) -> None:
        self._columns = {name: c if callable(c) else _column_of(c) for name, c in columns.items()}
        lengths = {name: len(c) for name, c in self._columns.items() if not callable(c)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of unequal length: {lengths}")
        self.height = max(lengths.values(), default=0)

    def __reduce__(self) -> tuple:
        # The function that makes a column may not be picklable.
        return Table, ({name: self._column(name) for name in self},)

    def _column(self, name: str) -> np.ndarray | Categorical:
        make = self._columns[name]
        if callable(make):
            self._columns |= {other: _column_of(values) for other, values in make().items()}
            make = self._columns[name]
            assert not callable(make)
        return make

    def __getitem__(self, name: str) -> np.ndarray:
        column = self._column(name)
        return column.texts if isinstance(column, Categorical) else column

    def is_text(self, name: str) -> bool:
        """True if a column holds text."""
        column = self._column(name)
        return isinstance(column, Categorical) or column.dtype == object

    def coded(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column of text as (codes, labels): row i holds ``labels[codes[i]]``."""
        column = self._column(name)
        if not isinstance(column, Categorical):
            column = self._columns[name] = Categorical.of(column.tolist())
        return column.codes, column.labels

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Number of columns (a table is a mapping of its columns); `height` is the number of rows."""
        return len(self._columns)

    def rows(self) -> Iterator[dict]:
        """Rows as dicts of plain Python values."""
        for values in zip(*(self[name].tolist() for name in self), strict=True):
            yield dict(zip(self, values, strict=True))

    def to_dataframe(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame, with floats to compute with beside the exact integers.

        Behind each column of picoseconds stands the same in ns (``start``, ``start_ns``; NaN for -1, not known). A
        table of collectives or messages also has ``time_ns``, from start or posting to the end, and ``algbw_GBps`` or
        ``GBps``, its bytes over this time (10**9 bytes per second; NaN where messages may be those of another size).
        """
        data_frame = optional_module("pandas", "notebook", "to_dataframe").DataFrame
        columns: dict[str, np.ndarray] = {}
        for name in self:
            columns[name] = self[name]
            if name in _PICOSECONDS:
                columns[f"{name}_ns"] = _nanoseconds(self[name])
        for first, last, size, rate in _RATES:
            if {first, last, size} <= columns.keys():
                complete = (self[first] >= 0) & (self[last] >= 0)
                columns["time_ns"] = time = _nanoseconds(np.where(complete, self[last] - self[first], -1))
                rated = (time > 0) & (self["bound"] != NO_RATE if "bound" in self else True)
                columns[rate] = np.divide(self[size], time, out=np.full(len(time), np.nan), where=rated)
        return data_frame(columns)

    def _repr_html_(self) -> str:
        return self.to_dataframe()._repr_html_()

    def __repr__(self) -> str:
        return f"Table({self.height} rows: {', '.join(self)})"


def queue_pairs(message: Table, qps: int) -> np.ndarray:
    """int64[m]: the queue pair of each message; those of two ranks take turns, in the order of the table."""
    ends = message["src"].astype(np.int64) << 32 | message["dst"]
    return numbered(ends) % qps


def called_instances(node: Table) -> np.ndarray:
    """The instance that each node of a collective calls; -1 for others: it released the algorithm's first nodes."""
    caller = np.full(node.height, -1, dtype=np.int64)
    instance, released = node["instance"], node["released_by"]
    inner = np.flatnonzero((instance >= 0) & (released >= 0))
    kind, kinds = node.coded("kind")
    collective = kinds.index("collective") if "collective" in kinds else -1
    inner = inner[(instance[released[inner]] < 0) & (kind[released[inner]] == collective)]
    caller[released[inner]] = instance[inner]
    # Where tiles of its input have released all of these, the last one names the collective.
    single = np.flatnonzero((caller < 0) & (instance < 0) & (kind == collective) & (node["ended_by"] >= 0))
    caller[single] = np.maximum(instance[node["ended_by"][single]], -1)
    return caller


def empty_table(columns: Sequence[str]) -> Table:
    """A table without rows."""
    return Table({name: np.empty(0, dtype=np.int64) for name in columns})


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingNode:
    """A node in flight, or unable to begin, when a stuck run ended."""

    rank: int
    node: int
    name: str
    kind: str
    instance: int
    job: str = ""  # its name, of several jobs
    src: int = -1  # peer, tag and bytes of an unmatched receive; -1 where they do not apply
    dst: int = -1
    tag: int = -1
    bytes: int = -1
    since: int = -1  # ps since which it has waited; of a message that nobody receives, when its send was issued
    reason: str = ""
    slots: int = 0  # slots of its connection, all taken, of a send that waits for one; 0 for any other node
    channel: int = -1  # channel of that connection, -1 where each tag is one
    counter: int = -1  # counter of its rank whose count it waits for, -1 if for none
    asks: bool = False  # whether it is a send that its receiver has not asked for (rendezvous)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run."""

    status: str = "done"  # ``done``, ``stuck`` or ``limit``
    cause: str = ""  # one sentence; empty when done
    waiting: tuple[WaitingNode, ...] = ()  # what had not finished, by rank (at most the first of each kind per rank)
    cycle: tuple[int, ...] = ()  # ranks that wait for each other in a ring; empty if there is no cycle
    unfinished: int = 0  # nodes that never completed
    unfinished_ranks: tuple[int, ...] = ()  # ranks that have such nodes
    switches: Mapping[int, str] = field(default_factory=dict)  # names of those that wait or are waited for, by rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Error of a folded run of a workload with roles."""

    ranks: int  # that were simulated
    copies: int  # that they stand for, themselves included
    exact: bool
    deviation: int  # ps by which the makespan may be off; 0 if exact
    text: str  # all of this as text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Records(Shown):
    """The results of one run.

    Attributes
    ----------
    level : str
        One of `LEVELS`.
    makespan : int
        Completion of the last node, ps.
    finish : numpy.ndarray
        int64[ranks], ps: completion of each rank's last node.
    compute : numpy.ndarray
        int64[ranks], ps during which at least one compute node ran.
    exposed_comm : numpy.ndarray
        int64[ranks], ps: time a rank waits on communication with no compute running.
    messages, message_hops, events : int
        Totals: messages, links of their routes, events.
    collective, link, node, message, hop : Table
        Tables above the level asked for are empty.
    network_model : str
        Which network model the messages went by; empty where that is not known.
    cpu_s : float
        CPU seconds of the engine, outside every digest.
    fold : Fold or None
        Of a folded run of a workload with roles.
    """

    level: str
    makespan: int
    finish: np.ndarray
    compute: np.ndarray
    exposed_comm: np.ndarray
    messages: int
    message_hops: int
    events: int
    collective: Table
    link: Table
    node: Table = field(default_factory=lambda: empty_table(NODE_COLUMNS))
    message: Table = field(default_factory=lambda: empty_table(MESSAGE_COLUMNS))
    hop: Table = field(default_factory=lambda: empty_table(HOP_COLUMNS))
    outcome: Outcome = field(default_factory=Outcome)
    engine: str = ""
    network_model: str = ""
    cpu_s: float = 0.0
    fold: Fold | None = None

    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return {name: getattr(self, name) for name in ("collective", "link", "node", "message", "hop")}

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        return self.outcome.status, {
            "makespan": format_time(self.makespan),
            "ranks": len(self.finish),
            "collectives": self.collective.height,
            "messages": self.messages,
            "events": self.events,
            "level": f"level {self.level}",
            "engine": self.engine,
            "cause": self.outcome.cause,
        }
