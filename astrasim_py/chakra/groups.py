"""Communicator groups: their files, those that traces declare, and the names that nodes call them by."""

import json
import os
from collections.abc import Mapping, Sequence

import numpy as np

from astrasim_py.chakra.attributes import values_of
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import check_distinct
from astrasim_py.core.errors import TraceError
from astrasim_py.core.exact_json import json_bytes, unique_keys
from astrasim_py.core.files import read_regular

#: Largest communicator-group file that is read, bytes.
MAX_GROUP_FILE = 64 * 2**20


def groups_json(groups: Mapping[str, Sequence[int]]) -> bytes:
    """The file of communicator groups; `groups_from_json` reads it."""
    return json_bytes({name: list(ranks) for name, ranks in groups.items()})


def groups_from_json(path: str | os.PathLike) -> dict[str, tuple[int, ...]]:
    """Read communicator groups from JSON: an object of group id to list of ranks.

    Raises TraceError: a file that cannot be read or is not of that form.
    """
    place = os.fspath(path)
    remedy = 'write {"1": [0, 1], "2": [2, 3]}'
    data = read_regular(place, MAX_GROUP_FILE, TraceError, what="a JSON file", remedy=remedy)
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=unique_keys)
    except RecursionError:
        raise TraceError(place, "is not JSON: too deeply nested", remedy) from None
    except ValueError as error:
        raise TraceError(place, f"is not JSON: {error}", remedy) from None
    if not isinstance(value, dict):
        raise TraceError(place, f"holds a {type(value).__name__}, not an object of groups", remedy)
    for name, ranks in value.items():
        if not isinstance(ranks, list) or any(type(rank) is not int or rank < 0 for rank in ranks):
            raise TraceError(f"{place}: {name}", "is not a list of ranks (whole numbers from 0)", remedy)
        check_distinct(ranks, f"{place}: {name}")
    return {name: tuple(ranks) for name, ranks in value.items()}


def groups_from_metadata(trace: ExecutionTrace) -> dict[str, tuple[int, ...]]:
    """Communicator groups that a METADATA node of the trace declares.

    PyTorch's converter puts a JSON list of ``{"pg_name": …, "ranks": […]}`` into the input values of such a node,
    wrapped in two characters at either end. Anything else in it declares no group. An empty tuple means all ranks.
    """
    groups: dict[str, tuple[int, ...]] = {}
    for row in np.flatnonzero(trace.type == NodeType.METADATA).tolist():
        values = trace.node(row).inputs.values
        for text in (values[2:-2], values):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, list):
                break
        else:
            continue
        for entry in value:
            if not isinstance(entry, dict) or "pg_name" not in entry:
                continue
            ranks = entry.get("ranks", [])
            if isinstance(ranks, list) and all(type(rank) is int and rank >= 0 for rank in ranks):
                groups[str(entry["pg_name"])] = tuple(ranks)
    return groups


#: Attributes by which producers name the group of a collective in place of ``pg_name``, a number or text; and others
#: that do, or describe it in words of their own.
_NAMES = ("comm_group", "comm_groups", "comm_group_id", "comm_group_name")
_WORDS = ("process_group", "process_group_name", "pg_id", "group_name", "group_id", "communicator")
OTHER_NAMES = (*_NAMES, *_WORDS)


def called_otherwise(trace: ExecutionTrace) -> list[tuple[int, str, str | None]]:
    """Collectives that name a group by one of `OTHER_NAMES`: row, attribute, and group; None for what is no name."""
    if trace.raw is None or not any(name.encode() in trace.raw.data for name in OTHER_NAMES):
        return []
    calls = np.flatnonzero(trace.type == NodeType.COMM_COLL)
    return [
        (row, name, _as_name(value))
        for row, values in values_of(trace.raw, calls, OTHER_NAMES)
        for name, value in values
        if value is not None
    ]


def _as_name(value: object) -> str | None:
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    return str(int(value)) if isinstance(value, int) else value if isinstance(value, str) else None


def named(trace: ExecutionTrace, groups: Mapping[str, Sequence[int]]) -> ExecutionTrace:
    """The trace with the groups that nodes name by `OTHER_NAMES` in ``pg_name``, where that is absent.

    Of an attribute that may be a description the groups that are listed count. Raises TraceError: a node that names two
    groups of unequal members; a value that is no name.
    """
    mentions = called_otherwise(trace)
    if not mentions:
        return trace
    codes, names = trace.group_of()
    now = [names[code] if code >= 0 else None for code in codes.tolist()]
    source: dict[int, str] = {}
    listed = groups.keys() | {"0"}
    for row, attribute, group in mentions:
        place, label = f"{trace.place}: node {int(trace.node_id[row])}", now[row]
        if attribute in _WORDS and group not in listed:
            continue
        if group is None:
            raise TraceError(place, f"its {attribute} is no name of a group", 'write pg_name: "1"')
        if not label:
            now[row], source[row] = group, attribute
        elif label != group and {label, group} <= listed and groups.get(label) != groups.get(group):
            problem = f'is of group "{label}" by its {source.get(row, "pg_name")}, and of "{group}" by its {attribute}'
            raise TraceError(place, problem, "keep the one that it is of")
    return trace.replace(pg_name=now)
