"""Lower bounds of custom collectives, from what their contracts say must move."""

from collections.abc import Sequence

import numpy as np

from astrasim_py.collectives.contract import Contract
from astrasim_py.core.units import PS_PER_S
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import Capacities


def contract_volumes(contract: Contract) -> tuple[list[int], list[int]] | None:
    """Chunks that must enter and leave each rank, of a contract that only moves data; None of one that has sums."""
    needed: set[tuple[int, int, int]] = set()  # receiver, and the input cell that it needs
    for (rank, _), terms in contract.outputs.items():
        for cell, times in terms.items():
            if len(terms) > 1 or times > 1:
                return None
            if cell[0] != rank:
                needed.add((rank, *cell))
    into, out = [0] * contract.ranks, [0] * contract.ranks
    for rank, _, _ in needed:
        into[rank] += 1
    # A chunk that several ranks need leaves its owner once, and others may pass it on.
    for owner, _ in {(owner, chunk) for _, owner, chunk in needed}:
        out[owner] += 1
    return into, out


def contract_times(
    algorithm: Algorithm, size: int, capacities: Capacities, npus: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """Per member: ps for which its links in, and its links out, must at least be busy, with the latency from and to the
    nearest NPU; None where the contract of a custom collective does not say it. `size`: full buffer, bytes.
    """
    contract = algorithm.contract
    if contract is None or not algorithm.scales or algorithm.verdict is not True or size % contract.chunks:
        return None
    volumes, unit = contract_volumes(contract), size // contract.chunks
    if volumes is None:
        return None
    kinds = capacities.kind[np.asarray(npus, dtype=np.int64)].tolist()
    into, out = (
        [
            int(count * unit * PS_PER_S / rates[kind]) + near[kind] if count and unit else 0
            for kind, count in zip(kinds, chunks, strict=True)
        ]
        for chunks, rates, near in (
            (volumes[0], capacities.ingress, capacities.near_in),
            (volumes[1], capacities.egress, capacities.near_out),
        )
    )
    return into, out


def contract_bound_ps(algorithm: Algorithm, size: int, topology: Topology, npus: Sequence[int]) -> int:
    """A time that no algorithm of the same contract can beat; -1 where none is known."""
    times = contract_times(algorithm, size, Capacities(topology), npus)
    return -1 if times is None else max((*times[0], *times[1]), default=0)
