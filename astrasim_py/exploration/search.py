"""Price every configuration of a training by closed forms, and simulate the best of them."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.point_names import parse_values, values_text
from astrasim_py.exploration.grid import CHUNK, LayoutGrid
from astrasim_py.exploration.models import Exploration
from astrasim_py.preparation.training import tflops_of
from astrasim_py.runs.plan import options_for
from astrasim_py.runs.progress import Progress
from astrasim_py.runs.sweep import RunResult, run_scenario
from astrasim_py.training.configurations import MEMORY, Configurations, evaluate
from astrasim_py.training.prices import Prices
from astrasim_py.training.rules import RULES

#: Key of a configuration → its values.
Values = Mapping[str, Sequence[str]]
#: Why a configuration is not in the table, by the place that stands in `Priced.reasons`.
REASONS = (*(rule.name for rule in RULES), "memory", "repeated")
_REPEATED = len(REASONS) - 1
#: Part of a step that waiting on shared links takes where a row says so. Dense and expert weights of ZeRO 2 and 3 are
#: in different groups, which meet on NICs: that is not priced, and always said.
_SHARED = 0.01


@dataclass(frozen=True, kw_only=True)
class Priced:
    """All configurations of a grid, priced.

    `seconds`, `memory`: float64 seconds of a step, and bytes at the peak; NaN where a rule is broken.
    """

    exploration: Exploration
    grid: LayoutGrid
    prices: Prices
    reasons: np.ndarray  # int8: place in `REASONS`, or -1 where a configuration is possible
    seconds: np.ndarray
    memory: np.ndarray
    cost: np.ndarray  # float64: what the objective makes small

    @property
    def possible(self) -> np.ndarray:
        """Numbers of the possible configurations, the best first; of equal ones those that need less memory."""
        numbers = np.flatnonzero(self.reasons < 0)
        return numbers[np.lexsort((numbers, self.memory[numbers], self.cost[numbers]))]

    @property
    def refused(self) -> dict[str, int]:
        """Configurations by the reason for which they are refused."""
        counts = np.bincount(self.reasons[self.reasons >= 0], minlength=len(REASONS)).tolist()
        return {name: count for name, count in zip(REASONS, counts, strict=True) if count}

    def reason(self, number: int) -> tuple[str, str] | None:
        """Why a configuration is refused, and what to write instead; None where it is possible."""
        if self.reasons[number] < 0:
            return None
        if self.reasons[number] == _REPEATED:
            return (
                "is the same as another: sp without tp, ZeRO with nobody to share, a second schedule without pp",
                "drop it",
            )
        ((_, layout),) = self.grid.layouts(np.array([number]))
        return evaluate(layout, self.prices, reserve=self.exploration.keys.memory_reserve).reason(0)

    def best(self) -> int:
        """The best configuration. Raises ScenarioError: none is possible."""
        order = self.possible
        if len(order):
            return int(order[0])
        counted = ", ".join(f"{name} {count:,}" for name, count in self.refused.items())
        short = np.flatnonzero(self.reasons == MEMORY)
        number = int(short[np.argmin(self.memory[short])]) if len(short) else 0
        problem, remedy = self.reason(number) or ("", "")
        raise ScenarioError(
            self.exploration.place,
            f"none of {self.grid.count:,} configurations is possible ({counted}); {self.grid.text(number)}: {problem}",
            remedy,
        )

    def rows(self, numbers: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Layout, step, memory and rates of configurations, in SI units."""
        numbers = np.asarray(numbers, dtype=np.int64)
        rows: dict[int, dict[str, Any]] = {}
        for positions, layout in self.grid.layouts(numbers):
            alone = priced = evaluate(layout, self.prices, reserve=self.exploration.keys.memory_reserve)
            if self.prices.network is not None:
                alone = evaluate(layout, replace(self.prices, sharing=False))
            for place, number in enumerate(numbers[positions].tolist()):
                rows[number] = self._row(number, priced, place, float(np.ravel(alone.step.seconds)[place]))
        return [rows[number] for number in numbers.tolist()]

    def _row(self, number: int, priced: Configurations, place: int, alone: float) -> dict[str, Any]:
        layout = priced.layout.at(place)
        values = self.grid.values(number)
        tokens = float(priced.tokens_per_second[place])
        step_s = float(np.ravel(priced.step.seconds)[place])
        memory = {kind: int(nbytes[place]) for kind, nbytes in priced.memory.items()}
        return {
            "configuration": self.grid.text(number),
            "ranks": layout.ranks,
            **{key: getattr(layout, key) for key in ("gbs", "mbs", "seq", "tp", "pp", "cp", "vp", "ep", "etp", "dp")},
            "zero": layout.zero,
            "sp": bool(layout.sp),
            "recompute": values["recompute"],
            "schedule": layout.schedule,
            "microbatches": layout.microbatches,
            "tokens_per_s_per_gpu": tokens,
            "tflops_per_gpu": tflops_of(layout, tokens),
            **self.exploration.costs.keys(),
            "step_s": step_s,
            "shares_links": step_s - alone > _SHARED * step_s or bool(layout.model.experts and layout.zero >= 2),
            "parts_s": {name: float(np.ravel(part)[place]) for name, part in asdict(priced.step).items()},
            "memory_bytes": memory,
            "memory_total_bytes": sum(memory.values()),
            "capacity_bytes": priced.capacity,
            "reserve_bytes": priced.reserve,
        }


def price(
    exploration: Exploration,
    grid: LayoutGrid,
    prices: Prices | None = None,
    tell: Callable[[str], None] | None = None,
) -> Priced:
    """Price all configurations of a grid, by default with the exploration's prices. `tell`: gets a line of progress."""
    prices = prices or exploration.prices
    total = grid.count
    reasons = np.full(total, -1, dtype=np.int8)
    seconds, memory, cost = (np.full(total, np.nan) for _ in range(3))
    for first in range(0, total, CHUNK):
        numbers = np.arange(first, min(first + CHUNK, total))
        for positions, layout in grid.layouts(numbers):
            evaluated = evaluate(layout, prices, reserve=exploration.keys.memory_reserve)
            selected = numbers[positions]
            refused = evaluated.broken != MEMORY if exploration.keys.memory == "ignore" else True
            broken = np.where(refused, evaluated.broken, -1)
            reasons[selected] = np.where((broken < 0) & grid.repeated(selected), _REPEATED, broken)
            seconds[selected] = evaluated.step.seconds
            memory[selected] = np.where(np.isnan(evaluated.step.seconds), np.nan, sum(evaluated.memory.values()))
            costs = {"time": seconds[selected], "tokens": -evaluated.tokens_per_second, "memory": memory[selected]}
            cost[selected] = costs[exploration.keys.objective]
        if tell is not None:
            tell(f"{int(numbers[-1]) + 1:,} of {total:,} configurations priced")
    columns = {"reasons": reasons, "seconds": seconds, "memory": memory, "cost": cost}
    return Priced(exploration=exploration, grid=grid, prices=prices, **columns)


def find(priced: Priced, values: Values, place: str) -> tuple[Priced, np.ndarray]:
    """The configurations with some values, priced, and their possible ones, the best first. Raises UsageError, at
    `place`: no such key, or a value that a key cannot have.
    """
    grid = priced.grid.restricted(values, place)
    matches = price(priced.exploration, grid, priced.prices)
    return matches, matches.possible


def best_of(priced: Priced, values: Values, place: str) -> dict[str, Any]:
    """The row of the best configuration with some values. Raises UsageError: none is possible."""
    matches, order = find(priced, values, place)
    if not len(order):
        problem, remedy = matches.reason(0) or ("", "")
        raise UsageError(place, f"{values_text(values) or 'none'} is not possible: {problem}", remedy)
    return matches.rows(order[:1])[0]


def baseline_of(priced: Priced) -> dict[str, Any]:
    """The row of the configuration that figures compare with. Raises UsageError: it is not possible."""
    place = f"{priced.exploration.place}: baseline"
    return best_of(priced, parse_values(priced.exploration.keys.baseline or "", place), place)


def why_not(priced: Priced, values: Values, source: str = "--why-not") -> dict[str, Any]:
    """What is against a configuration: reasons with their counts, and the first one in words."""
    matches, order = find(priced, values, source)
    possible = len(order)
    place, cost = None, float(matches.cost[order[0]]) if possible else None
    if cost is not None:
        place = 1 + int(np.count_nonzero(priced.cost[priced.reasons < 0] < cost))
    problem, remedy = (None if possible else matches.reason(0)) or ("", "")
    return {
        "configuration": values_text(values),
        "matching": matches.grid.count,
        "possible": possible,
        "refused": matches.refused,
        "problem": problem,
        "remedy": remedy,
        "place": place,
        "of": int(np.count_nonzero(priced.reasons < 0)),
        "best": matches.rows(order[:1])[0] if possible else None,
    }


# -- simulation -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The best configurations in simulation: columns for their rows, in the order of the closed form.

    `fastest`: place of the one with the shortest simulated step, -1 if none is done. `best`: place of the best by the
    objective, in simulation where something is simulated; memory is that of the closed form.
    """

    rows: tuple[dict[str, Any], ...] = ()
    result: RunResult | None = None
    wrong_pairs: int = 0
    pairs: int = 0
    fastest: int = field(default=-1)
    best: int = 0

    @property
    def gaps(self) -> list[float]:
        """closed form / simulated - 1 of those that are done."""
        return [row["gap"] for row in self.rows if row["gap"] is not None]


def simulate(
    priced: Priced,
    rows: Sequence[dict[str, Any]],
    numbers: Sequence[int],
    *,
    progress: Progress,
    engine: str | None = None,
    out: str | os.PathLike[str] = "results",
    jobs: int | None = 1,
    cluster: str | None = None,
    fresh: bool = False,
) -> Simulated:
    """Simulate configurations, each a point of a sweep that is resumed; further parameters as of `run_scenario`."""
    exploration, grid = priced.exploration, priced.grid
    if not len(numbers):
        return Simulated()
    keys = {row["configuration"]: grid.keys(int(number)) for row, number in zip(rows, numbers, strict=True)}
    scenario = exploration.simulation(keys)
    scenario = replace(scenario, fold=exploration.keys.simulate.fold)
    options = options_for(scenario, engine=engine, in_full=True, collectives=False)
    result = run_scenario(
        scenario, options, out=out, jobs=jobs, cluster=cluster, fresh=fresh, figures=False, progress=progress
    )
    runs = []
    for row, point, summary in zip(rows, result.rows, result.summaries, strict=True):
        seconds = float(point.time_ns) / 1e9 if point.status == "done" and point.time_ns is not None else None
        done = seconds is not None
        exposed = point.exposed_comm_ns
        runs.append(
            {
                "simulated_s": seconds,
                "simulated_exposed_s": float(exposed) / 1e9 if done and exposed is not None else None,
                "gap": None if seconds is None else row["step_s"] / seconds - 1,
                "simulated_off_s": (summary.fold.deviation if summary.fold else 0) / 1e12 if done and summary else None,
                "status": point.status,
            }
        )
    ideal = np.array([row["step_s"] for row, run in zip(rows, runs, strict=True) if run["gap"] is not None])
    real = np.array([run["simulated_s"] for run in runs if run["gap"] is not None])
    upper = np.triu_indices(len(real), 1)
    wrong = (ideal[:, None] < ideal) & (real[:, None] > real) | (ideal[:, None] > ideal) & (real[:, None] < real)
    times = np.array([run["simulated_s"] if run["gap"] is not None else np.inf for run in runs])
    tokens = np.array([row["gbs"] * row["seq"] for row in rows])
    costs = {"time": times, "tokens": times / tokens, "memory": np.where(times < np.inf, np.arange(len(rows)), np.inf)}
    return Simulated(
        rows=tuple(runs),
        result=result,
        wrong_pairs=int(wrong[upper].sum()),
        pairs=len(upper[0]),
        fastest=int(np.argmin(times)) if len(real) else -1,
        best=int(np.argmin(costs[exploration.keys.objective])) if len(real) else 0,
    )
