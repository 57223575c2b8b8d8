"""Runs of the core that packs chunks into the gaps of links: its arguments, made once for many runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.synthesis.demand import Demand
from astrasim_py.synthesis.network import Network, Timing

NEVER = 2**62
_GO = np.zeros(1, dtype=np.int64)
#: Most bits of a delay in ps for which prices of links are sums of 63 bits.
_PRICED_BITS = 40
#: Chunks of trees that an improving step takes out at most.
_VICTIMS = 8

#: (arcs int32[chunks, most], starts int64[chunks, most], how many int32[chunks]): the transfers of every chunk.
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Chunks to be packed.

    Attributes
    ----------
    origin, goal, size_class : numpy.ndarray
        int32[chunks]; a goal of -1: everyone.
    ahead : numpy.ndarray
        int64[goals, n]: the least time to a goal, from every rank; one row of zeros if there are none.
    sums : bool
        Whether chunks are summed before they spread.
    """

    origin: np.ndarray
    goal: np.ndarray
    size_class: np.ndarray
    ahead: np.ndarray
    sums: bool = False


def packed(
    network: Network,
    timing: Timing,
    load: Load,
    *,
    room: int,
    seed: int,
    rows: Rows | None = None,
    order: np.ndarray | None = None,
    stride: int = 0,
    roots: int = 0,
    weight: int = 0,
    mean: int = 0,
    improve: int = 0,
    victims: int = _VICTIMS,
    bound: int = 0,
    limit: int = NEVER,
    stop: np.ndarray | None = None,
) -> tuple[int, Rows, np.ndarray, int] | None:
    """One run of the core (`pack.pack` has the parameters that are not named here).

    Parameters
    ----------
    room : int
        Moments in the calendar of a link at first; doubled as often as need be. 0: no calendars are kept.
    rows : Rows, optional
        A schedule to improve.
    order : int64[chunks], optional
        In which chunks are put in; random by default.
    stride : int
        Transfers of a path for which there is room at first.
    improve : int
        Steps.
    victims : int
        Chunks that a step takes out at most.

    Returns
    -------
    (time, rows, load, room) or None
        ps; int64[resources], ps; the room that it took. None if it was given up.
    """
    from astrasim_py.synthesis.pack import DONE, FULL, pack

    n, count, arcs, resources = network.ranks, len(load.origin), network.arcs, len(network.links)
    keep = room > 0
    random = np.random.Generator(np.random.PCG64(seed))
    order = random.permutation(count) if order is None else order
    state = random.integers(1, 2**63, 1, dtype=np.uint64)
    stride = rows[0].shape[1] if rows is not None else stride or (n - 1) * (1 + load.sums)
    victims = min(victims, count)
    while True:
        points, filled = calendars(network, room) if keep else (_numbers(resources, 0), np.zeros(resources, np.int64))
        carried = np.zeros(resources, dtype=np.int64)
        if rows is None:
            arc, start = np.zeros((count, stride), dtype=np.int32), np.zeros((count, stride), dtype=np.int64)
            length = np.zeros(count, dtype=np.int32)
        else:
            arc, start, length = (column.copy() for column in rows)
        took, status = pack(
            load.origin, load.goal, load.size_class, network.src, network.dst, network.in_ptr, *network.out,
            network.hop_ptr, network.hop, timing.offset, timing.hold, timing.delay, load.ahead, order.copy(), load.sums,
            roots, weight, mean, improve, bound, limit, state.copy(), _GO if stop is None else stop, points, filled,
            carried, _numbers(4, n), _numbers(3, arcs), _numbers(arcs), np.empty(n, dtype=np.int32), _numbers(n),
            np.empty(n, dtype=np.int32), _numbers(n), np.zeros(count, dtype=np.int64),
            np.empty((victims, stride), dtype=np.int32), _numbers(victims, stride), _numbers(victims, 2),
            _numbers(victims), _numbers(resources), _numbers(count), arc, start, length,
        )  # fmt: skip
        if status == DONE:
            return int(took), (arc, start, length), carried, room
        if status != FULL:
            return None
        room, stride = 2 * room, max(stride, min(2 * stride, n))


def _numbers(*shape: int) -> np.ndarray:
    return np.empty(shape, dtype=np.int64)


def calendars(network: Network, room: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(int64[resources, room], int64[resources]): calendars in which others' intervals stand, and how many moments.

    At least they have room for those.
    """
    taken = np.diff(network.occupied_ptr)
    resources = len(network.links)
    points = np.empty((resources, max(room, 2 * int(taken.max(initial=0)) + 16 * (room > 0))), dtype=np.int64)
    owner = np.repeat(np.arange(resources), taken)
    place = 2 * (np.arange(len(owner)) - network.occupied_ptr[:-1][owner])
    points[owner, place], points[owner, place + 1] = network.occupied_start, network.occupied_end
    return points, 2 * taken.astype(np.int64)


class Packing:
    """Runs that pack trees: everybody needs every chunk, summed before (all_reduce) or not.

    Parameters
    ----------
    network : Network
    demand : Demand
    """

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network = network
        self.timing = network.timing(demand.sizes.tolist())
        self.load = Load(
            origin=demand.origin,
            goal=np.full(demand.count, -1, dtype=np.int32),
            size_class=demand.size_class,
            ahead=np.zeros((1, network.ranks), dtype=np.int64),
            sums=demand.collective == "all_reduce",
        )
        self._room = 64
        self._mean = 0
        if int(self.timing.delay.max(initial=0)).bit_length() <= _PRICED_BITS:
            least = float(self.timing.hold.min(axis=1, initial=NEVER)[demand.size_class].sum())
            self._mean = max(int(least * (network.ranks - 1)) // max(len(network.links), 1), 1)

    def run(self, seed: int, policy, **options) -> tuple[int, Rows] | None:
        """One run.

        Parameters
        ----------
        seed : int
        policy : TreePolicy
        **options
            Of `packed`.

        Returns
        -------
        (time, rows) or None
            None if it was given up.
        """
        found = packed(
            self.network, self.timing, self.load, room=self._room, seed=seed, roots=policy.roots, weight=policy.weight,
            mean=self._mean * policy.priced, **options,
        )  # fmt: skip
        if found is None:
            return None
        took, rows, _, room = found
        self._room = max(self._room, room)
        return took, rows
