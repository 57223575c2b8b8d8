"""Maximum flows in whole numbers (Dinic, Soviet Math. Doklady 1970), compiled."""

from collections import namedtuple
from types import FunctionType

import numpy as np

from astrasim_py.core.jit import Function, kernel, lean

#: A flow network and the memory of a flow. Edge e runs to `to[e]` with `rest[e]` to spare, and e ^ 1 back; the edges of
#: a vertex are ``first[v]``, ``after[first[v]]``, …, -1. `level`: edges from the source, or -1. `at`, `path`, `queue`:
#: memory. `size`: int64[1], edges.
FlowNetwork = namedtuple("FlowNetwork", "first after to rest level at path queue size")

#: Beyond every capacity; sums of a few still fit.
ENDLESS = 2**60
#: Edges of all flows of a graph from which they are compiled: before, Python is done sooner than numba is loaded.
_COMPILED = 2**15


def flow_network(vertices: int, edges: int) -> FlowNetwork:
    """A flow network without edges, with room for so many pairs of them."""
    after, to, rest = (np.empty(2 * edges, dtype=np.int64) for _ in range(3))
    first, level, at, path, queue = (np.full(vertices, -1, dtype=np.int64) for _ in range(5))
    return FlowNetwork(first, after, to, rest, level, at, path, queue, np.zeros(1, dtype=np.int64))


@lean
def add_edge(net, tail, head, capacity):
    """Add an edge; returns its number."""
    e = net.size[0]
    net.to[e], net.rest[e], net.after[e] = head, capacity, net.first[tail]
    net.to[e + 1], net.rest[e + 1], net.after[e + 1] = tail, 0, net.first[head]
    net.first[tail], net.first[head] = e, e + 1
    net.size[0] = e + 2
    return e


@lean
def _set_levels(net, source, sink):
    """Number vertices by edges from the source; whether the sink is reached."""
    for v in range(len(net.level)):
        net.level[v] = -1
    net.level[source], net.queue[0] = 0, source
    read, write = 0, 1
    while read < write:
        v = net.queue[read]
        read += 1
        e = net.first[v]
        while e >= 0:
            w = net.to[e]
            if net.rest[e] > 0 and net.level[w] < 0:
                net.level[w] = net.level[v] + 1
                net.queue[write] = w
                write += 1
            e = net.after[e]
    return net.level[sink] >= 0


@lean
def max_flow(net, source, sink, most):
    """The flow from source to sink, `most` at most; where it is less, `level` is at least 0 on the near side of a least
    cut."""
    total = np.int64(0)
    while total < most and _set_levels(net, source, sink):
        for v in range(len(net.at)):
            net.at[v] = net.first[v]
        v, depth = source, 0
        while total < most:
            if v == sink:
                amount = most - total
                for i in range(depth):
                    amount = min(amount, net.rest[net.path[i]])
                total += amount
                back = depth
                for i in range(depth - 1, -1, -1):
                    net.rest[net.path[i]] -= amount
                    net.rest[net.path[i] ^ 1] += amount
                    if net.rest[net.path[i]] == 0:
                        back = i
                depth = back
                v = source if depth == 0 else net.to[net.path[depth - 1]]
                continue
            e = net.at[v]
            while e >= 0 and not (net.rest[e] > 0 and net.level[net.to[e]] == net.level[v] + 1):
                e = net.after[e]
            net.at[v] = e
            if e >= 0:
                net.path[depth] = e
                depth += 1
                v = net.to[e]
            elif v == source:
                break
            else:
                depth -= 1
                e = net.path[depth]
                v = net.to[e ^ 1]
                net.at[v] = net.after[e]
    return total


@lean
def _join(net, tail, head, capacity, supply):
    """Edges of a graph, then one from a further vertex to every vertex with a supply."""
    net.size[0] = 0
    for v in range(len(net.first)):
        net.first[v] = -1
    for e in range(len(tail)):
        add_edge(net, tail[e], head[e], capacity[e])
    source = len(net.first) - 1
    for v in range(len(supply)):
        if supply[v] > 0:
            add_edge(net, source, v, supply[v])


@kernel("bounds by cuts", threads=True, lean=True)
def _least_cut(net, tail, head, capacity, supply, sink, wanted, inside):
    """See `least_cut`."""
    _join(net, tail, head, capacity, supply)
    flow = max_flow(net, len(net.first) - 1, sink, wanted)
    for v in range(len(inside)):
        inside[v] = net.level[v] >= 0
    return flow


def _interpreted(function: Function) -> FunctionType:
    """A function of this module in Python, with all that it calls."""
    scope = dict(globals())
    for name, value in globals().items():
        if isinstance(value, Function):
            scope[name] = FunctionType(value.py_func.__code__, scope)
    return scope[function.__name__]


class FlowGraph:
    """A directed graph: int64[edges] tails and heads, of so many vertices."""

    def __init__(self, vertices: int, tail: np.ndarray, head: np.ndarray) -> None:
        self.vertices = vertices
        self.tail, self.head = (np.ascontiguousarray(each, dtype=np.int64) for each in (tail, head))
        self._net = flow_network(vertices + 1, len(tail) + vertices)
        self._edges = 0

    def least_cut(self, capacity: np.ndarray, supply: np.ndarray, sink: int) -> np.ndarray | None:
        """The near side, bool[vertices], of a least cut between the supplies of vertices and a sink, if not all of them
        can flow there; None if they can.

        `capacity`: int64[edges]. `supply`: int64[vertices], 0 at the sink. Sums must stay below 2^62.
        """
        wanted, inside = int(supply.sum()), np.zeros(self.vertices, dtype=bool)
        columns = [np.ascontiguousarray(each, dtype=np.int64) for each in (self.tail, self.head, capacity, supply)]
        self._edges += len(self.tail)
        if self._edges < _COMPILED:
            net, near = FlowNetwork(*(column.tolist() for column in self._net)), inside.tolist()
            flow = _least_cut_in_python(net, *(column.tolist() for column in columns), sink, wanted, near)
            inside[:] = near
        else:
            flow = _least_cut(self._net, *columns, sink, wanted, inside)
        return None if int(flow) == wanted else inside


_least_cut_in_python = _interpreted(_least_cut)
