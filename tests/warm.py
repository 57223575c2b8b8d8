"""Compile what the tests call, before the first of them; the workers of pytest-xdist share the work."""

from __future__ import annotations

import os
from pathlib import Path

KERNELS = Path(__file__).parent / "__pycache__" / "kernels"


def kept() -> set[str]:
    """Folders of the compiled functions that are on disk."""
    return {path.parent.name for path in KERNELS.glob("*/digests.json")}


def _simulate(model: str) -> None:
    import astrasim_py as ap

    two = ap.build_topology(shape="ring", npus=2, bandwidth="1 GB/s", latency="1 us")
    ap.simulate(ap.collective("barrier", "0 B", two, model=model), engine="compiled")


def engine() -> None:
    _simulate("cut_through")


def whole_engine() -> None:
    """The engine with its optional parts."""
    _simulate("fluid")


def large_traces() -> None:
    from worlds.chakra_files import sample

    from astrasim_py.chakra.decode_large import decode

    decode(sample(), "", (), "")


def synthesizer() -> None:
    """Problems that meet each search."""
    import astrasim_py as ap
    from astrasim_py.synthesis.request import Request
    from astrasim_py.synthesis.solve import solve

    link = {"bandwidth": "1 GB/s", "latency": "1 us"}
    ring = ap.build_topology(shape="ring", npus=3, **link)
    mesh = ap.build_topology(shape="mesh", dims=[3, 3], **link)
    uplinks = ap.build_topology(shape="leaf_spine", leaves=2, hosts_per_leaf=2, spines=1, **link)
    for topology, collective, more in (
        (ring, "all_gather", {}),
        (ring, "all_reduce", {"chunks": None}),
        (mesh, "all_to_all", {}),
        (mesh, "broadcast", {"root": 0, "chunks": 4}),
        (uplinks, "all_to_all", {"chunks": 2}),
        (uplinks, "all_gather", {}),
        (mesh, "reduce_scatter", {"chunks": 2, "rounds": 200}),
    ):
        npus = tuple(range(topology.npus))
        solve(Request(topology=topology, npus=npus, collective=collective, size=12_000, **{"rounds": 4, **more}))


def cuts() -> None:
    """Flows of so many edges that they are compiled."""
    import numpy as np

    from astrasim_py.cuts.max_flow import FlowGraph

    ends = np.arange(2**15) % 2
    FlowGraph(2, ends, 1 - ends).least_cut(np.ones(2**15, dtype=np.int64), np.array([1, 0]), 1)


def compile_all() -> None:
    """Every other worker begins at the other end; who meets a function that another compiles waits for it."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for make in (engine, whole_engine, large_traces, cuts, synthesizer)[:: (1, -1)[number % 2]]:
        make()
