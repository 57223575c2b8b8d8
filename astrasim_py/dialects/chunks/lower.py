"""Collectives dimension by dimension: chunks, phases, queues and the order of dimensions.

After Cho et al., "BlueConnect" (MLSys 2019) and Rashidi et al., "Themis" (ISCA 2022).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from astrasim_py.core.choices import ALL_REDUCE_WAYS, BY_DIMENSION, CHUNK_ROUNDINGS, DIMENSION_ORDERS
from astrasim_py.core.errors import ScenarioError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.timed import with_endpoint_delay, with_sizes
from astrasim_py.system.machine_models import Collectives
from astrasim_py.system.problem import CollectiveRequest, PlannedChunk, PlannedPhase
from astrasim_py.topology.grid import grid, rows_along

EXACT, ROUNDED_UP = CHUNK_ROUNDINGS
LOCAL_FIRST, BASELINE, TWO_WAY = ALL_REDUCE_WAYS
FIXED, THEMIS = DIMENSION_ORDERS


def cut(size: int, count: int) -> tuple[int, ...]:
    """Cut `size` bytes into `count` chunks that differ by at most a byte and sum to `size`; omit empty chunks.

    >>> cut(10, 3)
    (3, 3, 4)
    >>> cut(2, 3)
    (1, 1)
    """
    sizes = [(i + 1) * size // count - i * size // count for i in range(count)]
    return tuple(part for part in sizes if part) or (0,)


def cut_rounded_up(size: int, count: int, least: int = 0) -> tuple[int, ...]:
    """Cut as ASTRA-sim does: chunks of ⌊size / count⌋ bytes, and one more for the remainder.

    `size`: bytes. `count`: ``preferred-dataset-splits``. `least`: minimum size of a chunk; if chunks were smaller,
    returns `count` chunks of this size. Returns equal sizes; empty if a chunk would have no bytes.

    >>> cut_rounded_up(1048576, 3)
    (349525, 349525, 349525, 349525)
    """
    chunk = size // count
    if chunk < least:
        chunk, size = least, least * count
    return (chunk,) * -(-size // chunk) if chunk else ()


@dataclass(frozen=True, slots=True)
class DimensionVisit:
    """One phase without a size: a collective in a dimension."""

    collective: str
    dim: int
    way: str  # ``once``, ``out`` or ``back``: the queues it takes (`QueueTurns`)


def dimension_visits(
    collective: str, order: Sequence[int], all_reduce: str = LOCAL_FIRST
) -> tuple[DimensionVisit, ...]:
    """Phases of a collective over some dimensions.

    `collective`: all_reduce, reduce_scatter, all_gather or all_to_all. `order`: dimensions, the innermost first. An
    all_gather visits them in reverse. `all_reduce`: ``baseline``: an all_reduce in every dimension, each on the whole
    buffer. ``local_first``: reduce_scatter in all but the last, all_reduce in the last, all_gather on the way back.
    ``two_way``: reduce_scatter in all, then all_gather on the way back.
    """
    if collective != "all_reduce" or all_reduce == BASELINE:
        dims = reversed(order) if collective == "all_gather" else order
        return tuple(DimensionVisit(collective, dim, "once") for dim in dims)
    turn = len(order) - 1 if all_reduce == LOCAL_FIRST else len(order)
    outward = [DimensionVisit("reduce_scatter", dim, "out") for dim in order[:turn]]
    top = [DimensionVisit("all_reduce", dim, "out") for dim in order[turn:]]
    return (*outward, *top, *(DimensionVisit("all_gather", visit.dim, "back") for visit in reversed(outward)))


class QueueTurns:
    """The next queue of a dimension, and the direction of rings in it: 1 clockwise, -1 anticlockwise.

    Collectives that visit a dimension ``once`` take its queues in turn, the second half of them anticlockwise. An
    all_reduce that visits dimensions twice takes the first half on the way ``out``, clockwise, and the second half on
    the way ``back``, anticlockwise: visits of both kinds never share a queue where there are two or more.
    """

    def __init__(self, queues: int, taken: Mapping[str, int] | None = None) -> None:
        self.queues, self._taken = queues, Counter(taken)

    def copy(self) -> QueueTurns:
        """An independent copy."""
        return QueueTurns(self.queues, self._taken)

    def take(self, way: str) -> tuple[int, int]:
        """Queue and direction of a visit."""
        half = self.queues // 2
        low, high = {"once": (0, self.queues), "out": (0, max(half, 1)), "back": (half, self.queues)}[way]
        queue = low + self._taken[way] % (high - low)
        self._taken[way] += 1
        clockwise = way == "out" or (way == "once" and (queue < half or not half))
        return queue, 1 if clockwise else -1


class _Members:
    """The members of a group that fills a sub-grid of the topology."""

    def __init__(self, ranks: Sequence[int], npus: Sequence[int], taken: list[list[int]], sizes: Sequence[int]) -> None:
        self.extent = [len(coordinates) for coordinates in taken]
        self.rank_at = dict(zip(npus, ranks, strict=True))
        self.rows = cache(lambda dim: rows_along(npus, dim, sizes))

    def shard(self, size: int, npu: int, cut_by: tuple[int, ...]) -> int:
        """Bytes of an NPU's shard of a buffer of `size` bytes, cut along some dimensions in turn."""
        for dim in cut_by:
            row = next(row for row in self.rows(dim) if npu in row)
            index, n = row.index(npu), len(row)
            size = (index + 1) * size // n - index * size // n
        return size


@dataclass(kw_only=True)
class DimensionPlanner:
    """Cuts all_reduce, reduce_scatter, all_gather and all_to_all into chunks that visit one dimension after the other.

    Bytes are conserved: the chunks of a buffer sum to its size, and so do the shards of every reduce_scatter, even if
    nothing divides evenly. The job's table of algorithms handles rooted collectives, barriers and groups that are no
    sub-grid of the topology.

    `make`: ``make(collective, ranks, dim, size) -> Algorithm``: the algorithm of a dimension. Order ``fixed`` visits
    the innermost dimension first. Order ``themis`` balances the load of the dimensions by an order per chunk; in each
    dimension the smallest waiting chunk goes first (Rashidi et al., ISCA 2022).
    """

    sizes: tuple[int, ...]  # NPUs along each dimension, the innermost first
    make: Callable[[str, int, int, int], Algorithm]
    how: Collectives = Collectives()
    rate: tuple[Fraction, ...] = ()  # bytes per second of an NPU in each dimension, by which Themis weighs dimensions
    latency_ps: tuple[int, ...] = ()  # latency of one step in each dimension, likewise
    placement: tuple[int, ...] | None = None  # rank → NPU; None where rank r is on NPU r

    def __post_init__(self) -> None:
        self._members_of, self._phase = cache(self._find_members), cache(self._make_phase)
        self._with_sizes = cache(with_sizes)
        self._with_delay = cache(lambda algorithm: with_endpoint_delay(algorithm, self.how.endpoint_delay))
        if self.how.order == THEMIS and len(self.rate) != len(self.sizes):
            raise ScenarioError("planning.order", "themis weighs dimensions by their bandwidth", "give one rate each")

    @property
    def capacity(self) -> tuple[int, ...]:
        """Chunks that each queue of an NPU runs at once; queue = dim · queues + number."""
        return (-(-self.how.active_chunks // self.how.queues),) * (len(self.sizes) * self.how.queues)

    def placed(self, placement: tuple[int, ...]) -> DimensionPlanner:
        """The planner for a placement: rank r is on NPU `placement[r]`."""
        return replace(self, placement=placement)

    def plan(self, request: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Chunks of a call; None where the planner does not apply."""
        members = self._members_of(request.members) if request.type in BY_DIMENSION else None
        if members is None:
            return None
        stated = request.dims or ()
        dims = tuple(d for d, n in enumerate(members.extent) if n > 1 and (d >= len(stated) or stated[d]))
        if not dims:
            return None
        turns = [QueueTurns(self.how.queues) for _ in self.sizes]
        way = TWO_WAY if self.how.order == THEMIS else self.how.all_reduce or LOCAL_FIRST
        # Phases may work on shards that the phases before them made.
        shards = request.type in ("reduce_scatter", "all_gather") or (request.type == "all_reduce" and way != BASELINE)
        load = [0] * len(self.sizes)
        chunks = []
        for size in self._cut(request, math.prod(members.extent[dim] for dim in dims)):
            order = dims
            if self.how.order == THEMIS and request.type != "all_to_all":
                order = self._balanced(dims, size, members.extent, load)
            phases = []
            for visit in dimension_visits(request.type, order, way):
                queue, direction = turns[visit.dim].take(visit.way)
                cut_by = order[: order.index(visit.dim)] if shards else ()
                phases.append(self._phase(members, visit, queue, direction, size, cut_by))
            chunks.append(PlannedChunk(phases=tuple(phases), priority=request.priority))
        return self._with_turns(chunks, members.extent)

    def _find_members(self, ranks: tuple[int, ...]) -> _Members | None:
        npus = ranks if self.placement is None else tuple(self.placement[rank] for rank in ranks)
        coordinates = grid(npus, self.sizes)
        return None if coordinates is None else _Members(ranks, npus, coordinates, self.sizes)

    def _cut(self, request: CollectiveRequest, involved: int) -> tuple[int, ...]:
        """Full buffers of the chunks of a call over a number of NPUs; the size of an all_gather is one shard."""
        gathers = request.type == "all_gather"
        full = request.size * involved if gathers else request.size
        if request.full and involved == len(request.members):
            full = request.full
        if self.how.rounding == EXACT:
            return cut(full, self.how.chunks)
        shards, least = (involved, 0) if gathers else (1, len(request.members))
        return tuple(size * shards for size in cut_rounded_up(full // shards, self.how.chunks, least))

    def _balanced(self, dims: tuple[int, ...], size: int, extent: Sequence[int], load: list[int]) -> tuple[int, ...]:
        """Dimensions in ascending order of load; adds a chunk of `size` bytes to `load`."""
        order = tuple(sorted(dims, key=lambda dim: (load[dim], dim)))
        for dim in order:
            load[dim] += self.estimate(size, dim, extent[dim])
            size //= extent[dim]
        return order

    def estimate(self, size: int, dim: int, n: int) -> int:
        """Time in ps that a reduce_scatter or all_gather of `size` bytes takes over `n` NPUs of a dimension."""
        rate = self.rate[dim] if dim < len(self.rate) else 1
        latency = self.latency_ps[dim] if dim < len(self.latency_ps) else 0
        steps = (n - 1).bit_length()
        return int(size * (n - 1) * 10**12 / (n * rate)) + steps * (latency + self.how.endpoint_delay)

    def _with_turns(self, chunks: Sequence[PlannedChunk], extent: Sequence[int]) -> tuple[PlannedChunk, ...]:
        """Add the order in which every queue serves the chunks, from the estimated times of phases.

        Without a fixed order, NPUs that finish phases at different times may deadlock.
        """
        waiting: list[list[tuple[int, int, int, int]]] = [[] for _ in self.capacity]
        free, served = list(self.capacity), [0] * len(self.capacity)
        turns = [[0] * len(chunk.phases) for chunk in chunks]
        ends: list[tuple[int, int, int]] = []
        arriving, arrivals, now = [(chunk, 0) for chunk in range(len(chunks))], itertools.count(), 0
        while arriving or ends:
            if ends:
                now = ends[0][0]
            while ends and ends[0][0] == now:
                _, chunk, place = heapq.heappop(ends)
                free[chunks[chunk].phases[place].queue] += 1
                if place + 1 < len(chunks[chunk].phases):
                    arriving.append((chunk, place + 1))
            for chunk, place in arriving:
                phase = chunks[chunk].phases[place]
                heapq.heappush(waiting[phase.queue], (-phase.priority, next(arrivals), chunk, place))
            arriving = []
            for queue, heap in enumerate(waiting):
                while heap and free[queue]:
                    _, _, chunk, place = heapq.heappop(heap)
                    phase, dim = chunks[chunk].phases[place], queue // self.how.queues
                    turns[chunk][place] = served[queue]
                    served[queue] += 1
                    free[queue] -= 1
                    twice = phase.calls[0][1].collective == "all_reduce"
                    time = self.estimate(phase.size, dim, extent[dim]) * (2 if twice else 1)
                    heapq.heappush(ends, (now + time, chunk, place))
        return tuple(replace(chunk, turns=tuple(turn)) for chunk, turn in zip(chunks, turns, strict=True))

    def _make_phase(
        self, members: _Members, visit: DimensionVisit, queue: int, direction: int, size: int, cut_by: tuple[int, ...]
    ) -> PlannedPhase:
        """The phase of a visit by a chunk of `size` bytes; equal phases are one object."""
        rows = members.rows(visit.dim)
        amounts = [members.shard(size, row[0], cut_by) for row in rows]
        calls = []
        for row, amount in zip(rows, amounts, strict=True):
            algorithm = self._with_delay(self.make(visit.collective, len(row), visit.dim, amount))
            if len(set(amounts)) > 1:  # rows of one phase differ by a byte: sizes are bound to the row's own
                algorithm = self._with_sizes(algorithm, amount)
            calls.append((tuple(members.rank_at[npu] for npu in row[::direction]), algorithm))
        return PlannedPhase(
            queue=visit.dim * self.how.queues + queue,
            size=max(amounts),
            calls=tuple(calls),
            priority=-max(amounts) if self.how.order == THEMIS else 0,
        )
