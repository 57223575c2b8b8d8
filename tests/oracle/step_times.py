"""Times of given programs by thread block, reckoned step by step from the equations, without events or links.

It knows no order in time: the end of a step is the greatest of what it waits for, which is asked for when needed.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.topology.profile import ProgramProtocol

_COLUMNS = ("fused", "tb_id", "comm_src", "comm_dst", "channel", "msg_chunk_cnt")


class Stuck(Exception):
    """Steps wait for each other."""


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


class Reckoning:
    """The steps of an algorithm under costs, for chunks of `nbytes`."""

    def __init__(self, algorithm: Algorithm, costs: ProgramProtocol, nbytes: int) -> None:
        self.costs, self.nbytes = costs, nbytes
        self.simple = algorithm.protocol != "LL"
        self.step_of: dict[tuple[int, int], tuple[int, int]] = {}
        self.before, self.after = {}, defaultdict(set)
        self.gives, self.takes, self.count = {}, {}, {}
        sent, received, last, first = defaultdict(list), defaultdict(list), {}, {}
        for rank, trace in enumerate(algorithm.traces):
            ptr, ids = (each.tolist() for each in trace.data_deps)
            for row, node in enumerate(trace.node_id.tolist()):
                value = {name: int(trace.column(name)[row]) for name in _COLUMNS}
                step = self.step_of[rank, node] = rank, node if value["fused"] == MISSING else value["fused"]
                block = rank, value["tb_id"]
                if step == (rank, node):
                    self.before[step] = last.get(block)
                    self.count[step] = max(value["msg_chunk_cnt"], 0)
                    last[block], first[block] = step, first.get(block, step)
                self.after[step] |= {(rank, other) for other in ids[ptr[row] : ptr[row + 1]]}
                if trace.type[row] == NodeType.COMM_SEND:
                    sent[rank, value["comm_dst"], value["channel"]].append(step)
                elif trace.type[row] == NodeType.COMM_RECV:
                    received[value["comm_src"], rank, value["channel"]].append(step)
        #: The last step of the thread block of a first step.
        self.wraps = {first[block]: last[block] for block in first}
        for connection, steps in sent.items():
            for k, (give, take) in enumerate(zip(steps, received[connection], strict=True)):
                self.gives[give], self.takes[take] = (connection, k), give
        self.received = received
        self.passes = max(1, -(-nbytes // costs.slice)) if any(self.count.values()) else 1
        self._times: dict = {}

    def makespan(self) -> int:
        """The end of the last step of the last pass, after the launch. Raises Stuck."""
        return max(self.times(step, p)[1] for step in self.count for p in range(self.passes))

    def times(self, step, p) -> tuple[int, int]:
        """Begin and end of a step in a pass."""
        if (step, p) in self._times:
            if self._times[step, p] is None:
                raise Stuck
            return self._times[step, p]
        self._times[step, p] = None
        costs = self.costs
        waits = [costs.launch]
        own = {self.step_of[node] for node in self.after[step]} - {step}
        waits += [self.times(other, p)[1] for other in own]
        if self.before[step] is not None:
            waits.append(self.times(self.before[step], p)[1])
        elif p:
            waits.append(self.times(self.wraps[step], p - 1)[1])
        tail = 0
        if step in self.takes:
            begin, end = self.times(self.takes[step], p)
            waits.append(begin + costs.latency + (_ceil(Fraction(end - begin, 2)) if self.simple else 0))
            tail = end + costs.latency
        if step in self.gives:
            connection, k = self.gives[step]
            takes = self.received[connection]
            freed = p * len(takes) + k - (2 if self.simple else 8)
            if freed >= 0:
                waits.append(self.times(takes[freed % len(takes)], freed // len(takes))[1])
        begin = max(waits) + costs.step
        nbytes = self.count[step] * max(0, min(self.nbytes - p * costs.slice, costs.slice))
        end = max(begin + _ceil(nbytes * 10**12 / costs.rate), tail)
        self._times[step, p] = begin, end
        return begin, end
