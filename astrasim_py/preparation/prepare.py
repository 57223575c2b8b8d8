"""From a point to a Problem: topologies are built, files read, sources of algorithms chosen.

Everything is kept per process, so that the points of a sweep share what they have in common; large traces are shared by
the worker processes of a run, too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from astrasim_py.chakra.notes import unplanned
from astrasim_py.chakra.workload import Workload, read_workload
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest, file_digest
from astrasim_py.core.errors import ScenarioError, TopologyError, TraceError, UsageError
from astrasim_py.core.fields import CodeText, FileText, named_files
from astrasim_py.core.notes import Notes
from astrasim_py.core.registry import names, provided
from astrasim_py.preparation.algorithms import algorithms_of
from astrasim_py.preparation.inputs import Preparation, files_of
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.job_models import (
    AlgorithmByDimension,
    ModelWorkload,
    Partition,
    ReaderWorkload,
    RecordedWorkload,
    TraceWorkload,
)
from astrasim_py.system.compatible import NOISE, SKELETON, refuse
from astrasim_py.system.durations import node_place, unpriced
from astrasim_py.system.machine_models import Limits, NetworkModel, NpuModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.plan_notes import source_notes
from astrasim_py.system.problem import Job, Planner, Problem
from astrasim_py.system.semantics import DATA
from astrasim_py.topology.hardware import profile
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.workload.iterations import iterate
from astrasim_py.workload.microbenchmarks import generate

_TOPOLOGIES: Memo[Topology] = Memo(32)
_WORKLOADS: Memo[Workload] = Memo(4)


@dataclass(frozen=True)
class Prepared:
    """A point that is ready to be run.

    `notes`: what its files and sections say. Sources of algorithms are asked by the calls of a plan: what they find out
    is known with it, so `notes_with` takes one.
    """

    problem: Problem
    notes: Notes

    def notes_with(self, plan: Plan) -> Notes:
        """All notes of the point; `plan`: of its problem."""
        notes = Notes()
        notes.add(self.notes)
        notes.add(source_notes(plan))
        return notes


def prepare(
    point: Point,
    *,
    limits: Limits | None = None,
    kept: Path | None = None,
    beside: Path | None = None,
    given: Mapping[str, Algorithm] | None = None,
) -> Prepared:
    """Make the Problem of a point.

    Parameters
    ----------
    point : Point
        One of those that `expand` makes.
    limits : Limits, optional
        Instead of those of the scenario.
    kept : Path, optional
        Folder of synthesized algorithms, beside the results.
    beside : Path, optional
        Folder in which processes share the files that they read.
    given : mapping of str to Algorithm, optional
        Algorithms by the names of files that need not be there yet.

    Raises
    ------
    ScenarioError, TopologyError
        The point contradicts itself.
    TraceError, AlgorithmError
        A file that cannot be read, or a wrong algorithm; with ``verify: strict`` also one that cannot be verified.
    """
    run = Preparation(point=point, kept=kept, beside=beside, given=given or {})
    run = replace(run, network=_network(run))
    spec, topology = run.spec, _topology(run)
    free = _free(run, topology)
    jobs = tuple(_job(run, topology, name, f"jobs.{name}", job, free) for name, job in spec.jobs.items())
    jobs = jobs or (_job(run, topology, "job0", "", spec),)
    problem = Problem(
        topology=topology,
        jobs=jobs,
        network=run.network,
        semantics=spec.semantics,
        compute=spec.compute,
        memory=spec.memory,
        limits=limits or spec.limits,
        noise=spec.noise,
        nic=spec.nic,
    )
    return Prepared(problem, run.notes)


def _topology(run: Preparation) -> Topology:
    shape, place, content = run.spec.topology, run.at("topology"), ""
    for (key,), name in named_files(shape):
        at = run.at("topology", key)
        path, code = run.path(name, at), isinstance(name, CodeText)
        shape = shape.calling(run.code(name, at)) if code else shape.model_copy(update={key: str(path)})
        try:
            content = file_digest(path)
        except TraceError as error:
            raise TopologyError(*error.args) from None
    topology = _TOPOLOGIES.get((digest(shape), content, place), lambda: shape.build(place))
    return replace(topology, name=run.spec.topology_name)


def _network(run: Preparation) -> NetworkModel:
    network, place = run.spec.network, run.at("network.model")
    if isinstance(network.profile, FileText):
        at = run.at("network.profile")
        try:
            network = network.with_profile(profile(str(run.path(network.profile, at))))
        except TopologyError as error:
            raise ScenarioError(at, f"{error.place}: {error.problem}", error.remedy) from None
        except ScenarioError as error:
            raise ScenarioError(run.at(error.place), error.problem, error.remedy) from None
    if isinstance(network.model, CodeText):
        factory = run.code(network.model, place)
    elif network.model in names("network"):
        factory = provided("network", network.model)
    else:
        return network
    from astrasim_py.dialects.own_model.simpy import OwnModel

    return network.model_copy(update={"factory": OwnModel(factory, network.model, place)})


def _free(run: Preparation, topology: Topology) -> list[int]:
    """NPUs that no job lists, in the order of the scenario's placement."""
    if all(job.placement is not None for job in run.spec.jobs.values()):
        return []
    listed = {npu for job in run.spec.jobs.values() for npu in job.placement or ()}
    kind, where = run.spec.placement, "placement"
    if kind is None:
        kind, where = run.spec.topology.placement or "linear", "topology.placement"
    return [npu for npu in placement(topology, kind, place=run.at(where)) if npu not in listed]


def _job(run: Preparation, topology: Topology, name: str, key: str, job: Any, free: list[int] | None = None) -> Job:
    """A job of several, or the point itself as the only one. `free`: NPUs for jobs that list none; those that this one
    takes are removed.
    """
    kind = job.placement or (run.spec.topology.placement or "linear" if free is None else None)
    where = run.at(key, "placement") if job.placement is not None else run.at("topology.placement")
    ranks = getattr(job, "ranks", None)
    dependencies = None
    if getattr(job.workload, "skeleton", False):
        refuse(SKELETON, {NOISE: run.spec.noise}, place=run.at("noise"))
    if isinstance(job.workload, TraceWorkload):
        workload, dependencies = _read(run, job, ranks, key), DATA
    elif isinstance(job.workload, RecordedWorkload):
        workload = _converted(run, job.workload.pytorch.of_reader(), ranks, run.at(key, "workload.pytorch"))
    elif isinstance(job.workload, ReaderWorkload):
        workload = _converted(run, job.workload, ranks, run.at(key, "workload"))
    else:
        if ranks is None:
            ranks = len(kind) if isinstance(kind, tuple) else len(topology.alive)
        if isinstance(job.workload, ModelWorkload):
            from astrasim_py.preparation.training import kept_workload, on_machine

            called = key.removeprefix("jobs.") or run.point.scenario
            workload = kept_workload(*on_machine(run, job.workload, topology, ranks, key), called)
        else:
            workload = _generate(run, job, ranks, key)
    count = len(workload.traces)
    where = run.at(key, "ranks") if ranks is not None and not isinstance(kind, tuple) else where
    stragglers = (*job.stragglers.compute_speed, *job.stragglers.start_delay)
    _refuse_beyond(stragglers, count, run.at(key, "stragglers"))
    if kind is None:
        if count > len(free):
            problem = f"{count} ranks are more than the {len(free)} NPUs that other jobs leave"
            raise ScenarioError(run.at(key, "ranks"), problem, "write fewer ranks or a larger topology")
        kind, free[:count] = free[:count], []
    placed = placement(topology, kind, count, where)
    table, sources = algorithms_of(run, job, key, topology)
    arrival, iterations = getattr(job, "arrival", 0), getattr(job, "iterations", 1)
    if iterations > 1 and table.nodes:
        problem = "algorithms are chosen by node, and every iteration numbers nodes anew"
        raise ScenarioError(run.at(key, "iterations"), problem, "drop the node from when, or write iterations: 1")
    delays = job.stragglers.start_delay
    planner: Planner | None = None
    if run.spec.collectives is not None or any(
        isinstance(source.spec, AlgorithmByDimension) for source in sources.values()
    ):
        from astrasim_py.preparation.by_dimension import plan_by_dimension

        planner = plan_by_dimension(run, table, sources, topology, placed)
    if planner is None or iterations > 1:  # repeated traces have no bytes
        told = unplanned(workload.traces, dims_only=planner is not None)
        run.notes.warnings.extend(f"{run.point.name}: {text}" for text in told)
    return Job(
        name=name,
        workload=iterate(workload, iterations),
        placement=placed,
        algorithms=table,
        planner=planner,
        start_delay_ps={rank: arrival + delays.get(rank, 0) for rank in range(count)} if arrival else delays,
        compute_speed=job.stragglers.compute_speed,
        dependencies=dependencies,
        skeleton=getattr(job.workload, "skeleton", False),
        arrival_ps=arrival,
        iterations=iterations,
        background=getattr(job, "background", False),
    )


def _refuse_beyond(listed: Iterable[int], ranks: int, place: str) -> None:
    for rank in listed:
        if rank >= ranks:
            raise ScenarioError(place, f"rank {rank} does not exist: there are {ranks}", f"write 0 to {ranks - 1}")


def _read(run: Preparation, job: Any, ranks: int | None, key: str) -> Workload:
    """The workload of a job that names traces, or its skeleton."""
    spec, place = job.workload, run.at(key, "workload")
    prefix = run.path(spec.trace, place)
    groups = run.path(spec.groups, place) if spec.groups else None
    options = {"size_unit": spec.size_unit, "dtype_bytes": spec.dtype_bytes, "macs": spec.macs}
    options |= {"untyped": spec.untyped, "ranks": ranks}
    options["dependencies"] = spec.dependencies or run.spec.semantics.said_dependencies
    rules: dict[str, Any] = {}
    if spec.skeleton:
        rules = {"compute": run.spec.compute, "semantics": run.spec.semantics, "dependencies": DATA}
        rules["speeds"] = job.stragglers.compute_speed

    def read() -> tuple[Workload, Notes]:
        notes = Notes()
        workload = read_workload(str(prefix), groups=groups, keep_raw=False, notes=notes, **options)
        if rules:  # a skeleton has durations alone
            from astrasim_py.preparation.skeletons import skeleton_workload

            notes.warnings += _unpriced(workload, run.spec.compute)
            workload = skeleton_workload(workload, place=run.at(key, "workload.skeleton"), **rules)
        return workload, notes

    workload, notes = run.read_once(
        _WORKLOADS,
        [*run.trace_files(prefix, ranks, place), *([groups] if groups else [])],
        ("workload", str(prefix), *options.values(), digest(rules)),
        read,
    )
    told = *notes.warnings, *_unpriced(workload, run.spec.compute)
    run.notes.warnings.extend(f"{run.point.name}: {text}" for text in told)
    run.notes.hints.extend(notes.hints)
    return workload


def _unpriced(workload: Workload, compute: NpuModel) -> Iterator[str]:
    """Operations that nothing gives a time."""
    for trace in dict.fromkeys(workload.traces):
        rows = unpriced(trace, compute)
        if len(rows):
            nodes = "a node" if len(rows) == 1 else f"{len(rows)} nodes"
            what = f"the compute of {nodes} takes no time: num_ops without a duration"
            yield f"{node_place(trace, rows[0])}: {what}; write e.g. compute: {{preset: dgx_h100}}"
            return


def _converted(run: Preparation, spec: ReaderWorkload, ranks: int | None, place: str) -> Workload:
    """The workload of a job that names files of other programs, and their reader."""
    from astrasim_py.workload.trace_readers import convert, parsed_options

    paths = {at: str(run.path(name, place)) for at, name in named_files(spec.options)}
    files = [file for name in paths.values() for file in run.inside(files_of("", name), place)]
    options = {
        option: [paths.get((option, i), item) for i, item in enumerate(value)]
        if isinstance(value, list | tuple)
        else paths.get((option,), value)
        for option, value in spec.options.items()
    }

    def read() -> tuple[Workload, list[str]]:
        try:
            conversion = convert(spec.reader, parsed_options(spec.reader, options), lambda text: None)
        except UsageError as error:
            raise ScenarioError(place, f"{error.place.lstrip('-')}: {error.problem}", error.remedy) from None
        if conversion.problems and not spec.partial:
            more = f", and {len(conversion.problems) - 1} more" if len(conversion.problems) > 1 else ""
            raise ScenarioError(place, f"{conversion.problems[0]}{more}", "record it again, or write partial: true")
        if ranks not in (None, conversion.workload.ranks):
            raise ScenarioError(place, f"is of {conversion.workload.ranks} ranks, not {ranks}", "drop `ranks`")
        return conversion.workload, [*conversion.warnings, *conversion.problems]

    workload, doubts = run.read_once(_WORKLOADS, files, (spec.reader, spec.partial, ranks, digest(options)), read)
    source = next(iter(named_files(spec.options)), ((), spec.reader))[1]
    run.notes.warnings.extend(f"{run.point.name}: {source}: {text}" for text in doubts)
    return workload


def _generate(run: Preparation, job: Any, ranks: int, key: str) -> Workload:
    groups = {name: _members(group, ranks) for name, group in job.groups.items()}
    for name, listed in groups.items():
        _refuse_beyond(chain(*listed), ranks, run.at(key, f"groups.{name}"))
    name = key.removeprefix("jobs.") or run.point.scenario
    items = [item.body for item in job.workload]
    try:
        return generate(items, ranks, groups, name=name)
    except ScenarioError as error:
        item = re.match(r"workload(\[\d+\])?", error.place)[0]
        raise ScenarioError(run.at(key, item) + error.place.removeprefix(item), error.problem, error.remedy) from None


def _members(group: Any, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The groups that a name stands for."""
    if isinstance(group, Partition):
        size, stride = group.size, group.stride
        if ranks % (size * stride):
            problem = f"size {size} x stride {stride} does not divide {ranks} ranks"
            raise ScenarioError("groups", problem, "choose a divisor, or list the ranks")
        firsts = [block + offset for block in range(0, ranks, size * stride) for offset in range(stride)]
        return tuple(tuple(range(first, first + size * stride, stride)) for first in firsts)
    return group if group and isinstance(group[0], tuple) else (group,)


def estimate(point: Point) -> dict[str, Any]:
    """What the closed form says of a point that trains a model; see `preparation.training.Trained.estimate`."""
    from astrasim_py.preparation.training import on_machine, trained

    run = _alone(point)
    for key in ("noise", "nic"):
        if getattr(run.spec, key) is not None:
            raise ScenarioError(run.at(key), "is not known to the closed form", "drop it")
    topology = _topology(run)
    ranks = run.spec.ranks or len(topology.alive)
    return trained(*on_machine(run, run.spec.workload, topology, ranks, "")).estimate()


def topology_of(point: Point) -> Topology:
    """The topology of a point. Raises TopologyError."""
    return _topology(_alone(point))


def _alone(point: Point) -> Preparation:
    return Preparation(point=point)
