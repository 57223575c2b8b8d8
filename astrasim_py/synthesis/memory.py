"""Memory that a search takes: predicted by bytes per transfer, which were measured.

Every search holds the process, its best schedule and what checks it; a stage adds what its runs hold at a time.
"""

from __future__ import annotations

from math import ceil

from astrasim_py.core.errors import EXIT_USAGE, AlgorithmError
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network

#: Bytes of a process that has loaded the synthesizer, and those per pair of ranks of a network.
PROCESS, _PAIR = 190 * 10**6, 60
#: Bytes per transfer of a schedule, and per hop of it, of a schedule and its check; of sums, which are mirrored copies.
_TRANSFER, _HOP, _SUM = 100, 90, 150
#: Bytes per transfer that each stage adds.
STAGES = {"straight": 40, "first_run": 230, "rotation": 60, "pattern": 150, "forest": 250, "searches": 230,
          "trees": 230, "queues": 150}  # fmt: skip


class OutOfMemory(AlgorithmError):
    """No schedule fits into the memory that a search may take."""

    exit_code = EXIT_USAGE


def transfers_of(network: Network, demand: Demand) -> int:
    """Transfers of a schedule (of chunks with one receiver each: an estimate)."""
    each = network.ranks - 1 if demand.receivers is None else 2 - network.direct
    return demand.count * each * (1 + (demand.collective == "all_reduce"))


def bytes_of(network: Network, demand: Demand, stage: str, chunks: int = 1) -> int:
    """Bytes resident at the peak of a stage, of a demand whose chunks are cut into so many more."""
    hops = len(network.hop) / max(network.arcs, 1)
    each = _TRANSFER + _HOP * hops + _SUM * demand.reduces + STAGES[stage]
    return PROCESS + _PAIR * network.ranks**2 + ceil(transfers_of(network, demand) * chunks * each)


def refuse(network: Network, demand: Demand) -> OutOfMemory:
    """The error where nothing fits."""
    least = min(bytes_of(network, demand, stage) for stage in STAGES)
    noun = f"{'an' if demand.collective[0] == 'a' else 'a'} {demand.collective}"
    problem = f"{noun} of {network.ranks:,} NPUs needs about {least / 10**6:,.0f} MB"
    counted = ", or count only (--count)" if demand.receivers is None else ""
    return OutOfMemory("memory", problem, f"write more, choose a smaller group (--ranks){counted}")
