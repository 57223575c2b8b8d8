"""How many chunks each shard is cut into: a closed form, and at most three trials.

With k chunks a shard the last ones still follow one another down the trees when the links are through: T(k) is about
S/A · (1 + f/k) + D + k·m·o, for S bytes at the rate A of the network, fill f (chunk times that links idle at the ends),
latency D, and m messages a link for each number of chunks, each of which holds it o longer than its bytes.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, sqrt

import numpy as np

from astrasim_py.core.units import PS_PER_S
from astrasim_py.cuts.certificate import Certificate
from astrasim_py.synthesis.bounds.lower_bounds import longest_path, lower_bounds
from astrasim_py.synthesis.memory import bytes_of
from astrasim_py.synthesis.model.demand import MAX_CHUNKS
from astrasim_py.synthesis.model.insertion import NEVER
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.model.queueing import Queues
from astrasim_py.synthesis.model.schedule import Bound, Schedule
from astrasim_py.synthesis.portfolio import checked, searched, tell
from astrasim_py.synthesis.request import Request
from astrasim_py.synthesis.search.forests import MAX_JOINT, Forests, forests, grown, may_pack
from astrasim_py.synthesis.search.multi_start import Effort, Progress, Watch

#: Loss of time that chunks are chosen for, and fill that is assumed before it is measured.
_LOSS, _FILL = 0.003, 2.0
#: Losses from which on forests are not cut finer, and nothing else is searched for.
_ENOUGH, _NEAR = 0.006, 0.02
#: Transfers of the first schedule at most, and of one that is searched for by other means than forests.
MAX_FIRST, MAX_SEARCHED = 2**17, 2**18
#: Latencies of which the transmission takes more where only forests are tried.
_WIDE = 8
#: Trials of forests after the first.
_MORE = 2
#: Pairs of chunk and arc that one greedy run looks at, and that all of them do (about ten seconds); fewest runs.
_ONE, _ALL, _FEWEST = 2**19, 2**23, 20
#: The first of an all_reduce, whose trees of sums and copies are packed one by one.
_ONE_SUM = 2**15
#: Seconds of a budget in which nothing but the first schedule is made.
_SHORTEST = 0.02
#: Runs with one chunk per shard.
_FIRST = 4
#: Numbers of chunks for greedy runs, the largest that is cheap enough is taken.
_GREEDY = (16, 8, 4, 2, 1)


class ChunkChoice:
    """The search over numbers of chunks for a request."""

    def __init__(
        self, request: Request, network: Network, proof: Certificate | None, effort: Effort, *, record: bool
    ) -> None:
        self.request, self.network, self.effort, self.record = request, network, effort, record
        self.watch = Watch(np.zeros(1, dtype=np.int64), effort.budget, halt=effort.halt)
        # A clock that looks less often than that would let a fast machine do more than a slow one.
        self.watch.stop[0] |= effort.budget is not None and effort.budget < _SHORTEST
        once, n = request.demand(1), network.ranks
        self.spreads = once.receivers is None
        #: Transfers with one chunk per shard.
        self.once = once.count * (n - 1 if self.spreads else 2) * (1 + (request.collective == "all_reduce"))
        self.latency = longest_path(network, once)
        self.bound = self._bound(proof)
        #: Whether no all_reduce is faster than a reduce_scatter and an all_gather.
        self.halved = proof is not None and proof.exact
        #: Transmission alone, ps.
        self.flow = 0 if proof is None else int(request.size * PS_PER_S / proof.rate)
        self.best: Schedule | None = None
        self.chunks = 1

    def _bound(self, proof: Certificate | None) -> Bound:
        """The bound of all numbers of chunks."""
        latency = Bound(self.latency, "path")
        return latency if proof is None or proof.time_ps < self.latency else Bound(proof.time_ps, proof.kind)

    def schedule(self) -> tuple[Schedule, int]:
        """The best schedule, checked, and its chunks per shard."""
        try:
            once, memory = self.request.demand(1), self.effort.memory
            fits = memory is None or bytes_of(self.network, once, "forest") <= memory
            if fits and self.spreads and may_pack(self.network, once):
                self._keep_whole()
                if self._loss > _ENOUGH:
                    self._grow()
            # Where bandwidth counts most, nothing else comes as near to the bound as forests.
            done = self._near or self.flow > _WIDE * self.latency or self.effort.halt.on
            if self.best is None or not done:
                self._search()
            assert self.best is not None
            checked(self.best, self.effort)
        finally:
            self.watch.end()
        cut = self.best.search.cut or (self.watch.over and self.best.time > self.bound.time)
        if not self.record:
            nothing = {name: getattr(self.best, name)[:0] for name in ("arc", "chunk", "start", "reduces")}
            self.best = replace(self.best, **nothing)
        how = replace(self.best.search, seconds=self.watch.seconds, seed=self.effort.seed, cut=cut)
        return replace(self.best, bound=self.bound.time, bound_kind=self.bound.kind, search=how), self.chunks

    @property
    def _near(self) -> bool:
        return self._loss <= _NEAR

    def _most(self, transfers: int) -> int:
        transfers = min(transfers, self.request.transfers)
        demand, memory = self.request.demand(1), self.effort.memory
        if memory is not None and self.record:
            fixed, whole = (bytes_of(self.network, demand, "forest", chunks) for chunks in (0, 1))
            transfers = min(transfers, (memory - fixed) * self.once // max(whole - fixed, 1))
        most = min(transfers // max(self.once, 1), MAX_CHUNKS // max(demand.count, 1))
        # No chunk is without bytes.
        return max(1, min(most, self.request.size // max(demand.chunks, 1) if self.request.size else most))

    def _wished(self, fill: float) -> int:
        """The number of chunks of the closed form."""
        network = self.network
        if network.cost.link_busy == "latency+bytes":
            # Every message holds its links for their latency: the least of f·S/A/k + k·m·o.
            arcs, messages = network.arcs / network.ranks, self.once / network.ranks
            overhead = float(np.mean(network.topology.latency_ps[network.links])) * messages / arcs
            return max(1, round(sqrt(fill * self.flow / max(overhead, 1))))
        return max(1, ceil(fill * self.flow / (_LOSS * max(self.flow + self.latency, 1))))

    def _keep_whole(self) -> None:
        """A few runs with one chunk per shard, where no bound says that these lose."""
        demand = self.request.demand(1)
        small = demand.count * self.network.arcs <= _ONE and demand.collective != "all_reduce"
        if small and lower_bounds(self.network, demand)[0].time <= self.bound.time * (1 + _ENOUGH):
            effort = replace(self.effort, rounds=min(self.effort.rounds, _FIRST), budget=self.watch.left())
            self._offer(searched(self.network, demand, effort, self.watch, record=self.record), 1)

    # -- forests ---------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Forests at the number of chunks of the closed form, then at the one that the measured fill asks for."""
        request, most = self.request, self._most(self.request.transfers)
        # Where latency counts most, trees are no good guess: other searches follow.
        wished = min(self._wished(_FILL), self._most(MAX_FIRST if self.flow > self.latency else MAX_FIRST // 8))
        packed = self._packed(wished, joint=False)
        if packed is None:
            return
        self._forest(packed, wished)
        if request.collective == "all_reduce" and not self.halved and self.network.ranks <= MAX_JOINT:
            # Roots of sums may be chosen better.
            other = self._packed(wished, joint=True)
            if other is not None and other.rate > packed.rate:
                packed = other
                self._forest(packed, wished)
        for _ in range(_MORE):
            # Chunks shorten what links idle at the ends, not the way.
            loss = self._loss - self.latency / max(self.bound.time, 1)
            again = min(ceil(max(self.chunks, wished) * loss / _LOSS), most)
            idle = loss <= _ENOUGH or self.flow <= self.latency
            if self.best is None or idle or again <= self.chunks or self.watch.over:
                break
            if not self._forest(packed, again) or again == most:
                break

    def _packed(self, trees: int, *, joint: bool) -> Forests | None:
        request, stop = self.request, self.watch.stop
        tell(self.effort, "forest", self.best)
        return forests(self.network, request.collective, request.root, joint=joint, most=trees, stop=stop)

    @property
    def _loss(self) -> float:
        """Share of the time of the best schedule above the bound."""
        return 1.0 if self.best is None else self.best.time / max(self.bound.time, 1) - 1

    def _forest(self, packed: Forests, chunks: int) -> bool:
        """Try forests with a number of chunks; whether that is the best."""
        # Every tree gets as many.
        chunks = max(chunks // packed.per_shard, 1) * packed.per_shard if chunks >= packed.per_shard else chunks
        demand, least = self.request.demand(chunks), self.best.time if self.best else NEVER
        queues = Queues(self.network, demand)
        found = grown(packed, queues, self.bound, self.bound.time, least, self.effort.seed, self.watch.stop)
        return found is not None and self._offer(found, chunks)

    # -- other searches --------------------------------------------------------------------------------------------

    def _search(self) -> None:
        """Other searches, at numbers of chunks that they can look at."""
        most = self._most(MAX_SEARCHED)
        wished = min(self._wished(_FILL), most)
        tried: list[int] = []
        if self.spreads:
            cells = self.network.ranks * self.network.arcs
            largest = _ONE_SUM if self.request.collective == "all_reduce" else _ONE
            few = next((k for k in _GREEDY if k <= wished and k * cells <= largest), 1)
            tried = [few] if self.best is not None else [few, min(8 * few, wished), min(4 * few, wished)]
        else:
            tried = [1, min(4, wished), min(16, wished)]
        for chunks in dict.fromkeys(tried):
            if self._near or (self.best is not None and self.watch.over):
                break
            before = self.best.time if self.best else NEVER
            demand = self.request.demand(chunks)
            if self.best is not None and longest_path(self.network, demand, whole=True) >= self.best.time:
                continue
            rounds = self.effort.rounds
            if self.request.collective == "all_reduce":
                # Each packs trees of sums and copies, besides.
                rounds = min(rounds, _FEWEST)
            elif self.spreads:
                rounds = min(rounds, max(_ALL // max(self.network.arcs * demand.count, 1), _FEWEST))
            effort = replace(self.effort, rounds=rounds, budget=self.watch.left())
            try:
                found = searched(self.network, demand, effort, self.watch, record=self.record)
            except KeyboardInterrupt:
                if self.best is None:
                    raise
                break
            self._offer(found, chunks)
            if found.time >= before:
                break

    def _offer(self, schedule: Schedule, chunks: int) -> bool:
        better = self.best is None or schedule.time < self.best.time
        search = schedule.search if self.best is None else schedule.search.after(self.best.search)
        if better:
            self.best, self.chunks = replace(schedule, search=search), chunks
        elif self.best is not None:
            self.best = replace(self.best, search=self.best.search.after(schedule.search))
        if self.effort.progress is not None and self.best is not None:
            made = self.best.search.rounds
            self.effort.progress(Progress(self.best.time, self.bound.time, made, made, search=f"{chunks} chunks"))
        return better
