"""Hostile Chakra traces: each is refused, or ends, as promised."""

from __future__ import annotations

import gzip
import os
import re
import time
import zlib

import pytest

from astrasim_py.builders.registry import build
from astrasim_py.chakra.decode import decode
from astrasim_py.chakra.et_io import encode_trace


@pytest.fixture
def good(et):
    """Rank 0 of a small good pair of traces."""
    return et.file(et.node(1, 4, micros=3), et.send(2, 0, 1, deps=[1]), et.node(3, 4, deps=[2]))


@pytest.fixture
def pair(et, good):
    """A good pair."""
    return good, et.file(et.recv(1, 0, 1), et.node(2, 4, deps=[1]))


# -- 1, 2: framing ----------------------------------------------------------------------------------------------


def test_row_01_truncated_at_every_byte(traces, cli, pair, et):
    good, other = pair
    sizes = [len(et.data(1, b"0.0.4")) + 1]
    position = sizes[0]
    while position < len(good):
        position += good[position] + 1
        sizes.append(position)
    cli.write("t.1.et", other)
    path = traces.scenario(2)
    for end in range(len(good)):
        cli.write("t.0.et", good[:end])
        ended = cli("run", path, "--quiet", "--jobs", 1, "--out", cli.folder / f"out{end}")
        if end in sizes or end == 0:
            # A whole number of records is a shorter trace, which the format cannot tell from a complete one.
            assert ended.code in (0, 3, 4), ended.err
        else:
            cli.refused(ended, 3, r"t\.0\.et: byte \d+: record \d+ cut short \((needs \d+, \d+ left|its length)")


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", r"claims 9223372036854775808 bytes"),
        (b"\xff" * 10 + b"\x01", "longer than 10 bytes"),
        (b"\xff\xff\xff\xff\x07", r"claims 2147483647 bytes"),
        (b"\x7f", r"cut short \(needs 128, 1 left\)"),
    ],
    ids=["2^63", "11 bytes", "2 GiB", "beyond the file"],
)
@pytest.mark.parametrize("record", [0, 1])
def test_row_02_length_prefixes_that_lie(cli, et, prefix, says, record):
    (cli.folder / "t.0.et").write_bytes((et.file() if record else b"") + prefix)
    cli.refused(cli("trace", "stats", "t.0.et"), 3, rf"t\.0\.et: byte \d+: record {record} .*{says}")


# -- 3: nothing in it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", None], ids=["empty file", "metadata only"])
def test_row_03_a_trace_without_nodes_is_worth_a_warning(cli, et, content):
    cli.write("t.0.et", et.file() if content is None else content)
    ended = cli("trace", "lint", "t.0.et")
    assert ended.code == 0
    assert "warning" in ended.out


@pytest.mark.parametrize("content", [b"", None], ids=["empty file", "metadata only"])
def test_row_03_sending_to_a_rank_without_nodes_is_an_error(traces, cli, et, content):
    empty = et.file() if content is None else content
    ended = traces.run(et.file(et.send(1, 0, 1)), empty)
    assert ended.code in (3, 4)
    assert re.search(r"rank 1", ended.err)
    assert "Traceback" not in ended.err


# -- 4: something else ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bytes(range(1, 256)) * 8, "t.0.et: byte"),
        (b'{"schema": "1.0.2-chakra.0.0.4", "nodes": []}', "JSON"),
        (b"#!/bin/sh\necho hello\n" * 20, "text"),
        (b"PK\x03\x04" + bytes(60), "t.0.et"),
        (b"\x1f\x8b\x08\x00" + bytes(20), "gzip"),
    ],
    ids=["random", "json", "text", "zip", "broken gzip"],
)
def test_row_04_files_of_another_kind(cli, content, says):
    cli.write("t.0.et", content)
    cli.refused(cli("trace", "stats", "t.0.et"), 3, says, "; ")


def test_row_04_a_schema_before_0_0_4_is_named(cli, et):
    node = et.node(1, 4)
    cli.write("t.0.et", et.varint(len(node)) + node)
    cli.refused(cli("trace", "stats", "t.0.et"), 3, "before 0.0.4", "write it again with a producer")


def test_row_04_gzip_is_read_by_its_magic_number(traces, pair):
    assert traces.run(*map(gzip.compress, pair)).code == 0


@pytest.fixture(scope="module")
def compiled_reader():
    """Compile the reader of large traces beforehand: what compiling takes is no memory of reading."""
    decode([(encode_trace(build("ring", "all_reduce", 2).traces[0]), "t.0.et")], kernel=True)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_reader")
@pytest.mark.parametrize("kind", ["zeros", "members", "a good beginning"])
def test_row_04_gzip_bombs_are_bounded(cli, et, kind):
    packer = zlib.compressobj(1, wbits=31)
    begin = et.file(et.node(1, 4, raw=et.data(99, bytes(40 * 2**20)))) if kind == "a good beginning" else b""
    content = packer.compress(begin)
    for _ in range(0 if kind == "members" else 60):
        content += packer.compress(bytes(2**20))
    content += packer.flush()
    if kind == "members":
        content = gzip.compress(bytes(2**20)) * 2000
    cli.write("t.0.et", content)
    cli.refused(cli.process("trace", "stats", "t.0.et"), 3, r"t\.0\.et")


# -- 5: fields --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (lambda et: et.node(7, 4, raw=et.data(7, b"abc")), r"node 7: .*duration_micros"),
        (lambda et: et.node(7, 9), r"node 7: .*type"),
        (lambda et: et.node(7, -1), r"node 7: .*type"),
        (lambda et: et.node(None, 4) + et.data(1, b"x"), r"id"),
        (lambda et: et.send(7, 0, 1, size=-5), r"node 7: .*comm_size"),
        (lambda et: et.send(7, 0, 1, size=2**63), r"node 7: .*comm_size"),
        (lambda et: et.collective(7, size=-1), r"node 7: .*comm_size"),
        (lambda et: et.node(7, 7, comm_size=4), r"node 7: .*comm_type"),
        (lambda et: et.collective(7, kind=77), r"node 7: .*comm_type"),
        (lambda et: et.node(7, 7, comm_type=0), r"node 7: .*comm_size"),
        (lambda et: et.node(7, 5, comm_dst=1), r"node 7: .*comm_size"),
        (lambda et: et.node(7, 5, comm_size=1, comm_tag=0), r"node 7: .*comm_dst"),
        (lambda et: et.send(7, 0, 9), r"node 7: comm_dst 9"),
        (lambda et: et.send(7, 0, 0), r"node 7: comm_dst 0"),
        (lambda et: et.send(7, 1, 1), r"node 7: .*comm_"),
        (lambda et: et.node(7, 5, comm_size="many", comm_dst=1, comm_tag=0), r"node 7: .*comm_size"),
        (lambda et: et.node(7, 7, comm_type=0, comm_size=4, pg_name="nine"), r'node 7: .*"nine"'),
        (lambda et: et.data(2, b"\xff\xfe") + et.node(7, 4, raw=et.data(10, b"\xff")), r"node 7"),
    ],
)
def test_row_05_fields_that_are_wrong(traces, cli, et, node, says):
    cli.refused(traces.run(et.file(node(et)), et.file(et.node(1, 4))), 3, r"t\.0\.et", says)


def test_row_05_times_beyond_64_bits(traces, cli, et):
    cli.refused(traces.run(et.file(et.node(7, 4, micros=2**63))), 3, r"t\.0\.et: node 7", "duration")


# -- 6, 7, 8: the graph -----------------------------------------------------------------------------------------


def test_row_06_a_node_that_is_there_twice(cli, et):
    cli.write("t.0.et", et.file(et.node(7, 4), et.node(8, 4), et.node(7, 4)))
    ended = cli("trace", "stats", "t.0.et")
    cli.refused(ended, 3, r"node 7 appears twice, at byte \d+ and at byte \d+")


def test_row_07_a_dependency_on_nobody(traces, cli, et):
    ended = traces.run(et.file(et.node(1, 4)), et.file(et.node(7, 4, deps=[99])))
    cli.refused(ended, 3, r"t\.1\.et: node 7 depends on 99, which is not in rank 1's trace")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "says"), [(1, r"5→5|5 -> 5|itself"), (2, r"5.*6.*5"), (100_000, r"100.?000")], ids=["self", "two", "1e5"]
)
@pytest.mark.slow
def test_row_08_cycles(traces, cli, et, length, says):
    nodes = [et.node(5 + i, 4, deps=[5 + (i + 1) % length]) for i in range(length)]
    cli.refused(traces.run(et.file(*nodes)), 3, r"t\.0\.et", "cycle|itself", says)


def test_row_08_the_shortest_cycle_is_told(traces, cli, et):
    long = [et.node(10 + i, 4, deps=[10 + (i + 1) % 50]) for i in range(50)]
    short = [et.node(1, 4, deps=[2]), et.node(2, 4, deps=[3]), et.node(3, 4, deps=[1])]
    cli.refused(traces.run(et.file(*long, *short)), 3, r"1.*2.*3|1.*3.*2")


@pytest.mark.slow
def test_row_09_a_chain_of_1e5_runs(traces, et):
    nodes = [et.node(i, 4, deps=[i - 1] if i else [], micros=1) for i in range(100_000)]
    ended = traces.run(et.file(*nodes), options=["--format", "json", "--record", "summary"])
    assert ended.code == 0, ended.err
    assert '"time_ns": 100000000' in ended.out


def test_row_09_many_nodes_that_wait_for_one_slot_take_linear_time(traces, et):
    nodes = [et.node(i, 4, micros=1) for i in range(30_000)]
    ended = traces.run(et.file(*nodes), options=["--format", "json", "--record", "summary"])
    assert ended.code == 0, ended.err
    assert '"time_ns": 30000000' in ended.out
    assert ended.seconds < 60


# -- 10, 11, 12: ranks that do not fit --------------------------------------------------------------------------


def test_row_10_more_ranks_than_npus(traces, cli, et):
    ended = traces.run(*[et.file(et.node(1, 4))] * 5, npus=4)
    cli.refused(ended, 3 if ended.code == 3 else 2, "5|t.4.et", "4")


def test_row_10_a_missing_file_is_listed(traces, cli, et):
    for rank in (0, 1, 3):
        cli.write(f"t.{rank}.et", et.file(et.node(1, 4)))
    cli.refused(traces.run(npus=4), 3, r"missing t\.2\.et")


def test_row_10_an_extra_file_is_listed(traces, cli, et):
    ended = traces.run(*[et.file(et.node(1, 4))] * 3, more="ranks: 2\n", npus=4)
    cli.refused(ended, 3, r"t\.2\.et")


def stuck(ended, *patterns):
    """A run that ends stuck, and says who waits for what."""
    assert ended.code == 4, ended.err
    assert "Traceback" not in ended.err
    assert "defect" not in ended.err
    for pattern in patterns:
        assert re.search(pattern, ended.err), f"{pattern!r} is not in {ended.err!r}"


def test_row_11_a_receive_that_nobody_serves(traces, et):
    ended = traces.run(et.file(et.node(1, 4)), et.file(et.node(1, 4, micros=2), et.recv(2, 0, 1, tag=9, deps=[1])))
    stuck(ended, r"stuck", r"1 +2 +a message from rank 0, tag 9, 1024 B.*since 2 µs", "rank 0 has finished")


def test_row_11_a_send_that_nobody_receives(traces, et):
    stuck(traces.run(et.file(et.send(1, 0, 1)), et.file(et.node(1, 4))), r"never received", r"0 +1 .*to rank 1, tag 0")


def test_row_11_tags_that_differ(traces, et):
    ended = traces.run(et.file(et.send(1, 0, 1, tag=1)), et.file(et.recv(1, 0, 1, tag=2)))
    stuck(ended, "tag 2", "tag 1", "differ")


def test_row_11_sizes_that_differ(traces, cli, et):
    ended = traces.run(et.file(et.send(1, 0, 1, size=8)), et.file(et.recv(1, 0, 1, size=9)))
    stuck(ended, r"node 1 of rank 0 sends 8 B and recv node 1 of rank 1 expects 9 B")
    assert not cli.points(), "what is wrong leaves no result"


def test_row_11_a_ring_of_receives_is_shown(traces, et):
    files = []
    for rank in range(3):
        recv = et.recv(1, (rank + 1) % 3, rank)
        files.append(et.file(recv, et.send(2, rank, (rank - 1) % 3, deps=[1])))
    stuck(traces.run(*files), "0→1→2→0", "6 nodes never completed")


def test_row_12_part_of_a_group_calls(traces, cli, et):
    ended = traces.run(et.file(et.collective(1)), et.file(et.node(1, 4)))
    cli.refused(ended, 3, r"t\.0\.et: node 1", "collective number 1", "rank 1 makes no such call")


def test_row_12_another_order(traces, cli, et):
    one = et.file(et.collective(1, 0), et.collective(2, 2, deps=[1]))
    two = et.file(et.collective(1, 2), et.collective(2, 0, deps=[1]))
    cli.refused(traces.run(one, two), 3, r"number 1: rank 0 calls all_reduce .*rank 1 calls all_gather")


def test_row_12_another_size(traces, cli, et):
    one = et.file(et.collective(1), et.collective(2, deps=[1]))
    two = et.file(et.collective(1), et.collective(2, size=2048, deps=[1]))
    cli.refused(traces.run(one, two), 3, r"number 2: .*1024 B.*2048 B")


def test_row_12_a_group_that_is_not_defined(traces, cli, et):
    files = [et.file(et.node(1, 7, comm_type=0, comm_size=8, pg_name="7"))] * 2
    cli.refused(traces.run(*files), 3, r'group "7" is not defined')


@pytest.mark.parametrize(
    "text", ["[]", '{"1": [0, 0]}', '{"1": [0, 9]}', '{"1": "x"}', "{", "", '{"1": [0,1], "1": [1]}']
)
def test_row_12_bad_group_files(traces, cli, et, text):
    cli.write("groups.json", text)
    for rank in range(2):
        cli.write(f"t.{rank}.et", et.file(et.node(1, 7, comm_type=0, comm_size=8, pg_name="1")))
    path = traces.scenario(2, workload="{trace: t, groups: groups.json}")
    ended = cli("run", path, "--quiet", "--jobs", 1)
    cli.refused(ended, 3, r"groups\.json|group")


# -- 22, 23: what is no file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "unreadable", "dangling"])
@pytest.mark.parametrize("what", ["trace", "npz", "yaml", "topology", "groups", "jsonl"])
def test_row_22_what_is_no_regular_file(cli, traces, et, base, kind, what):
    names = {"trace": "t.0.et", "npz": "a.npz", "yaml": "s.yaml", "topology": "n.csv", "groups": "g.json"}
    path = cli.folder / names.get(what, "t.jsonl")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(b"x")
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    if what == "trace":
        ended = cli("run", traces.scenario(2), "--allow-outside", "--quiet", "--jobs", 1)
    elif what == "yaml":
        ended = cli("run", path)
    elif what == "npz":
        more = "algorithms: {all_reduce: {file: a.npz}}\n"
        ended = cli("run", cli.write("s.yaml", base + more), "--allow-outside", "--quiet", "--jobs", 1)
    elif what == "topology":
        text = re.sub(r"\{shape.*\}", "{shape: edge_list, file: n.csv}", base)
        ended = cli("run", cli.write("s.yaml", text), "--allow-outside", "--quiet", "--jobs", 1)
    elif what == "groups":
        for rank in range(2):
            cli.write(f"t.{rank}.et", et.file(et.collective(1)))
        scenario = traces.scenario(2, workload="{trace: t, groups: g.json}")
        ended = cli("run", scenario, "--allow-outside", "--quiet", "--jobs", 1)
    else:
        ended = cli("convert", path, "out.et")
    cli.refused(ended, 2 if what in ("yaml", "topology") else 3, re.escape(path.name))
    assert not (cli.folder / "out.et").exists()


@pytest.mark.parametrize("name", ["t.zip", "t.tar", "t.tar.gz"])
def test_row_23_archives_are_not_unpacked(cli, name):
    import io
    import tarfile
    import zipfile

    buffer = io.BytesIO()
    if name == "t.zip":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("../../evil", "x")
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz" if name.endswith("gz") else "w") as archive:
            archive.addfile(tarfile.TarInfo("../../evil"))
    cli.write(name, buffer.getvalue())
    cli.write("t.0.et", buffer.getvalue())
    for source in (name, "t.0.et"):
        cli.refused(cli("trace", "stats", source), 3)
    assert not (cli.folder.parent.parent / "evil").exists()
    assert not (cli.folder / "evil").exists()


# -- limits -----------------------------------------------------------------------------------------------------


def test_row_35_a_run_with_too_many_events_ends(traces, et):
    nodes = [et.node(i, 4, deps=[i - 1] if i else [], micros=1) for i in range(1000)]
    begin = time.process_time()
    ended = traces.run(et.file(*nodes), options=["--max-events", 100])
    stuck(ended, "100 events", "--max-events")
    assert time.process_time() - begin < 20


def test_row_35_a_run_beyond_its_simulated_time_ends(traces, et):
    nodes = [et.node(i, 4, deps=[i - 1] if i else [], micros=1) for i in range(1000)]
    stuck(traces.run(et.file(*nodes), options=["--max-sim-time", "10 us"]), "--max-sim-time")
