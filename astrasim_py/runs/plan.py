"""What a run of a scenario is to do: its points, where they are kept, and which of them are finished already."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from astrasim_py.core.choices import FOLDED, LEVELS
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.units import number_of
from astrasim_py.engine.simulation import ENGINES
from astrasim_py.results import store, stored_points
from astrasim_py.results.store import RunOptions
from astrasim_py.runs.figures import FIGURES, recorded
from astrasim_py.runs.task import Result, Task, failed, make_task, row_of, stored_result
from astrasim_py.scenario.expand import Point, expand
from astrasim_py.scenario.load import LoadedScenario
from astrasim_py.scenario.plot_spec import level_of
from astrasim_py.system.machine_models import Limits

if TYPE_CHECKING:
    from astrasim_py.core.point_names import PointName

#: Where the file of the scenario is named: beside the points, since it is no part of the results.
OWNER = Path(stored_points.POINTS, stored_points.VOLATILE)
#: Status of points that were not reached.
NOT_RUN = "not run"


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


def options_for(scenario: LoadedScenario, **keys: Unpack[PointKeys]) -> RunOptions:
    """The options of a scenario, but for those that are given. Limits that are not given are those of each point.

    Raises UsageError: an unknown level or engine. Raises TypeError: an option that there is not.
    """
    for name in keys.keys() - PointKeys.__annotations__.keys():
        raise TypeError(f"a run has no option {name}; write one of {', '.join(PointKeys.__annotations__)}")
    limits = {"max_events": keys.get("max_events"), "max_sim_time_ps": keys.get("max_sim_time_ps")}
    options = RunOptions(
        level=keys.get("level") or scenario.record,
        engine=keys.get("engine") or scenario.engine,
        fold=scenario.fold if (fold := keys.get("fold")) is None else fold,
        in_full=keys.get("in_full", False),
        timeline=keys.get("timeline", False),
        collectives=keys.get("collectives", True),
        limits=Limits.model_validate({key: value for key, value in limits.items() if value is not None}),
    )
    for key, value, words in (("--record", options.level, LEVELS), ("--engine", options.engine, ENGINES)):
        if value not in words:
            raise UsageError(key, f'"{value}" is unknown', f"write one of {', '.join(words)}")
    return options


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The points of a scenario, by number in the order of the sweep.

    `chosen`: those asked for. `tasks`: of all but those whose files are missing. `results`: of points that cannot
    begin, and of chosen ones that are finished; of these `reused`, and of these `unfolded` in full where a folded run
    was asked for. `outdated`: points that other sources of this package have computed.
    """

    scenario: LoadedScenario
    folder: Path
    points: tuple[Point, ...] = ()
    chosen: tuple[int, ...] = ()
    tasks: Mapping[int, Task]
    results: Mapping[int, Result]
    reused: int = 0
    unfolded: int = 0
    outdated: int = 0
    notes: tuple[str, ...] = ()

    @property
    def identities(self) -> list[str | None]:
        """The identity of each point; None where it has none."""
        return [self.tasks[number].identity if number in self.tasks else None for number in range(len(self.points))]


def asked_points(
    scenario: LoadedScenario, folder: Path, share: tuple[int, int] | None, names: "Sequence[PointName]" = ()
) -> SweepPlan:
    """A plan of the points that are asked for, before the store is looked at; see `run_scenario` for the parameters.

    Raises UsageError: the folder holds the results of another file, or a name means no point.
    """
    _check_owner(scenario, folder)
    points = expand(scenario)
    first, step = (share[0] - 1, share[1]) if share else (0, 1)
    chosen = tuple(range(len(points)))
    if any(name.values for name in names):
        from astrasim_py.runs.chosen_points import chosen_numbers

        chosen = chosen_numbers(points, names)
    return SweepPlan(scenario=scenario, folder=folder, points=points, chosen=chosen[first::step], tasks={}, results={})


def plan_sweep(asked: SweepPlan, options: RunOptions, *, fresh: bool) -> SweepPlan:
    """Find every point's place, and take the finished ones from the store; see `run_scenario` for the parameters."""
    scenario, folder, points, chosen = asked.scenario, asked.folder, asked.points, set(asked.chosen)
    notes = []
    if earlier := stored_points.earlier_layout(folder):
        notes.append(f"{folder} also holds {earlier}, which are not used; delete them if you like")
    clean(folder)
    levels, level_notes = _levels(scenario, points, options.level)
    tasks: dict[int, Task] = {}
    results: dict[int, Result] = {}
    inputs: dict[tuple[str, str], Mapping[str, str]] = {}
    reused, unfolded, outdated = 0, 0, 0
    folders = store.PointFolders(folder, len(points))
    limits = options.limits.model_dump(include=options.limits.model_fields_set)
    for number, point in enumerate(points):
        try:
            bounded = replace(options, level=levels[number], limits=point.spec.limits.model_copy(update=limits))
            label = store.point_label(point.values, point.name)
            task = make_task(point, partial(folders.of, number + 1, label), bounded, inputs)
        except AstraError as error:
            results[number] = failed(point, error.exit_code, *error.lines())
            continue
        tasks[number] = task = replace(task, replace=fresh)
        if number not in chosen or fresh:
            continue
        stored = stored_points.read_point(task.folder, contents=True)
        if stored is None:
            outdated += stored_points.is_of_another_version(task.folder)
        elif stored.manifest.digest != task.identity:
            outdated += 1
        elif task.options.met_by(stored.manifest):
            results[number] = stored_result(stored)
            reused += 1
            unfolded += task.options.fold and not stored.manifest.engine.endswith(FOLDED)
    return replace(
        asked,
        tasks=tasks,
        results=results,
        reused=reused,
        unfolded=unfolded,
        outdated=outdated,
        notes=(*notes, *level_notes),
    )


def clean(folder: Path) -> None:
    """Remove what killed processes left in the folders of a scenario."""
    for path in (folder, folder / stored_points.POINTS, folder / FIGURES):
        store.clean(path)


def _check_owner(scenario: LoadedScenario, folder: Path) -> None:
    file = stored_points.read_object(folder / OWNER).get("file")
    owner = folder / file if isinstance(file, str) else scenario.path
    if os.path.isfile(owner) and (owner := owner.resolve()) != scenario.path.resolve():
        remedy = f"give this scenario another name than {scenario.name}, or name another folder with --out"
        raise UsageError(str(folder), f"holds the results of {owner}", remedy)


def _levels(scenario: LoadedScenario, points: tuple[Point, ...], level: str) -> tuple[list[str], list[str]]:
    """Record levels: figures of links and Gantt charts need more than the rows, for the points they show; and a line
    for each such figure.
    """
    levels, notes = [level] * len(points), []
    rows = [row_of(point, NOT_RUN) for point in points]
    for spec in scenario.plots:
        figure_spec = spec.model_dump(exclude_none=True)
        need = level_of(figure_spec)
        if LEVELS.index(need) <= LEVELS.index(level):
            continue
        # What is known of a point only when it has run does not choose among them now.
        conditions = {k: v for k, v in spec.where.items() if any(row.text_of(k) is not None for row in rows)}
        shown = recorded({**figure_spec, "where": conditions}, rows)
        for number in shown:
            levels[number] = max(levels[number], need, key=LEVELS.index)
        if shown:
            figure = f"the figure {spec.name or spec.kind}"
            notes.append(f"{figure} needs level {need}: recorded for {number_of(len(shown), 'point')}")
    return levels, notes
