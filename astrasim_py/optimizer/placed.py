"""The placement of ranks on the NPUs that a job has."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Any

from astrasim_py.core.errors import AstraError
from astrasim_py.optimizer.choices import Choice, holder
from astrasim_py.system.problem import Problem
from astrasim_py.topology.placement import placement

#: Most ranks of which all placements are listed.
_MOST_LISTED = 4


@dataclass(frozen=True, kw_only=True)
class PlacementChoice(Choice):
    """The NPU of each rank. `block`: neighbouring ranks that are also exchanged together."""

    block: int = 1

    def apply(self, config: dict[str, Any], value: Any) -> None:
        keys = holder(config, self.job)
        keys.pop("ranks", None)
        keys["placement"] = list(value)

    def move(self, value: Any, random: Random, likely: Sequence = ()) -> Any:
        if self.whole:
            return super().move(value, random)
        size = self.block if self.block > 1 and random.random() < 0.5 else 1
        a, b = (size * place for place in random.sample(range(len(value) // size), 2))
        moved = list(value)
        moved[a : a + size], moved[b : b + size] = value[b : b + size], value[a : a + size]
        return tuple(moved)

    def say(self, value: Any) -> str:
        moved = sum(a != b for a, b in zip(value, self.values[0], strict=True))
        return f"{moved} of {len(value)} ranks on other NPUs" if moved else "as in the scenario"


def placement_choice(problem: Problem, job: int, name: str) -> PlacementChoice | None:
    """The choice of the placement of a job; None where it has one rank."""
    job_plan, topology = problem.jobs[job], problem.topology
    if job_plan.ranks < 2:
        return None
    if job_plan.ranks <= _MOST_LISTED:
        return PlacementChoice(
            kind="placement",
            name="placement",
            job=name,
            values=tuple(dict.fromkeys((job_plan.placement, *permutations(job_plan.placement)))),
        )
    values = [job_plan.placement]
    values += [tuple(job_plan.placement[rank] for rank in inverse(order)) for order in _by_role(problem, job)]
    if len(problem.jobs) == 1 and topology.dims:
        with suppress(AstraError):  # it has no room for all
            values.append(placement(topology, "snake", job_plan.ranks))
    local = topology.dims[0].size if topology.dims else 1
    return PlacementChoice(
        kind="placement",
        name="placement",
        job=name,
        values=tuple(dict.fromkeys(values)),
        whole=False,
        block=local if job_plan.ranks % local == 0 and 1 < local < job_plan.ranks else 1,
    )


def inverse(order: list[int]) -> list[int]:
    """Of a list of ranks, the place of each."""
    places = [0] * len(order)
    for place, rank in enumerate(order):
        places[rank] = place
    return places


def _by_role(problem: Problem, job: int) -> Iterator[list[int]]:
    """All ranks, with the members of the groups of one role side by side."""
    workload = problem.jobs[job].workload
    roles: dict[str, list[tuple[int, ...]]] = {}
    for name in workload.groups:
        roles.setdefault(name.rpartition(".")[0] or name, []).append(workload.members(name))
    for groups in roles.values():
        order = [rank for members in groups for rank in members]
        if len(groups) > 1 and sorted(order) == list(range(workload.ranks)):
            yield order
