"""The table of messages of open-loop traffic as text."""

import csv
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from astrasim_py.report.tables import Column, fitted_table, rate, time_text
from astrasim_py.results.model import Row

FLOWS = "flows.csv"
#: Points beyond which only all messages of a point have a row.
_MANY = 4


def flows_text(folder: Path, rows: Sequence[Row], width: int | None) -> str:
    """The lines of some points in a scenario's ``flows.csv`` as plain text, behind an empty line; empty where there are
    none. Of a point that is repeated with other seeds it is those of the run of median time.
    """
    names = {f"{row.point},seed={row.seed}" if row.seeds else row.point: row.point for row in rows}
    with open(folder / FLOWS, encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["point"] in names]
    if not lines:
        return ""
    if len(names) > _MANY:
        lines = [line for line in lines if line["sizes"] == "all"]
    place = {name: number for number, name in enumerate(names)}
    lines.sort(key=lambda line: place[line["point"]])
    columns = [
        Column("messages of", [line["sizes"] for line in lines], False),
        Column("messages", [line["messages"] for line in lines], True),
    ]
    if len(names) > 1:
        columns.insert(0, Column("point", [names[line["point"]] for line in lines], False))
    for name in ("mean", "p50", "p99", "max"):
        columns.append(Column(name, [time_text(Decimal(line[f"{name}_ns"])) for line in lines], True))
    for name in ("mean", "p50", "p99"):
        cells = [rate(Decimal(line[f"{name}_slowdown"])) if line[f"{name}_slowdown"] else "" for line in lines]
        columns.append(Column(f"{name} slowdown", cells, True))
    return f"\n{fitted_table([column for column in columns if any(column.cells)], width, FLOWS)}\n"
