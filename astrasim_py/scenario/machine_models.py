"""Models of the network, the NPUs, and the rules of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import (
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from astrasim_py.collectives.protocols import PROTOCOLS
from astrasim_py.core.errors import UnitError
from astrasim_py.core.units import parse_time
from astrasim_py.scenario.quantities import (
    Bandwidth,
    ComputeRate,
    Count,
    Gamma,
    MemoryBandwidth,
    Size,
    Speed,
    Text,
    Time,
    by_rank,
    choice,
    did_you_mean,
    shown,
    whole,
    wrong,
)
from astrasim_py.scenario.strict import Strict, example
from astrasim_py.system.problem import MscclModel
from astrasim_py.topology.hardware import preset_names


class ProtocolLatency(Strict):
    """Time that every hop takes longer, by protocol; a plain time is meant for all."""

    Simple: Time = example("1 us", default=0)
    LL: Time = example("300 ns", default=0)
    LL128: Time = example("400 ns", default=0)

    @classmethod
    def _normalized(cls, value: object) -> object:
        if isinstance(value, Mapping):
            return value
        if not isinstance(value, str):
            raise wrong(f"{shown(value)} is not a time", 'write e.g. "300 ns", or {LL: 300 ns}')
        try:
            parse_time(value)
        except UnitError as error:
            raise wrong(error.problem, error.remedy) from None
        return dict.fromkeys(cls.model_fields, value)


class Msccl(Strict):
    """Connections of MSCCL-style runtimes, for the messages of collectives: slots, pace, latency."""

    protocol: choice(*PROTOCOLS) | None = Field(
        default=None, description="of all algorithms; by default each one's own, else Simple"
    )
    slots: Count | None = Field(
        default=None, description="messages that a connection holds; by default 2 (Simple) or 8 (LL, LL128)"
    )
    channel_bandwidth: Bandwidth | None = Field(
        default=None, description="pace of the messages of one connection", examples=["20 GB/s"]
    )
    latency: ProtocolLatency = Field(
        default_factory=ProtocolLatency, description="what every hop takes longer", examples=["{LL: 300 ns}"]
    )

    def model(self) -> MscclModel:
        """The same for the engine."""
        return MscclModel(
            protocol=self.protocol or "",
            slots=self.slots,
            channel_bandwidth=self.channel_bandwidth,
            latency_ps={name: getattr(self.latency, name) for name in PROTOCOLS},
        )


def _on_or_off(value: object) -> object:
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class Network(Strict):
    """How messages use links."""

    model: Text = Field(
        default="cut_through",
        description="cut_through, store_and_forward, analytical (no contention), or file.py:name of your own",
        examples=["cut_through"],
    )
    link_busy: choice("bytes", "latency+bytes") = "bytes"
    send_completes: choice("delivery", "injected") = Field(
        default="delivery", description="with msccl: injected, unless it is written"
    )
    msccl: Annotated[Msccl | None, BeforeValidator(_on_or_off)] = Field(
        default=None,
        description="connections with slots as MSCCL-style runtimes have them; true for their own defaults",
        examples=["{slots: 2}"],
    )

    @property
    def completes(self) -> str:
        """When a send completes: under `msccl` once it is in the connection, unless the scenario says otherwise."""
        return "injected" if self.msccl and "send_completes" not in self.model_fields_set else self.send_completes

    @field_validator("model")
    @classmethod
    def _known_model(cls, value: str) -> str:
        from astrasim_py.scenario.registry import names

        known = (*NETWORK_MODELS, *names("network"))
        if value not in known and ".py:" not in value:
            raise wrong(f"{shown(value)} is not a network model", did_you_mean(value, known))
        return value


NETWORK_MODELS = ("cut_through", "store_and_forward", "analytical")


class Compute(Strict):
    """What an NPU computes."""

    preset: Text | None = Field(default=None, examples=["dgx_a100"])
    precision: Text | None = Field(default=None, description="number format of the preset's peak, e.g. bf16")
    roofline: bool | None = Field(default=None, description="take times from operations and bytes")
    peak: ComputeRate | None = example("312 TFLOP/s", default=None)
    memory_bandwidth: MemoryBandwidth | None = example("2 TB/s", default=None)

    @model_validator(mode="after")
    def _preset_exists(self):
        if self.preset is not None and self.preset not in (names := preset_names("compute")):
            raise wrong(f"there is no preset {shown(self.preset)}", did_you_mean(self.preset, names), ("preset",))
        if self.precision is not None and self.preset is None:
            raise wrong("precision without preset", "drop it, or name a preset", ("precision",))
        if self.roofline and self.peak is None and self.preset is None:
            raise wrong("the roofline needs a peak", 'write e.g. peak: "312 TFLOP/s"', ("roofline",))
        return self


class Memory(Strict):
    """Remote memory."""

    kind: choice("none", "per_npu", "per_node", "pool") = "per_npu"
    latency: Time = 0
    bandwidth: MemoryBandwidth | None = example("100 GB/s", default=None)
    npus_per_node: Count = 1

    @model_validator(mode="after")
    def _has_bandwidth(self):
        if self.kind != "none" and self.bandwidth is None:
            raise wrong('"bandwidth" is missing', 'write e.g. bandwidth: "100 GB/s"')
        return self


def _by_rank(value: object) -> object:
    return by_rank(value) if isinstance(value, Mapping) else value


class Stragglers(Strict):
    """Ranks that are slow or late: ``{3: 0.5}``, ``{"0-7": 5 us}``."""

    compute_speed: Annotated[dict[int, Speed], BeforeValidator(_by_rank)] = Field(
        default={}, description="rank → speed; 0.5 takes twice as long"
    )
    start_delay: Annotated[dict[int, Time], BeforeValidator(_by_rank)] = Field(
        default={}, description="rank → time before it begins"
    )


class SemanticsSpec(Strict):
    """A named set of rules, with any of them replaced."""

    base: choice("native", "astra_sim") = "native"
    dependencies: choice("data", "data+ctrl") | None = None
    rounding: choice("up_ps", "floor_ns") | None = None
    decimal_bandwidth: choice("as_written", "binary") | None = None
    zero_duration: Time | None = example("1 ns", default=None)
    gamma: Gamma | None = example("20 ns/MiB", default=None)
    cpu_slots: choice("unlimited", whole_numbers=True) | None = None
    compute_slots: choice("unlimited", whole_numbers=True) | None = None
    comm_slots: choice("unlimited", whole_numbers=True) | None = None
    injected_sizes: choice("symbolic", "verbatim") | None = None
    analytical_route: choice("all_hops", "lowest_dim") | None = None
    message_match: choice("instance", "bytes") | None = None
    rendezvous_bytes: Size | None = Field(
        default=None,
        description="of the message with which a receive calls for its payload; 0 B for none",
        examples=["8 KiB"],
    )
    event_order: choice("issued", "scheduled") | None = None
    exposed: choice("waiting", "finish_minus_compute") | None = None

    @classmethod
    def _normalized(cls, value: object) -> object:
        if isinstance(value, str):
            if value not in ("native", "astra_sim"):
                raise wrong(f"{shown(value)} are no semantics", did_you_mean(value, ("native", "astra_sim")))
            return {"base": value}
        return value

    @property
    def binary_bandwidth(self) -> bool:
        """Whether GB of network bandwidth means 2**30."""
        given = self.decimal_bandwidth or ("binary" if self.base == "astra_sim" else "as_written")
        return given == "binary"

    def overrides(self) -> dict[str, object]:
        """What is replaced, as `Semantics` names it."""
        out: dict[str, object] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name != "base" and value is not None:
                key = "zero_duration_ps" if name == "zero_duration" else name
                out[key] = None if value == "unlimited" else value
        return out


class Collectives(Strict):
    """How collectives are cut: into chunks, each of which visits one dimension of the topology after the other."""

    chunks: whole(1, 2**14, example=4) = Field(default=1, description="chunks that a collective is cut into")
    active_chunks: whole(1, 2**14, example=1) = Field(
        default=1, description="chunks that run at once in a dimension of an NPU"
    )
    queues: whole(1, 1024, example=1) = Field(default=1, description="queues of each dimension that share them")
    all_reduce: choice("local_first", "baseline", "two_way") | None = Field(
        default=None, description="phases of an all_reduce; local_first by default"
    )
    order: choice("fixed", "themis") = Field(default="fixed", description="of dimensions, for every chunk")
    endpoint_delay: Time = Field(
        default=0, description="what every message of a phase costs its receiver", examples=["10 ns"]
    )
    rounding: choice("exact", "rounded_up") = Field(
        default="exact", description="rounded_up: one more chunk for what is left over, as ASTRA-sim does"
    )
    flat: bool = Field(default=False, description="take all NPUs for one dimension")

    @model_validator(mode="after")
    def _one_way(self):
        if self.order == "themis" and self.all_reduce not in (None, "two_way"):
            problem = "themis goes out through all dimensions and back"
            raise wrong(problem, "drop all_reduce, or write order: fixed", ("all_reduce",))
        return self


class LimitsSpec(Strict):
    """When to give up."""

    max_events: whole(1, 2**62) | None = None
    max_sim_time: Time | None = example("10 s", default=None)
