"""Keys of every topology, whatever its shape: single links, failures, routing, unwinding.

A shape (see `shapes`) is a model of its keys with a method `make`; `Shape.build` makes the topology and applies
these keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, TypeAlias, get_args

import numpy as np
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.fields import (
    EITHER,
    NPU_CAP,
    ONE,
    SEVERAL,
    Bandwidth,
    Count,
    MemoryBandwidth,
    Ranks,
    Time,
    choice,
    did_you_mean,
    shown,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.core.units import format_time
from astrasim_py.topology.events import LinkEvent
from astrasim_py.topology.hardware import preset, preset_names
from astrasim_py.topology.model import Computing, Routing, Topology
from astrasim_py.topology.placement import RandomPlacement

MAX_DIMS = 32


def _placement_tag(value: object) -> str:
    if isinstance(value, Mapping):
        return "<random>"
    return "<list>" if isinstance(value, list | tuple) else "<one>"


#: rank → NPU: ``linear``, ``snake``, ``{random: SEED}`` or a list of NPUs.
Placement: TypeAlias = Annotated[
    Annotated[str, choice("linear", "snake"), ONE]
    | Annotated[RandomPlacement, Tag("<random>")]
    | Annotated[Ranks, SEVERAL],
    Discriminator(_placement_tag),
]


def _ratio(value: object) -> Fraction:
    ratio = None
    if isinstance(value, int | float | Fraction) and not isinstance(value, bool) and 0 < value <= NPU_CAP:
        ratio = Fraction(str(value))
    elif isinstance(value, str):
        over, _, under = (part.strip() for part in value.partition(":"))
        if over.isdecimal() and under.isdecimal() and len(value) <= 20 and int(under):
            ratio = Fraction(int(over), int(under))
    if not ratio or ratio > NPU_CAP:
        raise wrong(f"{shown(value)} is not a ratio above 0", 'write e.g. 2 or "3:1"')
    return ratio


Ratio = Annotated[Fraction, PlainValidator(_ratio), WithJsonSchema({"type": ["number", "string"]})]


def _link_preset(value: object) -> str:
    names = preset_names("link")
    if not isinstance(value, str) or value not in names:
        raise wrong(f"there is no link preset {shown(value)}", did_you_mean(str(value), names))
    return value


LinkPreset = Annotated[str, PlainValidator(_link_preset), WithJsonSchema({"enum": list(preset_names("link"))})]


def _vertex(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise wrong(f"{shown(value)} is not a vertex", "write the number of an NPU, or the name of a switch")
    return value


Vertex = Annotated[
    int | str,
    PlainValidator(_vertex),
    WithJsonSchema({"type": ["integer", "string"], "description": "number of an NPU, or name of a switch"}),
]


class Link(StrictModel):
    """A link by its ends."""

    source: Vertex = Field(alias="from", examples=["0"])
    to: Vertex = Field(examples=["1"])
    directions: Annotated[str, choice("both", "one")] = "both"


class Override(Link):
    """Another bandwidth or latency of one link."""

    bandwidth: Bandwidth | None = Field(default=None, examples=["10 GB/s"])
    latency: Time | None = None

    def _complete(self) -> None:
        if self.bandwidth is None and self.latency is None:
            raise wrong("changes neither bandwidth nor latency", 'write e.g. bandwidth: "10 GB/s"')


def _pair(value: object) -> object:
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise wrong(f"{len(value)} ends of a link", "write two, e.g. [0, 1]")
        return {"from": value[0], "to": value[1]}
    return value


class Failed(StrictModel):
    """Failed parts; links of a failed vertex need not be named."""

    links: tuple[Annotated[Link, BeforeValidator(_pair, json_schema_input_type=Link | tuple[Vertex, Vertex])], ...] = ()
    npus: Ranks = ()
    switches: tuple[Vertex, ...] = ()


class Switches(StrictModel):
    """Switches that can take part in collectives, and what that costs."""

    _python_only = ("of_machine",)

    capable: Annotated[
        Annotated[str, choice("all"), ONE] | Annotated[tuple[Vertex, ...], Field(min_length=1), SEVERAL], EITHER
    ] = Field(
        default="all",
        description="all switches, or some by name; leaf stands for leaf0, leaf1, …",
        examples=["[leaf0, leaf1]"],
    )
    reduce_bandwidth: MemoryBandwidth | None = Field(
        default=None, description="of the one unit of a switch that reduces; by default it takes no time"
    )
    latency: Time = Field(default=0, description="added to the first link of every message that a switch sends")
    slots: Count | None = Field(default=None, description="chunks that a switch holds for a call; unlimited by default")
    overhead: Ratio = Field(
        default=Fraction(1), description="bytes on the wire by byte of messages from and to switches", examples=["1.2"]
    )
    #: From a preset: a machine written with other keys may have no such switches.
    of_machine: SkipJsonSchema[bool] = False

    def _complete(self) -> None:
        if self.overhead < 1:
            raise wrong(f"{float(self.overhead):g} is less than 1", "write 1 or more, e.g. 1.2", ("overhead",))

    def of(self, topology: Topology, place: str) -> Computing | None:
        """The computing switches of a topology; None if a machine has none.

        Raises TopologyError: no switches, or not the named ones.
        """
        if topology.vertices == topology.npus:
            if self.of_machine:
                return None
            raise TopologyError(place, f"{topology.name} has no switches", "drop it, or write a shape that has some")
        finder, switches = _Finder(topology), [*range(topology.npus, topology.vertices)]
        if self.capable != "all":
            places = [f"{below(place, 'capable')}[{i}]" for i in range(len(self.capable))]
            named = zip(self.capable, places, strict=True)
            switches = [v for name, at in named for v in finder.switches(name, at, needed=not self.of_machine)]
        if not switches:
            return None
        return Computing(
            vertices=tuple(np.intersect1d(switches, topology.src).tolist()),  # one that has failed has no links
            reduce_bandwidth=self.reduce_bandwidth,
            latency_ps=self.latency,
            slots=self.slots,
            overhead=self.overhead,
            of_machine=self.of_machine,
        )


class Event(StrictModel):
    """Failures and changes from a time until the next event."""

    at: Time = Field(examples=["5 ms"])
    failed: Failed | None = Field(default=None, description="links that are down", examples=["{links: [[0, 1]]}"])
    links: tuple[Override, ...] = Field(default=(), description="bandwidth or latency of single links")

    def _complete(self) -> None:
        for key in ("npus", "switches"):
            if self.failed is not None and getattr(self.failed, key):
                raise wrong(f"{key} cannot fail during a run", "write the links that fail", ("failed", key))


class Shape(StrictModel):
    """Keys of every topology."""

    _error = TopologyError

    placement: Placement | None = None
    links: tuple[Override, ...] | None = Field(default=None, description="bandwidth or latency of single links")
    failed: Failed | None = Field(default=None, description="links, NPUs and switches that are down")
    routing: Routing | None = Field(default=None, description="ecmp: true spreads pairs over equal-cost shortest paths")
    switches: Switches | None = Field(
        default=None, description="switches that can reduce and multicast", examples=["{capable: all}"]
    )
    unwind: Count | None = Field(
        default=None, description="replace each switch by direct links from each port to N others", examples=["2"]
    )
    events: tuple[Event, ...] | None = Field(
        default=None,
        description="links that fail, change and return during a run: from `at` on, what else is failed and changed;"
        " an event without changes ends the former one",
        examples=["[{at: 5 ms, failed: {links: [[0, 1]]}}, {at: 9 ms}]"],
    )
    reroute_delay: Time | None = Field(
        default=None, description="how long messages wait for another route when they lose a link", examples=["1 ms"]
    )

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is None and isinstance(value, Mapping) and "shape" in cls.model_fields:
            return dict(zip(("shape",), get_args(cls.model_fields["shape"].annotation), strict=False)) | dict(value)
        return value

    @model_validator(mode="after")
    def _in_time(self) -> "Shape":
        """Check events against each other and the other keys."""
        events = self.events or ()
        for number, (former, event) in enumerate(pairwise(events), 1):
            if event.at <= former.at:
                problem = f"{format_time(event.at)} is not after {format_time(former.at)}, the time of the former event"
                raise wrong(problem, "write events in ascending order of their times", ("events", number, "at"))
        if events and self.reroute_delay is None:
            raise wrong("events without a reroute_delay", "write e.g. reroute_delay: 1 ms", ("events",))
        if events and self.unwind is not None:
            raise wrong("events name links that unwind replaces", "delete unwind or events", ("events",))
        if self.events is None and self.reroute_delay is not None:
            remedy = "write e.g. events: [{at: 5 ms, failed: {links: [[0, 1]]}}], or delete it"
            raise wrong("without events nothing is rerouted", remedy, ("reroute_delay",))
        return self

    def make(self, place: str) -> Topology:
        """The undamaged topology of the shape; `place` is named in errors."""
        raise NotImplementedError

    @property
    def failed_npus(self) -> int:
        return len(self.failed.npus) if self.failed is not None else 0

    def npu_count(self) -> int | None:
        """NPUs, failed ones included, as far as the keys tell; None where only building it tells."""
        return None

    def build(self, place: str = "", *, name: str = "") -> Topology:
        """The topology, with single links changed, failures and routing applied, and switches unwound.

        Raises TopologyError: too many NPUs or links, an unknown link or vertex, a pair of NPUs without a path, switches
        that compute where there are none.
        """
        topology = self.make(place)
        if self.links or self.failed is not None or (self.routing or Routing()) != Routing():
            topology = self._changed(topology, place)
        if self.unwind is not None:
            from astrasim_py.topology.unwind import unwound

            topology = unwound(topology, self.unwind, place=below(place, "unwind"))
        if self.switches is not None:
            topology = replace(topology, computing=self.switches.of(topology, below(place, "switches")))
        if self.events:
            topology = self._with_events(topology, place)
        return replace(topology, name=name) if name else topology

    def _changed(self, topology: Topology, place: str) -> Topology:
        finder, failed, base = _Finder(topology), self.failed or Failed(), below(place, "failed")
        changes = finder.changes(self.links or (), place)
        npus = [finder.vertex(v, f"{base}.npus[{i}]", "an NPU") for i, v in enumerate(failed.npus)]
        switches = [finder.vertex(v, f"{base}.switches[{i}]", "a switch") for i, v in enumerate(failed.switches)]
        return topology.changed(
            links=changes,
            failed_links=finder.lost(failed, base),
            failed_npus=npus,
            failed_switches=switches,
            routing=self.routing,
            place=place,
        )

    def _with_events(self, topology: Topology, place: str) -> Topology:
        finder, events = _Finder(topology), []
        for number, event in enumerate(self.events or ()):
            base = below(place, f"events[{number}]")
            lost = finder.lost(event.failed or Failed(), f"{base}.failed")
            changes = finder.changes(event.links, base)
            topology.changed(links=changes, place=base)
            columns = [(tuple(np.sort(ids).tolist()), rate, latency) for ids, rate, latency in changes]
            events.append(LinkEvent(event.at, tuple(np.unique(lost).astype(int).tolist()), tuple(columns)))
        return replace(topology, events=tuple(events), reroute_ps=self.reroute_delay or 0)


def below(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


class _Finder:
    """Finds vertices by number or name, and links by their ends."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    @cached_property
    def names(self) -> dict[str, int]:
        names = (*map(str, range(self.topology.npus)), *self.topology.switch_names)
        return {name: vertex for vertex, name in enumerate(names)}

    def vertex(self, item: Any, place: str, what: str = "a vertex") -> int:
        topology = self.topology
        if isinstance(item, int):
            number = item if 0 <= item < topology.vertices else None
        else:
            number = self.names.get(item)
        if number is not None and (what == "a vertex" or (number < topology.npus) == (what == "an NPU")):
            return number
        names = [prefix if count is None else f"{prefix}0" for prefix, count in topology.switches]
        switches = f", switches are named e.g. {', '.join(names[:3])}" if names else ", there are no switches"
        remedy = f"NPUs are numbered 0 to {topology.npus - 1}{switches}"
        raise TopologyError(place, f"{shown(item)} is not {what} of the topology", remedy)

    def switches(self, item: Any, place: str, *, needed: bool) -> list[int]:
        """A switch, or all of a common name; an unknown name is refused if it is `needed`."""
        topology, first = self.topology, self.topology.npus
        for name, count in topology.switches:
            last = first + (1 if count is None else count)
            if count is not None and item == name:
                return [*range(first, last)]
            first = last
        if isinstance(item, str) and item not in self.names:
            if not needed:
                return []
            names = [*(name for name, count in topology.switches if count), *topology.switch_names[:4096]]
            raise TopologyError(place, f"{topology.name} has no switch {shown(item)}", did_you_mean(item, names))
        return [self.vertex(item, place, "a switch")]

    def changes(self, links: Iterable[Override], place: str) -> list[tuple[np.ndarray, Fraction | None, int | None]]:
        """Links that change, and their new bandwidth and latency, as `Topology.changed` takes them."""
        return [
            (self.links(link, below(place, f"links[{i}]")), link.bandwidth, link.latency)
            for i, link in enumerate(links)
        ]

    def lost(self, failed: Failed, place: str) -> np.ndarray:
        """Ids of the links that are named as failed."""
        return np.concatenate([(), *(self.links(link, f"{place}.links[{i}]") for i, link in enumerate(failed.links))])

    def links(self, link: Link, place: str) -> np.ndarray:
        """Ids of the links between two vertices."""
        x, y = self.vertex(link.source, place), self.vertex(link.to, place)
        hits = self._between(x, y)
        if link.directions == "both":
            hits = np.concatenate([hits, self._between(y, x)])
        if len(hits):
            return hits
        topology = self.topology
        source, target = topology.vertex_name(x), topology.vertex_name(y)
        near = ", ".join(topology.vertex_name(v) for v in np.unique(topology.dst[topology.src == x]).tolist()[:8])
        remedy = f"{source} is linked to {near}" if near else "name the two ends of a link"
        raise TopologyError(place, f"there is no link from {source} to {target}", remedy)

    def _between(self, a: int, b: int) -> np.ndarray:
        order, keys = self.topology.by_ends
        low, high = np.searchsorted(keys, np.array([0, 1]) + a * self.topology.vertices + b)
        return order[low:high]


def link_of(model: Any) -> tuple[Any, Any]:
    """Bandwidth and latency of a model's links, from its own keys or its link preset."""
    base: Any = preset(model.link_preset).link if model.link_preset else model
    return model.bandwidth or base.bandwidth, base.latency if model.latency is None else model.latency


def needs_link(model: Any) -> None:
    """Refuse a model that has neither bandwidth and latency nor a link preset, or all of them."""
    if None not in (model.bandwidth, model.latency, model.link_preset):
        raise wrong("is written beside bandwidth and latency", "drop it, or one of them", ("link_preset",))
    for key, example in (("bandwidth", "50 GB/s"), ("latency", "500 ns")):
        if getattr(model, key) is None and model.link_preset is None:
            raise wrong(f'"{key}" is missing', f'write e.g. {key}: "{example}"')
