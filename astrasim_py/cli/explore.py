"""Explore how to train a model: price every configuration by closed forms, simulate the best ones.

FILE is YAML with the key `explore`, alone or in a scenario without a workload. CONFIG is written as in the table, e.g.
tp=8,pp=4,mbs=1; keys that are left out take their best values. Results: OUT/NAME-explored/ (table.csv, table.json,
refused.csv), and the simulated points in OUT/NAME-simulated/, which are used again.
"""

import argparse
import time

from astrasim_py.cli.options import check_positive, complain, engine_option, fold_text, format_option, look_text
from astrasim_py.cli.run import print_failures
from astrasim_py.core.exact_json import json_text

_FLOPS = ("full", "causal", "hardware")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="e.g. explore.simulate.top=5")
    parser.add_argument("--rows", type=int, default=20, metavar="N", help="rows on stdout (20)")
    parser.add_argument("--flops", choices=_FLOPS, default="full", help="how FLOPs are counted (full)")
    parser.add_argument("--explain", metavar="CONFIG", help="the terms of a configuration's step, and its memory")
    parser.add_argument("--why-not", metavar="CONFIG", help="what is against a configuration")
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="from one configuration's step to another's")
    parser.add_argument("--what-if", action="store_true", help="faster links, memory, FLOPs; more memory; other rings")
    parser.add_argument("--figures", action="store_true", help="draw figures beside the table, or of --diff")
    parser.add_argument("--calibrate", metavar="ROWS.csv", help="fit constants to measured step times, and use them")
    parser.add_argument("--all", metavar="FILE", help="write every configuration as CSV, refused ones with the reason")
    parser.add_argument("--parquet", metavar="FILE", help="write the table as Parquet, too; needs pyarrow")
    engine_option(parser)
    parser.add_argument("--out", default="results", metavar="FOLDER", help="folder of all results (results)")
    parser.add_argument("--jobs", type=int, metavar="N", help="worker processes; one per core by default")
    parser.add_argument("--cluster", metavar="ADDRESS", help="workers of a Dask scheduler, e.g. tcp://host:8786")
    parser.add_argument("--fresh", action="store_true", help="simulate again")
    parser.add_argument("--quiet", action="store_true", help="no progress, no notes")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Explore, or answer a question about configurations."""
    from dataclasses import replace

    from astrasim_py.exploration.grid import grid_of
    from astrasim_py.exploration.models import load_exploration
    from astrasim_py.exploration.search import price
    from astrasim_py.runs.progress import progress_line

    check_positive(args, "jobs", "rows")
    exploration = load_exploration(args.file, args.set)
    if args.calibrate:
        from astrasim_py.exploration.calibrate import calibrated

        constants, note = calibrated(args.calibrate)
        exploration = replace(exploration, constants=constants)
        complain(() if args.quiet else [note])
    question = args.explain or args.why_not or args.diff
    if not question:
        from astrasim_py.exploration.results import require_parquet, results_folder

        if args.parquet:
            require_parquet(args.parquet)
        args.folder = results_folder(args.out, exploration.name)
    begin = time.monotonic()
    with progress_line(quiet=args.quiet) as line:
        priced = price(exploration, grid_of(exploration), tell=line.show)
    rate = priced.grid.count / max(time.monotonic() - begin, 1e-9)
    complain(() if args.quiet else [f"{priced.grid.count:,} configurations priced, {rate:,.0f} a second"])
    return _answer(args, priced) if question else _table(args, priced)


def _answer(args: argparse.Namespace, priced) -> int:
    from astrasim_py.exploration.search import best_of, why_not
    from astrasim_py.report import explore as text
    from astrasim_py.report.training import explain_text

    answer: object
    if args.explain:
        answer = best = best_of(priced, args.explain, "--explain")
        lines = f"{best['configuration']}\n{explain_text(best)}"
    elif args.why_not:
        answer = reasons = why_not(priced, args.why_not)
        lines = text.why_not_text(reasons)
    else:
        answer = first, second = [best_of(priced, configuration, "--diff") for configuration in args.diff]
        lines = text.difference_text(first, second)
        if args.figures:
            from astrasim_py.exploration.figures import write_waterfall

            lines += f"\n\nfigure: {write_waterfall(args.out, priced.exploration.name, first, second)}"
    print(json_text(answer) if args.format == "json" else lines)
    return 0


def _table(args: argparse.Namespace, priced) -> int:
    from astrasim_py.exploration.results import table_parquet, write_all, write_results
    from astrasim_py.exploration.search import best_of, simulate
    from astrasim_py.exploration.what_if import what_if
    from astrasim_py.report import explore as text
    from astrasim_py.results.csv_io import csv_rows
    from astrasim_py.runs.progress import on_terminal

    if args.all:
        write_all(priced, args.all)
    priced.best()
    exploration = priced.exploration
    if exploration.keys.baseline:
        best_of(priced, exploration.keys.baseline, f"{exploration.place}: baseline")
    order = priced.possible[: exploration.keys.rows]
    rows = priced.rows(order)
    top = min(exploration.keys.simulate.top, len(rows))
    options = {key: getattr(args, key) for key in ("out", "jobs", "cluster", "fresh", "engine")}
    progress = on_terminal(f"{top} simulations", quiet=args.quiet)
    simulated = simulate(priced, rows[:top], order[:top], progress=progress, **options)
    rows = [row | fields for row, fields in zip(rows, (*simulated.rows, *({},) * (len(rows) - top)), strict=True)]
    code = simulated.result.exit_code if simulated.result else 0
    if simulated.result:
        print_failures(simulated.result)
        complain(() if args.quiet else simulated.result.notes)
        if simulated.result.interrupted:
            return code
    changes = what_if(priced) if args.what_if else []
    files = {"what_if.csv": csv_rows(tuple(changes[0]), changes)} if changes else {}
    if args.figures:
        from astrasim_py.exploration.figures import figures

        files |= figures(priced, rows, changes)
    best = {"best": rows[simulated.best]["configuration"], "best_by_closed_form": rows[0]["configuration"]}
    write_results(args.folder, priced, rows, args.flops, best, files)
    if args.parquet:
        table_parquet(rows, args.flops, args.parquet)
    if args.format == "json":
        shown = [text.table_row(row, args.flops) for row in rows[: args.rows]]
        document = {"configurations": priced.grid.count, "refused": priced.refused, "rows": shown, "what_if": changes}
        print(json_text(document | best))
        return code
    print(text.refused_text(priced.refused, priced.grid.count))
    if exploration.keys.memory == "fit":
        print(text.fit_text(rows[0]))
    print(f"\n{text.table_text(rows[: args.rows], args.flops)}\n")
    if simulated.gaps and simulated.result:
        print(text.order_text(rows[:top], simulated.gaps, simulated.wrong_pairs, simulated.pairs, simulated.fastest))
        print(fold_text(simulated.result.rows, simulated.result.summaries), end="")
    if notes := text.notes_text(rows[: max(args.rows, top)]):
        print(notes)
    if changes:
        print(f"{text.what_if_text(changes)}\n")
    print(f"{text.best_text(rows, simulated.best)}\nresults: {args.folder}")
    if simulated.result and not args.quiet:
        print(look_text(simulated.result.folder, args.out, simulated.result.rows), end="")
    return code
