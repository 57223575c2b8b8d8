"""Collectives in the network: what switch_tree and nvls make is right, and what is not is caught."""

from dataclasses import replace

import numpy as np
import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build, in_network
from astrasim_py.builders.switch_trees import capable_tree, reached, switches_above
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.verification.verifier import verify

#: Two leaf switches below one, with ranks also on that one.
TREE = {"spine0": [{"leaf0": [0, 1, 2], "leaf1": [3, 4]}, 5]}


def cases():
    for n in (1, 2, 3, 5, 8):
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            for options in ({}, {"chunks": 3}, {"chunks": 4, "window": 1}, {"chunks": 5, "window": 3}):
                yield "nvls", collective, n, options
        for collective in ("all_reduce", "reduce", "broadcast"):
            for options in ({}, {"chunks": 4}, {"chunks": 7, "slots": 3}, {"chunks": 3, "slots": 1, "root": n - 1}):
                if collective == "all_reduce":
                    options = {key: value for key, value in options.items() if key != "root"}
                yield "switch_tree", collective, n, options
        yield "switch_tree", "barrier", n, {}
    for collective in ("all_reduce", "reduce", "broadcast", "barrier"):
        pieces = {} if collective == "barrier" else {"chunks": 5, "slots": 2}
        for root in range(6) if collective in ("reduce", "broadcast") else (None,):
            yield "switch_tree", collective, 6, {"switches": TREE, "root": root, **pieces}


@pytest.mark.parametrize(("name", "collective", "n", "options"), list(cases()))
def test_all_four_verdicts(name, collective, n, options) -> None:
    made = build(name, collective, n, **options)
    verdict = verify(made)
    assert verdict.passes
    assert verdict.correct
    assert verdict.race_free
    assert verdict.order_consistent
    assert not verdict.warnings
    assert len(made.actors) == (0 if n == 1 else 3 if "switches" in options else 1)
    if collective != "barrier":
        pieces = options.get("chunks", 1)
        window = min(options.get("window", 2), pieces)
        cells = min(options.get("slots", pieces), pieces)
        if name == "nvls":
            cells = n * window * (2 if collective == "all_reduce" else 1)
        assert {made.slots_of(k) for k in range(len(made.actors))} <= {cells}


@pytest.mark.parametrize("n", [16, 64])
def test_many_ranks(n) -> None:
    for name, collective in (("switch_tree", "all_reduce"), ("nvls", "reduce_scatter"), ("nvls", "all_gather")):
        assert verify(build(name, collective, n, chunks=2)).passes


def test_bytes_of_links() -> None:
    """nvls sends S (1 + 1/n) up and down every link, a tree S."""
    n, size = 8, 8 * 3 * 1000
    for made, each in ((build("nvls", "all_reduce", n, chunks=3), size * (n + 1) // n), (tree(n), size)):
        sent = [made.message_bytes(rank, size)[made.traces[rank].type == NodeType.COMM_SEND].sum() for rank in range(n)]
        assert sent == [each] * n
        switch = made.traces[n]
        sends = switch.type == NodeType.COMM_SEND
        down = np.bincount(switch.column("comm_dst")[sends], made.message_bytes(n, size)[sends])
        assert down.tolist() == [each] * n


def tree(n, **options):
    return build("switch_tree", "all_reduce", n, **{"chunks": 3, **options})


# -------------------------------------------------------------------------------------------- mutants


def changed(made, edit, switch: int = 0):
    """The same algorithm with the trace of a switch edited: ``edit(trace)`` gives columns and dependencies."""
    traces = list(made.traces)
    traces[made.ranks + switch] = traces[made.ranks + switch].replace(**edit(traces[made.ranks + switch]))
    return replace(made, traces=tuple(traces))


def waiting(trace, row: int, *parents: int) -> dict:
    """The dependencies of a trace, with other rows as the parents of one."""
    listed = trace.data_deps.lists()
    listed[row] = tuple(sorted(int(trace.node_id[parent]) for parent in parents))
    ids = np.array([each for parents in listed for each in parents], dtype=np.uint64)
    return {"data_deps": (np.cumsum([0, *map(len, listed)]), ids)}


def rows(trace, kind: NodeType) -> np.ndarray:
    return np.flatnonzero(trace.type == kind)


def early_send(trace) -> dict:
    return waiting(trace, int(rows(trace, NodeType.COMM_SEND)[-1]), int(rows(trace, NodeType.COMP)[-2]))


def reused_slot(trace) -> dict:
    held = [row for row in rows(trace, NodeType.COMM_RECV).tolist() if trace.column("dst_buf")[row] == Buffer.SCRATCH]
    return waiting(trace, [row for row in held if trace.data_deps.of(row)][-1])


def wrong_peer(trace) -> dict:
    column = trace.column("comm_dst").copy()
    column[rows(trace, NodeType.COMM_SEND)[-1]] = 0
    return {"comm_dst": column}


def missing_reduction(trace) -> dict:
    """What was to be added is dropped: a node that only waits."""
    row = rows(trace, NodeType.COMP)[-1]
    gone = {}
    for name in ("comp_op", "payload", "src_buf", "src_off", "dst_buf", "dst_off", "msg_chunk_idx", "msg_chunk_cnt"):
        gone[name] = trace.column(name).copy()
        gone[name][row] = MISSING
    return gone


def added_twice(trace) -> dict:
    """A reduction takes what another one takes, too."""
    one, other = rows(trace, NodeType.COMP)[-2:].tolist()
    column = trace.column("payload").copy()
    column[other] = column[one]
    return {"payload": column}


@pytest.mark.parametrize("name", ["switch_tree", "nvls"])
@pytest.mark.parametrize(
    ("mutate", "verdict", "kind"),
    [
        (early_send, "race_free", "race"),
        (reused_slot, "race_free", "race"),
        (wrong_peer, "well_formed", "ill-formed"),
        (missing_reduction, "correct", "post-condition"),
        (added_twice, "correct", "post-condition"),
    ],
)
def test_a_switch_that_does_wrong_is_caught_and_named(name, mutate, verdict, kind) -> None:
    slots = {"slots": 2} if name == "switch_tree" else {}
    found = verify(changed(build(name, "all_reduce", 4, chunks=5, **slots), mutate))
    assert not found.passes
    assert getattr(found, verdict) is False
    of_kind = [problem for problem in found.problems if "switch s0 node" in problem]
    assert of_kind, found.problems
    assert kind in (found.counterexample["kind"], "race")


def test_the_switch_of_a_tree_that_loses_a_contribution_is_named() -> None:
    made = build("switch_tree", "all_reduce", 6, switches=TREE, chunks=2)
    leaf = made.actors.index("leaf1")
    found = verify(changed(made, missing_reduction, leaf))
    assert "lacks contribution of rank 4" in found.problem
    assert found.counterexample["step"].startswith("switch leaf1 node ")


def test_cells_beyond_the_slots_of_a_switch_make_it_ill_formed() -> None:
    made = build("nvls", "all_reduce", 4, chunks=5)
    assert verify(made, switch_slots=16).passes
    found = verify(made, switch_slots=15)
    assert found.well_formed is False
    assert found.problem == "switch s0 needs 16 slots, and there are 15"


# -------------------------------------------------------------------------------------------- trees and options


@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("switch_tree", {"switches": {"a": [0, 1]}}, "no switch is above rank 2"),
        ("switch_tree", {"switches": {"a": [0, 1, 2, 2]}}, "neither one of 3 ranks that is left"),
        ("switch_tree", {"switches": {"a": [0, {"a": [1, 2]}]}}, "name 'a', which is no name, or twice there"),
        ("switch_tree", {"switches": [0, 1, 2]}, "not one switch with what is below it"),
        ("switch_tree", {"switches": {"a": [0, 1, 2, {"b": []}]}}, "nothing is below switch b"),
        ("switch_tree", {"slots": 0}, "slots is 0, not a whole number from 1"),
        ("switch_tree", {"channels": 2}, "in part run by switches, so it cannot be split"),
        ("nvls", {"switches": {"a": [{"b": [0, 1]}, 2]}}, "2 switches are above these ranks"),
        ("nvls", {"window": 0}, "window is 0"),
    ],
)
def test_options_that_make_no_sense(name, options, fault) -> None:
    with pytest.raises(AlgorithmError, match=fault):
        build(name, "all_reduce", 3, **options)


def test_the_tree_above_some_npus() -> None:
    """From the switch nearest to the farthest NPU, of several the lowest; only of switches that compute."""
    keys = {
        "shape": "leaf_spine",
        "leaves": 3,
        "hosts_per_leaf": 2,
        "spines": 2,
        "bandwidth": "50 GB/s",
        "latency": "0 ns",
    }
    network = ap.build_topology(**keys, switches={"capable": "all"})
    tree = capable_tree(network, tuple(range(6)))
    assert tree.names == ("spine0", "leaf0", "leaf1", "leaf2")
    assert [tree.names[tree.above[rank] - 6] for rank in range(6)] == ["leaf0"] * 2 + ["leaf1"] * 2 + ["leaf2"] * 2
    assert capable_tree(network, tuple(range(6)), 1).names[0] == "spine1"
    assert capable_tree(network, (3, 2)).names == ("leaf1",)
    leaves = ap.build_topology(**keys, switches={"capable": ["leaf0", "leaf1", "leaf2"]})
    assert capable_tree(leaves, tuple(range(6))) is None
    assert capable_tree(leaves, (4, 5)).names == ("leaf2",)
    assert capable_tree(ap.build_topology(**keys), (4, 5)) is None
    failed = ap.build_topology(**keys, switches={"capable": "all"}, failed={"links": [["leaf0", "spine0"]]})
    assert capable_tree(failed, tuple(range(6))).names[0] == "spine1"


def test_the_tree_of_a_fat_tree() -> None:
    network = ap.build_topology(shape="fat_tree", k=4, bandwidth="50 GB/s", latency="0 ns", switches={"capable": "all"})
    npus = tuple(range(network.npus))
    tree = capable_tree(network, npus)
    assert tree.levels == 3
    made = build("switch_tree", "all_reduce", len(npus), switches=tree, chunks=2)
    assert verify(made).passes
    assert made.vertices == tree.vertices


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("between", ["ring", "switch_tree", "nvls"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_nvls_in_nodes_and_something_between_them(collective, between, pieces) -> None:
    if between == "switch_tree" and collective != "all_reduce":
        between = "direct"
    made = build("hierarchical", collective, 12, dims=[4, 3], algorithms=["nvls", between], chunks=pieces)
    assert verify(made).passes
    assert len(made.actors) == 3 + (0 if between in ("ring", "direct") else 4)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "barrier"])
def test_trees_in_trees(collective) -> None:
    """Trees of the rails may share switches."""
    for root in (None,) if collective == "barrier" else (0, 6):
        for shared in ({}, {"switches": {1: [{"top": [{"a": [0], "b": [1, 2]}]}] * 3}}):
            pieces = {} if collective == "barrier" else {"chunks": 2}
            options = {"dims": [3, 3], "algorithms": ["switch_tree"] * 2, **shared, **pieces}
            made = build("hierarchical", collective, 9, root=root, **options)
            assert verify(made).passes
            assert len(made.actors) == 6


@pytest.mark.parametrize(("npus", "single", "tree"), [((0, 1), True, True), ((0, 2), False, True)])
def test_which_cases_hold(npus, single, tree) -> None:
    keys = {
        "shape": "leaf_spine",
        "leaves": 2,
        "hosts_per_leaf": 2,
        "spines": 1,
        "bandwidth": "1 GB/s",
        "latency": "0 ns",
    }
    network = ap.build_topology(**keys, switches={"capable": "all"})
    assert reached(network, npus, "nvls") is single
    for builder in ("switch_tree", ""):
        assert reached(network, npus, builder) is tree
        assert not reached(ap.build_topology(**keys), npus, builder)
    assert [in_network(name, {}) for name in ("switch_tree", "nvls", "ring")] == [True, True, False]
    nodes = {"dims": [2, 2], "algorithms": ["nvls", "ring"]}
    assert in_network("hierarchical", nodes) and reached(network, (0, 1, 2, 3), "hierarchical", nodes)
    assert not reached(network, (0, 2, 1, 3), "hierarchical", nodes)
    # Dimensions of another number of ranks are for the builder to refuse.
    assert switches_above(network, (0, 1), "hierarchical", "all_reduce", nodes) == {}


def test_a_switch_that_a_root_leaves_without_ranks_takes_no_part() -> None:
    for collective in ("broadcast", "reduce", "all_reduce"):
        root = None if collective == "all_reduce" else 1
        made = build("switch_tree", collective, 3, root=root, switches={"spine0": [{"leaf0": [0, 1, 2]}]})
        assert made.actors == (("leaf0",) if root else ("spine0", "leaf0"))
        assert verify(made).passes


@pytest.mark.parametrize("switches", [3, [1], {"a": ["s"]}, {"7": ["s"]}, {"0": "s"}, {"0": [1, 2]}])
def test_wrong_trees_of_a_hierarchy_are_told(switches):
    with pytest.raises(AlgorithmError) as told:
        build("hierarchical", "all_reduce", 16, dims=[8, 2], algorithms=["nvls", "ring"], switches=switches)
    assert "switches" in str(told.value) and "write e.g." in str(told.value)


def test_trees_of_a_hierarchy_are_named_by_dimension():
    made = build("hierarchical", "all_reduce", 4, dims=[2, 2], algorithms=["nvls", "ring"], switches={"0": ["a", "b"]})
    assert made.actors == ("a", "b")
