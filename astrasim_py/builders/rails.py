"""Paths of rings and trees through nodes of several ranks: channel k enters and leaves every node by rank k of it.

Where each rank of a node has a NIC of its own, as in DGX-like nodes, so all NICs are used. NCCL lays its channels in
this way. A message that leaves a node by the NIC of another rank goes to that rank by NVLink (PXN; NVIDIA technical
blog: Doubling all2all performance with NCCL 2.12, 2022): the topology's routes do so.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain

import numpy as np

from astrasim_py.builders.paths import Paths, one_way, same, same_lane
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.rotation import Rotation


def through(nodes: Sequence[Sequence[int]], channels: int, pieces: int) -> Paths:
    """Paths through nodes, each of its ranks in order: `channels` of `pieces` lanes."""
    in_order, lanes, width = nodes_as_given(nodes), channels * pieces, len(nodes[0])
    if in_order and channels == 1:
        return one_way(len(nodes) * width, np.ones(pieces, dtype=np.int64))
    if in_order and pieces == 1 and channels % width == 0:
        turn = partial(_turn_rails, width, len(nodes))
        behind = partial(_lane_behind, width)
        return Paths(lanes, turn, Rotation((width, len(nodes))), partial(_rail, width), behind, channels > 1)
    order = np.array([list(chain(*(from_rail(node, k) for node in nodes))) for k in range(channels)])
    order = order.repeat(pieces, axis=0)
    return Paths(lanes, partial(_turn_listed, order, np.argsort(order)), None, same, same_lane, channels > 1, pieces)


def from_rail(node: Sequence[int], k: int) -> list[int]:
    """Ranks of a node in the order of channel k."""
    k %= len(node)
    return [*node[k:], *node[:k]]


def nodes_as_given(nodes: Sequence[Sequence[int]]) -> bool:
    """Whether nodes have equally many ranks with consecutive numbers."""
    return len(set(map(len, nodes))) == 1 and list(chain(*nodes)) == list(range(sum(map(len, nodes))))


def check_nodes_of(nodes: object, ranks: int, place: str) -> list[list[int]]:
    """The ranks of each node; `nodes` is their number per node, or lists them. Raises AlgorithmError."""
    if type(nodes) is int and nodes >= 1:
        if ranks % nodes:
            raise AlgorithmError(place, f"nodes of {nodes} do not divide {ranks} ranks", "list the ranks of each node")
        return np.arange(ranks).reshape(-1, nodes).tolist()
    listed = nodes if isinstance(nodes, list | tuple) else ()
    if not listed or not all(isinstance(part, list | tuple) and part for part in listed):
        problem = f"nodes is {nodes!r}, neither a number of ranks nor lists of them"
        raise AlgorithmError(place, problem, "write e.g. nodes: 8, or nodes: [[0, 1], [2, 3]]")
    members = [rank for node in listed for rank in node]
    if any(type(rank) is not int for rank in members) or sorted(members) != list(range(ranks)):
        raise AlgorithmError(place, f"nodes do not have each of the ranks 0 to {ranks - 1} once", "list each once")
    return [list(node) for node in listed]


# -- how paths continue; functions of the module, because algorithms are sent to other processes


def _turn_listed(order: np.ndarray, place: np.ndarray, rank, lane, steps):
    return order[lane, (place[lane, rank] + steps) % order.shape[1]]


def _turn_rails(width: int, nodes: int, rank, lane, steps):
    """Lane c of a rank is the channel that enters its node by the rank c further on."""
    cell = rank // width * width + -lane % width + steps
    return cell // width % nodes * width + (rank + lane + cell) % width


def _rail(width: int, rank, lane):
    return lane // width * width + (rank + lane) % width


def _lane_behind(width: int, lane: int) -> int:
    return lane // width * width + (lane + 1) % width
