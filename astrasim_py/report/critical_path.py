"""The critical path of a run across ranks.

The walk starts at the last node to complete and goes backwards. A node that ended by itself (compute, memory, a send)
is charged its own time; a receive that had to wait is charged to its message, and the walk continues at the sender;
then the walk goes to the node whose completion let this one start, or to the one under way whose message's head did.
The pieces are contiguous, so their lengths add up to the makespan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.choices import FLUID
from astrasim_py.core.records import Records

#: Categories of the pieces of the critical path, and their meaning.
CATEGORIES = {
    "compute": "compute",
    "local": "reductions, work of thread blocks and endpoint delays inside collectives",
    "serialization": "putting bytes on links",
    "latency": "latency of links",
    "queueing": "waiting for links that other messages hold",
    "sharing": "sending more slowly, on links shared with other messages",
    "rerouting": "waiting for a new route, after a link failed",
    "transfer": "messages of a model that does not tell latency from serialization",
    "memory": "remote memory",
    "software": "the host's launches, and what software takes for communication",
    "waiting": "start delays, and time after the last completed node",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the critical path. `start`, `end`: ps."""

    start: int
    end: int
    category: str  # one of `CATEGORIES`
    rank: int = -1  # where it happened (of a message: the sender)
    row: int = -1  # row of the node table, -1 for none
    message: int = -1  # row of the message table, -1 for none
    link: int = -1  # link that the time was spent on, -1 for none
    instance: int = -1  # collective instance, -1 for the workload


def _plain(column: np.ndarray) -> Sequence[int]:
    """A column whose elements are Python integers, converted on access."""
    buffer = np.ascontiguousarray(column, dtype=np.int64)
    return memoryview(buffer)  # type: ignore[arg-type]  # numpy says that arrays are buffers from Python 3.12 on only


class CriticalPath:
    """A walk along the critical path. `records`: of level ``messages``. `latency`: link → its latency, ps, where known.
    `longer`: collective instance → ps that each hop of its messages takes beyond the latency of the link.
    `switch_latency`: ps that the first hop of what switches send does. `changes`: when (ps) links fail, change and
    return, under the network model ``fluid``. The records name the network model.
    """

    def __init__(
        self,
        records: Records,
        latency: Mapping[int, int],
        longer: Mapping[int, int],
        switch_latency: int = 0,
        changes: Sequence[int] = (),
    ) -> None:
        node, message, hop = records.node, records.message, records.hop
        self.makespan = records.makespan
        self.kinds, self.labels = node.coded("kind")
        self.rank, self.instance, self.start, self.end, self.released, self.ended = (
            _plain(node[name]) for name in ("rank", "instance", "start", "end", "released_by", "ended_by")
        )
        self.model, self.latency, self.changes = records.network_model, latency, changes
        self.longer, self.switch_latency, self.ranks = longer, switch_latency, len(records.finish)
        message_of = np.full(node.height, -1, dtype=np.int64)
        sent = np.flatnonzero(message["send_node"] >= 0)
        message_of[message["send_node"][sent]] = sent
        self.message_of = _plain(message_of)
        self.receiver = _plain(message["recv_node"])
        order = np.argsort(hop["message"], kind="stable")
        self.hops = [_plain(hop[name][order]) for name in ("link", "requested", "start", "end")]
        numbers = np.arange(message.height + 1)
        self.delivered, self.queued = _plain(message["delivered"]), _plain(message["queued"])
        self.first_hop = _plain(np.searchsorted(hop["message"][order], numbers))
        self.bytes, self.link = message["bytes"], records.link
        by_link = np.argsort(hop["link"], kind="stable")
        self.of_link = [hop[name][by_link] for name in ("link", "message", "start", "end")]
        self.segments: list[Segment] = []

    def add(self, start: int, end: int, category: str, row: int, message: int = -1, link: int = -1) -> None:
        """Add a piece; pieces are added latest first."""
        if end > start:
            rank, instance = (self.rank[row], self.instance[row]) if row >= 0 else (-1, -1)
            self.segments.append(Segment(start, end, category, rank, row, message, link, instance))

    def transit(self, send: int, arrived: int) -> None:
        """The pieces of a message from the start of its send node to `arrived`."""
        message = self.message_of[send]
        hops = range(self.first_hop[message], self.first_hop[message + 1])
        if not hops:
            self.add(self.start[send], arrived, "transfer", send, message)
        elif self.model == FLUID and self.changes:
            self.over_routes(send, arrived, hops)
        elif self.model == FLUID:
            self.sharing_links(send, arrived, hops)
        elif self.holds_all(hops, arrived):
            self.with_all_links(send, arrived, hops, slowed=0)
        elif arrived < self.delivered[message]:
            self.until_injected(send, arrived, hops[0])
        else:
            self.link_by_link(send, arrived, hops)

    def holds_all(self, hops: range, arrived: int) -> bool:
        """Whether a message has all its links from one time to another, as a thread block does."""
        _, _, start, end = self.hops
        begin, freed = start[hops[0]], end[hops[0]]
        return len(hops) > 1 and arrived >= freed and all(start[i] == begin and end[i] == freed for i in hops)

    def sharing_links(self, send: int, arrived: int, hops: range) -> None:
        """Network model ``fluid``: a message waits for those of its pair before it, then shares its links."""
        _, requested, start, _ = self.hops
        waited = start[hops[0]] - requested[hops[0]]
        self.with_all_links(send, arrived, hops, slowed=self.queued[self.message_of[send]] - waited)

    def with_all_links(self, send: int, arrived: int, hops: range, *, slowed: int) -> None:
        """A message that has all its links at once. `slowed`: ps that it takes longer for sharing them."""
        links, requested, start, end = self.hops
        message, route = self.message_of[send], links[hops.start : hops.stop]
        request, begin, freed = requested[hops[0]], start[hops[0]], end[hops[0]]
        self.add(freed, arrived, "latency", send, message, route[-1])
        self.add(begin + slowed, freed, "serialization", send, message, route[0])
        if slowed > 0:
            self.add(begin, begin + slowed, "sharing", send, message, self.busiest(route, begin, freed))
        if begin > request:
            self.add(request, begin, "queueing", send, message, self.busiest(route, request, begin))
        self.add(self.start[send], request, "serialization", send, message)

    def until_injected(self, send: int, arrived: int, first: int) -> None:
        """A send that completes once its message is injected: only its first link counts."""
        links, requested, start, _ = self.hops
        message = self.message_of[send]
        self.add(start[first], arrived, "serialization", send, message, links[first])
        self.add(requested[first], min(start[first], arrived), "queueing", send, message, links[first])
        self.add(self.start[send], min(requested[first], arrived), "serialization", send, message)

    def link_by_link(self, send: int, arrived: int, hops: range) -> None:
        """A message that takes its links one after another, each from when its head is there."""
        links, requested, start, end = self.hops
        message, until = self.message_of[send], arrived
        longer = self.longer.get(self.instance[send], 0)
        for i in reversed(hops):
            link = links[i]
            if link in self.latency:
                in_switch = self.switch_latency if i == hops[0] and self.rank[send] >= self.ranks else 0
                wire = min(self.latency[link] + longer + in_switch, until - start[i])
            elif end[i] <= until:
                wire = until - end[i]
            else:
                wire = until - start[i]  # the head went on while the tail was still coming
            self.add(until - wire, until, "latency", send, message, link)
            self.add(start[i], until - wire, "serialization", send, message, link)
            # A thread block requests all its links at once.
            self.add(requested[i], min(start[i], until), "queueing", send, message, link)
            until = requested[i]
        # A message waits for the pace of its connection before it requests its first link.
        self.add(self.start[send], until, "serialization", send, message)

    def busiest(self, route: Sequence[int], begin: int, freed: int) -> int:
        """The link of a route that had most to send for its bandwidth in an interval (ps), the first one among equals.

        A message under ``fluid`` counts as if its rate had been constant.
        """
        link, message, start, end = self.of_link
        loads = []
        for number in route:
            rows = slice(*np.searchsorted(link, (number, number + 1)))
            within = np.minimum(end[rows], freed) - np.maximum(start[rows], begin)
            part = np.maximum(within, 0) / np.maximum(end[rows] - start[rows], 1)
            row = np.flatnonzero(self.link["link"] == number)[0]
            loads.append(
                (part * self.bytes[message[rows]]).sum() * self.link["busy"][row] / max(self.link["bytes"][row], 1)
            )
        return route[int(np.argmax(loads))]

    def over_routes(self, send: int, arrived: int, hops: range) -> None:
        """The pieces of a message whose route may have changed: it has left all links of a route at once."""
        links, requested, start, end = self.hops
        message = self.message_of[send]
        routes: dict[tuple[int, int, int], list[int]] = {}
        for i in hops:
            routes.setdefault((requested[i], start[i], end[i]), []).append(links[i])
        moved, request = sorted(routes, reverse=True), min(requested[i] for i in hops)
        shared = self.queued[message] - sum(begin - since for since, begin, _ in moved)
        self.add(moved[0][2], arrived, "latency", send, message, links[hops[-1]])
        for route in moved:
            since, begin, freed = route
            path = routes[route]
            more_slowly = max(min(shared, freed - begin), 0)  # on which of its routes is not recorded
            shared -= more_slowly
            self.add(begin + more_slowly, freed, "serialization", send, message, path[0])
            if more_slowly:
                self.add(begin, begin + more_slowly, "sharing", send, message, self.busiest(path, begin, freed))
            if since > request:
                self.add(since, begin, "rerouting", send, message)
                continue
            # A message begins with an event only if that gave it a path.
            cut = max(since, self.changes[0]) if begin in self.changes else begin
            self.add(cut, begin, "rerouting", send, message)
            if cut > since:
                self.add(since, cut, "queueing", send, message, self.busiest(path, since, cut))
        self.add(self.start[send], request, "serialization", send, message)

    def walk(self, ranks: range | None = None) -> tuple[Segment, ...]:
        """The pieces of the path from 0 to the makespan, found from the end of the run back; with `ranks`, of the path
        to the last node that one of them completed.
        """
        self.segments = []
        end, rank = np.asarray(self.end), np.asarray(self.rank)
        # A stuck collective may have nodes that ended after the last node of the workload.
        among = end <= self.makespan
        if ranks is not None:
            among &= (rank >= ranks.start) & (rank < ranks.stop)
        now = int(end.max(initial=-1, where=among))
        self.add(max(now, 0), self.makespan if ranks is None else now, "waiting", -1)
        if now < 0:
            return tuple(self.segments)
        row = int(np.argmax(among & (end == now)))
        while row >= 0:
            now, row = self.step(row, now)
        self.segments.reverse()
        return tuple(self.segments)

    def step(self, row: int, now: int) -> tuple[int, int]:
        """Account for one node that ended at `now`; returns the next (time, node)."""
        kind, by = self.labels[self.kinds[row]], self.ended[row]
        if kind == "collective" and by >= 0:
            return now, by  # it ended with the last node of its algorithm
        if kind == "recv" and by >= 0:
            self.transit(by, now)
            row = by
        elif kind == "send" and now > self.start[row]:
            self.transit(row, now)
        else:
            category = kind if kind in ("compute", "memory", "software") else "waiting"
            if kind in ("compute", "recv") and self.instance[row] >= 0:
                category = "local"
            self.add(self.start[row], now, category, row)
        now = self.start[row]
        before = self.released[row]
        calls = before >= 0 and self.labels[self.kinds[before]] == "collective" and self.instance[before] < 0
        if calls and (self.instance[row] >= 0 or self.end[before] > now):
            # The first nodes of an algorithm, and tiles of its input, begin with the collective: continue with its
            # release.
            collective = before
            self.add(self.start[collective], now, "waiting", row)
            now, before = self.start[collective], self.released[collective]
            row = collective
        if before < 0:
            self.add(0, now, "waiting", row)
            return 0, -1
        message = self.message_of[before]
        if message >= 0 and self.receiver[message] == row and by < 0:  # the head of a message between thread blocks
            latency = self.delivered[message] - self.end[before]
            self.add(now - latency, now, "latency", before, message)
            return now - latency, before
        if self.end[before] < now:
            self.add(self.end[before], now, "waiting", row)
        return min(now, self.end[before]), before
