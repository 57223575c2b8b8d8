"""Lint of one trace.

An error makes some consumer refuse the trace, hang, or compute nonsense; a warning may; an info is a hint.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.attributes import unknown
from astrasim_py.chakra.decode import attribute_kinds
from astrasim_py.chakra.groups import OTHER_NAMES, called_otherwise
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING, CommType, NodeType
from astrasim_py.chakra.trace import ExecutionTrace

#: Severities, the worst first.
SEVERITIES = ("error", "warning", "info")
#: Attributes that some readers accept in the canonical oneof member only.
_READ_BY_CONSUMERS = ("is_cpu_op", *INT_COLUMNS[: INT_COLUMNS.index("num_ops")])
#: Members that consumers read as one another without loss.
_ALIKE = frozenset((("comm_priority", "uint32_val"), ("comm_size", "uint64_val"), ("num_ops", "uint64_val")))
#: Severity, rule, row of the node (None: the whole file) and message.
_Problem = tuple[str, str, int | None, str]
#: The same, with all nodes that break the rule (bool[n]).
_Rule = tuple[str, str, np.ndarray, str]


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


def lint_trace(trace: ExecutionTrace, rank: int | None = None) -> list[Finding]:
    """Check one trace by itself.

    `rank`: its rank, to check the peers it names for itself.
    """
    label = label_of(trace, rank)
    if not len(trace):
        return [Finding("warning", "empty-trace", label, "has no nodes")]
    findings = []
    for severity, rule, row, message in (*_edges(trace), *_nodes(trace, rank), *_conventions(trace)):
        place = label if row is None else f"{label}: node {int(trace.node_id[row])}"
        findings.append(Finding(severity, rule, place, message))
    return findings


#: Rules whose warnings do not affect a simulation by this package.
_OF_OTHERS = ("cpu-comm", "elements-not-bytes")


def doubts(trace: ExecutionTrace, rank: int | None = None) -> Iterator[Finding]:
    """Warnings about content that a simulation uses unchanged, except the unit of sizes."""
    for severity, rule, row, message in (*_nodes(trace, rank), *_conventions(trace)):
        if severity == "warning" and rule not in _OF_OTHERS:
            place = label_of(trace, rank) + ("" if row is None else f": node {int(trace.node_id[row])}")
            yield Finding(severity, rule, place, message)


def counts_elements(trace: ExecutionTrace) -> bool:
    """Whether its producer writes sizes as numbers of elements, and multiply-accumulates as operations."""
    return trace.meta("schema") == "symbolic_tensor_network"


def _edges(trace: ExecutionTrace) -> Iterator[_Problem]:
    edges = {}
    for name, csr, severity in (("data", trace.data_deps, "error"), ("ctrl", trace.ctrl_deps, "warning")):
        rows = trace.rows_of(csr.ids)
        lost = np.flatnonzero(rows < 0)
        edges[name] = graph.owners(csr.ptr)[rows >= 0] * len(trace) + rows[rows >= 0]
        if len(lost):
            row = int(np.searchsorted(csr.ptr, lost[0], side="right")) - 1
            text = f"depends by {name}_deps on {int(csr.ids[lost[0]])}, which is not in this trace"
            yield severity, f"dangling-{name}-dep", row, text + more_of(len(lost), "such dependencies")
    cycles = list(_cycles(trace, edges["data"], "error", "data-cycle", "data_deps"))
    yield from cycles
    if not cycles and len(edges["ctrl"]):
        both = np.concatenate(list(edges.values()))
        yield from _cycles(trace, both, "warning", "ctrl-cycle", "data_deps and ctrl_deps together")


def _cycles(trace: ExecutionTrace, edges: np.ndarray, severity: str, rule: str, by: str) -> Iterator[_Problem]:
    """`edges`: child x nodes + parent."""
    size = len(trace)
    child, parent = np.divmod(np.unique(edges), size)
    ptr = graph.pointers(child, size)
    order = graph.topological_order(ptr, parent, trace.id_ranks())
    if len(order) < size:
        cycle = graph.shortest_cycle(ptr, parent, order)
        text = graph.cycle_text([int(trace.node_id[row]) for row in cycle])
        text = f"{size - len(order)} of {size} nodes are in or behind a cycle of {by}: {text}"
        yield severity, rule, cycle[0], text


def _nodes(trace: ExecutionTrace, rank: int | None) -> Iterator[_Problem]:
    """One problem for all the nodes that break a rule, at the first of them."""
    for severity, rule, bad, message in (*_message_rules(trace, rank), *_node_rules(trace)):
        rows = np.flatnonzero(bad)
        if len(rows):
            yield severity, rule, int(rows[0]), message + more_of(len(rows), "nodes")


def _chunked(trace: ExecutionTrace) -> np.ndarray:
    return (trace.column("msg_chunk_cnt") != MISSING) & (trace.column("total_chunk_cnt") != MISSING)


def _message_rules(trace: ExecutionTrace, rank: int | None) -> Iterator[_Rule]:
    column = trace.column
    for kind, peer, end in ((NodeType.COMM_SEND, "comm_dst", "comm_src"), (NodeType.COMM_RECV, "comm_src", "comm_dst")):
        nodes, name = trace.type == kind, kind.name
        unsized = nodes & (column("comm_size") == MISSING) & ~_chunked(trace)
        yield "error", "missing-attribute", unsized, f"{name} lacks comm_size (or chunk counts)"
        for attribute in (peer, "comm_tag"):
            yield "error", "missing-attribute", nodes & (column(attribute) == MISSING), f"{name} lacks {attribute}"
        negative = nodes & (column(peer) != MISSING) & (column(peer) < 0)
        yield "error", "bad-peer", negative, f"{name} has a negative {peer}"
        if rank is not None:
            itself = nodes & (column(peer) == rank)
            yield "warning", "self-message", itself, f"{name} of rank {rank} has itself as {peer}"
            foreign = nodes & (column(end) != MISSING) & (column(end) != rank)
            yield "warning", "foreign-endpoint", foreign, f"{end} is not the own rank {rank}"


def _node_rules(trace: ExecutionTrace) -> Iterator[_Rule]:
    kind, size = trace.column("comm_type"), trace.column("comm_size")
    messages = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
    yield "info", "comm-type-on-message", messages & (kind != MISSING), "comm_type has no effect on a send or receive"
    index, count, total = (trace.column(name) for name in ("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"))
    half = messages & ((count != MISSING) | (total != MISSING)) & ~_chunked(trace)
    yield "warning", "half-symbolic", half, "has only one of msg_chunk_cnt and total_chunk_cnt"
    symbolic = messages & _chunked(trace) & (index != MISSING)
    outside = symbolic & ((total <= 0) | (count < 0) | (index < 0) | (index > total - count))
    for severity, bad in (("error", outside & (size == MISSING)), ("warning", outside & (size != MISSING))):
        yield severity, "bad-chunks", bad, "its chunks are not within 0..total_chunk_cnt"
    calls = trace.type == NodeType.COMM_COLL
    yield "error", "missing-attribute", calls & (kind == MISSING), "COMM_COLL lacks comm_type"
    unknown = calls & (kind != MISSING) & ((kind < 0) | (kind > CommType.BARRIER))
    yield "error", "unknown-collective", unknown, "comm_type is not one of 0..9"
    sized = calls & (kind != CommType.BARRIER)
    yield "error", "missing-attribute", sized & (size == MISSING), "COMM_COLL lacks comm_size"
    yield "warning", "zero-size", sized & (size == 0), "COMM_COLL has comm_size 0"
    memory = (trace.type == NodeType.MEM_LOAD) | (trace.type == NodeType.MEM_STORE)
    unsized = memory & (trace.column("tensor_size") == MISSING)
    yield "error", "missing-attribute", unsized, "memory node lacks tensor_size"
    on_cpu = (trace.type >= NodeType.COMM_SEND) & (trace.column("is_cpu_op") > 0)
    yield "warning", "cpu-comm", on_cpu, "is_cpu_op is true on a communication node; ASTRA-sim refuses it"
    yield "warning", "invalid-node", trace.type == NodeType.INVALID, "node type is INVALID"
    if (actor := trace.meta("actor")) is not None:
        # Buffer 3 is scratch.
        other = np.isin(trace.column("src_buf"), (1, 2)) | np.isin(trace.column("dst_buf"), (1, 2))
        yield "error", "switch-buffer", other, f"switch {actor} has scratch only, no input and no output"


def _conventions(trace: ExecutionTrace) -> Iterator[_Problem]:
    if counts_elements(trace):
        text = (
            "its producer (symbolic tensor graph) writes comm_size and tensor_size as element counts and num_ops "
            "of matrix products as multiply-accumulates: give the unit of sizes and the bytes per element"
        )
        yield "warning", "elements-not-bytes", None, text
    for name, count in Counter(name for _, name, _ in called_otherwise(trace)).items():
        text = f"{count} nodes name their group by {name}, which some readers ignore; use pg_name"
        yield "info", "legacy-attribute", None, text
    extra = [f"{name} on {count} nodes" for name, count in unknown({trace: 1}, OTHER_NAMES).items()]
    if extra:
        yield "info", "unknown-attribute", None, f"nobody reads {', '.join(extra)}"
    counts = {} if trace.raw is None else attribute_kinds(trace.raw, _READ_BY_CONSUMERS)
    for (name, member), count in counts.items():
        if member and member != COLUMN_KINDS[name] and (name, member) not in _ALIKE:
            text = f"{name} is {member} on {count} nodes; some readers take {COLUMN_KINDS[name]} only"
            yield "info", "unusual-kind", None, text
    gpu = (trace.column("is_cpu_op") == 0) & (trace.type == NodeType.COMP)
    if gpu.any() and (trace.column("is_cpu_op") == 1).any():
        rows = trace.rows_of(trace.data_deps.ids)
        if not gpu[rows[rows >= 0]].any():
            text = "no node depends on any GPU operation: the producer has lost its synchronisation"
            yield "warning", "gpu-without-successors", None, text
