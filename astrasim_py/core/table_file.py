"""Text files and CSV tables that the user names, with the place of every row."""

import csv
import io
import os
from collections.abc import Sequence
from difflib import get_close_matches

from astrasim_py.core.errors import UsageError
from astrasim_py.core.files import read_regular

MAX_BYTES = 2**28


def read_text(path: str | os.PathLike, what: str) -> str:
    """Content of a UTF-8 file. `what`: expected file, as in ``a CSV of cases``. Raises UsageError."""
    data = read_regular(path, MAX_BYTES, UsageError, what=what, remedy="cut it into several")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{os.fspath(path)}:{line}", "is not UTF-8 text", f"name {what}") from None


def table_rows(
    text: str, place: str, what: str, required: Sequence[str], optional: Sequence[str] = ()
) -> list[tuple[str, dict[str, str]]]:
    """Rows of a CSV: ``file:line``, and cells by heading, stripped; empty lines are left out.

    `optional`: if given, unknown columns with names similar to a known one raise an error. Raises
    UsageError: no CSV, a column of `required` is missing or any appears twice, a row of another length, or no row.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        heading = [name.strip() for name in next(reader, [])]
        _check_heading(heading, f"{place}:1", required, optional)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                here = f"{place}:{reader.line_num}"
                if len(cells) != len(heading):
                    problem = f"{len(cells)} cells under {len(heading)} headings"
                    raise UsageError(here, problem, "write one cell per heading")
                rows.append((here, dict(zip(heading, map(str.strip, cells), strict=True))))
    except csv.Error as error:
        raise UsageError(f"{place}:{reader.line_num or 1}", f"is no CSV: {error}", f"name {what}") from None
    if not rows:
        raise UsageError(f"{place}:1", "has no row under its heading", f"name {what}")
    return rows


def _check_heading(heading: Sequence[str], here: str, required: Sequence[str], optional: Sequence[str]) -> None:
    if not heading:
        raise UsageError(here, "is empty, there is no column", f"begin with a line of headings: {','.join(required)}")
    columns = (*required, *optional)
    for name in heading:
        if heading.count(name) > 1:
            raise UsageError(here, f'the column "{name}" appears twice', "keep one")
        near = get_close_matches(name, [key for key in columns if key not in heading], 1)
        if optional and name not in columns and near:
            raise UsageError(here, f'the column "{name}" is unknown', f"perhaps {near[0]} is meant")
    for name in required:
        if name not in heading:
            raise UsageError(here, f'there is no column "{name}"', f"write {', '.join(required)}")
