"""Reading of the execution traces of the host that `torch.profiler.ExecutionTraceObserver` writes, of every schema."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.json_stream import elements, unheard
from astrasim_py.pytorch.kineto import COMMUNICATION, group_of, integer
from astrasim_py.pytorch.recording import RecordedGroup

LISTED = "nodes"
GROUPS = "## process_group:init ##"


class Arguments(NamedTuple):
    """What a node of communication was called with; tensors are [tensor, storage, offset, elements, bytes, device]."""

    inputs: list
    shapes: list
    types: list
    outputs: list
    attributes: dict  # of schema 1.0.2 and later, by name: collective_name, in_msg_nelems, pg_name …


@dataclass(frozen=True, slots=True, eq=False)
class HostTrace:
    """Nodes in order of their ids, which is the order in which they began."""

    source: str
    schema: str
    process: int  # -1 if unknown
    ids: np.ndarray  # int64, ascending
    parents: np.ndarray  # int32, the row of the caller, always an earlier one; -1 for none
    names: tuple[str, ...]
    name: np.ndarray  # int32, an index of `names`
    record_ids: np.ndarray  # int64, rf_id
    threads: np.ndarray  # int64, tid: numbers of its own, not the system's
    communication: dict[int, Arguments]  # by row, of nodes whose names begin as one of `COMMUNICATION`
    groups: tuple[RecordedGroup, ...]

    def __len__(self) -> int:
        return len(self.ids)


def read_host_trace(source: str, tell: Callable[[float], None] = unheard) -> HostTrace:
    """Read a host's trace of schema 1.0.1 or later; unknown schemas are tried.

    `source`: a JSON file, gzip'd or not, or ``archive!member`` of a tar archive. `tell`: takes the share read.

    Raises TraceError: not readable, not JSON, cut short, no nodes, two of one id.
    """
    schema, process = "", -1
    names: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    communication: dict[int, Arguments] = {}
    groups: list[RecordedGroup] = []
    for key, node in elements(source, LISTED, tell):
        if key == "schema":
            schema = str(node)
        elif key == "pid":
            process = integer(node)
        if key != LISTED:
            continue
        if not isinstance(node, dict) or type(node.get("id")) is not int or not 0 <= node["id"] < 2**63:
            raise TraceError(f"{source}: node {len(rows)}", "has no id", "name a trace of ExecutionTraceObserver")
        name, attributes = str(node.get("name")), _attributes(node)
        parent = node.get("ctrl_deps", node.get("parent"))
        parent = parent[0] if isinstance(parent, list) and parent else parent
        known = [integer(attributes.get(attribute, node.get(attribute))) for attribute in ("rf_id", "tid")]
        if name.startswith(COMMUNICATION):
            communication[node["id"]] = _arguments(node, attributes)
        elif name == GROUPS:
            groups += _groups(_arguments(node, attributes).inputs)
        rows.append((node["id"], integer(parent), names.setdefault(name, len(names)), *known))
    ids, parents, name_codes, record_ids, threads = np.array(sorted(rows), np.int64).reshape(-1, 5).T
    if (twice := np.flatnonzero(ids[1:] == ids[:-1])).size:
        raise TraceError(source, f"has two nodes of id {ids[twice[0]]}", "record it again")
    callers = np.searchsorted(ids, parents).clip(max=max(0, len(ids) - 1))
    exists = (parents < ids) & (ids[callers] == parents) if len(ids) else parents < ids
    order = {int(node): row for row, node in enumerate(ids)} if communication else {}
    return HostTrace(
        source=source,
        schema=schema,
        process=process,
        ids=ids,
        parents=np.where(exists, callers, -1).astype(np.int32),
        names=tuple(names),
        name=name_codes.astype(np.int32),
        record_ids=record_ids,
        threads=threads,
        communication={order[node]: communication[node] for node in sorted(communication)},
        groups=tuple(groups),
    )


def _attributes(node: dict) -> dict:
    """Attributes by name; before schema 1.0.2 they are fields of the node."""
    written = node.get("attrs")
    if not isinstance(written, list):
        return {}
    return {str(a.get("name")): a.get("value") for a in written if isinstance(a, dict)}


def _arguments(node: dict, attributes: dict) -> Arguments:
    def listed(value: object) -> list:
        return value if isinstance(value, list) else []

    inputs, outputs = node.get("inputs"), node.get("outputs")
    if isinstance(inputs, dict):
        parts = [inputs.get(key) for key in ("values", "shapes", "types")]
    else:
        parts = [inputs, node.get("input_shapes"), node.get("input_types")]
    values, shapes, types = map(listed, parts)
    written = listed(outputs.get("values") if isinstance(outputs, dict) else outputs)
    return Arguments(values, shapes, types, written, attributes)


def _groups(inputs: list) -> list[RecordedGroup]:
    """Process groups of the node that lists them, as text of JSON."""
    try:
        entries = json.loads(inputs[0]) if inputs and isinstance(inputs[0], str) else []
    except (ValueError, RecursionError):
        return []
    return [group_of(entry) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
