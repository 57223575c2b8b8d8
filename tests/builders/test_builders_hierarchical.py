"""A hierarchy is a sum over groups: its phases, executed one group after the other, do what the whole promises."""

from __future__ import annotations

import random

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.collectives.contract import Contract
from astrasim_py.verification.verifier import verify


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])
def test_a_hierarchy_over_random_groups_keeps_its_contract(collective, seed):
    pick = random.Random(f"{collective} {seed}")
    dims = [pick.randint(2, 4) for _ in range(pick.randint(2, 3))]
    ranks = int(np.prod(dims))
    root = pick.randrange(ranks) if collective == "broadcast" else None
    names = [pick.choice(["ring", "direct"]) for _ in dims]
    made = build("hierarchical", collective, ranks, root=root, dims=dims, algorithms=names, chunks=pick.randint(1, 2))
    verdict = verify(made)
    assert verdict.ok and verdict.passes, verdict.problem
    if made.in_place and collective in ("all_reduce", "broadcast"):
        assert verify(made, contract=Contract.of(collective, ranks, made.chunks, root)).correct is True


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_messages_of_a_hierarchy_are_those_of_its_groups(seed):
    pick = random.Random(seed)
    dims = [pick.randint(2, 4) for _ in range(3)]
    ranks = int(np.prod(dims))
    made = build("hierarchical", "all_reduce", ranks, dims=dims)
    phases = [(kind, size) for size in dims[:-1] for kind in ("reduce_scatter", "all_gather")]
    phases.append(("all_reduce", dims[-1]))
    assert made.messages == sum(build("ring", kind, size).messages * (ranks // size) for kind, size in phases)
    strides = np.cumprod([1, *dims[:-1]]).tolist()
    for rank, trace in enumerate(made.traces):
        peers = trace.column("comm_dst")
        for peer in peers[peers >= 0].tolist():
            different = [rank // s % d != peer // s % d for s, d in zip(strides, dims, strict=True)]
            assert sum(different) == 1, (rank, peer)
