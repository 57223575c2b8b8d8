"""Parts of sets, sets side by side, graphs, timelines and comparisons on the command line."""

from __future__ import annotations

import json

import networkx as nx
import numpy as np
import pytest

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.et_io import encode_trace, parse_trace, read_prefix, write_prefix
from astrasim_py.chakra.groups import groups_from_metadata
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.chakra.workload import Workload
from astrasim_py.cli.main import main
from astrasim_py.report import timeline
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
    assert run("slice", four, tmp_path / "layer", "--layers", "1") == 0
    assert [trace.names for trace in read_prefix(tmp_path / "layer")] == [("b", "pair", "world")] * 4
    assert run("slice", four, tmp_path / "names", "--names", "^(a|b)$") == 0
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
    said = {e["name"]: e["args"] for e in events if e["pid"] == 2 and e["cat"] == "communication"}
    assert said["pair"] == {"id": 4, "group": "2", "collective": "all_reduce", "comm_size": 1000}
    assert said["send"] == {"id": 6, "comm_size": 64, "comm_tag": 0, "comm_dst": 3}
    start, end = recorded_times(Workload((rank(2),)))[0]
    assert end.max() == 4_000_003 and start[3] == 2_500_002


def test_a_timeline_too_large_for_viewers_asks_for_ranks(four, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_BYTES", 1000)
    assert run("timeline", four, tmp_path / "t.json") == 2
    assert "name some with --ranks" in capsys.readouterr().err and not (tmp_path / "t.json").exists()
    assert run("timeline", four, tmp_path / "t.json", "--ranks", "3,1") == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 3}
    assert len([event for event in events if event["ph"] == "X"]) == 16


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["timeline", "{}", "{}x", "--ranks", "4"], "is not of 4 ranks"),
        (["slice", "{}", "{}x", "--ranks", "1-9"], "is not of 4 ranks"),
        (["slice", "{}", "{}x", "--ranks", "a"], "no list of numbers"),
        (["slice", "{}", "{}x", "--names", "("], "no regular expression"),
        (["slice", "{}", "{}x", "--names", "nothing"], "has no such nodes"),
        (["slice", "{}", "{}x", "--time", "5"], "is no span"),
        (["slice", "{}", "{}x", "--time", "5:5"], "is empty"),
        (["slice", "{}", "{}x", "--time", "2ms:1ms"], "is empty"),
        (["slice", "{}", "{}x", "--time", "1s:2s"], "nodes begin from 0 to 4 µs"),
        (["slice", "{}", "{}x", "--time", "1 parsec:2s"], "--time"),
        (["slice", "{}", "{}x", "--ranks", "3-0"], "runs backwards"),
        (["slice", "{}", "{}x", "--ranks", "0-9999999"], "too far"),
        (["slice", "{}", "{}x", "--ranks", "0-3,8"], "is not of 4 ranks"),
        (["slice", "{}", "{}x"], "nothing says which part"),
        (["slice", "{}", "{}", "--ranks", "0-3"], "is IN itself"),
        (["merge", "{}", "--from", "{}"], "is IN itself"),
        (["merge", "{}x", "--from", "{}", "--groups", "a", "b"], "2 files for 1 sets"),
        (["compare", "{}", "{}", "--groups", *"abc"], "3 files for 2 sets"),
        (["graph", "{}", "{}x.png"], "neither .dot nor .graphml"),
        (["graph", "{}", "{}x.dot", "--rank", "7"], "is not of 4 ranks"),
        (["compare", "{}", "{}", "--simulate", "none.csv"], "none.csv"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(four, capsys, options, said):
    assert run(*(option.format(four) for option in options)) != 0
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def foreign(number: int, groups: dict) -> ExecutionTrace:
    """The rank's nodes as another producer writes them: with attributes and fields of its own, and groups declared."""
    raw = parse_trace(encode_trace(rank(number))).raw
    made = [raw.data[: raw.metadata[1]]]
    for row in range(8):
        node = pb.Node.FromString(raw.node(row))
        node.inputs.values = f"[{row}]"
        node.attr.add(name="op_type", string_val="M")
        node.attr.add(name="dep_kinds", string_val="stream" if node.data_deps else "")
        made.append(node.SerializeToString() + b"\xfa\x3f\x02hi")  # and a field that no schema has
    declared = pb.Node(id=90, type=1)
    text = json.dumps([{"pg_name": name, "ranks": ranks} for name, ranks in groups.items()])
    declared.inputs.values = f"['{text}']"  # in a wrapping as of Chakra's converter
    made.append(declared.SerializeToString())
    return parse_trace(made[0] + b"".join(varint(len(body)) + body for body in made[1:]))


@pytest.fixture
def theirs(tmp_path):
    prefix = str(tmp_path / "theirs")
    write_prefix(prefix, [foreign(number, {"1": [0, 1], "2": [2, 3]}) for number in range(4)])
    return prefix


def test_what_has_no_column_stays_byte_for_byte(theirs, tmp_path, capsys):
    assert run("slice", theirs, tmp_path / "part", "--names", "^(a|b|world|send|recv)$") == 0
    old, new = read_prefix(theirs)[1], read_prefix(tmp_path / "part")[1]
    same = zip((0, 4, 5), (0, 6, 7), strict=True)  # nodes that wait for the same as before
    assert all(new.raw.node(row) == old.raw.node(before) for row, before in same)
    assert new.data_deps.lists() == [(), (0,), (2,), (3,), (5,), ()]
    assert [new.attribute(row, "dep_kinds") for row in range(5)] == ["", "through", "stream", "through", "stream"]
    for row, before in enumerate((0, 2, 3, 5, 6, 7)):
        assert new.raw.node(row).endswith(b"\xfa\x3f\x02hi")
        assert (new.attribute(row, "op_type"), new.node(row).inputs) == ("M", old.node(before).inputs)


def test_a_part_that_is_the_whole_is_the_same_bytes(theirs, tmp_path, capsys):
    assert run("slice", theirs, tmp_path / "part", "--ranks", "0-3", "--time", "0:1s") == 0
    for number in range(4):
        assert (tmp_path / f"part.{number}.et").read_bytes() == (tmp_path / f"theirs.{number}.et").read_bytes()


def test_groups_declared_in_the_traces_follow_ranks(theirs, tmp_path, capsys):
    assert run("slice", theirs, tmp_path / "part", "--ranks", "1-3") == 0
    assert [*groups_from_metadata(read_prefix(tmp_path / "part")[0]).values()] == [(1, 2)]
    assert run("merge", tmp_path / "both", "--from", theirs, theirs) == 0
    declared = groups_from_metadata(read_prefix(tmp_path / "both")[7])
    assert {name: [*own] for name, own in declared.items()} == json.loads((tmp_path / "both.groups.json").read_text())
    assert run("lint", tmp_path / "both") == 0
    assert read_prefix(tmp_path / "both")[5].attribute(0, "op_type") == "M"


def rooted(number: int, kind: int, root: int) -> ExecutionTrace:
    return ExecutionTrace.from_columns(
        node_id=[0], type=7, names=["call"], comm_type=kind, comm_size=400, coll_size=1600 if kind == 2 else 400,
        comm_root=root,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "root", "left"),
    [(5, 2, (1, 400, 400)), (5, 0, None), (2, 0, (0, 400, 800)), (3, 3, (0, 200, 200)), (0, 0, (0, 400, 400))],
)
def test_calls_by_fewer_ranks_keep_their_root_and_shares(kind, root, left, tmp_path, capsys):
    write_prefix(tmp_path / "in", [rooted(number, kind, root) for number in range(4)])
    code = run("slice", tmp_path / "in", tmp_path / "out", "--ranks", "3,2", "--format", "json")
    said = capsys.readouterr()
    assert (code == 0) == (left is not None)
    if left is None:
        assert "has no such nodes; calls and messages left out that need ranks that are gone: 2" in said.err
        return
    traces = read_prefix(tmp_path / "out")
    names = ("comm_root", "comm_size", "coll_size")
    assert [tuple(int(trace.column(name)[0]) for name in names) for trace in traces] == [left] * 2
    assert json.loads(said.out)["smaller"] == 2


def test_calls_and_messages_are_whole_or_gone(four, tmp_path, capsys):
    # The ranks begin their calls 1 ps apart, only rank 0 before 2.500001 us; all receive at once, none sends.
    assert run("slice", four, tmp_path / "part", "--time", "0:2500001 ps", "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(said.pop("files")) == sorted(map(str, tmp_path.glob("part.*")))
    assert said == {
        "ranks": 4, "nodes": 32, "kept": 5, "outside": 0, "incomplete": 6, "smaller": 0,
    }  # fmt: skip
    assert run("slice", four, tmp_path / "sends", "--names", "send") == 2
    assert "has no such nodes" in capsys.readouterr().err
    assert run("slice", four, tmp_path / "both", "--names", "send|recv") == 0
    assert run("lint", tmp_path / "both") == 0


def test_sets_in_sequence_take_their_times_together(four, theirs, tmp_path, capsys):
    assert run("merge", tmp_path / "all", "--from", four, theirs, four, "--in-sequence") == 0
    assert run("lint", tmp_path / "all") == 0
    traces = read_prefix(tmp_path / "all")
    assert [trace.names.count("join") for trace in traces] == [2] * 4
    assert traces[0].data_deps.lists()[8:10] == [(6, 7), (8,)]
    capsys.readouterr()
    network = "switch:4,bandwidth=1 GB/s,latency=1us"
    assert run("compare", four, tmp_path / "all", "--simulate", network, "--format", "json") == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row["second_us"] == pytest.approx(3 * row["first_us"], rel=1e-12)


def test_old_groups_do_not_stay_beside_a_new_set(four, tmp_path, capsys):
    for ranks in ("0-1", "0,3"):
        assert run("slice", four, tmp_path / "out", "--ranks", ranks, "--names", "^(a|pair)$") == 0
    assert json.loads((tmp_path / "out.groups.json").read_text()) == {}


def test_edges_of_control_are_told_from_those_of_data(tmp_path, capsys):
    trace = ExecutionTrace.from_columns(
        node_id=np.arange(3), type=4, names=['é "x"\\N', "b", "c"], data_deps=([0, 0, 1, 1], [0]),
        ctrl_deps=([0, 0, 1, 2], [0, 1]),
    )  # fmt: skip
    write_prefix(tmp_path / "in", [trace])
    assert run("graph", tmp_path / "in", tmp_path / "g.dot") == 0
    text = (tmp_path / "g.dot").read_text()
    assert '0 [label="é \\"x\\"\\\\N"];' in text and "  0 -> 1;\n  1 -> 2 [style=dashed];" in text
    assert run("graph", tmp_path / "in", tmp_path / "g.graphml") == 0
    assert nx.get_edge_attributes(nx.read_graphml(tmp_path / "g.graphml"), "kind") == {
        ("0", "1"): "data", ("1", "2"): "control",
    }  # fmt: skip


def test_producers_start_times_are_drawn_on_one_clock(tmp_path, capsys):
    traces = [
        ExecutionTrace.from_columns(
            node_id=[0, 1], type=4, start_time_micros=[0, 1_700_000_000_000_000 + r], duration_micros=[0, 1000]
        )
        for r in (0, 70)
    ]
    write_prefix(tmp_path / "in", traces)
    assert run("timeline", tmp_path / "in", tmp_path / "t.json") == 0
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in events if e["dur"]] == [(0, 1000), (70, 1000)]


def test_compared_sets_have_groups_of_their_own(four, tmp_path, capsys):
    write_prefix(tmp_path / "other", [*map(rank, range(4))])
    (tmp_path / "crossed.json").write_text('{"1": [0, 1], "2": [2, 3], "3": [0, 2]}')
    files = [f"{four}.groups.json", tmp_path / "crossed.json"]
    assert run("compare", four, tmp_path / "other", "--groups", *files, "--format", "json") == 0
    assert all(row["difference"] == 0 for row in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("name", ["start_time_micros", "duration_micros", "duration_ps"])
def test_times_beyond_bounds_are_refused_in_one_line(name, tmp_path, capsys):
    given = {name: [-5, 6]} if name == "duration_ps" else {name: np.array([2**63, 2**64 - 1], dtype=np.uint64)}
    write_prefix(tmp_path / "in", [ExecutionTrace.from_columns(node_id=[0, 1], type=4, **given)])
    assert run("timeline", tmp_path / "in", tmp_path / "t.json") == 3
    assert run("slice", tmp_path / "in", tmp_path / "out", "--time", "0:1s") == 3
    merged = run("merge", tmp_path / "out", "--from", tmp_path / "in", tmp_path / "in", "--in-sequence")
    assert merged == (3 if name == "start_time_micros" else 0)
    error = capsys.readouterr().err
    assert error.count("106 days") == 2 and error.count("\n") == (3 if merged else 2)
