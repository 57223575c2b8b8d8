"""Critical paths of algorithms on links of their own equal the published closed forms, exactly."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.collectives.collective import busbw_factor
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.steps import steps_of
from astrasim_py.verification.bounds import _POWERS_OF_TWO, CLOSED_FORMS, closed_form_ps
from astrasim_py.verification.termination import Flow

SIZES = (2, 3, 4, 7, 8, 16, 64)


def makespan(a: Algorithm, size: int, alpha: int, beta: int, gamma: int = 0) -> int:
    """Longest path: a message takes alpha + bytes·beta after both the link before it is free and it is ready.

    Messages of one pair of ranks share a link in order of their sends; all else runs at once, a rank reduces one
    piece at a time.
    """
    # Nothing is fused here: every node is one step.
    steps = steps_of(a)
    flow = Flow(steps)
    nbytes = np.concatenate([a.message_bytes(rank, size) for rank in range(a.ranks)]).tolist()
    kinds = np.concatenate([t.type for t in a.traces]).tolist()
    peer = np.concatenate([t.column("comm_dst") for t in a.traces]).tolist()
    op = np.concatenate([t.column("comp_op") for t in a.traces]).tolist()
    rank, send_of = steps.rank, flow.sender
    end = [0] * len(steps)
    link: dict = {}
    unit: dict = {}
    for g in flow.sequence:
        ready = max((end[p] for p in steps.parents[g]), default=0)
        if kinds[g] == NodeType.COMM_SEND:
            free = max(ready, link.get((rank[g], peer[g]), 0)) + nbytes[g] * beta
            link[rank[g], peer[g]] = free
            end[g] = free + alpha
        elif kinds[g] == NodeType.COMM_RECV:
            end[g] = max(ready, end[send_of[g]])
        elif op[g] == 1:
            end[g] = unit[rank[g]] = max(ready, unit.get(rank[g], 0)) + nbytes[g] * gamma
        else:
            end[g] = ready
    return max(end, default=0)


@pytest.mark.parametrize(("algorithm", "collective"), list(CLOSED_FORMS))
@pytest.mark.parametrize("n", SIZES)
def test_critical_paths_equal_closed_forms(algorithm, collective, n):
    if (algorithm, collective) in _POWERS_OF_TWO and n & (n - 1):
        with pytest.raises(AlgorithmError, match="are not a power of two"):
            closed_form_ps(algorithm, collective, n, 64, 1, Fraction(1))
        return
    size = 6 * n
    a = build(algorithm, collective, n)
    for alpha, beta, gamma in ((1, 0, 0), (0, 1, 0), (500, 3, 0), (70, 2, 5))[0 if n < 64 else 3 :]:
        # An all but infinite bandwidth stands for none.
        rate = Fraction(10**12, beta) if beta else Fraction(10**30)
        expected = closed_form_ps(algorithm, collective, n, size, alpha, rate, Fraction(gamma, 10**12))
        expected = expected if beta else round(expected)
        assert makespan(a, 0 if collective == "barrier" else size, alpha, beta, gamma) == expected


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 31, 33, 64])
def test_binomial_all_reduce_has_twice_ceil_log2_sends_in_a_row(n):
    rounds = 2 * (n - 1).bit_length()
    a = build("binomial_tree", "all_reduce", n)
    assert makespan(a, 1000, 1, 0) == rounds
    assert makespan(a, 1000, 0, 1) == rounds * 1000
    # One send of a rank at a time: its sends form a chain.
    for trace in a.traces:
        ptr, parents = trace.parents()
        above = [set() for _ in range(len(trace))]
        for row in range(len(trace)):
            direct = parents[ptr[row] : ptr[row + 1]].tolist()
            above[row] = set(direct).union(*(above[p] for p in direct))
        # The first goes up (tag 0); what comes down to this rank was made of it.
        down = np.flatnonzero((trace.type == NodeType.COMM_SEND) & (trace.column("comm_tag") > 0)).tolist()
        assert all(one in above[two] for one, two in pairwise(down))


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_a_bidirectional_ring_halves_the_bytes_in_each_direction(n):
    a = build("ring", "all_reduce", n, bidirectional=True)
    if n == 2:  # both directions are one link
        return
    assert makespan(a, 12 * n, 0, 1) == 2 * (n - 1) * 6
    assert makespan(a, 12 * n, 1, 0) == 2 * (n - 1)


def test_pieces_fill_the_pipeline():
    n, q, size = 5, 4, 4000
    # A chain of n-1 hops, q pieces: the last one leaves after q-1 others.
    assert makespan(build("ring", "broadcast", n, chunks=q), size, 0, 1) == (n - 1 + q - 1) * size // q
    assert makespan(build("ring", "reduce", n, chunks=q), size, 0, 1) == (n - 1 + q - 1) * size // q
    tree = build("double_binary_tree", "all_reduce", 16, chunks=1)
    cut = build("double_binary_tree", "all_reduce", 16, chunks=8)
    assert makespan(cut, 16000, 0, 1) < makespan(tree, 16000, 0, 1)


@pytest.mark.parametrize(
    ("dims", "names", "alpha"),
    [
        # reduce_scatter and all_gather in dimension 0, all_reduce in the last.
        ([4, 8], ["ring", "ring"], 3 + 14 + 3),
        ([4, 8], ["direct", "halving_doubling"], 1 + 6 + 1),
        ([2, 2, 2], ["ring", "ring", "direct"], 1 + 1 + 2 + 1 + 1),
    ],
)
def test_hierarchical_phases_add_up(dims, names, alpha):
    n = int(np.prod(dims))
    a = build("hierarchical", "all_reduce", n, dims=dims, algorithms=names)
    assert makespan(a, 1000, 1, 0) == alpha


def test_hierarchical_moves_most_bytes_in_the_first_dimension():
    a = build("hierarchical", "all_reduce", 32, dims=[4, 8])
    nbytes = a.message_bytes(5, 3200)
    trace = a.traces[5]
    sends = trace.type == NodeType.COMM_SEND
    near = sends & (trace.column("comm_dst") // 4 == 5 // 4)
    assert int(nbytes[near].sum()) == 2 * 3 * 800
    assert int(nbytes[sends & ~near].sum()) == 2 * 7 * 100


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert busbw_factor("all_reduce", 8) == Fraction(14, 8)
    for collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert busbw_factor(collective, 8) == Fraction(7, 8)
    assert busbw_factor("broadcast", 8) == busbw_factor("reduce", 8) == 1
    assert busbw_factor("barrier", 8) == 0


def test_an_unknown_closed_form_is_said():
    with pytest.raises(AlgorithmError, match="has no closed form"):
        closed_form_ps("double_binary_tree", "all_reduce", 8, 64, 1, Fraction(1))
