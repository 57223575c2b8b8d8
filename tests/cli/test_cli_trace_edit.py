"""Parts of sets, sets side by side, graphs, timelines and comparisons on the command line."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest

from astrasim_py.chakra.et_io import read_prefix, write_prefix
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main
from astrasim_py.workload.edit import keep_nodes, recorded_times


def rank(number: int) -> ExecutionTrace:
    """Two layers, each computing and reducing in a pair and in the world, and a message to the next rank at the end."""
    names = ["a", "pair", "world", "b", "pair", "world", "send", "recv"]
    return ExecutionTrace.from_columns(
        node_id=np.arange(8),
        type=[4, 7, 7, 4, 7, 7, 5, 6],
        names=names,
        layer=[0, 0, 0, 1, 1, 1, 2, 2],
        pg_name=[{"pair": str(1 + number // 2)}.get(name) for name in names],
        comm_type=[-(2**63), 0, 0, -(2**63), 0, 0, -(2**63), -(2**63)],
        comm_size=[-(2**63), 1000, 1000, -(2**63), 1000, 1000, 64, 64],
        comm_dst=[-(2**63)] * 6 + [(number + 1) % 4, -(2**63)],
        comm_src=[-(2**63)] * 7 + [(number - 1) % 4],
        comm_tag=[-(2**63)] * 6 + [0, 0],
        duration_ps=[2_500_000 + number, *[-(2**63)] * 2, 1_500_001, *[-(2**63)] * 4],
        data_deps=([0, 0, 1, 2, 3, 4, 5, 6, 6], np.arange(6)),
    )


@pytest.fixture
def four(tmp_path):
    prefix = str(tmp_path / "four")
    write_prefix(prefix, [*map(rank, range(4))])
    (tmp_path / "four.groups.json").write_text('{"1": [0, 1], "2": [2, 3]}')
    return prefix


def run(*options) -> int:
    return main(["trace", *map(str, options)])


def test_ranks_are_cut_out_with_their_groups(four, tmp_path, capsys):
    assert run("slice", four, tmp_path / "two", "--ranks", "2-3") == 0
    assert json.loads((tmp_path / "two.groups.json").read_text()) == {"2": [0, 1]}
    made = read_prefix(tmp_path / "two")
    assert [trace.type.tolist() for trace in made] == [[4, 7, 7, 4, 7, 7, 5], [4, 7, 7, 4, 7, 7, 6]]
    assert (made[0].column("comm_dst")[-1], made[1].column("comm_src")[-1]) == (1, 0)
    assert run("lint", tmp_path / "two") == 0


def test_layers_names_and_times_are_taken_with_what_they_wait_for(four, tmp_path, capsys):
    assert run("filter", four, tmp_path / "layer", "--layers", "1") == 0
    assert [trace.names for trace in read_prefix(tmp_path / "layer")] == [("b", "pair", "world")] * 4
    assert run("filter", four, tmp_path / "names", "--names", "^(a|b)$") == 0
    assert read_prefix(tmp_path / "names")[0].data_deps.lists() == [(), (0,)]
    assert run("slice", four, tmp_path / "time", "--time", "2:3") == 0
    assert read_prefix(tmp_path / "time")[0].names == ("pair", "world", "b")
    assert run("lint", tmp_path / "layer", "--groups", f"{four}.groups.json") == 0


def test_dropped_nodes_keep_the_order_of_the_others():
    rng = np.random.default_rng(1)
    parents = [sorted(set(rng.integers(row, size=min(row, 2)).tolist())) if row else [] for row in range(40)]
    ptr, ids = np.cumsum([0, *map(len, parents)]), np.array([each for own in parents for each in own])
    trace = ExecutionTrace.from_columns(node_id=np.arange(40), type=4, data_deps=(ptr, ids))
    keep = rng.random(40) < 0.5
    before = nx.transitive_closure(nx.DiGraph([(p, row) for row, own in enumerate(parents) for p in own]))
    made = keep_nodes(trace, keep)
    edges = [(p, int(made.node_id[row])) for row, own in enumerate(made.data_deps.lists()) for p in own]
    after = nx.transitive_closure(nx.DiGraph(edges))
    assert set(after.edges) == {(a, b) for a, b in before.edges if keep[a] and keep[b]}


def test_sets_side_by_side_lint_clean_and_run_as_alone(four, tmp_path, capsys):
    assert run("merge", tmp_path / "both", "--from", four, four) == 0
    assert run("lint", tmp_path / "both") == 0
    groups = json.loads((tmp_path / "both.groups.json").read_text())
    assert sorted(groups.values()) == [[0, 1], [0, 1, 2, 3], [2, 3], [4, 5], [4, 5, 6, 7], [6, 7]]
    assert run("slice", tmp_path / "both", tmp_path / "again", "--ranks", "4-7") == 0
    capsys.readouterr()
    assert run("compare", four, tmp_path / "again", "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 6 and all(row["difference"] == 0 and row["first_us"] > 4 for row in rows)


def test_graphs_are_read_back_by_networkx(four, tmp_path, capsys):
    assert run("graph", four, tmp_path / "g.graphml", "--rank", "3") == 0
    graph = nx.read_graphml(tmp_path / "g.graphml")
    assert (len(graph), graph.number_of_edges(), graph.nodes["3"]["label"]) == (8, 6, "b")
    assert run("graph", four, tmp_path / "g.dot") == 0
    text = (tmp_path / "g.dot").read_text()
    assert text.count("->") == 6 and '3 [label="b"];' in text


def test_timelines_are_in_microseconds(four, tmp_path, capsys):
    assert run("timeline", four, tmp_path / "t.json") == 0
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 32
    second = next(e for e in events if e["pid"] == 2 and e["name"] == "b")
    assert (second["ts"], second["dur"]) == (2.500002, 1.500001)
    start, end = recorded_times(rank(2))
    assert end.max() == 4_000_003 and start[3] == 2_500_002


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["slice", "{}", "{}x", "--ranks", "1-9"], "is not of 4 ranks"),
        (["slice", "{}", "{}x", "--ranks", "a"], "no list of numbers"),
        (["filter", "{}", "{}x", "--names", "("], "no regular expression"),
        (["filter", "{}", "{}x", "--names", "nothing"], "has no such nodes"),
        (["slice", "{}", "{}x", "--time", "5"], "is no span"),
        (["graph", "{}", "{}x.png"], "neither .dot nor .graphml"),
        (["graph", "{}", "{}x.dot", "--rank", "7"], "is not of 4 ranks"),
        (["compare", "{}", "{}", "--simulate", "none.csv"], "none.csv"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(four, capsys, options, said):
    assert run(*(option.format(four) for option in options)) != 0
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
