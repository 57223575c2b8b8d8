"""Verification of an algorithm: four verdicts, and a counterexample where one of them is no.

* **well-formed**: every message has a partner of equal size, dependencies and cells exist.
* **terminates** with so many slots per connection (`astrasim_py.verification.termination`).
* **correct**: every rank holds at the end what its collective promises (`astrasim_py.verification.values`).
* **race-free**: no result depends on timing (`astrasim_py.verification.races`). Only then does one symbolic execution
  hold for all runs: programs have no choice points.

`astrasim_py.collectives.collective` has the table of what collectives promise.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from typing import Any

from astrasim_py.collectives.chunks import MAX_CHUNKS_PER_MESSAGE, PROTOCOL_SLOTS, SLOT_BYTES
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError, TraceError, UsageError
from astrasim_py.core.fields import shown
from astrasim_py.core.units import format_size
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.steps import Layout, Steps, steps_of
from astrasim_py.program.table import Unusable
from astrasim_py.verification import races, values
from astrasim_py.verification.termination import Blocked, Flow

#: Slots per connection where neither the caller nor the algorithm says: those of the protocol with fewest.
DEFAULT_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of verification. A verdict is True, False, or None if unknown.

    `counterexample`: of the first problem: ``kind`` and ``text``, and where they apply ``rank``, ``buffer``, ``chunk``,
    ``holds``, ``expected``, ``step``, ``line``, ``chain``.
    """

    well_formed: bool | None = True
    terminates: bool | None = None  # with `slots`
    correct: bool | None = None
    race_free: bool | None = None
    order_consistent: bool | None = None  # all ranks add in the same order: their results are equal to the last bit
    slots: int = DEFAULT_SLOTS  # messages that a connection holds
    min_slots: int | None = None  # fewest with which it ends, a step being one message; None where it never ends
    min_slots_large: int | None = None  # the same for large buffers, one message per chunk
    max_safe_bytes: int | None = None  # largest full buffer with which it ends, where large ones do not
    wrong_cells: int | None = None  # promised cells; of a barrier: pairs of ranks that do not wait for each other
    races: int | None = None  # number of unordered pairs of steps that touch one cell, at least one writing it
    problems: tuple[str, ...] = ()  # a sentence for each verdict that is no, the most important first
    unknown: str = ""  # why a verdict is unknown
    warnings: tuple[str, ...] = ()
    counterexample: dict | None = None

    @property
    def ok(self) -> bool | None:
        """Whether it is well-formed and correct and ends with enough slots; None if that is unknown.

        A race or too few slots do not make it False: they are a matter of the runtime (see `passes`).
        """
        never_ends = self.terminates is False and self.min_slots is None
        if self.well_formed is False or self.correct is False or never_ends:
            return False
        return None if None in (self.well_formed, self.correct) else True

    @property
    def passes(self) -> bool:
        return False not in (self.well_formed, self.terminates, self.correct, self.race_free)

    @property
    def problem(self) -> str:
        """The most important problem, or why the verdict is unknown; empty where there is neither."""
        return self.problems[0] if self.problems else self.unknown


def verify(
    subject: Algorithm | Steps,
    *,
    slots: int | None = None,
    switch_slots: int | None = None,
    contract: Contract | None = None,
    problems: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Verdict:
    """Verify an algorithm by executing it symbolically.

    Parameters
    ----------
    subject : Algorithm or Steps
    slots : int, optional
        Messages that a connection holds; by default those of the algorithm's protocol, or 2.
    switch_slots : int, optional
        Cells of scratch that a switch has; by default as many as it needs.
    contract : Contract, optional
        What it must do, instead of what its collective promises; needed for a custom collective.
    problems, warnings : sequence of str
        Findings of a reader; problems make the algorithm ill-formed.

    Returns
    -------
    Verdict

    Raises
    ------
    AlgorithmError
        A contract for another number of ranks or chunks.
    UsageError
        Something that is no algorithm, such as the name of a file.

    Examples
    --------
    >>> from astrasim_py.builders.registry import build
    >>> verify(build("ring", "all_reduce", 4)).ok
    True
    """
    if not isinstance(subject, Algorithm | Steps):
        raise UsageError("verify", f"{shown(subject)} is no algorithm", "read a file first: ap.read_algorithm")
    examination = Examination([*problems, *_slots_lacking(subject, switch_slots)], list(warnings))
    slots = slots or PROTOCOL_SLOTS.get(subject.protocol, DEFAULT_SLOTS)
    examination.fields["slots"] = slots
    with examination.usable():
        steps = subject if isinstance(subject, Steps) else _steps(subject)
        if contract is not None:
            _check_contract(steps, contract)
            steps = dataclass_replace(steps, contract=contract)
        examination.run(steps, slots)
    return examination.verdict()


def _steps(algorithm: Algorithm) -> Steps:
    steps = steps_of(algorithm)
    if algorithm.collective != "barrier" and not algorithm.has_cells:
        return dataclass_replace(steps, chunks=0)
    return steps


def _slots_lacking(subject: Algorithm | Steps, slots: int | None) -> list[str]:
    """Switches that need more cells than they have; MSCCL-IR, which is given as steps, has no switches."""
    if slots is None or isinstance(subject, Steps):
        return []
    needs = {name: subject.slots_of(k) for k, name in enumerate(subject.actors)}
    return [f"switch {name} needs {n} slots, and there are {slots}" for name, n in needs.items() if n > slots]


def _check_contract(steps: Steps, contract: Contract) -> None:
    for word, ours, promised in (("ranks", steps.ranks, contract.ranks), ("chunks", steps.chunks, contract.chunks)):
        if ours != promised and ours:
            problem = f"is for {promised} {word}, and {steps.name} has {ours}"
            raise AlgorithmError(contract.place, problem, f"write {word}: {ours}")


_NOWHERE: Mapping[str, object] = {}


class Examination:
    """A verdict in the making."""

    def __init__(self, problems: list[str], warnings: list[str]) -> None:
        self.problems, self.warnings = problems, warnings
        self.fields: dict[str, Any] = {"well_formed": not problems}
        self.counterexample: dict[str, object] | None = None
        if problems:
            self.counterexample = {"kind": "ill-formed", "text": problems[0]}

    @contextmanager
    def usable(self) -> Iterator[None]:
        """What cannot be executed ends the examination: it is ill-formed, or unknown."""
        try:
            yield
        except Unusable as found:
            if found.unknown:
                self.unknown(found.problem)
                if self.fields["well_formed"]:
                    self.fields["well_formed"] = None
            else:
                self.ill_formed(found.problem)
        except TraceError as error:
            self.ill_formed(str(error))

    def ill_formed(self, problem: str) -> None:
        """The first problem of this kind counts: others follow from it, or repeat what a reader found."""
        if self.fields["well_formed"]:
            self.no("ill-formed", problem)
            self.fields["well_formed"] = False

    def unknown(self, why: str) -> None:
        self.fields.setdefault("unknown", why)

    def no(self, kind: str, problem: str, where: Mapping[str, object] = _NOWHERE, text: str = "") -> None:
        """A verdict is no; `where`: what the counterexample says besides its kind and text."""
        self.problems.append(problem)
        if self.counterexample is None:
            self.counterexample = {"kind": kind, "text": text or problem, **where}

    def verdict(self) -> Verdict:
        messages = tuple(self.problems), tuple(self.warnings)
        return Verdict(**self.fields, problems=messages[0], warnings=messages[1], counterexample=self.counterexample)

    def run(self, steps: Steps, slots: int) -> None:
        """Examine a program whose connections hold so many messages. Raises Unusable: it cannot be executed."""
        self.steps = steps
        matched = self._check_messages()
        if steps.chunks and promise_of(steps.collective).sharded and steps.chunks % steps.ranks:
            self.ill_formed(f"its {steps.chunks} chunks do not divide among {steps.ranks} ranks")
        self.flow = Flow(steps)
        self._terminate(slots, matched)
        if not self.flow.ends or not matched:
            self.unknown("it does not end" if matched else "its messages do not fit together")
        elif steps.collective == "barrier":
            self._judge_barrier()
        elif not steps.chunks:
            self.unknown("it does not state which cells its steps read and write")
        else:
            self.where = Layout(steps)
            self._judge()
            self._race()

    def _check_messages(self) -> bool:
        """True if the k-th send of each connection is as long as its receive; missing receives are ill-formed only."""
        steps = self.steps
        for c in steps.connections:
            if len(c.sends) != len(c.receives):
                queue = "" if c.channel < 0 else f" on channel {c.channel}"
                source, target = map(steps.position_name, (c.source, c.target))
                text = f"{source} sends {len(c.sends)} messages to {target}{queue}, which receives {len(c.receives)}"
                self.ill_formed(text)
            for s, r in zip(c.sends, c.receives, strict=False):
                if steps.count[s] != steps.count[r]:
                    sends = f"{steps.label(s)} sends {steps.count[s]} chunks"
                    self.ill_formed(f"{sends}, but {steps.label(r)} receives {steps.count[r]}")
                    return False
        return True

    # -- termination

    def _terminate(self, slots: int, matched: bool) -> None:
        flow = self.flow
        if not flow.ends:
            self.fields["terminates"] = False
            self.deadlock(flow.run(slots), "it never ends")
            return
        smallest = flow.smallest()
        parts = flow.split(1) if matched else None
        large = smallest if parts is None else flow.smallest(parts)
        assert smallest is not None and large is not None, "it ends"
        self.fields |= {"terminates": smallest <= slots, "min_slots": smallest, "min_slots_large": large}
        if smallest > slots:
            self.deadlock(flow.run(slots), f"it needs {smallest} slots per connection, and there are {slots}")
        elif large > slots:
            safe = self._largest_safe(slots)
            limit = "" if safe is None else f" of more than {format_size(safe)}"
            self.fields["max_safe_bytes"] = safe
            needs = f"it then needs up to {large} slots per connection, and there are {slots}"
            self.warnings.append(f"large buffers{limit} can block it: {needs}")

    def deadlock(self, blocked: Blocked | None, why: str) -> None:
        assert blocked is not None, "it does not end"
        text = "\n".join([f"deadlock: {why}", *(f"  {line}" for line in blocked.chain)])
        if blocked.cycle:
            text += "\n  … which is where this began"
        crossing = blocked.crossing or blocked.chain
        shown = ", ".join(crossing[:3]) + (", …" if len(crossing) > 3 else "")
        self.no("deadlock", f"deadlock: {why}: {shown}", {"chain": list(blocked.chain)}, text)

    def _largest_safe(self, slots: int) -> int | None:
        """Largest full buffer, bytes, at which a step has few enough messages for the program to end.

        As many chunks travel in one message as fit in a slot, floor(slot / ceil(B / C)), 1 to 71 of them.
        """
        slot_bytes = SLOT_BYTES.get(self.steps.protocol)
        if slot_bytes is None or not self.steps.chunks:
            return None
        for together in range(2, MAX_CHUNKS_PER_MESSAGE + 1):
            if self.flow.run(slots, self.flow.split(together)) is None:
                return self.steps.chunks * (slot_bytes // together)
        return None

    # -- post-condition

    def _judge(self) -> None:
        steps, run = self.steps, values.execute(self.where, self.flow)
        if run.undefined:
            others = len(set(run.undefined)) - 1
            more = f" and {others} more" if others else ""
            self.warnings.append(f"{steps.label(run.undefined[0])}{more} reads a cell that no step has written")
        if steps.collective == CUSTOM and steps.contract is None:
            self.fields["order_consistent"] = True if not run.values.terms else None
            self.unknown("it is a custom collective, and nothing says what it must do: give a contract")
            return
        result = values.judge(self.where, run)
        self.fields |= {"correct": not result.wrong, "wrong_cells": result.wrong, "order_consistent": result.same_order}
        if result.differing is not None:
            chunk, a, b = result.differing
            self.warnings.append(
                f"ranks add in different orders (chunk {chunk} on ranks {a} and {b}): "
                "their floating-point results can differ in the last bits"
            )
        if result.first is not None:
            self._counterexample(run, result.first)

    def _counterexample(self, run: values.Execution, wrong: values.Wrong) -> None:
        steps = self.steps
        buffer, offset = self.where.cell_name(wrong.rank, wrong.cell)
        holds, expected = (
            run.values.text(wrong.holds),
            values.terms_text(wrong.expected) or "a chunk that does not exist",
        )
        lines = [
            f"rank {wrong.rank}, {buffer} chunk {offset}" + ("" if steps.in_place else " at the end"),
            f"  holds       {holds}",
            f"  should hold {expected}",
        ]
        last, place, line = run.writer[wrong.cell], None, None
        if last < 0:
            lines.append("  no step writes it")
        else:
            past = values.history(self.where, self.flow, wrong.cell)
            lines += [f"  written by {steps.label(g)}: {after.text(value)}" for g, value, after in past]
            place, line = steps.place(last), steps.line[last] or None
        writer = f", written by {steps.label(last)}" if line else ""
        switch = values.lost_at(self.where, run, wrong)
        if switch >= 0:
            writer += f"; it went wrong after {steps.label(switch)}"
            lines.append(f"  it went wrong after {steps.label(switch)}")
            place, line = steps.place(switch), steps.line[switch] or None
        index = offset if steps.in_place else wrong.chunk
        problem = f"rank {wrong.rank} chunk {index} {values.fault(run.values, wrong)}{writer}"
        details = {"rank": wrong.rank, "buffer": buffer, "chunk": offset, "holds": holds, "expected": expected}
        self.no("post-condition", problem, {**details, "step": place, "line": line}, "\n".join(lines))

    def _judge_barrier(self) -> None:
        """A rank may leave a barrier when it has waited, directly or not, for all ranks."""
        steps, n = self.steps, self.steps.ranks
        knows = [0] * len(steps)
        heard = [1 << r for r in range(n)]
        heard += [0] * len(steps.actors)
        for g in self.flow.sequence:
            know = 1 << steps.rank[g] if steps.rank[g] < n else 0
            for p in (*steps.parents[g], self.flow.sender[g]):
                know |= knows[p] if p >= 0 else 0
            knows[g] = know
            heard[steps.rank[g]] |= know
        wrong = sum(n - know.bit_count() for know in heard[:n])
        self.fields |= {"correct": not wrong, "wrong_cells": wrong, "race_free": True, "races": 0}
        self.fields["order_consistent"] = True
        for r, know in enumerate(heard[:n]):
            absent = [q for q in range(n) if not know >> q & 1]
            if absent:
                more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
                self.no("post-condition", f"rank {r} leaves without waiting for rank {absent[0]}{more}")
                return

    # -- races

    def _race(self) -> None:
        steps, where = self.steps, self.where
        scan = races.scan(where, self.flow)
        self.fields |= {"race_free": not scan.races, "races": scan.races}
        for rows, complaint in (
            (scan.dead, "writes a cell that is overwritten or never read"),
            (scan.redundant, "waits for a step that its other dependencies imply"),
        ):
            if rows:
                more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
                self.warnings.append(f"{steps.label(rows[0])}{more} {complaint}")
        if scan.first is None:
            return
        *pair, cell = scan.first
        rank = steps.rank[pair[0]]
        buffer, offset = where.cell_name(rank, cell)
        labels = [steps.label(g) for g in pair]
        does = ["writes" if 0 <= where.writes[g] <= cell < where.writes[g] + steps.count[g] else "reads" for g in pair]
        name = f"{buffer} chunk {offset}"
        lines = [f"{steps.position_name(rank)}, {name}: nothing says which of these is first"]
        lines += [f"  {label} {verb} it" for label, verb in zip(labels, does, strict=True)]
        problem = f"race: {labels[0]} {does[0]} {name}, {labels[1]} {does[1]} it, and nothing says which is first"
        details = {"rank": rank, "buffer": buffer, "chunk": offset, "step": steps.place(pair[0])}
        self.no("race", problem, {**details, "line": steps.line[pair[0]] or None, "chain": labels}, "\n".join(lines))
