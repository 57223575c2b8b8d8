"""Costs of given programs from measured times. There is no formula: the fit simulates.

Unknowns, loss and prior are those of `astrasim_py.measured.fit`; it begins at the numbers that the profile has.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from fractions import Fraction

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.units import PS_PER_S
from astrasim_py.measured.calibration import Calibration, number_text, split
from astrasim_py.measured.fit import SCALE, Fit
from astrasim_py.measured.rows import MeasuredRow
from astrasim_py.topology.profile import ProgramProtocol
from astrasim_py.validation.measured import MeasuredMachine

#: Where numbers begin that a profile does not have.
BEGINNING: Mapping[str, Mapping[str, str]] = {
    "LL": {"launch": "5 us", "latency": "1 us", "step": "300 ns", "rate": "3 GB/s"},
    "Simple": {"launch": "7 us", "latency": "2.5 us", "step": "700 ns", "rate": "20 GB/s", "link": "40 GB/s"},
}
_TIMES = ("launch", "latency", "step")
#: Width of the prior, relative step of derivatives (of simulated times), and evaluations at most.
_WIDTH, _STEP, _MOST = 1.0, 1e-2, 20


def calibrate_programs(
    rows: Sequence[MeasuredRow], machine: MeasuredMachine, hold_out: str | None = None
) -> Calibration:
    """Costs of given programs, protocol by protocol. `hold_out`: as of `measured.calibration.calibrate`.

    Raises UsageError: fewer rows than numbers, or nothing is held out.
    """
    train, held_out = split(rows, hold_out) if hold_out else (tuple(rows), ())
    numbers: dict[tuple[str, str], float] = {}
    deviations: dict[tuple[str, str], float] = {}
    loss, fitted = 0.0, dict(machine.profile.programs or {})
    for protocol in sorted({row.protocol for row in train}):
        protocol_rows = [row for row in train if row.protocol == protocol]
        costs, deviation, cost = _fit(protocol_rows, machine, protocol)
        fitted[protocol] = _changed(fitted[protocol], costs)
        numbers |= {(protocol, name): value for name, value in costs.items()}
        deviations |= {(protocol, name): value for name, value in deviation.items()}
        loss += cost
    best = _with_programs(machine, fitted)
    return Calibration(
        fit=Fit(numbers=numbers, deviations=deviations, channels=machine.profile.channels, rows=len(train), loss=loss),
        rows=train,
        errors=_errors(best, train),
        apart=hold_out or "none",
        held_out=held_out,
        held_out_errors=_errors(best, held_out),
    )


def program_texts(result: Fit) -> dict[str, dict[str, str]]:
    """The numbers of a fit as in a preset file, by protocol."""
    texts: dict[str, dict[str, str]] = {}
    for (protocol, name), value in result.numbers.items():
        texts.setdefault(protocol, {})[name] = number_text((protocol, name), value)
    return texts


def _fit(
    rows: Sequence[MeasuredRow], machine: MeasuredMachine, protocol: str
) -> tuple[dict[str, float], dict[str, float], float]:
    from scipy.optimize import least_squares

    programs = machine.profile.programs or {}
    costs = programs[protocol]
    names = [name for name in (*_TIMES, "rate", "link") if getattr(costs, name) is not None]
    if len(rows) < len(names):
        problem = f"too few rows for {len(names)} numbers of {protocol}: {len(rows)}"
        raise UsageError(rows[0].place, problem, "measure more sizes, or more programs")
    prior = np.log([float(getattr(costs, name)) / (PS_PER_S if name in _TIMES else 1) for name in names])

    def residuals(x: np.ndarray) -> np.ndarray:
        changed = _changed(costs, dict(zip(names, np.exp(x).tolist(), strict=True)))
        errors = _errors(_with_programs(machine, {**programs, protocol: changed}), rows)
        return np.append(np.log1p(errors), SCALE * (x - prior) / _WIDTH)

    best = least_squares(residuals, prior, loss="soft_l1", f_scale=SCALE, diff_step=_STEP, max_nfev=_MOST)
    deviation = SCALE * np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)))
    numbers = dict(zip(names, np.exp(best.x).tolist(), strict=True))
    return numbers, dict(zip(names, deviation.tolist(), strict=True)), float(best.cost)


def _changed(costs: ProgramProtocol, numbers: Mapping[str, float]) -> ProgramProtocol:
    exact = {k: round(v * PS_PER_S) if k in _TIMES else Fraction(round(v)) for k, v in numbers.items()}
    return costs.model_copy(update=exact)


def _with_programs(machine: MeasuredMachine, programs: Mapping[str, ProgramProtocol]) -> MeasuredMachine:
    """The machine with other costs of programs; topologies and algorithms are shared."""
    changed = copy(machine)
    changed.profile, changed.times = machine.profile.model_copy(update={"programs": dict(programs)}), {}
    return changed


def _errors(machine: MeasuredMachine, rows: Sequence[MeasuredRow]) -> np.ndarray:
    """simulated / measured - 1, by row."""
    return np.array([machine.time(row) / row.time_ps - 1 for row in rows])
