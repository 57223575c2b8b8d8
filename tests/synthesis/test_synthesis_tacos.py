"""All_gathers held to closed forms, to the values that TACOS's own tests expect, and to its recorded results."""

from __future__ import annotations

import csv
import os
from math import ceil, prod
from pathlib import Path

import pytest
from hypothesis import settings
from worlds.networks import synthesize

from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.topology import build
from astrasim_py.topology.topology_files import read_edge_list

TACOS = CostModel(link_busy="latency+bytes")
MIB = 2**20
NIGHTLY = settings.get_current_profile_name() == "nightly"
#: 1 us of latency and 1 MB at 1 GB/s: a step is 1.001 ms.
LINK = {"bandwidth": "1 GB/s", "latency": "1 us"}
STEP = 1_001_000_000
TWO_NS = 2_000


def chunks_of_a_megabyte(keys: dict, chunks: int) -> int:
    """Steps that a checked all_gather of shards of as many chunks of 1 MB takes."""
    topology = build({**keys, **LINK})
    schedule = synthesize(topology, "all_gather", topology.npus * chunks * 10**6, chunks=chunks, cost=TACOS, rounds=30)
    assert check(schedule) == []
    assert schedule.bound <= schedule.time
    steps, rest = divmod(schedule.time, STEP)
    assert rest == 0
    return steps


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(
    ("keys", "links"),
    [
        ({"shape": "ring", "npus": 9}, 2),
        ({"shape": "ring", "npus": 14, "bidirectional": False}, 1),
        ({"shape": "fully_connected", "npus": 6}, 5),
        ({"shape": "hypercube", "npus": 16}, 4),
        ({"shape": "torus", "dims": [5, 5]}, 4),
        ({"shape": "torus", "dims": [3, 3, 3]}, 6),
        ({"shape": "mesh", "dims": [6, 5]}, 2),
        ({"shape": "mesh", "dims": [4, 3, 3]}, 3),
    ],
    ids=lambda value: "-".join(str(v) for v in value.values()) if isinstance(value, dict) else None,
)
def test_the_npu_of_fewest_links_is_never_idle(keys, links, chunks):
    """What is the least that it can take: an NPU of so many links receives the chunks of all others."""
    npus = keys.get("npus") or prod(keys["dims"])
    assert chunks_of_a_megabyte(keys, chunks) == ceil((npus - 1) * chunks / links)


def test_a_leaf_receives_all_through_its_only_link():
    # NPU 0 keeps one of its two links.
    keys = {"shape": "mesh", "dims": [5, 4], "failed": {"links": [[0, 1]]}}
    assert chunks_of_a_megabyte(keys, 2) == 19 * 2


def test_axes_of_two_speeds_share_the_chunks_by_their_speed():
    """60 chunks: a fast axis delivers one in 2.94 us, a slow one in 10.3, so in 24 steps of the fast 48 + 12."""
    keys = {"shape": "torus", "dims": [4, 4], "bandwidth": ["100 GiB/s", "25 GiB/s"], "latency": "500 ns"}
    schedule = synthesize(build(keys), "all_gather", 16 * MIB, chunks=4, cost=TACOS, rounds=50)
    assert check(schedule) == []
    assert schedule.time == schedule.bound == 24 * schedule.timing.delay.min()


#: Dims, output buffer in MiB, chunks, GiB/s by axis, latency in us, expected us: of the tests of TACOS 1.3.
REGRESSION = [
    ("mesh", [5, 5], 1024, 1, [50], 0.5, 9606.0),
    ("mesh", [10, 10], 1024, 2, [100], 1, 5049.0),
    ("mesh", [7, 12], 4096, 3, [100], 1, 19966.27),
    ("mesh", [5, 5], 1024, 1, [50, 75], 0.5, 8005.0),
    ("mesh", [8, 5], 1024, 2, [80, 35], 1, 8595.43),
    ("mesh", [7, 10], 4096, 3, [16, 73], 1.5, 44612.47),
    ("torus", [3, 3, 3], 1024, 1, [50], 0.5, 3706.20),
    ("torus", [3, 4, 5], 2048, 2, [50], 0.5, 6676.67),
    ("torus", [4, 2, 3], 3072, 3, [50], 0.5, 11673.67),
    ("mesh", [3, 3, 3], 1024, 1, [50], 0.5, 6671.17),
    ("mesh", [3, 4, 5], 2048, 2, [50], 0.5, 13353.33),
    ("mesh", [4, 2, 3], 3072, 3, [50], 0.5, 19178.17),
]
#: Every night all of them.
EXPECTED = [row for row in REGRESSION if NIGHTLY or prod(row[1]) <= 27]


@pytest.mark.parametrize(
    ("shape", "dims", "size", "chunks", "bandwidth", "latency", "expected"),
    EXPECTED,
    ids=[f"{row[0]}-{'x'.join(map(str, row[1]))}-{'-'.join(map(str, row[4]))}" for row in EXPECTED],
)
def test_values_of_tacos_own_tests(shape, dims, size, chunks, bandwidth, latency, expected):
    speeds = [f"{value} GiB/s" for value in bandwidth]
    topology = build(
        {
            "shape": shape,
            "dims": dims,
            "bandwidth": speeds if len(speeds) > 1 else speeds[0],
            "latency": f"{latency} us",
        }
    )
    schedule = synthesize(topology, "all_gather", size * MIB, chunks=chunks, cost=TACOS, rounds=100)
    assert check(schedule) == []
    assert schedule.time / 1e6 <= expected * 1.01
    if len(bandwidth) == 1:
        # Of links that are alike TACOS's values are the bound. Chunks differ by a byte where none divides the buffer.
        assert schedule.bound <= schedule.time <= schedule.bound + TWO_NS


# -- recorded results -----------------------------------------------------------------------------------------------


def recorded() -> list[dict]:
    """Rows of `tacos_results.csv`; all of them every night, else those of few NPUs."""
    golden = os.environ.get("ASTRASIM_GOLDEN")
    if not golden or not (Path(golden) / "tacos").is_dir():
        return []
    with open(Path(golden) / "tacos" / "tacos_results.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if NIGHTLY or int(row["npus"]) <= 16]


@pytest.mark.skipif(not recorded(), reason="ASTRASIM_GOLDEN names no results of TACOS")
@pytest.mark.parametrize("row", recorded(), ids=lambda row: f"{row['input']}-{row['chunks_per_npu']}")
def test_never_worse_than_causal_tacos(row):
    """Differences up to 2 ns count as equal: recorded times are rounded, and bytes that no chunk count divides."""
    folder = Path(os.environ["ASTRASIM_GOLDEN"]) / "tacos"
    topology = read_edge_list(folder / "problems" / f"{row['input']}.csv")
    chunks = int(row["chunks_per_npu"])
    schedule = synthesize(topology, "all_gather", topology.npus * MIB, chunks=chunks, cost=TACOS, rounds=200)
    assert check(schedule) == []
    ours, bound, plain = schedule.time / 1e6, float(row["lower_bound_us"]), float(row["tacos_best_us"])
    assert ours >= bound - 0.002
    alike = len(schedule.network.topology.bandwidths) == 1
    # Where it is not recorded what TACOS takes once it may deliver only what a source holds, its best is no bar:
    # it may be out of reach. On links that are alike the two are the same.
    reference = row["tacos_causal_best_us"] or (plain if alike else None)
    if reference is not None:
        assert ours <= float(reference) + 0.002
    if alike and plain <= bound + 0.002:
        assert ours <= bound + 0.002
    if alike and plain > bound + 0.002 and row["input"].startswith(("torus", "ring", "fc")):
        assert ours < plain - 0.002
