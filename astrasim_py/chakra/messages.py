"""Single messages through protobuf: nodes and metadata as plain values, and back."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.trace import Attribute, IOInfo, Node
from astrasim_py.core.errors import TraceError


def _parse(kind, data: bytes, place: str):
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError, ValueError) as error:
        name = kind.DESCRIPTOR.name
        reason = " ".join(str(error).split()) or "damaged"
        raise TraceError(place, f"a {name} that cannot be decoded: {reason}", "make or copy the file again") from None


def _attributes(messages: Iterable) -> tuple[Attribute, ...]:
    out = []
    for message in messages:
        kind = message.WhichOneof("value") or ""
        value = getattr(message, kind) if kind else None
        if kind.endswith("_list"):
            value = tuple(value.values)
        out.append(Attribute(message.name, kind, value, message.doc_string))
    return tuple(out)


def _io(message, name: str) -> IOInfo | None:
    if not message.HasField(name):
        return None
    info = getattr(message, name)
    return IOInfo(info.values, info.shapes, info.types)


def node_view(message: pb.Node) -> Node:
    """A node message as plain values."""
    return Node(
        id=message.id,
        name=message.name,
        type=message.type,
        ctrl_deps=tuple(message.ctrl_deps),
        data_deps=tuple(message.data_deps),
        start_time_micros=message.start_time_micros,
        duration_micros=message.duration_micros,
        inputs=_io(message, "inputs"),
        outputs=_io(message, "outputs"),
        attributes=_attributes(message.attr),
    )


def parse_node(data: bytes, place: str = "") -> Node:
    """Decode one node.

    Raises
    ------
    TraceError
        Bytes that protobuf refuses, for instance text that is not UTF-8.
    """
    message = _parse(pb.Node, data, place)
    try:
        return node_view(message)
    except UnicodeDecodeError as error:
        raise TraceError(
            place, f"node {message.id} holds text that is not UTF-8: {error.reason}", "write the text as UTF-8"
        ) from None


def parse_metadata(data: bytes, place: str = "") -> tuple[str, tuple[Attribute, ...]]:
    """Decode the metadata: version text and attributes.

    Raises
    ------
    TraceError
        Bytes that protobuf refuses.
    """
    message = _parse(pb.GlobalMetadata, data, place)
    try:
        return message.version, _attributes(message.attr)
    except UnicodeDecodeError as error:
        raise TraceError(
            place, f"metadata holds text that is not UTF-8: {error.reason}", "write the text as UTF-8"
        ) from None


def _put_attributes(target, attributes: Iterable[Attribute]) -> None:
    for attribute in attributes:
        message = target.attr.add(name=attribute.name, doc_string=attribute.doc)
        if attribute.kind.endswith("_list"):
            content = getattr(message, attribute.kind)
            content.SetInParent()
            content.values.extend(attribute.value)
        elif attribute.kind:
            setattr(message, attribute.kind, attribute.value)


def node_message(node: Node) -> pb.Node:
    """A node as a message.

    Raises
    ------
    ValueError, TypeError
        A value that its field does not take.
    """
    message = pb.Node(
        id=node.id,
        name=node.name,
        type=node.type,
        ctrl_deps=node.ctrl_deps,
        data_deps=node.data_deps,
        start_time_micros=node.start_time_micros,
        duration_micros=node.duration_micros,
    )
    for name in ("inputs", "outputs"):
        info = getattr(node, name)
        if info is not None:
            getattr(message, name).SetInParent()
            getattr(message, name).MergeFrom(pb.IOInfo(values=info.values, shapes=info.shapes, types=info.types))
    _put_attributes(message, node.attributes)
    return message


def metadata_message(version: str, attributes: Iterable[Attribute]) -> pb.GlobalMetadata:
    """Metadata as a message."""
    message = pb.GlobalMetadata(version=version)
    _put_attributes(message, attributes)
    return message
