"""What a layer computes and sends, against closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from astrasim_py.training.layers import (
    Comm,
    Op,
    backward,
    boundary,
    embedding,
    forward,
    gradient_comms,
    layer_params,
    logits,
    optimizer,
    stage_params,
)
from astrasim_py.training.models import Model, model
from astrasim_py.training.rules import first_broken
from astrasim_py.training.strategy import RECOMPUTE, Layout, Training


def layout(name="megatron-1t", ranks=1024, **keys) -> Layout:
    usual = {"model": name, "seq": 2048, "gbs": 1024, "tp": 8, "pp": 8, "attention": "eager", "sp": False}
    return Training(**(usual | keys)).layout(ranks)


def flops(items, part: str = "") -> int:
    return sum(item.flops for item in items if isinstance(item, Op) and item.part.startswith(part))


def named(items, name: str) -> Op:
    return next(item for item in items if item.name == name)


def comms(items, part: str = "") -> list[tuple]:
    found = [item for item in items if isinstance(item, Comm) and item.part.startswith(part)]
    return [(comm.collective, comm.group, comm.size) for comm in found]


def test_a_dense_layer_sends_what_its_strategy_says():
    whole = 2048 * 25600 * 2
    o = layout(recompute="full")
    assert comms(forward(o, "dense")) == [("all_reduce", "tp", whole)] * 2
    assert comms(backward(o, "dense"), "I") == [("all_reduce", "tp", whole)] * 2
    assert comms(backward(o, "dense"), "R") == [("all_reduce", "tp", whole)] * 2
    assert boundary(o) == whole // 8 == 13_107_200
    assert comms(gradient_comms(replace(o, zero=1), "dense")) == [
        ("all_gather", "dp", 1_966_080_000),
        ("reduce_scatter", "dp", 1_966_080_000),
    ]


def test_sequence_parallelism_gathers_and_scatters_instead():
    o = layout(sp=True)
    whole = 2048 * 25600 * 2
    pair = [("all_gather", "tp", whole), ("reduce_scatter", "tp", whole)]
    assert comms(forward(o, "dense")) == pair * 2
    assert comms(backward(o, "dense"), "I") == pair * 2
    assert comms(backward(o, "dense"), "W") == [("all_gather", "tp", whole)] * 2


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "qwen3-235b", "mixtral-8x7b", "deepseek-v3"])
def test_flops_of_all_layers_are_those_per_token(name):
    shape = model(name)
    o = layout(name, 1, tp=1, pp=1, gbs=1)
    counts = {"dense": shape.layers - shape.moe_layers, "moe": shape.moe_layers}
    ahead = sum(count * flops(forward(o, kind)) for kind, count in counts.items() if count)
    back = sum(count * flops(backward(o, kind)) for kind, count in counts.items() if count)
    ends = logits(o)
    assert ahead + flops(ends, "F") == shape.flops_per_token(2048) / 3 * 2048
    assert back + flops(ends, "I") + flops(ends, "W") == 2 * (ahead + flops(ends, "F"))


def test_fused_attention_leaves_out_what_the_mask_hides():
    full, causal = (layout(ranks=1024, attention=kind) for kind in ("eager", "fa2"))
    core = {o.attention: named(forward(o, "dense"), "core") for o in (full, causal)}
    assert core["eager"].flops == 2 * core["fa2"].flops == 4 * 2048 * 2048 * 160 // 8 * 160
    again = named(backward(causal, "dense"), "core")
    assert again.flops == core["fa2"].flops * 5 // 2


def test_tensor_parallel_ranks_share_the_flops():
    one, eight = layout(ranks=8, tp=1, pp=1), layout(ranks=8, tp=8, pp=1)
    assert flops(forward(one, "dense")) == 8 * flops(forward(eight, "dense"))


def test_experts_are_sent_their_tokens_twice_a_pass():
    o = layout("mixtral-8x7b", 64, tp=2, pp=1, ep=8, sp=True)
    sent = ("all_to_all", "ep", 2048 * 2 // 2 * 4096 * 2)
    assert comms(forward(o, "moe")).count(sent) == comms(backward(o, "moe")).count(sent) == 2
    assert not any(group == "ep" for _, group, _ in comms(forward(replace(o, ep=1), "moe")))
    rows = named(forward(o, "moe"), "experts_fc1")
    assert (rows.m, rows.n, rows.k, rows.count) == (2048, 2 * 14336, 4096, 1)


def test_tensor_parallel_experts_gather_their_rows():
    o = layout("mixtral-8x7b", 64, tp=2, pp=1, ep=8, etp=2, sp=True)
    rows = 2 * (2048 * 2 // 2) * 4096 * 2
    assert [one for one in comms(forward(o, "moe")) if one[1] == "etp"] == [
        ("all_gather", "etp", rows),
        ("reduce_scatter", "etp", rows),
    ]
    apart = layout("mixtral-8x7b", 64, tp=2, pp=1, ep=8, sp=True)
    assert flops(forward(o, "moe")) == flops(forward(apart, "moe"))


def test_keys_and_values_go_round_the_context_ring():
    o = layout("llama3-70b", 64, tp=4, pp=1, cp=4, seq=8192)
    step = ("ring", "cp", 2 * 2048 * 8 * 128 * 2 // 4)
    assert step in comms(forward(o, "dense"))
    assert ("ring", "cp", 2 * step[2]) in comms(backward(o, "dense"))


def test_zero_moves_gradients_and_weights_as_its_stage_says():
    def seen(**keys):
        found = gradient_comms(layout("llama3-8b", 8, tp=1, pp=1, **keys), "dense")
        return [(c.collective, c.group, c.part, c.when, c.size) for c in found]

    n = model("llama3-8b").layer_params("dense")
    assert seen(zero=0) == [("all_reduce", "dp", "W", "iteration", 2 * n)]
    gather = ("all_gather", "dp", "F", "iteration", 2 * n)
    assert seen(zero=1) == [gather, ("reduce_scatter", "dp", "W", "iteration", 2 * n)]
    assert seen(zero=2) == [gather, ("reduce_scatter", "dp", "W", "microbatch", 2 * n)]
    assert seen(zero=3, grad_dtype="fp32") == [
        ("all_gather", "dp", "F", "microbatch", 2 * n),
        ("all_gather", "dp", "I", "microbatch", 2 * n),
        ("reduce_scatter", "dp", "W", "microbatch", 4 * n),
    ]
    assert seen(zero=1, zero_group=4)[-1] == ("all_reduce", "copies", "W", "iteration", 2 * n // 4)


def test_stages_hold_all_parameters_once():
    for name, keys in (("llama3-70b", {}), ("mixtral-8x7b", {"ep": 8}), ("gpt3-175b", {})):
        o = layout(name, 64, tp=4, pp=4, **keys)
        shape = model(name)
        found = [stage_params(o, stage) for stage in range(4)]
        total = sum(4 * dense + o.ep * experts for dense, experts in found)
        router = 3 * shape.moe_layers * shape.hidden * shape.experts  # each of four ranks has it
        tied = shape.vocab * shape.hidden if shape.tied else 0  # on both ends
        assert total == shape.params_total + router + tied
    alone = layout("gpt3-175b", 8, tp=8, pp=1)
    assert 8 * stage_params(alone, 0)[0] == model("gpt3-175b").params_total


def test_predicted_tokens_add_a_layer_and_logits():
    o = layout("deepseek-v3-mtp", 64, tp=1, pp=1, seq=4096, gbs=64)
    h = 7168
    assert layer_params(o, "mtp")[0] == layer_params(o, "moe")[0] + 2 * h * h
    extra = flops(forward(o, "mtp")) + flops(logits(o), "F") // 2
    more, less = (model(name).flops_per_token(4096) for name in ("deepseek-v3-mtp", "deepseek-v3"))
    assert extra == (more - less) / 3 * 4096


def test_the_optimizer_works_on_its_part():
    o = layout(zero=1)
    assert optimizer(o, 1).nbytes == 30 * 16 * 12 * 25600**2 // 8 // 16


def test_recomputation_repeats_its_part_of_the_forward_pass():
    once = flops(forward(layout(), "dense"))
    shares = {"none": 0, "full": 1000, "half": 500, 0.2: 200}
    for recompute, share in shares.items():
        assert flops(backward(layout(recompute=recompute), "dense"), "R") * 1000 == once * share
    core = [op.flops for op in forward(layout(), "dense") if isinstance(op, Op) and op.kind == "attention"]
    assert flops(backward(layout(recompute="attn"), "dense"), "R") == core[0]


def flat(items, size: int) -> dict[tuple, np.ndarray]:
    """Numbers of each item, by all that names it."""
    found = {}
    for item in items:
        names = ("name", "block", "part", "kind") if isinstance(item, Op) else ("name", "part", "collective", "when")
        numbers = ("flops", "nbytes", "m", "n", "k", "count") if isinstance(item, Op) else ("size",)
        rows = [np.broadcast_to(getattr(item, key), size) for key in numbers]
        found[tuple(getattr(item, key) for key in names)] = np.array(rows)
    return found


def described(o: Layout) -> list:
    kinds = ["dense"] + ["moe"] * bool(o.model.experts) + ["mtp"] * bool(o.model.mtp)
    found = [item for kind in kinds for item in (*forward(o, kind), *backward(o, kind), *gradient_comms(o, kind))]
    return [*found, *embedding(o), *logits(o), optimizer(o, 0)]


@pytest.mark.parametrize("name", ["llama3-70b", "gpt3-175b", "deepseek-v3-mtp", "qwen3-30b"])
def test_arrays_of_configurations_equal_one_at_a_time(name):
    rng, size = np.random.default_rng(len(name)), 12
    base = Training(model=name, seq=4096, gbs=1024, schedule="interleaved", attention="fa2").unchecked(1024)
    keys = {
        key: rng.choice(choices, size)
        for key, choices in {
            "tp": [1, 2, 4],
            "pp": [1, 2, 3, 8],
            "cp": [1, 2],
            "vp": [1, 2, 3],
            "mbs": [1, 2],
            "zero": range(4),
            "recompute": range(len(RECOMPUTE)),
            "recompute_part": [1, 333],
            "ep": [1, 2, 8] if base.model.experts else [1],
        }.items()
    }
    dp = np.maximum(1024 // (keys["tp"] * keys["pp"] * keys["cp"]), 1)
    more = {"dp": dp, "zero_group": dp * keys["cp"], "microbatches": 1024 // (dp * keys["mbs"])}
    many = replace(base, **keys, **more, sp=rng.random(size) < 0.5)
    together = flat(described(many), size)
    for index in range(size):
        one = flat(described(many.at(index)), 1)
        assert one.keys() <= together.keys()
        for key, numbers in together.items():
            if key in one:
                assert (numbers[:, index] == one[key][:, 0]).all(), key
            else:
                assert not numbers[:2, index].any(), key
    assert first_broken(many).shape == (size,)


def test_a_window_bounds_the_scores():
    shape = Model(layers=2, hidden=64, heads=4, vocab=100, window=16)
    o = Training(model=shape, seq=256, gbs=1, attention="eager").layout(1)
    core = named(forward(o, "dense"), "core")
    assert core.flops == 4 * 256 * 32 * 64


@pytest.mark.parametrize("every, wide", [(0, []), (2, [1, 3, 5]), (6, [5]), (3, [2, 5])])
def test_every_nth_layer_attends_to_all_tokens(every, wide):
    shape = Model(layers=6, hidden=64, heads=4, vocab=100, window=16, global_every=every)
    o = Training(model=shape, seq=256, gbs=1).layout(1)
    scores = [
        named(forward(o.reading_all if shape.reads_all(layer) else o, "dense"), "core").flops for layer in range(6)
    ]
    assert scores == [2 * 256 * 64 * (256 if layer in wide else 32) for layer in range(6)]
    assert [shape.tokens_read(layer, 100) for layer in range(6)] == [100 if x in wide else 16 for x in range(6)]
    assert sum(count * named(forward(own, "dense"), "core").flops for own, count in o.by_attention("dense")) == sum(
        scores
    )
    without = Training(model=shape.model_copy(update={"window": 0, "global_every": 0}), seq=256, gbs=1).layout(1)
    per_token = shape.flops_per_token(256, "causal") - without.model.flops_per_token(256, "causal")
    assert per_token * 256 == 3 * (sum(scores) - 6 * 2 * 256 * 64 * 256)
