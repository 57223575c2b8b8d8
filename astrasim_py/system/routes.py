"""Pairs of NPUs that exchange messages, the message sizes, and the routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.rows import distinct
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.plan import RoutedState
from astrasim_py.system.programs import RECV, SEND, Programs
from astrasim_py.topology.model import Topology

if TYPE_CHECKING:
    from astrasim_py.topology.link_states import LinkState

#: Maximum links in a table of routes; beyond it routes are computed on demand.
MAX_ROUTE_LINKS = 2**26
#: Pairs of NPUs per batch.
_PAIRS_AT_ONCE = 2**20


class Traffic:
    """Pairs of NPUs and switches that exchange messages, and the message sizes.

    `npu_of`: rank → NPU, or switch. `rendezvous_bytes`: size of a receiver's request; 0: no requests. `qps`: queue
    pairs of two ends.
    """

    def __init__(self, npu_of: Sequence[int], topology: Topology, rendezvous_bytes: int, qps: int = 1) -> None:
        self.qps = qps
        self.npu_of = np.array(npu_of, dtype=np.int64)
        self.topology, self.vertices = topology, topology.vertices
        self.rendezvous = rendezvous_bytes
        self._pairs: list[np.ndarray] = []
        #: NPUs of the members, the rotation, and the distances of their sends.
        self._rotated: list[tuple[np.ndarray, Rotation, np.ndarray]] = []
        self._sizes = [np.array([rendezvous_bytes] * bool(rendezvous_bytes), dtype=np.int64)]

    def _asking(self, kind: np.ndarray) -> np.ndarray:
        """bool[n]: nodes that send a message, be it a request."""
        return (kind == SEND) | ((kind == RECV) & bool(self.rendezvous))

    def add(self, programs: Programs, members: Sequence[int]) -> None:
        """Add the messages of programs among `members`."""
        where, table = self.npu_of[np.asarray(members, dtype=np.int64)], programs.different
        self._sizes.append(programs.sizes())
        peer = table.column("peer")
        rows = np.flatnonzero(self._asking(table.kind))
        if programs.rotation is not None:
            self._rotated.append((where, programs.rotation, distinct(peer[rows]).astype(np.int64)))
            return
        # Of each program, the distinct peers.
        program = np.searchsorted(table.bounds, rows, side="right") - 1
        order = np.lexsort((peer[rows], program))
        rows, program = rows[order], program[order]
        new = (np.diff(peer[rows], prepend=-1) != 0) | (np.diff(program, prepend=-1) != 0)
        rows = rows[new]
        position, place = programs.at_all(rows)
        peers = programs.peers(position, peer[rows[place]])
        self._pairs.append(where[position] * self.vertices + where[peers])

    def _all_pairs(self) -> Iterator[np.ndarray]:
        """src × vertices + dst, some of them several times."""
        yield from self._pairs
        for where, rotation, deltas in self._rotated:
            position = np.arange(len(where))
            step = max(_PAIRS_AT_ONCE // max(len(where), 1), 1)
            for start in range(0, len(deltas), step):
                peer = rotation.shift(position[:, None], deltas[None, start : start + step])
                yield (where[:, None] * self.vertices + where[peer]).ravel()

    def _too_many(self) -> bool:
        """Whether a table of routes would be too large and routes can be computed instead."""
        most = sum(map(len, self._pairs)) + sum(len(where) * len(deltas) for where, _, deltas in self._rotated)
        if most * max(self.vertices, 1) <= MAX_ROUTE_LINKS:  # no route visits an NPU twice
            return False
        total = 0
        for pairs in self._all_pairs():
            lengths = self.topology.route_lengths(pairs // self.vertices, pairs % self.vertices)
            if lengths is None:
                return False
            total += int(lengths.sum())
            if total > MAX_ROUTE_LINKS:
                return True
        return False

    def routes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Queue pairs, ascending, and their routes as CSR; empty if the table would be too large."""
        if self._too_many():
            return np.zeros(0, np.int64), np.zeros(1, np.int64), None
        pairs = distinct(np.concatenate([np.zeros(0, np.int64), *self._all_pairs()]))
        pairs = (pairs[:, None] * self.qps + np.arange(self.qps)).ravel()
        return pairs, *self.topology.routes(*self.ends(pairs))

    def ends(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Source, destination and number of queue pairs."""
        ends = pairs // self.qps
        return ends // self.vertices, ends % self.vertices, pairs % self.qps

    def states(self, pairs: np.ndarray) -> tuple[tuple[int, RoutedState], ...]:
        """Times (ps) and routes of pairs from time 0 and from each event of the topology on; none without events.

        Raises ScenarioError: the routes are too many.
        """
        if not self.topology.events:
            return ()
        from astrasim_py.topology.link_states import link_states

        routed: dict[LinkState, RoutedState] = {}
        states = list(link_states(self.topology))
        for _, state in states:
            if state not in routed:
                routed[state] = RoutedState(state, pairs, *state.routes(*self.ends(pairs)))
            if sum(len(each.path) for each in routed.values()) > MAX_ROUTE_LINKS:
                problem = f"the routes of {len(pairs)} pairs of NPUs do not fit for all events of {self.topology.name}"
                raise ScenarioError("events", problem, "write fewer events that differ")
        return tuple((begin, routed[state]) for begin, state in states)

    def sizes(self) -> tuple[int, ...]:
        """Every size of a message, ascending."""
        return tuple(np.unique(np.concatenate(self._sizes)).tolist())


def lowest_dimension(topology: Topology, src: int, dst: int) -> tuple[int, Fraction, int]:
    """Hops, bandwidth and latency (ps a hop) of the lowest dimension that differs between two NPUs.

    ASTRA-sim's congestion-unaware backend charges messages for these only.

    Raises ValueError: they are the same NPU.
    """
    for dim in topology.dims:
        src, a = divmod(src, dim.size)
        dst, b = divmod(dst, dim.size)
        if a == b:
            continue
        if dim.kind == "ring":
            hops = min((b - a) % dim.size, (a - b) % dim.size)
        elif dim.kind == "mesh":
            hops = abs(b - a)
        else:
            hops = 2 if dim.kind == "switch" else 1
        return hops, dim.bandwidth, dim.latency_ps
    raise ValueError("source and destination are the same NPU")
