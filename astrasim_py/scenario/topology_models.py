"""Models of the topologies that a scenario may describe, made from the table of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)

from astrasim_py.core.fields import (
    NPU_CAP,
    Bandwidth,
    Count,
    FileName,
    Ranks,
    Text,
    Time,
    choice,
    did_you_mean,
    either,
    shown,
    whole,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.topology.hardware import preset, preset_names
from astrasim_py.topology.spec import COMMON, SHAPES, Param, ShapeSpec

_MAX_DIMS = 32


#: rank → NPU: ``linear``, ``snake`` or a list of NPUs.
Placement = either(choice("linear", "snake"), Ranks)


def _ratio(value: object) -> Fraction:
    ratio = None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= NPU_CAP:
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
    directions: choice("both", "one") = "both"


class Override(Link):
    """Another bandwidth or latency of one link."""

    bandwidth: Bandwidth | None = Field(default=None, examples=["10 GB/s"])
    latency: Time | None = None

    @model_validator(mode="after")
    def _changes_something(self):
        if self.bandwidth is None and self.latency is None:
            raise wrong("changes neither bandwidth nor latency", 'write e.g. bandwidth: "10 GB/s"')
        return self


def _pair(value: object) -> object:
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise wrong(f"{len(value)} ends of a link", "write two, e.g. [0, 1]")
        return {"from": value[0], "to": value[1]}
    return value


class Failed(StrictModel):
    """What is broken; links that go with a vertex need not be named."""

    links: tuple[Annotated[Link, BeforeValidator(_pair, json_schema_input_type=Link | tuple[Vertex, Vertex])], ...] = ()
    npus: Ranks = ()
    switches: tuple[Vertex, ...] = ()


class RoutingSpec(StrictModel):
    """How routes are chosen where several are shortest."""

    ecmp: bool = Field(default=False, description="spread pairs over equal routes by a hash")
    seed: whole(0, 2**63 - 1) = 0


class ProductDim(StrictModel):
    """One dimension of a product; the first is the innermost."""

    kind: choice("ring", "mesh", "fully_connected", "switch") = Field(examples=["ring"])
    size: Count = Field(examples=["8"])
    bandwidth: Bandwidth | None = Field(default=None, examples=["50 GB/s"])
    latency: Time | None = Field(default=None, examples=["500 ns"])
    link_preset: LinkPreset | None = None
    bidirectional: bool | None = None

    @model_validator(mode="after")
    def _complete(self):
        _needs_link(self)
        if self.bidirectional is False and self.kind != "ring":
            raise wrong("only a ring can be one-way", "delete it", ("bidirectional",))
        return self


class Edge(StrictModel):
    """A link; a number or name twice makes parallel links."""

    src: Vertex = Field(examples=["0"])
    dst: Vertex = Field(examples=["1"])
    bandwidth: Bandwidth = Field(examples=["50 GB/s"])
    latency: Time = Field(examples=["500 ns"])
    directions: choice("both", "one") | None = None


def _needs_link(model: Any) -> None:
    for key, example in (("bandwidth", "50 GB/s"), ("latency", "500 ns")):
        if getattr(model, key) is None and model.link_preset is None:
            raise wrong(f'"{key}" is missing', f'write e.g. {key}: "{example}"')


def _plain(value: Any) -> Any:
    """A model as a mapping of what was written (pydantic's own would turn fractions into text)."""
    if isinstance(value, StrictModel):
        fields = type(value).model_fields
        given = {**value.__dict__, **(value.model_extra or {})}
        names = {name: fields[name].alias or name if name in fields else name for name in given}
        written = [key for key, item in given.items() if item is not None and key in value.model_fields_set]
        return {names[key]: _plain(given[key]) for key in written}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


class TopologyBase(StrictModel):
    """What every topology may say."""

    placement: Placement | None = None
    links: tuple[Override, ...] | None = Field(default=None, description=COMMON["links"].about)
    failed: Failed | None = Field(default=None, description=COMMON["failed"].about)
    routing: RoutingSpec | None = Field(default=None, description=COMMON["routing"].about)
    unwind: Count | None = Field(default=None, description=COMMON["unwind"].about, examples=["2"])

    def parameters(self) -> dict[str, Any]:
        """What `topology.spec.build` reads."""
        return {key: value for key, value in _plain(self).items() if key != "placement"}


_TYPES: dict[str, tuple[Any, str]] = {
    "count": (Count, "8"),
    "whole": (whole(0, NPU_CAP), "0"),
    "sizes": (Annotated[tuple[Count, ...], Field(min_length=1, max_length=_MAX_DIMS)], "[8, 8]"),
    "bool": (bool, "true"),
    "ratio": (Ratio, '"3:1"'),
    "bandwidth": (Bandwidth, "50 GB/s"),
    "latency": (Time, "500 ns"),
    "bandwidths": (either(Bandwidth, tuple[Bandwidth, ...]), "50 GB/s"),
    "latencies": (either(Time, tuple[Time, ...]), "500 ns"),
    "dims": (
        Annotated[tuple[ProductDim, ...], Field(min_length=1, max_length=_MAX_DIMS)],
        "[{kind: ring, size: 8, bandwidth: 50 GB/s, latency: 500 ns}]",
    ),
    "edges": (tuple[Edge, ...], "[{src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns}]"),
    "file": (FileName, "topology.csv"),
    "link_preset": (LinkPreset, "nvlink3"),
}


def _field(param: Param, *, required: bool) -> tuple[Any, Any]:
    kind, example = (choice(*param.choices), param.choices[0]) if param.choices else _TYPES[param.kind]
    more = {"description": param.about or None, "examples": [example]}
    return (kind, Field(**more)) if required else (kind | None, Field(default=None, **more))


class _Shape(TopologyBase):
    @model_validator(mode="after")
    def _complete(self):
        shape = SHAPES[self.shape]
        given = {key: value for key in shape.params if (value := getattr(self, key)) is not None}
        lacking = shape.missing(given)
        if set(lacking) == {"file", "edges"}:
            lacking = ("file",)
        for key in lacking:
            example = _TYPES[shape.params[key].kind][1]
            raise wrong(f'"{key}" is missing', f'write e.g. {key}: "{example}"')
        return self


def _model(shape: ShapeSpec) -> type[TopologyBase]:
    fields = {key: _field(param, required=param.required and not param.unless) for key, param in shape.params.items()}
    title = "".join(part.capitalize() for part in shape.name.split("_"))
    about = shape.about[:1].upper() + shape.about[1:]
    return create_model(
        title, __base__=_Shape, __doc__=f"{about}.", shape=(Literal[shape.name], Field(examples=[shape.name])), **fields
    )


@cache
def _partial(shape: str) -> type[TopologyBase]:
    """The keys of a shape, none of them required: the preset has them."""
    fields = {key: _field(param, required=False) for key, param in SHAPES[shape].params.items()}
    return create_model(f"{shape}_preset", __base__=TopologyBase, preset=(Text, ...), **fields)


_MODELS = {name: _model(shape) for name, shape in SHAPES.items()}


class Preset(TopologyBase):
    """A machine whose figures ship with the package; any key of its shape may be given anew."""

    model_config = ConfigDict(extra="allow")

    preset: Annotated[str, WithJsonSchema({"enum": list(preset_names("topology"))})] = Field(examples=["dgx_a100"])


def _with_preset(value: Any, info) -> Any:
    names = preset_names("topology")
    if value["preset"] not in names:
        raise wrong(
            f"there is no preset {shown(value['preset'])}", did_you_mean(str(value["preset"]), names), ("preset",)
        )
    data = preset(value["preset"], "", "topology").topology
    return _partial(data["shape"]).model_validate(value, context=info.context)


class ForeignShape(TopologyBase):
    """A shape that another package provides; its own parameters are passed on as they are."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"properties": {"shape": {"not": {"enum": sorted(SHAPES)}}}}
    )

    shape: Text


def _other_shape(value: Any) -> Any:
    from astrasim_py.core.registry import names

    shape = value["shape"]
    if isinstance(shape, str) and shape in names("shape"):
        return value
    raise wrong(f"{shown(shape)} is not a shape", did_you_mean(str(shape), (*SHAPES, *names("shape"))), ("shape",))


def _refuse(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise wrong(f"{shown(value)} is not a mapping", "write e.g. {shape: ring, npus: 8, …}")
    if "shape" in value:
        raise wrong("a preset has its own shape", "delete shape or preset", ("preset",))
    raise wrong("says neither shape nor preset", "write e.g. shape: ring")


def _tag(value: object) -> str:
    if not isinstance(value, Mapping) or ("shape" in value) == ("preset" in value):
        return "<refused>"
    if "preset" in value:
        return "<preset>"
    shape = value["shape"]
    return f"<{shape if isinstance(shape, str) and shape in _MODELS else 'other'}>"


_CHOICES = [Annotated[model, Tag(f"<{name}>")] for name, model in _MODELS.items()]
_CHOICES += [
    Annotated[Any, PlainValidator(_with_preset, json_schema_input_type=Preset), Tag("<preset>")],
    Annotated[ForeignShape, BeforeValidator(_other_shape, json_schema_input_type=ForeignShape), Tag("<other>")],
    Annotated[Any, BeforeValidator(_refuse), WithJsonSchema({"not": {}}), Tag("<refused>")],
]
TopologySpec = Annotated[reduce(or_, _CHOICES), Discriminator(_tag)]
