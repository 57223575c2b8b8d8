"""The fit of a profile: known numbers are found again, and rows that took no part are predicted."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.core.strict_model import tuples
from astrasim_py.measured.calibration import calibrate, choose_rows, median_and_p90, section
from astrasim_py.measured.fit import UNKNOWNS, covered, fit
from astrasim_py.measured.formula import COLLECTIVES, candidates, numbers_of
from astrasim_py.measured.rows import MeasuredRow, read_rows
from astrasim_py.topology.hardware import Preset, preset, preset_content

H100 = preset("dgx_h100").collectives


def synthetic(
    sizes=range(9, 30, 2), ranks=(2, 4, 8), dtypes=("half", "int8"), profile=H100, noise=0.0
) -> list[MeasuredRow]:
    """Rows whose times are those of a profile."""
    dice = np.random.default_rng(1)
    return [
        MeasuredRow(
            place=f"rows:{kind}{n}{power}{dtype}",
            platform="H100-SXM",
            library="NCCL",
            version="1",
            collective=kind,
            dtype=dtype,
            ranks=n,
            nodes=1,
            bytes=2**power,
            time_ps=round(min(candidates(profile, kind, 2**power, n, dtype).values()) * np.exp(dice.normal(0, noise))),
        )
        for kind in COLLECTIVES
        for n in ranks
        for power in sizes
        for dtype in dtypes
    ]


def known(profile=H100) -> dict:
    return numbers_of(profile)


def test_known_numbers_are_found_again():
    rows = synthetic(sizes=range(9, 30), ranks=(2, 8))
    found = fit(rows, switch=True)
    assert found.channels == H100.channels
    assert not found.undetermined
    for key, value in known().items():
        # Beside exact rows the prior draws by a part of what the rows leave open.
        assert abs(np.log(found.numbers[key] / value)) < 0.4 * found.deviations[key], key
    assert median_and_p90(found.errors(rows))[1] < 0.005


def test_noise_moves_numbers_by_about_their_deviation():
    found = fit(synthetic(noise=0.1), switch=True, channels=16)
    off = np.array([np.log(found.numbers[key] / value) / found.deviations[key] for key, value in known().items()])
    assert np.abs(off).max() < 3.5
    assert 0.2 < np.sqrt(np.mean(off**2)) < 2


def test_four_sizes_with_two_group_sizes_determine_all():
    rows = synthetic(sizes=(9, 19, 22, 27), ranks=(2, 8))
    assert not fit(rows, switch=True, channels=16).undetermined
    only = fit([row for row in rows if row.ranks == 8 and row.collective == "all_reduce"], channels=16)
    assert {("", "peer"), ("", "copy")} <= set(only.undetermined)


def test_too_few_rows_say_what_to_measure():
    for count in (1, 7):
        with pytest.raises(UsageError, match=f"rows:all_reduce29half: too few rows for 8 numbers: {count}; measure"):
            fit(synthetic()[:count])
    assert len(fit(synthetic()[:8]).undetermined) > 3


def test_only_the_librarys_own_choice_within_a_node_is_fitted():
    row = synthetic()[0]
    assert covered(row)
    for change in ({"nodes": 2}, {"ranks": 1}, {"collective": "broadcast"}, {"algorithm": "my.xml"}):
        assert not covered(replace(row, **change))
    rows = [row, replace(row, nodes=2), replace(row, in_place="1"), replace(row, collective="send_recv")]
    kept, notes = choose_rows(rows, None)
    assert kept == [row]
    assert len(notes) == 3
    with pytest.raises(UsageError, match="--platform"):
        choose_rows([row, replace(row, platform="A100-SXM")], None)


def test_a_section_reads_back_as_the_profile_of_the_fit(tmp_path):
    found = calibrate(synthetic(), hold_out="ranks=4", switch=True)
    made = section(found)
    assert made["fit"]["held_out"] == "ranks=4"
    assert made["ranks"] == [2, 8]
    assert {row.ranks for row in found.held_out} == {4}
    assert found.fit.rows == len(found.rows) == 2 * len(found.held_out)
    again = Preset.model_validate(
        tuples({**preset_content("dgx_h100"), "collectives": made}), context={"written": True}
    )
    for key, value in numbers_of(again.collectives).items():
        assert abs(value / found.fit.numbers[key] - 1) < 5e-4


def test_held_out_rows_take_no_part():
    rows = synthetic(noise=0.1)
    found = calibrate(rows, hold_out="every-other", channels=16)
    same = fit(found.rows, channels=16)
    assert found.fit == same
    assert len(found.held_out) == 5 * len(rows) // 11
    wrong = [replace(row, time_ps=3 * row.time_ps) if row in found.held_out else row for row in rows]
    assert calibrate(wrong, hold_out="every-other", channels=16).fit == same


def written(path: Path, rows: list[MeasuredRow]) -> str:
    names = ("platform", "library", "version", "collective", "dtype", "ranks", "nodes", "bytes")
    lines = [",".join((*names, "time_us"))]
    lines += [",".join([*(str(getattr(r, name)) for name in names), repr(r.time_ps / 1e6)]) for r in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def test_a_fit_to_some_ranks_may_be_asked_for_others():
    rows = synthetic(sizes=(9, 22), dtypes=("half",))
    kept, _ = choose_rows(rows, None, ["ranks=2,8", "bytes>=1 KiB"], None, "ranks=4")
    assert {(row.ranks, row.bytes) for row in kept} == {(n, 2**22) for n in (2, 4, 8)}
    assert {row.ranks for row in choose_rows(rows, None, ["ranks=2,8"], None, "every-other")[0]} == {2, 8}
    assert {row.ranks for row in choose_rows(rows, None, ["ranks=2,8"], None, "bytes=512")[0]} == {2, 8}


@pytest.mark.slow
def test_calibrate_writes_a_preset_and_prints_its_errors(tmp_path, capsys):
    made = synthetic(sizes=(9, 19, 22, 27), dtypes=("half",))
    rows, out = written(tmp_path / "rows.csv", made), tmp_path / "new" / "my.json"
    assert (
        main(
            ["measured", "calibrate", "collectives", rows, "--hold-out", "ranks=4", "--channels", "16", "-o", str(out)]
        )
        == 0
    )
    told = capsys.readouterr().out
    assert "LL channel_rate" in told
    assert "held out: ranks=4" in told
    made, shipped = json.loads(out.read_text()), preset("dgx_h100")
    assert tuples(made["topology"]) == shipped.topology
    assert made["compute"]["npu"] == shipped.compute.npu
    assert made["collectives"]["fit"]["p90"] < 0.02
    assert "simulated: 32 rows, within 0.0" in told
    assert main(["measured", "validate", "collectives", rows, "--profile", str(out), "--max-p90", "2"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--platform", "B200-SXM"], "--platform"),
        (["--where", "ranks=3"], "no row has ranks=3; write one of"),
        (["--where", "sizes=3"], 'there is no column "sizes"; did you mean "size"'),
        (["--hold-out", "ranks=2,4,8"], "every row"),
        (["--hold-out", "ranks=16"], "no row"),
        (["--hold-out", "half"], "no condition"),
        (["--preset", "dgx_h10"], "dgx_h100"),
        (["--channels", "0"], "less than 1"),
        (
            ["--where", "bytes=512", "--where", "ranks=2", "--where", "collective=all_reduce"],
            "too few rows for 10 numbers: 2",
        ),
    ],
)
def test_bad_options_are_one_line_and_write_nothing(tmp_path, capsys, options, said):
    out = tmp_path / "my.json"
    rows = written(tmp_path / "rows.csv", synthetic(sizes=(9, 19)))
    assert main(["measured", "calibrate", "collectives", rows, "-o", str(out), *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not out.exists()


SUBSETS = {
    "H100-SXM": "h100_sxm/comm/nccl/2.29.2",
    "A100-SXM": "a100_sxm/comm/nccl/2.27.3",
    "B200-SXM": "b200_sxm/comm/nccl/2.29.2",
}


@pytest.mark.slow
@pytest.mark.parametrize("platform", SUBSETS)
@pytest.mark.parametrize("hold_out", ["every-other", "ranks=4"])
def test_rows_that_took_no_part_are_within_10_and_25_percent(golden, platform, hold_out):
    rows = [row for row in read_rows([golden / "nccl" / "measured_public.csv"]) if SUBSETS[platform] in row.source]
    found = calibrate(rows, hold_out=hold_out, switch=platform != "A100-SXM")
    median, p90 = median_and_p90(found.held_out_errors)
    assert median <= 0.10
    assert p90 <= 0.25
    assert set(found.fit.numbers) <= set(UNKNOWNS)
