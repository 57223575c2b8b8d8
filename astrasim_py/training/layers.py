"""Computation and communication of a layer on one rank for one microbatch: the description behind traces and closed
forms.

All numbers are exact ints, or int64 arrays of one value per configuration of the layout. Quotients are rounded up. T =
b s / c tokens; t tensor parallel ranks; x = t with sequence parallelism, else 1; e bytes of an
element; h hidden width. Sources: Narayanan et al. 2021 and Korthikanti et al. 2022 for tensor, sequence and pipeline
parallelism, Rajbhandari et al. 2020 for ZeRO, Liu et al. 2023 for the ring of context parallelism.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.training.strategy import RECOMPUTE, Layouts, Numbers, plain

#: Passes that an operation belongs to: forward, input gradient, weight gradient, recomputation, optimizer.
PARTS = ("F", "I", "W", "R", "O")
#: Name of the operations that add up gradients in fp32.
ACCUMULATE = "accumulate"
#: What light recomputation repeats: outputs of norms, and products of gate and up, are not kept.
_LIGHT = ("norm", "act", "shared_act", "experts_act")
#: Thousandths of the matrix products, attention cores, element-wise operations and communication that are repeated.
_AGAIN = {
    "none": (0, 0, 0, 0),
    "attn": (0, 1000, 0, 0),
    "half": (500, 500, 500, 500),
    "selective_op": (500, 0, 1000, 0),
    "full": (1000, 1000, 1000, 1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A computation. `kind` is ``gemm``, ``attention`` or ``elementwise``.

    `flops` counts matrix products alone; `nbytes` what is read and written. `m`, `n`, `k` of a matrix product; `count`
    matrices of weights take part, each with m / count of the rows. An operation of 0 FLOPs and 0 bytes does not exist.
    """

    name: str
    block: str
    kind: str
    part: str = "F"
    flops: Numbers = 0
    nbytes: Numbers = 0
    m: Numbers = 0
    n: Numbers = 0
    k: Numbers = 0
    count: Numbers = 1

    @property
    def there(self) -> bool:
        """Whether any configuration has it."""
        return bool(np.any(self.flops) or np.any(self.nbytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """A communication of the ranks of a group, named by its role.

    `collective` is ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, or ``ring``: c - 1 steps from
    rank to next rank. `size` is the full tensor in bytes (all_to_all: what a rank holds; ring: one step); 0: not there.
    `when` is ``microbatch`` or ``iteration``.
    """

    name: str
    block: str
    collective: str
    group: str
    size: Numbers
    part: str = "F"
    when: str = "microbatch"

    @property
    def there(self) -> bool:
        """Whether any configuration has it."""
        return bool(np.any(self.size))


Item = Op | Comm


@dataclass(frozen=True, slots=True)
class _Step:
    """Items of the forward pass, and the matching items of the backward pass."""

    forward: tuple[Item, ...]
    backward: tuple[Item, ...]


def forward(layout: Layouts, kind: str) -> tuple[Item, ...]:
    """The forward pass of a layer, in order; `kind` is ``dense``, ``moe`` or ``mtp``."""
    return _there(item for step in _layer(layout, kind) for item in step.forward)


def backward(layout: Layouts, kind: str) -> tuple[Item, ...]:
    """The backward pass of a layer: recomputation (part R), then gradients (parts I and W), in order."""
    steps = _layer(layout, kind)
    again = [_again(layout, item) for step in steps for item in step.forward]
    gradients = [item for step in reversed(steps) for item in step.backward]
    return _there([*again, *gradients, accumulation(layout, kind)])


def embedding(layout: Layouts) -> tuple[Item, ...]:
    """Lookup of the embedding on the first stage: parts F and W."""
    size = layout.tokens * layout.model.hidden * layout.element
    lookup = Op(name="embedding", block="embedding", kind="elementwise", nbytes=2 * size)
    reduce = _leave(layout, "embedding", "embedding")
    grads = accumulation(layout, "embedding")
    return _there([lookup, *reduce.forward, *reduce.backward, replace(lookup, part="W"), grads])


def logits(layout: Layouts) -> tuple[Item, ...]:
    """Final norm, logits and loss on the last stage, once more for each predicted token: parts F, then I and W."""
    model, steps = layout.model, []
    vocab = up(model.vocab, layout.tp)
    for depth in range(1 + model.mtp):
        prefix = f"mtp{depth}." if depth else ""
        rows = layout.tokens * vocab * layout.element
        steps += [
            _elementwise(layout, f"{prefix}norm", "logits", _hidden_bytes(layout, "logits")),
            _column(layout, "logits", f"{prefix}logits", [(f"{prefix}logits", vocab, model.hidden)]),
            _elementwise(layout, f"{prefix}loss", "logits", rows * (3 if layout.fused_loss else 7)),
        ]
    back = [item for step in reversed(steps) for item in step.backward]
    return _there([item for step in steps for item in step.forward] + [*back, accumulation(layout, "logits")])


def accumulation(layout: Layouts, kind: str) -> Op:
    """A layer's gradients are added up in fp32: 10 bytes for each parameter, where its weights have 2."""
    ends = kind in ("embedding", "logits")  # both uses of a tied embedding add to its gradients
    params = up(layout.model.vocab, layout.tp) * layout.model.hidden if ends else sum(layer_params(layout, kind))
    nbytes = 10 * params if layout.grad_element > layout.element else 0
    return Op(name=ACCUMULATE, block=kind if ends else "attn", kind="elementwise", part="W", nbytes=nbytes)


def boundary(layout: Layouts) -> Numbers:
    """Bytes that a rank sends to the next stage for a microbatch: T h e / t, its part of the activations."""
    return up(layout.tokens * layout.model.hidden * layout.element, layout.tp)


def layer_params(layout: Layouts, kind: str) -> tuple[Numbers, Numbers]:
    """Parameters on a rank, dense and of experts; `kind` is of a layer, ``embedding`` or ``logits``."""
    model, t = layout.model, layout.tp
    h, wide = model.hidden, model.gates + 1
    if kind in ("embedding", "logits"):
        shared = (kind == "logits") & np.asarray(model.tied) & (np.asarray(layout.last_stage) == 0)
        return plain(np.where(shared, 0, up(model.vocab, t) * h)), 0
    gemms = [*_inputs(layout), (None, h, up(model.heads, t) * model.out_dim)]
    dense = sum(n * k for _, n, k in gemms)
    if kind == "mtp":
        dense = dense + up(2 * h * h, t)
        kind = _deepest(layout)
    if kind == "dense":
        return dense + wide * h * up(model.ffn, t), 0
    dense = dense + h * model.experts + wide * h * up(model.shared_ffn, t)
    return dense, up(model.experts, layout.ep) * wide * h * up(model.moe_ffn, layout.etp)


def stage_params(layout: Layouts, stage: Numbers) -> tuple[Numbers, Numbers]:
    """Parameters of a pipeline rank, dense and of experts."""
    first, last = np.asarray(stage == 0) * 1, np.asarray(stage == layout.last_stage) * 1
    dense_layers, moe_layers = layout.stage_layers(stage)
    counts = {"dense": dense_layers, "moe": moe_layers, "embedding": first, "logits": last}
    counts["mtp"] = last * layout.model.mtp
    dense: Numbers = 0
    experts: Numbers = 0
    for kind, count in counts.items():
        if np.any(count):
            a, b = layer_params(layout, kind)
            dense, experts = dense + count * a, experts + count * b
    return plain(dense), plain(experts)


def optimizer(layout: Layouts, stage: Numbers) -> Op:
    """The optimizer's step: 30 bytes for each parameter of which a rank holds the state. Where gradients are added up
    in fp32 it updates fp32 weights; 6 bytes for each parameter that the rank holds make those of the products.
    """
    dense, experts = stage_params(layout, stage)
    cast = 6 * (np.asarray(layout.grad_element) > layout.element)
    nbytes: Numbers = 0
    for params, shared in ((dense, layout.zero_group), (experts, layout.expert_dp)):
        for per_param, zero in ((30, 1), (cast, 3)):
            nbytes = nbytes + per_param * up(params, np.where(np.asarray(layout.zero) >= zero, shared, 1))
    return Op(name="optimizer", block="optimizer", kind="elementwise", part="O", nbytes=plain(nbytes))


def gradient_comms(layout: Layouts, kind: str) -> tuple[Comm, ...]:
    """Gradients and parameters of a layer (or ``embedding``, ``logits``) between data-parallel ranks.

    ZeRO 0: all-reduce once an iteration. 1: reduce-scatter and all-gather once an iteration. 2: the reduce-scatter with
    every microbatch. 3: besides, all-gathers with every microbatch, for the forward (part F) and the backward pass (I).
    Where several copies are kept, their parts are all-reduced over ``copies``.
    """
    comms: list[Comm] = []
    z = np.asarray(layout.zero)
    dense, experts = layer_params(layout, kind)
    copies = layout.dp * layout.cp // layout.zero_group

    def add(name: str, collective: str, group: str, part: str, when: str, holds, nbytes: Numbers) -> None:
        size = plain(np.where(holds, nbytes, 0))
        comms.append(Comm(name=name, block=kind, collective=collective, group=group, size=size, part=part, when=when))

    for group, size, count in (("dp", layout.zero_group, dense), ("edp", layout.expert_dp, experts)):
        gradients, weights, several = count * layout.grad_element, count * layout.element, np.asarray(size) != 1
        add("parameters", "all_gather", group, "F", "iteration", several & ((z == 1) | (z == 2)), weights)
        for part in ("F", "I"):
            add("parameters", "all_gather", group, part, "microbatch", several & (z == 3), weights)
        add("gradients", "all_reduce", group, "W", "iteration", several & (z == 0), gradients)
        add("gradients", "reduce_scatter", group, "W", "iteration", several & (z == 1), gradients)
        add("gradients", "reduce_scatter", group, "W", "microbatch", several & (z >= 2), gradients)
    parts = up(dense * layout.grad_element, layout.zero_group)
    for when, holds in (("iteration", z == 1), ("microbatch", z >= 2)):
        add("copies", "all_reduce", "copies", "W", when, holds & np.asarray(copies > 1), parts)
    if kind in ("embedding", "logits") and layout.model.tied:
        later = np.asarray(layout.last_stage) > 0
        add("tie", "all_reduce", "tie", "W", "iteration", later, dense * layout.grad_element)
    return tuple(comm for comm in comms if comm.there)


def recomputed(layout: Layouts) -> float | np.ndarray:
    """Part of a layer's matrix products that the backward pass repeats, from 0 to 1."""
    return _share(layout, 0) / 1000


def up(number: Numbers, divisor: Numbers) -> Numbers:
    """The quotient, rounded up."""
    return -(-number // divisor)


def _there(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(item for item in items if item.there)


def _deepest(layout: Layouts) -> str:
    """Kind of the last layers, and of those that predict further tokens."""
    return "moe" if layout.model.experts else "dense"


def _layer(layout: Layouts, kind: str) -> list[_Step]:
    steps = []
    if kind == "mtp":
        h = layout.model.hidden
        steps = [_column(layout, "attn", "mtp", [("mtp", up(h, layout.tp), 2 * h)])]
        kind = _deepest(layout)
    return steps + _attention(layout) + (_mlp(layout) if kind == "dense" else _moe(layout))


def _inputs(layout: Layouts) -> list[tuple[str, Numbers, Numbers]]:
    """Name, n and k of the products that make queries, keys and values."""
    model, t = layout.model, layout.tp
    heads, h = up(model.heads, t), model.hidden
    if not model.mla:
        return [("qkv", (heads + 2 * up(model.kv_heads, t)) * model.head_dim, h)]
    if model.q_lora:
        query = [("q_a", model.q_lora, h), ("q_b", heads * model.qk_dim, model.q_lora)]
    else:
        query = [("q", heads * model.qk_dim, h)]
    key_value = heads * (model.qk_nope + model.v_dim)
    return [*query, ("kv_a", model.kv_lora + model.qk_rope, h), ("kv_b", key_value, model.kv_lora)]


def _attention(layout: Layouts) -> list[_Step]:
    model, t, e, tokens = layout.model, layout.tp, layout.element, layout.tokens
    heads = up(model.heads, t)
    both = model.qk_dim + model.out_dim
    key_value = heads * both if model.mla else up(model.kv_heads, t) * both
    hidden = _hidden_bytes(layout, "attn")
    return [
        _elementwise(layout, "norm", "attn", hidden),
        _column(layout, "attn", "attn", _inputs(layout)),
        _elementwise(layout, "rope", "attn", 2 * e * tokens * (heads * model.qk_dim + key_value)),
        _ring(layout, tokens * key_value * e),
        _core(layout, heads, key_value),
        _row(layout, "attn", "proj", heads * model.out_dim),
        _elementwise(layout, "residual", "attn", hidden),
    ]


def _ring(layout: Layouts, size: Numbers) -> _Step:
    """Keys and values around the ring of context parallelism; gradients travel beside them."""
    size = plain(np.where(np.asarray(layout.cp) > 1, size, 0))
    comm = Comm(name="kv", block="attn", collective="ring", group="cp", size=size)
    return _Step((comm,), (replace(comm, part="I", size=2 * size),))


def _core(layout: Layouts, heads: Numbers, key_value: Numbers) -> _Step:
    """Softmax of queries and keys, times values."""
    model, seq = layout.model, layout.seq
    keys = np.minimum(seq, 2 * model.window) if model.window else seq
    scores = layout.tokens * keys * heads
    flops = scores * (model.qk_dim + model.out_dim)
    nbytes = layout.element * (layout.tokens * heads * (model.qk_dim + model.out_dim) + layout.mbs * seq * key_value)
    if not layout.fused_attention:
        flops, nbytes = 2 * flops, nbytes + 5 * layout.element * scores
    again = 5 if layout.fused_attention else 4
    op = Op(name="core", block="attn", kind="attention", flops=plain(flops), nbytes=plain(nbytes))
    return _Step((op,), (replace(op, part="I", flops=plain(up(again * flops, 2)), nbytes=2 * op.nbytes),))


def _mlp(layout: Layouts) -> list[_Step]:
    hidden = _hidden_bytes(layout, "mlp")
    steps = _dense_mlp(layout, "mlp", "", layout.model.ffn)
    return [_elementwise(layout, "norm", "mlp", hidden), *steps, _elementwise(layout, "residual", "mlp", hidden)]


def _dense_mlp(layout: Layouts, block: str, prefix: str, width: int) -> list[_Step]:
    model = layout.model
    inner = up(width, layout.tp)
    return [
        _column(layout, block, f"{prefix}fc1", [(f"{prefix}fc1", model.gates * inner, model.hidden)]),
        _activation(layout, block, f"{prefix}act", layout.tokens, inner),
        _row(layout, block, f"{prefix}fc2", inner),
    ]


def _moe(layout: Layouts) -> list[_Step]:
    """Router, dispatch, experts, combine; shared experts as a dense MLP in a block of their own."""
    model, e, h = layout.model, layout.element, layout.model.hidden
    sent = up(layout.tokens * model.topk, layout.tp)
    rows, inner, count = sent * layout.etp, up(model.moe_ffn, layout.etp), up(model.experts, layout.ep)
    hidden = _hidden_bytes(layout, "moe")
    routed = np.where(layout.sp, up(layout.tokens, layout.tp), layout.tokens)
    gathered = np.where(layout.sp, 0, layout.tokens * h * e) * (np.asarray(layout.tp) > 1)
    gather = Comm(name="tokens", block="moe", collective="all_gather", group="tp", size=plain(gathered))
    shared = _dense_mlp(layout, "shared", "shared_", model.shared_ffn) if model.shared_ffn else []
    return [
        _elementwise(layout, "norm", "moe", hidden),
        _gemm(layout, "router", "moe", plain(routed), model.experts, h),
        _elementwise(layout, "permute", "moe", 2 * e * sent * h),
        _exchange(layout, "dispatch", sent * h * e),
        _spread(layout, "expert_rows", "all_gather", rows * h * e),
        _gemm(layout, "experts_fc1", "moe", rows, model.gates * inner, h, count),
        _activation(layout, "moe", "experts_act", rows, inner),
        _gemm(layout, "experts_fc2", "moe", rows, h, inner, count),
        _spread(layout, "expert_sums", "reduce_scatter", rows * h * e),
        _exchange(layout, "combine", sent * h * e),
        _elementwise(layout, "unpermute", "moe", 2 * e * sent * h),
        _Step((gather,), (replace(gather, part="I"),)),
        *shared,
        _elementwise(layout, "residual", "moe", hidden),
    ]


def _exchange(layout: Layouts, name: str, size: Numbers) -> _Step:
    size = plain(np.where(np.asarray(layout.ep) > 1, size, 0))
    comm = Comm(name=name, block="moe", collective="all_to_all", group="ep", size=size)
    return _Step((comm,), (replace(comm, part="I"),))


def _spread(layout: Layouts, name: str, collective: str, size: Numbers) -> _Step:
    """All rows for every rank of a tensor-parallel expert, or their sums back."""
    size = plain(np.where(np.asarray(layout.etp) > 1, size, 0))
    comm = Comm(name=name, block="moe", collective=collective, group="etp", size=size)
    other = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}[collective]
    return _Step((comm,), (replace(comm, part="I", collective=other),))


def _hidden_bytes(layout: Layouts, block: str) -> Numbers:
    """Bytes of a norm, or of a residual: two of each in a layer move 8 T h e / x together, 14 with eager kernels."""
    size = up(layout.tokens * layout.model.hidden * layout.element, np.where(layout.sp, layout.tp, 1))
    return plain(2 * size if layout.fused_attention else up(7 * size, 2))


def _activation(layout: Layouts, block: str, name: str, rows: Numbers, width: Numbers) -> _Step:
    """(g + 1) e bytes for each of the rows and columns, 1.6 times as many with eager kernels."""
    size = (layout.model.gates + 1) * layout.element * rows * width
    return _elementwise(layout, name, block, size if layout.fused_attention else up(8 * size, 5))


def _elementwise(layout: Layouts, name: str, block: str, nbytes: Numbers) -> _Step:
    op = Op(name=name, block=block, kind="elementwise", nbytes=nbytes)
    return _Step((op,), (replace(op, part="I", nbytes=2 * nbytes),))


def _product(
    layout: Layouts, name: str, block: str, m: Numbers, n: Numbers, k: Numbers, count: Numbers, part: str
) -> Op:
    nbytes, flops = layout.element * (m * k + count * k * n + m * n), 2 * m * n * k
    m, n, k = {"F": (m, n, k), "I": (m, k, n), "W": (k, n, m)}[part]
    return Op(name=name, block=block, kind="gemm", part=part, flops=flops, nbytes=nbytes, m=m, n=n, k=k, count=count)


def _gemm(layout: Layouts, name: str, block: str, m: Numbers, n: Numbers, k: Numbers, count: Numbers = 1) -> _Step:
    """A product of m rows with `count` matrices of weights, k x n each."""
    ops = {part: _product(layout, name, block, m, n, k, count, part) for part in ("F", "I", "W")}
    return _Step((ops["F"],), (ops["I"], ops["W"]))


def _column(layout: Layouts, block: str, name: str, gemms: list[tuple[str, Numbers, Numbers]]) -> _Step:
    """Products whose columns are cut: with SP, tokens are gathered before, and once more for the weight gradients."""
    gather, reduce = _enter(layout, block, name)
    steps = [_gemm(layout, gemm, block, layout.tokens, n, k) for gemm, n, k in gemms]
    again = replace(gather, part="W", name=f"{name}_in_again")
    inputs = [step.backward[0] for step in reversed(steps)]
    weights = [step.backward[1] for step in reversed(steps)]
    return _Step((gather, *(step.forward[0] for step in steps)), (*inputs, *reduce, again, *weights))


def _row(layout: Layouts, block: str, name: str, inner: Numbers) -> _Step:
    """A product whose rows are cut, and the sum over the tensor parallel ranks."""
    gemm = _gemm(layout, name, block, layout.tokens, layout.model.hidden, inner)
    leave = _leave(layout, block, name)
    return _Step(gemm.forward + leave.forward, leave.backward + gemm.backward)


def _sizes(layout: Layouts) -> tuple[Numbers, Numbers]:
    """T h e bytes with sequence parallelism, and without; 0 for the other, and where t = 1."""
    size = layout.tokens * layout.model.hidden * layout.element * (np.asarray(layout.tp) > 1)
    return plain(np.where(layout.sp, size, 0)), plain(np.where(layout.sp, 0, size))


def _enter(layout: Layouts, block: str, name: str) -> tuple[Comm, tuple[Comm, Comm]]:
    """The gather before a product cut by columns, and the sum of its input gradients."""
    with_sp, without = _sizes(layout)
    gather = Comm(name=f"{name}_in", block=block, collective="all_gather", group="tp", size=with_sp)
    scatter = replace(gather, part="I", collective="reduce_scatter")
    return gather, (scatter, replace(scatter, collective="all_reduce", size=without))


def _leave(layout: Layouts, block: str, name: str) -> _Step:
    """The sum after a product cut by rows, and the gather of its output gradients."""
    with_sp, without = _sizes(layout)
    scatter = Comm(name=f"{name}_out", block=block, collective="reduce_scatter", group="tp", size=with_sp)
    reduce = replace(scatter, collective="all_reduce", size=without)
    return _Step((scatter, reduce), (replace(scatter, part="I", collective="all_gather"),))


def _again(layout: Layouts, item: Item) -> Item:
    """The part of a forward item that the backward pass repeats."""
    share = _share(layout, 3 if isinstance(item, Comm) else ("gemm", "attention", "elementwise").index(item.kind))
    if item.name in _LIGHT:
        share = plain(np.where(np.asarray(layout.recompute) == RECOMPUTE.index("light"), 1000, share))
    if isinstance(item, Comm):
        if item.collective == "ring":
            share = _share(layout, 1)
        return replace(item, part="R", size=_thousandths(item.size, share))
    flops, nbytes, m = (_thousandths(number, share) for number in (item.flops, item.nbytes, item.m))
    return replace(item, part="R", flops=flops, nbytes=nbytes, m=m)


def _share(layout: Layouts, place: int) -> Numbers:
    """Thousandths of recomputation: `place` in `_AGAIN`."""
    known = np.array([_AGAIN.get(name, (0, 0, 0, 0))[place] for name in RECOMPUTE])
    part = layout.recompute_part if place < 3 else 0
    return plain(np.where(np.asarray(layout.recompute) == RECOMPUTE.index("part"), part, known[layout.recompute]))


def _thousandths(number: Numbers, share: Numbers) -> Numbers:
    """Thousandths of a number, rounded up, without passing 2^63 on the way."""
    return number // 1000 * share + up(number % 1000 * share, 1000)
