"""Tensor parallel layers in tiles beside the published throughput of TorchTitan. See benchmarks/README.md."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from astrasim_py.core.units import PS_PER_S
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.training.prices import GEMM_16_BIT, HALF_FLOPS, HALF_PEAK
from astrasim_py.training.system import system

MACHINE, PROFILE = "hgx_h100_500w", "dgx_h100"
#: What a product costs beside its arithmetic on this machine in the price model: launch, and the last wave.
LAUNCH_PS = round(HALF_FLOPS / HALF_PEAK / (GEMM_16_BIT * system(MACHINE).compute.sustained) * PS_PER_S)


class Published(NamedTuple):
    """A step of TorchTitan (June 2025, bf16, torch.compile); tokens per second and GPU without and with async TP."""

    ranks: int
    training: Mapping[str, Any]
    vanilla: float
    tiles: float


_COMMON = {"seq": 8192, "tp": 8, "zero": 3, "attention": "fa2", "grad_dtype": "fp32"}
STEPS = {
    "8b": Published(
        64, {"model": "llama3-8b", "gbs": 96, "mbs": 12, "recompute": "selective_op"} | _COMMON, 4378.0, 4809.4
    ),
    "70b": Published(256, {"model": "llama3-70b", "gbs": 512, "mbs": 16, "recompute": "full"} | _COMMON, 597.3, 652.4),
}
#: What a tile costs, by the words for it.
COSTS: Mapping[str, Mapping[str, Any]] = {
    "free": {},
    "launch": {"tile_overhead": f"{LAUNCH_PS} ps"},
    "launch, speed 0.9": {"tile_overhead": f"{LAUNCH_PS} ps", "comm_slows_compute": 0.9},
    "launch, speed 0.8": {"tile_overhead": f"{LAUNCH_PS} ps", "comm_slows_compute": 0.8},
    "launch, speed 0.7": {"tile_overhead": f"{LAUNCH_PS} ps", "comm_slows_compute": 0.7},
}


def simulated(step: Published, overlap: Mapping[str, Any], forward: bool) -> tuple[int, int]:
    """Picoseconds of a step, and of its forward pass (0 unless asked for)."""
    rings = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), "ring")
    training = {**step.training, "overlap": {"dp": True, "pp": False, **overlap}}
    document = {
        "name": "overlap",
        "topologies": {"h100": {"preset": MACHINE, "nodes": step.ranks // 8}},
        "compute": {"preset": MACHINE},
        "workload": {"training": training, "software": "torchtitan", "memory": "ignore"},
        "network": {"profile": PROFILE},
        "algorithms": rings,
    }
    records = simulate(prepare(expand(load_scenario(document))[0]).problem, level="nodes" if forward else "summary")
    nodes, end = records.node, 0
    if forward:
        mine = (nodes["rank"] == 0) & (nodes["instance"] < 0)
        passes = zip(nodes["name"][mine].tolist(), nodes["end"][mine].tolist(), strict=True)
        end = max(end for name, end in passes if ".fwd" in name)
    return records.makespan, end


def rows(step: Published, forward: bool) -> Iterator[tuple[str, ...]]:
    """A row without tiles, and one for each cost of them."""
    tokens = step.training["gbs"] * step.training["seq"] / step.ranks
    configurations = {"none": {}, **{words: {"tp": "tiles", **keys} for words, keys in COSTS.items()}}
    base = before = 0
    for words, keys in configurations.items():
        time, ends = simulated(step, keys, forward)
        base, before = base or time, before or ends
        measured = step.tiles if keys else step.vanilla
        rate = tokens / time * PS_PER_S
        row = [words, f"{time / PS_PER_S:.2f}", f"{rate:,.0f}", f"{measured:,.0f}", f"{rate / measured - 1:+.1%}"]
        gains = [base / time, step.tiles / step.vanilla]
        gains += [before / ends, base / (base - before + ends)] if forward else []
        yield *row, *(f"{gain - 1:+.1%}" if keys else "" for gain in gains)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all by default")
    parser.add_argument(
        "--forward",
        action="store_true",
        help="also the gain of the forward pass, and of the step if no other has tiles; takes more memory",
    )
    args = parser.parse_args(argv)
    heads = ("step", "tiles", "s", "tokens/s/GPU", "measured", "error", "gain", "measured gain")
    heads += ("gain of forward", "gain by forward alone") * args.forward
    print(f"a product costs {LAUNCH_PS} ps beside its arithmetic")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in args.steps or STEPS:
        for row in rows(STEPS[name], args.forward):
            print(f"| {name} | {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
