"""Progress of a sweep on a terminal: points done, simulated time, expected end. Silent without a terminal."""

import sys
from typing import TextIO

from astrasim_py.core.units import format_time


class Progress:
    """Receives the progress of a run; this class prints nothing."""

    def begin(self, points: int, reused: int) -> None:
        """A run of `points` begins; `reused` of them are finished already."""

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        """A point has ended."""

    def end(self) -> None:
        """The run is over, or is being stopped."""


class Terminal(Progress):
    """A line that changes, drawn by rich."""

    def __init__(self, stream: TextIO, title: str) -> None:
        from rich import progress
        from rich.console import Console

        self.simulated = 0
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[simulated]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TextColumn("to go"),
            progress.TimeRemainingColumn(),
            console=Console(file=stream),
            transient=True,
        )
        self.task = self.bar.add_task(title, total=None, simulated="")

    def begin(self, points: int, reused: int) -> None:
        """Show the line. Finished points are left out, so that the expected end is right."""
        self.bar.update(self.task, total=points - reused)
        self.bar.start()

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        self.simulated += simulated_ps
        self.bar.update(self.task, advance=1, simulated=f"{format_time(self.simulated)} simulated")

    def end(self) -> None:
        self.bar.stop()


def on_terminal(title: str, *, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """Progress for a person: on stderr if it is a terminal, else silent."""
    stream = sys.stderr if stream is None else stream
    try:
        watched = not quiet and stream is not None and stream.isatty()
    except ValueError:  # closed
        watched = False
    return Terminal(stream, title) if watched else Progress()
