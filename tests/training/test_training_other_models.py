"""Recommendation models and inference: critical paths to the picosecond, bytes and FLOPs by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from worlds.training import TINY, ByHand, ByWork, GpuAlone, fast, layout_of, run, whole

from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.core.errors import ScenarioError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.topology import shapes
from astrasim_py.training import recommendation
from astrasim_py.training.inference import inference_workload
from astrasim_py.training.layers import Comm, forward, logits
from astrasim_py.training.models import RecommendationModel
from astrasim_py.training.recommendation import COMPUTE, MEMORY, NETWORK, PROGRAM, operations, recommendation_workload

MOE = TINY | {"experts": 4, "topk": 1}
DLRM = RecommendationModel.model_validate("dlrm-mlperf")


def full(ranks: int):
    return shapes.FullyConnected(npus=ranks, bandwidth=Fraction(10**10), latency=1_000_000).build()


class Scaled(GpuAlone):
    """Each of the named nodes so many times longer."""

    def __init__(self, **factors: int) -> None:
        self.factors = factors

    def op_ps(self, *ops) -> int:
        name = f"{ops[0].name if ops[0].block == 'embedding' else ops[0].block}_{ops[0].part}"
        return sum(int(op.flops) // 10**3 + int(op.nbytes) for op in ops) * self.factors.get(name, 1)


FACTORS = [{}, {"lookup_F": 40}, {"bottom_F": 60}, {"update_O": 30}, {"bottom_I": 90}, {"optimizer_O": 50}]


def critical_path(times):
    """Time of an iteration of which each node takes the given time, if the streams do not slow each other down."""
    ends, free = {}, dict.fromkeys((MEMORY, COMPUTE, NETWORK), 0)
    for name, (waits, stream) in PROGRAM.items():
        ends[name] = free[stream] = max([free[stream], *(ends[wait] for wait in waits)]) + times[name]
    return max(ends.values())


@pytest.mark.parametrize("factors", FACTORS, ids=str)
@pytest.mark.parametrize("ranks", [2, 4])
def test_recommendation_takes_its_critical_path(ranks, factors):
    prices = Scaled(**factors)
    times = {}
    for name, does in operations(DLRM, 64).items():
        if isinstance(does, Comm):
            times[name] = simulate(collective(does.collective, does.size, full(ranks))).makespan
        else:
            times[name] = prices.op_ps(*does)
    workload = recommendation_workload(DLRM, ranks, 64, prices)
    assert run(workload, full(ranks)).makespan == critical_path(times)


def test_critical_path_on_the_board():
    times = dict.fromkeys(operations(DLRM, 1), 0)
    times |= {"lookup": 50, "rows": 7, "bottom": 30, "top": 100, "top_back": 200, "top_gradients": 11, "rows_back": 7}
    times |= {"update": 150, "bottom_back": 60, "bottom_gradients": 5, "optimizer": 13}
    top = max(50 + 7, 30) + 300
    assert critical_path(times) == max(top + 11 + 7 + 150, max(top + 60, top + 11 + 7) + 5 + 13)


def test_recommendation_by_hand():
    found = operations(DLRM, 32)
    assert found["lookup"][0].nbytes == 32 * 26 * 1 * 128 * 2
    assert found["rows"].size == 32 * 26 * 128 * 2
    assert found["top"][0].flops == 2 * 32 * 27**2 * 128 // 2
    assert sum(op.flops for op in found["bottom"]) == 2 * 32 * (13 * 512 + 512 * 256 + 256 * 128)
    assert found["update"][0].nbytes == 3 * found["lookup"][0].nbytes
    both = found["top_gradients"].size + found["bottom_gradients"].size
    assert both == 4 * sum(DLRM.mlp_params)
    second = RecommendationModel.model_validate("dlrm-v2")
    crossed = operations(second, 32)["top"]
    assert sum(op.flops for op in crossed if op.name.startswith("cross")) == 3 * 2 * 2 * 32 * 512 * 27 * 128
    assert operations(second, 32)["lookup"][0].nbytes == 8 * found["lookup"][0].nbytes


def test_recommendation_is_one_trace_and_lint_clean():
    workload = recommendation_workload(DLRM, 8, 16, iterations=3)
    assert len(dict.fromkeys(workload.traces)) == 1
    assert lint(workload.traces, workload.groups) == []
    assert len(workload.traces[0]) == 3 * len(recommendation.PROGRAM)


def pools(tp=(2, 2), dp=(1, 1), waves: int = 2, pp=(1, 1), cp: int = 1, **model):
    shape = TINY | model
    keys = {"model": shape, "sp": False} | ({"ep": 2} if model.get("experts") else {})
    first, second = ({"tp": tp[i], "dp": dp[i], "pp": pp[i]} for i in (0, 1))
    sizes = [tp[i] * dp[i] * pp[i] for i in (0, 1)]
    prefill = layout_of(sizes[0] * cp, **keys, **first, cp=cp, seq=32, mbs=2 * dp[1], microbatches=waves)
    decode = layout_of(sizes[1], **keys, **second, seq=1, mbs=2 * dp[0], microbatches=1)
    return prefill, decode


@pytest.mark.parametrize(
    "tp, dp, more",
    [((2, 2), (1, 1), {}), ((4, 2), (1, 2), {}), ((1, 4), (2, 1), {"kv_heads": 2}), ((4, 2), (2, 1), {"kv_heads": 2})]
    + [((2, 2), (2, 2), {"experts": 8, "topk": 2, "moe_ffn": 64}), ((2, 2), (1, 4), {"window": 8})]
    + [((2, 1), (2, 4), {"window": 8, "global_every": 2}), ((2, 2), (2, 4), {"pp": (2, 4)})]
    + [((2, 4), (1, 1), {"cp": 4}), ((1, 2), (4, 2), {"cp": 2, "pp": (4, 1), "waves": 3})]
    + [((2, 2), (2, 1), {"pp": (1, 2), "experts": 8, "topk": 2, "moe_ffn": 64, "waves": 5})]
    + [(tp, (1, 1), {"q_lora": 32, "kv_lora": 16, "qk_nope": 8, "qk_rope": 4, "v_dim": 8}) for tp in ((2, 4), (4, 2))],
)
def test_inference_moves_every_key_and_value(tp, dp, more):
    prefill, decode = pools(tp, dp, **more)
    workload = inference_workload(prefill, decode, 3, ByWork())
    assert lint(whole(workload).traces, workload.groups) == []
    records = run(workload, fast(workload.ranks))
    assert records.makespan > 0
    shape = prefill.model
    width = shape.kv_lora + shape.qk_rope if shape.mla else 2 * shape.kv_heads * shape.head_dim
    copies = tp[1] if shape.mla else max(1, tp[1] // shape.kv_heads)  # what several ranks of the decode pool hold
    tokens = sum(32 if shape.reads_all(layer) else 8 for layer in range(shape.layers))
    wanted = prefill.microbatches * 2 * dp[0] * dp[1] * tokens * width * copies * 2  # waves, prompts, tokens, bytes
    sent = 0
    for rank in range(prefill.ranks):
        trace = workload.trace(rank)
        away = (trace.type == NodeType.COMM_SEND) & (trace.column("comm_dst") >= prefill.ranks)
        sent += int(trace.column("comm_size")[away].sum())
    assert sent == wanted


@pytest.mark.parametrize("waves, p", [(1, 2), (2, 2), (3, 2), (4, 4)])
def test_generating_in_a_pipeline_keeps_a_wave_for_each_stage(waves, p):
    prefill, decode = pools(tp=(1, 1), pp=(1, p), waves=waves)
    steps, layer, layers = 5, 10**9, TINY["layers"]
    workload = inference_workload(prefill, decode, steps, ByHand({("qkv", "F"): layer}))
    turn = layers // p * layer  # of one wave in one stage, which waits for the caches of its own layers alone
    wanted = (min(waves, p) - 1) * layers * layer + turn + steps * p * turn
    if waves > p:  # the last wave follows where the first stage is free
        wanted += steps * p * turn - (p - 1) * turn
    assert 0 <= run(workload, fast(workload.ranks)).makespan - wanted < 10**6


def test_inference_shares_traces_among_ranks_that_do_the_same():
    for keys, most in (({"tp": (2, 2), "dp": (4, 4)}, 2), ({"tp": (4, 4), "dp": (2, 4), "pp": (2, 4)}, 2 + 4 * 2)):
        prefill, decode = pools(**keys)
        workload = inference_workload(prefill, decode, 3)
        assert len(dict.fromkeys(workload.traces)) == most
    prefill, decode = pools(tp=(4, 2), dp=(2, 4))  # peers are not as far away from all of them
    workload = inference_workload(prefill, decode, 3)
    names = {id(trace.names) for trace in workload.traces}
    assert len(names) == 2 < len(dict.fromkeys(workload.traces))


def test_decode_reads_the_cache_of_all_tokens_before():
    prefill, decode = pools()
    trace = inference_workload(prefill, decode, 4).traces[2]
    rows = [row for row, name in enumerate(trace.names) if name.startswith("L1.attn.fwd mb")]
    moved = trace.column("tensor_size")[rows]
    assert len(rows) == 8  # two waves
    per_token = 2 * 2 * 4 * 8 * 2  # sequences, keys and values of 4 heads of width 8, bytes
    assert np.diff(moved[:4]).tolist() == [per_token] * 3 and moved[:4].tolist() == moved[4:].tolist()
    work = trace.column("num_ops")[rows]
    assert np.diff(work[:4]).tolist() == [2 * 2 * 4 * 16] * 3


def test_decoding_starts_when_the_cache_is_there():
    prefill, decode = pools(tp=(1, 1), waves=1)
    layers = TINY["layers"]
    workload = inference_workload(prefill, decode, 1, ByHand({("qkv", "F"): 10**9}))
    records = run(workload, fast(2), level="nodes")
    assert layers * 2 * 10**9 <= records.makespan < layers * 2 * 10**9 + 10**6
    prefilled = sum(op.flops for op in forward(prefill, "dense") if not isinstance(op, Comm)) * layers
    assert workload.traces[0].column("num_ops").clip(min=0).sum() == prefilled + sum(
        op.flops for op in logits(prefill) if not isinstance(op, Comm) and op.part == "F"
    )
    assert (workload.traces[0].column("comm_dst") != MISSING).sum() == layers


@pytest.mark.parametrize(
    "change, text",
    [
        ({"dp": (3, 2)}, "dp 3 and 2 of the pools do not divide"),
        ({"other": {"mbs": 3}}, "a wave has 2 prompts, and the decode pool takes 3"),
        ({"other": {"seq": 4}}, "the decode pool has seq 4"),
        ({"other": {"model": MOE, "routing": {"kind": "random"}}}, "the decode pool has routing random"),
    ],
)
def test_pools_that_do_not_fit_are_refused(change, text):
    prefill, decode = pools(dp=change.get("dp", (1, 1)))
    if "other" in change:
        keys = {"seq": 1, "mbs": 2, "microbatches": 1, "tp": 2, "sp": False} | change["other"]
        decode = layout_of(2 * keys.get("pp", 1), **keys)
    with pytest.raises(ScenarioError, match=text):
        inference_workload(prefill, decode, 1)
