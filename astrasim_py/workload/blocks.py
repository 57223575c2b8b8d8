"""Blocks of an all_to_all that are of unequal sizes: bytes from each rank of a group to each."""

import os
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from pydantic import ValidationInfo

from astrasim_py.core.errors import AstraError, ScenarioError, UnitError
from astrasim_py.core.fields import FileText, shown, wrong
from astrasim_py.core.files import read_regular
from astrasim_py.core.units import parse_size

#: Bytes from a to b at [a][b].
BlockSizes: TypeAlias = tuple[tuple[int, ...], ...]
Cell = TypeVar("Cell", int, float)
#: Largest file of block sizes, bytes, and digits of a size.
_LARGEST = 2**53
_MOST_MATRIX, _MOST_DIGITS = 2**24, 16


def read_written(value: object, info: ValidationInfo) -> FileText | BlockSizes:
    """What a scenario writes: rows of sizes, or a file of them. Raises pydantic's errors."""
    if isinstance(value, str):
        return FileText(value)
    return _rows(value, _cell)


def read_shares(value: object, info: ValidationInfo) -> FileText | tuple[tuple[float, ...], ...]:
    """As `read_written`, where only proportions count: rows of numbers, or of sizes, or a file of whole numbers or
    sizes. Raises pydantic's errors.
    """
    return FileText(value) if isinstance(value, str) else _rows(value, _share)


def _rows(value: object, cell: Callable[[object, int, int], Cell]) -> tuple[tuple[Cell, ...], ...]:
    if not isinstance(value, list | tuple) or not value:
        raise wrong(f"{shown(value)} is neither a file nor rows of sizes", "write e.g. [[0, 4 KiB], [8 KiB, 0]]")
    for a, row in enumerate(value):
        if not isinstance(row, list | tuple) or len(row) != len(value):
            raise wrong(f"is not a row of {len(value)} sizes, one per receiver", "write one per row", (a,))
    return tuple(tuple(cell(size, a, b) for b, size in enumerate(row)) for a, row in enumerate(value))


def _share(value: object, a: int, b: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _cell(value, a, b)
    if not 0 <= value < _LARGEST:
        raise wrong(f"{shown(value)} is no share of traffic", "write 0, or a number above 0", (a, b))
    return value


def _cell(value: object, a: int, b: int) -> int:
    if value == 0 and not isinstance(value, bool):
        return 0
    try:
        size = parse_size(value)
    except UnitError as error:
        raise wrong(error.problem, 'write 0, or a size such as "4 KiB"', (a, b)) from None
    if size >= _LARGEST:
        raise wrong(f"{shown(value)} is too much", "write less than 2^53 B", (a, b))
    return size


def buffer_of(blocks: BlockSizes) -> int:
    """Bytes of the longest buffer: what a rank sends to, or receives from, the others."""
    others = [[size for b, size in enumerate(row) if a != b] for a, row in enumerate(blocks)]
    columns = [[row[b] for a, row in enumerate(blocks) if a != b] for b in range(len(blocks))]
    return max(map(sum, (*others, *columns)), default=0)


def read_blocks(
    path: str | os.PathLike[str], ranks: int, place: str, error: type[AstraError] = ScenarioError
) -> BlockSizes:
    """Block sizes in bytes: a line per sender, a cell per receiver, divided by commas or spaces. A cell is a whole
    number of bytes, or a size with its unit; ``#`` begins a comment. Raises `error`: with the line: not a size, or not
    a square of `ranks`.
    """
    data = read_regular(path, _MOST_MATRIX, error, what="a file of block sizes", remedy="use fewer ranks")
    rows: list[tuple[int, ...]] = []
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        line_place = f"{place}: {os.fspath(path)}:{number}"
        cells = [cell.strip() for cell in text.rstrip(",").split(",")] if "," in text else text.split()
        if len(cells) != ranks:
            problem = f"{len(cells)} sizes, and there are {ranks} ranks"
            raise error(line_place, problem, "write one size per receiver, divided by commas")
        row = []
        for cell in cells:
            if cell.isascii() and cell.isdecimal() and len(cell) <= _MOST_DIGITS:
                row.append(int(cell))
                continue
            try:
                row.append(parse_size(cell))
            except UnitError as wrong_unit:
                raise error(line_place, wrong_unit.problem, 'write bytes, or a size such as "4 KiB"') from None
        if max(row) >= _LARGEST:
            raise error(line_place, f"{max(row)} B", "write less than 2^53 B")
        rows.append(tuple(row))
    if len(rows) != ranks:
        problem = f"{len(rows)} lines of sizes, and there are {ranks} ranks"
        raise error(f"{place}: {os.fspath(path)}", problem, "write one line per sender")
    return tuple(rows)
