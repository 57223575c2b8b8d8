"""Queue pairs: messages between two NPUs take them in turn."""

from astrasim_py.core.jit import lean
from astrasim_py.engine.compiled import table


@lean
def next_queue_pair(state, first):
    """Return the route number of the next message of two NPUs; their queue pairs take turns from the first."""
    sent = table.pairs_sent(state)[first]
    table.pairs_sent(state)[first] = sent + 1
    return first + sent % state.qps
