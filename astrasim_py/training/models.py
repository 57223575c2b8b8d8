"""Shapes of models: parameters, FLOPs per token, and the presets that scenarios name."""

import csv
import json
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import Text, did_you_mean, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example, tuples

_FOLDER = Path(__file__).parents[1] / "data" / "training"
#: How publishers count FLOPs.
FLOPS_CONVENTIONS = ("full", "causal", "hardware")
_Size = Annotated[int, whole(1, 2**40, example=4096)]
_SizeOrNone = Annotated[int, whole(0, 2**40, example=0)]
_Widths = Annotated[tuple[_Size, ...], Field(min_length=2)]


class Model(StrictModel):
    """The shape of a transformer.

    ``ffn`` is the width of a dense MLP, ``moe_ffn`` that of one expert, ``shared_ffn`` that of all shared experts of a
    layer together. The first ``dense_layers`` layers of a model with experts have a dense MLP. ``kv_lora`` > 0 means
    multi-head latent attention with its ranks and widths. Attention reads the last ``window`` tokens, but for every
    ``global_every``-th layer, which reads all. Norms and biases are not counted as parameters.
    """

    _place = "model"
    model_config = ConfigDict(validate_default=True)

    base: Text | None = Field(default=None, description="preset that gives the keys which are not written")
    layers: _Size = example("32")
    hidden: _Size = example("4096")
    heads: _Size = example("32")
    vocab: _Size = example("32000")
    ffn: _SizeOrNone = 0
    kv_heads: _SizeOrNone = 0
    head_dim: _SizeOrNone = 0
    gated: bool = False
    tied: bool = False
    experts: _SizeOrNone = 0
    topk: _SizeOrNone = 0
    moe_ffn: _SizeOrNone = 0
    shared_ffn: _SizeOrNone = 0
    dense_layers: _SizeOrNone = 0
    q_lora: _SizeOrNone = 0
    kv_lora: _SizeOrNone = 0
    qk_nope: _SizeOrNone = 0
    qk_rope: _SizeOrNone = 0
    v_dim: _SizeOrNone = 0
    window: _SizeOrNone = 0
    global_every: _SizeOrNone = 0
    mtp: _SizeOrNone = 0

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        """A preset's name, or ``base`` and the keys that differ from it, written out."""
        name, keys = _written_out(value, _aliases())
        return {**_presets()[name], **keys, "base": name} if name else keys

    @classmethod
    def _example(cls, name: str | None = None) -> str:
        return "e.g. llama3-70b, or {base: llama3-70b, layers: 40}" if name is None else super()._example(name)

    @field_validator("ffn", "kv_heads", "head_dim", "topk", "moe_ffn")
    @classmethod
    def _from_others(cls, value: int, info: ValidationInfo) -> int:
        """What is 0 follows from the keys before it; a width of heads that do not divide ``hidden`` stays 0."""
        hidden, heads, experts = (info.data.get(key, 0) for key in ("hidden", "heads", "experts"))
        even = heads and hidden % heads == 0
        usual = {"ffn": 4 * hidden, "kv_heads": heads, "head_dim": hidden // heads if even else 0}
        if experts:
            usual |= {"topk": 1, "moe_ffn": info.data.get("ffn", 0)}
        return value or usual.get(str(info.field_name), 0)

    def _complete(self) -> None:
        if not self.head_dim:
            raise wrong(f"{self.heads} heads do not divide hidden {self.hidden}", "write head_dim", ("heads",))
        if self.heads % self.kv_heads:
            raise wrong(f"{self.kv_heads} kv_heads do not divide {self.heads} heads", "write a divisor", ("kv_heads",))
        for key in () if self.experts else ("topk", "moe_ffn", "shared_ffn", "dense_layers"):
            if getattr(self, key):
                raise wrong(f"{key} without experts", "write experts: 8, or drop it", (key,))
        if self.experts and self.topk > self.experts:
            raise wrong(f"topk {self.topk} is more than {self.experts} experts", "write less", ("topk",))
        if self.global_every and not self.window:
            raise wrong("global_every without window", "write e.g. window: 128, or drop it", ("global_every",))
        if self.global_every == 1:
            raise wrong("global_every 1 leaves no layer a window", "write 2 or more, or drop window", ("global_every",))
        if self.dense_layers > self.layers:
            raise wrong(f"more dense layers than {self.layers} layers", "write fewer", ("dense_layers",))
        for key in ("qk_nope", "v_dim") if self.kv_lora else ("q_lora", "qk_nope", "qk_rope", "v_dim"):
            if bool(getattr(self, key)) != bool(self.kv_lora):
                problem = f"kv_lora without {key}" if self.kv_lora else f"{key} without kv_lora"
                raise wrong(problem, "write all of kv_lora, qk_nope, qk_rope, v_dim, or none", (key,))

    @property
    def mla(self) -> bool:
        """Whether attention is multi-head latent."""
        return self.kv_lora > 0

    @property
    def qk_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope + self.qk_rope if self.mla else self.head_dim

    @property
    def out_dim(self) -> int:
        """Width of a head's value."""
        return self.v_dim if self.mla else self.head_dim

    @property
    def gates(self) -> int:
        """Matrices of the first half of an MLP."""
        return 2 if self.gated else 1

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    def reads_all(self, layer: int) -> bool:
        """Whether the attention of a layer, counted from 0, reads all tokens before."""
        return not self.window or (bool(self.global_every) and (layer + 1) % self.global_every == 0)

    def tokens_read(self, layer: int, tokens: int) -> int:
        """How many of the `tokens` before it the attention of a layer reads."""
        return tokens if self.reads_all(layer) else min(tokens, self.window)

    def attention_params(self) -> int:
        """Parameters of the attention of a layer."""
        h, a = self.hidden, self.heads
        if not self.mla:
            return h * self.head_dim * (2 * a + 2 * self.kv_heads)
        query = self.q_lora * (h + a * self.qk_dim) if self.q_lora else h * a * self.qk_dim
        key_value = h * (self.kv_lora + self.qk_rope) + self.kv_lora * a * (self.qk_nope + self.v_dim)
        return query + key_value + a * self.v_dim * h

    def layer_params(self, kind: str, experts: int | None = None) -> int:
        """Parameters of a layer, `kind` ``dense`` or ``moe``; `experts` of them are counted, all by default."""
        wide = (self.gates + 1) * self.hidden
        if kind == "dense":
            return self.attention_params() + wide * self.ffn
        held = self.experts if experts is None else experts
        return self.attention_params() + self.hidden * self.experts + wide * (held * self.moe_ffn + self.shared_ffn)

    @property
    def params_total(self) -> int:
        """All parameters, without those of multi-token prediction."""
        dense = (self.layers - self.moe_layers) * self.layer_params("dense")
        return dense + self.moe_layers * self.layer_params("moe") + self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def params_active(self) -> int:
        """Parameters that a token meets in matrix products: `topk` experts, and the output matrix."""
        dense = (self.layers - self.moe_layers) * self.layer_params("dense")
        return dense + self.moe_layers * self.layer_params("moe", self.topk) + self.vocab * self.hidden

    def flops_per_token(self, seq: int, convention: str = "full") -> float:
        """FLOPs of an iteration per token, as publishers count them.

        ``full``: three passes, each of 2 FLOPs per active parameter and attention over `seq` x `seq`
        scores; ``causal``: half of the scores; ``hardware``: full, and a fourth pass over the layers, for
        recomputation. Raises ScenarioError: there is no such convention.
        """
        if convention not in FLOPS_CONVENTIONS:
            raise ScenarioError(
                "flops", f"{shown(convention)} is not a convention", did_you_mean(convention, FLOPS_CONVENTIONS)
            )
        kind = "moe" if self.experts else "dense"
        layers = range(self.layers + self.mtp)
        keys = sum(seq if self.reads_all(layer) else min(seq, 2 * self.window) for layer in layers)
        scores = 2 * keys * self.heads * (self.qk_dim + self.out_dim)
        logits = 2 * self.vocab * self.hidden
        body = 2 * self.params_active - logits
        body += self.mtp * (2 * self.layer_params(kind, self.topk) + 4 * self.hidden**2)
        logits *= 1 + self.mtp
        if convention == "causal":
            return 3 * (body + logits + scores / 2)
        return 3 * logits + (4 if convention == "hardware" else 3) * (body + scores)


#: A field that takes a preset's name, too.
NamedModel = Annotated[Model, BeforeValidator(lambda value: value, json_schema_input_type=Model | str)]


class RecommendationModel(StrictModel):
    """The shape of a deep-learning recommendation model (DLRM).

    `bottom` and `top` are widths of the layers of an MLP, input first. `cross_layers` > 0 means a deep-and-cross
    network of low rank `cross_rank` in place of dot products.
    """

    _place = "model"

    base: Text | None = Field(default=None, description="preset that gives the keys which are not written")
    tables: _Size = example("26")
    rows: _Size = example("188000000")
    width: _Size = example("128")
    pooling: _Size = 1
    bottom: _Widths = (13, 512, 256, 128)
    top: _Widths = (1024, 1024, 512, 256, 1)
    cross_layers: _SizeOrNone = 0
    cross_rank: _SizeOrNone = 0

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        name, keys = _written_out(value, {name: name for name in _recommendation()})
        return {**_recommendation()[name], **keys} if name else keys

    def _complete(self) -> None:
        for key, other in (("cross_layers", "cross_rank"), ("cross_rank", "cross_layers")):
            if getattr(self, key) and not getattr(self, other):
                raise wrong(f"{key} without {other}", "write both or none", (key,))

    @property
    def mlp_params(self) -> tuple[int, int]:
        """Parameters of the bottom and of the top MLP."""
        bottom, top = (sum(a * b for a, b in pairwise(widths)) for widths in (self.bottom, self.top))
        return bottom, top

    @property
    def params_total(self) -> int:
        """Parameters of tables, MLPs and cross layers."""
        cross = 2 * self.cross_layers * self.cross_rank * (self.tables + 1) * self.width
        return self.rows * self.width + sum(self.mlp_params) + cross


#: A field that takes a preset's name, too.
NamedRecommendationModel = Annotated[
    RecommendationModel, BeforeValidator(lambda value: value, json_schema_input_type=RecommendationModel | str)
]


def _written_out(value: Any, known: Mapping[str, str]) -> tuple[str, Any]:
    """The preset that a value names, or empty, and the keys beside it; `known`: preset by each of its names."""
    if isinstance(value, str):
        value = {"base": value}
    if not isinstance(value, Mapping) or "base" not in value:
        return "", value
    name = value["base"]
    if not isinstance(name, str) or name not in known:
        other = {**dict.fromkeys(_aliases(), "training"), **dict.fromkeys(_recommendation(), "recommendation")}
        if isinstance(name, str) and name in other:
            kind = other[name]
            raise wrong(f"{shown(name)} is a model for {kind}:", f"write {kind}: {{model: {name}, gbs: 4096}}")
        raise wrong(f"there is no model {shown(name)}", did_you_mean(str(name), [*known, *other]))
    return known[name], value


def model_names() -> tuple[str, ...]:
    """Names of the transformers, without second names."""
    return tuple(_presets())


def recommendation_names() -> tuple[str, ...]:
    """Names of the recommendation models."""
    return tuple(_recommendation())


@cache
def model(name: str) -> Model:
    """The transformer named `name`; raises ScenarioError: there is none."""
    return Model.model_validate(name)


def published() -> tuple[Mapping[str, str], ...]:
    """Measured throughput that others have published: rows of ``data/training/published.csv``, with source and licence.

    ``machine``: hardware preset. ``seq``, ``gbs``, ``mbs`` in tokens and sequences; ``tokens_s_gpu``.
    """
    return _rows("published.csv")


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    with (_FOLDER / name).open(newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def _presets() -> dict[str, dict[str, Any]]:
    """Keys of each transformer, by name."""
    presets = {}
    for row in _rows("models.csv"):
        keys = {key: int(cell) for key, cell in row.items() if cell and key not in ("name", "aliases")}
        presets[row["name"]] = {**keys, "gated": bool(keys["gated"]), "tied": bool(keys["tied"])}
    return presets


@cache
def _aliases() -> dict[str, str]:
    """Name of the preset, by each of its names."""
    return {alias: row["name"] for row in _rows("models.csv") for alias in (row["name"], *row["aliases"].split())}


@cache
def _recommendation() -> Any:
    """Keys of each recommendation model, by name."""
    return tuples(json.loads((_FOLDER / "recommendation.json").read_text("utf-8")))
