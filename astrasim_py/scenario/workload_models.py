"""Models of workloads and groups."""

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
)

from astrasim_py.core.fields import Count, FileName, Ranks, Speed, Time, by_rank, choice, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.workload import items
from astrasim_py.workload.items import Barrier, Collective, Compute, Memory, RootedCollective, Send

_EXAMPLES = {"compute": "time: 100 us", "send": "from: 0, to: 1, size: 1 MiB", "memory": "load: 1 MiB"}


class Item(StrictModel):
    """One thing that ranks do; exactly one kind."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    all_reduce: Collective | None = None
    all_gather: Collective | None = None
    reduce_scatter: Collective | None = None
    all_to_all: Collective | None = None
    broadcast: RootedCollective | None = None
    reduce: RootedCollective | None = None
    gather: RootedCollective | None = None
    scatter: RootedCollective | None = None
    barrier: Barrier | None = None
    custom: Collective | None = Field(default=None, description="a collective that only its algorithm defines")
    compute: Compute | None = None
    send: Send | None = None
    memory: Memory | None = None

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

    def _complete(self) -> None:
        if isinstance(self.body, Collective):
            self.__dict__[self.kind] = self.body.model_copy(update={"type": self.kind})

    @property
    def kind(self) -> str:
        """Which kind it is."""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def body(self) -> items.Item:
        """The item itself."""
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
