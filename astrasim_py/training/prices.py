"""Times of operations and collectives on a system, used by traces and by closed forms.

Sources of the constants: vendors' peaks; the rest is fitted to published training throughput, one number for each
cause, and `Constants` says which. `python -m astrasim_py measured validate training` shows how well they do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from astrasim_py.core.units import PS_PER_S
from astrasim_py.training.layers import Comm, Item, Op, boundary, up
from astrasim_py.training.memory import Expansion
from astrasim_py.training.network import NetworkCosts
from astrasim_py.training.strategy import Layouts, Numbers
from astrasim_py.training.system import System

#: Share of the sustained peak that large matrix products reach, by number format.
GEMM_EFFICIENCY = {"fp8": 0.70, "fp4": 0.55}
GEMM_16_BIT = 0.85
#: FLOP at which a product reaches half of its efficiency, on a chip of `HALF_PEAK` FLOP/s: launch and the last wave.
HALF_FLOPS, HALF_PEAK = 1e9, 312e12
#: Efficiency by the largest power of two, up to 64, that divides both n and k of a product: tiles of tensor cores.
_ALIGNED = np.full(65, 0.60)
_ALIGNED[[8, 16, 32, 64]] = 0.72, 0.85, 0.95, 1.0
#: Bytes of an element in a matrix product.
WIDTH = {"fp8": 1.0, "fp4": 0.5}
#: Blocks whose products run in the 8- or 4-bit format, but for the router.
_LOW_PRECISION = ("attn", "mlp", "moe", "shared")
#: Share of the 16-bit peak that attention reaches on a chip without a figure.
ATTENTION_EFFICIENCY = 0.5


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Constants of training software, fitted to measurements; presets of them are in `software`. The first four are
    those that `measured calibrate training` fits, which tries many of them as arrays.

    `nvlink`, `memory`: share of the bandwidth inside a node, and of the memory bandwidth. `host_layer`, `host_moe`,
    `host_expert`: seconds in which the host launches the forward pass of a layer, of routing, and of one local expert.
    `tp_hidden`, `ep_hidden`: part of the communication that overlap hides. `pp_exposed`, `pp_blocking`: part of the
    messages between pipeline ranks, beside the bubble, that counts with overlap and without. `rails`: whether r members
    of a group in one node leave it by r NICs, as NCCL lays its rings; a flat ring uses one. `scatter`: whether each
    tensor parallel rank sends only a part of the activations to the next stage; otherwise each sends all. `even_cp`:
    whether
    causal attention is dealt evenly to context parallel ranks. Otherwise the last has 2 - 1/c of the mean. `bucket`:
    bytes of a message of gradients or weights; 0: those of a layer go at once. `microbatch`: seconds that each
    microbatch takes besides; `fixed`, `fixed_node`: seconds of an iteration, and for each node, of 64 at most.
    """

    host: float | np.ndarray = (
        1.0  # scale of the time in which the host launches a layer; 1 is eager PyTorch on a recent CPU
    )
    gemm: float | np.ndarray = 1.0  # scale of the time of matrix products
    nic: float | np.ndarray = 0.85  # share of the NIC bandwidth that collectives reach
    interference: float | np.ndarray = (
        0.3  # part of the shorter of gradient communication and computation that overlap costs
    )
    nvlink: float = 0.75
    memory: float = 0.80
    elementwise: float = 1.0  # scale of the bytes of such operations in layers: 1 fused, 1.7 a kernel for each
    host_layer: float = 0.9e-3
    host_moe: float = 0.5e-3
    host_expert: float = 0.11e-3
    tp_hidden: float = 0.7
    ep_hidden: float = 0.35
    pp_exposed: float = 0.15
    pp_blocking: float = 1.0
    bucket: float = 0.0
    microbatch: float = 0.0
    fixed: float = 0.0
    fixed_node: float = 0.0
    rails: bool = True
    scatter: bool = True
    even_cp: bool = True


#: Most nodes whose fixed time was measured.
_MOST_NODES = 64


class Transfer(NamedTuple):
    """Seconds of communication: inside nodes, between nodes at the nominal NIC bandwidth, and latency.

    The two networks work at once, so a collective takes the longer of the first two; of one group's they add up.
    `steps`: messages one after the other. `on_tp`, `on_ep`: seconds in which they occupy links of tensor and of expert
    parallel collectives, where the routes are known; `tp_turns`, `ep_turns`: how often.
    """

    near: float | np.ndarray = 0.0
    far: float | np.ndarray = 0.0
    latency: float | np.ndarray = 0.0
    steps: float | np.ndarray = 0.0
    on_tp: float | np.ndarray = 0.0
    tp_turns: float | np.ndarray = 0.0
    on_ep: float | np.ndarray = 0.0
    ep_turns: float | np.ndarray = 0.0

    def __add__(self, other):
        return Transfer(*(part + more for part, more in zip(self, other, strict=True)))

    def __mul__(self, times):
        return Transfer(*(part * times for part in self))

    def seconds(self, nic: float | np.ndarray) -> float | np.ndarray:
        """Time where collectives reach the share `nic` of the NIC bandwidth."""
        return np.maximum(self.near, self.far / nic) + self.latency


@dataclass(frozen=True)
class Prices:
    """Times on a system of operations in a number format, with one attention kernel.

    `slower`, `wait`: factor on the time of memory traffic, and seconds that every operation waits for memory: the cost
    of expanded memory (`memory.expand`). `moving`: seconds in which data goes to and from that memory,
    once an iteration; `op_ps` counts them with the optimizer. `sharing`: whether collectives that run beside each other
    wait for each other on the links of the network.
    """

    system: System
    dtype: str = "bf16"
    attention: str = "auto"  # a kernel among the chip's figures; ``auto`` is the best of them
    constants: Constants = Constants()
    slower: float = 1.0
    wait: float = 0.0
    moving: float = 0.0
    network: NetworkCosts | None = None  # times of collectives; by default from the rates of `system`
    sharing: bool = True

    def expanded(self, cost: Expansion) -> "Prices":
        """The same with the cost of expanded memory; numbers, or arrays of one value per configuration."""
        rate = float(self.system.compute.memory_bandwidth)
        more = {"wait": cost.latency_ps / PS_PER_S, "moving": cost.transfer_ps / PS_PER_S}
        return replace(self, slower=rate / cost.bandwidth, **more)

    def attention_efficiency(self) -> float:
        """Share of the 16-bit peak that the attention kernel reaches."""
        known = self.system.compute.attention
        best = max(known.values(), default=ATTENTION_EFFICIENCY)
        return known.get(self.attention, best)

    def parts(self, op: Op) -> tuple:
        """Seconds of an operation's arithmetic, matrix products at scale 1, and of its memory traffic.

        A matrix product takes (flops + g0) / (peak · efficiency · alignment · sustained) plus its bytes; an 8- or 4-bit
        one reads and writes its input once more to convert it.
        """
        system, rate = self.system, float(self.system.compute.memory_bandwidth) * self.constants.memory
        if op.kind == "elementwise":
            scaled = op.block in _LOW_PRECISION and op.name != "accumulate"
            return 0.0, op.nbytes * ((self.constants.elementwise if scaled else 1.0) / rate)
        usual = "fp32" if self.dtype == "fp32" else "bf16"
        if op.kind == "attention":
            return op.flops / (system.peak(usual) * self.attention_efficiency()), op.nbytes / rate
        low = self.dtype in WIDTH and op.block in _LOW_PRECISION and op.name != "router"
        peak = system.peak(self.dtype if low else usual)
        efficiency = (GEMM_EFFICIENCY[self.dtype] if low else GEMM_16_BIT) * system.compute.sustained
        edges = op.n | op.k
        flops = op.flops + (op.flops > 0) * (HALF_FLOPS * peak / HALF_PEAK)
        busy = flops / (peak * efficiency * _ALIGNED[np.minimum(edges & -edges, 64)])
        return busy, (op.nbytes + ((3 + WIDTH[self.dtype]) * op.m * op.k if low else 0)) / rate

    def op_seconds(self, op: Op):
        """Seconds of an operation: float, or an array of one value per configuration."""
        busy, moved = self.parts(op)
        return busy * (self.constants.gemm if op.kind == "gemm" else 1.0) + moved * self.slower + self.wait

    def op_ps(self, *ops: Op) -> int:
        """Picoseconds of operations one after the other."""
        once = self.moving if any(op.block == "optimizer" for op in ops) else 0.0
        return round((sum(float(self.op_seconds(op)) for op in ops) + once) * PS_PER_S)

    def host_seconds(self, layout: Layouts, kind: str):
        """Seconds, at scale 1, in which the host launches a layer's forward pass; the backward pass takes twice."""
        cost = self.constants
        conversions = 1.4 if self.dtype in WIDTH else 1.0
        if kind == "dense" or not layout.model.experts:
            return cost.host_layer * conversions
        return cost.host_layer * conversions + cost.host_moe + cost.host_expert * (layout.model.experts // layout.ep)

    def fixed_seconds(self, layout: Layouts):
        """Seconds of an iteration beside computation and communication."""
        cost = self.constants
        nodes = np.minimum(up(layout.ranks, self.system.node), _MOST_NODES)
        return cost.fixed + cost.fixed_node * nodes + cost.microbatch * layout.microbatches

    def uneven_attention(self, layout: Layouts, place: Numbers) -> Numbers | float:
        """Attention of a rank at a place in the ring of context parallelism, in the mean over places."""
        return 1.0 if self.constants.even_cp else (2 * place + 1) / layout.cp

    def uneven_ps(self, layout: Layouts, place: int, ops: Iterable[Op]) -> int:
        """Picoseconds by which the attention among operations takes longer, or less (negative), at a place."""
        more = self.uneven_attention(layout, place) - 1
        return round(float(more * sum(self.parts(op)[0] for op in ops if op.kind == "attention")) * PS_PER_S)

    def boundary(self, layout: Layouts) -> Numbers:
        """Bytes that a rank sends to the next pipeline stage for a microbatch."""
        return boundary(layout) * (1 if self.constants.scatter else layout.tp)

    def message(self, layout: Layouts, size) -> Transfer:
        """One message of every rank to its neighbour in the next pipeline stage."""
        if self.network is not None:
            sent = self._on_network(self.network, layout, "pp", "chain")(size)
        else:
            sent = self._message(size, layout.ranks > self.system.node)
        return sent._replace(latency=sent.latency + (size > 0) * self.message_delay(layout.ranks > self.system.node))

    def message_delay(self, crosses: bool | np.ndarray) -> float | np.ndarray:
        """Seconds that software takes for a message, inside a node or where it `crosses` between nodes."""
        state = self.system.state
        if state is None:
            return 0.0
        near, far = state.message
        return np.where(crosses, far, near)

    def _message(self, size, crosses) -> Transfer:
        system = self.system
        near = size / (system.inside * self.constants.nvlink)
        latency = np.where(crosses, system.far_latency, system.latency)
        return Transfer(near, np.where(crosses, size / system.outside, 0.0), (size > 0) * latency)

    def transfers(self, layout: Layouts) -> Callable[[Comm], Transfer]:
        """A function that gives the time of a collective among the ranks of its role.

        Without a network rings for all but all-to-all; of the ring of context parallelism it is the time of one step.
        """

        @cache
        def group(role: str, collective: str):
            if self.network is not None:
                return self._on_network(self.network, layout, role, collective)
            return self._group(*_ROLES[role](layout))

        def on_links(comm: Comm) -> Transfer:
            path, size = group(comm.group, comm.collective), comm.size
            if self.network is not None:
                return path(size)
            members, _, crosses, near, far, hops = path
            if comm.collective == "ring":
                return self._message(size, crosses)
            if comm.collective == "all_to_all":
                return self._all_to_all(size, path, layout.model.topk)
            passes = 2 if comm.collective == "all_reduce" else 1
            moved = passes * size * ((members - 1) / members)
            return Transfer(moved * near, moved * far, (size > 0) * (passes * hops))

        def transfer(comm: Comm) -> Transfer:
            sent = on_links(comm)
            if comm.group in _STREAMS and self.system.state is not None and self.network is None:
                sent = sent._replace(far=sent.far * self._slowdown(layout, comm.group))
            slow = 0.0 if self.network is None else self.slow_seconds(layout, comm)
            return sent._replace(latency=sent.latency + self.delay_seconds(layout, comm) + slow)

        return transfer

    def delay_seconds(self, layout: Layouts, comm: Comm) -> float | np.ndarray:
        """Seconds that software takes for a collective, beside its messages: those of `transfers` have it.

        Rings: the latency of the state for each step. All-reduce between nodes: trees, that of gradients slower on a
        degraded fabric. Gradients and weights go in messages of the layout's bucket, else of `Constants.bucket` bytes,
        and a part of one counts as a part: the sum over layers is the same whichever share messages. Tensor parallel
        collectives are in the host's launches; see `launched_seconds`.
        """
        state = self.system.state
        if state is None or comm.group == "tp":
            return 0.0
        members, stride = _ROLES[comm.group](layout)
        inside = np.clip(self.system.node // stride, 1, members)
        nodes, crosses = members / inside, members > inside
        size = np.asarray(comm.size)
        if comm.collective in ("ring", "all_to_all"):
            return (size > 0) * np.where(crosses, state.ring[1], state.ring[0])
        passes = 2 if comm.collective == "all_reduce" else 1
        steps = np.where(crosses, nodes * state.ring[1] + (members - nodes) * state.ring[0], members * state.ring[0])
        seconds = passes * steps
        if comm.collective == "all_reduce" and state.tree is not None:
            slower = self._slowdown(layout, comm.group) if comm.group in _STREAMS else 1.0
            seconds = np.where(crosses, state.tree * slower * np.log2(np.maximum(nodes, 2)), seconds)
        calls = np.sign(size)
        if comm.group in _STREAMS:
            bucket = layout.bucket or self.constants.bucket
            calls = size / bucket if bucket else calls
        return calls * seconds

    def slow_seconds(self, layout: Layouts, comm: Comm) -> float | np.ndarray:
        """Seconds that a degraded fabric adds to the bytes of a collective on links at their usual rates."""
        if comm.group not in _STREAMS or self.system.state is None:
            return 0.0
        members, _, _, _, far, _ = self._group(*_ROLES[comm.group](layout))
        passes = 2 if comm.collective == "all_reduce" else 1
        slower = self._slowdown(layout, comm.group)
        return (slower - 1) * passes * comm.size * ((members - 1) / members) * far / self.constants.nic

    def delay_ps(self, layout: Layouts, comm: Comm) -> int:
        """Picoseconds of a node before a collective: all that the links of the network do not take."""
        return round(float(self.delay_seconds(layout, comm) + self.slow_seconds(layout, comm)) * PS_PER_S)

    def message_delay_ps(self, layout: Layouts) -> int:
        """Picoseconds of a node before a message to another pipeline stage."""
        return round(float(self.message_delay(layout.ranks > self.system.node)) * PS_PER_S)

    def host_ps(self, layout: Layouts, kind: str, items: Iterable[Item], passes: float) -> int:
        """Picoseconds in which the host launches `passes` forward passes through a layer, with the latencies of tensor
        parallel collectives among the items. Embedding and logits have the latencies alone.
        """
        layers = 0.0 if kind in ("embedding", "logits") else passes
        host = self.constants.host * layers * self.host_seconds(layout, kind)
        comms = (item for item in items if isinstance(item, Comm) and item.group == "tp")
        return round(float(host + sum(self.launched_seconds(layout, comm) for comm in comms)) * PS_PER_S)

    def fixed_ps(self, layout: Layouts) -> int:
        """Picoseconds of an iteration beside computation and communication."""
        return round(float(self.fixed_seconds(layout)) * PS_PER_S)

    def _slowdown(self, layout: Layouts, role: str) -> float | np.ndarray:
        """How many times as long a role's groups take between nodes as on a sound machine."""
        state = self.system.state
        members, stride = _ROLES[role](layout)
        nodes = members / np.clip(self.system.node // stride, 1, members)
        if state is None:
            return 1.0
        slower = state.slowdown(up(layout.ranks, self.system.node), self.system.gather_gb_s)
        return np.where(nodes > 1, slower, 1.0)

    def launched_seconds(self, layout: Layouts, comm: Comm):
        """Seconds of a tensor parallel collective in the host's launches; see `MachineState.tp_member`."""
        state = self.system.state
        if state is None:
            return 0.0
        near, far = state.tp_member
        passes = 2 if comm.collective == "all_reduce" else 1
        return (np.asarray(comm.size) > 0) * passes * layout.tp * np.where(layout.tp > self.system.node, far, near)

    def _on_network(
        self, network: NetworkCosts, layout: Layouts, role: str, collective: str
    ) -> Callable[[Numbers], Transfer]:
        """Size → time of a collective, or of a message, on the links of the network."""
        places = _ROLES[role](layout)
        others = [_ROLES[other](layout) if role in _STREAMS else (1, 1) for other in _SHARED]
        keys = [np.ravel(key) for key in np.broadcast_arrays(*places, *(n for pair in others for n in pair))]
        mixed = keys[0]
        for key in keys[1:]:
            mixed = mixed * (int(key.max()) + 1) + key
        _, first, where = np.unique(mixed, return_index=True, return_inverse=True)
        rows = []
        for members, stride, *more in zip(*(key[first].tolist() for key in keys), strict=True):
            cost = network.cost(collective, role, members, stride)
            shared = [0.0] * 4
            for place, (other, kind) in enumerate(_SHARED.items()):
                if not self.sharing or role not in _STREAMS or more[2 * place] == 1:
                    continue
                there = network.cost(kind, other, *more[2 * place : 2 * place + 2]).busy > 0
                link = int(np.argmax(np.where(there, cost.busy, 0.0)))
                shared[2 * place : 2 * place + 2] = cost.busy[link], cost.turns[link]
            rows.append((cost.rate, cost.latency, cost.steps, *shared))
        columns = np.array(rows).T
        rate, latency, steps, *shared = (col[where] if len(rows) > 1 and col.any() else col[0] for col in columns)

        def transfer(size: Numbers) -> Transfer:
            there = np.sign(size)
            factors = size, there, size, there
            more = (factor * part if np.any(part) else 0.0 for factor, part in zip(factors, shared, strict=True))
            return Transfer(size * rate, 0.0, there * latency, there * steps, *more)

        return transfer

    def _group(self, members, stride) -> tuple:
        """Members of a group, its nodes, whether there are several; of its rings, seconds per byte near and far, and
        latency.
        """
        system = self.system
        inside = np.clip(system.node // stride, 1, members)
        nodes, crosses = members / inside, members > inside
        nics = inside if self.constants.rails else 1
        far = np.where(crosses, 1 / (nics * system.outside), 0.0)
        across = nodes * system.far_latency + (members - nodes) * system.latency
        hops = np.where(crosses, across, (members - 1) * system.latency)
        return members, nodes, crosses, 1 / (system.inside * self.constants.nvlink), far, hops

    def _all_to_all(self, size, group: tuple, topk: int) -> Transfer:
        """A token that goes to several experts of a node crosses the fabric once.

        Of n nodes, n (1 - (1 - 1/n)^k) are met by k choices.
        """
        members, nodes, crosses, near, *_ = group
        met = nodes * (1 - (1 - 1 / nodes) ** topk) / topk
        far = size * met * (nodes - 1) / nodes / self.system.outside
        latency = np.where(crosses, self.system.far_latency, self.system.latency)
        return Transfer(size * ((members - 1) / members) * near, far, (size > 0) * latency)


#: Role → members of a group, and how far apart in ranks they are.
_ROLES = {
    "tp": lambda o: (o.tp, 1),
    "cp": lambda o: (o.cp, o.tp),
    "dp": lambda o: (o.zero_group, o.tp),
    "copies": lambda o: (o.dp * o.cp // o.zero_group, o.tp * o.zero_group),
    "ep": lambda o: (o.ep, o.etp),
    "etp": lambda o: (o.etp, 1),
    "edp": lambda o: (o.expert_dp, o.ep * o.etp),
    "tie": lambda o: (np.minimum(o.pp, 2), o.stage_ranks * np.maximum(o.pp - 1, 1)),
    "pp": lambda o: (o.pp, o.stage_ranks),
}
#: Roles whose collectives run beside those of other roles; and those roles, with their collective.
_STREAMS = ("dp", "edp", "copies")
_SHARED = {"tp": "all_gather", "ep": "all_to_all"}
