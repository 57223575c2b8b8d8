"""Topologies for other tools: networkx graphs and node-link JSON (which `edge_list` reads back)."""

import json
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Any

from astrasim_py.core.errors import TopologyError


def _exact(value: Fraction) -> str | None:
    """The value as a decimal number, or None if it has no finite one of up to 50 digits."""
    try:
        number = Context(prec=50, traps=[Inexact]).divide(Decimal(value.numerator), Decimal(value.denominator))
    except Inexact:
        return None
    return format(number, "f")


def _attributes(topology) -> list[dict[str, Any]]:
    """Attributes of every link; bandwidths are text with unit, or an exact ratio where no decimal is exact."""
    rates = []
    for value in topology.bandwidths:
        text = _exact(value)
        rates.append({"bandwidth": f"{text} B/s"} if text else {"bandwidth_Bps": str(value)})
    return [
        {**rates[rate], "latency": f"{latency} ps"}
        for rate, latency in zip(topology.bandwidth_class.tolist(), topology.latency_ps.tolist(), strict=True)
    ]


def _switches(topology) -> dict[str, Any]:
    """The key ``switches`` of a scenario for its computing switches; empty if there are none."""
    computing = topology.computing
    if computing is None:
        return {}
    keys: dict[str, Any] = {
        "capable": [topology.vertex_name(v) for v in computing.vertices],
        "latency": f"{computing.latency_ps} ps",
        "overhead": f"{computing.overhead.numerator}:{computing.overhead.denominator}",
    }
    if computing.reduce_bandwidth is not None:
        keys["reduce_bandwidth"] = f"{_exact(computing.reduce_bandwidth)} B/s"
    if computing.slots is not None:
        keys["slots"] = computing.slots
    return {"switches": keys}


def to_networkx(topology):
    """The topology as a `networkx.MultiDiGraph`.

    Nodes are vertex numbers with attributes ``kind`` ("npu" or "switch") and ``name``; edges have the link id
    as key and attributes ``bandwidth`` (text, "B/s") and ``latency`` (text, "ps"). The graph's own attribute
    ``switches`` says which switches compute, if any.
    """
    import networkx

    graph: networkx.MultiDiGraph = networkx.MultiDiGraph(name=topology.name, npus=topology.npus, **_switches(topology))
    for vertex in range(topology.vertices):
        kind = "npu" if vertex < topology.npus else "switch"
        graph.add_node(vertex, kind=kind, name=topology.vertex_name(vertex))
    ends = zip(topology.src.tolist(), topology.dst.tolist(), _attributes(topology), strict=True)
    for link, (src, dst, attributes) in enumerate(ends):
        graph.add_edge(src, dst, key=link, **attributes)
    return graph


def node_link_json(topology) -> str:
    """The topology as ``networkx.node_link_data`` gives it.

    Links, bandwidths, latencies and what switches compute survive a round trip through `edge_list.read_json` exactly;
    the closed-form routes of a shape do not. Raises TopologyError: it has events.
    """
    import networkx

    if topology.events:
        raise TopologyError(topology.name, "its events have no form in JSON", "write its without_events")

    data = networkx.node_link_data(to_networkx(topology), edges="edges")
    data["edges"].sort(key=lambda edge: edge["key"])
    return json.dumps(data, indent=1)
