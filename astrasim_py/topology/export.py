"""Topologies for other tools: networkx graphs and node-link JSON (which `edge_list` reads back)."""

from __future__ import annotations

import json
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Any

from astrasim_py.topology.model import Topology


def _exact(value: Fraction) -> str | None:
    """The value as a decimal number, or None if it has no finite one of up to 50 digits."""
    try:
        number = Context(prec=50, traps=[Inexact]).divide(Decimal(value.numerator), Decimal(value.denominator))
    except Inexact:
        return None
    return format(number, "f")


def _attributes(topology: Topology) -> list[dict[str, Any]]:
    """Attributes of every link; bandwidths are text with unit, or an exact ratio where no decimal is exact."""
    rates = []
    for value in topology.bandwidths:
        text = _exact(value)
        rates.append({"bandwidth": f"{text} B/s"} if text else {"bandwidth_Bps": str(value)})
    return [
        {**rates[rate], "latency": f"{latency} ps"}
        for rate, latency in zip(topology.bandwidth_class.tolist(), topology.latency_ps.tolist(), strict=True)
    ]


def _nodes(topology: Topology) -> list[tuple[int, dict[str, str]]]:
    return [
        (v, {"kind": "npu" if v < topology.npus else "switch", "name": topology.vertex_name(v)})
        for v in range(topology.vertices)
    ]


def to_networkx(topology: Topology):
    """The topology as a `networkx.MultiDiGraph`.

    Nodes are vertex numbers with attributes ``kind`` ("npu" or "switch") and ``name``; edges have the link id
    as key and attributes ``bandwidth`` (text, "B/s") and ``latency`` (text, "ps").
    """
    import networkx

    graph = networkx.MultiDiGraph(name=topology.name, npus=topology.npus)
    graph.add_nodes_from(_nodes(topology))
    ends = zip(topology.src.tolist(), topology.dst.tolist(), _attributes(topology), strict=True)
    for link, (src, dst, attributes) in enumerate(ends):
        graph.add_edge(src, dst, key=link, **attributes)
    return graph


def node_link_json(topology: Topology) -> str:
    """The topology as node-link JSON, the form of ``networkx.node_link_data(graph, edges="edges")``.

    Links, bandwidths and latencies survive a round trip through `edge_list.read_json` exactly; the closed-form
    routes of a shape do not.
    """
    ends = zip(topology.src.tolist(), topology.dst.tolist(), _attributes(topology), strict=True)
    data = {
        "directed": True,
        "multigraph": True,
        "graph": {"name": topology.name, "npus": topology.npus},
        "nodes": [{"id": v, **attributes} for v, attributes in _nodes(topology)],
        "edges": [
            {"source": a, "target": b, "key": link, **attributes} for link, (a, b, attributes) in enumerate(ends)
        ],
    }
    return json.dumps(data, indent=1)
