"""Constants of closed forms from measured step times."""

import numpy as np

from astrasim_py.validation.training_errors import fit, predict
from astrasim_py.validation.training_rows import read_rows


def calibrated(path: str) -> tuple[dict[str, float], str]:
    """Four constants fitted to all rows of a CSV (as of ``measured validate training``), and a line that states them.

    Raises UsageError: the file cannot be read, or no row can be predicted.
    """
    rows = read_rows(path)
    predicted = predict(rows)
    values = fit(predicted, np.arange(len(predicted.rows)))
    before, after = (float(np.median(np.abs(errors))) for errors in (predicted.errors(), predicted.errors(values)))
    shown = ", ".join(f"{key} {value:.3g}" for key, value in values.items())
    line = f"calibrated to {len(predicted.rows)} of {len(rows)} rows: {shown}; median error {100 * after:.1f} %"
    return values, f"{line} instead of {100 * before:.1f} %"
