"""Workloads from files: traces of all ranks and their groups, in the units in which they are simulated."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from astrasim_py.chakra import control
from astrasim_py.chakra.attributes import leaves_out_dims
from astrasim_py.chakra.decode import decode_text
from astrasim_py.chakra.et_io import read_prefix
from astrasim_py.chakra.groups import groups_from_json, groups_from_metadata, named
from astrasim_py.chakra.notes import Reading, notes_of
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload, kind_of
from astrasim_py.core.errors import TraceError
from astrasim_py.core.notes import Notes


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
    all_groups: dict[str, Sequence[int]] = {}
    if groups is None:
        for trace in dict.fromkeys(traces):
            all_groups |= groups_from_metadata(trace)
    else:
        all_groups |= groups if isinstance(groups, Mapping) else groups_from_json(groups)
    order = dependencies or kind_of(traces)
    changed = {}
    for trace in dict.fromkeys(traces):
        new = named(trace, all_groups) if all_groups else trace
        new = scale_sizes(new, dtype_bytes) if dtype_bytes is not None and dtype_bytes != 1 else new
        new = double_macs(new) if macs else new
        new = _untyped_as_compute(new) if untyped == "compute" else new
        if not keep_raw and next(leaves_out_dims(new), None) is None:
            new = new.without_raw()
        changed[trace] = control.as_data(new) if order == "data+ctrl" else new
    members = {key: tuple(ranks) for key, ranks in all_groups.items()}
    try:
        workload = Workload(tuple(changed[trace] for trace in traces), members, name or os.path.basename(place))
    except TraceError as error:
        source = place if groups is None or isinstance(groups, Mapping) else os.fspath(groups)
        raise TraceError(f"{source}: {error.place}", error.problem, error.remedy) from None
    read = Reading(traces, workload.traces, members, groups, size_unit, macs, dependencies, place)
    if notes is None:
        notes_of(read).warn()
    else:
        notes.add(notes_of(read))
    return workload


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
    rows = np.ones(len(trace), dtype=bool)
    if trace.raw is not None:
        codes, names = decode_text(trace.raw, "op_type", trace.place)
        if names:
            rows = codes == names.index("M") if "M" in names else ~rows
    return trace.replace(num_ops=_times(trace, "num_ops", 2, rows))


def _untyped_as_compute(trace: ExecutionTrace) -> ExecutionTrace:
    """Turn collectives without `comm_type` into CPU work."""
    rows = (trace.type == NodeType.COMM_COLL) & (trace.column("comm_type") == MISSING)
    if not rows.any():
        return trace
    is_cpu = np.where(rows, 1, trace.column("is_cpu_op"))
    return trace.replace(type=np.where(rows, NodeType.COMP, trace.type).astype(trace.type.dtype), is_cpu_op=is_cpu)


def _times(trace: ExecutionTrace, name: str, factor: int, rows: np.ndarray) -> np.ndarray:
    values = trace.column(name)
    rows = rows & (values != MISSING)
    over = np.flatnonzero(rows & (values > (2**63 - 1) // factor))
    if len(over):
        row = int(over[0])
        raise TraceError(
            trace.place,
            f"node {int(trace.node_id[row])}: {name} {int(values[row])} times {factor} is beyond 2^63 - 1",
            "check the unit of sizes",
        )
    return np.where(rows, values * factor, values)
