"""Blocks, slices, channels and counters: what is instantiated from templates while the kernel runs."""

# ruff: noqa: F403, F405

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled.layout import *
from astrasim_py.engine.compiled.pools import give, give_row, make_ready, plain, take, take_row

NODE = np.int64(0xFFFFFFFF)


@lean
def new_block(tm, G, B, template, rank, words):
    """A block of a template for a rank; its caller says where it belongs."""
    block = take_row(G, B, G_BLOCK_TOP, G_BLOCK_FREE, B_NEXT)
    B[block, B_RANK] = rank
    B[block, B_TEMPLATE] = template
    B[block, B_FIRST] = tm[template, T_FIRST]
    B[block, B_WORDS] = words
    B[block, B_LEFT] = tm[template, T_COUNT]
    B[block, B_PARENT] = -1
    B[block, B_SLICE] = -1
    B[block, B_POSITION] = 0
    B[block, B_RANKS] = 0
    B[block, B_ROW] = -1
    B[block, B_REFS] = 0
    B[block, B_SPLICED] = 0
    B[block, B_RUN] = 0
    B[block, B_FLAGS] = tm[template, T_FLAGS]
    B[block, B_OFFSET] = 0
    B[block, B_STEP] = 1
    return block


@lean
def new_states(it, lg, tm, sm, G, A, S, template):
    """What a block of a template keeps of its nodes, and its counters; returns the place."""
    words = take(G, A, tm[template, T_WORDS])
    first, count = tm[template, T_FIRST], tm[template, T_COUNT]
    base = words << 3
    for i in range(count):
        S[base + i] = sm[first + i]
    extras = words + ((count + 7) >> 3)
    for i in range(tm[template, T_NEXTRAS]):
        A[extras + i] = it[tm[template, T_EXTRAS] + i]
    if tm[template, T_FLAGS] & F_COUNTING:
        base = words + tm[template, T_COUNTED]
        counters = tm[template, T_COUNTERS]
        for c in range(counters):
            A[base + 2 * c] = 0
            waiting = tm[template, T_WAITING] + 4 * c
            number = lg[waiting + 3]
            A[base + 2 * c + 1] = number
            for i in range(2 * number):
                A[base + lg[waiting] + i] = lg[lg[waiting + 2] + i]
    return words


@inlined
def state_of(B, block, node):
    """Place of the state of a node of a block."""
    return (np.int64(B[block, B_WORDS]) << 3) + B[block, B_OFFSET] + node * np.int64(B[block, B_STEP])


@lean
def free_block(tm, G, B, A, block):
    """Give back a block that has ended and that nothing refers to."""
    if not B[block, B_FLAGS] & JOINT_BLOCK:
        give(G, A, np.int64(B[block, B_WORDS]), tm[B[block, B_TEMPLATE], T_WORDS])
    B[block, B_RANK] = -1
    give_row(G, B, G_BLOCK_FREE, B_NEXT, block)


@lean
def drop(tm, G, B, A, block):
    """One reference to a block fewer; those of workloads are kept."""
    B[block, B_REFS] -= 1
    if B[block, B_REFS] == 0 and B[block, B_LEFT] == 0 and B[block, B_SLICE] >= 0:
        free_block(tm, G, B, A, block)


@lean
def open_slice(tm, sl, sm, G, A, S, C, s, now):
    """A slice is begun by whoever comes first."""
    if C[s, C_START] >= 0:
        return
    members = sl[s, S_MEMBERS]
    C[s, C_START] = now
    C[s, C_LEFT] = members
    if not sl[s, S_FLAGS] & F_EMPTY:
        place = take(G, A, members)
        C[s, C_BLOCKS] = place
        for i in range(members):
            A[place + i] = -1
    if sl[s, S_FLAGS] & F_JOINT:
        first, count = tm[sl[s, S_TEMPLATES], T_FIRST], tm[sl[s, S_TEMPLATES], T_COUNT]
        words = (count * members + 7) >> 3
        place = take(G, A, words)
        C[s, C_STATES] = place
        C[s, C_STATE_WORDS] = words
        for i in range(count):
            begin = (place << 3) + i * members
            for k in range(begin, begin + members):
                S[k] = sm[first + i]
    if sl[s, S_CHANNELS]:
        place = take(G, A, 2 * sl[s, S_CHANNELS])
        C[s, C_CHANNELS] = place
        for i in range(2 * sl[s, S_CHANNELS]):
            A[place + i] = 0
    words = 2 * sl[s, S_MESSAGES] + sl[s, S_CONNECTIONS]
    if words:
        place = take(G, A, words)
        C[s, C_FIFO] = place
        for i in range(words):
            A[place + i] = 0


@lean
def leave_slice(sl, G, A, C, s, now):
    """A member is done with a slice."""
    C[s, C_LEFT] -= 1
    if C[s, C_LEFT]:
        return
    C[s, C_END] = now
    if not sl[s, S_FLAGS] & F_EMPTY:
        give(G, A, C[s, C_BLOCKS], sl[s, S_MEMBERS])
    if sl[s, S_FLAGS] & F_JOINT:
        give(G, A, C[s, C_STATES], C[s, C_STATE_WORDS])
    if sl[s, S_CHANNELS]:
        give(G, A, C[s, C_CHANNELS], 2 * sl[s, S_CHANNELS])
    words = 2 * sl[s, S_MESSAGES] + sl[s, S_CONNECTIONS]
    if words:
        give(G, A, C[s, C_FIFO], words)


@inlined
def template_of(it, sl, s, position):
    """Template of a member of a slice."""
    if sl[s, S_FLAGS] & F_ROTATED:
        return sl[s, S_TEMPLATES]
    return np.int64(it[sl[s, S_TEMPLATES] + position])


@inlined
def block_at(it, lg, tm, sl, sm, G, B, A, S, C, s, position):
    """The block of a member of a slice, made by whoever needs it first: its rank, or a message to it."""
    place = C[s, C_BLOCKS] + position
    block = A[place]
    if block < 0:
        block = make_block(it, lg, tm, sl, sm, G, B, A, S, C, s, position)
        A[place] = block
    return plain(block)


@lean
def make_block(it, lg, tm, sl, sm, G, B, A, S, C, s, position):
    """A block of a member of a slice."""
    template = template_of(it, sl, s, position)
    joint = sl[s, S_FLAGS] & F_JOINT
    words = C[s, C_STATES] if joint else new_states(it, lg, tm, sm, G, A, S, template)
    block = new_block(tm, G, B, template, np.int64(it[sl[s, S_RANKS] + position]), words)
    if joint:
        B[block, B_FLAGS] |= JOINT_BLOCK
        B[block, B_OFFSET] = position
        B[block, B_STEP] = sl[s, S_MEMBERS]
    B[block, B_SLICE] = s
    B[block, B_POSITION] = position
    B[block, B_RANKS] = sl[s, S_RANKS]
    if sl[s, S_ROWS] >= 0 and G[G_NODES]:
        B[block, B_ROW] = lg[sl[s, S_ROWS] + position]
    if sl[s, S_FLAGS] & F_ROTATED:
        B[block, B_FLAGS] |= ROTATED_BLOCK
        if sl[s, S_BYTES] >= 0:
            B[block, B_FLAGS] |= UNEVEN_BLOCK
    return block


@lean
def splice(it, lg, tm, sl, sm, G, B, A, S, R, C, NR, s, position, rank, node, run, row, now):
    """A rank begins its part of a slice, for a node of its workload; returns -1 if there is nothing to do."""
    open_slice(tm, sl, sm, G, A, S, C, s, now)
    if sl[s, S_FLAGS] & F_EMPTY:
        return np.int64(-1)
    template = template_of(it, sl, s, position)
    if tm[template, T_COUNT] == 0:
        return np.int64(-1)
    block = block_at(it, lg, tm, sl, sm, G, B, A, S, C, s, position)
    B[block, B_PARENT] = node
    B[block, B_RUN] = run
    B[block, B_SPLICED] = 1
    for i in range(tm[template, T_NROOTS]):
        root = np.int64(it[tm[template, T_ROOTS] + i])
        make_ready(G, A, R, rank, block, root)
        if G[G_NODES]:
            NR[B[block, B_ROW] + root, D_RELEASED] = row
    return block


@lean
def place_in(it, ca, instance, rank):
    """Position of a rank in an instance."""
    low, high = np.int64(0), ca[instance, I_MEMBERS]
    ranks = ca[instance, I_SORTED]
    while low < high:
        middle = (low + high) >> 1
        if it[ranks + middle] < rank:
            low = middle + 1
        else:
            high = middle
    return np.int64(it[ranks + ca[instance, I_MEMBERS] + low])


@lean
def peer_computed(it, sl, s, position, number):
    """Position of the peer of a member of a rotated slice by a delta, digit by digit."""
    dims = sl[s, S_DIMS]
    n = np.int64(it[dims])
    digits = dims + 1 + n + number * n
    peer, weight = np.int64(0), np.int64(1)
    for d in range(n):
        size = np.int64(it[dims + 1 + d])
        digit = position % size + it[digits + d]
        position //= size
        if digit >= size:
            digit -= size
        peer += weight * digit
        weight *= size
    return peer


@inlined
def peer_of(nd, it, sl, B, block, node):
    """Position of the rank that a node of a block sends to or receives from (of a workload: its rank in the job)."""
    peer = np.int64(nd[B[block, B_FIRST] + node, N_PEER])
    if B[block, B_FLAGS] & ROTATED_BLOCK:
        s, position = np.int64(B[block, B_SLICE]), np.int64(B[block, B_POSITION])
        if sl[s, S_PEERS] >= 0:
            return np.int64(it[sl[s, S_PEERS] + position * sl[s, S_DELTAS] + peer])
        return peer_computed(it, sl, s, position, peer)
    return peer


@inlined
def rank_at(it, B, block, position):
    """Rank of a member of the group of a block."""
    if B[block, B_SLICE] < 0:
        return plain(B[block, B_RANKS] + position)
    return plain(it[B[block, B_RANKS] + position])


@inlined
def partner_block(nd, it, lg, tm, sl, sm, G, B, A, S, C, block, node):
    """The block of the rank that a node sends to or receives from, in the same space."""
    peer = peer_of(nd, it, sl, B, block, node)
    if B[block, B_SLICE] < 0:
        return plain(B[block, B_RANKS] + peer)
    return block_at(it, lg, tm, sl, sm, G, B, A, S, C, np.int64(B[block, B_SLICE]), peer)


@inlined
def size_of(nd, tm, sl, sm, B, block, node):
    """Index of the bytes of a node of a block."""
    size = np.int64(nd[B[block, B_FIRST] + node, N_SIZE])
    if B[block, B_FLAGS] & UNEVEN_BLOCK:
        s = np.int64(B[block, B_SLICE])
        size += sm[sl[s, S_BYTES] + B[block, B_POSITION] * tm[B[block, B_TEMPLATE], T_COUNT] + node]
    return size


@lean
def channel_of(nd, it, sl, G, B, R, C, block, node, sends):
    """Place in the arena of the channel of a node that shares one with others."""
    channel = ~np.int64(nd[B[block, B_FIRST] + node, N_MEET])
    s = np.int64(B[block, B_SLICE])
    if s < 0:
        return G[G_CHANNELS] + 2 * (R[B[block, B_RANK], R_CHANNELS] + channel)
    if sl[s, S_FLAGS] & F_SHARED:
        return G[G_CHANNELS] + 2 * channel
    if sl[s, S_FLAGS] & F_ROTATED:
        sender = np.int64(B[block, B_POSITION]) if sends else peer_of(nd, it, sl, B, block, node)
        channel += sender * (sl[s, S_CHANNELS] // sl[s, S_MEMBERS])
    return C[s, C_CHANNELS] + 2 * channel


@lean
def new_pair(G, P, A, channel, flags):
    """The next send and receive of a channel that meet; one of them is posted now."""
    if A[channel]:
        pair = A[channel] - 1
        if not P[pair, P_FLAGS] & flags:
            P[pair, P_FLAGS] |= flags
            A[channel] = P[pair, P_NEXT] + 1
            return pair
    pair = take_row(G, P, G_PAIR_TOP, G_PAIR_FREE, P_NEXT)
    P[pair, P_FLAGS] = flags
    P[pair, P_NEXT] = -1
    P[pair, P_RECEIVE] = -1
    P[pair, P_ROW] = -1
    if A[channel]:
        P[A[channel + 1] - 1, P_NEXT] = pair
    else:
        A[channel] = pair + 1
    A[channel + 1] = pair + 1
    return pair


@lean
def free_pair(G, P, pair):
    """Give back a pair that has met."""
    P[pair, P_FLAGS] = -1
    give_row(G, P, G_PAIR_FREE, P_NEXT, pair)


@lean
def less(A, a, count, node):
    """Whether the entry of a counter's heap at `a` comes before (count, node)."""
    return A[a] < count or (A[a] == count and A[a + 1] < node)


@lean
def wait_for_count(A, heap, number, count, node):
    """Add a node to a counter's heap of (count, node)."""
    hole = np.int64(number)
    while hole > 0:
        parent = (hole - 1) >> 1
        if less(A, heap + 2 * parent, count, node):
            break
        A[heap + 2 * hole] = A[heap + 2 * parent]
        A[heap + 2 * hole + 1] = A[heap + 2 * parent + 1]
        hole = parent
    A[heap + 2 * hole] = count
    A[heap + 2 * hole + 1] = node


@lean
def counted_to(A, heap, number):
    """Take the first node of a counter's heap of (count, node)."""
    node = A[heap + 1]
    last = heap + 2 * (number - 1)
    count, moved = A[last], A[last + 1]
    hole, number = np.int64(0), number - 1
    while True:
        child = 2 * hole + 1
        if child >= number:
            break
        if child + 1 < number and less(A, heap + 2 * (child + 1), A[heap + 2 * child], A[heap + 2 * child + 1]):
            child += 1
        if not less(A, heap + 2 * child, count, moved):
            break
        A[heap + 2 * hole] = A[heap + 2 * child]
        A[heap + 2 * hole + 1] = A[heap + 2 * child + 1]
        hole = child
    A[heap + 2 * hole] = count
    A[heap + 2 * hole + 1] = moved
    return node
