"""Framing: where the records of a Chakra file lie, and whether it is one.

A file is ``varint(length) GlobalMetadata`` and then ``varint(length) Node`` to its end.
"""

from __future__ import annotations

from array import array

import numpy as np

from astrasim_py.chakra.storage import RawFile
from astrasim_py.chakra.wire import LENGTH, OLD, VARINT, Damaged, check_attribute, fields, read_varint
from astrasim_py.core.errors import TraceError

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
        length, at = data[position], position + 1
        if length > 127:
            if not whole and size - position < 10:
                break
            try:
                length, at = read_varint(data, position, size)
            except Damaged as error:
                cut = size - position < 10
                problem = (
                    "cut short (its length prefix ends with the file)" if cut else f"has no length prefix: {error}"
                )
                raise _wrong(data, place, position, record, problem) from None
        if length > MAX_RECORD:
            raise _wrong(data, place, position, record, f"claims {length} bytes, more than {MAX_RECORD}")
        end = at + length
        if end > size:
            if not whole:
                break
            problem = f"cut short (needs {end - position}, {size - position} left)"
            raise _wrong(data, place, position, record, problem)
        if not record:
            version = check_metadata(data, at, end, place)
        elif not length:
            # An empty message is a node of id 0, so that there is at most one.
            if empty >= 0:
                problem = f"node 0 is there twice, at byte {empty} and at byte {position}"
                raise TraceError(place, problem, "give every node its own id")
            empty = position
        starts.append(at)
        ends.append(end)
        position = end
    start, end_of = (np.frombuffer(a, dtype=np.int64) if a else np.empty(0, dtype=np.int64) for a in (starts, ends))
    for bounds in (start, end_of):
        bounds.setflags(write=False)
    metadata = (starts[0], ends[0]) if starts else (0, 0)
    return RawFile(data, metadata, start[1:], end_of[1:]), version


def check_metadata(data: bytes, start: int, end: int, place: str) -> str:
    """Version text of the metadata.

    Raises TraceError: they are no metadata, or those of an older schema.
    """
    version = b""
    here = f"{place}: byte {start}"
    try:
        for number, wire, value in fields(data, start, end):
            if number == 1 and wire == VARINT:
                problem = "has no metadata record: it begins with a node, as in schemas before 0.0.4"
                raise TraceError(here, problem, OLD)
            if number in (1, 2) and wire != LENGTH:
                raise Damaged(f"field {number} has wire type {wire}, not {LENGTH}")
            if number == 1:
                version = data[value[0] : value[1]]
            elif number == 2:
                check_attribute(data, *value)
    except Damaged as error:
        raise TraceError(here, f"record 0 is not Chakra metadata: {error}", _hint(data)) from None
    text = version.decode(errors="replace")
    if any(ord(letter) < 32 or letter == "\ufffd" for letter in text):
        raise TraceError(here, "record 0 is not metadata of Chakra 0.0.4: its version is not text", OLD)
    return text
