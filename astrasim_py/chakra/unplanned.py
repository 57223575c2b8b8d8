"""What only algorithms by dimension use of collectives."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.trace import ExecutionTrace


def unplanned(traces: Sequence[ExecutionTrace], *, dims_only: bool = False) -> Iterator[str]:
    """Dimensions that collectives leave out, and their priorities: what only algorithms by dimension use.

    `traces`: by rank. `dims_only`: priorities are used.
    """
    count, first = 0, ""
    for trace, ranks in Counter(traces).items():
        rows = [] if trace.raw is None else _left_out(trace)
        first = first or (f"{trace.place or 'trace'}: node {int(trace.node_id[rows[0]])}" if rows else "")
        count += ranks * len(rows)
    if count:
        subject = "the collective leaves out dimensions" if count == 1 else f"{count} collectives leave out dimensions"
        advice = "name its members by pg_name and groups"
        yield f"{first}: {subject} (involved_dim), and runs over its whole group: {advice}"
    for trace in () if dims_only else dict.fromkeys(traces):
        if trace.has_column("comm_priority"):
            priorities = np.maximum(trace.column("comm_priority")[trace.type == NodeType.COMM_COLL], 0)
            if len(np.unique(priorities)) > 1:
                text = "collectives have unequal comm_priority, which only algorithms by dimension use"
                yield f"{trace.place or 'the workload'}: {text}"
                return


def _left_out(trace: ExecutionTrace) -> list[int]:
    """Rows of collectives that leave out dimensions, which only files say."""
    from astrasim_py.chakra.attributes import leaves_out_dims

    return [*leaves_out_dims(trace)]
