"""Costs of the nodes of MSCCL++ plans, each by its role (docs/dialects.md).

A put of a memory channel is two nodes: the message, which is detached and paced by the block's rate, and the stores,
which keep the block busy. What depends on the put depends on the stores. Large messages go in parts: blocks that send
at once share links, and no receiver waits until all of another one's messages have passed.

Messages of multimem are those that ranks would exchange without a switch, of fewer bytes: where all n ranks reduce and
store u bytes each, a switch takes (n+1)u from each rank and gives as much, and messages would be 2(n-1)u; where they
store only, it gives nu, and messages would be (n-1)u.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from astrasim_py.collectives.chunks import CompOp
from astrasim_py.collectives.plan_roles import PlanRole
from astrasim_py.core.rows import numbered
from astrasim_py.core.units import transfer_ps
from astrasim_py.dialects.queue_pairs.lower import in_parts
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.programs import (
    COMPUTE,
    NO_SLOT,
    RECV,
    SEND,
    STORE_ROW,
    Counters,
    Programs,
    RankProgram,
    Structure,
)
from astrasim_py.topology.profile import LibraryProfile, PlanProtocol

#: Messages that a block stores word by word; and those that it stores or loads so: at most the block's rate.
_STORED = (PlanRole.PUT, PlanRole.PACKETS)
PACED = (*_STORED, PlanRole.ANSWER)
#: Bytes and number of the parts of the largest message of a call, at most; others go in as many.
_PART, _MOST_PARTS = 16 * 1024, 8


def has_roles(algorithm: Algorithm) -> bool:
    """Whether the nodes of an algorithm have roles, as those of a plan do."""
    return any(bool((table.column("plan_role") >= 0).any()) for table in algorithm.traces.tables)


def with_costs(
    algorithm: Algorithm,
    programs: Programs,
    profile: LibraryProfile,
    protocol: str,
    structure: Callable[..., Structure],
) -> Programs:
    """Programs of all ranks of a plan with the costs of its operations under a protocol of a profile.

    `structure`: as for `astrasim_py.dialects.library.lower_connections.cut_steps`.
    """
    assert profile.plans is not None, "the call is charged as a plan"
    place, costs = algorithm.source or algorithm.name, profile.plans[protocol]
    link = costs.link or profile.link
    slower = Fraction(1) if profile.switch is None or link is None else max(Fraction(1), link / profile.switch.rate)
    charged = list(_with_costs(algorithm, _by_switch(algorithm, programs, slower), costs, structure))
    largest = max(int(program.nbytes.max(initial=0, where=paced)) for program, paced in charged)
    parts = max(1, min(_MOST_PARTS, largest // _PART))
    if any(program.counters is not None and (program.counters.counts[paced] >= 0).any() for program, paced in charged):
        parts = 1
    return Programs.of(_in_parts(program, paced, parts, structure, place) for program, paced in charged)


def _in_parts(
    program: RankProgram, paced: np.ndarray, parts: int, structure: Callable[..., Structure], place: str
) -> RankProgram:
    """A program with some messages in parts, each with a tag of its own."""
    pieces = np.where(paced & (program.nbytes > 0), parts, 1)
    cut = in_parts(program, pieces, structure, place, "use a smaller plan")
    return replace(cut, tag=np.where(cut.peer >= 0, cut.tag * parts + numbered(cut.rows), 0))


def _by_switch(algorithm: Algorithm, programs: Programs, slower: Fraction) -> list[RankProgram]:
    """The programs, with the bytes that messages of multimem take of links; `slower`: how much so when they reduce."""
    table, by_rank, members, reduces = algorithm.program, list(programs), 1, False
    multimem = []
    for program, low in zip(by_rank, table.bounds.tolist(), strict=False):
        old, rows = program.structure, program.rows + low
        multimem.append((program.peer >= 0) & (table.column("plan_role")[rows] == PlanRole.MULTIMEM))
        members = max(members, 1 + len(np.unique(program.peer[multimem[-1]])))
        received = np.repeat(multimem[-1] & (old.kind == RECV), np.diff(old.succ_ptr))
        reduces |= bool((table.column("comp_op")[rows][old.succ[received]] == CompOp.REDUCE).any())
    if members == 1:
        return by_rank
    share = Fraction(members, members - 1)
    if reduces:
        share = Fraction(members + 1, 2 * (members - 1)) * slower
    return [
        replace(
            program, nbytes=np.where(mine, -(-program.nbytes * share.numerator // share.denominator), program.nbytes)
        )
        for program, mine in zip(by_rank, multimem, strict=True)
    ]


def _with_costs(
    algorithm: Algorithm, programs: Iterable[RankProgram], costs: PlanProtocol, structure: Callable[..., Structure]
) -> Iterator[tuple[RankProgram, np.ndarray]]:
    """By rank the program, and which of its nodes are messages that a block paces."""
    table = algorithm.program
    roles_of = table.column("plan_role")
    for program, low in zip(programs, table.bounds.tolist(), strict=False):
        kind, roles = program.structure.kind, roles_of[program.rows + low]
        local = (kind == COMPUTE) & (roles == PlanRole.LOCAL)
        # An operation may be several nodes, and without a meeting threads go on to the next one.
        follows = np.zeros(len(program), dtype=bool)
        follows[program.structure.succ[np.repeat(local, np.diff(program.structure.succ_ptr))]] = True
        duration = program.duration + np.where(local, _transfers(program.nbytes, costs.rate), 0)
        duration[local & ~follows] += costs.step
        for role, cost in (
            (PlanRole.MEETING, costs.meeting),
            (PlanRole.REQUEST, costs.request),
            (PlanRole.PROXY, costs.proxy),
        ):
            duration[(kind == COMPUTE) & (roles == role)] += cost
        stored = (kind == SEND) & np.isin(roles, _STORED)
        if program.counters is not None:
            stored &= ~program.counters.detached
        paced = ((kind == SEND) | (kind == RECV)) & np.isin(roles, PACED)
        program = _with_stores(replace(program, duration=duration), np.flatnonzero(stored), costs.rate, structure)
        yield program, _appended(paced, False, len(program) - len(paced))


def _transfers(nbytes: np.ndarray, rate: Fraction) -> np.ndarray:
    """int64[n]: ps that a block takes for so many bytes."""
    sizes, code = np.unique(nbytes, return_inverse=True)
    return np.array([transfer_ps(size, rate) for size in sizes.tolist()], dtype=np.int64)[code]


def _with_stores(
    program: RankProgram, sends: np.ndarray, rate: Fraction, structure: Callable[..., Structure]
) -> RankProgram:
    """A program with a node of stores for each of some sends, which are detached."""
    old, n, k = program.structure, len(program), len(sends)
    if not k:
        return program
    stores = np.arange(n)
    stores[sends] = n + np.arange(k)
    parent = stores[np.repeat(np.arange(n), np.diff(old.succ_ptr))]
    child = old.succ.astype(np.int64)
    twice = stores[child] != child
    child, parent = np.append(child, stores[child[twice]]), np.append(parent, parent[twice])
    order = np.lexsort((parent, child))
    more = {
        "rows": STORE_ROW, "nbytes": 0, "duration": _transfers(program.nbytes[sends], rate), "peer": -1, "tag": 0,
        "slot": NO_SLOT, "instance": -1, "node_id": program.node_id[-1] + np.arange(1, k + 1, dtype=np.uint64),
    }  # fmt: skip
    columns: dict[str, Any] = {name: _appended(getattr(program, name), values, k) for name, values in more.items()}
    return replace(
        program,
        structure=structure(
            _appended(old.kind, COMPUTE, k), np.append(old.need, old.need[sends]), child[order], parent[order]
        ),
        counters=_detached(program.counters, n, sends, stores),
        **columns,
    )


def _appended(column: np.ndarray, values: object, k: int) -> np.ndarray:
    """A column and k more values."""
    return np.append(column, np.broadcast_to(np.asarray(values, dtype=column.dtype), k))


def _detached(counters: Counters | None, n: int, sends: np.ndarray, stores: np.ndarray) -> Counters:
    """Counters in which the stores count and wait in place of some sends. `stores`: node that ends a node."""
    if counters is None:
        nothing = np.full(n, -1, dtype=np.int32)
        counters = Counters(0, nothing, nothing, np.zeros(n, dtype=np.int64), nothing, np.zeros(n, dtype=bool))
    k, counts, detached = len(sends), counters.counts.copy(), counters.detached.copy()
    counts[sends], detached[sends] = -1, True
    start = np.where(counters.start >= 0, stores[counters.start], -1).astype(np.int32)
    return Counters(
        number=counters.number,
        counts=np.append(counts, counters.counts[sends]),
        of=np.append(counters.of, counters.of[sends]),
        k=np.append(counters.k, counters.k[sends]),
        start=np.append(start, start[sends]),
        detached=_appended(detached, False, k),
    )
