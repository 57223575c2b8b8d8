"""Chunks of planned collectives, which wait in queues of each rank and run phase by phase.

A chunk that ends a phase on a rank leaves that queue, starts the queue's first waiter, and joins the back of the queue
of its next phase. None of this takes simulated time.
"""

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import blocks, records, table
from astrasim_py.engine.compiled.queue import NONE, give, take, take_zeros


@lean
def chunk_of(state, run):
    row = table.runs(state, run)
    return table.chunks(
        state, table.instances(state, table.shares(state, row.share).instance).chunks + records.CHUNK_WORDS * row.chunk
    )


@lean
def phase_of(state, run):
    return table.phases(state, chunk_of(state, run).phases + records.PHASE_WORDS * table.runs(state, run).phase)


@lean
def queue_of(state, rank, number):
    """Return the place of a queue of a rank."""
    return table.ranks(state, rank).queue + number * records.QUEUE_WORDS


@lean
def goes_first(state, a, b):
    """Whether waiting run `a` precedes `b`: by chunk priority, phase priority, then arrival."""
    ours, theirs = chunk_of(state, a).priority, chunk_of(state, b).priority
    if ours == theirs:
        ours, theirs = phase_of(state, a).priority, phase_of(state, b).priority
    if ours == theirs:
        return table.runs(state, a).arrival < table.runs(state, b).arrival
    return ours > theirs


@lean
def stand_in_line(state, place, run):
    queue, row = table.queues(state, place), table.runs(state, run)
    row.next = 0
    if queue.line == 0:
        queue.line = run
        queue.line_last = run
    elif not goes_first(state, run, queue.line_last):
        table.runs(state, queue.line_last).next = run
        queue.line_last = run
    elif goes_first(state, run, queue.line):
        row.next = queue.line
        queue.line = run
    else:
        behind = queue.line
        while not goes_first(state, run, table.runs(state, behind).next):
            behind = table.runs(state, behind).next
        row.next = table.runs(state, behind).next
        table.runs(state, behind).next = run


@lean
def turns_taken(state, share, number):
    """Return the place of the number of turns that a share has taken in a queue."""
    return share + records.SHARE_WORDS + number


@lean
def next_share(state, share, rank, number):
    """Return the place of the link to the next share with turns left in a queue."""
    return share + records.SHARE_WORDS + table.ranks(state, rank).queues + number


@lean
def join_queue(state, rank, run):
    """Add a chunk to the queue of its phase; hold it back until its turn."""
    table.ranks(state, rank).arrivals += 1
    row, phase = table.runs(state, run), phase_of(state, run)
    row.arrival = table.ranks(state, rank).arrivals
    place = queue_of(state, rank, phase.queue)
    if chunk_of(state, run).turns:
        share = row.share
        if (
            table.queues(state, place).shares != share
            or phase.turn != table.arena(state)[turns_taken(state, share, phase.queue)]
        ):
            row.next = table.shares(state, share).early
            table.shares(state, share).early = run
            return
    stand_in_line(state, place, run)


@lean
def take_turn(state, rank, share, number):
    """Advance the turn of a collective in a queue; release the chunk that waited for this turn."""
    place = queue_of(state, rank, number)
    queue, taken = table.queues(state, place), turns_taken(state, share, number)
    table.arena(state)[taken] += 1
    if (
        table.arena(state)[taken]
        == table.longs(state)[table.instances(state, table.shares(state, share).instance).turns + number]
    ):
        queue.shares = table.arena(state)[next_share(state, share, rank, number)]
    first = queue.shares
    if first == 0:
        return
    behind, run = np.int64(0), table.shares(state, first).early
    while run:
        phase = phase_of(state, run)
        if phase.queue == number and phase.turn == table.arena(state)[turns_taken(state, first, number)]:
            if behind:
                table.runs(state, behind).next = table.runs(state, run).next
            else:
                table.shares(state, first).early = table.runs(state, run).next
            stand_in_line(state, place, run)
            return
        behind, run = run, table.runs(state, run).next


@lean
def serve_queue(state, rank, number, cause):
    """Start as many chunks of a queue as its capacity allows."""
    queue = table.queues(state, queue_of(state, rank, number))
    while queue.line and queue.running < queue.capacity:
        run = queue.line
        row = table.runs(state, run)
        queue.line = row.next
        queue.running += 1
        table.ranks(state, rank).arrivals += 1
        row.begun = table.ranks(state, rank).arrivals
        row.cause = cause
        row.next = 0
        if state.begin:
            table.runs(state, state.begin_last).next = run
        else:
            state.begin = run
        state.begin_last = run
        if chunk_of(state, run).turns:
            take_turn(state, rank, row.share, number)


@lean
def end_share(state, share, cause):
    """End a rank's part in a planned collective: the workload's node completes next."""
    row = table.shares(state, share)
    whole = table.progress(state, state.call_count + row.instance)
    whole.left -= 1
    if whole.left == 0:
        whole.end = state.now
    row.cause = cause
    row.next = 0
    if state.done:
        table.shares(state, state.done_last).next = share
    else:
        state.done = share
    state.done_last = share


@lean
def end_run(state, run, cause):
    share = table.runs(state, run).share
    give(state, run, records.RUN_WORDS)
    table.shares(state, share).left -= 1
    if table.shares(state, share).left == 0:
        end_share(state, share, cause)


@lean
def end_phase(state, rank, run, cause):
    """End a chunk's phase on this rank; `cause`: row of its last node."""
    row = table.runs(state, run)
    number = phase_of(state, run).queue
    queue = table.queues(state, queue_of(state, rank, number))
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
    instance, whole = table.instances(state, number), table.progress(state, state.call_count + number)
    if whole.start < 0:
        whole.start = state.now
        whole.left = instance.members
    queue_count = table.ranks(state, rank).queues
    share = take_zeros(state, records.SHARE_WORDS + 2 * queue_count)
    row = table.shares(state, share)
    row.instance = number
    row.node = node
    row.left = instance.chunk_count
    row.rank = rank
    if instance.chunk_count == 0:
        end_share(state, share, NONE)
        return
    cause = blocks.workload_row(state, rank).row + node
    for queue_number in range(queue_count):
        if table.longs(state)[instance.turns + queue_number]:
            queue = table.queues(state, queue_of(state, rank, queue_number))
            if queue.shares:
                table.arena(state)[next_share(state, queue.shares_last, rank, queue_number)] = share
            else:
                queue.shares = share
            queue.shares_last = share
    for chunk in range(instance.chunk_count):
        run = take(state, records.RUN_WORDS)
        table.runs(state, run).share = share
        table.runs(state, run).chunk = chunk
        table.runs(state, run).phase = 0
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
        row = table.runs(state, run)
        state.begin = row.next
        share, cause = table.shares(state, row.share), row.cause
        phase = phase_of(state, run)
        place = phase.members + 2 * blocks.position_in(state, share.instance, rank)
        call, position = phase.call + table.ints(state)[place], np.int64(table.ints(state)[place + 1])
        if blocks.splice(state, call, position, rank, share.node, run, cause) < 0:
            blocks.leave_call(state, call, rank)
            end_phase(state, rank, run, cause)
