"""Paths around all ranks, on which rings send; those through nodes of several ranks are in `rails`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from astrasim_py.builders.draft import Arguments, Numbers
from astrasim_py.program.rotation import Rotation

#: ``around(rank, lane, steps)``: the rank so many steps ahead on the path of a lane.
Around = Callable[[Numbers, Numbers, Numbers], np.ndarray]


@dataclass(frozen=True)
class Paths:
    """Paths around all ranks, one for each lane: a piece of each shard that travels by itself.

    `lane_at`: number of a rank's lane among the pieces of a shard. `lane_behind`: what the lane is for the rank behind,
    which sends on it. `channels`: whether lanes are channels of their own.
    """

    lanes: int
    around: Around
    rotation: Rotation | None
    lane_at: Callable[[np.ndarray, int], Numbers]
    lane_behind: Callable[[int], int]
    channels: bool = False
    pieces: int = 1

    def channel(self, lane: Numbers) -> Arguments:
        return {"channel": lane // self.pieces} if self.channels else {}


def one_way(ranks: int, directions: np.ndarray) -> Paths:
    """Paths through ranks in their order, each in its direction (1 or -1)."""
    turn = partial(_turn, ranks, directions)
    pieces = len(directions) // len(np.unique(directions))
    return Paths(len(directions), turn, Rotation((ranks,)), same, same_lane, pieces=pieces)


# -- how paths continue; functions of the module, because algorithms are sent to other processes


def _turn(ranks: int, directions: np.ndarray, rank, lane, steps):
    return (rank + directions[lane] * steps) % ranks


def same(rank, lane):
    return lane


def same_lane(lane: int) -> int:
    return lane
