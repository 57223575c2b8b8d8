"""Laws of planning: bytes are conserved, every rank takes part once, phases follow their dimensions."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import ScenarioError
from astrasim_py.dialects.chunks.lower import (
    DimensionPlanner,
    DimensionVisit,
    QueueTurns,
    cut,
    cut_rounded_up,
    dimension_visits,
)
from astrasim_py.program.timed import with_endpoint_delay, with_sizes
from astrasim_py.system.machine_models import Collectives
from astrasim_py.system.problem import CollectiveRequest
from astrasim_py.topology.grid import grid, rows_along
from astrasim_py.verification.verifier import verify


@lru_cache
def built(collective: str, ranks: int):
    return build("direct" if collective == "all_to_all" else "ring", collective, ranks)


def make(collective: str, ranks: int, dim: int, size: int):
    return built(collective, ranks)


def call(kind: str, size: int, ranks, **more) -> CollectiveRequest:
    members = tuple(range(ranks)) if isinstance(ranks, int) else tuple(ranks)
    return CollectiveRequest(type=kind, size=size, members=members, group="world", node=0, **more)


def sent(phase, rank: int) -> int:
    """Bytes that a rank sends in a phase."""
    for ranks, algorithm in phase.calls:
        if rank in ranks:
            at = ranks.index(rank)
            moved = algorithm.message_bytes(at, phase.size)
            return int(moved[algorithm.traces[at].type == NodeType.COMM_SEND].sum())
    raise AssertionError(f"rank {rank} is in no call")


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: 1 < prod(sizes) <= 24)


@given(size=st.integers(0, 10**6), count=st.integers(1, 70))
def test_chunks_sum_to_the_buffer_and_differ_by_a_byte(size, count):
    sizes = cut(size, count)
    assert sum(sizes) == size
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == max(min(size, count), 1)


@given(size=st.integers(1, 10**6), count=st.integers(1, 70), least=st.integers(0, 64))
def test_rounding_up_runs_equal_chunks_that_cover_the_buffer(size, count, least):
    sizes = cut_rounded_up(size, count, least)
    assert len(set(sizes)) <= 1
    if sizes:
        assert sum(sizes) >= size or sizes[0] == least
        assert sum(sizes) - sizes[0] < max(size, least * count)
    else:
        assert size < count


def test_one_mebibyte_in_three_splits_runs_four_chunks():
    assert cut_rounded_up(2**20, 3, 8) == (349525,) * 4
    planner = DimensionPlanner(sizes=(8,), make=make, how=Collectives(chunks=3, rounding="rounded_up"))
    assert [chunk.phases[0].size for chunk in planner.plan(call("all_reduce", 2**20, 8))] == [349525] * 4


def test_small_chunks_are_raised_to_the_least():
    assert cut_rounded_up(100, 4, 64) == (64,) * 4


def test_visits_of_each_collective():
    once = lambda kind, dims: tuple(DimensionVisit(kind, dim, "once") for dim in dims)  # noqa: E731
    assert dimension_visits("reduce_scatter", (0, 1, 2)) == once("reduce_scatter", (0, 1, 2))
    assert dimension_visits("all_to_all", (0, 2)) == once("all_to_all", (0, 2))
    assert dimension_visits("all_gather", (0, 1, 2)) == once("all_gather", (2, 1, 0))
    assert dimension_visits("all_reduce", (0, 1), "baseline") == once("all_reduce", (0, 1))
    assert [(v.collective, v.dim) for v in dimension_visits("all_reduce", (0, 1, 2))] == [
        ("reduce_scatter", 0),
        ("reduce_scatter", 1),
        ("all_reduce", 2),
        ("all_gather", 1),
        ("all_gather", 0),
    ]
    assert [(v.collective, v.dim) for v in dimension_visits("all_reduce", (1, 0), "two_way")] == [
        ("reduce_scatter", 1),
        ("reduce_scatter", 0),
        ("all_gather", 0),
        ("all_gather", 1),
    ]
    assert dimension_visits("all_reduce", (1,)) == (DimensionVisit("all_reduce", 1, "out"),)


def test_queues_in_turn():
    one = QueueTurns(1)
    ways = ("once", "out", "out", "back", "back")
    assert [one.take(way) for way in ways] == [(0, 1), (0, 1), (0, 1), (0, -1), (0, -1)]
    four = QueueTurns(4)
    assert [four.take("once") for _ in range(5)] == [(0, 1), (1, 1), (2, -1), (3, -1), (0, 1)]
    assert [four.take("out") for _ in range(3)] == [(0, 1), (1, 1), (0, 1)]
    assert [four.take("back") for _ in range(3)] == [(2, -1), (3, -1), (2, -1)]
    three = QueueTurns(3)
    assert [three.take("out")[0] for _ in range(2)] == [0, 0]
    assert [three.take("back")[0] for _ in range(3)] == [1, 2, 1]


@given(sizes=SIZES)
def test_rows_part_the_npus(sizes):
    everyone = range(prod(sizes))
    for dim in range(len(sizes)):
        rows = rows_along(everyone, dim, sizes)
        assert sorted(npu for row in rows for npu in row) == list(everyone)
        stride = prod(sizes[:dim])
        assert all(b - a == stride for row in rows for a, b in pairwise(row))


def test_a_grid_is_a_product_of_coordinates():
    assert grid((0, 1, 2, 3), (2, 2)) == [[0, 1], [0, 1]]
    assert grid((1, 3), (2, 2)) == [[1], [0, 1]]
    assert grid((0, 3), (2, 2)) is None
    assert grid((0, 1, 2), (2, 2)) is None


@given(
    sizes=SIZES,
    kind=st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]),
    size=st.integers(1, 5000),
    chunks=st.integers(1, 5),
    queues=st.integers(1, 3),
    way=st.sampled_from(["local_first", "baseline", "two_way"]),
)
def test_every_rank_takes_part_once_and_shards_sum_to_their_buffer(sizes, kind, size, chunks, queues, way):
    n = prod(sizes)
    planner = DimensionPlanner(
        sizes=tuple(sizes), make=make, how=Collectives(chunks=chunks, queues=queues, all_reduce=way)
    )
    planned = planner.plan(call(kind, size, n))
    full = size * n if kind == "all_gather" else size
    assert len(planner.capacity) == len(sizes) * queues
    for chunk in planned:
        for phase in chunk.phases:
            assert Counter(rank for ranks, _ in phase.calls for rank in ranks) == Counter(range(n))
            assert 0 <= phase.queue < len(planner.capacity)
            dim = phase.queue // queues
            assert all(len(ranks) == algorithm.ranks == sizes[dim] for ranks, algorithm in phase.calls)
    if kind == "all_to_all" or (way == "baseline" and kind == "all_reduce"):
        assert sum(chunk.phases[0].size for chunk in planned) == full
        return
    # A reduce_scatter or all_gather of one dimension moves n - 1 of n shards of the buffer through every row of it,
    # and the buffers of all rows of a dimension sum to as many whole ones as rows share the dimensions cut later.
    for position in range(len(planned[0].phases)):
        moved = sum(sent(chunk.phases[position], rank) for chunk in planned for rank in range(n))
        phase = planned[0].phases[position]
        dim = phase.queue // queues
        collective = phase.calls[0][1].collective
        later = prod(n_d for d, n_d in enumerate(sizes) if d > dim and n_d > 1)
        factor = 2 if collective == "all_reduce" else 1
        assert moved == full * (sizes[dim] - 1) * later * factor


def test_involved_dims_and_groups():
    planner = DimensionPlanner(sizes=(2, 3, 2), make=make)
    (chunk,) = planner.plan(call("all_reduce", 1200, 12, dims=(True, False, True)))
    assert [phase.queue for phase in chunk.phases] == [0, 2, 0]
    assert {len(ranks) for phase in chunk.phases for ranks, _ in phase.calls} == {2}
    (chunk,) = planner.plan(call("all_reduce", 1200, (0, 1, 2, 3)))
    assert [phase.queue for phase in chunk.phases] == [0, 1, 0]
    assert planner.plan(call("all_reduce", 1200, (0, 3))) is None
    assert planner.plan(call("broadcast", 1200, 12)) is None
    assert planner.plan(call("all_reduce", 1200, 12, dims=(False, False, False))) is None


def test_placement_moves_ranks_and_not_the_grid():
    placement = (3, 2, 1, 0)
    planner = DimensionPlanner(sizes=(2, 2), make=make, placement=placement)
    (chunk,) = planner.plan(call("reduce_scatter", 64, 4))
    rows = [[tuple(placement[rank] for rank in ranks) for ranks, _ in phase.calls] for phase in chunk.phases]
    assert rows == [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]


def test_equal_phases_are_one_object():
    planner = DimensionPlanner(sizes=(4, 4), make=make, how=Collectives(chunks=8))
    planned = planner.plan(call("all_reduce", 2**20, 16))
    assert len({id(phase) for chunk in planned for phase in chunk.phases}) == 3
    again = planner.plan(call("all_reduce", 2**20, 16, number=1))
    phases = [[phase for chunk in each for phase in chunk.phases] for each in (planned, again)]
    assert all(one is two for one, two in zip(*phases, strict=True))


def test_second_half_of_the_queues_runs_backwards():
    planner = DimensionPlanner(sizes=(4,), make=make, how=Collectives(chunks=2, queues=2))
    one, two = planner.plan(call("all_gather", 64, 4))
    assert one.phases[0].calls[0][0] == (0, 1, 2, 3)
    assert two.phases[0].calls[0][0] == (3, 2, 1, 0)


@given(chunks=st.integers(2, 12), active=st.integers(1, 3), order=st.sampled_from(["fixed", "themis"]))
def test_turns_number_the_visits_of_each_queue_and_agree_with_phases(chunks, active, order):
    rate = (Fraction(100), Fraction(50), Fraction(10))
    how = Collectives(chunks=chunks, active_chunks=active, order=order)
    planner = DimensionPlanner(sizes=(2, 4, 3), make=make, how=how, rate=rate)
    planned = planner.plan(call("all_reduce", 9999, 24))
    for queue in range(3):
        turns = [t for s in planned for t, p in zip(s.turns, s.phases, strict=True) if p.queue == queue]
        assert sorted(turns) == list(range(len(turns)))
    # Started in this order with one chunk per queue, everything ends: whoever is next can be next.
    served = [0] * len(planner.capacity)
    at = [0] * len(planned)
    left = sum(len(chunk.phases) for chunk in planned)
    while left:
        ready = [
            k
            for k, chunk in enumerate(planned)
            if at[k] < len(chunk.phases) and chunk.turns[at[k]] == served[chunk.phases[at[k]].queue]
        ]
        assert ready
        for k in ready:
            served[planned[k].phases[at[k]].queue] += 1
            at[k] += 1
            left -= 1


def test_themis_balances_what_the_fixed_order_does_not():
    def loads(order: str) -> list[int]:
        how = Collectives(chunks=32, order=order, all_reduce="two_way")
        planner = DimensionPlanner(sizes=(4, 4, 4), make=make, how=how, rate=(Fraction(1000),) * 3)
        total = [0] * 3
        for chunk in planner.plan(call("all_reduce", 2**20, 64)):
            for phase in chunk.phases:
                total[phase.queue] += phase.size
        return total

    assert loads("fixed") == [2 * 2**20, 2 * 2**18, 2 * 2**16]
    assert max(loads("themis")) < 1.2 * min(loads("themis"))


def test_themis_prefers_the_faster_dimension_for_the_whole_chunk():
    how = Collectives(chunks=10, order="themis", all_reduce="two_way")
    planner = DimensionPlanner(sizes=(4, 4), make=make, how=how, rate=(Fraction(10), Fraction(1000)))
    planned = planner.plan(call("reduce_scatter", 2**20, 16))
    assert [chunk.phases[0].queue for chunk in planned].count(1) >= 8
    # Its shard is the smaller chunk in the dimension that comes next, and goes first there.
    assert all(chunk.phases[1].priority > chunk.phases[0].priority for chunk in planned)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"chunks": 0}, "chunks"),
        ({"active_chunks": 0}, "active"),
        ({"chunks": 10**12}, "more than"),
        ({"queues": 0}, "queues"),
        ({"order": "themys"}, "themys"),
        ({"rounding": "down"}, "down"),
        ({"order": "themis"}, "bandwidth"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, word):
    with pytest.raises(ScenarioError, match=word):
        DimensionPlanner(sizes=(4,), make=make, how=Collectives(**options))


@pytest.mark.parametrize("name", ["ring", "direct", "recursive_doubling", "double_binary_tree"])
def test_a_delay_per_message_keeps_the_algorithm_right(name):
    plain = build(name, "all_reduce", 5)
    delayed = with_endpoint_delay(plain, 7000)
    assert with_endpoint_delay(plain, 0) is plain
    assert verify(delayed).ok and delayed.messages == plain.messages
    for rank in range(5):
        before, after = plain.traces[rank], delayed.traces[rank]
        received = int((before.type == NodeType.COMM_RECV).sum())
        waits = (after.type == NodeType.COMP) & (after.column("duration_ps") == 7000)
        assert int(waits.sum()) == received == len(after) - len(before)
        # Nothing waits for a receive but its delay.
        ptr, parents = after.parents("data+ctrl")
        children = np.repeat(np.arange(len(after)), np.diff(ptr))
        assert waits[children[after.type[parents] == NodeType.COMM_RECV]].all()


@given(size=st.integers(0, 10**5))
def test_bound_sizes_are_those_of_the_buffer(size):
    algorithm = built("reduce_scatter", 5)
    fixed = with_sizes(algorithm, size)
    for rank in range(5):
        assert fixed.message_bytes(rank, 123).tolist() == algorithm.message_bytes(rank, size).tolist()
