"""The kernel's message times by size: links, connections, and whole analytical routes."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from astrasim_py.core.choices import FLUID
from astrasim_py.core.units import INT64_MAX
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.flat import Numbers
from astrasim_py.system.durations import message_ps, rate_units
from astrasim_py.system.plan import Plan, RoutedState
from astrasim_py.system.problem import Problem
from astrasim_py.system.routes import lowest_dimension


def _fit(times: Iterable[int]) -> np.ndarray:
    """int64: the times; -1: beyond 63 bits."""
    return np.array([ps if ps <= INT64_MAX else -1 for ps in times], dtype=np.int64)


class Times:
    """Times of the message sizes of a run, as int64[sizes] in ps; -1: beyond 63 bits."""

    def __init__(self, problem: Problem, sizes: Sequence[int]) -> None:
        self.problem, self.topology, self.sizes = problem, problem.topology, sizes
        self.rates = tuple(problem.topology.bandwidths)
        self.rounding = problem.semantics.rounding
        #: Whether the analytical model charges for the lowest dimension only.
        self.lowest_only = problem.semantics.analytical_route == "lowest_dim" and bool(problem.topology.dims)

    def times(self, rate: Fraction, latency: int = 0, hops: int = 1) -> np.ndarray:
        """Times at a rate, over a number of hops of a latency."""
        return _fit(message_ps(nbytes, rate, self.rounding, latency, hops) for nbytes in self.sizes)

    def holds(self, longs, rates: Sequence[Fraction]) -> np.ndarray:
        """int64: by rate the place of the times by size in `longs`."""
        return np.array([longs.once(("hold", rate), lambda rate=rate: self.times(rate)) for rate in rates], np.int64)

    def links(self, longs) -> np.ndarray:
        """LINK[links]: latency, and the places of the times by size in `longs`."""
        rate_class, latency = np.asarray(self.topology.bandwidth_class), np.asarray(self.topology.latency_ps)
        rows = np.zeros(max(len(latency), 1), dtype=records.LINK)
        rows["first"] = rows["line"] = rows["hop"] = -1
        hold = self.holds(longs, self.rates)
        rows["latency"][: len(latency)], rows["hold"][: len(latency)] = latency, hold[rate_class]
        if self.rounding == "floor_ns" and self.problem.network.model == "store_and_forward":
            both, number = np.unique(np.stack([rate_class, latency]), axis=1, return_inverse=True)
            hops = [longs.add(self.times(self.rates[which], ps)) for which, ps in both.T.tolist()]
            rows["hop"][: len(latency)] = np.array(hops, dtype=np.int64)[number.ravel()]
        return rows

    def shared(self) -> np.ndarray:
        """SHARED_LINK[links]: capacity; one row but under the model ``fluid``."""
        if self.problem.network.model != FLUID:
            return np.zeros(1, dtype=records.SHARED_LINK)
        rows = np.zeros(max(len(self.topology.latency_ps), 1), dtype=records.SHARED_LINK)
        capacity = np.array([rate_units(rate) for rate in self.rates], dtype=np.int64)
        rows["capacity"][: len(self.topology.latency_ps)] = capacity[np.asarray(self.topology.bandwidth_class)]
        return rows

    def flows(self, plan: Plan) -> np.ndarray:
        """FLOW[routes + 1]: `extra` latency of each flow's first link; one row unless the model is ``fluid``."""
        if self.problem.network.model != FLUID:
            return np.zeros(1, dtype=records.FLOW)
        rows = np.zeros(len(plan.route_pairs) + 1, dtype=records.FLOW)
        rows["extra"][:-1] = self.first_hops(plan)
        return rows

    def of_routes(self, plan: Plan, variants: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Analytical model: class of each route, and int64[classes, variants, sizes, 2] of delivery and injection.

        `variants`: extra ps per hop.
        """
        number, classes = self.lowest_classes(plan) if self.lowest_only else self.path_classes(plan)
        table = np.empty((len(classes), len(variants), len(self.sizes), 2), dtype=np.int64)
        for c, (hops, latency, rate) in enumerate(classes):
            table[c, :, :, 1] = self.times(rate)
            for v, longer in enumerate(variants):
                total = latency + hops * longer
                # For lowest_dim, ASTRA-sim multiplies the double of one hop by the number of hops.
                each = (total // hops, hops) if self.lowest_only else (total,)
                table[c, v, :, 0] = self.times(rate, *each)
        return number, table

    def first_hops(self, plan: Plan) -> np.ndarray:
        """int64[routes], ps: what messages of a route take longer on its first hop, as those of a switch do."""
        computing = self.topology.computing
        from_switch = plan.route_pairs >= self.topology.npus * self.topology.vertices
        return from_switch * np.int64(computing.latency_ps if computing else 0)

    def lowest_classes(self, plan: Plan) -> tuple[np.ndarray, list[tuple[int, int, Fraction]]]:
        """Class of each route; by class the hops, latency and rate of the lowest dimension."""
        known: dict[tuple[int, int, Fraction], int] = {}
        number = np.zeros(len(plan.route_pairs), dtype=np.int64)
        for i, pair in enumerate(plan.route_pairs.tolist()):
            hops, rate, latency = lowest_dimension(self.topology, *divmod(pair, self.topology.vertices))
            number[i] = known.setdefault((hops, hops * latency, rate), len(known))
        return number, list(known)

    def path_classes(self, plan: Plan) -> tuple[np.ndarray, list[tuple[int, int, Fraction]]]:
        """Class of each route; by class the number of hops, the sum of their latencies, and the lowest rate."""
        ptr, path = plan.route_ptr, plan.route_links
        if len(ptr) < 2:
            return np.zeros(0, dtype=np.int64), []
        total = np.add.reduceat(np.asarray(self.topology.latency_ps, dtype=np.int64)[path], ptr[:-1])
        total += self.first_hops(plan)
        order = sorted(range(len(self.rates)), key=self.rates.__getitem__)
        slowest = np.minimum.reduceat(np.argsort(order)[np.asarray(self.topology.bandwidth_class)[path]], ptr[:-1])
        classes, number = np.unique(np.stack([np.diff(ptr), total, slowest]), axis=1, return_inverse=True)
        return number.ravel(), [(hops, ps, self.rates[order[r]]) for hops, ps, r in classes.T.tolist()]


def link_changes(plan: Plan, longs: Numbers) -> tuple[list[np.ndarray], np.ndarray]:
    """Paths of all routes, and int64[n, 4]: CHANGE of each event of the topology, before them that of time 0."""
    assert plan.route_links is not None  # routes that are computed have no events
    paths, places = [plan.route_links], dict[RoutedState, list[int]]()
    for _, state in plan.states:
        if state not in places:
            capacity = np.array([rate_units(rate) for rate in state.links.rates], dtype=np.int64)
            capacity[list(state.links.lost)] = 0
            columns = state.ptr + sum(map(len, paths)), capacity, state.links.latency_ps
            places[state] = [longs.add(column) for column in columns]
            paths.append(state.path)
    changes = [[at, *places[state]] for at, state in plan.states]
    return paths, np.array(changes, dtype=np.int64).reshape(-1, int(records.CHANGE_WORDS))
