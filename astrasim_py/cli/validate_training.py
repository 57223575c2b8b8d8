"""Compare published step times of training with closed forms, by source (models with experts apart), nodes, tp, MFU
and machine state.

Nothing passes or fails here.
"""

import argparse
from dataclasses import asdict
from typing import Any

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import EXIT_OK

#: Rows that are not predicted, listed for a reason at most; all are in the JSON.
_LISTED = 5
#: Headings of classes.
_BY = {"nodes": "nodes", "tp": "tp", "mfu": "measured MFU", "state": "state of the machine"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", metavar="ROWS.csv", help="published step times of training")
    rows_options(parser)
    parser.add_argument("--why", metavar="ID", help="the terms of one row beside its measurement")


def rows_options(parser: argparse.ArgumentParser) -> None:
    """Options of verbs that read rows."""
    shared_options.add(parser, "--only")
    text = "of all machines of which it is known, whatever their nccl-tests say"
    parser.add_argument("--assume-state", choices=("sound", "degraded"), help=text)
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the errors, or the terms of one row."""
    if args.why is None:
        return report_errors(args, calibrate=False)
    from astrasim_py.validation.training_row_terms import row_terms, row_text
    from astrasim_py.validation.training_rows import read_rows

    found = row_terms(read_rows(args.rows, args.only, args.assume_state), args.why)
    if not printed(args.format, asdict(found)):
        print(row_text(found))
    return EXIT_OK


def report_errors(args: argparse.Namespace, *, calibrate: bool) -> int:
    """Print the errors; with constants that are fitted to each source, too."""
    from astrasim_py.validation.memory_rows import judge_memory, memory_text
    from astrasim_py.validation.training_errors import compare
    from astrasim_py.validation.training_rows import read_rows

    rows = read_rows(args.rows, args.only, args.assume_state)
    memory = judge_memory(rows)
    timed = memory is None or any(row.layout is not None and not row.problem for row in rows)
    report = compare(rows, calibrate=calibrate) if timed else None
    document = (_document(report) if report else {"groups": []}) | ({"memory": asdict(memory)} if memory else {})
    if not printed(args.format, document, document["groups"]):
        print("\n".join([*([_text(report)] if report else []), *([memory_text(memory)] if memory else [])]))
    return EXIT_OK


def _document(report) -> dict[str, Any]:
    total = asdict(report.total)
    del total["group"]
    left_out = [
        {"place": row.place, "id": row.id, "source": row.source, "reason": row.problem} for row in report.unpredicted
    ]
    groups = {"groups": [*map(asdict, report.groups)], "summaries": [*map(asdict, report.summaries)]}
    groups["classes"] = [{"by": by} | asdict(errors) for by, members in report.classes.items() for errors in members]
    return total | groups | {"unpredicted": left_out}


def _text(report) -> str:
    from astrasim_py.report.tables import text_table

    fitted = report.total.fitted_median_rel_error is not None
    headings = ["source", "rows", "median error", "p90", "within 30 %", "too fast"]
    headings += ["fitted", "p90", "held out", "host", "gemm", "nic", "interference"] if fitted else []
    rows = []
    for one in (*report.groups, *report.summaries, report.total):
        name = f"{one.group} (MoE)" if one.experts and one in report.groups else one.group
        row = [name, *_cells(one)]
        if fitted:
            errors = (one.fitted_median_rel_error, one.fitted_p90_rel_error, one.held_out_median_rel_error)
            row += [*map(error_text, errors), *(_constant(one, key) for key in one.constants or ())]
            row += [""] * (len(headings) - len(row))
        rows.append(tuple(row))
    lines = [text_table(tuple(headings), rows, (False, *(True,) * (len(headings) - 1)))]
    headings = ["by", "", *headings[1:6]]
    by_class = [
        (_BY[by] if one is members[0] else "", one.group, *_cells(one))
        for by, members in report.classes.items()
        for one in members
    ]
    if by_class:
        lines += ["", text_table(tuple(headings), by_class, (False, False, *(True,) * (len(headings) - 2))), ""]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in report.unpredicted:
        reasons.setdefault((row.source, row.problem), []).append(row.id)
    for (source, why), ids in reasons.items():
        listed = f"{', '.join(ids[:_LISTED])}{f' and {len(ids) - _LISTED} more' if len(ids) > _LISTED else ''}"
        lines.append(f"not predicted: {source}: {why}: {listed}")
    return "\n".join(lines)


def _cells(errors) -> tuple[str, ...]:
    median, p90 = error_text(errors.median_rel_error), error_text(errors.p90_rel_error)
    return str(errors.cases), median, p90, f"{100 * errors.within_30:.0f} %", f"{100 * errors.too_fast:.0f} %"


def _constant(errors, key: str) -> str:
    """A fitted constant with its interval, or that the rows do not determine it."""
    value, interval = errors.constants[key], errors.intervals[key]
    if not interval.determined:
        return f"{value:.2f} (not determined)"
    return f"{value:.2f} ({interval.low:.2f}-{interval.high:.2f})"


def error_text(error: float | None) -> str:
    """A relative error in percent."""
    if error is None:
        return "-"
    return "0" if error == 0 else f"{100 * error:.3g} %"
