"""Timeline of a run as Chrome Trace Event JSON, for Perfetto, chrome://tracing and vizviewer.

Format: "Trace Event Format" (Google, 2016): complete events ``X``, instants ``i``, metadata ``M``, flows ``s`` and
``f``. Times are microseconds; ours are exact decimals of whole picoseconds. One process per NPU (compute,
communication), one for the collectives, one for the links.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np

from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.records import Records, Table, queue_pairs
from astrasim_py.core.units import format_size
from astrasim_py.report.intervals import lanes

_CALLS = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
#: Largest timeline of all ranks, bytes, and what is said of a larger one.
MOST_BYTES = 100 * 10**6
TOO_LARGE = f"the timeline of all ranks has more than {MOST_BYTES // 10**6} MB, too much for most viewers"
CHOOSE = "name some with --ranks, e.g. --ranks 0-7"
#: Events per yielded piece.
_BLOCK = 16384
#: Distance of arrow ends inside the receive, so that viewers attach them to it.
_INSIDE_PS = 1000


def timeline(
    records: Records,
    edges: Table | None = None,
    npus: Sequence[int] = (),
    jobs: Sequence[str] = (),
    switches: Sequence[str] = (),
    qps: int = 1,
    marks: Sequence[tuple[int, str]] = (),
    only: Sequence[int] = (),
) -> Iterator[bytes]:
    """The timeline of a run, a piece at a time; together one JSON document. `records`: of level ``messages``; of level
    ``nodes`` there are no links and no arrows. `edges`: ``link`` and ``name``: names of links. `npus`: rank → NPU, for
    the names of lanes. `jobs`: rank → name of its job, of several jobs. `switches`: names of the ranks that follow.
    `qps`: queue pairs of two NPUs. `marks`: what happened to links, and when (ps). `only`: ranks; what they do, their
    messages and all collectives.
    """
    ranks = len(records.finish)
    collectives, links = ranks + len(switches), ranks + len(switches) + 1
    lane_of = np.full(records.node.height, -1, dtype=np.int64)
    shown = np.isin(np.arange(collectives), only) if only else np.ones(collectives, dtype=bool)
    events = chain(
        _processes(ranks, npus, jobs, switches, shown),
        _collectives(records.collective, collectives, jobs),
        _nodes(records, lane_of, shown),
        (
            f'{{"ph":"i","name":{json.dumps(text)},"cat":"link event","pid":{links},"tid":0,"ts":{_us(at_ps)},"s":"g"}}'
            for at_ps, text in marks
        ),
        _hops(records, edges, links, jobs, switches, qps, shown) if records.message.height else (),
        _arrows(records, lane_of) if records.message.height else (),
    )
    return _document(events, f',"otherData":{json.dumps({"engine": records.engine})}')


def within(pieces: Iterable[bytes]) -> list[bytes] | None:
    """The pieces of a timeline of all ranks; None beyond `MOST_BYTES`."""
    chunks, room = [], MOST_BYTES
    for piece in pieces:
        chunks.append(piece)
        room -= len(piece)
        if room < 0:
            return None
    return chunks


def _document(events: Iterator[str], about: str = "") -> Iterator[bytes]:
    separator = f'{{"displayTimeUnit":"ns"{about},"traceEvents":[\n'
    while block := list(islice(events, _BLOCK)):
        yield (separator + ",\n".join(block)).encode()
        separator = ",\n"
    yield b"\n]}\n"


def recorded_timeline(
    traces: Sequence[ExecutionTrace], times: Sequence[tuple[np.ndarray, np.ndarray]], ranks: Sequence[int]
) -> Iterator[bytes]:
    """The timeline of the traces of some ranks, a process for each. `times`: start and end of the nodes of each, ps."""

    def events() -> Iterator[str]:
        for rank, trace, (start, end) in zip(ranks, traces, times, strict=True):
            yield _meta("process_name", rank, f"rank {rank}")
            yield _meta("process_sort_index", rank, rank)
            kinds = np.where(np.isin(trace.type, _CALLS), 2, np.where(trace.column("is_cpu_op") > 0, 0, 1))
            lane = lanes(kinds, start, end)
            first = 0
            for kind, title in enumerate(("CPU", "compute", "communication")):
                nodes = np.flatnonzero(kinds == kind)
                for number in range(int(lane[nodes].max(initial=-1)) + 1):
                    yield from _thread(rank, first + number, f"{title} {number}")
                for row in nodes.tolist():
                    name = json.dumps(trace.names[row] or NodeType(int(trace.type[row])).name)
                    begin, stop = int(start[row]), int(end[row])
                    args = json.dumps({"id": int(trace.node_id[row])} | (_call(trace, row) if kind == 2 else {}))[1:-1]
                    yield _span(name, title, rank, first + int(lane[row]), begin, stop, args)
                first += int(lane[nodes].max(initial=-1)) + 1

    return _document(events())


def _call(trace: ExecutionTrace, row: int) -> dict[str, int | str]:
    """What a call or a message says of itself."""
    codes, names = trace.group_of()
    fields = {"group": names[codes[row]]} if codes[row] >= 0 else {}
    kind = trace.type[row]
    if kind == NodeType.COMM_COLL:
        fields["collective"] = COLLECTIVE_OF_CODE.get(int(trace.column("comm_type")[row]), "unknown")
    peer = {NodeType.COMM_SEND: "comm_dst", NodeType.COMM_RECV: "comm_src"}.get(kind, "")
    values = ((name, int(trace.column(name)[row])) for name in ("comm_size", "coll_size", "comm_tag", peer) if name)
    return fields | {name: value for name, value in values if value != MISSING}


def _us(ps: int) -> str:
    """Picoseconds as an exact decimal of microseconds."""
    units, fraction = divmod(ps, 10**6)
    return f"{units}.{fraction:06d}".rstrip("0") if fraction else str(units)


def _meta(name: str, pid: int, value: str | int, tid: int | None = None) -> str:
    thread = "" if tid is None else f',"tid":{tid}'
    key = "sort_index" if name.endswith("sort_index") else "name"
    return f'{{"ph":"M","name":"{name}","pid":{pid}{thread},"args":{{"{key}":{json.dumps(value)}}}}}'


def _span(name: str, category: str, pid: int, tid: int, start: int, end: int, args: str) -> str:
    """A complete event; `name` and `args` are JSON already."""
    return (
        f'{{"ph":"X","name":{name},"cat":"{category}","pid":{pid},"tid":{tid},"ts":{_us(start)},'
        f'"dur":{_us(end - start)},"args":{{{args}}}}}'
    )


def _processes(
    ranks: int, npus: Sequence[int], jobs: Sequence[str], switches: Sequence[str], shown: np.ndarray
) -> Iterator[str]:
    titles = []
    for rank in range(ranks):
        job = f"{jobs[rank]}: " if jobs else ""
        npu = f" (NPU {npus[rank]})" if rank < len(npus) and npus[rank] != rank else ""
        titles.append(f"{job}rank {rank}{npu}")
    for pid, title in enumerate([*titles, *(f"switch {name}" for name in switches), "collectives", "links"]):
        if pid < len(shown) and not shown[pid]:
            continue
        yield _meta("process_name", pid, title)
        yield _meta("process_sort_index", pid, pid)


def _thread(pid: int, tid: int, title: str) -> Iterator[str]:
    """Name and order of a lane."""
    yield _meta("thread_name", pid, title, tid)
    yield _meta("thread_sort_index", pid, tid, tid)


def _rows_of(table: Table, rows: np.ndarray, *columns: str) -> Iterator[tuple]:
    """Some rows of some columns as plain values, a block at a time."""
    for first in range(0, len(rows), _BLOCK):
        block = rows[first : first + _BLOCK]
        yield from zip(*(table[name][block].tolist() for name in columns), strict=True)


def _collectives(table: Table, pid: int, jobs: Sequence[str]) -> Iterator[str]:
    start, end = table["start"], table["end"]
    rows = np.flatnonzero((start >= 0) & (end >= 0))
    names = list(dict.fromkeys(jobs)) or [""]
    codes, labels = table.coded("job")
    number = np.array([names.index(label) if jobs else 0 for label in labels], dtype=np.int64)[codes[rows]]
    tid, below = lanes(number, start[rows], end[rows]), 0
    for job, name in enumerate(names):
        members = number == job
        count = int(tid[members].max(initial=-1)) + 1
        tid[members] += below
        for lane in range(below, below + count):
            yield from _thread(pid, lane, name or "in flight")
        below += count
    columns = ("type", "size", "algorithm", "instance", "start", "end")
    for lane, row in zip(tid.tolist(), _rows_of(table, rows, *columns), strict=True):
        kind, size, algorithm, instance, begin, stop = row
        args = f'"instance":{instance},"bytes":{size},"algorithm":{json.dumps(algorithm)}'
        yield _span(json.dumps(f"{kind} {format_size(size)}"), "collective", pid, lane, begin, stop, args)


#: Lanes of a rank, in this order: kinds of the workload's nodes, then of the algorithms'.
_LANES = (
    ("compute", False, "compute"),
    ("memory", False, "memory"),
    ("software", False, "software"),
    ("collectives", False, "collective"),
    ("send", False, "send"),
    ("receive", False, "recv"),
    ("algorithm compute", True, "compute"),
    ("algorithm send", True, "send"),
    ("algorithm receive", True, "recv"),
)


def _nodes(records: Records, lane_of: np.ndarray, shown: np.ndarray) -> Iterator[str]:
    """Nodes in lanes of their kind; fills in `lane_of`, the lane of every node that is drawn.

    `shown`: of each rank; with those of switches, of which only what they do for collectives is drawn.
    """
    node = records.node
    if not node.height:
        return
    rank, instance, start, end = (node[c] for c in ("rank", "instance", "start", "end"))
    codes, kinds = node.coded("kind")
    group = {(kind, inner): number for number, (_, inner, kind) in enumerate(_LANES)}
    numbers = np.array([[group.get((str(kind), inner), -1) for inner in (False, True)] for kind in kinds])
    number = numbers[codes, (instance >= 0).astype(np.int64)]
    has_span = (instance >= 0) | (rank < len(records.finish))
    rows = np.flatnonzero(has_span & shown[rank] & (number >= 0) & (start >= 0) & (end >= 0))
    # By rank, then kind, and as in the table.
    belongs = rank[rows].astype(np.int64) * len(_LANES) + number[rows]
    order = np.argsort(belongs, kind="stable")
    rows, belongs = rows[order], belongs[order]
    lane_in_kind = lanes(belongs, start[rows], end[rows])
    keys, first = np.unique(belongs, return_index=True)
    lanes_of = np.maximum.reduceat(lane_in_kind, first) + 1 if len(rows) else lane_in_kind
    low, below, before = np.zeros(len(shown) * len(_LANES), dtype=np.int64), 0, -1
    for key, count in zip(keys.tolist(), lanes_of.tolist(), strict=True):
        pid, kind = divmod(key, len(_LANES))
        below = below if pid == before else 0
        before, low[key] = pid, below
        title = _LANES[kind][0]
        for i in range(count):
            yield from _thread(pid, below + i, title if not i else f"{title} {i + 1}")
        below += count
    lane_of[rows] = low[belongs] + lane_in_kind
    name_codes, names = node.coded("name")
    encoded = [json.dumps(str(text)) if text else "" for text in names]
    called = map(encoded.__getitem__, name_codes[rows].tolist())
    columns = ("kind", "rank", "node", "instance", "start", "end")
    for name, lane, row in zip(called, lane_of[rows].tolist(), _rows_of(node, rows, *columns), strict=True):
        kind, pid, ident, instance, begin, stop = row
        inside = f',"instance":{instance}' if instance >= 0 else ""
        yield _span(name or f'"{kind} {ident}"', kind, pid, lane, begin, stop, f'"node":{ident}{inside}')


def _hops(
    records: Records,
    edges: Table | None,
    pid: int,
    jobs: Sequence[str],
    switches: Sequence[str],
    qps: int,
    shown: np.ndarray,
) -> Iterator[str]:
    hop, message = records.hop, records.message
    pair_of = queue_pairs(message, qps)
    names = {} if edges is None else dict(zip(edges["link"].tolist(), edges["name"].tolist(), strict=True))
    visible = shown[message["src"]] | shown[message["dst"]]
    rows = np.argsort(hop["link"], kind="stable")
    rows = rows[visible[hop["message"][rows]]]
    links, first, of = np.unique(hop["link"][rows], return_index=True, return_inverse=True)
    lane_in_link = lanes(of.reshape(-1), hop["start"][rows], hop["end"][rows])
    lanes_of = np.maximum.reduceat(lane_in_link, first) + 1 if len(rows) else lane_in_link
    low = np.cumsum(lanes_of) - lanes_of
    for link, tid, count in zip(links.tolist(), low.tolist(), lanes_of.tolist(), strict=True):
        for i in range(count):
            yield from _thread(pid, tid + i, names.get(link, f"link {link}"))
    tid = (low[of.reshape(-1)] + lane_in_link).tolist()
    ends = _rows_of(message, hop["message"][rows], "src", "dst", "bytes")
    pairs = pair_of[hop["message"][rows]].tolist()
    moments = _rows_of(hop, rows, "requested", "start", "end")
    arrow, n = json.dumps(" → ").strip('"'), len(records.finish)

    def endpoint(rank: int) -> str:
        return str(rank) if rank < n else switches[rank - n]

    for lane, (src, dst, size), pair, (requested, begin, stop) in zip(tid, ends, pairs, moments, strict=True):
        args = f'"bytes":{size},"waited_ns":{_us((begin - requested) * 1000)}'
        if jobs:
            args += f',"job":{json.dumps(jobs[src] or jobs[dst])}'
        if qps > 1:
            args += f',"queue_pair":{pair}'
        yield _span(f'"{endpoint(src)}{arrow}{endpoint(dst)}"', "link", pid, lane, begin, stop, args)


def _arrows(records: Records, lane_of: np.ndarray) -> Iterator[str]:
    message, node = records.message, records.node
    send, receive, delivered = message["send_node"], message["recv_node"], message["delivered"]
    rows = np.flatnonzero((delivered >= 0) & (send >= 0) & (receive >= 0))
    rows = rows[(lane_of[send[rows]] >= 0) & (lane_of[receive[rows]] >= 0)]
    begun, finished = node["start"][receive[rows]], node["end"][receive[rows]]
    inside = np.minimum(delivered[rows], finished) - _INSIDE_PS
    arrives = np.maximum(np.maximum(begun, inside), message["posted"][rows]).tolist()
    lanes_of = zip(lane_of[send[rows]].tolist(), lane_of[receive[rows]].tolist(), strict=True)
    for ident, (src, dst, posted), (leaves, enters), arrived in zip(
        rows.tolist(), _rows_of(message, rows, "src", "dst", "posted"), lanes_of, arrives, strict=True
    ):
        about = f'"name":"message","cat":"message","id":{ident}'
        yield f'{{"ph":"s",{about},"pid":{src},"tid":{leaves},"ts":{_us(posted)}}}'
        yield f'{{"ph":"f",{about},"pid":{dst},"tid":{enters},"ts":{_us(arrived)},"bp":"e"}}'
