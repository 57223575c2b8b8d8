"""A run of the SimPy engine: all NPUs, the network between them, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import simpy

from astrasim_py.core.records import Outcome, Records
from astrasim_py.engine.recorder import Recorder, used_links
from astrasim_py.engine.simpy.network import MODELS, Communicator, Link
from astrasim_py.engine.simpy.npu import Graph, Npu, ProgramLists, WorkloadGraph
from astrasim_py.engine.stuck import Posted, explain_stuck, ranks_left
from astrasim_py.system.plan import Matching, Plan, RankProgram

#: SimPy's own events have the priorities 0 and 1: numbers of actions start above them.
FIRST_NUMBER = 2


class LimitReached(Exception):
    """The run has reached one of its limits."""


class OpenCall:
    """One call of a collective under way: its members, its mailboxes, and how many of them have not left it."""

    def __init__(self, members, communicator: Communicator, start: int, ended: Callable[[], int]) -> None:
        self.members, self.communicator, self.start, self.end, self.ended = members, communicator, start, -1, ended
        self.positions = {rank: position for position, rank in enumerate(members)}
        self.left = len(self.positions)
        #: State of its connections (`msccl.Connections`), under the MSCCL link model.
        self.connections = None

    def leave(self) -> None:
        """A member is done with it."""
        self.left -= 1
        if not self.left:
            self.end = self.ended()


class Simulation:
    """State of one run.

    Attributes
    ----------
    plan : Plan
    env : simpy.Environment
        Its clock counts ps.
    links : dict of int to Link
    network : Network
        The network model.
    npus : list of Npu
        By rank.
    open_calls : dict of int to OpenCall
        Calls under way.
    messages, hops : int
        Messages sent, and the links of their routes.
    """

    link_class, npu_class, models = Link, Npu, MODELS

    def __init__(self, plan: Plan, level: str) -> None:
        self.plan, self.env, self.recorder = plan, simpy.Environment(), Recorder(plan, level)
        self.messages = self.hops = 0
        self.next_number = FIRST_NUMBER
        self.max_events = plan.problem.limits.max_events
        self.links = self.make_links()
        network = plan.problem.network
        self.network = (network.factory or self.models[network.model])(self)
        self.open_calls: dict[int, OpenCall] = {}
        #: Collectives that have begun, by instance.
        self.begun: dict[int, OpenCall] = {}
        self.memories: dict[int, simpy.Resource] = {}
        self._lists: dict[tuple, ProgramLists] = {}
        shared = plan.problem.semantics.message_match == "bytes"
        #: Of ``message_match: bytes``, where collectives share mailboxes with the workload.
        self.shared = Communicator(self.env) if shared else None
        self.workloads = [self.shared or Communicator(self.env) for _ in plan.problem.jobs]
        self.npus = [self.make_npu(rank) for rank in range(plan.ranks)]

    # -- what it is made of ---------------------------------------------------------------------------------

    def make_links(self) -> dict[int, Link]:
        """The links that messages can use."""
        topology = self.plan.problem.topology
        links = {}
        for index in used_links(self.plan).tolist():
            rate = topology.bandwidths[int(topology.bandwidth_class[index])]
            links[index] = self.link_class(self.env, index, int(topology.latency_ps[index]), rate, self.recorder)
        return links

    def make_npu(self, rank: int) -> Npu:
        """A rank on its NPU, with its workload."""
        plan, job = self.plan, self.plan.job_of[rank]
        npu = self.npu_class(self, rank)
        first = plan.first_rank[job]
        members = range(first, first + plan.problem.jobs[job].ranks)
        program = plan.workload[rank]
        lists = self.lists(program, plan.p2p[job], rank - first)
        npu.graphs[-1] = self.make_workload(program, npu, lists, -1, members, self.workloads[job], npu.walked)
        return npu

    def make_graph(self, program: RankProgram, *args) -> Graph:
        """The graph of a program of an algorithm."""
        return Graph(*args)

    def make_workload(self, program: RankProgram, *args) -> Graph:
        """The graph of a workload."""
        return WorkloadGraph(*args)

    def lists(self, program: RankProgram, matching: Matching | None, position: int) -> ProgramLists:
        """A program as lists, with the match keys of a member."""
        key = program, matching, position
        found = self._lists.get(key)
        if found is None:
            match_keys = None if matching is None else matching.match_key[position]
            found = self._lists[key] = ProgramLists(program, match_keys)
        return found

    # -- what NPUs ask for ----------------------------------------------------------------------------------

    def number(self) -> int:
        """The next number in the order of issue."""
        number = self.next_number
        self.next_number = number + 1
        return number

    def route(self, src: int, dst: int) -> list[Link]:
        """Links from an NPU to a rank."""
        plan = self.plan
        return [self.links[i] for i in plan.routes[src * plan.problem.topology.npus + plan.npu_of[dst]]]

    def memory(self, npu: int) -> simpy.Resource | None:
        """The remote memory that an NPU waits for; None where it has its own."""
        memory = self.plan.problem.memory
        if memory.kind == "per_npu":
            return None
        server = npu // memory.npus_per_node if memory.kind == "per_node" else 0
        if server not in self.memories:
            self.memories[server] = simpy.Resource(self.env, capacity=1)
        return self.memories[server]

    def open_call(self, index: int) -> OpenCall:
        """The call `index`, opened by the first rank that reaches it."""
        call = self.open_calls.get(index)
        if call is None:
            part = self.plan.calls[index]
            instance = self.plan.instances[self.plan.instance_of[index]]
            whole = instance.whole is not None
            # A rotated call numbers its match keys itself.
            shared = self.shared if whole and part.rotation is None else None

            def ended() -> int:
                del self.open_calls[index]
                return self.env.now

            call = self.open_calls[index] = OpenCall(
                part.members, shared or Communicator(self.env), self.env.now, ended
            )
            if whole:
                self.begun[instance.index] = call
        return call

    def graph(self, npu: Npu, index: int, call: OpenCall, whole: Callable[[int], None]) -> Graph | None:
        """The graph of one member of a call; None if it has nothing to do."""
        part = self.plan.calls[index]
        position = call.positions[npu.rank]
        if not part.programs or not len(part.programs[position]):
            return None
        program = part.programs[position]
        lists = self.lists(program, part.matching, position)
        return self.make_graph(program, npu, lists, index, call.members, call.communicator, whole)

    # -- the run --------------------------------------------------------------------------------------------

    def check_events(self) -> None:
        """Give up after too many events; nobody else dispatches before."""
        if self.next_number - FIRST_NUMBER + self.hops > self.max_events:
            stop = self.env.event().succeed()
            stop.callbacks.append(self.too_many_events)

    def too_many_events(self, _: simpy.Event) -> None:
        """Stop."""
        raise LimitReached(f"more than {self.max_events} events (--max-events)")

    def run(self) -> Outcome:
        """Run until nothing is left to do, or a limit is reached."""
        limit = self.plan.problem.limits.max_sim_time_ps
        try:
            if limit is None:
                self.env.run()
            else:  # run(until=…) would leave its own stop event behind, as if work were left
                while self.env.peek() <= limit:
                    self.env.step()
        except LimitReached as reached:
            return self.cut_short(str(reached))
        if limit is not None and self.env.peek() != float("inf"):
            return self.cut_short(f"simulated time went beyond {limit} ps (--max-sim-time)")
        unfinished, unreceived = sum(self.progress()), self.unreceived()
        if not unfinished and not unreceived:
            return Outcome()
        return explain_stuck(self.plan, self.progress(), self.posted(), unreceived, unfinished, **self.waits())

    def waits(self) -> dict[str, list]:
        """What else a stuck run waits for, as `explain_stuck` takes it."""
        return {}

    def cut_short(self, cause: str) -> Outcome:
        """The outcome at a limit."""
        self.network.count_waiting()
        progress = self.progress()
        return Outcome(status="limit", cause=cause, unfinished=sum(progress), unfinished_ranks=ranks_left(progress))

    def progress(self) -> list[int]:
        """Unfinished nodes by rank."""
        return [sum(graph.left for graph in npu.graphs.values()) for npu in self.npus]

    def graphs(self) -> Iterator[Graph]:
        """Every graph that some rank is walking."""
        return (graph for npu in self.npus for graph in npu.graphs.values())

    def communicators(self) -> list[Communicator]:
        """Every communicator in which something may still be waiting."""
        return list(dict.fromkeys([*self.workloads, *(call.communicator for call in self.open_calls.values())]))

    def posted(self) -> list[Posted]:
        """Receives that wait for a message."""
        boxes = [box for communicator in self.communicators() for box in communicator.mailboxes.values()]
        return sorted(posted(r.graph, r.node, r.since) for box in boxes for r in box.get_queue)

    def unreceived(self) -> list[Posted]:
        """Messages that arrived and were never received."""
        boxes = [box for communicator in self.communicators() for box in communicator.mailboxes.values()]
        return sorted(posted(m.graph, m.node, m.since) for box in boxes for m in box.items)

    def records(self, outcome: Outcome, cpu_s: float) -> Records:
        """Everything that this run leaves behind."""
        for graph in self.graphs():
            if graph.left:
                self.recorder.graph(graph)
        for npu in self.npus:
            if npu.graphs[-1].left:
                npu.finish = npu.accounted
        astra = self.plan.problem.semantics.exposed == "finish_minus_compute"
        return self.recorder.records(
            finish=[npu.finish for npu in self.npus],
            compute=[npu.compute_ps for npu in self.npus],
            exposed=[npu.finish - npu.compute_sum_ps if astra else npu.exposed_ps for npu in self.npus],
            spans={i: (begun.start, begun.end) for i, begun in self.begun.items()},
            links=self.links,
            messages=self.messages,
            hops=self.hops,
            events=self.next_number - FIRST_NUMBER,
            outcome=outcome,
            engine="simpy",
            cpu_s=cpu_s,
        )


def posted(graph: Graph, node: int, since: int) -> Posted:
    """A node that waits, for the stuck report."""
    lists, program = graph.lists, graph.lists.program
    peer = lists.peer[node]
    return Posted(
        rank=graph.npu.rank,
        slice=graph.index,
        node=int(program.node_id[node]),
        peer=graph.members[peer] if peer >= 0 else -1,
        tag=lists.tag[node],
        bytes=lists.nbytes[node],
        since=since,
        kind=lists.kind[node],
        row=int(program.rows[node]),
    )
