"""The nodes of a plan's traces, in an order in which the plan can be executed: see `astrasim_py.mscclpp.to_traces`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from astrasim_py.builders.draft import Draft
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer, CompOp
from astrasim_py.collectives.collective import promise_of
from astrasim_py.collectives.plan_roles import PlanRole
from astrasim_py.mscclpp.blocks import Counter, Step
from astrasim_py.mscclpp.cells import Range, Work
from astrasim_py.mscclpp.execution import Execution
from astrasim_py.mscclpp.ir import INPUT, OUTPUT, PORT, SCRATCH, SWITCH, Plan
from astrasim_py.mscclpp.operations import KINDS

_BUFFERS = {INPUT: int(Buffer.INPUT), OUTPUT: int(Buffer.OUTPUT), SCRATCH: int(Buffer.SCRATCH)}
_SEND, _RECV, _COMP = int(NodeType.COMM_SEND), int(NodeType.COMM_RECV), int(NodeType.COMP)
_COPY, _REDUCE = int(CompOp.COPY), int(CompOp.REDUCE)


class Lowering:
    """Makes the nodes, in an order in which the plan can be executed."""

    def __init__(self, plan: Plan, run: Execution, collective: str, total: int) -> None:
        self.plan, self.run, self.cells, self.total = plan, run, run.cells, total
        self.promise, self.in_place = promise_of(collective), plan.in_place
        self.rows: list[dict[str, int]] = []
        self.parents: list[set[int]] = []
        self.tags: dict[tuple[int, int], int] = defaultdict(int)
        #: By block, as (rank, number): nodes that its next one follows.
        self.chain: dict[tuple[int, int], list[int]] = defaultdict(list)
        #: By cell: the node that wrote it, and those that read it since.
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = defaultdict(list)
        #: By block and peer: arrivals since its last signal.
        self.arrivals: dict[tuple[tuple[int, int], int], list[int]] = defaultdict(list)
        #: By port channel, as (rank, number): its last proxy node, its sends, and its last signal with arrivals since.
        self.proxy: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.arrived: dict[tuple[int, int], list[int]] = defaultdict(list)
        #: By counter: its signals' nodes on the waiting rank, by source block.
        self.signals: dict[tuple, list[tuple[tuple[int, int], int]]] = defaultdict(list)
        self.waits: dict[tuple, int] = defaultdict(int)
        self.counters: dict[int, dict[tuple, int]] = defaultdict(dict)
        self.meeting: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self.numbers = {key: number for number, key in enumerate(_block_keys(plan))}

    def draft(self) -> Draft:
        for step in self.run.sequence[: self.run.first_sequence]:
            self._step(step)
        draft = Draft(self.plan.ranks, self.total)
        names = sorted({name for row in self.rows for name in row} - {"payload"})
        columns: dict[str, Any] = {
            name: np.array([row.get(name, MISSING) for row in self.rows], dtype=np.int64) for name in names
        }
        if self.rows:
            columns["payload"] = np.array([row.get("payload", -1) for row in self.rows], dtype=np.int64)
            columns["order"] = np.arange(len(self.rows))
            draft.extend(len(self.rows), columns)
            edges = [(child, parent) for child, parents in enumerate(self.parents) for parent in parents]
            if edges:
                draft.depend(*np.array(edges, dtype=np.int64).T)
        else:
            # A plan of nothing has traces all the same.
            draft.extend(0, {"type": np.empty(0, dtype=np.int64), "rank": np.empty(0, dtype=np.int64)})
        return draft

    # -- nodes

    def _node(self, rank: int, kind: int, role: PlanRole, after: Iterable[int], **columns: int) -> int:
        handle = len(self.rows)
        self.rows.append({"type": kind, "rank": rank, "plan_role": int(role), **columns})
        self.parents.append(set(after))
        return handle

    def _uses(self, handle: int, operand: Range, *, writes: bool) -> None:
        """Order a node after those that used its cells before, on the same rank."""
        parents = self.parents[handle]
        for cell in operand.cells:
            if cell in self.writer:
                parents.add(self.writer[cell])
            if writes:
                parents.update(self.readers.pop(cell, ()))
                self.writer[cell] = handle
            else:
                self.readers[cell].append(handle)
        parents.discard(handle)

    def _cells_of(self, operand: Range, side: str) -> dict[str, int]:
        buffer, offset = self.cells.offset(operand)
        return {f"{side}_buf": _BUFFERS[buffer], f"{side}_off": offset}

    def _sized(self, operand: Range) -> dict[str, int]:
        """Chunks of the full buffer that an operand stands for; the first ones where it has no place there."""
        count = len(operand.cells)
        buffer, offset = self.cells.offset(operand)
        per = self.total // self.plan.ranks
        if (buffer == INPUT and self.promise.gathers) or (buffer == OUTPUT and self.promise.scatters):
            offset += operand.rank * per
        if buffer == SCRATCH or offset + count > self.total:
            offset = 0
        return {"msg_chunk_idx": offset, "msg_chunk_cnt": min(count, self.total)}

    def _copy(self, rank: int, source: Range, target: Range, after: Iterable[int]) -> list[int]:
        """A copy; nothing where both are the same cells."""
        if source.cells == target.cells:
            return list(after)
        columns = {**self._cells_of(source, "src"), **self._cells_of(target, "dst"), **self._sized(source)}
        handle = self._node(rank, _COMP, PlanRole.LOCAL, after, comp_op=_COPY, **columns)
        self._uses(handle, source, writes=False)
        self._uses(handle, target, writes=True)
        return [handle]

    def _reduce(
        self, rank: int, source: Range, target: Range, after: Iterable[int], payload: int | None = None
    ) -> list[int]:
        """Adds a source, or what a node received, to the cells of the target."""
        read = target if payload is not None else source
        columns = {**self._cells_of(read, "src"), **self._cells_of(target, "dst"), **self._sized(target)}
        given = {} if payload is None else {"payload": payload}
        after = [*after, *given.values()]
        handle = self._node(rank, _COMP, PlanRole.LOCAL, after, comp_op=_REDUCE, **columns, **given)
        if payload is None:
            self._uses(handle, source, writes=False)
        self._uses(handle, target, writes=True)
        return [handle]

    def _message(
        self, source: Range, target: Range | None, receiver: int, role: PlanRole, after: Iterable[int], channel: int,
        *, packets: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        """Send cells to a rank; without a target the receive only holds them. Returns both nodes."""
        tag = self.tags[source.rank, receiver]
        self.tags[source.rank, receiver] += 1
        columns = {"comm_tag": tag, "channel": channel, **self._sized(source)}
        if packets:
            columns["packets"] = 1
        send = self._node(
            source.rank, _SEND, role, after, comm_dst=receiver, **columns, **self._cells_of(source, "src")
        )
        self._uses(send, source, writes=False)
        into = {} if target is None else self._cells_of(target, "dst")
        receive = self._node(receiver, _RECV, role, (), comm_src=source.rank, **columns, **into)
        if target is not None:
            self._uses(receive, target, writes=True)
        return send, receive

    def _empty(self, source: int, receiver: int, role: PlanRole, after: Iterable[int]) -> tuple[int, int]:
        """A message of 0 bytes."""
        tag = self.tags[source, receiver]
        self.tags[source, receiver] += 1
        columns = {"comm_tag": tag, "msg_chunk_idx": 0, "msg_chunk_cnt": 0}
        send = self._node(source, _SEND, role, after, comm_dst=receiver, **columns)
        return send, self._node(receiver, _RECV, role, (), comm_src=source, **columns)

    # -- steps

    def _step(self, step: Step) -> None:
        block, operation = (step.rank, step.block), step.operation
        name = operation.name
        if name == "nop":
            self.chain[block] = [self._node(step.rank, _COMP, PlanRole.MEETING, self.chain[block])]
        elif name == "barrier":
            self._barrier(block, step)
        elif name in ("signal", "rlxsignal"):
            self._signal(block, step)
        elif name == "sem_release":
            self._release(block, step)
        elif name in ("wait", "rlxwait", "sem_acquire"):
            self._wait(block, step)
        elif name == "flush":
            sent = [h for channel in self._ports(block, step) for h in self.sent[channel]]
            self.chain[block] = [self._node(step.rank, _COMP, PlanRole.WAIT, [*self.chain[block], *sent])]
        else:
            self._data(block, step)

    def _barrier(self, block: tuple[int, int], step: Step) -> None:
        here = self.meeting[step.rank, step.operation.barrier]
        here.append(block)
        if len(here) < step.operation.blocks:
            return
        before = [handle for other in here for handle in self.chain[other]]
        for other in here:
            self.chain[other] = [self._node(step.rank, _COMP, PlanRole.MEETING, before)]
        here.clear()

    def _ports(self, block: tuple[int, int], step: Step) -> list[tuple[int, int]]:
        number = self.numbers[block]
        return [self.run.blocks.port(number, step.operation, k) for k in range(len(step.operation.channels))]

    def _signal(self, block: tuple[int, int], step: Step) -> None:
        rank, operation = step.rank, step.operation
        chain: list[int] = []
        for position, key in enumerate(self.run.blocks.counters(self.numbers[block], operation)):
            _, _, peer, _ = key
            if operation.channel_type == PORT:
                port = self._ports(block, step)[position]
                asked = self._request(rank, port, self.chain[block])
                before, arrivals = self.proxy[port], self.arrived[port]
                chain.append(asked)
            else:
                before, arrivals = self.chain[block], self.arrivals.pop((block, peer), [])
            send, receive = self._empty(rank, peer, PlanRole.SIGNAL, before)
            self.parents[receive].update(arrivals)
            if operation.channel_type == PORT:
                self.arrived[port] = [receive]
            else:
                chain.append(send)
            self._count(key, block, receive)
        self.chain[block] = chain or self.chain[block]

    def _release(self, block: tuple[int, int], step: Step) -> None:
        """A node for all semaphores; of counters of several blocks, and of one named twice, a node for each."""
        keys = self.run.blocks.counters(self.numbers[block], step.operation)
        before, handles = self.chain[block], list[int]()
        for number, key in enumerate(keys):
            if not handles or key in keys[:number] or self.run.counters[key].shared:
                handles.append(self._node(step.rank, _COMP, PlanRole.SIGNAL, before))
            self._count(key, block, handles[-1])
        self.chain[block] = handles

    def _request(self, rank: int, port: tuple[int, int], after: Iterable[int]) -> int:
        """A block asks the proxy of a port channel, which then does what follows it. Returns the request."""
        asked = self._node(rank, _COMP, PlanRole.REQUEST, after)
        self.proxy[port] = [self._node(rank, _COMP, PlanRole.PROXY, [asked, *self.proxy[port]])]
        return asked

    def _count(self, key: tuple, block: tuple[int, int], handle: int) -> None:
        sent = self.signals[key]
        last = next((earlier for source, earlier in reversed(sent) if source == block), None)
        if last is not None:
            self.parents[handle].add(last)
        sent.append((block, handle))
        counter = self.run.counters[key]
        if counter.shared:
            rank = self.rows[handle]["rank"]
            numbers = self.counters[rank]
            self.rows[handle]["counter"] = numbers.setdefault(key, len(numbers))

    def _wait(self, block: tuple[int, int], step: Step) -> None:
        joined, counted = [], []
        for key in self.run.blocks.counters(self.numbers[block], step.operation):
            counter: Counter = self.run.counters[key]
            self.waits[key] += 1
            needed = self.waits[key] - counter.initial
            sent = self.signals[key]
            if needed <= 0:
                continue
            if not counter.shared:
                joined.append(sent[needed - 1][1])
            elif needed == counter.total:
                joined += [handle for _, handle in sent]
            else:
                counted.append((key, needed))
        before = [*self.chain[block], *joined]
        for key, needed in counted:
            numbers = self.counters[step.rank]
            number = numbers.setdefault(key, len(numbers))
            before = [self._node(step.rank, _COMP, PlanRole.WAIT, before, count_of=number, count_k=needed)]
        if len(counted) != 1 or joined:
            before = [self._node(step.rank, _COMP, PlanRole.WAIT, before)]
        self.chain[block] = before

    def _data(self, block: tuple[int, int], step: Step) -> None:
        rank, operation = step.rank, step.operation
        tables = self.run.blocks.blocks[self.numbers[block]][1]
        works = self.cells.works(rank, tables, operation, step.iteration)
        port = operation.channel_type == PORT
        chain: list[int] = []
        for number, work in enumerate(works):
            if not any(len(operand.cells) for operand in work.targets):
                continue
            if port:
                chain += self._port_put(block, step, work, number)
            elif operation.channel_type == SWITCH:
                chain += self._multimem(block, step, work)
            elif KINDS[operation.name].reduces:
                chain += self._sum(block, step, work)
            else:
                chain += self._moves(block, step, work)
        self.chain[block] = list(dict.fromkeys(chain)) or self.chain[block]

    def _moves(self, block: tuple[int, int], step: Step, work: Work) -> list[int]:
        """Copies to other ranks, from them, or on the rank."""
        before, source = self.chain[block], work.sources[0]
        if source.rank != step.rank:
            return [self._load(block, source, work.targets[0], before, PlanRole.ANSWER)]
        ends: list[int] = []
        for target in work.targets:
            if target.rank == step.rank:
                ends += self._copy(step.rank, source, target, before)
            else:
                ends.append(self._store(block, source, target, before))
        return ends

    def _store(self, block: tuple[int, int], source: Range, target: Range, before: list[int]) -> int:
        role = PlanRole.PACKETS if target.packets else PlanRole.PUT
        send, receive = self._message(
            source, target, target.rank, role, before, block[1], packets=target.packets
        )  # fmt: skip
        self.arrivals[block, target.rank].append(receive)
        return send

    def _load(
        self, block: tuple[int, int], source: Range, target: Range | None, before: Iterable[int], role: PlanRole
    ) -> int:
        """The block reads cells of another rank: a request, and the answer. Returns the node that has them."""
        ask, asked = self._empty(block[0], source.rank, PlanRole.LOAD, before)
        _, receive = self._message(source, target, block[0], role, [asked], block[1])
        self.parents[receive].add(ask)
        return receive

    def _sum(self, block: tuple[int, int], step: Step, work: Work) -> list[int]:
        """The sum of all sources, in the first target; then to the others."""
        rank, before = step.rank, self.chain[block]
        total, *others = work.targets
        local = [source for source in work.sources if source.rank == rank]
        first = next((source for source in local if source.cells == total.cells), local[0])
        loads = [
            self._load(block, source, None, before, PlanRole.ANSWER) for source in work.sources if source.rank != rank
        ]
        chain = self._copy(rank, first, total, before)
        left = list(local)
        left.remove(first)
        for source in left:
            chain = self._reduce(rank, source, total, chain)
        for load in loads:
            chain = self._reduce(rank, total, total, chain, payload=load)
        ends: list[int] = []
        for target in others:
            if target.rank == rank:
                ends += self._copy(rank, total, target, chain)
            else:
                ends.append(self._store(block, total, target, chain))
        return ends or chain

    def _port_put(self, block: tuple[int, int], step: Step, work: Work, number: int) -> list[int]:
        """A request for each target; the proxy sends later, in order."""
        operation, chain, ports = step.operation, self.chain[block], self._ports(block, step)
        ends = []
        for k, target in enumerate(work.targets, work.channel):
            port = ports[min(k, len(ports) - 1)]
            asked = self._request(step.rank, port, chain)
            source = work.sources[0]
            send, receive = self._message(
                source, target, target.rank, PlanRole.PORT, self.proxy[port], 2**15 + port[1], packets=target.packets
            )  # fmt: skip
            self.sent[port].append(send)
            self.arrived[port].append(receive)
            ends.append(asked)
            if operation.name in ("pws", "pwsf"):
                _, told = self._empty(step.rank, target.rank, PlanRole.SIGNAL, self.proxy[port])
                self.parents[told].update(self.arrived[port])
                self.arrived[port] = [told]
                keys = self.run.blocks.counters(self.numbers[block], operation)
                self._count(keys[number], block, told)
            if operation.name == "pwsf":
                ends.append(send)
        return ends

    def _multimem(self, block: tuple[int, int], step: Step, work: Work) -> list[int]:
        """A load and reduction over a group of ranks, and a store to all of it, as the messages that ranks exchange."""
        rank, chain, source = step.rank, self.chain[block], work.sources[0]
        if KINDS[step.operation.name].reduces:
            own = next(operand for operand in work.sources if operand.rank == rank)
            total = next(operand for operand in work.targets if operand.rank == rank)
            loads = [
                self._load(block, operand, None, chain, PlanRole.MULTIMEM)
                for operand in work.sources
                if operand.rank != rank
            ]
            chain = self._copy(rank, own, total, chain)
            for load in loads:
                chain = self._reduce(rank, total, total, chain, payload=load)
            source = total
        ends: list[int] = []
        for target in work.targets:
            if target.rank == rank:
                ends += self._copy(rank, source, target, chain)
            else:
                send, receive = self._message(
                    source, target, target.rank, PlanRole.MULTIMEM, chain, block[1], packets=target.packets
                )  # fmt: skip
                self.arrivals[block, target.rank].append(receive)
                ends.append(send)
        return ends


def _block_keys(plan: Plan) -> list[tuple[int, int]]:
    return [(rank, number) for rank, gpu in enumerate(plan.gpus) for number in range(len(gpu.blocks))]
