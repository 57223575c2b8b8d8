"""One message of a Chakra file at a time: strict, and the author of what the user is told of a damaged one.

Wire format: protobuf.dev, "Encoding". Values that protobuf accepts decode to what protobuf makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING
from astrasim_py.chakra.storage import RawFile
from astrasim_py.core.errors import TraceError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_SCALARS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64")
_SCALARS += ("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes")
#: Members of the attribute oneof by field number: 3 double_val, 4 double_list, … 32 bytes_list.
ATTRIBUTE_MEMBERS: Mapping[int, str] = {
    3 + 2 * i + j: f"{name}_{kind}" for i, name in enumerate(_SCALARS) for j, kind in enumerate(("val", "list"))
}
FIXED_WIDTH = {3: FIXED64, 21: FIXED64, 25: FIXED64, 5: FIXED32, 19: FIXED32, 23: FIXED32}
MEMBER_WIRE = np.full(33, 255, dtype=np.uint8)
for _number in ATTRIBUTE_MEMBERS:
    MEMBER_WIRE[_number] = LENGTH if _number % 2 == 0 or _number >= 29 else FIXED_WIDTH.get(_number, VARINT)
MEMBER_WIRE.setflags(write=False)
_INTEGER_MEMBERS = frozenset((7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27))
STRING_MEMBER = 29

_NODE_FIELDS = {
    1: "id",
    2: "name",
    3: "type",
    4: "ctrl_deps",
    5: "data_deps",
    6: "start_time_micros",
    7: "duration_micros",
    8: "inputs",
    9: "outputs",
    10: "attr",
}
NODE_WIRE = {1: 0, 2: 2, 3: 0, 4: 2, 5: 2, 6: 0, 7: 0, 8: 2, 9: 2, 10: 2}
#: Columns that count something: negative values are refused.
COUNTS = frozenset(("comm_size", "num_ops", "tensor_size"))
#: Columns of names that Chakra itself gives a meaning; the others may mean anything in a foreign trace.
_STANDARD = frozenset(INT_COLUMNS[: INT_COLUMNS.index("comm_root")])
_FREE_TYPES = (0, 1)  # INVALID and METADATA nodes may carry anything

OLD = "write it again with a producer of Chakra 0.0.4 or later"


class Damaged(Exception):
    """What is wrong with a message; the caller knows where it is."""


class _IllTyped(Damaged):
    """A well-formed message in which an attribute holds what it must not."""


class IllTypedAttribute(TraceError):
    """An attribute of the wrong kind, or beyond its range."""


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A number of at most 10 bytes and the position behind it; raises `Damaged`."""
    value = shift = 0
    for at in range(position, min(end, position + 10)):
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at + 1
        shift += 7
    raise Damaged("a number is longer than 10 bytes" if end - position >= 10 else "a number is cut short")


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, object]]:
    """(field number, wire type, value) of a message: an int, or (start, end) for what has a length."""
    while position < end:
        tag, at = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise Damaged(f"field number {number} is not one of 1..{2**29 - 1}")
        if wire == VARINT:
            value, position = read_varint(data, at, end)
        elif wire == LENGTH:
            length, at = read_varint(data, at, end)
            if length > end - at:
                raise Damaged(f"field {number} is cut short (needs {length} bytes, {end - at} left)")
            value, position = (at, at + length), at + length
        elif wire in (FIXED64, FIXED32):
            width = 8 if wire == FIXED64 else 4
            if width > end - at:
                raise Damaged(f"field {number} is cut short (needs {width} bytes, {end - at} left)")
            value, position = int.from_bytes(data[at : at + width], "little"), at + width
        elif wire == 3:
            value, position = None, _skip_group(data, at, end, number)
        else:
            raise Damaged(f"field {number} has wire type {wire}, which does not exist here")
        yield number, wire, value


def _skip_group(data: bytes, position: int, end: int, number: int) -> int:
    open_groups = [number]
    while open_groups:
        tag, position = read_varint(data, position, end)
        inner, wire = tag >> 3, tag & 7
        if wire == 3 and inner and len(open_groups) < 100:
            open_groups.append(inner)
        elif wire == 4 and inner == open_groups[-1]:
            open_groups.pop()
        elif wire == VARINT and inner:
            _, position = read_varint(data, position, end)
        elif wire in (LENGTH, FIXED64, FIXED32) and inner:
            if wire == LENGTH:
                width, position = read_varint(data, position, end)
            else:
                width = 8 if wire == FIXED64 else 4
            if width > end - position:
                raise Damaged(f"field {inner} is cut short (needs {width} bytes, {end - position} left)")
            position += width
        else:
            raise Damaged(f"the group of field {number} is damaged")
    return position


def check_member(number: int, wire: int) -> None:
    expected = LENGTH if number in (1, 2) else int(MEMBER_WIRE[number]) if 3 <= number <= 32 else wire
    if wire != expected:
        name = {1: "name", 2: "doc_string"}.get(number) or ATTRIBUTE_MEMBERS[number]
        raise Damaged(f"{name} of an attribute has wire type {wire}, not {expected}")


def _integer(member: int, value: int) -> int:
    """What protobuf makes of the bits of an integer member."""
    if member == 27:
        return int(value != 0)
    if member in (7, 11, 15, 19, 23):
        value &= 2**32 - 1
    if member in (15, 17):
        return (value >> 1) ^ -(value & 1)
    width = {7: 32, 23: 32, 9: 64, 25: 64}.get(member)
    return value - 2**width if width and value >> (width - 1) else value


@dataclass(slots=True)
class _PlainNode:
    """One node as the plain reader sees it."""

    id: int = 0
    type: int = 0
    start: int = 0
    duration: int = 0
    name: tuple[int, int] = (0, 0)


def _text(data: bytes, span: tuple[int, int], what: str) -> str:
    try:
        return data[span[0] : span[1]].decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"{what} is not UTF-8 (byte {error.start} of it)") from None


def read_node(
    data: bytes, start: int, end: int, place: str, ints: Sequence[str], texts: Sequence[str]
) -> tuple[_PlainNode, dict[int, list[int]], dict[str, int], dict[str, str]]:
    """Read one node plainly: scalars, dependencies by field number, integer and text attributes by name.

    Raises
    ------
    TraceError
        Naming the node and the field or attribute.
    """
    node = _PlainNode()
    deps: dict[int, list[int]] = {4: [], 5: []}
    attributes: dict[str, tuple[int, object]] = {}
    known = False
    try:
        for number, wire, value in fields(data, start, end):
            if number in (4, 5) and wire == VARINT:
                deps[number].append(value)
                continue
            if number in NODE_WIRE and wire != NODE_WIRE[number]:
                raise Damaged(f"field {_NODE_FIELDS[number]} ({number}) has wire type {wire}, not {NODE_WIRE[number]}")
            if number == 1:
                node.id, known = value, True
            elif number == 2:
                node.name = value
            elif number == 3:
                node.type = _integer(7, value)
            elif number in (4, 5):
                at = value[0]
                while at < value[1]:
                    one, at = read_varint(data, at, value[1])
                    deps[number].append(one)
            elif number == 6:
                node.start = value
            elif number == 7:
                node.duration = value
            elif number == 10:
                name, member, content = (0, 0), 0, None
                for inner, inner_wire, inner_value in fields(data, *value):
                    check_member(inner, inner_wire)
                    if inner == 1:
                        name = inner_value
                    elif 3 <= inner <= 32:
                        member, content = inner, inner_value
                attributes[_text(data, name, "the name of an attribute")] = member, content
        _text(data, node.name, "its name")
        if not 0 <= node.type <= 7:
            raise Damaged(f"node type {node.type} is not one of 0..7")
        values: dict[str, int] = {}
        labels: dict[str, str] = {}
        for name in ints:
            member, content = attributes.get(name, (0, None))
            strict = (name in _STANDARD and node.type not in _FREE_TYPES) or name not in COLUMN_KINDS
            if member in _INTEGER_MEMBERS:
                number = _integer(member, content)
                if MISSING < number < 2**63 and (number >= 0 or name not in COUNTS):
                    values[name] = number
                elif strict:
                    low = "0" if name in COUNTS else "-2^63 + 1"
                    raise _IllTyped(f"{name} is {number}, not in {low}..2^63 - 1")
            elif member and strict:
                raise _IllTyped(f"{name} is a {ATTRIBUTE_MEMBERS[member]}, not a whole number")
        for name in texts:
            member, content = attributes.get(name, (0, None))
            if member == STRING_MEMBER:
                labels[name] = _text(data, content, name)
            elif member and node.type not in _FREE_TYPES:
                raise _IllTyped(f"{name} is a {ATTRIBUTE_MEMBERS[member]}, not text")
    except Damaged as error:
        where = f"node {node.id}" if known else f"byte {start}"
        kind, remedy = TraceError, f"the record is damaged, or of an older schema: {OLD}"
        if isinstance(error, _IllTyped):
            kind, remedy = IllTypedAttribute, "write the attribute as the Chakra schema has it"
        raise kind(f"{place}: {where}", str(error), remedy) from None
    return node, deps, values, labels


def damaged_nodes(raw: RawFile, place: str, limit: int) -> list[TraceError]:
    """What is wrong with the nodes of a file, each read plainly: up to `limit` errors."""
    ints, texts = tuple(COLUMN_KINDS), ("pg_name",)
    errors = []
    for start, end in zip(raw.start.tolist(), raw.end.tolist(), strict=True):
        try:
            read_node(raw.data, start, end, place, ints, texts)
        except TraceError as error:
            errors.append(error)
            if len(errors) >= limit:
                break
    return errors
