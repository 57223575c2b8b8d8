"""`build`: a topology from keys and values, as a scenario writes them.

``shape`` names one of `shapes.SHAPES` or a shape of another package, ``preset`` a machine of this package;
any key can be overridden: ``{preset: dgx_a100, nodes: 2}``.
"""

from collections.abc import Callable, Mapping
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.fields import CodeOrName, CodeText, did_you_mean, shown, wrong
from astrasim_py.core.registry import made_by, names, provided
from astrasim_py.core.strict_model import mistakes, tuples
from astrasim_py.topology.hardware import preset, preset_names
from astrasim_py.topology.model import Topology
from astrasim_py.topology.shapes import SHAPES
from astrasim_py.topology.spec import Shape, below


class Preset(Shape):
    """A machine of the package; any key of its shape may be replaced."""

    model_config = ConfigDict(extra="allow")

    preset: Annotated[str, WithJsonSchema({"enum": list(preset_names("topology"))})] = Field(examples=["dgx_a100"])


@cache
def _preset(name: str) -> tuple[Mapping[str, Any], Shape]:
    """Keys of a preset as written in its file, and the shape that they give."""
    keys = preset(name).topology or {}
    shape = SHAPES[keys["shape"]].model_validate(keys, context={"written": True})
    if shape.switches is not None:
        shape = shape.model_copy(update={"switches": shape.switches.model_copy(update={"of_machine": True})})
    return keys, shape


def _with_preset(value: Any, info: ValidationInfo) -> Shape:
    presets = preset_names("topology")
    if value["preset"] not in presets:
        problem = f"there is no preset {shown(value['preset'])}"
        raise wrong(problem, did_you_mean(str(value["preset"]), presets), ("preset",))
    keys, base = _preset(value["preset"])
    changes = {key: item for key, item in value.items() if key != "preset"}
    if "link_preset" in changes:
        keys = {key: item for key, item in keys.items() if key not in ("bandwidth", "latency")}
    new = type(base).model_validate({**keys, **changes}, context=info.context)
    # The scenario, not the preset, decides how bandwidths are read (GB or GiB).
    values = {key: getattr(base if key in keys and key not in changes else new, key) for key in type(base).model_fields}
    return type(base).model_construct(set(changes), **values)  # the fields that are set are those that a person wrote


class ForeignShape(Shape):
    """A shape of another package or of user code; its parameters are passed on unchanged."""

    model_config = ConfigDict(
        extra="allow", json_schema_extra={"properties": {"shape": {"not": {"enum": [*sorted(SHAPES)]}}}}
    )

    shape: CodeOrName = Field(description="name of a shape, or file.py:name")
    _function: Callable | None = PrivateAttr(None)

    def calling(self, function: Callable) -> "ForeignShape":
        shape = self.model_copy()
        shape._function = function
        return shape

    def make(self, place: str) -> Topology:
        if self._function is None and isinstance(self.shape, CodeText):
            raise TopologyError(below(place, "shape"), f"{self.shape} is code", "call it, or name it in a scenario")
        function = self._function or provided("shape", self.shape)
        return made_by(function, f"shape {self.shape}", Topology, TopologyError, place, **(self.model_extra or {}))


#: Shape of the network of ASTRA-sim's files; a scenario with such a workload has it.
ASTRA_SIM = "astra_sim"


def _other_shape(value: Any) -> Any:
    shape = value["shape"]
    if isinstance(shape, str) and (shape in (ASTRA_SIM, *names("shape")) or ".py:" in shape):
        return value
    raise wrong(f"{shown(shape)} is not a shape", did_you_mean(str(shape), (*SHAPES, *names("shape"))), ("shape",))


def _refuse(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise wrong(f"{shown(value)} is not a mapping", "write e.g. {shape: ring, npus: 8, …}")
    if "shape" in value:
        raise wrong("a preset has its own shape", "delete shape or preset", ("preset",))
    raise wrong("has neither shape nor preset", "write e.g. shape: ring")


def _tag(value: object) -> str:
    if not isinstance(value, Mapping) or ("shape" in value) == ("preset" in value):
        return "<refused>"
    if "preset" in value:
        return "<preset>"
    shape = value["shape"]
    return f"<{shape if isinstance(shape, str) and shape in SHAPES else 'other'}>"


_CHOICES = [Annotated[model, Tag(f"<{name}>")] for name, model in SHAPES.items()]
_CHOICES += [
    Annotated[Any, PlainValidator(_with_preset, json_schema_input_type=Preset), Tag("<preset>")],
    Annotated[ForeignShape, BeforeValidator(_other_shape, json_schema_input_type=ForeignShape), Tag("<other>")],
    Annotated[Any, BeforeValidator(_refuse), WithJsonSchema({"not": {}}), Tag("<refused>")],
]
TopologySpec: Any = Annotated[reduce(or_, _CHOICES), Discriminator(_tag)]


@cache
def _adapter() -> TypeAdapter:
    return TypeAdapter(TopologySpec)


def build(spec: Mapping[str, Any], place: str = "", *, name: str = "", written: bool = False) -> Topology:
    """Make a topology from keys and values: ``shape`` or ``preset``, the keys of that shape, and those that all have.

    `place`: prefix of the key's path in errors. `name`: by default from the shape. `written`: whether a user wrote the
    keys; else bandwidths may be `fractions.Fraction` in bytes per second, and latencies whole ps. Raises TopologyError:
    a wrong key or value; too many NPUs or links, or a pair of NPUs without a path.
    """
    try:
        shape = _adapter().validate_python(tuples(spec), context={"written": written})
    except ValidationError as error:
        mistake = next(mistakes(error))
        raise TopologyError(mistake.path(place), mistake.problem, mistake.remedy) from None
    return shape.build(place, name=name)
