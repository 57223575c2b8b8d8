"""Queue pairs: several routes between two NPUs, and messages that are split over them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from astrasim_py.collectives.chunks import share
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.dialects.library.lower_connections import MAX_PIECES
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import RECV, SEND, RankProgram, Structure
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.model import Routing

#: Rules of semantics under which messages have queue pairs.
_RULES = {"event_order": "issued", "message_match": "instance", "rendezvous_bytes": 0, "analytical_route": "all_hops"}


def objections(
    network: NetworkModel, semantics: Semantics, routing: Routing | None, topology: str
) -> Iterator[tuple[str, str, str]]:
    """Objections to queue pairs (unsupported rules, no effect): key of the network, problem, remedy.

    `routing`: of the topology of that name.
    """
    if network.qps == 1:
        return
    if routing is None or not routing.ecmp:
        said = f"queue pairs change nothing: {topology} has one route from an NPU to another"
        yield "qps", said, "write routing: {ecmp: true} for the topology, or drop it"
    for key, rule in _RULES.items():
        if getattr(semantics, key) != rule:
            said = f"queue pairs do not support semantics.{key}: {getattr(semantics, key)}"
            yield "qps", said, f"write {key}: {rule}, or drop one of them"
    if network.split and semantics.comm_slots is not None:
        said = f"split does not support semantics.comm_slots: {semantics.comm_slots}; parts would take slots"
        yield "split", said, "drop one of them"


def check_queue_pairs(problem: Problem) -> None:
    """Raise ScenarioError: queue pairs under rules that do not support them, or without effect."""
    topology = problem.topology
    for key, said, remedy in objections(problem.network, problem.semantics, topology.routing, topology.name):
        raise ScenarioError(f"network.{key}", said, remedy)


def split_messages(program: RankProgram, parts: int, structure: Callable[..., Structure], place: str) -> RankProgram:
    """The program with every message split.

    Every part is a send or receive with the dependencies of the message; nodes that depend on the message depend
    on all its parts. `structure`: ``structure(kind, need, child, parent)`` makes the structure of the parts. Raises
    AlgorithmError: counters or detached sends, or too many parts; `place` names the program.
    """
    kind = program.structure.kind
    own = np.where((kind == SEND) | (kind == RECV), parts, 1).astype(np.int64)
    if int(own.sum()) == len(own):
        return program
    if program.counters is not None:
        problem = "has counters or detached sends, and messages that network.split splits"
        raise AlgorithmError(place, problem, "leave split out of the network")
    if int(own.sum()) > MAX_PIECES:
        problem = f"makes {int(own.sum()):,} parts of messages and operations of one rank, more than {MAX_PIECES:,}"
        raise AlgorithmError(place, problem, "write fewer qps, or leave split out of the network")
    first, origin = np.cumsum(own) - own, np.repeat(np.arange(len(own)), own)
    number = np.arange(len(origin)) - first[origin]
    parent = np.repeat(np.arange(len(own)), np.diff(program.structure.succ_ptr))
    child = program.structure.succ.astype(np.int64)
    edges = own[parent] * own[child]
    if int(edges.sum()) > 16 * MAX_PIECES:
        problem = f"makes {int(edges.sum()):,} dependencies between parts of messages of one rank"
        raise AlgorithmError(place, problem, "write fewer qps, or leave split out of the network")
    edge = np.repeat(np.arange(len(edges)), edges)
    of_parent, of_child = np.divmod(np.arange(len(edge)) - (np.cumsum(edges) - edges)[edge], own[child][edge])
    parent, child = first[parent][edge] + of_parent, first[child][edge] + of_child
    order = np.lexsort((parent, child))
    gates = program.structure.need - np.bincount(program.structure.succ, minlength=len(own))
    need = np.bincount(child, minlength=len(origin)) + gates[origin]
    names = ("rows", "node_id", "peer", "tag", "slot", "instance", "duration")
    return replace(
        program,
        structure=structure(kind[origin], need, child[order], parent[order]),
        nbytes=share(program.nbytes[origin], number, own[origin]),
        **{name: getattr(program, name)[origin] for name in names},
    )
