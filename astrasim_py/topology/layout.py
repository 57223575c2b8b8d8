"""Coordinates for drawing regular topologies."""

import numpy as np

from astrasim_py.topology.fabrics import Rails, Tree
from astrasim_py.topology.routing import DimensionOrder


def positions(topology) -> tuple[np.ndarray, np.ndarray] | None:
    """Coordinates (x, y), float64[vertices] each, or None if the topology has no natural drawing.

    One dimension: a circle (a mesh: a line). Two: a grid, dim 0 to the right and dim 1 up. More: dims 2, 4, …
    repeat the picture to the right, dims 3, 5, … upwards, a little shifted so that lines do not coincide.
    Switches of a dimension sit in the middle of their slice. Tiered networks are drawn tier over tier.
    """
    if isinstance(topology.router, DimensionOrder):
        return _grid(topology)
    if isinstance(topology.router, Tree | Rails):
        return _tiers((topology.npus, *(count for _, count in topology.switches)))
    return None


def _grid(topology) -> tuple[np.ndarray, np.ndarray]:
    ids = np.arange(topology.npus)
    wide = [d for d in topology.dims if d.size > 1]
    x, y = np.zeros(topology.npus), np.zeros(topology.npus)
    if len(wide) == 1 and wide[0].kind != "mesh":
        angle = np.pi / 2 - 2 * np.pi * ids / topology.npus
        radius = topology.npus / (2 * np.pi)
        x, y = radius * np.cos(angle), radius * np.sin(angle)
    else:
        steps = [(1.0, 0.0), (0.0, 1.0)]
        width, height, stride = 1.0, 1.0, 1
        for index, dim in enumerate(wide):
            if index < 2:
                dx, dy = steps[index]
            elif index % 2 == 0:
                dx, dy = width + 0.6, 0.35
            else:
                dx, dy = 0.35, height + 0.6
            coordinate = ids // stride % dim.size
            x, y = x + dx * coordinate, y + dy * coordinate
            width, height = max(width, np.ptp(x) + 1), max(height, np.ptp(y) + 1)
            stride *= dim.size
    middle_x, middle_y, stride = [], [], 1
    for index, dim in enumerate(topology.dims):
        if dim.kind == "switch" and dim.size > 1:
            # Axes (slice above, coordinate, slice below) in the order of switch numbers.
            shape = (-1, dim.size, stride)
            shift = 0.25 * (index + 1) if len(wide) > 1 else 0.0
            middle_x.append(x.reshape(shape).mean(axis=1).ravel() + shift)
            middle_y.append(y.reshape(shape).mean(axis=1).ravel() + shift)
        stride *= dim.size
    return np.concatenate([x, *middle_x]), np.concatenate([y, *middle_y])


def _tiers(tiers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    width = max(tiers)
    x = [(np.arange(count) + 0.5) * width / count for count in tiers]
    y = [np.full(count, level * width / 4) for level, count in enumerate(tiers)]
    return np.concatenate(x), np.concatenate(y)
