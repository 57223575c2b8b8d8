"""Calls that take less time than links which messages share would allow."""

from fractions import Fraction

import numpy as np

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.records import Records
from astrasim_py.core.units import format_size, format_time
from astrasim_py.system.bound import at_best
from astrasim_py.system.plan import Plan
from astrasim_py.verification.bounds import CallBounds, may_reduce


def beyond_links(plan: Plan, records: Records) -> list[str]:
    """The call that is farthest beyond what links can carry, under a model that does not make messages share them.

    This is a property of the model, and no mistake: a hint.
    """
    network, topology = plan.problem.network, plan.problem.topology
    if network.contention or not topology.links or records.outcome.status != "done":
        return []
    bounds, table = CallBounds(at_best(plan.problem)), records.collective
    took = np.full(len(plan.instances.values), np.iinfo(np.int64).max)
    number = plan.instances.which[table["instance"]]  # a folded run has some of them
    np.minimum.at(took, number, table["end"] - table["start"])
    worst: tuple[Fraction, str] = Fraction(1), ""
    for duration, instance in zip(took.tolist(), plan.instances.values, strict=True):
        if instance.type == CUSTOM or not instance.algorithms or duration <= 0:
            continue
        npus = tuple(plan.npu_of[rank] for rank in instance.members)
        switches = may_reduce(topology) or any(each.actors for each in instance.algorithms)
        least, _ = bounds.of(instance.type, instance.size, npus, instance.root, switches=switches)
        call = f"{instance.type} of {format_size(instance.size)} takes {format_time(duration)}"
        call += f", and links that are shared need {format_time(least)} or more"
        if least > duration:
            worst = max(worst, (Fraction(least, duration), call))
    if not worst[1]:
        return []
    remedy = "write network: {model: fluid}, under which messages share links"
    return [f"{network.model}: {worst[1]}: its bandwidth is beyond what they carry; {remedy}"]
