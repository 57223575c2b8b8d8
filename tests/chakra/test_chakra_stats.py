"""Figures of traces, their display and their differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import et_io
from astrasim_py.chakra.diff import Change, diff
from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.stats import Volume, show, trace_stats, workload_stats
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.core.errors import TraceError


def csr(lists: list[list[int]]) -> Csr:
    ptr = np.concatenate(([0], np.cumsum([len(one) for one in lists]))).astype(np.int64)
    return Csr(ptr, np.array([i for one in lists for i in one], dtype=np.uint64))


def mixed() -> ExecutionTrace:
    m = MISSING
    return ExecutionTrace.from_columns(
        node_id=[10, 11, 12, 13, 14, 15],
        type=[4, 7, 5, 6, 2, 7],
        data_deps=csr([[], [10], [10], [11, 12], [], [13]]),
        ctrl_deps=csr([[], [], [], [], [15], []]),
        duration_micros=[5, 7, 11, 13, 100, 1],
        names=["a", "b", "c", "d", "e", "f"],
        pg_name=[None, "4", None, None, None, "0"],
        comm_type=[m, 0, m, m, m, 7],
        comm_size=[m, 100, 20, 30, m, 2**62],
        comm_dst=[m, m, 3, m, m, m],
        comm_src=[m, m, m, 2, m, m],
        num_ops=[2**62, m, m, m, m, m],
        tensor_size=[9, m, m, m, 40, m],
    )


def test_figures_of_a_trace():
    stats = trace_stats(mixed())
    assert stats.nodes == 6 and stats.data_edges == 5 and stats.ctrl_edges == 1
    assert stats.by_type == {"MEM_LOAD": 1, "COMP": 1, "COMM_SEND": 1, "COMM_RECV": 1, "COMM_COLL": 2}
    assert stats.by_collective == {"all_reduce": Volume(1, 100), "reduce_scatter": Volume(1, 2**62)}
    assert stats.by_group == {"": Volume(1, 2**62), "4": Volume(1, 100)}
    assert stats.sent == {3: Volume(1, 20)} and stats.received == {2: Volume(1, 30)}
    assert (stats.flops, stats.memory_bytes) == (2**62, 40)
    assert (stats.compute_micros, stats.comm_micros) == (5, 32)
    assert (stats.depth, stats.critical_micros, stats.width) == (4, 100, 2)
    both = trace_stats(mixed(), "data+ctrl")
    assert (both.depth, both.critical_micros) == (5, 5 + 11 + 13 + 1 + 100)


def test_figures_of_a_workload_are_sums_and_maxima():
    trace = mixed()
    total = workload_stats([trace, trace, trace.replace(duration_micros=200)])
    assert total.traces == 3 and total.nodes == 18
    assert total.by_collective["all_reduce"] == Volume(3, 300)
    assert total.flops == 3 * 2**62
    assert (total.depth, total.width, total.critical_micros) == (4, 2, 800)


def test_cyclic_traces_have_figures_without_a_depth():
    trace = ExecutionTrace.from_columns(node_id=[1, 2], type=4, data_deps=csr([[2], [1]]))
    stats = trace_stats(trace)
    assert (stats.depth, stats.width, stats.critical_micros) == (-1, -1, -1)
    assert "cycle of 2 nodes" in stats.problem
    assert workload_stats([mixed(), trace]).depth == -1


def test_an_empty_trace_has_figures():
    stats = trace_stats(ExecutionTrace.from_columns(node_id=[], type=4))
    assert (stats.nodes, stats.depth, stats.width, stats.critical_micros) == (0, 0, 0, 0)
    assert workload_stats([]).nodes == 0


@given(st.lists(st.one_of(st.just(MISSING), st.integers(0, 2**63 - 1)), min_size=1, max_size=9))
def test_sums_are_exact(values):
    trace = ExecutionTrace.from_columns(node_id=range(len(values)), type=4, num_ops=values)
    assert trace_stats(trace).flops == sum(value for value in values if value != MISSING)


def test_huge_durations_do_not_overflow():
    chain = csr([[], [0], [1]])
    trace = ExecutionTrace.from_columns(
        node_id=[0, 1, 2], type=4, data_deps=chain, duration_micros=np.full(3, 2**64 - 1, dtype=np.uint64)
    )
    stats = trace_stats(trace)
    assert stats.compute_micros == 3 * (2**64 - 1)
    assert 0 < stats.critical_micros < 2**63


def test_show_says_everything_of_a_node():
    node = pb.Node(id=7, name="mine", type=7, data_deps=[1, 2], ctrl_deps=[3], duration_micros=4, start_time_micros=5)
    node.inputs.values = "['x']"
    node.attr.add(name="comm_size", int64_val=8)
    node.attr.add(name="many").int64_list.values.extend(range(20))
    node.attr.add(name="unset")
    header = pb.GlobalMetadata(version="0.0.4")
    header.attr.add(name="schema", string_val="test")
    parts = [header.SerializeToString(), node.SerializeToString()]
    trace = et_io.parse_trace(b"".join(varint(len(p)) + p for p in parts), "w.0.et")
    assert list(show(trace)) == [
        "w.0.et: 1 nodes, version 0.0.4",
        "  schema (string_val) = 'test'",
        "node 7 COMM_COLL mine",
        "  data_deps [1, 2]",
        "  ctrl_deps [3]",
        "  start_time_micros 5",
        "  duration_micros 4",
        "  inputs.values \"['x']\"",
        "  comm_size (int64_val) = 8",
        "  many (int64_list) = [0, 1, 2, 3, 4, 5, 6, 7, …]",
        "  unset",
    ]
    assert next(show(trace, [7])) == "node 7 COMM_COLL mine"
    for absent in (8, -1, 2**64):
        with pytest.raises(TraceError, match=f"there is no node {absent}"):
            list(show(trace, [absent]))


def test_a_trace_does_not_differ_from_itself():
    trace = mixed()
    assert diff(trace, trace).same
    read = et_io.parse_trace(et_io.encode_trace(trace))
    assert diff(trace, read).same and diff(read, trace, match="name").same


def test_changed_fields_are_told_by_node():
    trace = mixed()
    size = trace.column("comm_size").copy()
    size[1] = 101
    tag = np.full(6, MISSING)
    tag[2] = 5
    other = trace.replace(
        comm_size=size,
        comm_tag=tag,
        names=["z", "b", "c", "d", "e", "f"],
        data_deps=csr([[], [10], [], [11, 12], [], [13]]),
    )
    result = diff(trace, other, match="id")
    assert result.changes == (
        Change(10, 10, "name", "a", "z"),
        Change(11, 11, "attr comm_size", 100, 101),
        Change(12, 12, "data_deps", (10,), ()),
        Change(12, 12, "attr comm_tag", None, 5),
    )
    assert diff(trace, trace.replace(type=[4, 7, 5, 6, 3, 7])).changes == (
        Change(14, 14, "type", "MEM_LOAD", "MEM_STORE"),
    )


def test_small_differences_of_durations_can_be_tolerated():
    trace = mixed()
    other = trace.replace(duration_micros=trace.duration_micros * np.uint64(21) // np.uint64(20))
    assert [change.field for change in diff(trace, other).changes] == ["duration_micros"]
    assert diff(trace, other, duration_tolerance=0.05).same


def test_renumbered_traces_are_paired_by_name_and_type():
    trace = mixed()
    shift = np.uint64(1000)
    other = trace.replace(
        node_id=trace.node_id + shift,
        data_deps=Csr(trace.data_deps.ptr, trace.data_deps.ids + shift),
        ctrl_deps=Csr(trace.ctrl_deps.ptr, trace.ctrl_deps.ids + shift),
    )
    result = diff(trace, other)
    assert (result.match, result.matched, result.same) == ("name", 6, True)
    by_id = diff(trace, other, match="id")
    assert by_id.matched == 0 and len(by_id.only_first) == len(by_id.only_second) == 6


def test_nodes_without_a_partner_and_another_order_are_told():
    first = ExecutionTrace.from_columns(node_id=[1, 2, 3], type=4, names=["a", "b", "c"])
    second = ExecutionTrace.from_columns(
        node_id=[3, 4, 2], type=4, names=["c", "d", "b"], metadata={"x": 1}, version="9"
    )
    result = diff(first, second)
    assert (result.match, result.only_first, result.only_second, result.reordered) == ("id", (1,), (4,), True)
    assert result.changes == (Change(-1, -1, "metadata version", "", "9"), Change(-1, -1, "metadata x", None, 1))


def test_kinds_lists_and_not_a_number_are_compared():
    def one(**value) -> ExecutionTrace:
        node = pb.Node(id=1, type=4)
        (kind, content), *_ = value.items()
        setattr(node.attr.add(name="x"), kind, content)
        body = node.SerializeToString()
        return et_io.parse_trace(b"\x00" + varint(len(body)) + body)

    assert diff(one(double_val=float("nan")), one(double_val=float("nan"))).same
    assert diff(one(int32_val=1), one(int64_val=1)).changes == (Change(1, 1, "attr x kind", "int32_val", "int64_val"),)
    assert [change.field for change in diff(one(int32_val=1), one(string_val="1")).changes] == ["attr x"]


def test_unknown_ways_of_pairing_are_refused():
    with pytest.raises(ValueError, match="match is one of"):
        diff(mixed(), mixed(), match="size")
