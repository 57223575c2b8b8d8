"""Closed forms of training: hand-worked cases, arrays as single layouts, and what can only help."""

from dataclasses import fields, replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.training import run

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import build
from astrasim_py.topology.hardware import Compute, preset, preset_names
from astrasim_py.training import layers
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.layers import Comm, Op
from astrasim_py.training.models import Model
from astrasim_py.training.prices import Constants, Prices, Transfer
from astrasim_py.training.rules import first_broken
from astrasim_py.training.software import software
from astrasim_py.training.strategy import Overlap, Training
from astrasim_py.training.system import System, system, system_of
from astrasim_py.training.terms import NO_GRADIENTS, Counts, Exchange, Gradients, Pass, Passes, StepTime, Terms
from astrasim_py.training.traces import training_workload

#: Of flat rings, which the problems here have.
SIMULATED = replace(software("ideal").constants, rails=False)

#: A chip of round figures: 10^15 FLOP/s in 16 bits, twice that in 8, 10^12 bytes per second.
PEAK = {"bf16": Fraction(10**15), "fp8": Fraction(2 * 10**15)}
CHIP = Compute(npu="round", peak=PEAK, memory_bandwidth=Fraction(10**12), memory=10**11)
ROUND = System(compute=CHIP, node=8, inside=100e9, outside=10e9, latency=1e-6, far_latency=5e-6)
EVEN = Constants(host=0.0, nic=1.0, nvlink=1.0, memory=1.0, interference=0.0)
NOTHING = {
    "context": 1,
    "hidden": (False, False),
    "beside": (0.0, 0.0),
    "moe": Passes(),
    "embedding": Passes(),
    "logits": Passes(),
    "boundary": Transfer(),
    "steady": Transfer(),
    "gradients": Gradients(),
    "optimizer": 0.0,
    "slower": 1.0,
    "wait": 0.0,
}
DENSE = {"layers": 8, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1536, "vocab": 4096, "gated": True}
EXPERTS = {**DENSE, "experts": 8, "topk": 2, "moe_ffn": 256, "dense_layers": 1}


def layers_of(first: int, second: int, last: int, mean: float, stages: int) -> dict:
    """Dense layers of pipeline ranks; the first has the embedding, and the last the logits."""
    counts = Counts(first, 0, 1, 0), Counts(second, 0, 0, 0), Counts(last, 0, 0, 1)
    return {"counts": counts, "mean": Counts(mean, 0, 1 / stages, 1 / stages)}


def hand_made(schedule: int, stages: int, microbatches: int, chunks: int = 1) -> Terms:
    """Every stage takes 1 s forward, 1 s for input and 1 s for weight gradients."""
    return Terms(
        microbatches=microbatches,
        stages=stages,
        chunks=chunks,
        schedule=schedule,
        **layers_of(1, 1, 1, 1, stages),
        dense=Passes(Pass(gemm=1.0), Pass(gemm=2.0), Pass(gemm=1.0)),
        **NOTHING,
    )


@pytest.mark.parametrize(
    ("schedule", "chunks", "lost"),
    [(0, 1, 21), (1, 1, 21), (2, 2, 10.5), (2, 4, 5.25), (3, 1, 7), (4, 1, 7), (5, 2, 3.5)],
)
def test_a_step_is_its_microbatches_and_the_bubble(schedule, chunks, lost):
    assert step(hand_made(schedule, 8, 64, chunks), EVEN).seconds == 64 * 3 + lost


def test_a_layer_takes_the_longer_of_host_and_gpu():
    found = replace(hand_made(1, 1, 2), dense=Passes(Pass(gemm=1.0, host=3.0), Pass(gemm=2.0, host=1.0)))
    spent = step(found, replace(EVEN, host=1.0))
    assert (spent.forward, spent.host, spent.seconds) == (2.0, 4.0, 10.0)


def test_gradients_cost_what_computation_does_not_hide():
    """Of 4 layers of 1 s and 2 s the first waits for its weights, and nothing hides the gradients of the last."""
    once = {**NO_GRADIENTS, "dense": Exchange(Transfer(near=0.5), Transfer(near=5.0))}
    found = replace(hand_made(1, 1, 4), **layers_of(4, 4, 4, 4, 1), gradients=Gradients(once=once))
    assert (step(found, EVEN).dp, step(found, EVEN).reduction) == (4 * 0.5, 4 * 5.0)
    hidden = replace(found, hidden=(True, True))
    assert (step(hidden, EVEN).dp, step(hidden, EVEN).reduction) == (0.5, 4 * 5.0 - 3 * 2.0)
    slower = step(hidden, replace(EVEN, interference=0.1))
    assert slower.dp + slower.reduction == pytest.approx(14.5 + 0.1 * (2.0 + 8.0))
    apart = replace(hidden, schedule=3)  # zero bubble: only the weight gradients, 1 s a layer, hide reductions
    assert step(apart, EVEN).reduction == 4 * 5.0 - 3 * 1.0


def test_messages_of_a_stream_delay_those_of_a_layer():
    """1 s of computation and 4 steps of 0.1 s beside a stream that sends messages of 1 s over the same links."""
    tp = Transfer(near=0.4, steps=4)
    one = Pass(gemm=1.0, tp=tp)
    found = replace(
        hand_made(1, 1, 1), dense=Passes(one, Pass()), hidden=(True, True), counts=(Counts(1, 0, 0, 0),) * 3
    )

    def exposed(messages: int) -> float:
        comm = Transfer(near=1.0 * messages, steps=messages, on_tp=1.0 * messages, tp_turns=messages)
        each = {**NO_GRADIENTS, "dense": Exchange(comm, Transfer())}
        forward = step(replace(found, gradients=Gradients(each=each)), EVEN)
        return float(forward.dp) - messages  # beside the backward pass, which is empty

    assert exposed(1) == pytest.approx(1 / 5 * 4.0)  # 4 s longer while 5 s of messages are through
    assert exposed(5) == pytest.approx(4.0) and exposed(7) == pytest.approx(4.0 + 2.0)


def test_the_heaviest_stage_counts():
    found = replace(hand_made(1, 4, 1), **layers_of(1, 3, 1, 1.5, 4))
    assert step(found, EVEN).forward == 3 and step(found, EVEN).bubble == 3 * (1 + 1 + 1)  # of the other three


def test_a_product_by_hand():
    op = Op(name="x", block="mlp", kind="gemm", flops=2 * 64**3, nbytes=10**6, m=64, n=64, k=64)
    g0 = 1e9 * 1e15 / 312e12
    assert Prices(ROUND, constants=EVEN).op_seconds(op) == pytest.approx((2 * 64**3 + g0) / 0.85e15 + 1e-6)
    narrow = replace(op, n=8)
    assert Prices(ROUND, constants=EVEN).parts(narrow)[0] == pytest.approx((2 * 64**3 + g0) / (0.85e15 * 0.72))
    low = Prices(ROUND, "fp8", constants=EVEN)
    expected = (2 * 64**3 + 2 * g0) / (2e15 * 0.70) + (10**6 + 4 * 64 * 64) / 1e12
    assert low.op_seconds(op) == pytest.approx(expected)
    assert low.op_ps(op, op) == round(2 * low.op_seconds(op) * 1e12)
    assert low.parts(replace(op, block="logits")) == Prices(ROUND, constants=EVEN).parts(op)


@pytest.mark.parametrize(
    ("tp", "ranks", "near", "far", "latency"),
    [
        (4, 4, 2 * 0.75 * 10, 0.0, 2 * 3e-6),
        (16, 16, 2 * 15 / 16 * 10, 2 * 15 / 16 * 100 / 8, 2 * (2 * 5e-6 + 14e-6)),
    ],
)
def test_an_all_reduce_over_rings_by_hand(tp, ranks, near, far, latency):
    layout = Training(model=Model(**DENSE | {"heads": 16}), gbs=1, tp=tp).layout(ranks)
    comm = Comm(name="x", block="attn", collective="all_reduce", group="tp", size=10**12)
    assert Prices(ROUND, constants=EVEN).transfers(layout)(comm)[:3] == pytest.approx((near, far, latency))


def test_tokens_cross_the_fabric_once_for_all_experts_of_a_node():
    layout = Training(model=Model(**EXPERTS | {"experts": 16}), gbs=16, ep=16).layout(16)
    comm = Comm(name="x", block="moe", collective="all_to_all", group="ep", size=10**12)
    found = Prices(ROUND, constants=EVEN).transfers(layout)(comm)
    met = 2 * (1 - 0.5**2) / 2  # of two nodes, by two choices
    assert found[:3] == pytest.approx((15 / 16 * 10, met * 0.5 * 100, 5e-6))


@cache
def grid(experts: bool, schedule: str) -> tuple:
    """Arrays of layouts, all that keep the rules, and their places."""
    model = Model(**(EXPERTS if experts else DENSE))
    rng = np.random.default_rng(7)
    one = Training(model=model, seq=1024, gbs=64, schedule=schedule, overlap=Overlap(dp=True)).unchecked(32)
    count = 3000
    chosen = {
        "tp": rng.choice([1, 2, 4], count),
        "pp": rng.choice([1, 2, 4], count),
        "cp": rng.choice([1, 2], count),
        "ep": rng.choice([1, 2, 4] if experts else [1], count),
        "vp": rng.choice([1, 2] if schedule == "interleaved" else [2 if schedule == "zbv" else 1], count),
        "mbs": rng.choice([1, 2], count),
        "zero": rng.choice([0, 1, 2, 3], count),
        "sp": rng.random(count) < 0.5,
        "recompute": rng.choice(6, count),
    }
    chosen["recompute_part"] = np.where(chosen["recompute"] == 5, 300, 0)
    dp = 32 // (chosen["tp"] * chosen["pp"] * chosen["cp"])
    more = {"dp": dp, "zero_group": dp * chosen["cp"], "microbatches": np.maximum(64 // (dp * chosen["mbs"]), 1)}
    fixed = {key: np.full(count, getattr(one, key)) for key in ("ranks", "seq", "gbs", "etp")}
    layout = replace(one, **chosen, **more, **fixed)
    kept = np.flatnonzero(first_broken(layout) < 0)
    assert len(kept) > 100
    return replace(layout, **{k: v[kept] for k, v in layout.__dict__.items() if isinstance(v, np.ndarray)}), len(kept)


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
def test_arrays_give_what_single_layouts_give(experts, schedule):
    layout, count = grid(experts, schedule)
    prices = Prices(ROUND)
    together = step(terms(layout, prices), prices.constants)
    for index in range(0, count, 23):
        alone = step(terms(layout.at(index), prices), prices.constants)
        for field in fields(StepTime):
            both = np.broadcast_to(getattr(together, field.name), count)[index], getattr(alone, field.name)
            assert both[0] == pytest.approx(both[1], rel=1e-12, abs=1e-15), (field.name, layout.at(index))


@settings(max_examples=30)
@given(st.sampled_from(["inside", "outside", "memory_bandwidth", "peak"]), st.booleans(), st.floats(1.0, 8.0))
def test_a_faster_part_never_makes_a_step_slower(part, experts, times):
    layout, _ = grid(experts, "interleaved")
    if part in ("inside", "outside"):
        faster = replace(ROUND, **{part: getattr(ROUND, part) * times})
    else:
        rate = {"peak": {"bf16": int(10**15 * times)}, "memory_bandwidth": int(10**12 * times)}[part]
        faster = replace(ROUND, compute=CHIP.model_copy(update={part: rate}))
    before, after = (step(terms(layout, Prices(one)), Constants()).seconds for one in (ROUND, faster))
    assert (after <= before * (1 + 1e-9)).all()


def test_computation_is_the_sum_of_the_description():
    layout = Training(model=Model(**DENSE), seq=1024, gbs=4, recompute="full").layout(1)
    prices = Prices(ROUND, constants=EVEN)
    items = [*layers.forward(layout, "dense"), *layers.backward(layout, "dense")] * layout.model.layers
    items += [*layers.embedding(layout), *layers.logits(layout)]
    expected = layout.microbatches * sum(float(prices.op_seconds(item)) for item in items if isinstance(item, Op))
    found = step(terms(layout, prices), EVEN)
    assert found.forward + found.backward == pytest.approx(expected, rel=1e-12)
    assert found.seconds == pytest.approx(expected + prices.op_seconds(layers.optimizer(layout, 0)), rel=1e-12)


def test_slower_memory_costs_what_its_traffic_takes():
    layout = Training(model=Model(**DENSE), seq=1024, gbs=4).layout(1)
    times = [step(terms(layout, Prices(ROUND, constants=EVEN, slower=s)), EVEN).seconds for s in (1.0, 2.0, 3.0)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0]) and times[1] > times[0]


def test_machines_have_the_nodes_and_rates_of_their_presets():
    for name in preset_names("topology"):
        if preset(name).compute is not None:
            found = system(name)
            assert found.inside >= found.outside > 0 and found.node >= 8, name
    dgx = system_of(build({"preset": "dgx_a100", "nodes": 4}), preset("dgx_a100").compute)
    assert (dgx.node, dgx.inside, dgx.outside) == (8, 300e9, 25e9)
    assert (dgx.latency, dgx.far_latency) == pytest.approx((0.6e-6, 2.7e-6))
    torus = system("tpu_v5e")
    assert (torus.node, torus.inside, torus.outside) == (256, 200e9, 200e9)
    with pytest.raises(TopologyError, match="no machine"):
        system("nvlink3")


def test_a_single_npu_takes_the_time_of_its_computation():
    dgx, chip = {"preset": "dgx_a100"}, preset("dgx_a100").compute
    layout = Training(model=Model(**DENSE), seq=1024, gbs=4).layout(1)
    alone, one_of_many = (
        step(terms(layout, Prices(system_of(build(dgx | keys), chip), constants=SIMULATED)), SIMULATED)
        for keys in ({"nodes": 1, "npus": 1}, {"nodes": 2})
    )
    assert alone == one_of_many and alone.seconds > 0


def test_a_simulation_has_nominal_links_and_no_host():
    assert (SIMULATED.host, SIMULATED.nic, SIMULATED.nvlink, SIMULATED.interference) == (0, 1, 1, 0)
    assert Prices(ROUND, attention="fa2").attention_efficiency() == 0.5
    assert Prices(system("dgx_a100"), attention="fa1").attention_efficiency() == 0.33


#: Layouts of 16 ranks on two nodes, with data, tensor, context and pipeline parallelism of several kinds.
SIMULATIONS = [
    {"tp": 1, "zero": 0},
    {"tp": 2, "zero": 1},
    {"tp": 4, "zero": 1, "cp": 2},
    {"tp": 8, "zero": 3},
    {"tp": 1, "zero": 3, "overlap": {"dp": True}},
    {"tp": 4, "pp": 2, "zero": 1, "recompute": "full"},
    {"tp": 2, "pp": 4, "vp": 2, "zero": 0},
    {"tp": 8, "pp": 2, "zero": 1, "overlap": {"dp": True}},
]


@pytest.mark.slow
def test_closed_forms_meet_simulations_of_the_same_layouts():
    dgx, chip = build({"preset": "dgx_a100", "nodes": 2}), preset("dgx_a100").compute
    prices = Prices(system_of(dgx, chip), constants=SIMULATED)
    errors = []
    for keys in SIMULATIONS:
        layout = Training(model={"base": "llama3-8b", "layers": 8}, seq=2048, gbs=32, **keys).layout(16)
        simulated = run(training_workload(layout, prices), dgx).makespan / 1e12
        errors.append(abs(float(step(terms(layout, prices), SIMULATED).seconds) / simulated - 1))
    assert np.median(errors) < 0.015 and max(errors) < 0.05, errors


#: Layouts and the communication that may overlap, which is shorter than the computation beside it. Every boundary of
#: pipeline stages is one of nodes.
OVERLAPS = [
    ("llama3-8b", "tp", {"tp": 8}),
    ("llama3-8b", "tp", {"tp": 4, "pp": 2, "sp": False}),
    ("llama3-8b", "pp", {"pp": 4, "seq": 1024}),
    ("llama3-8b", "pp", {"pp": 4, "seq": 1024, "schedule": "gpipe"}),
    ("llama3-8b", "pp", {"pp": 2, "vp": 4}),
    ("mixtral-8x7b", "ep", {"ep": 8}),
    ("mixtral-8x7b", "ep", {"ep": 8, "tp": 2, "seq": 4096}),
]


@pytest.mark.parametrize(("model", "kind", "keys"), OVERLAPS)
def test_overlap_means_the_same_in_traces_and_closed_forms(model, kind, keys):
    nodes = max(keys.get("pp", 1), 2)
    dgx, chip = build({"preset": "dgx_a100", "nodes": nodes}), preset("dgx_a100").compute
    prices = Prices(system_of(dgx, chip), constants=SIMULATED)
    simulated, closed = [], []
    for overlaps in (False, True):
        keys = {"seq": 2048, "gbs": 64, **keys, "overlap": {kind: overlaps}}
        layout = Training(model={"base": model, "layers": 8, "vocab": 2048}, **keys).layout(8 * nodes)
        simulated.append(run(training_workload(layout, prices), dgx).makespan / 1e12)
        closed.append(float(step(terms(layout, prices), SIMULATED).seconds))
    assert simulated[1] < simulated[0] and closed[1] < closed[0]
    for one, other in zip(simulated, closed, strict=True):
        assert other == pytest.approx(one, rel=0.04)
    hidden = (simulated[0] - simulated[1]) / simulated[0]
    assert (closed[0] - closed[1]) / closed[0] == pytest.approx(hidden, abs=0.02)


def test_overlap_hides_no_more_than_computation_takes():
    tp = {"model": {"base": "llama3-8b", "layers": 4}, "tp": 16, "gbs": 4}  # over NICs
    dgx, chip = build({"preset": "dgx_a100", "nodes": 2}), preset("dgx_a100").compute
    prices = Prices(system_of(dgx, chip), constants=SIMULATED)
    without, beside = (
        step(terms(Training(**tp, overlap={"tp": one}).layout(16), prices), SIMULATED) for one in (False, True)
    )
    assert without.tp > 2 * (without.forward + without.backward)
    assert without.tp - beside.tp < without.forward + without.backward
