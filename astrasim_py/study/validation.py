"""Validation: every measured case and every closed form run here, and how far off each is."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from astrasim_py.astra_sim.input_set import ARGUMENTS, read_inputs
from astrasim_py.astra_sim.run_inputs import run_inputs
from astrasim_py.core.errors import AstraError, InternalError
from astrasim_py.study.cases import Case
from astrasim_py.study.packaged_cases import ClosedForm
from astrasim_py.study.pool import Killed, cores, run_tasks
from astrasim_py.study.progress import Progress

Item = Case | ClosedForm

#: Rows that a worker is handed at once: enough that they share what they read, few enough to even out the load.
BATCH = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one item.

    `rel_error`: largest of |ours - theirs| / theirs over ranks and figures; 1 where one side alone yields figures; None
    where neither does.
    """

    place: str
    set: str
    label: str
    judged: bool  # whether a difference counts
    exact: bool  # every figure is equal, or neither side yields one
    rel_error: float | None
    note: str = ""  # what differs, in a line; empty where nothing does
    engine: str = ""  # which engine ran; empty where none did


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Findings of one set."""

    group: str
    judged: bool
    cases: int
    exact: int
    median_rel_error: float | None
    worst_rel_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings, and the groups in the order in which they first appear."""

    findings: tuple[Finding, ...]
    groups: tuple[Group, ...]

    @property
    def judged(self) -> Group:
        """All judged findings as one group."""
        return _group("all", True, [f for f in self.findings if f.judged])

    @property
    def engines(self) -> dict[str, int]:
        """Engine name → number of items it ran."""
        return dict(sorted(Counter(f.engine for f in self.findings if f.engine).items()))

    @property
    def off(self) -> tuple[Finding, ...]:
        """Findings that are not exact, those that count first."""
        return tuple(sorted((f for f in self.findings if not f.exact), key=lambda f: not f.judged))

    @property
    def passes(self) -> bool:
        return all(f.exact for f in self.findings if f.judged)


def validate(
    items: Sequence[Item], *, engine: str = "auto", jobs: int | None = None, progress: Progress | None = None
) -> Report:
    """Run every item.

    `jobs`: worker processes; None is one per core. 1 runs here. Returns findings in the order of the items.
    """
    progress = Progress() if progress is None else progress
    batches = _batches(items)
    tasks = [(engine, [items[number] for number in batch]) for batch in batches]
    workers = min(cores() if jobs is None else jobs, len(batches))
    found: dict[int, Finding] = {}
    progress.begin(len(items), 0)
    try:
        for batch, results in run_tasks(find_all, tasks, workers) if workers > 1 else enumerate(map(find_all, tasks)):
            if isinstance(results, Killed):
                results = [_finding(item, results.reason) for item in tasks[batch][1]]
            for number, finding in zip(batches[batch], results, strict=True):
                found[number] = finding
                progress.point(finding.label, "done" if finding.exact else "off", 0)
    finally:
        progress.end()
    findings = tuple(found[number] for number in range(len(items)))
    names = dict.fromkeys((f.set, f.judged) for f in findings)
    groups = tuple(_group(*name, [f for f in findings if (f.set, f.judged) == name]) for name in names)
    return Report(findings=findings, groups=groups)


def _batches(items: Sequence[Item]) -> list[list[int]]:
    """Numbers of items that share inputs, together; the largest first, so that none is left over at the end."""

    def shared(number: int) -> tuple:
        item = items[number]
        if isinstance(item, ClosedForm):
            return (0, "", "", "", number)
        return (-item.npus, str(item.workload[0]), str(item.system), str(item.network), number)

    order = sorted(range(len(items)), key=shared)
    return [order[i : i + BATCH] for i in range(0, len(order), BATCH)]


#: Files read in this process, for the next row that names them.
_read: dict = {}


def find_all(task: tuple[str, list[Item]]) -> list[Finding]:
    """Findings of some items; lets no exception out."""
    engine, items = task
    return [find(item, engine) for item in items]


def find(item: Item, engine: str = "auto") -> Finding:
    """Run one item and compare."""
    try:
        if isinstance(item, ClosedForm):
            records = item.run(engine)
            return _compared(item, (records.makespan,), (item.expected_ps(),), (), records.engine)
        finished, exposed, ran, stuck = _run(item, engine)
    except AstraError as error:
        failed_there = isinstance(item, Case) and not item.finishes
        return _finding(item, "" if failed_there else " ".join(error.lines()))
    except Exception as error:
        if os.environ.get("ASTRASIM_DEBUG") == "1":
            raise
        return _finding(item, f"a defect of astrasim_py, please report it: {type(error).__name__}: {error}")
    if stuck:
        return _finding(item, stuck if item.finishes else "", ran)
    if not item.finishes:
        return _finding(item, f"ASTRA-sim does not finish; here it takes {max(finished)} ns", ran)
    return _compared(item, finished + exposed, item.times + item.exposed, ("time", "exposed communication"), ran)


def _run(case: Case, engine: str) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
    """Finish and exposed communication of every rank, ns; which engine ran; and why it did not end, if so."""
    inputs = read_inputs(**{name: getattr(case, name) for name in ARGUMENTS}, cache=_read)
    result = run_inputs(inputs, engine=engine, cache=_read)
    if result.outcome.status == "limit":
        raise InternalError(result.outcome.cause)
    # ASTRA-sim does not miss a message that nobody receives, where all NPUs finish.
    ended = result.outcome.status == "done" or (case.finishes and None not in result.finish_ns)
    stuck = "" if ended else result.outcome.cause
    return tuple(result.finish_ns), tuple(result.exposed_ns), result.records.engine, stuck


def _compared(item: Item, ours: Sequence[int], theirs: Sequence[int], figures: Sequence[str], engine: str) -> Finding:
    if tuple(ours) == tuple(theirs):
        return _finding(item, "", engine, 0.0)
    errors = [abs(a - b) / max(b, 1) for a, b in zip(ours, theirs, strict=True)]
    at = max(range(len(errors)), key=errors.__getitem__)
    where = ""
    if figures:
        ranks = len(theirs) // len(figures)
        where = f" ({figures[at // ranks]} of rank {at % ranks})"
    unit = "ns" if isinstance(item, Case) else "ps"
    return _finding(item, f"here {ours[at]} {unit}, should be {theirs[at]} {unit}{where}", engine, errors[at])


def _finding(item: Item, note: str, engine: str = "", rel_error: float | None = None) -> Finding:
    rel_error = 1.0 if note and rel_error is None else rel_error
    return Finding(item.place, item.set, item.label, item.judged, not note, rel_error, note, engine)


def _group(name: str, judged: bool, findings: Sequence[Finding]) -> Group:
    errors = [f.rel_error for f in findings if f.rel_error is not None]
    return Group(
        group=name,
        judged=judged,
        cases=len(findings),
        exact=sum(f.exact for f in findings),
        median_rel_error=median(errors) if errors else None,
        worst_rel_error=max(errors) if errors else None,
    )
