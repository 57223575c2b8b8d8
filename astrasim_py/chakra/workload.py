"""`Workload`: the traces of all ranks, in the units that they were written in, and their communicator groups."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from astrasim_py.chakra import control
from astrasim_py.chakra.attributes import leaves_out_dims
from astrasim_py.chakra.decode import decode_text
from astrasim_py.chakra.et_io import read_prefix
from astrasim_py.chakra.groups import check_distinct, groups_from_json, groups_from_metadata, named
from astrasim_py.chakra.notes import Reading, notes_of
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TraceError
from astrasim_py.core.notes import Notes
from astrasim_py.core.shown import Shown


@dataclass(frozen=True, repr=False)
class Workload(Shown):
    """The traces of all ranks and their communicator groups.

    Attributes
    ----------
    traces : tuple of ExecutionTrace
        Index is the rank. Ranks with traces that are equal but for groups and peers may share one object.
    groups : mapping of str to tuple of int
        Ranks of each group, in its own order; an empty tuple means all ranks. No group name, ``""`` and
        ``"0"`` always mean all ranks.
    roles : mapping of str to sequence of (str or None)
        Role → the group of each rank, None for ranks without one. If a trace names a role in place of a group, each
        rank uses its own group.
    shifts : sequence of int
        By rank, what is added to the `comm_src` and `comm_dst` of its trace; all 0 by default.

    Raises
    ------
    TraceError
        A group with a rank twice or beyond the last one; a role with the name of a group; a role that gives a rank
        an unknown group or one without that rank; roles or shifts of another number of ranks.
    """

    traces: tuple[ExecutionTrace, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    name: str = ""
    roles: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    shifts: Sequence[int] = ()

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
        object.__setattr__(self, "shifts", tuple(self.shifts) or (0,) * self.ranks)
        object.__setattr__(self, "roles", {name: tuple(own) for name, own in self.roles.items()})
        lengths = {"shifts": len(self.shifts)} | {f"role {name}": len(own) for name, own in self.roles.items()}
        for what, length in lengths.items():
            if length != self.ranks:
                raise TraceError(what, f"has {length} values for {self.ranks} ranks", "write one for every rank")
        members = {name: frozenset(self.members(name)) for name in ("", "0", *groups)}
        for name, own in self.roles.items():
            if name in members or name == "world":
                raise TraceError(f"role {name}", "is also the name of a group", "give it a name of its own")
            for rank, group in enumerate(own):
                if group is not None and rank not in members.get(group, ()):
                    wrong = "is not one of its members" if group in members else "there is no such group"
                    raise TraceError(
                        f"role {name}", f'gives rank {rank} the group "{group}", and {wrong}', "write its own group"
                    )

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        return self.name or "unnamed", {
            "ranks": self.ranks,
            "nodes": sum(map(len, self.traces)),
            "groups": len(self.groups),
        }

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.traces)

    @cached_property
    def dependencies(self) -> str:
        """Those that order its nodes where nobody says others: ``"data"``, or ``"data+ctrl"`` of one without data
        dependencies.
        """
        return control.kind_of(self.traces)

    def members(self, group: str | None) -> tuple[int, ...]:
        """Ranks of a group in its order; raises TraceError if there is none of that name."""
        if not group or group == "0":
            return tuple(range(len(self.traces)))
        if group not in self.groups:
            known = ", ".join(sorted(self.groups)[:8])
            raise TraceError(
                f"group {group}",
                f"no communicator group is called {group!r}" + (f" (there are {known})" if known else ""),
                "give the communicator groups as a JSON file {name: [ranks]}",
            )
        return self.groups[group] or tuple(range(len(self.traces)))

    def group(self, name: str, rank: int) -> str:
        """The group that a rank calls by a name in its trace: of a role its own, else the one of that name.

        Raises TraceError: the rank has no group in that role.
        """
        group = self.roles[name][rank] if name in self.roles else name
        if group is None:
            raise TraceError(f"role {name}", f"gives rank {rank} no group, but its trace uses one", "write its group")
        return group

    def trace(self, rank: int) -> ExecutionTrace:
        """A rank's own trace, with groups in place of roles, and its own peers.

        Raises TraceError: the rank has no group in a role that its trace names.
        """
        trace, shift = self.traces[rank], self.shifts[rank]
        codes, names = trace.group_of()
        columns: dict[str, Any] = {
            name: np.where(trace.column(name) == MISSING, MISSING, trace.column(name) + shift)
            for name in ("comm_src", "comm_dst")
            if shift and trace.has_column(name)
        }
        if not self.roles.keys().isdisjoint(names):
            used = np.bincount(codes[codes >= 0], minlength=len(names)) > 0
            own = [self.group(name, rank) if use else "" for name, use in zip(names, used.tolist(), strict=True)]
            distinct = {name: code for code, name in enumerate(dict.fromkeys(own))}
            number = np.array([*(distinct[name] for name in own), -1], dtype=np.int32)
            columns["pg_name"] = number[codes], tuple(distinct)
        return trace.replace(rank=rank, **columns) if columns else trace

    def digest(self) -> str:
        """SHA-256 over traces, groups, and roles and shifts if there are any; the name does not count."""
        value: dict[str, object] = {"traces": [trace.digest() for trace in self.traces], "groups": self.groups}
        if self.roles or any(self.shifts):
            value |= {"roles": self.roles, "shifts": self.shifts}
        return digest(value)


def read_workload(
    prefix: str | os.PathLike[str],
    *,
    groups: str | os.PathLike[str] | Mapping[str, Sequence[int]] | None = None,
    size_unit: str = "bytes",
    dtype_bytes: int | None = None,
    macs: bool = False,
    untyped: str = "error",
    dependencies: str | None = None,
    ranks: int | None = None,
    name: str = "",
    keep_raw: bool = True,
    notes: Notes | None = None,
) -> Workload:
    """Read the traces of all ranks and their communicator groups.

    What the files say and the workload does not use is told by Python warnings, or put into `notes`.

    Parameters
    ----------
    prefix : path
        Of files `PREFIX.<rank>.et`.
    groups : path or mapping, optional
        JSON file of group id to ranks, or the same as a mapping. By default the process groups that METADATA
        nodes declare, if any.
    size_unit : str
        ``"bytes"``, or ``"elements"`` for producers that write element counts (symbolic tensor graph); these
        are multiplied by `dtype_bytes`.
    dtype_bytes : int, optional
        Bytes per element.
    macs : bool
        The producer counts a multiply-accumulate as one operation: see `double_macs`.
    untyped : str
        What COMM_COLL nodes without `comm_type` are: ``"error"``, refused where they are simulated, or ``"compute"``,
        CPU work of their recorded duration, as wrappers such as ``nccl:all_reduce`` are.
    dependencies : str, optional
        Dependencies that order the nodes; they are the data dependencies of the result. ``"data"``: those, whatever
        else there is; ``"data+ctrl"``: control dependencies, too; by default data dependencies, or control
        dependencies where no trace of the set has a data dependency.
    ranks : int, optional
        Number of ranks there must be.
    keep_raw : bool
        Keep the bytes of the files; those with collectives that leave out dimensions are kept in any case.
    notes : Notes, optional
        Takes the lines that are else warnings.

    Raises
    ------
    TraceError
        As `read_prefix`; a bad group file; a node that names two groups; sizes beyond 2^63 - 1; control dependencies
        that are to hold and are cyclic or dangling.
    """
    place = os.fspath(prefix)
    if size_unit not in ("bytes", "elements"):
        raise TraceError(place, f'size unit "{size_unit}" is unknown', 'write "bytes" or "elements"')
    if (size_unit == "elements") != (dtype_bytes is not None):
        problem = "elements need dtype_bytes" if dtype_bytes is None else "dtype_bytes is for elements only"
        raise TraceError(place, problem, 'write size_unit "elements" and dtype_bytes 2, or neither')
    if dtype_bytes is not None and not 1 <= dtype_bytes <= 2**16:
        raise TraceError(place, f"dtype_bytes is {dtype_bytes}", "write the bytes per element, e.g. 2")
    if dependencies not in (None, "data", "data+ctrl"):
        raise TraceError(place, f'dependencies "{dependencies}" is unknown', 'write "data" or "data+ctrl"')
    traces = read_prefix(prefix, ranks)
    given: dict[str, Sequence[int]] = {}
    if groups is None:
        for trace in dict.fromkeys(traces):
            given |= groups_from_metadata(trace)
    else:
        given |= groups if isinstance(groups, Mapping) else groups_from_json(groups)
    order = dependencies or control.kind_of(traces)
    changed = {}
    for trace in dict.fromkeys(traces):
        new = named(trace, given) if given else trace
        new = scale_sizes(new, dtype_bytes) if dtype_bytes is not None and dtype_bytes != 1 else new
        new = double_macs(new) if macs else new
        new = _untyped_as_compute(new) if untyped == "compute" else new
        if not keep_raw and next(leaves_out_dims(new), None) is None:
            new = new.without_raw()
        changed[trace] = control.as_data(new) if order == "data+ctrl" else new
    members = {key: tuple(ranks) for key, ranks in given.items()}
    try:
        made = Workload(tuple(changed[trace] for trace in traces), members, name or os.path.basename(place))
    except TraceError as error:
        source = place if groups is None or isinstance(groups, Mapping) else os.fspath(groups)
        raise TraceError(f"{source}: {error.place}", error.problem, error.remedy) from None
    read = Reading(traces, made.traces, members, groups, size_unit, macs, dependencies, place)
    if notes is None:
        notes_of(read).warn()
    else:
        notes.add(notes_of(read))
    return made


def scale_sizes(trace: ExecutionTrace, dtype_bytes: int) -> ExecutionTrace:
    """Turn element counts into bytes: `comm_size` and `tensor_size` times `dtype_bytes`.

    Raises TraceError: a size beyond 2^63 - 1 bytes.
    """
    columns = {}
    for name in ("comm_size", "tensor_size"):
        if trace.has_column(name):
            columns[name] = _times(trace, name, dtype_bytes, np.ones(len(trace), dtype=bool))
    return trace.replace(**columns) if columns else trace


def double_macs(trace: ExecutionTrace) -> ExecutionTrace:
    """Turn multiply-accumulates into operations: `num_ops` of matrix products times 2.

    Where nodes carry an `op_type` those of type ``M`` are the matrix products; without any, all nodes are.

    Raises TraceError: more than 2^63 - 1 operations.
    """
    if not trace.has_column("num_ops"):
        return trace
    chosen = np.ones(len(trace), dtype=bool)
    if trace.raw is not None:
        codes, names = decode_text(trace.raw, "op_type", trace.place)
        if names:
            chosen = codes == names.index("M") if "M" in names else ~chosen
    return trace.replace(num_ops=_times(trace, "num_ops", 2, chosen))


def _untyped_as_compute(trace: ExecutionTrace) -> ExecutionTrace:
    """Turn collectives without `comm_type` into CPU work."""
    rows = (trace.type == NodeType.COMM_COLL) & (trace.column("comm_type") == MISSING)
    if not rows.any():
        return trace
    own = np.where(rows, 1, trace.column("is_cpu_op"))
    return trace.replace(type=np.where(rows, NodeType.COMP, trace.type).astype(trace.type.dtype), is_cpu_op=own)


def _times(trace: ExecutionTrace, name: str, factor: int, chosen: np.ndarray) -> np.ndarray:
    values = trace.column(name)
    chosen = chosen & (values != MISSING)
    over = np.flatnonzero(chosen & (values > (2**63 - 1) // factor))
    if len(over):
        row = int(over[0])
        raise TraceError(
            trace.place,
            f"node {int(trace.node_id[row])}: {name} {int(values[row])} times {factor} is beyond 2^63 - 1",
            "check the unit of sizes",
        )
    return np.where(chosen, values * factor, values)
