"""Compare measured all_gathers on 2 nodes of 16 MI250 dies with simulation. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from mscclpp_measured import print_errors

from astrasim_py.builders.registry import build
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.preparation.schedules import find
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.request import Request
from astrasim_py.topology.edge_list import NO_DEFAULTS, read_csv
from astrasim_py.topology.model import Topology
from astrasim_py.topology.profile import LibraryProfile, Protocol

NODE, RANKS = 16, 32
PS_PER_US, GB_PER_S = 10**6, Fraction(10**9)
#: Fitted to every second size, both programs: of all messages between nodes together, in one direction, in GB/s; of a
#: call; of a message.
BETWEEN, LAUNCH_US, STEP_US = 8.3, 78, Fraction(9, 10)


class Row(NamedTuple):
    """A measured time. `synthesized`: of TE-CCL's program; else of RCCL."""

    size: int
    synthesized: bool
    time_us: float
    fitted: bool


def two_nodes(path: str) -> Topology:
    """The machine of a file, in which each node has a switch of its own in place of `ib`, and a link joins them."""
    header, *links = [line for line in Path(path).read_text("utf-8").splitlines() if not line.startswith("#")]
    lines = [f"# npus {RANKS}", header]
    for link in links:
        src, dst, *costs = link.split(",")
        npu = int(dst if src == "ib" else src)
        ends = (f"node{npu // NODE}" if end == "ib" else end for end in (src, dst))
        lines.append(",".join((*ends, *costs)))
    lines += [f"node0,node1,{BETWEEN},0.5", f"node1,node0,{BETWEEN},0.5"]
    return read_csv("\n".join(lines) + "\n", path, NO_DEFAULTS)


def synthesized(topology: Topology) -> Algorithm:
    """An all_gather of two chunks of each rank, as many as in TE-CCL's program."""
    request = Request(topology=topology, npus=tuple(range(RANKS)), collective="all_gather", size=2**26, chunks=2)
    return emit(find(request).schedule, clock=False)


def rows(path: str) -> Iterator[Row]:
    """Rows of the machine, by size; every second size is one of the fit."""
    with open(path, encoding="utf-8") as lines:
        measured = [line for line in csv.DictReader(lines) if line["gpu"] == "MI250"]
    sizes = sorted({int(line["bytes"]) for line in measured})
    for line in measured:
        size = int(line["bytes"])
        yield Row(size, line["in_place"] == "1", float(line["time_us"]), sizes.index(size) % 2 == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", help="measured times: CSV with gpu, in_place, bytes, time_us")
    parser.add_argument("topology", help="links of the machine: CSV, its switch between the nodes is ib")
    args = parser.parse_args()
    topology = two_nodes(args.topology)
    costs = Protocol(launch=LAUNCH_US * PS_PER_US, step=int(STEP_US * PS_PER_US), rate=16 * GB_PER_S)
    profile = LibraryProfile(
        library="RCCL 2.18.3", ranks=(RANKS,), sizes=(512, 2**30), dtypes=("half",), channels=2, link=16 * GB_PER_S,
        protocols={"Simple": costs},
    )  # fmt: skip
    algorithms = {True: synthesized(topology), False: build("ring", "all_gather", RANKS)}
    errors: dict[bool, list[float]] = {True: [], False: []}
    print(f"{'bytes':>11}  {'program':<12}{'measured':>11}{'simulated':>11}{'error':>8}")
    for row in rows(args.rows):
        call = collective("all_gather", row.size, topology, algorithm=algorithms[row.synthesized], profile=profile)
        time = simulate(call).makespan / PS_PER_US
        errors[row.fitted].append(error := time / row.time_us - 1)
        cells = f"{row.size:>11}  {'synthesized' if row.synthesized else 'ring':<12}"
        print(f"{cells}{row.time_us:>11.1f}{time:>11.1f}{error:>8.1%}{' fitted' if row.fitted else ''}")
    print_errors(errors)


if __name__ == "__main__":
    main()
