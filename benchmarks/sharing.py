"""What each level of sharing costs, and what an attack still finds. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from sharing_attack import Sample, attack, features, packaged_corpus, read_corpus

import astrasim_py as ap
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.sharing.price import LEVELS, Rules, original_of, price, share
from astrasim_py.sharing.secrets import Scales

ATTACKERS = ("raw", "adaptive", "ratios")
SCENARIO = """
name: swept
topologies:
  net: {{shape: switch, npus: {ranks}, bandwidth: 50 GB/s, latency: 1 us}}
workload: {{trace: {trace}, groups: {trace}.groups.json, skeleton: {skeleton}}}
sweep: {{topologies.net.bandwidth: [{rates}]}}
"""


def each_rank(corpus: list[Sample]) -> list[Sample]:
    """Samples of single ranks, each a source; of ranks of a set that look alike, the first."""
    made = []
    for sample in corpus:
        looks = {
            features(sample.original.workload, rank).tobytes(): rank
            for rank in reversed(range(sample.original.workload.ranks))
        }
        made += [replace(sample, source=f"{sample.source} {rank}", rank=rank) for rank in sorted(looks.values())]
    return made


def table(levels: list[str], corpus: list[Sample], single: bool) -> list[dict]:
    """A row for each of some levels, with and without secret scales; `single`: ranks are samples."""
    rules, rows = Rules(), []
    first: dict[str, Sample] = {}
    for sample in corpus:
        if sample.original.workload.ranks > 1:
            first.setdefault(sample.workload.split()[0], sample)
    corpus = each_rank(corpus) if single else corpus
    for level, secret in product(levels, (False, True)):
        scales = Scales.draw(np.random.default_rng(5)) if secret else Scales()
        paid = []
        for sample in first.values():
            shared = share(sample.original, level, seed=3, scales=scales)
            paid.append(price(sample.original, shared, rules, scales))
        found = attack(corpus, level, seed=11, secret=secret)
        row = {
            "level": level + (" + scales" if secret else ""),
            "mean": float(np.mean([each.mean for each in paid])),
            "largest": max(each.largest for each in paid),
            "spearman": min(each.spearman for each in paid),
            "priced": len(paid),
            "sources": len({sample.source for sample in corpus}),
            **vars(found),
        }
        rows.append(row)
        rates = (" / ".join(f"{row[f'{what}_{who}']:.2f}" for who in ATTACKERS) for what in ("workload", "source"))
        print(f"| {row['level']} | {row['mean']:.2%} / {row['largest']:.2%} | {' | '.join(rates)} |", flush=True)
    print({key: row[key] for key in ("samples", "workloads", "sources", "priced", "workload_chance", "source_chance")})
    print("least Spearman correlation:", min(row["spearman"] for row in rows))
    return rows


def sweep(points: int) -> None:
    """CPU seconds of a sweep of networks, on the full traces and on their skeletons."""
    from astrasim_py.preparation.training import ModelMachine, model_workload
    from astrasim_py.scenario.workload_models import TrainingWorkload
    from astrasim_py.system.machine_models import NpuModel

    ranks, layers = 16, 32
    keys = {"model": {"base": "llama3-8b", "layers": layers}, "seq": 4096, "gbs": 64, "pp": 4, "nodes": "fine"}
    spec = TrainingWorkload.model_validate({"training": keys, "memory": "ignore"})
    topology = ap.build_topology(preset="dgx_h100", nodes=ranks // 8, npus=8)
    compute = NpuModel.model_validate({"preset": "dgx_h100"})
    workload = model_workload(
        spec, ModelMachine(topology=topology, compute=compute, ranks=ranks, place="sweep"), "swept"
    )
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
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder of the rows")
    parser.add_argument("--points", type=int, default=200, help="networks of the sweep; 0: none")
    parser.add_argument("--corpus", help="samples WORKLOAD/SOURCE.<rank>.et, every rank one; else generated trainings")
    parser.add_argument("--levels", nargs="*", default=list(LEVELS), help="of the table; none: the sweep only")
    args = parser.parse_args()
    if args.points:
        sweep(args.points)
    if args.levels:
        args.out.mkdir(parents=True, exist_ok=True)
        corpus = read_corpus(args.corpus) if args.corpus else packaged_corpus(sources=2, iterations=2, more=7)
        name = "sharing_recorded" if args.corpus else "sharing"
        rows = table(args.levels, corpus, single=bool(args.corpus))
        (args.out / f"{name}.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
