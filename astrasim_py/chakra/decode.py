"""Chakra files into columns: small sets by protobuf, large ones by compiled code, with equal results.

Protobuf also reads large files that the compiled reader refuses because of unusual content.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from astrasim_py.chakra import messages
from astrasim_py.chakra.schema import CHAKRA_COLUMNS, COLUMN_KINDS, COUNTS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr, RawFile, compact_columns
from astrasim_py.chakra.wire import ATTRIBUTE, Damaged, check_attribute, check_node, frame, node_place, text_of
from astrasim_py.core.errors import TraceError

#: From this many bytes on compiled code pays, although it must be loaded and, once, compiled.
KERNEL_BYTES = 6 * 2**20
#: Larger files are refused for damaged records before compiled code copies them.
COPIED_BYTES = 4 * 2**20
_INTEGERS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
_INTEGER_MEMBERS = frozenset(f"{name}_val" for name in (*_INTEGERS, "bool"))
#: Attributes that are remembered.
_MOST_KNOWN = 2**16
#: Nodes of these types may carry anything.
_FREE_TYPES = (NodeType.INVALID, NodeType.METADATA)


class IllTyped(Damaged):
    """An attribute with a value of the wrong kind or range, in a well-formed message."""

    remedy = "write the attribute as the Chakra schema has it"


def decode(
    files: Sequence[tuple[bytes, str]],
    ints: Sequence[str] = tuple(COLUMN_KINDS),
    text: str = "pg_name",
    *,
    kernel: bool | None = None,
) -> list[dict[str, Any]]:
    """Decode files into columns.

    `files`: content (unzipped) and name of each. `ints`: names of the integer attributes wanted. `text`: name of the
    text attribute wanted. `kernel`: whether to read with compiled code; by default where the files are large. The
    result is the same. Returns in the order given. Raises TraceError: anything wrong with any file: the first in the
    order of files and nodes.
    """
    if kernel is None:
        kernel = sum(len(data) for data, _ in files) >= KERNEL_BYTES
    attributes = _Attributes(ints, text, False), _Attributes(ints, text, True)
    out = []
    for data, place in files:
        columns = None
        if kernel:
            from astrasim_py.chakra import decode_large  # loads numba

            if len(data) > COPIED_BYTES:
                frame(data, place)
            columns = decode_large.decode(data, place, ints, text)
        out.append(_by_protobuf(data, place, attributes) if columns is None else columns)
    return out


def decode_attribute(raw: RawFile, name: str, place: str) -> np.ndarray:
    """An integer attribute of any name, as `storage.compact` has it, `MISSING` where a node has none.

    Raises TraceError: a node has the attribute, but not as a whole number.
    """
    (columns,) = decode([(raw.data, place)], (name,))
    return columns["_columns"].get(name, np.array([MISSING]))


def decode_text(raw: RawFile, name: str, place: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """A text attribute of any name: int32[n] codes (-1 where a node has none) and the texts they stand for."""
    (columns,) = decode([(raw.data, place)], (), name)
    return columns["_groups"]


def attribute_kinds(raw: RawFile, names: Sequence[str]) -> dict[tuple[str, str], int]:
    """Count the oneof members that some attributes use; an unset value counts as member ``""``."""
    parse, parse_attribute = (messages.lenient(name).FromString for name in ("Node", "AttributeProto"))
    name_of = {name.encode(): name for name in names}
    spans = zip(raw.start.tolist(), raw.end.tolist(), strict=True)
    bodies = Counter(body for start, end in spans for body in parse(raw.data[start:end]).attr)
    counts: Counter[tuple[str, str]] = Counter()
    for body, times in bodies.items():
        attribute = parse_attribute(body)
        if attribute.name in name_of:
            counts[name_of[attribute.name], attribute.WhichOneof("value") or ""] += times
    members = ["", *(member for member, _ in ATTRIBUTE.values())]
    return {key: counts[key] for key in sorted(counts, key=lambda key: (names.index(key[0]), members.index(key[1])))}


def damaged_nodes(raw: RawFile, place: str, limit: int) -> list[TraceError]:
    """Errors of a file's nodes, at most `limit`, one of each node."""
    attributes = tuple(_Attributes(tuple(COLUMN_KINDS), "pg_name", free) for free in (False, True))
    nodes = _DecodedColumns(raw.data, place, attributes, len(raw.start))
    errors = []
    for row, (start, end) in enumerate(zip(raw.start.tolist(), raw.end.tolist(), strict=True)):
        try:
            nodes.add(row, start, end)
        except TraceError as error:
            errors.append(error)
            if len(errors) >= limit:
                break
    return errors


def _by_protobuf(data: bytes, place: str, attributes: tuple[_Attributes, ...]) -> dict[str, Any]:
    raw, version = frame(data, place)
    nodes = _DecodedColumns(data, place, attributes, len(raw.start))
    for row, (start, end) in enumerate(zip(raw.start.tolist(), raw.end.tolist(), strict=True)):
        nodes.add(row, start, end)
    return nodes.columns(raw, version)


class _DecodedColumns:
    """The columns of one file while its nodes are decoded.

    `known`: attributes of nodes, and of nodes of `_FREE_TYPES`.
    """

    def __init__(self, data: bytes, place: str, known: tuple[_Attributes, ...], size: int) -> None:
        self.data, self.place, self.size = data, place, size
        self.parse = messages.lenient("Node").FromString
        self.known, self.ints, self.text = known, known[0].ints, known[0].text
        self.numbers = {"id": array("Q"), "type": array("b"), "start_time_micros": array("Q")}
        self.numbers["duration_micros"] = array("Q")
        self.deps = {name: (array("q", [0]), array("Q")) for name in ("ctrl_deps", "data_deps")}
        self.codes = array("i", [-1]) * size
        self.names: list[str] = []
        self.labels: dict[str, int] = {}
        self.values: dict[str, array] = {}

    def add(self, row: int, start: int, end: int) -> None:
        """Decode the node in `data[start:end]`; raises TraceError naming the node."""
        body = self.data[start:end]
        try:
            node = _parsed(self.parse, body, check_node)
            known = self.known[node.type in _FREE_TYPES]
            attributes = [known[attribute] for attribute in node.attr]
            name = text_of(node.name, "its name")
            if not 0 <= node.type <= 7:
                raise Damaged(f"node type {node.type} is not one of 0..7")
            # The last of several attributes of one name counts.
            for label, value in dict(attributes).items():
                if isinstance(value, Damaged):
                    raise value
                if label == self.text and value is not None:
                    self.codes[row] = self.labels.setdefault(value, len(self.labels))
                elif value is not None:
                    if label not in self.values:
                        self.values[label] = array("q", [MISSING]) * self.size
                    self.values[label][row] = value
        except Damaged as error:
            where = f"{self.place}: {node_place(self.data, start, end)}"
            raise TraceError(where, str(error), error.remedy) from None
        self.names.append(name)
        for field, values in self.numbers.items():
            values.append(getattr(node, field))
        for field, (ptr, ids) in self.deps.items():
            ids.extend(getattr(node, field))
            ptr.append(len(ids))

    def columns(self, raw: RawFile, version: str) -> dict[str, Any]:
        """Fields of the trace of the decoded nodes."""
        return {
            "raw": raw,
            "version": version,
            **{"node_id" if field == "id" else field: np.array(values) for field, values in self.numbers.items()},
            **{field: Csr(*map(np.array, csr)) for field, csr in self.deps.items()},
            "names": tuple(self.names),
            "_columns": compact_columns(
                {name: np.array(self.values[name]) for name in self.ints if name in self.values}, self.size
            ),
            "_groups": (np.array(self.codes), tuple(self.labels)),
        }


class _Attributes(dict):
    """Name and wanted value of attributes by their bytes, each decoded once: None if not wanted, or what is wrong."""

    def __init__(self, ints: Sequence[str], text: str, free: bool) -> None:
        super().__init__()
        self.ints, self.text, self.free = dict.fromkeys(ints), text, free
        self.parse = messages.lenient("AttributeProto").FromString

    def __missing__(self, body: bytes) -> tuple[str | bytes, int | str | Damaged | None]:
        attribute = _parsed(self.parse, body, check_attribute)
        if len(self) >= _MOST_KNOWN:
            self.clear()
        try:
            self[body] = self._value(attribute)
        except Damaged as error:
            self[body] = attribute.name, error
        return self[body]

    def _value(self, attribute: Any) -> tuple[str, int | str | Damaged | None]:
        name, kind = text_of(attribute.name, "the name of an attribute"), attribute.WhichOneof("value")
        if not kind or (name != self.text and name not in self.ints):
            return name, None
        if name == self.text:
            if kind == "string_val":
                return name, text_of(attribute.string_val, name)
            problem, strict = f"{name} is a {kind}, not text", not self.free
        else:
            problem, strict = f"{name} is a {kind}, not a whole number", name not in COLUMN_KINDS
            strict = strict or (name in CHAKRA_COLUMNS and not self.free)
            if kind in _INTEGER_MEMBERS:
                value = int(getattr(attribute, kind))
                if (0 if name in COUNTS else MISSING + 1) <= value < 2**63:
                    return name, value
                problem = f"{name} is {value}, not in {'0' if name in COUNTS else '-2^63 + 1'}..2^63 - 1"
        return name, IllTyped(problem) if strict else None


def _parsed(parse: Callable[[bytes], Any], body: bytes, check: Callable[[bytes, int, int], None]) -> Any:
    """The message, refused where a field has another wire type: protobuf takes it for an unknown one."""
    try:
        message = parse(body)
    except DecodeError:
        check(body, 0, len(body))
        raise Damaged("protobuf cannot decode it") from None
    message.DiscardUnknownFields()
    if message.SerializeToString() != body:
        check(body, 0, len(body))
    return message
