"""Timeline of a run as Chrome Trace Event JSON, for Perfetto, chrome://tracing and vizviewer.

Format: "Trace Event Format" (Google, 2016): complete events ``X``, metadata ``M``, flows ``s`` and ``f``. Times are
microseconds; ours are exact decimals of whole picoseconds. One process per NPU (compute, communication), one for
the collectives, one for the links.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence

from astrasim_py.core.records import Records, Table
from astrasim_py.core.units import format_size, ns_text

_BLOCK = 4096
#: Arrows end so far inside the receive, so that viewers find it around them.
_INSIDE_PS = 1000


def microseconds(ps: int) -> str:
    """Picoseconds as an exact decimal number of microseconds.

    Examples
    --------
    >>> microseconds(1), microseconds(2_500_000), microseconds(0)
    ('0.000001', '2.5', '0')
    """
    whole, rest = divmod(ps, 10**6)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def lanes(start: Sequence[int], end: Sequence[int]) -> list[int]:
    """A lane for each interval, so that intervals of one lane do not overlap; the fewest lanes, lowest first.

    Examples
    --------
    >>> lanes([0, 1, 5], [4, 3, 6])
    [0, 1, 0]
    """
    result = [0] * len(start)
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    for i in sorted(range(len(start)), key=lambda i: (start[i], end[i])):
        while busy and busy[0][0] <= start[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        result[i] = lane
        heapq.heappush(busy, (end[i], lane))
    return result


class _Writer:
    """Events as text; every name is JSON-encoded once."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def text(self, value: str) -> str:
        encoded = self.known.get(value)
        if encoded is None:
            encoded = self.known[value] = json.dumps(value)
        return encoded

    def meta(self, what: str, pid: int, value: str | int, tid: int | None = None) -> str:
        thread = "" if tid is None else f',"tid":{tid}'
        key = "sort_index" if what.endswith("sort_index") else "name"
        return f'{{"ph":"M","name":"{what}","pid":{pid}{thread},"args":{{"{key}":{json.dumps(value)}}}}}'

    def slice(self, name: str, category: str, pid: int, tid: int, start: int, end: int, args: str) -> str:
        return (
            f'{{"ph":"X","name":{self.text(name)},"cat":"{category}","pid":{pid},"tid":{tid},'
            f'"ts":{microseconds(start)},"dur":{microseconds(end - start)},"args":{{{args}}}}}'
        )

    def flow(self, phase: str, number: int, pid: int, tid: int, at: int) -> str:
        bind = ',"bp":"e"' if phase == "f" else ""
        return (
            f'{{"ph":"{phase}","name":"message","cat":"message","id":{number},"pid":{pid},"tid":{tid},'
            f'"ts":{microseconds(at)}{bind}}}'
        )


def timeline(records: Records, edges: Table | None = None, npus: Sequence[int] = ()) -> Iterator[bytes]:
    """The timeline of a run, a piece at a time; together one JSON document.

    Parameters
    ----------
    records : Records
        Of level ``messages``; of level ``nodes`` there are no links and no arrows.
    edges : Table, optional
        ``link`` and ``name``: names of links.
    npus : sequence of int, optional
        rank → NPU, for the names of lanes.
    """
    yield b'{"displayTimeUnit":"ns","traceEvents":[\n'
    block: list[str] = []
    first = True
    for event in _events(records, edges, npus):
        block.append(event)
        if len(block) >= _BLOCK:
            yield (("" if first else ",\n") + ",\n".join(block)).encode()
            first, block = False, []
    if block:
        yield (("" if first else ",\n") + ",\n".join(block)).encode()
    yield b"\n]}\n"


def _events(records: Records, edges: Table | None, npus: Sequence[int]) -> Iterator[str]:
    write = _Writer()
    ranks = len(records.finish)
    collectives, links = ranks, ranks + 1
    for rank in range(ranks):
        npu = f" (NPU {npus[rank]})" if rank < len(npus) and npus[rank] != rank else ""
        yield write.meta("process_name", rank, f"rank {rank}{npu}")
        yield write.meta("process_sort_index", rank, rank)
    yield write.meta("process_name", collectives, "collectives")
    yield write.meta("process_sort_index", collectives, collectives)
    yield write.meta("process_name", links, "links")
    yield write.meta("process_sort_index", links, links)
    yield from _collectives(write, records.collective, collectives)
    names = {} if edges is None else dict(zip(edges["link"].tolist(), edges["name"].tolist(), strict=True))
    lane_of: dict[int, int] = {}
    yield from _nodes(write, records, lane_of)
    yield from _hops(write, records, names, links)
    yield from _arrows(write, records, lane_of)


def _collectives(write: _Writer, table: Table, pid: int) -> Iterator[str]:
    rows = [row for row in table.rows() if row["start"] >= 0 and row["end"] >= 0]
    where = lanes([row["start"] for row in rows], [row["end"] for row in rows])
    for lane in sorted(set(where)):
        yield write.meta("thread_name", pid, "in flight", lane)
    for row, lane in zip(rows, where, strict=True):
        args = f'"instance":{row["instance"]},"bytes":{row["size"]},"algorithm":{write.text(row["algorithm"])}'
        name = f"{row['type']} {format_size(row['size'])}"
        yield write.slice(name, "collective", pid, lane, row["start"], row["end"], args)


#: Lanes of a rank, in this order: kinds of the workload's nodes, then of the algorithms'.
_LANES = (
    ("compute", False, ("compute",)),
    ("memory", False, ("memory",)),
    ("collectives", False, ("collective",)),
    ("send", False, ("send",)),
    ("receive", False, ("recv",)),
    ("algorithm compute", True, ("compute",)),
    ("algorithm send", True, ("send",)),
    ("algorithm receive", True, ("recv",)),
)


def _nodes(write: _Writer, records: Records, lane_of: dict[int, int]) -> Iterator[str]:
    """Nodes in lanes of their kind; `lane_of` learns the lane of every node drawn."""
    node = records.node
    columns = ("rank", "node", "instance", "kind", "name", "start", "end")
    rank, ident, instance, kind, name, start, end = (node[c].tolist() for c in columns)
    group = {(k, inner): number for number, (_, inner, kinds) in enumerate(_LANES) for k in kinds}
    rows: dict[tuple[int, int], list[int]] = {}
    for row in range(len(rank)):
        number = group.get((kind[row], instance[row] >= 0))
        if number is not None and start[row] >= 0 and end[row] >= 0:
            rows.setdefault((rank[row], number), []).append(row)
    base: dict[int, int] = {}
    for pid, number in sorted(rows):
        mine = rows[pid, number]
        where = lanes([start[i] for i in mine], [end[i] for i in mine])
        low = base.get(pid, 0)
        base[pid] = low + max(where) + 1
        title, _, (category, *_) = _LANES[number]
        for lane in range(max(where) + 1):
            yield write.meta("thread_name", pid, title if not lane else f"{title} {lane + 1}", low + lane)
            yield write.meta("thread_sort_index", pid, low + lane, low + lane)
        for row, lane in zip(mine, where, strict=True):
            lane_of[row] = low + lane
            args = f'"node":{ident[row]}' + (f',"instance":{instance[row]}' if instance[row] >= 0 else "")
            label = name[row] or f"{kind[row]} {ident[row]}"
            yield write.slice(label, category, pid, low + lane, start[row], end[row], args)


def _hops(write: _Writer, records: Records, names: Mapping[int, str], pid: int) -> Iterator[str]:
    hop, message = records.hop, records.message
    of_link: dict[int, list[int]] = {}
    for row, link in enumerate(hop["link"].tolist()):
        of_link.setdefault(link, []).append(row)
    number, requested, start, end = (hop[c].tolist() for c in ("message", "requested", "start", "end"))
    src, dst, size = (message[c].tolist() for c in ("src", "dst", "bytes"))
    tid = 0
    for link in sorted(of_link):
        mine = of_link[link]
        where = lanes([start[i] for i in mine], [end[i] for i in mine])
        for lane in range(max(where) + 1):
            yield write.meta("thread_name", pid, names.get(link, f"link {link}"), tid + lane)
            yield write.meta("thread_sort_index", pid, tid + lane, tid + lane)
        for row, lane in zip(mine, where, strict=True):
            m = number[row]
            args = f'"bytes":{size[m]},"waited_ns":{ns_text(start[row] - requested[row])}'
            yield write.slice(f"{src[m]} → {dst[m]}", "link", pid, tid + lane, start[row], end[row], args)
        tid += max(where) + 1


def _arrows(write: _Writer, records: Records, lane_of: Mapping[int, int]) -> Iterator[str]:
    message, node = records.message, records.node
    begin, done = node["start"].tolist(), node["end"].tolist()
    columns = ("src", "dst", "posted", "delivered", "send_node", "recv_node")
    for number, row in enumerate(zip(*(message[c].tolist() for c in columns), strict=True)):
        src, dst, posted, delivered, send, receive = row
        if delivered < 0 or send not in lane_of or receive not in lane_of:
            continue
        at = max(begin[receive], min(delivered, done[receive]) - _INSIDE_PS)
        yield write.flow("s", number, src, lane_of[send], posted)
        yield write.flow("f", number, dst, lane_of[receive], max(at, posted))
