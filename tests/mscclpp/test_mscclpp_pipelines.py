"""Pipelines of different lengths: each has the iterations that its chunks and unit ask for."""

from __future__ import annotations

import pytest

from astrasim_py.mscclpp.reader import plan_of
from astrasim_py.mscclpp.to_traces import algorithm_of, iterations_for
from astrasim_py.mscclpp.verify import verify_plan
from astrasim_py.verification.verifier import verify

UNIT = 4096


def copy(source, target, index, size):
    def reference(kind):
        return [{"type": kind, "index": index, "size": size}]

    return {"name": "copy", "src_buff": reference(source), "dst_buff": reference(target)}


def pipeline(chunks, *ops, unit=UNIT):
    return {"name": "pipeline", "iter_context": {"unit_size": unit, "num_chunks": chunks}, "ops": list(ops)}


def handed_over(acquires, unit=UNIT):
    """A block copies two chunks to scratch, unit by unit; another takes the first ones, `acquires` a unit, and then the
    other ones."""
    nop, release, acquire = (
        {"name": "nop"},
        *({"name": f"sem_{name}", "semaphore_ids": [0]} for name in ("release", "acquire")),
    )
    first = pipeline(2, copy("i", "s", 0, 2), nop, release, unit=unit)
    others = [pipeline(1, *[acquire] * count, nop, copy("s", "o", k, 1), nop) for k, count in enumerate(acquires)]
    gpu = {
        "id": 0,
        "input_chunks": 2,
        "output_chunks": 2,
        "scratch_chunks": 2,
        "threadblocks": [{"id": 0, "ops": [first]}, {"id": 1, "ops": others}],
        "semaphores": [{"init_value": 0}],
    }
    names = {"name": "copy", "collective": "allreduce", "protocol": "Simple", "inplace": False}
    return plan_of({**names, "gpus": [gpu]})


@pytest.mark.parametrize(("acquires", "unit", "ends"), [
    ((1, 1), UNIT, True), ((1, 0), UNIT, False), ((2, 0), UNIT, True), ((1, 2), UNIT, False),
    ((1, 0), 2 * UNIT, True), ((2, 2), UNIT // 2, True), ((1, 1), UNIT // 2, False),
])  # fmt: skip
def test_blocks_hand_over_as_many_units_as_they_have(acquires, unit, ends):
    verdict = verify_plan(handed_over(acquires, unit))
    assert verdict.terminates is ends, verdict.problems
    if ends and acquires[1]:
        assert verdict.passes and verdict.correct


@pytest.mark.parametrize("units", [1, 2, 3])
def test_traces_have_these_units(units):
    plan, size = handed_over((1, 1)), 2 * units * UNIT
    assert (iterations_for(plan, None), iterations_for(plan, size)) == (2, 2 * units)
    algorithm = algorithm_of(plan, size)
    assert (algorithm.traces[0].column("comp_op") > 0).sum() == 4 * units
    assert verify(algorithm).correct
