"""How far closed forms are off published step times, with their default constants and with fitted ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.prices import Constants, Prices
from astrasim_py.training.terms import Terms, stacked, taken
from astrasim_py.validation.training_classes import By, classes
from astrasim_py.validation.training_rows import TrainingRow

#: Small models on one node, in more rows than all other sources have together: summaries leave them out.
SMALL = "vtrain-single"

#: Constants that are fitted to a source's rows, with their limits.
FITTED = {"host": (0.0, 4.0), "gemm": (0.7, 2.0), "nic": (0.2, 1.0), "interference": (0.0, 1.0)}


class PredictedSteps(NamedTuple):
    """Rows that can be predicted, with their terms as arrays."""

    rows: tuple[TrainingRow, ...]
    terms: Terms
    measured: np.ndarray

    def seconds(self, changed: Mapping[str, float | np.ndarray] | None = None) -> np.ndarray:
        """Step times with each row's constants, but for those `changed`; host is a factor on the row's own.

        Changed constants may be columns, one row of results for each of their values.
        """
        values: dict[str, np.ndarray] = {}
        for key in FITTED:
            values[key] = np.array([getattr(row.constants, key) for row in self.rows])
        for key, value in (changed or {}).items():
            values[key] = values[key] * value if key == "host" else np.asarray(value)
        constants = Constants(
            host=values["host"], gemm=values["gemm"], nic=values["nic"], interference=values["interference"]
        )
        return np.broadcast_arrays(step(self.terms, constants).seconds, *values.values())[0]

    def taken(self, chosen: np.ndarray) -> "PredictedSteps":
        """Some of the rows."""
        return PredictedSteps(tuple(self.rows[i] for i in chosen), taken(self.terms, chosen), self.measured[chosen])

    def errors(self, changed: Mapping[str, float | np.ndarray] | None = None) -> np.ndarray:
        """ours / measured - 1, by row."""
        return self.seconds(changed) / self.measured - 1


def predict(rows: Sequence[TrainingRow]) -> PredictedSteps:
    """Terms of all rows that can be predicted. Raises UsageError: no row can."""
    predictable, row_terms = [], []
    for row in rows:
        if row.layout is not None and row.system is not None and not row.problem:
            prices = Prices(row.system, row.layout.dtype, row.layout.attention, replace(row.constants, gemm=1.0))
            predictable.append(row)
            row_terms.append(terms(row.layout, prices))
    if not predictable:
        raise UsageError(rows[0].place, f"no row can be predicted; this one: {rows[0].problem}", "add rows that can")
    return PredictedSteps(tuple(predictable), stacked(row_terms), np.array([row.measured for row in predictable]))


#: Spread of repeats of a run.
_REPEATS = 0.05


class Interval(NamedTuple):
    """Values of a constant that rows do not tell from the fitted one: their mean error is at most a standard error
    more.

    `determined`: whether the rows tell it at all: where more than half of the range is as good, they do not.
    """

    low: float
    high: float
    determined: bool


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Relative errors of step times: with the default constants, with fitted ones, and with ones fitted to other rows.

    `too_fast`: share of the rows that took longer than predicted; `within_10`, `within_30`: that are off by at most
    10 and 30 %. `held_out_median_rel_error`: each row predicted with constants fitted to four fifths of its source's
    rows, without it. `intervals`: of each fitted constant, see `Interval`.
    """

    group: str
    experts: bool | None  # None: with and without experts
    cases: int
    median_rel_error: float
    p90_rel_error: float
    too_fast: float
    within_10: float
    within_30: float
    constants: dict[str, float] | None = None
    fitted_median_rel_error: float | None = None
    fitted_p90_rel_error: float | None = None
    held_out_median_rel_error: float | None = None
    intervals: dict[str, Interval] | None = None


@dataclass(frozen=True, kw_only=True)
class RowsReport:
    """Errors of all rows, by source (rows of models with experts apart), of larger groups, and what was left out.

    `classes`: errors by nodes, tensor parallelism, measured MFU and machine state; see `training_classes`.
    """

    total: Errors
    groups: tuple[Errors, ...]
    summaries: tuple[Errors, ...]
    classes: Mapping[By, tuple[Errors, ...]]
    unpredicted: tuple[TrainingRow, ...]


def compare(rows: Sequence[TrainingRow], *, calibrate: bool = False) -> RowsReport:
    """Predict rows, and say how far off. `calibrate`: fit `FITTED` constants to every source's rows besides.

    Raises UsageError: no row can be predicted.
    """
    predicted = predict(rows)
    source = np.array([row.source for row in predicted.rows])
    experts = np.array([row.experts for row in predicted.rows])
    signed = predicted.errors()
    errors = np.abs(signed)
    fitted, held_out, constants = (np.full(len(source), np.nan), np.full(len(source), np.nan), {})
    names = dict.fromkeys(zip(source.tolist(), experts.tolist(), strict=True))
    for name in names if calibrate else ():
        indices = np.flatnonzero((source == name[0]) & (experts == name[1]))
        first = fit(predicted, indices)
        told = intervals(predicted.taken(indices), first)
        constants[name] = fit(predicted, indices, [key for key in FITTED if told[key].determined])
        fitted[indices] = np.abs(predicted.taken(indices).errors(constants[name]))
        for fold in range(min(5, len(indices)) if len(indices) > 1 else 0):
            out = np.arange(len(indices)) % 5 == fold
            held_out[indices[out]] = np.abs(predicted.taken(indices[out]).errors(fit(predicted, indices[~out])))

    def group(name: str, kind: bool | None, selected: np.ndarray, best: dict | None = None) -> Errors:
        more = {}
        if calibrate:
            held_errors = held_out[selected][~np.isnan(held_out[selected])]
            more = {
                "fitted_median_rel_error": float(np.median(fitted[selected])),
                "fitted_p90_rel_error": float(np.quantile(fitted[selected], 0.9)),
                "held_out_median_rel_error": float(np.median(held_errors)) if len(held_errors) else None,
            }
        part = errors[selected]
        mid, p90 = float(np.median(part)), float(np.quantile(part, 0.9))
        return Errors(
            group=name,
            experts=kind,
            cases=len(part),
            median_rel_error=mid,
            p90_rel_error=p90,
            too_fast=float(np.mean(signed[selected] < 0)),
            within_10=float(np.mean(part <= 0.1)),
            within_30=float(np.mean(part <= 0.3)),
            constants=best,
            intervals=None if best is None else intervals(predicted.taken(np.flatnonzero(selected)), best),
            **more,
        )

    groups = [group(*name, (source == name[0]) & (experts == name[1]), constants.get(name)) for name in names]
    large = source != SMALL
    kinds = {f"without {SMALL}": large, f"dense without {SMALL}": large & ~experts, "MoE": large & experts}
    summaries = [group(label, None, chosen) for label, chosen in kinds.items() if chosen.any() and not chosen.all()]
    by_class = {
        by: tuple(group(name, None, np.array(indices)) for name, indices in members.items())
        for by, members in classes(predicted.rows).items()
    }
    return RowsReport(
        total=group("all", None, source == source),
        groups=tuple(groups),
        summaries=tuple(summaries),
        classes=by_class,
        unpredicted=tuple(row for row in rows if row.problem),
    )


def fit(predicted: PredictedSteps, indices: np.ndarray, keys: Sequence[str] = tuple(FITTED)) -> dict[str, float]:
    """Values of `FITTED` with the least mean of |log(ours / measured)| over the `indices` rows; all but those of `keys`
    keep their default.

    One constant after the other, twice around: 13 values over its range, then between the neighbours of the best, four
    times. A constant that does not matter keeps its default: moving one costs a thousandth of the range it moves.
    """
    part = predicted.taken(indices)
    of_rows = {key: [getattr(row.constants, key) for row in part.rows] for key in FITTED}
    best = {key: 1.0 if key == "host" else float(np.median(of_rows[key])) for key in FITTED}
    default = dict(best)
    for _ in range(2):
        for key in keys:
            low, high = FITTED[key]
            span = high - low
            for _ in range(4):
                values = np.append(np.linspace(low, high, 13), best[key])
                ratios = part.errors(best | {key: values[:, None]}) + 1
                losses = np.abs(np.log(ratios)).mean(axis=1) + 1e-3 * np.abs(values - default[key]) / span
                best[key] = float(values[np.argmin(losses)])
                step_size = (high - low) / 12
                low, high = max(FITTED[key][0], best[key] - step_size), min(FITTED[key][1], best[key] + step_size)
    return best


def intervals(predicted: PredictedSteps, best: Mapping[str, float]) -> dict[str, Interval]:
    """The interval of each of `FITTED` constants, the others at their `best`.

    Each is tried at 101 values over its range. A standard error is that of the mean of |log(ours / measured)| over
    configurations at the best constants, whose spread is taken to be 5 % at least, that of repeats of a run. Less than
    three configurations determine none.
    """
    logs = np.abs(np.log(predicted.errors(best) + 1))
    least = logs.mean()
    configurations = len({repr(row.layout) for row in predicted.rows})  # runs of one tell no more than one of them
    spread = max(logs.std(ddof=1) if len(logs) > 2 else 0.0, _REPEATS) / np.sqrt(configurations)
    found = {}
    for key, (low, high) in FITTED.items():
        values = np.unique(np.append(np.linspace(low, high, 101), best[key]))
        losses = np.abs(np.log(predicted.errors({**best, key: values[:, None]}) + 1)).mean(axis=1)
        at = int(np.searchsorted(values, best[key]))
        worse = np.flatnonzero(losses > least + spread)
        first = int(worse[worse < at].max(initial=-1)) + 1
        last = int(worse[worse > at].min(initial=len(values))) - 1
        within = float(values[first]), float(values[max(last, first)])
        narrow = within[1] - within[0] <= 0.5 * (high - low)
        found[key] = Interval(*within, narrow and configurations > 2)
    return found
