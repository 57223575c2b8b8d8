"""What collectives take on a network is what they take in simulation, all groups of a role at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from worlds.training import problem_of

from astrasim_py.builders.registry import build as build_algorithm
from astrasim_py.builders.registry import default_algorithm
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction
from astrasim_py.topology import build
from astrasim_py.topology.grid import group_dims
from astrasim_py.training.network import NetworkCosts

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
TOPOLOGIES = {
    "dgx": {"preset": "dgx_a100", "nodes": 4, "npus": 4},
    "torus": {"shape": "torus", "dims": [4, 4], **LINK},
    "leaf_spine": {"shape": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 2, **LINK},
    "ring": {"shape": "ring", "npus": 16, **LINK},
    "full": {"shape": "fully_connected", "npus": 16, **LINK},
}
SIZE = 2**24
CALLS = [("ring", "all_gather"), ("ring", "all_reduce"), ("direct", "all_to_all"), ("halving_doubling", "all_reduce")]
CALLS += [("hierarchical", "reduce_scatter")]
#: What queues in front of shared uplinks decides there, and bits of ranks are far apart on a ring.
NEAR = {"leaf_spine": 0.13, "ring": 0.04}


def simulated(topology, algorithm, collective: str, members: int, stride: int) -> float:
    """Seconds of a collective of all groups at once."""
    ranks = topology.npus
    groups = [tuple(range(k, k + members * stride, stride)) for k in range(ranks) if k // stride % members == 0]
    kind = next(code for code, name in COLLECTIVE_OF_CODE.items() if name == collective)
    trace = ExecutionTrace.from_columns(
        node_id=[0], type=NodeType.COMM_COLL, pg_name=["role"], is_cpu_op=0, comm_type=kind, coll_size=SIZE
    )
    named = {f"role.{index}": group for index, group in enumerate(groups)}
    of = {rank: name for name, group in named.items() for rank in group}
    roles = {"role": [of[rank] for rank in range(ranks)]}
    workload = Workload((trace,) * ranks, named, roles=roles, shifts=[0] * ranks)
    problem = problem_of(workload, topology)
    table = AlgorithmTable({collective: [Case(source=FromFunction(lambda *_: algorithm))]})
    records = simulate(replace(problem, jobs=(replace(problem.jobs[0], algorithms=table),)), level="summary")
    assert records.outcome.status == "done"
    return records.makespan / 1e12


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize(("builder", "collective"), CALLS)
def test_a_collective_takes_what_it_takes_in_simulation(name, builder, collective):
    topology = build(TOPOLOGIES[name])
    for members, stride in ((4, 1), (4, 4), (8, 2)):
        npus = tuple(range(0, members * stride, stride))
        options = {"dims": group_dims(topology, npus)} if builder == "hierarchical" else {}
        algorithm = build_algorithm(builder, collective, members, **options)
        cost = NetworkCosts(topology, lambda *_, made=algorithm: made).cost(collective, "dp", members, stride)
        found = simulated(topology, algorithm, collective, members, stride)
        assert cost.rate * SIZE + cost.latency == pytest.approx(found, rel=NEAR.get(name, 0.01)), (members, stride)


def test_messages_of_a_chain_do_not_go_around():
    network = NetworkCosts(
        build(TOPOLOGIES["torus"]), lambda name, role, npus: build_algorithm(default_algorithm(name), name, 4)
    )
    chain, ring = (network.cost(kind, "pp", 4, 1) for kind in ("chain", "ring"))
    assert chain.rate == ring.rate == 1 / 50e9 and chain.busy.sum() == 3 / 4 * ring.busy.sum()
