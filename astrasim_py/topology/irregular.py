"""Drawings of networks without a structure that is known: no vertex over another one or over a link."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Up to this many vertices there is a choice of many drawings.
_MOST_SEVERAL = 64
#: Radius of vertices that is enough, as a part of the drawing over the root of their number.
_CLEAR = 0.2
#: Pairs of a vertex and a link that are looked at for pushing them apart, in all rounds.
_PUSHES = 3_000_000


def by_distance(count: int, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    ring = _ring(count, far.max() / 2)
    yield ring * max(count / np.pi / max(far.max(), 1.0), 1.0)
    starts = [ring, _by_landmarks(far) + 0.05 * ring]
    if count <= _MOST_SEVERAL:
        steps = [step for step in range(2, count // 2) if gcd(step, count) == 1]
        starts += [ring[np.arange(count) * step % count] for step in steps[: 4 if count <= 32 else 2]]
    for start in starts:
        place = _least_stress(start, far)
        yield place
        yield _pushed_clear(place, pairs)


def _ring(count: int, radius: float) -> np.ndarray:
    """Places on a circle, float64[count, 2], clockwise from the top."""
    turn = 2 * np.pi * np.arange(count) / count
    return radius * np.stack([np.sin(turn), np.cos(turn)], axis=1)


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
        parts = [_ring(members, (rings - ring) * members / 3) for ring in range(rings)]
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
