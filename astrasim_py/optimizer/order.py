"""The order in which nodes that are ready together are issued: a permutation of the ids of a workload's nodes.

Ready nodes go in ascending id. Exchanged are ids of compute nodes, and of collectives whose groups are called by this
trace alone; collectives that several traces call keep their order, so that the k-th call of a group stays the k-th on
every member.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import MISSING, REFERENCES, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError
from astrasim_py.core.units import number_of
from astrasim_py.optimizer.choices import Choice
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import COLLECTIVE

#: Largest trace whose order is chosen, most orders that are listed, and how far apart exchanged nodes are.
_MOST_NODES, _MOST_ORDERS, _REACH = 20_000, 120, 16
#: Most nodes of which all orders are listed.
_MOST_LISTED = 12
#: Rules of ``priority``.
LONGEST, CALLS = "longest path first", "communication first"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What orders need to know of a job's workload, by number of its distinct traces.

    `rows`: of the movable nodes. `stay`: rows of the collectives that keep their order, as they are executed. `keys`:
    by rule of ``priority``, int64 by row: what the rows are sorted by. `dependencies`: those that hold.
    """

    rows: tuple[np.ndarray, ...]
    stay: tuple[list[int], ...]
    keys: tuple[Mapping[str, np.ndarray], ...]
    dependencies: str


@dataclass(frozen=True, kw_only=True)
class TraceChoice(Choice):
    """A choice of an order: it changes traces, and not the configuration."""

    def reorder(self, workload: Workload, value: Any, facts: Facts) -> Workload:
        """The workload of its job with a value other than the first. `facts`: of the workload before all orders.

        Raises TraceError: the order does not fit it, or moves collectives of which other ranks would not know.
        """
        reordered = {}
        for number, trace in enumerate(dict.fromkeys(workload.traces)):
            rows = facts.rows[number]
            reordered[trace] = self.changed(number, trace, rows[np.argsort(trace.node_id[rows])], value, facts)
            if _staying(reordered[trace], rows, facts.dependencies) != facts.stay[number]:
                problem = "this order moves a collective that ranks with other traces call as well"
                raise TraceError(trace.place, problem, "keep the order of such collectives")
        return replace(workload, traces=tuple(reordered[trace] for trace in workload.traces))

    def changed(self, number: int, trace: ExecutionTrace, rows: np.ndarray, value: Any, facts: Facts) -> ExecutionTrace:
        """The distinct trace of this number in a new order; `rows`: its movable ones, by id."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OrderChoice(TraceChoice):
    """The order of one trace: pairs of places among its movable nodes that are exchanged in turn; the first is none."""

    trace: int
    free: Mapping[int, tuple[int, ...]]  # place -> later places whose nodes do not depend on its node

    def changed(self, number: int, trace: ExecutionTrace, rows: np.ndarray, value: Any, facts: Facts) -> ExecutionTrace:
        if number != self.trace:
            return trace
        if len(rows) <= max(max(pair) for pair in value):
            raise TraceError(trace.place, "this order is of more nodes", "drop it")
        order = rows.copy()
        for a, b in value:
            order[[a, b]] = order[[b, a]]
        return renumbered(trace, rows, order)

    def move(self, value: Any, random: Random, likely: Sequence = ()) -> Any:
        if self.whole:
            return super().move(value, random)
        if value and random.random() < 0.25:
            gone = random.randrange(len(value))
            return (*value[:gone], *value[gone + 1 :])
        first = random.choice(list(self.free))
        return (*value, (first, random.choice(self.free[first])))

    def say(self, value: Any) -> str:
        return number_of(len(value), "exchange") if value else "as in the workload"


@dataclass(frozen=True, kw_only=True)
class PriorityChoice(TraceChoice):
    """The rule by which the movable nodes of all traces of a job are ordered; the first is none."""

    def changed(self, number: int, trace: ExecutionTrace, rows: np.ndarray, value: Any, facts: Facts) -> ExecutionTrace:
        return renumbered(trace, rows, rows[np.argsort(facts.keys[number][value][rows], kind="stable")])


def _movable(workload: Workload) -> list[np.ndarray]:
    """By distinct trace, the rows whose ids may be exchanged, by id."""
    groups: dict[ExecutionTrace, dict[str, set[str]]] = {trace: {} for trace in workload.traces}
    for rank, trace in enumerate(workload.traces):
        for name in trace.group_of()[1]:
            group_name = workload.group(name, rank)
            groups[trace].setdefault(name, set()).add("" if group_name in ("0", "world") else group_name)
    movable = []
    for trace in groups:
        others = {
            group for t, names in groups.items() if t is not trace for members in names.values() for group in members
        }
        codes, names = trace.group_of()
        single = len(groups) == 1  # then all ranks have this trace
        alone = [single or ("" not in m and m.isdisjoint(others)) for m in (groups[trace][n] for n in names)]
        in_group = np.array([*alone, single])[codes]
        rows = np.flatnonzero((trace.type == NodeType.COMP) | ((trace.type == NodeType.COMM_COLL) & in_group))
        movable.append(rows[np.argsort(trace.node_id[rows])])
    return movable


def _staying(trace: ExecutionTrace, rows: np.ndarray, dependencies: str) -> list[int]:
    """Rows of the collectives that keep their order, in the order of execution. `rows`: those that may move."""
    order = trace.order(dependencies)
    return order[np.isin(order, rows, invert=True) & (trace.type[order] == NodeType.COMM_COLL)].tolist()


def renumbered(trace: ExecutionTrace, rows: np.ndarray, order: np.ndarray) -> ExecutionTrace:
    """A trace in which `rows` have their ids in the order of `order`, a permutation of them by id."""
    ids = trace.node_id.copy()
    ids[order] = trace.node_id[rows]
    columns: dict[str, Csr | np.ndarray] = {
        name: Csr(part.ptr, ids[trace.rows_of(part.ids)])
        for name, part in (("data_deps", trace.data_deps), ("ctrl_deps", trace.ctrl_deps))
        if len(part.ids)
    }
    for name in REFERENCES:
        if trace.has_column(name):
            column = trace.column(name).copy()
            there = column != MISSING
            column[there] = ids[trace.rows_of(column[there].astype(np.uint64))].astype(np.int64)
            columns[name] = column
    return trace.replace(node_id=ids, **columns)


def facts_of(plan: Plan, job: int) -> Facts:
    """Facts of the workload of a job of a plan."""
    placed_job = plan.problem.jobs[job]
    workload, dependencies = placed_job.workload, placed_job.ordered_by(plan.problem.semantics)
    distinct, movable = list(dict.fromkeys(workload.traces)), _movable(workload)
    ranks = [plan.first_rank[job] + workload.traces.index(trace) for trace in distinct]
    return Facts(
        rows=tuple(movable),
        stay=tuple(_staying(trace, rows, dependencies) for trace, rows in zip(distinct, movable, strict=True)),
        keys=tuple(_keys(plan, rank, dependencies) for rank in ranks),
        dependencies=dependencies,
    )


def order_choices(
    plan: Plan, job: int, name: str, kinds: tuple[str, ...], *, exchanges: bool = True
) -> Iterator[Choice]:
    """The choices of orders in the workload of a job; none where nothing is free. `exchanges`: also of ``order``."""
    placed_job = plan.problem.jobs[job]
    distinct = list(dict.fromkeys(placed_job.workload.traces))
    if {"order", "priority"}.isdisjoint(kinds) or max(map(len, distinct)) > _MOST_NODES:
        return
    if placed_job.skeleton or placed_job.iterations > 1 or placed_job.algorithms.nodes:
        return
    dependencies = placed_job.ordered_by(plan.problem.semantics)
    movable = _movable(placed_job.workload)
    free = [_free(trace, rows, dependencies) for trace, rows in zip(distinct, movable, strict=True)]
    if "priority" in kinds and any(free):
        values = ("as in the workload", LONGEST, CALLS)
        yield PriorityChoice(kind="priority", name="issue order", job=name, values=values)
    for number, (trace, pairs) in enumerate(zip(distinct, free, strict=True)):
        if pairs and exchanges and "order" in kinds:
            orders = _extensions(trace, movable[number], dependencies) if len(movable[number]) <= _MOST_LISTED else None
            like = " and of those like it" if len(distinct) < placed_job.ranks else ""
            yield OrderChoice(
                kind="order",
                name=f"order of the nodes of rank {placed_job.workload.traces.index(trace)}{like}",
                job=name,
                values=((),) if orders is None else orders,
                whole=orders is not None,
                trace=number,
                free=pairs,
            )


def _before(trace: ExecutionTrace, dependencies: str) -> list[int]:
    """By row, the rows that must be done before it, as bits."""
    ptr, parents = trace.parents(dependencies)
    before = [0] * len(trace)
    for row in trace.order(dependencies).tolist():
        for parent in parents[ptr[row] : ptr[row + 1]].tolist():
            before[row] |= before[parent] | 1 << parent
    return before


def _free(trace: ExecutionTrace, rows: np.ndarray, dependencies: str) -> dict[int, tuple[int, ...]]:
    """Places among `rows` -> near later places of rows of which neither depends on the other."""
    before, near_of = _before(trace, dependencies), {}
    row_list = rows.tolist()
    for place, row in enumerate(row_list):
        near = enumerate(row_list[place + 1 : place + 1 + _REACH], place + 1)
        apart = tuple(later for later, other in near if not (before[other] >> row | before[row] >> other) & 1)
        if apart:
            near_of[place] = apart
    return near_of


def _extensions(trace: ExecutionTrace, rows: np.ndarray, dependencies: str) -> tuple | None:
    """Every order of `rows` that dependencies allow, as exchanges; None where there are too many."""
    before, row_list = _before(trace, dependencies), rows.tolist()
    orders: list[list[int]] = []

    def extend(order: list[int]) -> None:
        if len(orders) > _MOST_ORDERS:
            return
        if len(order) == len(row_list):
            orders.append(order)
        for row in row_list:
            if row not in order and not any(before[row] >> other & 1 for other in row_list if other not in order):
                extend([*order, row])

    extend([])
    if len(orders) > _MOST_ORDERS:
        return None
    exchanges = dict.fromkeys(_exchanges(row_list, order) for order in orders)
    return tuple(dict.fromkeys(((), *exchanges)))


def _exchanges(rows: list[int], order: list[int]) -> tuple[tuple[int, int], ...]:
    """Exchanges of places that bring a list into an order."""
    current, pairs = list(rows), []
    for place, row in enumerate(order):
        other = current.index(row)
        if other != place:
            current[place], current[other] = current[other], current[place]
            pairs.append((place, other))
    return tuple(pairs)


def _keys(plan: Plan, rank: int, dependencies: str) -> dict[str, np.ndarray]:
    """By rule, int64 by row of the trace of a rank: what its nodes are sorted by."""
    trace, program = plan.trace(rank, -1), plan.workload[rank]
    took = np.zeros(len(trace), dtype=np.int64)
    took[program.rows] = program.duration
    calls = np.flatnonzero(program.structure.kind == COLLECTIVE)
    took[program.rows[calls]] = [max(plan.instances[int(program.instance[node])].bound, 0) for node in calls]
    communicates = ~np.isin(trace.type, [NodeType.COMP, NodeType.METADATA, NodeType.INVALID])
    ptr, parents = trace.parents(dependencies)
    far = 2**62
    longest, until = took.copy(), np.where(communicates, 0, far)
    for row in trace.order(dependencies)[::-1].tolist():
        for parent in parents[ptr[row] : ptr[row + 1]].tolist():
            longest[parent] = max(longest[parent], took[parent] + longest[row])
            if not communicates[parent]:
                until[parent] = min(until[parent], until[row] + took[row])
    return {LONGEST: -longest, CALLS: until}
