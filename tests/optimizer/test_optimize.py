"""`optimize`: the same for a seed, goes on where it stopped, never below its bound, and right where all is tried."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations, product
from random import Random

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from astrasim_py.api import run
from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import MISSING
from astrasim_py.cli.main import main
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.optimizer.calls import AlgorithmCase
from astrasim_py.optimizer.judge import NEVER, Judge
from astrasim_py.optimizer.optimize import optimize
from astrasim_py.optimizer.space import space_of
from astrasim_py.optimizer.state import STATE
from astrasim_py.optimizer.write import SCENARIO, write_optimized
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.files import write_npz
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

RING = {"shape": "ring", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns"}
#: A call that can go beside the longest compute, if what it needs is computed first.
ORDERED = [
    {"compute": {"name": "long", "time": "90 us", "after": []}},
    {"compute": {"name": "short", "time": "10 us", "after": []}},
    {"all_reduce": {"name": "sum", "size": "4 MiB", "after": ["short"]}},
    {"all_gather": {"name": "all", "size": "1 MiB", "after": ["long"]}},
    {"compute": {"name": "end", "time": "20 us", "after": ["sum", "all"]}},
]


def scenario(workload=ORDERED, **keys):
    return {"name": "step", "topologies": {"ring": RING}, "workload": workload, **keys}


def found(tmp_path, said=None, **options):
    options = {"seconds": None, "evaluations": 40, "over": "algorithms,placement,order", **options}
    return optimize(load_scenario(said or scenario()), tmp_path, **options)


def test_a_seed_and_a_number_of_evaluations_decide_everything(tmp_path):
    first, second = (found(tmp_path / name, seed=3) for name in "ab")
    assert (first.best, first.makespan_ps, first.brings) == (second.best, second.makespan_ps, second.brings)
    assert first.evaluations == 40 and first.makespan_ps < first.baseline_ps
    for name, result in (("a", first), ("b", second)):
        write_optimized(result, tmp_path / name)
    files = [{p.relative_to(f): p.read_bytes() for p in f.rglob("*.*")} for f in (tmp_path / "a", tmp_path / "b")]
    assert files[0] == files[1] and {SCENARIO, STATE, "report.md", "before_after.svg"} < set(map(str, files[0]))


@pytest.mark.parametrize("makespan", [1, 10**15, 0.5, None, "1", float("inf"), [[]], '{"deep": ' * 2000])
def test_a_state_that_was_edited_is_refused(tmp_path, makespan):
    found(tmp_path, evaluations=2)
    said = json.loads((tmp_path / STATE).read_text())
    said["makespans"][next(iter(said["makespans"]))] = makespan
    (tmp_path / STATE).write_text(json.dumps(said).replace('\\"', '"'))
    with pytest.raises(AstraError, match=r"is not the state of a search, or was edited; name another folder"):
        found(tmp_path, evaluations=2)


def test_a_search_that_goes_on_is_one_that_was_not_interrupted(tmp_path):
    found(tmp_path / "a", evaluations=12)
    stopped, whole = found(tmp_path / "a"), found(tmp_path / "b")
    assert stopped.simulated < whole.simulated
    assert (stopped.best, stopped.makespan_ps) == (whole.best, whole.makespan_ps)
    assert stopped.evaluations == whole.evaluations and stopped.found == whole.found


def test_what_was_found_before_takes_no_time(tmp_path):
    before = found(tmp_path)
    again = found(tmp_path, seconds=1e-9, evaluations=None)
    assert (again.best, again.makespan_ps, again.simulated) == (before.best, before.makespan_ps, 0)


def test_a_step_at_its_bound_ends_the_search(tmp_path):
    """No algorithm and no order can be better; another placement could."""
    items = [{"compute": {"name": "long", "time": "9 ms", "after": []}}, {"all_reduce": {"size": "4 MiB", "after": []}}]
    for over, evaluations in (("algorithms,order", 1), ("placement", 24)):
        result = found(tmp_path / over, scenario(items), over=over, evaluations=None)
        assert result.makespan_ps == result.bound.ps and result.evaluations == evaluations


def test_the_scenario_that_is_written_takes_that_time(tmp_path):
    result = found(tmp_path / "out", over="algorithms,order,priority")
    write_optimized(result, tmp_path / "out")
    (row,) = run(tmp_path / "out" / SCENARIO, out=tmp_path / "results", jobs=1).rows
    assert round(float(row["time_ns"]) * 1000) == result.makespan_ps < result.baseline_ps
    assert (tmp_path / "out" / "workload" / "job0.3.et").exists()
    report = (tmp_path / "out" / "report.md").read_text()
    assert "order" in report and "without this change alone" in report


def test_the_optimized_scenario_runs_beside_the_first_and_the_search_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.yaml").write_text(yaml.safe_dump(scenario()))
    search = ["optimize", "step.yaml", "--evaluations", "6", "--quiet"]
    assert main(["step.yaml", "--quiet"]) == 0 and main(search) == 0
    assert main([f"results/step-optimized/{SCENARIO}", "--quiet"]) == 0
    assert main(["explain", "step-optimized"]) == 0
    assert main(search) == 0 and main(["results", "compare", "step", "step-optimized"]) == 0
    assert "error" not in capsys.readouterr().err


def test_what_a_change_brings_is_the_makespan_without_it(tmp_path):
    result = found(tmp_path)
    assert result.brings
    for number, lost in result.brings:
        without = result.space.with_value(result.best, number, result.space.baseline[number])
        assert simulate(result.space.problem(without), level="summary").makespan - result.makespan_ps == lost > 0


def test_the_optimum_where_all_is_tried(tmp_path):
    """Beside another enumeration: the items in every order that is one, on every placement."""
    items = [*ORDERED[:3], {"compute": {"name": "end", "time": "20 us", "after": ["sum", "long"]}}]
    result = found(tmp_path, scenario(items, placement=[0, 2, 1, 3]), over="order,placement", evaluations=None)
    assert result.found.whole and result.space.count == result.evaluations == 3 * 24
    times = {}
    for listed in permutations(items):
        for npus in permutations(range(4)):
            try:
                problem = prepare(expand(load_scenario(scenario(list(listed), placement=list(npus))))[0]).problem
            except AstraError:
                continue  # an item before one that it needs
            times[tuple(str(item) for item in listed), npus] = simulate(problem, level="summary").makespan
    assert len(times) == result.space.count
    assert result.makespan_ps == min(times.values()) < result.baseline_ps


@pytest.mark.slow
def test_the_optimum_of_pieces_and_tiles_where_all_is_tried(tmp_path):
    """Beside scenarios with each number of chunks of two calls and each number of tiles."""
    items = [
        {"all_gather": {"name": "gather", "size": "1 MiB"}},
        {"compute": {"name": "matmul", "time": "30 us", "tiles": 2, "consumes": "gather", "tile_overhead": "1 us"}},
        {"all_reduce": {"name": "sum", "size": "1 MiB", "after": ["matmul"]}},
    ]
    result = found(tmp_path, scenario(items), over="chunks,tiles", evaluations=None)
    assert result.found.whole and result.bound.ps <= result.makespan_ps < result.baseline_ps
    times = {}
    for gather, reduce, tiles in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8, 16)):
        items[1]["compute"]["tiles"] = tiles
        algorithms = {"all_gather": {"builder": "ring", "chunks": gather}}
        algorithms["all_reduce"] = {"builder": "ring", "chunks": reduce}
        try:
            problem = prepare(expand(load_scenario(scenario(items, algorithms=algorithms)))[0]).problem
            times[gather, reduce, tiles] = simulate(problem, level="summary").makespan
        except AstraError:
            continue  # the tiles do not go with the chunks
    assert len(times) > 40 and result.makespan_ps == min(times.values())


@pytest.mark.slow
def test_calls_of_one_class_get_algorithms_of_their_own(tmp_path):
    """Beside scenarios that say the same by size, for pairs of algorithms of two calls."""
    items = [{"all_reduce": {"size": "16 KiB"}}, {"all_reduce": {"size": "63 KiB"}}]
    result = found(tmp_path, scenario(items), over="algorithms", evaluations=100)
    (choice,) = result.space.choices
    first, last = choice.calls.nodes
    built = [case.keys for (case,) in choice.plain if "builder" in case.keys][:4]
    times = {}
    for small, large in product(built, repeat=2):
        cases = [{**small, "when": {"size": "<= 16 KiB"}}, large]
        said = prepare(expand(load_scenario(scenario(items, algorithms={"all_reduce": cases})))[0]).problem
        value = map(AlgorithmCase.of, ({**small, "when": {"node": f"< {last}"}}, large))
        own = result.space.problem((tuple(value),))
        times[str(small), str(large)] = makespan = simulate(said, level="summary").makespan
        assert simulate(own, level="summary").makespan == makespan
    assert result.makespan_ps <= min(times.values()) < min(times[each, each] for each, _ in times)
    moves = [choice.move(choice.values[1], Random(seed), choice.values) for seed in range(40)]
    assert any(f">= {first} and <= {first}" in str(move) for move in moves)
    assert any(choice.say(move).count("for node") == 1 for move in moves)


def test_nothing_found_is_said(tmp_path, capsys):
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump(scenario([{"compute": {"time": "1 ms"}}, {"barrier": {}}])))
    assert main(["optimize", str(path), "--out", str(tmp_path / "o"), "--over", "placement", "--evaluations", "9"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nothing found: ") and (tmp_path / "o" / "report.md").exists()


@st.composite
def steps(draw):
    """Small workloads: compute and collectives, each after some of those before."""
    items = []
    for number in range(draw(st.integers(2, 6))):
        after = [f"i{k}" for k in range(number) if draw(st.booleans())]
        kind = draw(st.sampled_from(["compute", "all_reduce", "all_gather", "all_to_all"]))
        more = {"time": f"{draw(st.integers(1, 60))} us"} if kind == "compute" else {}
        more = more or {"size": f"{4 * draw(st.integers(1, 2**18))} B"}
        items.append({kind: {"name": f"i{number}", "after": after, **more}})
    return [*items, {"all_reduce": {"name": "last", "size": "64 KiB", "after": [f"i{len(items) - 1}"]}}]


def judged(items):
    kinds = ("algorithms", "order", "priority", "placement")
    space, plan = space_of(expand(load_scenario(scenario(items)))[0], kinds)
    limits = {"evaluations": None, "seconds": None}
    return space, Judge(space=space, plan=plan, engine="auto", known={}, **limits, tell=str, save=lambda: None)


@settings(max_examples=8)
@given(steps(), st.data())
def test_a_candidate_that_takes_longer_than_asked_is_given_up_and_known_again(items, data):
    space, judge = judged(items)
    first = judge(space.baseline)
    number = data.draw(st.integers(0, len(space.choices) - 1))
    candidate = space.with_value(space.baseline, number, data.draw(st.sampled_from(space.choices[number].values)))
    full = simulate(space.problem(candidate), level="summary").makespan
    for part in data.draw(st.lists(st.integers(0, 20), min_size=3, max_size=3)):
        most = full * part // 10
        assert judge(candidate, most) == (full if full <= min(most, judge.longest) else NEVER)
    assert judge.counted <= 2 and judge.makespan <= first


@settings(max_examples=15)
@given(steps(), st.randoms(use_true_random=False))
def test_no_candidate_is_below_its_bound(items, random):
    space, judge = judged(items)
    candidate = space.baseline
    for _ in range(4):
        makespan, bound = judge(candidate), judge.bound_of(candidate)
        assert bound.ps is not None and bound.ps <= makespan
        number = random.randrange(len(space.choices))
        candidate = space.with_value(candidate, number, space.choices[number].move(candidate[number], random))


SWEPT = {"sweep": {"topology": ["ring", "other"]}, "topologies": {"ring": RING, "other": RING}}
WRONG = [
    (["--budget", "0 s"], {}, "--budget: 0 leaves no time"),
    (["--over", "algoritms"], {}, '--over: "algoritms" cannot be chosen; did you mean "algorithms"?'),
    (["--evaluations", "0"], {}, "--evaluations: 0 is less than 1"),
    ([], SWEPT, "means 2 points, not one point; they differ in topology: write e.g."),
    (["@topology=rng"], SWEPT, '@topology: no point has "rng"; did you mean "ring"?'),
    (["@size=4"], SWEPT, "@size: is not swept; swept are topology"),
    ([], {"workload": [{"compute": {"time": "1 us"}}]}, "calls no collective"),
    (["--over", "buckets"], {}, "nothing to choose under buckets"),
]


@pytest.mark.parametrize("options, keys, said", WRONG)
def test_wrong_use_is_one_line(tmp_path, capsys, options, keys, said):
    path = tmp_path / "step.yaml"
    path.write_text(yaml.safe_dump({**scenario(), **keys}))
    values = [word for word in options if word[0] == "@"]
    words = [
        f"{path}{''.join(values)}",
        "--out",
        str(tmp_path / "o"),
        *(word for word in options if word not in values),
    ]
    assert main(["optimize", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "o").exists()


GATHERED = [
    {"all_gather": {"name": "gather", "size": "1 MiB", "after": []}},
    {"compute": {"name": "matmul", "time": "30 us", "consumes": "gather"}},
]
WRONG_TILES = [
    ({"tiles": 3}, {}, 3, "is used in 3 tiles, and ring has 4 chunks of output on a rank; write tiles: 2"),
    ({"tiles": 4, "after": []}, {}, 2, '"gather" is not one node that it waits for on rank 0; write after: gather'),
    ({"tiles": 4}, {"file": "bare.npz"}, 3, "does not say which cells its steps read and write"),
]


@pytest.mark.parametrize("keys, algorithm, code, said", WRONG_TILES)
def test_wrong_tiles_are_one_line(tmp_path, capsys, keys, algorithm, code, said):
    made = build("ring", "all_gather", 4)
    bare = [t.with_columns({n: np.full(len(t), MISSING) for n in ("src_buf", "dst_buf")}) for t in made.traces]
    write_npz(tmp_path / "bare.npz", replace(made, traces=tuple(bare)))
    items = [GATHERED[0], {"compute": {**GATHERED[1]["compute"], **keys}}]
    algorithms = {"algorithms": {"all_gather": algorithm}} if algorithm else {}
    path = tmp_path / "step.yaml"
    path.write_text(yaml.safe_dump(scenario(items, **algorithms, verify=False)))
    assert main(["optimize", str(path), "--out", str(tmp_path / "o"), "--quiet"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_scenario_that_does_not_end_is_not_optimized(tmp_path, capsys):
    path = tmp_path / "step.yaml"
    path.write_text(yaml.safe_dump(scenario(limits={"max_sim_time": "10 us"})))
    assert main(["optimize", str(path), "--out", str(tmp_path / "o")]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "astrasim-py: step: does not end: limit; see what run says"
    assert not (tmp_path / "o").exists()


def test_a_folder_of_something_else_is_refused(tmp_path, capsys):
    path, folder = tmp_path / "step.yaml", tmp_path / "o"
    path.write_text(yaml.safe_dump(scenario()))
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    command = ["optimize", str(path), "--out", str(folder), "--evaluations", "3", "--quiet"]
    assert main(command) == 2 and "other content" in capsys.readouterr().err
    (folder / "mine.txt").unlink()
    assert main([*command, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == 3
    assert main([*command, "--seed", "2"]) == 2 and "another seed" in capsys.readouterr().err
    assert main([*command, "--over", "order"]) == 2 and "another over" in capsys.readouterr().err
    assert main(command) == 0


def test_one_point_of_a_sweep_is_optimized(tmp_path):
    items = [*ORDERED[:2], {"all_reduce": {"name": "sum", "size": "$size", "after": ["short"]}}]
    swept = scenario(items, sweep={"size": ["1 KiB", "4 MiB"]})
    result = found(tmp_path / "a", swept, wanted={"size": ["4096 KiB"]}, evaluations=2)
    items[2]["all_reduce"] = {**items[2]["all_reduce"], "size": "4 MiB"}
    assert result.baseline_ps == found(tmp_path / "b", scenario(items), evaluations=2).baseline_ps


def test_orders_go_with_tiles(tmp_path):
    """A key that makes another workload leaves orders of the one before without effect, or refuses them."""
    items = [{"compute": {"name": "other", "time": "50 us", "after": []}}, *GATHERED]
    result = found(
        tmp_path, scenario([*items, {"barrier": {"after": ["matmul", "other"]}}]), over="tiles,order,priority"
    )
    assert {choice.kind for choice in result.space.choices} == {"tiles", "order", "priority"}
    assert result.bound.ps <= result.makespan_ps <= result.baseline_ps


TRAINING = {
    "topologies": {"node": {"preset": "dgx_h100", "nodes": 1, "npus": 4}},
    "compute": {"preset": "dgx_h100"},
    "workload": {
        "training": {"model": {"base": "llama3-8b", "layers": 2}, "seq": 256, "gbs": 8, "overlap": {"dp": True}},
        "memory": "ignore",
    },
}


def test_trainings_have_a_rule_of_issue_and_no_order(tmp_path, capsys):
    result = found(tmp_path / "a", said=scenario() | TRAINING, over="buckets,order,priority", evaluations=30)
    assert {choice.kind for choice in result.space.choices} == {"buckets", "priority"}
    assert result.bound.ps <= result.makespan_ps <= result.baseline_ps
    (warning,) = result.space.warnings
    assert "trainings have no choice of order, which brought nothing; priority orders them" in warning
    assert not found(tmp_path / "b", said=scenario() | TRAINING, over=None, evaluations=1).space.warnings
    path = tmp_path / "step.yaml"
    path.write_text(yaml.safe_dump(scenario() | TRAINING))
    assert main(["optimize", str(path), "--out", str(tmp_path / "o"), "--over", "order"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing to choose under order; write --over priority, as trainings have no order, or drop it" in line


def test_a_change_that_makes_the_step_longer_is_left_out(tmp_path):
    """Stopped early, the best one known can have such a change; the makespan is that of the step without it."""
    items = [{"all_gather": {"size": "9 MiB", "after": []}}, {"broadcast": {"size": "4 MiB", "after": []}}]
    mesh = {"ring": {"shape": "mesh", "dims": [3, 3], "bandwidth": "50 GB/s", "latency": "500 ns"}}
    result = found(tmp_path, scenario(items) | {"topologies": mesh}, over="algorithms", evaluations=2)
    assert simulate(result.space.problem(result.best), level="summary").makespan == result.makespan_ps
    assert result.makespan_ps < result.found.alone[1]
