"""Keys of ``workload: {open_loop: {…}}``: messages that are sent at random times, whether others are done or not."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Tag, ValidationInfo, WithJsonSchema

from astrasim_py.core.errors import UnitError
from astrasim_py.core.fields import Bandwidth, Count, Rank, Size, Time, choice, did_you_mean, shown, whole, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.core.units import parse_size
from astrasim_py.workload.blocks import read_shares

PATTERNS = ("uniform", "permutation", "hotspot", "incast", "all_to_all")
#: Largest mean size and gap for which every draw fits 2^63 - 1.
_LARGEST = 2**50


class Sizes(StrictModel):
    """The distribution of the sizes of messages; exactly one."""

    _place = "workload.open_loop.size"

    fixed: Size | None = None
    uniform: tuple[Size, Size] | None = Field(default=None, examples=["[1 KiB, 64 KiB]"])
    exponential: Size | None = Field(default=None, examples=["64 KiB"])
    weights: tuple[tuple[int, float], ...] = Field(default=(), description="size → how often, in proportion")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str | int | float):
            return {"fixed": value}
        if isinstance(value, Mapping) and not any(key in value for key in ("fixed", "uniform", "exponential")):
            return {"weights": tuple((_size(key), _weight(key, item)) for key, item in value.items())}
        return value

    def _complete(self) -> None:
        given = [self.fixed, self.uniform, self.exponential, self.weights or None]
        if sum(item is not None for item in given) != 1:
            raise wrong("is not one distribution", "write 64 KiB, {1 KiB: 9, 1 MiB: 1} or {exponential: 64 KiB}")
        low, high = self.uniform or (1, 1)
        if low > high:
            raise wrong("the second size is less than the first", "write the smaller one first", ("uniform",))
        if not 0 < self.mean < _LARGEST:
            raise wrong("has a mean of nothing or of too much", "write sizes of 1 B to 1 PiB")

    @property
    def mean(self) -> Fraction:
        """Bytes."""
        if self.weights:
            total = sum(Fraction(weight) for _, weight in self.weights)
            return sum((size * Fraction(weight) for size, weight in self.weights), Fraction(0)) / total
        if self.uniform:
            return Fraction(sum(self.uniform), 2)
        return Fraction(self.fixed or self.exponential or 0)


def _size(key: object) -> int:
    try:
        return parse_size(key)
    except UnitError as error:
        raise wrong(error.problem, "write sizes with units, e.g. {1 KiB: 9, 1 MiB: 1}") from None


def _weight(key: object, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9:
        raise wrong(f"{shown(value)} is not how often {key} comes", "write a number above 0", (str(key),))
    return float(value)


class Matrix(StrictModel):
    """Shares of traffic by sender and receiver."""

    matrix: Annotated[
        Any, PlainValidator(read_shares), WithJsonSchema({"type": ["string", "array"], "examples": ["traffic.csv"]})
    ]


def _pattern(value: object) -> object:
    if isinstance(value, Mapping) or value in PATTERNS:
        return value
    raise wrong(f"{shown(value)} is not a pattern", did_you_mean(str(value), (*PATTERNS, "{matrix: FILE}")))


class OpenLoop(StrictModel):
    """Messages whose times do not depend on how the network serves them."""

    _place = "workload.open_loop"

    pattern: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[Matrix, Tag("<matrix>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<matrix>"),
        BeforeValidator(_pattern),
    ] = example("uniform")
    load: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None, description="part of the rate of the links of the busiest NPU, in or out", examples=[0.8]
    )
    rate: Bandwidth | None = Field(default=None, description="in place of load: of each sender", examples=["10 GB/s"])
    size: Sizes = example("64 KiB")
    arrivals: Annotated[str, choice("poisson", "constant")] = "poisson"
    seed: Annotated[int, whole(0, 2**63 - 1)] = 0
    duration: Time | None = Field(default=None, description="messages that begin before", examples=["1 ms"])
    messages: Count | None = Field(default=None, description="in place of duration: of each sender")
    hot_rank: Rank = Field(default=0, description="of hotspot and incast")
    hot_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.5, description="of hotspot: part of the messages that go to the hot rank"
    )

    def _complete(self) -> None:
        for one, other, example_text in (("load", "rate", "load: 0.5"), ("duration", "messages", "messages: 1000")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                amount = "neither" if getattr(self, one) is None else "both"
                joint = "nor" if amount == "neither" else "and"
                raise wrong(f"has {amount} {one} {joint} {other}", f"write e.g. {example_text}")
        for key, kinds in (("hot_rank", ("hotspot", "incast")), ("hot_share", ("hotspot",))):
            if key in self.model_fields_set and self.pattern not in kinds:
                raise wrong(f"is of {' and '.join(kinds)} alone", "drop it", (key,))
