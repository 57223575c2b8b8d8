"""The kernel's message times by size: links, connections, and whole analytical routes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.core.units import INT64_MAX, PS_PER_NS, transfer_ps
from astrasim_py.engine.compiled import records
from astrasim_py.system.problem import Problem
from astrasim_py.system.routes import lowest_dimension


class Durations:
    """Times of all message sizes of a run.

    `every`: int64, ascending: bytes of all messages. `sent`: int64: bytes of messages that are sent.
    """

    def __init__(self, problem: Problem, every: np.ndarray, sent: np.ndarray) -> None:
        self.problem, self.topology = problem, problem.topology
        self.rates = tuple(self.topology.bandwidths)
        self.floor_ns = problem.semantics.rounding == "floor_ns"
        self.count, self.sent, self.where = len(every), sent.tolist(), np.searchsorted(every, sent)

    def table(self, times: Sequence[int]) -> np.ndarray:
        """int64[sizes]: the times of the sent sizes; -1: beyond 63 bits, or never sent."""
        out = np.full(self.count, -1, dtype=np.int64)
        out[self.where] = [ps if ps <= INT64_MAX else -1 for ps in times]
        return out

    def serialization(self, rate: Fraction) -> np.ndarray:
        """int64[sizes]: ps at a rate."""
        if self.floor_ns:
            # ASTRA-sim floors each delay once, as a double in nanoseconds.
            return self.table([int(b / (float(rate) / 1e9)) * PS_PER_NS for b in self.sent])
        return self.table([transfer_ps(b, rate) for b in self.sent])

    def links(self, longs) -> np.ndarray:
        """LINK[links]: latency, and the places of the times by size in `longs`."""
        rate_class, latency = np.asarray(self.topology.bandwidth_class), np.asarray(self.topology.latency_ps)
        rows = np.zeros(max(len(latency), 1), dtype=records.LINK)
        rows["first"] = rows["line"] = -1
        if not len(latency):
            return rows
        hold = np.array([longs.add(self.serialization(rate)) for rate in self.rates])
        rows["latency"], rows["hold"], rows["hop"] = latency, hold[rate_class], -1
        if self.floor_ns and self.problem.network.model == "store_and_forward":
            both, number = np.unique(np.stack([rate_class, latency]), axis=1, return_inverse=True)
            places = []
            for which, ps in both.T.tolist():
                per_ns = float(self.rates[which]) / 1e9
                times = [int(ps / PS_PER_NS + b / per_ns) * PS_PER_NS for b in self.sent]
                places.append(longs.add(self.table(times)))
            rows["hop"] = np.array(places)[number.ravel()]
        return rows

    def delays(self, classes: list[tuple[int, int, Fraction]], variants: Sequence[int]) -> np.ndarray:
        """Analytical model: int64[classes, variants, sizes, 2], delivery and injection.

        `classes`: from `route_classes`. `variants`: extra ps per hop.
        """
        table = np.full((len(classes), len(variants), self.count, 2), -1, dtype=np.int64)
        for c, (hops, latency, rate) in enumerate(classes):
            for v, longer in enumerate(variants):
                total = latency + hops * longer
                if self.floor_ns:
                    # For lowest_dim, ASTRA-sim multiplies the double of one hop by the number of hops.
                    in_ns = hops * (total // hops / PS_PER_NS) if lowest_only(self.problem) else total / PS_PER_NS
                    lengths = [b / (float(rate) / 1e9) for b in self.sent]
                    table[c, v, :, 0] = self.table([int(in_ns + length) * PS_PER_NS for length in lengths])
                    table[c, v, :, 1] = self.table([int(length) * PS_PER_NS for length in lengths])
                else:
                    lengths = [transfer_ps(b, rate) for b in self.sent]
                    table[c, v, :, 0] = self.table([total + length for length in lengths])
                    table[c, v, :, 1] = self.table(lengths)
        return table


def lowest_only(problem: Problem) -> bool:
    """Whether the analytical model charges for the lowest dimension only."""
    return problem.semantics.analytical_route == "lowest_dim" and bool(problem.topology.dims)


def route_classes(
    problem: Problem, ptr: np.ndarray, path: np.ndarray, pairs: np.ndarray
) -> tuple[np.ndarray, list[tuple[int, int, Fraction]]]:
    """Class of each route; for each class the number of hops, the sum of their latencies, and the lowest rate.

    `ptr`, `path`: CSR of the links of each route. `pairs`: int64[routes]: src NPU × NPUs + dst NPU.
    """
    topology = problem.topology
    if lowest_only(problem):
        known: dict[tuple, int] = {}
        number = np.zeros(len(ptr) - 1, dtype=np.int64)
        for i, pair in enumerate(pairs.tolist()):
            hops, rate, latency = lowest_dimension(topology, *divmod(pair, topology.npus))
            number[i] = known.setdefault((hops, hops * latency, rate), len(known))
        return number, list(known)
    if len(ptr) < 2:
        return np.zeros(0, dtype=np.int64), []
    rates = tuple(topology.bandwidths)
    hops = np.diff(ptr)
    total = np.add.reduceat(np.asarray(topology.latency_ps, dtype=np.int64)[path], ptr[:-1])
    order = sorted(range(len(rates)), key=lambda r: rates[r])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    slowest = np.minimum.reduceat(place[np.asarray(topology.bandwidth_class)[path]], ptr[:-1])
    classes, number = np.unique(np.stack([hops, total, slowest]), axis=1, return_inverse=True)
    return number.ravel(), [(h, t, rates[order[r]]) for h, t, r in classes.T.tolist()]
