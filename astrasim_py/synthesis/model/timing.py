"""How long transfers hold links, and when they arrive.

A transfer that starts at t and waits nowhere holds the link of hop i during ``[t + offset_i, t + offset_i + hold_i)``
and arrives at ``t + delay``, as in the network models of the engines (`queueing` has transfers that wait in switches):

* ``cut_through``: the head passes hop after hop, ``offset_i`` is the sum of the latencies before hop i;
* ``store_and_forward``: hop i begins when the whole message has crossed hop i - 1;
* ``link_busy: bytes`` holds a link for bytes / bandwidth (latency is pipelined), ``latency+bytes`` until the message
  has left the far end (latency is serialised with the transfer, the cost model of TACOS, arXiv 2304.05301).
"""

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.units import transfer_ps
from astrasim_py.topology.model import Topology

#: Longest transfer, ps, so that sums over a schedule fit 63 bits.
_LONGEST = 2**52


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """How long a transfer holds links."""

    model: str = "cut_through"  # ``cut_through`` or ``store_and_forward``; they agree on direct links
    link_busy: str = "bytes"  # ``bytes`` or ``latency+bytes``


#: Arcs of a `Network` and the times of transfers by class of size, as compiled code takes them. `offset`, `hold`:
#: int64[classes, hops] ps, when a hop's link is first held, counted from the start, and for how long; `delay`:
#: int64[classes, arcs] ps from start to arrival.
Timing = namedtuple("Timing", "src dst in_ptr out_ptr out_arc hop_ptr hop offset hold delay")


def hop_services(topology: Topology, links: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(int64[sizes, hops], int64[hops]): ps that a message of each size takes to pass a hop alone, and its latency."""
    alone = np.empty((len(sizes), len(links)), dtype=np.int64)
    for row, size in enumerate(sizes):
        times = [transfer_ps(int(size), b) for b in topology.bandwidths]
        if max(times, default=0) > _LONGEST:
            raise TopologyError(topology.name, f"{size} B take longer than 2^52 ps on a link", "use more chunks")
        alone[row] = np.array(times, dtype=np.int64)[topology.bandwidth_class[links]]
    return alone, topology.latency_ps[links].astype(np.int64)


def transfer_times(
    cost: CostModel, hop_ptr: np.ndarray, alone: np.ndarray, latency: np.ndarray, waits: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(offset, hold, delay) of a `Timing`; with `waits` a fast link behind a slow one is held as long as it needs."""
    lengths, arcs = np.diff(hop_ptr), len(hop_ptr) - 1
    offset = np.zeros(alone.shape, dtype=np.int64)
    hold, delay = np.zeros_like(offset), np.zeros((len(alone), arcs), dtype=np.int64)
    for row, service in enumerate(alone):
        head, tail = np.zeros((2, arcs), dtype=np.int64)
        for position in range(int(lengths.max(initial=0))):
            some = np.flatnonzero(lengths > position)
            at = hop_ptr[some] + position
            begin = head[some] if cost.model == "cut_through" else tail[some]
            end = np.maximum(begin + service[at], tail[some])
            head[some], tail[some] = begin + latency[at], end + latency[at]
            offset[row, at] = end - service[at] if waits else begin
            hold[row, at] = (tail[some] if cost.link_busy == "latency+bytes" else end) - offset[row, at]
        delay[row] = tail
    return offset, hold, delay
