"""The keys of a scenario as strict models, and the JSON Schema made from them.

The models are validated once variables (``$name``) have their values, so every field has its plain type here;
`json_schema` adds the variables back for editors.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from astrasim_py.core.by_need import ByNeed
from astrasim_py.core.choices import ENGINES, LEVELS
from astrasim_py.core.fields import Count, Name, NewFileName, Ranks, Text, Time, choice, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.scenario.algorithm_models import AlgorithmSpecs
from astrasim_py.scenario.job_models import GroupSpec, Stragglers
from astrasim_py.scenario.plot_spec import PlotSpec
from astrasim_py.scenario.variables import STUDY_KEYS
from astrasim_py.scenario.workload_models import WorkloadSpec
from astrasim_py.system.machine_models import (
    NO_MEMORY,
    Collectives,
    Limits,
    MemoryModel,
    NetworkModel,
    NicModel,
    NpuModel,
)
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.from_keys import TopologySpec
from astrasim_py.topology.spec import Placement

if TYPE_CHECKING:
    from astrasim_py.system.noise import Noise
else:
    Noise = Annotated[Any, ByNeed("astrasim_py.system.noise:Noise")]

#: Version of this format; raised when an old scenario would mean something else.
SCENARIO_SCHEMA = 1


class JobSpec(StrictModel):
    """One of several jobs that share the network, on NPUs of its own."""

    workload: WorkloadSpec = Field(examples=["[{all_reduce: {size: 64 MiB}}]"])
    placement: Ranks | None = Field(
        default=None,
        description="rank → NPU; by default the next NPUs of the scenario's placement",
        examples=['["0-7"]'],
    )
    ranks: Count | None = Field(default=None, description="number of ranks, where it follows from nothing else")
    groups: dict[Name, GroupSpec] = Field(default_factory=dict)
    algorithms: AlgorithmSpecs = Field(default_factory=dict)
    stragglers: Stragglers = Field(default_factory=Stragglers)
    arrival: Time = Field(default=0, description="earliest start of its ranks", examples=["5 ms"])
    iterations: Annotated[int, whole(1, 2**24)] = Field(default=1, description="how often it does its workload")
    background: bool = Field(default=False, description="the run does not wait for its end")


Engine = Annotated[str, choice(*ENGINES)]
Level = Annotated[str, choice(*LEVELS)]


def _axis(value: object) -> object:
    if isinstance(value, Mapping):
        if not value:
            raise wrong("no values", "write label: value for each")
        return value
    if not isinstance(value, list | tuple):
        return (value,)
    if not value:
        raise wrong("no values", "write e.g. [1 MiB, 16 MiB]")
    for i, item in enumerate(value):
        if isinstance(item, Mapping):
            raise wrong("a mapping has no short name", "write the axis as {label: value, …}", (i,))
        if item is None:
            raise wrong("null is not a value", "write a value", (i,))
    return value


#: Values of one swept key: a list of plain values, or label → value.
Axis = Annotated[
    Any,
    BeforeValidator(_axis),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "minItems": 1, "items": {"type": ["string", "number", "boolean", "array"]}},
                {"type": "object", "minProperties": 1},
                {"type": ["string", "number", "boolean"]},
            ],
            "description": "a list of values, or label: value for values that are not plain",
        }
    ),
]


def _keys_together(value: object) -> object:
    if not isinstance(value, Mapping) or not value:
        raise wrong(f"{shown(value)} is not a group of keys", "write {size: […], npus: […]}")
    return value


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


ZipGroups = Annotated[
    tuple[Annotated[dict[str, Axis], BeforeValidator(_keys_together)], ...],
    BeforeValidator(_one_or_more),
    WithJsonSchema(
        {
            "anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}],
            "description": "keys that vary together: {size: [1 MiB, 2 MiB], npus: [8, 16]}",
        }
    ),
]


class Sweep(StrictModel):
    """Keys and the values they take: every combination, but for the keys under `zip`, which vary together.

    A key is a variable, used as `$key` elsewhere; or `topology`, `placement`, `ranks`, `semantics`; or a path
    such as `network.model`, as with `--set`.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Axis]

    zip: ZipGroups | None = None


#: Most runs of a point with other seeds.
MAX_REPEATS = 10_000


class Scenario(StrictModel):
    """A scenario: what to simulate, over which values, and which figures to draw."""

    model_config = ConfigDict(title="astrasim_py scenario")

    name: NewFileName | None = Field(
        default=None, description="of the folder of results; that of the file by default", examples=["ring_vs_torus"]
    )
    title: Text | None = None
    description: Text | None = None
    topologies: dict[Name, TopologySpec] = Field(
        min_length=1, examples=["{ring: {shape: ring, npus: 8, bandwidth: 50 GB/s, latency: 500 ns}}"]
    )
    topology: Name | None = Field(default=None, description="which of the topologies; needed if there are several")
    placement: Placement | None = Field(default=None, description="rank → NPU; before that of the topology")
    ranks: Count | None = Field(default=None, description="number of ranks; one per NPU by default")
    workload: WorkloadSpec | None = None
    groups: dict[Name, GroupSpec] = Field(default_factory=dict)
    algorithms: AlgorithmSpecs = Field(default_factory=dict)
    collectives: Collectives | None = Field(
        default=None,
        description="cut collectives into chunks that visit dimension after dimension",
        examples=["{chunks: 4}"],
    )
    stragglers: Stragglers = Field(default_factory=Stragglers)
    jobs: dict[Name, JobSpec] = Field(default={}, description="several workloads that share the network")
    compare: Annotated[str, choice("alone")] | None = Field(
        default=None, description="run each job also alone: its slowdown"
    )
    network: NetworkModel = Field(default_factory=NetworkModel)
    compute: NpuModel = Field(default_factory=NpuModel)
    memory: MemoryModel = Field(default_factory=lambda: NO_MEMORY)
    semantics: Semantics = Field(default_factory=Semantics)
    noise: Noise | None = Field(
        default=None,
        description="random times that compute nodes take longer",
        examples=["{seed: 1, compute: {exponential: 10 us}}"],
    )
    nic: NicModel | None = Field(
        default=None,
        description="costs of a message at its sender and its receiver",
        examples=["{overhead: 500 ns, gap: 50 ns}"],
    )
    engine: Engine = "auto"
    fold: bool = Field(default=False, description="simulate one rank for all, where all do the same")
    verify: Annotated[bool | str, choice(True, False, "strict")] = Field(
        default=True, description="verification of injected algorithms"
    )
    record: Level = "links"
    limits: Limits = Field(default_factory=Limits)
    repeat: Annotated[int, whole(1, MAX_REPEATS, example=20)] = Field(
        default=1, description="runs of every point with random values, with other seeds"
    )
    sweep: Sweep = Field(default_factory=Sweep)
    plots: tuple[PlotSpec, ...] = ()


_VARIABLE = {"$ref": "#/$defs/Variable"}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of scenario files, variables and shorthands included."""
    schema = Scenario.model_json_schema(by_alias=True, mode="validation")
    properties, definitions = schema["properties"], schema["$defs"]
    for name, definition in definitions.items():
        if name not in ("Sweep", "PlotSpec"):
            _admit_variables(definition)
    for name, sub in properties.items():
        if name not in STUDY_KEYS:
            _admit_variables(sub)
            properties[name] = _or_variable(sub)
    definitions["Semantics"] = {"anyOf": [{"enum": ["native", "astra_sim"]}, definitions["Semantics"]]}
    definitions["MscclModel"] = {"anyOf": [{"type": "boolean"}, definitions["MscclModel"]]}
    weights = {"type": "object", "additionalProperties": {"type": "number"}}
    definitions["Sizes"] = {"anyOf": [{"type": "string"}, definitions["Sizes"], weights]}
    for name in ("ProtocolLatency", "AstraSimFile"):
        definitions[name] = {"anyOf": [{"type": "string"}, definitions[name]]}
    for name in ("Model", "RecommendationModel"):
        whole = definitions[name].pop("required")
        definitions[name]["anyOf"] = [{"required": ["base"]}, {"required": whole}]
    of_an_item = definitions["Compute"]["properties"]
    definitions["Item"]["properties"] |= {key: of_an_item[key] for key in ("name", "after")}
    definitions["Item"]["maxProperties"] = 3
    definitions["Item"] = {"anyOf": [{"const": "barrier"}, definitions["Item"]]}
    in_place = next(iter(properties["topologies"]["anyOf"][0]["patternProperties"].values()))["anyOf"][0]
    properties["topology"]["anyOf"].append(in_place)
    properties["topology"]["description"] = "one in place, or which of the topologies, if there are several"
    properties["explore"] = {"type": "object", "description": "layouts of a training, for the verb explore"}
    schema["required"].remove("topologies")
    of_astra_sim = {"properties": {"workload": {"required": ["astra_sim"], "type": "object"}}, "required": ["workload"]}
    schema["allOf"] = [
        {"anyOf": [{"required": [key]} for key in ("workload", "jobs", "explore")]},
        {"anyOf": [*({"required": [key]} for key in ("topologies", "topology", "explore")), of_astra_sim]},
    ]
    _tidy(schema)
    definitions["Variable"] = {
        "type": "string",
        "pattern": r"\$",
        "description": "a swept value: $name, alone or inside a text",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"scenario-{SCENARIO_SCHEMA}.schema.json",
        **schema,
    }


def _admit_variables(schema: Any) -> None:
    """Let every value below be a variable as well."""
    if not isinstance(schema, dict):
        return
    for key in ("properties", "$defs", "patternProperties"):
        for name, sub in schema.get(key, {}).items():
            _admit_variables(sub)
            schema[key][name] = _or_variable(sub)
    if "patternProperties" in schema:
        schema["additionalProperties"] = False
    for key in ("additionalProperties", "items"):
        if isinstance(schema.get(key), dict):
            _admit_variables(schema[key])
            schema[key] = _or_variable(schema[key])
    for key in ("anyOf", "oneOf", "prefixItems"):
        for sub in schema.get(key, []):
            _admit_variables(sub)


def _or_variable(schema: dict[str, Any]) -> dict[str, Any]:
    if (schema.get("type") == "string" and "pattern" not in schema) or schema == _VARIABLE:
        return schema
    if "const" in schema and "anyOf" not in schema:
        return schema  # shape: ring tells the kinds of topology apart
    outer: dict[str, Any] = {
        key: schema.pop(key) for key in ("description", "default", "title", "examples") if key in schema
    }
    if "anyOf" in schema:
        return {**outer, **schema, "anyOf": [*schema["anyOf"], _VARIABLE]}
    return {**outer, "anyOf": [schema, _VARIABLE]}


def _tidy(schema: Any) -> None:
    """Drop the titles that pydantic generates, defaults that are null, and choices that no value fits."""
    if isinstance(schema, list):
        for sub in schema:
            _tidy(sub)
    if not isinstance(schema, dict):
        return
    for key in ("anyOf", "oneOf"):
        if key in schema:
            schema[key] = [sub for sub in schema[key] if sub != {"not": {}}]
    for key, sub in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            for inner in sub.values():
                if isinstance(inner, dict):
                    inner.pop("title", None)
                    if inner.get("default", 0) is None:
                        inner.pop("default")
                _tidy(inner)
        elif key not in ("default", "examples", "const", "enum", "not"):
            _tidy(sub)
