"""Memory of a rank at its peak, by kind and pipeline rank, and memory beyond the local one.

All numbers are ints or int64 arrays, as in the layout. Symbols as in `layers`. Sources: Korthikanti et al. 2022 for
activations, Rajbhandari et al. 2020 for ZeRO, Kadiyala et al. (COMET) 2022 for the bandwidth of expanded memory. The
shares of frameworks are fitted to published peaks.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.topology.hardware import ExpandedMemory
from astrasim_py.training.layers import layer_params, stage_params, up
from astrasim_py.training.rules import After, divisors, remedy
from astrasim_py.training.strategy import RECOMPUTE, Layout, Layouts, Numbers, plain

KINDS = ("weights", "gradients", "optimizer", "activations", "live", "gathered", "logits", "framework")
#: Memory of a framework beside tensors of known use, in bytes: 4 for each token and hidden unit of a microbatch, and a
#: constant.
FRAMEWORK_TOKEN, FRAMEWORK_BYTES = 4, 3 * 10**8
#: With eager attention, and of other models: a share of all else in thousandths and a constant, by BLOOM's peaks.
OTHER_SHARE, OTHER_BYTES = 80, 4 * 10**9
#: Bytes that norms keep in fp32 for each token and hidden unit of a layer, where they are not fused.
NORM_COPIES = 14
#: Part of an NPU's memory that no training gets: CUDA context, buffers of NCCL, fragments. Of 891 runs of
#: nanotron on 80 GB 98 % need less than the rest by this estimate, and of 977 that ran out of memory 97 % need more.
RESERVE = 0.1
#: Part of the usable memory from which on a training may run out: 7 of those 891 runs and 11 of those 977 are between.
DOUBTFUL = 0.94


class Reserve(NamedTuple):
    """What stays free of an NPU's own memory: a part of it, or a number of bytes."""

    part: float = RESERVE
    nbytes: int = 0

    def of(self, memory: float) -> int:
        return self.nbytes + int(memory * self.part)


NO_RESERVE = Reserve(0.0)
#: Bytes of optimizer state per parameter: a copy of the weights and two moments, 4 bytes each.
STATE_BYTES = 12
#: Kinds that placement moves out of local memory, the least used first.
_COLD = ("optimizer", "gradients", "activations", "weights")


def stage_memory(layout: Layouts, stage: Numbers, activations: Mapping | None = None) -> dict[str, Numbers]:
    """Bytes of a pipeline rank at its peak, by `KINDS`.

    ``activations`` are kept until the backward pass; ``live`` are the activations of one recomputed layer; ``gathered``
    are the weights of two layers that ZeRO 3 cuts; ``framework`` is what tensors of no known use take. With pipeline
    stages ZeRO 2 keeps whole gradients: frameworks that leave weights whole between microbatches add them up first.
    `activations` are those of a layer of each kind, if they are known.
    """
    z, group = np.asarray(layout.zero), {"dense": layout.zero_group, "experts": layout.expert_dp}
    memory: dict[str, Numbers] = dict.fromkeys(KINDS, 0)
    for params, size in zip(stage_params(layout, stage), group.values(), strict=True):
        for kind, nbytes, cut in (
            ("weights", layout.element, z >= 3),
            ("gradients", layout.grad_element + layout.grad_copy, (z >= 3) | (z == 2) & (np.asarray(layout.pp) == 1)),
            ("optimizer", STATE_BYTES, z >= 1),
        ):
            memory[kind] = memory[kind] + up(params * nbytes, np.where(cut, size, 1))
    activation_bytes: Numbers = 0
    live: Numbers = 0
    counts = layout.stage_layers(stage)
    predicting = (stage == layout.last_stage) * layout.model.mtp  # beside the layers of the deepest kind
    counts = (counts[0], counts[1] + predicting) if layout.model.experts else (counts[0] + predicting, counts[1])
    for kind, layers in zip(("dense", "moe"), counts, strict=True):
        if np.any(layers):
            full, stored = activations[kind] if activations else layer_activations(layout, kind)
            activation_bytes = activation_bytes + up(layers * stored * chunks_in_flight(layout, stage), layout.vp)
            live = np.maximum(live, np.where((stored < full) & (layers > 0), full, 0))
            pairs = zip(layer_params(layout, kind), group.values(), strict=True)
            cut = sum(params * (np.asarray(size) > 1) for params, size in pairs)
            gathered = np.minimum(layers, 2) * layout.element * cut
            memory["gathered"] = np.maximum(memory["gathered"], np.where(z >= 3, gathered, 0))
    memory["activations"], memory["live"] = activation_bytes, live
    each = 6 if layout.fused_loss else 12 if layout.fused_attention else 10
    logits = (1 + layout.model.mtp) * each * layout.tokens * up(layout.model.vocab, layout.tp)
    memory["logits"] = np.where(stage == layout.last_stage, logits, 0)
    kept = {kind: memory[kind] for kind in KINDS[:-1]}
    if not layout.fused_attention:
        return with_framework(kept)
    kept["framework"] = FRAMEWORK_TOKEN * layout.tokens * layout.model.hidden + FRAMEWORK_BYTES
    return {kind: plain(nbytes) for kind, nbytes in kept.items()}


def with_framework(memory: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """Bytes by kind, and those of the framework beside them, of `OTHER_SHARE` and `OTHER_BYTES`."""
    total = sum(memory.values())
    memory = {**memory, "framework": up(total * OTHER_SHARE, 1000) + OTHER_BYTES}
    return {kind: plain(nbytes) for kind, nbytes in memory.items()}


def peak_memory(layout: Layouts) -> dict[str, Numbers]:
    """Bytes of the pipeline rank that needs most, by `KINDS`.

    It is the first, the last, where layers differ the first inner one that has most of them, or the one after the first
    dense layers of a model with experts.
    """
    p, stages = layout.pp, [0, layout.last_stage]
    _, left, uneven = layout.shares
    fullest: Numbers = 1
    if np.any(uneven):
        fullest = np.where(left > p, 2 * p - left, 1) if layout.schedule == "zbv" else 1
        stages.append(np.minimum(fullest, p - 1))
    if layout.model.experts and layout.model.dense_layers:
        after = np.maximum.reduce(np.broadcast_arrays(*layout.dense_stages)) + 1
        stages += [np.minimum(after, p - 1)] if np.any(after != fullest) or not np.any(uneven) else []
    kinds = ("dense", "moe") if layout.model.experts else ("dense",)
    activations = {kind: layer_activations(layout, kind) for kind in kinds}
    peak = stage_memory(layout, stages[0], activations)
    for stage in stages[1:]:
        other = stage_memory(layout, stage, activations)
        more = np.asarray(sum(other.values())) > sum(peak.values())
        peak = {kind: plain(np.where(more, other[kind], nbytes)) for kind, nbytes in peak.items()}
    return peak


def require_memory(
    peak: Mapping[str, int],
    capacity: int,
    layout: Layout[int] | None = None,
    after: After | None = None,
    reserve: int = 0,
) -> None:
    """Raises ScenarioError: a peak is more than `capacity` less `reserve` bytes; other arguments are those of
    `shortage`.
    """
    if sum(peak.values()) > capacity - reserve:
        raise ScenarioError("memory", *shortage(peak, capacity, layout, after, reserve))


def doubt(total: int, usable: int) -> str:
    """What is said of a peak of `total` bytes that may run out of memory; empty where it fits or does not.

    `usable`: bytes of the NPU less its reserve.
    """
    if not DOUBTFUL * usable < total <= usable:
        return ""
    return f"{total / 2**30:.1f} of {usable / 2**30:.1f} GiB usable: may run out"


def shortage(
    peak: Mapping[str, int],
    capacity: int,
    layout: Layout[int] | None = None,
    after: After | None = None,
    reserve: int = 0,
) -> tuple[str, str]:
    """The shortage in GB, its kinds, and remedies.

    `layout`: of a training, for which changes are tried until it fits; `after` gives it with other keys. `reserve`:
    bytes of `capacity` that stay free.
    """
    total, largest = sum(peak.values()), max(peak, key=lambda kind: peak[kind])
    installed, capacity = capacity, capacity - reserve
    kept = f" ({installed / 1e9:.1f} GB less a reserve of {reserve / 1e9:.1f} GB)" if reserve else ""
    problem = (
        f"needs {total / 1e9:.1f} GB of memory, {(total - capacity) / 1e9:.1f} GB more than {capacity / 1e9:.1f} GB"
        f"{kept}; the largest part is {largest} with {peak[largest] / 1e9:.1f} GB"
    )
    if layout is not None and after is not None:
        changes = remedy(_smaller(layout), after, lambda one: bool(sum(peak_memory(one).values()) <= capacity))
        return problem, changes or "take many more NPUs, or NPUs with more memory"
    remedies = {
        "tables": "take more NPUs, or expanded_memory",
        "cache": "write a larger tp, a smaller mbs, or fewer waves",
        "weights": "write a larger tp, pp or ep of the pools, on as many more NPUs",
    }
    return problem, remedies.get(largest, "take more NPUs, or NPUs with more memory")


def _smaller(layout: Layout[int]) -> Iterator[dict[str, Any]]:
    """Changes that make a training smaller, those that cost least first: single ones, then several together."""

    def doubled(key: str) -> list[dict[str, Any]]:
        return [{key: getattr(layout, key) * 2**k} for k in range(1, 8)]

    zero = [{"zero": z} for z in range(layout.zero + 1, 4)]
    light = [{"recompute": "light"}] if layout.recompute == RECOMPUTE.index("none") else []
    again = [*light, {"recompute": "full"}] if layout.recompute != RECOMPUTE.index("full") else []
    fewer = [{"mbs": mbs} for mbs in divisors(layout.mbs, layout.mbs) if mbs < layout.mbs]
    tp = doubled("tp")
    wider = [*(keys for keys in tp if keys["tp"] <= 8), *doubled("pp"), *(keys for keys in tp if keys["tp"] > 8)]
    yield from chain(zero, again, fewer, [{"fused_loss": True}], doubled("ep"), wider, doubled("cp"))
    none: list[dict[str, Any]] = [{}]
    steps: tuple[list[dict[str, Any]], ...] = zero[-1:], again, fewer[-1:], none + doubled("ep"), none + wider
    joint = [{k: v for keys in pick for k, v in keys.items()} for pick in product(*(step or none for step in steps))]
    yield from joint
    yield from (keys | more for more in doubled("ranks") for keys in ({}, *zero, *joint))


def layer_activations(layout: Layouts, kind: str) -> tuple[Numbers, Numbers]:
    """Bytes of activations of a layer for one microbatch: all, and those that are kept for the backward pass.

    With fused attention a layer keeps its input, the outputs of both norms and the sum between them, inputs and output
    of attention, and the intermediates of the MLP.
    """
    model, t, e, tokens = layout.model, layout.tp, layout.element, layout.tokens
    h, x = model.hidden, np.where(layout.sp, t, 1)
    heads, gates = up(model.heads, t), model.gates + 1
    key_value = heads * (model.qk_dim + model.out_dim) if model.mla else 2 * up(model.kv_heads, t) * model.head_dim
    heads_out = heads * (model.qk_dim + model.out_dim)
    scores: Numbers = 0
    full = up(4 * e * tokens * h, x) + e * tokens * (heads_out + key_value)
    if not layout.fused_attention:
        scores = 5 * tokens * layout.seq * heads
        full = up(5 * e * tokens * h, x) + up(4 * e * tokens * h, t) + scores
    if kind == "dense":
        width = up(model.ffn, t)
        wide = e * tokens * gates * width if layout.fused_attention else up(e * 8 * tokens * h, t)
        activated = e * tokens * width
    else:
        sent = up(tokens * model.topk, t)
        wide = e * sent * (h + gates * up(model.moe_ffn, layout.etp)) + e * tokens * gates * up(model.shared_ffn, t)
        activated = e * sent * up(model.moe_ffn, layout.etp) + e * tokens * up(model.shared_ffn, t)
    norms = up(2 * e * tokens * h, x)
    if not layout.fused_norms:
        full = full + up(NORM_COPIES * tokens * h, x)
    full = full + wide
    light = full - norms - activated
    edge = up(e * tokens * h, x)
    products = e * tokens * (heads_out - heads * model.out_dim + key_value) + 2 * edge + wide
    half = np.minimum(full, edge + e * tokens * heads * model.out_dim + up(products, 2))
    part = (full * (1000 - layout.recompute_part) + edge * layout.recompute_part) // 1000
    stored = np.choose(
        layout.recompute,
        [full, light, full - scores, up(full + edge, 2), half, edge, part],  # in the order of RECOMPUTE
    )
    return plain(full), plain(stored)


def chunks_in_flight(layout: Layouts, stage: Numbers) -> Numbers:
    """Chunks of a pipeline rank whose activations are kept at once: microbatches where it has one chunk.

    Overlap of expert communication starts more of them before the first backward pass.
    """
    p, v, m = layout.pp, layout.vp, layout.microbatches
    paired = np.asarray(layout.ep > 1) * (layout.overlap.ep is True and layout.schedule in ("1f1b", "interleaved"))
    counts = {
        "gpipe": m,
        "1f1b": (1 + paired) * (p - stage),
        "interleaved": np.where(np.asarray(m == p), m * v, 2 * (p - 1 - stage) + (v - 1) * p + 1 + paired),
        "zb_h1": p,
        "zb_h2": 2 * p - 1,
        "zbv": 2 * p,
    }
    return plain(np.minimum(counts[layout.schedule], m * v))


def effective_bandwidth(footprint, local, bandwidth, expanded):
    """Bandwidth of memory accesses that spread evenly over local and expanded memory, bytes per second.

    1 / ((1 - f) / bandwidth + f / expanded), where the part f = (footprint - local) / footprint is outside.
    `footprint`, `local`: bytes that a rank needs, and that its local memory holds.
    """
    outside = np.maximum(1 - np.asarray(local) / footprint, 0.0)
    return 1 / ((1 - outside) / bandwidth + outside / expanded)


def placement(peak: Mapping[str, Numbers], local: Numbers) -> dict[str, Numbers]:
    """Bytes of each kind that go to expanded memory: the least used kinds first, until the rest fits."""
    outside = np.maximum(sum(peak.values()) - local, 0)
    moved = {}
    for kind in _COLD:
        moved[kind] = plain(np.minimum(outside, peak[kind]))
        outside = outside - moved[kind]
    return moved


class Expansion(NamedTuple):
    """Cost of expanded memory: bandwidth of all accesses in bytes per second, and additional time of an iteration.

    `latency_ps`: wait of each computation for it.
    """

    bandwidth: Any
    latency_ps: Any
    transfer_ps: Any


def expand(
    layout: Layouts | None, peak: Mapping[str, Numbers], local: Numbers, bandwidth: Any, expanded: ExpandedMemory
) -> Expansion:
    """The cost of a peak that is more than `local` bytes, with memory of `bandwidth` bytes per second.

    `layout`: of a training; policy ``uniform`` needs none. Policy ``uniform``: all accesses have `effective_bandwidth`.
    ``placement``: the least used kinds move there; the optimizer reads and writes its state once an iteration, each
    microbatch writes and reads its activations, adds to the gradients, and reads the weights in every pass.
    """
    total = sum(peak.values())
    if layout is None or expanded.policy == "uniform":
        reached = effective_bandwidth(total, local, float(bandwidth), float(expanded.bandwidth))
        return Expansion(reached, (np.asarray(total) > local) * expanded.latency, 0)
    outside, m = placement(peak, local), layout.microbatches
    passes = np.where(np.asarray(layout.recompute) == RECOMPUTE.index("full"), 3, 2)
    # Local memory holds the rest of the microbatches in flight; each of them keeps the same part outside.
    waves = m * layout.vp / chunks_in_flight(layout, 0)
    touches = {"optimizer": (2, 2), "gradients": (2 * m, 2 * m), "activations": (2 * waves, 2 * m)}
    touches["weights"] = (passes * m, passes * m)
    seconds = sum(outside[kind] * times for kind, (times, _) in touches.items()) / float(expanded.bandwidth)
    waits = sum((np.asarray(outside[kind]) > 0) * times for kind, (_, times) in touches.items())
    return Expansion(float(bandwidth), 0, seconds * PS_PER_S + waits * expanded.latency)
