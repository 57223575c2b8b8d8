"""A faster algorithm for the calls of a run for which nobody has named one, with the time that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml

from astrasim_py.builders.registry import default_algorithm
from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.choices import AUTO, FOLDED
from astrasim_py.core.errors import AstraError
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.files import write_file
from astrasim_py.core.units import format_size, format_time
from astrasim_py.engine.auto import take_engine
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.results.model import CollectiveRow
from astrasim_py.results.stored_points import StoredPoint, read_object
from astrasim_py.results.values import ps_of
from astrasim_py.scenario.expand import Point
from astrasim_py.scenario.workload_models import ModelWorkload
from astrasim_py.system.machine_models import Limits
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import CLOSED_FORMS, Capacities, closed_form_ps, may_reduce

#: What is tried: values of a key of `algorithms`; of equally fast ones the first is named.
_CANDIDATES = (
    "hierarchical",
    "nccl",
    "direct",
    "halving_doubling",
    "recursive_doubling",
    "bruck",
    "pairwise",
    "{builder: ring, bidirectional: true}",
    "{builder: hierarchical, chunks: 8}",
    "{builder: double_binary_tree, chunks: 16}",
)
#: Candidates for runs of many calls.
_FEW = 4
#: Of switches that the scenario says to reduce.
_IN_SWITCHES = ("nvls", "{builder: switch_tree, chunks: 64}")
#: Least share of a run's time that is worth a line.
_LEAST = 0.05
#: Messages of all candidates that are simulated: about a second of the compiled engine, or as many as the point has, up
#: to those of a large one. Counted, not timed, so that the same run always says the same.
_MOST_MESSAGES, _LARGE = 2_000_000, 10_000_000
#: Calls of collectives in a summary at most.
_LISTED = 64
#: File of the folder of results with what was said of a point.
_KEPT = "hint.json"


class SimulatedPoint(NamedTuple):
    """A point of a scenario, its results, and where synthesized algorithms are kept."""

    point: Point
    stored: StoredPoint
    kept: Path

    @property
    def topology(self) -> Topology:
        return prepare(self.point, kept=self.kept).problem.topology


def better_algorithm(folder: Path, points: Sequence[SimulatedPoint], *, keep: bool) -> str:
    """A line on the algorithm that saves most of a point's time, as it was simulated in place of the default; empty
    where none saves more than a twentieth. Of several points it is the one that can save most, by the bounds of its
    calls. `folder`: of results, where a line is kept for the next time. `keep`: whether it is this one; of other points
    than all of a scenario it is not, since what a folder holds must not depend on who computed which points.
    """
    defaults = [calls for point in points for calls in _default_calls(point)]
    largest = max(defaults, key=lambda calls: calls.possible_saving, default=None)
    if largest is None or largest.possible_saving <= _LEAST:
        return ""
    digest, engine = largest.of.stored.manifest.digest, largest.of.stored.manifest.engine
    line = read_object(folder / _KEPT)
    if line.get("point") == digest and line.get("engine") == engine and isinstance(line.get("text"), str):
        return f"{largest.prefix(len(points))}{line['text']}" if line["text"] else ""
    text = _line([calls for calls in defaults if calls.of is largest.of])
    if keep:
        write_file(folder / _KEPT, json_bytes({"point": digest, "engine": engine, "text": text}))
    return f"{largest.prefix(len(points))}{text}" if text else ""


#: Most NPUs of a model for which algorithms are tried: it takes those of a library already.
_LARGE_MODEL = 1024


@dataclass(frozen=True)
class _DefaultCalls:
    """The calls of one collective in a point that default algorithms carry out."""

    of: SimulatedPoint
    collective: str
    rows: Sequence[CollectiveRow]

    @cached_property
    def time_ps(self) -> int:
        return self.of.stored.summary.makespan_ps

    @cached_property
    def are_all(self) -> bool:
        """Whether these are all calls; a summary has the first ones."""
        return len(self.of.stored.summary.collectives) < _LISTED

    @cached_property
    def calls_ps(self) -> int:
        """The most that the calls take one after the other, ps."""
        return sum(ps_of(row.time_ns) or 0 for row in self.rows) if self.are_all else self.time_ps

    @cached_property
    def possible_saving(self) -> float:
        """Share of the time that calls take beyond their bounds, one after the other; of many that of all exposed."""
        if not self.are_all:
            return (ps_of(self.of.stored.row.exposed_comm_ns) or 0) / max(self.time_ps, 1)
        beyond = self.calls_ps - sum(ps_of(row.bound_ns) or 0 for row in self.rows)
        return min(beyond / max(self.time_ps, 1), 1.0)

    def messages(self, text: str) -> int:
        """About how many messages a run with an algorithm simulates; of a folded one those of a rank."""
        row, ranks = self.of.stored.row, max(call.ranks for call in self.rows)
        by_default = _messages(default_algorithm(self.collective), ranks)
        sent = (row.messages or 0) * max(_messages(text, ranks), by_default) // by_default
        return sent // (row.npus or 1) if (row.engine or "").endswith(FOLDED) else sent

    def prefix(self, points: int) -> str:
        return f"{self.of.point.name}: " if points > 1 else ""


def _default_calls(of: SimulatedPoint) -> Iterator[_DefaultCalls]:
    spec = of.point.spec
    manifest = of.stored.manifest
    if of.point.allow_code:  # code of the user runs no more often than it was asked to
        return
    if isinstance(spec.workload, ModelWorkload) and (of.stored.row.npus or 0) > _LARGE_MODEL:
        return
    if manifest.status != "done" or manifest.exit_code or of.point.repeat > 1 or not of.stored.summary.collectives:
        return
    named = {*spec.algorithms, *(name for job in spec.jobs.values() for name in job.algorithms), CUSTOM}
    rows: dict[str, list[CollectiveRow]] = {}
    for row in of.stored.summary.collectives:
        if row.type not in named and row.bound_ns is not None:
            rows.setdefault(row.type, []).append(row)
    for collective, calls in rows.items():
        default_calls = _DefaultCalls(of, collective, calls)
        if default_calls.messages(default_algorithm(collective)) <= _LARGE:
            yield default_calls


def _line(kinds: Sequence[_DefaultCalls]) -> str:
    """The line on the best algorithms for the collectives of a point, without the point's name."""
    of, chosen, messages = kinds[0].of, dict[str, str](), 0
    most = max(_MOST_MESSAGES, *(calls.messages(default_algorithm(calls.collective)) for calls in kinds))
    before = time_ps = of.stored.summary.makespan_ps
    for calls in sorted(kinds, key=lambda calls: -calls.calls_ps):
        best_ps, best = int(time_ps * (1 - _LEAST)), ""
        for text, least_ps in _priced(calls):
            # The rest of the run stays as long.
            if time_ps - calls.calls_ps + least_ps >= best_ps or messages + calls.messages(text) > most:
                continue
            messages += calls.messages(text)
            ps = _time_with(of, chosen | {calls.collective: text}, best_ps)
            if ps is not None and ps < best_ps:
                best_ps, best = ps, text
        if best:
            time_ps, chosen = best_ps, chosen | {calls.collective: best}
    if not chosen:
        return ""
    ratio = before / max(time_ps, 1)
    gain = f"{ratio:.1f} times faster" if ratio >= 1.95 else f"{100 - 100 / ratio:.0f} % less"
    times = f"takes {format_time(time_ps)}, not {format_time(before)} ({gain})"
    written = f"algorithms: {{{', '.join(f'{collective}: {text}' for collective, text in chosen.items())}}}"
    size = of.stored.summary.row.size_bytes
    if size is None:
        return f"the run {times} with {written}"
    ((collective, text),) = chosen.items()
    return f"{collective} {format_size(size)}: {text.removeprefix('{builder: ').rstrip('}')} {times}: {written}"


def _priced(calls: _DefaultCalls) -> list[tuple[str, int]]:
    """Candidates with the least time, ps, that all calls can take by closed forms, the most promising ones first."""
    topology, priced = calls.of.topology, []
    rate = max(Capacities(topology).egress, default=None)
    alpha = int(topology.latency_ps.min()) if topology.links else 0
    # A run of many calls, whose plan takes long, tries the first few.
    candidates = (
        (*_CANDIDATES, *(_IN_SWITCHES if may_reduce(topology) else ())) if calls.are_all else _CANDIDATES[:_FEW]
    )
    for text in candidates:
        least = 0
        if rate and (text, calls.collective) in CLOSED_FORMS and calls.are_all:
            with suppress(AstraError):  # not defined for such a call
                forms = (closed_form_ps(text, calls.collective, r.ranks, r.size, alpha, rate) for r in calls.rows)
                least = int(sum(forms))
        if text != default_algorithm(calls.collective):
            priced.append((text, least))
    return sorted(priced, key=lambda candidate: candidate[1])


def _time_with(of: SimulatedPoint, chosen: Mapping[str, str], most_ps: int) -> int | None:
    """How long a point takes with algorithms, ps; None where one is not defined, or it takes `most_ps` or more."""
    algorithms = of.point.config.get("algorithms", {}) | {name: yaml.safe_load(text) for name, text in chosen.items()}
    config = {**of.point.config, "algorithms": algorithms}
    fold = of.stored.manifest.engine.endswith(FOLDED)
    with suppress(AstraError):
        limits = Limits(max_sim_time_ps=most_ps)
        problem = prepare(replace(of.point, config=config), limits=limits, kept=of.kept).problem
        plan = plan_for(problem, AUTO, fold=fold, bounds=False)
        records = simulate(plan, engine=AUTO if fold else take_engine(plan, AUTO, 1), level="summary", fold=fold)
        if records.outcome.status == "done":
            return records.makespan
    return None


def _builder(text: str) -> str:
    value = yaml.safe_load(text)
    return value if isinstance(value, str) else value["builder"]


def _messages(text: str, ranks: int) -> int:
    """About how many messages an algorithm has on so many ranks, at most."""
    name, turns = _builder(text), max(ranks - 1, 1).bit_length()
    if name in ("ring", "direct", "pairwise", "linear"):
        return 2 * ranks * (ranks - 1) * (2 if name != text and name == "ring" else 1)
    if name == "nccl":
        return 16 * ranks * min(ranks - 1, 2**12)
    return ranks * turns * (2 if name == text else 64)
