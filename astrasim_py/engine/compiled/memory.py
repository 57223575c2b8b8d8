"""Access to the tables of a run from compiled code, by the addresses in one record, `state`.

Functions take this one argument in place of some thirty arrays of seven machine words each, which makes them cheap to
call and several times faster to compile. Indices are never negative and not checked.
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


def _address(context, builder, state, field: str):
    """The address of a table, from its field of the state."""
    place, kind = records.STATE.fields[f"at_{field}"][1], context.get_value_type(types.int64)
    return builder.load(cgutils.get_record_member(builder, state, place, kind))


def _row(context, builder, args, field: str, size: int):
    """The address of the row at the index in `args` of a table."""
    return builder.add(
        _address(context, builder, args[0], field), builder.mul(args[1], context.get_constant(types.int64, size))
    )


def rows(field: str, dtype: np.dtype, unit: int = 0):
    """``function(state, index)``: the record at `index` of a table.

    `field`: the table, one of `records.ADDRESSES`. `unit`: bytes from one index to the next; 0: size of a record.
    """

    @intrinsic
    def at(typing, state, index):
        def code(context, builder, signature, args):
            place = _row(context, builder, args, field, unit or dtype.itemsize)
            return builder.inttoptr(place, context.get_value_type(signature.return_type))

        return numba.from_dtype(dtype)(state, types.int64), code

    return at


def numbers(field: str, kind: str):
    """``function(state)``: a table of numbers, readable and writable by index; `kind`: their numba type."""

    @intrinsic
    def at(typing, state):
        def code(context, builder, signature, args):
            place = _address(context, builder, args[0], field)
            return builder.inttoptr(place, context.get_value_type(signature.return_type))

        return types.CPointer(getattr(types, kind))(state), code

    return at


def heaps(field: str, unit: int):
    """``function(state, index)``: the heap that begins at `index` of a table, as an array of unknown length."""

    @intrinsic
    def at(typing, state, index):
        record = numba.from_dtype(records.ENTRY)

        def code(context, builder, signature, args):
            made = context.make_array(signature.return_type)(context, builder)
            length, size = (context.get_constant(types.intp, n) for n in (1, record.size))
            data = builder.inttoptr(_row(context, builder, args, field, unit), context.get_value_type(record))
            populate_array(made, data=data, shape=[length], strides=[size], itemsize=size, meminfo=None)
            return made._getvalue()

        return types.Array(record, 1, "C")(state, types.int64), code

    return at


@intrinsic
def prefetch(typing, record):
    """Prefetch a record that will be written soon; it need not exist."""

    def code(context, builder, signature, args):
        byte, word = context.get_value_type(types.voidptr), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # Arguments: write access, keep in every cache level, data cache.
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
# Arena, by place.
channels = rows("arena", records.CHANNEL, WORD)
message_slots = rows("arena", records.MESSAGE_SLOT, WORD)
counters = rows("arena", records.COUNTER, WORD)
shares = rows("arena", records.SHARE, WORD)
runs = rows("arena", records.RUN, WORD)
queues = rows("arena", records.QUEUE, WORD)
# `longs`, by place.
counting = rows("longs", records.COUNTING, WORD)
waiting = rows("longs", records.WAITING, WORD)
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
free_words = numbers("free_words", "int64")

times = heaps("times", records.ENTRY.itemsize)
wave = heaps("wave", records.ENTRY.itemsize)
arena_heap = heaps("arena", WORD)
