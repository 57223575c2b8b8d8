"""Workloads in Chakra's traces."""

from collections.abc import Iterator
from typing import Any

from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.digest import digest
from astrasim_py.core.notes import Notes
from astrasim_py.preparation.inputs import WORKLOADS
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.system.durations import node_place, unpriced
from astrasim_py.system.machine_models import NpuModel
from astrasim_py.system.semantics import DATA


def traced(job: JobSection) -> Workload:
    """The workload of a job that names traces, or its skeleton."""
    run, spec, place = job.run, job.spec.workload, job.at("workload")
    prefix = run.path(spec.trace, place)
    groups = run.path(spec.groups, place) if spec.groups else None
    options = {"size_unit": spec.size_unit, "dtype_bytes": spec.dtype_bytes, "macs": spec.macs}
    options |= {"untyped": spec.untyped, "ranks": job.ranks}
    options["dependencies"] = spec.dependencies or run.spec.semantics.said_dependencies
    rules: dict[str, Any] = {}
    if spec.skeleton:
        rules = {"compute": run.spec.compute, "semantics": run.spec.semantics, "dependencies": DATA}
        rules["speeds"] = job.spec.stragglers.compute_speed

    def read() -> tuple[Workload, Notes]:
        notes = Notes()
        workload = read_workload(str(prefix), groups=groups, keep_raw=False, notes=notes, **options)
        if rules:  # a skeleton has durations alone
            from astrasim_py.preparation.skeletons import skeleton_workload

            notes.warnings += _unpriced(workload, run.spec.compute)
            workload = skeleton_workload(workload, place=job.at("workload.skeleton"), **rules)
        return workload, notes

    workload, notes = run.read_once(
        WORKLOADS,
        [*run.trace_files(prefix, job.ranks, place), *([groups] if groups else [])],
        ("workload", str(prefix), *options.values(), digest(rules)),
        read,
    )
    job.warn((*notes.warnings, *_unpriced(workload, run.spec.compute)))
    run.notes.hints.extend(notes.hints)
    return workload


def _unpriced(workload: Workload, compute: NpuModel) -> Iterator[str]:
    """Operations that nothing gives a time."""
    for trace in dict.fromkeys(workload.traces):
        rows = unpriced(trace, compute)
        if len(rows):
            nodes = "a node" if len(rows) == 1 else f"{len(rows)} nodes"
            problem = f"the compute of {nodes} takes no time: num_ops without a duration"
            yield f"{node_place(trace, rows[0])}: {problem}; write e.g. compute: {{preset: dgx_h100}}"
            return
