"""Time whole simulations, each in a process of its own; prints a table. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = {
    "ring_256": {"npus": 256, "level": "summary", "read": True},
    "ring_256_nodes": {"npus": 256, "level": "nodes", "read": True},
    "ring_256_built": {"npus": 256, "level": "summary"},
    "ring_64_on_torus": {"npus": 64, "level": "summary", "torus": [8, 8]},
    "direct_64_on_ring": {"npus": 64, "level": "summary", "algorithm": "direct", "collective": "all_to_all"},
}
COLUMNS = ("messages", "hops", "start", "read", "plan", "engine", "process", "peak MB")


def measure(case: dict) -> dict:
    """Run one case in this process and time its parts, CPU seconds."""
    from fractions import Fraction

    from astrasim_py.collectives.algorithm import read_algorithm
    from astrasim_py.collectives.builders import build
    from astrasim_py.engine.simulation import simulate
    from astrasim_py.system.plan import make_plan
    from astrasim_py.system.problem import Job, Problem
    from astrasim_py.topology import shapes
    from astrasim_py.workload.microbenchmarks import Collective, generate

    started = time.process_time()
    npus, collective = case["npus"], case.get("collective", "all_reduce")
    if "prefix" in case:
        algorithm = read_algorithm(case["prefix"])
    else:
        algorithm = build(case.get("algorithm", "ring"), collective, npus)

    class Table:
        def select(self, *_, **__):
            return algorithm

    read = time.process_time()
    rate = Fraction(50 * 10**9)
    topology = shapes.torus(case["torus"], rate, 500_000) if "torus" in case else shapes.ring(npus, rate, 500_000)
    workload = generate([Collective(type=collective, size=2**28)], npus)
    job = Job(workload=workload, placement=tuple(range(npus)), algorithms=Table())
    plan = make_plan(Problem(topology=topology, jobs=(job,)))
    planned = time.process_time()
    records = simulate(plan, level=case["level"])
    done = time.process_time()
    return {
        "messages": records.messages,
        "hops": records.message_hops,
        "start": started,
        "read": read - started,
        "plan": planned - read,
        "engine": done - planned,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def process(case: dict) -> dict:
    """The same in a process of its own, with what that process cost in all."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    result["process"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--repeat", type=int, default=3, help="runs per case; medians are printed")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(json.loads(arguments.case))))
        return
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"no case {unknown[0]}")
    print(f"{'case':<20}" + "".join(f"{c:>10}" for c in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.cases or CASES:
            case = dict(CASES[name])
            if case.pop("read", False):
                prefix = Path(folder) / f"ring_{case['npus']}"
                if not Path(f"{prefix}.0.et").exists():
                    convert = ["convert", f"builder:ring:all_reduce:{case['npus']}", str(prefix)]
                    subprocess.run(
                        [sys.executable, "-m", "astrasim_py", *convert], check=True, stdout=subprocess.DEVNULL
                    )
                case["prefix"] = str(prefix)
            runs = [process(case) for _ in range(max(1, arguments.repeat))]
            median = {c: statistics.median(run[c] for run in runs) for c in COLUMNS}
            shown = [
                f"{median[c]:>10,.0f}" if c in ("messages", "hops", "peak MB") else f"{median[c]:>10.2f}"
                for c in COLUMNS
            ]
            print(f"{name:<20}" + "".join(shown), flush=True)


if __name__ == "__main__":
    main()
