"""Set the synthesizer against exact optima and published schedules, a process a problem. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

#: Columns of the optima by collective: the optimum, and what no algorithm exceeds where the optimum is not known.
OPTIMA = {
    "all_gather": ("ag_GBps",),
    "reduce_scatter": ("rs_GBps",),
    "broadcast": ("bc_root0_GBps",),
    "all_reduce": ("ar_GBps", "ar_up_GBps"),
    "all_to_all": ("a2a_GBps",),
}
#: Part of a time by which two schedules may differ and count as equal.
EQUAL = 1e-6
LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
UNLIKE = {"bandwidth": ["100 GB/s", "25 GB/s"], "latency": "500 ns"}
FAILED = {"links": [[5, 6]]}
#: Networks of up to 16 NPUs.
SMALL: dict[str, dict] = {
    "ring_8": {"shape": "ring", "npus": 8, **LINK},
    "ring_8_one_way": {"shape": "ring", "npus": 8, "bidirectional": False, **LINK},
    "torus_4x4": {"shape": "torus", "dims": [4, 4], **LINK},
    "torus_4x4_unlike": {"shape": "torus", "dims": [4, 4], **UNLIKE},
    "mesh_4x4": {"shape": "mesh", "dims": [4, 4], **LINK},
    "mesh_4x4_unlike": {"shape": "mesh", "dims": [4, 4], **UNLIKE},
    "mesh_4x4_failed": {"shape": "mesh", "dims": [4, 4], "failed": FAILED, **LINK},
    "hypercube_16": {"shape": "hypercube", "npus": 16, **LINK},
    "fully_connected_8": {"shape": "fully_connected", "npus": 8, **LINK},
    "switch_8": {"shape": "switch", "npus": 8, **LINK},
}
SMALL_SIZES = (2**16, 2**24)
SMALL_COLLECTIVES = (*OPTIMA, "reduce", "gather", "scatter")
WIDTHS = {
    "problem": -25, "collective": -14, "size_bytes": 14, "chunks": 6, "time_us": 14, "GBps": 9, "of_optimum": 10,
    "reference_us": 14, "bound_us": 14, "bound_kind": -9, "efficiency": 10, "cpu_s": 7, "mb": 6, "policy": -30,
}  # fmt: skip


def measured(case: dict, begin: float) -> dict:
    """One problem, synthesized and checked in this process: what came out, CPU seconds since `begin`, MB so far."""
    from astrasim_py.preparation.schedules import find
    from astrasim_py.synthesis.request import Request
    from astrasim_py.topology import build
    from astrasim_py.topology.topology_files import read_edge_list

    where = case["topology"]
    topology = read_edge_list(Path(where)) if isinstance(where, str) else build(where)
    npus = tuple(case["npus"] or range(topology.npus))
    root = 0 if case["collective"] in ("broadcast", "reduce", "gather", "scatter") else None
    request = Request(
        topology=topology, npus=npus, collective=case["collective"], size=case["size"], chunks=case["chunks"],
        root=root, relays=case["relays"], rounds=case["rounds"], budget=case["budget"],
        **({"memory": case["memory"]} if case["memory"] else {}),
    )  # fmt: skip
    wall = time.monotonic()
    result = find(request, fresh=True, jobs=case["threads"])
    wall = time.monotonic() - wall
    schedule = result.schedule
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return {
        "npus": len(npus),
        "chunks": result.chunks,
        "time_us": schedule.time / 1e6,
        "GBps": case["size"] / schedule.time * 1e3,
        "bound_us": schedule.bound / 1e6,
        "bound_kind": schedule.bound_kind,
        "efficiency": schedule.efficiency,
        "policy": schedule.search.policy,
        "rounds": schedule.search.rounds,
        "transfers": schedule.transfers,
        "cut": schedule.search.cut,
        "wall_s": round(wall, 3),
        "cpu_s": round(time.process_time() - begin, 3),
        "mb": round(max(resource.getrusage(who).ru_maxrss for who in users) / 1024),
    }


def results(cases: list[dict]) -> Iterator[dict]:
    """The results of cases, computed one after the other in one process beside this one."""
    command = [sys.executable, __file__, "--cases", json.dumps(cases)]
    child = subprocess.run(command, capture_output=True, text=True)
    rows = [json.loads(text) for text in child.stdout.splitlines()]
    yield from rows
    reason = (child.stderr.splitlines() or [f"exit {child.returncode}"])[-1]
    yield from ({"policy": f"failed: {reason}"} for _ in cases[len(rows) :])


def read(path: Path) -> list[dict]:
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def of_optima(folder: Path, options: argparse.Namespace) -> Iterator[tuple[dict, dict]]:
    """Case and reference of each topology with known optima, and each collective."""
    for row in read(folder / "optima_public.csv"):
        if int(row["npus"]) > options.most:
            continue
        for collective in options.collectives:
            names = OPTIMA[collective]
            name = next(name for name in names if row[name])
            least = options.size / float(row[name]) / 1e3
            case = {"topology": str(folder / "topologies" / f"{row['topology']}.csv"), "npus": None}
            case |= {"collective": collective, "size": options.size, "relays": False}
            yield case, {"problem": row["topology"], "optimum": name.removesuffix("_GBps"), "optimum_us": least}


def of_published(folder: Path, options: argparse.Namespace) -> Iterator[tuple[dict, dict]]:
    """Case and reference of each published schedule. Problems of fewer GPUs than NPUs have the others as relays."""
    for row in read(folder / "teccl_public.csv"):
        if row["collective"] not in options.collectives:
            continue
        npus, size = None, int(row["size_bytes"])
        if row["participants"] != "all":
            first, last = map(int, row["participants"].split("-"))
            npus = list(range(first, last + 1))
            size = math.ceil(float(row["shard_bytes"]) * len(npus))
        case = {"topology": str(folder / "topologies" / f"{row['topology']}.csv"), "npus": npus}
        case |= {"collective": row["collective"], "size": size, "relays": npus is not None}
        fields = {"problem": row["topology"], "reference_us": float(row["published_us"])}
        yield case, {**fields, "reference_s": float(row["solver_s"]), "note": row["note"]}


def of_small(options: argparse.Namespace) -> Iterator[tuple[dict, dict]]:
    """Case and name of each collective of two sizes on networks of up to 16 NPUs."""
    for name, keys in SMALL.items():
        for collective in SMALL_COLLECTIVES:
            for size in SMALL_SIZES:
                case = {"topology": keys, "npus": None, "collective": collective, "size": size, "relays": False}
                yield case, {"problem": name}


def joined(case: dict, reference: dict, result: dict) -> dict:
    """The row of a problem."""
    row = {**reference, "collective": case["collective"], "size_bytes": case["size"], **result}
    if "time_us" not in result:
        return row
    if "optimum_us" in reference:
        row["of_optimum"] = reference["optimum_us"] / result["time_us"]
    if "reference_us" in reference:
        theirs, ours = reference["reference_us"], result["time_us"]
        equal = abs(ours - theirs) <= EQUAL * theirs
        row["verdict"] = "equal" if equal else "faster" if ours < theirs else "slower"
        if row["verdict"] == "slower" and ours <= result["bound_us"] * (1 + EQUAL):
            row["verdict"] = "slower, at the bound"
    return row


def line(row: dict) -> str:
    cells = []
    for name, width in WIDTHS.items():
        value = row.get(name, "")
        if name in ("of_optimum", "efficiency") and value != "":
            value = f"{value:.2%}"
        elif isinstance(value, float):
            value = f"{value:.3f}" if name.endswith("_us") else f"{value:.1f}"
        cells.append(f"{value!s:{'<' if width < 0 else '>'}{abs(width)}}")
    return " ".join([*cells, row.get("verdict", "")]).rstrip()


def main() -> None:
    from astrasim_py.cli.synthesize import arguments

    defaults = argparse.ArgumentParser()
    arguments(defaults)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="?", choices=("optima", "published", "small"), default="optima")
    folder = Path(os.environ.get("ASTRASIM_GOLDEN", ".")) / "synthesis"
    parser.add_argument("--folder", type=Path, default=folder, help="topologies/, optima_public.csv, teccl_public.csv")
    parser.add_argument("--only", default="", help="problems whose name has this in it")
    parser.add_argument("--collectives", nargs="+", choices=OPTIMA, default=list(OPTIMA), metavar="NAME")
    parser.add_argument("--most", type=int, default=128, metavar="N", help="largest number of NPUs (optima)")
    parser.add_argument("--size", type=int, default=10**9, help="bytes of the buffer (optima)")
    parser.add_argument("--chunks", default=defaults.get_default("chunks"), help="a number, or auto")
    parser.add_argument("--rounds", type=int, default=defaults.get_default("rounds"))
    parser.add_argument("--budget", type=float, help="seconds for each problem at most")
    parser.add_argument("--memory", type=int, help="bytes for each problem at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path, metavar="OUT", help="write the rows, too")
    parser.add_argument("--cases", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cases:
        begin = 0.0
        for case in json.loads(options.cases):
            print(json.dumps(measured(case, begin)), flush=True)
            begin = time.process_time()
        return
    common = {"chunks": None if options.chunks == "auto" else int(options.chunks), "rounds": options.rounds}
    common |= {"budget": options.budget, "memory": options.memory, "threads": options.threads}
    if options.problems == "small":
        pairs = list(of_small(options))
    else:
        pairs = list({"optima": of_optima, "published": of_published}[options.problems](options.folder, options))
    pairs = [(case | common, reference) for case, reference in pairs if options.only in reference["problem"]]
    if not pairs:
        raise SystemExit("no problems")
    # Compiles what is not compiled yet, so that no row includes it.
    warm = {"topology": SMALL["torus_4x4"], "npus": None, "relays": False, "size": 2**16, **common}
    warm_up = [warm | {"collective": name} for name in (*OPTIMA, "gather")]
    for _ in results(warm_up):
        pass
    if options.problems == "small":
        # In one process, as what a process begins with takes longer than these.
        outcomes = islice(results([*warm_up, *(case for case, _ in pairs)]), len(warm_up), None)
    else:
        outcomes = (next(results([case])) for case, _ in pairs)
    rows: list[dict] = []
    print(" ".join(f"{name[: abs(w)]:{'<' if w < 0 else '>'}{abs(w)}}" for name, w in WIDTHS.items()).rstrip())
    for (case, reference), result in zip(pairs, outcomes, strict=True):
        rows.append(joined(case, reference, result))
        print(line(rows[-1]), flush=True)
        if options.csv:
            names = list(dict.fromkeys(name for row in rows for name in row))
            with open(options.csv, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(rows)
    print(f"\n{len(rows)} problems, {sum(row.get('cpu_s', 0) for row in rows):.0f} CPU s", end="")
    shares = sorted(row["of_optimum"] for row in rows if "of_optimum" in row)
    if shares:
        print(f"; of the optimum: least {shares[0]:.2%}, median {shares[len(shares) // 2]:.2%}", end="")
    verdicts = Counter(row["verdict"] for row in rows if "verdict" in row)
    print("".join(f"; {name} {count}" for name, count in verdicts.most_common()))


if __name__ == "__main__":
    main()
