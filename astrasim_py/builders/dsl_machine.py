"""The objects that the function of an algorithm works with: ranks, buffers, references to chunks.

Python turns ``a[r][i] += x`` into a reference to ``a[r][i]``, an addition to that, and an assignment of what the
addition returns to ``a[r][i]``; so an assignment of a chunk to itself is no step. A reference stands for what its
chunks hold when it is made: once they are overwritten it is stale, and using it is an error.
"""

from __future__ import annotations

import sys

from astrasim_py.builders.draft import NONE
from astrasim_py.builders.dsl_trace import SPAN, Run, shown

#: Channels that may be named.
MAX_CHANNELS = 2**15


class Chunks:
    """A reference to neighbouring chunks of one buffer, as they are when it is made."""

    __slots__ = ("_buffer", "_count", "_key", "_made")

    def __init__(self, buffer: Cells, key: int, count: int, made: int) -> None:
        self._buffer, self._key, self._count, self._made = buffer, key, count, made

    def __len__(self) -> int:
        return self._count

    def __iadd__(self, other: object) -> Chunks:
        run = self._buffer._run
        for term in _terms(run, other, "adds"):
            run.step(self, term, True, sys._getframe(1))
            self = Chunks(self._buffer, self._key, self._count, run.steps)
        return self

    def __add__(self, other: object) -> Sum:
        return Sum((self, *_terms(self._buffer._run, other, "adds")))

    def _compared(self, *_: object) -> bool:
        """Refuse a condition on the content of a chunk, which is not known while the algorithm is written."""
        raise self._buffer._run.error(
            f"{self!r} is compared, or used as a condition", "write = to copy it, += to add it, and test numbers only"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _compared
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self._buffer._named(self._key - self._buffer._base, self._count)


class Sum:
    __slots__ = ("_terms",)

    def __init__(self, terms: tuple[Chunks, ...]) -> None:
        self._terms = terms

    def __add__(self, other: object) -> Sum:
        return Sum((*self._terms, *_terms(self._terms[0]._buffer._run, other, "adds")))


class Cells:
    """One buffer of one rank."""

    __slots__ = ("_base", "_label", "_rank", "_run", "_size")
    __iter__ = None

    def __init__(self, run: Run, rank: int, base: int, size: int, label: str) -> None:
        self._run, self._rank, self._base, self._size, self._label = run, rank, base, size, label

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: object) -> Chunks:
        if type(index) is int and 0 <= index < self._size:
            return Chunks(self, self._base + index, 1, self._run.steps)
        return self._range(index)

    def _range(self, index: object) -> Chunks:
        run, size, label = self._run, self._size, self._label
        self._check()
        if not isinstance(index, slice):
            number = run.number(index, "an index", f"{label}[…]")
            if not 0 <= number < size:
                raise run.error(f"{label}[{number}] is out of range", f"write 0 to {size - 1}")
            return Chunks(self, self._base + number, 1, run.steps)
        start, stop = (
            default if bound is None else run.number(bound, "an index", f"{label}[…]")
            for bound, default in ((index.start, 0), (index.stop, size))
        )
        count = stop - start
        for wrong, problem, remedy in (
            (index.step is not None, "has a step", "chunks that travel together are neighbours"),
            (not 0 <= start <= stop <= size, "is out of range", f"write bounds of 0 to {size}"),
            (not count, "is empty", "name at least one chunk"),
            (count > run.chunks, f"are {count} chunks, more than the {run.chunks} of the buffer", "move fewer at once"),
        ):
            if wrong:
                raise run.error(f"{label}[{_text(index)}] {problem}", remedy)
        return Chunks(self, self._base + start, count, run.steps)

    def __setitem__(self, index: object, value: object) -> None:
        run, target = self._run, self[index]
        terms = _terms(run, value, "assigns")
        key, rank, count = target._key, self._rank, target._count
        alike = (t._key == key and t._buffer._rank == rank and t._count == count for t in terms)
        same = next((position for position, alike_here in enumerate(alike) if alike_here), None)
        if same is None:
            run.step(target, terms[0], False, sys._getframe(1))
        else:
            # `a[r][i] += x` and a copy onto itself end with this assignment: nothing is left to do.
            run.fresh(terms[same])
        # Only one of them is done: a reference may be named twice.
        for term in terms[: same or 0] + terms[(same or 0) + 1 :]:
            run.step(Chunks(self, key, count, run.steps), term, True, sys._getframe(1))

    def __iadd__(self, other: object) -> Cells:
        raise self._run.error(f"adds to {self._label}, which is no chunk", f"write {self._label}[i] += …")

    def _named(self, index: int, count: int) -> str:
        return f"{self._label}[{index}]" if count == 1 else f"{self._label}[{index}:{index + count}]"

    def _check(self) -> None:
        if not self._run.open:
            raise self._run.closed()

    def __repr__(self) -> str:
        return self._label


class Rank(Cells):
    """The buffers of one rank; in place they are one, and the rank is that buffer."""

    __slots__ = ("_scratch",)

    def __init__(self, run: Run, rank: int) -> None:
        size = run.chunks if run.in_place else 0
        super().__init__(run, rank, run.home * SPAN, size, f"a[{rank}]")
        self._scratch: dict[str, Cells] = {}

    def _check(self) -> None:
        super()._check()
        if not self._run.in_place:
            raise self._run.error(
                f"{self._label}[…] may be input or output", f"write {self._label}.input[…] or {self._label}.output[…]"
            )

    @property
    def input(self) -> Cells:
        """The input: in place the part of the buffer that it is."""
        return Cells(self._run, self._rank, *self._run.input_of(self._rank), f"{self._label}.input")

    @property
    def output(self) -> Cells:
        """The output: in place the part of the buffer that it is."""
        return Cells(self._run, self._rank, *self._run.output_of(self._rank), f"{self._label}.output")

    @property
    def scratch(self) -> Scratch:
        return Scratch(self)


class Switch(Rank):
    """A switch that takes part; its chunks are its scratch, its only buffer."""

    __slots__ = ()

    def __init__(self, run: Run, position: int, name: str) -> None:
        label = f'a.switch("{name}")'
        Cells.__init__(self, run, position, *run.unnamed(), label)
        self._scratch = {}

    def _check(self) -> None:
        Cells._check(self)

    def _refused(self) -> Cells:
        raise self._run.error(f"{self._label} has no input and no output", f"write {self._label}[i], which is scratch")

    input = output = property(_refused)


class Scratch:
    """Scratch buffers of one rank by name."""

    __slots__ = ("_rank",)
    __iter__ = None

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def __getitem__(self, name: str) -> Cells:
        rank = self._rank
        cells = rank._scratch.get(name) if isinstance(name, str) else None
        if cells is None:
            run = rank._run
            base, size = run.scratch_of(name, f"{rank._label}.scratch")
            cells = Cells(run, rank._rank, base, size, f'{rank._label}.scratch["{name}"]')
            rank._scratch[name] = cells
        return cells

    def __setitem__(self, name: object, value: object) -> None:
        label = f"{self._rank._label}.scratch[{shown(name)}]"
        raise self._rank._run.error(f"assigns to {label}, which is no chunk", f"write {label}[i] = …")


class Machine:
    """All ranks, as the function of an algorithm sees them: ``a[rank]`` is a `Rank`.

    `n`: number of ranks. `chunks`: T, chunks of the full buffer. `shard`: chunks of one rank's shard, T / n (rounded
    down where the collective has none).
    """

    __slots__ = ("_ranks", "_run", "chunks", "n", "root", "shard")
    __iter__ = None

    def __init__(self, run: Run) -> None:
        self._run = run
        self.n, self.chunks, self.root = run.ranks, run.chunks, run.root
        self.shard = run.chunks // run.ranks
        self._ranks = [Rank(run, rank) for rank in range(run.ranks)]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, rank: object) -> Rank:
        run = self._run
        if not run.open:
            raise run.closed()
        if type(rank) is int and 0 <= rank < self.n:
            return self._ranks[rank]
        if isinstance(rank, slice):
            raise run.error(f"a[{_text(rank)}] names several ranks", "name one after the other")
        number = run.number(rank, "a rank", "a[…]")
        if not 0 <= number < self.n:
            raise run.error(f"a[{number}]: there is no rank {number}", f"write 0 to {self.n - 1}, e.g. (…) % a.n")
        return self._ranks[number]

    def __setitem__(self, rank: object, value: object) -> None:
        raise self._run.error(f"assigns to a[{rank}], a whole rank", f"write a[{rank}][i] = …")

    def switch(self, name: str | int) -> Switch:
        """A switch of the network by name; of a number s the name is ``s0``, ``s1``, … Its chunks are scratch, as large
        as they are used, and what is written to it or added there is sent to it."""
        run = self._run
        if not run.open:
            raise run.closed()
        position, name = run.switch(name)
        return Switch(run, position, name)

    def channel(self, number: int) -> Channel:
        """Send what is written below ``with a.channel(number):`` over that channel. It is a hint for programs of thread
        blocks; without one channels are chosen when such a program is made."""
        run = self._run
        number = run.number(number, "a channel", "a.channel(…)")
        if not 0 <= number < MAX_CHANNELS:
            raise run.error(f"a.channel({number}) does not exist", f"write 0 to {MAX_CHANNELS - 1}")
        return Channel(run, number)


class Channel:
    """The context of ``with a.channel(number):``."""

    __slots__ = ("_before", "_number", "_run")

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number, self._before = run, number, NONE

    def __enter__(self) -> None:
        self._before, self._run.channel = self._run.channel, self._number

    def __exit__(self, *error: object) -> None:
        self._run.channel = self._before


def _text(index: slice) -> str:
    return ":".join("" if part is None else str(part) for part in (index.start, index.stop))


def _terms(run: Run, value: object, verb: str) -> tuple[Chunks, ...]:
    terms = (value,) if type(value) is Chunks else value._terms if type(value) is Sum else ()
    if not terms:
        if isinstance(value, Cells | Machine):
            label = "a" if isinstance(value, Machine) else value._label
            raise run.error(f"{verb} {label}, which is no chunk", f"write {label}[…]")
        raise run.error(f"{verb} {shown(value)}, which is no chunk", "write a[rank][i]")
    if any(term._buffer._run is not run for term in terms):
        raise run.error(f"{verb} a chunk of another run of the function", "keep references within one run")
    return terms
