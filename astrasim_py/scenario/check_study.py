"""Checks of a scenario as a whole: its keys, its sweep, its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrasim_py.core.document import Value
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.scenario import variables
from astrasim_py.scenario.schema import PlotSpec, Scenario

#: Columns that a figure may use beside swept keys.
_COLUMNS = ("topology", "algorithm", "size", "npus", "model", "engine")


def top_level_errors(document: Value) -> Iterator[ScenarioError]:
    """Keys that are unknown, missing, or in the wrong place."""
    known = tuple(Scenario.model_fields)
    for key in document.data:
        if key not in known:
            yield ScenarioError(document.key_place(key), "is not a key here", did_you_mean(key, known))
    for key in ("name", "topologies"):
        if key not in document.data:
            example = Scenario.model_fields[key].examples[0]
            yield ScenarioError(document.place, f'"{key}" is missing', f"write e.g. {key}: {example}")
    workload = document.data.get("workload")
    if (workload is None or workload.data is None) and "jobs" not in document.data:
        remedy = "write e.g. workload: [{all_reduce: {size: 64 MiB}}]"
        yield ScenarioError(document.place, '"workload" is missing', remedy)
    if "jobs" in document.data:
        for key in ("workload", "groups", "stragglers", "placement", "ranks"):
            if key in document.data:
                problem = f"with jobs, each job has its own {key}"
                yield ScenarioError(document.key_place(key), problem, "move it into a job")


def sweep_errors(document: Value, resolver: variables.Resolver) -> Iterator[ScenarioError]:
    """Swept keys that lead nowhere or are never used, and topologies that do not exist."""
    topologies = document.get("topologies")
    names = list(topologies.data) if topologies is not None and isinstance(topologies.data, dict) else []
    for key in resolver.unused():
        value = _place_of_axis(document, key)
        if variables.is_path(key):
            yield ScenarioError(value, f"{key} leads nowhere", "write the path of a key of the scenario")
        else:
            yield ScenarioError(
                value, f'"{key}" is swept and never used', f"write ${key} where it belongs, or delete it"
            )
    known = tuple(key for key in Scenario.model_fields if key not in variables.STUDY_KEYS)
    for axis in resolver.axes:
        for i, key in enumerate(axis.keys):
            first = str(variables.split_path(key, document)[0]) if variables.is_path(key) else known[0]
            if first not in known:
                place = _place_of_axis(document, key)
                yield ScenarioError(
                    place, f'{key} leads nowhere: there is no key "{first}"', did_you_mean(first, known)
                )
            if key == "topology":
                for row in axis.rows:
                    yield from _unknown_topology(row[i], names)
    if len(names) > 1 and "topology" not in document.data:
        if not any("topology" in axis.keys for axis in resolver.axes):
            remedy = f"write topology: {names[0]}, or sweep: {{topology: [{', '.join(names[:3])}]}}"
            yield ScenarioError(_place(document, "topologies"), f"there are {len(names)} topologies", remedy)
    elif (chosen := document.get("topology")) is not None:
        yield from _unknown_topology(chosen, names)


def _place_of_axis(document: Value, key: str) -> str:
    sweep = document.get("sweep")
    if sweep is not None and key in sweep.data:
        return sweep.key_place(key)
    groups = sweep.get("zip") if sweep is not None else None
    for group in (groups.data if isinstance(groups.data, list) else [groups]) if groups is not None else ():
        if key in group.data:
            return group.key_place(key)
    return _place(document, "sweep")


def _unknown_topology(value: Value, names: Sequence[str]) -> Iterator[ScenarioError]:
    name = variables.label_of(value)
    if name not in names and not variables.variables_in(str(value.data)):
        yield ScenarioError(value.place, f'no topology is called "{name}"', did_you_mean(name, names))


def plot_errors(document: Value, plots: Sequence[PlotSpec], axes: Sequence[variables.Axis]) -> Iterator[ScenarioError]:
    """Figures over keys that are not swept, or values that they do not take."""
    labels = {key: [row[i] for row in axis.labels] for axis in axes for i, key in enumerate(axis.keys)}
    known = (*labels, *(c for c in _COLUMNS if c not in labels))
    seen: dict[str, int] = {}
    for number, plot in enumerate(plots):

        def place(*keys: str, number=number) -> str:
            value = document.get("plots", number, *keys) or document.get("plots", number)
            return value.place

        for role in ("x", "series", "facet"):
            key = getattr(plot, role)
            if key is not None and key not in known:
                yield ScenarioError(place(role), f'"{key}" is not swept', did_you_mean(key, labels or known))
        if plot.baseline is not None and plot.series is None:
            yield ScenarioError(place("baseline"), "a baseline without series", "write e.g. series: topology")
        elif plot.baseline is not None and plot.baseline not in labels.get(plot.series, [plot.baseline]):
            problem = f'"{plot.baseline}" is not a value of {plot.series}'
            yield ScenarioError(place("baseline"), problem, did_you_mean(plot.baseline, labels[plot.series]))
        if plot.kind == "slowdown" and plot.baseline is None:
            yield ScenarioError(
                place(), "a slowdown needs a baseline", "write series: KEY and baseline: one of its values"
            )
        for key, value in plot.where.items():
            written = document.get("plots", number, "where", key)
            text = variables.label_of(written) if written is not None else str(value)
            if key not in known:
                yield ScenarioError(place("where", key), f'"{key}" is not swept', did_you_mean(key, labels or known))
            elif text not in labels.get(key, [text]):
                remedy = did_you_mean(text, labels[key])
                yield ScenarioError(place("where", key), f'"{text}" is not a value of {key}', remedy)
        name = plot.name or plot.kind
        if name in seen and plot.name is not None:
            yield ScenarioError(place("name"), f'two plots are called "{name}"', "choose another name")
        seen[name] = number


def _place(document: Value, key: str) -> str:
    value = document.get(key)
    return value.place if value is not None else document.place
