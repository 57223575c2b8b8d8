"""Measured times of collectives: rows of CSV files, or what nccl-tests and rccl-tests print or write as JSON.

Sizes are those of the full buffer, as nccl-tests print them: of all_gather, reduce_scatter and all_to_all n times one
rank's part.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import NPU_CAP, did_you_mean
from astrasim_py.core.row_conditions import Cell, nearest, parse_condition
from astrasim_py.core.table_file import read_text, table_rows
from astrasim_py.core.units import INT64_MAX, format_size, format_time
from astrasim_py.core.value_order import NUMBERS, SIZES, TIMES, value_order
from astrasim_py.measured import benchmark, nccl_files, nccl_tests

#: Columns that a CSV must have, and those that it may have; others are for the reader.
REQUIRED = ("platform", "library", "version", "collective", "dtype", "ranks", "nodes", "bytes", "time_us")
OPTIONAL = ("algorithm", "protocol", "in_place", "repeat", "source", "licence")
_WHAT = "a CSV of measured times, or the output of nccl-tests"
#: Columns of whole numbers, and their largest values.
_COUNTS = {"ranks": NPU_CAP, "nodes": NPU_CAP, "bytes": INT64_MAX, "repeat": INT64_MAX}
_PS_PER_US = 10**6
#: Repeats of one point that differ by more than this factor have different units, or are not of one point.
_CONTRADICTION = 10.0

#: Platform (without -SXM) → hardware preset.
PRESETS = {
    "A100": "dgx_a100",
    "H100": "dgx_h100",
    "H200": "dgx_h200",
    "B200": "dgx_b200",
    "B300": "dgx_b300",
    "GB200": "gb200_nvl72",
    "GB300": "gb300_nvl72",
    "MI300X": "mi300x",
    "Vidur-A100-DGX": "dgx_a100",
    "Vidur-H100-DGX": "dgx_h100",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured time. `algorithm`, `protocol`: of a given program; empty where the library chose."""

    place: str  # ``file:line``
    platform: str
    library: str
    version: str
    collective: str
    dtype: str
    ranks: int
    nodes: int
    bytes: int
    time_ps: int
    algorithm: str = ""
    protocol: str = ""
    in_place: str = ""
    repeat: int = 1
    source: str = ""
    licence: str = ""

    @property
    def point(self) -> tuple:
        """Key that repeats of one point share."""
        return tuple(getattr(self, f.name) for f in fields(self) if f.name not in ("place", "time_ps", "repeat"))

    @property
    def preset(self) -> str | None:
        """Hardware preset of the platform; None: there is none."""
        return PRESETS.get(self.platform.removesuffix("-SXM"))

    @property
    def given(self) -> bool:
        """Whether a given program was timed, rather than the library's own choice."""
        return bool(self.protocol) or self.algorithm not in ("", "library default")

    @property
    def label(self) -> str:
        of = f"{self.platform} {self.collective} n = {self.ranks}, {format_size(self.bytes)}, {self.dtype}"
        return f"{of} {self.algorithm}".rstrip()


def read_rows(paths: Sequence[str | os.PathLike], warnings: list[str] | None = None) -> list[MeasuredRow]:
    """Rows of all files, in order.

    `warnings`: takes a line for each kind of row that is left out, and for what to know of the others. Raises
    UsageError: ``file:line``: a missing column, a number that is none, a time that is not positive, output of
    nccl-tests of which nothing can be used, or repeats of one point that contradict each other.
    """
    rows: list[MeasuredRow] = []
    warnings = [] if warnings is None else warnings
    for path in paths:
        text, place = read_text(path, _WHAT), os.fspath(path)
        is_file = nccl_files.is_json(text) or nccl_files.is_table(text)
        if is_file or nccl_tests.is_output(text):
            measured_cells = _benchmarked(text, place, is_file, warnings)
            rows += (replace(_row(cells, row_place), repeat=0) for row_place, cells in measured_cells)
        elif _is_table(text):
            rows += (_row(cells, row_place) for row_place, cells in table_rows(text, place, _WHAT, REQUIRED))
        else:
            problem = "has neither the columns of measured times nor the output of nccl-tests"
            raise UsageError(f"{place}:1", problem, f"name {_WHAT}; a CSV has {', '.join(REQUIRED)}")
    return _numbered(rows)


def _is_table(text: str) -> bool:
    """Whether the first line has a known heading, or there is nothing in which to look for anything else."""
    names = {name.strip(' "\r') for name in text.partition("\n")[0].split(",")}
    return bool(names & {*REQUIRED, *OPTIONAL}) or not text.strip()


def _benchmarked(text: str, place: str, is_file: bool, warnings: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """``file:line`` and cells of the times that nccl-tests measured; adds what is left out to `warnings`.

    `is_file`: it is a file that they write, not what they print.
    """
    reasons: dict[str, list[str]] = {}
    remedies: dict[str, str] = {}
    notes: list[str] = []

    def leave(here: str, why: str, remedy: str) -> None:
        reasons.setdefault(why, []).append(here)
        remedies.setdefault(why, remedy)

    def note(here: str, text: str) -> None:
        notes.append(f"{here}: {text}")

    runs = nccl_files.runs(text, place, note) if is_file else nccl_tests.runs(text, place, leave, note)
    measured_cells = [cell for run in runs for cell in benchmark.cells(run, place, leave, note)]
    if not measured_cells:
        if not reasons:
            remedy = "; ".join(notes) or "name a finished run"
            raise UsageError(
                f"{place}:{1 + text.count(chr(10))}", "there is no time in the output of nccl-tests", remedy
            )
        why, places = next(iter(reasons.items()))
        raise UsageError(places[0], why, remedies[why])
    for why, places in reasons.items():
        notes.append(f"{places[0]}: {why} ({len(places)} left out)")
    warnings += notes
    yield from measured_cells


def _row(cells: dict[str, str], here: str) -> MeasuredRow:
    for key in REQUIRED:
        if not cells[key] and key not in ("library", "version"):
            raise UsageError(f"{here}: {key}", "is empty", "write a value")
    try:
        time = float(cells["time_us"])
    except ValueError:
        time = math.nan
    if not 0 < time * _PS_PER_US < INT64_MAX:
        problem = f'"{cells["time_us"]}" is no time'
        raise UsageError(f"{here}: time_us", problem, "write microseconds above 0, without a unit, e.g. 8.98")
    numbers: dict[str, Any] = {
        key: _whole(cells[key], f"{here}: {key}", most) for key, most in _COUNTS.items() if cells.get(key)
    }
    plain = [key for key in (*REQUIRED, *OPTIONAL) if key in cells and key not in (*_COUNTS, "time_us")]
    texts: dict[str, Any] = {key: cells[key] for key in plain}
    if texts.get("in_place", "") not in ("", "0", "1"):
        raise UsageError(f"{here}: in_place", f'"{texts["in_place"]}" is neither 0 nor 1', "write 1, 0 or nothing")
    if numbers["ranks"] % numbers["nodes"]:
        problem = f"{numbers['ranks']} ranks are no equal parts of {numbers['nodes']} nodes"
        raise UsageError(f"{here}: nodes", problem, "write the number of equal nodes")
    return MeasuredRow(place=here, time_ps=max(round(time * _PS_PER_US), 1), **numbers, **texts)


def _whole(text: str, here: str, most: int) -> int:
    value = int(text) if re.fullmatch(r"\d{1,19}", text) else 0
    if not 1 <= value <= most:
        raise UsageError(here, f'"{text[:64]}" is no count', f"write a whole number from 1 to {most}, without a unit")
    return value


def _numbered(rows: list[MeasuredRow]) -> list[MeasuredRow]:
    """The rows, after a check of repeats; those of nccl-tests get their repeat numbers here."""
    seen: dict[tuple, dict[int, MeasuredRow]] = {}
    out = []
    for row in rows:
        repeats = seen.setdefault(row.point, {})
        if not row.repeat:
            row = replace(row, repeat=len(repeats) + 1)
        earlier = repeats.setdefault(row.repeat, row)
        if earlier.time_ps != row.time_ps:
            problem = f"another time stands for the same point and repeat at {earlier.place}"
            raise UsageError(row.place, problem, "drop one, or number them in a column repeat")
        first = next(iter(repeats.values()))
        ratio = row.time_ps / first.time_ps
        if not 1 / _CONTRADICTION < ratio < _CONTRADICTION:
            problem = f"{ratio:.3g} times the time of the same point at {first.place}"
            raise UsageError(row.place, problem, "check the units, and that both are of one machine")
        out.append(row)
    return out


def mean_of_repeats(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """One row per point, with the mean of the logarithm of its times."""
    points: dict[tuple, list[MeasuredRow]] = {}
    for row in rows:
        points.setdefault(row.point, []).append(row)
    return [
        replace(repeats[0], time_ps=round(math.exp(np.mean(np.log([row.time_ps for row in repeats])))))
        for repeats in points.values()
    ]


def left_out_lines(reasons: Mapping[str, int]) -> list[str]:
    """A line for each reason, with the number of rows that are left out for it."""
    return [f"{count} {'row is' if count == 1 else 'rows are'} left out: {why}" for why, count in reasons.items()]


def chooser(text: str, place: str = "--where") -> Callable[[MeasuredRow], bool]:
    """A condition such as ``ranks=2,8``, ``platform=H100*`` or ``size>=1 MiB``. Raises UsageError, at `place`."""
    condition = parse_condition(text, place)
    key = column_of(condition.key, place)
    return lambda row: condition.holds(_cell(row, key))


def column_of(key: str, place: str = "--where") -> str:
    """The column that a key means. Raises UsageError, at `place`: none."""
    names = {name: name for name in (*REQUIRED, *OPTIONAL)} | {"size": "bytes", "time": "time_us"}
    if key not in names:
        raise UsageError(place, f'there is no column "{key}"', did_you_mean(key, names))
    return names[key]


def rows_that_meet(rows: Sequence[MeasuredRow], texts: Sequence[str]) -> list[MeasuredRow]:
    """The rows that meet all conditions. Raises UsageError: none does."""
    chosen = list(rows)
    for text, holds in [(text, chooser(text)) for text in texts]:
        left = [row for row in chosen if holds(row)]
        if not left:
            raise no_row(text, chosen)
        chosen = left
    return chosen


def no_row(text: str, rows: Sequence[MeasuredRow]) -> UsageError:
    """The error where no row meets a condition. `rows`: those that meet the others."""
    condition = parse_condition(text)
    cells = {_cell(row, column_of(condition.key)) for row in rows}
    texts = [cell.text for cell in cells if cell]
    return UsageError("--where", f"no row has {condition}", nearest(condition.values[0], texts))


def _cell(row: MeasuredRow, column: str) -> Cell | None:
    if column == "time_us":
        return Cell(TIMES, Fraction(row.time_ps), format_time(row.time_ps), _PS_PER_US)
    value = getattr(row, column)
    if column == "bytes":
        return Cell(SIZES, Fraction(value), format_size(value), 1)
    if isinstance(value, int):
        return Cell(NUMBERS, Fraction(value), str(value), 1)
    return Cell(*value_order(value)) if value else None
