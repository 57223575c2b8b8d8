"""Classes of ranks that share a trace, the collectives that they call, and what these take on idle links."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import FoldError
from astrasim_py.core.records import Records
from astrasim_py.engine.fold_traffic import route_table
from astrasim_py.engine.recorder import LINK_TOTALS
from astrasim_py.system.plan import Instance, Plan
from astrasim_py.system.problem import Job, PlacedPlanner, Problem
from astrasim_py.system.programs import COLLECTIVE
from astrasim_py.system.routes import Traffic
from astrasim_py.system.symmetry import refuse

#: Columns of a node that say which collective it calls.
CALL_COLUMNS = ("comm_type", "comm_size", "coll_size", "comm_root", "comm_priority")

Run = Callable[[Problem, str], tuple[Plan, Records]]


@dataclass(frozen=True, eq=False)
class Family:
    """A collective as all groups of a role call it: those of the members of some classes."""

    name: str  # of the role in traces
    values: tuple[int, ...]  # places among the distinct instances of the plan
    members: np.ndarray  # int64: ranks, ascending
    row: tuple[ExecutionTrace, int]  # a node that calls it


class Classes:
    """The classes of a plan, and what each calls.

    `of`: int64[ranks]: class of each rank. `instances`: by rank int32: instance of each call. `families`: by class the
    family of each call, as a place in `every`. `roles`: by class the name of the group in the trace, by call.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.workload = plan, plan.problem.jobs[0].workload
        number = {trace: place for place, trace in enumerate(dict.fromkeys(self.workload.traces))}
        self.traces = list(number)
        self.of = np.array([number[trace] for trace in self.workload.traces], dtype=np.int64)
        self.ranks = [np.flatnonzero(self.of == each) for each in range(len(self.traces))]
        self.shared = [plan.workload.shared[int(ranks[0])] for ranks in self.ranks]
        instances = plan.workload.instances
        assert instances is not None  # of workloads
        self.instances = list(instances)
        self.every: list[Family] = []
        self.families: list[np.ndarray] = []
        self.roles: list[list[str]] = []
        known: dict[tuple, int] = {}
        for each in range(len(self.traces)):
            self._read(each, known)
        shifts = np.array(self.workload.shifts, dtype=np.int64)
        #: By class the peers of its first rank, and by rank what is added to them.
        self.peers = [np.unique(program.peer[program.peer >= 0]).astype(np.int64) for program in self.shared]
        self.shifts = shifts

    def _read(self, each: int, known: dict[tuple, int]) -> None:
        ranks, trace = self.ranks[each], self.traces[each]
        if (trace.column("is_cpu_op") > 0).any():
            raise refuse("operations of the CPU (is_cpu_op) take the slot of folded collectives")
        rows = self.call_rows(each)
        planned = self.plan.problem.jobs[0].planner is not None and trace.raw is not None
        if planned and any(trace.attribute(row, "involved_dim") is not None for row in rows.tolist()):
            raise refuse("collectives name their dimensions (involved_dim)")
        codes, names = trace.group_of()
        self.roles.append([names[code] if code >= 0 else "" for code in codes[rows].tolist()])
        which = self.plan.instances.which
        table = np.stack([which[self.instances[rank]] for rank in ranks.tolist()]) if len(rows) else None
        found = np.zeros(len(rows), dtype=np.int64)
        if table is not None:
            _, first, inverse = np.unique(table[0], return_index=True, return_inverse=True)
            inverse = inverse.reshape(-1)
            if not np.array_equal(table, table[:, first[inverse]]):
                raise refuse(f"ranks like rank {ranks[0]} are not in alike groups in all calls")
            for place in first.tolist():
                values = tuple(np.unique(table[:, place]).tolist())
                if values not in known:
                    known[values] = len(self.every)
                    members = [self.plan.instances.values[value].members for value in values]
                    called = self.roles[each][place], values, np.unique(np.concatenate(members)).astype(np.int64)
                    self.every.append(Family(*called, (trace, int(rows[place]))))
                found[inverse == inverse[place]] = known[values]
        self.families.append(found)

    def call_rows(self, each: int) -> np.ndarray:
        """Rows of a class's trace that call collectives, by call."""
        program = self.shared[each]
        nodes = np.flatnonzero(program.structure.kind == COLLECTIVE)
        rows = np.empty(len(nodes), dtype=np.int64)
        rows[program.instance[nodes]] = program.rows[nodes]
        return rows

    def across(self) -> frozenset[str]:
        """Roles with at most one rank of each class per group."""
        folded = {
            family.name
            for family in self.every
            for value in family.values
            if len(set((of := self.of[list(self.plan.instances.values[value].members)]).tolist())) < len(of)
        }
        return frozenset(family.name for family in self.every) - folded

    def copies(self, kept: Collection[str]) -> np.ndarray:
        """int64[copies, size]: ranks of each copy, ascending. Raises FoldError: the copies differ."""
        label = np.arange(self.plan.ranks)
        sets = [
            np.array(self.plan.instances.values[value].members)
            for members in dict.fromkeys(family.values for family in self.every if family.name in kept)
            for value in members
        ]
        pairs = [
            np.stack([ranks, ranks * 0 + peer + self.shifts[ranks]])
            for ranks, peers in zip(self.ranks, self.peers, strict=True)
            for peer in peers
        ]
        source, target = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), dtype=np.int64)
        while True:
            before = label.copy()
            low = np.minimum(label[source], label[target])
            np.minimum.at(label, source, low)
            np.minimum.at(label, target, low)
            for ranks in sets:
                label[ranks] = label[ranks].min()
            if np.array_equal(label, before):
                break
        first, counts = np.unique(label, return_counts=True)
        if len(set(counts.tolist())) > 1:
            other = first[counts != counts[0]][0]
            raise refuse(f"ranks {first[0]} and {other} exchange messages with different numbers of ranks")
        copies = np.argsort(label, kind="stable").reshape(len(first), -1)
        odd = np.argwhere(self.of[copies] != self.of[copies[0]])
        if len(odd):
            row, place = odd[0].tolist()
            raise refuse(f"rank {copies[row, place]} and rank {copies[0, place]} do not share a trace")
        return copies

    def nodes(self, kept: Collection[str]) -> int:
        """Nodes of the traces of a copy."""
        return sum(len(self.traces[number]) for number in self.of[self.copies(kept)[0]].tolist())


@dataclass(frozen=True, eq=False)
class Price:
    """Times of a family's collective: on idle links, and with all its groups at once.

    `times`: int64[members], ps. `links`: int64; `totals`: int64[6, links], the other columns of `LINK_TOTALS`.
    """

    times: np.ndarray
    links: np.ndarray
    totals: np.ndarray
    messages: int
    hops: int


def placed(job: Job, workload: Workload, placement: tuple[int, ...]) -> Job:
    """A job with a part of its ranks; rank r is on NPU `placement[r]`."""
    planner = job.planner
    if planner is not None:
        assert isinstance(planner, PlacedPlanner)  # others are refused
        planner = planner.placed(placement)
    return replace(job, workload=workload, placement=placement, planner=planner)


class Prices:
    """Prices of families; equal ones (kind, size, groups, routes) are simulated once."""

    def __init__(self, classes: Classes, run: Run) -> None:
        self.classes, self.plan, self.run = classes, classes.plan, run
        self.events, self.runs = 0, 0
        self._known: dict[int, Price] = {}
        self._made: dict[tuple, tuple[Records, np.ndarray]] = {}

    def __getitem__(self, index: int) -> Price:
        if index not in self._known:
            self._known[index] = self._price(self.classes.every[index])
        return self._known[index]

    def _price(self, family: Family) -> Price:
        plan, topology = self.plan, self.plan.problem.topology
        values = [plan.instances.values[value] for value in family.values]
        npus = np.array(plan.npu_of, dtype=np.int64)
        traffic = Traffic(plan.npu_of, topology, plan.problem.semantics.rendezvous_bytes)
        for call in dict.fromkeys(call for value in values for call in value.calls):
            traffic.add(call.programs, call.members)
        pairs, ptr, links = traffic.routes()
        if links is None:
            raise refuse(f"the routes of {family.name or 'the world'} are too many for a table")
        place = np.zeros(topology.vertices, dtype=np.int64)
        place[npus[family.members]] = np.arange(len(family.members))
        local = place[pairs // topology.vertices] * len(family.members) + place[pairs % topology.vertices]
        table = route_table(topology, local, ptr, links)
        groups = tuple(
            (value.type, value.size, value.root, _plan_of(value, family.members))
            + tuple(np.searchsorted(family.members, value.members).tolist())
            for value in values
        )
        key = groups, table.key
        if key not in self._made:
            records = self.run(self._problem(family), "links")[1]
            check_finished(records, f"a collective of {family.name or 'all ranks'}")
            order = np.full(len(topology.src), -1, dtype=np.int64)
            order[table.links] = np.arange(len(table.links))
            self._made[key] = records, order[records.link["link"]]
            self.events, self.runs = self.events + records.events, self.runs + 1
        records, index = self._made[key]
        totals = np.stack([records.link[name] for name in LINK_TOTALS[1:]])
        return Price(records.finish, table.links[index], totals, records.messages, records.message_hops)

    def _problem(self, family: Family) -> Problem:
        """All groups of a family call its collective once."""
        plan, (trace, row) = self.plan, family.row
        job, ranks = plan.problem.jobs[0], family.members
        values = [plan.instances.values[value] for value in family.values]
        members_of = {value.group: tuple(np.searchsorted(ranks, value.members).tolist()) for value in values}
        groups = {name: members for name, members in members_of.items() if name in self.classes.workload.groups}
        group_of = dict.fromkeys(range(len(ranks)), family.name)
        group_of |= {rank: name for name, members in groups.items() for rank in members}
        columns = {name: trace.column(name)[[row]] for name in CALL_COLUMNS if trace.has_column(name)}
        name = [family.name or None]
        shared = ExecutionTrace.from_columns(
            node_id=trace.node_id[[row]], type=NodeType.COMM_COLL, pg_name=name, is_cpu_op=0, **columns
        )
        roles = {family.name: [group_of[rank] for rank in range(len(ranks))]} if groups.keys() != {family.name} else {}
        roles = {} if family.name not in self.classes.workload.roles else roles
        workload = Workload((shared,) * len(ranks), groups, f"{family.name} alone", roles=roles)
        placement = tuple(plan.npu_of[rank] for rank in ranks.tolist())
        return replace(plan.problem, jobs=(placed(job, workload, placement),))


def _plan_of(value: Instance, members: np.ndarray) -> tuple:
    """Algorithms of a collective, and the queues and places of its chunks."""
    if value.only_call is not None:
        return (value.only_call.algorithm,)
    return tuple(
        (chunk.priority, chunk.turns, phase.queue, phase.priority)
        + tuple((call.algorithm, *np.searchsorted(members, call.members).tolist()) for call in phase.calls)
        for chunk in value.chunks
        for phase in chunk.phases
    )


def queues_of_npu(plan: Plan) -> int:
    """Number of the queues of an NPU, 0 without a planner."""
    planner = plan.problem.jobs[0].planner
    return 0 if planner is None else len(planner.capacity)


def queues_of(family: Family, plan: Plan) -> np.ndarray:
    """int64: NPU queues of a family's chunks, ascending, numbered after the links."""
    npus = np.array(plan.npu_of, dtype=np.int64)
    queues = [np.zeros(0, dtype=np.int64)]
    for value in family.values:
        instance = plan.instances.values[value]
        numbers = np.array(sorted({phase.queue for chunk in instance.chunks for phase in chunk.phases}), dtype=np.int64)
        if len(numbers):
            first = len(plan.problem.topology.src) + npus[list(instance.members)] * queues_of_npu(plan)
            queues.append((first[:, None] + numbers).ravel())
    return np.unique(np.concatenate(queues))


def check_finished(records: Records, what: str) -> None:
    """Raise FoldError unless a run is done."""
    if records.outcome.status != "done":
        raise FoldError("fold", f"{what} does not finish: {records.outcome.cause}", "run it without fold")
