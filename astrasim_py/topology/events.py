"""Links that fail, change and return during a run."""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """From `at_ps` on these links are lost, and others changed; every other is as in the topology.

    `changes`: links, their bandwidth (bytes/s) and latency (ps); None: as it was.
    """

    at_ps: int
    lost: tuple[int, ...] = ()
    changes: tuple[tuple[tuple[int, ...], Fraction | None, int | None], ...] = ()
