"""Lower bound of a problem's makespan, for any algorithms of its collectives."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import islice

import numpy as np

from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.core.by_need import load
from astrasim_py.core.rows import joined, pointers
from astrasim_py.core.units import PS_PER_S, format_size
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import COLLECTIVE, COMPUTE_SLOT, CPU_SLOT, RECV, SEND, RankProgram
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import Capacities, demand, may_reduce, member_times

#: Nodes of a longest path that is walked: some seconds.
MAX_PATH_NODES = 2**20


def at_best(problem: Problem) -> Topology:
    """The topology with the least latency and the highest rate that any message has on each link: for lower bounds."""
    profile = problem.network.profile
    if profile is None and problem.topology.events:
        from astrasim_py.topology.link_states import best_of_events

        return best_of_events(problem.topology)
    if profile is None:
        return problem.topology
    from astrasim_py.dialects.library import lower_costs

    return lower_costs.at_best(problem, profile)


def proven_bound(plan: Plan) -> tuple[int | None, str]:
    """Lower bound of the makespan, ps, and what proves it; None where no bound applies.

    The greatest of: the longest path through the workload; the bounds of single collectives; the bytes of an NPU's
    links, and of all links, over their rates; the compute of a rank over its slots. On the path a member leaves a
    collective after its links have carried their least bytes (to a switch, where switches may take part) and the
    members that it depends on could reach it; a node that consumes a tile may begin with the collective, which begins
    with its first tile; tiles share the slots of their rank. Bounds of successive collectives are not added: one may
    begin on some members while another still ends on others. A path of more than `MAX_PATH_NODES` nodes is left out.
    """
    parts = bound_parts(plan)
    return (None, "") if parts is None else max(((ps, of) for of, ps in parts.items()), key=lambda part: part[0])


def bound_parts(plan: Plan) -> dict[str, int] | None:
    """The lower bounds of which `proven_bound` is the greatest, ps, by what each is of; None where none applies."""
    problem = plan.problem
    if not problem.bounds_hold or any(i.bound < 0 for i in plan.instances.values):
        return None
    capacities = Capacities(at_best(problem))
    walked = 1 if _symmetric(plan, capacities) else plan.npu_ranks
    parts = dict([_compute(plan)])
    single = max(plan.instances.values, key=lambda instance: instance.bound, default=None)
    if single is not None:
        of = f"{single.type} of {format_size(single.size)} in group {single.group or 'of all'}"
        parts[f"{of}: {single.bound_by}" if single.bound_by else of] = single.bound
    parts["bytes on links"] = _links(plan, capacities)
    if plan.p2p and sum(map(len, plan.workload.shared[:walked])) <= MAX_PATH_NODES:
        path = _LongestPath(plan, capacities, [*islice(plan.workload, walked)])
        end = path.run()
        parts[f"the longest path through the workload, which ends on {plan.rank_name(path.last)}"] = end
    return parts


def _compute(plan: Plan) -> tuple[str, int]:
    """The compute of the rank that has most over its slots, ps."""
    semantics, first = plan.problem.semantics, dict[RankProgram, int]()
    for rank, program in enumerate(plan.workload.shared):
        first.setdefault(program, rank)
    best, where = 0, 0
    for program, rank in first.items():
        for slot, count in ((CPU_SLOT, semantics.cpu_slots), (COMPUTE_SLOT, semantics.compute_slots)):
            if count is not None:
                total = -(-sum(program.duration[program.slot == slot].tolist()) // count)
                best, where = (total, rank) if total > best else (best, where)
    return f"compute on {plan.rank_name(where)}", best


def _links(plan: Plan, capacities: Capacities) -> int:
    """Time bound of the links: bytes that must cross each NPU's links, and all links, over their rates."""
    npu_of = np.asarray(plan.npu_of[: plan.npu_ranks], dtype=np.int64)
    # Python integers: sums over a workload may exceed 64 bits.
    into, out = (np.zeros(plan.problem.topology.npus, dtype=object) for _ in range(2))
    total = 0
    for instance, number in zip(plan.instances.values, np.bincount(plan.instances.which).tolist(), strict=True):
        if instance.type == CUSTOM:
            continue  # its own bound has its bytes
        reduced = may_reduce(plan.problem.topology, instance.algorithms)
        need = demand(instance.type, instance.size, len(instance.members), reduced)
        total += number * need.total
        npus = npu_of[np.asarray(instance.members, dtype=np.int64)]
        for array, (of_root, of_others) in ((into, need.ingress), (out, need.egress)):
            array[npus] += number * of_others
            array[npus[instance.root]] += number * (of_root - of_others)
    sent: dict[RankProgram, tuple[int, int]] = {}
    for program in dict.fromkeys(plan.workload.shared):
        kind = program.structure.kind
        sent[program] = sum(program.nbytes[kind == SEND].tolist()), sum(program.nbytes[kind == RECV].tolist())
    if any(map(any, sent.values())):
        for npu, program in zip(plan.npu_of, plan.workload.shared[: plan.npu_ranks], strict=False):
            out[npu] += sent[program][0]
            total += sent[program][0]
            into[npu] += sent[program][1]
    used = np.flatnonzero(np.bincount(npu_of))
    kinds = capacities.kind[used].tolist()

    def longest(nbytes: np.ndarray, rates: list[Fraction]) -> Fraction:
        pairs = set(zip(kinds, nbytes[used].tolist(), strict=True))
        return max((count / rates[kind] for kind, count in pairs if count), default=Fraction(0))

    best = longest(into, capacities.ingress)
    if plan.problem.network.send_completes == "delivery":
        best = max(best, longest(out, capacities.egress))
    if total:
        best = max(best, total / capacities.rate_in(used))
    return int(best * PS_PER_S)


class _LongestPath:
    """Longest path over all ranks: a node's end follows from the ends of its parents and partners."""

    def __init__(self, plan: Plan, capacities: Capacities, workload: Sequence[RankProgram]) -> None:
        self.plan, self.workload = plan, workload
        self.capacities = capacities
        self.delivery = plan.problem.network.send_completes == "delivery"
        #: All ranks are symmetric: only rank 0 is walked.
        self.symmetric = len(workload) < plan.npu_ranks
        lengths = [len(program) for program in workload]
        #: First node of each rank in `starts` and `need`, which are by node.
        self.first = pointers(lengths).tolist()
        self.starts = np.repeat(np.array(plan.start_delay[: len(workload)], dtype=object), lengths).tolist()
        self.need = joined([program.structure.need for program in workload], np.int32).tolist()
        self.match_key = cache(lambda job, position: plan.p2p[job][position])
        self.makespan = self.last = 0
        roots = cache(lambda structure: structure.roots.tolist())
        self.ready = [(rank, node) for rank, p in enumerate(workload) for node in roots(p.structure)]
        self.arrivals: list[dict[int, tuple[int, int]]] = [{} for _ in range(len(plan.instances))]
        self.times: dict[tuple, tuple[list[int], list[int]]] = {}
        #: By rank and node: the nodes that consume tiles of a collective; the collective of which it produces a tile.
        self.consumers: dict[tuple[int, int], list[int]] = {}
        self.produced: dict[tuple[int, int], int] = {}
        self.slots = plan.problem.semantics.compute_slots
        #: Earliest start and sum of durations of computations on a rank with tiles: by node, of those that it waits
        #: for; by rank and collective, of those that produce tiles of it.
        self.loads: dict[int | tuple[int, int], list[int]] = {}
        #: By rank and collective: ends of the nodes that have produced tiles of it, and how many do.
        self.tile_ends: dict[tuple[int, int], list[int]] = {}
        self.tiles: Counter = Counter()
        for rank, program in enumerate(workload):
            for side, node, collective, *_ in () if program.tiles is None else program.tiles.rows.tolist():
                if side:
                    self.produced[rank, node] = collective
                    self.tiles[rank, collective] += 1
                else:
                    self.consumers.setdefault((rank, collective), []).append(node)
        #: Job and match key → rank, node and time of the end of a message that was visited first.
        self.first_ends: dict[tuple[int, int], tuple[int, int, int]] = {}

    def run(self) -> int:
        while self.ready:
            rank, node = self.ready.pop()
            program, start = self.workload[rank], self.starts[self.first[rank] + node]
            kind = program.structure.kind[node]
            if kind == COLLECTIVE:
                self.collective(rank, node, start, int(program.instance[node]))
            elif kind in (SEND, RECV):
                self.message(rank, node, start, sends=bool(kind == SEND))
            else:
                duration = int(program.duration[node])
                if program.tiles is not None and program.slot[node] == COMPUTE_SLOT and self.slots:
                    self.load(rank, node, start, duration)
                self.finish(rank, node, start + duration)
        return self.makespan

    def load(self, rank: int, node: int, start: int, duration: int) -> None:
        """What waits for several computations waits until the slots of the rank have done them all."""
        structure, collective = self.workload[rank].structure, self.produced.get((rank, node))
        children = structure.succ[structure.succ_ptr[node] : structure.succ_ptr[node + 1]].tolist()
        for key in (
            *(self.first[rank] + child for child in children),
            *[(rank, collective)] * (collective is not None),
        ):
            load = self.loads.setdefault(key, [start, 0])
            load[:] = min(load[0], start), load[1] + duration

    def loaded(self, key: int | tuple[int, int]) -> int:
        """The earliest end of the computations that something waits for."""
        start, total = self.loads.get(key, (0, 0))
        # Loads are counted where there are slots.
        return start - (-total // (self.slots or 1)) if total else start

    def reach(self, rank: int, time: int) -> None:
        """The run lasts until `time` at least, which a rank reaches."""
        if time > self.makespan:
            self.makespan, self.last = time, rank

    def finish(self, rank: int, node: int, end: int) -> None:
        self.reach(rank, end)
        structure = self.workload[rank].structure
        self.release(rank, structure.succ[structure.succ_ptr[node] : structure.succ_ptr[node + 1]].tolist(), end)
        collective = self.produced.get((rank, node))
        if collective is not None:
            ends = self.tile_ends.setdefault((rank, collective), [])
            ends.append(end)
            if len(ends) == self.tiles[rank, collective]:
                self.release(rank, [collective], min(ends))

    def release(self, rank: int, nodes: Sequence[int], time: int) -> None:
        """Nodes wait for one thing less, which took until `time`."""
        for node in nodes:
            index = self.first[rank] + node
            self.starts[index] = max(self.starts[index], time)
            self.need[index] -= 1
            if not self.need[index]:
                self.starts[index] = max(self.starts[index], self.loaded(index))
                self.ready.append((rank, node))

    def message(self, rank: int, node: int, start: int, *, sends: bool) -> None:
        plan, program = self.plan, self.workload[rank]
        job = plan.job_of[rank]
        first = plan.first_rank[job]
        # Messages of a channel may pair in any order: then only the send's own time is counted.
        key = int(self.match_key(job, rank - first)[node])
        time = start
        if sends:
            time += self.message_ps(rank, first + int(program.peer[node]), int(program.nbytes[node]))
            self.finish(rank, node, time if self.delivery else start)
        elif key < 0:
            self.finish(rank, node, start)
        if key < 0:
            return
        other = self.first_ends.pop((job, key), None)
        if other is None:
            self.first_ends[job, key] = rank, node, time
        else:
            receiver = other[:2] if sends else (rank, node)
            self.finish(*receiver, max(time, other[2]))

    def message_ps(self, src: int, dst: int, nbytes: int) -> int:
        plan, best, qps = self.plan, self.capacities.topology, self.plan.problem.network.qps
        first = (plan.npu_of[src] * best.vertices + plan.npu_of[dst]) * qps
        tables = [state.routes for _, state in plan.states] or [plan.routes]
        routes = [table[pair] for table in tables for pair in range(first, first + qps) if table[pair]]
        rate = max((min(map(best.bandwidth, route)) for route in routes), default=1)
        return min((int(best.latency_ps[[*route]].sum()) for route in routes), default=0) + int(
            nbytes * PS_PER_S / rate
        )

    def collective(self, rank: int, node: int, start: int, number: int) -> None:
        instance, arrivals = self.plan.instances[number], self.arrivals[number]
        arrivals[rank] = (node, start)
        self.release(rank, self.consumers.get((rank, node), ()), start)
        members = (rank,) if self.symmetric else instance.members
        if len(arrivals) < len(members):
            return
        starts = [arrivals[r][1] for r in members]
        earliest, last = min(starts), max(starts)
        self.reach(rank, earliest + max(instance.bound, 0))
        npus = tuple(self.plan.npu_of[r] for r in instance.members)
        to_switch = may_reduce(self.plan.problem.topology, instance.algorithms)
        key: tuple[object, ...] = (instance.type, instance.size, instance.root, npus, to_switch)
        if instance.type == CUSTOM and (key := (*key, *instance.algorithms)) not in self.times:
            of_contract = load("astrasim_py.verification.contract_bounds:contract_times")
            self.times[key] = of_contract(instance.algorithms[0], instance.size, self.capacities, npus)
        if key not in self.times:
            self.times[key] = member_times(
                instance.type, instance.size, self.capacities, npus, instance.root, to_switch=to_switch
            )
        into, out = self.times[key]
        promise = promise_of(instance.type)
        producers = [(r, arrivals[r][0]) for r in members]
        produced = [max(*self.tile_ends.get(producer, (0,)), self.loaded(producer)) for producer in producers]
        if not promise.rooted and not promise.scatters and (promise.gathers or promise.reduces):
            produced = [max(produced)] * len(members)  # every rank's whole input is in every rank's output
        for position, member in enumerate(members):
            end = max(starts[position], produced[position])
            if len(instance.members) > 1:
                if into[position]:
                    end = max(end, earliest + into[position])
                if out[position] and self.delivery:
                    end = max(end, starts[position] + out[position])
                if promise.from_root:
                    end = max(end, starts[instance.root])
                elif (not promise.rooted or position == instance.root) and instance.type != CUSTOM:
                    end = max(end, last)
            self.finish(member, arrivals[member][0], end)


def _symmetric(plan: Plan, capacities: Capacities) -> bool:
    """Every rank runs the same workload, on an NPU like all others, in collectives of all of them."""
    return (
        len(set(plan.start_delay)) == 1
        and plan.workload.alike
        and not bool((plan.workload[0].peer >= 0).any())
        and len(np.unique(capacities.kind[np.asarray(plan.npu_of, dtype=np.int64)])) == 1
        and all(not promise_of(i.type).rooted and len(i.members) == plan.ranks for i in plan.instances.values)
    )
