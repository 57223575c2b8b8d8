"""Runs of the core that packs chunks into the gaps of links: its arguments, made once for many runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.synthesis.model.insertion import GO, NEVER, calendars
from astrasim_py.synthesis.model.network import Network, Timing

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
    sums, spreads : bool
        Whether chunks are summed at first, and whether they are copied (then).
    """

    origin: np.ndarray
    goal: np.ndarray
    size_class: np.ndarray
    ahead: np.ndarray
    sums: bool = False
    spreads: bool = True


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
    from astrasim_py.synthesis.search.tree_packing_kernel import FULL, pack

    n, count, arcs, resources = network.ranks, len(load.origin), network.arcs, len(network.links)
    keep = room > 0
    random = np.random.Generator(np.random.PCG64(seed))
    order = random.permutation(count) if order is None else order
    state = random.integers(1, 2**63, 1, dtype=np.uint64)
    stride = rows[0].shape[1] if rows is not None else stride or (n - 1) * (load.sums + load.spreads)
    victims = min(victims, count)
    while True:
        points, filled = calendars(network, room) if keep else (_numbers(resources, 0), np.zeros(resources, np.int64))
        carried = np.zeros(resources, dtype=np.int64)
        if rows is None:
            arc, start = np.zeros((count, stride), dtype=np.int32), np.zeros((count, stride), dtype=np.int64)
            length = np.zeros(count, dtype=np.int32)
        else:
            # A way may be longer than all of those before.
            wider = ((0, 0), (0, stride - rows[0].shape[1]))
            arc, start, length = np.pad(rows[0], wider), np.pad(rows[1], wider), rows[2].copy()
        took = pack(
            load.origin, load.goal, load.size_class, network.src, network.dst, network.in_ptr, *network.out,
            network.hop_ptr, network.hop, timing.offset, timing.hold, timing.delay, load.ahead, order.copy(),
            int(load.sums), int(load.spreads), roots, weight, mean, improve, bound, limit, state.copy(),
            GO if stop is None else stop, points, filled, carried, _numbers(4, n), _numbers(3, arcs), _numbers(arcs),
            np.empty(n, dtype=np.int32),
            _numbers(n), np.empty(n, dtype=np.int32), _numbers(n), np.zeros(count, dtype=np.int64),
            np.empty((victims, stride), dtype=np.int32), _numbers(victims, stride), _numbers(victims, 2),
            _numbers(victims), _numbers(resources), _numbers(count), arc, start, length,
        )  # fmt: skip
        if took >= 0:
            return int(took), (arc, start, length), carried, room
        if took != -FULL:
            return None
        room, stride = 2 * room, max(stride, min(2 * stride, n))


def _numbers(*shape: int) -> np.ndarray:
    return np.empty(shape, dtype=np.int64)
