"""Constants of closed forms from measured step times."""

import numpy as np

from astrasim_py.training.prices import Constants
from astrasim_py.validation.training_errors import fit, predict
from astrasim_py.validation.training_rows import read_rows


def calibrated(path: str) -> tuple[Constants, str]:
    """Four constants fitted to all rows of a CSV (as of ``validate --training``), and a line that states them.

    Raises UsageError: the file cannot be read, or no row can be predicted.
    """
    rows = read_rows(path)
    found = predict(rows)
    values = fit(found, np.arange(len(found.rows)))
    before, after = (float(np.median(np.abs(errors))) for errors in (found.errors(), found.errors(values)))
    listed = ", ".join(f"{key} {value:.3g}" for key, value in values.items())
    said = f"calibrated to {len(found.rows)} of {len(rows)} rows: {listed}; median error {100 * after:.1f} %"
    constants = Constants(
        host=values["host"], gemm=values["gemm"], nic=values["nic"], interference=values["interference"]
    )
    return constants, f"{said} instead of {100 * before:.1f} %"
