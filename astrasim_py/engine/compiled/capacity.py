"""Room in the tables of the kernel that grow: what the next steps can take at most, which is said here alone.

The kernel asks for the rows that it needs and returns; `astrasim_py.engine.compiled.state.State.grow` grants what was
asked, and knows no rule of its own.
"""

from astrasim_py.core.jit import inlined, lean
from astrasim_py.engine.compiled import records, table


@inlined
def lacks(state, number, rows):
    """Ask for so many rows of a table; returns whether it has fewer."""
    pool = table.pools(state, number)
    pool.asked = rows
    return rows > pool.room


@lean
def has_room(state):
    """Whether the kernel can go on; sets the number of steps until the next check, while the arena lasts."""
    # A step can double the room for ready nodes of three ranks: of the sender of a message, of its receiver, and of one
    # whose connection gets a free slot by that.
    arena_step = state.arena_step + 6 * state.most_ready
    lack = lacks(state, records.ARENA, state.arena_top + arena_step)
    lack |= lacks(state, records.WAVE, state.most_ready)
    steps = state.steps_left
    for number in (records.EVENTS, records.MATCHES, records.BLOCKS, records.BUCKETS, records.WAITS):
        pool, each = table.pools(state, number), state.step_rows
        if number == records.BLOCKS:
            each = state.block_step
        lack |= lacks(state, number, pool.top + each * state.spare)
        steps = min(steps, (pool.room - pool.top) // each)
    if state.record_messages:
        for number in (records.MESSAGE_ROWS, records.HOP_ROWS):
            top = state.message_row_count if number == records.MESSAGE_ROWS else state.hop_row_count
            lack |= lacks(state, number, top + state.step_rows * state.spare)
            steps = min(steps, (table.pools(state, number).room - top) // state.step_rows)
    if state.status != records.RUNNING or lack or steps <= 0:
        return False
    state.arena_limit = table.pools(state, records.ARENA).room - arena_step
    state.steps_left -= steps
    state.budget = steps - 1
    return True
