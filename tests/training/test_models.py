"""Shapes of models: parameters and FLOPs against published figures."""

import csv
import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from astrasim_py.core.errors import ScenarioError
from astrasim_py.training.models import Model, RecommendationModel, model, model_names

GOLDEN = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "training"
needs_golden = pytest.mark.skipif(not (GOLDEN / "models.csv").exists(), reason="needs ASTRASIM_GOLDEN")
#: Billions of parameters, all and active, as published.
PUBLISHED = {
    "gpt3-175b": (174.6, None),
    "gpt3-1t": (1007.9, None),
    "llama2-70b": (68.98, None),
    "llama3-8b": (8.03, None),
    "llama3-70b": (70.55, None),
    "llama3-405b": (405.85, None),
    "mixtral-8x7b": (46.7, 12.75),
    "mixtral-8x22b": (140.6, 38.96),
    "deepseek-v3": (671.0, 36.62),
    "qwen3-235b": (235.1, 21.57),
    "qwen3-30b": (30.53, 3.04),
    "kimi-k2": (1026.4, None),
    "gpt-oss-120b": (116.8, 5.13),
    "gpt-oss-20b": (20.91, 3.61),
    "gemma3-27b": (27.01, None),
}
CONVENTIONS = {"full": "full", "causal": "causal", "full+rc": "hardware"}


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(newline="") as file:
        return list(csv.DictReader(file))


def row_model(row: dict[str, str]) -> Model:
    """The preset that a row names, or its shape."""
    if row["model"] in model_names():
        return model(row["model"])
    keys = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
    return Model(**{key: int(row[key] or 0) for key in keys}, tied=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name):
    total, active = PUBLISHED[name]
    assert model(name).params_total / 1e9 == pytest.approx(total, rel=1e-3)
    assert active is None or model(name).params_active / 1e9 == pytest.approx(active, rel=1e-3)


@needs_golden
def test_parameters_of_the_golden_models_are_exact():
    for row in rows("models.csv"):
        shape = model(row["model"])
        assert (shape.params_total, shape.params_active) == (int(row["params_total"]), int(row["params_active"]))


@needs_golden
def test_flops_times_tokens_are_the_printed_rates():
    ratios = defaultdict(list)
    for row in rows("training_public.csv"):
        fine_tuning = row["note"].startswith(("SFT", "LoRA"))  # other passes, samples of other lengths
        if row["flops_convention"] and row["predictable"] == "1" and not fine_tuning:
            flops = row_model(row).flops_per_token(int(row["seq"]), CONVENTIONS[row["flops_convention"]])
            ratios[row["source"]].append(
                (row["model"], float(row["tokens_s_gpu"]) * flops / 1e12 / float(row["tflops_gpu"]))
            )
    for source in ("nemo-docs", "nemo-launcher", "nemo-long-context", "megatron-lm-llama", "megatron-sc21", "maxtext"):
        assert all(0.99 < ratio < 1.01 for _, ratio in ratios[source]), source
    bridge = [ratio for name, ratio in ratios["megatron-bridge"] if not name.startswith("gpt-oss")]
    # Two rows print a rate that is not that of their tokens.
    assert sum(0.99 < ratio < 1.01 for ratio in bridge) >= len(bridge) - 2
    # Releases before 26.06 print what the products of the layers take alone: neither scores nor logits.
    shape = model("gpt-oss-120b")
    layers = 6 * (shape.params_active - shape.vocab * shape.hidden) / shape.flops_per_token(4096, "causal")
    gpt_oss = [ratio * layers for name, ratio in ratios["megatron-bridge"] if name.startswith("gpt-oss")]
    assert gpt_oss and all(0.99 < ratio < 1.01 for ratio in gpt_oss)


@needs_golden
def test_flops_of_bloom_differ_only_before_its_formula_was_corrected():
    ratios = {"before": [], "since": []}
    for row in rows("training_public.csv"):
        if row["source"] == "bigscience-tr11" and row["predictable"] == "1":
            flops = row_model(row).flops_per_token(int(row["seq"]), CONVENTIONS[row["flops_convention"]])
            day = re.search(r"\b\d\d-\d\d\b", row["note"])[0]
            found = float(row["tokens_s_gpu"]) * flops / 1e12 / float(row["tflops_gpu"])
            ratios["before" if (row["date"][:4], day) < ("2022", "02-21") else "since"].append(found)
    assert len(ratios["since"]) >= 50 and all(0.99 < ratio < 1.01 for ratio in ratios["since"])
    assert len(ratios["before"]) >= 10 and all(1.03 < ratio < 1.04 for ratio in ratios["before"])


def test_a_base_gives_the_keys_that_are_not_written():
    short = Model.model_validate({"base": "llama3-70b", "layers": 40})
    layer = model("llama3-70b").layer_params("dense")
    assert model("llama3-70b").params_total - short.params_total == 40 * layer
    assert Model.model_validate(short.model_dump()) == short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("llama3-70", 'did you mean "llama3-70b"?'),
        ("dlrm-v2", "is a model for recommendation:; write recommendation: {model: dlrm-v2"),
        ({"base": "gpt4"}, "there is no model"),
        ({"layers": 2, "hidden": 100, "heads": 3, "vocab": 10}, "write head_dim"),
        ({"layers": 2, "hidden": 64, "heads": 6, "kv_heads": 4, "head_dim": 8, "vocab": 10}, "4 kv_heads"),
        ({"base": "llama3-8b", "topk": 2}, "topk without experts"),
        ({"base": "llama3-8b", "experts": 2, "topk": 4}, "topk 4 is more than 2 experts"),
        ({"base": "llama3-8b", "kv_lora": 4}, "kv_lora without qk_nope"),
        ({"base": "llama3-8b", "global_every": 2}, "global_every without window"),
        ({"base": "gpt-oss-20b", "global_every": 1}, "write 2 or more, or drop window"),
        ({"layers": 2}, "missing"),
    ],
)
def test_a_wrong_shape_is_refused_with_a_remedy(value, text):
    with pytest.raises(ScenarioError, match=text.replace("?", r"\?")):
        Model.model_validate(value)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"bottom": [13]}, "model.bottom: 1 items are fewer than 2"),
        ({"top": []}, "model.top: 0 items are fewer than 2"),
        ({"cross_layers": 3}, "cross_layers without cross_rank"),
        ({"cross_rank": 64}, "cross_rank without cross_layers"),
    ],
)
def test_recommendation_models_without_a_layer_are_refused(keys, text):
    with pytest.raises(ScenarioError, match=text):
        RecommendationModel(base="dlrm-mlperf", **keys)


def test_recommendation_models_have_their_published_size():
    assert RecommendationModel.model_validate("dlrm-mlperf").params_total == pytest.approx(24e9, rel=0.01)
    assert RecommendationModel.model_validate("dlrm-v2").params_total == pytest.approx(26e9, rel=0.01)
