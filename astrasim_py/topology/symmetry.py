"""Rotations of a network: additions to rank numbers, digit by digit, that map links to equal links.

A torus, ring, hypercube or fully connected network looks the same from every rank. The search tries digits on the bare
links, so it also finds the symmetry of an edge list of a torus. Digits in which the network is not symmetric (the rows
of a mesh of rings) stay fixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

#: Largest group of rotations searched for: callers tabulate the sums of all pairs of its elements.
MAX_GROUP = 4096
#: Most ranks for which divisors are tried as digits.
_MAX_RANKS = 2**16
#: Links on which a rotation is tested before it is tested on all.
_PROBES = 256


@dataclass(frozen=True, eq=False)
class Rotations:
    """A group of rotations of rank numbers.

    >>> Rotations(((1, 4, True), (4, 2, False))).class_of.tolist()
    [0, 0, 0, 0, 1, 1, 1, 1]
    """

    digits: tuple[tuple[int, int, bool], ...]  # (stride, size, whether it is rotated) of each digit, innermost first

    @property
    def order(self) -> int:
        """Number of rotations, the identity included."""
        return prod(size for _, size, rotated in self.digits if rotated)

    def _number(self, with_moves: bool) -> np.ndarray:
        n = prod(size for _, size, _ in self.digits)
        rank, number, weight = np.arange(n), np.zeros(n, dtype=np.int64), 1
        for stride, size, rotated in self.digits:
            if rotated == with_moves:
                number += rank // stride % size * weight
                weight *= size
        return number

    @cached_property
    def element(self) -> np.ndarray:
        """int64[n]: the rotation from the first rank of its class to each rank."""
        return self._number(True)

    @cached_property
    def class_of(self) -> np.ndarray:
        """int64[n]: ranks of a class are rotated to each other."""
        return self._number(False)

    @cached_property
    def rank_at(self) -> np.ndarray:
        """int64[classes, order]: rank by class and element."""
        table = np.empty((len(self.element) // self.order, self.order), dtype=np.int64)
        table[self.class_of, self.element] = np.arange(len(self.element))
        return table

    @cached_property
    def sums(self) -> np.ndarray:
        """int32[order, order]: the element that two elements make, one after the other."""
        table = np.zeros((1, 1), dtype=np.int32)
        for size in (size for _, size, rotated in self.digits if rotated):
            digit = np.add.outer(np.arange(size), np.arange(size)).astype(np.int32) % size * len(table)
            table = np.add.outer(digit, table).swapaxes(1, 2).reshape(2 * [size * len(table)])
        return table


def find_rotations(ranks: int, src: np.ndarray, dst: np.ndarray, label: np.ndarray) -> list[Rotations]:
    """Groups of rotations of a directed graph with labelled arcs.

    `src`, `dst`: int[arcs]; at most one arc of a label per pair. `label`: int[arcs], 0..: arcs are mapped to arcs of
    the same label. Returns the largest group first; then that group without one of its digits at a time. Empty if there
    is none.
    """
    if not len(src):
        return []
    src, dst, label = (np.asarray(column, dtype=np.int64) for column in (src, dst, label))
    labels = int(label.max()) + 1
    links = np.sort((dst * ranks + src) * labels + label)
    probes = np.unique(np.linspace(0, len(src) - 1, _PROBES).astype(np.int64))

    def holds(image: np.ndarray) -> bool:
        for arcs in (probes, slice(None)):
            moved = (image[dst[arcs]] * ranks + image[src[arcs]]) * labels + label[arcs]
            if (links[np.minimum(np.searchsorted(links, moved), len(links) - 1)] != moved).any():
                return False
        return True

    return rotation_groups(ranks, holds)


def rotation_groups(ranks: int, holds: Callable[[np.ndarray], bool]) -> list[Rotations]:
    """The same by ``holds(image)``: whether a network is mapped to itself where rank r goes to ``image[r]``."""
    if ranks < 2 or ranks > _MAX_RANKS:
        return []
    rank = np.arange(ranks)

    def rotated(stride: int, size: int) -> np.ndarray:
        return rank + np.where(rank // stride % size == size - 1, -(size - 1) * stride, stride)

    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    #: By stride: (order, digits) of the best group of the digits from there on.
    best: dict[int, tuple[int, tuple]] = {ranks: (1, ())}
    for stride in reversed(divisors[:-1]):
        choices = []
        for size in (d for d in divisors if d > 1 and ranks % (stride * d) == 0):
            order, rest = best[stride * size]
            # Among equal groups prefer fewer digits, then rotated digits.
            choices.append((order * size, -len(rest), True, size, rest))
        # Only the best choice left is tested.
        while (top := max(choices))[2] and not (top[0] <= MAX_GROUP and holds(rotated(stride, top[3]))):
            choices.remove(top)
            choices.append((top[0] // top[3], top[1], False, *top[3:]))
        order, _, moves, size, rest = top
        best[stride] = order, ((stride, size, moves), *rest)
    order, rotations = best[1]
    if order < 2:
        return []
    groups = [Rotations(rotations)]
    for index, (stride, size, moves) in enumerate(rotations):
        smaller = (*rotations[:index], (stride, size, False), *rotations[index + 1 :])
        if moves and any(rotated for _, _, rotated in smaller):
            groups.append(Rotations(smaller))
    return groups
