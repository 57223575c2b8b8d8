"""A plan takes as long as its algorithm on the same network, and the latencies of its signals; packets twice the bytes.

Without a profile a put ends, for its block, when it has arrived, and its signal follows: a message is a latency longer.
"""

from __future__ import annotations

import pytest
from worlds.networks import synthesize

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.builders.split import split
from astrasim_py.chakra.schema import NodeType
from astrasim_py.engine.simulation import simulate
from astrasim_py.mscclpp.from_algorithm import plan_document
from astrasim_py.mscclpp.reader import plan_of
from astrasim_py.mscclpp.to_traces import algorithm_of
from astrasim_py.preparation.from_python import collective
from astrasim_py.synthesis.emit.emitter import emit

LATENCY = 10**6
LINK = {"bandwidth": "50 GB/s", "latency": "1 us"}


def time(algorithm, size, topology=None, engine="simpy") -> int:
    topology = topology or ap.build_topology(shape="fully_connected", npus=algorithm.ranks, **LINK)
    problem = collective(algorithm.collective, size, topology, algorithm=algorithm)
    records = simulate(problem, engine=engine, level="summary")
    assert records.outcome.status == "done"
    return records.makespan


def written(algorithm, **options):
    return algorithm_of(plan_of(plan_document(algorithm, **options)))


def log2(ranks: int) -> int:
    return ranks.bit_length() - 1


#: Builder, collective, and the messages that follow each other.
HOPS = [
    ("ring", "all_reduce", lambda n: 2 * (n - 1)),
    ("ring", "all_gather", lambda n: n - 1),
    ("ring", "reduce_scatter", lambda n: n - 1),
    ("direct", "all_reduce", lambda n: 2),
    ("direct", "all_gather", lambda n: 1),
    ("direct", "reduce_scatter", lambda n: 1),
    ("direct", "all_to_all", lambda n: 1),
    ("halving_doubling", "all_reduce", lambda n: 2 * log2(n)),
    ("halving_doubling", "reduce_scatter", log2),
    ("recursive_doubling", "all_reduce", log2),
    ("bruck", "all_gather", log2),
    ("bruck", "all_to_all", log2),
]


@pytest.mark.parametrize(("builder", "kind", "hops"), HOPS)
def test_signals_cost_a_latency_for_the_begin_and_every_message_in_turn(builder, kind, hops):
    for ranks in (4, 8):
        algorithm = build(builder, kind, ranks)
        size = algorithm.chunks * 2**18
        assert time(written(algorithm), size) - time(algorithm, size) == (hops(ranks) + 1) * LATENCY


@pytest.mark.parametrize(("builder", "kind", "hops"), HOPS)
def test_packets_cost_twice_the_bytes_and_no_signals(builder, kind, hops):
    algorithm = build(builder, kind, 8)
    size = algorithm.chunks * 2**12
    assert time(written(algorithm, protocol="LL"), size) == time(algorithm, 2 * size)


def mesh():
    return ap.build_topology(shape="mesh", dims=[2, 3], **LINK)


def most_messages(algorithm) -> int:
    return max(int((trace.type == NodeType.COMM_SEND).sum()) for trace in algorithm.traces)


OTHERS = {
    "bidirectional ring": (lambda: build("ring", "all_reduce", 6, bidirectional=True), None),
    "two rings": (lambda: split(build("ring", "all_reduce", 4), 2), None),
    "ring all_to_all": (lambda: build("ring", "all_to_all", 5), None),
    "two levels": (lambda: build("hierarchical", "all_reduce", 16, dims=[8, 2]), None),
    "two trees": (lambda: build("double_binary_tree", "all_reduce", 8), None),
    **{
        f"synthesized {kind} of {chunks} chunks": (
            lambda kind=kind, chunks=chunks: emit(synthesize(mesh(), kind, 6 * 2**20, chunks=chunks)),
            mesh,
        )
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
        for chunks in (1, 2)
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_only_latencies_are_added(name):
    """Of a put and a signal for each message of a rank at most, one after the other; and of the begin."""
    make, network = OTHERS[name]
    algorithm, topology = make(), network and network()
    size = 6 * 2**20 if network else algorithm.chunks * 2**18
    added, rest = divmod(time(written(algorithm), size, topology) - time(algorithm, size, topology), LATENCY)
    assert rest == 0
    assert 0 < added <= 2 * most_messages(algorithm) + 1


def test_all_pairs_take_turns_on_a_switch_as_their_algorithm_does():
    """Blocks begin together, and send in its order, so that no two ranks send to the same one."""
    switch = ap.build_topology(shape="switch", npus=8, **LINK)
    for kind, hops in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1), ("all_to_all", 1)):
        algorithm = build("direct", kind, 8)
        added = time(written(algorithm), 2**23, switch) - time(algorithm, 2**23, switch)
        assert added == (hops + 1) * 2 * LATENCY


def test_both_engines_time_a_written_plan_alike():
    algorithm = written(build("halving_doubling", "all_reduce", 8), npus_per_node=4)
    assert time(algorithm, 2**23) == time(algorithm, 2**23, engine="compiled")
