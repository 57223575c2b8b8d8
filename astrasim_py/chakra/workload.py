"""`Workload`: the traces of all ranks and their communicator groups, which come from a file or from the traces."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TraceError
from astrasim_py.core.files import read_regular

#: Largest communicator-group file that is read, bytes.
MAX_GROUP_FILE = 64 * 2**20


@dataclass(frozen=True)
class Workload:
    """The traces of all ranks and their communicator groups.

    Attributes
    ----------
    traces : tuple of ExecutionTrace
        Index is the rank. Ranks with identical traces may share one object.
    groups : mapping of str to tuple of int
        Ranks of each group, in its own order; an empty tuple means all ranks. No group name, ``""`` and
        ``"0"`` always mean all ranks.
    name : str

    Raises
    ------
    TraceError
        A group with a rank twice or beyond the last one.
    """

    traces: tuple[ExecutionTrace, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "traces", tuple(self.traces))
        groups = {}
        for name, ranks in self.groups.items():
            ranks = tuple(int(rank) for rank in ranks)
            for rank in ranks:
                if not 0 <= rank < len(self.traces):
                    raise TraceError(
                        f"group {name}",
                        f"rank {rank} is not one of the {len(self.traces)} ranks of the workload",
                        f"list ranks 0..{len(self.traces) - 1}",
                    )
            if len(set(ranks)) < len(ranks):
                twice = next(rank for rank in ranks if ranks.count(rank) > 1)
                raise TraceError(f"group {name}", f"rank {twice} is listed twice", "list every rank once")
            groups[str(name)] = ranks
        object.__setattr__(self, "groups", groups)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.traces)

    def members(self, group: str | None) -> tuple[int, ...]:
        """Ranks of a group in its order.

        Raises
        ------
        TraceError
            No group of that name.
        """
        if group in (None, "", "0"):
            return tuple(range(len(self.traces)))
        if group not in self.groups:
            known = ", ".join(sorted(self.groups)[:8])
            raise TraceError(
                f"group {group}",
                f"no communicator group is called {group!r}" + (f" (there are {known})" if known else ""),
                "give the communicator groups as a JSON file {name: [ranks]}",
            )
        return self.groups[group] or tuple(range(len(self.traces)))

    def digest(self) -> str:
        """SHA-256 over traces and groups; the name does not count."""
        return digest({"traces": [trace.digest() for trace in self.traces], "groups": self.groups})


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict:
    out = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f'key "{key}" is there twice')
        out[key] = value
    return out


def groups_from_json(path: str | os.PathLike) -> dict[str, tuple[int, ...]]:
    """Read communicator groups from JSON: an object of group id to list of ranks.

    Raises
    ------
    TraceError
        A file that cannot be read or is not of that form.
    """
    place = os.fspath(path)
    remedy = 'write {"1": [0, 1], "2": [2, 3]}'
    data = read_regular(path, MAX_GROUP_FILE, TraceError, what="a JSON file", remedy=remedy)
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        text = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        raise TraceError(place, f"is not JSON: {text}", remedy) from None
    if not isinstance(value, dict):
        raise TraceError(place, f"holds a {type(value).__name__}, not an object of groups", remedy)
    groups = {}
    for name, ranks in value.items():
        if not isinstance(ranks, list) or any(type(rank) is not int or rank < 0 for rank in ranks):
            raise TraceError(f"{place}: {name}", "is not a list of ranks (whole numbers from 0)", remedy)
        if len(set(ranks)) < len(ranks):
            twice = next(rank for rank in ranks if ranks.count(rank) > 1)
            raise TraceError(f"{place}: {name}", f"rank {twice} is listed twice", "list every rank once")
        groups[name] = tuple(ranks)
    return groups


def groups_from_metadata(trace: ExecutionTrace) -> dict[str, tuple[int, ...]]:
    """Communicator groups that a METADATA node of the trace declares.

    PyTorch's converter puts a JSON list of ``{"pg_name": …, "ranks": […]}`` into the input values of such a
    node, wrapped in two characters at either end. Anything else in a METADATA node declares no group.

    Returns
    -------
    dict of str to tuple of int
        An empty tuple means all ranks.
    """
    groups: dict[str, tuple[int, ...]] = {}
    for row in np.flatnonzero(trace.type == NodeType.METADATA).tolist():
        inputs = trace.node(row).inputs
        if inputs is None or not inputs.values:
            continue
        for text in (inputs.values[2:-2], inputs.values):
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
