"""Placement of ranks on NPUs."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.fields import whole
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.topology.model import Topology
from astrasim_py.topology.routing import mix


class RandomPlacement(StrictModel):
    """Ranks on NPUs in random order."""

    random: Annotated[int, whole(0, 2**31 - 1, "seed")] = example("1", description="seed")


def placement(
    topology: Topology,
    kind: str | RandomPlacement | Sequence[int] = "linear",
    ranks: int | None = None,
    place: str = "",
) -> tuple[int, ...]:
    """Place each rank on an NPU; failed NPUs are skipped.

    `kind`: ``linear``: ascending NPU ids. ``snake``: boustrophedon over the dims (reflected mixed-radix Gray code), so
    that successive ranks sit side by side; the slowest coordinate is the last one of even size, and then the last rank
    is a neighbour of the first on a torus as well. A topology without dims has no snake. `RandomPlacement`: by a
    hash of the seed and the NPU, the same on every machine. A list gives each rank's NPU.
    `ranks`: number of ranks; default: all alive NPUs, or the length of the list. Returns rank -> NPU. Raises
    TopologyError: more ranks than NPUs; in a list: duplicates, NPUs that do not exist or have failed, a wrong length.
    """
    if isinstance(kind, RandomPlacement):
        alive = np.array(topology.alive, dtype=np.int64)
        order: Sequence[int] | np.ndarray = alive[np.argsort(mix(kind.random, alive))]
    elif isinstance(kind, str):
        if kind == "linear":
            order = topology.alive
        elif kind == "snake":
            if not topology.dims:
                problem = f'a topology of shape "{topology.shape}" has no dims to snake through'
                raise TopologyError(place, problem, "write linear")
            snake = _snake([d.size for d in topology.dims])
            order = snake[~np.isin(snake, topology.failed)]
        else:
            raise TopologyError(place, f'"{kind}" is not a placement', "write linear, snake, or a list of NPU ids")
    else:
        order = list(kind)
        _check_list(topology, order, place)
        if ranks is not None and ranks != len(order):
            raise TopologyError(place, f"{len(order)} NPUs are listed for {ranks} ranks", "list one NPU per rank")
    count = len(order) if ranks is None else ranks
    if count < 1:
        raise TopologyError(place, f"{count} ranks cannot be placed", "place at least one")
    if count > len(order):
        dead = f" ({len(topology.failed)} of {topology.npus} failed)" if topology.failed else ""
        problem = f"{count} ranks are more than the {len(order)} NPUs of the topology{dead}"
        raise TopologyError(place, problem, "write a larger topology or fewer ranks")
    return tuple(int(npu) for npu in order[:count])


def _check_list(topology: Topology, order: Sequence[int] | np.ndarray, place: str) -> None:
    seen: dict[int, int] = {}
    dead = frozenset(topology.failed)
    for rank, npu in enumerate(order):
        if isinstance(npu, bool) or not isinstance(npu, int | np.integer):
            raise TopologyError(place, f"{npu!r} (rank {rank}) is not an NPU id", "list whole numbers")
        if not 0 <= npu < topology.npus:
            problem = f"NPU {npu} (rank {rank}) does not exist"
            raise TopologyError(place, problem, f"NPUs are numbered 0 to {topology.npus - 1}")
        if npu in dead:
            raise TopologyError(place, f"NPU {npu} (rank {rank}) has failed", "leave it out")
        if npu in seen:
            raise TopologyError(
                place, f"NPU {npu} is listed for ranks {seen[int(npu)]} and {rank}", "list each NPU once"
            )
        seen[int(npu)] = rank


def _snake(sizes: Sequence[int]) -> np.ndarray:
    """NPU ids in boustrophedon order: the reflected mixed-radix Gray code, slowest in the last digit of even radix."""
    strides = np.cumprod([1, *sizes[:-1]])
    order = list(range(len(sizes)))
    even = [i for i in order if sizes[i] % 2 == 0]
    if even:
        order.remove(even[-1])
        order.append(even[-1])
    ids = np.zeros(1, dtype=np.int64)
    for index in order:
        step = np.arange(sizes[index]) * int(strides[index])
        rows = np.tile(ids, (sizes[index], 1))
        rows[1::2] = rows[1::2, ::-1]
        ids = (rows + step[:, None]).ravel()
    return ids
