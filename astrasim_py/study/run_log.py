"""Facts of a run beside its results: versions, limits and cost."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from astrasim_py.core import jit
from astrasim_py.core.records import Records
from astrasim_py.system.machine_models import Limits

_PACKAGES = ("astrasim-py", "numpy", "simpy", "numba")


@cache
def package_version(name: str = "astrasim-py") -> str:
    """Version of an installed package; ``0`` where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "0"


def limits_json(limits: Limits) -> dict[str, int | None]:
    """Limits as plain values."""
    return {"max_events": limits.max_events, "max_sim_time_ps": limits.max_sim_time_ps}


class Usage:
    """Begins to measure when it is made; compiling, and waiting for another process that does so, is in no figure."""

    def __init__(self) -> None:
        self.began = time.time()
        self.clock, self.cpu_s = jit.clock(), jit.cpu_s()

    def volatile(self, records: Records, source: str, **more: object) -> dict[str, object]:
        """The content of ``run.json``.

        `source`: the folder that names in the point are relative to. `more`: what else it says.
        """
        return {
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "python": sys.version.split()[0],
            "versions": {name: package_version(name) for name in _PACKAGES},
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
