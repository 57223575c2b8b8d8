"""The state of a greedy run: bits of held and expected chunks, moments to come, and counters."""

from collections import namedtuple

import numpy as np

from astrasim_py.core.heap import ENTRY
from astrasim_py.core.jit import inlined, lean
from astrasim_py.synthesis.model.random_numbers import random_bits

_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO, ONE = np.uint64(0), np.uint64(1)
_64, _63, _32 = np.uint64(64), np.uint64(63), np.uint64(32)
_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_PLACE = np.zeros(64, dtype=np.int64)
for _bit in range(64):
    _PLACE[(0x03F79D71B4CB0A89 << _bit & (2**64 - 1)) >> 58] = _bit
_TOP = np.uint64(58)
_26, _32BITS, _23 = np.uint64(26), np.uint64(2**32 - 1), np.uint64(23)
#: Hash chains of moments.
_CHAINS = 4096
#: Words that are looked at for candidates; more choice gains little.
_LOOKS = 32
#: In rows of more lines, the first line with candidates gives them all.
_FEW = 4
#: Words of a line: 64 bytes.
_WIDE = 8

#: Counters of a run.
_COUNTERS = "left finish rows transfers vacancies spare moments free_moment dirties at last_time last_moment first lazy"
STATE = np.dtype([(name, np.int64) for name in _COUNTERS.split()])

#: The problem: network and times; the arcs into each rank, fastest first; chunks. `level` is the row of `part` for a
#: slow arc, or -1; `part` numbers the ranks that faster arcs connect strongly. `simple`: every arc is one link that
#: nobody else uses; `serial`: it is free again when its transfer arrives; `shared`: arcs share links.
Problem = namedtuple(
    "Problem", "net order origin size_class level part occupied_ptr occupied_start occupied_end simple serial shared"
)

#: Chunks of the ranks. `has` and `expected` are bits of chunks, uint64[lines, n, words]: a line of all rows lies
#: together in memory, for at one moment all look there first. `some` and `lacks` are bits of lines: which have a bit,
#: and which of the expected ones lack one. `present` has the bits of a part. By rank: chunks `wanted`; by chunk:
#: `count` of ranks that have or expect it; by link: when it is `free`. Where transfers may be overtaken, by rank and
#: chunk: when it is `due`, `since` when it is there, and its item.
Holdings = namedtuple("Holdings", "has expected some lacks wanted count present free due since item_of")

#: Moments to come and ranks to look at. By moment: time, first item, next in its hash chain; the heap of moments and
#: the first of every chain. By item: `what` arrives (an arc, or -1 - rank to look at), `which` chunk, start, row of the
#: record, next item. By rank: when it is looked at again, and whether now. Then the arcs of the rank looked at.
Agenda = namedtuple(
    "Agenda",
    "times heads following heap chains what which begun row_of onward looking dirty marked open_arcs taken_arc "
    "taken_chunk",
)


def holdings(problem: Problem, parts: int, overtake: bool) -> Holdings:
    """Holdings before a run; compiled code fills them."""
    n, chunks = len(problem.net.in_ptr) - 1, len(problem.origin)
    words = (chunks + 63) // 64
    wide = min(words, _WIDE)
    lines = -(-words // max(wide, 1))
    blocks, cells = (lines + 63) // 64, n * chunks if overtake else 0
    free = len(problem.net.hop) if problem.simple else int(problem.net.hop.max()) + 1
    return Holdings(
        np.zeros((lines, n, wide), np.uint64), np.zeros((lines, n, wide), np.uint64), np.zeros((n, blocks), np.uint64),
        np.zeros((n, blocks), np.uint64), np.full(n, chunks), np.ones(chunks, np.int32),
        np.zeros((parts, lines * wide), np.uint64), np.zeros(free, np.int64), np.empty(cells, np.int64),
        np.zeros(cells, np.int64), np.empty(cells, np.int32),
    )  # fmt: skip


def agenda(problem: Problem, room: int) -> Agenda:
    """An empty agenda with `room` for items and moments."""
    n = len(problem.net.in_ptr) - 1
    widest = int(np.diff(problem.net.in_ptr).max(initial=0))
    return Agenda(
        np.empty(room, np.int64), np.empty(room, np.int64), np.arange(1, room + 1), np.empty(room, ENTRY),
        np.full(_CHAINS, -1), np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int64),
        np.empty(room, np.int64), np.arange(1, room + 1), np.full(n, 2**62), np.empty(n, np.int32),
        np.zeros(n, np.bool_), *np.empty((3, widest), np.int32),
    )  # fmt: skip


@inlined
def lowest_bit(x):
    """Position of the lowest bit that is set."""
    return _PLACE[((x & (~x + ONE)) * _DEBRUIJN) >> _TOP]


@inlined
def holds(bits, v, c):
    """Whether row v has the bit of chunk c."""
    w = c >> 6
    return (bits[w >> 3, v, w & 7] >> np.uint64(c & 63)) & ONE != ZERO


@inlined
def receive(h, v, c):
    """Set the bits of chunk c, which rank v holds now."""
    w = c >> 6
    h.has[w >> 3, v, w & 7] |= ONE << np.uint64(c & 63)
    h.some[v, w >> 9] |= ONE << np.uint64((w >> 3) & 63)


@inlined
def expect(h, v, c):
    """Set the bit of chunk c in row v; a line that is full then is not looked at again."""
    w = c >> 6
    x = h.expected[w >> 3, v, w & 7] | (ONE << np.uint64(c & 63))
    h.expected[w >> 3, v, w & 7] = x
    if x == _FULL:
        for each in range(h.expected.shape[2]):
            x &= h.expected[w >> 3, v, each]
        if x == _FULL:
            h.lacks[v, w >> 9] &= ~(ONE << np.uint64((w >> 3) & 63))


@inlined
def _offered(h, u, v, k, line, w):
    """Chunks of a word that u holds, v does not expect and (k >= 0) row k of `present` lacks."""
    x = h.has[line, u, w] & ~h.expected[line, v, w]
    return x & ~h.present[k, line * h.has.shape[2] + w] if k >= 0 else x


@lean
def pick(h, u, v, k, first, samples, random):
    """A chunk that u holds, v does not expect and (k >= 0) row k of `present` lacks; the rarest of some, or -1.

    Lines are looked at from `first` on, one candidate a word. To find first which words have any avoids branches.
    """
    x = random_bits(random)
    turn = x >> _TOP
    lines, wide, blocks = h.has.shape[0], h.has.shape[2], h.some.shape[1]
    start = np.uint64((((x >> _26) & _32BITS) * np.uint64(wide)) >> _32)
    best, least, found, looked = np.int64(-1), np.int64(2**31), 0, 0
    block = first >> 6
    left = h.some[u, block] & h.lacks[v, block] & (_FULL << np.uint64(first & 63))
    for _ in range(blocks + 1):
        while left != ZERO:
            line = block * 64 + lowest_bit(left)
            left &= left - ONE
            filled = ZERO
            for w in range(wide):
                x = _offered(h, u, v, k, line, w)
                filled |= np.uint64(x != ZERO) << np.uint64(w)
            if filled != ZERO:
                # From a random word on; where there is no other line, several times, from other bits on.
                rotated = (filled >> start) | (filled << (np.uint64(wide) - start))
                rotated &= (ONE << np.uint64(wide)) - ONE
                while found < samples:
                    rest = rotated
                    while rest != ZERO and found < samples:
                        w = lowest_bit(rest) + np.int64(start)
                        w = w if w < wide else w - wide
                        rest &= rest - ONE
                        x = _offered(h, u, v, k, line, w)
                        x = (x >> turn) | (x << ((_64 - turn) & _63))
                        c = (line * wide + w) * 64 + ((lowest_bit(x) + np.int64(turn)) & 63)
                        often = np.int64(h.count[c])
                        best = c if often < least else best
                        least = often if often < least else least
                        found += 1
                    if lines > 1:
                        break
                    turn = (turn + _23) & _63
                if lines > _FEW or found >= samples or looked >= _LOOKS:
                    return best
            looked += wide
        block += 1
        if block == blocks:
            block = 0
        left = h.some[u, block] & h.lacks[v, block]
    return best
