"""An NPU is a process that walks the trace of its rank; at a collective it splices the algorithm's trace in.

Order at one instant (docs/semantics.md): timed actions end in the order in which they were issued; when none is left at
this time, ranks dispatch, lowest first; a dispatch issues ready nodes in ascending order, wave after wave.
"""

import itertools
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import simpy

from astrasim_py.engine.recorder import unequal_bytes
from astrasim_py.engine.simpy.network import At, Message, Receive, Signal
from astrasim_py.system.programs import COMM_SLOT, COMPUTE, COMPUTE_SLOT, CPU_SLOT, SEND

#: Ranks dispatch after every timed action of the same time, lowest first.
DISPATCH = 1 << 60


class ProgramLists:
    """A program (a `RankProgram` of the plan) as Python lists by node, with the match keys of a member of a call."""

    def __init__(self, program, matching, position: int) -> None:
        structure, children = program.structure, program.structure.succ.tolist()
        self.counters = program.counters
        self.kind, self.need, self.roots = structure.kind.tolist(), structure.need.tolist(), structure.roots.tolist()
        self.children = [children[a:b] for a, b in itertools.pairwise(structure.succ_ptr.tolist())]
        self.nbytes, self.duration = program.nbytes.tolist(), program.duration.tolist()
        self.peer, self.tag = program.peer.tolist(), program.tag.tolist()
        self.slot, self.instance = program.slot.tolist(), program.instance.tolist()
        self.match_key = [] if matching is None else matching[position].tolist()
        self.blocks = program.blocks
        self.buckets, self.node_id = structure.buckets, program.node_id


class Graph:
    """A program that one rank walks: of a call of a collective, or the workload (`index` -1).

    `need` counts by node the parents that are not done, `left` the nodes. `row` is its first row in the node table.
    `order` is its place among the graphs of this rank whose nodes are dispatched at one time. ``done(row)`` is called
    after the last node.
    """

    def __init__(self, npu, program: ProgramLists, index: int, call, done: Callable[[int], None]) -> None:
        self.npu, self.program, self.index, self.order, self.done = npu, program, index, index, done
        self.call, self.recorder = call, npu.simulation.recorder
        self.row = self.recorder.first_row(npu.rank, index)
        self.need, self.left = program.need.copy(), len(program.need)

    def release(self, nodes: list[int], row: int) -> None:
        """These nodes are ready, by the end of the node in `row`."""
        for node in nodes:
            self.recorder.released(self.row + node, row)
            self.npu.ready.append((self.order, node, self))

    def less_need(self, nodes: list[int], row: int) -> None:
        """These nodes wait for one thing less; `row`: of the node that ended."""
        for node in nodes:
            self.need[node] -= 1
        self.release([node for node in nodes if not self.need[node]], row)

    def admit(self, node: int) -> bool:
        """Whether a ready node may be issued now; if not, it is released again later."""
        return True

    def issue(self, node: int) -> None:
        """Begin a node."""
        self.npu.issue[self.program.kind[node]](self, node)

    def complete(self, node: int, ended_by: int = -1) -> None:
        """A node is done: release the nodes that waited for it alone. The last node ends the graph."""
        self.recorder.ended(self.row + node, self.npu.env.now, ended_by)
        self.less_need_of_children(node)
        self.count_down(node)
        self.npu.wake_up()

    def less_need_of_children(self, node: int) -> None:
        """The children of a node that is done wait for one parent less."""
        self.less_need(self.program.children[node], self.row + node)

    def count_down(self, node: int) -> None:
        """One node less to do."""
        self.left -= 1
        if not self.left:
            self.done(self.row + node)


class Slots:
    """Slots of one kind on one NPU, for nodes of the workload.

    A node that finds none free does not queue: it is refused, and released again when one is free, so that the order
    of dispatch decides.
    """

    def __init__(self, number: int) -> None:
        self.number = self.free = number
        self.refused: list[int] = []

    def take(self, node: int) -> bool:
        """Take a slot for a node, if one is free."""
        if not self.free:
            heappush(self.refused, node)
            return False
        self.free -= 1
        return True

    def give_back(self, program: ProgramLists) -> list[int]:
        """A slot is free again; returns the refused nodes that try again.

        These are the nodes up to the first that certainly keeps the slot; all later ones would be refused again.
        """
        self.free += 1
        again = []
        while self.refused:
            again.append(heappop(self.refused))
            kind = program.kind[again[-1]]
            if self.number == 1 and (kind == SEND or (kind == COMPUTE and program.duration[again[-1]])):
                break
        return again


class WorkloadGraph(Graph):
    """The graph of a workload: its nodes take slots, and the recorder accounts for the time of the rank."""

    def admit(self, node):
        slots = self.npu.slots.get(self.program.slot[node])
        if slots is not None and not slots.take(node):
            return False
        self.recorder.work_begins(self, node, self.npu.env.now)
        return True

    def complete(self, node, ended_by=-1):
        self.recorder.work_ends(self, node, self.npu.env.now)
        slots = self.npu.slots.get(self.program.slot[node])
        if slots is not None:
            self.release(slots.give_back(self.program), self.row + node)
        super().complete(node, ended_by)


class Npu:
    """One rank on its NPU: `ready` nodes as (order, node, graph), and the `graphs` that it walks, by call.

    `vertex` is the NPU's number in the topology, `dispatch_number` the number of its dispatches among the events of one
    time. A switch that takes part in collectives is one, too. `first_latency` (ps) prolongs the first hop of what it
    sends.
    """

    first_latency = 0

    def __init__(self, simulation, rank: int) -> None:
        self.simulation, self.env, self.rank = simulation, simulation.env, rank
        self.vertex, self.dispatch_number = simulation.plan.npu_of[rank], DISPATCH + rank
        self.is_switch = rank >= simulation.plan.npu_ranks
        semantics = simulation.plan.problem.semantics
        slots = {CPU_SLOT: semantics.cpu_slots, COMPUTE_SLOT: semantics.compute_slots, COMM_SLOT: semantics.comm_slots}
        self.slots = {kind: Slots(number) for kind, number in slots.items() if number is not None}
        self.ready: list[tuple[int, int, Graph]] = []
        self.graphs: dict[int, Graph] = {}
        #: By kind of node, in the order of the plan.
        self.issue = (
            *(self.compute, self.send, self.receive, self.collective, self.access_memory, self.compute),
            self.wait_for_software,
        )
        self.env.process(self.run())

    def run(self) -> Iterator[simpy.Event]:
        """The process: walk the trace, dispatch after dispatch."""
        delay = self.simulation.plan.start_delay[self.rank]
        if delay:
            yield At(self.env, delay, self.simulation.number())
        workload = self.graphs[-1]
        workload.release(workload.program.roots, -1)
        while True:
            self.wake = Signal(self.env)
            self.wake_up()
            yield self.wake
            self.dispatch()

    def wake_up(self) -> None:
        """If something is ready, dispatch once nothing else is left at this time."""
        if self.ready and not self.wake.triggered:
            self.wake.give(self.dispatch_number)

    def dispatch(self) -> None:
        """Issue ready nodes in ascending order; those that become ready meanwhile are the next wave."""
        while self.ready:
            wave, self.ready = self.in_order(self.ready), []
            for _, node, graph in wave:
                if graph.admit(node):
                    graph.recorder.started(graph.row + node, self.env.now)
                    graph.issue(node)
        self.simulation.check_events()

    def in_order(self, ready: list[tuple[int, int, Graph]]) -> list[tuple[int, int, Graph]]:
        """Ready nodes in the order of issue."""
        return sorted(ready)

    def compute(self, graph: Graph, node: int) -> None:
        """A compute node takes its duration; metadata takes none."""
        self.complete_after(graph.program.duration[node], graph, node)

    def wait_for_software(self, graph: Graph, node: int) -> None:
        """What software takes is not computation, which other work of the operating system interrupts."""
        self.complete_after(graph.program.duration[node], graph, node)

    def access_memory(self, graph: Graph, node: int) -> None:
        """A memory node is served once all that were issued before it are; then it takes its duration."""
        self.complete_after(self.simulation.memory_time(self.vertex, graph.program.duration[node]), graph, node)

    def complete_after(self, delay: int, graph: Graph, node: int) -> None:
        """A node is done `delay` ps from now."""
        if delay:
            At(self.env, delay, self.simulation.number()).callbacks.append(lambda _: graph.complete(node))
        else:
            graph.complete(node)

    def send(self, graph: Graph, node: int) -> None:
        """A send node gives its message to the network, which completes it."""
        mailbox = graph.call.communicator.mailbox(graph.program.match_key[node], receives=False)
        self.simulation.network.send(Message(graph, node, graph.program.nbytes[node], mailbox, self.env.now))

    def receive(self, graph: Graph, node: int) -> Receive:
        """A receive node gets its message from the mailbox, now or when it arrives."""
        receive = Receive(graph.call.communicator.mailbox(graph.program.match_key[node], receives=True), graph, node)
        if receive.triggered:
            self.match(receive)
            self.take(lambda: graph.complete(node))
        else:
            receive.callbacks.append(self.arrived)
        return receive

    def take(self, then: Callable[[], None]) -> None:
        """What is there already is received at once."""
        then()

    def arrived(self, receive: Receive) -> None:
        """The message of a waiting receive is here."""
        self.match(receive)
        receive.graph.complete(receive.node, receive.message.graph.row + receive.message.node)

    def match(self, receive: Receive) -> None:
        """A receive has its message: both must be of equal bytes."""
        graph, node, message = receive.graph, receive.node, receive.message
        del graph.call.communicator.mailboxes[receive.resource.key]
        if message.bytes != graph.program.nbytes[node]:
            sender = message.graph.npu.rank, message.graph.index, message.node
            raise unequal_bytes(self.simulation.plan, sender, message.bytes, (self.rank, graph.index, node))
        graph.recorder.note(message.row, "recv_node", graph.row + node)

    def collective(self, graph: Graph, node: int) -> None:
        """A collective node is done when its algorithm is, whose trace is walked from now on."""
        first = int(self.simulation.plan.instances.first[graph.program.instance[node]])
        self.splice(first, graph.row + node, -1, lambda row: graph.complete(node, row))

    def splice(self, index: int, parent: int, row: int, then: Callable[[int], None], order: int | None = None) -> None:
        """Put this rank's program of a call into its live graph; ``then(row of the last node)`` when it is done.

        `parent` and `row` are rows of the node table: of the collective node, and of the node that released the call.
        Its nodes are dispatched in the place of `order`, or of the call, among all that are ready.
        """
        call = self.simulation.open_call(index)

        def done(last_row: int) -> None:
            self.graphs.pop(index, None)
            self.simulation.end_call(index)
            then(last_row)

        graph = self.simulation.graph(self, index, call, done)
        if graph is None:  # a group of one has nothing to do
            done(row)
            return
        self.graphs[index] = graph
        if order is not None:
            graph.order = order
        graph.recorder.spliced(graph.row, graph.left, parent)
        self.begin(graph, parent, parent if row < 0 else row)

    def begin(self, graph: Graph, parent: int, row: int) -> None:
        """The roots of a call's graph are ready, by the end of the node in `row`."""
        graph.release(graph.program.roots, row)
