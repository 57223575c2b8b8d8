"""Simulated steps equal what one writes on the board: rings of context, experts, ZeRO 3, pipelines with everything."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from worlds.training import TINY, ByHand, layout_of, run

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.records import Records
from astrasim_py.core.units import transfer_ps
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.topology import from_keys, shapes
from astrasim_py.training import layer_writer, stages
from astrasim_py.training.layers import Op
from astrasim_py.training.schedules import BACKWARD, FORWARD, programs, virtual_stage
from astrasim_py.training.traces import training_workload

RATE = Fraction(10**9)
ALPHA = 1_000_000


def full(ranks: int):
    return shapes.FullyConnected(npus=ranks, bandwidth=RATE, latency=ALPHA).build()


def span(workload: Workload, records: Records, rank: int, part: str) -> int:
    """Picoseconds from the first start to the last end of a rank's nodes with `part` in their names."""
    node = records.node
    names = workload.traces[rank].names  # ids are rows
    mine = np.flatnonzero((node["rank"] == rank) & (node["instance"] < 0)).tolist()
    chosen = [row for row in mine if part in names[int(node["node"][row])]]
    return max(int(node["end"][row]) for row in chosen) - min(int(node["start"][row]) for row in chosen)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("step", [10_000_000, 40_000_000, 200_000_000])
def test_ring_of_context_parallelism(ranks, step):
    layout = layout_of(ranks, model=TINY | {"layers": 1}, seq=48 * ranks, cp=ranks, microbatches=1)
    prices = ByHand({("core", "F"): ranks * step, ("core", "I"): 2 * ranks * step})
    workload = training_workload(layout, prices)
    records = run(workload, full(ranks), level="nodes")
    keys_values = 2 * layout.tokens * 64 * layout.element  # of all heads
    for name, own, size in (("fwd", step, keys_values), ("bwd", 2 * step, 2 * keys_values)):
        arrives = ALPHA + transfer_ps(size, RATE)
        for rank in range(ranks):
            assert span(workload, records, rank, f"L0.attn.core.{name}") == own + (ranks - 1) * max(own, arrives)


@pytest.mark.parametrize("ranks", [2, 4])
def test_blocking_experts(ranks):
    model = TINY | {"layers": 1, "experts": 8, "topk": 2, "moe_ffn": 128}
    layout = layout_of(ranks, model=model, ep=ranks, dp=ranks, microbatches=1)
    prices = ByHand({("router", "F"): 30_000_000, ("experts_fc1", "F"): 50_000_000})
    workload = training_workload(layout, prices)
    records = run(workload, full(ranks), level="nodes")
    exchange = simulate(collective("all_to_all", layout.tokens * 2 * 64 * 2, full(ranks))).makespan
    assert exchange == ALPHA + transfer_ps(layout.tokens * 2 * 64 * 2 // ranks, RATE)
    router = span(workload, records, 0, "L0.moe.router.fwd")
    experts = span(workload, records, 0, "L0.moe.experts_fc1.fwd")
    both = span(workload, records, 0, "L0.moe.fwd.all_to_all")
    assert (router, experts, both) == (30_000_000, 50_000_000, 50_000_000 + 2 * exchange)


def test_overlapped_experts_hide_the_exchanges():
    model = TINY | {"layers": 4, "experts": 8, "topk": 2, "moe_ffn": 128}
    times = {(name, part): 60_000_000 for name in ("router", "experts_fc1") for part in "FI"}
    found = {}
    for overlap in (False, True):
        layout = layout_of(4, model=model, ep=4, dp=4, microbatches=8, zero=0, overlap={"ep": overlap})
        found[overlap] = run(training_workload(layout, ByHand(times)), full(4)).makespan
    compute = 8 * 4 * 4 * 60_000_000
    exchange = ALPHA + transfer_ps(layout.tokens * 2 * 64 * 2 // 4, RATE)
    gradients = found[False] - compute - 8 * 4 * 4 * exchange
    # Nothing is beside the first forward and the last backward pass, nor beside the first and last exchange of a pair.
    assert found[True] == compute + (2 * 4 * 2 + 2 * 7) * exchange + gradients


@pytest.mark.parametrize(("stages", "chunks"), [(2, 1), (4, 1), (4, 2)])
def test_overlapped_experts_leave_the_bubble_of_the_pipeline(stages, chunks):
    model = TINY | {"layers": 8, "experts": 8, "topk": 2, "moe_ffn": 128}
    times = {(name, part): 60_000_000 for name in ("router", "experts_fc1") for part in "FI"}
    keys = {"model": model, "ep": 2, "dp": 2, "pp": stages, "vp": chunks, "microbatches": 16, "zero": 0}
    found = []
    for overlap in (False, True):
        layout = layout_of(2 * stages, **keys, overlap={"ep": overlap})
        found.append(run(training_workload(layout, ByHand(times)), full(2 * stages)).makespan)
    compute = 16 * 8 // stages * 4 * 60_000_000
    bubble = compute // 16 * (stages - 1) // chunks
    assert compute + bubble < found[1] < found[0]


@pytest.mark.parametrize("compute, exact", [(400_000_000, True), (50_000_000, False)])
def test_zero_3_gathers_one_layer_ahead(compute, exact):
    ranks, count = 4, 6
    layout = layout_of(ranks, model=TINY | {"layers": count, "vocab": 768}, dp=ranks, zero=3, microbatches=1)
    ops = {("qkv", "F"), ("qkv", "I"), ("embedding", "F"), ("embedding", "W"), ("logits", "F"), ("logits", "I")}
    forward, backward = compute, 2 * compute
    times = {key: forward if key[1] == "F" else backward for key in ops}
    size = 64 * 768 * 2  # of each layer, and of the embedding and the logits
    assert {comm.size for kind in ("dense", "embedding") for comm in stages.gradient_comms(layout, kind)} == {size}
    gather, scatter = (
        simulate(collective(kind, size, full(ranks))).makespan for kind in ("all_gather", "reduce_scatter")
    )
    units = count + 2
    form = gather + units * max(forward, gather) + units * max(backward, gather + scatter) + scatter
    makespan = run(training_workload(layout, ByHand(times)), full(ranks)).makespan
    if exact:
        assert forward > gather and backward > gather + scatter
        assert makespan == form
    else:
        # The form counts a reduction beside the first backward pass and a gather beside the last, which are not there.
        assert form - gather - scatter <= makespan < form


def pipeline(p: int, m: int, forward: int, backward: int, message: int) -> np.ndarray:
    """When each stage ends its last backward pass under 1F1B, by the recurrence over its blocks."""
    left = []
    for stage in range(p):
        ahead = min(p - 1 - stage, m)
        rows = [("F", k) for k in range(ahead)]
        for k in range(m):
            rows += ([("F", ahead + k)] if ahead + k < m else []) + [("B", k)]
        left.append(rows)
    done, free = {}, [0] * p
    while any(left):
        for stage in range(p):
            while left[stage]:
                kind, k = left[stage][0]
                source = stage - 1 if kind == "F" else stage + 1
                if 0 <= source < p and (kind, k, source) not in done:
                    break
                arrived = done[kind, k, source] + message if 0 <= source < p else 0
                free[stage] = max(free[stage], arrived) + (forward if kind == "F" else backward)
                done[kind, k, stage] = free[stage]
                left[stage].pop(0)
    return np.array(free)


@pytest.fixture
def only_layers(monkeypatch):
    """Leave out the collectives of embedding and logits."""
    for name in ("embedding", "logits"):
        stated = getattr(layer_writer, name)
        monkeypatch.setattr(
            layer_writer, name, lambda layout, f=stated: tuple(x for x in f(layout) if isinstance(x, Op))
        )
    stated = stages.gradient_comms
    monkeypatch.setattr(stages, "gradient_comms", lambda o, kind: stated(o, kind) if kind == "dense" else ())


def fully_sharded(programs: tuple, place, times: tuple[int, int], gather: int, scatter: int, message: int) -> int:
    """When all is done, by the recurrence over layers: each starts the gather of the one that runs next on its stage.

    `place(stage, chunk)`: virtual stage of a chunk, of two layers each, with an embedding before the first and logits
    after the last, which are layers that take no time and have no weights.
    """
    left = [[(int(kind), int(k), place(s, int(c))) for kind, k, c in program] for s, program in enumerate(programs)]
    depth = 1 + max(virtual for rows in left for *_, virtual in rows)

    def units(kind: int, virtual: int) -> list[bool]:
        """Whether each unit of a pass is a layer."""
        found = [False] * (virtual == 0) + [True, True] + [False] * (virtual == depth - 1)
        return found if kind == FORWARD else found[::-1]

    done, compute, network, there = {}, [0] * len(left), [0] * len(left), [0] * len(left)

    def gathered(stage: int, layer: bool, start: int) -> None:
        if layer:
            network[stage] = max(network[stage], start) + gather
        there[stage] = network[stage] if layer else 0

    for stage, rows in enumerate(left):
        gathered(stage, units(rows[0][0], rows[0][2])[0], 0)
    while any(left):
        for stage, rows in enumerate(left):
            while rows:
                kind, k, virtual = rows[0]
                source = virtual - 1 if kind == FORWARD else virtual + 1
                if 0 <= source < depth and (kind, k, source) not in done:
                    break
                arrived = done[kind, k, source] + message if 0 <= source < depth else 0
                rows.pop(0)
                own = units(kind, virtual)
                after = [*own[1:], *([units(rows[0][0], rows[0][2])[0]] if rows else [])]
                for at, layer in enumerate(own):
                    start = max(compute[stage], there[stage], arrived)
                    if at < len(after):
                        gathered(stage, after[at], start)
                    compute[stage] = start + times[kind] * layer
                    if kind == BACKWARD and layer:
                        network[stage] = max(network[stage], compute[stage]) + scatter
                done[kind, k, virtual] = compute[stage]
    return max(*compute, *network)


@pytest.mark.parametrize("m, work", [(4, 50_000_000), (8, 50_000_000), (8, 400_000_000)])
@pytest.mark.parametrize(
    "p, v, schedule", [(2, 1, "gpipe"), (4, 1, "1f1b"), (2, 2, "interleaved"), (4, 3, "interleaved")]
)
def test_zero_3_gathers_what_runs_next_in_the_program(p, v, schedule, m, work, only_layers):
    """Also where the next layer to run is of another chunk, or of the other pass."""
    keys = {"schedule": schedule} | ({"vp": v} if v > 1 else {})
    layout = layout_of(4 * p, model=TINY | {"layers": 2 * p * v}, pp=p, dp=4, zero=3, microbatches=m, **keys)
    size = 12 * 64 * 64 * 2
    prices = ByHand({("qkv", "F"): work, ("qkv", "I"): 2 * work})
    gather, scatter = (simulate(collective(kind, size, full(4))).makespan for kind in ("all_gather", "reduce_scatter"))
    message = ALPHA + transfer_ps(layout.tokens * 64 * 2, RATE)
    order = programs(schedule, p, m, v)
    wanted = fully_sharded(
        order, lambda s, c: virtual_stage(schedule, p, s, int(c)), (work, 2 * work), gather, scatter, message
    )
    assert run(training_workload(layout, prices), full(4 * p)).makespan == wanted


@pytest.mark.parametrize("m", [1, 4, 9])
def test_tensor_pipeline_and_data_parallel_step(m, only_layers):
    """Against a recurrence, on a network without contention; the reductions are longer than what they run beside."""
    t, p, d, count = 2, 4, 2, 2  # count layers a stage
    layout = layout_of(
        t * p * d,
        model=TINY | {"layers": p * count},
        tp=t,
        pp=p,
        dp=d,
        zero=1,
        sp=False,
        microbatches=m,
        seq=4,
        recompute="full",
        overlap={"dp": True},
    )
    parts = {("qkv", "F"): 300_000, ("fc1", "F"): 500_000, ("optimizer", "O"): 7_000_000}
    parts |= {(name, "R"): parts[name, "F"] for name in ("qkv", "fc1")}
    parts |= {(name, "I"): 2 * parts[name, "F"] for name in ("qkv", "fc1")}
    topology = full(t * p * d)
    network = NetworkModel(model="analytical")

    def alone(kind: str, size: int) -> int:
        return simulate(collective(kind, size, full(2), model="analytical")).makespan

    hidden = 4 * 64 * 2
    reduce = alone("all_reduce", hidden)
    forward = count * (800_000 + 2 * reduce)
    backward = count * (3 * 800_000 + 4 * reduce)
    gradients = 12 * 64 * 64 // t * 2
    scatter, gather = alone("reduce_scatter", gradients), alone("all_gather", gradients)
    assert scatter > backward // count
    ends = pipeline(p, m, forward, backward, ALPHA + transfer_ps(hidden // t, RATE))
    # The first reduction of a stage starts a layer before its end; the others follow without a gap.
    wanted = int(ends.max()) - (count - 1) * (backward // count) + count * scatter + 7_000_000 + count * gather
    records = run(training_workload(layout, ByHand(parts), gather="end"), topology, network=network)
    assert records.makespan == wanted


#: Operations of one layer of Transformer-1T on an A100 with TP 8, as stated with the published makespan.
ONE_T = {
    ("qkv", "F"): 7_341_633_934,
    ("fc1", "F"): 12_772_375_802,
    ("qkv", "R"): 7_341_633_934,
    ("fc1", "R"): 12_772_375_802,
    ("fc1", "I"): 25_544_751_604,
    ("qkv", "I"): 14_683_267_868,
    ("optimizer", "O"): 17_015_953_610,
    ("embedding", "F"): 121_002_336,
    ("logits", "F"): 3_132_592_782,
    ("logits", "I"): 6_265_185_564,
}
#: A step with 16 micro-batches on 128 nodes of 8, rings over NVLink and NICs.
ONE_T_MAKESPAN = 32_583_368_583_978


def one_t(nodes: int, npus: int):
    keys = {"nvlink_bandwidth": "300 GB/s", "nvlink_latency": "300 ns", "nic_bandwidth": "25 GB/s"}
    keys |= {"shape": "dgx", "nodes": nodes, "npus": npus, "nic_latency": "1.35 us"}
    layout = layout_of(
        1024,
        model="megatron-1t",
        seq=2048,
        microbatches=16,
        tp=8,
        pp=8,
        zero=1,
        sp=False,
        recompute="full",
        overlap={"dp": True},
    )
    return training_workload(layout, ByHand(ONE_T), gather="end"), from_keys.build(keys, "test", written=True)


@pytest.mark.nightly
def test_transformer_1t_on_1024_npus(only_layers):
    workload, topology = one_t(128, 8)
    assert run(workload, topology).makespan == ONE_T_MAKESPAN


def test_transformer_1t_on_1024_npus_folded(only_layers):
    records = run(*one_t(128, 8), level="links", fold=True)
    assert records.makespan == ONE_T_MAKESPAN
    assert records.fold.exact and (records.fold.ranks, records.fold.copies) == (16, 128)
    assert len(records.finish) == 1024


def test_transformer_1t_with_tensor_parallel_groups_folded(only_layers):
    """All-reduces inside a node are computations of their own time; one rank stands for eight."""
    workload, topology = one_t(128, 1)
    reduce = 14 * (2 * 300_000 + transfer_ps(104_857_600 // 8, Fraction(300 * 10**9)))
    folded = {}
    for trace in dict.fromkeys(workload.traces):
        codes, names = trace.group_of()
        inside = codes == names.index("tp")
        columns = {
            name: np.where(inside, MISSING, trace.column(name)) for name in ("comm_type", "comm_size", "coll_size")
        }
        for name in ("comm_src", "comm_dst"):
            peers = trace.column(name)
            columns[name] = np.where(peers == MISSING, MISSING, peers // 8)
        folded[trace] = trace.replace(
            type=np.where(inside, NodeType.COMP, trace.type),
            duration_ps=np.where(inside, reduce, trace.column("duration_ps")),
            pg_name=(np.where(inside, -1, codes).astype(np.int32), names),
            **columns,
        )
    firsts = range(0, 1024, 8)
    groups = {name: tuple(r // 8 for r in ranks) for name, ranks in workload.groups.items() if ranks[0] % 8 == 0}
    small = Workload(
        tuple(folded[workload.traces[rank]] for rank in firsts),
        {name: ranks for name, ranks in groups.items() if name.startswith("dp")},
        roles={"dp": [workload.roles["dp"][rank] for rank in firsts]},
        shifts=[workload.shifts[rank] // 8 for rank in firsts],
    )
    assert run(small, topology).makespan == ONE_T_MAKESPAN
