"""Calibrate: find the numbers of a profile from measured times of collectives.

MEASURED is a CSV of measured times, or what nccl-tests and rccl-tests print (all_reduce_perf, alltoall_perf …). Printed
are the numbers with their uncertainty, the runs that would determine those that these rows do not, and errors by
collective and ranks. The file is a hardware preset with one more section: name it in network: {profile: my.json}.
"""

import argparse
import json

from astrasim_py.cli.options import check_positive, complain, make_parent
from astrasim_py.core.errors import EXIT_OK, UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measured", metavar="MEASURED", nargs="+")
    parser.add_argument("--platform", metavar="NAME", help="rows of this platform, e.g. H100-SXM")
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUES", help="rows with e.g. ranks=2,8")
    parser.add_argument(
        "--hold-out", metavar="ROWS", help="fit without these rows: every-other (size), or e.g. ranks=4"
    )
    parser.add_argument("--preset", metavar="NAME", help="machine; by default that of the platform")
    parser.add_argument("--switch", action="store_true", help="also fit all_reduce in the switch")
    parser.add_argument("--channels", type=int, metavar="N", help="channels of LL; by default found, too")
    parser.add_argument("--out", required=True, metavar="FILE.json", help="the preset with the profile")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.core.files import write_file
    from astrasim_py.measured.calibration import calibrate, choose_rows, section
    from astrasim_py.measured.rows import read_rows
    from astrasim_py.study.measured import Machine
    from astrasim_py.topology.hardware import preset_content, preset_of

    check_positive(args, "channels")
    rows, notes = choose_rows(read_rows(args.measured), args.platform, args.where)
    name = args.preset or rows[0].preset
    if name is None:
        problem = f'no preset is known for the platform "{rows[0].platform}"'
        raise UsageError("--preset", problem, "name the machine; `list machines` lists them")
    content = preset_content(name)
    known = content.get("collectives", {})
    switch = args.switch or "switch" in known
    found = calibrate(rows, hold_out=args.hold_out, switch=switch, channels=args.channels)
    source = sorted({f"{row.source} ({row.licence or 'no licence stated'})" for row in rows if row.source})
    made = {**known, **section(found, "; ".join(source)[:4000] or ", ".join(args.measured))}
    content = {**content, "collectives": made}
    machine = Machine(name, preset_of(content, args.out))
    complain(notes)
    print(_text(found))
    print(_simulated(machine, found))
    make_parent(args.out)
    write_file(args.out, json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")
    print(f"{args.out}: {name} with these numbers; use it with network: {{profile: {args.out}}}")
    return EXIT_OK


def _simulated(machine, found) -> str:
    """How the formula that was fitted compares with simulation."""
    rows = [row for row in found.rows if not machine.refusal(row)]
    if not rows:
        return f"simulated: none, {machine.refusal(found.rows[0])}"
    pairs = zip(map(machine.time, rows), found.fit.predict(rows), strict=True)
    off = max(abs(simulated / formula - 1) for simulated, formula in pairs)
    return f"simulated: {len(rows)} rows, within {100 * off:.2g} % of the formula"


def _text(found) -> str:
    from math import expm1

    from astrasim_py.measured.calibration import median_and_p90, number_text
    from astrasim_py.measured.fit import UNKNOWNS
    from astrasim_py.report.tables import text_table

    rows = []
    for key, value in found.fit.numbers.items():
        deviation = found.fit.deviations[key]
        told = f"not determined; measure {UNKNOWNS[key].runs}" if key in found.fit.undetermined else ""
        rows.append((" ".join(filter(None, key)), number_text(key, value), f"{100 * expm1(deviation):.0f} %", told))
    rows.append(("channels", str(found.fit.channels), "", ""))
    lines = [text_table(("number", "value", "±", ""), rows, (False, True, True, False)), ""]

    def shown(of, errors, chosen) -> tuple[str, str, str]:
        part = errors[[row in chosen for row in of]] if len(of) else errors
        if not len(part):
            return "-", "-", "-"
        return (str(len(part)), *(f"{100 * value:.1f} %" for value in median_and_p90(part)))

    every = (*found.rows, *found.held_out)
    groups = dict.fromkeys((row.collective, row.ranks) for row in every)
    cells = []
    for kind, ranks in [*sorted(groups), ("all", None)]:
        chosen = {row for row in every if ranks is None or (row.collective, row.ranks) == (kind, ranks)}
        sides = (shown(found.rows, found.errors, chosen), shown(found.held_out, found.held_out_errors, chosen))
        cells.append((kind, "" if ranks is None else str(ranks), *sides[0], *sides[1]))
    headings = ("collective", "ranks", "fitted", "median", "p90", "held out", "median", "p90")
    lines += [text_table(headings, cells, (False, *(True,) * 7)), "", f"held out: {found.apart}"]
    return "\n".join(lines)
