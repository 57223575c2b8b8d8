"""Values at the ends of their ranges: exact, or refused in so many words; never a wrapped number."""

from __future__ import annotations

import json

import pytest

RING = "name: x\ntopologies: {{r: {{shape: ring, npus: 4, bandwidth: {}, latency: {}}}}}\nworkload: [{}]\n{}"
HUGE = "9223372036854775807 B"

EXTREMES = {
    "slow link": (RING.format("1 B/s", "1 ns", f"{{all_reduce: {{size: {HUGE}}}}}", ""), 4),
    "slower link": (RING.format("0.000000001 B/s", "1 ns", "{all_reduce: {size: 4 B}}", ""), 4),
    "sum of times": (RING.format("1 B/s", "1 ns", "{compute: {time: 150000 min, repeat: 3}}", ""), 4),
    "sum of bytes": (RING.format("1 EB/s", "1 ns", f"{{all_to_all: {{size: {HUGE}, repeat: 9}}}}", ""), 4),
    "latency": (RING.format("1 GB/s", "150000 min", "{all_reduce: {size: 1 B}}", ""), 2),
    "reduction": (RING.format("1 EB/s", "1 ns", f"{{all_reduce: {{size: {HUGE}}}}}", "semantics: {gamma: 9 min/B}"), 2),
    "speed": (
        RING.format("1 B/s", "1 ns", "{compute: {time: 150000 min}}", "stragglers: {compute_speed: {1: 0.000001}}"),
        3,
    ),
    "start delay": (
        RING.format("1 B/s", "1 ns", "{compute: {time: 150000 min}}", "stragglers: {start_delay: {1: 150000 min}}"),
        4,
    ),
    "roofline": (
        RING.format("1 B/s", "1 ns", "{compute: {operations: 9 EFLOP}}", "compute: {roofline: true, peak: 1 FLOP/s}"),
        3,
    ),
    "memory": (
        RING.format("1 B/s", "1 ns", "{memory: {load: 9 EB}}", "memory: {bandwidth: 1 B/s, latency: 1 min}"),
        3,
    ),
    "queue of a pool": (
        RING.format(
            "1 B/s",
            "1 ns",
            "{memory: {load: 9 MB, repeat: 9}}",
            "memory: {kind: pool, bandwidth: 1 B/s, latency: 1 min}",
        ),
        4,
    ),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("level", ["summary", "messages"])
def test_row_16_what_does_not_fit_63_bits_is_refused(cli, name, level):
    text, code = EXTREMES[name]
    cli.refused(cli("run", cli.write("s.yaml", text), "--jobs", 1, "--record", level), code)


def test_row_16_the_largest_size_that_fits_is_exact(cli):
    text = RING.format("1 EB/s", "0 ns", f"{{send: {{from: 0, to: 1, size: {HUGE}}}}}", "")
    ended = cli("run", cli.write("s.yaml", text), "--jobs", 1, "--format", "json")
    assert ended.code == 0, ended.err
    # ceil((2^63 - 1) / 10^18 s), in ns to the picosecond
    assert json.loads(ended.out)[0]["time_ns"] == 9223372036.855
    assert '"time_ns": 9223372036.855' in ended.out


@pytest.mark.parametrize("size", [2**63 - 1, 2**62])
def test_row_05_an_all_gather_whose_buffer_does_not_fit(traces, cli, et, size):
    ended = traces.run(*[et.file(et.collective(1, 2, size=size))] * 4)
    assert ended.code in (3, 4), ended.err
    cli.refused(ended, ended.code)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_row_05_the_largest_node_ids_are_kept(traces, et, number):
    sender = et.file(et.node(1, 4), et.send(number, 0, 1, deps=[1]))
    ended = traces.run(sender, et.file(et.node(number, 4)), options=["--record", "nodes"])
    assert ended.code == 4
    assert str(number) in ended.err
    tables = [path.read_text() for path in traces.cli.results.rglob("node.csv")]
    assert tables and all(str(number) in table and "-1," in table for table in tables)


@pytest.mark.parametrize("tag", [2**63 - 1, -1, -(2**63) + 1])
def test_row_05_any_tag_matches_itself(traces, et, tag):
    assert traces.run(et.file(et.send(1, 0, 1, tag=tag)), et.file(et.recv(1, 0, 1, tag=tag))).code == 0


def test_row_16_a_job_per_million_cores(cli, base):
    cli.write("s.yaml", base)
    assert cli("run", "s.yaml", "--jobs", 10**9, "--quiet").code == 0


def test_row_16_limits_of_any_length(cli, base):
    assert cli("run", cli.write("s.yaml", base), "--jobs", 1, "--max-events", 10**40, "--quiet").code == 0
