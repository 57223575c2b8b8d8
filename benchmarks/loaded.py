"""What a process loads: modules and lines of the package by room, and CPU seconds.

python benchmarks/loaded.py [--before ../old] [--list]

CPU s is the least of the processes, with bytecode kept and with this package compiled anew, as where none can be kept
(PYTHONDONTWRITEBYTECODE).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from run import child

#: Name of each loaded module → its lines, and what imports it first.
Loaded = dict[str, tuple[int, str]]
ROOT = Path(__file__).resolve().parents[1]
#: Four NPUs in a ring, from Python.
RING = """
import astrasim_py as ap
ring = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
ap.simulate(ap.collective("all_reduce", "1 MiB", ring))
"""
RUN = """
import sys
from astrasim_py.cli.main import main
if code := main(sys.argv[1:]):
    sys.exit(code)
"""
#: Notes which module imports each first.
TRACED = """
import builtins, sys
plain = builtins.__import__
def traced(name, globals=None, *rest, **more):
    before = set(sys.modules)
    module = plain(name, globals, *rest, **more)
    for new in set(sys.modules) - before:
        if new.partition(".")[0] == "astrasim_py":
            vars(sys.modules[new]).setdefault("_importer", (globals or {}).get("__name__", ""))
    return module
builtins.__import__ = traced
"""
PRINT = """
import json, sys
ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "astrasim_py"}
lines = {name: (sum(1 for _ in open(module.__file__, encoding="utf-8")), vars(module).get("_importer", ""))
         for name, module in ours.items() if module.__file__}
print("\\n" + json.dumps(lines))
"""


def cases(folder: Path) -> dict[str, list[str]]:
    """Name of what is measured → code and arguments."""
    scenarios = ROOT / "scenarios"
    plain = folder / "plain.yaml"
    plain.write_text((scenarios / "first_steps.yaml").read_text("utf-8").partition("\nplots:")[0], "utf-8")
    paths = {"no figures": plain} | {name: scenarios / f"{name}.yaml" for name in ("first_steps", "ring_vs_torus")}
    return {"ap.simulate": [RING]} | {
        f"run {name}": [RUN, "run", str(path), "--out", str(folder / name), "--quiet", "--fresh", "--jobs", "1"]
        for name, path in paths.items()
    }


def modules(case: list[str], environ: dict[str, str], traced: bool = False) -> Loaded:
    """Name of each loaded module → its lines, and what imports it first."""
    code, *arguments = case
    command = [sys.executable, "-P", "-c", TRACED * traced + code + PRINT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environ})
    return json.loads(done.stdout.splitlines()[-1])


def seconds(case: list[str], environ: dict[str, str], repeat: int) -> float:
    """Least CPU seconds of a process."""
    return min(child([sys.executable, "-P", "-c", *case], environ)[1] for _ in range(repeat))


def measure(
    case: list[str], package: Path, repeat: int, traced: bool
) -> tuple[dict[str, tuple[int, str]], float, float]:
    """Loaded modules, and CPU seconds with bytecode kept and without that of the package."""
    with tempfile.TemporaryDirectory() as kept:
        environ = {"PYTHONPATH": str(package), "PYTHONPYCACHEPREFIX": kept, "PYTHONDONTWRITEBYTECODE": ""}
        loaded = modules(case, environ, traced)
        warm = seconds(case, environ, repeat)
        shutil.rmtree(kept + str(package / "astrasim_py"))
        return loaded, warm, seconds(case, environ | {"PYTHONDONTWRITEBYTECODE": "1"}, repeat)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--before", metavar="CLONE", type=Path, help="also of the package of another clone")
    parser.add_argument("--list", action="store_true", help="also each module, with what imports it first")
    parser.add_argument("--repeat", type=int, default=5, metavar="N")
    args = parser.parse_args()
    print(f"{'case':20} {'package':10} {'modules':>8} {'lines':>8} {'CPU s':>8} {'from source':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for name, case in cases(Path(folder)).items():
            for package in (path.resolve() for path in (args.before, ROOT) if path):
                loaded, *spent = measure(case, package, 1 if "torus" in name else args.repeat, args.list)
                lines = sum(count for count, _ in loaded.values())
                figures = f"{len(loaded):8,} {lines:8,} {spent[0]:8.2f} {spent[1]:12.2f}"
                print(f"{name:20} {package.name:10.10} {figures}", flush=True)
            rooms: dict[str, list[str]] = {}
            for module in loaded:
                rooms.setdefault((module.split(".") + [""])[1], []).append(module)
            for room, names in sorted(rooms.items()) if args.list else ():
                print(f"  {room or 'astrasim_py'}: {len(names)}, {sum(loaded[name][0] for name in names):,} lines")
                for name in sorted(names):
                    print(f"    {loaded[name][0]:5} {name}  < {loaded[name][1]}")


if __name__ == "__main__":
    main()
