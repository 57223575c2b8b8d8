"""Rounds: many runs compete, the best one is repaired, until the bound is met or rounds or time are over.

Run i is one policy with one seed, whatever the machine. Runs go in generations, and what a generation does is settled
before it begins, so the number of threads decides nothing: the result is the fastest run, of equals the first. Only a
limit of wall-clock time can make two machines differ, and the outcome says that it was cut.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

import numpy as np

from astrasim_py.core.jit import clock

#: Seconds between two looks at the clock, and between two words about a run that takes long.
_BEAT, _TOLD = 0.02, 2.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a search stands.

    Attributes
    ----------
    best, bound : int
        ps; `best` is 0 while there is none.
    rounds, of : int
        Runs made, and at most to come.
    part : float, optional
        How much of a long run under way is done; None when a run has ended.
    stage : str
        What is done besides searching: ``bound`` or ``check``.
    search : str
        Which of several searches this is, in words, e.g. ``half with sums`` where times are of that half of an
        all_reduce; else empty.
    """

    best: int
    bound: int
    rounds: int
    of: int
    part: float | None = None
    stage: str = ""
    search: str = ""

    @property
    def gap(self) -> float:
        """How far the best is above the bound, as a fraction of the bound."""
        # Chunks that differ by a byte are searched for as alike, and may be done before the bound of such.
        return max(self.best / self.bound - 1, 0.0) if self.best and self.bound else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What competing runs came to.

    Attributes
    ----------
    time : int
        ps.
    policy
        Of the run that was best before it was repaired.
    result
        Of the best run.
    repaired : bool
    rounds : int
    cut : bool
        Whether the limit of wall-clock time ended the search.
    seconds : float
        Wall-clock time, compilation excluded.
    """

    time: int
    policy: Any
    result: Any
    repaired: bool
    rounds: int
    cut: bool
    seconds: float


class Watch:
    """Beside a search: tells it when its time is over, and says now and then how far a long run is.

    Parameters
    ----------
    stop : int64[…]
        The first number becomes 1 when time is over.
    budget : float or None
        Seconds; what is compiled meanwhile is not charged.
    tell : callable, optional
        Called every few seconds.
    """

    def __init__(self, stop: np.ndarray, budget: float | None, tell: Callable[[], None] | None = None) -> None:
        self._stop, self._budget, self._tell = stop, budget, tell
        self._ended = Event()
        self.begin = clock()
        if budget is not None or tell is not None:
            Thread(target=self._look, daemon=True).start()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return clock() - self.begin

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return self._budget is not None and self.seconds > self._budget

    def left(self, share: float = 1.0) -> float | None:
        """A share of the seconds that are left; None: any number."""
        return None if self._budget is None else max(self._budget - self.seconds, 0.0) * share

    def end(self) -> None:
        """Watch no longer."""
        self._ended.set()

    def _look(self) -> None:
        told = time.monotonic()
        while not self._ended.wait(_BEAT if self._budget is not None else _TOLD):
            if self.over:
                self._stop[0] = 1
            if self._tell is not None and time.monotonic() - told >= _TOLD:
                told = time.monotonic()
                self._tell()


def seed_of(seed: int, index: int) -> int:
    """The seed of a run of a search."""
    return (seed * 1_000_003 + index) % 2**31


def compete(
    offered: Sequence,
    run: Callable[..., tuple[int, Any] | None],
    *,
    bound: int,
    seed: int,
    rounds: int,
    generation: int = 16,
    tried: int | None = None,
    budget: float | None = None,
    jobs: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome | None:
    """The best of many runs; None if none came about.

    Policies are tried first; then the best run is repaired, and now and then, when that has come to nothing for a
    while, policies are tried with other seeds.

    Parameters
    ----------
    offered : sequence
        Policies, the most promising first.
    run : callable
        ``run(policy, seed, limit, stop, start)`` returns (time in ps, result), or None if it found nothing as fast as
        `limit`; `start` is the best outcome so far if it is to be repaired, else None; when ``stop[0]`` is not 0, it
        should end.
    bound : int
        ps that cannot be beaten: a run that meets it ends the search.
    seed : int
        Another one makes other runs.
    rounds : int
        Runs at most.
    generation : int
        Runs that are settled at once.
    tried : int, optional
        Runs that begin anew at first; by default every policy once, as far as three quarters of the rounds go.
    budget : float, optional
        Wall-clock seconds; the first run is begun in any case.
    jobs : int, optional
        Threads; as many as the machine has cores by default.
    progress : callable, optional
        Told after every run.
    """
    stop = np.zeros(1, dtype=np.int64)
    jobs = jobs or os.cpu_count() or 1
    tried = min(len(offered), rounds - rounds // 4) if tried is None else tried
    best: Outcome | None = None
    made, dry = 0, 0

    def one(entry: tuple[int, Any, Outcome | None, int]):
        index, policy, start, limit = entry
        if stop[0] and index:
            return None
        return run(policy, seed_of(seed, index), limit, stop, start)

    watch = Watch(stop, budget)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while made < rounds and not (made and stop[0]) and not (best and best.time <= bound):
                limit = best.time if best else 2**62
                lineup = []
                for index in range(made, min(rounds, made + (1 if made == 0 else generation))):
                    repairs = best is not None and index >= tried and (dry < 3 or index % 4 > 0)
                    policy = best.policy if best and repairs else offered[index % len(offered)]
                    lineup.append((index, policy, best if repairs else None, limit))
                better = False
                work = pool.map if jobs > 1 and len(lineup) > 1 else map
                for (_, policy, start, _), got in zip(lineup, work(one, lineup), strict=True):
                    if stop[0] and got is None and made:
                        continue
                    made += 1
                    if got is not None and (best is None or got[0] < best.time):
                        best, better = Outcome(got[0], policy, got[1], start is not None, 0, False, 0.0), True
                    elif got is not None and start is not None and got[0] == best.time and not better:
                        # As good and different: the next repair begins elsewhere.
                        best = replace(best, result=got[1])
                    if progress is not None:
                        progress(Progress(best.time if best else 0, bound, made, rounds))
                    if best and best.time <= bound:
                        break
                dry = 0 if better else dry + 1
        finally:
            cut = bool(stop[0])
            stop[0] = 1
            watch.end()
            pool.shutdown(wait=True, cancel_futures=True)
    if best is None:
        return None
    return replace(best, rounds=made, cut=cut and best.time > bound, seconds=watch.seconds)
