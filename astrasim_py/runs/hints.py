"""What could be better in a run: a default algorithm far from its bound, a model that serves messages one by one."""

from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction

import numpy as np

from astrasim_py.builders.keys import BuilderKeys
from astrasim_py.builders.registry import build
from astrasim_py.core.choices import FOLDED
from astrasim_py.core.errors import AstraError
from astrasim_py.core.records import Records
from astrasim_py.core.units import format_size, format_time
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import Way
from astrasim_py.system.call_sizes import beyond_links
from astrasim_py.system.held_up import held_up
from astrasim_py.system.plan import Instance, Plan
from astrasim_py.system.problem import Problem
from astrasim_py.verification.bounds import CLOSED_FORMS, closed_form_ps

#: Least share of the bound that a default algorithm reaches without a word.
_LEAST = 0.3
#: Largest group for which another builder is tried.
_MOST_RANKS = 64


def hints(plan: Plan, records: Records) -> Iterator[str]:
    """Lines on a run, each with what to write instead."""
    if records.fold is None and not records.engine.endswith(FOLDED):
        yield from _far_from_bound(plan, records)
    yield from held_up(plan, records)
    yield from beyond_links(plan, records)


def _far_from_bound(plan: Plan, records: Records) -> Iterator[str]:
    """A line on the call that is farthest from its bound, of those that a default algorithm carries out."""
    table = records.collective
    took, bound = table["end"] - table["start"], table["bound"]
    slow = np.flatnonzero((table["end"] >= 0) & (bound > 0) & (bound < _LEAST * took))
    for row in slow[np.argsort(bound[slow] / took[slow], kind="stable")].tolist():
        instance = plan.instances[int(table["instance"][row])]
        algorithms = plan.problem.jobs[instance.job].algorithms
        if instance.algorithm is None or not getattr(algorithms, "is_default", lambda _: False)(instance.type):
            continue
        better = _better(plan, instance, instance.algorithm)
        call = f"{instance.type} of {format_size(instance.size)} by {instance.algorithm.name}, the default,"
        text = f"{call} takes {format_time(int(took[row]))}, the bound is {format_time(int(bound[row]))}"
        yield text + (f"; write algorithms: {{{instance.type}: {better}}}, which is faster alone" if better else "")
        return


def _better(plan: Plan, instance: Instance, default: Algorithm) -> str:
    """Of the builder with the best closed form, and one by dimension, the faster one; nothing where the default is."""
    from astrasim_py.engine.choose import fastest
    from astrasim_py.topology.grid import group_dims

    problem, topology, n = plan.problem, plan.problem.topology, len(instance.members)
    if n > _MOST_RANKS or problem.network.profile is not None or not topology.links:
        return ""
    alpha = int(topology.latency_ps.max()) * (1 if topology.vertices == topology.npus else 2)
    forms: dict[str, Fraction] = {}
    for name, kind in CLOSED_FORMS:
        try:
            if kind == instance.type:
                forms[name] = closed_form_ps(name, kind, n, instance.size, alpha, min(topology.bandwidths))
        except AstraError:
            continue
    npus = tuple(plan.npu_of[rank] for rank in instance.members)
    dims = group_dims(topology, npus)
    names = [*sorted(forms, key=forms.__getitem__)[:1], *(["hierarchical"] if len(dims) > 1 else [])]
    machine = Problem(topology=topology, jobs=(), network=problem.network, semantics=problem.semantics)
    ways = {Way(default, ""): ""}
    for name in names:
        options: BuilderKeys = {"root": default.root}
        if name == "hierarchical":
            options["dims"] = dims
        with suppress(AstraError):  # not defined for such a call
            ways.setdefault(Way(build(name, instance.type, n, **options), ""), name)
    return ways[fastest(simulate, machine, list(ways), instance.size, npus)]
