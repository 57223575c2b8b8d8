"""Why a run took as long as it did: critical path across ranks, exposed communication, busiest links.

The critical path is walked backwards from the last node to complete. A node that ended by itself (compute,
memory, a send) is charged its own time; a receive that had to wait is charged to its message, and the walk goes
on at the sender; then the walk goes to the node whose completion let this one start. The pieces touch each
other, so their lengths add up to the makespan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.errors import InternalError, UsageError
from astrasim_py.core.records import Records, Table
from astrasim_py.core.units import format_size, format_time
from astrasim_py.report.tables import ns_number, text_table

#: Where a piece of the critical path goes, and what that means.
CATEGORIES = {
    "compute": "compute",
    "local": "reductions and endpoint delays inside collectives",
    "serialization": "putting bytes on links",
    "latency": "latency of links",
    "queueing": "waiting for links that other messages hold",
    "transfer": "messages of a model that does not tell latency from serialization",
    "memory": "remote memory",
    "waiting": "start delays, and time after the last completed node",
}
_LINES = 24
#: A path of so few steps is shown message by message too.
_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the critical path.

    Attributes
    ----------
    start, end : int
        ps.
    category : str
        One of `CATEGORIES`.
    rank : int
        Where it happened (of a message: the sender).
    row : int
        Row of the node table, -1 for none.
    message : int
        Row of the message table, -1 for none.
    link : int
        Link that the time was spent on, -1 for none.
    instance : int
        Collective instance, -1 for the workload.
    """

    start: int
    end: int
    category: str
    rank: int = -1
    row: int = -1
    message: int = -1
    link: int = -1
    instance: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """What one collective (or all point-to-point messages) cost beside compute.

    Attributes
    ----------
    instance : int
        -1 for point-to-point.
    name : str
    duration : int
        First start to last end, ps.
    exposed : int
        Of the rank where it is longest: time in this collective with no compute running, ps. When several
        collectives are in flight at once, each is charged the whole time.
    rank : int
    on_path : int
        Its share of the critical path, ps.
    """

    instance: int
    name: str
    duration: int
    exposed: int
    rank: int
    on_path: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """How busy one link was."""

    link: int
    name: str
    bytes: int
    busy: int
    messages: int
    queued: int
    max_queue: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Where the time of a run went.

    Attributes
    ----------
    makespan : int
        ps.
    path : tuple of Segment
        The critical path from 0 to `makespan`, without gaps.
    totals : mapping of str to int
        Category → ps; they add up to the makespan.
    exposures : tuple of Exposure
        By collective, the most exposed first.
    links : tuple of LinkUse
        The busiest first.
    labels : mapping of int to str
        Row of the node table → what it is, for rows on the path.
    messages : mapping of int to tuple of int
        Row of the message table → source rank, destination rank, bytes; for messages on the path.
    link_names : mapping of int to str
        Of links on the path.
    """

    makespan: int
    path: tuple[Segment, ...]
    totals: Mapping[str, int]
    exposures: tuple[Exposure, ...]
    links: tuple[LinkUse, ...]
    labels: Mapping[int, str]
    messages: Mapping[int, tuple[int, int, int]]
    link_names: Mapping[int, str]

    def waits(self) -> list[tuple[str, int]]:
        """Links for which the critical path waited, with the time, the longest first."""
        spent: dict[int, int] = {}
        for piece in self.path:
            if piece.category == "queueing":
                spent[piece.link] = spent.get(piece.link, 0) + piece.end - piece.start
        ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
        return [(self.link_names.get(link, f"link {link}"), ps) for link, ps in ordered]

    def to_json(self) -> dict:
        """Plain values with stable keys, for `tables.json_text`."""
        return {
            "makespan_ns": ns_number(self.makespan),
            "totals_ns": {category: ns_number(self.totals.get(category, 0)) for category in CATEGORIES},
            "collectives": [
                {
                    "instance": e.instance,
                    "name": e.name,
                    "time_ns": ns_number(e.duration),
                    "exposed_comm_ns": ns_number(e.exposed),
                    "rank": e.rank,
                    "critical_path_ns": ns_number(e.on_path),
                }
                for e in self.exposures
            ],
            "links": [
                {
                    "link": use.name,
                    "bytes": use.bytes,
                    "busy_ns": ns_number(use.busy),
                    "utilization": round(use.busy / self.makespan, 6) if self.makespan else 0.0,
                    "messages": use.messages,
                    "queued_ns": ns_number(use.queued),
                    "max_queue": use.max_queue,
                }
                for use in self.links
            ],
            "waited_ns": {name: ns_number(ps) for name, ps in self.waits()},
            "path": [
                {
                    "start_ns": ns_number(s.start),
                    "end_ns": ns_number(s.end),
                    "category": s.category,
                    "rank": s.rank,
                    "node": self.labels.get(s.row, ""),
                    "instance": s.instance,
                    "link": s.link,
                }
                for s in self.path
            ],
        }


def _plain(column: np.ndarray) -> Sequence[int]:
    """A column whose elements are Python's integers, made when they are asked for."""
    return memoryview(np.ascontiguousarray(column, dtype=np.int64))


# -- the critical path ------------------------------------------------------------------------------------------


class _Walk:
    """Columns of the records, of which the walk reads a few rows, and the messages by their send node."""

    def __init__(self, records: Records, latency: Mapping[int, int], longer: Mapping[int, int]) -> None:
        node, message, hop = records.node, records.message, records.hop
        self.makespan = records.makespan
        self.latest = int(node["end"].max(initial=-1))
        self.kinds, self.labels = node.coded("kind")
        self.rank, self.instance, self.start, self.end, self.released, self.ended = (
            _plain(node[name]) for name in ("rank", "instance", "start", "end", "released_by", "ended_by")
        )
        self.latency = latency
        self.longer = longer
        message_of = np.full(node.height, -1, dtype=np.int64)
        sent = np.flatnonzero(message["send_node"] >= 0)
        message_of[message["send_node"][sent]] = sent
        self.message_of = _plain(message_of)
        order = np.argsort(hop["message"], kind="stable")
        self.hops = [_plain(hop[name][order]) for name in ("link", "requested", "start", "end")]
        numbers = np.arange(message.height + 1)
        self.delivered = _plain(message["delivered"])
        self.first_hop = _plain(np.searchsorted(hop["message"][order], numbers))
        self.segments: list[Segment] = []

    def add(self, start: int, end: int, category: str, row: int, message: int = -1, link: int = -1) -> None:
        """Walking backwards: pieces are added latest first."""
        if end > start:
            rank, instance = (self.rank[row], self.instance[row]) if row >= 0 else (-1, -1)
            piece = Segment(
                start=start,
                end=end,
                category=category,
                rank=rank,
                row=row,
                message=message,
                link=link,
                instance=instance,
            )
            self.segments.append(piece)

    def transit(self, send: int, arrived: int) -> None:
        """The pieces of a message from the start of its send node to `arrived`."""
        message = self.message_of[send]
        links, requested, start, end = self.hops
        posted = self.start[send]
        first, last = self.first_hop[message], self.first_hop[message + 1]
        if first == last:
            self.add(posted, arrived, "transfer", send, message)
            return
        if arrived < self.delivered[message]:  # a send that completes once injected: only its first link counts
            self.add(start[first], arrived, "serialization", send, message, links[first])
            self.add(requested[first], min(start[first], arrived), "queueing", send, message, links[first])
            self.add(posted, min(requested[first], arrived), "serialization", send, message)
            return
        until = arrived
        longer = self.longer.get(self.instance[send], 0)
        for i in range(last - 1, first - 1, -1):
            link = links[i]
            if link in self.latency:
                wire = min(self.latency[link] + longer, until - start[i])
            elif end[i] <= until:
                wire = until - end[i]
            else:
                wire = until - start[i]  # the head went on while the tail was still coming
            self.add(until - wire, until, "latency", send, message, link)
            self.add(start[i], until - wire, "serialization", send, message, link)
            self.add(requested[i], start[i], "queueing", send, message, link)
            until = requested[i]
        # Before it asks for its first link, a message is held to the pace of its connection.
        self.add(posted, until, "serialization", send, message)

    def walk(self) -> tuple[Segment, ...]:
        """From the end of the run back to 0."""
        if self.latest < 0:
            self.add(0, self.makespan, "waiting", -1)
            return tuple(self.segments)
        now = self.latest
        row = int(np.argmax(np.asarray(self.end) == now))
        self.add(now, self.makespan, "waiting", -1)
        for _ in range(2 * len(self.end) + 2):
            now, row = self.step(row, now)
            if row < 0:
                self.segments.reverse()
                return tuple(self.segments)
        raise InternalError("the nodes of a run release each other in a circle")

    def step(self, row: int, now: int) -> tuple[int, int]:
        """Account for one node that ended at `now`; returns (time, node) to go on at."""
        kind, by = self.labels[self.kinds[row]], self.ended[row]
        if kind == "collective" and by >= 0:
            return now, by  # it ended with the last node of its algorithm
        if kind == "recv" and by >= 0:
            self.transit(by, now)
            row = by
        elif kind == "send" and now > self.start[row]:
            self.transit(row, now)
        else:
            category = kind if kind in ("compute", "memory") else "waiting"
            if kind == "compute" and self.instance[row] >= 0:
                category = "local"
            self.add(self.start[row], now, category, row)
        now = self.start[row]
        before = self.released[row]
        if before >= 0 and self.instance[row] >= 0 and self.instance[before] < 0:
            # The first nodes of an algorithm begin with their collective: go on with what released that.
            collective = before
            self.add(self.start[collective], now, "waiting", row)
            now, before = self.start[collective], self.released[collective]
            row = collective
        if before < 0:
            self.add(0, now, "waiting", row)
            return 0, -1
        if self.end[before] < now:
            self.add(self.end[before], now, "waiting", row)
        return min(now, self.end[before]), before


# -- exposed communication --------------------------------------------------------------------------------------


def _union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Disjoint ascending intervals that cover the same points."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return start[opens], reach[closes]


def _covered(start: np.ndarray, end: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Length of disjoint ascending intervals before each time."""
    total = np.concatenate([[0], np.cumsum(end - start)])
    index = np.searchsorted(start, until, side="right")
    over = np.where(index > 0, np.maximum(end[np.maximum(index - 1, 0)] - until, 0), 0) if len(start) else 0
    return total[index] - over


def _exposures(records: Records, path: Sequence[Segment]) -> tuple[Exposure, ...]:
    node, collective = records.node, records.collective
    instance, rank, start, end = (node[name] for name in ("instance", "rank", "start", "end"))
    codes, labels = node.coded("kind")
    known = {label: code for code, label in enumerate(labels)}
    own = np.flatnonzero((instance < 0) & (end >= 0) & (start >= 0))
    own = own[np.argsort(rank[own], kind="stable")]
    compute = own[codes[own] == known.get("compute", -1)]
    p2p = own[(codes[own] == known.get("send", -1)) | (codes[own] == known.get("recv", -1))]
    # A collective's node is the one that released the first nodes of its algorithm on that rank.
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
        busy = _union(start[compute[computing]], end[compute[computing]])
        begun, ended = start[caller[calls]], end[caller[calls]]
        bare = (ended - begun) - (_covered(*busy, ended) - _covered(*busy, begun))
        for i, ps in zip(of_instance[calls].tolist(), bare.tolist(), strict=True):
            if ps > longest.get(i, (-1, -1))[0]:
                longest[i] = (ps, r)
        begun, ended = _union(start[p2p[sent]], end[p2p[sent]])
        ps = int(((ended - begun) - (_covered(*busy, ended) - _covered(*busy, begun))).sum())
        if len(begun) and ps > longest.get(-1, (-1, -1))[0]:
            longest[-1] = (ps, r)
    on_path: dict[int, int] = {}
    for piece in path:
        if piece.instance >= 0 or piece.message >= 0:
            on_path[piece.instance] = on_path.get(piece.instance, 0) + piece.end - piece.start
    result = []
    for c in collective.rows():
        exposed, where = longest.get(c["instance"], (0, -1))
        result.append(
            Exposure(
                instance=c["instance"],
                name=f"{c['type']} {format_size(c['size'])}" + (f" ({c['algorithm']})" if c["algorithm"] else ""),
                duration=max(c["end"] - c["start"], 0),
                exposed=exposed,
                rank=where,
                on_path=on_path.get(c["instance"], 0),
            )
        )
    if len(p2p):
        exposed, where = longest.get(-1, (0, -1))
        result.append(
            Exposure(
                instance=-1,
                name="point-to-point",
                duration=int(end[p2p].max() - start[p2p].min()),
                exposed=exposed,
                rank=where,
                on_path=on_path.get(-1, 0),
            )
        )
    return tuple(sorted(result, key=lambda e: (-e.exposed, -e.on_path, e.instance)))


def busiest_links(link: Table, names: Mapping[int, str], count: int = 10) -> tuple[LinkUse, ...]:
    """The links that were busy longest (by bytes where busy times were not recorded), the busiest first."""
    if not link.height:
        return ()
    busy = np.maximum(link["busy"], 0)
    order = np.lexsort((link["link"], -link["bytes"], -busy))[:count]
    first = Table({name: column[order] for name, column in link.items()})
    return tuple(
        LinkUse(
            link=r["link"],
            name=names.get(r["link"], f"{r['src']}->{r['dst']}"),
            bytes=r["bytes"],
            busy=max(r["busy"], 0),
            messages=max(r["messages"], 0),
            queued=max(r["queued"], 0),
            max_queue=max(r["max_queue"], 0),
        )
        for r in first.rows()
    )


def explain(records: Records, edges: Table | None = None, longer: Mapping[int, int] | None = None) -> Explanation:
    """Walk the critical path and say where the time went.

    Parameters
    ----------
    records : Records
        Of level ``messages``.
    edges : Table, optional
        ``link``, ``name`` and ``latency`` (ps) of the links: names them, and tells latency from serialization
        exactly.
    longer : mapping of int to int, optional
        Collective instance → ps that each hop of its messages takes beyond the latency of the link.

    Raises
    ------
    UsageError
        Records of a lower level.
    """
    if records.level != "messages":
        raise UsageError("records", f'level "{records.level}" does not hold messages', 'record at level "messages"')
    names: dict[int, str] = {}
    latency: dict[int, int] = {}
    if edges is not None:
        names = dict(zip(edges["link"].tolist(), edges["name"].tolist(), strict=True))
        latency = dict(zip(edges["link"].tolist(), edges["latency"].tolist(), strict=True))
    path = _Walk(records, latency, longer or {}).walk()
    totals = dict.fromkeys(CATEGORIES, 0)
    for piece in path:
        totals[piece.category] += piece.end - piece.start
    node, message = records.node, records.message
    rows = sorted({piece.row for piece in path if piece.row >= 0})
    sent = sorted({piece.message for piece in path if piece.message >= 0})
    return Explanation(
        makespan=records.makespan,
        path=path,
        totals=totals,
        exposures=_exposures(records, path),
        links=busiest_links(records.link, names),
        labels={row: _label(node, row) for row in rows},
        messages={m: tuple(int(message[c][m]) for c in ("src", "dst", "bytes")) for m in sent},
        link_names={i: names.get(i, f"link {i}") for i in sorted({piece.link for piece in path}) if i >= 0},
    )


def _label(node: Table, row: int) -> str:
    kind, name = (labels[codes[row]] for codes, labels in (node.coded("kind"), node.coded("name")))
    return f"{kind} {node['node'][row]}" + (f' "{name}"' if name else "")


# -- for people -------------------------------------------------------------------------------------------------


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def explanation_text(e: Explanation, lines: int = _LINES) -> str:
    """An explanation as plain text."""
    blocks = [f"makespan {format_time(e.makespan)}"]
    spent = [
        [category, format_time(ps), _share(ps, e.makespan), CATEGORIES[category]]
        for category, ps in sorted(e.totals.items(), key=lambda item: -item[1])
        if ps
    ]
    waits = e.waits()
    if spent:
        headings = ["on the critical path", "time", "share", "what it is"]
        blocks.append(text_table(headings, spent, [False, True, True, False]))
    if waits:
        longest = ", ".join(f"{name} {format_time(ps)}" for name, ps in waits[:5])
        blocks[-1] += f"\nit waited for {longest}" + (f", and {len(waits) - 5} more links" if waits[5:] else "")
    if e.exposures:
        cells = [
            [
                x.name if x.instance < 0 else f"{x.instance}: {x.name}",
                format_time(x.duration),
                format_time(x.exposed),
                str(x.rank) if x.rank >= 0 else "",
                format_time(x.on_path),
            ]
            for x in e.exposures[:lines]
        ]
        headings = ["communication", "time", "exposed", "at rank", "on critical path"]
        blocks.append(text_table(headings, cells, [False, True, True, True, True]) + _more(e.exposures, lines))
    if e.links:
        cells = [
            [
                use.name,
                format_time(use.busy),
                _share(use.busy, e.makespan),
                format_size(use.bytes),
                str(use.messages),
                format_time(use.queued),
            ]
            for use in e.links
        ]
        headings = ["busiest links", "busy", "share", "bytes", "messages", "waited for"]
        blocks.append(text_table(headings, cells, [False, True, True, True, True, True]))
    steps = _steps(e)
    if steps:
        headings = ["from", "to", "what", "time"]
        text = text_table(headings, steps[:lines], [True, True, False, True])
        blocks.append("critical path, in order\n" + text + _more(steps, lines))
    if 0 < len(steps) <= _FEW and any(piece.message >= 0 and piece.instance >= 0 for piece in e.path):
        singly = _steps(e, whole_collectives=False)
        text = text_table(headings, singly[:lines], [True, True, False, True])
        blocks.append("message by message\n" + text + _more(singly, lines))
    return "\n\n".join(blocks)


def _more(rows: Sequence, shown: int) -> str:
    return f"\n… and {len(rows) - shown} more" if len(rows) > shown else ""


def _steps(e: Explanation, *, whole_collectives: bool = True) -> list[list[str]]:
    """Consecutive pieces of one node or message as one line; if asked, those of one collective as one."""
    steps: list[dict] = []
    for piece in e.path:
        collective = whole_collectives and piece.instance >= 0
        key = ("c", piece.instance) if collective else ("m", piece.message) if piece.message >= 0 else ("n", piece.row)
        if not steps or steps[-1]["key"] != key:
            steps.append({"key": key, "first": piece, "spent": {}, "messages": set(), "start": piece.start})
        step = steps[-1]
        step["end"] = piece.end
        step["spent"][piece.category] = step["spent"].get(piece.category, 0) + piece.end - piece.start
        if piece.message >= 0:
            step["messages"].add(piece.message)
    names = {x.instance: x.name for x in e.exposures}
    return [
        [
            format_time(step["start"]),
            format_time(step["end"]),
            _said(step, e, names, whole_collectives),
            format_time(step["end"] - step["start"]),
        ]
        for step in steps
    ]


def _said(step: dict, e: Explanation, names: Mapping[int, str], whole_collectives: bool) -> str:
    piece = step["first"]
    parts = sorted(step["spent"].items(), key=lambda item: -item[1])
    spent = ", ".join(f"{category} {format_time(ps)}" for category, ps in parts)
    if whole_collectives and piece.instance >= 0:
        count = len(step["messages"])
        messages = f"{count} message{'s' if count != 1 else ''} one after the other"
        return f"collective {piece.instance} {names.get(piece.instance, '')}: {messages} ({spent})"
    if piece.message >= 0:
        src, dst, nbytes = e.messages[piece.message]
        return f"rank {src} → {dst}: {e.labels[piece.row]}, {format_size(nbytes)} ({spent})"
    if piece.row >= 0:
        return f"rank {piece.rank}: {e.labels[piece.row]} ({piece.category})"
    return "after the last completed node" if piece.start else "nothing completed"
