"""Sizes of messages, files of algorithms, options of builders."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.builders.registry import ALGORITHMS, build, default_algorithm, options_of
from astrasim_py.chakra.et_io import read_trace, write_prefix
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import chunk_bytes
from astrasim_py.collectives.collective import COLLECTIVES, collective_name
from astrasim_py.core.errors import AlgorithmError, AstraError, OutputError, TraceError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import read_algorithm, read_npz, write_npz
from astrasim_py.program.interchange import algorithm_from_traces, algorithm_traces
from astrasim_py.program.table import named

SEND, RECV = NodeType.COMM_SEND, NodeType.COMM_RECV
ALL = [(a, c) for a, (collectives, _) in ALGORITHMS.items() for c in collectives]


def any_of(algorithm: str, collective: str, n: int = 8) -> Algorithm:
    return build(algorithm, collective, n, **({"dims": [2, n // 2]} if algorithm == "hierarchical" else {}))


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1), st.data())
def test_chunks_sum_to_the_buffer(size, total, data):
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(0, total), max_size=8))})
    index, count = np.array(cuts[:-1]), np.diff(cuts)
    nbytes = chunk_bytes(index, count, size, total)
    assert sum(nbytes.tolist()) == size
    assert nbytes.tolist() == [end * size // total - begin * size // total for begin, end in pairwise(cuts)]


@pytest.mark.parametrize(("algorithm", "collective"), ALL)
def test_both_ends_of_a_message_agree_on_its_bytes(algorithm, collective):
    a = any_of(algorithm, collective)
    for size in (0, 1, 7, 1000, 2**40 + 1):
        check_ends(a, size)


def check_ends(a: Algorithm, size: int) -> None:
    nbytes = [a.message_bytes(rank, size) for rank in range(a.ranks)]
    ends = {SEND: {}, RECV: {}}
    for rank, trace in enumerate(a.traces):
        for row in np.flatnonzero((trace.type == SEND) | (trace.type == RECV)).tolist():
            kind = trace.type[row]
            peer = int(trace.column("comm_dst" if kind == SEND else "comm_src")[row])
            pair = (rank, peer) if kind == SEND else (peer, rank)
            ends[kind][*pair, int(trace.column("comm_tag")[row])] = int(nbytes[rank][row])
    assert ends[SEND] == ends[RECV]
    assert all(value >= 0 for value in ends[SEND].values())


#: Bytes that leave (all_to_all, scatter: the origin's) for every rank but itself, in terms of exact shards.
@pytest.mark.parametrize("size", [0, 5, 64, 1000, 12345])
@pytest.mark.parametrize("n", [2, 3, 7, 8])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_bytes_of_a_collective_are_conserved(algorithm, n, size):
    shard = [(r + 1) * size // n - r * size // n for r in range(n)]
    total = {
        "all_gather": (n - 1) * size,
        "reduce_scatter": (n - 1) * size,
        "all_reduce": 2 * (n - 1) * size,
        "broadcast": (n - 1) * size,
        "reduce": (n - 1) * size,
    }
    for collective, expected in total.items():
        a = build(algorithm, collective, n)
        moved = sum(int(a.message_bytes(r, size)[a.traces[r].type == SEND].sum()) for r in range(n))
        assert moved == expected, collective
    a = build("direct", "all_to_all", n)
    for r in range(n):
        assert int(a.message_bytes(r, size)[a.traces[r].type == SEND].sum()) == size - shard[r]


def test_local_operations_have_bytes_and_joins_have_none():
    a = build("direct", "reduce_scatter", 4)
    reduces = a.traces[0].type == NodeType.COMP
    assert a.message_bytes(0, 400)[reduces].tolist() == [100, 100, 100]
    h = build("hierarchical", "all_reduce", 8, dims=[4, 2], algorithms=["direct", "direct"])
    idle = (h.traces[0].type == NodeType.COMP) & (h.traces[0].column("comp_op") == MISSING)
    assert idle.any()
    assert not h.message_bytes(0, 400)[idle].any()


def test_absolute_sizes_stand_or_scale():
    a = build("ring", "all_reduce", 4)
    written = algorithm_traces(a, 4096)
    bare = tuple(t.replace(msg_chunk_idx=MISSING, msg_chunk_cnt=MISSING, total_chunk_cnt=MISSING) for t in written)
    old = algorithm_from_traces(bare, "all_reduce", made_for=4096)
    assert not old.symbolic
    assert old.scales
    assert np.array_equal(old.message_bytes(0, 4096), a.message_bytes(0, 4096))
    assert np.array_equal(old.message_bytes(0, 8192), a.message_bytes(0, 8192))
    # Rescaled up to whole bytes: never less than the collective moves.
    assert set(old.message_bytes(0, 5).tolist()) == {2}
    stand = dataclasses.replace(old, made_for=None)
    assert not stand.scales
    assert np.array_equal(stand.message_bytes(0, 8192), a.message_bytes(0, 4096))
    assert np.array_equal(old.message_bytes(0, 8192, verbatim=True), a.message_bytes(0, 4096))


def test_verbatim_needs_stated_bytes():
    a = build("ring", "all_reduce", 4)
    with pytest.raises(AlgorithmError, match=r"rank 2 node 0: has no comm_size; write comm_size"):
        a.message_bytes(2, 100, verbatim=True)
    both = algorithm_from_traces(algorithm_traces(a, 100))
    assert set(both.message_bytes(2, 10**6, verbatim=True).tolist()) == {25}
    assert set(both.message_bytes(2, 10**6).tolist()) == {250000}


def test_a_message_without_size_is_an_error():
    a = build("direct", "all_gather", 2)
    bare = tuple(t.replace(msg_chunk_cnt=MISSING) for t in a.traces)
    with pytest.raises(AlgorithmError, match="has neither msg_chunk_idx/cnt/total nor comm_size"):
        algorithm_from_traces(bare, "all_gather").message_bytes(0, 100)


@pytest.mark.parametrize(("algorithm", "collective"), ALL)
@pytest.mark.parametrize("form", ["et", "et.gz", "npz"])
def test_a_written_algorithm_is_read_back_equal(algorithm, collective, form, tmp_path):
    a = any_of(algorithm, collective, 4)
    if form == "npz":
        write_npz(tmp_path / "a.npz", a)
        b = read_algorithm(tmp_path / "a.npz")
    else:
        write_prefix(tmp_path / "a", algorithm_traces(a), gzip=form == "et.gz")
        b = read_algorithm(tmp_path / "a")
    assert b.digest() == a.digest()
    assert (b.name, b.collective, b.root, b.chunks, b.in_place) == (a.name, a.collective, a.root, a.chunks, a.in_place)
    assert b.has_cells
    assert read_algorithm(b.source, collective).digest() == a.digest()


def test_npz_bytes_depend_on_the_algorithm_only(tmp_path):
    for name in ("a", "b"):
        write_npz(tmp_path / f"{name}.npz", build("bruck", "all_to_all", 9))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_npz_keeps_foreign_ids_and_shared_traces(tmp_path):
    a = build("direct", "all_gather", 2)
    big = [t.replace(node_id=t.node_id + np.uint64(2**63)) for t in a.traces]
    odd = dataclasses.replace(a, traces=tuple(big), made_for=77)
    write_npz(tmp_path / "a.npz", odd)
    assert read_npz(tmp_path / "a.npz").digest() == odd.digest()
    empty = build("direct", "all_gather", 1)
    three = Algorithm(name="x", collective="broadcast", ranks=3, traces=[*empty.traces] * 3, root=2, chunks=1)
    write_npz(tmp_path / "b.npz", three)
    back = read_npz(tmp_path / "b.npz")
    assert back.traces[0] is back.traces[2]


def test_another_collective_than_the_file_states_is_refused(tmp_path):
    a = build("ring", "all_gather", 3)
    write_prefix(tmp_path / "a", algorithm_traces(a))
    write_npz(tmp_path / "a.npz", a)
    for source in ("a", "a.npz"):
        with pytest.raises(AlgorithmError, match="is made for all_gather, not for all_reduce"):
            read_algorithm(tmp_path / source, "all_reduce")


def test_a_file_that_states_no_contract_needs_one(tmp_path):
    a = build("ring", "broadcast", 3, root=1)
    write_prefix(tmp_path / "a", a.traces)
    with pytest.raises(AlgorithmError, match="does not say which collective it is"):
        read_algorithm(tmp_path / "a")
    with pytest.raises(AlgorithmError, match="broadcast has no root"):
        read_algorithm(tmp_path / "a", "broadcast")
    assert read_algorithm(tmp_path / "a", "broadcast", root=1).digest() == a.digest()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(TraceError):
        read_algorithm(tmp_path / "nothing", "all_reduce")
    with pytest.raises(AlgorithmError, match="cannot be read"):
        read_algorithm(tmp_path / "nothing.npz")
    with pytest.raises(AlgorithmError, match=r"is not a regular file|cannot be read"):
        read_npz(tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        write_npz(tmp_path / "no" / "a.npz", build("ring", "all_reduce", 2))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"comm_dst": 3}, "comm_dst 3 is not one of 3 ranks; write a rank in 0..2"),
        ({"comm_dst": 0}, "sends to itself"),
        ({"comm_src": MISSING}, "receives without comm_src"),
        ({"msg_chunk_idx": 3}, "covers chunks 3..3 of 3"),
        ({"total_chunk_cnt": 5}, "total_chunk_cnt is 3, but 5 elsewhere"),
        ({"type": 7}, "is neither COMM_SEND, COMM_RECV nor COMP"),
    ],
)
def test_ill_formed_traces_are_refused(columns, problem):
    a = build("ring", "all_gather", 3)
    traces = (a.traces[0].replace(**columns), *a.traces[1:])
    with pytest.raises(AlgorithmError, match="node [0-9]+: " + problem.replace(".", r"\.")):
        algorithm_from_traces(traces, "all_gather")


@pytest.mark.parametrize("text", ["allreduce", "AllReduce", "all-reduce", "all_reduce"])
def test_collectives_are_recognised_in_other_spellings(text):
    assert collective_name(text) == "all_reduce"
    with pytest.raises(AlgorithmError, match='"all" is not a collective; write one of all_reduce'):
        collective_name("all")


def damaged(data: bytes):
    for at in range(0, len(data), max(1, len(data) // 150)):
        yield data[:at]
        yield data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def test_a_damaged_npz_is_an_error_and_nothing_else(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, build("ring", "all_gather", 3))
    refused = 0
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        try:
            read_algorithm(path)
        except AstraError:
            refused += 1
    assert refused > 100


def rezip(path, **arrays) -> None:
    """Replace members of an .npz."""
    with np.load(path) as old:
        members = {name: old[name] for name in old.files} | arrays
    np.savez(path, **{name: value for name, value in members.items() if value is not None})


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"node_id": None}, "node_id is missing"),
        ({"version": np.int64(9)}, "version 9 is not 1"),
        ({"collective": np.int64(99)}, "collective 99 is unknown"),
        ({"lengths": np.array([2**40])}, "its traces do not fit its ranks"),
        ({"trace_of": np.array([0, 1, 7])}, "a rank has no trace"),
        ({"type": np.array([1])}, "type has 1 entries"),
        ({"data_ids": np.array([1])}, "data_ptr does not fit data_ids"),
        ({"node_id": np.array(["a"], dtype=object)}, "not an .npz|Object arrays"),
        ({"col_comm_tag": np.array([1])}, "comm_tag has 1 entries"),
        ({"evil": np.array([1])}, "has a member 'evil.npy'"),
        ({"node_id": np.array([1.5])}, "node_id is float64"),
    ],
)
def test_an_npz_that_contradicts_itself_is_refused(arrays, problem, tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, build("ring", "all_gather", 3))
    rezip(path, **arrays)
    with pytest.raises(AlgorithmError, match=problem):
        read_npz(path)


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "a.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (2**33,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("node_id.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            member.write(bytes(2**20))
        archive.infolist()[0].file_size = 2**36
    with pytest.raises(AlgorithmError, match=r"unpacks to more than|is not an .npz|is damaged"):
        read_npz(path)


def test_the_contract_is_checked():
    trace = build("ring", "all_gather", 1).traces
    for values, problem in (
        ({"collective": "sort"}, '"sort" is not a collective'),
        ({"ranks": 2}, "has 1 traces for 2 ranks"),
        ({"collective": "reduce"}, "reduce has no root"),
        ({"collective": "reduce", "root": 1}, "root 1 is not one of 1 ranks"),
        ({"root": 0}, "all_gather takes no root"),
        ({"made_for": 0}, "made_for is 0 B"),
    ):
        given = {"name": "x", "collective": "all_gather", "ranks": 1, "traces": trace} | values
        with pytest.raises(AlgorithmError, match=problem):
            Algorithm(**given)


def test_digest_depends_on_contract_and_content_but_not_on_names():
    a = build("ring", "all_reduce", 4)
    assert build("ring", "all_reduce", 4).digest() == a.digest()
    assert dataclasses.replace(a, name="b", source="c", verdict=True).digest() == a.digest()
    assert build("ring", "all_reduce", 5).digest() != a.digest()
    assert dataclasses.replace(a, in_place=False).digest() != a.digest()
    assert a.with_verdict(True).verdict is True


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        (("rings", "all_reduce", 4), {}, '"rings" is not a builder; write one of ring, direct'),
        (("ring", "sort", 4), {}, '"sort" is not a collective'),
        (("bruck", "all_reduce", 4), {}, "bruck has no all_reduce; use one of ring, direct"),
        (("ring", "all_reduce", 0), {}, "0 is not a group size"),
        (("ring", "all_reduce", 2.0), {}, "2.0 is not a group size"),
        (("ring", "all_reduce", 4), {"widow": 1}, "ring has no option widow; its options: root, bidirectional"),
        (("ring", "all_reduce", 4), {"chunks": 0}, "chunks is 0, not a whole number from 1"),
        (("ring", "all_reduce", 4), {"chunks": True}, "chunks is True, not a whole number from 1"),
        (("direct", "all_to_all", 4), {"window": 0}, "window is 0, not a whole number from 1"),
        (("ring", "all_reduce", 4), {"root": 1}, "all_reduce takes no root"),
        (("recursive_doubling", "all_reduce", 4), {"root": 1}, "all_reduce takes no root"),
        (("ring", "broadcast", 4), {"root": 4}, "root 4 is not one of 4 ranks; write a root in 0..3"),
        (("halving_doubling", "all_reduce", 6), {}, "6 is not a power of two, which this algorithm needs; use ring"),
        (("binomial_tree", "gather", 6), {"chunks": 2}, "chunks is 2, but gather is not cut"),
        (("ring", "all_to_all", 65536), {}, "would have about [0-9]+ nodes, more than"),
        (("hierarchical", "all_reduce", 6), {}, r"dims \[\] are 0 ranks, the group has 6"),
        (("hierarchical", "all_reduce", 6), {"dims": [2, 2]}, r"dims \[2, 2\] are 4 ranks, the group has 6"),
        (("hierarchical", "all_reduce", 6), {"dims": "2x3"}, "dims is '2x3', not a list"),
        (("hierarchical", "all_reduce", 6), {"dims": [2, 3], "algorithms": ["ring"]}, "are not one for each of 2 dims"),
        (
            ("hierarchical", "all_reduce", 6),
            {"dims": [2, 3], "algorithms": ["bruck", "ring"]},
            "bruck has no reduce_scatter",
        ),
        (
            ("hierarchical", "all_reduce", 4),
            {"dims": [2, 2], "algorithms": ["hierarchical", "ring"]},
            "'hierarchical' is not the algorithm of a dimension",
        ),
    ],
)
def test_what_cannot_be_built_is_said(arguments, options, problem):
    with pytest.raises(AlgorithmError, match=problem):
        build(*arguments, **options)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_has_a_default_that_serves_any_group(collective):
    name = default_algorithm(collective)
    for n in (1, 2, 3, 6, 8):
        assert build(name, collective, n).ranks == n


def test_options_are_listed():
    assert options_of("ring") == ("root", "bidirectional", "chunks", "overlap", "nodes", "channels")
    assert options_of("hierarchical") == ("root", "dims", "algorithms", "chunks", "switches", "channels")


def test_ranks_share_the_structure_of_a_uniform_program():
    a = build("ring", "all_reduce", 64)
    assert (
        len({id(t.data_deps.ids.base if t.data_deps.ids.base is not None else t.data_deps.ids) for t in a.traces}) == 1
    )
    b = build("binomial_tree", "broadcast", 64)
    # Leaves are all alike.
    assert len({id(t.data_deps.ptr.base) for t in b.traces}) <= 8


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_window_bounds_the_sends_in_flight(window):
    a = build("direct", "all_reduce", 7, window=window)
    trace = a.traces[2]
    ptr, parents = trace.parents()
    sends = np.flatnonzero(trace.type == SEND).tolist()
    above: dict[int, set[int]] = {}
    for row in range(len(trace)):
        direct = parents[ptr[row] : ptr[row + 1]].tolist()
        above[row] = set(direct).union(*(above[p] for p in direct))
    # Of any window + 1 sends one waits for another.
    chains: list[list[int]] = []
    for row in sends:
        for chain in chains:
            if chain[-1] in above[row]:
                chain.append(row)
                break
        else:
            chains.append([row])
    assert len(chains) <= window


def test_a_single_et_file_states_the_contract(tmp_path):
    a = build("ring", "broadcast", 3, root=2)
    write_prefix(tmp_path / "a", algorithm_traces(a, 300))
    trace = read_trace(tmp_path / "a.1.et")
    stated = {key: trace.meta(key) for key in ("collective", "algorithm", "ranks", "root", "chunks", "in_place")}
    assert stated == {
        "collective": "broadcast",
        "algorithm": "ring",
        "ranks": 3,
        "root": 2,
        "chunks": 1,
        "in_place": True,
    }
    assert set(trace.column("comm_size").tolist()) == {300}


def test_a_peer_that_is_not_there_has_a_name_in_errors():
    assert [named(position, 4, ("spine",)) for position in (3, 4, 5)] == ["rank 3", "switch spine", "rank 5"]
