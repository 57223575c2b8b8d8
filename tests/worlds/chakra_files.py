"""Chakra files to read: random ones, and a small one with a bit of everything."""

from __future__ import annotations

from hypothesis import strategies as st

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS
from astrasim_py.chakra.wire import varint

UINT64 = st.one_of(st.integers(0, 300), st.sampled_from([2**k - d for k in range(7, 65, 7) for d in (0, 1)]))
SIGNED = st.one_of(st.integers(-300, 300), st.sampled_from([-(2**31), 2**31 - 1]))
WIDE = st.one_of(SIGNED, st.sampled_from([1 - 2**63, 2**63 - 1, 2**32, 2**49 + 3]))
UNSIGNED = st.one_of(st.integers(0, 300), st.just(2**32 - 1))
UNSIGNED_WIDE = st.one_of(UNSIGNED, st.just(2**63 - 1))
INTEGERS = {
    "int32_val": SIGNED,
    "int64_val": WIDE,
    "uint32_val": UNSIGNED,
    "uint64_val": UNSIGNED_WIDE,
    "sint32_val": SIGNED,
    "sint64_val": WIDE,
    "fixed32_val": UNSIGNED,
    "fixed64_val": UNSIGNED_WIDE,
    "sfixed32_val": SIGNED,
    "sfixed64_val": WIDE,
    "bool_val": st.booleans(),
}
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
#: hypothesis also tries words that it finds in our own code: a foreign attribute must not have a column's name.
FOREIGN = TEXT.filter(lambda text: text not in COLUMN_KINDS and text != "pg_name")
COUNTS = ("comm_size", "num_ops", "tensor_size", "coll_size")


@st.composite
def known_attributes(draw) -> pb.AttributeProto:
    name = draw(st.sampled_from(INT_COLUMNS))
    kind = draw(st.sampled_from(["", *INTEGERS]))
    attribute = pb.AttributeProto(name=name, doc_string=draw(st.sampled_from(["", "doc"])))
    if kind:
        value = draw(INTEGERS[kind])
        setattr(attribute, kind, max(value, type(value)(0)) if name in COUNTS else value)
    return attribute


@st.composite
def foreign_attributes(draw) -> pb.AttributeProto:
    attribute = pb.AttributeProto(
        name=draw(st.one_of(FOREIGN, st.sampled_from(["comm_sizes", "comm", "total_chunk_count"])))
    )
    kind = draw(
        st.sampled_from(["", "double_val", "float_list", "int64_list", "bool_list", "string_list", "bytes_val"])
    )
    if kind == "double_val":
        attribute.double_val = draw(st.floats())
    elif kind == "float_list":
        attribute.float_list.values.extend(draw(st.lists(st.floats(width=32), max_size=3)))
    elif kind == "bytes_val":
        attribute.bytes_val = draw(st.binary(max_size=200))
    elif kind:
        values = {"int64_list": WIDE, "bool_list": st.booleans(), "string_list": TEXT}[kind]
        getattr(attribute, kind).SetInParent()
        getattr(attribute, kind).values.extend(draw(st.lists(values, max_size=3)))
    return attribute


@st.composite
def nodes(draw, number: int) -> pb.Node:
    node = pb.Node(
        id=number * 2 ** draw(st.sampled_from([0, 20, 50])) + number,
        name=draw(TEXT),
        type=draw(st.integers(0, 7)),
        ctrl_deps=draw(st.lists(UINT64, max_size=4)),
        data_deps=draw(st.lists(UINT64, max_size=4)),
        start_time_micros=draw(UINT64),
        duration_micros=draw(UINT64),
    )
    if draw(st.booleans()):
        node.inputs.values = draw(TEXT)
    attributes = draw(st.lists(st.one_of(known_attributes(), foreign_attributes()), max_size=8))
    if draw(st.booleans()):
        attributes.append(pb.AttributeProto(name="pg_name", string_val=draw(TEXT)))
    node.attr.extend(attributes)
    return node


@st.composite
def oddities(draw) -> bytes:
    """Well-formed wire content that no usual producer writes, to be put behind a node."""
    return draw(
        st.sampled_from(
            [
                b"",
                b"\x20\x07\x28\x88\x00",  # unpacked ctrl_deps 7 and data_deps 8, the latter overlong
                b"\x2a\x03\x01\x80\x00",  # packed data_deps 1, 0, the latter overlong
                b"\x98\x06\x05",  # unknown field 99, a varint
                b"\xa2\x06\x02hi",  # unknown field 100, with a length
                b"\x5d\x01\x02\x03\x04\x61\x01\x02\x03\x04\x05\x06\x07\x08",  # unknown fixed32 and fixed64
                b"\x5b\x08\x01\x5c",  # unknown group 11
                b"\x38\x85\x80\x80\x00",  # duration_micros 5, overlong
                b"\x52\x00",  # an attribute without name and value
                b"\x52\x0d\x48\x07\x0a\x09comm_size",  # the value before the name
                b"\x52\x0f\x0a\x09comm_size\x38\x03\x48\x04",  # two members: the last counts
            ]
        )
    )


@st.composite
def files(draw) -> tuple[bytes, list[pb.Node]]:
    header = pb.GlobalMetadata(version=draw(st.sampled_from(["", "0.0.4", "1.0.0"])))
    header.attr.extend(draw(st.lists(foreign_attributes(), max_size=2)))
    out = varint(header.ByteSize()) + header.SerializeToString()
    content = []
    for number in range(draw(st.integers(0, 6))):
        body = draw(nodes(number)).SerializeToString() + draw(oddities())
        content.append(pb.Node.FromString(body))
        out += varint(len(body)) + body
    return out, content


def message(node: pb.Node) -> bytes:
    body = node.SerializeToString()
    return varint(len(body)) + body


def sample(count: int = 8) -> bytes:
    """A small file with a bit of everything, in records of one and two prefix bytes."""
    header = pb.GlobalMetadata(version="0.0.4")
    header.attr.add(name="schema", string_val="test")
    out = varint(header.ByteSize()) + header.SerializeToString()
    for number in range(count):
        node = pb.Node(id=number, name=f"node {number}", type=[7, 5, 6, 4][number % 4], duration_micros=number * 100)
        node.data_deps.extend(range(max(0, number - 2), number))
        if number == 1:
            node.ctrl_deps.append(300)
            node.inputs.values = "['a']"
        node.attr.add(name="comm_size", int64_val=2**number)
        node.attr.add(name="comm_tag", int32_val=-1)
        node.attr.add(name="is_cpu_op", bool_val=False)
        node.attr.add(name="pg_name", string_val=str(number % 2))
        if number == count - 1:
            node.attr.add(name="involved_dim").bool_list.values.extend([True] * 20)
        node.attr.add(name="outputs")
        out += message(node)
    return out
