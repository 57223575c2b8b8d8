"""Compare execution plans that MSCCL++ ships with written ones on the same machines. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from astrasim_py.builders.registry import build as build_algorithm
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.mscclpp.to_traces import read_algorithm
from astrasim_py.mscclpp.writer import write_plan
from astrasim_py.preparation.from_python import collective
from astrasim_py.preparation.schedules import find
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.request import Request
from astrasim_py.topology import build
from astrasim_py.topology.hardware import machine, profile
from astrasim_py.topology.model import Topology

RANKS = 8
SIZES = (2**15, 2**20, 2**26, 2**30)
COLLECTIVES = ("all_reduce", "all_gather", "all_to_all")
#: Builders whose algorithms are written as plans.
BUILDERS = ("ring", "direct")
#: In which algorithms move their chunks side by side, each by thread blocks of its own.
PARTS = 8


def shipped(folder: Path) -> Iterator[tuple[str, str, Algorithm]]:
    """Plans of a folder for the ranks of a node: who wrote them, their protocol, the plan."""
    for path in sorted(folder.glob("*.json")):
        try:
            algorithm = read_algorithm(path)
        except AstraError:
            continue
        if algorithm.ranks == RANKS and algorithm.collective in COLLECTIVES:
            yield path.stem, algorithm.protocol, algorithm


def written(topology: Topology, folder: Path) -> Iterator[tuple[str, str, Algorithm]]:
    """Algorithms of builders, in parts side by side, and of synthesis, read back from their plans."""
    for kind in COLLECTIVES:
        names = [name for name in BUILDERS if (name, kind) != ("ring", "all_to_all")]
        algorithms = {name: build_algorithm(name, kind, RANKS) for name in names}
        request = Request(topology=topology, npus=tuple(range(RANKS)), collective=kind, size=2**26, chunks=1)
        algorithms["synthesized"] = emit(find(request).schedule, clock=False)
        for name, algorithm in algorithms.items():
            for protocol, parts in (("LL", 1), ("Simple", 1), ("Simple", PARTS)):
                path = folder / "plan.json"
                write_plan(path, algorithm if parts == 1 else algorithm.split(parts), protocol=protocol)
                yield f"{name}, {parts} parts" if parts > 1 else name, protocol, read_algorithm(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plans", help="folder of plans")
    parser.add_argument("--machine", nargs="+", default=["dgx_h100"], help="presets with costs of plans")
    args = parser.parse_args()
    print(f"{'machine':<10}{'collective':<12}{'plan':<44}{'':<8}" + "".join(f"{size >> 10:>12} KiB" for size in SIZES))
    for name in args.machine:
        topology, costs = build(machine(name, RANKS)), profile(name)
        with tempfile.TemporaryDirectory() as folder:
            plans = [*shipped(Path(args.plans)), *written(topology, Path(folder))]
        for kind in COLLECTIVES:
            for who, protocol, algorithm in plans:
                if algorithm.collective != kind:
                    continue
                times = [
                    simulate(collective(kind, size, topology, algorithm=algorithm, profile=costs)).makespan / 1e6
                    for size in SIZES
                ]
                print(f"{name:<10}{kind:<12}{who:<44}{protocol:<8}" + "".join(f"{time:>13.1f} us" for time in times))


if __name__ == "__main__":
    main()
