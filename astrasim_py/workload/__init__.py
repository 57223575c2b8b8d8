"""Workloads: written in a scenario or in Python, and edited.

``astrasim_py.workload(8).all_reduce("64 MiB")`` begins one in Python, so that the package is also a function: see
`astrasim_py.workload.build.WorkloadBuilder`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrasim_py.workload.build import WorkloadBuilder


class _Package(ModuleType):
    def __call__(self, ranks: int, **options: Any) -> WorkloadBuilder:
        """A workload of `ranks` ranks without items; `options`: ``groups``, ``name``."""
        from astrasim_py.workload.build import WorkloadBuilder

        return WorkloadBuilder(ranks, **options)


sys.modules[__name__].__class__ = _Package
