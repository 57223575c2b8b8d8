"""The command line: result on stdout, the rest on stderr, one exit code for each kind of ending."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astrasim_py.cli import new
from astrasim_py.cli.main import main
from astrasim_py.cli.verbs import SHORT, VERBS, commands

RING = """\
name: demo
title: Two sizes
topologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_reduce: {size: $size}}]
sweep: {size: [1 KiB, 1 MiB]}
"""
STUCK = """\
name: stuck
topologies: {r: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 0 ns}}
workload: [{compute: {time: 1 ms}}]
"""


@pytest.fixture
def scenario(tmp_path, monkeypatch) -> Path:
    """A small scenario; the current folder is its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(RING)
    return path


def run(capsys, *argv) -> tuple[int, str, str]:
    code = main([str(a) for a in argv])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


def process(*argv, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "astrasim_py", *map(str, argv)], capture_output=True, **options)


def test_run_leaves_tables_and_says_where(scenario, capsys):
    code, out, err = run(capsys, scenario, "--jobs", 1)
    assert code == 0 and not err
    assert out.splitlines()[0] == "Two sizes"
    assert "results: results/demo" in out
    assert Path("results/demo/summary.csv").is_file()
    assert len([p for p in Path("results/demo/points").glob("*/") if (p / "manifest.json").is_file()]) == 2


def test_run_is_the_verb_that_need_not_be_said(scenario, capsys):
    assert run(capsys, "run", scenario, "--jobs", 1)[1] == run(capsys, scenario, "--jobs", 1, "--fresh")[1]


def test_finished_points_are_used_again_and_the_run_says_so(scenario, capsys):
    run(capsys, scenario, "--jobs", 1)
    code, _, err = run(capsys, scenario, "--jobs", 1)
    assert code == 0 and "2 of 2 points were finished already" in err
    assert "finished already" not in run(capsys, scenario, "--jobs", 1, "--fresh")[2]
    assert not run(capsys, scenario, "--jobs", 1, "--quiet")[2]


def test_quiet_prints_nothing_but_errors(scenario, capsys):
    assert run(capsys, scenario, "--jobs", 1, "--quiet") == (0, "", "")
    assert len(json.loads(run(capsys, scenario, "--jobs", 1, "--quiet", "--format", "json")[1])) == 2
    scenario.write_text(RING + "limits: {max_sim_time: 20 us}\n")
    code, out, err = run(capsys, scenario, "--jobs", 1, "--quiet", "--fresh")
    assert code == 4 and not out and len(err.splitlines()) == 1 and "size=1 MiB" in err
    assert len(run(capsys, scenario, "--jobs", 1, "-v")[2].splitlines()) > 2, "all that is known of it"


def test_the_table_fits_the_terminal_and_is_whole_in_a_pipe(scenario, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = run(capsys, scenario, "--jobs", 1)[1]
    assert "busiest link" in wide and "columns in" not in wide
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run(capsys, scenario, "--jobs", 1)[1].splitlines()
    assert max(map(len, narrow[1:5])) <= 40 and "columns in summary.csv" in narrow[5]
    narrow = run(capsys, "results", "list")[1].splitlines()
    assert "point" in narrow[0] and "engine" not in narrow[0]


def test_rows_of_a_result_are_chosen_sorted_and_exported(scenario, capsys):
    code, out, _ = run(capsys, scenario, "--jobs", 1, "--sort=-size", "--top", 1, "--format", "csv")
    assert code == 0 and len(out.splitlines()) == 2 and ",1 MiB," in out
    assert out.splitlines()[0] + ",folder" == Path("results/demo/summary.csv").read_text().splitlines()[0]
    shown = run(capsys, scenario, "--jobs", 1, "--where", "size<1MiB")[1]
    assert "1 KiB" in shown and "1 MiB" not in shown and "1 of 2 rows" in shown
    assert run(capsys, scenario, "--format", "markdown")[1].startswith("| size | time |")
    out = run(capsys, "results", "list", "results/demo", "--where", "size>=1 MiB", "--format", "csv")[1]
    assert len(out.splitlines()) == 2 and out.rstrip().endswith("results/demo/points/002-1MiB")
    for option in (("--sort", "tme"), ("--where", "sise=1"), ("--where", "size=7 MiB"), ("--top", "0")):
        code, out, err = run(capsys, scenario, "--fresh", *option)
        assert code == 2 and not out and len(err.splitlines()) == 1 and option[0] in err


def test_one_point_is_not_called_points(scenario, capsys):
    scenario.write_text(RING.replace(", 1 MiB]", "]"))
    run(capsys, scenario, "--jobs", 1)
    assert "1 of 1 point was finished already" in run(capsys, scenario, "--jobs", 1)[2]
    assert "1 points" not in "".join(run(capsys, "check", scenario)[1:])


def test_rows_have_the_keys_that_were_promised(scenario, capsys):
    code, out, _ = run(capsys, scenario, "--format", "json", "--jobs", 1)
    rows = json.loads(out)
    assert code == 0 and len(rows) == 2
    assert list(rows[0]) == [
        "scenario",
        "point",
        "sweep",
        "topology",
        "algorithm",
        "size_bytes",
        "npus",
        "engine",
        "network_model",
        "time_ns",
        "bound_ns",
        "bound_by",
        "efficiency",
        "algbw_GBps",
        "busbw_GBps",
        "exposed_comm_ns",
        "messages",
        "message_hops",
        "busiest_link",
        "busiest_link_GBps",
        "cpu_s",
        "status",
    ]
    assert rows[1]["sweep"] == {"size": "1 MiB"}
    assert rows[1]["time_ns"] == 6 * 500 + 6 * 2**18 / 50
    assert (rows[1]["algorithm"], rows[1]["size_bytes"], rows[1]["status"]) == ("ring", 2**20, "done")


def test_shares_of_the_points_make_up_the_whole(scenario, capsys):
    names = []
    for share in ("1/2", "2/2"):
        code, out, _ = run(capsys, scenario, "--share", share, "--format", "json", "--jobs", 1)
        assert code == 0
        names += [row["point"] for row in json.loads(out)]
    assert names == ["size=1 KiB", "size=1 MiB"]


def test_set_reaches_the_run(scenario, capsys):
    _, out, _ = run(capsys, scenario, "--set", "topologies.r.npus=8", "--format", "json", "--jobs", 1)
    assert [row["npus"] for row in json.loads(out)] == [8, 8]


EXITS = [
    (0, ["--help"], None),
    (0, ["run", "--help"], None),
    (0, ["--version"], None),
    (0, [], None),
    (2, ["absent.yaml"], None),
    (2, ["nonsense", "--option"], None),
    (2, ["run"], None),
    (2, ["run", "s.yaml", "--share", "3/2"], RING),
    (2, ["run", "s.yaml", "--jobs", "0"], RING),
    (2, ["run", "s.yaml", "--max-sim-time", "5"], RING),
    (2, ["run", "s.yaml", "--set", "x"], RING),
    (2, ["check", "s.yaml"], RING.replace("npus: 4", "npus: 0")),
    (2, ["s.yaml"], RING.replace("npus: 4", "npus: 0")),
    (3, ["s.yaml", "--jobs", "1"], RING + "algorithms: {all_reduce: {file: nothing}}\n"),
    (3, ["check", "s.yaml"], RING + "algorithms: {all_reduce: {file: nothing}}\n"),
    (4, ["s.yaml", "--jobs", "1", "--max-sim-time", "1 us"], STUCK),
    (4, ["s.yaml", "--jobs", "1", "--max-events", "3"], RING),
    (5, ["s.yaml", "--jobs", "1", "--out", "s.yaml"], RING),
    (2, ["explain", "nowhere"], None),
    (2, ["results", "plot", "nowhere"], None),
    (2, ["new", "no_such_lesson"], None),
]


@pytest.mark.parametrize(("expected", "argv", "text"), EXITS, ids=[" ".join(e[1]) or "(nothing)" for e in EXITS])
def test_exit_codes(tmp_path, monkeypatch, capsys, expected, argv, text):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("s.yaml").write_text(text)
    code, _, err = run(capsys, *argv)
    assert code == expected
    assert bool(err) == bool(expected)
    assert all(line.startswith("astrasim-py: ") for line in err.splitlines())


def test_several_scenarios_exit_with_the_worst(scenario, capsys):
    Path("bad.yaml").write_text(RING.replace("npus: 4", "npus: 0").replace("demo", "bad"))
    code, out, err = run(capsys, "bad.yaml", scenario, "--jobs", 1)
    assert code == 2
    assert "results/demo" in out and "npus: 0 is less than 1" in err


def test_check_counts_points_and_messages(scenario, capsys):
    code, out, err = run(capsys, "check", scenario)
    assert (code, err) == (0, "")
    assert out == f"{scenario}: demo: 2 points, 48 messages\n"
    assert json.loads(run(capsys, "check", scenario, "--format", "json")[1])[0]["messages"] == 48
    assert not Path("results").exists()


def test_explain_and_plot_a_finished_point(scenario, capsys):
    run(capsys, scenario, "--jobs", 1)
    folder = next(Path("results/demo/points").glob("*-1MiB"))
    code, out, err = run(capsys, "explain", folder)
    assert code == 0 and "critical path" in out and "ran it again" in err
    code, out, _ = run(capsys, "results", "plot", folder)
    assert code == 0 and all(Path(line).is_file() for line in out.splitlines()) and out


def test_schema_prints_what_ships(capsys, package):
    code, out, _ = run(capsys, "list", "schema")
    assert code == 0
    assert out == (package / "data/schema/scenario.schema.json").read_text("utf-8")


@pytest.mark.slow
def test_a_lesson_can_be_copied_checked_and_only_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "new", "ring_vs_torus")
    assert code == 0 and out.splitlines() == [
        "ring_vs_torus.yaml",
        "scenario.schema.json",
        *(
            f"algorithms/ring_{kind}_64.0.et.gz … ring_{kind}_64.63.et.gz (64 files)"
            for kind in ("all_gather", "all_reduce")
        ),
        "run it with astrasim-py ring_vs_torus.yaml",
    ]
    assert (
        (tmp_path / "ring_vs_torus.yaml").read_text().startswith("# yaml-language-server: $schema=scenario.schema.json")
    )
    assert (tmp_path / "scenario.schema.json").is_file()
    assert run(capsys, "check", "ring_vs_torus.yaml", "--set", "sweep.size=[64 KiB]")[0] == 0
    code, _, err = run(capsys, "new", "ring_vs_torus")
    assert code == 5 and "is there already" in err


def test_new_names_few_lessons_and_lists_the_rest_on_demand(capsys, repo):
    code, alone, _ = run(capsys, "new")
    assert code == 0 and "ring_vs_torus" in alone and len(alone.splitlines()) <= 12
    files = sorted(path.stem for path in (repo / "scenarios").glob("*.yaml"))
    listed = [line.split()[0] for line in run(capsys, "new", "--all")[1].splitlines()]
    assert listed == files
    by_group = [name for _, members in new.GROUPS.values() for name in members]
    assert sorted(by_group) == files, "every lesson is in one group"
    for group, (_, members) in new.GROUPS.items():
        assert [line.split()[0] for line in run(capsys, "new", group)[1].splitlines()] == members
    assert 'did you mean "ring_vs_torus"?' in run(capsys, "new", "ring_torus")[2]
    assert 'did you mean "training"?' in run(capsys, "new", "trainings")[2]
    assert "new --all lists them" in run(capsys, "new", "xyzzy")[2]
    assert run(capsys, "new", "--all", "themis")[0] == 2


def test_names_of_results_cannot_leave_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("../../x", "/x", ".x", '"a\\nb"', "a/b"):
        Path("s.yaml").write_text(RING.replace("name: demo", f"name: {name}"))
        assert run(capsys, "s.yaml")[0] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.yaml"]


def test_a_defect_of_ours_is_one_line_that_asks_for_a_report(scenario, capsys, monkeypatch):
    from astrasim_py.cli import schema

    def broken(args):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(schema, "run", broken)
    code, out, err = run(capsys, "list", "schema")
    assert (code, out) == (70, "")
    assert err.count("\n") == 1 and "please report" in err and "RuntimeError: two lines" in err
    monkeypatch.setenv("ASTRASIM_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["list", "schema"])


def test_an_interruption_exits_with_130(scenario, capsys, monkeypatch):
    from astrasim_py.cli import schema

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(schema, "run", interrupted)
    assert run(capsys, "list", "schema")[0] == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_turns_into_an_error_exits_with_130(capsys, monkeypatch, number):
    from astrasim_py.cli import schema

    def interrupted(args):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise TypeError("cannot compare")

    monkeypatch.setattr(schema, "run", interrupted)
    assert run(capsys, "list", "schema") == (130, "", "astrasim-py: interrupted\n")


def test_help_imports_nothing_heavy():
    """Of any verb, of each format of `trace convert`, too; checks of what is written come with pydantic for some."""
    program = (
        "import sys; from astrasim_py.cli.main import main; from astrasim_py.cli.verbs import commands;"
        "main(['--help']); main(['run', '--help']);"
        "heavy = {'matplotlib', 'networkx', 'numba', 'numpy', 'simpy', 'rich', 'pandas'};"
        "loaded = lambda: {name.partition('.')[0] for name in sys.modules};"
        "first = (heavy | {'pydantic', 'yaml'}) & loaded();"
        "formats = [('trace', 'convert', name) for name in ('pytorch', 'astra_sim_text')];"
        "[main([*path, '--help']) for path in (*(path for path, _ in commands()), *formats)];"
        "sys.exit(' '.join(first | heavy & loaded()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_astrasim_py_costs_nothing():
    program = "import sys, astrasim_py; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_check_imports_no_plotting(scenario):
    program = (
        "import sys; from astrasim_py.cli.main import main; main(['check', sys.argv[1]]);"
        "sys.exit(bool({'matplotlib', 'networkx', 'numba'} & {n.partition('.')[0] for n in sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(scenario)], capture_output=True).returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="no shell pipes")
def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m astrasim_py list schema | head -c 10; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.endswith("0\n") and not done.stderr


def test_terminals_without_unicode_are_safe(scenario):
    scenario.write_text(RING.replace("Two sizes", "Größe → λ"), "utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = process("run", scenario, "--jobs", 1, env=env, cwd=scenario.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == b"Gr??e > ?"


def test_the_same_in_a_folder_with_spaces_and_umlauts(tmp_path):
    folder = tmp_path / "ein Ordner für Läufe"
    folder.mkdir()
    (folder / "s.yaml").write_text(RING.replace("\n", "\r\n"), "utf-8", newline="")
    done = process("s.yaml", "--jobs", 1, "--format", "json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 2


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_verb_has_help(capsys, path):
    code, out, err = run(capsys, *path, "--help")
    assert (code, err) == (0, "") and f"usage: astrasim-py {' '.join(path)}" in out
    assert run(capsys, "help", *path) == (code, out, err)


def test_a_group_without_an_action_says_what_its_actions_are(capsys):
    for group in ("results", "measured", "measured validate", "measured calibrate", "trace"):
        code, out, err = run(capsys, *group.split())
        assert (code, err) == (0, "") and run(capsys, *group.split(), "--help")[1] == out
    for name in VERBS["results"].actions:
        assert f"\n  {name} " in run(capsys, "results")[1]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("chekc", '"check"'),
        ("topolgy ring:4", '"list topology"'),
        ("results plto x", '"plot"'),
        ("measured validate trainings", '"training"'),
        ("list topolgy", '"topology"'),
        ("trace slic a b", '"slice"'),
        ("trace slice a b --rnks 0", '"--ranks"'),
        ("trace convert pytorh a", '"pytorch"'),
        ("run s.yaml --record sumary", '"summary"'),
        ("run s.yaml --frsh", '"--fresh"'),
    ],
)
def test_a_misspelt_word_names_the_nearest_one(capsys, words, hint):
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (2, "") and err.endswith(f"did you mean {hint}?\n") and err.count("\n") == 1


def test_short_forms_are_the_long_ones(scenario, capsys):
    for short in SHORT:
        assert run(capsys, short, "nowhere") == run(capsys, *SHORT[short], "nowhere")
        assert run(capsys, short, "--help") == run(capsys, *SHORT[short], "--help")
