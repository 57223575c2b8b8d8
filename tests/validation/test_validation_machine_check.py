"""A machine whose collectives are slow is told so, from where on, and why, if a fault that is simulated fits."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.measured.rows import MeasuredRow
from astrasim_py.topology.hardware import read_preset
from astrasim_py.validation import machine_check
from astrasim_py.validation.machine_check import LAUNCH_PS, _alternatives, check_machines
from astrasim_py.validation.measured import MeasuredMachine

SAMPLES = Path(__file__).parents[2] / "scenarios" / "recordings" / "nccl_tests"
H100 = read_preset("dgx_h100")
US = 10**6


def row(size: int, time_ps: int = 1, **of) -> MeasuredRow:
    keys = {"platform": "H100-SXM", "library": "NCCL", "version": "", "collective": "all_reduce", "dtype": "half"}
    return MeasuredRow(
        **{"place": f"rows:{size}", "ranks": 8, "nodes": 1, "bytes": size, "time_ps": time_ps} | keys | of
    )


ROWS = [row(4096 * 16**k) for k in range(5)]


RIGHT = MeasuredMachine("right", H100, "compiled")


def timed(machine=RIGHT, rows=ROWS, launch: int = 0, factor=lambda size: 1.0) -> list[MeasuredRow]:
    """The rows with the times of a machine, and a longer launch."""
    return [replace(r, time_ps=int(factor(r.bytes) * machine.time(r)) + launch) for r in rows]


def faulty(text: str, rows=ROWS) -> MeasuredMachine:
    """The machine with a fault."""
    return MeasuredMachine(text, dict(_alternatives(H100, rows[0]))[text], "compiled")


def check(rows, **options):
    (only,), _ = check_machines(rows, engine="compiled", **options)
    return only


@pytest.mark.parametrize("launch", [0, 5 * US, LAUNCH_PS])
def test_a_machine_with_the_expected_times_is_as_expected(launch):
    result = check(timed(launch=launch))
    assert result.within and result.causes == () and result.sentence.startswith("as expected: within 20 % at all sizes")
    assert result.launch_ps == launch and (", besides " in result.sentence) == (launch > 0)


FAULTS = [text for text, _ in _alternatives(H100, ROWS[0]) if "LL alone" not in text]


@pytest.mark.parametrize("text", [FAULTS[0], *(pytest.param(text, marks=pytest.mark.slow) for text in FAULTS[1:])])
def test_a_fault_is_named_where_its_times_are_measured(text):
    result = check(timed(faulty(text), launch=3 * US), tolerance=0.1)
    assert not result.within
    assert result.cause is not None and (result.cause.text, round(result.cause.error, 9)) == (text, 0)
    assert f": {text}? (simulated so, 0 % off)" in result.sentence


@pytest.mark.slow
def test_a_missing_nic_is_named():
    rows = [row(size, ranks=16, nodes=2) for size in (2**16, 2**24, 2**28)]
    text = "one NIC of 8"
    result = check(timed(faulty(text, rows), rows))
    assert result.cause is not None and result.cause.text == text and "too slow" in result.sentence


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (lambda size: 1 + 1.5 * (size >= 2**20), "2.5 times too slow from 1 MiB on"),
        (lambda size: 1.3 if size >= 2**24 else 1, "30 % too slow from 16 MiB on"),
        (lambda size: 4 if size == 2**20 else 1, "4.0 times too slow at 1 MiB alone"),
        (lambda size: 9 if size <= 2**16 else 1, "longer than expected up to 64 KiB: launch?"),
        (lambda size: 0.5 if size >= 2**24 else 1, "not slower than expected; 2.0 times faster from 16 MiB on"),
    ],
)
def test_the_sentence_says_where_it_is_slow(factor, says, monkeypatch):
    monkeypatch.setattr(machine_check, "_causes", lambda *_: ())
    result = check(timed(factor=factor))
    assert says in result.sentence and result.within == ("faster" in says)


def test_a_faster_machine_with_a_longer_launch_is_one_sentence():
    """The question comes last."""
    result = check(timed(launch=5 * US, factor=lambda size: 0.5 if size >= 2**24 else 1.0))
    assert result.sentence.startswith("not slower than expected, besides 5 µs a call that the launch takes longer")
    assert result.sentence.endswith("times faster from 16 MiB on: another machine or library?")


def test_a_launch_longer_than_any_host_needs_is_a_fault(monkeypatch):
    monkeypatch.setattr(machine_check, "_causes", lambda *_: ())
    result = check(timed(launch=3 * LAUNCH_PS))
    assert not result.within and "calls take 60 µs longer than expected up to" in result.sentence


def test_what_no_fault_explains_says_so():
    result = check(timed(factor=lambda size: 3 if size in (2**20, 2**24) else 1))
    assert result.cause is None and "that were simulated none fits" in result.sentence


def test_the_machine_and_the_profile_can_be_named():
    rows = [replace(r, platform="unknown") for r in timed()]
    with pytest.raises(UsageError, match=r'no preset is known for the platform "unknown".*--preset'):
        check_machines(rows)
    assert check(rows, preset="dgx_h100").within
    other = check(rows, preset="dgx_a100", profile="dgx_h100")
    assert (other.preset, other.profile) == ("dgx_a100", "dgx_h100")
    with pytest.raises(UsageError, match="a call of one rank moves no data"):
        check_machines([row(1024, 5, ranks=1)])


def test_the_command_says_it_and_has_an_exit_code(tmp_path, capsys):
    good, slow = (str(SAMPLES / f"all_reduce_8_h100{name}.txt") for name in ("", "_slow"))
    assert main(["measured", "check", good]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "all_reduce, half, 8 ranks: H100-SXM, expected of dgx_h100"
    assert out.splitlines()[-1].startswith("as expected: within 20 %") and "too slow" not in out
    assert err == "astrasim-py: 11 rows are left out: in place\n"
    assert main(["measured", "check", slow, "--figures", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].startswith("1.8 times too slow from 4 MiB on: half the bandwidth of NVLink?")
    assert out.count("  too slow") == 5 and "figure: " in err
    figure = (tmp_path / "H100-SXM_half.svg").read_text("utf-8")
    assert "too slow, how many times" in figure and figure.count("×") == 5
    assert main(["measured", "check", slow, "--tolerance", "150 %", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_other_programs_read_rows_or_one_document(capsys):
    large = ["--where", "bytes>=256 MiB"]
    slow = str(SAMPLES / "all_reduce_8_h100_slow.txt")
    assert main(["measured", "check", slow, "--json", *large]) == 1
    document = json.loads(capsys.readouterr().out)
    (only,) = document["checks"]
    assert document["within"] is False and only["cause"] == "half the bandwidth of NVLink"
    assert len(only["sizes"]) == 2 and only["sizes"][-1]["measured_ns"] == 8253460
    assert only["sizes"][-1]["busbw_GBps"] == pytest.approx(227.67, abs=0.01)
    assert main(["measured", "check", slow, "--format", "csv", *large]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 and rows[0]["size_bytes"] == str(2**28) and rows[-1]["slow"] == "true"
    assert main(["measured", "check", slow, "--format", "markdown", *large]) == 1
    assert capsys.readouterr().out.startswith("| platform | collective |")


@pytest.mark.parametrize("text", ["abc", "-5%", ""])
def test_a_tolerance_is_a_percentage(text, capsys):
    assert main(["measured", "check", str(SAMPLES / "all_reduce_8_h100.txt"), f"--tolerance={text}"]) == 2
    assert "is no percentage; write e.g. 20%" in capsys.readouterr().err
