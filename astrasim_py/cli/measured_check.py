"""Check a machine: measured times of its collectives against expected ones, by size, with a sentence on each.

MEASURED is what nccl-tests and rccl-tests print (all_reduce_perf …) or write as JSON, or a CSV of measured times. The
name of the GPU tells the machine. Exits with 1 if a time is longer than expected by more than --tolerance.
"""

import argparse
import re

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import add, complain, engine_option, format_option
from astrasim_py.cli.output import printed
from astrasim_py.cli.validate_measured import measured_rows
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measured", metavar="MEASURED", nargs="+", help="measured times of collectives")
    shared_options.add(parser, "--preset", note="that of the GPU")
    shared_options.add(parser, "--profile", note="that of the machine")
    parser.add_argument("--tolerance", default="20%", metavar="PERCENT", help="how much longer a time may be (20%%)")
    shared_options.add(parser, "--figures")
    add(parser, "--where", "--out", "--strict", "--quiet")
    engine_option(parser)
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Check; 1 if a time is too long."""
    from astrasim_py.core.files import write_files
    from astrasim_py.measured.rows import rows_that_meet
    from astrasim_py.runs.progress import progress_line
    from astrasim_py.validation.machine_check import check_machines
    from astrasim_py.validation.measured import MeasuredReport, figures

    tolerance = _tolerance(args.tolerance)
    rows, warnings = measured_rows(args)
    rows = rows_that_meet(rows, args.where)
    with progress_line(quiet=args.quiet) as line:
        checks, notes = check_machines(rows, tolerance, args.preset, args.profile, args.engine, line.show)
    contents: dict[str, bytes] = {}
    if args.figures:
        report = MeasuredReport(predicted=tuple(call for check in checks for call in check.calls), notes=())
        pairs = [pair for check in checks for pair in zip(check.calls, check.sizes, strict=True)]
        drawings = figures(report, [call for call, size in pairs if size.is_slow])
        contents = {f"{args.out}/{name}": content for name, content in drawings.items()}
        write_files(contents.items(), make_folder=True)
    documents = [_document(check) for check in checks]
    within = all(check.within for check in checks)
    document = {"within": within, "checks": documents, "notes": notes, "warnings": warnings, "files": [*contents]}
    of_group = ("platform", "collective", "dtype", "ranks", "nodes")
    table = [{**{key: one[key] for key in of_group}, **size} for one in documents for size in one["sizes"]]
    if not printed(args.format, document, table):
        print("\n\n".join(map(_text, checks)))
        complain(f"figure: {name}" for name in contents)
    complain(() if args.quiet else notes)
    return EXIT_OK if within else EXIT_CHECK_FAILED


def _tolerance(text: str) -> float:
    """A share. Raises UsageError: no percentage."""
    match = re.fullmatch(r"\s*(\d{1,4}(?:\.\d{1,6})?)\s*%?\s*", text)
    if match is None:
        raise UsageError("--tolerance", f'"{text}" is no percentage', "write e.g. 20%")
    return float(match[1]) / 100


def _document(check) -> dict:
    from astrasim_py.results.values import ns_number

    row = check.row
    return {
        "platform": row.platform,
        "preset": check.preset,
        "profile": check.profile,
        "library": row.library,
        "version": row.version,
        "collective": row.collective,
        "dtype": row.dtype,
        "ranks": row.ranks,
        "nodes": row.nodes,
        "tolerance": check.tolerance,
        "within": check.within,
        "sentence": check.sentence,
        "launch_beyond_profile_ns": ns_number(check.launch_ps),
        "cause": check.cause and check.cause.text,
        "causes": check.causes,
        "sizes": [
            {
                "place": size.place,
                "size_bytes": size.size_bytes,
                "measured_ns": ns_number(size.measured_ps),
                "expected_ns": ns_number(size.expected_ps),
                "ratio": size.ratio,
                "busbw_GBps": _busbw(check, size.size_bytes, size.measured_ps),
                "expected_busbw_GBps": _busbw(check, size.size_bytes, size.expected_ps),
                "slow": size.is_slow,
            }
            for size in check.sizes
        ],
    }


def _busbw(check, size: int, time_ps: int) -> float:
    from astrasim_py.collectives.collective import busbw_factor

    # bytes per ps are 1000 GB/s
    return 1000 * float(busbw_factor(check.row.collective, check.row.ranks) or 0) * size / time_ps


def _text(check) -> str:
    from astrasim_py.core.units import format_size, format_time
    from astrasim_py.report.tables import rate, text_table

    cells = []
    for size in check.sizes:
        times = (size.measured_ps, size.expected_ps)
        rates = (rate(_busbw(check, size.size_bytes, time)) for time in times)
        slow = "too slow" if size.is_slow else ""
        cells.append((format_size(size.size_bytes), *map(format_time, times), f"{size.ratio:.2f}×", *rates, slow))
    headings = ("size", "measured", "expected", "ratio", "busbw GB/s", "expected", "")
    table = text_table(headings, cells, (True,) * 6 + (False,))
    machine = check.preset if check.profile == check.preset else f"{check.preset} with {check.profile}"
    return f"{check.what}: {check.row.platform}, expected of {machine}\n{table}\n{check.sentence}"
