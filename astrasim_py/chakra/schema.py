"""Names and numbers of Chakra: node types, collectives, attributes with a column."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

#: Value of an absent integer attribute in a column.
MISSING = -(2**63)
#: `slot_kind` of compute nodes that hold none and are no computation: time of the host, and of software that sends.
SOFTWARE_TIME = 4


class NodeType(IntEnum):
    """Type of a node, as numbered by Chakra."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommType(IntEnum):
    """Collective of a COMM_COLL node, as numbered by Chakra; and one of our own, far from Chakra's range."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9
    CUSTOM = 1000


#: Number of a collective in Chakra -> its name everywhere else in the package.
COLLECTIVE_OF_CODE: Mapping[int, str] = {
    **{int(member): member.name.lower() for member in CommType},
    int(CommType.REDUCE_SCATTER_BLOCK): "reduce_scatter",
}

#: The other way round: the number that is written for a collective.
COLLECTIVE_CODES: Mapping[str, int] = {
    name: code for code, name in COLLECTIVE_OF_CODE.items() if code != CommType.REDUCE_SCATTER_BLOCK
}

#: Integer attributes that have a column, and the oneof member that a writer uses; readers accept any integer member.
COLUMN_KINDS: Mapping[str, str] = {
    "comm_type": "int64_val",  # a CommType
    "comm_size": "int64_val",  # bytes
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "comm_priority": "int32_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",  # bytes
    "tensor_loc": "uint32_val",
    "is_cpu_op": "bool_val",
    "msg_chunk_idx": "int32_val",  # chunks [idx, idx + cnt) of total_chunk_cnt of the full buffer
    "msg_chunk_cnt": "int32_val",
    "total_chunk_cnt": "int32_val",
    "comm_root": "int32_val",
    "comp_op": "int32_val",  # on COMP nodes of algorithms: 1 reduce, 2 copy
    "src_buf": "int32_val",  # cells: buffer 1 input, 2 output, 3 scratch; offset in chunks; msg_chunk_cnt of them
    "src_off": "int32_val",
    "dst_buf": "int32_val",
    "dst_off": "int32_val",
    "payload": "int64_val",  # id of the node whose data this node takes
    "coll_size": "int64_val",  # on COMM_COLL nodes: exact bytes of the full buffer
    "duration_ps": "int64_val",  # on COMP nodes: exact duration
    "tb_id": "int32_val",  # of algorithms from MSCCL-IR: thread block of the rank, its channel, step in it
    "channel": "int32_val",
    "local_time_step": "int32_val",
    "chunk_offset": "int32_val",  # offset of the local operand, the name that collectiveapi's readers use
    "depid": "int32_val",  # as in the XML: the last dependency of the step
    "deps": "int32_val",
    "hasdep": "int32_val",
    "is_rrc": "bool_val",
    "fused": "int64_val",  # id of the first node of the node's fused step
    "tb_prev": "int64_val",  # id of a parent that only the order of the thread block requires
    "source_line": "int32_val",  # line of the step in its file or program
    "peer_buf": "int32_val",  # cells of the peer that the step names: informative only
    "peer_off": "int32_val",
    "detached": "bool_val",  # on SEND nodes: the rank's part of the collective does not wait for its completion
    "counter": "int32_val",  # completion of the node counts in this counter of its rank
    "count_of": "int32_val",  # the node also waits for the count_k-th completion in this counter …
    "count_k": "int32_val",
    "count_from": "int64_val",  # … counted from after the completion of the node of this id; absent: from the start
    "packets": "bool_val",  # of algorithms from MSCCL++: the message has a flag for each word, so twice its bytes
    "plan_role": "int32_val",  # what the node stands for there, see astrasim_py.collectives.plan_roles
    "slot_kind": "int32_val",  # slot of a workload node: 0 none, 1 CPU, 2 compute, 3 communication; absent: by its type
    "consumes": "int64_val",  # on COMP nodes of workloads: id of a COMM_COLL node; the node waits for one tile …
    "consumes_tile": "int32_val",  # … of its output, the number of which is this …
    "consumes_tiles": "int32_val",  # … of so many
    "produces": "int64_val",  # on COMP nodes of workloads: id of a COMM_COLL node; its steps wait for this tile …
    "produces_tile": "int32_val",  # … of its input
    "produces_tiles": "int32_val",
    "tile_order": "bool_val",  # tiles count in the order in which the collective needs or brings them on the rank
    "inlined_call": "int32_val",  # number of the call of a collective that the node is of, in place of it
    "inlined_node": "int64_val",  # id in the trace of its algorithm; absent where the call begins
    "inlined_rank": "int32_val",  # where the call begins: the position of the rank in its group
    "layer": "int32_val",  # of a model, for reports
    "micro_batch": "int32_val",
    "phase": "int32_val",  # 0 forward, 1 backward, 2 weight gradient, 3 optimizer, 4 recomputation
}
INT_COLUMNS: tuple[str, ...] = tuple(COLUMN_KINDS)
#: Columns that Chakra defines; in traces of other producers the other names may have any meaning.
CHAKRA_COLUMNS = frozenset(INT_COLUMNS[: INT_COLUMNS.index("comm_root")])
#: Columns that hold ids of nodes.
REFERENCES = ("payload", "fused", "tb_prev", "count_from", "consumes", "produces")
#: Columns that count something: negative values are refused.
COUNTS = frozenset(("comm_size", "num_ops", "tensor_size"))
#: Integer columns in writing order.
WRITE_ORDER = ("is_cpu_op", *(name for name in INT_COLUMNS if name != "is_cpu_op"))
#: Least and greatest number of each member that we write.
RANGES = {"bool_val": (0, 1), "int32_val": (-(2**31), 2**31 - 1), "uint32_val": (0, 2**32 - 1)}
RANGES |= {"uint64_val": (0, 2**63 - 1), "int64_val": (MISSING + 1, 2**63 - 1)}


def kind_for(name: str, values: np.ndarray) -> str:
    """Member that a column is written with: the canonical one, or int64 where a value does not fit it."""
    kind = COLUMN_KINDS.get(name, "int64_val")
    low, high = RANGES[kind]
    present = values != MISSING
    fits = int(values.max()) <= high and int(values.min(where=present, initial=high)) >= low
    return kind if fits else "int64_val"


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a node or of the metadata."""

    name: str
    kind: str = ""  # oneof member such as ``int64_val`` or ``string_list``; empty if the producer set none
    value: object = None
    doc: str = ""
