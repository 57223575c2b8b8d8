"""Every combination of an exploration's values: numbered, as layouts of arrays, and as text such as ``tp=8,pp=4``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from astrasim_py.core.document import parse_document
from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.strict_model import mistakes, tuples
from astrasim_py.exploration.models import Exploration, Explore
from astrasim_py.training.strategy import RECOMPUTE, Layout, Training

#: Most configurations of an exploration.
MAX_CONFIGURATIONS = 10_000_000
#: Configurations that are made at once.
CHUNK = 2**17
#: Keys with values, the slowest first.
AXES = ("schedule", "gbs", "seq", "recompute", "zero", "sp", "mbs", "etp", "ep", "vp", "cp", "pp", "tp")
#: Keys of `Training` that all configurations have in common.
_COMMON = ("model", "overlap", "dtype", "attention", "grad_dtype", "fused_loss", "fused_norms")
#: Order of the keys in the text of a configuration.
_TEXT = ("gbs", "mbs", "seq", "tp", "pp", "cp", "vp", "ep", "etp", "zero", "sp", "recompute", "schedule")
#: Place of a schedule that follows from the chunks.
_AUTO_SCHEDULE = "auto"


@dataclass(frozen=True, kw_only=True)
class LayoutGrid:
    """The combinations of values of keys: `axes` in the order of `AXES`, the last one fastest.

    `shown`: keys that the text of a configuration has. `stage_cut`: where it applies.
    """

    training: Training
    ranks: int
    axes: Mapping[str, tuple]
    shown: tuple[str, ...]
    stage_cut: str = "layers"

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each key."""
        return tuple(len(values) for values in self.axes.values())

    @property
    def count(self) -> int:
        """Number of configurations."""
        return math.prod(self.shape)

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        """Values of the keys that layouts hold as arrays."""
        arrays = {key: np.array(values) for key, values in self.axes.items() if key not in ("recompute", "schedule")}
        names = ["part" if not isinstance(value, str) else value for value in self.axes["recompute"]]
        arrays["recompute"] = np.array([RECOMPUTE.index(name) for name in names])
        parts = [0 if isinstance(value, str) else round(1000 * value) for value in self.axes["recompute"]]
        return arrays | {"recompute_part": np.array(parts)}

    def places(self, numbers: np.ndarray | int) -> dict[str, Any]:
        """Places of the values of each key."""
        return dict(zip(self.axes, np.unravel_index(numbers, self.shape), strict=True))

    def layouts(self, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, Layout]]:
        """Places in `numbers`, and the layouts of those configurations as arrays, one schedule after the other."""
        places = self.places(numbers)
        schedules = np.array(self.axes["schedule"])[places["schedule"]]
        automatic = np.where(self._numbers["vp"][places["vp"]] > 1, "interleaved", "1f1b")
        schedules = np.where(schedules == _AUTO_SCHEDULE, automatic, schedules)
        chunks = self._numbers["vp"][places["vp"]]
        for schedule in sorted(set(schedules.tolist())):
            cuts = np.where(chunks > 1, "layers", self._cut(schedule, 1))
            for cut in sorted(set(cuts.tolist())):
                positions = np.flatnonzero((schedules == schedule) & (cuts == cut))
                if len(positions):
                    there = {key: place[positions] for key, place in places.items()}
                    yield positions, self._layout(there, schedule, cut)

    def _cut(self, schedule: str, chunks: int) -> str:
        """How stages are cut: by cost only dense models with a chunk for each pipeline rank."""
        by_cost = self.stage_cut == "cost" and not self.training.model.experts and chunks == 1 and schedule != "zbv"
        return "cost" if by_cost else "layers"

    def _layout(self, places: Mapping[str, np.ndarray], schedule: str, cut: str) -> Layout:
        values = {key: self._numbers[key][place] for key, place in places.items() if key != "schedule"}
        values["recompute_part"] = self._numbers["recompute_part"][places["recompute"]]
        values["sp"] = values["sp"] & (values["tp"] > 1)
        dp = np.maximum(self.ranks // (values["tp"] * values["pp"] * values["cp"]), 1)
        m = np.maximum(values["gbs"] // (dp * values["mbs"]), 1)
        common = self.training.unchecked(self.ranks)
        more = {"dp": dp, "zero_group": dp * values["cp"], "microbatches": m, "schedule": schedule, "stage_cut": cut}
        return replace(common, **values, **more)

    def values(self, number: int) -> dict[str, Any]:
        """Values of the keys of one configuration."""
        result = {key: self.axes[key][place] for key, place in self.places(number).items()}
        if result["schedule"] == _AUTO_SCHEDULE:
            result["schedule"] = "interleaved" if result["vp"] > 1 else "1f1b"
        return result

    def text(self, number: int) -> str:
        """A configuration as text: the keys that vary."""
        values = self.values(number)
        return ",".join(f"{key}={str(values[key]).lower()}" for key in self.shown)

    def keys(self, number: int) -> dict[str, Any]:
        """Keys of `Training` of one configuration, as they are written in a scenario."""
        values = self.values(number)
        values["sp"] = values["sp"] and values["tp"] > 1
        common = self.training.model_dump(include=set(_COMMON))
        common["model"] = {key: value for key, value in common["model"].items() if value is not None}
        return common | values | {"stage_cut": self._cut(values["schedule"], values["vp"])}

    def restricted(self, values_of: Mapping[str, Sequence[str]], place: str) -> "LayoutGrid":
        """The configurations with some values, which need not be among those explored. `values_of`: key → its values.

        Raises UsageError, at `place`: no such key, or a value that a key cannot have.
        """
        axes = dict(self.axes)
        for key, texts in values_of.items():
            if key not in AXES:
                raise UsageError(place, f'"{key}" is no key of a configuration', did_you_mean(key, AXES))
            axes[key] = tuple(parse_document(text, place).plain() for text in texts)
        if axes["schedule"] == (_AUTO_SCHEDULE,):
            axes["schedule"] = self.axes["schedule"]
        try:
            values = {key: list(items) for key, items in axes.items() if items != (_AUTO_SCHEDULE,)}
            keys = tuples({**values, "model": self.training.model})
            Explore.model_validate(keys, context={"written": True})
        except ValidationError as error:
            mistake = next(mistakes(error))
            raise UsageError(place, f"{mistake.path('')}: {mistake.problem}", mistake.remedy) from None
        shown = tuple(key for key in _TEXT if key in self.shown or axes[key] != self.axes[key])
        return replace(self, axes=axes, shown=shown)

    def repeated(self, numbers: np.ndarray) -> np.ndarray:
        """Whether configurations differ from another one by something that does not apply.

        That is sequence parallelism without tensor parallelism, ZeRO where nobody holds the same weights, and a second
        schedule without a pipeline.
        """
        places = self.places(numbers)
        tp, pp, ep, etp = (self._numbers[key][places[key]] for key in ("tp", "pp", "ep", "etp"))
        stage = self.ranks // pp
        alone = (stage == tp) & (stage == ep * etp) if self.training.model.experts else stage == tp
        return (
            ((tp == 1) & (places["sp"] > 0)) | (alone & (places["zero"] > 0)) | ((pp == 1) & (places["schedule"] > 0))
        )


def grid_of(exploration: Exploration, ranks: int | None = None) -> LayoutGrid:
    """The configurations of an exploration, on its cluster or on another number of ranks.

    Raises ScenarioError: more than `MAX_CONFIGURATIONS`.
    """
    keys, ranks = exploration.keys, ranks or exploration.ranks
    auto = _automatic(exploration, ranks)
    axes = {key: getattr(keys, key) or auto[key] for key in AXES}
    if "vp" not in keys.model_fields_set and "zbv" in axes["schedule"]:  # which has two chunks
        axes["vp"] = (1, 2) if len(axes["schedule"]) > 1 else (2,)
    common = {key: getattr(keys, key) for key in _COMMON}
    training = Training(**common, gbs=axes["gbs"][0])
    shown = tuple(key for key in _TEXT if len(axes[key]) > 1) or ("tp", "pp", "mbs")
    grid = LayoutGrid(training=training, ranks=ranks, axes=axes, shown=shown, stage_cut=keys.stage_cut)
    if grid.count > MAX_CONFIGURATIONS:
        largest = max(AXES, key=lambda key: len(axes[key]))
        problem = f"{grid.count:,} configurations are more than the cap of {MAX_CONFIGURATIONS:,}"
        raise ScenarioError(
            exploration.place, problem, f"write fewer values, e.g. of {largest}, which has {len(axes[largest])}"
        )
    return grid


def _automatic(exploration: Exploration, ranks: int) -> dict[str, tuple]:
    """What ``auto`` stands for."""
    model, node = exploration.keys.model, exploration.system.node
    smallest = min(exploration.keys.gbs or ())

    def divisors(number: int, most: int) -> tuple[int, ...]:
        return tuple(divisor for divisor in range(1, min(number, most) + 1) if number % divisor == 0)

    return {
        "schedule": (_AUTO_SCHEDULE,),
        "zero": (0, 1, 2, 3),
        "mbs": tuple(2**k for k in range(5) if 2**k <= smallest),
        "ep": divisors(model.experts, ranks) if model.experts else (1,),
        "vp": tuple(divisor for divisor in divisors(model.layers, 8)),
        "cp": divisors(ranks, node),
        "pp": divisors(ranks, model.layers),
        "tp": divisors(ranks, node),
    }
