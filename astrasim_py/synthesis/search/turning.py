"""Time turned round: transfers in the order in which they would go the other way, the last first.

What arrives late goes early then, so links idle less at both ends of a schedule (the forward-backward improvement of
project scheduling: Li & Willis, Eur. J. Oper. Res. 1992). Copies turned round are sums, and sums copies.
"""

from dataclasses import replace

import numpy as np

from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues

#: (arc, chunk, reduces) of transfers, the most urgent first.
Urgent = tuple[np.ndarray, np.ndarray, np.ndarray]

#: Times that an order is turned round twice at most.
_TURNS = 4


def mirrored_queues(queues: Queues) -> Queues:
    """The same with every arc turned round; arcs keep their numbers."""
    network = queues.network
    ptr = network.hop_ptr
    first, last = (np.repeat(ends, np.diff(ptr)) for ends in (ptr[:-1], ptr[1:] - 1))
    back = network.hop[first + last - np.arange(len(network.hop))]
    return Queues(_turned(network, back), queues.demand)


def _turned(network: Network, hop: np.ndarray) -> Network:
    return replace(network, src=network.dst, dst=network.src, hop=hop)


def turned_round(queues: Queues, transfers: Urgent, stop: np.ndarray = GO) -> Urgent | None:
    """Transfers that go the other way, as early in the order as they are late in these queues; None: stopped."""
    arc, chunk, reduces = transfers
    start = np.zeros(len(arc), dtype=np.int64)
    course = queues.course_until(arc, chunk, reduces, start, stop=stop, holds=False)
    if course is None:
        return None
    order = np.argsort(-course.arrival, kind="stable")
    return arc[order], chunk[order], ~reduces[order]


def settled(
    queues: Queues, transfers: Urgent, until: int, enough: int, stop: np.ndarray = GO
) -> tuple[int, tuple] | None:
    """(time, (arc, chunk, reduces, start)) of transfers in the best order found by turning time round, while that helps
    and `enough` is not met; None: no order ends by `until`."""
    best = queues.executed(*transfers, until, stop)
    mirror, tried = mirrored_queues(queues), transfers
    for _ in range(_TURNS):
        if stop[0] or (best is not None and best[0] <= enough):
            break
        back = turned_round(queues, tried, stop)
        forth = None if back is None else turned_round(mirror, back, stop)
        if forth is None:
            break
        tried = forth
        found = queues.executed(*tried, until if best is None else best[0] - 1, stop)
        if found is None and best is not None:
            break
        best = found
    return best
