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
from astrasim_py.scenario import job_models
from astrasim_py.system.compatible import ECMP, EVENTS, NIC, exclusions
from astrasim_py.workload.items import Collective, Compute, Memory, Send

#: Top-level key → its typed value.
Typed = Mapping[str, Any]
#: Keys and indices that lead to a value.
Steps = tuple[str | int, ...]


def _wrong(problem: str, remedy: str, *steps: str | int) -> Mistake:
    return Mistake(steps, False, problem, remedy)


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
    for at, name in named_files(typed):
        if isinstance(name, CodeText) and not allow_code:
            yield _wrong("names Python code, which would be run", "run with --allow-code if you trust it", *at)
        try:
            if isinstance(name, CodeText):
                split_code(name, "")
            confined(name, folder, "", allow_outside)
        except ScenarioError as error:
            yield _wrong(error.problem, error.remedy, *at)


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
            steps = tuple(exclusion.place.partition(": ")[0].split("."))
            yield Mistake(steps, False, exclusion.problem, exclusion.remedy)


def job_mistakes(typed: Typed, topology: Any) -> Iterator[Mistake]:
    """Jobs against their topology (None: unknown): ranks, groups, algorithms, placements; memory of NPUs."""
    workloads = [one for one in (typed["workload"], *(job.workload for job in typed["jobs"].values())) if one]
    if workloads and typed["compute"] and not any(isinstance(one, job_models.ModelWorkload) for one in workloads):
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
            at = next((key for key in ("ranks", "placement") if typed[key] is not None), "topologies")
            dead = f" ({topology.failed_npus} of {topology.npu_count()} failed)" if topology.failed_npus else ""
            problem = f"{ranks} ranks are more than the {npus} NPUs of the topology{dead}"
            yield _wrong(problem, "write fewer ranks or a larger topology", at)
        yield from _JobCheck(SimpleNamespace(**typed), typed, npus if ranks is None else ranks).mistakes()


def _several_jobs(typed: Typed, topology: Any) -> Iterator[Mistake]:
    npus = topology.npu_count() if topology is not None else None
    owner: dict[int, str] = {}
    if all(job.background for job in typed["jobs"].values()):
        yield _wrong("all jobs are in the background, so the run would end at once", "leave one without", "jobs")
    for name, job in typed["jobs"].items():
        ranks = job.ranks if job.placement is None else len(job.placement)
        foreign = isinstance(job.workload, job_models.OF_FILES)
        if ranks is None and not foreign:
            yield _wrong("has neither ranks nor placement", "write e.g. ranks: 8", "jobs", name)
        if ranks is not None and job.ranks not in (None, ranks):
            problem = f"{ranks} NPUs are listed for {job.ranks} ranks"
            yield _wrong(problem, "drop ranks, or list one NPU per rank", "jobs", name, "ranks")
        yield from _JobCheck(job, typed, ranks, ("jobs", name)).mistakes()
        at = ("jobs", name, "placement")
        for npu in job.placement or ():
            if npu in owner:
                yield _wrong(f'NPU {npu} belongs to job "{owner[npu]}" too', "give each job NPUs of its own", *at)
                break
            if npus is not None and npu >= npus:
                yield _wrong(f"NPU {npu} does not exist: there are {npus}", f"write 0 to {npus - 1}", *at)
                break
        owner.update(dict.fromkeys(job.placement or (), name))
    if typed["algorithms"]:
        shared: dict[str, Any] = {"workload": None, "groups": {}, "stragglers": job_models.Stragglers()}
        yield from _JobCheck(SimpleNamespace(algorithms=typed["algorithms"], **shared), typed, None).mistakes()


class _JobCheck:
    """Checks the workload, groups, algorithms and stragglers of a job against each other and the rest of the scenario.

    `job`: with attributes of these names. `ranks`: number of ranks, if known. `at`: keys that lead to the job.
    """

    def __init__(self, job: Any, typed: Typed, ranks: int | None, at: Steps = ()) -> None:
        self.job, self.typed, self.ranks, self.at = job, typed, ranks, at
        own = job.workload.roles if isinstance(job.workload, job_models.ModelWorkload) else job.groups
        self.known = (*own, "world")

    def mistakes(self) -> Iterator[Mistake]:
        if isinstance(self.job.workload, tuple):
            yield from self._items()
        for name, group in self.job.groups.items():
            yield from self._group(name, group, (*self.at, "groups", name))
        if self.job.groups and isinstance(self.job.workload, job_models.ModelWorkload):
            yield Mistake((*self.at, "groups"), True, "the model has groups of its own", "drop it")
        for key in ("compute_speed", "start_delay"):
            yield from self._outside(getattr(self.job.stragglers, key), *self.at, "stragglers", key)
        for collective, cases in self.job.algorithms.items():
            for number, case in enumerate(cases):
                at = (*self.at, "algorithms", collective, number)
                yield from self._algorithm(collective, case, at)
                if case.when is None and number + 1 < len(cases):
                    problem = "a case without `when` always applies, so the cases after it never do"
                    yield _wrong(problem, "put it last", *at)
                group = case.when.group if case.when is not None else None
                foreign = isinstance(self.job.workload, job_models.OF_FILES)
                if group is not None and not self._names_calls(group) and not foreign:
                    problem = f'no group is called "{group}"'
                    yield _wrong(problem, did_you_mean(group, self.known), *at, "when", "group")

    def _names_calls(self, group: str) -> bool:
        """Whether a condition's `group` names a group, one of several of a name, or groups whose names begin so."""
        name, _, number = group.rpartition(".")
        listed = self.job.groups.get(name, ())
        count = len(listed) if isinstance(listed, tuple) and listed and isinstance(listed[0], tuple) else None
        one = number.isdecimal() and name in self.known and (count is None or int(number) < count)
        return group in self.known or one or any(own.startswith(f"{group}.") for own in self.known)

    def _outside(self, ranks: Iterable[int], *steps: str | int) -> Iterator[Mistake]:
        beyond = [] if self.ranks is None else [rank for rank in ranks if rank >= self.ranks]
        if beyond and self.ranks is not None:
            problem = f"rank {beyond[0]} does not exist: there are {self.ranks}"
            yield _wrong(problem, f"write 0 to {self.ranks - 1}", *steps)

    def _items(self) -> Iterator[Mistake]:
        names: dict[str, int] = {}
        for number, item in enumerate(self.job.workload):
            body, at = item.body, (*self.at, "workload", number, item.kind)
            for wanted in body.after or ():
                if wanted not in names:
                    later = any(i.body.name == wanted for i in self.job.workload[number:])
                    problem = f'"{wanted}" does not come before this item' if later else f'no item is called "{wanted}"'
                    remedy = "name an earlier item" if later or not names else did_you_mean(wanted, names)
                    yield _wrong(problem, remedy, *at, "after")
            if body.name is not None:
                if body.name in names:
                    problem = f'"{body.name}" is the name of workload[{names[body.name]}] too'
                    yield _wrong(problem, "choose another name", *at, "name")
                names[body.name] = number
            if isinstance(body, Collective):
                yield from self._group_of(body, at)
            yield from self._needs(item, at)
            if isinstance(body, Compute | Memory):
                yield from self._outside(body.ranks or (), *at, "ranks")
            if isinstance(body, Send):
                yield from self._outside((body.source,), *at, "from")
                yield from self._outside((body.to,), *at, "to")

    def _needs(self, item: job_models.Item, at: Steps) -> Iterator[Mistake]:
        """What an item needs: a machine that the scenario describes, an algorithm where there is no default."""
        compute, memory = self.typed["compute"], self.typed["memory"]
        if item.compute is not None and item.compute.operations is not None and compute and not compute.roofline:
            remedy = 'write e.g. compute: {peak: "312 TFLOP/s", memory_bandwidth: "2 TB/s"}'
            yield _wrong("operations take time only on NPUs of a known peak", remedy, *at)
        if item.memory is not None and memory is not None and memory.kind == "none":
            remedy = 'write e.g. memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}'
            yield _wrong("the scenario has no remote memory", remedy, *at)
        if item.custom is not None and CUSTOM not in {**self.job.algorithms, **self.typed["algorithms"]}:
            remedy = "write e.g. algorithms: {custom: {file: alltonext.xml}}"
            yield _wrong("a custom collective needs an algorithm", remedy, *at)

    def _group_of(self, body: Collective, at: Steps) -> Iterator[Mistake]:
        size = self.ranks
        if isinstance(body.group, tuple):
            yield from self._outside(body.group, *at, "group")
            size = len(body.group)
        elif body.group is not None and body.group not in self.known:
            problem = f'no group is called "{body.group}"'
            yield _wrong(problem, did_you_mean(body.group, self.known), *at, "group")
            return
        elif body.group not in (None, "world"):
            group = self.job.groups[body.group]
            size = group.size if isinstance(group, job_models.Partition) else min(map(len, _listed(group)))
        if size is not None and body.root >= size:
            yield _wrong(f"{body.root} is not a position in a group of {size}", f"write 0 to {size - 1}", *at, "root")

    def _group(self, name: str, group: Any, at: Steps) -> Iterator[Mistake]:
        if name == "world":
            yield _wrong('"world" is the group of all ranks', "choose another name", *at)
        if not isinstance(group, job_models.Partition):
            for i, members in enumerate(_listed(group)):
                yield from self._outside(members, *at, *((i,) if isinstance(group[0], tuple) else ()))
        elif self.ranks is not None and self.ranks % (group.size * group.stride):
            problem = f"size {group.size} x stride {group.stride} does not divide {self.ranks} ranks"
            yield _wrong(problem, "choose a divisor, or list the ranks", *at)

    def _algorithm(self, collective: str, case: Any, at: Steps) -> Iterator[Mistake]:
        if isinstance(case, job_models.AlgorithmSynthesis) and collective in ("barrier", CUSTOM):
            instead = "builder: NAME" if collective == "barrier" else "file: FILE, or python: FILE.py:FUNCTION"
            yield _wrong(f"a {collective} cannot be synthesized", f"write {instead}", *at, "synthesize")
        if isinstance(case, job_models.AlgorithmByDimension):
            if collective not in BY_DIMENSION:
                remedy = f"only {', '.join(BY_DIMENSION)} go by dimension: write builder: NAME"
                yield _wrong(f"a {collective} is not cut by dimension", remedy, *at, "dims")
                return
            if case.protocol is not None:
                yield _wrong("protocol, which goes by dimension with the rest", "drop it", *at, "protocol")
            for number, builder in enumerate(case.dims):
                for key in ("when", "protocol"):
                    if getattr(builder, key) is not None:
                        yield _wrong(f"{key} of one dimension", "drop it", *at, "dims", number, key)
                yield from _builder(None, builder, (*at, "dims", number))
        if isinstance(case, job_models.Builder):
            yield from _builder(collective, case, at)


_OWN = "write file: FILE, or python: FILE.py:FUNCTION"


def _listed(group: tuple) -> tuple[tuple[int, ...], ...]:
    """The groups that a listed group stands for."""
    return group if isinstance(group[0], tuple) else (group,)


def _builder(collective: str | None, case: job_models.Builder, at: Steps) -> Iterator[Mistake]:
    """A builder that does not exist, has no `collective` (None: which is not known yet), or has no such option."""
    from astrasim_py.builders.registry import BUILDERS, options_of
    from astrasim_py.core.registry import names

    if case.builder in names("algorithm"):
        return
    if case.builder in LIBRARIES:
        if collective in (None, CUSTOM):
            problem = f"{case.builder} chooses for whole collectives, not for {collective or 'a dimension'}"
            yield _wrong(problem, "write a builder, e.g. ring" if collective is None else _OWN, *at, "builder")
        for option in case.options:
            yield _wrong(f"{case.builder} has no option {option}", "drop it", *at, option)
        return
    able = [name for name, (served, _) in BUILDERS.items() if collective is None or collective in served]
    if case.builder not in BUILDERS:
        remedy = did_you_mean(case.builder, (*(able or BUILDERS), *LIBRARIES, *names("algorithm")))
        yield _wrong(f'"{case.builder}" is not a builder', remedy, *at, "builder")
        return
    if case.builder not in able:
        remedy = f"use one of {', '.join(able)}" if able else _OWN
        yield _wrong(f"{case.builder} has no {collective}", remedy, *at, "builder")
    known = [option for option in options_of(case.builder) if option != "root"]
    for option in case.options:
        if option not in known:
            remedy = did_you_mean(option, known) if known else f"{case.builder} has no options"
            yield _wrong(f"{case.builder} has no option {option}", remedy, *at, option)
