"""Random workloads whose ranks share the traces of their class, and the same with a trace of its own for each rank."""

from __future__ import annotations

import random
from dataclasses import replace

from worlds import small_problems

from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.system.problem import Problem

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier")


def role_workload(rng: random.Random, ranks: int, items: int) -> Workload:
    """Classes of equal size, one after the other or interleaved; roles part all ranks, or those of some classes."""
    classes = rng.choice([c for c in range(1, ranks + 1) if ranks % c == 0])
    size = ranks // classes
    far, near = (size, 1) if rng.random() < 0.5 else (1, classes)  # from class to class, and from rank to rank in one
    mine = [[c * far + i * near for i in range(size)] for c in range(classes)]
    groups: dict[str, tuple[int, ...]] = {"back": tuple(range(ranks))[::-1]}
    roles: dict[str, list[str | None]] = {}
    taking: dict[str, list[int]] = {"": list(range(classes)), "back": list(range(classes))}
    for number in range(rng.randint(1, 3)):
        name = f"role{number}"
        if roles and rng.random() < 0.3:
            first = rng.choice(list(roles))  # a second name of the same groups
            roles[name], taking[name] = roles[first], taking[first]
            continue
        taking[name] = rng.sample(range(classes), rng.randint(1, classes))
        left = [rank for c in taking[name] for rank in mine[c]]
        rng.shuffle(left)
        roles[name] = [None] * ranks
        while left:
            members = left[: rng.choice((1, 2, 2, 3, size, len(left)))]
            left = left[len(members) :]
            group = "back" if set(members) == set(range(ranks)) else f"{name}.{min(members)}"
            groups.setdefault(group, tuple(members))
            for rank in members:
                roles[name][rank] = group
    nodes: list[list[dict]] = [[] for _ in range(classes)]
    names: list[list[str]] = [[] for _ in range(classes)]
    chained = rng.random() < 0.8

    def add(c: int, name: str = "", **node) -> None:
        recent = range(max(0, len(nodes[c]) - 3), len(nodes[c]))
        node["deps"] = set(rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2)))))
        if node["type"] == NodeType.COMM_COLL and chained:
            node["deps"] |= set([i for i, n in enumerate(nodes[c]) if n["type"] == NodeType.COMM_COLL][-1:])
        nodes[c].append(node)
        names[c].append(name)

    for _ in range(items):
        kind = rng.choice(("collective", "collective", "message", "compute"))
        if kind == "collective":
            name = rng.choice(list(taking))
            called = int(CommType[rng.choice(COLLECTIVES).upper()])
            call = {"comm_type": called, "comm_size": rng.choice((0, 1, 12, 1000, 6001))}
            for c in taking[name]:
                add(c, name, type=NodeType.COMM_COLL, **call)
        elif kind == "message" and classes > 1:
            source, target = rng.sample(range(classes), 2)
            tag = rng.randint(0, 1)
            ends = {"comm_src": source * far, "comm_dst": target * far, "comm_tag": tag, "comm_size": 1000 + tag}
            add(source, type=NodeType.COMM_SEND, **ends)
            add(target, type=NodeType.COMM_RECV, **ends)
        else:
            add(rng.randrange(classes), type=NodeType.COMP, micros=rng.randint(0, 4))
    traces: list = [None] * ranks
    for c in range(classes):
        some = nodes[c] or [{"type": NodeType.COMP}]
        made = small_problems.with_groups(small_problems.trace(some), names[c] or [""])
        for rank in mine[c]:
            traces[rank] = made
    shifts = [next(rank - own[0] for own in mine if rank in own) for rank in range(ranks)]
    return Workload(tuple(traces), groups, roles=roles, shifts=shifts)


def own_traces(workload: Workload) -> Workload:
    """The same workload without roles and shifts: every rank has its own trace."""
    return Workload(tuple(map(workload.trace, range(workload.ranks))), workload.groups, workload.name)


def with_roles(problem: Problem, seed: int, items: int) -> Problem:
    """A problem with other workloads, which have roles and shifts."""
    rng = random.Random(seed)
    jobs = (replace(job, workload=role_workload(rng, job.ranks, rng.randint(1, items))) for job in problem.jobs)
    return replace(problem, jobs=tuple(jobs))


def without_roles(problem: Problem) -> Problem:
    """The same problem without roles and shifts."""
    return replace(problem, jobs=tuple(replace(job, workload=own_traces(job.workload)) for job in problem.jobs))
