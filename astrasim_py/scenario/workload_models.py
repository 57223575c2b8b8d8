"""Models of the kinds of workloads that a scenario may name, and of the items of a list."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)

from astrasim_py.core.by_need import ByNeed, ReadByNeed, load
from astrasim_py.core.fields import (
    FileName,
    Size,
    Text,
    choice,
    did_you_mean,
    shown,
    whole,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.workload import items
from astrasim_py.workload.items import AllToAll, Barrier, Collective, Compute, Memory, RootedCollective, Send

#: What the keys of software and of the state of machines may be.
_CONSTANTS = ("host", "gemm", "nic", "nvlink", "interference")
SOFTWARE_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["pytorch", "megatron", "ideal"]},
        {
            "type": "object",
            "properties": {"base": {"type": "string"}} | {key: {"type": "number"} for key in _CONSTANTS},
            "additionalProperties": False,
        },
    ]
}
_FILE_SCHEMA = {"type": "string", "minLength": 1}
_FILES_SCHEMA = {"anyOf": [_FILE_SCHEMA, {"type": "array", "items": _FILE_SCHEMA, "minItems": 1}]}
STATE_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["sound", "degraded"]},
        {
            "type": "object",
            "properties": {"nccl_tests": _FILES_SCHEMA},
            "required": ["nccl_tests"],
            "additionalProperties": False,
        },
    ]
}
if TYPE_CHECKING:
    from astrasim_py.scenario.astra_sim_inputs import AstraSimInputs
    from astrasim_py.scenario.open_loop import OpenLoop
    from astrasim_py.training.inference import Inference
    from astrasim_py.training.recommendation import Recommendation
    from astrasim_py.training.state_keys import SoftwareKey as SoftwareKey
    from astrasim_py.training.state_keys import StateKey as StateKey
    from astrasim_py.training.strategy import Training
else:
    AstraSimInputs = Annotated[Any, ByNeed("astrasim_py.scenario.astra_sim_inputs:AstraSimInputs")]
    OpenLoop = Annotated[Any, ByNeed("astrasim_py.scenario.open_loop:OpenLoop")]
    Inference = Annotated[Any, ByNeed("astrasim_py.training.inference:Inference")]
    Recommendation = Annotated[Any, ByNeed("astrasim_py.training.recommendation:Recommendation")]
    Training = Annotated[Any, ByNeed("astrasim_py.training.strategy:Training")]
    SoftwareKey = Annotated[Any, ReadByNeed("astrasim_py.training.state_keys:software_key", SOFTWARE_SCHEMA)]
    StateKey = Annotated[Any, ReadByNeed("astrasim_py.training.state_keys:state_key", STATE_SCHEMA)]
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
    software: SoftwareKey | None = Field(
        default=None, description="whose constants hold: pytorch by default; ideal, links at nominal rates and no host"
    )
    state: StateKey | None = Field(
        default=None, description="of the machine: sound by default, degraded, or {nccl_tests: FILE}"
    )

    @property
    def roles(self) -> tuple[str, ...]:
        return load(_ROLES)

    def _complete(self) -> None:
        for key in ("software", "state"):
            if self.times == "roofline" and getattr(self, key) is not None:
                raise wrong(f"{key} changes nothing by the roofline", "write times: model, or drop it", (key, "@key"))


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
