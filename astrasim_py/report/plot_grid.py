"""Rows of points arranged for a figure: facets, series, and an axis of swept values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from astrasim_py.core.errors import ScenarioError, UnitError
from astrasim_py.core.units import format_size, parse_bandwidth, parse_size, parse_time
from astrasim_py.report.figure_style import clean

_MAX_FACETS = 16


def select(rows: Sequence[Mapping], where: Mapping) -> list[Mapping]:
    """Rows whose swept values (or columns) are those of `where`."""
    return [row for row in rows if all(text_of(row, key) == str(value) for key, value in where.items())]


def text_of(row: Mapping, key: str) -> str | None:
    """The value of a swept key, or of a column, as text."""
    if key in row["sweep"]:
        return str(row["sweep"][key])
    if key == "size":
        return None if row.get("size_bytes") is None else format_size(row["size_bytes"])
    value = row.get({"model": "network_model", "network.model": "network_model"}.get(key, key))
    return None if value is None or isinstance(value, Mapping) else str(value)


class Axis:
    """Positions and labels of the values of x: a logarithmic or linear scale for quantities, else categories."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        self.kind, values = "category", [Fraction(i) for i in range(len(self.texts))]
        for kind, parse in (("number", Fraction), ("size", parse_size), ("time", parse_time), ("bw", parse_bandwidth)):
            try:
                parsed = [Fraction(parse(text)) for text in self.texts]
            except (UnitError, ValueError, ZeroDivisionError):
                continue
            if len(set(parsed)) == len(parsed):
                self.kind, values = kind, parsed
                break
        self.value = dict(zip(self.texts, map(float, values), strict=True))
        if self.kind != "category":
            self.texts.sort(key=lambda text: self.value[text])
        low, high = min(self.value.values(), default=0), max(self.value.values(), default=0)
        self.log = self.kind != "category" and low > 0 and high >= 8 * low

    def label(self, text: str) -> str:
        """The tick label of a value."""
        return format_size(int(self.value[text])) if self.kind == "size" else clean(text)

    def apply(self, axes) -> None:
        """Scale and ticks."""
        from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

        if self.log:
            axes.set_xscale("log", base=2)
        shown = self.texts[:: max(1, math.ceil(len(self.texts) / 12))]
        labels = [self.label(text) for text in shown]
        axes.xaxis.set_major_locator(FixedLocator([self.value[text] for text in shown]))
        axes.xaxis.set_major_formatter(FixedFormatter(labels))
        axes.xaxis.set_minor_locator(NullLocator())
        if sum(map(len, labels)) > 34:
            axes.tick_params(axis="x", rotation=40)
            for tick in axes.get_xticklabels():
                tick.set_horizontalalignment("right")
                tick.set_rotation_mode("anchor")
        if self.kind == "category" and len(self.texts) > 1:
            axes.set_xlim(-0.4, len(self.texts) - 0.6)


class Grid:
    """Rows arranged as facet → series → x."""

    def __init__(self, spec: Mapping, rows: Sequence[Mapping], place: str) -> None:
        self.spec, self.place = spec, place
        swept = list(dict.fromkeys(key for row in rows for key in row["sweep"]))
        where = spec.get("where") or {}
        varying = [key for key in swept if key not in where and len({text_of(row, key) for row in rows}) > 1]
        self.x = spec.get("x") or next((key for key in ("size", *varying, *swept) if key in swept), None)
        self.series_key, self.facet_key = spec.get("series"), spec.get("facet")
        for name, key in (("x", self.x), ("series", self.series_key), ("facet", self.facet_key)):
            if key and rows and all(text_of(row, key) is None for row in rows):
                keys = ", ".join(swept) or "none"
                raise ScenarioError(f"{place}.{name}", f'"{key}" is not swept', f"write one of the swept keys: {keys}")
        # Other varying keys go to the series' names: otherwise several points would coincide.
        rest = [key for key in varying if key not in (self.x, self.series_key, self.facet_key)]
        self.points: dict[tuple[str, tuple[str, ...], str], Mapping] = {}
        for row in rows:
            x = text_of(row, self.x) if self.x else clean(row["point"])
            if x is not None:
                facet = str(text_of(row, self.facet_key)) if self.facet_key else ""
                series = tuple(str(text_of(row, key)) for key in (self.series_key, *rest) if key)
                self.points[facet, series, x] = row
        self.facets = list(dict.fromkeys(facet for facet, _, _ in self.points))[:_MAX_FACETS]
        self.series = list(dict.fromkeys(series for _, series, _ in self.points))
        self.axis = Axis([x for _, _, x in self.points])

    def name(self, series: tuple[str, ...]) -> str:
        """The label of a series."""
        return clean(", ".join(series))

    def curve(self, facet: str, series: tuple[str, ...], value: Callable[[Mapping], float | None]) -> dict[str, float]:
        """x → value, for rows that have one."""
        rows = {x: self.points[facet, series, x] for x in self.axis.texts if (facet, series, x) in self.points}
        return {x: y for x, row in rows.items() if (y := value(row)) is not None}
