"""Two results side by side: points with the same swept values, what each takes, and the ratio."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from astrasim_py.core.errors import UsageError
from astrasim_py.core.extras import optional_module
from astrasim_py.core.shown import Shown
from astrasim_py.inspection.point_choice import points_named
from astrasim_py.report.tables import Column, fitted_table, time_text
from astrasim_py.results.repeats import SEED, medians
from astrasim_py.results.values import rounded, value_order
from astrasim_py.runs.sweep import RunResult

#: Points in one result only that are named.
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """Two results side by side. `names`: theirs. `rows`: of points in both, the largest change first: ``sweep``,
    ``a_ns``, ``b_ns`` and ``ratio`` (b over a), the latter None where one is not done. `only_a`, `only_b`: names of
    points in one result.
    """

    names: tuple[str, str]
    rows: tuple[dict, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def mean(self) -> float | None:
        """Geometric mean of the ratios; None without any."""
        logs = [math.log(row["ratio"]) for row in self.rows if row["ratio"]]
        return math.exp(math.fsum(logs) / len(logs)) if logs else None

    def to_dataframe(self):
        """The rows as a pandas DataFrame: a column for each swept key, times in ns as floats, and the ratio."""
        pandas = optional_module("pandas", "notebook", "to_dataframe")
        flat = [{**row["sweep"], **{k: None if row[k] is None else float(row[k]) for k in _TIMES}} for row in self.rows]
        return pandas.DataFrame(flat)

    def __str__(self) -> str:
        return comparison_text(self)

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        mean = "" if self.mean is None else f"geometric mean of B/A {self.mean:.4g}"
        return " and ".join(self.names), {"points": len(self.rows), "mean": mean}

    def _repr_html_(self) -> str:
        return Shown._repr_html_(self) + self.to_dataframe().to_html(max_rows=30, index=False)


_TIMES = ("a_ns", "b_ns", "ratio")


def compare(a: RunResult | str | os.PathLike, b: RunResult | str | os.PathLike) -> Comparison:
    """Compare two results point by point.

    Parameters
    ----------
    a, b : RunResult or path
        A result, a folder of results or of one point, the name or the file of a scenario with results in ``results``.

    Returns
    -------
    Comparison
        Points are matched by the swept keys that both have. Of points with several seeds the median counts.

    Raises
    ------
    UsageError
        No results there, or no point in both.
    """
    return compare_named(*(each.folder if isinstance(each, RunResult) else each for each in (a, b)))


def compare_named(
    a: str | os.PathLike,
    b: str | os.PathLike,
    out: str | os.PathLike = "results",
    wanted: Mapping[str, Sequence[str]] | None = None,
) -> Comparison:
    """`compare` for names; `out`: folder of all results; `wanted`: key → values of which a point has one."""
    sides = [medians([point.row for point in points_named(name, wanted or {}, out)]) for name in (a, b)]
    keys = [key for key in sides[0][0]["sweep"] if key in sides[1][0]["sweep"] and key != SEED]
    single = all(len(side) == 1 for side in sides)
    first, second = ({() if single else _place(row, keys): row for row in side} for side in sides)
    for side, found, name in zip(sides, (first, second), (a, b), strict=True):
        if len(found) < len(side):
            own = [key for key in side[0]["sweep"] if key not in keys]
            problem = f"{len(side)} points have the same {' and '.join(keys) or 'values'}"
            raise UsageError(str(name), problem, f"choose some by {' and '.join(own)}=…")
    rows = [_row(first[place], second[place], {} if single else None) for place in first if place in second]
    if not rows:
        raise UsageError(f"{a} and {b}", "have no point in common", f"swept are {_swept(first)}, and {_swept(second)}")
    rows.sort(key=lambda row: -abs(math.log(row["ratio"])) if row["ratio"] else 1)
    return Comparison(
        names=(os.fspath(a), os.fspath(b)),
        rows=tuple(rows),
        only_a=tuple(first[place]["point"] for place in first if place not in second),
        only_b=tuple(second[place]["point"] for place in second if place not in first),
    )


def _place(row: Mapping, keys: Sequence[str]) -> tuple:
    """What two points have in common that are compared: quantities by worth, names as written."""
    kinds = [value_order(str(row["sweep"].get(key, ""))) for key in keys]
    return tuple((kind, worth) if worth else text for kind, worth, text in kinds)


def _row(a: Mapping, b: Mapping, sweep: Mapping | None) -> dict:
    times = [row["time_ns"] if row["status"] == "done" else None for row in (a, b)]
    ratio = None if None in times or not all(times) else rounded(Fraction(times[1]) / Fraction(times[0]), 6)
    status = {f"status_{side}": row["status"] for side, row in zip("ab", (a, b), strict=True)}
    shown = dict(a["sweep"]) if sweep is None else dict(sweep)
    return {"sweep": shown, "a_ns": times[0], "b_ns": times[1], "ratio": ratio, **status}


def _swept(found: Mapping[tuple, Mapping]) -> str:
    return ", ".join(next(iter(found.values()))["sweep"]) or "none"


def comparison_columns(rows: Sequence[Mapping]) -> list[Column]:
    """The columns of some rows: swept values, both times, and their ratio."""
    keys = list(dict.fromkeys(key for row in rows for key in row["sweep"]))
    texts = [[str(row["sweep"].get(key, "")) for row in rows] for key in keys]
    found = [Column(key, text, False, int(len(set(text)) == 1)) for key, text in zip(keys, texts, strict=True)]
    for heading, side in (("A", "a"), ("B", "b")):
        cells = [row[f"status_{side}"] if row[f"{side}_ns"] is None else time_text(row[f"{side}_ns"]) for row in rows]
        found.append(Column(heading, cells, True))
    return [*found, Column("B/A", ["" if row["ratio"] is None else f"{row['ratio']:.4g}" for row in rows], True)]


def comparison_text(c: Comparison, rows: Sequence[Mapping] | None = None, width: int | None = None) -> str:
    """A comparison as text: some of its rows (all by default), the mean, and what only one result has."""
    rows = c.rows if rows is None else rows
    lines = [f"A: {c.names[0]}", f"B: {c.names[1]}"]
    lines.append(fitted_table(comparison_columns(rows), width) if rows else "no point is like that")
    if len(rows) < len(c.rows):
        lines.append(f"{len(rows)} of {len(c.rows)} points")
    if c.mean is not None:
        compared = sum(row["ratio"] is not None for row in c.rows)
        lines.append(f"geometric mean of B/A: {c.mean:.4g} over {compared} point{'s' if compared != 1 else ''}")
    for side, names in (("A", c.only_a), ("B", c.only_b)):
        if names:
            more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(f"only in {side}: {'; '.join(names[:_NAMED])}{more}")
    return "\n".join(lines)
