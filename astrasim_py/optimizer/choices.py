"""A choice: one thing of a step that can be done in several ways."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

#: What can be chosen, as ``--over`` names it.
KINDS = ("algorithms", "chunks", "tiles", "buckets", "order", "priority", "placement")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing that can be done in several ways.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    name : str
        What is chosen, for people.
    job : str
        The job that it belongs to; empty where a scenario has no jobs.
    values : tuple
        Ways that are known from the start, hashable and plain; the first is what the scenario has.
    whole : bool
        Whether there are no others.
    """

    kind: str
    name: str
    job: str = ""
    values: tuple
    whole: bool = True

    def apply(self, config: dict[str, Any], value: Any) -> None:
        """Write a value, other than the first, into the configuration of a point."""

    def move(self, value: Any, random: Random, likely: Sequence = ()) -> Any:
        """A value near another one; `likely`: values that have proved good."""
        alternatives = [candidate for candidate in self.values if candidate != value]
        return random.choice(alternatives) if alternatives else value

    def say(self, value: Any) -> str:
        """A value for people."""
        return str(value)


@dataclass(frozen=True, kw_only=True)
class KeyChoice(Choice):
    """The value of one key. `path`: keys below the job's, or below the scenario's; None drops the key."""

    path: tuple[str | int, ...]

    def apply(self, config: dict[str, Any], value: Any) -> None:
        below: Any = holder(config, self.job)
        for key in self.path[:-1]:
            below = below.setdefault(key, {}) if isinstance(below, dict) else below[key]
        if value is None:
            below.pop(self.path[-1], None)
        else:
            below[self.path[-1]] = value

    def say(self, value: Any) -> str:
        return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def holder(config: dict[str, Any], job: str) -> dict[str, Any]:
    """The keys of a job in the configuration of a point."""
    return config["jobs"][job] if job else config
