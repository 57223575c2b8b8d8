"""Compare measured times of collectives with simulation under a profile.

MEASURED is a CSV of measured times, or what nccl-tests and rccl-tests print (all_reduce_perf, alltoall_perf …). Exits
with 1 beyond --max-median or --max-p90.
"""

import argparse
import math
from dataclasses import asdict

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import add, complain, engine_option, format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measured", metavar="MEASURED", nargs="+", help="measured times of collectives")
    shared_options.add(parser, "--profile", note="that of each row's platform")
    add(parser, "--where")
    shared_options.add(parser, "--programs")
    parser.add_argument("--max-median", type=float, metavar="PERCENT", help="fail if the median error is larger")
    parser.add_argument("--max-p90", type=float, metavar="PERCENT", help="fail if the 90th percentile is larger")
    shared_options.add(parser, "--figures")
    add(parser, "--out", "--strict", "--quiet")
    engine_option(parser)
    format_option(parser)


def measured_rows(args: argparse.Namespace) -> tuple[list, list[str]]:
    """Rows of the files of a command line, and the warnings about them, which are printed. Raises UsageError: there
    are some under --strict.
    """
    from astrasim_py.measured.rows import read_rows

    warnings: list[str] = []
    rows = read_rows(args.measured, warnings)
    complain(f"warning: {text}" for text in warnings)
    if args.strict and warnings:
        raise UsageError("--strict", f"{len(warnings)} warning{'s' * (len(warnings) > 1)} about MEASURED", "see above")
    return rows, warnings


def run(args: argparse.Namespace) -> int:
    """Compare; 1 if an error is beyond its limit."""
    from astrasim_py.core.files import write_files
    from astrasim_py.measured.rows import rows_that_meet
    from astrasim_py.validation.measured import compare, figures

    limits = {"median": args.max_median, "p90": args.max_p90}
    for name, limit in limits.items():
        if limit is not None and not 0 <= limit < math.inf:
            raise UsageError(f"--max-{name}", f"{limit} is no limit", "write percent, e.g. 10")
    rows, warnings = measured_rows(args)
    rows = rows_that_meet(rows, args.where)
    report = compare(rows, args.profile, args.engine, args.programs)
    complain(report.notes)
    total = report.group()
    contents: dict[str, bytes] = {}
    if args.figures:
        contents = {f"{args.out}/{name}": content for name, content in figures(report).items()}
        write_files(contents.items(), make_folder=True)
    document = measured_json(report, "platform", "collective", "ranks", "band")
    document |= {"worst": _worst(report), "notes": report.notes, "warnings": warnings, "files": [*contents]}
    if not printed(args.format, document, document["groups"]):
        print(_text(report))
        complain(f"figure: {name}" for name in contents)
    within = all(limit is None or 100 * getattr(total, f"{name}_rel_error") <= limit for name, limit in limits.items())
    return EXIT_OK if within else EXIT_CHECK_FAILED


def measured_json(report, *keys: str) -> dict:
    """Errors of all rows, and by `keys`."""
    return asdict(report.group()) | {"groups": [*map(asdict, report.groups(*keys))]}


def _worst(report) -> list[dict]:
    return [
        {
            "place": entry.row.place,
            "label": entry.row.label,
            "measured_us": entry.row.time_ps / 1e6,
            "simulated_us": entry.time_ps / 1e6,
            "rel_error": entry.error,
        }
        for entry in report.worst
    ]


def measured_text(report, *keys: str) -> str:
    """Errors of all rows, of platforms, and by further `keys`, beside those of each band."""
    from astrasim_py.report.tables import text_table
    from astrasim_py.validation.measured import BANDS

    def errors(group) -> str:
        return f"{100 * group.median_rel_error:.1f} / {100 * group.p90_rel_error:.1f}"

    def line(*names: str, **of) -> tuple[str, ...]:
        group, bands = report.group(**of), {one.band: errors(one) for one in report.groups("band", **of)}
        bands_text = (bands.get(name, "") for name, _ in BANDS)
        return (*names, str(group.cases), errors(group), f"{100 * group.bias:+.1f}", *bands_text)

    rows, blank = [], [""] * len(keys)
    for of_platform in report.groups("platform"):
        platform = of_platform.platform
        for one in report.groups(*keys, platform=platform) if keys else ():
            of = {key: getattr(one, key) for key in keys}
            rows.append(line(platform, *map(str, of.values()), platform=platform, **of))
        rows.append(line(platform, *(["all", *blank[1:]] if keys else ()), platform=platform))
    if len(report.groups("platform")) > 1:
        rows.append(line("all", *blank))
    headings = ("platform", *keys, "cases", "error %", "bias %", *(name for name, _ in BANDS))
    texts = sum(key == "collective" for key in keys) + 1
    return text_table(headings, rows, (*(False,) * texts, *(True,) * (len(headings) - texts)))


def _text(report) -> str:
    from astrasim_py.core.units import format_time

    lines = [measured_text(report, "collective", "ranks")]
    lines += [
        "error %: median / 90th percentile of |simulated / measured - 1|; bias: median with its sign",
        "",
        "worst:",
    ]
    for entry in report.worst:
        times = f"simulated {format_time(entry.time_ps)}, measured {format_time(entry.row.time_ps)}"
        lines.append(f"{entry.row.place}: {entry.row.label}: {times} ({100 * entry.error:+.0f} %)")
    return "\n".join(lines)
