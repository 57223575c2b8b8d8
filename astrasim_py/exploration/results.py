"""The folder of an exploration: tables and figures, written whole or not at all."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astrasim_py.core.errors import OutputError
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.files import make_folders, output_error, write_file
from astrasim_py.exploration.search import REASONS, Priced
from astrasim_py.report.explore import table_csv, table_row
from astrasim_py.results import store
from astrasim_py.results.csv_io import csv_rows
from astrasim_py.results.stored_points import MANIFEST, read_object

#: Rows that are written at once.
_AT_ONCE = 2**14
_PLACE = "name a folder that you may write with --out"


def results_folder(out: str | os.PathLike, name: str) -> Path:
    """Where results go. Raises OutputError: it cannot be written, or holds something else."""
    folder = store.scenario_folder(out, f"{name[:55]}-explored")
    try:
        make_folders(folder.parent)
        with store.scratch(folder.parent) as beside:
            if beside is None:
                raise PermissionError(13, "Permission denied")
        if os.path.lexists(folder) and "exploration" not in read_object(folder / MANIFEST):
            raise OutputError(str(folder), f"there is no {MANIFEST} of an exploration in it", _PLACE)
        store.clean(folder.parent)
    except OSError as error:
        raise output_error(folder, error, _PLACE) from error
    return folder


def write_results(
    folder: Path,
    priced: Priced,
    rows: Sequence[Mapping[str, Any]],
    flops: str,
    best: Mapping[str, str],
    more: Mapping[str, bytes],
) -> None:
    """Write the table, the counts of what is refused, and more files. `best`: configurations, for the table.

    Raises OutputError.
    """
    refused = [{"reason": name, "configurations": count} for name, count in priced.refused.items()]
    table = {
        "exploration": priced.exploration.name,
        **priced.exploration.costs.keys(),
        "configurations": priced.grid.count,
        "possible": int((priced.reasons < 0).sum()),
        "refused": priced.refused,
        **best,
        "rows": list(rows),
    }
    files = {
        "table.csv": table_csv(rows, flops),
        "table.json": json_bytes(table),
        "refused.csv": csv_rows(("reason", "configurations"), refused),
        **more,
    }
    store.replace_folder(folder, files, {"exploration": priced.exploration.name})


def write_all(priced: Priced, path: str) -> None:
    """Write every configuration as CSV: its values, why it is refused, its step and its memory. Raises OutputError."""
    grid = priced.grid
    keys = (*grid.shown, "refused", "step_s", "memory_bytes")

    def lines() -> Iterator[bytes]:
        yield csv_rows(keys, ())
        for first in range(0, grid.count, _AT_ONCE):
            rows = []
            for number in range(first, min(first + _AT_ONCE, grid.count)):
                reason, values = int(priced.reasons[number]), grid.values(number)
                priced_at_all = not np.isnan(priced.seconds[number])
                rows.append(
                    {key: values[key] for key in grid.shown}
                    | {"refused": REASONS[reason] if reason >= 0 else ""}
                    | {"step_s": float(priced.seconds[number]) if priced_at_all else None}
                    | {"memory_bytes": int(priced.memory[number]) if priced_at_all else None}
                )
            yield csv_rows(keys, rows).split(b"\n", 1)[1]

    write_file(Path(path), lines())


def require_parquet(path: str) -> None:
    """Raise OutputError unless pyarrow is installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise OutputError(path, "Parquet needs pyarrow", "install it, or read table.csv") from None


def table_parquet(rows: Sequence[Mapping[str, Any]], flops: str, path: str) -> None:
    """Write the table as Parquet. Raises OutputError: pyarrow is not installed, or there is no place."""
    require_parquet(path)
    import pyarrow
    from pyarrow import parquet

    cells = [table_row(row, flops) for row in rows]
    columns = {key: [row[key] for row in cells] for key in cells[0]}
    columns["recompute"] = [str(value) for value in columns["recompute"]]
    try:
        parquet.write_table(pyarrow.table(columns), path)
    except OSError as error:
        raise output_error(path, error) from error
