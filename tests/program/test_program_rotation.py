"""Algorithms of a rotation: what is declared holds for every rank's trace, however traces are asked for."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.astra_sim.native_algorithms import Charges, native_algorithm
from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.chakra.schema import INT_COLUMNS, NodeType
from astrasim_py.collectives.chunks import CompOp
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program import rotation
from astrasim_py.program import traces as program_traces
from astrasim_py.program.rotation import VARYING, Rotation
from astrasim_py.program.timed import with_endpoint_delay, with_sizes

OPTIONS = {
    "ring": [{}, {"bidirectional": True, "chunks": 2}, {"overlap": True}],
    "direct": [{}, {"window": 2, "chunks": 2}],
}
INNER = ["ring", "direct", "ring", {"builder": "ring", "bidirectional": True}]


def options(name: str, ranks: int) -> list[dict]:
    if name != "hierarchical":
        return OPTIONS.get(name, [{}])
    pairs = [(d, ranks // d) for d in range(2, ranks) if ranks % d == 0][:2]
    return [
        {"dims": list(dims), "chunks": 2 - i, "algorithms": [INNER[(ranks + i) % 4], INNER[(ranks + i + 1) % 4]]}
        for i, dims in enumerate(pairs)
    ]


def rotated(ranks: int) -> list:
    found = []
    for name, (collectives, _) in ALGORITHMS.items():
        for collective in collectives:
            for each in options(name, ranks):
                try:
                    algorithm = build(name, collective, ranks, **each)
                except AlgorithmError:
                    continue
                if algorithm.rotation is not None:
                    found.append(algorithm)
    return found


def same(one, other) -> bool:
    return one.digest() == other.digest()


@pytest.mark.parametrize("ranks", range(2, 18))
def test_every_rank_runs_the_program_of_rank_0_with_its_peers_shifted(ranks):
    algorithms = rotated(ranks)
    assert {"ring", "direct", "pairwise", "bruck", "dissemination"} <= {a.name for a in algorithms}
    if ranks & (ranks - 1) == 0:
        assert {"halving_doubling", "recursive_doubling"} <= {a.name for a in algorithms}
    for algorithm in algorithms:
        base = algorithm.traces[0]
        message = np.isin(base.type, (NodeType.COMM_SEND, NodeType.COMM_RECV))
        reduction = base.column("comp_op") == CompOp.REDUCE
        for rank, trace in enumerate(algorithm.traces):
            assert np.array_equal(trace.type, base.type)
            assert np.array_equal(trace.data_deps.ptr, base.data_deps.ptr)
            assert np.array_equal(trace.data_deps.ids, base.data_deps.ids)
            for name in INT_COLUMNS:
                if name not in VARYING:
                    assert np.array_equal(trace.column(name), base.column(name)), name
            for kind, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
                mine = base.type == kind
                shifted = algorithm.rotation.shift(rank, base.column(name)[mine])
                assert np.array_equal(trace.column(name)[mine], shifted)
            counts, ours = trace.column("msg_chunk_cnt"), base.column("msg_chunk_cnt")
            assert np.array_equal(counts[message | reduction], ours[message | reduction])


@pytest.mark.parametrize("ranks", [2, 6, 8])
def test_traces_do_not_depend_on_how_they_are_asked_for(ranks, monkeypatch):
    monkeypatch.setattr(program_traces, "_KEPT_NODES", 0)
    for algorithm in rotated(ranks)[::2]:
        traces = algorithm.traces
        every = list(traces)
        assert len(every) == len(traces) == ranks
        monkeypatch.setattr(rotation, "_BLOCK_NODES", 1)
        one_by_one = list(traces)
        monkeypatch.undo()
        monkeypatch.setattr(program_traces, "_KEPT_NODES", 0)
        for rank in range(ranks):
            assert same(traces[rank], every[rank])
            assert same(one_by_one[rank], every[rank])
        assert same(traces[-1], every[-1])
        assert all(same(a, b) for a, b in zip(traces[1:], every[1:], strict=True))
        assert all(
            same(a, b) for a, b in zip(traces.rotated.traces([ranks - 1, 0]), [every[-1], every[0]], strict=True)
        )
        other = pickle.loads(pickle.dumps(algorithm))
        assert other.digest() == algorithm.digest()
        whole = dataclasses.replace(algorithm, traces=tuple(every))
        assert whole.rotation is None and whole.digest() == algorithm.digest()
        assert (whole.messages, whole.nodes) == (algorithm.messages, algorithm.nodes)
        assert (whole.symbolic, whole.has_cells) == (algorithm.symbolic, algorithm.has_cells)


@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize("size", [0, 1000, 2**20, 3 * 5 * 7 * 64])
def test_bytes_of_all_ranks_at_once_are_those_of_each(ranks, size):
    for algorithm in rotated(ranks):
        each = np.stack([algorithm.message_bytes(rank, size) for rank in range(ranks)])
        assert np.array_equal(algorithm.bytes_of_ranks(range(ranks), size), each)
        trace = algorithm.traces[0]
        copies = (trace.type == NodeType.COMP) & (trace.column("comp_op") != CompOp.REDUCE)
        if algorithm.same_bytes(size):
            assert (each[:, ~copies] == each[0, ~copies]).all()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_what_is_bound_to_an_algorithm_keeps_its_rotation(ranks):
    for algorithm in rotated(ranks):
        plain = dataclasses.replace(algorithm, traces=tuple(algorithm.traces))
        delayed = with_endpoint_delay(algorithm, 700)
        assert delayed.rotation == algorithm.rotation
        assert delayed.digest() == with_endpoint_delay(plain, 700).digest()
        size = 64 * max(algorithm.chunks, 1)
        if algorithm.name != "bruck" and not algorithm.name.startswith("hierarchical"):
            assert with_sizes(algorithm, size).rotation == algorithm.rotation
        for each in (size, size + 1):
            assert with_sizes(algorithm, each).digest() == with_sizes(plain, each).digest()


@pytest.mark.parametrize("kind", ["ring", "direct", "halvingDoubling"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_native_algorithms_are_rotations(kind, collective):
    algorithm = native_algorithm(kind, collective, 2**20, 8, Charges())
    assert not algorithm.given and algorithm.rotation.ranks == 8
    base = algorithm.traces[0]
    sends = base.type == NodeType.COMM_SEND
    for rank, trace in enumerate(algorithm.traces):
        peers = trace.column("comm_dst")[sends]
        assert np.array_equal(peers, algorithm.rotation.shift(rank, base.column("comm_dst")[sends]))
        assert ((peers >= 0) & (peers < 8) & (peers != rank)).all()


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_shifts_are_a_group(dims, data):
    turn = Rotation(tuple(dims))
    rank = st.integers(0, turn.ranks - 1)
    a, b, c = data.draw(rank), data.draw(rank), data.draw(rank)
    assert turn.shift(a, 0) == a and turn.shift(a, b) == turn.shift(b, a)
    assert turn.shift(turn.shift(a, b), c) == turn.shift(a, turn.shift(b, c))
    assert turn.unshift(turn.shift(a, b), b) == a
    every = np.arange(turn.ranks)
    assert sorted(turn.shift(every, a).tolist()) == every.tolist()
    digits, rest = [], (a, b, turn.shift(a, b))
    for size in dims:
        digits.append([each % size for each in rest])
        rest = [each // size for each in rest]
    assert all((x + y) % size == z for (x, y, z), size in zip(digits, dims, strict=True))


def test_one_rank_of_a_million_is_laid_alone():
    algorithm = build("hierarchical", "all_reduce", 2**20, dims=[64, 128, 128])
    assert algorithm.rotation == Rotation((64, 128, 128))
    assert len(algorithm.traces) == 2**20 and len(algorithm.traces[0]) == algorithm.nodes >> 20
    last = algorithm.traces[-1]
    assert set(last.column("comm_dst")[last.type == NodeType.COMM_SEND].tolist()) == {
        2**20 - 64, 2**20 - 1 - 127 * 64, 2**20 - 1 - 127 * 64 * 128,
    }  # fmt: skip
    with pytest.raises(AlgorithmError, match="cannot be written out"):
        list(algorithm.traces)
    with pytest.raises(AlgorithmError, match="programs of their own"):
        build("bruck", "all_gather", 2**17)
