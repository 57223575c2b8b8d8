"""Checks of a point across its keys: jobs, machines, files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.document import Value
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.core.fields import CodeText, named_files
from astrasim_py.scenario.check import JobCheck, confined, split_code
from astrasim_py.scenario.keys import default
from astrasim_py.scenario.workload_models import Item

#: Top-level key → its typed value, and as written.
Typed = Mapping[str, Any]
Written = Mapping[str, Value | None]


def job_errors(typed: Typed, values: Written, topology: Any) -> Iterator[AstraError]:
    """Jobs against their topology: ranks, groups, algorithms, placements."""
    if typed["jobs"]:
        yield from _jobs(typed, values, topology)
    elif typed["workload"] is not None:
        ranks = _ranks(typed, topology)
        npus = _free_npus(topology)
        if None not in (ranks, npus) and ranks > npus:
            value = values["ranks"] or values["placement"] or values["topologies"]
            dead = f" ({topology.npu_count() - npus} of {topology.npu_count()} failed)" if topology.failed_npus else ""
            problem = f"{ranks} ranks are more than the {npus} NPUs of the topology{dead}"
            yield ScenarioError(value.place, problem, "write fewer ranks or a larger topology")
        yield from JobCheck(SimpleNamespace(**typed), values, npus if ranks is None else ranks).errors()


def _free_npus(topology: Any) -> int | None:
    """NPUs that have not failed, as far as is known without building anything."""
    npus = None if topology is None else topology.npu_count()
    return None if npus is None else npus - topology.failed_npus


def _ranks(typed: Typed, topology: Any) -> int | None:
    """Number of ranks that is written, if any; one per NPU otherwise."""
    if topology is None:
        return None
    placement = topology.placement if typed["placement"] is None else typed["placement"]
    if typed["ranks"] is None and isinstance(placement, tuple):
        return len(placement)
    return typed["ranks"]


def _jobs(typed: Typed, values: Written, topology) -> Iterator[AstraError]:
    npus = topology.npu_count() if topology is not None else None
    owner: dict[int, str] = {}
    for name, job in typed["jobs"].items():
        value = values["jobs"].get(name)
        below = {key: value.get(key) for key in ("workload", "groups", "algorithms", "stragglers")}
        yield from JobCheck(job, below, len(job.placement)).errors()
        place = (value.get("placement") or value).place
        for npu in job.placement:
            if npu in owner:
                remedy = "give each job NPUs of its own"
                yield ScenarioError(place, f'NPU {npu} belongs to job "{owner[npu]}" too', remedy)
                break
            if npus is not None and npu >= npus:
                yield ScenarioError(place, f"NPU {npu} does not exist: there are {npus}", f"write 0 to {npus - 1}")
                break
        owner.update(dict.fromkeys(job.placement, name))
    if typed["algorithms"] and typed["jobs"]:
        shared = SimpleNamespace(
            workload=None, groups={}, algorithms=typed["algorithms"], stragglers=default("stragglers")
        )
        yield from JobCheck(shared, values, None).errors()


def _items(typed: Typed, values: Written) -> Iterator[tuple[Item, Value, Mapping]]:
    """Items of all workloads, as written, and the algorithms of their jobs."""
    jobs = [(typed["workload"], values["workload"], {})]
    for name, job in (typed["jobs"] or {}).items():
        jobs.append((job.workload, values["jobs"].get(name, "workload"), job.algorithms))
    for workload, value, algorithms in jobs:
        for number, item in enumerate(workload if isinstance(workload, tuple) else ()):
            yield item, value.get(number, item.kind) or value, algorithms


def machine_errors(typed: Typed, values: Written) -> Iterator[AstraError]:
    """Items that need a machine which the scenario does not describe."""
    compute, memory = typed["compute"], typed["memory"]
    rated = compute is None or compute.roofline
    for item, at, _ in _items(typed, values):
        if item.compute is not None and item.compute.operations is not None and not rated:
            remedy = 'write e.g. compute: {peak: "312 TFLOP/s", memory_bandwidth: "2 TB/s"}'
            yield ScenarioError(at.place, "operations take time only on NPUs of a known peak", remedy)
        if item.memory is not None and memory is not None and memory.kind == "none":
            remedy = 'write e.g. memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}'
            yield ScenarioError(at.place, "the scenario has no remote memory", remedy)


def custom_errors(typed: Typed, values: Written) -> Iterator[AstraError]:
    """Custom collectives without an algorithm: there is none to fall back to."""
    for item, at, own in _items(typed, values):
        if item.custom is not None and CUSTOM not in own and CUSTOM not in typed["algorithms"]:
            remedy = "write e.g. algorithms: {custom: {file: alltonext.xml}}"
            yield ScenarioError(at.place, "a custom collective needs an algorithm", remedy)


def file_errors(
    typed: Typed, values: Written, folder: Path, allow_outside: bool, allow_code: bool
) -> Iterator[AstraError]:
    """Files that lead out of the scenario's folder, and code that may not be run."""
    for at, name in named_files(typed):
        here = values[str(at[0])]
        for step in at[1:]:
            here = here.get(step) or here
        if isinstance(name, CodeText) and not allow_code:
            remedy = "run with --allow-code if you trust it"
            yield ScenarioError(here.place, "names Python code, which would be run", remedy)
        try:
            if isinstance(name, CodeText):
                split_code(name, here.place)
            confined(name, folder, here.place, allow_outside)
        except ScenarioError as error:
            yield error
