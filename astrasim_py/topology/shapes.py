"""Shapes: each a model of its keys, with a method that makes the topology.

Bandwidths are bytes per second of one link in one direction, latencies picoseconds of one link; a scenario writes both
as text with units. A new shape is a class here and its name in `SHAPES`: schema, error messages and "did you mean"
follow.
"""

from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo

from astrasim_py.core.by_need import ReadByNeed, load
from astrasim_py.core.errors import TopologyError
from astrasim_py.core.fields import (
    EITHER,
    NPU_CAP,
    ONE,
    SEVERAL,
    Bandwidth,
    Count,
    FileName,
    Time,
    choice,
    whole,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.topology.model import Topology, product_of, routed
from astrasim_py.topology.routing import Dim
from astrasim_py.topology.spec import MAX_DIMS, LinkPreset, Ratio, Shape, Vertex, below, link_of, needs_link


def _required(description: str, example: str = "8") -> Any:
    return Field(description=description, examples=[example])


def _optional(description: str, example: str = "8") -> Any:
    return Field(default=None, description=description, examples=[example])


def _bandwidth(description: str) -> Any:
    return _optional(description, "50 GB/s")


def _latency(description: str) -> Any:
    return _optional(description, "500 ns")


class _Linked(Shape):
    """Shapes whose links come from keys or from a link preset."""

    def _complete(self) -> None:
        needs_link(self)


class _OneLink(_Linked):
    """Shapes with equal links, except those with keys of their own."""

    bandwidth: Bandwidth | None = _bandwidth("of one link, in one direction")
    latency: Time | None = _latency("of one link")
    link_preset: LinkPreset | None = _optional("bandwidth and latency of a kind of link", "nvlink3")


class _Npus(_OneLink):
    """Shapes of a number of NPUs in one dimension."""

    if TYPE_CHECKING:
        shape: str
    npus: Count = _required("how many NPUs")

    def npu_count(self) -> int:
        return self.npus

    def make(self, place: str) -> Topology:
        dim = Dim(self.shape, self.npus, *link_of(self), getattr(self, "bidirectional", None) is not False)
        return product_of(f"{self.shape} {self.npus}", self.shape, [dim], place)


class Ring(_Npus):
    """A circle of NPUs."""

    # Messages take the shorter way, at a tie clockwise (+1). A ring of two has one link per direction.
    shape: Literal["ring"] = Field(examples=["ring"])
    bidirectional: bool | None = _optional("false: only the +1 links exist", "true")


class FullyConnected(_Npus):
    """A link between every two NPUs."""

    shape: Literal["fully_connected"] = Field(examples=["fully_connected"])


class Switch(_Npus):
    """All NPUs on one switch."""

    # A message crosses two links and pays both latencies.
    shape: Literal["switch"] = Field(examples=["switch"])


class Hypercube(_Npus):
    """NPUs whose ids differ in one bit are linked."""

    # Messages correct the lowest differing bit first (e-cube; Sullivan and Bashkow, ISCA 1977).
    shape: Literal["hypercube"] = Field(examples=["hypercube"])

    def make(self, place: str) -> Topology:
        if self.npus & (self.npus - 1):
            low = 1 << self.npus.bit_length() - 1
            problem = f"{self.npus} is not a power of two, as a hypercube needs"
            raise TopologyError(below(place, "npus"), problem, f"write {low} or {2 * low}")
        rows = [Dim("ring", 2, *link_of(self))] * (self.npus.bit_length() - 1) or [Dim("ring", 1, *link_of(self))]
        return product_of(f"hypercube {self.npus}", "hypercube", rows, place)


_Bandwidths: TypeAlias = Annotated[Annotated[Bandwidth, ONE] | Annotated[tuple[Bandwidth, ...], SEVERAL], EITHER]
_Times: TypeAlias = Annotated[Annotated[Time, ONE] | Annotated[tuple[Time, ...], SEVERAL], EITHER]


class _GridShape(_Linked):
    """Grids of any number of dimensions, with dimension-order routes from dimension 0."""

    dims: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_DIMS)] = _required(
        "NPUs along each dimension, innermost first", "[8, 8]"
    )
    if TYPE_CHECKING:
        shape: str
    bandwidth: _Bandwidths | None = _bandwidth("of one link, in one direction")
    latency: _Times | None = _latency("of one link")
    link_preset: LinkPreset | None = _optional("bandwidth and latency of a kind of link", "nvlink3")

    def npu_count(self) -> int:
        return prod(self.dims)

    def _rows(self, kind: str, bidirectional: bool, place: str) -> Topology:
        values = []
        for key, value in zip(("bandwidth", "latency"), link_of(self), strict=True):
            if isinstance(value, tuple) and len(value) != len(self.dims):
                problem = f"{len(value)} values for {len(self.dims)} dims"
                raise TopologyError(below(place, key), problem, "write one value, or one per dimension")
            values.append(value if isinstance(value, tuple) else [value] * len(self.dims))
        rows = [Dim(kind, n, b, t, bidirectional) for n, b, t in zip(self.dims, *values, strict=True)]
        return product_of(f"{self.shape} {'x'.join(map(str, self.dims))}", self.shape, rows, place)


class Mesh(_GridShape):
    """An n-D grid without wraparound."""

    shape: Literal["mesh"] = Field(examples=["mesh"])

    def make(self, place: str) -> Topology:
        return self._rows("mesh", True, place)


class Torus(_GridShape):
    """An n-D grid with wraparound."""

    # A dimension of two has one link per direction.
    shape: Literal["torus"] = Field(examples=["torus"])
    bidirectional: bool | None = _optional("false: only the +1 links exist", "true")

    def make(self, place: str) -> Topology:
        return self._rows("ring", self.bidirectional is not False, place)


class ProductDim(StrictModel):
    """One dimension of a product; the first is the innermost."""

    kind: Annotated[str, choice("ring", "mesh", "fully_connected", "switch")] = Field(examples=["ring"])
    size: Count = Field(examples=["8"])
    bandwidth: Bandwidth | None = Field(default=None, examples=["50 GB/s"])
    latency: Time | None = Field(default=None, examples=["500 ns"])
    link_preset: LinkPreset | None = None
    bidirectional: bool | None = None

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Dim):
            keys = {name: getattr(value, name) for name in ("kind", "size", "bandwidth", "bidirectional")}
            return cls(**keys, latency=value.latency_ps)
        return value

    def _complete(self) -> None:
        needs_link(self)
        if self.bidirectional is False and self.kind != "ring":
            raise wrong("only a ring can be one-way", "delete it", ("bidirectional",))

    def dim(self) -> Dim:
        return Dim(self.kind, self.size, *link_of(self), self.bidirectional is not False)


class Product(Shape):
    """A product of rings, meshes, fully connected dimensions and switches."""

    # A switch dimension has one switch per slice (all other coordinates fixed). Routes are dimension-order.
    shape: Literal["product"] = Field(examples=["product"])
    dims: Annotated[tuple[ProductDim, ...], Field(min_length=1, max_length=MAX_DIMS)] = _required(
        "kind, size, bandwidth and latency of each, innermost first",
        "[{kind: ring, size: 8, bandwidth: 50 GB/s, latency: 500 ns}]",
    )

    def npu_count(self) -> int:
        return prod(dim.size for dim in self.dims)

    def make(self, place: str) -> Topology:
        name = " x ".join(f"{dim.kind}({dim.size})" for dim in self.dims)
        return product_of(name, "product", [dim.dim() for dim in self.dims], place)


class LeafSpine(_OneLink):
    """Leaf switches, each linked to every spine."""

    # Non-blocking unless oversubscribed: an uplink has hosts_per_leaf x bandwidth / (oversubscription x spines).
    shape: Literal["leaf_spine"] = Field(examples=["leaf_spine"])
    leaves: Count = _required("leaf switches")
    hosts_per_leaf: Count = _required("NPUs per leaf")
    spines: Count = _required("spine switches")
    oversubscription: Ratio | None = _optional("a leaf's NPU bandwidth over its uplink bandwidth", '"3:1"')
    uplink_bandwidth: Bandwidth | None = _bandwidth("of one uplink, instead of oversubscription")
    uplink_latency: Time | None = _latency("of one uplink")

    def npu_count(self) -> int:
        return self.leaves * self.hosts_per_leaf

    def _complete(self) -> None:
        super()._complete()
        if None not in (self.oversubscription, self.uplink_bandwidth):
            raise wrong("is written beside uplink_bandwidth", "keep one of them", ("oversubscription",))

    def make(self, place: str) -> Topology:
        from astrasim_py.topology import fabrics

        rate, time = link_of(self)
        up = self.uplink_bandwidth or self.hosts_per_leaf * rate / ((self.oversubscription or 1) * self.spines)
        up_time = time if self.uplink_latency is None else self.uplink_latency
        share = min(rate, up * self.spines / self.hosts_per_leaf)
        return routed(
            f"leaf_spine {self.leaves}x{self.hosts_per_leaf}, {self.spines} spines",
            "leaf_spine",
            fabrics.Tree(1, self.leaves, self.hosts_per_leaf, self.spines, 0, ("leaf", "spine")),
            [(rate, time), (up, up_time)],
            [Dim("switch", self.hosts_per_leaf, rate, time), Dim("switch", self.leaves, share, up_time)],
            place,
        )


class FatTree(_OneLink):
    """A three-tier fat tree of k-port switches."""

    # By default the full one of the literature: k pods, k/2 NPUs per edge switch, k^3/4 NPUs, rearrangeably
    # non-blocking. More NPUs per edge switch oversubscribe it.
    shape: Literal["fat_tree"] = Field(examples=["fat_tree"])
    k: Count = _required("ports per switch, even")
    pods: Count | None = _optional("at most k, which is the default")
    hosts_per_edge: Count | None = _optional("NPUs per edge switch, k/2 by default")
    fabric_bandwidth: Bandwidth | None = _bandwidth("of one link between switches")
    fabric_latency: Time | None = _latency("of one link between switches")

    def make(self, place: str) -> Topology:
        from astrasim_py.topology import fabrics

        k, pods = self.k, self.pods or self.k
        if k % 2:
            raise TopologyError(below(place, "k"), f"{k} ports cannot be halved", f"write {k + 1}")
        if pods > k:
            problem = f"{pods} pods are more than the {k} ports of a core switch"
            raise TopologyError(below(place, "pods"), problem, f"write {k}")
        link = link_of(self)
        half = k // 2
        fabric = fabrics.Tree(pods, half, self.hosts_per_edge or half, half, half, ("edge", "aggregation", "core"))
        inner = _or(link, self.fabric_bandwidth, self.fabric_latency)
        share = min(link[0], inner[0] * half / fabric.hosts), inner[1]
        dims = [Dim("switch", *row) for row in ((fabric.hosts, *link), (half, *share), (pods, *share))]
        return routed(f"fat_tree {fabric.npus}", "fat_tree", fabric, [link, inner, inner], dims, place)


class Dragonfly(_OneLink):
    """Groups of fully connected routers, joined by global links."""

    shape: Literal["dragonfly"] = Field(examples=["dragonfly"])
    a: Count = _required("routers per group")
    h: Count = _required("global links per router")
    p: Count = _required("NPUs per router")
    g: Count | None = _optional("groups, a h + 1 by default")
    local_bandwidth: Bandwidth | None = _bandwidth("of one link within a group")
    local_latency: Time | None = _latency("of one link within a group")
    global_bandwidth: Bandwidth | None = _bandwidth("of one link between groups")
    global_latency: Time | None = _latency("of one link between groups")

    def make(self, place: str) -> Topology:
        from astrasim_py.topology import fabrics

        most = self.a * self.h + 1
        g = self.g or most
        if g > most:
            problem = f"{g} groups are more than a h + 1 = {most}, the number that a x h global links can join"
            raise TopologyError(below(place, "g"), problem, f"write {most}")
        fabric = fabrics.Dragonfly(self.a, self.h, self.p, g)
        link = link_of(self)
        levels = [
            link,
            _or(link, self.local_bandwidth, self.local_latency),
            _or(link, self.global_bandwidth, self.global_latency),
        ]
        sizes = (("switch", self.p), ("fully_connected", self.a), ("fully_connected", g))
        dims = [Dim(*size, *level) for size, level in zip(sizes, levels, strict=True)]
        return routed(f"dragonfly {fabric.npus}", "dragonfly", fabric, levels, dims, place)


#: Keys of `Dgx` that a single node has no use for.
_BETWEEN_NODES = ("nic_bandwidth", "nic_latency", "rails", "spines", "oversubscription", "cross_rail")


class Dgx(Shape):
    """Nodes with an NVSwitch and one NIC per NPU, on rails."""

    # The NVSwitch chips of a node are one vertex: an NPU spreads its traffic over all of them, so only its own
    # bandwidth limits it. Two NPUs of a node are two NVLinks apart. Rail and spine switches are as large as needed.
    shape: Literal["dgx"] = Field(examples=["dgx"])
    nodes: Count | None = _optional("1 by default")
    npus: Count | None = _optional("per node, 8 by default")
    nvlink_bandwidth: Bandwidth = _required("of one NPU to the NVSwitch", "50 GB/s")
    nvlink_latency: Time = _required("of one NPU to the NVSwitch", "500 ns")
    nic_bandwidth: Bandwidth | None = _bandwidth("of one NPU to its rail; needed from 2 nodes on")
    nic_latency: Time | None = _latency("of one NPU to its rail; needed from 2 nodes on")
    rails: Count | None = _optional("a divisor of npus, which is the default")
    spines: Annotated[int, whole(0, NPU_CAP)] | None = _optional(
        "spine switches that join the rails, 0 by default", "0"
    )
    oversubscription: Ratio | None = _optional("a rail's NIC bandwidth over its uplink bandwidth", '"3:1"')
    cross_rail: Annotated[str, choice("nvlink", "spine")] | None = _optional("how messages change rails", "nvlink")

    def npu_count(self) -> int:
        return (self.nodes or 1) * (self.npus or 8)

    def make(self, place: str) -> Topology:
        from astrasim_py.topology import fabrics

        nodes, npus, spines = self.nodes or 1, self.npus or 8, self.spines or 0
        rails = self.rails or npus
        if "nodes" not in self.model_fields_set and nodes == 1:
            alone = [key for key in _BETWEEN_NODES if key in self.model_fields_set]
            if alone:
                problem = "has no effect on one node, and nodes is not given"
                raise TopologyError(below(place, alone[0]), problem, "write e.g. nodes: 2, or drop it")
        if self.oversubscription is not None and not spines:
            problem = "describes uplinks, but there are no spines"
            raise TopologyError(below(place, "oversubscription"), problem, "write e.g. spines: 8, or drop it")
        if self.cross_rail is not None and rails == 1:
            raise TopologyError(below(place, "cross_rail"), "there is one rail", "drop it, or write more rails")
        for key, example in (("nic_bandwidth", "400 Gb/s"), ("nic_latency", "1 us")):
            if nodes > 1 and getattr(self, key) is None:
                problem = f"missing, but there are {nodes} nodes"
                raise TopologyError(below(place, key), problem, f'write e.g. "{example}"')
        if npus % rails:
            problem = f"{rails} rails do not divide {npus} NPUs per node"
            raise TopologyError(below(place, "rails"), problem, f"write {npus}")
        cross_rail = self.cross_rail or ("spine" if spines else "nvlink")
        if cross_rail == "spine" and not spines and nodes > 1 and rails > 1:
            raise TopologyError(below(place, "cross_rail"), "spine, but there are no spines", "write spines: 1")
        fabric = fabrics.Rails(nodes, npus, rails, spines if nodes > 1 else 0, cross_rail)
        inside = self.nvlink_bandwidth, self.nvlink_latency
        levels, dims = [inside], [Dim("switch", npus, *inside)]
        if self.nic_bandwidth is not None and self.nic_latency is not None and nodes > 1:
            up = nodes * (npus // rails) * self.nic_bandwidth / ((self.oversubscription or 1) * max(1, spines))
            levels += [(self.nic_bandwidth, self.nic_latency), (up, self.nic_latency)]
            dims.append(Dim("switch", nodes, self.nic_bandwidth, self.nic_latency))
        if not fabric.links:
            return product_of("dgx 1x1", "dgx", dims, place)
        return routed(f"dgx {nodes}x{npus}", "dgx", fabric, levels, dims, place)


class Edge(StrictModel):
    """A link; a number or name twice makes parallel links."""

    src: Vertex = Field(examples=["0"])
    dst: Vertex = Field(examples=["1"])
    bandwidth: Bandwidth | None = _bandwidth("of the link; that of the list by default")
    latency: Time | None = _latency("of the link; that of the list by default")
    directions: Annotated[str, choice("both", "one")] | None = None


if TYPE_CHECKING:
    from astrasim_py.topology.link_defaults import DefaultLatency, DefaultRate
else:
    _DEFAULTS = "astrasim_py.topology.link_defaults"
    DefaultRate = Annotated[Any, ReadByNeed(f"{_DEFAULTS}:read_rate", {"type": "string", "examples": ["50 GB/s"]})]
    DefaultLatency = Annotated[Any, ReadByNeed(f"{_DEFAULTS}:read_latency", {"type": "string", "examples": ["500 ns"]})]


class EdgeList(Shape):
    """Links one by one, from a file or written out."""

    shape: Literal["edge_list"] = Field(examples=["edge_list"])
    file: FileName | None = _optional("a .csv, .txt, .yaml, .json or .graphml file", "topology.csv")
    edges: tuple[Edge, ...] | None = _optional(
        "a list of {src, dst, bandwidth, latency}", "[{src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns}]"
    )
    npus: Count | None = _optional("how many of the numbered vertices are NPUs")
    bandwidth: DefaultRate | None = _bandwidth("of links that name none; its unit is that of numbers without one")
    latency: DefaultLatency | None = _latency("of links that name none; its unit is that of numbers without one")
    directions: Annotated[str, choice("both", "one")] | None = _optional(
        "of links that do not say it themselves", "both"
    )

    def _complete(self) -> None:
        if self.file is None and self.edges is None:
            raise wrong('"file" is missing', 'write e.g. file: "topology.csv"')
        for i, edge in enumerate(self.edges or ()):
            for key, text in (("bandwidth", "50 GB/s"), ("latency", "500 ns")):
                if getattr(edge, key) is None and getattr(self, key) is None:
                    raise wrong(f'"{key}" is missing', f'write e.g. {key}: "{text}"', ("edges", i))

    def make(self, place: str) -> Topology:
        keys = {key: getattr(self, key) for key in ("bandwidth", "latency", "directions", "npus")}
        topology: Topology = load("astrasim_py.topology.topology_files:edge_list")(self.file, self.edges, place, **keys)
        return topology


def _or(link: tuple[Fraction, int], bandwidth: Fraction | None, latency: int | None) -> tuple[Fraction, int]:
    """Bandwidth and latency of a link, replaced by those that are given."""
    return bandwidth or link[0], link[1] if latency is None else latency


#: The shapes of this package by name; other packages add theirs as producers (see `astrasim_py.core.registry`).
SHAPES: dict[str, type[Shape]] = {
    "ring": Ring,
    "mesh": Mesh,
    "torus": Torus,
    "fully_connected": FullyConnected,
    "switch": Switch,
    "hypercube": Hypercube,
    "product": Product,
    "leaf_spine": LeafSpine,
    "fat_tree": FatTree,
    "dragonfly": Dragonfly,
    "dgx": Dgx,
    "edge_list": EdgeList,
}
