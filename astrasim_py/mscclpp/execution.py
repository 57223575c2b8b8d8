"""Symbolic execution of a plan: whether it ends, what its cells hold, and what nothing orders.

Each thread block runs until it has to wait, one after the other. What a wait is sure to come after does not depend on
that order: where several blocks count in one counter, only as many signals of each are sure as the others cannot make
up for. Calls follow each other: counters live on, and scratch is that of the call before, or of the one before that.

The values are those of `astrasim_py.verification.values`: sums of chunks of input.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from astrasim_py.mscclpp.accesses import Access, Accesses, Order, Race
from astrasim_py.mscclpp.blocks import Blocks, Counter, Signal, Step
from astrasim_py.mscclpp.cells import Cells, Range, Work
from astrasim_py.mscclpp.ir import INPUT, MEMORY, OUTPUT, PORT, SCRATCH, Operation, Plan
from astrasim_py.mscclpp.knowledge import Knowledge
from astrasim_py.mscclpp.operations import KINDS
from astrasim_py.verification.values import Values

#: Numbers in all that thread blocks and proxies know of each other.
MAX_KNOWLEDGE = 2**26


class Stuck(NamedTuple):
    """A step that never ends, and what it lacks; `packets`: what it waits for is packets."""

    step: Step
    lacks: str
    packets: bool


class Outside(NamedTuple):
    """An access to the input or output of a rank that nothing orders after its begin, or before its end."""

    kind: str  # "entry", "exit write", "exit read", "unfinished put": its proxy may still read the source
    step: Step
    cell: int


class Execution:
    """The execution of a plan.

    Parameters
    ----------
    plan : Plan
        Without unknown operations, and without references beyond its buffers.
    iterations, wrap : int
        Of the longest pipeline, and those that have scratch of their own; all by default.
    calls : int
        One after the other.
    lenient : bool
        Take relaxed signals and waits for ordered ones.
    backwards : bool
        Begin with the last thread block: the outcome must be the same.

    Attributes
    ----------
    sequence : list of Step
        Steps as they were executed, of all calls.
    stuck : list of Stuck
        Steps that never end; the rest is then that of what was executed.
    values : Values, and contents : list of int
        What every cell holds at the end of the first call.
    undefined : list of (Step, cell)
        Reads of cells that nobody wrote.
    races : list of Race
        Of the first call; `later_races` those of the other calls, which are about scratch.
    outside : list of Outside
        Accesses beyond the begin and end of kernels.
    counters : mapping of counter to Counter
    """

    def __init__(
        self, plan: Plan, *, iterations: int = 1, wrap: int | None = None, calls: int = 1, lenient: bool = False,
        backwards: bool = False,
    ) -> None:  # fmt: skip
        self._lenient, self._backwards = lenient, backwards
        self.plan, self.cells = plan, Cells(plan, iterations, wrap)
        self.blocks = Blocks(plan, iterations)
        self._proxies = {
            key[::2]: len(self.blocks.blocks) + k
            for k, key in enumerate(key for key in self.blocks.channels if key[1] == PORT)
        }
        agents = len(self.blocks.blocks) + len(self._proxies)
        self.ranks_of = [rank for rank, _ in self.blocks.blocks] + [rank for rank, _ in self._proxies]
        if (agents + plan.ranks) * (2 * agents + plan.ranks) > MAX_KNOWLEDGE:
            raise ValueError(f"{agents:,} thread blocks and port channels on {plan.ranks:,} ranks are too many")
        self.knowledge = Knowledge(agents, plan.ranks)
        nothing = self.knowledge.nothing()
        self._known = [nothing] * agents
        #: What all threads of a block had learned of reads at their last meeting.
        self._read_before: list[np.ndarray] = [nothing[self.knowledge.reads]] * agents
        self._pending = [nothing.copy() for _ in range(agents)]
        self._own, self._met, self._meetings = [0] * agents, [0] * agents, [0] * agents
        self.counters: dict[tuple, Counter] = {}
        self._count_ends()
        self.accesses = Accesses(self.cells.number)
        self.sequence: list[Step] = []
        self._step_of: list[tuple[int, Step]] = []
        self.undefined: list[tuple[Step, int]] = []
        self.outside: list[Outside] = []
        self.stuck: list[Stuck] = []
        self._told: dict[int, np.ndarray] = {}
        self._other_half: tuple[list, list] | None = None
        most = max((gpu.chunks[INPUT] for gpu in plan.gpus), default=0) * self.cells.parts
        self.values = Values(plan.ranks, max(most, 1))
        self.races: list[Race] = []
        self.later_races: list[Race] = []
        for call in range(calls):
            self._call(call)
            if call == 0:
                self.races, self.contents = self.accesses.races, self._contents
                self.accesses.races = self.later_races
                self.first_sequence = len(self.sequence)
                undefined, outside = len(self.undefined), len(self.outside)
            if self.stuck:
                break
        del self.undefined[undefined:], self.outside[outside:]

    def step_of(self, access: Access) -> Step:
        return self._step_of[access.step][1]

    def _count_ends(self) -> None:
        for block, steps in enumerate(self.blocks.steps):
            for step in steps:
                for key in self.blocks.counters(block, step.operation):
                    counter = self.counters.setdefault(key, Counter())
                    if key[0] == "semaphore":
                        counter.initial = self.plan.gpus[key[1]].semaphores[key[2]]
                    name = step.operation.name
                    if name.endswith("wait") or name == "sem_acquire":
                        counter.waiters.add(block)
                    elif name.endswith("signal") or name in ("pws", "pwsf", "sem_release"):
                        counter.sources.add(block)
                        counter.total += 1

    # -- a call

    def _call(self, call: int) -> None:
        plan, cells = self.plan, self.cells
        self._contents = [0] * cells.number
        for rank in range(plan.ranks):
            for k, cell in enumerate(cells.whole(rank, INPUT)):
                self._contents[cell] = self.values.leaf(rank, k)
        if call:
            self._next_call()
        for agent, rank in enumerate(self.ranks_of):
            self._known[agent] = self.knowledge.begin(self._known[agent], rank)
            self._read_before[agent] = self._known[agent][self.knowledge.reads].copy()
            self._pending[agent] = self.knowledge.nothing()
        self._told.clear()
        self._barriers: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._at = [0] * len(self.blocks.blocks)
        moved = True
        while moved:
            moved = self._run(shared=False) or self._run(shared=True)
        for block, steps in enumerate(self.blocks.steps):
            if self._at[block] < len(steps):
                step = steps[self._at[block]]
                lacks, packets = self._lacks(block, step)
                self.stuck.append(Stuck(step, lacks, packets))
        self._end()

    def _run(self, *, shared: bool) -> bool:
        """Run all blocks as far as they come; with `shared` also one wait for a counter of several blocks."""
        any_moved = False
        listed = list(enumerate(self.blocks.steps))
        for block, steps in reversed(listed) if self._backwards else listed:
            while self._at[block] < len(steps):
                step = steps[self._at[block]]
                if not self._try(block, step, shared):
                    break
                any_moved = True
                if shared or step.operation.name == "barrier":
                    # After a barrier the blocks go on in their order, not first the one that came last.
                    return True
        return any_moved

    def _advance(self, block: int) -> None:
        self.sequence.append(self.blocks.steps[block][self._at[block]])
        self._at[block] += 1

    def _try(self, block: int, step: Step, shared: bool) -> bool:
        """Execute a step if it need not wait."""
        operation, name = step.operation, step.operation.name
        if name == "nop":
            self._meet(block)
        elif name == "barrier":
            return self._barrier(block, step)
        elif name in ("wait", "rlxwait", "sem_acquire"):
            keys = self.blocks.counters(block, operation)
            counters = [self.counters[key] for key in keys]
            if any(counter.value < keys.count(key) for counter, key in zip(counters, keys, strict=True)):
                return False
            if not shared and any(counter.shared for counter in counters):
                return False
            for counter in counters:
                self._wait(block, counter, relaxed=self._relaxed(operation))
        elif name in ("signal", "rlxsignal", "sem_release"):
            self._signal(block, operation)
        elif name == "flush":
            for position in range(len(operation.channels)):
                self._flush(block, self._proxies[self.blocks.port(block, operation, position)])
        elif not self._work(block, step):
            return False
        self._advance(block)
        return True

    # -- order

    def _join(self, agent: int, told: np.ndarray) -> None:
        np.maximum(self._known[agent], told, out=self._known[agent])

    def _meet(self, block: int) -> None:
        """All threads of a block wait for each other."""
        self._join(block, self._pending[block])
        self._met[block] = self._own[block]
        self._meetings[block] += 1
        self._read_before[block] = self._known[block][self.knowledge.reads].copy()

    def _barrier(self, block: int, step: Step) -> bool:
        here = self._barriers[step.rank, step.operation.barrier]
        if block in here:
            return False
        here.append(block)
        if len(here) < step.operation.blocks:
            return False
        for other in here:
            self._meet(other)
        told = np.maximum.reduce(
            [self.knowledge.published(self._known[other], other, self._own[other]) for other in here]
        )
        for other in here:
            self._join(other, told)
            self._read_before[other] = self._known[other][self.knowledge.reads].copy()
            self._advance(other)
        here.clear()
        return True

    def _wait(self, block: int, counter: Counter, *, relaxed: bool) -> None:
        counter.waits += 1
        counter.waits_of[block] += 1
        waited = counter.waits if len(counter.waiters) == 1 else counter.waits_of[block]
        for signal in counter.sure(waited - counter.initial, acquires=not relaxed):
            told = self.knowledge.relaxed(signal.told) if relaxed else signal.told
            np.maximum(self._pending[block], told, out=self._pending[block])

    def _publication(self, block: int) -> np.ndarray:
        """What a release of a block tells: of its own operations those before its last meeting."""
        told = self._known[block].copy()
        told[self.knowledge.reads] = self._read_before[block]
        self.knowledge.add(told, block, self._met[block])
        return told

    def _signal(self, block: int, operation: Operation) -> None:
        told = self._publication(block)
        if self._relaxed(operation):
            told = self.knowledge.relaxed(told)
        for position, key in enumerate(self.blocks.counters(block, operation)):
            if operation.channel_type == PORT:
                proxy = self._proxies[self.blocks.port(block, operation, position)]
                self._join(proxy, told)
                self._count(block, key, self.knowledge.published(self._known[proxy], proxy, self._own[proxy]))
            else:
                self._count(block, key, told)

    def _relaxed(self, operation: Operation) -> bool:
        """Whether it orders no data; port channels do the ordered form."""
        return operation.name.startswith("rlx") and operation.channel_type == MEMORY and not self._lenient

    def _count(self, block: int, key: tuple, told: np.ndarray) -> None:
        counter = self.counters.setdefault(key, Counter())
        counter.sources.add(block)
        counter.add(Signal(block, told))

    def _flush(self, block: int, proxy: int) -> None:
        done = self.knowledge.published(self._known[proxy], proxy, self._own[proxy])
        np.maximum(self._pending[block], done, out=self._pending[block])

    # -- data

    def _work(self, block: int, step: Step) -> bool:
        """Execute an operation on data; False if packets that it reads are not there."""
        operation, kind = step.operation, KINDS[step.operation.name]
        rank, tables = self.blocks.blocks[block]
        works = self.cells.works(rank, tables, operation, step.iteration)
        port = operation.channel_type == PORT
        forwards = operation.name == "rppkt"
        if kind.reads_packets and any(
            cell not in self._told for work in works for source in work.sources if source.packets
            for cell in source.cells
        ):  # fmt: skip
            return False
        if not port:
            self._move(block, step, works, kind.unit, waits=bool(kind.reads_packets))
            return True
        if forwards:
            self._own[block] += 1
            for work in works:
                self._read(block, step, work.sources, kind.unit, waits=True)
            self._meet(block)
        told = self._publication(block)
        for number, work in enumerate(works):
            # One request for each destination, on the channel of its number.
            for channel, target in enumerate(work.targets, work.channel):
                proxy = self._proxies[self.blocks.port(block, operation, min(channel, len(operation.channels) - 1))]
                self._join(proxy, told)
                self._move(proxy, step, [Work(work.sources, (target,))], 0, waits=False)
                if operation.name in ("pws", "pwsf"):
                    key = self.blocks.counters(block, operation)[number]
                    self._count(block, key, self.knowledge.published(self._known[proxy], proxy, self._own[proxy]))
                if operation.name == "pwsf":
                    self._flush(block, proxy)
        return True

    def _move(self, agent: int, step: Step, works: tuple[Work, ...] | list[Work], unit: int, *, waits: bool) -> None:
        self._own[agent] += 1
        values = self.values
        for work in works:
            data: list[int] = []
            for number, held in enumerate(self._read(agent, step, work.sources, unit, waits=waits)):
                data = held if not number else list(map(values.add, data, held))
            raw = work.sources[0] if agent >= len(self.blocks.blocks) and work.sources[0].packets else None
            self._write(agent, step, work.targets, data, unit, raw)

    def _read(self, agent: int, step: Step, sources: tuple[Range, ...], unit: int, *, waits: bool) -> list[list[int]]:
        out, number = [], len(self._step_of)
        self._step_of.append((agent, step))
        for source in sources:
            flagged = waits and source.packets
            for cell in source.cells if flagged else ():
                self._join(agent, self._told[cell])
            self._enter(agent, step, source)
            order = self._order(agent, source)
            for position, cell in enumerate(source.cells):
                access = Access(agent, self._own[agent], self._meetings[agent], unit, position, number)
                self.accesses.read(cell, access, order, flagged=flagged)
                if not self._contents[cell]:
                    self.undefined.append((step, cell))
            out.append([self._contents[cell] for cell in source.cells])
        return out

    def _write(
        self, agent: int, step: Step, targets: tuple[Range, ...], data: list[int], unit: int, raw: Range | None
    ) -> None:
        """`raw`: packets that a proxy copies, with or without flag."""
        number = len(self._step_of) - 1
        told = None
        for target in targets:
            self._enter(agent, step, target)
            order = self._order(agent, target)
            if target.packets and told is None:
                told = self.knowledge.packet(self._known[agent], agent, self._own[agent])
            for position, (cell, value) in enumerate(zip(target.cells, data, strict=False)):
                access = Access(agent, self._own[agent], self._meetings[agent], unit, position, number)
                self.accesses.write(cell, access, order)
                self._contents[cell] = value
                if told is not None and target.packets and (raw is None or raw.cells[position] in self._told):
                    self._told[cell] = told

    def _order(self, agent: int, operand: Range) -> Order:
        known = self._known[agent]
        return Order(known[self.knowledge.writes], known[self.knowledge.reads], operand.packets)

    def _enter(self, agent: int, step: Step, operand: Range) -> None:
        """Input and output of another rank may be touched once it is known to have begun."""
        other = operand.rank != self.ranks_of[agent] and operand.buffer != SCRATCH
        if other and len(operand.cells) and not self.knowledge.begun(self._known[agent], operand.rank):
            self.outside.append(Outside("entry", step, operand.cells[0]))

    # -- ends

    def _end(self) -> None:
        """The ends of all ranks: what their callers may then rely on."""
        plan = self.plan
        ends = [self.knowledge.nothing() for _ in range(plan.ranks)]
        for block, (rank, _) in enumerate(self.blocks.blocks):
            for told in (self._known[block], self._pending[block]):
                np.maximum(ends[rank], told, out=ends[rank])
            self.knowledge.add(ends[rank], block, self._own[block])
        for rank in range(plan.ranks):
            for cell in {*self.cells.whole(rank, INPUT), *self.cells.whole(rank, OUTPUT)}:
                write, reads = self.accesses.writes[cell], self.accesses.reads[cell]
                if write is not None and ends[rank][self.knowledge.writes][write.agent] < write.own:
                    self.outside.append(Outside("exit write", self.step_of(write), cell))
                for read in reads:
                    if ends[rank][self.knowledge.reads][read.agent] < read.own:
                        kind = "exit read" if self.ranks_of[read.agent] != rank else "unfinished put"
                        self.outside.append(Outside(kind, self.step_of(read), cell))
        self._ends = ends

    def _next_call(self) -> None:
        """Every rank begins its next call after its last one. Scratch, or its other half, is used again."""
        accesses = self.accesses
        before = accesses.writes, accesses.reads
        number = self.cells.number
        if self.plan.double_scratch:
            accesses.writes, accesses.reads = self._other_half or ([None] * number, [[] for _ in range(number)])
            self._other_half = before
        for rank in range(self.plan.ranks):
            for cell in {*self.cells.whole(rank, INPUT), *self.cells.whole(rank, OUTPUT)}:
                accesses.writes[cell], accesses.reads[cell] = None, []
        for agent, rank in enumerate(self.ranks_of):
            if agent < len(self.blocks.blocks):
                self._known[agent] = self._ends[rank]
            self._meetings[agent] += 1
            self._met[agent] = self._own[agent]

    def _lacks(self, block: int, step: Step) -> tuple[str, bool]:
        """What a step waits for, in words; and whether that is packets."""
        operation, name = step.operation, step.operation.name
        if name == "barrier":
            here = len(self._barriers[step.rank, operation.barrier])
            return f"{here} of {operation.blocks} thread blocks have come", False
        if KINDS[name].unit:
            rank, tables = self.blocks.blocks[block]
            for work in self.cells.works(rank, tables, operation, step.iteration):
                for source in work.sources:
                    for cell in source.cells if source.packets else ():
                        if cell not in self._told:
                            where = self.cells.place(cell)
                            return f"nobody has written the packets of scratch chunk {where.chunk}", True
        keys = self.blocks.counters(block, operation)
        for key in keys:
            counter = self.counters[key]
            if counter.value < keys.count(key):
                if key[0] == "semaphore":
                    return f"semaphore {key[2]} is {counter.value}", False
                kind, source, _, turn = key
                return (
                    f"rank {source} has signalled {counter.sent} times on {kind} channel {turn} between them, "
                    f"and it waits for {counter.waits + keys.count(key)}"
                ), False
        return "", False
