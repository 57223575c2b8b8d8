"""How long nodes take: recorded durations, the roofline, reductions, remote memory. Exact integers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import ScenarioError, TraceError
from astrasim_py.core.units import INT64_MAX, PS_PER_NS, PS_PER_S
from astrasim_py.system.machine_models import ComputeModel, MemoryModel
from astrasim_py.system.semantics import Semantics

PS_PER_US = 10**6


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _checked(ps: int, trace: ExecutionTrace, row: int) -> int:
    if ps > INT64_MAX:
        raise TraceError(
            f"{trace.place or 'trace'}: node {int(trace.node_id[row])}",
            f"takes {ps} ps, longer than 2^63 - 1 ps (106 days)",
            "check the unit of its duration",
        )
    return ps


def recorded_ps(trace: ExecutionTrace, semantics: Semantics) -> np.ndarray:
    """Recorded duration of every node.

    Returns
    -------
    numpy.ndarray
        int64[n], ps: the attribute ``duration_ps`` where present, else ``duration_micros``, of which 0 becomes
        `Semantics.zero_duration_ps`.
    """
    micros = trace.duration_micros
    too_long = np.flatnonzero(micros > np.uint64(INT64_MAX // PS_PER_US))
    if len(too_long):
        row = int(too_long[0])
        _checked(int(micros[row]) * PS_PER_US, trace, row)
    duration = micros.astype(np.int64) * PS_PER_US
    exact = trace.column("duration_ps")
    present = exact != MISSING
    if present.any():
        if (exact[present] < 0).any():
            row = int(np.flatnonzero(present & (exact < 0))[0])
            raise TraceError(
                f"{trace.place or 'trace'}: node {int(trace.node_id[row])}",
                f"duration_ps {int(exact[row])} is negative",
            )
        duration[present] = exact[present]
    if semantics.zero_duration_ps:
        duration[(duration == 0) & ~present] = semantics.zero_duration_ps
    return duration


def roofline_ps(operations: int, nbytes: int, compute: ComputeModel, semantics: Semantics) -> int:
    """Roofline time (Williams et al., CACM 2009) of one node: max(operations / peak, bytes / bandwidth)."""
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


def workload_ps(trace: ExecutionTrace, compute: ComputeModel, semantics: Semantics, speed: Fraction) -> np.ndarray:
    """Duration of every compute node of a workload trace.

    Under the roofline a compute node that states ``num_ops`` (and is no CPU operation) takes its roofline
    time; every other one its recorded duration. Both are divided by the NPU's `speed`.

    Returns
    -------
    numpy.ndarray
        int64[n], ps; 0 for nodes that are not compute.
    """
    duration = recorded_ps(trace, semantics)
    is_compute = trace.type == NodeType.COMP
    duration[~is_compute] = 0
    if compute.roofline:
        operations, nbytes = trace.column("num_ops"), trace.column("tensor_size")
        rows = np.flatnonzero(is_compute & (operations != MISSING) & (trace.column("is_cpu_op") <= 0))
        pairs = np.stack([operations[rows], np.maximum(nbytes[rows], 0)], axis=1)
        pairs, first, which = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        times = np.zeros(len(pairs), dtype=np.int64)
        for i in np.argsort(first).tolist():  # what is wrong is told of the first node
            row = int(rows[first[i]])
            amount, moved = pairs[i].tolist()
            if amount < 0:
                raise TraceError(
                    f"{trace.place or 'trace'}: node {int(trace.node_id[row])}",
                    f"num_ops {amount} is negative",
                )
            times[i] = _checked(roofline_ps(amount, moved, compute, semantics), trace, row)
        duration[rows] = times[which.ravel()]
    return scale_by_speed(duration, speed, trace)


def scale_by_speed(duration: np.ndarray, speed: Fraction, trace: ExecutionTrace) -> np.ndarray:
    """Durations on an NPU that runs at `speed` times the nominal one, rounded up."""
    if speed == 1:
        return duration
    scaled = duration.copy()
    for row in np.flatnonzero(duration).tolist():
        scaled[row] = _checked(_ceil(Fraction(int(duration[row])) / speed), trace, row)
    return scaled


def reduction_ps(nbytes: np.ndarray, gamma: Fraction) -> np.ndarray:
    """gamma × bytes, per node, rounded up: int64[n] ps.

    Raises
    ------
    ScenarioError
        A reduction of more than 2^63 - 1 ps.
    """
    if not gamma:
        return np.zeros(len(nbytes), dtype=np.int64)
    sizes, inverse = np.unique(nbytes, return_inverse=True)
    times = [_ceil(int(b) * gamma * PS_PER_S) for b in sizes]
    if max(times, default=0) > INT64_MAX:
        raise ScenarioError(
            "semantics.gamma",
            f"the reduction of {int(sizes[-1])} B takes {max(times)} ps, longer than 2^63 - 1 ps (106 days)",
            "write a shorter time per size",
        )
    return np.array(times, dtype=np.int64)[inverse]


def memory_ps(trace: ExecutionTrace, memory: MemoryModel, semantics: Semantics) -> np.ndarray:
    """Service time of every memory node: latency + bytes / bandwidth.

    Returns
    -------
    numpy.ndarray
        int64[n], ps; 0 for other nodes.

    Raises
    ------
    TraceError
        A memory node without ``tensor_size``, or where the system has no remote memory.
    """
    duration = np.zeros(len(trace), dtype=np.int64)
    rows = np.flatnonzero((trace.type == NodeType.MEM_LOAD) | (trace.type == NodeType.MEM_STORE))
    sizes = trace.column("tensor_size")
    for row in rows.tolist():
        place = f"{trace.place or 'trace'}: node {int(trace.node_id[row])}"
        if memory.kind == "none":
            raise TraceError(
                place,
                "loads from or stores to remote memory, and the system has none",
                'write memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}',
            )
        nbytes = int(sizes[row])
        if nbytes < 0:
            raise TraceError(place, "a memory node needs tensor_size, its bytes", "give it one of 0 or more")
        if semantics.rounding == "floor_ns":
            service = int(nbytes / (float(memory.bandwidth) / 1e9)) * PS_PER_NS
        else:
            service = _ceil(nbytes * PS_PER_S / memory.bandwidth)
        duration[row] = _checked(memory.latency_ps + service, trace, row)
    return duration
