"""Protobuf's wire format, walked strictly: where the records of a Chakra file lie, and what is wrong with a bad one.

A file is ``varint(length) GlobalMetadata`` and then ``varint(length) Node`` to its end. Wire format: protobuf.dev,
"Encoding". Protobuf itself decodes sound records (`messages`).
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from google.protobuf.message import Message

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.storage import RawFile, frozen
from astrasim_py.core.errors import TraceError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_WIDTH = {FIXED64: 8, FIXED32: 4}
#: Wire type of each type of field, as numbered in protobuf's descriptors; the others have a length.
_WIRE = {1: FIXED64, 6: FIXED64, 16: FIXED64, 2: FIXED32, 7: FIXED32, 15: FIXED32}
_WIRE |= dict.fromkeys((3, 4, 5, 8, 13, 14, 17, 18), VARINT)
_DEPENDENCIES = (4, 5)


def _fields_of(message: type[Message]) -> dict[int, tuple[str, int]]:
    return {f.number: (f.name, _WIRE.get(f.type, LENGTH)) for f in message.DESCRIPTOR.fields}


#: Name and wire type of each field of a node and of an attribute, by number.
_NODE = _fields_of(pb.Node)
_NODE |= {number: (_NODE[number][0], LENGTH) for number in _DEPENDENCIES}
ATTRIBUTE = _fields_of(pb.AttributeProto)

OLD = "write it again with a producer of Chakra 0.0.4 or later"


class Damaged(Exception):
    """A problem in a message; the caller adds its place."""

    remedy = f"the record is damaged, or of an older schema: {OLD}"


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
    for offset in range(position, min(end, position + 10)):
        byte = data[offset]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), offset + 1
        shift += 7
    raise Damaged("a number is longer than 10 bytes" if end - position >= 10 else "a number is cut short")


class Field(NamedTuple):
    """A field of a message: its number, its wire type, where its content or group lies, and the value of a varint."""

    number: int
    wire: int
    start: int
    end: int
    value: int = 0


def fields(data: bytes, position: int, end: int) -> Iterator[Field]:
    """The fields of a message."""
    while position < end:
        tag, start = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise Damaged(f"field number {number} is not one of 1..{2**29 - 1}")
        if wire == 3:
            position = _end_of_group(data, start, end, number)
            yield Field(number, wire, start, position)
        elif wire == VARINT:
            value, position = read_varint(data, start, end)
            yield Field(number, wire, start, position, value)
        elif wire == LENGTH or wire in _WIDTH:
            start, position = _span(data, start, end, number, wire)
            yield Field(number, wire, start, position)
        else:
            raise Damaged(f"field {number} has wire type {wire}, which does not exist here")


def _span(data: bytes, start: int, end: int, number: int, wire: int) -> tuple[int, int]:
    """Start and end of the content of a field."""
    length, start = read_varint(data, start, end) if wire == LENGTH else (_WIDTH[wire], start)
    if length > end - start:
        raise Damaged(f"field {number} is cut short (needs {length} bytes, {end - start} left)")
    return start, start + length


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
    for field in fields(data, start, end):
        label, expected = ATTRIBUTE.get(field.number, ("", field.wire))
        if field.wire != expected:
            raise Damaged(f"{label} of an attribute has wire type {field.wire}, not {expected}")
        if field.number == 1:
            name = data[field.start : field.end]
    text_of(name, "the name of an attribute")


def check_node(data: bytes, start: int, end: int) -> None:
    """Refuse a node that is cut short or has a field of another wire type; raises `Damaged`."""
    for field in fields(data, start, end):
        if field.number in _DEPENDENCIES and field.wire == VARINT:
            continue
        name, expected = _NODE.get(field.number, ("", field.wire))
        if field.wire != expected:
            raise Damaged(f"field {name} ({field.number}) has wire type {field.wire}, not {expected}")
        if field.number in _DEPENDENCIES:
            position = field.start
            while position < field.end:
                _, position = read_varint(data, position, field.end)
        elif field.number == 10:
            check_attribute(data, field.start, field.end)


def node_place(data: bytes, start: int, end: int) -> str:
    """``node 7``, or where it lies if it has no id."""
    place = f"byte {start}"
    try:
        for field in fields(data, start, end):
            if field.number == 1 and field.wire == VARINT:
                place = f"node {field.value}"
    except Damaged:
        pass
    return place


#: Largest record, bytes.
MAX_RECORD = 64 * 2**20
#: Most nodes in one file.
MAX_NODES = 2**24


def _wrong(data: bytes, place: str, position: int, record: int, problem: str) -> TraceError:
    remedy = _hint(data) if record <= 1 else "make or copy the file again"
    return TraceError(f"{place}: byte {position}", f"record {record} {problem}", remedy)


def _hint(data: bytes) -> str:
    head = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] in (b"{", b"["):
        return "the file looks like JSON; a Chakra ET is binary, and our text form is a .jsonl file"
    if head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return "the file is text; a Chakra ET is binary"
    return f"if it is a Chakra ET at all, it is damaged or older than schema 0.0.4: {OLD}"


def frame(data: bytes, place: str, *, whole: bool = True) -> tuple[RawFile, str]:
    """Find the records of a file and check the first, the metadata.

    `data`: the whole file. `place`: its name, for messages. `whole`: false for the beginning of a file, which may end
    within a record. Returns `RawFile` and the version text of the metadata. Raises TraceError: a record that is cut
    short or too large, or a file that is not a Chakra ET.
    """
    # Arrays, not lists of objects: hostile files can hold very many very small records.
    starts, ends = array("q"), array("q")
    version, size, position, empty = "", len(data), 0, -1
    while position < size:
        record = len(ends)
        if record > MAX_NODES:
            raise TraceError(f"{place}: byte {position}", f"has more than {MAX_NODES} nodes", "split the trace")
        cut = size - position < 10
        if cut and not whole:
            break
        try:
            length, start = read_varint(data, position, size)
        except Damaged as error:
            problem = "cut short (its length prefix ends with the file)" if cut else f"has no length prefix: {error}"
            raise _wrong(data, place, position, record, problem) from None
        if length > MAX_RECORD:
            raise _wrong(data, place, position, record, f"claims {length} bytes, more than {MAX_RECORD}")
        end = start + length
        if end > size:
            if not whole:
                break
            problem = f"cut short (needs {end - position}, {size - position} left)"
            raise _wrong(data, place, position, record, problem)
        if not record:
            version = check_metadata(data, start, end, place)
        elif not length:
            # An empty message is a node of id 0, so that there is at most one.
            if empty >= 0:
                problem = f"node 0 appears twice, at byte {empty} and at byte {position}"
                raise TraceError(place, problem, "give every node its own id")
            empty = position
        starts.append(start)
        ends.append(end)
        position = end
    metadata = (starts[0], ends[0]) if starts else (0, 0)
    return RawFile(data, metadata, frozen(np.array(starts[1:])), frozen(np.array(ends[1:]))), version


def check_metadata(data: bytes, start: int, end: int, place: str) -> str:
    """Version text of the metadata.

    Raises TraceError: not metadata, or of an older schema.
    """
    version = b""
    here = f"{place}: byte {start}"
    try:
        for field in fields(data, start, end):
            if field.number == 1 and field.wire == VARINT:
                problem = "has no metadata record: it begins with a node, as in schemas before 0.0.4"
                raise TraceError(here, problem, OLD)
            if field.number in (1, 2) and field.wire != LENGTH:
                raise Damaged(f"field {field.number} has wire type {field.wire}, not {LENGTH}")
            if field.number == 1:
                version = data[field.start : field.end]
            elif field.number == 2:
                check_attribute(data, field.start, field.end)
    except Damaged as error:
        raise TraceError(here, f"record 0 is not Chakra metadata: {error}", _hint(data)) from None
    text = version.decode(errors="replace")
    if any(ord(letter) < 32 or letter == "\ufffd" for letter in text):
        raise TraceError(here, "record 0 is not metadata of Chakra 0.0.4: its version is not text", OLD)
    return text
