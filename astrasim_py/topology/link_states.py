"""States of a topology between its events."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from astrasim_py.core.units import format_time
from astrasim_py.topology.events import LinkEvent
from astrasim_py.topology.model import Topology


@dataclass(frozen=True, slots=True, eq=False)
class LinkState:
    """The network between two events. Links have the numbers of the topology; lost ones keep their columns."""

    lost: tuple[int, ...]
    latency_ps: np.ndarray  # int64[links]
    rates: tuple[Fraction, ...]  # by link, bytes per second
    left: Topology  # without the lost links
    kept: np.ndarray  # int32: the links of `left`

    def routes(
        self, src: np.ndarray, dst: np.ndarray, queue_pair: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Routes, as of `Topology.routes`; a pair without a path has no links."""
        ptr, links = self.left.routes(src, dst, queue_pair, connected=False)
        return ptr, self.kept[links]


def link_states(topology: Topology) -> Iterator[tuple[int, LinkState]]:
    """States of a topology and their begins (ps): 0 and each event. Equal consecutive states are merged."""

    @cache
    def state(lost: tuple, changes: tuple) -> LinkState:
        changed = topology.changed(links=changes)
        rates = tuple(changed.bandwidths[i] for i in changed.bandwidth_class.tolist())
        left = changed.changed(failed_links=lost, connected=False)
        remaining = np.setdiff1d(np.arange(topology.links, dtype=np.int32), np.array(lost, dtype=np.int32))
        return LinkState(lost, changed.latency_ps, rates, left, remaining)

    events = topology.events
    if not events or events[0].at_ps:
        events = (LinkEvent(0), *events)
    for event in events:
        yield event.at_ps, state(event.lost, event.changes)


#: Links that the text of an event names.
_NAMED = 6


def event_texts(topology: Topology) -> list[str]:
    """A line of text per event: its changes of links."""

    def named(links: Iterable[int]) -> str:
        names = [topology.link_name(link) for link in sorted(links)]
        return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if names[_NAMED:] else "")

    texts: list[str] = []
    lost: set[int] = set()
    changed: dict[int, tuple[Fraction | None, int | None]] = {}
    for event in topology.events:
        now_lost = set(event.lost)
        now_changed = {link: (rate, latency) for links, rate, latency in event.changes for link in links}
        links_of = {"fail": now_lost - lost, "return": lost - now_lost}
        for link, (rate, latency) in now_changed.items():
            if changed.get(link) != (rate, latency) and link not in now_lost:
                to = [f"{float(rate) / 10**9:.4g} GB/s"] if rate is not None else []
                to += [format_time(latency)] if latency is not None else []
                links_of.setdefault(f"change to {', '.join(to)}", set()).add(link)
        links_of["change back"] = changed.keys() - now_changed.keys() - now_lost - links_of["return"]
        parts = []
        for change, links in links_of.items():
            verb, *more = change.split(" ", 1)
            parts += [" ".join([named(links), verb + "s" * (len(links) == 1), *more])] if links else []
        texts.append("; ".join(parts) or "no change")
        lost, changed = now_lost, now_changed
    return texts


def best_of_events(topology: Topology) -> Topology:
    """The topology without events; each link has its greatest bandwidth and least latency of all times."""
    if not topology.events:
        return topology
    states = list(dict.fromkeys(state for _, state in link_states(topology)))
    latency = np.min([state.latency_ps for state in states], axis=0).tolist()
    rates = map(max, zip(*(state.rates for state in states), strict=True))
    kinds: dict[tuple[Fraction, int], list[int]] = {}
    for link, kind in enumerate(zip(rates, latency, strict=True)):
        kinds.setdefault(kind, []).append(link)
    return topology.changed(links=((links, *kind) for kind, links in kinds.items()))
