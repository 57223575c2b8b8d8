"""Messages of fixed sizes, and programs for a range of sizes: no time of another size is taken for that of a call."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.cli.main import main
from astrasim_py.program.interchange import algorithm_traces

MADE_FOR = 2**20
SIZES = (MADE_FOR // 2, MADE_FOR - 8, MADE_FOR, MADE_FOR + 8, 64 * MADE_FOR)
#: Builders that move no more than their collective needs, for 4 ranks, and one that does.
LEAST = [
    ("ring", "all_gather"),
    ("ring", "reduce_scatter"),
    ("ring", "all_reduce"),
    ("direct", "all_to_all"),
    ("halving_doubling", "all_reduce"),
    ("binomial_tree", "broadcast"),
    ("direct", "gather"),
]
MORE = ("recursive_doubling", "all_reduce")


def fixed(folder, builder, kind, size=MADE_FOR):
    """Files of an algorithm of 4 ranks whose sizes are bytes, as other producers write them."""
    rooted = {"root": 0} if kind in ("broadcast", "gather") else {}
    traces = algorithm_traces(build(builder, kind, 4, **rooted), size)
    bare = [trace.replace(metadata=[each for each in trace.metadata if each.name != "made_for"]) for trace in traces]
    write_prefix(folder / "made", bare, dialect="absolute")


def scenario(folder, kind, sizes=SIZES, more="", model="cut_through"):
    path = folder / "fixed.yaml"
    path.write_text(
        "topology: {shape: fully_connected, npus: 4, bandwidth: 1 GB/s, latency: 1 us}\n"
        f"workload: [{{{kind}: {{size: $size}}}}]\nnetwork: {{model: {model}}}\n"
        f"algorithms: {{{kind}: {{file: made{more}}}}}\n"
        f"sweep: {{size: [{', '.join(f'{size} B' for size in sizes)}]}}\n"
    )
    return path


def of_sizes(result):
    return [text for text in result.warnings if "messages have" in text]


@pytest.mark.parametrize(("builder", "kind"), [*LEAST, MORE])
@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_rates_are_stated_of_the_right_size_only(tmp_path, builder, kind, engine):
    """At other sizes a time is that of the written bytes, so a rate would lie: it is left empty, with a warning."""
    fixed(tmp_path, builder, kind)
    result = ap.run(scenario(tmp_path, kind), out=tmp_path / "out", jobs=1, engine=engine)
    times = {row["time_ns"] for row in result.rows}
    assert len(times) == 1
    rated = [size for size, row in zip(SIZES, result.rows, strict=True) if row["algbw_GBps"] is not None]
    assert rated == ([] if (builder, kind) == MORE else [MADE_FOR])
    for size, summary in zip(SIZES, result.summaries, strict=True):
        assert (size in rated) == all("messages have" not in text for text in summary["warnings"])
        (call,) = summary["collectives"]
        assert (call["algbw_GBps"] is None) == (call["busbw_GBps"] is None) == (size not in rated)
    assert of_sizes(result) and all("made_for" in text for text in of_sizes(result))
    cells = (tmp_path / "out" / "fixed" / "collectives.csv").read_text().splitlines()
    assert sum(line.split(",")[13:15] == ["", ""] for line in cells) == len(SIZES) - len(rated)


@pytest.mark.parametrize("size", SIZES)
def test_made_for_lets_them_follow_the_call(tmp_path, size):
    fixed(tmp_path, "ring", "all_gather")
    result = ap.run(scenario(tmp_path, "all_gather", [size], ", made_for: 1 MiB"), out=tmp_path / "out", jobs=1)
    assert not of_sizes(result) and result.rows[0]["busbw_GBps"] is not None
    # A wrong one does not: too few bytes are moved.
    wrong = ap.run(scenario(tmp_path, "all_gather", [size], ", made_for: 2 MiB"), out=tmp_path / "wrong", jobs=1)
    (text,) = of_sizes(wrong)
    assert text.endswith("; check made_for") and wrong.rows[0]["busbw_GBps"] is None


def test_strict_refuses_them_and_check_says_so(tmp_path, capsys):
    fixed(tmp_path, "ring", "all_gather")
    path = scenario(tmp_path, "all_gather")
    assert main(["run", str(path), "--strict", "-v", "--jobs=1", "--out", str(tmp_path / "out")]) == 1
    assert "and all_gather of 64 MiB on 4 ranks needs 192 MiB or more" in capsys.readouterr().err
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().out.count("messages have") == len(SIZES) - 1
    # What is explained later says it, too.
    main(["run", str(path), "--jobs=1", "--quiet", "--out", str(tmp_path / "out")])
    capsys.readouterr()
    assert main(["explain", "fixed@size=64 MiB", "--out", str(tmp_path / "out")]) == 0
    assert "warning: " in capsys.readouterr().err


@pytest.mark.parametrize("npus", [4, 8])
def test_the_load_of_a_reduction_in_a_switch_is_no_wrong_size(tmp_path, npus):
    """It is less than any algorithm without switches sends."""
    text = f"topology: {{preset: dgx_h100, nodes: 1, npus: {npus}}}\nnetwork: {{profile: dgx_h100}}\nalgorithms: nccl\n"
    (tmp_path / "s.yaml").write_text(text + "workload: [{all_reduce: {size: 256 MiB}}]\n")
    made = ap.run(tmp_path / "s.yaml", out=tmp_path / "out", jobs=1)
    assert made.rows[0]["algorithm"].startswith("switch") and made.rows[0]["busbw_GBps"]
    assert not [line for line in made.warnings if "messages have" in line]


def test_sizes_as_written_by_semantics(tmp_path):
    """`injected_sizes: verbatim` takes bytes as they are, also where there are chunks beside them."""
    made = build("ring", "all_gather", 4)
    write_prefix(tmp_path / "made", algorithm_traces(made, MADE_FOR))
    path = scenario(tmp_path, "all_gather")
    assert not of_sizes(ap.run(path, out=tmp_path / "out", jobs=1))
    result = ap.run(path, overrides=["semantics={injected_sizes: verbatim}"], out=tmp_path / "verbatim", jobs=1)
    assert [row["busbw_GBps"] is None for row in result.rows] == [size != MADE_FOR for size in SIZES]
    assert all("injected_sizes: symbolic" in text for text in of_sizes(result))


def test_python_says_it_with_a_warning(tmp_path):
    fixed(tmp_path, "ring", "all_gather")
    made = ap.read_algorithm(tmp_path / "made", "all_gather")
    network = ap.build_topology(shape="ring", npus=4, bandwidth="1 GB/s", latency="1 us")
    with pytest.warns(UserWarning, match="messages have 3 MiB in all"):
        records = ap.simulate(ap.collective("all_gather", "64 MiB", network, algorithm=made))
    assert math.isnan(records.collective.to_dataframe()["algbw_GBps"][0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for algorithm in (replace(made, made_for=MADE_FOR), build("ring", "all_gather", 4)):
            records = ap.simulate(ap.collective("all_gather", "64 MiB", network, algorithm=algorithm))
            assert records.collective.to_dataframe()["algbw_GBps"][0] > 0


@pytest.mark.parametrize(
    ("model", "builder", "beyond"),
    [
        ("analytical", "direct", True),
        ("analytical", "ring", False),
        ("analytical", "{builder: ring, bidirectional: true}", False),
        ("cut_through", "direct", False),
    ],
)
def test_a_bandwidth_beyond_the_links_is_marked(tmp_path, model, builder, beyond):
    """Without contention seven messages leave a rank at once, each at the rate of a link that all of them cross."""
    path = tmp_path / "shared.yaml"
    path.write_text(
        "topology: {shape: ring, npus: 8, bandwidth: 50 GB/s, latency: 500 ns}\n"
        f"workload: [{{all_reduce: {{size: 64 MiB}}}}]\nalgorithms: {{all_reduce: {builder}}}\n"
        f"network: {{model: {model}}}\n"
    )
    result = ap.run(path, out=tmp_path / "out", jobs=1)
    (row,) = result.rows
    # An all_reduce has twice 7/8 of its bytes leave each NPU, which has two links: busbw of all is 100 GB/s at most.
    assert (row["busbw_GBps"] > 100) == beyond
    assert [("beyond what they carry" in text) for text in result.notes] == [True] * beyond
    # The model is as the scenario wants it: nothing is wrong.
    assert not result.warnings


def test_a_folded_training_marks_its_calls(tmp_path):
    """Of which the records hold those of the first ranks only."""
    path = tmp_path / "fold.yaml"
    path.write_text(
        "topology: {preset: dgx_h100, nodes: 2}\ncompute: {preset: dgx_h100}\nnetwork: {model: analytical}\n"
        "workload: {training: {model: llama3-8b, seq: 2048, gbs: 32, tp: 8, zero: 1}, memory: ignore}\n"
        "algorithms: {all_reduce: direct, all_gather: direct, reduce_scatter: direct}\nrecord: summary\n"
    )
    folded, whole = (ap.run(path, out=tmp_path / str(fold), jobs=1, fold=fold) for fold in (True, False))
    assert folded.exit_code == whole.exit_code == 0
    marked = [[text for text in each.notes if "beyond what they carry" in text] for each in (folded, whole)]
    assert marked[0] == marked[1]


# -- programs of MSCCL-IR for a range of sizes

KIB = 1024
WINDOWS = {
    'minBytes="8192" maxBytes="65536"': (8 * KIB, 64 * KIB - 1),
    'outofplace="0" minBytes="8192" maxBytes="65536"': (8 * KIB, 64 * KIB),
    'outofplace="0" minBytes="8192" maxBytes="0"': (8 * KIB, 2**60),
    'outofplace="0" minBytes="0" maxBytes="65536"': (0, 64 * KIB),
    'maxBytes="65536"': (0, 64 * KIB - 1),
    'minBytes="8192"': (8 * KIB, 2**60),
    "": (0, 2**60),
}
AROUND = [8 * KIB - 4, 8 * KIB, 64 * KIB - 4, 64 * KIB, 64 * KIB + 4, 2**30]


def program(window):
    """An all_gather of two ranks."""
    gpus = ""
    for rank in range(2):
        steps = "".join(
            f'<step s="{s}" type="{kind}" srcbuf="{a}" srcoff="{at}" dstbuf="o" dstoff="{to}" cnt="1" depid="-1" '
            f'deps="-1" hasdep="0"/>\n'
            for s, kind, a, at, to in ((0, "s", "o", rank, rank), (1, "r", "i", 0, 1 - rank))
        )
        gpus += (
            f'<gpu id="{rank}" i_chunks="0" o_chunks="2" s_chunks="0">\n<tb id="0" send="{1 - rank}" '
            f'recv="{1 - rank}" chan="0">\n{steps}</tb>\n</gpu>\n'
        )
    head = '<algo name="w" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" inplace="1"'
    return f"{head} {window}>\n{gpus}</algo>\n"


@pytest.mark.parametrize("window", WINDOWS)
def test_a_program_is_for_its_range_of_sizes(tmp_path, capsys, window):
    low, high = WINDOWS[window]
    (tmp_path / "w.xml").write_text(program(window))
    assert main(["convert", str(tmp_path / "w.xml"), str(tmp_path / "et")]) == 0
    assert main(["convert", str(tmp_path / "w.xml"), str(tmp_path / "w.npz")]) == 0
    outside = [size for size in AROUND if not low <= size <= high]
    for file in ("w.xml", "et", "w.npz"):
        path = tmp_path / "w.yaml"
        path.write_text(
            "topology: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
            f"workload: [{{all_gather: {{size: $size}}}}]\nalgorithms: {{all_gather: {{file: {file}}}}}\n"
            f"sweep: {{size: [{', '.join(f'{size} B' for size in AROUND)}]}}\n"
        )
        result = ap.run(path, out=tmp_path / "out", jobs=1)
        told = [any("runtimes take it for" in text for text in each["warnings"]) for each in result.summaries]
        assert [size for size, said in zip(AROUND, told, strict=True) if said] == outside
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "w.xml"), "--format", "json"]) == 0
    said = [text for text in json.loads(capsys.readouterr().out)["warnings"] if "runtimes take it for" in text]
    assert len(said) == ((low, high) != (0, 2**60))
    for size in AROUND:
        assert main(["convert", str(tmp_path / "w.xml"), str(tmp_path / "et"), "--size", f"{size} B"]) == 0
        assert ("warning: " in capsys.readouterr().out) == (size in outside)


def test_a_case_chosen_by_size_says_nothing(tmp_path):
    (tmp_path / "w.xml").write_text(program('minBytes="8" maxBytes="65536"'))
    path = tmp_path / "w.yaml"
    path.write_text(
        "topology: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}\n"
        "workload: [{all_gather: {size: $size}}]\nsweep: {size: [4 KiB, 1 MiB]}\n"
        'algorithms: {all_gather: [{file: w.xml, when: {size: "< 64 KiB"}}, ring]}\n'
    )
    assert not ap.run(path, out=tmp_path / "out", jobs=1).warnings


@pytest.mark.parametrize("name", ["09-xml-size-window/w.yaml", "10-fixed-size-algorithm/f.yaml"])
def test_reported_inputs(golden, tmp_path, name):
    result = ap.run(golden / "reports" / name, out=tmp_path, jobs=1)
    assert any("runtimes take it for" in text or "messages have" in text for text in result.warnings)
    assert all((row["busbw_GBps"] or 0) <= 50 for row in result.rows)
