"""ASTRA-sim's shipped examples, rebuilt from their description, and the sample sets of other producers."""

from __future__ import annotations

import re

import pytest

from astrasim_py.astra_sim.input_set import Arguments, read_inputs
from astrasim_py.astra_sim.run_inputs import run_inputs
from astrasim_py.core.errors import AstraError

MIB = 2**20


def test_hgx_h100(folder):
    folder.network(kinds=("Switch",), bandwidth=400.0, latency=936.25)
    folder.system(preferred_dataset_splits=4, active_chunks_per_dimension=2, local_mem_bw=3350)
    result = folder.run([folder.collective(0, "ALL_REDUCE", MIB)], backend="congestion_aware")
    assert result.outcome.status == "done"
    assert max(result.finish_ns) == 57_426
    assert result.exposed_ns == result.finish_ns


def test_ring_all_gather_of_16(folder):
    folder.network(sizes=(16,))
    folder.system(preferred_dataset_splits=4)
    for backend in ("congestion_unaware", "congestion_aware"):
        result = folder.run([folder.collective(0, "ALL_GATHER", MIB)], backend=backend)
        assert set(result.finish_ns) == {323_560}


def ring_step(folder, rank: int, n: int, size: int, micros: int):
    """An injected ring All-Reduce of one rank: one chain, send → receive → reduce, then send → receive."""
    nodes, last = [], ()
    for step in range(2 * (n - 1)):
        base = 3 * step
        nodes.append(folder.send(base, (rank + 1) % n, size, last))
        nodes.append(folder.recv(base + 1, (rank - 1) % n, size, (base,)))
        last = (base + 1,)
        if step < n - 1:
            nodes.append(folder.compute(base + 2, last, micros=micros))
            last = (base + 2,)
    return nodes


def test_injected_ring_of_8(folder):
    folder.workload(*(ring_step(folder, rank, 8, MIB // 8, 7) for rank in range(8)), name="ring")
    folder.system(all_reduce_implementation_custom=["ring"])
    for size in (1000, MIB):  # the workload's size does not count
        result = folder.run([folder.collective(0, "ALL_REDUCE", size)])
        assert set(result.finish_ns) == {90_174}
        assert any(text.startswith("quirk injected-size") for text in result.warnings)


def sample_sets(golden):
    found: dict[str, int] = {}
    for file in sorted((golden / "chakra_samples").rglob("*.et")):
        match = re.fullmatch(r"(.*)\.(\d+)\.et", str(file))
        found[match[1]] = max(found.get(match[1], 0), int(match[2]) + 1)
    return found


#: Sets on which ASTRA-sim aborts: what is said instead.
REFUSED = {
    "BARRIER": "node 52: BARRIER is not simulated",
    "one_comm_recv_node": "node 60: a receive node lacks comm_src",
    "one_comm_send_node": "node 56: a send node lacks comm_dst",
    "one_metadata_node_all_types": "node 0: ASTRA-sim aborts on METADATA nodes",
    "allgather_rd": "node 0: a send node lacks comm_size",
    "allreduce_rdh": "node 0: a send node lacks comm_size",
    "u_allreduce_ring": "node 0: a send node lacks comm_size",
    "u_hier_allreduce": "node 21: a send node lacks comm_size",
}


@pytest.mark.slow
def test_every_sample_set_runs_or_names_the_node(golden, folder):
    sets = sample_sets(golden)
    assert len(sets) >= 25
    folder.memory("PER_NPU_MEMORY_EXPANSION", remote_mem_latency=500, remote_mem_bw=100)
    folder.system(preferred_dataset_splits=4, peak_perf=100)
    for prefix, ranks in sets.items():
        name = prefix.rsplit("/", 1)[1]
        folder.network(sizes=(ranks,))
        groups = f"{prefix}.json"
        given = {
            "system": folder.path / "system.json",
            "network": folder.path / "network.yml",
            "memory": folder.path / "memory.json",
            "groups": groups if "/stg/" in prefix else None,
        }
        try:
            result = run_inputs(read_inputs(Arguments(workload=prefix, **given)), engine="both")
        except AstraError as error:
            assert name in REFUSED and REFUSED[name] in str(error), (name, str(error))
            continue
        assert name not in REFUSED
        assert result.outcome.status == "done" and None not in result.finish_ns, name


@pytest.mark.parametrize("name", ["allreduce_rdh", "u_allreduce_ring", "u_hier_allreduce"])
def test_algorithms_in_chunks_are_injected_when_corrected(golden, folder, name):
    prefix = golden / "chakra_samples" / "collectiveapi" / name
    folder.system(all_reduce_implementation_custom=[str(prefix)])
    with pytest.raises(AstraError, match=r"node \d+: lacks comm_size"):
        folder.run([folder.collective(0, "ALL_REDUCE", MIB)])
    times = [max(folder.run([folder.collective(0, "ALL_REDUCE", s)], corrected=True).finish_ns) for s in (MIB, 4 * MIB)]
    assert times[0] * 2 < times[1] < times[0] * 4
