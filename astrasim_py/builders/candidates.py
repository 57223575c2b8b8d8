"""Algorithms in the network that a topology allows for a group, for a choice of the fastest by simulation."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from astrasim_py.builders.registry import IN_NETWORK, build
from astrasim_py.builders.switch_trees import SwitchTree, capable_tree, switches_above
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology.model import Topology

#: Numbers of pieces that are tried, and nodes of an algorithm beyond which no larger number is.
_PIECES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_MOST_NODES = 2**16


def candidates_in_network(
    topology: Topology, npus: tuple[int, ...], collective: str, root: int | None, size: int
) -> Iterator[Algorithm]:
    """Every builder in the network that has the collective, with numbers of pieces, alone and, where groups of
    neighbouring ranks hang on switches of their own, in and between these. `size`: of the call."""
    tree = capable_tree(topology, npus)
    for builder, (collectives, _) in IN_NETWORK.items() if tree is not None and len(npus) > 1 else ():
        if collective in collectives:
            yield from _cut(topology, npus, collective, root, builder, {})
    group = 0 if tree is None else _of_one_size(tree)
    if not 1 < group < len(npus):
        return
    inner = "nvls" if collective in IN_NETWORK["nvls"][0] else "switch_tree"
    for outer in ("ring", "nvls", "switch_tree"):
        if outer != "ring" and collective not in IN_NETWORK[outer][0]:
            continue
        if collective in IN_NETWORK[inner][0]:
            options = {"dims": [group, len(npus) // group], "algorithms": [inner, outer]}
            yield from _cut(topology, npus, collective, root, "hierarchical", options, size)


def _cut(
    topology: Topology,
    npus: tuple[int, ...],
    collective: str,
    root: int | None,
    builder: str,
    options: dict,
    size: int = 0,
) -> Iterator[Algorithm]:
    nodes = 0
    # Levels have pieces of their own.
    for chunks, more in pairwise((0, *_PIECES[: 3 if builder == "hierarchical" else None])):
        pieces = {} if collective == "barrier" else {"chunks": more}
        # An algorithm has about so many nodes for each piece.
        if nodes * more > _MOST_NODES * max(chunks, 1) or (chunks and not pieces):
            return
        try:
            decided = switches_above(topology, npus, builder, collective, options, size)
            keys: dict[str, Any] = {**options, **pieces, **decided}
            algorithm = build(builder, collective, len(npus), root=root, **keys)
        except AlgorithmError:
            return
        nodes = algorithm.nodes
        slots = topology.computing.slots if topology.computing is not None else None
        if slots is None or all(algorithm.slots_of(k) <= slots for k in range(len(algorithm.actors))):
            yield algorithm.with_verdict(True)


def _of_one_size(tree: SwitchTree) -> int:
    """Number of neighbouring ranks on each switch that has any, if it is the same for all; else 0."""
    above = tree.above[: tree.ranks]
    size = next((rank for rank in range(1, len(above)) if above[rank] != above[0]), len(above))
    same = all(above[rank] == above[rank // size * size] for rank in range(len(above)))
    return size if same and len(above) % size == 0 and len(set(above)) == len(above) // size else 0
