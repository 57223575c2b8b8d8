"""Collectives that a scenario cuts: chunks, dimensions, queues, the order of dimensions, and what is refused."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.bounds import problem_bound

from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.core.choices import BY_DIMENSION
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.inspection.explained import explain_folder
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results.store import RunOptions
from astrasim_py.runs.task import make_task, run_task
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan

LINK = "bandwidth: 50 GB/s, latency: 500 ns"
RING = f"ring: {{shape: ring, npus: 8, {LINK}}}"
TORUS = f"torus: {{shape: torus, dims: [4, 3, 2], {LINK}}}"
SWITCH = "{kind: switch, size: 4, bandwidth: 50 GB/s, latency: 1 ns}"
SWITCHES = f"switches: {{shape: product, dims: [{SWITCH}, {SWITCH}, {SWITCH}]}}"
LIST = f"list: {{shape: edge_list, edges: [{{src: 0, dst: 1, {LINK}, directions: both}}]}}"


def points(tmp_path, topology=RING, workload="[{all_reduce: {size: 1 MiB}}]", more="", *overrides):
    path = tmp_path / "s.yaml"
    path.write_text(f"name: demo\ntopologies: {{{topology}}}\nworkload: {workload}\n{more}\n", "utf-8")
    return expand(load_scenario(path, overrides))


def ran(point, level="nodes"):
    prepared = prepare(point)
    plan = make_plan(prepared.problem)
    records = simulate(plan, level=level)
    assert records.outcome.status == "done"
    return records, prepared.notes_with(plan).warnings


def makespans(tmp_path, *args) -> list[int]:
    return [ran(point, "summary")[0].makespan for point in points(tmp_path, *args)]


def test_one_chunk_in_one_dimension_is_the_builder_itself(tmp_path):
    for collective, algorithm in (
        ("all_reduce", "ring"),
        ("all_reduce", "halving_doubling"),
        ("all_gather", "ring"),
        ("reduce_scatter", "ring"),
        ("all_to_all", "direct"),
    ):
        workload = f"[{{{collective}: {{size: 1000001 B}}}}]"
        chosen = f"algorithms: {{{collective}: {algorithm}}}\n"
        (plain,) = points(tmp_path, RING, workload, chosen)
        (planned,) = points(tmp_path, RING, workload, chosen + "collectives: {}")
        (listed,) = points(tmp_path, RING, workload, f"algorithms: {{{collective}: {{dims: [{algorithm}]}}}}")
        expected = ran(plain)[0]
        for point in (planned, listed):
            found = ran(point)[0]
            assert found.makespan == expected.makespan > 0
            assert found.finish.tolist() == expected.finish.tolist()
            assert found.link["bytes"].tolist() == expected.link["bytes"].tolist()


def test_defaults_are_those_of_collectives_at_once(tmp_path):
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        workload = f"[{{{collective}: {{size: 999 KiB}}}}]"
        assert makespans(tmp_path, RING, workload, "collectives: {}") == makespans(tmp_path, RING, workload)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all"])
@pytest.mark.parametrize("size", ["1 MiB", "1000003 B", "7 B"])
def test_bytes_are_conserved(tmp_path, collective, size):
    """What every rank takes in is what its collective asks for, however it is cut."""
    n, dims = 12, (3, 2, 2)
    torus = f"torus: {{shape: torus, dims: [3, 2, 2], {LINK}}}"
    text = "collectives: {chunks: $c, active_chunks: 2, queues: $q, all_reduce: $w}\n"
    text += "sweep: {zip: {c: [1, 5, 5], q: [1, 1, 2], w: [local_first, two_way, local_first]}}"
    for point in points(tmp_path, torus, f"[{{{collective}: {{size: {size}}}}}]", text):
        problem = prepare(point).problem
        plan = make_plan(problem)
        records = simulate(plan, level="messages")
        assert records.outcome.status == "done"
        assert plan_for(problem, fold=True).messages == plan.messages == records.messages
        nbytes = {"1 MiB": 2**20, "1000003 B": 1000003, "7 B": 7}[size]
        moved = int(records.message["bytes"].sum())
        if collective == "all_to_all":
            # Through dimension d goes everything whose coordinate there changes, up to a byte for each block.
            asked = sum(nbytes * (size_of - 1) // size_of for size_of in dims) * n
            assert abs(moved - asked) <= 5 * n * sum(dims)
        else:
            # A reduce_scatter or all_gather moves n - 1 copies of the buffer in all, whatever the dimensions.
            assert moved == nbytes * (n - 1) * (2 if collective == "all_reduce" else 1)


def test_chunks_overlap_in_different_dimensions(tmp_path):
    one, four, eight = makespans(
        tmp_path, TORUS, "[{all_reduce: {size: 64 MiB}}]", "collectives: {chunks: $c}\nsweep: {c: [1, 4, 8]}"
    )
    assert four < eight < one / 1.2  # more chunks are more latencies


def test_baseline_moves_more(tmp_path):
    local, baseline = makespans(
        tmp_path, TORUS, "[{all_reduce: {size: 64 MiB}}]", "sweep: {collectives.all_reduce: [local_first, baseline]}"
    )
    assert baseline > 1.5 * local


def test_themis_beats_the_fixed_order_on_three_switches(tmp_path):
    text = "algorithms: {all_reduce: halving_doubling}\ncollectives: {chunks: 32, endpoint_delay: 10 ns}\n"
    text += "sweep: {network.model: [analytical, cut_through], collectives.order: [fixed, themis]}"
    found = makespans(tmp_path, SWITCHES, "[{all_reduce: {size: 64 MiB}}]", text)
    for fixed, themis in (found[:2], found[2:]):
        # The innermost dimension alone carries 2 x 3/4 of the buffer; balanced, each carries a third of 2 x 63/64.
        assert fixed >= 2**26 * 3 / 4 * 2 / 50e9 * 1e12
        assert themis < fixed / 2
        assert themis > 2**26 * 63 / 64 * 2 / 150e9 * 1e12


def test_every_message_pays_the_endpoint_delay(tmp_path):
    none, some = makespans(
        tmp_path, RING, "[{all_reduce: {size: 1 MiB}}]", "sweep: {collectives.endpoint_delay: [0 ns, 7 ns]}"
    )
    assert some - none == 14 * 7000


def test_flat_takes_all_npus_for_one_dimension(tmp_path):
    at_once, flat, dims = (
        makespans(tmp_path, TORUS, "[{all_reduce: {size: 1 MiB}}]", text)[0]
        for text in ("", "collectives: {flat: true}", "collectives: {}")
    )
    assert at_once == flat != dims
    assert makespans(tmp_path, LIST, "[{all_reduce: {size: 1 MiB}}]", "collectives: {flat: true, chunks: 2}") > [0]


def test_the_bound_holds_and_the_algorithms_are_named(tmp_path):
    (point,) = points(
        tmp_path, TORUS, "[{all_reduce: {size: 12 MiB}}]",
        "algorithms: {all_reduce: {dims: [ring, direct, halving_doubling]}}\ncollectives: {chunks: 4}",
    )  # fmt: skip
    task = make_task(point, tmp_path / "results", RunOptions(level="nodes"))
    result = run_task(task)
    assert result.exit_code == 0
    assert result.row["bound_ns"] and 0 < result.row["efficiency"] <= 1
    assert set(result.row["algorithm"].split("+")) == {"ring", "direct", "halving_doubling"}
    assert explain_folder(task.folder).explanation.path


def test_all_of_it_can_be_swept_and_tells_points_apart(tmp_path):
    text = "collectives: $c\nalgorithms: {all_reduce: $a}\nsweep: {c: {one: {}, two: {chunks: 2}}, "
    text += "a: {rings: ring, mixed: {dims: [direct, ring, halving_doubling]}}}"
    found = points(tmp_path, TORUS, "[{all_reduce: {size: 1 MiB}}]", text)
    assert len({ran(point, "summary")[0].makespan for point in found}) == 4
    assert len({make_task(point, tmp_path, RunOptions(level="links")).identity for point in found}) == 4


def test_groups_fill_a_grid_or_are_carried_out_at_once(tmp_path):
    torus = f"torus: {{shape: torus, dims: [4, 2], {LINK}}}"
    text = "groups: {row: [0, 1, 2, 3], square: [0, 1, 4, 5], odd: [0, 5]}\ncollectives: {chunks: 2}"
    work = "[{all_reduce: {size: 1 MiB, group: row}}, {all_reduce: {size: 1 MiB, group: square}}"
    (point,) = points(tmp_path, torus, work + ", {all_reduce: {size: 1 MiB, group: odd}}, barrier]", text)
    _, warnings = ran(point)
    plan = make_plan(prepare(point).problem)
    assert [len(instance.chunks) for instance in plan.instances] == [2, 2, 0, 0]
    assert [len(stream.phases) for instance in plan.instances[:2] for stream in instance.chunks] == [1, 1, 3, 3]
    (warning,) = warnings
    assert "the 2 ranks of group odd do not fill a grid" in warning and "s.yaml:5" in warning


def test_placement_decides_the_dimensions_of_ranks(tmp_path):
    torus = f"torus: {{shape: torus, dims: [4, 2], {LINK}}}"
    text = "collectives: {chunks: 2}\nplacement: $p\nsweep: {p: [linear, snake]}"
    found = [
        make_plan(prepare(point).problem) for point in points(tmp_path, torus, "[{all_reduce: {size: 1 MiB}}]", text)
    ]
    for plan in found:
        (instance,) = plan.instances
        rows = [part.members for part in instance.chunks[0].phases[0].calls]
        assert all({plan.npu_of[rank] // 4 for rank in row} in ({0}, {1}) for row in rows)


def test_cases_choose_by_size_group_and_node(tmp_path):
    work = "[{all_reduce: {size: 1 KiB}}, {all_reduce: {size: 1 MiB}}, {all_reduce: {size: 1 MiB}}]"
    for node, more in (("2", ""), ("2", "collectives: {chunks: 2}"), ("'>= 2 and < 3'", "")):
        cases = "algorithms: {all_reduce: [{when: {size: '<= 1 KiB'}, builder: direct}, "
        cases += f"{{when: {{node: {node}}}, dims: [halving_doubling]}}, {{builder: ring}}]}}\n"
        (point,) = points(tmp_path, RING, work, cases + more)
        plan = make_plan(prepare(point).problem)
        node_of = [int(np.flatnonzero(plan.workload[0].instance == k)[0]) for k in range(3)]
        ids = [int(plan.workload[0].node_id[row]) for row in node_of]
        expected = ["direct" if k == 0 else "halving_doubling" if ids[k] == 2 else "ring" for k in range(3)]
        assert [instance.algorithm_name for instance in plan.instances] == expected
        assert "halving_doubling" in expected and ran(point)[0].makespan


def test_nodes_choose_without_a_planner_too(tmp_path):
    work = "[{all_reduce: {size: 1 MiB}}, {all_reduce: {size: 1 MiB}}]"
    (plain,) = points(tmp_path, RING, work)
    write_prefix(tmp_path / "wl", prepare(plain).problem.jobs[0].workload.traces)
    ids = [int(node) for node in make_plan(prepare(plain).problem).workload[0].node_id]
    text = f"algorithms: {{all_reduce: [{{when: {{node: {ids[-1]}}}, builder: direct}}, ring]}}"
    (point,) = points(tmp_path, RING, "{trace: wl}", text)
    plan = make_plan(prepare(point).problem)
    assert [instance.algorithm_name for instance in plan.instances] == ["ring", "direct"]
    assert plan_for(prepare(point).problem, fold=True).messages == plan.messages


def test_injected_algorithms_are_not_cut(tmp_path):
    from astrasim_py.builders.registry import build
    from astrasim_py.program.files import write_npz

    write_npz(tmp_path / "mine.npz", build("ring", "all_reduce", 8))
    text = "algorithms: {all_reduce: {file: mine.npz}}\n"
    plain, cut = (
        makespans(tmp_path, RING, "[{all_reduce: {size: 1 MiB}}]", text + more)
        for more in ("", "collectives: {chunks: 8, endpoint_delay: 1 us}")
    )
    assert plain == cut
    torus = f"torus: {{shape: torus, dims: [4, 2], {LINK}}}"
    two = "algorithms: {all_reduce: {builder: hierarchical, dims: [4, 2]}}\n"
    assert makespans(tmp_path, torus, "[{all_reduce: {size: 1 MiB}}]", two) == makespans(
        tmp_path, torus, "[{all_reduce: {size: 1 MiB}}]", two + "collectives: {chunks: 8}"
    )


def test_jobs_share_the_rules(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        f"name: two\ntopologies: {{torus: {{shape: torus, dims: [4, 2], {LINK}}}}}\ncollectives: {{chunks: 4}}\n"
        "jobs:\n  a: {workload: [{all_reduce: {size: 1 MiB}}], placement: ['0-3']}\n"
        "  b: {workload: [{all_gather: {size: 1 MiB}}], placement: ['4-7'], algorithms: {all_gather: direct}}\n",
        "utf-8",
    )
    plan = make_plan(prepare(expand(load_scenario(path))[0]).problem)
    assert [len(instance.chunks) for instance in plan.instances] == [4, 4]
    assert [instance.algorithm_name for instance in plan.instances] == ["ring", "direct"]
    assert simulate(plan).outcome.status == "done"


def test_it_works_with_connections_of_runtimes(tmp_path):
    text = "collectives: {chunks: 3, active_chunks: 2}\nnetwork: {msccl: {slots: 2, channel_bandwidth: 10 GB/s}}"
    slow, fast = (
        makespans(tmp_path, TORUS, "[{all_reduce: {size: 3 MiB}}]", text),
        makespans(tmp_path, TORUS, "[{all_reduce: {size: 3 MiB}}]", "collectives: {chunks: 3, active_chunks: 2}"),
    )
    assert slow[0] > 2 * fast[0]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("collectives: {chunk: 2}", '4:15: collectives.chunk: is not a key here; did you mean "chunks"?'),
        ("collectives: {chunks: 0}", "4:23: collectives.chunks: 0 is less than 1; write a whole number from 1 to"),
        ("collectives: {chunks: 4 MiB}", 'collectives.chunks: "4 MiB" is not a whole number'),
        ("collectives: {active_chunks: 1.5}", "collectives.active_chunks: 1.5 is not a whole number"),
        ("collectives: {order: themys}", '"themys" is not one of fixed, themis; did you mean "themis"?'),
        ("collectives: {all_reduce: localfirst}", 'did you mean "local_first"?'),
        ("collectives: {endpoint_delay: 10}", "collectives.endpoint_delay: 10 is not a time: it has no unit"),
        ("collectives: {order: themis, all_reduce: baseline}", "collectives.all_reduce: themis visits all dimensions"),
        ("collectives: 4", "4:14: collectives: 4 is not a mapping"),
        ("colectives: {}", 'colectives: is not a key here; did you mean "collectives"?'),
        ("algorithms: {all_reduce: {dims: [rnig]}}", 'algorithms.all_reduce.dims[0]: "rnig" is not a builder; did you'),
        ("algorithms: {all_reduce: {dims: [{builder: ring, windw: 2}]}}", "ring has no option windw"),
        ("algorithms: {all_reduce: {dims: []}}", "algorithms.all_reduce.dims: 0 items are fewer than 1"),
        ("algorithms: {broadcast: {dims: [ring]}}", "algorithms.broadcast.dims: a broadcast is not cut by dimension"),
        ("algorithms: {all_reduce: {dims: [ring], file: x.xml}}", "algorithms.all_reduce"),
        ("algorithms: {all_reduce: {dim: [ring]}}", "algorithms.all_reduce: has neither builder nor file"),
        ("algorithms: {all_reduce: [{when: {node: -1}, builder: ring}, ring]}", "-1 is less than 0"),
        (
            "algorithms: {all_reduce: [{when: {node: '>= one'}, builder: ring}, ring]}",
            'node "one" is not a whole number',
        ),
        ("algorithms: {all_reduce: [{when: {nod: 1}, builder: ring}, ring]}", 'did you mean "node"?'),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, more, expected):
    with pytest.raises(AstraError) as caught:
        points(tmp_path, RING, "[{all_reduce: {size: 1 MiB}}]", more)
    (line,) = caught.value.lines()
    assert expected in line
    assert line.removeprefix(f"{tmp_path}{os.sep}").startswith("s.yaml:4:")


@pytest.mark.parametrize(
    ("topology", "more", "expected"),
    [
        (LIST, "collectives: {}", "collectives: topology list (edge_list) has no dimensions; write flat: true"),
        (
            TORUS,
            "algorithms: {all_reduce: {dims: [ring, ring]}}",
            "algorithms for 2 dimensions, and topology torus has 3 (4 x 3 x 2); write one for each",
        ),
        (
            TORUS,
            "algorithms: {all_reduce: {dims: [ring, ring]}}\ncollectives: {flat: true}",
            "has one dimension (flat)",
        ),
        (
            TORUS,
            "algorithms: {all_reduce: {dims: [double_binary_tree, ring, ring]}}",
            "double_binary_tree has no reduce_scatter (a phase of dimension 0, over 4 NPUs)",
        ),
    ],
)
def test_what_does_not_fit_the_topology_is_told_with_its_place(tmp_path, topology, more, expected):
    (point,) = points(tmp_path, topology, "[{all_reduce: {size: 1 MiB}}]", more)
    with pytest.raises(AstraError) as caught:
        make_plan(prepare(point).problem)
    (line,) = caught.value.lines()
    assert expected in line and "s.yaml:4:" in line


@settings(max_examples=40)
@given(
    dims=st.lists(st.integers(2, 4), min_size=1, max_size=3).filter(lambda dims: math.prod(dims) <= 16),
    kind=st.sampled_from(["ring", "fully_connected", "switch"]),
    collective=st.sampled_from(BY_DIMENSION),
    size=st.integers(1, 3000),
    spec=st.fixed_dictionaries(
        {
            "chunks": st.integers(1, 4),
            "active_chunks": st.integers(1, 2),
            "all_reduce": st.sampled_from(["local_first", "two_way", "baseline"]),
        }
    ),
)
def test_nothing_is_faster_than_its_bound(tmp_path_factory, dims, kind, collective, size, spec):
    listed = [{"kind": kind, "size": each, "bandwidth": "1 GB/s", "latency": "1 ns"} for each in dims]
    topology = f"t: {json.dumps({'shape': 'product', 'dims': listed})}"
    (point,) = points(
        tmp_path_factory.getbasetemp(), topology, f"[{{{collective}: {{size: {size} B}}}}]", f"collectives: {spec}"
    )
    plan = make_plan(prepare(point).problem)
    bound = problem_bound(plan)
    assert bound is not None and 0 < bound <= simulate(plan, level="summary").makespan
