"""Time whole simulations, each in a process of its own: a table, and a figure of cost against NPUs.

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cases import CASES, PATHS

HERE = Path(__file__).resolve().parent
PARTS = ("start", "read", "plan", "engine", "kernel")
#: Of a row, in the order of printing: title, format, width.
COLUMNS = {
    "case": ("case", "", 35),
    "npus": ("NPUs", ",d", 10),
    "path": ("path", "", 10),
    "ran": ("engine", "", 10),
    "level": ("record", "", 9),
    "messages": ("messages", ",d", 12),
    "hops": ("hops", ",d", 12),
    "start": ("start", ".2f", 7),
    "read": ("read", ".2f", 7),
    "plan": ("plan", ".2f", 7),
    "engine": ("engine", ".2f", 8),
    "kernel": ("kernel", ".3f", 8),
    "process": ("process", ".2f", 9),
    "messages_per_s": ("messages/s", ",.0f", 12),
    "ns_per_hop": ("ns/hop", ",.0f", 8),
    "peak_mb": ("peak MB", ",.0f", 8),
}
LEFT = ("case", "path", "ran", "level")


def child(command: list[str], environ: dict[str, str] | None = None) -> tuple[str, float, float]:
    """Run a command: its output, the CPU seconds of it and all it started, its largest resident set in MB."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out, env={**os.environ, **(environ or {})})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(command)}")
    return text, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def command_of(name: str, engine: str, source: Path, out: str) -> list[str]:
    """What runs a case, and prints JSON."""
    case = CASES[name]
    ours = [sys.executable, "-m", "astrasim_py"]
    common = ["--engine", engine, "--out", out, "--format", "json"]
    recorded = ["--record", case.level] if case.level else []
    if case.path == "astra-sim":
        from inputs import flags

        backend = f"--backend={case.problem['backend']}"
        return [*ours, "astra-sim", *flags(source), backend, *common, *recorded, "--quiet"]
    if case.path in ("scenario", "fold"):
        fold = ["--fold"] if case.path == "fold" else []
        return [*ours, "run", os.fspath(source), *common, *recorded, *fold, "--fresh", "--quiet", "--allow-outside"]
    if case.path == "validate":
        return [
            *ours,
            "measured",
            "validate",
            "cases",
            os.fspath(source),
            "--engine",
            engine,
            "--format",
            "json",
            "--quiet",
        ]
    return [sys.executable, os.fspath(HERE / "measure.py"), name, engine, os.fspath(source)]


def once(name: str, engine: str, source: Path, environ: dict[str, str]) -> dict:
    """One run of a case."""
    with tempfile.TemporaryDirectory() as out:
        text, cpu, peak = child(command_of(name, engine, source, out), environ)
    found = json.loads(text)
    if CASES[name].path in ("scenario", "fold"):
        found = {
            "messages": sum(row["messages"] for row in found),
            "hops": sum(row["message_hops"] for row in found),
            "kernel": sum(float(row["cpu_s"]) for row in found),
            "ran": "+".join(sorted({row["engine"] for row in found})),
        }
    elif CASES[name].path == "astra-sim":
        found = {
            "messages": found["messages"],
            "hops": found["message_hops"],
            "kernel": float(found["cpu_s"]),
            "ran": found["engine"],
        }
    elif CASES[name].path == "validate":
        found = {"ran": engine, "cases": found["cases"], "exact": found["exact"]}
    return {**found, "process": cpu, "peak_mb": peak}


def row_of(name: str, engine: str, runs: list[dict]) -> dict:
    """Medians over the runs, and the least of what matters most."""
    case = CASES[name]
    row = {"case": name, "npus": case.npus, "path": case.path, "engine_name": engine, "level": case.level}
    for key in ("messages", "hops"):
        if key in runs[0]:
            row[key] = runs[0][key]
    for key in (*PARTS, "process", "peak_mb"):
        values = [run[key] for run in runs if key in run]
        if values:
            row[key] = statistics.median(values)
            row[f"least_{key}"] = min(values)
    if row.get("kernel") and row.get("hops"):
        row["messages_per_s"] = row["messages"] / row["kernel"]
        row["ns_per_hop"] = row["kernel"] * 1e9 / row["hops"]
    row["runs"] = len(runs)
    row["ran"] = runs[0]["ran"]
    return row


def line(row: dict) -> str:
    """A row as text."""
    cells = []
    for key, (_, form, width) in COLUMNS.items():
        text = format(row[key], form) if key in row else "-"
        cells.append(text.ljust(width) if key in LEFT else text.rjust(width))
    return " ".join(cells).rstrip()


def header() -> str:
    return " ".join(
        title.ljust(width) if key in LEFT else title.rjust(width) for key, (title, _, width) in COLUMNS.items()
    )


def calibration() -> float:
    """CPU seconds of ten million turns of an empty loop: how fast this machine is, and whether it is idle."""
    code = "import time\nb = time.process_time()\ni = 0\nwhile i < 10**7:\n    i += 1\nprint(time.process_time() - b)"
    return float(child([sys.executable, "-c", code])[0])


def warm_up(cold: bool, environ: dict[str, str]) -> str:
    """Compile what any case needs, and say what that cost: no case pays for it."""
    warm = [sys.executable, os.fspath(HERE / "measure.py"), "--warm"]
    if not cold or environ:
        child(warm, environ)
        return "compiling: not measured"
    with tempfile.TemporaryDirectory() as folder:
        first = child(warm, {"NUMBA_CACHE_DIR": folder, "ASTRASIM_CACHE": folder})[1]
    child(warm)
    kept = child(warm)[1]
    return f"compiling, once: {first - kept:.1f} s CPU; a process that finds it on disk: {kept:.1f} s"


def chosen(words: list[str]) -> list[str]:
    """Names of cases: by name, or by the sets that they are in."""
    known = {s for case in CASES.values() for s in case.sets}
    unknown = [word for word in words if word not in CASES and word not in known]
    if unknown:
        raise SystemExit(f"no case or set {unknown[0]}; sets: {', '.join(sorted(known))}; cases: {', '.join(CASES)}")
    return [name for name, case in CASES.items() if not words or name in words or set(words) & set(case.sets)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="cases or sets of cases; all by default")
    parser.add_argument("--engine", action="append", choices=("simpy", "compiled"), help="only this one")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; medians are printed (3)")
    parser.add_argument("--long", action="store_true", help="also what takes minutes")
    parser.add_argument("--no-cold", action="store_true", help="do not measure what compiling costs")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="also run each case with the package of another clone"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--inputs", type=Path, metavar="FOLDER", help="only write what the cases read, and how to run it"
    )
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "benchmarks", metavar="FOLDER")
    parser.add_argument("--figure", type=Path, metavar="JSON", help="only draw the figure of rows that were measured")
    arguments = parser.parse_args()
    if arguments.figure:
        from figure import draw

        draw(json.loads(arguments.figure.read_text("utf-8"))["rows"], arguments.out)
        return
    names = chosen(arguments.cases)
    if arguments.list:
        for name in names:
            case = CASES[name]
            print(
                f"{name:<28} {case.npus:>9,} NPUs  {case.path:<10} {', '.join(case.engines):<16} {' '.join(case.sets)}"
            )
        return
    if arguments.inputs:
        write_inputs(names, arguments.inputs)
        return
    measure_all(names, arguments)


def write_inputs(names: list[str], folder: Path) -> None:
    """Leave the inputs of cases for ASTRA-sim, and say how it and we are run on them."""
    from inputs import flags, write

    for name in names:
        if CASES[name].path != "astra-sim":
            continue
        place = write(name, folder.resolve())
        backend = CASES[name].problem["backend"]
        binary = "AstraSim_Analytical_" + "_".join(word.capitalize() for word in backend.split("_"))
        print(f"# {name}\n/usr/bin/time -v {binary} {' '.join(flags(place))}")
        print(
            f"/usr/bin/time -v {sys.executable} -m astrasim_py astra-sim {' '.join(flags(place))} --backend={backend}\n"
        )


def measure_all(names: list[str], arguments: argparse.Namespace) -> None:
    """The table as it comes; then rows as JSON and CSV, and the figure."""
    from figure import draw
    from inputs import write

    arguments.out.mkdir(parents=True, exist_ok=True)
    engines = arguments.engine or ["simpy", "compiled"]
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "loop_s": calibration(),
    }
    print(
        f"Python {machine['python']}, {machine['cores']} cores; 10^7 turns of an empty loop: {machine['loop_s']:.2f} s"
    )
    versions = {"": {}}
    if arguments.before:
        path = os.pathsep.join([os.fspath(arguments.before.resolve()), os.fspath(HERE)])
        versions = {", before": {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}, "": {}}
    if "compiled" in engines:
        for environ in versions.values():
            machine["compiling"] = warm_up(not arguments.no_cold, environ)
        print(machine["compiling"])
    print("CPU seconds; kernel: the part of the engine that is neither lists nor compiling\n")
    print(header())
    rows, problems = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            case = CASES[name]
            runnable = [e for e in case.engines if e in engines and (arguments.long or e not in case.long)]
            if not runnable:
                continue
            try:
                source = write(name, Path(folder))
            except LookupError as missing:
                print(f"{name}: left out: {missing}")
                continue
            for engine, (version, environ) in product(runnable, versions.items()):
                loop = calibration()
                try:
                    runs = []
                    begin = time.monotonic()
                    while len(runs) < max(1, arguments.repeat) and (not runs or time.monotonic() - begin < 120):
                        runs.append(once(name, engine, source, environ))
                except RuntimeError as problem:
                    print(f"{name}{version}, {engine}: {problem}")
                    continue
                found = problems.setdefault((case.path, name), runs[0].get("makespan"))
                if found is not None and found != runs[0]["makespan"]:
                    raise SystemExit(f"{name}: the engines disagree: {found} and {runs[0]['makespan']} ps")
                row = row_of(name, engine, runs)
                rows.append({**row, "case": f"{name}{version}", "loop_s": loop})
                print(line(rows[-1]), flush=True)
                keep(rows, machine, arguments.out)
    if rows:
        for path in draw([row for row in rows if not row["case"].endswith(", before")], arguments.out):
            print(f"figure: {path}")


def keep(rows: list[dict], machine: dict, out: Path) -> None:
    """Rows as JSON and as CSV, written anew after each: a run that is broken off leaves what it had."""
    (out / "rows.json").write_text(json.dumps({**machine, "paths": PATHS, "rows": rows}, indent=1), "utf-8")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (out / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
