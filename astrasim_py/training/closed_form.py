"""Step times by closed forms, for one layout or for arrays of configurations.

`terms` adds up the operations and collectives that `layers` describes. `step` joins them: the longer of GPU and host
for a layer, the heaviest pipeline stage, the schedule's bubble, and what of the communication is not hidden. `step` is
cheap, and it alone reads the constants that are calibrated: it can be run again on the same terms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from astrasim_py.training import layers
from astrasim_py.training.layers import Op
from astrasim_py.training.prices import Constants, Prices, Transfer
from astrasim_py.training.schedules import SCHEDULES, bubble
from astrasim_py.training.strategy import Layout, Numbers

#: Seconds: a float, or an array of one value per configuration.
Seconds = float | np.ndarray
#: What a pipeline rank is made of.
_KINDS = ("dense", "moe", "embedding", "logits")
#: Keys of a layout that the operations and collectives of a layer depend on; and those that gradients, optimizer and
#: layers of a stage depend on.
_LAYER_KEYS = ("seq", "mbs", "tp", "cp", "ep", "etp", "sp", "recompute", "recompute_part")
_STATE_KEYS = ("ranks", "tp", "pp", "cp", "dp", "ep", "etp", "vp", "zero", "zero_group")


class Pass(NamedTuple):
    """One pass over a layer, in seconds: matrix products at scale 1, attention, memory traffic, the host at scale 1.

    `operations`: how many there are; `tp`, `ep`: all their communication; `ring`: one step of context parallelism.
    """

    gemm: Seconds = 0.0
    attention: Seconds = 0.0
    moved: Seconds = 0.0
    operations: Numbers = 0
    host: Seconds = 0.0
    tp: Transfer = Transfer()
    ep: Transfer = Transfer()
    ring: Transfer = Transfer()


class Passes(NamedTuple):
    """Forward and backward pass (gradients and what is computed again), and products of the weight gradients alone."""

    forward: Pass = Pass()
    backward: Pass = Pass()
    weights: Seconds = 0.0


class Gradients(NamedTuple):
    """Communication of gradients and weights: of a pipeline rank once an iteration; and by kind of layer with every
    microbatch, in the forward and in the backward pass.
    """

    reduce: Transfer = Transfer()
    gather: Transfer = Transfer()
    each: dict[str, tuple[Transfer, Transfer]] = MappingProxyType({kind: (Transfer(), Transfer()) for kind in _KINDS})


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a step time is made of, before the constants that are calibrated; numbers, or arrays of one length.

    `counts`: dense and MoE layers of the first, the second and the last pipeline rank, and their means over ranks;
    `edges`: whether embedding and logits are on those ranks. `hidden`: whether computation hides the communication of
    gradients once an iteration, and with every microbatch; `beside`: the part of TP and EP communication that it hides
    where it is long enough.
    """

    microbatches: Numbers
    stages: Numbers
    chunks: Numbers
    context: Numbers
    schedule: Numbers
    hidden: tuple[bool | np.ndarray, bool | np.ndarray]
    beside: tuple[Seconds, Seconds]
    counts: tuple[tuple[Numbers, Numbers], ...]
    edges: tuple[tuple[Numbers, Numbers], ...]
    dense: Passes
    moe: Passes
    embedding: Passes
    logits: Passes
    boundary: Transfer
    steady: Transfer
    gradients: Gradients
    optimizer: Seconds
    slower: Seconds
    wait: Seconds
    moving: Seconds = 0.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """An iteration of training, in seconds: the sum of all parts.

    `forward`, `backward` are computation of the heaviest stage; `host` is what the GPU waits for the host; `tp`, `cp`,
    `ep`, `pp` and `dp` exposed communication by kind; `memory` what moving data to expanded memory takes.
    """

    forward: Seconds
    backward: Seconds
    host: Seconds
    tp: Seconds
    cp: Seconds
    ep: Seconds
    pp: Seconds
    dp: Seconds
    bubble: Seconds
    optimizer: Seconds
    memory: Seconds

    @property
    def seconds(self) -> Seconds:
        """The whole iteration."""
        return sum(getattr(self, field.name) for field in fields(self))


def terms(layout: Layout, prices: Prices) -> Terms:
    """Terms of a layout, whose numbers may be arrays; `prices` give times of operations and transfers."""
    kinds = _once(layout, _LAYER_KEYS, lambda one: _kinds(one, prices))
    states = _once(layout, _STATE_KEYS, lambda one: _states(one, prices))
    p = layout.pp
    sent = layers.boundary(layout) * (1 if prices.constants.scatter else layout.tp)
    boundary = prices.message(layout, sent) * (np.asarray(p) > 1)
    constants = prices.constants
    exposed = constants.pp_exposed if layout.overlap.pp else constants.pp_blocking * (p - 1) / p
    return Terms(
        microbatches=layout.microbatches,
        stages=p,
        chunks=layout.vp,
        context=layout.cp,
        schedule=SCHEDULES.index(layout.schedule),
        hidden=(layout.overlap.dp, layout.overlap.dp | np.equal(layout.zero, 3)),
        beside=(constants.tp_hidden * layout.overlap.tp, constants.ep_hidden * layout.overlap.ep),
        boundary=boundary,
        steady=boundary * exposed,
        slower=prices.slower,
        wait=prices.wait,
        moving=prices.moving,
        **kinds,
        **states,
    )


def _kinds(layout: Layout, prices: Prices) -> dict[str, Passes]:
    """Passes of the kinds of layers, and of what only the first and the last stage have."""
    dense = layout.model.moe_layers < layout.model.layers
    return {
        "dense": _layer(layout, "dense", prices) if dense else Passes(),
        "moe": _layer(layout, "moe", prices) if layout.model.experts else Passes(),
        "embedding": _passes(layout, layers.embedding(layout), (), prices, 0.0),
        "logits": _logits(layout, prices),
    }


def _states(layout: Layout, prices: Prices) -> dict:
    """Layers of stages, gradients, and the optimizer."""
    p, last = layout.pp, layout.last_stage
    places = (0, np.minimum(1, p - 1), p - 1)
    dense_layers = layout.model.layers - layout.model.moe_layers
    means = (dense_layers / p, layout.model.moe_layers / p)
    optimizers = [prices.parts(layers.optimizer(layout, stage))[1] for stage in (0, last)]
    return {
        "counts": (*(layout.stage_layers(stage) for stage in places), means),
        "edges": tuple((np.equal(stage, 0) * 1, np.equal(stage, last) * 1) for stage in places),
        "gradients": _gradients(layout, prices),
        "optimizer": np.maximum(*optimizers),
    }


def by_block(layout: Layout, prices: Prices) -> dict[str, Seconds]:
    """Seconds of computation in an iteration, by block of the model, of a pipeline rank with the mean share of it."""
    items = [(one, 1) for one in (*layers.embedding(layout), *layers.logits(layout))]
    for kind in ("dense", "moe", "mtp"):
        for own, count in layout.by_attention(kind):
            items += [(one, count) for one in (*layers.forward(own, kind), *layers.backward(own, kind))]
    found: dict[str, Seconds] = {}
    for item, count in items:
        if isinstance(item, Op):
            _add(found, item.block, prices.op_seconds(item) * count * layout.microbatches / layout.pp)
    return found


def stacked(rows: Sequence[Terms]) -> Terms:
    """Terms of single layouts, of any models and systems, as arrays."""
    parts = [[getattr(row, field.name) for row in rows] for field in fields(Terms)]
    return Terms(**{f.name: _mapped(lambda *v: np.array(v), *p) for f, p in zip(fields(Terms), parts, strict=True)})


def taken(found: Terms, chosen: np.ndarray) -> Terms:
    """Some configurations of terms that are arrays."""
    return Terms(**{f.name: _mapped(lambda v: v[chosen], getattr(found, f.name)) for f in fields(Terms)})


def step(found: Terms, constants: Constants) -> Step:
    """The step time of terms, with constants of which `host`, `gemm`, `nic` and `interference` are read.

    The pipeline rank counts whose microbatches and exposed gradients together take longest.
    """
    m, nic = found.microbatches, constants.nic
    spent = {name: [_spent(one, found, constants) for one in getattr(found, name)[:2]] for name in _KINDS}
    whole = [{name: sum(both[way]) for name, both in spent.items()} for way in (0, 1)]
    reduce, gather = (transfer.seconds(nic) for transfer in found.gradients[:2])
    ranks = []
    for layers_of, edges in zip(found.counts[:3], found.edges, strict=True):
        forward, backward = (_on_rank(values, layers_of, edges) for values in whole)
        once = _beyond(reduce, backward, found.hidden[0], constants) + _beyond(
            gather, forward, found.hidden[0], constants
        )
        exposed = once + m * _exposed_each(found, whole, layers_of, edges, constants)
        ranks.append((m * (forward + backward) + exposed, exposed))
    heaviest = np.argmax(np.broadcast_arrays(*(total for total, _ in ranks)), axis=0)

    def picked(values: Sequence) -> Seconds:
        return np.choose(heaviest, [np.asarray(value) for value in values])

    counts = [picked([count[kind] for count in found.counts[:3]]) for kind in (0, 1)]
    ends = [picked([edges[end] for edges in found.edges]) for end in (0, 1)]
    sums = [
        [_on_rank({name: both[way][part] for name, both in spent.items()}, counts, ends) for part in range(5)]
        for way in (0, 1)
    ]
    share = (1 / found.stages,) * 2
    forward, backward = (_on_rank(values, found.counts[3], share) for values in whole)
    weights = constants.gemm * _on_rank({n: getattr(found, n).weights for n in _KINDS}, found.counts[3], share)
    host, tp, cp, ep = (m * (sums[0][part] + sums[1][part]) for part in range(1, 5))
    fill = 2 * (found.stages - 1) * found.boundary.seconds(nic)
    return Step(
        forward=m * sums[0][0],
        backward=m * sums[1][0],
        host=host,
        tp=tp,
        cp=cp,
        ep=ep,
        pp=2 * m * found.chunks * found.steady.seconds(nic) + fill,
        dp=picked([exposed for _, exposed in ranks]),
        bubble=_bubble(found, forward, backward - weights, weights),
        optimizer=found.optimizer * found.slower + found.wait,
        memory=found.moving,
    )


def _on_rank(values: dict, counts: Sequence, edges: Sequence) -> Seconds:
    """Sum over the layers of a pipeline rank, and its part of embedding and logits."""
    ends = edges[0] * values["embedding"] + edges[1] * values["logits"]
    return counts[0] * values["dense"] + counts[1] * values["moe"] + ends


def _spent(one: Pass, found: Terms, constants: Constants) -> tuple[Seconds, ...]:
    """Seconds of a pass: computation, waiting for the host, exposed TP, CP and EP communication."""
    busy = constants.gemm * one.gemm + one.attention + one.moved * found.slower + one.operations * found.wait
    waiting = np.maximum(constants.host * one.host - busy, 0.0)
    hiding = (one.attention + waiting) / found.context
    cp = (found.context - 1) * np.maximum(one.ring.seconds(constants.nic) - hiding, 0.0)
    both = zip((one.tp.seconds(constants.nic), one.ep.seconds(constants.nic)), found.beside, strict=True)
    tp, ep = (comm - part * np.minimum(comm, busy) for comm, part in both)
    return busy, waiting, tp, cp, ep


def _bubble(found: Terms, forward: Seconds, inputs: Seconds, weights: Seconds) -> Seconds:
    """Bubble of each configuration's schedule."""
    codes = np.unique(found.schedule).tolist()
    times = (forward, inputs, weights)
    forms = [bubble(SCHEDULES[code], found.stages, found.chunks, times) for code in codes]
    return forms[0] if len(codes) == 1 else np.select([found.schedule == code for code in codes], forms)


def _exposed_each(found: Terms, whole: Sequence[dict], layers_of: Sequence, edges: Sequence, constants: Constants):
    """Communication of gradients and weights with every microbatch that the computation of a pipeline rank exposes.

    Weights are gathered one layer ahead: while a layer computes forward, those of the next one, which is the first of
    the backward pass at the end; while it computes backward, those of the layer below, and the gradients of the layer
    above are reduced. Before and after come other microbatches.
    """
    counts = dict(zip(_KINDS, (*layers_of, *edges), strict=True))
    kinds = [kind for kind in ("embedding", "dense", "moe", "logits") if np.any(counts[kind])]
    gather = {kind: found.gradients.each[kind][0].seconds(constants.nic) for kind in kinds}
    reduce = {kind: found.gradients.each[kind][1].seconds(constants.nic) - gather[kind] for kind in kinds}
    if not any(np.any(comm) for comms in (gather, reduce) for comm in comms.values()):
        return 0.0

    def nearest(values: dict, others: Sequence[str], default: Seconds) -> Seconds:
        """The value of the first of the other kinds that the rank has."""
        for kind in reversed(others):
            default = np.where(np.asarray(counts[kind]) > 0, values[kind], default)
        return default

    exposed: Seconds = 0.0
    for place, kind in enumerate(kinds):
        above, below = kinds[place + 1 :], kinds[:place][::-1]
        own, after = gather[kind], reduce[kind]
        below_first = nearest(dict.fromkeys(kinds, 0.0), below, after)  # the rank's lowest layer: of the one before
        up, down = nearest(gather, above, own), nearest(gather, below, own)
        up_reduce = nearest(reduce, above, 0.0)
        passes = (
            (own + below_first, own, up, up + below_first),
            (own + up_reduce, own + after, down + after, down + up_reduce),
        )
        count = np.asarray(counts[kind])
        for way, comms in enumerate(passes):
            first, inner, last, alone = (_beyond(c, whole[way][kind], found.hidden[1], constants) for c in comms)
            exposed = exposed + (count > 0) * np.where(count > 1, first + (count - 2) * inner + last, alone)
    return exposed


def _beyond(comm: Seconds, busy: Seconds, hidden, constants: Constants) -> Seconds:
    """What communication adds to the computation beside it."""
    beside = np.maximum(comm - busy, 0.0) + constants.interference * np.minimum(comm, busy)
    return np.where(hidden, beside, comm)


def _layer(layout: Layout, kind: str, prices: Prices) -> Passes:
    """The mean over layers of a kind, of which some may attend to a window."""
    host, found = prices.host_seconds(layout, kind), []
    for one, count in layout.by_attention(kind):
        found.append((_passes(one, layers.forward(one, kind), layers.backward(one, kind), prices, host), count))
    if len(found) == 1:
        return found[0][0]
    (local, few), (wide, more) = found
    return _mapped(lambda a, b: (few * a + more * b) / (few + more), local, wide)


def _logits(layout: Layout, prices: Prices) -> Passes:
    """The last stage's own: logits and loss, and layers that predict further tokens."""
    found = _passes(layout, layers.logits(layout), (), prices, 0.0)
    for _ in range(layout.model.mtp):
        found = _mapped(np.add, found, _layer(layout, "mtp", prices))
    return found


def _passes(layout: Layout, forward: Sequence, backward: Sequence, prices: Prices, host: Seconds) -> Passes:
    """Sums over items; items of part F are of the forward pass, all others of the backward pass."""
    sums: dict[str, dict] = {"forward": {}, "backward": {}}
    weights: Seconds = 0.0
    uneven = 1.0 if prices.constants.even_cp else 2 - 1 / layout.cp
    transfers = prices.transfers(layout)
    for item in (*forward, *backward):
        into = sums["forward" if item.part == "F" else "backward"]
        if isinstance(item, Op):
            busy, moved = prices.parts(item)
            _add(into, "moved", moved)
            _add(into, "operations", np.sign(item.nbytes))
            if item.kind != "elementwise":
                _add(into, item.kind, busy * uneven if item.kind == "attention" else busy)
            weights = weights + busy if item.part == "W" and item.kind == "gemm" else weights
        else:
            key = {"cp": "ring", "etp": "ep"}.get(item.group, item.group)
            _add(into, key, transfers(item))
    again = layers.recomputed(layout)
    return Passes(Pass(host=host, **sums["forward"]), Pass(host=(2 + again) * host, **sums["backward"]), weights)


def _add(sums: dict, key: str, value) -> None:
    sums[key] = sums[key] + value if key in sums else value


def _gradients(layout: Layout, prices: Prices) -> Gradients:
    """Once an iteration, those of the first or last pipeline rank, whichever are more."""
    transfers = prices.transfers(layout)
    once: dict[str, dict[str, Transfer]] = {kind: {} for kind in _KINDS}
    each = {kind: [Transfer(), Transfer()] for kind in _KINDS}
    for kind in _KINDS:
        for comm in layers.gradient_comms(layout, kind) if kind != "moe" or layout.model.experts else ():
            if comm.when == "iteration":
                _add(once[kind], "gather" if comm.part == "F" else "reduce", transfers(comm))
            else:
                way = 0 if comm.part == "F" else 1
                each[kind][way] = each[kind][way] + transfers(comm)
    ranks = []
    for stage in (0, layout.last_stage):
        counts = (*layout.stage_layers(stage), np.equal(stage, 0), np.equal(stage, layout.last_stage))
        total: dict[str, Transfer] = {"reduce": Transfer(), "gather": Transfer()}
        for kind, count in zip(_KINDS, counts, strict=True):
            for name, transfer in once[kind].items():
                _add(total, name, transfer * count)
        ranks.append((total["reduce"], total["gather"]))
    return Gradients(*_mapped(np.maximum, *ranks), {kind: tuple(both) for kind, both in each.items()})


def _once(layout: Layout, names: Sequence[str], function):
    """`function` of the layout, evaluated once for each combination of the keys that it depends on."""
    keys = {name: value for name in names if isinstance(value := getattr(layout, name), np.ndarray)}
    if not keys:
        return function(layout)
    mixed = np.zeros(1, dtype=np.uint64)
    for place, value in enumerate(keys.values()):
        mixed = (mixed ^ value.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15 + 2 * place)
    _, first, where = np.unique(mixed, return_index=True, return_inverse=True)
    if any((value[first][where] != value).any() for value in keys.values()):  # two combinations of one hash
        return function(layout)
    found = function(replace(layout, **{name: value[first] for name, value in keys.items()}))
    return _mapped(lambda value: value[where] if isinstance(value, np.ndarray) and value.ndim else value, found)


def _mapped(function, *trees):
    """`function` on the leaves of equal nestings of tuples and dicts."""
    tree = trees[0]
    if isinstance(tree, dict):
        return {key: _mapped(function, *(one[key] for one in trees)) for key in tree}
    if isinstance(tree, tuple):
        parts = [_mapped(function, *part) for part in zip(*trees, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(*trees)
