"""Gantt charts: what each rank does over time, a panel for each point."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.number_ranges import number_ranges
from astrasim_py.core.records import Categorical, empty_table
from astrasim_py.core.units import format_time
from astrasim_py.report import figure_style as style
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.gantt_rows import (
    BEHIND,
    BINS,
    COMMUNICATION,
    COMPUTE,
    INSIDE,
    LANES,
    MOST_BARS,
    RECEIVE,
    SEND,
    TILE,
    Bars,
    GanttRow,
    bars_of,
    fitting,
    grouped,
    joined_bars,
    rows_of,
    thinned,
)
from astrasim_py.report.record_plots import PANELS, Panel, joined, same_scale
from astrasim_py.report.ticks import time_axis

#: Most rows by default.
ROWS = 40
#: Height of a row, inches: of few rows, and of many.
_TALL, _LOW = 0.26, 0.125
_OWN = {SEND: style.SEND_COLOUR, RECEIVE: style.RECEIVE_COLOUR}
_BLACK = "#000000"
#: Most names written into bars.
_MOST_TEXTS = 200


class _Chart(NamedTuple):
    panel: Panel
    bars: Bars  # of the rows that are drawn
    rows: list[GanttRow]
    ranks: int  # without switches
    left_out: list[int]  # ranks


def draw_gantt(sheet: Sheet, spec: Mapping, panels: Sequence[Panel]) -> Drawn:
    charts = [_chart(panel, spec) for panel in panels[:PANELS]]
    if not charts:
        return style.nothing(sheet.panels(1)[1])
    last = max(chart.ranks for chart in charts) - 1
    if missing := [rank for rank in spec.get("ranks") or () if rank > last]:
        raise UsageError("plots.ranks", f"there is no rank {missing[0]}", f"write ranks from 0 to {last}")
    height_rows = max(len(chart.rows) for chart in charts)
    # What runs at once is as high as text where there are few rows.
    tall = min(_TALL * max(map(_lanes, charts)), 5 / max(height_rows, 1))
    tall = tall if height_rows <= 8 else max(_LOW, _TALL * 8 / height_rows)
    columns = 1 if len(charts) <= 3 else sheet.columns(len(charts))
    around = 0.88 + sheet.title_height([chart.panel.title for chart in charts], columns)
    heights = [around + tall * max(len(chart.rows), 1) for chart in charts]
    lines = [max(heights[i : i + columns]) for i in range(0, len(charts), columns)]
    figure, plots = sheet.panels(
        len(charts), height=sum(lines) / len(lines), columns=columns, wide=True, gridspec_kw={"height_ratios": lines}
    )
    groups, look = _look(charts)
    until, shared = same_scale([chart.panel.makespan for chart in charts])
    tables, notes = [], []
    for number, (chart, axes, most_ps) in enumerate(zip(charts, plots, until, strict=True)):
        first = number - number % columns
        high = max(len(neighbour.rows) for neighbour in charts[first : first + columns])
        box = axes.get_position()
        room = 72 * figure.get_figwidth() * box.width
        height = min(72 * tall, 72 * figure.get_figheight() * box.height / max(high, 1))
        tables.append(_draw(axes, chart, groups[number], look, most_ps, room, height))
        axes.set_ylim(max(high, 1) - 0.42, -0.58)
        unit = time_axis(axes.xaxis, most_ps)
        axes.set_xlabel(f"time ({unit})" if not shared or number >= len(charts) - columns else "")
        axes.set_ylabel("rank" if number % columns == 0 else "")
        if chart.panel.title:
            style.set_title(axes, chart.panel.title)
            axes.set_title(axes.get_title(), pad=20 if chart.left_out else 11)  # above the makespan
        if chart.left_out:
            axes.annotate(
                _left_out(chart), (0, 1), xycoords="axes fraction", xytext=(0, 10), textcoords="offset points",
                fontsize=6.5, color=style.GREY, va="bottom", annotation_clip=False,
            )  # fmt: skip
            place = f"{chart.panel.title}: " if chart.panel.title else ""
            notes.append(f"{place}{_left_out(chart)} of the Gantt chart; choose with ranks:, or have more with rows:")
    if any(len(chart.bars.rank) > MOST_BARS for chart in charts):
        notes.append(
            f"a Gantt chart of more than {MOST_BARS:,} bars shows in every {BINS}th of the time what fills most of it, "
            "and nothing where less than half is filled; choose with ranks:"
        )
    if not shared:
        notes.append("the Gantt charts differ in their scales: the longest run takes more than ten times the shortest")
    sheet.explain(plots, look.legend)
    return Drawn(plots, joined(tables), notes)


def _chart(panel: Panel, spec: Mapping) -> _Chart:
    """The rows of a point that are drawn, and their bars."""
    node = panel.tables["node"]
    ranks = int(node["rank"].max()) + 1 - len(panel.switches) if node.height else 0
    table = panel.tables.get("collective", empty_table(("instance", "type")))
    bars = bars_of(node, table, ranks, len(panel.switches))
    numbers = [rank for rank in spec.get("ranks") or range(ranks) if rank < ranks]
    numbers += np.unique(bars.rank[bars.rank >= ranks]).tolist()
    rows = rows_of(bars, numbers, panel.jobs)
    shown = fitting(rows, bars, spec.get("rows") or ROWS)
    firsts = {row.ranks[0] for row in shown}
    left_out = sorted(rank for row in rows if row.ranks[0] not in firsts for rank in row.ranks)
    first = np.concatenate([np.arange(ranks)[:0], *(np.arange(row.bars.start, row.bars.stop) for row in shown)])
    begin = np.cumsum([0, *(row.bars.stop - row.bars.start for row in shown)]).tolist()
    rows_drawn = [GanttRow(row.ranks, slice(*ends)) for row, ends in zip(shown, pairwise(begin), strict=True)]
    return _Chart(panel, bars.take(first.astype(np.int64)), rows_drawn, ranks, left_out)


def _lanes(chart: _Chart) -> int:
    """How many bars of a rank lie one under the other."""
    return int(chart.bars.lane[chart.bars.lane != BEHIND].max(initial=0)) + 1


def _left_out(chart: _Chart) -> str:
    shown = sum(len(row.ranks) for row in chart.rows)
    word = "rank" if len(chart.left_out) == 1 else "ranks"
    total = shown + len(chart.left_out)
    return f"{word} {number_ranges(chart.left_out)} left out ({len(chart.left_out)} of {total})"


def _by_kind(bars: Bars, sizes: Sequence[int]) -> Bars:
    """Bars of all charts; those named by their kind and size, such as all_reduce 4 MiB, are called by their kind alone
    where no chart has two such names.
    """
    pairs = np.stack([np.repeat(np.arange(len(sizes)), sizes), bars.kind, bars.name])
    sized = [
        (chart, kind, name)
        for chart, kind, name in np.unique(pairs, axis=1).T.tolist()
        if _is_sized(bars.names[name], bars.names[kind])
    ]
    several = {kind for (_, kind), count in Counter((chart, kind) for chart, kind, _ in sized).items() if count > 1}
    kind_of = {name: kind for _, kind, name in sized if kind not in several}
    renamed = np.array([kind_of.get(number, number) for number in range(len(bars.names))] or [0])
    return bars._replace(name=renamed[bars.name])


def _is_sized(name: str, kind: str) -> bool:
    return name.replace("_", "-").startswith(f"{kind} ") and name[len(kind) + 1 :][:1].isdigit()


class _Look(NamedTuple):
    """Names and colours of the groups of bars. `both`: there is compute and communication."""

    labels: list[str]
    colours: list[str]
    both: bool
    legend: list


def _look(charts: Sequence[_Chart]) -> tuple[list[np.ndarray], _Look]:
    """For each chart the group of each bar, and the look of the groups, compute before communication."""
    from matplotlib.patches import Patch

    names = tuple(dict.fromkeys(name for chart in charts for name in chart.bars.names))
    number = {name: i for i, name in enumerate(names)}
    parts = []
    for chart in charts:
        number_of = np.array([number[name] for name in chart.bars.names] or [0])
        parts.append(chart.bars._replace(name=number_of[chart.bars.name], kind=number_of[chart.bars.kind]))
    merged = _by_kind(joined_bars(parts, names), [len(bars.rank) for bars in parts])
    single = [name for name in _OWN if name in number and (merged.name == number[name]).any()]
    limit = {COMPUTE: len(style.COMPUTE_COLOURS), COMMUNICATION: len(style.COMMUNICATION_COLOURS)}
    group = np.full(len(merged.rank), -1)
    labels: list[str] = []
    colours: list[str] = []
    for part in (COMPUTE, COMMUNICATION):
        rest = merged._replace(part=np.where(np.isin(merged.name, [number[name] for name in single]), -1, merged.part))
        groups, called = grouped(rest, part, limit[part])
        group = np.where(groups >= 0, groups + len(labels), group)
        labels += called
        colours += _colours(part, called)
    for name in single:
        group[merged.name == number[name]] = len(labels)
        labels.append(name)
        colours.append(_OWN[name])
    if (merged.part == INSIDE).any():
        group[merged.part == INSIDE] = len(labels)
        labels.append("compute in an algorithm")
        colours.append(_BLACK)
    has_both = (merged.part == COMPUTE).any() and (merged.part == COMMUNICATION).any()
    ends = np.cumsum([0, *(len(chart.bars.rank) for chart in charts)])
    legend = [(Patch(facecolor=c, edgecolor="none"), style.clean(t, 40)) for c, t in zip(colours, labels, strict=True)]
    return [group[a:b] for a, b in pairwise(ends)], _Look(labels, colours, bool(has_both), legend)


def _colours(part: int, labels: Sequence[str]) -> list[str]:
    """Colours of groups: a collective's type has its own, the others take what is left in order."""
    if part == COMPUTE:
        phases = {label: style.PHASE_COLOURS[label] for label in labels if label in style.PHASE_COLOURS}
        others = iter([colour for colour in style.COMPUTE_COLOURS if colour not in phases.values()])
        return [phases[label] if label in phases else next(others) for label in labels]
    types = [label.split(" ")[0].replace("-", "_") for label in labels]
    typed = {name: style.TYPE_COLOURS[name] for name in types if types.count(name) == 1 and name in style.TYPE_COLOURS}
    spare = iter([colour for colour in style.COMMUNICATION_COLOURS if colour not in typed.values()])
    return [typed[name] if name in typed else next(spare) for name in types]


def _draw(axes, chart: _Chart, group: np.ndarray, look: _Look, until: int, room: float, tall: float) -> dict:
    """Draw the rows; returns what was drawn as columns."""
    from matplotlib.collections import PolyCollection

    bars = chart.bars
    labels, colours, has_both, _ = look
    row = np.repeat(np.arange(len(chart.rows)), [r.bars.stop - r.bars.start for r in chart.rows])
    lanes = np.ones(max(len(chart.rows) * 3, 1), dtype=np.int64)
    front = bars.lane != BEHIND
    np.maximum.at(lanes, (row * 3 + bars.part)[front], bars.lane[front] + 1)
    place = (row * 3 + bars.part) * (LANES + 1) + bars.lane
    place, group, start, end = thinned(place, group, bars.start, bars.end, max(chart.panel.makespan, 1))
    line, lane = place // (LANES + 1), place % (LANES + 1)
    row, part, behind = line // 3, line % 3, lane == BEHIND
    # Compute above, communication below, one lane under the other; the whole height where there is only one of them.
    high = np.select([part == INSIDE], [0.1], 0.42 if has_both else 0.84) / np.where(
        (part == INSIDE) | behind, 1, lanes[line]
    )
    above = np.select([part == INSIDE, part == COMMUNICATION], [0.42, 0.0 if has_both else -0.42], -0.42)
    top = row + above + np.where(behind, 0, lane) * high
    boxes = np.empty((len(row), 4, 2))
    boxes[:, (0, 3), 0], boxes[:, (1, 2), 0] = start[:, None], end[:, None]
    boxes[:, (0, 1), 1], boxes[:, (2, 3), 1] = top[:, None], (top + high)[:, None]
    for number in range(len(labels)):
        members = group == number
        if members.any():
            thin = 0.3 if len(boxes) < 2000 else 0.0
            under = 1.0 if labels[number] == RECEIVE else 1.1
            axes.add_collection(
                PolyCollection(
                    boxes[members], linewidths=thin, zorder=under, facecolors=colours[number], edgecolors="white"
                )
            )
    if len(bars.rank) == len(boxes):
        _names(axes, bars, group, colours, top, high, room / max(until, 1), tall)
    axes.set_xlim(0, 1.01 * until)
    _row_labels(axes, chart, tall)
    _makespan(axes, chart.panel.makespan, until)
    _jobs(axes, chart, tall)
    ranks = [_said(r.ranks, chart, len(r.ranks)) for r in chart.rows]
    return {
        "panel": Categorical(np.zeros(len(row), dtype=np.int32), [chart.panel.title]),
        "ranks": Categorical(row, ranks),
        "job": Categorical(row, [chart.panel.jobs.get(r.ranks[0], "") for r in chart.rows]),
        "bar": Categorical(bars.name, bars.names) if len(bars.rank) == len(row) else Categorical(group, labels),
        "colour": Categorical(group, labels),
        "start_ns": start / 1000,
        "end_ns": end / 1000,
    }


def _names(axes, bars: Bars, group, colours, top, high, points: float, tall: float) -> None:
    """Names of bars inside of them, where there is room; `points`: of a ps, `tall`: of a row."""
    size = 6.0
    wide = (bars.end - bars.start) * points
    fits = np.flatnonzero((high * tall >= size + 0.5) & (wide >= 2 * size) & (bars.lane != BEHIND))
    texts_drawn = []
    for row in fits.tolist():
        name = bars.names[bars.name[row]]
        # Of a tile at least its number.
        texts = (style.clean(text, 24) for text in (name, *TILE.findall(name)))
        texts_drawn += [(row, text) for text in texts if style.text_width(text, size) + 4 <= wide[row]][:1]
    for row, text in texts_drawn if len(texts_drawn) <= _MOST_TEXTS else ():
        colour = colours[group[row]]
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        light = 0.299 * red + 0.587 * green + 0.114 * blue > 130
        axes.text(
            (bars.start[row] + bars.end[row]) / 2, top[row] + high[row] / 2, text, fontsize=size, ha="center",
            va="center_baseline", color="black" if light else "white", clip_on=True,
        )  # fmt: skip


def _row_labels(axes, chart: _Chart, tall: float) -> None:
    """The ranks of each row; of many rows some."""
    rows, texts = chart.rows, [_said(row.ranks, chart) for row in chart.rows]
    step = max(1, int(np.ceil((style.SMALL + 0.5) / tall)))
    # Where every row is one rank and there is no room for all, round numbers.
    places = [i for i in range(len(rows)) if i % step == 0]
    axes.set_yticks(places, [texts[i] for i in places])
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def _said(ranks: Sequence[int], chart: _Chart, limit: int = 2) -> str:
    """Ranks in a few characters; switches by their names."""
    names = [style.clean(chart.panel.switches[rank - chart.ranks], 16) for rank in ranks if rank >= chart.ranks]
    parts = names or number_ranges(ranks, len(ranks)).split(", ")
    text = ", ".join(parts[:limit]) + (", …" if len(parts) > limit else "")
    return f"{text} ({len(ranks)})" if len(ranks) > limit else text


def _makespan(axes, makespan: int, until: int) -> None:
    """A line where the run ends."""
    axes.axvline(makespan, color=style.GREY, linewidth=0.8, linestyle=(0, (3, 2)), zorder=4, gid="makespan")
    side = "right" if makespan > 0.4 * until else "left"
    text = f"makespan {format_time(makespan)}"
    axes.annotate(
        text, (makespan, 1), xycoords=("data", "axes fraction"), xytext=(0, 1.5),
        textcoords="offset points", ha=side, va="bottom", fontsize=6.5, color=style.GREY, annotation_clip=False,
    )  # fmt: skip


def _jobs(axes, chart: _Chart, tall: float) -> None:
    """A line between the rows of two jobs, and their names on the right."""
    jobs = [chart.panel.jobs.get(row.ranks[0]) for row in chart.rows]
    if len(set(jobs)) < 2:
        return
    borders = [0, *(i for i in range(1, len(jobs)) if jobs[i] != jobs[i - 1]), len(jobs)]
    for first, last in pairwise(borders):
        text = style.clean(jobs[first] or "", 24)
        upright = style.text_width(text) <= (last - first) * tall
        if first:
            axes.axhline(first - 0.5, color=style.GREY, linewidth=0.6, zorder=3)
        axes.annotate(
            text, (1, (first + last - 1) / 2), xycoords=("axes fraction", "data"), xytext=(4, 0), fontsize=style.SMALL,
            textcoords="offset points", rotation=-90 if upright else 0, ha="left", va="center", annotation_clip=False,
        )  # fmt: skip
