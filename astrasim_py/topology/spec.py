"""`build`: a topology from keys and values, as a scenario writes them.

`SHAPES` says which keys each shape has, so that a schema can be made of it. Beside its own keys every shape
has those of `COMMON`:

``links``
    Overrides, applied in order: ``{from: 0, to: 1, bandwidth: 10 GB/s, latency: 2 us, directions: both}``.
    Vertices are NPU numbers or switch names; ``directions`` is ``both`` (default) or ``one``; parallel links
    all change.
``failed``
    ``{links: [[0, 1], {from: 2, to: 3, directions: one}], npus: [5], switches: [spine0]}``. Failed NPUs and
    switches lose all their links; the remaining NPUs must still reach each other. A pair whose regular route
    crosses something that failed takes the shortest path over what is left (`routing.ShortestPaths`), every
    other pair keeps its regular route.
``routing``
    ``{ecmp: true, seed: 0}``: every pair takes one of its equal-cost shortest paths, chosen by a stable hash.
``unwind``
    ``2``: at last every switch is replaced by links from each of its ports to two others (see `unwind`).

A preset stands for the keys in its data file, and any of them may be given anew:
``{preset: dgx_a100, nodes: 2}``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import numpy as np

from astrasim_py.core.errors import AstraError, TopologyError
from astrasim_py.core.units import INT64_MAX, parse_bandwidth, parse_time
from astrasim_py.topology import edge_list, shapes
from astrasim_py.topology.hardware import preset, preset_names
from astrasim_py.topology.model import DIM_KINDS, NPU_CAP, Dim, Routing, Topology, vertex_ids
from astrasim_py.topology.unwind import unwound

_MAX_DIMS = 32
_BANDWIDTH, _LATENCY = "50 GB/s", "500 ns"


@dataclass(frozen=True, slots=True)
class Param:
    """A key of a shape.

    Attributes
    ----------
    kind : str
        count (whole number >= 1), whole (>= 0), sizes (list of counts), bool, ratio (> 0, or "3:1"),
        bandwidth, latency, bandwidths and latencies (one value or one per dim), choice, dims (list of
        ``{kind, size, bandwidth, latency}``), edges (list of links), file, link_preset.
    required : bool
    about : str
    choices : tuple of str
        Of a choice.
    unless : str
        Another key that makes this one optional.
    """

    kind: str
    required: bool = False
    about: str = ""
    choices: tuple[str, ...] = ()
    unless: str = ""


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """A shape: its keys, and the function that makes it from their values.

    Attributes
    ----------
    name, about : str
    params : mapping of str to Param
    make : callable
        Called with the values by key and ``place=``.
    """

    name: str
    about: str
    params: Mapping[str, Param]
    make: Callable[..., Topology] = field(repr=False)

    @property
    def required(self) -> tuple[str, ...]:
        """Keys that must be there, whatever else is."""
        return tuple(k for k, p in self.params.items() if p.required and not p.unless)

    @property
    def optional(self) -> tuple[str, ...]:
        """All other keys, the common ones included."""
        return (*(k for k in self.params if k not in self.required), *COMMON)

    def missing(self, keys: Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
        """Keys that have to be added to `keys`."""
        return tuple(
            k for k, p in self.params.items() if p.required and k not in keys and not (p.unless and p.unless in keys)
        )


#: Keys that every shape has.
COMMON: dict[str, Param] = {
    "links": Param("overrides", about="bandwidth or latency of single links"),
    "failed": Param("failed", about="links, NPUs and switches that are down"),
    "routing": Param("routing", about="ecmp: true spreads pairs over equal-cost shortest paths"),
    "unwind": Param("count", about="replace each switch by direct links from each port to so many others"),
}

_LINK = {
    "bandwidth": Param("bandwidth", True, "of one link, in one direction", unless="link_preset"),
    "latency": Param("latency", True, "of one link", unless="link_preset"),
    "link_preset": Param("link_preset", about="bandwidth and latency of a kind of link"),
}
_LINKS = _LINK | {
    "bandwidth": Param("bandwidths", True, "of one link, in one direction", unless="link_preset"),
    "latency": Param("latencies", True, "of one link", unless="link_preset"),
}
_NPUS = {"npus": Param("count", True, "how many NPUs")}
_SIZES = {"dims": Param("sizes", True, "NPUs along each dimension, innermost first")}
_ONE_WAY = {"bidirectional": Param("bool", about="false: only the +1 links exist")}


def _product(*, dims: Sequence[Dim], place: str) -> Topology:
    return shapes.product(dims, place=place)


def _edges(*, npus=None, edges=None, file=None, parsed: bool = True, place: str = "") -> Topology:
    if (edges is None) == (file is None):
        raise TopologyError(
            place, "an edge_list has either edges or a file", "write file: topology.csv, or edges: [...]"
        )
    if file is None:
        return edge_list.from_mappings(edges, npus, place=f"{place}.edges" if place else "edges", parsed=parsed)
    topology = edge_list.read_edge_list(file)
    if npus is not None and npus != topology.npus:
        raise TopologyError(
            f"{place}.npus" if place else "npus", f"{npus}, and the file has {topology.npus}", "delete it"
        )
    return topology


def _spec(name: str, about: str, params: Mapping[str, Param], make: Callable[..., Topology]) -> ShapeSpec:
    return ShapeSpec(name, about, params, make)


SHAPES: dict[str, ShapeSpec] = {
    s.name: s
    for s in (
        _spec("ring", "a circle of NPUs", _NPUS | _LINK | _ONE_WAY, shapes.ring),
        _spec("mesh", "an n-D grid without wraparound", _SIZES | _LINKS, shapes.mesh),
        _spec("torus", "an n-D grid with wraparound", _SIZES | _LINKS | _ONE_WAY, shapes.torus),
        _spec("fully_connected", "a link between every two NPUs", _NPUS | _LINK, shapes.fully_connected),
        _spec("switch", "all NPUs on one switch", _NPUS | _LINK, shapes.switch),
        _spec("hypercube", "NPUs whose ids differ in one bit are linked", _NPUS | _LINK, shapes.hypercube),
        _spec(
            "product",
            "a product of rings, meshes, fully connected dimensions and switches",
            {"dims": Param("dims", True, "kind, size, bandwidth and latency of each, innermost first")},
            _product,
        ),
        _spec(
            "leaf_spine",
            "leaf switches, each linked to every spine",
            {
                "leaves": Param("count", True, "leaf switches"),
                "hosts_per_leaf": Param("count", True, "NPUs per leaf"),
                "spines": Param("count", True, "spine switches"),
                **_LINK,
                "oversubscription": Param("ratio", about="a leaf's NPU bandwidth over its uplink bandwidth"),
                "uplink_bandwidth": Param("bandwidth", about="of one uplink, instead of oversubscription"),
                "uplink_latency": Param("latency", about="of one uplink"),
            },
            shapes.leaf_spine,
        ),
        _spec(
            "fat_tree",
            "a three-tier fat tree of k-port switches",
            {
                "k": Param("count", True, "ports per switch, even"),
                **_LINK,
                "pods": Param("count", about="at most k, which is the default"),
                "hosts_per_edge": Param("count", about="NPUs per edge switch, k/2 by default"),
                "fabric_bandwidth": Param("bandwidth", about="of one link between switches"),
                "fabric_latency": Param("latency", about="of one link between switches"),
            },
            shapes.fat_tree,
        ),
        _spec(
            "dragonfly",
            "groups of fully connected routers, joined by global links",
            {
                "a": Param("count", True, "routers per group"),
                "h": Param("count", True, "global links per router"),
                "p": Param("count", True, "NPUs per router"),
                "g": Param("count", about="groups, a h + 1 by default"),
                **_LINK,
                "local_bandwidth": Param("bandwidth", about="of one link within a group"),
                "local_latency": Param("latency", about="of one link within a group"),
                "global_bandwidth": Param("bandwidth", about="of one link between groups"),
                "global_latency": Param("latency", about="of one link between groups"),
            },
            shapes.dragonfly,
        ),
        _spec(
            "dgx",
            "nodes with an NVSwitch and one NIC per NPU, on rails",
            {
                "nodes": Param("count", about="1 by default"),
                "npus": Param("count", about="per node, 8 by default"),
                "nvlink_bandwidth": Param("bandwidth", True, "of one NPU to the NVSwitch"),
                "nvlink_latency": Param("latency", True, "of one NPU to the NVSwitch"),
                "nic_bandwidth": Param("bandwidth", about="of one NPU to its rail; needed from 2 nodes on"),
                "nic_latency": Param("latency", about="of one NPU to its rail; needed from 2 nodes on"),
                "rails": Param("count", about="a divisor of npus, which is the default"),
                "spines": Param("whole", about="spine switches that join the rails, 0 by default"),
                "oversubscription": Param("ratio", about="a rail's NIC bandwidth over its uplink bandwidth"),
                "cross_rail": Param("choice", about="how messages change rails", choices=("nvlink", "spine")),
            },
            shapes.dgx,
        ),
        _spec(
            "edge_list",
            "links one by one, from a file or written out",
            {
                "file": Param("file", True, "a .csv, .yaml or .json file", unless="edges"),
                "edges": Param("edges", True, "a list of {src, dst, bandwidth, latency}", unless="file"),
                "npus": Param("count", about="how many of the numbered vertices are NPUs"),
            },
            _edges,
        ),
    )
}


class _Reader:
    """Reads values of a spec and gathers errors, so that all can be told at once."""

    def __init__(self, place: str, parsed: bool) -> None:
        self.place, self.parsed = place, parsed
        self.errors: list[TopologyError] = []

    def at(self, *path: str | int) -> str:
        """The place of a key: ``place.links[0].bandwidth``."""
        text = self.place
        for key in path:
            text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
        return text

    def fail(self, place: str, problem: str, remedy: str = "") -> None:
        self.errors.append(TopologyError(place, problem, remedy))

    def keys(self, value: object, allowed: Sequence[str], *path: str | int) -> dict[str, Any] | None:
        """A mapping with known keys only."""
        if not isinstance(value, Mapping):
            self.fail(self.at(*path), f"{_show(value)} is not a mapping", f"write {', '.join(allowed)}")
            return None
        for key in value:
            if key not in allowed:
                near = difflib.get_close_matches(str(key), allowed, 1)
                remedy = f'did you mean "{near[0]}"?' if near else f"write one of {', '.join(allowed)}"
                self.fail(self.at(*path, str(key)[:60]), "an unknown key", remedy)
        return {k: v for k, v in value.items() if k in allowed}

    def value(self, param: Param, value: object, *path: str | int) -> Any:
        """The value of a key, or None after an error."""
        return getattr(self, f"_{param.kind}")(value, param, *path)

    def _count(self, value, param, *path, least: int = 1) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(self.at(*path), f"{_show(value)} is not a whole number", f"write e.g. {path[-1]}: 8")
        elif value < least:
            self.fail(self.at(*path), f"{_show(value)} is less than {least}", f"write {least} to {NPU_CAP}")
        elif value > NPU_CAP:
            self.fail(self.at(*path), f"{_show(value)} is more than the cap of {NPU_CAP}", f"write at most {NPU_CAP}")
        else:
            return value
        return None

    def _seed(self, value, param, *path) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
            self.fail(self.at(*path), f"{_show(value)} is not a whole number from 0 to 2^63 - 1", "write e.g. seed: 0")
            return None
        return value

    def _whole(self, value, param, *path) -> int | None:
        return self._count(value, param, *path, least=0)

    def _list(self, value, *path, most: int) -> list | None:
        if isinstance(value, str) or not isinstance(value, Sequence):
            self.fail(self.at(*path), f"{_show(value)} is not a list", "write it in brackets")
        elif not 1 <= len(value) <= most:
            self.fail(self.at(*path), f"{len(value)} items, and 1 to {most} are allowed", "change the list")
        else:
            return list(value)
        return None

    def _sizes(self, value, param, *path) -> list[int] | None:
        items = self._list(value, *path, most=_MAX_DIMS)
        sizes = [self._count(item, param, *path, i) for i, item in enumerate(items or ())]
        return None if items is None or None in sizes else sizes

    def _bool(self, value, param, *path) -> bool | None:
        if isinstance(value, bool):
            return value
        self.fail(self.at(*path), f"{_show(value)} is not true or false", "write true or false")
        return None

    def _choice(self, value, param, *path) -> str | None:
        if isinstance(value, str) and value in param.choices:
            return value
        near = difflib.get_close_matches(str(value), param.choices, 1)
        remedy = f'did you mean "{near[0]}"?' if near else f"write one of {', '.join(param.choices)}"
        self.fail(self.at(*path), f"{_show(value)} is not one of {', '.join(param.choices)}", remedy)
        return None

    def _ratio(self, value, param, *path) -> Fraction | None:
        ratio = None
        if isinstance(value, int | Fraction) and not isinstance(value, bool):
            ratio = Fraction(value)
        elif isinstance(value, float) and math.isfinite(value):
            ratio = Fraction(repr(value))
        elif isinstance(value, str) and len(value) <= 40:
            over, mark, under = value.partition(":")
            if mark and over.strip().isdecimal() and under.strip().isdecimal() and int(under):
                ratio = Fraction(int(over), int(under))
        if ratio is None or not 0 < ratio <= NPU_CAP:
            self.fail(self.at(*path), f"{_show(value)} is not a ratio above 0", 'write e.g. 2 or "3:1"')
            return None
        return ratio

    def _bandwidth(self, value, param, *path) -> Fraction | None:
        if isinstance(value, Fraction) and 0 < value <= INT64_MAX:
            return value
        return self._quantity(parse_bandwidth, value, *path)

    def _latency(self, value, param, *path) -> int | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and self.parsed and 0 <= value <= INT64_MAX:
            return value
        return self._quantity(parse_time, value, *path)

    def _quantity(self, parse, value, *path):
        try:
            return parse(value if not isinstance(value, int) or abs(value) < 10**60 else "a huge number")
        except AstraError as error:
            self.fail(self.at(*path), error.problem, error.remedy)
            return None

    def _each(self, read, value, param, *path):
        if isinstance(value, str) or not isinstance(value, Sequence):
            return read(value, param, *path)
        items = self._list(value, *path, most=_MAX_DIMS)
        values = [read(item, param, *path, i) for i, item in enumerate(items or ())]
        return None if items is None or None in values else values

    def _bandwidths(self, value, param, *path):
        return self._each(self._bandwidth, value, param, *path)

    def _latencies(self, value, param, *path):
        return self._each(self._latency, value, param, *path)

    def _link_preset(self, value, param, *path) -> tuple[Fraction, int] | None:
        try:
            return preset(value, self.at(*path), "link").link
        except TopologyError as error:
            self.errors.append(error)
            return None

    def _dims(self, value, param, *path) -> list[Dim] | None:
        items = self._list(value, *path, most=_MAX_DIMS)
        dims = []
        for index, item in enumerate(items or ()):
            dims.append(item if isinstance(item, Dim) else self._dim(item, *path, index))
        return None if items is None or None in dims else dims

    def _dim(self, item, *path) -> Dim | None:
        params = {
            "kind": Param("choice", True, choices=DIM_KINDS),
            "size": Param("count", True),
            **_LINK,
            **_ONE_WAY,
        }
        values = self.mapping(params, item, *path)
        if values is None:
            return None
        if not values.get("bidirectional", True) and values["kind"] != "ring":
            self.fail(self.at(*path, "bidirectional"), "only a ring can be one-way", "delete it")
            return None
        return Dim(
            values["kind"],
            values["size"],
            values["bandwidth"],
            values["latency_ps"],
            values.get("bidirectional", True),
        )

    def _file(self, value, param, *path) -> str | PurePath | None:
        if isinstance(value, str | PurePath) and str(value):
            return value
        self.fail(self.at(*path), f"{_show(value)} is not a file name", "write e.g. file: topology.csv")
        return None

    def _edges(self, value, param, *path):
        return value

    def mapping(
        self, params: Mapping[str, Param], value: object, *path, more: Sequence[str] = (), what: str = ""
    ) -> dict[str, Any] | None:
        """Values of a mapping by argument name, or None after an error; `more` are keys read elsewhere."""
        before = len(self.errors)
        known = self.keys(value, (*params, *more), *path)
        if known is None:
            return None
        given = {k: v for k, v in known.items() if v is not None and k in params}
        missing = ShapeSpec("", "", params, _product).missing(given)
        if set(missing) == {"file", "edges"}:
            missing = ("file",)
        for key in missing:
            self.fail(self.at(*path), f"{what}{key} is missing", f"write {key}: {_example(params[key])}")
        values = {k: self.value(params[k], v, *path, k) for k, v in given.items()}
        if len(self.errors) > before:
            return None
        if "link_preset" in values:
            bandwidth, latency = values.pop("link_preset")
            values.setdefault("bandwidth", bandwidth)
            values.setdefault("latency", latency)
        return {f"{k}_ps" if k.split("_")[-1] == "latency" else k: v for k, v in values.items()}

    # The common keys.

    def routing(self, value: object) -> Routing:
        values = self.mapping({"ecmp": Param("bool"), "seed": Param("seed")}, value, "routing")
        return Routing(**(values or {}))

    def ends(self, item: object, *path, extra: Sequence[str] = ()) -> tuple[object, object, str] | None:
        """The two vertices of a link, and ``both`` or ``one``."""
        if isinstance(item, Sequence) and not isinstance(item, str) and not extra:
            if len(item) == 2:
                return item[0], item[1], "both"
            self.fail(self.at(*path), f"{len(item)} ends of a link", "write two, e.g. [0, 1]")
            return None
        known = self.keys(item, ("from", "to", "directions", *extra), *path)
        if known is None:
            return None
        lacking = [key for key in ("from", "to") if key not in known]
        for key in lacking:
            self.fail(self.at(*path), f"{key} is missing", f"write {key}: 0")
        direction = known.get("directions", "both")
        if direction not in ("both", "one"):
            self.fail(self.at(*path, "directions"), f"{_show(direction)} is neither both nor one", "write both or one")
            return None
        return None if lacking else (known["from"], known["to"], direction)


def _show(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a number beyond 10^20"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _example(param: Param) -> str:
    return {
        "count": "8",
        "sizes": "[8, 8]",
        "bandwidth": _BANDWIDTH,
        "bandwidths": _BANDWIDTH,
        "latency": _LATENCY,
        "latencies": _LATENCY,
        "choice": " or ".join(param.choices),
        "dims": f"[{{kind: ring, size: 8, bandwidth: {_BANDWIDTH}, latency: {_LATENCY}}}]",
        "file": "topology.csv",
    }.get(param.kind, "a value")


def build(
    spec: Mapping[str, Any],
    place: str = "",
    *,
    name: str = "",
    parsed: bool = True,
    shapes: Mapping[str, ShapeSpec] = SHAPES,
) -> Topology:
    """Make a topology from keys and values.

    Parameters
    ----------
    spec : mapping
        ``shape`` or ``preset``, the keys of that shape, and those of `COMMON`. Bandwidths are text with units or
        `fractions.Fraction` in bytes per second; latencies are text with units or whole picoseconds.
    place : str
        Where the spec is, for errors; the path of the key is put after it.
    name : str, optional
        Of the topology; otherwise it is made from the shape.
    parsed : bool
        Whether latencies may be whole numbers (of ps). Say False for what a person wrote: there a bare number is
        an error.
    shapes : mapping of str to ShapeSpec
        The shapes known.

    Returns
    -------
    Topology

    Raises
    ------
    TopologyError
        The first of the errors that `check` would give; or too many NPUs or links, or a pair of NPUs without a
        path.
    """
    topology, errors = _build(spec, place, parsed, shapes, construct=True)
    if errors:
        raise errors[0]
    return topology.named(name) if name else topology


def check(
    spec: Mapping[str, Any],
    place: str = "",
    *,
    parsed: bool = True,
    shapes: Mapping[str, ShapeSpec] = SHAPES,
) -> list[TopologyError]:
    """Everything that is wrong with the keys and values of a spec, without making the topology."""
    return _build(spec, place, parsed, shapes, construct=False)[1]


def _build(spec, place, parsed, shapes, *, construct) -> tuple[Topology | None, list[TopologyError]]:
    reader = _Reader(place, parsed)
    if not isinstance(spec, Mapping):
        reader.fail(place, f"{_show(spec)} is not a mapping", "write e.g. {shape: ring, npus: 8, …}")
        return None, reader.errors
    keys = dict(spec)
    shape = keys.pop("shape", None)
    if "preset" in keys:
        wanted = keys.pop("preset")
        if shape is not None:
            reader.fail(reader.at("preset"), "a preset has its own shape", "delete shape or preset")
            return None, reader.errors
        try:
            data = preset(wanted, reader.at("preset"), "topology").topology
        except TopologyError as error:
            return None, [error]
        keys = {**data, **keys}
        shape = keys.pop("shape")
    if shape is None:
        remedy = f"write shape: one of {', '.join(shapes)}; or preset: one of {', '.join(preset_names('topology'))}"
        reader.fail(place, "shape is missing", remedy)
        return None, reader.errors
    if not isinstance(shape, str) or shape not in shapes:
        near = difflib.get_close_matches(str(shape), list(shapes), 1)
        remedy = f'did you mean "{near[0]}"?' if near else f"write one of {', '.join(shapes)}"
        reader.fail(reader.at("shape"), f"{_show(shape)} is not a shape", remedy)
        return None, reader.errors
    values = reader.mapping(shapes[shape].params, keys, more=tuple(COMMON), what=f'shape "{shape}": ')
    overrides = _overrides(reader, keys.get("links"))
    failed = _failed(reader, keys.get("failed"))
    routing = reader.routing(keys["routing"]) if keys.get("routing") is not None else Routing()
    degree = None if keys.get("unwind") is None else reader.value(COMMON["unwind"], keys["unwind"], "unwind")
    if reader.errors or not construct:
        return None, reader.errors
    if shape == "edge_list":
        values["parsed"] = parsed
    topology = _make(reader, shapes[shape], values)
    if overrides or any(failed.values()) or routing != Routing():
        topology = _change(reader, topology, overrides, failed, routing)
    if degree is not None and topology is not None:
        topology = unwound(topology, degree, place=reader.at("unwind"))
    return (None, reader.errors) if reader.errors else (topology, [])


def _make(reader: _Reader, shape: ShapeSpec, values: dict[str, Any]) -> Topology:
    return shape.make(**values, place=reader.place)


def _overrides(reader: _Reader, value: object) -> list[tuple]:
    """(path, from, to, directions, bandwidth, latency) of each override."""
    rows = []
    if value is None:
        return rows
    if isinstance(value, str) or not isinstance(value, Sequence):
        reader.fail(reader.at("links"), f"{_show(value)} is not a list", "write [{from: 0, to: 1, …}]")
        return rows
    for index, item in enumerate(value):
        path = ("links", index)
        ends = reader.ends(item, *path, extra=("bandwidth", "latency"))
        if ends is None:
            continue
        bandwidth, latency = item.get("bandwidth"), item.get("latency")
        if bandwidth is None and latency is None:
            reader.fail(reader.at(*path), "neither bandwidth nor latency", f"write bandwidth: {_BANDWIDTH}")
            continue
        rate = None if bandwidth is None else reader.value(Param("bandwidth"), bandwidth, *path, "bandwidth")
        time = None if latency is None else reader.value(Param("latency"), latency, *path, "latency")
        rows.append((path, *ends, rate, time))
    return rows


def _failed(reader: _Reader, value: object) -> dict[str, list]:
    """(path, …) of everything that failed, by kind."""
    rows: dict[str, list] = {"links": [], "npus": [], "switches": []}
    known = {} if value is None else reader.keys(value, tuple(rows), "failed")
    for kind, items in (known or {}).items():
        if items is None:
            continue
        if isinstance(items, str) or not isinstance(items, Sequence):
            reader.fail(reader.at("failed", kind), f"{_show(items)} is not a list", "write it in brackets")
            continue
        for index, item in enumerate(items):
            path = ("failed", kind, index)
            if kind == "links":
                ends = reader.ends(item, *path)
                if ends is not None:
                    rows[kind].append((path, *ends))
            else:
                rows[kind].append((path, item))
    return rows


def _change(reader: _Reader, topology: Topology, overrides, failed, routing) -> Topology | None:
    """Apply overrides and failures."""
    finder = _Finder(reader, topology)
    changes = []
    for path, a, b, direction, rate, time in overrides:
        found = finder.links(path, a, b, direction)
        if found is not None:
            changes.append((found, rate, time))
    gone = [finder.links(path, *ends) for path, *ends in failed["links"]]
    npus = [finder.vertex(path, item, "npus") for path, item in failed["npus"]]
    switches = [finder.vertex(path, item, "switches") for path, item in failed["switches"]]
    if reader.errors:
        return None
    return topology.changed(
        links=changes,
        failed_links=np.concatenate(gone) if gone else (),
        failed_npus=npus,
        failed_switches=switches,
        routing=routing,
        place=reader.place,
    )


class _Finder:
    """Finds vertices by number or name, and links by their ends."""

    def __init__(self, reader: _Reader, topology: Topology) -> None:
        self.reader, self.topology = reader, topology
        key = topology.src.astype(np.int64) * topology.vertices + topology.dst
        self.order = np.argsort(key, kind="stable")
        self.keys = key[self.order]
        self.names: Mapping[str, int] | None = None

    def vertex(self, path, item: object, only: str = "") -> int | None:
        """A vertex, or None after an error."""
        topology = self.topology
        found = None
        if isinstance(item, int | np.integer) and not isinstance(item, bool):
            found = int(item) if 0 <= item < topology.vertices else None
        elif isinstance(item, str):
            if self.names is None:
                self.names = vertex_ids(topology)
            found = self.names.get(item)
        fits = found is not None and (not only or (found < topology.npus) == (only == "npus"))
        if fits:
            return found
        names = [prefix if count is None else f"{prefix}0" for prefix, count in topology.switches]
        switches = f", switches are named e.g. {', '.join(names[:3])}" if names else ", there are no switches"
        what = {"npus": "an NPU", "switches": "a switch"}.get(only, "a vertex")
        self.reader.fail(
            self.reader.at(*path),
            f"{_show(item)} is not {what} of the topology",
            f"NPUs are numbered 0 to {topology.npus - 1}{switches}",
        )
        return None

    def links(self, path, a: object, b: object, direction: str) -> np.ndarray | None:
        """Ids of the links between two vertices, or None after an error."""
        x, y = self.vertex(path, a), self.vertex(path, b)
        if x is None or y is None:
            return None
        found = self._between(x, y)
        if direction == "both":
            found = np.concatenate([found, self._between(y, x)])
        if len(found):
            return found
        topology = self.topology
        near = np.unique(topology.dst[topology.src == x]).tolist()[:8]
        names = ", ".join(topology.vertex_name(v) for v in near)
        self.reader.fail(
            self.reader.at(*path),
            f"there is no link from {topology.vertex_name(x)} to {topology.vertex_name(y)}",
            f"{topology.vertex_name(x)} is linked to {names}" if names else "name the two ends of a link",
        )
        return None

    def _between(self, a: int, b: int) -> np.ndarray:
        key = a * self.topology.vertices + b
        low, high = np.searchsorted(self.keys, [key, key + 1])
        return self.order[low:high]
