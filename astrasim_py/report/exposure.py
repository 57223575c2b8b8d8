"""Exposed communication: time in which a rank communicates without computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.records import Records
from astrasim_py.core.units import format_size
from astrasim_py.report.critical_path import Segment


@dataclass(frozen=True, slots=True)
class Exposure:
    """Exposed communication of one collective, or of all point-to-point messages (instance -1)."""

    instance: int
    name: str
    duration: int  # first start to last end, ps
    #: ps in this collective with no compute running, of the rank where it is longest; each of several collectives in
    #: flight at once is charged the whole time
    exposed: int
    rank: int
    on_path: int  # its share of the critical path, ps


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Disjoint ascending intervals that cover the same points."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], reach[closes]


def covered(start: np.ndarray, end: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Length of disjoint ascending intervals before each time."""
    total = np.concatenate([[0], np.cumsum(end - start)])
    index = np.searchsorted(start, until, side="right")
    over = np.where(index > 0, np.maximum(end[np.maximum(index - 1, 0)] - until, 0), 0) if len(start) else 0
    return total[index] - over


def exposures_of(records: Records, path: Sequence[Segment]) -> tuple[Exposure, ...]:
    node, collective = records.node, records.collective
    instance, rank, start, end = (node[name] for name in ("instance", "rank", "start", "end"))
    codes, labels = node.coded("kind")
    known = {label: code for code, label in enumerate(labels)}
    own = np.flatnonzero((instance < 0) & (end >= 0) & (start >= 0))
    own = own[np.argsort(rank[own], kind="stable")]
    compute = own[codes[own] == known.get("compute", -1)]
    p2p = own[(codes[own] == known.get("send", -1)) | (codes[own] == known.get("recv", -1))]
    # A collective's node released the first nodes of its algorithm on that rank.
    inner = np.flatnonzero((instance >= 0) & (node["released_by"] >= 0))
    inner = inner[instance[node["released_by"][inner]] < 0]
    caller, first = np.unique(node["released_by"][inner], return_index=True)
    of_instance = instance[inner][first]
    ended = end[caller] >= 0
    caller, of_instance = caller[ended], of_instance[ended]
    order = np.argsort(rank[caller], kind="stable")
    caller, of_instance = caller[order], of_instance[order]
    longest: dict[int, tuple[int, int]] = {}
    for r in np.unique(rank[np.concatenate([p2p, caller])]).tolist():
        computing, calls, sent = (slice(*np.searchsorted(rank[rows], (r, r + 1))) for rows in (compute, caller, p2p))
        busy = union(start[compute[computing]], end[compute[computing]])
        begun, ended = start[caller[calls]], end[caller[calls]]
        bare = (ended - begun) - (covered(*busy, ended) - covered(*busy, begun))
        for i, ps in zip(of_instance[calls].tolist(), bare.tolist(), strict=True):
            if ps > longest.get(i, (-1, -1))[0]:
                longest[i] = (ps, r)
        begun, ended = union(start[p2p[sent]], end[p2p[sent]])
        ps = int(((ended - begun) - (covered(*busy, ended) - covered(*busy, begun))).sum())
        if len(begun) and ps > longest.get(-1, (-1, -1))[0]:
            longest[-1] = (ps, r)
    on_path: dict[int, int] = {}
    for piece in path:
        if piece.instance >= 0 or piece.message >= 0:
            on_path[piece.instance] = on_path.get(piece.instance, 0) + piece.end - piece.start

    def exposure(instance: int, name: str, duration: int) -> Exposure:
        exposed, where = longest.get(instance, (0, -1))
        return Exposure(instance, name, duration, exposed, where, on_path.get(instance, 0))

    result = []
    for c in collective.rows():
        name = f"{c['type']} {format_size(c['size'])}" + (f" ({c['algorithm']})" if c["algorithm"] else "")
        result.append(exposure(c["instance"], name, max(c["end"] - c["start"], 0)))
    if len(p2p):
        result.append(exposure(-1, "point-to-point", int(end[p2p].max() - start[p2p].min())))
    return tuple(sorted(result, key=lambda e: (-e.exposed, -e.on_path, e.instance)))
