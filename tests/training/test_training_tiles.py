"""Training whose computation uses collectives by parts: the same work and bytes, in both engines; what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from training.test_training_traces import random_keys
from worlds.training import TINY, ByWork, fast, layout_of, problem_of, run
from worlds.training import whole as whole_set

from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.core.errors import ScenarioError
from astrasim_py.system.inlining import inline
from astrasim_py.topology import shapes
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.prices import Prices
from astrasim_py.training.software import software
from astrasim_py.training.strategy import Overlap
from astrasim_py.training.system import system
from astrasim_py.training.traces import training_workload
from astrasim_py.verification.workloads import verify_workload

#: Of flat rings, which the problems here have.
SIMULATED = replace(software("ideal").constants, rails=False)

MOE = TINY | {"experts": 8, "topk": 2, "moe_ffn": 128, "shared_ffn": 128}
PARTS = {"tp": "tiles", "dp": "buckets", "ep": "tiles"}
#: What runs where every collective has one part.
WHOLE = {"tiles": False, "buckets": True}
LAYOUTS = {
    "tensor": (4, {"tp": 4, "recompute": "full"}),
    "fine": (4, {"tp": 2, "nodes": "fine"}),
    "sharded": (4, {"dp": 4, "zero": 3, "recompute": "selective_op"}),
    "both": (4, {"tp": 2, "zero": 3, "recompute": "half"}),
    "experts": (4, {"model": MOE, "tp": 2, "ep": 4, "zero": 1}),
    "split": (4, {"tp": 2, "pp": 2, "microbatches": 3, "schedule": "zb_h1", "zero": 1}),
    "buckets": (4, {"dp": 4, "zero": 0, "bucket": "200 kB"}),
    "ring": (4, {"tp": 2, "cp": 2, "zero": 2}),
}


def layouts(ranks: int, keys: dict, **overlap):
    """The layout with parts, and with whole collectives."""
    keys = {"microbatches": 2, **keys}
    own = {kind: word for kind, word in PARTS.items() if (kind, keys.get("zero")) != ("ep", 3)}
    whole = {kind: WHOLE[word] for kind, word in own.items()}
    return layout_of(ranks, **keys, overlap=own | overlap), layout_of(ranks, **keys, overlap=whole)


def work(workload) -> list[tuple[int, ...]]:
    """Picoseconds, FLOPs and bytes of computation, and bytes of communication, of each rank."""
    found = []
    for rank in range(workload.ranks):
        trace = workload.trace(rank)
        computes = trace.type == NodeType.COMP
        sums = [trace.column(name)[computes].sum() for name in ("duration_ps", "num_ops", "tensor_size")]
        sent = trace.type != NodeType.COMP
        found.append((*sums, *(trace.column(name)[sent].sum() for name in ("comm_size", "coll_size"))))
    return found


def used(workload, name: str) -> int:
    return int((workload.traces[0].column(name) != MISSING).sum())


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_leave_work_and_bytes_as_they_are(name):
    parts, whole = (training_workload(one, ByWork()) for one in layouts(*LAYOUTS[name]))
    assert work(parts) == work(whole)
    assert used(parts, "produces") and used(whole, "produces") == used(whole, "consumes") == 0
    every = whole_set(parts)
    assert lint(every.traces, every.groups) == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_engines_agree_on_parts(name):
    ranks, keys = LAYOUTS[name]
    slow = shapes.FullyConnected(npus=ranks, bandwidth=Fraction(10**10), latency=1000).build()
    run(training_workload(layouts(ranks, keys)[0], ByWork()), slow, engine="both", level="messages")


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_wait_for_what_they_use(name):
    ranks, keys = LAYOUTS[name]
    workload = training_workload(layouts(ranks, keys)[0], ByWork())
    traces = inline(problem_of(workload, fast(ranks)))[0].traces
    verdict = verify_workload(traces)
    assert verdict.passes and verdict.correct and not verdict.unknown, verdict.problems
    assert sum(int((trace.column("produces") != MISSING).sum()) for trace in traces)


@pytest.mark.slow
def test_parts_of_random_layouts_leave_work_and_bytes_as_they_are():
    rng = random.Random(3)
    for _ in range(12):
        ranks, keys = random_keys(rng)
        keys |= {"sp": True, "routing": {"kind": "balanced"}}
        overlap = {kind: rng.choice((word, False, True)) for kind, word in PARTS.items()}
        overlap["ep"] = overlap["ep"] if keys["zero"] < 3 else False
        whole = {kind: WHOLE.get(word, word) for kind, word in overlap.items()}
        one, other = (layout_of(ranks, **keys | {"overlap": each}) for each in (overlap, whole))
        assert work(training_workload(one, ByWork())) == work(training_workload(other, ByWork())), keys


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_part_is_the_whole_collective(name):
    one, whole = layouts(*LAYOUTS[name], tiles=1)
    mine, theirs = (training_workload(each, ByWork()) for each in (one, whole))
    for trace, other in zip(mine.traces, theirs.traces, strict=True):
        assert trace.names == other.names and np.array_equal(trace.data_deps.ids, other.data_deps.ids)
    assert work(mine) == work(theirs)


@pytest.mark.parametrize("name", ["tensor", "fine", "both", "experts"])
def test_on_a_fast_network_parts_cost_their_overhead_alone(name):
    ranks, keys = LAYOUTS[name]
    prices = ByWork()
    free, whole = (run(training_workload(one, prices), fast(ranks)) for one in layouts(ranks, keys))
    dear = training_workload(layouts(ranks, keys, tile_overhead=10**9)[0], prices)
    trace = dear.traces[0]
    tiles = sum(" tile " in text for text in trace.names)
    found = run(dear, fast(ranks))
    # Every message takes a picosecond, and no chain has more than 10,000 of them.
    assert abs(free.makespan - whole.makespan) < 10**4
    assert tiles and abs(found.makespan - free.makespan - tiles * 10**9) < 10**4


def test_tiles_slow_down_by_the_speed_that_communication_leaves():
    free, slow = (
        training_workload(layouts(4, {"tp": 4}, comm_slows_compute=speed)[0], ByWork()).traces[0] for speed in (1, 0.5)
    )
    tiles = np.array([" tile " in name for name in free.names])
    times = [trace.column("duration_ps") for trace in (free, slow)]
    assert np.array_equal(times[1], np.where(tiles, 2, 1) * times[0])


def test_tiles_hide_tensor_parallel_collectives():
    """With twice the time of computation of that of its collectives, most of them is hidden."""
    topology = shapes.FullyConnected(npus=4, bandwidth=Fraction(4 * 10**11), latency=0).build()
    keys = {"tp": 4, "model": TINY | {"layers": 2, "vocab": 64}, "seq": 256, "microbatches": 1}
    makespan = {
        word: run(training_workload(layout_of(4, **keys, overlap={"tp": word}), ByWork()), topology).makespan
        for word in (False, "tiles")
    }
    busy = work(training_workload(layout_of(4, **keys), ByWork()))[0][0]
    assert busy < makespan["tiles"] < makespan[False]
    assert makespan["tiles"] - busy < (makespan[False] - busy) * 0.7


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_gradients_and_parameters_by_parts_take_no_longer_on_a_network_of_their_own(zero):
    topology = shapes.FullyConnected(npus=4, bandwidth=Fraction(10**9), latency=10**6).build()
    keys = {"dp": 4, "zero": zero, "microbatches": 2, "bucket": "300 kB"}
    found = {
        word: run(training_workload(layout_of(4, **keys, overlap={"dp": word}), ByWork()), topology).makespan
        for word in (True, "buckets")
    }
    assert found["buckets"] < found[True]


def test_parts_of_a_bucket_wait_for_the_products_that_make_them():
    layout = layout_of(4, dp=4, zero=0, microbatches=1, model=TINY | {"layers": 1}, overlap={"dp": "buckets"})
    trace = training_workload(layout, ByWork()).traces[0]
    names = trace.names
    waits = {
        names[row]: [names[parent] for parent in trace.data_deps.of(row)]
        for row in range(len(trace))
        if "L0.gradients part" in names[row]
    }
    # Of 2 * 16,384 weights of the MLP and 4,096 + 12,288 of attention, in the order of the backward pass.
    fc2, fc1 = "L0.mlp.fc2.wgrad mb0", "L0.mlp.fc1.wgrad mb0"
    proj, qkv = "L0.attn.proj.wgrad mb0", "L0.attn.qkv.wgrad mb0"
    assert list(waits.values()) == [[fc2], [fc2, fc1], [fc1, proj], [qkv]]


def test_the_closed_form_takes_parts_for_overlap():
    machine = Prices(system("dgx_h100"), constants=SIMULATED)
    for kind, word in PARTS.items():
        keys = {"model": "llama3-8b", "tp": 4, "gbs": 16, "zero": 1}
        one, other = (layout_of(16, **keys, overlap={kind: value}) for value in (word, True))
        assert step(terms(one, machine), SIMULATED) == step(terms(other, machine), SIMULATED)


@pytest.mark.parametrize(
    "overlap, message",
    [
        ({"tp": "buckets"}, '"buckets" is not one of false, true, tiles'),
        ({"tiles": 4}, "tiles: without tiles; write tp: tiles or dp: buckets or ep: tiles"),
        ({"dp": "buckets", "tile_overhead": "1 us"}, "tile_overhead: without tiles; write tp: tiles or ep: tiles"),
        ({"tp": "tiles", "comm_slows_compute": 2}, "comm_slows_compute: is more than 1"),
        ({"tp": "tiles", "tiles": 0}, "tiles"),
    ],
)
def test_wrong_keys_are_refused(overlap, message):
    with pytest.raises(ScenarioError) as error:
        Overlap(**overlap)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "keys, overlap, message",
    [
        ({"tp": 2, "sp": False}, {"tp": "tiles"}, "tp: tiles needs sequence parallelism"),
        ({"model": MOE, "ep": 2, "zero": 3}, {"ep": "tiles"}, "ep does not go with zero 3"),
        ({"model": MOE, "ep": 2, "etp": 2}, {"ep": "tiles"}, "ep: tiles does not go with etp 2"),
        ({"model": MOE, "ep": 2, "routing": {"kind": "random"}}, {"ep": "tiles"}, "ep: tiles needs equal routing"),
    ],
)
def test_layouts_without_parts_are_refused(keys, overlap, message):
    layout = layout_of(4, **{"microbatches": 1, **keys}, overlap=overlap)
    with pytest.raises(ScenarioError, match=message):
        training_workload(layout, ByWork())


def test_the_roofline_has_no_cost_of_tiles():
    layout = layout_of(2, tp=2, microbatches=1, overlap={"tp": "tiles", "tile_overhead": 5})
    with pytest.raises(ScenarioError, match="the roofline prices it later"):
        training_workload(layout)
    free = replace(layout, overlap=Overlap(tp="tiles"))
    assert used(training_workload(free), "produces")


@pytest.mark.parametrize("ranks, most, parts", [(8, None, 8), (64, None, 8), (12, None, 6), (6, 16, 12), (7, 4, 1)])
def test_parts_divide_the_ranks_or_are_divided_by_them(ranks, most, parts):
    assert Overlap(tp="tiles", tiles=most).parts_of(ranks) == parts
