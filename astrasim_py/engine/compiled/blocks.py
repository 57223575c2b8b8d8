"""Blocks: a rank's instances of templates. Open and leave calls, splice blocks, find peers."""

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import queue, records, table


@inlined
def workload_block(rank):
    """The block of a rank's workload. Workloads have the first blocks, rank after rank (`kernel.begin_run`)."""
    return rank


@inlined
def workload_row(state, rank):
    return table.blocks(state, workload_block(rank))


@lean
def new_block(state, number, rank, words):
    """Make a block of a template for a rank; the caller sets its call and position."""
    block = np.int64(queue.take_row(state, table.blocks, records.BLOCKS))
    template, row = table.templates(state, number), table.blocks(state, block)
    row.rank = rank
    row.template = number
    row.first = template.first
    row.words = words
    row.left = template.nodes
    row.parent = -1
    row.call = -1
    row.position = 0
    row.ranks = 0
    row.row = -1
    row.references = 0
    row.run = 0
    row.flags = template.flags
    row.offset = 0
    row.step = 1
    return block


@lean
def new_states(state, number):
    """Allocate a block's words (node states and counters); returns their place."""
    template = table.templates(state, number)
    words = queue.take(state, template.words)
    fill_states(state, number, words, np.int64(1))
    if template.flags & records.HASH_SET:
        table.arena(state)[words + template.words - 1] = template.buckets
    if template.flags & records.COUNTS:
        base = words + template.counter_word
        for c in range(template.counters):
            first = table.waiting(state, template.waiting + 4 * c)
            counter = table.counters(state, base + 2 * c)
            counter.count = 0
            counter.waiting = first.count
            for i in range(3 * first.count):
                table.arena(state)[base + first.word + i] = table.longs(state)[first.first + i]
    return words


@lean
def fill_states(state, number, words, blocks):
    """Set the states of the nodes of `blocks` interleaved blocks, and the counts of those with many dependencies."""
    template = table.templates(state, number)
    for i in range(template.nodes):
        for k in range(i * blocks, (i + 1) * blocks):
            table.states(state)[8 * words + k] = table.small(state)[template.first + i]
    counts = words + ((template.nodes * blocks + 7) >> 3)
    for i in range(template.count_count):
        for k in range(i * blocks, (i + 1) * blocks):
            table.arena(state)[counts + k] = table.ints(state)[template.counts + i]


@inlined
def state_of(state, block, node):
    """Return the state byte of a node."""
    row = table.blocks(state, block)
    return (np.int64(row.words) << 3) + row.offset + node * np.int64(row.step)


@inlined
def meets(state, block, node, other, own):
    """Whether the other side of a message has arrived (clears flag `other`); else sets flag `own`."""
    at = state_of(state, block, node)
    came = table.states(state)[at] & other != 0
    if came:
        table.states(state)[at] &= ~np.uint8(other)
    else:
        table.states(state)[at] |= np.uint8(own)
    return came


@lean
def free_block(state, block):
    """Free a block that has ended and has no references left."""
    row = table.blocks(state, block)
    if not row.flags & records.JOINT_BLOCK:
        queue.give(state, np.int64(row.words), table.templates(state, row.template).words)
    row.rank = -1
    queue.give_row(state, table.blocks, records.BLOCKS, block)


@lean
def release_block(state, block):
    """Drop one reference to a block. Blocks of workloads are never freed."""
    row = table.blocks(state, block)
    row.references -= 1
    if row.references == 0 and row.left == 0 and row.call >= 0:
        free_block(state, block)


@lean
def open_call(state, number, rank):
    """Open a call, when its first member arrives; it begins with the first rank that is not a switch."""
    call, now_at = table.calls(state, number), table.progress(state, number)
    if now_at.start < 0 and rank < state.npu_ranks:
        now_at.start = state.now
    if now_at.left > 0:
        return
    now_at.left = call.members
    now_at.ranks = call.members - call.switches
    now_at.place = queue.take_zeros(state, call.words)
    if call.flags & records.JOINT:
        fill_states(state, call.templates, now_at.place + call.states, call.members)


@lean
def leave_call(state, number, rank):
    """Record that a member has finished a call; it ends with the last rank that is not a switch."""
    now_at = table.progress(state, number)
    now_at.left -= 1
    if rank < state.npu_ranks:
        now_at.ranks -= 1
        if now_at.ranks == 0:
            now_at.end = state.now
    if now_at.left == 0:
        queue.give(state, now_at.place, table.calls(state, number).words)


@inlined
def template_of(state, number, position):
    call = table.calls(state, number)
    if call.flags & records.ROTATED:
        return call.templates
    return np.int64(table.ints(state)[call.templates + position])


@inlined
def block_at(state, call, position):
    """Return the block of a member of a call; its rank or the first message to it makes the block."""
    place = table.progress(state, call).place + position
    if table.arena(state)[place] == 0:
        table.arena(state)[place] = make_block(state, call, position) + 1
    return table.arena(state)[place] - 1


@lean
def make_block(state, number, position):
    call, template = table.calls(state, number), template_of(state, number, position)
    joint = call.flags & records.JOINT
    words = table.progress(state, number).place + call.states if joint else new_states(state, template)
    block = new_block(state, template, np.int64(table.ints(state)[call.ranks + position]), words)
    row = table.blocks(state, block)
    if joint:
        row.flags |= records.JOINT_BLOCK
        row.offset = position
        row.step = call.members
    row.call = number
    row.position = position
    row.ranks = call.ranks
    if call.rows >= 0 and state.record_nodes:
        row.row = table.longs(state)[call.rows + position]
    if call.flags & records.ROTATED:
        row.flags |= records.ROTATED_BLOCK
        if call.extra_bytes >= 0:
            row.flags |= records.UNEVEN_BLOCK
    return block


@lean
def splice(state, call, position, rank, node, run, cause):
    """Begin a rank's part of a call, for `node` of its workload; returns -1 if there is nothing to do.

    `run`: run of the chunk (0: none). `cause`: row of the node that released it.
    """
    open_call(state, call, rank)
    if table.calls(state, call).flags & records.EMPTY:
        return queue.NONE
    template = table.templates(state, template_of(state, call, position))
    if template.nodes == 0:
        return queue.NONE
    block = block_at(state, call, position)
    row = table.blocks(state, block)
    row.parent = node
    row.run = run
    row.flags |= records.SPLICED
    for i in range(template.root_count):
        root = np.int64(table.ints(state)[template.roots + i])
        if np.int64(table.states(state)[state_of(state, block, root)]) & records.NEEDS:
            # A gate holds it.
            continue
        queue.make_ready(state, rank, block, root)
        if state.record_nodes:
            table.node_rows(state, row.row + root).released = cause
    return block


@lean
def position_in(state, number, rank):
    instance = table.instances(state, number)
    low, high = np.int64(0), instance.members
    while low < high:
        middle = (low + high) >> 1
        if table.ints(state)[instance.sorted + middle] < rank:
            low = middle + 1
        else:
            high = middle
    return np.int64(table.ints(state)[instance.sorted + instance.members + low])


@lean
def rotated_peer(state, number, position, delta):
    """Add a delta to a position of a rotated call, digit by digit."""
    dims = table.calls(state, number).dims
    n = np.int64(table.ints(state)[dims])
    digits = dims + 1 + n
    peer, weight = np.int64(0), np.int64(1)
    for d in range(n):
        size = np.int64(table.ints(state)[dims + 1 + d])
        digit = np.int64(table.ints(state)[digits + position * n + d]) + table.ints(state)[digits + delta * n + d]
        if digit >= size:
            digit -= size
        peer += weight * digit
        weight *= size
    return peer


@inlined
def peer_of(state, block, node):
    """Return the position of a node's peer (workload: the peer's rank in the job)."""
    row = table.blocks(state, block)
    peer = np.int64(table.nodes(state, np.int64(row.first) + node).peer)
    if row.flags & records.ROTATED_BLOCK:
        return rotated_peer(state, np.int64(row.call), np.int64(row.position), peer)
    return peer


@inlined
def rank_at(state, block, position):
    """Return the rank at a position of a block's group."""
    row = table.blocks(state, block)
    if row.call < 0:
        return row.ranks + position
    return np.int64(table.ints(state)[row.ranks + position])


@lean
def partner_block(state, block, node):
    """Return the block of a node's peer in the same communicator."""
    peer, row = peer_of(state, block, node), table.blocks(state, block)
    if row.call < 0:
        return row.ranks + peer
    return block_at(state, np.int64(row.call), peer)


@inlined
def size_of(state, block, node):
    """Return the size index of a node."""
    row = table.blocks(state, block)
    size = np.int64(table.nodes(state, np.int64(row.first) + node).size)
    if row.flags & records.UNEVEN_BLOCK:
        count = table.templates(state, row.template).nodes
        size += table.small(state)[table.calls(state, row.call).extra_bytes + row.position * count + node]
    return size


@lean
def sent_size(state, block, node):
    """Return the size index of the only message that a receive can match."""
    row = table.blocks(state, block)
    first, partner = np.int64(row.first), np.int64(table.nodes(state, np.int64(row.first) + node).partner)
    if not row.flags & records.ROTATED_BLOCK:
        peer = peer_of(state, block, node)
        if row.call < 0:
            first = np.int64(table.blocks(state, row.ranks + peer).first)
        else:
            first = table.templates(state, template_of(state, np.int64(row.call), peer)).first
    size = np.int64(table.nodes(state, first + partner).size)
    if row.flags & records.UNEVEN_BLOCK:
        place = peer_of(state, block, node) * table.templates(state, row.template).nodes + partner
        size += table.small(state)[table.calls(state, row.call).extra_bytes + place]
    return size


@lean
def channel_of(state, block, node, sends):
    """Return the place of a node's channel, for nodes that several messages can match."""
    row = table.blocks(state, block)
    channel = ~np.int64(table.nodes(state, np.int64(row.first) + node).partner)
    if row.call < 0:
        return state.channels + 2 * (table.ranks(state, row.rank).channels + channel)
    call = table.calls(state, row.call)
    if call.flags & records.SHARED:
        return state.channels + 2 * channel
    if call.flags & records.ROTATED:
        sender = np.int64(row.position) if sends else peer_of(state, block, node)
        channel += sender * (call.channels // call.members)
    return table.progress(state, row.call).place + call.members + 2 * channel


@lean
def new_match(state, place, flags):
    """Append a match to a channel; its send or its receive is posted now."""
    channel = table.channels(state, place)
    if channel.first:
        number = channel.first - 1
        match = table.matches(state, number)
        if not match.flags & flags:
            match.flags |= flags
            channel.first = match.next + 1
            return number
    number = np.int64(queue.take_row(state, table.matches, records.MATCHES))
    match = table.matches(state, number)
    match.flags = flags
    match.next = -1
    match.receive = -1
    match.row = -1
    if channel.first:
        table.matches(state, channel.last - 1).next = number
    else:
        channel.first = number + 1
    channel.last = number + 1
    return number
