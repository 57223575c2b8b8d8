"""A schedule as an `Algorithm`: traces that any engine runs, in the order that the schedule claims.

Every transfer becomes a send and a receive, and a partial sum a reduction. A send waits for the data that it sends. To
keep the order of a link it also waits for all that the earlier sends on the same first link waited for. (It cannot wait
for those sends: a send is done on delivery, a latency after its link is free.) Links serve in order of request, so each
transfer starts at the claimed time.

Behind a switch, and where others occupy links, dependencies do not settle that order. There a *clock* keeps the claimed
times: a chain of COMP nodes per rank whose durations lead from one start to the next, for one size only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, finish
from astrasim_py.chakra.schema import MISSING
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import numbered
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.schedule import Schedule

#: Name that synthesized algorithms have.
NAME = "synthesized"
#: Most units of blocks of stated sizes, all ranks together.
MAX_UNITS = 2**18
#: Most causes of earlier sends that a send depends on itself; a join node stands for each further group of this size.
_NAMED = 4
#: Order of the actions of a rank at one time.
_RECV, _REDUCE, _JOIN, _SEND, _KINDS = 0, 1, 2, 3, 4


def clock_needed(network: Network) -> bool:
    """Whether the order of transfers on first links leaves times open: ports are shared, or others hold links."""
    return not network.direct or len(network.occupied_start) > 0


def emit(schedule: Schedule, *, clock: bool | None = None) -> Algorithm:
    """The algorithm of a schedule; a `clock` posts every send at its claimed start, by default where `clock_needed`.

    Blocks of stated sizes make a custom algorithm with a `Contract`. Raises AlgorithmError: transfers counted only.
    """
    network, demand = schedule.network, schedule.demand
    if not schedule.recorded:
        problem = f"its {schedule.transfers} transfers were counted, not recorded"
        raise AlgorithmError(demand.collective, problem, "synthesize it with its transfers recorded")
    layout = ChunkLayout.of(demand)
    check_nodes(f"synthesized {demand.collective}", 3 * schedule.transfers)
    clock = clock_needed(network) if clock is None else clock
    draft = Draft(demand.ranks, layout.chunks)
    sums = np.flatnonzero(schedule.reduces)
    count = len(schedule.arc)
    # Handles: receives, reductions, then waiting nodes, then sends.
    reductions = np.full(count, NONE, dtype=np.int64)
    reductions[sums] = count + np.arange(len(sums))
    cause = _causes(schedule, reductions)
    index, covers = layout.sent[schedule.chunk], layout.covers[schedule.chunk]
    tag = numbered(schedule.arc)
    buffer, sent, received, handed = _cells(schedule, layout, cause)
    draft.recv(
        rank=schedule.dst, peer=schedule.src, tag=tag, idx=index, cnt=covers, dst=received,
        order=schedule.arrival * _KINDS + _RECV,
    )  # fmt: skip
    if len(sums):
        draft.reduce(
            payload=sums, rank=schedule.dst[sums], idx=index[sums], src=(buffer, index[sums]),
            dst=(buffer, index[sums]), after=(_chain(schedule, sums, reductions),),
            order=schedule.arrival[sums] * _KINDS + _REDUCE,
        )  # fmt: skip
    waits = [_ticks(draft, schedule)] if clock else _order(draft, schedule, cause)
    draft.send(
        rank=schedule.src, peer=schedule.dst, tag=tag, idx=index, cnt=covers, src=sent, payload=handed,
        after=(cause, *waits), order=schedule.start * _KINDS + _SEND,
    )  # fmt: skip
    exchange = demand.collective == "all_to_all"
    own = np.flatnonzero(demand.origin == demand.targets) if exchange else np.empty(0, dtype=np.int64)
    if len(own):
        # A rank copies its own block.
        draft.copy(
            rank=demand.origin[own].astype(np.int64), idx=layout.sent[own], src=(Buffer.INPUT, layout.sent[own]),
            dst=(Buffer.OUTPUT, layout.received[own]), order=0,
        )  # fmt: skip
    name = demand.collective if demand.stated is None else CUSTOM
    made = finish(draft, NAME, name, root=demand.root, in_place=not exchange)
    return made if demand.stated is None else replace(made, contract=layout.contract(demand))


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Offsets of the chunks of a demand with their senders and receivers, in chunks of the algorithm; int64[C]."""

    chunks: int  # T, of the full buffer
    sent: np.ndarray
    received: np.ndarray
    covers: np.ndarray

    @classmethod
    def of(cls, demand: Demand) -> ChunkLayout:
        """The layout of a demand. Raises AlgorithmError: more than `MAX_UNITS` units."""
        number = np.arange(demand.count, dtype=np.int64)
        if demand.stated is not None:
            unit = max(int(np.gcd.reduce(demand.stated)), 1)
            covers = demand.stated // unit
            if int(covers.sum()) > MAX_UNITS:
                problem = f"its blocks are {int(covers.sum())} units of {unit} B, the largest that divides them all"
                remedy = f"round them to multiples that make at most {MAX_UNITS}, or use the schedule itself"
                raise AlgorithmError("all_to_all", problem, remedy)
            sent, most = _packed(demand.origin, demand.targets, covers)
            received, most_in = _packed(demand.targets, demand.origin, covers)
            return cls(max(most, most_in, 1), sent, received, covers)
        index = number % demand.chunks
        received = index
        if demand.collective == "all_to_all":
            per = demand.chunks // demand.ranks
            received = demand.origin.astype(np.int64) * per + index % per
        return cls(demand.chunks, index, received, np.ones(demand.count, dtype=np.int64))

    def contract(self, demand: Demand) -> Contract:
        """The contract of an exchange of such blocks."""
        inputs: set[tuple[int, int]] = set()
        outputs: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        columns = (demand.origin, demand.targets, self.sent, self.received, self.covers)
        for origin, receiver, sent, received, covers in zip(*(column.tolist() for column in columns), strict=True):
            for step in range(covers):
                inputs.add((origin, sent + step))
                outputs[receiver, received + step] = {(origin, sent + step): 1}
        return Contract(ranks=demand.ranks, chunks=self.chunks, inputs=frozenset(inputs), outputs=outputs)


def _packed(owner: np.ndarray, other: np.ndarray, covers: np.ndarray) -> tuple[np.ndarray, int]:
    """(offset of each chunk in the buffer of its owner, sorted by the other end; longest buffer)."""
    order = np.lexsort((np.arange(len(owner)), other, owner))
    ends = np.cumsum(covers[order])
    first = np.searchsorted(owner[order], owner[order])
    begin = ends - covers[order]
    begin -= begin[first]
    out = np.empty(len(owner), dtype=np.int64)
    out[order] = begin
    return out, int((begin + covers[order]).max(initial=0))


def _cells(schedule: Schedule, layout: ChunkLayout, cause: np.ndarray) -> tuple:
    """(buffer, cells sent, cells received, the receive whose data a send passes on)."""
    demand = schedule.demand
    index = layout.sent[schedule.chunk]
    if demand.collective == "all_to_all":
        # A rank does not store the chunks that it passes on.
        first = schedule.src == demand.origin[schedule.chunk]
        last = schedule.dst == demand.targets[schedule.chunk]
        place = layout.received[schedule.chunk]
        return (
            Buffer.INPUT,
            _where(first, Buffer.INPUT, index),
            _where(last, Buffer.OUTPUT, place),
            np.where(first, NONE, cause),
        )
    buffer = Buffer.OUTPUT if demand.collective in ("all_gather", "gather") else Buffer.INPUT
    return buffer, (buffer, index), _where(~schedule.reduces, buffer, index), np.full(len(index), NONE, dtype=np.int64)


def _where(some: np.ndarray, buffer: Buffer, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(buffer, offset) of some transfers; the others have no cell."""
    return np.where(some, int(buffer), MISSING), np.where(some, offset, MISSING)


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


def _order(draft: Draft, schedule: Schedule, cause: np.ndarray) -> list[np.ndarray]:
    """Dependencies that keep the sends of a link in order, besides their own causes: columns of handles."""
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
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return [column[place] for column in columns]


def _ticks(draft: Draft, schedule: Schedule) -> np.ndarray:
    """The clocks of all ranks; for every send the handle of the node that is done at its start."""
    source = schedule.src.astype(np.int64)
    order = np.lexsort((schedule.start, source))
    rank, start = source[order], schedule.start[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (rank[1:] != rank[:-1]) | (start[1:] != start[:-1])
    new &= start > 0
    rank_at, start_at = rank[new], start[new]
    same = np.flatnonzero(rank_at[1:] == rank_at[:-1]) + 1
    durations = start_at.copy()
    durations[same] -= start_at[same - 1]
    handles = draft.join(rank=rank_at, order=start_at * _KINDS + _JOIN, duration_ps=durations)
    draft.depend(handles[same], handles[same - 1])
    waits = np.full(len(order), NONE, dtype=np.int64)
    waits[order] = np.where(start > 0, handles[np.cumsum(new) - 1] if len(handles) else NONE, NONE)
    return waits
