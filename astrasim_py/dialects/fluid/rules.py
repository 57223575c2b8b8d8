"""Limits of the network model ``fluid``, within which its integers are exact."""

from collections.abc import Sequence

from astrasim_py.core.errors import ScenarioError
from astrasim_py.system.compatible import FLUID, NO_ROUTES, refuse
from astrasim_py.system.problem import Problem

#: Exclusive limits: bytes of a message; bytes per second of a link.
_MOST_BYTES, _MOST_RATE = 2**47, 140 * 10**12


def check_fluid(problem: Problem, sizes: Sequence[int], routes: object) -> None:
    """Raise ScenarioError: the model ``fluid`` beyond its limits.

    `sizes`: of messages, bytes, ascending. `routes`: the table of routes, None where there are too many for one.
    """
    network, place, topology = problem.network, "network.model", problem.topology
    if network.model != "fluid" or network.factory is not None:
        return
    refuse(FLUID, {NO_ROUTES: topology.npus if routes is None else None})
    changed = (rate for event in topology.events for _, rate, _ in event.changes if rate is not None)
    bad = [rate for rate in (*topology.bandwidths, *changed) if not 1 <= rate < _MOST_RATE]
    if bad:
        text = f"fluid supports links of 1 B/s to 140 TB/s, but {topology.name} has one of {float(bad[0]):g} B/s"
        raise ScenarioError(place, text, "write another bandwidth, or another model")
    pace = None if network.msccl is None else network.msccl.channel_bandwidth
    if pace is not None and pace < 1:
        raise ScenarioError("network.msccl.channel_bandwidth", "fluid needs 1 B/s or more", "write a larger one")
    if sizes and sizes[-1] >= _MOST_BYTES:
        raise ScenarioError(place, f"fluid supports messages of less than 2^47 B, not {sizes[-1]} B", "cut them")
