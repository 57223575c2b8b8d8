"""Step times by closed forms, for one layout or for arrays of configurations.

`terms` adds up the operations and collectives that `layers` describes. `step` joins them: the longer of GPU and host
for a layer, the heaviest pipeline stage, the schedule's bubble, and the exposed communication. `step` is cheap and
alone reads the calibrated constants, so it can be run again on the same terms.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from typing import Any

import numpy as np

from astrasim_py.training import layers
from astrasim_py.training.exposed import exposed_once, stalls
from astrasim_py.training.layers import Op
from astrasim_py.training.prices import Constants, Prices, Transfer
from astrasim_py.training.runs import block_of
from astrasim_py.training.schedules import SCHEDULES, bubble
from astrasim_py.training.strategy import Layouts
from astrasim_py.training.terms import (
    KINDS,
    BothPasses,
    Counts,
    Exchange,
    Gradients,
    Pass,
    Passes,
    Seconds,
    Spent,
    SpentByPass,
    StepTime,
    Terms,
    chosen,
    mapped,
    on_rank,
    spent_on_rank,
)

#: Keys of a layout that the operations and collectives of a layer depend on; and those that gradients, optimizer and
#: layers of a stage depend on.
_LAYER_KEYS = ("seq", "mbs", "tp", "cp", "ep", "etp", "sp", "recompute", "recompute_part")
_STATE_KEYS = ("ranks", "tp", "pp", "cp", "dp", "ep", "etp", "vp", "zero", "zero_group")


def terms(layout: Layouts, prices: Prices) -> Terms:
    """Terms of a layout, whose numbers may be arrays; `prices` give times of operations and transfers."""
    kinds = _once(layout, _LAYER_KEYS, lambda one: _kinds(one, prices))
    states = _once(layout, _STATE_KEYS, lambda one: _states(one, prices))
    p = layout.pp
    boundary = prices.message(layout, prices.boundary(layout)) * (np.asarray(p) > 1)
    constants = prices.constants
    exposed = constants.pp_exposed if layout.overlap.pp else constants.pp_blocking * (p - 1) / p
    # Reductions of gradients, tied ones among them, come one after the other, as simulated.
    in_order = layout.model.tied and prices.network is not None and not layout.overlap.dp
    return Terms(
        microbatches=layout.microbatches,
        stages=p,
        chunks=layout.vp,
        context=layout.cp,
        schedule=SCHEDULES.index(layout.schedule),
        hidden=(bool(layout.overlap.dp), bool(layout.overlap.dp) | np.equal(layout.zero, 3)),
        beside=(constants.tp_hidden * bool(layout.overlap.tp), constants.ep_hidden * bool(layout.overlap.ep)),
        boundary=boundary,
        steady=boundary * exposed,
        slower=prices.slower,
        waits=(np.asarray(layout.last_stage) > 0) & in_order,
        wait=prices.wait,
        moving=prices.moving,
        fixed=prices.fixed_seconds(layout),
        **kinds,
        **states,
    )


def _kinds(layout: Layouts, prices: Prices) -> dict[str, Passes]:
    """Passes of the kinds of layers, and of the embedding and the logits, which only the first and the last stage
    have.
    """
    dense = layout.model.moe_layers < layout.model.layers
    return {
        "dense": _layer(layout, "dense", prices) if dense else Passes(),
        "moe": _layer(layout, "moe", prices) if layout.model.experts else Passes(),
        "embedding": _passes(layout, layers.embedding(layout), (), prices, 0.0),
        "logits": _logits(layout, prices),
    }


def _states(layout: Layouts, prices: Prices) -> dict:
    """Layers of stages, gradients, and the optimizer."""
    p, last = layout.pp, layout.last_stage
    places = (0, np.minimum(1, p - 1), p - 1)
    dense_layers = layout.model.layers - layout.model.moe_layers
    optimizers = [prices.parts(layers.optimizer(layout, stage))[1] for stage in (0, last)]
    return {
        "counts": tuple(
            Counts(*layout.stage_layers(stage), np.equal(stage, 0) * 1, np.equal(stage, last) * 1) for stage in places
        ),
        "mean": Counts(dense_layers / p, layout.model.moe_layers / p, 1 / p, 1 / p),
        "gradients": _gradients(layout, prices),
        "optimizer": np.maximum(*optimizers),
    }


def step(priced: Terms, constants: Constants) -> StepTime:
    """The step time of terms, with constants of which `host`, `gemm`, `nic` and `interference` are read.

    The heaviest pipeline rank counts: the one whose microbatches and exposed gradients, and the bubble that the mean of
    the others leaves, take longest; of equal ones the one that is busy longest.
    """
    m, nic = priced.microbatches, constants.nic
    spent = {name: spent_by_pass(getattr(priced, name), priced, constants) for name in KINDS}
    times = {way: {kind: getattr(p, way).seconds for kind, p in spent.items()} for way in SpentByPass._fields}
    ranks, once, bubbles, stalled = [], [], [], stalls(priced, spent, constants)
    filled = _filled(priced, times, stalled)
    for place, layers_of in enumerate(priced.counts):
        once.append(exposed_once(priced, spent, layers_of, place, constants))
        bubbles.append(_bubble(priced, *_others(priced, times, layers_of, stalled, place)) - (place < 2) * filled)
        busy = on_rank(times["forward"], layers_of) + on_rank(times["backward"], layers_of) + sum(stalled[place])
        ranks.append(m * busy * (1 + 1e-12) + bubbles[-1])
    heaviest = np.argmax(np.broadcast_arrays(*ranks), axis=0)

    def picked(values: Iterable[Seconds]) -> Seconds:
        return np.choose(heaviest, [np.asarray(value) for value in values])

    counts = Counts(*map(picked, zip(*priced.counts, strict=True)))
    parts = ("busy", "waiting", "tp", "cp", "ep")
    forward = spent_on_rank({kind: by_pass.forward for kind, by_pass in spent.items()}, counts, parts)
    backward = spent_on_rank({kind: by_pass.backward for kind, by_pass in spent.items()}, counts, parts)
    ends = [exposed.backward for exposed in once]
    tied = priced.gradients.once["logits"].reduce.seconds(nic)
    fill = 2 * (priced.stages - 1) * priced.boundary.seconds(nic)
    return StepTime(
        forward=m * forward.busy,
        backward=m * backward.busy,
        host=m * (forward.waiting + backward.waiting),
        tp=m * (forward.tp + backward.tp),
        cp=m * (forward.cp + backward.cp),
        ep=m * (forward.ep + backward.ep),
        pp=2 * m * priced.chunks * priced.steady.seconds(nic) + fill,
        dp=m * picked(sum(both) for both in stalled) + reduce(np.maximum, [exposed.forward for exposed in once]),
        reduction=reduce(np.maximum, [*ends[:2], ends[2] + priced.waits * (ends[0] - tied)]),
        bubble=picked(bubbles),
        optimizer=priced.optimizer * priced.slower + priced.wait,
        memory=priced.moving,
        fixed=priced.fixed,
    )


def spent_by_pass(passes: Passes, priced: Terms, constants: Constants) -> SpentByPass:
    """Times of the forward pass, of the backward pass, and of its weight gradients."""
    busy = [
        constants.gemm * part.gemm + part.attention + part.moved * priced.slower + part.operations * priced.wait
        for part in passes
    ]
    host = [constants.host * part.host + part.launched for part in passes]
    spent = [_spent(*values, priced, constants) for values in zip(passes, busy, strict=True)]
    waiting = [np.maximum(launched - part.seconds, 0.0) for launched, part in zip(host, spent, strict=True)]
    if np.any(priced.split):  # each block waits for its own launches
        inputs = np.maximum(host[1] - host[2] - (spent[1].seconds - spent[2].seconds), 0.0)
        waiting[1] = chosen(priced.split, inputs + waiting[2], waiting[1])
    return SpentByPass(*(part._replace(waiting=waits) for part, waits in zip(spent, waiting, strict=True)))


def _spent(passed: Pass, busy: Seconds, priced: Terms, constants: Constants) -> Spent:
    """Time of a pass but for waits; `busy`: seconds in which the GPU computes."""
    cp = (priced.context - 1) * np.maximum(passed.ring.seconds(constants.nic) - passed.attention / priced.context, 0.0)
    both = zip((passed.tp.seconds(constants.nic), passed.ep.seconds(constants.nic)), priced.beside, strict=True)
    tp, ep = (comm - part * np.minimum(comm, busy) for comm, part in both)
    lead = passed.lead.seconds(constants.nic)
    head = np.where(lead > 0, 0.0, constants.gemm * passed.head)
    return Spent(busy, 0.0, tp, cp, ep, passed.tp.steps, passed.ep.steps, lead, passed.lead.steps, head)


def _others(
    priced: Terms, times: Mapping[str, Mapping[str, Seconds]], counts: Counts, stalled: Sequence[BothPasses], place: int
) -> tuple[Seconds, Seconds, Seconds]:
    """F, I and W of a microbatch on the pipeline ranks but that of a place, in the mean.

    `times`: seconds of passes by kind of layer; `counts`: the layers of the rank; `stalled`: what every place exposes
    of gradients and weights with every microbatch.
    """
    others = np.maximum(priced.stages - 1, 1)
    forward, backward, weights = (
        (on_rank(way, priced.mean) * priced.stages - on_rank(way, counts)) / others for way in times.values()
    )

    def stalls_of(name: str) -> Seconds:
        first, second, last = (getattr(both, name) for both in stalled)
        total = first + np.maximum(priced.stages - 2, 0) * second + (np.asarray(priced.stages) > 1) * last
        return (total - getattr(stalled[place], name)) / others

    later = stalls_of("backward")  # weight gradients give what is reduced
    forward, backward, weights = forward + stalls_of("forward"), backward + later, weights + later
    return forward, backward - weights, weights


def _filled(priced: Terms, times: Mapping[str, Mapping[str, Seconds]], stalled: Sequence[BothPasses]) -> np.ndarray:
    """Part of the bubble of ``1f1b`` in which the last rank but one has another microbatch, as the last is quicker.

    It is one microbatch ahead. So it waits for a microbatch of the last rank less F of its own before the first
    backward pass, and less B before the last one.
    """
    forward, backward = (
        [
            on_rank(times[way], counts) + getattr(exposed, way)
            for counts, exposed in zip(priced.counts, stalled, strict=True)
        ]
        for way in BothPasses._fields
    )
    before = np.where(np.asarray(priced.stages) > 2, 1, 0)
    behind = forward[2] + backward[2]
    waits = sum(np.maximum(behind - np.choose(before, way[:2]), 0.0) for way in (forward, backward))
    there = np.equal(priced.schedule, SCHEDULES.index("1f1b")) & (np.asarray(priced.microbatches) > 1)
    return np.where(there & (np.asarray(priced.stages) > 1), np.maximum(behind - waits, 0.0), 0.0)


def _bubble(priced: Terms, forward: Seconds, inputs: Seconds, weights: Seconds) -> Seconds:
    """Bubble of each configuration's schedule."""
    codes = np.unique(priced.schedule).tolist()
    times = (forward, inputs, weights)
    forms = [bubble(SCHEDULES[code], priced.stages, priced.chunks, times, priced.microbatches) for code in codes]
    return forms[0] if len(codes) == 1 else np.select([priced.schedule == code for code in codes], forms)


def _layer(layout: Layouts, kind: str, prices: Prices) -> Passes:
    """The mean over layers of a kind, of which some may attend to a window."""
    host, parts = prices.host_seconds(layout, kind), []
    for form, count in layout.by_attention(kind):
        parts.append((_passes(form, layers.forward(form, kind), layers.backward(form, kind), prices, host), count))
    if len(parts) == 1:
        return parts[0][0]
    (local, few), (wide, more) = parts
    return mapped(lambda a, b: (few * a + more * b) / (few + more), local, wide)


def _logits(layout: Layouts, prices: Prices) -> Passes:
    """The last stage's own: logits and loss, and layers that predict further tokens."""
    total = _passes(layout, layers.logits(layout), (), prices, 0.0)
    for _ in range(layout.model.mtp):
        total = mapped(np.add, total, _layer(layout, "mtp", prices))
    return total


def _passes(layout: Layouts, forward: Sequence, backward: Sequence, prices: Prices, host: Seconds) -> Passes:
    """Sums over items; items of part F are of the forward pass, all others of the backward pass."""
    sums: dict[str, dict] = {"forward": {}, "backward": {}, "weights": {}}
    uneven = prices.uneven_attention(layout, layout.cp - 1)
    transfers = prices.transfers(layout)
    for item in (*forward, *backward):
        ways = ("forward",) if item.part == "F" else ("backward", "weights") if item.part == "W" else ("backward",)
        if isinstance(item, Op):
            busy, moved = prices.parts(item)
            sums_of = {"moved": moved, "operations": np.sign(item.nbytes)}
            if item.kind != "elementwise":
                sums_of[item.kind] = busy * uneven if item.kind == "attention" else busy
        else:
            key = {"cp": "ring", "etp": "ep"}.get(item.group, item.group)
            sums_of = {key: transfers(item)}
            if item.group == "tp":
                sums_of["launched"] = prices.launched_seconds(layout, item)
        for way in ways:
            for key, value in sums_of.items():
                sums[way][key] = sums[way][key] + value if key in sums[way] else value
    if prices.network is not None:
        for way, items in (("forward", forward), ("backward", backward)):
            sums[way] |= _beginning(
                (part for part in items if (part.part == "F") == (way == "forward")), transfers, prices
            )
    again = layers.recomputed(layout)
    return Passes(
        Pass(host=host, **sums["forward"]),
        Pass(host=(2 + again) * host, **sums["backward"]),
        Pass(host=host, **sums["weights"]),
    )


def _beginning(items: Iterable, transfers: Callable, prices: Prices) -> dict:
    """`lead` and `head` of a pass: of the first block of its layer that is there, which is one node in traces."""
    lead, head, before = Transfer(), 0.0, np.asarray(True)
    for _, section in groupby(items, block_of):
        present, in_lead, alone = np.asarray(False), before, before
        for item in section:
            if isinstance(item, Op):
                head = head + alone * sum(prices.parts(item))
                present = present | (np.asarray(item.nbytes) > 0)
                continue
            if item.collective == "all_gather" and item.group == "tp":
                lead = lead + transfers(item) * in_lead
            elif item.group != "tp":
                in_lead = in_lead & (np.asarray(item.size) == 0)
            alone = alone & (np.asarray(item.size) == 0)
        before = before & ~present
    return {"lead": lead, "head": head}


def _gradients(layout: Layouts, prices: Prices) -> Gradients:
    transfers = prices.transfers(layout)
    exchanges = {when: dict.fromkeys(KINDS, Exchange()) for when in ("iteration", "microbatch")}
    for kind in KINDS:
        for comm in layers.gradient_comms(layout, kind) if kind != "moe" or layout.model.experts else ():
            exchange = exchanges[comm.when][kind]
            if comm.part == "W":
                exchanges[comm.when][kind] = exchange._replace(reduce=exchange.reduce + transfers(comm))
            elif comm.part != "I":  # gathers for the backward pass are those of the forward pass
                exchanges[comm.when][kind] = exchange._replace(gather=exchange.gather + transfers(comm))
    return Gradients(exchanges["iteration"], exchanges["microbatch"])


def _once(layout: Layouts, names: Sequence[str], function: Callable[[Layouts], Any]) -> Any:
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
    distinct: dict[str, Any] = {name: value[first] for name, value in keys.items()}
    result = function(replace(layout, **distinct))
    return mapped(lambda value: value[where] if isinstance(value, np.ndarray) and value.ndim else value, result)
