"""An NPU: a SimPy process that walks its rank's live graph."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from simpy import Resource
from simpy.events import Event

from astrasim_py.engine.simpy_engine.network import SOON
from astrasim_py.engine.simpy_engine.splice import INSTANCE_SHIFT, NODE_MASK, Block, numbered
from astrasim_py.engine.simpy_engine.streams import Streams
from astrasim_py.system.plan import COLLECTIVE, COMM_SLOT, COMPUTE, COMPUTE_SLOT, CPU_SLOT, MEMORY, NO_SLOT, RECV, SEND

if TYPE_CHECKING:
    from astrasim_py.engine.simpy_engine.engine import Engine

#: Wake-ups come after every timed action of the same instant, lowest rank first.
WAKE_PRIORITY = 1 << 60


class Wake(Event):
    """The event an idle NPU waits for: one object, scheduled again for every dispatch."""

    def __init__(self, env) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None

    def again(self) -> Wake:
        """Ready to be waited for once more."""
        self.callbacks = []
        return self


class Timer(Event):
    """The end of one timed action of an NPU."""

    def __init__(self, env, callback, block: Block | None, node: int) -> None:
        self.env = env
        self.callbacks = [callback]
        self._value = None
        self._ok = True
        self.block = block
        self.node = node


class Slots(Resource):
    """Slots of one kind on one NPU, for workload nodes in flight.

    A node that finds no slot free stays ready; whoever frees one makes all of them ready again, so that the order
    of dispatch decides among them. Granting costs no event.
    """

    def __init__(self, env, capacity: int) -> None:
        super().__init__(env, capacity)
        self.refused: list[int] = []

    def take(self, key: int) -> bool:
        """Take a slot for the ready node `key`, or remember that it was refused."""
        if len(self.users) < self._capacity:
            self.users.append(key)
            return True
        heappush(self.refused, key)
        return False

    def again(self, block: Block) -> list[int]:
        """Refused nodes that become ready now that a slot is free.

        Of a single slot not more need to try than the first that is sure to keep it beyond this instant, and those
        before it: all others would be refused once more, which nobody would see.
        """
        if self._capacity > 1:
            keys, self.refused = self.refused, []
            return keys
        keys = []
        while self.refused:
            key = heappop(self.refused)
            keys.append(key)
            node = key & NODE_MASK
            kind = block.kind[node]
            if kind == SEND or (kind == COMPUTE and block.duration[node]):
                break
        return keys


class Npu:
    """One rank on its NPU.

    Attributes
    ----------
    rank, npu : int
    ready : list of int
        Ready nodes, as packed by `splice`.
    blocks : dict of int to Block
        Live graphs by instance + 1; 0 is the workload's.
    awake : bool
        Whether a dispatch is due or under way.
    """

    def __init__(self, engine: Engine, rank: int) -> None:
        self.engine = engine
        self.env = engine.env
        self.rank = rank
        self.npu = engine.plan.npu_of[rank]
        self.ready: list[int] = []
        self.blocks: dict[int, Block] = {}
        planner = engine.plan.problem.jobs[engine.plan.job_of[rank]].planner
        #: Queues of streams, where a planner cuts collectives.
        self.streams = None if planner is None else Streams(self, planner.capacity)
        self.awake = True
        self.wake = Wake(self.env)
        self.wake_priority = SOON if engine.scheduled_first else WAKE_PRIORITY + rank
        #: Under ``event_order: scheduled``: time → number of the timers that end then.
        self.due: dict[int, int] = {}
        #: destination rank → route, as `Link`s.
        self.routes: dict[int, list] = {}
        #: Ranks of its job.
        self.members: tuple[int, ...] = ()
        self.finish = 0
        self.computing = 0
        self.communicating = 0
        self.accounted = 0
        self.compute_ps = 0
        self.exposed_ps = 0
        self.compute_sum_ps = 0
        semantics = engine.plan.problem.semantics
        capacities = {
            CPU_SLOT: semantics.cpu_slots,
            COMPUTE_SLOT: semantics.compute_slots,
            COMM_SLOT: semantics.comm_slots,
        }
        self.slots: list[Slots | None] = [None] * 4
        for slot, capacity in capacities.items():
            if capacity is not None:
                self.slots[slot] = Slots(self.env, capacity)
        engine.env.process(self.walk())

    def walk(self) -> Iterator[Event]:
        """The process: dispatch whatever is ready, sleep, again."""
        wake = self.wake
        self.engine.start(self, self.engine.plan.start_delay[self.rank])
        while True:
            yield wake.again()
            self.dispatch()
            self.awake = False

    def poke(self) -> None:
        """Something is ready: dispatch once nothing else is left at this instant."""
        self.awake = True
        self.env.schedule(self.wake, self.wake_priority)

    def due_at(self, engine: Engine, at: int) -> int:
        """Under ``event_order: scheduled``: number of this rank's timers that end at `at`, that of their first."""
        op = self.due.get(at)
        if op is None:
            op = self.due[at] = engine.number_at(self.env.now)
        return op

    # -- dispatch -------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Issue all ready nodes in ascending (instance, node id); those made ready meanwhile are the next wave."""
        engine, blocks = self.engine, self.blocks
        now = self.env.now
        record = engine.record_nodes
        send = engine.send
        rendezvous = engine.rendezvous
        while self.ready:
            wave = self.ready
            if len(wave) > 1:
                wave.sort()
            self.ready = []
            for key in wave:
                block = blocks[key >> INSTANCE_SHIFT]
                node = key & NODE_MASK
                if block.slot and not self.admit(block, node, key):
                    continue
                if record:
                    block.start[node] = now
                kind = block.kind[node]
                if kind == SEND:
                    meet = block.meet[node]
                    if meet < 0:
                        meet = numbered(block.space.sent, meet)
                    send(block, node, meet, now)
                elif kind == RECV:
                    meet = block.meet[node]
                    if meet < 0:
                        meet = numbered(block.space.posted, meet)
                    message = block.table.pop(meet, None)
                    if message is None:
                        block.table[meet] = (block, node, now)
                        if rendezvous:
                            engine.ask(block, node, meet, now)
                    else:
                        engine.match(message, block, node)
                        if engine.scheduled_first:
                            engine.afterwards(block, node)
                        else:
                            block.complete(node)
                elif kind == COMPUTE:
                    duration = block.duration[node]
                    if duration:
                        engine.after(duration, block, node)
                    else:
                        block.complete(node)
                elif kind == COLLECTIVE:
                    self.splice(block, node)
                elif kind == MEMORY:
                    engine.memory_request(block, node)
                else:
                    block.complete(node)
        if engine.op + engine.hops > engine.most:
            engine.give_up()

    def splice(self, block: Block, node: int) -> None:
        """Instantiate the algorithm of a collective node in this rank's live graph."""
        engine = self.engine
        number = block.template.call[node]
        instance = engine.plan.instances[number]
        if instance.whole is None:
            self.streams.begin(engine.session(number), node)
            return
        index = instance.first
        call = engine.call(index)
        spliced = engine.algorithm_block(self, index, call, node)
        if spliced is None:
            self.leave(call, index)
            block.complete(node)
            return
        self.blocks[index + 1] = spliced
        spliced.release_roots()

    def block_done(self, block: Block, last_row: int) -> None:
        """All nodes of a block are done."""
        self.engine.block_done(block)
        if block.parent < 0:
            self.finish = self.env.now
            return
        index = (block.base >> INSTANCE_SHIFT) - 1
        del self.blocks[index + 1]
        self.leave(block.call, index)
        if block.stream is not None:
            self.streams.ended(block.stream, last_row)
        else:
            self.blocks[0].complete(block.parent, last_row)

    def leave(self, call, index: int) -> None:
        """This rank is done with a slice."""
        call.left -= 1
        if not call.left:
            call.end = self.env.now
            self.engine.call_done(index)

    # -- workload accounts ----------------------------------------------------------------------------------

    def admit(self, block: Block, node: int, key: int) -> bool:
        """Take the slot of a workload node, and open its account; of an algorithm's node, that of its connection."""
        if block.parent >= 0:
            return block.admit(node)
        slot = block.slot[node]
        slots = self.slots[slot]
        if slots is not None and not slots.take(key):
            return False
        kind = block.kind[node]
        if kind == COMPUTE:
            self.account()
            self.computing += 1
            if slot == COMPUTE_SLOT:
                self.compute_sum_ps += block.duration[node]
        elif kind in (SEND, RECV, COLLECTIVE):
            self.account()
            self.communicating += 1
        return True

    def node_ended(self, block: Block, node: int) -> None:
        """Close the account of a workload node and free its slot."""
        kind = block.kind[node]
        if kind == COMPUTE:
            self.account()
            self.computing -= 1
        elif kind in (SEND, RECV, COLLECTIVE):
            self.account()
            self.communicating -= 1
        slot = block.slot[node]
        slots = self.slots[slot] if slot != NO_SLOT else None
        if slots is not None:
            slots.users.remove(block.base + node)
            if slots.refused:
                again = slots.again(block)
                if self.engine.record_nodes:
                    row = block.row + node
                    for key in again:
                        block.released[key & NODE_MASK] = row
                self.ready.extend(again)

    def account(self) -> None:
        """Charge the time since the last change to compute, or to exposed communication."""
        now = self.env.now
        elapsed = now - self.accounted
        if elapsed:
            if self.computing:
                self.compute_ps += elapsed
            elif self.communicating:
                self.exposed_ps += elapsed
            self.accounted = now
