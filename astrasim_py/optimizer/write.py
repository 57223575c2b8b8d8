"""The folder of an optimization: a scenario with every choice, its files, a report and a figure."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from astrasim_py.core.errors import InternalError, UsageError
from astrasim_py.core.files import write_files
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.optimizer.choices import holder
from astrasim_py.optimizer.extras import INLINED, algorithm_bytes, algorithms_of, inlined_files, trace_files
from astrasim_py.optimizer.optimize import Optimized
from astrasim_py.optimizer.space import Space
from astrasim_py.optimizer.synthesized import FOLDER
from astrasim_py.optimizer.text import report
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report import plots
from astrasim_py.report.record_plots import Panel
from astrasim_py.scenario.expand import Point, expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.plan import Plan

SCENARIO, REPORT, FIGURE = "scenario.yaml", "report.md", "before_after.svg"
#: Rows of the table of nodes up to which a figure is drawn.
_MOST_ROWS = 1_500_000
_TRACES = "workload"


def check_files(point: Point) -> list[str]:
    """Names of the files of a point, which are copied beside the scenario that is written.

    Raises UsageError: one lies outside the scenario's folder.
    """
    names = list(input_digests(point))
    for name in names:
        if name.startswith("..") or os.path.isabs(name):
            problem = "lies outside the scenario's folder, and files are copied beside the scenario that is written"
            raise UsageError(name, problem, "move it into the folder of the scenario")
    return names


def write_optimized(result: Optimized, folder: Path) -> list[str]:
    """Write the folder, all files or none; returns their names.

    Raises OutputError: a file cannot be written. Raises InternalError: the scenario that is written takes another time.
    """
    space, best = result.space, result.best
    files: dict[str, bytes] = {}
    for name in check_files(space.point):
        files[name] = (Path(space.point.folder) / name).read_bytes()
    problem = space.problem(best)
    plans = plan_for(space.problem(space.baseline)), plan_for(problem)
    config = space.config(best)
    if space.reordered(best):
        for job in problem.jobs:
            job_name = job.name if config.get("jobs") else ""
            files |= dict(_traces(holder(config, job_name), job))
    files[SCENARIO] = _document(space, config)
    algorithms, notes = algorithms_of(plans[1], space.made)
    files |= dict(algorithm_bytes(algorithms))
    inlined, left_out = inlined_files(problem, plans[1])
    files |= inlined
    notes += left_out
    figure = _figure(plans, result)
    if figure is None:
        notes.append("No figure: the run has too many nodes to draw")
    else:
        files[FIGURE] = figure
    notes += [f"Warning: {text}" for text in space.warnings]
    uses = {name: use for name, (_, use) in algorithms.items()}
    files[REPORT] = report(result, uses, notes, FIGURE if figure else None).encode()
    write_files(((folder / name, data) for name, data in files.items()), make_folder=True)
    _remove_others(folder, files)
    again = _makespan(folder, space.point)
    if again != result.makespan_ps:
        raise InternalError(f"the scenario that was written takes {again} ps, not {result.makespan_ps} ps")
    return list(files)


def _remove_others(folder: Path, files: Mapping[str, bytes]) -> None:
    """Remove algorithms and traces that an earlier result of the search has left."""
    for below in (FOLDER, INLINED, _TRACES):
        for path in folder.glob(f"{below}/*"):
            if path.suffix in (".npz", ".et", ".json") and path.relative_to(folder).as_posix() not in files:
                path.unlink()


def _document(space: Space, config: dict[str, Any]) -> bytes:
    config = dict(config)
    topology, called = config.pop("topology"), config.pop("topology_name")
    if config.get("jobs") and all("placement" in job for job in config["jobs"].values()):
        config.pop("placement", None)
    # Another name than that of the scenario, whose folder of results is its own; names have 64 characters at most.
    name = f"{space.point.scenario[:54]}-optimized"
    document = {"name": name, "topologies": {called: topology}, **config}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return text.encode()


def _traces(keys: dict[str, Any], job) -> Iterator[tuple[str, bytes]]:
    """Files of the traces of a job, which its keys then name."""
    workload, section = job.workload, keys["workload"]
    prefix = f"{_TRACES}/{job.name}"
    yield from trace_files(prefix, workload)
    rules = {"dependencies": section["dependencies"]} if isinstance(section, dict) and "dependencies" in section else {}
    keys["workload"] = {"trace": prefix, "groups": f"{prefix}.groups.json", **rules}
    keys.pop("groups", None)


def _figure(plans: tuple[Plan, Plan], result: Optimized) -> bytes | None:
    """Gantt charts of the step before and after; None where it has too many nodes."""
    if max(plan.row_count for plan in plans) > _MOST_ROWS:
        return None
    panels = []
    for plan, title in zip(plans, ("as in the scenario", "optimized"), strict=True):
        records = simulate(plan, level="nodes")
        jobs = dict(enumerate(map(plan.job_name, range(plan.npu_ranks))))
        panels.append(
            Panel(
                title=title,
                makespan=records.makespan,
                tables=records.tables(),
                jobs=jobs if len(set(jobs.values())) > 1 else {},
                npu_of=plan.npu_of[: plan.npu_ranks],
                switches=plan.switches,
                shares=plan.problem.network.model == "fluid",
            )
        )
    drawing = plots.draw({"kind": "gantt", "format": ["svg"]}, (), panels, title=result.space.point.scenario)
    return b"".join(drawing.data["svg"])


def _makespan(folder: Path, point: Point) -> int:
    """Makespan of the scenario that was written, ps."""
    scenario = load_scenario(folder / SCENARIO, allow_outside=point.allow_outside, allow_code=point.allow_code)
    return simulate(prepare(expand(scenario)[0]).problem, level="summary").makespan
