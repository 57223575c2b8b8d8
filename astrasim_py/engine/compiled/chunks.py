"""Chunks of planned collectives: each rank has queues, in which chunks wait and run phase by phase.

A chunk that ends a phase on a rank leaves that queue, starts the queue's first waiter, and joins the back of the queue
of its next phase. None of this takes simulated time.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.blocks import leave_call, position_in, splice
from astrasim_py.engine.compiled.memory import (
    arena,
    blocks,
    chunks,
    instances,
    ints,
    longs,
    phases,
    progress,
    queues,
    ranks,
    runs,
    shares,
)
from astrasim_py.engine.compiled.queue import NONE, give, take, take_zeros


@lean
def chunk_of(state, run):
    """Return the chunk of a run."""
    row = runs(state, run)
    return chunks(state, instances(state, shares(state, row.share).instance).chunks + records.CHUNK_WORDS * row.chunk)


@lean
def phase_of(state, run):
    """Return the current phase of a run."""
    return phases(state, chunk_of(state, run).phases + records.PHASE_WORDS * runs(state, run).phase)


@lean
def queue_of(state, rank, number):
    """Return the place of a queue of a rank."""
    return ranks(state, rank).queue + number * records.QUEUE_WORDS


@lean
def goes_first(state, a, b):
    """Whether waiting run `a` precedes `b`: by chunk priority, phase priority, then arrival."""
    ours, theirs = chunk_of(state, a).priority, chunk_of(state, b).priority
    if ours == theirs:
        ours, theirs = phase_of(state, a).priority, phase_of(state, b).priority
    if ours == theirs:
        return runs(state, a).arrival < runs(state, b).arrival
    return ours > theirs


@lean
def stand_in_line(state, place, run):
    """Add a run to the waiting line of a queue."""
    queue, row = queues(state, place), runs(state, run)
    row.next = 0
    if queue.line == 0:
        queue.line = run
        queue.line_last = run
    elif not goes_first(state, run, queue.line_last):
        runs(state, queue.line_last).next = run
        queue.line_last = run
    elif goes_first(state, run, queue.line):
        row.next = queue.line
        queue.line = run
    else:
        behind = queue.line
        while not goes_first(state, run, runs(state, behind).next):
            behind = runs(state, behind).next
        row.next = runs(state, behind).next
        runs(state, behind).next = run


@lean
def turns_taken(state, share, number):
    """Return the place of the number of turns that a share has taken in a queue."""
    return share + records.SHARE_WORDS + number


@lean
def next_share(state, share, rank, number):
    """Return the place of the link to the next share with turns left in a queue."""
    return share + records.SHARE_WORDS + ranks(state, rank).queues + number


@lean
def join_queue(state, rank, run):
    """Add a chunk to the queue of its phase; hold it back until its turn."""
    ranks(state, rank).arrivals += 1
    row, phase = runs(state, run), phase_of(state, run)
    row.arrival = ranks(state, rank).arrivals
    place = queue_of(state, rank, phase.queue)
    if chunk_of(state, run).turns:
        share = row.share
        if queues(state, place).shares != share or phase.turn != arena(state)[turns_taken(state, share, phase.queue)]:
            row.next = shares(state, share).early
            shares(state, share).early = run
            return
    stand_in_line(state, place, run)


@lean
def take_turn(state, rank, share, number):
    """Advance the turn of a collective in a queue; release a held-back chunk whose turn it is now."""
    place = queue_of(state, rank, number)
    queue, taken = queues(state, place), turns_taken(state, share, number)
    arena(state)[taken] += 1
    if arena(state)[taken] == longs(state)[instances(state, shares(state, share).instance).turns + number]:
        queue.shares = arena(state)[next_share(state, share, rank, number)]
    first = queue.shares
    if first == 0:
        return
    behind, run = np.int64(0), shares(state, first).early
    while run:
        phase = phase_of(state, run)
        if phase.queue == number and phase.turn == arena(state)[turns_taken(state, first, number)]:
            if behind:
                runs(state, behind).next = runs(state, run).next
            else:
                shares(state, first).early = runs(state, run).next
            stand_in_line(state, place, run)
            return
        behind, run = run, runs(state, run).next


@lean
def serve_queue(state, rank, number, cause):
    """Start as many chunks of a queue as its capacity allows."""
    queue = queues(state, queue_of(state, rank, number))
    while queue.line and queue.running < queue.capacity:
        run = queue.line
        row = runs(state, run)
        queue.line = row.next
        queue.running += 1
        row.next_running = 0
        if queue.first:
            runs(state, queue.last).next_running = run
        else:
            queue.first = run
        queue.last = run
        row.cause = cause
        row.next = 0
        if state.begin:
            runs(state, state.begin_last).next = run
        else:
            state.begin = run
        state.begin_last = run
        if chunk_of(state, run).turns:
            take_turn(state, rank, row.share, number)


@lean
def end_share(state, share, cause):
    """End a rank's part in a planned collective: the workload's node completes next."""
    row = shares(state, share)
    whole = progress(state, state.call_count + row.instance)
    whole.left -= 1
    if whole.left == 0:
        whole.end = state.now
    row.cause = cause
    row.next = 0
    if state.done:
        shares(state, state.done_last).next = share
    else:
        state.done = share
    state.done_last = share


@lean
def end_run(state, run, cause):
    """End a chunk on this rank."""
    share = runs(state, run).share
    give(state, run, records.RUN_WORDS)
    shares(state, share).left -= 1
    if shares(state, share).left == 0:
        end_share(state, share, cause)


@lean
def end_phase(state, rank, run, cause):
    """End a chunk's phase on this rank; `cause`: row of its last node."""
    row = runs(state, run)
    number = phase_of(state, run).queue
    queue = queues(state, queue_of(state, rank, number))
    behind, user = np.int64(0), queue.first
    while user != run:
        behind, user = user, runs(state, user).next_running
    if behind:
        runs(state, behind).next_running = row.next_running
    else:
        queue.first = row.next_running
    if queue.last == run:
        queue.last = behind
    queue.running -= 1
    serve_queue(state, rank, number, cause)
    if row.phase + 1 < chunk_of(state, run).phase_count:
        row.phase += 1
        number = phase_of(state, run).queue
        join_queue(state, rank, run)
        serve_queue(state, rank, number, cause)
    else:
        end_run(state, run, cause)


@lean
def begin_chunks(state, rank, number, node):
    """Dispatch a planned collective on a rank, for `node` of its workload."""
    instance, whole = instances(state, number), progress(state, state.call_count + number)
    if whole.start < 0:
        whole.start = state.now
        whole.left = instance.members
    queue_count = ranks(state, rank).queues
    share = take_zeros(state, records.SHARE_WORDS + 2 * queue_count)
    row = shares(state, share)
    row.instance = number
    row.node = node
    row.left = instance.chunk_count
    row.rank = rank
    if instance.chunk_count == 0:
        end_share(state, share, NONE)
        return
    cause = blocks(state, rank).row + node
    for queue_number in range(queue_count):
        if longs(state)[instance.turns + queue_number]:
            queue = queues(state, queue_of(state, rank, queue_number))
            if queue.shares:
                arena(state)[next_share(state, queue.shares_last, rank, queue_number)] = share
            else:
                queue.shares = share
            queue.shares_last = share
    for chunk in range(instance.chunk_count):
        run = take(state, records.RUN_WORDS)
        runs(state, run).share = share
        runs(state, run).chunk = chunk
        runs(state, run).phase = 0
        if chunk_of(state, run).phase_count:
            join_queue(state, rank, run)
        else:
            end_run(state, run, NONE)
    for queue_number in range(queue_count):
        serve_queue(state, rank, queue_number, cause)
    start_runs(state, rank)


@lean
def start_runs(state, rank):
    """Splice the calls of all chunks that start now; a chunk with nothing to do on this rank ends at once."""
    while state.begin:
        run = state.begin
        row = runs(state, run)
        state.begin = row.next
        share, cause = shares(state, row.share), row.cause
        phase = phase_of(state, run)
        place = phase.members + 2 * position_in(state, share.instance, rank)
        call, position = phase.call + ints(state)[place], np.int64(ints(state)[place + 1])
        if splice(state, call, position, rank, share.node, run, cause) < 0:
            leave_call(state, call)
            end_phase(state, rank, run, cause)
