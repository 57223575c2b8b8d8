"""Drawing of networks with matplotlib."""

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

#: How links that failed are drawn, and switches that compute.
FAILED: dict[str, Any] = {"color": "#D55E00", "linestyle": (0, (2, 2)), "linewidth": 1.2}
COMPUTING: dict[str, Any] = {"facecolor": "#F0E442", "edgecolor": "#333333"}
_SWITCH, _LINE, _IDLE = "#dddddd", "#777777", "#dcdcdc"
#: What marks a link that is gone.
CROSS: dict[str, Any] = {
    "color": FAILED["color"],
    "marker": "x",
    "markersize": 6,
    "markeredgewidth": 1.6,
    "linestyle": "",
}
#: Largest diameter of a vertex, largest and smallest size of numbers in it, points.
_LARGE, _FONT, _SMALL = 16.0, 7.0, 4.4
#: More links have no heads of arrows; longest and shortest head, points.
_MOST_HEADS, _HEAD, _SHORTEST = 320, 4.0, 1.2


def draw_network(
    axes,
    x: np.ndarray,
    y: np.ndarray,
    switch: np.ndarray,
    names: Sequence[str],
    src: np.ndarray,
    dst: np.ndarray,
    use: np.ndarray | None = None,
    colours=None,
    npus: Mapping[int, object] | None = None,
    failed: np.ndarray | None = None,
    computing: Collection[str] = (),
    cut: Sequence[tuple[int, int]] = (),
) -> None:
    """Draw vertices and links into axes.

    `x`, `y`, `switch`, `names`: by vertex: place, whether it is a switch, name. `src`, `dst`: by link. `use`: share of
    the time that each link was busy, -1 where it carried nothing; `colours`: the scale for it, a matplotlib Normalize;
    without `use` all links look the same, and two of opposite directions are one line. `npus`: NPU → its colour.
    `failed`: whether each link failed at some time. `computing`: names of switches that took part in collectives.
    `cut`: ends of links that are gone; they are drawn dashed, with a cross.

    A link around a row of vertices, from its last one to its first one, is drawn as two ends that leave the row.
    """
    from matplotlib.collections import Collection, LineCollection, PolyCollection

    axes.set_aspect("equal")
    axes.axis("off")
    unit = _points(axes, x, y)
    size = _diameter(x, y, unit)
    two_way = np.isin(src.astype(np.int64) * len(x) + dst, dst.astype(np.int64) * len(x) + src)
    gone = np.array(sorted({(min(pair), max(pair)) for pair in cut}), dtype=src.dtype).reshape(-1, 2)
    beside = np.append((1.5 if use is not None else 0.0) / unit * two_way, np.zeros(len(gone)))
    paths = _paths(x, y, np.append(src, gone[:, 0]), np.append(dst, gone[:, 1]), beside, (0.5 * size + 7) / unit)
    paths, paths_cut = paths[: len(src)], paths[len(src) :]
    wide = 1.3 if len(src) <= 200 else 0.9 if len(src) <= 800 else 0.5
    rows = np.flatnonzero(~two_way | (src < dst)) if use is None else np.flatnonzero(use >= 0)
    if use is not None:
        rows = rows[np.argsort(use[rows], kind="stable")]
        axes.add_collection(LineCollection(list(paths[use < 0]), colors=_IDLE, linewidths=0.6, zorder=1))
    look = {"colors": _LINE} if use is None else {"cmap": "cividis_r", "norm": colours}
    fill = {"facecolors": _LINE} if use is None else look
    parts: list[Collection] = [LineCollection(list(paths[rows]), linewidths=wide, zorder=2, capstyle="butt", **look)]
    headed = rows[~two_way[rows]] if use is None else rows if len(rows) <= _MOST_HEADS else rows[:0]
    heads = _heads(paths[headed], size / unit, _HEAD / unit, _SHORTEST / unit)
    long = np.isfinite(heads).all(axis=(1, 2))
    parts.append(PolyCollection(heads[long], linewidths=0, zorder=3, **fill))
    for part, links in zip(parts, (rows, headed[long]), strict=True):
        if use is not None:
            part.set_array(use[links])
        axes.add_collection(part)
    if failed is not None:
        axes.add_collection(LineCollection(list(paths[failed]), zorder=3, **FAILED))
    if len(gone):
        axes.add_collection(LineCollection(list(paths_cut), zorder=3, **FAILED))
        axes.plot(*_middle(paths_cut).T, zorder=3.5, label="link that is down", **CROSS)
    inside = [(npus or {}).get(v, "white") for v in np.flatnonzero(~switch).tolist()]
    works = np.isin(np.array(names, dtype=object), list(computing)) & switch
    rim = min(0.8, 0.08 * size)
    axes.scatter(x[~switch], y[~switch], s=size**2, c="white", linewidths=0, zorder=4)
    axes.scatter(x[~switch], y[~switch], s=size**2, c=inside, edgecolors="#333333", linewidths=rim, zorder=4)
    for subset, face in ((switch & ~works, _SWITCH), (works, COMPUTING["facecolor"])):
        axes.scatter(x[subset], y[subset], s=size**2, c=face, marker="s", edgecolors="#333333", lw=rim, zorder=4)
    _name(axes, x, y, switch, names, size, unit)
    margin = (0.5 * size + 3) / unit
    for shown, place, curve in ((axes.set_xlim, x, paths[..., 0]), (axes.set_ylim, y, paths[..., 1])):
        every = np.concatenate([place, curve[np.isfinite(curve)]])
        shown(every.min() - margin, every.max() + margin)


def _points(axes, x: np.ndarray, y: np.ndarray) -> float:
    """About how many points a unit of the drawing takes."""
    box = axes.get_window_extent()
    points = 72 / axes.figure.dpi
    wide, tall = np.ptp(x) + 1.0, np.ptp(y) + 1.0
    return max(min(0.9 * box.width * points / wide, 0.9 * box.height * points / tall), 1e-3)


def _diameter(x: np.ndarray, y: np.ndarray, unit: float) -> float:
    """Diameter of vertices, points: they do not touch."""
    near = _nearest(x, y)
    return float(np.clip(0.62 * near * unit, 2.0, _LARGE))


def _nearest(x: np.ndarray, y: np.ndarray) -> float:
    """The distance of neighbouring vertices, of the first two thousand; a tenth of them may be closer."""
    x, y = x[:2000], y[:2000]
    if len(x) < 2:
        return 1.0
    apart = np.hypot(x[:, None] - x, y[:, None] - y)
    np.fill_diagonal(apart, np.inf)
    return max(float(np.percentile(apart.min(axis=1), 10)), 1e-3)


def _name(axes, x, y, switch, names, size: float, unit: float) -> None:
    """Numbers in NPUs, and names of switches: beside them where there is room, else their numbers inside of them."""
    from matplotlib import patheffects

    halo = [patheffects.withStroke(linewidth=1.6, foreground="white")]

    def inside(chosen: Sequence[int], texts: Sequence[str]) -> bool:
        longest = max(map(len, texts), default=1)
        font = min(_FONT, 0.9 * size / (0.64 * max(longest, 1.4)))
        if font < _SMALL:
            return False
        for vertex, text in zip(chosen, texts, strict=True):
            axes.text(x[vertex], y[vertex], text, ha="center", va="center_baseline", fontsize=font, zorder=5)
        return True

    npus = np.flatnonzero(~switch)
    if not inside(npus.tolist(), [names[v] for v in npus.tolist()]):
        _name_some(axes, x, y, npus, names, size, halo)
    blocks: dict[str, list[int]] = {}
    for vertex in np.flatnonzero(switch).tolist():
        blocks.setdefault(re.sub(r"\d+$", "", names[vertex]), []).append(vertex)
    others = []
    for prefix, members in blocks.items():
        wide = max(len(names[v]) for v in members) * 0.62 * 6.0
        if len(members) == 1 or _nearest(x[members], y[members]) * unit >= max(wide, 12.0):
            top = y[members].max() >= y.max() - 1e-9
            for vertex in members:
                up = top or y[vertex] > np.median(y)
                axes.annotate(
                    names[vertex], (x[vertex], y[vertex]), xytext=(0, (0.5 if up else -0.5) * size + (2 if up else -2)),
                    textcoords="offset points", ha="center", va="bottom" if up else "top", fontsize=6.0, zorder=6,
                    path_effects=halo,
                )  # fmt: skip
            continue
        inside(members, [names[v][len(prefix) :] for v in members])
        others.append(f"{names[members[0]]}–{names[members[-1]][len(prefix) :]}")
    if others:
        axes.text(
            0.5, -0.01, f"squares: {', '.join(others)}", transform=axes.transAxes, ha="center", va="top", fontsize=6.0
        )


def _name_some(axes, x, y, npus, names, size: float, halo) -> None:
    """Numbers beside about a dozen NPUs; outside of those on a circle."""
    dx, dy = x[npus] - x[npus].mean(), y[npus] - y[npus].mean()
    radius = np.hypot(dx, dy)
    round_ = np.ptp(radius) < 0.1 * radius.max()
    step = 1 << max(int(np.ceil(np.log2(len(npus) / 16))), 0)
    for index in range(0, len(npus), step):
        ahead = np.array([dx[index], dy[index]]) / radius[index] if round_ else np.array([0.75, 0.75])
        axes.annotate(
            names[npus[index]], (x[npus[index]], y[npus[index]]), xytext=tuple(ahead * (0.5 * size + 4.5)), ha="center",
            textcoords="offset points", va="center", fontsize=5.5, zorder=6, path_effects=halo,
        )  # fmt: skip


def _paths(x, y, src, dst, offset: np.ndarray, stub: float) -> np.ndarray:
    """Curves float[links, 25, 2], a little to the right of the straight line: so the two directions of a cable stand
    side by side. Links that would run over vertices are bent, or leave their row where they lead around it.
    """
    a, b = np.stack([x[src], y[src]], axis=1), np.stack([x[dst], y[dst]], axis=1)
    along = b - a
    length = np.maximum(np.hypot(*along.T), 1e-12)
    ahead = along / length[:, None]
    right = np.stack([ahead[:, 1], -ahead[:, 0]], axis=1)
    over, around = _over(x, y, a, ahead, length, src, dst)
    t = np.linspace(0.0, 1.0, 25)[None, :, None]
    bend = np.where(over, 0.16 * length + 0.12, 0.0)
    paths = a[:, None] + along[:, None] * t + right[:, None] * (bend[:, None, None] * 2 * t * (1 - t))
    ends = np.linspace(0.0, 1.0, 12)[None, :, None] * stub * ahead[:, None]
    paths[around, :12] = (a[:, None] - ends)[around]
    paths[around, 12] = np.nan
    paths[around, 13:] = (b[:, None] + ends[:, ::-1])[around]
    return paths + right[:, None] * offset[:, None, None]


def _over(x, y, a, ahead, length, src, dst) -> tuple[np.ndarray, np.ndarray]:
    """Which links run over vertices and are bent, and which lead around a row and are cut.

    The latter join the two ends of an even row of vertices, each linked to the next one, and nothing else skips
    vertices of it.
    """
    over, around = np.zeros(len(src), dtype=bool), np.zeros(len(src), dtype=bool)
    near = _nearest(x, y)
    rows: dict[tuple, list[int]] = {}
    linked = set(zip(src.tolist(), dst.tolist(), strict=True))
    for link in np.flatnonzero(length > 1.5 * near).tolist() if len(src) <= 20_000 else ():
        dx, dy = x - a[link, 0], y - a[link, 1]
        along = dx * ahead[link, 0] + dy * ahead[link, 1]
        beside = np.flatnonzero(np.abs(dx * ahead[link, 1] - dy * ahead[link, 0]) < 0.02 * near)
        beside = beside[np.argsort(along[beside], kind="stable")]
        between = beside[(along[beside] > 0.1 * near) & (along[beside] < length[link] - 0.1 * near)]
        if not len(between):
            continue
        over[link] = True
        row = beside.tolist()
        even = np.ptp(np.diff(along[beside])) < 0.02 * near
        chained = even and all(pair in linked or pair[::-1] in linked for pair in pairwise(row))
        complete = chained and row[0] == src[link] and row[-1] == dst[link]
        rows.setdefault(tuple(sorted(row)), []).append(link if complete else -1)
    for links in rows.values():
        if min(links) >= 0:
            around[links] = True
    return over & ~around, around


def _heads(paths: np.ndarray, vertex: float, longest: float, shortest: float) -> np.ndarray:
    """Arrow heads a little past the middle of each curve, those of short curves shorter, so that none is behind a
    vertex of that diameter; NaN where one could not be seen.
    """
    cut = np.isnan(paths[:, 12, 0])
    middle = _middle(paths)
    direction = np.where(cut[:, None], paths[:, 15] - paths[:, 14], paths[:, 13] - paths[:, 11])
    direction = direction / np.maximum(np.hypot(*direction.T), 1e-12)[:, None]
    side = np.stack([-direction[:, 1], direction[:, 0]], axis=-1)
    seen = np.where(cut, 3 * longest, np.hypot(*(paths[:, -1] - paths[:, 0]).T) - vertex)
    # Most of a head is past the middle: those of both directions do not cover each other.
    sizes = np.minimum(longest, 0.6 * seen)
    sizes = np.where(sizes >= shortest, sizes, np.nan)[:, None]
    tip, back = middle + direction * sizes * 5 / 6, middle - direction * sizes / 6
    return np.stack([tip, back - side * sizes * 0.5, back + side * sizes * 0.5], axis=1)


def _middle(paths: np.ndarray) -> np.ndarray:
    """The middle of each curve; of one that is cut, that of its end."""
    return np.where(np.isnan(paths[:, 12]), paths[:, 15], paths[:, 12])
