"""The parameters of a problem, for scenarios and Python code: network, NPUs, remote memory, limits.

In the context ``written``, of a scenario, quantities are text with units; Python code may pass exact numbers.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic.json_schema import SkipJsonSchema

from astrasim_py.collectives.chunks import PROTOCOL_SLOTS, max_count
from astrasim_py.core.choices import (
    ALL_REDUCE_WAYS,
    CHUNK_ROUNDINGS,
    DIMENSION_ORDERS,
    FLUID,
    NETWORK_MODELS,
    PROTOCOLS,
    QUEUEING_MODELS,
)
from astrasim_py.core.errors import TopologyError, UnitError
from astrasim_py.core.fields import (
    Bandwidth,
    CodeOrName,
    CodeText,
    ComputeRate,
    Count,
    FileText,
    MemoryBandwidth,
    Size,
    Text,
    Time,
    choice,
    did_you_mean,
    shown,
    whole,
    written,
    wrong,
)
from astrasim_py.core.registry import names
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.core.units import parse_time
from astrasim_py.system.compatible import exclusions
from astrasim_py.topology.hardware import ExpandedMemory, preset, preset_names
from astrasim_py.topology.hardware import profile as read_profile

if TYPE_CHECKING:
    from astrasim_py.topology.profile import LibraryProfile

#: Default limit of events of a run.
MAX_EVENTS = 10**9
_MOST_EVENTS = 2**62
#: Most chunks of a collective, and most queues of a dimension.
MAX_CHUNKS, MAX_QUEUES = 2**14, 1024
#: Longest time that a message costs a rank, ps: a day.
_LONGEST = 86_400 * 10**12
#: Most queue pairs of two NPUs.
MAX_QPS = 128


class ProtocolLatency(StrictModel):
    """Time that every hop takes longer, by protocol; a plain time is meant for all."""

    _place = "network.msccl.latency"

    Simple: Time = example("1 us", default=0)
    LL: Time = example("300 ns", default=0)
    LL128: Time = example("400 ns", default=0)

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping):
            return value
        if not isinstance(value, str):
            raise wrong(f"{shown(value)} is not a time", 'write e.g. "300 ns", or {LL: 300 ns}')
        try:
            parse_time(value)
        except UnitError as error:
            raise wrong(error.problem, error.remedy) from None
        return dict.fromkeys(cls.model_fields, value)


class MscclModel(StrictModel):
    """Connections of MSCCL-style runtimes, for the messages of collectives: slots, pace, latency."""

    _place = "network.msccl"

    protocol: Annotated[str, choice(*PROTOCOLS)] | None = Field(
        default=None, description="of all algorithms; by default each one's own, else Simple"
    )
    slots: Count | None = Field(
        default=None, description="messages that a connection holds; by default 2 (Simple) or 8 (LL, LL128)"
    )
    channel_bandwidth: Bandwidth | None = Field(
        default=None, description="pace of the messages of one connection", examples=["20 GB/s"]
    )
    latency_ps: ProtocolLatency = Field(
        default_factory=ProtocolLatency,
        alias="latency",
        description="what every hop takes longer",
        examples=["{LL: 300 ns}"],
    )

    def protocol_for(self, own: str) -> str:
        """Protocol of an algorithm with its own protocol `own` (empty: none)."""
        return self.protocol or own or "Simple"

    def slots_for(self, own: str) -> int:
        """Slots of a connection for an algorithm with its own protocol `own` (empty: none)."""
        return PROTOCOL_SLOTS[self.protocol_for(own)] if self.slots is None else self.slots

    def latency_for(self, own: str) -> int:
        """Ps that each hop of its messages takes longer."""
        return getattr(self.latency_ps, self.protocol_for(own))

    def max_count_for(self, algorithm: Any, size: int) -> int:
        """Chunks of an algorithm that one message holds, for a full buffer of `size` bytes."""
        return max_count(self.protocol_for(algorithm.protocol), size, algorithm.chunks)


def profile_or_file(value: object, info: ValidationInfo) -> object:
    """A profile; in a scenario a text is the name of a preset, or a `FileText` where it ends in ``.json``."""
    from astrasim_py.topology.profile import LibraryProfile

    if isinstance(value, LibraryProfile) and not written(info):
        return value
    if not isinstance(value, str):
        raise wrong(f"{shown(value)} is not the name of a profile", "write e.g. dgx_h100, or my.json")
    if value.endswith(".json") and written(info):
        return FileText(value)
    try:
        return read_profile(value)
    except TopologyError as error:
        raise wrong(f"{error.place}: {error.problem}" if error.place else error.problem, error.remedy) from None


def _on_or_off(value: object) -> object:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class NetworkKeys(TypedDict, total=False):
    """Fields of a `NetworkModel`, as Python code may give them."""

    model: str
    link_busy: str
    send_completes: str
    msccl: bool | Mapping[str, object] | MscclModel | None
    profile: "str | LibraryProfile | None"
    protocol: str | None
    switch_reduction: bool | None
    qps: int
    split: bool
    factory: Callable | None


class NetworkModel(StrictModel):
    """How messages use links."""

    _place = "network"
    _python_only = ("factory",)

    model: CodeOrName = Field(
        default="cut_through",
        description="cut_through, store_and_forward, analytical (no contention), fluid (fair shares of bandwidth), or"
        " file.py:name of your own",
        examples=["cut_through"],
    )
    link_busy: Annotated[str, choice("bytes", "latency+bytes")] = "bytes"
    send_completes: Annotated[str, choice("delivery", "injected")] = Field(
        default="delivery", description="with msccl: injected, unless it is written"
    )
    msccl: Annotated[MscclModel | None, BeforeValidator(_on_or_off)] = Field(
        default=None,
        description="connections with slots as MSCCL-style runtimes have them; true for their own defaults",
        examples=["{slots: 2}"],
    )
    profile: Annotated[Any, PlainValidator(profile_or_file), WithJsonSchema({"type": "string"})] = Field(
        default=None,
        description="what collectives of a library cost on a real machine: a preset with measured times, or a file",
        examples=["dgx_h100"],
    )
    protocol: Annotated[str, choice("fastest", *PROTOCOLS)] | None = Field(
        default=None, description="with a profile: of every collective, or the fastest one for each, which is usual"
    )
    switch_reduction: bool | None = Field(
        default=None,
        description="with a profile: whether an all_reduce may be reduced by a switch; by default if nccl chooses so",
    )
    qps: Annotated[int, whole(1, MAX_QPS, example=4)] = Field(
        default=1, description="queue pairs of two NPUs, each with a route of its own where the topology has ecmp"
    )
    split: bool = Field(
        default=False, description="whether a message is split over all queue pairs; else they take turns"
    )
    #: ``factory(engine) -> model`` of a network model of the user's own; it runs on the SimPy engine.
    factory: SkipJsonSchema[Callable | None] = None

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if written(info) and isinstance(value, Mapping) and value.get("msccl") not in (None, False):
            value = {"send_completes": "injected", **value}
        if isinstance(value, Mapping) and value.get("profile") is not None and value.get("protocol") is None:
            value = {**value, "protocol": "fastest"}
        return value

    def _complete(self) -> None:
        known = (*NETWORK_MODELS, *names("network"))
        if self.factory is None and self.model not in known and not isinstance(self.model, CodeText):
            raise wrong(f"{shown(self.model)} is not a network model", did_you_mean(self.model, known), ("model",))
        for exclusion in exclusions({"network": self}):
            raise wrong(exclusion.problem, exclusion.remedy, (exclusion.place.removeprefix("network."),))
        if self.profile is None or isinstance(self.profile, FileText):
            return
        known = tuple(self.profile.protocols | (self.profile.programs or {}) | (self.profile.plans or {}))
        if self.protocol != "fastest" and self.protocol not in known:
            problem = f"the profile has no {self.protocol}"
            raise wrong(problem, did_you_mean(str(self.protocol), ("fastest", *known)), ("protocol",))
        if not known:
            raise wrong("the profile has no protocols, programs or plans", "name another one", ("profile",))
        if self.switch_reduction and self.profile.switch is None:
            raise wrong("the profile has no reduction in a switch", "drop switch_reduction", ("switch_reduction",))

    def with_profile(self, profile: "LibraryProfile") -> "NetworkModel":
        """The model with the profile of the file that it names. Raises ScenarioError, as for a wrong value."""
        keys = {key: getattr(self, key) for key in type(self).model_fields}
        return type(self)(**keys | {"profile": profile})

    @property
    def contention(self) -> bool:
        """Whether messages delay each other on links."""
        return self.model in (*QUEUEING_MODELS, FLUID)


class NicModel(StrictModel):
    """Costs of a message at sender and receiver: LogGP's o and g."""

    _place = "nic"

    overhead: Time = Field(
        default=0, description="of every message, of its sender and of its receiver", examples=["500 ns"]
    )
    gap: Time = Field(
        default=0, description="least time between two messages that a rank sends, or receives", examples=["50 ns"]
    )

    def _complete(self) -> None:
        if not self.model_fields_set:
            raise wrong("has neither overhead nor gap", "write e.g. overhead: 500 ns")
        for key in self.model_fields_set:
            if getattr(self, key) > _LONGEST:
                raise wrong("more than a day", "write less", (key,))


class ComputeModel(StrictModel):
    """Compute rates of an NPU."""

    _place = "compute"

    preset: Text | None = Field(default=None, examples=["dgx_a100"])
    precision: Text | None = Field(default=None, description="number format of the preset's peak, e.g. bf16")
    peak: ComputeRate | None = example("312 TFLOP/s", default=None, validate_default=True)
    memory_bandwidth: MemoryBandwidth | None = example("2 TB/s", default=None, validate_default=True)
    roofline: bool = Field(
        default_factory=lambda data: data["peak"] is not None,
        description="take times from operations and bytes; by default where there is a peak",
    )

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping) and value.get("roofline", True) is None:
            return {key: given for key, given in value.items() if key != "roofline"}
        return value

    @field_validator("peak", "memory_bandwidth", "memory", "expanded_memory", check_fields=False)
    @classmethod
    def _of_preset(cls, value: Any, info: ValidationInfo) -> Any:
        name, precision = info.data.get("preset"), info.data.get("precision")
        figures = preset(name).compute if value is None and name in preset_names("compute") else None
        if figures is None:
            return value
        if info.field_name == "peak":
            return figures.peak.get(precision or next(iter(figures.peak)))
        return getattr(figures, str(info.field_name))

    def _complete(self) -> None:
        if self.preset is None:
            if self.precision is not None:
                raise wrong("precision without preset", "drop it, or name a preset", ("precision",))
        elif self.preset not in (known := preset_names("compute")):
            raise wrong(f"there is no preset {shown(self.preset)}", did_you_mean(self.preset, known), ("preset",))
        elif (figures := preset(self.preset).compute) and self.precision not in (None, *figures.peak):
            problem = f"{figures.npu} has no peak for {self.precision}"
            raise wrong(problem, f"write one of {', '.join(figures.peak)}", ("precision",))
        if self.roofline and self.peak is None:
            raise wrong("the roofline needs a peak", 'write e.g. peak: "312 TFLOP/s"', ("roofline",))


class NpuModel(ComputeModel):
    """Compute rates and memory of an NPU."""

    memory: Size | None = example("80 GB", default=None, validate_default=True)
    expanded_memory: ExpandedMemory | None = Field(default=None, validate_default=True)

    def _complete(self) -> None:
        super()._complete()
        if self.expanded_memory and self.memory is None:
            problem = "expanded memory needs the size of the local memory"
            raise wrong(problem, "write e.g. memory: 80 GB, or name a preset", ("expanded_memory", "@key"))


class MemoryModel(StrictModel):
    """Remote memory."""

    _place = "memory"

    kind: Annotated[str, choice("none", "per_npu", "per_node", "pool")] = "per_npu"
    latency_ps: Time = Field(default=0, alias="latency")
    bandwidth: MemoryBandwidth | None = example("100 GB/s", default=None)
    npus_per_node: Count = 1

    def _complete(self) -> None:
        if self.kind != "none" and self.bandwidth is None:
            raise wrong('"bandwidth" is missing', 'write e.g. bandwidth: "100 GB/s"')


NO_MEMORY = MemoryModel(kind="none")


class Collectives(StrictModel):
    """How collectives are cut into chunks; a chunk visits one dimension of the topology after the other."""

    _place = "collectives"

    chunks: Annotated[int, whole(1, MAX_CHUNKS, example=4)] = Field(
        default=1, description="chunks that a collective is cut into"
    )
    active_chunks: Annotated[int, whole(1, MAX_CHUNKS, example=1)] = Field(
        default=1, description="chunks that run at once in a dimension of an NPU"
    )
    queues: Annotated[int, whole(1, MAX_QUEUES, example=1)] = Field(
        default=1, description="queues of each dimension that share them"
    )
    all_reduce: Annotated[str, choice(*ALL_REDUCE_WAYS)] | None = Field(
        default=None, description="phases of an all_reduce; local_first by default"
    )
    order: Annotated[str, choice(*DIMENSION_ORDERS)] = Field(
        default="fixed", description="of dimensions, for every chunk"
    )
    endpoint_delay: Time = Field(
        default=0, description="what every message of a phase costs its receiver", examples=["10 ns"]
    )
    rounding: Annotated[str, choice(*CHUNK_ROUNDINGS)] = Field(
        default="exact", description="rounded_up: one more chunk for what is left over, as ASTRA-sim does"
    )
    flat: bool = Field(default=False, description="take all NPUs for one dimension")

    def _complete(self) -> None:
        if self.order == "themis" and self.all_reduce not in (None, "two_way"):
            problem = "themis visits all dimensions on the way out and back"
            raise wrong(problem, "drop all_reduce, or write order: fixed", ("all_reduce",))


class Limits(StrictModel):
    """When to give up."""

    _place = "limits"

    max_events: Annotated[int, whole(1, _MOST_EVENTS)] = MAX_EVENTS
    max_sim_time_ps: Time | None = Field(default=None, alias="max_sim_time", examples=["10 s"])

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        most = value.get("max_events", MAX_EVENTS) if isinstance(value, Mapping) else MAX_EVENTS
        if most is None:
            return {key: given for key, given in value.items() if key != "max_events"}
        if not written(info) and most > _MOST_EVENTS:  # as good as no limit
            return {**value, "max_events": _MOST_EVENTS}
        return value
