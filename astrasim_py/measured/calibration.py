"""A profile from measured rows: fitted rows, errors of the others, and the section of a preset file."""

import datetime
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.row_conditions import parse_condition
from astrasim_py.core.units import PS_PER_S, format_size, typed_time
from astrasim_py.measured.fit import CHANNEL_BYTES, UNKNOWNS, Fit, covered, fit
from astrasim_py.measured.formula import BYTES
from astrasim_py.measured.rows import MeasuredRow, chooser, column_of, left_out_lines, mean_of_repeats, rows_that_meet
from astrasim_py.topology.profile import SWITCH_DTYPES

EVERY_OTHER = "every-other"
#: Text in a profile for errors of a fit without held-out rows.
CROSSED = "every other size, in a fit to the others"


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A fit, its rows, and errors (formula / measured - 1) of fitted and of held-out rows.

    `apart`: the way in which rows were held out; with `CROSSED` they are the fitted rows, predicted by fits to every
    other size.
    """

    fit: Fit
    rows: tuple[MeasuredRow, ...]
    errors: np.ndarray
    apart: str
    held_out: tuple[MeasuredRow, ...]
    held_out_errors: np.ndarray


def median_and_p90(errors: np.ndarray) -> tuple[float, float]:
    """Of the absolute values."""
    return float(np.median(np.abs(errors))), float(np.quantile(np.abs(errors), 0.9))


def choose_rows(
    rows: Sequence[MeasuredRow],
    platform: str | None,
    where: Sequence[str] = (),
    protocols: Collection[str] | None = None,
    hold_out: str | None = None,
) -> tuple[list[MeasuredRow], list[str]]:
    """Rows of one platform that can be fitted, repeats as one; and a line for each kind of row that is left out.

    `platform`: None where the rows are of one. `where`: conditions of `measured.rows.chooser`, all of which hold;
    rows of `hold_out` need not fulfil those on its own column, so that ``ranks=2,8`` may be asked for ``ranks=4``.
    `protocols`: those of given programs that are fitted; None: the library's own collectives are. Raises UsageError:
    several platforms, or no row.
    """
    names = dict.fromkeys(row.platform for row in rows)
    if platform is None and len(names) > 1:
        raise UsageError("--platform", f"the rows are of {', '.join(names)}", "name one of them")
    if platform is not None and platform not in names:
        raise UsageError("--platform", f'no row is of "{platform}"', did_you_mean(platform, names))
    apart = None if hold_out in (None, EVERY_OTHER) else hold_out
    exempt = chooser(apart, "--hold-out") if apart else lambda row: False
    conditions = [(chooser(text), apart is not None and _column(text) == _column(apart)) for text in where]
    chosen = [
        row
        for row in rows
        if platform in (None, row.platform) and all(holds(row) or (same and exempt(row)) for holds, same in conditions)
    ]
    if not chosen and rows:
        rows_that_meet([row for row in rows if platform in (None, row.platform)], where)
    in_place = any("in_place" in text for text in where) or all(row.in_place == "1" for row in chosen)
    unfit = {row: _unfit(row, in_place) if protocols is None else _unfit_program(row, protocols) for row in chosen}
    reasons = Counter(filter(None, unfit.values()))
    chosen = mean_of_repeats(row for row in chosen if not unfit[row])
    notes = left_out_lines(reasons)
    if not chosen:
        raise UsageError(rows[0].place, "no row can be fitted", "; ".join(notes) or "change --where")
    return chosen, notes


def _column(condition: str) -> str:
    return column_of(parse_condition(condition).key)


def _unfit(row: MeasuredRow, in_place: bool) -> str:
    """Why a row cannot be fitted; empty where it can."""
    if row.given:
        return "times of given programs"
    if row.nodes > 1:
        return "several nodes"
    if not covered(row):
        return f"no formula for {row.collective} over {row.ranks} ranks"
    return "in place" if row.in_place == "1" and not in_place else ""


def _unfit_program(row: MeasuredRow, protocols: Collection[str]) -> str:
    if not row.given:
        return "times of the library's own collectives"
    return "" if row.protocol in protocols else f"no model of programs under {row.protocol or 'an unknown protocol'}"


def calibrate(
    rows: Sequence[MeasuredRow], *, hold_out: str | None = None, switch: bool = False, channels: int | None = None
) -> Calibration:
    """Fit numbers to rows, but for those of `hold_out`: `EVERY_OTHER` size, or a condition such as ``ranks=4``.

    Raises UsageError: nothing, or everything, is held out; fewer rows than numbers.
    """
    if hold_out is None:
        return _crossed(rows, switch, channels)
    fitted, held_out = split(rows, hold_out)
    result = fit(fitted, switch=switch, channels=channels)
    return Calibration(
        fit=result,
        rows=fitted,
        errors=result.errors(fitted),
        apart=hold_out,
        held_out=held_out,
        held_out_errors=result.errors(held_out),
    )


def split(rows: Sequence[MeasuredRow], hold_out: str) -> tuple[tuple[MeasuredRow, ...], tuple[MeasuredRow, ...]]:
    """Rows to fit, and those held out. Raises UsageError: nothing, or everything, is held out."""
    out = _every_other(rows) if hold_out == EVERY_OTHER else list(map(chooser(hold_out, "--hold-out"), rows))
    if all(out) or not any(out):
        raise UsageError("--hold-out", f'"{hold_out}" holds {"every" if all(out) else "no"} row out', "change it")
    fitted = tuple(row for row, is_held in zip(rows, out, strict=True) if not is_held)
    return fitted, tuple(row for row, is_held in zip(rows, out, strict=True) if is_held)


def _crossed(rows: Sequence[MeasuredRow], switch: bool, channels: int | None) -> Calibration:
    result, out = fit(rows, switch=switch, channels=channels), np.array(_every_other(rows))
    errors = np.full(len(rows), np.nan)
    for half in (out, ~out):
        fitted = [row for row, is_held in zip(rows, half, strict=True) if not is_held]
        if half.any() and len(fitted) >= len(result.numbers):
            errors[half] = fit(fitted, switch=switch, channels=channels).errors(
                [row for row, is_held in zip(rows, half, strict=True) if is_held]
            )
    predicted = ~np.isnan(errors)
    return Calibration(
        fit=result,
        rows=tuple(rows),
        errors=result.errors(rows),
        apart=CROSSED if predicted.any() else "none",
        held_out=tuple(row for row, has_error in zip(rows, predicted, strict=True) if has_error),
        held_out_errors=errors[predicted],
    )


def _every_other(rows: Sequence[MeasuredRow]) -> list[bool]:
    order = {size: place for place, size in enumerate(sorted({row.bytes for row in rows}))}
    return [order[row.bytes] % 2 == 1 for row in rows]


def number_text(key: tuple[str, str], value: float) -> str:
    """A number of a profile with its unit, to four digits."""
    if key[1] in ("launch", "step", "peer", "latency"):
        return typed_time(round(value * PS_PER_S))
    return f"{value / 10**9:.4g} GB/s"


def section(calibration: Calibration, source: str = "") -> dict[str, Any]:
    """The section ``collectives`` of a preset file, of a library's own. `source`: where the rows are from."""
    rows, numbers = calibration.rows, calibration.fit.numbers
    texts = {key: number_text(key, numbers[key]) for key in UNKNOWNS if key in numbers}
    parts: dict[str, dict[str, Any]] = {}
    for (part, name), text in texts.items():
        parts.setdefault(part, {})[name] = text
    switch = parts.pop("switch", None)
    if switch is not None:
        switch |= {"for": ["all_reduce"], "dtypes": sorted({*SWITCH_DTYPES, *(row.dtype for row in rows)} - {*BYTES})}
    common = parts.pop("")
    return {
        **facts(rows),
        "channels": calibration.fit.channels,
        "channel_bytes": _size(CHANNEL_BYTES),
        "choose": "fastest",
        "protocols": parts,
        **common,
        **({"switch": switch} if switch else {}),
        "fit": fit_facts(calibration, source),
    }


def facts(rows: Sequence[MeasuredRow]) -> dict[str, Any]:
    """What was measured: library, ranks, sizes and number formats of a profile."""
    sizes = [row.bytes for row in rows]
    versions = sorted({row.version for row in rows if row.version})
    return {
        "library": " ".join(filter(None, (rows[0].library, ", ".join(versions)))) or "unknown",
        "ranks": sorted({row.ranks for row in rows}),
        "sizes": [_size(min(sizes)), _size(max(sizes))],
        "dtypes": sorted({row.dtype for row in rows}),
    }


def fit_facts(calibration: Calibration, source: str) -> dict[str, Any]:
    """Where the numbers of a profile are from."""
    median, p90 = median_and_p90(calibration.held_out_errors if calibration.held_out else calibration.errors)
    return {
        "date": datetime.date.today().isoformat(),
        "rows": calibration.fit.rows,
        "held_out": calibration.apart,
        "median": round(median, 4),
        "p90": round(p90, 4),
        **({"source": source} if source else {}),
    }


def _size(nbytes: int) -> str:
    text = format_size(nbytes)
    return f"{nbytes} B" if "." in text else text
