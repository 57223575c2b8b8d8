"""The workload of a training: one execution trace for each class of equal ranks.

Computation is one chain in the order of the schedule, with the collectives that it waits for. Names are of the form
``L17.attn.bwd mb3``: layer, block, pass (``fwd``, ``bwd``, ``wgrad``, ``rec``, ``step``) and micro-batch. The same
layout gives the same bytes.

Pipeline: a pass waits for its receive; receives are posted early, each after the one before of its kind. Nothing
waits for sends, unless ``overlap: {pp: false}`` puts them into the chain. The tag of a message is (2 · micro-batch +
1 if backward) · (p v + p + 2) + the receiving virtual stage.

Gradients are a chain of their own: a layer's reduction follows its last backward pass; ``bucket`` joins those of
several layers. With ``overlap: {dp: true}`` parameters are gathered at the start, each layer's before its first
forward pass; otherwise reductions follow all computation, and gathers the optimizer. ZeRO 3 always gathers one layer
ahead, before the reduction of the current layer.

Software: launches of a layer (``L3.host.fwd mb0``) begin with it in a stream of the host, and what follows waits for
them; ``.delay`` comes before a collective or a send, after one whose input comes in parts; ``.interference`` follows a
layer beside which weights or gradients are sent; ``iteration.step`` is the last node. None is there where it takes no
time.

``overlap: {tp: true}`` cuts a computation and the collectives beside it into four. ``overlap: {ep: true}``: the
forward pass of a micro-batch and the backward pass of another alternate at every all-to-all, under ``1f1b`` and
``interleaved``, which warm up with one block more; shared experts run beside the dispatch. With unequal routing
messages of the rows due replace each all-to-all, and the work of experts follows the rows.

Symbolic tensor graphs (STAGE) of a model have the same collectives, groups, order and messages, but: data parallel
ranks are neighbours; embedding and logits are whole on every rank, and their gradients all-reduced over tensor
parallel ranks; gradients are all-reduced with every micro-batch; gathers for weight gradients are in the forward
pass; there is no pipeline schedule, optimizer, recomputation or price; tags are random; sizes count elements,
operations multiply-adds.
"""

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.training.assembly import assemble
from astrasim_py.training.layer_writer import LayerWriter
from astrasim_py.training.layers import Item, Op, backward, forward, recomputed
from astrasim_py.training.prices import Prices
from astrasim_py.training.routing import routes_of
from astrasim_py.training.schedules import SPLIT_BACKWARD, pairs, programs
from astrasim_py.training.stages import Stage
from astrasim_py.training.strategy import Layout

#: Most nodes of all traces of a workload together, those that ranks share counted once.
MAX_NODES = 2**24


def training_workload(
    layout: Layout[int], prices: Prices | None = None, *, gather: str = "auto", name: str = ""
) -> Workload:
    """The workload of all ranks of a layout.

    Parameters
    ----------
    layout : Layout[int]
        Of plain numbers.
    prices : Prices, optional
        Without them computation carries FLOPs and bytes alone, which a scenario's compute model prices.
    gather : str
        When ZeRO 1 and 2 gather parameters: ``start`` of the iteration, beside the first forward passes; ``end``, after
        the optimizer; ``auto``: at the start if data-parallel communication overlaps.
    name : str
        Of the workload.

    Returns
    -------
    Workload
        Ranks of one class share one trace, with roles for groups and shifts of peers: a class is a pipeline stage, with
        context parallelism a place in the ring of each stage, and with unequal routing a place in the expert group.

    Raises
    ------
    ScenarioError
        An overlap that does not go with the layout; a routing file that does not fit; more than `MAX_NODES` nodes.
    """
    _check_overlap(layout, prices)
    if gather == "auto":
        gather = "start" if layout.overlap.dp else "end"
    routes = routes_of(layout)
    inside = np.arange(int(layout.stage_ranks))
    place = inside // layout.tp % layout.cp
    if routes is not None:
        place = place * layout.stage_ranks + inside % (layout.ep * layout.etp)
    _, first, which = np.unique(place, return_index=True, return_inverse=True)
    # Forward and backward passes of different micro-batches take turns, to hide their all-to-alls.
    paired = layout.overlap.ep is True and layout.ep > 1 and layout.schedule in ("1f1b", "interleaved")
    times = _times(layout, prices) if layout.schedule in SPLIT_BACKWARD else (1, 1, 1)
    schedule = programs(layout.schedule, layout.pp, layout.microbatches, layout.vp, times, paired=paired)
    interference = None
    if prices is not None and prices.constants.interference and (layout.overlap.dp or layout.zero == 3):
        from astrasim_py.training.interference import Interference

        interference = Interference(layout, prices)
    traces: list[ExecutionTrace] = []
    for stage in range(layout.pp):
        together = frozenset(pairs(schedule[stage]).tolist()) if paired else frozenset()
        stage_traces: list[ExecutionTrace] = []
        for rank_in_stage in first.tolist():
            writer = Stage(LayerWriter(layout, prices, stage, rank_in_stage, routes), gather, interference)
            copies = writer.copies(schedule[stage], together)
            total = sum(len(block.rows) for block, _ in copies) * len(first) * layout.pp
            if total > MAX_NODES:
                problem = f"about {total} nodes in the traces of {len(first) * layout.pp} classes of ranks"
                remedy = "write fewer microbatches, nodes: coarse, or routing: {kind: balanced}"
                raise ScenarioError("training", f"{problem}, more than {MAX_NODES}", remedy)
            stage_traces.append(assemble(copies, writer.rank))
        traces += [stage_traces[index] for index in which.tolist()]
    groups, roles = _groups(layout, {name for trace in dict.fromkeys(traces) for name in trace.group_of()[1]})
    shifts = np.tile(inside - first[which], layout.pp).tolist()
    return Workload(tuple(traces), groups, name, roles=roles, shifts=shifts)


def _check_overlap(layout: Layout[int], prices: Prices | None) -> None:
    overlap = layout.overlap
    wrong = (
        (overlap.ep and layout.zero == 3, "ep does not go with zero 3", "write zero: 1, or overlap: {ep: false}"),
        (
            overlap.by_parts("tp") and layout.tp > 1 and not layout.sp,
            "tp: tiles needs sequence parallelism, as an all-reduce has no parts that products wait for",
            "write sp: true, or overlap: {tp: true}",
        ),
        (
            overlap.by_parts("ep") and layout.etp > 1,
            f"ep: tiles does not go with etp {layout.etp}, whose gathers are between experts and exchanges",
            "write etp: 1, or overlap: {ep: true}",
        ),
        (
            overlap.by_parts("ep") and layout.routing.kind != "balanced",
            "ep: tiles needs equal routing, as unequal rows are sent as messages",
            "write routing: {kind: balanced}, or overlap: {ep: true}",
        ),
        (
            prices is None and (overlap.tile_overhead or overlap.comm_slows_compute),
            "the cost of tiles needs times of computation, and the roofline prices it later",
            "write times: model",
        ),
    )
    for broken, problem, remedy in wrong:
        if broken:
            raise ScenarioError("training.overlap", problem, remedy)


def _groups(layout: Layout[int], used: set[str]) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple]]:
    """Groups of ranks, and which of them each rank calls in each role that traces use."""
    groups: dict[str, tuple[int, ...]] = {}
    roles: dict[str, tuple] = {}
    for role, (number, members) in layout.groups().items():
        if role in used:
            names = [f"{role}.{index}" for index in range(len(members))]
            groups |= dict(zip(names, map(tuple, members.tolist()), strict=True))
            roles[role] = tuple(names[index] if index >= 0 else None for index in number.tolist())
    return groups, roles


def _times(layout: Layout[int], prices: Prices | None) -> tuple[int, int, int]:
    """Times of the passes through a layer, of the GPU or of the host's launches, for schedules that order their blocks
    by them.
    """
    kind = "moe" if layout.model.experts else "dense"
    sums = {"F": 0, "I": 0, "W": 0}
    for variant, count in layout.by_attention(kind):
        items: dict[str, list[Item]] = {part: [] for part in sums}
        for item in forward(variant, kind) + backward(variant, kind):
            items["I" if item.part == "R" else item.part].append(item)
        for part, of_part in items.items():
            ops = [item for item in of_part if isinstance(item, Op)]
            if prices is None:
                sums[part] += count * sum(int(op.flops) for op in ops)
            else:
                passes = 1 + (part == "I") * float(recomputed(layout))
                host = prices.host_ps(variant, kind, of_part, passes)
                sums[part] += count * max(sum(prices.op_ps(op) for op in ops), host)
    return max(sums["F"], 1), max(sums["I"], 1), max(sums["W"], 1)
