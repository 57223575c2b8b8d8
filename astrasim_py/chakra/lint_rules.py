"""Lint of one trace.

An error makes some consumer refuse the trace, hang, or compute nonsense; a warning may; an info is a hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.decode import attribute_kinds
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING, CommType, NodeType
from astrasim_py.chakra.trace import ExecutionTrace

#: Severities, the worst first.
SEVERITIES = ("error", "warning", "info")
#: Attributes whose oneof member matters to consumers that read only the canonical one.
_READ_BY_CONSUMERS = ("is_cpu_op", *INT_COLUMNS[: INT_COLUMNS.index("num_ops")])
#: Members that consumers read as one another without loss.
_ALIKE = frozenset((("comm_priority", "uint32_val"), ("comm_size", "uint64_val"), ("num_ops", "uint64_val")))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that lint found."""

    severity: str  # ``error``, ``warning`` or ``info``
    rule: str  # stable name of the rule
    place: str  # file, and node where there is one
    message: str  # one line

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.message} [{self.rule}]"


def worst_severity(findings: Iterable[Finding]) -> str:
    """The worst severity among findings; empty if there are none."""
    return min((finding.severity for finding in findings), key=SEVERITIES.index, default="")


def label_of(trace: ExecutionTrace | None, rank: int | None) -> str:
    """Name of a trace in findings."""
    return (trace.place if trace is not None else "") or (f"rank {rank}" if rank is not None else "trace")


def more_of(count: int, what: str) -> str:
    """`` (and 2 more nodes)``; nothing where there is only one."""
    return f" (and {count - 1} more {what})" if count > 1 else ""


class _Check:
    """Findings in one trace."""

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
            self.add(severity, rule, message + more_of(len(rows), "nodes"), int(rows[0]))


def lint_trace(trace: ExecutionTrace, rank: int | None = None) -> list[Finding]:
    """Check one trace by itself.

    `rank`: its rank, to check the peers it names for itself.
    """
    check = _Check(trace, label_of(trace, rank))
    if not len(trace):
        check.add("warning", "empty-trace", "has no nodes")
        return check.found
    _check_edges(check)
    _check_messages(check, rank)
    _check_chunks(check)
    _check_collectives(check)
    _check_others(check)
    _check_conventions(check)
    return check.found


def _check_edges(check: _Check) -> None:
    trace = check.trace
    edges = {}
    for name, csr, severity in (("data", trace.data_deps, "error"), ("ctrl", trace.ctrl_deps, "warning")):
        rows = trace.rows_of(csr.ids)
        lost = np.flatnonzero(rows < 0)
        edges[name] = graph.owners(csr.ptr)[rows >= 0] * len(trace) + rows[rows >= 0]
        if len(lost):
            row = int(np.searchsorted(csr.ptr, lost[0], side="right")) - 1
            text = f"depends by {name}_deps on {int(csr.ids[lost[0]])}, which is not in this trace"
            check.add(severity, f"dangling-{name}-dep", text + more_of(len(lost), "such dependencies"), row)
    acyclic = _check_cycle(check, edges["data"], "error", "data-cycle", "data_deps")
    if acyclic and len(edges["ctrl"]):
        both = np.concatenate(list(edges.values()))
        _check_cycle(check, both, "warning", "ctrl-cycle", "data_deps and ctrl_deps together")


def _check_cycle(check: _Check, edges: np.ndarray, severity: str, rule: str, by: str) -> bool:
    """True if edges (child x nodes + parent) make no cycle."""
    size = len(check.trace)
    child, parent = np.divmod(np.unique(edges), size)
    ptr = graph.pointers(child, size)
    order = graph.topological_order(ptr, parent, check.trace.id_ranks())
    if len(order) == size:
        return True
    cycle = graph.shortest_cycle(ptr, parent, order)
    text = graph.cycle_text([int(check.trace.node_id[row]) for row in cycle])
    check.add(severity, rule, f"{size - len(order)} of {size} nodes are in or behind a cycle of {by}: {text}", cycle[0])
    return False


def _chunked(trace: ExecutionTrace) -> np.ndarray:
    return (trace.column("msg_chunk_cnt") != MISSING) & (trace.column("total_chunk_cnt") != MISSING)


def _check_messages(check: _Check, rank: int | None) -> None:
    trace, column = check.trace, check.trace.column
    for kind, peer, own in ((NodeType.COMM_SEND, "comm_dst", "comm_src"), (NodeType.COMM_RECV, "comm_src", "comm_dst")):
        nodes, name = trace.type == kind, kind.name
        unsized = nodes & (column("comm_size") == MISSING) & ~_chunked(trace)
        check.some("error", "missing-attribute", unsized, f"{name} lacks comm_size (or chunk counts)")
        for needed in (peer, "comm_tag"):
            check.some("error", "missing-attribute", nodes & (column(needed) == MISSING), f"{name} lacks {needed}")
        negative = nodes & (column(peer) != MISSING) & (column(peer) < 0)
        check.some("error", "bad-peer", negative, f"{name} has a negative {peer}")
        if rank is not None:
            itself = nodes & (column(peer) == rank)
            check.some("warning", "self-message", itself, f"{name} of rank {rank} has itself as {peer}")
            foreign = nodes & (column(own) != MISSING) & (column(own) != rank)
            check.some("warning", "foreign-endpoint", foreign, f"{own} is not the own rank {rank}")


def _check_chunks(check: _Check) -> None:
    trace = check.trace
    messages = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
    index, count, total = (trace.column(name) for name in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"))
    meaningless = messages & (trace.column("comm_type") != MISSING)
    check.some("info", "comm-type-on-message", meaningless, "comm_type means nothing on a send or receive")
    chunked = _chunked(trace)
    half = messages & ((count != MISSING) | (total != MISSING)) & ~chunked
    check.some("warning", "half-symbolic", half, "has only one of msg_chunk_cnt and total_chunk_cnt")
    symbolic = messages & chunked & (index != MISSING)
    outside = symbolic & ((total <= 0) | (count < 0) | (index < 0) | (index > total - count))
    unsized = trace.column("comm_size") == MISSING
    for severity, bad in (("error", outside & unsized), ("warning", outside & ~unsized)):
        check.some(severity, "bad-chunks", bad, "its chunks are not within 0..total_chunk_cnt")


def _check_collectives(check: _Check) -> None:
    trace = check.trace
    kind, size = trace.column("comm_type"), trace.column("comm_size")
    calls = trace.type == NodeType.COMM_COLL
    check.some("error", "missing-attribute", calls & (kind == MISSING), "COMM_COLL lacks comm_type")
    unknown = calls & (kind != MISSING) & ((kind < 0) | (kind > CommType.BARRIER))
    check.some("error", "unknown-collective", unknown, "comm_type is not one of 0..9")
    sized = calls & (kind != CommType.BARRIER)
    check.some("error", "missing-attribute", sized & (size == MISSING), "COMM_COLL lacks comm_size")
    check.some("warning", "zero-size", sized & (size == 0), "COMM_COLL has comm_size 0")


def _check_others(check: _Check) -> None:
    trace = check.trace
    memory = (trace.type == NodeType.MEM_LOAD) | (trace.type == NodeType.MEM_STORE)
    unsized = memory & (trace.column("tensor_size") == MISSING)
    check.some("error", "missing-attribute", unsized, "memory node lacks tensor_size")
    on_cpu = (trace.type >= NodeType.COMM_SEND) & (trace.column("is_cpu_op") > 0)
    check.some("warning", "cpu-comm", on_cpu, "is_cpu_op is true on a communication node; ASTRA-sim refuses it")
    check.some("warning", "invalid-node", trace.type == NodeType.INVALID, "node type is INVALID")


def _check_conventions(check: _Check) -> None:
    trace = check.trace
    if trace.meta("schema") == "symbolic_tensor_network":
        check.add(
            "warning",
            "elements-not-bytes",
            "its producer (symbolic tensor graph) writes comm_size and tensor_size as element counts and num_ops "
            "of matrix products as multiply-accumulates: give the unit of sizes and the bytes per element",
        )
    counts = {} if trace.raw is None else attribute_kinds(trace.raw, (*_READ_BY_CONSUMERS, "comm_group"))
    for (name, member), count in counts.items():
        if name == "comm_group":
            check.add("info", "legacy-attribute", f"comm_group on {count} nodes is not read; use pg_name")
        elif member and member != COLUMN_KINDS[name] and (name, member) not in _ALIKE:
            text = f"{name} is {member} on {count} nodes; some readers take {COLUMN_KINDS[name]} only"
            check.add("info", "unusual-kind", text)
    gpu = (trace.column("is_cpu_op") == 0) & (trace.type == NodeType.COMP)
    if gpu.any() and (trace.column("is_cpu_op") == 1).any():
        rows = trace.rows_of(trace.data_deps.ids)
        if not gpu[rows[rows >= 0]].any():
            text = "no node depends on any GPU operation: the producer has lost its synchronisation"
            check.add("warning", "gpu-without-successors", text)
