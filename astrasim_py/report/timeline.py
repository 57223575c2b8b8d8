"""Timeline of a run as Chrome Trace Event JSON, for Perfetto, chrome://tracing and vizviewer.

Format: "Trace Event Format" (Google, 2016): complete events ``X``, metadata ``M``, flows ``s`` and ``f``. Times are
microseconds; ours are exact decimals of whole picoseconds. One process per NPU (compute, communication), one for
the collectives, one for the links. Events are written columns at a time, like the tables (`report.cells`).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from astrasim_py.core.records import Records, Table
from astrasim_py.core.units import format_size
from astrasim_py.report.cells import BLANK, decimal_cells, digit_cells, packed, text_cells

#: Events of a block; fewer where a name is long.
_BLOCK = 16384
_BLOCK_BYTES = 2**25
#: Arrows end so far inside the receive, so that viewers find it around them.
_INSIDE_PS = 1000

#: What stands in an event: the same in all of a kind, or what makes the cells of some rows.
_Part = bytes | Callable[[np.ndarray], np.ndarray]


def lanes(group: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """A lane for each interval, so that those of one lane and group do not overlap; the fewest, lowest first.

    Parameters
    ----------
    group, start, end : int64 arrays
        Of each interval; groups from 0 on, of which each has lanes of its own.

    Examples
    --------
    >>> lanes(np.array([0, 0, 0, 1]), np.array([0, 1, 5, 0]), np.array([4, 3, 6, 9])).tolist()
    [0, 1, 0, 0]
    """
    count = len(start)
    result = np.zeros(count, dtype=np.int64)
    if not count:
        return result
    order = np.lexsort((end, start, group))
    groups, starts, ends = group[order], start[order], end[order]
    # The latest end so far within a group: ends by their rank, groups above them.
    ranked = np.sort(ends)
    latest = np.maximum.accumulate(groups * count + np.searchsorted(ranked, ends)) - groups * count
    # Where nothing of the group is left, lanes begin anew; what is alone until then is in the first.
    anew = np.ones(count, dtype=bool)
    anew[1:] = (groups[1:] != groups[:-1]) | (starts[1:] >= ranked[latest[:-1]])
    first = np.flatnonzero(anew)
    for begin, stop in zip(first.tolist(), [*first[1:].tolist(), count], strict=True):
        if stop - begin > 1:
            result[order[begin:stop]] = _overlapping(starts[begin:stop].tolist(), ends[begin:stop].tolist())
    return result


def _overlapping(start: list[int], end: list[int]) -> list[int]:
    """Lanes of intervals in the order of their start."""
    found = []
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    for begin, stop in zip(start, end, strict=True):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        found.append(lane)
        heapq.heappush(busy, (stop, lane))
    return found


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
    ranks = len(records.finish)
    collectives, links = ranks, ranks + 1
    titles = []
    for rank in range(ranks):
        npu = f" (NPU {npus[rank]})" if rank < len(npus) and npus[rank] != rank else ""
        titles.append(f"rank {rank}{npu}")
    named = []
    for pid, title in enumerate([*titles, "collectives", "links"]):
        named += [_meta("process_name", pid, title), _meta("process_sort_index", pid, pid)]
    about = json.dumps({"engine": records.engine}).encode()
    yield b'{"displayTimeUnit":"ns","otherData":' + about + b',"traceEvents":[\n' + ",\n".join(named).encode()
    yield from _collectives(records.collective, collectives)
    lane_of = np.full(records.node.height, -1, dtype=np.int64)
    yield from _nodes(records, lane_of)
    if records.message.height:
        yield from _hops(records, edges, links)
        yield from _arrows(records, lane_of)
    yield b"\n]}\n"


# -- events ----------------------------------------------------------------------------------------------------


def _meta(what: str, pid: int, value: str | int, tid: int | None = None) -> str:
    thread = "" if tid is None else f',"tid":{tid}'
    key = "sort_index" if what.endswith("sort_index") else "name"
    return f'{{"ph":"M","name":"{what}","pid":{pid}{thread},"args":{{"{key}":{json.dumps(value)}}}}}'


def _more(events: list[str]) -> Iterator[bytes]:
    """Events that are text already."""
    for first in range(0, len(events), _BLOCK):
        yield (",\n" + ",\n".join(events[first : first + _BLOCK])).encode()


def _written(rows: np.ndarray, parts: Sequence[_Part], widest: int = 0) -> Iterator[bytes]:
    """An event for each of some rows of a table; `widest`: bytes of its longest text."""
    step = max(min(_BLOCK, _BLOCK_BYTES // (widest + 1)), 1)
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        yield packed([b",\n", *(part if isinstance(part, bytes) else part(some) for part in parts)], len(some))


def _slices(rows: np.ndarray, start: np.ndarray, end: np.ndarray, tid: np.ndarray, **parts) -> Iterator[bytes]:
    """Complete events. `parts`: name, category, pid and args, each a list of parts."""
    return _written(
        rows,
        [
            *(b'{"ph":"X","name":', *parts["name"], b',"cat":', *parts["category"], b',"pid":', *parts["pid"]),
            *(b',"tid":', _digits(tid), b',"ts":', lambda some: decimal_cells(start[some], 6)),
            *(b',"dur":', lambda some: decimal_cells(end[some] - start[some], 6)),
            *(b',"args":{', *parts["args"], b"}}"),
        ],
        parts.get("widest", 0),
    )


def _digits(column: np.ndarray) -> _Part:
    return lambda some: digit_cells(column[some])


def _labels(codes: np.ndarray, texts: Sequence[str]) -> tuple[_Part, int]:
    """Text of each row, as it is; and the bytes of the longest."""
    encoded = [text.encode() for text in texts]
    widest = max(map(len, encoded), default=0)
    if widest * len(encoded) <= _BLOCK_BYTES:
        cells = text_cells(encoded)
        return lambda some: cells[codes[some]], widest
    return lambda some: text_cells([encoded[code] for code in codes[some].tolist()]), widest


def _distinct(texts: list[str]) -> tuple[np.ndarray, list[str]]:
    known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([known[text] for text in texts], dtype=np.int64), list(known)


def _threads(pid: int, titles: Sequence[tuple[int, str]]) -> list[str]:
    """Names and order of the lanes of a process."""
    events = []
    for tid, title in titles:
        events += [_meta("thread_name", pid, title, tid), _meta("thread_sort_index", pid, tid, tid)]
    return events


def _collectives(table: Table, pid: int) -> Iterator[bytes]:
    start, end = table["start"], table["end"]
    rows = np.flatnonzero((start >= 0) & (end >= 0))
    tid = np.full(table.height, -1, dtype=np.int64)
    tid[rows] = lanes(np.zeros(len(rows), dtype=np.int64), start[rows], end[rows])
    yield from _more([_meta("thread_name", pid, "in flight", lane) for lane in range(int(tid.max(initial=-1)) + 1)])
    types, sizes = table["type"].tolist(), table["size"].tolist()
    named = [json.dumps(f"{kind} {format_size(size)}") for kind, size in zip(types, sizes, strict=True)]
    name, _ = _labels(*_distinct(named))
    codes, labels = table.coded("algorithm")
    algorithm, widest = _labels(codes, [json.dumps(str(label)) for label in labels])
    args = [b'"instance":', _digits(table["instance"]), b',"bytes":', _digits(table["size"])]
    yield from _slices(
        rows,
        start,
        end,
        tid,
        name=[name],
        category=[b'"collective"'],
        pid=[str(pid).encode()],
        args=[*args, b',"algorithm":', algorithm],
        widest=widest,
    )


#: Lanes of a rank, in this order: kinds of the workload's nodes, then of the algorithms'.
_LANES = (
    ("compute", False, "compute"),
    ("memory", False, "memory"),
    ("collectives", False, "collective"),
    ("send", False, "send"),
    ("receive", False, "recv"),
    ("algorithm compute", True, "compute"),
    ("algorithm send", True, "send"),
    ("algorithm receive", True, "recv"),
)


def _nodes(records: Records, lane_of: np.ndarray) -> Iterator[bytes]:
    """Nodes in lanes of their kind; `lane_of` learns the lane of every node drawn."""
    node = records.node
    if not node.height:
        return
    rank, ident, instance, start, end = (node[c] for c in ("rank", "node", "instance", "start", "end"))
    codes, kinds = node.coded("kind")
    group = {(kind, inner): number for number, (_, inner, kind) in enumerate(_LANES)}
    numbers = np.array([[group.get((str(kind), inner), -1) for inner in (False, True)] for kind in kinds])
    number = numbers[codes, (instance >= 0).astype(np.int64)]
    rows = np.flatnonzero((number >= 0) & (start >= 0) & (end >= 0))
    # By rank, then kind, and as in the table.
    belongs = rank[rows].astype(np.int64) * len(_LANES) + number[rows]
    order = np.argsort(belongs, kind="stable")
    rows, belongs = rows[order], belongs[order]
    where = lanes(belongs, start[rows], end[rows])
    used, first = np.unique(belongs, return_index=True)
    most = np.maximum.reduceat(where, first) + 1 if len(rows) else where
    low, below, threads, before = np.zeros(len(records.finish) * len(_LANES), dtype=np.int64), 0, [], -1
    for key, count in zip(used.tolist(), most.tolist(), strict=True):
        pid, kind = divmod(key, len(_LANES))
        below = below if pid == before else 0
        before, low[key] = pid, below
        title = _LANES[kind][0]
        threads += _threads(pid, [(below + i, title if not i else f"{title} {i + 1}") for i in range(count)])
        below += count
    yield from _more(threads)
    lane_of[rows] = low[belongs] + where
    name_codes, names = node.coded("name")
    name, widest = _labels(name_codes, [json.dumps(str(text)) if text else "" for text in names])
    unnamed = np.array([not text for text in names])
    kind_text, _ = _labels(codes, [f'"{kind} ' for kind in kinds])
    category, _ = _labels(codes, [f'"{kind}"' for kind in kinds])
    yield from _slices(
        rows,
        start,
        end,
        lane_of,
        name=[name, _where(lambda some: unnamed[name_codes[some]], kind_text, _digits(ident), b'"')],
        category=[category],
        pid=[_digits(rank)],
        args=[b'"node":', _digits(ident), _where(lambda some: instance[some] >= 0, b',"instance":', _digits(instance))],
        widest=widest,
    )


def _where(holds: Callable[[np.ndarray], np.ndarray], *parts: _Part) -> _Part:
    """Parts that stand only in some rows."""

    def cells(some: np.ndarray) -> np.ndarray:
        made = [
            np.broadcast_to(np.frombuffer(part, dtype=np.uint8), (len(some), len(part)))
            if isinstance(part, bytes)
            else part(some)
            for part in parts
        ]
        matrix = np.concatenate(made, axis=1)
        matrix[~holds(some)] = BLANK[0]
        return matrix

    return cells


def _hops(records: Records, edges: Table | None, pid: int) -> Iterator[bytes]:
    hop, message = records.hop, records.message
    names = {} if edges is None else dict(zip(edges["link"].tolist(), edges["name"].tolist(), strict=True))
    number, link, requested, start, end = (hop[c] for c in ("message", "link", "requested", "start", "end"))
    rows = np.argsort(link, kind="stable")
    links, first, of = np.unique(link[rows], return_index=True, return_inverse=True)
    where = lanes(of.reshape(-1), start[rows], end[rows])
    most = np.maximum.reduceat(where, first) + 1 if len(rows) else where
    low = np.cumsum(most) - most
    threads = []
    for one, tid, count in zip(links.tolist(), low.tolist(), most.tolist(), strict=True):
        threads += _threads(pid, [(tid + i, names.get(one, f"link {one}")) for i in range(count)])
    yield from _more(threads)
    tid = np.empty(hop.height, dtype=np.int64)
    tid[rows] = low[of.reshape(-1)] + where
    src, dst, size = message["src"], message["dst"], message["bytes"]
    arrow = json.dumps(" → ").strip('"').encode()
    between = [b'"', lambda some: digit_cells(src[number[some]]), arrow, lambda some: digit_cells(dst[number[some]])]
    yield from _slices(
        rows,
        start,
        end,
        tid,
        name=[*between, b'"'],
        category=[b'"link"'],
        pid=[str(pid).encode()],
        args=[
            *(b'"bytes":', lambda some: digit_cells(size[number[some]])),
            *(b',"waited_ns":', lambda some: decimal_cells(start[some] - requested[some], 3)),
        ],
    )


def _arrows(records: Records, lane_of: np.ndarray) -> Iterator[bytes]:
    message, node = records.message, records.node
    columns = ("src", "dst", "posted", "delivered", "send_node", "recv_node")
    src, dst, posted, delivered, send, receive = (message[c] for c in columns)
    rows = np.flatnonzero((delivered >= 0) & (send >= 0) & (receive >= 0))
    rows = rows[(lane_of[send[rows]] >= 0) & (lane_of[receive[rows]] >= 0)]
    begin, done = node["start"], node["end"]

    def arrives(some: np.ndarray) -> np.ndarray:
        inside = np.minimum(delivered[some], done[receive[some]]) - _INSIDE_PS
        return decimal_cells(np.maximum(np.maximum(begin[receive[some]], inside), posted[some]), 6)

    def event(phase: bytes, pid: np.ndarray, lane: np.ndarray, at: _Part, bind: bytes) -> list[_Part]:
        return [
            *(b'{"ph":"' + phase + b'","name":"message","cat":"message","id":', digit_cells),
            *(b',"pid":', _digits(pid), b',"tid":', lambda some: digit_cells(lane_of[lane[some]])),
            *(b',"ts":', at, bind + b"}"),
        ]

    leaves = event(b"s", src, send, lambda some: decimal_cells(posted[some], 6), b"")
    yield from _written(rows, [*leaves, b",\n", *event(b"f", dst, receive, arrives, b',"bp":"e"')])
