"""Link numbering and closed-form routes of switched networks: leaf-spine, fat tree, dragonfly, DGX-like nodes.

Each class gives the vertices (NPUs first, then the blocks of `switches`), the links in order (`blocks`, each with its
level of bandwidth and latency) and the routes of an undamaged network. Upward choices depend on the destination only,
so that all traffic to one NPU converges on one path and traffic to different NPUs is spread evenly (d-mod-k routing).

Zahavi: D-Mod-K routing providing non-blocking traffic for shift permutations on real life fat trees, CCIT
Report 776, Technion 2010.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.rows import pointers
from astrasim_py.topology.routing import Routes

#: Source vertices, destination vertices, level.
Block = tuple[np.ndarray, np.ndarray, int]


def _cable(a: np.ndarray, b: np.ndarray, level: int) -> list[Block]:
    """Links a -> b, then the same number b -> a."""
    return [(a, b, level), (b, a, level)]


def _grid(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every cell, row by row."""
    return np.repeat(np.arange(rows), columns), np.tile(np.arange(columns), rows)


def _table(count: int, *columns: tuple[np.ndarray, np.ndarray]) -> Routes:
    """CSR of routes given hop by hop as (which pairs take this hop, its link ids)."""
    matrix = np.empty((count, len(columns)), dtype=np.int32)
    used = np.empty(matrix.shape, dtype=bool)
    for hop, (mask, links) in enumerate(columns):
        used[:, hop], matrix[:, hop] = mask, links
    return pointers(used.sum(axis=1)), matrix[used]


class Fabric:
    """A switched network without failures, by the `blocks` of its links."""

    def blocks(self) -> Iterable[tuple[np.ndarray, np.ndarray, int]]:
        """Blocks of links of one level: sources, destinations and the level."""
        raise NotImplementedError

    def ends(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        src, dst, level = zip(*self.blocks(), strict=True)
        levels = np.repeat(level, [len(ends) for ends in src]).astype(np.int32)
        return np.concatenate(src).astype(np.int32), np.concatenate(dst).astype(np.int32), levels


@dataclass(frozen=True)
class Tree(Fabric):
    """A leaf-spine network or a fat tree.

    `pods` pods, each with `edges` edge switches (leaves) of `hosts` NPUs and `tops` aggregation switches (spines), all
    linked to each other; `cores` core switches above each aggregation switch of a pod and those of its place in the
    other pods. Core ``a cores + j`` is the j-th one above aggregation switch a. A message takes aggregation switch
    ``destination mod tops`` and, to another pod, core j = ``(destination div tops) mod cores`` above it.

    Al-Fares, Loukissas, Vahdat: A scalable, commodity data center network architecture, SIGCOMM 2008.
    """

    pods: int
    edges: int
    hosts: int
    tops: int
    cores: int
    names: tuple[str, ...]  # of the switches, from the edge upwards

    @property
    def npus(self) -> int:
        return self.pods * self.edges * self.hosts

    @property
    def links(self) -> int:
        return 2 * (self.npus + self.pods * self.tops * (self.edges + self.cores))

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        counts = (self.pods * self.edges, self.pods * self.tops, self.tops * self.cores)
        return tuple(zip(self.names, counts, strict=False))

    def blocks(self) -> list[Block]:
        """All links: NPU-edge (level 0), edge-aggregation (1), aggregation-core (2)."""
        ids = np.arange(self.npus)
        edge, top = _grid(self.pods * self.edges, self.tops)
        lower, core = _grid(self.pods * self.tops, self.cores)
        first_edge = self.npus
        first_top = first_edge + self.pods * self.edges
        first_core = first_top + self.pods * self.tops
        return [
            *_cable(ids, first_edge + ids // self.hosts, 0),
            *_cable(first_edge + edge, first_top + edge // self.edges * self.tops + top, 1),
            *_cable(first_top + lower, first_core + lower % self.tops * self.cores + core, 2),
        ]

    def routes(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        tops, cores = self.tops, self.cores
        layer, layer_above = self.pods * self.edges * tops, self.pods * tops * cores
        lower = 2 * self.npus
        upper = lower + 2 * layer
        a, b = src // self.hosts, dst // self.hosts
        pod_a, pod_b = a // self.edges, b // self.edges
        top, core = dst % tops, dst // tops % max(cores, 1)
        moves, up, across = src != dst, a != b, pod_a != pod_b
        return _table(
            len(src),
            (moves, src),
            (up, lower + a * tops + top),
            (across, upper + (pod_a * tops + top) * cores + core),
            (across, upper + layer_above + (pod_b * tops + top) * cores + core),
            (up, lower + layer + b * tops + top),
            (moves, self.npus + dst),
        )


@dataclass(frozen=True)
class Dragonfly(Fabric):
    """Groups of a routers, each with p NPUs and h global links; g groups.

    Routers of a group are fully connected. Each pair of groups is joined by ``a h div (g - 1)`` cables, dealt
    out consecutively: the cables of group G to its q-th other group are its global ports ``q m .. q m + m - 1``,
    and port x sits on router ``x div h`` (ports left over stay unused). Routes are minimal: local, global,
    local, over one global link; of several cables one with the fewest hops is taken, and among these the first
    counting upwards, cyclically, from cable ``destination mod m``.

    Kim, Dally, Scott, Abts: Technology-driven, highly-scalable dragonfly topology, ISCA 2008.
    """

    a: int
    h: int
    p: int
    g: int

    @property
    def routers(self) -> int:
        return self.a * self.g

    @property
    def npus(self) -> int:
        return self.p * self.routers

    @property
    def cables(self) -> int:
        """Between each pair of groups."""
        return self.a * self.h // (self.g - 1) if self.g > 1 else 0

    @property
    def links(self) -> int:
        return 2 * self.npus + self.routers * (self.a - 1) + self.g * (self.g - 1) * self.cables

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        return (("router", self.routers),)

    def blocks(self) -> list[Block]:
        """All links: NPU-router (level 0), router-router in a group (1), between groups (2)."""
        ids, a, m = np.arange(self.npus), self.a, self.cables
        router, other = _grid(self.routers, max(0, a - 1))
        other = other + (other >= router % a)
        group, peer, cable = np.unravel_index(
            np.arange(self.g * (self.g - 1) * m), (self.g, max(1, self.g - 1), max(1, m))
        )
        target = peer + (peer >= group)
        back = group - (group > target)
        first = self.npus
        return [
            *_cable(ids, first + ids // self.p, 0),
            (first + router, first + router // a * a + other, 1),
            (first + group * a + (peer * m + cable) // self.h, first + target * a + (back * m + cable) // self.h, 2),
        ]

    def routes(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        a, m = self.a, self.cables
        r, s = src // self.p, dst // self.p
        group, i = r // a, r % a
        target, j = s // a, s % a
        local = 2 * self.npus
        global_ = local + self.routers * (a - 1)
        across = group != target
        peer, back = target - (target > group), group - (group > target)
        exit_, entry, cable = i.copy(), j.copy(), np.zeros_like(src)
        best = np.full(len(src), 3)
        for turn in range(m):
            link = (dst + turn) % m
            out, into = (peer * m + link) // self.h, (back * m + link) // self.h
            extra = (out != i).astype(np.int64) + (into != j)
            take = across & (extra < best)
            best[take] = extra[take]
            exit_[take], entry[take], cable[take] = out[take], into[take], link[take]
        moves = src != dst

        def hop(router: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return local + router * (a - 1) + y - (y > x)

        # Within a group the first local hop goes straight to the destination's router.
        first = np.where(across, exit_, j)
        return _table(
            len(src),
            (moves, src),
            (first != i, hop(r, i, first)),
            (across, global_ + (group * (self.g - 1) + peer) * m + cable),
            (across & (entry != j), hop(target * a + entry, entry, j)),
            (moves, self.npus + dst),
        )


@dataclass(frozen=True)
class Rails(Fabric):
    """Nodes of NPUs behind an NVSwitch, one NIC per NPU, NICs of equal place on one rail switch.

    NPU ``i`` is local NPU ``i mod n`` of node ``i div n`` and its NIC is on rail ``(i mod n) mod rails``. Within
    a node messages cross the NVSwitch; to another node on the same rail, the rail switch. To another rail there
    are two ways. ``cross_rail="nvlink"`` (NCCL's PXN): by NVLink to the NPU of the source node with the
    destination's local number, and from its NIC. ``"spine"``: from the source's NIC over spine ``(node + local
    number) mod spines``, with node and local number of the destination.

    NVIDIA: Doubling all2all performance with NCCL 2.12 (PXN, rail-optimized fabrics), 2022.
    Wang et al.: Rail-only: a low-cost high-performance network for training LLMs, HotI 2024 (no spines).
    """

    nodes: int
    local: int
    rails: int
    spines: int
    cross_rail: str

    @property
    def npus(self) -> int:
        return self.nodes * self.local

    @property
    def _nvlinks(self) -> int:
        return 2 * self.npus if self.local > 1 else 0

    @property
    def _nics(self) -> int:
        return 2 * self.npus if self.nodes > 1 else 0

    @property
    def links(self) -> int:
        uplinks = 2 * self.rails * self.spines if self.nodes > 1 else 0
        return self._nvlinks + self._nics + uplinks

    @property
    def switches(self) -> tuple[tuple[str, int], ...]:
        nodes = (("nvswitch", self.nodes),) if self.local > 1 else ()
        return (*nodes, ("rail", self.rails), ("spine", self.spines)) if self.nodes > 1 else nodes

    def blocks(self) -> list[Block]:
        """All links: NVLink (level 0), NIC-rail (1), rail-spine (2)."""
        ids = np.arange(self.npus)
        blocks: list[Block] = []
        first = self.npus
        if self.local > 1:
            blocks += _cable(ids, first + ids // self.local, 0)
            first += self.nodes
        if self.nodes > 1:
            rail, spine = _grid(self.rails, self.spines)
            blocks += _cable(ids, first + ids % self.local % self.rails, 1)
            blocks += _cable(first + rail, first + self.rails + spine, 2)
        return blocks

    def routes(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        npus, n, spines = self.npus, self.local, max(1, self.spines)
        nic = self._nvlinks
        top = nic + self._nics
        node_a, node_b = src // n, dst // n
        rail_a, rail_b = src % n % self.rails, dst % n % self.rails
        moves, away = src != dst, node_a != node_b
        crosses = away & (rail_a != rail_b)
        relayed = crosses & (self.cross_rail == "nvlink")
        over = crosses & ~relayed
        inside = (moves & ~away) | relayed
        # On NVLink to the destination itself, or to the NPU here that shares its local number.
        door = np.where(relayed, node_a * n + dst % n, dst)
        spine = (node_b + dst % n) % spines
        return _table(
            len(src),
            (inside, src),
            (inside, npus + door),
            (away, nic + np.where(relayed, door, src)),
            (over, top + rail_a * self.spines + spine),
            (over, top + self.rails * self.spines + rail_b * self.spines + spine),
            (away, nic + npus + dst),
        )
