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
    WithJsonSchema,
    model_validator,
)

from astrasim_py.collectives.algorithm import COLLECTIVES, CUSTOM
from astrasim_py.core.units import PS_PER_S
from astrasim_py.scenario.quantities import (
    Count,
    FileName,
    Name,
    Operations,
    Rank,
    Ranks,
    Scalar,
    Size,
    Text,
    Time,
    choice,
    did_you_mean,
    either,
    shown,
    whole,
    wrong,
)
from astrasim_py.scenario.strict import Strict, example


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


class ItemBase(Strict):
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

    @model_validator(mode="after")
    def _one_cost(self):
        if (self.time is None) == (self.operations is None):
            given = "neither time nor operations" if self.time is None else "both time and operations"
            raise wrong(f"says {given}", 'write time: "100 us", or operations: "2.5 GFLOP"')
        if self.bytes is not None and self.operations is None:
            raise wrong("bytes without operations", "drop bytes", ("bytes",))
        return self


class SendItem(ItemBase):
    """A message from one rank to another."""

    source: Rank = Field(alias="from", examples=["0"])
    to: Rank = example("1")
    size: Size = example("1 MiB")
    tag: whole(0, 2**31 - 1) = 0

    @model_validator(mode="after")
    def _not_to_itself(self):
        if self.source == self.to:
            raise wrong(f"rank {self.to} sends to itself", "name another rank", ("to",))
        return self


class MemoryItem(ItemBase):
    """A load from or a store to remote memory."""

    load: Size | None = example("1 MiB", default=None)
    store: Size | None = None
    ranks: Ranks | None = Field(default=None, description="who does it; all ranks by default")

    @model_validator(mode="after")
    def _one_direction(self):
        if (self.load is None) == (self.store is None):
            raise wrong("says neither load nor store" if self.load is None else "says load and store", "write one")
        return self


_EXAMPLES = {"compute": "time: 100 us", "send": "from: 0, to: 1, size: 1 MiB", "memory": "load: 1 MiB"}


class Item(Strict):
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
    def _normalized(cls, value: object) -> object:
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
        """What it says."""
        return getattr(self, self.kind)


class TraceWorkload(Strict):
    """A workload read from files ``<trace>.<rank>.et``."""

    trace: FileName = example("traces/gpt3")
    groups: FileName | None = Field(default=None, description='JSON: {"1": [0, 1, …], …}')
    size_unit: choice("bytes", "elements") = Field(default="bytes", description="what comm_size counts")
    dtype_bytes: whole(1, 64) | None = Field(default=None, description="bytes of an element")
    macs: bool = Field(default=False, description="num_ops counts multiply-accumulates")
    dependencies: choice("data", "data+ctrl") | None = None

    @model_validator(mode="after")
    def _elements_have_bytes(self):
        if (self.size_unit == "elements") != (self.dtype_bytes is not None):
            if self.dtype_bytes is None:
                raise wrong("elements of unknown size", "write e.g. dtype_bytes: 2", ("size_unit",))
            raise wrong("dtype_bytes without size_unit: elements", "drop it", ("dtype_bytes",))
        return self


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


class Partition(Strict):
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


class When(Strict):
    """When a case applies; conditions such as ``<= 256 KiB``."""

    size: Text | None = example('"<= 256 KiB"', default=None)
    ranks: Scalar | None = example('">= 8"', default=None)
    group: Name | None = None
    node: whole(0, 2**63 - 1, "id of a node") | None = Field(
        default=None, description="id of the workload's node on the first rank of its group"
    )


class AlgorithmBase(Strict):
    when: When | None = None


class Builder(AlgorithmBase):
    """An algorithm that the package builds; its options stand beside it."""

    model_config = ConfigDict(extra="allow")

    builder: Text = example("ring")

    @property
    def options(self) -> dict[str, object]:
        """Options of the builder."""
        return dict(self.model_extra or {})


class AlgorithmFile(AlgorithmBase):
    """An algorithm in files: MSCCL-IR in an ``.xml``, one ``.npz``, or a prefix of ``.et`` files, one per rank."""

    file: FileName = example("algorithms/ring_all_reduce_64")
    made_for: Size | None = Field(default=None, description="size for which its absolute sizes were computed")
    root: Rank | None = None
    contract: FileName | None = Field(
        default=None, description="YAML: what it promises, for custom collectives; see docs/verify.md"
    )


class AlgorithmCode(AlgorithmBase):
    """An algorithm that your own Python builds: ``function(collective, ranks, **options) -> Algorithm``."""

    model_config = ConfigDict(extra="allow")

    python: Text = example("my_algorithms.py:tree")

    @property
    def options(self) -> dict[str, object]:
        """Options of the function."""
        return dict(self.model_extra or {})


class Synthesis(Strict):
    """How an algorithm is synthesized for the topology, the placement and the size of a call; see docs/synthesis.md."""

    chunks: choice("auto", whole_numbers=True) = Field(
        default=1, description="per shard (of broadcast and reduce: of the buffer), or auto: as many as suit the size"
    )
    rounds: whole(1, 10**6) = Field(default=200, description="runs of the search at most")
    seed: whole(0, 2**31 - 1) = 1
    budget: Time | None = Field(
        default=None, description="wall-clock time at most: whether it cut the search is recorded"
    )
    relays: bool = Field(default=False, description="NPUs outside the group may hand data on")
    occupied: tuple[FileName, ...] = Field(
        default=(), description="files of synthesize --schedule: links that other schedules hold", examples=["[a.csv]"]
    )
    exact: bool = Field(default=False, description="prove the result, or find a faster one: up to 16 ranks")
    exact_limit: Time = Field(default=60 * PS_PER_S, description="wall-clock time for that", examples=["60 s"])
    clock: bool | None = Field(
        default=None,
        description="post sends at their claimed times, by nodes that take the NPU's compute slot; by default only "
        "where links are occupied",
    )


class AlgorithmSynthesis(AlgorithmBase):
    """An algorithm that is synthesized."""

    synthesize: Annotated[Synthesis, BeforeValidator(lambda value: {} if value is None else value)] = example(
        "{chunks: 4, rounds: 200, seed: 1}"
    )


def _named_builder(value: object) -> object:
    return {"builder": value} if isinstance(value, str) else value


_DimensionBuilder = Annotated[Builder, BeforeValidator(_named_builder, json_schema_input_type=Builder | str)]


class AlgorithmByDimension(AlgorithmBase):
    """One builder per dimension of the topology, the innermost first."""

    dims: Annotated[tuple[_DimensionBuilder, ...], Field(min_length=1, max_length=32)] = example(
        "[ring, halving_doubling]"
    )


def _ways(value: Mapping) -> list[str]:
    given = [key for key in ("builder", "file", "python", "synthesize") if key in value]
    return given or [key for key in ("dims",) if key in value]  # dims beside builder is an option of it


def _algorithm_tag(value: object) -> str:
    if not isinstance(value, Mapping):
        return "<builder>"
    given = _ways(value)
    return f"<{given[0]}>" if len(given) == 1 else "<none>"


def _refuse_algorithm(value: Any) -> Any:
    given = _ways(value)
    if given:
        raise wrong(f"says {' and '.join(given)}", "keep one of them")
    raise wrong("says neither builder nor file", "write e.g. builder: ring")


_Algorithm = Annotated[
    Annotated[Builder, Tag("<builder>")]
    | Annotated[AlgorithmFile, Tag("<file>")]
    | Annotated[AlgorithmCode, Tag("<python>")]
    | Annotated[AlgorithmSynthesis, Tag("<synthesize>")]
    | Annotated[AlgorithmByDimension, Tag("<dims>")]
    | Annotated[Any, BeforeValidator(_refuse_algorithm), WithJsonSchema({"not": {}}), Tag("<none>")],
    Discriminator(_algorithm_tag),
]
OneAlgorithm = Annotated[_Algorithm, BeforeValidator(_named_builder, json_schema_input_type=_Algorithm | str)]


def _cases(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise wrong("an empty list of cases", "write at least one")
    return value if isinstance(value, list | tuple) else (value,)


#: One algorithm, the name of a builder, or a list of cases of which the first that applies is used.
AlgorithmSpec = Annotated[
    tuple[OneAlgorithm, ...],
    BeforeValidator(_cases, json_schema_input_type=_Algorithm | str | tuple[_Algorithm | str, ...]),
]


_NAMES = (*COLLECTIVES, CUSTOM)


def _collective(value: object) -> object:
    if value not in _NAMES:
        raise wrong("is not a collective", did_you_mean(str(value), _NAMES), ("@key",))
    return value


CollectiveName = Annotated[str, BeforeValidator(_collective), WithJsonSchema({"enum": list(_NAMES)})]
