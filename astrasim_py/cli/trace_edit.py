"""Actions of `trace` on sets as they are: slice, filter, merge, graph, timeline, compare."""

import argparse
import json
import os
import re
from collections.abc import Callable

import numpy as np

from astrasim_py.cli.options import make_parent
from astrasim_py.cli.trace_share import read_set, rule_options, write_set
from astrasim_py.core.errors import EXIT_OK, UsageError

#: Most nodes that are drawn.
MOST_DRAWN = 10_000


def arguments(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the actions; `action` makes the parser of one."""
    cut = action("slice", "some ranks, or some time, of a set; what waited for others waits for what they waited for")
    cut.add_argument("--ranks", metavar="LIST", help='e.g. "0-3,6"; they are numbered anew')
    cut.add_argument("--time", metavar="FROM:TO", help="nodes that begin in these microseconds of recorded time")
    cut.set_defaults(layers=None, names=None)
    part = action("filter", "some nodes of a set; what waited for others waits for what they waited for")
    part.add_argument("--layers", metavar="LIST", help="of a model, where nodes say which")
    part.add_argument("--names", metavar="REGEX", help="nodes whose names contain it")
    part.set_defaults(ranks=None, time=None)
    for each in (cut, part):
        each.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
        each.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
        each.add_argument("--groups", metavar="FILE", help="JSON of group: [ranks]; IN.groups.json where it is there")
    merge = action("merge", "several sets side by side, each on ranks of its own")
    merge.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
    merge.add_argument("--from", dest="sources", nargs="+", required=True, metavar="IN", help="prefixes of sets")
    graph = action("graph", f"the graph of one rank for other programs, up to {MOST_DRAWN} nodes")
    graph.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    graph.add_argument("target", metavar="OUT.dot|OUT.graphml")
    graph.add_argument("--rank", type=int, default=0)
    line = action("timeline", "recorded durations as Chrome trace events, for ui.perfetto.dev")
    line.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    line.add_argument("target", metavar="OUT.json")
    compare = action("compare", "time of a step of two sets on several networks")
    compare.add_argument("first", metavar="A")
    compare.add_argument("second", metavar="B")
    compare.add_argument(
        "--simulate", nargs="+", default=["standard"], metavar="NETWORKS",
        help="topology files (.csv, .yaml), or standard: six usual ones (standard)",
    )  # fmt: skip
    rule_options(compare)


def _workload(name: str, groups: str | None = None):
    from astrasim_py.chakra.workload import read_workload

    beside = f"{name}.groups.json"
    return read_workload(name, groups=groups or (beside if os.path.exists(beside) else None))


def _numbers(text: str, option: str) -> list[int]:
    """Numbers of a list such as 0-3,6."""
    if not re.fullmatch(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*", text):
        raise UsageError(option, f'"{text}" is no list of numbers', 'write e.g. "0-3,6"')
    found: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        found |= dict.fromkeys(range(int(first), int(last or first) + 1))
    return list(found)


def run_part(args: argparse.Namespace) -> int:
    """Write what is wanted of a set."""
    from astrasim_py.chakra.workload import Workload
    from astrasim_py.workload.edit import keep_nodes, keep_ranks, recorded_times

    workload = _workload(args.trace, args.groups)
    before = sum(map(len, workload.traces))
    ranks = _numbers(args.ranks, "--ranks") if args.ranks else list(range(workload.ranks))
    if not ranks or max(ranks) >= workload.ranks:
        raise UsageError("--ranks", f"{args.ranks} is not of {workload.ranks} ranks", f"write 0-{workload.ranks - 1}")
    layers = _numbers(args.layers, "--layers") if args.layers else None
    try:
        pattern = re.compile(args.names or "")
    except re.error as error:
        raise UsageError("--names", f"{args.names!r} is no regular expression: {error}", 'write e.g. "gemm"') from None
    span = re.fullmatch(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", args.time or "0:0")
    if not span:
        raise UsageError("--time", f'"{args.time}" is no span', "write microseconds, e.g. 100:250.5")
    keep = []
    for rank in ranks:
        trace = workload.trace(rank)
        wanted = np.array([bool(pattern.search(name)) for name in trace.names], dtype=bool)
        wanted &= np.isin(trace.column("layer"), layers) if layers is not None else True
        if args.time:
            low, high = (round(float(each) * 10**6) for each in span.groups())
            start, _ = recorded_times(trace)
            wanted &= (low <= start) & (start < high)
        keep.append(keep_nodes(trace, wanted))
    if not any(map(len, keep)):
        raise UsageError(args.trace, "has no such nodes", "look at them with trace show")
    whole = list(workload.traces)
    for rank, trace in zip(ranks, keep, strict=True):
        whole[rank] = trace
    made = Workload(tuple(whole), workload.groups)
    made = keep_ranks(made, ranks) if args.ranks else made
    write_set(args, made)
    return _said(args, {"ranks": made.ranks, "nodes": before, "kept": sum(map(len, made.traces))})


def _said(args: argparse.Namespace, facts: dict) -> int:
    print(json.dumps(facts) if args.format == "json" else ", ".join(f"{key} {value}" for key, value in facts.items()))
    return EXIT_OK


def run_merge(args: argparse.Namespace) -> int:
    """Write several sets as one."""
    from astrasim_py.workload.edit import side_by_side

    made = side_by_side([*map(_workload, args.sources)])
    write_set(args, made)
    return _said(args, {"ranks": made.ranks, "nodes": sum(map(len, made.traces)), "groups": len(made.groups)})


def run_graph(args: argparse.Namespace) -> int:
    """Write the graph of a rank."""
    import networkx as nx

    from astrasim_py.chakra.graph import owners
    from astrasim_py.chakra.schema import NodeType
    from astrasim_py.core.files import write_file

    workload = _workload(args.trace)
    if not 0 <= args.rank < workload.ranks:
        raise UsageError("--rank", f"{args.rank} is not of {workload.ranks} ranks", f"write 0..{workload.ranks - 1}")
    trace = workload.trace(args.rank)
    if len(trace) > MOST_DRAWN:
        raise UsageError(args.trace, f"{len(trace)} nodes are more than {MOST_DRAWN}", "take some with trace slice")
    ptr, parents = trace.parents("data+ctrl")
    ids = trace.node_id.tolist()
    labels = [name or NodeType(kind).name for name, kind in zip(trace.names, trace.type.tolist(), strict=True)]
    edges = [(ids[parent], ids[child]) for parent, child in zip(parents.tolist(), owners(ptr).tolist(), strict=True)]
    if args.target.endswith(".graphml"):
        graph = nx.DiGraph()
        for row, number in enumerate(ids):
            graph.add_node(number, label=_plain(labels[row]), type=NodeType(int(trace.type[row])).name)
        graph.add_edges_from(edges)
        text = "\n".join(nx.generate_graphml(graph))
    elif args.target.endswith(".dot"):
        lines = [f"  {number} [label={json.dumps(_plain(label))}];" for number, label in zip(ids, labels, strict=True)]
        text = "\n".join(["digraph {", *lines, *(f"  {parent} -> {child};" for parent, child in edges), "}"])
    else:
        raise UsageError(args.target, "is neither .dot nor .graphml", f"write {args.target}.dot")
    make_parent(args.target)
    write_file(args.target, f"{text}\n".encode())
    return _said(args, {"nodes": len(ids), "edges": len(edges)})


def _plain(text: str) -> str:
    """Text without control characters, which XML cannot hold."""
    return "".join(c if c.isprintable() else "?" for c in text)


def run_timeline(args: argparse.Namespace) -> int:
    """Write recorded durations as a timeline."""
    from astrasim_py.core.files import write_file
    from astrasim_py.report.timeline import recorded_timeline
    from astrasim_py.workload.edit import recorded_times

    workload = _workload(args.trace)
    traces = [workload.trace(rank) for rank in range(workload.ranks)]
    times = [*map(recorded_times, traces)]
    make_parent(args.target)
    write_file(args.target, recorded_timeline(traces, times))
    last = max((int(end.max(initial=0)) for _, end in times), default=0)
    return _said(args, {"ranks": workload.ranks, "nodes": sum(map(len, traces)), "microseconds": last / 10**6})


def run_compare(args: argparse.Namespace) -> int:
    """Print a table of the time of a step of both on each network."""
    from astrasim_py.study.sharing import Rules, networks
    from astrasim_py.topology.edge_list import read_edge_list

    sets = []
    for name in (args.first, args.second):
        workload, compute, semantics = read_set(argparse.Namespace(**vars(args) | {"trace": name}))
        sets.append((workload, Rules(compute=compute, semantics=semantics)))
    ranks = sets[0][0].ranks
    if ranks != sets[1][0].ranks or ranks < 2:
        problem = f"{ranks} and {sets[1][0].ranks} ranks have no network in common"
        raise UsageError(args.second, problem, "compare sets of as many ranks, two or more")
    found: dict = {}
    for name in args.simulate:
        found |= networks(ranks) if name == "standard" else {name: read_edge_list(name)}
    rows = []
    for name, topology in found.items():
        if topology.npus < ranks:
            raise UsageError(name, f"has {topology.npus} NPUs for {ranks} ranks", "name a larger topology")
        first, second = (rules.run(workload, topology).makespan for workload, rules in sets)
        rows.append({"network": name, "first_us": first / 10**6, "second_us": second / 10**6,
                     "difference": second / max(first, 1) - 1})  # fmt: skip
    if args.format == "json":
        print(json.dumps(rows, indent=1))
        return EXIT_OK
    print(f"{'network':<28}{'A, us':>16}{'B, us':>16}{'B against A':>13}")
    for row in rows:
        print(f"{row['network']:<28}{row['first_us']:>16.3f}{row['second_us']:>16.3f}{row['difference']:>+13.2%}")
    return EXIT_OK


RUN = {
    "slice": run_part,
    "filter": run_part,
    "merge": run_merge,
    "graph": run_graph,
    "timeline": run_timeline,
    "compare": run_compare,
}
