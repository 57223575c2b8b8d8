"""Set synthesized all_gathers against bounds and recorded times of another synthesizer. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections import defaultdict
from pathlib import Path

from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.request import Request
from astrasim_py.synthesis.solve import solve
from astrasim_py.topology.topology_files import read_edge_list

#: The cost model of TACOS: latency is serialised with the transfer.
COST = CostModel(link_busy="latency+bytes")
SHARD = 2**20
#: Differences up to this count as equal, us.
EQUAL = 0.002
COLUMNS = (
    ("problem", -22),
    ("NPUs", 6),
    ("chunks", 7),
    ("ours us", 11),
    ("theirs us", 11),
    ("bound us", 11),
    ("eff.", 8),
)
HEAD = "".join(f"{name:{'<' if width < 0 else '>'}{abs(width)}}" for name, width in (*COLUMNS, ("s", 7)))


def problems(folder: Path, results: Path | None) -> list[tuple[str, int, dict]]:
    """Name, chunks and the recorded row of each; without results, every file of the folder in 1, 2 and 4 chunks."""
    if results is None:
        return [(path.stem, chunks, {}) for path in sorted(folder.glob("*.csv")) for chunks in (1, 2, 4)]
    with open(results, encoding="utf-8") as file:
        return [(row["input"], int(row["chunks_per_npu"]), row) for row in csv.DictReader(file)]


def solved(folder: Path, name: str, chunks: int, row: dict, options: argparse.Namespace) -> dict:
    """One problem, synthesized and checked."""
    topology = read_edge_list(folder / f"{name}.csv")
    began, cpu = time.perf_counter(), time.process_time()
    wanted = Request(
        topology=topology, npus=tuple(range(topology.npus)), collective="all_gather", size=topology.npus * SHARD,
        chunks=chunks, cost=COST, rounds=options.rounds, budget=options.budget,
    )  # fmt: skip
    schedule = solve(wanted, jobs=options.threads).schedule
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    wrong = check(schedule)
    if wrong:
        raise SystemExit(f"{name}, {chunks} chunks: the schedule is wrong: {wrong[0]}")
    causal, alike = row.get("tacos_causal_best_us"), len(topology.bandwidths) == 1
    theirs = float(causal or (row.get("tacos_best_us") if alike else None) or math.nan)
    ours = schedule.time / 1e6
    verdict = "" if math.isnan(theirs) else "tie" if abs(ours - theirs) <= EQUAL else "win" if ours < theirs else "loss"
    return {
        "problem": name,
        "family": name.rsplit("_", 1)[0],
        "npus": topology.npus,
        "chunks": chunks,
        "ours_us": ours,
        "theirs_us": None if math.isnan(theirs) else theirs,
        "bound_us": schedule.bound / 1e6,
        "efficiency": schedule.bound / schedule.time,
        "at_bound": schedule.time - schedule.bound <= EQUAL * 1e6,
        "verdict": verdict,
        "policy": schedule.search.policy,
        "seconds": round(seconds, 3),
        "cpu_s": round(cpu, 3),
    }


def line(row: dict) -> str:
    theirs = f"{row['theirs_us']:10.3f}" if row["theirs_us"] is not None else " " * 10
    figures = f"{row['ours_us']:11.3f} {theirs}{row['bound_us']:11.3f}{row['efficiency']:8.2%}{row['seconds']:7.2f}"
    return f"{row['problem']:22}{row['npus']:6}{row['chunks']:7}{figures} {row['verdict']}"


def summary(rows: list[dict]) -> str:
    """Wins, ties, losses and efficiency by family, as Markdown."""
    families = defaultdict(list)
    for row in rows:
        families[row["family"]].append(row)
    text = ["| family | problems | wins | ties | losses | not compared | at bound | mean efficiency | least | CPU s |"]
    text.append("|---|---|---|---|---|---|---|---|---|---|")
    for name, group in [*sorted(families.items()), ("all", rows)]:
        counts = [sum(row["verdict"] == verdict for row in group) for verdict in ("win", "tie", "loss", "")]
        efficiency = [row["efficiency"] for row in group]
        cells = [name, len(group), *counts, sum(row["at_bound"] for row in group)]
        cells += [f"{sum(efficiency) / len(group):.1%}", f"{min(efficiency):.1%}"]
        cells.append(f"{sum(row['cpu_s'] for row in group):.1f}")
        text.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", type=Path, help="folder of edge lists, NAME.csv")
    parser.add_argument("results", type=Path, nargs="?", help="CSV of recorded times; its rows are the problems")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each problem at most")
    parser.add_argument("--threads", type=int, help="threads of the search (one per core)")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/synthesis_quality.json"))
    options = parser.parse_args()
    rows = []
    print(HEAD)
    for name, chunks, row in problems(options.problems, options.results):
        if options.only in name:
            rows.append(solved(options.problems, name, chunks, row, options))
            print(line(rows[-1]), flush=True)
    if not rows:
        raise SystemExit(f"{options.problems}: no problems")
    print(f"\n{summary(rows)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"\nrows: {options.out}")


if __name__ == "__main__":
    main()
