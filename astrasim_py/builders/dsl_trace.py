"""One run of the function of an algorithm: what is in every cell, the steps so far, and in the end a trace per rank."""

import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index as whole
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, finish
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer, CompOp
from astrasim_py.collectives.collective import promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import numbered, ranges
from astrasim_py.program.algorithm import Algorithm

#: Steps that a function may take at most, and chunks of one scratch buffer.
MAX_STEPS = 2**22
MAX_POSITIONS = 2**16
MAX_SCRATCH = 2**20
# cells of each buffer of a rank are numbered from a multiple of this: input, output, then scratch buffers
SPAN = 2**32

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INPUT, _OUTPUT, _SCRATCH = range(3)
#: Kinds of steps, and the number of nodes of each.
_SEND_COPY, _SEND_REDUCE, _COPY, _REDUCE = range(4)
_NODES = np.array([2, 3, 1, 1])
#: Numbers stored per step, and the index of its line.
_COLUMNS, _LINE = 9, 7


def name_of(file: str) -> str:
    """The file; of a cell of a notebook a name that is the same in every run."""
    return "cell" if f"{os.sep}ipykernel_" in file else file


def _places(frames: Iterable[tuple[FrameType, int]]) -> Iterator[str]:
    return (
        f"{name_of(f.f_code.co_filename)}:{line}" for f, line in frames if not f.f_code.co_filename.startswith(_PACKAGE)
    )


def place_of(frame: FrameType) -> str:
    """``file:line`` of the nearest caller outside the package."""
    return next(_places(walk_stack(frame)), "")


def place_in(trace: TracebackType | None) -> str:
    """``file:line`` of the innermost place outside the package that an exception passed."""
    return ["", *_places(walk_tb(trace))][-1]


@dataclass(eq=False)
class Run:
    """One run of a function: what is in every cell, and the steps so far."""

    file: str
    place: str
    collective: str
    ranks: int
    chunks: int
    root: int | None
    in_place: bool
    contract: Contract | None
    declared: Mapping[str, int] | None  # scratch buffers

    def __post_init__(self) -> None:
        self.first_line = int(self.place.rpartition(":")[2])
        self.names: dict[str, int] = {}
        self.promise = promise_of(self.collective)
        self.home = _OUTPUT if self.promise.gathers else _INPUT
        self.open = True
        self.failed: AlgorithmError | None = None
        self.channel = NONE
        self.steps = self.nodes = 0
        # Cell -> [step that wrote it last, its node, chunk of the full buffer that it is, nodes that read it since].
        self.cells: list[dict[int, list[int]]] = [{} for _ in range(self.ranks)]
        self.actors: dict[str, int] = {}  # position of each switch by its name
        self.rows, self.edges = array("q"), array("q")

    # -- errors

    def error(self, problem: str, remedy: str) -> AlgorithmError:
        """An error at the user's line; the first one stands even if the function catches it."""
        failure = AlgorithmError(place_of(sys._getframe(1)), problem, remedy)
        self.failed = self.failed or failure
        return failure

    def closed(self) -> AlgorithmError:
        return self.error("uses a after the function of the algorithm has returned", "trace within the function")

    def number(self, value: Any, what: str, where: str) -> int:
        try:
            if isinstance(value, bool):
                raise TypeError
            return whole(value)
        except TypeError:
            raise self.error(f"{where}: {shown(value)} is not {what}", "write a whole number") from None

    # -- buffers

    def input_of(self, rank: int) -> tuple[int, int]:
        return self._span(_INPUT, rank * self.promise.gathers, self.promise.input_chunks(self.ranks, self.chunks))

    def output_of(self, rank: int) -> tuple[int, int]:
        return self._span(_OUTPUT, rank * self.promise.scatters, self.promise.output_chunks(self.ranks, self.chunks))

    def _span(self, buffer: int, shards_before: int, size: int) -> tuple[int, int]:
        return (self.home * SPAN + shards_before * size if self.in_place else buffer * SPAN), size

    def switch(self, name: object) -> tuple[int, str]:
        """Position and name of a switch, which takes part from now on."""
        name = f"s{name}" if type(name) is int and name >= 0 else name
        if not isinstance(name, str) or not name:
            raise self.error(
                f"a.switch({shown(name)}) is no switch", 'write a name, e.g. a.switch("leaf0"), or a number'
            )
        if name not in self.actors:
            if len(self.cells) >= MAX_POSITIONS:
                raise self.error(f"has more than {MAX_POSITIONS} ranks and switches", "use fewer")
            self.actors[name] = len(self.cells)
            self.cells.append({})
        return self.actors[name], name

    def scratch_of(self, name: object, label: str) -> tuple[int, int]:
        if not isinstance(name, str):
            raise self.error(f"{label}[{shown(name)}]: scratch buffers have names", f'write {label}["name"]')
        size = MAX_SCRATCH
        if self.declared is not None:
            if name not in self.declared:
                raise self.error(
                    f'{label}["{name}"] is not declared', f"declared: {', '.join(self.declared) or 'none'}"
                )
            size = whole(self.declared[name])
        return (_SCRATCH + self.names.setdefault(name, len(self.names))) * SPAN, size

    def unnamed(self) -> tuple[int, int]:
        """First cell and size of the scratch of a switch, which needs no name."""
        return (_SCRATCH + self.names.setdefault("", len(self.names))) * SPAN, MAX_SCRATCH

    def begin(self, rank: int, key: int) -> list[int] | None:
        """A cell that no step has written: its input by the collective, or None."""
        first, size = self.input_of(rank)
        chunk, inputs = key - first, None if self.contract is None else self.contract.inputs
        undefined = self.promise.from_root and rank != self.root
        if not 0 <= chunk < size or undefined or (inputs is not None and (rank, chunk) not in inputs):
            return None
        cell = self.cells[rank][key] = [0, NONE, chunk + rank * size * self.promise.gathers]
        return cell

    # -- steps

    def current(self, chunks, rank: int, key: int) -> list[int]:
        """The cell of a reference; refused if it is empty, or was overwritten after the reference was made."""
        cell = self.cells[rank].get(key) or self.begin(rank, key)
        if cell is not None and cell[0] <= chunks._made:
            return cell
        buffer = chunks._buffer
        name = buffer._named(key - buffer._base, 1)
        if cell is None:
            raise self.error(
                f"{name} holds nothing yet: no step before this one writes it, and it is no input of {self.collective}",
                "write it first, or read another",
            )
        line = self.rows[(cell[0] - 1) * _COLUMNS + _LINE]
        problem = f"{name} was overwritten (line {line}) after this reference to it was made"
        raise self.error(problem, f"write {name} here")

    def fresh(self, chunks) -> None:
        for key in range(chunks._key, chunks._key + chunks._count):
            self.current(chunks, chunks._buffer._rank, key)

    def step(self, target, source, reduce: bool, caller: FrameType) -> None:
        """One copy (`target` := `source`) or reduction (`target` += `source`), local or between two ranks."""
        if not self.open:
            raise self.closed()
        count = target._count
        if source._count != count:
            raise self.error(
                f"{target!r} and {source!r} differ in length: {count} and {source._count} chunks", "make them alike"
            )
        to, of = target._buffer._rank, source._buffer._rank
        into, start = target._key, source._key
        line = caller.f_lineno
        if caller.f_code.co_filename is not self.file:
            # The line of the algorithm's own file that it comes from, through helpers elsewhere.
            lines = (line for frame, line in walk_stack(caller) if frame.f_code.co_filename == self.file)
            line = next(lines, self.first_line)
        serial = self.steps + 1
        if serial > MAX_STEPS:
            raise self.error(f"takes more than {MAX_STEPS} steps", "use fewer ranks or chunks")
        reader = self.nodes
        if to != of:
            kind = _SEND_REDUCE if reduce else _SEND_COPY
            writer = reader + 1 + reduce
        else:
            kind = _REDUCE if reduce else _COPY
            writer = reader
            if abs(into - start) < count:
                verb = "is added to" if reduce else "is copied onto"
                raise self.error(f"{source!r} {verb} {target!r}, which overlaps it", "go by way of a scratch buffer")
        edges, origins = self.edges, []
        for key in range(start, start + count):
            cell = self.current(source, of, key)
            if cell[1] >= 0:
                edges.extend((reader, cell[1]))
            cell.append(reader)
            origins.append(cell[2])
        cells = self.cells[to]
        for key, origin in zip(range(into, into + count), origins, strict=True):
            cell = cells.get(key)
            if reduce:
                cell = self.current(target, to, key)
                origin = cell[2]
            elif cell is None:
                cells[key] = [serial, writer, origin]
                continue
            if len(cell) > 3:
                # They have waited for the last write themselves.
                for node in cell[3:]:
                    edges.extend((writer, node))
            elif cell[1] >= 0:
                edges.extend((writer, cell[1]))
            cell[:] = (serial, writer, origin)
        # Bytes follow the place of the data in the full buffer, as long as it has one place.
        origin = origins[0]
        if count > 1 and origins != list(range(origin, origin + count)):
            origin = 0
        self.rows.extend((kind, of, to, start, into, count, origin, line, self.channel))
        self.steps = serial
        self.nodes = writer + 1

    # -- layout

    def finish(self, name: str, protocol: str) -> Algorithm:
        rows = np.frombuffer(self.rows, dtype=np.int64).reshape(-1, _COLUMNS)
        kind, of, to, start, into, count, origin, line, channel = rows.T
        reduces = (kind == _SEND_REDUCE) | (kind == _REDUCE)
        remote = kind <= _SEND_REDUCE
        owner, part = ranges(_NODES[kind])
        # Parts of a message: 0 sends, 1 receives, 2 adds.
        sends, receives = remote[owner] & (part == 0), remote[owner] & (part == 1)
        local = ~sends & ~receives
        writes = local | receives & ~reduces[owner]
        reads = ~receives
        rank = np.where(sends, of[owner], to[owner])
        source, target = self._placed(of, start, to, into, count)
        # Received data is added to the cells of the target.
        added = local & remote[owner]
        read = tuple(np.where(added, t[owner], s[owner]) for s, t in zip(source, target, strict=True))
        positions = len(self.cells)
        draft = Draft(positions, self.chunks)

        def at(where: np.ndarray, values: np.ndarray) -> np.ndarray:
            return np.where(where, values, MISSING)

        handles = draft.extend(
            self.nodes,
            {
                "type": np.select([sends, receives], [NodeType.COMM_SEND, NodeType.COMM_RECV], NodeType.COMP),
                "rank": rank,
                "order": np.arange(self.nodes),
                "payload": np.where(added, np.arange(self.nodes) - 1, NONE),
                "comm_dst": at(sends, to[owner]),
                "comm_src": at(receives, of[owner]),
                "comm_tag": at(~local, numbered(of * positions + to)[owner]),
                "msg_chunk_idx": origin[owner],
                "msg_chunk_cnt": count[owner],
                "comp_op": at(local, np.where(reduces[owner], CompOp.REDUCE, CompOp.COPY)),
                "src_buf": at(reads, read[0]),
                "src_off": at(reads, read[1]),
                "dst_buf": at(writes, target[0][owner]),
                "dst_off": at(writes, target[1][owner]),
                "channel": at(~local & (channel[owner] != NONE), channel[owner]),
                "source_line": line[owner],
            },
        )
        edges = np.frombuffer(self.edges, dtype=np.int64).reshape(-1, 2)
        draft.depend(edges[:, 0], edges[:, 1])
        draft.depend(handles[added], handles[added] - 1)
        stated = {"root": self.root, "in_place": self.in_place, "contract": self.contract, "protocol": protocol}
        return finish(draft, name, self.collective, source=name_of(self.file), actors=tuple(self.actors), **stated)

    def _placed(self, of, start, to, into, count) -> list[tuple[np.ndarray, np.ndarray]]:
        """Buffers and offsets of the cells that steps read (`start` of rank `of`) and write (`into` of rank `to`). A
        rank's scratch buffers lie one after the other, in the order in which they were named first, each as long as it
        was used."""
        sides = [(rank, *np.divmod(key, SPAN)) for rank, key in ((of, start), (to, into))]
        sizes = np.zeros((len(self.cells), len(self.names) + 1), dtype=np.int64)
        for rank, buffer, offset in sides:
            scratch = buffer >= _SCRATCH
            np.maximum.at(sizes, (rank[scratch], buffer[scratch] - _SCRATCH), (offset + count)[scratch])
        begin = np.cumsum(sizes, axis=1) - sizes
        placed = []
        for rank, buffer, offset in sides:
            scratch = buffer >= _SCRATCH
            shift = np.where(scratch, begin[rank, np.where(scratch, buffer - _SCRATCH, 0)], 0)
            placed.append((np.minimum(buffer + Buffer.INPUT, Buffer.SCRATCH), offset + shift))
        return placed


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"
