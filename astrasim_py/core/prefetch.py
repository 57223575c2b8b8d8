"""A hint to the cache that compiled functions can give, which numba has no name for."""

from __future__ import annotations

from functools import cached_property
from typing import Any


class Prefetch:
    """``prefetch(table, row)`` in compiled code: the line in which a row begins is fetched, to be written soon.

    Who writes rows here and there waits for memory at each; asked for in time, they are there. A row that does not
    exist does no harm. Python cannot call it.
    """

    @cached_property
    def _numba_type_(self) -> Any:
        # How numba asks an object that it does not know what it is.
        from llvmlite import ir
        from numba.core import cgutils, types
        from numba.core.typing.templates import make_intrinsic_template

        def definition(_, table, row):
            def code(context, builder, signature, args):
                array = context.make_array(table)(context, builder, args[0])
                begin = [args[1], context.get_constant(types.intp, 0)]
                place = cgutils.get_item_pointer(context, builder, table, array, begin, wraparound=False)
                word = ir.IntType(32)
                kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
                fetch = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], kind)
                # To be written; to be kept by every cache; data.
                builder.call(fetch, [builder.bitcast(place, cgutils.voidptr_t), word(1), word(3), word(1)])
                return context.get_dummy_value()

            return types.none(table, row), code

        return types.Function(make_intrinsic_template(self, definition, "prefetch", prefer_literal=False, kwargs={}))


prefetch = Prefetch()
