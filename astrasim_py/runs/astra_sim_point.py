"""ASTRA-sim's inputs as a point: run, stored as points of scenarios are, and run again for finer records."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from astrasim_py.astra_sim.input_set import EMPTY, Arguments, Inputs, Name, read_inputs
from astrasim_py.astra_sim.run_inputs import AstraResult, run_inputs
from astrasim_py.core.digest import file_digest
from astrasim_py.results import store, stored_points
from astrasim_py.results.model import Manifest, Row
from astrasim_py.results.store import RunOptions
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs.task import Usage, store_run

#: Folder of these points, and what their manifests say they are.
SCENARIO = FRONT_END = "astra_sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraSimRequest(Arguments):
    """ASTRA-sim's arguments, as given; paths are relative to `folder`."""

    workload: Name  # a prefix
    corrected: bool = False

    def inputs(self) -> Inputs:
        paths = {name: getattr(self, name) for name in ("workload", "system", "network", "memory", "groups")}
        if self.folder != ".":
            paths = {k: v if v in (None, EMPTY) else os.path.join(self.folder, v) for k, v in paths.items()}
        return read_inputs(replace(self, **paths))

    def files(self, inputs: Inputs) -> dict[str, str]:
        """SHA-256 of every file that decides the result."""
        prefixes = [os.path.join(self.folder, self.workload)]
        system = inputs.system
        names = [system.injected(c) for c in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")]
        prefixes += [str(inputs.folder / name) for name in (*names, *inputs.per_node.values()) if name]
        paths = list(inputs.files)
        for prefix in dict.fromkeys(prefixes):
            paths += [f"{prefix}.{rank}.et" for rank in range(inputs.npus)]
        return {
            os.path.relpath(path, self.folder): file_digest(path)
            for path in dict.fromkeys(paths)
            if os.path.exists(path)
        }

    @property
    def name(self) -> str:
        """For people: what tells points apart."""
        return ",".join(f"{key}={value}" for key, value in self.values.items())

    @property
    def values(self) -> dict[str, str]:
        """What tells points apart, as a sweep would: the names of its files, the backend."""
        names = {"network": self.network, "workload": self.workload, "system": self.system}
        stems = {key: _stem(os.fspath(name)) for key, name in names.items()}
        return {**stems, "backend": self.backend, **({"corrected": "true"} if self.corrected else {})}


def _stem(name: str) -> str:
    """The name of a file without folder and ending."""
    return re.sub(r"\.(json|ya?ml)$", "", os.path.basename(name)) or "workload"


def run_request(
    request: AstraSimRequest, options: RunOptions, *, out: str | os.PathLike = "results", inputs: Inputs | None = None
) -> tuple[AstraResult, StoredPoint]:
    """Run ASTRA-sim's inputs and store the point under ``OUT/astra_sim``. Raises AstraError: what ASTRA-sim would hang
    or crash on; a folder that cannot be written.
    """
    usage = Usage()
    inputs = request.inputs() if inputs is None else inputs
    digests = request.files(inputs)
    arguments = {key: value for key, value in asdict(request).items() if key != "folder"}
    identity = _identity(arguments, digests)
    options.check_ranks(inputs.npus)
    result = run_inputs(
        inputs, corrected=request.corrected, engine=options.engine, level=options.level, limits=options.limits
    )
    topology = result.plan.problem.topology.name
    row = Row(
        scenario=SCENARIO, point=request.name, sweep=request.values, topology=topology, status=result.outcome.status
    )
    facts = {
        "front_end": FRONT_END,
        "scenario": SCENARIO,
        "point": request.name,
        "digest": identity,
        "sweep": request.values,
        "inputs": digests,
        "resolved": arguments,
    }
    rank_times = {"finish_ns": tuple(result.finish_ns), "exposed_comm_ns": tuple(result.exposed_ns)}
    folder = store.scenario_folder(out, SCENARIO)
    folders = store.PointFolders(folder)
    place = folders.of(len(folders.digests) + 1, store.point_label(request.values, request.name), identity)
    stored = store_run(
        place, result.plan, result.records, options, usage, row=row, facts=facts,
        source={"source": request.folder}, warnings=result.warnings, fields=rank_times,
    )  # fmt: skip
    stored_points.write_tables(folder)
    return result, stored


def _identity(arguments: Mapping, digests: Mapping[str, str]) -> str:
    return store.point_digest({FRONT_END: arguments}, digests)


def is_ours(manifest: Manifest) -> bool:
    return manifest.front_end == FRONT_END


def run_again(stored: StoredPoint, options: RunOptions) -> StoredPoint | None:
    """Run a stored point again with finer records; None where what it was computed from has changed since."""
    manifest = stored.manifest
    if _identity(manifest.resolved, manifest.inputs) != manifest.digest:
        return None
    request = AstraSimRequest(**{**manifest.resolved, "folder": stored.cost.source or "."})
    inputs = request.inputs()
    if request.files(inputs) != manifest.inputs:
        return None
    _, again = run_request(request, options, out=stored.folder.parents[2], inputs=inputs)
    return stored_points.read_point(again.folder)
