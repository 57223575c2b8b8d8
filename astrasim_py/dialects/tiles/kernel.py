"""Gates of ranks that use collectives in tiles: an optional part of the kernel."""

import numpy as np

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import blocks, queue, records, table
from astrasim_py.engine.compiled.needs import gain_need, lose_need


@lean
def tiles_of(state, rank, node):
    """Return the place of the TILES of a node of a rank's workload, 0 for none."""
    gates = table.ranks(state, rank).gates
    return np.int64(table.ints(state)[gates + node]) if gates >= 0 else np.int64(0)


@lean
def target(state, rank, gate):
    """Return the place of the collective and the node that a gate holds."""
    row = table.ranks(state, rank)
    first = row.gates + table.templates(state, row.template).nodes
    return first + 1 + np.int64(table.ints(state)[first]) + 2 * gate


@lean
def make_gates(state, rank):
    """Close the gates of a rank."""
    row = table.ranks(state, rank)
    if row.gates < 0:
        return
    first = row.gates + table.templates(state, row.template).nodes
    number = np.int64(table.ints(state)[first])
    row.closed = queue.take(state, number)
    for gate in range(number):
        table.arena(state)[row.closed + gate] = table.ints(state)[first + 1 + gate]
    blocks.workload_row(state, rank).flags |= records.TILED


@lean
def open_gates(state, rank, first, count, cause):
    """Something has happened that gates wait for; those that wait for nothing else release their nodes."""
    for i in range(first, first + count):
        gate = np.int64(table.ints(state)[i])
        place = table.ranks(state, rank).closed + gate
        table.arena(state)[place] -= 1
        if table.arena(state)[place] == 0:
            held = target(state, rank, gate)
            collective = np.int64(table.ints(state)[held])
            block = blocks.workload_block(rank) if collective < 0 else live_block(state, rank, collective)
            if block >= 0:
                lose_need(state, block, np.int64(table.ints(state)[held + 1]), cause)


@lean
def live_block(state, rank, node):
    """Return the block of a rank in the call of a node of its workload, -1 before the rank has begun it."""
    at = table.nodes(state, blocks.workload_row(state, rank).first + node)
    number = np.int64(table.ints(state)[table.ranks(state, rank).instances + at.size])
    call = table.instances(state, number).first
    if table.progress(state, call).left == 0:
        return queue.NONE
    block = table.arena(state)[table.progress(state, call).place + blocks.position_in(state, number, rank)] - 1
    if block < 0 or not table.blocks(state, block).flags & records.SPLICED:
        return queue.NONE
    return block


@lean
def hold(state, rank, node, call, position):
    """Hold nodes of a call that is about to begin, by the closed gates of the workload's node."""
    place = tiles_of(state, rank, node)
    if place == 0 or table.tiles(state, place).held_count == 0:
        return
    blocks.open_call(state, call, rank)
    block, row = blocks.block_at(state, call, position), table.tiles(state, place)
    for i in range(np.int64(row.held), np.int64(row.held) + row.held_count):
        gate = np.int64(table.ints(state)[i])
        if table.arena(state)[table.ranks(state, rank).closed + gate] > 0:
            gain_need(state, block, np.int64(table.ints(state)[target(state, rank, gate) + 1]))


@lean
def begun(state, rank, node, block):
    """A call has begun for a node of the workload."""
    place = tiles_of(state, rank, node)
    if place == 0:
        return
    row = table.tiles(state, place)
    if row.step_count:
        table.blocks(state, block).flags |= records.TILED
    cause = blocks.workload_row(state, rank).row + node
    open_gates(state, rank, np.int64(row.begins), np.int64(row.begin_count), cause)


@lean
def ended(state, block, node):
    """A node has ended, of a workload or of a call."""
    row = table.blocks(state, block)
    if not row.flags & records.TILED:
        return
    rank, cause = np.int64(row.rank), row.row + node
    place = tiles_of(state, rank, node if row.call < 0 else np.int64(row.parent))
    if place == 0:
        return
    tiles = table.tiles(state, place)
    first, count = np.int64(tiles.ends), np.int64(tiles.end_count)
    if row.call >= 0:
        if node >= tiles.step_count:
            return
        first = np.int64(table.ints(state)[tiles.steps + node])
        count = np.int64(table.ints(state)[tiles.steps + node + 1]) - first
    open_gates(state, rank, first, count, cause)
