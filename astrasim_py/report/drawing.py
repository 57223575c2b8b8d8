"""The network as two tables, so that a stored point can be drawn and explained without building it again."""

from __future__ import annotations

import re

import numpy as np

from astrasim_py.core.records import Categorical, Table
from astrasim_py.topology.layout import positions
from astrasim_py.topology.model import Topology

#: Larger networks keep only the links that carried something.
ALL_EDGES = 2**14
_PLAIN = re.compile(r"[A-Za-z][\w.]*", re.ASCII)


def vertex_table(topology: Topology) -> Table:
    """Every vertex: its name, its kind (``npu``, ``failed`` or ``switch``) and its coordinates.

    x and y are NaN if the topology has no natural drawing. Names are bytes if they are plain.
    """
    n = topology.vertices
    place = positions(topology)
    x, y = place if place is not None else (np.full(n, np.nan), np.full(n, np.nan))
    name = _vertex_names(topology)
    if name is None:
        name = np.empty(n, dtype=object)
        name[:] = [topology.vertex_name(v) for v in range(n)]
    codes = np.zeros(n, dtype=np.int8)
    codes[topology.npus :] = 1
    codes[list(topology.failed)] = 2
    kind = Categorical(codes, ("npu", "switch", "failed"))
    # Nine decimals are plenty for a drawing, and hide the last bit of sines that differ between machines.
    return Table({"vertex": np.arange(n), "name": name, "kind": kind, "x": np.round(x, 9), "y": np.round(y, 9)})


def _vertex_names(topology: Topology) -> np.ndarray | None:
    """Names of all vertices as bytes; None where they are not all plain."""
    if not all(_PLAIN.fullmatch(prefix) for prefix, _ in topology.switches):
        return None
    blocks = [np.arange(topology.npus).astype("S")]
    for prefix, count in topology.switches:
        plain = prefix.encode()
        blocks.append(np.array([plain]) if count is None else np.char.add(plain, np.arange(count).astype("S")))
    return np.concatenate(blocks)


def edge_table(topology: Topology, used: np.ndarray, *, plain: bool = False) -> Table:
    """Links: name, ends, bandwidth (bytes per second, rounded) and latency (ps).

    `used`: int64: links that carried something; the others are left out of a network of more than `ALL_EDGES` links.
    `plain`: names as bytes, where they are plain: for writing them.
    """
    links = np.arange(topology.links) if topology.links <= ALL_EDGES else np.flatnonzero(np.bincount(used))
    names = _vertex_names(topology) if plain else None
    if names is None:
        name = np.empty(len(links), dtype=object)
        name[:] = [topology.link_name(i) for i in links.tolist()]
    else:
        name = np.char.add(np.char.add(names[topology.src[links]], b"->"), names[topology.dst[links]])
        number = topology.parallel[links]
        several = np.flatnonzero(number)
        if len(several):
            more = np.char.add(b"#", (number[several] + 1).astype("S"))
            longer = np.char.add(name[several], more)
            name = name.astype(f"S{max(name.dtype.itemsize, longer.dtype.itemsize)}")
            name[several] = longer
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
