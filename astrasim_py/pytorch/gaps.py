"""Times of a graph: when its nodes start, the gaps that its edges leave unexplained, and how large their share is."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra.graph import plain_array

#: Gaps longer than this count as unexplained, ns.
UNEXPLAINED_NS = 20_000
_LARGEST = 5


class Timed(NamedTuple):
    """Times of all nodes, ns; `binding` is the edge whose source ends last, -1 without one."""

    start: np.ndarray
    duration: np.ndarray
    gap: np.ndarray  # between the end of what the node needs and its start
    binding: np.ndarray


@dataclass(frozen=True)
class Gap:
    """A long gap: its node (an operation of the device), length and start, and what other streams did meanwhile.

    `meanwhile` has (device, stream, busy ns) of each other stream that ran anything.
    """

    node: int
    start: int
    duration: int
    meanwhile: tuple[tuple[int, int, int], ...]


def time_nodes(
    order: np.ndarray, pointers: np.ndarray, sources: np.ndarray, start: np.ndarray, end: np.ndarray, piece: np.ndarray
) -> Timed:
    """Let the nodes of a recorded graph take place in time.

    A piece of a thread starts when what it needs has ended and lasts to its recorded end; an operation of the device
    keeps its duration and its recorded start, unless what it needs ends later by the resolution of the clock. Gaps are
    measured from the times that result, so that rounded times do not add up.

    `order`: topological. `pointers`, `sources`: CSR of what each node needs. `start`, `end`: recorded, ns. `piece`:
    bool.
    """
    begins, sources_, at, until = map(plain_array, (pointers, sources, start, end))
    is_piece, zeros = piece.tolist(), np.zeros_like(start)
    ends, gap, binding = plain_array(zeros), plain_array(zeros), plain_array(zeros - 1)
    for node in memoryview(order):
        need = 0
        for edge in range(begins[node], begins[node + 1]):
            if ends[sources_[edge]] > need or binding[node] < 0:
                need, binding[node] = max(need, ends[sources_[edge]]), edge
        if is_piece[node]:
            at[node] = need
            ends[node] = max(until[node], need)
        else:
            gap[node] = max(0, at[node] - need)
            length = until[node] - at[node]
            at[node] = need + gap[node]
            ends[node] = at[node] + length
    begin = np.array(at, dtype=np.int64)
    return Timed(begin, np.array(ends, dtype=np.int64) - begin, np.array(gap, np.int64), np.array(binding, np.int64))


def largest_gaps(timed: Timed, lane: np.ndarray, lanes: tuple[tuple[int, int], ...]) -> tuple[Gap, ...]:
    """The five longest gaps of more than 20 us."""
    order = np.argsort(-timed.gap, kind="stable")[:_LARGEST]
    found = []
    for node in order[timed.gap[order] > UNEXPLAINED_NS].tolist():
        length, until = int(timed.gap[node]), int(timed.start[node])
        inside = np.minimum(timed.start + timed.duration, until) - np.maximum(timed.start, until - length)
        other = (inside > 0) & (lane >= 0) & (lane != lane[node])
        busy = np.zeros(len(lanes), dtype=np.int64)
        np.add.at(busy, lane[other], inside[other])
        meanwhile = tuple((*lanes[i], int(busy[i])) for i in np.flatnonzero(busy).tolist())
        found.append(Gap(node, until - length, length, meanwhile))
    return tuple(found)
