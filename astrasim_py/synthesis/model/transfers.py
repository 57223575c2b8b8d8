"""Transfers in columns, and whole schedules composed of them: reversed, copied, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Search

#: (arc, chunk, start) of transfers.
Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
#: (arc, chunk, start, reduces) of transfers.
Transfers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search."""

    time: int  # ps
    columns: tuple | None  # none where transfers were only counted
    transfers: int
    search: Search


def mirrored(network: Network, demand: Demand, columns: Columns) -> Transfers:
    """A schedule that copies on the reversed network, as one that reduces on `network`.

    Reversing a broadcast tree gives a reduce tree: a transfer that ends s before the end begins s after the beginning.
    """
    back = network.reversed
    arc, chunk, start = columns
    arrival = start + back.timing(demand.sizes).delay[demand.size_class[chunk], arc]
    end = int(arrival.max(initial=0))
    # The last transfer is the first cause now.
    return back.base_arc[arc][::-1], chunk[::-1], (end - arrival)[::-1], np.ones(len(arc), dtype=bool)


def copied(columns: Columns) -> Transfers:
    """Transfers that copy."""
    return *columns, np.zeros(len(columns[0]), dtype=bool)


def chained(first: Transfers, second: Transfers, barrier: int) -> Transfers:
    """One after the other: the second begins at `barrier` ps."""
    arc, chunk, start, reduces = second
    return tuple(np.concatenate(pair) for pair in zip(first, (arc, chunk, start + barrier, reduces), strict=True))


#: No transfers at all.
NOTHING = copied(tuple(np.empty((3, 0), dtype=np.int64)))
