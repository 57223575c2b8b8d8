"""A machine in closed forms: its nodes, an NPU's bandwidth inside and outside them, and its rates."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from typing import Any

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.hardware import Compute, preset
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import Dim
from astrasim_py.training.machine_states import MachineState, states_of


@dataclass(frozen=True, kw_only=True)
class System:
    """A machine of equal nodes.

    `inside`, `outside`: bytes per second of one NPU in one direction, in its node and out of it. `latency`,
    `far_latency`: seconds of the links of one step of a collective, inside a node and between nodes. `state`: latencies
    of communication software beside them; None: it has none. `gather_gb_s`: rate of an all_gather over all nodes in
    nccl-tests, GB/s, where it is known.
    """

    compute: Compute  # rates and memory of an NPU
    node: int  # NPUs that the fast network joins; consecutive ranks share a node
    inside: float
    outside: float
    latency: float = 0.6e-6
    far_latency: float = 2.7e-6
    state: MachineState | None = None
    gather_gb_s: float | None = None

    def peak(self, dtype: str) -> float:
        """FLOP per second in a number format; the formats that a chip lacks run at its 16-bit rate."""
        known = self.compute.peak
        if dtype in ("bf16", "fp16"):
            return float(known.get(dtype) or next(iter(known.values())))
        return float(known.get(dtype) or self.peak("bf16"))


def system_of(topology: Topology, compute: Compute) -> System:
    """The system that a topology and an NPU make; latencies are those of the topology's links.

    The node is the inner dimensions whose links are as fast as the innermost ones: a DGX node, a whole torus.
    """
    dims = [dim for dim in topology.dims if dim.size > 1]
    if not topology.links:  # a single NPU sends nothing
        node, inside, outside, steps = 1, math.inf, math.inf, (0.0, 0.0)
    elif not dims:
        node, steps = topology.npus, (int(topology.latency_ps.max(initial=0)) / 1e12,) * 2
        inside = outside = float(sum((topology.bandwidth(link) for link in range(topology.links)), Fraction(0)) / node)
    else:
        near = [*takewhile(lambda dim: dim.bandwidth == dims[0].bandwidth, dims)]
        far = dims[len(near) :]
        node, inside = math.prod(dim.size for dim in near), float(sum(map(_rate, near), Fraction(0)))
        outside = float(min(map(_rate, far), default=inside))
        steps = max(map(_step, near)), max(map(_step, far or near))
    return System(compute=compute, node=node, inside=inside, outside=outside, latency=steps[0], far_latency=steps[1])


def system(name: str, **changed: Any) -> System:
    """The system of a hardware preset in its best state; `changed` are attributes of `System`.

    Raises TopologyError: there is no such preset, or it has no NPU or no network.
    """
    machine = preset(name)
    if machine.topology is None or machine.compute is None:
        raise TopologyError("", f'the preset "{name}" is no machine', "name one with a network and an NPU")
    keys = {"preset": name} | ({"nodes": 2} if machine.topology["shape"] == "dgx" else {})
    sound: dict[str, Any] = {"state": states_of(name)[0]}
    return replace(system_of(build(keys), machine.compute), **sound | changed)


def _rate(dim: Dim) -> Fraction:
    """Bytes per second that an NPU sends over the links of one dimension."""
    links = {"switch": 1, "mesh": 2}.get(dim.kind) or dim.links_per_npu()
    return links * dim.bandwidth


def _step(dim: Dim) -> float:
    """Seconds from one NPU to its neighbour."""
    return (2 if dim.kind == "switch" else 1) * dim.latency_ps / 1e12
