"""Control dependencies: whether they order a set, and what they say beyond its data dependencies."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from astrasim_py.chakra import graph
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import TraceError

#: Bits of ancestors that are held at once; nodes and edges that are visited with them, in a trace and in a set.
_MOST_BITS, _MOST_STEPS, _MOST_OF_SET = 2**29, 2**22, 2**25
#: What is said of a set that `kind_of` finds ordered by its control dependencies.
TAKEN = "no node has data dependencies: control dependencies order them"


@dataclass(frozen=True)
class Free:
    """Control dependencies between nodes that no data dependencies order, directly or through others."""

    count: int
    child: int  # node id of the first
    parent: int
    judged: int  # control dependencies that were looked at …
    given: int  # … of so many
    why_not: str = ""  # why they can be no order, together with the data dependencies; empty if they can


def as_data(trace: ExecutionTrace) -> ExecutionTrace:
    """The trace with data and control dependencies as data dependencies.

    Raises TraceError: dangling dependencies, or a cycle.
    """
    if not len(trace.ctrl_deps.ids):
        return trace
    try:
        ptr, rows = trace.parents("data+ctrl")
        trace.order("data+ctrl")
    except TraceError as error:
        problem = f"{error.problem}, by data_deps and ctrl_deps together"
        raise TraceError(error.place, problem, f"{error.remedy}, or write dependencies: data") from None
    return trace.replace(data_deps=Csr(ptr, trace.node_id[rows]), ctrl_deps=None)


def free(trace: ExecutionTrace, steps: int | None = None) -> Free | None:
    """Control dependencies that data dependencies do not imply; None where there are none.

    Each is judged exactly. Those that would take more than `steps` visits of nodes and edges, 2^22 by default, are left
    out, so that of a very large trace `count` is a lower bound. Dependencies on nodes that are not in the trace do not
    count. Raises TraceError: dangling data dependencies, or a cycle of them.
    """
    size, parents = len(trace), trace.rows_of(trace.ctrl_deps.ids)
    here = parents >= 0
    if not here.any():
        return None
    ptr, rows = trace.parents("data")
    by_data = graph.owners(ptr) * size + rows
    pairs = np.setdiff1d(graph.owners(trace.ctrl_deps.ptr)[here] * size + parents[here], by_data)
    if not len(pairs):
        return None
    child, parent = np.divmod(pairs, size)
    apart, judged = _apart(trace, ptr, rows, child, parent, _MOST_STEPS if steps is None else steps)
    if not apart.any():
        return None
    first = int(np.argmax(apart))
    all_pairs = np.unique(np.append(by_data, pairs))
    owner, before = np.divmod(all_pairs, size)
    cyclic = len(graph.topological_order(graph.pointers(owner, size), before, trace.id_ranks())) < size
    lost = int((~here).sum())
    why_not = (
        "with data dependencies they are a cycle"
        if cyclic
        else f"{lost} more {'names' if lost == 1 else 'name'} no node"
        if lost
        else ""
    )
    ids = int(trace.node_id[child[first]]), int(trace.node_id[parent[first]])
    return Free(int(apart.sum()), *ids, int(judged.sum()), len(pairs), why_not)


def _apart(
    trace: ExecutionTrace, ptr: np.ndarray, rows: np.ndarray, child: np.ndarray, parent: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """bool[k] each: pairs of which the parent is no ancestor of the child, and pairs that were judged."""
    order = trace.order("data")
    place = np.empty(len(trace), dtype=np.int64)
    place[order] = np.arange(len(trace))
    starts, parents, lines = ptr.tolist(), rows.tolist(), order.tolist()
    # A chain is a path of the graph: a node joins that of a parent that no other node has followed yet.
    chain, ends = [-1] * len(trace), bytearray(len(trace))
    for row in lines:
        for before in parents[starts[row] : starts[row + 1]]:
            if not ends[before]:
                ends[before], chain[row] = 1, chain[before]
                break
        else:
            chain[row] = row
    later = place[parent] >= place[child]
    of = np.array(chain, dtype=np.int64)
    judged = later | (of[parent] == of[child])
    apart, open_ = later.copy(), np.flatnonzero(~judged)
    width = max(1, _MOST_BITS // max(len(trace), 1))
    ancestors = np.unique(parent[open_])
    blocks = -(-len(ancestors) // width)
    for number in range(min(blocks, -(-most // (len(trace) + len(rows))))):
        block = ancestors[number::blocks].tolist()
        bit = {row: 1 << index for index, row in enumerate(block)}
        index = open_[np.isin(parent[open_], block)]
        masks = [0] * len(trace)
        for row in lines[int(place[block].min()) : int(place[child[index]].max()) + 1]:
            mask = bit.get(row, 0)
            for before in parents[starts[row] : starts[row + 1]]:
                mask |= masks[before]
            masks[row] = mask
        pairs = zip(child[index].tolist(), parent[index].tolist(), strict=True)
        apart[index] = [not masks[after] & bit[before] for after, before in pairs]
        judged[index] = True
    return apart, judged


def unused(traces: Sequence[ExecutionTrace]) -> tuple[str, str] | None:
    """File, and a line, on the control dependencies of a set that would order it beside its data dependencies.

    None where there are none. Traces with a dangling data dependency or a cycle do not count.
    """
    counts, frees, left = Counter(traces), dict[ExecutionTrace, Free](), _MOST_OF_SET
    for trace in counts:
        with suppress(TraceError):
            if (unordered := free(trace, min(_MOST_STEPS, left))) is not None:
                frees[trace] = unordered
        size = len(trace) + len(trace.data_deps.ids)
        left = max(left - (_MOST_STEPS if size > 2**16 else size), 0)
    if not frees:
        return None
    total = sum(unordered.count * counts[trace] for trace, unordered in frees.items())
    trace, first = next(iter(frees.items()))
    least = "at least " if any(unordered.judged < unordered.given for unordered in frees.values()) else ""
    why_not = next((unordered.why_not for unordered in frees.values() if unordered.why_not), "")
    single = total == 1 and not least
    subject = "a control dependency orders" if single else f"{least}{total} control dependencies order"
    text = f"{subject} nodes that data dependencies leave free, and {'is' if single else 'are'} not used"
    advice = (
        f"{why_not}; write dependencies: data" if why_not else "write dependencies: data+ctrl, or data to leave them"
    )
    return trace.place, f"{text} (node {first.child} after node {first.parent}); {advice}"
