"""The host and the software of collectives in traces: simulated steps equal their closed forms, on machines in every
state.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds.training import layout_of, run

from astrasim_py.builders.registry import build as build_algorithm
from astrasim_py.builders.registry import default_algorithm
from astrasim_py.chakra.schema import NodeType
from astrasim_py.report.explain import explain
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.hardware import preset
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.machine_states import machine_state
from astrasim_py.training.network import NetworkCosts
from astrasim_py.training.prices import Prices
from astrasim_py.training.software import software
from astrasim_py.training.system import system_of
from astrasim_py.training.traces import training_workload

#: Of the measured rows of nanotron, with fewer sequences.
SMALL = {
    "layers": 16,
    "hidden": 2048,
    "ffn": 8192,
    "heads": 32,
    "kv_heads": 32,
    "vocab": 131072,
    "gated": True,
    "tied": True,
}
BY_LAYERS = {"stage_cut": "layers"}
LAYOUTS = {
    "tp 8": (8, {"tp": 8, "gbs": 8}),
    "tp 8 pp 4": (32, {"tp": 8, "pp": 4, "gbs": 32}),
    "few microbatches": (32, {"tp": 8, "pp": 4, "gbs": 6}),
    "tp 16": (16, {"tp": 16, "gbs": 4}),
    "dp 64 zero 1": (64, {"zero": 1, "gbs": 128}),
    "mbs 1": (16, {"tp": 4, "dp": 4, "zero": 1, "gbs": 32}),
    "mbs 16": (16, {"tp": 4, "dp": 4, "zero": 1, "gbs": 64, "mbs": 16}),
    "experts": (16, {"ep": 8, "zero": 2, "gbs": 32, "model": {"base": "mixtral-8x7b", "layers": 4}, **BY_LAYERS}),
    "zb_h1": (32, {"tp": 8, "pp": 4, "schedule": "zb_h1", "gbs": 32, **BY_LAYERS}),
    "zero 3": (16, {"zero": 3, "gbs": 32, "overlap": {"dp": True}}),
    "cp 4": (16, {"cp": 4, "tp": 4, "gbs": 8, "seq": 8192}),
}


#: Layouts with what other software does: gradients beside computation, uneven attention, chunks.
OTHERS = {
    "gradients beside": ("pytorch", 16, {"tp": 2, "zero": 1, "gbs": 32, "overlap": {"dp": True}}),
    "zero 3": ("pytorch", 16, {"tp": 4, "zero": 3, "gbs": 16}),
    "zero 2": ("torchtitan", 16, {"tp": 8, "zero": 2, "gbs": 16}),
    "bound by gradients": ("torchtitan", 16, {"zero": 2, "gbs": 64}),
    "interleaved": ("megatron", 32, {"tp": 4, "pp": 4, "vp": 2, "dp": 2, "zero": 1, "gbs": 16}),
    "uneven attention": ("torchtitan", 16, {"cp": 4, "tp": 4, "gbs": 4}),
    "bound by weights": ("torchtitan", 16, {"zero": 3, "gbs": 16}),
    "experts": ("megatron", 16, {"ep": 8, "zero": 1, "gbs": 32, "model": {"base": "mixtral-8x7b", "layers": 4}}),
}


def machine(ranks: int, keys: dict, state: str, name: str = "nanotron"):
    """Layout, network and prices of a training on H100; the links have the shares of their rates that software gets."""
    keys_of, constants = software(name).keys, software(name).constants
    topology = build(
        {
            "preset": "dgx_h100",
            "nodes": max(ranks // 8, 1),
            "nvlink_bandwidth": f"{450 * constants.nvlink} GB/s",
            "nic_bandwidth": f"{50 * constants.nic} GB/s",
        }
    )

    def select(collective: str, role: str, npus: tuple[int, ...]):
        return build_algorithm(default_algorithm(collective), collective, len(npus))

    layout = layout_of(ranks, **{"model": SMALL, "seq": 4096, **keys_of, **keys})
    measured = replace(system_of(topology, preset("dgx_h100").compute), state=machine_state("dgx_h100", state))
    rates = {"constants": replace(constants, nvlink=1.0, nic=1.0), "network": NetworkCosts(topology, select)}
    return layout, topology, Prices(measured, layout.dtype, layout.attention, **rates)


def spans(records, workload, rank: int) -> dict[str, tuple[int, int]]:
    """Begin and end of each node of a rank, by its name."""
    mine = (records.node["rank"] == rank) & (records.node["instance"] < 0)
    names = workload.traces[rank].names  # ids are rows
    columns = (records.node[key][mine].tolist() for key in ("node", "start", "end"))
    return {names[row]: (start, end) for row, start, end in zip(*columns, strict=True)}


@pytest.mark.parametrize("state", ["sound", "degraded"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_simulated_steps_equal_their_closed_forms(name, state):
    layout, topology, prices = machine(*LAYOUTS[name], state)
    workload = training_workload(layout, prices)
    simulated = run(workload, topology).makespan / 1e12
    assert float(step(terms(layout, prices), prices.constants).seconds) == pytest.approx(simulated, rel=0.03)


@pytest.mark.parametrize("state", ["sound", "degraded"])
@pytest.mark.parametrize("name", OTHERS)
def test_overlap_costs_the_same_in_traces_and_closed_forms(name, state):
    of, ranks, keys = OTHERS[name]
    layout, topology, prices = machine(ranks, {"model": {"base": "llama3-8b", "layers": 8}} | keys, state, of)
    simulated = run(training_workload(layout, prices), topology).makespan / 1e12
    assert float(step(terms(layout, prices), prices.constants).seconds) == pytest.approx(simulated, rel=0.02)


def test_each_tensor_parallel_rank_sends_its_part_or_all():
    layout, _, prices = machine(32, LAYOUTS["tp 8 pp 4"][1], "sound")
    whole = replace(prices, constants=replace(prices.constants, scatter=False))
    sizes = [training_workload(layout, one).trace(0).column("comm_size") for one in (prices, whole)]
    codes = training_workload(layout, prices).trace(0).type == NodeType.COMM_SEND
    assert codes.any() and (sizes[1][codes] == 8 * sizes[0][codes]).all()


@pytest.mark.parametrize("name", ["tp 8 pp 4", "experts", "zb_h1"])
def test_engines_and_folded_runs_agree_on_hosts_and_delays(name):
    ranks, keys = LAYOUTS[name]
    model = keys.get("model", SMALL | {"layers": 4})
    layout, topology, prices = machine(ranks, {**keys, "gbs": keys["gbs"] // 2, "model": model}, "degraded")
    workload = training_workload(layout, prices)
    assert run(workload, topology, fold=True).makespan == run(workload, topology, engine="both").makespan


def test_the_host_launches_a_layer_beside_it():
    layout, topology, prices = machine(8, LAYOUTS["tp 8"][1], "degraded")
    workload = training_workload(layout, prices)
    times = spans(run(workload, topology, level="nodes"), workload, 0)
    for suffix, passes in (("fwd", 1), ("bwd", 2)):
        calls = {"fwd": 4, "bwd": 6}[suffix]  # with sequence parallelism weight gradients need inputs once more
        cost, latency = prices.constants, 8 * prices.system.state.tp_member[0]
        host = passes * cost.host * cost.host_layer + calls * latency
        begin, end = times[f"L3.host.{suffix} mb2"]
        assert end - begin == pytest.approx(host * 1e12, rel=1e-9)
        inside = [span for name, span in times.items() if name.startswith("L3.") and name.endswith(f"{suffix} mb2")]
        assert begin == min(start for start, _ in inside)
        following = {"fwd": "L4.attn", "bwd": "L2.mlp"}[suffix]
        nexts = [start for name, (start, _) in times.items() if name.startswith(following) and f".{suffix}" in name]
        assert end in nexts  # the GPU was done before


def test_delays_come_before_collectives_and_messages():
    layout, _, prices = machine(64, {"tp": 4, "pp": 2, "dp": 8, "zero": 1, "gbs": 16}, "sound")
    trace = training_workload(layout, prices).trace(0)
    names, duration = list(trace.names), trace.column("duration_ps")
    sends = [row for row, name in enumerate(names) if name.startswith("send") and ".delay" not in name]
    reductions = [row for row, name in enumerate(names) if ".gradients." in name and ".delay" not in name]
    assert len(sends) == layout.microbatches and len(reductions) > 8
    for row in sends:
        (before,) = trace.data_deps.of(row)
        assert duration[before] == prices.message_delay_ps(layout)
    parts = [max(int(duration[row]) for row in trace.data_deps.of(row)) for row in reductions]
    # A bucket is a bucket, whichever layers it is of: delays go by bytes.
    sizes = trace.column("coll_size")[reductions]
    assert np.allclose(np.array(parts) / sizes, parts[0] / sizes[0])


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_ideal_machine_has_no_such_nodes(name):
    ranks, keys = LAYOUTS[name]
    layout, _, prices = machine(ranks, keys, "sound")
    ideal = Prices(replace(prices.system, state=None), constants=software("ideal").constants)
    found = [part for part in training_workload(layout, ideal).trace(0).names if ".host" in part or ".delay" in part]
    assert found == []


def test_time_of_software_is_neither_computation_nor_communication():
    layout, topology, prices = machine(8, {**LAYOUTS["tp 8"][1], "gbs": 2}, "degraded")
    workload = training_workload(layout, prices)
    names, duration = workload.traces[0].names, workload.traces[0].column("duration_ps")
    computing = [row for row, name in enumerate(names) if ".host." not in name and "iteration" not in name]
    records = run(workload, topology, engine="both", level="messages")
    computation, sent = int(np.maximum(duration[computing], 0).sum()), int(records.exposed_comm[0])
    assert int(records.compute[0]) == computation
    assert 0 < sent < records.makespan - computation
    spent = explain(records).totals
    assert spent["software"] > 0.9 * records.makespan and sum(spent.values()) == records.makespan
