"""Backends of c10d that move data by threads of the host (gloo, mpi, ucc): their spans, and what waits for them."""

import re
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.calls import Call, call_of
from astrasim_py.pytorch.edge_kinds import EdgeKind
from astrasim_py.pytorch.facts import RECORD, facts_of_host, merged, size_of
from astrasim_py.pytorch.graph import Edges, Graph, NodeKind, Nodes, assemble
from astrasim_py.pytorch.groups import GroupTable
from astrasim_py.pytorch.kineto import CPU_BACKENDS
from astrasim_py.pytorch.pieces import busy, main_thread
from astrasim_py.pytorch.recording import Category, Recording
from astrasim_py.pytorch.statements import NodeOf, ranges_around, sources_of

#: Least time that a thread is silent while it waits for a transfer, ns.
SILENCE_NS = 50_000
#: Operations that do nothing but wait.
_WAITS = re.compile(r"_c10d_functional(?:_autograd)?::wait_tensor|c10d::(?:wait|monitored_barrier)\w*")


@dataclass(frozen=True)
class Transfers:
    """Spans of a backend that belong to calls of the step, in order of start; int64 each.

    Spans of one `lane` run one after the other: those of a thread of the backend. A span on the thread of its call has
    a lane of its own.
    """

    span: np.ndarray  # row of each
    call: np.ndarray  # row of the operation of c10d that asked for it
    lane: np.ndarray
    start: np.ndarray  # posted, ns: a span on the thread of its call with the call, others when they begin
    awaited: np.ndarray  # when the caller begins to wait for it, ns; -1 if it does not


def transfers(recording: Recording, node_of: NodeOf) -> Transfers:
    """The spans of a recording. A span belongs to the call with the greatest record id below the span's.

    Raises TraceError: no spans, or some without a record id.
    """
    events = recording.events
    rows = np.array(sorted(events.args), dtype=np.int64)
    names = [recording.names[code] for code in events.name[rows]]
    spans = rows[[name.startswith(CPU_BACKENDS) for name in names]]
    calls = rows[[name.startswith("c10d::") and not _WAITS.match(name) for name in names]]
    if not len(spans) or (events.record_id[spans] < 0).any():
        count = len(calls) + sum(name == RECORD for name in names)
        problem = f"has {count} calls of c10d, no work of a device, and no transfer of which it says the call"
        remedy = "record the device, too (ProfilerActivity.CUDA), or gloo, mpi or ucc with PyTorch 2.2 or later"
        raise TraceError(recording.source, problem, remedy)
    spans, calls = (part[np.argsort(events.record_id[part], kind="stable")] for part in (spans, calls))
    place = np.searchsorted(events.record_id[calls], events.record_id[spans]) - 1
    known = place >= 0
    last = known & np.r_[place[1:] != place[:-1], np.ones(len(place[:1]), bool)]
    spans, calls = spans[last], calls[place[last]]
    order = np.lexsort((spans, events.start[spans]))
    spans, calls = spans[order], calls[order]
    same = events.thread[spans] == events.thread[calls]
    lane = np.where(same, len(recording.threads) + np.arange(len(spans)), events.thread[spans])
    start = np.where(same, events.start[calls], events.start[spans])
    return Transfers(spans, calls, lane.astype(np.int64), start, _awaited(recording, spans, calls, node_of))


def _awaited(recording: Recording, spans: np.ndarray, calls: np.ndarray, node_of: NodeOf) -> np.ndarray:
    """When the caller of each span begins to wait for it, ns; -1 where it does not.

    A call that is not asynchronous waits at once. The wait of another call is an operation that waits for its tensor,
    else the silence of the caller in which the span ends.
    """
    events = recording.events
    waits = np.isin(events.name, [code for code, name in enumerate(recording.names) if _WAITS.match(name)])
    begun = np.full(len(spans), -1, dtype=np.int64)
    for thread in np.unique(events.thread[calls]):
        of_thread = (events.category == Category.OP) & (events.thread == thread)
        waiting = np.flatnonzero(of_thread & waits)
        outer = waiting[events.end[waiting] > np.append(-1, np.maximum.accumulate(events.end[waiting])[:-1])]
        around = np.searchsorted(events.start[outer], events.start, side="right") - 1
        inside = (around >= 0) & (events.end <= np.append(events.end[outer], -1)[around])
        awaiting = _tensors_awaited(waiting, outer[around[waiting]], node_of)
        begin, end = busy(events.start[of_thread & ~inside], events.end[of_thread & ~inside])
        begin, end = np.append(begin, recording.step.end), np.append(recording.step.start, end)
        for place in np.flatnonzero(events.thread[calls] == thread).tolist():
            call, until = int(calls[place]), int(events.end[spans[place]])
            node = node_of(call)
            tensors = _tensors([node.inputs, node.outputs]) if node else ()
            later = [row for tensor in tensors for row in awaiting.get(tensor, ()) if row > call]
            after = int(np.searchsorted(begin, until))
            if "False" in str(events.args[call].get("Concrete Inputs")):
                begun[place] = events.start[call]
            elif later:
                begun[place] = events.start[min(later)]
            elif (
                after < len(begin)
                and end[after] < until
                and begin[after] - end[after] >= SILENCE_NS
                and ":send" not in recording.names[events.name[spans[place]]]  # sends are eager
            ):
                begun[place] = end[after]
    return begun


def _tensors_awaited(waiting: np.ndarray, outer: np.ndarray, node_of: NodeOf) -> dict[int, list[int]]:
    """Rows of the outermost waiting operations by the tensors that they, or operations in them, wait for."""
    rows_of: dict[int, list[int]] = {}
    for row, around in zip(waiting.tolist(), outer.tolist(), strict=True):
        node = node_of(row)
        for tensor in _tensors([node.inputs, node.outputs]) if node else ():
            rows_of.setdefault(tensor, []).append(around)
    return rows_of


def _tensors(value: object) -> set[int]:
    """Ids of the tensors in a list of arguments, however deep."""
    if not isinstance(value, list):
        return set()
    if len(value) == 6 and isinstance(value[5], str):
        return {value[0]} if isinstance(value[0], int) else set()
    return set().union(*map(_tensors, value))


def host_calls(recording: Recording, spans: Transfers, table: GroupTable, node_of: NodeOf) -> list[Call]:
    """The communication of each span, in order of calls; its kind is that of the call, as a span may lack it.

    A call without a group in any range has the group of its backend's thread, else the only group of its size without a
    known thread.
    """
    events = recording.events
    order = np.lexsort((spans.call, events.start[spans.call])).tolist()
    chains = ranges_around(recording, spans.call[order], events.start[spans.call[order]])
    facts_of_spans = []
    served: dict[int, set[str]] = {}
    for i, chain in zip(order, chains, strict=True):
        span = int(spans.span[i])
        span_facts = facts_of_host(recording.names[events.name[span]], events.args[span])
        facts = merged([*sources_of(recording, chain, node_of), span_facts])
        facts_of_spans.append((span, facts))
        group = table.find(facts)
        if group.members and group.name:
            served.setdefault(int(events.thread[span]), set()).add(group.name)
    free = table.declared.keys() - set().union(*served.values())
    calls = []
    for issued, (span, facts) in enumerate(facts_of_spans):
        if not table.find(facts).members:
            names = table.of_size(served.get(int(events.thread[span]), free), size_of(facts))
            facts = facts | ({"group": names[0]} if len(names) == 1 else {})
        call = call_of(span, issued, facts, table)
        calls += [call] if call is not None else []
    return calls


def host_graph(recording: Recording, transfers: Transfers) -> Graph:
    """Pieces of the calling threads and spans: a call starts its span, after the one before on the same thread of the
    backend, and the piece after the caller began to wait needs it."""
    events = recording.events
    start, end = transfers.start, np.maximum(transfers.start, events.end[transfers.span])
    begin = events.start[transfers.call]
    at_call = begin + np.minimum(events.duration[transfers.call], np.maximum(0, start - begin))
    main = main_thread(recording)
    waiting = np.flatnonzero(transfers.awaited >= 0)
    awaited = np.maximum(transfers.awaited, at_call)
    stops = np.unique(np.stack([events.thread[transfers.call[waiting]], awaited[waiting]], axis=1), axis=0)
    last = [[main, recording.step.end]] if main >= 0 else []
    cuts = np.concatenate(
        [np.stack([events.thread[transfers.call], at_call], axis=1), stops, np.array(last).reshape(-1, 2)]
    )
    order = np.lexsort((cuts[:, 1], cuts[:, 0]))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    thread, until = cuts[order].T
    pieces, spans = len(cuts), len(transfers.span)
    chained = np.flatnonzero(thread[1:] == thread[:-1])
    stop = {tuple(cut): spans + number for number, cut in enumerate(stops.tolist())}
    wakes = [(i, place[stop[int(events.thread[transfers.call[i]]), int(awaited[i])]] + 1) for i in waiting.tolist()]
    syncs = np.array([(i, n) for i, n in wakes if n < pieces and thread[n] == thread[n - 1]], np.int64).reshape(-1, 2)
    by_lane = np.lexsort((start, transfers.lane))
    same = transfers.lane[by_lane[1:]] == transfers.lane[by_lane[:-1]]
    before, after = by_lane[:-1][same], by_lane[1:][same]
    edges = (
        Edges(EdgeKind.CPU, chained, chained + 1, until[chained + 1]),
        Edges(EdgeKind.CALL, place[:spans], pieces + np.arange(spans), start),
        Edges(EdgeKind.STREAM, pieces + before, pieces + after, start[after]),
        Edges(EdgeKind.SYNC, pieces + syncs[:, 0], syncs[:, 1], until[syncs[:, 1]]),
    )
    begins = np.where(np.append(-1, thread[:-1]) == thread, np.append(0, until[:-1]), 0)
    called = np.full(pieces, -1, dtype=np.int64)
    called[place[:spans]] = transfers.call
    lanes, lane = np.unique(transfers.lane, return_inverse=True)
    nodes = Nodes(
        kind=np.repeat([NodeKind.PIECE, NodeKind.CALL], [pieces, spans]),
        row=np.concatenate([called, transfers.span]),
        start=np.concatenate([begins, start]),
        end=np.concatenate([until, end]),
        lane=np.concatenate([thread, lane.reshape(-1)]),
        issue=np.concatenate([begins, at_call]),
    )
    return assemble(recording, nodes, edges, tuple((-1, int(number)) for number in lanes))
