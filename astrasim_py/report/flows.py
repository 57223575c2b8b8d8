"""The table of messages of open-loop traffic as text."""

import csv
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from astrasim_py.report.tables import Column, fitted_table, rate, time_text

FLOWS = "flows.csv"
#: Points beyond which only all messages of a point have a row.
_MANY = 4


def flows_text(folder: Path, points: Sequence[str], width: int | None) -> str:
    """The rows of some points in a scenario's ``flows.csv`` as plain text; empty where there are none."""
    path = folder / FLOWS
    if not path.exists():
        return ""
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["point"] in points]
    if len(points) > _MANY:
        rows = [row for row in rows if row["sizes"] == "all"]
    place = {point: number for number, point in enumerate(points)}
    rows.sort(key=lambda row: place[row["point"]])
    columns = [
        Column("messages of", [row["sizes"] for row in rows], False),
        Column("messages", [row["messages"] for row in rows], True),
    ]
    if len(points) > 1:
        columns.insert(0, Column("point", [row["point"] for row in rows], False))
    for name in ("mean", "p50", "p99", "max"):
        columns.append(Column(name, [time_text(Decimal(row[f"{name}_ns"])) for row in rows], True))
    for name in ("mean", "p50", "p99"):
        cells = [rate(Decimal(row[f"{name}_slowdown"])) if row[f"{name}_slowdown"] else "" for row in rows]
        columns.append(Column(f"{name} slowdown", cells, True))
    return fitted_table([column for column in columns if any(column.cells)], width, FLOWS) if rows else ""
