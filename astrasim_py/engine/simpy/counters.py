"""Counter dependencies and detached sends: a node may wait for the k-th completion among others."""

from __future__ import annotations

from heapq import heappop, heappush

from astrasim_py.engine.simpy.npu import Graph, WorkloadGraph


class CountingGraph(Graph):
    """A graph with counters or detached sends."""

    def __init__(self, npu, lists, index, call, whole) -> None:
        super().__init__(npu, lists, index, call, whole)
        counters = lists.program.counters
        self.counts, self.waits_on = counters.counts.tolist(), counters.of.tolist()
        self.k, self.detached = counters.k.tolist(), counters.detached.tolist()
        #: By counter: completions so far; and a heap of (count, node) of the nodes that wait for a count.
        self.counted = [0] * counters.number
        self.waiting: list[list[tuple[int, int]]] = [[] for _ in self.counted]
        #: Node → the nodes whose count begins with its completion.
        self.count_from: dict[int, list[int]] = {}
        for node, (counter, start) in enumerate(zip(self.waits_on, counters.start.tolist(), strict=True)):
            if counter >= 0 and start >= 0:
                self.count_from.setdefault(start, []).append(node)
            elif counter >= 0:
                heappush(self.waiting[counter], (self.k[node], node))

    def admit(self, node):
        """A detached send leaves the graph when it is issued."""
        if not super().admit(node):
            return False
        if self.detached[node]:
            self.start[node] = self.npu.env.now
            self.count_down(node)
        return True

    def complete(self, node, ended_by=-1):
        if self.detached[node]:
            self.end[node] = self.npu.env.now
            if not self.left:  # the graph is in the node table already
                self.npu.simulation.recorder.late(self.row + node, self.npu.env.now)
            return
        super().complete(node, ended_by)
        if self.left:
            self.count(node)

    def count(self, node: int) -> None:
        """A node is done: what has waited for this count is ready."""
        counter, reached = self.counts[node], []
        if counter >= 0:
            self.counted[counter] += 1
            waiting = self.waiting[counter]
            while waiting and waiting[0][0] == self.counted[counter]:
                reached.append(heappop(waiting)[1])
        for waiter in self.count_from.get(node, ()):
            on = self.waits_on[waiter]
            heappush(self.waiting[on], (self.counted[on] + self.k[waiter], waiter))
        for waiter in reached:
            self.need[waiter] -= 1
        self.release([waiter for waiter in reached if not self.need[waiter]], self.row + node)
        self.npu.wake_up()

    def uncounted(self) -> list[tuple[int, int, int, int]]:
        """Nodes that wait for nothing but a count: node, counter, its count, and the count they wait for."""
        return [
            (node, counter, self.counted[counter], count)
            for counter, waiting in enumerate(self.waiting)
            for count, node in waiting
            if self.need[node] == 1
        ]


class CountingWorkload(CountingGraph, WorkloadGraph):
    """A workload with counters."""
