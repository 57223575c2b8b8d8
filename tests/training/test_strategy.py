"""Trainings as users write them, and their layout over ranks."""

import itertools
import random
import re

import numpy as np
import pytest
import yaml

from astrasim_py.core.errors import ScenarioError
from astrasim_py.training.memory import peak_memory, shortage
from astrasim_py.training.rules import RULES, first_broken
from astrasim_py.training.schedules import SCHEDULES
from astrasim_py.training.strategy import RECOMPUTE, Layout, Training

LLAMA = {"model": "llama3-70b", "seq": 8192, "gbs": 512}


def layout(ranks: int = 256, **keys) -> Layout:
    return Training(**{**LLAMA, **keys}).layout(ranks)


#: What is written in place of LLAMA's keys, and ours; None takes a key out.
SAME = [
    (
        {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5},
        {"tp": 4, "pp": 4, "vp": 5},
    ),
    ({"gbs": None, "micro_batch_size": 2, "global_batch_size": 512}, {"mbs": 2}),
    ({"context_parallel_size": 2, "sequence_parallel": True}, {"cp": 2, "sp": True}),
    ({"use_distributed_optimizer": True}, {"zero": 1}),
    ({"use_megatron_fsdp": True, "use_distributed_optimizer": True}, {"zero": 3}),
    ({"zero": 1, "num_distributed_optimizer_instances": 4}, {"zero": 1, "zero_group": 64}),
    (
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute": "full"},
    ),
    ({"recompute_granularity": "selective"}, {"recompute": "attn"}),
    ({"overlap_grad_reduce": True, "overlap_param_gather": True}, {"overlap": {"dp": True}}),
    ({"tp_comm_overlap": True, "overlap": {"dp": True}}, {"overlap": {"dp": True, "tp": True}}),
    ({"tensor_parallel_degree": 8, "pipeline_parallel_degree": 4}, {"tp": 8, "pp": 4}),
    ({"pipeline_parallel_degree": 4, "pipeline_parallel_schedule": "Interleaved1F1B"}, {"pp": 4, "vp": 2}),
    ({"pp": 4, "pipeline_parallel_schedule": "ZBVZeroBubble"}, {"pp": 4, "schedule": "zbv"}),
    ({"data_parallel_shard_degree": -1}, {"zero": 3}),
    ({"data_parallel_shard_degree": -1, "pp": 4}, {"zero": 2, "pp": 4}),
    ({"data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "never"}, {"zero": 2}),
    ({"data_parallel_shard_degree": 64, "data_parallel_replicate_degree": 4}, {"zero": 3, "zero_group": 64}),
    ({"gbs": None, "local_batch_size": 8, "pp": 4, "tp": 4}, {"gbs": 128, "mbs": 2, "pp": 4, "tp": 4}),
    ({"activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"}}, {"recompute": "half"}),
    ({"activation_checkpoint": {"mode": "selective"}}, {"recompute": "selective_op"}),
    ({"zero_optimization": {"stage": 2, "overlap_comm": True}}, {"zero": 2, "overlap": {"dp": True}}),
    ({"zero_optimization.stage": 2, "zero_optimization.overlap_comm": True}, {"zero": 2, "overlap": {"dp": True}}),
    ({"overlap.dp": True, "overlap.tp": True}, {"overlap": {"dp": True, "tp": True}}),
    ({"activation_checkpoint.mode": "full"}, {"recompute": "full"}),
    ({"gbs": None, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, {"gbs": 1536, "mbs": 2}),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_keys_of_other_systems_mean_the_same(theirs, ours):
    keys = {key: value for key, value in {**LLAMA, **theirs}.items() if value is not None}
    assert Training(**keys).layout(256) == layout(**ours)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"tp": 2, "tensor_parallel_degree": 2}, "tensor_parallel_degree: says the same as tp; write one"),
        ({"overlap": {"tp": True}, "tp_comm_overlap": True}, "says the same as overlap"),
        ({"tensor_paralel_degree": 2}, "is not a key here"),
        ({"recompute_granularity": "full", "recompute_num_layers": 2}, "checkpoints every 2 layers"),
        (
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2},
            "block counts layers",
        ),
        ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, "only core_attn"),
        ({"recompute_num_layers": 2}, "without recompute_granularity"),
        ({"overlap_grad_reduce": True, "use_distributed_optimizer": True}, "differs from overlap_param_gather"),
        ({"pp": 4, "pipeline_parallel_schedule": "DualPipeV"}, '"DualPipeV" has no counterpart'),
        ({"zero_optimization": {"stage": 1, "offload_optimizer": True}}, "only stage and overlap_comm"),
        ({"zero_optimization": {"stage": 1}, "zero_optimization.stage": 1}, "is beside zero_optimization"),
        ({"data_parallel_shard_degree": 0}, "is not a degree"),
        ({"activation_checkpoint": {"mode": "auto"}}, "has no counterpart"),
        ({"gbs": None, "local_batch_size": 7, "pp": 4}, "does not hold 4 microbatches"),
        ({"gbs": None}, '"gbs" is missing'),
        ({"recompute": "some"}, "is not a recomputation"),
        ({"recompute": 1.5}, "is not a recomputation"),
        ({"zero_group": 4, "zero_copies": 2}, "both zero_group and zero_copies"),
        ({"seq": 2**31 - 1}, "training.seq: 4.84e+25 FLOPs of a rank for a microbatch"),
        ({"model": {"base": "llama3-8b", "hidden": 2**40}}, "are more than 4.61e+18; write a smaller seq"),
        ({"model": {"base": "llama3-8b", "vocab": 2**40}}, "are more than 4.61e+18; write a smaller seq"),
        ({"use_distributed_optimizer": "no"}, 'use_distributed_optimizer: "no" is not true or false'),
        ({"use_distributed_optimizer": False, "zero": 1}, "says the same as zero"),
        ({"use_megatron_fsdp": "no"}, 'use_megatron_fsdp: "no" is not true or false'),
        ({"overlap_grad_reduce": True, "overlap_param_gather": "no"}, 'overlap_param_gather: "no" is not true'),
        ({"overlap": True, "overlap_comm": True}, "overlap: true is not a mapping"),
        ({"pp": "two", "data_parallel_shard_degree": -1}, 'pp: "two" is not a whole number'),
        ({"gbs": None, "pp": [2], "local_batch_size": 8}, "pp: a list is not a whole number"),
        ({"gbs": None, "local_batch_size": True}, "true does not hold 1 microbatches"),
        ({"data_parallel_shard_degree": True}, "true is not a degree"),
        ({"data_parallel_shard_degree": 1, "fsdp_reshard_after_forward": "ever"}, '"ever" has no counterpart'),
        ({"activation_checkpoint": {"mode": "full", "early_stop": True}}, "only mode and selective_ac_option"),
        ({"recompute_granularity": "selective", "recompute_modules": 5}, "only core_attn"),
        ({"recompute_granularity": "selective", "recompute_num_layers": 2}, "does nothing with recompute_granularity"),
        ({"recompute_granularity": "none", "recompute_modules": ["moe"]}, "does nothing with recompute_gran"),
        ({"recompute_granularity": "full", "recompute_method": "uniformly"}, 'did you mean "uniform"?'),
    ],
)
def test_what_we_cannot_mean_is_refused_in_one_line(keys, text):
    written = {key: value for key, value in {**LLAMA, **keys}.items() if value is not None}
    with pytest.raises(ScenarioError, match=re.escape(text)) as caught:
        Training(**written)
    assert caught.value.remedy and "\n" not in str(caught.value)


#: Per rule: a training that breaks it first.
BREAKS = {
    "heads": {"tp": 3, "ranks": 384},
    "kv_heads": {"model": {"base": "llama3-70b", "heads": 48, "kv_heads": 6, "head_dim": 128}, "tp": 4},
    "sequence": {"cp": 4, "seq": 8196},
    "no experts": {"ep": 2},
    "experts": {"model": "mixtral-8x7b", "ep": 16},
    "expert ranks": {"model": "mixtral-8x7b", "ep": 8, "pp": 4, "ranks": 16},
    "ranks": {"tp": 8, "ranks": 100},
    "batch": {"gbs": 500},
    "layers": {"pp": 16, "vp": 6},
    "chunks": {"vp": 2},
    "interleaved": {"pp": 8, "vp": 2, "gbs": 96},
    "zbv": {"pp": 4, "vp": 4, "schedule": "zbv"},
    "sequence parallel": {"tp": 8, "seq": 8190},
    "zero group": {"zero": 1, "zero_group": 24},
}


def test_every_rule_is_tried():
    assert BREAKS.keys() == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", BREAKS)
def test_a_layout_that_breaks_a_rule_is_refused_with_a_remedy(name):
    keys = dict(BREAKS[name])
    ranks = keys.pop("ranks", 256)
    found = Training(**{**LLAMA, **keys}).unchecked(ranks)
    assert RULES[int(first_broken(found))].name == name
    with pytest.raises(ScenarioError) as caught:
        layout(ranks, **keys)
    assert caught.value.place == "training" and caught.value.remedy and "\n" not in str(caught.value)


def after(remedy: str, keys: dict, ranks: int) -> list[tuple[dict, int]]:
    """What is written, and on how many ranks, with each alternative of a remedy applied literally."""
    found = []
    for one in remedy.split(", or "):
        assert re.fullmatch(r"(take \d+ ranks)?( and )?((write )?\w+: [\w.]+( and \w+: [\w.]+)*)?", one), one
        taken = re.search(r"take (\d+) ranks", one)
        found.append(
            (
                keys | yaml.safe_load("{" + ", ".join(re.findall(r"\w+: [\w.]+", one)) + "}"),
                int((taken or [0, ranks])[1]),
            )
        )
    return found


MODELS = ("llama3-8b", "gpt3-22b", "mixtral-8x7b", "deepseek-v3", "mixtral-8x22b")


def random_training(rng: random.Random) -> tuple[dict, int]:
    keys = {"model": rng.choice(MODELS), "seq": rng.choice((512, 1000, 1002)), "gbs": rng.choice((7, 32, 96, 250))}
    for key, values in {"tp": (1, 3, 4, 12), "pp": (1, 2, 3, 4), "cp": (1, 2, 3), "mbs": (1, 2, 3)}.items():
        keys[key] = rng.choice(values)
    more = {"vp": (2, 3, 40), "ep": (2, 3, 8), "etp": (2, 3), "schedule": SCHEDULES, "zero": (1, 3), "dp": (1, 2, 4)}
    more |= {"zero_group": (2, 3)}
    keys |= {key: rng.choice(values) for key, values in more.items() if rng.random() < 0.25}
    keys |= {"zero": 1} if "zero_group" in keys else {}
    return keys, rng.choice((6, 12, 16, 24, 32, 64))


def test_every_remedy_works_as_it_is_written():
    rng = random.Random(5)
    seen = set()
    known = [({**LLAMA, **keys}, keys.get("ranks", 256)) for keys in BREAKS.values()]
    cases = [({key: value for key, value in keys.items() if key != "ranks"}, ranks) for keys, ranks in known]
    for number, (keys, ranks) in enumerate(cases + [random_training(rng) for _ in range(300)]):
        training = Training(**keys)
        try:
            training.layout(ranks)
        except ScenarioError as error:
            rule = RULES[int(first_broken(training.unchecked(ranks)))]
            seen.add(rule.name)
            for more, wanted in after(error.remedy, keys, ranks):
                found = Training(**more).unchecked(wanted)
                assert not rule.broken(found), (keys, ranks, str(error))
                if number < len(cases) and rule.name != "heads":  # no tp leaves a dp that divides this gbs
                    assert int(first_broken(found)) < 0, (keys, ranks, str(error))
    assert seen == BREAKS.keys()


def test_what_fits_memory_is_what_the_refusal_says_to_write():
    rng = random.Random(3)
    tried, helped = 0, 0
    for _ in range(40):
        keys = {"model": rng.choice(("llama3-70b", "llama3-8b", "mixtral-8x7b", "deepseek-v3")), "gbs": 256}
        keys |= {"tp": rng.choice((1, 2, 8)), "pp": rng.choice((1, 2)), "mbs": rng.choice((1, 4)), "seq": 8192}
        ranks, capacity = rng.choice((8, 16, 64, 128)), rng.choice((80, 192)) * 10**9
        keys |= {"dp": ranks // keys["tp"] // keys["pp"]} if ranks > 8 and rng.random() < 0.3 else {}
        training = Training(**keys)
        if int(first_broken(found := training.unchecked(ranks))) >= 0 or sum(peak_memory(found).values()) <= capacity:
            continue
        _, remedy = shortage(peak_memory(found), capacity, found, training.after(ranks))
        tried += 1
        if remedy.startswith("take many"):
            continue
        helped += 1
        for more, wanted in after(remedy, keys, ranks):
            assert sum(peak_memory(Training(**more).layout(wanted)).values()) <= capacity, (keys, ranks, remedy)
            assert more != keys or wanted != ranks
    assert tried > 25 and helped > 0.8 * tried, (helped, tried)


def test_interleaved_with_one_chunk_needs_whole_rounds_too():
    with pytest.raises(ScenarioError, match="interleaved with 3 microbatches, not a multiple of pp 4"):
        layout(4, pp=4, schedule="interleaved", vp=1, gbs=3)


@pytest.mark.parametrize("copies", [7, 13, 33])
def test_copies_that_ranks_do_not_share_are_refused(copies):
    with pytest.raises(ScenarioError, match=f"zero_copies {copies} does not divide dp x cp = 64; write"):
        layout(64, zero=1, zero_copies=copies)


def test_more_stages_than_layers_only_where_embedding_and_loss_are_stages():
    model = {"base": "llama3-8b", "layers": 6}
    assert [layout(8, model=model, pp=8).stage_layers(stage)[0] for stage in range(8)] == [0, *[1] * 6, 0]
    for p in (7, 9):
        with pytest.raises(ScenarioError, match=f"pp {p} x vp 1 are more stages than 6 layers"):
            layout(p, model=model, pp=p)


def test_gradients_have_four_bytes_where_weights_have():
    assert [layout(dtype=dtype).grad_element for dtype in ("bf16", "fp16", "fp8", "fp32")] == [2, 2, 2, 4]
    assert [layout(dtype=dtype, grad_dtype="bf16").grad_element for dtype in ("bf16", "fp32")] == [2, 2]


def test_a_written_dp_must_make_the_ranks():
    with pytest.raises(ScenarioError, match="dp 4 = 32 are not the 256 ranks; write dp: fill, or take 32 ranks"):
        layout(tp=8, dp=4)
    assert layout(tp=8, dp=32) == layout(tp=8)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
@pytest.mark.parametrize("name", ["llama3-70b", "llama3.1-405b", "deepseek-v3"])
def test_every_layer_is_on_one_stage(name, schedule):
    for p in (2, 3, 4, 5, 7):
        for v in {"1f1b": (1,), "interleaved": (2, 4), "zbv": (2,)}[schedule]:
            o = Training(model=name, gbs=p, pp=p, vp=v, schedule=schedule).layout(p)
            held = [[layer for c in range(v) for layer in o.chunk_layers(stage, c)] for stage in range(p)]
            assert sorted(itertools.chain(*held)) == list(range(o.model.layers))
            for stage, layers in enumerate(held):
                dense = sum(layer < o.model.dense_layers for layer in layers) if o.model.experts else len(layers)
                assert o.stage_layers(stage) == (dense, len(layers) - dense)
                assert all(o.stage_of(layer) == stage for layer in layers)


def test_embedding_and_loss_count_as_layers_where_stages_do_not_divide():
    o = Training(model="llama3.1-405b", gbs=8, pp=8, vp=8).layout(8)
    assert [o.stage_layers(stage)[0] for stage in range(8)] == [15, *[16] * 6, 15]
    assert len(o.chunk_layers(0, 0)) == len(o.chunk_layers(7, 7)) == 1


def test_groups_partition_the_ranks_in_the_stated_order():
    o = Training(model="qwen3-30b", gbs=64, seq=64, tp=2, cp=2, pp=2, ep=4, zero=1, zero_group=4).layout(32)
    groups = o.groups()
    assert groups["tp"].members[1].tolist() == [2, 3]
    assert groups["cp"].members[0].tolist() == [0, 2]
    assert groups["dp"].members[0].tolist() == [0, 2, 4, 6]
    assert groups["copies"].members[0].tolist() == [0, 8]
    assert groups["ep"].members[0].tolist() == [0, 1, 2, 3]
    assert groups["edp"].members[0].tolist() == [0, 4, 8, 12]
    assert groups["pp"].members[5].tolist() == [5, 21]
    for number, members in groups.values():
        assert sorted(members.ravel()) == list(range(32))
        assert all(set(number[group]) == {index} for index, group in enumerate(members))


def test_tied_weights_join_the_first_and_the_last_stage():
    groups = Training(model="gpt3-175b", gbs=8, tp=2, pp=4).layout(8).groups()
    assert groups["tie"].members.tolist() == [[0, 6], [1, 7]]
    assert groups["tie"].number.tolist() == [0, 1, -1, -1, -1, -1, 0, 1]
    both_ends_on_one_rank = Training(model="gpt3-175b", gbs=8, tp=2, pp=4, schedule="zbv").layout(8)
    assert "tie" not in both_ends_on_one_rank.groups()


def test_a_part_of_the_layers_is_kept_in_thousandths():
    o = layout(recompute=0.2)
    assert (RECOMPUTE[o.recompute], o.recompute_part) == ("part", 200)


def test_editors_know_names_of_models_and_keys_of_other_systems():
    schema = Training.model_json_schema()
    assert {"type": "string"} in schema["properties"]["model"]["anyOf"]
    assert {"tp", "tensor_parallel_degree", "zero_optimization"} <= schema["properties"].keys()


def test_written_trainings_read_as_those_in_python():
    written = {"model": {"base": "llama3-70b", "layers": 40}, "gbs": 64, "recompute": 0.2, "bucket": "25 MB"}
    read = Training.model_validate(written, context={"written": True})
    assert read == Training(**(written | {"bucket": 25_000_000}))


def test_rules_hold_for_arrays_as_for_numbers():
    rng = np.random.default_rng(1)
    tp, pp, cp = (rng.choice(choice, 200) for choice in ([1, 2, 3, 8], [1, 2, 5], [1, 2]))
    keys = {"tp": tp, "pp": pp, "cp": cp, "dp": np.maximum(64 // (tp * pp * cp), 1)}
    base = layout(64).__dict__ | {"sp": tp > 1, "zero_group": keys["dp"] * cp}
    many = Layout(**(base | keys | {"microbatches": np.maximum(512 // keys["dp"], 1)}))
    codes = first_broken(many)
    assert codes.shape == (200,) and len(set(codes.tolist())) > 2
    assert codes.tolist() == [int(first_broken(many.at(index))) for index in range(200)]
