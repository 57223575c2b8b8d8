"""Runs MSCCL++ plans (the raw JSON object) in any order of accesses that the memory model allows.

`mscclpp_events.Execution` says which events there are, and what must come before each. Here their data are moved in
any order that respects it: a store may stay unseen, a load or a port put may be done, as late as the model allows. Both
orders of events that touch the same bytes and are not ordered are tried, and orders drawn at random. If there are no
such events, all orders give the same values.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import NamedTuple

from oracle.mscclpp_cells import MODULUS, Addresses, digest, shape_of
from oracle.mscclpp_events import Execution

#: Unknown operations, positions outside of lists, operands without partner.
REFUSED = (IndexError, KeyError, ValueError)


class Outcome(NamedTuple):
    """`kind`: right; wrong (a value, with every store and load done before the ends); exit (a value is only wrong since
    it was too late for, or read after, the end of a kernel); stuck; refused."""

    kind: str
    place: str = ""


def unordered(run):
    """Pairs of events that touch a cell and are not ordered, two pairs for each two operations."""
    pairs, counts = {}, defaultdict(int)
    for entries in run.log.values():
        for n, (later, writes) in enumerate(entries):
            for earlier, wrote in entries[:n]:
                if (writes or wrote) and earlier != later and not run.before[later] >> earlier & 1:
                    key = (run.labels[earlier], run.labels[later])
                    if (earlier, later) not in pairs and counts[key] < 2:
                        counts[key] += 1
                        pairs[earlier, later] = key
    return sorted(pairs)


def pushed(run, order, event, late):
    """An order with an event, and what comes after it, at the end; or with it, and what comes before, in front."""
    if late:
        back = {other for other in order if other == event or run.before[other] >> event & 1}
    else:
        back = {other for other in order if not (other == event or run.before[event] >> other & 1)}
    return [other for other in order if other not in back] + [other for other in order if other in back]


def orders(run, rng, count):
    """Orders as numbered, with each side of unordered pairs late or early, and `count` drawn ones."""
    plain = list(range(len(run.before)))
    yield plain
    for event in dict.fromkeys(event for pair in unordered(run) for event in reversed(pair)):
        yield pushed(run, plain, event, True)
        yield pushed(run, plain, event, False)
    for _ in range(count):
        order = plain
        for _ in range(4):
            order = pushed(run, order, rng.choice(plain), rng.random() < 0.7)
        yield order


def values(run, order):
    """{(rank, call): {cell of input or output: value at the end}}; a text if a packet is lost."""
    memory, taken = _Memory(), {}
    ends = {event: key for key, event in run.ends.items()}
    for event in order:
        if event in ends:
            taken[ends[event]] = {cell: memory[cell] for cell in run.captures[event]}
        flag = run.call_of[event] + 1
        for sources, written, constant, raw in run.moves[event]:
            if raw:
                for cell in written:
                    memory[cell] = memory[sources[0]]
                continue
            value = constant
            for cell in sources:
                part = memory[cell]
                if cell[1] == "p":
                    if part[0] != flag:
                        return f"no packet {cell} for {run.labels[event]}"
                    part = part[1]
                value += part
            value %= MODULUS
            for cell in written:
                memory[cell] = (flag, value) if cell[1] == "p" else value
    return taken


class _Memory(dict):
    """Cells that nobody has written hold values of their own; packets those of no call."""

    def __missing__(self, cell):
        value = digest("former", cell)
        return (0, value) if cell[1] == "p" else value


class Oracle:
    """What a plan, or an edited copy of it, does, by the contract or, without one, by the plan in program order.

    `lenient`: relaxed signals and waits order data, too.
    """

    def __init__(self, plan, shape=None, calls=1, lenient=False):
        self.shape, self.calls, self.lenient = shape or shape_of(plan), calls, lenient
        contract = Addresses(plan, self.shape).contract()
        if contract is not None:
            self.wanted = {
                call: {
                    cell: sum(digest("input", *source, call) for source in sources) % MODULUS
                    for cell, sources in contract.items()
                }
                for call in range(calls)
            }
            return
        self.wanted = defaultdict(dict)
        try:
            run = Execution(plan, self.shape, calls)
        except REFUSED:
            return
        if not run.stuck:
            for (_, call), cells in values(run, range(len(run.before))).items():
                self.wanted[call] |= cells

    def judge(self, run, order):
        results = values(run, order)
        if isinstance(results, str):
            return Outcome("stuck", results)
        for (_, call), cells in results.items():
            for cell, value in cells.items():
                if self.wanted[call].get(cell, value) != value:
                    return Outcome("wrong", f"{cell}, call {call}")
        return Outcome("right")

    def outcomes(self, plan, drawn=3, seed=0, until_bad=False):
        """The outcomes of all orders that are tried: those of `orders`, for one order of blocks, or for four where
        several blocks use one counter. `until_bad`: only to the first that is wrong or stuck."""
        outcomes, rng = {}, Random(seed)
        for attempt in range(4):
            try:
                run = Execution(plan, self.shape, self.calls, Random(attempt) if attempt else None, self.lenient)
            except REFUSED as error:
                return {Outcome("refused", repr(error))}
            if run.stuck:
                outcomes[Outcome("stuck", f"{run.stuck}")] = None
            else:
                late = [] if self.calls > 1 else sorted(run.ends.values())
                for order in orders(run, rng, drawn):
                    outcome = self.judge(run, [event for event in order if event not in late] + late)
                    if late and outcome.kind == "right":
                        outcome = self.judge(run, order)
                        outcome = outcome._replace(kind={"wrong": "exit"}.get(outcome.kind, outcome.kind))
                    outcomes[outcome] = None
                    if until_bad and outcome.kind not in ("right", "exit"):
                        return set(outcomes)
            if all(len(users) < 2 for users in run.users.values()):
                break
        return set(outcomes)
