"""How compiled code reaches the tables of a run: by the addresses in its state, a single record.

Functions then take one argument, `state`, in place of some thirty arrays of seven machine words each, which makes
them cheap to call and several times faster to compile. Indices are not checked, and never negative.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from astrasim_py.engine.compiled import records

_STATE = numba.from_dtype(records.STATE)


def _address(context, builder, state, field: str):
    """The integer in a field of the state."""
    kind = context.get_value_type(types.int64)
    return builder.load(cgutils.get_record_member(builder, state, _STATE.offset(field), kind))


def _row(context, builder, args, field: str, record: types.Record, unit: int):
    """Pointer to the record at the index in `args` of a table."""
    begin = _address(context, builder, args[0], f"at_{field}")
    place = builder.add(begin, builder.mul(args[1], context.get_constant(types.int64, unit)))
    return builder.inttoptr(place, context.get_value_type(record))


def rows(field: str, dtype: np.dtype, unit: int = 0):
    """``function(state, index)``: the record at `index` of a table.

    Parameters
    ----------
    field : str
        The table: one of `records.ADDRESSES`.
    dtype : numpy.dtype
    unit : int
        Bytes from one index to the next; 0: those of a record.
    """
    record = numba.from_dtype(dtype)

    @intrinsic
    def at(typing, state, index):
        def code(context, builder, signature, args):
            return _row(context, builder, args, field, record, unit or dtype.itemsize)

        return record(_STATE, types.int64), code

    return at


def numbers(field: str, kind: types.Type):
    """``function(state)``: the numbers of a table, to be read and written by index."""
    pointer = types.CPointer(kind)

    @intrinsic
    def at(typing, state):
        def code(context, builder, signature, args):
            return builder.inttoptr(_address(context, builder, args[0], f"at_{field}"), context.get_value_type(pointer))

        return pointer(_STATE), code

    return at


def heaps(field: str, unit: int):
    """``function(state, index)``: the heap that begins at `index` of a table, as an array of unknown length."""
    record = numba.from_dtype(records.ENTRY)
    array = types.Array(record, 1, "C")

    @intrinsic
    def at(typing, state, index):
        def code(context, builder, signature, args):
            made = context.make_array(array)(context, builder)
            length, size = (context.get_constant(types.intp, n) for n in (1, record.size))
            data = _row(context, builder, args, field, record, unit)
            populate_array(made, data=data, shape=[length], strides=[size], itemsize=size, meminfo=None)
            return made._getvalue()

        return array(_STATE, types.int64), code

    return at


@intrinsic
def prefetch(typing, record):
    """Ask the cache for a record that will be written soon; one that does not exist does no harm."""

    def code(context, builder, signature, args):
        byte, word = context.get_value_type(types.voidptr), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # To be written, to be kept by every cache, data.
        builder.call(fetch, [builder.bitcast(args[0], byte), word(1), word(3), word(1)])
        return context.get_dummy_value()

    return types.none(record), code


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
# In the arena, by place.
channels = rows("arena", records.CHANNEL, WORD)
message_slots = rows("arena", records.MESSAGE_SLOT, WORD)
counters = rows("arena", records.COUNTER, WORD)
shares = rows("arena", records.SHARE, WORD)
runs = rows("arena", records.RUN, WORD)
queues = rows("arena", records.QUEUE, WORD)
# In `longs`, by place.
counting = rows("longs", records.COUNTING, WORD)
waiting = rows("longs", records.WAITING, WORD)
chunks = rows("longs", records.CHUNK, WORD)
phases = rows("longs", records.PHASE, WORD)

ints = numbers("ints", types.int32)
longs = numbers("longs", types.int64)
small = numbers("small", types.uint8)
path = numbers("path", types.int32)
route_pairs = numbers("route_pairs", types.int64)
capacity = numbers("capacity", types.int64)
servers = numbers("servers", types.int64)
arena = numbers("arena", types.int64)
states = numbers("arena", types.uint8)
hashed = numbers("hash", types.int32)
dirty = numbers("dirty", types.int64)
level_words = numbers("level_words", types.int64)
free_words = numbers("free_words", types.int64)

times = heaps("times", records.ENTRY.itemsize)
wave = heaps("wave", records.ENTRY.itemsize)
arena_heap = heaps("arena", WORD)
