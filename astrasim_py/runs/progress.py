"""Progress of a sweep on a terminal or in a notebook: points done, simulated time, expected end. Else silent."""

import sys
import time
from typing import TextIO

from astrasim_py.core.units import format_time, number_of


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


class Notebook(Progress):
    """A line of text that changes in the output of a cell; bars of rich need widgets there."""

    def __init__(self, title: str) -> None:
        self.title, self.points, self.done, self.simulated = title, 0, 0, 0
        self.began = self.shown = 0.0
        self.handle = None

    def begin(self, points: int, reused: int) -> None:
        from IPython.display import display

        self.points, self.began = points - reused, time.monotonic()
        if self.points:
            self.handle = display(self._line(), raw=True, display_id=True)

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        self.done += 1
        self.simulated += simulated_ps
        now = time.monotonic()
        if now - self.shown > 0.1:
            self.shown = now
            left = (now - self.began) * (self.points / self.done - 1)
            self._update(f", {format_time(self.simulated)} simulated, {left:.0f} s to go")

    def end(self) -> None:
        self._update("")

    def _update(self, more: str) -> None:
        if self.handle is not None:
            self.handle.update(self._line(more), raw=True)

    def _line(self, more: str = "") -> dict[str, str]:
        return {"text/plain": f"{self.title}: {self.done} of {number_of(self.points, 'point')}{more}"}


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def on_terminal(title: str, *, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """Progress for a person: in a notebook, or on stderr if it is a terminal; else silent."""
    if stream is None and not quiet and _in_notebook():
        return Notebook(title)
    stream = sys.stderr if stream is None else stream
    try:
        watched = not quiet and stream is not None and stream.isatty()
    except ValueError:  # closed
        watched = False
    return Terminal(stream, title) if watched else Progress()
