"""Convert recordings of PyTorch, of one rank or of many, into a workload of Chakra ETs, with a report on its
quality.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple
from warnings import warn

import numpy as np

from astrasim_py.core.errors import TraceError, UsageError
from astrasim_py.core.files import RANK
from astrasim_py.pytorch.calls import device_calls, kernel_rules
from astrasim_py.pytorch.cpu_backends import host_calls, host_graph, transfers
from astrasim_py.pytorch.edge_kinds import KINDS
from astrasim_py.pytorch.graph import Graph, build_graph
from astrasim_py.pytorch.groups import GroupTable
from astrasim_py.pytorch.host_trace import Arguments, HostTrace, read_host_trace
from astrasim_py.pytorch.join import Joined, join
from astrasim_py.pytorch.kineto import CPU_BACKENDS, read_recording
from astrasim_py.pytorch.rank_files import rank_files
from astrasim_py.pytorch.recording import DEVICE, Category, Recording
from astrasim_py.pytorch.replay import constants_error, next_step_error
from astrasim_py.pytorch.steps import MARK
from astrasim_py.pytorch.together import replay_together
from astrasim_py.pytorch.workload import Built, Options, RankGraph, build_workload
from astrasim_py.workload.trace_readers import Conversion

DEFAULTS = Options()
#: Most ranks that one is replicated to.
MAX_COPIES = 2**16
#: Longest step, ns: in picoseconds it fits 64 bits.
MAX_SPAN = 2**53
#: Share of the span in unexplained gaps from which on a warning is given.
MUCH_UNEXPLAINED = 0.1


class _RecordedRank(NamedTuple):
    """One rank: what was read and made of it; the errors of replays, where they were asked for."""

    recording: Recording
    joined: Joined | None
    graph: RankGraph
    unknown: int  # kernels of communication of unknown kind
    notes: list[str]  # on calls without a kernel, and kernels without a call
    errors: dict[str, float | None]
    assumed: bool  # that calls of unknown groups are of all ranks


def convert_pytorch(
    kineto: str | Sequence[str],
    et: str | Sequence[str] = (),
    *,
    step: int | str | None = "median",
    host: str = "segments",
    without: Collection[str] = (),
    map_kernel: Sequence[str] = (),
    replay: bool = False,
    options: Options = DEFAULTS,
    say: Callable[[str], None] = lambda text: None,
    warnings: list[str] | None = None,
) -> Conversion:
    """Make a workload of recordings of PyTorch.

    Parameters
    ----------
    kineto, et : str or sequence of str
        Traces of the profiler, and of ExecutionTraceObserver if there are any: files, ``archive!member``, or patterns
        with ``{rank}``.
    step : int, str or None
        The iteration: its number, ``"median"`` (by duration on the first rank, but not the first or the last one), or
        None for all.
    host : str
        ``"segments"``: work of the CPU is nodes; ``"none"``: only that of devices.
    without : collection of str
        Kinds of edges to leave out, of `KINDS`.
    map_kernel : sequence of str
        ``REGEX=KIND:GROUP``: kernels that are communication of another library than NCCL.
    replay : bool
        Try the graph of each rank: with three constants in place of all gaps, and with the next step's durations.
    options : Options
        How calls become nodes.
    say : callable
        Takes lines of progress.
    warnings : list of str, optional
        Takes the warnings, too. None: they are Python's warnings.

    Returns
    -------
    Conversion
        Its `problems` say why it is not to be trusted: traces of two runs, ranks without a recording, calls that do
        not meet. Its `warnings` say what of the recordings is not in it: calls without a kernel, kernels that look like
        communication without a call.

    Raises
    ------
    TraceError
        A file that cannot be read or is no recording; calls without a size.
    UsageError
        No such file or step, two files of one rank, an unknown kind of edge.
    """
    _check(without, options)
    names, hosts = ([text] if isinstance(text, str) else text for text in (kineto, et))
    build = _Building(host, without, kernel_rules(map_kernel), say, replay)
    ranks, traces = _ranks(names, hosts if et else (), None if step == "all" else step, options.replicate, build)
    say(f"matching the calls of {len(ranks)} ranks")
    world = max((record.recording.world_size or 0 for record in ranks.values()), default=0) or None
    graphs = {rank: record.graph for rank, record in ranks.items()}
    metadata = {rank: _metadata(record) for rank, record in ranks.items()}
    parts = build_workload(graphs, world, options, "pytorch", metadata)
    problems = _problems(ranks, traces) + parts.problems
    doubts = [*parts.warnings, *_doubts(ranks)]
    report = _report(ranks, parts, problems, doubts) | {
        "replay_errors": _together(graphs, parts, options.skew) if replay else {}
    }
    for text in doubts:
        if warnings is None:
            warn(text, stacklevel=2)
        else:
            warnings.append(text)
    return Conversion(parts.workload, report, _lines(report), problems, doubts)


def _check(without: Collection[str], options: Options) -> None:
    for kind in without:
        if kind not in KINDS:
            raise UsageError("--without", f'"{kind}" is no kind of edge', f"use {', '.join(KINDS)}")
    for name in ("replicate", "size_default"):
        if (value := getattr(options, name) or 0) < 0:
            raise UsageError(f"--{name.replace('_', '-')}", f"{value} is less than 0", "write 0 or more")
    if options.replicate > MAX_COPIES:
        problem = f"{options.replicate} ranks are too many, for each becomes a file"
        raise UsageError("--replicate", problem, f"write at most {MAX_COPIES}")


class _Building(NamedTuple):
    """How the graph of every rank is made: options of `convert`."""

    host: str
    without: Collection[str]
    rules: Sequence
    say: Callable[[str], None]
    replay: bool


def _ranks(
    kineto: Sequence[str], et: Sequence[str], step: int | str | None, replicate: int, build: _Building
) -> tuple[dict[int, _RecordedRank], dict[int | None, str]]:
    """The ranks that were recorded, and the files of their host traces by the rank in their names."""
    files, traces = rank_files(kineto, "--kineto"), rank_files(et, "--et") if et else {}
    if replicate and len(files) > 1:
        raise UsageError("--replicate", f"there are {len(files)} recordings", "replicate one recording only")
    guessed, say = not any(RANK in name for name in kineto), build.say
    # Number of ranks, where no header says it.
    world = replicate or (1 + max(rank or 0 for rank in files) if len(files) > 1 else None)
    ranks: dict[int, _RecordedRank] = {}
    for number, (label, source) in enumerate(files.items()):
        recording = read_recording(source, step, _telling(say, source, number, len(files)))
        if step == "median" and recording.step.name:
            step = recording.step.name.removeprefix(MARK)  # the same iteration of all ranks
        rank = _own_rank(label, recording, guessed)
        if rank in ranks:
            raise TraceError(source, f"is of rank {rank}, as {ranks[rank].recording.source} is", "name one of them")
        of_host = next(iter(traces.values())) if len(traces) == len(files) == 1 else traces.get(label, traces.get(rank))
        trace = read_host_trace(of_host, _telling(say, of_host, number, len(files))) if of_host else None
        say(f"making the graph of rank {rank}")
        try:
            ranks[rank] = _one_rank(recording, trace, recording.world_size or world, build)
        except RecursionError:
            problem = "has arguments that are nested too deeply"
            raise TraceError(source, problem, "it is no recording of PyTorch") from None
        if build.replay:
            say(f"replaying rank {rank}")
            ranks[rank].errors.update(_replayed(ranks[rank], build.host, build.without))
    return ranks, traces


def _telling(say: Callable[[str], None], source: str, number: int, count: int) -> Callable[[float], None]:
    return lambda share: say(f"reading {source} ({number + 1} of {count}): {share:.0%}")


def _own_rank(label: int | None, recording: Recording, guessed: bool) -> int:
    """The rank of a recording, which its name and its header may say; 0 if neither does."""
    header = recording.rank
    if header is not None and (guessed or label is None):
        return header
    if header is not None and label != header:
        problem = f"is of rank {header} by its header and of rank {label} by its name"
        raise TraceError(recording.source, problem, "rename it, or write another pattern")
    return label or 0


def _one_rank(recording: Recording, trace: HostTrace | None, world: int | None, build: _Building) -> _RecordedRank:
    host, without, rules = build.host, build.without, build.rules
    if recording.span_ns > MAX_SPAN:
        remedy = "choose another step, or look for a wrong ts or dur"
        raise TraceError(recording.source, f"its step lasts longer than {MAX_SPAN // 86_400 // 10**9} days", remedy)
    joined = join(recording, trace) if trace is not None else None
    host_rows = joined.host_row if joined and joined.same_run else None

    def node_of(row: int) -> Arguments | None:
        host_row = int(host_rows[row]) if host_rows is not None else -1
        return trace.communication.get(host_row) if trace is not None and host_row >= 0 else None

    host_groups = trace.groups if trace is not None and host_rows is not None else ()
    table = GroupTable(world, (*recording.groups, *host_groups), recording.source)
    if recording.counts.keys() & {category.name for category in DEVICE}:
        calls, unknown, notes = device_calls(recording, table, node_of, rules)
        graph = RankGraph(build_graph(recording, host, without, {*unknown, *(call.row for call in calls)}), calls, True)
    else:
        for option, is_set in (("--host", host == "none"), ("--without", without), ("--map-kernel", rules)):
            if is_set:
                raise UsageError(option, f"{recording.source} has no work of a device", "drop the option")
        spans, unknown, notes = transfers(recording, node_of), [], []
        graph = RankGraph(host_graph(recording, spans), host_calls(recording, spans, table, node_of), False)
    return _RecordedRank(recording, joined, graph, len(unknown), notes, {}, table.assumed)


def _replayed(record: _RecordedRank, host: str, without: Collection[str]) -> dict[str, float | None]:
    """Relative errors of replays of one rank; None where there is no other step that does the same."""
    recording, graph = record.recording, record.graph.graph
    errors = {"constants": constants_error(graph), "next_step": None}
    index = next((place for place, step in enumerate(recording.steps) if step == recording.step), -1)
    if index >= 0 and len(recording.steps) > 1 and record.graph.device:
        other = recording.steps[index + 1 if index + 1 < len(recording.steps) else index - 1].name.partition("#")[2]
        second = build_graph(read_recording(recording.source, other), host, without)
        errors["next_step"] = next_step_error(graph, second)
    return errors


def _together(graphs: dict[int, RankGraph], parts: Built, skew: str) -> dict[str, float]:
    """Largest relative error of the end of a rank when all ranks are replayed together, each begun as recorded: with
    recorded gaps, with three constants; their time if they begin at once; empty where not all calls meet."""
    if len(graphs) < 2 or parts.kept:
        return {}
    worst = {}
    for name, with_constants in (("together", False), ("together_constants", True)):
        ends = replay_together(graphs, parts.meeting, with_constants=with_constants)
        worst[name] = max(abs(end / max(recorded, 1) - 1) for end, recorded in ends.values())
    if skew == "drop":
        worst["at_once_us"] = max(end for end, _ in replay_together(graphs, parts.meeting, skew=False).values()) / 1000
    return worst


# -- the report -----------------------------------------------------------------------------------------------------


def _by_text(lines: Iterable[tuple[int, str]]) -> list[str]:
    """Lines about ranks, one for all ranks of which the same is to say."""
    ranks: dict[str, list[int]] = {}
    for rank, text in lines:
        ranks.setdefault(text, []).append(rank)
    return [
        f"rank {group[0]}: {text}" if len(group) == 1 else f"{len(group)} ranks, rank {group[0]} the first: {text}"
        for text, group in ranks.items()
    ]


def _problems(ranks: dict[int, _RecordedRank], traces: dict[int | None, str]) -> list[str]:
    lines = []
    for rank, record in ranks.items():
        if record.joined and not record.joined.same_run:
            lines.append((rank, f"{record.joined}, so its host trace is left out"))
        elif record.joined and record.joined.strangers:
            lines.append((rank, "its host trace is that of another process, of another rank or run"))
        if count := record.unknown:
            kernels = "1 kernel" if count == 1 else f"{count} kernels"
            problem = f"the kind of {kernels} of communication is unknown, as no call of the host says it"
            lines.append((rank, f"{problem}: trace convert --map-kernel names it"))
    problems = _by_text(lines)
    steps = sorted({record.recording.step.name or "all" for record in ranks.values()})
    if len(steps) > 1:
        problems.append(f"ranks were recorded in different iterations ({', '.join(steps)}); choose one by --step")
    if traces and len(ranks) > 1 and (lacking := [rank for rank in ranks if rank not in traces]):
        problems.append(f"{len(lacking)} of {len(ranks)} ranks have no host trace, rank {lacking[0]} the first")
    return problems


def _doubts(ranks: dict[int, _RecordedRank]) -> list[str]:
    """Notes on parts of a recording that its graph does not show."""
    assumed = sum(record.assumed for record in ranks.values())
    doubts = (
        [f"calls of {assumed} rank{'s' * (assumed > 1)} have no group, and count as calls of all ranks"]
        if assumed
        else []
    )
    lines = []
    for rank, record in ranks.items():
        lines += [(rank, note) for note in record.notes]
        recording, events = record.recording, record.recording.events
        spans = [code for code, name in enumerate(recording.names) if name.startswith(CPU_BACKENDS)]
        if record.graph.device and (count := int(np.isin(events.name, spans).sum())):
            lines.append((rank, f"{count} transfers by threads of the host stay work of these threads"))
        calls = events.correlation[(events.category == Category.CALL) & (events.correlation >= 0)]
        graphs = [code for code, name in enumerate(recording.names) if "Graph" in name]
        launches = events.launch[events.on_device & (events.launch >= 0)]
        launches = launches[~np.isin(events.name[launches], graphs)]
        if count := len(calls) - len(np.unique(calls)) + len(launches) - len(np.unique(launches)):
            text = f"{count} calls and operations have the correlation of another one; its first call counts"
            lines.append((rank, text))
    return doubts + _by_text(lines)


def _report(
    ranks: dict[int, _RecordedRank], parts: Built, problems: Sequence[str], warnings: Sequence[str]
) -> dict[str, Any]:
    calls = Counter(call.kind for record in ranks.values() for call in record.graph.calls)
    return {
        "format": "pytorch",
        "ranks": [{"rank": rank, **_of_rank(record)} for rank, record in ranks.items()],
        "nodes": sum(len(trace) for trace in parts.workload.traces),
        "groups": {name: list(members) for name, members in parts.workload.groups.items()},
        "calls": dict(sorted(calls.items())),
        "calls_kept_as_computation": parts.kept,
        "problems": list(problems),
        "warnings": list(warnings),
        "notes": parts.notes,
    }


def _of_rank(record: _RecordedRank) -> dict[str, Any]:
    recording, graph = record.recording, record.graph.graph
    linked = recording.events.launch[recording.work] >= 0
    return {
        "source": recording.source,
        "step": recording.step.name or "all",
        "span_us": recording.span_ns / 1000,
        "resolution_us": recording.resolution_ns / 1000,
        "device_ops": len(recording.work),
        "linked": int(linked.sum()),
        "backlog": len(recording.backlog),
        "join": _of_join(record.joined),
        "edges": graph.edges_by_kind(),
        "dropped_edges": graph.dropped,
        "unexplained": graph.unexplained,
        "largest_gaps": [_of_gap(graph, gap) for gap in graph.largest_gaps()],
        "replay_errors": record.errors,
        "events": recording.counts,
    }


def _metadata(record: _RecordedRank) -> dict[str, Any]:
    """Metadata of a trace about its recording."""
    recording = record.recording
    metadata = {"recorded_step": recording.step.name or "all", "recorded_span_ns": recording.span_ns}
    metadata |= {"recorded_begin_ns": recording.base_ns, "unexplained_share": record.graph.graph.unexplained}
    return metadata | ({"joined_share": record.joined.rate} if record.joined else {})


def _of_join(joined: Joined | None) -> dict[str, Any] | None:
    if joined is None:
        return None
    counts = {name: getattr(joined, name) for name in ("rate", "same_run", "by_record_id", "how")}
    return counts | {name: getattr(joined, name) for name in ("joined", "operators", "nodes")}


def _of_gap(graph: Graph, gap) -> dict[str, Any]:
    row = int(graph.row[gap.node])
    recording = graph.recording
    name = recording.names[recording.events.name[row]] if row >= 0 else "cpu"
    meanwhile = [{"device": d, "stream": s, "busy_us": busy / 1000} for d, s, busy in gap.meanwhile]
    return {"us": gap.duration / 1000, "at_us": gap.start / 1000, "before": name[:80], "meanwhile": meanwhile}


def _lines(report: dict[str, Any]) -> list[str]:
    """The report for a person."""
    ranks = report["ranks"]
    spans = sorted(rank["span_us"] for rank in ranks)
    between = f"{spans[0]:,.3f}" if len(spans) == 1 else f"{spans[0]:,.3f} to {spans[-1]:,.3f}"
    steps = ", ".join(sorted({rank["step"] for rank in ranks}))
    lines = [f"{len(ranks)} rank{'s' * (len(ranks) > 1)}, step {steps}: {between} µs, {report['nodes']:,} nodes"]
    work = sum(rank["device_ops"] for rank in ranks)
    if work:
        linked, backlog = (sum(rank[key] for rank in ranks) for key in ("linked", "backlog"))
        backlog_text = f", and {backlog:,} of before the step" if backlog else ""
        lines.append(f"work of devices: {work:,}, of which {linked:,} have their launch{backlog_text}")
    joins = [rank["join"] for rank in ranks if rank["join"]]
    if joins:
        worst = min(joins, key=lambda join: join["rate"])
        counts = f"{worst['joined']:,} of {worst['operators']:,} operators, of {worst['nodes']:,} nodes"
        lines.append(
            f"joined: {100 * worst['rate']:.1f} % {worst['how']} ({counts}{', the worst rank' * (len(joins) > 1)})"
        )
    edges: Counter[str] = Counter()
    for rank in ranks:
        edges.update(rank["edges"])
    lines.append(f"edges: {', '.join(f'{count:,} {kind}' for kind, count in edges.items()) or 'none'}")
    calls = ", ".join(f"{count} {kind}" for kind, count in report["calls"].items())
    lines.append(f"calls: {calls or 'none'}")
    worst = max(ranks, key=lambda rank: rank["unexplained"])
    much = " (much: the graph lacks something)" if worst["unexplained"] > MUCH_UNEXPLAINED else ""
    gaps = "; the largest gaps:" if worst["largest_gaps"] else ""
    lines.append(f"unexplained: {100 * worst['unexplained']:.1f} % of the span{much}{gaps}")
    for gap in worst["largest_gaps"]:
        others = [f"stream {s['stream']} busy {s['busy_us']:,.3f} µs" for s in gap["meanwhile"]]
        place = f"  {gap['us']:,.3f} µs at {gap['at_us']:,.3f} before {gap['before']}"
        lines.append(f"{place}; {', '.join(others) or 'no other stream busy'}")
    for name, title in (("constants", "three constants"), ("next_step", "the next step's durations")):
        errors = [rank["replay_errors"].get(name) for rank in ranks]
        sizes = [abs(error) for error in errors if error is not None]
        if any(rank["replay_errors"] for rank in ranks):
            lines.append(f"replay with {title}: {f'error {100 * max(sizes):.2f} %' if sizes else 'not possible'}")
    for name, title in (("together", "recorded gaps"), ("together_constants", "three constants")):
        if name in report["replay_errors"]:
            error = 100 * report["replay_errors"][name]
            lines.append(f"replay of all ranks together, begun as recorded, with {title}: error {error:.2f} %")
    if "at_once_us" in report["replay_errors"]:
        lines.append(f"replay of all ranks begun at once: {report['replay_errors']['at_once_us']:,.3f} µs")
    lines += [f"note: {note}" for note in report["notes"]]
    return [*lines, *(f"warning: {text}" for text in report["warnings"])]
