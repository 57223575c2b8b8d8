"""Traces as JSON lines: readable, editable, and exact.

Line 1 is the metadata, every further line one node, in the order of the file. Fields with their default value
are left out. An attribute is an object of its name, the oneof member it uses and, rarely, a doc string::

    {"chakra_jsonl": 1, "version": "0.0.4"}
    {"id": 1, "name": "send", "type": "COMM_SEND", "attr": [{"name": "comm_size", "int64_val": 64}]}

Bytes are base64; a float that is no number is ``"nan"``, ``"inf"`` or ``"-inf"``. Where a record does not
consist of the usual bytes for its fields (unknown fields, another order, longer encodings) its line also keeps
them, as base64 under ``raw``; an unusual length prefix is kept under ``prefix``. So a file survives the way to
text and back byte for byte.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping

from astrasim_py.chakra import messages
from astrasim_py.chakra.et_io import encode_trace, parse_trace, read_bytes
from astrasim_py.chakra.framing import frame
from astrasim_py.chakra.schema import Attribute, IOInfo, Node, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import ATTRIBUTE, Damaged, read_varint, varint
from astrasim_py.core.errors import TraceError

#: Version of this text form.
FORMAT = 1

_UINT64 = (0, 2**64 - 1)
_RANGES = {f"{kind}{bits}": (0, 2**bits - 1) for kind in ("uint", "fixed") for bits in (32, 64)}
_RANGES |= {f"{kind}{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for kind in ("int", "sint", "sfixed") for n in (32, 64)}
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_MEMBERS = frozenset(name for number, (name, _) in ATTRIBUTE.items() if number > 2)
_TYPE_NAMES = {kind.name: int(kind) for kind in NodeType}
_KEEP = ("raw", "prefix")


# --------------------------------------------------------------------------------------------------------
# Bytes -> lines


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _without_defaults(fields: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value not in ("", [], 0, None)}


def _attribute_fields(attributes: Iterable[Attribute]) -> list[dict]:
    out = []
    for attribute in attributes:
        fields = {"name": attribute.name} | _without_defaults({"doc_string": attribute.doc})
        out.append(fields | ({attribute.kind: _plain(attribute.value)} if attribute.kind else {}))
    return out


def _io_fields(info: IOInfo | None) -> dict | None:
    return None if info is None else _without_defaults({part: getattr(info, part) for part in IOInfo.__slots__})


def _node_fields(node: Node) -> dict:
    kind = NodeType(node.type).name if 0 <= node.type <= 7 else node.type
    others = {
        "ctrl_deps": list(node.ctrl_deps),
        "data_deps": list(node.data_deps),
        "start_time_micros": node.start_time_micros,
        "duration_micros": node.duration_micros,
        "inputs": _io_fields(node.inputs),
        "outputs": _io_fields(node.outputs),
        "attr": _attribute_fields(node.attributes),
    }
    return {"id": node.id, **_without_defaults({"name": node.name}), "type": kind, **_without_defaults(others)}


def _metadata_fields(version: str, attributes: Iterable[Attribute]) -> dict:
    return {"chakra_jsonl": FORMAT} | _without_defaults({"version": version, "attr": _attribute_fields(attributes)})


def lines_of_bytes(data: bytes, place: str = "") -> Iterator[str]:
    """Text lines (without line ends) of a `.et` file's content.

    Raises TraceError: a damaged file.
    """
    raw, _ = frame(data, place)
    if not data:
        return
    spans = [raw.metadata, *zip(raw.start.tolist(), raw.end.tolist(), strict=True)]
    before = 0
    for record, (start, end) in enumerate(spans):
        body = data[start:end]
        where = f"{place}: byte {before}" if place else f"byte {before}"
        if record:
            fields = _node_fields(messages.parse_node(body, where))
        else:
            fields = _metadata_fields(*messages.parse_metadata(body, where))
        try:
            usual, _ = _record(fields, not record)
        except _Wrong as error:
            raise TraceError(where, str(error), "make or copy the file again") from None
        if usual != varint(len(body)) + body:
            fields["raw"] = base64.b64encode(body).decode()
        if data[before:start] != varint(len(body)):
            fields["prefix"] = base64.b64encode(data[before:start]).decode()
        yield json.dumps(fields, ensure_ascii=False, allow_nan=False)
        before = end


def to_lines(trace: ExecutionTrace) -> Iterator[str]:
    """Text lines (without line ends) of a trace.

    Raises TraceError: a node of a damaged file that the columns did not need.
    """
    return lines_of_bytes(encode_trace(trace), trace.place)


def jsonl_bytes(trace: ExecutionTrace) -> bytes:
    """Content of a file of JSON lines; raises as `to_lines` does."""
    return "".join(f"{line}\n" for line in to_lines(trace)).encode()


# --------------------------------------------------------------------------------------------------------
# Lines -> bytes


class _Wrong(Exception):
    """A problem in a line; the caller knows the line number."""


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict:
    out: dict[str, object] = {}
    for key, value in pairs:
        if key in out:
            raise _Wrong(f'key "{key}" is there twice')
        out[key] = value
    return out


def _no_constant(name: str) -> None:
    raise _Wrong(f'{name} is not JSON; write "nan", "inf" or "-inf" as text')


def _only(fields: Mapping, known: Iterable[str], what: str) -> None:
    for key in fields:
        if key not in known:
            raise _Wrong(f'{what} knows no key "{key}"')


def _whole(value: object, key: str, bounds: tuple[int, int] = _UINT64) -> int:
    if type(value) is not int or not bounds[0] <= value <= bounds[1]:
        raise _Wrong(f"{key} is {_shown(value)}, not a whole number in {bounds[0]}..{bounds[1]}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _string(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"{key} is {_shown(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _Wrong(f"{key} holds a lone surrogate, which UTF-8 cannot express") from None
    return value


def _bytes(value: object, key: str) -> bytes:
    try:
        return base64.b64decode(_string(value, key).encode(), validate=True)
    except (binascii.Error, ValueError):
        raise _Wrong(f"{key} is {_shown(value)}, not base64") from None


def _value(kind: str, value: object, key: str) -> object:
    if kind in _RANGES:
        return _whole(value, key, _RANGES[kind])
    if kind == "bool":
        if not isinstance(value, bool):
            raise _Wrong(f"{key} is {_shown(value)}, not true or false")
        return value
    if kind in ("double", "float"):
        if isinstance(value, str) and value in ("nan", "inf", "-inf"):
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _Wrong(f"{key} is {_shown(value)}, not a number")
        if abs(value) > (_FLOAT32_MAX if kind == "float" else sys.float_info.max):
            raise _Wrong(f"{key} is {_shown(value)}, beyond what a {kind} holds")
        return float(value)
    return _bytes(value, key) if kind == "bytes" else _string(value, key)


def _list(value: object, key: str) -> list:
    if not isinstance(value, list):
        raise _Wrong(f"{key} is {_shown(value)}, not a list")
    return value


def _read_attributes(value: object) -> tuple[Attribute, ...]:
    out = []
    for item in _list(value, "attr"):
        if not isinstance(item, dict):
            raise _Wrong(f"attr holds {_shown(item)}, not an object")
        name = _string(item.get("name", ""), "name of an attribute")
        members = [key for key in item if key not in ("name", "doc_string")]
        _only(members, _MEMBERS, f"attribute {name}")
        if len(members) > 1:
            raise _Wrong(f"attribute {name} has both {members[0]} and {members[1]}")
        kind, content = "", None
        if members:
            kind = members[0]
            base = kind.rsplit("_", 1)[0]
            if kind.endswith("_list"):
                content = tuple(_value(base, one, f"{name}") for one in _list(item[kind], name))
            else:
                content = _value(base, item[kind], name)
        out.append(Attribute(name, kind, content, _string(item.get("doc_string", ""), "doc_string")))
    return tuple(out)


def _read_io(value: object, key: str) -> IOInfo:
    if not isinstance(value, dict):
        raise _Wrong(f"{key} is {_shown(value)}, not an object")
    _only(value, IOInfo.__slots__, key)
    return IOInfo(**{part: _string(text, f"{part} of {key}") for part, text in value.items()})


def _read_type(value: object, key: str) -> int:
    if isinstance(value, str):
        if value not in _TYPE_NAMES:
            raise _Wrong(f"{key} {_shown(value)} is not one of {', '.join(_TYPE_NAMES)}")
        return _TYPE_NAMES[value]
    return _whole(value, key, (0, 7))


def _read_ids(value: object, key: str) -> tuple[int, ...]:
    return tuple(_whole(one, key) for one in _list(value, key))


#: Readers of the fields of a node, by their key in the line.
_NODE_KEYS = {
    "id": _whole,
    "name": _string,
    "type": _read_type,
    "ctrl_deps": _read_ids,
    "data_deps": _read_ids,
    "start_time_micros": _whole,
    "duration_micros": _whole,
    "inputs": _read_io,
    "outputs": _read_io,
}


def _read_node(fields: Mapping) -> Node:
    _only(fields, (*_NODE_KEYS, "attr", *_KEEP), "a node")
    if "id" not in fields:
        raise _Wrong("a node needs an id")
    values = {key: read(fields[key], key) for key, read in _NODE_KEYS.items() if key in fields}
    return Node(**values, attributes=_read_attributes(fields.get("attr", [])))


def _record(fields: dict, first: bool) -> tuple[bytes, int]:
    """Bytes of one record, its length prefix included, and the id of the node (-1 for the metadata)."""
    if first:
        _only(fields, ("chakra_jsonl", "version", "attr", *_KEEP), "the metadata")
        if _whole(fields.get("chakra_jsonl"), "chakra_jsonl", (0, 2**31)) != FORMAT:
            raise _Wrong(f"chakra_jsonl is {fields['chakra_jsonl']}, this version reads {FORMAT}")
        version = _string(fields.get("version", ""), "version")
        attributes = _read_attributes(fields.get("attr", []))
        said = _metadata_fields(version, attributes)
        number = -1
    else:
        node = _read_node(fields)
        said = _node_fields(node)
        number = node.id
    if "raw" in fields:
        body = _bytes(fields["raw"], "raw")
        try:
            if first:
                meant = _metadata_fields(*messages.parse_metadata(body))
            else:
                meant = _node_fields(messages.parse_node(body))
        except TraceError as error:
            raise _Wrong(f"raw is {error.problem}") from None
        if meant != said:
            raise _Wrong('its fields differ from what "raw" says')
    else:
        try:
            message = messages.metadata_message(version, attributes) if first else messages.node_message(node)
            body = message.SerializeToString(deterministic=True)
        except (ValueError, TypeError, OverflowError) as error:
            raise _Wrong(" ".join(str(error).split())) from None
    prefix = varint(len(body))
    if "prefix" in fields:
        prefix = _bytes(fields["prefix"], "prefix")
        try:
            length, end = read_varint(prefix, 0, len(prefix))
        except Damaged:
            length, end = -1, -1
        if (length, end) != (len(body), len(prefix)):
            raise _Wrong(f'"prefix" does not say {len(body)} bytes')
    return prefix + body, number


def bytes_of_lines(text: bytes, place: str = "") -> bytes:
    """Content of the `.et` file that JSON lines describe.

    `text`: UTF-8. `place`: name of the file, for messages. Raises TraceError: naming file, line, and what is wrong
    there.
    """
    out = []
    seen: dict[int, int] = {}
    lines = text.split(b"\n")
    if lines[-1] in (b"", b"\r"):
        lines.pop()
    for index, line in enumerate(lines):
        remedy = "see the text form in the documentation"
        try:
            fields = json.loads(line.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
            if not isinstance(fields, dict):
                raise _Wrong(f"is {_shown(fields)}, not an object")
            if not index and "chakra_jsonl" not in fields:
                remedy = 'begin with {"chakra_jsonl": 1}'
                raise _Wrong("is not the metadata of a trace in text form")
            record, number = _record(fields, not index)
            if number in seen:
                remedy = "give every node its own id"
                raise _Wrong(f"node {number} is there twice, first in line {seen[number]}")
            if index:
                seen[number] = index + 1
        except _Wrong as error:
            problem = str(error)
            remedy = 'delete "raw" to make the fields count' if '"raw"' in problem else remedy
        except UnicodeDecodeError as error:
            problem, remedy = f"is not UTF-8 (byte {error.start} of it)", "write UTF-8"
        except RecursionError:
            problem = "is too deeply nested"
        except ValueError as error:
            problem = f"is not JSON: {error}"
        else:
            out.append(record)
            continue
        raise TraceError(f"{place}:{index + 1}", problem, remedy)
    return b"".join(out)


def parse_jsonl(text: bytes, place: str = "", rank: int | None = None) -> ExecutionTrace:
    """A trace from JSON lines; raises as `read_jsonl` does."""
    return parse_trace(bytes_of_lines(text, place), place, rank)


def read_jsonl(path: str | os.PathLike, rank: int | None = None) -> ExecutionTrace:
    """Read a trace from JSON lines.

    Raises TraceError: a file that cannot be read, or what is wrong with it: ``file:line: …``.
    """
    place = os.fspath(path)
    return parse_jsonl(read_bytes(place, head=False), place, rank)
