"""Lower bounds of single calls."""

from collections.abc import Sequence

from astrasim_py.system.bound import proven_bound
from astrasim_py.system.plan import Plan
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import CallBounds, may_reduce


def lower_bound_ps(
    collective: str, size: int, topology: Topology, npus: Sequence[int], root: int = 0, *, switches: bool | None = None
) -> int:
    """`switches`: whether switches may reduce; by default where the topology says so."""
    may = may_reduce(topology) if switches is None else switches
    return CallBounds(topology).of(collective, size, npus, root, switches=may)[0]


def problem_bound(plan: Plan) -> int | None:
    """Lower bound of a makespan, ps; None where none applies."""
    return proven_bound(plan)[0]
