"""What each level of sharing costs, and what an attack still finds. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

import astrasim_py as ap
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.sharing.secrets import Scales
from astrasim_py.study.sharing import LEVELS, Rules, original_of, price, share
from astrasim_py.study.sharing_attack import attack, packaged_corpus

SCENARIO = """
name: swept
topologies:
  net: {{shape: switch, npus: {ranks}, bandwidth: 50 GB/s, latency: 1 us}}
workload: {{trace: {trace}, groups: {trace}.groups.json, skeleton: {skeleton}}}
sweep: {{topologies.net.bandwidth: [{rates}]}}
"""


def table(levels: list[str]) -> list[dict]:
    """A row for each of some levels, with and without secret scales."""
    corpus, rules, rows = packaged_corpus(sources=2, iterations=2, more=7), Rules(), []
    first: dict[str, object] = {}
    for sample in corpus:
        first.setdefault(sample.workload.split()[0], sample)
    for level in levels:
        for secret in (False, True):
            scales = Scales.draw(np.random.default_rng(5)) if secret else Scales()
            paid = []
            for sample in first.values():
                shared = share(sample.original, level, seed=3, scales=scales)
                paid.append(price(sample.original, shared, rules, scales))
            found = attack(corpus, level, seed=11, secret=secret)
            rows.append(
                {
                    "level": level + (" + scales" if secret else ""),
                    "mean": float(np.mean([each.mean for each in paid])),
                    "largest": max(each.largest for each in paid),
                    "spearman": min(each.spearman for each in paid),
                    **vars(found),
                }
            )
            row = rows[-1]
            print(
                f"| {row['level']} | {row['mean']:.2%} / {row['largest']:.2%} | {row['spearman']:.2f} "
                f"| {row['workload_raw']:.2f} / {row['workload_adaptive']:.2f} "
                f"| {row['source_raw']:.2f} / {row['source_adaptive']:.2f} |",
                flush=True,
            )
    return rows


def draw(rows: list[dict], out: Path) -> None:
    """Utility against privacy: the error of a level, and how often the adaptive attack is right."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "astrasim_py"
    figure, panels = pyplot.subplots(1, 2, figsize=(9.5, 4), layout="constrained", sharey=True)
    for axes, what in zip(panels, ("workload", "source"), strict=True):
        for row in rows:
            secret, level = "scales" in row["level"], row["level"].partition(" ")[0]
            colour = f"C{list(LEVELS).index(level)}"
            spot = {"color": colour, "marker": "s" if secret else "o", "mfc": "none" if secret else colour}
            axes.plot(
                100 * row["mean"],
                row[f"{what}_adaptive"],
                linestyle="",
                label=row["level"],
                ms=14 - 2 * list(LEVELS).index(level),
                **spot,
            )
        axes.axhline(rows[0][f"{what}_chance"], color="#888888", linestyle="--", linewidth=1)
        axes.set(xlabel="mean error of the step, %", title=f"names the {what}", ylim=(0, 1.05))
        axes.grid(True, color="#dddddd", linewidth=0.6)
    panels[0].set_ylabel("right guesses of the adaptive attack\n(dashed: chance)")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside right upper")
    figure.savefig(out / "sharing.svg", metadata={"Date": None})
    pyplot.close(figure)


def sweep(points: int) -> None:
    """CPU seconds of a sweep of networks, on the full traces and on their skeletons."""
    from astrasim_py.scenario.job_models import TrainingWorkload
    from astrasim_py.study.training import Machine, model_workload
    from astrasim_py.system.machine_models import NpuModel

    ranks, layers = 16, 32
    keys = {"model": {"base": "llama3-8b", "layers": layers}, "seq": 4096, "gbs": 64, "pp": 4, "nodes": "fine"}
    spec = TrainingWorkload.model_validate({"training": keys, "memory": "ignore"})
    topology = ap.build_topology(preset="dgx_h100", nodes=ranks // 8, npus=8)
    compute = NpuModel.model_validate({"preset": "dgx_h100"})
    workload = model_workload(spec, Machine(topology=topology, compute=compute, ranks=ranks, place="sweep"), "swept")
    own = original_of(workload).workload
    rates = ", ".join(f"{10 + each} GB/s" for each in range(points))
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "swept"
        groups = json.dumps({name: list(ranks) for name, ranks in own.groups.items()}).encode()
        write_prefix(prefix, own.traces, beside={".groups.json": groups})
        times = []
        for skeleton in ("false", "true"):
            file = Path(folder) / f"{skeleton}.yaml"
            file.write_text(SCENARIO.format(ranks=ranks, trace="swept", skeleton=skeleton, rates=rates))
            began = time.process_time()
            rows = ap.run(file, out=Path(folder) / skeleton, jobs=1, level="summary").rows
            times.append([row["time_ns"] for row in rows])
            print(
                f"skeleton: {skeleton}: {time.process_time() - began:.1f} CPU seconds, {len(rows)} points", flush=True
            )
        print(f"{sum(map(len, own.traces))} nodes; equal times: {times[0] == times[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("results/benchmarks"), help="folder of the rows and the figure"
    )
    parser.add_argument("--points", type=int, default=200, help="networks of the sweep; 0: none")
    parser.add_argument("--levels", nargs="*", default=list(LEVELS), help="of the table; none: the sweep only")
    args = parser.parse_args()
    if args.points:
        sweep(args.points)
    if args.levels:
        args.out.mkdir(parents=True, exist_ok=True)
        rows = table(args.levels)
        (args.out / "sharing.json").write_text(json.dumps(rows, indent=1))
        draw(rows, args.out)


if __name__ == "__main__":
    main()
