"""`validate`: equal means equal to the nanosecond, what ASTRA-sim cannot run must fail here, and bad CSVs are told."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.errors import AlgorithmError, UsageError
from astrasim_py.validation import validate as module
from astrasim_py.validation.cases import read_cases
from astrasim_py.validation.validate import HOPS, ROUNDS, closed_forms, find, packaged_items, validate

HEADING = (
    "set,backend,network,npus,workload,collective,algorithm,size_bytes,splits,system,finished_npus,t_max_ns,t_min_ns,"
    "t_ns_per_npu,exposed_comm_ns_per_npu,outcome,memory,flags"
)
GOOD = {
    "set": "a",
    "backend": "congestion_unaware",
    "network": "n.yml",
    "npus": "2",
    "workload": "w",
    "system": "s.json",
    "t_ns_per_npu": "5;6",
    "exposed_comm_ns_per_npu": "5",
    "outcome": "ok",
}


@pytest.fixture
def folder(tmp_path):
    """A folder with one file of each kind; their content is not read by these tests."""
    for name in ("n.yml", "s.json", "groups.json"):
        (tmp_path / name).touch()
    (tmp_path / "workloads_same_on_every_rank").mkdir()
    (tmp_path / "workloads_same_on_every_rank" / "w.et").touch()
    return tmp_path


def written(folder, *rows, heading=HEADING):
    lines = [",".join((GOOD | row).get(name, "") for name in heading.split(",")) for row in rows]
    path = folder / "cases.csv"
    path.write_text("\n".join([heading, *lines, ""]), "utf-8")
    return path


# -- the CSV ----------------------------------------------------------------------------------------------------
def test_a_row_is_read(folder):
    row = {"flags": '"--num-queues-per-dim 2 --comm-group-configuration=groups.json --injection-scale=0.5"'}
    (case,) = read_cases(written(folder, row))
    assert case.place.endswith("cases.csv:2")
    assert (case.npus, case.times, case.exposed, case.finishes) == (2, (5, 6), (5, 5), True)
    assert case.workload == (folder / "workloads_same_on_every_rank" / "w.et",) * 2
    assert (case.queues_per_dim, case.groups, case.injection_scale) == (2, folder / "groups.json", 0.5)
    assert (case.rendezvous, case.memory, case.judged) == (False, None, True)


def test_files_of_each_rank_come_first(folder):
    own = folder / "workloads" / "wl_w_2npus"
    own.mkdir(parents=True)
    (case,) = read_cases(written(folder, {}))
    assert case.workload == (own / "wl_w.0.et", own / "wl_w.1.et")


def test_the_order_of_columns_is_free_more_are_ignored_and_sets_are_chosen(folder):
    heading = ",".join(reversed([*HEADING.split(","), "colour"]))
    path = written(folder, {}, {"set": "b"}, {}, heading=heading)
    assert [case.set for case in read_cases(path)] == ["a", "b", "a"]
    assert [case.place[-2:] for case in read_cases(path, ["a"])] == [":2", ":4"]
    with pytest.raises(UsageError, match=r'no set "c".*a, b'):
        read_cases(path, ["a", "c"])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"npus": "two"}, ':2: npus: "two" is no whole number'),
        ({"npus": "0"}, ":2: npus: 0 is out of range"),
        ({"npus": "9" * 3000}, ":2: npus: "),
        ({"set": "s" * 3000, "outcome": "o" * 3000}, ":2: outcome: "),
        ({"backend": "ns3"}, ':2: backend: "ns3" is unknown'),
        ({"outcome": "fine"}, ':2: outcome: "fine" is unknown'),
        ({"set": ""}, ":2: set: is empty"),
        ({"network": "m.yml"}, ':2: network: there is no file "m.yml"'),
        ({"system": ""}, ':2: system: there is no file ""'),
        ({"memory": "m.json"}, ':2: memory: there is no file "m.json"'),
        ({"network": "m" * 3000}, ":2: network: there is no file"),
        ({"system": "a\0b"}, ":2: system: there is no file"),
        ({"workload": "v" * 3000}, ":2: workload: there is neither"),
        ({"workload": "v"}, ":2: workload: there is neither workloads/wl_v_2npus/"),
        ({"workload": "../w"}, ':2: workload: "../w" is no name of a workload'),
        ({"t_ns_per_npu": "1;2;3"}, ":2: t_ns_per_npu: 3 values for 2 NPUs"),
        ({"t_ns_per_npu": ""}, ':2: t_ns_per_npu: "" is no whole number'),
        ({"exposed_comm_ns_per_npu": "-1"}, ':2: exposed_comm_ns_per_npu: "-1" is no whole number'),
        ({"flags": f"--{'w' * 3000}"}, ":2: flags: --www"),
        ({"flags": f"--injection-scale={'9' * 3000}"}, ":2: flags: --injection-scale: "),
        ({"flags": "--wonder=1"}, ":2: flags: --wonder: is no flag"),
        ({"flags": "--num-queues-per-dim"}, ":2: flags: --num-queues-per-dim: has no value"),
        ({"flags": "--injection-scale=nan"}, ':2: flags: --injection-scale: "nan" is no scale'),
        ({"flags": "--rendezvous-protocol=1"}, ':2: flags: --rendezvous-protocol: "1" is neither'),
        ({"flags": "--comm-group-configuration=g.json"}, ':2: flags: there is no file "g.json"'),
        ({"flags": "--a='"}, ":2: flags: cannot be read"),
    ],
)
def test_a_bad_row_is_named(folder, capsys, row, said):
    code = main(["measured", "validate", "cases", str(written(folder, row))])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and f"cases.csv{said}" in err and len(err) < 600


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ":1: is empty"),
        (b"set,backend\n", ':1: there is no column "network"'),
        (HEADING.encode() + b",set\n", ':1: the column "set" appears twice'),
        (
            b"flag," + HEADING.encode().replace(b",flags", b"") + b"\n",
            ':1: the column "flag" is unknown; perhaps flags',
        ),
        (HEADING.encode() + b"\n", ":1: has no row"),
        (HEADING.encode() + b"\na,b\n", ":2: 2 cells under 18 headings"),
        (HEADING.encode() + b'\n"a"b,c\n', ":2: is no CSV"),
        (HEADING.encode() + b"\n\xff\n", ":2: is not UTF-8"),
        (b"\x00" * 100, ":1: "),
    ],
)
def test_what_is_no_csv_is_named(tmp_path, capsys, content, said):
    path = tmp_path / "cases.csv"
    path.write_bytes(content)
    assert main(["measured", "validate", "cases", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"cases.csv{said}" in err


def test_a_missing_csv_and_bad_numbers_of_jobs_are_told(tmp_path, capsys):
    assert main(["measured", "validate", "cases", str(tmp_path / "no.csv")]) == 2
    assert main(["measured", "validate", "cases", "--jobs", "0"]) == 2
    assert main(["measured", "validate", "cases", "--only", "wonder"]) == 2
    assert capsys.readouterr().err.count("\n") == 3


# -- judging ----------------------------------------------------------------------------------------------------
@pytest.fixture
def ours(monkeypatch):
    """What a run of each case gives instead of a run: figures, why it is stuck, or an exception."""
    results = {}

    def run(case, engine):
        result = results[int(case.place.rpartition(":")[2])]
        if isinstance(result, Exception):
            raise result
        return ((), (), "simpy", result) if isinstance(result, str) else (*result, "simpy", "")

    monkeypatch.setattr(module, "_run", run)
    return results


def test_one_nanosecond_off_is_off(folder, ours):
    path = written(folder, {}, {}, {})
    ours.update({2: ((5, 6), (5, 5)), 3: ((5, 7), (5, 5)), 4: ((5, 6), (5, 4))})
    report = validate(read_cases(path), jobs=1)
    assert [finding.exact for finding in report.findings] == [True, False, False]
    assert [finding.rel_error for finding in report.findings] == [0.0, 1 / 6, 1 / 5]
    assert "here 7 ns, should be 6 ns (time of rank 1)" in report.findings[1].note
    assert "here 4 ns, should be 5 ns (exposed communication of rank 1)" in report.findings[2].note
    (group,) = report.groups
    assert (group.cases, group.exact, group.worst_rel_error) == (3, 1, 1 / 5)
    assert (group.median_rel_error, report.passes) == (1 / 6, False)


def test_what_does_not_finish_must_not_finish_here(folder, ours):
    unfinished = {"outcome": "does not finish", "t_ns_per_npu": "", "exposed_comm_ns_per_npu": ""}
    path = written(folder, unfinished, unfinished, unfinished, {}, unfinished, {})
    problem = AlgorithmError("x", "cannot run")
    ours.update({2: problem, 3: ((5, 6), (5, 5)), 4: ZeroDivisionError(), 5: problem, 6: "stuck", 7: "stuck"})
    report = validate(read_cases(path), jobs=1)
    assert [finding.exact for finding in report.findings] == [True, False, False, False, True, False]
    assert (report.findings[5].note, report.engines) == ("stuck", {"simpy": 3})
    assert report.findings[0].rel_error is None
    assert "here it takes 6 ns" in report.findings[1].note
    assert "a defect of astrasim_py" in report.findings[2].note
    assert report.findings[3].note == "x: cannot run"


def test_the_unofficial_backend_never_fails(folder, ours, capsys):
    unofficial = {"backend": "congestion_aware_multidim"}
    path = written(folder, {}, unofficial)
    ours.update({2: ((5, 6), (5, 5)), 3: ((50, 6), (5, 5))})
    assert main(["measured", "validate", "cases", str(path), "--jobs", "1", "--format", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["cases"], out["exact"], out["worst_rel_error"]) == (1, 1, 0.0)
    assert [(group["judged"], group["exact"]) for group in out["groups"]] == [(True, 1), (False, 0)]
    assert [row["place"][-2:] for row in out["off"]] == [":3"]


def test_exit_code_table_and_json(folder, ours, capsys):
    path = written(folder, {}, {"set": "b"})
    ours.update({2: ((5, 6), (5, 5)), 3: ((5, 6), (5, 5))})
    assert main(["measured", "validate", "cases", str(path), "--jobs", "1"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert " ".join(table).split()[-10:] == ["b", "1", "1", "0", "0", "all", "2", "2", "0", "0"]
    assert last == "engine: simpy"
    ours[3] = ((5, 9), (5, 5))
    assert main(["measured", "validate", "cases", str(path), "--jobs", "1"]) == 1
    assert "cases.csv:3: b: n w: here 9 ns, should be 6 ns" in capsys.readouterr().out
    assert main(["measured", "validate", "cases", str(path), "--jobs", "1", "--only", "a"]) == 0
    capsys.readouterr()
    assert main(["measured", "validate", "cases", str(path), "--jobs", "1", "--format", "json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert set(out) == {"cases", "exact", "median_rel_error", "worst_rel_error", "engines", "groups", "off", "measured"}
    assert set(out["groups"][0]) == {"group", "judged", "cases", "exact", "median_rel_error", "worst_rel_error"}
    assert (out["engines"], out["off"][0]["engine"]) == ({"simpy": 2}, "simpy")
    assert (out["cases"], out["exact"], out["median_rel_error"], out["worst_rel_error"]) == (2, 1, 0.25, 0.5)


# -- the packaged set -------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_closed_forms_cover_every_kind_and_hold():
    forms = list(closed_forms())
    assert {(form.algorithm, form.collective) for form in forms} == set(ROUNDS)
    assert {(form.shape, form.model) for form in forms} == {
        (shape, model) for shape in HOPS for model in NETWORK_MODELS
    }
    report = validate(forms, engine="both", jobs=1)
    assert report.passes and report.judged.worst_rel_error == 0 and report.judged.cases == len(forms) > 250


def test_a_closed_form_that_does_not_hold_is_off(monkeypatch):
    form = next(closed_forms())
    monkeypatch.setattr(type(form), "expected_ps", lambda self: 1)
    finding = find(form)
    assert not finding.exact and "should be 1 ps" in finding.note


@pytest.mark.slow
def test_the_packaged_figures_are_reproduced_wherever_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with packaged_items() as items:
        sets = Counter(item.set for item in items)
        assert min(sets.values()) >= 3 and sets["closed_forms"] > 250
        folder = items[-1].folder
        report = validate([item for item in items if item.set != "closed_forms"], engine="both", jobs=2)
    assert not folder.exists() and not os.listdir(tmp_path)
    assert report.off == ()
    assert report.judged.cases > 100


#: Sets that run whole, and of the others every so many-th row.
SMALL = ("workloads_8npus", "custom_ring_small", "two_coll_custom_8npus")
EVERY = 31
LARGE = 16


@pytest.mark.slow
def test_recorded_runs_are_reproduced_to_the_nanosecond(golden):
    path = golden / "astra_sim" / "cases.csv"
    cases = read_cases(path)
    chosen = [case for case in cases if case.set in SMALL and case.judged]
    chosen += [case for case in cases if case.set not in SMALL and case.npus <= LARGE][::EVERY]
    report = validate(chosen, engine="both", jobs=2)
    assert [(finding.place, finding.note) for finding in report.off] == []
    assert report.judged.cases > 200 and len(report.groups) >= 8
