"""Results on stdout in forms for programs: JSON, CSV and Markdown of the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from decimal import Decimal

from astrasim_py.core.exact_json import json_line, json_text, plain


def printed(
    form: str | None,
    document: object,
    rows: Iterable[object] | None = None,
    columns: Sequence[str] = (),
) -> bool:
    """Print a result for programs; False, and nothing, where text is asked for.

    `document`: what JSON has, rows or one object. `rows`: those of CSV and Markdown; by default those of the document,
    or the object as the only one; mappings or dataclasses. `columns`: their first keys, also of a table without rows.
    """
    if form == "json":
        print(json_text(document))
        return True
    if form not in ("csv", "markdown"):
        return False
    if rows is None:
        rows = document if isinstance(document, list | tuple) else [document]
    table = [_mapping(row) for row in rows]
    keys = [*dict.fromkeys((*columns, *(key for row in table for key in row)))]
    cells = [{key: _cell(row.get(key)) for key in keys} for row in table]
    if form == "csv":
        from astrasim_py.results.csv_io import csv_rows

        print(csv_rows(keys, cells).decode(), end="")
    else:
        from astrasim_py.report.result_table import markdown_text
        from astrasim_py.report.tables import Column

        numeric = {key: all(isinstance(row.get(key), int | float | Decimal | None) for row in table) for key in keys}
        print(markdown_text([Column(key, [_text(row[key]) for row in cells], numeric[key]) for key in keys]))
    return True


def _mapping(row: object) -> Mapping[str, object]:
    if isinstance(row, Mapping):
        return row
    assert is_dataclass(row) and not isinstance(row, type)
    return asdict(row)


def _cell(value: object) -> object:
    """A value of one cell: what has parts is a line of JSON."""
    return json_line(value) if isinstance(value, Mapping | list | tuple) or is_dataclass(value) else value


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return plain(value) if isinstance(value, Decimal) else str(value)
