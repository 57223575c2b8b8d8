"""The reader of text workloads: its options, known before anything that reads them is imported."""

import argparse
from collections.abc import Callable
from math import prod

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import FileText
from astrasim_py.core.units import parse_time
from astrasim_py.workload.trace_readers import Conversion


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``trace convert astra_sim_text``."""
    text = "text workload of ASTRA-sim 1.0 or SimAI"
    parser.add_argument("--input", type=FileText, required=True, metavar="FILE", help=text)
    parser.add_argument("--dims", required=True, metavar="AxB", help="NPUs of each dimension, such as 8 or 8x4")
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="iterations (1)")
    parser.add_argument("--cycle", metavar="TIME", help="unit of compute times (1ns; 1us with --like chakra)")
    parser.add_argument("--like", choices=("astra-sim", "chakra"), default="astra-sim", help="whose rules to follow")


def read(args: argparse.Namespace, say: Callable[[str], None]) -> Conversion:
    """Convert the file that the options name."""
    from astrasim_py.astra_sim.text_file import read_text
    from astrasim_py.astra_sim.text_workload import PHASE_NAMES, text_workload
    from astrasim_py.core.notes import Notes

    words = args.dims.split("x")
    if not all(word.isdigit() and 0 < int(word) < 2**24 for word in words) or prod(map(int, words)) > 2**20:
        raise UsageError("--dims", f'"{args.dims}" is not NPUs of each dimension', "write e.g. 8x4")
    if not 1 <= args.passes <= 10_000:
        raise UsageError("--passes", f"{args.passes} is out of range", "write 1..10000")
    chakra = args.like == "chakra"
    cycle = parse_time(args.cycle or ("1us" if chakra else "1ns"), "--cycle")
    if cycle < 1:
        raise UsageError("--cycle", "is not positive", "write e.g. 1ns")
    notes = Notes()
    options = {"passes": args.passes, "cycle": cycle, "like_chakra": chakra, "notes": notes}
    workload, left_out = text_workload(args.input, [int(word) for word in words], **options)
    kind = read_text(args.input).kind
    npus, nodes = workload.ranks, len(workload.traces[0])
    report = {"format": "astra_sim_text", "kind": kind, "npus": npus, "nodes_per_npu": nodes}
    lines = [f"{kind}: {npus} NPUs, {nodes} nodes each"]
    lines += [
        f"left out, as {kind} does not have them on {args.dims} NPUs: collectives of {PHASE_NAMES[phase]}, {count}"
        for phase, count in sorted(left_out.items())
    ]
    unused = [hint.removeprefix(f"{args.input}: ") for hint in notes.hints]
    report |= {"left_out": left_out, "unused": unused}
    return Conversion(workload, report, [*lines, *unused], notes.warnings)
