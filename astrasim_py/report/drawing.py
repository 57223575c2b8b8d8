"""The network as two tables, so that a stored point can be drawn and explained without building it again."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.records import Table
from astrasim_py.topology.model import Topology

#: Of a larger network only the links that carried something are kept.
ALL_EDGES = 2**14


def vertex_table(topology: Topology) -> Table:
    """Every vertex: its name, its kind (``npu``, ``failed`` or ``switch``) and where to draw it.

    x and y are NaN where the topology has no natural drawing.
    """
    n = topology.vertices
    place = topology.positions()
    x, y = place if place is not None else (np.full(n, np.nan), np.full(n, np.nan))
    name, kind = np.empty(n, dtype=object), np.empty(n, dtype=object)
    name[:] = [topology.vertex_name(v) for v in range(n)]
    kind[: topology.npus], kind[topology.npus :] = "npu", "switch"
    for v in topology.failed:
        kind[v] = "failed"
    # Nine decimals are plenty for a drawing, and hide the last bit of sines that differ between machines.
    return Table({"vertex": np.arange(n), "name": name, "kind": kind, "x": np.round(x, 9), "y": np.round(y, 9)})


def edge_table(topology: Topology, used: np.ndarray) -> Table:
    """Links: name, ends, bandwidth (bytes per second, rounded) and latency (ps).

    Parameters
    ----------
    topology : Topology
    used : numpy.ndarray
        int64: links that carried something; the others are left out of a network of more than `ALL_EDGES` links.
    """
    links = np.arange(topology.links) if topology.links <= ALL_EDGES else np.unique(used)
    name = np.empty(len(links), dtype=object)
    name[:] = [topology.link_name(i) for i in links.tolist()]
    rates = np.array([round(rate) for rate in topology.bandwidths], dtype=np.int64)
    return Table(
        {
            "link": links.astype(np.int64),
            "name": name,
            "src": topology.src[links].astype(np.int64),
            "dst": topology.dst[links].astype(np.int64),
            "bandwidth": rates[topology.bandwidth_class[links]] if len(rates) else np.zeros(0, np.int64),
            "latency": topology.latency_ps[links].astype(np.int64),
        }
    )
