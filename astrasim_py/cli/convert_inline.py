"""Write a workload in which every collective is replaced by the nodes of its algorithm."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from astrasim_py.cli import options, shared_options
from astrasim_py.cli.names import names_of_files
from astrasim_py.cli.output import printed
from astrasim_py.cli.trace_share import check_apart, groups_beside, write_set
from astrasim_py.cli.values import algorithms_of
from astrasim_py.core.errors import UsageError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--inline",
        action="store_true",
        help="IN is a scenario of one point (or X.yaml@key=value,…), or a prefix of .et files of a workload: write its "
        "traces to a prefix OUT with the nodes of algorithms in place of collectives",
    )
    shared_options.add(parser, "--algorithm", note="with --inline and traces")
    options.add(parser, "--set", "--allow-code", note="with --inline")
    parser.add_argument("--job", metavar="NAME", help="with --inline: of a scenario of several jobs")


def run(args: argparse.Namespace) -> int:
    """Inline; says on stdout what was written and what could not be kept."""
    from astrasim_py.preparation.prepare import prepare
    from astrasim_py.runs.chosen_points import chosen_point
    from astrasim_py.scenario.expand import expand
    from astrasim_py.system.inlining import inline

    (name,) = names_of_files([args.source])
    check_apart(args.target, name.name)
    point = chosen_point(expand(_scenario(args, name.name)), name)
    prepared = prepare(point)
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
    # Names of groups stand beside traces; a plan stands alone.
    sets = [file for file in files if not file.endswith(".json")] or files
    print(f"{args.source} -> {sets[0]}" + (f" … {Path(sets[-1]).name}" if len(sets) > 1 else ""))
    print(f"{len(sets)} file{'s' if len(sets) > 1 else ''}, {nodes} nodes")
    print(f"dropped: {', '.join(dropped)}" if dropped else "dropped: nothing")
    for kind, texts in (("warning", warnings), ("hint", hints)):
        for text in texts:
            print(f"{kind}: {text}")


def _scenario(args: argparse.Namespace, source: str):
    """The scenario; of traces alone one that gives them a network, which does not matter here."""
    from astrasim_py.chakra.et_io import read_prefix
    from astrasim_py.scenario.load import load_scenario

    if source.endswith((".yaml", ".yml")):
        if args.algorithm:
            raise UsageError("--algorithm", "is for traces; a scenario names its own", "write --set algorithms.…=…")
        return load_scenario(source, args.set, allow_outside=True, allow_code=args.allow_code)
    algorithms = algorithms_of(args.algorithm)
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
