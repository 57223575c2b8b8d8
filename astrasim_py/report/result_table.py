"""The table of a run's rows as text: what fits, and of many rows those that answer the question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from astrasim_py.report.tables import Column, cell_text, fitted_table, percent, rate, shortened, time_text
from astrasim_py.results.csv_io import csv_rows
from astrasim_py.results.model import About, Row, with_swept_columns
from astrasim_py.results.repeats import REPEAT_KEYS
from astrasim_py.results.values import TEXTS, value_order

#: Most rows that are shown as they are.
MOST_ROWS = 30
#: Characters of the names of the slowest.
_NAMED = 32
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
    ("slowest", "slowest", cell_text, 0),
    ("status", "status", str, 0),
)
_NAMES = ("algorithm", "busiest_link", "slowest", "status")
#: Heading → key, to sort and to select by.
HEADINGS = {heading: key for heading, key, _, _ in _SHOWN} | {"busbw": "busbw_GBps", "algbw": "algbw_GBps"}


def summary_text(rows: Sequence[Row], width: int | None = None, limit: int | None = None, ordered: bool = False) -> str:
    """The rows of a run as plain text, of at most `width` characters. Of more than `limit` rows those that answer the
    question, and a line on where all of them are; the first ones where they were `ordered` on purpose.

    Rows of points that were repeated with other seeds are those of `astrasim_py.results.repeats.medians`.
    """
    if not rows:
        return "no points"
    shown, note = rows, ""
    if limit is not None and len(rows) > limit:
        shown, note = (rows[:limit], f"the first {limit}") if ordered else _answer(rows, limit)
        note, rest = f"\n{note}; ", f"all {len(rows)} rows: {_ALL}, --top, --sort, --where"
        note = note + rest if width is None or len(note + rest) <= width + 1 else f"{note.rstrip('; ')}\n{rest}"
    gap = limit // 2 if limit is not None and len(shown) > limit else None
    if gap is not None:
        shown = [*shown[:gap], *shown[-gap:]]
    return fitted_table(columns_of(shown, gap), width, _ALL) + note


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


def columns_of(rows: Sequence[Row], gap: int | None = None) -> list[Column]:
    """Columns with a value, the swept ones first; a row of dots after `gap` rows."""
    keys = list(dict.fromkeys(key for row in rows for key in row.sweep))
    columns = [Column(key, [row.sweep.get(key, "") for row in rows], False) for key in keys]
    swept = columns or [Column("point", [row.point for row in rows], False)]
    answer = any(
        isinstance(row, AnswerRow) and row.slowest for row in rows
    )  # what is fastest each time is worth saying
    columns = [c._replace(asked=int(not answer and len(rows) > 1 and len(set(c.cells)) == 1)) for c in swept]
    for heading, key, show, order in _SHOWN:
        cells = [show(getattr(row, key, None)) for row in rows]
        if key == "algorithm" and not _tells_a_choice(cells, [c.cells for c in swept if c.heading != "topology"]):
            continue
        heading = "median time" if key == "time_ns" and any(row.interval for row in rows) else heading
        if any(cells) and not (key == "status" and set(cells) == {"done"}):
            columns.append(Column(heading, cells, key not in _NAMES, order))
    if gap is None:
        return columns
    return [column._replace(cells=[*column.cells[:gap], "…", *column.cells[gap:]]) for column in columns]


def _tells_a_choice(algorithms: Sequence[str], swept: Sequence[Sequence[str]]) -> bool:
    """Whether names of algorithms tell what the swept values do not: a protocol, or what was taken for each call."""
    if any(" " in name for name in algorithms):
        return True
    texts = [values for values in swept if all(value_order(value)[0] == TEXTS for value in values)]
    # Points that failed have no algorithm.
    numbers = [i for i, name in enumerate(algorithms) if name]
    pairs = ([(values[i], algorithms[i]) for i in numbers] for values in [[""] * len(algorithms), *texts])
    return all(len({*pair_list}) > len({value for value, _ in pair_list}) for pair_list in pairs)


@dataclass(frozen=True, kw_only=True, eq=False)
class AnswerRow(Row):
    """The fastest of several points."""

    slowest: Annotated[str, About("what the slowest takes, as text", kept="never")]


def _answer(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], str]:
    """The fastest of what is compared (names: topologies, algorithms) for each quantity that is swept, with what the
    slowest takes; or the first and the last rows, where there is nothing to compare. And what these rows are.
    """
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, value in row.sweep.items():
            values.setdefault(key, {})[value] = None
    varying = [key for key, texts in values.items() if len(texts) > 1]
    compared = [key for key in varying if not _quantities(values[key])]
    if not compared and len({row.npus for row in rows} - {None}) == 1:  # of one machine: tp, pp, chunks
        counts = [key for key in varying if all(value.isdigit() for value in values[key])]
        compared = counts if len(counts) < len(varying) else counts[1:]
    by = [key for key in varying if key not in compared]
    if not by and len(compared) > 1:
        by = [
            max(
                (key for key in compared if len(values[key]) <= limit),
                key=lambda k: len(values[k]),
                default=compared[0],
            )
        ]
        compared.remove(by[0])
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.sweep.get(key, "") for key in by), []).append(row)
    if not compared or not by or len(groups) == len(rows):
        return list(rows), f"the first and the last {limit // 2}"
    kind = f"the fastest {_words(compared)} for each {_words(by)}"
    kind += f", the first and the last {limit // 2}," if len(groups) > limit else ""
    fastest = [_fastest(group, by, compared) for group in groups.values()]
    first = fastest[0].sweep
    constant = [k for k in compared if k in first and all(row.sweep.get(k) == first[k] for row in fastest)]
    if not constant or len(fastest) == 1:
        return fastest, kind
    fastest = [replace(row, sweep={k: value for k, value in row.sweep.items() if k not in constant}) for row in fastest]
    return fastest, f"{kind}, always {', '.join(f'{key}={first[key]}' for key in constant)}"


def _words(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _quantities(values: Iterable[str]) -> bool:
    """Whether swept values are sizes, counts, … ("4 GPUs", too), not names of what is compared."""
    return any(value_order(value)[0] != TEXTS for value in values) or all(value[:1].isdigit() for value in values)


def _fastest(group: Sequence[Row], by: Sequence[str], compared: Sequence[str]) -> AnswerRow:
    timed = sorted(((row.time_ns, row) for row in group if row.time_ns is not None), key=lambda pair: pair[0])
    best, slowest = timed[0][1] if timed else group[0], ""
    if len(timed) > 1 and timed[0][0]:
        names = ", ".join(timed[-1][1].sweep.get(key, "") for key in compared)
        slowest = f"{timed[-1][0] / timed[0][0]:.2f}× {shortened(names, _NAMED)}"
    sweep = {key: best.sweep[key] for key in (*by, *compared) if key in best.sweep}
    return AnswerRow(**vars(best) | {"sweep": sweep}, slowest=slowest)
