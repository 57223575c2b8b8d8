"""Folding: what one rank tells of all of them is what the full run tells; everywhere else it is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds.small_problems import workload

from astrasim_py.api import build_topology
from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.cli.main import main
from astrasim_py.core.errors import FoldError
from astrasim_py.dialects.chunks.lower import DimensionPlanner
from astrasim_py.engine.compare import differences
from astrasim_py.engine.fold import fold
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.preparation.from_python import collective as collective_problem
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import NO_MEMORY, Collectives, Limits, MemoryModel, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.system.symmetry import symmetry_of
from astrasim_py.topology.placement import placement
from astrasim_py.workload.items import Barrier, Collective, Compute, Memory, Send
from astrasim_py.workload.microbenchmarks import generate

MODELS = ("cut_through", "store_and_forward", "analytical")
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def network(shape: str, dims, **more):
    """A topology by its shape and dimensions."""
    if shape == "dgx":
        return build_topology(preset="dgx_h100", nodes=dims[1], npus=dims[0], **more)
    key = {"torus": "dims", "mesh": "dims"}.get(shape, "npus")
    return build_topology(shape=shape, **{key: list(dims) if key == "dims" else dims[0]}, **(LINK | more))


class Table:
    """One builder for everything, with its options."""

    def __init__(self, builder: str, options: dict | None = None) -> None:
        self.builder, self.options = builder, options or {}
        self.made: dict = {}

    def select(self, kind: str, size: int, ranks: int, group: str, root: int = 0, **_):
        if (kind, ranks) not in self.made:
            algorithm = build(self.builder, kind, ranks, **self.options)
            self.made[kind, ranks] = dataclasses.replace(algorithm, verdict=True)
        return self.made[kind, ranks]


def problem(
    topology, items, table, *, groups=None, placed=None, semantics=None, memory=None, job=None, **net
) -> Problem:
    """A problem of generated items on every NPU."""
    made = items if not isinstance(items, list) else generate(items, topology.npus, groups)
    return Problem(
        topology=topology,
        jobs=(
            Job(
                workload=made,
                placement=placed or placement(topology),
                algorithms=table,
                **(job or {}),
            ),
        ),
        network=NetworkModel(**net),
        semantics=semantics or Semantics.native(),
        memory=memory or NO_MEMORY,
    )


def same(given: Problem, level: str = "links"):
    """The folded run, once it is shown to give the records of the full one."""
    full = simulate(given, engine="simpy", level=level)
    folded = simulate(given, level=level, fold=True)
    assert not differences(full, folded)
    assert full.outcome.status == "done" and full.engine == "simpy" and folded.engine == "simpy+fold"
    return folded


# -- equality ----------------------------------------------------------------------------------------------------

CASES = [
    ("ring", [6], {}, "ring", "all_reduce", {}, 6000),
    ("ring", [5], {"bidirectional": False}, "ring", "all_gather", {}, 5000),
    ("ring", [6], {}, "ring", "reduce_scatter", {"bidirectional": True}, 12_000),
    ("ring", [6], {}, "ring", "all_reduce", {"chunks": 3, "overlap": True}, 18_000),
    ("ring", [7], {}, "ring", "all_to_all", {}, 4900),
    ("ring", [8], {}, "direct", "all_to_all", {}, 8 * 4096),
    ("ring", [2], {}, "ring", "all_reduce", {}, 1 << 20),
    ("switch", [6], {}, "direct", "all_to_all", {}, 36_000),
    ("switch", [6], {}, "ring", "all_reduce", {}, 6000),
    ("switch", [8], {}, "halving_doubling", "all_reduce", {}, 8000),
    ("switch", [5], {}, "dissemination", "barrier", {}, 0),
    ("fully_connected", [6], {}, "direct", "all_reduce", {}, 6000),
    ("fully_connected", [6], {}, "hierarchical", "all_reduce", {"dims": [2, 3]}, 6000),
    ("fully_connected", [8], {}, "recursive_doubling", "all_gather", {}, 8000),
    ("fully_connected", [8], {}, "pairwise", "all_to_all", {}, 8000),
    ("hypercube", [8], {}, "halving_doubling", "reduce_scatter", {}, 8000),
    ("hypercube", [8], {}, "recursive_doubling", "all_reduce", {}, 8001),
    ("torus", [3, 4], {}, "hierarchical", "all_reduce", {"dims": [3, 4]}, 12_000),
    ("torus", [4, 2, 3], {}, "hierarchical", "all_reduce", {"dims": [4, 2, 3], "chunks": 2}, 48_000),
    ("torus", [3, 4], {}, "hierarchical", "reduce_scatter", {"dims": [3, 4]}, 12_000),
    ("torus", [3, 3], {"bandwidth": ["50 GB/s", "20 GB/s"]}, "hierarchical", "all_gather", {"dims": [3, 3]}, 9000),
    ("torus", [1, 5], {}, "ring", "all_reduce", {}, 5000),
    ("mesh", [2], {}, "ring", "all_reduce", {}, 4000),
    ("dgx", [4, 3], {"rails": 2}, "hierarchical", "all_to_all", {"dims": [4, 3]}, 144_000),
    ("dgx", [4, 2], {"rails": 1}, "hierarchical", "all_gather", {"dims": [4, 2]}, 64_000),
    ("dgx", [4, 2], {}, "ring", "reduce_scatter", {"nodes": 4, "channels": 4}, 640_000),
    ("dgx", [2, 4], {}, "recursive_doubling", "all_gather", {}, 80_000),
]


@pytest.mark.parametrize(("shape", "dims", "more", "builder", "kind", "options", "size"), CASES)
def test_a_folded_run_gives_the_records_of_the_full_one(shape, dims, more, builder, kind, options, size):
    topology = network(shape, dims, **more)
    for model in MODELS:
        given = problem(topology, [Collective(type=kind, size=size)], Table(builder, options), model=model)
        folded = same(given)
        assert folded.messages >= topology.npus and folded.messages % topology.npus == 0
        assert bool((folded.link["messages"] > 0).all())


def test_whatever_all_ranks_do_may_surround_the_collectives():
    torus = network("torus", [3, 4])
    items = [
        Collective(type="all_reduce", size=12_000, name="a"),
        Compute(time=700_000, after=(), name="c"),
        Collective(type="all_gather", size=24_000, after=("c",), name="b"),
        Memory(load=5000, after=("c",)),
        Barrier(after=("a", "b"), repeat=2),
        Compute(time=90_000),
    ]
    memory = MemoryModel(kind="per_npu", latency_ps=1000, bandwidth=Fraction(10**9))
    table = Table("hierarchical", {"dims": [3, 4]})
    for options in ({}, {"link_busy": "latency+bytes"}, {"send_completes": "injected"}):
        for semantics in (Semantics.native(comm_slots=1), Semantics.native(gamma=Fraction(1, 10**9))):
            folded = same(problem(torus, items, table, memory=memory, semantics=semantics, **options))
            assert folded.compute.min() > 0 and folded.collective.height == 4
    delayed = {"start_delay_ps": dict.fromkeys(range(12), 5000)}
    plain, later = (same(problem(torus, items, table, memory=memory, job=job)) for job in ({}, delayed))
    assert later.makespan == plain.makespan + 5000
    slower = {"compute_speed": dict.fromkeys(range(12), Fraction(1, 2))}
    assert same(problem(torus, items, table, memory=memory, job=slower)).compute[0] == 2 * plain.compute[0]
    assert same(problem(torus, items, table, memory=memory), "summary").link["busy"].max() == -1


def test_groups_that_turn_into_each_other_are_folded():
    torus = network("torus", [3, 4])
    rows = {
        "x": [[3 * b + a for a in range(3)] for b in range(4)],
        "y": [[3 * b + a for b in range(4)] for a in range(3)],
    }
    for names in (("x",), ("y",)):
        items = [Collective(type="all_reduce", size=12_000, group=name) for name in names] + [Compute(time=1000)]
        folded = same(problem(torus, items, Table("ring"), groups=rows))
        assert folded.collective.height == len(rows[names[0]])


@pytest.mark.parametrize("order", ["fixed", "themis"])
def test_chunks_that_go_by_dimension_are_folded(order):
    torus = network("torus", [3, 4])
    table = Table("ring")
    planner = DimensionPlanner(
        sizes=(3, 4),
        make=lambda kind, n, dim, size: table.select(kind, size, n, ""),
        how=Collectives(chunks=3, order=order),
        rate=(Fraction(10**10), Fraction(10**10)),
        latency_ps=(500_000, 500_000),
    )
    items = [Collective(type="all_reduce", size=36_000), Collective(type="all_gather", size=36_000, after=())]
    folded = same(problem(torus, items, table, job={"planner": planner}))
    assert folded.messages > 12 * 10


def test_messages_that_every_rank_sends_alike_are_folded():
    ring = network("ring", [6])
    nodes = [
        [
            {"type": NodeType.COMP, "micros": 2},
            {
                "type": NodeType.COMM_SEND,
                "comm_src": r,
                "comm_dst": (r + 2) % 6,
                "comm_size": 3000,
                "comm_tag": 7,
                "deps": [0],
            },
            {"type": NodeType.COMM_RECV, "comm_src": (r - 2) % 6, "comm_dst": r, "comm_size": 3000, "comm_tag": 7},
            {
                "type": NodeType.COMM_SEND,
                "comm_src": r,
                "comm_dst": (r + 2) % 6,
                "comm_size": 99,
                "comm_tag": 7,
                "deps": [1],
            },
            {
                "type": NodeType.COMM_RECV,
                "comm_src": (r - 2) % 6,
                "comm_dst": r,
                "comm_size": 99,
                "comm_tag": 7,
                "deps": [2],
            },
        ]
        for r in range(6)
    ]
    assert same(problem(ring, workload(nodes), Table("ring"))).message_hops == 24
    nodes[4][1]["comm_size"] = nodes[0][2]["comm_size"] = 3001
    with pytest.raises(FoldError, match="ranks 0 and 1 do not run the same workload: recv node 2 has 3001 and 3000"):
        simulate(problem(ring, workload(nodes), Table("ring")), fold=True)


def test_an_edge_list_that_is_a_ring_is_shown_to_be_one(tmp_path):
    lines = ["src,dst,bandwidth,latency", *(f"{a},{(a + 1) % 5},10 GB/s,1 us" for a in range(5))]
    (tmp_path / "ring.csv").write_text("\n".join(lines) + "\n")
    topology = build_topology(shape="edge_list", file=str(tmp_path / "ring.csv"))
    given = problem(topology, [Collective(type="all_reduce", size=5000)], Table("ring"))
    assert same(given).messages == 5 * 8
    (tmp_path / "ring.csv").write_text("\n".join([*lines[:-1], "4,0,10 GB/s,2 us"]) + "\n")
    with pytest.raises(FoldError, match=r"links 0->1 and 4->0 .* differ in latency"):
        topology = build_topology(shape="edge_list", file=str(tmp_path / "ring.csv"))
        simulate(dataclasses.replace(given, topology=topology), fold=True)


def test_shapes_of_several_kinds_are_folded():
    dims = [
        {"kind": "switch", "size": 2, "bandwidth": "100 GB/s", "latency": "300 ns"},
        {"kind": "ring", "size": 4, **LINK},
        {"kind": "fully_connected", "size": 3, **LINK},
    ]
    topology = build_topology(shape="product", dims=dims)
    for builders in (["ring", "ring", "ring"], ["direct", "ring", "direct"]):
        table = Table("hierarchical", {"dims": [2, 4, 3], "algorithms": builders})
        assert same(problem(topology, [Collective(type="all_reduce", size=24_000)], table)).message_hops > 0


# -- either equal or refused -------------------------------------------------------------------------------------


@st.composite
def crowded(draw):
    """Times on a coarse grid, so that messages of unlike ranks meet at links at one time."""
    shape, dims, builders = draw(
        st.sampled_from(
            [
                ("ring", [4], ["ring", "direct", "pairwise", "dissemination", "recursive_doubling"]),
                ("ring", [5], ["ring", "direct", "pairwise"]),
                ("switch", [4], ["ring", "direct", "pairwise", "recursive_doubling"]),
                ("fully_connected", [4], ["ring", "direct", "recursive_doubling", "bruck"]),
                ("torus", [2, 3], ["hierarchical"]),
                ("torus", [3, 3], ["hierarchical", "direct"]),
                ("mesh", [3], ["ring"]),
            ]
        )
    )
    rate = draw(st.sampled_from(["1 GB/s", "2 GB/s"]))
    topology = network(shape, dims, bandwidth=rate, latency=draw(st.sampled_from(["0 ns", "1 us", "2 us"])))
    builder = draw(st.sampled_from(builders))
    options = {"dims": dims} if builder == "hierarchical" else {}
    kinds = {
        "dissemination": ["barrier"],
        "pairwise": ["all_to_all"],
        "recursive_doubling": ["all_gather", "all_reduce"],
        "bruck": ["all_gather", "all_to_all"],
    }.get(builder, ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
    n = topology.npus
    items = [
        Collective(
            type=kind,
            size=0 if kind == "barrier" else draw(st.sampled_from([0, n * n * 1000, n * 2000, n * 1000 + 1])),
            after=draw(st.sampled_from([None, ()])),
        )
        for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    ]
    if draw(st.booleans()):
        items.insert(
            1, Compute(time=draw(st.sampled_from([1_000_000, 2_000_000])), after=draw(st.sampled_from([None, ()])))
        )
    return problem(
        topology,
        items,
        Table(builder, options),
        placed=tuple(
            draw(st.sampled_from([list(range(n)), list(range(n)), [*range(1, n), 0], [*range(n - 2), n - 1, n - 2]]))
        ),
        semantics=Semantics.native(comm_slots=draw(st.sampled_from([None, 1]))),
        model=draw(st.sampled_from(MODELS)),
        link_busy=draw(st.sampled_from(["bytes", "latency+bytes"])),
        send_completes=draw(st.sampled_from(["delivery", "injected"])),
    )


@pytest.mark.slow
def test_a_run_is_the_full_one_or_it_is_refused():
    ended: dict[str, int] = {}

    @settings(max_examples=160, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(crowded())
    def either(given: Problem) -> None:
        try:
            folded = simulate(given, fold=True)
        except FoldError as error:
            ended["refused by running" if "at the same time" in str(error) else "refused"] = 1 + ended.get("refused", 0)
            return
        assert not differences(simulate(given, engine="simpy"), folded)
        ended["equal"] = ended.get("equal", 0) + 1

    either()
    assert ended["equal"] > 25 and ended["refused"] > 12


# -- refusals ----------------------------------------------------------------------------------------------------


def _ring(n: int = 4, builder: str = "ring", size: int = 4000, kind: str = "all_reduce", **more) -> Problem:
    topology = more.pop("topology", None) or network("ring", [n])
    return problem(topology, [Collective(type=kind, size=size)], Table(builder), **more)


def _changed(**keys):
    return build_topology(shape="torus", dims=[2, 3], **LINK, **keys)


def _two_jobs() -> Problem:
    one = _ring(4, topology=None)
    half = [
        dataclasses.replace(
            one.jobs[0], name=f"job{k}", workload=generate([Collective(type="all_reduce", size=64)], 2), placement=p
        )
        for k, p in enumerate([(0, 1), (2, 3)])
    ]
    return dataclasses.replace(one, jobs=tuple(half))


REFUSED = {
    "a mesh ends": (lambda: _ring(topology=network("mesh", [4])), r"NPU 3 has no link like 0->1"),
    "a flat ring on a torus": (
        lambda: _ring(topology=network("torus", [2, 3]), size=6000),
        r"ring all_reduce .* of a layout of 6, but torus 2x3 looks the same from every NPU only in a layout of 2x3",
    ),
    "rails that spines join": (
        lambda: _ring(topology=network("dgx", [4, 2], spines=2), size=8000),
        r"dgx 2x4 has links between switches \(rail0->spine0\)",
    ),
    "failed link": (
        lambda: _ring(topology=_changed(failed={"links": [[0, 1]]}), size=6000),
        r"torus 2x3 does not look the same from every NPU .*, NPU [01] has no link like",
    ),
    "a slower link": (
        lambda: _ring(
            topology=_changed(links=[{"from": 2, "to": 3, "bandwidth": "5 GB/s", "directions": "one"}]), size=6000
        ),
        r"links .* and 2->3 of .* differ in bandwidth",
    ),
    "ecmp": (lambda: _ring(topology=_changed(routing={"ecmp": True}), size=6000), r"spread by a hash \(ecmp\)"),
    "placement": (
        lambda: _ring(placed=(0, 1, 3, 2)),
        r"placement is not linear: rank 0 is on NPU 0 and rank 2 on NPU 3",
    ),
    "start delay": (lambda: _ring(job={"start_delay_ps": {2: 5}}), r"rank 2 starts later or earlier than rank 0"),
    "rooted": (lambda: _ring(builder="binomial_tree", kind="broadcast"), r"broadcast is not the same for ranks 0 and"),
    "a tree": (
        lambda: _ring(builder="double_binary_tree"),
        r"double_binary_tree all_reduce is not the same for ranks 0 and",
    ),
    "sizes that differ by a byte": (
        lambda: _ring(size=4001),
        r"4001 bytes of all_reduce are not a multiple of the 4 chunks",
    ),
    "several jobs": (_two_jobs, r"there are 2 jobs"),
    "not every NPU": (
        lambda: dataclasses.replace(
            _ring(),
            jobs=(
                dataclasses.replace(
                    _ring().jobs[0],
                    workload=generate([Collective(type="all_reduce", size=64)], 3),
                    placement=(0, 1, 2),
                ),
            ),
        ),
        r"3 ranks do not fill the 4 NPUs",
    ),
    "messages between two": (
        lambda: problem(network("ring", [4]), [Send(source=0, to=1, size=9)], Table("ring")),
        r"ranks 0 and [123] do not run the same workload",
    ),
    "compute on some": (
        lambda: problem(network("ring", [4]), [Compute(time=5, ranks=(1,))], Table("ring")),
        r"ranks 0 and 1 do not run the same workload",
    ),
    "a slow rank": (
        lambda: problem(
            network("ring", [4]), [Compute(time=500)], Table("ring"), job={"compute_speed": {3: Fraction(1, 2)}}
        ),
        r"ranks 0 and 3 do not run the same workload: compute node 0 has 500 and 1000 ps",
    ),
    "a group of some": (
        lambda: problem(
            network("ring", [4]),
            [Collective(type="all_reduce", size=64, group="g")],
            Table("ring"),
            groups={"g": [[0, 1]]},
        ),
        r"ranks 0 and 2 do not run the same workload",
    ),
    "groups that do not turn": (
        lambda: problem(
            network("ring", [6]),
            [Collective(type="all_reduce", size=64, group="g")],
            Table("ring"),
            groups={"g": [[0, 1], [2, 3], [4, 5]]},
        ),
        r"rotations of 6 do not map the peer of rank 0",
    ),
    "shared memory": (
        lambda: problem(
            network("ring", [4]),
            [Memory(load=64)],
            Table("ring"),
            memory=MemoryModel(kind="pool", latency_ps=5, bandwidth=Fraction(10**9)),
        ),
        r"ranks share their memory \(pool\)",
    ),
    "rendezvous": (lambda: _ring(semantics=Semantics.native(rendezvous_bytes=8)), r"rendezvous"),
    "matching by bytes": (lambda: _ring(semantics=Semantics.native(message_match="bytes")), r"message_match"),
    "first scheduled": (lambda: _ring(semantics=Semantics.native(event_order="scheduled")), r"event_order"),
    "messages that take no time": (
        lambda: _ring(topology=network("ring", [4], latency="0 ns"), size=0),
        r"a message of 0 bytes takes no time",
    ),
    "who comes first": (
        lambda: _ring(6, "direct", 36_000, "all_to_all", topology=network("ring", [6], latency="0 ns")),
        r"ranks \d and \d ask for link \d->\d at the same time \(\d+ ps\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_symmetric_is_refused_in_one_line(name):
    make, told = REFUSED[name]
    with pytest.raises(FoldError, match=told) as caught:
        simulate(make(), fold=True)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value) and str(caught.value).startswith("fold: ")


def test_single_ranks_are_not_recorded():
    for level in ("nodes", "messages"):
        with pytest.raises(FoldError, match=f'level "{level}" records single ranks'):
            simulate(_ring(), level=level, fold=True)


def test_limits_count_what_is_simulated():
    limited = dataclasses.replace(_ring(), limits=Limits(max_sim_time_ps=10_000))
    full, folded = simulate(limited, engine="simpy"), simulate(limited, fold=True)
    assert full.outcome.status == "limit" and not differences(full, folded)
    few = dataclasses.replace(_ring(), limits=Limits(max_events=20))
    assert simulate(few, engine="simpy").outcome.status == "limit"
    assert simulate(few, fold=True).outcome.status == "done"
    with pytest.raises(FoldError, match="for comparison takes more than 20 events"):
        simulate(few, fold=True, engine="both")
    for engine in ("auto", "both"):
        with pytest.raises(FoldError, match="takes more than 5 events"):
            simulate(dataclasses.replace(few, limits=Limits(max_events=5)), fold=True, engine=engine)


def test_a_stuck_run_is_left_to_the_full_one():
    nodes = [
        [{"type": NodeType.COMM_RECV, "comm_src": (r - 1) % 4, "comm_dst": r, "comm_size": 8, "comm_tag": 0}]
        for r in range(4)
    ]
    with pytest.raises(FoldError, match="gets stuck; run it without fold to see who waits for whom"):
        simulate(problem(network("ring", [4]), workload(nodes), Table("ring")), fold=True)


# -- size --------------------------------------------------------------------------------------------------------


def test_a_shared_trace_is_planned_for_one_rank_whatever_their_number():
    given = _ring(6, size=6000)
    plan = make_plan(given, folded=True)
    assert plan.computed_routes and len(set(plan.workload)) == 1
    assert not differences(simulate(plan, fold=True), simulate(make_plan(given), fold=True))
    folded = fold(symmetry_of(plan))
    assert folded.ranks == 1 and len(folded.route_pairs) == 1


def test_16384_nodes_on_rails_take_the_time_of_their_closed_form():
    dims, size = [8, 2**14], 2**17 * 9000
    topology = network("dgx", dims)
    halves = build("hierarchical", "all_reduce", topology.npus, dims=dims, algorithms=["halving_doubling"] * 2)
    algorithm = dataclasses.replace(halves, verdict=True)
    records = simulate(collective("all_reduce", size, topology, algorithm=algorithm), level="summary", fold=True)
    # A step sends half of what is left up and down a switch, and so back: two latencies and one serialization.
    expected, left = 0, size
    for n, inside in zip(dims, (True, False), strict=True):
        link = int(np.flatnonzero(topology.in_node == inside)[0])
        for _ in range(n.bit_length() - 1):
            left //= 2
            expected += 2 * (2 * int(topology.latency_ps[link]) + int(left * 10**12 / topology.bandwidth(link)))
    assert records.makespan == expected and bool((records.finish == expected).all())


def test_65536_npus_take_the_time_of_their_closed_form():
    dims, size = [64, 32, 32], 64 * 32 * 32 * 1000
    topology = network("torus", dims, bandwidth="50 GB/s", latency="500 ns")
    algorithm = dataclasses.replace(build("hierarchical", "all_reduce", topology.npus, dims=dims), verdict=True)
    records = simulate(collective("all_reduce", size, topology, algorithm=algorithm), level="summary", fold=True)
    # Every step sends a shard of a shard to a neighbour: latency and serialization, 2(n-1) times in each dimension.
    expected, shard = 0, size
    for n in dims:
        shard //= n
        expected += 2 * (n - 1) * (500_000 + shard * 20)
    assert records.makespan == expected and bool((records.finish == expected).all())
    assert len(records.finish) == 65_536 and records.messages == 65_536 * 2 * (63 + 31 + 31)
    assert records.link.height == 3 * 65_536 and int(records.link["bytes"].max()) == 2 * 63 * size // 64


# -- the command line --------------------------------------------------------------------------------------------

SCENARIO = """\
name: folded
topologies: {torus: {shape: torus, dims: [3, 4], bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_reduce: {size: $size}}]
algorithms: {all_reduce: {builder: hierarchical, dims: [3, 4]}}
sweep: {size: [12 KiB, 1000 B]}
"""


def _run(capsys, *arguments: str) -> tuple[int, list[dict], str]:
    code = main(["run", *arguments, "--format", "json", "--jobs", "1"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_command_line_folds_and_says_so(tmp_path, capsys):
    path = tmp_path / "folded.yaml"
    path.write_text(SCENARIO)
    to = ["--out", str(tmp_path / "out"), "--set", "sweep.size=[12 KiB]"]
    code, rows, _ = _run(capsys, str(path), *to, "--fold")
    assert code == 0 and rows[0]["engine"] == "simpy+fold" and rows[0]["status"] == "done"
    code, again, _ = _run(capsys, str(path), *to)
    assert code == 0 and again[0]["engine"] == "simpy", "nobody asked for a folded one"
    own = {"engine", "cpu_s"}
    assert {k: v for k, v in again[0].items() if k not in own} == {k: v for k, v in rows[0].items() if k not in own}
    code, full, _ = _run(capsys, str(path), *to, "--fold")
    assert code == 0 and full == again, "a full one is as good as a folded one"
    code = main(["run", str(path), *to, "--fold"])
    said = "1 of 1 point was finished already, 1 of them in full, not folded (--fresh computes them again)"
    assert code == 0 and said in capsys.readouterr().err
    code, compared, _ = _run(capsys, str(path), *to, "--fold", "--engine", "both")
    assert code == 0 and compared[0]["engine"] == "both+fold", "which nobody had done"


def test_the_command_line_refuses_with_exit_code_2(tmp_path, capsys):
    path = tmp_path / "folded.yaml"
    path.write_text(SCENARIO + "fold: true\n")
    code, rows, err = _run(capsys, str(path), "--out", str(tmp_path / "out"))
    assert code == 2 and [row["status"] for row in rows] == ["done", "failed"]
    assert re.search(r"fold: 1000 bytes of all_reduce are not a multiple of the 12 chunks .*; run it without fold", err)
    code, _, err = _run(capsys, str(path), "--out", str(tmp_path / "other"), "--record", "nodes")
    assert code == 2 and "records single ranks" in err


def test_both_compares_with_the_full_run():
    records = simulate(_ring(), engine="both", fold=True)
    assert records.engine == "both+fold" and np.array_equal(records.finish, simulate(_ring(), engine="simpy").finish)
    with pytest.raises(FoldError):
        simulate(_ring(size=4001), engine="both", fold=True)


@pytest.mark.parametrize(("nodes", "npus"), [(2, 8), (3, 4), (4, 8), (8, 2)])
@pytest.mark.parametrize("algorithm", ["hierarchical", "rail_ring", "halving_doubling"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_one_npu_of_a_machine_stands_for_all(nodes, npus, algorithm, collective):
    """Every NPU has a link to the switch of its node, and one to that of its rail."""
    ranks = nodes * npus
    if algorithm == "halving_doubling" and ranks & (ranks - 1):
        pytest.skip("needs a power of two")
    options = {"hierarchical": {"dims": [npus, nodes]}, "rail_ring": {"nodes": npus}}.get(algorithm, {})
    made = build({"rail_ring": "ring"}.get(algorithm, algorithm), collective, ranks, **options)
    machine = build_topology(preset="dgx_h100", nodes=nodes, npus=npus)
    problem = collective_problem(collective, ranks * 4096, machine, algorithm=made)
    some, full = (simulate(problem, level="links", fold=fold) for fold in (True, False))
    assert some.events <= full.events
    assert np.array_equal(some.finish, full.finish)
    assert {name: some.link[name].tolist() for name in some.link} == {
        name: full.link[name].tolist() for name in full.link
    }


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_programs_that_tell_places_in_a_node_apart_are_refused_in_one_line(algorithm):
    machine = build_topology(preset="dgx_h100", nodes=2)
    with pytest.raises(FoldError) as error:
        simulate(collective_problem("all_reduce", "1 MiB", machine, algorithm=algorithm), fold=True)
    assert str(error.value).count("\n") == 0
