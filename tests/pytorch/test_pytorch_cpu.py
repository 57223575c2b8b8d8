"""Recordings of backends of the host: their calls are what ran, and their graphs give the recorded times."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.pytorch.cpu_backends import host_calls, host_graph, transfers
from astrasim_py.pytorch.groups import GroupTable
from astrasim_py.pytorch.host_trace import read_host_trace
from astrasim_py.pytorch.join import join
from astrasim_py.pytorch.kineto import read_recording
from astrasim_py.pytorch.pieces import busy

HERE = Path(__file__).parent / "recorded"
GOLDEN = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "pytorch/recorded_cpu"
needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="needs ASTRASIM_GOLDEN")


def loaded(folder, rank, *, with_host=True):
    """Recording, spans and calls of one rank of a set."""
    recording = read_recording(str(folder / f"kineto_{rank}.json.gz"))
    groups, node_of = recording.groups, lambda row: None
    if with_host:
        host = read_host_trace(str(folder / f"et_{rank}.json.gz"))
        rows = join(recording, host).host_row
        groups, node_of = groups + host.groups, lambda row: host.communication.get(int(rows[row]))
    found = transfers(recording, node_of)
    return recording, found, host_calls(recording, found, GroupTable(recording.world_size, groups), node_of)


def kinds(calls):
    return Counter((call.kind, call.nbytes) for call in calls)


@pytest.mark.parametrize("rank", range(4))
def test_expert_parallel_ranks_exchange_by_rows(rank):
    _, _, calls = loaded(HERE / "moe_4", rank)
    rows = [[26, 27, 23, 20], [25, 32, 16, 23], [24, 22, 24, 26], [35, 21, 17, 23]]
    theirs = [shares[rank] for shares in rows]
    assert [call.kind for call in calls] == ["all_to_all"] * 3 + ["all_reduce"] * 2
    assert [call.in_bytes for call in calls[:3]] == [32, 96 * 512, sum(theirs) * 512]
    assert (list(calls[1].in_splits), list(calls[1].out_splits)) == (rows[rank], theirs)
    assert (list(calls[2].in_splits), list(calls[2].out_splits)) == (theirs, rows[rank])
    assert not any(call.missing() for call in calls)


@pytest.mark.parametrize("rank", range(4))
def test_functional_calls_know_their_groups(rank):
    _, _, calls = loaded(HERE / "funcol_4", rank)
    pairs = {(rank // 2 * 2, rank // 2 * 2 + 1): 7, (rank % 2, rank % 2 + 2): 13}
    assert Counter(call.group.members for call in calls) == pairs
    assert Counter(call.kind for call in calls) == {
        "all_reduce": 17,
        "all_gather": 1,
        "reduce_scatter": 1,
        "all_to_all": 1,
    }


def test_without_the_host_trace_groups_stay_unknown():
    _, _, calls = loaded(HERE / "funcol_4", 0, with_host=False)
    assert {("group" in call.missing()) for call in calls if call.kind == "all_reduce"} == {True}


@needs_golden
def test_kinds_and_sizes_are_those_of_the_calls():
    assert kinds(loaded(GOLDEN / "ddp_4", 2)[2]) == {
        ("all_reduce", 2102272): 1,
        ("all_reduce", 2104320): 5,
        ("all_reduce", 2048): 1,
    }
    # gloo's spans of these reduce_scatters are called all_reduce.
    assert kinds(loaded(GOLDEN / "fsdp_4", 3)[2]) == {("all_gather", 526080): 8, ("reduce_scatter", 2104320): 4}


@needs_golden
@pytest.mark.parametrize("rank", range(4))
def test_pipeline_messages_have_peers_and_tags(rank):
    _, _, calls = loaded(GOLDEN / "pp_4", rank)
    sent = {(rank + 1, tag) for tag in range(4) if rank < 3} | {(rank - 1, 1000 + tag) for tag in range(4) if rank}
    received = {(rank - 1, tag) for tag in range(4) if rank} | {(rank + 1, 1000 + tag) for tag in range(4) if rank < 3}
    assert {(call.peer, call.tag) for call in calls if call.kind == "send"} == sent
    assert {(call.peer, call.tag) for call in calls if call.kind == "recv"} == received
    assert {call.nbytes for call in calls} == {16384}


@pytest.mark.parametrize(
    "name", ["moe_4", "funcol_4", *(pytest.param(n, marks=needs_golden) for n in ("pp_4", "ddp_4"))]
)
def test_a_graph_of_the_host_gives_the_recorded_time(name):
    folder = HERE / name if (HERE / name).exists() else GOLDEN / name
    for rank in range(4):
        recording, found, calls = loaded(folder, rank)
        graph = host_graph(recording, found)
        assert graph.makespan == recording.span_ns and not graph.dropped
        assert len(calls) == len(found.span)
        if name == "funcol_4":  # each call is awaited by an operation that names its tensor
            assert (found.awaited >= 0).all()


def test_a_thread_works_at_bounds_and_in_operations_without_others():
    start, end = np.array([0, 10, 100]), np.array([90, 20, 110])
    begin, until = busy(start, end)
    assert list(zip(begin.tolist(), until.tolist(), strict=True)) == [(0, 0), (10, 20), (90, 90), (100, 110)]
