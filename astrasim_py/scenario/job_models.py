"""Models of the keys of a job: its workload, groups and stragglers, and the algorithms of its collectives."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM
from astrasim_py.core.by_need import ByNeed, load
from astrasim_py.core.choices import LIBRARIES, PROTOCOLS
from astrasim_py.core.fields import (
    CodeName,
    Count,
    FileName,
    Rank,
    Ranks,
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
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.core.units import PS_PER_S
from astrasim_py.program.selection import When
from astrasim_py.workload import items
from astrasim_py.workload.items import AllToAll, Barrier, Collective, Compute, Memory, RootedCollective, Send

if TYPE_CHECKING:
    from astrasim_py.scenario.astra_sim_inputs import AstraSimInputs
    from astrasim_py.scenario.open_loop import OpenLoop
    from astrasim_py.training.inference import Inference
    from astrasim_py.training.recommendation import Recommendation
    from astrasim_py.training.strategy import Training
else:
    AstraSimInputs = Annotated[Any, ByNeed("astrasim_py.scenario.astra_sim_inputs:AstraSimInputs")]
    OpenLoop = Annotated[Any, ByNeed("astrasim_py.scenario.open_loop:OpenLoop")]
    Inference = Annotated[Any, ByNeed("astrasim_py.training.inference:Inference")]
    Recommendation = Annotated[Any, ByNeed("astrasim_py.training.recommendation:Recommendation")]
    Training = Annotated[Any, ByNeed("astrasim_py.training.strategy:Training")]
_FILE_OPTIONS = "astrasim_py.workload.trace_readers:file_options"
_ROLES = "astrasim_py.training.strategy:ROLES"

_EXAMPLES = {"compute": "time: 100 us", "send": "from: 0, to: 1, size: 1 MiB", "memory": "load: 1 MiB"}


class Item(StrictModel):
    """One thing that ranks do; exactly one kind."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    all_reduce: Collective | None = None
    all_gather: Collective | None = None
    reduce_scatter: Collective | None = None
    all_to_all: AllToAll | None = None
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
            # As files of CI systems have it: beside the item what else is said of it.
            beside = {key: value[key] for key in ("name", "after") if key in value}
            kinds = [key for key in value if key not in beside]
            if beside and len(kinds) == 1 and isinstance(value[kinds[0]] or {}, Mapping):
                body = value[kinds[0]] or {}
                if repeated := sorted(beside.keys() & body.keys()):
                    raise wrong(f"{repeated[0]} is written beside {kinds[0]} and in it", "keep one of them")
                value = {kinds[0]: {**body, **beside}}
            if len(value) != 1:
                problem = "an empty item" if not value else f"one item says {' and '.join(map(str, value))}"
                raise wrong(problem, "begin a line of its own with - for each")
            (kind, body), *_ = value.items()
            if body is None and kind != "barrier" and kind in cls.model_fields:
                raise wrong("says nothing", f"write e.g. {kind}: {{{_EXAMPLES.get(kind, 'size: 64 MiB')}}}", (kind,))
            return {key: {} if inner is None and key == "barrier" else inner for key, inner in value.items()}
        return value

    @field_validator("*")
    @classmethod
    def _of_its_kind(cls, body: Any, info: ValidationInfo) -> Any:
        return body.model_copy(update={"type": info.field_name}) if isinstance(body, Collective) else body

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
    size_unit: Annotated[str, choice("bytes", "elements")] = Field(default="bytes", description="what comm_size counts")
    dtype_bytes: Annotated[int, whole(1, 64)] | None = Field(default=None, description="bytes of an element")
    macs: bool = Field(default=False, description="num_ops counts multiply-accumulates")
    untyped: Annotated[str, choice("error", "compute")] = Field(
        default="error", description="collectives without comm_type: refused, or CPU work of their recorded duration"
    )
    dependencies: Annotated[str, choice("data", "data+ctrl")] | None = Field(
        default=None, description="that order nodes; by default data, or control where a set has no data dependencies"
    )
    skeleton: bool = Field(
        default=False, description="simulate only its calls and the longest compute paths between them"
    )

    def _complete(self) -> None:
        if (self.size_unit == "elements") != (self.dtype_bytes is not None):
            if self.dtype_bytes is None:
                raise wrong("elements of unknown size", "write e.g. dtype_bytes: 2", ("size_unit",))
            raise wrong("dtype_bytes without size_unit: elements", "drop it", ("dtype_bytes",))


class ReaderWorkload(StrictModel):
    """A workload that a reader of traces makes of other programs' files; its options stand beside it."""

    model_config = ConfigDict(extra="allow")

    reader: Text = example("pytorch")
    partial: bool = Field(default=False, description="run it even if it is not to be trusted")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping) or not isinstance(value.get("reader"), str):
            return value
        common = {key: value[key] for key in ("reader", "partial") if key in value}
        return common | load(_FILE_OPTIONS)(value["reader"], {key: value[key] for key in value if key not in common})

    @property
    def options(self) -> dict[str, object]:
        """Options of the reader by their names."""
        return dict(self.model_extra or {})


class PytorchRecording(StrictModel):
    """Files of PyTorch's profiler, and how they become traces; see `astrasim_py.pytorch.convert`."""

    kineto: FileName = example("recordings/kineto_{rank}.json.gz")
    et: FileName | None = Field(default=None, description="of ExecutionTraceObserver, one a rank")
    step: Annotated[int, whole(0, 2**31 - 1)] | None = Field(
        default=None, description="which iteration; by default the median one"
    )
    collectives: Annotated[str, choice("network", "recorded")] = Field(
        default="network", description="time of data transfer: simulated, or as recorded"
    )
    skew: Annotated[str, choice("keep", "drop")] = Field(default="keep", description="between the starts of ranks")
    splits: Annotated[str, choice("messages", "pad")] = Field(default="messages", description="of uneven all_to_all")
    replicate: Annotated[int, whole(0, 2**20)] = Field(default=0, description="ranks that the recorded one represents")
    size_default: Size | None = Field(default=None, description="of calls without a recorded one")
    partial: bool = Field(default=False, description="run it even if it is not to be trusted")

    def of_reader(self) -> ReaderWorkload:
        """The same as of the reader of recordings."""
        options = {key: value for key, value in self if value is not None}
        options |= {key: [options[key]] for key in ("kineto", "et") if key in options}
        return ReaderWorkload.model_validate({"reader": "pytorch", **options})


class RecordedWorkload(StrictModel):
    """A workload that PyTorch's profiler recorded."""

    pytorch: PytorchRecording


class AstraSimWorkload(StrictModel):
    """A whole run of ASTRA-sim's files: workload, system, network and memory."""

    astra_sim: AstraSimInputs = example("{workload: all_reduce, system: system.json, network: network.yml}")


class OpenLoopWorkload(StrictModel):
    """Messages that are sent at random times."""

    open_loop: OpenLoop = example("{pattern: uniform, load: 0.5, size: 64 KiB, messages: 1000}")


#: Workloads whose ranks only their files know.
OF_FILES = (TraceWorkload, RecordedWorkload, ReaderWorkload, AstraSimWorkload)


class ModelWorkload(StrictModel):
    """A model's workload, as traces that are made for the ranks of the job; `kind` is its key."""

    kind: ClassVar[str]

    times: Annotated[str, choice("model", "roofline")] = Field(
        default="model", description="of computation: efficiencies of real kernels, or the roofline of `compute`"
    )
    memory: Annotated[str, choice("fit", "ignore")] = Field(
        default="fit", description="refuse what does not fit the memory of an NPU, or simulate it all the same"
    )

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of its groups, without their numbers."""
        return ()


class TrainingWorkload(ModelWorkload):
    """One iteration of the training of a model."""

    kind = "training"

    training: Training = example("{model: llama3-70b, seq: 8192, gbs: 512, tp: 4, pp: 4}")

    @property
    def roles(self) -> tuple[str, ...]:
        return load(_ROLES)


class InferenceWorkload(ModelWorkload):
    """Inference: one pool of ranks reads prompts, another one generates tokens."""

    kind = "inference"

    inference: Inference = example("{model: llama3-70b, prefill: {tp: 8}, decode: {tp: 8}}")

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(f"{pool}.{role}" for pool in ("prefill", "decode") for role in load(_ROLES))


class RecommendationWorkload(ModelWorkload):
    """Iterations of the training of a recommendation model."""

    kind = "recommendation"

    recommendation: Recommendation = example("{model: dlrm-mlperf, gbs: 65536}")


#: Keys that tell which workload a mapping is; all others are traces.
_OTHER_WORKLOADS = ("pytorch", "reader", "training", "inference", "recommendation", "astra_sim", "open_loop")


def _workload_tag(value: object) -> str:
    if not isinstance(value, Mapping):
        return "<items>"
    tag = next((f"<{kind}>" for kind in _OTHER_WORKLOADS if kind in value), "<trace>")
    return "<items>" if tag == "<trace>" and _item_without_dash(value) else tag


def _item_without_dash(value: Mapping) -> str:
    """The first key of a mapping if it is an item's, or nearly, and no workload's; empty if not."""
    keys = (*TraceWorkload.model_fields, *_OTHER_WORKLOADS, *Item.model_fields)
    first = str(next(iter(value), ""))
    meant = first if first in keys else did_you_mean(first, keys).removeprefix('did you mean "').removesuffix('"?')
    return meant if meant in Item.model_fields and not TraceWorkload.model_fields.keys() & value.keys() else ""


def _is_workload(value: object) -> object:
    if isinstance(value, Mapping):
        kind = _item_without_dash(value)
        body = _EXAMPLES.get(kind, "size: 64 MiB")
        raise wrong("a mapping, where items are a list", f"begin each item with -, e.g. - {kind}: {{{body}}}")
    if not isinstance(value, list | tuple):
        raise wrong(
            f"{shown(value)} is not a workload", "write a list, e.g. - all_reduce: {size: 64 MiB}, or {trace: prefix}"
        )
    if not value:
        raise wrong("an empty workload", "write e.g. - all_reduce: {size: 64 MiB}")
    return value


WorkloadSpec = Annotated[
    Annotated[TraceWorkload, Tag("<trace>")]
    | Annotated[RecordedWorkload, Tag("<pytorch>")]
    | Annotated[ReaderWorkload, Tag("<reader>")]
    | Annotated[TrainingWorkload, Tag("<training>")]
    | Annotated[InferenceWorkload, Tag("<inference>")]
    | Annotated[RecommendationWorkload, Tag("<recommendation>")]
    | Annotated[AstraSimWorkload, Tag("<astra_sim>")]
    | Annotated[OpenLoopWorkload, Tag("<open_loop>")]
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
    index_of: dict[int, int] = {}
    for i, members in enumerate(value):
        for rank in members:
            if rank in index_of:
                raise wrong(f"rank {rank} is in two groups of one name", "keep it in one", (i,))
            index_of[rank] = i
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


# -- algorithms ---------------------------------------------------------------------------------------------------


class AlgorithmBase(StrictModel):
    when: When | None = None
    protocol: Annotated[str, choice(*PROTOCOLS)] | None = Field(
        default=None,
        description="of its messages, with a profile or connections; by default its own, or the fastest",
    )

    @property
    def options(self) -> dict[str, object]:
        """Keys beside those declared: options of a builder or function."""
        return dict(self.model_extra or {})


class Builder(AlgorithmBase):
    """An algorithm that the package builds; its options stand beside it."""

    model_config = ConfigDict(extra="allow")

    builder: Text = example("ring")
    actors: dict[Text, Text] | None = Field(
        default=None,
        description="the switch of the topology that each switch of `switches` is; without them one, s0, is above all",
        examples=["{s0: spine1}"],
    )


class AlgorithmFile(AlgorithmBase):
    """An algorithm in files: MSCCL-IR in an ``.xml``, one ``.npz``, or a prefix of ``.et`` files, one per rank."""

    file: FileName = example("algorithms/ring_all_reduce_64")
    made_for: Size | None = Field(default=None, description="size for which its absolute sizes were computed")
    root: Rank | None = None
    actors: dict[Text, Text] | None = Field(
        default=None,
        description="the switch of the topology that each of its switches is; by default that of its name, or else one "
        "next to its peers",
        examples=["{s0: leaf0}"],
    )
    contract: FileName | None = Field(
        default=None, description="YAML: the contract of a custom collective; see docs/verify.md"
    )


class AlgorithmCode(AlgorithmBase):
    """An algorithm that your own Python builds: ``function(collective, ranks, **options) -> Algorithm``."""

    model_config = ConfigDict(extra="allow")

    python: CodeName = example("my_algorithms.py:tree")


class Synthesis(StrictModel):
    """How an algorithm is synthesized for the topology, the placement and the size of a call; see docs/synthesis.md."""

    chunks: Annotated[int | str, choice("auto", whole_numbers=True)] = Field(
        default=1, description="per shard (of broadcast and reduce: of the buffer), or auto: as many as suit the size"
    )
    rounds: Annotated[int, whole(1, 10**6)] = Field(default=200, description="runs of the search at most")
    seed: Annotated[int, whole(0, 2**31 - 1)] = 1
    budget: Time | None = Field(
        default=None, description="wall-clock time at most; the result records if it ended the search"
    )
    relays: bool = Field(default=False, description="NPUs outside the group may forward data")
    occupied: tuple[FileName, ...] = Field(
        default=(),
        description="files of synthesize --write-occupied: links that other schedules hold",
        examples=["[a.csv]"],
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
    keys = [key for key in ("builder", "file", "python", "synthesize") if key in value]
    return keys or [key for key in ("dims",) if key in value]  # dims beside builder is an option of it


def _algorithm_tag(value: object) -> str:
    if not isinstance(value, Mapping):
        return "<builder>"
    keys = _ways(value)
    return f"<{keys[0]}>" if len(keys) == 1 else "<none>"


def _refuse_algorithm(value: Any) -> Any:
    keys = _ways(value)
    if keys:
        raise wrong(f"has {' and '.join(keys)}", "keep one of them")
    raise wrong("has neither builder nor file", "write e.g. builder: ring")


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


def _of_a_library(value: object) -> object:
    if isinstance(value, str) and value not in LIBRARIES:
        raise wrong(f"{shown(value)} is not a library", f"write {' or '.join(LIBRARIES)}, or {{all_reduce: ring}}")
    return dict.fromkeys(COLLECTIVES, value) if isinstance(value, str) else value


#: Algorithms by collective, or the name of a library that chooses all of them.
AlgorithmSpecs = Annotated[
    dict[CollectiveName, AlgorithmSpec],
    BeforeValidator(_of_a_library, json_schema_input_type=dict[CollectiveName, AlgorithmSpec] | Literal[LIBRARIES]),
]
