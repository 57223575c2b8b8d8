"""Translations of a network: shifts of rank numbers, digit by digit, that map arcs to arcs of the same cost.

A torus, ring, hypercube or fully connected network looks the same from every rank, and so may its schedule: what is
decided for the chunks of one rank holds, shifted, for those of all others. All arcs that shifts map to each other (an
*orbit*) then carry something at the same moments, so the whole problem shrinks to one with the chunks of one rank and
one resource per orbit. Nothing is assumed of how the topology was written: digits are tried on the bare arcs, so an
edge list of a torus is found as well. Digits in which the network is not symmetric (the rows of a mesh of rings)
leave several ranks to decide for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from astrasim_py.synthesis.model.network import Network, Timing

#: Arcs that must pass before a shift is looked at on all of them.
_PROBES = 32
#: Largest group of translations that is used: all pairs of its elements are added up in a table.
MAX_GROUP = 4096
#: Most hops of networks whose arcs share links.
_MAX_SHARED_HOPS = 2**20


@dataclass(frozen=True, eq=False)
class Translations:
    """A group of shifts of rank numbers.

    Attributes
    ----------
    digits : tuple of (int, int, bool)
        (stride, size, whether it is shifted) of each digit, innermost first.
    """

    digits: tuple[tuple[int, int, bool], ...]

    @property
    def order(self) -> int:
        """Number of shifts, the identity included."""
        return prod(size for _, size, shifted in self.digits if shifted)

    def _part(self, shifted: bool) -> np.ndarray:
        n = prod(size for _, size, _ in self.digits)
        rank, number, weight = np.arange(n), np.zeros(n, dtype=np.int64), 1
        for stride, size, moves in self.digits:
            if moves == shifted:
                number += rank // stride % size * weight
                weight *= size
        return number

    @cached_property
    def element(self) -> np.ndarray:
        """int64[n]: the shift that leads to a rank from the representative of its orbit."""
        return self._part(True)

    @cached_property
    def orbit(self) -> np.ndarray:
        """int64[n]: the orbit that a rank is in."""
        return self._part(False)

    @cached_property
    def rank_at(self) -> np.ndarray:
        """int64[orbits, order]: rank by orbit and element."""
        table = np.empty((len(self.element) // self.order, self.order), dtype=np.int64)
        table[self.orbit, self.element] = np.arange(len(self.element))
        return table

    def add(self, a: np.ndarray, b: np.ndarray, sign: int = 1) -> np.ndarray:
        """Element a + b, or a - b; the arrays are broadcast."""
        total, weight = 0, 1
        for _, size, shifted in self.digits:
            if shifted:
                total = total + (a // weight % size + sign * (b // weight % size)) % size * weight
                weight *= size
        return np.asarray(total, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Quotient:
    """A network up to translations.

    Attributes
    ----------
    group : Translations
    orbit_of : numpy.ndarray
        int32[arcs]: orbit of an arc; -1 for arcs whose translates would meet on one link.
    arc_at : numpy.ndarray
        int32[orbits, order]: arc by orbit and element of its source.
    resource_ptr, resource : numpy.ndarray
        CSR by orbit: int64[orbits + 1], int32: the classes of links that its arcs hold.
    offset, hold : numpy.ndarray
        int64, parallel to `resource`, for the largest chunks.
    delay : numpy.ndarray
        int64[orbits].
    """

    group: Translations
    orbit_of: np.ndarray
    arc_at: np.ndarray
    resource_ptr: np.ndarray
    resource: np.ndarray
    offset: np.ndarray
    hold: np.ndarray
    delay: np.ndarray


def signatures(network: Network, timing: Timing) -> np.ndarray:
    """int64[arcs]: equal for arcs whose transfers of the largest chunks take the same course."""
    lengths = np.diff(network.hop_ptr)
    width = int(lengths.max(initial=0))
    rows = np.full((network.arcs, 2 * width + 1), -1, dtype=np.int64)
    rows[:, 0] = timing.delay[0]
    for position in range(width):
        arcs = np.flatnonzero(lengths > position)
        at = network.hop_ptr[arcs] + position
        rows[arcs, 2 * position + 1], rows[arcs, 2 * position + 2] = timing.offset[0, at], timing.hold[0, at]
    if not len(rows) or (rows == rows[0]).all():
        return np.zeros(len(rows), dtype=np.int64)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def find(network: Network, signature: np.ndarray) -> list[Translations]:
    """Groups of translations, the largest first; then that group without one of its digits at a time."""
    n = network.ranks
    key = network.dst.astype(np.int64) * n + network.src
    probes = np.unique(np.linspace(0, max(network.arcs - 1, 0), _PROBES).astype(np.int64))

    def shifted(rank: np.ndarray, stride: int, size: int) -> np.ndarray:
        return rank + np.where(rank // stride % size == size - 1, -(size - 1) * stride, stride)

    def holds(stride: int, size: int) -> bool:
        for arcs in (probes, np.arange(network.arcs)):
            a, b = network.src[arcs].astype(np.int64), network.dst[arcs].astype(np.int64)
            moved = shifted(b, stride, size) * n + shifted(a, stride, size)
            at = np.minimum(np.searchsorted(key, moved), network.arcs - 1)
            if (key[at] != moved).any() or (signature[at] != signature[arcs]).any():
                return False
        return True

    divisors = [d for d in range(1, n + 1) if n % d == 0] if n <= 2**16 else []
    best: dict[int, tuple[int, tuple]] = {n: (1, ())}
    for stride in reversed(divisors[:-1]):
        choices = []
        for size in (d for d in divisors if d > 1 and n % (stride * d) == 0):
            order, rest = best[stride * size]
            moves = order * size <= MAX_GROUP and holds(stride, size)
            # Of equal groups the one of fewest digits, and shifts over fixed digits.
            choices.append((order * size if moves else order, -len(rest), moves, size, rest))
        order, _, moves, size, rest = max(choices)
        best[stride] = order, ((stride, size, moves), *rest)
    if n < 2 or not divisors or best[1][0] < 2:
        return []
    whole = best[1][1]
    groups = [Translations(whole)]
    for index, (stride, size, moves) in enumerate(whole):
        smaller = (*whole[:index], (stride, size, False), *whole[index + 1 :])
        if moves and any(m for _, _, m in smaller):
            groups.append(Translations(smaller))
    return groups


def quotient(network: Network, timing: Timing, group: Translations) -> Quotient | None:
    """The network up to a group of translations; None where nothing is left that could be used at once."""
    order = group.order
    a, b = network.src.astype(np.int64), network.dst.astype(np.int64)
    step = group.add(group.element[b], group.element[a], -1)
    orbits = len(group.element) // order
    kind = (group.orbit[a] * orbits + group.orbit[b]) * order + step
    first, orbit_of = np.unique(kind, return_index=True, return_inverse=True)[1:]
    orbit_of = orbit_of.reshape(-1)
    arc_at = np.empty((len(first), order), dtype=np.int32)
    arc_at[orbit_of, group.element[a]] = np.arange(network.arcs)
    lengths = np.diff(network.hop_ptr)
    hop_orbit = np.repeat(orbit_of, lengths)
    counts = lengths[first]
    resource_ptr = np.zeros(len(first) + 1, dtype=np.int64)
    np.cumsum(counts, out=resource_ptr[1:])
    hops = np.arange(resource_ptr[-1]) + np.repeat(network.hop_ptr[:-1][first] - resource_ptr[:-1], counts)
    if network.direct:
        resource = np.arange(len(first))
    else:
        if len(network.hop) > _MAX_SHARED_HOPS:
            return None
        used = hop_orbit * len(network.links) + network.hop
        _, where, repeats = np.unique(used, return_inverse=True, return_counts=True)
        spoilt = np.unique(hop_orbit[(repeats > 1)[where.reshape(-1)]])
        position = np.arange(len(network.hop)) - np.repeat(network.hop_ptr[:-1], lengths)
        resource = _classes(resource_ptr[hop_orbit] + position, network.hop, int(resource_ptr[-1]))
        orbit_of = np.where(np.isin(orbit_of, spoilt), -1, orbit_of)
        if (orbit_of < 0).all():
            return None
    return Quotient(
        group=group,
        orbit_of=orbit_of.astype(np.int32),
        arc_at=arc_at,
        resource_ptr=resource_ptr,
        resource=resource.astype(np.int32),
        offset=timing.offset[0, hops],
        hold=timing.hold[0, hops],
        delay=timing.delay[0, first],
    )


def _classes(slots: np.ndarray, links: np.ndarray, count: int) -> np.ndarray:
    """Slots of orbits that share a link, joined: int64[count] labels."""
    label = np.arange(count)
    while True:
        least = np.full(int(links.max(initial=0)) + 1, count)
        np.minimum.at(least, links, label[slots])
        new = label.copy()
        np.minimum.at(new, slots, least[links])
        if (new == label).all():
            return np.unique(label, return_inverse=True)[1].reshape(-1)
        label = new
