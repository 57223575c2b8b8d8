"""Problems of Python calls: a collective, or a workload, on a topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from astrasim_py.builders.registry import IN_NETWORK, build, default_algorithm, rooted
from astrasim_py.chakra.control import TAKEN, unused
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.unplanned import unplanned
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.collective import CUSTOM, collective_name
from astrasim_py.core.choices import LIBRARIES
from astrasim_py.core.errors import UsageError
from astrasim_py.core.notes import Notes
from astrasim_py.core.units import parse_size
from astrasim_py.engine.simulation import simulate as run_plan
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall, AlgorithmTable, Case, FromFunction
from astrasim_py.system.durations import unpriced
from astrasim_py.system.machine_models import ComputeModel, NetworkKeys, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import DATA
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.workload.build import WorkloadBuilder
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate


def collective(
    kind: str,
    size: int | str,
    topology: Topology,
    *,
    algorithm: Algorithm | str | None = None,
    root: int = 0,
    npus: Sequence[int] | None = None,
    **network: Unpack[NetworkKeys],
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
    >>> from astrasim_py import build_topology, simulate
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
    compute: ComputeModel | Mapping[str, object] | None = None,
    **network: Unpack[NetworkKeys],
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
    >>> from astrasim_py import build_topology, simulate
    >>> ring = build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    >>> step = WorkloadBuilder(4).compute("100 us").all_gather("1 MiB")
    >>> simulate(problem(step, ring)).makespan
    117228640
    """
    workload = workload.build() if isinstance(workload, WorkloadBuilder) else workload
    notes = Notes([*unplanned(workload.traces)])
    # A reader has told of its own.
    traces = [trace for trace in workload.traces if not trace.place]
    if workload.dependencies != DATA:
        notes.hints.append(f"{workload.name or 'the workload'}: {TAKEN}")
    elif warning := unused(traces):
        notes.warnings.append(f"{workload.name or 'the workload'}: {warning[1]}")
    notes.warn()
    costs = ComputeModel.model_validate(compute or {})
    distinct = tuple(dict.fromkeys(workload.traces))
    if any(len(unpriced(trace, costs)) for trace in distinct):
        remedy = 'write compute={"peak": "312 TFLOP/s"}'
        raise UsageError("compute", "the workload counts operations, and nothing says what they cost", remedy)
    called = {COLLECTIVE_OF_CODE[code] for trace in distinct for code in np.unique(_called(trace)).tolist()}
    chosen = _by_collective(algorithm, called)
    npus = placement(topology, "linear" if npus is None else list(npus), workload.ranks)
    machine = Problem(topology=topology, jobs=(), network=NetworkModel.model_validate(network), compute=costs)
    table = AlgorithmTable({kind: [_case(chosen.get(kind), machine)] for kind in sorted(called | chosen.keys())})
    return replace(machine, jobs=(Job(workload=workload, placement=npus, algorithms=table),))


def _called(trace: ExecutionTrace) -> np.ndarray:
    return trace.column("comm_type")[trace.type == NodeType.COMM_COLL]


def _by_collective(
    algorithm: Algorithm | str | Mapping[str, Algorithm | str | None] | None, called: Set[str]
) -> dict[str, Algorithm | str | None]:
    """The algorithm of each collective that is given one."""
    if isinstance(algorithm, Algorithm):
        algorithm = {algorithm.collective: algorithm}
    if not isinstance(algorithm, Mapping):
        return dict.fromkeys(called, algorithm)
    chosen = {collective_name(kind, "algorithm"): choice for kind, choice in algorithm.items()}
    for kind, choice in chosen.items():
        if isinstance(choice, Algorithm) and choice.collective not in (kind, CUSTOM):
            raise UsageError("algorithm", f"{choice.name} is an {choice.collective}, not an {kind}", f"give an {kind}")
        if kind not in called:
            remedy = f"it calls {', '.join(sorted(called)) or 'no collective'}"
            raise UsageError("algorithm", f'the workload calls no "{kind}"', remedy)
    return chosen


def _case(algorithm: Algorithm | str | None, machine: Problem) -> Case:
    """The case of an algorithm, for calls of any size on any group."""

    def choose(call: AlgorithmCall) -> Algorithm:
        from astrasim_py.engine.choose import by_library

        return by_library(run_plan, machine, call.collective, call.npus, call.size, call.root)

    def make(call: AlgorithmCall) -> Algorithm:
        if isinstance(algorithm, Algorithm):
            return algorithm
        name = algorithm or default_algorithm(call.collective)
        options: dict[str, Any] = {**rooted(call.collective, call.root)}
        if name in IN_NETWORK:
            from astrasim_py.builders.switch_trees import switches_above

            options |= switches_above(machine.topology, call.npus, name, call.collective, {}, call.size)
        return build(name, call.collective, call.ranks, **options)

    if algorithm in LIBRARIES:
        return Case(source=FromFunction(choose, by_placement=True))
    return Case(source=FromFunction(make, by_placement=algorithm in IN_NETWORK))
