"""The law of collectives: executed over symbolic chunks, every builder's algorithm does what its collective says.

The executor below is the tests' own: a plain loop over ready nodes with multisets of (rank, chunk), independent of
`astrasim_py.verification.verifier`.
"""

from __future__ import annotations

import doctest
from collections import Counter, deque
from functools import cache, reduce
from itertools import pairwise
from operator import or_

import numpy as np
import pytest

from astrasim_py.builders import ring
from astrasim_py.builders.draft import Draft
from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.verification.verifier import verify

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16)
#: Dimensions and the algorithm of each, where every collective is defined for it.
HIERARCHIES = (
    ([4], ["direct"]),
    ([1, 3], ["ring", "direct"]),
    ([2, 3], ["direct", "ring"]),
    ([4, 3], [{"builder": "ring", "bidirectional": True}, "direct"]),
    ([2, 2, 3], ["ring", "direct", "ring"]),
)
NAMES = ("comm_dst", "comm_src", "comm_tag", "msg_chunk_cnt", "comp_op", "payload")
CELLS = ("src_buf", "src_off", "dst_buf", "dst_off")


def initial(a: Algorithm, rank: int) -> dict:
    """Cells that are defined at the start: {(buffer, offset): multiset}."""
    total, per = a.chunks, a.chunks // a.ranks
    if a.collective in ("all_reduce", "reduce_scatter", "reduce", "all_to_all"):
        return {(1, k): Counter({(rank, k): 1}) for k in range(total)}
    if a.collective in ("broadcast", "scatter"):
        return {(1, k): Counter({(rank, k): 1}) for k in range(total)} if rank == a.root else {}
    if a.collective in ("all_gather", "gather"):
        return {(2, rank * per + k): Counter({(rank, k): 1}) for k in range(per)}
    return {}


@cache
def sums(n: int, total: int) -> list[Counter]:
    """Every chunk summed over all ranks."""
    return [Counter({(q, k): 1 for q in range(n)}) for k in range(total)]


def expected(a: Algorithm, rank: int) -> dict:
    """Cells that the collective requires at the end."""
    total, per = a.chunks, a.chunks // a.ranks
    everyone = sums(a.ranks, total)
    if a.collective == "all_reduce" or (a.collective == "reduce" and rank == a.root):
        return {(1, k): everyone[k] for k in range(total)}
    if a.collective == "reduce_scatter":
        return {(1, rank * per + k): everyone[rank * per + k] for k in range(per)}
    if a.collective == "broadcast":
        return {(1, k): Counter({(a.root, k): 1}) for k in range(total)}
    if a.collective == "all_gather" or (a.collective == "gather" and rank == a.root):
        return {(2, k): Counter({(k // per, k % per): 1}) for k in range(total)}
    if a.collective == "scatter":
        return {(1, rank * per + k): Counter({(a.root, rank * per + k): 1}) for k in range(per)}
    if a.collective == "all_to_all":
        return {(2, k): Counter({(k // per, rank * per + k % per): 1}) for k in range(total)}
    return {}


def execute(a: Algorithm, reverse: bool = False) -> list[dict]:
    """Run to the end; returns cells of every rank, with bits of the ranks heard from under "heard"."""
    columns = [{name: t.column(name).tolist() for name in (*NAMES, *CELLS)} for t in a.traces]
    kinds = [t.type.tolist() for t in a.traces]
    parents = []
    for ptr, rows in (t.parents() for t in a.traces):
        parents.append([rows[i:j].tolist() for i, j in pairwise(ptr.tolist())])
    cells = [initial(a, rank) for rank in range(a.ranks)]
    values: list[dict] = [{} for _ in range(a.ranks)]  # node id -> data it holds
    heard: list[dict] = [{} for _ in range(a.ranks)]  # row -> bits of the ranks known of when it is done
    wires: dict = {}
    left = deque((rank, row) for rank, t in enumerate(a.traces) for row in range(len(t)))
    if reverse:
        left.reverse()
    idle = 0
    while left:
        rank, row = left.popleft()
        c, known, before = columns[rank], heard[rank], parents[rank][row]
        kind, count = kinds[rank][row], c["msg_chunk_cnt"][row]
        wire = (c["comm_src"][row], rank, c["comm_tag"][row])
        # The last parent is seldom done before the others.
        blocked = any(p not in known for p in reversed(before))
        if blocked or (kind == NodeType.COMM_RECV and not wires.get(wire)):
            idle += 1
            assert idle <= len(left) + 1, f"stuck: {len(left) + 1} nodes left, first rank {rank} row {row}"
            left.append((rank, row))
            continue
        idle = 0
        know = reduce(or_, (known[p] for p in before), 1 << rank)

        def read(buffer: str, offset: str, rank=rank, row=row, c=c, count=count) -> list:
            at = c[buffer][row], c[offset][row]
            return [cells[rank].get((at[0], at[1] + i)) for i in range(count)]

        data = None
        taken = values[rank].get(c["payload"][row]) if c["payload"][row] != MISSING else None
        if kind == NodeType.COMM_SEND:
            data = taken if taken is not None else (read("src_buf", "src_off") if count else [])
            assert len(data) == count and None not in data, f"rank {rank} row {row} sends what it does not have"
            key = (rank, c["comm_dst"][row], c["comm_tag"][row])
            wires.setdefault(key, deque()).append((data, know))
        elif kind == NodeType.COMM_RECV:
            data, theirs = wires[wire].popleft()
            know = know | theirs
            assert len(data) == count
        elif c["comp_op"][row] == 1:
            # Not x + y, which is slower; nothing is ever subtracted.
            data = [x.copy() for x in taken]
            for x, y in zip(data, read("src_buf", "src_off"), strict=True):
                x.update(y)
        elif c["comp_op"][row] == 2:
            data = read("src_buf", "src_off")
            assert None not in data
        if data is not None and c["dst_buf"][row] != MISSING:
            for i, value in enumerate(data):
                cells[rank][c["dst_buf"][row], c["dst_off"][row] + i] = value
        values[rank][row] = data  # ids are rows
        heard[rank][row] = know
    assert not any(wires.values()), "messages that nobody receives"
    for rank in range(a.ranks):
        cells[rank]["heard"] = reduce(or_, heard[rank].values(), 1 << rank)
    return cells


def check(a: Algorithm, reverse: bool = False) -> None:
    for rank, cells in enumerate(execute(a, reverse)):
        for cell, value in expected(a, rank).items():
            assert cells.get(cell) == value, (a, rank, cell, cells.get(cell), value)
        if a.collective == "barrier":
            assert cells["heard"] == (1 << a.ranks) - 1


def variants(algorithm: str) -> list[dict]:
    return {
        "ring": [{}, {"bidirectional": True}, {"chunks": 3, "overlap": True}, {"bidirectional": True, "chunks": 2}],
        "double_binary_tree": [{}, {"chunks": 3}],
        "binomial_tree": [{}, {"chunks": 2}],
        "hierarchical": [{"dims": d, "algorithms": a, **more} for d, a in HIERARCHIES for more in ({}, {"chunks": 2})],
        "direct": [{}, {"window": 1}, {"window": 2, "chunks": 2}],
    }.get(algorithm, [{}])


CASES = [
    pytest.param(algorithm, collective, i, id=f"{algorithm}-{collective}-{i}")
    for algorithm, (collectives, _) in ALGORITHMS.items()
    for collective in collectives
    for i, options in enumerate(variants(algorithm))
    if not (collective in ("gather", "scatter") and algorithm == "binomial_tree" and options)
]


@cache
def groups(algorithm: str, collective: str, variant: int) -> tuple[Algorithm, ...]:
    """The algorithm for every size (and some roots) it is defined for."""
    out = []
    options = variants(algorithm)[variant]
    sizes = SIZES if not variant else (1, 2, 3, 5, 8)
    if "dims" in options:
        sizes = [int(np.prod(options["dims"]))]
    for n in sizes:
        for root in sorted({0, n // 2, n - 1}) if promise_of(collective).rooted else [None]:
            try:
                out.append(build(algorithm, collective, n, root=root, **options))
            except AlgorithmError as error:
                assert "power of two" in str(error) and n & (n - 1), error
    return tuple(out)


@pytest.mark.parametrize(("algorithm", "collective", "variant"), CASES)
def test_every_builder_does_what_its_collective_says(algorithm, collective, variant):
    for a in groups(algorithm, collective, variant):
        assert a.has_cells
        check(a)
        assert verify(a).correct is True
        if a.ranks == 1:
            assert a.messages == 0


@pytest.mark.parametrize(("algorithm", "collective", "variant"), CASES)
def test_no_result_depends_on_the_order_of_independent_steps(algorithm, collective, variant):
    for a in groups(algorithm, collective, variant):
        if a.ranks in (2, 5, 6, 8):
            check(a, reverse=True)


@pytest.mark.parametrize(("algorithm", "collective", "variant"), CASES)
def test_node_ids_ascend_in_a_valid_order_and_messages_are_unique(algorithm, collective, variant):
    for a in groups(algorithm, collective, variant):
        for rank, trace in enumerate(a.traces):
            ptr, rows = trace.parents()
            assert np.array_equal(trace.node_id, np.arange(len(trace)))
            assert (rows < np.repeat(np.arange(len(trace)), np.diff(ptr))).all()
            sends = trace.type == NodeType.COMM_SEND
            pairs = list(zip(trace.column("comm_dst")[sends], trace.column("comm_tag")[sends], strict=True))
            assert len(set(pairs)) == len(pairs), (a, rank)


def accesses(a: Algorithm, rank: int) -> dict:
    """Who reads and writes each cell of a rank: {(buffer, offset): [(row, writes)]}."""
    trace, found = a.traces[rank], {}
    for side, writes in (("src", False), ("dst", True)):
        buffer, offset = trace.column(f"{side}_buf"), trace.column(f"{side}_off")
        for row in np.flatnonzero(buffer != MISSING).tolist():
            for i in range(int(trace.column("msg_chunk_cnt")[row])):
                found.setdefault((int(buffer[row]), int(offset[row]) + i), []).append((row, writes))
    return found


def check_races(a: Algorithm) -> None:
    """Two accesses to a cell, one of them a write, must be ordered by dependencies and messages."""
    first = np.cumsum([0, *(len(t) for t in a.traces)]).tolist()
    parents: list[list[int]] = []
    ends: dict = {}
    for rank, t in enumerate(a.traces):
        ptr, rows = t.parents()
        parents += [(rows[ptr[i] : ptr[i + 1]] + first[rank]).tolist() for i in range(len(t))]
        for row in np.flatnonzero(t.type == NodeType.COMM_SEND).tolist():
            ends[rank, int(t.column("comm_dst")[row]), int(t.column("comm_tag")[row])] = first[rank] + row
    for rank, t in enumerate(a.traces):
        for row in np.flatnonzero(t.type == NodeType.COMM_RECV).tolist():
            send = ends[int(t.column("comm_src")[row]), rank, int(t.column("comm_tag")[row])]
            parents[first[rank] + row].append(send)
    above: list = [None] * len(parents)
    left = deque(range(len(parents)))
    while left:
        g = left.popleft()
        if any(above[p] is None for p in parents[g]):
            left.append(g)
            continue
        above[g] = 1 << g
        for p in parents[g]:
            above[g] |= above[p]
    for rank in range(a.ranks):
        for cell, who in accesses(a, rank).items():
            for i, (one, writes) in enumerate(who):
                for two, also in who[i + 1 :]:
                    g, h = first[rank] + one, first[rank] + two
                    ordered = above[g] >> h & 1 or above[h] >> g & 1
                    assert ordered or not (writes or also), (a, rank, cell, one, two)


@pytest.mark.parametrize(("algorithm", "collective", "variant"), CASES)
def test_no_two_steps_race_for_a_cell(algorithm, collective, variant):
    for a in groups(algorithm, collective, variant):
        if a.ranks in (3, 5, 6, 8) or (a.ranks == 12 and variant):
            check_races(a)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    ("collective", "dims", "names"),
    [
        ("all_reduce", [4, 3], ["halving_doubling", "double_binary_tree"]),
        ("all_reduce", [4, 3], ["halving_doubling", "recursive_doubling"]),
        ("all_reduce", [2, 5], ["direct", "binomial_tree"]),
        ("all_to_all", [4, 3], ["bruck", "pairwise"]),
        ("all_to_all", [2, 2, 2], ["pairwise", "ring", "direct"]),
        ("all_to_all", [5, 3], ["bruck", "bruck"]),
        ("all_to_all", [2, 3, 2], ["pairwise", "ring", "direct"]),
        ("all_gather", [3, 5], ["bruck", "recursive_doubling"]),
        ("reduce_scatter", [3, 4], ["pairwise", "halving_doubling"]),
        ("broadcast", [3, 4], ["binomial_tree", "double_binary_tree"]),
        ("reduce", [3, 4], ["linear", "binomial_tree"]),
        ("barrier", [3, 4], ["dissemination", "binomial_tree"]),
    ],
)
def test_any_algorithm_may_serve_a_dimension(collective, dims, names, pieces):
    n = int(np.prod(dims))
    for root in (0, n // 2, n - 1) if promise_of(collective).rooted else (None,):
        a = build("hierarchical", collective, n, root=root, dims=dims, algorithms=names, chunks=pieces)
        check(a)
        check(a, reverse=True)
        check_races(a)
        assert verify(a).correct is True


def test_a_column_that_drafts_do_not_have_is_refused():
    draft = Draft(1, 1)
    with pytest.raises(AlgorithmError, match="a draft has no column num_ops"):
        draft.extend(1, {"type": NodeType.COMP, "num_ops": 8})


@pytest.mark.parametrize("ranks", [2, 3, 8, 13])
def test_the_loop_that_explains_the_ring_makes_the_same_algorithm(ranks):
    shown: dict[str, object] = dict(vars(ring))
    exec(doctest.script_from_examples(ring.__doc__), shown)
    assert shown["all_reduce"](ranks).digest() == build("ring", "all_reduce", ranks).digest()
    assert shown["all_reduce"](ranks).rotation is None
