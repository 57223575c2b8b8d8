"""92 real programs, with what an independent verifier of others found in them."""

from __future__ import annotations

import json
import re

import pytest
from oracle import msccl_oracle as oracle

from astrasim_py.msccl.ir import steps_from
from astrasim_py.msccl.to_traces import algorithm_of
from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_reader import read_program
from astrasim_py.verification.verifier import verify

#: The one program that is ill-formed: 14 chunks, 8 ranks.
ILL_FORMED = "ns3_all2all.xml"


@pytest.fixture(scope="module")
def rows(golden):
    """(path, row of the table) of every file."""
    table = json.loads((golden / "msccl" / "verdicts.json").read_text())
    assert len(table) == 92
    return [(golden / "msccl" / row["file"], row) for row in table]


def disagreements(name, row, found):
    """What a verdict, the product's or the oracle's, says otherwise than the table; null fields say nothing.

    `found` has min_slots, terminates, wrong_cells (None: unknown), racy, order_consistent.
    """
    expected = {"order_consistent": row["order_consistent"]}
    if row["minslots"] is not None:
        expected["min_slots"] = row["minslots"]
    if row["races"] is not None:
        expected["racy"] = row["races"] > 0
    if "executes" not in row["verdict"]:
        wrong = re.search(r"WRONG \((\d+)/", row["verdict"])
        expected["wrong_cells"] = int(wrong[1]) if wrong else 0
    expected["terminates"] = "deadlock" not in row["verdict"]
    expected["well_formed"] = name != ILL_FORMED
    return [(name, key, value, found[key]) for key, value in expected.items() if found[key] != value]


def product(verdict):
    return {
        "min_slots": verdict.min_slots,
        "terminates": verdict.terminates,
        "wrong_cells": verdict.wrong_cells,
        "racy": None if verdict.race_free is None else not verdict.race_free,
        "order_consistent": verdict.order_consistent,
        "well_formed": verdict.well_formed,
    }


@pytest.fixture(scope="module")
def verdicts(rows):
    """Name -> the product's verdict on the XML."""
    found = {}
    for path, _ in rows:
        program = read_program(path)
        noted = findings(program)
        found[path.name] = verify(steps_from(program), problems=noted.problems, warnings=noted.warnings)
    return found


@pytest.mark.slow
def test_verdicts_equal_the_table(rows, verdicts):
    wrong = [d for path, row in rows for d in disagreements(path.name, row, product(verdicts[path.name]))]
    assert not wrong


@pytest.mark.slow
def test_programs_named_after_a_collective_are_right(rows, verdicts):
    """Custom programs whose name says what they do; alltonext_forward in place and backward_N4 race."""
    custom = {path.name: verdicts[path.name] for path, row in rows if row["coll"] == "custom"}
    right = sorted(name for name, verdict in custom.items() if verdict.correct and verdict.race_free)
    assert right == [
        "mt_alltonext_backward_N2_i1.xml",
        "synth_Broadcast.n8.root0-DGX1-steps2.xml",
        "synth_Reduce.n4.root0-Ring.n4-steps2.xml",
    ]
    assert custom["mt_simple_custom_collective.xml"].correct is None


def test_failures_have_a_problem_and_a_counterexample(rows, verdicts):
    for path, row in rows:
        verdict = verdicts[path.name]
        if "WRONG" in row["verdict"] or "deadlock" in row["verdict"]:
            assert verdict.problem and verdict.counterexample and verdict.counterexample["text"], path.name
        elif row["verdict"].startswith("correct"):
            assert verdict.ok and not verdict.problems, (path.name, verdict.problems)


@pytest.mark.slow
def test_verdicts_survive_the_way_through_traces(rows, verdicts):
    names = ("terminates", "correct", "race_free", "order_consistent", "slots", "min_slots", "min_slots_large")
    for path, _ in rows:
        if path.name == ILL_FORMED:
            continue
        other, verdict = verify(algorithm_of(read_program(path))), verdicts[path.name]
        assert other.well_formed, path.name
        for name in (*names, "wrong_cells", "races"):
            assert getattr(other, name) == getattr(verdict, name), (path.name, name)


@pytest.mark.slow
def test_oracle_equals_the_table(rows):
    """The oracle that other tests rely on, on all programs of up to 1,000 steps."""
    wrong, small = [], [(path, row) for path, row in rows if row["steps"] <= 1000]
    assert len(small) > 70
    for path, row in small:
        judged = oracle.judge(path.read_text(), schedules=2, large=False)
        found = {
            "min_slots": judged.min_slots,
            "terminates": judged.terminates,
            "wrong_cells": judged.wrong_cells and judged.wrong_cells[0],
            "racy": judged.races > 0,
            "order_consistent": judged.order_consistent,
            "well_formed": judged.well_formed,
        }
        wrong += disagreements(path.name, row, found)
    assert not wrong
