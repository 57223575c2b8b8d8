"""A schedule as an `Algorithm`: traces that any engine runs, in the order that the schedule claims.

Every transfer becomes a send and a receive, and where it carries a partial sum a reduction. A send waits for what it
sends. That the transfers of a link keep their order is a matter of dependencies, too: a send is not posted before the
earlier ones on the same first link, so it waits for all that they waited for. (It cannot wait for *them*: a send is
done on delivery, a latency after its link is free again.) Links serve in order of request, so an engine gives each
transfer the earliest start that this order lets it have, which is the time that the schedule claims.

Behind a switch the order of messages from several senders is nobody's to keep, and where others occupy links a
transfer may have to wait for no event of its own. There a *clock* keeps the claimed times: a chain of COMP nodes per
rank whose durations lead from one start to the next. Such an algorithm holds its times for one size only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.chakra.trace import MISSING, NodeType
from astrasim_py.collectives.algorithm import Algorithm, Buffer
from astrasim_py.collectives.builders.draft import NONE, Flat, check_nodes, finish
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.synthesis.network import Network
from astrasim_py.synthesis.schedule import Schedule

#: Name that synthesized algorithms have.
NAME = "synthesized"
#: Causes of earlier sends that a send names itself; beyond them a node that only waits stands for so many.
_NAMED = 4
#: What comes first of what a rank does at one time.
_RECV, _REDUCE, _JOIN, _SEND, _KINDS = 0, 1, 2, 3, 4


def clock_needed(network: Network) -> bool:
    """Whether the order of transfers on first links does not settle all times: ports are shared, or links taken."""
    return not network.direct or len(network.occupied_start) > 0


def emit(schedule: Schedule, *, clock: bool | None = None) -> Algorithm:
    """The algorithm that does what a schedule says.

    Parameters
    ----------
    schedule : Schedule
        With its transfers recorded.
    clock : bool, optional
        Let a clock post every send at its claimed start; by default where `clock_needed`.

    Returns
    -------
    Algorithm
        Sizes are symbolic. Without a clock it may be used for other sizes, too.

    Raises
    ------
    AlgorithmError
        The transfers were counted only, or are too many for memory.
    """
    network, demand = schedule.network, schedule.demand
    if not schedule.recorded:
        problem = f"its {schedule.transfers} transfers were counted, not recorded"
        raise AlgorithmError(demand.collective, problem, "synthesize it with its transfers recorded")
    if demand.stated is not None:
        problem = "blocks of stated sizes are no algorithm, whose chunks cut a buffer evenly"
        raise AlgorithmError(demand.collective, problem, "use the schedule itself, or blocks of one size")
    check_nodes(f"synthesized {demand.collective}", 3 * schedule.transfers)
    clock = clock_needed(network) if clock is None else clock
    draft = Flat(demand.ranks, demand.chunks)
    sums = np.flatnonzero(schedule.reduces)
    count = len(schedule.arc)
    # Handles: receives, reductions, then what waits, then sends.
    reductions = np.full(count, NONE, dtype=np.int64)
    reductions[sums] = count + np.arange(len(sums))
    cause = _causes(schedule, reductions)
    index = schedule.chunk.astype(np.int64) % demand.chunks
    tag = _numbers(schedule.arc)
    cells = _cells(schedule, index, cause)
    draft.recv(
        rank=schedule.dst, peer=schedule.src, tag=tag, idx=index, dst=cells.received,
        order=schedule.arrival * _KINDS + _RECV,
    )  # fmt: skip
    if len(sums):
        draft.reduce(
            payload=sums, rank=schedule.dst[sums], idx=index[sums], src=(cells.buffer, index[sums]),
            dst=(cells.buffer, index[sums]), after=(_chain(schedule, sums, reductions),),
            order=schedule.arrival[sums] * _KINDS + _REDUCE,
        )  # fmt: skip
    durations = None
    if clock:
        waits, durations = _ticks(draft, schedule)
    else:
        waits = _order(draft, schedule, cause)
    draft.send(
        rank=schedule.src, peer=schedule.dst, tag=tag, idx=index, src=cells.sent, payload=cells.handed,
        after=(cause, *waits), order=schedule.start * _KINDS + _SEND,
    )  # fmt: skip
    if demand.collective == "all_to_all":
        # What a rank has for itself.
        own = np.flatnonzero(demand.origin == demand.receivers)
        rank, at = demand.origin[own].astype(np.int64), own % demand.chunks
        draft.copy(rank=rank, idx=at, src=(Buffer.INPUT, at), dst=(Buffer.OUTPUT, at), order=0)
    in_place = demand.collective != "all_to_all"
    made = finish(draft, NAME, demand.collective, root=demand.root, in_place=in_place)
    return made if durations is None else _timed(made, durations)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Where data lies: (buffer, offset) of what is sent and received, and the receive whose data is handed on."""

    buffer: Buffer
    sent: tuple
    received: tuple
    handed: np.ndarray


def _cells(schedule: Schedule, index: np.ndarray, cause: np.ndarray) -> _Cells:
    demand = schedule.demand
    handed = np.full(len(index), NONE, dtype=np.int64)
    if demand.collective == "all_to_all":
        # What is on its way through a rank is never stored there.
        origin, home = demand.origin[schedule.chunk], demand.receivers[schedule.chunk]
        first, last = schedule.src == origin, schedule.dst == home
        per = demand.chunks // demand.ranks
        sent = np.where(first, int(Buffer.INPUT), MISSING), np.where(first, index, MISSING)
        place = origin.astype(np.int64) * per + index % per
        received = np.where(last, int(Buffer.OUTPUT), MISSING), np.where(last, place, MISSING)
        return _Cells(Buffer.INPUT, sent, received, np.where(first, NONE, cause))
    buffer = Buffer.OUTPUT if demand.collective in ("all_gather", "gather") else Buffer.INPUT
    received = (
        np.where(schedule.reduces, MISSING, int(buffer)),
        np.where(schedule.reduces, MISSING, index),
    )
    return _Cells(buffer, (buffer, index), received, handed)


def _numbers(arc: np.ndarray) -> np.ndarray:
    """int64[transfers]: the how-manieth of its arc each is."""
    order = np.argsort(arc, kind="stable")
    ordered = arc[order]
    out = np.empty(len(arc), dtype=np.int64)
    out[order] = np.arange(len(arc)) - np.searchsorted(ordered, ordered)
    return out


def _chain(schedule: Schedule, sums: np.ndarray, reductions: np.ndarray) -> np.ndarray:
    """int64[sums]: the reduction before each into the same cell."""
    key = schedule.dst[sums].astype(np.int64) * schedule.demand.count + schedule.chunk[sums]
    order = np.lexsort((schedule.arrival[sums], key))
    before = np.full(len(sums), NONE, dtype=np.int64)
    same = key[order][1:] == key[order][:-1]
    before[order[1:][same]] = reductions[sums[order[:-1][same]]]
    return before


def _causes(schedule: Schedule, reductions: np.ndarray) -> np.ndarray:
    """int64[transfers]: the node after which the source has what a transfer carries; `NONE`: from the start."""
    count = schedule.demand.count
    target = schedule.dst.astype(np.int64) * count + schedule.chunk
    source = schedule.src.astype(np.int64) * count + schedule.chunk
    cause = np.full(len(source), NONE, dtype=np.int64)
    # The last part of a sum stands for all of them, and a copy for the sum that it is of.
    for rows, handles in (
        (np.flatnonzero(schedule.reduces), reductions),
        (np.flatnonzero(~schedule.reduces), np.arange(len(source))),
    ):
        if not len(rows):
            continue
        order = rows[np.lexsort((schedule.arrival[rows], target[rows]))]
        keys = target[order]
        at = np.searchsorted(keys, source, side="right") - 1
        known = (at >= 0) & (keys[np.maximum(at, 0)] == source)
        if handles is not reductions:
            # A partial sum is sent before the whole one comes back.
            known &= ~schedule.reduces
        cause[known] = handles[order[at[known]]]
    return cause


def _order(draft: Flat, schedule: Schedule, cause: np.ndarray) -> list[np.ndarray]:
    """What sends wait for besides their own cause, so that those of a link are posted in order.

    Returns
    -------
    list of numpy.ndarray
        Columns of handles, int64[transfers].
    """
    network = schedule.network
    first = network.hop[network.hop_ptr[:-1]].astype(np.int64)[schedule.arc]
    order = np.argsort(first, kind="stable")
    link, causes = first[order], cause[order]
    # Causes of a link, each where it is met first, and how many of them lie before every send.
    caused = np.flatnonzero(causes != NONE)
    key = link[caused] * (int(cause.max(initial=0)) + 1) + causes[caused]
    fresh = np.zeros(len(causes), dtype=bool)
    fresh[caused[np.unique(key, return_index=True)[1]]] = True
    passed = np.cumsum(fresh) - fresh
    base = passed[np.searchsorted(link, link)]
    before = passed - base
    # A join for every _NAMED causes of a link that still has something to send.
    goes_on = np.append(link[1:] == link[:-1], False)[: len(link)]
    listed, number = causes[fresh], before[fresh]
    needed = np.flatnonzero((number % _NAMED == _NAMED - 1) & goes_on[fresh])
    joins = np.full(len(listed) + 1, NONE, dtype=np.int64)
    if len(needed):
        closing = order[fresh][needed]
        joins[needed] = draft.join(rank=schedule.src[closing], order=schedule.start[closing] * _KINDS + _JOIN)
        for back in range(_NAMED):
            draft.depend(joins[needed], listed[needed - back])
        later = needed[number[needed] >= _NAMED]
        draft.depend(joins[later], joins[later - _NAMED])
    group = before // _NAMED * _NAMED
    columns = [np.where(group > 0, joins[np.maximum(base + group - 1, 0)], NONE)]
    listed = np.append(listed, NONE)
    for k in range(_NAMED - 1):
        columns.append(np.where(group + k < before, listed[np.minimum(base + group + k, len(listed) - 1)], NONE))
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return [column[back] for column in columns]


def _ticks(draft: Flat, schedule: Schedule) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The clocks: for every send the node that is done at its start; and per rank the durations of its nodes."""
    source = schedule.src.astype(np.int64)
    order = np.lexsort((schedule.start, source))
    rank, start = source[order], schedule.start[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (rank[1:] != rank[:-1]) | (start[1:] != start[:-1])
    new &= start > 0
    rank_at, start_at = rank[new], start[new]
    handles = draft.join(rank=rank_at, order=start_at * _KINDS + _JOIN)
    same = np.flatnonzero(rank_at[1:] == rank_at[:-1]) + 1
    draft.depend(handles[same], handles[same - 1])
    durations = start_at.copy()
    durations[same] -= start_at[same - 1]
    waits = np.full(len(order), NONE, dtype=np.int64)
    waits[order] = np.where(start > 0, handles[np.cumsum(new) - 1] if len(handles) else NONE, NONE)
    return [waits], np.split(durations, np.searchsorted(rank_at, np.arange(1, schedule.demand.ranks)))


def _timed(algorithm: Algorithm, durations: list[np.ndarray]) -> Algorithm:
    """The algorithm with durations on its nodes that only wait."""
    traces = []
    for trace, times in zip(algorithm.traces, durations, strict=True):
        column = np.full(len(trace), MISSING, dtype=np.int64)
        column[(trace.type == NodeType.COMP) & (trace.column("comp_op") == MISSING)] = times
        traces.append(trace.replace(duration_ps=column))
    return replace(algorithm, traces=tuple(traces))
