"""Rotations of a topology map every link to one alike, and are found whatever way it was written."""

from __future__ import annotations

import numpy as np
import pytest

from astrasim_py.topology import build
from astrasim_py.topology.symmetry import Rotations, find_rotations

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}


def rotations_of(topology):
    """Groups of rotations of the NPUs of a topology without switches."""
    _, label = np.unique(np.stack([topology.bandwidth_class, topology.latency_ps]), axis=1, return_inverse=True)
    return find_rotations(topology.npus, topology.src, topology.dst, label.reshape(-1))


def links(topology):
    columns = (topology.src, topology.dst, topology.bandwidth_class, topology.latency_ps)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    "spec, digits",
    [
        ({"shape": "torus", "dims": [3, 5]}, ((1, 3, True), (3, 5, True))),
        ({"shape": "ring", "npus": 8}, ((1, 8, True),)),
        ({"shape": "mesh", "dims": [3, 5]}, None),
    ],
)
def test_rotations_are_found_in_links(spec, digits):
    found = rotations_of(build({**spec, **LINK}))
    assert (found[0].digits if found else None) == digits


@pytest.mark.parametrize("dims", [[4, 3], [2, 2, 3], [4, 4]])
def test_every_rotation_maps_links_to_links_alike(dims):
    topology = build({"shape": "torus", "dims": dims, **LINK})
    for group in rotations_of(topology):
        for delta in range(group.order):
            moved = group.rank_at[group.class_of, group.sums[group.element, delta]]
            ends = moved[topology.src], moved[topology.dst]
            again = zip(*ends, topology.bandwidth_class, topology.latency_ps, strict=True)
            assert sorted(tuple(map(int, link)) for link in again) == links(topology)


def test_one_link_of_another_latency_breaks_the_symmetry():
    topology = build({"shape": "torus", "dims": [3, 5], **LINK})
    assert rotations_of(topology.changed(links=[([0], None, 9)])) == []


def test_ranks_of_a_class_are_numbered_by_element():
    group = Rotations(((1, 2, False), (2, 3, True)))
    assert group.order == 3 and group.rank_at.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert group.sums.tolist() == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
