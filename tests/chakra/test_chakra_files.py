"""Reading and writing files: damage of every kind, gzip, sets, workloads."""

from __future__ import annotations

import gzip
import os
import resource
import time
import zlib

import numpy as np
import pytest
from worlds.chakra_files import message, sample

from astrasim_py.chakra import decode, et_io, text_io, wire
from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.lint_rules import lint_trace
from astrasim_py.chakra.messages import attributes
from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.core.errors import OutputError, TraceError


def read_everything(data: bytes) -> ExecutionTrace:
    """Touch all that can be asked of a trace."""
    trace = et_io.parse_trace(data, "w.0.et")
    list(trace.names)
    trace.digest()
    for row in range(len(trace)):
        trace.node(row)
    _ = trace.metadata
    trace.order("data")
    return trace


def test_truncation_at_every_byte_is_refused_or_ends_at_a_record():
    data = sample()
    raw, _ = wire.frame(data, "")
    whole = {0, raw.metadata[1], *raw.end.tolist()}
    for size in range(len(data)):
        if size in whole:
            assert len(et_io.parse_trace(data[:size], "w.0.et")) == max(0, sorted(whole).index(size) - 1)
            continue
        with pytest.raises(TraceError) as caught:
            et_io.parse_trace(data[:size], "w.0.et")
        before = max(end for end in whole if end < size)
        assert caught.value.place == f"w.0.et: byte {before}"
        assert " cut short (" in caught.value.problem


def test_truncation_says_what_is_needed_and_what_is_left():
    body = pb.Node(id=1, name="x" * 90).SerializeToString()
    data = b"\x00" + b"".join(message(pb.Node(id=10 + i)) for i in range(13)) + varint(len(body)) + body
    position = len(data) - len(body) - 1
    with pytest.raises(TraceError) as caught:
        et_io.parse_trace(data[: position + 40], "trace.0.et")
    expected = f"trace.0.et: byte {position}: record 14 cut short (needs {len(body) + 1}, 40 left)"
    assert str(caught.value).startswith(expected)


def test_a_single_flipped_bit_is_an_error_or_another_trace():
    data = bytearray(sample(2))
    outcomes = {"read": 0, "refused": 0}
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            try:
                read_everything(bytes(data))
                outcomes["read"] += 1
            except TraceError as error:
                assert "\n" not in str(error)
                assert str(error).startswith("w.0.et")
                outcomes["refused"] += 1
            data[position] ^= 1 << bit
    assert min(outcomes.values()) > 100


def test_the_decoder_refuses_what_the_strict_walk_refuses():
    """Protobuf takes a field of another wire type for an unknown one: that must not hide it."""
    data = bytearray(sample(4))
    refused = 0
    for position in range(20, len(data), 4):
        for bit in (0, 1, 2, 7):
            data[position] ^= 1 << bit
            try:
                raw, _ = wire.frame(bytes(data), "w")
                for start, end in zip(raw.start.tolist(), raw.end.tolist(), strict=True):
                    wire.check_node(bytes(data), start, end)
            except TraceError:
                pass
            except wire.Damaged as error:
                with pytest.raises(TraceError) as caught:
                    decode.decode([(bytes(data), "w")])
                assert str(caught.value).startswith(f"w: {wire.node_place(bytes(data), start, end)}: {error}")
                refused += 1
            data[position] ^= 1 << bit
    assert refused > 50


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"nodes": []}', "JSON"),
        (b'{"schema": "x", "nodes": [' + b'{"id": 1, "name": "a"}, ' * 40 + b"]}", "JSON"),
        (b"[1]", "JSON"),
        (b"hello, this is a text file and not a trace at all" * 9, "text"),
        (bytes(range(255, 0, -1)) * 9, "older than schema 0.0.4"),
        (message(pb.Node(id=1, name="a")) * 2, "before 0.0.4"),
        (varint(9) + b"\x0a\x07\x0a\x03abc\x10\x01", "0.0.4"),
        (b"\xff" * 10 + b"\x01" + b"x" * 9, "longer than 10 bytes"),
        (b"\x80" * 9 + b"\x01", "claims 9223372036854775808 bytes"),
        (b"\x00" + b"\xff" * 9 + b"\x01" + b"x" * 20, "claims 18446744073709551615 bytes"),
        (b"\x00\x80\x80\x80\x80\x04" + b"x" * 20, "claims 1073741824 bytes"),
        (b"\x00\x50" + b"x" * 20, "record 1 cut short (needs 81, 21 left)"),
        (b"\x00\x02\x08", "record 1 cut short"),
        (b"\x00\x80", "its length prefix ends with the file"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_hint(data, text):
    with pytest.raises(TraceError) as caught:
        et_io.parse_trace(data, "w.0.et")
    assert text in str(caught.value)
    assert str(caught.value).startswith("w.0.et: byte ")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"\x08\x07\x3d\x01\x02\x03\x04", "node 7: field duration_micros (7) has wire type 5, not 0"),
        (b"\x08\x07\x29\x01\x02\x03\x04\x05\x06\x07\x08", "node 7: field data_deps (5) has wire type 1, not 2"),
        (b"\x08\x07\x50\x01", "node 7: field attr (10) has wire type 0, not 2"),
        (b"\x0d\x07\x00\x00\x00", "byte 2: field id (1) has wire type 5, not 0"),
        (b"\x08\x07\x18\x09", "node 7: node type 9 is not one of 0..7"),
        (b"\x08\x07\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "node 7: node type -1 is not one of 0..7"),
        (b"\x08\x07\x12\x02\xff\xfe", "node 7: its name is not UTF-8"),
        (b"\x08\x07\x52\x04\x0a\x02\xff\xfe", "node 7: the name of an attribute is not UTF-8"),
        (b"\x08\x07\x52\x0e\x0a\x07pg_name\xea\x01\x02\xff\xfe", "node 7: pg_name is not UTF-8"),
        (b"\x08\x07\x12\x09abc", "node 7: field 2 is cut short (needs 9 bytes, 3 left)"),
        (b"\x08\x07\x38", "node 7: a number is cut short"),
        (b"\x08\x07\x38" + b"\xff" * 11, "node 7: a number is longer than 10 bytes"),
        (b"\x08\x07\x2a\x02\x01\x80", "node 7: a number is cut short"),
        (b"\x08\x07\x2a\x0c" + b"\xff" * 11 + b"\x01", "node 7: a number is longer than 10 bytes"),
        (b"\x08\x07\x00\x01", "node 7: field number 0"),
        (b"\x08\x07\x5e\x01", "node 7: field 11 has wire type 6"),
        (b"\x08\x07\x5b\x08\x01", "node 7: a number is cut short"),
        (b"\x08\x07\x5b\x64", "node 7: the group of field 11 is damaged"),
        (b"\x08\x07" + b"\x5b" * 200, "node 7: the group of field 11 is damaged"),
        (b"\x08\x07\x52\x04\x08\x01\x10\x02", "node 7: name of an attribute has wire type 0, not 2"),
        (b"\x08\x07\x52\x04\x1a\x02ab", "node 7: double_val of an attribute has wire type 2, not 1"),
    ],
)
def test_damage_within_a_node_names_the_node_and_the_field(body, text):
    with pytest.raises(TraceError) as caught:
        et_io.parse_trace(b"\x00" + varint(len(body)) + body, "w.0.et")
    assert str(caught.value).startswith(f"w.0.et: {text}")


def test_the_first_error_in_the_order_of_files_and_nodes_is_told():
    good = b"\x00" + message(pb.Node(id=1, type=4))
    bad_node = b"\x00" + message(pb.Node(id=3)) + message(pb.Node(id=4, type=9)) + message(pb.Node(id=5, type=9))
    cut = b"\x00\x20"
    for order, text in (((good, bad_node, cut), "b.1: node 4: node type 9"), ((good, cut, bad_node), "b.1: byte 1")):
        with pytest.raises(TraceError) as caught:
            decode.decode([(data, f"b.{i}") for i, data in enumerate(order)])
        assert str(caught.value).startswith(text)


def test_duplicate_ids_name_both_positions():
    nodes = [message(pb.Node(id=i, type=4)) for i in (5, 7, 6, 7)]
    with pytest.raises(TraceError, match=r"^w.0.et: node 7 appears twice, at byte 7 and at byte 17"):
        et_io.parse_trace(b"\x00" + b"".join(nodes), "w.0.et")


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x07\x0a\x050.0.4"])
def test_a_file_without_nodes_is_an_empty_trace(data):
    trace = et_io.parse_trace(data)
    assert len(trace) == 0
    assert trace.order("data+ctrl").tolist() == []
    assert et_io.encode_trace(trace) == data
    assert [finding.rule for finding in lint_trace(trace)] == ["empty-trace"]


def test_an_empty_message_is_a_node_and_not_the_end():
    """Ids may start at 0, and a node of defaults only has no bytes at all."""
    data = b"\x00" + message(pb.Node(id=3)) + b"\x00" + message(pb.Node(id=4))
    trace = et_io.parse_trace(data)
    assert trace.node_id.tolist() == [3, 0, 4]
    assert et_io.encode_trace(trace) == data
    with pytest.raises(TraceError, match="node 0 appears twice, at byte 4 and at byte 8"):
        et_io.parse_trace(data + b"\x00")


def test_ids_may_be_sparse_and_refer_forward():
    first = pb.Node(id=2**40, type=4, data_deps=[17])
    trace = et_io.parse_trace(b"\x00" + message(first) + message(pb.Node(id=17, type=4)))
    assert trace.node_id[trace.order()].tolist() == [17, 2**40]


# -- files -----------------------------------------------------------------------------------------------------


def test_gzip_is_known_by_its_first_bytes_whatever_the_name(tmp_path):
    data = sample()
    for name, content in (("a.0.et", data), ("b.0.et", gzip.compress(data)), ("c.0.et", et_io.gzip_bytes(data))):
        (tmp_path / name).write_bytes(content)
        trace = et_io.read_trace(tmp_path / name)
        assert et_io.encode_trace(trace) == data
    members = gzip.compress(data[:100]) + gzip.compress(data[100:]) + b"\0" * 20
    (tmp_path / "d.0.et").write_bytes(members)
    assert et_io.encode_trace(et_io.read_trace(tmp_path / "d.0.et")) == data


def test_gzip_is_written_without_time_or_name(tmp_path):
    trace = et_io.parse_trace(sample())
    et_io.write_trace(tmp_path / "one.et.gz", trace, gzip=True)
    et_io.write_trace(tmp_path / "two.et.gz", trace, gzip=True)
    content = (tmp_path / "one.et.gz").read_bytes()
    assert content == (tmp_path / "two.et.gz").read_bytes()
    assert content[:10] == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"
    assert gzip.decompress(content) == sample()


@pytest.mark.slow
def test_a_damaged_gzip_stream_is_refused(tmp_path):
    whole = gzip.compress(sample(), mtime=0)
    file = tmp_path / "w.0.et"
    for size in range(2, len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"gzip stream|cut short"):
            et_io.read_trace(file)
    refused = 0
    for position in range(10, len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            # The last byte of a deflate stream has bits that mean nothing.
            assert et_io.encode_trace(et_io.read_trace(file)) == sample()
        except TraceError:
            refused += 1
    assert refused >= len(whole) - 11


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_a_gzip_bomb_costs_neither_time_nor_memory(tmp_path):
    stream = zlib.compressobj(9, wbits=31)
    block = bytes(2**20)
    bomb = b"".join(stream.compress(block) for _ in range(120)) + stream.flush()
    file = tmp_path / "w.0.et"
    file.write_bytes(bomb)
    before, memory = time.process_time(), peak_mib()
    with pytest.raises(TraceError, match="node 0 appears twice"):
        et_io.read_trace(file)
    assert time.process_time() - before < 20
    assert peak_mib() - memory < 100


def test_gunzip_is_bounded(monkeypatch):
    monkeypatch.setattr(et_io, "MAX_GUNZIP", 2**20)
    assert len(et_io.gunzip(gzip.compress(bytes(2**20)))) == 2**20
    with pytest.raises(TraceError, match="unzips to more than 1048576 bytes"):
        et_io.gunzip(gzip.compress(bytes(2**20 + 1)))


def test_many_or_odd_gzip_members_are_bounded(monkeypatch):
    member = gzip.compress(b"ab")
    assert et_io.gunzip(member * 3 + b"\0\0") == b"ababab"
    with pytest.raises(TraceError, match="has data after its gzip stream"):
        et_io.gunzip(member + b"\0" + member)
    with pytest.raises(TraceError, match="gzip stream is damaged"):
        et_io.gunzip(member + b"more")
    monkeypatch.setattr(et_io, "MAX_MEMBERS", 2)
    with pytest.raises(TraceError, match="more than 2 gzip streams"):
        et_io.gunzip(member * 3)


def test_a_stream_far_smaller_than_its_content_is_refused(monkeypatch):
    monkeypatch.setattr(et_io, "_AMPLE", 2**16)
    monkeypatch.setattr(et_io, "MAX_RATIO", 100)
    with pytest.raises(TraceError, match="unzips to more than 100 times its size"):
        et_io.gunzip(gzip.compress(bytes(2**20)))
    noise = np.random.default_rng(1).bytes(2**20)
    assert et_io.gunzip(gzip.compress(noise)) == noise


def test_a_huge_file_of_nothing_is_refused_at_its_beginning(tmp_path):
    file = tmp_path / "w.0.et"
    with open(file, "wb") as sparse:
        sparse.truncate(et_io.MAX_FILE - 1)
    memory = peak_mib()
    with pytest.raises(TraceError, match="node 0 appears twice"):
        et_io.read_trace(file)
    assert peak_mib() - memory < 100
    with open(file, "wb") as sparse:
        sparse.truncate(et_io.MAX_FILE + 1)
    with pytest.raises(TraceError, match="more than 2147483648 bytes"):
        et_io.read_trace(file)


def test_too_many_nodes_are_refused(monkeypatch):
    monkeypatch.setattr(wire, "MAX_NODES", 3)
    nodes = [message(pb.Node(id=i)) for i in range(1, 5)]
    assert len(et_io.parse_trace(b"\x00" + b"".join(nodes[:3]))) == 3
    with pytest.raises(TraceError, match="more than 3 nodes"):
        et_io.parse_trace(b"\x00" + b"".join(nodes))


def test_only_regular_files_are_read(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, "/dev/zero"):
        with pytest.raises(TraceError, match="is not a regular file"):
            et_io.read_trace(path)
    for path in (tmp_path / "absent.et", "nul\0byte"):
        with pytest.raises(TraceError, match=r"cannot be read|is not a file name"):
            et_io.read_trace(path)


def small(rank: int) -> ExecutionTrace:
    return ExecutionTrace.from_columns(node_id=[1, 2], type=4, num_ops=rank)


def test_sets_are_found_read_and_written_by_rank(tmp_path):
    traces = [small(rank) for rank in range(12)]
    for name, zipped in (("plain", False), ("zipped", True)):
        paths = et_io.write_prefix(tmp_path / name, traces, gzip=zipped)
        assert [path.name for path in paths][:2] == [f"{name}.{r}.et{'.gz' if zipped else ''}" for r in (0, 1)]
        again = et_io.read_prefix(tmp_path / name)
        assert [trace.digest() for trace in again] == [trace.digest() for trace in traces]
        assert [trace.rank for trace in again] == list(range(12))


def test_files_of_equal_content_share_one_trace(tmp_path):
    et_io.write_prefix(tmp_path / "w", [small(0), small(1), small(0)])
    first, second, third = et_io.read_prefix(tmp_path / "w")
    assert first is third is not second
    assert first.place.endswith("w.0.et")


def test_missing_extra_and_doubled_ranks_are_listed(tmp_path):
    et_io.write_prefix(tmp_path / "w", [small(rank) for rank in range(6)])
    (tmp_path / "w.2.et").unlink()
    (tmp_path / "w.4.et").unlink()
    with pytest.raises(TraceError, match=r"ranks 0\.\.5 are needed: missing w\.2\.et, w\.4\.et"):
        et_io.read_prefix(tmp_path / "w")
    with pytest.raises(TraceError, match=r"missing w\.2\.et; beyond the last rank w\.3\.et, w\.5\.et"):
        et_io.read_prefix(tmp_path / "w", ranks=3)
    with pytest.raises(TraceError, match=r"missing w\.2\.et, w\.4\.et, w\.6\.et"):
        et_io.read_prefix(tmp_path / "w", ranks=7)
    et_io.write_trace(tmp_path / "w.1.et.gz", small(1), gzip=True)
    with pytest.raises(TraceError, match=r"ranks appear twice: w\.1\.et and w\.1\.et\.gz"):
        et_io.read_prefix(tmp_path / "w")
    with pytest.raises(TraceError, match=r"there is no x\.0\.et"):
        et_io.read_prefix(tmp_path / "x")
    with pytest.raises(TraceError, match=r"did you mean .*/w\?"):
        et_io.read_prefix(tmp_path / "w.0.et")
    with pytest.raises(TraceError, match="cannot list"):
        et_io.read_prefix(tmp_path / "nowhere" / "w")


def test_a_smaller_set_does_not_mix_with_an_older_larger_one(tmp_path):
    et_io.write_prefix(tmp_path / "w", [small(0), small(1), small(2)])
    with pytest.raises(OutputError, match=r"files of another set are in the way: w\.2\.et"):
        et_io.write_prefix(tmp_path / "w", [small(0), small(1)])
    et_io.write_prefix(tmp_path / "w", [small(7)] * 3)
    assert et_io.read_prefix(tmp_path / "w")[2].digest() == small(7).digest()


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "w.0.et"
    target.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="cannot be written: No space left on device; free some space"):
        et_io.write_trace(target, small(0))
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["w.0.et"]
    with pytest.raises(OutputError, match="cannot be written"):
        et_io.write_trace(tmp_path / "nowhere" / "w.0.et", small(0))


# -- dialects and units ----------------------------------------------------------------------------------------


def messages_trace(**columns) -> ExecutionTrace:
    return ExecutionTrace.from_columns(node_id=[1, 2, 3], type=[5, 6, 4], comm_tag=0, **columns)


def test_dialects_hold_what_they_say():
    trace = messages_trace(
        comm_size=[10, 10, MISSING],
        msg_chunk_idx=0,
        msg_chunk_cnt=1,
        total_chunk_cnt=4,
        src_buf=[1, MISSING, MISSING],
        comp_op=[MISSING, MISSING, 1],
    )
    symbolic = et_io.parse_trace(et_io.encode_trace(trace, dialect="symbolic"))
    absolute = et_io.parse_trace(et_io.encode_trace(trace, dialect="absolute"))
    assert not symbolic.has_column("comm_size")
    assert symbolic.column("total_chunk_cnt").tolist() == [4, 4, 4]
    assert symbolic.column("src_buf").tolist() == [1, MISSING, MISSING]
    assert absolute.column("comm_size").tolist() == [10, 10, MISSING]
    for name in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt", "src_buf"):
        assert not absolute.has_column(name)
    assert absolute.column("comp_op").tolist() == [MISSING, MISSING, 1]


@pytest.mark.parametrize(
    ("dialect", "columns", "text"),
    [
        ("absolute", {"msg_chunk_idx": 0, "msg_chunk_cnt": 1, "total_chunk_cnt": 4}, "node 1 has no comm_size"),
        ("symbolic", {"comm_size": [1, 1, 1]}, "node 1 has no msg_chunk_idx"),
    ],
)
def test_a_dialect_that_lacks_something_is_refused(dialect, columns, text):
    with pytest.raises(TraceError, match=text):
        et_io.encode_trace(messages_trace(**columns), dialect=dialect)


def test_attributes_are_written_with_their_canonical_types():
    trace = ExecutionTrace.from_columns(
        node_id=[1], type=7, is_cpu_op=0, comm_type=0, comm_size=1, comm_tag=2, tensor_size=3, tensor_loc=4, pg_name="5"
    )
    kinds = {a.name: (a.kind, a.value) for a in attributes(et_io.parse_trace(et_io.encode_trace(trace)).node(0).attr)}
    assert kinds == {
        "is_cpu_op": ("bool_val", False),
        "comm_type": ("int64_val", 0),
        "comm_size": ("int64_val", 1),
        "comm_tag": ("int32_val", 2),
        "tensor_size": ("uint64_val", 3),
        "tensor_loc": ("uint32_val", 4),
        "pg_name": ("string_val", "5"),
    }


def elements(tmp_path, op_types: list[str | None]) -> None:
    out = b"\x00"
    for number, op_type in enumerate(op_types):
        node = pb.Node(id=number, type=NodeType.COMP)
        node.attr.add(name="num_ops", int64_val=10)
        node.attr.add(name="tensor_size", uint64_val=3)
        node.attr.add(name="comm_size", int32_val=2**31 - 1)
        if op_type is not None:
            node.attr.add(name="op_type", string_val=op_type)
        out += message(node)
    (tmp_path / "w.0.et").write_bytes(out)
    (tmp_path / "w.1.et").write_bytes(out)


def test_element_counts_become_bytes(tmp_path):
    elements(tmp_path, ["M", "E", None])
    workload = read_workload(tmp_path / "w", size_unit="elements", dtype_bytes=2)
    trace = workload.traces[0]
    assert trace is workload.traces[1]
    assert trace.column("tensor_size").tolist() == [6, 6, 6]
    assert trace.column("comm_size").tolist() == [2**32 - 2] * 3
    assert trace.column("num_ops").tolist() == [10, 10, 10]
    again = et_io.parse_trace(et_io.encode_trace(trace))
    assert again.digest() == trace.digest()
    assert [a.WhichOneof("value") for a in again.node(1).attr] == ["int64_val", "uint64_val", "int64_val", "string_val"]


@pytest.mark.parametrize(
    ("op_types", "ops"), [(["M", "E", None], [20, 10, 10]), ([None] * 3, [20] * 3), (["E"] * 3, [10] * 3)]
)
def test_multiply_accumulates_become_two_operations(tmp_path, op_types, ops):
    elements(tmp_path, op_types)
    assert read_workload(tmp_path / "w", macs=True).traces[0].column("num_ops").tolist() == ops


@pytest.mark.parametrize(
    "wrong",
    [
        {"size_unit": "bits"},
        {"size_unit": "elements"},
        {"dtype_bytes": 2},
        {"size_unit": "elements", "dtype_bytes": 0},
        {"groups": {"1": (0, 2)}},
        {"ranks": 3},
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(tmp_path, wrong):
    elements(tmp_path, [None])
    with pytest.raises(TraceError):
        read_workload(tmp_path / "w", **wrong)


def test_sizes_do_not_overflow(tmp_path):
    node = pb.Node(id=4, type=7)
    node.attr.add(name="comm_size", int64_val=2**62)
    (tmp_path / "w.0.et").write_bytes(b"\x00" + message(node))
    with pytest.raises(TraceError, match=r"node 4: comm_size 4611686018427387904 times 2 is beyond 2\^63 - 1"):
        read_workload(tmp_path / "w", size_unit="elements", dtype_bytes=2)


def test_columns_survive_without_the_bytes(tmp_path):
    (tmp_path / "w.0.et").write_bytes(sample())
    kept = read_workload(tmp_path / "w")
    lean = read_workload(tmp_path / "w", keep_raw=False)
    assert lean.digest() == kept.digest()
    assert lean.traces[0].raw is None
    assert lean.traces[0].metadata == kept.traces[0].metadata
    assert list(lean.traces[0].names) == [f"node {i}" for i in range(8)]


# -- the text form ---------------------------------------------------------------------------------------------


def test_text_form_can_be_edited(tmp_path):
    (tmp_path / "w.jsonl").write_bytes(text_io.jsonl_bytes(et_io.parse_trace(sample())))
    text = (tmp_path / "w.jsonl").read_text()
    (tmp_path / "w.jsonl").write_text(text.replace('"int64_val": 64', '"int64_val": 65').replace("\n", "\r\n"))
    trace = text_io.read_jsonl(tmp_path / "w.jsonl")
    assert trace.column("comm_size").tolist() == [1, 2, 4, 8, 16, 32, 65, 128]


HEAD = '{"chakra_jsonl": 1}\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{}", ":1: is not the metadata of a trace in text form"),
        ('{"chakra_jsonl": 2}', ":1: chakra_jsonl is 2, this version reads 1"),
        ("[]", ":1: is [], not an object"),
        (HEAD + "{", ":2: is not JSON"),
        (HEAD + "\n", ":2: is not JSON"),
        (HEAD + "[" * 100_000, ":2: is too deeply nested"),
        (HEAD + "{}", ":2: a node needs an id"),
        (HEAD + '{"id": -1}', ":2: id is -1, not a whole number in 0..18446744073709551615"),
        (HEAD + '{"id": 1.0}', ":2: id is 1.0, not a whole number"),
        (HEAD + '{"id": true}', ":2: id is true, not a whole number"),
        (HEAD + '{"id": 1}\n{"id": 1}', ":3: node 1 appears twice, first in line 2"),
        (HEAD + '{"id": 1, "id": 2}', ':2: key "id" appears twice'),
        (HEAD + '{"id": 1, "tpye": "COMP"}', ':2: a node has no key "tpye"'),
        (HEAD + '{"id": 1, "type": "COMPUTE"}', ':2: type "COMPUTE" is not one of INVALID, METADATA'),
        (HEAD + '{"id": 1, "data_deps": 3}', ":2: data_deps is 3, not a list"),
        (HEAD + '{"id": 1, "name": 3}', ":2: name is 3, not text"),
        (HEAD + '{"id": 1, "name": "\\ud800"}', ":2: name holds a lone surrogate"),
        (HEAD + '{"id": 1, "inputs": {"value": ""}}', ':2: inputs has no key "value"'),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "int_val": 1}]}', ':2: attribute x has no key "int_val"'),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "int32_val": 1, "bool_val": true}]}', ":2: attribute x has both"),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "int32_val": 2147483648}]}', ":2: x is 2147483648, not a whole"),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "bool_val": 1}]}', ":2: x is 1, not true or false"),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "double_val": "1"}]}', ':2: x is "1", not a number'),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "double_val": 1e999}]}', ":2: x is Infinity, beyond"),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "double_val": NaN}]}', ":2: NaN is not JSON"),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "float_val": 1e39}]}', ":2: x is 1e+39, beyond what a float"),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "bytes_val": "?"}]}', ':2: x is "?", not base64'),
        (HEAD + '{"id": 1, "attr": [{"name": "x", "int32_list": 3}]}', ":2: x is 3, not a list"),
        (HEAD + '{"id": 1, "raw": "CAI="}', ':2: its fields differ from what "raw" says'),
        (HEAD + '{"id": 1, "raw": "//8="}', ":2: raw is a Node that cannot be decoded"),
        (HEAD + '{"id": 1, "prefix": "CAI="}', ':2: "prefix" does not say 2 bytes'),
        (
            HEAD + '{"id": 1, "type": "COMM_COLL", "attr": [{"name": "comm_size", "bool_list": []}]}',
            ": node 1: comm_size",
        ),
    ],
)
def test_bad_text_is_refused_by_line(tmp_path, text, error):
    file = tmp_path / "w.jsonl"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        text_io.read_jsonl(file)
    assert str(caught.value).startswith(f"{file}{error}")
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8_is_refused_by_line(tmp_path):
    (tmp_path / "w.jsonl").write_bytes(HEAD.encode() + b'{"id": 1, "name": "\xff"}')
    with pytest.raises(TraceError, match=r"w.jsonl:2: is not UTF-8"):
        text_io.read_jsonl(tmp_path / "w.jsonl")


def test_flipped_bits_in_text_raise_nothing_but_trace_errors():
    lines = list(text_io.lines_of_bytes(sample()))
    data = bytearray("\n".join(lines[:3]).encode())
    for position in range(len(data)):
        for bit in (0, 3, 6, 7):
            data[position] ^= 1 << bit
            try:
                et_io.parse_trace(text_io.bytes_of_lines(bytes(data), "w.jsonl"), "w.jsonl")
            except TraceError as error:
                assert str(error).startswith("w.jsonl")
            data[position] ^= 1 << bit
