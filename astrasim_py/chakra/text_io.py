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

import base64
import binascii
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import messages
from astrasim_py.chakra.et_io import encode_trace, parse_trace, read_bytes
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import Damaged, frame, read_varint, varint
from astrasim_py.core.errors import TraceError
from astrasim_py.core.exact_json import unique_keys

#: Version of this text form.
FORMAT = 1

_RANGES = {f"{kind}{bits}": (0, 2**bits - 1) for kind in ("uint", "fixed") for bits in (32, 64)}
_RANGES |= {f"{kind}{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for kind in ("int", "sint", "sfixed") for n in (32, 64)}
_KINDS: dict[int, str] = {n: name.removeprefix("TYPE_").lower() for name, n in FieldDescriptorProto.Type.items()}
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_TYPE_NAMES = {kind.name: int(kind) for kind in NodeType}
#: Fields that are written even with their default value.
_ALWAYS = {
    pb.Node: [pb.Node.DESCRIPTOR.fields_by_name[name] for name in ("id", "type")],
    pb.AttributeProto: [pb.AttributeProto.DESCRIPTOR.fields_by_name["name"]],
}
_KEEP = ("raw", "prefix")


def _is_list(field: FieldDescriptor) -> bool:
    return isinstance(field.default_value, list)


def _fields(message: Any) -> dict[str, object]:
    """A message as JSON has it, in the order of the schema."""
    fields = [*_ALWAYS.get(type(message), ()), *(field for field, _ in message.ListFields())]
    in_order = sorted({field.number: field for field in fields}.items())
    return {field.name: _plain(getattr(message, field.name), field) for _, field in in_order}


def _plain(value: Any, field: FieldDescriptor) -> object:
    if field.name.endswith("_list") and field.message_type:
        (field,) = field.message_type.fields
        value = value.values
    return [_plain_item(item, field) for item in value] if _is_list(field) else _plain_item(value, field)


def _plain_item(value: Any, field: FieldDescriptor) -> object:
    if field.message_type:
        return _fields(value)
    if field.enum_type:
        return NodeType(value).name if 0 <= value <= 7 else value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def _record_fields(record: int, body: bytes, where: str = "") -> dict[str, object]:
    """Fields of a record of a file, of which the first is the metadata."""
    if record:
        return _fields(messages.parse("Node", body, where))
    return {"chakra_jsonl": FORMAT} | _fields(messages.parse("GlobalMetadata", body, where))


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
        fields = _record_fields(record, body, f"{place}: byte {before}" if place else f"byte {before}")
        if _message(fields).SerializeToString(deterministic=True) != body:
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


class _LineError(Exception):
    """A problem in a line; the caller adds the line number."""


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    try:
        return unique_keys(pairs)
    except ValueError as error:
        raise _LineError(str(error)) from None


def _no_constant(name: str) -> None:
    raise _LineError(f'{name} is not JSON; write "nan", "inf" or "-inf" as text')


def _whole(value: object, key: str, bounds: tuple[int, int]) -> int:
    if type(value) is not int or not bounds[0] <= value <= bounds[1]:
        raise _LineError(f"{key} is {_shown(value)}, not a whole number in {bounds[0]}..{bounds[1]}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _string(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise _LineError(f"{key} is {_shown(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _LineError(f"{key} holds a lone surrogate, which UTF-8 cannot express") from None
    return value


def _bytes(value: object, key: str) -> bytes:
    try:
        return base64.b64decode(_string(value, key).encode(), validate=True)
    except (binascii.Error, ValueError):
        raise _LineError(f"{key} is {_shown(value)}, not base64") from None


def _scalar(value: object, field: FieldDescriptor, label: str) -> object:
    """The value of a field or of one item of a list, which messages call `label`."""
    kind = _KINDS[field.type]
    if kind in _RANGES:
        return _whole(value, label, _RANGES[kind])
    if kind == "enum":
        if isinstance(value, str) and value not in _TYPE_NAMES:
            raise _LineError(f"{label} {_shown(value)} is not one of {', '.join(_TYPE_NAMES)}")
        return _TYPE_NAMES[value] if isinstance(value, str) else _whole(value, label, (0, 7))
    if kind == "bool":
        if not isinstance(value, bool):
            raise _LineError(f"{label} is {_shown(value)}, not true or false")
        return value
    if kind in ("double", "float"):
        if isinstance(value, str) and value in ("nan", "inf", "-inf"):
            return float(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _LineError(f"{label} is {_shown(value)}, not a number")
        if abs(value) > (_FLOAT32_MAX if kind == "float" else sys.float_info.max):
            raise _LineError(f"{label} is {_shown(value)}, beyond what a {kind} holds")
        return float(value)
    return _bytes(value, label) if kind == "bytes" else _string(value, label)


def _fill(message: Any, fields: Mapping[str, object], subject: str, label: Callable[[str], str]) -> None:
    """Put fields into a message, which messages call `subject`; `label` is what they call a key."""
    fields_of = message.DESCRIPTOR.fields_by_name
    for key in fields:
        if key not in fields_of:
            raise _LineError(f'{subject} has no key "{key}"')
    for key, value in fields.items():
        _put(message, fields_of[key], value, label(key))


def _put(message: Any, field: FieldDescriptor, value: object, label: str) -> None:
    if _is_list(field):
        if not isinstance(value, list):
            raise _LineError(f"{label} is {_shown(value)}, not a list")
        items = getattr(message, field.name)
        if field.message_type:
            for item in value:
                _put_attribute(items.add(), item)
        else:
            items.extend([_scalar(item, field, label) for item in value])
    elif not field.message_type:
        setattr(message, field.name, _scalar(value, field, label))
    else:
        inner = getattr(message, field.name)
        inner.SetInParent()
        if field.name.endswith("_list"):
            _put(inner, field.message_type.fields[0], value, label)
        elif isinstance(value, dict):
            _fill(inner, value, label, lambda part: f"{part} of {label}")
        else:
            raise _LineError(f"{label} is {_shown(value)}, not an object")


def _put_attribute(message: Any, item: object) -> None:
    if not isinstance(item, dict):
        raise _LineError(f"attr holds {_shown(item)}, not an object")
    labels = {"name": "name of an attribute", "doc_string": "doc_string"}
    name = _string(item.get("name", ""), labels["name"])
    _fill(message, item, f"attribute {name}", lambda key: labels.get(key, name))
    members = [key for key in item if key not in labels]
    if len(members) > 1:
        raise _LineError(f"attribute {name} has both {members[0]} and {members[1]}")


def _message(fields: Mapping[str, Any]) -> Any:
    """The message that a line describes: the metadata if it has their version, else a node."""
    first = "chakra_jsonl" in fields
    if first and _whole(fields["chakra_jsonl"], "chakra_jsonl", (0, 2**31)) != FORMAT:
        raise _LineError(f"chakra_jsonl is {fields['chakra_jsonl']}, this version reads {FORMAT}")
    message = pb.GlobalMetadata() if first else pb.Node()
    node_fields = {key: value for key, value in fields.items() if key not in (*_KEEP, "chakra_jsonl")}
    _fill(message, node_fields, "the metadata" if first else "a node", str)
    if not first and "id" not in fields:
        raise _LineError("a node needs an id")
    return message


def _record(fields: Mapping[str, Any], record: int) -> bytes:
    """Bytes of a record, its length prefix included."""
    message = _message(fields)
    if "raw" in fields:
        body = _bytes(fields["raw"], "raw")
        try:
            expected = _record_fields(record, body)
        except TraceError as error:
            raise _LineError(f"raw is {error.problem}") from None
        if expected != _record_fields(record, message.SerializeToString()):
            raise _LineError('its fields differ from what "raw" says')
    else:
        body = message.SerializeToString(deterministic=True)
    prefix = varint(len(body))
    if "prefix" in fields:
        prefix = _bytes(fields["prefix"], "prefix")
        try:
            length, end = read_varint(prefix, 0, len(prefix))
        except Damaged:
            length, end = -1, -1
        if (length, end) != (len(body), len(prefix)):
            raise _LineError(f'"prefix" does not say {len(body)} bytes')
    return prefix + body


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
            fields = json.loads(line.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
            if not isinstance(fields, dict):
                raise _LineError(f"is {_shown(fields)}, not an object")
            if not index and "chakra_jsonl" not in fields:
                remedy = 'begin with {"chakra_jsonl": 1}'
                raise _LineError("is not the metadata of a trace in text form")
            if index and "chakra_jsonl" in fields:
                raise _LineError('a node has no key "chakra_jsonl"')
            record = _record(fields, index)
            if index and seen.setdefault(fields["id"], index) < index:
                remedy = "give every node its own id"
                raise _LineError(f"node {fields['id']} appears twice, first in line {seen[fields['id']] + 1}")
        except _LineError as error:
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


def read_jsonl(path: str | os.PathLike, rank: int | None = None) -> ExecutionTrace:
    """Read a trace from JSON lines.

    Raises TraceError: a file that cannot be read, or what is wrong with it: ``file:line: …``.
    """
    place = os.fspath(path)
    return parse_trace(bytes_of_lines(read_bytes(place, head=False), place), place, rank)
