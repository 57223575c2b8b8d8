"""Claims: pieces of the texts of scenarios and lessons, written out from the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

CLAIMS: dict[str, tuple[Callable[[Rows], Iterator[str]], dict]] = {}


class Rows:
    """Rows of a run by their swept values: times in us, shares of the bound in percent, bus bandwidths in GB/s."""

    def __init__(self, rows: Sequence[Mapping], summaries: Sequence[Mapping]) -> None:
        keys = [tuple(row["sweep"].values()) for row in rows]
        self.rows = dict(zip(keys, rows, strict=True))
        self.summaries = dict(zip(keys, summaries, strict=True))

    def _of(self, key: tuple, column: str) -> float:
        return float(self.rows[key][column])

    def us(self, *key: str) -> float:
        return self._of(key, "time_ns") / 1e3

    def ms(self, *key: str) -> float:
        return self.us(*key) / 1e3

    def s(self, *key: str) -> float:
        return self.us(*key) / 1e6

    def exposed(self, *key: str) -> float:
        return self._of(key, "exposed_comm_ns") / 1e3

    def bound(self, *key: str) -> float:
        return self._of(key, "bound_ns") / 1e3

    def share(self, *key: str) -> float:
        return 100 * self.bound(*key) / self.us(*key)

    def off(self, *key: str) -> float:
        """Seconds by which the time of a folded run can be too short."""
        return (self.summaries[key].get("fold") or {}).get("deviation", 0) / 1e12

    def bus(self, *key: str) -> float:
        return self._of(key, "busbw_GBps")

    def best(self, *key: str | None) -> str:
        """The value in the place of None with which the time is least."""
        place = key.index(None)
        return min(
            (k for k in self.rows if all(b in (None, a) for a, b in zip(k, key, strict=True))),
            key=lambda k: self.us(*k),
        )[place]


def claims(*overrides: str, marks=pytest.mark.slow):
    """Register the claims of the scenario that the function is called as."""

    def register(function):
        CLAIMS[function.__name__] = function, {"overrides": overrides, "marks": marks}
        return function

    return register


def listed(values, form: str) -> str:
    *first, last = (format(value, form) for value in values)
    return f"{', '.join(first)} and {last}"
