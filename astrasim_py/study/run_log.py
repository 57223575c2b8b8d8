"""A finished run on its way to the store: its manifest, and its cost, versions and host beside its results."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from astrasim_py.core import jit
from astrasim_py.core.errors import EXIT_OK, EXIT_STUCK
from astrasim_py.core.records import RECORD_SCHEMA, Records
from astrasim_py.study import store
from astrasim_py.study.stored_points import StoredPoint
from astrasim_py.study.summary import files_of, summary_of
from astrasim_py.system.plan import Plan

_PACKAGES = ("astrasim-py", "numpy", "simpy", "numba")


@cache
def package_version(name: str = "astrasim-py") -> str:
    """Version of an installed package; ``0`` where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "0"


class Usage:
    """Begins to measure when it is made; compiling, and waiting for another process that does so, is in no figure."""

    def __init__(self) -> None:
        self.began = time.time()
        self.clock, self.cpu_s = jit.clock(), jit.cpu_s()

    def volatile(self, records: Records, source: str, **more: object) -> dict[str, object]:
        """The content of ``run.json``; `source`: the folder that names in the point are relative to."""
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


def store_run(
    folder: Path,
    plan: Plan,
    records: Records,
    options: store.RunOptions,
    usage: Usage,
    *,
    row: Mapping,
    facts: Mapping,
    source: Mapping,
    warnings: Iterable[str] = (),
    more: Mapping | None = None,
    replace: bool = False,
) -> StoredPoint:
    """Store a finished simulation.

    `row`: what is known of the point. `facts`: for the manifest. `source`: for ``run.json``. `more`: for the summary.
    """
    summary = summary_of(plan, records, row, warnings) | (more or {})
    status = records.outcome.status
    manifest = {
        "package": "astrasim-py",
        "version": package_version(),
        "record_schema": RECORD_SCHEMA,
        "engine_semantics": store.ENGINE_SEMANTICS,
        "folder": folder.name,
        "status": status,
        "exit_code": EXIT_OK if status == "done" else EXIT_STUCK,
        "engine": records.engine,
        "level": options.level,
        "timeline": options.timeline,
        "limits": dict(options.limits),
        **facts,
    }
    volatile = usage.volatile(records, **source)
    files = files_of(plan, records, summary, with_timeline=options.timeline)
    store.write_point(folder, files, manifest, volatile, options=options, replace=replace)
    return StoredPoint(folder=folder, manifest=manifest, summary=summary, volatile=volatile)
