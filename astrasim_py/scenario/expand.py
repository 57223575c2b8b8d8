"""Expand a scenario into points: resolved, frozen, small enough to be sent to other processes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

from astrasim_py.core.document import Value, join
from astrasim_py.scenario import variables
from astrasim_py.scenario.load import LoadedScenario, default, read_plain
from astrasim_py.scenario.schema import Scenario
from astrasim_py.topology.from_keys import ASTRA_SIM

#: Depth of the places that a point carries for error messages.
_PLACES_DEPTH = 3


@dataclass(frozen=True, kw_only=True)
class Point:
    """One simulation, fully resolved.

    `places`: ``workload[0]`` → ``file:line:column: workload[0]``, for error messages.
    """

    scenario: str  # name of the scenario
    index: int  # place in the order of the sweep
    name: str  # for people: ``topology=ring,size=64 KiB``; the scenario's name where nothing is swept
    values: Mapping[str, str]  # swept key → its value as written
    config: Mapping[str, Any]  # the resolved scenario of this point as plain values with units, only what it depends on
    folder: str  # where files are looked up
    allow_outside: bool = False
    allow_code: bool = False
    repeat: int = 1  # number of points that differ from this one only in their seeds, itself included
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def place(self, path: str) -> str:
        """The place of a path such as ``algorithms.all_reduce``, or of the nearest one above it."""
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get(path, self.scenario)

    @cached_property
    def spec(self) -> SimpleNamespace:
        """The typed values of `config`: the keys of `Scenario` that describe a point, and ``topology_name``."""
        semantics = read_plain("semantics", self.config.get("semantics", "native"))
        binary = semantics.binary_bandwidth
        typed = {
            key: read_plain(key, self.config[key], binary=binary) if key in self.config else default(key)
            for key in Scenario.model_fields
            if key not in (*variables.STUDY_KEYS, "topologies", "topology", "semantics")
        }
        name = self.config["topology_name"]
        topology = read_plain("topologies", {name: self.config["topology"]}, binary=binary)[name]
        return SimpleNamespace(topology_name=name, topology=topology, semantics=semantics, **typed)

    def __getstate__(self) -> dict[str, Any]:
        """Without the typed form, which is made again where it is needed."""
        return {key: value for key, value in self.__dict__.items() if key != "spec"}


def expand(scenario: LoadedScenario) -> tuple[Point, ...]:
    """The points of a scenario, in the order of nested loops over its sweep."""
    resolver, plain_values = scenario.resolver, {}

    def section(key: str, value: Value) -> tuple[Any, dict[str, str]]:
        if (key, value) not in plain_values:
            places: dict[str, str] = {}
            _places(value, key, _PLACES_DEPTH, places)
            plain_values[key, value] = value.plain(), places
        return plain_values[key, value]

    points = []
    for index, (assignment, labels) in enumerate(variables.assignments(scenario.axes)):
        resolved = ((key, resolver.section(key, assignment)) for key in resolver.users)
        sections = {key: value for key, value in resolved if value is not None and value.data is not None}
        topologies, chosen = sections.pop("topologies").mapping, sections.pop("topology", None)
        name = next(iter(topologies)) if chosen is None else variables.label_of(chosen)
        sections["topology"] = topologies[name]
        if (files := sections.get("workload")) is not None and (network := files.get(ASTRA_SIM, "network")) is not None:
            stem = PurePath(variables.label_of(network.get("file") or network)).stem
            name = re.sub(r"[^A-Za-z0-9._-]", "_", stem)[:64] or ASTRA_SIM
        plain = {key: section(key, value) for key, value in sections.items()}
        config = {key: values for key, (values, _) in plain.items()} | {"topology_name": name}
        repeat = scenario.repeat if with_seeds(config, 1) != config else 1
        for number in range(repeat):
            values = labels | ({"seed": str(number)} if repeat > 1 else {})
            points.append(
                Point(
                    scenario=scenario.name,
                    index=index * scenario.repeat + number,
                    name=",".join(f"{key}={label}" for key, label in values.items()) or scenario.name,
                    values=values,
                    config=with_seeds(config, number) if number else config,
                    folder=str(scenario.folder),
                    allow_outside=scenario.allow_outside,
                    allow_code=scenario.allow_code,
                    repeat=repeat,
                    places={path: place for _, places in plain.values() for path, place in places.items()},
                )
            )
    return tuple(points)


def with_seeds(config: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """The configuration of a point with `offset` added to its seeds: of noise, ECMP and random placements."""
    copy = {**config, "topology": dict(config["topology"])}
    for holder, key, condition in ((copy, "noise", True), (copy["topology"], "routing", "ecmp")):
        entry = holder.get(key)
        if entry and (condition is True or entry.get(condition)):
            holder[key] = {**entry, "seed": (entry.get("seed", 0) + offset) % 2**63}
    workload = config.get("workload")
    if isinstance(workload, Mapping) and isinstance(keys := workload.get("open_loop"), Mapping):
        copy["workload"] = {"open_loop": {**keys, "seed": (keys.get("seed", 0) + offset) % 2**63}}
    for holder in (copy, copy["topology"]):
        entry = holder.get("placement")
        if isinstance(entry, Mapping):
            holder["placement"] = {"random": (entry["random"] + offset) % 2**31}
    return copy


def _places(value: Value, path: str, depth: int, out: dict[str, str]) -> None:
    out[path] = value.place
    if depth and isinstance(value.data, dict | list):
        for key, inner in value.data.items() if isinstance(value.data, dict) else enumerate(value.data):
            _places(inner, join(path, key), depth - 1, out)
