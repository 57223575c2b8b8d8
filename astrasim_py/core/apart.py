"""Work apart from the main thread, which no interrupt leaves half done: in a thread, or, as numba keeps the parts of a
compilation that was not finished, in a process."""

import json
import pickle
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from importlib import import_module
from os import _exit
from pathlib import Path
from typing import Any

_CODE = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve()"
#: Seconds between two looks at the process.
_EVERY_S = 0.02


class Shielded(threading.Thread):
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
        while not self._done.wait(1.0):
            pass  # some systems notice Ctrl-C only between waits; `join` takes an interrupted thread for ended

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def uninterrupted(work: Callable[[], Any]) -> Any:
    """The result of some work that no interrupt leaves half done.

    Signals reach the main thread only: another one does the work. What their handlers raise ends the waiting, not the
    work, except where it pauses.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    thread = Shielded(work)
    try:
        thread.start()
        thread.wait()
    except BaseException:
        thread.stopped.set()
        raise
    return thread.answer()


def pause(seconds: float) -> None:
    """Sleep; raise SystemExit, which ends a thread, in work of `uninterrupted` that nobody waits for any more."""
    thread = threading.current_thread()
    if not isinstance(thread, Shielded):
        time.sleep(seconds)
    elif thread.stopped.wait(seconds):
        raise SystemExit


def compiled_apart(module: str, name: str, key: str, signature: tuple, folder: Path) -> bool:
    """Compile a function into a folder; returns whether that worked.

    `module`, `name`, `signature`: of the function, a `jit.Kernel`. `key`: of its sources. Where the function cannot be
    imported, or from other sources than those of this process, it is not compiled.
    """
    if getattr(sys, "frozen", False):
        # The executable is a program that holds Python, and takes no code.
        return False
    task = b64encode(pickle.dumps((module, name, key, signature, folder))) + b"\n"
    command = [sys.executable, "-c", _CODE, json.dumps(sys.path)]
    quiet = subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as child:
            assert child.stdin is not None
            try:
                child.stdin.write(task)
                child.stdin.flush()
                while child.poll() is None:
                    pause(_EVERY_S)
            except BaseException:
                child.kill()
                raise
            return child.returncode == 0
    except (OSError, ValueError):
        # There are no processes here, or no Python to run.
        return False


def serve() -> None:
    """Carry out a task of `compiled_apart`, as the process that it started."""
    # Ctrl-C in a terminal goes to all its processes; the one that waits decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, name, key, signature, folder = pickle.loads(b64decode(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    kernel = getattr(import_module(module), name)
    done = kernel.key(signature) == key
    if done:
        kernel.compile_in(folder, signature)
    _exit(0 if done else 1)


def _end_with_parent() -> None:
    """The end of the input is the end of the process that waits."""
    sys.stdin.buffer.read()
    _exit(1)
