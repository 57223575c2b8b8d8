"""The compiled reader against protobuf: equal columns, equal errors, on good, odd and damaged files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.chakra_files import files, sample

from astrasim_py.chakra import decode, decode_large, et_io
from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.schema import COLUMN_KINDS
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint
from astrasim_py.core.errors import TraceError

INTS = tuple(COLUMN_KINDS)


def facts(columns: dict[str, object]) -> dict[str, object]:
    """All that a file decodes to, types included."""

    def plainly(value: object) -> object:
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.tolist()
        if isinstance(value, tuple):
            return tuple(map(plainly, value))
        return {key: plainly(value[key]) for key in sorted(value)} if isinstance(value, dict) else value

    return {name: plainly(value) for name, value in columns.items()}


def outcome(contents: list[tuple[bytes, str]], kernel: bool) -> object:
    try:
        return [facts(columns) for columns in decode.decode(contents, kernel=kernel)]
    except TraceError as error:
        return str(error)


def check_equal(*contents: bytes) -> object:
    named = [(data, f"w.{rank}.et") for rank, data in enumerate(contents)]
    read = outcome(named, kernel=True)
    assert read == outcome(named, kernel=False)
    return read


def read_by_kernel(data: bytes) -> bool:
    return decode_large.decode(data, "w.0.et", INTS, "pg_name") is not None


def a_file(*nodes: pb.Node | bytes) -> bytes:
    bodies = [node if isinstance(node, bytes) else node.SerializeToString() for node in nodes]
    return b"".join(varint(len(body)) + body for body in (b"\x0a\x050.0.4", *bodies))


@st.composite
def damaged(draw) -> bytes:
    data = bytearray(draw(files())[0])
    for _ in range(draw(st.integers(1, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(["flip", "set", "cut", "drop", "double"]))
        if how == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "set":
            data[at] = draw(st.sampled_from([0, 1, 127, 128, 255]))
        elif how == "cut":
            del data[at:]
        elif how == "drop":
            del data[at]
        else:
            data[at:at] = data[at : at + draw(st.integers(1, 20))]
    return bytes(data)


@given(st.lists(files().map(lambda case: case[0]), max_size=4))
@pytest.mark.slow
def test_both_readers_agree_on_well_formed_files(contents):
    assert isinstance(check_equal(*contents), list)


@given(st.lists(st.one_of(damaged(), files().map(lambda case: case[0])), min_size=1, max_size=3))
@pytest.mark.slow
def test_both_readers_agree_on_damaged_files(contents):
    check_equal(*contents)


def test_both_readers_agree_on_flipped_bits_and_every_cut():
    data = bytearray(sample(2))
    refused = 0
    for position in range(len(data)):
        refused += isinstance(check_equal(bytes(data[:position])), str)
        for bit in (position % 8, 7):
            data[position] ^= 1 << bit
            refused += isinstance(check_equal(bytes(data)), str)
            data[position] ^= 1 << bit
    assert 100 < refused < 3 * len(data)


def usual_nodes(count: int) -> list[pb.Node]:
    out = []
    for row in range(count):
        node = pb.Node(id=row, type=5 + row % 3, name=f"node {row}", data_deps=range(max(0, row - 2), row))
        node.duration_micros = row**4
        for name, kind, value in (
            ("comm_dst", "int32_val", row * 50),
            ("comm_tag", "int32_val", -1 if row == 7 else 3),
            ("comm_size", "int64_val", 2 ** (5 * row % 62)),
            ("tensor_size", "uint64_val", 9),
            ("is_cpu_op", "bool_val", row % 2 == 0),
            ("pg_name", "string_val", f"a group of process {row // 3}"),
            ("inputs", "string_list", None),
        )[: 3 + row % 5]:
            attribute = node.attr.add(name=name)
            if value is None:
                attribute.string_list.values.extend(["x", "yz"])
            else:
                setattr(attribute, kind, value)
        out.append(node)
    return out


def test_usual_files_are_read_by_the_kernel():
    data = a_file(*usual_nodes(60))
    assert read_by_kernel(data)
    (facts_,) = check_equal(data)
    assert facts_["_columns"]["comm_dst"][0] == "int64"
    assert facts_["_columns"]["comm_dst"][1][3] == 150
    assert facts_["_groups"][1][0] == "a group of process 1"
    check_equal(a_file(), data, b"", b"\x00", data)


@pytest.mark.parametrize(
    ("body", "usual"),
    [
        (b"\x08\x05\x98\x06\x05", True),  # an unknown field
        (b"\x08\x05\x5d\x01\x02\x03\x04\x61\x01\x02\x03\x04\x05\x06\x07\x08", True),  # unknown ones of fixed width
        (b"\x08\x05\x52\x00", True),  # an attribute without a name
        (b"\x08\x05\x52\x0d\x48\x07\x0a\x09comm_size", True),  # the value before the name
        (b"\x08\x05\x52\x0f\x0a\x09comm_size\x38\x03\x48\x04", True),  # two members
        (b"\x08\x05\x52\x15\x0a\x09comm_size\xa9\x01\x01\x02\x03\x04\x05\x06\x07\x08", True),  # a fixed64
        (b"\x08\x05\x20\x07", False),  # a dependency that is not packed
        (b"\x08\x05\x5b\x08\x01\x5c", False),  # a group
        (b"\x08\x05" + 2 * b"\x52\x0d\x0a\x09comm_size\x48\x07", False),  # an attribute twice
        ("é".encode().join([b"\x08\x05\x12\x02", b""]), False),  # a name beyond ASCII
    ],
)
def test_what_is_unusual_is_left_to_the_other_reader(body, usual):
    data = a_file(pb.Node(id=1, type=4), body, *usual_nodes(2)[1:])
    assert read_by_kernel(data) is usual
    assert isinstance(check_equal(data), list | str)


def test_numbers_of_every_width_follow_learnt_heads():
    """Attributes that begin like the one that usually comes next, with numbers of one to ten bytes."""
    nodes = []
    for power in range(64):
        node = pb.Node(id=power, type=7)
        node.attr.add(name="comm_priority", int32_val=power)
        node.attr.add(name="payload", int64_val=2**power - 1 if power < 63 else -5)
        node.attr.add(name="payload_", int64_val=power)
        nodes.append(node)
    (facts_,) = check_equal(a_file(*nodes))
    assert facts_["_columns"]["payload"][1] == [*(2**power - 1 for power in range(63)), -5]
    overlong = b"\x08\x63\x18\x07\x52\x12\x0a\x0dcomm_priority\x38\x85\x00"
    (facts_,) = check_equal(a_file(*nodes, overlong))
    assert facts_["_columns"]["comm_priority"][1][-1] == 5


def test_more_texts_than_the_kernel_holds_and_texts_that_collide():
    def named(count: int, text: str) -> bytes:
        nodes = []
        for row in range(count):
            node = pb.Node(id=row, type=7)
            node.attr.add(name="pg_name", string_val=text.format(row % (count // 2 + 1)))
            nodes.append(node)
        return a_file(*nodes)

    for data, usual in (
        (named(3000, "{}"), False),
        (named(800, "{}"), True),
        (named(300, "12345678{:04}12345678"), False),
    ):
        assert read_by_kernel(data) is usual
        check_equal(data)


def test_large_sets_use_the_kernel_and_small_ones_do_not_load_numba(tmp_path, monkeypatch):
    data = a_file(*usual_nodes(60))
    for rank in range(3):
        (tmp_path / f"w.{rank}.et").write_bytes(data + b"\x02\x08" + bytes([60 + rank]))
    small = et_io.read_prefix(tmp_path / "w")
    called = []
    read = decode_large.decode
    monkeypatch.setattr(decode, "KERNEL_BYTES", 3 * len(data))
    monkeypatch.setattr(decode_large, "decode", lambda data, *more: called.append(len(data)) or read(data, *more))
    large = et_io.read_prefix(tmp_path / "w")
    assert called == [len(data) + 3] * 3
    assert [trace.digest() for trace in large] == [trace.digest() for trace in small]
    code = (
        "import sys; from astrasim_py.chakra.et_io import read_prefix; read_prefix(sys.argv[1]);"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "w")], check=True)


def test_golden_files_are_read_by_the_kernel():
    golden = os.environ.get("ASTRASIM_GOLDEN")
    if not golden:
        pytest.skip("ASTRASIM_GOLDEN is not set")
    paths = sorted((Path(golden) / "chakra_samples").rglob("*.et"))
    assert len(paths) > 10
    usual = 0
    for path in paths:
        data = et_io.read_bytes(path)
        usual += read_by_kernel(data)
        check_equal(data)
    assert usual > 0.8 * len(paths)


def test_a_trace_read_by_the_kernel_is_written_back_byte_for_byte():
    data = a_file(*usual_nodes(60))
    (columns,) = decode.decode([(data, "w.0.et")], kernel=True)
    trace = et_io._trace(columns, "w.0.et", 0)
    assert isinstance(trace, ExecutionTrace)
    assert et_io.encode_trace(trace) == data
    assert trace.digest() == et_io.parse_trace(data).digest()
    changed = trace.replace(comm_tag=4)
    assert et_io.parse_trace(et_io.encode_trace(changed)).digest() == changed.digest()
