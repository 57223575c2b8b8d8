"""Conditions such as ``<= 256 KiB`` on sizes, numbers of ranks and nodes, as fields of strict models."""

import operator
import re
from collections.abc import Callable
from functools import reduce
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, GetPydanticSchema, TypeAdapter

from astrasim_py.core.errors import UnitError
from astrasim_py.core.fields import Scalar, Text, whole, wrong
from astrasim_py.core.units import parse_size

_BOUND = re.compile(r"\s*(<=|>=|==|<|>)\s*(.+?)\s*")
_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}


def _comparisons(
    annotation: Any, key: str, read: Callable[[str], int], example: str, number: Callable[[object], int] | None = None
) -> GetPydanticSchema:
    """Of a field of comparisons; `number` reads a plain number, which then is a condition, too."""

    def check(value: object) -> tuple[tuple[str, int], ...]:
        if number is not None and not isinstance(value, str):
            return (("==", number(value)),)
        comparisons = []
        for part in str(value).split(" and "):
            match = _BOUND.fullmatch(part)
            if match is None:
                raise wrong(f'{key} "{value}" is not a comparison', f'write e.g. "{example}"')
            try:
                comparisons.append((match[1], read(match[2])))
            except UnitError as error:
                raise wrong(error.problem, error.remedy) from None
        return tuple(comparisons)

    return GetPydanticSchema(
        lambda source, handler: handler.generate_schema(Annotated[annotation, AfterValidator(check)] | None)
    )


def _whole(key: str, digits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > digits:
            raise wrong(f'{key} "{text}" is not a whole number', 'write e.g. ">= 8"')
        return int(text)

    return read


#: (operator, bound) of each comparison; None is none.
Comparisons: TypeAlias = tuple[tuple[str, int], ...] | None
#: Fields of conditions, which `hold` tests.
SizeCondition: TypeAlias = Annotated[
    Comparisons, _comparisons(Text, "size", parse_size, "<= 256 KiB"), Field(examples=['"<= 256 KiB"'])
]
RanksCondition: TypeAlias = Annotated[
    Comparisons, _comparisons(Scalar, "ranks", _whole("ranks", 9), ">= 8"), Field(examples=['">= 8"'])
]
_NODE = TypeAdapter(Annotated[int, whole(0, 2**63 - 1, "id of a node")]).validate_python
_NODES = ">= 8 and < 20"
NodeCondition: TypeAlias = Annotated[
    Comparisons,
    _comparisons(Scalar, "node", _whole("node", 18), _NODES, _NODE),
    Field(
        examples=[f'"{_NODES}"'],
        description="id of the workload's node on the first rank of its group, or a comparison",
    ),
]


def hold(conditions: Comparisons, value: Any) -> Any:
    """Whether a value, or each of an array, satisfies all conditions."""
    return reduce(operator.and_, (_HOLDS[op](value, bound) for op, bound in conditions or ()), True)
