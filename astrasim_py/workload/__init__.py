"""Workloads: written in a scenario or in Python, and edited.

``astrasim_py.workload(8).all_reduce("64 MiB")`` begins one in Python, so that the package is also a function: see
`astrasim_py.workload.build.WorkloadBuilder`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astrasim_py.workload.build import WorkloadBuilder


class WorkloadPackage(ModuleType):
    """The package itself: a module that may be called."""

    def __call__(
        self, ranks: int, groups: Mapping[str, Sequence[Sequence[int]]] | None = None, name: str = "workload"
    ) -> WorkloadBuilder:
        """A workload without items: see `WorkloadBuilder`."""
        from astrasim_py.workload.build import WorkloadBuilder

        return WorkloadBuilder(ranks, groups, name)


_package = sys.modules[__name__]
_package.__class__ = WorkloadPackage
assert isinstance(_package, WorkloadPackage)
workload = _package  # under the name by which the interface has it
