"""A bounded, columnar decoder of Chakra files: all nodes of all files at once, one field per round.

A file is ``varint(length) GlobalMetadata`` and then ``varint(length) Node`` to its end. Framing walks the
length prefixes. Decoding then keeps one position per node and reads the next field of every unfinished node in
one step of numpy, so that the number of steps is the largest number of fields of a node and not the number of
nodes. Attributes are read in the same way. Whatever the fast path does not like goes, node by node, through a
plain reader (`_read_node`), which either knows better or raises the error that the user sees.

Wire format: protobuf.dev, "Encoding". Values that protobuf accepts decode to what protobuf makes of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra.trace import COLUMN_KINDS, INT_COLUMNS, MISSING, Csr, RawFile
from astrasim_py.core.errors import TraceError

#: Largest record, bytes.
MAX_RECORD = 64 * 2**20
#: Most nodes in one file.
MAX_NODES = 2**24
#: Bytes of files that are decoded together; bounds the temporary arrays.
BATCH_BYTES = 2**20
#: Bytes of files that are framed together.
GROUP_BYTES = 64 * 2**20
#: Zero bytes behind the buffer, so that eight bytes can be loaded anywhere.
_PAD = 32

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SCALARS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64")
_SCALARS += ("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes")
#: Members of the attribute oneof by field number: 3 double_val, 4 double_list, … 32 bytes_list.
ATTRIBUTE_MEMBERS: Mapping[int, str] = {
    3 + 2 * i + j: f"{name}_{kind}" for i, name in enumerate(_SCALARS) for j, kind in enumerate(("val", "list"))
}
_FIXED_WIDTH = {3: _FIXED64, 21: _FIXED64, 25: _FIXED64, 5: _FIXED32, 19: _FIXED32, 23: _FIXED32}
_MEMBER_WIRE = np.full(33, 255, dtype=np.uint8)
for _number in ATTRIBUTE_MEMBERS:
    _MEMBER_WIRE[_number] = _LENGTH if _number % 2 == 0 or _number >= 29 else _FIXED_WIDTH.get(_number, _VARINT)
_MEMBER_WIRE.setflags(write=False)
_WRONG = 255
#: Tag -> field of an attribute: 1 name, 2 doc_string, 3..32 a member, 0 unknown, `_WRONG` wire type.
_ATTRIBUTE_TAGS = np.full(33 * 8 + 1, _WRONG, dtype=np.uint8)
_ATTRIBUTE_TAGS[33 * 8] = 0
for _number in range(1, 33):
    _ATTRIBUTE_TAGS[8 * _number + (_LENGTH if _number < 3 else int(_MEMBER_WIRE[_number]))] = _number
_ATTRIBUTE_TAGS.setflags(write=False)
_INTEGER_MEMBERS = frozenset((7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27))
_STRING_MEMBER = 29

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
_NODE_WIRE = {1: 0, 2: 2, 3: 0, 4: 2, 5: 2, 6: 0, 7: 0, 8: 2, 9: 2, 10: 2}
#: First tag beyond the fields of a node.
_BEYOND = 88
#: Columns that count something: negative values are refused.
_COUNTS = frozenset(("comm_size", "num_ops", "tensor_size"))
#: Columns of names that Chakra itself gives a meaning; the others may mean anything in a foreign trace.
_STANDARD = frozenset(INT_COLUMNS[: INT_COLUMNS.index("comm_root")])
_FREE_TYPES = (0, 1)  # INVALID and METADATA nodes may carry anything

_OLD = "write it again with a producer of Chakra 0.0.4 or later"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns:
    """What one file decodes to; arrays as in `ExecutionTrace`, absent columns left out of `ints`."""

    raw: RawFile
    version: str
    node_id: np.ndarray
    type: np.ndarray
    start_time_micros: np.ndarray
    duration_micros: np.ndarray
    name_start: np.ndarray
    name_length: np.ndarray
    ctrl_deps: Csr
    data_deps: Csr
    ints: dict[str, np.ndarray]
    texts: dict[str, tuple[np.ndarray, tuple[str, ...]]]


class Damaged(Exception):
    """What is wrong with a message; the caller knows where it is."""


class _IllTyped(Damaged):
    """A well-formed message in which an attribute holds what it must not."""


class IllTypedAttribute(TraceError):
    """An attribute of the wrong kind, or beyond its range."""


# --------------------------------------------------------------------------------------------------------
# Framing


def _cut_short(place: str, position: int, record: int, detail: str, data: bytes) -> TraceError:
    remedy = _hint(data) if record <= 1 else "make or copy the file again"
    return TraceError(f"{place}: byte {position}", f"record {record} cut short ({detail})", remedy)


def _twice(place: str, node: int, one: int, two: int) -> TraceError:
    return TraceError(
        place, f"node {node} is there twice, at byte {one} and at byte {two}", "give every node its own id"
    )


def check_ids(ids: np.ndarray, raw: RawFile, place: str) -> None:
    """Refuse two nodes of one id.

    Raises
    ------
    TraceError
        Naming the id and both positions.
    """
    if len(ids) < 2 or bool((ids[1:] > ids[:-1]).all()):
        return
    by_id = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[by_id[1:]] == ids[by_id[:-1]])
    if len(again):
        first = again[np.argmin(by_id[again + 1])]
        one, two = int(by_id[first]), int(by_id[first + 1])
        raise _twice(place, int(ids[one]), int(raw.start[one]), int(raw.start[two]))


def _hint(data: bytes) -> str:
    head = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] in (b"{", b"["):
        return "the file looks like JSON; a Chakra ET is binary, and our text form is a .jsonl file"
    if head and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return "the file is text; a Chakra ET is binary"
    return f"if it is a Chakra ET at all, it is damaged or older than schema 0.0.4: {_OLD}"


def frame(data: bytes, place: str, *, whole: bool = True, ends: np.ndarray | None = None) -> tuple[RawFile, str]:
    """Find the records of a file and check the first, the metadata.

    Parameters
    ----------
    data : bytes
        The whole file.
    place : str
        Its name, for messages.
    whole : bool
        False for the beginning of a file, which may end within a record.
    ends : numpy.ndarray, optional
        int64[records]: where each record ends, if that is known already.

    Returns
    -------
    tuple
        `RawFile` and the version text of the metadata.

    Raises
    ------
    TraceError
        A record that is cut short or too large, or a file that is not a Chakra ET.
    """
    if ends is None:
        version, metadata, end_of = _frame_plainly(data, place, whole)
    else:
        metadata = (2 if data[0] > 127 else 1), int(ends[0])
        version, end_of = _check_metadata(data, *metadata, place), ends
    # Where a record ends its successor's length prefix begins, and that one's size is told by its bytes.
    start = end_of[:-1] + 1
    content = np.frombuffer(data, dtype=np.uint8)
    longer = np.flatnonzero(content[start - 1] > 127)
    while len(longer):
        start[longer] += 1
        longer = longer[content[start[longer] - 1] > 127]
    end_of = end_of[1:]
    too_large = np.flatnonzero(end_of - start > MAX_RECORD)
    if len(too_large):
        record = int(too_large[0])
        raise TraceError(
            f"{place}: byte {int(start[record])}",
            f"record {record + 1} has {int(end_of[record] - start[record])} bytes, more than {MAX_RECORD}",
            "split the node",
        )
    start.setflags(write=False)
    end_of.setflags(write=False)
    return RawFile(data, metadata, start, end_of), version


def _frame_plainly(data: bytes, place: str, whole: bool) -> tuple[str, tuple[int, int], np.ndarray]:
    size = len(data)
    # An array, not a list of objects: hostile files can hold very many very small records.
    ends = array("q")
    add = ends.append
    position = 0
    version, metadata = "", (0, 0)
    empty = -1
    for record in range(MAX_NODES + 2):
        if position >= size:
            break
        length = data[position]
        at = position + 1
        if not 0 < length < 128:
            # Two bytes are the common case and worth a line of their own.
            if length and at < size and data[at] < 128:
                length, at = length & 127 | data[at] << 7, at + 1
            elif length and not whole and size - position < 10:
                break
            elif length:
                length, at = _prefix(data, position, place, record)
            if not length and record:
                # An empty message is a node of id 0, so that there is at most one.
                if empty >= 0:
                    raise _twice(place, 0, empty, position)
                empty = position
        end = at + length
        if end > size or not record:
            if length > MAX_RECORD:
                raise TraceError(
                    f"{place}: byte {position}",
                    f"record {record} claims {length} bytes, more than {MAX_RECORD}",
                    _hint(data) if record <= 1 else "make or copy the file again",
                )
            if end > size:
                if not whole:
                    break
                detail = f"needs {end - position}, {size - position} left"
                raise _cut_short(place, position, record, detail, data)
            version, metadata = _check_metadata(data, at, end, place), (at, end)
        add(end)
        position = end
    else:
        raise TraceError(f"{place}: byte {position}", f"has more than {MAX_NODES} nodes", "split the trace")
    end_of = np.frombuffer(ends, dtype=np.int64) if ends else np.empty(0, dtype=np.int64)
    return version, metadata, end_of


def _prefix(data: bytes, position: int, place: str, record: int) -> tuple[int, int]:
    try:
        return read_varint(data, position, len(data))
    except Damaged as error:
        if len(data) - position < 10:
            raise _cut_short(place, position, record, "its length prefix ends with the file", data) from None
        raise TraceError(
            f"{place}: byte {position}",
            f"record {record} has no length prefix: {error}",
            _hint(data) if record <= 1 else "make or copy the file again",
        ) from None


def _check_metadata(data: bytes, start: int, end: int, place: str) -> str:
    version = b""
    try:
        for number, wire, value in _fields(data, start, end):
            if number == 1 and wire == _VARINT:
                raise TraceError(
                    f"{place}: byte {start}",
                    "has no metadata record: it begins with a node, as in schemas before 0.0.4",
                    _OLD,
                )
            if number in (1, 2) and wire != _LENGTH:
                raise Damaged(f"field {number} has wire type {wire}, not {_LENGTH}")
            if number == 1:
                version = data[value[0] : value[1]]
            elif number == 2:
                for member, member_wire, _ in _fields(data, *value):
                    _check_member(member, member_wire)
    except Damaged as error:
        raise TraceError(f"{place}: byte {start}", f"record 0 is not Chakra metadata: {error}", _hint(data)) from None
    try:
        text = version.decode()
    except UnicodeDecodeError:
        text = "\0"
    if any(ord(letter) < 32 for letter in text):
        raise TraceError(
            f"{place}: byte {start}", "record 0 is not metadata of Chakra 0.0.4: its version is not text", _OLD
        )
    return text


# --------------------------------------------------------------------------------------------------------
# The plain reader: one message at a time, strict, and the author of the messages


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


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, object]]:
    """(field number, wire type, value) of a message: an int, or (start, end) for what has a length."""
    while position < end:
        tag, at = read_varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise Damaged(f"field number {number} is not one of 1..{2**29 - 1}")
        if wire == _VARINT:
            value, position = read_varint(data, at, end)
        elif wire == _LENGTH:
            length, at = read_varint(data, at, end)
            if length > end - at:
                raise Damaged(f"field {number} is cut short (needs {length} bytes, {end - at} left)")
            value, position = (at, at + length), at + length
        elif wire in (_FIXED64, _FIXED32):
            width = 8 if wire == _FIXED64 else 4
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
        elif wire == _VARINT and inner:
            _, position = read_varint(data, position, end)
        elif wire in (_LENGTH, _FIXED64, _FIXED32) and inner:
            if wire == _LENGTH:
                width, position = read_varint(data, position, end)
            else:
                width = 8 if wire == _FIXED64 else 4
            if width > end - position:
                raise Damaged(f"field {inner} is cut short (needs {width} bytes, {end - position} left)")
            position += width
        else:
            raise Damaged(f"the group of field {number} is damaged")
    return position


def _check_member(number: int, wire: int) -> None:
    expected = _LENGTH if number in (1, 2) else int(_MEMBER_WIRE[number]) if 3 <= number <= 32 else wire
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


def _read_node(
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
        for number, wire, value in _fields(data, start, end):
            if number in (4, 5) and wire == _VARINT:
                deps[number].append(value)
                continue
            if number in _NODE_WIRE and wire != _NODE_WIRE[number]:
                raise Damaged(f"field {_NODE_FIELDS[number]} ({number}) has wire type {wire}, not {_NODE_WIRE[number]}")
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
                for inner, inner_wire, inner_value in _fields(data, *value):
                    _check_member(inner, inner_wire)
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
                if MISSING < number < 2**63 and (number >= 0 or name not in _COUNTS):
                    values[name] = number
                elif strict:
                    low = "0" if name in _COUNTS else "-2^63 + 1"
                    raise _IllTyped(f"{name} is {number}, not in {low}..2^63 - 1")
            elif member and strict:
                raise _IllTyped(f"{name} is a {ATTRIBUTE_MEMBERS[member]}, not a whole number")
        for name in texts:
            member, content = attributes.get(name, (0, None))
            if member == _STRING_MEMBER:
                labels[name] = _text(data, content, name)
            elif member and node.type not in _FREE_TYPES:
                raise _IllTyped(f"{name} is a {ATTRIBUTE_MEMBERS[member]}, not text")
    except Damaged as error:
        where = f"node {node.id}" if known else f"byte {start}"
        kind, remedy = TraceError, f"the record is damaged, or of an older schema: {_OLD}"
        if isinstance(error, _IllTyped):
            kind, remedy = IllTypedAttribute, "write the attribute as the Chakra schema has it"
        raise kind(f"{place}: {where}", str(error), remedy) from None
    return node, deps, values, labels


# --------------------------------------------------------------------------------------------------------
# The columnar reader


class _Buffer:
    """Bytes of several files with eight-byte loads at any position."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        sizes = [len(part) for part in parts]
        self.base = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        total = int(self.base[-1])
        self.bytes = np.empty(total + _PAD, dtype=np.uint8)
        self.bytes[total:] = 0
        for part, at in zip(parts, self.base.tolist(), strict=False):
            self.bytes[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
        self.words = np.ndarray((total + _PAD - 7,), dtype="<u8", buffer=self.bytes.data, strides=(1,))

    def varints(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers at some positions: uint64 values and int64 sizes in bytes (0: longer than 10 bytes)."""
        word = self.words[at]
        value = word & np.uint64(127)
        size = np.ones(len(at), dtype=np.int64)
        more = np.flatnonzero(word & np.uint64(128))
        if len(more):
            value[more], size[more] = self._long(at[more], word[more])
        return value, size

    def _long(self, at: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        stop = ~word & np.uint64(0x8080808080808080)
        lowest = stop & (~stop + np.uint64(1))
        # The lowest stop bit is 2^(8k - 1) for a number of k bytes; frexp gives 8k (0 where there is none).
        size = (np.frexp(lowest.astype(np.float64))[1] >> 3).astype(np.int64)
        x = word & ((lowest << np.uint64(1)) - np.uint64(1)) & np.uint64(0x7F7F7F7F7F7F7F7F)
        x = (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
        x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
        x = (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
        longer = np.flatnonzero(size == 0)
        if len(longer):
            ninth = self.bytes[at[longer] + 8].astype(np.uint64)
            tenth = self.bytes[at[longer] + 9].astype(np.uint64)
            x[longer] |= (ninth & np.uint64(127)) << np.uint64(56)
            ten = ninth > 127
            x[longer] |= np.where(ten, (tenth & np.uint64(1)) << np.uint64(63), np.uint64(0))
            size[longer] = np.where(ten, np.where(tenth < 128, 10, 0), 9)
        return x, size

    def ends(self, at: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last (up to) eight bytes of some strings; of one below eight bytes the last are 0."""
        first = self.words[at]
        short = np.flatnonzero(length < 8)
        if len(short):
            bits = (length[short] * 8).astype(np.uint64)
            first[short] &= (np.uint64(1) << bits) - np.uint64(1)
        last = self.words[at + np.maximum(length - 8, 0)]
        last[short] = 0
        return first, last

    def not_ascii(self, at: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Which of some strings hold a byte above 127 (indices, ascending)."""
        high = np.uint64(0x8080808080808080)
        long = np.flatnonzero(length > 256)
        found = [i for i in long.tolist() if int(self.bytes[at[i] : at[i] + length[i]].max()) > 127]
        rows = np.flatnonzero((length > 0) & (length <= 256))
        position, left = at[rows], length[rows]
        while len(rows):
            word = self.words[position]
            short = np.flatnonzero(left < 8)
            bits = (left[short] * 8).astype(np.uint64)
            word[short] &= (np.uint64(1) << bits) - np.uint64(1)
            found.extend(rows[(word & high) != 0].tolist())
            on = left > 8
            rows, position, left = rows[on], position[on] + 8, left[on] - 8
        return np.unique(np.array(found, dtype=np.int64))


class _Step(NamedTuple):
    """One field of each of several messages."""

    tag: np.ndarray  # int64: 8 x field number + wire type
    value: np.ndarray  # uint64: the number, or the length
    payload: np.ndarray  # int64: where fixed-width or length-delimited content starts
    after: np.ndarray  # int64: where the next field starts
    bad: np.ndarray  # bool: cut short, or nothing that the fast path reads


def _step(buffer: _Buffer, at: np.ndarray, stop: np.ndarray) -> _Step:
    # One load holds the tag and the number behind it where both have one byte, as they mostly do.
    word = buffer.words[at]
    tag = (word & np.uint64(0xFF)).view(np.int64)
    value = (word >> np.uint64(8)) & np.uint64(0xFF)
    payload = at + 2
    bad = tag < 8
    hard = np.flatnonzero(word & np.uint64(0x8080))
    if len(hard):
        begin = at[hard]
        long_tag, tag_size = buffer.varints(begin)
        value[hard], value_size = buffer.varints(begin + tag_size)
        # Tags have 32 bits; a larger one becomes field 0, which does not exist.
        tag[hard] = np.where(long_tag < 2**32, long_tag, 0).view(np.int64)
        payload[hard] = begin + tag_size + value_size
        bad[hard] = (tag[hard] < 8) | (tag_size == 0) | (value_size == 0)
    wire = tag & 7
    # Beyond 2^31 a length is wrong anyhow, and cut down it cannot overflow a position.
    length = np.minimum(value, np.uint64(2**31)).view(np.int64)
    after = payload + length * (wire == _LENGTH)
    rare = np.flatnonzero((wire != _LENGTH) & (wire != _VARINT))
    if len(rare):
        width = np.where(wire[rare] == _FIXED64, 8, 4)
        payload[rare] = at[rare] + buffer.varints(at[rare])[1]
        after[rare] = payload[rare] + width
        bad[rare] = (tag[rare] < 8) | ((wire[rare] != _FIXED64) & (wire[rare] != _FIXED32))
    bad |= after > stop
    return _Step(tag, value, payload, after, bad)


def _go_on(active: int, rounds: int, patient: int) -> bool:
    # A round costs about as much as the plain reader needs for a few dozen fields.
    return active > 32 or (active > 0 and rounds < patient)


class _Nodes(NamedTuple):
    """Nodes as the first pass leaves them."""

    node_id: np.ndarray
    type: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    name_start: np.ndarray
    name_length: np.ndarray
    deps: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]  # field -> (node, position, id)
    attributes: tuple[np.ndarray, np.ndarray, np.ndarray]  # node, start, end
    odd: np.ndarray  # bool: to be read plainly


def _scan_nodes(buffer: _Buffer, start: np.ndarray, end: np.ndarray) -> _Nodes:
    size = len(start)
    scalars = {number: np.zeros(size, dtype=np.uint64) for number in (1, 3, 6, 7)}
    name_start, name_length = start.copy(), np.zeros(size, dtype=np.int64)
    odd = np.zeros(size, dtype=bool)
    deps: dict[int, list] = {4: [], 5: []}
    packed: dict[int, list] = {4: [], 5: []}
    attributes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    rows = np.flatnonzero(start < end)
    at, stop = start[rows], end[rows]
    rounds = 0
    while _go_on(len(rows), rounds, 32):
        rounds += 1
        step = _step(buffer, at, stop)
        if step.bad.any():
            odd[rows[step.bad]] = True
            good = ~step.bad
            rows, stop = rows[good], stop[good]
            step = _Step(*(column[good] for column in step))
        # Fields beyond the schema are skipped; they stay in the raw bytes.
        tags = np.minimum(step.tag, _BEYOND)
        for tag in np.flatnonzero(np.bincount(tags)).tolist():
            if tag == _BEYOND:
                continue
            field, wire = tag >> 3, tag & 7
            where = np.flatnonzero(tags == tag)
            if len(where) == len(rows):
                where = slice(None)
            if field in (4, 5) and wire == _VARINT:
                deps[field].append((rows[where], step.payload[where], step.value[where]))
            elif wire != _NODE_WIRE[field]:
                odd[rows[where]] = True
            elif field in scalars:
                scalars[field][rows[where]] = step.value[where]
            elif field == 2:
                name_start[rows[where]] = step.payload[where]
                name_length[rows[where]] = step.value[where].view(np.int64)
            elif field in (4, 5):
                packed[field].append((rows[where], step.payload[where], step.after[where]))
            elif field == 10:
                attributes.append((rows[where], step.payload[where], step.after[where]))
        going = step.after < stop
        rows, at, stop = rows[going], step.after[going], stop[going]
    odd[rows] = True
    for field, spans in packed.items():
        if spans:
            deps[field].append(_unpack(buffer, *(np.concatenate(c) for c in zip(*spans, strict=True)), odd))
    kind = scalars[3].astype(np.uint32).astype(np.int32)
    odd |= (kind < 0) | (kind > 7)
    _check_text(buffer, name_start, name_length, np.arange(size), odd)
    none = np.empty(0, dtype=np.int64)
    spans = tuple(np.concatenate(c) for c in zip(*attributes, strict=True)) or (none, none, none)
    return _Nodes(scalars[1], kind, scalars[6], scalars[7], name_start, name_length, deps, spans, odd)


def _unpack(
    buffer: _Buffer, rows: np.ndarray, start: np.ndarray, end: np.ndarray, odd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers in packed lists: (node, position, value) each; lists that end within a number make a node odd."""
    length = end - start
    some = length > 0
    rows, start, length = rows[some], start[some], length[some]
    before = np.cumsum(length) - length
    position = np.repeat(start - before, length) + np.arange(int(length.sum()), dtype=np.int64)
    last = np.flatnonzero(buffer.bytes[position] < 128)
    ragged = buffer.bytes[start + length - 1] > 127
    if ragged.any():
        odd[rows[ragged]] = True
    first = np.concatenate(([0], last[:-1] + 1)) if len(last) else last
    at = position[first]
    value, size = buffer.varints(at)
    owner = np.repeat(rows, length)[first]
    # A number of more than 10 bytes, or one that runs on into the next list.
    wrong = (size == 0) | (size != last - first + 1)
    if wrong.any():
        odd[owner[wrong]] = True
    return owner, at, value


def _check_text(buffer: _Buffer, start: np.ndarray, length: np.ndarray, owner: np.ndarray, odd: np.ndarray) -> None:
    for i in buffer.not_ascii(start, length).tolist():
        try:
            buffer.bytes[start[i] : start[i] + length[i]].tobytes().decode()
        except UnicodeDecodeError:
            odd[owner[i]] = True


class _Attributes(NamedTuple):
    """Attributes that have one of the wanted names."""

    node: np.ndarray
    name: np.ndarray  # index into the wanted names
    member: np.ndarray  # field number in the oneof; 0 if unset
    value: np.ndarray  # uint64: the number, or the length
    payload: np.ndarray


def _scan_attributes(
    buffer: _Buffer, spans: tuple[np.ndarray, np.ndarray, np.ndarray], wanted: Sequence[str], odd: np.ndarray
) -> _Attributes:
    node, start, end = spans
    count = len(node)
    # A name of up to 127 bytes in front is what all producers write: one load tells.
    word = buffer.words[start]
    name_length = ((word >> np.uint64(8)) & np.uint64(0xFF)).view(np.int64)
    name_start = start + 2
    follows = name_start + name_length
    usual = ((word & np.uint64(0x80FF)) == 0x0A) & (follows <= end)
    if usual.all():
        at = follows
    else:
        name_length[~usual] = 0
        name_start = np.where(usual, name_start, start)
        at = np.where(usual, follows, start)
    member = np.zeros(count, dtype=np.uint8)
    value = np.zeros(count, dtype=np.uint64)
    payload = np.zeros(count, dtype=np.int64)
    rows = np.flatnonzero(at < end)
    at, stop = at[rows], end[rows]
    rounds = 0
    while _go_on(len(rows), rounds, 4):
        rounds += 1
        step = _step(buffer, at, stop)
        what = _ATTRIBUTE_TAGS[np.minimum(step.tag, len(_ATTRIBUTE_TAGS) - 1)]
        what[step.bad] = _WRONG
        name = np.flatnonzero(what == 1)
        name_start[rows[name]] = step.payload[name]
        name_length[rows[name]] = step.value[name].view(np.int64)
        content = np.flatnonzero((what >= 3) & (what <= 32))
        which = rows[content]
        member[which] = what[content]
        value[which] = step.value[content]
        payload[which] = step.payload[content]
        wrong = what == _WRONG
        going = step.after < stop
        if wrong.any():
            odd[node[rows[wrong]]] = True
            going &= ~wrong
        rows, at, stop = rows[going], step.after[going], stop[going]
    odd[node[rows]] = True
    index = _match(buffer, name_start, name_length, wanted)
    other = np.flatnonzero(index < 0)
    _check_text(buffer, name_start[other], name_length[other], node[other], odd)
    found = np.flatnonzero(index >= 0)
    return _Attributes(node[found], index[found], member[found], value[found], payload[found])


_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


def _match(buffer: _Buffer, start: np.ndarray, length: np.ndarray, wanted: Sequence[str]) -> np.ndarray:
    """Index of each name in `wanted`, -1 if it is not there."""
    texts = [name.encode() for name in wanted]
    known = _Buffer([b"".join(texts)])
    known_length = np.array([len(text) for text in texts], dtype=np.int64)
    known_start = np.cumsum(known_length) - known_length
    first, last = known.ends(known_start, known_length)
    keys = first ^ last * _MIX[0] ^ known_length.astype(np.uint64) * _MIX[1]
    by_key = np.argsort(keys)
    here_first, here_last = buffer.ends(start, length)
    here_keys = here_first ^ here_last * _MIX[0] ^ length.astype(np.uint64) * _MIX[1]
    slot = np.minimum(np.searchsorted(keys[by_key], here_keys), len(texts) - 1)
    index = by_key[slot]
    # First and last eight bytes and the length pin a name of up to 16 bytes down; longer ones are compared.
    same = (here_first == first[index]) & (here_last == last[index]) & (length == known_length[index])
    index = np.where(same, index, -1)
    for i in np.flatnonzero(same & (length > 16)).tolist():
        if buffer.bytes[start[i] : start[i] + length[i]].tobytes() != texts[index[i]]:
            index[i] = -1
    return index


def _integers(buffer: _Buffer, member: np.ndarray, value: np.ndarray, payload: np.ndarray):
    """What protobuf makes of integer members: int64 values, and which of them do not fit."""
    out = value.view(np.int64).copy()
    wrong = np.zeros(len(out), dtype=bool)
    low = np.uint64(2**32 - 1)
    for number in np.flatnonzero(np.bincount(member, minlength=33)).tolist():
        rows = np.flatnonzero(member == number)
        bits = value[rows]
        if number in _FIXED_WIDTH:
            bits = buffer.words[payload[rows]]
        if number in (7, 23):
            out[rows] = (bits & low).astype(np.uint32).view(np.int32)
        elif number in (11, 19):
            out[rows] = (bits & low).view(np.int64)
        elif number in (15, 17):
            bits = bits & low if number == 15 else bits
            out[rows] = ((bits >> np.uint64(1)) ^ (~(bits & np.uint64(1)) + np.uint64(1))).view(np.int64)
        elif number == 27:
            out[rows] = bits != 0
        elif number in (9, 25):
            out[rows] = bits.view(np.int64)
        elif number in (13, 21):
            out[rows] = bits.view(np.int64)
            wrong[rows] = bits >= 2**63
        else:
            wrong[rows] = number != 0
    return out, wrong | ((out == MISSING) & (member != 0))


def decode(
    files: Sequence[tuple[bytes, str]], ints: Sequence[str] = tuple(COLUMN_KINDS), texts: Sequence[str] = ("pg_name",)
) -> list[FileColumns]:
    """Decode files into columns, many nodes at a time.

    Parameters
    ----------
    files : sequence of (bytes, str)
        Content (unzipped) and name of each.
    ints, texts : sequence of str
        Names of the integer and text attributes wanted.

    Returns
    -------
    list of FileColumns
        In the order given.

    Raises
    ------
    TraceError
        Anything wrong with any file: the first in the order of files and nodes.
    """
    out: list[FileColumns] = []
    group: list[tuple[bytes, str]] = []
    held = 0
    for data, place in files:
        if group and held + len(data) > GROUP_BYTES:
            out.extend(_decode_group(group, ints, texts))
            group, held = [], 0
        group.append((data, place))
        held += len(data)
    out.extend(_decode_group(group, ints, texts))
    return out


def _decode_group(files: Sequence[tuple[bytes, str]], ints: Sequence[str], texts: Sequence[str]) -> list[FileColumns]:
    if not files:
        return []
    quick = _frame_quickly([data for data, _ in files])
    out: list[FileColumns] = []
    batch: list[tuple[RawFile, str, str]] = []
    held = 0
    for number, (data, place) in enumerate(files):
        try:
            raw, version = frame(data, place, ends=quick[number])
        except TraceError:
            # An error in an earlier file comes first.
            _decode_batch(batch, ints, texts)
            raise
        if batch and held + len(data) > BATCH_BYTES:
            out.extend(_decode_batch(batch, ints, texts))
            batch, held = [], 0
        batch.append((raw, version, place))
        held += len(data)
    out.extend(_decode_batch(batch, ints, texts))
    return out


def _frame_quickly(files_data: Sequence[bytes]) -> list[np.ndarray | None]:
    """Ends of the records of each file, all files in step; None for a file that is to be framed plainly."""
    count = len(files_data)
    out: list[np.ndarray | None] = [None] * count
    # With few files a round of numpy costs more than the plain loop.
    if count < 16:
        return out
    buffer = _Buffer(files_data)
    files = np.arange(count)
    at, stop = buffer.base[:-1], buffer.base[1:]
    rounds: list[tuple[np.ndarray, np.ndarray]] = []
    while len(files) >= 16:
        word = buffer.words[at]
        wide = (word >> np.uint64(7)) & np.uint64(1)
        length = (word & np.uint64(127)) | ((word >> np.uint64(1)) & (wide * np.uint64(127 << 7)))
        # Empty records, longer prefixes and whatever does not fit are left to the plain loop.
        wrong = (length == 0) | ((word & (wide << np.uint64(15))) != 0)
        if not rounds:
            wrong &= (word & np.uint64(255)) != 0
        at = at + (length + wide).view(np.int64) + 1
        wrong |= at > stop
        going = (at < stop) & ~wrong
        rounds.append((files, np.where(wrong, -1, at)))
        if not going.all():
            files, at, stop = files[going], at[going], stop[going]
    if not rounds:
        return out
    owner = np.concatenate([f for f, _ in rounds])
    ends = np.concatenate([e for _, e in rounds])
    order = np.argsort(owner, kind="stable")
    ends = ends[order]
    bounds = np.searchsorted(owner[order], np.arange(count + 1))
    for number in range(count):
        mine = ends[bounds[number] : bounds[number + 1]]
        if len(mine) and mine[-1] == buffer.base[number + 1] and len(mine) <= MAX_NODES:
            out[number] = mine - buffer.base[number]
    return out


def decode_attribute(raw: RawFile, name: str, place: str) -> np.ndarray:
    """An integer attribute of any name: int64[n], `MISSING` where a node has none.

    Raises
    ------
    TraceError
        A node has the attribute, but not as a whole number.
    """
    (columns,) = _decode_batch([(raw, "", place)], (name,), ())
    return columns.ints.get(name, np.full(len(raw.start), MISSING, dtype=np.int64))


def decode_text(raw: RawFile, name: str, place: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A text attribute of any name: int32[n] codes (-1 where a node has none) and the texts they stand for."""
    (columns,) = _decode_batch([(raw, "", place)], (), (name,))
    return columns.texts[name]


def _decode_batch(
    batch: Sequence[tuple[RawFile, str, str]], ints: Sequence[str], texts: Sequence[str]
) -> list[FileColumns]:
    if not batch:
        return []
    buffer = _Buffer([raw.data for raw, _, _ in batch])
    base = buffer.base[:-1].tolist()
    start = np.concatenate([raw.start + at for (raw, _, _), at in zip(batch, base, strict=True)])
    end = np.concatenate([raw.end + at for (raw, _, _), at in zip(batch, base, strict=True)])
    size = len(start)
    first = np.concatenate(([0], np.cumsum([len(raw.start) for raw, _, _ in batch])))
    nodes = _scan_nodes(buffer, start, end)
    odd = nodes.odd
    wanted = (*ints, *texts)
    found = _scan_attributes(buffer, nodes.attributes, wanted, odd)
    columns: dict[str, np.ndarray] = {}
    kind = nodes.type.astype(np.int8)
    # Fancy assignment keeps the last of several values for one row: the last attribute of a name counts.
    numeric = slice(None) if not texts else found.name < len(ints)
    integers, wrong = _integers(buffer, found.member[numeric], found.value[numeric], found.payload[numeric])
    which, owner, unset = found.name[numeric], found.node[numeric], found.member[numeric] == 0
    integers[unset] = MISSING
    counts = np.array([name in _COUNTS for name in ints] + [False], dtype=bool)
    wrong |= counts[which] & (integers < 0) & ~unset
    odd[owner[wrong]] = True
    used = np.flatnonzero(np.bincount(which, minlength=len(ints)))
    table = np.full((len(used), size), MISSING, dtype=np.int64)
    table[np.searchsorted(used, which), owner] = integers
    columns |= {ints[i]: table[at] for at, i in enumerate(used.tolist())}
    labels: dict[str, tuple[np.ndarray, list[str]]] = {}
    for i, name in enumerate(texts, start=len(ints)):
        labels[name] = _labels(buffer, found, i, size, odd)
    deps = nodes.deps
    node_id, started, duration = nodes.node_id, nodes.start, nodes.duration
    if odd.any():
        for field, parts in deps.items():
            deps[field] = [tuple(c[~odd[part[0]]] for c in part) for part in parts]
        for row in np.flatnonzero(odd).tolist():
            file = int(np.searchsorted(first, row, side="right")) - 1
            raw, _, place = batch[file]
            plain, edges, values, text = _read_node(
                raw.data, int(raw.start[row - first[file]]), int(raw.end[row - first[file]]), place, ints, texts
            )
            node_id[row], kind[row], started[row], duration[row] = plain.id, plain.type, plain.start, plain.duration
            nodes.name_start[row] = plain.name[0] + base[file]
            nodes.name_length[row] = plain.name[1] - plain.name[0]
            for field, ids in edges.items():
                if ids:
                    same = np.full(len(ids), row, dtype=np.int64)
                    deps[field].append((same, np.full(len(ids), start[row]), np.array(ids, dtype=np.uint64)))
            for name in ints:
                if name in values or name in columns:
                    if name not in columns:
                        columns[name] = np.full(size, MISSING, dtype=np.int64)
                    columns[name][row] = values.get(name, MISSING)
            for name in texts:
                codes, known = labels[name]
                codes[row] = -1
                if name in text:
                    if text[name] not in known:
                        known.append(text[name])
                    codes[row] = known.index(text[name])
    csr = {field: _csr(parts, size) for field, parts in deps.items()}
    out = []
    for (raw, version, _), low, high, at in zip(batch, first[:-1].tolist(), first[1:].tolist(), base, strict=True):
        out.append(
            FileColumns(
                raw=raw,
                version=version,
                node_id=node_id[low:high],
                type=kind[low:high],
                start_time_micros=started[low:high],
                duration_micros=duration[low:high],
                name_start=nodes.name_start[low:high] - at,
                name_length=nodes.name_length[low:high],
                ctrl_deps=_slice(csr[4], low, high),
                data_deps=_slice(csr[5], low, high),
                ints={name: column[low:high] for name, column in columns.items()},
                texts={name: _used(codes[low:high], known) for name, (codes, known) in labels.items()},
            )
        )
    return out


def _labels(
    buffer: _Buffer, found: _Attributes, index: int, size: int, odd: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Text attributes as codes of the different texts."""
    codes = np.full(size, -1, dtype=np.int32)
    chosen = np.flatnonzero(found.name == index)
    member = found.member[chosen]
    odd[found.node[chosen[(member != 0) & (member != _STRING_MEMBER)]]] = True
    unset = chosen[member == 0]
    chosen = chosen[member == _STRING_MEMBER]
    at, length = found.payload[chosen], found.value[chosen].astype(np.int64)
    owner = found.node[chosen]
    texts: dict[bytes, int] = {}
    first, last = buffer.ends(at, length)
    short = np.flatnonzero(length <= 16)
    long = np.flatnonzero(length > 16)
    local = np.empty(len(chosen), dtype=np.int32)
    if len(short):
        keys = np.stack([first[short], last[short], length[short].astype(np.uint64)], axis=1)
        order = np.lexsort(keys.T)
        different = np.concatenate(([True], (keys[order[1:]] != keys[order[:-1]]).any(axis=1)))
        number = np.cumsum(different) - 1
        for i in order[different].tolist():
            row = short[i]
            texts.setdefault(buffer.bytes[at[row] : at[row] + length[row]].tobytes(), len(texts))
        local[short[order]] = number
    for row in long.tolist():
        text = buffer.bytes[at[row] : at[row] + length[row]].tobytes()
        local[row] = texts.setdefault(text, len(texts))
    decoded = []
    for code, text in enumerate(texts):
        try:
            decoded.append(text.decode())
        except UnicodeDecodeError:
            decoded.append("")
            odd[owner[local == code]] = True
    codes[owner] = local
    # An unset value after a set one of the same name: the last one counts, and the plain reader knows which.
    odd[found.node[unset]] |= codes[found.node[unset]] >= 0
    return codes, decoded


def _used(codes: np.ndarray, known: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    used, local = np.unique(codes, return_inverse=True)
    absent = int(len(used) > 0 and used[0] < 0)
    return (local - absent).astype(np.int32), tuple(known[code] for code in used.tolist() if code >= 0)


def _csr(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], size: int) -> Csr:
    ptr = np.zeros(size + 1, dtype=np.int64)
    if not parts:
        return Csr(ptr, np.empty(0, dtype=np.uint64))
    owner, at, ids = (np.concatenate(c) for c in zip(*parts, strict=True))
    if len(at) > 1 and not (at[1:] > at[:-1]).all():
        order = np.argsort(at, kind="stable")
        owner, ids = owner[order], ids[order]
    np.cumsum(np.bincount(owner, minlength=size), out=ptr[1:])
    return Csr(ptr, ids)


def _slice(csr: Csr, low: int, high: int) -> Csr:
    begin, end = int(csr.ptr[low]), int(csr.ptr[high])
    return Csr(csr.ptr[low : high + 1] - begin, csr.ids[begin:end])


def attribute_kinds(raw: RawFile, names: Sequence[str]) -> dict[tuple[str, str], int]:
    """How often each of some attributes uses each oneof member.

    Returns
    -------
    dict of (attribute name, member) to int
        In the order of `names`, then of field numbers; an unset value counts as member ``""``.
    """
    buffer = _Buffer([raw.data])
    nodes = _scan_nodes(buffer, raw.start, raw.end)
    found = _scan_attributes(buffer, nodes.attributes, names, nodes.odd)
    counts = np.bincount(found.name * 33 + found.member, minlength=33 * len(names))
    return {
        (names[at // 33], ATTRIBUTE_MEMBERS.get(at % 33, "")): int(counts[at]) for at in np.flatnonzero(counts).tolist()
    }


def damaged_nodes(raw: RawFile, place: str, limit: int) -> list[TraceError]:
    """What is wrong with the nodes of a file, each read plainly: up to `limit` errors."""
    ints, texts = tuple(COLUMN_KINDS), ("pg_name",)
    errors = []
    for start, end in zip(raw.start.tolist(), raw.end.tolist(), strict=True):
        try:
            _read_node(raw.data, start, end, place, ints, texts)
        except TraceError as error:
            errors.append(error)
            if len(errors) >= limit:
                break
    return errors
