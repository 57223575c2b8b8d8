"""A run of the SimPy engine: all NPUs, the network between them, and the records that they leave behind."""

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from astrasim_py.core.records import Outcome, Records
from astrasim_py.engine.recorder import Recorder, ranks_left, used_links
from astrasim_py.engine.simpy.network import (
    Analytical,
    Communicator,
    CutThrough,
    Environment,
    Link,
    Mailbox,
    Network,
    StoreAndForward,
)
from astrasim_py.engine.simpy.npu import Graph, Npu, ProgramLists, WorkloadGraph
from astrasim_py.system.plan import CollectiveCall, Plan

if TYPE_CHECKING:
    from astrasim_py.engine.stuck import Posted, Waits

MODELS: dict[str, type[Network]] = {
    "cut_through": CutThrough,
    "store_and_forward": StoreAndForward,
    "analytical": Analytical,
}

#: Later (ps) than anything, and earlier than what SimPy says of no event, infinity.
FOREVER = 1 << 100


class LimitReached(Exception):
    """The run has reached one of its limits."""


class OpenCall:
    """A call under way, or a job's workload: its members, their programs and mailboxes, and how many are not done."""

    def __init__(self, planned: CollectiveCall, communicator: Communicator) -> None:
        self.planned, self.members, self.communicator = planned, planned.members, communicator
        self.left = len(self.members)


T = TypeVar("T")


def following(first: type[T], *others: type) -> type[T]:
    """A class that follows several rules. Where two have a method, the first of them wins, and reaches the other by
    ``super()``: ``following(NicNpu, ChunkingNpu)`` takes an arrived message as NICs do, and cuts collectives.
    """
    return _following((first, *others)) if others else first


@cache
def _following(rules: tuple[type, ...]) -> type:
    return type(rules[0].__name__, rules, {})


class Simulation:
    """State of one run: `env`, the `links` by index, the `network` model, the `npus` by rank, the calls under way.

    A dialect is a subclass: it adds rules to those of ``super()`` in `network_model`, `npu_rules` and `graph_rules`.
    """

    link_class: type[Link] = Link

    def __init__(self, plan: Plan, level: str) -> None:
        self.plan, self.env, self.recorder = plan, Environment(), Recorder(plan, level)
        self.issued, self.max_events = 0, plan.problem.limits.max_events
        #: Events to come at which nothing happens any more.
        self.idle_events = 0
        self.links = {index: self.link_class(self, index) for index in used_links(plan).tolist()}
        self.network: Network = (plan.problem.network.factory or self.network_model())(self)
        self.open_calls: dict[int, OpenCall] = {}
        #: Remote memory → time (ps) at which it has served all issued requests.
        self.memory_free: dict[int, int] = {}
        #: A program as lists; and the links of a queue pair.
        self.program, self.route = cache(ProgramLists), cache(self._route)
        #: Under ``message_match: bytes`` collectives share mailboxes with the workload.
        self.shared = Communicator(self.env) if plan.problem.semantics.message_match == "bytes" else None
        npu_class = following(*self.npu_rules())
        self.npus: list[Npu] = [npu_class(self, rank) for rank in range(plan.ranks)]
        #: Unfinished ranks of foreground jobs; None without background jobs.
        self.foreground = 0 if plan.problem.background else None
        self.workloads = [self.open_workload(job) for job in range(len(plan.problem.jobs))]

    def network_model(self) -> type[Network]:
        """The class of the network, but for a model of the user's own."""
        return MODELS[self.plan.problem.network.model]

    def npu_rules(self) -> list[type[Npu]]:
        """The rules that NPUs follow, the first of them first."""
        return [Npu]

    def graph_rules(self, program: ProgramLists, index: int) -> list[type[Graph]]:
        """The rules that the graphs of a program in a call (-1: the workload) follow."""
        return [Graph] if index >= 0 else [WorkloadGraph]

    def open_workload(self, job: int) -> OpenCall:
        """The workload of a job, which its ranks begin to walk."""
        plan, first = self.plan, self.plan.first_rank[job]
        members = range(first, first + plan.problem.jobs[job].ranks)
        planned = CollectiveCall(members, None, plan.workload.part(first, members.stop), plan.p2p[job])
        call = OpenCall(planned, self.shared or Communicator(self.env))
        waited_for = plan.problem.background and not plan.problem.jobs[job].background
        for npu in self.npus[first : members.stop]:
            graph = self.graph(npu, -1, call, done=self.end_rank if waited_for else lambda _: None)
            assert graph is not None  # every rank has a workload
            npu.graphs[-1] = graph
            if self.foreground is not None and waited_for and graph.left:
                self.foreground += 1
        return call

    def end_rank(self, row: int) -> None:
        """A rank that the run waits for has done its workload; after the last one the run ends with this instant."""
        assert self.foreground is not None
        self.foreground -= 1

    def number(self) -> int:
        """The next number in the order of issue: 2, 3, …; SimPy's own events have 0 and 1."""
        self.issued += 1
        return self.issued + 1

    def pair(self, src: int, dst: int) -> int:
        """Number of the queue pair that the next message from one end to another takes."""
        return src * self.plan.problem.topology.vertices + dst

    def _route(self, pair: int) -> list[Link]:
        return [self.links[i] for i in self.plan.routes[pair]]

    def memory_time(self, npu: int, duration: int) -> int:
        """Time (ps) that an access of an NPU to remote memory takes; shared memory serves one after the other."""
        memory, now = self.plan.problem.memory, self.env.now
        if memory.kind == "per_npu":
            return duration
        return served(self.memory_free, npu // memory.npus_per_node if memory.kind == "per_node" else 0, now, duration)

    def open_call(self, index: int) -> OpenCall:
        """A call, opened by the first rank that reaches it."""
        if index not in self.open_calls:
            planned, instance = self.plan.calls[index], self.plan.instances[self.plan.instance_of[index]]
            # A rotated call numbers its match keys itself.
            shared = self.shared if instance.only_call is not None and planned.rotation is None else None
            self.open_calls[index] = OpenCall(planned, shared or Communicator(self.env))
        return self.open_calls[index]

    def end_call(self, index: int) -> None:
        """A member is done with a call."""
        self.open_calls[index].left -= 1
        if not self.open_calls[index].left:
            del self.open_calls[index]

    def graph(self, npu: Npu, index: int, call: OpenCall, done: Callable[[int], None]) -> Graph | None:
        """The graph of one member of a call (-1: the workload); None if it has nothing to do."""
        planned, position = call.planned, self.plan.position(npu.rank, index)
        if index >= 0 and not (planned.programs and len(planned.programs[position])):
            return None
        program = self.program(planned.programs[position], planned.matching, position)
        return following(*self.graph_rules(program, index))(npu, program, index, call, done)

    def check_events(self) -> None:
        """Give up after too many events."""
        if self.issued + self.recorder.hops > self.max_events:
            raise LimitReached(f"more than {self.max_events} events (--max-events)")

    def run(self) -> Records:
        """Run, and record what was done."""
        begin = time.process_time()
        outcome = self.outcome()
        cpu_s = time.process_time() - begin
        return self.recorder.records(self.links, outcome, events=self.issued, engine="simpy", cpu_s=cpu_s)

    def outcome(self) -> Outcome:
        """Run until nothing is left to do, but in the background, or a limit is reached."""
        limit = self.plan.problem.limits.max_sim_time_ps
        try:
            if limit is None and self.foreground is None:
                self.env.run()
            while self.env.peek() <= self.last_time(limit):
                self.env.step()
            if self.foreground != 0 and len(self.env._queue) > self.idle_events:
                raise LimitReached(f"simulated time went beyond {limit} ps (--max-sim-time)")
        except LimitReached as reached:
            self.network.count_waiting()
            left = self.progress()
            return Outcome(status="limit", cause=str(reached), unfinished=sum(left), unfinished_ranks=ranks_left(left))
        left = self.progress()
        if self.foreground == 0:
            self.network.count_waiting()
            return Outcome(unfinished=sum(left), unfinished_ranks=ranks_left(left))
        if not any(left) and not any(box.items for box in self.mailboxes()):
            return Outcome()
        from astrasim_py.engine.stuck import explain_stuck

        return explain_stuck(self.plan, left, self.waits())

    def last_time(self, limit: int | None) -> int:
        """The time (ps) up to which the run goes on, as far as is known: its limit, or the end of the foreground."""
        if self.foreground == 0:
            return self.env.now
        return FOREVER if limit is None else limit

    def progress(self) -> list[int]:
        """Unfinished nodes by rank."""
        return [sum(graph.left for graph in npu.graphs.values()) for npu in self.npus]

    def mailboxes(self) -> list[Mailbox]:
        """Mailboxes of all that is under way."""
        calls = [*self.workloads, *self.open_calls.values()]
        communicators = dict.fromkeys(call.communicator for call in calls)
        return [box for communicator in communicators for box in communicator.mailboxes.values()]

    def waits(self) -> "Waits":
        """Waits of nodes at the end of a stuck run."""
        from astrasim_py.engine.stuck import Waits

        boxes = self.mailboxes()
        return Waits(
            posted=sorted(posted(r.graph, r.node, r.since) for box in boxes for r in box.get_queue),
            unreceived=sorted(posted(m.graph, m.node, m.since) for box in boxes for m in box.items),
            without_path=self.network.without_path(),
        )


def served(free: dict[int, int], server: int, now: int, duration: int) -> int:
    """Time (ps) until a server that serves one after the other has served one more; `free`: when each is free."""
    free[server] = max(free.get(server, 0), now) + duration
    return free[server] - now


def posted(graph: Graph, node: int, since: int) -> "Posted":
    """A node that waits, for the stuck report."""
    from astrasim_py.engine.stuck import Posted

    return Posted.of(graph.npu.simulation.plan, graph.npu.rank, graph.index, node, since)
