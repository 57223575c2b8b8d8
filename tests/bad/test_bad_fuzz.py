"""Damaged and random input: only errors of the user's kind come out, and soon."""

from __future__ import annotations

import json
import os
import random
import time
from fractions import Fraction

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import parse_trace, read_prefix
from astrasim_py.chakra.groups import groups_from_json
from astrasim_py.chakra.text_io import bytes_of_lines, to_lines
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import read_algorithm, write_npz
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.topology.from_keys import build as build_topology
from astrasim_py.verification.verifier import verify

#: Longest that one damaged input may take.
SECONDS = 20.0
TOPOLOGY = shapes.Ring(npus=2, bandwidth=Fraction(10**9), latency=1000).build()
LIMITS = Limits(max_events=20_000, max_sim_time_ps=10**15)


class Feed:
    """Feed inputs to a function and hold it to the promise."""

    def __init__(self) -> None:
        self.fed = self.refused = 0

    def __call__(self, function, content) -> None:
        self.fed += 1
        begin = time.process_time()
        try:
            function(content)
        except AstraError as error:
            self.refused += 1
            lines = error.lines()
            assert lines and all(line.strip() and "\n" not in line for line in lines)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} from {content!r}"[:2000]) from error
        assert time.process_time() - begin < SECONDS, content


@pytest.fixture
def feed():
    return Feed()


def damaged(data: bytes, flips: int, seed: int, cuts: int = 60):
    """The data cut short at about `cuts` places, and with bits flipped: all, or so many chosen by a fixed seed."""
    step = max(1, len(data) // cuts)
    yield from (data[:end] for end in range(0, len(data), step))
    places = [(at, bit) for at in range(len(data)) for bit in range(8)]
    for at, bit in random.Random(seed).sample(places, min(flips, len(places))):
        yield data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def run_traces(*traces) -> None:
    """Plan and run a workload, with little patience."""
    job = Job(workload=Workload(tuple(traces), {}), placement=(0, 1), algorithms=AlgorithmTable({}))
    records = simulate(Problem(topology=TOPOLOGY, jobs=(job,), limits=LIMITS))
    assert records.outcome.status in ("done", "stuck", "limit")


@pytest.fixture(scope="module")
def pair(et):
    """Traces of two ranks with something of everything."""
    shared = [
        et.node(1, 4, micros=3, num_ops=10, tensor_size=8),
        et.node(3, 7, deps=[1], comm_type=0, comm_size=1024, comm_priority=0),
        et.node(9, 2, deps=[3], tensor_size=64),
    ]
    return (
        et.file(*shared, et.send(12, 0, 1, deps=[3], ctrl=[1]), et.node(13, 4, deps=[12, 9], is_cpu_op=True)),
        et.file(*shared, et.recv(12, 0, 1, deps=[3])),
    )


def test_damaged_traces(feed, pair):
    other = parse_trace(pair[1], "t.1.et", 1)
    for content in damaged(pair[0], 250, 1, 400):
        feed(lambda data: run_traces(parse_trace(data, "t.0.et", 0), other), content)
    assert feed.fed > 250
    assert feed.refused > feed.fed // 4


def test_damaged_traces_on_the_command_line(cli, traces, pair):
    cli.write("t.1.et", pair[1])
    path = traces.scenario(2)
    for content in damaged(pair[0], 20, 2, 20):
        cli.write("t.0.et", content)
        code = cli("trace", "lint", "t").code
        assert code in (0, 1)
        if len(content) % 2:
            continue
        ended = cli("run", path, "--quiet", "--jobs", 1, "--max-events", 1000, "--max-sim-time", "1 s")
        assert ended.code in (0, 3, 4), ended.err
        assert ended.code == 0 or ended.err
        assert "Traceback" not in ended.err + ended.out


def test_damaged_text_traces(feed, pair):
    other = parse_trace(pair[1], "t.1.et", 1)
    text = "".join(f"{line}\n" for line in to_lines(parse_trace(pair[0], "t.0.et", 0))).encode()
    for content in damaged(text, 500, 3):
        feed(lambda data: run_traces(parse_trace(bytes_of_lines(data, "t.jsonl"), "t.jsonl", 0), other), content)
    assert feed.refused > feed.fed // 2


def use_algorithm(algorithm: Algorithm) -> None:
    """Verify and run an algorithm, with little patience."""
    verify(algorithm)
    for rank in range(algorithm.ranks):
        algorithm.message_bytes(rank, 1000)


def test_damaged_npz_algorithms(feed, tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, build("ring", "all_reduce", 3))

    def use(data):
        path.write_bytes(data)
        use_algorithm(read_algorithm(path))

    for content in damaged(path.read_bytes(), 80, 4):
        feed(use, content)
    assert feed.refused > feed.fed // 2


def test_npz_algorithms_with_other_numbers(feed, tmp_path):
    """Well-formed archives whose columns say something else: damage rarely gets past the checksums."""
    import numpy as np

    path = tmp_path / "a.npz"
    write_npz(path, build("halving_doubling", "all_reduce", 4))
    with np.load(path) as archive:
        good = {name: archive[name] for name in archive.files}
    dice = random.Random(5)

    def use(arrays):
        np.savez(path, **arrays)
        use_algorithm(read_algorithm(path))

    for _ in range(60):
        arrays = dict(good)
        for _ in range(dice.choice([1, 1, 2])):
            name = dice.choice(sorted(arrays))
            array = arrays[name].astype(np.int64).copy()
            what = dice.randrange(5)
            if what == 0:
                del arrays[name]
                continue
            if what == 1 and array.ndim:
                array = array[: dice.randrange(len(array) + 1)]
            elif what == 2:
                array = array.astype(dice.choice([np.float64, np.uint64, np.int8]))
            elif array.ndim and len(array):
                array[dice.randrange(len(array))] = dice.choice([-1, 0, 1, 2, 7, 2**31, 2**62, -(2**63)])
            elif not array.ndim:
                array = np.int64(dice.choice([-1, 0, 1, 2, 5, 2**31, 2**62]))
            arrays[name] = array
        feed(use, arrays)
    assert feed.refused > 15


def test_damaged_sets_of_algorithm_files(feed, tmp_path, monkeypatch):
    from astrasim_py.chakra.et_io import encode_trace
    from astrasim_py.program.interchange import algorithm_from_traces, algorithm_traces

    files = [encode_trace(t) for t in algorithm_traces(build("ring", "all_reduce", 2), None)]
    others = [parse_trace(data, f"a.{rank}.et", rank) for rank, data in enumerate(files)]

    def use(data):
        use_algorithm(algorithm_from_traces([parse_trace(data, "a.0.et", 0), *others[1:]], "all_reduce"))

    for content in damaged(files[0], 200, 6):
        feed(use, content)
    assert feed.refused > feed.fed // 4


SCENARIO = b"""\
name: fuzz
title: "What \\u00e9ver"
topologies:
  ring: &r {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
  torus: {shape: torus, dims: [2, 2], bandwidth: 50 GB/s, latency: 1 us, failed: {links: [[0, 1]]}}
groups: {half: [0, 1]}
workload:
  - all_reduce: {size: $size, group: half, name: a}
  - compute: {time: 3 us, ranks: ["0-2"], after: a}
  - send: {from: 0, to: 3, size: 8 B, tag: 2}
algorithms:
  all_reduce: [{when: {size: "<= 4 KiB"}, builder: direct, window: 2}, {builder: ring}]
stragglers: {compute_speed: {1: 0.5}, start_delay: {"2-3": 1 us}}
network: {model: cut_through}
sweep: {topology: [ring, torus], size: [1 KiB, 8 KiB]}
plots: [{kind: time, x: size, series: topology}]
"""


@pytest.fixture
def load(tmp_path):
    """Load a scenario from bytes, and prepare a few of its points."""
    path = tmp_path / "s.yaml"

    def use(content: bytes | str) -> None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        for point in expand(load_scenario(path))[:2]:
            prepare(point)

    return use


def test_damaged_scenarios(feed, load):
    feed(load, SCENARIO)
    assert not feed.refused, "the whole file is right"
    for content in damaged(SCENARIO, 100, 7):
        feed(load, content)
    assert feed.refused > feed.fed // 2


WORDS = [
    "name:",
    "topologies:",
    "workload:",
    "sweep:",
    "shape:",
    "ring",
    "torus",
    "npus:",
    "dims:",
    "size:",
    "latency:",
    "bandwidth:",
    "-",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "?",
    "|",
    ">",
    "&",
    "*",
    "&a",
    "*a",
    "<<",
    "!!str",
    "!",
    "%",
    "@",
    "`",
    "#",
    "---",
    "...",
    "'",
    '"',
    "\\",
    "4",
    "-1",
    "1e9",
    "010",
    ".nan",
    "50",
    "GB/s",
    "500",
    "ns",
    "$x",
    "${",
    "$",
    "null",
    "~",
    "yes",
    "2001-01-01",
    "0x1f",
] + ["\n", "\n  ", "\n    ", " ", "\t", "\r\n", "\u2028", "\x85", "\ufeff", "\U0001f600", "\xa0"]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_random_words_of_yaml(load, words):
    Feed()(load, " ".join(words))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["50 GB/s", "500 ns", "1 KiB", "ring", "$size", "${size}", "linear", "0-3", "<= 1 KiB", "auto", "-1 B"]
    ),
)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=6), v, max_size=3))
BASE = yaml.safe_load(SCENARIO.replace(b"$size", b"1 KiB").replace(b", size: [1 KiB, 8 KiB]", b""))


def paths(value, prefix=()):
    """Every place in a document."""
    yield prefix
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*prefix, key))


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(list(paths(BASE))[1:]), VALUES), min_size=1, max_size=2), st.text(max_size=6))
def test_a_value_of_a_scenario_replaced_by_anything(load, changes, extra):
    document = json.loads(json.dumps(BASE))
    for path, value in changes:
        here = document
        try:
            for key in path[:-1]:
                here = here[key] if not isinstance(here, dict) or key in here else here[str(key)]
            here[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    if extra:
        document[extra] = extra
    Feed()(load, yaml.safe_dump(document, allow_unicode=True))


KINDS = ("ring", "torus", "fat_tree", "leaf_spine", "dragonfly", "dgx", "hypercube", "product")
KEYS = [
    "npus",
    "dims",
    "k",
    "nodes",
    "leaves",
    "spines",
    "bandwidth",
    "latency",
    "links",
    "failed",
    "routing",
    "hosts_per_leaf",
    "groups",
    "routers",
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_keys_of_a_topology(shape, keys):
    Feed()(lambda _: build_topology({"shape": shape, **keys}, "t", written=True), keys)


EDGES = {
    ".csv": "src,dst,bandwidth,latency,directions\n0,1,50 GB/s,500 ns,both\n1,s,1 GB/s,1 us,both\n",
    ".yaml": "edges:\n  - {src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns}\n"
    "  - {src: 1, dst: 0, bandwidth: 1 GB/s, latency: 1 ns}\n",
    ".json": '{"directed": true, "multigraph": false, "graph": {}, "nodes": [{"id": 0}, {"id": 1}], "links": ['
    '{"source": 0, "target": 1, "bandwidth": "1 GB/s", "latency": "1 us"}, '
    '{"source": 1, "target": 0, "bandwidth": "1 GB/s", "latency": "1 us"}]}',
    ".txt": "# npus 2\n0 1 50 GB/s 500 ns\n1 s 1 GB/s 1 us # switch\n0 s {'bandwidth': '1 B/s', 'latency': '1 s'}\n",
    ".graphml": '<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    '<key id="b" for="edge" attr.name="bandwidth"><default>1 GB/s</default></key><key id="l" for="edge" '
    'attr.name="latency"/><graph edgedefault="undirected"><node id="0"/><node id="1"/>'
    '<edge source="0" target="1"><data key="l">1 us</data></edge></graph></graphml>',
}


@pytest.mark.parametrize("suffix", EDGES)
def test_damaged_edge_lists(feed, tmp_path, suffix):
    content = EDGES[suffix].encode()
    path = tmp_path / f"n{suffix}"

    def use(data):
        path.write_bytes(data)
        build_topology({"shape": "edge_list", "file": str(path)}, "t", written=True)

    for data in damaged(content, 80, 8, 60):
        feed(use, data)
    assert feed.refused > feed.fed // 4


def test_damaged_group_files(feed, tmp_path):
    path = tmp_path / "g.json"

    def use(data):
        path.write_bytes(data)
        groups_from_json(path)

    for data in [
        *damaged(b'{"1": [0, 1, 2], "comm_a": [3, 4]}', 10**6, 9),
        b"[" * 100_000,
        b'{"1": [' + b"9" * 5000 + b"]}",
    ]:
        feed(use, data)
    assert feed.refused > feed.fed // 2


NONSENSE = [
    "ring:all_reduce:999999999",
    "direct:all_to_all:65536",
    "ring:all_reduce:4:a=1",
    "ring:all_reduce:0",
    ":::",
    "ring:all_reduce:²",
    "hierarchical:all_reduce:8:dims=2+-4",
    "ring:all_reduce:4:root=x",
    "halving_doubling:all_reduce:6",
]


@pytest.mark.parametrize("text", NONSENSE)
def test_builders_asked_for_nonsense(cli, text):
    ended = cli("convert", f"builder:{text}", "out")
    cli.refused(ended, ended.code if ended.code in (2, 3) else 3)
    assert not os.listdir(cli.folder)


def test_prefixes_that_are_nonsense(cli):
    for name in ("", ".", "..", "/", "\0", "a" * 5000, "a/" * 3000, "\udcff", "~", "-"):
        for argv in (["trace", "stats", name], ["trace", "lint", name], ["convert", name, "out"]):
            if name == "-":
                argv.insert(-1 if argv[0] == "convert" else len(argv) - 1, "--")
            ended = cli(*argv)
            assert ended.code in (1, 2, 3), (argv, ended)
            assert "defect" not in ended.err, (argv, ended.err)
    assert not os.listdir(cli.folder)
    with pytest.raises(AstraError):
        read_prefix("\0")
