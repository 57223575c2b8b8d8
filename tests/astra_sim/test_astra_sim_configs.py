"""ASTRA-sim's configuration files: what is read, warned about and refused, with its place."""

from __future__ import annotations

import json
from dataclasses import fields
from fractions import Fraction

import pytest

from astrasim_py.astra_sim.configs import (
    DEAD_KEYS,
    SystemConfig,
    read_memory,
    read_network,
    read_per_node,
    read_system,
)
from astrasim_py.astra_sim.json_file import read_json
from astrasim_py.astra_sim.native_algorithms import Implementation
from astrasim_py.core.errors import ScenarioError

NETWORK = "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ]\nbandwidth: [ 50.0, 12.5 ]\nlatency: [ 936.25, 0 ]\n"


def written(tmp_path, text, name="file"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_network_is_read_exactly(tmp_path):
    warnings = []
    network = read_network(written(tmp_path, NETWORK), warnings)
    assert not warnings and network.npus == 8
    assert [dim.kind for dim in network.dims] == ["ring", "switch"] and network.sizes == (4, 2)
    first = network.dims[0]
    assert first.bandwidth == 50 * 2**30 and first.latency_ps == 936_250
    assert network.dims[1].bandwidth == Fraction(25, 2) * 2**30


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("Ring,", "Rings,", r'file:1:13: topology\[0\]: "Rings" is not a topology of ASTRA-sim; did you mean "Ring"'),
        ("Ring,", "ring,", "did you mean"),
        ("Ring,", "{},", "is not a topology"),
        ("[ 4, 2 ]", "[ 4 ]", "file:2:13: npus_count: 1 values for 2 dimensions"),
        ("[ 4, 2 ]", "[ 4, 1 ]", r"npus_count\[1\]: 1 NPUs"),
        ("[ 4, 2 ]", "[ 4, true ]", "NPUs"),
        ("[ 4, 2 ]", "[ 4, 99999999999 ]", "NPUs"),
        ("12.5", "0", "out of range"),
        ("12.5", "-1", "out of range"),
        ("12.5", ".nan", "is not a bandwidth"),
        ("12.5", ".inf", "is not a bandwidth"),
        ("12.5", "fast", "is not a bandwidth"),
        ("936.25", "-1", "out of range"),
        ("latency", "latencies", 'the key "latency" is missing'),
        (NETWORK, "- 1\n", "is not a network configuration"),
        (NETWORK, "", "is empty"),
        (NETWORK, "topology: [", "file:"),
    ],
)
def test_a_bad_network_is_refused_at_its_place(tmp_path, old, new, said):
    with pytest.raises(ScenarioError, match=said):
        read_network(written(tmp_path, NETWORK.replace(old, new)), [])


def test_unknown_keys_of_a_network_are_warned_about(tmp_path):
    warnings = []
    read_network(written(tmp_path, NETWORK + "latancy: [ 1, 2 ]\nmagic: 7\n"), warnings)
    assert len(warnings) == 2
    assert "file:5:1: latancy: unknown key, ignored; did you mean" in warnings[0]
    assert "magic: unknown key" in warnings[1]


def test_every_key_of_a_system_has_a_field(tmp_path):
    values = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 7,
        "active-chunks-per-dimension": 2,
        "preferred-dataset-splits": 4,
        "collective-optimization": "baseline",
        "local-mem-bw": 0.5,
        "peak-perf": 312,
        "roofline-enabled": 1,
        "replay-only": True,
        "trace-enabled": 0,
        "track-local-mem": 0,
        "model-shared-bus": 1,
        "L": 1,
        "o": 2,
        "g": 3,
        "G": 0.01,
        "local-reduction-delay": 5,
        "per-node-custom-implementation": "nodes.yml",
        **{f"{name}-implementation": ["ring", "direct4"] for name in ("all-reduce", "all-gather", "all-to-all")},
        "reduce-scatter-implementation": "oneRing",
        **{f"{name}-implementation-custom": [name] for name in ("all-reduce", "all-gather", "all-to-all")},
        "reduce-scatter-implementation-custom": ["x"],
    }
    assert {key.replace("-", "_") for key in values} == {f.name for f in fields(SystemConfig)} - {"file"}
    warnings = []
    system = read_system(written(tmp_path, json.dumps(values)), warnings)
    assert warnings == [w for w in warnings if "model-shared-bus" in w]
    assert system.local_mem_bw == Fraction(1, 2) and system.replay_only and not system.trace_enabled
    assert system.implementation("all_reduce") == (Implementation("ring"), Implementation("direct", window=4))
    assert system.implementation("reduce_scatter") == (Implementation("ring", whole=True),)
    assert system.injected("all_to_all") == "all-to-all" and system.injected("broadcast") is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("preferred-dataset-splits", "4", "is not a number"),
        ("preferred-dataset-splits", -1, "out of range"),
        ("preferred-dataset-splits", 10**30, "out of range"),
        ("preferred-dataset-splits", True, "is not a number"),
        ("active-chunks-per-dimension", 0, "out of range"),
        ("collective-optimization", "localBWaware", 'did you mean "localBWAware"'),
        ("scheduling-policy", "LILO", "did you mean"),
        ("all-reduce-implementation", [], "is not a list of implementations"),
        ("all-reduce-implementation", [3], "is not a list of implementations"),
        ("all-reduce-implementation", ["rings"], 'did you mean "ring"'),
        ("all-reduce-implementation", ["direct0"], "direct0"),
        ("all-reduce-implementation-custom", ["a", "b"], "is not one file prefix"),
        ("all-reduce-implementation-custom", [], "is not one file prefix"),
        ("local-mem-bw", "fast", "is not a number"),
        ("roofline-enabled", "yes", "is not a switch"),
        ("per-node-custom-implementation", 3, "is not the name of a file"),
    ],
)
def test_a_bad_system_is_refused_at_its_line(tmp_path, key, value, said):
    path = written(tmp_path, json.dumps({"endpoint-delay": 10, key: value}, indent=1))
    with pytest.raises(ScenarioError, match=said) as caught:
        read_system(path, [])
    assert str(caught.value).startswith(f"{path}:3: {key}: ")


def test_dead_misspelt_and_unknown_keys_are_warned_about_once_each(tmp_path):
    keys = {**dict.fromkeys(DEAD_KEYS, 1), "prefered-dataset-splits": 4, "endpoint_delay": 3, "colour": "red"}
    warnings = []
    system = read_system(written(tmp_path, json.dumps(keys, indent=1)), warnings)
    assert len(warnings) == len(keys)
    assert system.preferred_dataset_splits is None and system.endpoint_delay == 10
    assert any('did you mean "preferred-dataset-splits"' in w for w in warnings)
    assert any('did you mean "endpoint-delay"' in w for w in warnings)


def test_a_memory_is_read(tmp_path):
    values = {"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 5, "remote-mem-bw": 100}
    path = written(tmp_path, json.dumps(values))
    with pytest.raises(ScenarioError, match="num-nodes: is missing"):
        read_memory(path, 8, [])
    path = written(tmp_path, json.dumps({**values, "num-nodes": 2, "num-npus-per-node": 3}))
    with pytest.raises(ScenarioError, match="do not hold the 8 NPUs"):
        read_memory(path, 8, [])
    model = read_memory(path, 6, [])
    assert (model.kind, model.latency_ps, model.bandwidth, model.npus_per_node) == ("per_node", 5000, 10**11, 3)
    for text in ('{"memory-type": "NO_MEMORY"}', '{"memory-type": []}', "{}"):
        with pytest.raises(ScenarioError, match="memory-type"):
            read_memory(written(tmp_path, text), 8, [])


def test_the_map_of_nodes_is_read(tmp_path):
    assert read_per_node(written(tmp_path, '7: "a/b"\n12: [c]\n')) == {7: "a/b", 12: "c"}
    for text in ("[1]", "x: a", "7: [a, b]", "7: 3"):
        with pytest.raises(ScenarioError):
            read_per_node(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "file:1:1: is not JSON"),
        ('{"a": 1,}', "is not JSON"),
        ('{"a": NaN}', "NaN"),
        ("[" * 100_000, "nested|JSON"),
        ('{"a": ' + "9" * 10_000 + "}", "JSON"),
        (b"\xff\xfe{", "UTF-8"),
        ("7", "not an object"),
        ('{"a": "' + "x" * 2**20 + '"}', "more than"),
    ],
)
def test_bad_json_is_one_line(tmp_path, text, said):
    with pytest.raises(ScenarioError, match=said) as caught:
        read_json(written(tmp_path, text), "a file", "{}", [])
    assert len(caught.value.lines()) == 1


def test_of_two_equal_keys_the_last_counts_and_is_told(tmp_path):
    warnings = []
    found = read_json(written(tmp_path, '{\n"a": 1,\n"a": 2}'), "a file", "{}", warnings)
    assert found.data == {"a": 2}
    assert len(warnings) == 1 and "file:3: the key" in warnings[0] and "the last counts" in warnings[0]


def test_lines_are_those_of_the_outermost_keys(tmp_path):
    text = '{"a": {"b": 1,\n "c": [":", "\\"d\\": 2"]},\n\n "b": "a: 3", "\\u0063":\n 4}'
    found = read_json(written(tmp_path, text), "a file", "{}", [])
    assert found.lines == {"a": 1, "b": 4, "c": 4}


def test_folders_devices_and_missing_files_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none", "/dev/zero", "a\0b"):
        for read in (read_network, read_system):
            with pytest.raises(ScenarioError):
                read(path, [])
