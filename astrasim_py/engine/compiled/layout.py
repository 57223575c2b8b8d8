"""Columns of the flat arrays that the compiled engine runs on: the only place where their numbers stand.

The kernel sees these names as constants. Arrays that do not change are the *image*
(`astrasim_py.engine.compiled.builder.Image`), the others the *state* (`astrasim_py.engine.compiled.run.State`). Rows
that the kernel touches for every message or node are of one cache line each, or two.
"""

# -- image: scalars (`head`) ------------------------------------------------------------------------------------

(
    H_MODEL,  # one of CUT_THROUGH, STORE_AND_FORWARD, ANALYTICAL
    H_HOLD_LATENCY,  # whether a message holds a link for its latency too
    H_INJECTED,  # whether sends complete on injection
    H_SCHEDULED,  # whether events of one time go in the order of their scheduling
    H_REFS,  # whether blocks can end before their messages are delivered
    H_CAPACITY,  # + slot kind (1..3): nodes in flight, -1: any number
    H_CAPACITY_1,
    H_CAPACITY_2,
    H_CAPACITY_3,
    H_SERVERS,  # whether memory requests queue at servers
    H_MAX_EVENTS,
    H_MAX_TIME,  # ps, -1: none
    H_REQUEST,  # rendezvous: index of the size of control messages; -1: none
    H_DURATIONS,  # in `longs`
    H_SIZES,  # in `longs`: bytes by index
    H_ROUTE_PTR,  # in `longs`
    H_DELAYS,  # in `longs`: analytical (delivery, injection) by class of route, variant and size
    H_ROUTE_CLASS,  # in `ints`: analytical class of each route
    H_NSIZES,
    H_VARIANTS,  # analytical: different extra latencies
    H_PACE,  # in `longs`: ps by size at which connections take messages; -1: at once
    H_RANKS,
    H_SLICES,
    H_NODES,
    H_COMPUTED,  # whether routes are computed
    H_NPUS,
    H_SHAPE,  # in `ints`: dims, for computed routes
    H_NDIMS,
    H_STEPS,  # in `ints`: link from each NPU in each dimension, up and down
    H_WRAPS,  # in `ints`: by dimension, whether it is a ring
    H_ROOM,  # words of the arena that one step can take at most
    H_BLOCKS,  # blocks that one step can make at most
    H_SHARED_CHANNELS,  # channels of the space that all jobs share, -1: none
    H_PAIRS,  # whether routes are found by their pair of NPUs
) = range(34)
HEAD = 64

CUT_THROUGH, STORE_AND_FORWARD, ANALYTICAL = range(3)

# -- image: nodes of templates (`node`, int32) ------------------------------------------------------------------

(
    N_KIND,  # kind | slot << 3 | UNEQUAL | DETACHED
    N_SIZE,  # index of its bytes (send, receive) or its duration (compute, memory); instance (collective)
    N_PEER,  # position of the other rank; in a rotated slice the number of its delta
    N_MEET,  # node of the partner in the partner's template; ~channel where several messages meet
    N_SUCC,  # first of its successors
    N_NSUCC,
    N_ROUTE,  # number of the route to the peer
    N_EXTRA,  # its number among nodes of more than MOST_NEEDS - 1 needs, else -1
) = range(8)
UNEQUAL, DETACHED = 1 << 5, 1 << 6

# Of each node of a block there is one byte: needs that are left, and two flags.
NEEDS, POSTED, ARRIVED = 63, 64, 128
MOST_NEEDS = 63  # or more: the count is in a word of its own

# -- image: templates (`tmpl`) ----------------------------------------------------------------------------------

(
    T_FIRST,  # first of its nodes
    T_COUNT,
    T_ROOTS,  # in `ints`
    T_NROOTS,
    T_FLAGS,
    T_EXTRAS,  # in `ints`: needs of nodes with many
    T_NEXTRAS,
    T_COUNTERS,  # number of counters
    T_COUNTING,  # in `longs`: five a node: counter, counter waited for, k, first of its starts, their number
    T_WAITING,  # in `longs`: four a counter: place in the block's words, capacity, first in `longs`, number
    T_FIFO,  # in `ints`: needs, frees and connection of each node, one after the other
    T_LONGER,  # ps that every hop takes longer
    T_VARIANT,  # analytical: number of that extra latency
    T_WORDS,  # of the arena for one block
    T_COUNTED,  # word of a block at which its counters begin
) = range(15)
TEMPLATE = 16
F_COUNTING, F_ADMITTED, F_FIFO, F_PACED, F_WORKLOAD = 1, 2, 4, 8, 16

# -- image: slices (`slices`) -----------------------------------------------------------------------------------

(
    S_INSTANCE,
    S_MEMBERS,  # number
    S_RANKS,  # in `ints`: members by position
    S_TEMPLATES,  # in `ints`, by position; of a rotated slice the template itself
    S_FLAGS,
    S_CHANNELS,
    S_PEERS,  # rotated, in `ints`: peer by position and delta; -1: computed
    S_ROUTES,  # rotated, in `ints`: route by position and delta; -1: found by the pair of NPUs
    S_DELTAS,
    S_DIMS,  # rotated, in `ints`: number of dimensions, these, digits of each delta
    S_BYTES,  # rotated, in `small`: by position and node, what is added to N_SIZE; -1: nothing
    S_MESSAGES,  # under the MSCCL link model: messages
    S_CONNECTIONS,
    S_ROWS,  # in `longs`: first row of the node table by position
) = range(14)
SLICE = 16
# JOINT: the states of its blocks lie together, node by node. Members do the same at the same time, so that states which
# are needed together share a line of the cache.
F_ROTATED, F_SHARED, F_EMPTY, F_PLANNED, F_JOINT = 1, 2, 4, 8, 16

# -- image: instances (`calls`) ---------------------------------------------------------------------------------

(
    I_FIRST,  # slice
    I_MEMBERS,  # number
    I_SORTED,  # in `ints`: members ascending, then their positions
    I_STREAMS,  # in `longs`: four a stream: priority, first visit, visits, whether it has turns
    I_NSTREAMS,
    I_TURNS,  # in `longs`: turns by queue
    I_PLANNED,
) = range(7)
CALL = 8
# A visit has five in `longs`: queue, priority, first slice, turn, place in `ints` of slice and position by member.
STREAM, VISIT = 4, 5

# -- state: scalars (`G`) ---------------------------------------------------------------------------------------

(
    G_NOW,
    G_OP,  # timed actions issued
    G_SCHEDULED,  # events scheduled
    G_SENT,
    G_HOPS,
    G_STATUS,
    G_COUNTING,  # whether links are counted
    G_NODES,  # whether nodes are recorded
    G_MESSAGES,  # whether messages are recorded
    G_EVENT_TOP,  # rows used of the pool of events …
    G_EVENT_FREE,  # … and the first that is free again, -1: none
    G_BLOCK_TOP,
    G_BLOCK_FREE,
    G_PAIR_TOP,
    G_PAIR_FREE,
    G_BUCKET_TOP,
    G_BUCKET_FREE,
    G_WAIT_TOP,
    G_WAIT_FREE,
    G_ARENA_TOP,
    G_HEAP,  # distinct times that are pending
    G_LAST_TIME,  # time of the bucket that was used last …
    G_LAST,  # … and the bucket
    G_CURRENT,  # first event of the present time, -1: none
    G_JOINED,  # first event that was made for the present time at it, in order
    G_JOINED_LAST,
    G_LEVELS,  # of the set of dirty ranks
    G_LEVEL,  # + level: its first word
    G_LEVEL_1,
    G_LEVEL_2,
    G_LEVEL_3,
    G_LEVEL_4,
    G_WOKEN,  # first rank that waits to dispatch, in order of waking
    G_WOKEN_LAST,
    G_RANK,  # rank that dispatches, -1: none
    G_WAVE,  # next of its wave
    G_WAVES,  # nodes of its wave
    G_STACK,  # completions that are due
    G_DONE,  # first share that is done, 0: none
    G_DONE_LAST,
    G_TAKEN_1,  # key of the event that was taken last
    G_TAKEN_2,
    G_MESSAGE_ROWS,
    G_HOP_ROWS,
    G_READY,  # most ready nodes of one rank so far
    G_ERROR,  # what an error is about
    G_ERROR_1,
    G_ERROR_2,
    G_ERROR_3,
    G_ERROR_4,
    G_BEGIN,  # first stream that begins now, 0: none
    G_BEGIN_LAST,
    G_CHANNELS,  # place in the arena of the channels of workloads
    G_STEPS,  # that the kernel may take before it returns
    G_BUDGET,  # steps until it is looked at whether a pool could run out
    G_ARENA_LIMIT,  # so much of the arena may be in use when a step begins
) = range(56)
G_STACKED = 60  # completions that are due: block, node, and the row of the node that caused it
G_CLASSES = 80  # first of the free lists of the arena
GLOBALS = 256
# A pool has room for so many steps, or grows; the rows of events, pairs, waiting times and tables that one can take.
SPARE, ROWS = 16, 8

# -- state: events (`E`) ----------------------------------------------------------------------------------------

(
    E_KEY_1,  # time of scheduling, where that is the order
    E_KEY_2,  # number of the action
    E_NEXT,
    E_NODE,  # block << 32 | node
    # ps at which the tail reaches the next link; of one that waits for a link, when it asked; analytical: number of the
    # route; of a timer its time
    E_TAIL,
    # next link << 32 | end of the route; computed routes: NPU << 32 | destination; of a timer that is the first of its
    # time the next such (event + 1), 0: none
    E_ROUTE,
    E_ROW,  # of the message table
    E_WHAT,  # (pair + 1) << 32 | index of its size << 5 | MOVED | type
) = range(8)
HOP, DELIVER, ENTER, END, DUE, BEGIN, FREED, GO = range(8)
MOVED, ASKS = 8, 16

# -- state: pairs (`P`), where one of several messages meets its receive -----------------------------------------

(
    P_FLAGS,  # -1: free
    P_RECEIVE,  # block << 32 | node
    P_SEND,  # block << 32 | node
    P_NEXT,
    P_SIZE,  # index of the message's
    P_ROW,  # of the message table
    P_SENDER,  # rank << 32 | slice + 1
    P_SENDER_ROW,  # of the node table
) = range(8)
RECEIVE_POSTED, SEND_POSTED, HAS_ARRIVED, ASKED, UNASKED = 1, 2, 4, 8, 16

# -- state: blocks (`B`, int32) ---------------------------------------------------------------------------------

(
    B_RANK,  # -1: free
    B_TEMPLATE,
    B_FIRST,
    B_WORDS,  # place in the arena
    B_LEFT,
    B_PARENT,  # workload node that it carries out, -1: it is the workload
    B_SLICE,  # -1 of a workload
    B_POSITION,
    B_RANKS,  # in `ints`: members; of a workload the first rank of its job
    B_ROW,  # first row of the node table
    B_REFS,  # messages under way
    B_SPLICED,  # whether its rank has begun it
    B_RUN,  # run of a stream in the arena, 0: none
    B_FLAGS,  # of its template, and these
    B_OFFSET,  # the state of a node is byte 8 × words + offset + node × step
    B_STEP,
) = range(16)
BLOCK = 16
B_NEXT = B_PARENT  # of free blocks
ROTATED_BLOCK, UNEVEN_BLOCK, JOINT_BLOCK = 1 << 8, 1 << 9, 1 << 10

# -- state: ranks (`R`) -----------------------------------------------------------------------------------------

(
    R_ENTRY,  # first of its ready nodes
    R_COUNT,  # how many there are
    R_READY,  # place of the others in the arena …
    R_ROOM,  # … for how many
    R_AWAKE,
    R_WOKEN,  # rank that was woken next
    R_NPU,
    R_DUE,  # first of the timers that are the first of their time (event + 1), 0: none
    R_FINISH,
    R_COMPUTING,
    R_COMMUNICATING,
    R_ACCOUNTED,
    R_COMPUTE,
    R_EXPOSED,
    R_COMPUTE_SUM,
    R_USED_1,
    R_USED_2,
    R_USED_3,
    R_REFUSED,  # + 3 × (slot kind - 1): heap in the arena, room, number
    R_REFUSED_ROOM,
    R_REFUSED_COUNT,
    R_REFUSED_2,
    R_REFUSED_2_ROOM,
    R_REFUSED_2_COUNT,
    R_REFUSED_3,
    R_REFUSED_3_ROOM,
    R_REFUSED_3_COUNT,
    R_SERVER,
    R_CHANNELS,  # place of the first channel of its job
    R_QUEUES,  # number
    R_QUEUE,  # place of its queues in the arena
    R_ARRIVALS,
) = range(32)
# Not a power of two: the first lines of all rows, which messages need, would share a few places of the cache.
RANK = 40
R_USED = R_USED_1 - 1  # + slot kind, from 1

# -- state: links (`L`) -----------------------------------------------------------------------------------------

(
    L_FREE,
    L_LATENCY,
    L_HOLD,  # in `longs`: ps by size
    L_HOP,  # in `longs`: ps by size, -1: hold + latency
    L_BYTES,
    L_MESSAGES,
    L_BUSY,
    L_QUEUED,
    L_MOST,
    L_WAITING,
    L_FIRST,
    L_LAST,
    L_FREE_1,  # key of the event at which it gets free
    L_FREE_2,
    L_LINE,  # first message that waits for it, -1: none
    L_LINE_LAST,
) = range(16)
LINK = 16

# -- state: slices and instances (`C`) --------------------------------------------------------------------------

(
    C_START,  # -1: nobody has come
    C_LEFT,
    C_END,
    C_BLOCKS,  # place in the arena: block by position
    C_CHANNELS,
    C_FIFO,  # two a message: 0 taken, 1 free, 2 + what waits; since when. Then one a connection
    C_STATES,  # joint: place in the arena …
    C_STATE_WORDS,  # … and how many words
) = range(8)
OPEN = 8

# -- state: streams, in the arena -------------------------------------------------------------------------------

# Share: one rank's part in a planned collective; then the next turn of each queue, then the next share of each.
A_CALL, A_NODE, A_LEFT, A_EARLY, A_NEXT, A_ROW, A_RANK, SHARE = range(8)
# Run: one stream on one rank.
U_SHARE, U_STREAM, U_PHASE, U_ARRIVAL, U_NEXT, U_RUNNING, U_ROW, RUN = range(8)
# Queue of a rank: how many run, the first and last of them, of those that wait, and of the shares with turns left.
(Q_RUNNING, Q_FIRST, Q_LAST, Q_LINE, Q_LINE_LAST, Q_SHARES, Q_SHARES_LAST, Q_CAPACITY) = range(8)
QUEUE = 8

# -- status -----------------------------------------------------------------------------------------------------

RUNNING, FINISHED, TOO_MANY_EVENTS, TOO_LATE, UNEQUAL_BYTES, OVERFLOW, UNBORN = range(7)

# -- rows of the record tables ----------------------------------------------------------------------------------

# (start, end, released by, ended by)
D_START, D_END, D_RELEASED, D_ENDED = range(4)
(
    M_SLICE,
    M_SRC,
    M_DST,
    M_NODE,
    M_SIZE,
    M_POSTED,
    M_START,
    M_DELIVERED,
    M_HOPS,
    M_QUEUED,
    M_SENDER,
    M_RECEIVER,
) = range(12)
X_MESSAGE, X_LINK, X_REQUESTED, X_START, X_END = range(5)

# -- image: ranks (`ranks`) -------------------------------------------------------------------------------------

K_NPU, K_TEMPLATE, K_FIRST, K_DELAY, K_JOB, K_SERVER, K_QUEUES, K_CAPACITIES, K_ROW, K_CHANNELS = range(10)
KNOWN = 10
