"""Models of workloads, groups and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)

from astrasim_py.core.fields import (
    Count,
    FileName,
    Name,
    Operations,
    Rank,
    Ranks,
    Size,
    Speed,
    Time,
    by_rank,
    choice,
    either,
    shown,
    whole,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel, example


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


After = Annotated[
    tuple[Name, ...],
    BeforeValidator(_one_or_more),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "names of items that must be done before; [] for none (by default, the one before)",
        }
    ),
]
Repeat = whole(1, 100_000)
RootPosition = whole(0, 2**20 - 1, "position in the group")


class ItemBase(StrictModel):
    name: Name | None = Field(default=None, description="for `after`")
    after: After | None = None
    repeat: Repeat = Field(default=1, description="so many times, one after the other")


class CollectiveItem(ItemBase):
    """A collective; `size` is the full buffer (nccl-tests' convention)."""

    size: Size = example("64 MiB")
    group: either(Name, Ranks) | None = Field(
        default=None, description="name of a group, or ranks; all ranks by default"
    )


class RootedItem(CollectiveItem):
    """A collective with a root: a position in the group."""

    root: RootPosition = 0


class BarrierItem(ItemBase):
    """Nobody goes on before all have come."""

    group: either(Name, Ranks) | None = Field(
        default=None, description="name of a group, or ranks; all ranks by default"
    )


class ComputeItem(ItemBase):
    """Computation: of a given time, or of so many operations under a roofline."""

    time: Time | None = example("100 us", default=None)
    operations: Operations | None = example("2.5 GFLOP", default=None)
    bytes: Size | None = Field(default=None, description="bytes that it moves from and to memory")
    ranks: Ranks | None = Field(default=None, description="who computes; all ranks by default")

    def _complete(self) -> None:
        if (self.time is None) == (self.operations is None):
            given = "neither time nor operations" if self.time is None else "both time and operations"
            raise wrong(f"says {given}", 'write time: "100 us", or operations: "2.5 GFLOP"')
        if self.bytes is not None and self.operations is None:
            raise wrong("bytes without operations", "drop bytes", ("bytes",))


class SendItem(ItemBase):
    """A message from one rank to another."""

    source: Rank = Field(alias="from", examples=["0"])
    to: Rank = example("1")
    size: Size = example("1 MiB")
    tag: whole(0, 2**31 - 1) = 0

    def _complete(self) -> None:
        if self.source == self.to:
            raise wrong(f"rank {self.to} sends to itself", "name another rank", ("to",))


class MemoryItem(ItemBase):
    """A load from or a store to remote memory."""

    load: Size | None = example("1 MiB", default=None)
    store: Size | None = None
    ranks: Ranks | None = Field(default=None, description="who does it; all ranks by default")

    def _complete(self) -> None:
        if (self.load is None) == (self.store is None):
            raise wrong("says neither load nor store" if self.load is None else "says load and store", "write one")


_EXAMPLES = {"compute": "time: 100 us", "send": "from: 0, to: 1, size: 1 MiB", "memory": "load: 1 MiB"}


class Item(StrictModel):
    """One thing that ranks do; exactly one kind."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    all_reduce: CollectiveItem | None = None
    all_gather: CollectiveItem | None = None
    reduce_scatter: CollectiveItem | None = None
    all_to_all: CollectiveItem | None = None
    broadcast: RootedItem | None = None
    reduce: RootedItem | None = None
    gather: RootedItem | None = None
    scatter: RootedItem | None = None
    barrier: BarrierItem | None = None
    custom: CollectiveItem | None = Field(default=None, description="a collective that only its algorithm defines")
    compute: ComputeItem | None = None
    send: SendItem | None = None
    memory: MemoryItem | None = None

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and value == "barrier":
            return {"barrier": {}}
        if isinstance(value, Mapping):
            if len(value) != 1:
                what = "an item that says nothing" if not value else f"one item says {' and '.join(map(str, value))}"
                raise wrong(what, "begin a line of its own with - for each")
            (kind, body), *_ = value.items()
            if body is None and kind != "barrier" and kind in cls.model_fields:
                raise wrong("says nothing", f"write e.g. {kind}: {{{_EXAMPLES.get(kind, 'size: 64 MiB')}}}", (kind,))
            return {key: {} if inner is None and key == "barrier" else inner for key, inner in value.items()}
        return value

    @property
    def kind(self) -> str:
        """Which kind it is."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def body(self) -> ItemBase:
        """The model of its kind."""
        return getattr(self, self.kind)


class TraceWorkload(StrictModel):
    """A workload read from files ``<trace>.<rank>.et``."""

    trace: FileName = example("traces/gpt3")
    groups: FileName | None = Field(default=None, description='JSON: {"1": [0, 1, …], …}')
    size_unit: choice("bytes", "elements") = Field(default="bytes", description="what comm_size counts")
    dtype_bytes: whole(1, 64) | None = Field(default=None, description="bytes of an element")
    macs: bool = Field(default=False, description="num_ops counts multiply-accumulates")
    dependencies: choice("data", "data+ctrl") | None = None

    def _complete(self) -> None:
        if (self.size_unit == "elements") != (self.dtype_bytes is not None):
            if self.dtype_bytes is None:
                raise wrong("elements of unknown size", "write e.g. dtype_bytes: 2", ("size_unit",))
            raise wrong("dtype_bytes without size_unit: elements", "drop it", ("dtype_bytes",))


def _workload_tag(value: object) -> str:
    return "<trace>" if isinstance(value, Mapping) else "<items>"


def _is_workload(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise wrong(
            f"{shown(value)} is not a workload", "write a list, e.g. - all_reduce: {size: 64 MiB}, or {trace: prefix}"
        )
    if not value:
        raise wrong("an empty workload", "write e.g. - all_reduce: {size: 64 MiB}")
    return value


WorkloadSpec = Annotated[
    Annotated[TraceWorkload, Tag("<trace>")]
    | Annotated[tuple[Item, ...], BeforeValidator(_is_workload), Tag("<items>")],
    Discriminator(_workload_tag),
]


class Partition(StrictModel):
    """All ranks cut into groups of equal size: members are `stride` apart."""

    size: Count = example("8")
    stride: Count = 1


def _group_tag(value: object) -> str:
    if isinstance(value, Mapping):
        return "<partition>"
    several = isinstance(value, list | tuple) and value and all(isinstance(v, list | tuple) for v in value)
    return "<several>" if several else "<one>"


def _disjoint(value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    seen: dict[int, int] = {}
    for i, members in enumerate(value):
        for rank in members:
            if rank in seen:
                raise wrong(f"rank {rank} is in two groups of one name", "keep it in one", (i,))
            seen[rank] = i
    return value


#: Ranks of a communicator; or several disjoint communicators under one name.
GroupSpec = Annotated[
    Annotated[Ranks, Tag("<one>")]
    | Annotated[tuple[Ranks, ...], AfterValidator(_disjoint), Tag("<several>")]
    | Annotated[Partition, Tag("<partition>")],
    Discriminator(_group_tag),
]


def _by_rank(value: object) -> object:
    return by_rank(value) if isinstance(value, Mapping) else value


class Stragglers(StrictModel):
    """Ranks that are slow or late: ``{3: 0.5}``, ``{"0-7": 5 us}``."""

    compute_speed: Annotated[dict[int, Speed], BeforeValidator(_by_rank)] = Field(
        default={}, description="rank → speed; 0.5 takes twice as long"
    )
    start_delay: Annotated[dict[int, Time], BeforeValidator(_by_rank)] = Field(
        default={}, description="rank → time before it begins"
    )
