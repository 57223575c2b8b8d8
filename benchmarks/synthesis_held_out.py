"""How well synthesis predicts workloads that it has not seen. See benchmarks/README.md."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

import numpy as np
from sharing_attack import packaged_corpus

from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.chakra.workload import Workload
from astrasim_py.cli.main import main as command
from astrasim_py.core.errors import TraceError
from astrasim_py.sharing.learn import learn
from astrasim_py.sharing.levels import Original
from astrasim_py.sharing.price import Rules, networks, original_of
from astrasim_py.sharing.synthesis_model import WorkloadModel
from astrasim_py.sharing.synthesize import Goal, choose, synthesize, totals
from astrasim_py.system.machine_models import ComputeModel

WAYS = ("as it is", "with its blocks", "and compute", "and sizes", "all of these")


def errors(workload: Workload, original: Original, rules: Rules) -> list[float]:
    """Of the step, on three networks."""
    nets = list(networks(workload.ranks).values())[::2]
    return [Rules().run(workload, net).makespan / rules.run(original.workload, net).makespan - 1 for net in nets]


def alike(models: Sequence[WorkloadModel], held: WorkloadModel, original: Original, rules: Rules) -> tuple[int, list]:
    """The workload that one of known calls and compute is made of, and wishes with more and more of what is known."""
    ranks = len(held.ranks)
    calls = {kind: (calls / ranks, size / calls) for kind, (calls, size) in totals(held).items()}
    compute = {"compute_ps": rules.makespan(original.workload, free=True)}
    number, wanted = choose(models, Goal(calls=calls, ranks=ranks), np.random.default_rng(0))
    blocks = {"repeats": wanted.repeats, "ranks": ranks}
    return number, [
        {"ranks": ranks},
        blocks,
        blocks | compute,
        blocks | {"calls": calls},
        blocks | {"calls": calls} | compute,
    ]


def hold_out(names: Sequence[str], originals: Sequence[Original], family: Sequence[str], rules: Rules) -> None:
    """Predict each workload from those of other families, and print errors for what is known of it."""
    models = [learn(each) for each in originals]
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    same = []
    for k, name in enumerate(names):
        others = [j for j in range(len(names)) if family[j] != family[k]]
        try:
            number, wishes = alike([models[j] for j in others], models[k], originals[k], rules)
        except TraceError as error:
            print(f"{name:<24}{error}")
            continue
        near = others[number]
        for way, wish in zip(WAYS, wishes, strict=True):
            made = synthesize(models[near], np.random.default_rng(0), Goal(**wish), rules.makespan)
            found[way].append(errors(made, originals[k], rules))
        same.append(name.split()[1:] == names[near].split()[1:])
        shown = " ".join(f"{each:+.1%}" for each in found[WAYS[-1]][-1])
        print(f"{name:<24}from {names[near]:<24}{shown}", flush=True)
    for what, rows in (("all", [True] * len(same)), ("layout is there", same), ("other layouts only", np.invert(same))):
        for way in WAYS:
            size = np.abs(np.array(found[way])[np.array(rows, dtype=bool)])
            if size.size:
                shown = (np.median(size), np.quantile(size, 0.9), size.max())
                print(f"| {what}, {len(size)} | {way} | {' | '.join(f'{each:.1%}' for each in shown)} |")


def convert(file: str, folder: str, *options: str) -> Workload | None:
    """A recording of one rank; None where it is refused."""
    prefix = os.path.join(folder, "set")
    if command(["trace", "convert", "pytorch", prefix, "--kineto", file, "--allow-partial", "--quiet", *options]):
        return None
    return read_workload(prefix)


def from_half(files: Sequence[str]) -> None:
    """A line for each recording with a motif: the step predicted from every second occurrence, eight seeds."""
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            workload = convert(file, folder)
        model = workload and learn(original_of(workload))
        if not model or not model.repeats:
            print(f"| {os.path.basename(file)} | {'nothing repeats' if model else 'refused'} | | |", flush=True)
            continue
        row, step = [], Rules().makespan(workload)
        for first in (0, 1):
            half = Goal(repeats=model.repeats, drawn_from=tuple(range(first, model.repeats, 2)))
            made = (Rules().makespan(synthesize(model, np.random.default_rng(seed), half)) for seed in range(8))
            off = np.abs([each / step - 1 for each in made])
            row.append(f"{np.median(off):.1%}, {off.max():.1%}")
        block = f"{model.repeats} × {len(model.programs[0].block)} kernels"
        print(f"| {os.path.basename(file)} | {block} | {' | '.join(row)} |", flush=True)


def from_steps(file: str, steps: Sequence[int]) -> None:
    """Each step of a recording predicted from each other step."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = []
        for step in steps:
            os.mkdir(os.path.join(folder, str(step)))
            recorded.append(convert(file, os.path.join(folder, str(step)), "--step", str(step)))
        found = [Rules().makespan(each) for each in recorded]
        off = []
        for k, each in enumerate(recorded):
            made = Rules().makespan(synthesize(learn(original_of(each)), np.random.default_rng(0)))
            off += [abs(made / step - 1) for j, step in enumerate(found) if j != k]
    print(f"| {os.path.basename(file)} | {len(steps)} steps | {np.median(off):.1%}, {max(off):.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", nargs="+", metavar="FILE", help="recordings: each from half of its blocks")
    parser.add_argument("--steps", nargs="+", metavar="FILE N", help="a recording, and steps: each from another one")
    parser.add_argument("--sets", nargs="+", metavar="PREFIX", help="sets that count elements: each from the others")
    args = parser.parse_args()
    if args.half:
        from_half(args.half)
    elif args.steps:
        from_steps(args.steps[0], [*map(int, args.steps[1:])])
    elif args.sets:
        rules = Rules(compute=ComputeModel.model_validate({"peak": "312 TFLOP/s"}))
        read = [
            read_workload(each, groups=f"{each}.json", size_unit="elements", dtype_bytes=2, macs=True)
            for each in args.sets
        ]
        hold_out(args.sets, [original_of(each, rules) for each in read], args.sets, rules)
    else:
        samples = packaged_corpus(sources=1)
        names = [sample.workload for sample in samples]
        hold_out(names, [sample.original for sample in samples], [name.split()[0] for name in names], Rules())


if __name__ == "__main__":
    sys.exit(main())
