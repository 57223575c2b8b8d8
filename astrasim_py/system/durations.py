"""Durations of nodes (recorded, roofline, reduction, remote memory) and messages, as integers of picoseconds."""

from fractions import Fraction

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import ScenarioError, TraceError
from astrasim_py.core.units import INT64_MAX, PS_PER_NS, PS_PER_S, transfer_ps
from astrasim_py.system.machine_models import ComputeModel, MemoryModel
from astrasim_py.system.semantics import Semantics

PS_PER_US = 10**6


def node_place(trace: ExecutionTrace, row: int, default: str = "trace") -> str:
    """``file: node 7``, for messages."""
    return f"{trace.place or default}: node {int(trace.node_id[row])}"


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _checked(ps: int, trace: ExecutionTrace, row: int) -> int:
    if ps > INT64_MAX:
        problem = f"takes {ps} ps, longer than 2^63 - 1 ps (106 days)"
        raise TraceError(node_place(trace, row), problem, "check the unit of its duration")
    return ps


def recorded_ps(trace: ExecutionTrace, semantics: Semantics) -> np.ndarray:
    """int64[n]: ``duration_ps`` of every node, else ``duration_micros``, of which 0 is `Semantics.zero_duration_ps`."""
    micros = trace.duration_micros
    for row in np.flatnonzero(micros > np.uint64(INT64_MAX // PS_PER_US)).tolist():
        _checked(int(micros[row]) * PS_PER_US, trace, row)
    duration = micros.astype(np.int64) * PS_PER_US
    exact = trace.column("duration_ps")
    present = exact != MISSING
    negative = present & (exact < 0)
    if negative.any():
        row = int(np.argmax(negative))
        raise TraceError(node_place(trace, row), f"duration_ps {int(exact[row])} is negative")
    return np.where(present, exact, np.where(duration == 0, semantics.zero_duration_ps, duration))


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
    """int64[n]: duration of every compute node of a workload trace on an NPU of some `speed`; 0 for others.

    Under the roofline a compute node with ``num_ops`` that is no CPU operation takes its roofline time; every other
    compute node takes its recorded duration.
    """
    is_compute = trace.type == NodeType.COMP
    duration = np.where(is_compute, recorded_ps(trace, semantics), 0)
    if compute.roofline:
        operations, nbytes = trace.column("num_ops"), trace.column("tensor_size")
        rows = np.flatnonzero(is_compute & (operations != MISSING) & (trace.column("is_cpu_op") <= 0))
        pairs = np.stack([operations[rows], np.maximum(nbytes[rows], 0)], axis=1)
        pairs, first, which = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        times = np.zeros(len(pairs), dtype=np.int64)
        for i in np.argsort(first).tolist():  # errors name the first node
            row = int(rows[first[i]])
            amount, moved = pairs[i].tolist()
            if amount < 0:
                raise TraceError(node_place(trace, row), f"num_ops {amount} is negative")
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


def memory_ps(trace: ExecutionTrace, memory: MemoryModel, semantics: Semantics) -> np.ndarray:
    """int64[n]: service time of every memory node, latency + bytes / bandwidth; 0 for others.

    Raises TraceError: a memory node without ``tensor_size``, or in a system without remote memory.
    """
    duration = np.zeros(len(trace), dtype=np.int64)
    sizes = trace.column("tensor_size")
    for row in np.flatnonzero((trace.type == NodeType.MEM_LOAD) | (trace.type == NodeType.MEM_STORE)).tolist():
        nbytes = int(sizes[row])
        if memory.kind == "none":
            raise TraceError(
                node_place(trace, row),
                "loads from or stores to remote memory, and the system has none",
                'write memory: {kind: per_npu, latency: "1 us", bandwidth: "100 GB/s"}',
            )
        if nbytes < 0:
            problem = "a memory node needs tensor_size, its bytes"
            raise TraceError(node_place(trace, row), problem, "give it one of 0 or more")
        if semantics.rounding == "floor_ns":
            service = int(nbytes / (float(memory.bandwidth) / 1e9)) * PS_PER_NS
        else:
            service = _ceil(nbytes * PS_PER_S / memory.bandwidth)
        duration[row] = _checked(memory.latency_ps + service, trace, row)
    return duration
