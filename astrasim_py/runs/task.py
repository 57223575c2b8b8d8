"""One point: its identity, its simulation, its folder with what the run cost, and its result read back."""

from __future__ import annotations

import dataclasses
import os
import platform
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from astrasim_py.core import compiling
from astrasim_py.core.by_need import load
from astrasim_py.core.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERNAL,
    EXIT_OK,
    EXIT_STUCK,
    EXIT_USAGE,
    AstraError,
    FoldError,
    worst,
)
from astrasim_py.core.records import Records
from astrasim_py.core.registry import own_failure, stops
from astrasim_py.engine.auto import take_engine
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results import store, stored_points
from astrasim_py.results.model import Manifest, Row, RunCost, TrainedJob
from astrasim_py.results.store import RunOptions
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs.hints import hints
from astrasim_py.runs.summary import files_of, summary_of
from astrasim_py.runs.unused import Use, unused
from astrasim_py.scenario.expand import Point
from astrasim_py.system.plan import Plan
from astrasim_py.system.plan_notes import plan_notes
from astrasim_py.system.problem import Job, Problem

if TYPE_CHECKING:
    from astrasim_py.runs.jobs import Alone

_PACKAGES = ("astrasim-py", "numpy", "simpy", "numba")


@cache
def package_version(name: str = "astrasim-py") -> str:
    """Version of an installed package; ``0`` where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "0"


class Usage:
    """Begins to measure when it is made; compiling, and waiting for another process that does so, is in no figure."""

    def __init__(self) -> None:
        self.began = time.time()
        self.clock, self.cpu_s = compiling.clock(), compiling.cpu_s()

    def cost(self, records: Records, source: str, *, allow_outside: bool = False, allow_code: bool = False) -> RunCost:
        """The content of ``run.json``; `source`: the folder that names in the point are relative to."""
        return RunCost(
            host=socket.gethostname(),
            platform=platform.platform(),
            python=sys.version.split()[0],
            versions={name: package_version(name) for name in _PACKAGES},
            source=os.path.abspath(source),
            allow_outside=allow_outside,
            allow_code=allow_code,
            started=_decimal(self.began),
            finished=_decimal(time.time()),
            wall_s=_decimal(compiling.clock() - self.clock),
            total_cpu_s=_decimal(compiling.cpu_s() - self.cpu_s),
            cpu_s=_decimal(records.cpu_s),
        )


def _decimal(seconds: float) -> Decimal:
    return Decimal(f"{seconds:.6f}")


def store_run(
    folder: Path,
    plan: Plan,
    records: Records,
    options: store.RunOptions,
    usage: Usage,
    *,
    row: Row,
    facts: Mapping[str, Any],
    source: Mapping[str, Any],
    warnings: Iterable[str] = (),
    fields: Mapping[str, Any] | None = None,
    replace: bool = False,
    more: Mapping[str, Iterable[bytes]] | None = None,
) -> StoredPoint:
    """Store a finished simulation. `row`: what is known of the point. `facts`: for the manifest. `source`: for
    ``run.json``. `fields`: for the summary. `more`: files.
    """
    summary = dataclasses.replace(summary_of(plan, records, row, warnings), **(fields or {}))
    files = files_of(plan, records, summary, timeline_of=options.timeline, with_collectives=options.collectives)
    files |= more or {}
    status = records.outcome.status
    manifest = Manifest(
        version=package_version(),
        folder=folder.name,
        status=status,
        exit_code=EXIT_STUCK if status != "done" else EXIT_INTERNAL if summary.explanation else EXIT_OK,
        engine=records.engine,
        level=options.level,
        timeline=options.timeline if "timeline.json" in files else False,
        limits=dict(options.limits),
        collectives=options.collectives,
        **facts,
    )
    cost = usage.cost(records, **source)
    folder, manifest = store.write_point(folder, files, manifest, cost, options=options, replace=replace)
    return StoredPoint(folder=folder, manifest=manifest, summary=summary, cost=cost)


def missing_timeline(options: store.RunOptions, manifest: Manifest) -> str:
    """Why a stored point has not the timeline that was asked for; empty if it has."""
    if not options.timeline or manifest.timeline:
        return ""
    from astrasim_py.report.timeline import CHOOSE, TOO_LARGE

    return f"{TOO_LARGE}; {CHOOSE}"


FAILED = "failed"
#: Folder beside the points in which synthesized algorithms are kept.
ALGORITHMS = "algorithms"
#: Folder beside the points with the jobs that were also run alone.
ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A point to be computed, with everything that another process needs. `beside` is where the processes of a run
    share what they read, if they do. `points`: how many each of them computes.
    """

    point: Point
    folder: Path
    identity: str
    inputs: Mapping[str, str]
    options: RunOptions
    replace: bool = False
    beside: Path | None = None
    points: int = 1

    @property
    def kept(self) -> Path:
        """Where synthesized algorithms are kept."""
        return self.folder.parent.parent / ALGORITHMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a task."""

    row: Row
    exit_code: int = EXIT_OK
    lines: tuple[str, ...] = ()  # what a person should know, one line each; empty if all is well
    warnings: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()  # what the point says and does not use
    simulated_ps: int = 0
    detail: str = ""  # traceback of a defect, of ours or of the user's own code
    stored: bool = False  # whether the point is in the store
    point: StoredPoint | None = None  # where it was stored or read by this process


def row_of(point: Point, status: str) -> Row:
    """The row of a point of which nothing more is known."""
    return Row(
        scenario=point.scenario,
        point=point.name,
        sweep=dict(point.values),
        topology=point.config.get("topology_name"),
        status=status,
        seeds=point.repeat if point.repeat > 1 else None,
    )


def failed(point: Point, exit_code: int, *lines: str, detail: str = "") -> Result:
    return Result(row=row_of(point, FAILED), exit_code=exit_code, lines=lines, detail=detail)


def make_task(
    point: Point, folder: Path | Callable[[str], Path], options: RunOptions, known_inputs: MutableMapping | None = None
) -> Task:
    """Find out what a point is (`known_inputs`: see `input_digests`). The options are no part of its identity.
    `folder`: of the point, or what gives it for an identity. Raises AstraError: a file that the point reads is missing,
    or may not be read.
    """
    inputs = input_digests(point, known_inputs)
    identity = identity_of(point, inputs)
    folder = folder if isinstance(folder, Path) else folder(identity)
    return Task(point=point, folder=folder, identity=identity, inputs=inputs, options=options)


def identity_of(point: Point, inputs: Mapping[str, str]) -> str:
    """The digest of a point under these sources; see `store.point_digest`."""
    resolved = {key: value for key, value in point.config.items() if key != "limits"}
    return store.point_digest({"point": resolved, "sweep": dict(point.values)}, inputs)


def run_task(task: Task) -> Result:
    """Simulate a point and store it. Lets no exception out but an interruption."""
    point = task.point
    try:
        return _run(task)
    except AstraError as error:
        return failed(point, error.exit_code, *error.lines())
    except MemoryError:
        remedy = "use fewer NPUs, a lower --record level or fewer --jobs"
        return failed(point, EXIT_CHECK_FAILED, f"{point.name}: out of memory; {remedy}")
    except BaseException as error:
        if stops(error):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        reason, detail = own_failure(error), traceback.format_exc()
        if reason:
            return failed(point, EXIT_USAGE, reason, detail=detail)
        line = f"{point.name}: this is a defect of astrasim_py, please report it: {text}"
        return failed(point, EXIT_INTERNAL, line, detail=detail)


def run_task_apart(task: Task) -> Result:
    """`run_task` for another process, which reads the point in the store."""
    return replace(run_task(task), point=None)


def _run(task: Task) -> Result:
    point, options, usage = task.point, task.options, Usage()
    prepared = prepare(point, limits=options.limits, kept=task.kept, beside=task.beside)
    problem = prepared.problem
    options.check_ranks(sum(job.ranks for job in problem.jobs))
    flows = hasattr(point.spec.workload, "open_loop")
    plan, records, doubts = _simulated(problem, task, "messages" if flows else options.level)
    notes = prepared.notes_with(plan)
    notes.warnings += [f"{point.name}: {text}" for text in (*doubts, *plan_notes(plan))]
    notes.hints += hints(plan, records)
    facts = {
        "scenario": point.scenario,
        "point": point.name,
        "digest": task.identity,
        "sweep": dict(point.values),
        "seeds": dict(_seeds(point.config, "")),
        "repeat": point.repeat,
        "inputs": dict(task.inputs),
        "resolved": dict(point.config),
        "synthesized": tuple(notes.synthesized),
    }
    source = {"source": point.folder, "allow_outside": point.allow_outside, "allow_code": point.allow_code}
    extra_fields: dict[str, Any] = {"hints": tuple(notes.hints), "unused": tuple(unused(point, Use.of(plan)))}
    if point.spec.jobs:
        from astrasim_py.runs.jobs import job_rows

        alone = {job.name: _alone(task, job) for job in problem.jobs} if point.spec.compare else {}
        notes.warnings += [f"{point.name}: alone, {reason}" for reason in alone.values() if isinstance(reason, str)]
        results = {name: result for name, result in alone.items() if not isinstance(result, str)}
        extra_fields["jobs"] = tuple(job_rows(point.name, problem.jobs, records, results))
    more: dict[str, Iterable[bytes]] = {}
    if flows:
        more, records = load("astrasim_py.runs.flows:flow_files")(plan, records, options.level)
    row = replace(row_of(point, FAILED), trainings=tuple(TrainedJob(**training) for training in notes.trainings))
    stored = store_run(
        task.folder, plan, records, options, usage, row=row, facts=facts, source=source,
        warnings=notes.warnings, fields=extra_fields, replace=task.replace, more=more,
    )  # fmt: skip
    result, missing = stored_result(stored), missing_timeline(options, stored.manifest)
    if missing:
        code = worst((result.exit_code, EXIT_USAGE))
        return replace(result, exit_code=code, lines=(*result.lines, f"{point.name}: {missing}"))
    return result


def _alone(task: Task, job: Job) -> Alone | str:
    """A job where it has the network to itself, or why it is not done."""
    from astrasim_py.runs import jobs

    point = task.point
    config = {key: value for key, value in point.config.items() if key not in ("compare", "placement")}
    job_config = {"placement": list(job.placement)} | point.config["jobs"][job.name]
    config |= {"jobs": {job.name: {key: value for key, value in job_config.items() if key != "background"}}}
    options = replace(task.options, level="summary", timeline=False, fold=False)
    beside = task.folder.parent.parent / ALONE
    lone = replace(point, name=job.name, values={}, config=config)
    lone_task = make_task(lone, lambda identity: beside / store.folder_name(job.name, identity), options)
    stored = None if task.replace else stored_points.read_point(lone_task.folder, contents=True)
    if stored is not None and stored.manifest.digest == lone_task.identity and options.met_by(stored.manifest):
        result = stored_result(stored)
    else:
        lone_task = replace(lone_task, replace=task.replace, beside=task.beside)
        try:
            result = _run(lone_task)
        except AstraError as error:
            result = failed(lone_task.point, error.exit_code, *error.lines())
    if result.row.status == "done":
        ends, stored = np.zeros(0, dtype=np.int64), stored_points.read_point(lone_task.folder)
        if stored is not None and options.collectives:
            table = stored.table("collective")
            ends = jobs.iteration_ends(job, table, np.arange(table.height)) - job.arrival_ps
        return jobs.Alone(result.simulated_ps - job.arrival_ps, ends)
    return (*result.lines, f"{job.name} is not done")[0]


def _simulated(problem: Problem, task: Task, level: str) -> tuple[Plan, Records, list[str]]:
    """The plan and the records of a problem, and what doubts them. Raises FoldError unless what cannot be folded is to
    be run in full.
    """
    options, doubts = task.options, []
    if options.fold:
        try:
            plan = plan_for(problem, options.engine, fold=True)
            records = simulate(plan, engine=options.engine, level=level, fold=True)
            if records.fold is not None and not records.fold.exact:
                doubts.append(f"fold: {records.fold.text}")
            return plan, records, doubts
        except FoldError as error:
            if not options.in_full:
                raise
            doubts.append(f"simulated in full; {error.place}: {error.problem}")
    plan = plan_for(problem, options.engine)
    if plan.tiles:
        from astrasim_py.dialects.tiles.check import check_tiles

        check_tiles(plan, task.point, doubts.append)
    records = simulate(plan, engine=take_engine(plan, options.engine, task.points), level=level)
    return plan, records, doubts


def _seeds(value: object, path: str):
    if isinstance(value, Mapping):
        for key, inner in value.items():
            below = f"{path}.{key}" if path else str(key)
            if key in ("seed", "random") and not isinstance(inner, Mapping):
                yield below, inner
            else:
                yield from _seeds(inner, below)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from _seeds(inner, f"{path}[{i}]")


def stored_result(point: StoredPoint) -> Result:
    name, lines = point.manifest.point, point.summary.explanation
    return Result(
        row=point.row,
        exit_code=point.manifest.exit_code,
        lines=(f"{name}: {lines[0]}", *lines[1:]) if lines else (),
        warnings=point.summary.warnings,
        unused=point.summary.unused,
        simulated_ps=point.summary.makespan_ps,
        stored=True,
        point=point,
    )
