"""Generated workloads: what every item becomes, in which order, on which ranks."""

from __future__ import annotations

import re
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.chakra.et_io import encode_trace
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import MISSING, CommType, NodeType
from astrasim_py.core.errors import ScenarioError, TraceError
from astrasim_py.workload.items import Barrier, Collective, Compute, Memory, Send
from astrasim_py.workload.microbenchmarks import MAX_NODES, generate
from astrasim_py.workload.tiles import tile_times


def parents(trace) -> list[list[int]]:
    ptr, rows = trace.parents()
    return [rows[ptr[i] : ptr[i + 1]].tolist() for i in range(len(trace))]


def test_items_run_one_after_the_other_on_every_rank():
    items = [Collective(type="all_reduce", size=64), Compute(time=1), Barrier()]
    workload = generate(items, 3)
    assert workload.ranks == 3
    assert [parents(trace) for trace in workload.traces] == [[[], [0], [1]]] * 3


def test_a_rank_that_takes_no_part_waits_for_its_own_last_item():
    items = [Compute(time=1), Compute(time=2, ranks=(1,)), Compute(time=3)]
    workload = generate(items, 2)
    assert parents(workload.traces[0]) == [[], [0]]
    assert parents(workload.traces[1]) == [[], [0], [1]]


def test_after_names_what_an_item_waits_for():
    items = [
        Compute(time=1, name="a"),
        Compute(time=2, name="b", after=()),
        Compute(time=3, after=("a", "b")),
        Compute(time=4, after=("a",)),
        Compute(time=5),
    ]
    assert parents(generate(items, 1).traces[0]) == [[], [], [0, 1], [0], [3]]


def test_repetitions_follow_each_other():
    items = [Compute(time=1), Collective(type="all_reduce", size=8, repeat=3), Compute(time=2)]
    assert parents(generate(items, 2).traces[1]) == [[], [0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("kind", "code", "comm_size"),
    [
        ("all_reduce", CommType.ALL_REDUCE, 1000),
        ("reduce_scatter", CommType.REDUCE_SCATTER, 1000),
        ("all_to_all", CommType.ALL_TO_ALL, 1000),
        ("custom", CommType.CUSTOM, 1000),
        ("broadcast", CommType.BROADCAST, 1000),
        ("reduce", CommType.REDUCE, 1000),
        ("gather", CommType.GATHER, 1000),
        ("scatter", CommType.SCATTER, 1000),
        # The shard, rounded up; coll_size is exact.
        ("all_gather", CommType.ALL_GATHER, 334),
    ],
)
def test_a_collective_states_its_exact_size(kind, code, comm_size):
    trace = generate([Collective(type=kind, size=1000)], 3).traces[0]
    assert trace.type.tolist() == [NodeType.COMM_COLL]
    assert trace.column("comm_type").tolist() == [code]
    assert trace.column("comm_size").tolist() == [comm_size]
    assert trace.column("coll_size").tolist() == [1000]


def test_a_root_is_stated():
    trace = generate([Collective(type="broadcast", size=10, root=2)], 3).traces[0]
    assert trace.column("comm_root").tolist() == [2]


@pytest.mark.parametrize(
    ("picoseconds", "micros"), [(0, 0), (1, 1), (10**6, 1), (10**6 + 1, 2), (3 * 10**12, 3 * 10**6)]
)
def test_compute_times_are_exact(picoseconds, micros):
    trace = generate([Compute(time=picoseconds)], 1).traces[0]
    assert trace.column("duration_ps").tolist() == [picoseconds]
    assert trace.duration_micros.tolist() == [micros]


def test_compute_may_be_operations_for_the_roofline():
    trace = generate([Compute(operations=10**12, bytes=10**9)], 1).traces[0]
    assert trace.column("num_ops").tolist() == [10**12]
    assert trace.column("tensor_size").tolist() == [10**9]
    assert not trace.has_column("duration_ps")


def test_memory_requests_are_loads_and_stores():
    workload = generate([Memory(load=5), Memory(store=6, ranks=(0,))], 2)
    assert workload.traces[0].type.tolist() == [NodeType.MEM_LOAD, NodeType.MEM_STORE]
    assert workload.traces[0].column("tensor_size").tolist() == [5, 6]
    assert workload.traces[1].type.tolist() == [NodeType.MEM_LOAD]


def test_a_message_is_a_send_and_a_receive():
    workload = generate([Send(source=0, to=2, size=7, tag=3)], 3)
    send, none, recv = workload.traces
    assert (send.type.tolist(), recv.type.tolist(), len(none)) == ([NodeType.COMM_SEND], [NodeType.COMM_RECV], 0)
    for trace in (send, recv):
        columns = {c: trace.column(c).tolist() for c in ("comm_src", "comm_dst", "comm_size", "comm_tag")}
        assert columns == {"comm_src": [0], "comm_dst": [2], "comm_size": [7], "comm_tag": [3]}


def test_groups_run_side_by_side_under_names_of_their_own():
    groups = {"tp": [[0, 1], [2, 3]], "dp": [[3, 1]]}
    items = [Collective(type="all_reduce", size=8, group="tp"), Collective(type="all_gather", size=8, group="dp")]
    workload = generate(items, 5, groups)
    assert workload.groups == {"tp.0": (0, 1), "tp.1": (2, 3), "dp": (3, 1)}
    assert [len(trace) for trace in workload.traces] == [1, 2, 1, 2, 0]
    codes, names = workload.traces[3].group_of()
    assert [names[c] for c in codes] == ["tp.1", "dp"]
    assert workload.traces[3].column("comm_size").tolist() == [8, 4]


def test_a_group_may_be_listed_in_place():
    workload = generate([Collective(type="all_reduce", size=8, group=(2, 0))], 3)
    (name,) = workload.groups
    assert workload.members(name) == (2, 0)
    assert len(workload.traces[1]) == 0


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (Collective(type="all_reduce", size=8, group="tp"), 'group "tp" is not defined'),
        (Collective(type="all_reduce", size=8, group=(0, 9)), "has rank 9, and there are 4"),
        (Collective(type="broadcast", size=8, root=4), "4 is not a position in a group of 4"),
        (Compute(time=1, ranks=(4,)), "rank 4 does not exist"),
        (Memory(load=1, ranks=(7,)), "rank 7 does not exist"),
        (Send(source=0, to=4, size=1), "rank 4 does not exist"),
        (Compute(time=1, after=("x",)), '"x" is not an earlier item'),
    ],
)
def test_what_cannot_be_generated_is_said_with_its_place(item, problem):
    with pytest.raises(ScenarioError, match=rf"^workload\[0\].*{problem}"):
        generate([item], 4)


def test_too_many_nodes_are_refused_before_they_are_made():
    with pytest.raises(ScenarioError, match=rf"^workload\[0\].*20000000 nodes, more than {MAX_NODES}"):
        generate([Compute(time=1, ranks=tuple(range(200)), repeat=100_000)], 200)


def test_a_group_that_lists_a_rank_twice_is_refused():
    with pytest.raises(TraceError, match="rank 1 is listed twice"):
        generate([Collective(type="all_reduce", size=8, group="g")], 3, {"g": [[0, 1, 1]]})


def test_ranks_that_do_the_same_share_one_trace():
    workload = generate([Collective(type="all_reduce", size=8), Compute(time=1, ranks=(5,))], 64)
    assert len({id(trace) for trace in workload.traces}) == 2


def test_items_without_sense_are_refused():
    for wrong in (
        lambda: Compute(time=1, ranks=()),
        lambda: Compute(time=1, repeat=10**9),
        lambda: Compute(time=1, operations=1),
        lambda: Memory(load=1, ranks=(-1,)),
        lambda: Send(source=0, to=0, size=1),
        lambda: Collective(type="all_reduce", size=-1),
    ):
        with pytest.raises(ScenarioError):
            wrong()


def test_generated_traces_lint_clean_and_encode():
    items = [
        Collective(type="all_gather", size=1000),
        Compute(time=1500),
        Send(source=1, to=0, size=8),
        Barrier(),
    ]
    workload = generate(items, 3)
    assert [f for f in lint(workload.traces) if f.level == "error"] == []
    assert all(encode_trace(trace) for trace in workload.traces)


def test_equal_items_give_equal_digests():
    items = [Collective(type="all_reduce", size=8, repeat=2), Compute(time=7)]
    assert generate(items, 4).digest() == generate(list(items), 4, name="other").digest()
    assert generate(items, 4).digest() != generate(items, 5).digest()


def test_a_thousand_ranks_are_quick():
    begin = time.process_time()
    workload = generate([Collective(type="all_reduce", size=8, repeat=20), Compute(time=1)], 1024)
    assert sum(map(len, workload.traces)) == 1024 * 21
    assert time.process_time() - begin < 30  # about 0.1 s


def test_absent_attributes_stay_absent():
    trace = generate([Compute(time=1), Collective(type="all_reduce", size=8)], 2).traces[0]
    assert trace.column("comm_size").tolist() == [MISSING, 8]
    assert trace.column("duration_ps").tolist() == [1, MISSING]
    assert np.array_equal(trace.node_id, [0, 1])


def layer(tiles: int, **keys) -> list:
    keys = {"time": 10, "consumes": "gather", "produces": "scatter"} | keys
    return [
        Collective(type="all_gather", size=64, name="gather"),
        Compute(tiles=tiles, name="mm", **keys),
        Collective(type="reduce_scatter", size=64, name="scatter"),
    ]


def columns(trace, *names) -> list[list[int]]:
    return [trace.column(name).tolist() for name in names]


def test_tiles_wait_for_one_collective_and_make_the_input_of_the_next():
    trace = generate(layer(3), 4).traces[0]
    assert parents(trace) == [[], [0], [0], [0], [1, 2, 3]]
    assert [*trace.names[1:4]] == ["mm tile 1/3", "mm tile 2/3", "mm tile 3/3"]
    none = MISSING
    assert columns(trace, "consumes", "consumes_tile", "consumes_tiles") == [
        [none, 0, 0, 0, none], [none, 0, 1, 2, none], [none, 3, 3, 3, none]
    ]  # fmt: skip
    assert columns(trace, "produces", "produces_tile", "produces_tiles") == [
        [none, 4, 4, 4, none], [none, 0, 1, 2, none], [none, 3, 3, 3, none]
    ]  # fmt: skip


@given(st.integers(0, 10**9), st.integers(2, 40), st.integers(0, 10**6), st.fractions(Fraction(1, 10), 1))
def test_tiles_take_the_time_of_the_whole_and_what_they_cost(time, tiles, overhead, speed):
    found = tile_times(time, tiles, overhead, speed)
    assert len(found) == tiles and max(found) - min(found) <= -(-1 // speed)
    assert 0 <= (sum(found) - tiles * overhead) - time / speed <= tiles
    assert sum(tile_times(time, tiles)) == time
    assert tile_times(time, 1, overhead, speed) == [time]


def test_one_tile_is_the_computation_as_it_is():
    one, plain = (generate(layer(1, **keys), 4).traces[0] for keys in ({}, {"consumes": None, "produces": None}))
    assert parents(one) == parents(plain) and one.names == plain.names
    assert columns(one, "duration_ps") == columns(plain, "duration_ps")


def test_computations_that_produce_one_collective_are_its_tiles_in_turn():
    items = [
        Compute(time=4, name="a", tiles=2, produces="bucket"),
        Compute(time=4, name="b", produces="bucket"),
        Collective(type="all_reduce", size=64, name="bucket", after=("a", "b")),
    ]
    trace = generate(items, 2).traces[0]
    assert columns(trace, "produces_tile", "produces_tiles") == [[0, 1, 2, MISSING], [3, 3, 3, MISSING]]


def test_operations_are_cut_into_tiles():
    trace = generate(layer(4, time=None, operations=10, bytes=7), 2).traces[0]
    assert columns(trace, "num_ops", "tensor_size") == [[MISSING, 2, 3, 2, 3, MISSING], [MISSING, 1, 2, 2, 2, MISSING]]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (layer(2, consumes="nothing"), '"nothing" is not a collective before it; name one'),
        ([Compute(time=1, name="gather"), *layer(2)[1:]], '"gather" is not a collective before it; name one'),
        (layer(2, produces="gather"), '"gather" is not one collective after it; name one'),
        ([*layer(2)[:2], Collective(type="all_reduce", size=64, name="scatter", after=("gather",))], "does not wait"),
        ([layer(2)[0], Compute(time=1), layer(2)[1], layer(2)[2]], '"gather" is not one node that it waits for'),
    ],
)
def test_tiles_of_a_collective_that_is_not_before_or_after_are_refused(items, message):
    with pytest.raises(ScenarioError, match=re.escape(message)):
        generate(items, 4)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"consumes": None, "produces": None}, "tiles: needs consumes or produces"),
        ({"comm_slows_compute": 1.5}, "comm_slows_compute: is more than 1"),
        ({"time": None, "operations": 5, "tile_overhead": 3}, "tile_overhead: needs a time"),
        ({"repeat": 2}, "repeat: does not go with consumes or produces"),
    ],
)
def test_keys_of_tiles_that_do_not_go_together_are_refused(keys, message):
    with pytest.raises(ScenarioError, match=re.escape(message)):
        layer(2, **keys)
