"""Sweeps, variables and points."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AstraError
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario, with_overrides

HEAD = """\
name: demo
topologies:
  ring: {shape: ring, npus: $npus, bandwidth: $bw, latency: 500 ns}
"""


def points(tmp_path, text, *overrides):
    path = tmp_path / "s.yaml"
    path.write_text(text, "utf-8")
    return expand(load_scenario(path, overrides))


def test_a_product_runs_like_nested_loops(tmp_path):
    text = HEAD + "workload: [{all_reduce: {size: $size}}]\nsweep: {npus: [2, 4], bw: 50 GB/s, size: [1 KiB, 2 KiB]}\n"
    made = points(tmp_path, text)
    assert [p.name for p in made] == [
        "npus=2,bw=50 GB/s,size=1 KiB",
        "npus=2,bw=50 GB/s,size=2 KiB",
        "npus=4,bw=50 GB/s,size=1 KiB",
        "npus=4,bw=50 GB/s,size=2 KiB",
    ]
    assert [p.index for p in made] == [0, 1, 2, 3]
    assert made[2].values == {"npus": "4", "bw": "50 GB/s", "size": "1 KiB"}
    assert made[2].spec.topology.npus == 4
    assert made[2].spec.topology.bandwidth == 50 * 10**9
    assert made[3].spec.workload[0].all_reduce.size == 2048


def test_zipped_keys_vary_together(tmp_path):
    text = HEAD + (
        "workload: [{all_reduce: {size: $size}}]\n"
        "sweep:\n  zip: {npus: [2, 2], size: [1 KiB, 2 KiB]}\n  bw: [1 GB/s, 2 GB/s]\n"
    )
    assert [tuple(p.values.values()) for p in points(tmp_path, text)] == [
        ("2", "1 KiB", "1 GB/s"),
        ("2", "1 KiB", "2 GB/s"),
        ("2", "2 KiB", "1 GB/s"),
        ("2", "2 KiB", "2 GB/s"),
    ]


def test_several_zipped_groups_multiply(tmp_path):
    text = HEAD + (
        "workload: [{all_reduce: {size: $size}}, {broadcast: {size: $size, root: $root}}]\n"
        "sweep:\n  zip:\n    - {npus: [2, 4], size: [1 KiB, 2 KiB]}\n    - {bw: [1 GB/s, 2 GB/s], root: [0, 1]}\n"
    )
    assert [tuple(p.values.values()) for p in points(tmp_path, text)][1] == ("2", "1 KiB", "2 GB/s", "1")


def test_labels_stand_for_values_that_are_not_plain(tmp_path):
    text = (
        "name: demo\n"
        "topologies: {t: {shape: torus, dims: $dims, bandwidth: 1 GB/s, latency: 0 ns}}\n"
        "workload: [{all_reduce: {size: 1 KiB}}]\n"
        "algorithms: {all_reduce: $algorithm}\n"
        "sweep:\n"
        "  dims: [[4, 2], [2, 4]]\n"
        "  algorithm: {ring: ring, two: {builder: ring, chunks: 2}}\n"
    )
    made = points(tmp_path, text)
    assert [p.name for p in made] == [
        "dims=4x2,algorithm=ring",
        "dims=4x2,algorithm=two",
        "dims=2x4,algorithm=ring",
        "dims=2x4,algorithm=two",
    ]
    assert made[3].spec.topology.dims == (2, 4)
    assert made[3].spec.algorithms["all_reduce"][0].options == {"chunks": 2}
    assert made[0].spec.algorithms["all_reduce"][0].builder == "ring"


def test_paths_and_settings_are_swept_without_variables(tmp_path):
    text = (
        "name: demo\n"
        "topologies:\n"
        "  a: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 0 ns}\n"
        "  b: {shape: mesh, dims: [2, 2], bandwidth: 1 GB/s, latency: 0 ns}\n"
        "workload: [{all_reduce: {size: 1 KiB}}]\n"
        "sweep: {topology: [a, b], placement: [linear, snake], network.model: [analytical], ranks: [4]}\n"
    )
    made = points(tmp_path, text)
    assert len(made) == 4
    assert {p.spec.network.model for p in made} == {"analytical"}
    assert [(p.spec.topology_name, p.spec.placement) for p in made] == [
        ("a", "linear"),
        ("a", "snake"),
        ("b", "linear"),
        ("b", "snake"),
    ]


def test_variables_inside_text_and_dollars(tmp_path):
    (tmp_path / "alg_4.npz").write_bytes(b"")
    text = HEAD + (
        "title: costs $$5\n"
        "workload:\n  - all_reduce:\n      size: 1 KiB\n      name: x-${npus}\n"
        "algorithms: {all_reduce: {file: alg_$npus.npz}}\n"
        "sweep: {npus: [4], bw: [1 GB/s]}\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(text)
    scenario = load_scenario(path)
    assert scenario.title == "costs $$5"  # no variables in what describes the study
    (point,) = expand(scenario)
    assert point.spec.algorithms["all_reduce"][0].file == "alg_4.npz"
    assert point.spec.workload[0].all_reduce.name == "x-4"


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("{npus: [4], bw: [$bw]}", "$bw stands in its own value"),
        ("{npus: {a: [1, 2]}, bw: [1 GB/s]}", "a list is not a whole number"),
        ("{zip: {npus: [4], bw: [1 GB/s, 2 GB/s]}}", "npus has 1, bw has 2"),
        ("{npus: [4], bw: [1 GB/s], zip: {npus: [3]}}", '"npus" is swept twice'),
        ("{npus: [4], bw: [1 GB/s], network.modl: [x]}", "network.modl: is not a key here"),
        ("{zip: {npus: [4, 4], bw: [1 GB/s, 1 GB/s]}}", '"4, 1 GB/s" is swept twice'),
        ("{npus: [4], bw: [1 GB/s], foo.bar: [x]}", "foo.bar leads nowhere"),
    ],
)
def test_a_sweep_that_contradicts_itself_is_refused(tmp_path, sweep, expected):
    text = HEAD + f"workload: [barrier]\nsweep: {sweep}\n"
    with pytest.raises(AstraError) as caught:
        points(tmp_path, text)
    assert expected in str(caught.value)


def test_points_survive_other_processes_and_digests(tmp_path):
    text = HEAD + "workload: [{all_reduce: {size: $size}}]\nsweep: {npus: [2, 4], bw: 50 GB/s, size: [1 KiB, 2 KiB]}\n"
    made = points(tmp_path, text)
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    assert again[1].spec == made[1].spec
    digests = [digest(p.config) for p in made]
    assert len(set(digests)) == 4
    assert digests == [digest(p.config) for p in again]


def test_what_a_point_does_not_use_does_not_change_it(tmp_path):
    text = (
        "name: demo\ntopologies:\n  a: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 0 ns}\n"
        "  b: {shape: ring, npus: 8, bandwidth: 1 GB/s, latency: 0 ns}\n"
        "workload: [barrier]\nsweep: {topology: [a, b]}\n"
    )
    one, two = (
        points(tmp_path, text),
        points(tmp_path, text.replace("npus: 8", "npus: 9").replace("demo\n", "demo\ntitle: x\n")),
    )
    assert digest(one[0].config) == digest(two[0].config)
    assert digest(one[1].config) != digest(two[1].config)


def test_points_do_not_depend_on_the_hash_seed(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        HEAD + "workload: [{all_reduce: {size: $size}}]\nsweep: {npus: [2, 4], bw: 1 GB/s, size: [1 KiB]}\n"
    )
    program = (
        "import sys, astrasim_py as ap; from astrasim_py.core.digest import digest;"
        "print([(p.name, digest(p.config)) for p in ap.expand(ap.load_scenario(sys.argv[1]))])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_places_lead_back_to_the_file(tmp_path):
    text = HEAD + "workload:\n  - all_reduce: {size: $size}\nsweep: {npus: [2], bw: 50 GB/s, size: [1 KiB]}\n"
    (point,) = points(tmp_path, text)
    path = tmp_path / "s.yaml"
    assert point.place("workload[0].all_reduce") == f"{path}:5:17: workload[0].all_reduce"
    assert point.place("workload[0].all_reduce.root") == f"{path}:5:17: workload[0].all_reduce"
    assert point.place("topology.npus") == f"{path}:6:16: sweep.npus[0]"


def test_a_scenario_without_a_sweep_is_one_point(tmp_path):
    text = "name: one\ntopologies: {a: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 0 ns}}\nworkload: [barrier]\n"
    (point,) = points(tmp_path, text)
    assert (point.name, dict(point.values)) == ("one", {})


RING = "{shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}"
REST = "\nworkload: [{all_reduce: {size: 1 MiB}}]\n"
WAYS = {
    "in place": (f"topology: {RING}", ["topology.npus", "topologies.topology.npus"]),
    "named": (f"topologies: {{own: {RING}}}", ["topology.npus", "topologies.own.npus"]),
    "chosen": (f"topologies: {{own: {RING}}}\ntopology: own", ["topology.npus", "topologies.own.npus"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_keys_of_the_only_topology_have_two_names(tmp_path, way):
    """Both lead to it: in a sweep, with --set, from Python, and of a scenario that is loaded already."""
    topology, names = WAYS[way]
    path = tmp_path / "one.yaml"
    for name in names:
        path.write_text(f"{topology}{REST}sweep: {{{name}: [2, 8]}}\n")
        (chosen,) = {point.spec.topology_name for point in expand(load_scenario(path))}
        assert [point.spec.topology.npus for point in expand(load_scenario(path))] == [2, 8]
        path.write_text(topology + REST)
        loaded = load_scenario(path)
        for changed in (
            load_scenario(path, [f"{name}=8"]),
            load_scenario(path, {name: 8}),
            with_overrides(loaded, [f"{name}=8"]),
        ):
            (point,) = expand(changed)
            assert (point.spec.topology.npus, point.spec.topology_name) == (8, chosen)


@pytest.mark.parametrize("chosen", ["topology: a\n", ""])
def test_a_key_of_one_of_several_topologies_names_it(tmp_path, chosen):
    path = tmp_path / "two.yaml"
    swept = "topology.npus: [2, 8]" if chosen else "topology: [a, b], topology.npus: [2, 8]"
    path.write_text(f"topologies: {{a: {RING}, b: {RING}}}\n{chosen}{REST}sweep: {{{swept}}}\n")
    with pytest.raises(AstraError) as caught:
        load_scenario(path)
    (line,) = caught.value.lines()
    assert "sweep.topology.npus: there are 2 topologies; write topologies.a.npus or topologies.b.npus" in line
    path.write_text(f"topologies: {{a: {RING}, b: {RING}}}\ntopology: a\n{REST}")
    with pytest.raises(AstraError, match=r"there are 2 topologies; write topologies\.a\.npus or"):
        load_scenario(path, ["topology.npus=8"])


@pytest.mark.parametrize(
    ("written", "key", "same"),
    [
        ("semantics: astra_sim", "semantics.gamma=20 ns/MiB", "semantics: {base: astra_sim, gamma: 20 ns/MiB}"),
        (
            "algorithms: {all_reduce: ring}",
            "algorithms.all_reduce.bidirectional=true",
            "algorithms: {all_reduce: {builder: ring, bidirectional: true}}",
        ),
        (
            "algorithms: {all_reduce: [{builder: direct, when: {ranks: < 3}}, ring]}",
            "algorithms.all_reduce[1].bidirectional=true",
            "algorithms: {all_reduce: [{builder: direct, when: {ranks: < 3}}, {builder: ring, bidirectional: true}]}",
        ),
        (
            "network: {msccl: {latency: 300 ns}}",
            "network.msccl.latency.LL=1 us",
            "network: {msccl: {latency: {Simple: 300 ns, LL: 1 us, LL128: 300 ns}}}",
        ),
    ],
)
def test_a_key_below_a_word_keeps_what_the_word_says(tmp_path, written, key, same):
    path = tmp_path / "word.yaml"
    text = f"topology: {RING}{REST}"
    path.write_text(f"{text}{written}\n")
    (changed,) = expand(load_scenario(path, [key]))
    path.write_text(f"{text}{same}\n")
    (whole,) = expand(load_scenario(path))
    for name in ("semantics", "algorithms", "network"):
        assert getattr(changed.spec, name) == getattr(whole.spec, name)


def test_a_key_below_a_library_changes_one_collective(tmp_path):
    path = tmp_path / "library.yaml"
    path.write_text(f"topology: {RING}{REST}algorithms: nccl\n")
    (point,) = expand(load_scenario(path, ["algorithms.all_reduce=ring"]))
    names = {collective: cases[0].builder for collective, cases in point.spec.algorithms.items()}
    assert names.pop("all_reduce") == "ring" and set(names.values()) == {"nccl"}
