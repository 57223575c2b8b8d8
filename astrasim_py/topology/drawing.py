"""Drawing of networks with matplotlib."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

#: Style of failed links.
FAILED = {"color": "#D55E00", "linestyle": (0, (2, 2)), "linewidth": 1.4}


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
) -> None:
    """Draw vertices and links into axes.

    `x`, `y`, `switch`, `names`: by vertex: place, whether it is a switch, name. `src`, `dst`: by link. `use`: share of
    the time that each link was busy, -1 where it carried nothing; `colours`: the scale for it, a matplotlib Normalize;
    without `use` all links look the same. `npus`: NPU → its colour. `failed`: whether each link failed at
    some time.
    """
    from matplotlib.collections import LineCollection, PolyCollection

    axes.set_aspect("equal")
    axes.axis("off")
    paths = _paths(x, y, src, dst)
    span = max(np.ptp(x), np.ptp(y), 1.0)
    thick = float(np.clip(60.0 / math.sqrt(max(len(src), 1)), 0.7, 2.6))
    drawn, wide = np.arange(len(src)), np.full(len(src), 0.6 * thick)
    if use is not None:
        idle = use < 0
        axes.add_collection(LineCollection(paths[idle], colors="#e0e0e0", linewidths=0.6, zorder=1))
        drawn = np.flatnonzero(~idle)[np.argsort(use[~idle], kind="stable")]
        wide = thick * (0.5 + 0.8 * use[drawn])
    look = {"colors": "#777777"} if use is None else {"cmap": "cividis_r", "norm": colours}
    fill = {"facecolors": "#777777"} if use is None else look
    parts = [LineCollection(paths[drawn], linewidths=wide, zorder=2, **look)]
    if len(drawn) <= 800:
        parts.append(PolyCollection(_heads(paths[drawn], span), linewidths=0, zorder=3, **fill))
    for part in parts:
        if use is not None:
            part.set_array(use[drawn])
        axes.add_collection(part)
    if failed is not None:
        axes.add_collection(LineCollection(paths[failed], zorder=3, **FAILED))
    size = float(np.clip(4600 / max(len(x), 1), 6, 190))
    inside = [(npus or {}).get(v, "white") for v in np.flatnonzero(~switch).tolist()]
    axes.scatter(x[~switch], y[~switch], s=size, c="white", linewidths=0, zorder=4)
    axes.scatter(x[~switch], y[~switch], s=size, c=inside, edgecolors="#333333", linewidths=0.8, zorder=4)
    axes.scatter(x[switch], y[switch], s=size, c="#dddddd", marker="s", edgecolors="#333333", lw=0.8, zorder=4)
    if len(x) <= 72:
        font = 7.5 if len(x) <= 36 else 5.5
        for name, a, b, is_switch in zip(names, x.tolist(), y.tolist(), switch.tolist(), strict=True):
            if not is_switch:
                axes.text(a, b, name, ha="center", va="center", fontsize=font, zorder=5)
    margin = 0.07 * span + 0.25
    for shown, place, curve in ((axes.set_xlim, x, paths[..., 0]), (axes.set_ylim, y, paths[..., 1])):
        every = curve if curve.size else place
        shown(every.min() - margin, every.max() + margin)


def spread(
    x: np.ndarray, y: np.ndarray, switch: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Places of vertices: as given, or where there are none (NaN) in tiers by distance from the NPUs."""
    if not np.isnan(x).any():
        return x, y
    tier = np.where(switch, -1, 0)
    for level in range(1, len(tier)):
        below = tier == level - 1
        reached = np.unique(dst[below[src]])
        reached = reached[tier[reached] < 0]
        if not len(reached):
            break
        tier[reached] = level
    tier[tier < 0] = tier.max() + 1
    widest = int(np.bincount(tier).max())
    if tier.max() == 0:  # NPUs only: a circle
        angle = np.pi / 2 - 2 * np.pi * np.arange(len(tier)) / len(tier)
        return np.cos(angle) * len(tier) / 6, np.sin(angle) * len(tier) / 6
    for level in np.unique(tier):
        mine = np.flatnonzero(tier == level)
        x[mine] = (np.arange(len(mine)) + 0.5) * widest / len(mine)
        y[mine] = level * max(widest / 3, 1.0)
    return x, y


def _paths(x: np.ndarray, y: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Curves float[links, 25, 2]: bent to the right, more so where they would run over other vertices."""
    ax, ay, bx, by = x[src], y[src], x[dst], y[dst]
    dx, dy = bx - ax, by - ay
    length = np.hypot(dx, dy)
    near = np.partition(length[length > 0], 0)[0] if (length > 0).any() else 1.0
    # Wraparound links of a grid span many vertices: a wider arc keeps them off the row that they cross.
    bend = np.where(length > 1.6 * near, 0.16 * length + 0.12 * near, 0.11 * length)
    scale = np.divide(bend, length, out=np.zeros_like(length), where=length > 0)
    cx, cy = (ax + bx) / 2 + dy * scale, (ay + by) / 2 - dx * scale
    t = np.linspace(0.0, 1.0, 25)[None, :]
    curve = [
        (1 - t) ** 2 * p[:, None] + 2 * t * (1 - t) * q[:, None] + t**2 * r[:, None]
        for p, q, r in ((ax, cx, bx), (ay, cy, by))
    ]
    return np.stack(curve, axis=-1)


def _heads(paths: np.ndarray, span: float) -> np.ndarray:
    """Arrow heads a little past the middle of each curve."""
    tip, back = paths[:, 15], paths[:, 14]
    direction = tip - back
    norm = np.maximum(np.hypot(direction[:, 0], direction[:, 1]), 1e-12)[:, None]
    direction = direction / norm
    side = np.stack([-direction[:, 1], direction[:, 0]], axis=-1)
    reach = np.hypot(*(paths[:, -1] - paths[:, 0]).T)[:, None]
    size = np.minimum(0.022 * span + 0.03, 0.28 * reach)
    return np.stack([tip + direction * size, tip - side * size * 0.55, tip + side * size * 0.55], axis=1)
