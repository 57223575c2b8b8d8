"""Time the synthesizer, each case in a process of its own, on one core. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cost_plots import exponent, figures_of

#: NPUs a side of the square meshes, recorded with all their transfers; and of those that are only counted.
RECORDED, COUNTED = (8, 12, 16, 24, 32, 48), (8, 12, 16, 24, 32, 48, 64)
LONG = (100,)
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
#: 512 NPUs whose links are of unlike speeds: GB/s of each dimension.
UNLIKE = {
    "torus_8x8x8": ("torus", (8, 8, 8), (200, 100, 50)),
    "mesh_8x8x8": ("mesh", (8, 8, 8), (200, 100, 50)),
    "ring_fc_switch_8x8x8": ("product", (8, 8, 8), (200, 100, 50)),
    "nodes_32x16": ("dgx", (32, 16), (450, 50)),
}
SHARD = 2**20
COLUMNS = ("network", "bound", "search", "times", "check", "emit", "write", "total", "wall", "peak MB")


def spec(case: str) -> tuple[dict, bool]:
    """The topology of a case, and whether its transfers are recorded."""
    kind, _, rest = case.partition(":")
    if case in UNLIKE:
        shape, dims, speeds = UNLIKE[case]
        if shape == "dgx":
            nodes = {"shape": "dgx", "nodes": dims[0], "npus": dims[1], "cross_rail": "nvlink"}
            nodes |= {"nvlink_bandwidth": f"{speeds[0]} GB/s", "nvlink_latency": "300 ns"}
            return nodes | {"nic_bandwidth": f"{speeds[1]} GB/s", "nic_latency": "1.35 us"}, True
        rates = [f"{speed} GB/s" for speed in speeds]
        if shape == "product":
            kinds = zip(("ring", "fully_connected", "switch"), dims, rates, strict=True)
            parts = [{"kind": k, "size": n, "bandwidth": rate, "latency": "500 ns"} for k, n, rate in kinds]
            return {"shape": "product", "dims": parts}, True
        return {"shape": shape, "dims": list(dims), "bandwidth": rates, "latency": "500 ns"}, True
    side = int(rest)
    shape = kind.removeprefix("counted_").removesuffix("_et").removesuffix("_npz")
    return {"shape": shape, "dims": [side, side], **LINK}, not kind.startswith("counted_")


def measure(case: str, rounds: int, rest: bool) -> dict:
    """Run one case in this process: CPU seconds of its parts, after a run of a small one that compiles everything."""
    if not rest:
        measure("mesh:4" if spec(case)[1] else "counted_mesh:4", 1, True)
        if case in UNLIKE:
            measure(case, 1, True)
    from astrasim_py.synthesis.bounds.lower_bounds import lower_bounds
    from astrasim_py.synthesis.model.checker import check
    from astrasim_py.synthesis.model.demand import Demand
    from astrasim_py.synthesis.model.network import Network
    from astrasim_py.synthesis.model.schedule import as_schedule, copied
    from astrasim_py.synthesis.model.timing import CostModel
    from astrasim_py.synthesis.search.greedy_search import search
    from astrasim_py.synthesis.search.multi_start import Effort
    from astrasim_py.topology import build

    keys, record = spec(case)
    # Latency serialised with the transfer, which is the cost model of TACOS, whose times these stand beside.
    topology, cost = build(keys), CostModel(link_busy="latency+bytes")
    found: dict = {}
    begin, last = time.monotonic(), time.process_time()

    def lap(part: str) -> None:
        nonlocal last
        now = time.process_time()
        found[part] = now - last
        last = now

    network = Network.of(topology, cost=cost)
    demand = Demand.of("all_gather", network.ranks, 1, network.ranks * SHARD)
    lap("network")
    # Bounds by cuts take longer than a run; `synthesize` asks for them only where the first run does not meet these.
    bound = lower_bounds(network, demand, cuts=False)[0]
    lap("bound")
    best = search(network, demand, bound.time, Effort(rounds=rounds, jobs=1), record=record)
    lap("search")
    took = best.time
    if record:
        schedule = as_schedule(network, demand, copied(best.columns), best.search, bound)
        took = schedule.time
        lap("times")
    found["total"] = sum(found.values())
    found["wall"] = time.monotonic() - begin
    if record:
        problems = check(schedule)
        lap("check")
        if problems:
            raise SystemExit(f"{case}: {problems[0]}")
    if case.startswith(("mesh_et", "mesh_npz")):
        from astrasim_py.api import write_algorithm
        from astrasim_py.synthesis.emit.emitter import emit

        algorithm = emit(schedule)
        lap("emit")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / ("a.npz" if "_npz" in case else "a")
            write_algorithm(str(out), algorithm)
            lap("write")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    facts = {"npus": network.ranks, "transfers": best.transfers, "runs": best.search.rounds}
    return {"case": case, **facts, "efficiency": bound.time / took, **found, "peak MB": peak}


def loop() -> float:
    """Seconds that 10^7 additions in Python take: whether the machine is idle."""
    begin, total = time.perf_counter(), 0
    for i in range(10**7):
        total += i
    return time.perf_counter() - begin


def draw(rows: list[dict], out: Path) -> None:
    """CPU seconds against NPUs, with what they grow as, as SVG and PNG, beside the points as CSV."""
    points = []
    for label, start in {"transfers recorded": "mesh:", "transfers counted": "counted_mesh:"}.items():
        chosen = sorted((row for row in rows if row["case"].startswith(start)), key=lambda row: row["npus"])
        power = exponent([(row["npus"], row["total"]) for row in chosen if row["npus"] >= 256])
        if power is not None:
            print(f"exponent of CPU seconds over NPUs, {label}, from 256 NPUs on: {power:.2f}")
        shown = "" if power is None else f"{power:.2f}"
        points += [
            {"series": label, "exponent": shown, "npus": row["npus"], "cpu_s": f"{row['total']:.3g}"} for row in chosen
        ]
    figures_of(points, out / "synthesis_cost.csv")


def main() -> None:
    cases = [f"mesh:{side}" for side in RECORDED] + [f"counted_mesh:{side}" for side in COUNTED]
    cases += ["torus:32", *UNLIKE, "mesh_et:32", "mesh_npz:32"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(cases)}, or of another side")
    parser.add_argument("--long", action="store_true", help="10,000 NPUs, too: a minute or two")
    parser.add_argument("--rounds", type=int, default=10, help="runs of the search at most, where the bound is not met")
    parser.add_argument("--repeat", type=int, default=3, help="runs per case; the one of least total is printed")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of rows and figure")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case, arguments.rounds, False)))
        return
    chosen = arguments.cases or [*cases, *(f"counted_mesh:{side}" for side in LONG if arguments.long)]
    for case in chosen:
        try:
            spec(case)
        except ValueError:
            parser.error(f"no case {case}")
    print(f"10^7 additions: {loop():.2f} s")
    print(f"{'case':<22}{'NPUs':>7}{'transfers':>12}{'runs':>5}{'effic.':>8}" + "".join(f"{c:>9}" for c in COLUMNS))
    rows = []
    for case in chosen:
        command = [sys.executable, __file__, "--case", case, "--rounds", str(arguments.rounds)]
        runs = [
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            for _ in range(max(1, arguments.repeat))
        ]
        row = min(runs, key=lambda run: run["total"])
        rows.append(row)
        shown = [f"{row[c]:>9,.0f}" if c == "peak MB" else f"{row[c]:>9.3f}" if c in row else " " * 9 for c in COLUMNS]
        facts = f"{case:<22}{row['npus']:>7}{row['transfers']:>12}{row['runs']:>5}{row['efficiency']:>8.4f}"
        print(facts + "".join(shown), flush=True)
    print(f"10^7 additions: {loop():.2f} s")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "synthesis.json").write_text(json.dumps(rows, indent=2) + "\n")
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
