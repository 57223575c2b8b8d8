"""What compiling says and costs, known without the compiler: announcements, and clocks that stand still meanwhile."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self

#: Called with a line of text before a function is compiled; None: no announcements.
announce: Callable[[str], None] | None = None

#: Spent on compiling and loading: CPU seconds; wall-clock seconds, and when the present compilation began, if any.
_spent = 0.0
_paused: tuple[float, float | None] = 0.0, None
#: One thread compiles or loads at a time.
_turn = threading.RLock()


class Once:
    """Says the first line that it is called with. `said`: whether it has, as an object with a field ``value``, which
    the processes of a run share.
    """

    def __init__(self, say: Callable[[str], None], said: Any = None) -> None:
        self.say, self.said = say, SimpleNamespace(value=False) if said is None else said

    @classmethod
    def of(cls, say: Callable[[str], None]) -> Self:
        """What says so once, if it does not yet."""
        return say if isinstance(say, cls) else cls(say)

    def __call__(self, line: str) -> None:
        with self.said.get_lock() if hasattr(self.said, "get_lock") else contextlib.nullcontext():
            before, self.said.value = self.said.value, True
        if not before:
            self.say(line)


def cpu_s() -> float:
    """CPU seconds of this process without those spent on compiling or on loading compiled code."""
    return time.process_time() - _spent


def clock() -> float:
    """Wall-clock seconds since some moment; the clock stands still while code is compiled or loaded."""
    halted, since = _paused
    return (time.monotonic() if since is None else since) - halted


@contextlib.contextmanager
def clocks_stopped() -> Iterator[None]:
    """Let one thread compile or load, and stop the clocks of this module."""
    global _spent, _paused
    with _turn:
        halted, since = _paused
        if since is not None:
            yield
            return
        cpu, begin = time.process_time(), time.monotonic()
        _paused = halted, begin
        try:
            yield
        finally:
            _paused = halted + time.monotonic() - begin, None
            _spent += time.process_time() - cpu
