"""Rules of docs/semantics.md that are easily passed over, on both engines, with numbers that follow by hand."""

from __future__ import annotations

import pytest

from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

US, NS = 10**6, 10**3
#: ps of a kilobyte at 1 GB/s.
KB = 10**6


@pytest.fixture(params=["simpy", "compiled"])
def run(request, tmp_path):
    """A function that simulates the only point of a scenario."""

    def simulated(text: str):
        path = tmp_path / "rule.yaml"
        path.write_text(f"name: rule\n{text}")
        (point,) = expand(load_scenario(path))
        return simulate(prepare(point).problem, level="messages", engine=request.param)

    return simulated


def delivered(records) -> list[int]:
    """When messages are delivered, ps, in the order of issue."""
    return records.message["delivered"].tolist()


def edges(*links: tuple) -> str:
    """An edge list of directed links: ends, latency in us, GB/s."""
    rows = ", ".join(
        f"{{src: {a}, dst: {b}, latency: {latency} us, bandwidth: {rate} GB/s}}" for a, b, latency, rate in links
    )
    return f"topology: {{shape: edge_list, npus: 3, edges: [{rows}]}}\n"


BACK = tuple((b, a, 50, 1) for a, b in ((0, 2), (2, 1), (0, "s"), ("s", 1)))
VIA_NPU = ((0, 2, 1, 100), (2, 1, 1, 100))
THREE = ((0, "t", 1, 1), ("t", "u", 1, 1), ("u", 1, 1, 1))
TWO = ((0, "s", 9, 1), ("s", 1, 9, 1))
FASTER = ((0, "v", 8, 1), ("v", 1, 9, 1))


@pytest.mark.parametrize(
    ("links", "time"),
    [
        (VIA_NPU, 2 * US + 10_000),
        ((*VIA_NPU, *THREE), 3 * US + KB),  # no NPU in between, though more links and a lower bandwidth
        ((*VIA_NPU, *THREE, *TWO), 18 * US + KB),  # fewer links, though a higher latency
        ((*VIA_NPU, *THREE, *TWO, *FASTER), 17 * US + KB),  # a lower latency
        (((0, "s", 9, 1), ("w", 1, 9, 2), (0, "w", 9, 2), ("s", 1, 9, 1)), 18 * US + KB // 2),  # the lower last link
        (((0, "w", 9, 2), (0, "s", 9, 1), ("s", 1, 9, 1), ("w", 1, 9, 2)), 18 * US + KB),
        (((0, "s", 9, 1), (0, "s", 9, 2), ("s", 1, 9, 2)), 18 * US + KB),  # the lower last link but one
        (((0, "s", 9, 2), (0, "s", 9, 1), ("s", 1, 9, 2)), 18 * US + KB // 2),
    ],
)
def test_shortest_is_fewest_npus_then_links_then_latency_then_the_lowest_last_links(run, links, time):
    """Bandwidths do not count; they tell which path was taken."""
    known = {(a, b) for a, b, *_ in links}
    more = tuple(link for link in BACK if link[:2] not in known)
    records = run(edges(*links, *more) + "workload: [{send: {from: 0, to: 1, size: 1 kB}}]\n")
    assert delivered(records) == [time]


@pytest.mark.parametrize(("first", "last"), [("low", "high"), ("high", "low")])
def test_calls_are_numbered_by_the_lowest_rank_that_makes_them(run, first, last):
    """On rank 2 both calls begin at once; that of rank 0 takes the uplink first, wherever it stands in its trace."""
    groups = {"low": [0, 2], "high": [1, 2]}
    items = ", ".join(f"{{all_gather: {{size: 2 kB, group: {groups[name]}}}, after: []}}" for name in (first, last))
    records = run(
        "topology: {shape: switch, npus: 3, bandwidth: 1 GB/s, latency: 1 us}\n"
        f"workload: [{items}]\nalgorithms: {{all_gather: ring}}\n"
    )
    assert records.finish.tolist()[:2] == [2 * US + KB, 2 * US + 2 * KB]


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(("overhead", "gap"), [(5, 0), (5, 9), (0, 9), (9, 5)])
def test_each_part_of_a_split_message_pays_overhead_and_gap(run, parts, overhead, gap):
    """k parts of b bytes over 4 links: o, then k - 1 times the larger of both, the way of one part, and o."""
    split = f"network: {{qps: {parts}, split: true}}\n" if parts > 1 else ""
    records = run(
        "topology: {shape: leaf_spine, leaves: 2, hosts_per_leaf: 1, spines: 2, bandwidth: 1 GB/s, latency: 1 us, "
        f"uplink_bandwidth: 1 GB/s, routing: {{ecmp: true}}}}\n{split}nic: {{overhead: {overhead} us, gap: {gap} us}}\n"
        "workload: [{send: {from: 0, to: 1, size: 4 kB}}]\n"
    )
    way = 4 * US + 4 * KB // parts
    assert records.makespan == (2 * overhead + (parts - 1) * max(overhead, gap)) * US + way
    assert len(delivered(records)) == parts


def test_under_fluid_a_message_of_0_bytes_waits_its_turn_and_takes_no_share(run):
    """From NPU 0 to 1: a kilobyte, nothing, a kilobyte; to 2 a kilobyte, to 3 nothing; all over one uplink."""
    sizes = ((1, 1), (1, 0), (1, 1), (2, 1), (3, 0))
    sends = ", ".join(
        f"{{send: {{from: 0, to: {to}, size: {kb} kB, tag: {tag}}}, after: []}}" for tag, (to, kb) in enumerate(sizes)
    )
    records = run(
        "topology: {shape: switch, npus: 4, bandwidth: 1 GB/s, latency: 1 us}\n"
        f"network: {{model: fluid}}\nworkload: [{sends}]\n"
    )
    by_tag = dict(zip(records.message["tag"].tolist(), delivered(records), strict=True))
    # Two flows share the uplink until both have sent a kilobyte; the last kilobyte has it alone.
    way = 2 * US
    assert by_tag == {0: 2 * KB + way, 1: 2 * KB + way, 2: 3 * KB + way, 3: 2 * KB + way, 4: way}
    assert records.link["busy"].max() == 3 * KB


ONE_WAY = {
    "both": ("[0, 1]", "{from: 0, to: 1, latency: 5 us}"),
    "one": ("{from: 0, to: 1, directions: one}", "{from: 0, to: 1, directions: one, latency: 5 us}"),
}


@pytest.mark.parametrize("directions", ["both", "one"])
@pytest.mark.parametrize("event", [False, True])
def test_failed_and_changed_links_are_both_directions_unless_one_is_written(run, directions, event):
    failed, changed = ONE_WAY[directions]
    sends = "workload: [{send: {from: 0, to: 1, size: 0 B}}, {send: {from: 1, to: 0, size: 0 B}, after: []}]\n"

    def times(keys: str) -> list[int]:
        keys = f"reroute_delay: 1 ms, events: [{{at: 0 s, {keys}}}]" if event else keys
        model = "network: {model: fluid}\n" if event else ""
        link = "bandwidth: 1 GB/s, latency: 1 us"
        return delivered(run(f"topology: {{shape: ring, npus: 4, {link}, {keys}}}\n{model}{sends}"))

    back = {"both": 3, "one": 1}[directions]
    assert times(f"failed: {{links: [{failed}]}}") == [3 * US, back * US]
    slow = {"both": 5, "one": 1}[directions]
    assert times(f"links: [{changed}]") == [5 * US, slow * US]
    # What fails is gone, whatever else is written of it; of two changes the later one holds.
    assert times(f"links: [{changed}], failed: {{links: [{failed}]}}") == [3 * US, back * US]
    assert times(f"links: [{changed}, {{from: 0, to: 1, latency: 2 us}}]") == [2 * US, 2 * US]


def test_changes_of_an_event_are_of_the_topology_as_written(run):
    """The second event changes the bandwidth; the latency of the first is over, that of the topology is not."""
    topology = (
        "topology: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us, links: [{from: 0, to: 1, latency: 3 us}],"
        " reroute_delay: 1 ms, events: [{at: 1 us, links: [{from: 0, to: 1, latency: 7 us}]},"
        " {at: 20 us, links: [{from: 0, to: 1, bandwidth: 2 GB/s}]}]}\n"
    )
    send = "{send: {from: 0, to: 1, size: 1 kB}}"
    items = f"[{{compute: {{time: 10 us}}}}, {send}, {{compute: {{time: 20 us}}}}, {send}]"
    records = run(f"{topology}network: {{model: fluid}}\nworkload: {items}\n")
    first, second = delivered(records)
    assert (first, second) == (18 * US, 18 * US + 20 * US + 3 * US + KB // 2)


@pytest.mark.parametrize(
    ("arrival", "finish", "compute"), [("0 us", 8, 8), ("1 us", 9, 8), ("5 us", 9, 4), ("7 us", 7, 0), ("20 us", 0, 0)]
)
def test_a_rank_in_the_background_finishes_with_the_last_change_of_what_it_does(run, arrival, finish, compute):
    """Foreground: 10 us. Background: 4 us again and again; what is under way at the end does not count."""
    records = run(
        "topology: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
        "jobs:\n  a: {ranks: 1, workload: [{compute: {time: 10 us}}]}\n"
        f"  b: {{ranks: 1, background: true, arrival: {arrival}, iterations: 50,\n"
        "      workload: [{compute: {time: 4 us}}]}\n"
    )
    assert records.finish.tolist() == [10 * US, finish * US]
    assert (records.makespan, records.compute.tolist()) == (10 * US, [10 * US, compute * US])
