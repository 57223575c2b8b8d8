"""Validate: run measured cases and closed forms, and show how far off the results are.

CASES.csv names measured runs of ASTRA-sim, one a row, with files relative to it. Without it the packaged set runs:
closed forms of our own algorithms, and figures of ASTRA-sim. Exits with 1 if a figure differs, be it by 1 ns.

With --training ROWS.csv rows are published step times of training, and shown is how far off closed forms are. Nothing
passes or fails there.

With --measured MEASURED rows are measured times of collectives, and shown is how far off simulation under a profile is.
Exits with 1 beyond --max-median or --max-p90.
"""

import argparse
from contextlib import nullcontext
from dataclasses import asdict

from astrasim_py.cli import validate_measured
from astrasim_py.cli.options import check_positive, engine_option, engines_text, format_option
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK, UsageError
from astrasim_py.core.exact_json import json_text

#: Rows that are off which text shows; JSON has them all.
SHOWN = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", metavar="CASES.csv", nargs="?", help="by default the packaged set")
    parser.add_argument("--training", metavar="ROWS.csv", help="published training throughput, instead of cases")
    parser.add_argument("--calibrate", action="store_true", help="with --training: fit four constants to each source")
    validate_measured.arguments(parser)
    engine_option(parser)
    parser.add_argument("--set", action="append", default=[], metavar="NAME", help="only this set (repeatable)")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes; one per core by default")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run the cases; 1 if one that counts is off."""
    if args.measured is not None:
        _refuse("--measured", args, "cases", "training", "calibrate", "set", "jobs")
        return validate_measured.run(args)
    _refuse(
        "--measured", args, "profile", "where", "programs", "max_median", "max_p90", "figures", "strict", lacking=True
    )
    if args.training is not None:
        return _training(args)
    if args.calibrate:
        raise UsageError("--calibrate", "there are no rows to fit to", "write --training ROWS.csv, too")
    from astrasim_py.runs.progress import on_terminal
    from astrasim_py.validation.cases import read_cases
    from astrasim_py.validation.measured import compare, packaged_rows
    from astrasim_py.validation.validate import MEASURED, packaged_items, validate

    check_positive(args, "jobs")
    progress = on_terminal("validate", quiet=args.quiet)
    with packaged_items(args.set) if args.cases is None else nullcontext(read_cases(args.cases, args.set)) as items:
        report = validate(items, engine=args.engine, jobs=args.jobs, progress=progress)
    measured = None
    if args.cases is None and (not args.set or MEASURED in args.set):
        measured = compare(packaged_rows(), engine=args.engine)
    print(_json(report, measured) if args.format == "json" else _text(report, measured))
    return EXIT_OK if report.passes else EXIT_CHECK_FAILED


def _refuse(option: str, args: argparse.Namespace, *others: str, lacking: bool = False) -> None:
    """Refuse what does not go with an option, or not without it."""
    for name in others:
        if getattr(args, name):
            shown = "CASES.csv" if name == "cases" else f"--{name.replace('_', '-')}"
            if lacking:
                raise UsageError(shown, f"goes with {option} only", f"write {option} ROWS.csv, too")
            raise UsageError(option, f"goes without {shown}", "write one of them")


def _json(report, measured) -> str:
    total = asdict(report.judged)
    del total["group"], total["judged"]
    rows: dict[str, object] = {"groups": [asdict(group) for group in report.groups]}
    rows["off"] = [asdict(case) for case in report.off]
    if measured is not None:
        rows["measured"] = validate_measured.measured_json(measured, "platform")
    return json_text(total | {"engines": report.engines} | rows)


def _text(report, measured) -> str:
    from astrasim_py.report.tables import text_table

    headings = ("set", "cases", "exact", "median error", "worst error", "")
    groups = [*report.groups, report.judged] if len(report.groups) > 1 else report.groups
    rows = [
        (
            group.group,
            str(group.cases),
            str(group.exact),
            _percent(group.median_rel_error),
            _percent(group.worst_rel_error),
            "" if group.judged else "informative",
        )
        for group in groups
    ]
    lines = [text_table(headings, rows, (False, True, True, True, True, False))] if rows else []
    for one in report.off[:SHOWN]:
        lines.append(f"{one.place}: {one.set}: {one.label}: {one.note}{'' if one.judged else ' (informative)'}")
    if len(report.off) > SHOWN:
        lines.append(f"… and {len(report.off) - SHOWN} more (--format json shows all)")
    lines.append(engines_text(report.engines).rstrip("\n"))
    if measured is not None:
        lines.append(
            "measured: simulated against public times that the profiles are fitted to, median / 90th percentile"
        )
        lines.append(validate_measured.measured_text(measured))
    return "\n".join(line for line in lines if line)


def _percent(error: float | None) -> str:
    if error is None:
        return "-"
    return "0" if error == 0 else f"{100 * error:.3g} %"


def _training(args: argparse.Namespace) -> int:
    """Compare closed forms with published step times."""
    from astrasim_py.validation.training_errors import compare
    from astrasim_py.validation.training_rows import read_rows

    _refuse("--training", args, "cases", "jobs")
    if args.engine != "auto":
        raise UsageError("--engine", "closed forms have no engine", "drop it")
    report = compare(read_rows(args.training, args.set), calibrate=args.calibrate)
    print(_training_json(report) if args.format == "json" else _training_text(report))
    return EXIT_OK


def _training_json(report) -> str:
    def shown(errors) -> dict:
        return {key: value for key, value in asdict(errors).items() if value is not None}

    total = shown(report.total)
    del total["group"]
    left_out = [
        {"place": row.place, "id": row.id, "source": row.source, "reason": row.problem} for row in report.unpredicted
    ]
    groups = {"groups": [shown(one) for one in report.groups], "summaries": [shown(one) for one in report.summaries]}
    return json_text(total | groups | {"unpredicted": left_out})


def _training_text(report) -> str:
    from astrasim_py.report.tables import text_table

    fitted = report.total.fitted_median_rel_error is not None
    headings = ["source", "rows", "median error", "p90"]
    headings += ["fitted", "p90", "held out", "host", "gemm", "nic", "interference"] if fitted else []
    rows = []
    for one in (*report.groups, *report.summaries, report.total):
        name = f"{one.group} (MoE)" if one.experts and one in report.groups else one.group
        row = [name, str(one.cases), _percent(one.median_rel_error), _percent(one.p90_rel_error)]
        if fitted:
            errors = (one.fitted_median_rel_error, one.fitted_p90_rel_error, one.held_out_median_rel_error)
            row += [*map(_percent, errors), *(f"{value:.2f}" for value in (one.constants or {}).values())]
            row += [""] * (len(headings) - len(row))
        rows.append(tuple(row))
    lines = [text_table(tuple(headings), rows, (False, *(True,) * (len(headings) - 1)))]
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in report.unpredicted:
        reasons.setdefault((row.source, row.problem), []).append(row.id)
    lines += [f"not predicted: {source}: {why}: {', '.join(ids)}" for (source, why), ids in reasons.items()]
    return "\n".join(lines)
