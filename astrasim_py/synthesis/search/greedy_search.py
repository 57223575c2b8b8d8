"""Multi-start of the greedy searches over policies and seeds, until the bound is met.

In the first generation every policy is tried, later ones favour policies that did well, and some of their runs polish
the best schedule of the generations before (see `polish`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.transfers import Columns, Found
from astrasim_py.synthesis.search.greedy import Policy
from astrasim_py.synthesis.search.greedy_runs import GreedyRuns
from astrasim_py.synthesis.search.multi_start import Effort, Outcome, compete, search_of, seed_of
from astrasim_py.synthesis.search.polish import Polish

#: Transfers of one run beyond which runs are made one at a time, each on what the last one taught.
LARGE = 2**22
_GENERATION = 32
#: Runs up to rotations that are made as one, for they are short.
_ATTEMPTS = 4
#: One run in so many of a generation polishes, where that is possible: this one.
_CYCLE, _POLISHES = 16, 7


def policies(runs: GreedyRuns) -> list[Policy]:
    """Policies to try, the most promising first."""
    if runs.uneven:
        few = [Policy(hierarchy=True), Policy(hierarchy=True, overtake=True), Policy(samples=32, overtake=True)]
        few += [Policy(samples=32, overtake=True, lazy=8), Policy(samples=32, hierarchy=True, overtake=True, lazy=8)]
        few += [Policy(samples=1, overtake=True), Policy(overtake=True, lazy=32)]
        found = [Policy(hierarchy=True), Policy(hierarchy=True, overtake=True), Policy(overtake=True)]
        found += [Policy(samples=1, overtake=True), Policy(), Policy(samples=2, overtake=True)]
        for lazy in (8, 32):
            found += [Policy(hierarchy=True, lazy=lazy), Policy(samples=1, overtake=True, lazy=lazy)]
    else:
        few = found = [Policy(), Policy(samples=1), Policy(samples=32)]
    return [*(replace(policy, symmetric=True) for policy in few if runs.symmetric), *found]


def search(network: Network, demand: Demand, bound: int, effort: Effort, *, record: bool = True) -> Found:
    """The fastest schedule found where every rank needs every chunk; a run that meets `bound` ends the search."""
    runs = GreedyRuns(network, demand)
    offered = policies(runs)
    total = (network.ranks - 1) * demand.count
    large = total > LARGE
    polishable = not large and runs.polishable
    # Nothing stops a run before there is a schedule. A run says up to when all is decided, and by how many transfers.
    first, later = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)

    def run(policy, seed: int, limit: int, stop: np.ndarray, start: Outcome | None):
        signal = first if limit == 2**62 else later if large else stop
        if start is not None:
            took, columns = runs.polish(_whole(runs, start), seed, bound, stop=signal)
            return (took, (columns, total)) if columns is not None and took < limit else None
        best = None
        for attempt in range(_ATTEMPTS if policy.symmetric and not large else 1):
            took, transfers, columns = runs.run(
                policy, seed + (attempt << 40), limit + (best is None), stop=signal, record=record or polishable
            )
            if took is not None and (best is None or took < limit):
                best, limit = (took, (columns, transfers)), took
            if took == bound:
                break
        return best

    found = compete(
        _lineup(offered, polishable), run, bound, replace(effort, jobs=1) if large else effort,
        generation=1 if large else _GENERATION, part=(lambda: max(first[2], later[2]) / total) if large else None,
    )  # fmt: skip
    if found is None:
        # Symmetric runs may all get stuck, where rotated transfers block each other; the others never do.
        took, transfers, columns = runs.run(Policy(), seed_of(effort.seed, effort.rounds), record=record)
        found = Outcome(took, Policy(), (columns, transfers), rounds=effort.rounds + 1)
    how = search_of(found, effort, str(found.policy))
    return Found(found.time, _whole(runs, found) if record else None, found.result[1], how)


def _whole(runs: GreedyRuns, found: Outcome) -> Columns | None:
    """All transfers of a run; those of a symmetric run are rotated."""
    columns = found.result[0]
    symmetric = columns is not None and isinstance(found.policy, Policy) and found.policy.symmetric
    return runs.symmetric.rotated(columns) if symmetric else columns


def _lineup(offered: Sequence, polishable: bool) -> Callable:
    """All policies in turn at first; then half in turn, half the best ones so far, and some runs polish."""

    def lineup(made: int, size: int, best: Outcome | None, scores: dict, dry: int) -> list:
        if made < 2 * len(offered):
            chosen = [offered[(made + i) % len(offered)] for i in range(size)]
        else:
            ranked = sorted(offered, key=lambda policy: (scores.get(policy, 2**62), offered.index(policy)))
            good = ranked[: max(2, len(ranked) // 4)]
            chosen = [
                offered[(made + i) % len(offered)] if i % 2 else good[(made // 2 + i // 2) % len(good)]
                for i in range(size)
            ]
        entries: list = [(policy, None) for policy in chosen]
        if polishable and made > 1 and best is not None:
            polish = Polish(str(best.policy)), best
            entries[_POLISHES::_CYCLE] = [polish] * len(entries[_POLISHES::_CYCLE])
        return entries

    return lineup
