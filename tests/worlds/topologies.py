"""Random topologies of every shape, with times on a coarse grid so that much happens at once."""

from __future__ import annotations

import random

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.model import Topology

RATES = ("1 GB/s", "1 GB/s", "2 GB/s", "3 GB/s", "1.7 GiB/s")
TIMES = ("0 ns", "1 us", "1 us", "2 us", "937 ns")


def topology(rng: random.Random, npus: int) -> Topology:
    """One of at least `npus` NPUs, sometimes with unequal links, failures, or routes spread by hash."""
    while True:
        keys = _shape(rng, npus)
        try:
            plain = build(keys, "topology", written=True)
        except TopologyError:  # an odd number of NPUs for a shape that needs an even one
            continue
        if plain.npus < npus or plain.npus > 4 * npus + 8:
            continue
        changes = _changes(rng, plain)
        if not changes:
            return plain
        try:
            changed = build({**keys, **changes}, "topology", written=True)
        except TopologyError:  # what is left falls apart
            return plain
        return changed if len(changed.alive) >= npus else plain


def _shape(rng: random.Random, npus: int) -> dict:
    link = {"bandwidth": rng.choice(RATES), "latency": rng.choice(TIMES)}
    more = npus + rng.choice((0, 0, 1, 3))
    sizes = rng.choice(([more], [2, -(-npus // 2)], [-(-npus // 2), 2], [2, 2, -(-npus // 4)]))
    kind = rng.choice(_KINDS)
    if kind in ("ring", "fully_connected", "switch"):
        one_way = {"bidirectional": False} if kind == "ring" and rng.random() < 0.2 else {}
        return {"shape": kind, "npus": more, **link, **one_way}
    if kind in ("torus", "mesh"):
        return {"shape": kind, "dims": sizes, **link}
    if kind == "hypercube":
        return {"shape": kind, "npus": 1 << max(npus - 1, 1).bit_length(), **link}
    if kind == "product":
        kinds = ("ring", "mesh", "fully_connected", "switch")
        dims = [
            {"kind": rng.choice(kinds), "size": n, "bandwidth": rng.choice(RATES), "latency": rng.choice(TIMES)}
            for n in sizes
        ]
        return {"shape": kind, "dims": dims}
    if kind == "leaf_spine":
        return {"shape": kind, "leaves": -(-npus // 2), "hosts_per_leaf": 2, "spines": rng.randint(1, 2), **link}
    if kind == "fat_tree":
        return {"shape": kind, "k": 4, "pods": rng.randint(2, 4), **link}
    if kind == "dragonfly":
        return {"shape": kind, "a": 2, "h": 1, "p": rng.randint(1, 2), **link}
    if kind == "dgx":
        wires = {"nvlink_bandwidth": "2 GB/s", "nvlink_latency": rng.choice(TIMES)}
        wires |= {"nic_bandwidth": "1 GB/s", "nic_latency": "1 us"}
        return {"shape": kind, "nodes": 2, "npus": -(-npus // 2), "spines": rng.randint(0, 1), **wires}
    return {"shape": "edge_list", "npus": more, "edges": _edges(rng, more)}


_KINDS = ("ring", "torus", "torus", "mesh", "fully_connected", "switch", "hypercube", "product", "leaf_spine")
_KINDS += ("fat_tree", "dragonfly", "dgx", "edge_list", "edge_list")


def _edges(rng: random.Random, npus: int) -> list[dict]:
    """A random tree over NPUs and switches, and some links more."""
    vertices = [*range(npus), *(f"s{i}" for i in range(rng.randint(0, 2)))]
    rng.shuffle(vertices)
    pairs = [(rng.choice(vertices[:i]), vertices[i]) for i in range(1, len(vertices))]
    pairs += [tuple(rng.sample(vertices, 2)) for _ in range(rng.randint(0, npus))] if len(vertices) > 1 else []
    return [
        {"src": a, "dst": b, "bandwidth": rng.choice(RATES), "latency": rng.choice(TIMES)}
        for one, other in pairs
        for a, b in ((one, other), (other, one))
    ]


def _changes(rng: random.Random, plain: Topology) -> dict:
    changes: dict = {}
    if rng.random() < 0.2:
        changes["routing"] = {"ecmp": True, "seed": rng.randint(0, 9)}
    if rng.random() < 0.25 and plain.links:
        link = rng.randrange(plain.links)
        ends = {"from": _name(plain, plain.src[link]), "to": _name(plain, plain.dst[link])}
        way = {"directions": rng.choice(("both", "one"))}
        if rng.random() < 0.5:
            changes["failed"] = {"links": [ends | way]}
        else:
            changes["links"] = [ends | way | {"bandwidth": rng.choice(RATES), "latency": rng.choice(TIMES)}]
    elif rng.random() < 0.05:
        changes["failed"] = {"npus": [rng.randrange(plain.npus)]}
    return changes


def _name(plain: Topology, vertex: int) -> int | str:
    return int(vertex) if vertex < plain.npus else plain.vertex_name(int(vertex))
