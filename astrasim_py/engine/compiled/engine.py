"""The compiled engine: runs a Plan with the kernel; its Records equal those of the SimPy engine."""

from importlib import import_module

import numpy as np

from astrasim_py.core import compiling
from astrasim_py.core.errors import SimulationError
from astrasim_py.core.records import HOP_COLUMNS, MESSAGE_COLUMNS, Outcome, Records, Table
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.build import kernel_input
from astrasim_py.engine.compiled.state import State
from astrasim_py.engine.compiled.unfinished import Unfinished
from astrasim_py.engine.recorder import LINK_TOTALS, make_records, node_table, ranks_left, unequal_bytes, used_links
from astrasim_py.system.plan import Plan


def run(plan: Plan, level: str) -> Records:
    """Run a plan and record at `level`.

    Raises
    ------
    SimulationError
        A matched send and receive of unequal bytes, or figures beyond 63 bits.
    UsageError
        A user-defined network model.
    """
    # Import the kernel and numba before the clock starts.
    import_module("astrasim_py.engine.compiled.kernel")
    begin = compiling.cpu_s()
    state = _run(plan, level)
    outcome = _outcome(plan, state, level)
    if level == "messages" or outcome.status != "done" or outcome.unfinished:
        _released_together(state)
    return _records(plan, state, level, outcome, begin)


def _run(plan: Plan, level: str) -> State:
    recorded = level in ("nodes", "messages")
    rows = plan.row_count if recorded else 0
    given = kernel_input(plan, rows=recorded)
    state = State(given, nodes=rows, messages=level == "messages", counting=level != "summary")
    state.run()
    if state.status == records.OVERFLOW:
        raise OverflowError
    if state.status == records.UNEQUAL_BYTES:
        raise _unequal(plan, state)
    return state


def _unequal(plan: Plan, state: State) -> SimulationError:
    """The error for a send and a receive of unequal bytes."""
    s = state.scalars
    wrong = (int(s[f"wrong_{name}"]) for name in ("receive", "sender", "call", "node", "size"))
    receive, sender, of_sender, node, size = wrong
    block = state.tables["blocks"][receive >> 32]
    call = int(block["call"])
    # A block that has just completed its last node is freed and has no rank.
    rank = receive >> 32 if call < 0 else plan.calls[call].members[int(block["position"])]
    nbytes = int(state.tables["longs"][state.input.constants["nbytes"] + size])
    return unequal_bytes(plan, (sender, of_sender, node), nbytes, (rank, call, receive & 0xFFFFFFFF))


def _outcome(plan: Plan, state: State, level: str) -> Outcome:
    """The outcome of the run."""
    work = Unfinished(plan, state)
    limits = plan.problem.limits
    if state.status in (records.TOO_MANY_EVENTS, records.TOO_LATE):
        cause = f"more than {limits.max_events} events (--max-events)"
        if state.status == records.TOO_LATE:
            cause = f"simulated time went beyond {limits.max_sim_time_ps} ps (--max-sim-time)"
        progress = work.progress()
        return Outcome(status="limit", cause=cause, unfinished=sum(progress), unfinished_ranks=ranks_left(progress))
    progress = work.progress()
    if plan.problem.background and not state.scalars["foreground"]:
        return Outcome(unfinished=sum(progress), unfinished_ranks=ranks_left(progress))
    if not any(progress) and not work.anything_unreceived():
        return Outcome()
    from astrasim_py.engine.compiled.waiting import Waiting
    from astrasim_py.engine.stuck import explain_stuck

    if level not in ("nodes", "messages"):
        # Run again with nodes recorded: waiting times come from the node table.
        state = _run(plan, "nodes")
    return explain_stuck(plan, progress, Waiting(plan, state).waits())


def _released_together(state: State) -> None:
    """In unfinished blocks, set `released` of root nodes to the workload node that began the block."""
    blocks, nodes = state.used("blocks"), state.tables["node_rows"]
    live = (blocks["rank"] >= 0) & (blocks["left"] > 0) & (blocks["flags"] & records.SPLICED > 0)
    for block in blocks[live & (blocks["call"] >= 0)]:
        first = int(block["row"])
        released = nodes["released"][first : first + int(state.tables["templates"]["nodes"][block["template"]])]
        released[released == -1] = int(blocks["row"][block["rank"]]) + int(block["parent"])
    # Clear the message rows that unreceived messages stored in `ended`.
    nodes["ended"][nodes["ended"] < -1] = -1


def _records(plan: Plan, state: State, level: str, outcome: Outcome, begin: float) -> Records:
    n, s, tables = plan.ranks, state.scalars, state.tables
    ranks = tables["ranks"][:n]
    unfinished = tables["blocks"]["left"][:n] > 0
    finish = np.where(unfinished, ranks["accounted"], ranks["finish"])
    exposed = ranks["exposed"]
    if plan.problem.semantics.exposed == "finish_minus_compute":
        exposed = finish - ranks["compute_sum"]
    planned = plan.instances.column(lambda instance: instance.only_call is None, bool)
    first = np.where(planned, len(plan.calls) + np.arange(len(planned)), plan.instances.first)
    progress = tables["progress"][first]
    used = used_links(plan)
    columns = ("bytes", "busy", "messages", "most_waiting", "queued", "held_up")
    found: dict[str, Table] = {}
    if level in ("nodes", "messages"):
        found["node"] = node_table(plan, *(tables["node_rows"][name] for name in ("start", "end", "released", "ended")))
    if level == "messages":
        found["message"] = _messages(plan, state)
        hops = tables["hop_rows"][: s["hop_row_count"]]
        found["hop"] = Table({name: hops[name] for name in HOP_COLUMNS})
    return make_records(
        plan,
        level,
        finish=finish,
        compute=ranks["compute"],
        exposed=exposed,
        spans=np.stack([progress["start"], progress["end"]], axis=1),
        links=dict(
            zip(LINK_TOTALS, (used, *(tables["links"][name][used].astype(np.int64) for name in columns)), strict=True)
        ),
        messages=int(s["sent"]),
        message_hops=int(s["hops"]),
        events=int(s["issued"]),
        outcome=outcome,
        engine="compiled",
        cpu_s=compiling.cpu_s() - begin,
        **found,
    )


def _messages(plan: Plan, state: State) -> Table:
    """The message table."""
    rows = state.tables["message_rows"][: state.scalars["message_row_count"]]
    instances = np.append(plan.instance_of, -1)
    columns = {name: rows[name] for name in records.MESSAGE_ROW.names or ()} | {
        "instance": instances[rows["call"]],
        "tag": state.input.tags[rows["node"]],
        "send_node": rows["sender"],
        "recv_node": rows["receiver"],
    }
    return Table({name: columns[name] for name in MESSAGE_COLUMNS})
