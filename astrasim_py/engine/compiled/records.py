"""Records of the compiled engine: the tables that the kernel works on, with named fields.

`KernelInput` (`astrasim_py.engine.compiled.build`) holds the tables that do not change, `State`
(`astrasim_py.engine.compiled.state`) those that do. A record that the kernel touches for every message or node takes
one or two cache lines. A *place* is an index into the arena (64-bit words); other indices name their table: `ints`,
`longs` or `small`. An *entry* is ``block << 32 | node``. -1 means none; for places 0 does, too.
Constants are numpy integers: numba would compile functions anew for each Python integer that they are called with.
"""

import numpy as np

from astrasim_py.core.heap import ENTRY as ENTRY


def _record(names: str, kind: str = "i8", **others: str) -> np.dtype:
    """A record of fields of one kind, then `others` as names by kind."""
    fields = [(name, kind) for name in names.split()]
    fields += [(name, other) for other, more in others.items() for name in more.split()]
    return np.dtype(fields, align=True)


def _words(text: str) -> list[str]:
    return text.split()


CUT_THROUGH, STORE_AND_FORWARD, ANALYTICAL, FLUID = map(np.int64, range(4))

# -- input ------------------------------------------------------------------------------------------------------

# slot: kind of slot, or DETACHED; size: index of its bytes (send, receive) or its duration (compute, memory), or its
# number among the rank's collectives; peer: position of the peer, in a rotated call a delta; partner: the partner's
# node in the partner's template, ~channel where several messages can match; successor: the first, in `ints`; count:
# its number among nodes with MOST_NEEDS dependencies or more.
NODE = _record("kind slot size peer partner successor successors count", "i4")
DETACHED = np.int64(4)

# The state of a node is a byte: the remaining dependencies (MOST_NEEDS: a word of the block counts them) and two flags.
NEEDS, POSTED, ARRIVED = map(np.int64, (63, 64, 128))
MOST_NEEDS = np.int64(63)

# first: its first node; roots: in `ints`; counts: in `ints`, dependencies of nodes with many; counting: in `longs`,
# COUNTING of each node; waiting: in `longs`, WAITING of each counter; connections: in `ints`, the slots that the
# nodes need, those that they free, their connections, and what posts them; of the last two a rotated member has
# `of_member`; longer: extra ps per hop; variant: number of that value; pace: in `longs`, ps by size, -1 none; post: ps
# between messages; costs: in `longs`, by link its latency and the place of its ps by size, -1 for its own; steps: in
# `ints`, the messages that steps of thread blocks receive, and those that they send; step_ps: before a step; half:
# whether the head of its message waits for half of it; words: of the arena for one block; counter_word: the first of
# its counters; buckets: of its hash set, whose buckets each block has in its last word; ids: in `longs`, of its nodes.
TEMPLATE = _record(
    "first nodes roots root_count flags counts count_count counters counting waiting connections of_member longer"
    " variant pace pace_units post costs words steps step_ps half counter_word buckets ids"
)
# CONNECTED: its messages have the pace, the links and the latency of connections; SLOTTED: nodes take and free slots of
# connections; STEPS: it is of steps of thread blocks.
COUNTS, ADMITTED, CONNECTED, SLOTTED, WORKLOAD, STEPS, HASH_SET = map(np.int64, (1, 2, 4, 8, 16, 32, 64))

# counts: the counter that its completion advances; waits_for: the counter that must advance by `target` from when the
# node begins to count; starters: in `longs`, nodes that begin to count when it completes.
COUNTING = _record("counts waits_for target starters starter_count")
# word: of a block, where the heap of waiting nodes begins; first: in `longs`, those that wait from the start.
WAITING = _record("word room first count")

# One algorithm among some ranks. switches: so many of its last members; ranks: in `ints`, members by position;
# templates: in `ints` by position, of a rotated call the template itself; dims: in `ints`, number of dimensions, these,
# digits of each position; extra_bytes: in `small`, by position and node, added to its size; rows: in `longs`, first row
# of the node table; words, slots, states: of the arena, see PROGRESS.
CALL = _record(
    "instance members switches ranks templates flags channels dims extra_bytes messages rows words slots states steps"
)
# JOINT: the states of its blocks, then the counts, are interleaved node by node: members run in step, so that states
# used together share a cache line.
ROTATED, SHARED, EMPTY, JOINT = map(np.int64, (1, 2, 4, 16))

# first: its first call; sorted: in `ints`, members ascending, then their positions; chunks: in `longs`; turns: in
# `longs`, by queue; planned: whether its calls run as chunks.
INSTANCE = _record("first members sorted chunks chunk_count turns planned")
# phases: in `longs`; turns: whether it has turns.
CHUNK = _record("priority phases phase_count turns")
# call: the first; members: in `ints`, call (from the first) and position by member.
PHASE = _record("queue priority call turn members")

# -- state: tables ----------------------------------------------------------------------------------------------

EVENT = _record("scheduled number tail route row", i4="next block node match size", i1="kind moved asks fed")
#: Fields of every event.
OF_ALL = {
    "scheduled number": "order among events of one time",
    "next": "next event of its time; of a message in a line the next one there",
    "kind": "which of `KINDS` it is",
}
#: Fields of every event of a message.
OF_MESSAGES = {
    "block node": "its send; of a request its receive",
    "size": "index of its bytes",
    "match": "its MATCH; -1 if no other message can match its receive",
    "row": "of the message table",
    "moved": "whether it has had its first link",
    "asks": "whether it is a request of the rendezvous",
    "route": "in `path` next link << 32 | end; computed: NPU << 32 | destination; fluid: number of its flow",
    "tail": "ps: cut_through: its tail is at the next link; store_and_forward: it took to enter the former one; in a"
    " line: it asked; interleaved, before the first link: the pace ends. analytical: number of its route",
    "fed": "in a line: whether the former link was slower",
}
#: The kinds of events, by number: what the fields hold beside `OF_ALL`. Others hold nothing.
KINDS: dict[str, dict[str, str]] = {
    "HOP": OF_MESSAGES,  # it asks for its next link
    "DELIVER": OF_MESSAGES,  # it is at its destination
    "ENTER": OF_MESSAGES,  # it enters the network, after those before it on its connection
    "END": {"block node": "what is done", "row": "of the node that ended it; -1 for none"},
    "TIMER": {
        "block node": "what is done",
        "row": "-1",
        "tail": "ps at which it ends",
        "route": "of the first timer of a rank for a time: the next such, + 1",
    },
    "BEGIN": {"node": "the rank that begins"},
    "FREED": {"node": "the link that is free"},  # the message that takes the link has this kind until its next one
    "GO": {"block node": "a send that was asked for before it was posted", "match": "as of messages"},
    "HEAD": OF_MESSAGES  # the head of a message of a thread block is at its receiver
    | {"route": "row of its send in the node table", "tail": "place of its STEP_MESSAGE"},
    "LEAVE": OF_MESSAGES,  # fluid: its last byte leaves its sender
    "POST": OF_MESSAGES,  # its sender's NIC lets it enter the network
    "TAKE": OF_MESSAGES,  # its receiver's NIC delivers it
    "RESUME": OF_MESSAGES,  # a link of its route has failed: it looks for another route
}
HOP, DELIVER, ENTER, END, TIMER, BEGIN, FREED, GO, HEAD, LEAVE, POST, TAKE, RESUME = map(np.int64, range(len(KINDS)))

# flags: -1 if it is free; receive, send: entries; rank, call: of the sender.
MATCH = _record("flags receive send row sender_row", i4="next size rank call")
RECEIVE_POSTED, SEND_POSTED, HAS_ARRIVED, ASKED, UNASKED = map(np.int64, (1, 2, 4, 8, 16))

# rank: -1 if it is free; first: its first node; words: a place; left: nodes that have not completed; parent: the node
# of the workload that it carries out; ranks: in `ints`, members, of a workload the first rank of its job; row: first
# of the node table; references: messages under way; run: of its chunk, a place. The state of a node is byte 8 × words
# + offset + node × step.
BLOCK = _record(
    "rank template first words left parent call position ranks row references next run flags offset step", "i4"
)
#: Flags beside those of the template. SPLICED: its rank has begun it. TILED: gates may wait for its nodes.
ROTATED_BLOCK, UNEVEN_BLOCK, JOINT_BLOCK, SPLICED, TILED = map(np.int64, (1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12))

# entry: the first ready node; others: place of the others; room: for ready nodes, with the first; timers: the first of
# those that are the first of their time, + 1; finish … compute_sum: ps and counts of what is reported; queue: place of
# `queues` QUEUEs; first: what is added to peers; capacities: in `longs`, chunks that each queue runs at once; row:
# first of the node table; instances: in `ints`, of its collectives; server: of its memory, or of what a switch reduces,
# -1 for none; background: whether the run does not wait for it; phase: ps, of its detours; free, sends, takes: ps at
# which its NIC is free, sends and takes the next message. The size is not a power of two: else the first lines of all
# rows would share a few places of the cache.
RANK = _record(
    "entry ready others room awake next_awake npu timers finish computing communicating accounted compute exposed"
    " compute_sum server channels queues queue arrivals template first delay capacities row instances background"
    " phase free sends takes gates closed"
)
# What gates wait for at a node of a workload, with places in `ints`. ends, begins: gates that wait for its end, and for
# the beginning of its call; held: gates that hold nodes of its call; steps: where the gates of the first `step_count`
# nodes of the call begin. gates of a rank: in `ints`, of each node its TILES or 0; behind them the number of gates, the
# triggers that open each, and the collective (-1: the workload) and node that each holds. closed: place of the triggers
# that each still waits for.
TILES = _record("ends end_count begins begin_count held held_count steps step_count", "i4")
#: The slots of one kind of a rank, which has SLOT_KINDS, the first unused. refused: place of a heap of waiting nodes.
SLOT = _record("used refused refused_count")
SLOT_KINDS = np.int64(4)

# hold, hop: in `longs`, ps by size, hop -1: hold + latency; first, last: of its WAITs; free_scheduled, free_number:
# order of the event at which it gets free; line: the messages that wait for it; held_up: messages that waited behind
# one that a slower link fed; fed: whether the next one that waits does so.
LINK = _record(
    "free latency hold hop bytes messages busy queued first last free_scheduled free_number held_up",
    i4="most_waiting waiting line line_last fed",
)
WAIT = _record("start next")

# Under ``fluid``, where 0 means none, and rows and places are counted from 1. A flow, by route. cap: of its route;
# limit: at the last setting of rates, wanted: at this one; left_high, left_low: work left at `since`; message, line:
# events; place: in the heap of ends; next: of those touched; first, last: places of its route in
# `path`; extra: latency beside that of its links.
FLOW = _record(
    "rate taken next_rate limit first last message next touched wanted cap latency extra left_high left_low since begun"
    " line line_last place"
)
# demand: of its flows, bytes/s; used: sum of their rates; first: of its USEs, which are by place of `path`; loose:
# whether they do not descend by rate; rest, growing (flows), stale (share in the heap of links): while it fills.
SHARED_LINK = _record("capacity demand used first count rest growing stale seen held loose")
USE = _record("next behind flow")

# On a topology with events. An event: its time (ps); in `longs`, by route the first place in `path` from then on, and
# by link the capacity, 0 of a lost one, and the latency.
CHANGE = _record("time routes capacity latency")
CHANGE_WORDS = np.int64(CHANGE.itemsize // 8)
# More about a flow, on a topology with events. whole_high, whole_low: work left when its cap last changed; queued: ps
# that its message had waited by then; stale: an event found it idle; cut: it has no path.
REROUTE = _record("whole_high whole_low queued stale cut")

# Progress of a call or an instance. start: -1 before the first rank; left: members that are not done, of which `ranks`
# are no switches; place: of a call: by position its block + 1,
# then CHANNELs, from `slots` on a MESSAGE_SLOT per message and a word per connection or a STEP_MESSAGE per message
# between steps, from `states` on joint states.
PROGRESS = _record("start left ranks end place")
CHANNEL = _record("first last")  # matches + 1 that are incomplete
#: A slot of a connection. state: TAKEN, FREE, or the entry of the waiting send + WAITED; since: start of its wait.
MESSAGE_SLOT = _record("state since")
TAKEN, FREE, WAITED = map(np.int64, range(3))
#: A message between steps. state: of its head, like that of a slot; tail: ps at which its last byte arrives; row: of
#: the message table.
STEP_MESSAGE = _record("state since tail row")
STEP_MESSAGE_WORDS = np.int64(STEP_MESSAGE.itemsize // 8)
COUNTER = _record("count waiting")  # completions, and nodes that wait for a count

BUCKET = _record("time first last ascending next")
#: A table that grows. room: capacity in rows; asked: the rows that the kernel needs to go on (`capacity`); of a pool,
#: which gives its rows out one by one and takes them back, top: rows used so far, free: first freed row.
POOL = _record("top free room asked")
#: Those tables, by number; the first are pools. The arena counts words.
POOLS = ("events", "matches", "blocks", "buckets", "waits", "arena", "wave", "message_rows", "hop_rows")
EVENTS, MATCHES, BLOCKS, BUCKETS, WAITS, ARENA, WAVE, MESSAGE_ROWS, HOP_ROWS = map(np.int64, range(len(POOLS)))
DUE = _record("block node cause")  # cause: row of the node that caused the completion

# -- state: chunks, in the arena --------------------------------------------------------------------------------

#: One rank's part in a planned collective; behind it the turns taken of each queue, then the next share of each.
SHARE = _record("instance node left early next cause rank")
#: One chunk on one rank. arrival, begun: order among the rank's chunks.
RUN = _record("share chunk phase arrival begun next cause")
#: A queue: number of runs that run, runs that wait, and shares with turns left.
QUEUE = _record("running line line_last shares shares_last capacity")
SHARE_WORDS, RUN_WORDS, QUEUE_WORDS, CHUNK_WORDS, PHASE_WORDS = (
    np.int64(kind.itemsize // 8) for kind in (SHARE, RUN, QUEUE, CHUNK, PHASE)
)

# -- recorded rows ----------------------------------------------------------------------------------------------

NODE_ROW = _record("start end released ended")
MESSAGE_ROW = _record("call src dst node bytes posted start delivered hops queued sender receiver")
HOP_ROW = _record("message link requested start end")

# -- the state itself -------------------------------------------------------------------------------------------

RUNNING, FINISHED, TOO_MANY_EVENTS, TOO_LATE, UNEQUAL_BYTES, OVERFLOW, UNBORN = map(np.int64, range(7))

#: Constants of a run. counts_references: blocks can end before their messages are delivered; request: index of
#: the size of rendezvous requests; duration, nbytes, route_first (first route of each NPU), route_ptr, delays
#: (analytical: delivery and injection by class of route, variant and size): in `longs`; route_class
#: (analytical, of each route), shape, steps (link from each NPU in each dimension, up and down), wraps (whether each
#: dimension is a ring): in `ints`; computed: whether routes are computed; arena_step, block_step: words and blocks that
#: one step can take at most; background: whether the run may end before all ranks do; qps: queue pairs of two NPUs;
#: period, detour: ps, of the detours of compute, 0: none; nic: whether messages cost overhead and gap, ps;
#: changes: in `longs`, CHANGEs.
CONSTANTS = _words(
    "model hold_latency injected scheduled counts_references has_servers max_events max_time request duration nbytes "
    "sizes route_ptr delays route_class variants rank_count call_count computed route_first shape dims steps "
    "wraps arena_step block_step shared_channels step_rows background npu_ranks qps period detour "
    "nic overhead gap link_count flow_count changes change_count reroute_ps"
)
#: Tables of the input and of the state, by address.
ADDRESSES = _words(
    "nodes ints longs small path route_targets templates calls instances capacity events matches blocks ranks slots "
    "servers links waits arena buckets times hash pools dirty wave progress due free_words node_rows "
    "message_rows hop_rows flows shared uses ends taken filling crossed pairs_sent reroutes"
)
#: Variables. issued: timed actions; sent, hops: messages and their hops; current: the first event left of the current
#: time; first_dirty: no word of `dirty` before it has a bit; rank: the dispatching rank; due_count: completions that
#: are due; done: first finished share; sender, send_node, send_match: a message to be sent; carried: a message to be
#: moved; taken_…: order of the last event; most_ready: maximum ready nodes of one rank so far; wrong_…: a receive and
#: its send of unequal bytes; begin: first run that begins now; channels: place of the workloads' channels; steps_left:
#: before the kernel returns; budget: steps before it checks its pools; spare: steps that pools must have room for;
#: arena_limit: the last arena_top at which another step has room; foreground: ranks that are not done, but for jobs in
#: the background; routes_now: in `longs`, by flow the first place of its route;
#: change_next: the next CHANGE; changing: the next flow that it is applied to, + 1; cut_count: flows without a path;
#: altered: whether an event has changed links since rates were set; kept: slower flows keep their rates now.
VARIABLES = _words(
    "now issued schedulings sent hops status record_links record_nodes record_messages arena_top time_count hash_mask "
    "last_time last_bucket current current_last awake awake_last awake_count first_dirty rank wave_next wave_size "
    "due_count done done_last sender send_node send_match carried taken_scheduled taken_number "
    "end_count touched taken_count crossed_count kept "
    "message_row_count hop_row_count most_ready wrong_receive wrong_sender wrong_call wrong_node wrong_size begin "
    "begin_last channels steps_left budget spare arena_limit foreground "
    "routes_now change_next changing cut_count altered"
)
#: The state, and that of a run that needs the optional parts of the kernel (`jit.optional`): only their types differ.
#: Neither has all fields of the other, or numba would take it for that.
STATE, WHOLE = (
    _record(" ".join([*CONSTANTS, *(f"at_{name}" for name in ADDRESSES), *VARIABLES, form]))
    for form in ("plain", "whole")
)

#: Maximum completions due at once, and number of free lists of the arena.
MOST_DUE, SIZE_CLASSES = map(np.int64, (8, 64))
#: A step can take ROWS rows of events, matches, waits and tables, and `step_rows` in all where steps of thread blocks
#: reserve a whole route.
ROWS = np.int64(8)
#: Fibonacci hashing of times: 2^64 / golden ratio, as a signed number.
SPREAD = -7046029254386353131
