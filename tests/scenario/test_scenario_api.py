"""``import astrasim_py as ap``."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import astrasim_py as ap


def test_every_public_name_is_there_and_documented():
    for name in ap.__all__:
        value = getattr(ap, name)
        assert value is not None
        if name != "__version__":
            assert value.__doc__, name
    assert set(ap.__all__) <= set(dir(ap))
    with pytest.raises(AttributeError):
        _ = ap.nothing


def test_a_workload_may_be_the_first_name_that_is_used():
    program = "import astrasim_py as ap; print(ap.workload(2))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("WorkloadBuilder"), done.stderr[-200:]


def test_a_scenario_runs_from_python(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: demo\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
        "workload: [{all_reduce: {size: 1 MiB}}]\n"
    )
    result = ap.run(path, out=tmp_path / "out", overrides=["topologies.r.npus=8"])
    assert result.exit_code == 0
    assert result.rows[0]["npus"] == 8
    assert (tmp_path / "out" / "demo" / "summary.csv").is_file()


SCENARIO = {
    "name": "demo",
    "topologies": {"r": {"shape": "ring", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns"}},
    "workload": [{"all_reduce": {"size": "$size"}}],
    "sweep": {"size": ("64 KiB", "1 MiB"), "topologies.r.npus": np.array([4, 8])},
}


def test_a_dict_and_a_loaded_scenario_run_as_a_file_does(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps({**SCENARIO, "sweep": {"size": ["64 KiB", "1 MiB"], "topologies.r.npus": [4, 8]}}))
    runs = [ap.run(form, out=tmp_path / str(i)) for i, form in enumerate((path, SCENARIO, ap.load_scenario(path)))]
    rows = [[{**row, "cpu_s": None} for row in run.rows] for run in runs]
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 4


@pytest.mark.parametrize("overrides", [["sweep.size=2 MiB"], {"sweep.size": "2 MiB"}, {"sweep": {"size": ["2 MiB"]}}])
def test_overrides_are_a_list_or_a_mapping_and_hold_for_every_form_of_a_scenario(tmp_path, overrides):
    for number, form in enumerate((SCENARIO, ap.load_scenario(SCENARIO))):
        result = ap.run(form, overrides=overrides, out=tmp_path / str(number))
        assert {row["size_bytes"] for row in result.rows} == {2 * 2**20}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"topologies.x.npus": 8}, '"x" is not in topologies'),
        ({"topologies.r.npus": "x"}, "overrides: topologies.r.npus"),
        ({"sweep": {1, 2}}, "set is not a plain value"),
        ({"": 1}, "a key is empty"),
        ("topologies.r.npus=8", "is one text"),
    ],
)
def test_wrong_overrides_are_told_with_their_key(overrides, said):
    with pytest.raises(ap.AstraError, match=said):
        ap.load_scenario({**SCENARIO, "sweep": {"size": ["1 MiB"]}}, overrides)


def test_rows_as_a_dataframe_have_floats_and_exact_integers(tmp_path):
    result = ap.run(SCENARIO, out=tmp_path)
    frame = result.to_dataframe()
    assert frame["topologies.r.npus"].tolist() == [4, 8, 4, 8] == frame["npus"].tolist()
    assert frame["time_ns"].dtype == "float64"
    assert frame["time_ps"].tolist() == [int(row["time_ns"] * 1000) for row in result.rows]
    assert frame.groupby("size")["busbw_GBps"].max()["1 MiB"] == float(result.rows[2]["busbw_GBps"])


def test_tables_of_records_as_dataframes_have_ns_and_rates_beside_picoseconds():
    topology = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    records = ap.simulate(ap.collective("all_gather", "1 MiB", topology), level="messages")
    collective = records.collective.to_dataframe()
    assert collective["end"].tolist() == [17228640] and collective["time_ns"].tolist() == [17228.64]
    assert collective["algbw_GBps"].tolist() == [2**20 / 17228.64]
    message = records.message.to_dataframe()
    assert (message["time_ns"] == 500 + 2**18 / 50).all() and (message["GBps"] == 2**18 / message["time_ns"]).all()
    assert records.collective.to_dataframe()["bound_ns"].isna().all()  # -1: none applies


def test_objects_show_themselves_in_a_line_and_as_html(tmp_path):
    keys = {"nvlink_bandwidth": "50 GB/s", "nvlink_latency": "1 us", "nic_bandwidth": "25 GB/s", "nic_latency": "2 us"}
    topology = ap.build_topology(shape="dgx", nodes=2, npus=4, **keys)
    problem = ap.collective("all_reduce", "1 MiB", topology)
    made = ap.build_algorithm("ring", "all_gather", 8)
    workload = replace(problem.jobs[0].workload, name="a<b")
    shown = [topology, workload, made, ap.simulate(problem), ap.run(SCENARIO, out=tmp_path)]
    for value in shown:
        name = type(value).__name__
        assert repr(value).startswith(f"{name}(") and len(repr(value)) < 200 and "\n" not in repr(value)
        assert f"<caption>{name} <b>" in value._repr_html_()
    assert repr(made) == "Algorithm(ring: all_gather, 8 ranks, 8 chunks)"
    assert "8 NPUs" in repr(topology) and "25 GB/s to 50 GB/s" in repr(topology)
    assert "<b>a&lt;b</b>" in workload._repr_html_()


RING = {"shape": "ring", "npus": 4, "bandwidth": "50 GB/s", "latency": "500 ns"}


def test_a_workload_built_in_python_is_the_one_of_a_scenario(tmp_path):
    groups = {"pair": [[0, 1], [2, 3]]}
    built = ap.workload(4, groups=groups)
    for layer in range(2):
        built.compute("10 us", name=f"layer{layer}").all_gather("1 MiB", group="pair")
    built.all_reduce("4 MiB", after="layer1").barrier().broadcast("64 KiB", root=2).send(0, 3, 4096)
    written = {
        "name": "same",
        "topologies": {"r": RING},
        "groups": groups,
        "workload": [
            {"compute": {"time": "10 us", "name": "layer0"}},
            {"all_gather": {"size": "1 MiB", "group": "pair"}},
            {"compute": {"time": "10 us", "name": "layer1"}},
            {"all_gather": {"size": "1 MiB", "group": "pair"}},
            {"all_reduce": {"size": "4 MiB", "after": "layer1"}},
            {"barrier": {}},
            {"broadcast": {"size": "64 KiB", "root": 2}},
            {"send": {"from": 0, "to": 3, "size": "4 KiB"}},
        ],
    }
    (point,) = ap.expand(ap.load_scenario(written))
    records = [
        ap.simulate(p, level="messages") for p in (ap.problem(built, ap.build_topology(**RING)), ap.prepare(point))
    ]
    assert records[0].makespan == records[1].makespan
    for one, other in zip(*(r.tables().values() for r in records), strict=True):
        for column in one:
            if column not in ("job", "bound"):
                assert np.array_equal(one[column], other[column]), column


def test_operations_need_a_price_and_take_it():
    topology = ap.build_topology(**RING)
    built = ap.workload(4).compute(operations="312 GFLOP")
    with pytest.raises(ap.AstraError, match="what they cost"):
        ap.problem(built, topology)
    assert ap.simulate(ap.problem(built, topology, compute={"peak": "312 TFLOP/s"})).makespan == 10**9


def test_a_problem_takes_an_algorithm_for_each_collective():
    topology = ap.build_topology(**RING)
    built = ap.workload(4).all_reduce("1 MiB").all_gather("1 MiB")
    for chosen, names in (
        ({"all_reduce": "direct"}, ["direct", "ring"]),
        (ap.build_algorithm("direct", "all_gather", 4), ["ring", "direct"]),
        ("direct", ["direct", "direct"]),
    ):
        records = ap.simulate(ap.problem(built, topology, algorithm=chosen))
        assert records.collective["algorithm"].tolist() == names


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: ap.workload(0), "0 is not a number of ranks"),
        (lambda: ap.workload(4).build(), "has no items"),
        (lambda: ap.workload(4).barrier().all_reduce("1 MXB"), r"workload\[1\].size"),
        (lambda: ap.workload(4).all_reduce("1 MiB", repaet=2), "repaet"),
        (lambda: ap.workload(4).all_reduce("1 MiB", root=1), "takes no root"),
        (lambda: ap.workload(4).collective("al_reduce", 1), "is not a collective"),
        (lambda: ap.workload(4).all_reduce("1 MiB", group="x").build(), 'group "x"'),
        (lambda: ap.workload(4, groups={"a": [0, 1]}), "list of lists"),
        (
            lambda: ap.collective(
                "all_reduce", 1, ap.build_topology(**RING), algorithm=ap.build_algorithm("ring", "all_gather", 4)
            ),
            "is an all_gather, not an all_reduce",
        ),
        (lambda: ap.problem(ap.workload(5).barrier(), ap.build_topology(**RING)), "5 ranks are more"),
        (
            lambda: ap.problem(ap.workload(4).barrier(), ap.build_topology(**RING), algorithm={"all_reduce": "ring"}),
            'calls no "all_reduce"',
        ),
    ],
)
def test_what_is_wrong_with_a_workload_is_told(wrong, said):
    with pytest.raises(ap.AstraError, match=said):
        wrong()


def test_a_topology_is_drawn_into_given_axes_and_is_a_graph_of_networkx():
    from matplotlib.figure import Figure

    fabric = {"bandwidth": "50 GB/s", "latency": "500 ns"}
    for keys in ({"shape": "torus", "dims": [3, 4]}, {"shape": "fat_tree", "k": 4}, {"shape": "ring", "npus": 1}):
        topology = ap.build_topology(**keys, **fabric)
        axes = Figure().subplots()
        assert topology.draw(ax=axes) is axes
        lines = [one for one in axes.collections if type(one).__name__ == "LineCollection"]
        # Two links of opposite directions are one line.
        assert sum(len(one.get_segments()) for one in lines) == topology.links / 2
        assert [text.get_text() for text in axes.texts][: topology.npus] == [str(npu) for npu in range(topology.npus)]
        graph = topology.to_networkx()
        assert (len(graph), graph.number_of_edges()) == (topology.vertices, topology.links)
        assert {(e["bandwidth_GBps"], e["latency_ns"]) for *_, e in graph.edges(data=True)} <= {(50.0, 500.0)}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    torus = {"shape": "torus", "dims": [2, 2], "bandwidth": "50 GB/s", "latency": "500 ns"}
    sweep = {"topology": ["r", "t"], "size": ["64 KiB", "1 MiB"]}
    scenario = {**SCENARIO, "topologies": {"r": RING, "t": torus}, "sweep": sweep}
    return ap.run(scenario, out=tmp_path_factory.mktemp("results"))


def test_results_are_plotted_into_given_axes(result):
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    assert ap.plot(result, "time", series="topology", where={"topology": "r"}, ax=axes) is axes
    assert axes.lines[0].get_ydata().tolist() == [float(row["time_ns"]) / 1000 for row in result.rows[:2]]
    for kind in ("busbw", "slowdown", "breakdown", "efficiency", "speedup", "stacked", "cdf", "pareto"):
        axes = Figure().subplots()
        assert ap.plot(result, kind, series="topology", ax=axes) is axes
        assert axes.lines or axes.patches
    assert ap.plot(result, "heatmap", series="topology").images
    one = {"topology": "r", "size": "1 MiB"}
    messages = ap.plot(result.folder, "cdf", of="messages", where=one)  # run again
    assert messages.lines[0].get_ydata()[-1] == 100
    for kind in ("links", "gantt"):  # recorded too coarsely: run again
        axes = Figure().subplots()
        assert ap.plot(result.folder, kind, where=one, ax=axes) is axes and axes.collections


def test_a_new_figure_has_an_axes_for_each_panel(result, monkeypatch):
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    monkeypatch.setattr(pyplot, "figure", Figure)
    assert ap.plot(result, series="topology").get_ylabel() == "time (µs)"
    assert len(ap.plot(result, facet="topology")) == 2
    problem = ap.problem(ap.workload(4).compute("1 us").all_reduce("1 MiB"), ap.build_topology(**RING))
    makespan = ap.simulate(problem).makespan
    assert makespan <= ap.plot(problem).get_xlim()[1] < 1.05 * makespan
    for of in ("ranks", "collectives", "messages"):
        assert ap.plot(problem, "cdf", of=of).get_ylabel() == f"share of {of} (%)"
    links = ap.plot(problem, "links")
    assert links.collections and [text.get_text() for text in links.texts] == ["0", "1", "2", "3"]


def test_results_problems_and_records_are_explained_alike(result):
    problem = ap.collective("all_reduce", "1 MiB", ap.build_topology(**RING))
    of_result = ap.explain(result, "topology=r,size=1 MiB")
    assert str(ap.explain(problem)) == str(of_result)
    assert ap.explain(ap.simulate(problem, level="messages")).makespan == of_result.makespan
    assert of_result._repr_html_().startswith("<pre>makespan 34.46 µs")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda result, problem, ax: ap.explain(result), "means 4 points"),
        (lambda result, problem, ax: ap.explain(result, "size=1"), 'no point has "1"'),
        (lambda result, problem, ax: ap.explain(problem, "size=1"), "has no points"),
        (lambda result, problem, ax: ap.explain(ap.simulate(problem)), "does not hold messages"),
        (lambda result, problem, ax: ap.plot(result, "tiem"), '"tiem"'),
        (lambda result, problem, ax: ap.plot(result, seris="topology"), "seris"),
        (lambda result, problem, ax: ap.plot(result, facet="topology", ax=ax), "2 panels do not fit"),
        (lambda result, problem, ax: ap.plot(problem, "time"), "compares points of a result"),
        (lambda result, problem, ax: ap.plot(ap.simulate(problem)), "holds no nodes"),
        (lambda result, problem, ax: ap.plot(ap.simulate(problem), "links"), "how links run"),
    ],
)
def test_what_cannot_be_explained_or_plotted_is_told(result, wrong, said):
    from matplotlib.figure import Figure

    with pytest.raises(ap.AstraError, match=said):
        wrong(result, ap.collective("all_reduce", "1 MiB", ap.build_topology(**RING)), Figure().subplots())


@pytest.mark.parametrize("algorithm", [None, "direct", "built"])
def test_a_collective_of_one_s_own(algorithm):
    topology = ap.build_topology(shape="fully_connected", npus=4, bandwidth="50 GB/s", latency="500 ns")
    chosen = ap.build_algorithm("ring", "all_reduce", 4) if algorithm == "built" else algorithm
    records = ap.simulate(ap.collective("all_reduce", 2**20, topology, algorithm=chosen))
    assert records.outcome.status == "done"
    assert records.collective["type"].tolist() == ["all_reduce"]


def test_a_collective_takes_every_field_of_the_network():
    topology = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    times = []
    for network in ({}, {"link_busy": "latency+bytes"}, {"send_completes": "injected", "msccl": {"slots": 1}}):
        problem = ap.collective("all_to_all", 2**20, topology, model="cut_through", **network)
        assert problem.network.model_fields_set == {"model", *network}
        times.append(ap.simulate(problem).makespan)
    assert times[1] > times[0]
    with pytest.raises(ap.AstraError, match="link_bsuy"):
        ap.collective("all_to_all", 2**20, topology, link_bsuy="bytes")


def test_an_algorithm_is_verified_from_python():
    assert ap.verify(ap.build_algorithm("ring", "all_gather", 5)).correct is True


@pytest.mark.parametrize(
    "module", ["astrasim_py", "astrasim_py.api", "astrasim_py.preparation.from_python", "astrasim_py.workload.build"]
)
def test_examples_in_docstrings_hold(module):
    import doctest
    import importlib

    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted and not result.failed


@pytest.mark.parametrize("form", ["mine", "mine.npz", "mine.xml"])
def test_an_algorithm_of_one_s_own_is_written_and_read_in_every_format(tmp_path, form):
    @ap.algorithm("all_reduce", chunks=1)
    def star(a):
        for rank in range(1, a.n):
            a[0][0] += a[rank][0]
        for rank in range(1, a.n):
            a[rank][0] = a[0][0]

    made = star(4)
    ap.write_algorithm(tmp_path / form, made)
    read = ap.read_algorithm(tmp_path / form)
    assert (read.collective, read.ranks, read.chunks, read.messages) == ("all_reduce", 4, 1, 6)
    assert ap.verify(read).passes
    network = ap.build_topology(shape="fully_connected", npus=4, bandwidth="50 GB/s", latency="500 ns")
    times = {ap.simulate(ap.collective("all_reduce", "1 MiB", network, algorithm=a)).makespan for a in (made, read)}
    assert len(times) == 1


def test_sizes_of_written_algorithms_may_be_text(tmp_path):
    ring = ap.build_algorithm("ring", "all_reduce", 4)
    for size in ("1 MiB", 2**20):
        ap.write_algorithm(tmp_path / "ring", ring, size=size)
        assert ap.read_algorithm(tmp_path / "ring", "all_reduce").made_for == 2**20
    ap.write_algorithm(tmp_path / "ring.xml", ring, min_bytes="1 KiB")
    assert 'minBytes="1024"' in (tmp_path / "ring.xml").read_text()
    with pytest.raises(ap.AstraError, match="is not a size"):
        ap.write_algorithm(tmp_path / "ring", ring, size="1 foo")
    for name, option in (("ring", "min_bytes"), ("ring.xml", "size"), ("ring.npz", "size"), ("ring", "sise")):
        with pytest.raises(ap.AstraError, match=f"has no option {option}"):
            ap.write_algorithm(tmp_path / name, ring, **{option: 1})


def test_a_problem_shows_itself_in_a_line():
    ring = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    problem = ap.collective("all_reduce", "1 MiB", ring)
    assert repr(problem) == "Problem(ring 4: 1 job, 4 ranks, cut_through)"
    assert "<table" in problem._repr_html_()
