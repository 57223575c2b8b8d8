"""Training software by name: its constants, and what it does where a user does not say."""

import csv
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.training.prices import Constants

#: Presets of software, with what they were fitted to.
SOFTWARE = Path(__file__).parents[1] / "data" / "training" / "software.csv"
#: Software of a training that names none.
DEFAULT = "pytorch"
#: The ideal machine: links at their nominal rates, no host, no latency of software.
IDEAL = "ideal"
YES_NO = {"yes": True, "no": False}


def from_zero(text: str) -> float:
    """A finite number from 0 on. Raises ValueError: it is none."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


def above_zero(text: str) -> float:
    """A finite number above 0. Raises ValueError: it is none."""
    value = from_zero(text)
    if not value:
        raise ValueError(text)
    return value


#: How columns are read that are keys of a training.
TRAINING_COLUMNS: dict[str, Callable[[str], Any]] = {
    "attention": str,
    "sp": YES_NO.__getitem__,
    "overlap": lambda text: {} if text == "none" else dict.fromkeys(text.split(), True),
    "grad_dtype": str,
    "stage_cut": str,
    "fused_loss": YES_NO.__getitem__,
    "fused_norms": YES_NO.__getitem__,
}
#: How columns are read that are fields of `Constants`.
CONSTANT_COLUMNS: dict[str, Callable[[str], Any]] = {
    "host": from_zero,
    "gemm": above_zero,
    "nic": above_zero,
    "interference": from_zero,
    "nvlink": above_zero,
    "elementwise": from_zero,
    "tp_hidden": from_zero,
    "pp_exposed": from_zero,
    "bucket": from_zero,
    "microbatch": from_zero,
    "fixed": from_zero,
    "fixed_node": from_zero,
    "scatter": YES_NO.__getitem__,
    "even_cp": YES_NO.__getitem__,
}


@dataclass(frozen=True)
class Software:
    """A preset of training software.

    `keys`: defaults of `Training` keys for measured runs of it. `about`: what it is. `fit`: which measurements its
    constants saw; `date`: of the fit; `error`: median error of step times, and of which runs.
    """

    name: str
    constants: Constants = Constants()
    keys: Mapping[str, Any] = field(default_factory=dict)
    about: str = ""
    fit: str = ""
    date: str = ""
    error: str = ""

    @property
    def ideal(self) -> bool:
        """Whether links, host and communication software cost nothing beyond nominal rates."""
        return self.name == IDEAL


def missing_keys(named: Software, written: Container[str]) -> dict[str, Any]:
    """Keys of a training that the software sets where they are not `written`."""
    return {key: value for key, value in named.keys.items() if key not in written}


def software_names() -> tuple[str, ...]:
    """Names of all presets."""
    return tuple(_presets())


def software(name: str) -> Software:
    """A preset by its name. Raises ScenarioError: there is none."""
    if name not in _presets():
        raise ScenarioError("software", f'there is no software "{name}"', did_you_mean(name, software_names()))
    return _presets()[name]


def read_columns(row: Mapping[str, str], columns: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Cells of a row that are not empty, read. Raises KeyError, ValueError: a cell is wrong."""
    return {key: read(row[key]) for key, read in columns.items() if row.get(key)}


@cache
def _presets() -> Mapping[str, Software]:
    with SOFTWARE.open(newline="") as file:
        rows = tuple(csv.DictReader(file))
    presets = {}
    for row in rows:
        constants = read_columns(row, CONSTANT_COLUMNS)
        presets[row["software"]] = Software(
            name=row["software"],
            constants=Constants(**constants),
            keys=read_columns(row, TRAINING_COLUMNS),
            **{key: row[key] for key in ("about", "fit", "date", "error")},
        )
    return presets
