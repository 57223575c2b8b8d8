"""`ExecutionTrace`: one rank's graph as columns.

A trace is columnar and immutable: numpy arrays, dependencies as CSR, and no Python object per node. What a
column does not hold (input and output lists, attributes of other producers) stays in the raw bytes of the
file it came from, so that a trace that was only read is written back byte for byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from astrasim_py.chakra import graph, messages
from astrasim_py.chakra.decode import decode_attribute
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING, WRITE_ORDER, Attribute, Node, kind_for
from astrasim_py.chakra.storage import (
    Csr,
    Names,
    NoNames,
    as_csr,
    as_groups,
    compact,
    compact_columns,
    expand,
    frozen,
    whole_numbers,
)
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import TraceError

_VALUE_KINDS = (
    (bool, "bool_val"),
    (int, "int64_val"),
    (float, "double_val"),
    (str, "string_val"),
    (bytes, "bytes_val"),
)


def _attributes(items: Iterable) -> tuple[Attribute, ...]:
    out = []
    for item in items.items() if isinstance(items, Mapping) else items:
        if isinstance(item, Attribute):
            out.append(item)
            continue
        name, value = item
        for kind, member in _VALUE_KINDS:
            if isinstance(value, kind):
                out.append(Attribute(name, member, value))
                break
        else:
            raise TypeError(f"metadata {name}: cannot store a {type(value).__name__}; give an Attribute")
    return tuple(out)


class ExecutionTrace:
    """One rank's graph, columnar and immutable.

    Made by `from_columns`, or by the readers in `astrasim_py.chakra.et_io`. All arrays are read-only.

    Attributes
    ----------
    node_id : numpy.ndarray
        uint64[n], unique; not necessarily dense or ascending.
    type : numpy.ndarray
        int8[n], a `NodeType`.
    duration_micros, start_time_micros : numpy.ndarray
        uint64[n], whole microseconds; 0 where the producer gives none.
    data_deps, ctrl_deps : Csr
        Parents of each node, by node id, as written.
    names : sequence of str
    version : str
        Version text of the metadata (informational; often empty).
    metadata : tuple of Attribute
    place : str
        File that it came from, for messages; empty when it was built.
    rank : int or None
        Rank it was read for, for messages. A trace that several ranks share has the first one's.
    raw : RawFile or None
        Bytes that it came from, where they were kept.
    """

    __slots__ = (
        "_cache",
        "_columns",
        "_extra",
        "_groups",
        "_metadata",
        "_touched",
        "ctrl_deps",
        "data_deps",
        "duration_micros",
        "names",
        "node_id",
        "place",
        "rank",
        "raw",
        "start_time_micros",
        "type",
        "version",
    )

    def __init__(self, fields: Mapping[str, object]) -> None:
        for name in self.__slots__:
            object.__setattr__(self, name, fields[name])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("an ExecutionTrace does not change; use replace()")

    def __reduce__(self):
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["_cache"] = {}
        return type(self), (fields,)

    @classmethod
    def from_columns(
        cls,
        *,
        node_id,
        type,
        data_deps: Csr | None = None,
        ctrl_deps: Csr | None = None,
        duration_micros=None,
        start_time_micros=None,
        names: Sequence[str] | None = None,
        pg_name=None,
        version: str = "",
        metadata=(),
        place: str = "",
        rank: int | None = None,
        extra: Mapping[str, object] | None = None,
        **int_columns,
    ) -> ExecutionTrace:
        """Make a trace from columns.

        Parameters
        ----------
        node_id : array-like of int
            n ids, unique.
        type : int or array-like of int
            `NodeType` of each node, or of all.
        data_deps, ctrl_deps : Csr, optional
            Parents by node id; none by default.
        duration_micros, start_time_micros : int or array-like of int, optional
            Whole microseconds; 0 by default.
        names : sequence of str, optional
            n names; all empty by default.
        pg_name : None, str, sequence of (str or None), or (int32[n] codes, tuple of names)
            Communicator group of each node, or of all.
        version : str
        metadata : mapping, or iterable of Attribute or (name, value)
        place : str
        rank : int, optional
        extra : mapping of str to (int or array-like), optional
            Further integer attributes under names of their own, `MISSING` where absent.
        **int_columns
            Any of `INT_COLUMNS`: one int for all nodes or n of them, `MISSING` where absent.

        Raises
        ------
        TraceError
            Two nodes of one id, or an unknown node type.
        ValueError, TypeError
            Columns of unequal length or of another type: an error in the calling code.
        """
        ids = whole_numbers(node_id, "node_id", np.uint64)
        if ids.ndim != 1:
            raise ValueError(f"node_id has shape {ids.shape}, not one dimension")
        size = len(ids)
        check_unique(ids, place)
        extra = dict(extra or {})
        int_columns |= {name: extra.pop(name) for name in tuple(extra) if name in COLUMN_KINDS}
        unknown = [name for name in int_columns if name not in COLUMN_KINDS]
        if unknown:
            raise TypeError(f"unknown columns {', '.join(unknown)}; use extra= for attributes of your own")
        kinds = whole_numbers(type, "type", np.int64)
        if kinds.size and not 0 <= int(kinds.min()) <= int(kinds.max()) <= 7:
            bad = int(kinds.max()) if int(kinds.max()) > 7 else int(kinds.min())
            raise TraceError(place, f"node type {bad} is not one of 0..7", "use a NodeType")
        if kinds.shape not in ((), (size,)):
            raise ValueError(f"type has shape {kinds.shape}, the trace has {size} nodes")
        if names is not None and not isinstance(names, Names | NoNames):
            names = tuple(names)
        if names is not None and len(names) != size:
            raise ValueError(f"{len(names)} names for {size} nodes")
        return cls(
            {
                "node_id": frozen(ids),
                "type": frozen(np.broadcast_to(kinds.astype(np.int8), (size,))),
                "duration_micros": _micros(duration_micros, size, "duration_micros"),
                "start_time_micros": _micros(start_time_micros, size, "start_time_micros"),
                "data_deps": as_csr(data_deps, size, "data_deps"),
                "ctrl_deps": as_csr(ctrl_deps, size, "ctrl_deps"),
                "names": NoNames(size) if names is None else names,
                "version": version,
                "place": place,
                "rank": rank,
                "raw": None,
                "_metadata": _attributes(metadata),
                "_columns": compact_columns(int_columns, size),
                "_extra": compact_columns(extra, size),
                "_groups": as_groups(pg_name, size),
                "_touched": None,
                "_cache": {},
            }
        )

    def __len__(self) -> int:
        return len(self.node_id)

    def __repr__(self) -> str:
        return f"ExecutionTrace({len(self)} nodes{f', {self.place}' if self.place else ''})"

    def column(self, name: str) -> np.ndarray:
        """An integer attribute of all nodes.

        Parameters
        ----------
        name : str
            One of `INT_COLUMNS`, or the name of any other integer attribute (then looked up in the file).

        Returns
        -------
        numpy.ndarray
            int64[n], read-only, `MISSING` where a node has no such attribute.

        Raises
        ------
        TraceError
            A node has the attribute, but not as a whole number.
        """
        if name in self._columns:
            stored = self._columns[name]
            if not isinstance(stored, np.ndarray) or stored.dtype == np.int64:
                return expand(stored, len(self))
            # A few wide copies are kept, for callers that ask again and again.
            wide = self._cache.setdefault("wide", {})
            if name not in wide:
                if len(wide) >= 4:
                    del wide[next(iter(wide))]
                wide[name] = expand(stored, len(self))
            return wide[name]
        if name not in COLUMN_KINDS and name not in self._extra and self.raw is not None:
            self._extra[name] = compact(decode_attribute(self.raw, name, self.place), len(self))
        return expand(self._extra.get(name, MISSING), len(self))

    def picked(self, name: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """int64: one of `INT_COLUMNS` in some rows, of which nothing is kept."""
        stored = self._columns.get(name, MISSING)
        if isinstance(stored, np.ndarray):
            return expand(stored[rows], len(self))
        return np.broadcast_to(np.int64(stored), (len(self),))[rows]

    def runs_like(self, other: ExecutionTrace, free: Collection[str] = ()) -> bool:
        """Whether nodes, ids, kinds, durations, dependencies and `INT_COLUMNS` but those of `free` are equal.

        Names, groups, metadata, start times and attributes beyond the columns do not count.
        """
        for name in ("type", "node_id", "duration_micros"):
            if not _equal(getattr(self, name), getattr(other, name)):
                return False
        for name in ("data_deps", "ctrl_deps"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if not (_equal(mine.ids, theirs.ids) and _equal(mine.ptr, theirs.ptr)):
                return False
        for name in self._columns.keys() | other._columns.keys():
            if name not in free:
                mine, theirs = self._columns.get(name, MISSING), other._columns.get(name, MISSING)
                if isinstance(mine, int) and isinstance(theirs, int):
                    same = mine == theirs
                elif getattr(mine, "dtype", None) == getattr(theirs, "dtype", None):
                    same = _equal(mine, theirs)
                else:
                    same = _equal(self.picked(name), other.picked(name))
                if not same:
                    return False
        return True

    def has_column(self, name: str) -> bool:
        """Whether any node has the integer attribute `name`."""
        stored = self._columns.get(name, MISSING) if name in COLUMN_KINDS else self.column(name)
        return bool((stored != MISSING).any()) if isinstance(stored, np.ndarray) else stored != MISSING

    @property
    def has_names(self) -> bool:
        """Whether names were given (they may be empty all the same)."""
        return not isinstance(self.names, NoNames)

    def group_of(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Communicator group of each node.

        Returns
        -------
        tuple
            int32[n] codes (-1: the node names no group, which means all ranks) and the names they stand for.
        """
        codes, names = self._groups
        if isinstance(codes, int):
            codes = np.broadcast_to(np.int32(codes), (len(self),))
        return codes, names

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the integer attributes given under names of their own."""
        return tuple(self._extra) if self.raw is None else ()

    @property
    def metadata(self) -> tuple[Attribute, ...]:
        """Attributes of the file, as the producer wrote them."""
        if self._metadata is not None:
            return self._metadata
        if "metadata" not in self._cache:
            begin, end = self.raw.metadata
            self._cache["metadata"] = messages.parse_metadata(self.raw.data[begin:end], self.place)[1]
        return self._cache["metadata"]

    def meta(self, name: str, default: object = None) -> object:
        """Value of the last metadata attribute of that name."""
        for attribute in reversed(self.metadata):
            if attribute.name == name:
                return attribute.value
        return default

    def node(self, row: int) -> Node:
        """Everything the trace says of the node in that row."""
        row = range(len(self))[row]
        body = self.raw_node(row)
        if body is not None:
            return messages.parse_node(body, f"{self.place}: node {int(self.node_id[row])}")
        return self._built_node(row) if self.raw is None else messages.node_view(self.message(row))

    def message(self, row: int) -> Any:
        """The node in that row as the message to be written: that of its file with the columns put in."""
        if self.raw is None:
            return messages.node_message(self._built_node(row))
        message = messages.pb.Node.FromString(self.raw.data[int(self.raw.start[row]) : int(self.raw.end[row])])
        messages.patch(message, self._built_node(row))
        return message

    def _built_node(self, row: int) -> Node:
        """A node as the columns have it."""
        attributes = []
        for name in (*WRITE_ORDER, *self.extra_columns):
            values = self.column(name)
            if values[row] != MISSING:
                kind, value = kind_for(name, values), int(values[row])
                attributes.append(Attribute(name, kind, bool(value) if kind == "bool_val" else value))
        codes, names = self.group_of()
        if codes[row] >= 0:
            attributes.append(Attribute("pg_name", "string_val", names[codes[row]]))
        return Node(
            id=int(self.node_id[row]),
            name=self.names[row],
            type=int(self.type[row]),
            ctrl_deps=self.ctrl_deps.of(row),
            data_deps=self.data_deps.of(row),
            start_time_micros=int(self.start_time_micros[row]),
            duration_micros=int(self.duration_micros[row]),
            attributes=tuple(attributes),
        )

    def raw_node(self, row: int) -> bytes | None:
        """Bytes of a node as they are in the file; None for a node that was built or changed."""
        if self.raw is None or (self._touched is not None and self._touched[row]):
            return None
        return self.raw.data[int(self.raw.start[row]) : int(self.raw.end[row])]

    @property
    def changed(self) -> np.ndarray | None:
        """bool[n]: nodes that differ from the file they came from; None if none does, or if it has no file."""
        return self._touched

    def row(self, node_id: int) -> int:
        """Row of the node with that id; -1 if there is none."""
        return int(self.rows_of(np.array([node_id], dtype=np.uint64))[0])

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Rows of nodes by id.

        Parameters
        ----------
        ids : numpy.ndarray
            uint64[k].

        Returns
        -------
        numpy.ndarray
            int64[k]; -1 where no node has that id.
        """
        size = len(self)
        if not size:
            return np.full(len(ids), -1, dtype=np.int64)
        base, ascending, dense = self._id_shape()
        if dense:
            # uint64 wraps below base, so one comparison bounds both ends.
            offset = ids - base
            return np.where(offset < np.uint64(size), offset, np.uint64(2**64 - 1)).astype(np.int64)
        if ascending:
            at = np.minimum(np.searchsorted(self.node_id, ids), size - 1)
            return np.where(self.node_id[at] == ids, at, -1)
        if "by_id" not in self._cache:
            by_id = np.argsort(self.node_id, kind="stable")
            self._cache["by_id"] = by_id, self.node_id[by_id]
        by_id, sorted_ids = self._cache["by_id"]
        at = np.minimum(np.searchsorted(sorted_ids, ids), size - 1)
        return np.where(sorted_ids[at] == ids, by_id[at], -1)

    def _id_shape(self) -> tuple[np.uint64, bool, bool]:
        if "id_shape" not in self._cache:
            ids = self.node_id
            ascending = bool((ids[1:] > ids[:-1]).all())
            dense = ascending and int(ids[-1]) - int(ids[0]) == len(ids) - 1
            self._cache["id_shape"] = ids[0], ascending, dense
        return self._cache["id_shape"]

    def _whose(self) -> str:
        return "this trace" if self.rank is None else f"rank {self.rank}'s trace"

    def parents(self, kind: str = "data") -> tuple[np.ndarray, np.ndarray]:
        """Dependencies as rows, each parent of a node once, in ascending order.

        Parameters
        ----------
        kind : str
            ``"data"`` or ``"data+ctrl"``.

        Returns
        -------
        tuple of numpy.ndarray
            int64[n + 1] and int64[m].

        Raises
        ------
        TraceError
            A dependency on a node that is not in the trace.
        """
        if kind not in ("data", "data+ctrl"):
            raise ValueError(f'kind is "data" or "data+ctrl", not {kind!r}')
        if kind == "data+ctrl" and not len(self.ctrl_deps.ids):
            kind = "data"
        if kind not in self._cache:
            parts = [self.data_deps] if kind == "data" else [self.data_deps, self.ctrl_deps]
            self._cache[kind] = self._parents(parts)
        return self._cache[kind]

    def _parents(self, parts: Sequence[Csr]) -> tuple[np.ndarray, np.ndarray]:
        size = len(self)
        looked_up = []
        for part in parts:
            rows = self.rows_of(part.ids)
            lost = np.flatnonzero(rows < 0)
            if len(lost):
                first = int(lost[0])
                node = int(self.node_id[np.searchsorted(part.ptr, first, side="right") - 1])
                raise TraceError(
                    self.place,
                    f"node {node} depends on {int(part.ids[first])}, which is not in {self._whose()}",
                    "add the node or drop the dependency",
                )
            looked_up.append(rows)
        if len(parts) == 1:
            ptr, rows = parts[0].ptr, looked_up[0]
            if not len(rows) or int(np.diff(ptr).max()) <= 1:
                return ptr, frozen(rows)
            if len(rows) == 1 or bool(
                ((rows[1:] > rows[:-1]) | (graph.owners(ptr)[1:] != graph.owners(ptr)[:-1])).all()
            ):
                return ptr, frozen(rows)
        keys = np.concatenate([graph.owners(p.ptr) * size + r for p, r in zip(parts, looked_up, strict=True)])
        keys.sort()
        if len(keys):
            keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
        child, rows = np.divmod(keys, max(size, 1))
        ptr = np.zeros(size + 1, dtype=np.int64)
        np.cumsum(np.bincount(child, minlength=size), out=ptr[1:])
        return frozen(ptr), frozen(rows)

    def children(self, kind: str = "data") -> tuple[np.ndarray, np.ndarray]:
        """The transpose of `parents`: int64[n + 1] and int64[m] rows, ascending."""
        key = f"children of {kind}"
        if key not in self._cache:
            self._cache[key] = tuple(frozen(a) for a in graph.transpose(*self.parents(kind)))
        return self._cache[key]

    def order(self, kind: str = "data") -> np.ndarray:
        """Topological order, the smallest id first among the nodes that are ready.

        Parameters
        ----------
        kind : str
            ``"data"`` or ``"data+ctrl"``.

        Returns
        -------
        numpy.ndarray
            int64[n] rows.

        Raises
        ------
        TraceError
            A dangling dependency, or a cycle: the message shows the shortest one.
        """
        key = f"order of {kind}"
        if key not in self._cache:
            ptr, rows = self.parents(kind)
            order = graph.topological_order(ptr, rows, self.id_ranks())
            if len(order) < len(self):
                cycle = [int(self.node_id[row]) for row in graph.shortest_cycle(ptr, rows, order)]
                raise TraceError(self.place, cycle_text(cycle), "remove one of these dependencies")
            self._cache[key] = frozen(order)
        return self._cache[key]

    def id_ranks(self) -> np.ndarray | None:
        """Place of each row by ascending id (int64[n]); None where rows already ascend."""
        if not len(self) or self._id_shape()[1]:
            return None
        ranks = np.empty(len(self), dtype=np.int64)
        ranks[np.argsort(self.node_id, kind="stable")] = np.arange(len(self))
        return ranks

    def digest(self) -> str:
        """SHA-256 over all columns: equal for a built trace and the same trace read from a file.

        Attributes without a column and the metadata do not count: nothing that is simulated depends on them.
        """
        if "digest" not in self._cache:
            codes, names = self.group_of()
            used = np.unique(codes).tolist()
            labels = sorted(names[code] for code in used if code >= 0)
            table = np.full(len(names) + 1, -1, dtype=np.int32)
            for code in used:
                if code >= 0:
                    table[code] = labels.index(names[code])
            columns = {name: self.column(name) for name in INT_COLUMNS if self.has_column(name)}
            names_text = list(self.names) if self.has_names else []
            self._cache["digest"] = digest(
                {
                    "node_id": self.node_id,
                    "type": self.type,
                    "duration_micros": self.duration_micros,
                    "start_time_micros": self.start_time_micros,
                    "data_deps": self.data_deps,
                    "ctrl_deps": self.ctrl_deps,
                    "columns": columns,
                    "group": table[codes],
                    "groups": labels,
                    "names": names_text if any(names_text) else None,
                }
            )
        return self._cache["digest"]

    def replace(self, **columns) -> ExecutionTrace:
        """A new trace in which some columns differ.

        Takes what `from_columns` takes, all of the same length as before. Nodes whose values did not change
        are still written back byte for byte.
        """
        size = len(self)
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["_cache"] = {}
        touched = np.zeros(size, dtype=bool) if self._touched is None else self._touched.copy()
        stored, extra = dict(self._columns), dict(self._extra)
        given = dict(columns.pop("extra", None) or {})
        columns |= {name: given.pop(name) for name in tuple(given) if name in COLUMN_KINDS}
        extra.update(compact_columns(given, size))
        if extra != self._extra and self.raw is not None:
            raise ValueError("a trace read from a file takes no extra columns")
        for name, value in columns.items():
            if name in COLUMN_KINDS:
                new = compact(value, size, name)
                touched |= expand(new, size) != self.column(name)
                stored[name] = new
            elif name in ("duration_micros", "start_time_micros"):
                fields[name] = _micros(value, size, name)
                touched |= fields[name] != getattr(self, name)
            elif name in ("data_deps", "ctrl_deps"):
                fields[name] = new = as_csr(value, size, name)
                old = getattr(self, name)
                if not (np.array_equal(new.ptr, old.ptr) and np.array_equal(new.ids, old.ids)):
                    for row in range(size):
                        touched[row] |= not np.array_equal(
                            new.ids[new.ptr[row] : new.ptr[row + 1]], old.ids[old.ptr[row] : old.ptr[row + 1]]
                        )
            elif name == "node_id":
                fields[name] = new = frozen(whole_numbers(value, name, np.uint64))
                if new.shape != (size,):
                    raise ValueError(f"{name} has shape {new.shape}, the trace has {size} nodes")
                check_unique(new, self.place)
                touched |= new != self.node_id
            elif name == "names":
                fields[name] = new = NoNames(size) if value is None else tuple(value)
                if len(new) != size:
                    raise ValueError(f"{len(new)} names for {size} nodes")
                touched |= np.fromiter((a != b for a, b in zip(new, self.names, strict=True)), bool, size)
            elif name == "type":
                new = ExecutionTrace.from_columns(node_id=self.node_id, type=value, place=self.place).type
                fields[name] = new
                touched |= new != self.type
            elif name == "pg_name":
                fields["_groups"] = as_groups(value, size)
                new_codes, new_names = as_groups(value, size)
                old_codes, old_names = self.group_of()
                new_codes = np.broadcast_to(new_codes, (size,))
                alike = {new_names.index(old): code for code, old in enumerate(old_names) if old in new_names}
                table = np.array([alike.get(code, -2) for code in range(len(new_names))] + [-1], dtype=np.int64)
                touched |= table[new_codes] != old_codes
            elif name in ("place", "rank") or (name == "version" and self.raw is None):
                fields[name] = value
            elif name == "metadata" and self.raw is None:
                fields["_metadata"] = _attributes(value)
            else:
                raise TypeError(f"replace() cannot change {name} of this trace")
        fields["_columns"], fields["_extra"] = stored, extra
        fields["_touched"] = touched if self.raw is not None and touched.any() else None
        return ExecutionTrace(fields)

    def with_columns(self, columns: Mapping[str, np.ndarray]) -> ExecutionTrace:
        """The same graph with other integer columns, for many traces alike: what is known of the graph is shared."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        graph_of = {key: value for key, value in self._cache.items() if key not in ("wide", "digest")}
        fields |= {"raw": None, "_touched": None, "_metadata": self.metadata, "_cache": graph_of}
        others = {name: column for name, column in self._columns.items() if name not in columns}
        fields["_columns"] = others | compact_columns(columns, len(self))
        return ExecutionTrace(fields)

    def without_raw(self) -> ExecutionTrace:
        """The same columns without the bytes of the file: less memory; other attributes are gone."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields |= {"raw": None, "_touched": None, "_cache": {}, "_metadata": self.metadata, "_extra": {}}
        if isinstance(self.names, Names):
            fields["names"] = self.names.packed()
        return ExecutionTrace(fields)


def _micros(value: object, size: int, what: str) -> np.ndarray:
    array = whole_numbers(0 if value is None else value, what, np.uint64)
    if array.shape not in ((), (size,)):
        raise ValueError(f"{what} has shape {array.shape}, the trace has {size} nodes")
    return frozen(np.broadcast_to(array, (size,)))


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two integer arrays of one dimension are the same."""
    return one is other or (len(one) == len(other) and bool((one == other).all()))


def check_unique(ids: np.ndarray, place: str, start: np.ndarray | None = None) -> None:
    """Refuse two nodes of one id.

    Parameters
    ----------
    ids : numpy.ndarray
        uint64[n].
    place : str
        Name of the file, for messages.
    start : numpy.ndarray, optional
        int64[n]: where each node begins in the file.

    Raises
    ------
    TraceError
        Naming the id and both positions.
    """
    if len(ids) < 2 or bool((ids[1:] > ids[:-1]).all()):
        return
    by_id = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[by_id[1:]] == ids[by_id[:-1]])
    if len(again):
        first = again[np.argmin(by_id[again + 1])]
        one, two = int(by_id[first]), int(by_id[first + 1])
        where = f"in rows {one} and {two}" if start is None else f"at byte {start[one]} and at byte {start[two]}"
        raise TraceError(place, f"node {int(ids[one])} is there twice, {where}", "give every node its own id")


def cycle_text(ids: Sequence[int]) -> str:
    """One line for a dependency cycle, each node depending on the next."""
    if len(ids) == 1:
        return f"node {ids[0]} depends on itself"
    shown = [str(i) for i in ids] if len(ids) <= 12 else [*map(str, ids[:8]), "…", *map(str, ids[-3:])]
    return f"cycle of {len(ids)} nodes, each depending on the next: {' → '.join([*shown, str(ids[0])])}"
