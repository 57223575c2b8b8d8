"""Checks of a point across its keys: jobs against their topology, machines, files."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.choices import BY_DIMENSION, LIBRARIES
from astrasim_py.core.errors import InternalError, ScenarioError
from astrasim_py.core.fields import CodeText, FileText, did_you_mean, named_files
from astrasim_py.core.strict_model import Mistake
from astrasim_py.scenario import algorithm_models, job_models, workload_models
from astrasim_py.system.compatible import ECMP, EVENTS, NIC, exclusions
from astrasim_py.workload.items import Collective, Compute, Memory, Send

#: Top-level key → its typed value.
Typed = Mapping[str, Any]
#: Keys and indices that lead to a value.
Steps = tuple[str | int, ...]


def _wrong(problem: str, remedy: str, *path: str | int) -> Mistake:
    return Mistake(path, False, problem, remedy)


def confined(name: FileText, folder: Path, place: str, allow_outside: bool) -> Path:
    """The path of a file that a scenario names: below its folder, links followed.

    Only a field of type `FileName` or `CodeName` can be opened so: `named_files` finds it, and a change of the file
    makes results stale.

    Raises ScenarioError: it leads elsewhere, and that is not allowed.
    """
    if not isinstance(name, FileText):
        raise InternalError(f"{place}: the field is not declared as a file")
    path = folder / name.file
    if allow_outside:
        return path
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):
        inside = False
    if Path(name.file).is_absolute() or not inside:
        problem = f'"{name.file}" leads out of the folder of the scenario'
        raise ScenarioError(place, problem, "move it below that folder, or run with --allow-outside")
    return path


def split_code(text: str, place: str) -> tuple[str, str]:
    """``file.py:name`` as a pair; raises ScenarioError."""
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ScenarioError(place, f'"{text}" does not name a function in a file', "write e.g. mine.py:function")
    return file, name


def file_mistakes(typed: Typed, folder: Path, allow_outside: bool, allow_code: bool) -> Iterator[Mistake]:
    """Files that lead out of the scenario's folder, and code that may not be run."""
    for path, name in named_files(typed):
        if isinstance(name, CodeText) and not allow_code:
            yield _wrong("names Python code, which would be run", "run with --allow-code if you trust it", *path)
        try:
            if isinstance(name, CodeText):
                split_code(name, "")
            confined(name, folder, "", allow_outside)
        except ScenarioError as error:
            yield _wrong(error.problem, error.remedy, *path)


def network_mistakes(typed: Typed, name: str | None, topology: Any) -> Iterator[Mistake]:
    """The network model, semantics and NICs against each other and the named topology (None: unknown)."""
    parts = {key: typed[key] for key in ("network", "semantics", NIC) if typed[key] is not None}
    if topology is not None:
        ecmp = topology.routing is not None and topology.routing.ecmp
        parts |= {"topology": name, ECMP: ecmp, EVENTS: bool(topology.events)}
    for exclusion in exclusions(parts):
        if exclusion.use == EVENTS:
            problem = f"network.model: {exclusion.problem}"
            yield Mistake(("topologies", name or "", "events"), True, problem, exclusion.remedy)
        else:
            path = tuple(exclusion.place.partition(": ")[0].split("."))
            yield Mistake(path, False, exclusion.problem, exclusion.remedy)


def job_mistakes(typed: Typed, topology: Any) -> Iterator[Mistake]:
    """Jobs against their topology (None: unknown): ranks, groups, algorithms, placements; memory of NPUs."""
    workloads = [model for model in (typed["workload"], *(job.workload for job in typed["jobs"].values())) if model]
    are_models = [isinstance(workload, workload_models.ModelWorkload) for workload in workloads]
    if workloads and typed["compute"] and not any(are_models):
        for key in ("memory", "expanded_memory"):
            if key in typed["compute"].model_fields_set:
                remedy = "drop it, or write a workload such as {training: {model: llama3-70b, gbs: 512}}"
                yield Mistake(("compute", key), True, "only the memory of a model is compared with it", remedy)
    if typed["jobs"]:
        yield from _several_jobs(typed, topology)
    elif typed["workload"] is not None:
        npus = ranks = None
        if topology is not None:
            # As far as is known without building anything.
            npus = topology.npu_count()
            npus = None if npus is None else npus - topology.failed_npus
            placement = topology.placement if typed["placement"] is None else typed["placement"]
            ranks = len(placement) if typed["ranks"] is None and isinstance(placement, tuple) else typed["ranks"]
        if ranks is not None and npus is not None and ranks > npus:
            section = next((key for key in ("ranks", "placement") if typed[key] is not None), "topologies")
            dead = f" ({topology.failed_npus} of {topology.npu_count()} failed)" if topology.failed_npus else ""
            problem = f"{ranks} ranks are more than the {npus} NPUs of the topology{dead}"
            yield _wrong(problem, "write fewer ranks or a larger topology", section)
        yield from _JobCheck(SimpleNamespace(**typed), typed, npus if ranks is None else ranks).mistakes()


def _several_jobs(typed: Typed, topology: Any) -> Iterator[Mistake]:
    npus = topology.npu_count() if topology is not None else None
    owner: dict[int, str] = {}
    if all(job.background for job in typed["jobs"].values()):
        yield _wrong("all jobs are in the background, so the run would end at once", "leave one without", "jobs")
    for name, job in typed["jobs"].items():
        ranks = job.ranks if job.placement is None else len(job.placement)
        foreign = isinstance(job.workload, workload_models.OF_FILES)
        if isinstance(job.workload, workload_models.AstraSimWorkload):
            yield _wrong("ASTRA-sim's files are a whole run, no job", "write {trace: PREFIX}", "jobs", name, "workload")
        if ranks is None and not foreign:
            yield _wrong("has neither ranks nor placement", "write e.g. ranks: 8", "jobs", name)
        if ranks is not None and job.ranks not in (None, ranks):
            problem = f"{ranks} NPUs are listed for {job.ranks} ranks"
            yield _wrong(problem, "drop ranks, or list one NPU per rank", "jobs", name, "ranks")
        yield from _JobCheck(job, typed, ranks, ("jobs", name)).mistakes()
        path = ("jobs", name, "placement")
        for npu in job.placement or ():
            if npu in owner:
                yield _wrong(f'NPU {npu} belongs to job "{owner[npu]}" too', "give each job NPUs of its own", *path)
                break
            if npus is not None and npu >= npus:
                yield _wrong(f"NPU {npu} does not exist: there are {npus}", f"write 0 to {npus - 1}", *path)
                break
        owner.update(dict.fromkeys(job.placement or (), name))
    if typed["algorithms"]:
        shared: dict[str, Any] = {"workload": None, "groups": {}, "stragglers": job_models.Stragglers()}
        yield from _JobCheck(SimpleNamespace(algorithms=typed["algorithms"], **shared), typed, None).mistakes()


class _JobCheck:
    """Checks the workload, groups, algorithms and stragglers of a job against each other and the rest of the scenario.

    `job`: with attributes of these names. `ranks`: number of ranks, if known. `at`: keys that lead to the job.
    """

    def __init__(self, job: Any, typed: Typed, ranks: int | None, path: Steps = ()) -> None:
        self.job, self.typed, self.ranks, self.path = job, typed, ranks, path
        groups = job.workload.roles if isinstance(job.workload, workload_models.ModelWorkload) else job.groups
        self.groups = (*groups, "world")

    def mistakes(self) -> Iterator[Mistake]:
        if isinstance(self.job.workload, tuple):
            yield from self._items()
        for name, group in self.job.groups.items():
            yield from self._group(name, group, (*self.path, "groups", name))
        if self.job.groups and isinstance(self.job.workload, workload_models.ModelWorkload):
            yield Mistake((*self.path, "groups"), True, "the model has groups of its own", "drop it")
        for key in ("compute_speed", "start_delay"):
            yield from self._outside(getattr(self.job.stragglers, key), *self.path, "stragglers", key)
        for collective, cases in self.job.algorithms.items():
            for number, case in enumerate(cases):
                path = (*self.path, "algorithms", collective, number)
                yield from self._algorithm(collective, case, path)
                if case.when is None and number + 1 < len(cases):
                    problem = "a case without `when` always applies, so the cases after it never do"
                    yield _wrong(problem, "put it last", *path)
                group = case.when.group if case.when is not None else None
                foreign = isinstance(self.job.workload, workload_models.OF_FILES)
                if group is not None and not self._names_calls(group) and not foreign:
                    problem = f'no group is called "{group}"'
                    yield _wrong(problem, did_you_mean(group, self.groups), *path, "when", "group")

    def _names_calls(self, group: str) -> bool:
        """Whether a condition's `group` names a group, one of several of a name, or groups whose names begin so."""
        name, _, number = group.rpartition(".")
        listed = self.job.groups.get(name, ())
        count = len(listed) if isinstance(listed, tuple) and listed and isinstance(listed[0], tuple) else None
        indexed = number.isdecimal() and name in self.groups and (count is None or int(number) < count)
        return group in self.groups or indexed or any(n.startswith(f"{group}.") for n in self.groups)

    def _outside(self, ranks: Iterable[int], *path: str | int) -> Iterator[Mistake]:
        beyond = [] if self.ranks is None else [rank for rank in ranks if rank >= self.ranks]
        if beyond and self.ranks is not None:
            problem = f"rank {beyond[0]} does not exist: there are {self.ranks}"
            yield _wrong(problem, f"write 0 to {self.ranks - 1}", *path)

    def _items(self) -> Iterator[Mistake]:
        names: dict[str, int] = {}
        for number, item in enumerate(self.job.workload):
            body, path = item.body, (*self.path, "workload", number, item.kind)
            for parent in body.after or ():
                if parent not in names:
                    later = any(i.body.name == parent for i in self.job.workload[number:])
                    problem = f'"{parent}" does not come before this item' if later else f'no item is called "{parent}"'
                    remedy = "name an earlier item" if later or not names else did_you_mean(parent, names)
                    yield _wrong(problem, remedy, *path, "after")
            if body.name is not None:
                if body.name in names:
                    problem = f'"{body.name}" is the name of workload[{names[body.name]}] too'
                    yield _wrong(problem, "choose another name", *path, "name")
                names[body.name] = number
            if isinstance(body, Collective):
                yield from self._group_of(body, path)
            yield from self._needs(item, path)
            if isinstance(body, Compute | Memory):
                yield from self._outside(body.ranks or (), *path, "ranks")
            if isinstance(body, Send):
                yield from self._outside((body.source,), *path, "from")
                yield from self._outside((body.to,), *path, "to")

    def _needs(self, item: workload_models.Item, path: Steps) -> Iterator[Mistake]:
        """What an item needs: a machine that the scenario describes, an algorithm where there is no default."""
        compute, memory = self.typed["compute"], self.typed["memory"]
        if item.compute is not None and item.compute.operations is not None and compute and not compute.roofline:
            remedy = 'write e.g. compute: {peak: "312 TFLOP/s", memory_bandwidth: "2 TB/s"}'
            yield _wrong("operations take time only on NPUs of a known peak", remedy, *path)
        if item.memory is not None and memory is not None and memory.kind == "none":
            remedy = 'write e.g. memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}'
            yield _wrong("the scenario has no remote memory", remedy, *path)
        if item.custom is not None and CUSTOM not in {**self.job.algorithms, **self.typed["algorithms"]}:
            remedy = "write e.g. algorithms: {custom: {file: alltonext.xml}}"
            yield _wrong("a custom collective needs an algorithm", remedy, *path)

    def _group_of(self, body: Collective, path: Steps) -> Iterator[Mistake]:
        size = self.ranks
        if isinstance(body.group, tuple):
            yield from self._outside(body.group, *path, "group")
            size = len(body.group)
        elif body.group is not None and body.group not in self.groups:
            problem = f'no group is called "{body.group}"'
            yield _wrong(problem, did_you_mean(body.group, self.groups), *path, "group")
            return
        elif body.group not in (None, "world"):
            group = self.job.groups[body.group]
            size = group.size if isinstance(group, job_models.Partition) else min(map(len, _listed(group)))
        if size is not None and body.root >= size:
            yield _wrong(f"{body.root} is not a position in a group of {size}", f"write 0 to {size - 1}", *path, "root")

    def _group(self, name: str, group: Any, path: Steps) -> Iterator[Mistake]:
        if name == "world":
            yield _wrong('"world" is the group of all ranks', "choose another name", *path)
        if not isinstance(group, job_models.Partition):
            for i, members in enumerate(_listed(group)):
                yield from self._outside(members, *path, *((i,) if isinstance(group[0], tuple) else ()))
        elif self.ranks is not None and self.ranks % (group.size * group.stride):
            problem = f"size {group.size} x stride {group.stride} does not divide {self.ranks} ranks"
            yield _wrong(problem, "choose a divisor, or list the ranks", *path)

    def _algorithm(self, collective: str, case: Any, path: Steps) -> Iterator[Mistake]:
        if isinstance(case, algorithm_models.AlgorithmSynthesis) and collective in ("barrier", CUSTOM):
            instead = "builder: NAME" if collective == "barrier" else "file: FILE, or python: FILE.py:FUNCTION"
            yield _wrong(f"a {collective} cannot be synthesized", f"write {instead}", *path, "synthesize")
        if isinstance(case, algorithm_models.AlgorithmByDimension):
            if collective not in BY_DIMENSION:
                remedy = f"only {', '.join(BY_DIMENSION)} go by dimension: write builder: NAME"
                yield _wrong(f"a {collective} is not cut by dimension", remedy, *path, "dims")
                return
            if case.protocol is not None:
                yield _wrong("protocol, which goes by dimension with the rest", "drop it", *path, "protocol")
            for number, builder in enumerate(case.dims):
                for key in ("when", "protocol"):
                    if getattr(builder, key) is not None:
                        yield _wrong(f"{key} of one dimension", "drop it", *path, "dims", number, key)
                yield from _builder(None, builder, (*path, "dims", number))
        if isinstance(case, algorithm_models.Builder):
            yield from _builder(collective, case, path)


_OWN = "write file: FILE, or python: FILE.py:FUNCTION"


def _listed(group: tuple) -> tuple[tuple[int, ...], ...]:
    """The groups that a listed group stands for."""
    return group if isinstance(group[0], tuple) else (group,)


def _builder(collective: str | None, case: algorithm_models.Builder, path: Steps) -> Iterator[Mistake]:
    """A builder that does not exist, has no `collective` (None: which is not known yet), or has no such option."""
    from astrasim_py.builders.registry import BUILDERS, options_of
    from astrasim_py.core.registry import names

    if case.builder in names("algorithm"):
        return
    if case.builder in LIBRARIES:
        if collective in (None, CUSTOM):
            problem = f"{case.builder} chooses for whole collectives, not for {collective or 'a dimension'}"
            yield _wrong(problem, "write a builder, e.g. ring" if collective is None else _OWN, *path, "builder")
        for option in case.options:
            yield _wrong(f"{case.builder} has no option {option}", "drop it", *path, option)
        return
    able = [name for name, (served, _) in BUILDERS.items() if collective is None or collective in served]
    if case.builder not in BUILDERS:
        remedy = did_you_mean(case.builder, (*(able or BUILDERS), *LIBRARIES, *names("algorithm")))
        yield _wrong(f'"{case.builder}" is not a builder', remedy, *path, "builder")
        return
    if case.builder not in able:
        remedy = f"use one of {', '.join(able)}" if able else _OWN
        yield _wrong(f"{case.builder} has no {collective}", remedy, *path, "builder")
    options = [option for option in options_of(case.builder) if option != "root"]
    for option in case.options:
        if option not in options:
            remedy = did_you_mean(option, options) if options else f"{case.builder} has no options"
            yield _wrong(f"{case.builder} has no option {option}", remedy, *path, option)
