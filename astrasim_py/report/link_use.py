"""The use of links over time: bytes on the way over what a link could carry, averaged in bins of time."""

from typing import NamedTuple

import numpy as np

from astrasim_py.core.records import Table
from astrasim_py.core.rows import ranges
from astrasim_py.core.units import PS_PER_S
from astrasim_py.report.intervals import coverage
from astrasim_py.report.record_plots import Panel

#: Rates of more flows, times the moments at which they change, are not set anew.
_MOST_RATES = 40_000_000


class Traffic(NamedTuple):
    """What links carry, piece by piece, evenly from `start` to `end`. `link`: number of the link."""

    link: np.ndarray
    message: np.ndarray
    start: np.ndarray  # ps
    end: np.ndarray  # ps
    nbytes: np.ndarray  # float64
    exact: bool = True


def traffic_of(panel: Panel) -> Traffic:
    """The traffic of a run. A link that serves messages in turn carries each while it holds the link. Where messages
    share links, rates are set anew, max-min fair, whenever one begins or ends, and scaled to the bytes of each message;
    of very many (`exact` is false then) each has the same rate from its begin to its end.
    """
    hop, size = panel.tables["hop"], panel.tables["message"]["bytes"].astype(float)
    rows = np.flatnonzero((hop["end"] > hop["start"]) & (hop["start"] >= 0))
    link, message, start, end = (hop[name][rows] for name in ("link", "message", "start", "end"))
    if not panel.shares or not len(rows):
        return Traffic(link, message, start, end, size[message])
    # A message that changed its route has several legs, each with hops of its own.
    key = np.stack([message, start, end])
    order = np.lexsort(key[::-1])
    new = np.append(True, (np.diff(key[:, order], axis=1) != 0).any(axis=0))
    leg = np.empty(len(rows), dtype=np.int64)
    leg[order] = np.cumsum(new) - 1
    first = order[new]
    begun, ended, of = start[first], end[first], message[first]
    moments = np.unique(np.concatenate([begun, ended]))
    exact = len(moments) * len(first) <= _MOST_RATES
    if exact:
        edge = panel.tables["edge"]
        leg_of, low, high, rate = _rates(begun, ended, moments, leg, link, edge["link"], edge["bandwidth"])
    else:
        leg_of, low, high, rate = np.arange(len(first)), begun, ended, np.ones(len(first))
    moved = rate * (high - low)
    total = np.bincount(of[leg_of], weights=moved, minlength=len(size))
    moved *= size[of[leg_of]] / total[of[leg_of]]
    # Every piece of a leg moves over all of its links.
    by_leg = np.argsort(leg, kind="stable")
    count = np.bincount(leg, minlength=len(first))
    piece, offset = ranges(count[leg_of])
    hop_of = by_leg[(np.cumsum(count) - count)[leg_of][piece] + offset]
    return Traffic(link[hop_of], of[leg_of][piece], low[piece], high[piece], moved[piece], exact)


def _rates(begun, ended, moments, leg, link, numbers, bandwidth) -> tuple[np.ndarray, ...]:
    """Legs, and from when to when they have which rates (bytes per second), max-min fair at all times."""
    order = np.argsort(numbers, kind="stable")
    row = order[np.searchsorted(numbers[order], link)]
    by_leg = np.argsort(leg, kind="stable")
    count = np.bincount(leg)
    first, row = np.cumsum(count) - count, row[by_leg]
    capacity = bandwidth.astype(float)
    parts: list[tuple] = []
    for low, high in zip(moments[:-1].tolist(), moments[1:].tolist(), strict=True):
        legs = np.flatnonzero((begun <= low) & (ended > low))
        if len(legs):
            flow, offset = ranges(count[legs])
            rate = fair(flow, row[first[legs][flow] + offset], len(legs), capacity)
            parts.append((legs, np.full(len(legs), low), np.full(len(legs), high), rate))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def fair(flow: np.ndarray, link: np.ndarray, flows: int, capacity: np.ndarray) -> np.ndarray:
    """Max-min fair rates of flows. `flow`, `link`: of every traversal of a link by a flow. `capacity`: of each link.

    >>> fair(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]), 3, np.array([10.0, 4.0])).tolist()
    [8.0, 2.0, 2.0]
    """
    links, link = np.unique(link, return_inverse=True)
    link = link.reshape(-1)
    rate, spare, free = np.zeros(flows), capacity[links].astype(float), np.ones(flows, dtype=bool)
    while free.any():
        open_ = free[flow]
        sharing = np.bincount(link[open_], minlength=len(links))
        share = np.divide(spare, sharing, out=np.full(len(links), np.inf), where=sharing > 0)
        least = share.min()
        full = share <= least * (1 + 1e-9)
        stopped = np.unique(flow[open_ & full[link]])
        if not np.isfinite(least) or not len(stopped):
            break
        rate[stopped], free[stopped] = least, False
        now = np.zeros(flows, dtype=bool)
        now[stopped] = True
        spare = np.maximum(spare - least * np.bincount(link[now[flow]], minlength=len(links)), 0.0)
    return rate


def use_over_time(
    traffic: Traffic, links: np.ndarray, bandwidth: np.ndarray, until: int, bins: int, group: np.ndarray, groups: int
) -> np.ndarray:
    """float64[links, groups, bins]: share of its bandwidth that each link carries, by group of the messages.

    `links`: their numbers, ascending. `bandwidth`: bytes per second of each. `group`: of each message.
    """
    row = np.minimum(np.searchsorted(links, traffic.link), len(links) - 1)
    pieces = np.flatnonzero(links[row] == traffic.link)
    start, end = traffic.start[pieces], traffic.end[pieces]
    rate = traffic.nbytes[pieces] / (end - start)
    cell = row[pieces] * groups + group[traffic.message[pieces]]
    moved = coverage(cell, start, end, len(links) * groups, bins, until, rate).reshape(len(links), groups, bins)
    return moved / (bandwidth[:, None, None] * (until / bins / PS_PER_S))


def total_use(traffic: Traffic, panel: Panel) -> Table:
    """``link``, ``bandwidth`` and ``use``, the share of its bandwidth that was carried, of each link that was used."""
    edge = panel.tables["edge"]
    links, row = np.unique(traffic.link, return_inverse=True)
    order = np.argsort(edge["link"], kind="stable")
    bandwidth = edge["bandwidth"][order[np.searchsorted(edge["link"][order], links)]].astype(float)
    carried = np.bincount(row.reshape(-1), weights=traffic.nbytes, minlength=len(links))
    use = carried * PS_PER_S / (np.maximum(bandwidth, 1.0) * max(panel.makespan, 1))
    return Table({"link": links, "bandwidth": bandwidth, "use": use})
