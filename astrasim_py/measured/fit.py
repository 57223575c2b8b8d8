"""Numbers of a profile from measured times: a robust fit by formula.

Unknowns are logarithms. Residuals are ln(formula / measured), with the loss soft_l1 of scale 0.1 (scipy's
least_squares), and a weak prior of 0.1 (x - x0) / width for each unknown; without it launch, step and copy run away
where only one group size was measured. The number of channels is the one of `CHANNELS` with the least loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.measured.formula import BYTES, COLLECTIVES, Calls, calls, times
from astrasim_py.measured.rows import MeasuredRow
from astrasim_py.topology.profile import SwitchReduction

CHANNELS = (8, 12, 16, 20, 24, 28, 32)
CHANNEL_BYTES = 4096
#: Scale of the loss, taken as the deviation of one time; weight of the prior.
SCALE = 0.1
_STARTS, _JITTER, _SEED = 10, 0.3, 0
#: Standard deviation of a logarithm beyond which the rows do not determine a number.
UNDETERMINED = 0.3
_SMALL = 4096
_PS_PER_S, _GB = 10**12, 10**9


class Unknown(NamedTuple):
    """One number: its start (us, or GB/s), the width of its prior, and the rows that determine it."""

    start: float
    width: float
    runs: str


_TWO = "two group sizes, e.g. 2 and 8"
#: Unknowns by their place in a profile. Rates that depend on the rows begin at a share of the largest bus bandwidth.
UNKNOWNS: Mapping[tuple[str, str], Unknown] = {
    ("LL", "launch"): Unknown(6.0, 0.4, f"sizes up to 4 KiB with {_TWO}"),
    ("LL", "step"): Unknown(0.8, 0.4, f"sizes up to 32 KiB with {_TWO}"),
    ("LL", "channel_rate"): Unknown(5.0, 0.5, "sizes from 64 KiB to 1 MiB"),
    ("Simple", "launch"): Unknown(14.0, 0.5, f"sizes from 1 to 16 MiB with {_TWO}"),
    ("Simple", "step"): Unknown(3.0, 0.7, f"sizes from 1 to 16 MiB with {_TWO}"),
    ("Simple", "rate"): Unknown(1.0, 0.7, "sizes from 64 MiB"),
    ("", "copy"): Unknown(2.3, 0.5, f"sizes from 64 MiB with {_TWO}"),
    ("", "peer"): Unknown(0.3, 0.7, f"all_to_all up to 64 KiB with {_TWO}"),
    ("switch", "launch"): Unknown(30.0, 0.5, "all_reduce of 4 to 32 MiB in half, 4 and 8 ranks"),
    ("switch", "rate"): Unknown(0.8, 0.5, "all_reduce from 64 MiB in half, 4 and 8 ranks"),
}
_BUS_RATES = {("Simple", "rate"), ("", "copy"), ("switch", "rate")}
_TIMES = ("launch", "step", "peer")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Numbers (s and bytes/s) by their place in a profile, and the standard deviation of each one's logarithm."""

    numbers: dict[tuple[str, str], float]
    deviations: dict[tuple[str, str], float]
    channels: int
    rows: int
    loss: float

    @property
    def undetermined(self) -> list[tuple[str, str]]:
        """Numbers that the rows do not determine."""
        return [key for key, value in self.deviations.items() if value > UNDETERMINED]

    def predict(self, rows: Sequence[MeasuredRow]) -> np.ndarray:
        """Times of rows by formula, ps."""
        return _fastest(self.numbers, self.channels, _calls(rows)) * _PS_PER_S

    def errors(self, rows: Sequence[MeasuredRow]) -> np.ndarray:
        """formula / measured - 1, by row."""
        return self.predict(rows) / np.array([row.time_ps for row in rows]) - 1


def _calls(rows: Sequence[MeasuredRow]) -> Calls:
    least = SwitchReduction.model_fields["ranks"].default
    switch = [row.collective == "all_reduce" and row.ranks >= least and row.dtype not in BYTES for row in rows]
    return calls([r.collective for r in rows], [r.bytes for r in rows], [r.ranks for r in rows], switch)


def _fastest(numbers: Mapping, channels: int, of: Calls) -> np.ndarray:
    return np.minimum.reduce(list(times(numbers, channels, CHANNEL_BYTES, of).values()))


def covered(row: MeasuredRow) -> bool:
    """Whether the formulas cover a row: a collective of the library's own choice within a node."""
    return row.collective in COLLECTIVES and not row.given and row.nodes == 1 and row.ranks > 1


def fit(rows: Sequence[MeasuredRow], *, switch: bool = False, channels: int | None = None) -> Fit:
    """Numbers for rows that are `covered`. `switch`: fit all_reduce in the switch, too. `channels`: None finds them.

    Raises UsageError: fewer rows than numbers.
    """
    from scipy.optimize import least_squares

    keys = [key for key in UNKNOWNS if switch or key[0] != "switch"]
    if len(rows) < len(keys):
        problem = f"too few rows for {len(keys)} numbers: {len(rows)}"
        runs = "measure 512 B, 512 KiB, 4 MiB and 128 MiB of four collectives with 2 and 8 ranks"
        raise UsageError(rows[0].place if rows else "", problem, runs)
    of, measured = _calls(rows), np.array([row.time_ps for row in rows]) / _PS_PER_S
    prior, width = np.log(_beginning(keys, of, measured)), np.array([UNKNOWNS[key].width for key in keys])

    def residuals(x: np.ndarray, count: int) -> np.ndarray:
        seconds = _fastest(dict(zip(keys, np.exp(x), strict=True)), count, of)
        return np.append(np.log(seconds / measured), SCALE * (x - prior) / width)

    def solve(start: np.ndarray, count: int):
        return least_squares(residuals, start, loss="soft_l1", f_scale=SCALE, args=(count,))

    numbers = CHANNELS if channels is None else (channels,)
    best, count = min(((solve(prior, number), number) for number in numbers), key=lambda pair: pair[0].cost)
    jitter = np.random.default_rng(_SEED)
    for _ in range(_STARTS - 1):
        solution = solve(prior + jitter.normal(0, _JITTER, len(keys)), count)
        best = solution if solution.cost < best.cost else best
    deviation = SCALE * np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)))
    return Fit(
        numbers=dict(zip(keys, np.exp(best.x).tolist(), strict=True)),
        deviations=dict(zip(keys, deviation.tolist(), strict=True)),
        channels=count,
        rows=len(rows),
        loss=float(best.cost),
    )


def _beginning(keys: Sequence[tuple[str, str]], of: Calls, measured: np.ndarray) -> np.ndarray:
    """Starts of the unknowns, s and bytes/s: scaled by the times of small buffers and the best bus bandwidth."""
    factor = np.where(of.direct | (of.steps < of.ranks), of.steps, 2 * (of.ranks - 1)) / of.ranks
    bus = (of.size * factor / measured).max()
    small = measured[of.size <= _SMALL]
    slow = np.median(small) / 9e-6 if len(small) else 1.0
    return np.array(
        [UNKNOWNS[key].start * (1e-6 * slow if key[1] in _TIMES else bus if key in _BUS_RATES else _GB) for key in keys]
    )
