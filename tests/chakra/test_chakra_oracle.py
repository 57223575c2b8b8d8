"""The columnar decoder, the encoder and the text form against protobuf, on random messages."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.chakra_files import COUNTS, INTEGERS, TEXT, UINT64, files

from astrasim_py.chakra import decode, et_io, messages, text_io, wire
from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import TraceError


def last_values(node: pb.Node) -> dict[str, object]:
    values = {}
    for attribute in node.attr:
        kind = attribute.WhichOneof("value")
        values[attribute.name] = getattr(attribute, kind) if kind else None
    return values


def check(trace: ExecutionTrace, content: list[pb.Node]) -> None:
    assert trace.node_id.tolist() == [node.id for node in content]
    assert trace.type.tolist() == [node.type for node in content]
    assert trace.start_time_micros.tolist() == [node.start_time_micros for node in content]
    assert trace.duration_micros.tolist() == [node.duration_micros for node in content]
    assert list(trace.names) == [node.name for node in content]
    for csr, field in ((trace.data_deps, "data_deps"), (trace.ctrl_deps, "ctrl_deps")):
        split = [part.tolist() for part in np.split(csr.ids, csr.ptr[1:-1])] if content else []
        assert split == [list(getattr(node, field)) for node in content]
    values = [last_values(node) for node in content]
    for name in INT_COLUMNS:
        expected = [v.get(name) for v in values]
        assert trace.column(name).tolist() == [MISSING if v is None else int(v) for v in expected], name
    codes, names = trace.group_of()
    groups = [v.get("pg_name") for v in values]
    assert [names[code] if code >= 0 else None for code in codes.tolist()] == groups


@given(files())
def test_decoder_agrees_with_protobuf(case):
    data, content = case
    check(et_io.parse_trace(data), content)


@given(files())
def test_the_strict_walk_accepts_what_protobuf_reads(case):
    data, content = case
    raw, _ = wire.frame(data, "")
    for start, end, node in zip(raw.start.tolist(), raw.end.tolist(), content, strict=True):
        wire.check_node(data, start, end)
        assert wire.node_place(data, start, end) == (f"node {node.id}" if node.id else f"byte {start}")


@given(files())
def test_what_was_read_is_written_byte_for_byte(case):
    data, _ = case
    trace = et_io.parse_trace(data)
    assert et_io.encode_trace(trace) == data
    assert et_io.encode_trace(trace.replace(place="elsewhere")) == data


@given(files())
def test_text_form_is_exact(case):
    data, _ = case
    lines = "".join(f"{line}\n" for line in text_io.lines_of_bytes(data))
    assert text_io.bytes_of_lines(lines.encode()) == data


@given(files(), st.data())
@pytest.mark.slow
def test_a_changed_column_changes_only_itself(case, data):
    content = case[1]
    trace = et_io.parse_trace(case[0])
    name = data.draw(st.sampled_from(INT_COLUMNS))
    new = [data.draw(st.sampled_from([MISSING, 0, 1, 2**31, 2**62])) for _ in content]
    changed = trace.replace(**{name: new, "duration_micros": [9] * len(new)})
    again = et_io.parse_trace(et_io.encode_trace(changed))
    assert again.digest() == changed.digest()
    assert again.column(name).tolist() == new
    for row, node in enumerate(content):
        kept = [a.SerializeToString() for a in node.attr if a.name != name]
        view = again.node(row)
        assert [a.SerializeToString() for a in view.attr if a.name != name] == kept
        assert repr(changed.node(row)) == repr(again.node(row))


@given(files())
@pytest.mark.slow
def test_many_files_at_once_are_the_same_as_one_by_one(case):
    data, content = case
    other = b"\x00\x02\x08\x05"
    batch = decode.decode([(data, "a"), (other, "b"), (data, "c")] * 6)
    assert [len(columns["node_id"]) for columns in batch] == [len(content), 1, len(content)] * 6
    alone = et_io.parse_trace(data)
    for columns in (batch[0], batch[-1]):
        assert columns["node_id"].tolist() == alone.node_id.tolist()
        assert columns["data_deps"].ids.tolist() == alone.data_deps.ids.tolist()
        assert columns["data_deps"].ptr.tolist() == alone.data_deps.ptr.tolist()
        for name, column in columns["_columns"].items():
            assert np.broadcast_to(column, (len(alone),)).tolist() == alone.column(name).tolist()


@st.composite
def built(draw) -> ExecutionTrace:
    size = draw(st.integers(0, 8))
    column = {name: st.one_of(st.just(MISSING), INTEGERS[kind].map(int)) for name, kind in COLUMN_KINDS.items()}
    chosen = draw(st.lists(st.sampled_from(INT_COLUMNS), unique=True, max_size=6))
    lengths = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    ptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    deps = Csr(ptr, np.array(draw(st.lists(UINT64, min_size=int(ptr[-1]), max_size=int(ptr[-1]))), dtype=np.uint64))
    several = {"min_size": size, "max_size": size}
    return ExecutionTrace.from_columns(
        node_id=np.array(draw(st.lists(UINT64, unique=True, **several)), dtype=np.uint64),
        type=np.array(draw(st.lists(st.integers(0, 7), **several)), dtype=np.int64),
        data_deps=deps,
        ctrl_deps=draw(st.sampled_from([None, deps])),
        duration_micros=np.array(draw(st.lists(UINT64, **several)), dtype=np.uint64),
        names=draw(st.one_of(st.none(), st.lists(TEXT, **several))),
        pg_name=draw(st.one_of(st.none(), st.lists(st.one_of(st.none(), TEXT), **several))),
        version=draw(st.sampled_from(["", "0.0.4"])),
        metadata=draw(st.sampled_from([(), {"schema": "s", "n": 3, "f": 0.5, "b": b"\xff", "t": True}])),
        **{
            name: draw(
                st.lists(
                    column[name].map(lambda v, n=name: max(v, 0) if n in COUNTS and v != MISSING else v), **several
                )
            )
            for name in chosen
            if size
        },
    )


@given(built())
def test_columns_are_written_as_protobuf_writes_them(trace):
    header = messages.metadata_message(trace.version, trace.metadata).SerializeToString()
    expected = wire.varint(len(header)) + header
    for row in range(len(trace)):
        body = trace.node(row).SerializeToString()
        expected += wire.varint(len(body)) + body
    assert et_io.encode_trace(trace) == expected


@given(built())
def test_a_built_trace_is_read_back_as_it_was(trace):
    data = et_io.encode_trace(trace)
    again = et_io.parse_trace(data)
    free = np.isin(trace.type, (0, 1))
    if not free.any():
        assert again.digest() == trace.digest()
    assert repr(again.metadata) == repr(trace.metadata)
    assert et_io.encode_trace(again.without_raw()) == data


@pytest.mark.parametrize("kind", list(INTEGERS))
def test_any_integer_member_is_read(kind):
    node = pb.Node(id=1, type=7)
    setattr(node.attr.add(name="comm_size"), kind, 1)
    body = node.SerializeToString()
    assert et_io.parse_trace(b"\x00" + wire.varint(len(body)) + body).column("comm_size").tolist() == [1]


@pytest.mark.parametrize("kind", ["double_val", "float_val", "string_val", "bytes_val", "int64_list", "bool_list"])
@pytest.mark.parametrize("type_", [3, 4, 5, 6, 7])
def test_a_size_of_another_kind_names_node_and_attribute(kind, type_):
    node = pb.Node(id=12, type=type_)
    attribute = node.attr.add(name="comm_size")
    if kind.endswith("_list"):
        getattr(attribute, kind).values.append(1)
    else:
        setattr(attribute, kind, {"string_val": "1", "bytes_val": b"1"}.get(kind, 1.0))
    body = node.SerializeToString()
    with pytest.raises(TraceError) as caught:
        et_io.parse_trace(b"\x00" + wire.varint(len(body)) + body, "w.0.et")
    assert str(caught.value).startswith(f"w.0.et: node 12: comm_size is a {kind}, not a whole number")


def test_a_metadata_node_may_carry_anything():
    node = pb.Node(id=12, type=1)
    node.attr.add(name="comm_size", string_val="large")
    node.attr.add(name="pg_name", int64_val=3)
    body = node.SerializeToString()
    trace = et_io.parse_trace(b"\x00" + wire.varint(len(body)) + body)
    assert trace.column("comm_size").tolist() == [MISSING]


@pytest.mark.parametrize(
    ("kind", "value"), [("int64_val", -1), ("uint64_val", 2**63), ("sint32_val", -5), ("fixed64_val", 2**64 - 1)]
)
@pytest.mark.parametrize("name", ["comm_size", "tensor_size", "num_ops"])
def test_sizes_outside_of_63_bits_are_refused(name, kind, value):
    node = pb.Node(id=7, type=7)
    setattr(node.attr.add(name=name), kind, value)
    body = node.SerializeToString()
    with pytest.raises(TraceError, match=rf"node 7: {name} is {value}, not in 0\.\.2\^63 - 1"):
        et_io.parse_trace(b"\x00" + wire.varint(len(body)) + body, "w.0.et")


def test_nodes_with_very_many_fields_are_read():
    body = b"\x08\x01" + b"\x28\x05" * 5000 + b"\x52\x0d\x0a\x09comm_size\x48\x04"
    trace = et_io.parse_trace(b"\x00" + wire.varint(len(body)) + body)
    assert trace.data_deps.ids.tolist() == [5] * 5000
    assert trace.column("comm_size").tolist() == [4]


def test_names_longer_than_two_words_are_told_apart():
    node = pb.Node(id=1, type=4)
    node.attr.add(name="a_long_attribute_name_of_one", int64_val=1)
    node.attr.add(name="a_long_contribute_name_of_one", int64_val=2)
    body = node.SerializeToString()
    trace = et_io.parse_trace(b"\x00" + wire.varint(len(body)) + body)
    assert trace.column("a_long_attribute_name_of_one").tolist() == [1]
    assert trace.column("a_long_attribute_xxxx_of_one").tolist() == [MISSING]


def test_not_a_number_keeps_its_bits_in_text():
    node = pb.Node(id=1)
    body = node.SerializeToString() + b"\x52\x0c\x0a\x01x\x19" + struct.pack("<Q", 0x7FF8000000000123)[:8]
    data = b"\x00" + wire.varint(len(body)) + body
    lines = "\n".join(text_io.lines_of_bytes(data)).encode()
    assert b'"nan"' in lines
    assert text_io.bytes_of_lines(lines) == data
