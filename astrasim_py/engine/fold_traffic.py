"""Traffic of a folded workload on links: what shares them, what meets there, and what that may cost."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from astrasim_py.topology.model import Topology

#: Safety factor: a delayed flow meets further flows and delays them; factors up to five were observed.
BOUND = 6


class RouteTable(NamedTuple):
    """Routes of pairs, ascending by their numbers: `links`: int64, distinct, in the order of appearance. Tables of
    equal `key` differ in the names of links alone."""

    links: np.ndarray
    key: tuple[bytes, ...]


def route_table(topology: Topology, pairs: np.ndarray, ptr: np.ndarray, links: np.ndarray) -> RouteTable:
    """The table of routes, given as CSR; `pairs`: int64, a number for each."""
    order, lengths = np.argsort(pairs, kind="stable"), np.diff(ptr)
    ends = np.cumsum(lengths[order])
    hop = (
        np.arange(len(links)) - np.repeat(ends - lengths[order], lengths[order]) + np.repeat(ptr[order], lengths[order])
    )
    distinct, first, which = np.unique(links[hop], return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    number = np.empty(len(first), dtype=np.int64)
    number[by_first] = np.arange(len(first))
    used = distinct[by_first].astype(np.int64)
    columns = pairs[order], lengths[order], number[which.reshape(-1)], topology.bandwidth_class[used]
    return RouteTable(used, tuple(column.tobytes() for column in (*columns, topology.latency_ps[used])))


@dataclass(frozen=True, eq=False)
class FoldedFlow:
    """Messages that belong together, each time that they are sent.

    `links`: int64, distinct. By link: `busy`, ps of service each time; `messages`, their number; `queue`, most messages
    that wait. `start`, `end`: int64[times], ps, ascending. `role`: of a folded collective, else None.
    """

    name: str
    role: str | None
    links: np.ndarray
    busy: np.ndarray
    messages: np.ndarray
    queue: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two flows that are on their way at one time and share links."""

    flows: tuple[FoldedFlow, FoldedFlow]
    link: int  # one of the shared links
    links: int  # number of shared links
    delay: int  # ps by which they can delay each other


def meetings(flows: Sequence[FoldedFlow]) -> list[Meeting]:
    """The meetings of flows, of one with itself too, at least one of each two a folded collective."""
    users = defaultdict(list)
    for number, flow in enumerate(flows):
        for link in flow.links.tolist():
            users[link].append(number)
    shared = defaultdict(list)
    for link, numbers in users.items():
        for pair in combinations_with_replacement(numbers, 2):
            shared[pair].append(link)
    found = []
    for (a, b), links in sorted(shared.items()):
        one, other = flows[a], flows[b]
        if one.role is None and other.role is None:
            continue
        times = (_repeated(one),) * 2 if one is other else (_overlapping(one, other), _overlapping(other, one))
        if not all(times):
            continue
        delay = _delay(one, other, links, *times) + _delay(other, one, links, *times[::-1])
        found.append(Meeting((one, other), links[0], len(links), BOUND * delay))
    return found


def _overlapping(one: FoldedFlow, other: FoldedFlow) -> int:
    """How often the first flow is in flight while the other is."""
    begun = np.searchsorted(other.start, one.end, side="left")
    ended = np.searchsorted(np.sort(other.end), one.start, side="right")
    return int(np.count_nonzero((begun > ended) & (one.end > one.start)))


def _repeated(flow: FoldedFlow) -> int:
    """How often a flow is in flight before its last end."""
    return int(np.count_nonzero(flow.start[1:] < flow.end[:-1]))


def _delay(one: FoldedFlow, other: FoldedFlow, links: list[int], times: int, others: int) -> int:
    """Picoseconds by which the other flow can delay the first: each message waits at most for the queue, and all
    messages together for the whole other flow."""
    i, j = (np.searchsorted(flow.links, links) for flow in (one, other))
    wait = other.busy[j] * (1 + other.queue[j]) // np.maximum(other.messages[j], 1)
    return int(np.minimum(others * other.busy[j], times * one.messages[i] * wait).max())
