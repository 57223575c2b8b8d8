"""ASTRA-sim's files in scenarios: the same times to the nanosecond, sweeps over files and keys, one line a mistake."""

from __future__ import annotations

import csv
import json
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import settings

from astrasim_py.cli.main import main
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.preparation.prepare import prepare
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

MIB = 2**20
FLAGS = {
    "--workload-configuration": "work",
    "--system-configuration": "system.json",
    "--network-configuration": "network.yml",
    "--remote-memory-configuration": "memory.json",
}
KEYS = "workload: work, system: system.json, network: network.yml, remote_memory: memory.json"
LINK = "bandwidth: 1 GB/s, latency: 1 us"
NIGHTLY = settings.get_current_profile_name() == "nightly"


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder.path)
    folder.workload([folder.collective(0, "ALL_REDUCE", MIB)])
    return folder


def written(text: str, *overrides: str):
    Path("s.yaml").write_text(text)
    return load_scenario("s.yaml", overrides)


def errors(text: str) -> list[str]:
    with pytest.raises(AstraError) as caught:
        for point in expand(written(text)):
            prepare(point)
    return caught.value.lines()


def lines_of(capsys, *arguments: str) -> list[str]:
    assert main(["astra-sim", *(f"{k}={v}" for k, v in FLAGS.items()), "--quiet", *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def golden_cases(folder: Path) -> list[dict[str, str]]:
    """One of every 97 rows that ended, and all with flags."""
    with open(folder / "cases.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["outcome"] == "ok"]
    small = [row for row in rows if int(row["npus"]) <= 64]
    return rows if NIGHTLY else [row for i, row in enumerate(small) if i % 97 == 0 or row["flags"]]


@pytest.mark.slow
def test_a_written_scenario_has_astra_sims_times_to_the_nanosecond(golden, tmp_path, monkeypatch, capsys):
    """Of every kind of recorded run, through the file that --to-scenario writes."""
    folder = golden / "astra_sim"
    for name in os.listdir(folder):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "traces").mkdir()
    monkeypatch.chdir(tmp_path)
    rows = golden_cases(folder)
    assert len(rows) >= 40 and len({row["set"] for row in rows}) >= 8
    for number, row in enumerate(rows):
        name, npus = row["workload"], int(row["npus"])
        files = [*folder.glob(f"workloads/*{name}_{npus}npus/*.0.et"), *folder.glob(f"workloads/*{name}_{npus}npus")]
        if files and files[0].is_file():
            prefix = os.path.relpath(str(files[0]).removesuffix(".0.et"), folder)
        else:
            same = folder / "workloads_same_on_every_rank"
            file = next(f for f in (same / f"wl_{name}.et", same / f"{name}.et", same / f"wl_{name}.et") if f.exists())
            prefix = f"traces/{file.stem}"
            for rank in range(npus):
                if not os.path.lexists(f"{prefix}.{rank}.et"):
                    Path(f"{prefix}.{rank}.et").symlink_to(file)
        flags = ["--workload-configuration", prefix, "--system-configuration", row["system"]]
        flags += ["--network-configuration", row["network"], "--remote-memory-configuration", row["memory"]]
        flags += ["--backend", row["backend"], *shlex.split(row["flags"])]
        assert main(["astra-sim", *flags, "--to-scenario", "same.yaml", "--quiet"]) == 0, row
        (point,) = expand(load_scenario("same.yaml", allow_outside=True))
        records = simulate(prepare(point).problem, level="summary")
        expected = [int(t) for t in row["t_ns_per_npu"].split(";")]
        times = [t // 1000 for t in records.finish.tolist()]
        assert times == (expected * npus if len(expected) == 1 else expected), (number, row)
    capsys.readouterr()


def test_to_scenario_writes_what_runs_to_the_same_times_from_another_folder(here, capsys):
    lines = lines_of(capsys, "--backend", "congestion_aware", "--injection-scale=2.5", "--num-queues-per-dim", "2")
    time = max(int(line.split("finished, ")[1].split()[0]) for line in lines)
    written_to = lines_of(
        capsys, "--backend", "congestion_aware", "--injection-scale=2.5", "--num-queues-per-dim", "2",
        "--to-scenario", "sub/same.yaml",
    )  # fmt: skip
    assert written_to == ["sub/same.yaml: run it with astrasim-py sub/same.yaml --allow-outside"]
    assert main(["sub/same.yaml", "--allow-outside", "--format", "json", "--quiet"]) == 0
    row = json.loads(capsys.readouterr().out)
    row = row[0] if isinstance(row, list) else row
    assert row["time_ns"] == time and row["topology"] == "network"
    assert main(["astra-sim", *(f"{k}={v}" for k, v in FLAGS.items()), "--to-scenario", "x.json"]) == 2
    assert "does not end in .yaml" in capsys.readouterr().err


def test_both_engines_and_the_corrected_physics(here, capsys):
    for corrected in ("true", "false"):
        (point,) = expand(
            written(f"workload: {{astra_sim: {{{KEYS}, backend: congestion_aware, corrected: {corrected}}}}}")
        )
        both = simulate(prepare(point).problem, engine="both")
        flags = ["--corrected"] if corrected == "true" else []
        line = lines_of(capsys, "--backend=congestion_aware", *flags)[-1]
        assert f"finished, {both.makespan // 1000} cycles" in line


def test_files_their_keys_and_options_can_be_swept(here, capsys):
    here.network(bandwidth=25.0)
    Path("network.yml").rename("slow.yml")
    here.network()
    scenario = written(
        f"workload: {{astra_sim: {{{KEYS.replace('network.yml', '$network')}}}}}\n"
        "sweep:\n  network: [network.yml, slow.yml]\n"
        "  workload.astra_sim.system.preferred-dataset-splits: [1, 8]\n"
        "  workload.astra_sim.injection_scale: [1, 100]\n"
    )
    points = expand(scenario)
    assert points[0].name.startswith("network=network.yml,workload.astra_sim.system.preferred-dataset-splits=1,")
    assert [point.config["topology_name"] for point in points] == ["network"] * 4 + ["slow"] * 4
    times = [simulate(prepare(point).problem, level="summary").makespan for point in points]
    assert len(set(times)) == 8 and all(fast < slow for fast, slow in zip(times[:4], times[4:], strict=True))
    # The same as of files that say so.
    system = json.loads(Path("system.json").read_text())
    Path("system.json").write_text(json.dumps(system | {"preferred-dataset-splits": 8}))
    (again,) = expand(written(f"workload: {{astra_sim: {{{KEYS}}}}}"))
    assert simulate(prepare(again).problem, level="summary").makespan == times[2]
    changed = f"workload: {{astra_sim: {{{KEYS.replace('network.yml', '{file: network.yml, bandwidth: [25.0]}')}}}}}"
    (slow,) = expand(written(changed))
    assert simulate(prepare(slow).problem, level="summary").makespan == times[6]


def test_results_are_computed_again_when_a_file_changes(here):
    text = f"workload: {{astra_sim: {{{KEYS}}}}}"
    first = run_scenario(written(text), out="out").rows[0]
    assert set(input_digests(expand(written(text))[0])) == {
        "memory.json", "network.yml", "system.json", *(f"work.{rank}.et" for rank in range(8)),
    }  # fmt: skip
    here.network(bandwidth=10.0)
    assert run_scenario(written(text), out="out").rows[0].time_ns > first.time_ns


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("system: system.json", "sistem: system.json", 's.yaml:1:40: workload.astra_sim.sistem: is not a key here'),
        ("workload: work", "sys-tem: 3, workload: work", "workload.astra_sim.sys-tem: is not a key here"),
        ("system: system.json, ", "", 'workload.astra_sim: "system" is missing'),
        ("system.json", "missing.json", "missing.json: cannot be read"),
        ("system.json", "../system.json", 's.yaml:1:48: workload.astra_sim.system: "../system.json" leads out of'),
        ("system.json", "{file: system.json, prefered-dataset-splits: 4}", ""),
        ("network.yml", "{file: network.yml, bandwidth: [fast]}", 'bandwidth: "fast" is not a bandwidth'),
        ("network.yml", "{file: network.yml, npus_count: [8, 2]}", "2 values for 1 dimensions of topology"),
        ("workload: work", "backend: ns3, workload: work", 'backend: "ns3" is not one of congestion_unaware'),
        ("workload: work", "logical-topology-configuration: l.json, workload: work", "is of ASTRA-sim's ns-3 binary"),
        ("workload: {", "network: {model: fluid}\nworkload: {", "s.yaml:1:1: network: is said by ASTRA-sim's files"),
        ("workload: {", "topology: {preset: dgx_a100}\nworkload: {", "is said by"),
        ("workload: {", "algorithms: {all_reduce: ring}\nworkload: {", "algorithms: is said by ASTRA-sim's files"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_their_place(here, old, new, expected):
    text = f"workload: {{astra_sim: {{{KEYS}}}}}\n".replace(old, new, 1)
    if not expected:  # a key that ASTRA-sim does not know is a warning, as in ASTRA-sim
        (point,) = expand(written(text))
        prepared = prepare(point)
        from astrasim_py.system.lowering import make_plan

        notes = prepared.notes_with(make_plan(prepared.problem))
        assert any("did you mean" in text and "preferred-dataset-splits" in text for text in notes.warnings)
        return
    lines = errors(text)
    assert any(expected in line for line in lines), lines


def test_a_run_of_files_is_no_job_of_several(here):
    text = f"jobs: {{a: {{workload: {{astra_sim: {{{KEYS}}}}}}}}}\ntopology: {{shape: ring, npus: 8, $}}".replace(
        "$", LINK
    )
    assert any("ASTRA-sim's files are a whole run, no job; write {trace: PREFIX}" in line for line in errors(text))


def test_verbs_that_need_more_than_the_files_say_so_in_a_line(here, capsys):
    Path("s.yaml").write_text(f"workload: {{astra_sim: {{{KEYS}}}}}\n")
    assert main(["check", "s.yaml"]) == 0
    for argv in (["optimize", "s.yaml", "--out", "o"], ["s.yaml", "--fold", "--quiet"], ["verify", "s.yaml"]):
        capsys.readouterr()
        assert main(argv) in (2, 3)
        err = [line for line in capsys.readouterr().err.splitlines() if "compiling" not in line]
        assert len(err) == 1 and "; " in err[0], err


def test_flags_of_the_ns3_binary_are_explained(here, capsys):
    Path("config.txt").write_text("ENABLE_QCN 1\n\nTOPOLOGY_FILE ../topology.txt\nCC_MODE 12\n")
    Path("logical.json").write_text('{"logical-dims": ["4", "2"]}')
    for flags, expected in (
        (["--network-configuration=config.txt"], "config.txt:3: TOPOLOGY_FILE: this is a configuration of the ns-3"),
        (["--logical-topology-configuration", "logical.json"], "npus_count: [ 4, 2 ]"),
        (["--logical-topology-configuration", "missing.json"], "ns-3 is not run here"),
    ):  # fmt: skip
        assert main(["astra-sim", *(f"{k}={v}" for k, v in FLAGS.items()), *flags]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and expected in err and "write" in err


def test_runs_of_files_are_named_by_them(here, capsys):
    argv = ["astra-sim", *(f"{k}={v}" for k, v in FLAGS.items()), "--quiet"]
    here.network(bandwidth=25.0)
    Path("network.yml").rename("slow.yml")
    here.network()
    assert main(argv) == main([*argv, "--network-configuration=slow.yml"]) == 0
    capsys.readouterr()
    assert main(["explain", "astra_sim@network=slow"]) == 0
    assert capsys.readouterr().out.startswith(
        "astra_sim: network=slow,workload=work,system=system,backend=congestion_un"
    )
    assert main(["explain", "astra_sim@network=network", "@network=slow"]) == 0
    assert "link -1" not in capsys.readouterr().out


def test_the_output_names_the_backend(here, capsys):
    argv = ["astra-sim", *(f"{k}={v}" for k, v in FLAGS.items())]
    assert main([*argv, "--backend=congestion_aware"]) == 0
    assert "\nbackend: congestion_aware, as ASTRA-sim's analytical" in capsys.readouterr().out
    assert main([*argv, "--corrected"]) == 0
    assert "\nbackend: none of ASTRA-sim's: the physics of its files" in capsys.readouterr().out
