"""Which ranks of a group reach each other without passing a third, and over which links."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.synthesis.model.arrays import pointers
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import reachable

#: Most ranks of a group whose arcs are found by looking at every pair.
MAX_PAIRED_RANKS = 2048


def find_arcs(
    topology: Topology, members: np.ndarray, relays: bool, place: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(source ranks, target ranks, pointers, links) of every arc of a group of NPUs. Raises TopologyError."""
    n = len(members)
    rank_of = np.full(topology.vertices, -1, dtype=np.int64)
    rank_of[members] = np.arange(n)
    if topology.vertices == topology.npus and not (relays and n < len(topology.alive)):
        found = _direct(topology, members, rank_of)
    elif n > MAX_PAIRED_RANKS:
        problem = f"{n} ranks behind switches or relays are more than {MAX_PAIRED_RANKS}"
        raise TopologyError(place or topology.name, problem, "synthesize for a smaller group")
    else:
        found = _routed(topology, members, rank_of, relays)
    _check_connected(*found[:2], members, relays, place)
    return found


def _direct(topology: Topology, members: np.ndarray, rank_of: np.ndarray) -> tuple:
    n = len(members)
    a, b = rank_of[topology.src], rank_of[topology.dst]
    inside = np.flatnonzero((a >= 0) & (b >= 0))
    pairs, first, count = np.unique(a[inside] * n + b[inside], return_index=True, return_counts=True)
    path = inside[first].astype(np.int32)
    several = count > 1
    # A single direct link is the route of its ends, whichever way routes are found.
    if several.any():
        path[several] = topology.routes(*members[np.stack(np.divmod(pairs[several], n))])[1]
    return pairs // n, pairs % n, np.arange(len(pairs) + 1), path


def _routed(topology: Topology, members: np.ndarray, rank_of: np.ndarray, relays: bool) -> tuple:
    n = len(members)
    pairs = np.arange(n * n)
    source, target = np.divmod(pairs[pairs // n != pairs % n], n)
    ptr, path = topology.routes(members[source], members[target])
    lengths = np.diff(ptr)
    inner = np.ones(len(path), dtype=bool)
    inner[ptr[1:][lengths > 0] - 1] = False
    passed = topology.dst[path]
    wrong = inner & (rank_of[passed] >= 0 if relays else passed < topology.npus)
    good = np.ones(len(source), dtype=bool)
    good[np.repeat(np.arange(len(source)), lengths)[wrong]] = False
    return source[good], target[good], pointers(lengths[good]), path[np.repeat(good, lengths)]


def _check_connected(src: np.ndarray, dst: np.ndarray, members: np.ndarray, relays: bool, place: str) -> None:
    n = len(members)
    for tails, heads, forward in ((src, dst, True), (dst, src, False)):
        order = np.argsort(tails, kind="stable")
        ptr = np.searchsorted(tails[order], np.arange(n + 1))
        lost = np.flatnonzero(~reachable(ptr, heads[order].astype(np.int32), 0)[:n])
        if len(lost):
            a, b = (members[0], members[lost[0]]) if forward else (members[lost[0]], members[0])
            remedy = "choose other NPUs" if relays else "choose other NPUs, or allow relays"
            raise TopologyError(place, f"no path leads from NPU {a} to NPU {b} through NPUs of the group", remedy)
