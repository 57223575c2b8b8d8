"""Default options against exact optima, and against the schedules that TE-CCL published, on their networks."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.request import Request
from astrasim_py.synthesis.solve import solve
from astrasim_py.topology.topology_files import read_edge_list

GB = 10**9
#: Column of the optimum, and the share of it to reach.
OPTIMA = {
    "all_gather": ("ag_exact", "0.98"),
    "reduce_scatter": ("rs_GBps", "0.98"),
    "broadcast": ("bc_root0_GBps", "0.98"),
    "all_reduce": ("ar_GBps", "0.95"),
    "all_to_all": ("a2a_GBps", "0.95"),
}
NETWORKS = (
    "fc_mi250_16", "random_1", "random_5", "random_3", "random_7", "fc_a100_2x8", "fc_a100_4x8", "fc_mi250_8p8",
    "fc_mi250_16p16", "rail_h100_64",
)  # fmt: skip
#: What takes a second or two; the others, every night.
QUICK = {
    *(("fc_mi250_16", collective) for collective in ("all_gather", "broadcast", "all_reduce", "all_to_all")),
    *(("random_1", collective) for collective in ("all_gather", "reduce_scatter", "broadcast")),
    *(("random_5", collective) for collective in ("reduce_scatter", "broadcast")),
}
CASES = [
    pytest.param(name, collective, marks=() if (name, collective) in QUICK else pytest.mark.nightly)
    for name in NETWORKS
    for collective in OPTIMA
]


def table(golden: Path, name: str) -> list[dict[str, str]]:
    with open(golden / "synthesis" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def request(golden: Path, name: str, collective: str, size: int, **keys) -> Request:
    topology = read_edge_list(golden / "synthesis" / "topologies" / f"{name}.csv")
    keys.setdefault("npus", tuple(range(topology.npus)))
    return Request(topology=topology, collective=collective, size=size, **keys)


@pytest.mark.parametrize(("name", "collective"), CASES)
def test_default_options_come_near_the_optimum_and_the_bound_stays_below(golden, name, collective):
    column, share = OPTIMA[collective]
    (row,) = [row for row in table(golden, "optima_public.csv") if row["topology"] == name]
    optimum, root = Fraction(row[column]) * GB, 0 if collective == "broadcast" else None
    schedule = solve(request(golden, name, collective, GB, chunks=None, root=root), jobs=1).schedule
    assert check(schedule) == []
    seconds = Fraction(schedule.time, 10**12)
    assert seconds * optimum * Fraction(share) <= GB
    # The optimum is rounded to a billionth; latency is in the time.
    assert seconds * optimum >= GB * (1 - Fraction(1, 10**8))
    # The bound is of the optimum, up to a thousandth, and to the latency of the way.
    latency = Fraction(20, 10**6)
    bound = Fraction(schedule.bound, 10**12)
    assert Fraction(999, 1000) * GB <= bound * optimum <= (1 + Fraction(1, 10**8)) * GB + latency * optimum
    assert schedule.bound <= schedule.time


@pytest.mark.parametrize("number", [15, 16, 20, 21])
def test_no_slower_than_published_where_others_only_relay(golden, number):
    """All_gathers of 64 MB and 1 GB, all_to_alls of 16 and 256 MB, of 15 GPUs; one relays."""
    row = table(golden, "teccl_public.csv")[number]
    assert row["participants"] == "1-15"
    npus = tuple(range(1, 16))
    size = int(Fraction(row["shard_bytes"]) * len(npus))
    asked = request(golden, row["topology"], row["collective"], size, chunks=None, npus=npus, relays=True)
    schedule = solve(asked, jobs=1).schedule
    assert check(schedule) == []
    assert schedule.time <= float(row["published_us"]) * 10**6
