"""Control dependencies: which say something beyond data dependencies, and when they are the order of a set."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.chakra import control
from astrasim_py.chakra.graph import pointers
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import kind_of
from astrasim_py.core.errors import TraceError


def deps(size: int, edges) -> Csr:
    """Dependencies from pairs (child, parent) of ids."""
    edges = sorted(set(edges))
    child = np.array([child for child, _ in edges], dtype=np.int64)
    return Csr(pointers(child, size), np.array([parent for _, parent in edges], dtype=np.uint64))


def build(size: int, data=(), ctrl=(), **columns) -> ExecutionTrace:
    return ExecutionTrace.from_columns(
        node_id=range(size),
        type=4,
        duration_micros=1,
        data_deps=deps(size, data),
        ctrl_deps=deps(size, ctrl),
        **columns,
    )


@st.composite
def graphs(draw):
    """Size, data edges that form no cycle, in any numbering, and control edges of any kind."""
    size = draw(st.integers(1, 24))
    number = draw(st.permutations(range(size)))
    pair = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    data = [(number[max(p)], number[min(p)]) for p in draw(st.lists(pair, max_size=40)) if p[0] != p[1]]
    return size, data, draw(st.lists(pair, max_size=20))


@pytest.mark.parametrize("most", [1, 2**29])
@given(graph=graphs())
def test_what_data_dependencies_imply_is_told_exactly(graph, most):
    size, data, ctrl = graph
    known = nx.DiGraph([(parent, child) for child, parent in data])
    known.add_nodes_from(range(size))
    closure = nx.transitive_closure(known)
    free = {(child, parent) for child, parent in ctrl if not closure.has_edge(parent, child)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control, "_MOST_BITS", most)
        found = control.free(build(size, data, ctrl))
    assert (found.count if found else 0) == len(free)
    if found:
        assert (found.child, found.parent) in free and found.judged == found.given
        both = nx.DiGraph([*known.edges, *((parent, child) for child, parent in ctrl)])
        assert bool(found.why_not) == (not nx.is_directed_acyclic_graph(both))


def test_of_a_large_trace_some_are_judged_and_the_count_is_a_lower_bound(monkeypatch):
    size = 400
    chain = [(k, k - 1) for k in range(1, size)]
    # Two chains side by side, and control dependencies between their nodes that nothing implies.
    data = [(k, k - 2) for k in range(2, size)]
    whole = control.free(build(size, data, chain))
    assert (whole.count, whole.judged, whole.given) == (size - 1, size - 1, size - 1)
    monkeypatch.setattr(control, "_MOST_BITS", 1)
    monkeypatch.setattr(control, "_MOST_STEPS", 1)
    part = control.free(build(size, data, chain))
    assert 0 < part.count == part.judged < part.given
    assert "at least" in control.unused([build(size, data, chain)])[1]


def test_the_order_of_a_set_is_its_control_dependencies_only_where_no_rank_has_others():
    chain, none, data = build(2, ctrl=[(1, 0)]), build(1), build(2, data=[(1, 0)])
    assert kind_of([chain, none]) == "data+ctrl"
    assert kind_of([none, none]) == kind_of([chain, data]) == kind_of([]) == "data"
    made = control.as_data(build(3, [(1, 0)], [(2, 0), (2, 1), (1, 0)]))
    assert made.data_deps.lists() == [(), (0,), (0, 1)] and not len(made.ctrl_deps.ids)
    with pytest.raises(TraceError, match=r"cycle of 2 nodes.*together; .*or write dependencies: data"):
        control.as_data(build(2, [(1, 0)], [(0, 1)]))
    with pytest.raises(TraceError, match=r"depends on 9.*or write dependencies: data"):
        control.as_data(build(2, ctrl=[(1, 9)]))


def test_lint_tells_both_kinds_and_is_silent_where_control_repeats_data():
    chain = [(k, k - 1) for k in range(1, 4)]
    rules = [
        {(found.severity, found.rule) for found in lint([build(4, *edges)] * 2)}
        for edges in ((chain, [*chain, (3, 0)]), ((), chain), (chain[:1], chain), (chain, [(0, 3)]))
    ]
    assert rules[0] == set()
    assert rules[1] == {("info", "ctrl-only")}
    assert rules[2] == {("warning", "ctrl-unused")}
    assert rules[3] == {("warning", "ctrl-unused"), ("warning", "ctrl-cycle")}


def test_calls_of_a_set_without_data_dependencies_agree_by_control_dependencies():
    """Ids are in another order on the second rank: only its control dependencies say that both call alike."""
    kinds = {"comm_type": [0, 2], "comm_size": [8, 8]}
    first = ExecutionTrace.from_columns(node_id=[1, 2], type=7, ctrl_deps=deps_of([1, 2], [(2, 1)]), **kinds)
    swapped = {name: values[::-1] for name, values in kinds.items()}
    second = ExecutionTrace.from_columns(node_id=[1, 2], type=7, ctrl_deps=deps_of([1, 2], [(1, 2)]), **swapped)
    assert {found.rule for found in lint([first, second])} == {"ctrl-only"}


def deps_of(ids, edges) -> Csr:
    row = {node: k for k, node in enumerate(ids)}
    found = deps(len(ids), [(row[child], row[parent]) for child, parent in edges])
    return Csr(found.ptr, np.array([ids[k] for k in found.ids.tolist()], dtype=np.uint64))
