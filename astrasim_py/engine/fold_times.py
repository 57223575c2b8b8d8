"""Times of ranks, from the starts and ends of their nodes, and what may go in another order."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from astrasim_py.core.records import Records
from astrasim_py.system.programs import COMPUTE, COMPUTE_SLOT, INSTANT, MEMORY, SOFTWARE, RankProgram, Structure


class Tie(NamedTuple):
    """Messages or computation of a rank that go in an order which is not known."""

    rank: int
    time: int  # ps
    delay: int  # ps that they take together


def rank_times(program: RankProgram, start: np.ndarray, end: np.ndarray, *, summed: bool) -> tuple[int, int, int]:
    """Finish, time with computation running, and time with communication alone, of a rank, ps.

    `start`, `end`: int64[n], by node. `summed`: the last is the finish less the sum of computation instead.
    """
    kind = program.structure.kind
    finish = int(end.max(initial=0))
    counted = ~np.isin(kind, (MEMORY, INSTANT, SOFTWARE))
    when = np.concatenate([start[counted], end[counted]])
    step = np.repeat([1, -1], int(counted.sum()))
    computes = np.tile(kind[counted] == COMPUTE, 2)
    order = np.argsort(when, kind="stable")
    lasts = np.diff(when[order], append=finish)
    computing, communicating = (np.cumsum(np.where(one, step, 0)[order]) > 0 for one in (computes, ~computes))
    compute = int(lasts[computing].sum())
    if summed:
        return finish, compute, finish - int(program.duration[(kind == COMPUTE) & (program.slot == COMPUTE_SLOT)].sum())
    return finish, compute, int(lasts[communicating & ~computing].sum())


def ties(
    run: Records, first: Sequence[int], programs: Sequence[RankProgram], folded: Sequence[np.ndarray]
) -> list[Tie]:
    """Events that may go in another order than in the full run, because a folded collective ends as a single node.

    Nodes that become ready at one time go by their numbers; but nodes that wait for a collective with a last node of no
    duration go after the others. So the order is unknown where two messages that a rank sent at one time request one
    link at one time, or where computations of a rank wait for one slot.

    `run`: of level ``messages``. By rank: `first`, its first row of nodes; its program; its `folded` nodes.
    """
    found = []
    start, end = run.node["start"], run.node["end"]
    released = []
    for row, program, nodes in zip(first, programs, folded, strict=True):
        own = slice(row, row + len(program))
        ready, mark = _releases(program.structure, end[own], nodes)
        released.append((ready, mark))
        found += [Tie(len(released) - 1, *one) for one in _slot_ties(program, start[own], end[own], ready, mark)]
    message, hop = run.message, run.hop
    instance, src, posted, node = (message[name] for name in ("instance", "src", "posted", "send_node"))
    by = run.node["released_by"]

    def marked(number: int) -> int:
        """Mark of the workload node that sent a message; collectives send at their begin."""
        rank, row, time = int(src[number]), int(node[number]), int(posted[number])
        ready, mark = released[rank]
        while not 0 <= row - first[rank] < len(mark):
            if row < 0 or start[row] != time:
                return 0
            row = int(by[row])
        at = row - first[rank]
        return int(mark[at]) if ready[at] == time else 0

    of = hop["message"]
    keys = posted[of], src[of], hop["requested"], hop["link"]
    order = np.lexsort(keys)
    same = np.logical_and.reduce([key[order[1:]] == key[order[:-1]] for key in keys])
    pairs = np.stack([order[:-1][same], order[1:][same]])
    a, b = of[pairs]
    for one, other in pairs[:, (instance[a] != instance[b]) | (instance[a] < 0)].T.tolist():
        if marked(of[one]) != marked(of[other]):
            delay = sum(int(hop["end"][each] - hop["start"][each]) for each in (one, other))
            found.append(Tie(int(src[of[one]]), int(posted[of[one]]), delay))
    return found


def _releases(structure: Structure, end: np.ndarray, folded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By node: when its last parent ended, ps, and which folded ones among those that ended then: 0 for none.

    `end`: int64[n], ps. `folded`: int64, nodes. Equal numbers mean the same folded nodes, also by way of nodes that
    take no time.
    """
    source, target = np.repeat(np.arange(len(end)), np.diff(structure.succ_ptr)), structure.succ
    ready = np.zeros(len(end), dtype=np.int64)
    np.maximum.at(ready, target, end[source])
    last = end[source] == ready[target]
    source, target = source[last], target[last]
    mark = np.zeros(len(end), dtype=np.uint64)
    mark[folded] = (folded.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # sums of a few differ
    instant = (end == ready) & (mark == 0)
    found = np.zeros_like(mark)
    while True:
        given = np.where(instant, found, mark)
        before, found = found, np.zeros_like(mark)
        np.add.at(found, target, given[source])
        if np.array_equal(found, before):
            return ready, found


def _slot_ties(
    program: RankProgram, start: np.ndarray, end: np.ndarray, ready: np.ndarray, mark: np.ndarray
) -> list[tuple[int, int]]:
    """Times at which computation that waits for a folded collective meets other computation, and how long they take."""
    at = np.flatnonzero((program.structure.kind == COMPUTE) & (program.slot == COMPUTE_SLOT))
    at = at[np.argsort(start[at], kind="stable")]
    begins, readies = start[at], np.sort(ready[at])
    found = []
    late = at[mark[at] > 0]
    waiting = np.searchsorted(readies, ready[late], side="right") - np.searchsorted(begins, ready[late], side="left")
    for node in late[waiting > 1].tolist():
        time = int(ready[node])
        some = at[(ready[at] <= time) & (start[at] >= time)]
        if ((mark[some] != mark[node]) | (ready[some] != time)).any():
            found.append((time, int((end - start)[some].sum())))
    return found
