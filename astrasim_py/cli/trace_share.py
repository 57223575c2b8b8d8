"""Actions of `trace` that make a smaller workload of one, or one that may be given away: skeleton, share."""

import argparse
import os
import secrets
from collections.abc import Callable

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import complain
from astrasim_py.cli.output import printed
from astrasim_py.cli.shared_options import gone_option
from astrasim_py.cli.values import make_parent
from astrasim_py.core.errors import EXIT_OK, CheckFailed, OutputError, ScenarioError, TraceError, UsageError
from astrasim_py.core.files import named

#: Levels that were removed.
_GONE = ("quantise", "twin")
_ATTACK = "run benchmarks/sharing.py of the repository"


def arguments(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the actions; `action` makes the parser of one."""
    skeleton = action(
        "skeleton", "keep the calls and the longest compute paths between them: the same on every network"
    )
    _input_options(skeleton)
    share = action("share", "remove what a workload tells of its model and machine, and say what that costs")
    _input_options(share)
    share.add_argument("--level", required=True, help="strip, hash, skeleton or synthetic: each removes more")
    gone_option(share, "--rel", "is gone with the level quantise", "drop it")
    shared_options.add(share, "--seed", note="drawn and printed if absent")
    share.add_argument("--scale-secret", action="store_true", help="multiply times and sizes with secret numbers, too")
    share.add_argument(
        "--with-topology",
        metavar="TOPOLOGY",
        help="file, preset or SHAPE:SIZE,KEY=VALUE,…: also write OUT.topology.csv, without names, with the same scale",
    )
    gone_option(share, "--corpus", "is gone with the attack", f"{_ATTACK}, with --corpus DIR")
    share.add_argument("--price", default="error", metavar="error|none", help="whether to measure the error (error)")


def _input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    parser.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
    rule_options(parser)


def rule_options(parser: argparse.ArgumentParser, groups: bool = True) -> None:
    """Options that say how a set is read and run; without `groups` all but that one."""
    if groups:
        shared_options.add(parser, "--groups")
    shared_options.add(parser, "--dependencies")
    parser.add_argument("--dtype-bytes", type=int, metavar="N", help="sizes count elements, of so many bytes")
    parser.add_argument("--macs", action="store_true", help="num_ops counts multiply-accumulates")
    parser.add_argument("--peak", metavar="RATE", help='price of operations, e.g. "312 TFLOP/s"')
    parser.add_argument("--memory-bandwidth", metavar="RATE", help='of the same roofline, e.g. "2 TB/s"')
    parser.add_argument("--unlimited-slots", action="store_true", help="any number of compute nodes run side by side")


def groups_beside(prefix: str) -> str | None:
    """The file of groups that lies beside a set, if there is one."""
    name = f"{prefix}.groups.json"
    return name if os.path.exists(name) else None


#: Keys that notes name -> options of these verbs.
_OPTIONS = {
    "size_unit: elements and dtype_bytes: 2": "--dtype-bytes 2",
    "macs: true": "--macs",
    " beside trace": "",
    "dependencies: ": "--dependencies ",
    "groups: ": "--groups ",
}


def _by_option(text: str) -> str:
    """A note that says what to write on the command line."""
    before, write, advice = text.rpartition("; write ")
    for key, option in _OPTIONS.items():
        advice = advice.replace(key, option)
    return before + write + advice if write else text


def read_with_hints(prefix: str, **options):
    """A workload with the groups that lie beside it, if none are named, and notes on it; hints are printed."""
    from astrasim_py.chakra.read_workload import read_workload
    from astrasim_py.core.notes import Notes

    notes = Notes()
    options["groups"] = options.get("groups") or groups_beside(prefix)
    workload = read_workload(prefix, notes=notes, **options)
    complain(notes.hints)
    return workload, notes


def read_set(args: argparse.Namespace) -> tuple:
    """The workload that is named, the compute model that prices it, and the rules that it runs by."""
    from astrasim_py.system.machine_models import ComputeModel
    from astrasim_py.system.semantics import Semantics

    unit = {"size_unit": "elements", "dtype_bytes": args.dtype_bytes} if args.dtype_bytes is not None else {}
    options = {"macs": args.macs, "dependencies": args.dependencies, **unit}
    workload, notes = read_with_hints(args.trace, groups=args.groups, **options)
    complain(f"warning: {_by_option(text)}" for text in notes.warnings)
    rates = {"peak": args.peak, "memory_bandwidth": args.memory_bandwidth}
    if args.memory_bandwidth and not args.peak:
        raise UsageError("--memory-bandwidth", "is of a roofline without a peak", 'add e.g. --peak "312 TFLOP/s"')
    try:
        compute = ComputeModel(**{key: value for key, value in rates.items() if value is not None})
    except ScenarioError as error:
        option = f"--{error.place.rpartition('.')[2].replace('_', '-')}"
        raise UsageError(option, error.problem, error.remedy.replace('e.g. "', f'e.g. {option} "')) from None
    slots = {"cpu_slots": None, "compute_slots": None} if args.unlimited_slots else {}
    _check_priced(workload, compute.roofline)
    return workload, compute, Semantics.native(**slots)


def check_apart(target: str, *sources: str) -> None:
    """Refuse to write a set over one that is read."""
    if os.path.realpath(named(target, OutputError)) in [os.path.realpath(named(name, UsageError)) for name in sources]:
        raise UsageError(target, "is IN itself, which would be lost", "write another prefix")


def _check_priced(workload, roofline: bool) -> None:
    """Refuse operations that have neither a duration nor a price."""
    from astrasim_py.chakra.schema import MISSING, NodeType

    for trace in dict.fromkeys(workload.traces):
        timed = (trace.column("duration_ps") != MISSING) | (trace.duration_micros > 0)
        counted = (trace.type == NodeType.COMP) & (trace.column("num_ops") > 0) & ~timed
        if not roofline and counted.any():
            problem = f"{int(counted.sum())} nodes count operations and state no duration"
            raise TraceError(trace.place, problem, 'price them: --peak "312 TFLOP/s"')


def write_set(args: argparse.Namespace, workload, beside: dict[str, bytes] | None = None) -> list[str]:
    """Write a set, its groups, and what goes beside it; returns the files."""
    from astrasim_py.chakra.et_io import write_prefix

    make_parent(args.target)
    old = {".groups.json": b"{}"} if groups_beside(args.target) else {}  # of an earlier set
    files = _groups(workload) | (beside or {})
    paths = write_prefix(args.target, workload.traces, beside=old | files)
    return [*map(os.fspath, paths), *(f"{args.target}{end}" for end in files)]


def _groups(workload) -> dict[str, bytes]:
    """The file of a workload's groups, by its end, if it has any."""
    from astrasim_py.chakra.groups import groups_json

    return {".groups.json": groups_json(workload.groups)} if workload.groups else {}


def run_skeleton(args: argparse.Namespace) -> int:
    """Write the skeleton of a set, and print how much smaller it is."""
    from astrasim_py.preparation.skeletons import skeleton_workload

    check_apart(args.target, args.trace)
    workload, compute, semantics = read_set(args)
    skeleton = skeleton_workload(workload, compute, semantics)
    files = write_set(args, skeleton)
    before, after = (sum(map(len, part.traces)) for part in (workload, skeleton))
    if not printed(args.format, {"ranks": skeleton.ranks, "nodes": before, "kept": after, "files": files}):
        print(f"{skeleton.ranks} ranks, {before} nodes -> {after}")
    if after > before:
        complain(["the skeleton is larger than the full set, which gives the same times"])
    return EXIT_OK


def run_share(args: argparse.Namespace) -> int:
    """Write what a level leaves of a set; print what was removed, and its price."""
    from dataclasses import asdict

    import numpy as np

    from astrasim_py.cli.topologies import topology_of
    from astrasim_py.runs.progress import progress_line
    from astrasim_py.sharing.price import LEVELS, Rules, original_of, price, removed, share
    from astrasim_py.sharing.secrets import Scales, edge_list, strings_of

    if args.level in _GONE:
        problem = f'"{args.level}" is gone: its workloads were recognised as often as skeletons'
        raise UsageError("--level", problem, "write skeleton, or synthetic")
    if args.level not in LEVELS:
        raise UsageError("--level", f'"{args.level}" is unknown', f"write one of {', '.join(LEVELS)}")
    if args.price == "all":
        raise UsageError("--price", "all is gone with the attack", f"write error; {_ATTACK} for the attack")
    if args.price not in ("error", "none"):
        raise UsageError("--price", f'"{args.price}" is unknown', "write error or none")
    if args.seed is not None and args.seed < 0:
        raise UsageError("--seed", f"{args.seed} is negative", "write 0 or more")
    seed = args.seed if args.seed is not None else secrets.randbits(62)
    check_apart(args.target, args.trace)
    workload, compute, semantics = read_set(args)
    topology = topology_of(args.with_topology, "--with-topology") if args.with_topology else None
    rules = Rules(compute=compute, semantics=semantics)
    scales = Scales.draw(np.random.default_rng([seed, 1])) if args.scale_secret else Scales()
    original = original_of(workload, rules)
    shared = share(original, args.level, seed=seed, scales=scales)
    beside = {".topology.csv": edge_list(scales.topology(topology))} if topology else {}
    strings, attributes = strings_of(workload)
    names = {topology.name, *(name for name, _ in topology.switches)} if topology else set()
    _search(args, strings | attributes | names, shared, beside)
    files = write_set(args, shared, beside)
    gone = removed(workload, shared, attributes)
    facts = {"level": args.level, "seed": seed, "scales": asdict(scales), "removed": gone, "price": None}
    paid = None
    if args.price != "none":
        with progress_line() as line:
            line.show("simulating on six networks")
            paid = price(original, shared, rules, scales)
        facts["price"] = asdict(paid)
    if not printed(args.format, facts | {"files": files}):
        print("\n".join(_said(args, facts, paid)))
    return EXIT_OK


def _search(args: argparse.Namespace, strings: set[str], shared, beside: dict[str, bytes]) -> None:
    """Refuse to write, from `hash` on, what holds a string of the input."""
    from astrasim_py.chakra.et_io import encode_trace
    from astrasim_py.sharing.secrets import SHORTEST, surviving

    if args.level == "strip":
        return
    name = os.path.basename(args.trace)
    if len(name) >= SHORTEST and name in os.path.basename(args.target):
        raise UsageError(args.target, f'tells the name of the input, "{name}"', "write another prefix")
    strings = strings | {name}
    files = {f".{rank}.et": encode_trace(trace) for rank, trace in enumerate(shared.traces)}
    matches = surviving(strings, files | _groups(shared) | beside)
    if matches:
        text, file = matches[0]
        others = f" (and {len(matches) - 1} more)" if len(matches) > 1 else ""
        problem = f"{text[:40]!r} of the input would be in {os.path.basename(args.target)}{file}{others}"
        raise CheckFailed(args.target, problem, "nothing was written: rename it in the input, or take another --seed")


def _said(args: argparse.Namespace, facts: dict, paid) -> list[str]:
    gone, scaled = facts["removed"], facts["scales"]
    lines = [
        f"{args.level}: {gone['nodes'][0]} nodes -> {gone['nodes'][1]}, seed {facts['seed']} (keep it to yourself)"
    ]
    lines += [f"  removed {kind}: {gone[kind]}" for kind in ("names", "groups", "metadata")]
    lines.append(f"  removed attributes: {', '.join(gone['attributes']) or 'none'}")
    if args.scale_secret:
        lines.append(f"  times x {scaled['time']:.4g}, sizes x {scaled['size']:.4g}: keep them secret, they undo it")
        if args.with_topology:
            lines.append("  they follow from the topology file and a known bandwidth or latency of a link")
    if args.with_topology and not args.with_topology.endswith(".csv"):
        lines.append("  the topology is written as links: of routes of one length, others may be taken")
    if paid:
        errors = f"mean {paid.mean:.2%}, largest {paid.largest:.2%}, Spearman {paid.spearman:.2f}"
        lines += [f"error of the step: {errors}", *(f"  {name:<24}{error:+.2%}" for name, error in paid.error.items())]
    return lines
