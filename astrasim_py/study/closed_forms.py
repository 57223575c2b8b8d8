"""Closed forms: what an algorithm costs, written down as the messages that follow each other, in whole picoseconds.

Every algorithm here moves its messages in rounds of equal messages that share no link, so that its time is the sum
over rounds of what one message costs. Nothing is taken from the simulator: neither sizes, nor routes, nor rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.records import Records

#: Latency of a link and time per byte (50 GB/s), ps.
LATENCY, BYTE = 500_000, 20


def _halves(n: int, size: int) -> list[int]:
    return [size >> i for i in range(1, n.bit_length())]


#: (algorithm, collective) → bytes of each round's message, for n ranks (a power of two where it halves) and S bytes.
ROUNDS: Mapping[tuple[str, str], Callable[[int, int], list[int]]] = {
    ("ring", "all_reduce"): lambda n, s: [s // n] * (2 * (n - 1)),
    ("ring", "all_gather"): lambda n, s: [s // n] * (n - 1),
    ("ring", "reduce_scatter"): lambda n, s: [s // n] * (n - 1),
    ("ring", "broadcast"): lambda n, s: [s] * (n - 1),
    ("direct", "all_reduce"): lambda n, s: [s // n] * 2,
    ("direct", "all_gather"): lambda n, s: [s // n],
    ("direct", "all_to_all"): lambda n, s: [s // n],
    ("pairwise", "all_to_all"): lambda n, s: [s // n] * (n - 1),
    ("bruck", "all_gather"): lambda n, s: _halves(n, s)[::-1],
    ("halving_doubling", "all_reduce"): lambda n, s: _halves(n, s) + _halves(n, s)[::-1],
    ("halving_doubling", "reduce_scatter"): _halves,
    ("recursive_doubling", "all_reduce"): lambda n, s: [s] * (n.bit_length() - 1),
    ("binomial_tree", "broadcast"): lambda n, s: [s] * (n.bit_length() - 1),
    ("dissemination", "barrier"): lambda n, s: [0] * (n.bit_length() - 1),
}

#: Links that a message crosses, by shape; every pair of ranks has links of its own.
HOPS = {"fully_connected": 1, "switch": 2}
#: One round sends to all ranks at once: through a switch those messages would share a link.
_AT_ONCE = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """One algorithm on one network, with the time that it must take."""

    algorithm: str
    collective: str
    npus: int
    size: int
    shape: str
    model: str

    set = "closed_forms"
    judged = True

    @property
    def place(self) -> str:
        return f"{self.algorithm} {self.collective}"

    @property
    def label(self) -> str:
        return f"{self.npus} NPUs, {self.size} B, {self.shape}, {self.model}"

    def expected_ps(self) -> int:
        """The sum over rounds."""
        hops = HOPS[self.shape]
        times = hops if self.model == "store_and_forward" else 1
        return sum(
            hops * LATENCY + times * nbytes * BYTE
            for nbytes in ROUNDS[self.algorithm, self.collective](self.npus, self.size)
        )

    def run(self, engine: str = "auto") -> Records:
        """Simulate it."""
        from astrasim_py.api import collective
        from astrasim_py.engine.simulation import simulate
        from astrasim_py.topology.shapes import SHAPES

        topology = SHAPES[self.shape](npus=self.npus, bandwidth=Fraction(10**12, BYTE), latency=LATENCY).build()
        problem = collective(self.collective, self.size, topology, algorithm=self.algorithm, model=self.model)
        return simulate(problem, engine=engine, level="summary")


def closed_forms() -> Iterator[ClosedForm]:
    """Every algorithm at every size, shape and model."""
    for algorithm, collective in ROUNDS:
        sizes = (0,) if collective == "barrier" else (4096, 2**24)
        shapes = [shape for shape in HOPS if algorithm != _AT_ONCE or shape == "fully_connected"]
        for npus, size, shape, model in product((2, 8), sizes, shapes, sorted(NETWORK_MODELS)):
            yield ClosedForm(algorithm=algorithm, collective=collective, npus=npus, size=size, shape=shape, model=model)
