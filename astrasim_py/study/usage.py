"""What varies from run to run, and is kept apart from results: where and when a point was run, and what it cost."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from decimal import Decimal
from importlib.metadata import PackageNotFoundError, version

from astrasim_py.core import jit
from astrasim_py.core.records import Records

_PACKAGES = ("astrasim-py", "numpy", "simpy", "numba")


class Usage:
    """Begins to measure when it is made; compiling, and waiting for another process that does so, is in no figure."""

    def __init__(self) -> None:
        self.began = time.time()
        self.clock, self.cpu_s = jit.clock(), jit.cpu_s()

    def volatile(self, records: Records, source: str, **more: object) -> dict[str, object]:
        """What ``run.json`` says.

        Parameters
        ----------
        source : path
            The folder that names in the point are relative to.
        **more
            What else it says.
        """
        return {
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": sys.version.split()[0],
            "versions": {name: _version(name) for name in _PACKAGES},
            "source": os.path.abspath(source),
            **more,
            "started": _decimal(self.began),
            "finished": _decimal(time.time()),
            "wall_s": _decimal(jit.clock() - self.clock),
            "total_cpu_s": _decimal(jit.cpu_s() - self.cpu_s),
            "cpu_s": _decimal(records.cpu_s),
        }


def _decimal(seconds: float) -> Decimal:
    return Decimal(f"{seconds:.6f}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
