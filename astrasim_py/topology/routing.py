"""Routes: closed forms of the regular shapes, and shortest paths of every other graph.

A router turns arrays of pairs into a CSR of link ids: ``ptr`` int64[k + 1] and ``links`` int32[m]. The route of pair i
is ``links[ptr[i]:ptr[i + 1]]``, in order of travel; it is empty if both ends are the same NPU. Routes never depend on
which other pairs are asked for, on caches, or on hash order.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from heapq import heappop, heappush
from math import prod
from typing import Protocol

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.rows import pointers, ranges

Routes = tuple[np.ndarray, np.ndarray]

_BIG = np.iinfo(np.int64).max
#: Cells (sources x vertices) of one batch of searches: bounds memory to about 100 MB.
_BATCH_CELLS = 2**21
#: Pairs per batch of dimension-order routes: temporary memory is a multiple of the routes.
_PAIRS_AT_ONCE = 2**12


@dataclass(frozen=True, slots=True)
class Dim:
    """One level of the hierarchy of NPU ids."""

    #: ``ring``, ``mesh``, ``fully_connected`` or ``switch``.
    kind: str
    size: int
    #: Bytes per second of one link of this level in one direction; of a switched level, of one NPU's share.
    bandwidth: Fraction
    #: Latency of one link.
    latency_ps: int
    #: Only a ring may be one-way.
    bidirectional: bool = True

    def links_per_npu(self) -> int:
        """Links of this dimension per NPU, where that number is the same for all (not for a mesh)."""
        if self.size == 1:
            return 0
        if self.kind == "ring":
            return 2 if self.bidirectional and self.size > 2 else 1
        return {"fully_connected": self.size - 1, "switch": 2}[self.kind]

    def links(self, npus: int) -> int:
        """Links of this dimension in a product of `npus` NPUs."""
        if self.kind == "mesh":
            return 2 * (self.size - 1) * (npus // self.size)
        return npus * self.links_per_npu()

    def switches(self, npus: int) -> int:
        """Switches of this dimension: one per slice (a slice of one NPU needs none)."""
        return npus // self.size if self.kind == "switch" and self.size > 1 else 0


class Router(Protocol):
    """Closed-form routes of a shape, and the links that it has undamaged."""

    @property
    def npus(self) -> int: ...

    @property
    def links(self) -> int: ...

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """Names of the vertices after the NPUs, and how many have each."""

    def ends(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, destination and level of every link."""

    def routes(self, src: np.ndarray, dst: np.ndarray) -> Routes: ...


@dataclass(frozen=True)
class DimensionOrder:
    """Dimension-order routes of a product of rings, meshes, fully connected dimensions and switches.

    The NPU id is little-endian mixed radix: coordinate 0 is ``id mod n0``. A message first corrects
    coordinate 0, then 1, and so on. In a ring it takes the shorter way, at a tie clockwise (+1); in a
    one-way ring always clockwise; in a mesh the only way; in a fully connected dimension the direct link;
    in a switch dimension the switch of its slice (two hops).

    Links are numbered dimension by dimension. Within a dimension of size n, with N NPUs in all:
    ring: the +1 links by source NPU, then the -1 links by source NPU (rings of 2 have one link per direction,
    so the second half does not exist); mesh: the same without the links that would wrap; fully connected: by
    source NPU, then by destination coordinate; switch: up links by NPU, then down links by NPU.
    """

    dims: tuple[Dim, ...]

    @property
    def npus(self) -> int:
        return prod(d.size for d in self.dims)

    @cached_property
    def bases(self) -> tuple[tuple[int, int, int], ...]:
        """Per dimension: stride of its coordinate, first link, first switch."""
        rows, stride, link, switch = [], 1, 0, self.npus
        for dim in self.dims:
            rows.append((stride, link, switch))
            stride *= dim.size
            link += dim.links(self.npus)
            switch += dim.switches(self.npus)
        return tuple(rows)

    @property
    def links(self) -> int:
        return sum(d.links(self.npus) for d in self.dims)

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        """Names of the switches of each dimension that has some, and their numbers."""
        counts = {index: count for index, dim in enumerate(self.dims) if (count := dim.switches(self.npus))}
        return tuple(("switch" if len(counts) == 1 else f"dim{i}.switch", count) for i, count in counts.items())

    def ends(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, destination and dimension (int32 each) of every link, in link order."""
        ids = np.arange(self.npus, dtype=np.int64)
        sources, targets = [], []
        for dim, (stride, _, switch) in zip(self.dims, self.bases, strict=True):
            n, coordinate = dim.size, ids // stride % dim.size
            src = dst = ids[:0]
            if n == 1:
                pass
            elif dim.kind == "ring":
                up = ids + np.where(coordinate == n - 1, (1 - n) * stride, stride)
                down = ids + np.where(coordinate == 0, (n - 1) * stride, -stride)
                ways = dim.links_per_npu()
                src, dst = np.tile(ids, ways), np.concatenate([up, down][:ways])
            elif dim.kind == "mesh":
                low, high = ids[coordinate < n - 1], ids[coordinate > 0]
                src, dst = np.concatenate([low, high]), np.concatenate([low + stride, high - stride])
            elif dim.kind == "fully_connected":
                others = np.tile(np.arange(n - 1, dtype=np.int64), (self.npus, 1))
                others += others >= coordinate[:, None]
                src = np.repeat(ids, n - 1)
                dst = ((ids - coordinate * stride)[:, None] + others * stride).ravel()
            else:
                hub = switch + ids // (stride * n) * stride + ids % stride
                src, dst = np.concatenate([ids, hub]), np.concatenate([hub, ids])
            sources.append(src)
            targets.append(dst)
        dims = np.repeat(np.arange(len(self.dims), dtype=np.int32), [len(s) for s in sources])
        return np.concatenate(sources).astype(np.int32), np.concatenate(targets).astype(np.int32), dims

    def _hops(self, dim: Dim, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if dim.kind == "ring":
            ahead = (b - a) % dim.size
            return np.minimum(ahead, dim.size - ahead) if dim.bidirectional else ahead
        if dim.kind == "mesh":
            return np.abs(b - a)
        return (a != b) * (2 if dim.kind == "switch" else 1)

    def lengths(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
        """Links of the routes of many pairs of NPUs, int64[k]."""
        total = np.zeros(len(src), dtype=np.int64)
        for dim, (stride, _, _) in zip(self.dims, self.bases, strict=True):
            total += self._hops(dim, src // stride % dim.size, dst // stride % dim.size)
        return total

    def routes(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        if len(src) > _PAIRS_AT_ONCE:
            starts = range(0, len(src), _PAIRS_AT_ONCE)
            parts = [self.routes(src[i : i + _PAIRS_AT_ONCE], dst[i : i + _PAIRS_AT_ONCE]) for i in starts]
            return pointers(np.concatenate([np.diff(p) for p, _ in parts])), np.concatenate([slot for _, slot in parts])
        npus = self.npus
        from_, to = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        hops = [
            self._hops(dim, from_ // stride % dim.size, to // stride % dim.size)
            for dim, (stride, _, _) in zip(self.dims, self.bases, strict=True)
        ]
        ptr = pointers(np.sum([np.zeros(len(from_), dtype=np.int64), *hops], axis=0))
        links = np.empty(ptr[-1], dtype=np.int32)
        slot = ptr[:-1].copy()
        for dim, (stride, base, _), count in zip(self.dims, self.bases, hops, strict=True):
            moving = np.flatnonzero(count)
            if len(moving):
                n = dim.size
                # Coordinates below are already the destination's, those above still the source's.
                here = from_[moving] // stride * stride + to[moving] % stride
                row, step = ranges(count[moving])
                here, a, b = (column[row] for column in (here, here // stride % n, to[moving] // stride % n))
                if dim.kind == "ring":
                    ahead = (b - a) % n
                    back = (ahead > n - ahead) & dim.bidirectional
                    coordinate = (a + np.where(back, -step, step)) % n
                    ids = base + back * npus + here + (coordinate - a) * stride
                elif dim.kind == "mesh":
                    back = b < a
                    coordinate = a + np.where(back, -step, step) - back
                    ids = here // (stride * n) * stride * (n - 1) + coordinate * stride + here % stride
                    ids += base + back * (npus // n * (n - 1))
                elif dim.kind == "fully_connected":
                    ids = base + here * (n - 1) + b - (b > a)
                else:
                    ids = base + np.where(step == 0, here, npus + here + (b - a) * stride)
                links[slot[moving][row] + step] = ids
            slot += count
        return ptr, links


def mix(*columns: np.ndarray | int) -> np.ndarray:
    """A stable 64-bit hash of rows of integers: SplitMix64's finalizer applied after each column.

    Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014 (constants of its mix64).
    """
    state = np.zeros(np.broadcast(*columns).shape, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            state = state + np.asarray(column).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state = state ^ (state >> np.uint64(31))
    return state


class ShortestPaths:
    """Routes of any graph: cheapest paths with a fixed tie-break, searched per source.

    The cost of a path is compared in this order: fewest NPUs that relay (are neither source nor destination),
    fewest hops, least sum of latencies. So a path through switches only is preferred to one that borrows
    another NPU, and in a graph without switches the rule is simply fewest hops. Ties are
    broken from the destination backwards: the last link with the lowest id, then the last but one, and so on.
    With a `seed`, at each vertex on the way back, the (hash mod count)-th of the equal links is taken; the hash
    is that of (seed, source, destination, vertex), and of the queue pair if that is not 0.

    `vertices`, `npus`: NPUs are vertices 0..npus-1. `src`, `dst`: int32[L], ends of the links. `latency_ps`: int64[L];
    the sum over any simple path must fit 63 bits. `seed`: spread equal paths by hash (ECMP).
    """

    def __init__(
        self,
        vertices: int,
        npus: int,
        src: np.ndarray,
        dst: np.ndarray,
        latency_ps: np.ndarray,
        seed: int | None = None,
    ) -> None:
        self._vertices, self._npus, self._seed = vertices, npus, seed
        self._src, self._dst, self._latency = src, dst, latency_ps
        self._out_links = np.argsort(src, kind="stable")
        self._out_ptr = np.searchsorted(src[self._out_links], np.arange(vertices + 1))
        if seed is not None:
            self._in_links = np.argsort(dst, kind="stable")
            self._in_ptr = np.searchsorted(dst[self._in_links], np.arange(vertices + 1))
        #: Cost of a relay, in hops: more than any path has.
        self._relay = vertices + 1

    def _search(self, sources: np.ndarray, rows: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, ...]:
        """Search from several sources at once until the targets (`targets[i]` of search `rows[i]`) are met.

        Distinct costs (relays, hops) are the levels of a bucket queue; all searches advance together, so each
        level is a few array operations. Within a level latencies are final because every link costs at least
        one hop.
        """
        vertices, relay = self._vertices, self._relay
        cells = len(sources) * vertices
        level = np.full(cells, _BIG)
        latency = np.full(cells, _BIG)
        link = np.full(cells, _BIG)
        start = np.arange(len(sources)) * vertices + sources
        level[start], latency[start] = 0, 0
        buckets: dict[int, list[np.ndarray]] = {0: [start]}
        queue = [0]
        searched = np.unique(rows * vertices + targets)
        missing = np.bincount(searched // vertices, minlength=len(sources))
        #: Level at which a search had met its targets and stopped; later levels are unknown.
        last_level = np.full(len(sources), _BIG)
        while queue:
            now = heappop(queue)
            cell = np.concatenate(buckets.pop(now))
            cell = cell[level[cell] == now]
            reached = level[searched] <= now
            if reached.any():
                missing -= np.bincount(searched[reached] // vertices, minlength=len(sources))
                last_level[(missing == 0) & (last_level == _BIG)] = now
                searched = searched[~reached]
                if not len(searched):
                    break
            cell = cell[last_level[cell // vertices] == _BIG]
            vertex = cell % vertices
            relays = (vertex < self._npus) & (now > 0)
            for group, cost in ((~relays, 1), (relays, 1 + relay)):
                from_, at = cell[group], vertex[group]
                if not len(from_):
                    continue
                row, step = ranges(self._out_ptr[at + 1] - self._out_ptr[at])
                links = self._out_links[self._out_ptr[at][row] + step]
                to = from_[row] - at[row] + self._dst[links]
                then = now + cost
                better = level[to] > then
                fresh = np.unique(to[better])
                level[fresh], latency[fresh], link[fresh] = then, _BIG, _BIG
                keep = level[to] == then
                to, links = to[keep], links[keep]
                arrival = latency[from_[row[keep]]] + self._latency[links]
                before = latency[to]
                np.minimum.at(latency, to, arrival)
                link[to[latency[to] < before]] = _BIG
                best = arrival == latency[to]
                np.minimum.at(link, to[best], links[best])
                if len(fresh):
                    if then not in buckets:
                        buckets[then] = []
                        heappush(queue, then)
                    buckets[then].append(fresh)
        # Vertices beyond the end of a search, or never reached, are unknown.
        unsettled = (level > np.repeat(last_level, vertices)) | (level == _BIG)
        shape = (len(sources), vertices)
        if self._seed is None:
            link[start] = 0  # never followed, but known
            link[unsettled] = -1
            return (link.astype(np.int32).reshape(shape),)
        level[unsettled] = -1
        return level.reshape(shape), latency.reshape(shape)

    def _previous(self, tables: tuple[np.ndarray, ...], row, source, target, queue_pair, vertex) -> np.ndarray:
        """The last link of the route to `vertex`, per pair."""
        if self._seed is None:
            return tables[0][row, vertex]
        level, latency = tables
        pair, step = ranges(self._in_ptr[vertex + 1] - self._in_ptr[vertex])
        links = self._in_links[self._in_ptr[vertex][pair] + step]
        tail, r = self._src[links], row[pair]
        cost = np.where((tail < self._npus) & (tail != source[pair]), 1 + self._relay, 1)
        fits = (level[r, tail] >= 0) & (level[r, tail] + cost == level[r, vertex[pair]])
        fits[fits] = latency[r, tail][fits] + self._latency[links][fits] == latency[r, vertex[pair]][fits]
        count = np.bincount(pair[fits], minlength=len(vertex))
        word = mix(self._seed, source, target, vertex)
        if queue_pair.any():
            word = np.where(queue_pair, mix(self._seed, source, target, vertex, queue_pair), word)
        pick = word % count.astype(np.uint64)
        first = np.cumsum(count) - count
        return links[fits][first + pick.astype(np.int64)]

    def routes(
        self, src: np.ndarray, dst: np.ndarray, queue_pair: np.ndarray | None = None, *, connected: bool = True
    ) -> Routes:
        """Routes of many pairs; of one without a path no links, unless all are to be `connected`.

        `queue_pair`: int64[k], which of those between two NPUs; by default 0. Raises TopologyError: they are to be
        connected, and a pair is not.
        """
        src, dst = np.asarray(src, dtype=np.int64), np.asarray(dst, dtype=np.int64)
        pair = np.zeros(len(src), dtype=np.int64) if queue_pair is None else np.asarray(queue_pair, dtype=np.int64)
        order = np.argsort(src, kind="stable")
        sources, first = np.unique(src[order], return_index=True)
        last = np.append(first[1:], len(order))
        size = max(1, _BATCH_CELLS // max(1, self._vertices))
        lengths = np.zeros(len(src), dtype=np.int64)
        pieces: list[tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]] = []
        for begin in range(0, len(sources), size):
            batch = sources[begin : begin + size]
            counts = (last - first)[begin : begin + size]
            pairs = order[first[begin] : first[begin] + counts.sum()]
            row = np.repeat(np.arange(len(batch)), counts)
            tables = self._search(batch, row, dst[pairs])
            if connected:
                _check_met(tables[0][row, dst[pairs]], src[pairs], dst[pairs])
            pieces.append((pairs, self._walk(tables, row, src[pairs], dst[pairs], pair[pairs], lengths, pairs)))
        ptr = pointers(lengths)
        links = np.empty(ptr[-1], dtype=np.int32)
        for _, steps in pieces:
            for back, (pairs, hops) in enumerate(steps, start=1):
                links[ptr[pairs + 1] - back] = hops
        return ptr, links

    def _walk(self, tables, row, source, target, pair_number, lengths, pairs) -> list[tuple[np.ndarray, np.ndarray]]:
        """Walk back from all targets at once; returns (pairs, link) per step and counts `lengths`."""
        steps = []
        moving = np.flatnonzero((source != target) & (tables[0][row, target] >= 0))
        vertex = target[moving]
        while len(moving):
            hops = self._previous(tables, row[moving], source[moving], target[moving], pair_number[moving], vertex)
            steps.append((pairs[moving], hops))
            lengths[pairs[moving]] += 1
            vertex = self._src[hops].astype(np.int64)
            go = vertex != source[moving]
            moving, vertex = moving[go], vertex[go]
        return steps


def _check_met(distance: np.ndarray, source: np.ndarray, target: np.ndarray) -> None:
    """Raise TopologyError: a pair without a path (negative in `distance`)."""
    lost = np.flatnonzero(distance < 0)
    if len(lost):
        a, b = int(source[lost[0]]), int(target[lost[0]])
        raise TopologyError("", f"no path leads from NPU {a} to NPU {b}", "add a link")


def reachable(ptr: list[int], neighbours: list[int], start: int) -> set[int]:
    """Vertices reachable from `start` in a CSR adjacency, in time proportional to them and their links."""
    seen, waiting = {start}, [start]
    while waiting:
        vertex = waiting.pop()
        for other in neighbours[ptr[vertex] : ptr[vertex + 1]]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen
