"""Schedules of each kind of search stay the same: a changed digest means that a search was changed.

None of these searches has a time budget, so neither the machine nor its number of cores changes a schedule.
"""

from __future__ import annotations

import pytest
from worlds.networks import COSTS, edge_list, synthesize

from astrasim_py.core.digest import digest
from astrasim_py.synthesis import portfolio
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.topology import build


def schedule_digest(schedule: Schedule) -> str:
    """16 digits over the transfers, the time, the bound and the policy of a schedule."""
    columns = [column.tolist() for column in (schedule.arc, schedule.chunk, schedule.start, schedule.reduces)]
    return digest([columns, schedule.time, schedule.bound, schedule.search.policy])[:16]


LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
TOPOLOGIES = {
    "ring": build({"shape": "ring", "npus": 6, **LINK}),
    "mesh": build({"shape": "mesh", "dims": [3, 3], **LINK}),
    "torus": build({"shape": "torus", "dims": [2, 3], **LINK}),
    "switch": build({"shape": "switch", "npus": 6, **LINK}),
    "all": build({"shape": "fully_connected", "npus": 5, **LINK}),
    "random": edge_list(3),
    "random, a switch": edge_list(8, switch=True),
}

#: Topology, collective, bytes, further arguments, digest: one run, greedy searches, trees, patterns, routes, counts.
CASES = [
    ("ring", "all_gather", 600_000, {}, "b85f854d61aacd7a"),
    ("mesh", "all_gather", 900_001, {"chunks": 2}, "f8afc868892bdded"),
    ("mesh", "broadcast", 300_000, {"chunks": 4, "root": 4}, "3517af14d8702bc7"),
    ("torus", "reduce_scatter", 600_000, {"chunks": 3}, "4c697e7d225ae9eb"),
    ("torus", "all_reduce", 600_000, {}, "05f57dcdbf78751b"),
    ("random", "reduce", 10**6, {"chunks": 3, "root": 0}, "f7573ef5db7a41bf"),
    ("random", "all_reduce", 10**6, {"chunks": 2, "cost": COSTS[1]}, "af449b375ac1800b"),
    ("random, a switch", "all_gather", 10**6, {"npus": (0, 1, 2, 3), "relays": True}, "9e6edfb9bff9337b"),
    ("switch", "all_reduce", 10**6, {"chunks": 2}, "30cd7e2c53fa15b4"),
    ("switch", "broadcast", 10**6, {"chunks": 8, "root": 0}, "92cdecefb311b407"),
    ("switch", "all_to_all", 360_000, {}, "820b4dacba1105fb"),
    ("mesh", "all_to_all", 810_000, {}, "73ee7c97ca589a03"),
    ("ring", "scatter", 600_000, {"root": 2, "cost": COSTS[2]}, "59c1515f30b8cf22"),
    ("all", "all_reduce", 10**6, {}, "d6c853881494d079"),
]


@pytest.mark.parametrize(("topology", "collective", "size", "more", "expected"), CASES)
def test_a_search_finds_the_same_schedule(topology, collective, size, more, expected):
    schedule = synthesize(TOPOLOGIES[topology], collective, size, seed=1, rounds=6, **more)
    assert not schedule.search.cut
    assert schedule_digest(schedule) == expected, schedule.search.policy


def test_the_schedule_of_a_large_problem_that_needs_no_search_is_the_same(monkeypatch):
    monkeypatch.setattr(portfolio, "MANY", 0)
    schedule = synthesize(TOPOLOGIES["all"], "all_gather", 10**6, seed=1, rounds=1)
    assert schedule_digest(schedule) == "dc382c8100a4a0d9", schedule.search.policy
