"""Compare measured times of MSCCL++'s own test kernels with simulation under `plans`. See benchmarks/README.md."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Mapping
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

#: Rows that the shipped numbers were fitted to: every second one of a GPU.
FITTED = {
    ("A100", "all_gather", 1, 8, 2**30),
    ("A100", "all_reduce", 3, 8, 2**30),
    ("A100", "all_reduce", 4, 16, 48 * 2**20),
    ("A100", "all_reduce", 6, 8, 24 * 2**10),
    ("A100", "all_to_all", 1, 8, 2**30),
    ("H100", "all_reduce", 2, 16, 8 * 2**10),
    ("H100", "all_reduce", 4, 16, 3 * 2**30),
    ("H100", "all_reduce", 6, 8, 24 * 2**10),
}


class Row(NamedTuple):
    """A measured row."""

    gpu: str
    collective: str
    kernel: int
    ranks: int
    size: int
    time_us: float

    @property
    def fitted(self) -> bool:
        """Whether the shipped numbers were fitted to it."""
        return (self.gpu, self.collective, self.kernel, self.ranks, self.size) in FITTED


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


def two_phases(to_each: int) -> Callable[[int], Algorithm]:
    """Kernels 6 and 7: a shard to each peer in packets, 3 or 4 blocks to each; they reduce it and send it to all."""

    def kernel(ranks: int) -> Algorithm:
        blocks = to_each * (NODE - 1)
        plan = PlanDraft(ranks, ranks * blocks)
        arrived, reduced = ({rank: [] for rank in range(ranks)} for _ in range(2))
        for rank in range(ranks):
            for block in range(blocks):
                peer = peers_of(rank)[block // to_each]
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

    return kernel


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


def reduced(plan: PlanDraft, cnt: int, reduce: Callable[[int], None], blocks: int) -> None:
    """A reduce_scatter into shards of `cnt` chunks: in a node, and between two in parts."""
    if plan.draft.ranks == NODE:
        reduce(cnt)
        return
    part = cnt // PARTS
    reduce(part)
    for sent, meanwhile in ((part, cnt - part), (cnt - part, cnt)):
        meet_all(plan, blocks)
        arrived = exchange(plan, sent)
        reduce(meanwhile)
        for rank in range(plan.draft.ranks):
            plan.wait(rank, 0, arrived[rank])
            add(plan, rank, blocks, sent)


def gathered(plan: PlanDraft, cnt: int, gather: Callable[[int], None], blocks: int) -> None:
    """An all_gather of shards of `cnt` chunks: in a node, and between two in parts."""
    if plan.draft.ranks == NODE:
        gather(cnt)
        return
    part = cnt // PARTS
    for sent, meanwhile in ((cnt - part, cnt), (part, cnt - part)):
        arrived = exchange(plan, sent)
        gather(meanwhile)
        for rank in range(plan.draft.ranks):
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
    reduced(plan, cnt, lambda part: steps_by_ports(plan, part, blocks), blocks)
    meet_all(plan, blocks)
    gathered(plan, cnt, lambda part: steps_by_ports(plan, part), blocks)
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
    reduced(plan, cnt, reduce, blocks)
    meet_all(plan, blocks)
    gathered(plan, cnt, gather, blocks)
    return plan.algorithm()


def steps_alone(kind: str) -> Callable[[int], Algorithm]:
    """Kernels 1 of all_gather and all_to_all, and 2 of all_gather on two nodes: step by step through ports."""

    def kernel(ranks: int) -> Algorithm:
        plan = PlanDraft(ranks, PARTS * ranks)
        gathered(plan, PARTS, lambda part: steps_by_ports(plan, part), 1)
        return plan.algorithm(kind, in_place=kind != "all_to_all")

    return kernel


def all_at_once(ranks: int) -> Algorithm:
    """Kernel 0 of all_to_all: a part of the only block for each peer sends, and waits."""
    plan = PlanDraft(ranks, ranks)
    arrived = {
        (rank, peer): plan.port(rank, peer, peer) for rank in range(ranks) for peer in range(ranks) if peer != rank
    }
    for (sender, rank), node in arrived.items():
        plan.wait(rank, sender, node)
    return plan.algorithm("all_to_all", in_place=False)


KERNELS: dict[tuple[str, int], Callable[[int], Algorithm]] = {
    ("all_reduce", 2): one_phase,
    ("all_reduce", 3): by_ports,
    ("all_reduce", 4): by_loads,
    ("all_reduce", 6): two_phases(3),
    ("all_reduce", 7): two_phases(4),
    ("all_gather", 1): steps_alone("all_gather"),
    ("all_gather", 2): steps_alone("all_gather"),
    ("all_to_all", 0): all_at_once,
    ("all_to_all", 1): steps_alone("all_to_all"),
}


@cache
def algorithm_of(kind: str, kernel: int, ranks: int) -> Algorithm:
    return KERNELS[kind, kernel](ranks)


def read(path: str) -> list[Row]:
    """Rows of MSCCL++'s kernels."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            kernel = line["program"].rpartition(" ")[2]
            if line["gpu"] in PRESETS and (line["collective"], int(kernel)) in KERNELS:
                size, time = int(line["bytes"]), float(line["time_us"])
                rows.append(Row(line["gpu"], line["collective"], int(kernel), int(line["ranks"]), size, time))
    return rows


def simulated_us(row: Row, costs: LibraryProfile) -> float:
    topology = build(machine(PRESETS[row.gpu], row.ranks))
    plan = algorithm_of(row.collective, row.kernel, row.ranks)
    return simulate(collective(row.collective, row.size, topology, algorithm=plan, profile=costs)).makespan / 1e6


def print_errors(errors: Mapping[bool, list[float]]) -> None:
    """A line for the relative errors of fitted rows (True), and one for the others."""
    for fitted, values in errors.items():
        off = sorted(map(abs, values))
        kind = "fitted" if fitted else "not fitted"
        print(f"{kind}: {len(off)} rows, median {median(off):.1%}, worst {off[-1]:.1%}")


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
    print_errors(errors)


if __name__ == "__main__":
    main()
