"""Framing: where the records of a Chakra file lie, and whether it is one.

A file is ``varint(length) GlobalMetadata`` and then ``varint(length) Node`` to its end.
"""

from __future__ import annotations

from array import array

import numpy as np

from astrasim_py.chakra.plain import LENGTH, OLD, VARINT, Damaged, check_member, fields, read_varint
from astrasim_py.chakra.storage import RawFile
from astrasim_py.core.errors import TraceError

#: Largest record, bytes.
MAX_RECORD = 64 * 2**20
#: Most nodes in one file.
MAX_NODES = 2**24


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
    return f"if it is a Chakra ET at all, it is damaged or older than schema 0.0.4: {OLD}"


def frame(data: bytes, place: str, *, whole: bool = True) -> tuple[RawFile, str]:
    """Find the records of a file and check the first, the metadata.

    Parameters
    ----------
    data : bytes
        The whole file.
    place : str
        Its name, for messages.
    whole : bool
        False for the beginning of a file, which may end within a record.

    Returns
    -------
    tuple
        `RawFile` and the version text of the metadata.

    Raises
    ------
    TraceError
        A record that is cut short or too large, or a file that is not a Chakra ET.
    """
    version, metadata, end_of = _records(data, place, whole)
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


def _records(data: bytes, place: str, whole: bool) -> tuple[str, tuple[int, int], np.ndarray]:
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
            version, metadata = check_metadata(data, at, end, place), (at, end)
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


def check_metadata(data: bytes, start: int, end: int, place: str) -> str:
    """Version text of the metadata.

    Raises
    ------
    TraceError
        They are no metadata, or those of an older schema.
    """
    version = b""
    try:
        for number, wire, value in fields(data, start, end):
            if number == 1 and wire == VARINT:
                raise TraceError(
                    f"{place}: byte {start}",
                    "has no metadata record: it begins with a node, as in schemas before 0.0.4",
                    OLD,
                )
            if number in (1, 2) and wire != LENGTH:
                raise Damaged(f"field {number} has wire type {wire}, not {LENGTH}")
            if number == 1:
                version = data[value[0] : value[1]]
            elif number == 2:
                for member, member_wire, _ in fields(data, *value):
                    check_member(member, member_wire)
    except Damaged as error:
        raise TraceError(f"{place}: byte {start}", f"record 0 is not Chakra metadata: {error}", _hint(data)) from None
    try:
        text = version.decode()
    except UnicodeDecodeError:
        text = "\0"
    if any(ord(letter) < 32 for letter in text):
        raise TraceError(
            f"{place}: byte {start}", "record 0 is not metadata of Chakra 0.0.4: its version is not text", OLD
        )
    return text
