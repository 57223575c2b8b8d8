"""Parameters built from Python: exact numbers or text with units, and one line about what is wrong."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest

from astrasim_py.core.errors import AstraError
from astrasim_py.system.machine_models import ComputeModel, Limits, MemoryModel, MscclModel, NetworkModel
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.shapes import Ring, Torus

GB = Fraction(10**9)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NetworkModel(model="x"), 'network.model: "x" is not a network model; write one of cut_through'),
        (lambda: NetworkModel(link_bussy=1), 'network.link_bussy: is not a key here; did you mean "link_busy"?'),
        (lambda: NetworkModel(msccl={"slots": 0}), "network.msccl.slots: 0 is less than 1"),
        (lambda: MscclModel(latency_ps={"LL256": 1}), "network.msccl.latency.LL256: is not a key here"),
        (lambda: ComputeModel(roofline=True), "compute.roofline: the roofline needs a peak"),
        (lambda: MemoryModel(), 'memory: "bandwidth" is missing'),
        (lambda: Limits(max_events=0), "limits.max_events: 0 is less than 1"),
        (lambda: Semantics(dependencies="x"), 'semantics.dependencies: "x" is not one of data, data+ctrl'),
        (lambda: Semantics(cpu_slots=0), "semantics.cpu_slots: 0 is not one of unlimited"),
        (lambda: Semantics(gamma=Fraction(-1)), "semantics.gamma: -1 is not a time per size"),
        (lambda: Ring(npus=3), '"bandwidth" is missing'),
        (lambda: Torus(dims=[2, "a"], bandwidth=GB, latency=3), 'dims[1]: "a" is not a whole number'),
    ],
)
def test_a_wrong_value_is_said_in_one_line(make, said):
    with pytest.raises(AstraError) as caught:
        make()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_text_and_exact_numbers_mean_the_same():
    assert MemoryModel(bandwidth="1 GB/s", latency_ps="1 us") == MemoryModel(bandwidth=GB, latency=10**6)
    assert Semantics(zero_duration="1 ns") == Semantics(zero_duration_ps=1000)
    text = Ring(npus=3, bandwidth="1 GB/s", latency="1 us").build()
    assert text.digest() == Ring(npus=3, bandwidth=GB, latency=10**6).build().digest()


def test_named_rules_are_filled_in_and_unlimited_is_none():
    assert Semantics.astra_sim().comm_slots == 1
    assert Semantics.astra_sim(comm_slots=None).comm_slots is None
    assert Semantics().comm_slots is None and Semantics().rounding == "up_ps"


@pytest.mark.parametrize("value", [NetworkModel(msccl=MscclModel(slots=3)), Semantics.astra_sim(), Limits()])
def test_parameters_survive_pickling(value):
    assert pickle.loads(pickle.dumps(value)) == value


def test_dependencies_are_said_by_name_or_by_a_set_of_rules():
    said = [Semantics(), Semantics(dependencies=None), Semantics(dependencies="data"), Semantics.astra_sim()]
    said.append(Semantics.astra_sim(dependencies="data"))
    assert [rules.said_dependencies for rules in said] == [None, None, "data", "data+ctrl", "data"]
    assert Semantics(dependencies="data") == Semantics()
