"""The oracle of MSCCL++ plans agrees with the labels of public plans, and sees what only later calls or sizes show."""

from __future__ import annotations

import json

import pytest
from oracle.mscclpp_cells import Shape
from oracle.mscclpp_oracle import Oracle

#: Plans that end without proof that the source of a port put was read: the caller may overwrite it before.
UNREAD = {"multi_node__send_recv"}


@pytest.fixture(scope="module")
def corpus(golden):
    return golden / "mscclpp"


@pytest.fixture(scope="module")
def load(corpus):
    return lambda name: json.loads((corpus / "plans" / f"{name}.json").read_text())


def kinds(oracle, plan, **options):
    return {outcome.kind for outcome in oracle.outcomes(plan, **options)}


def expected(label):
    """Kinds of outcomes beside right ones."""
    if label["unknown_op"]:
        return {"refused"}
    if label["deadlock"]:
        return {"stuck"}
    bad = {"wrong"} if label["races"] or label["entry"] else set()
    ends = label["exit_writes"] or label["exit_reads"] or label["plan"] in UNREAD
    return bad | {"exit"} if ends else bad


def test_runs_public_plans_as_labelled(corpus, load):
    labels = json.loads((corpus / "labels.json").read_text())
    assert len(labels) > 40
    for label in labels:
        plan = load(label["plan"])
        assert kinds(Oracle(plan), plan) - {"right"} == expected(label), label["plan"]


def test_finds_the_cells_that_race_in_a_public_plan(load):
    plan = load("repo__reduce_tbg")
    oracle = Oracle(plan)
    chunk = 2 * oracle.shape.chunk
    places = {outcome.place for outcome in oracle.outcomes(plan) if outcome.kind == "wrong"}
    cells = {int(place.split("'i', ")[1].split(")")[0]) for place in places}
    # The blocks share two chunks in another way than single ones: half 1 of chunk 0, half 0 of chunk 1.
    assert {cell // (chunk // 2) for cell in cells} <= {1, 2}
    assert places


def test_needs_double_scratch_where_nothing_else_holds_back_the_next_call(load):
    for name, needed in (("single_node__allgather_pkt_rppkt", True), ("repo__reduce_pack_tbg", False)):
        plan = load(name)
        oracle = Oracle(plan, calls=2)
        assert kinds(oracle, plan) == {"right"}
        single = kinds(oracle, plan | {"use_double_scratch_buffer": False}, until_bad=True)
        assert ("stuck" in single) == needed, name


def test_an_unbalanced_channel_breaks_the_next_call(load):
    plan = load("single_node__allgather")
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    ops.insert(7, next(op for op in ops if op["name"] == "signal"))
    assert kinds(Oracle(plan), plan) == {"right"}
    assert "wrong" in kinds(Oracle(plan, calls=2), plan)


def test_sees_scratch_that_a_pipeline_uses_again_too_early(load):
    """Of 64 MiB each of 4 chunks has 16 MiB, 32 iterations of 512 KiB: what this plan's semaphore starts with."""
    plan = load("repo__allreduce_pipeline")
    for iterations, right in ((32, True), (31, False)):
        shape = Shape(threads=5, chunk=33, iteration=1, wrap=iterations)
        assert (kinds(Oracle(plan, shape), plan, until_bad=True) == {"right"}) == right
    unguarded = load("single_node__allreduce_pipeline")
    shape = Shape(threads=5, chunk=5, iteration=1, wrap=4)
    assert "wrong" in kinds(Oracle(unguarded, shape), unguarded)
