"""Lint, summarise, show, compare, shrink or share Chakra traces, or make them of what other programs recorded.

A trace is named by the prefix of a set (PREFIX.0.et, PREFIX.1.et, …) or by one file (.et, .et.gz, .jsonl).
"""

import argparse
import dataclasses
import itertools
import json
import math
import os
from collections import deque
from glob import escape, glob
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from astrasim_py.cli import shared_options, trace_convert, trace_edit, trace_share, trace_synthesize
from astrasim_py.cli.options import format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import (
    EXIT_CHECK_FAILED,
    EXIT_OK,
    AstraError,
    CheckFailed,
    ErrorList,
    TraceError,
    UsageError,
)
from astrasim_py.core.files import named
from astrasim_py.core.units import format_size, number_of

if TYPE_CHECKING:
    from astrasim_py.chakra.diff import Difference
    from astrasim_py.chakra.trace import ExecutionTrace


_TRACE = "prefix of a set, or one file"


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        action_parser = actions.add_parser(name, help=text, description=text)
        format_option(action_parser)
        return action_parser

    lint = action("lint", "check files, dependencies, attributes, and what ranks say of each other")
    lint.add_argument("trace", nargs="+", metavar="TRACE", help=_TRACE)
    shared_options.add(lint, "--groups")
    stats = action("stats", "counts, bytes by collective, group and peer, operations, depth, critical path")
    stats.add_argument("trace", metavar="TRACE", help=_TRACE)
    shared_options.add(stats, "--dependencies")
    show = action("show", "nodes as text")
    show.add_argument("trace", metavar="TRACE", help=_TRACE)
    shared_options.add(show, "--rank")
    show.add_argument("--node", type=int, action="append", metavar="ID", help="only this one; may be repeated")
    diff = action("diff", "what differs between two traces")
    diff.add_argument("first", metavar="A", help=_TRACE)
    diff.add_argument("second", metavar="B", help=_TRACE)
    diff.add_argument("--match", choices=("auto", "id", "name"), default="auto", help="how nodes are paired")
    diff.add_argument("--tolerance", type=float, default=0.0, help="relative difference of durations that is no change")
    trace_share.arguments(action)
    trace_synthesize.arguments(action)
    trace_edit.arguments(action)
    text = "make traces of what other programs recorded"
    trace_convert.arguments(actions.add_parser("convert", help=text, description=trace_convert.__doc__))


def run(args: argparse.Namespace) -> int:
    """Run the action; lint and diff exit with 1 when they found something."""
    actions = {"lint": _lint, "stats": _stats, "show": _show, "diff": _diff}
    actions |= {"skeleton": trace_share.run_skeleton, "share": trace_share.run_share, "convert": trace_convert.run}
    actions |= {"learn": trace_synthesize.run_learn, "synthesize": trace_synthesize.run_synthesize}
    return (actions | trace_edit.RUN)[args.action](args)


def _is_file(name: str) -> bool:
    return name.endswith((".et", ".et.gz", ".jsonl")) or (os.path.exists(name) and not os.path.exists(f"{name}.0.et"))


def _read(name: str) -> tuple:
    """Traces by rank."""
    from astrasim_py.chakra.et_io import read_prefix, read_trace
    from astrasim_py.chakra.text_io import read_jsonl

    if name.endswith(".jsonl"):
        return (read_jsonl(name),)
    return (read_trace(name),) if _is_file(name) else read_prefix(name)


def _lint(args: argparse.Namespace) -> int:
    from astrasim_py.chakra.lint import check_control, lint_file, lint_prefix
    from astrasim_py.chakra.lint_rules import Finding, lint_trace, worst_severity
    from astrasim_py.chakra.set_files import find_prefix

    findings = []
    for name in args.trace:
        if name.endswith(".jsonl"):
            try:
                (trace,) = _read(name)
                findings += [*lint_trace(trace), *check_control([trace])]
            except AstraError as error:
                wrong = error.errors if isinstance(error, ErrorList) else (error,)
                findings += [Finding(severity="error", rule="framing", place=e.place, message=e.problem) for e in wrong]
        elif _is_file(name):
            trace, file_findings = lint_file(name)
            findings += file_findings + ([*lint_trace(trace), *check_control([trace])] if trace is not None else [])
        else:
            named(name, TraceError)
            if not any(".et" in os.path.basename(path) for path in glob(f"{escape(name)}.*")):
                find_prefix(name)  # says that there is nothing of that name
            findings += lint_prefix(name, args.groups or trace_share.groups_beside(name))
    if not printed(args.format, findings, columns=[field.name for field in dataclasses.fields(Finding)]):
        for finding in findings:
            print(finding)
        counts = {s: sum(f.severity == s for f in findings) for s in ("error", "warning", "info")}
        print(", ".join(f"{n} {s}{'s' if n != 1 and s != 'info' else ''}" for s, n in counts.items()))
    return EXIT_CHECK_FAILED if worst_severity(findings) == "error" else EXIT_OK


def _stats(args: argparse.Namespace) -> int:
    from astrasim_py.chakra.stats import workload_stats

    stats = workload_stats(_read(args.trace), args.dependencies)
    times = {f"{name}_us": getattr(stats, f"{name}_micros") for name in ("compute", "comm", "critical")}
    if printed(args.format, dataclasses.asdict(stats) | times):
        return EXIT_OK
    lines: list[str | tuple[str, object]] = [("traces", stats.traces), ("nodes", stats.nodes)]
    lines += [(f"  {name}", count) for name, count in stats.by_type.items()]
    lines.append(("dependencies", f"{stats.data_edges} data, {stats.ctrl_edges} control"))
    for title, volumes in (
        ("collectives", stats.by_collective),
        ("groups", stats.by_group),
        ("sent to rank", stats.sent),
        ("received from rank", stats.received),
    ):
        lines += [title] if volumes else []
        for volume, group in itertools.groupby(volumes.items(), key=itemgetter(1)):
            names = ["world" if key == "" else str(key) for key, _ in group]
            name = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)}, each)"
            lines.append(f"  {name:<22}{volume.count:>8}  {format_size(volume.bytes)}")
    lines += [
        ("operations", stats.flops),
        ("memory bytes", format_size(stats.memory_bytes)),
        ("recorded time", f"compute {stats.compute_micros} µs, communication {stats.comm_micros} µs"),
    ]
    if stats.problem:
        lines.append(("no paths", stats.problem))
    else:
        lines.append(("depth", number_of(stats.depth, "node")))
        lines.append(("critical path", f"{stats.critical_micros} µs of recorded durations"))
        lines.append(("width", f"at most {number_of(stats.width, 'node')} side by side"))
    for line in lines:
        print(line if isinstance(line, str) else f"{line[0]:<16}{line[1]}")
    return EXIT_OK


def _show(args: argparse.Namespace) -> int:
    from astrasim_py.chakra.stats import show

    traces = _read(args.trace)
    if not 0 <= args.rank < len(traces):
        raise UsageError("--rank", f"{args.rank} is not one of {len(traces)} ranks", f"write 0..{len(traces) - 1}")
    trace = traces[args.rank]
    if args.format == "text":
        for line in show(trace, args.node):
            print(line)
    else:
        printed(args.format, _nodes(trace, args.node), columns=[*_NODE])
    return EXIT_OK


#: Keys of a node as Chakra's JSON has them, with the values that it leaves out.
_NODE: dict[str, object] = {
    "id": 0, "name": "", "type": "", "ctrl_deps": [], "data_deps": [], "start_time_micros": 0, "duration_micros": 0,
}  # fmt: skip


def _nodes(trace: "ExecutionTrace", ids: list[int] | None) -> list[dict[str, object]]:
    """The nodes of a trace, or those of these ids in this order. Raises TraceError: no node of that id."""
    from astrasim_py.chakra.stats import show
    from astrasim_py.chakra.text_io import to_lines

    nodes: list[dict[str, object]] = [_NODE | json.loads(line) for line in itertools.islice(to_lines(trace), 1, None)]
    for node in nodes:
        node["attr"] = node.pop("attr", [])
        for name in ("raw", "prefix"):  # which keep a file's bytes
            node.pop(name, None)
    if ids is None:
        return nodes
    deque(show(trace, ids), 0)  # refuses ids that there are not
    by_id = {node["id"]: node for node in nodes}
    return [by_id[number] for number in ids]


def _difference_row(difference: "Difference") -> dict[str, object]:
    """A difference as JSON has it; values that JSON lacks are texts."""

    def shown(value: object) -> object:
        if isinstance(value, tuple | list):
            return [shown(item) for item in value]
        plain = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
        return value if plain else str(value)

    changes = [
        {**dataclasses.asdict(change), "before": shown(change.before), "after": shown(change.after)}
        for change in difference.changes
    ]
    return {**dataclasses.asdict(difference), "changes": changes}


def _diff(args: argparse.Namespace) -> int:
    from astrasim_py.chakra.diff import diff

    if not 0 <= args.tolerance < float("inf"):
        raise UsageError("--tolerance", f"{args.tolerance} is not a fraction", "write e.g. 0.05")
    first, second = _read(args.first), _read(args.second)
    if len(first) != len(second):
        problem = f"{args.first} has {len(first)} ranks, {args.second} has {len(second)}"
        raise CheckFailed("trace diff", problem, "compare sets of as many ranks")
    results = [
        diff(a, b, match=args.match, duration_tolerance=args.tolerance) for a, b in zip(first, second, strict=True)
    ]
    different = False
    rows = [{"rank": rank, **_difference_row(result)} for rank, result in enumerate(results)]
    for_programs = printed(args.format, rows)
    for rank, result in enumerate(results):
        equal = not (result.changes or result.only_first or result.only_second or result.reordered)
        different |= not equal
        if for_programs or equal:
            continue
        print(f"rank {rank}: {result.matched} nodes paired by {result.match}")
        for title, ids in (
            (f"only in {Path(args.first).name}", result.only_first),
            (f"only in {Path(args.second).name}", result.only_second),
        ):
            if ids:
                print(f"  {title}: {', '.join(map(str, ids[:16]))}{', …' if len(ids) > 16 else ''}")
        if result.reordered:
            print("  the same nodes in another order")
        for change in result.changes[:50]:
            nodes = f"node {change.node}" if change.node == change.other else f"node {change.node} / {change.other}"
            print(f"  {nodes} {change.field}: {change.before!r} -> {change.after!r}")
        if len(result.changes) > 50:
            print(f"  … {len(result.changes) - 50} more changes")
    if not different and not for_programs:
        print(f"no difference in {len(results)} rank{'s' if len(results) != 1 else ''}")
    return EXIT_CHECK_FAILED if different else EXIT_OK
