"""The table that compares the points of a sweep: what is compared in rows, sizes in columns, multiples of a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len

from astrasim_py.core.value_order import TEXTS, value_order
from astrasim_py.report.tables import Column, shortened, text_table, time_text

if TYPE_CHECKING:
    from astrasim_py.results.model import Row
    from astrasim_py.scenario.plot_spec import PlotSpec

#: Most rows of a table.
MOST_ROWS = 30
#: Characters of a line where no terminal says how many it has.
_WIDTH = 80
#: Characters of a name of a row.
_NAMED = 32
#: Kinds of figures that compare with a baseline.
_OF_BASELINE = ("slowdown", "speedup")

Place = tuple[str, ...]


def comparison_text(rows: Sequence[Row], plots: Sequence[PlotSpec] = (), width: int | None = None) -> str:
    """A table of a sweep of two keys or more; empty where fewer vary. `plots`: the scenario's figures, of which the
    first that compares gives columns (its x), rows (its series) and the baseline. `width`: characters of a line.

    A cell has how many times longer a point takes than the baseline, or than the fastest of all that are compared; the
    cell of that one, and every cell where nothing is compared, has the time.
    """
    table = _arranged(rows, plots)
    return "" if table is None else "\n".join(_lines(table, width or _WIDTH))


def multiples(rows: Sequence[Row], plots: Sequence[PlotSpec] = ()) -> Column | None:
    """Of a sweep of one key, a column with multiples of the time of the baseline, or of the fastest; None where its
    values are no alternatives.
    """
    values = varying_values(rows)
    baselines = [spec.baseline for spec in plots if spec.kind in _OF_BASELINE and spec.baseline]
    if not any(not _is_zipped(key, values, rows, None) for key in compared_keys(values, rows)):
        return None
    timed = [row for row in rows if row.time_ps]
    of_baseline = [row for row in timed for value in row.sweep.values() if value in baselines]
    reference = next(iter(of_baseline), None) or min(timed, key=lambda row: row.time_ps or 0, default=None)
    if reference is None or reference.time_ps is None or len(timed) < 2:
        return None
    cells = ["" if row.time_ps is None else multiple_text(row.time_ps, reference.time_ps) for row in rows]
    return Column("time/baseline" if of_baseline else "time/best", cells, True, 1)


def varying_values(rows: Iterable[Row]) -> dict[str, list[str]]:
    """The values of each swept key that has several, in their order."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, value in row.sweep.items():
            values.setdefault(key, {})[value] = None
    return {key: list(texts) for key, texts in values.items() if len(texts) > 1}


def compared_keys(values: Mapping[str, Sequence[str]], rows: Sequence[Row]) -> list[str]:
    """Of several swept keys those whose values are alternatives: names, or counts (tp, pp) on one machine."""
    names = [key for key, texts in values.items() if not _quantities(texts)]
    if names or len({row.npus for row in rows} - {None}) != 1:
        return names
    return [key for key, texts in values.items() if all(text.isdigit() for text in texts)] if len(values) > 1 else []


def multiple_text(time: int, reference: int) -> str:
    """How many times as long as a reference.

    >>> multiple_text(3, 2), multiple_text(1200, 1), multiple_text(1, 20), multiple_text(1, 300)
    ('1.50×', '1200×', '0.050×', '0.0033×')
    """
    ratio = time / reference
    if ratio < 0.00995:
        return f"{ratio:.2g}×"
    return f"{ratio:.{0 if ratio >= 100 else 2 if ratio >= 0.0995 else 3}f}×"


def _quantities(values: Iterable[str]) -> bool:
    """Whether swept values are sizes, counts, … ("4 GPUs", too), not names of what is compared, nor both."""
    return all(value_order(value)[0] != TEXTS or value[:1].isdigit() for value in values)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Texts of points by their values of `keys`: columns, rows, and those of blocks."""

    keys: tuple[str, ...]
    cells: Mapping[Place, str]
    title: str
    first_blocks: Mapping[str, object]  # values of the blocks that come first

    def turned(self) -> _Table:
        """The table with rows for columns."""
        keys = (self.keys[1], self.keys[0], *self.keys[2:])
        return replace(self, keys=keys, cells={(p[1], p[0], *p[2:]): text for p, text in self.cells.items()})

    def values(self, number: int) -> list[str]:
        """The values of a key, in their order."""
        return list(dict.fromkeys(place[number] for place in self.cells))

    def blocks(self) -> list[Place]:
        """Values of the blocks' keys, in the order in which they are shown."""
        blocks = list(dict.fromkeys(place[2:] for place in self.cells))
        wanted = [(self.keys.index(k) - 2, str(v)) for k, v in self.first_blocks.items() if k in self.keys[2:]]
        return sorted(blocks, key=lambda block: not all(block[number] == value for number, value in wanted))

    def columns_in(self, width: int) -> list[str]:
        """The columns that have room beside the names of rows; of more, some that are spread evenly."""
        names = [self.keys[1], *self.values(1)]
        room = width - min(max(map(cell_len, names)), _NAMED)
        widths = {x: 2 + cell_len(x) for x in self.values(0)}
        for place, text in self.cells.items():
            widths[place[0]] = max(widths[place[0]], 2 + cell_len(text))
        fit = len(widths) if sum(widths.values()) <= room else max(room // max(widths.values()), 1)
        return _spread(list(widths), fit)


def _arranged(rows: Sequence[Row], plots: Sequence[PlotSpec]) -> _Table | None:
    varying = varying_values(rows)
    spec = _spec(varying, plots)
    values = {key: texts for key, texts in varying.items() if not _is_zipped(key, varying, rows, spec)}
    compared = [key for key in compared_keys(varying, rows) if key in values]
    x = spec.x if spec and spec.x in values else None
    series = spec.series if spec and spec.series in values and spec.series != x else None
    if series is None:
        others = [key for key in compared if key != x] or [key for key in values if key not in (x, "size")]
        series = max(others, key=lambda key: len(values[key]), default=None)
    if x is None:
        quantities = [key for key in values if key not in (series, *compared)]
        sized = [key for key in quantities if key == "size"] or quantities or [key for key in values if key != series]
        x = max(sized, key=lambda key: len(values[key]), default=None)
    if x is None or series is None:
        return None
    keys = [x, series]
    for key in [*([spec.facet] if spec and spec.facet in values else []), *values]:
        if key not in keys and _count(rows, [*keys, key]) > _count(rows, keys):
            keys.append(key)
    points = {tuple(row.sweep.get(key, "") for key in keys): row for row in rows}
    if 2 * len(points) < len(values[x]) * len(values[series]):  # a zipped sweep fills few cells
        return None
    reference = spec.baseline if spec else None
    of = next((key for key in (series, x) if reference in values[key]), None)
    if of and reference:
        is_speedup = spec is not None and spec.kind == "speedup"
        kind = "speed-up over" if is_speedup else "slowdown against"
        title = f"{kind} {reference}, which has its time"
        cells = _of_baseline(points, keys.index(of), reference, is_speedup=is_speedup)
        if any(re.fullmatch(r"0\.\d+×", cell) for cell in cells.values()):
            title += f"; below 1: {'slower' if is_speedup else 'faster'}"
    elif chosen := [key for key in compared if key in keys]:
        by = [key for key in varying if key in keys and key not in compared]
        each = f" for each {_words(by)}" if by else ""
        title = f"the fastest {_words(chosen)}{each} has its time, others a multiple of it"
        cells = _of_fastest(points, [keys.index(key) for key in by])
    else:
        title = f"time by {_words([key for key in varying if key in keys])}"
        cells = {place: _cell(row, None) for place, row in points.items()}
    return _Table(keys=tuple(keys), cells=cells, title=title, first_blocks=dict(spec.where or {}) if spec else {})


def _spec(values: Mapping[str, Sequence[str]], plots: Sequence[PlotSpec]) -> PlotSpec | None:
    """The figure that says what is compared: one with a baseline, else the first with rows and columns."""
    fitting = [spec for spec in plots if spec.x in values and (spec.series is None or spec.series in values)]
    with_baseline = [spec for spec in fitting if spec.kind in _OF_BASELINE and spec.baseline and spec.series]
    return next(iter([*with_baseline, *(spec for spec in fitting if spec.series), *fitting]), None)


def _is_zipped(key: str, values: Mapping[str, Sequence[str]], rows: Sequence[Row], spec: PlotSpec | None) -> bool:
    """Whether another key, which a figure shows or which has more values, says which value a key has."""
    shown = (spec.x, spec.series, spec.facet) if spec else ()
    rank = {other: (other in shown, len(texts), -i) for i, (other, texts) in enumerate(values.items())}
    return any(rank[other] > rank[key] and _count(rows, [other, key]) == len(texts) for other, texts in values.items())


def _of_baseline(points: Mapping[Place, Row], number: int, value: str, *, is_speedup: bool) -> dict[Place, str]:
    """Times of points over those of the points that have a value in one place, or the reverse."""
    cells = {}
    for place, row in points.items():
        baseline = points.get((*place[:number], value, *place[number + 1 :]))
        cells[place] = _cell(row, baseline, is_speedup=is_speedup)
    return cells


def _of_fastest(points: Mapping[Place, Row], by: Sequence[int]) -> dict[Place, str]:
    """Times of points over that of the fastest with the same values in some places."""
    best: dict[Place, Row] = {}
    for place, row in points.items():
        group = tuple(place[number] for number in by)
        if row.time_ps is not None and (group not in best or row.time_ps < (best[group].time_ps or 0)):
            best[group] = row
    return {place: _cell(row, best.get(tuple(place[i] for i in by))) for place, row in points.items()}


def _cell(row: Row, reference: Row | None, *, is_speedup: bool = False) -> str:
    if row.time_ps is None:
        return row.status
    if reference is None or reference is row or not reference.time_ps or not row.time_ps:
        return time_text(row.time_ns)
    times = (reference.time_ps, row.time_ps) if is_speedup else (row.time_ps, reference.time_ps)
    return multiple_text(*times)


def _count(rows: Sequence[Row], keys: Sequence[str]) -> int:
    return len({tuple(row.sweep.get(key) for key in keys) for row in rows})


def _lines(table: _Table, width: int) -> Iterator[str]:
    columns, of = table.columns_in(width), len(table.values(0))
    if len(columns) < of:
        turned = table.turned()
        if len(turned.columns_in(width)) == len(table.values(1)) and of <= MOST_ROWS:
            table, columns, of = turned, turned.columns_in(width), len(table.values(1))
    body: list[tuple[str, list[str]]] = []  # heading of the block, cells
    left_out: list[str] = []
    for block in table.blocks():
        heading = ", ".join(f"{key}={value}" for key, value in zip(table.keys[2:], block, strict=True))
        names = [name for name in table.values(1) if any((x, name, *block) in table.cells for x in columns)]
        if body and len(body) + len(names) > MOST_ROWS:
            left_out.append(heading)
            continue
        for name in _spread(names, MOST_ROWS):
            cells = [table.cells.get((x, name, *block), "") for x in columns]
            body.append((heading, [shortened(name, _NAMED), *cells]))
        if len(names) > MOST_ROWS:
            left_out.append(f"{len(names) - MOST_ROWS} of {len(names)} values of {table.keys[1]}")
    lines = text_table(
        [table.keys[1], *columns], [cells for _, cells in body], [False, *[True] * len(columns)], width
    ).splitlines()
    if len(columns) < of:
        left_out.append(f"{of - len(columns)} of {of} values of {table.keys[0]}")
    yield table.title if len(table.title) <= width else "the fastest has its time, others a multiple of it"[:width]
    yield from lines[:2]
    previous = ""
    for (heading, _), line in zip(body, lines[2:], strict=True):
        if heading != previous:
            yield shortened(heading, width)
        previous = heading
        yield line
    if left_out:
        yield shortened(f"left out: {'; '.join(left_out)}", width)


def _spread(values: Sequence[str], most: int) -> list[str]:
    """So many values at most, evenly chosen, with both ends."""
    if len(values) <= most:
        return list(values)
    last = max(most - 1, 1)
    return [values[i * (len(values) - 1) // last] for i in range(most)]


def _words(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
