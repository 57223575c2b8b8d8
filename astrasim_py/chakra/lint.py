"""Lint: errors and risks in files of traces, and in sets of files; `lint_rules` checks one trace.

A damaged file becomes a finding, not an exception; lint continues with the other files.
"""

import os
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra import control
from astrasim_py.chakra import lint_rules as rules
from astrasim_py.chakra.decode import IllTyped, damaged_nodes
from astrasim_py.chakra.et_io import parse_trace, read_bytes, read_traces
from astrasim_py.chakra.groups import groups_from_json, groups_from_metadata, named
from astrasim_py.chakra.lint_rules import Finding, label_of, lint_trace, more_of
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, MISSING, CommType, NodeType
from astrasim_py.chakra.set_files import find_prefix, set_files
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import frame
from astrasim_py.chakra.workload import kind_of
from astrasim_py.core.errors import TraceError
from astrasim_py.core.rows import numbered

#: Damaged nodes of one file that are listed.
_MAX_DAMAGED = 20


def lint(traces: Sequence[ExecutionTrace | None], groups: Mapping[str, Sequence[int]] | None = None) -> list[Finding]:
    """Check the traces of all ranks, each by itself and against one another.

    `traces`: index is the rank; None for an unreadable one, which no finding concerns. `groups`: communicator groups;
    by default those that METADATA nodes declare.
    """
    findings: list[Finding] = []
    traces = _with_groups(traces, groups, findings)
    ranks_of: dict[ExecutionTrace, list[int]] = {}
    for rank, trace in enumerate(traces):
        if trace is not None:
            ranks_of.setdefault(trace, []).append(rank)
    for trace, ranks in ranks_of.items():
        findings.extend(lint_trace(trace, ranks[0] if len(ranks) == 1 else None))
    findings = _merged(findings)
    if ranks_of:
        findings.extend(check_control(tuple(ranks_of)))
        if kind_of(tuple(ranks_of)) != "data":
            ordered = {trace: _ordered(trace) for trace in ranks_of}
            traces = [trace and ordered[trace] for trace in traces]
        findings.extend(check_messages(traces))
        findings.extend(check_collectives(traces, groups))
    return findings


def _with_groups(
    traces: Sequence[ExecutionTrace | None], groups: Mapping[str, Sequence[int]] | None, findings: list[Finding]
) -> list[ExecutionTrace | None]:
    """The traces with groups that nodes name otherwise in ``pg_name``; adds findings where those given contradict."""
    with_groups: dict[ExecutionTrace, ExecutionTrace] = {}
    for trace in dict.fromkeys(trace for trace in traces if trace is not None):
        try:
            with_groups[trace] = named(trace, groups or {})
        except TraceError as error:
            findings += [_from_error(error, "bad-group", trace.place)] if groups else []
    return [trace and with_groups.get(trace, trace) for trace in traces]


def check_control(traces: Sequence[ExecutionTrace]) -> list[Finding]:
    """Control dependencies that are the only order of a set, or that a simulation would ignore although they order."""
    if kind_of(traces) != "data":
        return [Finding("info", "ctrl-only", traces[0].place, control.TAKEN)]
    unused = control.unused(traces)
    return [Finding("warning", "ctrl-unused", *unused)] if unused else []


def _ordered(trace: ExecutionTrace) -> ExecutionTrace:
    try:
        return control.as_data(trace)
    except TraceError:
        return trace


def doubts(traces: Sequence[ExecutionTrace]) -> list[Finding]:
    """Warnings about content that a simulation uses unchanged."""
    ranks_of: dict[ExecutionTrace, list[int]] = {}
    for rank, trace in enumerate(traces):
        ranks_of.setdefault(trace, []).append(rank)
    findings = [rules.doubts(trace, ranks[0] if len(ranks) == 1 else None) for trace, ranks in ranks_of.items()]
    return _merged([*chain.from_iterable(findings)])


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Hints that many files share become one, at the first of them; errors stay apart."""
    alike: dict[tuple, list[Finding]] = {}
    for number, finding in enumerate(findings):
        key = number if finding.severity == "error" else finding.message
        alike.setdefault((finding.severity, finding.rule, key), []).append(finding)
    out = []
    for first, *others in alike.values():
        more = f" (and {len(others)} more files)" if others else ""
        out.append(Finding(first.severity, first.rule, first.place, first.message + more))
    return out


def lint_file(path: str | os.PathLike, rank: int | None = None) -> tuple[ExecutionTrace | None, list[Finding]]:
    """Read one file; returns its trace, None if it is unusable, and findings about the file.

    `lint_trace` checks the trace itself.
    """
    place = os.fspath(path)
    try:
        data = read_bytes(place)
        raw, _ = frame(data, place)
    except TraceError as error:
        return None, [_from_error(error, "framing" if ": byte " in error.place else "unreadable", place)]
    try:
        return parse_trace(data, place, rank), []
    except TraceError as error:
        errors = damaged_nodes(raw, place, _MAX_DAMAGED)
        if not errors:
            return None, [_from_error(error, "duplicate-id", place)]
    return None, [
        _from_error(e, "ill-typed-attribute" if e.remedy == IllTyped.remedy else "damaged", place) for e in errors
    ]


def _from_error(error: TraceError, rule: str, place: str) -> Finding:
    text = f"{error.problem}; {error.remedy}" if error.remedy else error.problem
    return Finding("error", rule, error.place or place, " ".join(text.split()))


def lint_prefix(
    prefix: str | os.PathLike, groups: str | os.PathLike | Mapping[str, Sequence[int]] | None = None
) -> list[Finding]:
    """Check a set `PREFIX.<rank>.et` (or `.et.gz`).

    `groups`: communicator groups, or a JSON file of them. Bad files become findings; nothing is raised for them.
    """
    place = os.fspath(prefix)
    findings: list[Finding] = []
    if groups is not None and not isinstance(groups, Mapping):
        try:
            groups = groups_from_json(groups)
        except TraceError as error:
            findings.append(_from_error(error, "bad-group", place))
            groups = None
    paths: dict[int, str] = {}
    try:
        paths = {rank: os.fspath(path) for rank, path in enumerate(find_prefix(place))}
    except TraceError as error:
        findings.append(_from_error(error, "missing-rank", place))
        paths = _present(place)
    traces: list[ExecutionTrace | None] = [None] * (max(paths, default=-1) + 1)
    try:
        for rank, trace in zip(paths, read_traces(paths.values(), list(paths)), strict=True):
            traces[rank] = trace
    except TraceError:
        shared: dict[bytes, ExecutionTrace] = {}
        for rank, path in paths.items():
            sound, wrong = lint_file(path, rank)
            findings.extend(wrong)
            traces[rank] = (
                shared.setdefault(sound.raw.data, sound) if sound is not None and sound.raw is not None else None
            )
    return findings + lint(traces, groups)


def _present(place: str) -> dict[int, str]:
    """Files of an incomplete set, by rank; the first of a rank that appears twice."""
    try:
        present = set_files(place)
    except (OSError, ValueError):
        return {}
    return {rank: os.path.join(os.path.dirname(place), names[0]) for rank, names in present.items() if rank < 2**20}


_ROOTED = (CommType.REDUCE, CommType.GATHER, CommType.SCATTER, CommType.BROADCAST)
_MESSAGE_SIZES = ("comm_size", "msg_chunk_cnt", "total_chunk_cnt")
#: Traces by rank; None for one that cannot be read.
Traces = Sequence[ExecutionTrace | None]


def _static_order(trace: ExecutionTrace) -> np.ndarray:
    """Position of each row in the order of issue (int64[n]); by id where there is a cycle."""
    try:
        order = trace.order("data")
    except TraceError:
        order = np.argsort(trace.node_id, kind="stable")
    place = np.empty(len(trace), dtype=np.int64)
    place[order] = np.arange(len(trace))
    return place


#: Rows of a table of sends or receives.
_RANK, _ROW, _PEER, _TAG, _SIZES = 0, 1, 2, 3, slice(4, 7)


def _ends(traces: Traces, kind: NodeType, peer: str) -> np.ndarray:
    """All sends, or all receives, in order of issue per rank: int64[7, m]."""
    parts = []
    for rank, trace in enumerate(traces):
        if trace is not None:
            rows = np.flatnonzero((trace.type == kind) & (trace.column(peer) != MISSING))
            rows = rows[np.argsort(_static_order(trace)[rows], kind="stable")]
            columns = [trace.column(name)[rows] for name in (peer, "comm_tag", *_MESSAGE_SIZES)]
            parts.append(np.array([np.full(len(rows), rank), rows, *columns]))
    return np.concatenate(parts, axis=1)


def check_messages(traces: Traces) -> list[Finding]:
    """Peers that do not exist, sends and receives without a partner, and partners of unequal size."""
    findings: list[Finding] = []
    ranks = len(traces)
    readable = np.array([trace is not None for trace in traces], dtype=bool)

    def node(end: np.ndarray) -> int:
        return int(traces[end[_RANK]].node_id[end[_ROW]])

    def add(rule: str, end: np.ndarray, text: str) -> None:
        rank = int(end[_RANK])
        findings.append(Finding("error", rule, f"{label_of(traces[rank], rank)}: node {node(end)}", text))

    sides = []
    for kind, name in ((NodeType.COMM_SEND, "comm_dst"), (NodeType.COMM_RECV, "comm_src")):
        ends = _ends(traces, kind, name)
        beyond = np.flatnonzero(ends[_PEER] >= ranks)
        if len(beyond):
            first = ends[:, beyond[0]]
            text = f"{name} {first[_PEER]} is not one of ranks 0..{ranks - 1}{more_of(len(beyond), 'nodes')}"
            add("bad-peer", first, text)
        peer = np.clip(ends[_PEER], 0, ranks - 1)
        sides.append(ends[:, (ends[_PEER] == peer) & readable[peer]])
    sends, recvs = sides
    # The k-th send of (source, destination, tag) meets the k-th receive of it.
    triples = np.concatenate([sends[[_RANK, _PEER, _TAG]], recvs[[_PEER, _RANK, _TAG]]], axis=1)
    tags, tag = np.unique(triples[2], return_inverse=True)
    keys = (triples[0] * ranks + triples[1]) * len(tags) + tag
    _, first_row, key = np.unique(keys, return_index=True, return_inverse=True)
    send_key, recv_key = np.split(key, [sends.shape[1]])
    send_nth, recv_nth = numbered(send_key), numbered(recv_key)
    sent, received = np.bincount(send_key, minlength=len(first_row)), np.bincount(recv_key, minlength=len(first_row))
    uneven = np.flatnonzero(sent != received)
    if len(uneven):
        k = uneven[0]
        more = ("send", sends, send_key, send_nth), ("receive", recvs, recv_key, recv_nth)
        direction, ends, key, nth = more[0 if sent[k] > received[k] else 1]
        first = np.flatnonzero((key == k) & (nth == min(sent[k], received[k])))[0]
        source, target, tagged = _triple(triples[:, first_row[k]])
        text = f"rank {source} sends {sent[k]} messages with {tagged} to rank {target}, which receives {received[k]}"
        add(f"unmatched-{direction}", ends[:, first], text + more_of(len(uneven), "such triples"))
    send_id, recv_id = (key * (len(tag) + 1) + nth for key, nth in ((send_key, send_nth), (recv_key, recv_nth)))
    _, send, receive = np.intersect1d(send_id, recv_id, assume_unique=True, return_indices=True)
    a, b = sends[_SIZES, send], recvs[_SIZES, receive]
    differ = (a != b) & (a != MISSING) & (b != MISSING)
    bad = np.flatnonzero(differ.any(axis=0))
    if len(bad):
        i, size = send[bad[0]], int(np.argmax(differ[:, bad[0]]))
        source, target, tagged = _triple(triples[:, i])
        text = (
            f"message {send_nth[i]} from rank {source} to rank {target} with {tagged}: the send has "
            f"{_MESSAGE_SIZES[size]} {a[size, bad[0]]}, its receive (node {node(recvs[:, receive[bad[0]]])}) "
            f"{b[size, bad[0]]}{more_of(len(bad), 'messages')}"
        )
        add("size-mismatch", sends[:, i], text)
    return findings


def _triple(triple: np.ndarray) -> tuple[int, int, str]:
    source, target, tag = triple.tolist()
    return source, target, "no tag" if tag == MISSING else f"tag {tag}"


class _CallSequence(NamedTuple):
    """Collective calls of one trace to one group, and their node ids."""

    calls: list[tuple[int, int, int]]
    ids: list[int]


def _calls(trace: ExecutionTrace, order: np.ndarray) -> dict[str, _CallSequence]:
    """Collective calls by group name, in the order given."""
    rows = np.flatnonzero(trace.type == NodeType.COMM_COLL)
    rows = rows[np.argsort(order[rows], kind="stable")]
    codes, names = trace.group_of()
    kind, size = trace.column("comm_type")[rows], trace.column("comm_size")[rows]
    root = np.where(np.isin(kind, _ROOTED), trace.column("comm_root")[rows], MISSING)
    out: dict[str, _CallSequence] = {}
    calls = zip(kind.tolist(), size.tolist(), root.tolist(), strict=True)
    for code, call, node in zip(codes[rows].tolist(), calls, trace.node_id[rows].tolist(), strict=True):
        name = names[code] if code >= 0 else ""
        of_group = out.setdefault("" if name == "0" else name, _CallSequence([], []))
        of_group.calls.append(call)
        of_group.ids.append(node)
    return out


def _call_text(call: tuple[int, int, int]) -> str:
    kind, size, root = call
    name = COLLECTIVE_OF_CODE.get(kind, "an unknown collective" if kind == MISSING else f"comm_type {kind}")
    return name + ("" if size == MISSING else f" of {size} bytes") + ("" if root == MISSING else f", root {root}")


def _members(traces: Traces, groups: Mapping[str, Sequence[int]], out: list[Finding]) -> dict[str, tuple[int, ...]]:
    world = tuple(range(len(traces)))
    members = {"": world}
    for name, ranks in groups.items():
        if name not in ("", "0"):
            beyond = [rank for rank in ranks if rank >= len(traces)]
            if beyond:
                text = f"rank {beyond[0]} is not one of {len(traces)} ranks"
                out.append(Finding("error", "bad-group", f"group {name}", text))
            members[name] = tuple(rank for rank in ranks if rank < len(traces)) or world
    return members


def check_collectives(traces: Traces, groups: Mapping[str, Sequence[int]] | None) -> list[Finding]:
    """Groups that are unknown or called by others, and members of a group that call unlike collectives."""
    findings: list[Finding] = []
    distinct = dict.fromkeys(trace for trace in traces if trace is not None)
    if groups is None:
        declared: dict[str, Sequence[int]] = {}
        for trace in distinct:
            try:
                declared.update(groups_from_metadata(trace))
            except TraceError as error:
                findings.append(Finding("error", "damaged", error.place or label_of(trace, None), error.problem))
        groups = declared or None
    members = _members(traces, groups or {}, findings)
    calls_of = {trace: [_calls(trace, o) for o in (_static_order(trace), trace.node_id)] for trace in distinct}
    # In the order of issue and in that of ids: calls of each rank by group.
    by_issue, by_id = ([calls_of[t][i] if t is not None else {} for t in traces] for i in range(2))
    used: dict[str, int] = {}
    for rank, calls in enumerate(by_issue):
        for name, of_group in calls.items():
            used.setdefault(name, rank)
            if name in members and rank not in members[name]:
                place = f"{label_of(traces[rank], rank)}: node {of_group.ids[0]}"
                text = f"rank {rank} calls a collective of group {name}, but is not a member"
                findings.append(Finding("error", "not-a-member", place, text))
    unknown = [name for name in used if name not in members]
    if unknown and groups is None:
        text = (
            f"no members are known for {len(unknown)} groups ({', '.join(unknown[:4])}"
            f"{', …' if len(unknown) > 4 else ''}): give the groups as JSON to have their collectives checked"
        )
        first = used[unknown[0]]
        findings.append(Finding("info", "groups-unknown", label_of(traces[first], first), text))
    else:
        for name in unknown:
            place = label_of(traces[used[name]], used[name])
            findings.append(Finding("error", "unknown-group", place, f"group {name} is not defined"))
    for name in used:
        ranks = [rank for rank in members.get(name, ()) if traces[rank] is not None]
        if ranks:
            wrong = _compare(traces, by_issue, name, ranks)
            # Independent collectives may be numbered in the same order although they become ready in another.
            if wrong is not None and _compare(traces, by_id, name, ranks) is not None:
                findings.append(wrong)
    return findings


def _compare(
    traces: Traces, by_rank: Sequence[Mapping[str, _CallSequence]], name: str, ranks: Sequence[int]
) -> Finding | None:
    """The first call in which members of a group differ."""
    none = _CallSequence([], [])
    calls = [by_rank[rank].get(name, none) for rank in ranks]
    first, best = calls[0], None
    for other, second in zip(ranks[1:], calls[1:], strict=True):
        if second is first or second.calls == first.calls:
            continue
        n = next(k for k, (a, b) in enumerate(zip_longest(first.calls, second.calls)) if a != b)
        if best is None or n < best[0]:
            best = n, other, second
    if best is None:
        return None
    n, other, second = best
    place_rank, ids = (ranks[0], first.ids) if n < len(first.calls) else (other, second.ids)
    texts = [
        f"{_call_text(sequence.calls[n])} on rank {member}" if n < len(sequence.calls) else f"missing on rank {member}"
        for member, sequence in ((ranks[0], first), (other, second))
    ]
    group = f"group {name}" if name else "the group of all ranks"
    place = f"{label_of(traces[place_rank], place_rank)}: node {ids[n]}"
    return Finding("error", "collective-order", place, f"collective {n} of {group} is {texts[0]} but {texts[1]}")
