"""Workloads that are listed item by item."""

import re
from itertools import chain
from typing import Any

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.preparation.workloads.section import JobSection, refuse_beyond
from astrasim_py.scenario.job_models import Partition
from astrasim_py.workload.items import AllToAll
from astrasim_py.workload.microbenchmarks import generate


def generated(job: JobSection) -> Workload:
    """The workload of a job. Raises ScenarioError: ranks, groups or nodes that are not there."""
    ranks = job.made_ranks
    groups = {name: members_of(group, ranks) for name, group in job.spec.groups.items()}
    for name, listed in groups.items():
        refuse_beyond(chain(*listed), ranks, job.at(f"groups.{name}"))
    bodies = [item.body for item in job.spec.workload]
    if any(isinstance(body, AllToAll) and body.blocks is not None for body in bodies):
        from astrasim_py.preparation.workloads.blocks import with_blocks

        bodies = with_blocks(job, bodies, ranks, groups)
    try:
        return generate(bodies, ranks, groups, name=job.name)
    except ScenarioError as error:
        match = re.match(r"workload(\[\d+\])?", error.place)
        item = "" if match is None else match[0]
        raise ScenarioError(job.at(item) + error.place.removeprefix(item), error.problem, error.remedy) from None


def members_of(group: Any, ranks: int) -> tuple[tuple[int, ...], ...]:
    """The groups that a name stands for."""
    if isinstance(group, Partition):
        size, stride = group.size, group.stride
        if ranks % (size * stride):
            problem = f"size {size} x stride {stride} does not divide {ranks} ranks"
            raise ScenarioError("groups", problem, "choose a divisor, or list the ranks")
        firsts = [block + offset for block in range(0, ranks, size * stride) for offset in range(stride)]
        return tuple(tuple(range(first, first + size * stride, stride)) for first in firsts)
    return group if group and isinstance(group[0], tuple) else (group,)
