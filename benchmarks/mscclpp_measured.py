"""Compare measured times of MSCCL++'s own test kernels with simulation under `plans`. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from worlds.plan_drafts import Node, PlanDraft

from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.from_python import collective
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology import build
from astrasim_py.topology.hardware import machine, profile
from astrasim_py.topology.profile import LibraryProfile

PRESETS = {"A100": "dgx_a100", "H100": "dgx_h100"}
#: NPUs of a node, and parts that two nodes take a buffer in.
NODE, PARTS = 8, 3


class Row(NamedTuple):
    """A measured row. `fitted`: whether the shipped numbers were fitted to it, as every second row of a GPU was."""

    gpu: str
    collective: str
    kernel: int
    ranks: int
    size: int
    time_us: float
    fitted: bool


def peers_of(rank: int) -> list[int]:
    """The other ranks of a node, in ascending order."""
    first = rank // NODE * NODE
    return [peer for peer in range(first, first + NODE) if peer != rank]


def counterpart(rank: int, ranks: int) -> int:
    """The rank of the other node with the same place."""
    return (rank + NODE) % ranks


def one_phase(ranks: int) -> Algorithm:
    """Kernel 2: everyone sends the buffer to everyone in packets, 7 blocks; between nodes once more by a port."""
    blocks = NODE - 1
    plan = PlanDraft(ranks, blocks)
    arrived: dict[int, list[Node]] = {rank: [] for rank in range(ranks)}
    for rank in range(ranks):
        for block, peer in enumerate(peers_of(rank)):
            arrived[peer].append(plan.put(rank, block, peer, blocks, packets=True))
    for rank in range(ranks):
        for block in range(blocks):
            plan.work(rank, block, blocks, after=arrived[rank])  # a seventh of seven buffers
    if ranks > NODE:
        for rank in range(ranks):
            plan.meet(rank, range(blocks))
        other = [plan.port(rank, 0, counterpart(rank, ranks), blocks, packets=True) for rank in range(ranks)]
        for rank in range(ranks):
            plan.work(rank, 0, blocks, after=[other[counterpart(rank, ranks)]])
    return plan.algorithm(protocol="LL")


def two_phases(ranks: int) -> Algorithm:
    """Kernel 6: a shard to each peer in packets, 21 blocks, three to each; they reduce it and send it to all."""
    blocks = 3 * (NODE - 1)
    plan = PlanDraft(ranks, ranks * blocks)
    arrived, reduced = ({rank: [] for rank in range(ranks)} for _ in range(2))
    for rank in range(ranks):
        for block in range(blocks):
            peer = peers_of(rank)[block // 3]
            arrived[peer].append(plan.put(rank, block, peer, NODE - 1, packets=True))
    for rank in range(ranks):
        for block in range(blocks):
            plan.work(rank, block, NODE - 1, after=arrived[rank])  # a part of a shard, from seven peers
            for peer in peers_of(rank):
                reduced[peer].append(plan.put(rank, block, peer, packets=True))
    for rank in range(ranks):
        for block in range(blocks):
            plan.work(rank, block, NODE - 1, after=reduced[rank])
    return plan.algorithm(protocol="LL")


def steps_by_ports(plan: PlanDraft, cnt: int, reducing: int = 0) -> None:
    """Every rank sends to the next one, then to the one after it, …: by ports, waiting for what it receives.

    `reducing`: number of blocks that add what has come, while the next message is under way.
    """
    ranks = plan.draft.ranks
    last: dict[int, Node] = {}
    for step in range(1, NODE):
        sent = {}
        for rank in range(ranks):
            if reducing and rank in last:
                plan.wait(rank, 0, last[rank])
            peer = rank // NODE * NODE + (rank + step) % NODE
            sent[peer] = plan.port(rank, 0, peer, cnt)
        for rank in range(ranks):
            if not reducing:
                plan.wait(rank, 0, sent[rank])
            elif rank in last:
                add(plan, rank, reducing, cnt)
        last = sent
    for rank in range(ranks) if reducing else ():
        plan.wait(rank, 0, last[rank])
        add(plan, rank, reducing, cnt)


def add(plan: PlanDraft, rank: int, blocks: int, cnt: int, first: int = 0) -> None:
    """Blocks meet, then each adds its part of what has come."""
    plan.meet(rank, range(first, first + blocks))
    for block in range(first, first + blocks):
        plan.work(rank, block, cnt // blocks)


def hierarchical(plan: PlanDraft, cnt: int, reduce: Callable[[int], None], gather: Callable[[int], None], blocks: int):
    """An all_reduce of shards of `cnt` chunks: reduced and gathered in a node, and between two in parts."""
    ranks = plan.draft.ranks
    if ranks == NODE:
        reduce(cnt)
        meet_all(plan, blocks)
        gather(cnt)
        return
    part = cnt // PARTS
    reduce(part)
    for sent, meanwhile in ((part, cnt - part), (cnt - part, cnt)):
        meet_all(plan, blocks)
        arrived = exchange(plan, sent)
        reduce(meanwhile)
        for rank in range(ranks):
            plan.wait(rank, 0, arrived[rank])
            add(plan, rank, blocks, sent)
    meet_all(plan, blocks)
    for sent, meanwhile in ((cnt - part, cnt), (part, cnt - part)):
        arrived = exchange(plan, sent)
        gather(meanwhile)
        for rank in range(ranks):
            plan.wait(rank, 0, arrived[rank])
        meet_all(plan, blocks)
    gather(part)


def exchange(plan: PlanDraft, cnt: int) -> dict[int, Node]:
    """Every rank sends to its counterpart on the other node; by receiver."""
    ranks = plan.draft.ranks
    return {counterpart(rank, ranks): plan.port(rank, 0, counterpart(rank, ranks), cnt) for rank in range(ranks)}


def meet_all(plan: PlanDraft, blocks: int) -> None:
    for rank in range(plan.draft.ranks):
        plan.meet(rank, range(blocks))


def by_ports(ranks: int) -> Algorithm:
    """Kernel 3: step by step through ports, 24 blocks add."""
    cnt, blocks = 24 * PARTS, 24
    plan = PlanDraft(ranks, ranks * cnt)
    hierarchical(
        plan, cnt, lambda part: steps_by_ports(plan, part, blocks), lambda part: steps_by_ports(plan, part), blocks
    )
    return plan.algorithm()


def by_loads(ranks: int) -> Algorithm:
    """Kernel 4: 35 blocks load a shard from all peers and add it; then 45 load the shards, 6 or 7 from each peer."""
    cnt, reducing, blocks = 210 * PARTS, 35, 45
    plan = PlanDraft(ranks, ranks * cnt)

    def handshake(rank: int, senders: Iterable[int]) -> None:
        for block, peer in zip(senders, peers_of(rank), strict=True):
            plan.wait(rank, block, signals[peer, rank])

    def reduce(part: int) -> None:
        nonlocal signals
        signals = {(rank, peer): plan.signal(rank, 0, peer) for rank in range(ranks) for peer in peers_of(rank)}
        for rank in range(ranks):
            handshake(rank, [0] * (NODE - 1))
            plan.meet(rank, range(reducing))
            for block in range(reducing):
                plan.load(rank, block, peers_of(rank), part // reducing)
                plan.work(rank, block, (NODE - 1) * part // reducing)

    def gather(part: int) -> None:
        nonlocal signals
        signals = {
            (rank, peer): plan.signal(rank, block, peer)
            for rank in range(ranks)
            for block, peer in enumerate(peers_of(rank))
        }
        for rank in range(ranks):
            handshake(rank, range(NODE - 1))
            plan.meet(rank, range(blocks))
            for block in range(blocks):
                place = block % (NODE - 1)
                plan.load(rank, block, [peers_of(rank)[place]], part // (7 if place < blocks % (NODE - 1) else 6))

    signals: dict[tuple[int, int], Node] = {}
    hierarchical(plan, cnt, reduce, gather, blocks)
    return plan.algorithm()


def steps_alone(kind: str) -> Callable[[int], Algorithm]:
    """Kernel 1 of all_gather and all_to_all: step by step through ports."""

    def kernel(ranks: int) -> Algorithm:
        plan = PlanDraft(ranks, ranks)
        steps_by_ports(plan, 1)
        return plan.algorithm(kind, in_place=kind != "all_to_all")

    return kernel


KERNELS: dict[tuple[str, int], Callable[[int], Algorithm]] = {
    ("all_reduce", 2): one_phase,
    ("all_reduce", 3): by_ports,
    ("all_reduce", 4): by_loads,
    ("all_reduce", 6): two_phases,
    ("all_gather", 1): steps_alone("all_gather"),
    ("all_to_all", 1): steps_alone("all_to_all"),
}


@cache
def algorithm_of(kind: str, kernel: int, ranks: int) -> Algorithm:
    return KERNELS[kind, kernel](ranks)


def read(path: str) -> list[Row]:
    """Rows of MSCCL++'s kernels; of each GPU the first, third, … are those of the fit."""
    rows, count = [], dict.fromkeys(PRESETS, 0)
    with open(path, encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            kernel = line["program"].rpartition(" ")[2]
            if line["gpu"] not in PRESETS or (line["collective"], int(kernel)) not in KERNELS:
                continue
            count[line["gpu"]] += 1
            rows.append(
                Row(
                    line["gpu"], line["collective"], int(kernel), int(line["ranks"]), int(line["bytes"]),
                    float(line["time_us"]), count[line["gpu"]] % 2 == 1,
                )
            )  # fmt: skip
    return rows


def simulated_us(row: Row, costs: LibraryProfile) -> float:
    topology = build(machine(PRESETS[row.gpu], row.ranks))
    plan = algorithm_of(row.collective, row.kernel, row.ranks)
    return simulate(collective(row.collective, row.size, topology, algorithm=plan, profile=costs)).makespan / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", help="measured times: CSV with gpu, collective, program, ranks, bytes, time_us")
    args = parser.parse_args()
    errors: dict[bool, list[float]] = {True: [], False: []}
    print(
        f"{'GPU':<6}{'collective':<12}{'kernel':>7}{'ranks':>7}{'bytes':>12}{'measured':>11}{'simulated':>11}{'error':>8}"
    )
    for row in read(args.rows):
        time = simulated_us(row, profile(PRESETS[row.gpu]))
        errors[row.fitted].append(error := time / row.time_us - 1)
        cells = f"{row.gpu:<6}{row.collective:<12}{row.kernel:>7}{row.ranks:>7}{row.size:>12}"
        print(f"{cells}{row.time_us:>11.2f}{time:>11.2f}{error:>8.1%}{' fitted' if row.fitted else ''}")
    for fitted, values in errors.items():
        off = sorted(map(abs, values))
        kind = "fitted" if fitted else "not fitted"
        print(f"{kind}: {len(off)} rows, median {median(off):.1%}, worst {off[-1]:.1%}")


if __name__ == "__main__":
    main()
