"""Computations in tiles: nodes that wait for a part of a collective, or that make a part of its input."""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import ScenarioError
from astrasim_py.workload.items import Compute

TILE_COLUMNS = tuple(f"{side}{part}" for side in ("consumes", "produces") for part in ("", "_tile", "_tiles"))
TILE_COLUMNS += ("tile_order",)
#: By place of a node on its rank: columns of the tiles that it consumes and produces.
Uses = dict[int, dict[str, int]]


def tile_times(time: int, tiles: int, overhead: int = 0, speed: Fraction | int = 1) -> list[int]:
    """The times (ps) of the tiles of a computation; several have an overhead each, and a speed of 1 or less.

    >>> tile_times(10, 3), tile_times(10, 2, overhead=1, speed=Fraction(1, 2)), tile_times(10, 1, 1)
    ([3, 3, 4], [11, 11], [10])
    """
    if tiles == 1:
        return [time]
    return [-(-part * 1 // speed) + overhead for part in split(time, tiles)]


def split(amount: int, tiles: int) -> list[int]:
    """A whole number in parts that differ by 1 at most."""
    return [(tile + 1) * amount // tiles - tile * amount // tiles for tile in range(tiles)]


def in_tiles(node: Mapping, item: Compute, where: str) -> list[dict]:
    """The nodes of a computation in tiles; `where`: its item."""
    label = {"produced": item.produces, "item": where}
    if item.tiles == 1:
        return [{**node, **label}]
    columns = {name: split(node[name], item.tiles) for name in ("num_ops", "tensor_size") if name in node}
    if "duration_ps" in node:
        speed = item.comm_slows_compute or 1
        columns["duration_ps"] = tile_times(node["duration_ps"], item.tiles, item.tile_overhead or 0, speed)
    return [
        {**node, **label, "name": f"{node['name']} tile {tile + 1}/{item.tiles}"}
        | {name: parts[tile] for name, parts in columns.items()}
        for tile in range(item.tiles)
    ]


def consume(
    uses: Uses, item: Compute, nodes: Sequence[int], named: Mapping[str, tuple[int, ...]],
    deps: Sequence[tuple[int, ...]], place: str, rank: str,
) -> None:  # fmt: skip
    """Let the nodes of an item on a rank consume the tiles of a collective; all are places of nodes on the rank."""
    source = named.get(item.consumes or "", ())
    if len(source) != 1 or source[0] not in deps[nodes[0]]:
        problem = f'"{item.consumes}" is not one node that it waits for on {rank}'
        raise ScenarioError(place, problem, f"write after: {item.consumes}, a collective of {rank}")
    for tile, node in enumerate(nodes):
        columns = {"consumes": source[0], "consumes_tile": tile, "consumes_tiles": len(nodes)}
        uses.setdefault(node, {}).update(columns | ({} if item.produces else {"tile_order": 1}))


def produce(uses: Uses, nodes: Sequence[Mapping], deps: Sequence[tuple[int, ...]], place: str, rank: str) -> None:
    """Let the nodes of a rank that name a collective after them produce its tiles.

    Those of one item follow the order in which the collective needs them, those of several the order of the items.
    """
    by_name: dict[str, list[int]] = {}
    for row, node in enumerate(nodes):
        if node.get("produced") is not None:
            by_name.setdefault(node["produced"], []).append(row)
    for name, producers in by_name.items():
        collectives = [
            row
            for row in range(producers[-1] + 1, len(nodes))
            if nodes[row]["type"] == NodeType.COMM_COLL and nodes[row]["name"] == name
        ]
        if not collectives or not set(producers) <= set(deps[collectives[0]]):
            problem = f'"{name}" does not wait on {rank} for all that produces it'
            raise ScenarioError(f"{place}", problem, "write after: with the names of all of it")
        for tile, row in enumerate(producers):
            columns = {"produces": collectives[0], "produces_tile": tile, "produces_tiles": len(producers)}
            alone = len({nodes[other]["item"] for other in producers}) == 1
            uses.setdefault(row, {}).update(columns | ({"tile_order": 1} if alone else {}))
