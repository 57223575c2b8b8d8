"""The functions of the Python interface that put several modules together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from astrasim_py.builders.registry import build, default_algorithm, rooted
from astrasim_py.builders.switch_trees import IN_NETWORK, switches_above
from astrasim_py.chakra.control import TAKEN, unused
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.notes import unplanned
from astrasim_py.chakra.schema import COLLECTIVE_NAMES, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.collective import CUSTOM, collective_name
from astrasim_py.core.choices import AUTO, LIBRARIES
from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.notes import Notes
from astrasim_py.core.records import Records
from astrasim_py.core.units import parse_size
from astrasim_py.engine.choose import by_library
from astrasim_py.engine.simulation import plan_for
from astrasim_py.engine.simulation import simulate as run_plan
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import write_npz
from astrasim_py.program.interchange import algorithm_traces
from astrasim_py.program.selection import AlgorithmCall, AlgorithmTable, Case, FromFunction
from astrasim_py.system.call_sizes import beyond_links
from astrasim_py.system.durations import unpriced
from astrasim_py.system.held_up import held_up
from astrasim_py.system.machine_models import ComputeModel, NetworkModel
from astrasim_py.system.plan import Plan
from astrasim_py.system.plan_notes import plan_notes, source_notes
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import DATA
from astrasim_py.topology import from_keys
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.workload.build import WorkloadBuilder
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

if TYPE_CHECKING:
    from astrasim_py.runs.sweep import RunResult
    from astrasim_py.scenario.expand import Point
    from astrasim_py.scenario.load import LoadedScenario


def run(
    scenario: str | os.PathLike | Mapping | LoadedScenario,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    **options: Any,
) -> RunResult:
    """Run a scenario: every point is simulated, or reused if its result is there; tables and figures are written.

    Parameters
    ----------
    scenario : path, mapping or LoadedScenario
        A YAML file, or the same keys and values as a dict; files that a dict names are looked up in the current folder.
    overrides : mapping, or sequence of str
        Key → value, ``{"topologies.ring.npus": 16}``; or ``"KEY=VALUE"``, as with ``--set``.
    **options
        Of `astrasim_py.runs.sweep.run_scenario`: ``out``, ``jobs``, ``fresh``, ``level``, ``engine`` …

    Returns
    -------
    RunResult
        With ``rows``, one dict per point; ``to_dataframe()`` makes a pandas DataFrame of them.

    Raises
    ------
    AstraError
        The scenario is wrong, or the output cannot be written.
    """
    from astrasim_py.runs.progress import on_terminal
    from astrasim_py.runs.sweep import run_scenario
    from astrasim_py.scenario.load import LoadedScenario, load_scenario, with_overrides

    loaded = isinstance(scenario, LoadedScenario)
    scenario = with_overrides(scenario, overrides) if loaded else load_scenario(scenario, overrides)
    options.setdefault("progress", on_terminal(scenario.name))
    return run_scenario(scenario, **options)


def prepare(point: Point, **options: Any) -> Problem:
    """Make the Problem of a point.

    What is wrong with files and algorithms without being an error is told by Python warnings.

    Parameters
    ----------
    point : Point
        One of those that `expand` makes.
    **options
        Of `astrasim_py.preparation.prepare.prepare`: ``limits``, ``kept`` …; ``warnings`` and ``hints`` are lists that
        take the lines that are else warnings. What algorithms tell when calls ask for them, `simulate` says.

    Returns
    -------
    Problem

    Raises
    ------
    AstraError
        The point contradicts itself, or a file is wrong.
    """
    from astrasim_py.preparation.prepare import prepare

    taken = {name: options.pop(name) for name in ("warnings", "hints") if name in options}
    prepared, told = prepare(point, **options), Notes()
    for name in ("warnings", "hints"):
        lines = getattr(told, name) if taken.get(name) is None else taken[name]
        lines.extend(getattr(prepared.notes, name))
    told.warn()
    return prepared.problem


def simulate(problem: Problem | Plan, *, engine: str = AUTO, level: str = "links", fold: bool = False) -> Records:
    """Run a problem.

    Parameters
    ----------
    problem : Problem or Plan
        A Plan is run as it is; a Problem is planned first.
    engine : str
        ``simpy``, the reference; ``compiled``, which gives the same records; ``auto``, which picks the one that costs
        less (see `engine_for`); ``both``, which runs both and compares every record.
    level : str
        What to record: ``summary``, ``links``, ``nodes`` or ``messages``.
    fold : bool
        Simulate one rank for all, where they all do the same (see `astrasim_py.engine.fold`); level ``summary`` or
        ``links``. So little is left to simulate that SimPy does it, whatever the engine; with ``both`` all ranks are
        simulated as well, and every record compared.

    Returns
    -------
    Records
        Also when the run is stuck or reaches a limit: see `Records.outcome`. `Records.engine` says what ran.

    Raises
    ------
    TraceError, AlgorithmError, ScenarioError
        The problem cannot be run (found before running).
    SimulationError
        A matched send and receive of unequal bytes, or figures beyond 63 bits (found by running).
    UsageError
        Unknown engine or level; an engine that cannot run the problem (see `engine_for`).
    FoldError
        With `fold`: the ranks differ, or cannot be shown to be equal.
    InternalError
        With ``both``: the engines differ.
    """
    plan = problem if isinstance(problem, Plan) else plan_for(problem, engine, fold=fold)
    notes = source_notes(plan)
    notes.warnings += plan_notes(plan)
    notes.warn()
    records = run_plan(plan, engine=engine, level=level, fold=fold)
    for note in (*beyond_links(plan, records), *held_up(plan, records)):
        warnings.warn(note, stacklevel=2)
    return records


def build_topology(**keys: Any) -> Topology:
    """Make a topology of the keys that a scenario would use.

    Parameters
    ----------
    **keys
        ``shape`` or ``preset``, and the keys of that shape; quantities are text with units.

    Returns
    -------
    Topology

    Raises
    ------
    TopologyError
        A wrong key or value, or a network that does not connect its NPUs.

    Examples
    --------
    >>> build_topology(shape="torus", dims=[4, 4], bandwidth="50 GB/s", latency="500 ns").links
    64
    """

    return from_keys.build(keys, "build_topology", written=True)


def write_algorithm(path: str | os.PathLike, algorithm: Algorithm, **options: Any) -> None:
    """Write an algorithm; the name decides the format, as for ``convert``.

    Parameters
    ----------
    path : path
        ``X.xml`` for MSCCL-IR, ``X.npz`` for columns, else the prefix of ``.et`` files, one per rank.
    algorithm : Algorithm
    **options
        Of MSCCL-IR those of `astrasim_py.msccl.xml_writer.write_msccl`: ``dialect``, ``protocol``, ``min_bytes``,
        ``max_bytes``. Of ``.et`` ``size``: full buffer for which absolute sizes are stated, too. Sizes are bytes, or
        text such as ``"1 MiB"``.

    Raises
    ------
    AlgorithmError
        It cannot be expressed in the format.
    OutputError
        A file that cannot be written.
    UsageError
        An option that the format does not have, or a size that is none.
    """
    kind = os.path.splitext(os.fspath(path))[1]
    known = {".xml": ("dialect", "protocol", "min_bytes", "max_bytes"), ".npz": ()}.get(kind, ("size",))
    for name, value in options.items():
        if name not in known:
            raise UsageError(f"write_algorithm {os.fspath(path)}", f"has no option {name}", did_you_mean(name, known))
        if name in ("size", "min_bytes", "max_bytes") and not (value is None or type(value) is int):
            options[name] = parse_size(value, name)
    if kind == ".xml":
        from astrasim_py.msccl.xml_writer import write_msccl

        write_msccl(path, algorithm, **options)
    elif kind == ".npz":
        write_npz(path, algorithm, **options)
    else:
        write_prefix(path, algorithm_traces(algorithm, **options))


def collective(
    kind: str,
    size: int | str,
    topology: Topology,
    *,
    algorithm: Algorithm | str | None = None,
    root: int = 0,
    npus: Sequence[int] | None = None,
    **network: Any,
) -> Problem:
    """One collective, as a problem for `simulate`.

    Parameters
    ----------
    kind : str
        For example ``all_reduce``; or ``custom``, which needs an algorithm of yours.
    size : int or str
        Full buffer: bytes, or text with a unit.
    topology : Topology
    algorithm : Algorithm or str, optional
        An injected algorithm, or the name of a builder or a library (``nccl``); the builder's default otherwise.
    root : int
        For rooted collectives.
    npus : sequence of int, optional
        The group, rank by rank; all NPUs by default.
    **network
        Fields of `astrasim_py.system.machine_models.NetworkModel`: ``model`` (``cut_through``, ``store_and_forward`` or
        ``analytical``), ``link_busy``, ``msccl`` …

    Returns
    -------
    Problem

    Raises
    ------
    AstraError
        A wrong size or group, or an algorithm for another collective or number of ranks.

    Examples
    --------
    >>> from astrasim_py import simulate
    >>> ring = build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    >>> simulate(collective("all_gather", "1 MiB", ring)).makespan
    17228640
    """

    kind = collective_name(kind, "collective")
    nbytes = parse_size(size, "collective") if isinstance(size, str) else int(size)
    npus = placement(topology, "linear" if npus is None else list(npus))
    workload = generate([Collective(type=kind, size=nbytes, root=root)], len(npus), name=kind)
    return problem(workload, topology, algorithm={kind: algorithm}, npus=npus, **network)


def problem(
    workload: Workload | WorkloadBuilder,
    topology: Topology,
    *,
    algorithm: Algorithm | str | Mapping[str, Algorithm | str | None] | None = None,
    npus: Sequence[int] | None = None,
    compute: ComputeModel | Mapping[str, Any] | None = None,
    **network: Any,
) -> Problem:
    """A workload on a topology, as a problem for `simulate`.

    Parameters
    ----------
    workload : Workload or WorkloadBuilder
    topology : Topology
    algorithm : Algorithm, str or mapping, optional
        An injected algorithm for its collective, the name of a builder or a library (``nccl``) for all collectives, or
        one of these by collective; the builders' defaults otherwise.
    npus : sequence of int, optional
        The NPU of each rank; NPUs 0, 1, … by default.
    compute : ComputeModel or mapping, optional
        What operations cost, ``{"peak": "312 TFLOP/s"}``; needed for compute that is counted in operations.
    **network
        Fields of `astrasim_py.system.machine_models.NetworkModel`.

    Returns
    -------
    Problem

    Raises
    ------
    AstraError
        More ranks than NPUs, an algorithm for a collective that the workload does not call, operations without a price.

    Examples
    --------
    >>> from astrasim_py import simulate
    >>> ring = build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    >>> step = WorkloadBuilder(4).compute("100 us").all_gather("1 MiB")
    >>> simulate(problem(step, ring)).makespan
    117228640
    """
    workload = workload.build() if isinstance(workload, WorkloadBuilder) else workload
    notes = Notes([*unplanned(workload.traces)])
    # A reader has told of its own.
    built = [trace for trace in workload.traces if not trace.place]
    if workload.dependencies != DATA:
        notes.hints.append(f"{workload.name or 'the workload'}: {TAKEN}")
    elif said := unused(built):
        notes.warnings.append(f"{workload.name or 'the workload'}: {said[1]}")
    notes.warn()
    costs = compute if isinstance(compute, ComputeModel) else ComputeModel(**(compute or {}))
    distinct = tuple(dict.fromkeys(workload.traces))
    if any(len(unpriced(trace, costs)) for trace in distinct):
        remedy = 'write compute={"peak": "312 TFLOP/s"}'
        raise UsageError("compute", "the workload counts operations, and nothing says what they cost", remedy)
    called = {COLLECTIVE_NAMES[code] for trace in distinct for code in np.unique(_called(trace)).tolist()}
    chosen = _by_collective(algorithm, called)
    npus = placement(topology, "linear" if npus is None else list(npus), workload.ranks)
    machine = Problem(topology=topology, jobs=(), network=NetworkModel(**network), compute=costs)
    table = AlgorithmTable({kind: [_case(chosen.get(kind), machine)] for kind in sorted(called | chosen.keys())})
    return replace(machine, jobs=(Job(workload=workload, placement=npus, algorithms=table),))


def _called(trace: ExecutionTrace) -> np.ndarray:
    return trace.column("comm_type")[trace.type == NodeType.COMM_COLL]


def _by_collective(algorithm: object, called: Set[str]) -> dict[str, Algorithm | str | None]:
    """The algorithm of each collective that is given one."""
    if isinstance(algorithm, Algorithm):
        algorithm = {algorithm.collective: algorithm}
    if not isinstance(algorithm, Mapping):
        return dict.fromkeys(called, algorithm)
    chosen = {collective_name(kind, "algorithm"): how for kind, how in algorithm.items()}
    for kind, how in chosen.items():
        if isinstance(how, Algorithm) and how.collective not in (kind, CUSTOM):
            raise UsageError("algorithm", f"{how.name} is an {how.collective}, not an {kind}", f"give an {kind}")
        if kind not in called:
            remedy = f"it calls {', '.join(sorted(called)) or 'no collective'}"
            raise UsageError("algorithm", f'the workload calls no "{kind}"', remedy)
    return chosen


def _case(algorithm: Algorithm | str | None, machine: Problem) -> Case:
    """The case of an algorithm, for calls of any size on any group."""

    def choose(call: AlgorithmCall) -> Algorithm:
        return by_library(run_plan, machine, call.collective, call.npus, call.size, call.root)

    def make(call: AlgorithmCall) -> Algorithm:
        if isinstance(algorithm, Algorithm):
            return algorithm
        name, options = (
            algorithm or default_algorithm(call.collective),
            dict[str, Any](rooted(call.collective, call.root)),
        )
        if name in IN_NETWORK:
            options |= switches_above(machine.topology, call.npus, name, call.collective, {}, call.size)
        return build(name, call.collective, call.ranks, **options)

    if algorithm in LIBRARIES:
        return Case(source=FromFunction(choose, by_placement=True))
    return Case(source=FromFunction(make, by_placement=algorithm in IN_NETWORK))
