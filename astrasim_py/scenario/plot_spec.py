"""The entries of a scenario's ``plots``: keys of each kind of figure, and its requirements on the points."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from astrasim_py.core.errors import UnitError
from astrasim_py.core.fields import NewFileName, Ranks, Scalar, Text, choice, did_you_mean, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.core.units import parse_time

#: Times that jobs have beside that of their completion.
JOB_TIMES = ("iteration_mean", "iteration_p50", "iteration_p99")
#: Columns of numbers of ``summary.csv``, and the parts of the time.
COLUMNS = (
    "time_ns", "bound_ns", "exposed_comm_ns", "compute_ns", "other_ns", "efficiency", "algbw_GBps", "busbw_GBps",
    "busiest_link_GBps", "size_bytes", "npus", "messages", "message_hops",
)  # fmt: skip
#: Of what a cumulative distribution can be.
SAMPLES = ("points", "jobs", "ranks", "collectives", "messages")
#: Kinds whose series can be named at their curves.
_OF_CURVES = ("time", "slowdown", "speedup", "busbw", "efficiency")
FORMATS = ("png", "svg", "pdf")
#: Widths of figures in print, cm.
WIDTHS = {"column": 8.5, "text": 17.5}


class PlotKind(NamedTuple):
    """A kind of figure. `keys`: those that have an effect, beside the ones of every figure. `of_records`: it shows the
    records of some points, a panel each, which must be of `level`.
    """

    about: str
    keys: frozenset[str]
    level: str = "summary"
    of_records: bool = False


def _kind(about: str, keys: str, **fields: Any) -> PlotKind:
    return PlotKind(about, frozenset(keys.split()), **fields)


_SWEPT = "x series facet legend xlabel ylabel"
#: Keys of every figure.
EVERY = frozenset({"kind", "title", "name", "where", "width", "format"})
PLOT_KINDS: dict[str, PlotKind] = {
    "slowdown": _kind("time over that of a baseline", f"{_SWEPT} baseline scale bound"),
    "time": _kind("time, or another column of numbers, over a swept key", f"{_SWEPT} y scale bound"),
    "busbw": _kind("bus bandwidth as of nccl-tests, with its upper bound", f"{_SWEPT} scale bound"),
    "efficiency": _kind("lower bound over time", f"{_SWEPT} scale"),
    "speedup": _kind("time of a baseline, or of the smallest x, over time", f"{_SWEPT} baseline scale bound"),
    "stacked": _kind("parts of the time as stacked bars", f"{_SWEPT} scale bound measured"),
    "heatmap": _kind("a column of numbers as colour over two swept keys", "x series facet xlabel ylabel y scale"),
    "pareto": _kind("two columns of numbers, and the points that none beats in both", f"{_SWEPT} y scale"),
    "cdf": _kind(
        "share of points, jobs, ranks, collectives or messages within a time",
        "series facet legend xlabel ylabel y of scale",
    ),
    "breakdown": _kind("parts of the time, a bar for each point", "x series facet legend"),
    "links": _kind("the network, links coloured by use", "legend", level="links", of_records=True),
    "gantt": _kind(
        "what each rank does over time, equal ranks in one row",
        "ranks rows legend xlabel ylabel",
        level="nodes",
        of_records=True,
    ),
    "utilisation": _kind(
        "the use of links over time, of the busiest or of some",
        "links count bins legend xlabel ylabel",
        level="messages",
        of_records=True,
    ),
}
#: Kinds that can show jobs.
BY_JOB = ("time", "slowdown", "speedup")


def of_records(spec: Mapping) -> bool:
    """Whether a figure shows records of points, a panel each."""
    return spec.get("kind") in PLOT_KINDS and PLOT_KINDS[spec["kind"]].of_records


def level_of(spec: Mapping) -> str:
    """Record level that a figure needs of its points."""
    kind = PLOT_KINDS.get(spec.get("kind", ""))
    return "messages" if spec.get("of") == "messages" else kind.level if kind else "summary"


def _width(value: object) -> object:
    if value in WIDTHS:
        return value
    text = re.fullmatch(r"(\d+(?:\.\d+)?) *(?:cm)?", str(value)) if not isinstance(value, bool) else None
    if text is None or not 4 <= float(text[1]) <= 100:
        raise wrong(f"{shown(value)} is no width of a figure", "write column, text, or e.g. 12 cm (4 to 100 cm)")
    return float(text[1])


def _formats(value: object) -> object:
    value = value if isinstance(value, list | tuple) else (value,)
    for i, form in enumerate(value):
        if form not in FORMATS:
            raise wrong(f"{shown(form)} is no form of figures", did_you_mean(str(form), FORMATS), (i,))
    if not value:
        raise wrong("no form of files", f"write one of {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(value))


_Width = Annotated[
    Any,
    PlainValidator(_width),
    WithJsonSchema({"anyOf": [{"enum": list(WIDTHS)}, {"type": ["string", "number"]}]}),
]
_Formats = Annotated[
    Any,
    PlainValidator(_formats),
    WithJsonSchema({"anyOf": [{"enum": list(FORMATS)}, {"type": "array", "items": {"enum": list(FORMATS)}}]}),
]


def _measured(value: object) -> object:
    """A time, and the values of swept keys of its point."""
    if not isinstance(value, Mapping) or "time" not in value or len(value) < 2:
        raise wrong(f"{shown(value)} is no measured time", 'write e.g. {nodes: 4, time: "1.47 s"}')
    try:
        parse_time(value["time"])
    except UnitError as error:
        raise wrong(f"{shown(value['time'])} is no time", error.remedy, ("time",)) from None
    return {str(key): str(text) for key, text in value.items()}


#: Values of swept keys, and under ``time`` what was measured there, all as text.
MeasuredTime: TypeAlias = Annotated[
    dict[str, str], PlainValidator(_measured), WithJsonSchema({"type": "object", "required": ["time"]})
]


class PlotSpec(StrictModel):
    """A figure; `x`, `series` and `facet` name swept keys, `y` a column of numbers."""

    kind: Annotated[str, choice(*PLOT_KINDS)] = example("slowdown")
    x: Text | None = None
    series: Text | None = None
    facet: Text | None = None
    y: Annotated[str, choice("completion", *JOB_TIMES, *COLUMNS)] | None = example(
        "exposed_comm_ns", default=None, description="a column of summary.csv; of jobs also times of iterations"
    )
    baseline: Annotated[Text | None, BeforeValidator(lambda v: v if v is None else str(v))] = example(
        "ring", default=None, description="value of `series`, or of a speed-up's `x`, that the others are compared with"
    )
    of: Annotated[str, choice(*SAMPLES)] | None = example(
        "messages", default=None, description="of what a cdf is; points by default"
    )
    scale: Annotated[str, choice("linear", "log", "share")] | None = example(
        "log", default=None, description="of the numbers shown; share, of stacked: parts of the whole time"
    )
    bound: bool | None = example("true", default=None, description="draw the lower bound of the time as well")
    ranks: Ranks | None = example('["0-7"]', default=None, description="of a Gantt chart; all by default")
    rows: Annotated[int, whole(1, 1000, "number of rows", 100)] | None = Field(
        default=None, description="most rows; 40 by default"
    )
    links: tuple[Text, ...] | None = example(
        '["leaf0->spine1"]', default=None, description="whose use is shown; the busiest by default"
    )
    count: Annotated[int, whole(1, 100, "number of rows", 12)] | None = Field(
        default=None, description="so many rows of the busiest links, equal ones in one; 6 by default"
    )
    bins: Annotated[int, whole(1, 5000, "number of bins", 500)] | None = Field(
        default=None, description="parts of the time over which use is averaged; 100 by default"
    )
    legend: Annotated[str, choice("below", "right", "direct", "none")] | None = example(
        "direct", default=None, description="below the figure, right of it, or names at the curves"
    )
    xlabel: Text | None = None
    ylabel: Text | None = None
    measured: tuple[MeasuredTime, ...] | None = example(
        '[{nodes: 4, time: "1.47 s"}]', default=None, description="measured times, by values of swept keys, as marks"
    )
    where: dict[Text, Scalar] = example("{size: 1 MiB}", default={}, description="only points with these values")
    title: Text | None = None
    name: NewFileName | None = example("figure_3", default=None, description="of the files; the kind by default")
    width: _Width | None = example("column", default=None, description="column (8.5 cm), text (17.5 cm), or in cm")
    format: _Formats | None = example("[png, pdf]", default=None, description="files to write; png and svg by default")

    def _complete(self) -> None:
        keys = PLOT_KINDS[self.kind].keys | EVERY
        for key in type(self).model_fields:
            if key in self.model_fields_set and getattr(self, key) is not None and key not in keys:
                kinds = [kind for kind, of in PLOT_KINDS.items() if key in of.keys]
                remedy = f"drop it, or write one of the kinds {', '.join(kinds)}"
                raise wrong(f"has no effect on kind {self.kind}", remedy, (key, "@key"))
        if self.legend == "direct" and self.kind not in _OF_CURVES:
            raise wrong(f"{self.kind} has no curves to write names at", "write below, right or none", ("legend",))
        if self.scale == "share" and self.kind != "stacked":
            raise wrong('"share" is for stacked alone', "write linear or log", ("scale",))
        if self.scale == "log" and self.kind == "stacked":
            raise wrong("stacked bars need a linear scale", "write linear or share", ("scale",))
        if self.y is not None and self.of not in (None, "points"):
            raise wrong(f"a cdf of {self.of} is of their times", "drop y, or write of: points", ("y",))
        points = [{**entry, "time": ""} for entry in self.measured or ()]
        for number, point in enumerate(points):
            if point in points[:number]:
                raise wrong("measures a point again", "write the median of its times", ("measured", number))
