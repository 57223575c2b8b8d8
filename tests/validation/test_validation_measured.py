"""`validate --measured`: errors of simulation against measured times, by group, and what bad input is told."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.cli.main import main
from astrasim_py.measured.formula import COLLECTIVES, candidates
from astrasim_py.measured.rows import read_rows
from astrasim_py.topology.hardware import preset, preset_content
from astrasim_py.validation.measured import BANDS, band, compare, packaged_rows

HEADING = "platform,library,version,collective,dtype,ranks,nodes,bytes,time_us"
ROW = "H100-SXM,NCCL,2.29.2,{},half,{},1,{},{}"


def written(folder: Path, *lines: str) -> str:
    path = folder / "rows.csv"
    path.write_text("\n".join([HEADING, *lines]) + "\n", "utf-8")
    return str(path)


def scaled(folder: Path, factor: float, sizes=(1024, 2**26)) -> str:
    """Rows whose times are those simulated, times a factor."""
    ones = [ROW.format(kind, n, size, 1.0) for kind in COLLECTIVES for n in (2, 8) for size in sizes]
    found = compare_file(written(folder, *ones))
    times = {(one.row.collective, one.row.ranks, one.row.bytes): factor * one.time_ps / 1e6 for one in found.predicted}
    return written(folder, *(ROW.format(*key, repr(time)) for key, time in times.items()))


def compare_file(path: str):
    return compare(read_rows([path]))


def told(capsys, *args: str) -> tuple[int, dict]:
    code = main(["measured", "validate", "collectives", *args, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_errors_and_bias_are_those_of_the_ratio(tmp_path, capsys):
    code, found = told(capsys, scaled(tmp_path, 1.25))
    assert code == 0
    assert found["cases"] == 16
    assert found["bias"] == pytest.approx(-0.2, abs=1e-6)
    assert found["median_rel_error"] == pytest.approx(found["p90_rel_error"], abs=1e-6)
    assert sum(group["cases"] for group in found["groups"]) == 16
    assert {group["band"] for group in found["groups"]} == {BANDS[0][0], BANDS[2][0]}
    assert len(found["worst"]) == 10


def test_the_exit_code_follows_the_limits(tmp_path, capsys):
    rows = scaled(tmp_path, 1.25)
    for limits, code in (((), 0), (("--max-median", "21"), 0), (("--max-median", "19"), 1), (("--max-p90", "10"), 1)):
        assert told(capsys, rows, *limits)[0] == code


def test_conditions_and_a_named_profile_choose(tmp_path, capsys):
    rows = scaled(tmp_path, 1.0)
    assert told(capsys, rows, "--where", "ranks=8", "--where", "bytes>=1 MiB")[1]["cases"] == 4
    assert told(capsys, rows)[1]["p90_rel_error"] < 1e-5
    assert told(capsys, rows, "--profile", "dgx_a100")[1]["median_rel_error"] > 0.2


def test_repeats_are_one_case(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEADING},repeat\n" + "".join(f"{ROW.format('all_gather', 8, 1024, t)},{t}\n" for t in (8, 9)))
    assert told(capsys, str(path))[1]["cases"] == 1


def test_rows_that_no_profile_predicts_name_what_it_does(tmp_path, capsys):
    assert main(["measured", "validate", "collectives", written(tmp_path, ROW.format("broadcast", 8, 1024, 8))]) == 2
    said = capsys.readouterr().err
    assert "broadcast" in said and "all_to_all" in said and "--profile" not in said


def test_calls_in_place_count_only_by_themselves(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    path.write_text(f"{HEADING},in_place\n" + "".join(f"{ROW.format('all_gather', 8, 1024, 8)},{i}\n" for i in (0, 1)))
    found = told(capsys, str(path))[1]
    assert (found["cases"], found["notes"]) == (1, ["1 row is left out: in place"])
    assert told(capsys, str(path), "--where", "in_place=1")[1]["cases"] == 1


def test_what_cannot_be_simulated_is_counted_aloud(tmp_path, capsys):
    others = [
        ROW.format("send_recv", 2, 1024, 5),
        ROW.format("all_gather", 1, 1024, 5),
        ROW.format("all_gather", 8, 1024, 5).replace("H100-SXM", "Toaster"),
    ]
    code = main(
        ["measured", "validate", "collectives", written(tmp_path, ROW.format("all_gather", 8, 1024, 8), *others)]
    )
    out, err = capsys.readouterr()
    assert code == 0
    assert "Toaster" in err and "send_recv" in err and "a call of one rank moves no data" in err
    assert err.count("1 row is left out") == 3
    assert "worst:" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], 'rows.csv:2: no profile is known for the platform "Toaster"'),
        (["--profile", "dgx_h10"], "dgx_h100"),
        (["--profile", "nvlink4"], "nvlink4"),
        (["--where", "ranks=3"], "no row"),
        (["--max-p90", "-1"], "no limit"),
        (["--only", "a"], "unrecognized arguments: --only"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, options, said):
    rows = written(tmp_path, ROW.format("all_gather", 8, 1024, 8).replace("H100-SXM", "Toaster"))
    assert main(["measured", "validate", "collectives", rows, *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a mapping"),
        ('{"title": "x"}', '"source" is missing'),
        ('{"title": "x", "source": [], "wonder": 1}', "wonder: is not a key here"),
        ('{"title": "x", "source": []}', "has no numbers of collectives"),
    ],
)
def test_a_bad_profile_is_one_line(tmp_path, capsys, content, said):
    profile = tmp_path / "my.json"
    profile.write_text(content)
    rows = written(tmp_path, ROW.format("all_gather", 8, 1024, 8))
    assert main(["measured", "validate", "collectives", rows, "--profile", str(profile)]) == 2
    err = capsys.readouterr().err
    assert said in err and "my.json" in err
    assert err.count("\n") == 1


def test_simulation_is_the_formula_on_both_engines(tmp_path):
    rows = [ROW.format(kind, n, size, 9) for kind in COLLECTIVES for n in (2, 4, 8) for size in (1000, 2**16, 2**27)]
    report = compare(read_rows([written(tmp_path, *rows)]), engine="both")
    assert len(report.predicted) == len(rows)
    for row, time in report.predicted:
        formula = min(
            candidates(preset("dgx_h100").collectives, row.collective, row.bytes, row.ranks, row.dtype).values()
        )
        # Whole bytes and whole picoseconds of each message.
        assert time == pytest.approx(formula, rel=1e-3 if row.bytes == 1000 else 1e-6)


def test_rows_between_nodes_need_costs_there(tmp_path, capsys):
    content = preset_content("dgx_h100")
    content["collectives"]["network"] = {"steps": {"LL": "5 us", "Simple": "14 us"}}
    profile = tmp_path / "my.json"
    profile.write_text(json.dumps(content))
    rows = written(tmp_path, ROW.format("all_reduce", 4, 1024, 30).replace(",4,1,", ",4,2,"))
    code, found = told(capsys, rows, "--profile", str(profile))
    assert (code, found["cases"]) == (0, 1)
    # Two messages at least cross the network, one after the other.
    assert found["worst"][0]["simulated_us"] > 2 * 5 + 5
    del content["collectives"]["network"]
    profile.write_text(json.dumps(content))
    assert main(["measured", "validate", "collectives", rows, "--profile", str(profile)]) == 2
    assert "4 ranks on 2 nodes" in capsys.readouterr().err


def test_options_of_measured_rows_are_of_no_other_action(capsys):
    assert main(["measured", "validate", "cases", "--profile", "dgx_h100"]) == 2
    assert "unrecognized arguments: --profile" in capsys.readouterr().err


@pytest.mark.slow
def test_figures_show_every_point(tmp_path, capsys):
    rows = scaled(tmp_path, 1.1)
    assert main(["measured", "validate", "collectives", rows, "--figures", "--out", str(tmp_path / "new")]) == 0
    svg = ElementTree.parse(tmp_path / "new" / "H100-SXM_half.svg")
    assert (tmp_path / "new" / "H100-SXM_half.png").exists()
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}use"))) >= 16


def test_bands_meet():
    assert [band(size) for size in (1, 2**18, 2**18 + 1, 2**24 - 1, 2**24)] == [BANDS[i][0] for i in (0, 0, 1, 1, 2)]


@pytest.mark.slow
def test_packaged_rows_are_close_and_say_where_they_are_from(capsys):
    rows = packaged_rows()
    assert {(row.source, row.licence) for row in rows} == {("ai-dynamo/aiconfigurator@095f58a", "Apache-2.0")}
    report = compare([row for row in rows if row.bytes in (2**11, 2**19, 2**27)])
    for group in report.groups("platform"):
        assert group.cases == 72
        assert group.median_rel_error < 0.10
        assert group.p90_rel_error < 0.25
    assert np.isfinite([one.error for one in report.predicted]).all()


@pytest.mark.parametrize(
    "change,said",
    [
        ({"channel_bytes": "0 B"}, "channel_bytes: a channel of 0 bytes"),
        ({"ranks": []}, "collectives.ranks: 0 items"),
        ({"sizes": ["1 MiB", "1 KiB"]}, "sizes: the first size is above"),
        ({"network": {"steps": {"LL": "5 us", "Simple": "9 us"}, "efficiency": 1.5}}, "efficiency: 1.5 is not a share"),
        ({"network": {"steps": {"LL": "5 us"}}}, "steps: no latency of Simple"),
        ({"switch": {"launch": "1 us", "rate": "1 GB/s", "for": ["all_reduc"]}}, 'did you mean "all_reduce"'),
    ],
)
def test_a_number_of_a_profile_that_cannot_be_is_named(tmp_path, capsys, change, said):
    content = preset_content("dgx_h100")
    content = {**content, "collectives": content["collectives"] | change}
    (tmp_path / "my.json").write_text(json.dumps(content), "utf-8")
    assert (
        main(["measured", "validate", "collectives", scaled(tmp_path, 1), "--profile", str(tmp_path / "my.json")]) == 2
    )
    assert said in capsys.readouterr().err


def test_a_preset_without_nodes_is_refused(tmp_path, capsys):
    content = preset_content("tpu_v4") | {"collectives": preset_content("dgx_h100")["collectives"]}
    (tmp_path / "my.json").write_text(json.dumps(content), "utf-8")
    assert (
        main(["measured", "validate", "collectives", scaled(tmp_path, 1), "--profile", str(tmp_path / "my.json")]) == 2
    )
    assert "is a torus" in capsys.readouterr().err


def test_warnings_about_the_files_are_printed_and_strict(tmp_path, capsys):
    path = tmp_path / "all_reduce.txt"
    rank = "#  Rank  {0} Group  0 Pid  14 on host{1} device  {0} [0000:00:00] NVIDIA H100 80GB HBM3\n"
    head = "# nThread 1 nGpus 8 minBytes 512\n" + "".join(rank.format(r, "0") for r in range(8))
    table = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    row = "1048576 262144 float sum -1 27.10 38.69 67.71 0 27.20 38.55 67.46 5\n"
    path.write_text(f"{head}{table}{row}# Avg bus bandwidth : 67\n", "utf-8")
    argv = ["measured", "validate", "collectives", str(path)]
    assert main([*argv, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    (warning,) = json.loads(out)["warnings"]
    assert f"warning: {warning}" in err and "all_reduce.txt:11: 5 values are wrong" in warning
    assert main([*argv, "--strict"]) == 2
    assert "--strict: 1 warning" in capsys.readouterr().err
    assert main(["measured", "validate", "cases", "--strict"]) == 2
