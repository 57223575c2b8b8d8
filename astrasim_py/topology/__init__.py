"""Topologies: NPUs, switches, directed links, and the routes between NPUs."""

from astrasim_py.topology.edge_list import read_edge_list
from astrasim_py.topology.export import node_link_json, to_networkx
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.hardware import preset, preset_names
from astrasim_py.topology.model import Routing, Topology
from astrasim_py.topology.placement import placement
from astrasim_py.topology.routing import Dim
from astrasim_py.topology.shapes import SHAPES

__all__ = [
    "SHAPES",
    "Dim",
    "Routing",
    "Topology",
    "build",
    "node_link_json",
    "placement",
    "preset",
    "preset_names",
    "read_edge_list",
    "to_networkx",
]
