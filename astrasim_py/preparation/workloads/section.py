"""A job as a scenario writes it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from astrasim_py.core.errors import ScenarioError
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.topology.model import Topology


@dataclass(frozen=True, kw_only=True)
class JobSection:
    """A job of several, or the point itself as the only one.

    `spec`: its keys. `key`: where they stand, ``jobs.NAME``, or empty. `placement`: the kind of placement that holds
    for it, or its NPUs; None where it takes NPUs that other jobs leave.
    """

    run: Preparation
    topology: Topology
    spec: Any
    key: str
    placement: Any

    @property
    def name(self) -> str:
        """What its workload is called."""
        return self.key.removeprefix("jobs.") or self.run.point.scenario

    @property
    def ranks(self) -> int | None:
        """How many ranks are written; None where none are."""
        return getattr(self.spec, "ranks", None)

    @property
    def made_ranks(self) -> int:
        """How many ranks a workload is made for: those that are written, those placed, or all NPUs."""
        if self.ranks is not None:
            return self.ranks
        return len(self.placement) if isinstance(self.placement, tuple) else len(self.topology.alive)

    def at(self, *path: str) -> str:
        """The place of a key of the job, for errors."""
        return self.run.at(self.key, *path)

    def warn(self, lines: Iterable[str]) -> None:
        """Warn of the point."""
        self.run.notes.warnings.extend(f"{self.run.point.name}: {text}" for text in lines)


def refuse_beyond(listed: Iterable[int], ranks: int, place: str) -> None:
    """Raise ScenarioError: a rank that is not there."""
    for rank in listed:
        if rank >= ranks:
            raise ScenarioError(place, f"rank {rank} does not exist: there are {ranks}", f"write 0 to {ranks - 1}")
