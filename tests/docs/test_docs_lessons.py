"""Lessons show what their opening comments say."""

from __future__ import annotations

import json

import pytest

from astrasim_py.cli.main import main
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario


def runs(repo, lesson: str, *overrides: str) -> dict[tuple[str, ...], object]:
    """Swept values → records."""
    points = expand(load_scenario(repo / "scenarios" / f"{lesson}.yaml", (*overrides, "plots=[]")))
    return {tuple(point.values.values()): simulate(prepare(point).problem, level="summary") for point in points}


def times(repo, lesson: str, *overrides: str) -> dict[tuple[str, ...], int]:
    return {key: records.makespan for key, records in runs(repo, lesson, *overrides).items()}


def test_a_ring_pays_for_its_longest_step_under_store_and_forward(repo):
    found = times(
        repo,
        "ring_vs_torus",
        "sweep.topology=[ring, torus_2d, torus_3d, fully_connected]",
        "sweep.size=[1 MiB]",
        "sweep.model=store_and_forward",
    )
    slowdown = {(t, p): time / found["ring", s, m, p] for (t, s, m, p), time in found.items()}
    assert slowdown == {
        ("ring", "linear"): 1,
        ("ring", "snake"): 1,
        ("torus_2d", "linear"): 2,
        ("torus_2d", "snake"): 1,
        ("torus_3d", "linear"): 3,
        ("torus_3d", "snake"): 1,
        ("fully_connected", "linear"): 1,
        ("fully_connected", "snake"): 1,
    }


def test_a_torus_costs_a_ring_only_latency_when_messages_cut_through(repo):
    found = times(
        repo,
        "ring_vs_torus",
        "sweep.topology=[ring, torus_2d]",
        "sweep.size=[64 KiB, 1 GiB]",
        "sweep.model=cut_through",
        "sweep.placement=linear",
    )
    for size, expected in (("64 KiB", 1.961), ("1 GiB", 1.001)):
        ratio = found["torus_2d", size, "cut_through", "linear"] / found["ring", size, "cut_through", "linear"]
        assert ratio == pytest.approx(expected, abs=0.0005)
        # 189 steps, in each of which one more latency is paid.
        more = found["torus_2d", size, "cut_through", "linear"] - found["ring", size, "cut_through", "linear"]
        assert more == 189 * 500_000


def test_recursive_doubling_and_halving_doubling_cross_at_80_kib(repo):
    found = times(
        repo,
        "crossover",
        "sweep.topology=switch",
        "sweep.size=[78 KiB, 82 KiB]",
        "sweep.algorithm=[recursive_doubling, halving_doubling]",
    )
    assert found["switch", "78 KiB", "recursive_doubling"] < found["switch", "78 KiB", "halving_doubling"]
    assert found["switch", "82 KiB", "recursive_doubling"] > found["switch", "82 KiB", "halving_doubling"]


def test_half_of_the_bandwidth_is_reached_at_alpha_n_b(repo):
    found = times(repo, "latency_or_bandwidth", "sweep.latency=1 us", "sweep.size=[800 kB]")
    # busbw = 2 (n - 1) / n x size / time is half of 50 GB/s
    assert 16 * found["800 kB", "1 us"] * 25 * 10**9 == 2 * 15 * 800_000 * 10**12


def test_dimensions_pay_on_nodes_of_eight(repo):
    found = times(
        repo, "hierarchical_dgx", "sweep.size=[256 MiB]", "sweep.algorithm={flat: ring, two: {builder: hierarchical, "
        "dims: [8, 4]}, pipelined: {builder: hierarchical, dims: [8, 4], chunks: 8}}"
    )  # fmt: skip
    flat, two, pipelined = (found["256 MiB", name] for name in ("flat", "two", "pipelined"))
    assert flat > 5 * two > 5 * pipelined


def test_memory_of_layouts_is_what_their_scenarios_say(repo):
    points = expand(load_scenario(repo / "scenarios/parallelism.yaml"))
    memory = {p.values["layout"]: round(estimate(p)["memory_total_bytes"] / 1e9, 1) for p in points}
    assert (memory["dp 32"], memory["tp 8"]) == (60.4, 9.6)
    kept = [p for p in expand(load_scenario(repo / "scenarios/memory_or_network.yaml")) if p.values["zero"] == "1"]
    assert {round(estimate(p)["memory_total_bytes"] / 1e9) for p in kept} == {319}


def test_more_buckets_expose_less_communication(repo):
    found = {
        key[1]: int(r.exposed_comm.max()) for key, r in runs(repo, "ddp_overlap", "sweep.bandwidth=50 GB/s").items()
    }
    assert found["one"] > found["two"] > found["four"] > 0


def test_a_slow_link_is_worse_than_a_dead_one_and_hides_a_straggler(repo):
    found = times(repo, "failures", "sweep.model=cut_through")
    calm = {topology: time for (topology, _, straggler), time in found.items() if straggler == "none"}
    assert calm["healthy"] < calm["link_down"] < calm["link_slow"]
    # 30 steps with two more latencies
    assert calm["link_down"] - calm["healthy"] == 30 * 2 * 500_000
    late = "one at half speed"
    assert found["healthy", "cut_through", late] - calm["healthy"] == 10**9
    assert found["link_slow", "cut_through", late] == calm["link_slow"]


def test_cuts_decide_an_all_to_all(repo):
    found = times(
        repo,
        "all_to_all_torus",
        "sweep.size=[16 MiB]",
        "sweep.algorithm=direct",
        "sweep.topology=[ring, torus_2d, switch]",
    )
    ring, torus, switch = found.values()
    assert ring > 6 * torus and torus > switch


def test_a_neighbour_is_heard_only_where_links_are_shared(repo):
    found = times(repo, "noisy_neighbour", "sweep.oversubscription=1")
    quiet, busy = "quiet neighbour", "busy neighbour"
    packed = {traffic: time for (_, traffic, where, _), time in found.items() if where == "packed"}
    spread = {traffic: time for (_, traffic, where, _), time in found.items() if where == "spread"}
    assert packed[quiet] == packed[busy] == spread[quiet] < spread[busy]


def test_random_placement_costs_a_language_model_but_not_a_stencil(repo):
    """Messages of 3 and 5 connections of the ring share the busiest uplink; packed, one has it to itself."""
    found = runs(repo, "packed_or_random", "sweep.seed=[1, 5]", "jobs.stencil.iterations=4")
    for seed, most in (("1", 3), ("5", 5)):
        packed, random = found["packed", seed], found["random", seed]
        step, more = (int(records.finish[:16].max()) / 10**12 for records in (packed, random))
        communication = packed.exposed_comm[:16].max() / 10**12
        assert (round(step, 2), round(communication, 2)) == (4.57, 0.61)
        assert more == pytest.approx(step + (most - 1) * communication, rel=0.005)
        assert 1 <= random.finish[16:].max() / packed.finish[16:].max() < 1.02


def test_a_repair_helps_before_the_reroute_or_between_messages(repo):
    found = {key: round(time / 10**9, 1) for key, time in times(repo, "link_flap").items()}
    delays = ("10 us", "1 ms", "10 ms")
    assert {repair: [found[repair, delay] for delay in delays] for repair, _ in found} == {
        "no flap": [67.5] * 3,
        "1 ms": [115, 68.5, 77.5],
        "5 ms": [115, 114.9, 77.5],
        "27 ms": [80, 80.1, 122.2],
        "never": [115, 114.9, 122.2],
    }


def test_one_hgx_h100_takes_what_astra_sim_says(repo):
    found = times(repo, "hgx_h100", "sweep.size=[1 MiB, 1 GiB]")
    stored = {(gpus, size): time for (gpus, model, size), time in found.items() if model == "store_and_forward"}
    # ASTRA-sim's own figure; it also waits for the endpoint delay before the first message, and floors to nanoseconds.
    assert stored["8", "1 MiB"] == pytest.approx(57_426_000, rel=0.002)
    assert 5 < stored["8", "1 MiB"] / stored["2", "1 MiB"] < 6
    for gpus in ("2", "4", "8"):
        n = int(gpus)
        busbw = 2 * (n - 1) / n * 2**30 / found[gpus, "cut_through", "1 GiB"] * 1e12
        assert busbw == pytest.approx(400 * 2**30, rel=0.002)
        assert found[gpus, "cut_through", "1 GiB"] < stored[gpus, "1 GiB"]


BUGS = ("right", "wrong_sum", "race", "deadlock")


def test_runtime_slots_stop_the_deadlock_only(repo):
    free = times(repo, "find_the_bug")
    for (size, name), records in runs(repo, "find_the_bug", "network.msccl=true").items():
        if name == "deadlock":
            assert records.outcome.status == "stuck" and records.outcome.cycle == (0, 1, 2, 3)
        else:
            assert records.makespan == free[size, name]


def test_verification_finds_the_three_bugs(repo, capsys):
    files = {name: repo / "scenarios/algorithms/find_the_bug" / f"{name}.xml" for name in BUGS}
    assert main(["verify", *map(str, files.values()), "--format", "json"]) == 1
    found = dict(zip(BUGS, json.loads(capsys.readouterr().out), strict=True))
    four = ("well_formed", "terminates", "correct", "race_free")
    wrong = {name: [key for key in four if found[name][key] is not True] for name in BUGS}
    assert wrong == {"right": [], "wrong_sum": ["correct"], "race": ["race_free"], "deadlock": ["terminates"]}
    assert found["deadlock"]["min_slots"] == 3
    # The example leads to the step that is to blame: the only one that differs from right.xml.
    lines = {name: path.read_text("utf-8").splitlines() for name, path in files.items()}
    head = len(lines["right"]) - len(lines["wrong_sum"])
    (blamed,) = (i + 1 for i, line in enumerate(lines["wrong_sum"]) if i > 1 and line != lines["right"][i + head])
    assert f"(line {blamed})" in found["wrong_sum"]["counterexample"]["text"]


@pytest.mark.parametrize(
    ("policy", "refused"), [("true", {"wrong_sum"}), ("strict", {"wrong_sum", "race", "deadlock"})]
)
def test_the_policy_decides_what_is_refused(repo, policy, refused):
    from astrasim_py.core.errors import AlgorithmError
    from astrasim_py.system.lowering import make_plan

    found, warned = set(), set()
    lesson = load_scenario(repo / "scenarios/find_the_bug.yaml", (f"verify={policy}", "sweep.size=[1 KiB]"))
    for point in expand(lesson):
        name, prepared = point.values["algorithm"], prepare(point)
        try:
            plan = make_plan(prepared.problem)
        except AlgorithmError as error:
            assert error.exit_code == 3
            found.add(name)
            continue
        if prepared.notes_with(plan).warnings:
            warned.add(name)
    assert found == refused
    assert policy == "strict" or warned == {"race", "deadlock"}


def test_a_lesson_is_copied_with_its_algorithms(tmp_path):
    from astrasim_py.cli.new import copy

    written = {path.relative_to(tmp_path).as_posix() for path in copy("find_the_bug", tmp_path)}
    assert {f"algorithms/find_the_bug/{name}.xml" for name in BUGS} <= written
    assert len(expand(load_scenario(tmp_path / "find_the_bug.yaml"))) == 12


@pytest.mark.slow
def test_a_library_uses_all_nics_of_a_node_and_pays_for_its_calls(repo):
    found = times(
        repo, "real_machines", "topologies.h100s.nodes=4", "sweep.size=[1 KiB, 256 MiB]",
        "sweep.algorithm={ring: ring, nccl: nccl}",
    )  # fmt: skip

    def busbw(costs: str, algorithm: str) -> float:
        return 2 * 31 / 32 * 2**28 * 1000 / found[costs, "256 MiB", algorithm]

    # Latencies cost some percent at this size.
    assert 48 < busbw("links", "ring") < 50
    assert 385 < busbw("links", "nccl") < 400
    # One NVLink of a GPU carries all eight rings.
    assert 315 < busbw("library", "nccl") < 339
    assert found["library", "1 KiB", "nccl"] < found["library", "1 KiB", "ring"] / 5


def test_eight_tiles_hide_most_of_the_collectives_of_a_layer(repo):
    found = times(repo, "overlap")
    # One tile has neither overhead nor a lower speed. The first of two ends with the half that arrives last.
    step = 2**26 // 8 * 10 + 10**6
    assert found["1", "1"] == found["0.9", "1"] == 10**9 + 14 * step
    assert found["0.9", "2"] > found["0.9", "1"]
    for speed, best in (("1", ("8", "16")), ("0.9", ("8",))):
        ranked = sorted((t for s, t in found if s == speed), key=lambda tiles: found[speed, tiles])
        assert tuple(sorted(ranked[: len(best)], key=int)) == best
        assert found[speed, "8"] < found[speed, "1"] * 0.57
    assert found["1", "64"] < 10**9 + 64 * 5 * 10**6 + step
    assert found["0.9", "4"] - found["1", "4"] == 111_111_112
