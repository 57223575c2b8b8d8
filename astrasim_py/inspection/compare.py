"""Two results side by side: points with the same swept values, what each takes, and the ratio."""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

from astrasim_py.core.errors import UsageError
from astrasim_py.core.extras import optional_module
from astrasim_py.core.point_names import SIGN, PointName
from astrasim_py.core.shown import Shown
from astrasim_py.core.value_order import value_order
from astrasim_py.inspection.point_choice import Name, point_name, points_named
from astrasim_py.report.tables import Column, fitted_table, rate, time_text
from astrasim_py.results.model import About, Number, Row, SweptRecord, Texts
from astrasim_py.results.repeats import SEED, medians
from astrasim_py.results.values import rounded
from astrasim_py.runs.sweep import RunResult

if TYPE_CHECKING:
    import pandas

#: Points in one result only that are named.
_NAMED = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparisonRow(SweptRecord):
    """A point of two results. ``row["ratio"]`` is ``row.ratio``."""

    sweep: Annotated[Texts, About("the swept values, where results have several points")]
    a_ns: Annotated[Number, About("time in the first result, where it is done", "ns")]
    b_ns: Annotated[Number, About("time in the second result", "ns")]
    ratio: Annotated[Number, About("second over first")]
    status_a: Annotated[str, About("status in the first result")]
    status_b: Annotated[str, About("status in the second result")]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Two results side by side. `names`: theirs. `rows`: of points in both, the largest change first: ``sweep``,
    ``a_ns``, ``b_ns`` and ``ratio`` (b over a), the latter None where one is not done. `only_a`, `only_b`: names of
    points in one result.
    """

    names: tuple[str, str]
    rows: tuple[ComparisonRow, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        """Geometric mean of the ratios; None without any."""
        logs = [math.log(row.ratio) for row in self.rows if row.ratio]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None

    def to_dataframe(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame: a column for each swept key, times in ns as floats, and the ratio."""
        data_frame = optional_module("pandas", "notebook", "to_dataframe").DataFrame
        flat = [{**row.sweep, **{k: None if row[k] is None else float(row[k]) for k in _TIMES}} for row in self.rows]
        return data_frame(flat)

    def __str__(self) -> str:
        return comparison_text(self)

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        mean = "" if self.mean is None else f"geometric mean of B/A {self.mean:.4g}"
        return " and ".join(self.names), {"points": len(self.rows), "mean": mean}

    def _repr_html_(self) -> str:
        return Shown._repr_html_(self) + self.to_dataframe().to_html(max_rows=30, index=False)


_TIMES = ("a_ns", "b_ns", "ratio")


def compare(a: RunResult | str | os.PathLike[str], b: RunResult | str | os.PathLike[str]) -> Comparison:
    """Compare two results point by point.

    Parameters
    ----------
    a, b : RunResult or path
        A result, a folder of results or of one point, the name or the file of a scenario with results in ``results``,
        also of some points as in ``"x@topology=ring"``.

    Returns
    -------
    Comparison
        Points are matched by the swept keys that both have. Of points with several seeds the median counts.

    Raises
    ------
    UsageError
        No results there, or no point in both.
    """
    first, second = (result.folder if isinstance(result, RunResult) else result for result in (a, b))
    return compare_named(first, second)


def compare_named(first: Name, second: Name, out: str | os.PathLike = "results") -> Comparison:
    """`compare` for names; `out`: folder of all results. Points need not share a key of which the names choose two
    values, as in ``NAME@topology=ring`` and ``NAME@topology=mesh``.
    """
    a, b = point_name(first, out), point_name(second, out)
    sides = [medians([point.row for point in points_named(name, out)]) for name in (a, b)]
    keys = [key for key in sides[0][0].sweep if key in sides[1][0].sweep and key != SEED]
    apart = [key for key in keys if _tells_apart(key, a, b, sides)]
    keys = [key for key in keys if key not in apart]
    single = all(len(side) == 1 for side in sides)
    of_a, of_b = ({() if single else _place(row, keys): row for row in side} for side in sides)
    for side, rows_by_place, name in zip(sides, (of_a, of_b), (a, b), strict=True):
        if len(rows_by_place) < len(side):
            unshared = [key for key in side[0].sweep if key not in keys]
            problem = f"{len(side)} points have the same {' and '.join(keys) or 'values'}"
            raise UsageError(str(name), problem, f"choose some by {SIGN}{'=…,'.join(unshared)}=…")
    rows = [_row(of_a[place], of_b[place], of_a[place].sweep if single else apart) for place in of_a if place in of_b]
    if not rows:
        raise UsageError(f"{a} and {b}", "have no point in common", f"swept are {_swept(of_a)}, and {_swept(of_b)}")
    rows.sort(key=lambda row: -abs(math.log(row.ratio)) if row.ratio else 1)
    return Comparison(
        names=(str(a), str(b)),
        rows=tuple(rows),
        only_a=tuple(of_a[place].point for place in of_a if place not in of_b),
        only_b=tuple(of_b[place].point for place in of_b if place not in of_a),
    )


def _place(row: Row, keys: Sequence[str]) -> tuple:
    """What two points have in common that are compared: quantities by worth, names as written."""
    kinds = [value_order(row.sweep.get(key, "")) for key in keys]
    return tuple((kind, worth) if worth else text for kind, worth, text in kinds)


def _tells_apart(key: str, a: PointName, b: PointName, sides: Sequence[Sequence[Row]]) -> bool:
    """Whether two names choose one value each of a swept key, and not the same."""
    if not any({key, key.rpartition(".")[2]} & name.values.keys() for name in (a, b)):
        return False
    first, second = ({value_order(row.sweep[key]) for row in side} for side in sides)
    return len(first) == len(second) == 1 and first != second


def _row(a: Row, b: Row, hidden: Collection[str]) -> ComparisonRow:
    a_ns, b_ns = (row.time_ns if row.status == "done" else None for row in (a, b))
    return ComparisonRow(
        sweep={key: value for key, value in a.sweep.items() if key not in hidden},
        a_ns=a_ns,
        b_ns=b_ns,
        ratio=rounded(Fraction(b_ns) / Fraction(a_ns), 6) if a_ns and b_ns else None,
        status_a=a.status,
        status_b=b.status,
    )


def _swept(rows: Mapping[tuple[object, ...], Row]) -> str:
    return ", ".join(next(iter(rows.values())).sweep) or "none"


def comparison_columns(rows: Sequence[ComparisonRow]) -> list[Column]:
    """The columns of some rows: swept values, both times, and their ratio."""
    keys = list(dict.fromkeys(key for row in rows for key in row.sweep))
    texts = [[row.sweep.get(key, "") for row in rows] for key in keys]
    columns = [Column(key, text, False, int(len(set(text)) == 1)) for key, text in zip(keys, texts, strict=True)]
    for heading, sides in (
        ("A", [(row.a_ns, row.status_a) for row in rows]),
        ("B", [(row.b_ns, row.status_b) for row in rows]),
    ):
        columns.append(Column(heading, [status if ns is None else time_text(ns) for ns, status in sides], True))
    return [*columns, Column("B/A", [rate(row.ratio) for row in rows], True)]


def comparison_text(c: Comparison, rows: Sequence[ComparisonRow] | None = None, width: int | None = None) -> str:
    """A comparison as text: some of its rows (all by default), the mean, and what only one result has."""
    rows = c.rows if rows is None else rows
    lines = [f"A: {c.names[0]}", f"B: {c.names[1]}"]
    lines.append(fitted_table(comparison_columns(rows), width) if rows else "no point is like that")
    if len(rows) < len(c.rows):
        lines.append(f"{len(rows)} of {len(c.rows)} points")
    if c.mean is not None:
        compared = sum(row.ratio is not None for row in c.rows)
        lines.append(f"geometric mean of B/A: {c.mean:.4g} over {compared} point{'s' if compared != 1 else ''}")
    for side, names in (("A", c.only_a), ("B", c.only_b)):
        if names:
            others = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(f"only in {side}: {'; '.join(names[:_NAMED])}{others}")
    return "\n".join(lines)
