"""Inference: a pool of ranks that reads prompts and one that generates, with keys and values on the way between them.

Prompts come in waves, a microbatch of every replica of the prefill pool each. When a layer has read a wave, its keys
and values leave for the decode pool, beside the collectives of both; a wave is decoded when all of them have arrived.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import Count, choice
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.training.assembly import Block, assemble
from astrasim_py.training.lanes import Lane, Unit
from astrasim_py.training.layer_writer import LayerWriter, Price
from astrasim_py.training.layers import Op, stage_params, up
from astrasim_py.training.memory import with_framework
from astrasim_py.training.models import NamedModel
from astrasim_py.training.prices import Prices
from astrasim_py.training.schedules import FORWARD
from astrasim_py.training.stages import LanePass, PassKey, Stage
from astrasim_py.training.strategy import ATTENTIONS, ELEMENT, Layout, Training


class Pool(StrictModel):
    """Replicas of the model, each cut by tensor, pipeline, context and expert parallelism."""

    _place = "inference"

    dp: Count = Field(default=1, description="replicas of the model")
    tp: Count = 1
    pp: Count = Field(default=1, description="pipeline stages")
    cp: Count = Field(default=1, description="ranks that share the tokens of a prompt; for prefill")
    ep: Count = 1
    etp: Count = Field(default=1, description="tensor parallel ranks of an expert")


class Inference(StrictModel):
    """The keys under ``inference:``: one pool reads prompts and another one answers them."""

    _place = "inference"

    model: NamedModel = example("llama3-70b")
    prefill: Pool = Field(default_factory=Pool, description="the pool that reads prompts", examples=["{tp: 8}"])
    decode: Pool = Field(default_factory=Pool, description="the pool that generates", examples=["{tp: 8}"])
    prompt: Count = Field(default=2048, description="tokens of a prompt")
    steps: Count = Field(default=8, description="tokens that each sequence generates after the first one")
    mbs: Count = Field(default=1, description="prompts of a wave, of each replica of the prefill pool")
    waves: Count = Field(default=1, description="one after the other")
    dtype: Annotated[str, choice(*ELEMENT)] = "bf16"
    attention: Annotated[str, choice(*ATTENTIONS)] = "auto"

    def layouts(self, ranks: int) -> tuple[Layout[int], Layout[int]]:
        """Layouts of the two pools; raises ScenarioError: they do not fit the model, each other or `ranks`."""
        if self.decode.cp > 1:
            problem = f"decode with cp {self.decode.cp}: a step has one token of a sequence, which cannot be shared"
            raise ScenarioError("inference", problem, "write cp: 1; a larger tp or dp of decode shares the cache")
        sizes = [pool.dp * pool.tp * pool.pp * pool.cp for pool in (self.prefill, self.decode)]
        if sum(sizes) != ranks:
            problem = f"pools of {sizes[0]} and {sizes[1]} ranks are not the {ranks} of the job"
            raise ScenarioError("inference", problem, f"write ranks: {sum(sizes)}, or other pools")
        prompts = self.prefill.dp * self.mbs
        if prompts % self.decode.dp:
            problem = f"{self.decode.dp} replicas of the decode pool do not share a wave of {prompts} prompts evenly"
            raise ScenarioError("inference", problem, f"write an mbs that is a multiple of {self.decode.dp}")

        same = {"model": self.model, "dtype": self.dtype, "attention": self.attention, "sp": False}

        def layout(pool: Pool, size: int, **keys: Any) -> Layout[int]:
            return Training.model_validate(same | keys | pool.model_dump()).layout(size)

        waves = layout(self.prefill, sizes[0], seq=self.prompt, mbs=self.mbs, microbatches=self.waves)
        return waves, layout(self.decode, sizes[1], seq=1, mbs=prompts // self.decode.dp, microbatches=1)


def inference_memory(layout: Layout[int], sequences: int, tokens: int) -> dict[str, int]:
    """Bytes of a rank of a pool that keeps keys and values of `sequences` of `tokens` each, by kind.

    Of a pool with pipeline stages, the one that needs most.
    """
    stages = []
    for stage in range(layout.pp):
        tokens_kept = sum(layout.model.tokens_read(layer, tokens) for layer in _layers(layout, stage))
        cache = sequences * up(tokens_kept, layout.cp) * _cached(layout, layout.tp)
        stages.append({"weights": sum(stage_params(layout, stage)) * layout.element, "cache": cache})
    largest = with_framework(max(stages, key=lambda one: sum(one.values())))
    return {kind: int(nbytes) for kind, nbytes in largest.items()}


def inference_workload(
    prefill: Layout[int], decode: Layout[int], steps: int, prices: Prices | None = None, *, name: str = ""
) -> Workload:
    """Waves of prompts, and `steps` tokens generated for each.

    Parameters
    ----------
    prefill, decode : Layout[int]
        The pools; ranks of the decode pool follow those of the other. `prefill` has `microbatches` waves of `mbs`
        prompts of `seq` tokens a replica; `decode` has `mbs` sequences a replica, and `seq` 1. As many waves as it has
        pipeline stages generate at once.
    steps : int
        Tokens that each sequence generates after the first one.
    prices : Prices, optional
        Without them computation carries FLOPs and bytes alone.

    Returns
    -------
    Workload
        In a decode step attention reads the keys and values of the prompt and of all tokens before. Ranks of a stage
        share one trace, but for their place in the ring of context parallelism and for the ranks of the other pool that
        they send to.

    Raises
    ------
    ScenarioError
        Pools that do not fit each other; context parallelism of `decode`; unequal routing.
    """
    _check(prefill, decode)
    links = _links(prefill, decode)
    reads = [[to for source, to in links if source == rank] for rank in range(prefill.stage_ranks)]
    answers = [[source for source, to in links if to == rank] for rank in range(decode.stage_ranks)]
    first = prefill.ranks
    contexts = [prefill.seq + 1 + step for step in range(steps)] * prefill.microbatches

    def reading(stage: int, inside: int) -> _InferenceRank:
        return _Reading(LayerWriter(prefill, prices, stage, inside), decode, first)

    def generating(stage: int, inside: int) -> _InferenceRank:
        writer = _Growing(decode, prices, stage, inside, first=first)
        writer.contexts = contexts
        return _Generating(writer, prefill, 0, steps)

    pools = _classes(reading, prefill, reads), _classes(generating, decode, answers)
    traces, shifts = ([*a, *b] for a, b in zip(*pools, strict=True))
    groups: dict[str, tuple[int, ...]] = {}
    roles: dict[str, list] = {}
    for pool, layout, first in (("prefill", prefill, 0), ("decode", decode, prefill.ranks)):
        for role, (number, members) in layout.groups().items():
            names = [f"{pool}.{role}.{index}" for index in range(len(members))]
            groups |= {label: tuple((row + first).tolist()) for label, row in zip(names, members, strict=True)}
            names_of = roles.setdefault(role, [None] * len(traces))
            names_of[first : first + layout.ranks] = [names[index] if index >= 0 else None for index in number.tolist()]
    used = {role for trace in dict.fromkeys(traces) for role in trace.group_of()[1]}
    roles = {role: names_of for role, names_of in roles.items() if role in used}
    return Workload(tuple(traces), groups, name, roles=roles, shifts=shifts)


def cached_attention(layout: Layout[int], op: Op, context: int) -> Op:
    """Attention of one token of each of `mbs` sequences to the keys and values of `context` tokens.

    `op`: the attention of the layer, of which the result has the name. With latent attention the cache holds the latent
    of each token, which all heads read.
    """
    model, heads = layout.model, up(layout.model.heads, layout.tp)
    width = 2 * model.kv_lora + model.qk_rope if model.mla else model.qk_dim + model.out_dim
    context = min(context, model.window or context)
    moved = layout.mbs * (context * _cached(layout, layout.tp) + layout.element * heads * width)
    return replace(op, flops=2 * layout.mbs * context * heads * width, nbytes=moved)


def _cached(layout: Layout[int], tp: int) -> int:
    """Bytes of a token's keys and values in one layer, on each of `tp` ranks."""
    model = layout.model
    if model.mla:
        return layout.element * (model.kv_lora + model.qk_rope)
    return layout.element * int(up(model.kv_heads, tp)) * (model.qk_dim + model.out_dim)


def _check(prefill: Layout[int], decode: Layout[int]) -> None:
    for pool, layout in (("prefill", prefill), ("decode", decode)):
        if layout.routing.kind != "balanced":
            problem = f"the {pool} pool has routing {layout.routing.kind}"
            raise ScenarioError("inference", problem, "write routing: {kind: balanced}")
    if prefill.model != decode.model or prefill.element != decode.element:
        raise ScenarioError("inference", "the pools differ in model or dtype", "write the same for both")
    for key, a, b in (("tp", prefill.tp, decode.tp), ("dp", prefill.dp, decode.dp)):
        if a % b and b % a:
            raise ScenarioError("inference", f"{key} {a} and {b} of the pools do not divide", "write a multiple")
    read, generated = prefill.dp * prefill.mbs, decode.dp * decode.mbs
    if read != generated:
        problem = f"a wave has {read} prompts, and the decode pool takes {generated} sequences"
        raise ScenarioError("inference", problem, f"write mbs: {max(read // decode.dp, 1)} for the decode pool")
    if decode.seq != 1:
        raise ScenarioError("inference", f"the decode pool has seq {decode.seq}", "write seq: 1: a token a step")


def _layers(layout: Layout[int], stage: int) -> list[int]:
    """Layers of a pipeline stage, with those that predict further tokens."""
    model = layout.model
    ahead = range(model.layers, model.layers + model.mtp) if stage == layout.last_stage else ()
    return [*layout.chunk_layers(stage, 0), *ahead]


def _links(prefill: Layout[int], decode: Layout[int]) -> list[tuple[int, int]]:
    """Ranks of a stage of each pool between which keys and values pass."""
    dp, tp = max(prefill.dp, decode.dp), max(prefill.tp, decode.tp)
    links = []
    for replica, place, part in product(range(dp), range(prefill.cp), range(tp)):
        source = place + prefill.cp * (replica % prefill.dp)
        links.append(
            (part * prefill.tp // tp + prefill.tp * source, part * decode.tp // tp + decode.tp * (replica % decode.dp))
        )
    return links


class _InferenceRank(Stage):
    """A rank of a pool; `other` and `others` are the other pool and its first rank.

    `peers` are the ranks of a stage of the other pool that it sends to or receives from.
    """

    def __init__(self, writer: LayerWriter, other: Layout[int], others: int) -> None:
        super().__init__(writer)
        self.other, self.others, self.inside = other, others, writer.inside
        self.peers: list[int] = []

    def caches(self, unit: Unit, prompt: Layout[int], answer: Layout[int]) -> Iterator[tuple[int, int, dict]]:
        """Peer, bytes and columns of each message with the keys and values of a layer."""
        if unit.layer < 0:
            return
        model = self.layout.model
        tokens = up(model.tokens_read(unit.layer, prompt.seq), prompt.cp)
        prompts = prompt.dp * prompt.mbs // max(prompt.dp, answer.dp)
        size = int(prompts * tokens * up(_cached(answer, answer.tp), max(prompt.tp // answer.tp, 1)))
        columns = {"tag": (unit.layer, model.layers + model.mtp), "phase": 0} | unit.columns
        stage = int(self.other.stage_of(unit.layer) * self.other.stage_ranks)
        for peer in self.peers:
            yield self.others + stage + peer, size, columns

    def trace(self) -> ExecutionTrace:
        """Its nodes of all waves."""
        raise NotImplementedError


class _Reading(_InferenceRank):
    """A rank that reads prompts."""

    def give(self, lane: Lane, unit: Unit) -> None:
        for peer, size, columns in self.caches(unit, self.layout, self.other):
            lane.block.send(f"send {unit.label}.cache", size, self.rank, peer, after=lane.tail, **columns)

    def trace(self) -> ExecutionTrace:
        block = self.block(PassKey(FORWARD, 0))
        return assemble([(block, (wave,)) for wave in range(self.layout.microbatches)], self.rank)


class _Growing(LayerWriter):
    """Writes decode steps, whose attention reads more with every one. `contexts`: tokens that it reads, by step."""

    contexts: Sequence[int] = ()

    def price(self, ops: tuple[Op, ...], unit: Unit) -> Price:
        if not any(op.kind == "attention" for op in ops):
            return super().price(ops, unit)
        if (ops, unit.wide) not in self.priced:
            layout = self.layout.reading_all if unit.wide else self.layout
            grown = [
                tuple(cached_attention(layout, op, context) if op.kind == "attention" else op for op in ops)
                for context in self.contexts
            ]
            flops, nbytes, times = zip(*(super(_Growing, self).price(part, unit) for part in grown), strict=True)
            time = None if times[0] is None else np.array(times)
            self.priced[ops, unit.wide] = np.array(flops), np.array(nbytes), time
        return self.priced[ops, unit.wide]


class _Generating(_InferenceRank):
    """A rank that generates `steps` tokens."""

    def __init__(self, writer: LayerWriter, other: Layout[int], others: int, steps: int) -> None:
        super().__init__(writer, other, others)
        self.steps = steps

    def waits(self, unit: Unit) -> tuple[str, ...]:
        return ("arrived",) if unit is self.chunks[0][0] else ()

    def trace(self) -> ExecutionTrace:
        # As many waves generate at once as there are pipeline stages.
        arrives = Block()
        for unit in self.chunks[0]:
            for peer, size, columns in self.caches(unit, self.other, self.layout):
                arrives.receive(f"receive {unit.label}.cache", size, self.rank, peer, stream="arrived", **columns)
        blocks = {ends: self._step(*ends) for ends in product((False, True), repeat=2)}
        program: list[tuple[Block, tuple[int, ...]]] = []
        waves, p = self.other.microbatches, self.layout.pp
        for begin in range(0, waves, p):
            for step, wave in product(range(self.steps), range(begin, min(begin + p, waves))):
                program += [(arrives, (wave,))] if step == 0 else []
                program.append((blocks[step == 0, step == self.steps - 1], (wave * self.steps + step,)))
        return assemble(program, self.rank)

    def _step(self, first: bool, last: bool) -> Block:
        """A step; between pipeline stages the token of the last one goes to the first one."""
        layout = self.layout
        lane = Lane(block := Block(), 0)
        far, messages = (layout.pp - 1) * int(layout.stage_ranks), 2 * (2 * layout.pp + 2)
        size = 4 * layout.mbs
        if layout.pp > 1 and self.stage == 0 and not first:
            name = "receive token"
            row = block.receive(name, size, self.rank, self.rank + far, stream=name, tag=(0, messages), phase=0)
            lane.tail = [row]
        one_pass = LanePass(self, lane, PassKey(FORWARD, 0))
        while one_pass.step():
            pass
        if layout.pp > 1 and self.stage == layout.last_stage and not last:
            to, tag = self.rank - far, (messages, messages)
            block.send("send token", size, self.rank, to, after=lane.tail, tag=tag, phase=0)
        return block


def _classes(
    make: Callable[[int, int], _InferenceRank], layout: Layout[int], peers: list[list[int]]
) -> tuple[list, list]:
    """Traces of the ranks of a pool, and their shifts; `make` takes a stage and a rank in it.

    Ranks of a stage with one place in the ring differ in their peers in the other pool alone: those whose peers are as
    far away share a trace, the others all of its columns but those of peers.
    """
    written: dict[tuple, tuple[_InferenceRank, ExecutionTrace]] = {}
    known: dict[tuple, tuple[ExecutionTrace, int]] = {}
    traces, shifts = [], []
    for stage, inside in product(range(layout.pp), range(layout.stage_ranks)):
        alike = stage, inside // layout.tp % layout.cp
        key = *alike, tuple(peer - inside for peer in peers[inside])
        if alike not in written:
            rank = make(stage, inside)
            rank.peers = peers[inside]
            written[alike] = rank, rank.trace()
        if key not in known:
            rank, trace = written[alike]
            known[key] = (trace if rank.inside == inside else _moved(rank, trace, inside, peers[inside])), inside
        traces.append(known[key][0])
        shifts.append(inside - known[key][1])
    return traces, shifts


def _moved(rank: _InferenceRank, trace: ExecutionTrace, inside: int, peers: list[int]) -> ExecutionTrace:
    """The trace of another rank of the same class, with peers of its own in the other pool."""
    distance = inside - rank.inside
    where = np.arange(rank.layout.ranks + rank.other.ranks) + distance
    stages = rank.others + rank.other.stage_ranks * np.arange(rank.other.pp)
    for before, peer in zip(rank.peers, peers, strict=True):
        where[stages + before] = stages + peer
    old = {name: trace.column(name) for name in ("comm_src", "comm_dst")}
    new = {name: np.where(ranks == MISSING, MISSING, where[np.maximum(ranks, 0)]) for name, ranks in old.items()}
    return trace.replace(rank=rank.rank + distance, **new)
