"""Functions compiled by numba, cached on disk for all processes; compiling is never charged to the run.

Modules use `kernel` and `lean` instead of ``njit``: numba is imported when a kernel is first called. The cache goes by
a hash over the sources of all functions that a kernel calls, which numba's own index does not see.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from functools import cached_property, partial, update_wrapper
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from astrasim_py.core import compiling, jit_files
from astrasim_py.core.apart import compiled_apart, uninterrupted
from astrasim_py.core.by_need import load
from astrasim_py.core.cache import cache_folder
from astrasim_py.core.errors import OutputError
from astrasim_py.core.files import write_file
from astrasim_py.core.jit_notes import note

#: Settings of numba that change the code it makes.
_SETTINGS = (
    *("BOUNDSCHECK", "CPU_FEATURES", "CPU_NAME", "DEBUGINFO_DEFAULT", "DEBUG_NRT", "DISABLE_INTEL_SVML", "DISABLE_JIT"),
    *("ENABLE_AVX", "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_FLAGS", "LLVM_REFPRUNE_PASS", "LOOP_VECTORIZE"),
    *("NRT_STATS", "OPT", "SLP_VECTORIZE", "USING_SVML"),
)

#: Options of functions that allocate no memory, and of those that only compiled code calls.
_LEAN = {"_nrt": False, "error_model": "numpy"}
_INSIDE = _LEAN | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def lean(function: Callable) -> Function:
    """A function that kernels call. It allocates no memory: arrays are passed on without reference counting."""
    return Function(function, _INSIDE)


def inlined(function: Callable) -> Function:
    """A `lean` function whose code is inlined into its callers."""
    return Function(function, {"forceinline": True, **_INSIDE})


def deferred(make: Callable[..., Any]) -> Callable[..., Later]:
    """A maker of functions that compiled code calls, which makes them where numba first meets them."""
    return lambda *args: Later(partial(make, *args))


class Later:
    """A function that compiled code calls, not made yet."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    if TYPE_CHECKING:
        # Compiled callers can call it, Python cannot.
        def __call__(self, *args: Any) -> Any: ...

    @cached_property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        value = self._make()
        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(value)


class optional(Later):
    """A `lean` function of an optional part of a kernel, ``module:name``.

    It is imported and compiled where the type of its first argument, a record, has a field ``whole``. Elsewhere a call
    of it is compiled to the number 0, and never made: neither Python nor numba then sees its module.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        super().__init__(self._overloaded)

    def _overloaded(self) -> Callable:
        from numba import extending

        overload: Any = extending.overload  # its annotations know some of the options only

        def called(*args: Any) -> Any:
            raise NotImplementedError

        def nothing(*args: Any) -> int:
            return 0

        @overload(called, strict=False, jit_options=_INSIDE)
        def compiled(state: Any, *others: Any) -> Callable:
            return load(self.home).py_func if "whole" in state.fields else nothing

        return called


def kernel(what: str, *, threads: bool = False, lean: bool = False) -> Callable[[Callable], Kernel]:
    """A compiled function that Python calls.

    `what`: its name in announcements: ``the engine``. `threads`: whether other threads run meanwhile (it then must use
    no Python object). `lean`: whether it allocates no memory, like `lean` functions.
    """
    return lambda function: Kernel(function, what, {"nogil": threads, **(_LEAN if lean else {})})


def record_kernel(what: str) -> Callable[[Callable], RecordKernel]:
    """A `kernel` that is lean, takes one record, given as an array of length 1, and returns nothing."""
    return lambda function: RecordKernel(function, what, _INSIDE)


class Function:
    """A function to be compiled into its callers; `py_func` is the Python function."""

    __name__: str

    def __init__(self, py_func: Callable, options: dict[str, Any]) -> None:
        update_wrapper(self, py_func)
        self.py_func, self._options = py_func, options

    if TYPE_CHECKING:
        # Compiled callers can call it, Python cannot.
        def __call__(self, *args: Any) -> Any: ...

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

    _compile: Callable[[tuple], Any]

    def __init__(self, py_func: Callable, what: str, options: dict[str, Any]) -> None:
        super().__init__(py_func, options)
        self.what = what

    def __call__(self, *args: Any) -> Any:
        return self._outside(*args)

    @cached_property
    def _outside(self) -> Any:
        """The dispatcher for Python."""
        return uninterrupted(self._dispatcher)

    def _dispatcher(self) -> Any:
        with compiling.clocks_stopped():
            import numba

            dispatcher: Any = numba.njit(self.py_func, **self._options)
            # The dispatcher calls this for new argument types.
            self._compile, dispatcher.compile = dispatcher.compile, self.compile
            return dispatcher

    def compile(self, signature: tuple) -> Any:
        """Compile the function for a signature, or load it from the cache."""
        uninterrupted(partial(self._provide, signature))
        return self._outside.overloads[signature].entry_point

    def _provide(self, signature: tuple) -> None:
        """Have the function for a signature in memory."""
        with compiling.clocks_stopped():
            if not self._has(signature):
                self._load_or_compile(signature)

    def _has(self, signature: tuple) -> bool:
        return signature in self._outside.overloads

    def _load_or_compile(self, signature: tuple) -> None:
        folder = self._find_or_compile(self._folders(signature), signature)
        whole = is_whole(signature)
        note(f"{self.__module__}.{self.__name__}", whole, folder, [_file(module) for module in _modules(self, whole)])

    def _find_or_compile(self, folders: list[Path], signature: tuple) -> Path | None:
        """Returns the folder that the function is kept in."""
        code = self._load(folders, signature)
        if code:
            return code
        with jit_files.lock(folders, self.what, compiling.announce):
            # Another process may have compiled it meanwhile.
            code = self._load(folders, signature)
            if code:
                return code
            if compiling.announce is not None:
                compiling.announce(f"compiling {self.what}, once (this can take a minute; later runs load it)")
            with jit_files.new_folder(folders) as folder:
                self._compile_into(folder, signature)
                return folder if folder in folders and jit_files.is_sound(folder) else None

    def _compile_into(self, folder: Path | None, signature: tuple) -> None:
        """Compile the function into an empty folder, if there is one, and load it."""
        if folder is None:
            self._compile(signature)
            return
        if compiled_apart(self.__module__, self.__name__, self.key(signature), signature, folder):
            jit_files.seal(folder)
            if self._load([folder], signature):
                return
        # Where no other process can, or it found an error, which is raised here.
        jit_files.make_empty(folder)
        self.compile_in(folder, signature)
        jit_files.seal(folder)

    def _load(self, folders: list[Path], signature: tuple) -> Path | None:
        """Load the function from one of the folders; returns that folder."""
        for folder in filter(jit_files.is_sound, folders):
            try:
                self.compile_in(folder, signature)
                return folder
            except Exception:
                continue
        return None

    def compile_in(self, folder: Path, signature: tuple) -> None:
        """Compile or load the function with a folder as numba's cache."""
        import numba

        config: Any = numba.config  # numba makes its attributes when it is imported
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
        beside = Path(self.py_func.__code__.co_filename).parent / "__pycache__"
        return [place / "kernels" / f"{self.__name__}-{self.key(signature)}" for place in (base, beside)]

    def key(self, signature: tuple) -> str:
        """What the compiled function depends on, in short."""
        sources = sources_digest(self, whole=is_whole(signature))
        return hashlib.blake2b(repr((sources, _machine(), signature)).encode(), digest_size=16).hexdigest()


class RecordKernel(Kernel):
    """A kernel of one record. A process that finds it on disk runs its machine code without importing numba."""

    def __init__(self, py_func: Callable, what: str, options: dict[str, Any]) -> None:
        super().__init__(py_func, what, options)
        self._linked: dict[np.dtype, MachineCode] = {}

    def __call__(self, held: np.ndarray) -> None:
        if held.dtype not in self._linked:
            uninterrupted(partial(self._provide, (held.dtype,)))
        self._linked[held.dtype](held)

    def _has(self, signature: tuple) -> bool:
        return signature[0] in self._linked

    def _compile(self, signature: tuple) -> None:
        self._link(self._machine_code(signature), signature)

    def compile_in(self, folder: Path, signature: tuple) -> None:
        path = folder / "code.o"
        try:
            code = path.read_bytes()
        except FileNotFoundError:
            code = self._machine_code(signature)
            with contextlib.suppress(OutputError):
                write_file(path, code, sync=False)
        self._link(code, signature)

    def _link(self, code: bytes, signature: tuple) -> None:
        self._linked[signature[0]] = MachineCode(code)

    def _machine_code(self, signature: tuple) -> bytes:
        """Compile the function: its symbol, a line feed, its object file."""
        import numba

        types = tuple(map(numba.from_dtype, signature))
        self._inside.compile(types)
        compiled = self._inside.overloads[types]
        return compiled.fndesc.llvm_func_name.encode() + b"\n" + compiled.library.serialize_using_object_code()[2][0]


class MachineCode:
    """A compiled function of one record. `code`: its symbol, a line feed, its object file."""

    def __init__(self, code: bytes) -> None:
        import llvmlite.binding as llvm

        symbol, _, self._object = code.partition(b"\n")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(self._object))
        self._engine.finalize_object()
        # Numba's convention: places for the result and for an exception come first.
        convention = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
        self._function = convention(self._engine.get_function_address(symbol.decode()))

    def __call__(self, held: np.ndarray) -> None:
        places = (ctypes.c_void_p * 2)()
        address = ctypes.addressof(places)
        if self._function(address, address + ctypes.sizeof(ctypes.c_void_p), held.ctypes.data):
            raise RuntimeError("compiled code raised an exception")


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


def _machine() -> tuple:
    """Dependencies of compiled code besides its sources: versions, processor, settings. Numba is not imported."""
    import llvmlite.binding as llvm

    settings = [os.environ.get(f"NUMBA_{name}") for name in _SETTINGS]
    with contextlib.suppress(OSError):
        settings.append(Path(".numba_config.yaml").read_text("utf-8", "replace"))
    versions = sys.version, *map(version, ("numba", "llvmlite", "numpy"))
    features = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return versions, features, settings


def is_whole(signature: tuple) -> bool:
    """Whether a kernel of a signature has its `optional` parts."""
    return any("whole" in getattr(getattr(value, "dtype", value), "fields", ()) for value in signature)


def sources_digest(function: Function, *, whole: bool = False) -> str:
    """A digest of the sources and constants of a compiled function, `whole`: with its optional parts.

    It covers the source of its module, of every module whose compiled functions it uses, and of the modules of its
    package that these import by name; and the plain constants visible to all of them.
    """
    state = hashlib.blake2b(digest_size=10)
    for module in _modules(function, whole):
        state.update(repr((module.__name__, sorted((k, v) for k, v in _values(module).items() if _plain(v)))).encode())
        state.update(Path(_file(module)).read_bytes())
    return state.hexdigest()


def _modules(function: Function, whole: bool) -> list[ModuleType]:
    """The modules that `sources_digest` covers."""
    modules: dict[str, ModuleType] = {}
    waiting = [function.py_func.__module__]
    while waiting:
        name = waiting.pop()
        if name in modules:
            continue
        modules[name] = import_module(name)
        values = _values(modules[name])
        compiled = {value.__module__ for value in values.values() if hasattr(value, "__wrapped__")}
        imported = {value.__name__ for value in values.values() if isinstance(value, ModuleType)}
        if whole:
            compiled |= {value.home.partition(":")[0] for value in values.values() if isinstance(value, optional)}
        package = name.partition(".")[0] + "."
        waiting += sorted(compiled | {other for other in imported if other.startswith(package)})
    return list(modules.values())


def _file(module: ModuleType) -> str:
    assert module.__file__ is not None
    return module.__file__


def _values(module: ModuleType) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key[:2] != "__"}


def _plain(value: Any) -> bool:
    return all(map(_plain, value)) if isinstance(value, tuple) else isinstance(value, int | float | str | np.generic)
