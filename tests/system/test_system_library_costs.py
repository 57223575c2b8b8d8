"""Under a profile collectives take what the formulas of docs/dialects.md say, in both engines."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.dialects.library.lower_costs import beyond_the_rows
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.hardware import profile

#: Numbers of the size of those of eight H100.
MACHINE = {
    "title": "eight GPUs",
    "source": [{"what": "all", "where": "made up"}],
    "topology": {"shape": "dgx", "npus": 8, "nvlink_bandwidth": "450 GB/s", "nvlink_latency": "300 ns"},
    "collectives": {
        "library": "NCCL",
        "ranks": [2, 8],
        "sizes": ["512 B", "512 MiB"],
        "dtypes": ["half"],
        "channels": 24,
        "protocols": {
            "LL": {"launch": "5.1 us", "step": "616 ns", "channel_rate": "6.44 GB/s"},
            "Simple": {"launch": "11.2 us", "step": "1.71 us", "rate": "343 GB/s"},
        },
        "copy": "700 GB/s",
        "peer": "293 ns",
        "switch": {"launch": "55.3 us", "rate": "292 GB/s"},
    },
}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The profile of a file."""
    path = tmp_path_factory.mktemp("profile") / "mine.json"
    path.write_text(json.dumps(MACHINE), "utf-8")
    return profile(str(path))


def box(npus: int = 8, bandwidth: str = "450 GB/s", **more: object) -> ap.Topology:
    """A node of GPUs behind a switch."""
    link = {"nvlink_bandwidth": bandwidth, "nvlink_latency": "300 ns"}
    return ap.build_topology(**{"shape": "dgx", "npus": npus, **link, **more})


def ps(nbytes: Fraction, rate: Fraction) -> int:
    """Picoseconds, rounded up."""
    return -(-nbytes * PS_PER_S // rate)


def formula(machine, kind: str, n: int, size: int, protocol: str) -> int:
    """The time of a call."""
    part, copy = Fraction(size, n), ps(Fraction(size, n), machine.copy_rate)
    if protocol == "switch":
        return machine.switch.launch + ps(size + part, machine.switch.rate)
    costs = machine.protocols[protocol]
    if kind == "all_to_all":
        direct = costs.launch + costs.step + machine.peer * (n - 1)
        if costs.channel_rate:
            return direct + ps(part, costs.channel_rate)
        return direct + (n - 1) * ps(part, costs.rate) + copy
    steps = (1 + (kind == "all_reduce")) * (n - 1)
    channels = max(1, min(machine.channels, size // (machine.channel_bytes * n)))
    rate = channels * costs.channel_rate if costs.channel_rate else costs.rate
    return costs.launch + steps * (costs.step + ps(part, rate)) + copy


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16, 33, 64])
def test_the_simulation_takes_the_time_of_the_formula(measured, n):
    topology, engine = box(n), "both" if n < 9 else "compiled"
    for kind in KINDS:
        for size in (512 * n, 2**20 * n):
            for protocol in measured.protocols:
                problem = ap.collective(kind, size, topology, profile=measured, protocol=protocol)
                assert simulate(problem, engine=engine).makespan == formula(measured, kind, n, size, protocol)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fastest_way_is_taken_for_every_size(measured, kind):
    taken = set()
    for size in (2**12, 2**20, 2**23, 2**29):
        problem = ap.collective(kind, size, box(), profile=measured, switch_reduction=True)
        ways = (*measured.protocols, *["switch"] * (kind == "all_reduce"))
        times = {way: formula(measured, kind, 8, size, way) for way in ways}
        records = simulate(problem, engine="both")
        assert records.makespan == min(times.values())
        taken.add(records.collective["algorithm"][0].split()[-1])
    assert taken == set(ways)


def test_nodes_of_launch_and_copy_stand_in_the_records(measured):
    problem = ap.collective("all_to_all", 8000, box(), profile=measured, protocol="Simple")
    node = simulate(problem, engine="both", level="nodes").node
    took = {name: end - start for name, start, end in zip(node["name"], node["start"], node["end"], strict=True)}
    assert took["launch"] == 11_200_000 + 7 * 293_000
    assert took["copy"] == ps(Fraction(1000), measured.copy_rate)


def test_channels_of_an_algorithm_take_as_long_as_those_of_the_profile(measured):
    size = 8 * 24 * 4096
    split = build("ring", "all_reduce", 8).split(24)
    times = [
        simulate(ap.collective("all_reduce", size, box(), algorithm=how, profile=measured, protocol="LL")).makespan
        for how in (split, "ring")
    ]
    assert times[0] == times[1] == formula(measured, "all_reduce", 8, size, "LL")


def test_peers_at_once_share_the_channels_of_a_rank(measured):
    size, u = 2**26, Fraction(2**23)
    found = simulate(ap.collective("all_reduce", size, box(), algorithm="direct", profile=measured, protocol="LL"))
    each = 616_000 + ps(u, 24 // 7 * measured.protocols["LL"].channel_rate)
    each += 6 * measured.peer  # posted one after the other
    assert found.makespan == 5_100_000 + 2 * each + ps(u, measured.copy_rate)


def test_faster_links_are_faster_under_a_profile_and_are_told(measured):
    def run(bandwidth: str):
        problem = ap.collective("all_gather", 2**29, box(bandwidth=bandwidth), profile=measured, protocol="Simple")
        return simulate(problem).makespan, beyond_the_rows(plan_for(problem))

    (slow, nothing), (fast, told) = run("450 GB/s"), run("900 GB/s")
    assert not nothing and told == ["links of 900 GB/s; 450 GB/s were measured"]
    assert slow - fast == 7 * (ps(Fraction(2**26), measured.protocols["Simple"].rate) // 2)


def test_what_is_beyond_the_measured_rows_is_told(measured):
    nodes = box(nodes=2, nic_bandwidth="50 GB/s", nic_latency="2 us")
    problem = ap.collective("all_gather", 64, nodes, profile=measured, switch_reduction=True)
    assert beyond_the_rows(plan_for(problem)) == [
        "calls of 16 ranks; NCCL was measured with 2, 8",
        "calls of sizes beyond 512 B to 512 MiB, the measured ones",
        "calls between nodes, which were not measured",
    ]


@pytest.mark.parametrize("group", [[0, 1, 2, 3, 4, 5, 6, 7], [9, 12], []])
def test_calls_inside_a_node_and_none_at_all_are_not_between_nodes(measured, group):
    nodes = box(nodes=2, nic_bandwidth="50 GB/s", nic_latency="2 us")
    workload = ap.workload(16).compute("1 us")
    if group:
        workload = workload.all_gather("1 MiB", group=group)
    problem = ap.problem(workload, nodes, profile=measured)
    assert beyond_the_rows(plan_for(problem)) == []


def test_reductions_hide_behind_the_links(measured):
    problem = ap.collective("all_reduce", 2**20, box(), profile=measured)
    gamma = Semantics(gamma=Fraction(1, 10**9))
    slower = Problem(topology=problem.topology, jobs=problem.jobs, network=problem.network, semantics=gamma)
    assert simulate(slower, engine="both").makespan == simulate(problem).makespan


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"name": "astra_sim"}, "network.profile: does not support semantics astra_sim"),
        ({"rounding": "floor_ns"}, "network.profile: does not support semantics.rounding"),
        ({"rendezvous_bytes": 8}, "network.profile: does not support semantics.rendezvous_bytes"),
    ],
)
def test_rules_that_a_profile_is_not_made_for_are_refused(measured, rules, said):
    problem = ap.collective("all_reduce", 2**20, box(), profile=measured)
    other = Problem(topology=box(), jobs=problem.jobs, network=problem.network, semantics=Semantics(**rules))
    with pytest.raises(ScenarioError, match=said):
        simulate(other)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"profile": "tpu_v4"}, 'network.profile: tpu_v4: has no section "collectives"'),
        ({"profile": "dgx_h10"}, 'network.profile: there is no preset "dgx_h10"; did you mean "dgx_h100"?'),
        ({"profile": "none.json"}, "network.profile: none.json: cannot be read"),
        ({"profile": 8}, "network.profile: 8 is not the name of a profile"),
        ({"protocol": "LL"}, "network.protocol: protocol without a profile"),
        ({"switch_reduction": True}, "network.switch_reduction: switch_reduction without a profile"),
        ({"profile": True, "protocol": "LL128"}, "network.protocol: the profile has no LL128"),
        ({"profile": True, "model": "analytical"}, "network.model: a profile needs cut_through"),
        ({"profile": True, "msccl": {}}, "network.msccl: a profile has its own connections"),
        ({"profile": True, "link_busy": "latency+bytes"}, "network.link_busy: a profile needs"),
    ],
)
def test_a_wrong_network_is_one_line(measured, keys, said):
    if keys.get("profile") is True:
        keys = {**keys, "profile": measured}
    with pytest.raises(ScenarioError) as error:
        NetworkModel(**keys)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("collectives"), 'has no section "collectives"'),
        (lambda data: data.pop("topology"), "rates without a link"),
        (lambda data: data["collectives"].update(chanels=3), "did you mean"),
        (lambda data: data["collectives"].pop("channels"), "is missing"),
        (lambda data: data["collectives"]["protocols"]["LL"].pop("channel_rate"), "a rate or a channel_rate"),
        (lambda data: data["collectives"]["protocols"]["LL"].update(step=3), "it has no unit"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, change, said):
    data = json.loads(json.dumps(MACHINE))
    change(data)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data), "utf-8")
    with pytest.raises(ScenarioError) as error:
        NetworkModel(profile=str(path))
    assert said in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_a_rank_posts_its_messages_one_after_the_other(measured, n):
    size, costs = 1024 * n, measured.protocols["LL"]
    phase = (n - 2) * measured.peer + costs.step + ps(Fraction(size, n), costs.channel_rate)
    problem = ap.collective("all_reduce", size, box(n), algorithm="direct", profile=measured, protocol="LL")
    expected = costs.launch + 2 * phase + ps(Fraction(size, n), measured.copy_rate)
    assert simulate(problem, engine="both").makespan == expected


def test_posting_takes_no_longer_than_a_message_and_every_channel_posts_for_itself(measured):
    slow = measured.model_copy(update={"peer": 10**9})

    def time(algorithm, machine) -> int:
        problem = ap.collective("all_reduce", 8192, box(), algorithm=algorithm, profile=machine, protocol="LL")
        return simulate(problem, engine="both").makespan

    assert time("ring", slow) == formula(measured, "all_reduce", 8, 8192, "LL")
    step = measured.protocols["LL"].step
    assert time("direct", slow) - time("direct", measured) == 2 * 6 * (step - measured.peer)
    split = build("ring", "all_reduce", 8).split(2)
    assert time(split, slow) == time(split, measured)
