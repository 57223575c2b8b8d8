"""Places of vertices in drawings: of regular topologies by their structure, of others by their distances."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.topology.routing import DimensionOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from astrasim_py.topology.fabrics import Dragonfly

#: More vertices than this, without natural places, are put into tiers or on a circle.
_MOST_BY_DISTANCE = 400
#: Up to this many vertices there is a choice of many drawings.
_MOST_SEVERAL = 64
#: Radius of vertices that is enough, as a part of the drawing over the root of their number.
_CLEAR = 0.2
#: Pairs of a vertex and a link that are looked at for pushing them apart, in all rounds.
_PUSHES = 3_000_000
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
        return _by_distance(len(tier), src, dst)
    if tier.max() == 0:
        return _circle(len(tier), len(tier) / 6)
    x, y = np.zeros(len(tier)), np.zeros(len(tier))
    widest = int(np.bincount(tier).max())
    for level in np.unique(tier):
        level_rows = np.flatnonzero(tier == level)
        x[level_rows] = (np.arange(len(level_rows)) + 0.5) * widest / len(level_rows)
        y[level_rows] = level * max(widest / 3, 1.0)
    return x, y


def _by_distance(count: int, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places whose distances are like the numbers of links between vertices, and where vertices stand clear.

    A symmetric drawing where there is one. Else of several drawings the one whose vertices stand clear of each other
    and of links, and of those with room enough the one with the least stress: the sum of (d - |p - q|)^2 / d^2 over all
    pairs, d links apart and placed at p and q.
    """
    pairs = np.unique(np.sort(np.stack([src, dst], axis=1), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    place = _symmetric(count, pairs)
    if place is None:
        far = _distances(count, src, dst)

        def merit(drawing: np.ndarray) -> tuple[float, float]:
            return min(clearance(drawing, pairs), _CLEAR / count**0.5), -_stress(drawing, far)

        place = _upright(max(_drawings(far, pairs), key=merit), pairs)
    return place[:, 0].copy(), place[:, 1].copy()


def _upright(place: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The drawing turned so that its links are level or upright, where most can be, and wider than high."""
    links = place[pairs[:, 1]] - place[pairs[:, 0]]
    fourfold = ((links[:, 0] + 1j * links[:, 1]) ** 4 / np.maximum((links**2).sum(axis=1), 1e-12) ** 2).sum()
    if abs(fourfold) > 0.5 * len(pairs):
        turn = -np.angle(fourfold) / 4
        place = place @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    wide, high = np.ptp(place, axis=0)
    return place[:, ::-1] * [1.0, -1.0] if high > 1.05 * wide else place


def _distances(count: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Links between all pairs, float64[count, count]. Parts that no links join stand side by side."""
    far = np.full((count, count), float(count))
    far[src, dst] = far[dst, src] = 1.0
    np.fill_diagonal(far, 0.0)
    for middle in range(count):
        np.minimum(far, far[:, middle, None] + far[None, middle], out=far)
    far[far >= count] = far[far < count].max() + 2.0
    np.fill_diagonal(far, 0.0)
    return far


def _drawings(far: np.ndarray, pairs: np.ndarray) -> Iterator[np.ndarray]:
    """Drawings to choose from, float64[count, 2] each: a circle, and those of least stress from several starts, also
    with vertices pushed clear.
    """
    count = len(far)
    circle = np.stack(_circle(count, far.max() / 2), axis=1)
    yield circle * max(count / np.pi / max(far.max(), 1.0), 1.0)
    starts = [circle, _by_landmarks(far) + 0.05 * circle]
    if count <= _MOST_SEVERAL:
        steps = [step for step in range(2, count // 2) if gcd(step, count) == 1]
        starts += [circle[np.arange(count) * step % count] for step in steps[: 4 if count <= 32 else 2]]
    for start in starts:
        place = _least_stress(start, far)
        yield place
        yield _pushed_clear(place, pairs)


def _symmetric(count: int, pairs: np.ndarray) -> np.ndarray | None:
    """The known drawing of Petersen's graph and of others like it: rings one in another in the order of numbers, if the
    links stay the same when all rings turn by one vertex and vertices stand clear; else None.
    """
    links = set(map(tuple, pairs.tolist()))
    for rings in (1, 2, 3, 4):
        members = count // rings
        if count % rings or members < 3:
            continue
        number = np.arange(count)
        turned = np.sort((number // members * members + (number + 1) % members)[pairs], axis=1)
        if set(map(tuple, turned.tolist())) != links:
            continue
        parts = [np.stack(_circle(members, (rings - ring) * members / 3), axis=1) for ring in range(rings)]
        place = np.concatenate(parts)
        if clearance(place, pairs) >= min(_CLEAR / count**0.5, 9 / count**2):
            return place
    return None


def _by_landmarks(far: np.ndarray) -> np.ndarray:
    """Places by the differences of distances from two pairs of vertices that are far apart."""
    east = int(np.argmax(far[0]))
    west = int(np.argmax(far[east]))
    north = int(np.argmax(np.minimum(far[east], far[west])))
    south = int(np.argmax(np.minimum(far[north], np.minimum(far[east], far[west]))))
    return np.stack([far[west] - far[east], far[south] - far[north]], axis=1) / 2


def _least_stress(place: np.ndarray, far: np.ndarray) -> np.ndarray:
    """The drawing of least stress near another one, by majorization (Gansner, Koren, North: Graph drawing by stress
    majorization, GD 2004).
    """
    count = len(far)
    far = far + np.eye(count)
    weight = far**-2.0
    np.fill_diagonal(weight, 0.0)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    for _ in range(400 if count <= 128 else 60):
        apart = np.sqrt(((place[:, None] - place[None]) ** 2).sum(axis=2))
        np.fill_diagonal(apart, 1.0)
        pull = -weight * far / np.maximum(apart, 1e-9)
        np.fill_diagonal(pull, 0.0)
        np.fill_diagonal(pull, -pull.sum(axis=1))
        before, place = place, inverse @ (pull @ place)
        if np.abs(place - before).max() < 1e-3:
            break
    return place


def _stress(place: np.ndarray, far: np.ndarray) -> float:
    """Mean stress of the pairs, for the size of the drawing at which it is least."""
    rows, columns = np.triu_indices(len(far), 1)
    wanted = far[rows, columns]
    ratio = np.hypot(*(place[rows] - place[columns]).T) / np.maximum(wanted, 1.0)
    scale = ratio.sum() / max(float((ratio**2).sum()), 1e-12)
    return float(((1 - scale * ratio) ** 2).mean()) if len(ratio) else 0.0


def _from_links(place: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The way from the nearest point of each link to each vertex, float64[links, vertices, 2], and its length; that of
    a link's own ends is infinite.
    """
    tail = place[pairs[:, 0]]
    along = place[pairs[:, 1]] - tail
    square = np.maximum((along**2).sum(axis=1), 1e-12)
    there = place[None] - tail[:, None]
    share = np.clip((there * along[:, None]).sum(axis=2) / square[:, None], 0.0, 1.0)
    way = there - share[:, :, None] * along[:, None]
    length = np.sqrt((way**2).sum(axis=2))
    rows = np.arange(len(pairs))
    length[rows, pairs[:, 0]] = length[rows, pairs[:, 1]] = np.inf
    return way, length


def clearance(place: np.ndarray, pairs: np.ndarray) -> float:
    """The largest radius of vertices, as a part of the drawing's extent, that touch neither each other nor links of
    others. `place`: float64[vertices, 2]; `pairs`: ends of links, int64[links, 2].
    """
    apart = np.sqrt(((place[:, None] - place[None]) ** 2).sum(axis=2))
    np.fill_diagonal(apart, np.inf)
    _, length = _from_links(place, pairs)
    extent = max(float(np.ptp(place, axis=0).max()), 1e-12)
    return min(float(apart.min(initial=np.inf)) / 2, float(length.min(initial=np.inf))) / extent


def _pushed_clear(place: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """The drawing, whose vertices are pushed apart, and away from links of others, until there is room or no more."""
    count = len(place)
    linked = np.hypot(*(place[pairs[:, 0]] - place[pairs[:, 1]]).T)
    unit = float(linked.mean()) if len(linked) else 1.0
    wide, beside = 0.6 * unit, 0.25 * unit
    rounds = int(np.clip(_PUSHES // max(count * len(pairs), 1), 8, 300))
    place = place.copy()
    for _ in range(rounds):
        way = place[:, None] - place[None]
        apart = np.sqrt((way**2).sum(axis=2))
        np.fill_diagonal(apart, np.inf)
        # Two in one place go apart to the sides of their numbers.
        turn = np.arange(count) * 2.4
        same = np.stack([np.cos(turn), np.sin(turn)], axis=1)
        way[apart < 1e-9] = (same[:, None] - same[None])[apart < 1e-9]
        short = np.maximum(wide - apart, 0.0)
        push = (way * (0.5 * short / np.maximum(apart, 1e-3 * unit))[:, :, None]).sum(axis=1)
        hits = (short > 0).sum(axis=1).astype(float)
        way, length = _from_links(place, pairs)
        link, vertex = np.nonzero(length < beside)
        if len(link):
            side = way[link, vertex]
            along = place[pairs[link, 1]] - place[pairs[link, 0]]
            normal = np.stack([-along[:, 1], along[:, 0]], axis=1)
            side = np.where((length[link, vertex] < 1e-6 * unit)[:, None], normal, side)
            step = (beside - length[link, vertex]) / np.maximum(np.hypot(*side.T), 1e-12)
            np.add.at(push, vertex, 0.5 * side * step[:, None])
            np.add.at(hits, vertex, 1.0)
            for end in (0, 1):
                np.add.at(push, pairs[link, end], -0.25 * side * step[:, None])
                np.add.at(hits, pairs[link, end], 0.5)
        elif not hits.any():
            break
        place += push / np.maximum(hits, 1.0)[:, None]
    return place
