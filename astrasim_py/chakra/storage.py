"""Columns of traces: compact and read-only."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.chakra.schema import MISSING, Attribute
from astrasim_py.core.errors import TraceError

_VALUE_KINDS = (
    (bool, "bool_val"),
    (int, "int64_val"),
    (float, "double_val"),
    (str, "string_val"),
    (bytes, "bytes_val"),
)


class Csr(NamedTuple):
    """Dependencies of all nodes, one after the other."""

    ptr: np.ndarray  # int64[n + 1]; entries ptr[i]..ptr[i+1] belong to node i
    ids: np.ndarray  # uint64[m]: the nodes that must complete first

    def of(self, row: int) -> tuple[int, ...]:
        """Ids of one node."""
        return tuple(self.ids[self.ptr[row] : self.ptr[row + 1]].tolist())

    def lists(self, rows: slice = slice(None)) -> list[tuple[int, ...]]:
        """Ids of each node, or of those of adjacent rows."""
        first, last, _ = rows.indices(len(self.ptr) - 1)
        ptr = self.ptr[first : last + 1]
        ids = self.ids[ptr[0] : ptr[-1]].tolist()
        return [tuple(ids[begin:end]) for begin, end in pairwise((ptr - ptr[0]).tolist())]


class RawFile(NamedTuple):
    """Bytes that a trace was decoded from.

    `start`, `end`: int64[n] each: where the message of each node starts and ends, its length prefix excluded.
    """

    data: bytes  # the whole file, unzipped
    metadata: tuple[int, int]  # start and end of the metadata message
    start: np.ndarray
    end: np.ndarray

    def node(self, row: int) -> bytes:
        """The message of one node."""
        return self.data[int(self.start[row]) : int(self.end[row])]


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view of an array."""
    if array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array


def whole_numbers(values: object, what: str, dtype) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "iub" and array.size:
        raise TypeError(f"{what} must hold whole numbers, not {array.dtype}")
    if dtype == np.uint64 and array.dtype.kind == "i" and array.size and int(array.min()) < 0:
        raise ValueError(f"{what} must not be negative, but holds {int(array.min())}")
    if dtype == np.int64 and array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
        raise ValueError(f"{what} must be below 2^63, but holds {int(array.max())}")
    return array.astype(dtype)


def spread(values: object, size: int, what: str, dtype) -> np.ndarray:
    """Whole numbers, one for each of `size` nodes or one for all of them, as a read-only column."""
    array = whole_numbers(values, what, dtype)
    if array.shape not in ((), (size,)):
        raise ValueError(f"{what} has shape {array.shape}, the trace has {size} nodes")
    return frozen(np.broadcast_to(array, (size,)))


def compact(values: object, size: int, what: str = "column") -> np.ndarray:
    """An integer column, `MISSING` where a node has none, as a trace stores it: of length 1 if all have the same."""
    column = spread(values, size, what, np.int64)
    same = not size or column.min() == column.max()
    return frozen((column[:1] if same else column).copy())


def compact_columns(columns: Mapping[str, object], size: int) -> dict[str, np.ndarray]:
    """Columns as `compact` stores them, without those that no node has."""
    stored = {name: compact(values, size, name) for name, values in columns.items()}
    return {name: column for name, column in stored.items() if len(column) > 1 or (column != MISSING).any()}


def as_csr(value: Csr | tuple | None, size: int, what: str) -> Csr:
    if value is None:
        return Csr(frozen(np.zeros(size + 1, dtype=np.int64)), frozen(np.empty(0, dtype=np.uint64)))
    ptr = whole_numbers(value[0], f"{what}.ptr", np.int64)
    ids = whole_numbers(value[1], f"{what}.ids", np.uint64)
    if ptr.shape != (size + 1,) or ids.ndim != 1 or ptr[0] != 0 or ptr[-1] != len(ids) or (ptr[1:] < ptr[:-1]).any():
        raise ValueError(f"{what} is not a CSR of {size} nodes and {ids.size} entries")
    return Csr(frozen(ptr), frozen(ids))


def as_groups(
    pg_name: str | Iterable[str | None] | tuple[np.ndarray, Iterable[str]] | None, size: int
) -> tuple[np.ndarray, tuple[str, ...]]:
    if pg_name is None or isinstance(pg_name, str):
        return (np.array([-1], np.int32), ()) if pg_name is None else (np.array([0], np.int32), (pg_name,))
    if isinstance(pg_name, tuple) and len(pg_name) == 2 and isinstance(pg_name[0], np.ndarray):
        codes, names = whole_numbers(pg_name[0], "pg_name codes", np.int32), tuple(pg_name[1])
    else:
        index: dict[str, int] = {}
        codes = np.fromiter(
            (-1 if name is None else index.setdefault(name, len(index)) for name in pg_name), dtype=np.int32
        )
        names = tuple(index)
    if codes.shape != (size,) or (size and not -1 <= int(codes.min()) <= int(codes.max()) < max(len(names), 1)):
        raise ValueError(f"pg_name does not give one group for each of {size} nodes")
    return frozen(codes), names


def checked(name: str, value: Any, size: int, place: str) -> Any:
    """A column other than an integer attribute, as a trace stores it."""
    if name == "node_id":
        ids = spread(value, size, name, np.uint64)
        check_unique(ids, place)
        return ids
    if name == "type":
        kinds = spread(value, size, name, np.int64)
        wrong = kinds[(kinds < 0) | (kinds > 7)]
        if wrong.size:
            raise TraceError(place, f"node type {int(wrong.max())} is not one of 0..7", "use a NodeType")
        return spread(value, size, name, np.int8)
    if name in ("duration_micros", "start_time_micros"):
        return spread(0 if value is None else value, size, name, np.uint64)
    if name in ("data_deps", "ctrl_deps"):
        return as_csr(value, size, name)
    if name == "pg_name":
        return as_groups(value, size)
    if name == "metadata":
        return tuple(map(_attribute, value.items() if isinstance(value, Mapping) else value))
    if name == "names":
        names = ("",) * size if value is None else tuple(value)
        if len(names) != size:
            raise ValueError(f"{len(names)} names for {size} nodes")
        return names
    return value


def _attribute(item: Attribute | tuple[str, object]) -> Attribute:
    if isinstance(item, Attribute):
        return item
    name, value = item
    for kind, member in _VALUE_KINDS:
        if isinstance(value, kind):
            return Attribute(name, member, value)
    raise TypeError(f"metadata {name}: cannot store a {type(value).__name__}; give an Attribute")


def check_unique(ids: np.ndarray, place: str, start: np.ndarray | None = None) -> None:
    """Refuse two nodes of one id.

    `ids`: uint64[n]. `place`: name of the file, for messages. `start`: int64[n]: where each node begins in the file.
    Raises TraceError: naming the id and both positions.
    """
    if len(ids) < 2 or bool((ids[1:] > ids[:-1]).all()):
        return
    by_id = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[by_id[1:]] == ids[by_id[:-1]])
    if len(again):
        first = again[np.argmin(by_id[again + 1])]
        a, b = int(by_id[first]), int(by_id[first + 1])
        where = f"in rows {a} and {b}" if start is None else f"at byte {start[a]} and at byte {start[b]}"
        raise TraceError(place, f"node {int(ids[a])} appears twice, {where}", "give every node its own id")
