"""Functions compiled by numba: compiled once for all processes, kept on disk, never charged to what they compute.

A module of compiled functions imports `kernel` and `helper` from here instead of numba's ``njit``: then numba is
imported with that module and not before, compiled code lies with everything else that is kept (``ASTRASIM_CACHE``, else
the user's cache folder), and is compiled anew when any source that it was made from has changed, which numba alone does
not see for functions and constants of other modules.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from astrasim_py.core.cache import cache_folder

#: Called with a line for a person before something is compiled; None: nobody listens.
announce: Callable[[str], None] | None = None

_spent = 0.0

#: No counting of references, and no check of divisors.
_LEAN = {"_nrt": False, "error_model": "numpy"}


def cpu_s() -> float:
    """CPU seconds of this process without those spent on compiling or on loading compiled code."""
    return time.process_time() - _spent


def helper(function: Callable) -> Any:
    """A function that compiled functions call (``numba.njit``); it is compiled with each of them."""
    import numba

    return numba.njit(function)


def lean(function: Callable) -> Any:
    """A `helper` that takes no memory: arrays that it is given are passed on without being counted.

    Counting references takes longer than most of what a small function does.
    """
    import numba

    return numba.njit(function, **_LEAN)


def inlined(function: Callable) -> Any:
    """A `lean` function whose code stands wherever it is called: for small ones that are called all the time."""
    import numba

    return numba.njit(function, forceinline=True, **_LEAN)


def kernel(what: str, *, threads: bool = False, lean: bool = False) -> Callable[[Callable], Kernel]:
    """A compiled function that Python calls.

    Parameters
    ----------
    what : str
        What it is, for the line that says that it is compiled: ``the engine``.
    threads : bool
        Whether it runs beside other threads (it then holds no lock of Python's, and must use no Python object).
    lean : bool
        Whether it takes no memory, like the functions that are `lean`.
    """
    return lambda function: Kernel(function, what, threads=threads, lean=lean)


class _CompiledElsewhere(Exception):
    """Compiling begins although the lock is not held yet."""


class Kernel:
    """A compiled function and how it comes to be compiled.

    Attributes
    ----------
    dispatcher : numba Dispatcher
        For compiled functions that call it.
    what : str
    """

    def __init__(self, function: Callable, what: str, *, threads: bool = False, lean: bool = False) -> None:
        import numba

        self.dispatcher = numba.njit(function, nogil=threads, **(_LEAN if lean else {}))
        self.what = what
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._known: tuple | None = None
        self._kept = False

    def __call__(self, *args: Any) -> Any:
        """Run it; compiled or loaded first where it is not."""
        if self._known is None:
            self.prepare(*args)
        return self.dispatcher(*args)

    def prepare(self, *args: Any) -> None:
        """Compile it for arguments of these types, or load what was compiled before; nothing is run."""
        global _spent
        import numba

        begin = time.process_time()
        signature = tuple(numba.typeof(arg) for arg in args)
        if signature not in self.dispatcher.overloads:
            self._keep()
            self._compile(signature)
        self._known = signature
        _spent += time.process_time() - begin

    def _keep(self) -> None:
        """Let numba keep what it compiles; where nothing can be written, it is compiled in every process."""
        import numba

        if self._kept:
            return
        self._kept = True
        folder = self._folder()
        if folder is None:
            return
        before = numba.config.CACHE_DIR
        try:
            # Read when caching is switched on; the cache of a caller's own functions stays where it was.
            numba.config.CACHE_DIR = str(folder)
            # Where that folder cannot be written numba tries beside the source and its own folder of the user.
            self.dispatcher.enable_caching()
        except RuntimeError:
            pass
        finally:
            numba.config.CACHE_DIR = before

    def _folder(self) -> Path | None:
        base = cache_folder()
        if base is None:
            return None
        with contextlib.suppress(OSError):
            base.mkdir(parents=True, exist_ok=True, mode=0o700)
        return base / "kernels" / sources_digest(self.dispatcher)

    def _compile(self, signature: tuple) -> None:
        try:
            # Loads what is there; of several processes that find nothing one compiles, the others wait for it.
            self._attempt(signature, alone=False)
        except _CompiledElsewhere:
            with _lock(self._folder(), self.what):
                self._attempt(signature, alone=True)

    def _attempt(self, signature: tuple, *, alone: bool) -> None:
        from numba.core import event

        listener = _listener(self, alone)
        try:
            with event.install_listener("numba:compile", listener):
                self.dispatcher.compile(signature)
        except _CompiledElsewhere:
            raise
        except Exception:
            if listener.compiling:
                raise
            # What was kept is damaged: begin anew.
            with contextlib.suppress(OSError):
                self.dispatcher._cache.flush()
            with event.install_listener("numba:compile", _listener(self, True)):
                self.dispatcher.compile(signature)


def _listener(made: Kernel, alone: bool) -> Any:
    from numba.core.event import Event, Listener

    class Watch(Listener):
        """Says that compiling begins, or stops it where another process may be at it."""

        compiling = False

        def on_start(self, event: Event) -> None:
            if self.compiling or event.data["dispatcher"] is not made.dispatcher:
                return
            if not alone:
                raise _CompiledElsewhere
            self.compiling = True
            if announce is not None:
                announce(f"compiling {made.what}, once (this can take a minute; later runs load it)")

        def on_end(self, event: Event) -> None:
            """Nothing."""

    return Watch()


@contextlib.contextmanager
def _lock(folder: Path | None, what: str) -> Iterator[None]:
    """Held by one process of this machine at a time, as far as there are locks; who waits for it says so."""
    try:
        import fcntl

        if folder is None:
            raise OSError
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115
    except (ImportError, OSError):
        yield
        return
    with file:
        with contextlib.suppress(OSError):  # file systems without locks
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if announce is not None:
                    announce(f"another process compiles {what}; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sources_digest(dispatcher: Any) -> str:
    """Tells compiled functions apart by all that they are made from.

    That is the source of their module and of every module whose compiled functions it uses, and the plain constants
    that these modules see.
    """
    import inspect

    state = hashlib.blake2b(digest_size=10)
    seen: set[str] = set()
    waiting = [dispatcher.py_func]
    while waiting:
        function = waiting.pop()
        module = function.__module__
        if module in seen:
            continue
        seen.add(module)
        names = function.__globals__
        others = [v for v in names.values() if hasattr(v, "py_func")]
        others += [v.dispatcher for v in names.values() if isinstance(v, Kernel)]
        waiting += sorted((v.py_func for v in others), key=lambda f: f.__module__)
        constants = {name: value for name, value in names.items() if name[:2] != "__" and _plain(value)}
        state.update(repr((module, sorted(constants.items(), key=lambda item: item[0]))).encode())
        state.update(inspect.getsource(inspect.getmodule(function)).encode())
    return state.hexdigest()


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str)
