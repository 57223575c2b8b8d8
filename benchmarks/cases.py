"""What is measured: problems, the path by which each reaches the engine, and the engines that run it."""

from __future__ import annotations

from dataclasses import dataclass, field

RING = {"shape": "ring", "bandwidth": "50 GB/s", "latency": "500 ns"}
_SWITCH = {**RING, "shape": "switch"}
#: Algorithms in which each rank has a program of its own, or peers that no ring has: name, builder, collective.
_IRREGULAR = (
    ("binomial", "binomial_tree", "reduce"),
    ("binomial_broadcast", "binomial_tree", "broadcast"),
    ("binomial_gather", "binomial_tree", "gather"),
    ("binomial_scatter", "binomial_tree", "scatter"),
    ("two_trees", "double_binary_tree", "all_reduce"),
    ("bruck", "bruck", "all_gather"),
    ("dissemination", "dissemination", "barrier"),
    ("halving", "halving_doubling", "all_reduce"),
    ("doubling", "recursive_doubling", "all_reduce"),
)
#: Bytes of every collective: they decide no cost, but all NPU counts below divide them.
SIZE = 2**28

PATHS = {
    "builder": "a built-in algorithm, from Python",
    "files": "the same read from one .et file a rank",
    "npz": "the same read from one .npz file",
    "dims": "a collective cut into chunks that visit one dimension after the other",
    "traces": "a workload read from one .et file a rank",
    "scenario": "the command `run`, results written",
    "astra-sim": "the command `astra-sim` on ASTRA-sim's own files, results written",
    "fold": "the command `run --fold`: one NPU for all that do the same",
    "validate": "the command `measured validate cases` on all recorded cases",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One problem on one path.

    Attributes
    ----------
    npus : int
    path : str
        One of `PATHS`.
    sets : tuple of str
        Under which names it is chosen, besides its own.
    engines : tuple of str
    long : tuple of str
        Engines that take more than a minute: only with ``--long``.
    problem : mapping
        ``shape`` (keys of the topology), ``algorithm``, ``collective``, ``options`` (of the builder), ``model``,
        ``scattered`` (unequal latencies, so that few events coincide), ``collectives`` (chunks by dimension),
        ``network``, ``system`` (of ASTRA-sim), ``environ`` (variable that names a folder of the user's).
    level : str
        What is recorded.
    """

    npus: int
    path: str
    sets: tuple[str, ...] = ()
    engines: tuple[str, ...] = ("simpy", "compiled")
    long: tuple[str, ...] = ()
    problem: dict = field(default_factory=dict)
    level: str = "summary"


def _torus(*dims: int) -> dict:
    return {**RING, "shape": "torus", "dims": list(dims)}


def _ring(npus: int, path: str = "builder", *sets: str, level: str = "summary", **problem) -> Case:
    slow = ("simpy",) if npus > 512 else ()
    engines = ("simpy", "compiled") if npus <= 1024 else ("compiled",)
    return Case(npus=npus, path=path, sets=sets, engines=engines, long=slow, problem=problem, level=level)


def _hierarchical(dims: tuple[int, ...], path: str, *sets: str, level: str = "summary", chunks: int = 4) -> Case:
    npus = 1
    for size in dims:
        npus *= size
    problem = {"shape": _torus(*dims), "model": "store_and_forward"}
    if path in ("builder", "fold"):
        problem |= {"algorithm": "hierarchical", "options": {"dims": list(dims), "chunks": chunks}}
    else:
        problem |= {"collectives": {"chunks": chunks, "active_chunks": chunks}}
    if path == "fold":  # SimPy runs the one NPU that is left
        return Case(npus=npus, path=path, sets=sets, engines=("simpy",), problem=problem, level=level)
    engines = ("compiled",) if npus > 4096 else ("simpy", "compiled")
    slow = ("simpy",) if npus > 512 else ()
    return Case(npus=npus, path=path, sets=sets, engines=engines, long=slow, problem=problem, level=level)


def _native(npus: int, backend: str, algorithm: str, *sets: str, **keys) -> Case:
    slow = ("simpy",) if npus > 256 or algorithm == "direct" else ()
    engines = ("simpy", "compiled") if npus <= 1024 else ("compiled",)
    problem = {"backend": backend, "algorithm": algorithm, **keys}
    return Case(npus=npus, path="astra-sim", sets=sets, engines=engines, long=slow, problem=problem)


CASES: dict[str, Case] = {
    # An injected ring all-reduce by every path there is.
    "ring_256": _ring(256, "builder", "table", "scaling", "quick"),
    "ring_256_files": _ring(256, "files", "table", "quick"),
    "ring_256_npz": _ring(256, "npz", "table"),
    "ring_256_scenario": _ring(256, "scenario", "table", "quick"),
    "injected_256": _native(256, "congestion_aware", "files", "table", "quick"),
    "ring_1024": _ring(1024, "builder", "table", "scaling"),
    "ring_1024_npz": _ring(1024, "npz", "table"),
    "ring_4096": _ring(4096, "builder", "table", "scaling"),
    # ASTRA-sim's own implementations on its own files.
    "native_ring_256": _native(256, "congestion_unaware", "ring", "table", "quick"),
    "native_ring_1024": _native(1024, "congestion_unaware", "ring", "table"),
    "native_ring_1024_aware": _native(1024, "congestion_aware", "ring", "table"),
    "native_ring_4096": _native(4096, "congestion_unaware", "ring", "table"),
    "native_ring_4096_aware": _native(4096, "congestion_aware", "ring", "table"),
    "native_direct_256": _native(256, "congestion_aware", "direct", "table"),
    # Contention, and many hops a message.
    "direct_64": _ring(64, "builder", "table", "quick", algorithm="direct", collective="all_to_all"),
    "direct_256": Case(
        npus=256,
        path="builder",
        sets=("table",),
        long=("simpy",),
        problem={"algorithm": "direct", "model": "store_and_forward"},
    ),
    "ring_256_fluid": _ring(256, "builder", "quick", model="fluid"),
    "direct_64_fluid": _ring(64, "builder", "quick", algorithm="direct", collective="all_to_all", model="fluid"),
    "ring_64_on_torus": _ring(64, "builder", "quick", shape=_torus(8, 8)),
    "ring_1024_on_torus": _ring(1024, "builder", "table", shape=_torus(32, 32)),
    # A program of its own for every rank.
    **{
        f"{name}_{n}": _ring(n, "builder", "irregular", algorithm=algorithm, collective=kind, shape=_SWITCH)
        for n in (16384, 65536)
        for name, algorithm, kind in _IRREGULAR
    },
    **{
        f"{name}_{n}_scenario": _ring(n, "scenario", "irregular", algorithm=algorithm, collective=kind, shape=_SWITCH)
        for name, algorithm, kind in (_IRREGULAR[0], _IRREGULAR[5])
        for n in (16, 16384, 65536)
    },
    # Tori by dimension.
    "torus_512": _hierarchical((8, 8, 8), "builder", "scaling", "quick"),
    "torus_4096": _hierarchical((16, 16, 16), "builder", "table", "scaling"),
    "torus_512_dims": _hierarchical((8, 8, 8), "dims", "scaling", "quick"),
    "torus_4096_dims": _hierarchical((16, 16, 16), "dims", "table", "scaling"),
    "torus_16384": _hierarchical((32, 32, 16), "builder", "table", "scaling"),
    "torus_65536": _hierarchical((64, 32, 32), "builder", "table", "scaling"),
    "torus_16384_dims": _hierarchical((32, 32, 16), "dims", "table"),
    "torus_65536_dims": _hierarchical((64, 32, 32), "dims", "table"),
    "torus_4096_fold": _hierarchical((16, 16, 16), "fold", "fold", "table"),
    "torus_65536_fold": _hierarchical((64, 32, 32), "fold", "fold", "table"),
    "torus_1048576_fold": _hierarchical((128, 128, 64), "fold", "fold", "table"),
    # Cost against NPUs.
    **{f"ring_{n}": _ring(n, "builder", "scaling") for n in (64, 128, 512, 2048)},
    "torus_64": _hierarchical((4, 4, 4), "builder", "scaling"),
    # Times that never coincide.
    "scattered_256": _ring(256, "builder", "scattered", "quick", scattered=True),
    "scattered_1024": _ring(1024, "builder", "scattered", "table", scattered=True),
    "scattered_4096": _ring(4096, "builder", "scattered", scattered=True),
    # What recording costs.
    **{f"ring_256_{level}": _ring(256, "builder", "record", level=level) for level in ("links", "nodes", "messages")},
    **{f"ring_1024_{level}": _ring(1024, "builder", "record", level=level) for level in ("links", "nodes", "messages")},
    "torus_4096_nodes": _hierarchical((16, 16, 16), "builder", "record", level="nodes"),
    "torus_4096_messages": _hierarchical((16, 16, 16), "builder", "record", level="messages"),
    "ring_256_scenario_messages": _ring(256, "scenario", "record", level="messages"),
    # Whole jobs.
    "gpt3_64": Case(
        npus=64, path="traces", sets=("table", "around"), problem={"environ": "ASTRASIM_BENCH_GPT3", "groups": "w.json"}
    ),
    "ring_vs_torus": Case(
        npus=64,
        path="scenario",
        sets=("table", "around"),
        long=("simpy",),
        problem={"scenario": "ring_vs_torus.yaml"},
        level="",
    ),
    "validate": Case(
        npus=64,
        path="validate",
        sets=("around",),
        long=("simpy", "compiled"),
        problem={"environ": "ASTRASIM_GOLDEN"},
        level="",
    ),
}
