"""The compiled engine: runs a Plan with the kernel and returns its Records, those of the SimPy engine."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from astrasim_py.core import jit
from astrasim_py.core.errors import SimulationError
from astrasim_py.core.records import HOP_COLUMNS, MESSAGE_COLUMNS, Outcome, Records, Table
from astrasim_py.engine.compiled import layout as at
from astrasim_py.engine.compiled.image import image_of
from astrasim_py.engine.compiled.run import State
from astrasim_py.engine.compiled.waiting import Waiting
from astrasim_py.engine.recorder import LinkTotals, make_records, node_table, unequal_bytes, used_links
from astrasim_py.engine.stuck import explain_stuck, ranks_left
from astrasim_py.system.plan import Plan


def run(plan: Plan, level: str) -> Records:
    """Run a plan and record at `level`.

    Raises
    ------
    SimulationError
        A matched send and receive of unequal bytes, or figures beyond 63 bits.
    UsageError
        A network model of the user's own.
    """
    # With the kernel comes numba: neither is part of the run.
    import_module("astrasim_py.engine.compiled.kernel")
    begin = jit.cpu_s()
    state = _run(plan, level)
    outcome = _outcome(plan, state, level)
    if level == "messages" or outcome.status != "done":
        _released_together(state)
    return _records(plan, state, level, outcome, begin)


def _run(plan: Plan, level: str) -> State:
    recorded = level in ("nodes", "messages")
    image = image_of(plan, rows=recorded)
    rows = plan.row_count if recorded else 0
    state = State(image, nodes=rows, messages=level == "messages", counting=level != "summary")
    state.run()
    if state.status == at.OVERFLOW:
        raise OverflowError
    if state.status == at.UNEQUAL_BYTES:
        raise _unequal(plan, state)
    return state


def _unequal(plan: Plan, state: State) -> SimulationError:
    """The error of a send and a receive of unequal bytes."""
    entry, sent, who, size = (int(v) for v in state.globals[at.G_ERROR : at.G_ERROR + 4])
    block, node = state.blocks[entry >> 32], entry & 0xFFFFFFFF
    index = int(block[at.B_SLICE])
    # A block that has just done its last node is free, and knows no rank.
    rank = entry >> 32 if index < 0 else plan.calls[index].members[int(block[at.B_POSITION])]
    if state.image.node[block[at.B_FIRST] + node, at.N_MEET] < 0:
        sender, send_slice, send = who >> 32, (who & 0xFFFFFFFF) - 1, sent & 0xFFFFFFFF
    else:
        send_slice, send = index, sent
        sender = int(block[at.B_RANKS]) + who if index < 0 else plan.calls[index].members[who]
    nbytes = int(state.image.longs[state.image.head[at.H_SIZES] + size])
    return unequal_bytes(plan, (sender, send_slice, send), nbytes, (rank, index, node))


def _outcome(plan: Plan, state: State, level: str) -> Outcome:
    """How the run has ended."""
    found = Waiting(plan, state)
    limits = plan.problem.limits
    if state.status in (at.TOO_MANY_EVENTS, at.TOO_LATE):
        cause = f"more than {limits.max_events} events (--max-events)"
        if state.status == at.TOO_LATE:
            cause = f"simulated time went beyond {limits.max_sim_time_ps} ps (--max-sim-time)"
        progress = found.progress()
        return Outcome(status="limit", cause=cause, unfinished=sum(progress), unfinished_ranks=ranks_left(progress))
    progress = found.progress()
    if not any(progress) and not found.anything_unreceived():
        return Outcome()
    if level not in ("nodes", "messages"):
        # Since when a node waits is known where nodes are recorded.
        found = Waiting(plan, _run(plan, "nodes"))
    return explain_stuck(
        plan,
        progress,
        found.posted(),
        found.unreceived(),
        sum(progress),
        found.held(),
        unasked=found.unasked(),
        uncounted=found.uncounted(),
        queued=found.queued(),
    )


def _released_together(state: State) -> None:
    """Nodes of blocks that have not ended, and that nothing has released, go with the node that began their block."""
    blocks = state.blocks[: state.globals[at.G_BLOCK_TOP]]
    live = (blocks[:, at.B_RANK] >= 0) & (blocks[:, at.B_LEFT] > 0) & (blocks[:, at.B_SPLICED] > 0)
    for block in np.flatnonzero(live & (blocks[:, at.B_SLICE] >= 0)).tolist():
        first = int(blocks[block, at.B_ROW])
        rows = state.nodes[first : first + int(state.image.tmpl[blocks[block, at.B_TEMPLATE], at.T_COUNT])]
        workload = int(state.blocks[blocks[block, at.B_RANK], at.B_ROW]) + int(blocks[block, at.B_PARENT])
        rows[rows[:, at.D_RELEASED] == -1, at.D_RELEASED] = workload
    # A message that nobody has received has left its row where that of the sender will not come.
    state.nodes[state.nodes[:, at.D_ENDED] < -1, at.D_ENDED] = -1


def _records(plan: Plan, state: State, level: str, outcome: Outcome, begin: float) -> Records:
    n, g = plan.ranks, state.globals
    ranks = state.ranks[:n]
    unfinished = state.blocks[:n, at.B_LEFT] > 0
    finish = np.where(unfinished, ranks[:, at.R_ACCOUNTED], ranks[:, at.R_FINISH])
    exposed = ranks[:, at.R_EXPOSED]
    if plan.problem.semantics.exposed == "finish_minus_compute":
        exposed = finish - ranks[:, at.R_COMPUTE_SUM]
    slices = len(plan.calls)
    spans = np.full((len(plan.instances), 2), -1, dtype=np.int64)
    for instance in plan.instances:
        row = instance.first if instance.whole is not None else slices + instance.index
        spans[instance.index] = state.slices[row, [at.C_START, at.C_END]]
    used = used_links(plan)
    columns = (at.L_BYTES, at.L_BUSY, at.L_MESSAGES, at.L_MOST, at.L_QUEUED)
    links = LinkTotals(used, *(state.links[used, c] for c in columns))
    tables: dict[str, Table] = {}
    if level in ("nodes", "messages"):
        tables["node"] = node_table(plan, *(state.nodes[:, c] for c in range(4)))
    if level == "messages":
        tables["message"] = _messages(plan, state)
        hops = state.hops[: g[at.G_HOP_ROWS]]
        tables["hop"] = Table({name: hops[:, c] for c, name in enumerate(HOP_COLUMNS)})
    return make_records(
        plan,
        level,
        finish=finish,
        compute=ranks[:, at.R_COMPUTE],
        exposed=exposed,
        spans=spans,
        links=links,
        messages=int(g[at.G_SENT]),
        hops=int(g[at.G_HOPS]),
        events=int(g[at.G_OP]),
        outcome=outcome,
        engine="compiled",
        cpu_s=jit.cpu_s() - begin,
        tables=tables,
    )


def _messages(plan: Plan, state: State) -> Table:
    """The message table."""
    rows = state.messages[: state.globals[at.G_MESSAGE_ROWS]]
    instances = np.append(np.array(plan.instance_of, dtype=np.int64), -1)
    tags = state.image.tags
    columns = {
        "instance": instances[rows[:, at.M_SLICE]],
        "src": rows[:, at.M_SRC],
        "dst": rows[:, at.M_DST],
        "tag": tags[rows[:, at.M_NODE]],
        "bytes": rows[:, at.M_SIZE],
        "posted": rows[:, at.M_POSTED],
        "start": rows[:, at.M_START],
        "delivered": rows[:, at.M_DELIVERED],
        "hops": rows[:, at.M_HOPS],
        "queued": rows[:, at.M_QUEUED],
        "send_node": rows[:, at.M_SENDER],
        "recv_node": rows[:, at.M_RECEIVER],
    }
    return Table({name: columns[name] for name in MESSAGE_COLUMNS})
