"""Types of fields of strict models: text with units in, exact numbers out, and a JSON Schema for editors.

Fields are read in one of two ways. Written input (a scenario; the validation context says ``written``) must be text
with a unit. Python code may pass exact numbers as well: picoseconds, bytes, bytes per second, operations.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    StringConstraints,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError

from astrasim_py.core.errors import UnitError
from astrasim_py.core.units import (
    INT64_MAX,
    PS_PER_S,
    parse_bandwidth,
    parse_compute_rate,
    parse_operations,
    parse_size,
    parse_time,
)

#: Largest number of NPUs, ranks and members.
NPU_CAP = 2**20

_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}"


def wrong(problem: str, remedy: str = "", at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """An error for pydantic that carries a remedy, and optionally a place below the value."""
    problem = problem.encode(errors="backslashreplace").decode()  # pydantic does not take half a character
    return PydanticCustomError("scenario", "{problem}", {"problem": problem, "remedy": remedy, "at": list(at)})


def shown(value: object) -> str:
    """A value for a message, cut short."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a number beyond 10^20"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    text = text if len(text) <= 64 else text[:64] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean "x"?``, or the known words."""
    known = list(known)
    lowered = {k.lower(): k for k in reversed(known)}
    close = difflib.get_close_matches(str(word).lower(), list(lowered), n=1, cutoff=0.6)
    if close:
        return f'did you mean "{lowered[close[0]]}"?'
    if not known:
        return "there are none here"
    listed = ", ".join(known[:24]) + (", …" if len(known) > 24 else "")
    return f"write one of {listed}"


@dataclass(frozen=True, eq=False)
class Checked:
    """Of a field, in `Annotated`: the function that reads its value, and its JSON Schema."""

    check: Callable[..., object]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return PlainValidator(self.check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)


def choice(*words: str | bool, whole_numbers: bool = False) -> Checked:
    """Of a field that accepts some words (true and false among them); optionally also a whole number from 1."""

    def check(value: object) -> object:
        if whole_numbers and isinstance(value, int) and not isinstance(value, bool):
            if 1 <= value <= NPU_CAP:
                return value
        elif any(value is word or (isinstance(word, str) and value == word) for word in words):
            return value
        choices = [shown(word).strip('"') for word in words] + (["a whole number from 1"] if whole_numbers else [])
        raise wrong(f"{shown(value)} is not one of {', '.join(choices)}", did_you_mean(str(value), choices))

    kinds: list[dict[str, Any]] = [{"enum": list(words)}]
    return Checked(check, {"anyOf": [*kinds, {"type": "integer", "minimum": 1}]} if whole_numbers else kinds[0])


#: Of a union of a value and a list: by what is given, or pydantic would report the errors of both.
ONE, SEVERAL = Tag("<one>"), Tag("<list>")
EITHER = Discriminator(lambda value: "<list>" if isinstance(value, list | tuple) else "<one>")


def _scalar(value: object) -> object:
    if value is None or isinstance(value, list | tuple | Mapping):
        raise wrong(f"{shown(value)} is not a plain value", "write a text or a number")
    return value


#: Text, a number, true or false.
Scalar = Annotated[Any, PlainValidator(_scalar), WithJsonSchema({"type": ["string", "number", "boolean"]})]


def written(info: ValidationInfo) -> bool:
    """Whether a person wrote the value, so that units are required."""
    return bool((info.context or {}).get("written"))


def _exact(value: object, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= INT64_MAX
    return isinstance(value, Fraction) and 0 < value <= INT64_MAX


def _quantity(
    kind: type, parse: Callable[..., Any], noun: str, example: str, *, contextual: bool = False, zero: bool = False
) -> Checked:
    def check(value: object, info: ValidationInfo) -> object:
        if not written(info) and (_exact(value, kind) or (zero and value == 0)):
            return kind(value)
        if not isinstance(value, str):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            reason = "it has no unit" if number else "it is not text"
            raise wrong(f"{shown(value)} is not a {noun}: {reason}", f'write e.g. "{example}"')
        try:
            return parse(value, **({"binary": bool((info.context or {}).get("binary"))} if contextual else {}))
        except UnitError as error:
            raise wrong(error.problem, error.remedy) from None

    schema = {"type": "string", "description": f"a {noun}, e.g. {example}", "examples": [example]}
    return Checked(check, schema)


Time: TypeAlias = Annotated[int, _quantity(int, parse_time, "time", "500 ns")]
Size: TypeAlias = Annotated[int, _quantity(int, parse_size, "size", "64 KiB")]
Bandwidth: TypeAlias = Annotated[
    Fraction, _quantity(Fraction, parse_bandwidth, "bandwidth", "50 GB/s", contextual=True)
]
#: Bandwidth of a memory: never read as binary.
MemoryBandwidth: TypeAlias = Annotated[Fraction, _quantity(Fraction, parse_bandwidth, "bandwidth", "2 TB/s")]
ComputeRate: TypeAlias = Annotated[Fraction, _quantity(Fraction, parse_compute_rate, "compute rate", "312 TFLOP/s")]
Operations: TypeAlias = Annotated[int, _quantity(int, parse_operations, "count of operations", "2.5 GFLOP")]


def parse_gamma(text: str) -> Fraction:
    """Read a reduction time per size such as ``"20 ns/MiB"``; returns seconds per byte, exact."""
    time, slash, unit = text.rpartition("/")
    if not slash:
        raise UnitError("", f'"{text[:64]}" is not a time per size', 'write e.g. "20 ns/MiB"')
    size = parse_size(f"1 {unit.strip()}" if not unit.strip()[:1].isdigit() else unit.strip())
    if not size:
        raise UnitError("", f'"{text[:64]}" is a time per nothing', 'write e.g. "20 ns/MiB"')
    return Fraction(parse_time(time), PS_PER_S * size)


Gamma: TypeAlias = Annotated[Fraction, _quantity(Fraction, parse_gamma, "time per size", "20 ns/MiB", zero=True)]


def _name(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(_NAME, text):
        problem = f"{shown(value)} is not a name"
        raise wrong(problem, 'write at most 64 of A-Z a-z 0-9 . _ -, not beginning with "."')
    return text


def _file_name(value: object) -> str:
    name = _name(value)
    if re.fullmatch(r"(?i:con|prn|aux|nul|com\d|lpt\d)(\..*)?", name):
        raise wrong(f"{shown(name)} is the name of a device on some systems", "choose another name")
    return name


_NAME_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^{_NAME}$", "maxLength": 64})
#: Names of topologies, groups, items.
Name = Annotated[str, PlainValidator(_name), _NAME_SCHEMA]
#: Names of scenarios and figures, which become names of folders and files on any system.
NewFileName = Annotated[str, PlainValidator(_file_name), _NAME_SCHEMA]

Text = Annotated[str, StringConstraints(max_length=4000)]


class FileText(str):
    """The name of a file, or the prefix of ``.et`` files, as written. `named_files` finds it in any model."""

    __slots__ = ()

    @property
    def file(self) -> str:
        """The file itself."""
        return str(self)


class CodeText(FileText):
    """``file.py:name``: a function or class in a Python file."""

    __slots__ = ()

    @property
    def file(self) -> str:
        return self.rpartition(":")[0]


if TYPE_CHECKING:
    FileName = FileText
    CodeName = CodeText
else:
    FileName = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(FileText)]
    CodeName = Annotated[Text, AfterValidator(CodeText)]


def code_or_name(value: str) -> str:
    """A text, which is code if it is written ``file.py:name``."""
    return CodeText(value) if ".py:" in value else value


CodeOrName = Annotated[Text, AfterValidator(code_or_name)]


def named_files(value: object, *at: str | int) -> Iterator[tuple[tuple[str | int, ...], FileText]]:
    """Every file that a model names, with the keys that lead to it as written."""
    if isinstance(value, FileText):
        yield at, value
    elif isinstance(value, BaseModel):
        fields = type(value).model_fields
        for name, inner in value:
            alias = fields[name].alias if name in fields else None
            yield from named_files(inner, *at, alias or name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from named_files(inner, *at, key)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from named_files(inner, *at, index)


def whole(low: int, high: int, what: str = "whole number", example: int | None = None) -> Checked:
    """A whole number in a range; the error states the range."""

    def check(value: object) -> int:
        remedy = f"write a whole number from {low:,} to {high:,}"
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong(f"{shown(value)} is not a {what}", f"{remedy}, e.g. {example}" if example else remedy)
        if value < low:
            raise wrong(f"{shown(value)} is less than {low:,}", remedy)
        if value > high:
            raise wrong(f"{shown(value)} is more than the cap of {high:,}", remedy)
        return value

    return Checked(check, {"type": "integer", "minimum": low, "maximum": high})


Count: TypeAlias = Annotated[int, whole(1, NPU_CAP, example=8)]
Rank: TypeAlias = Annotated[int, whole(0, NPU_CAP - 1, "rank", 0)]
Number = Annotated[float, WithJsonSchema({"type": "number"})]


def _speed(value: object) -> Fraction:
    remedy = "write a positive number, e.g. 0.5 for half as fast"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"{shown(value)} is not a speed", remedy)
    if not 1e-6 <= value <= 1e6:
        raise wrong(f"{value} is not a speed between 1e-6 and 1e6", remedy)
    return Fraction(str(value))


Speed = Annotated[Fraction, PlainValidator(_speed), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]

_RANGE = re.compile(r"(\d{1,7})(?:\s*(?:-|\.\.)\s*(\d{1,7}))?")


def rank_range(text: str, *at: int) -> range:
    """The ranks that ``"3"`` or ``"0-7"`` names; raises PydanticCustomError, `at` a place below the value."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise wrong(f"{shown(text)} is not a rank", 'write e.g. 3, or "0-7" for eight ranks', at)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first or last >= NPU_CAP:
        raise wrong(f"{shown(text)} is not a range of ranks", f'write e.g. "0-7", at most {NPU_CAP - 1}', at)
    return range(first, last + 1)


def _ranks(value: object) -> object:
    """Lists of ranks may hold ranges: [0, 3, "8-15"]."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple):
        return value
    flat: list[object] = []
    for i, item in enumerate(value):
        if isinstance(item, str):
            flat += rank_range(item, i)
        elif isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < NPU_CAP:
            raise wrong(f"{shown(item)} is not a rank", f'write 0 to {NPU_CAP - 1:,}, or "0-7" for eight', (i,))
        else:
            flat.append(item)
        if len(flat) > NPU_CAP:
            raise wrong(f"more than {NPU_CAP:,} ranks", "write fewer")
    seen: set[object] = set()
    for item in flat:
        if item in seen:
            raise wrong(f"rank {item} is listed twice", "list each rank once")
        seen.add(item)
    if not flat:
        raise wrong("no ranks are listed", "list at least one")
    return tuple(flat)


_RANGE_SCHEMA = {"type": "string", "pattern": r"^\s*\d"}
_RANKS_SCHEMA = {
    "anyOf": [
        {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 0}, _RANGE_SCHEMA]}},
        _RANGE_SCHEMA,
    ],
    "description": 'ranks: a list such as [0, 1, "4-7"]',
}
Ranks = Annotated[tuple[int, ...], BeforeValidator(_ranks), WithJsonSchema(_RANKS_SCHEMA)]


def by_rank(values: Mapping[str, object]) -> dict[int, object]:
    """Expand a mapping from ranks or ranges of ranks; a rank named twice is an error."""
    out: dict[int, object] = {}
    for key, value in values.items():
        for rank in rank_range(key):
            if rank in out:
                raise wrong(f"rank {rank} is named twice", "name each rank once", (key,))
            out[rank] = value
    return out
