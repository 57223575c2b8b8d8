"""`ExecutionTrace`: one rank's graph as columns.

A trace is columnar and immutable: numpy arrays, dependencies as CSR, and no Python object per node. The rest
(input and output lists, attributes of other producers) stays in the bytes of the file, so an unchanged trace is
written back byte for byte.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING, WRITE_ORDER, Attribute, kind_for
from astrasim_py.chakra.storage import Csr, RawFile, checked, compact, compact_columns, frozen
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TraceError

if TYPE_CHECKING:
    from astrasim_py.chakra import et_def_pb2 as pb

#: Arguments of `from_columns` beside ids, types and integer columns.
_DEFAULTS = {
    "duration_micros": None,
    "start_time_micros": None,
    "data_deps": None,
    "ctrl_deps": None,
    "names": None,
    "pg_name": None,
    "rest": None,
    "version": "",
    "metadata": (),
    "place": "",
    "rank": None,
}
#: Fields of a trace that keep a column under another name.
_FIELD = {"pg_name": "_groups", "metadata": "_metadata"}


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class ExecutionTrace:
    """One rank's graph, columnar and immutable, with read-only arrays.

    Made by `from_columns`, or by the readers in `astrasim_py.chakra.et_io`.
    """

    node_id: np.ndarray  # uint64[n], unique; not necessarily dense or ascending
    type: np.ndarray  # int8[n], a `NodeType`
    duration_micros: np.ndarray  # uint64[n], whole microseconds; 0 where the producer gives none
    start_time_micros: np.ndarray
    data_deps: Csr  # parents of each node, by node id, as written
    ctrl_deps: Csr
    names: tuple[str, ...]
    version: str = ""  # of the metadata (informational; often empty)
    place: str = ""  # file that it came from, for messages; empty when it was built
    rank: int | None = None  # rank it was read for, for messages; of several that share it the first
    raw: RawFile | None = None  # bytes that it came from, where they were kept
    changed: np.ndarray | None = None  # bool[n]: nodes that differ from the file they came from; None if none does
    #: Where the trace was built, fields that no column holds: int32[n] codes (-1 for none), and what they stand for as
    #: protobuf writes it.
    rest: tuple[np.ndarray, tuple[bytes, ...]] | None = None
    #: Columns, and codes of groups, have length 1 where all nodes have the same value.
    _columns: dict[str, np.ndarray]
    _groups: tuple[np.ndarray, tuple[str, ...]]
    _metadata: tuple[Attribute, ...] | None = None  # None: still in the bytes of the file
    _cache: dict[str, Any] = field(default_factory=dict)

    def __reduce__(self):
        fields = {name: getattr(self, name) for name in self.__slots__}
        return functools.partial(type(self), **fields | {"_cache": {}}), ()

    @classmethod
    def from_columns(cls, *, node_id, type, **columns) -> ExecutionTrace:
        """Make a trace from columns.

        `node_id`: n ids, unique. `type`: `NodeType` of each node, or of all. `columns`: any of `INT_COLUMNS`: one int
        for all nodes or n of them, `MISSING` where absent; `data_deps`, `ctrl_deps`: `Csr` of parents by node id;
        `duration_micros`, `start_time_micros`: whole microseconds, of each or of all; `names`: n texts; `pg_name`:
        communicator group of each node, or of all: None, text, a sequence of them, or (int32[n] codes, tuple of
        names); `metadata`: mapping, or iterable of Attribute or (name, value); `rest`, `version`, `place`, `rank`.

        Raises TraceError: two nodes of one id, or an unknown node type. Raises ValueError, TypeError: columns of
        unequal length or of another type: an error in the calling code.
        """
        size = len(node_id)
        others = _DEFAULTS | {name: value for name, value in columns.items() if name not in COLUMN_KINDS}
        unknown = others.keys() - _DEFAULTS.keys()
        if unknown:
            raise TypeError(f"unknown columns {', '.join(sorted(unknown))}")
        all_columns = {"node_id": node_id, "type": type, **others}
        return cls(
            _columns=compact_columns({n: value for n, value in columns.items() if n in COLUMN_KINDS}, size),
            **{_FIELD.get(n, n): checked(n, value, size, others["place"]) for n, value in all_columns.items()},
        )

    def __len__(self) -> int:
        return len(self.node_id)

    def __repr__(self) -> str:
        return f"ExecutionTrace({len(self)} nodes{f', {self.place}' if self.place else ''})"

    # -- columns ---------------------------------------------------------------------------------------------

    def column(self, name: str) -> np.ndarray:
        """An integer attribute of all nodes.

        `name`: one of `INT_COLUMNS`, or the name of any other integer attribute, which is then looked up in the file.
        Returns int64[n], read-only, `MISSING` where a node has no such attribute. Raises TraceError: a node has it, but
        not as a whole number.
        """
        stored, raw = self._columns.get(name), self.raw
        if stored is None and name not in COLUMN_KINDS and raw is not None:
            from astrasim_py.chakra.decode import decode_attribute

            stored = self._once(f"attribute {name}", lambda: decode_attribute(raw, name, self.place))
        return np.broadcast_to(MISSING if stored is None else stored, (len(self),))

    def runs_like(self, other: ExecutionTrace, free: Collection[str] = ()) -> bool:
        """True if nodes, ids, types, durations, dependencies and all `INT_COLUMNS` but those of `free` are equal.

        Names, groups, metadata, start times and attributes beyond the columns do not count.
        """
        values, other_values = (
            [trace.type, trace.node_id, trace.duration_micros, *trace.data_deps, *trace.ctrl_deps]
            for trace in (self, other)
        )
        names = [name for name in self._columns.keys() | other._columns.keys() if name not in free]
        columns = ([trace._columns.get(name, [MISSING]) for name in names] for trace in (self, other))
        return all(map(np.array_equal, values, other_values)) and all(map(np.array_equal, *columns))

    def has_column(self, name: str) -> bool:
        """True if any node has the integer attribute `name`."""
        stored = self._columns.get(name) if name in COLUMN_KINDS else self.column(name)
        return stored is not None and bool((stored != MISSING).any())

    @property
    def has_names(self) -> bool:
        return any(self.names)

    def group_of(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Communicator group of each node: int32[n] codes and the names they stand for; code -1 means all ranks."""
        codes, names = self._groups
        return np.broadcast_to(codes, (len(self),)), names

    @property
    def metadata(self) -> tuple[Attribute, ...]:
        """Attributes of the file, as the producer wrote them."""
        if self._metadata is not None:
            return self._metadata
        from astrasim_py.chakra import messages

        assert self.raw is not None  # a built trace has its metadata
        body = self.raw.data[slice(*self.raw.metadata)]
        return self._once(
            "metadata", lambda: messages.attributes(messages.parse("GlobalMetadata", body, self.place).attr)
        )

    def meta(self, name: str, default: object = None) -> object:
        """Value of the last metadata attribute of that name."""
        return next((a.value for a in reversed(self.metadata) if a.name == name), default)

    # -- nodes -----------------------------------------------------------------------------------------------

    def node(self, row: int) -> pb.Node:
        """Everything the trace says of the node in that row, as protobuf's message."""
        row = range(len(self))[row]
        if self.raw is None:
            return self._built_node(row)
        from astrasim_py.chakra import messages

        message = messages.parse("Node", self.raw.node(row), f"{self.place}: node {int(self.node_id[row])}")
        if self.is_changed(row):
            messages.patch(message, self._built_node(row))
        return message

    def attribute(self, row: int, name: str, default: object = None) -> object:
        """Value of the last attribute of that name of a node, whether it has a column or not."""
        from astrasim_py.chakra import messages

        matches = [attribute for attribute in self.node(row).attr if attribute.name == name]
        return messages.attributes(matches)[-1].value if matches else default

    def is_changed(self, row: int) -> bool:
        """True if a node was built, or differs from what is in the file."""
        return self.raw is None or (self.changed is not None and bool(self.changed[row]))

    def _built_node(self, row: int) -> pb.Node:
        """A node as the columns have it."""
        from astrasim_py.chakra import et_def_pb2 as pb

        message = pb.Node(
            id=int(self.node_id[row]),
            name=self.names[row],
            type=int(self.type[row]),  # type: ignore[arg-type]  # the generated stub takes no plain number
            ctrl_deps=self.ctrl_deps.of(row),
            data_deps=self.data_deps.of(row),
            start_time_micros=int(self.start_time_micros[row]),
            duration_micros=int(self.duration_micros[row]),
        )
        for name, values, kind in self._once("kinds", self._kinds):
            if values[row] != MISSING:
                message.attr.add(name=name, **{kind: int(values[row])})
        codes, names = self.group_of()
        if codes[row] >= 0:
            message.attr.add(name="pg_name", string_val=names[codes[row]])
        if self.rest is not None and self.rest[0][row] >= 0:
            message.MergeFromString(self.rest[1][self.rest[0][row]])
        return message

    def _kinds(self) -> list[tuple[str, np.ndarray, str]]:
        """Name and values of each integer column that a node has, and the member that they are written with."""
        present = [(name, self.column(name)) for name in WRITE_ORDER if name in self._columns]
        return [(name, values, kind_for(name, values)) for name, values in present]

    # -- the graph -------------------------------------------------------------------------------------------

    def row(self, node_id: int) -> int:
        """Row of the node with that id; -1 if there is none."""
        return int(self.rows_of(np.array([node_id], dtype=np.uint64))[0])

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """int64[k]: rows of nodes by id (uint64[k]); -1 where no node has that id."""
        if not len(self):
            return np.full(len(ids), -1, dtype=np.int64)
        by_id = self._by_id()
        rows = by_id[np.minimum(np.searchsorted(self.node_id, ids, sorter=by_id), len(self) - 1)]
        return np.where(self.node_id[rows] == ids, rows, -1)

    def id_ranks(self) -> np.ndarray | None:
        """Place of each row by ascending id (int64[n]); None where rows already ascend."""
        by_id = self._by_id()
        return None if (by_id[1:] > by_id[:-1]).all() else np.argsort(by_id)

    def _by_id(self) -> np.ndarray:
        return self._once("by id", lambda: np.argsort(self.node_id, kind="stable"))

    def parents(self, kind: str = "data") -> tuple[np.ndarray, np.ndarray]:
        """Dependencies as rows, each parent of a node once, in ascending order: int64[n + 1] and int64[m].

        `kind`: ``"data"`` or ``"data+ctrl"``. Raises TraceError: a dependency on a node that is not in the trace.
        """
        if kind not in ("data", "data+ctrl"):
            raise ValueError(f'kind is "data" or "data+ctrl", not {kind!r}')
        if kind == "data+ctrl" and not len(self.ctrl_deps.ids):
            kind = "data"
        parts = [self.data_deps] if kind == "data" else [self.data_deps, self.ctrl_deps]
        return self._once(kind, lambda: self._parents(parts))

    def _parents(self, parts: Sequence[Csr]) -> tuple[np.ndarray, np.ndarray]:
        size = len(self)
        looked_up = [self._parent_rows(part) for part in parts]
        keys = np.concatenate([graph.owners(p.ptr) * size + r for p, r in zip(parts, looked_up, strict=True)])
        if len(parts) == 1 and bool((keys[1:] > keys[:-1]).all()):
            return parts[0].ptr, frozen(looked_up[0])
        child, rows = np.divmod(np.unique(keys), max(size, 1))
        return frozen(graph.pointers(child, size)), frozen(rows)

    def _parent_rows(self, part: Csr) -> np.ndarray:
        rows = self.rows_of(part.ids)
        lost = np.flatnonzero(rows < 0)
        if len(lost):
            first = int(lost[0])
            node = int(self.node_id[np.searchsorted(part.ptr, first, side="right") - 1])
            owner = "this trace" if self.rank is None else f"rank {self.rank}'s trace"
            raise TraceError(
                self.place,
                f"node {node} depends on {int(part.ids[first])}, which is not in {owner}",
                "add the node or drop the dependency",
            )
        return rows

    def order(self, kind: str = "data") -> np.ndarray:
        """Topological order, the smallest id first among the nodes that are ready: int64[n] rows.

        Raises TraceError: a dangling dependency, or a cycle (the message shows the shortest one).
        """
        return self._once(f"order of {kind}", lambda: self._order(*self.parents(kind)))

    def _order(self, ptr: np.ndarray, rows: np.ndarray) -> np.ndarray:
        order = graph.topological_order(ptr, rows, self.id_ranks())
        if len(order) < len(self):
            cycle = [int(self.node_id[row]) for row in graph.shortest_cycle(ptr, rows, order)]
            raise TraceError(self.place, graph.cycle_text(cycle), "remove one of these dependencies")
        return frozen(order)

    def digest(self) -> str:
        """SHA-256 over all columns: equal for a built trace and the same trace read from a file.

        Attributes without a column and the metadata do not count: nothing that is simulated depends on them.
        """
        return self._once("digest", self._digest)

    def _digest(self) -> str:
        codes, names = self.group_of()
        labels = sorted(names[code] for code in np.unique(codes).tolist() if code >= 0)
        table = np.array([*(labels.index(name) if name in labels else -1 for name in names), -1], dtype=np.int32)
        column_names = ("node_id", "type", "duration_micros", "start_time_micros", "data_deps", "ctrl_deps")
        return digest(
            {name: getattr(self, name) for name in column_names}
            | {
                "columns": {name: self.column(name) for name in INT_COLUMNS if self.has_column(name)},
                "group": table[codes],
                "groups": labels,
                "names": list(self.names) if self.has_names else None,
            }
        )

    def _once(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    # -- other traces ----------------------------------------------------------------------------------------

    def replace(self, **columns) -> ExecutionTrace:
        """A copy of the trace with other columns.

        Takes the arguments of `from_columns`, with the same number of nodes. Nodes with unchanged values are still
        written back byte for byte.
        """
        size = len(self)
        fields: dict[str, Any] = {}
        touched = np.zeros(size, dtype=bool) if self.changed is None else self.changed.copy()
        stored = {n: compact(value, size, n) for n, value in columns.items() if n in COLUMN_KINDS}
        for name, column in stored.items() if self.raw is not None else ():
            touched |= column != self.column(name)
        for name in [name for name in columns if name not in stored]:
            is_field = name in _DEFAULTS or name in ("node_id", "type")
            if not is_field or (name in ("version", "metadata") and self.raw is not None):
                raise TypeError(f"replace() cannot change {name} of this trace")
            new = checked(name, columns[name], size, self.place)
            fields[_FIELD.get(name, name)] = new
            touched |= self.raw is not None and self._differs(name, new)
        return dataclasses.replace(
            self,
            **fields,
            _columns=self._columns | stored,
            changed=touched if self.raw is not None and touched.any() else None,
            _cache={},
        )

    def _differs(self, name: str, new: Any) -> np.ndarray | bool:
        """bool[n]: nodes whose value differs between a column and a new one."""
        old = getattr(self, _FIELD.get(name, name))
        if name in ("place", "rank", "version", "metadata"):
            return False
        if isinstance(new, np.ndarray):
            return new != old
        if name == "pg_name":
            groups = ((np.broadcast_to(codes, (len(self),)), (*names, None)) for codes, names in (old, new))
            old, new = ([names[code] for code in codes.tolist()] for codes, names in groups)
        elif name != "names":
            old, new = old.lists(), new.lists()
        return np.fromiter((a != b for a, b in zip(old, new, strict=True)), bool, len(self))

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> ExecutionTrace:
        """The same graph with other integer columns; traces made this way share the cached order and parents."""
        return dataclasses.replace(
            self,
            raw=None,
            changed=None,
            _metadata=self.metadata,
            _cache={key: value for key, value in self._cache.items() if key not in ("digest", "kinds")},
            _columns={n: column for n, column in self._columns.items() if n not in columns}
            | compact_columns(columns, len(self)),
        )

    def without_raw(self) -> ExecutionTrace:
        """The same columns without the bytes of the file: less memory; other attributes are gone."""
        return dataclasses.replace(self, raw=None, _metadata=self.metadata, changed=None, _cache={})
