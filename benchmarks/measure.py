"""Run one case in this process and say what its parts cost; `run.py` starts it, once for every figure."""

from __future__ import annotations

import json
import os
import sys
import time

from cases import CASES, RING, SIZE, Case


def topology_keys(case: Case) -> dict:
    """The keys of its topology, as a scenario would have them."""
    keys = dict(case.problem.get("shape", RING))
    if "dims" not in keys:
        keys["npus"] = case.npus
    if case.problem.get("scattered"):
        # No two of them have a small common multiple, so that times which begin together soon part.
        n = case.npus
        keys["links"] = [
            {"from": i, "to": (i + 1) % n, "latency": f"{500 + (7919 * i % 10007) / 1000:.3f} ns"} for i in range(n)
        ]
    return keys


def scenario(case: Case, prefix: str | None = None) -> dict:
    """The case as a scenario; `prefix` of the files of its algorithm or workload, relative to its folder."""
    kind = case.problem.get("collective", "all_reduce")
    found: dict = {"name": "bench", "topologies": {"network": topology_keys(case)}}
    found["network"] = {"model": case.problem.get("model", "cut_through")}
    if case.path == "traces":
        found["workload"] = {"trace": prefix, "size_unit": "elements", "dtype_bytes": 2, "macs": True}
        if "groups" in case.problem:
            found["workload"]["groups"] = case.problem["groups"]
        found["compute"] = {"peak": "312 TFLOP/s", "memory_bandwidth": "2 TB/s"}
        return found
    found["workload"] = [{kind: {"size": f"{SIZE} B"}}]
    if prefix:
        found["algorithms"] = {kind: {"file": prefix}}
    else:
        found["algorithms"] = {
            kind: {"builder": case.problem.get("algorithm", "ring"), **case.problem.get("options", {})}
        }
    if "collectives" in case.problem:
        found["collectives"] = case.problem["collectives"]
    return found


class Laps:
    """CPU seconds since the lap before, by name."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self.last = 0.0  # of the process, so that the first lap is its start

    def __call__(self, name: str) -> None:
        now = time.process_time()
        self.found[name] = now - self.last
        self.last = now


def measure(name: str, engine: str, source: str) -> dict:
    """CPU seconds of each part. `source` is the file or prefix that the case reads, or the scenario."""
    import astrasim_py as ap
    from astrasim_py.system.lowering import make_plan

    case = CASES[name]
    _load(case.path, engine)
    laps = Laps()
    laps("start")
    if case.path in ("builder", "files", "npz"):
        kind = case.problem.get("collective", "all_reduce")
        if case.path == "builder":
            algorithm = ap.build_algorithm(
                case.problem.get("algorithm", "ring"), kind, case.npus, **case.problem.get("options", {})
            )
        else:
            algorithm = ap.read_algorithm(source)
        laps("read")
        topology = ap.build_topology(**topology_keys(case))
        problem = ap.collective(
            kind, SIZE, topology, algorithm=algorithm, model=case.problem.get("model", "cut_through")
        )
    else:
        (point,) = ap.expand(ap.load_scenario(source, allow_outside=True))
        problem = ap.prepare(point)
        laps("read")
    plan = make_plan(problem)
    laps("plan")
    records = ap.simulate(plan, engine=engine, level=case.level)
    laps("engine")
    if records.outcome.status != "done":
        raise SystemExit(f"{name}: {records.outcome.status}: {records.outcome.cause}")
    return {
        "messages": records.messages,
        "hops": records.message_hops,
        "makespan": records.makespan,
        "ran": records.engine,
        "kernel": records.cpu_s,
        **laps.found,
    }


def _load(path: str, engine: str) -> None:
    """Import what the run will need, and have compiled code read from its cache: `start` pays for it, no part does."""
    import astrasim_py.api
    import astrasim_py.msccl.to_traces

    if path not in ("builder", "files", "npz"):
        import astrasim_py.preparation.prepare  # noqa: F401
    _tiny(engine)


def _tiny(engine: str) -> None:
    import astrasim_py as ap

    ring = ap.build_topology(**RING, npus=4)
    ap.simulate(ap.collective("all_reduce", "1 KiB", ring, algorithm="ring"), engine=engine, level="summary")


def warm() -> None:
    """Have everything compiled that any case needs, on every path: what is compiled is kept on disk."""
    import tempfile

    import astrasim_py as ap
    from astrasim_py.core.choices import LEVELS

    ring = ap.build_topology(**RING, npus=4)
    for level in LEVELS:
        ap.simulate(ap.collective("all_reduce", "1 KiB", ring, algorithm="ring"), engine="compiled", level=level)
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "ring")
        algorithm = ap.build_algorithm("ring", "all_reduce", 256)
        ap.write_algorithm(prefix, algorithm)
        ap.read_algorithm(prefix)


if __name__ == "__main__":
    if sys.argv[1] == "--warm":
        warm()
        print(json.dumps({"cpu": time.process_time()}))
    else:
        print(json.dumps(measure(*sys.argv[1:4])))
