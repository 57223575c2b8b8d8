"""`measured validate training`: errors of closed forms against published step times, and what bad tables are told."""

import csv
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.topology.hardware import preset
from astrasim_py.training.machine_states import state_of
from astrasim_py.training.software import software, software_names
from astrasim_py.validation.memory_rows import judge_memory
from astrasim_py.validation.training_classes import classes, measured_mfu
from astrasim_py.validation.training_errors import FITTED, compare, fit, predict
from astrasim_py.validation.training_rows import GPUS, REQUIRED, RULES, TrainingRow, read_rows

GOOD = {
    "id": "r0", "source": "somebody", "model": "llama3-8b", "layers": "32", "hidden": "4096", "ffn": "14336",
    "heads": "32", "kv_heads": "8", "head_dim": "128", "vocab": "128256", "seq": "8192", "gpus": "64", "gpu": "h100",
    "nic_gb_s_per_gpu": "50", "dtype": "bf16", "tp": "2", "pp": "1", "cp": "1", "ep": "1", "vp": "1",
    "sharding": "zero1", "recompute": "none", "mbs": "1", "gbs": "128", "step_s": "4.0",
}  # fmt: skip
#: Text of a cell → what the row is told.
UNPREDICTABLE = {
    "gpu": ("trainium1", "no preset for the GPU"),
    "dtype": ("int3", "number format"),
    "sharding": ("zero9", "sharding"),
    "recompute": ("some", "recomputation"),
    "mbs": ("", "mbs is not stated"),
    "layers": ("", "architecture"),
    "tp": ("3", "does not divide"),
    "gbs": ("100", "100"),
}
BAD = {
    "step_s": ("0", "no step time"),
    "gpus": ("many", "no number"),
    "seq": ("12.5", "no count"),
    "nic_gb_s_per_gpu": ("fast", "no number"),
    "tp": ("inf", "no number"),
    "mbs": ("nan", "no number"),
}


def written(folder: Path, *rows: dict, heading=REQUIRED) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, heading, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(GOOD | row for row in rows)
    return path


@pytest.mark.parametrize(
    ("key", "text"),
    [("recompute", text) for text in ("partial:x", "partial:nan", "full-3ofx", "full-3of0")]
    + [("sharding", text) for text in ("zero1@x", "zero1@1.5")]
    + [("schedule", "dualpipe")],
)
def test_a_word_with_a_wrong_number_is_unknown(tmp_path, key, text):
    (row,) = read_rows(written(tmp_path, {key: text}, heading=(*REQUIRED, "schedule")))
    assert f'the {"recomputation" if key == "recompute" else key} "{text}" is unknown' in row.problem


def test_the_schedule_of_a_row_counts(tmp_path):
    rows = [{"pp": "4", "vp": vp, "schedule": name} for name, vp in (("", 1), ("1f1b", 1), ("zb_h1", 1), ("zbv", 2))]
    found = read_rows(written(tmp_path, *rows, heading=(*REQUIRED, "schedule")))
    assert [row.layout.schedule for row in found] == ["1f1b", "1f1b", "zb_h1", "zbv"]


@pytest.mark.parametrize("key", UNPREDICTABLE)
def test_a_row_that_cannot_be_predicted_says_why(tmp_path, key):
    text, words = UNPREDICTABLE[key]
    good, bad = read_rows(written(tmp_path, {}, {key: text}))
    assert not good.problem and words in bad.problem
    assert compare([good, bad]).unpredicted == (bad,)


@pytest.mark.parametrize("key", BAD)
def test_a_cell_that_is_no_figure_is_told_with_its_line(tmp_path, key):
    text, words = BAD[key]
    with pytest.raises(UsageError) as error:
        read_rows(written(tmp_path, {}, {key: text}))
    assert str(error.value).count("\n") == 0
    assert f"rows.csv:3: {key}" in str(error.value) and words in str(error.value)


@pytest.mark.parametrize(("key", "text"), [("step_s", "nan"), ("step_s", "inf"), ("nic_gb_s_per_gpu", "-3")])
def test_a_cell_without_a_sensible_figure_is_told_too(tmp_path, key, text):
    with pytest.raises(UsageError, match=f'rows.csv:3: {key}: "{text}" is no'):
        read_rows(written(tmp_path, {}, {key: text}))


def test_rows_marked_as_not_predictable_are_left_out(tmp_path):
    heading = (*REQUIRED, "predictable", "note")
    rows = [{"predictable": "1"}, {"predictable": "0", "note": "LoRA"}]
    assert [row.problem for row in read_rows(written(tmp_path, *rows, heading=heading))] == [
        "",
        "marked as not predictable (LoRA)",
    ]


def test_columns_of_a_row_count_where_its_model_is_another(tmp_path):
    rows = read_rows(written(tmp_path, {}, {"layers": "16"}, {"model": "unheard-of"}))
    assert [row.layout.model.layers for row in rows] == [32, 16, 32]
    assert rows[0].layout.model.gated and not rows[2].layout.model.gated


def test_columns_of_a_row_count_before_the_rules_of_its_source(tmp_path):
    heading = (*REQUIRED, "note", "attention", "host", "overlap")
    own = {"source": "torchtitan", "note": "compile", "attention": "fa3", "host": "0.25", "overlap": "tp"}
    rows = read_rows(written(tmp_path, {"source": "torchtitan", "note": "compile"}, own, heading=heading))
    assert [(row.layout.attention, row.constants.host) for row in rows] == [("fa2", 0.5), ("fa3", 0.25)]
    assert [(bool(row.layout.overlap.tp), bool(row.layout.overlap.dp)) for row in rows] == [
        (False, True),
        (True, False),
    ]
    with pytest.raises(UsageError, match=r'rows\.csv:2: host: "little" is not a number'):
        read_rows(written(tmp_path, {"host": "little"}, heading=heading))


def test_every_gpu_has_sustained_rates_and_attention():
    for name in set(GPUS.values()):
        compute = preset(name).compute
        assert 0.5 < compute.sustained <= 1.05 and compute.attention


def test_constants_that_made_the_times_are_found_again(tmp_path):
    shapes = [{"gbs": str(64 * k), "tp": t} for k in (1, 2, 4, 8) for t in ("1", "2", "4")]
    found = predict(read_rows(written(tmp_path, *shapes)))
    truth = {"host": 1.0, "gemm": 1.25, "nic": 0.5, "interference": 0.3}
    fitted = fit(found._replace(measured=found.seconds(truth)), np.arange(len(shapes)))
    assert fitted["gemm"] == pytest.approx(truth["gemm"], rel=0.01)
    made = found._replace(measured=found.seconds(truth))
    assert np.abs(made.errors(fitted)).max() < 0.01 < np.abs(made.errors()).max()


def test_json_and_text_show_the_same_groups(tmp_path, capsys):
    path = written(tmp_path, {}, {"source": "else", "gbs": "256"}, {"tp": "3", "id": "odd"})
    assert main(["measured", "validate", "training", str(path), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cases"] == 2 and [group["group"] for group in shown["groups"]] == ["somebody", "else"]
    assert {"median_rel_error", "p90_rel_error"} <= shown.keys()
    assert [row["id"] for row in shown["unpredicted"]] == ["odd"]
    assert main(["measured", "calibrate", "training", str(path), "--only", "else"]) == 0
    text = capsys.readouterr().out
    assert "held out" in text and "somebody" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["validate", "training", "ROWS", "--engine", "simpy"], "--engine"),
        (["calibrate", "training", "ROWS", "--jobs", "2"], "--jobs"),
        (["validate", "training", "ROWS", "--only", "nobody"], 'has no source "nobody"'),
        (["validate", "training", "nowhere.csv"], "nowhere.csv"),
        (["calibrate", "training"], "ROWS.csv"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(tmp_path, capsys, arguments, words):
    path = str(written(tmp_path, {}))
    assert main(["measured", *(path if one == "ROWS" else one for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_a_table_without_rows_or_columns_is_refused(tmp_path):
    for heading, words in (((), "no column"), (REQUIRED[:-1], "step_s"), (REQUIRED, "no row")):
        path = tmp_path / "rows.csv"
        path.write_text(",".join(heading) + "\n", "utf-8")
        with pytest.raises(UsageError, match=words):
            read_rows(path)


@pytest.fixture(scope="module")
def published():
    folder = os.environ.get("ASTRASIM_GOLDEN")
    if not folder:
        pytest.skip("ASTRASIM_GOLDEN is not set")
    return read_rows(Path(folder) / "training" / "training_public.csv")


@pytest.mark.slow
def test_published_step_times_are_met_as_well_as_promised(published):
    report = compare(published, calibrate=True)
    rest, dense, experts = report.summaries
    assert rest.cases >= 450 and rest.median_rel_error <= 0.10
    assert rest.fitted_median_rel_error <= 0.07 and rest.held_out_median_rel_error <= 0.07
    assert dense.p90_rel_error <= 0.20
    assert experts.median_rel_error <= 0.22
    assert all(row.problem for row in report.unpredicted) and len(report.unpredicted) <= 60
    assert report.total.cases + len(report.unpredicted) == len(published)


@pytest.mark.slow
def test_step_times_are_the_same_alone_and_together(published):
    rows = [row for row in published if not row.problem][::40]
    together = predict(rows).seconds()
    alone = [float(predict([row]).seconds()[0]) for row in rows]
    assert together == pytest.approx(alone, rel=1e-12)


def test_what_calibration_fits_is_the_same_for_all_rows_of_a_source_but_the_host():
    """A fit has one value for a source, the host's a factor on each row's own; it starts within its limits."""
    with RULES.open(newline="") as file:
        rules = list(csv.DictReader(file))
    for key in FITTED.keys() - {"host"}:
        low, high = FITTED[key]
        assert key not in rules[0]
        for name in software_names():
            assert low <= getattr(software(name).constants, key) <= high


def test_a_fit_starts_at_the_constants_of_its_source(tmp_path):
    """A row that is met exactly keeps them: what does not matter does not move."""
    constants = predict(read_rows(written(tmp_path, {"source": "nanotron"}))).rows[0].constants
    seconds = predict(read_rows(written(tmp_path, {"source": "nanotron"}))).seconds()[0]
    met = predict(read_rows(written(tmp_path, {"source": "nanotron", "step_s": repr(float(seconds))})))
    fitted = fit(met, np.arange(1))
    assert fitted["host"] == 1.0
    assert {key: fitted[key] for key in ("gemm", "nic")} == {key: getattr(constants, key) for key in ("gemm", "nic")}
    assert constants.gemm == software("nanotron").constants.gemm != 1.0


def test_errors_are_told_by_nodes_tp_mfu_and_state(tmp_path, capsys):
    """Every class has the error of its own rows, and the classes of a kind have all rows once."""
    rows = [
        {"id": "one", "gpus": "8", "tp": "1", "node_all_gather_gb_s": "262.6"},
        {"id": "two", "gpus": "16", "tp": "1", "node_all_gather_gb_s": "241.7", "step_s": "400"},
        {"id": "three", "gpus": "32", "tp": "8", "step_s": "0.01"},
        {"id": "nine", "gpus": "128", "tp": "8", "node_all_gather_gb_s": "250"},
    ]
    path = written(tmp_path, *rows, heading=(*REQUIRED, "node_all_gather_gb_s"))
    read = read_rows(path)
    assert classes(read)["nodes"] == {"1": [0], "2": [1], "3 to 4": [2], "9 to 16": [3]}
    assert classes(read)["tp"] == {"1": [0, 1], "8": [2, 3]}
    assert classes(read)["state"] == {"sound": [0, 3], "degraded": [1]}
    report = compare(read)
    for by, members in report.classes.items():
        assert sum(errors.cases for errors in members) == (3 if by == "state" else 4)
    alone = compare(read[1:2]).total
    degraded = report.classes["state"][1]
    assert (
        (degraded.median_rel_error, degraded.too_fast)
        == (alone.median_rel_error, alone.too_fast)
        == (
            alone.median_rel_error,
            1.0,
        )
    )
    assert compare(read[2:3]).total.too_fast == 0.0
    assert main(["measured", "validate", "training", str(path)]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("9 to 16", "measured MFU", "degraded", "too fast"))
    assert main(["measured", "validate", "training", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["classes"]
    assert [row["group"] for row in shown if row["by"] == "nodes"] == ["1", "2", "3 to 4", "9 to 16"]


def test_measured_mfu_counts_as_publishers_do(tmp_path):
    """Llama 3.1 8B, 128 x 8,192 tokens in 4 s on 64 H100 of 989.4 TFLOP/s, by the formula of the docstring."""
    (row,) = read_rows(written(tmp_path, {}))
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096
    per_token = 3 * (2 * weights + 4 * 8192 * 4096 * 32)
    assert row.system is not None
    expected = per_token * 128 * 8192 / (4 * 64 * row.system.peak("bf16"))
    assert measured_mfu(row) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("gpu", "rate", "state"),
    [("dgx_h100", 249.9, "degraded"), ("dgx_h100", 250.0, "sound"), ("dgx_a100", 230.0, "sound")],
)
def test_the_state_follows_the_test_inside_a_node(gpu, rate, state):
    assert state_of(gpu, rate).name == state


def test_a_preset_takes_the_embedding_of_its_row(tmp_path):
    rows = [{}, {"tied": "no"}, {"tied": "yes"}]
    read = read_rows(written(tmp_path, *rows, heading=(*REQUIRED, "tied")))
    assert [row.layout.model.tied for row in read if row.layout] == [False, False, True]


@pytest.mark.parametrize("key", ["host", "gemm", "nic", "elementwise"])
@pytest.mark.parametrize("text", ["-1", "nan", "inf", "much", "0"])
def test_a_constant_of_a_row_is_a_number_that_makes_sense(tmp_path, key, text):
    path = written(tmp_path, {key: text}, heading=(*REQUIRED, key))
    if text == "0" and key in ("host", "elementwise"):
        assert getattr(read_rows(path)[0].constants, key) == 0
        return
    with pytest.raises(UsageError, match=rf'rows.csv:2: {key}: "{text}" is not a number (from|above) 0'):
        read_rows(path)


@pytest.mark.parametrize("text", ["0", "-5", "fast", "nan", "inf"])
def test_a_test_inside_a_node_is_a_rate(tmp_path, text):
    path = written(tmp_path, {"node_all_gather_gb_s": text}, heading=(*REQUIRED, "node_all_gather_gb_s"))
    with pytest.raises(UsageError, match=rf'rows.csv:2: node_all_gather_gb_s: "{text}" is no (rate|number)'):
        read_rows(path)


def test_a_degraded_machine_waits_for_every_member_of_tensor_parallelism(tmp_path):
    """Beside the launches: nothing more while computation is longer, and then members x collectives x seconds."""
    (row,) = read_rows(written(tmp_path, {"tp": "8"}))
    assert row.system is not None and row.layout is not None

    def seconds(per_member: float) -> float:
        assert row.system.state is not None
        machine = replace(row.system, state=replace(row.system.state, tp_member=(per_member, per_member)))
        return float(predict([replace(row, system=machine)]).seconds()[0])

    assert seconds(0.0) == seconds(1e-9)
    collectives = (seconds(2e-3) - seconds(1e-3)) / (1e-3 * 8 * row.layout.microbatches)
    assert collectives == pytest.approx(round(collectives), abs=1e-6)
    assert 0 <= round(collectives) - 10 * 32 <= 6, "four forward, six backward in each layer, and the ends"


def test_rows_of_degraded_machines_are_predicted_slower(tmp_path):
    tests = [{"node_all_gather_gb_s": text, "tp": "8"} for text in ("262", "240", "")]
    path = written(tmp_path, *tests, heading=(*REQUIRED, "node_all_gather_gb_s"))
    sound, degraded, unknown = predict(read_rows(path)).seconds()
    assert degraded > sound == unknown


def seen(row: TrainingRow) -> bool:
    """Whether the fit of nanotron's constants and of the states of H100 machines saw the configuration of a row."""
    assert row.layout is not None
    shape = row.layout.model.hidden, row.layout.model.layers, row.layout.tp, row.layout.pp, row.layout.dp
    return hashlib.sha256(repr(shape).encode()).digest()[0] % 2 == 1


@pytest.mark.slow
def test_runs_on_8_to_512_gpus_that_no_constant_saw_are_met_as_documented(golden):
    rows = [row for row in read_rows(golden / "training" / "nanotron_public.csv") if not row.problem]
    report = compare([row for row in rows if not seen(row)])
    assert (len(rows), report.total.cases) == (617, 319)
    assert report.total.median_rel_error <= 0.06
    assert report.total.p90_rel_error <= 0.23
    assert all(errors.median_rel_error <= 0.16 for errors in report.classes["nodes"])
    assert [errors.group for errors in report.classes["state"]] == ["sound", "degraded"]


def test_an_embedding_of_its_own_makes_a_step_longer(tmp_path):
    shape = {"model": "mine"}
    rows = [shape, shape | {"tied": "yes"}, shape | {"tied": "1"}, shape | {"tied": "no"}, shape | {"tied": "0"}]
    seconds = predict(read_rows(written(tmp_path, *rows, heading=(*REQUIRED, "tied")))).seconds()
    assert seconds[0] == seconds[1] == seconds[2] < seconds[3] == seconds[4]
    with pytest.raises(UsageError, match=r'rows.csv:2: tied: "maybe" is not yes or no'):
        read_rows(written(tmp_path, shape | {"tied": "maybe"}, heading=(*REQUIRED, "tied")))


def test_a_long_list_of_rows_that_are_not_predicted_is_cut(tmp_path, capsys):
    path = written(tmp_path, {}, *({"id": f"x{n}", "layers": ""} for n in range(8)))
    assert main(["measured", "validate", "training", str(path)]) == 0
    assert "x0, x1, x2, x3, x4 and 3 more" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "gated"), [("1.342", True), ("1.074", False), ("", False)])
def test_parameters_tell_whether_a_plain_transformer_has_a_gate(tmp_path, text, gated):
    shape = {"model": "mine", "layers": "16", "hidden": "2048", "ffn": "8192", "heads": "32", "kv_heads": "32"}
    shape |= {"head_dim": "64", "vocab": "131072", "params_b": text}
    (row,) = read_rows(written(tmp_path, shape, heading=(*REQUIRED, "params_b")))
    assert row.layout is not None
    assert row.layout.model.gated is gated


def test_a_column_says_whether_there_is_a_gate(tmp_path):
    shapes = [{"model": "mine", "gated": text} for text in ("yes", "no")]
    read = read_rows(written(tmp_path, *shapes, heading=(*REQUIRED, "gated")))
    assert [row.layout.model.gated for row in read if row.layout] == [True, False]
    with pytest.raises(UsageError, match=r'rows.csv:2: gated: "maybe" is not yes or no'):
        read_rows(written(tmp_path, {"model": "mine", "gated": "maybe"}, heading=(*REQUIRED, "gated")))


MEMORY = (*REQUIRED, "outcome", "mem_gib", "microbatches")


def test_runs_that_ran_out_of_memory_are_judged_and_need_no_step(tmp_path, capsys):
    """Llama 3.1 8B with ZeRO 1 on 64 GPUs fits 72 of 80 GiB with full recomputation, and not with mbs 16."""
    small = {"recompute": "full", "outcome": "ok", "mem_gib": "40"}
    large = {"mbs": "16", "gbs": "1024", "outcome": "oom", "step_s": ""}
    path = written(tmp_path, small, large, heading=MEMORY)
    assert main(["measured", "validate", "training", str(path)]) == 0
    said = capsys.readouterr().out
    assert "of 1 runs that ran 100.0 % fit" in said and "1 runs that ran out of memory 100.0 % do not" in said
    assert "1 printed peaks: off by" in said
    (judged,) = [judge_memory(read_rows(path))]
    assert judged is not None and (judged.ran, judged.failed, judged.peaks) == (1, 1, 1)


def test_a_file_of_failed_runs_alone_is_judged(tmp_path, capsys):
    path = written(tmp_path, {"mbs": "16", "gbs": "1024", "outcome": "oom", "step_s": ""}, heading=MEMORY)
    assert main(["measured", "validate", "training", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["failed_exceeds"] == 1.0


def test_sequences_of_a_row_may_be_counted_in_tokens(tmp_path):
    (row,) = read_rows(written(tmp_path, {}))
    assert row.layout is not None
    many = str(row.layout.microbatches)
    tokens = {"gbs": str(int(row.layout.gbs) * int(row.layout.seq)), "microbatches": many}
    (other,) = read_rows(written(tmp_path, tokens, heading=MEMORY))
    assert other.layout is not None and other.layout.gbs == row.layout.gbs
    with pytest.raises(UsageError, match=r"rows.csv:2: microbatches: gbs 7 is not \d+ sequences"):
        read_rows(written(tmp_path, {"gbs": "7", "microbatches": many}, heading=MEMORY))


@pytest.mark.parametrize(("key", "text"), [("outcome", "maybe"), ("mem_gib", "-3"), ("step_s", "")])
def test_what_a_row_says_of_its_end_makes_sense(tmp_path, key, text):
    with pytest.raises(UsageError, match=rf"rows.csv:2: {key}: "):
        read_rows(written(tmp_path, {"outcome": "ok", key: text}, heading=MEMORY))


@pytest.mark.slow
def test_one_limit_parts_what_ran_from_what_failed(golden):
    ran, failed = (
        judge_memory(read_rows(golden / "training" / f"nanotron_{name}.csv")) for name in ("public", "oom_public")
    )
    assert ran is not None and failed is not None and ran.usable_gib == failed.usable_gib == (72.0,)
    assert ran.ran_fits >= 0.98 and failed.failed_exceeds >= 0.97
    assert ran.peak_median_rel_error <= 0.07


def test_why_prints_the_terms_of_a_row_beside_its_measurement(tmp_path, capsys):
    path = written(
        tmp_path, {"id": "one", "tp": "8"}, {"id": "two", "predictable": "0"}, heading=(*REQUIRED, "predictable")
    )
    assert main(["measured", "validate", "training", str(path), "--why", "one", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])
    assert found["rel_error"] == pytest.approx(found["step_s"] / found["measured_s"] - 1)
    for layer in found["layers"]:
        longer = max(layer["computation_s"] + layer["communication_s"], layer["host_s"] + layer["latency_s"])
        assert layer["takes_s"] == pytest.approx(longer)
    assert main(["measured", "validate", "training", str(path), "--why", "one"]) == 0
    assert "software latency" in capsys.readouterr().out
    assert main(["measured", "validate", "training", str(path), "--why", "on"]) == 2
    assert '--why: no row has the id "on"; did you mean "one"?' in capsys.readouterr().err
    assert main(["measured", "validate", "training", str(path), "--why", "two"]) == 2
    assert "two is not predicted: marked as not predictable" in capsys.readouterr().err


def test_a_state_may_be_taken_whatever_tests_say(tmp_path):
    tests = [{"node_all_gather_gb_s": text, "tp": "8"} for text in ("262", "240")]
    path = written(tmp_path, *tests, heading=(*REQUIRED, "node_all_gather_gb_s"))
    tested, sound, degraded = (predict(read_rows(path, (), state)).seconds() for state in (None, "sound", "degraded"))
    assert list(tested) == [sound[0], degraded[0]] and sound[0] == sound[1] < degraded[0] == degraded[1]


def test_constants_that_rows_do_not_determine_keep_their_values(tmp_path):
    """One node: nothing crosses a NIC, and large layers wait for no host."""
    rows = [{"id": f"r{mbs}", "gpus": "8", "mbs": mbs, "gbs": "64", "step_s": "9"} for mbs in ("1", "2", "4")]
    report = compare(read_rows(written(tmp_path, *rows)), calibrate=True)
    (group,) = report.groups
    assert group.intervals is not None and group.constants is not None
    assert group.intervals["gemm"].determined and not group.intervals["nic"].determined
    assert group.constants["nic"] == software("megatron").constants.nic
    assert group.intervals["gemm"].low <= group.constants["gemm"] <= group.intervals["gemm"].high


def test_a_fit_finds_the_constants_that_made_the_steps(tmp_path):
    rows = [{"id": f"r{mbs}", "gpus": "8", "mbs": mbs, "gbs": "64"} for mbs in ("1", "2", "4")]
    steps = predict(read_rows(written(tmp_path, *rows))).seconds({"gemm": 1.3})
    made = [row | {"step_s": repr(float(step))} for row, step in zip(rows, steps, strict=True)]
    report = compare(read_rows(written(tmp_path, *made)), calibrate=True)
    assert report.groups[0].constants is not None
    assert report.groups[0].constants["gemm"] == pytest.approx(1.3, abs=0.01)
    assert report.total.fitted_median_rel_error is not None and report.total.fitted_median_rel_error < 0.005


def test_copies_of_a_run_determine_no_constant(tmp_path):
    rows = [{"id": f"r{number}", "gpus": "8", "gbs": "64", "step_s": "9"} for number in range(20)]
    report = compare(read_rows(written(tmp_path, *rows)), calibrate=True)
    assert report.groups[0].intervals is not None
    assert not any(interval.determined for interval in report.groups[0].intervals.values())
