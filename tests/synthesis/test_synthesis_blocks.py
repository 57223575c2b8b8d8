"""Exchanges of unequal blocks: custom algorithms that keep their contracts, and take the claimed time."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.simulation import simulate
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.portfolio import find_schedule
from astrasim_py.synthesis.search.multi_start import Effort
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.verification.verifier import verify

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
SHAPES = ({"shape": "mesh", "dims": [2, 3]}, {"shape": "switch", "npus": 4})
COSTS = (CostModel(), CostModel(link_busy="latency+bytes"), CostModel(model="store_and_forward"))


def sizes(n: int, unit: int, seed: int = 1) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.choice((0, 1, 3, 8)) * unit for _ in range(n)] for _ in range(n)]


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_are_right_and_take_the_claimed_time(shape, tmp_path):
    topology = ap.build_topology(**shape, **LINK)
    for cost in COSTS:
        for per_block in (1, 2):
            demand = Demand.blocks(sizes(topology.npus, 4096), per_block, unit=4096)
            schedule = find_schedule(Network.of(topology, cost=cost), demand, Effort(rounds=3, jobs=1))
            algorithm = emit(schedule)
            assert algorithm.chunks * 4096 == demand.size
            ap.write_algorithm(tmp_path / "x.npz", algorithm)
            for each in (algorithm, ap.read_algorithm(tmp_path / "x.npz")):
                assert verify(each).passes
                problem = ap.collective("custom", demand.size, topology, algorithm=each)
                problem = replace(problem, network=NetworkModel(model=cost.model, link_busy=cost.link_busy))
                assert simulate(problem, engine="simpy", level="summary").makespan == schedule.time


def test_the_bytes_are_those_that_were_stated():
    topology = ap.build_topology(**SHAPES[1], **LINK)
    blocks = sizes(4, 1000)
    schedule = find_schedule(Network.of(topology), Demand.blocks(blocks), Effort(rounds=1, jobs=1))
    algorithm = emit(schedule)
    sent = 0
    for rank, trace in enumerate(algorithm.traces):
        sent += int(algorithm.message_bytes(rank, schedule.demand.size)[trace.type == NodeType.COMM_SEND].sum())
    assert sent == sum(size for a, row in enumerate(blocks) for b, size in enumerate(row) if a != b)


def test_what_is_too_fine_is_refused():
    topology = ap.build_topology(**SHAPES[1], **LINK)
    blocks = [[10**6 + 7 * a + b for b in range(4)] for a in range(4)]
    schedule = find_schedule(Network.of(topology), Demand.blocks(blocks), Effort(rounds=1, jobs=1))
    with pytest.raises(AlgorithmError, match="units of 1 B"):
        emit(schedule)
    with pytest.raises(AlgorithmError, match="do not divide"):
        Demand.blocks(blocks, unit=10)
