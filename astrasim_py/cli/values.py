"""Values of options: lists of numbers, and files that are to be written."""

import re
from collections.abc import Sequence
from typing import Any

from astrasim_py.core.errors import OutputError, UsageError
from astrasim_py.core.files import make_folders, named

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
#: Numbers of a list.
_MOST = 2**20


def number_list(text: str, place: str) -> list[int]:
    """``0-7,12`` as numbers. Raises UsageError."""
    numbers: list[int] = []
    for part in map(str.strip, text.split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(place, f'"{text}" is no list of numbers', "write e.g. 0-7,12")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or len(numbers) + last - first >= _MOST:
            raise UsageError(place, f'"{part}" runs backwards, or too far', "write e.g. 0-7,12")
        numbers += range(first, last + 1)
    return numbers


def algorithms_of(texts: Sequence[str]) -> dict[str, Any]:
    """Values of ``--algorithm COLLECTIVE=NAME``, as they are under ``algorithms:`` of a scenario. Raises UsageError."""
    from astrasim_py.core.document import parse_document

    table: dict[str, Any] = {}
    for text in texts:
        collective, sign, name = text.partition("=")
        if not sign or not name.strip():
            raise UsageError("--algorithm", f'"{text}" is not COLLECTIVE=NAME', "write e.g. all_reduce=ring")
        table[collective.strip()] = parse_document(name, "--algorithm").plain()
    return table


def make_parent(target: str) -> None:
    """Make the folder of a file that is to be written. Raises OutputError."""
    folder = named(target, OutputError).parent
    try:
        make_folders(folder)
    except OSError as error:
        raise OutputError(target, f"cannot make {folder}: {error.strerror}", "choose a writable place") from None
