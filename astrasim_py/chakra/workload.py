"""`Workload`: the traces of all ranks and their communicator groups, which come from a file or from the traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TraceError


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
            check_distinct(ranks, f"group {name}")
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


def check_distinct(ranks: Sequence[int], place: str) -> None:
    """Refuse a group in which a rank is listed twice."""
    if len(set(ranks)) < len(ranks):
        twice = next(rank for rank in ranks if ranks.count(rank) > 1)
        raise TraceError(place, f"rank {twice} is listed twice", "list every rank once")
