"""The verb astra-sim: ASTRA-sim's flags and lines, exit codes, results, and the same point run again."""

from __future__ import annotations

import json

import pytest

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.schema import NodeType
from astrasim_py.cli.main import main

MIB = 2**20


def argv(folder, *more, **flags):
    named = {
        "--workload-configuration": "work",
        "--system-configuration": "system.json",
        "--network-configuration": "network.yml",
        "--remote-memory-configuration": "memory.json",
        **flags,
    }
    return ["astra-sim", *(f"{k}={v}" for k, v in named.items() if v is not None), *more]


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder.path)
    return folder


def skewed(folder):
    """Rank r computes r + 1 us, then all gather."""
    return [[folder.compute(0, micros=8 - r), folder.collective(1, "ALL_GATHER", MIB, (0,))] for r in range(8)]


def test_the_lines_are_those_of_astra_sim_in_order_of_finishing(here, capsys):
    here.workload(*([here.compute(0, micros=9 - r)] for r in range(8)))
    assert main(argv(here, "--quiet")) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "sys[7] finished, 2000 cycles, exposed communication 0 cycles."
    assert [int(line[4]) for line in lines] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert err == ""


def test_dashes_underscores_and_both_ways_of_a_value_are_the_same(here, capsys):
    here.workload([here.collective(0, "ALL_REDUCE", MIB)])
    assert main(argv(here, "--quiet", "--num-queues-per-dim=1", "--injection-scale=2")) == 0
    first = capsys.readouterr().out
    words = ["astra-sim", "--quiet", "--num_queues_per_dim", "1", "--injection_scale", "2.0"]
    for name in ("workload", "system", "network"):
        value = {"workload": "work", "system": "system.json", "network": "network.yml"}[name]
        words += [f"--{name}_configuration", value]
    words += ["--remote_memory_configuration", "memory.json", "--rendezvous_protocol", "false"]
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert main(argv(here, "--quiet", "--rendezvous-protocol")) == 0
    assert capsys.readouterr().out != first


def test_what_follows_the_lines_is_a_summary_and_the_folder(here, capsys):
    here.workload([here.collective(0, "ALL_REDUCE", MIB)])
    assert main(argv(here, "--comm-scale=2", "--logging-configuration", "log.toml")) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert all(line.startswith("sys[") for line in lines[:8]) and lines[8] == ""
    assert lines[-2].startswith("results: results/astra_sim/points/001-network-work-system-congestion_unaware")
    folder = lines[-2].removeprefix("results: ")
    assert lines[-1] == f"look: view {folder} · why: explain {folder} --worst"
    warnings = [line for line in err.splitlines() if "warning: " in line]
    assert sum("--comm-scale: ignored" in line for line in warnings) == 1
    assert sum("--logging-configuration: ignored" in line for line in warnings) == 1
    points = (here.path / "results" / "astra_sim" / "points").iterdir()
    assert len(set(warnings)) == len(warnings) and [p.name for p in points] == [
        "001-network-work-system-congestion_unaware"
    ]


def test_json_has_the_row_and_every_npu(here, capsys):
    here.workload(*skewed(here))
    assert main(argv(here, "--format", "json", "--backend=congestion_aware")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["status"] == "done" and found["backend"] == "congestion_aware" and found["corrected"] is False
    assert found["npus"] == 8 and found["time_ns"] == max(found["finish_ns"])
    assert len(found["exposed_comm_ns_per_npu"]) == 8 and found["results"].startswith("results/astra_sim/")


def test_a_rank_that_waits_for_ever_has_not_finished(here, capsys):
    idle, waits = [here.compute(0, micros=3)], [here.compute(0, micros=3), here.recv(1, 0, 8, [0])]
    here.workload(idle, waits, *[idle] * 6)
    assert main([*argv(here), "--quiet"]) == 4
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == [f"sys[{r}]" for r in range(8) if r != 1]
    assert "a message from rank 0, tag 0, 8 B, since 3 µs" in printed.err


def test_a_stuck_run_says_who_waits_for_what(here, capsys):
    here.network(sizes=(2,), kinds=("Switch",))
    here.workload([here.send(0, 1, 100, tag=4)], [here.recv(0, 0, 200, tag=4)])
    assert main(argv(here)) == 4
    out, err = capsys.readouterr()
    assert "sys[0] finished" in out and "sys[1]" not in out
    assert "a message from rank 0, tag 4, 200 B" in err and "100 B" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--num-queues-per-dim=0"], 2, "--num-queues-per-dim"),
        (["--num-queues-per-dim=two"], 2, "--num-queues-per-dim"),
        (["--injection-scale=nan"], 2, "--injection-scale"),
        (["--injection-scale=-1"], 2, "--injection-scale"),
        (["--rendezvous-protocol=maybe"], 2, "--rendezvous-protocol"),
        (["--max-events=0"], 2, "--max-events"),
        (["--backend=ns3"], 2, "--backend"),
        (["--system-configuration=none.json"], 2, "none.json: cannot be read"),
        (["--network-configuration=none.yml"], 2, "none.yml: cannot be read"),
        (["--workload-configuration=none"], 3, "none.0.et, none.1.et"),
        (["--comm-group-configuration=none.json"], 3, "none.json"),
        (["--max-events=3"], 4, ""),
        (["--out=system.json"], 5, "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line_and_an_exit_code(here, capsys, words, code, said):
    here.workload([here.collective(0, "ALL_REDUCE", MIB)])
    assert main(argv(here, "--quiet", *words)) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_the_three_configurations_are_needed(here, capsys):
    assert main(["astra-sim", "--workload-configuration=work"]) == 2
    assert "--system-configuration" in capsys.readouterr().err


def test_without_a_memory_file_there_is_no_memory(here, capsys):
    here.workload([here.compute(0, micros=1)])
    assert main(argv(here, **{"--remote-memory-configuration": None})) == 0
    assert "no remote memory configuration" in capsys.readouterr().err
    here.workload([(0, NodeType.MEM_LOAD, (), {"tensor_size": 5})])
    assert main(argv(here, **{"--remote-memory-configuration": None})) == 3


@pytest.mark.slow
def test_a_point_is_explained_and_drawn_like_any_other(here, capsys):
    here.system(preferred_dataset_splits=2)
    here.workload(*skewed(here))
    assert main(argv(here)) == 0
    folder = capsys.readouterr().out.splitlines()[-2].removeprefix("results: ")
    assert main(["explain", folder]) == 0
    out, err = capsys.readouterr()
    assert "critical path" in out and "ran it again to record messages" in err
    assert main(["results", "plot", folder]) == 0
    capsys.readouterr()
    here.workload([here.compute(0, micros=1)])
    assert main(argv(here, "--timeline", "--out=other")) == 0
    assert (next((here.path / "other" / "astra_sim" / "points").glob("*work*")) / "timeline.json").exists()


def test_what_has_changed_since_is_not_explained(here, capsys):
    here.workload([here.collective(0, "ALL_REDUCE", MIB)])
    assert main(argv(here)) == 0
    folder = capsys.readouterr().out.splitlines()[-2].removeprefix("results: ")
    here.system(endpoint_delay=11)
    assert main(["explain", folder]) == 2
    assert "has changed since" in capsys.readouterr().err


def test_corrected_is_another_point(here, capsys):
    here.workload([here.collective(0, "ALL_TO_ALL", MIB)])
    assert main(argv(here, "--quiet")) == 0
    first = capsys.readouterr().out
    assert main(argv(here, "--quiet", "--corrected")) == 0
    assert capsys.readouterr().out != first
    assert len(list((here.path / "results" / "astra_sim" / "points").glob("*work*"))) == 2


@pytest.mark.parametrize(
    ("name", "kind", "value", "said"),
    [
        ("pg_name", "string_val", "1", ""),
        ("comm_group", "int32_val", 1, "name their groups by comm_group, which ASTRA-sim does not read"),
        ("stream", "int64_val", 1, ""),
    ],
)
def test_groups_that_astra_sim_does_not_use_are_told(folder, name, kind, value, said):
    """ASTRA-sim reads ``pg_name`` alone; a file of groups that no call names changes nothing."""
    node = pb.Node(id=1, type=NodeType.COMM_COLL)
    for attribute, member, of in (("comm_type", "int64_val", 0), ("comm_size", "int64_val", 1024), (name, kind, value)):
        node.attr.add(name=attribute, **{member: of})
    body = node.SerializeToString()
    for rank in range(8):
        (folder.path / f"work.{rank}.et").write_bytes(b"\0" + bytes([len(body)]) + body)
    (folder.path / "g.json").write_text('{"1": [0, 1, 2, 3, 4, 5, 6, 7]}')
    warnings = folder.inputs(groups=folder.path / "g.json").warnings
    assert [text for text in warnings if "comm_group" in text] == ([warnings[0]] if said else [])
    assert any(said in text for text in warnings) or not said
    assert any("none of its groups is named" in text for text in warnings) == (name != "pg_name")
