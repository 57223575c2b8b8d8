"""What optimizing a whole step gains over choices one by one. See benchmarks/README.md."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from statistics import geometric_mean
from typing import Any

from astrasim_py.core.errors import AstraError
from astrasim_py.core.units import format_time
from astrasim_py.engine.simulation import simulate
from astrasim_py.optimizer.judge import NEVER
from astrasim_py.optimizer.optimize import Optimized, optimize
from astrasim_py.scenario.load import load_scenario

#: Training steps by name: ranks, and keys. Few layers: all of them are alike.
STEPS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "dense": (256, {"model": {"base": "llama3-70b", "layers": 8}, "seq": 4096, "gbs": 64, "tp": 8, "pp": 4}),
    "moe": (64, {"model": {"base": "mixtral-8x7b", "layers": 4}, "seq": 4096, "gbs": 64, "ep": 8}),
    "fsdp": (64, {"model": {"base": "llama3-8b", "layers": 8}, "seq": 4096, "gbs": 64, "zero": 3}),
}
#: Networks by name, for so many ranks: DGX H100 with a NIC and a rail for each GPU, and the same GPUs with racks of 4
#: nodes that share a quarter of the bandwidth of their NICs.
NETWORKS = {
    "rails": lambda ranks: {"preset": "dgx_h100", "nodes": ranks // 8},
    "tapered": lambda ranks: {
        "shape": "product",
        "dims": [
            {"kind": "switch", "size": 8, "bandwidth": "450 GB/s", "latency": "300 ns"},
            {"kind": "switch", "size": 4, "bandwidth": "50 GB/s", "latency": "1 us"},
            {"kind": "switch", "size": ranks // 32, "bandwidth": "12.5 GB/s", "latency": "1 us"},
        ],
    },
}
#: Set by hand: gradients are reduced beside the backward pass, in messages of PyTorch's default size.
BY_HAND = {"overlap of dp": True, "bucket of gradients": "25 MiB"}


def scenario(step: str, network: str) -> dict[str, Any]:
    ranks, training = STEPS[step]
    return {
        "name": f"{step}_{network}",
        "topologies": {network: NETWORKS[network](ranks)},
        "compute": {"preset": "dgx_h100"},
        "workload": {"training": dict(training), "memory": "ignore"},
    }


def by_hand(result: Optimized) -> int:
    """Makespan of the best choices one by one with buckets that are set by hand, ps."""
    space, candidate = result.space, result.found.alone[0]
    for number, choice in enumerate(space.choices):
        if choice.name in BY_HAND and BY_HAND[choice.name] in choice.values:
            candidate = space.with_value(candidate, number, BY_HAND[choice.name])
    try:
        return simulate(space.problem(candidate), level="summary").makespan
    except AstraError:
        return NEVER


def others(result: Optimized) -> tuple[int, ...]:
    """Makespans as the scenario is, and of (i), (ii) and (iii), ps."""
    return result.baseline_ps, min(result.found.uniform.values()), result.found.alone[1], by_hand(result)


def row(result: Optimized, before: tuple[int, ...], cpu_s: float) -> Iterator[str]:
    for makespan in (*before, result.makespan_ps):
        yield f"{format_time(makespan)} (+{100 * result.bound.gap(makespan):.0f} %)"
    for makespan in before[1:]:
        yield percent(result.makespan_ps / makespan)
    yield f"{result.simulated / cpu_s:.1f}"
    yield f"{cpu_s:.0f}"


def percent(share: float) -> str:
    return f"{100 * (share - 1):+.1f} %"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all by default")
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--over")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args(argv)
    heads = ("step", "network", "as it is", "(i) uniform", "(ii) one by one", "(iii) buckets by hand", "optimized")
    heads += ("to (i)", "to (ii)", "to (iii)", "simulations/CPU s", "CPU s")
    shares: list[list[float]] = [[], [], []]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for step in args.steps or STEPS:
        for network in NETWORKS:
            with tempfile.TemporaryDirectory() as folder:
                loaded = load_scenario(scenario(step, network))
                options = {"seconds": None, "evaluations": args.evaluations, "seed": args.seed, "over": args.over}
                begin = time.process_time()
                result = optimize(loaded, folder, **options)
                cpu_s = time.process_time() - begin
            before = others(result)
            for listed, makespan in zip(shares, before[1:], strict=True):
                listed.append(result.makespan_ps / makespan)
            print(f"| {step} | {network} | {' | '.join(row(result, before, cpu_s))} |", flush=True)
            if args.verbose:
                for number in result.space.changes(result.best):
                    choice = result.space.choices[number]
                    brings = dict(result.brings)[number]
                    print(
                        f"    {choice.name}: {choice.say(result.best[number])}: {format_time(brings or 0)}", flush=True
                    )
    means = [percent(geometric_mean(listed)) for listed in shares]
    print(f"| geometric mean |{' |' * 6} {' | '.join(means)} | | |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
