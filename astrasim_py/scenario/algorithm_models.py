"""Models of the algorithms that carry out collectives, and of the cases that choose them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
)

from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM
from astrasim_py.core.choices import LIBRARIES, PROTOCOLS
from astrasim_py.core.fields import (
    CodeName,
    FileName,
    Rank,
    Size,
    Text,
    Time,
    choice,
    did_you_mean,
    shown,
    whole,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.core.units import PS_PER_S
from astrasim_py.program.selection import When


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
        default="auto", description="per shard (of broadcast and reduce: of the buffer); auto: as many as suit the size"
    )
    rounds: Annotated[int, whole(1, 10**6)] = Field(default=200, description="runs of the search at most")
    seed: Annotated[int, whole(0, 2**31 - 1)] = 1
    budget: Time | None = Field(
        default=None, description="wall-clock time at most; the result records if it ended the search"
    )
    memory: Size | None = Field(default=None, description="memory of the process at most", examples=["2 GB"])
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
