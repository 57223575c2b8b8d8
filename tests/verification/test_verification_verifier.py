"""Verification: it agrees with the law on every builder, and catches every kind of broken algorithm by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import UsageError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.interchange import algorithm_from_traces
from astrasim_py.verification.verifier import verify

SEND, RECV, COMP = NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMP
CASES = [
    pytest.param(algorithm, collective, id=f"{algorithm}-{collective}")
    for algorithm, (collectives, _) in ALGORITHMS.items()
    for collective in collectives
]


def made(algorithm: str, collective: str, n: int) -> Algorithm:
    options = {"dims": [2, n // 2]} if algorithm == "hierarchical" else {}
    if algorithm == "halving_doubling":
        n = 8
    return build(algorithm, collective, n, root=n // 3 if promise_of(collective).rooted else None, **options)


def change(a: Algorithm, rank: int, **columns) -> Algorithm:
    """The algorithm with some columns of one rank replaced."""
    traces = list(a.traces)
    traces[rank] = traces[rank].replace(**columns)
    return dataclasses.replace(a, traces=tuple(traces))


def drop(a: Algorithm, rank: int, rows) -> Algorithm:
    """The algorithm without some nodes of one rank; what waited for them waits for what they waited for."""
    trace, gone = a.traces[rank], set(rows)
    ptr, parents = trace.parents()
    keep = [row for row in range(len(trace)) if row not in gone]
    above = [set(parents[ptr[row] : ptr[row + 1]].tolist()) for row in range(len(trace))]
    for row in range(len(trace)):
        while above[row] & gone:
            for lost in above[row] & gone:
                above[row] = above[row] - {lost} | above[lost]
    ids = [sorted(above[row]) for row in keep]
    names = [name for name in INT_COLUMNS if trace.has_column(name)]
    traces = list(a.traces)
    traces[rank] = ExecutionTrace.from_columns(
        node_id=trace.node_id[keep],
        type=trace.type[keep],
        data_deps=Csr(np.cumsum([0, *map(len, ids)]), np.array([p for x in ids for p in x], dtype=np.uint64)),
        **{name: trace.column(name)[keep] for name in names},
    )
    return dataclasses.replace(a, traces=tuple(traces))


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
@pytest.mark.parametrize("n", [1, 2, 6, 8])
def test_every_builder_is_verified(algorithm, collective, n):
    verdict = verify(made(algorithm, collective, n if algorithm != "hierarchical" else max(n, 2)))
    assert verdict.ok is True and verdict.passes
    assert (verdict.well_formed, verdict.terminates, verdict.correct, verdict.race_free) == (True,) * 4
    assert (verdict.wrong_cells, verdict.races, verdict.order_consistent) == (0, 0, True)
    assert (verdict.problems, verdict.unknown, verdict.counterexample) == ((), "", None)


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
def test_the_contract_of_another_collective_is_refused(algorithm, collective):
    other = {"all_gather": "gather", "gather": "all_gather", "all_to_all": "all_gather"}.get(collective)
    a = made(algorithm, collective, 6)
    if other is None:
        return _contract_of_another_root(a)
    root = 2 if promise_of(other).rooted else None
    verdict = verify(dataclasses.replace(a, collective=other, root=root))
    # An all_gather does all that a gather does.
    assert verdict.ok is (collective == "all_gather")


def _contract_of_another_root(a: Algorithm) -> None:
    if a.root is None:
        return
    verdict = verify(dataclasses.replace(a, root=(a.root + 1) % a.ranks))
    assert verdict.ok is False
    assert "lacks contribution of rank" in verdict.problem


def test_dropping_a_message_loses_a_contribution():
    a = build("direct", "reduce_scatter", 4)
    # Rank 1's message to rank 3 (chunk 3), and what rank 3 does with it.
    send = np.flatnonzero((a.traces[1].type == SEND) & (a.traces[1].column("comm_dst") == 3))
    recv = np.flatnonzero((a.traces[3].type == RECV) & (a.traces[3].column("comm_src") == 1))
    reduce = np.flatnonzero(a.traces[3].column("payload") == a.traces[3].node_id[recv].astype(np.int64))
    verdict = verify(drop(drop(a, 1, send.tolist()), 3, [*recv.tolist(), *reduce.tolist()]))
    assert verdict.ok is False
    assert verdict.problem == "rank 3 chunk 3 lacks contribution of rank 1"
    assert verdict.wrong_cells == 1


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"])
def test_dropping_a_send_leaves_its_receive_waiting(collective):
    a = build("ring", collective, 4)
    row = int(np.flatnonzero(a.traces[0].type == SEND)[-1])
    tag = int(a.traces[0].column("comm_tag")[row])
    verdict = verify(drop(a, 0, [row]))
    assert verdict.ok is False
    assert f"waits for a message from rank 0 (tag {tag}) that is never sent" in verdict.problem


def test_dropping_a_receive_leaves_its_send_unheard():
    a = build("ring", "all_gather", 4)
    verdict = verify(drop(a, 2, [int(np.flatnonzero(a.traces[2].type == RECV)[-1])]))
    assert verdict.ok is False
    assert verdict.problem.startswith("rank 1 node ")
    assert verdict.problem.endswith("sends to rank 2 (tag 2), which never receives it")


def test_reducing_twice_is_caught():
    a = build("direct", "reduce_scatter", 4)
    # Rank 3's second reduction takes the payload of its first again.
    trace = a.traces[3]
    payload = trace.column("payload").copy()
    rows = np.flatnonzero(payload != MISSING)
    payload[rows[1]] = payload[rows[0]]
    ptr, ids = trace.data_deps
    ids = ids.copy()
    second = slice(ptr[rows[1]], ptr[rows[1] + 1])
    ids[second] = np.where(ids[second] == trace.column("payload")[rows[1]], payload[rows[0]], ids[second])
    verdict = verify(change(a, 3, payload=payload, data_deps=Csr(ptr, ids)))
    assert verdict.ok is False
    assert verdict.problem == "rank 3 chunk 3 lacks contribution of rank 1"
    # With the lost contribution restored elsewhere only the double one remains.
    b = build("direct", "reduce", 2)
    extra = b.traces[0]
    columns = {
        name: np.append(extra.column(name), extra.column(name)[-1])
        for name in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt", "comp_op", "src_buf", "src_off", "dst_buf",
                     "dst_off", "payload", "comm_src", "comm_tag")
    }  # fmt: skip
    twice = ExecutionTrace.from_columns(
        node_id=[0, 1, 2],
        type=np.append(extra.type, extra.type[-1]),
        data_deps=Csr(np.array([0, 0, 1, 3]), np.array([0, 0, 1], dtype=np.uint64)),
        **columns,
    )
    verdict = verify(dataclasses.replace(b, traces=(twice, b.traces[1])))
    assert verdict.problem == "rank 0 chunk 0 counts contribution of rank 1 twice"


def test_a_wrong_chunk_is_caught():
    a = build("ring", "all_gather", 4)
    trace = a.traces[1]
    offset = trace.column("src_off").copy()
    row = int(np.flatnonzero(trace.type == SEND)[1])
    offset[row] = (offset[row] + 1) % 4
    verdict = verify(change(a, 1, src_off=offset))
    assert verdict.ok is False
    assert "lacks contribution of rank 0" in verdict.problem
    assert "it holds chunk 0 of rank 1" in verdict.problem


def test_a_receive_into_the_wrong_place_is_caught():
    a = build("direct", "all_gather", 3)
    trace = a.traces[2]
    offset = trace.column("dst_off").copy()
    rows = np.flatnonzero(trace.type == RECV)
    offset[rows[0]] = offset[rows[1]]
    verdict = verify(change(a, 2, dst_off=offset))
    assert verdict.ok is False
    assert verdict.problem == "rank 2 chunk 0 lacks contribution of rank 0; it holds chunk 0 of rank 1"


def test_a_foreign_contribution_is_caught():
    a = build("direct", "reduce", 2, chunks=2)
    trace = a.traces[1]
    offset = np.where(trace.column("src_off") == 1, 0, trace.column("src_off"))
    verdict = verify(change(a, 1, src_off=offset))
    assert verdict.problem == "rank 0 chunk 1 lacks contribution of rank 1; it holds chunk 0 of rank 1"


def test_ranks_that_wait_for_each_other_are_named():
    a = build("direct", "all_gather", 2)
    traces = []
    for trace in a.traces:
        # Send only when the other's message is there.
        recv = int(np.flatnonzero(trace.type == RECV)[0])
        send = int(np.flatnonzero(trace.type == SEND)[0])
        counts = np.zeros(3, dtype=np.int64)
        counts[send + 1] = 1
        traces.append(trace.replace(data_deps=Csr(np.cumsum(counts), np.array([recv], dtype=np.uint64))))
    verdict = verify(dataclasses.replace(a, traces=tuple(traces)))
    assert verdict.ok is False
    assert verdict.problem == (
        "deadlock: it never ends: rank 0 node 1 waits for the message of rank 1 node 0, "
        "rank 1 node 1 waits for the message of rank 0 node 0"
    )


def test_unequal_counts_are_caught():
    a = build("halving_doubling", "all_gather", 4)
    count = a.traces[1].column("msg_chunk_cnt").copy()
    row = int(np.flatnonzero(a.traces[1].type == SEND)[-1])
    count[row] = 1
    verdict = verify(change(a, 1, msg_chunk_cnt=count))
    assert verdict.ok is False
    assert "sends 1 chunks, but" in verdict.problem


def test_a_barrier_that_misses_a_rank_is_caught():
    a = build("dissemination", "barrier", 4)
    trace = a.traces[0]
    # Rank 0 sends its last round without having heard the rounds before.
    send = int(np.flatnonzero(trace.type == SEND)[-1])
    ptr = trace.data_deps.ptr.copy()
    kept = np.delete(trace.data_deps.ids, slice(ptr[send], ptr[send + 1]))
    ptr[send + 1 :] -= 1
    verdict = verify(change(a, 0, data_deps=Csr(ptr, kept)))
    assert verdict.ok is False
    assert "leaves without waiting for rank" in verdict.problem


def test_a_barrier_needs_messages():
    empty = ExecutionTrace.from_columns(node_id=np.empty(0, np.uint64), type=0)
    verdict = verify(Algorithm(name="x", collective="barrier", ranks=2, traces=(empty, empty), chunks=1))
    assert verdict.problem == "rank 0 leaves without waiting for rank 1"
    assert verdict.wrong_cells == 2


def test_without_cells_the_verdict_is_unknown():
    a = build("ring", "all_reduce", 4)
    traces = tuple(t.replace(src_buf=MISSING, src_off=MISSING) for t in a.traces)
    verdict = verify(dataclasses.replace(a, traces=traces))
    assert verdict.correct is None
    assert verdict.problem == "it does not state which cells its steps read and write"


def messages(rows: list[dict]) -> ExecutionTrace:
    """A trace from dicts with `type`, `deps` and columns."""
    names = sorted({name for row in rows for name in row} - {"type", "deps"})
    deps = [row.get("deps", []) for row in rows]
    return ExecutionTrace.from_columns(
        node_id=np.arange(len(rows)),
        type=[int(row["type"]) for row in rows],
        data_deps=Csr(np.cumsum([0, *map(len, deps)]), np.array([p for d in deps for p in d], dtype=np.uint64)),
        **{name: np.array([row.get(name, MISSING) for row in rows]) for name in names},
    )


@pytest.mark.parametrize("chained", [False, True])
def test_messages_of_one_tag_pair_by_their_dependencies(chained):
    common = {"comm_tag": 0, "msg_chunk_cnt": 1, "total_chunk_cnt": 2}
    sends = [
        {"type": SEND, "comm_dst": 1, "src_buf": 1, "src_off": k, "msg_chunk_idx": k, **common,
         "deps": [0] if k else []}
        for k in range(2)
    ]  # fmt: skip
    recvs = [
        {"type": RECV, "comm_src": 0, "dst_buf": 1, "dst_off": k, "msg_chunk_idx": k, **common,
         "deps": [0] if k and chained else []}
        for k in range(2)
    ]  # fmt: skip
    a = algorithm_from_traces([messages(sends), messages(recvs)], "broadcast", root=0)
    verdict = verify(a)
    assert verdict.ok is (True if chained else None)
    assert ("depends on timing" in verdict.problem) is not chained


def test_chained_receives_in_the_wrong_order_are_wrong():
    common = {"comm_tag": 0, "msg_chunk_cnt": 1, "total_chunk_cnt": 2}
    sends = [
        {"type": SEND, "comm_dst": 1, "src_buf": 1, "src_off": k, "msg_chunk_idx": k, **common,
         "deps": [0] if k else []}
        for k in range(2)
    ]  # fmt: skip
    recvs = [
        {"type": RECV, "comm_src": 0, "dst_buf": 1, "dst_off": 1 - k, "msg_chunk_idx": 1 - k, **common,
         "deps": [0] if k else []}
        for k in range(2)
    ]  # fmt: skip
    a = algorithm_from_traces([messages(sends), messages(recvs)], "broadcast", root=0)
    assert verify(a).problem == "rank 1 chunk 1 lacks contribution of rank 0; it holds chunk 0 of rank 0"


def test_aliases_of_in_place_buffers_are_one_cell():
    # all_gather of two ranks: rank r reads input 0, which in place is output r.
    def trace(rank: int) -> ExecutionTrace:
        common = {"comm_tag": 0, "msg_chunk_cnt": 1, "total_chunk_cnt": 2}
        return messages(
            [
                {"type": SEND, "comm_dst": 1 - rank, "src_buf": 1, "src_off": 0, "msg_chunk_idx": rank, **common},
                {"type": RECV, "comm_src": 1 - rank, "dst_buf": 2, "dst_off": 1 - rank, "msg_chunk_idx": 1 - rank,
                 **common},
            ]
        )  # fmt: skip

    in_place = algorithm_from_traces([trace(0), trace(1)], "all_gather")
    assert verify(in_place).correct is True
    # Out of place somebody must copy the own shard to the output.
    verdict = verify(dataclasses.replace(in_place, in_place=False))
    assert verdict.problem == "rank 0 chunk 0 is undefined at the end: it lacks contribution of rank 0"


def test_an_access_beyond_its_buffer_is_caught():
    a = build("ring", "all_gather", 4)
    offset = a.traces[1].column("src_off").copy()
    offset[np.flatnonzero(a.traces[1].type == SEND)[0]] = 4
    assert verify(change(a, 1, src_off=offset)).problem == "rank 1 node 0 accesses output chunk 4 of 4"


def test_data_must_be_waited_for():
    a = build("ring", "all_to_all", 4)
    trace = a.traces[0]
    row = int(np.flatnonzero((trace.type == SEND) & (trace.column("payload") != MISSING))[0])
    ptr = trace.data_deps.ptr.copy()
    ids = np.delete(trace.data_deps.ids, slice(ptr[row], ptr[row + 1]))
    ptr[row + 1 :] -= 1
    verdict = verify(change(a, 0, data_deps=Csr(ptr, ids)))
    assert verdict.ok is False
    assert "but does not wait for it" in verdict.problem


def test_every_wrong_peer_of_a_ring_is_found():
    a = build("ring", "all_reduce", 4)
    for rank, trace in enumerate(a.traces):
        for row in np.flatnonzero(trace.type == SEND).tolist():
            peer = trace.column("comm_dst").copy()
            peer[row] = (peer[row] + 1) % 4 if (peer[row] + 1) % 4 != rank else (peer[row] + 2) % 4
            assert verify(change(a, rank, comm_dst=peer)).ok is False


def test_every_wrong_source_cell_of_a_ring_is_found():
    a = build("ring", "all_reduce", 4)
    for rank, trace in enumerate(a.traces):
        for row in range(len(trace)):
            if trace.column("src_off")[row] != MISSING:
                offset = trace.column("src_off").copy()
                offset[row] = (offset[row] + 1) % 4
                verdict = verify(change(a, rank, src_off=offset))
                assert verdict.ok is False
                assert " chunk " in verdict.problem


def test_the_name_of_a_file_is_refused():
    with pytest.raises(UsageError, match='"ring" is no algorithm; read a file first'):
        verify("ring")
