"""Agreement with ASTRA-sim's own results on injected algorithms, to the nanosecond."""

from __future__ import annotations

import csv
import json
from fractions import Fraction

import pytest
import yaml
from hypothesis import settings

from astrasim_py.chakra.et_io import read_prefix, read_traces
from astrasim_py.chakra.workload import Workload
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes

SHAPES = {"Ring": shapes.Ring, "FullyConnected": shapes.FullyConnected, "Switch": shapes.Switch}
MODELS = {"congestion_unaware": "analytical", "congestion_aware": "store_and_forward"}
SETS = ("custom_ring_64npus", "custom_direct_64npus", "custom_ring_small", "two_coll_custom_8npus")


class Injected:
    """The algorithms that a system file injects, by collective."""

    def __init__(self, by_collective: dict) -> None:
        self.by_collective = by_collective

    def select(self, collective, size, ranks, group, root=0, **_):
        """The one injected for this collective."""
        return self.by_collective[collective]


def rows(golden):
    """The 1-D rows in which every collective is injected, on the official backends."""
    with open(golden / "astra_sim" / "cases.csv", newline="") as file:
        for row in csv.DictReader(file):
            network = yaml.safe_load((golden / "astra_sim" / row["network"]).read_text())
            whole = row["set"] != "two_coll_custom_8npus" or row["algorithm"] == "both_custom"
            if row["set"] in SETS and row["backend"] in MODELS and len(network["topology"]) == 1 and whole:
                yield row, network


def problem(golden, row, network, known: dict) -> Problem:
    folder = golden / "astra_sim"
    system = json.loads((folder / row["system"]).read_text())
    injected = {}
    for collective in ("all_reduce", "all_gather"):
        key = f"{collective.replace('_', '-')}-implementation-custom"
        if key in system:
            prefix = folder / system[key][0]
            if prefix not in known:
                traces = tuple(read_prefix(prefix))
                known[prefix] = Algorithm(name=key, collective=collective, ranks=len(traces), traces=traces, chunks=0)
            injected[collective] = known[prefix]
    npus = network["npus_count"][0]
    rate = Fraction(str(network["bandwidth"][0])) * 2**30
    latency = int(Fraction(str(network["latency"][0])) * 1000)
    file = folder / "workloads_same_on_every_rank" / f"{row['workload']}.et"
    return Problem(
        topology=SHAPES[network["topology"][0]](npus=npus, bandwidth=rate, latency=latency).build(),
        jobs=(
            Job(
                workload=Workload(traces=tuple(read_traces([file] * npus)), groups={}),
                placement=tuple(range(npus)),
                algorithms=Injected(injected),
            ),
        ),
        network=NetworkModel(model=MODELS[row["backend"]]),
        semantics=Semantics.astra_sim(),
    )


NIGHTLY = settings.get_current_profile_name() == "nightly"


@pytest.mark.slow
def test_injected_algorithms_take_as_long_as_in_astra_sim(golden):
    cases = list(rows(golden))
    assert len(cases) >= 60
    known: dict = {}
    for row, network in cases:
        # Large ones on both engines take minutes; the order of events does not depend on the size.
        engine = "both" if network["npus_count"][0] <= 16 or NIGHTLY else "compiled"
        records = simulate(problem(golden, row, network, known), engine=engine, level="summary")
        assert records.outcome.status == "done"
        expected = [int(t) for t in row["t_ns_per_npu"].split(";")]
        expected = expected * len(records.finish) if len(expected) == 1 else expected
        times = [t // 1000 for t in records.finish.tolist()]
        exposed = [t // 1000 for t in records.exposed_comm.tolist()]
        assert times == expected, row
        shown = [int(t) for t in row["exposed_comm_ns_per_npu"].split(";")]
        assert exposed == (shown * len(exposed) if len(shown) == 1 else shown), row
