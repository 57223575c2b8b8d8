"""How well one model of several workloads predicts a workload that it has not seen.

Of each sample of the packaged corpus only totals are known: calls and bytes by kind, compute. Of all other models and
layouts, the workload with the most similar totals is taken, and synthesized with as many blocks, sizes and times of
compute as give these totals. Printed: error of the step on three networks; and the same if the totals alone are used.

    python benchmarks/synthesis_held_out.py [SAMPLES]
"""

import sys
from collections import Counter

import numpy as np

from astrasim_py.sharing.learn import learn
from astrasim_py.sharing.synthesis_model import WorkloadModel
from astrasim_py.sharing.synthesize import Wanted, synthesize
from astrasim_py.study.sharing import Rules, networks
from astrasim_py.study.sharing_attack import packaged_corpus


def totals(model: WorkloadModel, repeats: int | None = None) -> Counter:
    """Calls and bytes by kind, and compute in ps, of all ranks."""
    found: Counter = Counter()
    for rank in model.ranks:
        program = model.programs[rank.program]
        share = 1.0 if repeats is None or not model.repeats else repeats / model.repeats
        for places, weight in ((program.prefix, 1.0), (program.block, share), (program.suffix, 1.0)):
            for place in places:
                kind = place.kind, place.attributes.get("comm_type")
                times = program.occurrences if places is program.block else 1
                if place.kind != "compute":
                    found["calls", kind] += weight * times
                    found["bytes", kind] += weight * sum(place.sizes.get("comm_size", ()))
                for step in place.steps:
                    waits = [ps for wait in step.waits for ps in wait.ps]
                    found["compute"] += weight * sum(ps or 0 for ps in (*step.takes_ps, *waits))
    return found


def apart(one: Counter, two: Counter) -> float:
    return sum((np.log1p(one[key]) - np.log1p(two[key])) ** 2 for key in one.keys() | two.keys())


def bytes_of(found: Counter) -> float:
    return sum(value for key, value in found.items() if key[0] == "bytes")


def alike(known: WorkloadModel, wanted: Counter):
    """A workload of a model with other totals."""
    calls = [sum(v for k, v in t.items() if k[0] == "calls") for t in (wanted, totals(known, 0), totals(known))]
    repeats = None
    if known.repeats:
        repeats = max(1, round(known.repeats * (calls[0] - calls[1]) / (calls[2] - calls[1])))
    made = totals(known, repeats)
    factors = {
        "size_factor": bytes_of(wanted) / bytes_of(made),
        "compute_factor": wanted["compute"] / made["compute"],
    }
    return synthesize(known, np.random.default_rng(0), Wanted(repeats=repeats, **factors))


def main() -> None:
    samples = packaged_corpus(sources=1)[: int(sys.argv[1]) if len(sys.argv) > 1 else None]
    learned = [learn(sample.original) for sample in samples]
    found = list(map(totals, learned))
    nets = dict(list(networks(8).items())[::2])
    raw, scaled = [], []
    for number, sample in enumerate(samples):
        others = [k for k, other in enumerate(samples) if other.workload.split()[0] != sample.workload.split()[0]]
        nearest = min(others, key=lambda k: apart(found[k], found[number]))
        plain = synthesize(learned[nearest], np.random.default_rng(0))
        made = alike(learned[nearest], found[number])
        errors = []
        for topology in nets.values():
            true = Rules().run(sample.original.workload, topology).makespan
            errors += [Rules().run(each, topology).makespan / true - 1 for each in (plain, made)]
        raw += errors[::2]
        scaled += errors[1::2]
        shown = " ".join(f"{each:+.1%}" for each in errors[1::2])
        print(f"{sample.workload:<24}from {samples[nearest].workload:<24}{shown}", flush=True)
    for name, errors in (("as it is", raw), ("with these totals", scaled)):
        size = np.abs(errors)
        print(f"{name}: median {np.median(size):.1%}, p90 {np.quantile(size, 0.9):.1%}, largest {size.max():.1%}")


if __name__ == "__main__":
    main()
