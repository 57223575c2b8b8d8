"""The key ``switches``, and routes from and to switches."""

from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology import Topology, build
from astrasim_py.topology.export import node_link_json
from astrasim_py.topology.node_link import read_json

LINK = {"bandwidth": "50 GB/s", "latency": "500 ns"}
STAR = {"shape": "switch", "npus": 4, **LINK}
LEAVES = {"shape": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 2, **LINK}
WITH_SWITCHES = {
    "switch": STAR,
    "leaf_spine": LEAVES,
    "fat_tree": {"shape": "fat_tree", "k": 4, **LINK},
    "dragonfly": {"shape": "dragonfly", "a": 3, "h": 1, "p": 2, **LINK},
    "dgx": {"shape": "dgx", "nvlink_bandwidth": "50 GB/s", "nvlink_latency": "300 ns"},
    "product": {"shape": "product", "dims": [{"kind": kind, "size": 3, **LINK} for kind in ("ring", "switch")]},
    "edge_list": {
        "shape": "edge_list",
        "edges": [{"src": i, "dst": "s", "directions": "both", **LINK} for i in range(3)],
    },
}


def made(keys: dict, **switches) -> Topology:
    return build({**keys, "switches": switches}, written=True)


@pytest.mark.parametrize("shape", WITH_SWITCHES)
def test_every_shape_with_switches_has_the_key(shape):
    topology = made(WITH_SWITCHES[shape])
    assert topology.computing.vertices == tuple(range(topology.npus, topology.vertices))
    assert topology.digest() != build(WITH_SWITCHES[shape], written=True).digest()


@pytest.mark.parametrize("shape", WITH_SWITCHES)
def test_routes_lead_from_and_to_switches(shape):
    topology = made(WITH_SWITCHES[shape])
    src, dst = (ends.ravel() for ends in np.meshgrid(*[np.arange(topology.vertices)] * 2))
    ptr, links = topology.routes(src, dst)
    for a, b, begin, end in zip(src.tolist(), dst.tolist(), ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        path = links[begin:end]
        assert [a, *topology.dst[path].tolist()] == [*topology.src[path].tolist(), b]
        if max(a, b) < topology.npus:
            assert tuple(path) == build(WITH_SWITCHES[shape], written=True).route(a, b)


def test_names_say_which_switches_compute():
    assert made(LEAVES, capable=["leaf"]).computing.vertices == (4, 5)
    assert made(LEAVES, capable=["spine1", "leaf0", "leaf"]).computing.vertices == (4, 5, 7)
    assert made({**LEAVES, "failed": {"npus": [2, 3], "switches": ["leaf1"]}}).computing.vertices == (4, 6, 7)


@pytest.mark.parametrize(
    ("keys", "switches", "said"),
    [
        (
            STAR,
            {"capable": ["swich0"]},
            'switches.capable[0]: switch 4 has no switch "swich0"; did you mean "switch0"?',
        ),
        (STAR, {"capable": [3]}, "switches.capable[0]: 3 is not a switch of the topology; NPUs are numbered 0 to 3"),
        (STAR, {"capable": []}, "switches.capable: 0 items are fewer than 1"),
        (STAR, {"slots": 0}, "switches.slots: 0 is less than 1"),
        (STAR, {"overhead": 0.5}, "switches.overhead: 0.5 is less than 1; write 1 or more, e.g. 1.2"),
        (STAR, {"reduce": 1}, "switches.reduce: is not a key here"),
        ({**STAR, "shape": "ring"}, {}, "switches: ring 4 has no switches; drop it, or write a shape that has some"),
        ({**STAR, "unwind": 1}, {}, "has no switches"),
    ],
)
def test_what_is_no_switch_is_refused(keys, switches, said):
    with pytest.raises(TopologyError) as caught:
        made(keys, **switches)
    assert said in str(caught.value)


def test_json_of_a_topology_keeps_what_its_switches_compute():
    keys = {"reduce_bandwidth": "3 TB/s", "latency": "200 ns", "slots": 64, "overhead": 1.2, "capable": ["leaf"]}
    topology = made(LEAVES, **keys)
    assert topology.computing.overhead == Fraction(6, 5)
    assert read_json(node_link_json(topology)).computing == topology.computing
    wrong = node_link_json(topology).replace('"leaf1"', '"leaf9"', 1)
    with pytest.raises(TopologyError, match=r'switches.capable\[1\]: x has no switch "leaf9"; did you mean "leaf1"'):
        read_json(wrong, "x.json")


@pytest.mark.parametrize(("npus", "capable"), [(8, 1), (1, 0)])
def test_presets_of_machines_that_reduce_in_their_switches_say_so(npus, capable):
    topology = build({"preset": "dgx_h100", "npus": npus}, written=True)
    assert len(topology.computing.vertices if topology.computing else ()) == capable
    assert build({"preset": "dgx_a100"}, written=True).computing is None
