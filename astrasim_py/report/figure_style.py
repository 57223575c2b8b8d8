"""The look of figures: the same bytes on every run, whatever the user's matplotlibrc says.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), and five more that colour-blind readers tell apart
from them and from each other; markers and dashes differ as well. The page (`report.page.palette`) has the same ones.
"""

import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from astrasim_py.core.errors import UsageError
from astrasim_py.scenario.plot_spec import WIDTHS

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

FORMATS = ("svg", "png")
BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
VIOLET, BROWN, LIME, CRIMSON, NAVY = "#7B4FE0", "#5C3A00", "#9FD18B", "#E01048", "#1B3A57"
#: Of series, strong colours first.
COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, VIOLET, BROWN, LIME, CRIMSON, NAVY)
#: Of areas; without those that hide black text.
FILLS = (ORANGE, SKY, GREEN, BLUE, VERMILION, PINK, LIME, VIOLET, CRIMSON)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ((0, ()), (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 3)))
GREY = "#666666"
#: What a rank does, in figures and on the page: compute in blues, communication in the other colours.
COMPUTE_COLOURS = (BLUE, SKY, NAVY, "#B3D4EA")
COMMUNICATION_COLOURS = (ORANGE, VERMILION, PINK, GREEN, BROWN, VIOLET, CRIMSON, LIME)
#: Phases of a training step.
PHASE_COLOURS = dict(zip(("forward", "backward", "optimizer"), COMPUTE_COLOURS, strict=False))
MEMORY_COLOUR = "#F0E442"
SEND_COLOUR, RECEIVE_COLOUR, WAITING_COLOUR = "#8C564B", "#D0D0D0", "#d9d9d9"
#: Collectives that have a colour of their own wherever they are named by their type.
_TYPES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter")
TYPE_COLOURS = dict(zip(_TYPES, COMMUNICATION_COLOURS, strict=True))
#: Shares of the time that a link is busy, in steps from little to much: of matplotlib's cividis, as in figures of
#: links; on white, and on black.
USE_COLOURS = ("#dfca57", "#a39a74", "#6f7073", "#3b496c", "#00224e")
USE_COLOURS_ON_BLACK = ("#4f576c", "#777777", "#a19975", "#d1bf61", "#fee838")
#: Beside links that messages wait for.
QUEUE_COLOUR = SKY
#: Most entries of a legend; more series are named at their curves.
MOST_ENTRIES = 8
#: Size of text, points.
SMALL = 7.0
_STYLE: "dict[RcKeyType, Any]" = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.0,
    "figure.titlesize": 9.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.0,
    "patch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.5,
    "savefig.dpi": 300.0,
    "svg.hashsalt": "astrasim_py",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "text.parse_math": False,
}
_METADATA = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_MAX_TEXT = 60
_MAX_TITLE = 200
_INCH = 2.54  # cm


class Drawn(NamedTuple):
    """A figure: its panels, and the data they show, which are written as CSV. `notes`: what is missing, and why."""

    axes: Sequence[Any]
    table: Sequence[Mapping[str, object]] | Mapping
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a figure is drawn on. `on`: Axes of the user's to take as the only panel, or what makes a figure."""

    heading: str = ""
    width: str | float | None = None  # cm
    legend: str | None = None
    on: Any = None

    def panels(self, count: int, *, height: float = 2.1, columns: int | None = None, wide: bool = False, **share):
        """A figure and its panels: two in a row in the width of a column, else three, or four of many.

        `height`: of a panel, inches. `wide`: one panel takes the width of the text by default. Raises UsageError:
        several panels for one Axes.
        """
        from matplotlib.axes import Axes
        from matplotlib.figure import Figure

        count = max(count, 1)
        if isinstance(self.on, Axes):
            if count > 1:
                raise UsageError("ax", f"{count} panels do not fit into one Axes", "leave ax out, or choose with where")
            if self.heading:
                self.on.set_title(clean(self.heading, _MAX_TITLE))
            return self.on.figure, [self.on]
        width = self.inches(count, wide)
        columns = min(columns or self.columns(count), count)
        lines = math.ceil(count / columns)
        figure = (self.on or Figure)(figsize=(width, height * lines), layout="constrained")
        set_heading(figure, self.heading)
        axes = figure.subplots(lines, columns, squeeze=False, **share)
        for unused in axes.ravel()[count:]:
            unused.set_visible(False)
        for column in range(columns if lines > 1 and share.get("sharex") else 0):
            # The lowest panel of each column has the labels, also above an unused place.
            axes[(count - 1 - column) // columns, column].tick_params(axis="x", labelbottom=True)
        return figure, axes.ravel()[:count].tolist()

    def inches(self, count: int, wide: bool = False) -> float:
        """Width of a figure of so many panels."""
        width = self.width or ("column" if count == 1 and not wide else "text")
        return float(WIDTHS[width] if isinstance(width, str) else width) / _INCH

    def columns(self, count: int, least: float = 1.6) -> int:
        """How many of so many panels stand in a row; none is narrower than `least` inches."""
        limit = max(int(self.inches(count) / least), 1)
        return min(limit, max(count, 1), 2 if count == 4 else 3 if count <= 9 else 4)

    def title_height(self, titles: Sequence[str], columns: int) -> float:
        """Height of the lines of the panels' titles beyond the first, inches."""
        points = _room(self.inches(len(titles)) / columns)
        return 0.14 * max((_wrapped(title, points, 8.0).count("\n") for title in titles), default=0)

    def explain(self, axes: Sequence, entries: Sequence[tuple[Any, str]], title: str = "") -> None:
        """A legend beside the panels, never over them. `entries`: handles and their labels."""
        from matplotlib.axes import Axes

        if not entries or self.legend == "none":
            return
        handles, labels = [handle for handle, _ in entries], [label for _, label in entries]
        if not isinstance(self.on, Axes):
            labels = [
                shortened(label, int(72 * axes[0].figure.get_figwidth() / (0.62 * SMALL)) - 12) for label in labels
            ]
        look: dict[str, Any] = {"title": title or None, "handlelength": 2.6, "alignment": "left"}
        figure = axes[0].figure
        if isinstance(self.on, Axes):
            # Above: beside the panel it would leave it no width.
            room = max(0.7 * 72 * figure.get_figwidth() / columns_of(self.on), 60)
            columns, lines = _arranged(labels, room, 8.5, bool(title))
            look |= {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False, "fontsize": 8.5}
            self.on.legend(_by_row(handles, columns), _by_row(labels, columns), ncols=columns, **look)
            self.on.set_title(self.on.get_title(), pad=8 + lines * 1.5 * 8.5)
            return
        if self.legend == "right":
            figure.legend(handles, labels, loc="outside right center", **look)
            return
        columns, lines = _arranged(labels, 72 * figure.get_figwidth() - 12, SMALL, bool(title))
        figure.set_figheight(figure.get_figheight() + lines * 1.5 * SMALL / 72)
        figure.legend(
            _by_row(handles, columns), _by_row(labels, columns), loc="outside lower center", ncols=columns, **look
        )

    def legend_height(self, figure) -> float:
        """Points of a figure's height that the legend below its panels takes."""
        legends = () if self.legend == "right" else figure.legends
        return sum(72 * legend.get_window_extent().height / figure.dpi for legend in legends)


def columns_of(axes) -> int:
    place = axes.get_subplotspec()
    return place.get_gridspec().ncols if place else 1


def _arranged(labels: Sequence[str], room: float, size: float, title: bool) -> tuple[int, int]:
    """Columns and lines of a legend in so many points of width."""
    wide = [text_width(label, size) + (2.6 + 0.8 + 2.0) * size for label in labels]
    columns = next((n for n in range(len(wide), 1, -1) if sum(max(wide[i::n]) for i in range(n)) <= room), 1)
    return columns, math.ceil(len(labels) / columns) + title


def _by_row(entries: Sequence, columns: int) -> list:
    """Entries in such an order that a legend, which fills columns first, shows them row by row."""
    return [entry for column in range(columns) for entry in entries[column::columns]]


def text_width(text: str, size: float = SMALL) -> float:
    """Width of a text in our font, points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0]


@contextmanager
def our_style():
    """Apply our style, whatever the user's matplotlibrc says; only keys that differ are set."""
    import matplotlib

    defaults = matplotlib.rcParamsDefault
    foreign = {
        key: defaults[key]
        for key in defaults
        if not key.startswith(("backend", "webagg", "tk.", "toolbar", "interactive", "keymap", "date", "docstring"))
        and matplotlib.rcParams[key] != defaults[key]
    }
    with matplotlib.rc_context({**foreign, **_STYLE}):
        yield
        interactive = matplotlib.is_interactive()  # a backend that is loaded meanwhile says so, in notebooks
    matplotlib.interactive(interactive)


def clean(text: object, limit: int = _MAX_TEXT) -> str:
    """Text of the user's for a figure: one line, printable, not too long, with µs for us behind a number."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    line = re.sub(r"(?<=\d)( ?)us\b", r"\1µs", line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shortened(text: str, limit: int) -> str:
    """A name cut in its middle: names of a sweep often differ at their ends."""
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def set_heading(figure, text: object) -> None:
    """Write a heading over a figure, in as many lines as it takes."""
    if text:
        lines = _wrapped(text, 0.94 * 72 * figure.get_figwidth(), 9.0)
        figure.suptitle(lines, fontsize=9.0)
        figure.set_figheight(figure.get_figheight() + 0.16 * (1 + lines.count("\n")))


def set_title(axes, text: object, beside: float = 0.0) -> None:
    """Write a title over a panel, in as many lines as it takes. `beside`: points that something else takes."""
    axes.set_title(_wrapped(text, _room(axes.figure.get_figwidth() / columns_of(axes)) - beside, 8.0))


def _room(inches: float) -> float:
    """Width of the title of a panel, points; labels beside narrow panels take a larger part."""
    return 72 * inches - (20 if inches > 2 else 34)


def _wrapped(text: object, points: float, size: float) -> str:
    """Text in lines of so many points; a word that is wider is cut in its middle."""
    # No break between a key and its value, a number and its unit.
    line = re.sub(r"(?<=\d) (?=\D)|(?<=\S) (?==)|(?<==) ", "\u00a0", clean(text, _MAX_TITLE))
    lines: list[str] = []
    for word in re.split(" +", line):
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(joined, size) <= points:
            lines[-1] = joined
        else:
            lines.append(narrowed(word, points, size))
    return "\n".join(lines).replace("\u00a0", " ")


def narrowed(text: str, points: float, size: float = SMALL) -> str:
    """A text cut in its middle to at most so many points, but not below eight characters."""
    if (width := text_width(text, size)) <= points:
        return text
    limit = int(len(text) * points / width)
    while limit > 8 and text_width(shortened(text, limit), size) > points:
        limit -= 1
    return shortened(text, max(limit, 8))


def render(figure, form: str, about: Mapping[str, str]) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=form, metadata={**_METADATA[form], **about})
    if form != "svg":
        return stream.getvalue()
    # Verdana has the widths of DejaVu Sans, where that is missing.
    return stream.getvalue().replace(b"font-family: 'DejaVu Sans'", b"font-family: 'DejaVu Sans', Verdana, sans-serif")


def say(axes, text: str, *, empty: bool = False) -> None:
    """Write into a panel why it is empty. `empty`: it has no axes either."""
    lines = textwrap.fill(text, 34)
    axes.text(0.5, 0.5, lines, ha="center", va="center", transform=axes.transAxes, color=GREY, fontsize=SMALL)
    if empty:
        axes.set_xticks([])
        axes.set_yticks([])


def nothing(panels: Sequence, grid=None, reason: str = "") -> Drawn:
    """A figure without values, which says why. `grid`: its rows."""
    reason = reason if grid and grid.points else "no finished points"
    say(panels[0], reason, empty=True)
    return Drawn(panels, [], [*(grid.notes if grid else ()), reason])


def label(axes, x: str, y: str, below: float = 0.0) -> None:
    """Label the axes of a panel, but not those whose ticks are labelled at another one in its row or column.

    `below`: points of the figure's height that a legend takes.
    """
    place = axes.get_subplotspec()
    rows, columns = place.get_gridspec().get_geometry() if place else (1, 1)
    width, height = (72 * inches for inches in axes.figure.get_size_inches())
    if axes.xaxis.get_tick_params().get("labelbottom", True):
        axes.set_xlabel(_wrapped(x, width / columns - 40, 8.0))
    if axes.yaxis.get_tick_params().get("labelleft", True):
        axes.set_ylabel(_wrapped(y, (height - below) / rows - 24, 8.0))


def name_directly(axes, ends: Sequence[tuple[tuple[float, float], str, str]], log: bool, height: float) -> None:
    """Write names right of a panel, each beside the end of its curve, or as near as the others let it.

    `ends`: place, name and colour of each. `height`: of the panel, inches.
    """
    low, high = axes.get_ylim()
    scaled = math.log if log else float
    span = (scaled(high) - scaled(low)) or 1.0
    ends = sorted(ends, key=lambda end: end[0][1])
    apart = 1.25 * SMALL / (72 * max(height - 0.6, 0.5))
    places = _spread([(scaled(y) - scaled(low)) / span for (_, y), _, _ in ends], apart)
    for place, (end, name, colour) in zip(places, ends, strict=True):
        look = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
        axes.annotate(
            shortened(name, 40), end, (1.08, place), textcoords="axes fraction", annotation_clip=False, va="center",
            ha="left", fontsize=SMALL, color=colour, arrowprops=look,
        )  # fmt: skip


def _spread(places: Sequence[float], apart: float) -> list[float]:
    """Ascending places from 0 to 1, moved so far that neighbours are so far apart; clusters spread around their middle,
    inside 0 to 1 as far as there is room.
    """
    groups: list[tuple[float, int]] = []  # middle, members
    for place in places:
        groups.append((_inside(place, 1, apart), 1))
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < apart * (groups[-1][1] + groups[-2][1]) / 2:
            (below, members), (middle, count) = groups[-2:]
            total = members + count
            groups[-2:] = [(_inside((middle * count + below * members) / total, total, apart), total)]
    return [middle + apart * (i - (count - 1) / 2) for middle, count in groups for i in range(count)]


def _inside(middle: float, count: int, apart: float) -> float:
    half = min(apart * (count - 1) / 2, 0.5)
    return min(max(middle, half), 1 - half)


def pen(index: int, count: int) -> dict:
    """Line style of a series: all lines are equally thick; later markers are smaller, so equal curves stay visible."""
    share = index / max(count - 1, 1)
    colour = COLOURS[index % len(COLOURS)]
    return {
        "color": colour,
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 5.0 - 2.0 * share,
        "markerfacecolor": "white" if index % 2 == 0 else colour,
        "markeredgewidth": 0.9,
        "linestyle": DASHES[0] if index == 0 else DASHES[(index - 1) % (len(DASHES) - 1) + 1],
        "zorder": 3 + share,
    }
