"""Switches that compute: closed forms, exact to the picosecond, on both engines; and what shares a switch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from worlds import small_problems

from astrasim_py.builders.registry import build
from astrasim_py.builders.switch_trees import capable_tree
from astrasim_py.chakra.schema import NodeType
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import build as topology_of

NS, US = 1000, 1_000_000
#: Bytes per ps of links of 50 GB/s, their latency, and that of a switch.
B, A, A_SWITCH = Fraction(50, 1000), 500 * NS, 200 * NS
SHARED = ("cut_through", "store_and_forward", "fluid")
CODES = {"all_reduce": 0, "all_gather": 2, "broadcast": 4, "reduce_scatter": 7}


class Only:
    """A table of one algorithm."""

    def __init__(self, made):
        self.made = made

    def select(self, *_, **__):
        return self.made


def star(n: int, bandwidth: str = "50 GB/s", **switches):
    link = {"bandwidth": bandwidth, "latency": "500 ns"}
    return topology_of({"shape": "switch", "npus": n, **link, "switches": switches}, written=True)


def problem(topology, made, size: int, *, calls: int = 1, placements=(), model: str = "cut_through", **network):
    """Jobs that each make a collective several times; sizes of an all_gather are shards."""
    n = made.ranks
    stated = size // n if made.collective == "all_gather" else size
    call = {"type": NodeType.COMM_COLL, "comm_type": CODES[made.collective], "comm_size": stated}
    one_by_one = [call | {"deps": {i - 1} if i else set()} for i in range(calls)]
    work = small_problems.workload([one_by_one] * n)
    placements = placements or [tuple(range(n))]
    jobs = [Job(name=f"j{i}", workload=work, placement=p, algorithms=Only(made)) for i, p in enumerate(placements)]
    return Problem(topology=topology, jobs=tuple(jobs), network=NetworkModel(model=model, **network))


def time(topology, made, size: int, engine: str = "both", **more) -> int:
    records = simulate(problem(topology, made, size, **more), engine=engine, level="messages")
    assert records.outcome.status == "done"
    return records.makespan


@pytest.mark.parametrize("model", SHARED)
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize(("chunks", "slots"), [(1, 1), (8, 8), (8, 1), (7, 3), (16, 2)])
def test_a_tree_of_one_switch(n, chunks, slots, model):
    """Slots limit the rate to slots · b / RTT (SwitchML), else chunks follow each other."""
    made = build("switch_tree", "all_reduce", n, chunks=chunks, slots=slots)
    b = Fraction(chunks * 1_000_000 // chunks)
    round_trip = 2 * (A + b / B) + A_SWITCH
    wanted = round_trip + (chunks - 1) * b / B
    if slots < chunks and slots * b / B <= round_trip:
        wanted = (chunks - 1) // slots * round_trip + (chunks - 1) % slots * b / B + round_trip
    assert time(star(n, latency="200 ns"), made, int(b) * chunks, model=model) == wanted


@pytest.mark.parametrize("model", ["cut_through", "fluid"])
@pytest.mark.parametrize("slots", [12, 1])
def test_a_tree_of_two_levels(slots, model):
    link = {"bandwidth": "50 GB/s", "latency": "500 ns"}
    keys = {"shape": "leaf_spine", "leaves": 3, "hosts_per_leaf": 2, "spines": 1, "uplink_bandwidth": "50 GB/s"}
    topology = topology_of({**keys, **link, "switches": {"latency": "200 ns"}}, written=True)
    chunks, b = 12, Fraction(1_000_000)
    made = build("switch_tree", "all_reduce", 6, chunks=chunks, slots=slots, switches=capable_tree(topology, range(6)))
    assert made.actors == ("spine0", "leaf0", "leaf1", "leaf2")
    round_trip = 4 * (A + b / B) + 3 * A_SWITCH
    wanted = round_trip + (chunks - 1) * b / B if slots == chunks else chunks * round_trip
    assert time(topology, made, int(b) * chunks, model=model) == wanted


@pytest.mark.parametrize("chunks", [1, 4, 16])
@pytest.mark.parametrize("rate", [1_000, 20_000])
def test_the_unit_of_a_switch_reduces_one_after_the_other(rate, chunks):
    n, b, r = 5, Fraction(1_000_000), Fraction(rate, 1000)
    made = build("switch_tree", "all_reduce", n, chunks=chunks)
    wanted = 2 * (A + b / B) + (n - 1) * b / r + (chunks - 1) * max(b / B, (n - 1) * b / r)
    assert time(star(n, reduce_bandwidth=f"{rate} GB/s"), made, int(b) * chunks) == wanted


@pytest.mark.parametrize("model", SHARED)
def test_a_reduction_of_no_bytes_waits_for_its_unit(model):
    """Of 2 bytes in 4 chunks the first and the third have none; the third is issued after the second."""
    n, b = 4, 20
    made = build("switch_tree", "all_reduce", n, chunks=4)
    records = simulate(
        problem(star(n, reduce_bandwidth="1 MB/s"), made, 2, model=model), engine="both", level="messages"
    )
    message = records.message
    from_switch = np.asarray(message["src"]) >= n
    assert sorted(np.asarray(message["bytes"])[from_switch].tolist()) == [0] * 2 * n + [1] * 2 * n
    first = A + b + (n - 1) * US
    wanted = [A] * n + [first] * 2 * n + [first + (n - 1) * US] * n
    assert sorted(np.asarray(message["posted"])[from_switch].tolist()) == wanted


@pytest.mark.parametrize("model", SHARED)
@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize(("chunks", "window"), [(4, 2), (6, 3)])
def test_nvls(n, chunks, window, model):
    b, topology = Fraction(1_000_000), star(n)
    size = n * chunks * int(b)
    assert (n - 1) * b / B >= 2 * A
    made = build("nvls", "all_reduce", n, chunks=chunks, window=window)
    assert time(topology, made, size, model=model) == ((n + 1) * chunks + (n - 1) * window + 1) * b / B + 2 * A
    made = build("nvls", "reduce_scatter", n, chunks=chunks, window=chunks)
    assert time(topology, made, size, model=model) == 2 * A + (n * chunks + 1) * b / B
    made = build("nvls", "all_gather", n, chunks=chunks, window=chunks)
    assert time(topology, made, size, model=model) == 2 * A + ((n - 1) * chunks + 1) * b / B
    made = build("switch_tree", "broadcast", n, chunks=chunks)
    assert time(topology, made, chunks * int(b), model=model) == 2 * A + (chunks + 1) * b / B


def test_a_window_of_one_round():
    n, chunks, b = 4, 3, Fraction(1_000_000)
    made = build("nvls", "all_reduce", n, chunks=chunks, window=1)
    topology = star(n)
    topology = replace(topology, latency_ps=np.zeros_like(topology.latency_ps))
    assert time(topology, made, n * chunks * int(b)) == ((n + 2) * chunks + n - 1) * b / B


@pytest.mark.parametrize(("n", "published"), [(4, 370), (5, 411), (6, 440), (7, 462), (8, 479)])
def test_h100_nvls_bus_bandwidth(n, published):
    """370 to 480 GB/s of github.com/NVIDIA/nccl issue 1455, which is one rate of the wire: 1.2 bytes for each."""
    topology, b, times = star(n, "370 GB/s", overhead=1.2), 1_000_000, []
    for chunks in (8, 16):
        made = build("nvls", "all_reduce", n, chunks=chunks)
        times.append(time(topology, made, n * chunks * b, engine="simpy"))
    # What eight more rounds take, without the beginning and the end.
    algorithm_rate = n * 8 * b / (times[1] - times[0]) * 1000
    # The figures are cut, and times are rounded up.
    assert published - 0.01 < algorithm_rate * 2 * (n - 1) / n < published + 1


def test_groups_and_calls_share_a_switch():
    """Two groups on one switch do not meet on its links; calls of a group follow each other."""
    topology, made, size = star(8), build("nvls", "all_reduce", 4, chunks=4), 16_000_000
    alone = time(topology, made, size)
    groups = [(0, 1, 2, 3), (4, 5, 6, 7)]
    records = simulate(problem(topology, made, size, calls=3, placements=groups), engine="both", level="messages")
    assert records.collective["start"].tolist() == [alone * i for i in range(3)] * 2
    assert records.collective["end"].tolist() == [alone * (i + 1) for i in range(3)] * 2
    assert records.makespan == 3 * alone
    assert len(records.finish) == 8


@pytest.mark.parametrize("rate", ["1 GB/s", None])
def test_groups_share_the_unit_of_a_switch(rate):
    topology = star(4, reduce_bandwidth=rate) if rate else star(4)
    made, size = build("switch_tree", "all_reduce", 2), 1_000_000
    one = time(topology, made, size, placements=[(0, 1)])
    both = time(topology, made, size, placements=[(0, 1), (2, 3)])
    assert both - one == (size * 1000 if rate else 0)


def test_the_first_hop_alone_takes_longer():
    """A switch that sends over several links pays its latency once; what passes it by pays nothing."""
    link = {"bandwidth": "50 GB/s", "latency": "500 ns"}
    keys = {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1, "uplink_bandwidth": "50 GB/s", **link}
    times = {}
    for latency in ("0 ns", "200 ns"):
        topology = topology_of({**keys, "switches": {"latency": latency, "capable": ["spine0"]}}, written=True)
        tree = build("switch_tree", "all_reduce", 4)
        tree = replace(tree, vertices=(topology.npus + 2,))
        for model in (*SHARED, "analytical"):
            times[latency, model] = time(topology, tree, 1_000_000, model=model)
        times[latency, "ring"] = time(topology, build("ring", "all_reduce", 4), 1_000_000)
    for model in (*SHARED, "analytical"):
        assert times["200 ns", model] - times["0 ns", model] == A_SWITCH
    assert times["200 ns", "ring"] == times["0 ns", "ring"]
