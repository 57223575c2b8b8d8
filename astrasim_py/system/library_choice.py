"""What a library could do for a call: candidates by collective, size and group shape, of which one is chosen."""

from astrasim_py.topology.model import Topology


def nodes_of(topology: Topology, npus: tuple[int, ...]) -> list[list[int]]:
    """The members of a group by node, each in the order of NPUs; one node of all where the topology has no nodes."""
    members = sorted(range(len(npus)), key=npus.__getitem__)
    if topology.one_node(npus):
        return [list(range(len(npus)))]
    found: dict[int, list[int]] = {}
    for member in members:
        found.setdefault(npus[member] // topology.dims[0].size, []).append(member)
    return list(found.values())
