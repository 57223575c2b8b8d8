"""Workloads: written in a scenario or in Python, and edited.

``astrasim_py.workload(8).all_reduce("64 MiB")`` begins one in Python, so that the package is also a function: see
`astrasim_py.workload.build.WorkloadBuilder`.
"""

import sys
from types import ModuleType
from typing import Any

from astrasim_py.workload.build import WorkloadBuilder


class _Package(ModuleType):
    def __call__(self, ranks: int, **options: Any) -> WorkloadBuilder:
        """A workload of `ranks` ranks without items; `options`: ``groups``, ``name``."""
        return WorkloadBuilder(ranks, **options)


sys.modules[__name__].__class__ = _Package
