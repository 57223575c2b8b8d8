"""Costs of the nodes of MSCCL++ plans, each by its role (docs/dialects.md).

A put of a memory channel is two nodes: the message, which is detached and paced by the block's rate, and the stores,
which keep the block busy. What depends on the put depends on the stores; so does the block's next put. Large messages
go in parts: blocks that send at once share links, and no receiver waits until all of another one's messages have
passed.

Messages of multimem are those that ranks would exchange without a switch, of fewer bytes: where all n ranks reduce and
store u bytes each, a switch takes (n+1)u from each rank and gives as much, and messages would be 2(n-1)u; where they
store only, it gives nu, and messages would be (n-1)u.
"""

from collections.abc import Callable, Iterator, Sequence
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
from astrasim_py.program.table import Program
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
_PACED = (*_STORED, PlanRole.ANSWER)
#: Bytes and number of the parts of the largest message of a call, at most; others go in as many.
_PART, _MOST_PARTS = 16 * 1024, 8


def has_roles(algorithm: Algorithm) -> bool:
    """Whether the nodes of an algorithm have roles, as those of a plan do."""
    return any(bool((table.column("plan_role") >= 0).any()) for table in algorithm.traces.tables)


def paced_channels(table: Program) -> np.ndarray:
    """int64[rows]: what paces a message: the block that stores it, apart from that which loads it; -1 for nothing."""
    roles, channel = table.column("plan_role"), table.column("channel")
    return np.where(np.isin(roles, _PACED), 2 * np.maximum(channel, 0) + (roles == PlanRole.ANSWER), -1)


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
    charged = list(_with_costs(algorithm, list(programs), slower, costs, structure))
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


class _Nodes:
    """The nodes of a rank's program: their roles, and edges."""

    def __init__(self, program: RankProgram, table: Program, low: int) -> None:
        rows, old = program.rows + low, program.structure
        self.program, self.kind = program, old.kind
        self.roles, self.op, self.channel = (table.column(name)[rows] for name in ("plan_role", "comp_op", "channel"))
        self.parent = np.repeat(np.arange(len(program)), np.diff(old.succ_ptr))
        self.child = old.succ.astype(np.int64)
        self.multimem = (program.peer >= 0) & (self.roles == PlanRole.MULTIMEM)
        self.local = (self.kind == COMPUTE) & (self.roles == PlanRole.LOCAL)

    def below(self, nodes: np.ndarray) -> np.ndarray:
        """bool[n]: nodes that depend on some of `nodes`, bool[n]."""
        out = np.zeros(len(nodes), dtype=bool)
        out[self.child[nodes[self.parent]]] = True
        return out

    def reductions(self) -> np.ndarray:
        """bool[n]: own work that stands for what a switch adds."""
        return self.local & (self.op == CompOp.REDUCE) & self.below(self.multimem & (self.kind == RECV))

    def durations(self, costs: PlanProtocol) -> np.ndarray:
        """int64[n]: ps. An operation may be several nodes, and without a meeting threads go on to the next one."""
        program, follows = self.program, self.below(self.local)
        loaded = self.local & ~(self.reductions() & follows)
        duration = program.duration + np.where(loaded, _transfers(program.nbytes, costs.rate), 0)
        duration[self.local & ~follows] += costs.step
        for role, cost in (
            (PlanRole.MEETING, costs.meeting),
            (PlanRole.REQUEST, costs.request),
            (PlanRole.PROXY, costs.proxy),
        ):
            duration[(self.kind == COMPUTE) & (self.roles == role)] += cost
        return duration

    def stored(self) -> np.ndarray:
        """Sends that keep the block busy; a store of multimem does so once for all ranks."""
        stored = (self.kind == SEND) & np.isin(self.roles, (*_STORED, PlanRole.MULTIMEM))
        stored &= ~self.below((self.kind == RECV) & (self.roles == PlanRole.LOAD))
        if self.program.counters is not None:
            stored &= ~self.program.counters.detached
        return np.flatnonzero(stored)


def _of_switch(nodes: Sequence[_Nodes], slower: Fraction) -> Fraction:
    """Share of their bytes that messages of multimem take of links; `slower`: how much so when they reduce."""
    members = 1 + max((len(np.unique(of.program.peer[of.multimem])) for of in nodes), default=0)
    if members == 1:
        return Fraction(1)
    if any(of.reductions().any() for of in nodes):
        return Fraction(members + 1, 2 * (members - 1)) * slower
    return Fraction(members, members - 1)


def _with_costs(
    algorithm: Algorithm, programs: Sequence[RankProgram], slower: Fraction, costs: PlanProtocol,
    structure: Callable[..., Structure],
) -> Iterator[tuple[RankProgram, np.ndarray]]:  # fmt: skip
    """By rank the program, and which of its nodes are messages that a block paces."""
    table = algorithm.program
    by_rank = [_Nodes(program, table, low) for program, low in zip(programs, table.bounds.tolist(), strict=False)]
    share = _of_switch(by_rank, slower)
    for nodes in by_rank:
        program, stored = nodes.program, nodes.stored()
        busy = _transfers(program.nbytes[stored], costs.rate)
        scaled = -(-program.nbytes * share.numerator // share.denominator)
        nbytes = np.where(nodes.multimem, scaled, program.nbytes)
        paced = (program.peer >= 0) & np.isin(nodes.roles, _PACED)
        charged = replace(program, duration=nodes.durations(costs), nbytes=nbytes)
        charged = _with_stores(charged, nodes, stored, busy, structure)
        yield charged, _appended(paced, False, len(charged) - len(paced))


def _transfers(nbytes: np.ndarray, rate: Fraction) -> np.ndarray:
    """int64[n]: ps that a block takes for so many bytes."""
    sizes, code = np.unique(nbytes, return_inverse=True)
    return np.array([transfer_ps(size, rate) for size in sizes.tolist()], dtype=np.int64)[code]


def _with_stores(
    program: RankProgram, nodes: _Nodes, sends: np.ndarray, busy: np.ndarray, structure: Callable[..., Structure]
) -> RankProgram:
    """A program with a node of stores for each of some sends, which are detached; `busy`: int64[k], their ps."""
    old, n, k = program.structure, len(program), len(sends)
    if not k:
        return program
    stores = np.arange(n)
    stores[sends] = n + np.arange(k)
    parent, child = stores[nodes.parent], nodes.child
    twice = stores[child] != child
    edges = [[child, parent], [stores[child[twice]], parent[twice]]]
    if (nodes.parent < nodes.child).all():
        # The stores of a block follow each other, in whatever order it writes to its peers.
        alone = sends[nodes.roles[sends] != PlanRole.MULTIMEM]
        alone = alone[np.argsort(nodes.channel[alone], kind="stable")]
        before, after = alone[:-1], alone[1:]
        same = nodes.channel[before] == nodes.channel[after]
        before, after = stores[before[same]], after[same]
        edges += [[after, before], [stores[after], before]]
    child, parent = np.unique(np.concatenate(edges, axis=1), axis=1)
    counted = old.need - np.bincount(nodes.child, minlength=n)
    need = np.bincount(child, minlength=n + k) + np.append(counted, counted[sends])
    more = {
        "rows": STORE_ROW, "nbytes": 0, "duration": busy, "peer": -1, "tag": 0, "slot": NO_SLOT, "instance": -1,
        "node_id": program.node_id[-1] + np.arange(1, k + 1, dtype=np.uint64),
    }  # fmt: skip
    columns: dict[str, Any] = {name: _appended(getattr(program, name), values, k) for name, values in more.items()}
    return replace(
        program,
        structure=structure(_appended(old.kind, COMPUTE, k), need, child, parent),
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
