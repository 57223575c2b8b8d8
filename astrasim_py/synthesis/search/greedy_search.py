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
from astrasim_py.synthesis.search.symmetric_greedy import SymmetricPolicy

#: Transfers of one run beyond which runs are made one at a time, each on what the last one taught.
LARGE = 2**22
#: Ranks beyond which counting runs are not symmetric.
_COUNTED = 2**16
_GENERATION = 32
#: One run in so many of a generation polishes, where that is possible: this one.
_CYCLE, _POLISHES = 16, 7


def policies(runs: GreedyRuns) -> list:
    """Policies to try, the most promising first."""
    found: list = []
    if not runs.uneven:
        if runs.symmetric:
            found += [SymmetricPolicy(), SymmetricPolicy(spread=1), SymmetricPolicy(scarce=1)]
            found += [SymmetricPolicy(samples=1)]
        return [*found, Policy(), Policy(samples=1), Policy(samples=32)]
    if runs.symmetric:
        found += [SymmetricPolicy(hierarchy=True), SymmetricPolicy(hierarchy=True, overtake=True)]
        found += [SymmetricPolicy(hierarchy=True, overtake=True, spread=1), SymmetricPolicy(overtake=True)]
        found += [SymmetricPolicy(samples=1, overtake=True), SymmetricPolicy(spread=2, scarce=1, overtake=True)]
        found += [SymmetricPolicy(hierarchy=True, lazy=lazy) for lazy in (8, 32)]
    found += [Policy(hierarchy=True), Policy(hierarchy=True, overtake=True), Policy(overtake=True)]
    found += [Policy(samples=1, overtake=True), Policy(), Policy(samples=2, overtake=True)]
    for lazy in (8, 32):
        found += [Policy(hierarchy=True, lazy=lazy), Policy(samples=1, overtake=True, lazy=lazy)]
    return found


def search(network: Network, demand: Demand, bound: int, effort: Effort, *, record: bool = True) -> Found:
    """The fastest schedule found where every rank needs every chunk; a run that meets `bound` ends the search."""
    runs = GreedyRuns(network, demand)
    offered = policies(runs)
    if not record and network.ranks > _COUNTED:
        offered = [policy for policy in offered if isinstance(policy, Policy)]
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
        if isinstance(policy, SymmetricPolicy):
            took, transfers, columns = runs.run_symmetric(policy, seed, limit + 1, stop=signal)
        else:
            took, transfers, columns = runs.run(policy, seed, limit + 1, stop=signal, record=record or polishable)
        return None if took is None else (took, (columns, transfers))

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
    if columns is None or not isinstance(found.policy, SymmetricPolicy):
        return columns
    return runs.rotate(columns)


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
