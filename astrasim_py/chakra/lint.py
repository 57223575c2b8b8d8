"""What is wrong, or unwise, in traces: file by file, and across the ranks of a set.

Errors are what some consumer refuses, hangs on or gets wrong; warnings are what it may; infos are hints.
Nothing here raises for a bad file: damage becomes a finding, and the other files are still looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.decode import IllTypedAttribute, attribute_kinds, damaged_nodes
from astrasim_py.chakra.et_io import find_prefix, parse_trace, read_bytes
from astrasim_py.chakra.framing import frame
from astrasim_py.chakra.schema import COLLECTIVE_NAMES, COLUMN_KINDS, INT_COLUMNS, MISSING, CommType, NodeType
from astrasim_py.chakra.trace import ExecutionTrace, cycle_text
from astrasim_py.chakra.workload import groups_from_json, groups_from_metadata
from astrasim_py.core.errors import TraceError

#: Severities, the worst first.
SEVERITIES = ("error", "warning", "info")
#: Damaged nodes of one file that are listed.
_MAX_DAMAGED = 20
_ROOTED = (CommType.REDUCE, CommType.GATHER, CommType.SCATTER, CommType.BROADCAST)
_COMM_TYPES = (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)
#: Attributes whose oneof member matters to consumers that read only the canonical one.
_READ_BY_CONSUMERS = ("is_cpu_op", *INT_COLUMNS[: INT_COLUMNS.index("num_ops")])
#: Members that consumers read as one another without loss.
_ALIKE = frozenset((("comm_priority", "uint32_val"), ("comm_size", "uint64_val"), ("num_ops", "uint64_val")))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that lint found.

    Attributes
    ----------
    severity : str
        ``error``, ``warning`` or ``info``.
    rule : str
        Stable name of the rule.
    place : str
        File, and node where there is one.
    message : str
        One line.
    """

    severity: str
    rule: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.message} [{self.rule}]"


def worst_severity(findings: Iterable[Finding]) -> str:
    """The worst severity among findings; empty if there are none."""
    seen = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in seen), "")


def _label(trace: ExecutionTrace | None, rank: int | None) -> str:
    return (trace.place if trace is not None else "") or (f"rank {rank}" if rank is not None else "trace")


# --------------------------------------------------------------------------------------------------------
# One trace


class _Checker:
    def __init__(self, trace: ExecutionTrace, label: str) -> None:
        self.trace, self.label = trace, label
        self.found: list[Finding] = []

    def add(self, severity: str, rule: str, message: str, row: int | None = None) -> None:
        place = self.label if row is None else f"{self.label}: node {int(self.trace.node_id[row])}"
        self.found.append(Finding(severity, rule, place, message))

    def some(self, severity: str, rule: str, bad: np.ndarray, message: str) -> None:
        """One finding for all the nodes that `bad` marks, at the first of them."""
        rows = np.flatnonzero(bad)
        if len(rows):
            more = f" (and {len(rows) - 1} more nodes)" if len(rows) > 1 else ""
            self.add(severity, rule, f"{message}{more}", int(rows[0]))


def lint_trace(trace: ExecutionTrace, rank: int | None = None) -> list[Finding]:
    """Check one trace by itself.

    Parameters
    ----------
    trace : ExecutionTrace
    rank : int, optional
        Its rank, to check the peers it names for itself.

    Returns
    -------
    list of Finding
    """
    check = _Checker(trace, _label(trace, rank))
    if not len(trace):
        check.add("warning", "empty-trace", "has no nodes")
        return check.found
    _check_edges(check)
    _check_attributes(check, rank)
    _check_conventions(check)
    return check.found


def _check_edges(check: _Checker) -> None:
    trace = check.trace
    whole = {}
    for name, csr, severity in (("data", trace.data_deps, "error"), ("ctrl", trace.ctrl_deps, "warning")):
        rows = trace.rows_of(csr.ids)
        lost = np.flatnonzero(rows < 0)
        whole[name] = (graph.owners(csr.ptr)[rows >= 0], rows[rows >= 0])
        if len(lost):
            row = int(np.searchsorted(csr.ptr, lost[0], side="right")) - 1
            more = f" (and {len(lost) - 1} more such dependencies)" if len(lost) > 1 else ""
            check.add(
                severity,
                f"dangling-{name}-dep",
                f"depends by {name}_deps on {int(csr.ids[lost[0]])}, which is not in this trace{more}",
                row,
            )
    acyclic = _check_cycle(check, [whole["data"]], "error", "data-cycle", "data_deps")
    if acyclic and len(whole["ctrl"][0]):
        _check_cycle(check, list(whole.values()), "warning", "ctrl-cycle", "data_deps and ctrl_deps together")


def _check_cycle(check: _Checker, parts: list, severity: str, rule: str, by: str) -> bool:
    trace = check.trace
    size = len(trace)
    child = np.concatenate([c for c, _ in parts])
    parent = np.concatenate([p for _, p in parts])
    keys = np.unique(child * size + parent)
    child, parent = np.divmod(keys, size)
    ptr = graph.pointers(child, size)
    order = graph.topological_order(ptr, parent, trace.id_ranks())
    if len(order) == size:
        return True
    cycle = graph.shortest_cycle(ptr, parent, order)
    check.add(
        severity,
        rule,
        f"{size - len(order)} of {size} nodes are in or behind a cycle of {by}: "
        f"{cycle_text([int(trace.node_id[row]) for row in cycle])}",
        cycle[0],
    )
    return False


def _check_attributes(check: _Checker, rank: int | None) -> None:
    trace = check.trace
    column = trace.column
    kind = trace.type
    absent = {name: column(name) == MISSING for name in ("comm_size", "comm_tag", "comm_src", "comm_dst")}
    chunked = (column("msg_chunk_cnt") != MISSING) & (column("total_chunk_cnt") != MISSING)
    send, recv = kind == NodeType.COMM_SEND, kind == NodeType.COMM_RECV
    coll = kind == NodeType.COMM_COLL
    what = {id(send): "COMM_SEND", id(recv): "COMM_RECV"}
    for nodes, peer in ((send, "comm_dst"), (recv, "comm_src")):
        name = what[id(nodes)]
        lacks = nodes & absent["comm_size"] & ~chunked
        check.some("error", "missing-attribute", lacks, f"{name} lacks comm_size (or chunk counts)")
        check.some("error", "missing-attribute", nodes & absent[peer], f"{name} lacks {peer}")
        check.some("error", "missing-attribute", nodes & absent["comm_tag"], f"{name} lacks comm_tag")
        negative = nodes & ~absent[peer] & (column(peer) < 0)
        check.some("error", "bad-peer", negative, f"{name} has a negative {peer}")
        if rank is not None:
            own = nodes & (column(peer) == rank)
            check.some("warning", "self-message", own, f"{name} of rank {rank} has itself as {peer}")
    if rank is not None:
        for nodes, name in ((send, "comm_src"), (recv, "comm_dst")):
            wrong = nodes & ~absent[name] & (column(name) != rank)
            check.some("warning", "foreign-endpoint", wrong, f"{name} is not the own rank {rank}")
    comm_type = column("comm_type")
    check.some("error", "missing-attribute", coll & (comm_type == MISSING), "COMM_COLL lacks comm_type")
    unknown = coll & (comm_type != MISSING) & ((comm_type < 0) | (comm_type > 9))
    check.some("error", "unknown-collective", unknown, "comm_type is not one of 0..9")
    sized = coll & (comm_type != CommType.BARRIER)
    check.some("error", "missing-attribute", sized & absent["comm_size"], "COMM_COLL lacks comm_size")
    check.some("warning", "zero-size", sized & (column("comm_size") == 0), "COMM_COLL has comm_size 0")
    memory = (kind == NodeType.MEM_LOAD) | (kind == NodeType.MEM_STORE)
    unsized = memory & (column("tensor_size") == MISSING)
    check.some("error", "missing-attribute", unsized, "memory node lacks tensor_size")
    messages = send | recv
    some_chunks = (column("msg_chunk_cnt") != MISSING) | (column("total_chunk_cnt") != MISSING)
    check.some(
        "warning",
        "half-symbolic",
        messages & some_chunks & ~chunked,
        "has only one of msg_chunk_cnt and total_chunk_cnt",
    )
    index, count, total = (column(name) for name in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"))
    symbolic = messages & chunked & (index != MISSING)
    outside = symbolic & ((total <= 0) | (count < 0) | (index < 0) | (index > total - count))
    without_size = outside & absent["comm_size"]
    check.some("error", "bad-chunks", without_size, "its chunks are not within 0..total_chunk_cnt")
    check.some("warning", "bad-chunks", outside & ~without_size, "its chunks are not within 0..total_chunk_cnt")
    is_comm = np.isin(kind, [int(k) for k in _COMM_TYPES])
    on_cpu = is_comm & (column("is_cpu_op") > 0)
    check.some("warning", "cpu-comm", on_cpu, "is_cpu_op is true on a communication node; ASTRA-sim refuses it")
    check.some("warning", "invalid-node", kind == NodeType.INVALID, "node type is INVALID")
    meaningless = messages & (comm_type != MISSING)
    check.some("info", "comm-type-on-message", meaningless, "comm_type means nothing on a send or receive")


def _check_conventions(check: _Checker) -> None:
    trace = check.trace
    schema = trace.meta("schema")
    if schema == "symbolic_tensor_network":
        check.add(
            "warning",
            "elements-not-bytes",
            "its producer (symbolic tensor graph) writes comm_size and tensor_size as element counts and num_ops "
            "of matrix products as multiply-accumulates: give the unit of sizes and the bytes per element",
        )
    if trace.raw is not None:
        counts = attribute_kinds(trace.raw, (*_READ_BY_CONSUMERS, "comm_group"))
        for (name, member), count in counts.items():
            if name == "comm_group":
                check.add("info", "legacy-attribute", f"comm_group on {count} nodes is not read; use pg_name")
            elif member and member != COLUMN_KINDS[name] and (name, member) not in _ALIKE:
                check.add(
                    "info",
                    "unusual-kind",
                    f"{name} is {member} on {count} nodes; some readers take {COLUMN_KINDS[name]} only",
                )
    gpu = (trace.column("is_cpu_op") == 0) & (trace.type == NodeType.COMP)
    if gpu.any() and (trace.column("is_cpu_op") == 1).any():
        rows = trace.rows_of(trace.data_deps.ids)
        if not gpu[rows[rows >= 0]].any():
            check.add(
                "warning",
                "gpu-without-successors",
                "no node depends on any GPU operation: the producer has lost its synchronisation",
            )


# --------------------------------------------------------------------------------------------------------
# All ranks


def lint(traces: Sequence[ExecutionTrace | None], groups: Mapping[str, Sequence[int]] | None = None) -> list[Finding]:
    """Check the traces of all ranks, each by itself and against one another.

    Parameters
    ----------
    traces : sequence of ExecutionTrace or None
        Index is the rank; None for one that cannot be read (what concerns it is left out).
    groups : mapping of str to sequence of int, optional
        Communicator groups; by default those that METADATA nodes declare.

    Returns
    -------
    list of Finding
    """
    found: list[Finding] = []
    ranks_of: dict[int, list[int]] = {}
    for rank, trace in enumerate(traces):
        ranks_of.setdefault(id(trace), []).append(rank)
    for ranks in ranks_of.values():
        trace = traces[ranks[0]]
        if trace is not None:
            found.extend(lint_trace(trace, ranks[0] if len(ranks) == 1 else None))
    found = _merged(found)
    if any(trace is not None for trace in traces):
        found.extend(_check_messages(traces))
        found.extend(_check_collectives(traces, groups))
    return found


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """Hints that many files share become one, at the first of them; errors stay apart."""
    alike: dict[tuple, list[Finding]] = {}
    for number, finding in enumerate(found):
        key = number if finding.severity == "error" else finding.message
        alike.setdefault((finding.severity, finding.rule, key), []).append(finding)
    out = []
    for first, *others in alike.values():
        more = f" (and {len(others)} more files)" if others else ""
        out.append(Finding(first.severity, first.rule, first.place, first.message + more))
    return out


def _static_order(trace: ExecutionTrace) -> np.ndarray:
    """Position of each row in the order of issue (int64[n]); by id where there is a cycle."""
    try:
        order = trace.order("data")
    except TraceError:
        order = np.argsort(trace.node_id, kind="stable")
    place = np.empty(len(trace), dtype=np.int64)
    place[order] = np.arange(len(trace))
    return place


_MESSAGE_SIZES = ("comm_size", "msg_chunk_cnt", "total_chunk_cnt")


def _ends(traces: Sequence[ExecutionTrace | None], kind: NodeType, peer: str) -> dict[str, np.ndarray]:
    """All sends or receives: rank, peer, tag, sizes, row, in order of issue per rank."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("rank", "peer", "tag", "row", *_MESSAGE_SIZES)}
    for rank, trace in enumerate(traces):
        if trace is None:
            continue
        rows = np.flatnonzero((trace.type == kind) & (trace.column(peer) != MISSING))
        if not len(rows):
            continue
        rows = rows[np.argsort(_static_order(trace)[rows], kind="stable")]
        parts["rank"].append(np.full(len(rows), rank, dtype=np.int64))
        parts["peer"].append(trace.column(peer)[rows])
        parts["tag"].append(trace.column("comm_tag")[rows])
        parts["row"].append(rows)
        for name in _MESSAGE_SIZES:
            parts[name].append(trace.column(name)[rows])
    return {
        name: np.concatenate(columns) if columns else np.empty(0, dtype=np.int64) for name, columns in parts.items()
    }


def _node_at(traces: Sequence[ExecutionTrace | None], ends: Mapping[str, np.ndarray], i: int) -> str:
    rank = int(ends["rank"][i])
    return f"{_label(traces[rank], rank)}: node {int(_id_of(traces, ends, i))}"


def _check_messages(traces: Sequence[ExecutionTrace | None]) -> list[Finding]:
    found: list[Finding] = []
    count = len(traces)
    sends = _ends(traces, NodeType.COMM_SEND, "comm_dst")
    recvs = _ends(traces, NodeType.COMM_RECV, "comm_src")
    for ends, name in ((sends, "comm_dst"), (recvs, "comm_src")):
        beyond = np.flatnonzero(ends["peer"] >= count)
        if len(beyond):
            more = f" (and {len(beyond) - 1} more nodes)" if len(beyond) > 1 else ""
            found.append(
                Finding(
                    "error",
                    "bad-peer",
                    _node_at(traces, ends, int(beyond[0])),
                    f"{name} {int(ends['peer'][beyond[0]])} is not one of ranks 0..{count - 1}{more}",
                )
            )
    readable = np.array([trace is not None for trace in traces], dtype=bool)
    for ends in (sends, recvs):
        peer = np.clip(ends["peer"], 0, count - 1)
        keep = (ends["peer"] >= 0) & (ends["peer"] < count) & readable[peer]
        for name in ends:
            ends[name] = ends[name][keep]
    # The k-th send of (source, destination, tag) meets the k-th receive of it.
    keys = np.concatenate(
        [
            np.stack([sends["rank"], sends["peer"], sends["tag"]]),
            np.stack([recvs["peer"], recvs["rank"], recvs["tag"]]),
        ],
        axis=1,
    )
    is_recv = np.repeat([0, 1], [len(sends["rank"]), len(recvs["rank"])])
    if not keys.shape[1]:
        return found
    order = np.lexsort((is_recv, keys[2], keys[1], keys[0]))
    keys, is_recv = keys[:, order], is_recv[order]
    local = np.where(is_recv, order - len(sends["rank"]), order)
    new = np.concatenate(([True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)))
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(order))
    received = np.add.reduceat(is_recv, first)
    sent = last - first - received
    uneven = np.flatnonzero(sent != received)
    if len(uneven):
        found.append(_uneven(traces, sends, recvs, keys, local, first, sent, received, uneven))
    found.extend(_unequal(traces, sends, recvs, keys, local, first, sent, received))
    return found


def _tag(tag: int) -> str:
    return "no tag" if tag == MISSING else f"tag {tag}"


def _uneven(traces, sends, recvs, keys, local, first, sent, received, uneven) -> Finding:
    at = int(uneven[0])
    source, target, tag = (int(keys[i, first[at]]) for i in range(3))
    excess = sent[at] > received[at]
    ends = sends if excess else recvs
    offset = int(first[at]) + (int(received[at]) if excess else int(sent[at]) * 2)
    more = f" (and {len(uneven) - 1} more such triples)" if len(uneven) > 1 else ""
    return Finding(
        "error",
        "unmatched-send" if excess else "unmatched-receive",
        _node_at(traces, ends, int(local[offset])),
        f"rank {source} sends {int(sent[at])} messages with {_tag(tag)} to rank {target}, "
        f"which receives {int(received[at])}{more}",
    )


def _unequal(traces, sends, recvs, keys, local, first, sent, received) -> list[Finding]:
    both = np.minimum(sent, received)
    pairs = int(both.sum())
    if not pairs:
        return []
    begin = np.repeat(first, both)
    nth = np.arange(pairs) - np.repeat(np.cumsum(both) - both, both)
    one, other = local[begin + nth], local[begin + np.repeat(sent, both) + nth]
    wrong = np.zeros(pairs, dtype=bool)
    for name in _MESSAGE_SIZES:
        a, b = sends[name][one], recvs[name][other]
        wrong |= (a != b) & (a != MISSING) & (b != MISSING)
    bad = np.flatnonzero(wrong)
    if not len(bad):
        return []
    i = int(bad[0])
    source, target, tag = (int(keys[k, begin[i]]) for k in range(3))
    what = next(n for n in _MESSAGE_SIZES if sends[n][one[i]] != recvs[n][other[i]])
    more = f" (and {len(bad) - 1} more messages)" if len(bad) > 1 else ""
    return [
        Finding(
            "error",
            "size-mismatch",
            _node_at(traces, sends, int(one[i])),
            f"message {int(nth[i])} from rank {source} to rank {target} with {_tag(tag)}: the send has {what} "
            f"{int(sends[what][one[i]])}, its receive (node {int(_id_of(traces, recvs, int(other[i])))}) "
            f"{int(recvs[what][other[i]])}{more}",
        )
    ]


def _id_of(traces, ends, i: int) -> int:
    return traces[int(ends["rank"][i])].node_id[ends["row"][i]]


def _calls(trace: ExecutionTrace, order: np.ndarray) -> dict[str, tuple[list[tuple], list[int]]]:
    """Collective calls by group name, in the order given: what they are, and their node ids."""
    rows = np.flatnonzero(trace.type == NodeType.COMM_COLL)
    rows = rows[np.argsort(order[rows], kind="stable")]
    codes, names = trace.group_of()
    kind = trace.column("comm_type")[rows].tolist()
    size = trace.column("comm_size")[rows].tolist()
    root = np.where(np.isin(trace.column("comm_type"), _ROOTED), trace.column("comm_root"), MISSING)[rows].tolist()
    out: dict[str, tuple[list[tuple], list[int]]] = {}
    for code, call, node in zip(
        codes[rows].tolist(), zip(kind, size, root, strict=True), trace.node_id[rows].tolist(), strict=True
    ):
        name = names[code] if code >= 0 else ""
        calls, ids = out.setdefault("" if name == "0" else name, ([], []))
        calls.append(call)
        ids.append(node)
    return out


def _said(call: tuple) -> str:
    kind, size, root = call
    name = COLLECTIVE_NAMES.get(kind, "an unknown collective" if kind == MISSING else f"comm_type {kind}")
    return name + ("" if size == MISSING else f" of {size} bytes") + ("" if root == MISSING else f", root {root}")


def _check_collectives(
    traces: Sequence[ExecutionTrace | None], groups: Mapping[str, Sequence[int]] | None
) -> list[Finding]:
    found: list[Finding] = []
    distinct = {id(trace): trace for trace in traces if trace is not None}
    if groups is None:
        declared: dict[str, Sequence[int]] = {}
        for trace in distinct.values():
            try:
                declared.update(groups_from_metadata(trace))
            except TraceError as error:
                found.append(Finding("error", "damaged", error.place or _label(trace, None), error.problem))
        groups = declared or None
    world = range(len(traces))
    members = {"": tuple(world)}
    for name, ranks in (groups or {}).items():
        beyond = [rank for rank in ranks if rank >= len(traces)]
        if beyond and name not in ("", "0"):
            found.append(
                Finding("error", "bad-group", f"group {name}", f"rank {beyond[0]} is not one of {len(traces)} ranks")
            )
        if name not in ("", "0"):
            members[name] = tuple(rank for rank in ranks if rank < len(traces)) or tuple(world)
    by_issue = {key: _calls(trace, _static_order(trace)) for key, trace in distinct.items()}
    by_id = {key: _calls(trace, trace.node_id) for key, trace in distinct.items()}
    used: dict[str, int] = {}
    for rank, trace in enumerate(traces):
        for name, (_, ids) in (by_issue[id(trace)] if trace is not None else {}).items():
            used.setdefault(name, rank)
            if name in members and rank not in members[name]:
                found.append(
                    Finding(
                        "error",
                        "not-a-member",
                        f"{_label(trace, rank)}: node {ids[0]}",
                        f"rank {rank} calls a collective of group {name}, of which it is no member",
                    )
                )
    unknown = [name for name in used if name not in members]
    if unknown and groups is None:
        found.append(
            Finding(
                "info",
                "groups-unknown",
                _label(traces[used[unknown[0]]], used[unknown[0]]),
                f"no members are known for {len(unknown)} groups "
                f"({', '.join(unknown[:4])}{', …' if len(unknown) > 4 else ''}): "
                "give the groups as JSON to have their collectives checked",
            )
        )
    elif unknown:
        for name in unknown:
            found.append(
                Finding(
                    "error", "unknown-group", _label(traces[used[name]], used[name]), f"group {name} is not defined"
                )
            )
    for name in used:
        ranks = [rank for rank in members.get(name, ()) if traces[rank] is not None]
        if ranks:
            wrong = _compare(traces, by_issue, name, ranks)
            # Independent collectives may be numbered in the same order although they become ready in another.
            if wrong is not None and _compare(traces, by_id, name, ranks) is not None:
                found.append(wrong)
    return found


def _compare(traces, calls: Mapping[int, Mapping], name: str, ranks: Sequence[int]) -> Finding | None:
    """The first call in which members of a group differ."""
    best: tuple[int, int] | None = None
    first = ranks[0]
    mine, my_ids = calls[id(traces[first])].get(name, ([], []))
    for rank in ranks[1:]:
        theirs, _ = calls[id(traces[rank])].get(name, ([], []))
        if theirs is mine or theirs == mine:
            continue
        at = next((k for k, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        at = min(len(mine), len(theirs)) if at is None else at
        if best is None or at < best[0]:
            best = (at, rank)
    if best is None:
        return None
    at, rank = best
    theirs, their_ids = calls[id(traces[rank])].get(name, ([], []))
    place_rank, ids = (first, my_ids) if at < len(mine) else (rank, their_ids)
    said = [
        f"{_said(sequence[at])} on rank {who}" if at < len(sequence) else f"missing on rank {who}"
        for who, sequence in ((first, mine), (rank, theirs))
    ]
    group = f"group {name}" if name else "the group of all ranks"
    return Finding(
        "error",
        "collective-order",
        f"{_label(traces[place_rank], place_rank)}: node {ids[at]}",
        f"collective {at} of {group} is {said[0]} but {said[1]}",
    )


# --------------------------------------------------------------------------------------------------------
# Files


def lint_file(path: str | os.PathLike, rank: int | None = None) -> tuple[ExecutionTrace | None, list[Finding]]:
    """Read one file and say what is wrong with it; the trace is None if it cannot be used.

    What can be said of the trace itself is left to `lint_trace`.
    """
    place = os.fspath(path)
    try:
        data = read_bytes(place)
    except TraceError as error:
        return None, [_from_error(error, "framing" if ": byte " in error.place else "unreadable", place)]
    try:
        raw, _ = frame(data, place)
    except TraceError as error:
        return None, [_from_error(error, "framing", place)]
    try:
        return parse_trace(data, place, rank), []
    except TraceError as error:
        errors = damaged_nodes(raw, place, _MAX_DAMAGED)
        if not errors:
            return None, [_from_error(error, "duplicate-id", place)]
    return None, [
        _from_error(e, "ill-typed-attribute" if isinstance(e, IllTypedAttribute) else "damaged", place) for e in errors
    ]


def _from_error(error: TraceError, rule: str, place: str) -> Finding:
    text = f"{error.problem}; {error.remedy}" if error.remedy else error.problem
    return Finding("error", rule, error.place or place, " ".join(text.split()))


def lint_prefix(
    prefix: str | os.PathLike, groups: str | os.PathLike | Mapping[str, Sequence[int]] | None = None
) -> list[Finding]:
    """Check a set `PREFIX.<rank>.et` (or `.et.gz`).

    Parameters
    ----------
    prefix : path
    groups : path or mapping, optional
        Communicator groups, or a JSON file of them.

    Returns
    -------
    list of Finding
        Bad files become findings; nothing is raised for them.
    """
    place = os.fspath(prefix)
    found: list[Finding] = []
    if groups is not None and not isinstance(groups, Mapping):
        try:
            groups = groups_from_json(groups)
        except TraceError as error:
            found.append(_from_error(error, "bad-group", place))
            groups = None
    paths: dict[int, str] = {}
    try:
        paths = {rank: os.fspath(path) for rank, path in enumerate(find_prefix(place))}
    except TraceError as error:
        found.append(_from_error(error, "missing-rank", place))
        paths = _present(place)
    traces: list[ExecutionTrace | None] = [None] * (max(paths, default=-1) + 1 if len(paths) else 0)
    shared: dict[tuple, ExecutionTrace] = {}
    for rank, path in paths.items():
        trace, wrong = lint_file(path, rank)
        found.extend(wrong)
        if trace is not None and trace.raw is not None:
            trace = shared.setdefault((trace.raw.data,), trace)
        traces[rank] = trace
    return found + lint(traces, groups)


def _present(place: str) -> dict[int, str]:
    """Files of an incomplete set, by rank; of a rank that is there twice the first."""
    folder, base = os.path.split(place)
    out: dict[int, str] = {}
    try:
        names = sorted(os.listdir(folder or "."))
    except (OSError, ValueError):
        return out
    for name in names:
        for suffix in (".et", ".et.gz"):
            middle = name[len(base) + 1 : -len(suffix)]
            if name == f"{base}.{middle}{suffix}" and middle.isdecimal() and middle == str(int(middle)):
                out.setdefault(int(middle), os.path.join(folder, name))
    return {rank: out[rank] for rank in sorted(out) if rank < 2**20}
