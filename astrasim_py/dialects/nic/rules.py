"""Which rules NICs with overhead and gap support."""

from collections.abc import Iterator

from astrasim_py.core.errors import ScenarioError
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.system.semantics import Semantics

_RULES = {"event_order": "issued", "rendezvous_bytes": 0}


def objections(network: NetworkModel, semantics: Semantics) -> Iterator[tuple[str, str]]:
    """Objections to overhead and gap of messages: problem and remedy."""
    for key, rule in _RULES.items():
        if getattr(semantics, key) != rule:
            said = f"overhead and gap do not support semantics.{key}: {getattr(semantics, key)}"
            yield said, f"write {key}: {rule}, or drop nic"
    if network.profile is not None:
        yield "a profile has the costs of messages already", "drop one of them"


def check_nic(problem: Problem) -> None:
    """Raise ScenarioError: overhead or gap of messages under rules that do not support them."""
    if problem.nic is None:
        return
    for said, remedy in objections(problem.network, problem.semantics):
        raise ScenarioError("nic", said, remedy)
    if problem.network.factory is not None:
        said = f"the network model {problem.network.model} is not of this package and may deliver messages itself"
        raise ScenarioError("nic", said, "write another model, or drop nic")
