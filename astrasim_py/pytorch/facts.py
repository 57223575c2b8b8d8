"""Facts of events and nodes of a recording about a communication: kind, bytes, group, peer, splits and root."""

import json
import re
from collections.abc import Iterable, Mapping

from astrasim_py.pytorch.groups import parse_list
from astrasim_py.pytorch.host_trace import Arguments

_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "all_to_all",  # only kernels are called so
    "send": "send",
    "isend": "send",
    "recv": "recv",
    "irecv": "recv",
}
KINDS = tuple(dict.fromkeys(_KINDS.values()))
MESSAGES = ("send", "recv")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
_KERNEL = re.compile(r"(?:void )?(?:nccl|rccl|msccl)(?!pp)_?\w{0,20}?Kernel_?(?P<what>\w*)", re.IGNORECASE)
_SPAN = re.compile(r"(?:\w{0,4}ccl|gloo|mpi|ucc):\s*(?P<what>\w+)")
_OPERATION = re.compile(r"(?:c10d|_?c10d_functional(?:_autograd)?)::_?(?P<what>\w+)")
RECORD = "record_param_comms"
#: What it records beside calls.
IDLE = ("wait", "init")
_WIDTH = {
    1: ("byte", "char", "bool", "unsignedchar", "signedchar", "uint8", "int8"),
    2: ("half", "bfloat16", "short", "shortint", "float16", "int16", "uint16", "unsignedshort", "fp16", "bf16"),
    4: ("float", "int", "float32", "int32", "uint32", "unsignedint", "complexhalf", "fp32"),
    8: ("double", "long", "longint", "float64", "int64", "uint64", "unsignedlong", "complexfloat", "fp64"),
    16: ("complexdouble",),
}
_BYTES = {name: width for width, names in _WIDTH.items() for name in names}
#: Arguments of operations of c10d: places of the tensors that they write and read, and of other values by name.
_ARGUMENTS: Mapping[str, tuple[int, int, dict[str, int]]] = {
    "all_reduce": (0, 0, {}),
    "broadcast": (0, 0, {"root": 2}),
    "reduce": (0, 0, {"root": 3}),
    "all_gather": (0, 1, {}),
    "reduce_scatter": (0, 1, {}),
    "gather": (0, 1, {"root": 3}),
    "scatter": (0, 1, {"root": 3}),
    "all_to_all": (0, 1, {"out_splits": 3, "in_splits": 4}),
    "send": (0, 0, {"peer": 2, "tag": 3}),
    "recv": (0, 0, {"peer": 2, "tag": 3}),
    "barrier": (0, 0, {}),
}
_ARGS = {
    "dtype": "dtype",
    "group": "Process Group Name",
    "ranks": "Process Group Ranks",
    "size": "Group size",
    "start": "Global rank start",
    "stride": "Global rank stride",
    "in_splits": "In split size",
    "out_splits": "Out split size",
    "source": "Src Rank",
    "target": "Dst Rank",
    "seq": "Seq",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
}
_ATTRIBUTES = {
    "dtype": "dtype",
    "group": "pg_name",
    "size": "pg_size",
    "start": "global_rank_start",
    "stride": "global_rank_stride",
    "in_splits": "in_split_size",
    "out_splits": "out_split_size",
    "in_elements": "in_msg_nelems",
    "out_elements": "out_msg_nelems",
}
#: Sizes from here on are damage.
MAX_BYTES = 2**60
_COUNTS = ("size", "start", "stride", "source", "target", "seq", "in_elements", "out_elements")


def kind_of(name: str) -> str:
    """The kind that a name means in any of its spellings; empty if none."""
    plain = re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2])
    return next((kind for start, kind in _KINDS.items() if plain.startswith(start)), "")


def kernel_kind(name: str) -> str | None:
    """Kind of a communication kernel by its name alone, empty if the name does not say; None for other kernels."""
    match = _KERNEL.match(name)
    return kind_of(match["what"]) if match else None


def width_of(dtype: str) -> int:
    """Bytes of an element; 0 if the type is unknown."""
    name = re.sub(r"[\s_]|^c10::|^at::|torch\.", "", dtype.lower()).removeprefix("c10::")
    return 1 if name.startswith(("float8", "float4", "fp8", "fp4")) else _BYTES.get(name, 0)


def facts_of_args(args: Mapping) -> dict:
    """Facts from the arguments of a kernel, or of a ``record_param_comms`` range."""
    return _described(args, _ARGS, str(args.get("Collective name", "")))


def facts_of_host(name: str, args: Mapping) -> dict:
    """Facts from an enclosing host range: its name, shapes, types and scalar inputs."""
    if name == RECORD:
        facts = facts_of_args(args)
        return _sized(args, 0, None) | facts
    values = [_plain(value) for value in _listed(args.get("Concrete Inputs"))]
    return _of_operation(name, {**args, "values": values})


def facts_of_node(name: str, node: Arguments) -> dict:
    """The same of a node of the host's trace."""
    described = {"Input Dims": node.shapes, "Input type": node.types, "values": node.inputs}
    if name != RECORD:
        return _of_operation(name, described)
    values = node.inputs
    facts = _described(node.attributes, _ATTRIBUTES, str(node.attributes.get("collective_name", "")))
    place = next((i for i, v in enumerate(values) if isinstance(v, str) and (kind_of(v) or v in IDLE)), -1)
    if place < 2:
        return facts
    kind = facts.get("kind") or kind_of(values[place])
    if values[place] in IDLE or not kind:
        return {}
    group = values[place - 2]
    group_fact = {"group": group[0]} if isinstance(group, list) and group else {"pointer": group} if group else {}
    tail = dict(zip(("in_splits", "out_splits", "start", "stride", "size"), values[place + 1 :], strict=False))
    return _cleaned({"kind": kind, **_sized(described, 0, None), **group_fact, **tail, **facts})


def _described(attributes: Mapping, keys: Mapping[str, str], collective: str) -> dict:
    facts = {field: attributes[key] for field, key in keys.items() if attributes.get(key) not in (None, "")}
    if kind_of(collective):
        facts["kind"] = kind_of(collective)
    return _cleaned(facts)


def _cleaned(facts: dict) -> dict:
    """Facts with numbers as int, lists as tuples, and elements turned into bytes."""
    for field in _COUNTS:
        if field in facts:
            try:
                facts[field] = int(facts[field])
            except (TypeError, ValueError):
                del facts[field]
    if not -(2**31) <= facts.get("tag", 0) < 2**31:
        del facts["tag"]
    for field in ("in_splits", "out_splits"):
        if field in facts:
            splits, complete = parse_list(facts[field])
            facts[field] = splits if complete else None
            if not splits or min(splits) < 0:
                del facts[field]
    width = width_of(str(facts.get("dtype", "")))
    for way in ("in", "out"):
        elements = facts.pop(f"{way}_elements", None)
        if elements is not None and width and 0 <= elements * width < MAX_BYTES:
            facts[f"{way}_bytes"] = elements * width
    return {key: value for key, value in facts.items() if value is not None}


def _of_operation(name: str, described: Mapping) -> dict:
    span, operation = _SPAN.match(name), _OPERATION.match(name)
    if span:
        kind = kind_of(span["what"])
        return {"span": kind, **_sized(described, 0, None)} if kind else {}
    noun = operation["what"] if operation else ""
    kind = kind_of(noun)
    if not kind:
        return {}
    values = described["values"]
    if "functional" in name:
        texts = [value for value in values if isinstance(value, str) and value and not value.startswith("<")]
        return {"kind": kind, **({"group": texts[-1]} if texts and values[-1] == texts[-1] else {})}
    out, into, others = _ARGUMENTS[kind]
    if kind == "recv" and "any_source" in name:
        others = {"tag": 2}
    facts = {"kind": kind, **_sized(described, into, out)}
    for field, place in others.items():
        value = values[place] if place < len(values) else None
        if field.endswith("splits"):
            facts[field] = value if isinstance(value, list) else None
        elif isinstance(value, int) and not isinstance(value, bool):
            facts[field] = value
    shapes = _listed(described.get("Input Dims"))
    if kind == "all_to_all" and noun.strip("_") == "alltoall" and len(shapes) > 1:
        # A list of tensors, one to each member.
        facts |= {
            "out_splits": [_elements(s) or 0 for s in _listed(shapes[0])],
            "in_splits": [_elements(s) or 0 for s in _listed(shapes[1])],
        }
    return _cleaned(facts)


def _plain(value: object) -> object:
    """A scalar input, given as text, as a number, a list or text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _listed(value: object) -> list:
    return value if isinstance(value, list) else []


def _elements(shape: object) -> int | None:
    """Elements of a shape, or of all shapes in a list; None where none is given."""
    if not isinstance(shape, list) or not shape:
        return None
    if all(isinstance(size, int) for size in shape):
        count = 1
        for size in shape:
            count *= size
        return count
    return _sum([_elements(part) for part in shape])


def _tensor_bytes(value: object) -> int | None:
    """Bytes of a tensor (tensor, storage, offset, elements, bytes of one, device) of the host, or of a list of them."""
    if not isinstance(value, list) or not value:
        return None
    if len(value) == 6 and all(isinstance(part, int) for part in value[:5]) and isinstance(value[5], str):
        return value[3] * value[4]
    return _sum([_tensor_bytes(part) for part in value])


def _sum(numbers: Iterable[int | None]) -> int | None:
    """The sum; None if one is unknown."""
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _sized(described: Mapping, into: int, out: int | None) -> dict:
    """Bytes read and written, by the places of the tensors among the inputs."""
    facts = {}
    shapes, types, values = (_listed(described.get(key)) for key in ("Input Dims", "Input type", "values"))
    for field, place in (("in_bytes", into), ("out_bytes", out)):
        if place is None:
            continue
        size = _tensor_bytes(values[place]) if place < len(values) else None
        if size is None and place < len(shapes):
            kind_text = str(types[place]) if place < len(types) else ""
            width = width_of(re.sub(r"^(GenericList\[)?(Tensor\()?|[\])].*$", "", kind_text.split(",")[0]))
            scalar = shapes[place] == [] and width and "List" not in kind_text
            elements = 1 if scalar else _elements(shapes[place])
            if elements is not None and width:
                size = elements * width
            elif elements is not None:
                facts[field.replace("bytes", "shape")] = elements
            if width:
                facts["width"] = width
        if size is not None and 0 <= size < MAX_BYTES:
            facts[field] = size
    return facts


def merged(sources: Iterable[Mapping]) -> dict:
    """Combined facts of sources, the more trusted first: a field comes from the first source that has it."""
    facts: dict = {}
    for source in sources:
        facts = {**source, **facts}
    # A list of tensors has shapes but no type: another range of the same call has the type of one of them.
    for way in ("in", "out"):
        shape = facts.get(f"{way}_shape")
        if f"{way}_bytes" not in facts and shape is not None and "width" in facts:
            facts[f"{way}_bytes"] = shape * facts["width"]
    return facts


def size_of(facts: Mapping) -> int | None:
    """Number of members of the group of a call, as its buffers or splits show it; None where they do not."""
    if facts.get("in_splits") or facts.get("out_splits"):
        return len(facts.get("in_splits") or facts["out_splits"])
    small, large = sorted((facts.get("in_bytes") or 0, facts.get("out_bytes") or 0))
    return large // small if small and facts.get("kind") in ("all_gather", "reduce_scatter") else None
