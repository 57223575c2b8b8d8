"""A plan as an `Algorithm`: one Chakra trace per rank.

A thread block is a chain of nodes. What it stores on another rank is a send in the chain, and a receive there that
belongs to no block; a signal is a message of 0 bytes; a wait joins the chain and the signal that it waits for. Nodes of
a rank also wait for those that used their cells before, which a plan without races orders in any case.

The metadata of rank 0 hold the plan, so that `recorded_plan` gives it back.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from math import ceil
from typing import Unpack

import numpy as np

from astrasim_py.builders.draft import finish
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.mscclpp import limits
from astrasim_py.mscclpp.execution import Execution
from astrasim_py.mscclpp.findings import in_words
from astrasim_py.mscclpp.ir import (
    COLLECTIVES,
    INPUT,
    OUTPUT,
    Plan,
    iterations_by_byte,
    iterations_of_longest,
    pipelined,
)
from astrasim_py.mscclpp.lowering import Lowering
from astrasim_py.mscclpp.reader import parse_plan, read_plan
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.interchange import Promises, promised
from astrasim_py.program.traces import Traces

#: Iterations of the longest pipeline, at most.
MAX_ITERATIONS = 2**12
#: Metadata that hold the plan.
PLAN, ITERATIONS = "mscclpp_plan", "mscclpp_iterations"


def read_algorithm(
    path: str | os.PathLike[str], collective: str | None = None, **promises: Unpack[Promises]
) -> Algorithm:
    """Read an algorithm from an execution plan; `made_for`: full buffer, bytes, for which pipelines are unrolled.

    Raises AlgorithmError: an ill-formed plan, one that never ends, or one of another collective.
    """
    size = promises.pop("made_for", None)
    return promised(algorithm_of(read_plan(path), size), collective, **promises)


def collective_of(plan: Plan) -> tuple[str, int]:
    """The collective that a plan promises, and the chunks of its full buffer; `CUSTOM` where they do not fit."""
    name = COLLECTIVES.get(plan.collective, CUSTOM)
    sizes = {(gpu.chunks[INPUT], gpu.chunks[OUTPUT] or gpu.chunks[INPUT] * plan.in_place) for gpu in plan.gpus}
    promise = promise_of(name)
    most = max(max(size) for size in sizes)
    full = next(iter(sizes))[promise.gathers]
    expected = (promise.input_chunks(plan.ranks, full), promise.output_chunks(plan.ranks, full))
    fits = sizes == {expected} and not (promise.sharded and full % plan.ranks)
    return (name, full) if name != CUSTOM and full and fits else (CUSTOM, max(most, 1))


def iterations_for(plan: Plan, size: int | None) -> int:
    """Iterations of the longest pipeline for a full buffer of `size` bytes, MAX_ITERATIONS at most; without one, so
    many that the shortest one has 1."""
    return min(_iterations(plan, size), MAX_ITERATIONS)


def _iterations(plan: Plan, size: int | None) -> int:
    if size is None or not pipelined(plan):
        return iterations_of_longest(plan, 1)
    _, chunks = collective_of(plan)
    return max(1, ceil(max(iterations_by_byte(plan)) * size / chunks))


def doubts_of_size(plan: Plan, size: int) -> list[str]:
    """Why the time of a full buffer of `size` bytes may not be that of an executor."""
    collective, chunks = collective_of(plan)
    doubts = []
    if collective != CUSTOM and size % (chunks * plan.alignment):
        doubts.append(f"executors refuse {size:,} B, which are not {chunks} equal chunks of whole {plan.alignment} B")
    iterations = _iterations(plan, size)
    if iterations > MAX_ITERATIONS:
        doubts.append(f"its pipelines have {iterations:,} iterations, and {MAX_ITERATIONS:,} longer ones are simulated")
    return doubts


def algorithm_of(plan: Plan, size: int | None = None) -> Algorithm:
    """The algorithm that a plan states. `size`: full buffer, bytes, for which its pipelines are unrolled.

    Raises AlgorithmError: an ill-formed plan, or one that never ends.
    """
    problems = limits.ill_formed(plan)
    if problems:
        raise AlgorithmError("", problems[0], "see verify")
    return _lowered(plan, iterations_for(plan, size))


def _lowered(plan: Plan, iterations: int) -> Algorithm:
    try:
        run = Execution(plan, iterations=iterations)
    except ValueError as error:
        raise AlgorithmError(plan.place, str(error), "use a smaller size or fewer chunks") from None
    if run.stuck:
        longest = f" with {iterations} iterations of its pipelines" if pipelined(plan) else ""
        problem = f"never ends{longest}: {in_words(run.stuck[0].step)}: {run.stuck[0].lacks}"
        raise AlgorithmError(plan.place, problem, "see verify")
    collective, chunks = collective_of(plan)
    draft = Lowering(plan, run, collective, chunks * run.cells.parts).draft()
    made = finish(
        draft, (plan.name or "plan")[:256], collective, source=plan.source, in_place=plan.in_place,
        protocol=plan.protocol,
    )  # fmt: skip
    metadata = {
        "collective": collective,
        "algorithm": made.name,
        **made.stated(),
        PLAN: json.dumps(plan.document, separators=(",", ":")),
        ITERATIONS: iterations,
        # As of programs of MSCCL-IR: sizes for which executors take it, both included.
        "msccl_min_bytes": plan.least or None,
        "msccl_max_bytes": plan.most if plan.most < 2**63 else None,
        "msccl_outofplace": int(not plan.in_place),
    }
    first = made.traces[0].replace(metadata=[(k, v) for k, v in metadata.items() if v is not None])
    return replace(made, traces=Traces.of((first, *list(made.traces)[1:]), searched=True))


def recorded_plan(algorithm: Algorithm) -> Plan | None:
    """The plan that an algorithm was read from; None where there is none, or where its nodes were changed since."""
    if not algorithm.given:
        return None
    head = algorithm.given[0]
    text, iterations = head.meta(PLAN), head.meta(ITERATIONS)
    if not isinstance(text, str) or type(iterations) is not int or not 1 <= iterations <= MAX_ITERATIONS:
        return None
    try:
        plan = parse_plan(text.encode(), algorithm.source or algorithm.name)
        if limits.ill_formed(plan):
            return None
        again = _lowered(plan, iterations)
    except (UnicodeEncodeError, AlgorithmError):
        return None
    return plan if _same(again, algorithm) else None


def _same(ours: Algorithm, other: Algorithm) -> bool:
    a, b = ours.program, other.program
    if ours.ranks != other.ranks or len(a) != len(b) or not np.array_equal(a.type, b.type):
        return False
    names = a.columns.keys() | b.columns.keys()
    same = all(np.array_equal(a.column(name), b.column(name)) for name in names if a.has(name) or b.has(name))
    return same and np.array_equal(a.ptr, b.ptr) and np.array_equal(np.sort(a.parents), np.sort(b.parents))
