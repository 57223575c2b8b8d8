"""Rows of points arranged for a figure: panels by facet, series in them, values of x in these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, NamedTuple

import numpy as np

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import format_size
from astrasim_py.core.value_order import SIZES, TEXTS, value_order
from astrasim_py.report import figure_style as style
from astrasim_py.report import ticks
from astrasim_py.results.model import About, Breakdown, Row
from astrasim_py.results.repeats import HIGH, LOW, SEED, nearest_rank

#: Panels of a figure at most.
MOST_PANELS = 16
_NAMES = {"size": "message size", "size_bytes": "message size", "npus": "NPUs", "network.model": "network model"}


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureRow(Row):
    """A point, or one of its jobs, in a figure."""

    breakdown: Annotated[Breakdown | None, About("parts of its time", kept="never")] = None
    samples: Annotated[Sequence[int] | np.ndarray, About("times of what a cdf is of", "ps", "never")] = ()
    runs: Annotated[tuple["FigureRow", ...], About("with `repeat`: the rows of all runs", kept="never")] = ()
    base_ps: Annotated[int | None, About("what a slowdown or a speed-up compares its time with", "ps", "never")] = None

    def value(self, column: str) -> Decimal | int | None:
        """A number of the point, of its job or of the parts of its time; None where it has none."""
        for part in (self, self.job, self.breakdown):
            if part is not None and column in type(part).columns():
                return getattr(part, column)
        return None


def name_of(key: str) -> str:
    """A swept key as the label of an axis."""
    return style.clean(_NAMES.get(key, key if "." in key else key.replace("_", " ")))


def numbers_of(texts: Sequence[str]) -> dict[str, float] | None:
    """What swept values of one kind are worth: numbers, bytes, ps, bytes per second; None for names."""
    kinds, values, _ = zip(*map(value_order, texts), strict=True) if texts else ((TEXTS,), (), ())
    alike = set(kinds) != {TEXTS} and len(set(kinds)) == 1 and len(set(values)) == len(values)
    return dict(zip(texts, map(float, values), strict=True)) if alike else None


class Value(NamedTuple):
    """What a figure shows of a point: the median of its runs, and the ends of the interval of several."""

    middle: float
    low: float | None = None
    high: float | None = None


class XAxis:
    """Positions and labels of the values of x: a logarithmic or linear scale for quantities, else categories."""

    def __init__(self, texts: Sequence[str], *, names: bool = False) -> None:
        self.texts = list(dict.fromkeys(texts))
        values = None if names else numbers_of(self.texts)
        self.categories = values is None
        self.kind = TEXTS if values is None else value_order(self.texts[0])[0]
        self.value = values or {text: float(place) for place, text in enumerate(self.texts)}
        if not self.categories:
            self.texts.sort(key=lambda text: self.value[text])
        low, high = min(self.value.values(), default=0), max(self.value.values(), default=0)
        self.log = not self.categories and low > 0 and high >= 8 * low

    def label(self, text: str) -> str:
        return format_size(int(self.value[text])) if self.kind == SIZES else style.clean(text)

    def apply(self, axes, beside: float = 0.0) -> float:
        """Set the scale and the ticks of a panel, beside which so many points stay free; returns the height, in inches,
        that its labels take in addition.
        """
        labels = {self.value[text]: self.label(text) for text in self.texts}
        if self.log:
            axes.set_xscale("log", base=2)
            if len(labels) < ticks.LEAST:
                labels |= ticks.label_between(min(labels), max(labels), self.kind)
        labels = dict(sorted(labels.items()))
        return ticks.label_values(axes, labels, log=self.log, categories=self.categories, beside=beside)


class Grid:
    """Rows arranged as facet → series → x. `by_point`: every point is an x of its own."""

    def __init__(self, spec: Mapping, rows: Sequence[FigureRow], place: str, *, by_point: bool = False) -> None:
        self.spec, self.place, self.notes = spec, place, []
        swept = list(dict.fromkeys(key for row in rows for key in row.sweep))
        conditions = spec.get("where") or {}
        varying = [key for key in swept if key not in conditions and len({row.text_of(key) for row in rows}) > 1]
        by_size = ["size", *varying] if "size" in varying else [*varying, "size"]
        self.x = (
            "point" if by_point else spec.get("x") or next((key for key in (*by_size, *swept) if key in swept), None)
        )
        self.series_key, self.facet_key = spec.get("series"), spec.get("facet")
        for name, key in (("x", self.x), ("series", self.series_key), ("facet", self.facet_key)):
            if key and rows and all(row.text_of(key) is None for row in rows):
                keys = ", ".join(swept) or "none"
                raise ScenarioError(f"{place}.{name}", f'"{key}" is not swept', f"write one of the swept keys: {keys}")
        one_panel = not self.facet_key or _places(rows, [self.facet_key]) == 1
        if spec.get("kind") == "cdf" and one_panel and _places(rows, [self.series_key]) > style.MOST_ENTRIES:
            # Curves of a cdf end at the same height, where there is no room for many names: a panel for each.
            self.series_key, self.facet_key = None, self.series_key
        # Other varying keys go to the series' names where several points would coincide otherwise.
        more_keys: list[str] = []
        for key in varying:
            shown = [key_shown for key_shown in (self.x, self.series_key, self.facet_key, *more_keys) if key_shown]
            if _places(rows, [*shown, key]) > _places(rows, shown):
                more_keys.append(key)
        self.series_keys = tuple(key for key in (self.series_key, *more_keys) if key)
        self.points: dict[tuple[str, tuple[str, ...], str], FigureRow] = {}
        for row in rows:
            x = row.text_of(self.x) if self.x else style.clean(row.point)
            if x is not None:
                facet = str(row.text_of(self.facet_key)) if self.facet_key else ""
                series = tuple(str(row.text_of(key)) for key in self.series_keys)
                self.points[facet, series, x] = row
        facets = list(dict.fromkeys(facet for facet, _, _ in self.points))
        self.facets = facets[:MOST_PANELS]
        if len(facets) > MOST_PANELS:
            self.notes.append(f"{self.facet_key} takes {len(facets)} values: the first {MOST_PANELS} are drawn")
        self.series = list(dict.fromkeys(series for _, series, _ in self.points))
        # Seeds are names, whatever their digits.
        self.axis = XAxis([x for _, _, x in self.points], names=self.x == SEED)

    def name(self, series: tuple[str, ...]) -> str:
        return style.clean(", ".join(series))

    def legend_title(self) -> str:
        return ", ".join(map(name_of, self.series_keys))

    def title(self, axes, facet: str) -> None:
        """Write the facet over its panel."""
        if self.facet_key:
            style.set_title(axes, f"{name_of(self.facet_key)} = {facet}")

    def values(
        self, facet: str, series: tuple[str, ...], value: Callable[[FigureRow], float | None]
    ) -> dict[str, Value]:
        """x → value, in the order of the axis, for points that have one."""
        rows = {x: row for x in self.axis.texts if (row := self.points.get((facet, series, x)))}
        numbers = {x: sorted(y for y in map(value, runs_of(row)) if y is not None) for x, row in rows.items()}
        return {x: _value_of(values_of_x) for x, values_of_x in numbers.items() if values_of_x}

    def cells(self, facet: str, series: tuple[str, ...], x: str) -> dict[str, str]:
        """What is swept, as cells of the table of a figure."""
        cells = {self.facet_key: facet} if self.facet_key else {}
        return {**cells, **dict(zip(self.series_keys, series, strict=True)), self.x or "point": x}


def runs_of(row: FigureRow) -> tuple[FigureRow, ...]:
    """The rows that a row stands for: itself, or the runs of a point that was repeated."""
    return row.runs or (row,)


def _value_of(numbers: Sequence[float]) -> Value:
    ends = (nearest_rank(numbers, LOW), nearest_rank(numbers, HIGH)) if len(numbers) > 1 else ()
    return Value(nearest_rank(numbers, 50), *ends)


def _places(rows: Sequence[Row], keys: Sequence[str | None]) -> int:
    """How many different values the rows have in some keys."""
    return len({tuple(row.text_of(key) for key in keys if key) for row in rows})
