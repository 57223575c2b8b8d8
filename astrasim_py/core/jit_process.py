"""Compiling in a process of its own: one that is interrupted leaves no half-made functions behind in this one.

Numba keeps the parts of a compilation that was not finished, and would make wrong functions of them.
"""

import json
import pickle
import signal
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from importlib import import_module
from os import _exit
from pathlib import Path

from astrasim_py.core.shielded import pause

_CODE = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {__name__} import serve; serve()"
#: Seconds between two looks at the process.
_EVERY_S = 0.02


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
