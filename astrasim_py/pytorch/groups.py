"""Communicator groups of a recording: names, and members as global ranks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.recording import MAX_RANKS, RecordedGroup

#: Most ranks of all groups together.
MAX_MEMBERS = 2**22


@dataclass(frozen=True)
class Communicator:
    """A communicator of one rank. `name`: as recorded, empty if unknown; `members`: None if unknown."""

    name: str
    members: tuple[int, ...] | None


def parse_list(text: object) -> tuple[tuple[int, ...], bool]:
    """Whole numbers of a list that may be text and may be cut (``[0, 1, ..., 63]``), and whether it is whole."""
    if isinstance(text, str):
        words = [word.strip() for word in text.strip().strip("[]()").split(",")]
    else:
        words = list(text) if isinstance(text, Sequence) else []
    words = [word for word in words if word != ""]
    try:
        numbers = tuple(int(word) for word in words if word != "...")
    except (TypeError, ValueError):
        return (), False
    return numbers, "..." not in words


def _open_end(ranks: object) -> bool:
    """Whether a list of ranks is cut at its end (``[0, 1, ...]``)."""
    words = ranks.strip().strip("[]()").split(",") if isinstance(ranks, str) else ranks
    return bool(words) and isinstance(words, Sequence) and str(words[-1]).strip() == "..."


def arithmetic(start: int, stride: int, size: int) -> tuple[int, ...]:
    """`size` ranks from `start`; empty where they make no group of at most `MAX_RANKS` ranks."""
    fits = size > 0 and stride > 0 and start >= 0 and start + stride * (size - 1) < MAX_RANKS
    return tuple(range(start, start + stride * size, stride)) if fits else ()


class GroupTable:
    """Groups of a recording, by name.

    `world`: number of ranks, where it is known. `declared`: of the header and of the host's trace. `source`: name of
    the recording, for errors. Raises TraceError, here and in `find`: groups of more than `MAX_MEMBERS` ranks in all.
    """

    def __init__(self, world: int | None, declared: Iterable[RecordedGroup], source: str = "process groups") -> None:
        self.source = source
        self._distinct: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._ranks = 0
        self.world = world if world and 0 < world <= MAX_RANKS else None
        self.declared: dict[str, tuple[int, ...] | None] = {}
        self._others: dict[str, list[tuple[int, ...]]] = {}  # members of further groups of the same name
        self._found: dict[tuple, Communicator] = {}
        self.assumed = False  # whether a group of unknown size was taken for all ranks
        for name, _, size, ranks in declared:
            if self.world and not ranks and size in (self.world, 0, -1):
                members: tuple[int, ...] | None = tuple(range(self.world))
            else:
                members = self._members(ranks, max(size, 0) or None, None, None)
            known = self.declared.get(name)
            if known is None:
                self.declared[name] = None if members is None else self._once(members)
            elif members is not None and members != known:
                self._others.setdefault(name, []).append(self._once(members))

    def find(self, facts: Mapping) -> Communicator:
        """The group of a call: by `group` (name), `ranks`, `size`, `start` and `stride`, as far as it has them."""
        fields = ("group", "pointer", "ranks", "size", "start", "stride")
        key = tuple(str(facts.get(field)) for field in fields)
        if key not in self._found:
            self._found[key] = self._find(facts)
        return self._found[key]

    def of_size(self, names: Iterable[str], size: int | None) -> list[str]:
        """Those of some declared groups that have `size` members, sorted; all of them if it is None."""
        return sorted(n for n in names if (members := self.declared.get(n)) and size in (None, len(members)))

    def _find(self, facts: Mapping) -> Communicator:
        name = str(facts.get("group", ""))
        size = facts.get("size")
        shown, complete = parse_list(facts.get("ranks", ()))
        members = None if complete else self._declared(name, size, shown)
        if members is None:
            ranks = self._members(facts.get("ranks", ()), size, facts.get("start"), facts.get("stride"))
            members = self._once(ranks) if ranks else self._declared(name, size, ())
        if members is None and self.world and size in (None, self.world) and not self.declared:
            members, self.assumed = self._once(tuple(range(self.world))), self.assumed or size is None
        if members is None and not name:
            alike = self.of_size(self.declared, size)
            if len(alike) == 1:
                name, members = alike[0], self.declared[alike[0]]
        return Communicator(name or (f"pointer {facts['pointer']}" if facts.get("pointer") else ""), members)

    def _declared(self, name: str, size: object, shown: tuple[int, ...]) -> tuple[int, ...] | None:
        """The only declared group of a name that has a size, as far as it is known, and ranks among its members."""
        alike = [members for members in (self.declared.get(name), *self._others.get(name, ())) if members is not None]
        sized = [members for members in alike if size in (None, len(members)) and {*members}.issuperset(shown)]
        return sized[0] if len(sized) == 1 else alike[0] if len(alike) == 1 and not shown else None

    def _once(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """The same members, held once however many groups have them."""
        if members in self._distinct:
            return self._distinct[members]
        self._ranks += len(members)
        if self._ranks > MAX_MEMBERS:
            raise TraceError(self.source, f"has groups of more than {MAX_MEMBERS} ranks in all", "leave some out")
        return self._distinct.setdefault(members, members)

    def _members(self, ranks: object, size: object, start: object, stride: object) -> tuple[int, ...] | None:
        shown, complete = parse_list(ranks)
        fits = len(set(shown)) == len(shown) and min(shown, default=0) >= 0 and max(shown, default=0) < MAX_RANKS
        shown = shown if fits else ()
        if shown and complete:
            return shown if size in (None, len(shown)) else None
        size = size if isinstance(size, int) else self.world if start == 0 and stride == 1 else None
        if size is None:
            return None
        if size == self.world and not shown:
            return tuple(range(size))
        open_end = _open_end(ranks)
        if not (isinstance(start, int) and isinstance(stride, int)) and len(shown) > 2 - open_end:
            start, stride = shown[0], shown[1] - shown[0]
        if not (isinstance(start, int) and isinstance(stride, int)):
            return None
        members = arithmetic(start, stride, size)
        first, last = (shown, ()) if open_end else (shown[:-1], shown[-1:])
        agrees = not shown or (members[: len(first)] == first and members[-1:][: len(last)] == last)
        return members if members and agrees else None


def numbered(groups: Iterable[tuple[str, tuple[int, ...]]], world: int) -> dict[tuple[str, tuple[int, ...]], str]:
    """Decimal names for groups, each given by its recorded name and its members.

    A decimal name is kept if it is free; ``"0"`` is the world. Others get the next free number.
    """
    groups = list(dict.fromkeys(groups))
    everyone = tuple(range(world))
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    taken = {"0"}
    worlds = [group for group in groups if group[1] == everyone]
    if worlds:
        names[min(worlds, key=lambda group: (group[0] != "0", groups.index(group)))] = "0"
    for group in groups:
        decimal = re.fullmatch(r"0|[1-9][0-9]{0,8}", group[0])
        if decimal and group not in names and group[0] not in taken:
            names[group] = group[0]
            taken.add(group[0])
    free = 1
    for group in groups:
        if group not in names:
            while str(free) in taken:
                free += 1
            names[group] = str(free)
            taken.add(str(free))
    return names
