"""Write what a case reads: traces, scenarios, and ASTRA-sim's own files, which our command and ASTRA-sim read alike."""

from __future__ import annotations

import json
import os
from pathlib import Path

from cases import CASES, SIZE, Case


def write(name: str, folder: Path) -> Path:
    """Write the inputs of a case into a folder of its own; the file or prefix that it is run with."""
    case = CASES[name]
    place = folder / name
    if case.path == "astra-sim":
        return astra_sim(case, place)
    if "scenario" in case.problem:
        return Path(__file__).resolve().parents[1] / "scenarios" / case.problem["scenario"]
    if case.path == "validate":
        return _users(case) / "astra_sim" / "cases.csv"
    if case.path == "traces":
        return _traces(case, place)
    if case.path == "builder":
        return place
    place.mkdir(parents=True, exist_ok=True)
    from measure import scenario

    import astrasim_py as ap

    kind = case.problem.get("collective", "all_reduce")
    prefix = None
    if case.path in ("files", "npz") or (case.path == "scenario" and "algorithm" not in case.problem):
        prefix = place / ("ring.npz" if case.path == "npz" else "ring")
        algorithm = ap.build_algorithm(case.problem.get("algorithm", "ring"), kind, case.npus)
        ap.write_algorithm(prefix, algorithm)
        if case.path != "scenario":
            return prefix
    path = place / "bench.json.yaml"
    # JSON is YAML, and needs no writer of ours.
    path.write_text(json.dumps(scenario(case, prefix and prefix.name), indent=1), "utf-8")
    return path


def _users(case: Case) -> Path:
    """A folder that is the user's own."""
    found = os.environ.get(case.problem["environ"])
    if not found:
        raise LookupError(f"set {case.problem['environ']}")
    return Path(found)


def _traces(case: Case, place: Path) -> Path:
    from measure import scenario

    source = _users(case)
    place.mkdir(parents=True, exist_ok=True)
    (link := place / "traces").unlink(missing_ok=True)
    link.symlink_to(source.resolve(), target_is_directory=True)
    found = scenario(case, "traces/w")
    found["workload"]["groups"] = f"traces/{case.problem['groups']}"
    path = place / "bench.yaml"
    path.write_text(json.dumps(found, indent=1), "utf-8")
    return path


def astra_sim(case: Case, place: Path) -> Path:
    """Files of one all-reduce for ASTRA-sim 2: workload, network, system and memory; the folder.

    Injected algorithms are written with absolute sizes, which all versions of ASTRA-sim read.
    """
    import astrasim_py as ap
    from astrasim_py.chakra.et_io import write_prefix

    place.mkdir(parents=True, exist_ok=True)
    network = ap.build_topology(shape="ring", npus=case.npus, bandwidth="50 GiB/s", latency="500 ns")
    call = ap.collective("all_reduce", SIZE, network).jobs[0].workload
    write_prefix(place / "all_reduce", call.traces)
    (place / "network.yml").write_text(
        f"topology: [ Ring ]\nnpus_count: [ {case.npus} ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n", "utf-8"
    )
    (place / "memory.json").write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}), "utf-8")
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "all-reduce-implementation": ["ring"],
        "collective-optimization": "localBWAware",
        "local-mem-bw": 1600,
    }
    if case.problem["algorithm"] == "files":
        algorithm = ap.build_algorithm("ring", "all_reduce", case.npus)
        ap.write_algorithm(place / "ring", algorithm, size=SIZE)
        # ASTRA-sim looks for it from the working directory.
        system["all-reduce-implementation-custom"] = [os.fspath(place / "ring")]
    else:
        system["all-reduce-implementation"] = [case.problem["algorithm"]]
    (place / "system.json").write_text(json.dumps(system, indent=1), "utf-8")
    return place


def flags(place: Path) -> list[str]:
    """ASTRA-sim's flags for files of `astra_sim`, for its binaries and for our command."""
    return [
        f"--workload-configuration={place / 'all_reduce'}",
        f"--system-configuration={place / 'system.json'}",
        f"--network-configuration={place / 'network.yml'}",
        f"--remote-memory-configuration={place / 'memory.json'}",
    ]
