"""What an exploration is: the keys under ``explore:``, and the cluster on which it is priced and simulated."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, ValidationError, ValidationInfo, WithJsonSchema

from astrasim_py.builders.registry import build
from astrasim_py.core.document import Mark, Value, join, read_document
from astrasim_py.core.errors import ScenarioError, UnitError
from astrasim_py.core.fields import Count, FileText, Size, Text, choice, did_you_mean, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example, mistakes, tuples
from astrasim_py.core.units import parse_size
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.preparation.network_costs import network_costs, select_of
from astrasim_py.preparation.prepare import topology_of
from astrasim_py.preparation.training import npu_of
from astrasim_py.preparation.training_costs import TrainingCosts, training_costs
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.check import confined
from astrasim_py.scenario.expand import Point, expand
from astrasim_py.scenario.load import LoadedScenario, check_document, placed
from astrasim_py.scenario.overrides import apply_override
from astrasim_py.scenario.schema import Scenario
from astrasim_py.scenario.workload_models import SoftwareKey, StateKey
from astrasim_py.system.compatible import TRAINING_FORM, exclusions
from astrasim_py.topology.grid import group_dims
from astrasim_py.topology.hardware import preset_names
from astrasim_py.topology.model import Topology
from astrasim_py.training.memory import Reserve
from astrasim_py.training.models import NamedModel
from astrasim_py.training.network import NetworkCosts
from astrasim_py.training.prices import Prices
from astrasim_py.training.schedules import SCHEDULES
from astrasim_py.training.software import DEFAULT, IDEAL, missing_keys
from astrasim_py.training.state_keys import OwnSoftware, named_software
from astrasim_py.training.strategy import ATTENTIONS, ELEMENT, GRADIENTS, Overlap, Recomputation
from astrasim_py.training.system import System, system_of

#: Keys of a scenario that may stand under ``explore`` instead.
_SCENARIO_KEYS = ("topology", "compute", "network", "algorithms", "collectives", "semantics")
#: Keys of an exploration that its software may set.
_OF_SOFTWARE = ("attention", "grad_dtype", "fused_loss", "fused_norms", "overlap", "stage_cut")
#: Keys of a scenario that an exploration writes itself.
_OWN_KEYS = ("workload", "jobs", "compare", "noise", "nic", "repeat", "sweep", "plots", "groups", "ranks", "stragglers")
OBJECTIVES = ("time", "tokens", "memory")
#: Values of the former key ``rates`` → software.
_RATES = {"nominal": IDEAL, "measured": DEFAULT}


def _listed(value: object) -> object:
    """A list of different values; ``auto`` is None."""
    if value == "auto":
        return None
    items = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not items:
        raise wrong("an empty list", "write at least one value, or auto")
    for place, item in enumerate(items):
        if item is None or item in items[:place]:
            raise wrong(f"{shown(item)} {'is not a value' if item is None else 'appears twice'}", "drop it", (place,))
    return items


_T = TypeVar("_T")
#: Of a field that takes one value, a list of them, or ``auto``.
_Values: TypeAlias = Annotated[tuple[_T, ...] | None, BeforeValidator(_listed)]
_Sequences: TypeAlias = Annotated[int, whole(1, 2**31 - 1)]


def _reserve(value: object) -> Reserve:
    remedy = "write a size such as 4 GiB, a part such as 10 %, or 0.1"
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value.strip()) if isinstance(value, str) else None
    part = float(percent[1]) / 100 if percent else value
    if isinstance(part, int | float) and not isinstance(part, bool):
        if not 0 <= part < 1:
            raise wrong(f"{shown(value)} is not a part of the memory", remedy)
        return Reserve(float(part))
    try:
        return Reserve(0.0, parse_size(value))
    except UnitError:
        raise wrong(f"{shown(value)} is not a reserve of memory", remedy) from None


#: What stays free of an NPU's memory: a size, a percentage, or a part.
_Reserve: TypeAlias = Annotated[
    Reserve,
    PlainValidator(_reserve),
    WithJsonSchema({"type": ["string", "number"], "examples": ["4 GiB", "10 %", 0.1]}),
]


class Simulate(StrictModel):
    """Which configurations are simulated, and how."""

    _place = "explore.simulate"

    top: Annotated[int, whole(0, 1000)] = Field(default=0, description="this many of the best")
    fold: bool = Field(default=False, description="one rank for all that do the same")


class WhatIf(StrictModel):
    """Factors on the rates of the machine, and other changes, each explored again."""

    _place = "explore.what_if"

    nic: Annotated[float, Field(gt=0)] = 2.0
    nvlink: Annotated[float, Field(gt=0)] = 2.0
    memory_bandwidth: Annotated[float, Field(gt=0)] = 2.0
    flops: Annotated[float, Field(gt=0)] = 2.0
    expanded_memory: Size = Field(default=480 * 10**9, description="memory beyond the NPU's, at a quarter of its rate")


class Explore(StrictModel):
    """Keys under ``explore:``. Lists are combined with each other; ``auto`` is all that may make sense."""

    _place = "explore"

    model: NamedModel = example("megatron-1t")
    gbs: _Values[_Sequences] = Field(default=None, description="sequences of an iteration")
    seq: _Values[_Sequences] = Field(default=(2048,), description="tokens of a sequence")
    tp: _Values[Count] = Field(default=None, description="tensor parallel ranks; auto: up to a node")
    pp: _Values[Count] = Field(default=None, description="pipeline stages; auto: up to the number of layers")
    cp: _Values[Count] = Field(default=(1,), description="context parallel ranks; auto: up to a node")
    ep: _Values[Count] = Field(default=(1,), description="expert parallel ranks; auto: divisors of the experts")
    etp: _Values[Count] = Field(default=(1,), description="tensor parallel ranks of an expert")
    vp: _Values[Count] = Field(default=(1,), description="chunks of layers per pipeline rank; auto: up to 8 of them")
    zero: _Values[Annotated[int, whole(0, 3)]] = Field(default=(0,), description="ZeRO stages; auto: all")
    mbs: _Values[Count] = Field(default=None, description="sequences of a microbatch; auto: powers of two up to 16")
    recompute: _Values[Recomputation] = Field(
        default=("none",), description="none, light, attn, half, selective_op, full, or a part"
    )
    sp: _Values[bool] = Field(default=(True,), description="sequence parallel, where tp is more than 1")
    schedule: _Values[Annotated[str, choice(*SCHEDULES)]] = Field(
        default=None, description="auto: 1f1b, or interleaved where vp is more than 1"
    )
    dtype: Annotated[str, choice(*ELEMENT)] = "bf16"
    attention: Annotated[str, choice(*ATTENTIONS)] = "auto"
    grad_dtype: Annotated[str, choice(*GRADIENTS)] | None = None
    fused_loss: bool = False
    fused_norms: bool = True
    stage_cut: Annotated[str, choice("layers", "cost")] = Field(
        default="layers", description="cost: of dense models with a chunk for each pipeline rank"
    )
    overlap: Overlap = Overlap()
    objective: Annotated[str, choice(*OBJECTIVES)] = Field(
        default="time", description="time of a step, tokens/s, or memory"
    )
    memory: Annotated[str, choice("fit", "ignore")] = Field(
        default="fit", description="refuse what does not fit, or price it"
    )
    memory_reserve: _Reserve = Field(
        default=Reserve(),
        description="what stays free of an NPU's memory where a configuration counts as a fit: a size, or a part",
    )
    software: SoftwareKey | None = Field(
        default=None, description="as in a scenario's workload: pytorch by default, or ideal"
    )
    state: StateKey | None = Field(default=None, description="as in a scenario's workload: sound by default")
    rows: Annotated[int, whole(1, 10**6)] = Field(default=1000, description="rows of the table: the best")
    baseline: Text | None = Field(default=None, description="configuration that figures compare with, e.g. tp=8,pp=4")
    simulate: Simulate = Simulate()
    what_if: WhatIf = WhatIf()
    topology: Any = Field(default=None, description="as in a scenario's topologies")
    compute: Any = Field(default=None, description="as in a scenario; by default the preset of the topology")
    network: Any = Field(default=None, description="as in a scenario")
    algorithms: Any = Field(default=None, description="as in a scenario")
    collectives: Any = Field(default=None, description="as in a scenario")
    semantics: Any = Field(default=None, description="as in a scenario")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping):
            return value
        value = dict(value)
        if "reserve" in value and "memory_reserve" not in value:
            value["memory_reserve"] = value.pop("reserve")  # its first name
        if "rates" in value:
            rates = value.pop("rates")
            if rates not in _RATES:
                raise wrong(f"{shown(rates)} is not one of {', '.join(_RATES)}", "write software: ideal", ("rates",))
            if value.get("software") is not None:
                raise wrong("rates is the former key of software, which is there as well", "drop it", ("rates", "@key"))
            value["software"] = _RATES[rates]
        return value

    def _complete(self) -> None:
        if self.gbs is None:
            raise wrong('"gbs" is missing', "write e.g. gbs: 1024, or gbs: [512, 1024]")
        for key in ("seq", "cp", "etp", "sp", "recompute"):
            if getattr(self, key) is None and key != "cp":
                raise wrong(f"{key} has no auto", "write its values", (key,))


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """An exploration that is known to be right.

    `base`: the scenario without its workload, as a document. `point`: its only point. `place`: of ``explore``.
    `former`: what is written in former keys, each with the present ones. `places`: of keys that are written.
    """

    name: str
    path: Path
    keys: Explore
    base: Value
    point: Point
    place: str
    topology: Topology
    former: tuple[tuple[str, str], ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """NPUs of the cluster that are alive."""
        return len(self.topology.alive)

    @cached_property
    def costs(self) -> TrainingCosts:
        """Software and state of the machine. Raises ScenarioError, at their keys."""
        keys, machine, folder = self.keys, self.point.spec.compute.preset, Path(self.point.folder)

        def path_of(name: FileText) -> Path:
            return confined(name, folder, "state", self.point.allow_outside)

        try:
            return training_costs(keys.software, keys.state, machine, self.ranks, path_of)
        except ScenarioError as error:
            place = self.places.get(error.place, f"{self.place}.{error.place}")
            raise ScenarioError(place, error.problem, error.remedy) from None

    def calibrated(self, changes: Mapping[str, float]) -> "Exploration":
        """The same with other constants of its software. Raises ScenarioError: they make no sense, or it is ideal."""
        written = self.keys.software or DEFAULT
        base = written.base if isinstance(written, OwnSoftware) else written
        own = OwnSoftware(base=base, **changes)
        return replace(self, keys=self.keys.model_copy(update={"software": own}))

    @cached_property
    def system(self) -> System:
        """The cluster as closed forms see it, with the latencies of its links."""
        npu = npu_of(self.point.spec.compute, self.keys.dtype)
        if npu is None:
            raise ScenarioError(self.place, "the NPU is not known", "write e.g. compute: {preset: dgx_h100}")
        kept_free = self.keys.memory_reserve.of(npu.memory or 0)
        if npu.memory and kept_free >= npu.memory:
            problem = f"a reserve of {kept_free / 1e9:.1f} GB leaves nothing of {npu.memory / 1e9:.1f} GB"
            raise ScenarioError(f"{self.place}.memory_reserve", problem, "write less, e.g. 4 GiB or 10 %")
        return replace(system_of(self.topology, npu), state=self.costs.state, gather_gb_s=self.costs.gather_gb_s)

    @cached_property
    def prices(self) -> Prices:
        """Times of what is simulated: collectives as the scenario's algorithms lay them on the links."""
        constants = self.costs.software.constants
        return Prices(self.system, self.keys.dtype, self.keys.attention, constants, network=self.network)

    @cached_property
    def network(self) -> NetworkCosts:
        """What collectives take with the scenario's algorithms; see `select_of`."""
        run = Preparation(point=self.point)
        job = JobSection(run=run, topology=self.topology, spec=self.point.spec, key="", placement=None)
        return network_costs(self.topology, select_of(job), self.costs)

    @cached_property
    def hierarchical(self) -> NetworkCosts:
        """The same with phases along the dimensions of the topology, but for all-to-all."""

        def select(collective: str, role: str, npus: tuple[int, ...]) -> Algorithm:
            if collective == "all_to_all":
                return self.network.select(collective, role, npus)
            return build("hierarchical", collective, len(npus), dims=group_dims(self.topology, npus))

        return network_costs(self.topology, select, self.costs)

    def simulation(self, configurations: Mapping[str, Mapping[str, Any]]) -> LoadedScenario:
        """The scenario that simulates configurations: label → keys of a training."""
        mark = Mark("explore")
        sweep = {"configuration": {label: dict(keys) for label, keys in configurations.items()}}
        costs = {key: getattr(self.keys, key) for key in ("software", "state")}
        given = {
            key: value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
            for key, value in costs.items()
            if value is not None
        }
        sections = {
            "name": f"{self.name[:54]}-simulated",
            "workload": {"training": "$configuration", "memory": "ignore", **given},
            "sweep": sweep,
            "record": "summary",
        }
        return check_document(
            _with(self.base, {key: _value(value, mark, key) for key, value in sections.items()}), self.path
        )


def load_exploration(path: str, overrides: Sequence[str] = ()) -> Exploration:
    """Read an exploration: a YAML file whose key is ``explore``, or a scenario that has it instead of a workload.

    Raises ScenarioError, ErrorList: all that is wrong, each with ``file:line:column: path``. `overrides` are those of
    ``--set``.
    """
    document = read_document(path)
    if "explore" not in document.mapping:
        raise ScenarioError(path, 'there is no "explore"', "write explore: {model: llama3-70b, gbs: 512, topology: …}")
    for text in overrides:
        document = apply_override(document, text, ("explore", *Scenario.model_fields))
    explore = document.mapping["explore"]
    for key in document.mapping:
        if key in _OWN_KEYS:
            raise ScenarioError(document.key_place(key), "an exploration writes it itself", "drop it")
    try:
        keys = Explore.model_validate(tuples(explore.plain()), context={"written": True})
    except ValidationError as error:
        raise placed(next(mistakes(error)), explore) from None
    keys = _completed(keys)
    name = document.get("name")
    base = _base(document, explore, Path(path).stem if name is None else str(name.data))
    loaded = check_document(_with(base, {"workload": _value(["barrier"], explore.mark, "workload")}), Path(path))
    point = expand(loaded)[0]
    for exclusion in exclusions({"network": point.spec.network}, (TRAINING_FORM,)):
        raise ScenarioError(point.place(exclusion.place), exclusion.problem, exclusion.remedy)
    rates = explore.get("rates")
    former = () if rates is None else ((f"rates: {rates.data}", f"software: {keys.software}"),)
    exploration = Exploration(
        name=loaded.name,
        path=Path(path),
        keys=keys,
        base=base,
        point=point,
        place=explore.place,
        topology=topology_of(point),
        former=former,
        places={key: value.place for key, value in explore.mapping.items()},
    )
    _ = exploration.system  # its errors come first
    return exploration


def _completed(keys: Explore) -> Explore:
    """The keys with what the software does where the user does not say."""
    missing = missing_keys(named_software(keys.software or DEFAULT), keys.model_fields_set)
    shared = {key: value for key, value in missing.items() if key in _OF_SOFTWARE}
    if "overlap" in shared:
        shared["overlap"] = Overlap(**shared["overlap"])
    return keys.model_copy(update=shared)


def _base(document: Value, explore: Value, name: str) -> Value:
    """The scenario without a workload: keys of the document, and those that stand under ``explore``."""
    keys = {key: value for key, value in document.mapping.items() if key != "explore"}
    keys["name"] = document.get("name") or Value(name, explore.mark, "name", raw=name)
    for key in _SCENARIO_KEYS:
        value = explore.get(key)
        if value is None:
            continue
        into = "topologies" if key == "topology" else key
        if into in keys:
            raise ScenarioError(explore.key_place(key), f"{into} is there as well", "write one of them")
        keys[into] = Value({"cluster": value}, value.mark, "topologies") if key == "topology" else value
    if "topologies" not in keys:
        raise ScenarioError(explore.place, '"topology" is missing', "write e.g. topology: {preset: dgx_a100, nodes: 8}")
    machine = explore.get("topology", "preset")
    if "compute" not in keys and machine is not None:
        if machine.data not in preset_names():
            presets = preset_names("topology")
            raise ScenarioError(
                machine.place, f"there is no preset {shown(machine.data)}", did_you_mean(str(machine.data), presets)
            )
        keys["compute"] = _value({"preset": machine.data}, machine.mark, "compute")
    return Value(keys, document.mark, key_marks=document.key_marks)


def _with(base: Value, more: Mapping[str, Value]) -> Value:
    return Value({**base.mapping, **more}, base.mark, key_marks=base.key_marks)


def _value(plain: Any, mark: Mark, path: str) -> Value:
    """Plain values as a document, all at one place."""
    if isinstance(plain, Mapping):
        return Value({str(key): _value(item, mark, join(path, str(key))) for key, item in plain.items()}, mark, path)
    if isinstance(plain, list | tuple):
        return Value([_value(item, mark, join(path, place)) for place, item in enumerate(plain)], mark, path)
    raw = str(plain).lower() if isinstance(plain, bool) else "" if plain is None else str(plain)
    return Value(plain, mark, path, raw=raw)
