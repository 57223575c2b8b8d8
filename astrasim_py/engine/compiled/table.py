"""Access to the tables of a run from compiled code, by the addresses in one record, `state`.

Functions take this one argument in place of some thirty arrays of seven machine words each, which makes them cheap to
call and several times faster to compile. Indices are never negative and not checked.
"""

import numpy as np

from astrasim_py.core.jit import deferred
from astrasim_py.engine.compiled import records


def _row(context, builder, args, field: str, size: int):
    """The address of a table's row: the table is in a field of the state, the index in `args`."""
    from numba.core import cgutils, types

    kind, fields = context.get_value_type(types.int64), records.STATE.fields
    assert fields is not None  # of any record
    table = builder.load(cgutils.get_record_member(builder, args[0], fields[f"at_{field}"][1], kind))
    return builder.add(table, builder.mul(args[1], context.get_constant(types.int64, size))) if args[1:] else table


@deferred
def rows(field: str, dtype: np.dtype, unit: int = 0):
    """``function(state, index)``: the record at `index` of a table.

    `field`: the table, one of `records.ADDRESSES`. `unit`: bytes from one index to the next; 0: size of a record.
    """
    import numba

    @numba.extending.intrinsic
    def at(typing, state, index):
        def code(context, builder, signature, args):
            place = _row(context, builder, args, field, unit or dtype.itemsize)
            return builder.inttoptr(place, context.get_value_type(signature.return_type))

        return numba.from_dtype(dtype)(state, numba.types.int64), code

    return at


@deferred
def numbers(field: str, kind: str):
    """``function(state)``: a table of numbers, readable and writable by index; `kind`: their numba type."""
    import numba

    @numba.extending.intrinsic
    def at(typing, state):
        def code(context, builder, signature, args):
            return builder.inttoptr(
                _row(context, builder, args, field, 0), context.get_value_type(signature.return_type)
            )

        return numba.types.CPointer(getattr(numba.types, kind))(state), code

    return at


@deferred
def heaps(field: str, unit: int):
    """``function(state, index)``: the heap that begins at `index` of a table, as an array of unknown length."""
    import numba
    from numba.np.arrayobj import populate_array

    record = numba.from_dtype(records.ENTRY)

    @numba.extending.intrinsic
    def at(typing, state, index):
        def code(context, builder, signature, args):
            made = context.make_array(signature.return_type)(context, builder)
            length, size = (context.get_constant(numba.types.intp, n) for n in (1, record.size))
            data = builder.inttoptr(_row(context, builder, args, field, unit), context.get_value_type(record))
            populate_array(made, data=data, shape=[length], strides=[size], itemsize=size, meminfo=None)
            return made._getvalue()

        return numba.types.Array(record, 1, "C")(state, numba.types.int64), code

    return at


@deferred
def prefetcher():
    """``function(record)``: prefetch a record that will be written soon; it need not exist."""
    import numba
    from llvmlite import ir

    @numba.extending.intrinsic
    def fetch(typing, record):
        def code(context, builder, signature, args):
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            called = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            # Arguments: write access, keep in every cache level, data cache.
            builder.call(called, [builder.bitcast(args[0], byte), word(1), word(3), word(1)])
            return context.get_dummy_value()

        return numba.types.none(record), code

    return fetch


prefetch = prefetcher()

#: Bytes of a word of the arena.
WORD = 8

nodes = rows("nodes", records.NODE)
templates = rows("templates", records.TEMPLATE)
calls = rows("calls", records.CALL)
instances = rows("instances", records.INSTANCE)
events = rows("events", records.EVENT)
matches = rows("matches", records.MATCH)
blocks = rows("blocks", records.BLOCK)
ranks = rows("ranks", records.RANK)
slots = rows("slots", records.SLOT)
links = rows("links", records.LINK)
waits = rows("waits", records.WAIT)
buckets = rows("buckets", records.BUCKET)
progress = rows("progress", records.PROGRESS)
pools = rows("pools", records.POOL)
due = rows("due", records.DUE)
node_rows = rows("node_rows", records.NODE_ROW)
message_rows = rows("message_rows", records.MESSAGE_ROW)
hop_rows = rows("hop_rows", records.HOP_ROW)
flows = rows("flows", records.FLOW)
shared = rows("shared", records.SHARED_LINK)
uses = rows("uses", records.USE)
tiles = rows("ints", records.TILES, 4)
reroutes = rows("reroutes", records.REROUTE)
# Arena, by place.
channels = rows("arena", records.CHANNEL, WORD)
message_slots = rows("arena", records.MESSAGE_SLOT, WORD)
step_messages = rows("arena", records.STEP_MESSAGE, WORD)
counters = rows("arena", records.COUNTER, WORD)
shares = rows("arena", records.SHARE, WORD)
runs = rows("arena", records.RUN, WORD)
queues = rows("arena", records.QUEUE, WORD)
# `longs`, by place.
counting = rows("longs", records.COUNTING, WORD)
waiting = rows("longs", records.WAITING, WORD)
changes = rows("longs", records.CHANGE, WORD)
chunks = rows("longs", records.CHUNK, WORD)
phases = rows("longs", records.PHASE, WORD)

ints = numbers("ints", "int32")
longs = numbers("longs", "int64")
small = numbers("small", "uint8")
path = numbers("path", "int32")
route_targets = numbers("route_targets", "int32")
capacity = numbers("capacity", "int64")
servers = numbers("servers", "int64")
arena = numbers("arena", "int64")
states = numbers("arena", "uint8")
hashed = numbers("hash", "int32")
dirty = numbers("dirty", "int64")
pairs_sent = numbers("pairs_sent", "int64")
crossed = numbers("crossed", "int64")
free_words = numbers("free_words", "int64")

times = heaps("times", records.ENTRY.itemsize)
wave = heaps("wave", records.ENTRY.itemsize)
ends = heaps("ends", records.ENTRY.itemsize)
taken = heaps("taken", records.ENTRY.itemsize)
filling = heaps("filling", records.ENTRY.itemsize)
arena_heap = heaps("arena", WORD)
