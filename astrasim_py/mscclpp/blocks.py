"""The thread blocks of a plan as lists of steps, and the counters that these share.

A counter has a key: (channel type, from, to, number) for a channel, ("semaphore", rank, number) for a semaphore.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from astrasim_py.mscclpp.ir import PORT, SWITCH, Operation, Plan, ThreadBlock, iterations_by_byte


class Step(NamedTuple):
    """An operation of a thread block, in an iteration of its pipeline (-1 outside of one). `place`: of the
    operation, or its pipeline, in the list of the block."""

    rank: int
    block: int
    place: int
    operation: Operation
    iteration: int


class Signal(NamedTuple):
    """A signal of a channel, or a release of a semaphore: its agent, and what it tells."""

    agent: int
    told: np.ndarray


@dataclass(slots=True)
class Counter:
    """A counter of signals. `sources`, `waiters`: the blocks that count in it, or wait for it; `initial`: its value."""

    initial: int = 0
    total: int = 0  # of signals in a call
    sources: set[int] = field(default_factory=set)
    waiters: set[int] = field(default_factory=set)
    sent: int = 0  # signals so far; all but the first `dropped` of them are in `signals`
    dropped: int = 0
    signals: list[Signal] = field(default_factory=list)
    waits: int = 0
    waits_of: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def value(self) -> int:
        return self.initial + self.sent - self.waits

    @property
    def shared(self) -> bool:
        """Whether it is not plain which signals a wait comes after."""
        return len(self.sources) > 1

    def add(self, signal: Signal) -> None:
        self.signals.append(signal)
        self.sent += 1

    def sure(self, count: int, *, acquires: bool) -> list[Signal]:
        """The signals that a wait for `count` of them is sure to come after.

        Where one block counts and one waits, what the latter has acquired is dropped: it need not be told again.
        """
        if not self.shared and len(self.waiters) == 1:
            signals = self.signals[: max(count - self.dropped, 0)]
            if acquires:
                del self.signals[: len(signals)]
                self.dropped += len(signals)
            return signals
        by_agent: dict[int, list[Signal]] = defaultdict(list)
        for signal in self.signals:
            by_agent[signal.agent].append(signal)
        surplus = self.sent - count
        sure = [s for sent in by_agent.values() for s in sent[: max(len(sent) - surplus, 0)]]
        if count > 0:
            # Whichever came first, the wait comes after what all agents knew when they first signalled.
            sure.append(Signal(-1, np.minimum.reduce([sent[0].told for sent in by_agent.values()])))
        return sure


class Blocks:
    """The thread blocks of a plan, with their steps in order, and its channels by the numbers of both ends.

    `plan`: whose operations are all known. `iterations`: of its longest pipeline.
    """

    def __init__(self, plan: Plan, iterations: int = 1) -> None:
        self.plan = plan
        chunk_bytes = iterations / max(iterations_by_byte(plan), default=Fraction(1))
        self.steps: list[list[Step]] = []
        self.blocks: list[tuple[int, ThreadBlock]] = []
        #: By rank, channel type and number: the two counters of the channel, as (type, from, to, number).
        self.channels: dict[tuple[int, str, int], tuple[tuple, tuple]] = {}
        for rank, gpu in enumerate(plan.gpus):
            for kind, peers in gpu.peers.items():
                turns: dict[int, int] = defaultdict(int)
                for number, peer in enumerate(peers):
                    turn = turns[peer]
                    turns[peer] += 1
                    self.channels[rank, kind, number] = (kind, rank, peer, turn), (kind, peer, rank, turn)
            for number, block in enumerate(gpu.blocks):
                self.blocks.append((rank, block))
                self.steps.append(
                    [
                        Step(rank, number, index, inner, iteration)
                        for index, operation in enumerate(block.operations)
                        for iteration, inner in _unrolled(operation, chunk_bytes)
                    ]
                )

    def counters(self, block: int, operation: Operation) -> list[tuple]:
        """The counters that an operation counts in, or waits for."""
        rank, tables = self.blocks[block]
        if operation.semaphores:
            return [("semaphore", rank, number) for number in operation.semaphores]
        if operation.channel_type == SWITCH:
            return []
        inbound = operation.name.endswith("wait")
        numbers = tables.channels.get(operation.channel_type, ())
        return [
            self.channels[rank, operation.channel_type, numbers[position]][inbound] for position in operation.channels
        ]

    def port(self, block: int, operation: Operation, position: int) -> tuple[int, int]:
        """The rank, and the number there, of the port channel at a position of the channels of an operation."""
        rank, tables = self.blocks[block]
        return rank, tables.channels[PORT][operation.channels[position]]


def _unrolled(operation: Operation, chunk_bytes: Fraction) -> list[tuple[int, Operation]]:
    """By iteration, the operations of a pipeline for chunks of so many bytes; others as they are."""
    if operation.name != "pipeline":
        return [(-1, operation)]
    many = ceil(chunk_bytes * operation.chunks / operation.unit_bytes)
    inner = [replace(inner, chunks=operation.chunks, iterations=many) for inner in operation.inner]
    return [(iteration, operation) for iteration in range(many) for operation in inner]
