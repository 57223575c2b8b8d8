"""Run a scenario: plan it, have the points computed that are not finished, and report."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.by_need import load
from astrasim_py.core.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OUTPUT,
    AstraError,
    CheckFailed,
    worst,
)
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.files import write_file
from astrasim_py.core.interrupts import interruptible
from astrasim_py.core.shown import Shown
from astrasim_py.core.units import number_of
from astrasim_py.results import store, stored_points
from astrasim_py.results.model import Row, Summary
from astrasim_py.results.store import RunOptions
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs.executors import executor_of
from astrasim_py.runs.figures import draw_figures, write_study
from astrasim_py.runs.plan import NOT_RUN, OWNER, SweepPlan, asked_points, clean, options_for, plan_sweep
from astrasim_py.runs.progress import Progress
from astrasim_py.runs.task import Result, failed, row_of
from astrasim_py.runs.unused import unused_by_all
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.load import LoadedScenario

if TYPE_CHECKING:
    import pandas

    from astrasim_py.core.point_names import PointName

_WARNING, _HINT = "warning: ", "hint: "
#: Tables are written again where points land meanwhile; somebody else writes them if that goes on.
_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A point that is not done."""

    point: str  # its name
    exit_code: int
    lines: tuple[str, ...]  # why, for a person
    detail: str = ""  # traceback of a defect, of ours or of the user's own code


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunResult(Shown):
    """The result of running a scenario. `summaries`: ``summary.json`` of each row's point, None where it has none."""

    scenario: str
    title: str
    folder: Path  # of its results
    rows: tuple[Row, ...]  # one per point asked for, in the order of the sweep
    left_out: int = field(default=0, kw_only=True)  # points of the scenario that were not asked for
    exit_code: int  # the worst of its points, or 130
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()  # what was done beside what was asked (points used again …), warnings and hints
    figures: tuple[Path, ...] = ()
    computed: int = 0
    reused: int = 0
    interrupted: bool = False
    summaries: tuple[Summary | None, ...] = field(default=(), repr=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes that doubt results."""
        return tuple(note for note in self.notes if note.startswith(_WARNING))

    @property
    def footer(self) -> tuple[str, ...]:
        """The notes that belong below the results: warnings, and what could be better."""
        return tuple(note for note in self.notes if note.startswith((_WARNING, _HINT)))

    def to_dataframe(self) -> "pandas.DataFrame":
        """The rows as a pandas DataFrame; see `astrasim_py.report.dataframe.rows_dataframe`."""
        from astrasim_py.report.dataframe import rows_dataframe

        return rows_dataframe(self.rows)

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        return self.scenario, {
            "points": len(self.rows),
            "computed": self.computed,
            "reused": self.reused,
            "failures": len(self.failures),
            "warnings": len(self.warnings),
            "interrupted": "interrupted" if self.interrupted else "",
            "folder": str(self.folder),
        }

    def _repr_html_(self) -> str:
        table = self.to_dataframe().dropna(axis="columns", how="all")
        table = table.drop(columns=[name for name in table if name.endswith("_ps") or name in ("scenario", "bound_by")])
        return Shown._repr_html_(self) + table.to_html(max_rows=30, float_format="{:.6g}".format, index=False)


def run_scenario(
    scenario: LoadedScenario,
    options: RunOptions | None = None,
    *,
    out: str | os.PathLike[str] = "results",
    jobs: int | None = 1,
    cluster: str | None = None,
    points: tuple[int, int] | None = None,
    names: "Sequence[PointName]" = (),
    fresh: bool = False,
    figures: bool = True,
    strict: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run the points of a scenario and leave tables and figures in ``<out>/<name of the scenario>/``.

    A point that fails is recorded and the others go on. Ctrl-C (and SIGTERM) stops at once: finished points are
    kept, of those under way nothing is, and running again goes on from there.

    `options`: of each point; by default the scenario's own (see `options_for`). `out`: folder of all results. `jobs`:
    worker processes; 1 runs in this process, None means one per core. `cluster`: address of a Dask scheduler whose
    workers compute the points, instead of processes of this machine. `points`: ``(i, n)``: only the i-th of n shares of
    the points. `names`: only the points that their values mean. `fresh`: compute finished points again. `figures`: draw
    the scenario's figures. `strict`: a point with a warning has failed. `progress`: silent by default. Raises
    UsageError: fewer than one job, a name that is no name of a folder, values that no point has, or a cluster that
    cannot be reached. Raises OutputError: the folder of results cannot be written at all.
    """
    folder = store.scenario_folder(out, scenario.name)
    executor, progress = executor_of(jobs, cluster, folder), progress or Progress()
    plan = SweepPlan(scenario=scenario, folder=folder, tasks={}, results={})
    computed: dict[int, Result] = {}
    stopped: AstraError | None = None
    interrupted = False
    try:
        with interruptible() as signals:
            plan = asked_points(scenario, folder, points, names)
            plan = plan_sweep(plan, options or options_for(scenario), fresh=fresh)
            todo = [number for number in plan.chosen if number not in plan.results]
            progress.begin(len(plan.chosen), len(plan.chosen) - len(todo))
            with closing(executor.map([plan.tasks[number] for number in todo])) as ended:
                for place, result in ended:
                    point = plan.points[todo[place]]
                    if signals and isinstance(result, Result) and not result.stored:
                        raise KeyboardInterrupt
                    if not isinstance(result, Result):  # its process was killed
                        result = failed(point, EXIT_CHECK_FAILED, f"{point.name}: {result.reason}")
                    computed[todo[place]] = result
                    progress.point(point.name, result.row.status, result.simulated_ps)
                    if result.exit_code == EXIT_OUTPUT:
                        break
    except CheckFailed as error:  # of the cluster
        stopped = error
    except KeyboardInterrupt:
        interrupted = True
    finally:
        progress.end()
    with interruptible():
        return _Report(plan, computed, strict, interrupted, stopped).finish(draw=figures)


def and_more(points: int) -> str:
    """What follows a line that holds for several points, of which the first is named."""
    return f" (and {number_of(points - 1, 'more point')})" if points > 1 else ""


def _hints(hints: list[str]) -> list[str]:
    """A line for all hints that advise the same: the first of them."""
    advice = [hint.rpartition("; write ")[2] for hint in hints]
    return [f"{_HINT}{hints[advice.index(text)]}{and_more(count)}" for text, count in Counter(advice).items()]


def _has_default_calls(point: Point, stored: StoredPoint) -> bool:
    """Whether a point has calls of collectives for which it names no algorithm."""
    named = {*point.config.get("algorithms", {}), CUSTOM}
    return any(row.type not in named for row in stored.summary.collectives)


class _Report:
    """What became of a plan: tables and figures are written, and what a person should know is collected.

    `computed`: results of points beside those of the plan. `stopped`: why the others were not computed.
    """

    def __init__(
        self,
        plan: SweepPlan,
        computed: Mapping[int, Result],
        strict: bool,
        interrupted: bool,
        stopped: AstraError | None,
    ) -> None:
        self.plan, self.strict, self.interrupted = plan, strict, interrupted
        self.results = {**plan.results, **computed}
        self.notes = list(plan.notes)
        self.failures: list[Failure] = []
        missing = self._missing()
        if stopped is not None:
            problem = f"{missing} of {number_of(len(plan.chosen), 'point')} were not computed"
            self._fail("", stopped.exit_code, [f"{stopped.place}: {stopped.problem}: {problem}; {stopped.remedy}"])
        if any(result.exit_code == EXIT_OUTPUT for result in computed.values()):
            self.notes.append("stopped: the results cannot be written")

    def _missing(self) -> int:
        return sum(number not in self.results for number in self.plan.chosen)

    def _unused(self) -> list[str]:
        """What no point of the whole scenario uses."""
        stored = [result for result in self.results.values() if result.stored]
        if len(self.plan.chosen) < len(self.plan.points) or self._missing():
            return []
        return unused_by_all([result.unused for result in stored])

    def _fail(self, point: str, code: int, lines: Sequence[str], detail: str = "") -> None:
        self.failures.append(Failure(point=point, exit_code=code, lines=tuple(lines), detail=detail))

    def finish(self, *, draw: bool) -> RunResult:
        plan = self.plan
        results = [self.results.get(n) or Result(row=row_of(plan.points[n], NOT_RUN)) for n in plan.chosen]
        unused = self._unused()
        if self.strict:
            doubts = [(*result.warnings, *unused) for result in results]
            results = [
                failed(plan.points[n], EXIT_CHECK_FAILED, *lines) if lines else result
                for n, lines, result in zip(plan.chosen, doubts, results, strict=True)
            ]
        warned: dict[str, list[str]] = {}
        for number, result in zip(plan.chosen, results, strict=True):
            name = plan.points[number].name
            if result.exit_code:
                self._fail(name, result.exit_code, result.lines, result.detail)
            for warning in result.warnings:
                warned.setdefault(warning.removeprefix(f"{name}: "), []).append(warning)
        self.notes += [f"{_WARNING}{texts[0]}{and_more(len(texts))}" for texts in warned.values()]
        self.notes += [f"{_WARNING}{text}" for text in unused if not self.strict]
        if plan.reused:
            were = "was" if plan.reused == 1 else "were"
            line = f"{plan.reused} of {number_of(len(plan.chosen), 'point')} {were} finished already"
            unfolded = f", {plan.unfolded} of them in full, not folded" if plan.unfolded else ""
            self.notes.append(f"{line}{unfolded} (--fresh computes them again)")
        if plan.outdated:
            line = f"{number_of(plan.outdated, 'stored point')} of another state of astrasim_py"
            self.notes.append(f"{line}: computed again")
        figures: list[Path] = []
        stored: dict[str, StoredPoint] = {}
        try:
            clean(plan.folder)  # after workers that were killed
            if os.path.isdir(plan.folder):
                stored = self._tables()
                figures = self._figures(stored, draw=draw and not self.interrupted)
        except AstraError as error:
            self._fail("", error.exit_code, error.lines())
        if self.interrupted:
            count = len(plan.chosen) - self._missing()
            self.notes.append(
                f"interrupted: {count} of {number_of(len(plan.chosen), 'point')} kept; run it again to go on"
            )
        identities = plan.identities
        all_points = [stored.get(identity or "") for identity in identities]
        points = [all_points[number] for number in plan.chosen]
        self.notes += _hints([hint for point in points if point for hint in point.summary.hints])
        self.notes += self._better_algorithm(all_points)
        codes = [failure.exit_code for failure in self.failures]
        return RunResult(
            scenario=plan.scenario.name,
            title=plan.scenario.title,
            folder=plan.folder,
            rows=tuple(result.row for result in results),
            left_out=len(plan.points) - len(plan.chosen),
            exit_code=EXIT_INTERRUPTED if self.interrupted else worst(codes),
            failures=tuple(self.failures),
            notes=tuple(dict.fromkeys(self.notes)),
            figures=tuple(figures),
            computed=sum(result.stored for result in results) - plan.reused,
            reused=plan.reused,
            interrupted=self.interrupted,
            summaries=tuple(None if point is None else point.summary for point in points),
        )

    def _better_algorithm(self, points: Sequence[StoredPoint | None]) -> list[str]:
        """A line on a faster algorithm for the points asked for, where calls have none by name. `points`: all of the
        scenario, None where they are not finished.
        """
        plan = self.plan
        finished = [(number, point) for number, point in enumerate(points) if point is not None]
        if self.interrupted or not any(_has_default_calls(plan.points[n], point) for n, point in finished):
            return []
        from astrasim_py.runs.better_algorithm import SimulatedPoint, better_algorithm

        simulated = {n: SimulatedPoint(plan.points[n], point, plan.tasks[n].kept) for n, point in finished}
        asked = [simulated[number] for number in plan.chosen if number in simulated]
        try:
            text = ""
            if len(finished) == len(points):
                text = better_algorithm(plan.folder, list(simulated.values()), keep=True)
            if len(asked) < len(points):
                text = better_algorithm(plan.folder, asked, keep=False)
        except AstraError as error:  # the folder cannot be written
            return error.lines()
        return [f"{_HINT}{text}"] if text else []

    def _tables(self) -> dict[str, StoredPoint]:
        """Write the tables and return the points in them by their identity: those of the scenario as it is now, also
        where others have finished them meanwhile.
        """
        plan, stored = self.plan, dict[str, StoredPoint]()
        ours = {task.identity for task in plan.tasks.values()}
        cache = {result.point.folder: result.point for result in self.results.values() if result.point}
        for _ in range(_TRIES):
            names = stored_points.point_names(plan.folder)
            points = stored_points.read_points(plan.folder, cache)
            stored = stored_points.by_digest(point for point in points if point.manifest.digest in ours)
            if stored:
                stored_points.write_tables(plan.folder, tuple(stored.values()))
                if any("flows.csv" in point.manifest.files for point in stored.values()):
                    load("astrasim_py.runs.flows:write_flows")(plan.folder, tuple(stored.values()))
            if stored_points.point_names(plan.folder) == names:
                break
        return stored

    def _figures(self, stored: Mapping[str, StoredPoint], *, draw: bool) -> list[Path]:
        if not stored:
            return []
        plan, digests = self.plan, self.plan.identities
        plots = [spec.model_dump(exclude_none=True) for spec in plan.scenario.plots]
        file = os.path.relpath(plan.scenario.path.resolve(), plan.folder.resolve())
        write_file(plan.folder / OWNER, json_bytes({"file": file}))
        write_study(plan.folder, plan.scenario.name, plan.scenario.title, plots, digests)
        if not draw or not plots:
            return []
        ready = [stored[digest] for digest in digests if digest is not None and digest in stored]
        if len(plan.chosen) < len(plan.points) and len(ready) < len(plan.points):
            self.notes.append(f"no figures yet: {len(ready)} of {len(plan.points)} points are finished")
            return []
        return draw_figures(plan.folder, plan.scenario.title or plan.scenario.name, plots, ready, self.notes)
