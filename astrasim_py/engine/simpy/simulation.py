"""A run of the SimPy engine: all NPUs, the network between them, and the records that they leave behind."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from astrasim_py.core.records import Outcome, Records
from astrasim_py.engine.recorder import Recorder, used_links
from astrasim_py.engine.simpy.network import MODELS, Communicator, Link
from astrasim_py.engine.simpy.npu import Graph, Npu, ProgramLists, WorkloadGraph
from astrasim_py.engine.stuck import Posted, explain_stuck, ranks_left
from astrasim_py.system.plan import Matching, Plan, RankProgram

#: SimPy's own events have the priorities 0 and 1.
FIRST_NUMBER = 2


class LimitReached(Exception):
    """The run has reached one of its limits."""


class OpenCall:
    """A call under way: its members, its mailboxes, when it began and ended, and how many members are in it."""

    def __init__(self, members, communicator: Communicator, start: int = 0) -> None:
        self.members, self.communicator, self.start, self.end = members, communicator, start, -1
        self.positions = {rank: position for position, rank in enumerate(members)}
        self.left, self.connections = len(self.positions), None


class Simulation:
    """State of one run: `env`, the `links` by index, the `network` model, the `npus` by rank, the calls under way."""

    link_class, npu_class, models = Link, Npu, MODELS

    def __init__(self, plan: Plan, level: str) -> None:
        self.plan, self.env, self.recorder = plan, simpy.Environment(), Recorder(plan, level)
        self.messages = self.hops = 0
        self.next_number, self.max_events = FIRST_NUMBER, plan.problem.limits.max_events
        topology, network = plan.problem.topology, plan.problem.network
        self.links: dict[int, Link] = {}
        for i in used_links(plan).tolist():
            rate = topology.bandwidths[topology.bandwidth_class[i]]
            self.links[i] = self.link_class(self.env, i, int(topology.latency_ps[i]), rate, self.recorder)
        self.network = (network.factory or self.models[network.model])(self)
        self.open_calls: dict[int, OpenCall] = {}
        #: Collectives that have begun, by instance.
        self.begun: dict[int, OpenCall] = {}
        self.memories: dict[int, simpy.Resource] = {}
        self._lists: dict[tuple, ProgramLists] = {}
        #: Under ``message_match: bytes`` collectives share mailboxes with the workload.
        self.shared = Communicator(self.env) if plan.problem.semantics.message_match == "bytes" else None
        self.workloads = []
        for first, job in zip(plan.first_rank, plan.problem.jobs, strict=True):
            members = range(first, first + job.ranks)
            self.workloads.append(OpenCall(members, self.shared or Communicator(self.env)))
        self.npus = [self.make_npu(rank) for rank in range(plan.ranks)]

    def make_npu(self, rank: int) -> Npu:
        """A rank on its NPU, with its workload."""
        plan, job, program = self.plan, self.plan.job_of[rank], self.plan.workload[rank]
        npu = self.npu_class(self, rank)

        def whole(_: int) -> None:
            npu.finish = self.env.now

        lists = self.lists(program, plan.p2p[job], rank - plan.first_rank[job])
        npu.graphs[-1] = self.graph_class(program, WorkloadGraph)(npu, lists, -1, self.workloads[job], whole)
        return npu

    def graph_class(self, program: RankProgram, kind: type[Graph]) -> type[Graph]:
        """The class of graphs of a program, which are of `kind` where nothing else is said."""
        return kind

    def lists(self, program: RankProgram, matching: Matching | None, position: int) -> ProgramLists:
        """A program as lists, with the match keys of a member."""
        key = program, matching, position
        if key not in self._lists:
            match_keys = None if matching is None else matching.match_key[position]
            self._lists[key] = ProgramLists(program, match_keys)
        return self._lists[key]

    # -- what NPUs ask for ----------------------------------------------------------------------------------

    def number(self) -> int:
        """The next number in the order of issue."""
        self.next_number += 1
        return self.next_number - 1

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
        """A call, opened by the first rank that reaches it."""
        if index not in self.open_calls:
            call, instance = self.plan.calls[index], self.plan.instances[self.plan.instance_of[index]]
            whole = instance.only_call is not None
            # A rotated call numbers its match keys itself.
            shared = self.shared if whole and call.rotation is None else None
            opened = self.open_calls[index] = OpenCall(call.members, shared or Communicator(self.env), self.env.now)
            if whole:
                self.begun[instance.index] = opened
        return self.open_calls[index]

    def leave(self, index: int, call: OpenCall) -> None:
        """A member is done with a call."""
        call.left -= 1
        if not call.left:
            call.end = self.env.now
            del self.open_calls[index]

    def graph(self, npu, index: int, call: OpenCall, whole: Callable[[int], None], kind=Graph) -> Graph | None:
        """The graph of one member of a call; None if it has nothing to do."""
        planned, position = self.plan.calls[index], call.positions[npu.rank]
        if not planned.programs or not len(planned.programs[position]):
            return None
        program = planned.programs[position]
        lists = self.lists(program, planned.matching, position)
        return self.graph_class(program, kind)(npu, lists, index, call, whole)

    # -- the run --------------------------------------------------------------------------------------------

    def check_events(self) -> None:
        """Give up after too many events, before anybody else dispatches."""
        if self.next_number - FIRST_NUMBER + self.hops > self.max_events:
            self.env.event().succeed().callbacks.append(self.too_many_events)

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
                if self.env.peek() != float("inf"):
                    raise LimitReached(f"simulated time went beyond {limit} ps (--max-sim-time)")
        except LimitReached as reached:
            self.network.count_waiting()
            left = self.progress()
            return Outcome(status="limit", cause=str(reached), unfinished=sum(left), unfinished_ranks=ranks_left(left))
        posted, unreceived = self.unmatched()
        if not any(self.progress()) and not unreceived:
            return Outcome()
        return explain_stuck(self.plan, self.progress(), posted, unreceived, **self.other_waits())

    def progress(self) -> list[int]:
        """Unfinished nodes by rank."""
        return [sum(graph.left for graph in npu.graphs.values()) for npu in self.npus]

    def unmatched(self) -> tuple[list[Posted], list[Posted]]:
        """Receives that wait for a message, and messages that were never received."""
        calls = [*self.workloads, *self.open_calls.values()]
        communicators = dict.fromkeys(call.communicator for call in calls)
        boxes = [box for communicator in communicators for box in communicator.mailboxes.values()]
        receives = sorted(posted(r.graph, r.node, r.since) for box in boxes for r in box.get_queue)
        return receives, sorted(posted(m.graph, m.node, m.since) for box in boxes for m in box.items)

    def other_waits(self) -> dict[str, list]:
        """What else a stuck run waits for, as `explain_stuck` takes it."""
        return {}

    def records(self, outcome: Outcome, cpu_s: float) -> Records:
        """The records of the run."""
        for npu in self.npus:
            for graph in npu.graphs.values():
                if graph.left:
                    self.recorder.graph(graph)
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
    peer = graph.lists.peer[node]
    rank = graph.members[peer] if peer >= 0 else -1
    return Posted.of(graph.lists.program, node, rank=graph.npu.rank, call=graph.index, peer=rank, since=since)
