"""What is stored of a point: ``manifest.json``, ``summary.json`` and ``run.json``, and the rows of the tables.

Each model writes and reads itself. The text of a field is its documentation: docs/results.md lists the fields.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, NamedTuple, Self, TypeVar, get_args

from pydantic import TypeAdapter

from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.records import Fold
from astrasim_py.core.units import format_size, format_time
from astrasim_py.results.values import ps_of

#: Version of the layout of a point's folder.
FORMAT = 3


class About(NamedTuple):
    """What a field means, and its unit. `kept`: ``always``; ``set``: left out at its default; ``never``: it is
    no column, and not stored.
    """

    text: str
    unit: str = ""
    kept: str = "always"


AnyRecord = TypeVar("AnyRecord", bound="Record")


class Record(Mapping[str, Any]):
    """A frozen model that is also a mapping of its columns: ``row["time_ns"]`` is ``row.time_ns``."""

    @classmethod
    def columns(cls, *kept: str) -> dict[str, About]:
        """The columns by name, in their order. `kept`: of these kinds; all that are stored by default."""
        return _columns(cls, kept or ("always", "set"))

    @classmethod
    def read(cls, plain: object) -> Self:
        """The model that was written as plain values. Raises ValueError: they have another form."""
        return _reader(cls).validate_python(plain)

    def __getitem__(self, name: str) -> Any:
        if name not in self.columns() or self._lacks(name):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.columns() if not self._lacks(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _lacks(self, name: str) -> bool:
        defaults = _left_out(type(self))
        return name in defaults and getattr(self, name) == defaults[name]


def _fields(model: type[Record]) -> tuple[Field[Any], ...]:
    return fields(model) if is_dataclass(model) else ()


@cache
def _abouts(model: type[Record]) -> dict[str, About]:
    return {column.name: get_args(column.type)[1] for column in _fields(model)}


@cache
def _columns(model: type[Record], kinds: tuple[str, ...]) -> dict[str, About]:
    return {name: about for name, about in _abouts(model).items() if about.kept in kinds}


@cache
def _left_out(model: type[Record]) -> dict[str, Any]:
    """The columns that are left out where they have these values."""
    values = {}
    for column in _fields(model):
        if _abouts(model)[column.name].kept == "set":
            make = column.default_factory
            values[column.name] = column.default if make is MISSING else make()
    return values


@cache
def _reader(model: type[AnyRecord]) -> TypeAdapter[AnyRecord]:
    return TypeAdapter(model)


Number = Decimal | None
Texts = Mapping[str, str]


class SweptRecord(Record):
    """A record of a point, or of several that have swept values."""

    sweep: Texts


@dataclass(frozen=True, kw_only=True, eq=False)
class JobRow(Record):
    """A job of a point: a row of ``jobs.csv``."""

    point: Annotated[str, About("its name")]
    job: Annotated[str, About("its name")]
    ranks: Annotated[int, About("how many ranks it has")]
    arrival_ns: Annotated[Decimal, About("when it arrives", "ns")]
    finish_ns: Annotated[Number, About("end of its last node; empty if it is not done", "ns")] = None
    time_ns: Annotated[Number, About("from its arrival to its end", "ns")] = None
    iterations: Annotated[int, About("iterations that are done")] = 0
    iteration_mean_ns: Annotated[Number, About("mean time of an iteration", "ns")] = None
    iteration_p50_ns: Annotated[Number, About("median of these times, as the nearest rank", "ns")] = None
    iteration_p99_ns: Annotated[Number, About("their 99th percentile, as the nearest rank", "ns")] = None
    iterations_per_s: Annotated[Number, About("iterations over the time that they took", "1/s")] = None
    alone_ns: Annotated[Number, About("its time where it has the network to itself", "ns")] = None
    slowdown: Annotated[Number, About("time over time alone; of one that is not done that of its iterations")] = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedJob(Record):
    """What the times of a job that trains a model hold for."""

    job: Annotated[str, About("its name, of several", kept="set")] = ""
    software: Annotated[str, About("whose constants hold: a preset, and what is changed")]
    state: Annotated[str | None, About("state of the machine; null where the software is ideal")]
    state_source: Annotated[
        str | None, About("whence the state is known: `default`, `as written`, or files with what they measured")
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Row(SweptRecord):
    """A point, and what it took: a row of ``summary.csv``, of JSON and of `RunResult`. ``row["time_ns"]`` is
    ``row.time_ns``, and ``row.time_ps`` the same as an integer of picoseconds.
    """

    scenario: Annotated[str, About("its name")]
    point: Annotated[str, About("its name")]
    sweep: Annotated[Texts, About("the swept values as written; a column for each in `summary.csv`")]
    topology: Annotated[str | None, About("its name")] = None
    algorithm: Annotated[str | None, About("its name, of one collective")] = None
    size_bytes: Annotated[int | None, About("size of the buffer, of one collective", "bytes")] = None
    npus: Annotated[int | None, About("NPUs of the topology")] = None
    engine: Annotated[
        str | None,
        About("which engine ran: `simpy`, `compiled`, `both`; with `+fold` where one NPU stood for all"),
    ] = None
    network_model: Annotated[str | None, About("network model")] = None
    time_ns: Annotated[Number, About("makespan; like all `*_ns` an exact decimal to 0.001", "ns")] = None
    bound_ns: Annotated[Number, About("lower bound, where one [applies](semantics.md#measures)", "ns")] = None
    bound_by: Annotated[str | None, About("what [proves](semantics.md#measures) the lower bound")] = None
    efficiency: Annotated[Number, About("lower bound over time: 1 is perfect")] = None
    algbw_GBps: Annotated[Number, About("size over time, of one collective", "GB/s")] = None
    busbw_GBps: Annotated[Number, About("bus bandwidth as of nccl-tests, of one collective", "GB/s")] = None
    exposed_comm_ns: Annotated[Number, About("exposed communication, the largest over ranks", "ns")] = None
    messages: Annotated[int | None, About("messages")] = None
    message_hops: Annotated[int | None, About("messages, counted once for each link that they cross")] = None
    busiest_link: Annotated[str | None, About("the link that was busy longest, of several the slowest")] = None
    busiest_link_GBps: Annotated[Number, About("its bandwidth", "GB/s")] = None
    cpu_s: Annotated[
        Number,
        About("CPU time of the engine without compiling: besides `engine` the only value that may differ from run to "
              "run; not in `summary.csv`", "s"),
    ] = None  # fmt: skip
    status: Annotated[str, About("`done`, `stuck`, `limit` or `failed`")]
    seeds: Annotated[int | None, About("with `repeat`: how many runs", kept="set")] = None
    seed: Annotated[str | None, About("with `repeat`: seed of the run of median time", kept="set")] = None
    time_low_ns: Annotated[Number, About("with `repeat`: 10th percentile of the times", "ns", "set")] = None
    time_high_ns: Annotated[Number, About("with `repeat`: 90th percentile of the times", "ns", "set")] = None
    trainings: Annotated[
        tuple[TrainedJob, ...], About("software of each training, and state of its machine", kept="set")
    ] = ()
    stored_in: Annotated[str, About("folder of the point, as tables name it", kept="never")] = ""
    job: Annotated[JobRow | None, About("the job, of a row that is of one of several", kept="never")] = None
    runs: Annotated[tuple["Row", ...], About("with `repeat`: the rows of all runs", kept="never")] = ()

    @property
    def time_ps(self) -> int | None:
        """The makespan, ps."""
        return ps_of(self.time_ns)

    @property
    def bound_ps(self) -> int | None:
        """The lower bound, ps."""
        return ps_of(self.bound_ns)

    @property
    def interval(self) -> str:
        """With ``repeat``, the interval of times as text."""
        ends = [format_time(ps_of(ns)) for ns in (self.time_low_ns, self.time_high_ns) if ns is not None]
        return " … ".join(ends)

    def text_of(self, key: str) -> str | None:
        """What the row has of a swept key, as written, else of a column; None where it has nothing."""
        if key in self.sweep:
            return self.sweep[key]
        if key == "size":
            return None if self.size_bytes is None else format_size(self.size_bytes)
        if key == "job":
            return self.job.job if self.job else None
        value = self.get("network_model" if key in ("model", "network.model") else key)
        return None if value is None or isinstance(value, Mapping) else str(value)

    def meets(self, where: Mapping[str, object]) -> bool:
        """Whether the row has these values."""
        return all(self.text_of(key) == str(value) for key, value in where.items())

    def of_job(self, job: JobRow) -> Self:
        """The row of one of the point's jobs: with its time, and without a bound."""
        return replace(self, job=job, time_ns=job.time_ns, bound_ns=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRow(Row):
    """A stored point among all of its scenario: a row of ``results list``."""

    level: Annotated[str, About("how much is recorded")]
    finished: Annotated[Decimal, About("when it was computed, since 1970", "s")]
    current: Annotated[bool, About("whether it is of the scenario as it ran last")]
    folder: Annotated[str, About("its folder")]


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectiveRow(Record):
    """A call of a collective: a row of ``collectives.csv``."""

    point: Annotated[str, About("its name")]
    instance: Annotated[int, About("number of the call")]
    job: Annotated[str, About("its job, of several")]
    group: Annotated[str, About("its process group")]
    type: Annotated[str, About("which collective")]
    ranks: Annotated[int, About("ranks of the group")]
    size: Annotated[int, About("full buffer", "bytes")]
    algorithm: Annotated[str, About("its name")]
    start_ns: Annotated[Number, About("first start over ranks", "ns")]
    end_ns: Annotated[Number, About("last end over ranks", "ns")]
    time_ns: Annotated[Number, About("from start to end", "ns")]
    bound_ns: Annotated[Number, About("lower bound, where one applies", "ns")]
    efficiency: Annotated[Number, About("lower bound over time")]
    algbw_GBps: Annotated[Number, About("size over time", "GB/s")]
    busbw_GBps: Annotated[Number, About("bus bandwidth as of nccl-tests", "GB/s")]
    bound_by: Annotated[str, About("in `summary.json`, what proves the bound", kept="set")] = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Breakdown(Record):
    """The time of the rank with most exposed communication."""

    rank: Annotated[int | None, About("the rank")]
    compute_ns: Annotated[Decimal, About("compute", "ns")]
    exposed_comm_ns: Annotated[Decimal, About("exposed communication", "ns")]
    other_ns: Annotated[Decimal, About("the rest of the makespan", "ns")]


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitingRow(Record):
    """What a node of a stuck run waits for."""

    rank: Annotated[int, About("its rank")]
    node: Annotated[int, About("its number")]
    name: Annotated[str, About("its name")]
    kind: Annotated[str, About("`send`, `recv`, `collective` …")]
    instance: Annotated[int, About("call of a collective; -1: none")]
    src: Annotated[int, About("sender of an unmatched message; -1: none")]
    dst: Annotated[int, About("its receiver")]
    tag: Annotated[int, About("its tag")]
    bytes: Annotated[int, About("its size", "bytes")]
    since_ns: Annotated[Number, About("since when it waits", "ns")]
    reason: Annotated[str, About("why, as a sentence")]
    channel: Annotated[int | None, About("channel of a connection without a free slot; -1: its tag", kept="set")] = None
    slots: Annotated[int, About("slots of that connection", kept="set")] = 0
    job: Annotated[str, About("its job, of several", kept="set")] = ""
    switch: Annotated[str, About("name of the switch", kept="set")] = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class CalledAlgorithm(Record):
    """An algorithm that carried out calls."""

    collective: Annotated[str, About("which collective")]
    name: Annotated[str, About("its name")]
    ranks: Annotated[int, About("ranks that it is of")]
    correct: Annotated[bool | None, About("verdict of the verifier; null: not verified")]
    protocol: Annotated[str, About("protocol of its messages", kept="set")] = ""
    slots: Annotated[int, About("slots of its connections", kept="set")] = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkEventRow(Record):
    """What happened to links during the run."""

    at_ps: Annotated[int, About("when", "ps")]
    text: Annotated[str, About("what, as a sentence")]
    failed: Annotated[tuple[int, ...], About("links that failed")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary(Record):
    """``summary.json``: the row of a point, and what does not fit in a row."""

    row: Annotated[Row, About("the row of the point; `cpu_s` is in `run.json`")]
    breakdown: Annotated[Breakdown | None, About("time of the rank with most exposed communication")] = None
    closed_form_ns: Annotated[Number, About("alpha-beta time of a single collective over equal links", "ns")] = None
    collectives: Annotated[
        tuple[CollectiveRow, ...], About("the first 64 calls of collectives; `collective.csv` has all")
    ] = ()
    busbw_factors: Annotated[
        tuple[tuple[str, int, str], ...],
        About("collective, ranks, and bus bandwidth over algorithm bandwidth as a fraction"),
    ] = ()
    makespan_ps: Annotated[int, About("end of the last node", "ps")]
    events: Annotated[int, About("events of the engine")]
    cause: Annotated[str, About("why a point is not done, as a sentence")] = ""
    explanation: Annotated[tuple[str, ...], About("what a stuck run waits for, as lines")] = ()
    waiting: Annotated[tuple[WaitingRow, ...], About("the same, a node each")] = ()
    cycle: Annotated[tuple[int, ...], About("ranks that wait for each other in a ring")] = ()
    unfinished: Annotated[int, About("nodes that never completed")] = 0
    warnings: Annotated[tuple[str, ...], About("what makes the result doubtful")] = ()
    fold: Annotated[Fold | None, About("of a fold: how far it may be off", kept="set")] = None
    algorithms: Annotated[tuple[CalledAlgorithm, ...], About("the algorithms, each once")] = ()
    npu_of: Annotated[tuple[int, ...], About("NPU of each rank")] = ()
    hop_latency_ps: Annotated[
        Mapping[int, int], About("by number of a call, what each hop of its messages takes longer", "ps", "set")
    ] = field(default_factory=dict)
    qps: Annotated[int, About("queue pairs of two NPUs", kept="set")] = 1
    switches: Annotated[tuple[str, ...], About("switches that compute, in the order of their ranks", kept="set")] = ()
    switch_latency_ps: Annotated[int, About("what their messages take longer", "ps", "set")] = 0
    cut_links: Annotated[
        tuple[tuple[int, int], ...], About("ends of the links that had failed before the run", kept="set")
    ] = ()
    link_events: Annotated[tuple[LinkEventRow, ...], About("what happened to links", kept="set")] = ()
    hints: Annotated[tuple[str, ...], About("what could be better", kept="set")] = ()
    unused: Annotated[tuple[str, ...], About("what the point says and does not use", kept="set")] = ()
    jobs: Annotated[tuple[JobRow, ...], About("the jobs, of several", kept="set")] = ()
    finish_ns: Annotated[tuple[int, ...], About("of ASTRA-sim's inputs: finish of each NPU", "ns", "set")] = ()
    exposed_comm_ns: Annotated[
        tuple[int, ...], About("of ASTRA-sim's inputs: exposed communication of each NPU", "ns", "set")
    ] = ()

    @property
    def factors(self) -> dict[tuple[str, int], Fraction]:
        """Collective and ranks → bus bandwidth over algorithm bandwidth."""
        return {(kind, ranks): Fraction(factor) for kind, ranks, factor in self.busbw_factors}


@dataclass(frozen=True, kw_only=True, eq=False)
class File(Record):
    """A file of a point."""

    sha256: Annotated[str, About("SHA-256 of its content")]
    bytes: Annotated[int, About("its length", "bytes")]


@dataclass(frozen=True, kw_only=True, eq=False)
class Manifest(Record):
    """``manifest.json``: what a point is, how it was run, and the SHA-256 of its files and of itself."""

    format: Annotated[int, About("version of the folder's layout")] = FORMAT
    package: Annotated[str, About("who wrote it")] = "astrasim-py"
    version: Annotated[str, About("version of the package")] = ""
    folder: Annotated[str, About("its name")]
    status: Annotated[str, About("as in the row")]
    exit_code: Annotated[int, About("what a command ends with that runs only this point")]
    engine: Annotated[str, About("as in the row")] = ""
    level: Annotated[str, About("how much is recorded")]
    timeline: Annotated[bool | tuple[int, ...], About("whether there is a timeline, or of which ranks")] = False
    limits: Annotated[Mapping[str, int | None], About("limits of the run")]
    collectives: Annotated[bool, About("whether the table of collectives is kept", kept="set")] = True
    front_end: Annotated[str, About("`astra_sim`, of ASTRA-sim's inputs", kept="set")] = ""
    scenario: Annotated[str, About("its name")]
    point: Annotated[str, About("its name")]
    digest: Annotated[str, About("identity of the point: whatever can change its records changes it")]
    sweep: Annotated[Texts, About("the swept values as written")]
    seeds: Annotated[Mapping[str, Any], About("by key, the seeds")] = field(default_factory=dict)
    repeat: Annotated[int, About("runs with other seeds", kept="set")] = 1
    inputs: Annotated[Texts, About("by file, the SHA-256 of what was read")]
    resolved: Annotated[Mapping[str, Any], About("the resolved scenario of this point")]
    synthesized: Annotated[
        tuple[Mapping[str, Any], ...], About("what is known of synthesized algorithms", kept="set")
    ] = ()
    files: Annotated[Mapping[str, File], About("by name, the files of the folder")] = field(default_factory=dict)

    def sealed(self) -> bytes:
        """The content of ``manifest.json``; its last line vouches for the others."""
        content = json_bytes(self)
        return content[: -len(_END)] + _seal(content) + _END


_END = b"\n}\n"


def _seal(content: bytes) -> bytes:
    return b',\n  "sha256": "%s"' % hashlib.sha256(content).hexdigest().encode()


def is_sealed(text: bytes) -> bool:
    """Whether the last line of a manifest's file vouches for the others."""
    content, mark, _ = text.rpartition(b',\n  "sha256": "')
    return bool(mark) and text == content + _seal(content + _END) + _END


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCost(Record):
    """``run.json``: where and when a point was computed. Nothing vouches for it."""

    host: Annotated[str, About("name of the machine")] = ""
    platform: Annotated[str, About("its system")] = ""
    python: Annotated[str, About("version of Python")] = ""
    versions: Annotated[Texts, About("versions of packages")] = field(default_factory=dict)
    source: Annotated[str, About("folder that names in the point are relative to")] = ""
    allow_outside: Annotated[bool, About("whether files outside that folder were allowed")] = False
    allow_code: Annotated[bool, About("whether Python files were allowed")] = False
    started: Annotated[Number, About("since 1970", "s")] = None
    finished: Annotated[Decimal, About("since 1970", "s")] = Decimal(0)
    wall_s: Annotated[Number, About("elapsed time, without compiling", "s")] = None
    total_cpu_s: Annotated[Number, About("CPU time, without compiling", "s")] = None
    cpu_s: Annotated[Number, About("CPU time of the engine", "s")] = None


#: Columns of rows, in this order, in every format; `Row` has more where points are repeated.
ROW_KEYS = tuple(Row.columns("always"))
JOB_KEYS = tuple(JobRow.columns())
COLLECTIVE_KEYS = tuple(CollectiveRow.columns("always"))


def with_swept_columns(rows: Sequence[Row]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of ``summary.csv``, with one for each swept key behind ``point``, and the rows with these keys."""
    swept = list(dict.fromkeys(key for row in rows for key in row.sweep))
    keys = [key for key in ROW_KEYS if key not in ("sweep", "cpu_s")]
    place = keys.index("point") + 1
    names = {key: key if key not in keys else f"sweep.{key}" for key in swept}
    flat = [{"folder": row.stored_in, **row, **{names[key]: value for key, value in row.sweep.items()}} for row in rows]
    return [*keys[:place], *names.values(), *keys[place:]], flat
