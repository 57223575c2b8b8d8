"""Limits of the network model ``fluid``, within which its integers are exact."""

from collections.abc import Sequence

from astrasim_py.core.choices import FLUID
from astrasim_py.core.errors import ScenarioError
from astrasim_py.system.problem import Problem

#: Required rules of semantics: rounding of delays, and the order at one instant.
_RULES = {"rounding": "up_ps", "event_order": "issued"}
#: Exclusive limits: bytes of a message; bytes per second of a link.
_MOST_BYTES, _MOST_RATE = 2**47, 140 * 10**12


#: Problem and remedy of link events under another model.
NO_EVENTS = (
    "reserves links for messages as they begin, so no link can fail or change during a run",
    "write model: fluid, or delete the events",
)


def check_fluid(problem: Problem, sizes: Sequence[int], routes: object) -> None:
    """Raise ScenarioError: the model ``fluid`` beyond its limits.

    `sizes`: of messages, bytes, ascending. `routes`: the table of routes, None where there are too many for one.
    """
    if problem.network.model != FLUID or problem.network.factory is not None:
        return
    place, topology = "network.model", problem.topology
    for key, rule in _RULES.items():
        if getattr(problem.semantics, key) != rule:
            given = f"semantics.{key}: {getattr(problem.semantics, key)}"
            raise ScenarioError(place, f"fluid does not support {given}", f"write {key}: {rule}, or another model")
    if routes is None:
        said = f"fluid needs a table of routes, but there are too many routes among {topology.npus} NPUs"
        raise ScenarioError(place, said, "write another model, or fewer NPUs")
    changed = (rate for event in topology.events for _, rate, _ in event.changes if rate is not None)
    bad = [rate for rate in (*topology.bandwidths, *changed) if not 1 <= rate < _MOST_RATE]
    if bad:
        said = f"fluid supports links of 1 B/s to 140 TB/s, but {topology.name} has one of {float(bad[0]):g} B/s"
        raise ScenarioError(place, said, "write another bandwidth, or another model")
    pace = None if problem.network.msccl is None else problem.network.msccl.channel_bandwidth
    if pace is not None and pace < 1:
        raise ScenarioError("network.msccl.channel_bandwidth", "fluid needs 1 B/s or more", "write a larger one")
    if sizes and sizes[-1] >= _MOST_BYTES:
        raise ScenarioError(place, f"fluid supports messages of less than 2^47 B, not {sizes[-1]} B", "cut them")


def check_events(problem: Problem) -> None:
    """Raise ScenarioError: links that fail or change during a run, under another model than ``fluid``."""
    network = problem.network
    if problem.topology.events and (network.model != FLUID or network.factory is not None):
        raise ScenarioError("network.model", f"{network.model} {NO_EVENTS[0]}", NO_EVENTS[1])
