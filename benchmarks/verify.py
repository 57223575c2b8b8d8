"""Time reading and verifying algorithms, each case in a process of its own. See benchmarks/README.md."""

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

CASES = ("builder_ring_64", "builder_ring_128", "builder_ring_256", "xml_ring_64", "xml_ring_128")
COLUMNS = ("steps", "start", "read", "check", "table", "verify", "total", "peak MB")


def measure(case: str) -> dict:
    """Run one case in this process; CPU seconds. `case` is a builder's of CASES, or a folder or file of XML."""
    from astrasim_py.builders.registry import build
    from astrasim_py.msccl import ir, well_formed, xml_reader
    from astrasim_py.program.steps import steps_of
    from astrasim_py.verification.verifier import verify

    files = []
    if case not in CASES:
        files = sorted(Path(case).rglob("*.xml")) if Path(case).is_dir() else [Path(case)]
        if not files:
            raise SystemExit(f"{case}: no XML files")
    times = dict.fromkeys(("read", "check", "table", "verify"), 0.0)
    start = last = time.process_time()
    steps = 0

    def lap(part: str) -> None:
        nonlocal last
        now = time.process_time()
        times[part] += now - last
        last = now

    if not files:
        algorithm = build("ring", "all_reduce", int(case.rpartition("_")[2]))
        lap("read")
        found = steps_of(algorithm)
        lap("table")
        verify(found)
        lap("verify")
        steps = len(found)
    for file in files:
        program = xml_reader.read_program(file)
        lap("read")
        noted = well_formed.findings(program)
        lap("check")
        found = ir.steps_from(program)
        lap("table")
        verify(found, problems=noted.problems, warnings=noted.warnings)
        lap("verify")
        steps += len(found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"steps": steps, "start": start, **times, "total": sum(times.values()), "peak MB": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}, or a folder or file of XML")
    parser.add_argument("--repeat", type=int, default=3, help="runs per case; medians are printed")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(arguments.case)))
        return
    unknown = [case for case in arguments.cases if case not in CASES and not Path(case).exists()]
    if unknown:
        parser.error(f"no case, folder or file {unknown[0]}")
    print(f"{'case':<24}" + "".join(f"{c:>10}" for c in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for case in arguments.cases or CASES:
            what = case
            if case in CASES and case.startswith("xml_ring"):
                what = str(Path(folder) / f"{case}.xml")
                convert = ["convert", f"builder:ring:all_reduce:{case.rpartition('_')[2]}", what]
                subprocess.run([sys.executable, "-m", "astrasim_py", *convert], check=True, stdout=subprocess.DEVNULL)
            command = [sys.executable, __file__, "--case", what]
            runs = [
                json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
                for _ in range(max(1, arguments.repeat))
            ]
            median = {c: statistics.median(run[c] for run in runs) for c in COLUMNS}
            shown = [f"{median[c]:>10,.0f}" if c in ("steps", "peak MB") else f"{median[c]:>10.3f}" for c in COLUMNS]
            print(f"{case if case in CASES else Path(case).name:<24}" + "".join(shown), flush=True)


if __name__ == "__main__":
    main()
