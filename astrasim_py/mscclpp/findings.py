"""What executions of a plan show: facts, one by one, from which `astrasim_py.mscclpp.verify` makes verdicts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from astrasim_py.mscclpp.accesses import Race
from astrasim_py.mscclpp.blocks import Step
from astrasim_py.mscclpp.execution import Execution, Outside
from astrasim_py.mscclpp.ir import SCRATCH, Plan, iterations_of_longest, pipelined, walk
from astrasim_py.verification.verifier import Verdict

#: Bytes of scratch that is reused; and most operations that are executed to see what happens when it begins again.
SCRATCH_BYTES, MAX_WRAPPED = 64 * 2**20, 2**16


@dataclass(frozen=True, slots=True)
class Waiting:
    """An operation that never ends; `op_index`: in the list of its block."""

    rank: int
    block: int
    op_index: int
    op: str
    lacks: str


@dataclass(frozen=True, slots=True)
class Place:
    """Parts of a chunk, of so many that it has."""

    rank: int
    buffer: str
    chunk: int
    parts: tuple[int, ...]
    of: int


@dataclass(frozen=True, slots=True)
class RacingPair:
    """Two operations that nothing orders, and one chunk that both use."""

    rank: int
    block: int
    op_index: int
    op: str
    kind: str
    against_rank: int
    against_block: int
    against_op_index: int
    where: Place
    next_call: bool  # the other operation is one of the call before
    iterations: int  # of pipelines


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """What was found of a plan, one by one; numbers of accesses to the input and output of other ranks before their
    begin (`entry`) and without order before their end (`exit_writes`, `exit_reads`); `weak_exits`: of these, those that
    relaxed signals order."""

    cells: int = 0
    wrong_cells: int = 0
    unknown_op: tuple[str, ...] = ()
    deadlock: tuple[Waiting, ...] = ()
    races: tuple[RacingPair, ...] = ()  # of one call, and one iteration of pipelines
    later_races: tuple[RacingPair, ...] = ()  # between calls, or of two iterations
    undefined_reads: int = 0
    entry: int = 0
    exit_writes: int = 0
    exit_reads: int = 0
    weak_exits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerdict(Verdict):
    """The verdict of a plan, with the facts behind it."""

    facts: PlanFacts = field(default_factory=PlanFacts)


class Findings(NamedTuple):
    """What verification found of a plan; `first`: the execution of one iteration of the shortest pipeline,
    `longer` of two, `wrapped` of one more than scratch has room for."""

    first: Execution
    longer: Execution | None
    wrapped: Execution | None
    weak: tuple[Outside, ...]  # ends that only relaxed signals order
    outside: tuple[Outside, ...]

    @property
    def executions(self) -> tuple[Execution, ...]:
        return (self.first,) if self.longer is None else (self.first, self.longer)


def find(plan: Plan) -> Findings:
    """Execute a plan that is not ill-formed. With two halves of scratch the third call uses that of the first."""
    calls = 3 if plan.double_scratch else 2
    once, twice = (iterations_of_longest(plan, shortest) for shortest in (1, 2))
    first = Execution(plan, iterations=once, calls=calls)
    if any(len(counter.waiters) > 1 for counter in first.counters.values()) and not first.stuck:
        # Which of them a signal lets go on is a matter of timing.
        other = Execution(plan, iterations=once, calls=calls, backwards=True)
        first = other if other.stuck else first
    longer = Execution(plan, iterations=twice, calls=calls) if pipelined(plan) else None
    outside = tuple(finding for finding in first.outside if finding.kind != "unfinished put")
    weak: tuple[Outside, ...] = ()
    if any(finding.kind != "entry" for finding in outside):
        strong = {finding[::2] for finding in Execution(plan, iterations=once, lenient=True).outside}
        weak = tuple(finding for finding in outside if finding.kind != "entry" and finding[::2] not in strong)
        outside = tuple(finding for finding in outside if finding not in weak)
    return Findings(first, longer, _wrapped(plan), weak, outside)


def iterations_in_scratch(plan: Plan) -> int | None:
    """Iterations of pipelines after which reused scratch begins again; None where it does not."""
    chunks = max(gpu.chunks[SCRATCH] for gpu in plan.gpus)
    pipelines = [operation for *_, operation in walk(plan) if operation.name == "pipeline"]
    if not plan.reuses or not chunks or not pipelines:
        return None
    room = -(-SCRATCH_BYTES // (1 + plan.double_scratch) // chunks)
    return max(1, min(room // (pipeline.chunks * pipeline.unit_bytes) for pipeline in pipelines))


def _wrapped(plan: Plan) -> Execution | None:
    room = iterations_in_scratch(plan)
    if room is None or room * sum(1 for _ in walk(plan)) > MAX_WRAPPED:
        return None
    return Execution(plan, iterations=room + 1, wrap=room)


def facts_of(findings: Findings, cells: int, wrong: int) -> PlanFacts:
    """The facts of an execution; `cells`: that the collective promises, and so many `wrong`."""
    run, longer = findings.first, findings.longer
    kinds = Counter(finding.kind for finding in run.outside)
    stuck = next((e.stuck for e in findings.executions if e.stuck), [])
    return PlanFacts(
        cells=cells,
        wrong_cells=wrong,
        deadlock=tuple(
            Waiting(one.step.rank, one.step.block, one.step.place, one.step.operation.name, one.lacks) for one in stuck
        ),
        races=_pairs(run, run.races, next_call=False),
        later_races=(
            *_pairs(run, run.later_races, next_call=True),
            *(() if longer is None else _pairs(longer, longer.races, next_call=False)),
            *(() if longer is None else _pairs(longer, longer.later_races, next_call=True)),
        ),
        undefined_reads=len(run.undefined),
        entry=kinds["entry"],
        exit_writes=kinds["exit write"],
        exit_reads=kinds["exit read"],
        weak_exits=len(findings.weak),
    )


def _pairs(run: Execution, races: list[Race], *, next_call: bool) -> tuple[RacingPair, ...]:
    parts: dict[tuple[Step, Step, str, tuple[int, str, int]], list[int]] = {}
    for race in races:
        rank, buffer, chunk, part, _ = run.cells.place(race.cell)
        key = run.step_of(race.second), run.step_of(race.first), race.kind, (rank, buffer, chunk)
        parts.setdefault(key, []).append(part)
    return tuple(
        RacingPair(
            rank=second.rank, block=second.block, op_index=second.place, op=second.operation.name, kind=kind,
            against_rank=first.rank, against_block=first.block, against_op_index=first.place,
            where=Place(*chunk, parts=tuple(sorted(set(held))), of=run.cells.parts),
            next_call=next_call, iterations=run.cells.iterations,
        )
        for (second, first, kind, chunk), held in parts.items()
    )  # fmt: skip


def in_words(step: Step) -> str:
    """``rank 0 block 3 operation 5 (put)``."""
    iteration = f", iteration {step.iteration}" if step.iteration > 0 else ""
    inner = f", {step.operation.path.rpartition('.')[2]}" if step.iteration >= 0 else ""
    return f"rank {step.rank} block {step.block} operation {step.place} ({step.operation.name}{inner}{iteration})"
