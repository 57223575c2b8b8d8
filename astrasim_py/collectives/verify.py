"""Symbolic execution of an algorithm: does it end, and does every rank hold what its collective promises?

The value of a cell is an expression over (rank, chunk) of the inputs; a sum keeps how often each contribution occurs,
since reducing one twice is an error that a set would hide. The k-th send posted from one rank to another under a tag
meets the k-th receive posted for it, with unbounded buffering between them.

Where input and output buffer alias (`Algorithm.in_place`), so do their cells: for all_reduce, reduce, broadcast and
all_to_all output k is input k; for all_gather and gather input k of rank r is output r·per + k; for reduce_scatter and
scatter output k of rank r is input r·per + k, with per = chunks / ranks.

The stages (`Program`, `match`, `order`, `execute`, `judge`) are separate so that further checks can use what they find.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.trace import MISSING, NodeType
from astrasim_py.collectives.algorithm import SHARDED, Algorithm, Buffer, CompOp
from astrasim_py.core.errors import TraceError

#: Cells that are executed at most; beyond it the verdict is unknown.
MAX_CELLS = 2**26
#: Steps that the search for a dependency between two receives of one channel may take, all channels together.
MAX_SEARCH = 20_000_000

_SEND, _RECV, _REDUCE, _COPY = range(1, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What verification found.

    Attributes
    ----------
    correct : bool or None
        True: it ends, and every cell that the collective promises is right. False: it does not. None: unknown.
    problem : str
        One sentence that says why; empty when correct.
    wrong_cells : int
        Number of promised cells that are wrong (for a barrier: pairs of ranks that do not wait for each other).
    """

    correct: bool | None
    problem: str = ""
    wrong_cells: int = 0


class _Found(Exception):
    """Ends verification with a verdict."""

    def __init__(self, correct: bool | None, problem: str) -> None:
        super().__init__(correct, problem)
        self.verdict = Verdict(correct=correct, problem=problem)


def verify(algorithm: Algorithm) -> Verdict:
    """Verify an algorithm by executing it symbolically.

    Returns
    -------
    Verdict
        False where a message has no partner, ranks wait for each other, a cell ends up wrong. Unknown (None) where
        the algorithm does not state its cells, or where the pairing of messages depends on timing. A program whose
        steps race for a cell is executed in one of its orders.

    Examples
    --------
    >>> from astrasim_py.collectives.builders import build
    >>> verify(build("ring", "all_reduce", 4)).correct
    True
    """
    try:
        program = Program(algorithm)
        send_of = match(program)
        sequence = order(program, send_of)
        if algorithm.collective == "barrier":
            return _judge_barrier(program, send_of, sequence)
        if not algorithm.has_cells:
            raise _Found(None, "it does not state which cells its steps read and write")
        _check_accesses(program, send_of)
        values = execute(program, send_of, sequence)
        return judge(program, values)
    except _Found as found:
        return found.verdict
    except TraceError as error:
        return Verdict(correct=False, problem=str(error))


class Program:
    """All ranks of an algorithm as one table; node g of rank r has row g - offset[r] in its trace.

    Attributes
    ----------
    offset : numpy.ndarray
        int64[ranks + 1].
    rank, id, action : numpy.ndarray
        int64[N]: rank, node id, and what a node does (0 where it only waits).
    child, parent : numpy.ndarray
        int64[E]: dependencies, as pairs of nodes.
    place : numpy.ndarray
        int64[N]: place of the node in the topological order of its rank.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        traces = algorithm.traces
        self.offset = np.cumsum([0, *(len(t) for t in traces)])
        self.size = int(self.offset[-1])
        self.rank = np.repeat(np.arange(len(traces)), np.diff(self.offset))
        self.id = np.concatenate([t.node_id for t in traces]).astype(np.int64)
        kinds = np.concatenate([t.type for t in traces])
        self._columns: dict[str, np.ndarray] = {}
        op = self.column("comp_op")
        comp = kinds == NodeType.COMP
        self.action = np.select(
            [
                kinds == NodeType.COMM_SEND,
                kinds == NodeType.COMM_RECV,
                comp & (op == CompOp.REDUCE),
                comp & (op == CompOp.COPY),
            ],
            [_SEND, _RECV, _REDUCE, _COPY],
            0,
        )
        child, parent, place, payload = [], [], [], []
        for trace, start in zip(traces, self.offset.tolist(), strict=False):
            ptr, rows = trace.parents()
            child.append(graph.owners(ptr) + start)
            parent.append(rows + start)
            at = np.empty(len(trace), dtype=np.int64)
            at[trace.order()] = np.arange(len(trace))
            place.append(at)
            taken = trace.column("payload")
            if len(taken) and (taken != MISSING).any():
                found = trace.rows_of(np.where(taken < 0, 0, taken).astype(np.uint64))
                lost = np.flatnonzero((taken != MISSING) & ((found < 0) | (taken < 0)))
                if len(lost):
                    node = int(trace.node_id[lost[0]])
                    raise _Found(
                        False,
                        f"rank {len(payload)} node {node} takes data of {int(taken[lost[0]])}, which is not there",
                    )
                payload.append(np.where(taken == MISSING, -1, found + start))
            else:
                payload.append(np.full(len(trace), -1, dtype=np.int64))
        self.child, self.parent = np.concatenate(child), np.concatenate(parent)
        self.place, self.payload = np.concatenate(place), np.concatenate(payload)
        # CSR of parents by node, for searches.
        self.ptr = np.zeros(self.size + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.child, minlength=self.size), out=self.ptr[1:])

    def column(self, name: str) -> np.ndarray:
        """int64[N]: an integer column of all ranks."""
        if name not in self._columns:
            self._columns[name] = np.concatenate([t.column(name) for t in self.algorithm.traces])
        return self._columns[name]

    def node(self, g: int) -> str:
        """Node g for messages."""
        return f"rank {int(self.rank[g])} node {int(self.id[g])}"


# ---------------------------------------------------------------------------------------------- messages


def match(program: Program) -> np.ndarray:
    """Pair the k-th send with the k-th receive of every (source, destination, tag).

    Returns
    -------
    numpy.ndarray
        int64[N]: for a receive its send, -1 for all other nodes.
    """
    n = program.algorithm.ranks
    sends, recvs = (np.flatnonzero(program.action == kind) for kind in (_SEND, _RECV))
    tag = program.column("comm_tag")
    pair_of_send = program.rank[sends] * n + program.column("comm_dst")[sends]
    pair_of_recv = program.column("comm_src")[recvs] * n + program.rank[recvs]
    by_send = np.lexsort((program.place[sends], tag[sends], pair_of_send))
    by_recv = np.lexsort((program.place[recvs], tag[recvs], pair_of_recv))
    sends, recvs = sends[by_send], recvs[by_recv]
    keys = [
        np.stack((pair_of_send[by_send], tag[sends])),
        np.stack((pair_of_recv[by_recv], tag[recvs])),
    ]
    if keys[0].shape != keys[1].shape or not np.array_equal(*keys):
        _raise_unmatched(program, sends, recvs, keys)
    count = program.column("msg_chunk_cnt")
    uneven = np.flatnonzero(count[sends] != count[recvs])
    if len(uneven):
        s, r = int(sends[uneven[0]]), int(recvs[uneven[0]])
        raise _Found(
            False,
            f"{program.node(s)} sends {int(count[s])} chunks, but {program.node(r)} receives {int(count[r])}",
        )
    again = np.flatnonzero((keys[0][:, 1:] == keys[0][:, :-1]).all(axis=0)) if len(sends) else []
    budget = [MAX_SEARCH]
    for word, rows in (("receives", recvs), ("sends", sends)):
        for i in again:
            first, second = int(rows[i]), int(rows[i + 1])
            if not _waits_for(program, second, first, budget):
                t = int(tag[first])
                label = "without a tag" if t == MISSING else f"with tag {t}"
                raise _Found(
                    None,
                    f"{program.node(first)} and node {int(program.id[second])} are {word} of one peer {label}, "
                    "and no dependency says which is first: their pairing depends on timing",
                )
    send_of = np.full(program.size, -1, dtype=np.int64)
    send_of[recvs] = sends
    return send_of


def _raise_unmatched(program: Program, sends: np.ndarray, recvs: np.ndarray, keys: list[np.ndarray]) -> None:
    """Say which send or receive has no partner."""
    n = program.algorithm.ranks
    sent, received = (Counter(zip(*key.tolist(), strict=True)) for key in keys)
    for pair, tag in sorted(sent.keys() | received.keys()):
        extra = sent[pair, tag] - received[pair, tag]
        if not extra:
            continue
        source, target = divmod(pair, n)
        which, key = (sends, keys[0]) if extra > 0 else (recvs, keys[1])
        last = int(which[np.flatnonzero((key[0] == pair) & (key[1] == tag))[-1]])
        under = "" if tag == MISSING else f" (tag {tag})"
        if extra > 0:
            problem = f"{program.node(last)} sends to rank {target}{under}, which never receives it"
        else:
            problem = f"{program.node(last)} waits for a message from rank {source}{under} that is never sent"
        raise _Found(False, problem)


def _waits_for(program: Program, node: int, target: int, budget: list[int]) -> bool:
    """Whether `node` can only begin when `target` is done (both of one rank)."""
    floor = int(program.place[target])
    stack, seen = [node], {node}
    while stack:
        current = stack.pop()
        for p in program.parent[program.ptr[current] : program.ptr[current + 1]].tolist():
            if p == target:
                return True
            if p not in seen and program.place[p] > floor:
                seen.add(p)
                stack.append(p)
        budget[0] -= 1
        if budget[0] < 0:
            raise _Found(None, "its dependencies are too entangled to say how its messages pair")
    return False


# ------------------------------------------------------------------------------------------------- order


def order(program: Program, send_of: np.ndarray) -> list[int]:
    """An order in which all nodes can run: dependencies, and every receive after its send.

    Returns
    -------
    list of int
        Nodes.
    """
    recvs = np.flatnonzero(send_of >= 0)
    child = np.concatenate((program.child, recvs))
    parent = np.concatenate((program.parent, send_of[recvs]))
    by_parent = np.argsort(parent, kind="stable")
    children = child[by_parent].tolist()
    ptr = np.searchsorted(parent[by_parent], np.arange(program.size + 1)).tolist()
    waiting = np.bincount(child, minlength=program.size).tolist()
    ready = [g for g, w in enumerate(waiting) if not w]
    # The list grows while it is walked: first come, first served.
    for g in ready:
        for c in children[ptr[g] : ptr[g + 1]]:
            waiting[c] -= 1
            if not waiting[c]:
                ready.append(c)
    if len(ready) < program.size:
        _raise_deadlock(program, send_of, np.array(waiting) > 0)
    return ready


def _raise_deadlock(program: Program, send_of: np.ndarray, blocked: np.ndarray) -> None:
    """Follow what a blocked node waits for until a node comes again."""
    g = int(np.flatnonzero(blocked)[0])
    seen: dict[int, int] = {}
    chain: list[int] = []
    while g not in seen:
        seen[g] = len(chain)
        chain.append(g)
        if send_of[g] >= 0 and blocked[send_of[g]]:
            g = int(send_of[g])
        else:
            parents = program.parent[program.ptr[g] : program.ptr[g + 1]]
            g = int(parents[blocked[parents]][0])
    cycle = chain[seen[g] :]
    tag = program.column("comm_tag")
    waits = []
    for g in cycle:
        if send_of[g] >= 0 and int(send_of[g]) in seen and program.rank[send_of[g]] != program.rank[g]:
            under = "" if tag[g] == MISSING else f", tag {int(tag[g])}"
            waits.append(
                f"rank {int(program.rank[g])} waits for rank {int(program.rank[send_of[g]])} "
                f"(node {int(program.id[g])}{under})"
            )
    shown = waits if len(waits) <= 6 else [*waits[:5], f"… {len(waits) - 5} more"]
    raise _Found(False, f"deadlock: {', '.join(shown)}")


# --------------------------------------------------------------------------------------------- execution


def _per(algorithm: Algorithm) -> int:
    """Chunks of a shard (of the whole buffer where there are no shards)."""
    if algorithm.collective not in SHARDED:
        return algorithm.chunks
    per, rest = divmod(algorithm.chunks, algorithm.ranks)
    if rest:
        raise _Found(False, f"its {algorithm.chunks} chunks do not divide among {algorithm.ranks} ranks")
    return per


def _stride(program: Program) -> int:
    """Cells of one rank: input, output, scratch."""
    algorithm = program.algorithm
    end = 0
    for side in ("src", "dst"):
        scratch = program.column(f"{side}_buf") == Buffer.SCRATCH
        reach = program.column(f"{side}_off") + program.column("msg_chunk_cnt")
        end = max(end, int(reach[scratch].max(initial=0)))
    stride = 2 * algorithm.chunks + end
    if stride * algorithm.ranks > MAX_CELLS:
        raise _Found(None, f"its {stride * algorithm.ranks} cells are too many to execute")
    return stride


def cell_of(program: Program, side: str, stride: int) -> np.ndarray:
    """First cell that each node reads (`side` src) or writes (dst), after aliasing; -1 for none.

    Returns
    -------
    numpy.ndarray
        int64[N]: rank · stride + cell.
    """
    algorithm = program.algorithm
    total, per = algorithm.chunks, _per(algorithm)
    buffer, offset = program.column(f"{side}_buf"), program.column(f"{side}_off")
    count = program.column("msg_chunk_cnt")
    present = (buffer >= 0) & (offset >= 0) & (program.action > 0) & (count > 0)
    shift = np.zeros(program.size, dtype=np.int64)
    limit = np.full(program.size, total, dtype=np.int64)
    shift[buffer == Buffer.OUTPUT] = 0 if algorithm.in_place else total
    if algorithm.in_place and algorithm.collective in ("all_gather", "gather"):
        aliased = buffer == Buffer.INPUT
    elif algorithm.in_place and algorithm.collective in ("reduce_scatter", "scatter"):
        aliased = buffer == Buffer.OUTPUT
    else:
        aliased = np.zeros(program.size, dtype=bool)
    shift[aliased] = program.rank[aliased] * per
    limit[aliased] = per
    scratch = buffer == Buffer.SCRATCH
    shift[scratch], limit[scratch] = 2 * total, np.iinfo(np.int64).max
    unknown = np.flatnonzero(present & ((buffer < Buffer.INPUT) | (buffer > Buffer.SCRATCH)))
    if len(unknown):
        g = int(unknown[0])
        raise _Found(False, f"{program.node(g)} names buffer {int(buffer[g])}, which is none of 1, 2, 3")
    beyond = np.flatnonzero(present & (offset + count > limit))
    if len(beyond):
        g = int(beyond[0])
        raise _Found(
            False,
            f"{program.node(g)} accesses chunk {int(offset[g] + count[g] - 1)} of a buffer of {int(limit[g])}",
        )
    return np.where(present, program.rank * stride + shift + offset, -1)


def _check_accesses(program: Program, send_of: np.ndarray) -> None:
    """A node that takes another's data must wait for it and move as much."""
    takers = np.flatnonzero(program.payload >= 0)
    givers = program.payload[takers]
    count = program.column("msg_chunk_cnt")
    bad = np.flatnonzero((count[takers] != count[givers]) | (program.action[givers] < _RECV))
    if len(bad):
        taker, giver = int(takers[bad[0]]), int(givers[bad[0]])
        raise _Found(
            False,
            f"{program.node(taker)} takes {int(count[taker])} chunks of node {int(program.id[giver])}, "
            f"which holds {int(count[giver]) if program.action[giver] >= _RECV else 0}",
        )
    # Most takers name a parent: found at once for all.
    keys = program.child * program.size + program.parent
    wanted = takers * program.size + givers
    direct = np.isin(wanted, keys)
    budget = [MAX_SEARCH]
    for i in np.flatnonzero(~direct).tolist():
        if not _waits_for(program, int(takers[i]), int(givers[i]), budget):
            raise _Found(
                False,
                f"{program.node(int(takers[i]))} takes data of node {int(program.id[givers[i]])}, "
                "but does not wait for it",
            )


class Values:
    """Symbolic values: expressions over inputs, each kept once.

    0 is undefined; 1 + r·T + k is chunk k of rank r's input; above these are sums. A sum of different ranks'
    contributions to one chunk is kept as that chunk and a bit set of ranks; any other sum as an expression only.

    Parameters
    ----------
    ranks, chunks : int
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        self.chunks = chunks
        self.leaves = ranks * chunks
        self.terms: list[tuple[int, int]] = []
        self.chunk: list[int] = []
        self.members: list[int] = []
        self._known: dict[tuple[int, int], int] = {}
        self.cells: list[int] = []

    def leaf(self, rank: int, chunk: int) -> int:
        """Value of an input."""
        return 1 + rank * self.chunks + chunk

    def summary(self, value: int) -> tuple[int, int]:
        """(chunk, bit set of ranks) of a value; (-1, 0) where it is not of that form."""
        if value > self.leaves:
            at = value - self.leaves - 1
            return self.chunk[at], self.members[at]
        rank, chunk = divmod(value - 1, self.chunks)
        return (chunk, 1 << rank) if value else (-1, 0)

    def add(self, a: int, b: int) -> int:
        """Value of a + b; a sum with something undefined is undefined."""
        if not a or not b:
            return 0
        key = (a, b) if a < b else (b, a)
        known = self._known.get(key)
        if known is None:
            (chunk, mine), (other, theirs) = self.summary(a), self.summary(b)
            if chunk != other or chunk < 0 or mine & theirs:
                chunk, mine, theirs = -1, 0, 0
            self.terms.append(key)
            self.chunk.append(chunk)
            self.members.append(mine | theirs)
            known = self._known[key] = self.leaves + len(self.terms)
        return known

    def contributions(self, value: int) -> Counter:
        """How often each (rank, chunk) is contained in a value."""
        # Terms are always older than their sum: take values from the newest to the oldest.
        found: Counter = Counter()
        times = {value: 1}
        heap = [-value]
        while heap:
            current = -heapq.heappop(heap)
            often = times.pop(current)
            if current > self.leaves:
                for term in self.terms[current - self.leaves - 1]:
                    if term not in times:
                        heapq.heappush(heap, -term)
                        times[term] = 0
                    times[term] += often
            elif current:
                found[divmod(current - 1, self.chunks)] += often
        return found


def execute(program: Program, send_of: np.ndarray, sequence: list[int]) -> Values:
    """Run all nodes in the given order.

    Returns
    -------
    Values
        With `cells` as they are at the end: one list over all ranks, `_stride` apart.
    """
    algorithm = program.algorithm
    n, total, per = algorithm.ranks, algorithm.chunks, _per(algorithm)
    stride = _stride(program)
    reads, writes = (cell_of(program, side, stride).tolist() for side in ("src", "dst"))
    values = Values(n, total)
    cells = values.cells = [0] * (n * stride)
    for r in range(n):
        if algorithm.collective in ("all_gather", "gather"):
            base = r * stride + (r * per if algorithm.in_place else 0)
            cells[base : base + per] = range(values.leaf(r, 0), values.leaf(r, per))
        elif algorithm.collective not in ("broadcast", "scatter") or r == algorithm.root:
            cells[r * stride : r * stride + total] = range(values.leaf(r, 0), values.leaf(r, total))
    actions, counts = program.action.tolist(), program.column("msg_chunk_cnt").tolist()
    payload, sender = program.payload.tolist(), send_of.tolist()
    # What a node holds: one value, or a list of several.
    held: list = [None] * program.size
    add = values.add
    for g in sequence:
        action, count = actions[g], counts[g]
        if not action or count <= 0:
            continue
        source = reads[g]
        if action == _RECV:
            data = held[sender[g]]
            held[sender[g]] = None
        elif action == _REDUCE:
            own = cells[source] if count == 1 else cells[source : source + count]
            if payload[g] >= 0:
                other = held[payload[g]]
            else:
                at = writes[g]
                other = cells[at] if count == 1 else cells[at : at + count]
            data = add(own, other) if count == 1 else list(map(add, own, other))
        elif payload[g] >= 0:
            data = held[payload[g]]
        else:
            data = cells[source] if count == 1 else cells[source : source + count]
        held[g] = data
        target = writes[g]
        if target >= 0 and action != _SEND:
            if count == 1:
                cells[target] = data
            else:
                cells[target : target + count] = data
    return values


# ----------------------------------------------------------------------------------------------- verdict


def judge(program: Program, values: Values) -> Verdict:
    """Compare the cells at the end with what the collective promises."""
    algorithm = program.algorithm
    collective, n, total, per = algorithm.collective, algorithm.ranks, algorithm.chunks, _per(algorithm)
    stride = len(values.cells) // n
    everyone = (1 << n) - 1
    shard_only = collective in ("reduce_scatter", "scatter")
    wrong, problem = 0, ""
    for r in range(n):
        if collective in ("reduce", "gather") and r != algorithm.root:
            continue
        for k in range(per if shard_only else total):
            index = r * per + k if shard_only else k
            at = index if algorithm.in_place else total + k
            value = values.cells[r * stride + at]
            if collective in ("all_reduce", "reduce", "reduce_scatter"):
                expected = None
                good = values.summary(value) == (index, everyone)
            else:
                if collective in ("all_gather", "gather"):
                    expected = (k // per, k % per)
                elif collective == "all_to_all":
                    expected = (k // per, r * per + k % per)
                else:
                    expected = (algorithm.root, index)
                good = value == values.leaf(*expected)
            if not good:
                wrong += 1
                problem = problem or f"rank {r} chunk {index} {_fault(values, value, expected, index, n)}"
    return Verdict(correct=not wrong, problem=problem, wrong_cells=wrong)


def _fault(values: Values, value: int, expected: tuple[int, int] | None, index: int, n: int) -> str:
    """What is wrong with a value: of a sum over all ranks (no `expected`), or of one that should be a plain chunk."""
    if not value:
        if expected is None:
            return "is undefined at the end"
        return f"lacks contribution of rank {expected[0]}: it is never written"
    found = values.contributions(value)
    wanted = [(q, index) for q in range(n)] if expected is None else [expected]
    lost = [q for q, k in wanted if (q, k) not in found]
    foreign = sorted(found.keys() - set(wanted))
    if lost:
        more = f" and of {len(lost) - 1} more" if len(lost) > 1 else ""
        instead = f"; it holds chunk {foreign[0][1]} of rank {foreign[0][0]}" if foreign else ""
        return f"lacks contribution of rank {lost[0]}{more}{instead}"
    for q, k in wanted:
        if found[q, k] > 1:
            times = "twice" if found[q, k] == 2 else f"{found[q, k]} times"
            return f"counts contribution of rank {q} {times}"
    return f"also holds chunk {foreign[0][1]} of rank {foreign[0][0]}"


def _judge_barrier(program: Program, send_of: np.ndarray, sequence: list[int]) -> Verdict:
    """A rank may leave a barrier when it has heard from all: what a node knows of is what it waited for."""
    n = program.algorithm.ranks
    ptr, parents = program.ptr.tolist(), program.parent.tolist()
    rank, sender = program.rank.tolist(), send_of.tolist()
    knows = [0] * program.size
    heard = [1 << r for r in range(n)]
    for g in sequence:
        know = 1 << rank[g]
        for p in parents[ptr[g] : ptr[g + 1]]:
            know |= knows[p]
        if sender[g] >= 0:
            know |= knows[sender[g]]
        knows[g] = know
        heard[rank[g]] |= know
    wrong, problem = 0, ""
    for r, know in enumerate(heard):
        missing = n - know.bit_count()
        if missing:
            wrong += missing
            absent = next(q for q in range(n) if not know >> q & 1)
            more = f" and {missing - 1} more" if missing > 1 else ""
            problem = problem or f"rank {r} leaves without having heard from rank {absent}{more}"
    return Verdict(correct=not wrong, problem=problem, wrong_cells=wrong)
