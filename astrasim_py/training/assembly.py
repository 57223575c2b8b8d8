"""Traces of repeated blocks of nodes: each block is written once, and its copies are made with numpy.

Nodes of one *stream* of a rank run one after the other in the order of the trace; other dependencies are written out. A
node takes a micro-batch from its block's copy: in its name, its column and its tag.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astrasim_py.chakra.graph import pointers
from astrasim_py.chakra.schema import COLLECTIVE_CODES, MISSING, SOFTWARE_TIME, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.workload.tiles import TILE_COLUMNS

#: A number of a node, or an int64 array of one by micro-batch.
Amount = int | np.ndarray

#: Stream of computation and of its dependencies.
COMPUTE = "compute"
#: Stream of the host's launches.
HOST = "host"
#: `slot_kind` of nodes that hold nothing.
NO_SLOT = 0
_PS_PER_US = 10**6
_COLUMNS = (
    *("comm_type", "comm_size", "coll_size", "comm_src", "comm_dst", "num_ops", "tensor_size", "duration_ps"),
    *("layer", "phase", "slot_kind", *TILE_COLUMNS),
)


@dataclass(slots=True, eq=False)
class Block:
    """Nodes that a trace repeats for several micro-batches.

    `needs` and `gives` link nodes of different blocks by keys; only blocks that a trace has once may give.
    """

    rows: list[dict] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)  # (node, one that must be done before)
    needs: list[tuple[int, Hashable]] = field(default_factory=list)
    gives: dict[Hashable, int] = field(default_factory=dict)

    def add(
        self,
        kind: NodeType,
        name: str,
        *,
        stream: str | None = None,
        marks: str | None = None,
        after: Iterable[int] = (),
        behind: Sequence[str] = (),
        as_of: int | None = None,
        lane: int = 0,
        tag: tuple[int, int] | None = None,
        **columns: Any,
    ) -> int:
        """Add a node and return its row.

        `stream`: the node waits for the one before it in this stream. `marks`: stream that counts the node as one of
        its own for `behind`, though it waits for nothing there. `after`: rows of this block that must be done before.
        `behind`: streams whose last node before this one, in the whole trace, must be done before. `as_of`: row of this
        block before which `behind` looks, in place of the node's own. `lane`: which of the micro-batches of a copy it
        belongs to. `tag`: message tag of micro-batch 0, and what each further one adds. `columns`: integer columns of
        the trace, each an int or an int64 array by micro-batch; `consumes` and `produces` are rows of this block; and
        `group`, a role.
        """
        row = len(self.rows)
        row_keys = {"type": int(kind), "name": name, "stream": stream, "marks": marks, "lane": lane, "tag": tag}
        back = 0 if as_of is None else row - as_of
        self.rows.append(row_keys | {"behind": tuple(behind), "back": back} | columns)
        self.edges += [(row, before) for before in after]
        return row

    def compute(self, name: str, *, flops: Amount, nbytes: Amount, time_ps: Amount | None, **others: Any) -> int:
        """Add a computation in the compute stream, unless `stream` says otherwise."""
        others = {"stream": COMPUTE, "num_ops": flops, "tensor_size": nbytes} | others
        if time_ps is not None:
            others["duration_ps"] = time_ps
        return self.add(NodeType.COMP, name, **others)

    def wait(self, name: str, time_ps: int, **others: Any) -> int:
        """Add time that software takes; it holds nothing."""
        others = {"stream": None, "slot_kind": SOFTWARE_TIME} | others
        return self.compute(name, flops=0, nbytes=0, time_ps=time_ps, **others)

    def mark(self, name: str, **others: Any) -> int:
        """Add a node of no time that holds nothing."""
        return self.compute(name, flops=0, nbytes=0, time_ps=0, **{"stream": None, "slot_kind": NO_SLOT} | others)

    def beside(self, row: int, name: str, time_ps: int, **others: Any) -> int:
        """Add time that software takes, after what the node of a row waits for."""
        node = self.rows[row]
        behind = (*([node["stream"]] if node["stream"] else ()), *node["behind"])
        after = [before for child, before in self.edges if child == row]
        where = {"after": after, "behind": behind, "as_of": row - node["back"], "lane": node["lane"]}
        return self.wait(name, time_ps, **where | others)

    def collective(self, name: str, kind: str, size: Amount, group: str | None, members: int, **others: Any) -> int:
        """Add a collective of `size` bytes, the full buffer, on a role's group of `members` ranks; None: on all."""
        others |= {} if group is None else {"group": group}
        size_of = -(-size // members) if kind == "all_gather" else size
        return self.add(
            NodeType.COMM_COLL, name, comm_type=COLLECTIVE_CODES[kind], comm_size=size_of, coll_size=size, **others
        )

    def send(self, name: str, size: Amount, me: int, peer: int, **others: Any) -> int:
        """Add a message to another rank; nothing in a stream waits for it."""
        return self.add(NodeType.COMM_SEND, name, comm_size=size, comm_src=me, comm_dst=peer, **others)

    def receive(self, name: str, size: Amount, me: int, peer: int, **others: Any) -> int:
        """Add the receipt of a message from another rank."""
        return self.add(NodeType.COMM_RECV, name, comm_size=size, comm_src=peer, comm_dst=me, **others)


def assemble(program: Sequence[tuple[Block, tuple[int, ...]]], rank: int | None = None) -> ExecutionTrace:
    """The trace of copies of blocks, one after the other.

    `program`: each copy with the micro-batch of each lane; -1 for none. `rank`: of the trace, for messages.
    """
    blocks = list(dict.fromkeys(block for block, _ in program))
    number = {block: index for index, block in enumerate(blocks)}
    which = np.array([number[block] for block, _ in program], dtype=np.int64)
    sizes = np.array([len(block.rows) for block in blocks], dtype=np.int64)
    starts = np.cumsum([0, *sizes])  # of each block among the rows of all blocks
    begins = np.cumsum([0, *sizes[which]])  # of each copy in the trace
    n = int(begins[-1])
    copy = np.repeat(np.arange(len(program)), sizes[which])
    source = np.arange(n) - begins[copy] + starts[which[copy]]
    rows = [row for block in blocks for row in block.rows]

    def gathered(values: Iterable) -> np.ndarray:
        return np.fromiter(values, np.int64, len(rows))[source]

    lanes = np.array([(micro + micro[:1])[:2] for _, micro in program], dtype=np.int64).reshape(-1, 2)
    micro = lanes[copy, gathered(row["lane"] for row in rows)]
    columns = {name: _column([row.get(name, MISSING) for row in rows], source, micro) for name in _COLUMNS}
    for name in ("consumes", "produces"):  # rows of the block
        columns[name] = np.where(columns[name] == MISSING, MISSING, columns[name] + begins[copy])
    columns["micro_batch"] = np.where(micro < 0, MISSING, micro)
    tags = [row["tag"] or (MISSING, 0) for row in rows]
    columns["comm_tag"] = gathered(tag for tag, _ in tags) + gathered(step for _, step in tags) * np.maximum(micro, 0)
    groups = list(dict.fromkeys(row["group"] for row in rows if "group" in row))
    codes = gathered(groups.index(row["group"]) if "group" in row else -1 for row in rows)
    parents = _edges(program, which, begins, rows, source)
    child, parent = np.divmod(parents, max(n, 1))
    names = [row["name"] for row in rows]
    return ExecutionTrace.from_columns(
        node_id=np.arange(n, dtype=np.uint64),
        type=gathered(row["type"] for row in rows).astype(np.int8),
        data_deps=Csr(pointers(child, n), parent.astype(np.uint64)),
        duration_micros=-(-np.maximum(columns["duration_ps"], 0) // _PS_PER_US),
        names=[
            names[s] if k < 0 else f"{names[s]} mb{k}" for s, k in zip(source.tolist(), micro.tolist(), strict=True)
        ],
        pg_name=(codes.astype(np.int32), tuple(groups)) if groups else None,
        is_cpu_op=0,
        rank=rank,
        **columns,
    )


def _column(values: list, source: np.ndarray, micro: np.ndarray) -> np.ndarray:
    """A column of the trace, given its value in each row of the blocks: an int, or an array by micro-batch."""
    arrays = [place for place, value in enumerate(values) if isinstance(value, np.ndarray)]
    column = np.array([0 if isinstance(value, np.ndarray) else value for value in values], dtype=np.int64)[source]
    if arrays:
        table = np.zeros((len(arrays), max(len(values[place]) for place in arrays)), dtype=np.int64)
        index = np.full(len(values), -1)
        for number, place in enumerate(arrays):
            table[number, : len(values[place])] = values[place]
            index[place] = number
        varying = np.flatnonzero(index[source] >= 0)
        column[varying] = table[index[source[varying]], micro[varying]]
    return column


def _edges(program, which, begins, rows, source) -> np.ndarray:
    """Dependencies as numbers child * n + parent, ascending, each once."""
    n = len(source)
    places = np.arange(n)
    looks = places - np.array([row["back"] for row in rows], dtype=np.int64)[source]
    keys = []
    behind = [row["behind"] for row in rows]
    for stream in dict.fromkeys([*(row["stream"] for row in rows), *(name for names in behind for name in names)]):
        if stream is None:
            continue
        chained = np.array([row["stream"] == stream for row in rows])[source]
        member = chained | np.array([row["marks"] == stream for row in rows])[source]
        #: Last member before each place.
        last = np.concatenate(([-1], np.maximum.accumulate(np.where(member, places, -1))[:-1]))
        waits = np.array([stream in names for names in behind])[source]
        for nodes, before in ((np.flatnonzero(chained), last), (np.flatnonzero(waits), last[looks])):
            keys.append(nodes[before[nodes] >= 0] * n + before[nodes][before[nodes] >= 0])
    row_of = {
        key: begin + row
        for begin, (block, _) in zip(begins.tolist(), program, strict=False)
        for key, row in block.gives.items()
    }
    for index, block in enumerate(dict.fromkeys(block for block, _ in program)):
        begin_of = begins[:-1][which == index]
        pairs = np.array(block.edges, dtype=np.int64).reshape(-1, 2)
        keys.append(((begin_of[:, None] + pairs[:, 0]) * n + begin_of[:, None] + pairs[:, 1]).ravel())
        keys += [(begin_of + row) * n + row_of[key] for row, key in block.needs]
    return np.unique(np.concatenate(keys))
