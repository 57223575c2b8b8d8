"""Programs: one rank's trace with bytes and durations bound, and how sends and receives of programs match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from astrasim_py.collectives.chunks import share
from astrasim_py.core.rows import distinct, joined, numbered, pointers, ranges
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation
from astrasim_py.system.repeated import Repeated

COMPUTE, SEND, RECV, COLLECTIVE, MEMORY, INSTANT, SOFTWARE = range(7)
KIND_NAMES = ("compute", "send", "recv", "collective", "memory", "metadata", "software")
#: Names of nodes that a profile adds to a program, by their "row".
LAUNCH_ROW, COPY_ROW, STORE_ROW = -1, -2, -3
ADDED = {LAUNCH_ROW: "launch", COPY_ROW: "copy", STORE_ROW: "store"}
NO_SLOT, CPU_SLOT, COMPUTE_SLOT, COMM_SLOT = range(4)

#: Under ``event_order: scheduled`` chunks are dispatched after all calls, in the order of arrival: their first number.
AFTER_CALLS = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """A dependency graph over nodes 0..n-1 in ascending node id."""

    key: bytes
    kind: np.ndarray  # int8[n]
    need: np.ndarray  # int32[n]: parents not yet done
    succ_ptr: np.ndarray  # int64[n+1]
    succ: np.ndarray  # int32[m], ascending within a node, or with `buckets` in the order of release
    roots: np.ndarray  # int32: nodes without parents; with `buckets` in the order of issue
    buckets: int = 0  # of the hash set that orders nodes ready together, once it had the roots; 0: they go by id

    @property
    def messages(self) -> int:
        """Messages that it sends."""
        return int(np.count_nonzero(self.kind == SEND))


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Counters of one rank's program, and its detached sends. Arrays are by node.

    A node that waits for a count has one more in `Structure.need`; it is taken when the count is reached.
    """

    number: int  # of counters
    counts: np.ndarray  # int32[n]: counter in which its completion counts, -1: in none
    of: np.ndarray  # int32[n]: counter that it waits for, -1: for none
    k: np.ndarray  # int64[n]: completions that it waits for …
    start: np.ndarray  # int32[n]: … counted after the completion of this node; -1: from the start
    detached: np.ndarray  # bool[n]: a send that the block does not wait for


@dataclass(frozen=True, slots=True, eq=False)
class LinkCosts:
    """Latency and rate of links for the messages of a protocol."""

    latency_ps: np.ndarray  # int64[links]
    rate_class: np.ndarray  # int64[links]: index into …
    rates: tuple[Fraction, ...]  # … bytes per second


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """Costs of steps of thread blocks under a protocol. Times in ps, rates in bytes per second."""

    protocol: str
    launch: int  # of a call
    step: int  # of a step, before its bytes
    rate: Fraction  # of one block, for a step of any kind
    links: LinkCosts  # to messages
    slots: int  # messages that a connection holds
    slice: int  # bytes of each chunk in a pass
    waits_half: bool  # whether a message's head leaves after half of its step; else as the step begins


@dataclass(frozen=True, slots=True, eq=False)
class BlockSteps:
    """A rank's program as steps of thread blocks, one node each; fused steps are nodes of the kind of their send.

    Arrays are by node, -1 for none. Messages are numbered over all ranks, those of a connection one after the other.
    """

    costs: BlockCosts
    messages: int  # of all ranks
    takes: np.ndarray  # int64[n]: received message; the node's end frees its slot
    gives: np.ndarray  # int64[n]: sent message
    needs: np.ndarray  # int64[n]: message with the slot that must be free before


@dataclass(frozen=True, slots=True, eq=False)
class TileUses:
    """Uses of collectives in tiles by nodes of a workload.

    `rows`: int64[k, 6]: 0 consumes or 1 produces, the node, the collective's node, the tile, the number of tiles,
    whether tiles count in the order of the collective.
    """

    rows: np.ndarray


#: What opens a gate besides the end of a node of a call: the collective begins; the node of the workload itself ends.
BEGINS, ENDS = -2, -1


@dataclass(frozen=True, slots=True, eq=False)
class TileGates:
    """The gates of one rank, each of which holds a node until it is open; in `Structure.need` it counts as a parent if
    it holds a node of the workload.

    `uses`: rows of `TileUses`, with tiles as they lie in the buffer. `count`: int64[g]: triggers that open it;
    `collective`: int64[g]: whose call it holds a node of, -1: of the workload; `node`: int64[g]: the node. `triggers`:
    int64[t, 3], ascending: node of the workload, the node of its call that ends (or `BEGINS`, `ENDS`), the gate. A gate
    may have more triggers than it counts.
    """

    uses: np.ndarray
    count: np.ndarray
    collective: np.ndarray
    node: np.ndarray
    triggers: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """One rank's program with everything bound. Arrays are by node, in ascending node id."""

    rows: np.ndarray  # int64[n]: row of the trace; one of `ADDED` of a node that a profile adds
    node_id: np.ndarray  # uint64[n]
    structure: Structure
    nbytes: np.ndarray  # int64[n]: of sends, receives and memory requests
    duration: np.ndarray  # int64[n], ps: of compute and memory nodes
    peer: np.ndarray  # int32[n]: position in the group (algorithm) or rank in the job (workload); -1 elsewhere
    tag: np.ndarray  # int64[n]
    slot: np.ndarray  # int8[n]: resource that a node holds while in flight
    instance: np.ndarray  # int32[n]: instance that a collective node starts; -1 elsewhere
    counters: Counters | None = None  # None where no node counts, waits for a count or is detached
    blocks: BlockSteps | None = None  # of a given program that is run by thread blocks
    tiles: TileUses | None = None  # of a workload

    def __len__(self) -> int:
        return len(self.node_id)


class ProgramTable:
    """Programs one after the other, their nodes in columns.

    `bounds`: int64[k + 1], where the nodes of each begin; `structures`: of each. Where a table gives the columns, a
    program is made when it is asked for, then kept; where programs are given, a column is joined when it is asked for.
    """

    def __init__(
        self,
        bounds: np.ndarray,
        structures: Repeated[Structure],
        columns: Mapping[str, np.ndarray] | None = None,
        programs: Sequence[RankProgram] = (),
    ) -> None:
        self.bounds, self.structures = bounds, structures
        self._columns = {} if columns is None else columns
        self._programs = dict(enumerate(programs))

    @classmethod
    def of(cls, programs: Iterable[RankProgram]) -> ProgramTable:
        """The table of given programs."""
        programs = tuple(programs)
        structures = Repeated.of([program.structure for program in programs])
        return cls(pointers([len(program) for program in programs]), structures, programs=programs)

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, number: int) -> RankProgram:
        if number not in self._programs:
            part = slice(*self.bounds[number : number + 2].tolist())
            columns: dict[str, Any] = {name: column[part] for name, column in self._columns.items()}
            self._programs[number] = RankProgram(structure=self.structures[number], **columns)
        return self._programs[number]

    def __iter__(self) -> Iterator[RankProgram]:
        return map(self.__getitem__, range(len(self)))

    @property
    def plain(self) -> bool:
        """Whether no program has counters, steps of thread blocks or the order of a hash set."""
        # What is made of columns has none.
        programs = self._programs.values()
        return not any(program.counters or program.blocks or program.structure.buckets for program in programs)

    @property
    def counting(self) -> bool:
        """Whether any program has counters or detached sends."""
        return any(program.counters is not None for program in self._programs.values())

    def column(self, name: str) -> np.ndarray:
        """A column of all nodes, as in `RankProgram`."""
        if name in self._columns:
            return self._columns[name]
        return (
            getattr(self[0], name) if len(self) == 1 else joined([getattr(program, name) for program in self], np.int64)
        )

    @cached_property
    def kind(self) -> np.ndarray:
        """int8: kind of each node."""
        return self.of_structures(lambda structure: structure.kind)

    def of_structures(self, of: Callable[[Structure], np.ndarray]) -> np.ndarray:
        """A property of the nodes of structures, for all nodes."""
        values = [of(structure) for structure in self.structures.values]
        if len(self) == 1:
            return values[0]
        first = pointers([len(value) for value in values])
        owner, within = ranges(np.diff(self.bounds))
        return joined(values, np.int8)[first[self.structures.which][owner] + within]


def rotate(rotation: Rotation, peers: np.ndarray, by: int) -> np.ndarray:
    """int64[n]: peers rotated by a rank; -1 stays."""
    return np.where(peers >= 0, rotation.shift(np.maximum(peers, 0).astype(np.int64), by), -1)


@dataclass(frozen=True, slots=True, eq=False)
class MemberBytes:
    """Bytes of the members of a rotation, where a chunk of one may be a byte longer than that of another."""

    algorithm: Algorithm
    size: int  # full buffer, bytes
    parts: int  # of every message

    def matrix(self, base: RankProgram, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64[k, n]: bytes of the nodes of several members; `base`: program of the first one."""
        nbytes = self.algorithm.bytes_of_ranks(positions, self.size)
        total = np.where(base.rows < 0, 0, nbytes[:, np.maximum(base.rows, 0)])
        if self.parts == 1:
            return total
        return share(total, numbered(base.rows), np.where(base.peer >= 0, self.parts, 1))

    def sizes(self, base: RankProgram) -> np.ndarray:
        """int64: a superset of the sizes of messages."""
        # Chunks [i, i + c) of a buffer of S bytes in T chunks are ⌊cS/T⌋ bytes or one more, for any i; packets twice.
        total, twice = self.algorithm.chunks * self.parts, self.algorithm.first.has("packets")
        counts = np.unique(self.algorithm.first.column("msg_chunk_cnt")[base.rows[base.structure.kind == SEND]])
        scaled = [k * int(c) * self.size // total for c in counts.tolist() if c >= 0 for k in range(1, 2 + twice)]
        return np.array([max(nbytes + more, 0) for nbytes in scaled for more in range(-twice, 2 + twice)], np.int64)


class Programs:
    """The programs of several ranks, by position: which of the different ones each runs, and what differs there.

    Attributes
    ----------
    different : ProgramTable
    which : ndarray
        int64[n]: the program of each position.
    shifts : ndarray
        int64[n]: what is added to its peers there.
    rotation : Rotation or None
        In place of shifts, of one program for all: its peers are rotated by the position.
    member_bytes : MemberBytes or None
        Bytes of the members of a rotation that differ from the first one's.
    instances : Repeated or None
        Of workloads, int32 of each position: instance of each collective call, whose number its nodes hold.
    """

    def __init__(
        self,
        different: ProgramTable,
        which: np.ndarray | None = None,
        shifts: np.ndarray | None = None,
        *,
        rotation: Rotation | None = None,
        member_bytes: MemberBytes | None = None,
        instances: Repeated[np.ndarray] | None = None,
    ) -> None:
        self.different, self.rotation, self.member_bytes, self.instances = different, rotation, member_bytes, instances
        self.which = np.arange(len(different)) if which is None else which
        self.shifts = np.broadcast_to(np.int64(0), len(self.which)) if shifts is None else shifts
        self._programs: dict[tuple[int, int, int], RankProgram] = {}

    @classmethod
    def of(cls, programs: Iterable[RankProgram]) -> Programs:
        """One program after the other."""
        return cls(ProgramTable.of(programs))

    @classmethod
    def everywhere(cls, program: RankProgram, count: int, **others: Any) -> Programs:
        """The same program at so many positions; `others`: attributes."""
        return cls(ProgramTable.of([program]), np.broadcast_to(np.int64(0), count), **others)

    @classmethod
    def joined(cls, parts: Sequence[Programs]) -> Programs:
        """The programs of several workloads, one after the other."""
        if len(parts) == 1:
            return parts[0]
        first = pointers([len(part.different) for part in parts])
        groups = [part.instances for part in parts if part.instances is not None]
        begin = pointers([len(instances.values) for instances in groups])
        return cls(
            ProgramTable.of(chain.from_iterable(part.different for part in parts)),
            np.concatenate([part.which + low for part, low in zip(parts, first.tolist(), strict=False)]),
            np.concatenate([part.shifts for part in parts]),
            instances=Repeated(
                [*chain.from_iterable(instances.values for instances in groups)],
                np.concatenate([group.which + low for group, low in zip(groups, begin.tolist(), strict=False)]),
            ),
        )

    def with_different(self, programs: Iterable[RankProgram]) -> Programs:
        """The same with others in place of the different programs."""
        return Programs(
            ProgramTable.of(programs), self.which, self.shifts, rotation=self.rotation, member_bytes=self.member_bytes,
            instances=self.instances,
        )  # fmt: skip

    def part(self, begin: int, end: int) -> Programs:
        """Those of positions begin to end - 1, which are no rotation's."""
        rows, instances = slice(begin, end), self.instances
        if instances is not None:
            instances = Repeated(instances.values, instances.which[rows])
        return Programs(self.different, self.which[rows], self.shifts[rows], instances=instances)

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, position: int) -> RankProgram:
        call = -1 if self.instances is None else int(self.instances.which[position])
        turn = position if self.rotation is not None else int(self.shifts[position])
        key = int(self.which[position]), turn, call
        if key not in self._programs:
            self._programs[key] = self._at(position)
        return self._programs[key]

    def __iter__(self) -> Iterator[RankProgram]:
        return map(self.__getitem__, range(len(self)))

    def _at(self, position: int) -> RankProgram:
        program, changes = self.different[int(self.which[position])], dict[str, Any]()
        if self.shifts[position] or (self.rotation is not None and position):
            changes["peer"] = self.peers(position, program.peer).astype(np.int32)
        if self.member_bytes is not None and position:
            changes["nbytes"] = self.member_bytes.matrix(program, [position])[0]
        if self.instances is not None and len(calls_of := self.instances[position]):
            calls = program.structure.kind == COLLECTIVE
            changes["instance"] = np.where(calls, calls_of[program.instance], -1).astype(np.int32)
        return replace(program, **changes) if changes else program

    def peers(self, positions: int | np.ndarray, peers: np.ndarray) -> np.ndarray:
        """int64[n]: peers of different programs as they are at positions; -1 stays."""
        if self.rotation is None:
            moved = peers + self.shifts[positions]
        else:
            moved = self.rotation.shift(np.maximum(peers, 0).astype(np.int64), positions)
        return np.where(peers >= 0, moved, -1)

    @cached_property
    def shared(self) -> list[RankProgram]:
        """By position, its program as the different ones have it."""
        return [self.different[number] for number in self.which.tolist()]

    @cached_property
    def lengths(self) -> np.ndarray:
        """int64[n]: nodes of each position."""
        return np.diff(self.different.bounds)[self.which]

    @cached_property
    def alike(self) -> bool:
        """Whether all positions have the same program, peers and instances."""
        columns = [self.which, self.shifts, *([] if self.instances is None else [self.instances.which])]
        return self.rotation is None and not any(bool((column != column[:1]).any()) for column in columns)

    @property
    def messages(self) -> int:
        """Messages that all of them send."""
        sent = self.different.structures.column(lambda structure: structure.messages)
        return int(sent @ np.bincount(self.which, minlength=len(sent)))

    @property
    def blocks(self) -> BlockSteps | None:
        """Steps of thread blocks, if they run by them: those of the first one."""
        return self.different[0].blocks if len(self.different) else None

    def nbytes_matrix(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64[k, n]: bytes of the nodes of several members of a rotation."""
        base = self.different[0]
        if self.member_bytes is None:
            return np.broadcast_to(base.nbytes, (len(positions), len(base)))
        return self.member_bytes.matrix(base, positions)

    def sizes(self) -> np.ndarray:
        """int64: a superset of the sizes of messages."""
        sizes = distinct(self.different.column("nbytes")[self.different.kind == SEND])
        return sizes if self.member_bytes is None else np.append(sizes, self.member_bytes.sizes(self.different[0]))

    def at_all(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the different programs, ascending, wherever they run: int64[m] positions, and places in `rows`."""
        first = np.searchsorted(rows, self.different.bounds)
        position, within = ranges(np.diff(first)[self.which])
        return position, first[self.which][position] + within


@dataclass(frozen=True, slots=True, eq=False)
class Connections:
    """The connections of one algorithm, and the costs of their messages.

    By member and node: `connection`, the number of the connection of a send, -1 for none. Under the MSCCL link model
    messages are numbered connection after connection, first to last: `needs`, the message whose slot a send needs;
    `frees`, the message whose slot a node frees, when it is accepted (a send) or completes (any other); -1 for none.
    """

    protocol: str
    pace: Fraction | None  # bytes per second of a connection
    connection: tuple[np.ndarray, ...]  # int64[n] per member; of a rotated call only its first one's …
    of_member: int = 0  # … with this number of connections, else 0
    links: LinkCosts | None = None  # of a profile's protocol
    post_ps: int = 0  # least time between messages that a rank posts on a channel …
    posts: tuple[np.ndarray, ...] = ()  # … like `connection`: the poster of each send, numbered after the connections
    latency_ps: int = 0  # added to every hop
    slots: int = 0
    messages: int = 0
    needs: tuple[np.ndarray, ...] = ()  # int64[n] per member
    frees: tuple[np.ndarray, ...] = ()  # int64[n] per member

    def of_sends(self, position: int) -> np.ndarray:
        """int64[n]: `connection` of a member."""
        return self.connection[0 if self.of_member else position]

    def posts_of(self, position: int) -> np.ndarray:
        """int64[n]: `posts` of a member; without any, its connections."""
        return self.posts[0 if self.of_member else position] if self.posts else self.of_sends(position)

    @property
    def interleaved(self) -> bool:
        """Whether paced messages use links in small portions during their whole pace."""
        return self.links is not None and self.pace is not None
