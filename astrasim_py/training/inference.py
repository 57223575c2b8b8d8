"""Inference: a pool of ranks that reads prompts and one that generates, with keys and values on the way between them.

Prompts come in waves, a microbatch of every replica of the prefill pool each. When a layer has read a wave, its keys
and values leave for the decode pool, beside the collectives of both; a wave is decoded when all of them have arrived.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from pydantic import Field

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import Count, choice
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.training.assembly import Block, assemble
from astrasim_py.training.layers import Op, stage_params, up
from astrasim_py.training.memory import with_framework
from astrasim_py.training.models import NamedModel
from astrasim_py.training.schedules import FORWARD
from astrasim_py.training.stages import Lane, Prices, Stage
from astrasim_py.training.strategy import ATTENTIONS, ELEMENT, Layout, Training


class Pool(StrictModel):
    """Ranks that do the same: replicas of the model, each cut by tensor and expert parallelism."""

    _place = "inference"

    dp: Count = Field(default=1, description="replicas of the model")
    tp: Count = 1
    ep: Count = 1
    etp: Count = Field(default=1, description="tensor parallel ranks of an expert")


class Inference(StrictModel):
    """What users write under ``inference:``: prompts that one pool reads and another one answers."""

    _place = "inference"

    model: NamedModel = example("llama3-70b")
    prefill: Pool = Field(default_factory=Pool, description="the pool that reads prompts", examples=["{tp: 8}"])
    decode: Pool = Field(default_factory=Pool, description="the pool that generates", examples=["{tp: 8}"])
    prompt: Count = Field(default=2048, description="tokens of a prompt")
    steps: Count = Field(default=8, description="tokens that each sequence generates after the first one")
    mbs: Count = Field(default=1, description="prompts of a wave, of each replica of the prefill pool")
    waves: Count = Field(default=1, description="one after the other")
    dtype: choice(*ELEMENT) = "bf16"
    attention: choice(*ATTENTIONS) = "auto"

    def layouts(self, ranks: int) -> tuple[Layout, Layout]:
        """Layouts of the two pools; raises ScenarioError: they do not fit the model, each other or `ranks`."""
        sizes = [pool.dp * pool.tp for pool in (self.prefill, self.decode)]
        if sum(sizes) != ranks:
            problem = f"pools of {sizes[0]} and {sizes[1]} ranks are not the {ranks} of the job"
            raise ScenarioError("inference", problem, f"write ranks: {sum(sizes)}, or other pools")
        prompts = self.prefill.dp * self.mbs
        if prompts % self.decode.dp:
            problem = f"{self.decode.dp} replicas of the decode pool do not share a wave of {prompts} prompts evenly"
            raise ScenarioError("inference", problem, f"write an mbs that is a multiple of {self.decode.dp}")
        same = {"model": self.model, "sp": False, "dtype": self.dtype, "attention": self.attention}
        both = (
            (self.prefill, {"seq": self.prompt, "mbs": self.mbs, "microbatches": self.waves}),
            (self.decode, {"seq": 1, "mbs": prompts // self.decode.dp, "microbatches": 1}),
        )
        found = (Training(**same, **own, **pool.model_dump()).layout(pool.dp * pool.tp) for pool, own in both)
        return tuple(found)


def inference_memory(layout: Layout, sequences: int, tokens: int) -> dict[str, int]:
    """Bytes of a rank of a pool that keeps keys and values of so many `sequences` of `tokens`, by kind."""
    cache = sequences * tokens * _cached(layout, layout.tp) * (layout.model.layers + layout.model.mtp)
    return with_framework({"weights": sum(stage_params(layout, 0)) * layout.element, "cache": cache})


class _Transfer(NamedTuple):
    """Keys and values of a layer and wave that pass from a prefill rank to a decode rank."""

    source: int
    to: int
    size: int


def inference_workload(
    prefill: Layout, decode: Layout, steps: int, prices: Prices | None = None, *, name: str = ""
) -> Workload:
    """Waves of prompts, and `steps` tokens generated for each.

    Parameters
    ----------
    prefill, decode : Layout
        The pools; ranks of the decode pool follow those of the other. `prefill` has `microbatches` waves of `mbs`
        prompts of `seq` tokens a replica; `decode` has `mbs` sequences a replica, and `seq` 1.
    steps : int
        Tokens that each sequence generates after the first one.
    prices : Prices, optional
        Without them computation carries FLOPs and bytes alone.

    Returns
    -------
    Workload
        In a decode step attention reads the keys and values of the prompt and of all tokens before.

    Raises
    ------
    ScenarioError
        Pools that do not fit each other; pipeline or context parallelism; unequal routing.
    """
    _check(prefill, decode)
    transfers = _transfers(prefill, decode)
    traces = [_prefill_trace(prefill, prices, rank, transfers) for rank in range(prefill.ranks)]
    traces += [_decode_trace(prefill, decode, prices, rank, steps, transfers) for rank in range(decode.ranks)]
    groups, roles = {}, {}
    for pool, layout, first in (("prefill", prefill, 0), ("decode", decode, prefill.ranks)):
        for role, (number, members) in layout.groups().items():
            names = [f"{pool}.{role}.{index}" for index in range(len(members))]
            groups |= {label: tuple((row + first).tolist()) for label, row in zip(names, members, strict=True)}
            own = roles.setdefault(role, [None] * len(traces))
            own[first : first + layout.ranks] = [names[index] if index >= 0 else None for index in number.tolist()]
    used = {role for trace in traces for role in trace.group_of()[1]}
    return Workload(tuple(traces), groups, name, roles={role: roles[role] for role in roles if role in used})


def cached_attention(layout: Layout, op: Op, context: int) -> Op:
    """Attention of one token of each of `mbs` sequences to the keys and values of `context` tokens.

    `op`: the attention of the layer, of which the result has the name. With latent attention the cache holds the latent
    of each token, which all heads read.
    """
    model, heads = layout.model, up(layout.model.heads, layout.tp)
    width = 2 * model.kv_lora + model.qk_rope if model.mla else model.qk_dim + model.out_dim
    context = min(context, model.window) if model.window else context
    moved = layout.mbs * (context * _cached(layout, layout.tp) + layout.element * heads * width)
    return replace(op, flops=2 * layout.mbs * context * heads * width, nbytes=moved)


def _cached(layout: Layout, tp: int) -> int:
    """Bytes of a token's keys and values in one layer, on each of `tp` ranks."""
    model = layout.model
    if model.mla:
        return layout.element * (model.kv_lora + model.qk_rope)
    return layout.element * up(model.kv_heads, tp) * (model.qk_dim + model.out_dim)


def _check(prefill: Layout, decode: Layout) -> None:
    for pool, layout in (("prefill", prefill), ("decode", decode)):
        if layout.pp > 1 or layout.cp > 1:
            problem = f"the {pool} pool has pp {layout.pp} and cp {layout.cp}"
            raise ScenarioError("inference", problem, "write pp: 1 and cp: 1")
        if layout.routing.kind != "balanced":
            problem = f"the {pool} pool has routing {layout.routing.kind}"
            raise ScenarioError("inference", problem, "write routing: {kind: balanced}")
    if prefill.model != decode.model or prefill.element != decode.element:
        raise ScenarioError("inference", "the pools differ in model or dtype", "write the same for both")
    for what, a, b in (("tp", prefill.tp, decode.tp), ("dp", prefill.dp, decode.dp)):
        if a % b and b % a:
            raise ScenarioError("inference", f"{what} {a} and {b} of the pools do not divide", "write a multiple")
    read, generated = prefill.dp * prefill.mbs, decode.dp * decode.mbs
    if read != generated:
        problem = f"a wave has {read} prompts, and the decode pool takes {generated} sequences"
        raise ScenarioError("inference", problem, f"write mbs: {max(read // decode.dp, 1)} for the decode pool")
    if decode.seq != 1:
        raise ScenarioError("inference", f"the decode pool has seq {decode.seq}", "write seq: 1: a token a step")


def _transfers(prefill: Layout, decode: Layout) -> list[_Transfer]:
    """What goes from rank to rank for each layer of a wave."""
    tp, dp = max(prefill.tp, decode.tp), max(prefill.dp, decode.dp)
    prompts = prefill.dp * prefill.mbs // dp
    size = prompts * prefill.seq * _cached(prefill, tp)
    found = []
    for replica in range(dp):
        for part in range(tp):
            source, to = (replica * pool.dp // dp * pool.tp + part * pool.tp // tp for pool in (prefill, decode))
            found.append(_Transfer(source, prefill.ranks + to, size))
    return found


class _Pool(Stage):
    """A rank of a pool."""

    def __init__(self, layout: Layout, prices: Prices | None, rank: int, first: int) -> None:
        super().__init__(layout, prices, 0, rank, "end", None)
        self.rank = first + rank


def _prefill_trace(layout: Layout, prices, rank: int, transfers: list[_Transfer]) -> ExecutionTrace:
    stage, block = _Pool(layout, prices, rank, 0), Block()
    lane = Lane(block, 0)
    for unit in stage.chunks[0]:
        for _ in stage.visit(lane, unit, FORWARD):
            pass
        for one in transfers:
            if one.source == rank and unit.layer is not None:
                tag = unit.layer, layout.model.layers + layout.model.mtp
                name = f"send {unit.label}.cache"
                block.send(name, one.size, rank, one.to, after=lane.tail, tag=tag, phase=0, **unit.columns)
    return assemble([(block, (wave,)) for wave in range(layout.microbatches)], rank)


class _Generating(_Pool):
    """A rank that generates: its attention reads more with every step."""

    def __init__(self, layout: Layout, prices, rank: int, first: int, contexts: list[int]) -> None:
        super().__init__(layout, prices, rank, first)
        self.contexts = contexts

    def price(self, ops: tuple[Op, ...]) -> tuple:
        if not any(op.kind == "attention" for op in ops):
            return super().price(ops)
        if ops not in self.priced:
            grown = [
                tuple(cached_attention(self.layout, op, context) if op.kind == "attention" else op for op in ops)
                for context in self.contexts
            ]
            columns = zip(*(super(_Generating, self).price(one) for one in grown), strict=True)
            self.priced[ops] = tuple(None if column[0] is None else np.array(column) for column in columns)
        return self.priced[ops]


def _decode_trace(prefill: Layout, layout: Layout, prices, rank: int, steps: int, transfers) -> ExecutionTrace:
    waves, me = prefill.microbatches, prefill.ranks + rank
    contexts = [prefill.seq + 1 + step for step in range(steps)] * waves
    stage = _Generating(layout, prices, rank, prefill.ranks, contexts)
    program: list[tuple[Block, tuple[int, ...]]] = []
    arrives, step_block = Block(), Block()
    lane = Lane(step_block, 0)
    lane.extras = {"behind": ("arrived",)}
    for unit in stage.chunks[0]:
        for _ in stage.visit(lane, unit, FORWARD):
            pass
        for one in transfers:
            if one.to == me and unit.layer is not None:
                tag = unit.layer, layout.model.layers + layout.model.mtp
                own = {"stream": "arrived", "tag": tag, "phase": 0} | unit.columns
                arrives.receive(f"receive {unit.label}.cache", one.size, me, one.source, **own)
    for wave in range(waves):
        program.append((arrives, (wave,)))
        program += [(step_block, (wave * steps + step,)) for step in range(steps)]
    return assemble(program, me)
