"""Verdicts of public plans, as they were found by hand and by another verifier."""

from __future__ import annotations

import json

import pytest

from astrasim_py.mscclpp.execution import Execution
from astrasim_py.mscclpp.ir import walk
from astrasim_py.mscclpp.operations import KINDS
from astrasim_py.mscclpp.reader import read_plan
from astrasim_py.mscclpp.verify import verify_plan


@pytest.fixture(scope="module")
def labels(golden):
    return json.loads((golden / "mscclpp" / "labels.json").read_text())


def plan_of(golden, label):
    return read_plan(golden / "mscclpp" / "plans" / f"{label['plan']}.json")


def raced(races):
    """The cells that race, with the two thread blocks."""
    return {
        (w["rank"], w["buffer"], w["chunk"], part, frozenset([(r[0], r[1]), (r[2], r[3])]))
        for *r, w in races
        for part in w["parts"]
    }


def test_verdicts_are_as_labelled(golden, labels):
    for label in labels:
        verdict = verify_plan(plan_of(golden, label))
        facts = verdict.facts
        assert list(facts.unknown_op) == label["unknown_op"], label["plan"]
        assert verdict.well_formed is not bool(label["unknown_op"])
        if label["unknown_op"]:
            continue
        right = {"right": True, "wrong": False}.get(label["data_flow"])
        assert verdict.correct is right or label["plan"] == "repo__allreduce_pipeline", label["plan"]
        if right is not None:
            assert (facts.cells, facts.wrong_cells) == (label["cells"], label["wrong_cells"]), label["plan"]
        stuck = [(one.rank, one.block, one.op_index) for one in facts.deadlock]
        assert stuck == [(d["rank"], d["block"], d["op_index"]) for d in label["deadlock"]], label["plan"]
        assert verdict.terminates is not bool(stuck)
        ends = ("rank", "block", "against_rank", "against_block")
        ours = raced([r.rank, r.block, r.against_rank, r.against_block, vars_of(r.where)] for r in facts.races)
        assert ours == raced([*(r[end] for end in ends), r["where"]] for r in label["races"]), label["plan"]
        for ours_, theirs in (
            (facts.entry, "entry"),
            (facts.exit_writes, "exit_writes"),
            (facts.exit_reads, "exit_reads"),
        ):
            assert bool(ours_) is bool(label[theirs]), (label["plan"], theirs)
        assert facts.undefined_reads == label["undefined_reads"], label["plan"]
        # Ends that relaxed signals order are warnings; what is stuck has no end.
        ends = 0 if stuck else facts.exit_writes + facts.exit_reads - facts.weak_exits
        bad = facts.races or facts.later_races or facts.entry or ends
        assert verdict.race_free is not bool(bad), label["plan"]


def vars_of(where):
    return {name: getattr(where, name) for name in ("rank", "buffer", "chunk", "parts")}


def test_the_order_of_execution_does_not_matter(golden, labels):
    """Not for races, values and ends: what comes first is another matter than what is ordered."""
    for label in labels:
        plan = plan_of(golden, label)
        if any(operation.name not in KINDS for *_, operation in walk(plan)):
            continue
        runs = [Execution(plan, backwards=backwards) for backwards in (False, True)]
        outcomes = []
        for run in runs:
            pairs = {
                (race.cell, frozenset(run.step_of(access)[:2] for access in (race.first, race.second)))
                for race in run.races
            }
            stuck = {one.step for one in run.stuck}
            contents = [sorted(run.values.contributions(value).items()) for value in run.contents]
            outcomes.append((pairs, stuck, contents, {(o.kind, o.cell) for o in run.outside}))
        assert outcomes[0] == outcomes[1], label["plan"]


def test_scratch_that_is_used_again(golden, labels):
    """64 MiB of 4 chunks hold 32 units of 512 KiB, as many as a semaphore of `repo__allreduce_pipeline` lets begin. The
    other pipeline has no such semaphore, and 32 units of 1 MiB of 2 chunks.
    """
    warned = {
        label["plan"]
        for label in labels
        for line in verify_plan(plan_of(golden, label)).warnings
        if "from 33 iterations of its pipelines scratch is used again: race" in line
    }
    assert warned == {"single_node__allreduce_pipeline"}
