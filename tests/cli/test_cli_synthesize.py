"""`synthesize`: verified files, stable JSON, the same bytes again, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import time

import pytest
from limits import WAIT_S

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core import cache
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.load import load_scenario
from astrasim_py.verification.verifier import verify

TORUS = "torus:3x3,bandwidth=50 GB/s,latency=500 ns"
ASKED = ["--collective", "all_gather", "--size", "9MiB", "--rounds", "3", "--format", "json", "--threads", "1"]
KEYS = (
    "topology", "collective", "npus", "chunks", "time_ns", "bound_ns", "efficiency", "optimal", "seconds",
    "transfers", "seed", "verified", "out",
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_schedules(monkeypatch, tmp_path):
    """Schedules of this test alone; compiled code is that of all."""

    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path / "cache")


def synthesize(capsys, *more: str, topology: str = TORUS) -> tuple[int, str, str]:
    code = main(["synthesize", "--topology", topology, *ASKED, *more])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.slow
def test_json_and_files(capsys, tmp_path):
    for name in ("a.npz", "a.xml", "prefix"):
        code, out, _ = synthesize(capsys, "--chunks", "1", "--output", str(tmp_path / name))
        row = json.loads(out)
        assert code == 0 and set(KEYS) <= row.keys()
        assert (row["npus"], row["chunks"], row["transfers"], row["seed"]) == (9, 1, 72, 1)
        assert row["verified"] is True and row["out"] == str(tmp_path / name)
        assert 0 < row["bound_ns"] <= row["time_ns"] and row["efficiency"] == pytest.approx(
            row["bound_ns"] / row["time_ns"], abs=1e-6
        )
        assert verify(ap.read_algorithm(tmp_path / name)).passes


def test_what_was_found_before_is_reused_and_fresh_finds_the_same(capsys, tmp_path):
    rows, files = [], []
    for more in ((), (), ("--fresh",)):
        path = tmp_path / f"{len(rows)}.npz"
        _, out, _ = synthesize(capsys, "--chunks", "2", "--output", str(path), *more)
        rows.append(json.loads(out))
        files.append(path.read_bytes())
    assert [row["reused"] for row in rows] == [False, True, False]
    assert files[0] == files[1] == files[2]
    assert all(row["time_ns"] == rows[0]["time_ns"] for row in rows)
    (kept,) = (tmp_path / "cache" / "schedules").iterdir()
    kept.write_bytes(kept.read_bytes()[:-40])
    assert json.loads(synthesize(capsys, "--chunks", "2")[1])["reused"] is False


@pytest.mark.slow
def test_topologies_are_given_in_many_ways(capsys, tmp_path):
    csv = tmp_path / "problem.csv"
    csv.write_text("# npus 3\nsrc,dst,bw_GiBps,lat_us\n0,1,50,0.5\n1,2,50,0.5\n2,0,25,0.7\n")
    edges = tmp_path / "edges.yaml"
    edges.write_text("npus: 2\nlinks:\n  - {src: 0, dst: 1, bandwidth: 1 GB/s, latency: 1 us, directions: both}\n")
    keys = tmp_path / "keys.yaml"
    keys.write_text("topology: {shape: ring, npus: 5, bandwidth: 1 GB/s, latency: 1 us, placement: linear}\n")
    ways = {str(csv): 3, str(edges): 2, str(keys): 5, "{shape: ring, npus: 4, bandwidth: 1 GB/s, latency: 1 us}": 4}
    for text, npus in ways.items():
        code, out, err = synthesize(capsys, topology=text)
        assert code == 0, err
        assert json.loads(out)["npus"] == npus


def test_two_tenants_side_by_side(capsys, tmp_path):
    holds = str(tmp_path / "a.csv")
    alone = json.loads(synthesize(capsys, "--ranks", "0-5", "--write-occupied", holds)[1])
    after = json.loads(synthesize(capsys, "--ranks", "3-8", "--occupied", holds)[1])
    assert after["time_ns"] > alone["time_ns"]
    code, _, err = synthesize(capsys, "--occupied", holds, topology="ring:4,bandwidth=1 GB/s,latency=1 us")
    assert code == 2 and "link" in err


@pytest.mark.slow
def test_two_tenants_take_their_claimed_times_together(capsys, tmp_path):
    """Written on the command line, run side by side in a scenario; or the second synthesized there."""
    topology = "mesh:3x3,bandwidth=50 GB/s,latency=500 ns"
    groups = {"a": "0,2,4,6,8", "b": "1,3,5,7"}
    claimed = {}
    for name, more in (
        ("a", ("--write-occupied", str(tmp_path / "a.csv"))),
        ("b", ("--occupied", str(tmp_path / "a.csv"))),
    ):
        out = ("--output", str(tmp_path / f"{name}.npz"), "--ranks", groups[name], "--relays")
        claimed[name] = json.loads(synthesize(capsys, *out, *more, topology=topology)[1])
    alone = json.loads(synthesize(capsys, "--ranks", groups["b"], "--relays", topology=topology)[1])
    assert alone["time_ns"] < claimed["b"]["time_ns"] and alone["bound_ns"] <= claimed["b"]["bound_ns"]
    for second in ("file: b.npz", "synthesize: {relays: true, occupied: [a.csv], rounds: 3}"):
        made = {"a": "file: a.npz", "b": second}
        jobs = "".join(
            f"  {name}: {{placement: [{groups[name]}], workload: [{{all_gather: {{size: 9 MiB}}}}], "
            f"algorithms: {{all_gather: {{{made[name]}}}}}}}\n"
            for name in groups
        )
        link = "bandwidth: 50 GB/s, latency: 500 ns"
        text = f"name: both\ntopologies:\n  mesh: {{shape: mesh, dims: [3, 3], {link}}}\njobs:\n{jobs}"
        (tmp_path / "both.yaml").write_text(text)
        result = run_scenario(load_scenario(tmp_path / "both.yaml"), out=tmp_path / "results", jobs=1, fresh=True)
        assert result.exit_code == 0, result.failures
        took = {row["job"]: float(row["time_ns"]) for row in result.summaries[0]["collectives"]}
        assert took == {name: float(row["time_ns"]) for name, row in claimed.items()}


def test_what_is_unwound_is_simulated_with_and_without_its_switches(capsys):
    row = json.loads(
        synthesize(capsys, "--unwind", "2", "--chunks", "1", topology="switch:5,bandwidth=50 GB/s,latency=500 ns")[1]
    )
    assert row["difference_ns"] == 0 and row["checked"] is True and row["engine"] == "simpy"
    assert 0 < row["with_switches_ns"] <= row["simulated_ns"] and "degree 2" in row["topology"]


@pytest.mark.slow
@pytest.mark.parametrize("topology", [TORUS, "switch:5,bandwidth=50 GB/s,latency=500 ns"])
def test_everything_written_is_simulated(capsys, tmp_path, topology):
    for collective in ("all_gather", "reduce_scatter", "broadcast", "scatter", "all_to_all"):
        for name in ("a.npz", "prefix", "a.xml"):
            more = ("--collective", collective, "--output", str(tmp_path / name), "--chunks", "2")
            code, out, err = synthesize(capsys, *more, topology=topology)
            row = json.loads(out)
            assert code == 0 and row["verified"] is True
            assert row["simulated_ns"] == pytest.approx(row["time_ns"] + row["difference_ns"])
            if name != "a.xml":
                assert row["difference_ns"] == 0
            elif row["difference_ns"]:
                assert f"it takes {row['simulated_ns']} ns" in err


def test_exchanges_of_unequal_blocks(capsys, tmp_path):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("# by sender\n0, 4 KiB, 8KiB\n4096 0 12288\n\n0,0,0\n")
    args = ["synthesize", "--topology", "ring:3,bandwidth=50 GB/s,latency=500 ns", "--collective", "all_to_all"]
    args += ["--blocks", str(sizes), "--rounds", "2", "--format", "json", "--output", str(tmp_path / "x.npz")]
    assert main(args) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["size_bytes"] == 20480 and row["difference_ns"] == 0
    assert verify(ap.read_algorithm(tmp_path / "x.npz")).passes
    args[args.index("all_to_all")] = "AllToAllv"
    assert main(args) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["reused"], again["time_ns"]) == (True, row["time_ns"])
    for text, words in (("0,1\n", ":1: 2 sizes"), ("0,1,x\n", ":1: "), ("0,1,2\n", "1 lines"), ("0,1,9 EiB\n", ":1: ")):
        sizes.write_text(text)
        assert main(args) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_however_long_it_takes_a_line_says_where_it_stands(capsys):
    from astrasim_py.cli import synthesize_run as verb
    from astrasim_py.runs.progress import progress_line
    from astrasim_py.synthesis.search.multi_start import Progress

    line = progress_line(every=0.1)
    seen = []

    def wait_for(words: str) -> None:
        # Nothing calls it meanwhile.
        for _ in range(20 * WAIT_S):
            seen.append(capsys.readouterr().err)
            if words in seen[-1]:
                return
            time.sleep(0.05)
        raise AssertionError(seen)

    line.show(verb._standing(Progress(0, 0, 0, 9, stage="bound")))
    wait_for("looking for bounds (")
    wait_for("looking for bounds (")
    line.show(verb._standing(Progress(3_000_000, 2_000_000, 4, 9, part=0.25)))
    wait_for("run 5/9: 25.0% done, best 3 µs, bound 2 µs, gap 50.0% (")
    line.show(verb._standing(Progress(3_000_000, 2_000_000, 4, 9, search="reduce_scatter half")))
    wait_for("reduce_scatter half, run 4/9: best 3 µs, bound 2 µs, gap 50.0% (")
    line.show(verb._STAGES["write"])
    wait_for("verifying, simulating, writing (")
    line.end()
    capsys.readouterr()
    quiet = progress_line(quiet=True, every=0.1)
    quiet.show(verb._standing(Progress(3, 2, 4, 9)))
    time.sleep(0.6)
    assert not capsys.readouterr().err, "neither of them says anything more"


def test_pictures(capsys, tmp_path):
    drawn = []
    for name, topology in (
        ("a.svg", "switch:3,bandwidth=50 GB/s,latency=500 ns"),
        ("b.svg", "switch:3,bandwidth=50 GB/s,latency=500 ns"),
        ("c.png", "torus:6x6,bandwidth=1 GB/s,latency=1 us"),
    ):
        figure = str(tmp_path / name)
        code, out, _ = synthesize(capsys, "--collective", "reduce_scatter", "--figure", figure, topology=topology)
        assert code == 0 and json.loads(out)["figure"] == figure
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1] and drawn[0].startswith(b"<?xml") and drawn[2].startswith(b"\x89PNG")


def test_a_proof(capsys):
    pytest.importorskip("ortools")
    ring = "ring:4,bandwidth=50 GB/s,latency=500 ns"
    row = json.loads(synthesize(capsys, "--exact", "--exact-limit", "20 s", "--chunks", "2", topology=ring)[1])
    assert row["exact"] is True and row["optimal"] is True and row["gap"] == 0 and row["cut"] is False


def test_without_its_solver_the_exact_mode_says_what_to_install(capsys, monkeypatch):
    import sys

    for name in ("ortools", "ortools.sat", "ortools.sat.python"):
        monkeypatch.setitem(sys.modules, name, None)
    code, out, err = synthesize(capsys, "--exact", "--fresh")
    said = [line for line in err.splitlines() if "compiling" not in line]
    assert code == 3 and not out and len(said) == 1 and "astrasim-py[exact]" in said[0]


def test_counting_keeps_nothing(capsys):
    row = json.loads(synthesize(capsys, "--count", "--chunks", "1")[1])
    assert row["transfers"] == 72 and row["verified"] is None and row["out"] is None


def test_an_all_reduce_is_counted_as_it_is_found(capsys):
    code, out, _ = synthesize(capsys, "--count", "--collective", "all_reduce", "--fresh")
    counted, found = json.loads(out), json.loads(synthesize(capsys, "--collective", "all_reduce", "--fresh")[1])
    assert code == 0 and counted["transfers"] == found["transfers"] == 144 * counted["chunks"]
    assert counted["time_ns"] == found["time_ns"]


@pytest.mark.parametrize(
    ("more", "topology", "words"),
    [
        ((), "nowhere:3", "neither a file nor a shape"),
        ((), "torus:3x3", '"bandwidth" is missing'),
        ((), "missing.csv", "cannot be read"),
        ((), "ring:8,bandwidth", "sets nothing"),
        (("--ranks", "0-90"), TORUS, "does not exist"),
        (("--ranks", "5-1"), TORUS, "backwards"),
        (("--ranks", "0,8,1,7"), "ring:9,bandwidth=1 GB/s,latency=1 us", ""),
        (("--ranks", "0,4"), "ring:9,bandwidth=1 GB/s,latency=1 us", "allow relays"),
        (("--chunks", "0"), TORUS, "no number of chunks"),
        (("--rounds", "0"), TORUS, "out of range"),
        (("--budget", "30"), TORUS, "no unit"),
        (("--memory", "50 MB"), TORUS, "--memory 50 MB: an all_gather of 9 NPUs needs about"),
        (("--memory", "50"), TORUS, "no unit"),
        (("--root", "1"), TORUS, "has no root"),
        (("--collective", "barrier"), TORUS, "cannot be synthesized"),
        (("--collective", "some_gather"), TORUS, "is not a collective"),
        (("--collective", "all_to_allv"), TORUS, "by --blocks FILE"),
        (("--size", "12"), TORUS, "unit"),
        (("--occupied", "missing.csv"), TORUS, "cannot be read"),
        (("--count", "--output", "x"), TORUS, "can neither be written"),
        (("--count", "--exact"), TORUS, "cannot be proven"),
        (("--exact-limit", "3 s"), TORUS, "add --exact"),
        (("--exact", "--exact-limit", "0 s"), TORUS, "no time"),
        (("--exact",), "ring:17,bandwidth=1 GB/s,latency=1 us", "more than the 16"),
        (("--unwind", "2"), TORUS, "no switch"),
        (("--unwind", "0"), "switch:4,bandwidth=1 GB/s,latency=1 us", "out of range"),
        (("--figure", "x.gif"), TORUS, "does not end in"),
        (("--blocks", "m.csv"), TORUS, "keep one"),
        (("--chunks", "1000000"), TORUS, "fit in memory"),
        (("--ranks", "0,0"), TORUS, "listed for ranks"),
        (("--output", ""), TORUS, "names no file"),
        (("--write-occupied", "x.txt"), TORUS, "does not end in .csv"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, more, topology, words):
    code, out, err = synthesize(capsys, *more, topology=topology)
    if not words:
        assert code == 0
        return
    said = [line for line in err.splitlines() if "compiling" not in line]
    assert code == 2 and not out and len(said) == 1 and words in said[0]


def test_an_output_that_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = synthesize(capsys, "--output", str(tmp_path / "file" / "x"))
    assert code == 5 and "cannot make" in err


def test_a_network_beside_the_topology_is_not_ignored_in_silence(tmp_path, capsys):
    """A scenario's file has a topology, and a network that the schedule may not be planned for."""
    path = tmp_path / "s.yaml"
    topology = "topology: {shape: mesh, dims: [2, 2], bandwidth: 50 GB/s, latency: 500 ns}\n"
    told = {
        "network: {model: fluid}\n": "not for network.model: fluid",
        "network: {model: cut_through, msccl: true}\nnic: {gap: 1 ns}\n": "not for network.msccl: True, nic",
        "network: {model: cut_through}\n": "",
        "": "",
    }
    for more, said in told.items():
        path.write_text(topology + more)
        argv = [
            "synthesize",
            "--topology",
            str(path),
            "--collective",
            "all_gather",
            "--size",
            "64 KiB",
            "--rounds",
            "1",
        ]
        assert main(argv) == 0
        err = capsys.readouterr().err
        assert said in err and ("warning: " in err) == bool(said)


@pytest.mark.parametrize("dialect", [None, "azure", "rccl", "classic"])
def test_xml_is_for_the_runtime_that_is_named(tmp_path, capsys, dialect):
    """The result says which runtime takes the file, and `verify` says the same."""
    out = str(tmp_path / "t.xml")
    options = [] if dialect is None else ["--dialect", dialect]
    asked = [*ASKED[:6], "--threads", "1", "--quiet", "--chunks", "1"]
    assert main(["synthesize", "--topology", TORUS, *asked, "--output", out, *options]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    name = {"azure": "Azure's runtime", "rccl": "RCCL"}.get(dialect, "the classic runtime")
    assert line.startswith(f"  for         {name}; ")
    assert main(["verify", out]) == 0
    verdict = capsys.readouterr().out
    if dialect in ("azure", "rccl"):
        assert "take it" not in verdict and line.endswith("all others take it, too")
    else:
        assert "Azure's runtime and RCCL do not take it" in verdict
        assert line.endswith("Azure's runtime and RCCL refuse it: write --dialect azure or --dialect rccl")
    assert main(["synthesize", "--topology", TORUS, *asked, "--output", out, *options, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["dialect"] == (dialect or "classic")


def test_a_dialect_needs_xml(tmp_path, capsys):
    out = str(tmp_path / "t.npz")
    assert main(["synthesize", "--topology", TORUS, *ASKED, "--output", out, "--dialect", "azure"]) == 2
    assert "--dialect: is of MSCCL-IR, which is not written" in capsys.readouterr().err


def test_a_network_in_parts_is_refused_in_one_line(capsys, tmp_path):
    path = tmp_path / "parts.csv"
    path.write_text("src,dst,bw_GBps,lat_us\n" + "".join(f"{a},{a ^ 1},50,1\n" for a in range(4)))
    for kind in ("all_gather", "all_reduce", "all_to_all", "broadcast"):
        code, out, err = synthesize(capsys, "--collective", kind, topology=str(path))
        assert code == 2 and not out and err.count("\n") == 1 and "no path leads from NPU 0 to NPU 2" in err


def test_a_budget_too_small_for_a_search_gives_the_first_schedule_and_says_so(capsys):
    uneven = "torus:4x4,bandwidth=[20 GB/s, 70 GB/s],latency=500 ns"
    more = ("--collective", "all_reduce", "--budget", "1 ns", "--fresh")
    code, out, err = synthesize(capsys, *more, topology=uneven)
    row = json.loads(out)
    assert code == 0 and row["cut"] and row["checked"]
    assert f"the first schedule is given ({row['policy']})" in err
