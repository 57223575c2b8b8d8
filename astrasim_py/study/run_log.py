"""What every study says of itself: this package's version, the limits, lines for a person."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from astrasim_py.system.machine_models import Limits


@cache
def package_version() -> str:
    """Version of this package."""
    try:
        return version("astrasim-py")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"


def limits_json(limits: Limits) -> dict[str, int | None]:
    """Limits as plain values."""
    return {"max_events": limits.max_events, "max_sim_time_ps": limits.max_sim_time_ps}


@dataclass(slots=True)
class RunLog:
    """Lines for a person about what was done beside what was asked."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """One more."""
        if line not in self.lines:
            self.lines.append(line)
