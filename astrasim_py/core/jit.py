"""Functions compiled by numba, cached on disk for all processes; compiling is never charged to the run.

Modules use `kernel` and `lean` instead of ``njit``: numba is imported when a kernel is first called. The cache goes by
a hash over the sources of all functions that a kernel calls, which numba's own index does not see.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property, update_wrapper, wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from astrasim_py.core.cache import cache_folder
from astrasim_py.core.errors import UsageError
from astrasim_py.core.jit_notes import note

#: Called with a line of text before a function is compiled; None: no announcements.
announce: Callable[[str], None] | None = None

#: Spent on compiling and loading: CPU seconds; wall-clock seconds, and when the present compilation began, if any.
_spent = 0.0
_paused: tuple[float, float | None] = 0.0, None
#: One thread compiles or loads at a time.
_turn = threading.RLock()

#: Seconds to wait for another process that compiles before saying so: it may be of this run, and have said it itself.
_PATIENCE_S = 1.0
#: Settings of numba that change the code it makes.
_SETTINGS = (
    *("BOUNDSCHECK", "CPU_FEATURES", "CPU_NAME", "DEBUGINFO_DEFAULT", "DEBUG_NRT", "DISABLE_INTEL_SVML", "DISABLE_JIT"),
    *("ENABLE_AVX", "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_FLAGS", "LLVM_REFPRUNE_PASS", "LOOP_VECTORIZE"),
    *("NRT_STATS", "OPT", "SLP_VECTORIZE", "USING_SVML"),
)

#: Options of functions that allocate no memory, and of those that only compiled code calls.
_LEAN = {"_nrt": False, "error_model": "numpy"}
_INSIDE = _LEAN | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Once:
    """Says the first line that it is called with. `said`: whether it has, as an object with a field ``value``, which
    the processes of a run share.
    """

    def __init__(self, say: Callable[[str], None], said: Any = None) -> None:
        self.say, self.said = say, SimpleNamespace(value=False) if said is None else said

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
def _compiling() -> Iterator[None]:
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


def lean(function: Callable) -> Function:
    """A function that kernels call. It allocates no memory: arrays are passed on without reference counting."""
    return Function(function, _INSIDE)


def inlined(function: Callable) -> Function:
    """A `lean` function whose code is inlined into its callers."""
    return Function(function, {"forceinline": True, **_INSIDE})


def optional(function: Callable) -> Callable:
    """A `lean` function of an optional part of a kernel.

    It is compiled where the type of its first argument, a record, has a field ``whole``. Elsewhere a call of it is
    compiled to the number 0, and never made: numba then sees neither the function nor those that only it calls.
    """
    from numba.extending import overload

    def nothing(*args: Any) -> int:
        return 0

    @wraps(function)
    def called(*args: Any) -> Any:
        raise NotImplementedError

    @overload(called, strict=False, jit_options=_INSIDE)
    def compiled(state: Any, *others: Any) -> Callable:
        return function if "whole" in state.fields else nothing

    return called


def kernel(what: str, *, threads: bool = False, lean: bool = False) -> Callable[[Callable], Kernel]:
    """A compiled function that Python calls.

    `what`: its name in announcements: ``the engine``. `threads`: whether other threads run meanwhile (it then must use
    no Python object). `lean`: whether it allocates no memory, like `lean` functions.
    """
    return lambda function: Kernel(function, what, {"nogil": threads, **(_LEAN if lean else {})})


class Function:
    """A function to be compiled into its callers; `py_func` is the Python function."""

    def __init__(self, py_func: Callable, options: dict[str, Any]) -> None:
        update_wrapper(self, py_func)
        self.py_func, self._options = py_func, options

    @property
    def _numba_type_(self) -> Any:
        # Numba's hook for objects of unknown type.
        return self._inside._numba_type_

    @cached_property
    def _inside(self) -> Any:
        """The dispatcher for compiled callers."""
        import numba

        return numba.njit(self.py_func, **self._options)


class Kernel(Function):
    """A compiled function that Python calls; `what` is its name in messages."""

    #: Whether an exception such as KeyboardInterrupt has ended a compilation of this process. Numba then keeps parts
    #: that are half done, and would make a wrong function of them.
    interrupted = False

    def __init__(self, py_func: Callable, what: str, options: dict[str, Any]) -> None:
        super().__init__(py_func, options)
        self.what = what

    def __call__(self, *args: Any) -> Any:
        return self._outside(*args)

    @cached_property
    def _outside(self) -> Any:
        """The dispatcher for Python."""
        with _compiling():
            import numba

            made = numba.njit(self.py_func, **self._options)
            # The dispatcher calls this for new argument types.
            self._compile, made.compile = made.compile, self.compile
            return made

    def compile(self, signature: tuple) -> Any:
        """Compile the function for a signature, or load it from the cache."""
        with _compiling():
            if signature not in self._outside.overloads:
                self._load_or_compile(signature)
            return self._outside.overloads[signature].entry_point

    def _load_or_compile(self, signature: tuple) -> None:
        folder = self._find_or_compile(self._folders(signature), signature)
        whole = any("whole" in getattr(getattr(each, "dtype", each), "fields", ()) for each in signature)
        note(f"{self.__module__}.{self.__name__}", whole, folder, [module.__file__ for module in _modules(self)])

    def _find_or_compile(self, folders: list[Path], signature: tuple) -> Path | None:
        """Returns the folder that the function is kept in."""
        found = self._load(folders, signature)
        if found:
            return found
        with _lock(folders, self.what):
            # Another process may have compiled it meanwhile.
            found = self._load(folders, signature)
            if found:
                return found
            if Kernel.interrupted:
                remedy = "start Python anew, or choose the SimPy engine"
                raise UsageError(f"compiling {self.what}", "was interrupted in this process", remedy)
            if announce is not None:
                announce(f"compiling {self.what}, once (this can take a minute; later runs load it)")
            try:
                folder = next(filter(_make_empty, folders), None)
                if folder is None:
                    self._compile(signature)
                    return None
                self._compile_in(folder, signature)
            except Exception:
                raise
            except BaseException:
                Kernel.interrupted = True
                raise
            with contextlib.suppress(OSError):
                _seal(folder)
                return folder
        return None

    def _load(self, folders: list[Path], signature: tuple) -> Path | None:
        """Load the function from one of the folders; returns that folder."""
        for folder in filter(_is_sound, folders):
            try:
                self._compile_in(folder, signature)
                return folder
            except Exception:
                continue
        return None

    def _compile_in(self, folder: Path, signature: tuple) -> None:
        """Compile or load the function with a folder as numba's cache."""
        from numba import config

        before, Locator.folder = config.CACHE_LOCATOR_CLASSES, folder
        config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"
        try:
            self._outside.enable_caching()
        finally:
            config.CACHE_LOCATOR_CLASSES = before
        try:
            self._compile(signature)
        except OSError:
            # Compiled, but not written.
            if signature not in self._outside.overloads:
                raise

    def _folders(self, signature: tuple) -> list[Path]:
        """Candidate cache folders: the common one or, if it is not writable, one beside the source."""
        base = cache_folder()
        if base is None:
            return []
        key = hashlib.blake2b(repr((sources_digest(self), _machine(), signature)).encode(), digest_size=16).hexdigest()
        beside = Path(self.py_func.__code__.co_filename).parent / "__pycache__"
        return [place / "kernels" / f"{self.__name__}-{key}" for place in (base, beside)]


class Locator:
    """Tells numba the folder of its cache; the interface of ``NUMBA_CACHE_LOCATOR_CLASSES``."""

    folder = Path()

    @classmethod
    def from_function(cls, py_func: Callable, py_file: str) -> SimpleNamespace:
        return SimpleNamespace(
            ensure_cache_path=lambda: None,
            get_cache_path=lambda folder=str(cls.folder): folder,
            get_source_stamp=lambda: "",
            get_disambiguator=lambda: "",
        )


# -- the folder of one compiled function ----------------------------------------------------------------------------

_SEAL = "digests.json"


def _digests(folder: Path) -> dict[str, str]:
    """Digests of numba's files in a folder, each over the folder's name too, so that files cannot be exchanged."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".nbi", ".nbc"))
    name = folder.name.encode()
    return {path.name: hashlib.blake2b(name + path.read_bytes(), digest_size=16).hexdigest() for path in files}


def _seal(folder: Path) -> None:
    """Write the digests of a folder's files, last, so that a damaged or unfinished folder is never loaded."""
    for path in folder.iterdir():
        path.chmod(0o644)
    fresh = folder / f".{_SEAL}.{os.getpid()}"
    fresh.write_text(json.dumps(_digests(folder)))
    fresh.chmod(0o644)
    fresh.replace(folder / _SEAL)


def _is_sound(folder: Path) -> bool:
    """Whether a folder is complete and undamaged, and only the user or the administrator can have written it.

    Numba unpickles the files that it loads, so they must be trusted.
    """
    try:
        return (
            _is_trusted(folder)
            and all(map(_is_trusted, folder.iterdir()))
            and json.loads((folder / _SEAL).read_bytes()) == _digests(folder) != {}
        )
    except (OSError, ValueError):
        return False


def _is_trusted(path: Path) -> bool:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return False
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _make_empty(folder: Path) -> bool:
    """Empty or make a folder; returns whether it is writable."""
    try:
        folder.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        folder.chmod(0o755)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@contextlib.contextmanager
def _lock(folders: list[Path], what: str) -> Iterator[None]:
    """Lock a function's folder across processes, where the file system has locks; announce before waiting."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError, IndexError):
            import fcntl

            folders[0].parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(folders[0].with_suffix(".lock"), "w"))
            until = time.monotonic() + _PATIENCE_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() < until:
                        time.sleep(0.05)
                        continue
                if announce is not None:
                    announce(f"another process compiles {what}; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
                break
        yield


def _machine() -> tuple:
    """Dependencies of compiled code besides its sources: versions, processor, settings."""
    import llvmlite
    import llvmlite.binding as llvm
    import numba
    from numba.core import config

    settings = [(name, str(getattr(config, name, None))) for name in _SETTINGS]
    versions = sys.version, numba.__version__, llvmlite.__version__, np.__version__
    features = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return versions, features, settings


def sources_digest(function: Function) -> str:
    """A digest of the sources and constants of a compiled function.

    It covers the source of its module, of every module whose compiled functions it uses, and of the modules of its
    package that these import by name; and the plain constants visible to all of them.
    """
    state = hashlib.blake2b(digest_size=10)
    for module in _modules(function):
        state.update(repr((module.__name__, sorted((k, v) for k, v in _values(module).items() if _plain(v)))).encode())
        state.update(Path(module.__file__).read_bytes())
    return state.hexdigest()


def _modules(function: Function) -> list[ModuleType]:
    """The modules that `sources_digest` covers."""
    found: dict[str, ModuleType] = {}
    waiting = [function.py_func.__module__]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = sys.modules[name]
        values = _values(found[name])
        compiled = {value.__module__ for value in values.values() if hasattr(value, "__wrapped__")}
        imported = {value.__name__ for value in values.values() if isinstance(value, ModuleType)}
        package = name.partition(".")[0] + "."
        waiting += sorted(compiled | {other for other in imported if other.startswith(package)})
    return list(found.values())


def _values(module: ModuleType) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key[:2] != "__"}


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | np.generic)
