"""Calls of communication as the host states them.

A call is a range of the host: ``record_param_comms``, else an operation of c10d or a range such as ``nccl:all_reduce``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.pytorch.facts import IDLE, RECORD, facts_of_host, facts_of_node, merged
from astrasim_py.pytorch.groups import parse_list
from astrasim_py.pytorch.host_trace import Arguments
from astrasim_py.pytorch.kineto import CPU_BACKENDS, MARKS
from astrasim_py.pytorch.recording import Category, Recording

#: Facts of the host's trace about a row of a recording: `facts_of_node`'s second argument, or None.
NodeOf = Callable[[int], Arguments | None]


@dataclass(frozen=True)
class Statement:
    """A call as a range of the host states it, with the facts of all ranges around it."""

    row: int
    around: tuple[int, ...]  # rows of the ranges around it
    facts: Mapping
    thread: int
    start: int  # ns, as the next
    end: int


def ranges_around(recording: Recording, rows: Sequence[int], times: Sequence[int]) -> list[list[int]]:
    """Ranges of the host with facts about communication around points of their threads, the innermost first.

    `rows`: an event on the thread of each point; `times`: ns. Spans of backends, which need not nest, are left out.
    """
    events = recording.events
    points = [
        (int(events.thread[row]), int(time), 1, place)
        for place, (row, time) in enumerate(zip(rows, times, strict=True))
    ]
    ranges = [(int(events.thread[row]), int(events.start[row]), 0, row) for row in _speaking(recording)]
    ranges_of: list[list[int]] = [[] for _ in rows]
    open_now: list[int] = []
    thread = None
    for on, moment, is_point, number in sorted(points + ranges):
        if on != thread:
            thread, open_now = on, []
        while open_now and events.start[open_now[-1]] + events.duration[open_now[-1]] < moment:
            open_now.pop()
        if is_point:
            # A range may have ended below one that outlives it.
            ranges_of[number] = [row for row in open_now[::-1] if events.start[row] + events.duration[row] >= moment]
        else:
            open_now.append(number)
    return ranges_of


def _speaking(recording: Recording) -> list[int]:
    events = recording.events
    return [
        row
        for row in events.args
        if events.category[row] <= Category.ANNOTATION
        and not recording.names[events.name[row]].startswith(CPU_BACKENDS)
    ]


def sources_of(recording: Recording, chain: Sequence[int], node_of: NodeOf) -> Iterator[dict]:
    """Facts of the ranges of a chain and of their nodes in the host's trace, the most specific first."""
    names = [recording.names[recording.events.name[row]] for row in chain]
    ranked = sorted(
        zip(names, chain, strict=True), key=lambda pair: (pair[0] != RECORD, not pair[0].startswith("c10d::"))
    )
    for name, row in ranked:
        yield facts_of_host(name, recording.events.args[row])
    for name, row in ranked:
        node = node_of(row)
        if node is not None:
            yield facts_of_node(name, node)


# -- what the host states ---------------------------------------------------------------------------------------------


def stated(recording: Recording, node_of: NodeOf) -> tuple[list[Statement], list[int]]:
    """Calls of the step that move data between ranks, in order, and rows of ``record_param_comms`` that say nothing.

    Calls of gloo and other backends of the host, waits, and calls of one rank are none of them.
    """
    events = recording.events
    rows = sorted(_speaking(recording))
    around = ranges_around(recording, rows, events.start[rows].tolist())
    chains = {row: chain[chain.index(row) :] for row, chain in zip(rows, around, strict=True) if row in chain}
    marks = {row for row in chains if _name(recording, row).startswith(MARKS)}
    chains = {row: [row, *(r for r in chain[1:] if r not in marks)] for row, chain in chains.items()}
    facts_of = {row: merged(sources_of(recording, [row], node_of)) for row in chains}
    idle = {row for row in chains if _idle(recording, row, node_of)}
    served = _served(recording)
    outer, used = set(served), set(served)
    for row in chains.keys() - marks - idle:
        if kind_said(facts_of[row]) or _name(recording, row) == RECORD:
            outer.update(chains[row][1:])
    statements, mute = [], []
    for row, chain in chains.items():
        outside = {*chain[1:]}
        if row in marks or row in outer or row in idle or outside & served:
            continue
        facts = merged(sources_of(recording, chain, node_of))
        if kind_said(facts_of[row]) or (kind_said(facts) and not outside & used):
            used |= outside
            statements.append(_statement(recording, chain, facts))
        elif _name(recording, row) == RECORD and not kind_said(facts):
            mute.append(row)
    stated_rows = {statement.row for statement in statements}
    for row in sorted(marks):  # they speak where nothing around them does
        facts = merged(sources_of(recording, chains[row], node_of))
        if kind_said(facts) and not (stated_rows | served) & {*chains[row]}:
            statements.append(_statement(recording, chains[row], facts))
    statements.sort(key=lambda statement: (statement.start, statement.row))
    return [statement for statement in statements if _between_ranks(statement.facts, recording.world_size)], mute


def kind_said(facts: Mapping) -> str:
    """The kind of call that facts are of; empty if they are of none."""
    return facts.get("kind") or facts.get("span") or ""


def _name(recording: Recording, row: int) -> str:
    return recording.names[recording.events.name[row]]


def _statement(recording: Recording, chain: Sequence[int], facts: Mapping) -> Statement:
    row, *around = chain
    start = int(recording.events.start[row])
    end = start + int(recording.events.duration[row])
    return Statement(row, tuple(around), facts, int(recording.events.thread[row]), start, end)


def _idle(recording: Recording, row: int, node_of: NodeOf) -> bool:
    """Whether a ``record_param_comms`` says that nothing is called."""
    if _name(recording, row) != RECORD:
        return False
    node = node_of(row)
    name = recording.events.args[row].get("Collective name") or (node.attributes.get("collective_name") if node else "")
    return name in IDLE or bool(node and any(value in IDLE for value in node.inputs if isinstance(value, str)))


def _served(recording: Recording) -> set[int]:
    """Operations of c10d whose data a backend of the host moves: those with the greatest record id below its span's."""
    events = recording.events
    rows = np.array(sorted(events.args), dtype=np.int64)
    spans = rows[[_name(recording, row).startswith(CPU_BACKENDS) for row in rows.tolist()]]
    calls = rows[[_name(recording, row).startswith("c10d::") for row in rows.tolist()]]
    calls = calls[np.argsort(events.record_id[calls], kind="stable")]
    place = np.searchsorted(events.record_id[calls], events.record_id[spans]) - 1
    return set(calls[place[(place >= 0) & (events.record_id[spans] >= 0)]].tolist())


def _between_ranks(facts: Mapping, world: int | None) -> bool:
    ranks, complete = parse_list(facts.get("ranks", ()))
    return 1 not in (world, facts.get("size"), len(ranks) if complete else None)
