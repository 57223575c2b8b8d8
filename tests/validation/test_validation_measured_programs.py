"""Measured times of given programs: simulated from their files, and costs found again from known ones."""

import json
from pathlib import Path

import pytest

from astrasim_py.api import write_algorithm
from astrasim_py.builders.registry import build
from astrasim_py.cli.main import main
from astrasim_py.measured.rows import MeasuredRow
from astrasim_py.topology.hardware import preset, preset_content, read_preset
from astrasim_py.validation.measured import MeasuredMachine

HEADING = "platform,library,version,collective,dtype,ranks,nodes,bytes,time_us,algorithm,protocol"
PROGRAMS = {"ring_ll.xml": ("ring", "LL"), "direct_ll.xml": ("direct", "LL"), "ring_simple.xml": ("ring", "Simple")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Programs, and their times on a machine whose LL costs are not those that ship."""
    folder = tmp_path_factory.mktemp("programs")
    for name, (builder, protocol) in PROGRAMS.items():
        write_algorithm(folder / name, build(builder, "all_gather", 8), protocol=protocol)
    content = preset_content("mi300x")
    content["collectives"]["programs"]["LL"] |= {"launch": "9 us", "step": "500 ns", "rate": "2 GB/s"}
    (folder / "known.json").write_text(json.dumps(content))
    machine = MeasuredMachine("known", read_preset(str(folder / "known.json")), programs=str(folder))
    lines = [HEADING]
    for name, (_, protocol) in PROGRAMS.items():
        for size in (8192, 2**15, 2**18):
            row = MeasuredRow(
                place="",
                platform="MI300X",
                library="RCCL",
                version="2",
                collective="all_gather",
                dtype="float",
                ranks=8,
                nodes=1,
                bytes=size,
                time_ps=1,
                algorithm=name,
                protocol=protocol,
            )
            lines.append(f"MI300X,RCCL,2,all_gather,float,8,1,{size},{machine.time(row) / 1e6!r},{name},{protocol}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_programs_are_simulated_from_their_files(folder, capsys):
    args = ["measured", "validate", "collectives", str(folder / "rows.csv"), "--format", "json"]
    assert main([*args, "--programs", str(folder), "--profile", str(folder / "known.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cases"], found["p90_rel_error"]) == (9, pytest.approx(0, abs=1e-9))
    assert main([*args, "--programs", str(folder), "--where", "protocol=LL"]) == 0
    assert json.loads(capsys.readouterr().out)["bias"] < -0.2


@pytest.mark.slow
def test_costs_of_programs_are_found_again(folder, capsys, tmp_path):
    rows, out = str(folder / "rows.csv"), tmp_path / "my.json"
    args = [
        "measured",
        "calibrate",
        "collectives",
        rows,
        "--programs",
        str(folder),
        "--where",
        "protocol=LL",
        "-o",
        str(out),
    ]
    assert main(args) == 0
    found, known = read_preset(str(out)).collectives, read_preset(str(folder / "known.json")).collectives
    for name in ("launch", "rate"):
        assert float(getattr(found.programs["LL"], name)) == pytest.approx(
            getattr(known.programs["LL"], name), rel=0.03
        )
    assert found.programs["Simple"] == preset("mi300x").collectives.programs["Simple"]
    assert found.fit.rows == 6
    assert (
        main(
            [
                "measured",
                "validate",
                "collectives",
                rows,
                "--programs",
                str(folder),
                "--profile",
                str(out),
                "--max-p90",
                "2",
            ]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["measured", "validate", "collectives", "ROWS"], "--programs FOLDER"),
        (["measured", "validate", "collectives", "ROWS", "--programs", "nowhere"], "there is no file"),
        (
            ["measured", "validate", "collectives", "ROWS", "--programs", "FOLDER", "--profile", "dgx_h100"],
            "no costs of programs",
        ),
        (["measured", "calibrate", "collectives", "ROWS", "-o", "x.json"], "no row can be fitted"),
        (["measured", "calibrate", "collectives", "ROWS", "-o", "x.json", "--programs", "nowhere"], "there is no file"),
        (
            ["measured", "calibrate", "collectives", "ROWS", "-o", "x.json", "--programs", "FOLDER", "--switch"],
            "--programs",
        ),
        (
            [
                "measured",
                "calibrate",
                "collectives",
                "ROWS",
                "-o",
                "x.json",
                "--programs",
                "FOLDER",
                "--where",
                "bytes=8192",
            ],
            "too few rows",
        ),
    ],
)
def test_bad_input_is_one_line(folder, capsys, monkeypatch, tmp_path, args, said):
    monkeypatch.chdir(tmp_path)
    files = {"ROWS": str(folder / "rows.csv"), "FOLDER": str(folder)}
    assert main([files.get(arg, arg) for arg in args]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not Path("x.json").exists()
