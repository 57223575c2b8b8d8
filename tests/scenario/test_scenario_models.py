"""Models in scenarios: training, inference and recommendation, the memory of NPUs, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from astrasim_py.core.document import parse_document
from astrasim_py.core.errors import AstraError
from astrasim_py.core.fields import Time
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import check_document
from astrasim_py.system.machine_models import NpuModel
from astrasim_py.training.inference import Inference, inference_memory
from astrasim_py.training.memory import OTHER_BYTES, effective_bandwidth
from astrasim_py.training.recommendation import Recommendation, recommendation_memory

TRAINING = "training: {model: {base: llama3-8b, layers: 4}, seq: 1024, gbs: 2, recompute: full}"
HEAD = """name: models
topologies:
  dgx: {preset: dgx_a100, nodes: 1, npus: %d}
compute: {preset: dgx_a100%s}
workload: {%s}
"""


class Launched(NpuModel):
    """What a new key looks like: its default is a number, as written values are texts with units."""

    launch: Time = 0


def test_a_new_key_of_compute_may_have_a_number_as_its_default():
    assert Launched.model_validate({"preset": "dgx_a100"}, context={"written": True}).launch == 0


def point(workload: str, compute: str = "", npus: int = 2, more: str = ""):
    text = HEAD % (npus, compute, workload) + more
    return expand(check_document(parse_document(text, "s.yaml"), Path("s.yaml")))[0]


def time_ps(*args, **keys) -> int:
    return simulate(prepare(point(*args, **keys)).problem, level="summary").makespan


def refused(*args, **keys) -> str:
    with pytest.raises(AstraError) as caught:
        prepare(point(*args, **keys))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    return lines[0]


EXPANDED = ", memory: 16 GB, expanded_memory: {size: 100 GB, bandwidth: 200 GB/s"


def test_memory_that_is_not_needed_costs_nothing():
    assert time_ps(TRAINING) == time_ps(TRAINING, ", expanded_memory: {size: 1 TB, bandwidth: 1 GB/s}")


def test_uniform_expanded_memory_is_a_slower_memory():
    found = estimate(point(TRAINING, EXPANDED + "}"))
    slow = effective_bandwidth(found["memory_total_bytes"], 16e9, 2.039e12, 200e9)
    instead = time_ps(TRAINING, f", memory: 1 TB, memory_bandwidth: {int(slow)} B/s")
    assert time_ps(TRAINING, EXPANDED + "}") == pytest.approx(instead, rel=1e-9)  # whole bytes a second
    assert instead > 1.1 * time_ps(TRAINING)
    assert found["capacity_bytes"] == 116 * 10**9
    assert sum(found["parts_s"].values()) == pytest.approx(found["step_s"])


def test_placed_expanded_memory_adds_the_time_of_what_moves():
    found = estimate(point(TRAINING, EXPANDED + ", policy: placement}"))
    # Only the optimizer's state goes out, once to and once fro.
    outside = found["memory_total_bytes"] - 16 * 10**9
    assert outside < found["memory_bytes"]["optimizer"]
    moved = 2 * outside / 200e9
    assert found["parts_s"]["memory"] == pytest.approx(moved)
    longer = time_ps(TRAINING, EXPANDED + ", policy: placement}") - time_ps(TRAINING)
    assert longer == pytest.approx(moved * 1e12, abs=1)


def test_latency_of_expanded_memory_is_paid_by_every_operation():
    slow, more = (time_ps(TRAINING, EXPANDED + f", latency: {latency}}}") for latency in ("0 s", "1 us"))
    operations = (more - slow) / 10**6
    assert operations == int(operations) and operations > 50


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (", memory: 16 GB", "more than 14.4 GB (16.0 GB less"),
        (", memory: 16 GB, expanded_memory: {size: 1 GB, bandwidth: 1 GB/s}", "more than 15.4 GB (17.0 GB less"),
    ],
)
def test_what_exceeds_both_memories_is_refused(compute, said):
    assert said in refused(TRAINING, compute)
    assert time_ps(TRAINING + ", memory: ignore", compute) > 0


INFERENCE = "inference: {model: {base: llama3-8b, layers: 4}, prefill: {tp: 2}, decode: {dp: 2}, mbs: 2, waves: 2}"
DLRM = "recommendation: {model: dlrm-mlperf, gbs: 4096}"


@pytest.mark.parametrize(
    ("workload", "keys", "said"),
    [
        (TRAINING + ", times: roofline", {"compute": EXPANDED + "}"}, "no time by the roofline"),
        (DLRM, {"compute": EXPANDED + ", policy: placement}"}, "write policy: uniform"),
        (DLRM.replace("4096", "4097"), {}, "2 ranks do not divide gbs 4097; write gbs: 4096"),
        (
            DLRM,
            {"compute": ", memory: 8 GB"},
            "is tables with 24.1 GB; take more NPUs, or expanded_memory",
        ),
        (DLRM.replace("gbs: 4096", "gbs: 4096, dtype: fp32"), {}, "fp16"),
        ("recommendation: {model: dlrm, gbs: 1}", {}, 'no model "dlrm"'),
        (INFERENCE, {"npus": 8}, "pools of 2 and 2 ranks are not the 8 of the job; write ranks: 4"),
        (INFERENCE.replace("dp: 2", "dp: 2, tp: 3"), {"npus": 8}, "tp 3 does not divide"),
        (INFERENCE.replace("mbs: 2", "mbs: 3"), {"npus": 4}, "write an mbs that is a multiple of 2"),
        (INFERENCE, {"npus": 4, "compute": ", memory: 5 GB"}, "more than 4.5 GB (5.0 GB less"),
        (INFERENCE.replace("dp: 2", "cp: 2"), {"npus": 4}, "write cp: 1; a larger tp or dp of decode shares the cache"),
        (TRAINING, {"more": "groups: {a: [0, 1]}"}, "the model has groups of its own; drop it"),
        (TRAINING, {"more": "algorithms: {all_reduce: {builder: ring, when: {group: pd}}}"}, 'no group is called "pd"'),
    ],
)
def test_what_is_refused_says_what_to_write(workload, keys, said):
    assert said in refused(workload, **keys)


def test_memory_is_refused_where_no_model_fills_it():
    text = HEAD % (2, ", memory: 80 GB", "")
    text = text.replace("workload: {}", "workload: [{all_reduce: {size: 1 MiB}}]")
    with pytest.raises(AstraError, match="only the memory of a model is compared with it"):
        check_document(parse_document(text, "s.yaml"), Path("s.yaml"))
    unknown = HEAD % (2, "", TRAINING)
    unknown = unknown.replace("preset: dgx_a100}\nw", "expanded_memory: {size: 1 GB, bandwidth: 1 GB/s}}\nw")
    with pytest.raises(AstraError, match="needs the size of the local memory"):
        check_document(parse_document(unknown, "s.yaml"), Path("s.yaml"))


def test_algorithms_are_chosen_by_role():
    training = TRAINING.replace("gbs: 2", "gbs: 4, tp: 2, sp: false")
    both, tp, dp = (
        f"algorithms: {{all_reduce: [{case}{{builder: ring}}]}}"
        for case in (
            "",
            "{builder: ring, chunks: 4, when: {group: tp}}, ",
            "{builder: ring, chunks: 4, when: {group: dp}}, ",
        )
    )
    assert len({time_ps(training, npus=4, more=more) for more in (both, tp, dp)}) == 3


def test_memory_of_inference_is_weights_and_cache():
    spec = Inference.model_validate(
        {"model": {"base": "llama3-8b", "layers": 4}, "prefill": {"tp": 2}, "decode": {"dp": 2}, "mbs": 2, "waves": 3}
    )
    prefill, decode = spec.layouts(4)
    assert (prefill.tokens, prefill.microbatches, decode.mbs, decode.seq) == (4096, 3, 1, 1)
    found = inference_memory(decode, 3, 2056)
    assert found["weights"] == 2 * decode.model.params_total
    assert found["cache"] == 3 * 2056 * 4 * 2 * 8 * 128 * 2
    assert inference_memory(prefill, 3, 2056)["cache"] == found["cache"] // 2


def test_memory_of_a_recommendation_model_is_its_tables():
    spec = Recommendation.model_validate({"model": "dlrm-mlperf", "gbs": 4096})
    found = recommendation_memory(spec.model, 8, spec.batch(8), **spec.sizes)
    assert found["tables"] == 188_000_000 // 8 * 128 * 2
    assert found["optimizer"] == 188_000_000 // 8 * 4 + 12 * sum(spec.model.mlp_params)
    assert found["gradients"] == 4 * sum(spec.model.mlp_params)
    kept = sum(found.values()) - found["framework"]
    assert found["framework"] - OTHER_BYTES == pytest.approx(0.08 * kept, rel=1e-6)


def test_inference_and_recommendation_run_on_the_prices_of_the_npu():
    slow = ", memory_bandwidth: 200 GB/s"
    for workload, npus in ((INFERENCE, 4), (DLRM, 2)):
        assert time_ps(workload, npus=npus, compute=slow) > 2 * time_ps(workload, npus=npus)
        assert time_ps(workload + ", times: roofline", npus=npus) > 0


def test_recommendation_with_expanded_memory_looks_rows_up_more_slowly():
    local, expanded = 20, Fraction(100 * 10**9)
    spec = Recommendation.model_validate({"model": "dlrm-mlperf", "gbs": 4096})
    peak = sum(recommendation_memory(spec.model, 2, 2048, **spec.sizes).values())
    slow = effective_bandwidth(peak, local * 10**9, 2.039e12, float(expanded))
    compute = f", memory: {local} GB, expanded_memory: {{size: 100 GB, bandwidth: 100 GB/s}}"
    instead = time_ps(DLRM, f", memory: 1 TB, memory_bandwidth: {int(slow)} B/s")
    assert time_ps(DLRM, compute) == pytest.approx(instead, rel=1e-6)
