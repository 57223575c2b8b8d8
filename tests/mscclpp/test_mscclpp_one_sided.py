"""Plans in Python: their nops, their verdicts, and what is refused."""

from __future__ import annotations

import pytest

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.mscclpp.one_sided import OneSided
from astrasim_py.mscclpp.to_traces import algorithm_of
from astrasim_py.mscclpp.verify import verify_plan
from astrasim_py.verification.verifier import verify


def exchanged(ranks, **more):
    """All ranks put their shard into the output of all others, by a thread block for each peer."""
    program = OneSided("all_gather", ranks, **more)
    blocks = {}
    for rank in range(ranks):
        for step in range(1, ranks):
            # Blocks of one number face each other: the peer is as far on one side as this rank on the other.
            blocks[rank, rank ^ step] = program.block(rank)
    for (rank, peer), block in blocks.items():
        block.signal(peer, relaxed=True)
        block.wait(peer, relaxed=True)
        block.put(("o", rank), peer, ("o", rank))
        block.signal(peer)
        block.wait(peer)
    return program


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_direct_all_gather(ranks):
    plan = exchanged(ranks).plan()
    verdict = verify_plan(plan)
    assert (verdict.passes, verdict.correct, verdict.warnings) == (True, True, ())
    assert [op.name for op in plan.gpus[0].blocks[0].operations] == [
        "rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait",
    ]  # fmt: skip
    assert verify(algorithm_of(plan)).correct


def test_sums_of_loads_and_of_packets():
    loads = OneSided("reduce_scatter", 2)
    packets = OneSided("all_reduce", 2, chunks=1, protocol="LL")
    for rank in range(2):
        block, peer = loads.block(rank), 1 - rank
        block.signal(peer)
        block.wait(peer)
        block.reduce(("i", rank), ("i", rank), peer)
        block.signal(peer)
        block.wait(peer)
        block = packets.block(rank)
        block.put(("i", 0), peer, ("s", 0))
        block.reduce(("i", 0), ("s", 0))
    for program in (loads, packets):
        verdict = verify_plan(program.plan())
        assert (verdict.passes, verdict.correct) == (True, True), verdict.problems


def test_puts_over_ports():
    program = OneSided("all_gather", 2, in_place=False)
    for rank in range(2):
        block, peer = program.block(rank), 1 - rank
        block.copy(("i", 0), ("o", rank))
        block.signal(peer, port=True)
        block.wait(peer, port=True)
        block.put(("i", 0), peer, ("o", rank), port=True)
        block.wait(peer, port=True)
    verdict = verify_plan(program.plan())
    assert (verdict.passes, verdict.correct, verdict.warnings) == (True, True, ())


def test_a_missing_signal_is_a_deadlock_and_a_missing_wait_a_race():
    program = exchanged(2)
    program.block(0).wait(1)
    program.block(1)
    assert verify_plan(program.plan()).terminates is False
    program = OneSided("all_gather", 2)
    for rank in range(2):
        program.block(rank).put(("o", rank), 1 - rank, ("o", rank))
    verdict = verify_plan(program.plan())
    assert (verdict.terminates, verdict.correct, verdict.race_free) == (True, True, False)


def test_what_is_refused():
    with pytest.raises(AlgorithmError, match="plans have no broadcast; write one of all_reduce"):
        OneSided("broadcast", 4)
    with pytest.raises(AlgorithmError, match="has 6 chunks for 4 ranks; write a multiple of 4"):
        OneSided("all_gather", 4, 6)
    with pytest.raises(AlgorithmError, match="4 is not one of 4 ranks"):
        OneSided("all_gather", 4).block(4)
    with pytest.raises(AlgorithmError, match='"x" is no buffer; write i, o or s'):
        OneSided("all_gather", 2).block(0).put(("x", 0), 1, ("o", 0))
