"""Explanation of a run's time: critical path across ranks, exposed communication, busiest links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.records import Records, Table, called_instances, empty_table, queue_pairs
from astrasim_py.core.units import format_size, format_time
from astrasim_py.report.busiest_links import busiest_links
from astrasim_py.report.critical_path import CATEGORIES, CriticalPath, Segment
from astrasim_py.report.intervals import covered, union
from astrasim_py.report.neighbours import JobPath, Part, bytes_by_job, job_paths, job_paths_text
from astrasim_py.report.tables import text_table


@dataclass(frozen=True, slots=True)
class Exposure:
    """Exposed communication of one collective, or of all point-to-point messages (instance -1)."""

    instance: int
    name: str
    duration: int  # first start to last end, ps
    #: ps in this collective with no compute running, of the rank where it is longest; each of several collectives in
    #: flight at once is charged the whole time
    exposed: int
    rank: int
    on_path: int  # its share of the critical path, ps


def exposures_of(records: Records, path: Sequence[Segment], by_job: bool = False) -> tuple[Exposure, ...]:
    node, collective = records.node, records.collective
    instance, rank, start, end = (node[name] for name in ("instance", "rank", "start", "end"))
    codes, labels = node.coded("kind")
    code_of = {label: code for code, label in enumerate(labels)}
    nodes = np.flatnonzero((instance < 0) & (end >= 0) & (start >= 0))
    nodes = nodes[np.argsort(rank[nodes], kind="stable")]
    compute = nodes[codes[nodes] == code_of.get("compute", -1)]
    p2p = nodes[(codes[nodes] == code_of.get("send", -1)) | (codes[nodes] == code_of.get("recv", -1))]
    nodes = nodes[rank[nodes] < len(records.finish)]  # a switch waits for its calls from the start
    called = called_instances(node)
    caller = np.flatnonzero((called >= 0) & (end >= 0) & (rank < len(records.finish)))
    caller = caller[np.argsort(rank[caller], kind="stable")]
    of_instance = called[caller]
    longest: dict[int, tuple[int, int]] = {}
    for r in np.unique(rank[np.concatenate([p2p, caller])]).tolist():
        computing, calls, sent = (slice(*np.searchsorted(rank[rows], (r, r + 1))) for rows in (compute, caller, p2p))
        busy = union(start[compute[computing]], end[compute[computing]])
        begun, ended = start[caller[calls]], end[caller[calls]]
        bare = (ended - begun) - (covered(*busy, ended) - covered(*busy, begun))
        for i, ps in zip(of_instance[calls].tolist(), bare.tolist(), strict=True):
            if ps > longest.get(i, (-1, -1))[0]:
                longest[i] = (ps, r)
        begun, ended = union(start[p2p[sent]], end[p2p[sent]])
        ps = int(((ended - begun) - (covered(*busy, ended) - covered(*busy, begun))).sum())
        if len(begun) and ps > longest.get(-1, (-1, -1))[0]:
            longest[-1] = (ps, r)
    on_path: dict[int, int] = {}
    for piece in path:
        if piece.instance >= 0 or piece.message >= 0:
            on_path[piece.instance] = on_path.get(piece.instance, 0) + piece.end - piece.start

    def exposure(instance: int, name: str, duration: int) -> Exposure:
        exposed, worst_rank = longest.get(instance, (0, -1))
        return Exposure(instance, name, duration, exposed, worst_rank, on_path.get(instance, 0))

    result = []
    for c in collective.rows():
        name = f"{c['job']}, " if by_job else ""
        name += f"{c['type']} {format_size(c['size'])}" + (f" ({c['algorithm']})" if c["algorithm"] else "")
        result.append(exposure(c["instance"], name, max(c["end"] - c["start"], 0)))
    if len(p2p):
        result.append(exposure(-1, "point-to-point", int(end[p2p].max() - start[p2p].min())))
    return tuple(sorted(result, key=lambda e: (-e.exposed, -e.on_path, e.instance)))


_LINES = 24
#: A path of at most this many steps is also shown message by message.
_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The critical path, exposed communication and link loads of a run. `messages`: row of the message table → source
    rank, destination rank, bytes; for messages on the path.
    """

    makespan: int  # ps
    path: tuple[Segment, ...]  # the critical path from 0 to `makespan`, without gaps
    totals: Mapping[str, int]  # category → ps; they add up to the makespan
    exposures: tuple[Exposure, ...]  # by collective, the most exposed first
    links: tuple[dict, ...]  # rows of the link table with the name of the link, the busiest first (`busiest_links`)
    labels: Mapping[int, str]  # row of the node table → what it is, for rows on the path
    messages: Mapping[int, tuple[int, int, int]]
    link_names: Mapping[int, str]  # of links on the path
    queue_pairs: Mapping[int, int]  # of `messages`, where there are several
    jobs: tuple[JobPath, ...] = ()  # the path of each of several jobs
    switches: Mapping[int, str] = field(default_factory=dict)  # names of switches, by rank
    advice: str = ""  # what would make the run faster

    def __str__(self) -> str:
        return explanation_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(explanation_text(self))}</pre>"

    def at_switches(self) -> dict[str, dict[str, int]]:
        """What the critical path spent in switches and on what they sent, ps: by switch and category."""
        spent: dict[str, dict[str, int]] = {}
        for piece in self.path:
            if piece.rank in self.switches:
                parts = spent.setdefault(self.switches[piece.rank], {})
                parts[piece.category] = parts.get(piece.category, 0) + piece.end - piece.start
        return spent

    def rank_name(self, rank: int) -> str:
        return f"switch {self.switches[rank]}" if rank in self.switches else f"rank {rank}"

    def waits(self, category: str = "queueing") -> list[tuple[str, int]]:
        """Links for which the critical path waited, or that it shared, with the time, the longest first."""
        spent: dict[int, int] = {}
        for piece in self.path:
            if piece.category == category and piece.link >= 0:  # -1: the model does not say on which
                spent[piece.link] = spent.get(piece.link, 0) + piece.end - piece.start
        ordered = sorted(spent.items(), key=lambda item: (-item[1], item[0]))
        return [(self.link_names.get(link, f"link {link}"), ps) for link, ps in ordered]


def explain(
    records: Records,
    edges: Table | None = None,
    longer: Mapping[int, int] | None = None,
    jobs: Sequence[Part] = (),
    switches: Sequence[str] = (),
    switch_latency: int = 0,
    qps: int = 1,
    changes: Sequence[int] = (),
) -> Explanation:
    """Walk the critical path and attribute the time. `records`: of level ``messages``. `edges`: ``link``, ``name`` and
    ``latency`` (ps) of the links: their names, and the exact split of latency and serialization. `longer`: collective
    instance → extra ps per hop of its messages. `jobs`: with several, also the path of each. `switches`: names of those
    that took part, whose ranks follow the others; `switch_latency`: ps that what they send takes longer. `qps`: queue
    pairs of two NPUs. `changes`: when (ps) links fail, change and return. Raises UsageError: records of a lower level.
    """
    if records.level != "messages":
        raise UsageError("records", f'level "{records.level}" does not hold messages', 'record at level "messages"')
    edges = empty_table(("link", "name", "latency")) if edges is None else edges
    names, latency = (
        dict(zip(edges["link"].tolist(), edges[name].tolist(), strict=True)) for name in ("name", "latency")
    )
    walker = CriticalPath(records, latency, longer or {}, switch_latency, changes)
    path = walker.walk()
    totals = dict.fromkeys(CATEGORIES, 0)
    for piece in path:
        totals[piece.category] += piece.end - piece.start
    node, message = records.node, records.message
    rows = sorted({piece.row for piece in path if piece.row >= 0})
    sent = sorted({piece.message for piece in path if piece.message >= 0})
    rates = None
    if "bandwidth" in edges:
        rate = dict(zip(edges["link"].tolist(), edges["bandwidth"].tolist(), strict=True))
        rates = np.array([rate.get(number, 0) for number in records.link["link"].tolist()], dtype=np.int64)
    several = len(jobs) > 1
    links = busiest_links(records.link, names, rates, fold=not several)
    if several and records.hop.height:
        links = tuple(use | {"jobs": bytes_by_job(records, jobs, use["link"])} for use in links)
    pairs = queue_pairs(message, qps)
    return Explanation(
        makespan=records.makespan,
        path=path,
        totals=totals,
        exposures=exposures_of(records, path, several),
        links=links,
        labels={row: _label(node, row) for row in rows},
        messages={m: (int(message["src"][m]), int(message["dst"][m]), int(message["bytes"][m])) for m in sent},
        queue_pairs={m: int(pairs[m]) for m in sent} if qps > 1 else {},
        link_names={i: names.get(i, f"link {i}") for i in sorted({piece.link for piece in path}) if i >= 0},
        jobs=tuple(job_paths(walker, records, jobs, names)) if several else (),
        switches=dict(enumerate(switches, len(records.finish))),
    )


def _label(node: Table, row: int) -> str:
    kind, name = (labels[codes[row]] for codes, labels in (node.coded("kind"), node.coded("name")))
    return f"{kind} {node['node'][row]}" + (f' "{name}"' if name else "")


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %" if total else ""


def _shares(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_share(part, sum(parts.values()))}" for name, part in parts.items())


class _ExplainedTable(NamedTuple):
    """A part of the text. `columns`: headings, and whether a column is of numbers."""

    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[str]]
    title: str = ""
    below: Sequence[str] = ()

    def text(self, limit: int | None = None) -> str:
        """The table with its first rows; empty where it has none."""
        if not self.rows:
            return ""
        shown = self.rows[:limit]
        table = text_table([heading for heading, _ in self.columns], shown, [numeric for _, numeric in self.columns])
        hidden = len(self.rows) - len(shown)
        rest = [f"… and {hidden} more"] if hidden else []
        return "\n".join([*([self.title] if self.title else []), table, *rest, *self.below])


def explanation_text(e: Explanation, lines: int = _LINES) -> str:
    """An explanation as text. `lines`: rows of its longer tables at most."""
    steps = _steps(e)
    in_order = _ExplainedTable(_STEPS, steps, "critical path, in order")
    singly = _ExplainedTable(_STEPS, (), "")
    if 0 < len(steps) <= _FEW and any(piece.message >= 0 and piece.instance >= 0 for piece in e.path):
        singly = _ExplainedTable(_STEPS, _steps(e, whole_collectives=False), "message by message")
    blocks = [
        f"makespan {format_time(e.makespan)}",
        _spent(e).text(),
        job_paths_text(e.jobs) if e.jobs else "",
        _exposed(e).text(lines),
        _busiest(e).text(),
        in_order.text(lines),
        singly.text(lines),
        f"advice: {e.advice}" if e.advice else "",
    ]
    return "\n\n".join(filter(None, blocks))


_STEPS = (("from", True), ("to", True), ("what", False), ("time", True))


def _spent(e: Explanation) -> _ExplainedTable:
    """What the critical path consists of, the most first, and where it waited."""
    columns = (("on the critical path", False), ("time", True), ("share", True), ("what it is", False))
    spent = _most_first(e.totals)
    rows = [[name, format_time(ps), _share(ps, e.makespan), CATEGORIES[name]] for name, ps in spent if ps]
    below = []
    for verb, waits in (("waited for", e.waits()), ("was slowed down on", e.waits("sharing"))):
        if waits:
            longest = ", ".join(f"{name} {format_time(ps)}" for name, ps in waits[:5])
            below.append(f"it {verb} {longest}" + (f", and {len(waits) - 5} more links" if waits[5:] else ""))
    for name, parts in sorted(e.at_switches().items(), key=lambda item: -sum(item[1].values())):
        times = ", ".join(f"{category} {format_time(ps)}" for category, ps in _most_first(parts))
        below.append(f"switch {name} and what it sent took {_share(sum(parts.values()), e.makespan)} of it: {times}")
    return _ExplainedTable(columns, rows, below=below)


def _most_first(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(parts.items(), key=lambda item: -item[1])


def _exposed(e: Explanation) -> _ExplainedTable:
    """Exposed communication, equal calls on one line."""
    numbers = [(heading, True) for heading in ("time", "exposed", "at rank", "on critical path")]
    alike: dict[tuple[object, ...], list[Exposure]] = {}
    for x in e.exposures:
        alike.setdefault((x.name, x.duration, x.exposed, x.rank < 0, x.on_path), []).append(x)
    rows = [
        [
            (x.name if x.instance < 0 else f"{x.instance}: {x.name}") + and_alike(len(calls)),
            format_time(x.duration),
            format_time(x.exposed),
            _at(calls),
            format_time(x.on_path),
        ]
        for calls in alike.values()
        for x in calls[:1]
    ]
    return _ExplainedTable([("communication", False), *numbers], rows)


def _busiest(e: Explanation) -> _ExplainedTable:
    """The busiest links; of several jobs with the share of each."""
    numbers = [(heading, True) for heading in ("busy", "share", "bytes", "messages", "waited for", "GB/s")]
    rows = [
        [
            use["name"] + and_alike(use["alike"]),
            format_time(use["busy"]),
            _share(use["busy"], e.makespan),
            format_size(use["bytes"]),
            str(use["messages"]),
            format_time(use["queued"]),
            f"{use['rate'] / 10**9:.4g}" if use["rate"] else "",
            *([_shares(use.get("jobs", {}))] if e.jobs else []),
        ]
        for use in e.links
    ]
    return _ExplainedTable([("busiest links", False), *numbers, *([("of jobs", False)] if e.jobs else [])], rows)


def _at(calls: Sequence[Exposure]) -> str:
    """The rank at which a call is exposed most, or the first and the last one of equal calls."""
    ranks = sorted({x.rank for x in calls if x.rank >= 0})
    return f"{ranks[0]}{f' … {ranks[-1]}' * (len(ranks) > 1)}" if ranks else ""


def and_alike(count: int) -> str:
    return f" and {count - 1} equal" if count > 1 else ""


@dataclass(slots=True)
class _PathStep:
    """Consecutive pieces of the critical path on one line. `count`: how many like it follow one another."""

    key: tuple[str, int]
    first: Segment
    last: Segment
    end: int
    spent: dict[str, int]
    messages: set[int]
    count: int = 1


def _steps(e: Explanation, *, whole_collectives: bool = True) -> list[list[str]]:
    """Consecutive pieces of one node or message as one line; if asked, those of one collective as one."""
    steps: list[_PathStep] = []
    for piece in e.path:
        collective = whole_collectives and piece.instance >= 0
        key = ("c", piece.instance) if collective else ("m", piece.message) if piece.message >= 0 else ("n", piece.row)
        if not steps or steps[-1].key != key:
            steps.append(_PathStep(key, piece, piece, piece.end, {}, set()))
        step = steps[-1]
        step.end = piece.end
        step.spent[piece.category] = step.spent.get(piece.category, 0) + piece.end - piece.start
        if piece.message >= 0:
            step.messages.add(piece.message)
    lines: list[tuple[tuple[object, ...] | None, _PathStep]] = []
    for step in steps:
        like = _like(step, e, whole_collectives)
        if lines and like is not None and lines[-1][0] == like:
            line = lines[-1][1]
            line.end, line.count, line.last = step.end, line.count + 1, step.first
        else:
            lines.append((like, step))
    names = {x.instance: x.name for x in e.exposures}
    return [
        [
            format_time(line.first.start),
            format_time(line.end),
            _step_text(line, e, names, whole_collectives),
            format_time(line.end - line.first.start),
        ]
        for _, line in lines
    ]


def _like(step: _PathStep, e: Explanation, whole_collectives: bool) -> tuple[object, ...] | None:
    """What steps that share one line have in common; None for a step with a line of its own."""
    piece = step.first
    if piece.message < 0 or (whole_collectives and piece.instance >= 0):
        return None
    return piece.instance, e.messages[piece.message][2], step.end - piece.start, tuple(step.spent.items())


def _ends(piece: Segment, e: Explanation) -> str:
    if piece.message < 0:
        return ""
    src, dst, _ = e.messages[piece.message]
    return f"{e.rank_name(src)} → {e.rank_name(dst).removeprefix('rank ')}"


def _step_text(step: _PathStep, e: Explanation, names: Mapping[int, str], whole_collectives: bool) -> str:
    piece = step.first
    spent = ", ".join(f"{category} {format_time(ps)}" for category, ps in _most_first(step.spent))
    if whole_collectives and piece.instance >= 0:
        count = len(step.messages)
        messages = f"{count} message{'s' if count != 1 else ''} one after the other"
        return f"collective {piece.instance} {names.get(piece.instance, '')}: {messages} ({spent})"
    if piece.message >= 0:
        size, ends, last = format_size(e.messages[piece.message][2]), _ends(piece, e), _ends(step.last, e)
        if step.count > 1:
            until = f" to {last}" if last != ends else ""
            return f"{ends}{until}: {step.count} messages of {size} one after the other, each ({spent})"
        pair = f" on queue pair {e.queue_pairs[piece.message]}" if e.queue_pairs else ""
        return f"{ends}{pair}: {e.labels[piece.row]}, {size} ({spent})"
    if piece.row >= 0:
        return f"{e.rank_name(piece.rank)}: {e.labels[piece.row]} ({piece.category})"
    return "after the last completed node" if piece.start else "nothing completed"
