"""The topology: a directed multigraph of NPUs and switches, with a route for every pair of NPUs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Required, TypedDict, Unpack

import numpy as np
from pydantic import Field

from astrasim_py.core.above import above
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TopologyError
from astrasim_py.core.fields import NPU_CAP, whole
from astrasim_py.core.rows import numbered, pointers
from astrasim_py.core.shown import Shown
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.core.units import INT64_MAX, format_time
from astrasim_py.topology.events import LinkEvent
from astrasim_py.topology.layout import positions, spread
from astrasim_py.topology.routing import Dim, DimensionOrder, Router, Routes, ShortestPaths, reachable

if TYPE_CHECKING:
    import networkx
    from matplotlib.axes import Axes

LINK_CAP = 2**24
#: Switches included.
VERTEX_CAP = 2**22


class Routing(StrictModel):
    """Choice among several shortest routes."""

    # ecmp spreads each pair over its equal-cost shortest paths, instead of the shape's own route.
    ecmp: bool = Field(default=False, description="spread pairs over equal routes by a hash")
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Switches that can take part in collectives (docs/dialects.md).

    `vertices`: those that have not failed, ascending. `latency_ps`: added to every message that a switch sends.
    `reduce_bandwidth`: bytes per second of the one unit that reduces; None: no limit. `slots`: chunks of scratch for
    one call; None: no limit. `overhead`: bytes on the wire per byte of a message. `of_machine`: from a preset, not
    from the user.
    """

    vertices: tuple[int, ...]
    reduce_bandwidth: Fraction | None = None
    latency_ps: int = 0
    slots: int | None = None
    overhead: Fraction = Fraction(1)
    of_machine: bool = False


def _check_links(place: str, vertices: int, columns: tuple[np.ndarray, ...], bandwidths: Sequence[Fraction]) -> None:
    """Raises TopologyError: columns src, dst, latency and class of bandwidth that are no links of so many vertices."""
    names = ("src", "dst", "latency_ps", "bandwidth_class")
    beyond = (vertices, vertices, INT64_MAX, len(bandwidths))
    size = np.size(columns[0])
    for name, column, end in zip(names, columns, beyond, strict=True):
        values = np.asarray(column)
        if values.shape != (size,):
            raise TopologyError(place, f"{name} has the shape {values.shape}, src {size} links", "give one per link")
        if size and values.dtype.kind not in "iu":
            raise TopologyError(place, f"{name} holds {values.dtype} values", "give whole numbers")
        if size and not 0 <= values.min() <= values.max() < end:
            wrong = values.min() if values.min() < 0 else values.max()
            raise TopologyError(place, f"{name} holds {wrong}", f"write 0 to {end - 1}")
    for rate in bandwidths:
        if not isinstance(rate, (Fraction, int)) or rate <= 0:
            problem = f"bandwidths holds {rate!r}"
            raise TopologyError(place, problem, "give positive fractions of bytes per second, e.g. of parse_bandwidth")


def _range(texts: Sequence[str]) -> str:
    """The first and the last of some texts in ascending order."""
    return " to ".join(dict.fromkeys([*texts[:1], *texts[-1:]]))


class TopologyFields(TypedDict, total=False):
    """Fields of a `Topology` beside its columns."""

    name: Required[str]
    shape: Required[str]
    dims: tuple[Dim, ...]
    switches: tuple[tuple[str, int | None], ...]
    failed: tuple[int, ...]
    cut: tuple[tuple[int, int], ...]
    routing: Routing
    computing: Computing | None
    router: Router | None
    renumbered: np.ndarray | None
    events: tuple[LinkEvent, ...]
    reroute_ps: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Topology(Shown):
    """A network of NPUs and switches. Make one with `build`, a function of `shapes`, or `Topology.create`.

    NPUs are the vertices 0..npus-1, switches follow. Every link is directed, with its own bandwidth and latency;
    parallel links are legal. Arrays are read-only. A regular shape has closed-form routes (see `routing` and
    `fabrics`). Everything else, and every pair whose closed-form route crosses a failed element, takes the shortest
    path over what is left, with the fixed tie-break of `routing.ShortestPaths`. With ``routing.ecmp`` all pairs take a
    hashed shortest path.
    """

    name: str  # for display; not part of the digest
    shape: str  # ``ring``, ``torus``, …, ``edge_list``
    npus: int
    vertices: int
    src: np.ndarray = field(repr=False)  # int32[links]: the vertices that a link joins
    dst: np.ndarray = field(repr=False)
    latency_ps: np.ndarray = field(repr=False)  # int64[links]
    bandwidth_class: np.ndarray = field(repr=False)  # int32[links]: index into `bandwidths`
    bandwidths: tuple[Fraction, ...]  # distinct, bytes per second, ascending
    dims: tuple[Dim, ...] = ()  # the hierarchy of NPU ids, innermost first, little-endian mixed radix; none: edge list
    #: Names of the vertices after the NPUs; ``("leaf", 4)`` means leaf0..leaf3, ``("tor", None)`` one vertex.
    switches: tuple[tuple[str, int | None], ...] = ()
    failed: tuple[int, ...] = ()  # NPUs; they keep their ids and have no links
    cut: tuple[
        tuple[int, int], ...
    ] = ()  # ends of links that failed and are gone, for drawings; not part of the digest
    routing: Routing = Routing()
    computing: Computing | None = None  # switches that can take part in collectives; None: not said
    #: Closed-form router over the links that the shape has undamaged, and where those links are now (int32,
    #: -1 gone); `renumbered` is None while no link is gone.
    router: Router | None = field(default=None, repr=False)
    renumbered: np.ndarray | None = field(default=None, repr=False)
    events: tuple[LinkEvent, ...] = ()  # ascending by time
    reroute_ps: int = 0  # how long a message that loses a link waits for another route

    def __post_init__(self) -> None:
        for column in (self.src, self.dst, self.latency_ps, self.bandwidth_class):
            column.setflags(write=False)

    @classmethod
    def create(
        cls,
        *,
        npus: int,
        vertices: int,
        src: np.ndarray,
        dst: np.ndarray,
        latency_ps: np.ndarray,
        bandwidth_class: np.ndarray,
        bandwidths: Sequence[Fraction],
        place: str = "",
        connected: bool = True,
        **more: Unpack[TopologyFields],
    ) -> Topology:
        """Make a topology from columns; bandwidth classes are put in canonical order, links are not.

        `connected`: whether every pair of NPUs must have a path. Raises TopologyError: a route's latency might not fit
        63 bits; a pair of NPUs without a path; columns that are no links.
        """
        _check_links(place, vertices, (src, dst, latency_ps, bandwidth_class), bandwidths)
        rates = sorted({bandwidths[i] for i in np.unique(bandwidth_class).tolist()})
        position = {rate: code for code, rate in enumerate(rates)}
        recode = np.array([position.get(rate, -1) for rate in bandwidths], dtype=np.int32)
        latency_ps = np.ascontiguousarray(latency_ps, dtype=np.int64)
        longest = int(latency_ps.max(initial=0))
        if longest * vertices > INT64_MAX:
            problem = f"a latency of {longest} ps over up to {vertices} hops does not fit 63 bits"
            raise TopologyError(place, problem, "write a shorter latency")
        if vertices > npus:
            more.setdefault("switches", (("switch", vertices - npus),))
        topology = cls(
            npus=npus,
            vertices=vertices,
            src=np.ascontiguousarray(src, dtype=np.int32),
            dst=np.ascontiguousarray(dst, dtype=np.int32),
            latency_ps=latency_ps,
            bandwidth_class=recode[np.asarray(bandwidth_class, dtype=np.int64)],
            bandwidths=tuple(rates),
            **more,
        )
        # A shape with closed-form routes is connected unless links or NPUs were removed.
        if connected and (topology.router is None or topology.renumbered is not None or topology.failed):
            topology._check_connected(place)
        return topology

    @property
    def without_events(self) -> Topology:
        """The topology without the events of its links."""
        return replace(self, events=(), reroute_ps=0) if self.events else self

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        rates = [f"{float(rate) / 1e9:g} GB/s" for rate in self.bandwidths]
        latencies = [format_time(ps) for ps in np.unique(self.latency_ps).tolist()]
        return self.name, {
            "NPUs": self.npus,
            "switches": self.vertices - self.npus,
            "links": self.links,
            "bandwidth": _range(rates),
            "latency": _range(latencies),
            "failed NPUs": len(self.failed),
            "events": len(self.events),
        }

    @property
    def links(self) -> int:
        return len(self.src)

    @cached_property
    def alive(self) -> tuple[int, ...]:
        """NPUs that have not failed, ascending."""
        return tuple(np.setdiff1d(np.arange(self.npus), self.failed).tolist())

    @cached_property
    def pristine(self) -> bool:
        """Whether every dimension has all its links, with the dimension's bandwidth and latency."""
        if self.renumbered is not None or self.failed or not isinstance(self.router, DimensionOrder):
            return False
        dims = self.router.ends()[2]
        position = {b: i for i, b in enumerate(self.bandwidths)}
        codes = np.array([position.get(d.bandwidth, -1) for d in self.dims], dtype=np.int64)
        latency = np.array([d.latency_ps for d in self.dims], dtype=np.int64)
        return bool((codes[dims] == self.bandwidth_class).all() and (latency[dims] == self.latency_ps).all())

    @cached_property
    def in_node(self) -> np.ndarray:
        """Whether each link is inside a node, bool[links].

        Of DGX-like nodes and of products the innermost links are; of other shapes all links are.
        """
        if self.router is None or self.shape not in ("dgx", "product"):
            return np.ones(self.links, dtype=bool)
        level = self.router.ends()[2]
        inner = level == 0 if self.dims[0].size > 1 else np.zeros(len(level), dtype=bool)
        if self.renumbered is None:
            return inner
        return inner[self.renumbered >= 0]

    def one_node(self, npus: Sequence[int]) -> bool:
        """Whether some NPUs are in one node (see `in_node`)."""
        single = self.shape not in ("dgx", "product") or len(self.dims) < 2
        return single or len({npu // self.dims[0].size for npu in npus}) == 1

    def switch_of(self, npus: Sequence[int]) -> int | None:
        """The switch of a node that joins some NPUs; None if there is none."""
        up = self.in_node & (self.src < self.npus) & (self.dst >= self.npus) & np.isin(self.src, npus)
        switches = np.unique(self.dst[up])
        return int(switches[0]) if len(switches) == 1 and np.count_nonzero(up) == len(npus) else None

    def bandwidth(self, link: int) -> Fraction:
        """Bytes per second of a link."""
        return self.bandwidths[self.bandwidth_class[link]]

    def vertex_name(self, vertex: int) -> str:
        """``"7"`` for NPU 7, ``"leaf2"`` and the like for switches."""
        return str(vertex) if vertex < self.npus else self.switch_names[vertex - self.npus]

    @cached_property
    def switch_names(self) -> tuple[str, ...]:
        names = [[name] if count is None else [f"{name}{i}" for i in range(count)] for name, count in self.switches]
        return tuple(chain.from_iterable(names))

    def link_name(self, link: int) -> str:
        """``"0->1"``; the second of parallel links is ``"0->1#2"``, the third ``"0->1#3"``."""
        name = f"{self.vertex_name(int(self.src[link]))}->{self.vertex_name(int(self.dst[link]))}"
        number = int(self.parallel[link])
        return f"{name}#{number + 1}" if number else name

    @cached_property
    def by_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Links in the order of their ends, then of their ids, and ``source * vertices + target`` of each."""
        key = self.src.astype(np.int64) * self.vertices + self.dst
        order = np.argsort(key, kind="stable")
        return order, key[order]

    @cached_property
    def parallel(self) -> np.ndarray:
        """Per link, how many links of lower id join the same two vertices in the same direction."""
        return numbered(self.src.astype(np.int64) * self.vertices + self.dst)

    @cached_property
    def _search(self) -> ShortestPaths:
        seed = self.routing.seed if self.routing.ecmp else None
        return ShortestPaths(self.vertices, self.npus, self.src, self.dst, self.latency_ps, seed)

    def _check_connected(self, place: str) -> None:
        if not self.alive:
            raise TopologyError(place, "every NPU has failed", "leave at least one NPU alive")
        alive = np.array(self.alive)
        first = int(alive[0])
        for tails, heads, forward in ((self.src, self.dst, True), (self.dst, self.src, False)):
            order = np.argsort(tails, kind="stable")
            ptr = np.searchsorted(tails[order], np.arange(self.vertices + 1))
            lost = np.setdiff1d(alive, list(reachable(ptr.tolist(), heads[order].tolist(), first)))
            if len(lost):
                a, b = (first, int(lost[0])) if forward else (int(lost[0]), first)
                remedy = "add links, or list NPUs that cannot be reached under failed.npus"
                raise TopologyError(place, f"no path leads from NPU {a} to NPU {b}", remedy)

    def _check_pairs(self, src: np.ndarray, dst: np.ndarray) -> None:
        for column in (src, dst):
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < self.vertices:
                bad = int(column[(column < 0) | (column >= self.vertices)][0])
                raise TopologyError(self.name, f"NPU {bad} does not exist", f"NPUs are numbered 0 to {self.npus - 1}")
            dead = column[np.isin(column, self.failed)]
            if len(dead):
                raise TopologyError(self.name, f"NPU {int(dead[0])} has failed", "place no rank on it")

    def routes(
        self,
        src: Sequence[int] | np.ndarray,
        dst: Sequence[int] | np.ndarray,
        queue_pair: np.ndarray | None = None,
        *,
        connected: bool = True,
    ) -> Routes:
        """Routes of k pairs of NPUs or switches: ptr int64[k + 1] and links int32[m].

        Pair i crosses ``links[ptr[i]:ptr[i + 1]]``, in that order; nothing if src[i] == dst[i], or, unless
        `connected`, if there is no path. From and to switches they are shortest paths. `queue_pair`: int64[k], with
        ECMP, which of those between two ends; by default 0. Raises TopologyError: an NPU that does not exist or has
        failed, a switch without links; a pair without a path.
        """
        src = np.asarray(src, dtype=np.int64).reshape(-1)
        dst = np.asarray(dst, dtype=np.int64).reshape(-1)
        if len(src) != len(dst):
            raise ValueError(f"{len(src)} sources but {len(dst)} destinations")
        self._check_pairs(src, dst)
        if self.router is None or self.routing.ecmp:
            return self._search.routes(src, dst, queue_pair, connected=connected)
        cut = (src >= self.npus) | (dst >= self.npus)
        if self.renumbered is None and not cut.any():
            return self.router.routes(src, dst)
        ptr, links = self.router.routes(np.where(cut, 0, src), np.where(cut, 0, dst))
        pair = np.repeat(np.arange(len(src)), np.diff(ptr))
        if self.renumbered is not None:
            links = self.renumbered[links]
            cut[pair[links < 0]] = True
        if not cut.any():
            return ptr, links
        # Only pairs that lost their regular route, or never had one, are searched.
        detour_ptr, detours = self._search.routes(src[cut], dst[cut], connected=connected)
        lengths = np.diff(ptr)
        lengths[cut] = np.diff(detour_ptr)
        new_ptr = pointers(lengths)
        result = np.empty(new_ptr[-1], dtype=np.int32)
        searched = np.repeat(cut, lengths)
        result[searched] = detours
        result[~searched] = links[~cut[pair]]
        return new_ptr, result

    @property
    def walked(self) -> bool:
        """Whether routes go from NPU to neighbouring NPU in dimension order, in a ring the shorter way.

        Then the current NPU and the destination determine the next link, without a table of routes.
        """
        router = self.router
        if not isinstance(router, DimensionOrder) or self.renumbered is not None or self.routing.ecmp:
            return False
        return all(dim.kind == "mesh" or (dim.kind == "ring" and dim.bidirectional) for dim in router.dims)

    def route_lengths(self, src: np.ndarray, dst: np.ndarray) -> np.ndarray | None:
        """Number of links per route, int64[k]; None unless routes are `walked`."""
        if not self.walked or not isinstance(self.router, DimensionOrder):
            return None
        self._check_pairs(src, dst)
        return self.router.lengths(src, dst)

    def route(self, src: int, dst: int) -> tuple[int, ...]:
        """Links from one NPU to another, in order; empty if they are the same. Raises as `routes` does."""
        return tuple(self.routes([src], [dst])[1].tolist())

    def to_networkx(self) -> networkx.MultiDiGraph[int]:
        """The topology as a `networkx.MultiDiGraph`; see `astrasim_py.topology.export.to_networkx`.

        Edges also have numbers to compute with: ``bandwidth_GBps`` and ``latency_ns``, floats.
        """
        from astrasim_py.topology import export

        graph = export.to_networkx(self)
        for *_, link, edge in graph.edges(keys=True, data=True):
            rate = self.bandwidths[self.bandwidth_class[link]]
            edge |= {"bandwidth_GBps": float(rate) / 1e9, "latency_ns": int(self.latency_ps[link]) / 1e3}
        return graph

    @staticmethod
    def from_networkx(
        graph: networkx.Graph[Hashable], *, bandwidth: str | None = None, latency: str | None = None, name: str = ""
    ) -> Topology:
        """A topology of a networkx graph; see `astrasim_py.topology.node_link.from_networkx`."""
        topology: Topology = above("from_networkx")(graph, bandwidth, latency, name)
        return topology

    def draw(self, ax: Axes | None = None) -> Axes:
        """Draw NPUs (circles), switches (squares) and links, also those that failed, and return the matplotlib Axes.

        `ax`: Axes to draw into; a new figure by default.
        """
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.figure(layout="constrained").add_subplot()
        from astrasim_py.topology.drawing import draw_network

        switch = np.arange(self.vertices) >= self.npus
        x, y = positions(self) or (np.full(self.vertices, np.nan), np.full(self.vertices, np.nan))
        x, y = spread(x, y, switch, self.src, self.dst)
        names = [self.vertex_name(vertex) for vertex in range(self.vertices)]
        draw_network(ax, x, y, switch, names, self.src, self.dst, cut=self.cut)
        ax.set_title(self.name, parse_math=False)
        if self.cut:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), frameon=False)
        return ax

    def digest(self) -> str:
        """A stable hash of everything that can influence a simulation (not of names)."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        unseen = ["name", "shape", "switches", "cut"]
        unseen += [] if self.computing else ["computing"]
        unseen += [] if self.events else ["events", "reroute_ps"]
        return digest({f.name: getattr(self, f.name) for f in fields(self) if f.name not in unseen})

    def __getstate__(self) -> dict:
        """Pickle only the inputs of the topology."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def changed(
        self,
        *,
        links: Iterable[tuple[Sequence[int] | np.ndarray, Fraction | None, int | None]] = (),
        failed_links: Sequence[int] | np.ndarray = (),
        failed_npus: Sequence[int] = (),
        failed_switches: Sequence[int] = (),
        routing: Routing | None = None,
        place: str = "",
        connected: bool = True,
    ) -> Topology:
        """A copy with other bandwidths or latencies, without failed elements, or with other routing.

        `links`: (link ids, bandwidth or None, latency in ps or None), changed one after the other. Links of a failed
        vertex go with it. Events are dropped. Raises TopologyError: what is left is to be `connected`, and does not
        connect every pair of NPUs that are alive.
        """
        latency = np.array(self.latency_ps)
        codes = np.array(self.bandwidth_class)
        bandwidths = list(self.bandwidths)
        for links_changed, bandwidth, latency_ps in links:
            where = np.asarray(links_changed, dtype=np.int64)
            if bandwidth is not None:
                if bandwidth not in bandwidths:
                    bandwidths.append(bandwidth)
                codes[where] = bandwidths.index(bandwidth)
            if latency_ps is not None:
                latency[where] = latency_ps
        gone = np.zeros(self.links, dtype=bool)
        gone[np.asarray(failed_links, dtype=np.int64)] = True
        dead = np.zeros(self.vertices, dtype=bool)
        dead[list(failed_npus) + list(failed_switches)] = True
        gone |= dead[self.src] | dead[self.dst]
        renumbered = self.renumbered
        if gone.any():
            left = np.where(gone, -1, np.cumsum(~gone) - 1).astype(np.int32)
            if renumbered is not None:
                renumbered = np.where(renumbered < 0, -1, left[renumbered])
            elif self.router is not None:
                renumbered = left
        keep = ~gone
        new: dict[str, Any] = {
            "src": self.src[keep],
            "dst": self.dst[keep],
            "latency_ps": latency[keep],
            "bandwidth_class": codes[keep],
            "bandwidths": bandwidths,
            "failed": tuple(sorted({*self.failed, *failed_npus})),
            "cut": (*self.cut, *zip(self.src[gone].tolist(), self.dst[gone].tolist(), strict=True)),
            "routing": routing or self.routing,
            "renumbered": renumbered,
            "events": (),
            "reroute_ps": 0,
        }
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return Topology.create(**values | new, place=place, connected=connected)


def routed(
    name: str, shape: str, router: Router, links: Sequence[tuple[Fraction, int]], dims: Sequence[Dim], place: str
) -> Topology:
    """A network without failures from its router; `links`: (bandwidth, latency) by level of its links."""
    switches = sum(count for _, count in router.switches)
    check_caps(router.npus, router.links, switches, place)
    src, dst, level = router.ends()
    return Topology.create(
        name=name,
        shape=shape,
        npus=router.npus,
        vertices=router.npus + switches,
        src=src,
        dst=dst,
        latency_ps=np.array([latency for _, latency in links], dtype=np.int64)[level],
        bandwidth_class=level,
        bandwidths=[bandwidth for bandwidth, _ in links],
        dims=tuple(dims),
        switches=router.switches,
        router=router,
        place=place,
    )


def product_of(name: str, shape: str, dims: Sequence[Dim], place: str = "") -> Topology:
    """A product of dimensions with dimension-order routes (see `routing.DimensionOrder`)."""
    links = [(dim.bandwidth, dim.latency_ps) for dim in dims]
    return routed(name, shape, DimensionOrder(tuple(dims)), links, dims, place)


def check_caps(npus: int, links: int, switches: int = 0, place: str = "") -> None:
    """Refuse topologies above the caps, before anything is allocated."""
    for count, cap, noun in (
        (npus, NPU_CAP, "NPUs"),
        (links, LINK_CAP, "links"),
        (npus + switches, VERTEX_CAP, "NPUs and switches"),
    ):
        if count > cap:
            shown = str(count) if count < 10**20 else "more than 10^20"
            raise TopologyError(place, f"{shown} {noun} are more than the cap of {cap}", "write a smaller topology")
