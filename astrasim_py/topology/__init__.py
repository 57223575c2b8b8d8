"""Topologies: NPUs, switches, directed links, and the routes between NPUs."""

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
    "placement",
    "preset",
    "preset_names",
]
