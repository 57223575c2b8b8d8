"""What `network: {model: fluid}` costs on the compiled engine: many flows at once, and flows that come over time.

python benchmarks/flows.py              # a table, CPU seconds of the run
python benchmarks/flows.py --long       # with 100,000 flows at once: many minutes
"""

from __future__ import annotations

import argparse
import random

import numpy as np

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics

RATE, LARGEST = 50 * 10**9, 2**20
#: Source, destination, bytes, start in ps.
Message = tuple[int, int, int, int]


def network(hosts: int, spines: int = 16, ecmp: bool = False):
    """Leaves of 16 hosts; 16 spines are without oversubscription."""
    link = {"bandwidth": f"{RATE} B/s", "latency": "1 us", "routing": {"ecmp": ecmp}}
    return ap.build_topology(shape="leaf_spine", leaves=hosts // 16, hosts_per_leaf=16, spines=spines, **link)


def all_pairs(hosts: int, seed: int | None = None) -> list[Message]:
    """Every host sends to every other; `seed`: random sizes."""
    sizes = random.Random(seed)
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    return [(a, b, LARGEST if seed is None else sizes.randrange(1, LARGEST), 0) for a, b in pairs]


def random_pairs(hosts: int, count: int, load: float | None = None) -> list[Message]:
    """Random sizes between random hosts: all at once, or arriving at a `load` of the hosts' links."""
    drawn, now, messages = random.Random(1), 0.0, []
    for _ in range(count):
        if load is not None:
            now += drawn.expovariate(load * hosts * RATE / (LARGEST / 2))
        source = drawn.randrange(hosts)
        target = (source + drawn.randrange(1, hosts)) % hosts
        messages.append((source, target, drawn.randrange(1, LARGEST), int(now * 10**12)))
    return messages


def trace(rank: int, messages: list[tuple[int, Message]]) -> ExecutionTrace:
    """The messages of a rank, each behind a computation until its start. Tags are their numbers."""
    rows, parents = [], []
    for tag, (source, target, nbytes, start) in messages:
        if source == rank:
            parents += [[], [len(rows)]]
            rows += [(NodeType.COMP, -1, -1, -1, -1, start), (NodeType.COMM_SEND, source, target, nbytes, tag, 0)]
        else:
            parents.append([])
            rows.append((NodeType.COMM_RECV, source, target, nbytes, tag, 0))
    kind, src, dst, nbytes, tags, start = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    ptr = np.concatenate([[0], np.cumsum([len(p) for p in parents])]).astype(np.int64)
    return ExecutionTrace.from_columns(
        node_id=np.arange(len(rows), dtype=np.uint64),
        type=kind.astype(np.int8),
        data_deps=Csr(ptr, np.array([row for own in parents for row in own], dtype=np.uint64)),
        duration_ps=start,
        comm_src=src,
        comm_dst=dst,
        comm_size=nbytes,
        comm_tag=tags,
    )


def seconds(topology, messages: list[Message]) -> float:
    """CPU seconds of a run."""
    own: list[list[tuple[int, Message]]] = [[] for _ in range(topology.npus)]
    for tag, message in enumerate(messages):
        for end in message[:2]:
            own[end].append((tag, message))
    workload = Workload(traces=tuple(trace(rank, mine) for rank, mine in enumerate(own)), groups={})
    job = Job(workload=workload, placement=tuple(range(topology.npus)), algorithms=None)
    free = Semantics.native(cpu_slots=None, compute_slots=None)
    problem = Problem(topology=topology, jobs=(job,), network=NetworkModel(model="fluid"), semantics=free)
    return ap.simulate(problem, engine="compiled", level="summary").cpu_s


CASES = {
    "all to all of 64, equal sizes": lambda: (network(64), all_pairs(64)),
    "all to all of 64, equal sizes, 4:1": lambda: (network(64, 4), all_pairs(64)),
    "all to all of 512, equal sizes, ECMP": lambda: (network(512, ecmp=True), all_pairs(512)),
    "all to all of 64, random sizes": lambda: (network(64), all_pairs(64, 1)),
    "all to all of 64, random sizes, 4:1": lambda: (network(64, 4), all_pairs(64, 1)),
    "1,024 random flows of 256 hosts at once": lambda: (network(256), random_pairs(256, 1024)),
    "100,000 flows of 256 hosts, load 0.3": lambda: (network(256), random_pairs(256, 100_000, 0.3)),
    "100,000 flows of 256 hosts, load 0.6": lambda: (network(256), random_pairs(256, 100_000, 0.6)),
}
LONG = {"100,000 random flows of 4,096 hosts at once": lambda: (network(4096), random_pairs(4096, 100_000))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="run what takes many minutes, too")
    cases = CASES | (LONG if parser.parse_args().long else {})
    seconds(network(32), all_pairs(32))
    print("| case | CPU s |\n|---|---|")
    for name, made in cases.items():
        print(f"| {name} | {seconds(*made()):.3f} |", flush=True)


if __name__ == "__main__":
    main()
