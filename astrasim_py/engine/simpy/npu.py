"""An NPU is a process that walks the trace of its rank; at a collective it splices the algorithm's trace in.

Order at one instant (docs/semantics.md): timed actions end in the order in which they were issued; when none is left at
this time, ranks dispatch, lowest first; a dispatch issues ready nodes in ascending order, wave after wave.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np
import simpy

from astrasim_py.engine.recorder import unequal_bytes
from astrasim_py.engine.simpy.network import At, Message, Receive, Signal
from astrasim_py.system.plan import COMM_SLOT, COMPUTE, COMPUTE_SLOT, CPU_SLOT, INSTANT, MEMORY, SEND, RankProgram

#: Ranks dispatch after every timed action of the same time, lowest first.
DISPATCH = 1 << 60


class ProgramLists:
    """A program as Python lists by node, made once for all its graphs."""

    def __init__(self, program: RankProgram, match_keys: np.ndarray | None) -> None:
        structure, children = program.structure, program.structure.succ.tolist()
        self.program = program
        self.kind, self.need, self.roots = structure.kind.tolist(), structure.need.tolist(), structure.roots.tolist()
        self.children = [children[a:b] for a, b in itertools.pairwise(structure.succ_ptr.tolist())]
        self.nbytes, self.duration = program.nbytes.tolist(), program.duration.tolist()
        self.peer, self.tag = program.peer.tolist(), program.tag.tolist()
        self.slot, self.instance = program.slot.tolist(), program.instance.tolist()
        self.match_key = [] if match_keys is None else match_keys.tolist()


class Graph:
    """A program that one rank walks: a call of a collective, or the workload (`index` -1).

    `need` counts by node the parents that are not done, `left` the nodes. `start`, `end`, `released`
    and `ended` are columns of the node table, from `row` on. ``whole(row)`` is called after the last node.
    """

    def __init__(self, npu, lists: ProgramLists, index: int, call, whole: Callable[[int], None]) -> None:
        self.npu, self.lists, self.index, self.whole = npu, lists, index, whole
        #: Its place among the graphs of this rank whose nodes are dispatched at one time.
        self.order = index
        self.members, self.communicator = call.members, call.communicator
        self.row = npu.simulation.recorder.first_row(npu.rank, index)
        self.need = lists.need.copy()
        self.left = n = len(lists.need)
        self.start, self.end, self.released, self.ended = [-1] * n, [-1] * n, [-1] * n, [-1] * n

    def release(self, nodes: list[int], row: int) -> None:
        """These nodes are ready, by the end of the node in `row`."""
        for node in nodes:
            self.released[node] = row
            self.npu.ready.append((self.order, node, self))

    def admit(self, node: int) -> bool:
        """Whether a ready node may be issued now; if not, it is released again later."""
        return True

    def complete(self, node: int, ended_by: int = -1) -> None:
        """A node is done: release the nodes that waited for it alone. The last node ends the graph."""
        need = self.need
        self.end[node], self.ended[node] = self.npu.env.now, ended_by
        for child in self.lists.children[node]:
            need[child] -= 1
            if not need[child]:
                self.released[child] = self.row + node
                self.npu.ready.append((self.order, child, self))
        self.count_down(node)
        self.npu.wake_up()

    def count_down(self, node: int) -> None:
        """One node less to do."""
        self.left -= 1
        if not self.left:
            self.npu.simulation.recorder.graph(self)
            self.whole(self.row + node)


class Slots(simpy.Resource):
    """Slots of one kind on one NPU, for nodes of the workload.

    A node that finds none free does not queue: it is refused, and released again when one is free, so that the order
    of dispatch decides.
    """

    def __init__(self, env: simpy.Environment, capacity: int) -> None:
        super().__init__(env, capacity)
        self.turns: dict[int, simpy.resources.resource.Request] = {}
        self.refused: list[int] = []

    def take(self, node: int) -> bool:
        """Take a slot for a node, if one is free."""
        if self.count == self.capacity:
            heappush(self.refused, node)
            return False
        self.turns[node] = self.request()
        return True

    def free(self, node: int, lists: ProgramLists) -> list[int]:
        """Give the slot of a node back; returns the refused nodes that try again.

        Of one slot these are the nodes up to the first that is sure to keep it, which would refuse all others again.
        """
        self.release(self.turns.pop(node))
        again = []
        while self.refused:
            again.append(heappop(self.refused))
            kind = lists.kind[again[-1]]
            if self.capacity == 1 and (kind == SEND or (kind == COMPUTE and lists.duration[again[-1]])):
                break
        return again


class WorkloadGraph(Graph):
    """The graph of a workload: its nodes take slots, and the time of its rank is accounted for."""

    def admit(self, node):
        npu, lists = self.npu, self.lists
        slots = npu.slots.get(lists.slot[node])
        if slots is not None and not slots.take(node):
            return False
        npu.account(lists.kind[node], 1)
        if lists.kind[node] == COMPUTE and lists.slot[node] == COMPUTE_SLOT:
            npu.compute_sum_ps += lists.duration[node]
        return True

    def complete(self, node, ended_by=-1):
        self.npu.account(self.lists.kind[node], -1)
        slots = self.npu.slots.get(self.lists.slot[node])
        if slots is not None:
            self.release(slots.free(node, self.lists), self.row + node)
        super().complete(node, ended_by)


class Npu:
    """One rank on its NPU: `ready` nodes as (call, node, graph), and the `graphs` that it walks, by call."""

    def __init__(self, simulation, rank: int) -> None:
        self.simulation, self.env, self.rank = simulation, simulation.env, rank
        self.npu = simulation.plan.npu_of[rank]
        semantics = simulation.plan.problem.semantics
        slots = {CPU_SLOT: semantics.cpu_slots, COMPUTE_SLOT: semantics.compute_slots, COMM_SLOT: semantics.comm_slots}
        self.slots = {kind: Slots(self.env, number) for kind, number in slots.items() if number is not None}
        self.ready: list[tuple[int, int, Graph]] = []
        self.graphs: dict[int, Graph] = {}
        self.routes: dict[int, list] = {}
        self.dispatches_at = DISPATCH + rank
        self.asleep, self.wake = False, Signal(self.env)
        #: By kind of node, in the order of the plan.
        self.issue = (self.compute, self.send, self.receive, self.collective, self.access_memory, self.compute)
        self.computing = self.communicating = self.accounted = 0
        self.finish = self.compute_ps = self.exposed_ps = self.compute_sum_ps = 0
        self.env.process(self.run())

    def run(self) -> Iterator[simpy.Event]:
        """The process: walk the trace, dispatch after dispatch."""
        delay = self.simulation.plan.start_delay[self.rank]
        if delay:
            yield At(self.env, delay, self.simulation.number())
        workload = self.graphs[-1]
        workload.release(workload.lists.roots, -1)
        while True:
            self.asleep = True
            self.wake_up()
            yield self.wake
            self.wake = Signal(self.env)
            self.dispatch()

    def wake_up(self) -> None:
        """If something is ready, dispatch once nothing else is left at this time."""
        if self.ready and self.asleep:
            self.asleep = False
            self.wake.give(self.dispatches_at)

    def dispatch(self) -> None:
        """Issue ready nodes in ascending (call, node); those that become ready meanwhile are the next wave."""
        while self.ready:
            wave, self.ready = self.ready, []
            wave.sort()
            for _, node, graph in wave:
                if graph.admit(node):
                    graph.start[node] = self.env.now
                    self.issue[graph.lists.kind[node]](graph, node)
        self.simulation.check_events()

    # -- nodes ----------------------------------------------------------------------------------------------

    def compute(self, graph: Graph, node: int) -> None:
        """A compute node takes its duration; metadata takes none."""
        if graph.lists.duration[node]:
            self.complete_after(graph.lists.duration[node], graph, node)
        else:
            graph.complete(node)

    def complete_after(self, delay: int, graph: Graph, node: int) -> None:
        """A node is done `delay` ps from now."""
        At(self.env, delay, self.simulation.number()).callbacks.append(lambda _: graph.complete(node))

    def access_memory(self, graph: Graph, node: int) -> None:
        """A memory node waits for the remote memory and holds it for its duration."""
        memory = self.simulation.memory(self.npu)
        if memory is None or not (graph.lists.duration[node] or memory.count):
            self.compute(graph, node)
        else:
            self.env.process(self.hold_memory(memory, memory.request(), self.simulation.number(), graph, node))

    def hold_memory(self, memory, turn, number: int, graph: Graph, node: int) -> Iterator[simpy.Event]:
        """Hold the remote memory, in order of request."""
        with turn:
            yield turn
            yield self.env.timeout(graph.lists.duration[node])
        yield At(self.env, 0, number)
        graph.complete(node)

    def send(self, graph: Graph, node: int) -> None:
        """A send node gives its message to the network, which completes it."""
        mailbox = graph.communicator.mailbox(graph.lists.match_key[node], receives=False)
        self.simulation.network.send(self.message(Message, graph, node, mailbox, self.env.now))

    def message(self, kind: type[Message], graph: Graph, node: int, mailbox, since: int) -> Message:
        """The message of a node that was issued at `since` ps."""
        simulation, dst = self.simulation, graph.members[graph.lists.peer[node]]
        if dst not in self.routes:
            self.routes[dst] = simulation.route(self.npu, dst)
        route = self.routes[dst]
        message = kind(graph, node, simulation.plan.npu_of[dst], route, mailbox, simulation.number(), since)
        simulation.messages += 1
        simulation.hops += len(route)
        message.row = simulation.recorder.message(message, dst, self.env.now)
        return message

    def receive(self, graph: Graph, node: int) -> Receive:
        """A receive node gets its message from the mailbox, now or when it arrives."""
        receive = Receive(graph.communicator.mailbox(graph.lists.match_key[node], receives=True), graph, node)
        if receive.triggered:
            self.match(receive)
            self.end_receive(graph, node)
        else:
            receive.callbacks.append(self.arrived)
        return receive

    def end_receive(self, graph: Graph, node: int) -> None:
        """The message of a receive was there already."""
        graph.complete(node)

    def arrived(self, receive: Receive) -> None:
        """The message of a waiting receive is here."""
        self.match(receive)
        receive.graph.complete(receive.node, receive.value.graph.row + receive.value.node)

    def match(self, receive: Receive) -> None:
        """A receive has its message: both must be of equal bytes."""
        graph, node, message = receive.graph, receive.node, receive.value
        del graph.communicator.mailboxes[receive.resource.key]
        if message.bytes != graph.lists.nbytes[node]:
            sender = message.graph.npu.rank, message.graph.index, message.node
            raise unequal_bytes(self.simulation.plan, sender, message.bytes, (self.rank, graph.index, node))
        self.simulation.recorder.note(message.row, "recv_node", graph.row + node)

    def collective(self, graph: Graph, node: int) -> None:
        """A collective node is done when its algorithm is, whose trace is walked from now on."""
        first = self.simulation.plan.instances[graph.lists.instance[node]].first
        self.splice(first, graph.row + node, -1, lambda row: graph.complete(node, row))

    def splice(self, index: int, parent: int, row: int, then: Callable[[int], None], order: int | None = None) -> None:
        """Put this rank's program of a call into its live graph; ``then(row of the last node)`` when it is done.

        `parent` and `row` are rows of the node table: of the collective node, and of the node that released the call.
        Its nodes are dispatched in the place of `order`, or of the call, among all that are ready.
        """
        call = self.simulation.open_call(index)

        def whole(last_row: int) -> None:
            self.graphs.pop(index, None)
            self.simulation.leave(index, call)
            then(last_row)

        graph = self.simulation.graph(self, index, call, whole)
        if graph is None:  # a group of one has nothing to do
            whole(row)
            return
        self.graphs[index] = graph
        if order is not None:
            graph.order = order
        graph.released = [parent] * graph.left
        graph.release(graph.lists.roots, parent if row < 0 else row)

    def account(self, kind: int, begins: int) -> None:
        """A node of the workload begins (1) or ends (-1): charge the time since the last such change."""
        if kind in (MEMORY, INSTANT):
            return
        elapsed, self.accounted = self.env.now - self.accounted, self.env.now
        if self.computing:
            self.compute_ps += elapsed
        elif self.communicating:
            self.exposed_ps += elapsed
        if kind == COMPUTE:
            self.computing += begins
        else:
            self.communicating += begins
