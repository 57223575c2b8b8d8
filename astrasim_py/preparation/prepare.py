"""From a point to a Problem: topologies are built, files read, sources of algorithms chosen.

Everything is kept per process, so that the points of a sweep share what they have in common; large traces are shared by
the worker processes of a run, too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astrasim_py.core.by_need import load
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest, file_digest
from astrasim_py.core.errors import ScenarioError, TopologyError, TraceError
from astrasim_py.core.fields import CodeText, FileText, named_files
from astrasim_py.core.notes import Notes
from astrasim_py.core.registry import names, provided
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.preparation.jobs import job_of
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.workload_models import AstraSimWorkload, TrainingWorkload
from astrasim_py.system.compatible import NIC, NOISE, TRAINING_FORM, Exclusion, exclusions
from astrasim_py.system.machine_models import Limits, NetworkModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.plan_notes import source_notes
from astrasim_py.system.problem import Problem
from astrasim_py.topology.hardware import profile
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement

_ASTRA_SIM = "astrasim_py.preparation.workloads.from_astra_sim"
_TOPOLOGIES: Memo[Topology] = Memo(32)


@dataclass(frozen=True)
class Prepared:
    """A point that is ready to be run.

    `notes`: what its files and sections say. Sources of algorithms are asked by the calls of a plan: what they find out
    is known with it, so `notes_with` takes one.
    """

    problem: Problem
    notes: Notes
    later: Callable[[Plan], Notes] | None = None  # what more is known once the problem is planned

    def notes_with(self, plan: Plan) -> Notes:
        """All notes of the point; `plan`: of its problem."""
        notes = Notes()
        notes.add(self.notes)
        notes.add(source_notes(plan))
        if self.later is not None:
            notes.add(self.later(plan))
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
    if isinstance(run.spec.workload, AstraSimWorkload):
        problem, later = load(f"{_ASTRA_SIM}:problem_of")(run.point, limits)
        named = replace(problem.topology, name=run.spec.topology_name)
        return Prepared(replace(problem, topology=named), run.notes, later)
    run = replace(run, network=_network(run))
    spec, topology = run.spec, _topology(run)
    free = _free(run, topology)
    jobs = []
    for name, job in spec.jobs.items():
        jobs.append(job_of(run, topology, name, f"jobs.{name}", job, free))
        free = free if job.placement is not None else free[jobs[-1].ranks :]
    jobs = jobs or [job_of(run, topology, "job0", "", spec)]
    problem = Problem(
        topology=_achieved(run, topology),
        jobs=tuple(jobs),
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
    if isinstance(run.spec.workload, AstraSimWorkload):
        files_topology: Topology = load(f"{_ASTRA_SIM}:topology_of")(run.point)
        return replace(files_topology, name=run.spec.topology_name)
    shape, place, content = run.spec.topology, run.at("topology"), ""
    for (key,), name in named_files(shape):
        key_place = run.at("topology", str(key))
        path = run.path(name, key_place)
        if isinstance(name, CodeText):
            shape = shape.calling(run.code(name, key_place))
        else:
            shape = shape.model_copy(update={key: str(path)})
        try:
            content = file_digest(path)
        except TraceError as error:
            raise TopologyError(*error.args) from None
    topology = _TOPOLOGIES.get((digest(shape), content, place), lambda: shape.build(place))
    return replace(topology, name=run.spec.topology_name)


def _network(run: Preparation) -> NetworkModel:
    network, place = run.spec.network, run.at("network.model")
    if isinstance(network.profile, FileText):
        profile_place = run.at("network.profile")
        try:
            network = network.with_profile(profile(str(run.path(network.profile, profile_place))))
        except TopologyError as error:
            raise ScenarioError(profile_place, f"{error.place}: {error.problem}", error.remedy) from None
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


def _achieved(run: Preparation, topology: Topology) -> Topology:
    """The topology with links at the shares of their rates that the software of trainings reaches."""
    specs = [job for job in (run.spec, *run.spec.jobs.values()) if isinstance(job.workload, TrainingWorkload)]
    if not specs or run.network.profile is not None:  # what a profile measured has these shares
        return topology
    achieved: Topology = load("astrasim_py.preparation.training_costs:achieved")(specs, topology, run.at("software"))
    return achieved


def _free(run: Preparation, topology: Topology) -> list[int]:
    """NPUs that no job lists, in the order of the scenario's placement."""
    if all(job.placement is not None for job in run.spec.jobs.values()):
        return []
    listed = {npu for job in run.spec.jobs.values() for npu in job.placement or ()}
    kind, key = run.spec.placement, "placement"
    if kind is None:
        kind, key = run.spec.topology.placement or "linear", "topology.placement"
    return [npu for npu in placement(topology, kind, place=run.at(key)) if npu not in listed]


def estimate_exclusions(point: Point) -> Iterator[Exclusion]:
    """Parts of a point that the closed form of trainings does not know."""
    spec = point.spec
    return exclusions({"network": spec.network, NOISE: spec.noise, NIC: spec.nic}, (TRAINING_FORM,))


def estimate(point: Point, notes: Notes | None = None) -> dict[str, Any]:
    """What the closed form says of a point that trains a model; see `preparation.training.Trained.estimate`. `notes`:
    takes what to know of it.
    """
    from astrasim_py.preparation.training import estimated

    run = Preparation(point=point, notes=notes or Notes())
    for exclusion in estimate_exclusions(point):
        raise ScenarioError(run.at(exclusion.place), exclusion.problem, exclusion.remedy)
    return estimated(JobSection(run=run, topology=_topology(run), spec=run.spec, key="", placement=None))


def topology_of(point: Point) -> Topology:
    """The topology of a point. Raises TopologyError."""
    return _topology(Preparation(point=point))
