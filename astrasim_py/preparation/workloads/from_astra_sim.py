"""Workloads that are whole runs of ASTRA-sim: its files become the problem, its network the topology."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from astrasim_py.astra_sim.configs import read_network
from astrasim_py.astra_sim.input_set import Arguments, Inputs, read_inputs
from astrasim_py.astra_sim.json_file import Changes
from astrasim_py.astra_sim.run_inputs import make_problem, network_topology, route_warnings
from astrasim_py.core.choices import BY_DIMENSION
from astrasim_py.core.errors import AstraError
from astrasim_py.core.fields import FileText
from astrasim_py.core.notes import Notes
from astrasim_py.scenario.astra_sim_inputs import AstraSimFile
from astrasim_py.scenario.check import confined
from astrasim_py.scenario.expand import Point
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem
from astrasim_py.topology.model import Topology

_KEY = "workload.astra_sim"


def problem_of(point: Point, limits: Limits | None) -> tuple[Problem, Callable[[Plan], Notes]]:
    """The problem of a point, and what is known of it once it is planned. Raises what ASTRA-sim would not survive."""
    inputs = _inputs(point)
    for prefix in _injected(inputs):
        _inside(point, [prefix], f"{_KEY}.system")
    corrected = point.spec.workload.astra_sim.corrected
    warnings = list(inputs.warnings)
    problem = make_problem(inputs, warnings, corrected=corrected, limits=limits or point.spec.limits)

    def notes(plan: Plan) -> Notes:
        more = [] if corrected else route_warnings(plan, inputs)
        return Notes([f"{point.name}: {text}" for text in dict.fromkeys((*warnings, *more))])

    return problem, notes


def topology_of(point: Point) -> Topology:
    """The network of a point."""
    spec, place = point.spec.workload.astra_sim.network, point.place(f"{_KEY}.network")
    path = confined(spec.file, Path(point.folder), place, point.allow_outside)
    return network_topology(read_network(path, [], Changes(spec.changes, place)))


def injected_files(point: Point) -> Iterator[str]:
    """Prefixes of injected algorithms, relative to the scenario; none where the inputs cannot be read."""
    try:
        prefixes = _injected(_inputs(point))
    except AstraError:
        return  # preparing the point says what is wrong
    yield from (os.path.relpath(prefix, point.folder) for prefix in prefixes)


def _injected(inputs: Inputs) -> list[Path]:
    names = [inputs.system.injected(collective) for collective in BY_DIMENSION]
    return [inputs.folder / name for name in (*names, *inputs.per_node.values()) if name]


def _inside(point: Point, files: list[Path], key: str) -> None:
    """Raise ScenarioError if one of the files is not below the scenario's folder."""
    for file in files:
        name = FileText(os.path.relpath(file, point.folder))
        confined(name, Path(point.folder), point.place(key), point.allow_outside)


def _inputs(point: Point) -> Inputs:
    spec = point.spec.workload.astra_sim

    def path(name: FileText, key: str) -> Path:
        return confined(name, Path(point.folder), point.place(f"{_KEY}.{key}"), point.allow_outside)

    keys = {"system": "system", "network": "network", "memory": "remote_memory"}
    files: dict[str, AstraSimFile] = {name: getattr(spec, key) for name, key in keys.items() if getattr(spec, key)}
    paths = {name: path(file.file, keys[name]) for name, file in files.items()}
    prefix = path(spec.workload, "workload")
    _inside(point, [file for file in sorted(prefix.parent.glob(f"{prefix.name}.*.et*")) if os.path.islink(file)], _KEY)
    return read_inputs(
        Arguments(
            workload=prefix,
            system=paths["system"],
            network=paths["network"],
            memory=paths.get("memory"),
            groups=None if spec.comm_group is None else path(spec.comm_group, "comm_group"),
            backend=spec.backend,
            queues_per_dim=spec.num_queues_per_dim,
            injection_scale=str(spec.injection_scale),
            rendezvous=spec.rendezvous_protocol,
            folder=Path(point.folder, spec.folder or "."),
            changes={
                name: Changes(file.changes, point.place(f"{_KEY}.{keys[name]}"))
                for name, file in files.items()
                if file.changes
            },
        )
    )
