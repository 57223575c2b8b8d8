"""Many layouts at once: their feasibility, memory and step time."""

from dataclasses import dataclass, fields, replace

import numpy as np

from astrasim_py.topology.hardware import ExpandedMemory
from astrasim_py.training.closed_form import step, terms
from astrasim_py.training.memory import KINDS, NO_RESERVE, Reserve, expand, peak_memory, shortage
from astrasim_py.training.prices import Prices
from astrasim_py.training.rules import RULES, first_broken
from astrasim_py.training.strategy import Layouts
from astrasim_py.training.terms import StepTime

#: Place, after those of `RULES`, of the rule that memory is enough.
MEMORY = len(RULES)
#: Configurations that are priced at once: their arrays fit a core's cache.
BATCH = 2**14


@dataclass(frozen=True, kw_only=True)
class Configurations:
    """Priced layouts.

    `broken`: int64, the place in `RULES` of the first rule that each breaks, `MEMORY`, or -1 where it is possible.
    """

    layout: Layouts  # arrays of one length
    broken: np.ndarray
    capacity: int  # bytes of memory of an NPU, expanded memory included
    reserve: int  # bytes of it that stay free
    memory: dict[str, np.ndarray]  # int64 bytes by kind at the peak; 0 where one of `RULES` is broken
    step: StepTime  # float64 seconds of an iteration by part; NaN where one of `RULES` is broken

    @property
    def tokens_per_second(self) -> np.ndarray:
        """Tokens per second and NPU."""
        return np.asarray(self.layout.gbs * self.layout.seq / self.step.seconds / self.layout.ranks)

    def reason(self, index: int) -> tuple[str, str] | None:
        """Why a configuration is not possible, and what to write instead; None where it is."""
        place = int(self.broken[index])
        if place < 0:
            return None
        layout = self.layout.at(index)
        if place == MEMORY:
            peak = {kind: int(nbytes[index]) for kind, nbytes in self.memory.items()}
            return shortage(peak, self.capacity, layout, layout.after, self.reserve)
        return RULES[place].problem(layout), RULES[place].remedy(layout, layout.after)


def evaluate(
    layout: Layouts, prices: Prices, expanded: ExpandedMemory | None = None, reserve: Reserve = NO_RESERVE
) -> Configurations:
    """Price layouts whose numbers are arrays of one length (or single numbers, the same for all).

    `expanded`: memory beyond the NPU's; by default what its compute rates name. `prices.expanded` is
    called with it. `reserve`: what stays free of the NPU's own memory.
    """
    sizes = (len(value) for value in layout.__dict__.values() if isinstance(value, np.ndarray))
    count = max(sizes, default=1)
    compute = prices.system.compute
    expanded = expanded or compute.expanded_memory
    capacity = int(compute.memory + (expanded.size if expanded else 0))
    kept_free = reserve.of(compute.memory)
    broken = np.broadcast_to(first_broken(layout), count).copy()
    memory = {kind: np.zeros(count, np.int64) for kind in KINDS}
    parts = {field.name: np.full(count, np.nan) for field in fields(StepTime)}
    fitting = np.flatnonzero(broken < 0)
    for batch in np.split(fitting, range(BATCH, len(fitting), BATCH)) if len(fitting) else ():
        layouts = _taken(layout, batch)
        peak = peak_memory(layouts)
        own_prices = prices
        if expanded is not None:
            own_prices = prices.expanded(expand(layouts, peak, compute.memory, compute.memory_bandwidth, expanded))
        step_time = step(terms(layouts, own_prices), own_prices.constants)
        for kind, nbytes in peak.items():
            memory[kind][batch] = nbytes
        for name, values in parts.items():
            values[batch] = getattr(step_time, name)
        broken[batch] = np.where(sum(peak.values()) > capacity - kept_free, MEMORY, -1)
    size = {"capacity": capacity, "reserve": kept_free}
    return Configurations(layout=layout, broken=broken, **size, memory=memory, step=StepTime(**parts))


def _taken(layout: Layouts, rows: np.ndarray) -> Layouts:
    """Some of the configurations."""
    arrays = {key: value for key, value in layout.__dict__.items() if isinstance(value, np.ndarray)}
    return replace(layout, **{key: value[rows] for key, value in arrays.items()})
