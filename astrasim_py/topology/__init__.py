"""Topologies: NPUs, switches, directed links, and the routes between NPUs."""

from astrasim_py.topology.model import Dim, Routing, Topology, placement, translations

__all__ = ["Dim", "Routing", "Topology", "placement", "translations"]
