"""Laws of ExecutionTrace and Workload."""

from __future__ import annotations

import json
import pickle
import time

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.chakra import et_io, graph
from astrasim_py.chakra.groups import groups_from_json, groups_from_metadata
from astrasim_py.chakra.schema import COLLECTIVE_CODES, COLLECTIVE_OF_CODE, INT_COLUMNS, MISSING, CommType, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError


def csr(lists: list[list[int]]) -> Csr:
    ptr = np.concatenate(([0], np.cumsum([len(one) for one in lists]))).astype(np.int64)
    return Csr(ptr, np.array([i for one in lists for i in one], dtype=np.uint64))


def trace_of(ids: list[int], data: list[list[int]], ctrl: list[list[int]] | None = None, **more) -> ExecutionTrace:
    ctrl_deps = None if ctrl is None else csr(ctrl)
    return ExecutionTrace.from_columns(
        node_id=ids, type=NodeType.COMP, data_deps=csr(data), ctrl_deps=ctrl_deps, **more
    )


@st.composite
def graphs(draw) -> tuple[list[int], list[list[int]]]:
    ids = draw(st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=14))
    return ids, [draw(st.lists(st.sampled_from(ids), max_size=4)) for _ in ids]


@given(graphs())
def test_order_is_the_lexicographically_smallest_or_there_is_a_cycle(case):
    ids, data = case
    trace = trace_of(ids, data)
    oracle = nx.DiGraph()
    oracle.add_nodes_from(ids)
    oracle.add_edges_from((parent, child) for child, parents in zip(ids, data, strict=True) for parent in parents)
    if nx.is_directed_acyclic_graph(oracle):
        expected = list(nx.lexicographical_topological_sort(oracle))
        assert trace.node_id[trace.order()].tolist() == expected
    else:
        with pytest.raises(TraceError) as caught:
            trace.order()
        girth = min(len(cycle) for cycle in nx.simple_cycles(oracle))
        text = caught.value.problem
        assert text.startswith("node " if girth == 1 else f"cycle of {girth} nodes")


@given(graphs())
def test_shortest_cycle_is_a_cycle(case):
    ids, data = case
    trace = trace_of(ids, data)
    ptr, rows = trace.parents()
    cycle = graph.shortest_cycle(ptr, rows, graph.topological_order(ptr, rows))
    for row, parent in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        assert parent in rows[ptr[row] : ptr[row + 1]]


@given(graphs(), st.data())
def test_parents_are_each_named_once_and_ascend(case, data):
    ids, edges = case
    ctrl = [data.draw(st.lists(st.sampled_from(ids), max_size=3)) for _ in ids]
    trace = trace_of(ids, edges, ctrl)
    for kind, lists in (("data", edges), ("data+ctrl", [a + b for a, b in zip(edges, ctrl, strict=True)])):
        ptr, rows = trace.parents(kind)
        for row, parents in enumerate(lists):
            assert rows[ptr[row] : ptr[row + 1]].tolist() == sorted({ids.index(i) for i in parents})


@given(graphs())
def test_children_are_the_transpose_of_parents(case):
    ptr, rows = trace_of(*case).parents()
    child_ptr, children = graph.transpose(ptr, rows)
    edges = sorted(zip(graph.owners(ptr).tolist(), rows.tolist(), strict=True))
    assert sorted((c, p) for p, c in zip(graph.owners(child_ptr).tolist(), children.tolist(), strict=True)) == edges


@given(st.lists(st.sampled_from([MISSING, -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1]), min_size=1, max_size=6))
def test_columns_come_back_as_they_went_in(values):
    trace = ExecutionTrace.from_columns(node_id=range(len(values)), type=4, num_ops=values)
    assert trace.column("num_ops").tolist() == values
    assert trace.column("num_ops").dtype == np.int64
    assert trace.has_column("num_ops") == any(value != MISSING for value in values)


def test_absent_columns_are_missing_everywhere():
    trace = ExecutionTrace.from_columns(node_id=[4, 9], type=[4, 5])
    for name in (*INT_COLUMNS, "never heard of"):
        assert trace.column(name).tolist() == [MISSING, MISSING]
    assert trace.group_of()[0].tolist() == [-1, -1]
    assert list(trace.names) == ["", ""]


def test_arrays_cannot_be_written():
    trace = ExecutionTrace.from_columns(node_id=[1, 2], type=4, comm_size=[1, 2], comm_tag=3)
    for array in (trace.node_id, trace.type, trace.column("comm_size"), trace.column("comm_tag"), *trace.parents()):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        trace.place = "elsewhere"


@pytest.mark.parametrize("ids", [[5, 5], [3, 1, 3], [1, 2, 3, 2]])
def test_an_id_that_is_there_twice_is_refused(ids):
    with pytest.raises(TraceError, match=r"appears twice, in rows \d and \d"):
        ExecutionTrace.from_columns(node_id=ids, type=4)


def test_a_dangling_dependency_names_node_id_and_rank():
    trace = trace_of([7, 8], [[99], []], place="w.2.et", rank=2)
    with pytest.raises(TraceError) as caught:
        trace.order()
    assert str(caught.value).startswith("w.2.et: node 7 depends on 99, which is not in rank 2's trace")


def test_a_dangling_control_dependency_matters_only_where_it_is_honoured():
    trace = trace_of([7, 8], [[], [7]], [[1000], []])
    assert trace.order("data").tolist() == [0, 1]
    with pytest.raises(TraceError, match="node 7 depends on 1000"):
        trace.order("data+ctrl")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([[0], []], "node 0 depends on itself"),
        ([[1], [0]], "cycle of 2 nodes, each depending on the next: 0 → 1 → 0"),
        ([[1], [2], [0, 1]], "cycle of 2 nodes, each depending on the next: 1 → 2 → 1"),
    ],
)
def test_the_shortest_cycle_is_shown(data, text):
    with pytest.raises(TraceError) as caught:
        trace_of(list(range(len(data))), data).order()
    assert caught.value.problem == text


def chain(size: int, descending: bool) -> ExecutionTrace:
    ids = np.arange(size)[::-1] if descending else np.arange(size)
    parents = ids[:-1]
    ptr = np.concatenate(([0], np.arange(size)))
    return ExecutionTrace.from_columns(node_id=ids, type=4, data_deps=Csr(ptr, parents))


@pytest.mark.parametrize("descending", [False, True])
def test_a_chain_of_a_hundred_thousand_nodes_is_ordered_without_recursion(descending):
    trace = chain(10**5, descending)
    assert trace.order().tolist() == list(range(10**5))


def test_a_chain_of_a_million_nodes_is_ordered_quickly():
    before = time.process_time()
    trace = chain(10**6, False)
    assert len(trace.order()) == 10**6
    assert time.process_time() - before < 20


def test_a_cycle_of_a_hundred_thousand_nodes_is_told_in_one_line():
    ids = np.arange(10**5)
    trace = ExecutionTrace.from_columns(
        node_id=ids, type=4, data_deps=Csr(np.arange(10**5 + 1), np.roll(ids, 1)), place="big.0.et"
    )
    with pytest.raises(TraceError) as caught:
        trace.order()
    assert caught.value.problem.startswith("cycle of 100000 nodes")
    assert len(str(caught.value)) < 300


def test_a_ring_of_256_ranks_is_built_cheaply():
    before = time.process_time()
    ids = np.arange(1276)
    deps = Csr(np.concatenate(([0], np.arange(1276))), ids[:-1].astype(np.uint64))
    for rank in range(256):
        trace = ExecutionTrace.from_columns(
            node_id=ids, type=5, data_deps=deps, comm_dst=(rank + 1) % 256, comm_tag=ids, msg_chunk_idx=ids % 256
        )
        trace.order()
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"comm_size": [1]},
        {"type": [4]},
        {"names": ["one"]},
        {"pg_name": ["one"]},
        {"duration_micros": [1, 2, 3]},
        {"duration_micros": [-1, 2]},
        {"data_deps": Csr(np.array([0, 1]), np.array([0]))},
        {"data_deps": Csr(np.array([0, 2, 1]), np.array([0]))},
        {"comm_size": 2**63},
    ],
)
def test_columns_that_do_not_fit_are_refused(wrong):
    with pytest.raises(ValueError):
        ExecutionTrace.from_columns(**{"node_id": [1, 2], "type": 4, **wrong})


def test_unknown_columns_and_types_are_refused():
    with pytest.raises(TypeError, match="unknown columns size"):
        ExecutionTrace.from_columns(node_id=[1], type=4, size=3)
    with pytest.raises(TypeError, match="whole numbers"):
        ExecutionTrace.from_columns(node_id=[1], type=4, comm_size=[1.5])
    with pytest.raises(TraceError, match=r"node type 8 is not one of 0\.\.7"):
        ExecutionTrace.from_columns(node_id=[1], type=8)


def test_replace_changes_what_it_is_told_and_nothing_else():
    trace = ExecutionTrace.from_columns(node_id=[1, 2], type=4, comm_size=[3, 4], pg_name=["a", None], names=["x", "y"])
    other = trace.replace(comm_size=[3, 5], duration_micros=7, pg_name="b")
    assert trace.column("comm_size").tolist() == [3, 4]
    assert other.column("comm_size").tolist() == [3, 5]
    assert other.duration_micros.tolist() == [7, 7]
    assert other.group_of()[1] == ("b",)
    assert list(other.names) == ["x", "y"]
    assert trace.replace(comm_size=[3, 4]).digest() == trace.digest() != other.digest()


def test_digest_depends_on_content_and_not_on_how_it_is_held():
    one = ExecutionTrace.from_columns(node_id=[1, 2], type=4, pg_name=["a", "b"], comm_tag=[5, 5])
    two = ExecutionTrace.from_columns(
        node_id=np.array([1, 2], dtype=np.int16), type=[4, 4], pg_name=(np.array([1, 0]), ("b", "a")), comm_tag=5
    )
    assert one.digest() == two.digest()
    assert one.digest() != two.replace(comm_tag=6).digest()
    assert one.digest() != two.replace(pg_name=["a", None]).digest()


def test_a_trace_survives_pickling():
    trace = et_io.parse_trace(et_io.encode_trace(ExecutionTrace.from_columns(node_id=[1, 2], type=4, names=["a", "b"])))
    again = pickle.loads(pickle.dumps(trace))
    assert again.digest() == trace.digest()
    assert et_io.encode_trace(again) == et_io.encode_trace(trace)


def test_collective_names_follow_the_glossary():
    assert COLLECTIVE_OF_CODE[CommType.REDUCE_SCATTER_BLOCK] == COLLECTIVE_OF_CODE[CommType.REDUCE_SCATTER]
    assert [COLLECTIVE_OF_CODE[i] for i in (0, 2, 6, 9)] == ["all_reduce", "all_gather", "all_to_all", "barrier"]
    assert set(COLLECTIVE_OF_CODE) == {int(kind) for kind in CommType}


def test_collectives_are_written_with_the_first_code_of_their_name():
    for name, code in COLLECTIVE_CODES.items():
        assert code == min(other for other, same in COLLECTIVE_OF_CODE.items() if same == name)
    assert set(COLLECTIVE_CODES) == set(COLLECTIVE_OF_CODE.values())


# -- workloads -------------------------------------------------------------------------------------------------


def idle(ranks: int) -> tuple[ExecutionTrace, ...]:
    return (ExecutionTrace.from_columns(node_id=[0], type=4),) * ranks


@pytest.mark.parametrize("name", [None, "", "0"])
def test_no_group_means_all_ranks(name):
    assert Workload(idle(3), {"0": (1,)}).members(name) == (0, 1, 2)


def test_groups_keep_their_own_order_and_an_empty_one_means_all():
    workload = Workload(idle(4), {"7": (3, 1), "8": ()})
    assert workload.members("7") == (3, 1)
    assert workload.members("8") == (0, 1, 2, 3)
    with pytest.raises(TraceError, match="no communicator group is called '9'"):
        workload.members("9")


@pytest.mark.parametrize(("ranks", "text"), [((0, 4), "rank 4 is not one of"), ((1, 1), "rank 1 is listed twice")])
def test_bad_groups_are_refused(ranks, text):
    with pytest.raises(TraceError, match=text):
        Workload(idle(4), {"7": ranks})


def test_workload_digest_covers_traces_and_groups_but_not_the_name():
    one = Workload(idle(2), {"1": (0, 1)}, "a")
    assert one.digest() == Workload(idle(2), {"1": (0, 1)}, "b").digest()
    assert one.digest() != Workload(idle(2), {"1": (1, 0)}).digest()
    assert one.digest() != Workload(idle(3), {"1": (0, 1)}).digest()


def test_groups_are_read_from_json(tmp_path):
    file = tmp_path / "groups.json"
    file.write_text('{"1": [0, 2], "2": []}')
    assert groups_from_json(file) == {"1": (0, 2), "2": ()}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"1": 3}', '{"1": [-1]}', '{"1": [true]}', '{"1": [0.0]}', '{"1": [0, 0]}', '{"1": [], "1": [0]}']
    + ["[" * 100_000],
)
def test_bad_group_files_are_refused_by_name(tmp_path, text):
    file = tmp_path / "groups.json"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        groups_from_json(file)
    assert str(caught.value).startswith(str(file))


def test_groups_are_read_from_a_metadata_node():
    from astrasim_py.chakra import et_def_pb2 as pb

    declared = json.dumps([{"pg_name": "3", "ranks": [0, 2]}, {"pg_name": "4", "ranks": []}, {"other": 1}])
    good = pb.Node(id=1, type=1, inputs=pb.IOInfo(values=f"['{declared}']"))
    noise = pb.Node(id=2, type=1, inputs=pb.IOInfo(values="['hello']"))
    data = b"\x00" + b"".join(
        bytes([m.ByteSize() & 127 | 128, m.ByteSize() >> 7]) + m.SerializeToString() for m in (good, noise)
    )
    assert groups_from_metadata(et_io.parse_trace(data)) == {"3": (0, 2), "4": ()}
