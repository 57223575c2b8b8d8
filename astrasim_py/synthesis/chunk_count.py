"""How many chunks suit a message size: a short search over numbers of chunks, then a long one with the best."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from astrasim_py.synthesis.model.schedule import Schedule

#: Numbers of chunks per shard that are tried, in this order.
TRIED = (1, 2, 4, 8, 16, 32, 64)
#: Transfers beyond which no larger number is tried.
MAX_TRANSFERS = 2**21
#: Numbers that may come out no better, one after the other, before the search ends.
_PATIENCE = 2
#: Parts of the rounds, and of the time, that one number gets.
_SHARE = 10

#: ``run(chunks, rounds, budget) -> Schedule``
Run = Callable[[int, int, float | None], Schedule]


def best_chunks(run: Run, rounds: int, budget: float | None) -> tuple[Schedule, int]:
    """The fastest schedule over numbers of chunks, and that number.

    More chunks fill the pipes better and pay the latency more often, so times fall and then rise again.

    Parameters
    ----------
    run : callable
    rounds : int
        Of the last, long search; the short ones have a tenth of them each.
    budget : float or None
        Seconds of all searches together; at least one run of each is finished.
    """
    best: Schedule | None = None
    chosen = 0
    made, seconds, worse, cut = 0, 0.0, 0, False
    share = None if budget is None else budget / _SHARE
    for chunks in TRIED:
        found = run(chunks, max(rounds // _SHARE, 1), share)
        made += found.search.rounds
        seconds += found.search.seconds
        cut |= found.search.cut
        if best is None or found.time < best.time:
            best, chosen, worse = found, chunks, 0
        else:
            worse += 1
        if budget is not None and seconds >= budget:
            cut = True
            break
        # The next number has twice the transfers.
        if worse == _PATIENCE or 2 * found.transfers > MAX_TRANSFERS or found.time == 0:
            break
    assert best is not None
    if not best.optimal and (budget is None or seconds < budget):
        last = run(chosen, rounds, None if budget is None else budget - seconds)
        made += last.search.rounds
        seconds += last.search.seconds
        cut |= last.search.cut
        best = min(best, last, key=lambda schedule: schedule.time)
    how = replace(best.search, rounds=made, seconds=seconds, cut=cut)
    return replace(best, search=how), chosen
