"""Verification of plans: the four verdicts of `astrasim_py.verification.verifier`, and a counterexample in words.

* **well-formed**: executors take it, and nothing leads beyond its buffers.
* **terminates**: every wait has its signal and every packet its writer, in this call and the next ones.
* **correct**: every output chunk holds at the end what the collective promises.
* **race-free**: no access depends on timing: inside a thread block, between blocks and ranks, before the begin of
  another rank's kernel, after the end of one, and between calls that use the same scratch.
"""

from itertools import islice

from astrasim_py.collectives.collective import promise_of
from astrasim_py.mscclpp import limits
from astrasim_py.mscclpp.accesses import Access, Race
from astrasim_py.mscclpp.blocks import Step
from astrasim_py.mscclpp.execution import Execution, Outside, Stuck
from astrasim_py.mscclpp.findings import Findings, PlanFacts, PlanVerdict, facts_of, find, in_words
from astrasim_py.mscclpp.ir import COLLECTIVES, INPUT, OUTPUT, Plan, walk
from astrasim_py.mscclpp.operations import KINDS
from astrasim_py.verification.values import Values, terms_text

_BUFFERS = {"i": "input", "o": "output", "s": "scratch"}


def verify_plan(plan: Plan) -> PlanVerdict:
    """Verify a plan.

    Raises nothing about the plan: what it does wrong is in the verdict, its warnings and its counterexample.
    """
    problems, warnings = limits.ill_formed(plan), [*plan.warnings, *limits.warnings(plan)]
    if problems:
        counterexample = {"kind": "ill-formed", "text": problems[0]}
        unknown = tuple(dict.fromkeys(op.name for *_, op in walk(plan) if op.name not in KINDS))
        return PlanVerdict(
            well_formed=False, slots=0, problems=tuple(problems), warnings=tuple(warnings),
            unknown="it cannot be executed", counterexample=counterexample, facts=PlanFacts(unknown_op=unknown),
        )  # fmt: skip
    try:
        findings = find(plan)
    except ValueError as error:
        return PlanVerdict(well_formed=True, slots=0, unknown=str(error), warnings=tuple(warnings))
    return _Judge(plan, findings, warnings).verdict()


class _Judge:
    """Makes a verdict of what was found."""

    def __init__(self, plan: Plan, findings: Findings, warnings: list[str]) -> None:
        self.plan, self.findings, self.warnings = plan, findings, warnings
        self.problems: list[str] = []
        self.cells = 0  # that the collective promises
        self.counterexample: dict[str, object] | None = None

    def no(self, kind: str, problem: str, text: str = "", **where: object) -> None:
        self.problems.append(problem)
        if self.counterexample is None:
            self.counterexample = {"kind": kind, "text": text or problem, **where}

    def verdict(self) -> PlanVerdict:
        stuck = self._stuck()
        ends = not stuck and not self._uneven()
        correct, wrong, same_order, unknown = (None, None, None, "it does not end") if stuck else self._contents()
        races = self._races(stuck)
        self._hints()
        return PlanVerdict(
            well_formed=True, slots=0, terminates=ends, correct=correct, race_free=not races,
            order_consistent=same_order, wrong_cells=wrong, races=races, problems=tuple(self.problems), unknown=unknown,
            warnings=tuple(dict.fromkeys(self.warnings)), counterexample=self.counterexample,
            facts=facts_of(self.findings, self.cells, wrong or 0),
        )  # fmt: skip

    def _stuck(self) -> bool:
        stuck: list[Stuck] = next((e.stuck for e in self.findings.executions if e.stuck), [])
        if stuck:
            lines = [f"{in_words(one.step)}: {one.lacks}" for one in stuck]
            where = stuck[0].step
            more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
            self.no(
                "deadlock", f"deadlock: {lines[0]}{more}", "\n".join(["deadlock: it never ends", *lines[:24]]),
                rank=where.rank, chain=lines[:24],
            )  # fmt: skip
        return bool(stuck)

    def _uneven(self) -> bool:
        """Whether counters do not come back to the value at which they began."""
        even = True
        for key, counter in sorted(self.findings.first.counters.items(), key=lambda item: str(item[0])):
            if counter.value == counter.initial:
                continue
            if key[0] == "semaphore":
                what = f"semaphore {key[2]} of rank {key[1]} is released more often than acquired"
                if counter.value < counter.initial:
                    what = f"semaphore {key[2]} of rank {key[1]} is acquired more often than released"
            else:
                of = f"{key[0]} channel {key[3]} between them"
                what = f"rank {key[1]} signals rank {key[2]} more often than it waits, on {of}"
            self.no("deadlock", f"{what}: counts live on, so the next call goes wrong")
            even = False
        return not even

    # -- contents

    def _contents(self) -> tuple[bool | None, int | None, bool | None, str]:
        plan, run = self.plan, self.findings.first
        name = COLLECTIVES.get(plan.collective)
        if name is None:
            return None, None, None, f'"{plan.collective}" promises nothing'
        promise, parts = promise_of(name), run.cells.parts
        output = OUTPUT if any(gpu.chunks[OUTPUT] for gpu in plan.gpus) else INPUT
        sizes = {(gpu.chunks[INPUT], gpu.chunks[output]) for gpu in plan.gpus}
        given, needed = min(sizes)
        full = needed if promise.gathers else given
        shards = full % plan.ranks == 0 if promise.sharded else True
        fits = shards and given == promise.input_chunks(plan.ranks, full)
        if len(sizes) > 1:
            return None, None, None, "its ranks have different numbers of chunks"
        if not full or not fits or needed != promise.output_chunks(plan.ranks, full):
            problem = f"its chunks of input and output, {given} and {needed}, are not those of {plan.collective}"
            return None, None, None, f"{problem} on {plan.ranks} ranks"
        wrong, first, same_order = 0, None, True
        seen: dict[object, int] = {}
        for rank in range(plan.ranks):
            cells = run.cells.whole(rank, output)
            after = promise.after(rank, plan.ranks, full * parts)
            for cell, promised in zip(cells, after, strict=True):
                self.cells += 1
                value = run.contents[cell]
                sources, chunk = promised
                bits = (1 << sources.stop) - (1 << sources.start)
                if not value or run.values.summary(value) != (chunk, bits):
                    wrong += 1
                    first = first or (cell, value, promised)
                same_order &= seen.setdefault(promised, value) == value
        if first is not None:
            self._wrong(run, *first)
        elif not same_order:
            self.warnings.append("ranks add in different orders: their results can differ in the last bits")
        return not wrong, wrong, same_order, ""

    def _wrong(self, run: Execution, cell: int, value: int, promised: tuple[range, int]) -> None:
        parts = run.cells.parts
        where = run.cells.place(cell)
        expected = {(rank, promised[1] // parts): 1 for rank in promised[0]}
        holds = terms_text(_by_chunk(run.values, value, parts)) if value else "nothing defined"
        wanted = terms_text(expected)
        buffer = _BUFFERS[where.buffer]
        write = run.accesses.writes[cell]
        by = "" if write is None else f", written by {in_words(run.step_of(write))}"
        text = f"rank {where.rank}, {buffer} chunk {where.chunk}{by}\n  holds       {holds}\n  should hold {wanted}"
        problem = f"rank {where.rank} {buffer} chunk {where.chunk} holds {holds}, and should hold {wanted}"
        self.no("wrong", problem, text, rank=where.rank, buffer=buffer, chunk=where.chunk, holds=holds, expected=wanted)

    # -- order

    def _races(self, stuck: bool) -> int:
        """Pairs of operations that race, and accesses beyond begin and end; a plan that is stuck has no end."""
        pairs: dict[tuple[Step, Step], tuple[Execution, Race, bool]] = {}
        for run in self.findings.executions:
            for races, later in ((run.races, False), (run.later_races, True)):
                for race in races:
                    ends = run.step_of(race.first), run.step_of(race.second)
                    pairs.setdefault(ends, (run, race, later))
        for run, race, later in islice(pairs.values(), 1):
            text = self._race(run, race, later)
            first = run.step_of(race.first)
            where = run.cells.place(race.cell)
            # Without a counterexample of its own, the line says it all.
            line, *both = map(str.strip, text.splitlines())
            problem = line if self.counterexample is None else f"{line}: {', '.join(both)}"
            self.no(
                "race", problem, text, rank=where.rank, buffer=_BUFFERS[where.buffer], chunk=where.chunk,
                step=in_words(first),
            )  # fmt: skip
        kinds: dict[str, Outside] = {}
        outside = [finding for finding in self.findings.outside if not stuck or finding.kind == "entry"]
        for finding in outside:
            kinds.setdefault(finding.kind, finding)
        for finding in kinds.values():
            self.no("race", f"race: {self._outside(finding)}", rank=finding.step.rank)
        return len(pairs) + len(outside)

    def _race(self, run: Execution, race: Race, later: bool) -> str:
        where = run.cells.place(race.cell)
        part = f" (part {where.part} of {run.cells.parts})" if run.cells.parts > 1 else ""
        packets = "packets of " if where.packet else ""
        cell = f"{packets}{_BUFFERS[where.buffer]} chunk {where.chunk}{part} of rank {where.rank}"
        did = {"read after write": ("writes", "reads"), "write after read": ("reads", "writes")}
        verbs = did.get(race.kind, ("writes", "writes"))
        ends = [f"{in_words(run.step_of(access))} {verb} it" for access, verb in zip(race[2:4], verbs, strict=True)]
        call = " of the call before" if later else ""
        why = "nothing orders them"
        if race.threads:
            why = "other threads of the block do so, and no nop is between"
        elif self._proxy(run, race.first) or self._proxy(run, race.second):
            why = "the proxy of a port channel does so later: a nop before, or pwsf, is missing"
        return f"race: {cell}: {why}\n  {ends[0]}{call}\n  {ends[1]}"

    @staticmethod
    def _proxy(run: Execution, access: Access) -> bool:
        return access.agent >= len(run.blocks.blocks)

    def _outside(self, finding: Outside) -> str:
        where = self.findings.first.cells.place(finding.cell)
        cell = f"{_BUFFERS[where.buffer]} chunk {where.chunk} of rank {where.rank}"
        step = in_words(finding.step)
        if finding.kind == "entry":
            return f"{step} touches {cell}, whose kernel may not have begun: wait for a signal of it first"
        does = "writes" if finding.kind == "exit write" else "reads"
        return f"{step} {does} {cell}, whose kernel may have ended: signal it, and let it wait"

    # -- hints

    def _hints(self) -> None:
        wrapped = self.findings.wrapped
        if wrapped is not None and (wrapped.races or wrapped.stuck) and not self.problems:
            why = f"it never ends: {in_words(wrapped.stuck[0].step)}" if wrapped.stuck else ""
            why = why or self._race(wrapped, wrapped.races[0], later=False).replace("\n  ", "; ")
            self.warnings.append(
                f"from {wrapped.cells.iterations} iterations of its pipelines scratch is used again: {why}"
            )
        for finding in self.findings.weak[:1]:
            number = len(self.findings.weak)
            many = f"{number} accesses" if number > 1 else "1 access"
            self.warnings.append(
                f"{many} of other ranks, first {in_words(finding.step)}, come before the end only by relaxed signals, "
                "which formally order no data: end with signal and wait"
            )
        run = self.findings.first
        unfinished = [finding for finding in run.outside if finding.kind == "unfinished put"]
        for finding in unfinished[:1]:
            self.warnings.append(
                f"the source of {in_words(finding.step)} may still be read by its proxy when the kernel ends: write "
                "pwsf, or wait for an answer"
            )
        for step, cell in run.undefined[:1]:
            where = run.cells.place(cell)
            self.warnings.append(
                f"{in_words(step)} reads {_BUFFERS[where.buffer]} chunk {where.chunk}, which nobody has written"
            )


def _by_chunk(values: Values, value: int, parts: int) -> dict[tuple[int, int], int]:
    """Contributions by chunk instead of part."""
    return {(rank, part // parts): times for (rank, part), times in values.contributions(value).items()}
