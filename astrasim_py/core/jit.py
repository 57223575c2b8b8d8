"""Functions compiled by numba: compiled once for all processes, kept on disk, never charged to what they compute.

A module of compiled functions imports `kernel` and `helper` from here instead of numba's ``njit``. Then numba is
imported when something must be compiled and not before; compiled code lies with everything else that is kept
(``ASTRASIM_CACHE``, else the user's cache folder); and it is compiled anew when any source that it was made from has
changed, which numba alone does not see for functions and constants of other modules.

What a `lean` kernel becomes is kept as machine code that later processes run without numba (`machine_code`); other
kernels are kept, loaded and called by numba.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from astrasim_py.core.cache import cache_folder

#: Called with a line for a person before something is compiled; None: nobody listens.
announce: Callable[[str], None] | None = None

#: CPU and wall-clock seconds that this process has spent on that, and when it began with what it is at (None: nothing).
_spent, _halted = 0.0, 0.0
_since: float | None = None
#: One thread of this process compiles or loads at a time; the other lock is for the numbers above.
_turn, _numbers = threading.RLock(), threading.Lock()

#: No counting of references, and no check of divisors.
_LEAN = {"_nrt": False, "error_model": "numpy"}
#: For what only compiled code calls.
_INSIDE = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def cpu_s() -> float:
    """CPU seconds of this process without those spent on compiling or on loading compiled code."""
    return time.process_time() - _spent


def clock() -> float:
    """Wall-clock seconds since some moment, standing still while anything is compiled or compiled code is loaded."""
    with _numbers:
        return (time.monotonic() if _since is None else _since) - _halted


@contextlib.contextmanager
def _at_it() -> Iterator[None]:
    """While something is compiled or loaded: nobody else does so, and no clock of this module goes on."""
    global _spent, _halted, _since
    with _turn:
        if _since is not None:
            yield
            return
        cpu = time.process_time()
        with _numbers:
            _since = time.monotonic()
        try:
            yield
        finally:
            with _numbers:
                _halted, _since = _halted + time.monotonic() - _since, None
                _spent += time.process_time() - cpu


def helper(function: Callable) -> Function:
    """A function that compiled functions call (``numba.njit``); it is compiled with each of them."""
    return Function(function, {})


def lean(function: Callable) -> Function:
    """A `helper` that takes no memory: arrays that it is given are passed on without being counted.

    Counting references takes longer than most of what a small function does.
    """
    return Function(function, _LEAN)


def inlined(function: Callable) -> Function:
    """A `lean` function whose code stands wherever it is called: for small ones that are called all the time."""
    return Function(function, {"forceinline": True, **_LEAN})


def intrinsic(definition: Callable) -> Intrinsic:
    """A function that emits code of its own: ``numba.extending.intrinsic``, without importing numba at once."""
    return Intrinsic(definition)


def kernel(what: str, *, threads: bool = False, lean: bool = False) -> Callable[[Callable], Kernel]:
    """A compiled function that Python calls.

    Parameters
    ----------
    what : str
        What it is, for the line that says that it is compiled: ``the engine``.
    threads : bool
        Whether it runs beside other threads (it then holds no lock of Python's, and must use no Python object).
    lean : bool
        Whether it takes no memory, like the functions that are `lean`. Where it is called with arrays, numbers and
        tuples of them, and returns a number or nothing, no process but the one that compiles it needs numba.
    """
    return lambda function: Kernel(function, what, threads=threads, lean=lean)


class Function:
    """A function to be compiled into those that call it.

    Attributes
    ----------
    py_func : callable
    """

    def __init__(self, function: Callable, options: dict[str, Any]) -> None:
        self.py_func = function
        self._options = options
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of it for compiled callers."""
        import numba

        return numba.njit(self.py_func, **self._options, **_INSIDE)

    @property
    def _numba_type_(self) -> Any:
        # How numba asks an object that it does not know what it is.
        return self.dispatcher._numba_type_

    @cached_property
    def _alone(self) -> Any:
        import numba

        return numba.njit(self.py_func, **self._options)

    def __call__(self, *args: Any) -> Any:
        """Call it from Python, compiled for that."""
        return self._alone(*args)


class Intrinsic:
    """A function that compiled code calls, and Python cannot."""

    def __init__(self, py_func: Callable) -> None:
        self.py_func = py_func

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core import types
        from numba.core.typing.templates import make_intrinsic_template

        name = self.py_func.__name__
        return types.Function(make_intrinsic_template(self, self.py_func, name, prefer_literal=False, kwargs={}))


class _CompiledElsewhere(Exception):
    """Compiling begins although the lock is not held yet."""


class Kernel(Function):
    """A compiled function and how it comes to be compiled.

    Attributes
    ----------
    what : str
    """

    def __init__(self, function: Callable, what: str, *, threads: bool = False, lean: bool = False) -> None:
        super().__init__(function, {"nogil": threads, **(_LEAN if lean else {})})
        self.what = what
        self._threads, self._lean = threads, lean
        #: Types of arguments for which numba has it.
        self._known: set[tuple | None] = set()
        self._kept = False
        #: By the types of arguments, the machine code; None: left to numba.
        self._codes: dict[tuple, Callable[[tuple], Any] | None] = {}

    def __call__(self, *args: Any) -> Any:
        """Run it; compiled or loaded first where it is not."""
        code = self._code(args)
        if code is not None:
            return code(args)
        self._prepare(args)
        return self._alone(*args)

    def prepare(self, *args: Any) -> None:
        """Compile it for arguments of these types, or load what was compiled before; nothing is run."""
        if self._code(args) is None:
            self._prepare(args)

    # -- machine code, without numba -------------------------------------------------------------------------

    def _code(self, args: tuple) -> Callable[[tuple], Any] | None:
        if not self._lean:
            return None
        from astrasim_py.core import machine_code

        types = machine_code.types_of(args)
        if types is None:
            return None
        if types not in self._codes:
            with _at_it():
                if types not in self._codes:
                    self._codes[types] = self._found(types, args)
        return self._codes[types]

    def _found(self, types: tuple, args: tuple) -> Callable[[tuple], Any] | None:
        from astrasim_py.core import machine_code

        sources = sources_digest(self)
        name = machine_code.key_of(sources, self.__name__, types)
        folders = self._folders(sources)
        made = _first(folders, name)
        if made is None:
            with _lock(folders[0] if folders else None, self.what):
                # Another process may have been at it.
                made = _first(folders, name)
                if made is None:
                    made = self._made(types, args)
                    _keep(folders, name, made)
        if not made.entry:
            return None
        try:
            return machine_code.loaded(made, types, what=self.what, threads=self._threads)
        except (RuntimeError, OSError):
            return None

    def _made(self, types: tuple, args: tuple) -> Any:
        """Compile it."""
        import numba

        from astrasim_py.core import machine_code

        self._announce()
        signature = tuple(numba.typeof(arg) for arg in args)
        self.dispatcher.compile(signature)
        compiled = self.dispatcher.overloads[signature]
        entry, returned = compiled.fndesc.llvm_func_name, str(compiled.signature.return_type)
        return machine_code.taken_from(compiled.library, entry, returned, types)

    def _announce(self) -> None:
        if announce is not None:
            announce(f"compiling {self.what}, once (this can take a minute; later runs load it)")

    def _folders(self, sources: str) -> list[Path]:
        """Where compiled code lies: with all that is kept or, where nothing can be written there, with the source."""
        base = cache_folder()
        if base is None:
            return []
        with contextlib.suppress(OSError):
            base.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside = Path(self.py_func.__code__.co_filename).parent / "__pycache__"
        return [base / "kernels" / sources, beside / "kernels" / sources]

    # -- by numba --------------------------------------------------------------------------------------------

    def _prepare(self, args: tuple) -> None:
        from astrasim_py.core import machine_code

        types = machine_code.types_of(args)
        if types is not None and types in self._known:
            return
        with _at_it():
            import numba

            signature = tuple(numba.typeof(arg) for arg in args)
            if signature not in self._alone.overloads:
                self._keep()
                self._compile(signature)
            self._known.add(types)

    def _keep(self) -> None:
        """Let numba keep what it compiles; where nothing can be written, it is compiled in every process."""
        import numba

        if self._kept:
            return
        self._kept = True
        folders = self._folders(sources_digest(self))
        if not folders:
            return
        before = numba.config.CACHE_DIR
        try:
            # Read when caching is switched on; the cache of a caller's own functions stays where it was.
            numba.config.CACHE_DIR = str(folders[0])
            # Where that folder cannot be written numba tries beside the source and its own folder of the user.
            self._alone.enable_caching()
        except RuntimeError:
            pass
        finally:
            numba.config.CACHE_DIR = before

    def _compile(self, signature: tuple) -> None:
        try:
            # Loads what is there; of several processes that find nothing one compiles, the others wait for it.
            self._attempt(signature, alone=False)
        except _CompiledElsewhere:
            folders = self._folders(sources_digest(self))
            with _lock(folders[0] if folders else None, self.what):
                self._attempt(signature, alone=True)

    def _attempt(self, signature: tuple, *, alone: bool) -> None:
        from numba.core import event

        listener = _listener(self, alone)
        try:
            with event.install_listener("numba:compile", listener):
                self._alone.compile(signature)
        except _CompiledElsewhere:
            raise
        except Exception:
            if listener.compiling:
                raise
            # What was kept is damaged: begin anew.
            with contextlib.suppress(OSError):
                self._alone._cache.flush()
            with event.install_listener("numba:compile", _listener(self, True)):
                self._alone.compile(signature)


def _first(folders: list[Path], name: str) -> Any:
    from astrasim_py.core import machine_code

    return next((made for folder in folders if (made := machine_code.read(folder / name)) is not None), None)


def _keep(folders: list[Path], name: str, made: Any) -> None:
    from astrasim_py.core import machine_code

    for folder in folders:
        with contextlib.suppress(OSError):
            machine_code.write(folder / name, made)
            return


def _listener(made: Kernel, alone: bool) -> Any:
    from numba.core.event import Event, Listener

    class Watch(Listener):
        """Says that compiling begins, or stops it where another process may be at it."""

        compiling = False

        def on_start(self, event: Event) -> None:
            if self.compiling or event.data["dispatcher"] is not made._alone:
                return
            if not alone:
                raise _CompiledElsewhere
            self.compiling = True
            made._announce()

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


def sources_digest(function: Any) -> str:
    """Tells compiled functions apart by all that they are made from.

    That is the source of their module and of every module whose compiled functions it uses, and the plain constants
    that these modules see.
    """
    state = hashlib.blake2b(digest_size=10)
    seen: set[str] = set()
    waiting = [function.py_func]
    while waiting:
        function = waiting.pop()
        module = function.__module__
        if module in seen:
            continue
        seen.add(module)
        names = function.__globals__
        waiting += sorted((v.py_func for v in names.values() if hasattr(v, "py_func")), key=lambda f: f.__module__)
        constants = {name: value for name, value in names.items() if name[:2] != "__" and _plain(value)}
        state.update(repr((module, sorted(constants.items(), key=lambda item: item[0]))).encode())
        state.update(_source(function))
    return state.hexdigest()


def _source(function: Callable) -> bytes:
    try:
        return Path(function.__code__.co_filename).read_bytes()
    except OSError:
        import inspect

        return inspect.getsource(sys.modules[function.__module__]).encode()


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str)
