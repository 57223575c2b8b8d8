"""The compiled reader: it parses large files of the usual form straight into columns.

It refuses damaged files and unusual but legal ones; `decode` then reads them by protobuf and reports errors.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.chakra.schema import COUNTS, MISSING
from astrasim_py.chakra.storage import Csr, RawFile, compact_columns
from astrasim_py.chakra.wire import ATTRIBUTE, MAX_NODES, MAX_RECORD, check_metadata
from astrasim_py.core.jit import kernel, lean

#: Most different texts of one file, and most probes of a hash table: a hostile file may hold texts that collide.
MAX_TEXTS, _MAX_TRIES = 1024, 64
#: A cell of a hash table of texts: where one is, its bytes, and its number, -1 in an empty cell.
_CELL = np.dtype([("at", "i8"), ("length", "i8"), ("code", "i8")])
#: Zero bytes behind the file, so that eight bytes can be loaded anywhere.
_PAD = 32
#: Results of `_read`: the file is unusual; its dependencies need more room.
_UNUSUAL, _FULL = -1, -2
#: A position after every end.
_FAILED = 2**62

_ABSENT = MISSING
_LOW7, _BIT7 = np.uint64(127), np.uint64(128)
_LOW32 = np.uint64(2**32 - 1)
_HIGH = np.uint64(0x8080808080808080)
_FIRST_TAG, _LAST_TAG = np.uint64(8), np.uint64(2**32)
_LAST_TYPE = np.uint64(7)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
#: Wire type of each field of an attribute, by number.
_WIRES = np.array([ATTRIBUTE.get(number, ("", 255))[1] for number in range(33)], dtype=np.uint8)


#: Scalars of a node, and its part of the dependencies: up to where they go.
_ROW = np.dtype(
    [(name, "u8") for name in ("id", "start_time_micros", "duration_micros")]
    + [(name, "i8") for name in ("name_at", "name_length", "ctrl_end", "data_end")]
    + [("code", "i4"), ("type", "i1")],
    align=True,
)


class Source(NamedTuple):
    """A file, the names of the wanted attributes (the text one last) and some zeros; the 64-bit word at each byte."""

    data: np.ndarray
    words: np.ndarray
    size: int  # bytes of the file
    name_length: np.ndarray
    counts: np.ndarray  # bool: attributes that must not be negative
    wires: np.ndarray


class Nodes(NamedTuple):
    """The n nodes of a file."""

    bounds: np.ndarray  # int64[2, n]: where each begins and ends
    rows: np.ndarray  # of `_ROW`
    ctrl_deps: np.ndarray
    data_deps: np.ndarray
    ints: np.ndarray  # int64[k, n]; rows that are not `used` hold anything
    used: np.ndarray  # bool[k]
    seen: np.ndarray  # int64[k + 1]: last node with each attribute
    names: np.ndarray  # hash table of the names of the wanted attributes
    texts: np.ndarray  # hash table of the texts
    known: np.ndarray  # int64[1]: texts in it


def decode(data: bytes, place: str, ints: Sequence[str], text: str) -> dict[str, Any] | None:
    """Fields of the trace of a file, or None: protobuf must read it; parameters and errors as `decode.decode`."""
    names = [name.encode() for name in (*ints, text)]
    padded = np.frombuffer(b"".join([data, *names, bytes(_PAD)]), dtype=np.uint8)
    source = Source(
        padded,
        np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,)),
        len(data),
        np.array([len(name) for name in names]),
        np.array([name in COUNTS for name in ints], dtype=bool),
        _WIRES,
    )
    metadata = np.zeros(2, dtype=np.int64)
    bounds = np.empty((2, min(MAX_NODES, len(data) // 2) + 1), dtype=np.int64)
    size = _frame(source, MAX_NODES, MAX_RECORD, metadata, bounds)
    if size < 0:
        return None
    begin, end = metadata.tolist()
    bounds = bounds[:, :size].copy()
    version = check_metadata(data, begin, end, place)
    nodes = _empty(bounds, len(ints), 8 * size)
    found = _read(source, nodes)
    if found == _FULL:
        nodes = _empty(bounds, len(ints), len(data))
        found = _read(source, nodes)
    if found == _UNUSUAL:
        return None
    labels = np.sort(nodes.texts[nodes.texts["code"] >= 0], order="code")
    used = {name: nodes.ints[index] for index, name in enumerate(ints) if nodes.used[index]}
    column = {name: np.ascontiguousarray(nodes.rows[name]) for name in _ROW.names or ()}
    ends = [np.concatenate([[0], column[name]]) for name in ("ctrl_end", "data_end")]
    return {
        "raw": RawFile(data, (begin, end), bounds[0], bounds[1]),
        "version": version,
        "node_id": column["id"],
        **{name: column[name] for name in ("type", "start_time_micros", "duration_micros")},
        "names": _cut(data, column["name_at"], column["name_length"]),
        "ctrl_deps": Csr(ends[0], nodes.ctrl_deps[: ends[0][-1]].copy()),
        "data_deps": Csr(ends[1], nodes.data_deps[: ends[1][-1]].copy()),
        "_columns": compact_columns(used, size),
        "_groups": (column["code"], _cut(data, labels["at"], labels["length"])),
    }


def _empty(bounds: np.ndarray, columns: int, room: int) -> Nodes:
    size = bounds.shape[1]
    return Nodes(
        bounds=bounds,
        rows=np.zeros(size, _ROW),
        ctrl_deps=np.empty(room, np.uint64),
        data_deps=np.empty(room, np.uint64),
        ints=np.empty((columns, size), np.int64),
        used=np.zeros(columns, dtype=bool),
        seen=np.full(columns + 1, -1),
        names=np.full(256, -1, _CELL),
        texts=np.full(4 * MAX_TEXTS, -1, _CELL),
        known=np.zeros(1, np.int64),
    )


def _cut(data: bytes, start: np.ndarray, length: np.ndarray) -> tuple[str, ...]:
    """Pieces of a file that are ASCII."""
    if not length.any():
        return ("",) * len(start)
    text = data.decode("latin-1")
    return tuple([text[at:end] for at, end in zip(start.tolist(), (start + length).tolist(), strict=True)])


@lean
def _varint(data, at, stop):
    """A number and the position behind it; -1 if it is cut short or longer than 10 bytes."""
    value = np.uint64(0)
    shift = np.uint64(0)
    limit = min(stop, at + 10)
    while at < limit:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & _LOW7) << shift
        if byte < _BIT7:
            return value, at
        shift += np.uint64(7)
    return value, -1


@lean
def _ascii(words, start, length):
    at = start
    end = start + length
    while at + 8 <= end:
        if words[at] & _HIGH:
            return False
        at += 8
    if at < end:
        return words[at] & _HIGH & ((np.uint64(1) << np.uint64(8 * (end - at))) - np.uint64(1)) == 0
    return True


@lean
def _unused(length):
    """Bits of a word that lie behind a text."""
    return np.uint64(64 - 8 * min(length, 8))


@lean
def _cell(words, table, at, length):
    """Cell of a text in a hash table, an empty one if it is not there; -1 after too many probes."""
    first = (words[at] << _unused(length)) >> _unused(length) if length else np.uint64(0)
    last = words[at + length - 8] if length > 8 else np.uint64(0)
    key = (first ^ (last * _MIX[0]) ^ (np.uint64(length) * _MIX[1])) * _MIX[2]
    last_cell = len(table) - 1
    cell = np.int64(key >> np.uint64(32)) & last_cell
    for _ in range(_MAX_TRIES):
        known, i = table[cell], 0
        if known.code < 0:
            return cell
        if known.length == length:
            while i < length and not (words[known.at + i] ^ words[at + i]) << _unused(length - i):
                i += 8
            if i >= length:
                return cell
        cell = (cell + 1) & last_cell
    return -1


@lean
def _packed(data, at, stop, out, filled):
    """Read a packed list of numbers; returns the new length of `out`, or `_UNUSUAL` or `_FULL`."""
    while at < stop:
        value, at = _varint(data, at, stop)
        if at < 0:
            return _UNUSUAL
        if filled == len(out):
            return _FULL
        out[filled] = value
        filled += 1
    return filled


@lean
def _integer(member, bits):
    """Value of an integer member as protobuf decodes it, and whether int64 holds it."""
    low = bits & _LOW32
    if member == 9 or member == 25:  # int64, sfixed64
        return np.int64(bits), True
    if member == 7 or member == 23:  # int32, sfixed32
        return np.int64(np.int32(np.uint32(low))), True
    if member == 13 or member == 21:  # uint64, fixed64
        return np.int64(bits), bits < np.uint64(2**63)
    if member == 11 or member == 19:  # uint32, fixed32
        return np.int64(low), True
    if member == 27:  # bool
        return np.int64(bits != np.uint64(0)), True
    if member == 15 or member == 17:  # sint32, sint64
        zigzag = low if member == 15 else bits
        half = np.int64(zigzag >> np.uint64(1))
        return (half ^ -np.int64(zigzag & np.uint64(1))), True
    return np.int64(0), False


@lean
def _head(data, at, end):
    """Tag, value or length, and position behind both; tag 0 to give the file up.

    A field of fixed width has the value 0, and the position of its content.
    """
    tag, at = _varint(data, at, min(end, at + 5))
    wire = np.int64(tag) & 7
    value = np.uint64(0)
    if at < 0 or tag >= _LAST_TAG or tag < _FIRST_TAG or wire == 3 or wire == 4 or wire > 5:
        return 0, value, _FAILED
    if wire == 1 or wire == 5:
        return np.int64(tag), value, at if at + (8 if wire == 1 else 4) <= end else _FAILED
    value, at = _varint(data, at, end)
    if at < 0 or (wire == 2 and value > np.uint64(end - at)):
        return 0, value, _FAILED
    return np.int64(tag), value, at


@lean
def _attribute(source, begin, end):
    """Soundness of an attribute, position and length of its name, and member, value and position of its content."""
    at = label = begin
    length, member, content, payload = np.int64(0), np.int64(0), np.uint64(0), np.int64(0)
    while at < end:
        tag, value, at = _head(source.data, at, end)
        field, wire = tag >> 3, tag & 7
        here = at
        if wire == 2:
            at += np.int64(value)
        elif wire != 0:
            value = source.words[at]
            at += 8 if wire == 1 else 4
        if field > 32:
            continue
        if wire != (2 if field < 3 else np.int64(source.wires[field])):
            at = _FAILED
        elif field == 1:
            label, length = here, np.int64(value)
        elif field > 2:
            member, content, payload = field, value, here
    return at == end, label, length, member, content, payload


@lean
def _keep(source, nodes, row, begin, end):
    """Put an attribute of a node into its column; False to give the file up."""
    sound, label, length, member, content, payload = _attribute(source, begin, end)
    if not sound:
        return False
    column = nodes.names[_cell(source.words, nodes.names, label, length)].code
    if column < 0:
        return _ascii(source.words, label, length)
    # The last of several attributes of one name counts, and an unset one hides those before it.
    if nodes.seen[column] == row:
        return False
    nodes.seen[column] = row
    if member == 0:
        return True
    if column == len(nodes.used):
        return member == 29 and _keep_text(source, nodes, row, payload, np.int64(content))
    number, fits = _integer(member, content)
    if not fits or number == _ABSENT or (number < 0 and source.counts[column]):
        return False
    if not nodes.used[column]:
        nodes.used[column] = True
        nodes.ints[column, :] = _ABSENT
    nodes.ints[column, row] = number
    return True


@lean
def _keep_text(source, nodes, row, at, length):
    cell = _cell(source.words, nodes.texts, at, length)
    if cell < 0:
        return False
    text = nodes.texts[cell]
    if text.code < 0:
        if nodes.known[0] == MAX_TEXTS or not _ascii(source.words, at, length):
            return False
        text.at, text.length, text.code = at, length, nodes.known[0]
        nodes.known[0] += 1
    nodes.rows[row].code = text.code
    return True


@kernel("the index of large traces", lean=True)
def _frame(source, most, largest, metadata, bounds):
    """Find the records of a file; returns the number of its nodes, -1 to give it up."""
    at = 0
    count = -1
    while at < source.size:
        length, after = _varint(source.data, at, source.size)
        if after < 0 or after - at > 5:
            return -1
        size = np.int64(length)
        # An empty node is possible, but there is hardly more than one.
        if size > largest or size > source.size - after or (size == 0 and count >= 0):
            return -1
        if count < 0:
            metadata[0], metadata[1] = after, after + size
        elif count == most:
            return -1
        else:
            bounds[0, count], bounds[1, count] = after, after + size
        count += 1
        at = after + size
    return count


@kernel("the reader of large traces", lean=True)
def _read(source, nodes):
    """Parse the nodes of a file; returns 0, `_UNUSUAL` or `_FULL`."""
    data = source.data
    at = source.size
    for code, length in enumerate(source.name_length):
        name = nodes.names[_cell(source.words, nodes.names, at, length)]
        name.at, name.length, name.code = at, length, code
        at += length
    n_ctrl = n_data = 0
    for row in range(len(nodes.rows)):
        at, end = nodes.bounds[0, row], nodes.bounds[1, row]
        own = nodes.rows[row]
        own.code = -1
        while at < end:
            tag, value, at = _head(data, at, end)
            here = at
            if tag & 7 == 2:
                at += np.int64(value)
            if tag == 82:  # attr
                if not _keep(source, nodes, row, here, at):
                    return _UNUSUAL
            elif tag == 42:  # data_deps
                n_data = _packed(data, here, at, nodes.data_deps, n_data)
                if n_data < 0:
                    return n_data
            elif tag == 34:  # ctrl_deps
                n_ctrl = _packed(data, here, at, nodes.ctrl_deps, n_ctrl)
                if n_ctrl < 0:
                    return n_ctrl
            elif tag == 18:
                own.name_at, own.name_length = here, np.int64(value)
            elif tag == 8:
                own.id = value
            elif tag == 24:
                own.type = value & _LOW32
                if value & _LOW32 > _LAST_TYPE:
                    return _UNUSUAL
            elif tag == 48:
                own.start_time_micros = value
            elif tag == 56:
                own.duration_micros = value
            elif tag < 88 and tag != 66 and tag != 74:  # an unusual wire type, e.g. dependencies that are not packed
                return _UNUSUAL
            elif tag & 7 == 1 or tag & 7 == 5:
                at += 8 if tag & 7 == 1 else 4
        if at != end or not _ascii(source.words, own.name_at, own.name_length):
            return _UNUSUAL
        own.ctrl_end, own.data_end = n_ctrl, n_data
    return 0
