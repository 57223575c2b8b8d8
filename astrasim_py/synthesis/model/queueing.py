"""Transfers in the order of queues: links serve in the order of requests, and messages wait in switches for ports.

A schedule says when each transfer is posted. It asks for each next link when its head (of ``store_and_forward``: its
tail) arrives, and gets it after all earlier requests. Of requests at the same moment the transfer that was posted first
goes first. No two are posted at the same moment: one of them is posted a picosecond later.
"""

from collections import namedtuple

import numpy as np

from astrasim_py.core.heap import ENTRY, pop, push
from astrasim_py.core.jit import kernel, lean
from astrasim_py.core.rows import pointers
from astrasim_py.synthesis.model.cells import cells_of
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.insertion import GO
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import hop_services

_FAR = np.int64(2**62)
#: Events, in this order at one moment.
_ARRIVES, _READY, _ASKS, _POSTS = range(4)

#: Arcs, and how links serve: what compiled code needs of a network.
_Ports = namedtuple("_Ports", "hop_ptr hop alone latency cut_through keeps_latency")

#: Transfers to be executed, the most urgent first; those that are sent from each cell; arrivals that it lacks.
_Posts = namedtuple("_Posts", "arc chunk reduces release size_class source target cell_ptr waiting lacking")

#: Memory by transfer (hops behind it, tail at the next, posted before it, the heap of its link) and by link.
_State = namedtuple("_State", "heap rank at tail number left right top looks booked free asked")

#: The course of posted transfers: start and arrival (int64[transfers]), and holds of their hops, in ps (none where they
#: are not wanted). `open_order`: two transfers posted at the same moment ask for a link at the same moment.
Course = namedtuple("Course", "start arrival ptr begin end open_order", defaults=(False,))


@lean
def _arrive(ports, posts, state, i, t, step, size):
    """Transfer i arrives: transfers that waited for it become ready. Returns the size of the heap."""
    cell = np.int64(posts.target[i])
    sums = np.int64(1 if posts.reduces[i] else 0)
    posts.lacking[sums, cell] -= 1
    if posts.lacking[1, cell] == 0:
        for w in range(posts.cell_ptr[cell], posts.cell_ptr[cell + 1]):
            j = posts.waiting[w]
            if (sums == 1) if posts.reduces[j] else posts.lacking[0, cell] == 0:
                push(state.heap, size, max(t, posts.release[j]), _READY * step + j, j)
                size += 1
    return size


@lean
def _enqueue(ports, posts, state, i, t, step, size):
    """Transfer i waits for its first link. Returns the size of the heap."""
    r = np.int64(ports.hop[ports.hop_ptr[posts.arc[i]]])
    state.left[i] = state.right[i] = -1
    state.top[r] = merge(state.top[r], i, state.rank, state.left, state.right)
    at = max(t, state.free[r])
    if at < state.looks[r]:
        state.looks[r] = at
        push(state.heap, size, at, _POSTS * step + r, r)
        size += 1
    return size


@lean
def _serve(ports, posts, state, times, i, t, step, size):
    """Transfer i takes its next link; (size of the heap, whether two asked at once that were posted at once)."""
    a, z, k = np.int64(posts.arc[i]), np.int64(posts.size_class[posts.chunk[i]]), state.at[i]
    h = ports.hop_ptr[a] + k
    r = np.int64(ports.hop[h])
    open_order = state.asked[0, r] == t and state.asked[1, r] == times.start[i]
    state.asked[0, r], state.asked[1, r] = t, times.start[i]
    first = max(t, state.free[r])
    last = first + ports.alone[z, h]
    if ports.cut_through:
        last = max(last, state.tail[i])
    tail = last + ports.latency[h]
    state.free[r] = tail if ports.keeps_latency else last
    if len(times.begin):
        times.begin[times.ptr[i] + k], times.end[times.ptr[i] + k] = first, state.free[r]
    state.at[i], state.tail[i] = k + 1, tail
    if h + 1 == ports.hop_ptr[a + 1]:
        push(state.heap, size, tail, np.int64(i), i)
    else:
        at = first + ports.latency[h] if ports.cut_through else tail
        push(state.heap, size, at, _ASKS * step + state.number[i], i)
    size += 1
    if k == 0 and state.top[r] >= 0:
        state.looks[r] = state.free[r]
        push(state.heap, size, state.free[r], _POSTS * step + r, r)
        size += 1
    return size, open_order


@kernel("the synthesizer", threads=True, lean=True)
def execute(ports, posts, state, times, apart, until, stop):
    """Execute transfers until a time or a stop signal: (how many arrived, whether the order of two requests was open).

    With `apart` no two are posted at the same moment.
    """
    m, size, made = len(posts.arc), np.int64(0), np.int64(0)
    open_order, step = False, np.int64(m + len(state.free) + 1)
    last_post, number = np.int64(-1), np.int64(0)
    for i in range(m):
        cell = np.int64(posts.source[i])
        times.start[i] = -1
        if posts.lacking[1, cell] == 0 and (posts.reduces[i] or posts.lacking[0, cell] == 0):
            push(state.heap, size, posts.release[i], _READY * step + i, i)
            size += 1
    while size:
        t, kind, i = state.heap[0].key, state.heap[0].tie // step, state.heap[0].item
        size = pop(state.heap, size)
        if t > until or stop[0] != 0:
            break
        if kind == _ARRIVES:
            times.arrival[i] = t
            made += 1
            size = _arrive(ports, posts, state, i, t, step, size)
            continue
        if kind == _READY:
            size = _enqueue(ports, posts, state, i, t, step, size)
            continue
        if kind == _POSTS:
            r = i
            if state.looks[r] != t or state.top[r] < 0:
                continue
            if apart and t <= last_post and state.booked[r] != t:
                last_post += 1
                state.looks[r] = state.booked[r] = last_post
                push(state.heap, size, last_post, _POSTS * step + r, r)
                size += 1
                continue
            state.looks[r], last_post = _FAR, max(last_post, t)
            i = state.top[r]
            state.top[r] = merge(state.left[i], state.right[i], state.rank, state.left, state.right)
            state.at[i], state.tail[i], state.number[i], times.start[i] = 0, t, number, t
            number += 1
        size, together = _serve(ports, posts, state, times, i, t, step, size)
        open_order = open_order or together
    return made, open_order


class Queues:
    """Executes transfers on a network that is not reversed and has no other users."""

    def __init__(self, network: Network, demand: Demand) -> None:
        self.network, self.demand = network, demand
        cost = network.cost
        alone, latency = hop_services(network.topology, network.links[network.hop], demand.sizes.tolist())
        self._ports = _Ports(
            network.hop_ptr, network.hop, alone, latency,
            cost.model == "cut_through", cost.link_busy == "latency+bytes",
        )  # fmt: skip

    def course_until(
        self, arc, chunk, reduces, release, *, apart: bool = False, until: int = 2**62, stop=GO, holds: bool = True
    ) -> Course | None:
        """The course of transfers, the most urgent first, none before its `release`.

        None: not all are done by `until`, or before a stop signal. Without `holds` those are not kept.
        """
        network = self.network
        arc, chunk = np.ascontiguousarray(arc, dtype=np.int32), np.ascontiguousarray(chunk, dtype=np.int32)
        reduces, m = np.ascontiguousarray(reduces, dtype=np.bool_), len(arc)
        cells = cells_of(network, arc, chunk, self.demand.count)
        lacking = np.zeros((2, cells.total), dtype=np.int32)
        for kind in (False, True):
            if (reduces == kind).any():
                lacking[int(kind)] = np.bincount(cells.target[reduces == kind], minlength=cells.total)
        posts = _Posts(
            arc, chunk, reduces, np.ascontiguousarray(release, dtype=np.int64), self.demand.size_class, cells.source,
            cells.target, pointers(np.bincount(cells.source, minlength=cells.total)),
            np.argsort(cells.source, kind="stable"), lacking,
        )  # fmt: skip
        ptr = pointers(np.diff(network.hop_ptr)[arc])
        start, arrival = np.empty((2, m), dtype=np.int64)
        begin, end = np.empty((2, ptr[-1] if holds else 0), dtype=np.int64)
        links = len(network.links)
        # In the heap: an event of every transfer, a look at every link, and looks that came before their time.
        state = _State._make((
            np.empty(2 * m + links + 16, dtype=ENTRY), -np.arange(m, dtype=np.int32), np.empty(m, dtype=np.int32),
            np.empty(m, dtype=np.int64), *np.empty((3, m), dtype=np.int32), np.full(links, -1), np.full(links, _FAR),
            np.full(links, -1), np.zeros(links, dtype=np.int64), np.full((2, links), -1),
        ))  # fmt: skip
        times = Course(start, arrival, ptr, begin, end)
        made, open_order = execute(self._ports, posts, state, times, apart, until, stop)
        return times._replace(open_order=bool(open_order)) if made == m else None

    def executed(self, arc, chunk, reduces, until: int, stop=GO) -> tuple[int, tuple] | None:
        """(time, (arc, chunk, reduces, start)) of transfers in this order of urgency; None: they take longer."""
        release = np.zeros(len(arc), dtype=np.int64)
        limits = {"until": until, "stop": stop, "holds": False}
        course = self.course_until(arc, chunk, reduces, release, **limits)
        if course is not None and course.open_order:
            course = self.course_until(arc, chunk, reduces, release, apart=True, **limits)
        return None if course is None else (int(course.arrival.max(initial=0)), (arc, chunk, reduces, course.start))


@lean
def merge(a, b, rank, left, right):
    """The root of two heaps (by their roots; -1: empty) made one, the greatest rank first."""
    if a < 0:
        return b
    if b < 0:
        return a
    if rank[a] < rank[b]:
        a, b = b, a
    root = a
    while True:
        r = right[a]
        right[a] = left[a]
        if r < 0:
            left[a] = b
            return root
        if rank[r] < rank[b]:
            r, b = b, r
        left[a] = r
        a = r
