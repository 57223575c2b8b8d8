"""Transfers in the order of queues: links serve whoever asks first, and messages wait in switches for their ports.

A schedule says when each transfer is posted. What follows is settled: hop after hop it asks for the next link when its
head (of ``store_and_forward``: its tail) is there, and has it once all that asked before are through, which is what
the engines do; of those that ask at the same moment the one that was posted first. So that this is settled, too, no two
are posted at the same moment here: one of the two is posted a picosecond later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astrasim_py.core.jit import kernel, lean
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import drop, push
from astrasim_py.synthesis.model.network import Network

_FAR = np.int64(2**62)
#: What happens, in this order of what happens at one moment.
_ARRIVES, _READY, _ASKS, _POSTS = range(4)
#: Rows of what is noted of transfers: hops behind it, when its tail is at the next, what is below it in a heap, and
#: how many were posted before it.
_AT, _TAIL, _LEFT, _RIGHT, _NUMBER = range(5)


@lean
def _merged(a, b, note):
    """The root of two skew heaps of transfers made one, the least number first."""
    if a < 0:
        return b
    if b < 0:
        return a
    if b < a:
        a, b = b, a
    root = a
    while True:
        r = note[_RIGHT, a]
        note[_RIGHT, a] = note[_LEFT, a]
        if r < 0:
            note[_LEFT, a] = b
            return root
        if b < r:
            r, b = b, r
        note[_LEFT, a] = r
        a = r


@kernel("the synthesizer", threads=True, lean=True)
def queued(
    arc, chunk, reduces, release, size_class, src, dst, hop_ptr, hop, alone, latency, through, keeps, apart, until,
    cell_ptr, waiting, lacking, ptr, note, heap, top, looks, booked, free, asked, start, begin, end, arrival,
):  # fmt: skip
    """Execute transfers; returns how many were made, and whether two ask for a link at once that were posted at once.

    Parameters
    ----------
    arc, chunk, reduces, release : int32, int32, bool, int64[transfers]
        The most urgent first: of those that may be posted on one link the first one is. None is before `release`.
    alone, latency : int64[classes, hops], int64[hops]
    through, keeps, apart : bool
        Cut-through; whether a link is held until the message has left its far end; whether no two are posted at once.
    until : int
        ps after which nothing more is of use.
    cell_ptr, waiting : int64[ranks * chunks + 1], int64[transfers]
        Which transfers a rank makes of a chunk.
    lacking : int64[2, ranks * chunks]
        Copies and sums of a chunk that a rank waits for.
    ptr : int64[transfers + 1]
        Hops before each transfer.
    note, heap, top, looks, booked, free, asked
        Scratch: int64[5, transfers], int64[3, 6 * transfers + 16], and per link -1, FAR, -1, 0, -1 and -1.
    start, begin, end, arrival
        Filled.
    """
    m, chunks, size, made = len(arc), len(size_class), np.int64(0), np.int64(0)
    open_order = False
    step, last_post, number = m + len(free) + 1, np.int64(-1), np.int64(0)
    for i in range(m):
        cell = np.int64(src[arc[i]]) * chunks + chunk[i]
        start[i] = -1
        if lacking[1, cell] == 0 and (reduces[i] or lacking[0, cell] == 0):
            push(heap, size, release[i], _READY * step + i, i)
            size += 1
    while size:
        t, kind, i = heap[0, 0], heap[1, 0] // step, heap[2, 0]
        drop(heap, size)
        size -= 1
        if t > until:
            break
        if kind == _ARRIVES:
            cell = np.int64(dst[arc[i]]) * chunks + chunk[i]
            sums = np.int64(1 if reduces[i] else 0)
            lacking[sums, cell] -= 1
            arrival[i] = t
            made += 1
            if lacking[1, cell] == 0:
                for w in range(cell_ptr[cell], cell_ptr[cell + 1]):
                    j = waiting[w]
                    if (sums == 1) if reduces[j] else lacking[0, cell] == 0:
                        push(heap, size, max(t, release[j]), _READY * step + j, j)
                        size += 1
            continue
        if kind == _READY:
            r = np.int64(hop[hop_ptr[arc[i]]])
            note[_LEFT, i] = note[_RIGHT, i] = -1
            top[r] = _merged(top[r], i, note)
            at = max(t, free[r])
            if at < looks[r]:
                looks[r] = at
                push(heap, size, at, _POSTS * step + r, r)
                size += 1
            continue
        if kind == _POSTS:
            r = i
            if looks[r] != t or top[r] < 0:
                continue
            if apart and t <= last_post and booked[r] != t:
                last_post += 1
                looks[r] = booked[r] = last_post
                push(heap, size, last_post, _POSTS * step + r, r)
                size += 1
                continue
            looks[r], last_post = _FAR, max(last_post, t)
            i = top[r]
            top[r] = _merged(note[_LEFT, i], note[_RIGHT, i], note)
            note[_AT, i], note[_TAIL, i], note[_NUMBER, i], start[i] = 0, t, number, t
            number += 1
        a, z, k = np.int64(arc[i]), np.int64(size_class[chunk[i]]), note[_AT, i]
        h = hop_ptr[a] + k
        r = np.int64(hop[h])
        if asked[0, r] == t and asked[1, r] == start[i]:
            open_order = True
        asked[0, r], asked[1, r] = t, start[i]
        first = max(t, free[r])
        last = first + alone[z, h]
        if through:
            last = max(last, note[_TAIL, i])
        tail = last + latency[h]
        free[r] = tail if keeps else last
        begin[ptr[i] + k], end[ptr[i] + k] = first, free[r]
        note[_AT, i], note[_TAIL, i] = k + 1, tail
        if h + 1 == hop_ptr[a + 1]:
            push(heap, size, tail, np.int64(i), i)
        else:
            push(heap, size, first + latency[h] if through else tail, _ASKS * step + note[_NUMBER, i], i)
        size += 1
        if k == 0 and top[r] >= 0:
            looks[r] = free[r]
            push(heap, size, free[r], _POSTS * step + r, r)
            size += 1
    return made, open_order


@dataclass(frozen=True, slots=True)
class Course:
    """What becomes of posted transfers.

    Attributes
    ----------
    start, arrival : numpy.ndarray
        int64[transfers], ps.
    ptr : numpy.ndarray
        int64[transfers + 1]: the hops of each.
    begin, end : numpy.ndarray
        int64[hops]: the hold of each hop's link, ps.
    open_order : bool
        Whether some two transfers ask for a link at the same moment that were posted at the same moment, too.
    """

    start: np.ndarray
    arrival: np.ndarray
    ptr: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    open_order: bool

    @property
    def time(self) -> int:
        """ps of the last arrival."""
        return int(self.arrival.max(initial=0))


class Queues:
    """Executes transfers on a network that nobody else uses.

    Parameters
    ----------
    network : Network
        Not turned.
    demand : Demand
    """

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        self.alone, self.latency = network.services(demand.sizes.tolist())

    def course(self, arc, chunk, reduces, release, *, apart: bool = False, until: int = 2**62) -> Course | None:
        """What becomes of transfers, the most urgent first; None: some are not done by `until`, in ps.

        Parameters
        ----------
        arc, chunk, reduces : numpy.ndarray
            int32, int32, bool[transfers].
        release : numpy.ndarray
            int64[transfers], ps before which they are not posted.
        apart : bool
            Post no two at the same moment.
        """
        network, demand, count = self.network, self.demand, self.demand.count
        arc = np.ascontiguousarray(arc, dtype=np.int32)
        chunk = np.ascontiguousarray(chunk, dtype=np.int32)
        reduces, m = np.ascontiguousarray(reduces, dtype=np.bool_), len(arc)
        cells = network.ranks * count
        sends = network.src[arc].astype(np.int64) * count + chunk
        gets = network.dst[arc].astype(np.int64) * count + chunk
        lacking = np.stack([np.bincount(gets[reduces == kind], minlength=cells) for kind in (False, True)])
        cell_ptr = np.zeros(cells + 1, dtype=np.int64)
        np.cumsum(np.bincount(sends, minlength=cells), out=cell_ptr[1:])
        ptr = np.zeros(m + 1, dtype=np.int64)
        np.cumsum(np.diff(network.hop_ptr)[arc], out=ptr[1:])
        links = len(network.links)
        start, arrival = np.empty(m, dtype=np.int64), np.empty(m, dtype=np.int64)
        begin, end = np.empty(ptr[-1], dtype=np.int64), np.empty(ptr[-1], dtype=np.int64)
        cost = network.cost
        made, open_order = queued(
            arc, chunk, reduces, np.ascontiguousarray(release, dtype=np.int64), demand.size_class, network.src,
            network.dst, network.hop_ptr, network.hop, self.alone, self.latency, cost.model == "cut_through",
            cost.link_busy == "latency+bytes", apart, until, cell_ptr, np.argsort(sends, kind="stable"),
            lacking.astype(np.int64), ptr, np.empty((5, m), dtype=np.int64), np.empty((3, 6 * m + 16), dtype=np.int64),
            np.full(links, -1), np.full(links, _FAR), np.full(links, -1), np.zeros(links, dtype=np.int64),
            np.full((2, links), -1), start, begin, end, arrival,
        )  # fmt: skip
        return Course(start, arrival, ptr, begin, end, bool(open_order)) if made == m else None
