"""Find the numbers of a profile from measured times of collectives.

MEASURED is a CSV of measured times, or what nccl-tests and rccl-tests print (all_reduce_perf, alltoall_perf …). Printed
are the numbers with their uncertainty, the runs that would determine those that these rows do not, and errors by
collective and ranks. The file is a hardware preset with one more section: name it in network: {profile: my.json}.
"""

import argparse
from typing import Any

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import add, check_positive, complain, format_option
from astrasim_py.cli.output import printed
from astrasim_py.cli.validate_measured import measured_rows
from astrasim_py.cli.values import make_parent
from astrasim_py.core.errors import EXIT_OK, UsageError
from astrasim_py.core.exact_json import json_bytes


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measured", metavar="MEASURED", nargs="+", help="measured times of collectives")
    parser.add_argument("--platform", metavar="NAME", help="rows of this platform, e.g. H100-SXM")
    add(parser, "--where")
    parser.add_argument(
        "--hold-out",
        metavar="ROWS",
        help="fit without these rows: every-other (size), or e.g. ranks=4 (each size in turn; of programs none)",
    )
    shared_options.add(parser, "--preset", note="that of the platform")
    parser.add_argument("--switch", action="store_true", help="also fit all_reduce in the switch")
    parser.add_argument("--channels", type=int, metavar="N", help="channels of LL; by default found, too")
    shared_options.add(parser, "--programs", note="their costs are fitted")
    shared_options.add(parser, "--output", required=True, note="the preset with the profile, FILE.json")
    add(parser, "--strict")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.core.files import write_file
    from astrasim_py.measured.calibration import choose_rows
    from astrasim_py.topology.hardware import preset_content, preset_of
    from astrasim_py.validation.measured_programs import BEGINNING

    check_positive(args, "channels")
    if args.programs is not None and (args.switch or args.channels):
        raise UsageError("--programs", "goes without --switch and --channels", "fit the library's collectives apart")
    protocols = None if args.programs is None else BEGINNING
    rows, notes = choose_rows(measured_rows(args)[0], args.platform, args.where, protocols, args.hold_out)
    name = args.preset or rows[0].preset
    if name is None:
        problem = f'no preset is known for the platform "{rows[0].platform}"'
        raise UsageError("--preset", problem, "name the machine; `list presets` lists them")
    source = "; ".join(sorted({_source(row) for row in rows if row.source}))[:4000] or ", ".join(args.measured)
    fit = _library if args.programs is None else _programs
    content, found, simulated = fit(args, name, preset_content(name), rows, source)
    preset_of(content, args.output)
    complain(notes)
    make_parent(args.output)
    write_file(args.output, json_bytes(content))
    numbers, groups = _numbers(found), _groups(found)
    document = {"preset": name, "numbers": numbers, "channels": found.fit.channels, "groups": groups}
    document |= {"held_out": found.apart, "simulated": simulated, "files": [args.output]}
    if printed(args.format, document, numbers):
        return EXIT_OK
    print(_text(found, numbers, groups, simulated))
    print(f"{args.output}: {name} with these numbers; use it with network: {{profile: {args.output}}}")
    return EXIT_OK


def _source(row) -> str:
    """Repository and folder of a row, written ``owner/repository@commit:path``, and its licence."""
    repository, _, path = row.source.partition(":")
    where = ":".join(filter(None, (repository, path.rpartition("/")[0])))
    return f"{where} (licence: {row.licence or 'none stated'})"


def _library(args: argparse.Namespace, name: str, content: dict, rows: list, source: str) -> tuple:
    """The preset with costs of a library's own collectives, their fit, and how simulation differs from it."""
    from astrasim_py.measured.calibration import calibrate, section
    from astrasim_py.topology.hardware import preset_of
    from astrasim_py.validation.measured import MeasuredMachine

    known = content.get("collectives", {})
    switch = args.switch or "switch" in known
    found = calibrate(rows, hold_out=args.hold_out, switch=switch, channels=args.channels)
    content = {**content, "collectives": {**known, **section(found, source)}}
    return content, found, _simulated(MeasuredMachine(name, preset_of(content, name)), found)


def _programs(args: argparse.Namespace, name: str, content: dict, rows: list, source: str) -> tuple:
    """The preset with costs of given programs, their fit, and None: it is a fit of simulations."""
    from astrasim_py.measured.calibration import facts, fit_facts
    from astrasim_py.topology.hardware import preset_of
    from astrasim_py.validation.measured import MeasuredMachine
    from astrasim_py.validation.measured_programs import BEGINNING, calibrate_programs, program_texts

    known = {"channels": 1, **facts(rows), **content.get("collectives", {})}
    programs = {**{row.protocol: BEGINNING[row.protocol] for row in rows}, **known.get("programs", {})}
    content = {**content, "collectives": {**known, "programs": programs}}
    machine = MeasuredMachine(name, preset_of(content, name), programs=args.programs)
    for refusal in filter(None, map(machine.refusal, rows)):
        raise UsageError("--programs", refusal, "drop its rows with --where, or add it")
    found = calibrate_programs(rows, machine, args.hold_out)
    fitted = {key: {**programs[key], **one} for key, one in program_texts(found.fit).items()}
    section = {**known, "programs": {**programs, **fitted}, "fit": fit_facts(found, source)}
    return {**content, "collectives": section}, found, None


def _simulated(machine, found) -> dict[str, object]:
    """How the formula that was fitted compares with simulation."""
    rows = [row for row in found.rows if not machine.refusal(row)]
    if not rows:
        return {"rows": 0, "largest_rel_difference": None, "reason": machine.refusal(found.rows[0])}
    pairs = zip(map(machine.time, rows), found.fit.predict(rows), strict=True)
    off = max(abs(simulated / formula - 1) for simulated, formula in pairs)
    return {"rows": len(rows), "largest_rel_difference": off, "reason": None}


def _numbers(found) -> list[dict[str, Any]]:
    """The fitted numbers, in s and bytes/s, with their uncertainty and the runs that would determine them."""
    from math import expm1

    from astrasim_py.measured.calibration import number_text
    from astrasim_py.measured.fit import UNKNOWNS

    rows, programs = [], _of_programs(found)
    for key, value in found.fit.numbers.items():
        runs = "more sizes and programs" if programs else UNKNOWNS[key].runs
        text = number_text(key, value)
        rows.append(
            {
                "number": " ".join(filter(None, key)),
                "value": float(value),
                "unit": "B/s" if text.endswith("B/s") else "s",
                "text": text,
                "rel_deviation": expm1(found.fit.deviations[key]),
                "determined": key not in found.fit.undetermined,
                "measure": runs if key in found.fit.undetermined else None,
            }
        )
    return rows


def _of_programs(found) -> bool:
    return any(row.given for row in found.rows)


def _groups(found) -> list[dict[str, Any]]:
    """Errors of fitted and of held-out rows by collective, or program, and ranks; of all last."""
    from astrasim_py.measured.calibration import median_and_p90

    def errors_of(name: str, of, errors, chosen) -> dict[str, Any]:
        part = errors[[row in chosen for row in of]] if len(of) else errors
        median, p90 = median_and_p90(part) if len(part) else (None, None)
        return {name: len(part), f"{name}_median_rel_error": median, f"{name}_p90_rel_error": p90}

    every = (*found.rows, *found.held_out)
    groups: dict[tuple, set] = {}
    for row in every:
        groups.setdefault((row.algorithm if _of_programs(found) else row.collective, row.ranks), set()).add(row)
    return [
        {
            "program" if _of_programs(found) else "collective": kind,
            "ranks": ranks,
            **errors_of("fitted", found.rows, found.errors, chosen),
            **errors_of("held_out", found.held_out, found.held_out_errors, chosen),
        }
        for (kind, ranks), chosen in [*sorted(groups.items()), (("all", None), set(every))]
    ]


def _text(found, numbers: list[dict[str, Any]], groups: list[dict[str, Any]], simulated: dict | None) -> str:
    from astrasim_py.report.tables import text_table

    rows = [
        (
            row["number"],
            row["text"],
            f"{100 * row['rel_deviation']:.0f} %",
            "" if row["determined"] else f"not determined; measure {row['measure']}",
        )
        for row in numbers
    ]
    rows += [] if _of_programs(found) else [("channels", str(found.fit.channels), "", "")]
    lines = [text_table(("number", "value", "±", ""), rows, (False, True, True, False)), ""]

    def percent(error: float | None) -> str:
        return "-" if error is None else f"{100 * error:.1f} %"

    cells = []
    for group in groups:
        kind, ranks, *sides = group.values()
        texts = [part for side in (sides[:3], sides[3:]) for part in (str(side[0] or "-"), *map(percent, side[1:]))]
        cells.append((kind, "" if ranks is None else str(ranks), *texts))
    first = "program" if _of_programs(found) else "collective"
    headings = (first, "ranks", "fitted", "median", "p90", "held out", "median", "p90")
    lines += [text_table(headings, cells, (False, *(True,) * 7)), "", f"held out: {found.apart}"]
    if simulated is not None:
        off = simulated["largest_rel_difference"]
        near = f"{simulated['rows']} rows, within {100 * (off or 0):.2g} % of the formula"
        lines.append(f"simulated: {near if simulated['rows'] else 'none, ' + simulated['reason']}")
    return "\n".join(lines)
