"""The look of figures: the same bytes on every run, whatever the user's matplotlibrc says.

Colours are those of Okabe and Ito (2008), told apart by colour-blind readers; markers and dashes differ as well,
and series that coincide are drawn inside each other, so that each is seen.
"""

import io
import math
import textwrap
from collections.abc import Mapping
from contextlib import contextmanager

from astrasim_py.core.errors import UsageError
from astrasim_py.core.units import format_time

FORMATS = ("svg", "png")
#: Okabe & Ito, "Color Universal Design" (2008); yellow last, for it is faint on white.
PALETTE = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ((0, ()), (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 3)))
GREY = "#666666"
_STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 160.0,
    "svg.hashsalt": "astrasim_py",
    "svg.fonttype": "path",
    "text.parse_math": False,
}
_METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}
_MAX_TEXT = 60
_MAX_TITLE = 200


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


def clean(text: object, most: int = _MAX_TEXT) -> str:
    """Text of the user's for a figure: one line, printable, not too long."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    return line if len(line) <= most else line[: most - 1] + "…"


def set_heading(figure, text: object) -> None:
    """Write a heading over a figure, in as many lines as it takes."""
    if text:
        figure.suptitle(_wrapped(text, figure.get_figwidth(), 12), fontsize=12)


def set_title(axes, text: object) -> None:
    """Write a title over a panel, in as many lines as it takes."""
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    axes.set_title(_wrapped(text, axes.figure.get_figwidth() / columns, 10.5))


def _wrapped(text: object, inches: float, points: float) -> str:
    return textwrap.fill(clean(text, _MAX_TITLE), max(int(115 * inches / points), 16))


def render(figure, form: str, about: Mapping[str, str]) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format=form, metadata={**_METADATA[form], **about})
    return stream.getvalue()


def canvas(panels: int, heading: str, *, width: float = 3.9, height: float = 3.8, columns: int = 4, on=None, **share):
    """A figure and its panels. `on`: Axes of the user's to take as the only panel, or what makes a figure. Raises
    UsageError: several panels for one Axes.
    """
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    panels = max(panels, 1)
    if isinstance(on, Axes):
        if panels > 1:
            raise UsageError("ax", f"{panels} panels do not fit into one Axes", "leave ax out, or choose with where")
        if heading:
            on.set_title(clean(heading, _MAX_TITLE))
        return on.figure, [on]
    columns = min(columns, panels)
    lines = math.ceil(panels / columns)
    figure = (on or Figure)(
        figsize=(width * columns + (1.6 if columns == 1 else 0.6), height * lines), layout="constrained"
    )
    set_heading(figure, heading)
    axes = figure.subplots(lines, columns, squeeze=False, **share).ravel().tolist()
    for unused in axes[panels:]:
        unused.set_visible(False)
    return figure, axes[:panels]


def time_ticks(axis, most: int | None = None) -> None:
    """Label an axis of ps with times, at no more than `most` ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_formatter(FuncFormatter(lambda ps, _: format_time(int(ps)) if ps >= 1 else "0"))
    if most is not None:
        axis.set_major_locator(MaxNLocator(most))


def say_nothing_finished(axes) -> None:
    axes.text(0.5, 0.5, "no finished points", ha="center", va="center", transform=axes.transAxes, color=GREY)
    axes.set_xticks([])
    axes.set_yticks([])


def pen(index: int, count: int) -> dict:
    """Line style of a series: later lines are thinner and lie inside earlier ones, so equal curves stay visible."""
    share = index / max(count - 1, 1)
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 10.0 - 5.5 * share if count > 1 else 6.0,
        "markerfacecolor": "white" if index % 2 == 0 else PALETTE[index % len(PALETTE)],
        "markeredgewidth": 1.3,
        "linewidth": 3.2 - 1.8 * share if count > 1 else 1.8,
        "linestyle": DASHES[0] if index == 0 else DASHES[(index - 1) % (len(DASHES) - 1) + 1],
        "zorder": 3 + share,
    }


def legend_below(figure, entries, on=None) -> None:
    """A legend below the figure, or inside Axes of the user's (see `canvas`)."""
    from matplotlib.axes import Axes

    if isinstance(on, Axes):
        on.legend([line for line, _ in entries], [label for _, label in entries], fontsize="small")
        return
    longest = max(len(label) for _, label in entries)
    columns = max(1, min(len(entries), int(figure.get_figwidth() * 11 / (longest + 6))))
    figure.legend(
        [line for line, _ in entries],
        [label for _, label in entries],
        loc="outside lower center",
        ncols=columns,
        handlelength=3.2,
        title=None,
    )
