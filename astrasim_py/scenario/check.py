"""Checks of one job against its topology: names, ranks, groups, algorithms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from astrasim_py.core.document import Value
from astrasim_py.core.errors import AstraError, InternalError, ScenarioError
from astrasim_py.core.fields import FileText, did_you_mean
from astrasim_py.scenario.algorithm_models import AlgorithmByDimension, AlgorithmSynthesis, Builder
from astrasim_py.scenario.workload_models import (
    BarrierItem,
    CollectiveItem,
    ComputeItem,
    MemoryItem,
    Partition,
    RootedItem,
    SendItem,
    TraceWorkload,
)


def confined(name: FileText, folder: Path, place: str, allow_outside: bool) -> Path:
    """The path of a file that a scenario names: below its folder, links followed.

    Only a field of type `FileName` or `CodeName` can be opened so: `named_files` finds it, and a change of the file
    makes results stale.

    Raises ScenarioError: it leads elsewhere, and that is not allowed.
    """
    if not isinstance(name, FileText):
        raise InternalError(f"{place}: the field is not declared as a file")
    name = name.file
    path = folder / name
    if allow_outside:
        return path
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        inside = False
    if Path(name).is_absolute() or not inside:
        raise ScenarioError(
            place,
            f'"{name}" leads out of the folder of the scenario',
            "move it below that folder, or run with --allow-outside",
        )
    return path


def split_code(text: str, place: str) -> tuple[str, str]:
    """``file.py:name`` as a pair.

    Raises ScenarioError.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ScenarioError(place, f'"{text}" does not name a function in a file', "write e.g. mine.py:function")
    return file, name


class JobCheck:
    """Checks one job: workload, groups, algorithms and stragglers against each other.

    `job`: with attributes ``workload``, ``groups``, ``algorithms``, ``stragglers``. `value`: the same as written, for
    places. `ranks`: number of ranks, if known.
    """

    def __init__(self, job, value: Mapping[str, Value | None], ranks: int | None) -> None:
        self.job, self.value, self.ranks = job, value, ranks

    def place(self, *keys: str | int) -> str:
        """The place of a value, or of the nearest one above it."""
        here = self.value.get(str(keys[0]))
        for key in keys[1:]:
            below = here.get(key) if here is not None else None
            if below is None:
                break
            here = below
        return here.place if here is not None else str(keys[0])

    def errors(self) -> Iterator[AstraError]:
        """Everything that is wrong."""
        if self.job.workload is not None and not isinstance(self.job.workload, TraceWorkload):
            yield from self._items()
        yield from self._groups()
        yield from self._stragglers()
        yield from self._algorithms()

    def _outside(self, ranks: Sequence[int], *keys: str | int) -> Iterator[AstraError]:
        if self.ranks is None:
            return
        for rank in ranks:
            if rank >= self.ranks:
                problem = f"rank {rank} does not exist: there are {self.ranks}"
                yield ScenarioError(self.place(*keys), problem, f"write 0 to {self.ranks - 1}")
                return

    def _items(self) -> Iterator[AstraError]:
        names: dict[str, int] = {}
        for number, item in enumerate(self.job.workload):
            kind, body = item.kind, item.body
            at = ("workload", number, kind)
            for wanted in body.after or ():
                if wanted not in names:
                    later = any(i.body.name == wanted for i in self.job.workload[number:])
                    problem = f'"{wanted}" does not come before this item' if later else f'no item is called "{wanted}"'
                    remedy = "name an earlier item" if later or not names else did_you_mean(wanted, names)
                    yield ScenarioError(self.place(*at, "after"), problem, remedy)
            if body.name is not None:
                if body.name in names:
                    problem = f'"{body.name}" is the name of workload[{names[body.name]}] too'
                    yield ScenarioError(self.place(*at, "name"), problem, "choose another name")
                names[body.name] = number
            if isinstance(body, CollectiveItem | BarrierItem):
                yield from self._group_of(body, at)
            if isinstance(body, ComputeItem | MemoryItem) and body.ranks is not None:
                yield from self._outside(body.ranks, *at, "ranks")
            if isinstance(body, SendItem):
                yield from self._outside((body.source,), *at, "from")
                yield from self._outside((body.to,), *at, "to")

    def _group_of(self, body, at: tuple[str | int, ...]) -> Iterator[AstraError]:
        size = self.ranks
        if isinstance(body.group, tuple):
            yield from self._outside(body.group, *at, "group")
            size = len(body.group)
        elif body.group is not None and body.group != "world":
            if body.group not in self.job.groups:
                problem = f'no group is called "{body.group}"'
                known = (*self.job.groups, "world")
                yield ScenarioError(self.place(*at, "group"), problem, did_you_mean(body.group, known))
                return
            sizes = self._sizes(self.job.groups[body.group])
            size = min(sizes) if sizes else None
        if isinstance(body, RootedItem) and size is not None and body.root >= size:
            problem = f"{body.root} is not a position in a group of {size}"
            yield ScenarioError(self.place(*at, "root"), problem, f"write 0 to {size - 1}")

    def _sizes(self, group) -> list[int]:
        if isinstance(group, Partition):
            return [group.size]
        return [len(members) for members in group] if group and isinstance(group[0], tuple) else [len(group)]

    def _groups(self) -> Iterator[AstraError]:
        for name, group in self.job.groups.items():
            if name == "world":
                yield ScenarioError(
                    self.place("groups", name), '"world" is the group of all ranks', "choose another name"
                )
            if isinstance(group, Partition):
                block = group.size * group.stride
                if self.ranks is not None and self.ranks % block:
                    problem = f"size {group.size} x stride {group.stride} does not divide {self.ranks} ranks"
                    yield ScenarioError(self.place("groups", name), problem, "choose a divisor, or list the ranks")
            elif group and isinstance(group[0], tuple):
                for i, members in enumerate(group):
                    yield from self._outside(members, "groups", name, i)
            else:
                yield from self._outside(group, "groups", name)

    def _stragglers(self) -> Iterator[AstraError]:
        for key in ("compute_speed", "start_delay"):
            yield from self._outside(tuple(getattr(self.job.stragglers, key)), "stragglers", key)

    def _algorithms(self) -> Iterator[AstraError]:
        for collective, cases in self.job.algorithms.items():
            value = self.value.get("algorithms")
            listed = value is not None and isinstance(getattr(value.get(collective), "data", None), list)
            for number, case in enumerate(cases):
                at = ("algorithms", collective, number) if listed else ("algorithms", collective)
                yield from self._algorithm(collective, case, at)
                if case.when is not None:
                    yield from self._when(case.when, at)
                elif number + 1 < len(cases):
                    problem = "a case without `when` always applies, so the cases after it never do"
                    yield ScenarioError(self.place(*at), problem, "put it last")

    def _when(self, when, at: tuple[str | int, ...]) -> Iterator[AstraError]:
        known = (*self.job.groups, "world")
        if when.group not in (None, *known) and not isinstance(self.job.workload, TraceWorkload):
            problem = f'no group is called "{when.group}"'
            yield ScenarioError(self.place(*at, "when", "group"), problem, did_you_mean(when.group, known))

    def _algorithm(self, collective: str, case, at: tuple[str | int, ...]) -> Iterator[AstraError]:
        if isinstance(case, AlgorithmSynthesis) and collective in ("barrier", "custom"):
            remedy = (
                "write builder: NAME" if collective == "barrier" else "write file: FILE, or python: FILE.py:FUNCTION"
            )
            yield ScenarioError(self.place(*at, "synthesize"), f"a {collective} cannot be synthesized", remedy)
        if isinstance(case, AlgorithmByDimension):
            from astrasim_py.system.dimension_planner import PLANNED

            if collective not in PLANNED:
                remedy = f"only {', '.join(PLANNED)} go by dimension: write builder: NAME"
                yield ScenarioError(self.place(*at, "dims"), f"a {collective} is not cut by dimension", remedy)
                return
            for number, builder in enumerate(case.dims):
                yield from self._builder(None, builder, (*at, "dims", number))
        if isinstance(case, Builder):
            yield from self._builder(collective, case, at)

    def _builder(self, collective: str | None, case: Builder, at: tuple[str | int, ...]) -> Iterator[AstraError]:
        """A builder that does not exist, has no `collective` (None: which is not known yet), or has no such option."""
        from astrasim_py.builders.registry import ALGORITHMS, options_of
        from astrasim_py.core.registry import names

        place = self.place(*at, "builder")
        if case.builder in names("algorithm"):
            return
        if case.builder not in ALGORITHMS:
            able = [name for name, (served, _) in ALGORITHMS.items() if collective is None or collective in served]
            remedy = did_you_mean(case.builder, (*(able or ALGORITHMS), *names("algorithm")))
            yield ScenarioError(place, f'"{case.builder}" is not a builder', remedy)
            return
        if collective is not None and collective not in ALGORITHMS[case.builder][0]:
            able = [name for name, (served, _) in ALGORITHMS.items() if collective in served]
            remedy = f"use one of {', '.join(able)}" if able else "write file: FILE, or python: FILE.py:FUNCTION"
            yield ScenarioError(place, f"{case.builder} has no {collective}", remedy)
        known = [option for option in options_of(case.builder) if option != "root"]
        for option in case.options:
            if option not in known:
                remedy = did_you_mean(option, known) if known else f"{case.builder} has no options"
                yield ScenarioError(self.place(*at, option), f"{case.builder} has no option {option}", remedy)
