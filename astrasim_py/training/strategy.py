"""The layout of training over ranks: the user's keys, and the resolved layout.

Rank order: tensor parallel fastest, then context, data, pipeline. Symbols in formulas: t tensor, c context, D data,
p pipeline and x expert parallel ranks; v chunks of layers per pipeline rank; b sequences of a microbatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import Count, FileName, Size, Speed, Time, choice, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.training.aliases import FOREIGN_KEYS, ours
from astrasim_py.training.models import Model, NamedModel
from astrasim_py.training.rules import RULES, After, divisors
from astrasim_py.training.schedules import SCHEDULES, virtual_stage
from astrasim_py.workload.items import MAX_TILES

ATTENTIONS = ("auto", "eager", "fa1", "fa2", "fa3", "cudnn")
#: Kinds of recomputation; "part" stands for a number from 0 to 1. `Layout.recompute` is a place here.
RECOMPUTE = ("none", "light", "attn", "half", "selective_op", "full", "part")
#: Bytes of an element of activations and weights; 8- and 4-bit formats are used inside matrix products alone.
ELEMENT = {"bf16": 2, "fp16": 2, "fp8": 2, "fp4": 2, "fp32": 4}
#: Bytes of a gradient that are sent and added to, and of one that is kept besides.
GRADIENTS = {"bf16": (2, 0), "fp32": (4, 0), "bf16+fp32": (4, 2)}
#: Groups of ranks; see `Layout.groups`.
ROLES = ("tp", "cp", "dp", "copies", "pp", "ep", "etp", "edp", "tie")
#: FLOPs of a rank for a microbatch that numbers of 63 bits can count.
_MOST_WORK = 2.0**62
#: A number, or an int64 array of one value per configuration.
Numbers = int | np.ndarray
N = TypeVar("N", bound=Numbers, covariant=True)


def _recomputation(value: object) -> object:
    part = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if not part and value not in RECOMPUTE[:-1]:
        remedy = f"write one of {', '.join(RECOMPUTE[:-1])}, or a part of the layers such as 0.2"
        raise wrong(f"{shown(value)} is not a recomputation", remedy)
    return value


#: Recomputation in the backward pass: a name, or a part of the layers.
Recomputation = Annotated[Any, BeforeValidator(_recomputation)]


#: Kinds of communication that can be used by parts, and how that is written.
_BY_PARTS = {"tp": "tp: tiles", "dp": "dp: buckets", "ep": "ep: tiles"}


class Overlap(StrictModel):
    """Communication that runs beside computation."""

    _place = "training.overlap"

    tp: Annotated[bool | str, choice(False, True, "tiles")] = Field(
        default=False, description="true: in pieces, each with its collectives; tiles: products wait for parts of one"
    )
    dp: Annotated[bool | str, choice(False, True, "buckets")] = Field(
        default=False, description="buckets: by parts, of gradients and of the parameters of ZeRO 3"
    )
    ep: Annotated[bool | str, choice(False, True, "tiles")] = Field(
        default=False, description="true: beside another microbatch; tiles: experts wait for parts of the exchange"
    )
    pp: bool = Field(default=True, description="false: a rank waits until its message to the next stage has arrived")
    tiles: Annotated[int, whole(1, MAX_TILES)] | None = Field(
        default=None, description="most parts of a collective; by default its ranks, up to 8"
    )
    tile_overhead: Time | None = Field(default=None, description="added to each of several tiles")
    comm_slows_compute: Speed | None = Field(
        default=None, description="speed of several tiles, which share the NPU with communication; 1 or less"
    )

    def _complete(self) -> None:
        for keys, kinds in ((("tiles",), _BY_PARTS), (("tile_overhead", "comm_slows_compute"), ("tp", "ep"))):
            for key in keys:
                if getattr(self, key) is not None and not any(self.by_parts(kind) for kind in kinds):
                    raise wrong("without tiles", f"write {' or '.join(_BY_PARTS[k] for k in kinds)}", (key,))
        if self.comm_slows_compute is not None and self.comm_slows_compute > 1:
            raise wrong("is more than 1", "write a speed, such as 0.9", ("comm_slows_compute",))

    @property
    def resolved(self) -> "Overlap":
        """The same without parts where there is one: it is the whole collective."""
        if self.tiles != 1:
            return self
        return self.model_copy(update={kind: kind == "dp" for kind in _BY_PARTS if self.by_parts(kind)})

    def by_parts(self, kind: str) -> bool:
        """Whether computation uses parts of the collectives of ``tp``, ``dp`` or ``ep``."""
        return isinstance(getattr(self, kind), str)

    def parts_of(self, ranks: int) -> int:
        """Parts of a collective of `ranks`: the most that divide them, or that they divide."""
        most = self.tiles or min(ranks, 8)
        return max(k for k in range(1, most + 1) if ranks % k == 0 or k % ranks == 0)


class Routing(StrictModel):
    """Routing of tokens: equal shares for all experts, or counts drawn with a seed or read from a file."""

    _place = "training.routing"

    kind: Annotated[str, choice("balanced", "random", "file")] = "balanced"
    seed: Annotated[int, whole(0, 2**31 - 1)] = 0
    file: FileName | None = None

    def _complete(self) -> None:
        if (self.kind == "file") != (self.file is not None):
            remedy = "write file: shares.json" if self.file is None else "write kind: file"
            raise wrong(f"kind {self.kind} {'without' if self.file is None else 'with'} a file", remedy, ("file",))


class Training(StrictModel):
    """The keys under ``training:``, in our names or in those of Megatron, TorchTitan or DeepSpeed."""

    _place = "training"
    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema["properties"].update({key: {} for key in FOREIGN_KEYS})
    )

    model: NamedModel = example("llama3-70b")
    seq: Annotated[int, whole(1, 2**31 - 1, example=8192)] = Field(default=2048, description="tokens of a sequence")
    gbs: Annotated[int, whole(1, 2**31 - 1, example=512)] | None = Field(
        default=None, description="sequences of an iteration"
    )
    mbs: Count = Field(default=1, description="sequences of a microbatch")
    microbatches: Annotated[int, whole(1, 2**31 - 1, example=8)] | None = Field(
        default=None, description="of an iteration, for gbs"
    )
    tp: Count = Field(default=1, description="tensor parallel ranks")
    pp: Count = Field(default=1, description="pipeline stages")
    cp: Count = Field(default=1, description="context parallel ranks: a ring of keys and values")
    ep: Count = Field(default=1, description="ranks that share the experts")
    etp: Count = Field(default=1, description="tensor parallel ranks of an expert")
    dp: Annotated[int | str, choice("fill", whole_numbers=True)] = Field(
        default="fill", description="data parallel ranks; fill: all that are left"
    )
    vp: Count | None = Field(default=None, description="chunks of layers per pipeline rank")
    zero: Annotated[int, whole(0, 3)] = Field(
        default=0, description="what is sharded: 1 the optimizer's state, 2 also gradients, 3 also weights"
    )
    zero_group: Count | None = Field(
        default=None, description="ranks that share one copy of the state that ZeRO shards; all"
    )
    zero_copies: Count | None = Field(default=None, description="copies of the state that ZeRO shards; 1")
    sp: bool | None = Field(default=None, description="sequence parallel; by default where tp is more than 1")
    recompute: Recomputation = Field(
        default="none", description="none, light, attn, half, selective_op, full, or a part such as 0.2"
    )
    schedule: Annotated[str, choice(*SCHEDULES)] | None = Field(
        default=None, description="order of passes; by default 1f1b, interleaved with chunks of layers"
    )
    stage_cut: Annotated[str, choice("layers", "cost")] = Field(
        default="layers", description="stages of equal numbers of layers, or of equal cost with the logits"
    )
    overlap: Overlap = Field(default=Overlap(), description="communication that runs beside computation")
    dtype: Annotated[str, choice(*ELEMENT)] = Field(default="bf16", description="of matrix products")
    attention: Annotated[str, choice(*ATTENTIONS)] = Field(
        default="auto", description="kernel, of those that the preset of compute has figures for"
    )
    grad_dtype: Annotated[str, choice(*GRADIENTS)] | None = Field(
        default=None, description="of gradients; fp32 with dtype fp32; bf16+fp32 keeps whole ones of both"
    )
    fused_loss: bool = Field(default=False, description="logits are kept once")
    fused_norms: bool = Field(default=True, description="norms keep no copies in fp32")
    bucket: Size | None = Field(default=None, description="gradients are reduced in messages of this size")
    nodes: Annotated[str, choice("coarse", "fine")] = Field(
        default="coarse", description="of computation: two a layer and pass, or one an operation"
    )
    routing: Routing = Field(default=Routing(), description="of tokens to experts")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        return ours(value, cls.model_fields) if isinstance(value, Mapping) else value

    def _complete(self) -> None:
        tokens = max(self.mbs * self.seq / (self.tp * self.cp * self.pp), 64)
        if (work := self.model.flops_per_token(self.seq, "hardware") * tokens) > _MOST_WORK:
            problem = f"{work:.3g} FLOPs of a rank for a microbatch are more than {_MOST_WORK:.3g}"
            raise wrong(problem, "write a smaller seq, mbs or model", ("seq",))
        if self.gbs is None and self.microbatches is None:
            raise wrong('"gbs" is missing', "write e.g. gbs: 512, or microbatches: 8")
        if self.zero_group and self.zero_copies:
            raise wrong("both zero_group and zero_copies", "write one", ("zero_copies",))
        for key in ("zero_group", "zero_copies"):
            if getattr(self, key) and not self.zero:
                raise wrong(f"{key} without zero", "write zero: 1, or drop it", (key,))
        if self.stage_cut == "cost" and (self.model.experts or (self.vp or 1) > 1 or self.schedule == "zbv"):
            problem = "cost cuts dense models into one chunk for each pipeline rank"
            raise wrong(problem, "write layers", ("stage_cut",))
        if self.routing.kind != "balanced" and not self.model.experts:
            raise wrong("routing for a model without experts", "drop it", ("routing", "@key"))

    def layout(self, ranks: int) -> "Layout[int]":
        """This training on `ranks` ranks; raises ScenarioError: they do not fit each other."""
        layout = self.unchecked(ranks)
        ranks_of_copy, copies = layout.dp * layout.cp, self.zero_copies or 1
        if ranks_of_copy % copies:
            problem = f"zero_copies {copies} does not divide dp x cp = {ranks_of_copy}"
            raise ScenarioError("training", problem, f"write zero_copies: {divisors(ranks_of_copy, copies)[0]}")
        for rule in RULES:
            if rule.broken(layout):
                raise ScenarioError("training", rule.problem(layout), rule.remedy(layout, self.after(ranks)))
        return layout

    def after(self, ranks: int) -> After:
        """The layout with other values of some keys."""
        written = {key: getattr(self, key) for key in self.model_fields_set}

        def layout(keys: Mapping[str, Any]) -> "Layout[int] | None":
            others = {key: value for key, value in keys.items() if key != "ranks"}
            try:
                return Training(**(written | others)).unchecked(keys.get("ranks", ranks))
            except ScenarioError:
                return None

        return layout

    def unchecked(self, ranks: int) -> "Layout[int]":
        """The layout by arithmetic alone, which may break `RULES`."""
        part = not isinstance(self.recompute, str)
        same = {field.name: getattr(self, field.name) for field in fields(Layout) if hasattr(self, field.name)}
        dp = self.dp if isinstance(self.dp, int) else max(ranks // (self.tp * self.pp * self.cp), 1)
        m = self.microbatches or max((self.gbs or 0) // (dp * self.mbs), 1)
        group = dp * self.cp
        if self.zero:
            group = self.zero_group or max(group // (self.zero_copies or 1), 1)
        gradients = GRADIENTS[self.grad_dtype or ("fp32" if self.dtype == "fp32" else "bf16")]
        derived = {
            "ranks": ranks,
            "dp": dp,
            "gbs": self.gbs or m * dp * self.mbs,
            "microbatches": m,
            "zero_group": group,
            "vp": self.vp or (2 if self.schedule in ("interleaved", "zbv") else 1),
            "sp": self.tp > 1 if self.sp is None else self.sp,
            "schedule": self.schedule or ("interleaved" if (self.vp or 1) > 1 and self.pp > 1 else "1f1b"),
            "overlap": self.overlap.resolved,
            "recompute": RECOMPUTE.index("part" if part else self.recompute),
            "recompute_part": round(1000 * self.recompute) if part else 0,
            "element": ELEMENT[self.dtype],
            "grad_element": gradients[0],
            "grad_copy": gradients[1],
        }
        return Layout(**(same | derived))


@dataclass(frozen=True, kw_only=True)
class Layout(Generic[N]):
    """A training on ranks, all resolved: what layers, schedules, memory and prices read.

    Of a ``Layout[int]`` every number is an int; of `Layouts` it may be an int64 array of one value for each of many
    configurations, and `sp` a bool array. All that is not a number is the same for all configurations. `recompute` is a
    place in `RECOMPUTE`, `recompute_part` thousandths. `element` and `grad_element` are bytes, `grad_copy` those of a
    gradient that is kept besides.
    """

    model: Model
    ranks: N
    seq: N
    gbs: N
    mbs: N
    microbatches: N
    tp: N
    pp: N
    cp: N
    ep: N
    etp: N
    dp: N
    vp: N
    zero: N
    zero_group: N
    sp: bool | np.ndarray = False
    recompute: N
    recompute_part: N
    element: int = 2
    grad_element: int = 2
    grad_copy: int = 0
    schedule: str = "1f1b"
    stage_cut: str = "layers"
    overlap: Overlap = Overlap()
    dtype: str = "bf16"
    attention: str = "auto"
    fused_loss: bool = False
    fused_norms: bool = True
    bucket: int | None = None
    nodes: str = "coarse"
    routing: Routing = Routing()

    @property
    def tokens(self: "Layouts") -> Numbers:
        """T = b s / c: tokens of a microbatch on a rank."""
        return self.mbs * self.seq // self.cp

    @property
    def stage_ranks(self: "Layouts") -> Numbers:
        """Ranks of a pipeline stage."""
        return self.tp * self.cp * self.dp

    @property
    def expert_dp(self: "Layouts") -> Numbers:
        """Ranks that hold the same experts."""
        return self.stage_ranks // (self.ep * self.etp)

    @property
    def fused_attention(self) -> bool:
        """Whether attention keeps its scores on chip and leaves out what a causal mask hides."""
        return self.attention != "eager"

    @property
    def last_stage(self: "Layouts") -> Numbers:
        """Pipeline rank of the last layers and the loss: the first one on a V."""
        return 0 * self.pp if self.schedule == "zbv" else self.pp - 1

    @cached_property
    def shares(self: "Layouts") -> tuple[Numbers, Numbers, Numbers]:
        """Layers of every virtual stage, how many of the first have one more, and how many fewer each end has.

        Where the virtual stages do not divide the layers, the embedding and the loss count as layers, as is possible in
        Megatron.
        """
        layers, stages = self.model.layers, self.pp * self.vp
        uneven = (layers % stages != 0) * 1
        base = (layers + 2 * uneven) // stages
        return base, layers + 2 * uneven - base * stages, uneven

    def _cost_end(self: "Layouts", stage: Numbers) -> Numbers:
        """Layers up to the end of a stage where stages are cut by cost, as in nanotron.

        The sum of costs is cut into p equal parts: 4 h² + 3 f h of a layer, V h of the logits. The layer that crosses a
        cut is the last of its stage.
        """
        model = self.model
        layer = 4 * model.hidden * model.hidden + 3 * model.ffn * model.hidden
        total = model.layers * layer + model.vocab * model.hidden
        end = np.minimum(-(-(stage + 1) * total // (self.pp * layer)), model.layers)
        return plain(np.where(np.asarray(stage) >= self.pp - 1, model.layers, np.where(np.asarray(stage) < 0, 0, end)))

    @cached_property
    def dense_stages(self: "Layouts") -> tuple[Numbers, ...]:
        """Pipeline rank of each of the first dense layers of a model with experts."""
        return tuple(self.stage_of(layer) for layer in range(self.model.dense_layers))

    def stage_layers(self: "Layouts", stage: Numbers) -> tuple[Numbers, Numbers]:
        """Dense and MoE layers of a pipeline rank, all its chunks together."""
        if self.stage_cut == "cost":
            total = self._cost_end(stage) - self._cost_end(stage - 1)
            return total, 0 * total
        p, v = self.pp, self.vp
        base, left, uneven = self.shares
        first, last = (stage == 0) * uneven, (stage == p - 1) * uneven
        if self.schedule == "zbv":
            total = 2 * base + (stage < left) + (2 * p - 1 - stage < left) - 2 * first
        else:
            total = v * base + np.clip(-((stage - left) // p), 0, v) - first - last
        if not self.model.experts:
            return plain(total), 0 * plain(total)
        dense = sum((dense_stage == stage) * 1 for dense_stage in self.dense_stages)
        return plain(dense), plain(total - dense)

    def chunk_layers(self: "Layout[int]", stage: int, chunk: int) -> range:
        """Layers of one chunk of a pipeline rank, for plain numbers."""
        if self.stage_cut == "cost":
            return range(int(self._cost_end(stage - 1)), int(self._cost_end(stage)))
        base, left, uneven = map(int, self.shares)
        virtual = virtual_stage(self.schedule, self.pp, stage, chunk)
        ends = (k * base + min(k, left) - uneven for k in (virtual, virtual + 1))
        return range(*(min(max(end, 0), self.model.layers) for end in ends))

    def stage_of(self: "Layouts", layer: int) -> Numbers:
        """Pipeline rank that holds a layer."""
        base, left, uneven = self.shares
        place, wide = layer + uneven, left * (base + 1)  # counted with the embedding as a layer
        virtual = np.where(place < wide, place // (base + 1), left + (place - wide) // np.maximum(base, 1))
        virtual = np.minimum(virtual, self.pp * self.vp - 1)
        if self.schedule == "zbv":
            return plain(np.where(virtual < self.pp, virtual, 2 * self.pp - 1 - virtual))
        return plain(virtual % self.pp)

    @cached_property
    def reading_all(self) -> "Layout[N]":
        """The same where attention has no window."""
        return replace(self, model=self.model.model_copy(update={"window": 0, "global_every": 0}))

    def by_attention(self, kind: str) -> tuple[tuple["Layout[N]", int], ...]:
        """Layouts that layers of a kind have (``dense``, ``moe``, ``mtp``), and how many layers have each."""
        model = self.model
        dense = model.layers - model.moe_layers
        ends = {"dense": (0, dense), "moe": (dense, model.layers), "mtp": (model.layers, model.layers + model.mtp)}
        layers = range(*ends[kind])
        wide = sum(map(model.reads_all, layers)) if model.window else 0
        return tuple(variant for variant in ((self, len(layers) - wide), (self.reading_all, wide)) if variant[1])

    def at(self, index: int) -> "Layout[int]":
        """Configuration `index` of arrays, as plain numbers."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Layout(
            **{key: value[index].item() if isinstance(value, np.ndarray) else value for key, value in columns.items()}
        )

    @property
    def _gradients(self) -> str:
        """Name of the format of gradients."""
        return next(name for name, both in GRADIENTS.items() if both == (self.grad_element, self.grad_copy))

    def after(self: "Layout[int]", keys: Mapping[str, Any]) -> "Layout[int] | None":
        """The layout, of plain numbers, with other values of some keys; dp and microbatches follow."""
        current = {name: getattr(self, name) for name in Training.model_fields if hasattr(self, name)}
        current |= {"dp": "fill", "microbatches": None, "grad_dtype": self._gradients}
        current["recompute"] = ([*RECOMPUTE[:-1], self.recompute_part / 1000])[self.recompute]
        if not self.zero or self.zero_group == self.dp * self.cp:
            current["zero_group"] = None
        return Training(**{key: value for key, value in current.items() if value is not None}).after(self.ranks)(keys)

    def groups(self: "Layout[int]") -> "dict[str, Groups]":
        """Groups of ranks by role, for plain numbers.

        ``tp``, ``cp``, ``ep``, ``etp``; ``dp``: ranks that share one copy of the dense weights' state, in order cp, dp;
        ``copies``: the ranks with the same part in each copy; ``edp``: the same experts; ``tie``: first and last stage;
        ``pp``: a pipeline. A role whose groups have one member is left out.
        """
        t, c, d, p = self.tp, self.cp, self.dp, self.pp
        ranks = np.arange(t * c * d * p).reshape(p, d, c, t)
        in_stage = ranks.reshape(p, -1)
        x, y, z = self.ep, self.etp, self.zero_group
        weights = ranks.reshape(p, -1, z, t) if d * c % z == 0 else ranks.reshape(p, 1, -1, t)
        experts = in_stage.reshape(p, -1, x, y)
        members_of = {
            "tp": ranks.reshape(-1, t),
            "cp": ranks.transpose(0, 1, 3, 2).reshape(-1, c),
            "dp": weights.transpose(0, 1, 3, 2).reshape(-1, weights.shape[2]),
            "copies": weights.transpose(0, 2, 3, 1).reshape(-1, weights.shape[1]),
            "pp": in_stage.T.copy(),
        }
        if self.model.experts:
            members_of["ep"] = experts.transpose(0, 1, 3, 2).reshape(-1, x)
            members_of["etp"] = experts.reshape(-1, y)
            members_of["edp"] = experts.transpose(0, 2, 3, 1).reshape(-1, experts.shape[1])
        if self.model.tied:
            members_of["tie"] = in_stage[sorted({0, int(self.last_stage)})].T
        return {role: Groups.of(members, self.ranks) for role, members in members_of.items() if members.shape[1] > 1}


#: A layout, or one for each of many configurations.
Layouts: TypeAlias = Layout[Numbers]


class Groups(NamedTuple):
    """Groups of one role: `members` int64[groups, size], and `number` int64[ranks] the group of each rank, or -1."""

    number: np.ndarray
    members: np.ndarray

    @classmethod
    def of(cls, members: np.ndarray, ranks: int) -> "Groups":
        """The groups with these members."""
        number = np.full(ranks, -1)
        number[members.ravel()] = np.repeat(np.arange(len(members)), members.shape[1])
        return cls(number, members)


def plain(value: Any) -> Numbers:
    """An int for an array of one number."""
    return int(value) if np.ndim(value) == 0 else np.asarray(value, dtype=np.int64)
