"""Checks of a scenario as a whole: its keys, its sweep, its figures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astrasim_py.core.by_need import load
from astrasim_py.core.document import Value
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.strict_model import Mistake
from astrasim_py.scenario import variables
from astrasim_py.scenario.plot_spec import BY_JOB, COLUMNS, JOB_TIMES, PlotSpec
from astrasim_py.scenario.schema import Scenario
from astrasim_py.topology.from_keys import ASTRA_SIM
from astrasim_py.topology.placement import RandomPlacement

#: Columns that a figure may use beside swept keys.
_COLUMNS = ("topology", "algorithm", "size", "npus", "model", "engine")


def top_level_mistakes(document: Value) -> Iterator[Mistake]:
    """Keys that are unknown, missing, or in the wrong place."""
    keys = tuple(Scenario.model_fields)
    mapping = document.mapping
    meant: set[str] = set()
    for key in mapping:
        if key not in keys:
            remedy = "run the verb explore on this file" if key == "explore" else did_you_mean(key, keys)
            meant.update(other for other in keys if remedy == f'did you mean "{other}"?')
            yield Mistake((key,), True, "is not a key here", remedy)
    if mapping["name"].data is None:
        yield Mistake(("name",), False, "is empty", "write e.g. name: ring_vs_torus, or drop it")
    if "topologies" not in mapping and not {"topology", "topologies"} & meant:
        (example, *_) = Scenario.model_fields["topologies"].examples or [""]
        yield Mistake((), False, '"topologies" is missing', f"write e.g. topologies: {example}")
    workload, jobs = mapping.get("workload"), mapping.get("jobs")
    if (workload is None or workload.data is None) and jobs is None and not {"workload", "jobs"} & meant:
        yield Mistake((), False, '"workload" is missing', "write e.g. workload: [{all_reduce: {size: 64 MiB}}]")
    if document.get("workload", ASTRA_SIM) is not None:
        yield from load("astrasim_py.scenario.astra_sim_inputs:inputs_mistakes")(document)
    if "compare" in mapping and jobs is None:
        yield Mistake(("compare",), True, "compares jobs, and there are none", "drop it, or write jobs")
    if jobs is not None:
        if jobs.data == {}:
            yield Mistake(("jobs",), False, "has no job", "write e.g. jobs: {a: {workload: [barrier], ranks: 8}}")
        all_placed = isinstance(jobs.data, dict) and all("placement" in job.mapping for job in jobs.mapping.values())
        for key in ("workload", "groups", "stragglers", "ranks", *(["placement"] if all_placed else [])):
            if key in mapping:
                yield Mistake((key,), True, f"with jobs, each job has its own {key}", "move it into a job")


def sweep_mistakes(document: Value, resolver: variables.Resolver) -> Iterator[Mistake | ScenarioError]:
    """Swept keys that lead nowhere or are never used, and topologies that do not exist."""
    topologies = document.get("topologies")
    names = list(topologies.data) if topologies is not None and isinstance(topologies.data, dict) else []
    for key in resolver.unused():
        if variables.is_path(key) and variables.unclear_topology(variables.split_path(key, document), document):
            continue  # told below
        if variables.is_path(key):
            continue  # told below
        of_topology = len(names) == 1 and topologies is not None and key in topologies.mapping[names[0]].mapping
        also = f", sweep topology.{key}" if of_topology else ""
        problem, remedy = f'"{key}" is swept and never used', f"write ${key} where it belongs{also}, or delete it"
        yield Mistake(_axis(document, key), True, problem, remedy)
    keys = tuple(key for key in Scenario.model_fields if key not in variables.STUDY_KEYS)
    for axis in resolver.axes:
        for i, key in enumerate(axis.keys):
            steps = variables.split_path(key, document) if variables.is_path(key) else [keys[0]]
            if unclear := variables.unclear_topology(steps, document):
                yield Mistake(_axis(document, key), True, *unclear)
                continue
            first = str(steps[0])
            if first in variables.STUDY_KEYS:
                yield Mistake(_axis(document, key), True, f"{first} is of the whole study", "sweep keys of a point")
            elif first not in keys:
                problem = f'{key} leads nowhere: there is no key "{first}"'
                yield Mistake(_axis(document, key), True, problem, did_you_mean(first, keys))
            if key == "topology":
                for row in axis.rows:
                    yield from _unknown_topology(row[i], names)
    chosen = document.get("topology")
    if chosen is not None:
        yield from _unknown_topology(chosen, names)
    elif len(names) > 1 and not any("topology" in axis.keys for axis in resolver.axes):
        remedy = f"write topology: {names[0]}, or sweep: {{topology: [{', '.join(names[:3])}]}}"
        yield Mistake(("topologies",), False, f"there are {len(names)} topologies", remedy)


def _axis(document: Value, key: str) -> tuple[str | int, ...]:
    """The keys that lead to a swept key."""
    if document.get("sweep", key) is not None:
        return "sweep", key
    groups = document.get("sweep", "zip")
    listed = enumerate(groups.data) if groups is not None and isinstance(groups.data, list) else ()
    return "sweep", "zip", *(i for i, group in listed if key in group.mapping), key


def _unknown_topology(value: Value, names: Sequence[str]) -> Iterator[ScenarioError]:
    name = variables.label_of(value)
    if name not in names and not variables.variables_in(str(value.data)):
        yield ScenarioError(value.place, f'no topology is called "{name}"', did_you_mean(name, names))


def has_seeds(typed: Mapping[str, Any], topology: Any) -> bool:
    """Whether any part of a point is random; `typed`: the values of its keys."""
    routing = topology and topology.routing
    placements = (typed["placement"], topology and topology.placement)
    return (
        typed["noise"] is not None
        or hasattr(typed["workload"], "open_loop")
        or bool(routing and routing.ecmp)
        or any(isinstance(kind, RandomPlacement) for kind in placements)
    )


def repeat_mistakes(repeat: int, points: int, random: bool, axes: Sequence[variables.Axis]) -> Iterator[Mistake]:
    """Repetitions of a point without randomness, too many of them, and a swept key of their name."""
    if not random:
        problem, remedy = (
            "nothing here is random",
            "write noise, routing: {ecmp: true} or a random placement, or drop it",
        )
        yield Mistake(("repeat",), False, problem, remedy)
    if points * repeat > variables.MAX_POINTS:
        problem = f"{points * repeat:,} runs are more than the cap of {variables.MAX_POINTS:,}"
        yield Mistake(("repeat",), False, problem, "repeat or sweep less")
    if any("seed" in axis.keys for axis in axes):
        problem = '"seed" is swept, but repeat uses this name'
        yield Mistake(("repeat",), False, problem, "call the swept key otherwise")


def plot_mistakes(document: Value, plots: Sequence[PlotSpec], axes: Sequence[variables.Axis]) -> Iterator[Mistake]:
    """Figures over keys that are not swept, or values that they do not take."""
    labels = {key: [row[i] for row in axis.labels] for axis in axes for i, key in enumerate(axis.keys)}
    jobs, swept = document.get("jobs"), "job" in labels
    if jobs is not None and isinstance(jobs.data, dict) and not swept:
        labels["job"] = list(jobs.data)
    plottable = (*labels, *(c for c in _COLUMNS if c not in labels))
    plot_names: set[str] = set()
    for number, plot in enumerate(plots):

        def wrong(problem: str, remedy: str, *keys: str | int, number=number) -> Mistake:
            return Mistake(("plots", number, *keys), False, problem, remedy)

        for role in ("x", "series", "facet"):
            key, columns = getattr(plot, role), COLUMNS if plot.kind == "pareto" and role == "x" else ()
            if key is not None and key not in (*plottable, *columns):
                yield wrong(f'"{key}" is not swept', did_you_mean(key, (*labels, *columns) or plottable), role)
        compared = plot.series or (plot.x if plot.kind == "speedup" else None)
        if plot.baseline is not None and compared is None:
            yield wrong("a baseline without series", "write e.g. series: topology", "baseline")
        elif plot.baseline is not None and compared in labels and plot.baseline not in labels[compared]:
            problem = f'"{plot.baseline}" is not a value of {compared}'
            yield wrong(problem, did_you_mean(plot.baseline, labels[compared]), "baseline")
        by_job = not swept and "job" in (plot.x, plot.series, plot.facet, *plot.where)
        if plot.kind == "slowdown" and plot.baseline is None and not (by_job and "compare" in document.mapping):
            remedy = "write series: KEY and baseline: one of its values"
            remedy += "; or compare: alone, and series: job" if "jobs" in document.mapping else ""
            yield wrong("a slowdown needs a baseline", remedy)
        if by_job and plot.kind not in BY_JOB:
            yield wrong(f"{plot.kind} is not known by job", f"write one of the kinds {', '.join(BY_JOB)}")
        if plot.of == "jobs" and jobs is None:
            yield wrong("there are no jobs here", "write of: points, or jobs", "of")
        if plot.y in JOB_TIMES and not by_job:
            yield wrong("is known of jobs alone", "write series: job", "y")
        if by_job and plot.y in COLUMNS and plot.y != "time_ns":
            yield wrong(f"{plot.y} is not known by job", f"write one of time_ns, {', '.join(JOB_TIMES)}", "y")
        of_points: list[tuple[tuple[str | int, ...], str, object]]
        of_points = [(("where",), key, value) for key, value in plot.where.items()]
        for row, time in enumerate(plot.measured or ()):
            of_points += [(("measured", row), key, value) for key, value in time.items() if key != "time"]
        for steps, key, value in of_points:
            entry = document.get("plots", number, *steps, key)
            text = variables.label_of(entry) if entry is not None else str(value)
            if key not in plottable:
                yield wrong(f'"{key}" is not swept', did_you_mean(key, labels or plottable), *steps, key)
            elif text not in labels.get(key, [text]):
                yield wrong(f'"{text}" is not a value of {key}', did_you_mean(text, labels[key]), *steps, key)
        name = plot.name or plot.kind
        if name in plot_names and plot.name is not None:
            yield wrong(f'two plots are called "{name}"', "choose another name", "name")
        plot_names.add(name)
