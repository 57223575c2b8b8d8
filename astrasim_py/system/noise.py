"""Noise of compute: random times, the same on every machine."""

from typing import Any

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
        given = [value for value in (self.exponential, self.uniform) if value is not None]
        if len(given) != 1:
            what = "both distributions" if given else "no distribution"
            raise wrong(f"says {what}", "write exponential: 10 us, or uniform: [0 us, 20 us]")
        low, high = self.uniform or (0, self.exponential)
        if low > high or high > _LONGEST:
            problem = "the second time is less than the first" if low > high else "more than a day"
            raise wrong(problem, "write a shorter one first" if low > high else "write less")


class Noise(StrictModel):
    """Random times that compute nodes take longer."""

    _place = "noise"

    seed: whole(0, 2**63 - 1) = 0
    compute: ComputeNoise = example("{exponential: 10 us}")

    def times(self, job: str, rank: int, node_id: np.ndarray, iterations: int, last: int) -> np.ndarray:
        """int64[n], ps: how much longer some nodes of a rank take.

        Each draw is a hash of seed, name of the job, rank, and node and iteration. `last`: the largest id of the trace,
        which consists of so many `iterations`.
        """
        ids, size = node_id.astype(np.int64), (last + 1) // iterations
        words = mix(self.seed, int(digest(job)[:16], 16), rank, ids % size, ids // size)
        uniform = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
        low, high = self.compute.uniform or (0, self.compute.exponential)
        drawn = uniform if self.compute.uniform else -logarithm(uniform)
        return low + (drawn * float(high - low)).astype(np.int64)


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
