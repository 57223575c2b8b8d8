"""Conditions such as ``<= 256 KiB`` on sizes, numbers of ranks and nodes, as fields of strict models."""

import operator
import re
from collections.abc import Callable
from functools import reduce
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter

from astrasim_py.core.errors import UnitError
from astrasim_py.core.fields import Scalar, Text, whole, wrong
from astrasim_py.core.units import parse_size

_BOUND = re.compile(r"\s*(<=|>=|==|<|>)\s*(.+?)\s*")
_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}


def _comparisons(
    written: Any, key: str, read: Callable[[str], int], example: str, one: Callable[[int], int] | None = None, **field
):
    """A field of comparisons; `one`: reads a plain number, which then is a condition, too."""

    def check(value: object) -> tuple[tuple[str, int], ...]:
        if one is not None and not isinstance(value, str):
            return (("==", one(value)),)
        found = []
        for part in str(value).split(" and "):
            match = _BOUND.fullmatch(part)
            if match is None:
                raise wrong(f'{key} "{value}" is not a comparison', f'write e.g. "{example}"')
            try:
                found.append((match[1], read(match[2])))
            except UnitError as error:
                raise wrong(error.problem, error.remedy) from None
        return tuple(found)

    kind = Annotated[written, AfterValidator(check)]
    return Annotated[kind | None, Field(default=None, examples=[f'"{example}"'], **field)]


def _whole(key: str, digits: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or len(text) > digits:
            raise wrong(f'{key} "{text}" is not a whole number', 'write e.g. ">= 8"')
        return int(text)

    return read


#: Fields of conditions, which `hold` tests; None is none.
SizeCondition = _comparisons(Text, "size", parse_size, "<= 256 KiB")
RanksCondition = _comparisons(Scalar, "ranks", _whole("ranks", 9), ">= 8")
_NODE = TypeAdapter(Annotated[int, whole(0, 2**63 - 1, "id of a node")]).validate_python
NodeCondition = _comparisons(
    Scalar,
    "node",
    _whole("node", 18),
    ">= 8 and < 20",
    one=_NODE,
    description="id of the workload's node on the first rank of its group, or a comparison",
)


def hold(conditions: tuple[tuple[str, int], ...] | None, value: Any) -> Any:
    """Whether a value, or each of an array, satisfies all conditions."""
    return reduce(operator.and_, (_HOLDS[op](value, bound) for op, bound in conditions or ()), True)
