"""From points to Problems: what is built and read, and what is refused before anything runs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.schema import MISSING
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError, TraceError
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.files import write_npz
from astrasim_py.program.interchange import algorithm_traces
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan

HEAD = "name: demo\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
RING = HEAD + "workload: [{all_reduce: {size: 1 MiB}}]\n"


def prepared(tmp_path, text, *overrides, **options):
    path = tmp_path / "s.yaml"
    path.write_text(text, "utf-8")
    points = expand(load_scenario(path, overrides, **options))
    return prepare(points[0])


def problem(tmp_path, text, *overrides, **options):
    return prepared(tmp_path, text, *overrides, **options).problem


def wrong_ring(ranks=4):
    """A ring all_reduce in which one message carries another chunk than it says."""
    algorithm = build("ring", "all_reduce", ranks)
    traces = list(algorithm.traces)
    index = traces[1].column("src_off").copy()
    sends = [i for i in range(len(index)) if index[i] >= 0 and traces[1].type[i] == 5]
    index[sends[0]] = (index[sends[0]] + 1) % ranks
    traces[1] = traces[1].replace(src_off=index)
    return algorithm, traces


def test_the_closed_form_of_the_ring(tmp_path):
    records = simulate(problem(tmp_path, RING))
    assert records.makespan == 6 * (500_000 + 2**20 // 4 * 20)


@pytest.mark.parametrize("form", ["et", "et.gz", "npz"])
def test_an_injected_algorithm_behaves_like_the_built_one(tmp_path, form):
    algorithm = build("ring", "all_reduce", 4)
    if form == "npz":
        write_npz(tmp_path / "ring.npz", algorithm)
    else:
        write_prefix(tmp_path / "ring", algorithm_traces(algorithm), gzip=form == "et.gz")
    name = "ring.npz" if form == "npz" else "ring"
    point = prepared(tmp_path, RING + f"algorithms: {{all_reduce: {{file: {name}}}}}\n")
    injected = point.problem
    assert not point.notes_with(make_plan(injected)).warnings
    assert injected.jobs[0].algorithms.select("all_reduce", 2**20, 4, "world").verdict is True
    assert simulate(injected).makespan == simulate(problem(tmp_path, RING)).makespan


def test_a_wrong_algorithm_is_refused_before_running(tmp_path):
    _, traces = wrong_ring()
    write_prefix(tmp_path / "bad", traces)
    text = RING + "algorithms: {all_reduce: {file: bad}}\n"
    with pytest.raises(AlgorithmError) as caught:
        make_plan(problem(tmp_path, text))
    assert caught.value.exit_code == 3
    assert "s.yaml:4:26: algorithms.all_reduce" in str(caught.value)
    assert "is wrong" in str(caught.value)
    assert simulate(problem(tmp_path, text + "verify: false\n")).outcome.status == "done"


def test_an_algorithm_without_cells_is_a_warning_and_strictly_an_error(tmp_path):
    algorithm = build("ring", "all_reduce", 4)
    cells = ("src_buf", "src_off", "dst_buf", "dst_off", "payload", "comp_op")
    bare = [
        trace.without_raw().replace(**{name: np.full(len(trace), MISSING) for name in cells})
        for trace in algorithm_traces(algorithm)
    ]
    write_prefix(tmp_path / "bare", bare)
    text = RING + "algorithms: {all_reduce: {file: bare}}\n"
    point = prepared(tmp_path, text)
    warnings = point.notes_with(make_plan(point.problem)).warnings
    assert len(warnings) == 1 and "could not be verified" in warnings[0]
    with pytest.raises(AlgorithmError, match="could not be verified"):
        make_plan(problem(tmp_path, text + "verify: strict\n"))


def test_an_algorithm_for_another_number_of_ranks_is_refused(tmp_path):
    write_npz(tmp_path / "ring.npz", build("ring", "all_reduce", 8))
    with pytest.raises(AlgorithmError, match="is made for 8 ranks, and the group has 4"):
        make_plan(problem(tmp_path, RING + "algorithms: {all_reduce: {file: ring.npz}}\n"))


def test_missing_files_are_named(tmp_path):
    with pytest.raises(TraceError, match=r"there is no nothing\.0\.et"):
        make_plan(problem(tmp_path, RING + "algorithms: {all_reduce: {file: nothing}}\n"))


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    write_prefix(tmp_path / "ring", build("ring", "all_reduce", 4).traces)
    for rank in range(4):
        (folder / f"ring.{rank}.et").symlink_to(tmp_path / f"ring.{rank}.et")
    text = RING + "algorithms: {all_reduce: {file: ring}}\n"
    with pytest.raises(ScenarioError, match="leads out of the folder"):
        make_plan(problem(folder, text))
    assert make_plan(problem(folder, text, allow_outside=True)).messages == 24


def test_groups_partition_the_ranks(tmp_path):
    text = (
        HEAD
        + "groups: {dp: {size: 2, stride: 2}, tp: {size: 2}, odd: [3, 1]}\n"
        + (
            "workload:\n  - all_reduce: {size: 1 KiB, group: dp}\n  - all_gather: {size: 1 KiB, group: tp}\n"
            "  - broadcast: {size: 1 KiB, group: odd, root: 1}\n"
        )
    )
    workload = problem(tmp_path, text).jobs[0].workload
    assert workload.groups == {"dp.0": (0, 2), "dp.1": (1, 3), "tp.0": (0, 1), "tp.1": (2, 3), "odd": (3, 1)}


def test_a_partition_of_a_list_is_a_list_of_partitions():
    from astrasim_py.preparation.workloads.items import members_of
    from astrasim_py.scenario.job_models import Partition

    assert members_of(Partition(size=2, stride=4), 16) == tuple((a, a + 4) for a in (0, 1, 2, 3, 8, 9, 10, 11))


def test_rules_and_machines_reach_the_problem(tmp_path):
    text = RING + (
        "network: {model: store_and_forward, link_busy: latency+bytes, send_completes: injected}\n"
        "semantics: {base: native, gamma: 20 ns/MiB, comm_slots: 2, cpu_slots: unlimited}\n"
        "compute: {peak: 100 TFLOP/s, memory_bandwidth: 2 TB/s}\n"
        "memory: {kind: pool, latency: 1 us, bandwidth: 100 GB/s}\n"
        "stragglers: {compute_speed: {1: 0.5}, start_delay: {'2-3': 5 us}}\n"
        "limits: {max_events: 7, max_sim_time: 1 s}\n"
        "placement: [3, 2, 1, 0]\n"
    )
    made = problem(tmp_path, text)
    assert (made.network.model, made.network.link_busy) == ("store_and_forward", "latency+bytes")
    assert made.semantics.gamma == Fraction(20, 10**9 * 2**20)
    assert (made.semantics.comm_slots, made.semantics.cpu_slots) == (2, None)
    assert made.compute.roofline and made.compute.peak == 10**14
    assert (made.memory.kind, made.memory.latency_ps) == ("pool", 10**6)
    job = made.jobs[0]
    assert job.compute_speed == {1: Fraction(1, 2)}
    assert job.start_delay_ps == {2: 5 * 10**6, 3: 5 * 10**6}
    assert job.placement == (3, 2, 1, 0)
    assert (made.limits.max_events, made.limits.max_sim_time_ps) == (7, 10**12)


def test_presets_are_complete_and_may_be_changed(tmp_path):
    from astrasim_py.topology.hardware import preset_names

    for name in preset_names("topology"):
        text = f"name: x\ntopologies: {{d: {{preset: {name}}}}}\nworkload: [barrier]\n"
        assert problem(tmp_path, text).topology.npus >= 1
    text = "name: x\ntopologies: {d: {preset: dgx_a100, nodes: 2}}\nworkload: [barrier]\ncompute: {preset: dgx_a100}\n"
    made = problem(tmp_path, text)
    assert made.topology.npus == 16
    assert made.compute.roofline and made.compute.peak > 10**14


def test_decimal_bandwidths_are_binary_under_astra_sim(tmp_path):
    assert problem(tmp_path, RING).topology.bandwidths == (Fraction(50 * 10**9),)
    assert problem(tmp_path, RING + "semantics: astra_sim\n").topology.bandwidths == (Fraction(50 * 2**30),)


def test_jobs_share_the_network_on_npus_of_their_own(tmp_path):
    text = (
        "name: two\n"
        "topologies: {s: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
        "algorithms: {all_reduce: direct}\n"
        "jobs:\n"
        "  a: {workload: [{all_reduce: {size: 1 MiB}}], placement: [0, 1]}\n"
        "  b: {workload: [{all_reduce: {size: 1 MiB}}], placement: [3, 2], algorithms: {all_reduce: ring}}\n"
    )
    made = problem(tmp_path, text)
    assert [(job.name, job.placement) for job in made.jobs] == [("a", (0, 1)), ("b", (3, 2))]
    assert simulate(made).outcome.status == "done"
    with pytest.raises(AstraError, match='NPU 1 belongs to job "a" too'):
        problem(tmp_path, text.replace("[3, 2]", "[1, 2]"))
    with pytest.raises(AstraError, match="NPU 4 does not exist: there are 4"):
        problem(tmp_path, text.replace("[3, 2]", "[4, 2]"))


def test_a_workload_is_read_from_files(tmp_path):
    made = problem(tmp_path, RING)
    write_prefix(tmp_path / "wl", made.jobs[0].workload.traces)
    read = problem(tmp_path, HEAD + "workload: {trace: wl}\n")
    assert simulate(read).makespan == simulate(made).makespan
    with pytest.raises(AstraError, match="4 ranks are more than the 2 NPUs"):
        problem(tmp_path, HEAD + "workload: {trace: wl}\n", "topologies.r.npus=2")


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        (RING, ["placement=[0, 1, 2, 9]"], "NPU 9"),
        (RING, ["topologies.r.failed={npus: [9]}"], "9"),
        (RING, ["topologies.r={shape: hypercube, npus: 3, bandwidth: 1 GB/s, latency: 0 ns}"], "power of two"),
        (RING, ["topologies.r={shape: torus, dims: [1048576, 1048576], bandwidth: 1 GB/s, latency: 0 ns}"], "cap"),
        (RING, ["topologies.r.failed={links: [[0, 1], [1, 2]]}"], "no path"),
        (RING, ["algorithms={all_reduce: {when: {size: '> 2 MiB'}, builder: ring}}"], "no case holds"),
    ],
)
def test_what_only_building_shows_is_refused_with_its_place(tmp_path, text, overrides, expected):
    with pytest.raises(AstraError) as caught:
        make_plan(problem(tmp_path, text, *overrides))
    assert expected in str(caught.value)
    assert caught.value.exit_code in (2, 3)


def test_messages_are_counted_without_running(tmp_path):
    text = (
        HEAD
        + "groups: {dp: {size: 2}}\n"
        + (
            "workload:\n  - all_reduce: {size: 1 KiB, repeat: 3}\n  - all_gather: {size: 1 KiB, group: dp}\n"
            "  - send: {from: 0, to: 3, size: 1 KiB}\n  - barrier\n  - compute: {time: 1 us}\n"
        )
    )
    made = problem(tmp_path, text)
    assert plan_for(made, fold=True).messages == make_plan(made).messages == simulate(made).messages


def test_own_code_runs_only_when_allowed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from astrasim_py.builders.registry import build\n"
        "def tree(collective, ranks, **options):\n    return build('ring', collective, ranks, **options)\n"
        "def broken(collective, ranks):\n    raise RuntimeError('no')\n"
    )
    text = RING + "algorithms: {all_reduce: {python: mine.py:tree, chunks: 2}}\n"
    with pytest.raises(AstraError, match="--allow-code"):
        problem(tmp_path, text)
    assert make_plan(problem(tmp_path, text, allow_code=True)).messages == 48
    with pytest.raises(AlgorithmError, match=r"mine\.py:broken failed: RuntimeError: no"):
        make_plan(problem(tmp_path, text.replace("tree, chunks: 2", "broken"), allow_code=True))
    with pytest.raises(ScenarioError, match="has no function or class"):
        make_plan(problem(tmp_path, text.replace("tree, chunks: 2", "absent"), allow_code=True))


def test_points_of_a_sweep_share_what_they_have_in_common(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(HEAD + "workload: [{all_reduce: {size: $size}}]\nsweep: {size: [1 KiB, 1 MiB]}\n")
    a, b = (prepare(point).problem for point in expand(load_scenario(path)))
    assert a.jobs[0].algorithms.select("all_reduce", 1, 4, "world") is b.jobs[0].algorithms.select(
        "all_reduce", 1, 4, "world"
    )


def test_an_own_network_model_runs_on_the_simpy_engine(tmp_path):
    (tmp_path / "models.py").write_text(
        "from astrasim_py.engine.simpy.network import Network\n"
        "class Tunnel(Network):\n"
        "    name = 'tunnel'\n"
        "    def carry(self, message):\n"
        "        yield self.env.timeout(7_000_000)\n"
    )
    text = RING + "network: {model: models.py:Tunnel}\n"
    with pytest.raises(AstraError, match="--allow-code"):
        problem(tmp_path, text)
    records = simulate(problem(tmp_path, text, allow_code=True))
    assert records.makespan == 6 * 7_000_000
    with pytest.raises(AstraError, match=r"does not name a function in a file|is not a network model"):
        problem(tmp_path, text.replace("models.py:Tunnel", "models.py"), allow_code=True)


def test_other_packages_add_algorithms_shapes_and_networks(tmp_path, monkeypatch):
    from importlib.metadata import EntryPoint

    from astrasim_py.core import registry
    from astrasim_py.engine.simpy.network import Network
    from astrasim_py.topology.shapes import Ring

    class Tunnel(Network):
        def carry(self, message):
            yield self.env.timeout(1_000_000)

    made = {
        "algorithm.twice": lambda collective, ranks: build("ring", collective, ranks, chunks=2),
        "shape.circle": lambda members: Ring(npus=members, bandwidth=Fraction(10**9), latency=0).build(),
        "network.tunnel": Tunnel,
    }
    entries = [EntryPoint(name, f"other:{name}", registry.GROUP) for name in made]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    monkeypatch.setattr(EntryPoint, "load", lambda entry: made[entry.name])
    registry._table.cache_clear()
    try:
        text = (
            "name: demo\ntopologies: {r: {shape: circle, members: 4}}\nworkload: [{all_reduce: {size: 1 MiB}}]\n"
            "algorithms: {all_reduce: twice}\nnetwork: {model: tunnel}\n"
        )
        records = simulate(problem(tmp_path, text))
        assert (records.makespan, records.messages) == (6 * 1_000_000, 48)
        with pytest.raises(AstraError, match='did you mean "circle"'):
            problem(tmp_path, text.replace("circle", "circel"))
    finally:
        registry._table.cache_clear()


PROFILED = (
    "name: demo\ntopologies: {h: {preset: dgx_h100}}\nnetwork: {profile: dgx_h100}\n"
    "workload: [{all_reduce: {size: 1 MiB}}]\nalgorithms: {all_reduce: {builder: %s, protocol: %s}}\n"
)


@pytest.mark.parametrize("builder", ["ring", "nccl", "double_binary_tree"])
def test_a_case_says_the_protocol_of_its_calls(tmp_path, builder):
    times = {}
    for protocol in ("LL", "Simple"):
        of_case = simulate(problem(tmp_path, PROFILED % (builder, protocol)), engine="both")
        text = (PROFILED % (builder, protocol)).replace(f", protocol: {protocol}", "")
        of_all = simulate(problem(tmp_path, text, f"network.protocol={protocol}"))
        times[protocol] = of_case.makespan
        assert of_case.makespan == of_all.makespan
        assert str(of_case.collective["algorithm"][0]).endswith(protocol)
    assert times["LL"] != times["Simple"]


def test_a_protocol_of_a_case_is_used_or_refused(tmp_path):
    with pytest.raises(ScenarioError, match="the profile has no LL128"):
        problem(tmp_path, PROFILED % ("ring", "LL128"))
    with pytest.raises(ScenarioError, match=r"beside network.protocol: LL\b"):
        problem(tmp_path, PROFILED % ("ring", "Simple"), "network.protocol=LL")
    warnings = prepared(tmp_path, RING + "algorithms: {all_reduce: {builder: ring, protocol: LL}}\n").notes.warnings
    assert "makes no difference" in warnings[0]
    text = RING + "algorithms: {all_reduce: {builder: ring, protocol: LL}}\nnetwork: {msccl: {latency: {LL: 1 us}}}\n"
    assert simulate(problem(tmp_path, text)).makespan > simulate(problem(tmp_path, text, "network.msccl=true")).makespan
