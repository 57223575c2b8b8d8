"""Classes of collective calls, and the algorithms that may carry each of them out."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from astrasim_py.builders.registry import ALGORITHMS, BUILDERS, IN_NETWORK, build, default_algorithm, options_of
from astrasim_py.builders.switch_trees import reached
from astrasim_py.collectives.collective import COLLECTIVES
from astrasim_py.core.errors import AstraError
from astrasim_py.core.units import format_size
from astrasim_py.optimizer.choices import Choice, holder
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.plan import Instance, Plan
from astrasim_py.system.programs import COLLECTIVE
from astrasim_py.topology.grid import group_dims, nodes_of

#: Calls of one class differ in size by this factor at most.
_ALIKE = 4
#: Numbers of pieces that are tried, and of messages that may be in flight.
_PIECES, _WINDOWS = (2, 4, 8), (1, 2, 4)
#: Part of the moves to an algorithm that goes to a likely one, and that is for all calls; most other exceptions.
_TO_LIKELY, _TO_ALL, _EXCEPTIONS = 0.8, 0.6, 3
#: Largest group for builders of which every member sends to every other one.
_MOST_DIRECT = 256


@dataclass(frozen=True, kw_only=True)
class CallClass:
    """Calls of one collective in groups of one role and number of ranks, of sizes above `over` up to `upto` bytes.

    None: without limit. `npus`: of the group with the largest call, of `size` bytes (full buffer). `total`: bytes of
    all calls. `nodes`: their ids in traces, ascending.
    """

    job: str
    collective: str
    role: str
    ranks: int
    over: int | None
    upto: int | None
    npus: tuple[int, ...]
    group: str
    size: int
    root: int
    total: int
    nodes: tuple[int, ...]

    @property
    def name(self) -> str:
        parts = [self.collective, *([f"of {self.role}"] if self.role else []), f"over {self.ranks} ranks"]
        limits = [f"above {format_size(self.over)}"] if self.over is not None else []
        limits += [f"up to {format_size(self.upto)}"] if self.upto is not None else []
        return " ".join([*([f"{self.job}:"] if self.job else []), *parts, *limits])

    def holds(self, instance: Instance, names: Sequence[str]) -> bool:
        """Whether a call is of this class. `names`: of the jobs of its plan, as `Choice.job` says."""
        key = names[instance.job], instance.type, role_of(instance.group), len(instance.members)
        if key != (self.job, self.collective, self.role, self.ranks):
            return False
        return (self.over is None or instance.size > self.over) and (self.upto is None or instance.size <= self.upto)

    def when(self) -> dict[str, str]:
        """The condition under which a case of a scenario is for these calls."""
        limits = [f"> {self.over} B"] if self.over is not None else []
        limits += [f"<= {self.upto} B"] if self.upto is not None else []
        condition = {"size": " and ".join(limits), "ranks": f"== {self.ranks}", "group": self.role}
        return {key: text for key, text in condition.items() if text}


def classes_of(plan: Plan, names: Sequence[str]) -> list[CallClass]:
    """The classes of the calls of a plan, those with most bytes first. `names`: of its jobs, as `Choice.job` says."""
    kinds: dict[tuple, list] = {}
    counts = np.bincount(plan.instances.which, minlength=len(plan.instances.values)).tolist()
    for instance, count, nodes in zip(plan.instances.values, counts, _nodes_of(plan), strict=True):
        if len(instance.members) > 1:
            key = instance.job, instance.type, role_of(instance.group), len(instance.members)
            kinds.setdefault(key, []).append((instance.size, count, instance, nodes))
    classes = []
    for (job, collective, role, ranks), calls in kinds.items():
        ends: list[list[int]] = []
        for size in sorted({size for size, *_ in calls}):
            if ends and size <= _ALIKE * max(ends[-1][0], 1):
                ends[-1].append(size)
            else:
                ends.append([size])
        for place, sizes in enumerate(ends):
            alike = [call for call in calls if sizes[0] <= call[0] <= sizes[-1]]
            size, _, largest, _ = max(alike, key=lambda call: call[0])
            classes.append(
                CallClass(
                    job=names[job],
                    collective=collective,
                    role=role,
                    ranks=ranks,
                    over=ends[place - 1][-1] if place else None,
                    upto=sizes[-1] if place + 1 < len(ends) else None,
                    npus=tuple(plan.npu_of[rank] for rank in largest.members),
                    group=largest.group,
                    size=size,
                    root=largest.root,
                    total=sum(size * count for size, count, *_ in alike),
                    nodes=tuple(sorted(set().union(*(nodes for *_, nodes in alike)))),
                )
            )
    return sorted(classes, key=lambda calls: -calls.total)


def _nodes_of(plan: Plan) -> list[set[int]]:
    """By distinct instance of a plan, the ids of the nodes that call it, as the first rank with each trace does."""
    nodes_by_instance: list[set[int]] = [set() for _ in plan.instances.values]
    ranks = {plan.trace(rank, -1): rank for rank in reversed(range(plan.npu_ranks))}
    for program in map(plan.workload.__getitem__, ranks.values()):
        rows = np.flatnonzero(program.structure.kind == COLLECTIVE)
        places = plan.instances.which[program.instance[rows]].tolist()
        for place, node in zip(places, program.node_id[rows].tolist(), strict=True):
            nodes_by_instance[place].add(node)
    return nodes_by_instance


def role_of(group: str) -> str:
    """The name that groups of one kind share, as a condition can say it; empty where it cannot, and for all ranks."""
    name = re.sub(r"\.\d+$", "", group)
    return name if name != "world" and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", name) else ""


@dataclass(frozen=True, slots=True)
class AlgorithmCase:
    """An algorithm as a scenario writes it, hashable as values of choices are. `text`: JSON of its keys."""

    text: str

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> "AlgorithmCase":
        """The case of these keys, which are plain values."""
        return cls(json.dumps(keys))

    @property
    def keys(self) -> dict[str, Any]:
        """``builder`` and its options, ``file``, …, and ``when``."""
        return json.loads(self.text)


#: Algorithms of a class of calls: the first of which the condition holds; none: as in the scenario.
Cases = tuple[AlgorithmCase, ...]


@dataclass(frozen=True, kw_only=True)
class AlgorithmChoice(Choice):
    """The algorithm of a class of calls. Values are `Cases`: those before the last are for a group or for some of the
    nodes, and the last without a condition; the first value is none, for what the scenario says."""

    values: tuple[Cases, ...]
    calls: CallClass
    alone: bool = False  # the only class of its collective

    @property
    def plain(self) -> tuple[Cases, ...]:
        """Its values that do not say a number of pieces, but what the scenario says."""
        return tuple(v for v in self.values[1:] if not any({"chunks", "window"} & case.keys.keys() for case in v))

    def cases(self, value: Cases) -> list[dict[str, Any]]:
        """The cases of a scenario for a value."""
        written = []
        for keys in (case.keys for case in value):
            when = {**({} if self.alone else self.calls.when()), **keys.get("when", {})}
            written.append({**keys, "when": when} if when else keys)
        return written

    def say(self, value: Cases) -> str:
        if not value:
            return "as in the scenario"
        rest = ["else as in the scenario"] if "when" in value[-1].keys else []
        return "; ".join([*(_case_text(case.keys) for case in value), *rest])

    def move(self, value: Cases, random: Random, likely: Sequence = ()) -> Cases:
        """Another algorithm for all calls, or for one or successive ones of them; `likely` are taken more often."""
        other = random.choice(likely if likely and random.random() < _TO_LIKELY else self.values)
        nodes = self.calls.nodes
        if self.whole or len(other) != 1 or random.random() < _TO_ALL:
            return other
        first = random.randrange(len(nodes))
        last = random.choice((first, len(nodes) - 1, random.randrange(first, len(nodes))))
        only = {**other[0].keys, "when": {"node": f">= {nodes[first]} and <= {nodes[last]}"}}
        return (AlgorithmCase.of(only), *value[-_EXCEPTIONS:])


def _case_text(case: Mapping[str, Any]) -> str:
    options = ", ".join(f"{key} {_text(option)}" for key, option in case.items() if key not in ("builder", "when"))
    name = f"{case['builder']} ({options})" if "builder" in case and options else case.get("builder") or options
    return f"{name} for {_text(case['when'])}" if "when" in case else name


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return _text([f"{key} {_text(entry)}" for key, entry in value.items()])
    return "+".join(map(_text, value)) if isinstance(value, list) else str(value).lower()


def write_cases(config: dict[str, Any], choices: list[tuple[AlgorithmChoice, Cases]]) -> None:
    """Write the algorithms of classes into the configuration of a point, before the cases that it has."""
    cases: dict[tuple[str, str], list] = {}
    for choice, value in choices:
        cases.setdefault((choice.job, choice.calls.collective), []).extend(choice.cases(value))
    for (job, collective), new_cases in cases.items():
        keys = holder(config, job)
        algorithms = by_collective(keys.get("algorithms"))
        other_cases = [] if "when" not in new_cases[-1] else said_cases(config, job, collective)
        all_cases = [*new_cases, *other_cases]
        keys["algorithms"] = {**algorithms, collective: all_cases[0] if len(all_cases) == 1 else all_cases}


def by_collective(algorithms: Any) -> dict[str, Any]:
    """Algorithms as a scenario says them, by collective."""
    return dict.fromkeys(COLLECTIVES, algorithms) if isinstance(algorithms, str) else dict(algorithms or {})


def said_cases(config: dict[str, Any], job: str, collective: str) -> list[dict[str, Any]]:
    """The cases of a collective in a scenario, its default where it has none."""
    for keys in (holder(config, job), config):
        algorithm = by_collective(keys.get("algorithms")).get(collective)
        if algorithm is not None:
            entries = algorithm if isinstance(algorithm, list) else [algorithm]
            return [{"builder": entry} if isinstance(entry, str) else entry for entry in entries]
    return [{"builder": default_algorithm(collective)}]


def algorithm_choices(
    plan: Plan, names: Sequence[str], config: dict[str, Any], kinds: tuple[str, ...]
) -> list[AlgorithmChoice]:
    """The choices of algorithms (``algorithms`` in `kinds`) and of their pieces (``chunks``)."""
    classes = [kind for kind in classes_of(plan, names) if kind.collective in COLLECTIVES]
    choices = []
    for calls in classes:
        cases = said_cases(config, calls.job, calls.collective)
        options = [{key: option for key, option in case.items() if key != "when"} for case in cases]
        candidates = list(options)
        if "algorithms" in kinds:
            candidates += _builders(plan, calls)
        elif calls.collective in COLLECTIVES and len(options) > 1:
            candidates = []  # which of them carries the calls out is not known here
        if "chunks" in kinds:
            candidates += [pieces for case in list(candidates) for pieces in _in_pieces(case)]
        plain = options[0] if len(cases) == 1 and "when" not in cases[0] else None
        values = dict.fromkeys(
            (AlgorithmCase.of(case),)
            for case in candidates
            if case != plain and ("builder" not in case or _builds(case, calls))
        )
        if values:
            kind = "algorithms" if "algorithms" in kinds else "chunks"
            alone = sum((kind.job, kind.collective) == (calls.job, calls.collective) for kind in classes) == 1
            name = calls.name if kind == "algorithms" else f"pieces of {calls.name}"
            choices.append(
                AlgorithmChoice(
                    kind=kind,
                    name=name,
                    job=calls.job,
                    values=((), *values),
                    whole=len(calls.nodes) < 2 or "algorithms" not in kinds,
                    calls=calls,
                    alone=alone,
                )
            )
    return choices


def _builders(plan: Plan, calls: CallClass) -> Iterator[dict[str, Any]]:
    """Cases of the builders that have a collective, for the place of its group on the topology."""
    topology, npus = plan.problem.topology, calls.npus
    dims, nodes = group_dims(topology, npus), nodes_of(topology, npus)
    rails = max(map(len, nodes))
    for name, (collectives, _) in BUILDERS.items():
        if calls.collective not in collectives or name == "hierarchical":
            continue
        if name in IN_NETWORK and not (topology.computing and reached(topology, npus, name)):
            continue
        if name in ("direct", "linear") and calls.ranks > _MOST_DIRECT:
            continue
        yield {"builder": name}
        options = options_of(name)
        if "bidirectional" in options and calls.ranks > 2:
            yield {"builder": name, "bidirectional": True}
        if "nodes" in options and 1 < len(nodes) < calls.ranks:
            yield {"builder": name, "nodes": "auto", "channels": rails}
    if calls.collective in ALGORITHMS["hierarchical"][0] and len(dims) > 1:
        for inner in ("ring", "direct", "halving_doubling"):
            for outer in dict.fromkeys(("ring", "direct", inner)):
                levels = [inner, *[outer] * (len(dims) - 1)]
                yield {"builder": "hierarchical", "algorithms": levels}


def _in_pieces(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The cases of a builder with other numbers of pieces, and of messages in flight."""
    options = options_of(case["builder"]) if case.get("builder") in BUILDERS else ()
    for option, counts in (("chunks", _PIECES), ("window", _WINDOWS)):
        if option in options:
            yield from ({**case, option: count} for count in counts if case.get(option) != count)


def _builds(case: dict[str, Any], calls: CallClass) -> bool:
    """Whether a builder is defined for the calls of a class, as far as their number of ranks says."""
    name, fitted = case["builder"], {"channels": 1, "nodes": None, "protocol": None}
    if name not in ALGORITHMS:
        return True
    options = {key: option for key, option in case.items() if key != "builder" and key not in fitted}
    if name == "hierarchical":
        return True
    try:
        algorithm: Algorithm = build(name, calls.collective, calls.ranks, **options)
    except AstraError:
        return False
    return algorithm is not None
