"""Figure of a synthesized schedule: the transfers on every link, and the share of links in use over time.

A small schedule is drawn transfer by transfer, a lane per link, a colour per chunk. A larger one is drawn as a map: for
every NPU and every time the share of its incoming links in use; neighbouring NPUs share a row if there are more than
`MAX_ROWS`.
"""

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.report.figure_style import (
    FILLS,
    FORMATS,
    GREY,
    SKY,
    SMALL,
    VERMILION,
    clean,
    our_style,
    render,
    set_heading,
)
from astrasim_py.report.intervals import coverage
from astrasim_py.report.ticks import time_unit
from astrasim_py.scenario.plot_spec import WIDTHS
from astrasim_py.synthesis.model.schedule import Schedule

#: Maximum links, and maximum holds of links, for drawing every transfer.
MAX_LANES, MAX_HOLDS = 64, 6000
#: Rows of the map.
MAX_ROWS = 256
#: Bins of time if there are too many distinct times.
_BINS = 600
#: Maximum chunks for naming each in a legend, and for using the palette's colours.
_NAMED, _PLAIN = 4, len(FILLS)


def draw_schedule(schedule: Schedule, form: str, title: str = "") -> bytes:
    """Draw a schedule. `schedule`: with its transfers recorded. Raises UsageError: another form, or a schedule without
    transfers.
    """
    if form not in FORMATS:
        raise UsageError("figure", f'"{form}" is no form of figures', f"write one of {', '.join(FORMATS)}")
    if not schedule.recorded or not schedule.transfers:
        raise UsageError("figure", "a schedule without transfers has no picture", "record them")
    with our_style():
        # No simulation is involved: no engine is named.
        return render(_figure(schedule, title), form, {})


def _figure(schedule: Schedule, heading: str):
    from matplotlib.figure import Figure

    transfer, resource, start, end = schedule.holds()
    links = len(schedule.network.links)
    single = links <= MAX_LANES and len(start) <= MAX_HOLDS
    unit, factor = time_unit(schedule.time)
    tall = min(max(1.6, 0.14 * links + 0.4), 8.0) if single else 3.6
    figure = Figure(figsize=(WIDTHS["text"] / 2.54, tall + 1.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [tall, 1.1]})
    set_heading(figure, heading)
    if single:
        _lanes(figure, upper, schedule, transfer, resource, start / factor, end / factor)
    else:
        _map(figure, upper, schedule, resource, start, end, factor)
    _use(lower, schedule, links, start, end, factor)
    upper.set_xlim(0, 1.006 * max(schedule.time, 1) / factor)
    upper.tick_params(axis="x", labelbottom=False)
    lower.set_xlabel(f"time ({unit})")
    return figure


def _lanes(figure, axes, schedule: Schedule, transfer, resource, start, end) -> None:
    """Every hold as a bar, a lane per link, by the ends of the link."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    network, topology = schedule.network, schedule.network.topology
    order = np.lexsort((topology.dst[network.links], topology.src[network.links]))
    lane = np.empty(len(order), dtype=np.int64)
    lane[order] = np.arange(len(order))
    chunk = schedule.chunk[transfer]
    count = int(schedule.demand.count)
    colours = _colours(count)
    sums = schedule.reduces[transfer]
    low, high = lane[resource] - 0.42, lane[resource] + 0.42
    boxes = np.stack([np.column_stack(edge) for edge in ((start, low), (end, low), (end, high), (start, high))], axis=1)
    for chosen, hatch in ((~sums, None), (sums, "////")):
        if chosen.any():
            axes.add_collection(
                PolyCollection(
                    boxes[chosen], facecolors=colours[chunk[chosen]], edgecolors="white", linewidths=0.4, hatch=hatch
                )
            )
    _numbers(axes, schedule, chunk, start, end, lane[resource], colours)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_yticks(np.arange(len(order)))
    size = SMALL if len(order) <= 48 else 5.5
    axes.set_yticklabels([clean(topology.link_name(int(link))).replace("->", "→") for link in network.links[order]])
    axes.tick_params(axis="y", labelsize=size, length=0)
    axes.grid(False, axis="y")
    axes.set_ylabel("link")
    handles = []
    if count <= _NAMED:
        handles = [Patch(facecolor=colours[c], label=f"chunk {c}") for c in range(count)]
    else:
        # Colours of chunks go with their owners: neighbouring numbers look alike.
        bar = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), ListedColormap(colours))
        figure.colorbar(bar, ax=axes, label="chunk", pad=0.01, aspect=40, ticks=range(0, count, -(-count // 9)))
    if sums.any():
        handles.append(Patch(facecolor="#bbbbbb", edgecolor="white", hatch="////", label="partial sum"))
        if (~sums).any():
            handles.append(Patch(facecolor="#bbbbbb", label="copy"))
    if handles:
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(handles), borderaxespad=0.2)


def _colours(count: int) -> np.ndarray:
    """float[count, 4]: a colour for each chunk."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba

    if count <= _PLAIN:
        return np.array([to_rgba(colour) for colour in FILLS[:count]])
    return colormaps["turbo"](np.linspace(0.04, 0.96, count))


def _numbers(axes, schedule: Schedule, chunk, start, end, lane, colours) -> None:
    """The number of its chunk in every bar that is wide enough for it."""
    span = max(float(end.max()), 1e-12)
    # A bar's width in points, of the 410 that the panel has, and the room that its digits take.
    room = (end - start) / span * 410
    digits = np.array([len(str(c)) for c in chunk.tolist()])
    size = 6.0
    shown = np.flatnonzero(room >= digits * size * 0.62 + 2)
    if len(shown) > 1500:
        return
    for row in shown.tolist():
        red, green, blue = colours[chunk[row]][:3]
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            (start[row] + end[row]) / 2, lane[row], str(int(chunk[row])), ha="center", va="center", fontsize=size,
            color="white" if dark else "black", clip_on=True,
            bbox={"facecolor": colours[chunk[row]], "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip


def _map(figure, axes, schedule: Schedule, resource, start, end, factor: float) -> None:
    """Share of the links into each NPU in use, over time."""
    network, topology = schedule.network, schedule.network.topology
    rank_of = np.full(topology.vertices, -1, dtype=np.int64)
    rank_of[list(network.npus)] = np.arange(network.ranks)
    head = rank_of[topology.dst[network.links]]
    per_row = -(-network.ranks // MAX_ROWS)
    rows = -(-network.ranks // per_row)
    ours = head[resource] >= 0
    row = head[resource[ours]] // per_row
    ports = np.bincount(head[head >= 0] // per_row, minlength=rows)
    share = _holds(row, start[ours], end[ours], rows, schedule.time) / np.maximum(ports, 1)[:, None]
    image = axes.imshow(
        share, aspect="auto", interpolation="nearest", origin="upper", cmap="cividis_r", vmin=0, vmax=1,
        extent=(0, schedule.time / factor, rows * per_row - 0.5, -0.5), rasterized=True,
    )  # fmt: skip
    axes.grid(False)
    members = "rank" if network.npus != tuple(range(network.ranks)) else "NPU"
    axes.set_ylabel(members if per_row == 1 else f"{members} ({per_row} a row)")
    axes.set_ylim(network.ranks - 0.5, -0.5)
    figure.colorbar(image, ax=axes, label="links into it in use", format="{x:.0%}", pad=0.01, aspect=30)


def _holds(row: np.ndarray, start: np.ndarray, end: np.ndarray, rows: int, time: int) -> np.ndarray:
    """float[rows, bins]: how many holds cover each bin of time, on average."""
    return coverage(row, start, end, rows, _BINS, time) * (_BINS / max(time, 1))


def _use(axes, schedule: Schedule, links: int, start, end, factor: float) -> None:
    """Share of links in use and of transfers delivered, over time."""
    if len(start) <= 20_000:
        moments = np.concatenate([start, end])
        change = np.repeat([1, -1], len(start))
        order = np.argsort(moments, kind="stable")
        times, last = np.unique(moments[order], return_index=True)
        count = np.add.reduceat(change[order], last).cumsum()
        time, share = np.append(times, schedule.time) / factor, np.append(count, 0) / links
    else:
        shares = _holds(np.zeros(len(start), dtype=np.int64), start, end, 1, schedule.time)[0] / links
        time, share = np.linspace(0, schedule.time / factor, _BINS + 1), np.append(shares, shares[-1])
    axes.fill_between(time, 100 * share, step="post", color=SKY, linewidth=0, label="links in use")
    moments = np.unique(schedule.arrival)
    arrived = np.searchsorted(np.sort(schedule.arrival), moments, side="right") / schedule.transfers
    if len(moments) > 4 * _BINS:
        indices = np.unique(np.linspace(0, len(moments) - 1, 4 * _BINS).astype(np.int64))
        moments, arrived = moments[indices], arrived[indices]
    axes.step(
        np.append(0, moments) / factor, 100 * np.append(0, arrived), where="post", color=VERMILION, linewidth=1.4,
        label="transfers that have arrived",
    )  # fmt: skip
    if schedule.bound:
        axes.axvline(schedule.bound / factor, color=GREY, linewidth=1.0, linestyle=(0, (4, 2)), label="lower bound")
    axes.set_ylim(0, 104)
    axes.set_ylabel("%")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
