"""Run a scenario: expand it, use finished points again, compute the others, and draw the figures."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from astrasim_py.core import compiling
from astrasim_py.core.choices import FOLDED, LEVELS
from astrasim_py.core.errors import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OUTPUT,
    AstraError,
    CheckFailed,
    UsageError,
    worst,
)
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.files import write_file
from astrasim_py.core.interrupts import interruptible
from astrasim_py.core.shown import Shown
from astrasim_py.core.units import number_of
from astrasim_py.engine.auto import is_compiled
from astrasim_py.engine.simulation import ENGINES
from astrasim_py.report.arranged_rows import text_of
from astrasim_py.report.dataframe import rows_dataframe
from astrasim_py.results import store, stored_points
from astrasim_py.results.model import Row, Summary
from astrasim_py.results.store import RunOptions
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs.figures import FIGURES, draw_figures, recorded, write_study
from astrasim_py.runs.pool import Killed, cores, run_tasks
from astrasim_py.runs.progress import Progress
from astrasim_py.runs.task import Result, Task, failed, make_task, row_of, run_task, run_task_apart, stored_result
from astrasim_py.runs.unused import unused_by_all
from astrasim_py.scenario.expand import Point, expand
from astrasim_py.scenario.load import LoadedScenario
from astrasim_py.scenario.plot_spec import level_of
from astrasim_py.system.machine_models import Limits

if TYPE_CHECKING:
    import pandas

_WARNING, _HINT = "warning: ", "hint: "
#: Where the file of the scenario is named: beside the points, since it is no part of the results.
OWNER = Path(stored_points.POINTS, stored_points.VOLATILE)
#: Status of points that were not reached.
NOT_RUN = "not run"
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
        table = table.drop(columns=[name for name in table if name.endswith("_ps") or name == "scenario"])
        return Shown._repr_html_(self) + table.to_html(max_rows=30, float_format="{:.6g}".format, index=False)


def parse_share(text: str) -> tuple[int, int]:
    """Read ``--points i/n``: the i-th of n shares, 1 ≤ i ≤ n.

    >>> parse_share("2/8")
    (2, 8)
    """
    match = re.fullmatch(r"(\d{1,18})/(\d{1,18})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError("--points", f'"{text}" is not a share i/n with 1 ≤ i ≤ n', "write e.g. --points 1/4")
    return int(match[1]), int(match[2])


class PointKeys(TypedDict, total=False):
    """Options of each point of a run; None: as the scenario has it."""

    level: str | None
    engine: str | None
    fold: bool | None
    max_events: int | None
    max_sim_time_ps: int | None
    in_full: bool
    timeline: bool | tuple[int, ...]
    collectives: bool


def run_scenario(
    scenario: LoadedScenario,
    *,
    out: str | os.PathLike[str] = "results",
    jobs: int | None = 1,
    cluster: str | None = None,
    points: tuple[int, int] | None = None,
    fresh: bool = False,
    figures: bool = True,
    strict: bool = False,
    progress: Progress | None = None,
    **options: Unpack[PointKeys],
) -> RunResult:
    """Run the points of a scenario and leave tables and figures in ``<out>/<name of the scenario>/``.

    A point that fails is recorded and the others go on. Ctrl-C (and SIGTERM) stops at once: finished points are
    kept, of those under way nothing is, and running again goes on from there.

    `out`: folder of all results. `jobs`: worker processes; 1 runs in this process, None means one per core. `cluster`:
    address of a Dask scheduler whose workers compute the points, instead of processes of this machine. `points`: ``(i,
    n)``: only the i-th of n shares of the points. `fresh`: compute finished points again. `figures`: draw the
    scenario's figures. `strict`: a point with a warning has failed. `progress`: silent by default. `options`:
    ``level``, ``engine``, ``fold``, ``max_events`` and ``max_sim_time_ps``, where they differ from the scenario's,
    ``in_full`` and ``timeline`` (see `RunOptions`). Raises UsageError: an unknown level or engine, fewer than one job,
    a name that is no name of a folder, or a cluster that cannot be reached. Raises OutputError: the folder of results
    cannot be written at all.
    """
    asked: dict[str, Any] = {"level": scenario.record, "engine": scenario.engine, "fold": scenario.fold}
    asked |= {key: value for key, value in options.items() if value is not None}
    for key, value, known in (("--record", asked["level"], LEVELS), ("--engine", asked["engine"], ENGINES)):
        if value not in known:
            raise UsageError(key, f'"{value}" is unknown', f"write one of {', '.join(known)}")
    limits = {key: asked.pop(key) for key in Limits.model_fields if key in asked}
    if jobs is not None and jobs < 1:
        raise UsageError("--jobs", f"{jobs} is less than 1", "write 1 or more")
    if cluster is not None:
        from astrasim_py.runs.cluster import check_address

        check_address(cluster)
    run = _Run(scenario, Path(out), progress or Progress())
    run.strict = strict
    try:
        with interruptible() as run.signals:
            run.plan(points, RunOptions(**asked), limits, fresh=fresh)
            run.compute(jobs, cluster)
    except KeyboardInterrupt:
        run.interrupted = True
    finally:
        run.progress.end()
    with interruptible():
        return run.finish(draw=figures)


def and_more(points: int) -> str:
    """What follows a line that holds for several points, of which the first is named."""
    return f" (and {number_of(points - 1, 'more point')})" if points > 1 else ""


def _hints(hints: list[str]) -> list[str]:
    """A line for all hints that advise the same: the first of them."""
    advice = [hint.rpartition("; write ")[2] for hint in hints]
    return [f"{_HINT}{hints[advice.index(each)]}{and_more(count)}" for each, count in Counter(advice).items()]


class _Run:
    """State of `run_scenario`."""

    def __init__(self, scenario: LoadedScenario, out: Path, progress: Progress) -> None:
        self.scenario = scenario
        self.folder = store.scenario_folder(out, scenario.name)
        self.progress = progress
        self.points: tuple[Point, ...] = ()
        self.chosen: list[int] = []
        self.tasks: dict[int, Task] = {}
        self.results: dict[int, Result] = {}
        self.reused = 0
        self.unfolded = 0  # of these, where a folded run was asked for
        self.outdated = 0  # points that other sources of this package have computed
        self.notes: list[str] = []
        self.failures: list[Failure] = []
        self.signals: list[int] = []
        self.interrupted = False
        self.strict = False

    def plan(self, share: tuple[int, int] | None, options: RunOptions, limits: Mapping, *, fresh: bool) -> None:
        """Find every point's place, and take the finished ones from the store."""
        self._own()
        if earlier := stored_points.earlier_layout(self.folder):
            self.notes.append(f"{self.folder} also holds {earlier}, which are not used; delete them if you like")
        self.points = expand(self.scenario)
        first, step = (share[0] - 1, share[1]) if share else (0, 1)
        self.chosen = list(range(first, len(self.points), step))
        self._clean()
        levels = self._levels(options.level)
        known: dict = {}
        folders = store.PointFolders(self.folder, len(self.points))
        for number, point in enumerate(self.points):
            try:
                own = replace(options, level=levels[number], limits=Limits(**dict(point.spec.limits) | limits))
                label = store.point_label(point.values, point.name)
                task = make_task(point, partial(folders.of, number + 1, label), own, known)
            except AstraError as error:
                self.results[number] = failed(point, error.exit_code, *error.lines())
                continue
            self.tasks[number] = task = replace(task, replace=fresh)
            if number % step == first and not fresh:
                stored = stored_points.read_point(task.folder, contents=True)
                if stored is not None and stored.manifest.digest != task.identity:
                    self.outdated += 1
                elif stored is not None and task.options.met_by(stored.manifest):
                    self.results[number] = stored_result(stored)
                    self.reused += 1
                    self.unfolded += task.options.fold and not stored.manifest.engine.endswith(FOLDED)

    def _own(self) -> None:
        """Refuse a folder with the results of another file. Raises UsageError."""
        said = stored_points.read_object(self.folder / OWNER).get("file")
        owner = self.folder / said if isinstance(said, str) else self.scenario.path
        if os.path.isfile(owner) and (owner := owner.resolve()) != self.scenario.path.resolve():
            remedy = f"give this scenario another name than {self.scenario.name}, or name another folder with --out"
            raise UsageError(str(self.folder), f"holds the results of {owner}", remedy)

    def _clean(self) -> None:
        for folder in (self.folder, self.folder / stored_points.POINTS, self.folder / FIGURES):
            store.clean(folder)

    def _levels(self, level: str) -> list[str]:
        """Record levels: figures of links and Gantt charts need more than the rows, for the points they show."""
        levels = [level] * len(self.points)
        rows = [row_of(point, NOT_RUN) for point in self.points]
        for spec in self.scenario.plots:
            asked = spec.model_dump(exclude_none=True)
            need = level_of(asked)
            if LEVELS.index(need) <= LEVELS.index(level):
                continue
            # What is known of a point only when it has run does not choose among them now.
            known = {k: v for k, v in spec.where.items() if any(text_of(row, k) is not None for row in rows)}
            shown = recorded({**asked, "where": known}, rows)
            for number in shown:
                levels[number] = max(levels[number], need, key=LEVELS.index)
            if shown:
                figure = f"the figure {spec.name or spec.kind}"
                self.notes.append(f"{figure} needs level {need}: recorded for {number_of(len(shown), 'point')}")
        return levels

    def compute(self, jobs: int | None, cluster: str | None) -> None:
        todo = [number for number in self.chosen if number not in self.results]
        self.progress.begin(len(self.chosen), len(self.chosen) - len(todo))
        workers = min(jobs or cores(), len(todo))
        # While a kernel is compiled, workers start and compute.
        at_first = jobs is None and len(todo) >= _MANY * workers and is_compiled()
        each = len(todo) if cluster else -(-len(todo) // max(workers, 1))
        tasks = [replace(self.tasks[number], points=each) for number in todo]
        try:
            with closing(_each(tasks, workers, cluster, self.folder, at_first)) as ended:
                for position, result in ended:
                    number, point = todo[position], self.points[todo[position]]
                    if self.signals and isinstance(result, Result) and not result.stored:
                        raise KeyboardInterrupt
                    if isinstance(result, Killed):
                        result = failed(point, EXIT_CHECK_FAILED, f"{point.name}: {result.reason}")
                    self.results[number] = result
                    self.progress.point(point.name, result.row.status, result.simulated_ps)
                    if result.exit_code == EXIT_OUTPUT:
                        self.notes.append("stopped: the results cannot be written")
                        break
        except CheckFailed as error:  # of the cluster
            left = f"{self._missing()} of {number_of(len(self.chosen), 'point')} were not computed"
            self._fail("", error.exit_code, [f"{error.place}: {error.problem}: {left}; {error.remedy}"])

    def _missing(self) -> int:
        return sum(number not in self.results for number in self.chosen)

    def _unused(self) -> list[str]:
        """What no point of the whole scenario uses."""
        stored = [result for result in self.results.values() if result.stored]
        if len(self.chosen) < len(self.points) or self._missing():
            return []
        return unused_by_all([result.unused for result in stored])

    def _fail(self, point: str, code: int, lines: Sequence[str], detail: str = "") -> None:
        self.failures.append(Failure(point=point, exit_code=code, lines=tuple(lines), detail=detail))

    def finish(self, *, draw: bool) -> RunResult:
        done = [self.results.get(n) or Result(row=row_of(self.points[n], NOT_RUN)) for n in self.chosen]
        unused = self._unused()
        if self.strict:
            doubts = [(*result.warnings, *unused) for result in done]
            done = [
                failed(self.points[n], EXIT_CHECK_FAILED, *lines) if lines else result
                for n, lines, result in zip(self.chosen, doubts, done, strict=True)
            ]
        warned: dict[str, list[str]] = {}
        for number, result in zip(self.chosen, done, strict=True):
            name = self.points[number].name
            if result.exit_code:
                self._fail(name, result.exit_code, result.lines, result.detail)
            for warning in result.warnings:
                warned.setdefault(warning.removeprefix(f"{name}: "), []).append(warning)
        self.notes += [f"{_WARNING}{same[0]}{and_more(len(same))}" for same in warned.values()]
        self.notes += [f"{_WARNING}{text}" for text in unused if not self.strict]
        if self.reused:
            were = "was" if self.reused == 1 else "were"
            what = f"{self.reused} of {number_of(len(self.chosen), 'point')} {were} finished already"
            unfolded = f", {self.unfolded} of them in full, not folded" if self.unfolded else ""
            self.notes.append(f"{what}{unfolded} (--fresh computes them again)")
        if self.outdated:
            what = f"{number_of(self.outdated, 'stored point')} of another state of astrasim_py"
            self.notes.append(f"{what}: computed again")
        drawn: list[Path] = []
        stored: dict[str, StoredPoint] = {}
        try:
            self._clean()  # after workers that were killed
            if os.path.isdir(self.folder):
                stored = self._tables()
                drawn = self._figures(stored, draw=draw and not self.interrupted)
        except AstraError as error:
            self._fail("", error.exit_code, error.lines())
        if self.interrupted:
            kept = len(self.chosen) - self._missing()
            self.notes.append(
                f"interrupted: {kept} of {number_of(len(self.chosen), 'point')} kept; run it again to go on"
            )
        points = [stored.get(self.tasks[n].identity) if n in self.tasks else None for n in self.chosen]
        self.notes += _hints([hint for point in points if point for hint in point.summary.hints])
        codes = [failure.exit_code for failure in self.failures]
        return RunResult(
            scenario=self.scenario.name,
            title=self.scenario.title,
            folder=self.folder,
            rows=tuple(result.row for result in done),
            exit_code=EXIT_INTERRUPTED if self.interrupted else worst(codes),
            failures=tuple(self.failures),
            notes=tuple(dict.fromkeys(self.notes)),
            figures=tuple(drawn),
            computed=sum(result.stored for result in done) - self.reused,
            reused=self.reused,
            interrupted=self.interrupted,
            summaries=tuple(None if point is None else point.summary for point in points),
        )

    def _tables(self) -> dict[str, StoredPoint]:
        """Write the tables and return the points in them by their identity: those of the scenario as it is now, also
        where others have finished them meanwhile.
        """
        stored: dict[str, StoredPoint] = {}
        ours = {task.identity for task in self.tasks.values()}
        known = {result.point.folder: result.point for result in self.results.values() if result.point}
        for _ in range(_TRIES):
            names = stored_points.point_names(self.folder)
            points = stored_points.read_points(self.folder, known)
            stored = stored_points.by_digest(point for point in points if point.manifest.digest in ours)
            if stored:
                stored_points.write_tables(self.folder, tuple(stored.values()))
            if stored_points.point_names(self.folder) == names:
                break
        return stored

    def _figures(self, stored: Mapping[str, StoredPoint], *, draw: bool) -> list[Path]:
        if not stored:
            return []
        digests = [self.tasks[n].identity if n in self.tasks else None for n in range(len(self.points))]
        plots = [spec.model_dump(exclude_none=True) for spec in self.scenario.plots]
        file = os.path.relpath(self.scenario.path.resolve(), self.folder.resolve())
        write_file(self.folder / OWNER, json_bytes({"file": file}))
        write_study(self.folder, self.scenario.name, self.scenario.title, plots, digests)
        if not draw or not plots:
            return []
        ready = [stored[digest] for digest in digests if digest in stored]
        if len(self.chosen) < len(self.points) and len(ready) < len(self.points):
            self.notes.append(f"no figures yet: {len(ready)} of {len(self.points)} points are finished")
            return []
        return draw_figures(self.folder, self.scenario.title or self.scenario.name, plots, ready, self.notes)


#: A sweep of so many points per worker is begun without workers: they cost 2 CPU seconds each before their first point.
_MANY = 8
#: CPU seconds from which on workers pay: those of one point, and those of all points that are left.
_LONG_S, _REST_S = 4.0, 8.0


def _each(
    tasks: Sequence[Task], workers: int, cluster: str | None, folder: Path, at_first: bool
) -> Iterator[tuple[int, object]]:
    """(number, result) of every task: in this process (`at_first`: as long as little is left to do), in workers, or on
    a cluster."""
    if cluster is not None and tasks:
        from astrasim_py.runs.cluster import run_on_cluster

        yield from run_on_cluster(tasks, cluster, folder)
        return
    done, begin, first = 0, compiling.cpu_s(), 0.0
    for task in tasks if workers <= 1 or at_first else ():
        yield done, run_task(task)
        done, spent = done + 1, compiling.cpu_s() - begin
        first = first or spent  # it reads what the others use, too
        rest = (spent - first) / max(done - 1, 1) * (len(tasks) - done)
        if workers > 1 and (first > _LONG_S or rest > _REST_S):
            break
    if done < len(tasks):
        with store.scratch(folder) as beside:
            left = [replace(task, beside=beside) for task in tasks[done:]]
            for number, result in run_tasks(run_task_apart, left, min(workers, len(left))):
                yield done + number, result
