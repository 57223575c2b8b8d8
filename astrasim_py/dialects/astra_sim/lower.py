"""The order in which ASTRA-sim issues nodes of an injected algorithm that become ready together.

Its feeder has them in a hash set of node ids, as it has the children of a node, and all nodes.
"""

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np

from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.hash_sets import iteration_order
from astrasim_py.system.programs import RankProgram


def by_hash_set(program: RankProgram, trace: ExecutionTrace) -> RankProgram:
    """The program of a trace, with children in the order of release and roots in the order of issue."""
    old, ids = program.structure, program.node_id
    succ = old.succ.copy()
    for begin, end in pairwise(old.succ_ptr.tolist()):
        if end - begin > 1:
            children = old.succ[begin:end]
            children = children[np.argsort(program.rows[children])]
            succ[begin:end] = children[iteration_order(ids[children])[0]]
    listed = _mentioned(trace)
    listed = np.searchsorted(ids, listed[iteration_order(listed)[0]])
    roots = listed[old.need[listed] == 0]
    order, buckets = iteration_order(ids[roots])
    digest = hashlib.blake2b(old.key + ids.tobytes() + program.rows.tobytes(), digest_size=16).digest()
    structure = replace(old, key=digest, succ=succ, roots=roots[order].astype(np.int32), buckets=buckets)
    return replace(program, structure=structure)


def _mentioned(trace: ExecutionTrace) -> np.ndarray:
    """uint64[n]: ids of nodes in the order in which the file mentions them, as a node or as a parent of one."""
    ptr, parents = trace.parents("data+ctrl")
    if (parents < np.repeat(np.arange(len(trace)), np.diff(ptr))).all():
        return trace.node_id
    mentions: dict[int, None] = {}
    for row, node_id in enumerate(trace.node_id.tolist()):
        deps = np.array(list(dict.fromkeys([*trace.data_deps.of(row), *trace.ctrl_deps.of(row)])), dtype=np.uint64)
        mentions |= dict.fromkeys([node_id, *deps[iteration_order(deps)[0]].tolist()])
    return np.array(list(mentions), dtype=np.uint64)
