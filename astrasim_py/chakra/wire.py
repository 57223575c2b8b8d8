"""A strict walk of protobuf's wire format, which explains damaged records.

Wire format: protobuf.dev, "Encoding". Protobuf itself decodes sound records (`messages`).
"""

from __future__ import annotations

from collections.abc import Iterator

from astrasim_py.chakra import et_def_pb2 as pb

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIDTH = {FIXED64: 8, FIXED32: 4}
#: Wire type of each type of field, as numbered in protobuf's descriptors; the others have a length.
_WIRE = {1: FIXED64, 6: FIXED64, 16: FIXED64, 2: FIXED32, 7: FIXED32, 15: FIXED32}
_WIRE |= dict.fromkeys((3, 4, 5, 8, 13, 14, 17, 18), VARINT)
_DEPENDENCIES = (4, 5)


def _fields_of(message: type) -> dict[int, tuple[str, int]]:
    return {f.number: (f.name, _WIRE.get(f.type, LENGTH)) for f in message.DESCRIPTOR.fields}


#: Name and wire type of each field of a node and of an attribute, by number.
_NODE = _fields_of(pb.Node)
_NODE |= {number: (_NODE[number][0], LENGTH) for number in _DEPENDENCIES}
ATTRIBUTE = _fields_of(pb.AttributeProto)

OLD = "write it again with a producer of Chakra 0.0.4 or later"


class Damaged(Exception):
    """A problem in a message; the caller knows its place."""


def varint(number: int) -> bytes:
    """A number of up to 64 bits, seven bits a byte."""
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


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
    """(field number, wire type, value) of a message: an int, or (start, end) of content or a group."""
    while position < end:
        tag, at = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise Damaged(f"field number {number} is not one of 1..{2**29 - 1}")
        if wire == 3:
            position = _end_of_group(data, at, end, number)
            yield number, wire, (at, position)
        elif wire == VARINT:
            value, position = read_varint(data, at, end)
            yield number, wire, value
        elif wire == LENGTH or wire in _WIDTH:
            at, position = _span(data, at, end, number, wire)
            yield number, wire, (at, position)
        else:
            raise Damaged(f"field {number} has wire type {wire}, which does not exist here")


def _span(data: bytes, at: int, end: int, number: int, wire: int) -> tuple[int, int]:
    """Start and end of the content of a field."""
    length, at = read_varint(data, at, end) if wire == LENGTH else (_WIDTH[wire], at)
    if length > end - at:
        raise Damaged(f"field {number} is cut short (needs {length} bytes, {end - at} left)")
    return at, at + length


def _end_of_group(data: bytes, position: int, end: int, number: int) -> int:
    groups = [number]
    while groups:
        tag, position = read_varint(data, position, end)
        inner, wire = tag >> 3, tag & 7
        if wire == 3 and inner and len(groups) < 100:
            groups.append(inner)
        elif wire == 4 and inner == groups[-1]:
            groups.pop()
        elif wire == VARINT and inner:
            _, position = read_varint(data, position, end)
        elif (wire == LENGTH or wire in _WIDTH) and inner:
            _, position = _span(data, position, end, inner, wire)
        else:
            raise Damaged(f"the group of field {number} is damaged")
    return position


def text_of(content: bytes, what: str) -> str:
    """UTF-8 text; raises `Damaged`."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"{what} is not UTF-8 (byte {error.start} of it)") from None


def check_attribute(data: bytes, start: int, end: int) -> None:
    """Refuse an attribute that is cut short or has a field of another wire type; raises `Damaged`."""
    name = b""
    for number, wire, value in fields(data, start, end):
        what, expected = ATTRIBUTE.get(number, ("", wire))
        if wire != expected:
            raise Damaged(f"{what} of an attribute has wire type {wire}, not {expected}")
        if number == 1:
            name = data[value[0] : value[1]]
    text_of(name, "the name of an attribute")


def check_node(data: bytes, start: int, end: int) -> None:
    """Refuse a node that is cut short or has a field of another wire type; raises `Damaged`."""
    for number, wire, value in fields(data, start, end):
        if number in _DEPENDENCIES and wire == VARINT:
            continue
        what, expected = _NODE.get(number, ("", wire))
        if wire != expected:
            raise Damaged(f"field {what} ({number}) has wire type {wire}, not {expected}")
        if number in _DEPENDENCIES:
            at, stop = value
            while at < stop:
                _, at = read_varint(data, at, stop)
        elif number == 10:
            check_attribute(data, *value)


def node_place(data: bytes, start: int, end: int) -> str:
    """``node 7``, or where it lies if it has no id."""
    place = f"byte {start}"
    try:
        for number, wire, value in fields(data, start, end):
            if number == 1 and wire == VARINT:
                place = f"node {value}"
    except Damaged:
        pass
    return place
