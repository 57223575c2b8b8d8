"""Planning where all ranks share one trace: one program is bound, however many ranks there are."""

from __future__ import annotations

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.system.instances import Instances
from astrasim_py.system.lowering import Lowering, Traffic, check_placement, make_plan
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem

__all__ = ["SymmetricPlan", "make_symmetric_plan"]


class SymmetricPlan(Plan):
    """A plan without tables of routes, although they might fit: an engine that runs every rank wants another."""


def make_symmetric_plan(problem: Problem) -> Plan:
    """Plan a problem in a time that hardly depends on the number of ranks, where they do the same; else as always.

    Raises
    ------
    TraceError, AlgorithmError, ScenarioError
        As `astrasim_py.system.lowering.make_plan`.
    """
    job = problem.jobs[0]
    trace = job.workload.traces[0]
    calls = Instances(problem.semantics).of_shared(job) if len(problem.jobs) == 1 else None
    messages = bool(np.isin(trace.type, (NodeType.COMM_SEND, NodeType.COMM_RECV)).any())
    if calls is None or messages or job.compute_speed or job.planner is not None:
        return make_plan(problem)
    check_placement(problem)
    work = Lowering(problem)
    call, entries = calls
    program = work.programs.of_workload(job, 0, call)
    instances = tuple(work.instance(index, 0, job, 0, entry) for index, entry in enumerate(entries))
    work.matchings.number()
    traffic = Traffic(job.placement, problem.topology.npus, problem.semantics.rendezvous_bytes)
    for part in work.calls:
        traffic.add_slice(part)
    return SymmetricPlan(
        problem=problem,
        npu_of=job.placement,
        job_of=(0,) * job.ranks,
        first_rank=(0,),
        workload=(program,) * job.ranks,
        p2p=(None,),
        instances=instances,
        calls=tuple(work.calls),
        start_delay=tuple(job.start_delay_ps.get(rank, 0) for rank in range(job.ranks)),
        route_pairs=np.zeros(0, dtype=np.int64),
        route_ptr=np.zeros(1, dtype=np.int64),
        route_links=None,
        sizes=traffic.all_sizes(),
    )
