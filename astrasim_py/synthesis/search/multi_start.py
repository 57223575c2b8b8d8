"""Multi-start: many runs compete and the best one is repaired, until the bound is met or runs or time are used up.

Run i is one policy with one seed, whatever the machine. A generation is fixed before it begins, so the result does not
depend on the number of threads: it is the fastest run, the first of equal ones. Only a limit of wall-clock time
can make two machines differ; the outcome then says `cut`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any

import numpy as np

from astrasim_py.core.compiling import clock
from astrasim_py.synthesis.model.schedule import Search

#: Seconds between two looks at the clock, and between two lines about a run that takes long.
_BEAT, _TOLD = 0.02, 2.0
#: Generations without a better schedule after which some runs restart from nothing.
_PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a search; times in ps."""

    best: int  # 0 while there is none
    bound: int
    rounds: int
    of: int
    part: float | None = None  # how much of a long run under way is done; None when a run has ended
    stage: str = ""  # another activity than searching: ``bound``, ``forest`` or ``check``
    search: str = ""  # which of several searches, as ``reduce_scatter half``

    @property
    def gap(self) -> float:
        """How far the best is above the bound, as a fraction of the bound."""
        # Searches treat chunks that differ by a byte as equal, so a run may end before the bound of equal chunks.
        return max(self.best / self.bound - 1, 0.0) if self.best and self.bound else 0.0


class Halt:
    """An interrupt of a search from outside, which sets the stop signals of all that is under way. `on`: it came."""

    def __init__(self) -> None:
        self.on = False
        self._signals: list[np.ndarray] = []

    def signal(self, stop: np.ndarray | None = None) -> np.ndarray:
        """A stop signal that the interrupt sets."""
        stop = np.zeros(1, dtype=np.int64) if stop is None else stop
        self._signals.append(stop)
        if self.on:
            stop[0] = 1
        return stop

    def set(self) -> None:
        self.on = True
        for stop in self._signals:
            stop[0] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits and resources of a search."""

    seed: int = 1  # another one makes other runs
    rounds: int = 200  # runs at most
    budget: float | None = None  # wall-clock seconds; the first run is made in any case
    jobs: int | None = None  # threads; as many as the machine has cores by default. They do not change the result.
    progress: Callable[[Progress], None] | None = None  # called with a `Progress` after every run, and during long ones
    memory: int | None = None  # bytes of the process at most; stages that would take more are left out
    halt: Halt = field(default_factory=Halt)

    def told_as(self, search: str, best: int = 0) -> Effort:
        """The same effort, whose progress names the search and includes the best time found before."""
        report = self.progress
        if report is None:
            return self

        def tell(state: Progress) -> None:
            report(replace(state, search=search, best=min(state.best or best, best or state.best)))

        return replace(self, progress=tell)


@dataclass(frozen=True, slots=True)
class BestRun:
    """The best of competing runs."""

    time: int  # ps
    policy: Any  # of the run that was best before it was repaired
    result: Any  # of the best run
    repaired: bool = False
    rounds: int = 0  # runs made
    cut: bool = False  # whether the limit of wall-clock time ended the search
    seconds: float = 0.0  # wall-clock time, compilation excluded


def search_of(found: BestRun, effort: Effort, policy: str, rounds: int | None = None) -> Search:
    made = found.rounds if rounds is None else rounds
    return Search(seed=effort.seed, policy=policy, rounds=made, cut=found.cut, seconds=found.seconds)


class Watch:
    """Sets a stop signal when the time of a search is over (compilation is free), and calls `tell` now and then.

    `halt`: an interrupt ends that time.
    """

    def __init__(
        self,
        stop: np.ndarray,
        budget: float | None,
        tell: Callable[[], None] | None = None,
        *,
        halt: Halt | None = None,
    ) -> None:
        self.stop, self._budget, self._tell = stop, budget, tell
        self.halt = halt or Halt()
        self.halt.signal(stop)
        self._ended = Event()
        self.begin = clock()
        if budget is not None or tell is not None:
            Thread(target=self._look, daemon=True).start()

    @property
    def seconds(self) -> float:
        return clock() - self.begin

    @property
    def over(self) -> bool:
        return self.halt.on or (self._budget is not None and self.seconds > self._budget)

    def left(self, share: float = 1.0) -> float | None:
        """A share of the seconds that are left; None: any number."""
        if self.halt.on:
            return 0.0
        return None if self._budget is None else max(self._budget - self.seconds, 0.0) * share

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        told = time.monotonic()
        while not self._ended.wait(_BEAT if self._budget is not None else _TOLD):
            if self.over:
                self.stop[0] = 1
            if self._tell is not None and time.monotonic() - told >= _TOLD:
                told = time.monotonic()
                self._tell()


def in_turn(offered: Sequence, tried: int) -> Callable:
    """A line-up: first policies in turn, then repairs; after dry generations one run in four begins anew."""

    def lineup(made: int, size: int, best: BestRun | None, scores: dict, dry: int) -> list:
        entries: list[tuple[Any, BestRun | None]] = []
        for index in range(made, made + size):
            repaired = best if index >= tried and (dry < _PATIENCE or index % 4 > 0) else None
            policy = offered[index % len(offered)] if repaired is None else repaired.policy
            entries.append((policy, repaired))
        return entries

    return lineup


def compete(
    lineup: Callable,
    run: Callable[..., tuple[int, Any] | None],
    bound: int,
    effort: Effort,
    *,
    generation: int = 16,
    part: Callable[[], float] | None = None,
    stop: np.ndarray | None = None,
) -> BestRun | None:
    """The best of many runs; None if none came about.

    ``lineup(made, size, best, scores, dry)`` gives the next runs as (policy, outcome to repair or None), from the
    number of runs made, the best outcome, the least time by policy, and the generations since a better one.
    ``run(policy, seed, limit, stop, start)`` gives (time in ps, result), or None if nothing is as fast as `limit`.
    A run that meets `bound` ends the search. `part` says how much of a long run is done. `stop`: a signal to be used.
    """
    stop = np.zeros(1, dtype=np.int64) if stop is None else stop
    rounds, progress, jobs = effort.rounds, effort.progress, effort.jobs or os.cpu_count() or 1
    best: BestRun | None = None
    scores: dict[Any, int] = {}
    made, dry = 0, 0

    def tell(share: float | None = None) -> None:
        if progress is not None:
            progress(Progress(best.time if best else 0, bound, made, rounds, share))

    def one(entry: tuple[int, Any, BestRun | None, int]):
        index, policy, start, limit = entry
        if index and (stop[0] or watch.over):
            stop[0] = 1
            return None
        return run(policy, seed_of(effort.seed, index), limit, stop, start)

    watch = Watch(
        stop, effort.budget, None if part is None or progress is None else lambda: tell(part()), halt=effort.halt
    )
    with ThreadPoolExecutor(jobs) as pool:
        try:
            while made < rounds and not (made and stop[0]) and not (best and best.time <= bound):
                size = min(rounds - made, generation) if made else 1
                limit = best.time if best else 2**62
                entries = [
                    (made + i, policy, start, limit)
                    for i, (policy, start) in enumerate(lineup(made, size, best, scores, dry))
                ]
                better = False
                work = pool.map if jobs > 1 and len(entries) > 1 else map
                for (_, policy, start, _), got in zip(entries, work(one, entries), strict=True):
                    if stop[0] and got is None and made:
                        continue
                    made += 1
                    if got is not None:
                        if start is None:
                            scores[policy] = min(scores.get(policy, 2**62), got[0])
                        if best is None or got[0] < best.time:
                            best, better = BestRun(got[0], policy, got[1], start is not None), True
                        elif start is not None and got[0] == best.time and not better:
                            # As good and different: the next repair begins elsewhere.
                            best = replace(best, result=got[1])
                    tell()
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


def seed_of(seed: int, index: int) -> int:
    """The seed of a run of a search."""
    return (seed * 1_000_003 + index) % 2**31
