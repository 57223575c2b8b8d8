"""Places of vertices in drawings: of regular topologies by their structure, of others by their distances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.topology.routing import DimensionOrder

if TYPE_CHECKING:
    from astrasim_py.topology.fabrics import Dragonfly

#: More vertices than this, without natural places, are put into tiers or on a circle.
_MOST_BY_DISTANCE = 400
#: More NPUs in a tier than this stand in two rows or more.
_ROW = 16


def positions(topology) -> tuple[np.ndarray, np.ndarray] | None:
    """Coordinates (x, y), float64[vertices] each, or None if the topology has no natural drawing.

    One dimension: a circle (a mesh: a line). Two: a grid, dim 0 to the right and dim 1 up. Dim 2 goes backwards, as in
    a drawing of a cube; dims 3, 5, … repeat the picture to the right, dims 4, 6, … upwards. Switches of a dimension sit
    in the middle of their slice. Tiered networks are drawn tier over tier, DGX-like nodes below their NPUs, the groups
    of a dragonfly on a circle.
    """
    router = topology.router
    if isinstance(router, DimensionOrder):
        wide = [d for d in topology.dims if d.size > 1]
        if len(wide) > 1 and all(d.kind == "switch" for d in wide):
            return _tiers((topology.npus, *(count for _, count in topology.switches)), wide[0].size, below=1)
        return _grid(topology)
    from astrasim_py.topology.fabrics import Dragonfly, Rails, Tree

    if isinstance(router, Rails) and router.nodes == 1:
        x, y = _circle(topology.npus, topology.npus / (2 * np.pi))
        return np.append(x, np.zeros(topology.vertices - len(x))), np.append(y, np.zeros(topology.vertices - len(y)))
    if isinstance(router, Rails):
        return _tiers(
            (topology.npus, *(count for _, count in topology.switches)), router.local, below=int(router.local > 1)
        )
    if isinstance(router, Tree):
        return _tiers((topology.npus, *(count for _, count in topology.switches)), router.hosts)
    if isinstance(router, Dragonfly):
        return _dragonfly(router)
    return None


def _circle(count: int, radius: float, turn: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Clockwise from the top. `turn`: of each point, as parts of a whole turn; evenly by default."""
    angle = np.pi / 2 - 2 * np.pi * (np.arange(count) / count if turn is None else turn)
    return radius * np.cos(angle), radius * np.sin(angle)


def _grid(topology) -> tuple[np.ndarray, np.ndarray]:
    ids = np.arange(topology.npus)
    wide = [d for d in topology.dims if d.size > 1]
    x, y = np.zeros(topology.npus), np.zeros(topology.npus)
    if len(wide) == 1 and wide[0].kind != "mesh":
        x, y = _circle(topology.npus, topology.npus / (2 * np.pi))
    else:
        # Dim 2 stays inside the cells of the grid: each has a diagonal of so many vertices.
        deep = wide[2].size if len(wide) > 2 else 1
        cell = 1.0 if deep == 1 else 0.5 * deep + 0.7
        width, height, stride = 1.0, 1.0, 1
        for index, dim in enumerate(wide):
            if index < 3:
                dx, dy = ((cell, 0.0), (0.0, cell), (0.55, 0.38))[index]
            elif index % 2:
                dx, dy = width + 0.8, 0.5
            else:
                dx, dy = 0.5, height + 0.8
            coordinate = ids // stride % dim.size
            x, y = x + dx * coordinate, y + dy * coordinate
            width, height = max(width, np.ptp(x) + 1), max(height, np.ptp(y) + 1)
            stride *= dim.size
    middle_x, middle_y, stride = [], [], 1
    for index, dim in enumerate(topology.dims):
        if dim.kind == "switch" and dim.size > 1:
            # Axes (slice above, coordinate, slice below) in the order of switch numbers.
            shape = (-1, dim.size, stride)
            # Between rows and columns; the middle of an even number of them is between two already.
            beside, along = (0.5 + 0.07 * index, 0.5 * (dim.size % 2)) if len(wide) > 1 else (0.0, 0.0)
            middle_x.append(x.reshape(shape).mean(axis=1).ravel() + (beside if index else along))
            middle_y.append(y.reshape(shape).mean(axis=1).ravel() + (along if index else beside))
        stride *= dim.size
    return np.concatenate([x, *middle_x]), np.concatenate([y, *middle_y])


def _tiers(tiers: tuple[int, ...], group: int, below: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """NPUs, in groups with a gap between them, and switches tier over tier; the first `below` tiers under the NPUs."""
    npus, *switches = tiers
    ids = np.arange(npus)
    x = [ids + 0.8 * (ids // max(group, 1))]
    width = x[0][-1] + 1
    rows = min(-(-npus // _ROW), 4)
    y = [-0.75 * rows * (ids % max(group, 1) % rows)]
    step = max(width / 3.5, 2.0)
    for level, count in enumerate(switches):
        up = -(level + 1) * step + y[0].min() if level < below else (level + 1 - below) * step
        x.append((np.arange(count) + 0.5) * width / count - 0.5)
        y.append(np.full(count, up))
    return np.concatenate(x), np.concatenate(y)


def _dragonfly(router: Dragonfly) -> tuple[np.ndarray, np.ndarray]:
    """NPUs on a circle, inside of it their routers, with gaps between groups."""
    per_group = router.a * router.p
    ids = np.arange(router.npus)
    turn = (ids + 1.5 * (ids // per_group)) / (router.npus + 1.5 * router.g)
    outside = _circle(router.npus, router.npus / 5 + 1, turn)
    inside = _circle(router.routers, router.npus / 6.8 + 0.7, turn.reshape(router.routers, -1).mean(axis=1))
    return np.concatenate([outside[0], inside[0]]), np.concatenate([outside[1], inside[1]])


def spread(
    x: np.ndarray, y: np.ndarray, switch: np.ndarray, src: np.ndarray, dst: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Places of vertices: as given, or where there are none (NaN) in tiers by distance from the NPUs, if links join
    neighbouring tiers alone; else so that distances in the drawing are like those in the network.
    """
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
    tiered = switch.sum() > 1 and (np.abs(tier[src] - tier[dst]) == 1).all()
    if len(tier) <= _MOST_BY_DISTANCE and not tiered:
        from astrasim_py.topology.irregular import by_distance

        return by_distance(len(tier), src, dst)
    if tier.max() == 0:
        return _circle(len(tier), len(tier) / 6)
    x, y = np.zeros(len(tier)), np.zeros(len(tier))
    widest = int(np.bincount(tier).max())
    for level in np.unique(tier):
        level_rows = np.flatnonzero(tier == level)
        x[level_rows] = (np.arange(len(level_rows)) + 0.5) * widest / len(level_rows)
        y[level_rows] = level * max(widest / 3, 1.0)
    return x, y
