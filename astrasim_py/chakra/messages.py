"""Single messages of protobuf: nodes, metadata and their attributes."""

import functools
from collections.abc import Iterable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, RANGES, Attribute
from astrasim_py.core.errors import TraceError


@functools.cache
def lenient(name: str) -> type[Any]:
    """`Node` or `AttributeProto` with bytes for text and for messages within, so that damage there does not matter."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    old, file.name, file.package = file.package, "astrasim_py/chakra/lenient.proto", "astrasim_py.chakra.lenient"
    for field in (field for message in file.message_type for field in message.field):
        if field.type == field.TYPE_ENUM:
            field.type_name = field.type_name.replace(old, file.package)
        elif field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
            field.ClearField("type_name")
            field.type = field.TYPE_BYTES
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def parse(name: str, data: bytes, place: str) -> Any:
    """A message of that name; raises TraceError for bytes that protobuf refuses."""
    try:
        return getattr(pb, name).FromString(data)
    except (DecodeError, ValueError) as error:
        reason = " ".join(str(error).split()) or "damaged"
        raise TraceError(place, f"a {name} that cannot be decoded: {reason}", "make or copy the file again") from None


def attributes(messages: Iterable) -> tuple[Attribute, ...]:
    """Attributes of a node or of the metadata as plain values."""
    out = []
    for message in messages:
        kind = message.WhichOneof("value") or ""
        value: Any = getattr(message, kind) if kind else None
        value = tuple(value.values) if kind.endswith("_list") else value
        out.append(Attribute(message.name, kind, value, message.doc_string))
    return tuple(out)


def metadata_message(version: str, attributes: Iterable[Attribute]) -> Any:
    message = pb.GlobalMetadata(version=version)
    for attribute in attributes:
        target = message.attr.add(name=attribute.name, doc_string=attribute.doc)
        if attribute.kind.endswith("_list"):
            content = getattr(target, attribute.kind)
            content.SetInParent()
            content.values.extend(attribute.value)
        elif attribute.kind:
            setattr(target, attribute.kind, attribute.value)
    return message


def patch(message: Any, columns: Any) -> None:
    """Write a node made of the columns into a node's message; its other attributes stay."""
    for name in ("id", "type", "name", "start_time_micros", "duration_micros"):
        setattr(message, name, getattr(columns, name))
    for name in ("ctrl_deps", "data_deps"):
        if getattr(message, name) != getattr(columns, name):
            del getattr(message, name)[:]
            getattr(message, name).extend(getattr(columns, name))
    last = {attribute.name: attribute for attribute in message.attr}
    values = {attribute.name: attribute.value for attribute in attributes(columns.attr)}
    for name in (*INT_COLUMNS, "pg_name"):
        _patch_attribute(message, last.get(name), name, values.get(name))


def _patch_attribute(message: Any, attribute: Any, name: str, value: Any) -> None:
    kind = COLUMN_KINDS.get(name, "string_val")
    used = (attribute.WhichOneof("value") or "") if attribute is not None else ""
    held = getattr(attribute, used) if used else None
    # A foreign attribute may have the name of a column and hold something else: then the column is empty.
    current = held if isinstance(held, str if kind == "string_val" else int) else None
    if current == value:
        return
    if value is None:
        remaining = [type(other).FromString(other.SerializeToString()) for other in message.attr if other.name != name]
        del message.attr[:]
        message.attr.extend(remaining)
        return
    if attribute is None:
        attribute = message.attr.add(name=name)
    for member in (used, kind):
        low, high = RANGES.get(member, (1, 0))
        if member == "string_val" == kind or (isinstance(value, int) and low <= value <= high):
            setattr(attribute, member, int(value) if member not in ("bool_val", "string_val") else value)
            return
    attribute.int64_val = value
