"""Open-loop traffic: the closed form of a queue, conservation of messages, the same times on both engines, patterns."""

from __future__ import annotations

import csv
from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.runs.flows import alone_ps, flow_rows
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan

LINK = "topology: {shape: fully_connected, npus: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
FABRIC = (
    "topology: {shape: leaf_spine, leaves: 2, hosts_per_leaf: 4, spines: 2, bandwidth: 100 Gb/s, latency: 500 ns}\n"
)
ONE = "{matrix: [[0, 1 B], [0, 0]]}"


def points(tmp_path, text, *overrides):
    (tmp_path / "s.yaml").write_text(text)
    return expand(load_scenario(tmp_path / "s.yaml", overrides))


def run(point, engine="compiled"):
    plan = make_plan(prepare(point).problem)
    records = simulate(plan, engine=engine, level="messages")
    assert records.outcome.status == "done"
    return plan, records


def keys(tmp_path, keys, network="", topology=FABRIC):
    (point,) = points(tmp_path, f"{topology}workload: {{open_loop: {{{keys}}}}}\n{network}")
    return point


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_link_is_a_queue_of_random_arrivals_and_constant_service(tmp_path, load):
    """M/D/1: the mean wait is load / (2 (1 - load)) services (Pollaczek and Khinchine), within 99.7 % of 40 means.

    Consecutive waits depend on each other, so the interval is that of means of runs with other seeds.
    """
    service, waits = 1_000_000, []
    for seed in range(40):
        text = f"pattern: {ONE}, load: {load}, size: 1000 B, messages: 5000, seed: {seed}"
        _, records = run(keys(tmp_path, text, topology=LINK))
        table = records.message
        waits.append(float((table["start"] - table["posted"]).mean()) / service)
        gaps = np.diff(np.sort(table["posted"])) / service
        assert gaps.mean() == pytest.approx(1 / load, rel=0.06)
    expected = load / (2 * (1 - load))
    error = 3 * float(np.std(waits, ddof=1)) / len(waits) ** 0.5
    assert abs(float(np.mean(waits)) - expected) < error < 0.1 * expected


@pytest.mark.parametrize("pattern", ["uniform", "permutation", "hotspot", "incast", "all_to_all", ONE])
@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_both_engines_agree_and_every_byte_arrives_once(tmp_path, pattern, arrivals):
    topology = LINK if pattern == ONE else FABRIC
    text = (
        f"pattern: {pattern}, load: 0.7, size: {{uniform: [1 B, 100 KB]}}, messages: 20, arrivals: {arrivals}, seed: 5"
    )
    plan, records = run(keys(tmp_path, text, topology=topology), engine="both")
    table, rows = records.message, flow_rows(plan, records)
    sent = plan.problem.jobs[0].workload.traces
    assert records.messages == table.height == rows[0].messages == sum(row.messages for row in rows[1:])
    assert int(table["bytes"].sum()) == sum(int(t.column("comm_size")[t.type == 5].sum()) for t in sent) > 0
    assert (table["delivered"] >= table["start"]).all() and (table["start"] >= table["posted"]).all()
    assert min(row.p50_slowdown for row in rows) >= 1
    counts = np.zeros((plan.ranks, plan.ranks), dtype=int)
    np.add.at(counts, (table["src"], table["dst"]), 1)
    assert (np.diag(counts) == 0).all()
    if pattern == "permutation":
        assert (counts.sum(axis=0) == 20).all() and ((counts > 0).sum(axis=1) == 1).all()
    if pattern == "incast":
        assert (counts[:, 1:] == 0).all() and counts[0].sum() == 0
    if pattern == "all_to_all":
        assert counts.max() - counts[~np.eye(8, dtype=bool)].min() <= 1
    if pattern == "hotspot":
        assert counts[1:, 0].mean() > 2 * counts[1:, 1:].mean()


@pytest.mark.parametrize("pattern", ["uniform", "hotspot", "incast", "permutation"])
def test_load_is_that_of_the_busiest_npu(tmp_path, pattern):
    """Offered bytes a second at the NPU that sends or receives most, over the rate of its links."""
    text = f"pattern: {pattern}, load: 0.5, size: 10 KB, duration: 20 ms, arrivals: constant"
    _, records = run(keys(tmp_path, text))
    table = records.message
    ends = [np.bincount(table[name], weights=table["bytes"], minlength=8) for name in ("src", "dst")]
    assert max(map(max, ends)) / 0.02 / 12.5e9 == pytest.approx(0.5, rel=0.06)
    assert table["posted"].max() < 20_000_000_000


def test_rates_messages_and_seeds(tmp_path):
    text = "pattern: permutation, rate: 1 GB/s, size: 1 KB, messages: 400, seed: 1"
    _, records = run(keys(tmp_path, text))
    span = records.message["posted"].max() / 1e12
    assert records.messages == 8 * 400 and 400 * 1000 / span == pytest.approx(1e9, rel=0.2)
    again = run(keys(tmp_path, text))[1].message["posted"]
    assert np.array_equal(records.message["posted"], again)
    other = run(keys(tmp_path, text.replace("seed: 1", "seed: 2")))[1].message["posted"]
    assert not np.array_equal(again, other)
    repeated = points(tmp_path, f"{FABRIC}workload: {{open_loop: {{{text}}}}}\nrepeat: 3\n")
    assert [point.config["workload"]["open_loop"]["seed"] for point in repeated] == [1, 2, 3]


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "fluid", "analytical"])
def test_a_message_alone_takes_the_time_of_the_slowdown(tmp_path, model):
    """Slow and fast links one after the other, sizes down to a byte."""
    edges = [(0, "a", 10, 300), ("a", "b", 40, 500), ("b", 1, 7, 900)]
    listed = ", ".join(
        f"{{src: {a}, dst: {b}, bandwidth: {rate} GB/s, latency: {delay} ns, directions: both}}"
        for a, b, rate, delay in edges
    )
    topology = f"topology: {{shape: edge_list, edges: [{listed}]}}\n"
    for size in ("1 B", "999 B", "64 KiB", "1 MB"):
        text = f"pattern: {ONE}, rate: 1 KB/s, size: {size}, messages: 2, seed: 4"
        plan, records = run(keys(tmp_path, text, f"network: {{model: {model}}}\n", topology), engine="both")
        took = records.message["delivered"] - records.message["posted"]
        assert set(took.tolist()) == {alone_ps(plan, 0, 1, int(records.message["bytes"][0]))}


def test_sizes_follow_their_distribution(tmp_path):
    for size, mean in (
        ("{2 KB: 80, 30 KB: 15, 1 MB: 5}", 0.8 * 2000 + 0.15 * 30_000 + 0.05 * 10**6),
        ("{exponential: 10 KB}", 10_000),
        ("{uniform: [1 KB, 9 KB]}", 5000),
    ):
        text = f"pattern: uniform, load: 0.1, size: {size}, messages: 2000"
        sizes = [
            trace.column("comm_size")[trace.type == 5]
            for trace in prepare(keys(tmp_path, text)).problem.jobs[0].workload.traces
        ]
        assert np.concatenate(sizes).mean() == pytest.approx(mean, rel=0.05)


@pytest.mark.slow
def test_tables_of_the_results_have_the_times_by_size(tmp_path, capsys, repo):
    result = run_scenario(load_scenario(repo / "scenarios" / "open_loop.yaml", ["plots=[]"]), out=tmp_path, jobs=1)
    with open(tmp_path / "open_loop" / "flows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 * 4 and {row["load"] for row in rows} == {"0.3", "0.8"}
    said = {
        (row["pattern"], row["load"], row["model"], row["least_bytes"]): row for row in rows if row["sizes"] != "all"
    }
    medians = {
        (model, size): round(float(said["uniform", "0.8", model, size]["p50_slowdown"]), 1)
        for model in ("store_and_forward", "fluid")
        for size in ("2000", "1000000")
    }
    # The comment of the scenario, and its lesson.
    assert medians == {
        ("store_and_forward", "2000"): 86.1, ("store_and_forward", "1000000"): 1.8,
        ("fluid", "2000"): 1.4, ("fluid", "1000000"): 4.2,
    }  # fmt: skip
    assert result.rows[0].messages == int(rows[[r["point"] for r in rows].index(result.rows[0].point)]["messages"])
    assert main(["run", str(repo / "scenarios" / "open_loop.yaml"), "--set", "plots=[]", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "the fastest" not in out and "time/best" not in out, "each point sends for a time of its own"
    assert "p99 slowdown" in out and "pattern=uniform,load=0.8,model=fluid" in out
    points_folder = next((tmp_path / "open_loop" / "points").glob("001*"))
    assert (points_folder / "flows.csv").exists() and not (points_folder / "message.csv").exists()
    assert main(["explain", f"{points_folder}"]) == 0 and "advice" not in capsys.readouterr().out


def test_repeated_points_show_the_run_of_median_time(tmp_path, capsys):
    text = "pattern: uniform, load: $load, size: 1 KB, messages: 5"
    (tmp_path / "s.yaml").write_text(
        f"{FABRIC}workload: {{open_loop: {{{text}}}}}\nrepeat: 3\nsweep: {{load: [0.3, 0.6]}}\n"
    )
    assert main([str(tmp_path / "s.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    table = capsys.readouterr().out.partition("messages of")[2].splitlines()
    assert [line.split()[0] for line in table[2:4]] == ["load=0.3", "load=0.6"]
    with open(tmp_path / "out" / "s" / "flows.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pattern: unifrom, load: 0.5, size: 1 KB, messages: 5", 'is not a pattern; did you mean "uniform"?'),
        ("pattern: uniform, size: 1 KB, messages: 5", "has neither load nor rate; write e.g. load: 0.5"),
        ("pattern: uniform, load: 0.5, rate: 1 GB/s, size: 1 KB, messages: 5", "has both load and rate"),
        ("pattern: uniform, load: 0.5, size: 1 KB", "has neither duration nor messages"),
        ("pattern: uniform, load: 0.5, size: 5, messages: 5", "size: 5 is not a size: it has no unit"),
        ("pattern: {matrix: [[-1]]}, load: 0.5, size: 1 KB, messages: 5", "matrix[0][0]: -1 is no share of traffic"),
        ("pattern: uniform, load: 0.5, size: {1 KiB: 0}, messages: 5", "is not how often 1 KiB comes"),
        ("pattern: uniform, load: -1, size: 1 KB, messages: 5", "load: -1 is too little; write more than 0"),
        ("pattern: uniform, load: 0.5, size: 1 KB, messages: 5, hot_rank: 2", "hot_rank: is of hotspot and incast"),
        ("pattern: incast, load: 0.5, size: 1 KB, messages: 5, hot_rank: 8", "rank 8 does not exist: there are 8"),
        ("pattern: {matrix: [[0]]}, load: 0.5, size: 1 KB, messages: 5", "1 rows, and there are 8 ranks"),
        ("pattern: uniform, load: 0.5, size: 1 KB, duration: 100 s", "messages of a sender are more than"),
        ("pattern: uniform, load: 0.5, size: 1 MB, duration: 1 ns", "no message is sent"),
        ("pattern: uniform, load: 0.5, size: 1 KB, mesages: 5", 'did you mean "messages"?'),
    ],
)  # fmt: skip
def test_wrong_keys_are_refused_in_a_line(tmp_path, text, expected):
    with pytest.raises(AstraError) as caught:
        prepare(keys(tmp_path, text))
    assert any(expected in line for line in caught.value.lines()), caught.value.lines()
    assert all(line.startswith(f"{tmp_path}/s.yaml:2:") for line in caught.value.lines())


def test_a_matrix_has_proportions(tmp_path):
    text = "size: 1 KiB, messages: 3, load: 0.5, pattern: "
    by_size, by_number = (
        run(keys(tmp_path, f"{text}{{matrix: {rows}}}", topology=LINK))[1]
        for rows in ("[[0, 6 B], [2 B, 0]]", "[[0, 1.5], [0.5, 0]]")
    )
    assert np.array_equal(by_size.message["delivered"], by_number.message["delivered"])


@pytest.mark.parametrize("key", ["noise: {compute: {exponential: 1 us}}", "stragglers: {compute_speed: {0: 0.5}}"])
def test_what_would_move_the_times_of_messages_is_refused(tmp_path, key):
    text = "pattern: uniform, load: 0.5, size: 1 KB, messages: 5"
    with pytest.raises(AstraError, match="the times"):
        prepare(keys(tmp_path, text, f"{key}\n"))


def test_a_mean_of_sizes_is_exact():
    from astrasim_py.scenario.open_loop import Sizes

    sizes = Sizes.model_validate({"2 KB": 80, "30 KB": 15, "1 MB": 5}, context={"written": True})
    assert sizes.mean == Fraction(2000 * 80 + 30_000 * 15 + 5 * 10**6, 100)
