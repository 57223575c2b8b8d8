"""Figures of the use of links over time: a row for each of some links, a panel for each point."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.records import Categorical
from astrasim_py.report import figure_style as style
from astrasim_py.report.figure_style import Drawn, Sheet
from astrasim_py.report.link_use import total_use, traffic_of, use_over_time
from astrasim_py.report.record_plots import PANELS, Panel, joined, same_scale, texts
from astrasim_py.report.ticks import time_axis

#: Links that are shown by default, and bins of time.
COUNT, BINS = 6, 100
#: Links that are looked at to find different ones.
_CANDIDATES = 512
_MOST_JOBS = 6
_TALL = 0.4  # inches
_HIGH = 0.64  # of a row
_PLAIN, _OTHER = "#0072B2", "#999999"


class _Rows(NamedTuple):
    panel: Panel
    links: list[list[str]]  # names of the links of each row
    use: np.ndarray  # float64[rows, jobs, bins]
    mean: np.ndarray  # float64[rows]
    left_out: int  # links that were used and are not shown, unless they were chosen by name


def draw_utilisation(sheet: Sheet, spec: Mapping, panels: Sequence[Panel]) -> Drawn:
    from matplotlib.patches import Patch

    panels = panels[:PANELS]
    if not panels:
        return style.nothing(sheet.panels(1)[1])
    jobs = list(dict.fromkeys(job for panel in panels for job in panel.jobs.values()))
    jobs = jobs if len(jobs) <= _MOST_JOBS else [*jobs[: _MOST_JOBS - 1], "other jobs"]
    notes: list[str] = []
    rows = [_rows(panel, spec, jobs, notes) for panel in panels]
    columns = 1 if len(rows) <= 3 else sheet.columns(len(rows))
    lines = [max(len(r.links) for r in rows[i : i + columns]) for i in range(0, len(rows), columns)]
    around = 0.75 + sheet.title_height([row.panel.title for row in rows], columns)
    heights = [around + _TALL * max(line, 1) for line in lines]
    _, axes_list = sheet.panels(
        len(rows), height=sum(heights) / len(heights), columns=columns, gridspec_kw={"height_ratios": heights}
    )
    colours = [style.COLOURS[i % len(style.COLOURS)] for i in range(len(jobs))] or [_PLAIN]
    until, shared = same_scale([panel.makespan for panel in panels])
    for number, (row, axes, most_ps) in enumerate(zip(rows, axes_list, until, strict=True)):
        _draw(axes, row, colours, most_ps, lines[number // columns])
        unit = time_axis(axes.xaxis, most_ps)
        axes.set_xlabel(f"time ({unit})" if not shared or number >= len(rows) - columns else "")
        axes.set_ylabel("use, 0 to 100 % each" if number % columns == 0 else "")
        if row.panel.title:
            style.set_title(axes, row.panel.title)
        if row.left_out:
            shown = sum(map(len, row.links))
            text = f"the {shown} busiest of {shown + row.left_out} links in use"
            place = f"{row.panel.title}: " if row.panel.title else ""
            notes.append(f"{place}{text} are drawn; choose with links:, or have more with count:")
    legend = [(Patch(facecolor=c), f"job = {style.clean(job, 24)}") for c, job in zip(colours, jobs, strict=False)]
    sheet.explain(axes_list, legend)
    return Drawn(axes_list, joined([_table(row, jobs) for row in rows]), list(dict.fromkeys(notes)))


def _rows(panel: Panel, spec: Mapping, jobs: Sequence[str], notes: list[str]) -> _Rows:
    """The links that are shown, those of equal use as one row."""
    bins, edge = spec.get("bins") or BINS, panel.tables["edge"]
    traffic = traffic_of(panel)
    if not traffic.exact:
        notes.append("utilisation: so many messages share links that each is drawn at its mean rate")
    total = total_use(traffic, panel)
    name_of = dict(zip(edge["link"].tolist(), texts(edge["name"]), strict=True))
    number = {name: link for link, name in name_of.items()}
    if spec.get("links"):
        names = [str(name).replace(" ", "").replace("→", "->") for name in spec["links"]]
        for name in names:
            if name not in number:
                raise UsageError("plots.links", f'there is no link "{name}"', did_you_mean(name, list(number)))
        chosen = np.array([number[name] for name in names])
    else:
        chosen = total["link"][np.lexsort((total["link"], -np.round(total["use"], 12)))[:_CANDIDATES]]
    links = np.sort(chosen)
    bandwidth_of = dict(zip(total["link"].tolist(), total["bandwidth"].tolist(), strict=True))
    bandwidth = np.array([bandwidth_of.get(link, 1.0) for link in links.tolist()])
    ranks = np.minimum(panel.tables["message"]["src"], panel.tables["message"]["dst"])
    of_rank = [min(jobs.index(job), len(jobs) - 1) if job in jobs else len(jobs) - 1 for job in panel.jobs.values()]
    of = np.array([of_rank[i] for i in range(len(of_rank))] or [0], dtype=np.int64)
    group = of[np.minimum(ranks, len(of) - 1)] if jobs else np.zeros(len(ranks), dtype=np.int64)
    use = use_over_time(traffic, links, bandwidth, max(panel.makespan, 1), bins, group, max(len(jobs), 1))
    alike: dict[bytes | int, list[int]] = {}
    for link in chosen.tolist():
        row = int(np.searchsorted(links, link))
        alike.setdefault(link if spec.get("links") else np.round(use[row], 9).tobytes(), []).append(row)
    shown = list(alike.values())[: spec.get("count") or COUNT] if not spec.get("links") else list(alike.values())
    names_of_rows = [[name_of[int(links[row])] for row in members] for members in shown]
    first = [members[0] for members in shown]
    mean = use[first].sum(axis=1).mean(axis=1)
    left_out = 0 if spec.get("links") else total.height - sum(map(len, names_of_rows))
    return _Rows(panel, names_of_rows, use[first], mean, left_out)


def _draw(axes, rows: _Rows, colours: Sequence[str], until: int, lines: int) -> None:
    bins = rows.use.shape[2]
    edges = np.linspace(0, max(rows.panel.makespan, 1), bins + 1)
    for row in range(len(rows.links)):
        base = np.full(bins, row + 0.5)
        axes.axhline(row + 0.5 - _HIGH, color="#d5d5d5", linewidth=0.4, zorder=1)
        for job, colour in enumerate(colours[: rows.use.shape[1]]):
            top = base - _HIGH * np.minimum(rows.use[row, job], 1.0)
            axes.fill_between(
                edges, np.append(top, top[-1]), np.append(base, base[-1]), step="post", color=colour, linewidth=0
            )
            base = top
        axes.axhline(row + 0.5, color="#888888", linewidth=0.5, zorder=2.5)
        names = rows.links[row]
        text = style.clean(names[0], 28).replace("->", " → ") + (f" and {len(names) - 1} equal" if names[1:] else "")
        room = 72 * axes.figure.get_figwidth() / style.columns_of(axes) - 20
        text = style.narrowed(f"{text}, mean {100 * rows.mean[row]:.0f} %", room, 6.5)
        axes.annotate(
            text, (0, row + 0.5 - _HIGH), xytext=(3, 1), fontsize=6.5,
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="left", va="bottom",
        )  # fmt: skip
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.set_ylim(max(lines, 1) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.set_xlim(0, until)
    if not rows.links:
        style.say(axes, "no link was ever in use")


def _table(rows: _Rows, jobs: Sequence[str]) -> dict:
    count, groups, bins = rows.use.shape
    edges = np.round(np.linspace(0, max(rows.panel.makespan, 1), bins + 1) / 1000, 3)
    size = count * groups * bins
    return {
        "panel": Categorical(np.zeros(size, dtype=np.int32), [rows.panel.title]),
        "link": Categorical(np.repeat(np.arange(count), groups * bins), [" ".join(names) for names in rows.links]),
        "job": Categorical(np.tile(np.repeat(np.arange(groups), bins), count), list(jobs) or [""]),
        "start_ns": np.tile(edges[:-1], count * groups),
        "end_ns": np.tile(edges[1:], count * groups),
        "use": np.round(rows.use.ravel(), 9),
    }
