"""Work in a thread of its own, which no signal reaches."""

import threading
import time
from collections.abc import Callable
from typing import Any


class _Shielded(threading.Thread):
    """A thread that does some work. `stopped`: whether nobody waits for it any more."""

    def __init__(self, work: Callable[[], Any], *, daemon: bool = False) -> None:
        super().__init__(name="uninterrupted", daemon=daemon)
        self.work, self.stopped, self._done = work, threading.Event(), threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        finally:
            self._done.set()

    def wait(self) -> None:
        # Some systems notice Ctrl-C only between waits. `join` takes an interrupted thread for ended.
        while not self._done.wait(1.0):
            pass

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def uninterrupted(work: Callable[[], Any]) -> Any:
    """The result of some work that no interrupt leaves half done.

    Signals reach the main thread only, so another one does the work, and the main thread waits. An exception of a
    signal's handler (KeyboardInterrupt, a test's time limit) ends the waiting, not the work, except where it pauses.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    thread = _Shielded(work)
    try:
        thread.start()
        thread.wait()
    except BaseException:
        thread.stopped.set()
        raise
    return thread.answer()


def ended_early(work: Callable[[], Any], end: Callable[[], None]) -> Any:
    """The result of some work that the first interrupt asks to end early, by calling `end`; the second leaves it."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    thread = _Shielded(work, daemon=True)
    try:
        thread.start()
        thread.wait()
    except KeyboardInterrupt:
        end()
        thread.wait()
    return thread.answer()


def pause(seconds: float) -> None:
    """Sleep; raise SystemExit, which ends a thread, in work of `uninterrupted` that nobody waits for any more."""
    thread = threading.current_thread()
    if not isinstance(thread, _Shielded):
        time.sleep(seconds)
    elif thread.stopped.wait(seconds):
        raise SystemExit
