"""Streams of planned collectives: queues of each rank, in which chunks wait and run phase after phase.

A stream that ends its phase on a rank leaves the queue, whose first waiter starts, and joins the queue of its next
phase at the back. None of this takes time.
"""

# ruff: noqa: F403, F405

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled.blocks import leave_slice, place_in, splice
from astrasim_py.engine.compiled.layout import *
from astrasim_py.engine.compiled.pools import give, take


@lean
def stream_of(ca, A, run):
    """Row of the stream of a run."""
    return ca[A[A[run + U_SHARE] + A_CALL], I_STREAMS] + STREAM * A[run + U_STREAM]


@lean
def visit_of(lg, ca, A, run):
    """Row of the phase that a run is in."""
    return lg[stream_of(ca, A, run) + 1] + VISIT * A[run + U_PHASE]


@lean
def comes_before(lg, ca, A, a, b):
    """Whether the waiting run `a` goes first: of higher priority, of its phase's, then by arrival."""
    ours, theirs = lg[stream_of(ca, A, a)], lg[stream_of(ca, A, b)]
    if ours != theirs:
        return ours > theirs
    ours, theirs = lg[visit_of(lg, ca, A, a) + 1], lg[visit_of(lg, ca, A, b) + 1]
    if ours != theirs:
        return ours > theirs
    return A[a + U_ARRIVAL] < A[b + U_ARRIVAL]


@lean
def stand_in_line(lg, ca, A, queue, run):
    """A run waits for its turn in a queue."""
    A[run + U_NEXT] = 0
    first, last = A[queue + Q_LINE], A[queue + Q_LINE_LAST]
    if first == 0:
        A[queue + Q_LINE] = run
        A[queue + Q_LINE_LAST] = run
    elif not comes_before(lg, ca, A, run, last):
        A[last + U_NEXT] = run
        A[queue + Q_LINE_LAST] = run
    elif comes_before(lg, ca, A, run, first):
        A[run + U_NEXT] = first
        A[queue + Q_LINE] = run
    else:
        behind = first
        while not comes_before(lg, ca, A, run, A[behind + U_NEXT]):
            behind = A[behind + U_NEXT]
        A[run + U_NEXT] = A[behind + U_NEXT]
        A[behind + U_NEXT] = run


@lean
def join_queue(lg, ca, R, A, rank, run):
    """A stream arrives at the queue of its phase; before its turn it is held back."""
    R[rank, R_ARRIVALS] += 1
    A[run + U_ARRIVAL] = R[rank, R_ARRIVALS]
    visit = visit_of(lg, ca, A, run)
    number = lg[visit]
    queue = R[rank, R_QUEUE] + number * QUEUE
    if lg[stream_of(ca, A, run) + 3]:
        share = A[run + U_SHARE]
        if A[queue + Q_SHARES] != share or lg[visit + 3] != A[share + SHARE + number]:
            A[run + U_NEXT] = A[share + A_EARLY]
            A[share + A_EARLY] = run
            return
    stand_in_line(lg, ca, A, queue, run)


@lean
def take_turn(lg, ca, R, A, rank, share, number):
    """A stream has taken its collective's turn; it may be the turn of one that was held back."""
    queues = R[rank, R_QUEUES]
    queue = R[rank, R_QUEUE] + number * QUEUE
    A[share + SHARE + number] += 1
    if A[share + SHARE + number] == lg[ca[A[share + A_CALL], I_TURNS] + number]:
        A[queue + Q_SHARES] = A[share + SHARE + queues + number]
    first = A[queue + Q_SHARES]
    if first == 0:
        return
    behind, run = np.int64(0), A[first + A_EARLY]
    while run:
        visit = visit_of(lg, ca, A, run)
        if lg[visit] == number and lg[visit + 3] == A[first + SHARE + number]:
            if behind:
                A[behind + U_NEXT] = A[run + U_NEXT]
            else:
                A[first + A_EARLY] = A[run + U_NEXT]
            stand_in_line(lg, ca, A, queue, run)
            return
        behind, run = run, A[run + U_NEXT]


@lean
def serve_queue(lg, ca, G, R, A, rank, number, row):
    """Start as many streams of a queue as can run."""
    queue = R[rank, R_QUEUE] + number * QUEUE
    while A[queue + Q_LINE] and A[queue + Q_RUNNING] < A[queue + Q_CAPACITY]:
        run = A[queue + Q_LINE]
        A[queue + Q_LINE] = A[run + U_NEXT]
        A[queue + Q_RUNNING] += 1
        A[run + U_RUNNING] = 0
        if A[queue + Q_FIRST]:
            A[A[queue + Q_LAST] + U_RUNNING] = run
        else:
            A[queue + Q_FIRST] = run
        A[queue + Q_LAST] = run
        A[run + U_ROW] = row
        A[run + U_NEXT] = 0
        if G[G_BEGIN]:
            A[G[G_BEGIN_LAST] + U_NEXT] = run
        else:
            G[G_BEGIN] = run
        G[G_BEGIN_LAST] = run
        if lg[stream_of(ca, A, run) + 3]:
            take_turn(lg, ca, R, A, rank, A[run + U_SHARE], number)


@lean
def share_done(h, G, A, C, share, row, now):
    """A rank is done with a planned collective: its workload's node completes next."""
    instance = h[H_SLICES] + A[share + A_CALL]
    C[instance, C_LEFT] -= 1
    if C[instance, C_LEFT] == 0:
        C[instance, C_END] = now
    A[share + A_ROW] = row
    A[share + A_NEXT] = 0
    if G[G_DONE]:
        A[G[G_DONE_LAST] + A_NEXT] = share
    else:
        G[G_DONE] = share
    G[G_DONE_LAST] = share


@lean
def finish_run(h, G, A, C, run, row, now):
    """A stream is done on this rank."""
    share = A[run + U_SHARE]
    give(G, A, run, RUN)
    A[share + A_LEFT] -= 1
    if A[share + A_LEFT] == 0:
        share_done(h, G, A, C, share, row, now)


@lean
def end_phase(h, lg, ca, G, R, A, C, rank, run, row, now):
    """A stream has ended its phase on this rank, with the node in `row`."""
    number = lg[visit_of(lg, ca, A, run)]
    queue = R[rank, R_QUEUE] + number * QUEUE
    behind, user = np.int64(0), A[queue + Q_FIRST]
    while user != run:
        behind, user = user, A[user + U_RUNNING]
    if behind:
        A[behind + U_RUNNING] = A[run + U_RUNNING]
    else:
        A[queue + Q_FIRST] = A[run + U_RUNNING]
    if A[queue + Q_LAST] == run:
        A[queue + Q_LAST] = behind
    A[queue + Q_RUNNING] -= 1
    serve_queue(lg, ca, G, R, A, rank, number, row)
    if A[run + U_PHASE] + 1 < lg[stream_of(ca, A, run) + 2]:
        A[run + U_PHASE] += 1
        number = lg[visit_of(lg, ca, A, run)]
        join_queue(lg, ca, R, A, rank, run)
        serve_queue(lg, ca, G, R, A, rank, number, row)
    else:
        finish_run(h, G, A, C, run, row, now)


@lean
def begin_streams(h, it, lg, tm, sl, ca, sm, G, B, A, S, R, C, NR, rank, instance, node, now):
    """A rank dispatches a planned collective, its workload's `node`."""
    session = h[H_SLICES] + instance
    if C[session, C_START] < 0:
        C[session, C_START] = now
        C[session, C_LEFT] = ca[instance, I_MEMBERS]
    queues, streams = R[rank, R_QUEUES], ca[instance, I_NSTREAMS]
    share = take(G, A, SHARE + 2 * queues)
    A[share + A_CALL] = instance
    A[share + A_NODE] = node
    A[share + A_LEFT] = streams
    A[share + A_EARLY] = 0
    A[share + A_RANK] = rank
    if streams == 0:
        share_done(h, G, A, C, share, np.int64(-1), now)
        return
    row = B[rank, B_ROW] + node
    for number in range(queues):
        A[share + SHARE + number] = 0
        A[share + SHARE + queues + number] = 0
        if lg[ca[instance, I_TURNS] + number]:
            queue = R[rank, R_QUEUE] + number * QUEUE
            if A[queue + Q_SHARES]:
                A[A[queue + Q_SHARES_LAST] + SHARE + queues + number] = share
            else:
                A[queue + Q_SHARES] = share
            A[queue + Q_SHARES_LAST] = share
    for stream in range(streams):
        run = take(G, A, RUN)
        A[run + U_SHARE] = share
        A[run + U_STREAM] = stream
        A[run + U_PHASE] = 0
        if lg[ca[instance, I_STREAMS] + STREAM * stream + 2]:
            join_queue(lg, ca, R, A, rank, run)
        else:
            finish_run(h, G, A, C, run, np.int64(-1), now)
    for number in range(queues):
        serve_queue(lg, ca, G, R, A, rank, number, row)
    start_runs(h, it, lg, tm, sl, ca, sm, G, B, A, S, R, C, NR, rank, now)


@lean
def start_runs(h, it, lg, tm, sl, ca, sm, G, B, A, S, R, C, NR, rank, now):
    """Splice the slices of all streams whose turn it is; one with nothing to do on this rank ends at once."""
    while G[G_BEGIN]:
        run = G[G_BEGIN]
        G[G_BEGIN] = A[run + U_NEXT]
        share, row = A[run + U_SHARE], A[run + U_ROW]
        visit = visit_of(lg, ca, A, run)
        which = lg[visit + 4] + 2 * place_in(it, ca, A[share + A_CALL], rank)
        s, position = lg[visit + 2] + it[which], np.int64(it[which + 1])
        block = splice(it, lg, tm, sl, sm, G, B, A, S, R, C, NR, s, position, rank, A[share + A_NODE], run, row, now)
        if block < 0:
            leave_slice(sl, G, A, C, s, now)
            end_phase(h, lg, ca, G, R, A, C, rank, run, row, now)
