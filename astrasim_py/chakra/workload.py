"""`Workload`: the traces of all ranks, in the units that they were written in, and their communicator groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TraceError
from astrasim_py.core.shown import Shown


def check_distinct(ranks: Sequence[int], place: str) -> None:
    """Raise if a rank is listed twice."""
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise TraceError(place, f"rank {twice} is listed twice", "list every rank once")


def kind_of(traces: Sequence[ExecutionTrace]) -> str:
    """``"data+ctrl"`` of a set without any data dependency, whose control dependencies order it; else ``"data"``."""
    distinct = dict.fromkeys(traces)
    if any(len(trace.data_deps.ids) for trace in distinct):
        return "data"
    return "data+ctrl" if any(len(trace.ctrl_deps.ids) for trace in distinct) else "data"


@dataclass(frozen=True, repr=False)
class Workload(Shown):
    """The traces of all ranks and their communicator groups.

    Attributes
    ----------
    traces : tuple of ExecutionTrace
        Index is the rank. Ranks with traces that are equal but for groups and peers may share one object.
    groups : mapping of str to tuple of int
        Ranks of each group, in its own order; an empty tuple means all ranks. No group name, ``""`` and
        ``"0"`` always mean all ranks.
    roles : mapping of str to sequence of (str or None)
        Role → the group of each rank, None for ranks without one. If a trace names a role in place of a group, each
        rank uses its own group.
    shifts : sequence of int
        By rank, what is added to the `comm_src` and `comm_dst` of its trace; all 0 by default.

    Raises
    ------
    TraceError
        A group with a rank twice or beyond the last one; a role with the name of a group; a role that gives a rank
        an unknown group or one without that rank; roles or shifts of another number of ranks.
    """

    traces: tuple[ExecutionTrace, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    name: str = ""
    roles: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    shifts: Sequence[int] = ()

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
            check_distinct(ranks, f"group {name}")
            groups[str(name)] = ranks
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "shifts", tuple(self.shifts) or (0,) * self.ranks)
        object.__setattr__(self, "roles", {name: tuple(use) for name, use in self.roles.items()})
        lengths = {"shifts": len(self.shifts)} | {f"role {name}": len(use) for name, use in self.roles.items()}
        for label, length in lengths.items():
            if length != self.ranks:
                raise TraceError(label, f"has {length} values for {self.ranks} ranks", "write one for every rank")
        members = {name: frozenset(self.members(name)) for name in ("", "0", *groups)}
        for name, use in self.roles.items():
            if name in members or name == "world":
                raise TraceError(f"role {name}", "is also the name of a group", "give it a name of its own")
            for rank, group in enumerate(use):
                if group is not None and rank not in members.get(group, ()):
                    wrong = "is not one of its members" if group in members else "there is no such group"
                    raise TraceError(
                        f"role {name}", f'gives rank {rank} the group "{group}", and {wrong}', "write its own group"
                    )

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        return self.name or "unnamed", {
            "ranks": self.ranks,
            "nodes": sum(map(len, self.traces)),
            "groups": len(self.groups),
        }

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.traces)

    @cached_property
    def dependencies(self) -> str:
        """Those that order its nodes where nobody says others: ``"data"``, or ``"data+ctrl"`` of one without data
        dependencies.
        """
        return kind_of(self.traces)

    def members(self, group: str | None) -> tuple[int, ...]:
        """Ranks of a group in its order; raises TraceError if there is none of that name."""
        if not group or group == "0":
            return tuple(range(len(self.traces)))
        if group not in self.groups:
            names = ", ".join(sorted(self.groups)[:8])
            raise TraceError(
                f"group {group}",
                f"no communicator group is called {group!r}" + (f" (there are {names})" if names else ""),
                "give the communicator groups as a JSON file {name: [ranks]}",
            )
        return self.groups[group] or tuple(range(len(self.traces)))

    def group(self, name: str, rank: int) -> str:
        """The group that a rank calls by a name in its trace: of a role its own, else the one of that name.

        Raises TraceError: the rank has no group in that role.
        """
        group = self.roles[name][rank] if name in self.roles else name
        if group is None:
            raise TraceError(f"role {name}", f"gives rank {rank} no group, but its trace uses one", "write its group")
        return group

    def trace(self, rank: int) -> ExecutionTrace:
        """A rank's own trace, with groups in place of roles, and its own peers.

        Raises TraceError: the rank has no group in a role that its trace names.
        """
        trace, shift = self.traces[rank], self.shifts[rank]
        codes, names = trace.group_of()
        columns: dict[str, Any] = {
            name: np.where(trace.column(name) == MISSING, MISSING, trace.column(name) + shift)
            for name in ("comm_src", "comm_dst")
            if shift and trace.has_column(name)
        }
        if not self.roles.keys().isdisjoint(names):
            used = np.bincount(codes[codes >= 0], minlength=len(names)) > 0
            used_names = [self.group(name, rank) if use else "" for name, use in zip(names, used.tolist(), strict=True)]
            distinct = {name: code for code, name in enumerate(dict.fromkeys(used_names))}
            number = np.array([*(distinct[name] for name in used_names), -1], dtype=np.int32)
            columns["pg_name"] = number[codes], tuple(distinct)
        return trace.replace(rank=rank, **columns) if columns else trace

    def digest(self) -> str:
        """SHA-256 over traces, groups, and roles and shifts if there are any; the name does not count."""
        value: dict[str, object] = {"traces": [trace.digest() for trace in self.traces], "groups": self.groups}
        if self.roles or any(self.shifts):
            value |= {"roles": self.roles, "shifts": self.shifts}
        return digest(value)
