"""Twins: workloads that behave like another one, but were never run."""

from dataclasses import replace

import numpy as np

from astrasim_py.chakra.workload import Workload
from astrasim_py.sharing.levels import (
    Original,
    binned_paths,
    binned_sizes,
    renumbered,
    resized,
)

#: Pieces of a warp, and the deviation of the logarithms of their slopes and of sizes.
PIECES, SIGMA = 24, 0.3
#: Sizes that follow each other keep their sum.
_BLOCK = 4
#: Bins of a twin.
_REL = (0.02, 0.05)


def twin(original: Original, rng: np.random.Generator, rel: float) -> Workload:
    """A workload whose time is warped, for all ranks alike: slow where the original is fast, and in the same total.

    A path becomes longer or shorter as the time between its calls does; independent draws for each rank would add
    waiting. Sizes are drawn anew in fours of equal sum, and everything is put into narrow bins.
    """
    end = max(float(ends.max(initial=0)) for _, ends in original.times)
    slopes = rng.lognormal(0, SIGMA, PIECES)
    at = np.linspace(0, end, PIECES + 1)
    to = np.append(0, np.cumsum(slopes)) / slopes.sum() * end
    narrow = float(rng.uniform(*_REL))
    seed = int(rng.integers(2**63))
    warped = []
    for each, (starts, ends) in zip(original.skeletons, original.times, strict=True):
        ready, begin = starts[each.target].astype(float), np.append(ends, 0)[each.source].astype(float)
        shift = (np.interp(ready, at, to) - ready) - (np.interp(begin, at, to) - begin)
        ps = np.where(each.ps > 0, np.maximum(np.rint(each.ps + shift), 0), 0).astype(np.int64)
        warped.append(replace(each, ps=ps))
    times = [tuple(np.rint(np.interp(each, at, to)) for each in pair) for pair in original.times]
    workload = original.with_skeletons(binned_paths(warped, times, narrow))

    def change(sizes: np.ndarray, number: int) -> np.ndarray:
        drawn = sizes * np.random.default_rng([seed, number]).lognormal(0, SIGMA, len(sizes))
        for first in range(0, len(sizes), _BLOCK):
            block = slice(first, first + _BLOCK)
            drawn[block] *= sizes[block].sum() / max(drawn[block].sum(), 1)
        return binned_sizes(drawn, narrow)

    return renumbered(resized(workload, change), rng)
