"""What nodes wait for: release them when that is nothing any more."""

import numpy as np

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import blocks, queue, records, table


@inlined
def release(state, block, node, cause):
    """Make a node ready; `cause`: row of the node that released it."""
    row = table.blocks(state, block)
    queue.make_ready(state, np.int64(row.rank), block, node)
    if state.record_nodes:
        table.node_rows(state, row.row + node).released = cause


@inlined
def count_of(state, block, node):
    """Return the place of the count of a node with many dependencies."""
    row = table.blocks(state, block)
    step = np.int64(row.step)
    counts = row.words + ((table.templates(state, row.template).nodes * step + 7) >> 3)
    return counts + table.nodes(state, row.first + node).count * step + row.offset


@inlined
def lose_need(state, block, node, cause):
    """Decrement the needs of a node; at zero it is ready."""
    own = blocks.state_of(state, block, node)
    left = np.int64(table.states(state)[own])
    if left & records.NEEDS == records.MOST_NEEDS:
        place = count_of(state, block, node)
        table.arena(state)[place] -= 1
        ready = table.arena(state)[place] == 0
    else:
        table.states(state)[own] = left - 1
        ready = (left & records.NEEDS) == 1
    if ready:
        release(state, block, node, cause)


@lean
def gain_need(state, block, node):
    """Increment the needs of a node that is not ready."""
    own = blocks.state_of(state, block, node)
    if np.int64(table.states(state)[own]) & records.NEEDS == records.MOST_NEEDS:
        table.arena(state)[count_of(state, block, node)] += 1
    else:
        table.states(state)[own] += np.uint8(1)
