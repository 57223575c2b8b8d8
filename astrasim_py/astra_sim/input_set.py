"""Everything that an ASTRA-sim command line names, read."""

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from astrasim_py.astra_sim import configs
from astrasim_py.astra_sim.json_file import Changes
from astrasim_py.chakra.et_io import read_traces
from astrasim_py.chakra.groups import groups_from_json, groups_from_metadata
from astrasim_py.chakra.notes import other_names, unnamed
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.choices import ASTRA_SIM_BACKENDS
from astrasim_py.core.errors import TraceError, UsageError
from astrasim_py.system.machine_models import MAX_QUEUES, NO_MEMORY, MemoryModel

UNAWARE, AWARE, AWARE_MULTIDIM = BACKENDS = ASTRA_SIM_BACKENDS
#: ASTRA-sim's word for no communicator groups.
EMPTY = "empty"
Name = str | os.PathLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """ASTRA-sim's command line, as far as it decides what is simulated."""

    workload: Name | Sequence[Name] = field(repr=False)  # prefix of ``PREFIX.<rank>.et``, or a file per rank
    system: Name
    network: Name
    memory: Name | None = None
    groups: Name | None = None  # by default those that METADATA nodes declare; ``"empty"`` is none
    backend: str = UNAWARE  # one of `BACKENDS`
    queues_per_dim: int = 1
    injection_scale: float | Fraction | Decimal | str = Fraction(1)  # multiplies the endpoint delay
    rendezvous: bool = False
    folder: Name = "."  # what relative prefixes of injected algorithms start from
    #: ``system``, ``network`` or ``memory`` → values of keys in place of those of the file.
    changes: Mapping[str, Changes] = field(default_factory=dict)

    def changed(self, name: str) -> Changes:
        return self.changes.get(name, configs.NO_CHANGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The input of ASTRA-sim."""

    workload: Workload  # as read: one trace per NPU, and the communicator groups
    network: configs.NetworkConfig
    system: configs.SystemConfig
    memory: MemoryModel = NO_MEMORY
    per_node: dict[int, str] = field(default_factory=dict)  # workload node → prefix of the algorithm injected there
    backend: str = UNAWARE  # one of `BACKENDS`
    queues_per_dim: int = 1
    injection_scale: Fraction = Fraction(1)  # multiplies the endpoint delay
    rendezvous: bool = False
    folder: Path = Path()  # what relative prefixes of injected algorithms start from
    warnings: tuple[str, ...] = ()  # warnings of reading
    files: tuple[str, ...] = ()  # configuration files that were read, for the manifest of a result

    @property
    def npus(self) -> int:
        return self.network.npus

    @property
    def endpoint_delay_ns(self) -> int:
        """Endpoint delay after scaling, in doubles and cut to whole ns as ASTRA-sim does."""
        return int(self.system.endpoint_delay * float(self.injection_scale))


def read_inputs(arguments: Arguments, cache: MutableMapping | None = None) -> Inputs:
    """Read all files of a run.

    `cache`: traces read before, shared between calls; only while the files do not change. Raises ScenarioError,
    TraceError, UsageError: a file that is missing, cannot be read, or says what ASTRA-sim could not use.
    """
    if arguments.backend not in BACKENDS:
        raise UsageError("--backend", f'"{arguments.backend}" is unknown', f"write {UNAWARE} or {AWARE}")
    queues, scale = arguments.queues_per_dim, Fraction(str(arguments.injection_scale))
    if not 1 <= queues <= MAX_QUEUES:
        raise UsageError("--num-queues-per-dim", f"{queues} is out of range", f"write 1 to {MAX_QUEUES}")
    if not 0 <= scale <= 10**9:
        problem = f"{arguments.injection_scale} is out of range"
        raise UsageError("--injection-scale", problem, "write a number from 0, e.g. 1")
    warnings: list[str] = []
    network = configs.read_network(arguments.network, warnings, arguments.changed("network"))
    system = configs.read_system(arguments.system, warnings, arguments.changed("system"))
    if arguments.memory is None:
        warnings.append("no remote memory configuration: there is none, as under NO_MEMORY_EXPANSION")
    memory = NO_MEMORY
    if arguments.memory is not None:
        memory = configs.read_memory(arguments.memory, network.npus, warnings, arguments.changed("memory"))
    files = [os.fspath(file) for file in (arguments.system, arguments.network, arguments.memory) if file is not None]
    groups = None if arguments.groups in (None, EMPTY) else os.fspath(arguments.groups)
    workload = _workload(arguments.workload, groups, network.npus, warnings, cache)
    per_node: dict[int, str] = {}
    if system.per_node_custom_implementation:
        name = arguments.folder / Path(system.per_node_custom_implementation)
        per_node = configs.read_per_node(name)
        files.append(os.fspath(name))
        called = {
            int(node)
            for trace in dict.fromkeys(workload.traces)
            for node in trace.node_id[trace.type == NodeType.COMM_COLL]
        }
        for node in sorted(per_node.keys() - called):
            warnings.append(f"{os.fspath(name)}: {node}: no collective of the workload is a node {node}")
    return Inputs(
        workload=workload,
        network=network,
        system=system,
        memory=memory,
        per_node=per_node,
        backend=arguments.backend,
        queues_per_dim=queues,
        injection_scale=scale,
        rendezvous=arguments.rendezvous,
        folder=Path(arguments.folder),
        warnings=tuple(warnings),
        files=tuple(files if groups is None else [*files, groups]),
    )


def _workload(
    files: Name | Sequence[Name],
    groups: str | None,
    npus: int,
    warnings: list[str],
    cache: MutableMapping | None,
) -> Workload:
    if isinstance(files, str | os.PathLike):
        name = os.path.basename(os.fspath(files))
        traces = read_set(files, npus, "the network", cache)
        if os.path.exists(f"{os.fspath(files)}.{npus}.et"):
            warnings.append(f"{os.fspath(files)}: files beyond rank {npus - 1} are not read: there are {npus} NPUs")
    else:
        name = os.path.basename(os.fspath(files[0])) if files else ""
        traces = _read([os.fspath(path) for path in files], cache)
    if len(traces) != npus:
        raise TraceError(name, f"{len(traces)} traces for {npus} NPUs", "give one per NPU")
    groups_by_id: dict[str, tuple[int, ...]] = {}
    for trace in dict.fromkeys(traces):
        groups_by_id.update(groups_from_metadata(trace))
    for key, members in groups_from_json(groups).items() if groups is not None else ():
        if not (key.isascii() and key.isdecimal()) or len(key) > 9 or int(key) == 0:
            raise TraceError(f"{groups}: {key[:40]}", "is not a group id", "write whole numbers from 1")
        if not members:
            raise TraceError(f"{groups}: {key}", "is a group without ranks", "list its ranks")
        if max(members) >= npus:
            raise TraceError(f"{groups}: {key}", f"rank {max(members)} is not one of {npus} NPUs")
        groups_by_id[str(int(key))] = members
    if groups is not None:
        if unread := other_names(traces, traces):
            warnings.append(f"{unread}, which ASTRA-sim does not read: they are of all NPUs; write pg_name")
        if groups_by_id and unnamed(traces, [*groups_by_id]) == [*groups_by_id]:
            warnings.append(f"{groups}: none of its groups is named by a collective")
    return Workload(traces, groups_by_id, name)


def read_set(prefix: Name, ranks: int, whose: str, cache: MutableMapping | None = None) -> tuple[ExecutionTrace, ...]:
    """Read ``PREFIX.<rank>.et`` or ``.et.gz`` of ranks 0..`ranks` - 1; others are ignored, as ASTRA-sim ignores them.

    Raises TraceError: missing files, by name, or as `read_traces`.
    """
    place = os.fspath(prefix)
    paths = [f"{place}.{rank}.et" for rank in range(ranks)]
    paths = [path if os.path.exists(path) or not os.path.exists(f"{path}.gz") else f"{path}.gz" for path in paths]
    if cache is None or not all(("trace", path) in cache for path in paths):
        missing = [path for path in paths if not os.path.exists(path)]
        if missing:
            names = ", ".join(os.path.basename(path) for path in missing[:8]) + (", …" if len(missing) > 8 else "")
            hint = f"name the part before .<rank>.et: {place[: -len('.0.et')]}" if place.endswith(".0.et") else ""
            count = "a file is missing" if len(missing) == 1 else f"{len(missing)} files are missing"
            problem = f"{whose} has {ranks} ranks, and {count}: {names}"
            raise TraceError(place, problem, hint or "ASTRA-sim needs PREFIX.<rank>.et of every rank")
    return _read(paths, cache)


def _read(paths: Sequence[str], cache: MutableMapping | None) -> tuple[ExecutionTrace, ...]:
    read_files = {} if cache is None else cache
    new: dict[str, int] = {}
    for rank, path in enumerate(paths):
        if ("trace", path) not in read_files:
            new.setdefault(path, rank)
    for path, trace in zip(new, read_traces(list(new), list(new.values())), strict=True):
        read_files["trace", path] = trace
    return tuple(read_files["trace", path] for path in paths)
