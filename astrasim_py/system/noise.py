"""Noise of compute: random times, the same on every machine, and interruptions at regular times."""

from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field

from astrasim_py.core.digest import digest
from astrasim_py.core.fields import Time, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.topology.routing import mix

#: Longest mean, ps: one day, so that no draw goes beyond 2^63 - 1 ps.
_LONGEST = 86_400 * 10**12
_LN2 = 0.6931471805599453


class ComputeNoise(StrictModel):
    """The distribution of a random time; exactly one."""

    _place = "noise.compute"
    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    exponential: Time | None = example("10 us", default=None)
    uniform: tuple[Time, Time] | None = Field(default=None, examples=["[0 us, 20 us]"])

    def _complete(self) -> None:
        if (self.exponential is None) == (self.uniform is None):
            amount = "no distribution" if self.uniform is None else "both distributions"
            raise wrong(f"has {amount}", "write exponential: 10 us, or uniform: [0 us, 20 us]")
        low, high = self.bounds
        if low > high or high > _LONGEST:
            problem = "the second time is less than the first" if low > high else "more than a day"
            raise wrong(problem, "write a shorter one first" if low > high else "write less")

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and largest time of a uniform distribution; 0 and the mean of an exponential one."""
        return self.uniform or (0, self.exponential or 0)


class Detours(StrictModel):
    """Interruptions of compute by an operating system: `length` of every `period`."""

    _place = "noise.detours"

    period: Time = example("1 ms")
    length: Time = example("10 us")

    def _complete(self) -> None:
        if not 0 < self.length < self.period:
            raise wrong("a length that is not between 0 and the period", "write e.g. 10 us of 1 ms", ("length",))
        if self.period > _LONGEST:
            raise wrong("more than a day", "write less", ("period",))

    def end(self, now: int, work: int, phase: int) -> int:
        """When (ps) work of more than 0 ps that begins now is done, on a rank of a phase.

        In each period the first `length` is lost, counted from `phase` on (LogGOPSim: Hoefler, Schneider, Lumsdaine,
        HPDC 2010).
        """
        place, useful = (now - phase) % self.period, self.period - self.length
        if place < self.length:
            now, place = now + self.length - place, self.length
        beyond = work - (self.period - place)
        return now + work + (self.length * (1 + (beyond - 1) // useful) if beyond > 0 else 0)


class Noise(StrictModel):
    """Delays of compute: random times, and detours."""

    _place = "noise"

    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    compute: ComputeNoise | None = example("{exponential: 10 us}", default=None)
    detours: Detours | None = example("{period: 1 ms, length: 10 us}", default=None)

    def _complete(self) -> None:
        if self.compute is None and self.detours is None:
            raise wrong("has neither compute nor detours", "write e.g. compute: {exponential: 10 us}")

    def phases(self, job: str, ranks: int) -> np.ndarray:
        """int64[ranks], ps: where detours of the ranks of a job begin, in their period; 0 without detours."""
        period = 1 if self.detours is None else self.detours.period
        words: np.ndarray = mix(self.seed, _number(job), np.arange(ranks))
        return (words % np.uint64(period)).astype(np.int64)

    def times(self, job: str, rank: int, node_id: np.ndarray, iterations: int, last: int) -> np.ndarray:
        """int64[n], ps: how much longer some nodes of a rank take.

        Each draw is a hash of seed, name of the job, rank, and node and iteration. `last`: the largest id of the trace,
        which consists of so many `iterations`.
        """
        ids, size = node_id.astype(np.int64), (last + 1) // iterations
        words = mix(self.seed, _number(job), rank, ids % size, ids // size)
        uniform = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
        if self.compute is None:
            return np.zeros(len(ids), dtype=np.int64)
        low, high = self.compute.bounds
        sample = uniform if self.compute.uniform else -logarithm(uniform)
        return low + (sample * float(high - low)).astype(np.int64)


def _number(job: str) -> int:
    """A number for the name of a job."""
    return int(digest(job)[:16], 16)


def logarithm(values: Any) -> np.ndarray:
    """Natural logarithms of positive doubles by +, -, x and / alone, which give the same on every machine.

    With v = m 2^e and z = (m - 1) / (m + 1): e ln 2 + 2 (z + z^3/3 + … + z^23/23).
    """
    part, exponent = np.frexp(np.asarray(values, dtype=np.float64))
    small = part < 0.7071067811865476
    part, exponent = np.where(small, part * 2.0, part), exponent - small
    z = (part - 1.0) / (part + 1.0)
    square, total = z * z, np.zeros_like(z)
    for power in range(23, 0, -2):
        total = total * square + 1.0 / power
    return exponent * _LN2 + 2.0 * (z * total)
