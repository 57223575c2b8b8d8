"""Groups of NPUs that fill a grid in the dimensions of a topology."""

import math
from collections.abc import Sequence

from astrasim_py.topology.model import Topology


def grid(npus: Sequence[int], sizes: Sequence[int]) -> list[list[int]] | None:
    """Coordinates of some NPUs in each dimension if the NPUs are all combinations of them, else None.

    NPU = a0 + n0·(a1 + n1·(…)), where n0 is the first of `sizes`, the innermost.
    """
    coordinates: list[list[int]] = []
    rest = list(npus)
    for size in sizes:
        coordinates.append(sorted({npu % size for npu in rest}))
        rest = [npu // size for npu in rest]
    return coordinates if math.prod(map(len, coordinates)) == len(set(npus)) == len(npus) else None


def rows_along(npus: Sequence[int], dim: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """NPUs in rows along a dimension: the NPUs of a row differ in that coordinate only, ascending."""
    stride = math.prod(sizes[:dim])
    rows: dict[int, list[int]] = {}
    for npu in sorted(npus):
        rows.setdefault(npu - npu // stride % sizes[dim] * stride, []).append(npu)
    return tuple(tuple(row) for row in rows.values())


def group_dims(topology: Topology, npus: Sequence[int]) -> list[int]:
    """How many NPUs of a group there are along each dimension of the topology in which they differ.

    One dimension of all where they fill no grid.
    """
    coordinates = grid(npus, [dim.size for dim in topology.dims]) if topology.dims else None
    return [len(values) for values in coordinates or () if len(values) > 1] or [len(npus)]


def nodes_of(topology: Topology, npus: tuple[int, ...]) -> list[list[int]]:
    """The members of a group by node, each in the order of NPUs.

    A group on one switch is a node; where a topology has no nodes, each NPU is one.
    """
    has_nodes = topology.shape in ("dgx", "product")
    if topology.one_node(npus) and (has_nodes or topology.switch_of(npus) is not None):
        return [list(range(len(npus)))]
    if not has_nodes:
        return [[member] for member in range(len(npus))]
    nodes: dict[int, list[int]] = {}
    for member in sorted(range(len(npus)), key=npus.__getitem__):
        nodes.setdefault(npus[member] // topology.dims[0].size, []).append(member)
    return list(nodes.values())
