"""Actions of `trace` on sets as they are: slice, merge, graph, timeline, compare."""

import argparse
import json
import re
from collections.abc import Callable, Iterable

from astrasim_py.cli import options, shared_options
from astrasim_py.cli.output import printed
from astrasim_py.cli.trace_share import check_apart, read_set, read_with_hints, rule_options, write_set
from astrasim_py.cli.values import make_parent, number_list
from astrasim_py.core.errors import EXIT_OK, UnitError, UsageError
from astrasim_py.core.units import parse_time

#: Most nodes that are drawn.
MOST_DRAWN = 10_000


def _groups_option(parser: argparse.ArgumentParser) -> None:
    """``--groups`` of several sets."""
    shared_options.add(parser, "--groups", nargs="+", note="of each set, or one of all")


def _groups(args: argparse.Namespace, sets: int) -> list:
    """A file of groups, or None, for each set."""
    groups = args.groups or [None]
    if len(groups) not in (1, sets):
        raise UsageError("--groups", f"{len(groups)} files for {sets} sets", "name one for each set, or one for all")
    return groups * (sets // len(groups))


def arguments(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the actions; `action` makes the parser of one."""
    part = action("slice", "a part of a set; what waited for other nodes waits for what these waited for")
    part.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    part.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
    options.add(part, "--ranks", note="numbered anew")
    part.add_argument("--time", metavar="FROM:TO", help="nodes that begin in this span of recorded time, µs or units")
    part.add_argument("--layers", metavar="LIST", help="of a model, where nodes say which")
    part.add_argument("--names", metavar="REGEX", help="nodes whose names contain it")
    shared_options.add(part, "--groups")
    merge = action("merge", "several sets as one")
    merge.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
    shared_options.add(merge, "--from", note="prefixes")
    text = "on the same ranks, each of which begins a set when it has done the one before; else on ranks of their own"
    _groups_option(merge)
    merge.add_argument("--in-sequence", action="store_true", help=text)
    graph = action("graph", f"the graph of one rank for other programs, up to {MOST_DRAWN} nodes")
    graph.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    graph.add_argument("target", metavar="OUT.dot|OUT.graphml", help="file to write")
    shared_options.add(graph, "--rank")
    line = action("timeline", "recorded durations as Chrome trace events, for ui.perfetto.dev")
    line.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    line.add_argument("target", metavar="OUT.json", help="file to write")
    options.add(line, "--ranks", note="all by default, up to 100 MB")
    compare = action("compare", "time of a step of two sets on several networks")
    compare.add_argument("first", metavar="A", help="prefix of a set")
    compare.add_argument("second", metavar="B", help="prefix of a set")
    compare.add_argument(
        "--simulate", nargs="+", default=["standard"], metavar="NETWORKS",
        help="topologies as of synthesize, or standard: six usual ones (standard)",
    )  # fmt: skip
    _groups_option(compare)
    rule_options(compare, groups=False)


def _workload(name: str, groups: str | None = None, dependencies: str | None = None):
    return read_with_hints(name, groups=groups, dependencies=dependencies)[0]


def _ranks_of(args: argparse.Namespace, workload) -> list[int]:
    """The ranks of ``--ranks``, all by default. Raises UsageError: one that the workload does not have."""
    if args.ranks is None:
        return [*range(workload.ranks)]
    ranks = list(dict.fromkeys(number_list(args.ranks, "--ranks")))
    if max(ranks) >= workload.ranks:
        raise UsageError("--ranks", f"{args.ranks} is not of {workload.ranks} ranks", f"write 0-{workload.ranks - 1}")
    return ranks


def _span(text: str) -> tuple[int, int]:
    """Span of time in ps, such as 100:250.5, in microseconds, or 1ms:2ms."""
    ends = [end.strip() for end in text.split(":")]
    if len(ends) != 2 or not all(ends):
        raise UsageError("--time", f'"{text}" is no span', "write microseconds, e.g. 100:250.5, or units: 1ms:2ms")
    try:
        low, high = (parse_time(f"{end} us" if re.fullmatch(r"[\d.]+", end) else end) for end in ends)
    except UnitError as error:
        raise UsageError("--time", error.problem, "write microseconds, e.g. 100:250.5, or units: 1ms:2ms") from None
    if high <= low:
        raise UsageError("--time", f"{text} is empty", "write the earlier time first, e.g. 100:250.5")
    return low, high


def run_part(args: argparse.Namespace) -> int:
    """Write what is wanted of a set."""
    import numpy as np

    from astrasim_py.workload.edit import recorded_times, take

    check_apart(args.target, args.trace)
    if all(option is None for option in (args.ranks, args.time, args.layers, args.names)):
        raise UsageError(args.trace, "nothing says which part", "add --ranks, --time, --layers or --names")
    layers = None if args.layers is None else number_list(args.layers, "--layers")
    span = None if args.time is None else _span(args.time)
    try:
        pattern = re.compile(args.names or "")
    except re.error as error:
        raise UsageError("--names", f"{args.names!r} is no regular expression: {error}", 'write e.g. "gemm"') from None
    workload = _workload(args.trace, args.groups)
    ranks = _ranks_of(args, workload)
    times = recorded_times(workload) if span else None
    if times and not any(end.any() for _, end in times):
        raise UsageError("--time", f"no node of {args.trace} has a recorded time", "take nodes by --names or --layers")
    if layers is not None and not any(workload.trace(rank).has_column("layer") for rank in ranks):
        raise UsageError("--layers", f"no node of {args.trace} says its layer", "take nodes by --names")
    masks = []
    for rank in ranks:
        trace = workload.trace(rank)
        mask = np.array([bool(pattern.search(name)) for name in trace.names], dtype=bool)
        mask &= np.isin(trace.column("layer"), layers) if layers is not None else True
        if times and span:
            mask &= (span[0] <= times[rank][0]) & (times[rank][0] < span[1])
        masks.append(mask)
    part, lost = take(workload, ranks, masks)
    if not any(map(len, part.traces)):
        last = max((int(start.max(initial=0)) for start, _ in times or ()), default=0)
        hint = f"; nodes begin from 0 to {last / 10**6:g} µs" if times else ""
        hint += "".join(f"; {text}: {lost[key]}" for key, text in _LOST.items() if lost[key])
        raise UsageError(args.trace, f"has no such nodes{hint}", "look at them with trace show")
    files = write_set(args, part)
    facts = {"ranks": part.ranks, "nodes": sum(map(len, workload.traces)), "kept": sum(map(len, part.traces))}
    return _said(args, facts, files, {key: lost[key] for key in _LOST})


def _said(args: argparse.Namespace, facts: dict, files: list[str], lost: dict | None = None) -> int:
    """Print what was made; in text of what was lost only what there is, and no files, which are named by the user."""
    if printed(args.format, facts | (lost or {}) | {"files": files}):
        return EXIT_OK
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for key, value in (lost or {}).items():
        if value:
            print(f"{_LOST[key]}: {value}")
    return EXIT_OK


_LOST = {
    "outside": "calls and messages left out that need ranks that are gone",
    "incomplete": "calls and messages left out that not all of their ranks have in this part",
    "smaller": "calls by fewer ranks than before",
}


def run_merge(args: argparse.Namespace) -> int:
    """Write several sets as one."""
    from astrasim_py.workload.edit import one_after_another, side_by_side

    check_apart(args.target, *args.sources)
    sets = [*map(_workload, args.sources, _groups(args, len(args.sources)))]
    merged = (one_after_another if args.in_sequence else side_by_side)(sets)
    files = write_set(args, merged)
    facts = {"ranks": merged.ranks, "nodes": sum(map(len, merged.traces)), "groups": len(merged.groups)}
    return _said(args, facts, files)


def run_graph(args: argparse.Namespace) -> int:
    """Write the graph of a rank."""
    import networkx as nx

    from astrasim_py.chakra.graph import owners
    from astrasim_py.chakra.schema import NodeType
    from astrasim_py.core.files import write_file

    workload = _workload(args.trace, dependencies="data")
    if not 0 <= args.rank < workload.ranks:
        raise UsageError("--rank", f"{args.rank} is not of {workload.ranks} ranks", f"write 0..{workload.ranks - 1}")
    trace = workload.trace(args.rank)
    if len(trace) > MOST_DRAWN:
        raise UsageError(args.trace, f"{len(trace)} nodes are more than {MOST_DRAWN}", "take some with trace slice")
    ids = trace.node_id.tolist()
    labels = [_plain(name or NodeType(kind).name) for name, kind in zip(trace.names, trace.type.tolist(), strict=True)]
    edges: dict[tuple[int, int], str] = {}
    for way, name in (("data", "data"), ("data+ctrl", "control")):
        ptr, parents = trace.parents(way)
        for parent, child in zip(parents.tolist(), owners(ptr).tolist(), strict=True):
            edges.setdefault((ids[parent], ids[child]), name)
    if args.target.endswith(".graphml"):
        graph: nx.DiGraph[int] = nx.DiGraph()
        for row, number in enumerate(ids):
            graph.add_node(number, label=labels[row], type=NodeType(int(trace.type[row])).name)
        graph.add_edges_from((*ends, {"kind": kind}) for ends, kind in edges.items())
        text = "\n".join(nx.generate_graphml(graph))
    elif args.target.endswith(".dot"):
        lines = [
            f"  {number} [label={json.dumps(label, ensure_ascii=False)}];"
            for number, label in zip(ids, labels, strict=True)
        ]
        dashed = {"data": "", "control": " [style=dashed]"}
        lines += [f"  {parent} -> {child}{dashed[kind]};" for (parent, child), kind in edges.items()]
        text = "\n".join(["digraph {", *lines, "}"])
    else:
        raise UsageError(args.target, "is neither .dot nor .graphml", f"write {args.target}.dot")
    make_parent(args.target)
    write_file(args.target, f"{text}\n".encode())
    return _said(args, {"nodes": len(ids), "edges": len(edges)}, [args.target])


def _plain(text: str) -> str:
    """Text without control characters, which XML cannot hold."""
    return "".join(c if c.isprintable() else "?" for c in text)


def run_timeline(args: argparse.Namespace) -> int:
    """Write recorded durations as a timeline."""
    from astrasim_py.core.files import write_file
    from astrasim_py.report.timeline import CHOOSE, TOO_LARGE, recorded_timeline, within
    from astrasim_py.workload.edit import recorded_times

    workload = _workload(args.trace)
    ranks = _ranks_of(args, workload)
    traces, all_times = [workload.trace(rank) for rank in ranks], recorded_times(workload)
    times = [all_times[rank] for rank in ranks]
    pieces = recorded_timeline(traces, times, ranks)
    chunks: Iterable[bytes] | None = within(pieces) if args.ranks is None else pieces
    if chunks is None:
        raise UsageError(args.target, TOO_LARGE, CHOOSE)
    make_parent(args.target)
    write_file(args.target, chunks)
    last = max((int(end.max(initial=0)) for _, end in times), default=0)
    facts = {"ranks": len(ranks), "nodes": sum(map(len, traces)), "microseconds": last / 10**6}
    facts |= {} if args.format == "text" else {"span_us": last / 10**6}
    return _said(args, facts, [args.target])


def run_compare(args: argparse.Namespace) -> int:
    """Print a table of the time of a step of both on each network."""
    from astrasim_py.cli.topologies import topology_of
    from astrasim_py.sharing.price import Rules, networks

    sets = []
    for name, groups in zip((args.first, args.second), _groups(args, 2), strict=True):
        workload, compute, semantics = read_set(argparse.Namespace(**vars(args) | {"trace": name, "groups": groups}))
        sets.append((workload, Rules(compute=compute, semantics=semantics)))
    ranks = sets[0][0].ranks
    if ranks != sets[1][0].ranks or ranks < 2:
        problem = f"{ranks} and {sets[1][0].ranks} ranks have no network in common"
        raise UsageError(args.second, problem, "compare sets of as many ranks, two or more")
    topologies: dict = {}
    for name in args.simulate:
        topologies |= networks(ranks) if name == "standard" else {name: topology_of(name, "--simulate")}
    rows = []
    for name, topology in topologies.items():
        if topology.npus < ranks:
            raise UsageError(name, f"has {topology.npus} NPUs for {ranks} ranks", "name a larger topology")
        first, second = (rules.run(workload, topology).makespan for workload, rules in sets)
        rows.append({"network": name, "first_us": first / 10**6, "second_us": second / 10**6,
                     "difference": (second - first) / max(first, 1)})  # fmt: skip
    if printed(args.format, rows):
        return EXIT_OK
    wide = max(28, *(len(name) + 2 for name in topologies))
    print(f"{'network':<{wide}}{'A, µs':>16}{'B, µs':>16}{'B against A':>13}")
    for row in rows:
        print(f"{row['network']:<{wide}}{row['first_us']:>16.3f}{row['second_us']:>16.3f}{row['difference']:>+13.2%}")
    return EXIT_OK


RUN = {
    "slice": run_part,
    "merge": run_merge,
    "graph": run_graph,
    "timeline": run_timeline,
    "compare": run_compare,
}
