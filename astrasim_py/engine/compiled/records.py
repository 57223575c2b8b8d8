"""Records of the compiled engine: the tables that the kernel works on, with named fields.

`KernelInput` (`astrasim_py.engine.compiled.build`) holds the tables that do not change, `State`
(`astrasim_py.engine.compiled.state`) those that do. A record that the kernel touches for every message or node takes
one or two cache lines. "Place" is an index into the arena (64-bit words) or, where said, into `ints` or `longs`.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.heap import ENTRY as ENTRY


def _record(kind: str, /, *names: str, itemsize: int | None = None, **others: str) -> np.dtype:
    """A record of fields of one kind, then `others` with kinds of their own; `itemsize`: its bytes."""
    fields = [(name, kind) for name in names] + list(others.items())
    made = np.dtype(fields, align=True)
    if itemsize is None:
        return made
    layout = {
        "names": made.names,
        "formats": [f for _, f in fields],
        "offsets": [made.fields[n][1] for n in made.names],
    }
    return np.dtype(layout | {"itemsize": itemsize}, align=True)


CUT_THROUGH, STORE_AND_FORWARD, ANALYTICAL = map(np.int64, range(3))

# -- input ------------------------------------------------------------------------------------------------------

NODE = _record(
    "i4",
    "kind",  # kind | slot << 3 | DETACHED
    "size",  # index of its bytes (send, receive) or its duration (compute, memory); instance (collective)
    "peer",  # position of the other rank; in a rotated call the number of its delta
    "partner",  # partner's node in the partner's template; ~channel where several messages can match
    "successor",  # first of its successors, in `ints`
    "successors",
    "route",  # number of the route to the peer
    "count",  # its number among nodes with MOST_NEEDS dependencies or more, else -1
)
DETACHED = np.int64(1 << 6)

# A node of a block has a byte of state: the dependencies that are left, and two flags.
NEEDS, POSTED, ARRIVED = map(np.int64, (63, 64, 128))
MOST_NEEDS = np.int64(63)  # or more: they are counted in a word of the block

TEMPLATE = _record(
    "i8",
    "first",  # its first node
    "nodes",
    "roots",  # in `ints`
    "root_count",
    "flags",
    "counts",  # in `ints`: dependencies of nodes with many
    "count_count",
    "counters",
    "counting",  # in `longs`: COUNTING of each node
    "waiting",  # in `longs`: WAITING of each counter
    "connections",  # in `ints`: the slot each node needs, the slot it frees, and its connection; one after the other
    "longer",  # ps that every hop takes longer
    "variant",  # analytical: number of that extra latency
    "words",  # of the arena for one block
    "counter_word",  # word of a block at which its counters begin
)
COUNTS, ADMITTED, CONNECTED, PACED, WORKLOAD = map(np.int64, (1, 2, 4, 8, 16))

COUNTING = _record(
    "i8",
    "counts",  # counter that its completion advances, -1: none
    "waits_for",  # counter
    "target",  # count that it waits for, from when it begins to count
    "starters",  # in `longs`: nodes that begin to count when it completes
    "starter_count",
)
WAITING = _record("i8", "word", "room", "first", "count")  # heap in the block's words; its first entries, in `longs`

CALL = _record(
    "i8",
    "instance",
    "members",
    "ranks",  # in `ints`: members by position
    "templates",  # in `ints`, by position; of a rotated call the template itself
    "flags",
    "channels",
    "peers",  # rotated, in `ints`: peer by position and delta; -1: computed
    "routes",  # in `ints`: route by position and column (rotated: delta); -1: found by the pair of NPUs
    "deltas",  # columns of the two
    "dims",  # rotated, in `ints`: number of dimensions, these, digits of each delta
    "extra_bytes",  # rotated, in `small`: by position and node, what is added to its size; -1: nothing
    "messages",  # under the MSCCL link model
    "connections",
    "rows",  # in `longs`: first row of the node table by position, -1: not recorded
)
# JOINT: the states of its blocks lie together, node by node: members do the same at the same time, so that states
# which are needed together share a cache line.
ROTATED, SHARED, EMPTY, JOINT = map(np.int64, (1, 2, 4, 16))

INSTANCE = _record(
    "i8",
    "first",  # call
    "members",
    "sorted",  # in `ints`: members ascending, then their positions
    "chunks",  # in `longs`: CHUNK of each
    "chunk_count",
    "turns",  # in `longs`: turns by queue
    "planned",  # whether its calls are run as chunks
)
CHUNK = _record("i8", "priority", "phases", "phase_count", "turns")  # phases in `longs`; whether it has turns
PHASE = _record("i8", "queue", "priority", "call", "turn", "members")  # in `ints`: call and position by member

# -- state: tables ----------------------------------------------------------------------------------------------

EVENT = _record(
    "i8",
    "scheduled",  # ps at which it was scheduled, where that is the order
    "number",  # of the action
    # ps at which the tail reaches the next link; of a message that waits for a link, when it asked; analytical: number
    # of the route; of a timer, when it ends
    "tail",
    # next link << 32 | end of the route; computed routes: NPU << 32 | destination; of a timer that is the first of its
    # time, the next such timer + 1, 0: none
    "route",
    "row",  # of the message table
    next="i4",
    block="i4",
    node="i4",
    match="i4",  # -1: it is the only message that its receive can match
    size="i4",  # index of its bytes
    kind="i1",
    moved="i1",  # whether the message has taken a link
    asks="i1",  # whether it is a request of the rendezvous
)
HOP, DELIVER, ENTER, END, TIMER, BEGIN, FREED, GO = map(np.int64, range(8))

MATCH = _record(
    "i8",
    "flags",  # -1: free
    "receive",  # block << 32 | node
    "send",  # block << 32 | node
    "row",  # of the message table
    "sender_row",  # of the node table
    next="i4",
    size="i4",  # index of the message's bytes
    rank="i4",  # sender
    call="i4",  # of the sender, -1: its workload
)
RECEIVE_POSTED, SEND_POSTED, HAS_ARRIVED, ASKED, UNASKED = map(np.int64, (1, 2, 4, 8, 16))

BLOCK = _record(
    "i4",
    "rank",  # -1: free
    "template",
    "first",  # its first node
    "words",  # place
    "left",  # nodes that have not completed
    "parent",  # workload node that it carries out, -1: it is the workload
    "call",  # -1: it is the workload
    "position",
    "ranks",  # in `ints`: members; of a workload the first rank of its job
    "row",  # first row of the node table
    "references",  # messages under way
    "next",
    "run",  # of its chunk, a place; 0: none
    "flags",  # of its template, and these
    "offset",  # the state of a node is byte 8 × words + offset + node × step
    "step",
)
#: SPLICED: its rank has begun it.
ROTATED_BLOCK, UNEVEN_BLOCK, JOINT_BLOCK, SPLICED = map(np.int64, (1 << 8, 1 << 9, 1 << 10, 1 << 11))

RANK = _record(
    "i8",
    "entry",  # first of its ready nodes: block << 32 | node
    "ready",  # how many there are
    "others",  # place of the others …
    "room",  # … for how many
    "awake",
    "next_awake",  # rank that was woken next
    "npu",
    "timers",  # first of the timers that are the first of their time (event + 1), 0: none
    "finish",
    "computing",  # compute nodes that run
    "communicating",
    "accounted",
    "compute",  # ps
    "exposed",  # ps
    "compute_sum",  # ps
    "server",
    "channels",  # number of the first channel of its job
    "queues",  # number of queues of chunks
    "queue",  # place of these
    "arrivals",
    "template",
    "first",  # first rank of its job
    "delay",  # ps before its first dispatch
    "capacities",  # in `longs`: chunks that each queue runs at once
    "row",  # first row of its workload in the node table
    # Not a power of two: the first lines of all rows would share a few places of the cache.
    itemsize=320,
)
#: What a rank has in its slots of one kind; a rank has one of each kind, the first unused.
SLOT = _record("i8", "used", "refused", "refused_room", "refused_count")  # heap of nodes that found no slot, a place

LINK = _record(
    "i8",
    "free",
    "latency",
    "hold",  # in `longs`: ps by size
    "hop",  # in `longs`: ps by size, -1: hold + latency
    "bytes",
    "messages",
    "busy",
    "queued",
    "most_waiting",
    "waiting",
    "first",  # of its WAITS
    "last",
    "free_scheduled",  # order of the event at which it gets free
    "free_number",
    "line",  # first message that waits for it, -1: none
    "line_last",
)
WAIT = _record("i8", "start", "next")

PROGRESS = _record(
    "i8",
    "start",  # -1: nobody has come
    "left",
    "end",
    "blocks",  # place: block by position
    "channels",  # place
    "slots",  # place: SLOT_OF_MESSAGE of each message, then a word a connection
    "states",  # joint: place …
    "state_words",  # … and how many words
)
CHANNEL = _record("i8", "first", "last")  # matches + 1 that are incomplete, 0: none
#: A slot of a connection: TAKEN, FREE, or the send that waits for it (block << 32 | node) + WAITED; and since when.
MESSAGE_SLOT = _record("i8", "state", "since")
TAKEN, FREE, WAITED = map(np.int64, range(3))
COUNTER = _record("i8", "count", "waiting")  # in a block's words: completions, and nodes that wait for a count

BUCKET = _record("i8", "time", "first", "last", "ascending", "next", itemsize=64)
#: A pool: rows that have been used, the first of those that are free again (-1: none), and rows that there are.
POOL = _record("i8", "top", "free", "room")
EVENTS, MATCHES, BLOCKS, BUCKETS, WAITS = map(np.int64, range(5))
DUE = _record("i8", "block", "node", "cause")  # cause: row of the node that caused the completion

# -- state: chunks, in the arena -------------------------------------------------------------------------------

#: One rank's part in a planned collective; behind it the turns taken of each queue, then the next share of each.
SHARE = _record("i8", "instance", "node", "left", "early", "next", "cause", "rank")
#: One chunk on one rank.
RUN = _record("i8", "share", "chunk", "phase", "arrival", "next", "next_running", "cause")
#: A queue: runs that run, runs that wait, and shares with turns left.
QUEUE = _record("i8", "running", "first", "last", "line", "line_last", "shares", "shares_last", "capacity")
SHARE_WORDS, RUN_WORDS, QUEUE_WORDS = (np.int64(kind.itemsize // 8) for kind in (SHARE, RUN, QUEUE))

# -- what is recorded -------------------------------------------------------------------------------------------

NODE_ROW = _record("i8", "start", "end", "released", "ended")
MESSAGE_ROW = _record(
    "i8",
    "call",
    "src",
    "dst",
    "node",
    "bytes",
    "posted",
    "start",
    "delivered",
    "hops",
    "queued",
    "sender",
    "receiver",
)
HOP_ROW = _record("i8", "message", "link", "requested", "start", "end")

# -- the state itself -------------------------------------------------------------------------------------------

RUNNING, FINISHED, TOO_MANY_EVENTS, TOO_LATE, UNEQUAL_BYTES, OVERFLOW, UNBORN = map(np.int64, range(7))

#: Constants of a run.
CONSTANTS = (
    "model",
    "hold_latency",  # whether a message holds a link for its latency too
    "injected",  # whether sends complete on injection
    "scheduled",  # whether events of one time go in the order of their scheduling
    "counts_references",  # whether blocks can end before their messages are delivered
    "has_servers",  # whether memory requests queue at servers
    "max_events",
    "max_time",  # ps, -1: none
    "request",  # rendezvous: index of the size of control messages; -1: none
    "duration",  # in `longs`
    "nbytes",  # in `longs`: bytes by index
    "sizes",
    "route_ptr",  # in `longs`
    "delays",  # in `longs`: analytical (delivery, injection) by class of route, variant and size
    "route_class",  # in `ints`: analytical class of each route
    "variants",  # analytical: different extra latencies
    "pace",  # in `longs`: ps by size at which connections take messages; -1: at once
    "rank_count",
    "call_count",
    "computed",  # whether routes are computed
    "npus",
    "pair_count",
    "shape",  # in `ints`: dims, for computed routes
    "dims",
    "steps",  # in `ints`: link from each NPU in each dimension, up and down
    "wraps",  # in `ints`: by dimension, whether it is a ring
    "arena_step",  # words of the arena that one step can take at most
    "block_step",  # blocks that one step can make at most
    "shared_channels",  # channels that all jobs share, -1: none
)
#: Tables of the state and of the input, by address.
ADDRESSES = (
    "nodes",
    "ints",
    "longs",
    "small",
    "path",
    "route_pairs",
    "templates",
    "calls",
    "instances",
    "capacity",  # nodes in flight by slot kind, -1: any number
    "events",
    "matches",
    "blocks",
    "ranks",
    "slots",
    "servers",
    "links",
    "waits",
    "arena",
    "buckets",
    "times",
    "hash",
    "pools",
    "dirty",
    "level_words",
    "wave",
    "progress",
    "due",
    "free_words",
    "node_rows",
    "message_rows",
    "hop_rows",
)
VARIABLES = (
    "now",
    "issued",  # timed actions
    "schedulings",
    "sent",  # messages
    "hops",
    "status",
    "record_links",
    "record_nodes",
    "record_messages",
    "arena_top",
    "time_count",  # times that are pending
    "hash_mask",
    "last_time",  # time of the bucket that was used last …
    "last_bucket",  # … and the bucket
    "current",  # first event of the present time, -1: none
    "joined",  # first event that was made for the present time at it, in order
    "joined_last",
    "levels",  # of the set of dirty ranks, whose first words are in `level_words`
    "awake",  # first rank that waits to dispatch, in order of waking
    "awake_last",
    "rank",  # rank that dispatches, -1: none
    "wave_next",
    "wave_size",
    "wave_room",
    "due_count",  # completions that are due
    "done",  # first share that is done, 0: none
    "done_last",
    "sender",  # block of a message to be sent, -1: none
    "send_node",
    "send_match",
    "carried",  # message that goes on to its next link, -1: none
    "taken_scheduled",  # order of the event that was taken last
    "taken_number",
    "message_row_count",
    "hop_row_count",
    "most_ready",  # ready nodes of one rank so far
    "wrong_receive",  # of unequal bytes: the receive, block << 32 | node …
    "wrong_sender",  # … and the send: rank, call, node, index of its bytes
    "wrong_call",
    "wrong_node",
    "wrong_size",
    "begin",  # first chunk that begins now, 0: none
    "begin_last",
    "channels",  # place of the channels of workloads
    "steps_left",  # that the kernel may take before it returns
    "budget",  # steps until the kernel checks again whether a pool could run out
    "arena_limit",  # a step may begin while no more of the arena is in use
    "arena_room",
    "row_room",
)
STATE = _record("i8", *CONSTANTS, *(f"at_{name}" for name in ADDRESSES), *VARIABLES)

#: Completions that can be due at once, and free lists of the arena.
MOST_DUE, SIZE_CLASSES = map(np.int64, (8, 176))
#: Pools grow unless they have room for SPARE steps; a step can take ROWS rows of events, matches, waits and tables.
SPARE, ROWS = map(np.int64, (16, 8))
#: Fibonacci hashing of times: 2^64 / golden ratio, as a signed number.
SPREAD = -7046029254386353131
