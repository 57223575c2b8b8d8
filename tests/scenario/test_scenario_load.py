"""What is wrong with a scenario is told at once: file, line, column, path, why, and what to write instead."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.errors import AstraError, ErrorList
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

GOOD = """\
name: demo
topologies:
  ring: {shape: ring, npus: 8, bandwidth: 50 GB/s, latency: 500 ns}
  torus: {shape: torus, dims: [4, 2], bandwidth: 50 GB/s, latency: 500 ns, placement: snake}
groups:
  dp: {size: 2, stride: 4}
  first: [0, 1, "2-3"]
workload:
  - all_reduce: {size: $size, name: grads}
  - all_gather: {size: $size, group: dp, after: grads}
  - compute: {time: 3 us, ranks: [0, "2-3"]}
  - send: {from: 0, to: 7, size: 1 MiB}
  - barrier: {group: first}
algorithms:
  all_reduce:
    - {when: {size: "<= 256 KiB"}, builder: direct}
    - {builder: ring}
stragglers: {compute_speed: {0: 0.5, "1-2": 2}, start_delay: {3: 5 us}}
network: {model: $model}
sweep:
  topology: [ring, torus]
  size: [64 KiB, 1 MiB]
  model: [cut_through, store_and_forward]
plots:
  - {kind: slowdown, x: size, series: topology, facet: model, baseline: ring}
"""


def load(tmp_path, text, overrides=(), **options):
    path = tmp_path / "s.yaml"
    path.write_text(text, "utf-8")
    try:
        return load_scenario(path, overrides, **options)
    except AstraError as error:
        raise type(error)(*error.args) from None  # every error is rebuilt from its args


def errors(tmp_path, text, overrides=(), **options):
    """Lines of errors, without the folder."""
    with pytest.raises(AstraError) as caught:
        load(tmp_path, text, overrides, **options)
    assert caught.value.exit_code == 2
    return [line.replace(f"{tmp_path}{os.sep}", "") for line in caught.value.lines()]


def changed(old, new, text=GOOD):
    assert text.count(old) >= 1
    return text.replace(old, new, 1)


def test_a_good_scenario_loads(tmp_path):
    scenario = load(tmp_path, GOOD)
    assert (scenario.name, scenario.points, scenario.record, scenario.engine) == ("demo", 8, "links", "auto")


BAD = Path(__file__).resolve().parents[1] / "bad" / "scenarios.txt"


def cases():
    """(what is replaced, by what, the line told) of every block of the file."""
    for block in BAD.read_text("utf-8").split("\n\n")[1:]:
        old, new, line = (row[2:] for row in block.strip("\n").split("\n"))
        yield old.replace("\\n", "\n"), new.replace("\\n", "\n").replace("\\\n", "\\n"), line


@pytest.mark.parametrize(("old", "new", "expected"), list(cases()))
def test_what_is_wrong_is_told_with_its_place(tmp_path, old, new, expected):
    lines = errors(tmp_path, changed(old, new))
    assert expected in lines
    assert all(line.startswith("s.yaml:") for line in lines)


def test_all_errors_are_told_at_once(tmp_path):
    text = GOOD
    for old, new in (
        ("npus: 8", "npus: 0"),
        ("time: 3 us", "time: 3"),
        ("kind: slowdown", "kind: x"),
        ("name: demo", "nam: demo"),
    ):
        text = changed(old, new, text)
    lines = errors(tmp_path, text)
    for place in ("s.yaml:1:1: nam", "s.yaml:3:29: ", "s.yaml:11:21: ", "s.yaml:25:12: "):
        assert any(line.startswith(place) for line in lines), lines


def test_the_same_mistake_is_told_once_for_all_points(tmp_path):
    assert len(errors(tmp_path, changed("to: 7", "to: 9"))) == 1


def test_a_sweep_of_too_many_points_is_refused_with_the_count(tmp_path):
    numbers = ", ".join(str(i) for i in range(1000))
    sweep = "".join(f"  {k}: [{numbers}]\n" for k in "abc")
    text = changed("sweep:\n", f"sweep:\n{sweep}")
    lines = errors(tmp_path, text)
    assert any("8,000,000,000 points are more than the cap of 10,000" in line for line in lines)


@pytest.mark.parametrize("old, new", [("topologies:", "topolgies:"), ("workload:", "wrokload:")])
def test_a_misspelled_key_is_not_told_to_be_missing_too(tmp_path, old, new):
    lines = errors(tmp_path, changed(f"\n{old}", f"\n{new}"))
    assert any(f'did you mean "{old[:-1]}"?' in line for line in lines)
    assert not any("is missing" in line for line in lines), lines


@pytest.mark.parametrize(
    "workload, said",
    [
        ("{all_reduce: {size: 1 MiB}}", "e.g. - all_reduce: {size: 64 MiB}"),
        ("{compute: {time: 1 ms}, all_reduce: {size: 1 MiB}}", "e.g. - compute: {time: 100 us}"),
        ("{allreduce: {size: 1 MiB}}", "e.g. - all_reduce: {size: 64 MiB}"),
        ("{trce: w}", 'did you mean "trace"?'),
        ("{}", '"trace" is missing'),
    ],
)
def test_items_without_dashes_are_told_to_be_a_list(tmp_path, workload, said):
    first, *others = errors(tmp_path, INLINE.replace("[{all_reduce: {size: 1 MiB}}]", workload).partition("sweep")[0])
    assert any(said in line for line in (first, *others))
    assert ("a mapping, where items are a list; begin each item with -" in first) == said.startswith("e.g.")


INLINE = """\
topology: {shape: fat_tree, k: 4, bandwidth: 50 GB/s, latency: 500 ns}
workload: [{all_reduce: {size: 1 MiB}}]
sweep: {KEY: VALUES}
"""


@pytest.mark.parametrize(
    "key", ["topology.bandwidth", "topologies.topology.bandwidth", "topology.fabric_bandwidth", "topology.links"]
)
def test_any_key_of_a_topology_can_be_swept(tmp_path, key):
    values = (
        "{none: [], slow: [{from: 0, to: edge0, bandwidth: 1 GB/s}]}" if key.endswith("links") else "[1 GB/s, 2 GB/s]"
    )
    scenario = load(tmp_path, INLINE.replace("KEY", key).replace("VALUES", values))
    first, second = (point.spec.topology for point in expand(scenario))
    name = key.rpartition(".")[2]
    assert scenario.points == 2 and getattr(first, name) != getattr(second, name)


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("topology.bandwith", "[1 GB/s, 2 GB/s]", 'topology.bandwith: is not a key here; did you mean "bandwidth"?'),
        ("topologies.foo.k", "[2, 4]", 'sweep.topologies.foo.k: "foo" is not in topologies; write one of topology'),
        ("topologies.bandwidth", "[1 GB/s]", 'sweep.topologies.bandwidth: "bandwidth" is not in topologies; write one'),
        ("topology.bandwidth.x", "[1, 2, 3]", "sweep.topology.bandwidth.x: topologies.topology.bandwidth has no keys"),
        ("topology.", "[1, 2]", 'topology.: topology. leads nowhere: there is no key "topology."; did you mean'),
        ("network.modle", "[fluid, analytical]", 'network.modle: is not a key here; did you mean "model"?'),
        ("netwrk.model", "[fluid, analytical]", 'leads nowhere: there is no key "netwrk"; did you mean "network"?'),
        ("algorithms.allreduce", "[ring, direct]", 'algorithms.allreduce: is not a collective; did you mean "all_re'),
        ("name.x", "[1, 2]", "name.x: name is of the whole study; sweep keys of a point"),
        (
            "bandwidth",
            "[1 GB/s, 2 GB/s]",
            "is swept and never used; write $bandwidth where it belongs, sweep topology.ba",
        ),
        (
            '"workload[3].all_reduce.size"',
            "[1 KiB, 2 KiB]",
            "workload is a list of 1; write workload[0] to workload[0]",
        ),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_wrong_path_of_a_sweep_is_told_once_at_the_path(tmp_path, key, values, expected, zipped):
    text = INLINE.replace("KEY: VALUES", f"zip: [{{{key}: {values}}}]" if zipped else f"{key}: {values}")
    (line,) = errors(tmp_path, text)
    assert line.startswith(f"s.yaml:3:{16 if zipped else 9}: ") and expected in line


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "sub/../../x", "link/x"])
@pytest.mark.parametrize(
    "where",
    [
        "algorithms: {all_reduce: {file: NAME}}\nworkload: [{all_reduce: {size: 1 MiB}}]",
        "workload: {trace: NAME}",
        "workload: {trace: here, groups: NAME}",
    ],
)
def test_files_outside_the_scenario_s_folder_are_refused(tmp_path, name, where):
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    head = "name: x\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 0 ns}}\n"
    text = head + where.replace("NAME", name)
    lines = errors(folder, text)
    assert any(f'"{name}" leads out of the folder of the scenario' in line for line in lines), lines
    assert load(folder, text, allow_outside=True).points == 1


def test_python_code_is_refused_unless_allowed(tmp_path):
    text = changed("- {builder: ring}", "- {python: mine.py:tree}")
    assert any("--allow-code" in line for line in errors(tmp_path, text))
    assert load(tmp_path, text, allow_code=True).points == 8


# -- --set ------------------------------------------------------------------------------------------------------


def test_set_overrides_any_key(tmp_path):
    from astrasim_py.scenario.expand import expand

    scenario = load(
        tmp_path,
        GOOD,
        ["topologies.ring.npus=16", "sweep.topology=ring", "workload[4].barrier={}", "network.link_busy=latency+bytes"],
    )
    points = expand(scenario)
    assert len(points) == 4
    assert points[0].spec.topology.npus == 16
    assert points[0].spec.network.link_busy == "latency+bytes"
    assert points[0].spec.workload[4].barrier.group is None


SET_CASES = [
    ("topologies.rng.npus=16", '"rng" is not in topologies; did you mean "ring"?'),
    ("netwrk.model=x", 'did you mean "network"?'),
    ("topologies.ring.npsu=3", 'topologies.ring.npsu: is not a key here; did you mean "npus"?'),
    ("workload[9].barrier={}", "workload is a list of 5"),
    ("name.x.y=3", "name"),
    ("novalue", "is not KEY=VALUE"),
    ("=3", "is not KEY=VALUE"),
    ("topologies.ring.npus=[", "--set topologies.ring.npus"),
    ("topologies.ring.npus=0", "--set: topologies.ring.npus: 0 is less than 1"),
    ("name=../x", '--set: name: "../x" is not a name'),
    ("topology=ring", '--set topology: is swept, with values of its own; write "sweep.topology=[…]"'),
]


@pytest.mark.parametrize(("text", "expected"), SET_CASES)
def test_a_wrong_set_says_what_is_meant(tmp_path, text, expected):
    lines = errors(tmp_path, GOOD, [text])
    assert any(expected in line for line in lines), lines


def test_error_lists_survive_pickling(tmp_path):
    import pickle

    with pytest.raises(ErrorList) as caught:
        load(tmp_path, changed("npus: 8", "npus: 0"))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


PIECES = re.split(r"([\w./$]+|[^\w\s])", GOOD)
TOKENS = [
    *("", "ring", "[", "]", "{", "}", "0", "-1", "1e9", "$size", "$model", "null", "true", "[1, 2]", "{a: 1}", "''"),
    *(": ", ", ", "\n", "  ", "1 MiB", "3 us", "50 GB/s", "zip", "snake", "jobs", "$$", "'0-3'", "&a ", "*a", "<<"),
]


@given(st.lists(st.tuples(st.integers(0, len(PIECES) - 1), st.sampled_from(TOKENS)), min_size=1, max_size=3))
def test_any_mistake_is_an_error_of_the_user(tmp_path_factory, changes):
    pieces = list(PIECES)
    for place, token in changes:
        pieces[place] = token
    path = tmp_path_factory.getbasetemp() / "mistake.yaml"
    path.write_text("".join(pieces), "utf-8")
    try:
        load_scenario(path)
    except AstraError as error:
        assert error.exit_code == 2
        assert all(line.startswith(str(path)) for line in error.lines())
