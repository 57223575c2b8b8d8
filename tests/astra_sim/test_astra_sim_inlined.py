"""Inlined workloads run by ASTRA-sim's rules as the algorithms injected there do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astrasim_py import build_topology
from astrasim_py.builders.registry import build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.program.interchange import algorithm_traces
from astrasim_py.system.inlining import inline
from astrasim_py.system.problem import Job, Problem
from astrasim_py.workload.items import Collective, Compute
from astrasim_py.workload.microbenchmarks import generate


class One:
    def __init__(self, algorithm) -> None:
        self.algorithm = algorithm

    def select(self, *_, **__):
        return self.algorithm


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling"])
@pytest.mark.parametrize("size", [2**20, 3000])
def test_an_inlined_set_takes_the_time_of_the_injected_algorithm(folder, ranks, name, size):
    algorithm = replace(build(name, "all_reduce", ranks), verdict=True)
    items = [Compute(time=5_000_000), Collective(type="all_reduce", size=size), Compute(time=3_000_000)]
    topology = build_topology(shape="ring", npus=ranks, bandwidth="50 GB/s", latency="500 ns")
    workload = generate(items, ranks)
    job = Job(workload=workload, placement=tuple(range(ranks)), algorithms=One(algorithm))
    made, *_ = inline(Problem(topology=topology, jobs=(job,)))
    folder.network(sizes=(ranks,))
    write_prefix(folder.path / "work", made.traces)
    inlined = folder.run()
    write_prefix(folder.path / "work", workload.traces)
    write_prefix(folder.path / "one", algorithm_traces(algorithm, size), dialect="absolute")
    folder.system(all_reduce_implementation_custom=["one"])
    injected = folder.run()
    assert inlined.outcome.status == "done"
    if name == "direct" and ranks > 2:
        # Sends of a workload hold the one slot of communication there, sends of a collective none.
        assert min(inlined.finish_ns) > max(injected.finish_ns)
        return
    # The node that stands for the collective is a recorded duration of 0, which takes 1 ns there.
    assert inlined.finish_ns == tuple(time + 1 for time in injected.finish_ns)
