"""Load a scenario: read, override, resolve and check it, and say everything that is wrong at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.document import Value, read_document
from astrasim_py.core.errors import AstraError, ErrorList, ScenarioError
from astrasim_py.core.fields import CodeText, did_you_mean, named_files
from astrasim_py.scenario import variables
from astrasim_py.scenario.check import JobCheck, confined, split_code
from astrasim_py.scenario.keys import default, read_key
from astrasim_py.scenario.schema import PlotSpec, Scenario

#: Most errors that are told at once.
MAX_ERRORS = 100

#: Columns that a figure may use beside swept keys.
_COLUMNS = ("topology", "algorithm", "size", "npus", "model", "engine")


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedScenario:
    """A scenario that is known to be right, before its points are written out.

    Attributes
    ----------
    path : Path
        Of the file, as given.
    folder : Path
        Where files that it names are looked up.
    name, title, description : str
    engine, record : str
    fold : bool
    plots : tuple of PlotSpec
    axes : tuple of Axis
    resolver : Resolver
    allow_outside, allow_code : bool
    """

    path: Path
    folder: Path
    name: str
    title: str
    description: str
    engine: str
    fold: bool
    record: str
    plots: tuple[PlotSpec, ...]
    axes: tuple[variables.Axis, ...]
    resolver: variables.Resolver = field(repr=False)
    allow_outside: bool = False
    allow_code: bool = False

    @property
    def points(self) -> int:
        """How many points it has."""
        return variables.count_points(self.axes)


def load_scenario(
    path: str | os.PathLike,
    overrides: Sequence[str] = (),
    *,
    allow_outside: bool = False,
    allow_code: bool = False,
) -> LoadedScenario:
    """Load a scenario file.

    Parameters
    ----------
    path : str or path
    overrides : sequence of str
        ``KEY=VALUE`` as with ``--set``.
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
        All that is wrong, each with ``file:line:column: path``.
    """
    document = read_document(path)
    if not isinstance(document.data, dict):
        raise ScenarioError(document.place, "the document is not a mapping", "begin with e.g. name: my_scenario")
    for text in overrides:
        document = variables.apply_override(document, text, tuple(Scenario.model_fields))
    return _Loading(document, Path(path), allow_outside, allow_code).run()


@dataclass(eq=False)
class _Loading:
    document: Value
    path: Path
    allow_outside: bool
    allow_code: bool
    errors: list[AstraError] = field(default_factory=list)
    memo: dict = field(default_factory=dict)
    told: dict = field(default_factory=dict)

    def run(self) -> LoadedScenario:
        self._top_level()
        before = len(self.errors)
        study = {"sweep": self._study("sweep")}
        axes = variables.read_axes(self.document.get("sweep"), self.errors)
        count = variables.count_points(axes)
        if count > variables.MAX_POINTS:
            remedy = "sweep fewer values"
            problem = f"{count:,} points are more than the cap of {variables.MAX_POINTS:,}"
            self._fail(self._place("sweep"), problem, remedy)
        swept = len(self.errors) == before and "topologies" in self.document.data
        study |= {key: self._study(key) for key in variables.STUDY_KEYS if key != "sweep"}
        resolver = None
        if swept:
            resolver = variables.Resolver.of(self.document, axes)
            self._sweep(resolver)
            for assignment, _ in variables.assignments(axes):
                self._point(resolver, assignment)
                if len(self.errors) > MAX_ERRORS:
                    break
        else:
            self._constant_sections()
        self._plots(study["plots"] or (), axes)
        if self.errors or resolver is None:
            more = len(self.errors) - MAX_ERRORS
            listed = self.errors[:MAX_ERRORS]
            if more > 0:
                listed.append(ScenarioError(str(self.path), "and more errors like these", "mend the first ones"))
            raise ErrorList(listed)
        return LoadedScenario(
            path=self.path,
            folder=self.path.parent,
            name=study["name"],
            title=study["title"] or "",
            description=study["description"] or "",
            engine=study["engine"],
            fold=study["fold"],
            record=study["record"],
            plots=study["plots"],
            axes=axes,
            resolver=resolver,
            allow_outside=self.allow_outside,
            allow_code=self.allow_code,
        )

    def _constant_sections(self) -> None:
        """Where the sweep itself is wrong: read at least what does not depend on it."""
        for key, value in self.document.data.items():
            if key not in Scenario.model_fields or key in variables.STUDY_KEYS:
                continue
            texts = (scalar.data for scalar in value.scalars() if isinstance(scalar.data, str))
            if not any(variables.variables_in(text) for text in texts):
                found: list[AstraError] = []
                read_key(key, value, found)
                self._tell(found)

    def _place(self, key: str) -> str:
        value = self.document.get(key)
        return value.place if value is not None else self.document.place

    def _fail(self, place: str, problem: str, remedy: str = "") -> None:
        self._tell([ScenarioError(place, problem, remedy)])

    def _tell(self, errors: Sequence[AstraError] | Iterator[AstraError]) -> None:
        for error in errors:
            key = str(error)
            if key not in self.told:
                self.told[key] = None
                self.errors.append(error)

    def _top_level(self) -> None:
        known = tuple(Scenario.model_fields)
        for key in self.document.data:
            if key not in known:
                self._fail(self.document.key_place(key), "is not a key here", did_you_mean(key, known))
        for key in ("name", "topologies"):
            if key not in self.document.data:
                example = Scenario.model_fields[key].examples[0]
                self._fail(self.document.place, f'"{key}" is missing', f"write e.g. {key}: {example}")
        workload = self.document.data.get("workload")
        if (workload is None or workload.data is None) and "jobs" not in self.document.data:
            remedy = "write e.g. workload: [{all_reduce: {size: 64 MiB}}]"
            self._fail(self.document.place, '"workload" is missing', remedy)
        if "jobs" in self.document.data:
            for key in ("workload", "groups", "stragglers", "placement", "ranks"):
                if key in self.document.data:
                    problem = f"with jobs, each job has its own {key}"
                    self._fail(self.document.key_place(key), problem, "move it into a job")

    def _study(self, key: str) -> Any:
        value = self.document.get(key)
        if value is None:
            return default(key) if key != "name" else None
        found: list[AstraError] = []
        typed = read_key(key, value, found)
        self._tell(found)
        return typed

    def _sweep(self, resolver: variables.Resolver) -> None:
        sweep = self.document.get("sweep")
        topologies = self.document.get("topologies")
        names = list(topologies.data) if topologies is not None and isinstance(topologies.data, dict) else []
        for key in resolver.unused():
            value = self._swept(sweep, key)
            if variables.is_path(key):
                self._fail(value, f"{key} leads nowhere", "write the path of a key of the scenario")
            else:
                self._fail(value, f'"{key}" is swept and never used', f"write ${key} where it belongs, or delete it")
        known = tuple(key for key in Scenario.model_fields if key not in variables.STUDY_KEYS)
        for axis in resolver.axes:
            for i, key in enumerate(axis.keys):
                first = str(variables.split_path(key, self.document)[0]) if variables.is_path(key) else known[0]
                if first not in known:
                    place = self._swept(sweep, key)
                    self._fail(place, f'{key} leads nowhere: there is no key "{first}"', did_you_mean(first, known))
                if key == "topology":
                    for row in axis.rows:
                        self._known_topology(row[i], names)
        if len(names) > 1 and "topology" not in self.document.data:
            if not any("topology" in axis.keys for axis in resolver.axes):
                remedy = f"write topology: {names[0]}, or sweep: {{topology: [{', '.join(names[:3])}]}}"
                self._fail(self._place("topologies"), f"there are {len(names)} topologies", remedy)
        elif (chosen := self.document.get("topology")) is not None:
            self._known_topology(chosen, names)

    def _swept(self, sweep: Value | None, key: str) -> str:
        if sweep is not None and key in sweep.data:
            return sweep.key_place(key)
        groups = sweep.get("zip") if sweep is not None else None
        for group in (groups.data if isinstance(groups.data, list) else [groups]) if groups is not None else ():
            if key in group.data:
                return group.key_place(key)
        return self._place("sweep")

    def _known_topology(self, value: Value, names: Sequence[str]) -> None:
        name = variables.label_of(value)
        if name not in names and not variables.variables_in(str(value.data)):
            self._fail(value.place, f'no topology is called "{name}"', did_you_mean(name, names))

    def _plots(self, plots: Sequence[PlotSpec], axes: Sequence[variables.Axis]) -> None:
        labels = {key: [row[i] for row in axis.labels] for axis in axes for i, key in enumerate(axis.keys)}
        known = (*labels, *(c for c in _COLUMNS if c not in labels))
        seen: dict[str, int] = {}
        for number, plot in enumerate(plots):

            def place(*keys: str, number=number) -> str:
                value = self.document.get("plots", number, *keys) or self.document.get("plots", number)
                return value.place

            for role in ("x", "series", "facet"):
                key = getattr(plot, role)
                if key is not None and key not in known:
                    self._fail(place(role), f'"{key}" is not swept', did_you_mean(key, labels or known))
            if plot.baseline is not None and plot.series is None:
                self._fail(place("baseline"), "a baseline without series", "write e.g. series: topology")
            elif plot.baseline is not None and plot.baseline not in labels.get(plot.series, [plot.baseline]):
                problem = f'"{plot.baseline}" is not a value of {plot.series}'
                self._fail(place("baseline"), problem, did_you_mean(plot.baseline, labels[plot.series]))
            if plot.kind == "slowdown" and plot.baseline is None:
                self._fail(place(), "a slowdown needs a baseline", "write series: KEY and baseline: one of its values")
            for key, value in plot.where.items():
                written = self.document.get("plots", number, "where", key)
                text = variables.label_of(written) if written is not None else str(value)
                if key not in known:
                    self._fail(place("where", key), f'"{key}" is not swept', did_you_mean(key, labels or known))
                elif text not in labels.get(key, [text]):
                    remedy = did_you_mean(text, labels[key])
                    self._fail(place("where", key), f'"{text}" is not a value of {key}', remedy)
            name = plot.name or plot.kind
            if name in seen and plot.name is not None:
                self._fail(place("name"), f'two plots are called "{name}"', "choose another name")
            seen[name] = number

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
        memo = (key, id(value), binary)
        if memo not in self.memo:
            found: list[AstraError] = []
            self.memo[memo] = read_key(key, value, found, binary=binary)
            self._tell(found)
        return value, self.memo[memo]

    def _point(self, resolver: variables.Resolver, assignment: Mapping[str, Value]) -> None:
        semantics = self._section(resolver, "semantics", assignment)[1]
        binary = semantics is not None and semantics.binary_bandwidth
        pairs = {"semantics": (None, semantics)}
        for key in Scenario.model_fields:
            if key not in variables.STUDY_KEYS and key != "semantics":
                pairs[key] = self._section(resolver, key, assignment, binary)
        if any(typed is None and key in ("topologies", "groups", "algorithms", "jobs", "stragglers")
               for key, (_, typed) in pairs.items()):  # fmt: skip
            return
        memo = ("point", *(id(value) for value, _ in pairs.values()))
        if memo in self.memo:
            return
        self.memo[memo] = True
        values = {key: value for key, (value, _) in pairs.items()}
        typed = {key: item for key, (_, item) in pairs.items()}
        topologies = typed["topologies"]
        chosen = typed["topology"] or (next(iter(topologies)) if len(topologies) == 1 else None)
        topology = topologies.get(chosen) if chosen is not None else None
        if chosen is not None and topology is None:
            place = values["topology"].place if values["topology"] is not None else self._place("topologies")
            self._fail(place, f'no topology is called "{chosen}"', did_you_mean(chosen, topologies))
        self._files(typed, values, topology, chosen)
        self._machines(typed, values)
        self._custom(typed, values)
        if typed["jobs"]:
            self._jobs(typed, values, topology)
        elif typed["workload"] is not None:
            self._job(typed, values, topology)

    def _ranks(self, typed: Mapping[str, Any], values: Mapping[str, Value | None], topology) -> int | None:
        """Number of ranks, as far as it is known without building anything."""
        if topology is None:
            return None
        npus = topology.npu_count()
        failed = len(topology.failed.npus) if topology.failed is not None else 0
        placement = typed["placement"] if typed["placement"] is not None else topology.placement
        ranks = typed["ranks"]
        if isinstance(placement, tuple):
            ranks = ranks if ranks is not None else len(placement)
        if ranks is not None and npus is not None and ranks > npus - failed:
            value = values["ranks"] or values["placement"] or values["topologies"]
            dead = f" ({failed} of {npus} failed)" if failed else ""
            problem = f"{ranks} ranks are more than the {npus - failed} NPUs of the topology{dead}"
            self._fail(value.place, problem, "write fewer ranks or a larger topology")
        if ranks is not None:
            return ranks
        return None if npus is None else npus - failed

    def _job(self, typed: Mapping[str, Any], values: Mapping[str, Value | None], topology) -> None:
        from types import SimpleNamespace

        self._tell(JobCheck(SimpleNamespace(**typed), values, self._ranks(typed, values, topology)).errors())

    def _jobs(self, typed: Mapping[str, Any], values: Mapping[str, Value | None], topology) -> None:
        npus = topology.npu_count() if topology is not None else None
        owner: dict[int, str] = {}
        for name, job in typed["jobs"].items():
            value = values["jobs"].get(name)
            below = {key: value.get(key) for key in ("workload", "groups", "algorithms", "stragglers")}
            self._tell(JobCheck(job, below, len(job.placement)).errors())
            place = (value.get("placement") or value).place
            for npu in job.placement:
                if npu in owner:
                    remedy = "give each job NPUs of its own"
                    self._fail(place, f'NPU {npu} belongs to job "{owner[npu]}" too', remedy)
                    break
                if npus is not None and npu >= npus:
                    self._fail(place, f"NPU {npu} does not exist: there are {npus}", f"write 0 to {npus - 1}")
                    break
            owner.update(dict.fromkeys(job.placement, name))
        if typed["algorithms"] and typed["jobs"]:
            from types import SimpleNamespace

            shared = SimpleNamespace(
                workload=None, groups={}, algorithms=typed["algorithms"], stragglers=default("stragglers")
            )
            self._tell(JobCheck(shared, values, None).errors())

    def _machines(self, typed: Mapping[str, Any], values: Mapping[str, Value | None]) -> None:
        """Items that need a machine which the scenario does not describe."""
        compute, memory = typed["compute"], typed["memory"]
        rated = compute is None or compute.roofline
        jobs = [(typed["workload"], values["workload"])]
        jobs += [(job.workload, values["jobs"].get(name, "workload")) for name, job in (typed["jobs"] or {}).items()]
        for workload, value in jobs:
            for number, item in enumerate(workload if isinstance(workload, tuple) else ()):
                at = value.get(number, item.kind) or value
                if item.compute is not None and item.compute.operations is not None and not rated:
                    remedy = 'write e.g. compute: {peak: "312 TFLOP/s", memory_bandwidth: "2 TB/s"}'
                    self._fail(at.place, "operations take time only on NPUs of a known peak", remedy)
                if item.memory is not None and memory is not None and memory.kind == "none":
                    remedy = 'write e.g. memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}'
                    self._fail(at.place, "the scenario has no remote memory", remedy)

    def _custom(self, typed: Mapping[str, Any], values: Mapping[str, Value | None]) -> None:
        """Custom collectives without an algorithm: there is none to fall back to."""
        jobs = [(typed["workload"], values["workload"], {})]
        jobs += [
            (job.workload, values["jobs"].get(name, "workload"), job.algorithms)
            for name, job in (typed["jobs"] or {}).items()
        ]
        for workload, value, own in jobs:
            for number, item in enumerate(workload if isinstance(workload, tuple) else ()):
                if item.custom is not None and CUSTOM not in own and CUSTOM not in typed["algorithms"]:
                    at = value.get(number, CUSTOM) or value
                    remedy = "write e.g. algorithms: {custom: {file: alltonext.xml}}"
                    self._fail(at.place, "a custom collective needs an algorithm", remedy)

    def _files(self, typed: Mapping[str, Any], values: Mapping[str, Value | None], topology, chosen) -> None:
        """Files that lead out of the scenario's folder, and code that may not be run."""
        models = {key: model for key, model in typed.items() if key not in ("topologies", "topology")}
        for at, name in named_files(models | {"topologies": {chosen: topology}}):
            here = values[str(at[0])]
            for step in at[1:]:
                here = here.get(step) or here
            if isinstance(name, CodeText) and not self.allow_code:
                remedy = "run with --allow-code if you trust it"
                self._fail(here.place, "names Python code, which would be run", remedy)
            try:
                if isinstance(name, CodeText):
                    split_code(name, here.place)
                confined(name, self.path.parent, here.place, self.allow_outside)
            except ScenarioError as error:
                self._tell([error])
