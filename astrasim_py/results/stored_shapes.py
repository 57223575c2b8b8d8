"""What the files of a stored point hold: a file with anything else is none of ours."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError, create_model

from astrasim_py.core import records
from astrasim_py.core.choices import LEVELS
from astrasim_py.core.errors import EXIT_INTERNAL, EXIT_OK, EXIT_STUCK
from astrasim_py.core.records import Table
from astrasim_py.results.csv_io import TEXT_COLUMNS
from astrasim_py.results.model import COLLECTIVE_KEYS, JOB_KEYS, ROW_KEYS
from astrasim_py.results.repeats import SEED

Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**64)]
Exact = Annotated[Decimal, Field(strict=True, ge=0, lt=2**64, decimal_places=60)]
Number = Count | Exact
Ratio = Annotated[str, Field(pattern=r"^\d{1,18}(/[1-9]\d{0,17})?\z")]

_ROW_TEXTS = ("topology", "algorithm", "engine", "network_model", "busiest_link")
_Row = create_model(
    "_Row",
    **{key: ((str if key in _ROW_TEXTS else Number) | None, None) for key in ROW_KEYS}
    | {"scenario": (str, ...), "point": (str, ...), "sweep": (dict[str, str], ...), "status": (str, ...)},
)
_Job = create_model(
    "_Job",
    **dict.fromkeys(JOB_KEYS, (Number | None, ...))
    | {"point": (str, ...), "job": (str, ...), "ranks": (Count, ...), "arrival_ns": (Number, ...)},
)

_Collective = create_model(
    "_Collective",
    **dict.fromkeys(COLLECTIVE_KEYS, (Number | None, ...))
    | dict.fromkeys(("point", "job", "group", "type", "algorithm"), (str, ...))
    | dict.fromkeys(("instance", "ranks", "size"), (Count, ...)),
)


class _Algorithm(BaseModel):
    collective: str


class _LinkEvent(BaseModel):
    at_ps: Count
    text: str
    failed: list[Count]


class _Fold(BaseModel):
    exact: Flag
    deviation: Count
    text: str


class _Summary(BaseModel):
    row: _Row
    makespan_ps: Count
    events: Count
    cause: str = ""
    explanation: list[str] = []
    warnings: list[str] = []
    hints: list[str] = []
    unused: list[str] = []
    jobs: list[_Job] = []
    breakdown: dict[str, Number | None] | None = None
    collectives: list[_Collective] = []
    busbw_factors: list[tuple[str, Count, Ratio]] = []
    algorithms: list[_Algorithm] = []
    npu_of: list[Count] = []
    switches: list[str] = []
    switch_latency_ps: Count = 0
    hop_latency_ps: dict[Annotated[str, Field(pattern=r"^\d{1,18}\z")], Count] = {}
    qps: Annotated[Count, Field(gt=0)] = 1
    link_events: list[_LinkEvent] = []
    fold: _Fold | None = None


class _File(BaseModel):
    sha256: str
    bytes: Count


class _Manifest(BaseModel):
    scenario: str
    point: str
    folder: str
    digest: str
    status: str
    level: Literal[LEVELS]
    timeline: Flag | list[Count]
    limits: dict[str, Count | None]
    exit_code: Literal[EXIT_OK, EXIT_STUCK, EXIT_INTERNAL]
    sweep: dict[str, str]
    inputs: dict[str, str]
    resolved: dict[str, Any]
    files: dict[str, _File]
    engine: str | None = None
    collectives: Flag = True
    repeat: Count = 1


def is_whole(manifest: Mapping, summary: Mapping) -> bool:
    """Whether a manifest and a summary, read from JSON, have everything that is read of them, with its types."""
    try:
        _Manifest.model_validate(manifest)
        _Summary.model_validate(summary)
    except ValidationError:
        return False
    if manifest["exit_code"] and not summary.get("explanation"):
        return False
    return "repeat" not in manifest or SEED in summary["row"]["sweep"]


#: Columns of each table, and those that hold fractions.
_COLUMNS = {
    "rank": ("rank", "finish", "compute", "exposed_comm"),
    "collective": records.COLLECTIVE_COLUMNS,
    "link": records.LINK_COLUMNS,
    "node": records.NODE_COLUMNS,
    "message": records.MESSAGE_COLUMNS,
    "hop": records.HOP_COLUMNS,
    "vertex": ("vertex", "name", "kind", "x", "y"),
    "edge": ("link", "name", "src", "dst", "bandwidth", "latency"),
}
_FRACTIONS = ("x", "y")
#: What a column of numbers refers to: a column of another table, or the rows of one; -1 may stand for none.
_REFERENCES = {
    "edge": {"src": "vertex.vertex", "dst": "vertex.vertex"},
    "link": {"link": "edge.link"},
    "node": {"rank": "rank.rank", "instance": "collective.instance", "released_by": "node", "ended_by": "node"},
    "message": {
        "instance": "collective.instance", "src": "rank.rank", "dst": "rank.rank", "send_node": "node",
        "recv_node": "node",
    },
    "hop": {"message": "message", "link": "edge.link"},
}  # fmt: skip


def check_columns(name: str, table: Table) -> None:
    """Raises ValueError: the table lacks a column, or has one of another type."""
    for column in _COLUMNS[name]:
        if column not in table:
            raise ValueError(f'there is no column "{column}"')
        if column not in TEXT_COLUMNS and table[column].dtype.kind not in ("iuf" if column in _FRACTIONS else "iu"):
            raise ValueError(f'the column "{column}" is not of whole numbers')


def with_references(names: Sequence[str]) -> dict[str, None]:
    """Names of tables, and of those whose columns they refer to."""
    found = dict.fromkeys(names)
    for name in names:
        found |= with_references([to.partition(".")[0] for to in _REFERENCES.get(name, {}).values() if "." in to])
    return found


def check_references(tables: Mapping[str, Table]) -> None:
    """Raises ValueError: a row refers to one that is not there."""
    for name in tables:
        for column, target in _REFERENCES.get(name, {}).items():
            other, _, key = target.partition(".")
            if other not in tables:
                continue
            values = tables[name][column]
            found = np.isin(values, tables[other][key]) if key else values < tables[other].height
            lost = np.flatnonzero(~((found & (values >= 0)) | (values == -1)))
            if len(lost):
                raise ValueError(f"row {lost[0]}: {column} {values[lost[0]]} is not there")
