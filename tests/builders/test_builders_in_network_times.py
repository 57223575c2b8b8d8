"""Collectives in the network take the times of their closed forms, and no less than the bound."""

from __future__ import annotations

from fractions import Fraction

import pytest
from worlds.bounds import lower_bound_ps

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.builders.switch_trees import capable_tree
from astrasim_py.core.units import PS_PER_S

RATE, ALPHA = 50 * 10**9, 500_000


def network(shape: str = "switch", **keys):
    more = {"bandwidth": "50 GB/s", "latency": "500 ns"}
    switches = {"capable": "all", **keys.pop("switches", {})}
    return ap.build_topology(shape=shape, **more, **keys, switches=switches)


def took(algorithm, size: int, topology, npus=None) -> int:
    problem = ap.collective(
        algorithm.collective, size, topology, algorithm=algorithm, root=algorithm.root or 0, npus=npus
    )
    records = {engine: ap.simulate(problem, engine=engine) for engine in ("simpy", "compiled")}
    assert len({each.makespan for each in records.values()}) == 1
    return records["simpy"].makespan


def on(topology, builder: str, collective: str, **options):
    npus = tuple(range(topology.npus))
    tree = capable_tree(topology, npus)
    return build(builder, collective, len(npus), switches=tree, **options).with_verdict(True)


def piece_ps(nbytes: int) -> int:
    return nbytes * PS_PER_S // RATE


def tree_ps(levels: int, T: int, A: int, nbytes: int, more: int = 0) -> int:
    """T pieces of `nbytes`, A slots, `more` ps of latency in every switch."""
    x = piece_ps(nbytes)
    trip = 2 * levels * (ALPHA + x) + (2 * levels - 1) * more
    if A * x > trip or A >= T:
        return trip + (T - 1) * x
    return (T - 1) // A * trip + (T - 1) % A * x + trip


@pytest.mark.parametrize(("T", "A"), [(1, 1), (5, 5), (7, 3), (9, 4)])
@pytest.mark.parametrize("nbytes", [100_000, 10_000_000])
@pytest.mark.parametrize("n", [2, 8, 64])
def test_tree_behind_one_switch(n, nbytes, T, A) -> None:
    topology = network(npus=n)
    assert took(on(topology, "switch_tree", "all_reduce", chunks=T, slots=A), T * nbytes, topology) == tree_ps(
        1, T, A, nbytes
    )


@pytest.mark.parametrize(
    ("shape", "keys", "levels"),
    [
        ("leaf_spine", {"leaves": 4, "hosts_per_leaf": 4, "spines": 2, "oversubscription": 2}, 2),
        ("leaf_spine", {"leaves": 2, "hosts_per_leaf": 16, "spines": 1, "oversubscription": 16}, 2),
        ("fat_tree", {"k": 4}, 3),
    ],
)
@pytest.mark.parametrize("latency", [0, 200_000])
def test_trees_of_two_and_three_levels(shape, keys, levels, latency) -> None:
    topology = network(shape, **keys, switches={"latency": f"{latency} ps"})
    for T, A, nbytes in ((1, 1, 100_000), (6, 6, 100_000), (7, 3, 100_000), (9, 4, 10_000_000)):
        made = on(topology, "switch_tree", "all_reduce", chunks=T, slots=A)
        assert took(made, T * nbytes, topology) == tree_ps(levels, T, A, nbytes, latency)


@pytest.mark.parametrize("rate", [100, 1000])
@pytest.mark.parametrize("T", [1, 4])
def test_the_unit_that_reduces_takes_its_time(T, rate) -> None:
    n, nbytes = 8, 1_000_000
    topology = network(npus=n, switches={"reduce_bandwidth": f"{rate} GB/s"})
    x, reduced = piece_ps(nbytes), (n - 1) * nbytes * 1000 // rate
    expected = 2 * (ALPHA + x) + reduced + (T - 1) * max(x, reduced)
    assert took(on(topology, "switch_tree", "all_reduce", chunks=T), T * nbytes, topology) == expected


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(("c", "w"), [(2, 2), (4, 2), (5, 3), (5, 5)])
def test_nvls(n, c, w) -> None:
    topology, nbytes = network(npus=n), 500_000
    x, size = piece_ps(nbytes), n * c * nbytes
    forms = {
        "all_reduce": ((n + 1) * c + (n - 1) * w + 1) * x,
        "reduce_scatter": (n * c + 1) * x,
        "all_gather": ((n - 1) * c + 1) * x,
    }
    for collective, time in forms.items():
        made = on(topology, "nvls", collective, chunks=c, window=w)
        assert took(made, size, topology) == time + 2 * ALPHA


def test_nvls_with_one_round_under_way() -> None:
    n, c, nbytes = 4, 5, 500_000
    topology = ap.build_topology(
        shape="switch", npus=n, bandwidth="50 GB/s", latency="0 ns", switches={"capable": "all"}
    )
    made = on(topology, "nvls", "all_reduce", chunks=c, window=1)
    assert took(made, n * c * nbytes, topology) == ((n + 2) * c + n - 1) * piece_ps(nbytes)


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_rooted_trees(collective, n) -> None:
    topology, c, nbytes = network(npus=n), 4, 500_000
    for root in (0, n - 1):
        made = on(topology, "switch_tree", collective, chunks=c, root=root)
        assert took(made, c * nbytes, topology) == 2 * ALPHA + (c + 1) * piece_ps(nbytes)


def test_published_bus_bandwidths_of_nvls() -> None:
    """nccl issue 1455, H100: 370, 420, 440, 460 and 480 GB/s on 4 to 8 GPUs; rings 365 to 370."""
    shown = []
    for n in (4, 5, 6, 7, 8):
        topology = ap.build_topology(
            shape="switch", npus=n, bandwidth="370 GB/s", latency="0 ns", switches={"capable": "all", "overhead": 1.2}
        )
        size, c = n * 512 * 50_000, 512
        records = ap.simulate(
            ap.collective("all_reduce", size, topology, algorithm=on(topology, "nvls", "all_reduce", chunks=c))
        )
        # The first and the last rounds do not fill the links: c + 2 (n - 1) / (n + 1) rounds' time for c rounds.
        filled = Fraction((n + 1) * c, (n + 1) * c + 2 * (n - 1) + 1)
        shown.append(float(Fraction(size * PS_PER_S, records.makespan) * Fraction(2 * (n - 1), n) / filled) / 1e9)
    assert shown == pytest.approx([370, 411, 440, 462, 479], rel=2e-3)


def test_no_time_is_below_the_bound() -> None:
    for keys in ({"npus": 6}, {"shape": "leaf_spine", "leaves": 3, "hosts_per_leaf": 4, "spines": 2}):
        topology = network(**keys)
        npus = range(topology.npus)
        for builder, collectives in (
            ("switch_tree", ("all_reduce", "reduce", "broadcast")),
            ("nvls", ("all_reduce", "reduce_scatter", "all_gather")),
        ):
            if builder == "nvls" and topology.npus > 6:
                continue
            for collective in collectives:
                made, size = on(topology, builder, collective, chunks=8), 3 * 2**20
                bound = lower_bound_ps(collective, size, topology, npus)
                assert 0.5 * (time := took(made, size, topology)) < bound <= time
