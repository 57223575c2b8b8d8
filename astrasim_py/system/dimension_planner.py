"""Collectives dimension by dimension: chunks, phases, queues and the order of dimensions.

A collective over a topology of several dimensions is cut into chunks, and every chunk runs an algorithm in one
dimension after the other (Cho et al., "BlueConnect", MLSys 2019; Rashidi et al., "Themis", ISCA 2022).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from astrasim_py.core.errors import ScenarioError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.timed import with_endpoint_delay, with_sizes
from astrasim_py.system.planner_api import CollectiveRequest, PlannedChunk, PlannedPhase

# ---------------------------------------------------------------------------------------------- chunks

EXACT, ROUNDED_UP = "exact", "rounded_up"

#: Most chunks of a collective, and queues of a dimension.
MAX_CHUNKS = 2**17


def cut(size: int, count: int) -> tuple[int, ...]:
    """Cut `size` bytes into `count` chunks that differ by a byte at most and sum to `size`; empty ones are left out.

    Examples
    --------
    >>> cut(10, 3)
    (3, 3, 4)
    >>> cut(2, 3)
    (1, 1)
    """
    sizes = [(i + 1) * size // count - i * size // count for i in range(count)]
    return tuple(each for each in sizes if each) or (0,)


def cut_rounded_up(size: int, count: int, least: int = 0) -> tuple[int, ...]:
    """Cut as ASTRA-sim does: chunks of ⌊size / count⌋ bytes, and one more for the remainder.

    Parameters
    ----------
    size : int
        Bytes.
    count : int
        ``preferred-dataset-splits``.
    least : int
        Least size of a chunk: with smaller ones there are `count` chunks of this size.

    Returns
    -------
    tuple of int
        Equal sizes; empty where a chunk would have none.

    Examples
    --------
    >>> cut_rounded_up(1048576, 3)
    (349525, 349525, 349525, 349525)
    """
    chunk = size // count
    if chunk < least:
        chunk, size = least, least * count
    return (chunk,) * -(-size // chunk) if chunk else ()


# ---------------------------------------------------------------------------------------------- queues


class QueueTurns:
    """Which queue of a dimension comes next, and the direction of rings in it.

    Collectives that visit a dimension once take its queues in turn, the second half of them anticlockwise. An
    all_reduce that visits dimensions twice takes the first half on the way there, clockwise, and the second half on
    the way back, anticlockwise: visits of both kinds never share a queue where there are two or more.

    Parameters
    ----------
    queues : int
        Of one dimension, at least 1.
    """

    __slots__ = ("_any", "_back", "_out", "queues")

    def __init__(self, queues: int) -> None:
        self.queues = queues
        self._any, self._out, self._back = 0, 0, queues // 2

    def copy(self) -> QueueTurns:
        """One that goes on from here by itself."""
        new = QueueTurns(self.queues)
        new._any, new._out, new._back = self._any, self._out, self._back
        return new

    def once(self) -> tuple[int, int]:
        """Queue and direction (1 clockwise, -1 anticlockwise) of a visit that is not returned from."""
        queue = self._any
        self._any = (queue + 1) % self.queues
        return queue, -1 if self.queues > 1 and queue >= self.queues // 2 else 1

    def out(self) -> tuple[int, int]:
        """Queue and direction of a visit on the way there."""
        queue = self._out
        self._out = (queue + 1) % max(self.queues // 2, 1)
        return queue, 1

    def back(self) -> tuple[int, int]:
        """Queue and direction of a visit on the way back."""
        queue = self._back
        self._back = queue + 1 if queue + 1 < self.queues else self.queues // 2
        return queue, -1


# ---------------------------------------------------------------------------------------------- dimensions


@dataclass(frozen=True, slots=True)
class DimensionVisit:
    """One phase before it has a size: what is done in which dimension.

    Attributes
    ----------
    way : str
        ``once``, ``out`` or ``back``: which queues it takes (`QueueTurns`).
    """

    collective: str
    dim: int
    way: str


BASELINE, LOCAL_FIRST, TWO_WAY = "baseline", "local_first", "two_way"


def dimension_visits(
    collective: str, order: Sequence[int], all_reduce: str = LOCAL_FIRST
) -> tuple[DimensionVisit, ...]:
    """Phases of a collective over some dimensions.

    Parameters
    ----------
    collective : str
        all_reduce, reduce_scatter, all_gather or all_to_all.
    order : sequence of int
        Dimensions, the innermost first. An all_gather visits them in reverse.
    all_reduce : str
        ``baseline``: an all_reduce in every dimension, each on the whole buffer. ``local_first``: reduce_scatter in
        all but the last, all_reduce in the last, all_gather on the way back. ``two_way``: reduce_scatter in all, then
        all_gather on the way back.
    """
    if collective == "all_gather":
        return tuple(DimensionVisit(collective, dim, "once") for dim in reversed(order))
    if collective != "all_reduce" or all_reduce == BASELINE:
        return tuple(DimensionVisit(collective, dim, "once") for dim in order)
    turn = len(order) - 1 if all_reduce == LOCAL_FIRST else len(order)
    there = [DimensionVisit("reduce_scatter", dim, "out") for dim in order[:turn]]
    top = [DimensionVisit("all_reduce", dim, "out") for dim in order[turn:]]
    return (*there, *top, *(DimensionVisit("all_gather", visit.dim, "back") for visit in reversed(there)))


def grid(npus: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Coordinates that some NPUs take in each dimension, where the NPUs are all combinations of them; else None.

    Parameters
    ----------
    sizes : sequence of int
        NPUs along each dimension, the innermost first; NPU = a0 + n0·(a1 + n1·(…)).
    """
    taken: list[list[int]] = []
    rest = list(npus)
    count = 1
    for size in sizes:
        coordinates = sorted({npu % size for npu in rest})
        rest = [npu // size for npu in rest]
        taken.append(coordinates)
        count *= len(coordinates)
    return taken if count == len(set(npus)) == len(npus) else None


def rows_along(npus: Sequence[int], dim: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """NPUs in rows along a dimension: those of a row differ in that coordinate only, by which they ascend."""
    stride = math.prod(sizes[:dim])
    rows: dict[int, list[int]] = {}
    for npu in sorted(npus):
        rows.setdefault(npu - npu // stride % sizes[dim] * stride, []).append(npu)
    return tuple(tuple(row) for row in rows.values())


# ---------------------------------------------------------------------------------------------- the planner

#: Collectives that go by dimension.
PLANNED = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")

FIXED, THEMIS = "fixed", "themis"


@dataclass(kw_only=True)
class DimensionPlanner:
    """Cuts all_reduce, reduce_scatter, all_gather and all_to_all into chunks that visit one dimension after the other.

    Bytes are conserved: chunks of a buffer sum to it, and so do the shards of every reduce_scatter, also where
    nothing divides evenly. Rooted collectives, barriers and groups that are no sub-grid of the topology are left to
    the job's table of algorithms.

    Attributes
    ----------
    sizes : tuple of int
        NPUs along each dimension, the innermost first.
    make : callable
        ``make(collective, ranks, dim, size) -> Algorithm``: what is run in a dimension.
    chunks : int
        Into how many chunks a collective is cut.
    active : int
        Chunks that run at once in one dimension of an NPU.
    queues : int
        Queues of each dimension, among which they are divided.
    all_reduce : str
        ``local_first``, ``baseline`` or ``two_way``: see `dimension_visits`.
    order : str
        ``fixed``: innermost dimension first. ``themis``: every chunk in an order of its own, which balances the load
        of the dimensions, and in each dimension the smallest waiting chunk first (Rashidi et al., ISCA 2022).
    rate : tuple of fractions.Fraction
        Bytes per second of an NPU in each dimension: what Themis weighs dimensions by.
    latency_ps : tuple of int
        Latency of one step in each dimension, likewise.
    endpoint_delay_ps : int
        What every message costs its receiver before he goes on.
    rounding : str
        ``exact``, or ``rounded_up``: a chunk more for the remainder, as ASTRA-sim does.
    placement : tuple of int or None
        rank → NPU; None where rank r is on NPU r.
    """

    sizes: tuple[int, ...]
    make: Callable[[str, int, int, int], Algorithm]
    chunks: int = 1
    active: int = 1
    queues: int = 1
    all_reduce: str = LOCAL_FIRST
    order: str = FIXED
    rate: tuple[Fraction, ...] = ()
    latency_ps: tuple[int, ...] = ()
    endpoint_delay_ps: int = 0
    rounding: str = EXACT
    placement: tuple[int, ...] | None = None
    _phases: dict = field(default_factory=dict, repr=False)
    _made: dict = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("chunks", "active", "queues"):
            value = getattr(self, name)
            if not 1 <= value <= MAX_CHUNKS:
                bound = "less than 1" if value < 1 else f"more than {MAX_CHUNKS}"
                raise ScenarioError(f"planning.{name}", f"{value} is {bound}", f"write 1..{MAX_CHUNKS}")
        for name, allowed in (
            ("all_reduce", (LOCAL_FIRST, BASELINE, TWO_WAY)),
            ("order", (FIXED, THEMIS)),
            ("rounding", (EXACT, ROUNDED_UP)),
        ):
            if getattr(self, name) not in allowed:
                raise ScenarioError(
                    f"planning.{name}", f'"{getattr(self, name)}" is unknown', f"write one of {', '.join(allowed)}"
                )
        if self.order == THEMIS and len(self.rate) != len(self.sizes):
            raise ScenarioError("planning.order", "themis weighs dimensions by their bandwidth", "give one rate each")

    @property
    def capacity(self) -> tuple[int, ...]:
        """Streams that each queue of an NPU runs at once; queue = dim · queues + number."""
        return (-(-self.active // self.queues),) * (len(self.sizes) * self.queues)

    def plan(self, call: CollectiveRequest) -> tuple[PlannedChunk, ...] | None:
        """Streams of a call; None where the planner does not apply."""
        if call.type not in PLANNED:
            return None
        where = call.members if self.placement is None else tuple(self.placement[r] for r in call.members)
        taken = grid(where, self.sizes)
        if taken is None:
            return None
        dims = tuple(
            dim
            for dim, coordinates in enumerate(taken)
            if len(coordinates) > 1 and (call.dims is None or dim >= len(call.dims) or call.dims[dim])
        )
        if not dims:
            return None
        involved = math.prod(len(taken[dim]) for dim in dims)
        rank_at = dict(zip(where, call.members, strict=True))
        # Chunks are cut from what a rank contributes; with an all_gather that is a shard of the buffer.
        full = call.size * involved if call.type == "all_gather" else call.size
        if call.full and involved == len(call.members):
            full = call.full
        if self.rounding == EXACT:
            cuts = cut(full, self.chunks)
        else:
            shards = involved if call.type == "all_gather" else 1
            least = 0 if call.type == "all_gather" else len(call.members)
            cuts = tuple(each * shards for each in cut_rounded_up(full // shards, self.chunks, least))
        turns = [QueueTurns(self.queues) for _ in self.sizes]
        load = [0] * len(self.sizes)
        way = TWO_WAY if self.order == THEMIS else self.all_reduce
        streams = []
        for size in cuts:
            order = dims
            if self.order == THEMIS and call.type != "all_to_all":
                order = tuple(sorted(dims, key=lambda dim: (load[dim], dim)))
                share = size
                for dim in order:
                    load[dim] += self.estimate(share, dim, len(taken[dim]))
                    share //= len(taken[dim])
            phases = []
            for visit in dimension_visits(call.type, order, way):
                queue, direction = getattr(turns[visit.dim], visit.way)()
                # Dimensions in which the buffer is already cut when this one is visited.
                cut_by = order[: order.index(visit.dim)] if self.cuts(call.type, way) else ()
                phases.append(self.phase(visit, queue, direction, size, cut_by, where, rank_at))
            streams.append(PlannedChunk(phases=tuple(phases), priority=call.priority))
        return self.in_turn(streams, {dim: len(taken[dim]) for dim in dims})

    @staticmethod
    def cuts(collective: str, way: str) -> bool:
        """Whether phases of a collective work on shards that the phases before them made."""
        return collective in ("reduce_scatter", "all_gather") or (collective == "all_reduce" and way != BASELINE)

    def estimate(self, size: int, dim: int, n: int) -> int:
        """Time in ps that a reduce_scatter or all_gather of `size` bytes takes over `n` NPUs of a dimension."""
        rate = self.rate[dim] if dim < len(self.rate) else 1
        latency = self.latency_ps[dim] if dim < len(self.latency_ps) else 0
        steps = (n - 1).bit_length()
        return int(size * (n - 1) * 10**12 / (n * rate)) + steps * (latency + self.endpoint_delay_ps)

    def in_turn(self, streams: Sequence[PlannedChunk], n: Mapping[int, int]) -> tuple[PlannedChunk, ...]:
        """The streams with the order in which every queue serves them: as they would be if phases took as estimated.

        Without one, NPUs that finish phases at different times may start chunks in different orders, and then wait
        for each other for ever.
        """
        capacity = self.capacity
        waiting: list[list[tuple[int, int, int, int]]] = [[] for _ in capacity]
        running = [0] * len(capacity)
        served = [0] * len(capacity)
        turns = [[0] * len(stream.phases) for stream in streams]
        ends: list[tuple[int, int, int]] = []
        arrivals = 0

        def arrive(chunk: int, p: int) -> None:
            nonlocal arrivals
            phase = streams[chunk].phases[p]
            heapq.heappush(waiting[phase.queue], (-phase.priority, arrivals, chunk, p))
            arrivals += 1

        now = 0
        for chunk in range(len(streams)):
            arrive(chunk, 0)
        while True:
            for queue, heap in enumerate(waiting):
                while heap and running[queue] < capacity[queue]:
                    _, _, chunk, p = heapq.heappop(heap)
                    turns[chunk][p] = served[queue]
                    served[queue] += 1
                    running[queue] += 1
                    phase = streams[chunk].phases[p]
                    dim = queue // self.queues
                    time = self.estimate(phase.size, dim, n[dim])
                    twice = phase.calls[0][1].collective == "all_reduce"
                    heapq.heappush(ends, (now + time * (2 if twice else 1), chunk, p))
            if not ends:
                break
            now = ends[0][0]
            while ends and ends[0][0] == now:
                _, chunk, p = heapq.heappop(ends)
                running[streams[chunk].phases[p].queue] -= 1
                if p + 1 < len(streams[chunk].phases):
                    arrive(chunk, p + 1)
        return tuple(replace(stream, turns=tuple(turn)) for stream, turn in zip(streams, turns, strict=True))

    def phase(
        self,
        visit: DimensionVisit,
        queue: int,
        direction: int,
        size: int,
        cut_by: tuple[int, ...],
        where: tuple[int, ...],
        rank_at: Mapping[int, int],
    ) -> PlannedPhase:
        """The phase of a visit of a chunk of `size` bytes; equal ones are one object."""
        key = (visit, queue, direction, size, cut_by, where, tuple(rank_at.values()))
        if key in self._phases:
            return self._phases[key]
        rows = rows_along(where, visit.dim, self.sizes)
        calls, amounts = [], []
        for row in rows:
            amounts.append(self.shard(size, row[0], cut_by, where))
            ordered = row if direction > 0 else row[::-1]
            algorithm = self.algorithm(visit.collective, len(row), visit.dim, amounts[-1])
            calls.append((tuple(rank_at[npu] for npu in ordered), algorithm))
        if len(set(amounts)) > 1:
            calls = [
                (ranks, self.bound(algorithm, amount))
                for (ranks, algorithm), amount in zip(calls, amounts, strict=True)
            ]
        made = PlannedPhase(
            queue=visit.dim * self.queues + queue,
            size=max(amounts),
            calls=tuple(calls),
            priority=-max(amounts) if self.order == THEMIS else 0,
        )
        self._phases[key] = made
        return made

    def shard(self, size: int, npu: int, cut_by: tuple[int, ...], where: tuple[int, ...]) -> int:
        """Bytes of the shard of an NPU, of a buffer of `size` bytes that was cut along some dimensions in turn."""
        for dim in cut_by:
            row = next(row for row in self.rows(where, dim) if npu in row)
            index, n = row.index(npu), len(row)
            size = (index + 1) * size // n - index * size // n
        return size

    def rows(self, where: tuple[int, ...], dim: int) -> tuple[tuple[int, ...], ...]:
        key = ("rows", where, dim)
        if key not in self._made:
            self._made[key] = rows_along(where, dim, self.sizes)
        return self._made[key]

    def algorithm(self, collective: str, n: int, dim: int, size: int) -> Algorithm:
        made = self.make(collective, n, dim, size)
        key = "delayed", made
        if key not in self._made:
            self._made[key] = with_endpoint_delay(made, self.endpoint_delay_ps)
        return self._made[key]

    def bound(self, algorithm: Algorithm, size: int) -> Algorithm:
        """The algorithm with its sizes bound to a buffer: calls of one phase may differ by a byte."""
        key = "bound", algorithm, size
        if key not in self._made:
            self._made[key] = with_sizes(algorithm, size)
        return self._made[key]
