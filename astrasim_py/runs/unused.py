"""What a scenario says and nothing in it uses: whole sections, cases, and keys that its model of the network ignores.

A key may be for some points of a sweep only. So each point lists what it does not use, and what none of them uses is
told of the scenario.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.choices import BLOCKS, BY_DIMENSION, LIBRARIES, PROTOCOLS
from astrasim_py.scenario.algorithm_models import AlgorithmSynthesis, Builder
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.workload_models import ModelWorkload
from astrasim_py.system.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Use:
    """What the jobs of a point do.

    `computing`: whether nodes compute. `idle`: by job: its ranks of other speed that compute nothing. `counting`:
    whether nodes count operations. `remote`: whether nodes use remote memory. `messages`: how many are sent. `called`:
    types of collectives on more than one rank. `cases`: places of the cases of algorithms, and whether a call is
    carried out by each. `protocols`: of algorithms. `switches`: whether switches compute.
    """

    computing: bool
    idle: dict[str, list[int]]
    counting: bool
    remote: bool
    messages: int
    called: frozenset[str]
    cases: dict[str, bool]
    protocols: frozenset[str]
    switches: bool

    @classmethod
    def of(cls, plan: Plan) -> "Use":
        traces = list(dict.fromkeys(trace for job in plan.problem.jobs for trace in job.workload.traces))
        computes = {trace: bool((trace.type == NodeType.COMP).any()) for trace in traces}
        memory = (NodeType.MEM_LOAD, NodeType.MEM_STORE)
        cases: dict[str, bool] = {}
        for job in plan.problem.jobs:
            for place, is_used in getattr(job.algorithms, "places", {}).items():
                cases[place] = cases.get(place, False) or is_used
        calls = [instance for instance in plan.instances.values if len(instance.members) > 1]
        return cls(
            computing=any(computes.values()),
            idle={
                job.name: [rank for rank in sorted(job.compute_speed) if not computes[job.workload.traces[rank]]]
                for job in plan.problem.jobs
            },
            # A skeleton has what was counted as durations.
            counting=any(job.skeleton for job in plan.problem.jobs)
            or any(trace.has_column("num_ops") and (trace.column("num_ops") > 0).any() for trace in traces),
            remote=any(np.isin(trace.type, memory).any() for trace in traces),
            messages=plan.messages,
            called=frozenset("all_to_all" if i.group.startswith(BLOCKS) else i.type for i in calls),
            cases=cases,
            protocols=frozenset(a.protocol for instance in calls for a in instance.algorithms),
            switches=bool(plan.switches),
        )


def unused(point: Point, use: Use) -> list[str]:
    """What a point says and does not use, each with its place."""
    return [f"{point.place(path)}: {text}" for path, text in (*_sections(point, use), *_network(point, use))] + [
        f"{place}: no call is carried out by this case; correct when, or drop it"
        for place, is_used in use.cases.items()
        if not is_used
    ]


def unused_by_all(listed: Sequence[Iterable[str]]) -> list[str]:
    """What every point lists."""
    first, *rest = listed or [()]
    return [text for text in first if all(text in texts for texts in rest)]


def _sections(point: Point, use: Use) -> Iterator[tuple[str, str]]:
    """(path, why it is not used) of whole sections and their keys."""
    spec, keys = point.spec, point.config
    jobs = spec.jobs or {"": spec}
    if spec.noise is not None and not use.computing:
        yield "noise", "no node computes, and noise makes only computation longer; drop it"
    if "compute" in keys and not use.counting and not any(isinstance(j.workload, ModelWorkload) for j in jobs.values()):
        yield "compute", "no node counts operations, so that no time follows from it; drop it"
    if "memory" in keys and spec.memory.kind != "none" and not use.remote:
        yield "memory", "no node loads from or stores to remote memory; drop it"
    elif "npus_per_node" in keys.get("memory", ()) and spec.memory.kind != "per_node":
        yield "memory.npus_per_node", f"is for kind: per_node, not for {spec.memory.kind}; drop it"
    if spec.nic is not None and not use.messages:
        yield "nic", "no message is sent; drop it"
    # Not strict: switches that compute are a job after those of the scenario.
    for (name, job), idle in zip(jobs.items(), use.idle.values(), strict=False):
        key = f"jobs.{name}." if name else ""
        if idle and not spec.semantics.gamma:
            ranks = ", ".join(map(str, idle[:8])) + (", …" if len(idle) > 8 else "")
            yield f"{key}stragglers.compute_speed", f"no node of rank {ranks} computes; drop it"
        yield from (*_groups(job, key), *_algorithms(job, key))
    for key, cases in [("", spec.algorithms), *((f"jobs.{name}.", job.algorithms) for name, job in spec.jobs.items())]:
        if cases and not use.called.intersection(cases):
            problem = f"none of {', '.join(cases)} is called" if len(cases) < 4 else "no collective is called"
            yield f"{key}algorithms", f"{problem}; drop it"
    if spec.collectives is not None:
        yield from _collectives(spec.collectives, use)
    if keys["topology"].get("switches") and not use.switches and not _may_choose_switches(spec):
        remedy = "no algorithm lets switches compute; write e.g. all_reduce: switch_tree under algorithms, or drop it"
        yield "topology.switches", remedy
    routing = keys["topology"].get("routing") or {}
    if "seed" in routing and not routing.get("ecmp"):
        yield "topology.routing.seed", "without ecmp every pair has one route; write ecmp: true, or drop it"


def _algorithms(job: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Keys of algorithms that others of theirs make meaningless."""
    for collective, cases in job.algorithms.items():
        for i, case in enumerate(cases):
            path = f"{prefix}algorithms.{collective}{f'[{i}]' * (len(cases) > 1)}"
            if isinstance(case, AlgorithmSynthesis):
                options = case.synthesize
                if "exact_limit" in options.model_fields_set and not options.exact:
                    yield f"{path}.synthesize.exact_limit", "nothing is to be proven; write exact: true, or drop it"


def _groups(job: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Groups that no item and no case names."""
    items = isinstance(job.workload, tuple)
    used = [item.body.group for item in job.workload if hasattr(item.body, "group")] if items else []
    used = [name for name in used if isinstance(name, str)]
    used += [case.when.group for cases in job.algorithms.values() for case in cases if case.when and case.when.group]
    for name in job.groups:
        if not any(label == name or label.startswith(f"{name}.") for label in used):
            remedy = "name it by group:, or drop it"
            if not items:
                remedy = "traces have theirs in a file: write groups: FILE beside trace"
            yield f"{prefix}groups.{name}", f"no item of the workload runs in it; {remedy}"


def _collectives(collectives: Any, use: Use) -> Iterator[tuple[str, str]]:
    keys = collectives.differs()
    if keys and not use.called.intersection(BY_DIMENSION):
        yield "collectives", f"none of {', '.join(BY_DIMENSION)} is called, which go dimension by dimension; drop it"
        return
    if "all_reduce" in keys and "all_reduce" not in use.called:
        yield "collectives.all_reduce", "no all_reduce is called; drop it"
    if "rounding" in keys and collectives.chunks == 1:
        yield "collectives.rounding", "is of the remainder of several chunks; write chunks, or drop it"


def _cases(spec: Any) -> Iterator[Any]:
    tables = [spec.algorithms, *(job.algorithms for job in spec.jobs.values())]
    return (case for table in tables for cases in table.values() for case in cases)


def _library(spec: Any) -> bool:
    """Whether calls may be carried out as a library would."""
    return any(isinstance(case, Builder) and case.builder in LIBRARIES for case in _cases(spec))


def _may_choose_switches(spec: Any) -> bool:
    """Whether an algorithm may be one in which switches compute, and is chosen for each call."""
    return _library(spec) or any(isinstance(case, AlgorithmSynthesis) for case in _cases(spec))


def _network(point: Point, use: Use) -> Iterator[tuple[str, str]]:
    """Keys of the network that its model, or the workload, does not use."""
    network, semantics = point.spec.network, point.config.get("semantics")
    if network.model == "analytical":
        for key in ("link_busy", "qps"):
            if key in network.differs():
                yield f"network.{key}", "changes nothing under analytical, where messages wait for no link; drop it"
    elif isinstance(semantics, dict) and "analytical_route" in semantics:
        yield "semantics.analytical_route", f"is for the model analytical, not for {network.model}; drop it"
    for key in ("msccl", "profile"):
        if getattr(network, key) is not None and not use.called:
            yield f"network.{key}", "is for collectives, and none is called; drop it"
    if network.profile is not None and use.called and network.switch_reduction is not None:
        if "all_reduce" not in use.called:
            yield "network.switch_reduction", "no all_reduce is called; drop it"
        elif not network.switch_reduction and not _library(point.spec):
            yield "network.switch_reduction", "without nccl no switch reduces; drop it"
    if network.msccl is not None and use.called:
        protocols = {network.msccl.protocol_for(protocol_used) for protocol_used in use.protocols}
        entry = (point.config["network"].get("msccl") or {}) if isinstance(point.config["network"], dict) else {}
        latency = entry.get("latency") if isinstance(entry, dict) else None
        for protocol in filter(latency.__contains__, PROTOCOLS) if isinstance(latency, dict) else ():
            if protocol not in protocols:
                yield f"network.msccl.latency.{protocol}", f"no algorithm uses {protocol}; drop it"
