"""Durations of nodes (recorded, roofline, reduction, remote memory) and messages, as integers of picoseconds."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import InternalError, ScenarioError, TraceError
from astrasim_py.core.units import INT64_MAX, PS_PER_NS, PS_PER_S, transfer_ps
from astrasim_py.program.table import Program, file_of
from astrasim_py.system.machine_models import ComputeModel, MemoryModel
from astrasim_py.system.semantics import Semantics

PS_PER_US = 10**6


def node_place(trace: ExecutionTrace | Program, row: int, default: str = "trace") -> str:
    """``file: node 7``, for messages."""
    return f"{file_of(trace, row) or default}: node {int(trace.node_id[row])}"


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _checked(ps: int, table: Program, row: int) -> int:
    if ps > INT64_MAX:
        problem = f"takes {ps} ps, longer than 2^63 - 1 ps (106 days)"
        raise TraceError(node_place(table, row), problem, "check the unit of its duration")
    return ps


def recorded_ps(table: Program, semantics: Semantics) -> np.ndarray:
    """int64[n]: ``duration_ps`` of every node, else ``duration_micros``; 0 becomes `Semantics.zero_duration_ps`."""
    micros = table.duration_micros
    for row in np.flatnonzero(micros > np.uint64(INT64_MAX // PS_PER_US)).tolist():
        _checked(int(micros[row]) * PS_PER_US, table, row)
    duration = micros.astype(np.int64) * PS_PER_US
    exact = table.column("duration_ps")
    present = exact != MISSING
    negative = present & (exact < 0)
    if negative.any():
        row = int(np.argmax(negative))
        raise TraceError(node_place(table, row), f"duration_ps {int(exact[row])} is negative")
    return np.where(present, exact, np.where(duration == 0, semantics.zero_duration_ps, duration))


def roofline_ps(operations: int, nbytes: int, compute: ComputeModel, semantics: Semantics) -> int:
    """Roofline time (Williams et al., CACM 2009) of one node: max(operations / peak, bytes / bandwidth)."""
    if compute.peak is None:
        raise InternalError("a roofline without a peak")
    if semantics.rounding == "floor_ns":
        # ASTRA-sim: perf = min(bandwidth * intensity, peak); floor(operations / perf) in ns, in doubles.
        if nbytes <= 0:
            return 0
        perf = float(compute.peak)
        if compute.memory_bandwidth is not None:
            perf = min(float(compute.memory_bandwidth) * (operations / nbytes), perf)
        return int(operations / perf * 1e9) * PS_PER_NS if perf else 0
    time = Fraction(operations) / compute.peak
    if compute.memory_bandwidth is not None:
        time = max(time, Fraction(nbytes) / compute.memory_bandwidth)
    return _ceil(time * PS_PER_S)


def workload_ps(table: Program, compute: ComputeModel, semantics: Semantics, speed: Fraction) -> np.ndarray:
    """int64[n]: duration of every compute node of a workload trace on an NPU of some `speed`; 0 for others.

    Under the roofline a compute node with ``num_ops`` and without ``duration_ps`` that is no CPU operation takes its
    roofline time; every other compute node takes its recorded duration.
    """
    is_compute = table.type == NodeType.COMP
    duration = np.where(is_compute, recorded_ps(table, semantics), 0)
    if compute.roofline:
        operations, nbytes = table.column("num_ops"), table.column("tensor_size")
        counted = (operations != MISSING) & (table.column("duration_ps") == MISSING)
        rows = np.flatnonzero(is_compute & counted & (table.column("is_cpu_op") <= 0))
        pairs = np.stack([operations[rows], np.maximum(nbytes[rows], 0)], axis=1)
        pairs, first, pair_of = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        times = np.zeros(len(pairs), dtype=np.int64)
        for i in np.argsort(first).tolist():  # errors name the first node
            row = int(rows[first[i]])
            amount, moved = pairs[i].tolist()
            if amount < 0:
                raise TraceError(node_place(table, row), f"num_ops {amount} is negative")
            times[i] = _checked(roofline_ps(amount, moved, compute, semantics), table, row)
        duration[rows] = times[pair_of.ravel()]
    return scale_by_speed(duration, (speed,), table)


def unpriced(table: Program | ExecutionTrace, compute: ComputeModel) -> np.ndarray:
    """Rows of compute nodes with ``num_ops`` but no time: no roofline, no recorded duration."""
    if compute.roofline:
        return np.empty(0, dtype=np.int64)
    untimed = (table.duration_micros == 0) & (table.column("duration_ps") == MISSING)
    return np.flatnonzero((table.type == NodeType.COMP) & (table.column("num_ops") > 0) & untimed)


def scale_by_speed(duration: np.ndarray, speeds: Sequence[Fraction], table: Program) -> np.ndarray:
    """Durations on NPUs that run at `speeds` times the nominal one, by rank (none: all at 1), rounded up."""
    if all(speed == 1 for speed in speeds):
        return duration
    scaled = duration.copy()
    for row in np.flatnonzero(duration).tolist():
        scaled[row] = _checked(_ceil(Fraction(int(duration[row])) / speeds[table.rank[row]]), table, row)
    return scaled


def reduction_ps(nbytes: np.ndarray, gamma: Fraction) -> np.ndarray:
    """int64[n]: gamma × bytes, rounded up. Raises ScenarioError: a reduction of more than 2^63 - 1 ps."""
    sizes, inverse = np.unique(nbytes, return_inverse=True)
    times = [_ceil(size * gamma * PS_PER_S) for size in sizes.tolist()]
    if max(times, default=0) > INT64_MAX:
        raise ScenarioError(
            "semantics.gamma",
            f"the reduction of {int(sizes[-1])} B takes {max(times)} ps, longer than 2^63 - 1 ps (106 days)",
            "write a shorter time per size",
        )
    return np.array(times, dtype=np.int64)[inverse]


def message_ps(nbytes: int, rate: Fraction, rounding: str, latency: int = 0, hops: int = 1) -> int:
    """Time in ps of a message at a rate over hops of a latency (ps); ``floor_ns``: a double in ns, floored once."""
    if rounding == "floor_ns":
        return int(hops * (latency / PS_PER_NS) + nbytes / (float(rate) / 1e9)) * PS_PER_NS
    return transfer_ps(nbytes, rate) + hops * latency


def rate_units(rate: Fraction) -> int:
    """A rate (bytes/s) of the model ``fluid``: in units of 2^-16 bytes/s, rounded down."""
    return (rate.numerator << 16) // rate.denominator


def memory_ps(table: Program, memory: MemoryModel, semantics: Semantics) -> np.ndarray:
    """int64[n]: service time of every memory node, latency + bytes / bandwidth; 0 for others.

    Raises TraceError: a memory node without ``tensor_size``, or in a system without remote memory.
    """
    duration = np.zeros(len(table), dtype=np.int64)
    sizes = table.column("tensor_size")
    for row in np.flatnonzero((table.type == NodeType.MEM_LOAD) | (table.type == NodeType.MEM_STORE)).tolist():
        nbytes = int(sizes[row])
        if memory.kind == "none" or memory.bandwidth is None:
            raise TraceError(
                node_place(table, row),
                "loads from or stores to remote memory, and the system has none",
                'write memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}',
            )
        if nbytes < 0:
            problem = "a memory node needs tensor_size, its bytes"
            raise TraceError(node_place(table, row), problem, "give it one of 0 or more")
        if semantics.rounding == "floor_ns":
            service = int(nbytes / (float(memory.bandwidth) / 1e9)) * PS_PER_NS
        else:
            service = _ceil(nbytes * PS_PER_S / memory.bandwidth)
        duration[row] = _checked(memory.latency_ps + service, table, row)
    return duration
