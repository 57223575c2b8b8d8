"""ASTRA-sim's workload layer: what it does with a trace that is not what the trace says, and what it cannot do."""

import re

import numpy as np

from astrasim_py.astra_sim.configs import MEMORY_GB
from astrasim_py.astra_sim.input_set import Inputs
from astrasim_py.astra_sim.quirks import warning, without_own_attributes
from astrasim_py.chakra.schema import COLUMN_KINDS, MISSING, CommType, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError, TraceError
from astrasim_py.system.durations import node_place, roofline_ps
from astrasim_py.system.machine_models import ComputeModel
from astrasim_py.system.semantics import Semantics

#: Collectives that ASTRA-sim simulates; a broadcast it replays, all others it refuses.
SIMULATED = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.ALL_TO_ALL, CommType.REDUCE_SCATTER)
_CORRECTED = "use --corrected"
#: Kinds of slot that a node holds, as in the column ``slot_kind``.
_NOTHING, _CPU, _COMPUTE, _COMMUNICATION = range(4)
_PG_NAME = re.compile(r"\s*[+-]?[0-9]{1,9}")


def compute_model(inputs: Inputs, *, corrected: bool = False) -> ComputeModel:
    """The roofline of a system JSON, or recorded durations.

    Raises ScenarioError: a roofline without the figures that it is made of; corrected, it can do without local-mem-bw.
    """
    system = inputs.system
    if not system.roofline_enabled or system.replay_only:
        return ComputeModel()
    peak, rate = system.peak_perf, system.local_mem_bw
    if not peak or not (rate or corrected):
        problem = "is missing or 0, and roofline-enabled needs it"
        raise ScenarioError(system.at("local_mem_bw" if peak else "peak_perf"), problem, "write e.g. 100")
    return ComputeModel(roofline=True, peak=peak * 10**12, memory_bandwidth=rate * MEMORY_GB if rate else None)


def _refuse(trace: ExecutionTrace, rank: int, wrong: np.ndarray, problem: str, remedy: str) -> None:
    """Raise an error of the first of the nodes that are marked, bool[n]."""
    if wrong.any():
        raise TraceError(node_place(trace, int(wrong.argmax()), f"rank {rank}"), problem, remedy)


def compatible_workload(inputs: Inputs, warnings: list[str]) -> Workload:
    """The workload as ASTRA-sim runs it; raises TraceError: a node on which ASTRA-sim aborts; it is named."""
    compute = compute_model(inputs)
    changed: dict[ExecutionTrace, ExecutionTrace] = {}
    replayed = zero = False
    skipped = ""
    cleaned = {trace: without_own_attributes(trace, warnings) for trace in dict.fromkeys(inputs.workload.traces)}
    traces = [cleaned[trace] for trace in inputs.workload.traces]
    for rank, trace in enumerate(traces):
        if trace in changed:
            continue
        _refuse(trace, rank, trace.type == NodeType.METADATA, "ASTRA-sim aborts on METADATA nodes", _CORRECTED)
        changed[trace] = trace
        durations = trace.type == NodeType.COMP
        if inputs.system.replay_only:
            zero |= bool((trace.duration_micros == 0).any())
            changed[trace] = with_replayed(trace, np.ones(len(trace), dtype=bool))
            continue
        _check_communication(trace, rank)
        _warn_of_misspelt_dims(trace, rank, warnings)
        broadcast = (trace.type == NodeType.COMM_COLL) & (trace.column("comm_type") == CommType.BROADCAST)
        replayed |= bool(broadcast.any())
        skip = trace.type == NodeType.INVALID
        if compute.roofline:
            on_gpu = durations & (trace.column("is_cpu_op") <= 0)
            skip |= on_gpu & (trace.column("tensor_size") == 0)
            durations &= ~on_gpu
            _check_roofline(trace, rank, on_gpu & ~skip, compute)
        zero |= bool(((durations | broadcast) & (trace.duration_micros == 0)).any())
        changed[trace] = with_replayed(trace, broadcast)
        if skip.any():
            skipped = skipped or node_place(trace, int(np.flatnonzero(skip)[0]), f"rank {rank}")
            changed[trace] = with_skipped(changed[trace], skip)
    for place, quirk in ((skipped, "skipped-node"), (replayed, "broadcast-replayed"), (zero, "zero-duration")):
        if place:
            warnings.append(warning(quirk, place if isinstance(place, str) else ""))
    return Workload(tuple(changed[trace] for trace in traces), inputs.workload.groups, inputs.workload.name)


def corrected_workload(inputs: Inputs) -> Workload:
    """The workload as it is; under replay-only with every node replaced by its duration."""
    if not inputs.system.replay_only:
        return inputs.workload
    replayed = {t: with_replayed(t, np.ones(len(t), dtype=bool)) for t in inputs.workload.traces}
    return Workload(tuple(replayed[t] for t in inputs.workload.traces), inputs.workload.groups, inputs.workload.name)


def with_replayed(trace: ExecutionTrace, replayed: np.ndarray) -> ExecutionTrace:
    """A trace in which some nodes take their recorded duration, in the slot that their type holds.

    `replayed`: bool[n].
    """
    if not replayed.any():
        return trace
    slot = np.full(len(trace), _COMMUNICATION, dtype=np.int64)
    slot[trace.type == NodeType.COMP] = _COMPUTE
    slot[trace.type == NodeType.COMM_RECV] = _NOTHING
    slot[trace.column("is_cpu_op") > 0] = _CPU
    return trace.replace(
        type=np.where(replayed, NodeType.COMP, trace.type),
        slot_kind=np.where(replayed, slot, trace.column("slot_kind")),
        num_ops=np.where(replayed, MISSING, trace.column("num_ops")),
    )


def _check_communication(trace: ExecutionTrace, rank: int) -> None:
    kind = trace.type
    sends, collective = kind == NodeType.COMM_SEND, kind == NodeType.COMM_COLL
    on_cpu = (sends | collective | (kind == NodeType.COMM_RECV)) & (trace.column("is_cpu_op") > 0)
    _refuse(trace, rank, on_cpu, "communicates and has is_cpu_op true: ASTRA-sim aborts", "write false")
    empty = sends & (trace.column("comm_size") == 0)
    _refuse(trace, rank, empty, "sends 0 bytes: ASTRA-sim aborts on empty messages", _CORRECTED)
    codes = trace.column("comm_type")
    _refuse(trace, rank, collective & (codes == MISSING), "lacks comm_type", "write 0 (ALL_REDUCE), 2, 6 or 7")
    unknown = collective & ~np.isin(codes, [*SIMULATED, CommType.BROADCAST])
    code = int(codes[unknown.argmax()]) if len(codes) else 0
    name = CommType(code).name if code in [*CommType] else f"comm_type {code}"
    remedy = f"use ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, or {_CORRECTED[4:]}"
    _refuse(trace, rank, unknown, f"{name} is not simulated by ASTRA-sim, which throws here", remedy)
    numbers, names = trace.group_of()
    odd = [code for code, name in enumerate(names) if name and not _PG_NAME.match(name)]
    wrong = collective & np.isin(numbers, odd)
    if wrong.any():
        problem = f'its pg_name "{names[numbers[wrong.argmax()]][:40]}" is not a number: ASTRA-sim throws here'
        _refuse(trace, rank, wrong, problem, "name the groups 1, 2, …")


def _warn_of_misspelt_dims(trace: ExecutionTrace, rank: int, warnings: list[str]) -> None:
    """Warn where collectives name their dimensions by another attribute than the one that is read."""
    rows = np.flatnonzero(trace.type == NodeType.COMM_COLL)
    if len(rows) and not any('did you mean "involved_dim"?' in text for text in warnings):
        # A file is written by one program: its first collective tells of all.
        for attribute in trace.node(int(rows[0])).attr:
            if attribute.name != "involved_dim" and attribute.name.startswith("involve"):
                place = node_place(trace, int(rows[0]), f"rank {rank}")
                warnings.append(f'{place}: the attribute {attribute.name} is ignored; did you mean "involved_dim"?')


def _check_roofline(trace: ExecutionTrace, rank: int, rows: np.ndarray, compute: ComputeModel) -> None:
    operations, nbytes = trace.column("num_ops"), trace.column("tensor_size")
    for name, column in (("num_ops", operations), ("tensor_size", nbytes)):
        problem = f"lacks {name}, and roofline-enabled needs it"
        _refuse(trace, rank, rows & (column == MISSING), problem, "give it, or switch it off")
    problem = "has num_ops 0: under the roofline ASTRA-sim divides 0 by 0"
    _refuse(trace, rank, rows & (operations == 0), problem, "give its operations, or mark it as is_cpu_op")
    first = np.diff(trace.data_deps.ptr) + np.diff(trace.ctrl_deps.ptr) == 0
    # Only the ready node of the lowest id gets the NPU at time 0.
    ready = sorted(np.flatnonzero(rows & first).tolist(), key=lambda row: int(trace.node_id[row]))
    for row in ready[:1]:
        if roofline_ps(int(operations[row]), int(nbytes[row]), compute, Semantics.astra_sim()) == 0:
            problem = "takes 0 ns and is the first of its rank: ASTRA-sim aborts on an event at time 0"
            _refuse(trace, rank, np.arange(len(trace)) == row, problem, _CORRECTED)


def with_skipped(trace: ExecutionTrace, skip: np.ndarray) -> ExecutionTrace:
    """A trace in which some nodes take no time, and their children wait for the next completion of another node.

    All other nodes count in counter 0 of the rank; a child of a skipped node waits for the next count after it.

    `skip`: bool[n]: the skipped nodes.
    """
    size = len(trace)
    ids = trace.node_id
    ptr, parents = trace.parents("data+ctrl")
    child = np.repeat(np.arange(size), np.diff(ptr))
    late = skip[parents]
    of_child: dict[int, list[int]] = {}
    for row, parent in zip(child[late].tolist(), parents[late].tolist(), strict=True):
        if parent not in of_child.setdefault(row, []):
            of_child[row].append(parent)
    several = {row: skipped_parents for row, skipped_parents in of_child.items() if len(skipped_parents) > 1}
    if several:
        # The last of several skipped parents is known only by running: an instant node waits for all of them.
        trace = _with_joins(trace, several)
        joins = {row: size + k for k, row in enumerate(several)}
        skip = np.concatenate([skip, np.ones(len(several), dtype=bool)])
        ids = trace.node_id
    else:
        joins = {}
    count_of = np.full(len(trace), MISSING, dtype=np.int64)
    count_k, count_from = count_of.copy(), count_of.copy()
    for row, skipped_parents in of_child.items():
        count_of[row], count_k[row] = 0, 1
        count_from[row] = int(ids[joins.get(row, skipped_parents[0])])
    return trace.replace(
        type=np.where(skip, NodeType.INVALID, trace.type),
        counter=np.where(skip, MISSING, 0),
        count_of=count_of,
        count_k=count_k,
        count_from=count_from,
    )


def _with_joins(trace: ExecutionTrace, several: dict[int, list[int]]) -> ExecutionTrace:
    """The trace with an INVALID node behind it for every entry, which depends on all its rows."""
    more = len(several)
    top = int(trace.node_id.max()) + 1
    numbers, names = trace.group_of()
    groups = [names[code] if code >= 0 else None for code in numbers.tolist()]

    def longer(values: np.ndarray, fill: int) -> np.ndarray:
        return np.concatenate([values, np.full(more, fill, dtype=values.dtype)])

    data, ctrl = trace.data_deps, trace.ctrl_deps
    added = [trace.node_id[list(rows)] for rows in several.values()]
    ends = data.ptr[-1] + np.cumsum([len(a) for a in added])
    return ExecutionTrace.from_columns(
        node_id=np.concatenate([trace.node_id, np.arange(top, top + more, dtype=np.uint64)]),
        type=longer(trace.type, NodeType.INVALID),
        data_deps=Csr(np.concatenate([data.ptr, ends]), np.concatenate([data.ids, *added])),
        ctrl_deps=Csr(np.concatenate([ctrl.ptr, np.full(more, ctrl.ptr[-1])]), ctrl.ids),
        duration_micros=longer(trace.duration_micros, 0),
        start_time_micros=longer(trace.start_time_micros, 0),
        names=[*trace.names, *[""] * more],
        pg_name=[*groups, *[None] * more] if names else None,
        version=trace.version,
        metadata=trace.metadata,
        place=trace.place,
        rank=trace.rank,
        **{name: longer(trace.column(name), MISSING) for name in COLUMN_KINDS if trace.has_column(name)},
    )
