"""Differences between two traces."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.messages import attributes
from astrasim_py.chakra.schema import Attribute, NodeType
from astrasim_py.chakra.trace import ExecutionTrace

MATCHES = ("auto", "id", "name")


class IOInfo(NamedTuple):
    """Inputs or outputs of a node, as the producer wrote them."""

    values: str
    shapes: str
    types: str


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs between two nodes, or between the metadata of two traces.

    `before`, `after`: values in the first and the second trace; None where it is absent.
    """

    node: int  # id in the first trace; -1 for the metadata
    other: int  # id in the second trace; -1 for the metadata
    field: str  # ``data_deps``, ``duration_micros``, ``attr comm_size`` …
    before: object
    after: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Differences between two traces.

    `only_first`, `only_second`: ids of nodes without a partner.
    """

    match: str  # how nodes were paired: ``"id"`` or ``"name"`` (name and type, in order of appearance)
    matched: int  # pairs of nodes
    only_first: tuple[int, ...] = ()
    only_second: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    reordered: bool = False  # paired nodes come in another order

    @property
    def same(self) -> bool:
        """True if the traces are equal except for the order of nodes in the file."""
        return not (self.only_first or self.only_second or self.changes)


def _by_name(trace: ExecutionTrace) -> dict[tuple[str, int, int], int]:
    """(name, type, how many such nodes came before) -> row."""
    return {key: row for row, key in enumerate(_numbered(zip(trace.names, trace.type.tolist(), strict=True)))}


def _numbered(keys: Iterable[tuple]) -> Iterator[tuple]:
    """Each key, and how many equal ones came before it."""
    seen: Counter[tuple] = Counter()
    for key in keys:
        yield *key, seen[key]
        seen[key] += 1


def _pairs(first: ExecutionTrace, second: ExecutionTrace, match: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows of paired nodes in both traces, in the order of the first."""
    if match == "id":
        rows = second.rows_of(first.node_id)
        here = np.flatnonzero(rows >= 0)
        return here, rows[here]
    row_of = _by_name(second)
    pairs = [(row, row_of[key]) for key, row in _by_name(first).items() if key in row_of]
    pairs.sort()
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _choose(first: ExecutionTrace, second: ExecutionTrace) -> str:
    """Match by id, unless names and types pair more than twice the number of nodes."""
    first_rows, second_rows = _pairs(first, second, "id")
    agreeing = sum(
        first.names[a] == second.names[b]
        for a, b in zip(first_rows.tolist(), second_rows.tolist(), strict=True)
        if first.type[a] == second.type[b]
    )
    return "id" if agreeing and agreeing * 2 >= len(_pairs(first, second, "name")[0]) else "name"


def _attributes(a: tuple[Attribute, ...], b: tuple[Attribute, ...]) -> Iterator[tuple[str, object, object]]:
    before, after = (dict(zip(_numbered((x.name,) for x in side), side, strict=True)) for side in (a, b))
    for key in [*before, *(key for key in after if key not in before)]:
        x, y = before.get(key), after.get(key)
        label = f"attr {key[0]}"
        if x is None or y is None:
            yield label, x.value if x else None, y.value if y else None
        elif repr(x.value) != repr(y.value):  # repr: not-a-number equals itself
            yield label, x.value, y.value
        elif x.kind != y.kind:
            yield f"{label} kind", x.kind, y.kind
        elif x.doc != y.doc:
            yield f"{label} doc_string", x.doc, y.doc


def _node_changes(a: pb.Node, b: pb.Node, partner: dict[int, int] | None, tolerance: float) -> Iterator[tuple]:
    for name in ("name", "type"):
        if getattr(a, name) != getattr(b, name):
            values = [getattr(a, name), getattr(b, name)]
            yield name, *([NodeType(v).name for v in values] if name == "type" else values)
    for name in ("data_deps", "ctrl_deps"):
        before = tuple(sorted({i if partner is None else partner.get(i, -1 - i) for i in getattr(a, name)}))
        after = tuple(sorted(set(getattr(b, name))))
        if before != after:
            yield name, tuple(getattr(a, name)), tuple(getattr(b, name))
    if a.start_time_micros != b.start_time_micros:
        yield "start_time_micros", a.start_time_micros, b.start_time_micros
    durations = a.duration_micros, b.duration_micros
    if abs(a.duration_micros - b.duration_micros) > tolerance * max(durations):
        yield "duration_micros", *durations
    for name in ("inputs", "outputs"):
        infos = [getattr(node, name) if node.HasField(name) else None for node in (a, b)]
        if infos[0] != infos[1]:
            yield name, *(None if info is None else IOInfo(info.values, info.shapes, info.types) for info in infos)
    yield from _attributes(attributes(a.attr), attributes(b.attr))


def diff(
    first: ExecutionTrace,
    second: ExecutionTrace,
    *,
    match: str = "auto",
    duration_tolerance: float = 0.0,
) -> Difference:
    """Compare two traces node by node.

    `match`: ``"id"``, ``"name"`` (name and type, for renumbered traces; dependencies are then compared through the
    pairing), or ``"auto"``. `duration_tolerance`: relative difference of durations that does not count, e.g. 0.05.
    Raises TraceError: a node of a damaged file that the columns did not need. Raises ValueError: an unknown `match`.
    """
    if match not in MATCHES:
        raise ValueError(f"match is one of {', '.join(MATCHES)}, not {match!r}")
    if match == "auto":
        match = _choose(first, second)
    first_rows, second_rows = _pairs(first, second, match)
    partner = None
    if match == "name":
        partner = dict(zip(first.node_id[first_rows].tolist(), second.node_id[second_rows].tolist(), strict=True))
    changes = [
        Change(-1, -1, f"metadata {field.removeprefix('attr ')}", before, after)
        for field, before, after in _attributes(first.metadata, second.metadata)
    ]
    if first.version != second.version:
        changes.insert(0, Change(-1, -1, "metadata version", first.version, second.version))
    for a, b in zip(first_rows.tolist(), second_rows.tolist(), strict=True):
        changed = first.is_changed(a) or second.is_changed(b)
        raw, other = first.raw, second.raw
        if partner is None and not changed and raw and other and raw.node(a) == other.node(b):
            continue
        ids = int(first.node_id[a]), int(second.node_id[b])
        for field, before, after in _node_changes(first.node(a), second.node(b), partner, duration_tolerance):
            changes.append(Change(*ids, field, before, after))
    return Difference(
        match=match,
        matched=len(first_rows),
        only_first=tuple(np.delete(first.node_id, first_rows).tolist()),
        only_second=tuple(np.delete(second.node_id, second_rows).tolist()),
        changes=tuple(changes),
        reordered=bool((second_rows[1:] < second_rows[:-1]).any()),
    )
