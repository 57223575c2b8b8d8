"""What trace files say and a run does not use is told by the run, by `check`, and in Python; and what orders a set."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import astrasim_py as ap
from astrasim_py.chakra import attributes
from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.et_io import encode_trace, parse_trace, write_prefix
from astrasim_py.chakra.groups import OTHER_NAMES
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.text_io import read_jsonl, to_lines
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.cli.main import main
from astrasim_py.core.errors import EXIT_CHECK_FAILED, TraceError
from astrasim_py.system.semantics import Semantics
from astrasim_py.workload.iterations import iterate

TEXT = """
name: notes
topologies: {pair: {shape: ring, npus: 2, bandwidth: 50 GB/s, latency: 500 ns}}
workload: {trace: run}
algorithms: {all_reduce: ring}
"""
#: 1 ms, an all_reduce of 50 MB in a ring of two, 1 ms: 2 x (500 ns + 25 MB / 50 GB/s) for the call.
ORDERED = 3_001_000_000
MISSING = -(2**63)


def set_of(folder, data=(), ctrl=(), ranks=2, gzip=False):
    """Compute, an all_reduce, compute: 1 ms each, 50 MB; `data`, `ctrl`: pairs (child, parent)."""
    kinds = {"type": [4, 7, 4], "duration_micros": [1000, 0, 1000], "comm_type": [MISSING, 0, MISSING]}
    trace = ExecutionTrace.from_columns(
        node_id=[0, 1, 2], comm_size=[MISSING, 50_000_000, MISSING], data_deps=csr(data), ctrl_deps=csr(ctrl), **kinds
    )
    write_prefix(folder / "run", [trace] * ranks, gzip=gzip)
    path = folder / "notes.yaml"
    path.write_text(TEXT)
    return path


def csr(edges) -> Csr:
    of = [[parent for child, parent in edges if child == node] for node in range(3)]
    return Csr([0, len(of[0]), len(of[0] + of[1]), len(edges)], [parent for own in of for parent in own])


CHAIN = [(1, 0), (2, 1)]


def run(path, folder, *overrides, **options):
    return ap.run(path, out=folder, overrides=overrides, jobs=1, **options)


def spans(result) -> list[int]:
    return [summary["makespan_ps"] for summary in result.summaries]


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_control_dependencies_order_a_set_that_has_no_others(tmp_path, capsys, gzip, engine):
    path = set_of(tmp_path, ctrl=CHAIN, gzip=gzip)
    assert spans(run(path, tmp_path / "out", engine=engine)) == [ORDERED]
    # It is said, and is nothing wrong.
    options = ["--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(["run", str(path), "--strict", *options]) == 0
    hint = f"hint: {tmp_path}/run: no node has data dependencies: control dependencies order them"
    assert hint in capsys.readouterr().out
    assert main(["check", str(path), "--strict"]) == 0
    assert "no node has data dependencies: control dependencies order them" in capsys.readouterr().out
    # Once, however many points read the set.
    sweep = "sweep={network.model: [cut_through, store_and_forward, fluid]}"
    assert main(["run", str(path), *options, "--set", sweep]) == 0
    out = capsys.readouterr().out
    assert out.count("hint: ") == 1 and f"{hint} (and 2 more points)" in out
    # Who says what holds gets it, without a word.
    for kind, span in (("data+ctrl", ORDERED), ("data", 2_000_000_000)):
        said = run(path, tmp_path / kind, f"workload.dependencies={kind}", engine=engine)
        assert spans(said) == [span] and not said.warnings and "hints" not in said.summaries[0]
        said = run(path, tmp_path / kind, f"semantics={{dependencies: {kind}}}", engine=engine)
        assert spans(said) == [span] and not said.warnings and "hints" not in said.summaries[0]


def test_all_that_reads_such_a_set_takes_the_same_order(tmp_path, capsys):
    path = set_of(tmp_path, ctrl=CHAIN)
    assert spans(run(path, tmp_path / "out", "workload={trace: run, skeleton: true}")) == [ORDERED]
    thrice = path.with_name("thrice.yaml")
    thrice.write_text(TEXT.replace("workload: {trace: run}", "jobs: {a: {workload: {trace: run}, iterations: 3}}"))
    assert spans(run(thrice, tmp_path / "thrice")) == [3 * ORDERED]
    # In place of the collective its steps; one rank of the set; as a skeleton; as text and back.
    for verb in (
        ["convert", "--inline", str(path), str(tmp_path / "inlined")],
        ["trace", "skeleton", str(tmp_path / "run"), str(tmp_path / "bones")],
        ["trace", "slice", str(tmp_path / "run"), str(tmp_path / "sliced"), "--ranks", "0-1"],
        ["trace", "merge", str(tmp_path / "merged"), "--from", str(tmp_path / "run")],
    ):
        assert main(verb) == 0, capsys.readouterr().err
        prefix = next(word for word in verb if word.rpartition("/")[2] in ("inlined", "bones", "sliced", "merged"))
        name = prefix.rpartition("/")[2]
        groups = f", groups: {name}.groups.json" if (tmp_path / f"{name}.groups.json").exists() else ""
        result = run(path, tmp_path / "out", f"workload={{trace: {name}{groups}}}")
        assert not result.failures, (name, result.failures)
        assert spans(result) == [ORDERED], name
    (trace, _) = ap.read_workload(tmp_path / "run", dependencies="data").traces
    (tmp_path / "run.jsonl").write_text("\n".join(to_lines(trace)) + "\n")
    assert read_jsonl(tmp_path / "run.jsonl").ctrl_deps.lists() == [(), (0,), (1,)]
    capsys.readouterr()
    assert main(["trace", "stats", str(tmp_path / "run")]) == 0
    assert "depth           3 nodes" in capsys.readouterr().out
    assert main(["trace", "lint", str(tmp_path / "run")]) == 0
    assert "[ctrl-only]" in capsys.readouterr().out


def test_in_python_a_set_has_the_order_that_it_has_in_a_run(tmp_path):
    set_of(tmp_path, ctrl=CHAIN)
    topology = ap.build_topology(shape="ring", npus=2, bandwidth="50 GB/s", latency="500 ns")

    def span(workload):
        return ap.simulate(ap.problem(workload, topology, algorithm="ring")).makespan

    with pytest.warns(UserWarning, match="run: no node has data dependencies") as said:
        workload = ap.read_workload(tmp_path / "run")
    assert said[0].filename == __file__
    assert span(workload) == ORDERED
    # One that nobody read.
    built = replace(workload, traces=ap.read_workload(tmp_path / "run", dependencies="data").traces)
    with pytest.warns(UserWarning, match="no node has data dependencies"):
        problem = ap.problem(built, topology, algorithm="ring")
    for engine in ("simpy", "compiled"):
        assert ap.simulate(problem, engine=engine).makespan == ORDERED
        unordered = replace(problem, semantics=Semantics.native(dependencies="data"))
        assert ap.simulate(unordered, engine=engine).makespan == 2_000_000_000
    assert ap.simulate(ap.problem(iterate(built, 2), topology, algorithm="ring")).makespan == 2 * ORDERED
    mixed = ExecutionTrace.from_columns(node_id=range(3), type=4, data_deps=csr(CHAIN[:1]), ctrl_deps=csr(CHAIN))
    with pytest.warns(UserWarning, match=r"the workload: 2 control dependencies order.*\(node 2 after node 1\)"):
        ap.problem(ap.Workload((mixed,) * 2), topology)
    set_of(tmp_path, data=CHAIN[:1], ctrl=CHAIN)
    with pytest.warns(UserWarning, match=r"2 control dependencies order.*write dependencies: data.ctrl"):
        workload = ap.read_workload(tmp_path / "run")
    assert span(workload) == 2_001_000_000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert span(ap.read_workload(tmp_path / "run", dependencies="data+ctrl")) == ORDERED
        assert span(ap.read_workload(tmp_path / "run", dependencies="data")) == 2_001_000_000
    with pytest.raises(TraceError, match=r'dependencies "ctrl" is unknown; write "data" or "data.ctrl"'):
        ap.read_workload(tmp_path / "run", dependencies="ctrl")


@pytest.mark.parametrize(
    ("data", "ctrl", "said"),
    [
        (CHAIN, [], None),
        (CHAIN, [*CHAIN, (2, 0)], None),
        (CHAIN[:1], CHAIN, "2 control dependencies order nodes that data dependencies leave free, and are not used"),
        (CHAIN, [(0, 2)], "with data dependencies they are a cycle; write dependencies: data"),
        (CHAIN[:1], [(2, 1), (2, 77)], "1 more names no node; write dependencies: data"),
    ],
)
def test_control_dependencies_that_would_order_and_are_not_used_are_told(tmp_path, capsys, data, ctrl, said):
    path = set_of(tmp_path, data, ctrl)
    result = run(path, tmp_path / "out")
    assert len(result.warnings) == (said is not None) and all(said in text for text in result.warnings)
    options = ["--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(["run", str(path), "--strict", *options]) == (EXIT_CHECK_FAILED if said else 0)
    assert main(["run", str(path), "--strict", *options, "--set", "workload.dependencies=data"]) == 0


def with_attributes(folder, name, ranks=4, **attributes):
    """A set of one all_reduce, on each rank with the attributes of `attributes` (name -> value of a rank)."""
    node = pb.Node(id=7, type=7)
    for rank in range(ranks):
        node = pb.Node(id=7, type=7)
        node.attr.add(name="comm_type", int64_val=0)
        node.attr.add(name="comm_size", int64_val=50_000_000)
        for key, of in attributes.items():
            kind, value = of(rank)
            if kind.endswith("_list"):
                getattr(node.attr.add(name=key), kind).values.extend(value)
            else:
                node.attr.add(name=key, **{kind: value})
        trace = parse_trace(framed(node))
        (folder / f"{name}.{rank}.et").write_bytes(encode_trace(trace))


def framed(node) -> bytes:
    """A file of one node."""
    body = node.SerializeToString()
    assert len(body) < 128
    return b"\0" + bytes([len(body)]) + body


def by(kind, low, high):
    """The value of a rank: `low` of ranks 0 and 1, `high` of 2 and 3."""
    return lambda rank: (kind, low if rank < 2 else high)


GROUPS = """
name: groups
topologies: {sw: {shape: switch, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}
workload: {trace: run, groups: g.json}
algorithms: {all_reduce: ring}
"""
PAIRS = {"1": [0, 1], "2": [2, 3]}
NAMED = {"pg_name": by("string_val", "1", "2")}
#: 2 x (1 us + 25 MB / 50 GB/s) among two ranks.
OF_TWO = 1_002_000_000


def groups_of(folder, groups, **attributes):
    with_attributes(folder, "run", **attributes)
    (folder / "g.json").write_text(json.dumps(groups))
    path = folder / "groups.yaml"
    path.write_text(GROUPS)
    return path


@pytest.mark.parametrize(
    "attributes",
    [
        NAMED,
        {"comm_group": by("int32_val", 1, 2)},
        {"comm_group": by("string_val", "1", "2")},
        {"comm_groups": by("int32_list", [1], [2])},
        {"process_group": by("uint64_val", 1, 2)},
        {"comm_group": by("int64_val", 1, 2), "pg_name": by("string_val", "", "")},
        {"comm_group": by("int64_val", 1, 2), "pg_name": by("string_val", "1", "2")},
    ],
    ids=lambda of: "+".join(of),
)
def test_groups_are_known_by_every_name_that_producers_give_them(tmp_path, attributes):
    path = groups_of(tmp_path, PAIRS, **attributes)
    result = run(path, tmp_path / "out", strict=True)
    assert spans(result) == [OF_TWO] and not result.warnings and "hints" not in result.summaries[0]


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"comm_group": by("int32_val", 1, 5)}, 'node 7: its group "5" is not defined'),
        ({"pg_name": by("string_val", "1", "5")}, 'node 7: its group "5" is not defined'),
        (
            {"comm_group": by("int32_val", 1, 2), "pg_name": by("string_val", "2", "2")},
            'node 7: is of group "2" by its pg_name, and of "1" by its comm_group; keep',
        ),
        ({"comm_group": by("int32_list", [0, 1], [2, 3])}, "node 7: its comm_group is no name of a group; write pg_"),
    ],
)
def test_names_of_groups_that_contradict_or_are_none_are_refused_at_the_node(tmp_path, capsys, attributes, said):
    path = groups_of(tmp_path, PAIRS, **attributes)
    assert main(["run", str(path), "--jobs", "1", "--out", str(tmp_path / "out")]) == 3
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("groups", "attributes", "warned", "hinted"),
    [
        (PAIRS, {}, "g.json: none of its groups is named by a collective", ""),
        ({**PAIRS, "7": [1, 2]}, NAMED, "", "1 of its 3 groups is unused: 7"),
        # Producers write groups of one rank for every dimension.
        ({**PAIRS, "7": [1]}, NAMED, "", ""),
        ({"1": [0], "2": [1]}, {}, "", ""),
        (PAIRS, {**NAMED, "swing": by("int32_val", 1, 2)}, "",
         "attributes that are not used: swing on 4 nodes"),
        (PAIRS, {**NAMED, "rf_id": by("int32_val", 1, 2)}, "", ""),
        (PAIRS, {**NAMED, "involved_dim": by("bool_list", [1, 0], [1, 1])},
         "2 collectives leave out dimensions (involved_dim)", ""),
        ({"0": [0, 1]}, {}, 'g.json: group "0" is all 4 ranks in order, and its list of ranks is not used', ""),
        ({"0": [3, 2, 1, 0]}, {}, 'group "0" is all 4 ranks', ""),
        ({"0": [0, 1, 2, 3]}, {}, "", ""),
        # Words of a producer's own, and names.
        (PAIRS, {**NAMED, "group_name": by("string_val", "tensor", "data")}, "", ""),
        ({}, {"group_name": by("string_val", "tensor", "data")},
         "4 collectives name their groups by group_name, and no group has members: they are of all ranks", ""),
        ({"1": [0], "2": [1]}, {"group_name": by("string_val", "tensor", "data")},
         "4 collectives name their groups by group_name, which is not the name of one that has members", ""),
    ],
)  # fmt: skip
def test_groups_and_attributes_that_nothing_uses_are_told(tmp_path, groups, attributes, warned, hinted):
    result = run(groups_of(tmp_path, groups, **attributes), tmp_path / "out")
    assert len(result.warnings) == bool(warned) and all(warned in text for text in result.warnings)
    hints = result.summaries[0].get("hints", [])
    assert len(hints) == bool(hinted) and all(hinted in text for text in hints)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"0": [0, 1], "1": [2, 3]}, 'group "0" is all ranks: give the group of fewer ranks another name'),
        ({"1": [0, 1], "2": [2, 9]}, "g.json: group 2: rank 9 is not one of the 4 ranks"),
    ],
)
def test_groups_that_cannot_be_are_refused_with_the_way_out(tmp_path, capsys, groups, said):
    path = groups_of(tmp_path, groups, pg_name=by("string_val", "0", "1"))
    assert main(["run", str(path), "--jobs", "1", "--out", str(tmp_path / "out")]) == 3
    assert said in capsys.readouterr().err


def test_groups_that_are_named_and_nowhere_listed_are_told(tmp_path):
    path = groups_of(tmp_path, {}, comm_group=by("int32_val", 1, 2))
    (said,) = run(path, tmp_path / "out", "workload={trace: run}").warnings
    assert "node 7: 4 collectives name their groups by comm_group, and no group has members" in said


def test_python_says_of_units_what_the_command_line_says(tmp_path):
    columns = {"node_id": [3, 4], "type": [4, 7], "num_ops": [1000, MISSING], "comm_type": [MISSING, 0]}
    trace = ExecutionTrace.from_columns(
        **columns, comm_size=[MISSING, 4000], metadata={"schema": "symbolic_tensor_network"}
    )
    path = set_of(tmp_path)
    write_prefix(tmp_path / "run", [trace] * 2)
    said = run(path, tmp_path / "out", "compute={peak: 1 TFLOP/s}").warnings
    with pytest.warns(UserWarning) as told:
        ap.read_workload(tmp_path / "run")
    assert [str(each.message) for each in told] == [text.removeprefix("warning: notes: ") for text in said]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ap.read_workload(tmp_path / "run", size_unit="elements", dtype_bytes=2, macs=True)


def test_public_sets_are_read_without_a_word_on_control_or_groups(golden):
    folder = golden / "chakra_samples"
    for name in ("stg/gpt_dp8/w", "stg/gpt_tp8/w", "stg/gpt_pp4_mb4/w", "text/MLP_HybridParallel_Data_Model"):
        groups = {"groups": folder / f"{name}.json"} if "stg" in name else {}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ap.read_workload(folder / name, **groups)
        texts = [str(each.message) for each in said]
        assert not [text for text in texts if "control" in text or "group" in text or "attributes" in text], texts


def test_the_documentation_names_groups_attributes_and_the_place_of_those_that_are_passed_over(repo):
    page = (repo / "docs/traces.md").read_text("utf-8")
    assert [name for name in OTHER_NAMES if f"`{name}`" not in page] == []
    assert attributes.HARMLESS
    assert f"`HARMLESS` in `{Path(attributes.__file__).relative_to(repo).as_posix()}`" in " ".join(page.split())


MIXED = {"data": CHAIN[:1], "ctrl": CHAIN}
SAID = "2 control dependencies order nodes that data dependencies leave free, and are not used"


def test_every_verb_that_reads_a_scenario_tells_what_its_run_tells(tmp_path, capsys):
    path = set_of(tmp_path, **MIXED)
    for verb in (
        ["verify", str(path)],
        ["convert", "--inline", str(path), str(tmp_path / "inlined")],
        ["optimize", str(path), "--out", str(tmp_path / "optimized"), "--over", "algorithms", "--evaluations", "2"],
        ["check", str(path)],
        ["run", str(path), "--jobs", "1", "--out", str(tmp_path / "out")],
    ):
        assert main(verb) == 0, capsys.readouterr().err
        assert f"{SAID} (node 2 after node 1)" in capsys.readouterr().out, verb
    assert SAID in (tmp_path / "optimized/report.md").read_text()
    (point,) = ap.expand(ap.load_scenario(path))
    with pytest.warns(UserWarning, match=SAID):
        ap.prepare(point)
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ap.prepare(point, warnings=told)
    assert len(told) == 1 and SAID in told[0]


def test_verbs_of_sets_name_their_own_options(tmp_path, capsys):
    set_of(tmp_path, **MIXED)
    assert main(["trace", "skeleton", str(tmp_path / "run"), str(tmp_path / "bones"), "--unlimited-slots"]) == 0
    assert f"{SAID} (node 2 after node 1); write --dependencies data+ctrl" in capsys.readouterr().err


def test_lint_knows_groups_by_their_other_names(tmp_path, capsys):
    groups_of(tmp_path, PAIRS, comm_group=by("int32_val", 1, 2), pg_name=by("string_val", "2", "2"))
    assert main(["trace", "lint", str(tmp_path / "run"), "--groups", str(tmp_path / "g.json")]) == 1
    assert 'is of group "2" by its pg_name, and of "1" by its comm_group' in capsys.readouterr().out
    assert main(["trace", "stats", str(tmp_path / "run")]) == 0
    assert "  2 " in capsys.readouterr().out
    # Without groups the two calls of unlike groups are no two calls of all.
    with_attributes(tmp_path, "run", comm_group=by("int32_val", 1, 2), comm_type=by("int64_val", 0, 2))
    assert main(["trace", "lint", str(tmp_path / "run")]) == 0
    assert "no members are known for 2 groups (1, 2)" in capsys.readouterr().out
    assert main(["trace", "stats", str(tmp_path / "run")]) == 0
    assert "  1 … 2 (2, each)" in capsys.readouterr().out
    groups_of(tmp_path, {"1": [0, 1], "2": [3, 2]}, comm_group=by("int32_val", 1, 1))
    assert main(["trace", "lint", str(tmp_path / "run"), "--groups", str(tmp_path / "g.json")]) == 1
    assert "rank 2 calls a collective of group 1, but is not a member" in capsys.readouterr().out


def test_priorities_that_no_planner_reads_are_told(tmp_path):
    kinds = {"comm_type": 0, "comm_size": 1_000_000, "comm_priority": [1, 2]}
    write_prefix(tmp_path / "run", [ExecutionTrace.from_columns(node_id=[0, 1], type=7, **kinds)] * 2)
    path = tmp_path / "notes.yaml"
    path.write_text(TEXT)
    (said,) = run(path, tmp_path / "out").warnings
    assert "run.0.et: collectives have unequal comm_priority, which only algorithms by dimension use" in said
    assert not run(path, tmp_path / "out", "collectives={chunks: 2}").warnings
    topology = ap.build_topology(shape="ring", npus=2, bandwidth="50 GB/s", latency="500 ns")
    with pytest.warns(UserWarning, match="unequal comm_priority"):
        ap.problem(ap.read_workload(tmp_path / "run"), topology)


def test_dimensions_that_collectives_leave_out_are_left_out_by_dimension_and_told_otherwise(tmp_path):
    """Of a grid of 2 x 2: an all_reduce of 50 MB over the first dimension alone is one of two ranks."""
    with_attributes(tmp_path, "run", involved_dim=lambda rank: ("bool_list", [True, False]))
    path = tmp_path / "groups.yaml"
    grid = "shape: torus, dims: [2, 2]"
    path.write_text(GROUPS.replace(", groups: g.json", "").replace("shape: switch, npus: 4", grid))
    (said,) = run(path, tmp_path / "out").warnings
    assert "node 7: 4 collectives leave out dimensions (involved_dim), and runs over its whole group" in said
    result = run(path, tmp_path / "out", "collectives={chunks: 1}")
    assert not result.warnings and spans(result) == [1_001_000_000]
    jobs = "jobs={a: {workload: {trace: run}, iterations: 2}}"
    path.write_text(path.read_text().replace("workload: {trace: run}", jobs.replace("=", ": ", 1)))
    path.write_text(path.read_text().replace("name: groups", "name: twice"))
    (said,) = run(path, tmp_path / "out", "collectives={chunks: 1}").warnings
    assert "4 collectives leave out dimensions" in said


@pytest.mark.parametrize("verb", [["merge"], ["merge", "--in-sequence"], ["slice"]])
def test_parts_of_sets_keep_groups_that_have_another_name(tmp_path, verb):
    path = groups_of(tmp_path, PAIRS, comm_group=by("int32_val", 1, 2))
    (tmp_path / "run.groups.json").write_text(json.dumps(PAIRS))
    run_of, out = str(tmp_path / "run"), str(tmp_path / "out")
    words = [run_of, out, "--ranks", "2-3"] if verb == ["slice"] else [out, *verb[1:], "--from", run_of, run_of]
    assert main(["trace", verb[0], *words]) == 0
    result = run(path, tmp_path / "results", "topologies.sw.npus=8", "workload={trace: out, groups: out.groups.json}")
    assert spans(result) == [2 * OF_TWO if "--in-sequence" in verb else OF_TWO]
    # The node that joins sets takes no time; it is not compute whose duration is missing.
    assert not result.warnings
