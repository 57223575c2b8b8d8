"""Machine code that numba has made, kept in files and run without numba.

Importing numba and having it load what it has kept take longer than most simulations. What is needed to run a compiled
function that takes no memory is far less: its object code, which llvmlite alone makes ready in 0.05 s, and how numba
passes arguments: an array as seven numbers and more, a tuple as its members.

An object file is a line of JSON, the object code, and before both the digest of all that, so that what is damaged is
never run. Only files count that belong to the user or the administrator, and that nobody else can write.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: What files begin with; to be changed with their layout.
_MAGIC = b"astrasim_py machine code 1\n"
_DIGEST = 32
#: More than compiled code of any function.
_MOST = 2**28
#: ctypes refuses calls of more arguments.
_MOST_ARGUMENTS = 1000

#: numpy's flags of an array that tell types of numba apart: in C order, in Fortran order, writeable.
_C_ORDER, _F_ORDER, _WRITEABLE = 0x1, 0x2, 0x400
_FLAGS = _C_ORDER | _F_ORDER | _WRITEABLE
#: Types of elements by numpy's numbers of them: bool, integers, floats.
_ELEMENTS = {np.dtype(letter).num: np.dtype(letter).str for letter in "?bBhHiIlLqQfd"}

#: Of a leaf of an argument: its type in LLVM, and the type that ctypes passes it by.
_LEAVES = {"p": ("ptr", ctypes.c_void_p), "i": ("i64", ctypes.c_int64), "d": ("double", ctypes.c_double)}
#: Of a returned scalar, as numba names it, the type that it is stored by.
_RETURNED = {"none": None, "int64": ctypes.c_int64, "float64": ctypes.c_double, "bool": ctypes.c_uint8}

_loading = threading.Lock()
#: Execution engines own the code; it is run until the process ends.
_engines: list[Any] = []


class Made(NamedTuple):
    """Compiled code of a function for some types.

    Attributes
    ----------
    entry : str
        Name of the function in the object; empty: the code cannot be run without numba.
    returned : str
        What it returns, as numba names it.
    code : bytes
        The object.
    """

    entry: str
    returned: str
    code: bytes


def types_of(args: tuple) -> tuple | None:
    """What tells apart compiled versions of a function; None where only numba knows what to make of the arguments."""
    found = []
    for arg in args:
        kind = type(arg)
        if kind is np.ndarray or kind is np.memmap:
            dtype = arg.dtype
            flags = arg.flags.num & _FLAGS
            if dtype.num not in _ELEMENTS or not dtype.isnative:
                return None
            found.append((dtype.num, arg.ndim, flags & ~_F_ORDER if flags & _C_ORDER else flags))
        elif kind is int:
            if not -(2**63) <= arg < 2**63:
                return None
            found.append(int)
        elif kind is float or kind is np.int64 or kind is np.float64:
            found.append(float if isinstance(arg, float) else int)
        elif isinstance(arg, tuple):
            inner = types_of(arg)
            if inner is None:
                return None
            found.append((kind, inner))
        else:
            return None
    return tuple(found)


def text_of(types: tuple) -> str:
    """The same types in words that mean the same in every process."""
    words = []
    for one in types:
        if one is int or one is float:
            words.append(one.__name__)
        elif isinstance(one[0], type):
            kind = one[0]
            name = "" if kind is tuple else f"{kind.__module__}.{kind.__qualname__}:{','.join(kind._fields)}:"
            words.append(f"{name}({text_of(one[1])})")
        else:
            number, dimensions, flags = one
            words.append(f"{_ELEMENTS[number]}[{dimensions}]{flags:x}")
    return ", ".join(words)


def leaves_of(types: tuple) -> str:
    """How arguments of these types are passed: a letter each."""
    letters = []
    for one in types:
        if one is int or one is float:
            letters.append("i" if one is int else "d")
        elif isinstance(one[0], type):
            letters.append(leaves_of(one[1]))
        else:
            # Owner and parent, none of which the code counts; elements, bytes of one, data, shape, strides.
            letters.append("ppiip" + "i" * (2 * one[1]))
    return "".join(letters)


def _flatten(args: tuple, into: list) -> None:
    for arg in args:
        if isinstance(arg, np.ndarray):
            dimensions = arg.__array_interface__
            into += (None, None, arg.size, arg.itemsize, dimensions["data"][0], *arg.shape, *arg.strides)
        elif isinstance(arg, tuple):
            _flatten(arg, into)
        else:
            into.append(arg)


@cache
def machine() -> str:
    """All that machine code depends on beside its sources: Python, numba, LLVM, numpy, the processor, settings."""
    import importlib.util

    import llvmlite
    import llvmlite.binding as llvm

    spec = importlib.util.find_spec("numba")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'numba'")
    # Its version, without importing it.
    numba = (Path(spec.origin).parent / "_version.py").read_bytes()
    settings = sorted((k, v) for k, v in os.environ.items() if k[:6] == "NUMBA_" and "CACHE" not in k)
    parts = (
        _MAGIC,
        sys.version,
        sys.platform,
        hashlib.blake2b(numba, digest_size=16).hexdigest(),
        llvmlite.__version__,
        np.__version__,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        settings,
    )
    return repr(parts)


def key_of(sources: str, name: str, types: tuple) -> str:
    """Name of the object file of a function."""
    parts = repr((machine(), sources, name, text_of(types)))
    return f"{name}-{hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()}.object"


def read(path: Path) -> Made | None:
    """What a file holds; None where there is none, it is damaged, or others may have written it."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST or not _trusted(status):
                return None
            data = file.read(_MOST)
    except OSError:
        return None
    begin = len(_MAGIC) + _DIGEST
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : begin] != _digest(path.name, data[begin:]):
        return None
    head, _, code = data[begin:].partition(b"\n")
    try:
        entry, returned = json.loads(head)
        return Made(str(entry), str(returned), code)
    except (ValueError, TypeError):
        return None


def write(path: Path, made: Made) -> None:
    """Keep an object, at once or not at all.

    Raises
    ------
    OSError
        It cannot be written.
    """
    content = json.dumps([made.entry, made.returned]).encode() + b"\n" + made.code
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        with open(os.open(fresh, flags, 0o644), "wb") as file:
            file.write(_MAGIC + _digest(path.name, content) + content)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _digest(name: str, content: bytes) -> bytes:
    # With the name, so that no file is taken for another.
    return hashlib.blake2b(name.encode() + b"\n" + content, digest_size=_DIGEST).digest()


def _trusted(status: os.stat_result) -> bool:
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def taken_from(library: Any, entry: str, returned: str, types: tuple) -> Made:
    """The code of a library that numba has compiled.

    Parameters
    ----------
    library : numba CodeLibrary
    entry, returned : str
    types : tuple
        Of `types_of`.

    Returns
    -------
    Made
        Without entry where the code needs anything but the C library, returns more than a number, or where numba
        passes arguments in another way than is known here.
    """
    import llvmlite.binding as llvm

    unfit = Made("", "", b"")
    module = library._final_module
    expected = ["ptr", "ptr", *(_LEAVES[leaf][0] for leaf in leaves_of(types))]
    passed = ["ptr" if str(a.type)[-1:] == "*" else str(a.type) for a in module.get_function(entry).arguments]
    if returned not in _RETURNED or passed != expected or len(passed) > _MOST_ARGUMENTS:
        return unfit
    code = bytes(library._get_compiled_object())
    needed = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    needed += [g.name for g in module.global_variables if g.is_declaration]
    needed += _undefined(llvm.ObjectFileRef.from_data(code))
    if not all(map(_in_c_library, needed)):
        return unfit
    return Made(entry, returned, code)


def _undefined(parsed: Any) -> list[str]:
    """Names that an object in the format ELF (64 bits) needs and does not define."""
    sections = {section.name(): section.data() for section in parsed.sections()}
    if b".symtab" not in sections:
        return []
    names = sections[b".strtab"]
    symbols = np.frombuffer(
        sections[b".symtab"], dtype=[("name", "<u4"), ("info", "<u2"), ("section", "<u2"), ("_", "V16")]
    )
    starts = symbols["name"][(symbols["section"] == 0) & (symbols["name"] > 0)].tolist()
    return [names[start : names.index(b"\0", start)].decode() for start in starts]


def _in_c_library(name: str) -> bool:
    """Whether this program has it without numba: with it not found, LLVM would end the process."""
    try:
        return hasattr(_program(), name)
    except (OSError, TypeError):
        return False


@cache
def _program() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def loaded(made: Made, types: tuple, *, what: str, threads: bool) -> Callable[[tuple], Any]:
    """The function: called with the tuple of its arguments, which must be of these types.

    Parameters
    ----------
    made : Made
    types : tuple
        Of `types_of`.
    what : str
        What it is, for errors.
    threads : bool
        Whether other threads of Python go on meanwhile.

    Raises
    ------
    RuntimeError
        LLVM cannot load it.
    """
    address = _address(made)
    prototype = ctypes.CFUNCTYPE if threads else ctypes.PYFUNCTYPE
    arguments = [_LEAVES[leaf][1] for leaf in leaves_of(types)]
    code = prototype(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *arguments)(address)
    stored = _RETURNED[made.returned]
    truth = made.returned == "bool"

    def run(args: tuple) -> Any:
        flat: list = []
        _flatten(args, flat)
        # As much as the widest of what is returned; and where the code leaves what is wrong.
        result, wrong = (ctypes.c_int64 * 2)(), (ctypes.c_int64 * 2)()
        if code(ctypes.addressof(result), ctypes.addressof(wrong), *flat):
            raise RuntimeError(f"{what}: compiled code has failed")
        if stored is None:
            return None
        value = stored.from_buffer(result).value
        return bool(value) if truth else value

    return run


def _address(made: Made) -> int:
    import llvmlite.binding as llvm

    with _loading:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_triple(llvm.get_process_triple())
        x86 = target.name.startswith("x86")
        target_machine = target.create_target_machine(
            jit=True, reloc="static" if x86 else "default", codemodel="jitdefault", opt=0
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(made.code))
        engine.finalize_object()
        _engines.append(engine)
        address = engine.get_function_address(made.entry)
    if not address:
        raise RuntimeError(f"no function {made.entry}")
    return address
