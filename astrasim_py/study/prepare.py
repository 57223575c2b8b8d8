"""From a point to a Problem: topologies are built, files read, injected algorithms verified.

Everything is kept per process, so that the points of a sweep share what they have in common; large traces are shared by
the worker processes of a run, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from astrasim_py.builders.registry import ALGORITHMS, build, default_algorithm
from astrasim_py.chakra.et_io import find_prefix
from astrasim_py.chakra.schema import COLLECTIVE_NAMES, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.chakra.workload_io import read_workload
from astrasim_py.collectives.contract import read_contract
from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import FileStamp, digest, file_digest, file_stamp
from astrasim_py.core.errors import AlgorithmError, AstraError, ScenarioError, TopologyError, TraceError
from astrasim_py.core.fields import CodeText, FileText
from astrasim_py.core.registry import names, own_code, provided
from astrasim_py.core.units import PS_PER_S
from astrasim_py.msccl.to_traces import read_algorithm
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import CONDITIONS, AlgorithmTable, Case, Condition
from astrasim_py.scenario.algorithm_models import (
    AlgorithmByDimension,
    AlgorithmCode,
    AlgorithmFile,
    AlgorithmSynthesis,
    Builder,
    Collectives,
)
from astrasim_py.scenario.check import confined, split_code
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.workload_models import (
    BarrierItem,
    CollectiveItem,
    ComputeItem,
    Item,
    MemoryItem,
    Partition,
    SendItem,
    TraceWorkload,
)
from astrasim_py.study.dimension_plans import PlannedByDimension, plan_by_dimension
from astrasim_py.study.link_occupancy import read_occupancy
from astrasim_py.study.trace_maps import WORTH, map_shared
from astrasim_py.study.verdicts import kept_verdict
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import Limits, MscclModel, NetworkModel
from astrasim_py.system.msccl_connections import messages_of
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.verification.verifier import Verdict, verify
from astrasim_py.workload import microbenchmarks

_TOPOLOGIES: Memo[Topology] = Memo(32)
_WORKLOADS: Memo[Workload] = Memo(4)
_ALGORITHMS: Memo[tuple[Algorithm, tuple[str, ...]]] = Memo(32)
_BUILT: Memo[Algorithm] = Memo(64)
_VERDICTS: Memo[Verdict] = Memo(256)


def prepare(
    point: Point,
    *,
    limits: Limits | None = None,
    warnings: list[str] | None = None,
    kept: Path | None = None,
    synthesized: list[dict] | None = None,
    beside: Path | None = None,
) -> Problem:
    """Make the Problem of a point.

    Parameters
    ----------
    point : Point
    limits : Limits, optional
        Instead of those of the scenario.
    warnings : list of str, optional
        What a person should know of is added: injected algorithms that could not be verified.
    kept : Path, optional
        Folder in which synthesized algorithms are kept beside the results, and looked for.
    synthesized : list of dict, optional
        What is known of each synthesized algorithm is added once a plan asks for it.
    beside : Path, optional
        Folder in which the processes of a run share what they read; see `astrasim_py.study.trace_maps`.

    Returns
    -------
    Problem

    Raises
    ------
    ScenarioError, TopologyError
        The point contradicts itself.
    TraceError, AlgorithmError
        A file that cannot be read, or an injected algorithm that is wrong; with ``verify: strict`` also one of
        which that is unknown.
    """
    return _Preparation(
        point, [] if warnings is None else warnings, kept, [] if synthesized is None else synthesized, beside
    ).problem(limits)


class _Preparation:
    def __init__(
        self, point: Point, warnings: list[str], kept: Path | None, synthesized: list[dict], beside: Path | None
    ) -> None:
        self.point, self.spec, self.warnings = point, point.spec, warnings
        self.kept, self.synthesized, self.beside = kept, synthesized, beside
        self.folder = Path(point.folder)

    def problem(self, limits: Limits | None) -> Problem:
        spec = self.spec
        topology = self.topology()
        if spec.jobs:
            jobs = tuple(self.job(topology, name, f"jobs.{name}", one) for name, one in spec.jobs.items())
        else:
            jobs = (self.job(topology, "job0", "", spec),)
        return Problem(
            topology=topology,
            jobs=jobs,
            network=self.network(),
            semantics=spec.semantics,
            compute=spec.compute,
            memory=spec.memory,
            limits=limits or spec.limits,
        )

    def at(self, *path: str) -> str:
        """The place of a dotted path."""
        return self.point.place(".".join(part for part in path if part))

    def path(self, name: FileText, place: str) -> Path:
        """A file that the scenario names."""
        return confined(name, self.folder, place, self.point.allow_outside)

    # -- topology and rules -------------------------------------------------------------------------------------

    def topology(self) -> Topology:
        shape, place, content = self.spec.topology, self.at("topology"), ""
        if getattr(shape, "file", None) is not None:
            path = self.path(shape.file, self.at("topology.file"))
            shape = shape.model_copy(update={"file": str(path)})
            try:
                content = file_digest(path)
            except TraceError as error:
                raise TopologyError(*error.args) from None
        topology = _TOPOLOGIES.get((digest(shape), content, place), lambda: shape.build(place))
        return topology.named(self.spec.topology_name)

    def network(self) -> NetworkModel:
        network, place = self.spec.network, self.at("network.model")
        if isinstance(network.model, CodeText):
            factory = _model(self._own(network.model, place), network.model, place)
        elif network.model in names("network"):
            factory = _model(provided("network", network.model), network.model, place)
        else:
            return network
        return network.model_copy(update={"factory": factory})

    def _own(self, text: CodeText, place: str) -> Callable:
        if not self.point.allow_code:
            raise ScenarioError(place, f'"{text}" is Python code', "run with --allow-code if you trust it")
        _, name = split_code(text, place)
        return own_code(self.path(text, place), name, place)

    # -- jobs ---------------------------------------------------------------------------------------------------

    def job(self, topology: Topology, name: str, key: str, job: Any) -> Job:
        """A job of several, or the point itself as the only one."""
        kind = job.placement
        if kind is None:
            kind = self.spec.topology.placement or "linear"
        where = self.at(key, "placement") if job.placement is not None else self.at("topology.placement")
        ranks = getattr(job, "ranks", None)
        dependencies = None
        if isinstance(job.workload, TraceWorkload):
            workload = self.read(job.workload, ranks, key)
            dependencies = job.workload.dependencies
        else:
            if ranks is None:
                ranks = len(kind) if isinstance(kind, tuple) else len(topology.alive)
            workload = self.generate(job, ranks, key)
        count = len(workload.traces)
        where = self.at(key, "ranks") if ranks is not None and not isinstance(kind, tuple) else where
        stragglers = job.stragglers
        for option in ("compute_speed", "start_delay"):
            beyond = [rank for rank in getattr(stragglers, option) if rank >= count]
            if beyond:
                problem = f"rank {beyond[0]} does not exist: there are {count}"
                raise ScenarioError(self.at(key, "stragglers"), problem, f"write 0 to {count - 1}")
        placed = placement(topology, kind, count, where)
        table, cases = self.table(job, key, topology)
        return Job(
            name=name,
            workload=workload,
            placement=placed,
            algorithms=table,
            planner=self.planner(table, cases, topology, placed),
            start_delay_ps=dict(stragglers.start_delay),
            compute_speed={rank: Fraction(speed) for rank, speed in stragglers.compute_speed.items()},
            dependencies=dependencies,
        )

    def read(self, spec: TraceWorkload, ranks: int | None, key: str) -> Workload:
        place = self.at(key, "workload")
        prefix = self.path(spec.trace, place)
        groups = self.path(spec.groups, place) if spec.groups else None
        files = self._files(prefix, ranks, place)
        stamps = tuple(file_stamp(path) for path in (*files, *([groups] if groups else [])))
        options = (spec.size_unit, spec.dtype_bytes, spec.macs, ranks)
        key = (str(prefix), stamps, options)

        def read_files() -> Workload:
            return read_workload(
                str(prefix),
                groups=groups,
                size_unit=spec.size_unit,
                dtype_bytes=spec.dtype_bytes,
                macs=spec.macs,
                ranks=ranks,
                keep_raw=False,
            )

        beside = self._beside(stamps)
        return _WORKLOADS.get(key, lambda: map_shared(beside, digest(("workload", key)), read_files))

    def _beside(self, stamps: Sequence[FileStamp]) -> Path | None:
        """Where what these files hold is shared, if that pays."""
        return self.beside if sum(stamp.bytes for stamp in stamps) >= WORTH else None

    def _files(self, prefix: Path, ranks: int | None, place: str) -> list[Path]:
        files = find_prefix(prefix, ranks)
        for file in files if not self.point.allow_outside else ():
            if os.path.islink(file):  # their folder is checked already
                confined(FileText(os.path.relpath(file, self.folder)), self.folder, place, False)
        return files

    def generate(self, job: Any, ranks: int, key: str) -> Workload:
        groups = {name: _members(group, ranks) for name, group in job.groups.items()}
        for name, listed in groups.items():
            for rank in (rank for members in listed for rank in members):
                if rank >= ranks:
                    problem = f"rank {rank} does not exist: there are {ranks}"
                    raise ScenarioError(self.at(key, f"groups.{name}"), problem, f"write 0 to {ranks - 1}")
        items = [_item(item) for item in job.workload]
        name = self.point.scenario if not key else key.removeprefix("jobs.")
        return microbenchmarks.generate(items, ranks, groups, name=name, place=self.at(key, "workload"))

    # -- algorithms ---------------------------------------------------------------------------------------------

    def table(
        self, job: Any, key: str, topology: Topology
    ) -> tuple[AlgorithmTable, dict[str, list[tuple[Case, Any, str]]]]:
        """The algorithms of a job; and by collective its cases, each with what the scenario says and where."""
        chosen = {**self.spec.algorithms, **job.algorithms}
        cases: dict[str, list[tuple[Case, Any, str]]] = {}
        for collective, listed in chosen.items():
            below = key if collective in job.algorithms else ""
            when_at = self.at(below, f"algorithms.{collective}")
            cases[collective] = []
            for i, case in enumerate(listed):
                place = self.at(below, f"algorithms.{collective}{f'[{i}]' if len(listed) > 1 else ''}")
                fit = self.synthesizer(case, topology, place) if isinstance(case, AlgorithmSynthesis) else None
                made = Case(make=self.maker(case, place), when=_condition(case.when, when_at), fit=fit)
                cases[collective].append((made, case, place))
        table = AlgorithmTable(
            {collective: [case for case, _, _ in listed] for collective, listed in cases.items()}, default=_default
        )
        return table, cases

    def planner(self, table, cases, topology: Topology, placed: tuple[int, ...]) -> PlannedByDimension | None:
        """Who cuts the collectives of a job, where the scenario says so."""
        by_dimension = any(isinstance(said, AlgorithmByDimension) for listed in cases.values() for _, said, _ in listed)
        if self.spec.collectives is None and not by_dimension:
            return None

        def make(builder: Builder, collective: str, ranks: int, place: str) -> Algorithm:
            return self.maker(builder, place)(collective, ranks, 0)

        spec, place = self.spec.collectives or Collectives(), self.at("collectives")
        return plan_by_dimension(spec, cases, table, topology, placed, make, place, self.warnings)

    def maker(self, case: Any, place: str) -> Callable[[str, int, int], Algorithm]:
        """What makes the algorithm of a case."""

        def make(collective: str, ranks: int, root: int) -> Algorithm:
            rooted = {"root": root} if collective in _ROOTED else {}
            if isinstance(case, AlgorithmByDimension):
                problem = f"goes by dimension, and the {ranks} ranks of a group do not fill a grid of them"
                raise AlgorithmError(place, problem, "put a case for that group before it: {when: …, builder: ring}")
            if isinstance(case, AlgorithmFile):
                algorithm, content = self.algorithm_file(case, collective, place)
                _check_fit(algorithm, ranks, rooted.get("root"), place)
                return self.verified(algorithm, place, content)
            if isinstance(case, AlgorithmCode):
                return self._made(self._own(case.python, place), case.python, case, collective, ranks, rooted, place)
            if case.builder in ALGORITHMS:
                key = (case.builder, collective, ranks, digest({**case.options, **rooted}))
                return _BUILT.get(key, lambda: _built(case, collective, ranks, rooted, place))
            factory = provided("algorithm", case.builder)
            return self._made(factory, case.builder, case, collective, ranks, rooted, place)

        return make

    def synthesizer(
        self, case: AlgorithmSynthesis, topology: Topology, place: str
    ) -> Callable[[str, tuple[int, ...], int, int], Algorithm]:
        """What synthesizes the algorithm of a case for the NPUs and the size of a call."""
        from astrasim_py.study.synthesized import algorithm_of
        from astrasim_py.synthesis.request import Request

        said, network = case.synthesize, self.spec.network
        # Models that know no contention, and those of the user's own, say nothing of what links hold.
        model = network.model if network.model in ("cut_through", "store_and_forward") else "cut_through"

        where = f"{place}.synthesize.occupied"
        occupied = tuple(read_occupancy(self.path(name, where), topology, where) for name in said.occupied)
        clock = bool(occupied) if said.clock is None else said.clock

        def fit(collective: str, npus: tuple[int, ...], size: int, root: int) -> Algorithm:
            request = Request(
                topology=topology,
                npus=npus,
                collective=collective,
                size=size,
                chunks=None if said.chunks == "auto" else said.chunks,
                root=root if collective in _ROOTED else None,
                cost=CostModel(model=model, link_busy=network.link_busy),
                relays=said.relays,
                occupied=occupied,
                seed=said.seed,
                rounds=said.rounds,
                budget=None if said.budget is None else said.budget / PS_PER_S,
                exact=said.exact_limit / PS_PER_S if said.exact else None,
            )
            try:
                made = algorithm_of(request, clock=clock, folder=self.kept)
            except (AlgorithmError, TopologyError) as error:
                where = f"{place}: {error.place}" if error.place else place
                raise type(error)(where, error.problem, error.remedy) from None
            _check_fit(made.algorithm, len(npus), request.root, place)
            if made.facts not in self.synthesized:
                self.synthesized.append(made.facts)
                if made.facts.get("cut"):
                    self.warnings.append(
                        f"{place}: the search for {collective} was cut by its budget: another machine may find "
                        "another schedule, and this one is kept with the results"
                    )
            return self.verified(made.algorithm, place, (made.algorithm.digest(),))

        return fit

    def algorithm_file(self, case: AlgorithmFile, collective: str, place: str) -> tuple[Algorithm, tuple]:
        """The algorithm that a file holds, and what tells its content apart."""
        path = self.path(case.file, place)
        files = [path] if path.suffix in (".npz", ".xml") else self._files(path, None, place)
        contract = None if case.contract is None else self.path(case.contract, place)
        files += [contract] if contract else []
        stamps = tuple(file_stamp(file) for file in files)
        key = (str(path), str(contract), stamps, collective, case.made_for, case.root)

        def read_files() -> tuple[Algorithm, tuple[str, ...]]:
            content = tuple(file_digest(file) for file in files)
            algorithm = read_algorithm(str(path), collective, made_for=case.made_for, root=case.root)
            return algorithm if contract is None else replace(algorithm, contract=read_contract(contract)), content

        beside = self._beside(stamps)
        return _ALGORITHMS.get(key, lambda: map_shared(beside, digest(("algorithm", key)), read_files))

    def _made(self, factory, text, case, collective, ranks, rooted, place) -> Algorithm:
        """What a function of the user's or of another package builds: trusted with nothing."""
        try:
            algorithm = factory(collective, ranks, **rooted, **case.options)
        except AstraError:
            raise
        except (Exception, SystemExit) as error:
            problem = f"{text} failed: {type(error).__name__}: {error}"
            raise AlgorithmError(place, problem, "mend it") from error
        if not isinstance(algorithm, Algorithm):
            raise AlgorithmError(place, f"{text} gave a {type(algorithm).__name__}", "return an Algorithm")
        if algorithm.collective != collective:
            raise AlgorithmError(place, f"{text} gave a {algorithm.collective}, not a {collective}", "mend it")
        _check_fit(algorithm, ranks, rooted.get("root"), place)
        return self.verified(algorithm, place)

    def verified(self, algorithm: Algorithm, place: str, content: tuple | None = None) -> Algorithm:
        """The algorithm with its verdict, if the policy lets it pass."""
        policy = self.spec.verify
        if policy is False:
            return algorithm.with_verdict(None)
        if content is None:
            verdict = _VERDICTS.get(algorithm.digest(), lambda: verify(algorithm))
        else:
            key = (content, algorithm.collective, algorithm.root, algorithm.in_place)
            verdict = _VERDICTS.get(key, lambda: kept_verdict(algorithm, content))
        what = f"{algorithm.name} ({algorithm.collective}, {algorithm.ranks} ranks)"
        refused, doubts = self.objections(algorithm, verdict)
        if refused:
            remedy = "mend the algorithm, or write verify: false to simulate it all the same"
            raise AlgorithmError(place, f"{what} is wrong: {refused}", remedy)
        for doubt in doubts:
            if policy == "strict":
                raise AlgorithmError(place, f"{what} {doubt}", "write verify: true to go on with a warning")
            self.warnings.append(f"{place}: {what} {doubt}")
        return algorithm.with_verdict(verdict.ok)

    def objections(self, algorithm: Algorithm, verdict: Verdict) -> tuple[str, list[str]]:
        """Why an algorithm is refused (empty: it is not), and what it is warned of."""
        if verdict.ok is False:
            return verdict.problem, []
        doubts = []
        if verdict.ok is None:
            doubts.append(f"could not be verified: {verdict.unknown}")
        model = self.network().msccl
        slots = verdict.slots if model is None else model.slots_for(algorithm.protocol)
        if verdict.min_slots is not None and verdict.min_slots > slots:
            blocks = f"needs {verdict.min_slots} slots per connection, and there are {slots}"
            if model is not None:
                return f"deadlock: it {blocks} (network.msccl)", []
            doubts.append(f"{blocks} on MSCCL-style runtimes: it deadlocks there")
        elif verdict.min_slots_large is not None and verdict.min_slots_large > slots:
            doubts.append(
                f"needs up to {verdict.min_slots_large} slots per connection for large buffers, and there are {slots}"
            )
        if verdict.race_free is False:
            doubts += [problem for problem in verdict.problems if problem.startswith("race: ")]
        if verdict.order_consistent is False:
            doubts.append("adds in another order on some ranks: their floating-point results can differ")
        return "", doubts


_ROOTED = ("broadcast", "reduce", "gather", "scatter")


def _model(factory: Callable, text: str, place: str) -> Callable:
    """What makes a network model that is not ours, and sees that it is one."""

    def make(simulation: Any) -> Any:
        model = factory(simulation)
        if not (callable(getattr(model, "carry", None)) and callable(getattr(model, "send", None))):
            problem = f"{text} gave a {type(model).__name__}, which is no Network with carry(message)"
            raise ScenarioError(place, problem, "give a network model")
        return model

    return make


def _check_fit(algorithm: Algorithm, ranks: int, root: int | None, place: str) -> None:
    if algorithm.ranks != ranks:
        problem = f"{algorithm.name} is made for {algorithm.ranks} ranks, and the group has {ranks}"
        raise AlgorithmError(place, problem, "give one made for this group, or choose by when: {ranks: …}")
    if root is not None and algorithm.root != root:
        problem = f"{algorithm.name} has root {algorithm.root}, and the workload asks for {root}"
        raise AlgorithmError(place, problem, f"write root: {algorithm.root} in the workload, or give another file")


def _condition(when: Any, place: str) -> Condition:
    if when is None:
        return Condition()
    given = {key: getattr(when, key) for key in CONDITIONS}
    return Condition.parse({key: value for key, value in given.items() if value is not None}, place)


def _members(group: Any, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The groups that a name stands for."""
    if isinstance(group, Partition):
        size, stride = group.size, group.stride
        if ranks % (size * stride):
            problem = f"size {size} x stride {stride} does not divide {ranks} ranks"
            raise ScenarioError("groups", problem, "choose a divisor, or list the ranks")
        return tuple(
            tuple(range(block + offset, block + size * stride, stride))
            for block in range(0, ranks, size * stride)
            for offset in range(stride)
        )
    return group if group and isinstance(group[0], tuple) else (group,)


def _item(item: Item) -> microbenchmarks.Item:
    body = item.body
    common = {"name": body.name or "", "after": body.after, "repeat": body.repeat}
    if isinstance(body, CollectiveItem | BarrierItem):
        group = body.group if body.group not in (None, "world") else ""
        size, root = getattr(body, "size", 0), getattr(body, "root", 0)
        return microbenchmarks.Collective(type=item.kind, size=size, group=group, root=root, **common)
    if isinstance(body, ComputeItem):
        return microbenchmarks.Compute(
            time=body.time, operations=body.operations, bytes=body.bytes, ranks=body.ranks, **common
        )
    if isinstance(body, SendItem):
        return microbenchmarks.Send(source=body.source, to=body.to, size=body.size, tag=body.tag, **common)
    if isinstance(body, MemoryItem):
        store = body.store is not None
        size = body.store if store else body.load
        return microbenchmarks.Memory(size=size, store=store, ranks=body.ranks, **common)
    raise TypeError(f"{type(body).__name__} is no item")


# -- kept per process -------------------------------------------------------------------------------------------


def _built(case: Builder, collective: str, ranks: int, rooted: Mapping[str, int], place: str) -> Algorithm:
    try:
        # The builders' own algorithms are verified by the tests of this package, not at every run.
        return build(case.builder, collective, ranks, **rooted, **case.options).with_verdict(True)
    except AlgorithmError as error:
        raise AlgorithmError(f"{place}: {error.place}" if error.place else place, error.problem, error.remedy) from None


@lru_cache(maxsize=64)
def _default(collective: str, ranks: int, root: int) -> Algorithm:
    rooted = {"root": root} if collective in _ROOTED else {}
    return build(default_algorithm(collective), collective, ranks, **rooted).with_verdict(True)


# -- what it comes to -------------------------------------------------------------------------------------------


def count_messages(problem: Problem) -> int:
    """Messages that a complete run of a problem sends, without planning it where nothing but its plan tells.

    Raises
    ------
    AlgorithmError
        A collective for which there is no algorithm.
    """
    if any(job.planner is not None or job.algorithms.by_node for job in problem.jobs):
        return make_plan(problem).messages
    return sum(_messages_of(job, problem.network.msccl) for job in problem.jobs)


def _messages_of(job: Job, msccl: MscclModel | None) -> int:
    workload, total = job.workload, 0
    everybody = range(len(workload.traces))
    calls: dict[int, list[tuple[str, str, int, int]]] = {}
    for rank, trace in enumerate(workload.traces):
        if id(trace) not in calls:
            calls[id(trace)] = _calls(trace)
        total += int((trace.type == NodeType.COMM_SEND).sum())
        for group, collective, size, root in calls[id(trace)]:
            members = workload.groups.get(group, everybody) if group not in ("", "0") else everybody
            if not len(members) or members[0] != rank or len(members) < 2:
                continue
            size = size * len(members) if size < 0 else size
            npus = tuple(job.placement[member] for member in members)
            algorithm = job.algorithms.select(collective, abs(size), len(members), group or "world", root, npus=npus)
            total += algorithm.messages if msccl is None else messages_of(algorithm, abs(size), msccl)
    return total


def _calls(trace: ExecutionTrace) -> list[tuple[str, str, int, int]]:
    """(group, collective, size, root) of every collective of a trace; a negative size is one shard."""
    codes, labels = trace.group_of()
    kinds, sizes = trace.column("comm_type"), trace.column("comm_size")
    full, roots = trace.column("coll_size"), trace.column("comm_root")
    out = []
    for row in np.flatnonzero(trace.type == NodeType.COMM_COLL).tolist():
        collective = COLLECTIVE_NAMES.get(int(kinds[row]), "")
        shard = collective == "all_gather" and full[row] == MISSING
        size = -max(int(sizes[row]), 0) if shard else max(int(full[row] if full[row] != MISSING else sizes[row]), 0)
        out.append((labels[codes[row]] if codes[row] >= 0 else "", collective, size, max(int(roots[row]), 0)))
    return out
