"""The kernel: an Image is run by one compiled loop over the arrays of a state.

Every turn of the loop does the first of these that there is to do: complete a node that is due; issue a message that
may go; carry a message over its next link; issue the next node of the wave of the rank that dispatches; take the next
event of the present time; let the lowest rank that must dispatch begin a wave; go to the next time. So a completion and
all that follows from it at once stand at one place of the loop each, whatever has caused them.

Before nodes are issued and events are taken, and nowhere else, the kernel returns: when it has worked for a while, and
when a pool could run out; the caller makes the pool larger and calls it again.
"""

# ruff: noqa: F403, F405, SIM109

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import inlined, kernel, lean
from astrasim_py.core.prefetch import prefetch
from astrasim_py.engine.compiled.blocks import (
    NODE,
    channel_of,
    counted_to,
    drop,
    free_block,
    free_pair,
    leave_slice,
    new_block,
    new_pair,
    new_states,
    partner_block,
    peer_of,
    place_in,
    rank_at,
    size_of,
    splice,
    state_of,
    template_of,
    wait_for_count,
)
from astrasim_py.engine.compiled.layout import *
from astrasim_py.engine.compiled.pools import (
    advance_time,
    give,
    give_row,
    heap_pop,
    heap_push,
    make_ready,
    most_ready,
    next_woken,
    plain,
    push,
    take,
    take_event,
    take_row,
    upper,
    wake,
)
from astrasim_py.engine.compiled.routes import after_hop, at_end, hops_of, link_at, set_out
from astrasim_py.engine.compiled.streams import begin_streams, end_phase, start_runs
from astrasim_py.system.plan import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND

SIZE = np.int64((1 << 27) - 1)


@inlined
def number_event(h, G, E, e, now):
    """Give an event the next number in the order of issue."""
    if h[H_SCHEDULED]:
        G[G_SCHEDULED] += 1
        E[e, E_KEY_1] = now
        E[e, E_KEY_2] = G[G_SCHEDULED]
    else:
        E[e, E_KEY_1] = 0
        E[e, E_KEY_2] = G[G_OP]
    G[G_OP] += 1


@inlined
def renumber(G, E, e, start):
    """Give an event the number of one that is scheduled at `start`."""
    G[G_SCHEDULED] += 1
    E[e, E_KEY_1] = start
    E[e, E_KEY_2] = G[G_SCHEDULED]


@inlined
def new_event(G, E, what, block, node):
    """An event that is about a node."""
    e = take_row(G, E, G_EVENT_TOP, G_EVENT_FREE, E_NEXT)
    E[e, E_NODE] = (block << 32) | node
    E[e, E_WHAT] = what
    E[e, E_ROW] = -1
    return e


@lean
def fail(G, status, a, b, c, d):
    """The run cannot go on."""
    if G[G_STATUS] == RUNNING:
        G[G_STATUS] = status
        G[G_BUDGET] = 0
        G[G_ERROR] = a
        G[G_ERROR_1] = b
        G[G_ERROR_2] = c
        G[G_ERROR_3] = d


@lean
def push_later(G, E, K, Q, X, time, e):
    """Schedule an event, if time goes that far."""
    if time < G[G_NOW]:
        fail(G, OVERFLOW, 0, 0, 0, 0)
    else:
        push(G, E, K, Q, X, time, e)


@inlined
def due(G, block, node, row):
    """A node completes next; the last that is due goes first."""
    top = G_STACKED + 3 * G[G_STACK]
    G[top] = block
    G[top + 1] = node
    G[top + 2] = row
    G[G_STACK] += 1


@inlined
def account(G, R, rank, now):
    """Charge the time since the last change to compute, or to exposed communication."""
    elapsed = now - R[rank, R_ACCOUNTED]
    if elapsed:
        if R[rank, R_COMPUTING]:
            R[rank, R_COMPUTE] += elapsed
        elif R[rank, R_COMMUNICATING]:
            R[rank, R_EXPOSED] += elapsed
        R[rank, R_ACCOUNTED] = now


@inlined
def reserve(G, L, V, link, requested, start, free, nbytes):
    """Book a link from `start` to `free` for a message that asked at `requested`."""
    L[link, L_FREE] = free
    L[link, L_BYTES] += nbytes
    if L[link, L_BYTES] < 0 or free < 0:
        fail(G, OVERFLOW, 0, 0, 0, 0)
    if not G[G_COUNTING]:
        return
    L[link, L_MESSAGES] += 1
    L[link, L_BUSY] += free - start
    first = L[link, L_FIRST]
    while first >= 0 and V[first, 0] <= requested:
        L[link, L_FIRST] = V[first, 1]
        L[link, L_WAITING] -= 1
        give_row(G, V, G_WAIT_FREE, 1, first)
        first = L[link, L_FIRST]
    if start > requested:
        L[link, L_QUEUED] += start - requested
        waiting = take_row(G, V, G_WAIT_TOP, G_WAIT_FREE, 1)
        V[waiting, 0] = start
        V[waiting, 1] = -1
        if first >= 0:
            V[L[link, L_LAST], 1] = waiting
        else:
            L[link, L_FIRST] = waiting
        L[link, L_LAST] = waiting
        L[link, L_WAITING] += 1
        if L[link, L_WAITING] > L[link, L_MOST]:
            L[link, L_MOST] = L[link, L_WAITING]
    if L[link, L_BUSY] < 0 or L[link, L_QUEUED] < 0:
        fail(G, OVERFLOW, 0, 0, 0, 0)


@lean
def note(G, E, MR, HR, e, link, requested, start, free):
    """Record one hop of a message."""
    row = E[e, E_ROW]
    if not E[e, E_WHAT] & MOVED:
        MR[row, M_START] = start
    MR[row, M_QUEUED] += start - requested
    hop = G[G_HOP_ROWS]
    G[G_HOP_ROWS] = hop + 1
    HR[hop, X_MESSAGE] = row
    HR[hop, X_LINK] = link
    HR[hop, X_REQUESTED] = requested
    HR[hop, X_START] = start
    HR[hop, X_END] = free


@lean
def slot_freed(nd, lg, h, G, A, B, R, NR, rank, slot, row, node):
    """A node of a workload has given up its slot: those that were refused are ready again.

    Of a single slot not more need to try than the first that is sure to keep it beyond this instant, and those before
    it: all others would be refused once more, which nobody would see.
    """
    R[rank, R_USED + slot] -= 1
    refused = R_REFUSED + 3 * (slot - 1)
    while R[rank, refused + 2]:
        again = heap_pop(A, R[rank, refused], R[rank, refused + 2])
        R[rank, refused + 2] -= 1
        make_ready(G, A, R, rank, rank, again)
        if G[G_NODES]:
            NR[B[rank, B_ROW] + again, D_RELEASED] = row + node
        if h[H_CAPACITY + slot] == 1:
            at = B[rank, B_FIRST] + again
            kind = nd[at, N_KIND] & 7
            if kind == SEND or (kind == COMPUTE and lg[h[H_DURATIONS] + nd[at, N_SIZE]]):
                break


@lean
def release_slot(it, tm, G, A, B, R, C, D, NR, h, block, message, node):
    """A node frees the slot of a message of a connection: the send that waits for it is ready again."""
    place = C[B[block, B_SLICE], C_FIFO] + 2 * message
    waiting = A[place]
    A[place] = 1
    if waiting < 2:
        return
    waiting -= 2
    other, send = waiting >> 32, waiting & NODE
    if G[G_NODES]:
        NR[B[other, B_ROW] + send, D_RELEASED] = B[block, B_ROW] + node
    rank = np.int64(B[other, B_RANK])
    make_ready(G, A, R, rank, other, send)
    wake(h, G, D, R, rank)


@lean
def lose_need(nd, tm, A, B, S, block, node):
    """A node needs one completion fewer; whether it is ready now."""
    own = state_of(B, block, node)
    state = np.int64(S[own])
    if state & NEEDS == MOST_NEEDS:
        # The count is a word of the block.
        place = (
            np.int64(B[block, B_WORDS])
            + ((tm[B[block, B_TEMPLATE], T_COUNT] + 7) >> 3)
            + nd[B[block, B_FIRST] + node, N_EXTRA]
        )
        A[place] -= 1
        return A[place] == 0
    S[own] = state - 1
    return (state & NEEDS) == 1


@lean
def count_completion(nd, lg, tm, G, A, B, S, R, NR, block, node):
    """The completion of a node counts: nodes that have counted to it lose a need, others begin to count from it."""
    template = np.int64(B[block, B_TEMPLATE])
    words = np.int64(B[block, B_WORDS])
    base = words + tm[template, T_COUNTED]
    row = tm[template, T_COUNTING] + 5 * node
    counter = lg[row]
    number, reached = np.int64(0), np.int64(0)
    if counter >= 0:
        A[base + 2 * counter] += 1
        count = A[base + 2 * counter]
        heap = base + lg[tm[template, T_WAITING] + 4 * counter]
        number = A[base + 2 * counter + 1]
        while number and A[heap] == count:
            reached += 1
            waiter = counted_to(A, heap, number)
            number -= 1
            # What is reached waits behind the heap until the others have begun to count.
            A[heap + 2 * number] = -1
            A[heap + 2 * number + 1] = waiter
        A[base + 2 * counter + 1] = number
        if reached:
            for i in range(reached):
                waiter = A[heap + 2 * (number + i) + 1]
                if lose_need(nd, tm, A, B, S, block, waiter):
                    if G[G_NODES]:
                        NR[B[block, B_ROW] + waiter, D_RELEASED] = B[block, B_ROW] + node
                    make_ready(G, A, R, np.int64(B[block, B_RANK]), block, waiter)
    for i in range(lg[row + 4]):
        waiter = lg[lg[row + 3] + i]
        own = tm[template, T_COUNTING] + 5 * waiter
        counter = lg[own + 1]
        heap = base + lg[tm[template, T_WAITING] + 4 * counter]
        number = A[base + 2 * counter + 1]
        wait_for_count(A, heap, number, A[base + 2 * counter] + lg[own + 2], waiter)
        A[base + 2 * counter + 1] = number + 1


@lean
def is_free(G, L, link, now):
    """Whether a link is free at the event that was taken last."""
    if L[link, L_FREE] != now:
        return L[link, L_FREE] < now
    if L[link, L_FREE_1] != G[G_TAKEN_1]:
        return L[link, L_FREE_1] < G[G_TAKEN_1]
    return L[link, L_FREE_2] <= G[G_TAKEN_2]


@lean
def free_later(G, E, K, Q, X, L, link):
    """Schedule that a busy link gets free."""
    e = new_event(G, E, FREED, 0, link)
    E[e, E_KEY_1] = L[link, L_FREE_1]
    E[e, E_KEY_2] = L[link, L_FREE_2]
    push(G, E, K, Q, X, L[link, L_FREE], e)


@lean
def due_together(G, E, R, e, rank, end, now):
    """Number the end of a timer: those of one rank for one time go with their first."""
    E[e, E_TAIL] = end
    first = R[rank, R_DUE]
    while first and E[first - 1, E_TAIL] != end:
        first = E[first - 1, E_ROUTE]
    if first:
        E[e, E_KEY_1] = E[first - 1, E_KEY_1]
        E[e, E_KEY_2] = E[first - 1, E_KEY_2]
    else:
        renumber(G, E, e, now)
        E[e, E_ROUTE] = R[rank, R_DUE]
        R[rank, R_DUE] = e + 1


@lean
def forget_due(E, R, rank, e):
    """A timer of a rank ends: if it is the first of its time, no other goes with it any more."""
    behind, first = np.int64(-1), R[rank, R_DUE]
    while first and first != e + 1:
        behind, first = first - 1, E[first - 1, E_ROUTE]
    if first == 0:
        return
    if behind < 0:
        R[rank, R_DUE] = E[e, E_ROUTE]
    else:
        E[behind, E_ROUTE] = E[e, E_ROUTE]


@lean
def refuse(G, A, R, rank, slot, node):
    """A ready node of a workload finds no slot free."""
    refused = R_REFUSED + 3 * (slot - 1)
    count, size = R[rank, refused + 2], R[rank, refused + 1]
    if count == size:
        place = take(G, A, max(2 * size, 4))
        for i in range(count):
            A[place + i] = A[R[rank, refused] + i]
        if size:
            give(G, A, R[rank, refused], size)
        R[rank, refused] = place
        R[rank, refused + 1] = max(2 * size, 4)
        most_ready(G, R[rank, refused + 1])
    heap_push(A, R[rank, refused], count, node)
    R[rank, refused + 2] = count + 1


@lean
def stored_row(NR, recorded, row):
    """Row of the message that came before its node, which has kept it; -1 where messages are not recorded."""
    if not recorded:
        return np.int64(-1)
    message = -2 - NR[row, D_ENDED]
    NR[row, D_ENDED] = -1
    return message


@lean
def sent_bytes(nd, it, tm, sl, sm, B, block, node, peer):
    """Index of the bytes of the one message that a receive waits for."""
    meet = np.int64(nd[B[block, B_FIRST] + node, N_MEET])
    s = np.int64(B[block, B_SLICE])
    if s < 0:
        return np.int64(nd[B[B[block, B_RANKS] + peer, B_FIRST] + meet, N_SIZE])
    template = template_of(it, sl, s, peer)
    size = np.int64(nd[tm[template, T_FIRST] + meet, N_SIZE])
    if B[block, B_FLAGS] & UNEVEN_BLOCK:
        size += sm[sl[s, S_BYTES] + peer * tm[template, T_COUNT] + meet]
    return size


@lean
def record_message(lg, h, nd, G, B, MR, block, node, size, peer, hops, now):
    """A row of the message table; returns its number."""
    row = G[G_MESSAGE_ROWS]
    G[G_MESSAGE_ROWS] = row + 1
    MR[row, M_SLICE] = B[block, B_SLICE]
    MR[row, M_SRC] = B[block, B_RANK]
    MR[row, M_DST] = peer
    MR[row, M_NODE] = B[block, B_FIRST] + node
    MR[row, M_SIZE] = lg[h[H_SIZES] + size]
    MR[row, M_POSTED] = now
    MR[row, M_START] = -1
    MR[row, M_DELIVERED] = -1
    MR[row, M_HOPS] = hops
    MR[row, M_QUEUED] = 0
    MR[row, M_SENDER] = B[block, B_ROW] + node
    MR[row, M_RECEIVER] = -1
    return row


@lean
def analytical_times(h, it, lg, B, tm, block, route, size, asks):
    """(delivery, injection) of a message under the analytical model, ps after it is sent."""
    variant = np.int64(0)
    if B[block, B_FLAGS] & F_PACED and not asks:
        variant = tm[B[block, B_TEMPLATE], T_VARIANT]
    place = (it[h[H_ROUTE_CLASS] + route] * h[H_VARIANTS] + variant) * h[H_NSIZES] + size
    return lg[h[H_DELAYS] + 2 * place], lg[h[H_DELAYS] + 2 * place + 1]


@inlined
def make_wave(G, A, B, R, W, rank):
    """Take the ready nodes of a rank, in ascending (slice, node)."""
    count = R[rank, R_COUNT]
    R[rank, R_COUNT] = 0
    G[G_WAVE] = 0
    G[G_WAVES] = count
    entry = R[rank, R_ENTRY]
    W[1, 0] = entry
    if count > 1:
        W[0, 0] = (np.int64(B[entry >> 32, B_SLICE] + 1) << 32) | (entry & NODE)
        place, ascending = R[rank, R_READY], True
        for i in range(1, count):
            entry = A[place + i - 1]
            W[1, i] = entry
            W[0, i] = (np.int64(B[entry >> 32, B_SLICE] + 1) << 32) | (entry & NODE)
            if W[0, i] < W[0, i - 1]:
                ascending = False
        if not ascending:
            sort_wave(W, count)


@lean
def sort_wave(W, count):
    """Heap sort: nothing is taken from memory, and no order of arrival makes it slow."""
    for first in range(count // 2 - 1, -1, -1):
        sink(W, first, count)
    for last in range(count - 1, 0, -1):
        W[0, 0], W[0, last] = W[0, last], W[0, 0]
        W[1, 0], W[1, last] = W[1, last], W[1, 0]
        sink(W, 0, last)


@lean
def sink(W, hole, count):
    """Let an entry of a wave sink to its place among the first `count`, greatest at the top."""
    key, entry = W[0, hole], W[1, hole]
    while True:
        child = 2 * hole + 1
        if child >= count:
            break
        if child + 1 < count and W[0, child + 1] > W[0, child]:
            child += 1
        if key >= W[0, child]:
            break
        W[0, hole] = W[0, child]
        W[1, hole] = W[1, child]
        hole = child
    W[0, hole] = key
    W[1, hole] = entry


@lean
def begin_rank(it, tm, h, G, A, B, R, D, rank):
    """The first nodes of a rank are ready."""
    template = np.int64(B[rank, B_TEMPLATE])
    for i in range(tm[template, T_NROOTS]):
        make_ready(G, A, R, rank, rank, np.int64(it[tm[template, T_ROOTS] + i]))
    if R[rank, R_COUNT]:
        wake(h, G, D, R, rank)


@lean
def begin_run(h, it, lg, tm, sm, known, G, E, B, A, S, R, D, K, Q, X):
    """Make the blocks of all workloads, and let their ranks begin."""
    for rank in range(h[H_RANKS]):
        words = new_states(it, lg, tm, sm, G, A, S, known[rank, K_TEMPLATE])
        block = new_block(tm, G, B, known[rank, K_TEMPLATE], rank, words)
        B[block, B_RANKS] = known[rank, K_FIRST]
        B[block, B_SPLICED] = 1
        B[block, B_ROW] = known[rank, K_ROW] if G[G_NODES] else -1
        queues = known[rank, K_QUEUES]
        R[rank, R_QUEUES] = queues
        if queues:
            place = take(G, A, QUEUE * queues)
            R[rank, R_QUEUE] = place
            for i in range(QUEUE * queues):
                A[place + i] = 0
            for number in range(queues):
                A[place + QUEUE * number + Q_CAPACITY] = lg[known[rank, K_CAPACITIES] + number]
    for rank in range(h[H_RANKS]):
        if known[rank, K_DELAY]:
            e = new_event(G, E, BEGIN, 0, rank)
            number_event(h, G, E, e, 0)
            push(G, E, K, Q, X, known[rank, K_DELAY], e)
        else:
            begin_rank(it, tm, h, G, A, B, R, D, rank)


@lean
def go_on(h, G, space, events, blocks, pairs, waits, rows):
    """Whether another step may be taken; then for how many it need not be asked again, while the arena lasts."""
    if G[G_STATUS] != RUNNING or G[G_STEPS] <= 0:
        return False
    G[G_ARENA_LIMIT] = space - h[H_ROOM] - 4 * G[G_READY]
    if G[G_ARENA_TOP] > G[G_ARENA_LIMIT]:
        return False
    free = min(events - G[G_EVENT_TOP], pairs - G[G_PAIR_TOP])
    free = min(free, waits - G[G_WAIT_TOP])
    free = min(free, rows - max(G[G_MESSAGE_ROWS], G[G_HOP_ROWS]))
    steps = min(free // ROWS, (blocks - G[G_BLOCK_TOP]) // h[H_BLOCKS])
    if steps < SPARE:
        return False
    steps = min(steps, G[G_STEPS])
    G[G_STEPS] -= steps
    G[G_BUDGET] = steps - 1
    return True


@kernel("the engine", lean=True)
def advance(h, nd, it, lg, tm, sl, ca, sm, path, pairs, known, G, E, P, B, R, L, V, A, S, K, Q, X, D, W, C, NR, MR, HR):
    """Work until nothing is left to do, something is wrong, a pool could run out, or the steps allowed are taken.

    Parameters
    ----------
    h, nd, it, lg, tm, sl, ca, sm, path, pairs, known
        The image: head, node, ints, longs, tmpl, slices, calls, small, path, pairs, ranks.
    G, E, P, B, R, L, V, A, S, K, Q, X, D, W, C
        The state: scalars, events, pairs, blocks, ranks, links, waiting times, the arena as words and as bytes,
        buckets, heap of times, hash table, dirty ranks, wave, slices and instances.
    NR, MR, HR
        Tables of nodes, messages and hops; of one row where they are not recorded.
    """
    nodes_recorded, messages_recorded = G[G_NODES], G[G_MESSAGES]
    scheduled, injected = h[H_SCHEDULED], h[H_INJECTED]
    carried, sender, sent_node, sent_pair = np.int64(-1), np.int64(-1), np.int64(-1), np.int64(-1)
    # With widths that it knows the compiler needs no multiplications.
    if E.shape[1] != 8 or P.shape[1] != 8 or K.shape[1] != 8 or Q.shape[1] != 2 or V.shape[1] != 2:
        return
    if B.shape[1] != BLOCK or R.shape[1] != RANK or L.shape[1] != LINK or C.shape[1] != OPEN:
        return
    if nd.shape[1] != 8 or tm.shape[1] != TEMPLATE or sl.shape[1] != SLICE or ca.shape[1] != CALL:
        return
    if NR.shape[1] != 4 or MR.shape[1] != 12 or HR.shape[1] != 5:
        return
    space, events, pairs_room, blocks, waits = len(A), len(E), len(P), len(B), len(V)
    rows = np.int64(1) << 40
    if messages_recorded:
        rows = min(len(MR), len(HR))
    G[G_BUDGET] = 0
    if G[G_STATUS] == UNBORN:
        G[G_STATUS] = RUNNING
        begin_run(h, it, lg, tm, sm, known, G, E, B, A, S, R, D, K, Q, X)
    while True:
        if G[G_STACK] or G[G_DONE]:
            # -- a node completes -----------------------------------------------------------------------------
            now = G[G_NOW]
            if G[G_DONE]:
                share = G[G_DONE]
                G[G_DONE] = A[share + A_NEXT]
                block, node, cause = A[share + A_RANK], A[share + A_NODE], A[share + A_ROW]
                give(G, A, share, SHARE + 2 * R[block, R_QUEUES])
            else:
                G[G_STACK] -= 1
                top = G_STACKED + 3 * G[G_STACK]
                block, node, cause = G[top], G[top + 1], G[top + 2]
            block = plain(block)
            rank = plain(B[block, B_RANK])
            flags = np.int64(B[block, B_FLAGS])
            table_row = np.int64(B[block, B_ROW])
            if node >= 0:
                row = B[block, B_FIRST] + node
                kind = np.int64(nd[row, N_KIND])
                if kind & DETACHED:
                    if nodes_recorded:
                        NR[table_row + node, D_END] = now
                    continue
                if flags & F_WORKLOAD:
                    if kind & 7 == COMPUTE:
                        account(G, R, rank, now)
                        R[rank, R_COMPUTING] -= 1
                    elif kind & 7 == SEND or kind & 7 == RECV or kind & 7 == COLLECTIVE:
                        account(G, R, rank, now)
                        R[rank, R_COMMUNICATING] -= 1
                    slot = (kind >> 3) & 3
                    if slot and h[H_CAPACITY + slot] >= 0:
                        slot_freed(nd, lg, h, G, A, B, R, NR, rank, slot, table_row, node)
                elif flags & F_FIFO and kind & 7 != SEND:
                    freed = np.int64(it[tm[B[block, B_TEMPLATE], T_FIFO] + tm[B[block, B_TEMPLATE], T_COUNT] + node])
                    if freed >= 0:
                        release_slot(it, tm, G, A, B, R, C, D, NR, h, block, freed, node)
                if nodes_recorded:
                    NR[table_row + node, D_END] = now
                    NR[table_row + node, D_ENDED] = cause
                states, step = state_of(B, block, 0), np.int64(B[block, B_STEP])
                first = np.int64(nd[row, N_SUCC])
                for i in range(first, first + nd[row, N_NSUCC]):
                    successor = np.int64(it[i])
                    own = states + step * successor
                    state = np.int64(S[own])
                    if state & NEEDS == MOST_NEEDS:
                        ready = lose_need(nd, tm, A, B, S, block, successor)
                    else:
                        S[own] = state - 1
                        ready = (state & NEEDS) == 1
                    if ready:
                        make_ready(G, A, R, rank, block, successor)
                        if nodes_recorded:
                            NR[table_row + successor, D_RELEASED] = table_row + node
                B[block, B_LEFT] -= 1
                cause = table_row + node if nodes_recorded else np.int64(-1)
            if B[block, B_LEFT] == 0:
                # -- a block ends -----------------------------------------------------------------------------
                s = np.int64(B[block, B_SLICE])
                if s < 0:
                    R[rank, R_FINISH] = now
                else:
                    run, parent = np.int64(B[block, B_RUN]), np.int64(B[block, B_PARENT])
                    leave_slice(sl, G, A, C, s, now)
                    if B[block, B_REFS] == 0:
                        free_block(tm, G, B, A, block)
                    if run:
                        end_phase(h, lg, ca, G, R, A, C, rank, run, cause, now)
                        start_runs(h, it, lg, tm, sl, ca, sm, G, B, A, S, R, C, NR, rank, now)
                    else:
                        due(G, rank, parent, cause)
            elif flags & F_COUNTING and node >= 0:
                count_completion(nd, lg, tm, G, A, B, S, R, NR, block, node)
            if R[rank, R_COUNT]:
                wake(h, G, D, R, rank)
            continue
        if sender >= 0:
            # -- a message is issued --------------------------------------------------------------------------
            sender = plain(sender)
            now = G[G_NOW]
            size = size_of(nd, tm, sl, sm, B, sender, sent_node)
            carried = new_event(G, E, ((sent_pair + 1) << 32) | (size << 5), sender, sent_node)
            number_event(h, G, E, carried, now)
            route = set_out(h, nd, it, lg, sl, R, B, E, pairs, carried, sender, sent_node, now)
            hops = hops_of(h, it, route)
            G[G_SENT] += 1
            G[G_HOPS] += hops
            if messages_recorded:
                peer = rank_at(it, B, sender, peer_of(nd, it, sl, B, sender, sent_node))
                E[carried, E_ROW] = record_message(lg, h, nd, G, B, MR, sender, sent_node, size, peer, hops, now)
            if B[sender, B_FLAGS] & F_PACED and h[H_PACE] >= 0:
                # Messages of a connection enter one after the other.
                template = np.int64(B[sender, B_TEMPLATE])
                s = np.int64(B[sender, B_SLICE])
                connection = np.int64(it[tm[template, T_FIFO] + 2 * tm[template, T_COUNT] + sent_node])
                place = C[s, C_FIFO] + 2 * sl[s, S_MESSAGES] + connection
                pace = lg[h[H_PACE] + size]
                hold = lg[L[link_at(h, it, path, route), L_HOLD] + size]
                enters = max(A[place], now)
                if pace < 0 or hold < 0 or enters + pace < 0:
                    fail(G, OVERFLOW, 0, 0, 0, 0)
                A[place] = enters + pace
                asks = enters + max(pace - hold, 0)
                if asks > now:
                    E[carried, E_WHAT] |= ENTER
                    push(G, E, K, Q, X, asks, carried)
                    carried = np.int64(-1)
            sender = np.int64(-1)
            continue
        if carried >= 0:
            # -- a message takes its next link ----------------------------------------------------------------
            now = G[G_NOW]
            e, carried = plain(carried), np.int64(-1)
            what, route = E[e, E_WHAT], E[e, E_ROUTE]
            size = (what >> 5) & SIZE
            block = upper(E[e, E_NODE])
            longer = np.int64(0)
            if B[block, B_FLAGS] & F_PACED and not what & ASKS:
                longer = tm[B[block, B_TEMPLATE], T_LONGER]
            nbytes = lg[h[H_SIZES] + size]
            injection = np.int64(-1)
            if h[H_MODEL] == ANALYTICAL:
                left = route
                while not at_end(left):
                    link = link_at(h, it, path, left)
                    hold = lg[L[link, L_HOLD] + size]
                    reserve(G, L, V, link, now, now, now + hold if hold >= 0 else np.int64(-1), nbytes)
                    left = after_hop(h, it, left)
                if messages_recorded:
                    MR[E[e, E_ROW], M_START] = now
                delivery, injection = analytical_times(h, it, lg, B, tm, block, E[e, E_TAIL], size, what & ASKS)
                E[e, E_WHAT] = (what & ~7) | DELIVER
                if delivery < 0 or injection < 0:
                    fail(G, OVERFLOW, 0, 0, 0, 0)
                else:
                    push_later(G, E, K, Q, X, now + delivery, e)
                injection += now
            else:
                link = link_at(h, it, path, route)
                hold = lg[L[link, L_HOLD] + size]
                if hold < 0:
                    fail(G, OVERFLOW, 0, 0, 0, 0)
                    continue
                requested, start = now, max(L[link, L_FREE], now)
                if h[H_MODEL] == STORE_AND_FORWARD and scheduled:
                    if what & 7 == FREED:
                        # The link is free: the first that waits for it begins.
                        requested, start = E[e, E_TAIL], now
                    elif L[link, L_LINE] >= 0 or not is_free(G, L, link, now):
                        E[e, E_TAIL] = now
                        E[e, E_NEXT] = -1
                        if L[link, L_LINE] >= 0:
                            E[L[link, L_LINE_LAST], E_NEXT] = e
                        else:
                            L[link, L_LINE] = e
                            free_later(G, E, K, Q, X, L, link)
                        L[link, L_LINE_LAST] = e
                        continue
                end = start + hold
                latency = L[link, L_LATENCY] + longer
                if h[H_MODEL] == CUT_THROUGH:
                    end = max(end, E[e, E_TAIL]) if end >= 0 else end
                    head, tail = start + latency, end + latency
                    E[e, E_TAIL] = tail
                else:
                    tail = end + latency
                    if L[link, L_HOP] >= 0:
                        tail = start + lg[L[link, L_HOP] + size] + longer
                        if lg[L[link, L_HOP] + size] < 0:
                            fail(G, OVERFLOW, 0, 0, 0, 0)
                    head = tail
                if end < 0 or tail < 0 or head < 0:
                    fail(G, OVERFLOW, 0, 0, 0, 0)
                    continue
                free = tail if h[H_HOLD_LATENCY] else end
                reserve(G, L, V, link, requested, start, free, nbytes)
                if messages_recorded:
                    note(G, E, MR, HR, e, link, requested, start, free)
                if scheduled:
                    renumber(G, E, e, start)
                if not what & MOVED:
                    injection = end
                route = after_hop(h, it, route)
                E[e, E_ROUTE] = route
                if at_end(route):
                    E[e, E_WHAT] = (what & ~7) | MOVED | DELIVER
                    push(G, E, K, Q, X, tail, e)
                else:
                    E[e, E_WHAT] = (what & ~7) | MOVED | HOP
                    push(G, E, K, Q, X, head, e)
                if h[H_MODEL] == STORE_AND_FORWARD and scheduled:
                    G[G_SCHEDULED] += 1
                    L[link, L_FREE_1] = now
                    L[link, L_FREE_2] = G[G_SCHEDULED]
                    if what & 7 == FREED and L[link, L_LINE] >= 0:
                        free_later(G, E, K, Q, X, L, link)
            if injected and injection >= 0 and not what & ASKS:
                ended = new_event(G, E, END, block, E[e, E_NODE] & NODE)
                number_event(h, G, E, ended, now)
                B[block, B_REFS] += 1
                push_later(G, E, K, Q, X, injection, ended)
            continue
        # -- nothing is half done: the only place to return -------------------------------------------------------
        G[G_BUDGET] -= 1
        pause = G[G_BUDGET] < 0 or G[G_ARENA_TOP] > G[G_ARENA_LIMIT]
        if pause and not go_on(h, G, space, events, blocks, pairs_room, waits, rows):
            return
        now = G[G_NOW]
        if G[G_WAVE] < G[G_WAVES]:
            # -- the next node of a wave is issued ------------------------------------------------------------
            rank = plain(G[G_RANK])
            entry = W[1, G[G_WAVE]]
            G[G_WAVE] += 1
            block, node = upper(entry), entry & NODE
            flags = np.int64(B[block, B_FLAGS])
            row = B[block, B_FIRST] + node
            kind = np.int64(nd[row, N_KIND])
            of = kind & 7
            if flags & F_WORKLOAD:
                slot = (kind >> 3) & 3
                if slot and h[H_CAPACITY + slot] >= 0:
                    if R[rank, R_USED + slot] >= h[H_CAPACITY + slot]:
                        refuse(G, A, R, rank, slot, node)
                        continue
                    R[rank, R_USED + slot] += 1
                if of == COMPUTE:
                    account(G, R, rank, now)
                    R[rank, R_COMPUTING] += 1
                    if slot == 2:
                        R[rank, R_COMPUTE_SUM] += lg[h[H_DURATIONS] + nd[row, N_SIZE]]
                        if R[rank, R_COMPUTE_SUM] < 0:
                            fail(G, OVERFLOW, 0, 0, 0, 0)
                elif of == SEND or of == RECV or of == COLLECTIVE:
                    account(G, R, rank, now)
                    R[rank, R_COMMUNICATING] += 1
            elif flags & F_ADMITTED:
                if flags & F_FIFO:
                    fifo = tm[B[block, B_TEMPLATE], T_FIFO] + node
                    needed = np.int64(it[fifo])
                    if needed >= 0:
                        place = C[B[block, B_SLICE], C_FIFO] + 2 * needed
                        if A[place] != 1:
                            A[place] = entry + 2
                            A[place + 1] = now
                            continue
                    freed = np.int64(it[fifo + tm[B[block, B_TEMPLATE], T_COUNT]])
                    if of == SEND and freed >= 0:
                        release_slot(it, tm, G, A, B, R, C, D, NR, h, block, freed, node)
                if kind & DETACHED:
                    # It leaves the block now.
                    B[block, B_LEFT] -= 1
                    if B[block, B_LEFT] == 0:
                        table_row = np.int64(B[block, B_ROW])
                        due(G, block, np.int64(-1), table_row + node if nodes_recorded else np.int64(-1))
            if nodes_recorded:
                NR[B[block, B_ROW] + node, D_START] = now
                # Ranks take turns, each with rows of its own: by its next turn the line behind this one has come.
                prefetch(NR, np.int64(B[block, B_ROW]) + node + 2)
            if of == SEND:
                pair, asked_row, goes = np.int64(-1), np.int64(-1), True
                if h[H_REFS]:
                    # Until the message is delivered.
                    B[block, B_REFS] += 1
                states = state_of(B, block, node)
                if nd[row, N_MEET] < 0:
                    channel = channel_of(nd, it, sl, G, B, R, C, block, node, of == SEND)
                    pair = new_pair(G, P, A, channel, SEND_POSTED)
                    P[pair, P_SEND] = entry
                    P[pair, P_SENDER] = (rank << 32) | (B[block, B_SLICE] + 1)
                    P[pair, P_SENDER_ROW] = B[block, B_ROW] + node
                if h[H_REQUEST] >= 0:
                    # It goes once its receiver has asked for it.
                    if pair >= 0:
                        goes = (P[pair, P_FLAGS] & ASKED) != 0
                        if goes:
                            asked_row = P[pair, P_ROW]
                        else:
                            P[pair, P_FLAGS] |= UNASKED
                    else:
                        goes = (S[states] & ARRIVED) != 0
                        if goes:
                            S[states] &= ~np.uint8(ARRIVED)
                            asked_row = stored_row(NR, messages_recorded, B[block, B_ROW] + node)
                        else:
                            S[states] |= np.uint8(POSTED)
                    if goes:
                        if messages_recorded:
                            MR[asked_row, M_RECEIVER] = B[block, B_ROW] + node
                        if scheduled:
                            # ASTRA-sim's sender receives the request, which takes an event like every receive of
                            # what is there.
                            ended = new_event(G, E, ((pair + 1) << 32) | GO, block, node)
                            number_event(h, G, E, ended, now)
                            push(G, E, K, Q, X, now, ended)
                            goes = False
                if goes:
                    sender, sent_node, sent_pair = block, node, pair
            elif of == RECV:
                pair, arrived = np.int64(-1), False
                if nd[row, N_MEET] < 0:
                    channel = channel_of(nd, it, sl, G, B, R, C, block, node, of == SEND)
                    pair = new_pair(G, P, A, channel, RECEIVE_POSTED)
                    P[pair, P_RECEIVE] = entry
                    if P[pair, P_FLAGS] & HAS_ARRIVED:
                        arrived = True
                        if P[pair, P_SIZE] != size_of(nd, tm, sl, sm, B, block, node):
                            fail(G, UNEQUAL_BYTES, entry, P[pair, P_SEND], P[pair, P_SENDER], P[pair, P_SIZE])
                        if messages_recorded:
                            MR[P[pair, P_ROW], M_RECEIVER] = B[block, B_ROW] + node
                        free_pair(G, P, pair)
                else:
                    states = state_of(B, block, node)
                    if S[states] & ARRIVED:
                        arrived = True
                        S[states] &= ~np.uint8(ARRIVED)
                        if messages_recorded:
                            known = stored_row(NR, messages_recorded, B[block, B_ROW] + node)
                            MR[known, M_RECEIVER] = B[block, B_ROW] + node
                        peer = peer_of(nd, it, sl, B, block, node)
                        nbytes = sent_bytes(nd, it, tm, sl, sm, B, block, node, peer)
                        if nbytes != size_of(nd, tm, sl, sm, B, block, node):
                            fail(G, UNEQUAL_BYTES, entry, np.int64(nd[row, N_MEET]), peer, nbytes)
                    else:
                        S[states] |= np.uint8(POSTED)
                if arrived:
                    if scheduled:
                        ended = new_event(G, E, END, block, node)
                        number_event(h, G, E, ended, now)
                        if h[H_REFS]:
                            B[block, B_REFS] += 1
                        push(G, E, K, Q, X, now, ended)
                    else:
                        due(G, block, node, np.int64(-1))
                elif h[H_REQUEST] >= 0:
                    # It asks for its message.
                    carried = new_event(G, E, ((pair + 1) << 32) | (h[H_REQUEST] << 5) | ASKS, block, node)
                    number_event(h, G, E, carried, now)
                    route = set_out(h, nd, it, lg, sl, R, B, E, pairs, carried, block, node, now)
                    hops = hops_of(h, it, route)
                    G[G_SENT] += 1
                    G[G_HOPS] += hops
                    if messages_recorded:
                        peer = rank_at(it, B, block, peer_of(nd, it, sl, B, block, node))
                        E[carried, E_ROW] = record_message(
                            lg, h, nd, G, B, MR, block, node, h[H_REQUEST], peer, hops, now
                        )
            elif of == COMPUTE or of == MEMORY:
                end = now + lg[h[H_DURATIONS] + nd[row, N_SIZE]]
                if of == MEMORY and h[H_SERVERS]:
                    server = h[H_RANKS] + R[rank, R_SERVER]
                    end = max(R[server, R_ACCOUNTED], now) + lg[h[H_DURATIONS] + nd[row, N_SIZE]]
                    R[server, R_ACCOUNTED] = end
                if end < now:
                    fail(G, OVERFLOW, 0, 0, 0, 0)
                elif end == now:
                    due(G, block, node, np.int64(-1))
                else:
                    ended = new_event(G, E, END, block, node)
                    if scheduled:
                        E[ended, E_WHAT] = DUE
                        G[G_OP] += 1
                        due_together(G, E, R, ended, rank, end, now)
                    else:
                        number_event(h, G, E, ended, now)
                    if h[H_REFS]:
                        B[block, B_REFS] += 1
                    push(G, E, K, Q, X, end, ended)
            elif of == COLLECTIVE:
                instance = np.int64(nd[row, N_SIZE])
                if ca[instance, I_PLANNED]:
                    begin_streams(h, it, lg, tm, sl, ca, sm, G, B, A, S, R, C, NR, rank, instance, node, now)
                else:
                    s = ca[instance, I_FIRST]
                    position = place_in(it, ca, instance, rank)
                    parent_row = B[block, B_ROW] + node
                    # A plain 0 has a type of its own, for which all would be compiled once more.
                    run = np.int64(0)
                    made = splice(
                        it, lg, tm, sl, sm, G, B, A, S, R, C, NR, s, position, rank, node, run, parent_row, now
                    )
                    if made < 0:
                        leave_slice(sl, G, A, C, s, now)
                        due(G, block, node, np.int64(-1))
            else:
                due(G, block, node, np.int64(-1))
            continue
        if G[G_RANK] >= 0:
            # -- a wave has been issued -----------------------------------------------------------------------
            rank = plain(G[G_RANK])
            if R[rank, R_COUNT] == 0:
                R[rank, R_AWAKE] = 0
                G[G_RANK] = -1
                if G[G_OP] + G[G_HOPS] > h[H_MAX_EVENTS]:
                    fail(G, TOO_MANY_EVENTS, 0, 0, 0, 0)
            elif R[rank, R_COUNT] > W.shape[1]:
                return
            else:
                make_wave(G, A, B, R, W, rank)
            continue
        if scheduled:
            G[G_RANK] = next_woken(h, G, D, R)
            if G[G_RANK] >= 0:
                continue
        e = take_event(G, E)
        if e >= 0:
            # -- an event is taken ----------------------------------------------------------------------------
            what = E[e, E_WHAT]
            of = what & 7
            block, node = upper(E[e, E_NODE]), E[e, E_NODE] & NODE
            if scheduled:
                G[G_TAKEN_1] = E[e, E_KEY_1]
                G[G_TAKEN_2] = E[e, E_KEY_2]
            if of == HOP or of == ENTER:
                carried = e
                continue
            if of == DELIVER:
                if messages_recorded:
                    MR[E[e, E_ROW], M_DELIVERED] = now
                pair, size = (what >> 32) - 1, (what >> 5) & SIZE
                message_row = E[e, E_ROW]
                give_row(G, E, G_EVENT_FREE, E_NEXT, e)
                if what & ASKS:
                    if pair >= 0:
                        if P[pair, P_FLAGS] & UNASKED:
                            P[pair, P_FLAGS] &= ~UNASKED
                            sender, sent_node = P[pair, P_SEND] >> 32, P[pair, P_SEND] & NODE
                        else:
                            P[pair, P_FLAGS] |= ASKED
                            P[pair, P_ROW] = message_row
                    else:
                        other = partner_block(nd, it, lg, tm, sl, sm, G, B, A, S, C, block, node)
                        meet = np.int64(nd[B[block, B_FIRST] + node, N_MEET])
                        states = state_of(B, other, meet)
                        if S[states] & POSTED:
                            S[states] &= ~np.uint8(POSTED)
                            sender, sent_node = other, meet
                        else:
                            S[states] |= np.uint8(ARRIVED)
                            if messages_recorded:
                                NR[B[other, B_ROW] + meet, D_ENDED] = -2 - message_row
                    sent_pair = pair
                    if sender >= 0 and messages_recorded:
                        MR[message_row, M_RECEIVER] = B[sender, B_ROW] + sent_node
                    continue
                sender_row = B[block, B_ROW] + node
                if pair >= 0:
                    if P[pair, P_FLAGS] & RECEIVE_POSTED:
                        other, meet = P[pair, P_RECEIVE] >> 32, P[pair, P_RECEIVE] & NODE
                        if size_of(nd, tm, sl, sm, B, other, meet) != size:
                            fail(G, UNEQUAL_BYTES, P[pair, P_RECEIVE], P[pair, P_SEND], P[pair, P_SENDER], size)
                        if messages_recorded:
                            MR[message_row, M_RECEIVER] = B[other, B_ROW] + meet
                        due(G, other, meet, sender_row)
                        free_pair(G, P, pair)
                    else:
                        P[pair, P_FLAGS] |= HAS_ARRIVED
                        P[pair, P_SIZE] = size
                        P[pair, P_ROW] = message_row
                else:
                    other = partner_block(nd, it, lg, tm, sl, sm, G, B, A, S, C, block, node)
                    meet = np.int64(nd[B[block, B_FIRST] + node, N_MEET])
                    states = state_of(B, other, meet)
                    if S[states] & POSTED:
                        S[states] &= ~np.uint8(POSTED)
                        if size_of(nd, tm, sl, sm, B, other, meet) != size:
                            peer = peer_of(nd, it, sl, B, other, meet)
                            fail(G, UNEQUAL_BYTES, (other << 32) | meet, node, peer, size)
                        if messages_recorded:
                            MR[message_row, M_RECEIVER] = B[other, B_ROW] + meet
                        due(G, other, meet, sender_row)
                    else:
                        S[states] |= np.uint8(ARRIVED)
                        if messages_recorded:
                            NR[B[other, B_ROW] + meet, D_ENDED] = -2 - message_row
                if not injected:
                    due(G, block, node, np.int64(-1))
                if h[H_REFS]:
                    drop(tm, G, B, A, block)
                continue
            if of == FREED:
                link = E[e, E_NODE]
                give_row(G, E, G_EVENT_FREE, E_NEXT, e)
                carried = L[link, L_LINE]
                L[link, L_LINE] = E[carried, E_NEXT]
                E[carried, E_WHAT] = (E[carried, E_WHAT] & ~7) | FREED
                continue
            if of == BEGIN:
                begin_rank(it, tm, h, G, A, B, R, D, node)
            elif of == GO:
                sender, sent_node, sent_pair = block, node, (what >> 32) - 1
            else:
                if of == DUE:
                    forget_due(E, R, B[block, B_RANK], e)
                due(G, block, node, np.int64(-1))
                if h[H_REFS]:
                    drop(tm, G, B, A, block)
            give_row(G, E, G_EVENT_FREE, E_NEXT, e)
            continue
        rank = next_woken(h, G, D, R)
        if rank >= 0:
            G[G_RANK] = rank
            continue
        if G[G_HEAP] == 0:
            G[G_STATUS] = FINISHED
            return
        if h[H_MAX_TIME] >= 0 and Q[0, 0] > h[H_MAX_TIME]:
            G[G_STATUS] = TOO_LATE
            return
        advance_time(G, E, K, Q, X)
