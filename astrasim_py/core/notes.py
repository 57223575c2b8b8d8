"""What a person should know of an input: lines that its readers collect."""

import warnings
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Notes:
    """Lines that a reader collects, each with the file or place that it is about.

    Attributes
    ----------
    warnings : list of str
        What may make a result wrong: a run ends with it, or fails for it under ``--strict``.
    hints : list of str
        What is worth knowing and makes nothing wrong.
    synthesized : list of dict
        Facts of each algorithm that was synthesized.
    trainings : list of dict
        Software and state of the machine of each training: ``job``, ``software``, ``state``, ``state_source``.
    """

    warnings: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    synthesized: list[dict[str, Any]] = field(default_factory=list)
    trainings: list[dict[str, Any]] = field(default_factory=list)

    def add(self, others: "Notes") -> None:
        """Take the lines of others."""
        self.warnings.extend(others.warnings)
        self.hints.extend(others.hints)
        self.synthesized.extend(others.synthesized)
        self.trainings.extend(others.trainings)

    def warn_once(self, text: str) -> None:
        """A warning, unless it is there already."""
        if text not in self.warnings:
            self.warnings.append(text)

    def warn(self, stacklevel: int = 3) -> None:
        """Say all lines as Python warnings, by default at the line that called the caller."""
        for text in (*self.warnings, *self.hints):
            warnings.warn(text, UserWarning, stacklevel=stacklevel)
