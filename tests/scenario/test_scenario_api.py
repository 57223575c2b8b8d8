"""``import astrasim_py as ap``."""

from __future__ import annotations

import pytest

import astrasim_py as ap


def test_every_public_name_is_there_and_documented():
    for name in ap.__all__:
        value = getattr(ap, name)
        assert value is not None
        if name != "__version__":
            assert value.__doc__, name
    assert set(ap.__all__) <= set(dir(ap))
    with pytest.raises(AttributeError):
        _ = ap.nothing


def test_a_scenario_runs_from_python(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: demo\ntopologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}\n"
        "workload: [{all_reduce: {size: 1 MiB}}]\n"
    )
    result = ap.run(path, out=tmp_path / "out", overrides=["topologies.r.npus=8"])
    assert result.exit_code == 0
    assert result.rows[0]["npus"] == 8
    assert (tmp_path / "out" / "demo" / "summary.csv").is_file()


@pytest.mark.parametrize("algorithm", [None, "direct", "built"])
def test_a_collective_of_one_s_own(algorithm):
    topology = ap.build_topology(shape="fully_connected", npus=4, bandwidth="50 GB/s", latency="500 ns")
    chosen = ap.build_algorithm("ring", "all_reduce", 4) if algorithm == "built" else algorithm
    records = ap.simulate(ap.collective("all_reduce", 2**20, topology, algorithm=chosen))
    assert records.outcome.status == "done"
    assert records.collective["type"].tolist() == ["all_reduce"]


def test_a_collective_takes_every_field_of_the_network():
    topology = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    times = []
    for network in ({}, {"link_busy": "latency+bytes"}, {"send_completes": "injected", "msccl": {"slots": 1}}):
        problem = ap.collective("all_to_all", 2**20, topology, model="cut_through", **network)
        assert problem.network.model_fields_set == {"model", *network}
        times.append(ap.simulate(problem).makespan)
    assert times[1] > times[0]
    with pytest.raises(ap.AstraError, match="link_bsuy"):
        ap.collective("all_to_all", 2**20, topology, link_bsuy="bytes")


def test_an_algorithm_is_verified_from_python():
    assert ap.verify(ap.build_algorithm("ring", "all_gather", 5)).correct is True


@pytest.mark.parametrize("module", ["astrasim_py", "astrasim_py.api"])
def test_examples_in_docstrings_hold(module):
    import doctest
    import importlib

    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted and not result.failed


@pytest.mark.parametrize("form", ["mine", "mine.npz", "mine.xml"])
def test_an_algorithm_of_one_s_own_is_written_and_read_in_every_format(tmp_path, form):
    @ap.algorithm("all_reduce", chunks=1)
    def star(a):
        for rank in range(1, a.n):
            a[0][0] += a[rank][0]
        for rank in range(1, a.n):
            a[rank][0] = a[0][0]

    made = star(4)
    ap.write_algorithm(tmp_path / form, made)
    read = ap.read_algorithm(tmp_path / form)
    assert (read.collective, read.ranks, read.chunks, read.messages) == ("all_reduce", 4, 1, 6)
    assert ap.verify(read).passes
    network = ap.build_topology(shape="fully_connected", npus=4, bandwidth="50 GB/s", latency="500 ns")
    times = {ap.simulate(ap.collective("all_reduce", "1 MiB", network, algorithm=a)).makespan for a in (made, read)}
    assert len(times) == 1
