"""The table of a run's rows as text: the columns that fit, and of many rows the first and the last."""

from collections.abc import Sequence

from astrasim_py.core.value_order import TEXTS, value_order
from astrasim_py.report.tables import Column, cell_text, fitted_table, percent, rate, time_text
from astrasim_py.results.csv_io import csv_rows
from astrasim_py.results.model import Row, with_swept_columns
from astrasim_py.results.repeats import REPEAT_KEYS

#: File with all rows and columns.
_ALL = "summary.csv"


#: Heading, key of the row, format, and how readily the column is left out; one without any value is left out at once.
_SHOWN = (
    ("chosen", "algorithm", cell_text, 5),
    ("time", "time_ns", time_text, 0),
    ("10 to 90 %", "interval", cell_text, 1),
    ("seeds", "seeds", cell_text, 9),
    ("bound", "bound_ns", time_text, 6),
    ("bound/time", "efficiency", percent, 2),
    ("exposed comm", "exposed_comm_ns", time_text, 4),
    ("algbw GB/s", "algbw_GBps", rate, 7),
    ("busbw GB/s", "busbw_GBps", rate, 3),
    ("messages", "messages", cell_text, 11),
    ("busiest link", "busiest_link", cell_text, 8),
    ("its GB/s", "busiest_link_GBps", rate, 10),
    ("status", "status", str, 0),
)
_NAMES = ("algorithm", "busiest_link", "status")
#: Heading → key, to sort and to select by.
HEADINGS = {heading: key for heading, key, _, _ in _SHOWN} | {"busbw": "busbw_GBps", "algbw": "algbw_GBps"}


def summary_text(
    rows: Sequence[Row],
    width: int | None = None,
    limit: int | None = None,
    ordered: bool = False,
    multiples: Column | None = None,
) -> str:
    """The rows of a run as plain text, of at most `width` characters. Of more than `limit` rows the first and the last,
    or the first where they were `ordered` on purpose, and a line on where all of them are. `multiples`: a column of the
    rows, beside the time.

    Rows of points that were repeated with other seeds are those of `astrasim_py.results.repeats.medians`.
    """
    if not rows:
        return "no points"
    columns, note = columns_of(rows), ""
    if multiples is not None:
        place = 1 + next(number for number, column in enumerate(columns) if column.heading.endswith("time"))
        columns.insert(place, multiples)
    if limit is not None and len(rows) > limit:
        half = limit // 2
        parts = f"the first {limit}" if ordered else f"the first and the last {half}"
        note, rest = f"\n{parts}; ", all_rows_text(rows)
        note = note + rest if width is None or len(note + rest) <= width + 1 else f"{note.rstrip('; ')}\n{rest}"
        cut = (lambda cells: cells[:limit]) if ordered else (lambda cells: [*cells[:half], "…", *cells[-half:]])
        columns = [column._replace(cells=cut(column.cells)) for column in columns]
    return fitted_table(columns, width, _ALL) + note


def all_rows_text(rows: Sequence[Row]) -> str:
    """Where rows are of which some are shown."""
    return f"all {len(rows)} rows: {_ALL}, --top, --sort, --where"


def markdown_text(columns: Sequence[Column]) -> str:
    """A table in Markdown."""
    lines: list[Sequence[str]] = [[c.heading for c in columns], ["---:" if c.numeric else "---" for c in columns]]
    lines += zip(*(column.cells for column in columns), strict=True)
    return "\n".join(f"| {' | '.join(_markdown(cell) for cell in line)} |" for line in lines)


def _markdown(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).replace("|", "\\|")


def csv_text(rows: Sequence[Row], columns: Sequence[str] = ()) -> str:
    """The rows as CSV, with the columns of ``summary.csv`` and `columns`."""
    keys, lines = with_swept_columns(rows)
    place = keys.index("time_ns") + 1
    repeated = REPEAT_KEYS if any(row.seeds for row in rows) else ()
    return csv_rows([*keys[:place], *repeated, *keys[place:], *columns], lines).decode().removesuffix("\n")


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """Columns with a value, the swept ones first."""
    keys = list(dict.fromkeys(key for row in rows for key in row.sweep))
    columns = [Column(key, [row.sweep.get(key, "") for row in rows], False) for key in keys]
    swept = columns or [Column("point", [row.point for row in rows], False)]
    columns = [c._replace(asked=int(len(rows) > 1 and len(set(c.cells)) == 1)) for c in swept]
    for heading, key, show, order in _SHOWN:
        cells = [show(getattr(row, key, None)) for row in rows]
        if key == "algorithm" and not _tells_a_choice(cells, [c.cells for c in swept if c.heading != "topology"]):
            continue
        heading = "median time" if key == "time_ns" and any(row.interval for row in rows) else heading
        if any(cells) and not (key == "status" and set(cells) == {"done"}):
            columns.append(Column(heading, cells, key not in _NAMES, order))
    return columns


def _tells_a_choice(algorithms: Sequence[str], swept: Sequence[Sequence[str]]) -> bool:
    """Whether names of algorithms tell what the swept values do not: a protocol, or what was taken for each call."""
    if any(" " in name for name in algorithms):
        return True
    texts = [values for values in swept if all(value_order(value)[0] == TEXTS for value in values)]
    # Points that failed have no algorithm.
    numbers = [i for i, name in enumerate(algorithms) if name]
    pairs = ([(values[i], algorithms[i]) for i in numbers] for values in [[""] * len(algorithms), *texts])
    return all(len({*pair_list}) > len({value for value, _ in pair_list}) for pair_list in pairs)
