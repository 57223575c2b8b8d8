"""Traces of training: what layers say they compute and send, all of it, in schedules that lose what their forms say."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from worlds.training import TIMED, TINY, ByHand, ByWork, fast, layout_of, run, whole

from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, MISSING, NodeType
from astrasim_py.core.errors import ScenarioError
from astrasim_py.topology import shapes
from astrasim_py.training import layers
from astrasim_py.training.layers import Comm, Op
from astrasim_py.training.schedules import SCHEDULES, bubble
from astrasim_py.training.traces import training_workload

UNIT = 10**12
CHUNKS = {"interleaved": (2, 4), "zbv": (2,)}
BUBBLES = [
    (schedule, v, p, m, times)
    for schedule in SCHEDULES
    for v in CHUNKS.get(schedule, (1,))
    for p, m in ((4, 8), (4, 64), (8, 8), (8, 24), (8, 64))
    for times in ((1, 1, 1), (1, 2, 1))
]


def random_keys(rng: random.Random) -> tuple[int, dict]:
    """Ranks and keys of a layout that its rules accept."""
    tp, cp, dp = rng.choice((1, 2, 4)), rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 4))
    schedule = rng.choice(SCHEDULES)
    v = CHUNKS.get(schedule, (1,))[0]
    pp = rng.choice((2, 4) if v > 1 else (1, 2, 4))
    model = TINY | {"layers": rng.choice((8, 9, 12)), "kv_heads": rng.choice((4, 8))}
    model |= {"gated": rng.random() < 0.5, "tied": rng.random() < 0.5}
    keys = {
        "model": model,
        "seq": 96,
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "vp": v,
        "schedule": schedule,
        "microbatches": pp * rng.randint(1, 3) if schedule == "interleaved" else rng.randint(1, 6),
        "zero": rng.randint(0, 3),
        "nodes": rng.choice(("coarse", "fine")),
        "recompute": rng.choice(("none", "attn", "full", "half", "selective_op", 0.3)),
        "sp": rng.random() < 0.5,
        "overlap": {kind: rng.random() < 0.5 for kind in ("tp", "dp", "ep")},
        "grad_dtype": rng.choice(("bf16", "fp32")),
    }
    if rng.random() < 0.3:
        keys["bucket"] = "100 kB"
    if rng.random() < 0.5:
        model |= {"experts": 8, "topk": 2, "moe_ffn": 128, "shared_ffn": rng.choice((0, 128)), "dense_layers": 2}
        keys["ep"] = rng.choice([x for x in (1, 2, 4) if tp * cp * dp % x == 0])
        keys["routing"] = {"kind": rng.choice(("balanced", "random")), "seed": rng.randrange(9)}
    if rng.random() < 0.4:
        model |= {"window": 8, "global_every": rng.choice((0, 2, 3))}
    if rng.random() < 0.3:
        model |= {"mtp": 1, "q_lora": 32, "kv_lora": 16, "qk_nope": 8, "qk_rope": 4, "v_dim": 8}
    if keys["zero"] == 3:
        keys["overlap"]["ep"] = False
    elif keys["zero"] and dp * cp % 2 == 0 and rng.random() < 0.3:
        keys["zero_copies"] = 2
    return tp * cp * dp * pp, keys


def cases(count: int, most: int = 32) -> list:
    rng = random.Random(14)
    found = [random_keys(rng) for _ in range(8 * count)]
    return [pytest.param(*one, id=str(place)) for place, one in enumerate(found) if one[0] <= most][:count]


def described(layout, stage: int) -> tuple[int, int, Counter]:
    """FLOPs and bytes of the operations of a stage, and bytes by group and collective, as layers.py states them."""
    dense, moe = layout.stage_layers(stage)
    kinds = {"dense": dense, "moe": moe, "embedding": stage == 0, "logits": stage == layout.last_stage}
    kinds["mtp"] = layout.model.mtp * (stage == layout.last_stage)
    held = [layer for chunk in range(layout.vp) for layer in layout.chunk_layers(stage, chunk)]
    held += range(layout.model.layers, layout.model.layers + layout.model.mtp) if kinds["mtp"] else []
    items = [(layers.optimizer(layout, stage), 1)]
    for kind, count in kinds.items():
        if kind in ("embedding", "logits"):
            found = getattr(layers, kind)(layout)
        else:
            found = ()
        items += [(item, layout.microbatches * count) for item in found]
        per = {"microbatch": layout.microbatches, "iteration": 1}
        items += [(comm, per[comm.when] * count) for comm in layers.gradient_comms(layout, kind) if count]
    for layer in held:
        first_moe = layout.model.dense_layers if layout.model.experts else layout.model.layers
        kind = "mtp" if layer >= layout.model.layers else "dense" if layer < first_moe else "moe"
        own = layout.reading_all if layout.model.window and layout.model.reads_all(layer) else layout
        items += [(item, layout.microbatches) for item in layers.forward(own, kind) + layers.backward(own, kind)]
    flops = sum(item.flops * count for item, count in items if isinstance(item, Op))
    nbytes = sum(item.nbytes * count for item, count in items if isinstance(item, Op))
    sent: Counter = Counter()
    for comm, count in items:
        if isinstance(comm, Comm):
            sent[comm.group, comm.collective] += comm.size * count
    return flops, nbytes, +sent


@pytest.mark.parametrize("ranks, keys", cases(60))
def test_sums_equal_the_description(ranks, keys):
    layout = layout_of(ranks, **keys)
    workload = training_workload(layout, ByWork())
    for stage in range(layout.pp):
        own = Counter(workload.traces[stage * layout.stage_ranks : (stage + 1) * layout.stage_ranks])
        flops = nbytes = messages = 0
        sent: Counter = Counter()
        for trace, ranks_like in own.items():
            computes = trace.type == NodeType.COMP
            flops += ranks_like * int(trace.column("num_ops")[computes].sum())
            nbytes += ranks_like * int(trace.column("tensor_size")[computes].sum())
            codes, names = trace.group_of()
            for row in np.flatnonzero(trace.type == NodeType.COMM_COLL):
                kind = COLLECTIVE_OF_CODE[int(trace.column("comm_type")[row])]
                sent[names[codes[row]], kind] += ranks_like * int(trace.column("coll_size")[row])
            inside = trace.column("comm_dst") // layout.stage_ranks == trace.column("comm_src") // layout.stage_ranks
            sends = (trace.type == NodeType.COMM_SEND) & inside
            messages += ranks_like * int(trace.column("comm_size")[sends].sum())
        wanted_flops, wanted_bytes, wanted = described(layout, stage)
        count = layout.stage_ranks
        ring = wanted.pop(("cp", "ring"), 0) * (layout.cp - 1)
        unequal = layout.routing.kind == "random" and layout.ep > 1
        exchanged = wanted.pop(("ep", "all_to_all"), 0) if unequal else 0
        assert flops == wanted_flops * count
        assert nbytes == wanted_bytes * count
        assert 0 <= messages - ring * count <= exchanged * count  # what a rank keeps of its rows is not sent
        assert sent == Counter({key: size * count for key, size in wanted.items()})


@pytest.mark.parametrize("ranks, keys", cases(25))
def test_traces_are_lint_clean_and_run(ranks, keys):
    workload = whole(training_workload(layout_of(ranks, **keys), ByWork()))
    assert lint(workload.traces, workload.groups) == []
    again = whole(training_workload(layout_of(ranks, **keys), ByWork()))
    assert [trace.digest() for trace in again.traces] == [trace.digest() for trace in workload.traces]
    if ranks > 1:
        assert run(workload, fast(ranks)).makespan > 0


@pytest.mark.parametrize("schedule, v, p, m, times", BUBBLES)
def test_simulated_bubbles_equal_their_forms(schedule, v, p, m, times):
    layout = layout_of(p, model=TINY | {"layers": p * v}, pp=p, vp=v, schedule=schedule, microbatches=m)
    prices = ByHand({(TIMED, part): time * UNIT // v for part, time in zip("FIW", times, strict=True)})
    lost = Fraction(run(training_workload(layout, prices), fast(p)).makespan, UNIT) - m * sum(times)
    wanted = bubble(schedule, p, v, times, m)
    if schedule == "zbv" and times == (1, 2, 1):
        wanted = {(4, 8): 5.5, (4, 64): 5.5, (8, 8): 7, (8, 24): 19.5, (8, 64): 19.5}[p, m]
    assert 0 <= lost - wanted < Fraction(1, 10**6)  # every message takes a picosecond


def test_tags_and_names_follow_from_the_place():
    layout = layout_of(4, pp=2, dp=2, microbatches=3)
    trace = training_workload(layout).trace(2)  # the second stage
    tags = {}
    for row in np.flatnonzero(trace.column("comm_tag") != MISSING):
        tags[trace.names[row]] = int(trace.column("comm_tag")[row])
    stride = 2 * 1 + 2 + 2
    assert tags == {f"receive fwd s1 mb{k}": 2 * k * stride + 1 for k in range(3)} | {
        f"send bwd s0 mb{k}": (2 * k + 1) * stride for k in range(3)
    }
    assert set(trace.column("comm_dst")[trace.type == NodeType.COMM_SEND]) == {0}
    assert "L3.attn.bwd mb2" in trace.names
    row = trace.names.index("L3.mlp.fwd mb1")
    assert [int(trace.column(name)[row]) for name in ("layer", "micro_batch", "phase")] == [3, 1, 0]


def test_ranks_of_a_class_share_one_trace():
    layout = layout_of(64, tp=4, pp=4, dp=4, microbatches=4, zero=1)
    workload = training_workload(layout)
    assert len(dict.fromkeys(workload.traces)) == 4
    assert workload.members(workload.group("dp", 17)) == (17, 21, 25, 29)
    assert workload.shifts[:17] == (*range(16), 0)
    assert len(dict.fromkeys(training_workload(replace(layout, cp=2, dp=2)).traces)) == 8


def test_expert_overlap_with_zero_3_is_refused():
    model = TINY | {"experts": 4, "topk": 2}
    layout = layout_of(4, model=model, ep=4, zero=3, microbatches=2, overlap={"ep": True})
    with pytest.raises(ScenarioError, match="ep does not go with zero 3"):
        training_workload(layout)


def test_workloads_too_large_are_refused_in_one_line():
    model = TINY | {"layers": 8, "experts": 16, "topk": 2, "moe_ffn": 64}
    layout = layout_of(16, model=model, ep=16, microbatches=2048, routing={"kind": "random"})
    with pytest.raises(ScenarioError, match=r"nodes in the traces of 16 classes of ranks, more than .* fewer microb"):
        training_workload(layout)


def test_generation_is_fast():
    small = {"layers": 8, "hidden": 4096, "heads": 32, "vocab": 32000}
    large = {"model": "megatron-1t", "seq": 2048, "recompute": "full", "sp": False}
    for ranks, keys, limit in (
        (64, {"model": small, "tp": 4, "pp": 4, "microbatches": 8}, 0.3),
        (1024, large | {"tp": 8, "pp": 8, "microbatches": 64}, 5),
    ):
        before = time.process_time()
        workload = training_workload(layout_of(ranks, zero=1, **keys), ByWork())
        assert time.process_time() - before < limit
        assert len(dict.fromkeys(workload.traces)) == keys["pp"]
    assert sum(map(len, workload.traces)) == 12_896_000


def test_tensor_parallel_overlap_hides_most_of_its_collectives():
    found = {}
    for overlap in (False, True):
        layout = layout_of(4, tp=4, microbatches=4, model=TINY | {"layers": 8}, overlap={"tp": overlap})
        prices = ByHand({("qkv", "F"): 10**9, ("fc1", "F"): 10**9, ("qkv", "I"): 2 * 10**9, ("fc1", "I"): 2 * 10**9})
        topology = shapes.FullyConnected(npus=4, bandwidth=Fraction(10**8), latency=1000).build()
        found[overlap] = run(training_workload(layout, prices), topology).makespan - 4 * 8 * 6 * 10**9
    assert 0 < found[True] < 0.5 * found[False]


def test_buckets_join_the_gradients_of_layers():
    sizes = {}
    for bucket in (None, "250 kB"):
        layout = layout_of(4, model=TINY | {"layers": 8}, dp=4, microbatches=2, overlap={"dp": True}, bucket=bucket)
        trace = training_workload(layout).traces[0]
        chosen = trace.type == NodeType.COMM_COLL
        sizes[bucket] = trace.column("coll_size")[chosen].tolist()
    layer, edge = 12 * 64 * 64 * 2, 512 * 64 * 2
    assert sizes[None] == [edge] + 8 * [layer] + [edge]
    assert sizes["250 kB"] == [edge + 2 * layer, 3 * layer, 3 * layer, edge]


@pytest.mark.parametrize("ranks, keys", cases(3, most=8))
def test_both_engines_agree(ranks, keys):
    run(training_workload(layout_of(ranks, **keys), ByWork()), fast(ranks), engine="both", level="nodes")


def test_weight_gradients_last_leave_reductions_exposed():
    """Zero bubble saves the bubble and pays with reductions that nothing hides."""
    found = {}
    for schedule in ("1f1b", "zb_h1"):
        model = TINY | {"layers": 4}
        layout = layout_of(8, model=model, pp=4, dp=2, microbatches=8, schedule=schedule, overlap={"dp": True})
        prices = ByHand({(TIMED, part): UNIT for part in "FIW"})
        found[schedule] = run(training_workload(layout, prices), fast(8)).makespan
    assert found["zb_h1"] == pytest.approx(found["1f1b"] - 6 * UNIT, abs=10**6)
