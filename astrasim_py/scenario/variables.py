"""Values of a scenario that vary: ``--set``, the axes of a sweep, and ``$name`` in texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import NamedTuple

from astrasim_py.core.choices import COLLECTIVE_NAMES, PROTOCOLS
from astrasim_py.core.document import Mark, Value, join
from astrasim_py.core.errors import AstraError, ScenarioError, UsageError
from astrasim_py.core.fields import did_you_mean

#: Most points of one scenario.
MAX_POINTS = 10_000

#: Top-level keys that describe the study, not a point: no variables there.
STUDY_KEYS = ("name", "title", "description", "engine", "fold", "record", "repeat", "sweep", "plots")
#: Top-level keys that a sweep may vary by their own name.
SETTINGS = ("topology", "placement", "ranks", "semantics", "verify")
#: Mappings whose keys the user chooses.
NAMED = ("topologies", "groups", "jobs", "sweep")

_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")


def split_path(path: str, document: Value) -> list[str | int]:
    """Steps of ``topologies.ring.npus`` and ``workload[0].all_reduce.size``; keys of the document may hold dots. A
    topology that is written in place is ``topology.npus`` and ``topologies.topology.npus``, and the only one of several
    is ``topology.npus``, too.
    """
    data = document.data if isinstance(document.data, dict) else {}
    if path.endswith("."):
        return [path]
    inline, topologies = data.get("topology"), data.get("topologies")
    names = list(topologies.data) if topologies is not None and isinstance(topologies.data, dict) else []
    if topologies is None and inline is not None and path.startswith("topologies.topology."):
        path = path.removeprefix("topologies.")
    elif len(names) == 1 and path.startswith("topology."):
        path = f"topologies.{names[0]}.{path.removeprefix('topology.')}"
    steps: list[str | int] = []
    value: Value | None = document
    rest = path
    while rest:
        keys = list(value.data) if value is not None and isinstance(value.data, dict) else []
        matches = [k for k in keys if rest == k or rest.startswith((f"{k}.", f"{k}["))]
        if matches:
            longest = max(matches, key=len)
            step: str | int = longest
            rest = rest[len(longest) :]
        else:
            match = _STEP.match(rest)
            if match is None:
                return [rest]
            token = match.group()
            rest = rest[match.end() :]
            in_list = value is not None and isinstance(value.data, list)
            if token[0] == "[" or (in_list and token.isdecimal()):
                step = int(token.strip("[]"))
            else:
                step = token
        rest = rest.removeprefix(".")
        steps.append(step)
        value = value.get(step) if value is not None else None
    return steps


def unclear_topology(steps: Sequence[str | int], document: Value) -> tuple[str, str] | None:
    """Problem and remedy of a path below ``topology`` where there are several topologies, or none."""
    topologies, inline = document.get("topologies"), document.get("topology")
    names = list(topologies.data) if topologies is not None and isinstance(topologies.data, dict) else []
    if steps[0] != "topology" or len(steps) == 1 or (inline is not None and isinstance(inline.data, dict)):
        return None
    if not names:
        return ("there is no topology to change", "write topology: {shape: …, …}") if topologies is None else None
    key = reduce(join, steps[1:], "")
    paths = [f"topologies.{name}.{key}" for name in names[:3]]
    return f"there are {len(names)} topologies", f"write {' or '.join(paths)}"


#: Text in place of a mapping → the mapping that it stands for, by the end of its path.
_WORDS = (
    (re.compile(r"semantics"), lambda text: {"base": text}),
    (re.compile(r"(jobs\.[^.]+\.)?algorithms\.\w+(\[\d+\])?"), lambda text: {"builder": text}),
    (re.compile(r"(jobs\.[^.]+\.)?algorithms"), lambda text: dict.fromkeys(COLLECTIVE_NAMES, text)),
    (re.compile(r"(.*\.)?(training|inference|recommendation|explore)\.model"), lambda text: {"base": text}),
    (re.compile(r"workload\.astra_sim\.(system|network|remote_memory)"), lambda text: {"file": text}),
    (re.compile(r"network\.msccl\.latency"), lambda text: dict.fromkeys(PROTOCOLS, text)),
)


def _spelled_out(value: Value, path: str) -> dict[str, Value]:
    """The mapping for which a text stands, so that a key of it can be changed and the rest stays; empty for others."""
    if isinstance(value.data, str):
        for form, of in _WORDS:
            if form.fullmatch(path):
                return {key: replace(value, path=join(path, key)) for key in of(value.data)}
    return {}


def put(
    value: Value, steps: Sequence[str | int], new: Value, place: str, path: str = "", key_mark: Mark | None = None
) -> Value:
    step, rest = steps[0], steps[1:]
    below = join(path, step)
    data = value.data
    if isinstance(data, list):
        if not isinstance(step, int) or step >= len(data):
            raise UsageError(place, f"{path} is a list of {len(data)}", f"write {path}[0] to {path}[{len(data) - 1}]")
        inner = put(data[step], rest, new, place, below, key_mark) if rest else new
        return replace(value, data=[*data[:step], inner, *data[step + 1 :]])
    if isinstance(step, str) and (data is None or not isinstance(data, dict)):
        data = _spelled_out(value, path) or (data if data is not None and not rest else {})
    if not isinstance(data, dict) or not isinstance(step, str):
        raise UsageError(place, f"{path or 'the document'} has no keys below it", f"write {path or 'a key'} alone")
    if step not in data and path in NAMED and (rest or not isinstance(new.data, dict | list)):
        raise UsageError(place, f'"{step}" is not in {path}', did_you_mean(step, data))
    old = data.get(step, Value({}, new.mark, below))
    inner = put(old, rest, new, place, below, key_mark) if rest else new
    mark = value.key_marks.get(step, value.mark) if step in data and rest else key_mark or new.mark
    marks = {**value.key_marks, step: mark}
    return replace(value, data={**data, step: inner}, key_marks=marks)


class Axis(NamedTuple):
    """Keys that vary together, and their values row by row."""

    keys: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    labels: tuple[tuple[str, ...], ...]


def label_of(value: Value) -> str:
    """A short text for a plain value or a list of them."""
    if isinstance(value.data, list):
        return "x".join(label_of(item) for item in value.data)
    return "null" if value.data is None else value.raw if value.raw else str(value.data)


def _values(value: Value) -> list[tuple[str, Value]]:
    if isinstance(value.data, dict):
        return list(value.data.items())
    items = value.data if isinstance(value.data, list) else [value]
    return [(label_of(item), item) for item in items]


def key_mark(document: Value, key: str) -> Mark | None:
    """Where a swept key is written."""
    sweep = document.get("sweep")
    groups = sweep.get("zip") if sweep is not None else None
    listed = groups.data if groups is not None and isinstance(groups.data, list) else [groups]
    return next(
        (group.key_marks[key] for group in (sweep, *listed) if group is not None and key in group.key_marks), None
    )


def swept_values(axes: Sequence[Axis]) -> dict[str, tuple[str, ...]]:
    """Swept key → its values as written."""
    pairs = [pair for axis in axes for pair in zip(axis.keys, zip(*axis.labels, strict=True), strict=True)]
    return {key: tuple(dict.fromkeys(labels)) for key, labels in pairs}


def read_axes(sweep: Value | None, errors: list[AstraError]) -> tuple[Axis, ...]:
    """The axes of a sweep, in the order written; what is wrong is added to `errors`."""
    if sweep is None or not isinstance(sweep.data, dict):
        return ()
    axes: list[Axis] = []
    for key, value in sweep.data.items():
        if key != "zip":
            groups = [{key: value}]
        else:
            items = value.data if isinstance(value.data, list) else [value]
            groups = [item.data for item in items if isinstance(item.data, dict)]
        for group in groups:
            lists = {name: _values(inner) for name, inner in group.items()}
            lengths = {name: len(values) for name, values in lists.items()}
            for name in lists:
                if any(name in axis.keys for axis in axes):
                    errors.append(ScenarioError(group[name].place, f'"{name}" is swept twice', "sweep it once"))
            if len(set(lengths.values())) > 1:
                counted = ", ".join(f"{name} has {n}" for name, n in lengths.items())
                problem = f"keys that vary together need equally many values, and {counted}"
                errors.append(ScenarioError(value.place, problem, "add or delete some"))
                continue
            rows = list(zip(*lists.values(), strict=True))
            labels = tuple(tuple(label for label, _ in row) for row in rows)
            distinct: set[tuple[str, ...]] = set()
            for row, label in zip(rows, labels, strict=True):
                if label in distinct:
                    shown = ", ".join(label)
                    errors.append(ScenarioError(row[0][1].place, f'"{shown}" is swept twice', "write it once"))
                distinct.add(label)
            axes.append(Axis(tuple(lists), tuple(tuple(item for _, item in row) for row in rows), labels))
    return tuple(axes)


def count_points(axes: Sequence[Axis]) -> int:
    return math.prod(len(axis.rows) for axis in axes)


def assignments(axes: Sequence[Axis]) -> Iterator[tuple[dict[str, Value], dict[str, str]]]:
    """Per point, in the order of nested loops (the first axis is the outermost): values and labels by key."""
    for rows in product(*(range(len(axis.rows)) for axis in axes)):
        chosen = list(zip(axes, rows, strict=True))
        values = {key: value for axis, i in chosen for key, value in zip(axis.keys, axis.rows[i], strict=True)}
        labels = {key: label for axis, i in chosen for key, label in zip(axis.keys, axis.labels[i], strict=True)}
        yield values, labels


def variables_in(text: str) -> list[str]:
    return [m[1] or m[2] for m in _VARIABLE.finditer(text) if m[1] or m[2]]


def is_path(key: str) -> bool:
    """Whether a swept key is a path into the document rather than a variable."""
    return key in SETTINGS or "." in key or "[" in key


@dataclass(frozen=True, eq=False)
class Resolver:
    """Gives every top-level key of every point its value; equal values are made once."""

    document: Value
    axes: tuple[Axis, ...]
    #: Top-level keys of a point, and the swept keys that each depends on.
    users: dict[str, tuple[str, ...]]
    _sections: dict = field(default_factory=dict)

    @classmethod
    def of(cls, document: Value, axes: Sequence[Axis]) -> Resolver:
        values = {key: [row[i] for row in axis.rows] for axis in axes for i, key in enumerate(axis.keys)}

        def closure(sources: Sequence[Value], names: dict[str, None]) -> dict[str, None]:
            for source in sources:
                for scalar in source.scalars():
                    for name in variables_in(scalar.data) if isinstance(scalar.data, str) else ():
                        if name not in names:
                            names[name] = None
                            closure(values.get(name, ()), names)
            return names

        users: dict[str, tuple[str, ...]] = {}
        paths = {key: split_path(key, document) for key in values if is_path(key)}
        paths = {key: steps for key, steps in paths.items() if not steps or not unclear_topology(steps, document)}
        for key in dict.fromkeys((*document.mapping, *(str(steps[0]) for steps in paths.values() if steps))):
            if key in STUDY_KEYS:
                continue
            sources = [document.mapping[key]] if key in document.mapping else []
            into = [path for path, steps in paths.items() if steps and steps[0] == key]
            sources += [value for path in into for value in values[path]]
            users[key] = (*into, *closure(sources, {}))
        return cls(document, tuple(axes), users)

    def unused(self) -> list[str]:
        """Swept keys that nothing uses."""
        names_used = {name for names in self.users.values() for name in names}  # membership only
        return [key for axis in self.axes for key in axis.keys if key not in names_used]

    def section(self, key: str, assignment: Mapping[str, Value]) -> Value | None:
        """The value of a top-level key at a point; the same object for equal points.

        Raises ScenarioError: a variable that is not swept, or a path that leads nowhere.
        """
        if key not in self.users:
            return None
        names = self.users[key]
        memo = (key, *(assignment.get(name) for name in names))
        if memo not in self._sections:
            self._sections[memo] = self._resolve(key, names, assignment)
        value = self._sections[memo]
        if isinstance(value, AstraError):
            raise value
        return value

    def _resolve(self, key: str, names: Sequence[str], assignment: Mapping[str, Value]) -> Value | AstraError:
        try:
            value = self.document.mapping.get(key)
            for path in names:
                if is_path(path):
                    steps = split_path(path, self.document)
                    if steps[0] != key:
                        continue
                    new, mark = assignment[path], key_mark(self.document, path)
                    try:
                        if steps[1:]:
                            value = put(value or Value({}, new.mark, key), steps[1:], new, "", key, mark)
                        else:
                            value = new
                    except UsageError as error:
                        # A wrong path is told once, at the key that says it, not for every value.
                        return ScenarioError(f"{mark or new.mark}: sweep.{path}", error.problem, error.remedy)
            assert value is not None  # a key is used where the document has it, or a swept path leads to it
            return self._substitute(value, assignment, ())
        except ScenarioError as error:
            return error

    def _substitute(self, value: Value, assignment: Mapping[str, Value], active: tuple[str, ...]) -> Value:
        data = value.data
        if isinstance(data, dict):
            new = {key: self._substitute(inner, assignment, active) for key, inner in data.items()}
            unchanged = all(new[key] is data[key] for key in data)
            return value if unchanged else replace(value, data=new)
        if isinstance(data, list):
            items = [self._substitute(inner, assignment, active) for inner in data]
            unchanged = all(a is b for a, b in zip(items, data, strict=True))
            return value if unchanged else replace(value, data=items)
        if not isinstance(data, str) or "$" not in data:
            return value
        variable = _VARIABLE.fullmatch(data)
        if variable is not None and (variable[1] or variable[2]):
            return self._value_of(variable[1] or variable[2], value, assignment, active)

        def text(match: re.Match) -> str:
            name = match[1] or match[2]
            if not name:
                return "$"
            content = self._value_of(name, value, assignment, active)
            if isinstance(content.data, dict | list):
                problem = f'${name} stands inside the text "{data[:64]}", and its value is not plain'
                raise ScenarioError(content.place, problem, "write a text or a number")
            return label_of(content)

        text_of_value = _VARIABLE.sub(text, data)
        return replace(value, data=text_of_value, raw=text_of_value)

    def _value_of(self, name: str, value: Value, assignment: Mapping[str, Value], active: tuple[str, ...]) -> Value:
        if name in active:
            raise ScenarioError(value.place, f"${name} stands in its own value", "write the value itself")
        if name not in assignment:
            swept = [f"${key}" for axis in self.axes for key in axis.keys if not is_path(key)]
            remedy = did_you_mean(f"${name}", swept) if swept else f"add e.g. sweep: {{{name}: [...]}}"
            raise ScenarioError(value.place, f"${name} is not in the sweep", remedy)
        return self._substitute(assignment[name], assignment, (*active, name))
