"""Write a workload in which every collective is replaced by the nodes of its algorithm."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from astrasim_py.cli import options, shared_options
from astrasim_py.cli.output import printed
from astrasim_py.cli.trace_share import check_apart, groups_beside, write_set
from astrasim_py.core.errors import UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inline",
        action="store_true",
        help="IN is a scenario of one point, or a prefix of .et files of a workload: write its traces to a prefix OUT "
        "with the nodes of algorithms in place of collectives",
    )
    shared_options.add(parser, "--algorithm", note="with --inline and traces")
    options.add(parser, "--set", "--allow-code", note="with --inline")
    parser.add_argument("--job", metavar="NAME", help="with --inline: of a scenario of several jobs")


def run(args: argparse.Namespace) -> int:
    """Inline; says on stdout what was written and what could not be kept."""
    from astrasim_py.preparation.prepare import prepare
    from astrasim_py.scenario.expand import expand
    from astrasim_py.system.inlining import inline

    check_apart(args.target, args.source)
    points = expand(_scenario(args))
    if len(points) > 1:
        axes = ", ".join(points[0].values)
        raise UsageError(args.source, f"has {len(points)} points, which differ in {axes}", "choose one with --set")
    prepared = prepare(points[0])
    workload, lost, inlined, _ = inline(prepared.problem, _job(args, [job.name for job in prepared.problem.jobs]))
    files = write_set(args, workload)
    warnings, hints = ([*getattr(prepared.notes, name), *getattr(inlined, name)] for name in ("warnings", "hints"))
    say_converted(args, files, sum(map(len, workload.traces)), [*lost], warnings, hints)
    return 0


def say_converted(
    args: argparse.Namespace,
    files: Sequence[str],
    nodes: int,
    dropped: Sequence[str],
    warnings: Sequence[str],
    hints: Sequence[str] = (),
) -> None:
    """Print what was written, and what could not be kept."""
    document = {
        "source": args.source, "files": files, "nodes": nodes, "dropped": dropped, "warnings": warnings, "hints": hints
    }  # fmt: skip
    if printed(args.format, document):
        return
    sets = [file for file in files if not file.endswith(".json")]
    print(f"{args.source} -> {sets[0]}" + (f" … {Path(sets[-1]).name}" if len(sets) > 1 else ""))
    print(f"{len(sets)} file{'s' if len(sets) > 1 else ''}, {nodes} nodes")
    print(f"dropped: {', '.join(dropped)}" if dropped else "dropped: nothing")
    for kind, texts in (("warning", warnings), ("hint", hints)):
        for text in texts:
            print(f"{kind}: {text}")


def _scenario(args: argparse.Namespace):
    """The scenario; of traces alone one that gives them a network, which does not matter here."""
    from astrasim_py.chakra.et_io import read_prefix
    from astrasim_py.scenario.load import load_scenario

    if args.source.endswith((".yaml", ".yml")):
        if args.algorithm:
            raise UsageError("--algorithm", "is for traces; a scenario names its own", "write --set algorithms.…=…")
        return load_scenario(args.source, args.set, allow_outside=True, allow_code=args.allow_code)
    algorithms = dict(text.partition("=")[::2] for text in args.algorithm)
    wrong = next((text for text in args.algorithm if "=" not in text), None)
    if wrong is not None:
        raise UsageError("--algorithm", f'"{wrong}" names no collective', "write e.g. all_reduce=ring")
    network = {"shape": "switch", "npus": max(len(read_prefix(args.source)), 2), "bandwidth": "100 GB/s"}
    groups = groups_beside(args.source)
    trace = {"trace": args.source} | ({"groups": groups} if groups else {})
    scenario = {"topology": network | {"latency": "500 ns"}, "workload": trace}
    return load_scenario(scenario | ({"algorithms": algorithms} if algorithms else {}), args.set, allow_outside=True)


def _job(args: argparse.Namespace, names: list[str]) -> int:
    if args.job in names:
        return names.index(args.job)
    if len(names) > 1 or args.job is not None:
        listed = ", ".join(names)
        raise UsageError("--job", f"is one of {listed}" if args.job else f"is missing: there are {listed}", "name one")
    return 0
