"""Whole schedules from what the greedy cores return: reversal, concatenation, earliest times."""

from __future__ import annotations

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import calendars
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule, Search

#: (arc, chunk, start, reduces) of transfers.
Transfers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def mirrored(network: Network, demand: Demand, columns: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Transfers:
    """A schedule that copies on the network turned round, as one that reduces on `network`.

    What copies a chunk from its home to everybody is, backwards, a tree by which everybody's part comes home: the
    transfer that arrives at s before the end begins at s after the beginning.

    Parameters
    ----------
    network : Network
        Not turned.
    demand : Demand
    columns
        (arc of ``network.turned()``, chunk, start).
    """
    turned = network.turned()
    arc, chunk, start = columns
    delay = turned.timing(demand.sizes.tolist()).delay
    arrival = start + delay[demand.size_class[chunk], arc]
    end = int(arrival.max(initial=0))
    # What came last is the first cause now.
    return turned.base_arc[arc][::-1], chunk[::-1], (end - arrival)[::-1], np.ones(len(arc), dtype=bool)


def copied(columns: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Transfers:
    """Transfers that copy."""
    return *columns, np.zeros(len(columns[0]), dtype=bool)


def chained(first: Transfers, second: Transfers, barrier: int) -> Transfers:
    """One after the other: the second begins at `barrier` ps."""
    a, b = first, second
    return (
        np.concatenate([a[0], b[0]]),
        np.concatenate([a[1], b[1]]),
        np.concatenate([a[2], b[2] + barrier]),
        np.concatenate([a[3], b[3]]),
    )


def as_schedule(network: Network, demand: Demand, transfers: Transfers, search: Search, bound=None) -> Schedule:
    """A `Schedule` of transfers, each as early as their order on every link lets it.

    Parameters
    ----------
    bound : Bound or None
    """
    arc, chunk, start, reduces = transfers
    time = 0
    if len(arc):
        from astrasim_py.synthesis.model.simulate_schedule import earliest

        timing = network.timing(demand.sizes.tolist())
        # Of transfers that begin at once the causes come first, for that is the order in which they were decided.
        order = _by(start)
        start = np.empty(len(arc), dtype=np.int64)
        resources = len(network.links)
        time = earliest(
            np.ascontiguousarray(arc, dtype=np.int32), np.ascontiguousarray(chunk, dtype=np.int32), order,
            demand.size_class, network.src, network.dst, network.hop_ptr, network.hop, timing.offset, timing.hold,
            timing.delay, *calendars(network), np.zeros(resources, dtype=np.int64),
            np.zeros((network.ranks, demand.count), dtype=np.int64), start,
        )  # fmt: skip
        # Of transfers that begin at once now, links carry first what came first before: one may take no time.
        order = order[_by(start[order])]
        if (order[1:] < order[:-1]).any():
            arc, chunk, start, reduces = arc[order], chunk[order], start[order], reduces[order]
    return Schedule(
        network=network,
        demand=demand,
        arc=np.ascontiguousarray(arc, dtype=np.int32),
        chunk=np.ascontiguousarray(chunk, dtype=np.int32),
        start=start,
        reduces=reduces,
        time=int(time),
        transfers=len(arc),
        bound=0 if bound is None else bound.time,
        bound_kind="" if bound is None else bound.kind,
        search=search,
    )


def _by(start: np.ndarray) -> np.ndarray:
    """Order of rows by time, equals as they are."""
    if (start[1:] >= start[:-1]).all():
        return np.arange(len(start))
    return np.argsort(start, kind="stable")
