"""A copy of the ranks of a folded workload: its problem, its run, and what that says of all ranks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.choices import FOLDED
from astrasim_py.core.records import Fold, Records, Table
from astrasim_py.core.units import format_time, transfer_ps
from astrasim_py.engine.fold_prices import (
    CALL_COLUMNS,
    Classes,
    Prices,
    Run,
    check_finished,
    placed,
    queues_of,
    queues_of_npu,
)
from astrasim_py.engine.fold_times import rank_times, ties
from astrasim_py.engine.fold_traffic import BOUND, FoldedFlow, Meeting, meetings, route_table
from astrasim_py.engine.recorder import LINK_TOTALS, make_records
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.programs import COLLECTIVE
from astrasim_py.system.symmetry import refuse


class Copy:
    """The first of the copies that go with some kept roles, and its run."""

    def __init__(
        self, classes: Classes, prices: Prices, kept: frozenset[str], apart: frozenset[str] | None = None
    ) -> None:
        self.classes, self.prices, self.kept, self.plan = classes, prices, kept, classes.plan
        self.ranks = classes.copies(kept if apart is None else apart)
        self.size = self.ranks.shape[1]
        self.place = np.empty(self.plan.ranks, dtype=np.int64)
        self.copy_of = np.empty(self.plan.ranks, dtype=np.int64)
        self.place[self.ranks] = np.arange(self.size)
        self.copy_of[self.ranks] = np.arange(len(self.ranks))[:, None]
        #: Roles whose groups are in one copy.
        self.inner = kept if apart is None else apart
        #: The ranks that are simulated, and their places.
        self.simulated = self.ranks[0]
        self.local = np.full(self.plan.ranks, -1, dtype=np.int64)
        self.local[self.simulated] = np.arange(self.size)
        self._check_peers()
        self.own_class = classes.of[self.ranks[0]]
        folded = [np.array([role not in kept for role in roles], dtype=bool) for roles in classes.roles]
        #: By class: calls that are folded.
        self.folded = [np.flatnonzero(each) for each in folded]
        #: Roles with group members that end at different times.
        self.unequal: set[int] = set()
        self.durations = self._durations()

    def _check_peers(self) -> None:
        """Raise unless messages and kept groups of all copies join the same places."""
        classes = self.classes
        for peers, ranks in zip(classes.peers, classes.ranks, strict=True):
            other = self.place[peers[None, :] + classes.shifts[ranks][:, None]]
            _, first, which = np.unique(self.place[ranks], return_index=True, return_inverse=True)
            odd = np.argwhere(other != other[first[which.reshape(-1)]])
            if len(odd):
                raise refuse(f"the peers of rank {ranks[odd[0][0]]} differ from those of other ranks of its class")
        for family in classes.every:
            if family.name not in self.inner:
                continue
            for value in family.values:
                members = np.array(self.plan.instances.values[value].members)
                if len(np.unique(self.copy_of[members])) > 1:
                    raise refuse(f"group {self.plan.instances.values[value].group} is in several copies")
        for each, families in enumerate(classes.families):
            for index in np.unique(families).tolist():
                family = classes.every[index]
                if family.name not in self.inner:
                    continue
                found: dict[int, tuple[int, ...]] = {}
                for value in family.values:
                    members = np.array(self.plan.instances.values[value].members)
                    places = tuple(self.place[members].tolist())
                    for rank in members[classes.of[members] == each].tolist():
                        if found.setdefault(int(self.place[rank]), places) != places:
                            raise refuse(f"the group of rank {rank} differs from those of other ranks of its class")

    def _durations(self) -> list[dict[int, tuple[int, int]]]:
        """By place: least and most picoseconds of each folded family that it calls."""
        classes = self.classes
        found: list[dict[int, tuple[int, int]]] = [{} for _ in range(self.size)]
        indices = sorted({int(i) for each, calls in enumerate(self.folded) for i in classes.families[each][calls]})
        for index in indices:
            price, members = self.prices[index], classes.every[index].members
            least = np.full(self.size, 2**62)
            most = np.full(self.size, -1)
            np.minimum.at(least, self.place[members], price.times)
            np.maximum.at(most, self.place[members], price.times)
            for place in np.flatnonzero(most >= 0).tolist():
                found[place][index] = int(least[place]), int(most[place])
        return found

    def problem(self, which: int) -> Problem:
        """The copy as a separate problem; `which`: 0 for the least times of folded collectives, 1 for the most."""
        plan, classes, workload = self.plan, self.classes, self.classes.workload
        mine = self.simulated
        traces: list[ExecutionTrace] = []
        shifts = np.zeros(len(mine), dtype=np.int64)
        made: dict[tuple, tuple[ExecutionTrace, int]] = {}
        for position, rank in enumerate(mine.tolist()):
            each = int(classes.of[rank])
            times = {index: time[which] for index, time in self.durations[int(self.place[rank])].items()}
            peers = self.local[classes.peers[each] + classes.shifts[rank]]
            key = each, tuple(times.items()), tuple((peers - position).tolist())
            if key not in made:
                made[key] = self._trace(each, rank, times), position
            trace, first = made[key]
            traces.append(trace)
            shifts[position] = position - first
        used = {family.name for family in classes.every if family.name in self.kept}
        roles = {name: [workload.roles[name][rank] for rank in mine] for name in sorted(used & workload.roles.keys())}
        groups = self._groups()
        small = Workload(tuple(traces), groups, workload.name, roles=roles, shifts=shifts.tolist())
        placement = tuple(plan.npu_of[rank] for rank in mine.tolist())
        return replace(
            plan.problem,
            jobs=(self._job(placed(plan.problem.jobs[0], small, placement)),),
            semantics=plan.problem.semantics.model_copy(update={"cpu_slots": None}),
        )

    def _groups(self) -> dict[str, tuple[int, ...]]:
        """Groups among the simulated ranks."""
        inside = set(self.simulated.tolist())
        return {
            name: tuple(self.local[list(members)].tolist())
            for name, members in self.classes.workload.groups.items()
            if members and members[0] in inside and inside.issuperset(members)
        }

    def _job(self, job: Job) -> Job:
        """The job of the simulated ranks, with its algorithms."""
        return job

    def _trace(self, each: int, rank: int, times: dict[int, int]) -> ExecutionTrace:
        """A class's trace as a rank of the copy runs it."""
        classes = self.classes
        trace, calls = classes.traces[each], self.folded[each]
        rows = classes.call_rows(each)[calls]
        families = classes.families[each][calls]
        inside = np.zeros(len(trace), dtype=bool)
        inside[rows] = True
        duration = trace.column("duration_ps").copy()
        duration[rows] = [times[index] for index in families.tolist()]
        columns = {
            name: np.where(inside, MISSING, trace.column(name)) for name in CALL_COLUMNS if trace.has_column(name)
        }
        for name in ("comm_src", "comm_dst"):
            if trace.has_column(name):
                peer = trace.column(name)
                own = self.local[np.where(peer == MISSING, 0, peer + classes.shifts[rank])]
                columns[name] = np.where(peer == MISSING, MISSING, own)
        codes, names = trace.group_of()
        groups = {"pg_name": (np.where(inside, -1, codes).astype(np.int32), names)} if len(names) else {}
        kind = np.where(inside, int(NodeType.COMP), trace.type).astype(np.int8)
        return trace.without_raw().replace(
            type=kind, duration_ps=duration, is_cpu_op=inside.astype(np.int64), **columns, **groups
        )

    def simulate(self, run: Run) -> None:
        """Run the copy, and find what its times leave out."""
        small, self.run = run(self.problem(1), "messages")
        check_finished(self.run, "the run")
        rows = small.first_rows(-1).tolist()
        self._run_times(rows)
        self._routes()
        each_class = self.classes.of[self.simulated].tolist()
        programs = [self.classes.shared[each] for each in each_class]
        nodes = [self._call_nodes(each)[self.folded[each]] for each in each_class]
        self.ties = [tie for tie in ties(self.run, rows, programs, nodes) if tie.rank < self.size]
        self.unequal = {i for times in self.durations for i, (least, most) in times.items() if least != most}
        self.apart: dict[int, int] = {}
        kept, contends = self._kept_flows(), self.plan.problem.network.contention
        flows = self._call_flows(contends)
        self.meetings: list[Meeting] = meetings(flows + kept if contends else flows)
        #: A link that several copies use, and how long they hold each other up, ps.
        self.crowded: tuple[int, int] | None = self._crowded(kept) if contends else None

    def _run_times(self, rows: Sequence[int]) -> None:
        """Starts and ends of the nodes of each rank of the copy; `rows`: the first one of each simulated rank."""
        node, lengths = self.run.node, [len(self.classes.shared[each]) for each in self.own_class.tolist()]
        self.times = [
            (node["start"][row : row + n], node["end"][row : row + n])
            for row, n in zip(rows[: self.size], lengths, strict=True)
        ]

    def unsafe(self) -> frozenset[str]:
        """Folded roles that must be kept for an exact result."""
        found = {flow.role for meeting in self.meetings for flow in meeting.flows if flow.role is not None}
        found |= {self.classes.every[index].name for index in (*self.unequal, *self.apart)}
        for tie in self.ties:
            each = self.own_class[tie.rank]
            ended = self.folded[each][self._calls(tie.rank)[1][self.folded[each]] == tie.time]
            found |= {self.classes.every[index].name for index in self.classes.families[each][ended].tolist()}
        return frozenset(found)

    def _calls(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of the calls of a rank of the copy."""
        nodes = self._call_nodes(self.own_class[place])
        return tuple(times[nodes] for times in self.times[place])

    def _call_nodes(self, each: int) -> np.ndarray:
        """Nodes of a class that call collectives, by call."""
        program = self.classes.shared[each]
        at = np.flatnonzero(program.structure.kind == COLLECTIVE)
        nodes = np.empty(len(at), dtype=np.int64)
        nodes[program.instance[at]] = at
        return nodes

    def _call_flows(self, contends: bool) -> list[FoldedFlow]:
        """Flows of collectives: links of folded ones, and queues of all that are planned by dimension."""
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for place, each in enumerate(self.own_class.tolist()):
            start, end = self._calls(place)
            families = self.classes.families[each]
            for index in np.unique(families).tolist():
                own = np.flatnonzero(families == index)
                begin, stop = start[own], end[own]
                if index in found:
                    first, last = found[index]
                    late = np.abs(first - begin)
                    if late.any() and self.classes.every[index].name not in self.kept:
                        self.apart[index] = self.apart.get(index, 0) + int(late.sum())
                    begin, stop = np.minimum(first, begin), np.maximum(last, stop)
                found[index] = begin, stop
        #: By folded family: how often all its groups call it.
        self.counts: dict[int, int] = {}
        flows = []
        for index, (begin, stop) in found.items():
            family = self.classes.every[index]
            queues = queues_of(family, self.plan)
            ones = np.ones(len(queues), dtype=np.int64)
            links, busy, messages, queue = queues, ones * int((stop - begin).max()), ones, ones * 0
            role = None
            if family.name not in self.kept:
                self.counts[index], role = len(begin), family.name
                if contends:
                    columns = zip(self._busy(index), (links, busy, messages, queue), strict=True)
                    links, busy, messages, queue = map(np.concatenate, columns)
            name = f"collectives of {family.name}"
            flows.append(FoldedFlow(name, role, links, busy, messages, queue, np.sort(begin), np.sort(stop)))
        return flows

    def _busy(self, index: int) -> list[np.ndarray]:
        """Links of a family, ascending, with the time that they serve it, its messages, and the longest queue."""
        price = self.prices[index]
        order = np.argsort(price.links)
        _, busy, messages, queue, *_ = price.totals[:, order]
        used = messages > 0
        return [column[used] for column in (price.links[order], busy, messages, queue)]

    def _routes(self) -> None:
        """Pairs of ranks of the copy that exchange messages, and their routes in all copies."""
        message = self.run.message
        pair = message["src"] * self.size + message["dst"]
        self.pairs, self.pair_of = np.unique(pair, return_inverse=True)
        npus, topology = np.array(self.plan.npu_of, dtype=np.int64), self.plan.problem.topology
        src, dst = (npus[self.ranks[:, places]] for places in (self.pairs // self.size, self.pairs % self.size))
        ptr, links = topology.routes(src.ravel(), dst.ravel())
        per = np.diff(ptr).reshape(len(self.ranks), -1).sum(axis=1)
        bounds = np.concatenate([[0], np.cumsum(per)])
        self.links = []
        first = None
        for number in range(len(self.ranks)):
            own = ptr[number * len(self.pairs) : (number + 1) * len(self.pairs) + 1] - bounds[number]
            table = route_table(topology, self.pairs, own, links[bounds[number] : bounds[number + 1]])
            first = first or table
            if table.key != first.key:
                one, other = self.ranks[number][0], self.ranks[0][0]
                raise refuse(f"routes from rank {one} and those like it differ from those of rank {other}")
            self.links.append(table.links)
        self.pair_ptr = np.diff(ptr[: len(self.pairs) + 1])
        self.hops = ptr[: len(self.pairs) + 1], links[: bounds[1]]

    def _kept_flows(self) -> list[FoldedFlow]:
        topology, message = self.plan.problem.topology, self.run.message
        order = np.empty(len(topology.src), dtype=np.int64)
        order[self.links[0]] = np.arange(len(self.links[0]))
        table = np.stack(self.links)
        flows = []
        for number, pair in enumerate(self.pairs.tolist()):
            at = np.flatnonzero(self.pair_of == number)
            most = int(message["bytes"][at].max())
            own = self.hops[1][self.hops[0][number] : self.hops[0][number + 1]]
            busy = [transfer_ps(most, topology.bandwidths[topology.bandwidth_class[link]]) for link in own.tolist()]
            links = table[:, order[own]].ravel()
            distinct, first = np.unique(links, return_index=True)
            count = np.ones(len(distinct), dtype=np.int64)
            ranks = [int(self.ranks[0][place]) for place in divmod(pair, self.size)]
            name = f"messages from rank {ranks[0]} to rank {ranks[1]}"
            spans = np.sort(message["posted"][at]), np.sort(message["delivered"][at])
            tiled = np.tile(np.array(busy, dtype=np.int64), len(self.ranks))[first]
            flows.append(FoldedFlow(name, None, distinct, tiled, count, count * 0, *spans))
        return flows

    def _crowded(self, kept: list[FoldedFlow]) -> tuple[int, int] | None:
        distinct, counts = np.unique(np.concatenate(self.links), return_counts=True)
        if counts.max(initial=1) == 1:
            return None
        users = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
        delay = 0
        for flow in kept:
            more = np.array([users[link] - 1 for link in flow.links.tolist()])
            delay += int((more * flow.busy).max(initial=0)) * len(flow.start)
        return int(distinct[counts.argmax()]), delay

    def deviation(self, run: Run) -> tuple[int, str]:
        """By how many ps the makespan may be off, and why; 0 and nothing if it is exact."""
        found, why = 0, []
        if self.unequal:
            least = run(self.problem(0), "summary")[1]
            check_finished(least, "the run")
            found += self.run.makespan - least.makespan
            names = ", ".join(sorted({self.classes.every[index].name for index in self.unequal}))
            why.append(f"members of a group of {names} do not end together")
        if self.apart:
            found += sum(self.apart.values())
            names = ", ".join(sorted({self.classes.every[index].name for index in self.apart}))
            why.append(f"members of a group of {names} do not begin together")
        for meeting in self.meetings:
            found += meeting.delay
        if self.meetings:
            most = max(self.meetings, key=lambda meeting: meeting.delay)
            what = " and ".join(flow.name for flow in most.flows)
            others = f" and {most.links - 1} others" if most.links > 1 else ""
            why.append(f"{what} meet on {self._link_name(most.link)}{others}")
        if self.ties:
            found += BOUND * sum(tie.delay for tie in self.ties)
            why.append(f"the order of what begins at one time is not known, {len(self.ties)} times")
        if self.crowded:
            found += self.crowded[1]
            why.append(f"messages of several copies meet on {self._link_name(self.crowded[0])}")
        return found, "; ".join(why)

    def _link_name(self, number: int) -> str:
        topology = self.plan.problem.topology
        if number < len(topology.src):
            return topology.link_name(number)
        npu, queue = divmod(number - len(topology.src), queues_of_npu(self.plan))
        return f"queue {queue} of NPU {npu}"

    def records(self, level: str, run: Run, cpu_s: float) -> Records:
        """The Records of all ranks."""
        plan, classes, ran = self.plan, self.classes, self.run
        off, why = self.deviation(run)
        summed = plan.problem.semantics.exposed == "finish_minus_compute"
        each = [
            rank_times(classes.shared[own], *times, summed=summed)
            for own, times in zip(self.own_class.tolist(), self.times, strict=True)
        ]
        finish, compute, exposed = (np.array(values)[self.place] for values in zip(*each, strict=True))
        links, messages, hops = self._totals()
        told = f"{len(self.simulated)} of {plan.ranks} ranks were simulated; {self._folded_names()}"
        if why:
            share = 100 * off / max(ran.makespan, 1)
            error = f"{format_time(off)} ({share:.{2 if share < 100 else 4}g} % of the time shown)"
            told = f"an estimate, with an error of at most {error}; {told}; {why}"
        else:
            told = f"exact; {told}"
        records = make_records(
            plan,
            level,
            finish=finish,
            compute=compute,
            exposed=exposed,
            spans=self._spans(),
            links=links,
            messages=messages,
            message_hops=hops,
            events=ran.events + self.prices.events,
            outcome=ran.outcome,
            engine=ran.engine + FOLDED,
            cpu_s=cpu_s,
            fold=Fold(ranks=len(self.simulated), copies=len(self.ranks), exact=not why, deviation=off, text=told),
        )
        mine = np.unique(np.concatenate([classes.instances[rank] for rank in self.ranks[0].tolist()]))
        return replace(records, collective=Table({name: column[mine] for name, column in records.collective.items()}))

    def _folded_names(self) -> str:
        names = sorted({family.name for family in self.classes.every} - self.kept)
        if not names:
            return "all collectives, too"
        return f"collectives of {', '.join(names)} take their time on idle links"

    def _spans(self) -> np.ndarray:
        """int64[instances, 2]: begin and end of each."""
        classes, never = self.classes, np.iinfo(np.int64).max
        begin, end = np.full(len(self.plan.instances), never), np.full(len(self.plan.instances), -1)
        for place in range(self.size):
            start, stop = self._calls(place)
            roles = np.array(classes.roles[self.own_class[place]], dtype=object)
            table = np.stack([classes.instances[rank] for rank in self.ranks[:, place].tolist()])
            for role in dict.fromkeys(roles.tolist()):
                own = np.flatnonzero(roles == role)
                for instances in table[np.unique(table[:, own[0]], return_index=True)[1]][:, own]:
                    begin[instances] = np.minimum(begin[instances], start[own])
                    end[instances] = np.maximum(end[instances], stop[own])
        return np.stack([np.where(begin == never, -1, begin), end], axis=1)

    def _totals(self) -> tuple[dict[str, np.ndarray], int, int]:
        """Totals of links, and numbers of messages and hops, of all ranks."""
        topology, ran = self.plan.problem.topology, self.run
        sums = np.zeros((len(LINK_TOTALS) - 1, len(topology.src)), dtype=np.int64)
        used = np.zeros(len(topology.src), dtype=bool)
        queue = LINK_TOTALS.index("max_queue") - 1

        def add(links: np.ndarray, totals: np.ndarray, times: int) -> None:
            most = np.maximum(sums[queue, links], totals[queue])
            sums[:, links] += totals * times
            sums[queue, links] = most
            used[links] = True

        messages, hops = ran.messages * len(self.ranks), ran.message_hops * len(self.ranks)
        known = np.full(len(topology.src), -1, dtype=np.int64)
        known[self.links[0]] = np.arange(len(self.links[0]))
        at = known[ran.link["link"]]
        totals = np.stack([ran.link[name] for name in LINK_TOTALS[1:]])[:, at >= 0]
        for links in self.links:
            add(links[at[at >= 0]], totals, 1)
        for index, count in self.counts.items():
            price = self.prices[index]
            add(price.links, price.totals, count)
            messages, hops = messages + count * price.messages, hops + count * price.hops
        chosen = np.flatnonzero(used)
        return {"link": chosen, **dict(zip(LINK_TOTALS[1:], sums[:, chosen], strict=True))}, messages, hops
