"""Hostile scenario files: each is refused with a place and a remedy, within its budget."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest

#: File of `yaml` → exit code and what its error lines say, one pattern per line of error.
FILES = {
    "row15_bandwidths": (
        2,
        r":3:43: topologies.zero.bandwidth: .*zero",
        r":4:\d+: topologies.negative.bandwidth: .*negative",
        r":5:\d+: topologies.not_a_number.bandwidth: nan",
        r":6:\d+: topologies.nan_text.bandwidth: ",
        r":7:\d+: topologies.infinite.bandwidth: inf",
        r':8:\d+: topologies.fast.bandwidth: "fast" is not a bandwidth',
        r":9:\d+: topologies.too_large.bandwidth: .*out of range",
        r":10:\d+: topologies.huge_exponent.bandwidth: ",
        r":11:\d+: topologies.no_unit.bandwidth: 50 .*no unit",
        r":12:\d+: topologies.wrong_unit.bandwidth: .*unknown unit",
    ),
    "row16_numbers": (
        2,
        r":3:\d+: topologies.early.latency: .*negative",
        r":4:\d+: topologies.late.latency: .*2\^63 - 1 ps",
        r":5:\d+: topologies.none.npus: 0 is less than 1",
        r":6:\d+: topologies.less.npus: -1 is less than 1",
        r":7:\d+: topologies.many.npus: .*cap of 1,048,576",
        r":8:\d+: topologies.half.npus: 1.5",
        r":9:\d+: topologies.truth.npus: true",
        r":10:\d+: topologies.octal.npus: .010",
        r":12:\d+: workload\[0\].all_reduce.size: .*more than 2\^63 - 1 bytes",
        r":12:\d+: workload\[1\].all_reduce.size: .*negative",
        r":12:\d+: workload\[2\].all_reduce.size: .*not a whole number of bytes",
    ),
    "row16_torus_overflow": (2, r":3:10: topologies.torus: .*cap of 1048576"),
    "row16_too_many_links": (2, r":3:9: topologies.full: 999999000000 links .*cap of 16777216"),
    "row16_product_overflow": (2, r":4:5: topologies.box: 1000000000000 NPUs .*cap of 1048576"),
    "row17_disconnected": (2, r":4:5: topologies.islands.edges: no path leads from NPU 0 to NPU 2"),
    "row17_one_way": (2, r":4:5: .*no path leads from NPU 1 to NPU 0"),
    "row17_failed_links": (2, r":3:9: topologies.ring: no path leads from NPU 0 to NPU 1"),
    "row17_self_loop": (2, r":4:5: topologies.loop.edges\[1\]: a self-loop: 1 to 1"),
    "row18_duplicate_key": (2, r':5:1: topologies: the key "topologies" appears twice \(first in line 2\)'),
    "row18_unknown_keys": (
        2,
        r':4:1: worklod: .*did you mean "workload"',
        r':3:23: topologies.ring.npuss: .*did you mean "npus"',
        r':6:31: workload\[0\].all_reduce.sise: .*did you mean "size"',
        r':7:5: workload\[1\].allreduce: .*did you mean "all_reduce"',
        r':8:11: network.modell: .*did you mean "model"',
    ),
    "row18_tabs": (2, r":3:1: .*spaces, not tabs"),
    "row18_two_documents": (2, r":5:1: a second document"),
    "row18_python_tag": (2, r":1:7: the tag .*not allowed"),
    "row18_byte_order_mark": (2, r":1:1: .*byte-order mark"),
    "row18_utf16": (2, r":1:1: .*UTF-16"),
    "row18_latin1": (2, r":1:10: the byte 0xe9 is not UTF-8"),
    "row18_empty": (2, r":1:1: the file is empty"),
    "row18_only_comment": (2, r":1:1: the file is empty"),
    "row18_nul": (2, r":1:10: a NUL character"),
    "row18_control": (2, r":1:11: the character U\+0007"),
    "row18_list": (2, r":1:1: the document is not a mapping"),
    "row18_unclosed": (2, r":2:11: .*close the bracket"),
    "row18_unknown_anchor": (2, r":1:7: .*nobody"),
    "row18_list_as_key": (2, r":1:3: a key that is not plain text"),
    "row18_escape": (2, r":1:10: not YAML"),
    "row18_surrogate": (2, r":1:7: name: half of a surrogate pair"),
    "row18_long_number": (2, r":1:7: name: a number of 5000 characters"),
    "row18_dates_and_words": (
        2,
        r':4:\d+: topologies.ring.npus: "12:30:00" is not a whole number',
        r":5:\d+: workload\[0\].all_reduce.size: .*no unit",
    ),
    "row19_alias_bomb": (2, r"more than 100,000 values once aliases are written out"),
    "row19_self_alias": (2, r":2:7: an alias refers to the value that contains it"),
    "row19_self_merge": (2, r":2:7: an alias refers to the value that contains it"),
    "row21_name_leads_out": (2, r':1:7: name: "../../x" is not a name'),
    "row21_name_is_a_device": (2, r':1:7: name: "CON" is the name of a device'),
    "row21_name_with_newline": (2, r":1:7: name: .* is not a name"),
    "row21_name_is_hidden": (2, r':1:7: name: ".hidden" is not a name'),
    "row21_trace_leads_out": (2, r":4:19: workload.trace: .*leads out of the folder"),
    "row21_trace_is_absolute": (2, r":4:19: workload.trace: .*leads out of the folder"),
    "row21_other_files_lead_out": (
        2,
        r":3:33: topologies.net.file: ",
        r":4:30: workload.groups: ",
        r":5:33: algorithms.all_reduce.file: ",
    ),
    "row21_code_is_not_run": (2, r":5:35: algorithms.all_reduce.python: .*--allow-code"),
    "row24_sweep_of_1e9": (2, r":7:3: sweep: 1,002,000,000 points are more than the cap of 10,000"),
}


def test_every_hostile_file_is_expected(bad):
    assert sorted(path.stem for path in (bad / "yaml").iterdir()) == sorted(FILES)


@pytest.mark.parametrize(
    ("verb", "name"), [*(("run", name) for name in FILES), *(("check", name) for name in FILES if "row17" in name)]
)
def test_hostile_files(cli, bad, verb, name):
    code, *patterns = FILES[name]
    shutil.copy(bad / "yaml" / f"{name}.yaml", cli.folder / "s.yaml")
    cli.write("evil.py", "open('evil', 'w')")
    ended = cli(verb, "s.yaml")
    cli.refused(ended, code, *(rf"s\.yaml{pattern}" if pattern[0] == ":" else pattern for pattern in patterns))
    assert len(ended.lines) == len(patterns), "one line per error, all at once"
    for line in ended.lines:
        assert re.match(r"s\.yaml:\d+:\d+: ", line), "its place"
        assert "; " in line, "and a remedy"
    assert sorted(path.name for path in cli.folder.iterdir()) == ["evil.py", "s.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["row16_too_many_links", "row19_alias_bomb", "row24_sweep_of_1e9"])
def test_hostile_files_in_a_process_of_their_own(cli, bad, name):
    cli.refused(cli.process("run", bad / "yaml" / f"{name}.yaml"), 2, *FILES[name][1:])


# -- 10, 17: what only all together shows -----------------------------------------------------------------------


def test_row_10_more_ranks_than_npus(cli, base):
    cli.refused(cli("run", cli.write("s.yaml", base + "ranks: 5\n")), 2, r"s\.yaml:\d+:\d+: ranks: 5 ranks .* 4 NPUs")


def test_row_17_parallel_links_and_spines_are_legal(cli):
    link = "bandwidth: 50 GB/s, latency: 500 ns"
    edges = f"[{{src: 0, dst: s, {link}}}, {{src: 0, dst: s, {link}}}, {{src: 1, dst: s, {link}}}]"
    edges = edges.replace("}", ", directions: both}")
    text = f"name: legal\ntopologies: {{net: {{shape: edge_list, edges: {edges}}}}}\nworkload: [barrier]\n"
    assert cli("run", cli.write("s.yaml", text), "--jobs", 1, "--quiet").code == 0


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("src,dst,bandwidth,latency\n0,1,0 GB/s,1 us\n", r"n\.csv:2"),
        ("src,dst,bandwidth,latency\n0,1,fast,1 us\n", r"n\.csv:2"),
        ("src,dst,bandwidth\n0,1,1 GB/s\n", "latency"),
        ("src,dst,bandwidth,latency\n0,1\n", r"n\.csv:2"),
        ("src,dst,bandwidth,latency\n1,1,1 GB/s,1 us\n", "self-loop"),
        ("src,dst,bandwidth,latency\n0,5,1 GB/s,1 us\n", "n.csv"),
        ("", r"n\.csv"),
        ("\0", r"n\.csv"),
        ("\ufeffsrc,dst,bandwidth,latency\n", r"n\.csv"),
        ('"' * 9999, r"n\.csv"),
    ],
)
def test_row_15_17_link_tables(cli, base, cells, says):
    cli.write("n.csv", cells)
    text = re.sub(r"\{shape.*\}", "{shape: edge_list, file: n.csv}", base)
    cli.refused(cli("run", cli.write("s.yaml", text), "--jobs", 1), 2, says)


# -- 19: size ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("open_, close", [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", "")])
def test_row_19_nested_1e5_deep(cli, open_, close):
    cli.write("s.yaml", "name: deep\ndeep:\n  " + open_ * 100_000 + close * 100_000)
    cli.refused(cli("run", "s.yaml"), 2, r"s\.yaml:\d+:\d+: nested deeper than 32|s\.yaml")


def test_row_19_100_mb(cli):
    path = cli.write("s.yaml", "name: large\n")
    os.truncate(path, 100 * 2**20)
    ended = cli.process("run", path)
    cli.refused(ended, 2, "104,857,600 bytes; a scenario has at most 1,048,576")


@pytest.mark.slow
@pytest.mark.parametrize("line", ["- x\n", "a{}: 1\n", "[" + "x," * 50 + "]\n", "# comment\n", "&a{} x: *a{}\n"])
def test_row_19_a_megabyte_of_anything_takes_a_second(cli, line):
    text = "".join(line.replace("{}", str(i)) for i in range(2**20 // len(line) - 8 * len(line)))[: 2**20 - 1]
    cli.refused(cli("run", cli.write("s.yaml", text)), 2, r"s\.yaml")


# -- 21: paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["trace", "file", "groups"])
def test_row_21_links_out_of_the_folder_are_not_followed(cli, base, what):
    outside = cli.folder.parent / "outside"
    outside.mkdir()
    (cli.folder / "link").symlink_to(outside)
    if what == "file":
        text = base + "algorithms: {all_reduce: {file: link/ring}}\n"
    else:
        more = ", groups: link/g.json" if what == "groups" else ""
        text = base[: base.index("workload")] + f"workload: {{trace: {'t' if more else 'link/t'}{more}}}\n"
    cli.refused(cli("run", cli.write("s.yaml", text)), 2, r"s\.yaml:\d+:\d+: .*leads out of the folder")


def test_row_21_a_rank_file_that_links_out_is_not_followed(cli, traces, et):
    outside = cli.folder.parent / "outside.et"
    outside.write_bytes(et.file(et.node(1, 4)))
    for rank in range(2):
        (cli.folder / f"t.{rank}.et").symlink_to(outside)
    path = traces.scenario(2)
    cli.refused(cli("run", path, "--jobs", 1), 2, r"leads out of the folder")
    assert cli("run", path, "--jobs", 1, "--quiet", "--allow-outside").code == 0


def test_row_21_allow_outside_lifts_it(cli, base, et):
    for rank in range(4):
        (cli.folder.parent / f"t.{rank}.et").write_bytes(et.file(et.node(1, 4)))
    text = base[: base.index("workload")] + "workload: {trace: ../t}\n"
    path = cli.write("s.yaml", text)
    assert cli("run", path, "--jobs", 1, "--quiet").code == 2
    assert cli("run", path, "--jobs", 1, "--quiet", "--allow-outside").code == 0


@pytest.mark.parametrize("name", ["../../x", "/abs", "a/b", "", ".", "..", "x" * 65, "nul.txt", "é"])
def test_row_21_names_set_on_the_command_line(cli, base, name):
    cli.refused(cli("run", cli.write("s.yaml", base), "--set", f"name={name}"), 2, "name")


def test_row_21_labels_of_a_sweep_cannot_lead_out(cli, base):
    text = base.replace("1 KiB", "$size") + 'sweep: {size: {"../../x": 1 KiB, "/etc": 2 KiB, "..": 4 KiB}}\n'
    assert cli("run", cli.write("s.yaml", text), "--jobs", 1, "--quiet").code == 0
    assert len(cli.points()) == 3
    assert all(path.parents[2] == cli.results for path in cli.points())
    assert sorted(path.name for path in cli.folder.parent.iterdir()) == ["here"]


# -- 25, 26: text that means something elsewhere ----------------------------------------------------------------

NASTY = ["$x^2$", "<script>alert(1)</script>", "a&b", r"$\\frac{", "=1+1", "+1", "-1", "@cmd", "two\nlines", "\\t"]


@pytest.fixture
def nasty(cli, base):
    """A scenario whose labels and titles mean something to mathtext, HTML and spreadsheets."""
    labels = {text: f"{1 + i} KiB" for i, text in enumerate(NASTY)}
    title = "<script>alert(1)</script> $\\frac{ $x"
    text = base.replace("1 KiB", "$size") + f"title: {json.dumps(title)}\nsweep: {{size: {json.dumps(labels)}}}\n"
    plot = f"{{kind: time, x: topology, series: size, title: {json.dumps(title)}}}"
    return cli.write("s.yaml", text + f"plots: [{plot}]\n")


def test_row_25_text_in_figures_is_only_text(cli, nasty):
    ended = cli("run", nasty, "--jobs", 1, "--quiet")
    assert ended.code == 0, ended.err
    figure = next(cli.results.rglob("*.svg")).read_text()
    assert "<script" not in figure
    assert "alert(1)" in figure.replace("&#40;", "(") or "<path" in figure
    assert "Traceback" not in ended.err


def test_row_26_cells_are_no_formulas(cli, nasty):
    assert cli("run", nasty, "--jobs", 1, "--quiet").code == 0
    import csv

    tables = list(cli.results.rglob("*.csv"))
    assert tables
    for path in tables:
        with open(path, newline="") as stream:
            for row in csv.reader(stream):
                for cell in row:
                    number = re.fullmatch(r"[-+]?[\d.]+([eE][-+]?\d+)?", cell)
                    assert cell[:1] not in ("=", "+", "-", "@", "\t", "\r") or number, (path, cell)
    with open(cli.results / "base" / "summary.csv", newline="") as stream:
        cells = {cell for row in csv.DictReader(stream) for cell in row.values()}
    for text in ("=1+1", "@cmd"):
        assert any(cell.endswith(f"'{text}") for cell in cells) or any(text in cell for cell in cells)


def test_row_26_tables_read_back_what_was_written(cli, nasty):
    first = cli("run", nasty, "--jobs", 1, "--format", "json", "--quiet")
    again = cli("run", nasty, "--jobs", 1, "--format", "json", "--quiet")
    assert first.out == again.out
    assert [row["sweep"]["size"] for row in json.loads(first.out)] == NASTY


# -- 13, 14: algorithms that are wrong ---------------------------------------------------------------------------


@pytest.fixture
def ring(cli):
    """A good algorithm of four ranks as files."""
    assert cli("convert", "builder:ring:all_reduce:4", "ring").code == 0
    return "ring"


def test_row_13_an_algorithm_that_loses_a_chunk(cli, base, ring):
    from astrasim_py.chakra.et_io import read_prefix, write_prefix
    from astrasim_py.chakra.schema import NodeType

    spoilt = []
    for rank, trace in enumerate(read_prefix(ring)):
        op = trace.column("comp_op").copy()
        if rank == 1:
            rows = (trace.type == NodeType.COMP).nonzero()[0]
            op[rows[0]] = 2  # copies where it should add
        spoilt.append(trace.replace(comp_op=op))
    write_prefix("bad", spoilt)
    text = base + "algorithms: {all_reduce: {file: bad}}\n"
    ended = cli("run", cli.write("s.yaml", text), "--jobs", 1, "--quiet")
    cli.refused(ended, 3, r"algorithms\.all_reduce", r"rank \d+ chunk \d+ lacks contribution of rank \d+")


def test_row_13_an_algorithm_that_adds_twice(cli, base, ring):
    path = cli.folder / "ring.0.et"
    shutil.copy(cli.folder / "ring.1.et", path)
    text = base + "algorithms: {all_reduce: {file: ring}}\n"
    cli.refused(cli("run", cli.write("s.yaml", text), "--jobs", 1, "--quiet"), 3, "ring")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise RuntimeError('no\\nway')", "RuntimeError: no way"),
        ("return 7", "gave a int"),
        ("import sys; sys.exit(0)", "SystemExit|exit"),
        ("raise KeyError", "KeyError"),
        ("return build('ring', 'all_gather', ranks)", "all_gather, not a all_reduce"),
        ("return build('ring', 'all_reduce', ranks + 1)", "made for 5 ranks, and the group has 4"),
        ("a = build('ring', 'all_reduce', ranks); a.traces[0].type[0] = 3; return a", "read-only"),
        ("def f(): return f()\n    return f()", "RecursionError"),
    ],
)
def test_row_14_python_that_misbehaves(cli, base, body, says):
    cli.write("mine.py", f"from astrasim_py.builders.registry import build\ndef f(collective, ranks):\n    {body}\n")
    path = cli.write("s.yaml", base + 'algorithms: {all_reduce: {python: "mine.py:f"}}\n')
    cli.refused(cli("run", path, "--allow-code", "--jobs", 1, "--quiet"), 3, r"mine\.py:f|algorithms\.all_reduce", says)


def test_row_14_python_that_is_no_python(cli, base):
    cli.write("mine.py", "def f(:\n")
    path = cli.write("s.yaml", base + 'algorithms: {all_reduce: {python: "mine.py:f"}}\n')
    ended = cli("run", path, "--allow-code", "--jobs", 1, "--quiet")
    assert ended.code in (2, 3)
    cli.refused(ended, ended.code, "mine.py", "SyntaxError|syntax")


# -- 32, 33: where it runs --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_33_a_reader_that_goes_away(cli, base):
    path = cli.write("s.yaml", base)
    command = f"{_python()} -m astrasim_py run {path} -v --format json | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, cwd=cli.folder)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&-", ">/dev/full"])
def test_row_33_closed_streams(cli, base, closed):
    path = cli.write("s.yaml", base)
    done = subprocess.run(
        ["bash", "-c", f"{_python()} -m astrasim_py run {path} {closed}"], capture_output=True, cwd=cli.folder
    )
    assert done.returncode == (5 if closed == ">/dev/full" else 0), done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert cli.points()


def _python() -> str:
    import sys

    return sys.executable
