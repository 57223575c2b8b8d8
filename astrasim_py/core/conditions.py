"""Conditions such as ``<= 256 KiB`` on sizes and numbers of ranks, as fields of strict models."""

import operator
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from astrasim_py.core.errors import UnitError
from astrasim_py.core.fields import Scalar, Text, wrong
from astrasim_py.core.units import parse_size

_BOUND = re.compile(r"\s*(<=|>=|==|<|>)\s*(.+?)\s*")
_HOLDS = {"<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt}


def _comparisons(written: Any, key: str, read: Callable[[str], int], example: str):
    def check(value: object) -> tuple[tuple[str, int], ...]:
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
    return Annotated[kind | None, Field(default=None, examples=[f'"{example}"'])]


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise wrong(f'ranks "{text}" is not a whole number', 'write e.g. ">= 8"')
    return int(text)


#: Fields of conditions, which `hold` tests; None is none.
SizeCondition = _comparisons(Text, "size", parse_size, "<= 256 KiB")
RanksCondition = _comparisons(Scalar, "ranks", _count, ">= 8")


def hold(conditions: tuple[tuple[str, int], ...] | None, value: int) -> bool:
    """Whether a value satisfies all conditions."""
    return all(_HOLDS[op](value, bound) for op, bound in conditions or ())
