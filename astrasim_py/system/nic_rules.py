"""What NICs that charge for messages are made for."""

from astrasim_py.core.errors import ScenarioError
from astrasim_py.system.problem import Problem

_RULES = {"event_order": "issued", "rendezvous_bytes": 0}


def check_nic(problem: Problem) -> None:
    """Raise ScenarioError: overhead or gap of messages, with rules that they are not made for."""
    if problem.nic is None:
        return
    for key, rule in _RULES.items():
        if getattr(problem.semantics, key) != rule:
            said = f"is not made for semantics.{key}: {getattr(problem.semantics, key)}"
            raise ScenarioError("nic", said, f"write {key}: {rule}, or drop nic")
    if problem.network.profile is not None:
        raise ScenarioError("nic", "a profile has the costs of messages already", "drop one of them")
    if problem.network.factory is not None:
        said = f"the network model {problem.network.model} is not ours, and may hand over messages itself"
        raise ScenarioError("nic", said, "write another model, or drop nic")
