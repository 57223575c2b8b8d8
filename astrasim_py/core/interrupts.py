"""Interruption by signals."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """SIGTERM (batch systems send it) acts like Ctrl-C, in the main thread. Yields the signals that have come.

    An error after a signal is a KeyboardInterrupt: where one reaches a compiled library, this may raise another error.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    # Who starts a program in the background has it ignore Ctrl-C.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield came
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
