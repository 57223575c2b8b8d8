"""Load a scenario: read, override, resolve and check it, and report all errors at once."""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from astrasim_py.core.document import Mark, Value, join, parse_document, read_document
from astrasim_py.core.errors import AstraError, ErrorList, ScenarioError, UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.strict_model import Mistake, mistakes, tuples
from astrasim_py.scenario import variables
from astrasim_py.scenario.check import file_mistakes, job_mistakes, network_mistakes
from astrasim_py.scenario.check_study import (
    has_seeds,
    plot_mistakes,
    repeat_mistakes,
    sweep_mistakes,
    top_level_mistakes,
)
from astrasim_py.scenario.plot_spec import PlotSpec
from astrasim_py.scenario.schema import Scenario
from astrasim_py.topology.from_keys import ASTRA_SIM

#: Most errors that are reported at once.
MAX_ERRORS = 100


@cache
def _adapter(key: str) -> TypeAdapter:
    return TypeAdapter(Scenario.model_fields[key].rebuild_annotation())


@cache
def default(key: str) -> Any:
    """The value of a top-level key that is not written."""
    return Scenario.model_fields[key].get_default(call_default_factory=True)


def read_plain(key: str, plain: object, *, binary: bool = False) -> Any:
    """The value of a top-level key; `binary`: whether GB of network bandwidth means 2**30. Raises ValidationError."""
    return _adapter(key).validate_python(tuples(plain), context={"binary": binary, "written": True})


def placed(mistake: Mistake, root: Value) -> ScenarioError:
    """A mistake at its place below `root`, or at the nearest place above it."""
    value, above, last = root, None, ""
    for step in mistake.steps:
        below = value.get(step) or value.get(str(step))
        if below is None:
            continue  # a missing key, or a step of pydantic's own
        value, above, last = below, value, str(step)
    place = value.place
    if mistake.on_key and above is not None:
        place = f"{above.key_marks.get(last, value.mark)}: {join(above.path, last)}"
    return ScenarioError(place, mistake.problem, mistake.remedy)


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedScenario:
    """A scenario that has been checked, before its points are made."""

    path: Path  # of the file, as given
    folder: Path  # where files that it names are looked up
    name: str
    title: str
    description: str
    engine: str
    fold: bool
    record: str
    repeat: int
    plots: tuple[PlotSpec, ...]
    axes: tuple[variables.Axis, ...]
    resolver: variables.Resolver = field(repr=False)
    allow_outside: bool = False
    allow_code: bool = False

    @property
    def points(self) -> int:
        return variables.count_points(self.axes)


#: The place of a scenario that is a mapping of Python's; files that it names are looked up in the current folder.
_MAPPING = "scenario"


def load_scenario(
    scenario: str | os.PathLike[str] | Mapping[str, object],
    overrides: Sequence[str] | Mapping[str, object] = (),
    *,
    allow_outside: bool = False,
    allow_code: bool = False,
) -> LoadedScenario:
    """Load a scenario.

    Parameters
    ----------
    scenario : path or mapping
        A YAML file, or the same keys and values as a dict; files that a dict names are looked up in the current folder.
    overrides : sequence of str, or mapping
        ``"KEY=VALUE"`` as with ``--set``, or key → value: ``{"topologies.ring.npus": 16}``.
    allow_outside : bool
        Files that it names may lie anywhere.
    allow_code : bool
        It may name Python files, which are run.

    Returns
    -------
    LoadedScenario

    Raises
    ------
    ErrorList
        All errors, each with ``file:line:column: path``.
    UsageError
        An override of a key that is not there.
    """
    if isinstance(scenario, Mapping):
        path = Path(_MAPPING)
        from astrasim_py.scenario.overrides import at_once

        document = at_once(parse_document(_yaml_text(scenario, _MAPPING), _MAPPING), Mark(_MAPPING))
    else:
        path, document = Path(scenario), read_document(scenario)
    if not isinstance(document.data, dict):
        raise ScenarioError(document.place, "the document is not a mapping", "begin with e.g. name: my_scenario")
    document = _overridden(document, overrides)
    return check_document(document, path, allow_outside=allow_outside, allow_code=allow_code)


def with_overrides(scenario: LoadedScenario, overrides: Sequence[str] | Mapping[str, object]) -> LoadedScenario:
    """A loaded scenario with other values; see `load_scenario`."""
    if not overrides:
        return scenario
    document = _overridden(scenario.resolver.document, overrides)
    return check_document(document, scenario.path, allow_outside=scenario.allow_outside, allow_code=scenario.allow_code)


def _overridden(document: Value, overrides: Sequence[str] | Mapping[str, object]) -> Value:
    if not overrides:
        return document
    from astrasim_py.scenario.overrides import apply_override, refuse_swept, replace_value

    keys = tuple(Scenario.model_fields)
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            text = _yaml_text(value, f"overrides {key}")
            document = replace_value(document, str(key), text, keys, "overrides")
        refuse_swept(document, [str(key) for key in overrides], "overrides")
        return document
    if isinstance(overrides, str):
        raise UsageError("overrides", "is one text", 'write a list ["KEY=VALUE"] or a mapping {"KEY": value}')
    for text in overrides:
        document = apply_override(document, text, keys)
    refuse_swept(document, [text.partition("=")[0].strip() for text in overrides], "--set")
    return document


def _yaml_text(value: object, place: str) -> str:
    """Plain Python values as JSON, which YAML contains: all text is quoted, and stays text."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ScenarioError(
            place, f"cannot be read as a scenario: {error}", "write text, numbers, lists and dicts"
        ) from None


def _plain(value: object) -> object:
    """Arrays and numbers of NumPy, and paths, as plain values."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")


def check_document(
    document: Value, path: Path, *, allow_outside: bool = False, allow_code: bool = False
) -> LoadedScenario:
    """The scenario of a document, a mapping; `path`: beside which its files are looked up. Raises ErrorList."""
    return _Loading(_completed(document, path), path, allow_outside, allow_code).run()


def _completed(document: Value, path: Path) -> Value:
    """The document with a name, by default the file's, and with the one topology that is written in place."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem).lstrip(".")[:64] or "scenario"
    data = {"name": Value(name, document.mark, "name", raw=name), **document.mapping}
    inline = data.get("topology")
    if "topologies" not in data and inline is not None and isinstance(inline.data, dict):
        marks = {"topology": document.key_marks.get("topology", inline.mark)}
        data["topologies"] = Value({"topology": data.pop("topology")}, inline.mark, "topologies", key_marks=marks)
    if "topologies" not in data and data.get("topology") is None and document.get("workload", "astra_sim") is not None:
        # ASTRA-sim's files describe the network, too.
        mark = document.mapping["workload"].mark
        shape = Value({"shape": Value(ASTRA_SIM, mark, raw=ASTRA_SIM)}, mark, f"topologies.{ASTRA_SIM}")
        data["topologies"] = Value({ASTRA_SIM: shape}, mark, "topologies")
    return dataclasses.replace(document, data=data)


@dataclass(eq=False)
class _Loading:
    document: Value
    path: Path
    allow_outside: bool
    allow_code: bool
    errors: dict[str, AstraError] = field(default_factory=dict)
    memo: dict = field(default_factory=dict)
    random: bool = False  # whether a point has something random

    def run(self) -> LoadedScenario:
        self._tell(top_level_mistakes(self.document))
        before = len(self.errors)
        study = {"sweep": self._study("sweep")}
        axis_errors: list[AstraError] = []
        axes = variables.read_axes(self.document.get("sweep"), axis_errors)
        self._tell(axis_errors)
        count = variables.count_points(axes)
        if count > variables.MAX_POINTS:
            problem = f"{count:,} points are more than the cap of {variables.MAX_POINTS:,}"
            self._tell([Mistake(("sweep",), False, problem, "sweep fewer values")])
        swept = len(self.errors) == before and "topologies" in self.document.mapping
        study |= {key: self._study(key) for key in variables.STUDY_KEYS if key != "sweep"}
        resolver = None
        if swept:
            resolver = variables.Resolver.of(self.document, axes)
            self._tell(sweep_mistakes(self.document, resolver))
            for assignment, _ in variables.assignments(axes):
                self._point(resolver, assignment)
                if len(self.errors) > MAX_ERRORS:
                    break
        else:
            self._constant_sections()
        if swept and (study["repeat"] or 1) > 1:
            self._tell(repeat_mistakes(study["repeat"], count, self.random, axes))
        self._tell(plot_mistakes(self.document, study["plots"] or (), axes))
        if self.errors or resolver is None:
            listed = [*self.errors.values()][:MAX_ERRORS]
            if len(self.errors) > MAX_ERRORS:
                listed.append(ScenarioError(str(self.path), "and more errors like these", "fix the first ones"))
            raise ErrorList(listed)
        return LoadedScenario(
            path=self.path,
            folder=self.path.parent,
            **{key: study[key] for key in ("name", "engine", "fold", "record", "repeat", "plots")},
            title=study["title"] or "",
            description=study["description"] or "",
            axes=axes,
            resolver=resolver,
            allow_outside=self.allow_outside,
            allow_code=self.allow_code,
        )

    def _constant_sections(self) -> None:
        """Read keys without variables, if the sweep itself is wrong."""
        for key, value in self.document.mapping.items():
            if key not in Scenario.model_fields or key in variables.STUDY_KEYS:
                continue
            texts = (scalar.data for scalar in value.scalars() if isinstance(scalar.data, str))
            if not any(variables.variables_in(text) for text in texts):
                self._read(key, value)

    def _read(self, key: str, value: Value, binary: bool = False) -> Any:
        """The value of a top-level key, or None if something is wrong with it."""
        try:
            return read_plain(key, value.plain(), binary=binary)
        except ValidationError as error:
            self._tell(mistakes(error), value)
            return None

    def _tell(self, wrong: Iterable[Mistake | AstraError], root: Value | None = None) -> None:
        for mistake in wrong:
            error = placed(mistake, root or self.document) if isinstance(mistake, Mistake) else mistake
            self.errors.setdefault(str(error), error)

    def _study(self, key: str) -> Any:
        value = self.document.get(key)
        if value is None:
            return default(key) if key != "name" else None
        return self._read(key, value)

    # -- points -------------------------------------------------------------------------------------------------

    def _section(self, resolver, key: str, assignment: Mapping[str, Value], binary: bool = False) -> tuple:
        """(value as written or None, typed value or None) of a top-level key at a point."""
        try:
            value = resolver.section(key, assignment)
        except ScenarioError as error:
            self._tell([error])
            return None, None
        if value is None:
            return None, default(key)
        memo = (key, value, binary)
        if memo not in self.memo:
            self.memo[memo] = self._read(key, value, binary)
        return value, self.memo[memo]

    def _point(self, resolver: variables.Resolver, assignment: Mapping[str, Value]) -> None:
        semantics = self._section(resolver, "semantics", assignment)[1]
        binary = semantics is not None and semantics.binary_bandwidth
        pairs: dict[str, tuple[Value | None, Any]] = {"semantics": (None, semantics)}
        for key in Scenario.model_fields:
            if key not in variables.STUDY_KEYS and key != "semantics":
                pairs[key] = self._section(resolver, key, assignment, binary)
        typed = {key: item for key, (_, item) in pairs.items()}
        if any(typed[key] is None for key in ("topologies", "groups", "algorithms", "jobs", "stragglers")):
            return
        values = {key: value for key, (value, _) in pairs.items() if value is not None}
        memo = ("point", *((key, value) for key, value in values.items()))
        if memo in self.memo:
            return
        self.memo[memo] = True
        topologies = typed["topologies"]
        chosen = typed["topology"] or (next(iter(topologies)) if len(topologies) == 1 else None)
        topology = topologies.get(chosen) if chosen is not None else None
        self.random |= has_seeds(typed, topology)
        root = Value(values, self.document.mark)
        if chosen is not None and topology is None:
            steps = ("topology" if "topology" in values else "topologies",)
            problem = f'no topology is called "{chosen}"'
            self._tell([Mistake(steps, False, problem, did_you_mean(chosen, topologies))], root)
        selected = {**typed, "topologies": {chosen: topology}}
        self._tell(file_mistakes(selected, self.path.parent, self.allow_outside, self.allow_code), root)
        self._tell(network_mistakes(typed, chosen, topology), root)
        self._tell(job_mistakes(typed, topology), root)
