"""Topologies from graphs with nodes and edges: networkx graphs, and their node-link JSON.

The attribute ``kind`` of a node says ``npu`` or ``switch``; without it a number is an NPU (with ``npus: N`` of the
graph: a number below N) and a name is a switch. Edges have the columns of an edge list as attributes, and others that
do not count. An undirected graph has two links per edge.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from astrasim_py.core.errors import TopologyError, UnitError, UsageError
from astrasim_py.core.exact_json import parse_json
from astrasim_py.core.strict_model import mistakes, tuples
from astrasim_py.topology.edge_list import END_COLUMNS, NAME, NO_DEFAULTS, Links, npu_count
from astrasim_py.topology.link_defaults import DefaultLatency, DefaultRate, LinkDefaults, latency_of, rate_of
from astrasim_py.topology.model import Computing, Topology
from astrasim_py.topology.spec import Switches

if TYPE_CHECKING:
    import networkx


class GraphNode(NamedTuple):
    key: object
    attributes: Mapping[str, Any]
    place: str


class GraphEdge(NamedTuple):
    """An edge; `cells`: its ends as ``src`` and ``dst``, or as the file names them, and its attributes."""

    cells: Mapping[str, Any]
    place: str
    directed: bool


@dataclass(frozen=True)
class LinkGraph:
    """A graph as a file or networkx has it. `source`: the file, for messages. `npus` and `switches`: of the graph."""

    source: str
    nodes: Sequence[GraphNode]
    edges: Sequence[GraphEdge]
    npus: object = None
    switches: object = None

    def topology(self, defaults: LinkDefaults) -> Topology:
        """Raises TopologyError: a wrong node or edge, or a pair of NPUs without a path."""
        npus = None if self.npus is None else npu_count(self.npus, f"{self.source}: graph.npus")
        links = Links(defaults)
        numbers, switch_names, count = self._vertices(links, defaults.npus if npus is None else npus)
        links.check_npus(count)
        if npus not in (None, count):
            problem = f"{npus}, and {count} nodes are NPUs"
            raise TopologyError(f"{self.source}: graph.npus", problem, "make them agree")
        for cells, place, directed in self.edges:
            both = links.directions("one" if directed else "both") == "both"
            links.add_row(_without_copies(cells), place, both=both, ignore=True)
            if len(links.vertices) > len(self.nodes):
                raise TopologyError(place, "an end of the edge is not among the nodes", "list it under nodes")
        topology = links.numbered(self.source, Path(self.source).stem, count, numbers, switch_names)
        if self.switches is None:
            return topology
        return replace(topology, computing=_computing(self.switches, topology, f"{self.source}: graph"))

    def _vertices(self, links: Links, npus: int | None) -> tuple[dict[int | str, int], list[str], int]:
        """Vertex numbers of all nodes, names of the switches, number of NPUs."""
        hosts: list[int | str] = []
        switches: list[int | str] = []
        names: dict[int | str, str] = {}
        for node, attributes, place in self.nodes:
            key, kind = links.vertex(node, place), attributes.get("kind")
            if key in names:
                raise TopologyError(place, f"node {str(node)[:40]} is listed twice", "list it once")
            if kind not in (None, "npu", "switch"):
                raise TopologyError(f"{place}: kind", f'"{str(kind)[:40]}" is neither npu nor switch', "write one")
            by_rule = isinstance(key, int) and (npus is None or key < npus)
            (hosts if (kind == "npu" if kind else by_rule) else switches).append(key)
            name = attributes.get("name", str(key))
            names[key] = name if isinstance(name, str) and NAME.fullmatch(name) else str(key)
        if not hosts:
            remedy = "number the NPUs from 0, or give their nodes the attribute kind: npu"
            raise TopologyError(self.source, "there are no NPUs", remedy)
        # Numbers 0..n-1 are kept; otherwise NPUs are numbered in the order listed.
        if all(isinstance(k, int) and k < len(hosts) for k in hosts):
            hosts.sort()
            if all(isinstance(k, int) for k in switches):
                switches.sort()
        numbers = {key: i for i, key in enumerate([*hosts, *switches])}
        return numbers, [names[k] for k in switches], len(hosts)


def _without_copies(cells: Mapping[str, Any]) -> Mapping[str, Any]:
    """An edge without the rounded numbers that `Topology.to_networkx` writes beside exact text."""
    copies = {"latency_ns": ("latency",), "bandwidth_GBps": ("bandwidth", "bandwidth_Bps")}
    extra = {copy for copy, exact in copies.items() if copy in cells and any(name in cells for name in exact)}
    return {key: value for key, value in cells.items() if key not in extra} if extra else cells


def read_json(text: str, file: str = "", defaults: LinkDefaults = NO_DEFAULTS) -> Topology:
    """Read what ``networkx.node_link_data`` writes; `file` is named in errors."""
    try:
        # Decimals keep the digits as written, so that units stay exact.
        data: Any = parse_json(text)
    except json.JSONDecodeError as error:
        place = f"{file}:{error.lineno}:{error.colno}"
        raise TopologyError(place, f"not JSON: {error.msg}", "check commas and quotes") from None
    except RecursionError:
        raise TopologyError(file, "nested too deeply", "write a node-link graph") from None
    except ValueError as error:
        raise TopologyError(file, f"not JSON: {error}", "write a node-link graph") from None
    edges = data.get("edges", data.get("links")) if isinstance(data, dict) else None
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(edges, list) or not isinstance(nodes, list):
        raise TopologyError(file, "not a node-link graph", "write what networkx.node_link_data gives")
    for index, node in enumerate(nodes):
        if not isinstance(node, dict) or "id" not in node:
            raise TopologyError(f"{file}: nodes[{index}]", "a node has no id", 'write {"id": 0}')
    for index, edge in enumerate(edges):
        if not isinstance(edge, dict):
            remedy = "write source, target and attributes"
            raise TopologyError(f"{file}: edges[{index}]", "an edge is not an object", remedy)
    attributes = data.get("graph") if isinstance(data.get("graph"), dict) else {}
    directed = bool(data.get("directed", True))
    return LinkGraph(
        file,
        [GraphNode(node["id"], node, f"{file}: nodes[{i}]") for i, node in enumerate(nodes)],
        [GraphEdge(edge, f"{file}: edges[{i}]", directed) for i, edge in enumerate(edges)],
        attributes.get("npus"),
        attributes.get("switches"),
    ).topology(defaults)


def _computing(value: Any, topology: Topology, place: str) -> Computing | None:
    try:
        return Switches.model_validate(tuples(value), context={"written": True}).of(topology, f"{place}.switches")
    except ValidationError as error:
        mistake = next(mistakes(error))
        raise TopologyError(mistake.path(f"{place}.switches"), mistake.problem, mistake.remedy) from None


def from_networkx(
    graph: "networkx.Graph[Hashable]", bandwidth: str | None = None, latency: str | None = None, name: str = ""
) -> Topology:
    """A topology of the nodes and edges of a networkx graph, directed or not, with parallel edges or not.

    Parameters
    ----------
    graph : networkx.Graph
        Nodes that are numbers or tuples are NPUs, those that are text are switches, unless their attribute ``kind``
        is "npu" or "switch". NPUs 0..n-1 keep their numbers; others are numbered in the order of the nodes. Edges
        may have ``bandwidth`` and ``latency`` (text with unit, or a number in the unit of the default); other
        attributes do not count. An undirected edge is a link in each direction.
    bandwidth, latency : str, optional
        Of edges that name none, such as "50 GB/s" and "500 ns".
    name : str, optional
        That of the graph by default.

    Raises
    ------
    TopologyError
        An edge without bandwidth or latency, no NPUs, or a pair of NPUs without a path.
    """
    if not all(hasattr(graph, method) for method in ("nodes", "edges", "is_directed")):
        raise UsageError("graph", f"{type(graph).__name__} is not a networkx graph", "write e.g. networkx.Graph()")
    source = name or str(graph.graph.get("name") or "graph")
    attributes = {node: dict(graph.nodes[node]) for node in graph}
    keys: dict[Hashable, int | str] = {node: node for node in attributes if isinstance(node, int | str)}
    if not all(_is_number(node) or (isinstance(node, str) and NAME.fullmatch(node)) for node in attributes):
        # Nodes may be anything, such as the pairs of a grid: what they are stays, and they get other names.
        keys = {node: f"node{i}" for i, node in enumerate(attributes)}
        for node, of_node in attributes.items():
            of_node.setdefault("kind", "switch" if isinstance(node, str) else "npu")
            of_node.setdefault("name", str(node))
    defaults = LinkDefaults(bandwidth=_rate(bandwidth), latency=_latency(latency))
    return replace(
        LinkGraph(
            source,
            [GraphNode(keys[node], of_node, f"{source}: node {node}") for node, of_node in attributes.items()],
            [
                GraphEdge(_edge(keys[a], keys[b], of_edge), f"{source}: edge {a} {b}", graph.is_directed())
                for a, b, of_edge in graph.edges(data=True)
            ],
            graph.graph.get("npus"),
            graph.graph.get("switches"),
        ).topology(defaults),
        name=source,
    )


def _edge(src: int | str, dst: int | str, attributes: Mapping[Any, Any]) -> dict[str, Any]:
    """Cells of an edge; numbers of NumPy are plain numbers."""
    cells = {
        key: value.tolist() if hasattr(value, "tolist") else value
        for key, value in attributes.items()
        if isinstance(key, str) and key not in END_COLUMNS
    }
    return {"src": src, "dst": dst, **cells}


def _is_number(node: object) -> bool:
    return isinstance(node, int) and not isinstance(node, bool) and node >= 0


def _rate(value: str | None) -> DefaultRate | None:
    if value is None:
        return None
    try:
        return rate_of(value)
    except UnitError as error:
        raise TopologyError("bandwidth", error.problem, error.remedy) from None


def _latency(value: str | None) -> DefaultLatency | None:
    if value is None:
        return None
    try:
        return latency_of(value)
    except UnitError as error:
        raise TopologyError("latency", error.problem, error.remedy) from None
