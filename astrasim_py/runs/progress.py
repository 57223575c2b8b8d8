"""Progress as a line that changes, on a terminal or in a notebook; elsewhere silent, or a line now and then."""

import sys
import time
from contextlib import suppress
from threading import Event, Thread
from typing import Any, TextIO

from astrasim_py.core.units import format_time, number_of


class Line:
    """What is being done, in words; a context, at the end of which the line goes. This class shows nothing."""

    def show(self, text: str) -> None:
        """Say what is being done now."""

    def end(self) -> None:
        """Show nothing more."""

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class TerminalLine(Line):
    """A line with the seconds since it began, which rich keeps below whatever else is printed meanwhile."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self.text, self.began = "", time.monotonic()

        def now() -> Text:
            return Text(_timed(self.text, self.began), no_wrap=True, overflow="ellipsis")

        self.live = Live(console=Console(file=stream), transient=True, get_renderable=now)

    def show(self, text: str) -> None:
        self.text = text
        self.live.start(refresh=True)

    def end(self) -> None:
        self.live.stop()


class NotebookLine(Line):
    """A line in the output of a cell; what rich draws needs widgets there."""

    def __init__(self) -> None:
        self.text, self.shown = "", 0.0
        self.handle: Any = None

    def show(self, text: str) -> None:
        from IPython.display import display

        self.text, now = text, time.monotonic()
        if self.handle is None:
            self.handle = display({"text/plain": text}, raw=True, display_id=True)
        elif now - self.shown > 0.1:
            self.shown = now
            self.handle.update({"text/plain": text}, raw=True)

    def end(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": self.text}, raw=True)


class RepeatedLines(Line):
    """For a file or a program that reads: a line of its own every so many seconds, whatever takes that long."""

    def __init__(self, stream: TextIO, every: float) -> None:
        self.stream, self.every, self.text = stream, every, ""
        self.began = time.monotonic()
        self.ended = Event()
        self.thread = Thread(target=self._repeat, daemon=True)
        self.thread.start()

    def show(self, text: str) -> None:
        self.text = text

    def _repeat(self) -> None:
        while not self.ended.wait(self.every):
            if self.text:
                with suppress(OSError, ValueError):  # closed
                    print(f"astrasim-py: {_timed(self.text, self.began)}", file=self.stream, flush=True)

    def end(self) -> None:
        self.ended.set()
        self.thread.join()


def _timed(text: str, began: float) -> str:
    return f"{text} ({time.monotonic() - began:.0f} s)"


def progress_line(*, quiet: bool = False, stream: TextIO | None = None, every: float | None = None) -> Line:
    """A line for a person: on stderr, if it is a terminal, or in a notebook.

    `every`: seconds after which it is said again where it is neither; None: never.
    """
    ipython = sys.modules.get("IPython")
    if stream is None and not quiet and ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return NotebookLine()
    stream = sys.stderr if stream is None else stream
    if quiet or stream is None:
        return Line()
    with suppress(ValueError):  # closed
        if stream.isatty():
            return TerminalLine(stream)
    return Line() if every is None else RepeatedLines(stream, every)


class Progress:
    """Receives the progress of a run; this class shows nothing."""

    def begin(self, points: int, reused: int) -> None:
        """A run of `points` begins; `reused` of them are finished already."""

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        """A point has ended."""

    def end(self) -> None:
        """The run is over, or is being stopped."""


class PointsProgress(Progress):
    """Points done, simulated time and expected end, on a line."""

    def __init__(self, title: str, line: Line) -> None:
        self.title, self.line, self.points, self.done, self.simulated_ps, self.began = title, line, 0, 0, 0, 0.0

    def begin(self, points: int, reused: int) -> None:
        """Finished points are left out, so that the expected end is right."""
        self.points, self.began = points - reused, time.monotonic()
        self._show("")

    def point(self, name: str, status: str, simulated_ps: int) -> None:
        self.done += 1
        self.simulated_ps += simulated_ps
        left_s = (time.monotonic() - self.began) * (self.points / self.done - 1)
        self._show(f", {format_time(self.simulated_ps)} simulated, {left_s:.0f} s to go")

    def end(self) -> None:
        self._show("")
        self.line.end()

    def _show(self, suffix: str) -> None:
        if self.points:
            self.line.show(f"{self.title}: {self.done} of {number_of(self.points, 'point')}{suffix}")


def on_terminal(title: str, *, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """Progress of points for a person: in a notebook, or on stderr if it is a terminal; else silent."""
    return PointsProgress(title, progress_line(quiet=quiet, stream=stream))
