"""A folder with ASTRA-sim's files, written by the test itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astrasim_py.astra_sim.input_set import Arguments, Inputs, read_inputs
from astrasim_py.astra_sim.run_inputs import AstraResult, run_inputs
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.schema import MISSING, CommType, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace

NATIVE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def trace(nodes) -> ExecutionTrace:
    """A trace of ``(id, NodeType, parents, {attribute: value})``; ``micros`` and ``group`` are attributes, too."""
    names = list(dict.fromkeys(key for *_, more in nodes for key in more if key not in ("micros", "group")))
    ends = [0]
    for _, _, parents, _ in nodes:
        ends.append(ends[-1] + len(parents))
    return ExecutionTrace.from_columns(
        node_id=[node for node, *_ in nodes],
        type=[kind for _, kind, *_ in nodes],
        data_deps=Csr(ends, [parent for _, _, parents, _ in nodes for parent in parents]),
        duration_micros=[more.get("micros", 0) for *_, more in nodes],
        pg_name=[more.get("group") for *_, more in nodes] if any("group" in n[3] for n in nodes) else None,
        **{name: [more.get(name, MISSING) for *_, more in nodes] for name in names},
    )


class Folder:
    """ASTRA-sim's files in a folder: an 8-NPU ring with ring algorithms, unless told otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.network()
        self.system()
        self.memory()

    @staticmethod
    def compute(node, parents=(), **more):
        return (node, NodeType.COMP, parents, {"is_cpu_op": 0, **more})

    @staticmethod
    def collective(node, kind, size, parents=(), **more):
        return (
            node,
            NodeType.COMM_COLL,
            parents,
            {"comm_type": CommType[kind], "comm_size": size, "is_cpu_op": 0, **more},
        )

    @staticmethod
    def send(node, dst, size, parents=(), tag=0, **more):
        return (node, NodeType.COMM_SEND, parents, {"comm_dst": dst, "comm_size": size, "comm_tag": tag, **more})

    @staticmethod
    def recv(node, src, size, parents=(), tag=0, **more):
        return (node, NodeType.COMM_RECV, parents, {"comm_src": src, "comm_size": size, "comm_tag": tag, **more})

    def network(self, kinds=("Ring",), sizes=(8,), bandwidth=50.0, latency=500.0) -> None:
        each = [bandwidth] * len(sizes) if isinstance(bandwidth, float) else bandwidth
        times = [latency] * len(sizes) if isinstance(latency, float) else latency
        listed = {"topology": kinds, "npus_count": sizes, "bandwidth": each, "latency": times}
        lines = [f"{key}: [ {', '.join(map(str, values))} ]" for key, values in listed.items()]
        (self.path / "network.yml").write_text("\n".join(lines) + "\n")
        self.npus = 1
        for size in sizes:
            self.npus *= size

    def system(self, word="ring", dims=1, **keys) -> None:
        values = {
            "scheduling-policy": "LIFO",
            "endpoint-delay": 10,
            "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": 1,
            **{f"{name}-implementation": [word] * dims for name in NATIVE},
            "collective-optimization": "localBWAware",
            "local-mem-bw": 1600,
        }
        values |= {key.replace("_", "-"): value for key, value in keys.items()}
        kept = {key: value for key, value in values.items() if value is not None}
        (self.path / "system.json").write_text(json.dumps(kept, indent=1))

    def memory(self, kind="NO_MEMORY_EXPANSION", **keys) -> None:
        values = {"memory-type": kind, **{key.replace("_", "-"): value for key, value in keys.items()}}
        (self.path / "memory.json").write_text(json.dumps(values))

    def workload(self, *traces, name="work") -> str:
        """One trace for all NPUs, or one each; as lists of nodes."""
        for old in self.path.glob(f"{name}.*.et"):
            old.unlink()
        made = [trace(nodes) for nodes in traces]
        write_prefix(self.path / name, made * self.npus if len(made) == 1 else made)
        return str(self.path / name)

    def inputs(self, *traces, **more) -> Inputs:
        arguments = Arguments(
            workload=self.workload(*traces) if traces else str(self.path / "work"),
            system=self.path / "system.json",
            network=self.path / "network.yml",
            memory=self.path / "memory.json",
            folder=self.path,
            **more,
        )
        return read_inputs(arguments)

    def run(self, *traces, corrected=False, level="summary", **more) -> AstraResult:
        return run_inputs(self.inputs(*traces, **more), corrected=corrected, engine="both", level=level)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)
