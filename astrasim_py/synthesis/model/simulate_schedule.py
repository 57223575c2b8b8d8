"""The times that an engine measures of a schedule: every transfer as early as the order on its links allows."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel
from astrasim_py.synthesis.model.arrays import by_time
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import calendars, ordered
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Bound, Schedule, Search
from astrasim_py.synthesis.model.transfers import Transfers


@kernel("the synthesizer", threads=True, lean=True)
def _simulate(net, calendar, arc, chunk, order, size_class, free, known, start):
    """Fill `start` with the earliest times, the transfers being taken in `order`; returns the last arrival."""
    last = np.int64(0)
    for i in range(len(order)):
        row = order[i]
        a, c = np.int64(arc[row]), np.int64(chunk[row])
        z = np.int64(size_class[c])
        t = ordered(net, calendar, a, z, known[net.src[a], c], free)
        start[row] = t
        for h in range(net.hop_ptr[a], net.hop_ptr[a + 1]):
            free[net.hop[h]] = t + net.offset[z, h] + net.hold[z, h]
        arrives = t + net.delay[z, a]
        # A copy replaces nothing: its target waited for it alone. A part of a sum is one of several.
        known[net.dst[a], c] = max(known[net.dst[a], c], arrives)
        last = max(last, arrives)
    return last


def as_schedule(
    network: Network, demand: Demand, transfers: Transfers, search: Search, bound: Bound | None = None
) -> Schedule:
    """A `Schedule` of transfers, each as early as their order on every link lets it."""
    arc, chunk, start, reduces = transfers
    arc, chunk = np.ascontiguousarray(arc, dtype=np.int32), np.ascontiguousarray(chunk, dtype=np.int32)
    time = 0
    if len(arc):
        # Transfers that begin at once stay in the order in which they were decided: causes first.
        order = by_time(start)
        start = np.empty(len(arc), dtype=np.int64)
        time = _simulate(
            network.timing(demand.sizes), calendars(network), arc, chunk, order, demand.size_class,
            np.zeros(len(network.links), np.int64), np.zeros((network.ranks, demand.count), np.int64), start,
        )  # fmt: skip
        # Sort by the new times; transfers that begin at once keep their order, for one may take no time.
        order = order[by_time(start[order])]
        if (order[1:] < order[:-1]).any():
            arc, chunk, start, reduces = arc[order], chunk[order], start[order], reduces[order]
    return Schedule.of(network, demand, (arc, chunk, start, reduces), int(time), search, bound)
