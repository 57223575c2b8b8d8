"""Programs: one rank's trace with bytes and durations bound, and how sends and receives of programs match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from astrasim_py.collectives.chunks import share
from astrasim_py.core.rows import numbered
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation

COMPUTE, SEND, RECV, COLLECTIVE, MEMORY, INSTANT = range(6)
KIND_NAMES = ("compute", "send", "recv", "collective", "memory", "metadata")
#: Names of nodes that a profile adds to a program, by their "row".
LAUNCH_ROW, COPY_ROW = -1, -2
ADDED = {LAUNCH_ROW: "launch", COPY_ROW: "copy"}
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


@dataclass(frozen=True, slots=True, eq=False)
class ProgramColumns:
    """The columns of several programs, one after the other; each as in `RankProgram`."""

    rows: np.ndarray
    node_id: np.ndarray
    nbytes: np.ndarray
    duration: np.ndarray
    peer: np.ndarray
    tag: np.ndarray
    slot: np.ndarray
    instance: np.ndarray


class PlainPrograms(Sequence[RankProgram]):
    """Many programs without counters and steps, in columns; each is made on demand, then cached.

    `bounds`: int64[n + 1], where the nodes of each begin; `structures`: of each, a `Repeated`.
    """

    def __init__(self, columns: ProgramColumns, bounds: np.ndarray, structures: Sequence[Structure]) -> None:
        self.columns, self.bounds, self.structures = columns, bounds, structures
        self._made: dict[int, RankProgram] = {}

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[p] for p in range(len(self))[index])
        position = range(len(self))[index]
        if position not in self._made:
            part = slice(*self.bounds[position : position + 2].tolist())
            own = {name: getattr(self.columns, name)[part] for name in ProgramColumns.__slots__}
            self._made[position] = RankProgram(structure=self.structures[position], **own)
        return self._made[position]


def rotate(rotation: Rotation, peers: np.ndarray, by: int) -> np.ndarray:
    """int64[n]: peers rotated by a rank; -1 stays."""
    return np.where(peers >= 0, rotation.shift(np.maximum(peers, 0).astype(np.int64), by), -1)


class RotatedPrograms(Sequence[RankProgram]):
    """One program per member, made from the first one on demand, then cached.

    `algorithm`: a rotation-symmetric one. `base`: program of its rank 0. `size`: full buffer, bytes. `verbatim`: sizes
    are used as written (`Algorithm.message_bytes`). `parts`: of every message. `uniform_bytes`: whether all members
    send, receive and reduce the first one's bytes, node by node.
    """

    def __init__(self, algorithm: Algorithm, base: RankProgram, size: int, verbatim: bool, parts: int = 1) -> None:
        self.algorithm, self.base, self.size, self.verbatim = algorithm, base, size, verbatim
        self.parts = np.where(base.peer >= 0, parts, 1)
        self.uniform_bytes = verbatim or algorithm.same_bytes(size)
        self._made: dict[int, RankProgram] = {0: base}

    @property
    def rotation(self) -> Rotation:
        return self.algorithm.rotation

    def __len__(self) -> int:
        return self.algorithm.ranks

    def __getitem__(self, index):
        if isinstance(index, slice):
            return tuple(self[p] for p in range(len(self))[index])
        position = range(len(self))[index]
        if position not in self._made:
            self._made[position] = replace(
                self.base,
                peer=rotate(self.rotation, self.base.peer, position).astype(np.int32),
                nbytes=self.nbytes_matrix([position])[0],
            )
        return self._made[position]

    def nbytes_matrix(self, positions: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64[k, n]: bytes of the nodes of several members."""
        if self.uniform_bytes:
            return np.broadcast_to(self.base.nbytes, (len(positions), len(self.base)))
        made = self.algorithm.bytes_of_ranks(positions, self.size, verbatim=self.verbatim)
        whole = np.where(self.base.rows < 0, 0, made[:, np.maximum(self.base.rows, 0)])
        return whole if self.parts.max(initial=1) == 1 else share(whole, numbered(self.base.rows), self.parts)

    def sizes(self) -> np.ndarray:
        """int64: a superset of the message sizes."""
        sends = self.base.structure.kind == SEND
        sizes = np.unique(self.base.nbytes[sends])
        if self.uniform_bytes:
            return sizes
        # Chunks [i, i + c) of a buffer of S bytes in T chunks are ⌊cS/T⌋ bytes or one more, for any i.
        counts = np.unique(self.algorithm.first.column("msg_chunk_cnt")[self.base.rows[sends]])
        pieces = self.algorithm.chunks * int(self.parts.max(initial=1))
        least = [int(c) * self.size // pieces for c in counts.tolist() if c >= 0]
        return np.unique(np.concatenate([sizes, np.array([b + more for b in least for more in (0, 1)], np.int64)]))


@dataclass(frozen=True, slots=True, eq=False)
class Matching(Sequence[np.ndarray]):
    """Match keys of sends and receives: of exactly one message of the communicator; or, negative, ``~channel``.

    The k-th send posted on a channel meets the k-th receive posted there. As a sequence: int64[n] per member, by node.
    """

    # By position; of a folded run only one.
    nodes: np.ndarray | Mapping[int, int]
    begin: np.ndarray | Mapping[int, int]  # of its part of the arrays below
    end: np.ndarray | Mapping[int, int]
    at: np.ndarray  # int64[m]: sends and receives …
    keys: np.ndarray  # int64[m]: … their keys …
    received: np.ndarray  # bool[m]: … and whether they are receives

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, position):
        every, part = np.zeros(self.nodes[position], dtype=np.int64), slice(self.begin[position], self.end[position])
        every[self.at[part]] = self.keys[part]
        return every


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
