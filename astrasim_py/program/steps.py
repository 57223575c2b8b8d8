"""`Steps`: a whole algorithm as one table of steps, which is what verification looks at.

One row is one step of a rank: a plain send, receive, copy or reduction, or a fused group of them, which holds its
incoming slot until its outgoing one is free.

`Layout` numbers the chunks of all ranks' buffers: cells. In place, input and output share cells: for all_reduce,
reduce, broadcast, all_to_all and custom collectives output k is input k; for all_gather and gather input k of rank r is
output r·per + k; for reduce_scatter and scatter output k of rank r is input r·per + k, with per = chunks / ranks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer, CompOp
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.table import Program, Unusable, named

#: Parent that never completes: a wait for something that is never published.
NEVER = -2
#: Steps that the search for a dependency between two receives of one channel may take, all channels together.
MAX_SEARCH = 20_000_000

#: Most cells that are executed, and as many more for every step; beyond them the verdict is unknown.
MAX_CELLS = 2**21
CELLS_PER_STEP = 64

#: Plain integers: members of an enumeration are slow to compare, a million times over.
_INPUT, _OUTPUT, _SCRATCH = int(Buffer.INPUT), int(Buffer.OUTPUT), int(Buffer.SCRATCH)
_NAMES = {_INPUT: "input", _OUTPUT: "output", _SCRATCH: "scratch"}

_SEND, _RECV, _REDUCE, _COPY = range(1, 5)


@dataclass(slots=True)
class Connection:
    """An ordered channel between two ranks, with the steps that send and receive on it, first to last. The k-th send
    meets the k-th receive. `sends` and `receives` differ in length where the program is ill-formed."""

    source: int
    target: int
    channel: int
    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Steps:
    """All steps of all ranks; every list has one entry per step g, ranks ascending.

    What a step does, in this order: it takes its data – what it receives (`takes`), else what step `payload` holds,
    else the cells it reads; if it `reduces`, it adds the cells it reads (to what it received or was handed), or, with
    neither, the cells it reads to the cells it writes; it writes them (`write_*`); it sends them (`gives`).

    `ranks`, `chunks`: n and T: chunks of the full buffer. `inputs`, `outputs`: declared chunks of the ranks' largest
    input and output buffer, 0 where nothing is declared: how far accesses may go beyond what the collective needs, and,
    of a custom collective, how much there is. `takes`, `gives`: connection that it receives from and sends to, -1 for
    none. `read_buf`, `read_off`, `write_buf`, `write_off`: cells it reads and writes, `Buffer` and offset in chunks; -1
    for none. `parents`: steps of the same rank that must be done before (the order of thread blocks and dependencies).
    """

    name: str
    collective: str
    ranks: int
    chunks: int
    rank: list[int]
    chain: list[int]  # thread block, numbered over all ranks; -1 for a step that belongs to none
    count: list[int]  # chunks that it moves
    takes: list[int]
    gives: list[int]
    reduces: list[bool]
    payload: list[int]  # step of the same rank whose data it takes, -1 for none
    read_buf: list[int]
    read_off: list[int]
    write_buf: list[int]
    write_off: list[int]
    parents: list[tuple[int, ...]]
    waits: list[tuple[int, ...]]  # those of `parents` that are explicit dependencies between thread blocks
    connections: list[Connection]
    place: Callable[[int], str]  # int -> str: a step for messages, such as ``rank 3 tb 1 step 4``
    line: list[int]  # line of `source` that a step was written in, 0 where unknown
    root: int | None = None
    in_place: bool = True
    contract: Contract | None = None  # of a custom collective, where it is known
    protocol: str = ""  # ``Simple``, ``LL``, ``LL128`` or empty
    inputs: int = 0
    outputs: int = 0
    source: str = ""
    actors: tuple[str, ...] = ()  # names of the switches that take part, behind the ranks
    makes: frozenset[int] = frozenset()  # steps of a workload that make the chunks of input which they write

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def positions(self) -> int:
        return self.ranks + len(self.actors)

    def position_name(self, position: int) -> str:
        return named(position, self.ranks, self.actors)

    def label(self, g: int) -> str:
        return f"{self.place(g)} (line {self.line[g]})" if self.line[g] else self.place(g)


# -------------------------------------------------------------------------------------------- from traces


def _actions(program: Program) -> np.ndarray:
    op, comp = program.column("comp_op"), program.type == NodeType.COMP
    kinds = [program.type == NodeType.COMM_SEND, program.type == NodeType.COMM_RECV]
    return np.select(
        [*kinds, comp & (op == CompOp.REDUCE), comp & (op == CompOp.COPY)], [_SEND, _RECV, _REDUCE, _COPY], 0
    )


def _fused_steps(program: Program, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Step of each node, and the first node of each step: nodes of one fused group make one step."""
    for kinds, word in (((_SEND,), "sends"), ((_RECV,), "receives"), ((_REDUCE, _COPY), "operations")):
        of_kind = program.step[np.isin(action, kinds)]
        twice = np.flatnonzero(np.bincount(of_kind, minlength=len(program)) > 1)
        if len(twice):
            raise Unusable(f"{program.node(int(twice[0]))} begins a fused step of several {word}")
    firsts, step = np.unique(program.step, return_inverse=True)
    return step, firsts


def steps_of(algorithm: Algorithm, program: Program | None = None) -> Steps:
    """The steps of an algorithm, or of another program in its place. A connection is (source, destination, channel);
    where nodes state no channel, each tag is a channel, since it is unknown which messages share a queue."""
    program = algorithm.program if program is None else program
    action = _actions(program)
    step, firsts = _fused_steps(program, action)
    size = len(firsts)
    count = program.column("msg_chunk_cnt")
    _check_payloads(program, action, count)

    moved = np.zeros(size, dtype=np.int64)
    moving = np.flatnonzero((action > 0) & (count != MISSING))
    moved[step[moving]] = count[moving]
    child, parent = np.divmod(np.unique(step[program.child] * size + step[program.parents]), max(size, 1))
    outer = child != parent
    child, parent = child[outer], parent[outer].tolist()
    parents = [tuple(parent[a:b]) for a, b in pairwise(np.searchsorted(child, np.arange(size + 1)).tolist())]
    payload = np.full(size, -1, dtype=np.int64)
    handed = np.flatnonzero(program.payload >= 0)
    handed = handed[step[handed] != step[program.payload[handed]]]
    payload[step[handed]] = step[program.payload[handed]]
    rank, block = program.rank[firsts], program.column("tb_id")[firsts]
    chain = np.unique(rank * 2**33 + np.where(block == MISSING, -1, block) + 1, return_inverse=True)[1]
    chains = np.where(block == MISSING, -1, chain).tolist()
    waits = [tuple(p for p in ps if chains[p] != c) if c >= 0 else () for ps, c in zip(parents, chains, strict=True)]
    takes, gives, connections = _connect(program, action, step, size)
    in_step, lines = (program.column(name)[firsts] for name in ("local_time_step", "source_line"))

    def place(g: int) -> str:
        if chains[g] >= 0 and in_step[g] != MISSING:
            return f"rank {int(rank[g])} tb {int(block[g])} step {int(in_step[g])}"
        return program.node(int(firsts[g]))

    reductions = np.zeros(size, dtype=bool)
    reductions[step[action == _REDUCE]] = True
    local = np.isin(action, (_REDUCE, _COPY))
    # A plain send reads cells; the send of a fused step forwards what the step holds.
    alone = np.bincount(step, minlength=size)[step] == 1
    cells: dict[str, list[int]] = {}
    for verb, side, rows in (
        ("read", "src", local | (action == _SEND) & alone),
        ("write", "dst", local | (action == _RECV)),
    ):
        columns = [program.column(f"{side}_{part}") for part in ("buf", "off")]
        rows = np.flatnonzero(rows & (columns[0] >= 0) & (columns[1] >= 0))
        for part, column in zip(("buf", "off"), columns, strict=True):
            values = np.full(size, -1, dtype=np.int64)
            values[step[rows]] = column[rows]
            cells[f"{verb}_{part}"] = values.tolist()
    names = ("name", "collective", "ranks", "chunks", "root", "in_place", "contract", "protocol", "source", "actors")
    stated: dict[str, Any] = {name: getattr(algorithm, name) for name in names}
    return Steps(
        **stated, inputs=program.inputs, outputs=program.outputs,
        rank=rank.tolist(), chain=chains, count=moved.tolist(), takes=takes, gives=gives, reduces=reductions.tolist(),
        payload=payload.tolist(), read_buf=cells["read_buf"], read_off=cells["read_off"], write_buf=cells["write_buf"],
        write_off=cells["write_off"], parents=parents, waits=waits, connections=connections, place=place,
        line=np.where(lines == MISSING, 0, lines).tolist(),
    )  # fmt: skip


def _check_payloads(program: Program, action: np.ndarray, count: np.ndarray) -> None:
    """A node that takes another's data must wait for it and move as much."""
    takers = np.flatnonzero(program.payload >= 0)
    givers = program.payload[takers]
    bad = np.flatnonzero((count[takers] != count[givers]) | (action[givers] < _RECV))
    if len(bad):
        taker, giver = int(takers[bad[0]]), int(givers[bad[0]])
        holds = int(count[giver]) if action[giver] >= _RECV else 0
        raise Unusable(
            f"{program.node(taker)} takes {int(count[taker])} chunks of node {int(program.node_id[giver])}, "
            f"which holds {holds}"
        )
    # Most takers name a parent: found at once for all.
    keys = takers * len(program) + givers
    direct = np.isin(keys, program.child * len(program) + program.parents)
    budget = [MAX_SEARCH]
    for i in np.flatnonzero(~direct).tolist():
        if not program.waits_for(int(takers[i]), int(givers[i]), budget):
            raise Unusable(
                f"{program.node(int(takers[i]))} takes data of node {int(program.node_id[givers[i]])}, "
                "but does not wait for it"
            )


def _connect(
    program: Program, action: np.ndarray, step: np.ndarray, size: int
) -> tuple[list[int], list[int], list[Connection]]:
    n = program.ranks
    tag, channel, count = (program.column(name) for name in ("comm_tag", "channel", "msg_chunk_cnt"))
    by_tag = channel == MISSING
    queue, pair = np.where(by_tag, tag, channel), np.zeros(len(program), dtype=np.int64)
    sides = []
    for kind, column in ((_SEND, "comm_dst"), (_RECV, "comm_src")):
        rows = np.flatnonzero(action == kind)
        ends = program.rank[rows], program.column(column)[rows]
        source, target = ends if kind == _SEND else ends[::-1]
        pair[rows] = source * n + target
        sides.append(rows[np.lexsort((program.place[rows], tag[rows], queue[rows], by_tag[rows], pair[rows]))])
    sends, recvs = sides
    if not all(np.array_equal(values[sends], values[recvs]) for values in (pair, tag)):
        _raise_unmatched(program, sends, recvs, pair, tag)
    odd = np.flatnonzero((queue[sends] != queue[recvs]) | (by_tag[sends] != by_tag[recvs]))
    if len(odd):
        s, r = int(sends[odd[0]]), int(recvs[odd[0]])
        raise Unusable(
            f"{program.node(s)} sends on channel {int(queue[s])}, but {program.node(r)} receives on {int(queue[r])}"
        )
    uneven = np.flatnonzero(count[sends] != count[recvs])
    if len(uneven):
        s, r = int(sends[uneven[0]]), int(recvs[uneven[0]])
        raise Unusable(
            f"{program.node(s)} sends {int(count[s])} chunks, but {program.node(r)} receives {int(count[r])}"
        )
    same = (pair[sends[1:]] == pair[sends[:-1]]) & (tag[sends[1:]] == tag[sends[:-1]])
    budget = [MAX_SEARCH]
    for word, rows in (("receives", recvs), ("sends", sends)):
        for i in np.flatnonzero(same).tolist():
            first, second = int(rows[i]), int(rows[i + 1])
            if not program.waits_for(second, first, budget):
                t = int(tag[first])
                label = "without a tag" if t == MISSING else f"with tag {t}"
                raise Unusable(
                    f"{program.node(first)} and node {int(program.node_id[second])} are {word} of one peer {label}, "
                    "and no dependency says which is first: their pairing depends on timing",
                    unknown=True,
                )
    keys = np.stack([pair[sends], queue[sends], by_tag[sends]])
    begins = np.ones(len(sends), dtype=bool)
    begins[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    takes, gives = np.full((2, size), -1, dtype=np.int64)
    gives[step[sends]] = takes[step[recvs]] = np.cumsum(begins) - 1
    sent, received = step[sends].tolist(), step[recvs].tolist()
    connections = []
    for a, b in pairwise([*np.flatnonzero(begins).tolist(), len(sends)]):
        queued = -1 if keys[2, a] else int(keys[1, a])
        connections.append(Connection(*divmod(int(keys[0, a]), n), queued, sent[a:b], received[a:b]))
    return takes.tolist(), gives.tolist(), connections


def _raise_unmatched(program: Program, sends, recvs, pair, tag) -> None:
    sent, received = (Counter(zip(pair[rows].tolist(), tag[rows].tolist(), strict=True)) for rows in (sends, recvs))
    keys = sorted(sent.keys() | received.keys())
    if program.actors:
        # A switch's send to a wrong peer is reported before the receive that then lacks it.
        keys.sort(key=lambda key: sent[key] <= received[key])
    for key in keys:
        if sent[key] == received[key]:
            continue
        rows = sends if sent[key] > received[key] else recvs
        last = int(rows[np.flatnonzero((pair[rows] == key[0]) & (tag[rows] == key[1]))[-1]])
        source, target = divmod(key[0], program.ranks)
        under = "" if key[1] == MISSING else f" (tag {key[1]})"
        if rows is sends:
            receiver = program.position_name(target)
            raise Unusable(f"{program.node(last)} sends to {receiver}{under}, which never receives it")
        sender = program.position_name(source)
        raise Unusable(f"{program.node(last)} waits for a message from {sender}{under} that is never sent")


class Layout:
    """Cells of a rank: [0, width) input (with the output, where they alias), then the output, then scratch; of a switch
    scratch only, at the same place. `stride`: cells of one rank. `per`: chunks of a shard. `reads`, `writes`: first
    cell of each step, over all ranks; -1 for none. Raises Unusable: more cells than are executed, or an access beyond a
    buffer."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.promise = steps, promise_of(steps.collective)
        self.per = self.promise.shard(steps.ranks, steps.chunks)
        width = max(steps.chunks, steps.inputs, steps.outputs)
        if steps.in_place and (self.promise.gathers or self.promise.scatters):
            # A shard's buffer begins at its place in the other, and may be declared larger than a shard.
            declared = steps.inputs if self.promise.gathers else steps.outputs
            width = max(width, (steps.ranks - 1) * self.per + declared)
        end = 0
        for buffers, offsets in ((steps.read_buf, steps.read_off), (steps.write_buf, steps.write_off)):
            for buffer, offset, count in zip(buffers, offsets, steps.count, strict=True):
                if buffer == _SCRATCH and offset + count > end:
                    end = offset + count
        self.output = 0 if steps.in_place else width
        self.scratch = self.output + width
        self.stride = self.scratch + end
        if self.stride * steps.positions > MAX_CELLS + CELLS_PER_STEP * len(steps):
            raise Unusable(f"its {self.stride * steps.positions} cells are too many to execute", unknown=True)
        self.reads = self._cells(steps.read_buf, steps.read_off)
        self.writes = self._cells(steps.write_buf, steps.write_off)

    def input_of(self, rank: int) -> tuple[int, int]:
        """First cell of a rank's input, and how many there are."""
        steps, promise = self.steps, self.promise
        many = (steps.collective == CUSTOM and steps.inputs) or promise.input_chunks(steps.ranks, steps.chunks)
        return rank * self.stride + rank * self.per * (promise.gathers and steps.in_place), many

    def output_of(self, rank: int) -> tuple[int, int]:
        """First cell of a rank's output, and how many there are."""
        steps, promise = self.steps, self.promise
        many = (steps.collective == CUSTOM and steps.outputs) or promise.output_chunks(steps.ranks, steps.chunks)
        return rank * self.stride + (rank * self.per * promise.scatters if steps.in_place else self.output), many

    def cell_name(self, rank: int, cell: int) -> tuple[str, int]:
        """Buffer and chunk of a cell of a rank; an aliased cell by the name of the larger buffer."""
        cell -= rank * self.stride
        if cell >= self.scratch:
            return "scratch", cell - self.scratch
        if cell >= self.output and not self.steps.in_place:
            return "output", cell - self.output
        return "output" if self.steps.in_place and self.promise.gathers else "input", cell

    def _bounds(self, rank: int) -> dict[int, tuple[int, int]]:
        """First cell of a rank's buffers and the cell after the last one that may be accessed."""
        steps, first = self.steps, rank * self.stride
        if rank >= steps.ranks:
            return {_SCRATCH: (first + self.scratch, 2**62)}
        (inputs, many), (outputs, more) = self.input_of(rank), self.output_of(rank)
        ends = inputs + max(many, steps.inputs), outputs + max(more, steps.outputs)
        if steps.in_place:
            ends = (first + self.scratch,) * 2
        return {_INPUT: (inputs, ends[0]), _OUTPUT: (outputs, ends[1]), _SCRATCH: (first + self.scratch, 2**62)}

    def _cells(self, buffers: Sequence[int], offsets: Sequence[int]) -> list[int]:
        steps, out = self.steps, []
        bounds = [self._bounds(rank) for rank in range(steps.positions)]
        for g, (rank, buffer, offset, count) in enumerate(zip(steps.rank, buffers, offsets, steps.count, strict=True)):
            if buffer < 0 or count <= 0:
                out.append(-1)
                continue
            if buffer not in _NAMES:
                raise Unusable(f"{steps.place(g)} names buffer {buffer}, which is none of 1, 2, 3")
            if buffer not in bounds[rank]:
                raise Unusable(f"{steps.place(g)} accesses {_NAMES[buffer]} chunk {offset}: a switch has scratch only")
            base, end = bounds[rank][buffer]
            if base + offset + count > end:
                chunk, many = offset + count - 1, end - base
                raise Unusable(f"{steps.place(g)} accesses {_NAMES[buffer]} chunk {chunk} of {many}")
            out.append(base + offset)
        return out
