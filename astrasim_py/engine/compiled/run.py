"""Running the kernel on an Image: the state, pools that grow, and when to stop."""

from __future__ import annotations

import numpy as np

from astrasim_py.engine.compiled import layout as at
from astrasim_py.engine.compiled.builder import Image

#: Steps of the kernel between two looks at the keyboard: some tenths of a second.
STEPS = 2**20
#: Bytes of a line of the cache.
LINE = 64


class State:
    """Everything that changes while an Image is run.

    Attributes
    ----------
    globals : numpy.ndarray
        int64[GLOBALS], `astrasim_py.engine.compiled.layout.G_NOW` and so on.
    ranks, links, blocks, pairs, slices : numpy.ndarray
        Tables by those names in the layout; `slices` has the instances behind the slices.
    arena : numpy.ndarray
        int64.
    nodes, messages, hops : numpy.ndarray
        What was recorded: int64[rows, columns], of one row where nothing was.
    """

    def __init__(self, image: Image, *, nodes: int = 0, messages: bool = False, counting: bool = True) -> None:
        head = image.head
        n = int(head[at.H_RANKS])
        self.image = image
        self.globals = _lines((at.GLOBALS,), value=0)
        g = self.globals
        for index in (
            at.G_EVENT_FREE,
            at.G_BLOCK_FREE,
            at.G_PAIR_FREE,
            at.G_BUCKET_FREE,
            at.G_WAIT_FREE,
            at.G_CURRENT,
            at.G_JOINED,
            at.G_JOINED_LAST,
            at.G_LAST_TIME,
            at.G_WOKEN,
            at.G_RANK,
        ):
            g[index] = -1
        g[at.G_COUNTING], g[at.G_NODES], g[at.G_MESSAGES] = counting, nodes > 0, messages
        g[at.G_STATUS] = at.UNBORN
        g[at.G_READY] = 4
        servers = int(image.ranks[:, at.K_SERVER].max()) + 1
        self.ranks = _lines((n + servers, at.RANK), value=0)
        self.ranks[:n, at.R_NPU] = image.ranks[:n, at.K_NPU]
        self.ranks[:n, at.R_SERVER] = image.ranks[:n, at.K_SERVER]
        self.ranks[:n, at.R_CHANNELS] = image.ranks[:n, at.K_CHANNELS]
        self.links = _lines((len(image.link), at.LINK), value=0)
        self.links[:, at.L_LATENCY : at.L_HOP + 1] = image.link
        self.links[:, [at.L_FIRST, at.L_LINE]] = -1
        self.slices = _lines((int(head[at.H_SLICES]) + len(image.calls), at.OPEN), value=0)
        self.slices[:, [at.C_START, at.C_END]] = -1
        levels, words, first = [], n, 0
        while True:
            words = max(-(-words // 64), 1)
            levels.append(first)
            first += words
            if words == 1:
                break
        g[at.G_LEVELS] = len(levels)
        g[at.G_LEVEL : at.G_LEVEL + len(levels)] = levels
        self.dirty = np.zeros(first, dtype=np.int64)
        # Word 0 is nobody's; then the channels of workloads, then what the workloads' own blocks and queues take.
        channels = 2 * max(int(head[at.H_SHARED_CHANNELS]), 0)
        g[at.G_CHANNELS] = 8
        g[at.G_ARENA_TOP] = 8 + channels
        template = image.ranks[:n, at.K_TEMPLATE]
        own = int(image.tmpl[template, at.T_WORDS].sum()) * 5 // 4 + n * 16
        own += int(image.ranks[:n, at.K_QUEUES].sum()) * at.QUEUE * 2
        own += 4 * int(image.tmpl[template, at.T_NROOTS].sum())
        self.arena = _lines((_power(g[at.G_ARENA_TOP] + own + 2 * int(head[at.H_ROOM]) + 4096),))
        self.arena[: 8 + channels] = 0
        events = _power(2 * n + 1024)
        self.events = _lines((events, 8))
        self.buckets = _lines((events, 8))
        self.heap = np.empty((events, 2), dtype=np.int64)
        self.hash = np.full(events, -1, dtype=np.int32)
        self.pairs = _lines((1024, 8))
        self.waiting = np.empty((1024, 2), dtype=np.int64)
        self.blocks = _lines((_power(2 * n + int(head[at.H_BLOCKS]) + 64), at.BLOCK), np.int32)
        self.wave = np.empty((2, 1024), dtype=np.int64)
        self.nodes = _lines((max(nodes, 1), 4), value=-1)
        self.messages = np.empty((2**12 if messages else 1, 12), dtype=np.int64)
        self.hops = np.empty((2**12 if messages else 1, 5), dtype=np.int64)

    @property
    def status(self) -> int:
        """One of the layout's statuses."""
        return int(self.globals[at.G_STATUS])

    def arguments(self) -> tuple[np.ndarray, ...]:
        """What the kernel is called with."""
        image = self.image
        return (
            image.head,
            image.node,
            image.ints,
            image.longs,
            image.tmpl,
            image.slices,
            image.calls,
            image.small,
            image.path,
            image.pairs,
            image.ranks,
            self.globals,
            self.events,
            self.pairs,
            self.blocks,
            self.ranks,
            self.links,
            self.waiting,
            self.arena,
            self.arena.view(np.uint8),
            self.buckets,
            self.heap,
            self.hash,
            self.dirty,
            self.wave,
            self.slices,
            self.nodes,
            self.messages,
            self.hops,
        )

    def grow(self) -> None:
        """Make larger what could run out."""
        g, head = self.globals, self.image.head
        if g[at.G_ARENA_TOP] + head[at.H_ROOM] + 4 * g[at.G_READY] > len(self.arena):
            need = int(g[at.G_ARENA_TOP] + head[at.H_ROOM] + 4 * g[at.G_READY])
            self.arena = _larger(self.arena, max(need, len(self.arena) * 3 // 2))
        most = at.ROWS * at.SPARE
        if g[at.G_EVENT_TOP] + most > len(self.events):
            rows = 2 * len(self.events)
            self.events, self.buckets = _larger(self.events, rows), _larger(self.buckets, rows)
            self.heap = _larger(self.heap, rows)
            self._hash_again(rows)
        if g[at.G_BLOCK_TOP] + at.SPARE * head[at.H_BLOCKS] > len(self.blocks):
            self.blocks = _larger(self.blocks, 2 * len(self.blocks) + at.SPARE * int(head[at.H_BLOCKS]))
        if g[at.G_PAIR_TOP] + most > len(self.pairs):
            self.pairs = _larger(self.pairs, 2 * len(self.pairs))
        if g[at.G_WAIT_TOP] + most > len(self.waiting):
            self.waiting = _larger(self.waiting, 2 * len(self.waiting))
        if g[at.G_READY] > self.wave.shape[1]:
            wave = np.empty((2, _power(int(g[at.G_READY]))), dtype=np.int64)
            wave[:, : self.wave.shape[1]] = self.wave
            self.wave = wave
        # The kernel asks both for room for the longer one; what is not touched takes no memory.
        rows = int(max(g[at.G_MESSAGE_ROWS], g[at.G_HOP_ROWS])) + most
        if g[at.G_MESSAGES] and rows > len(self.messages):
            self.messages = _larger(self.messages, 2 * len(self.messages))
        if g[at.G_MESSAGES] and rows > len(self.hops):
            self.hops = _larger(self.hops, 2 * len(self.hops))

    def _hash_again(self, rows: int) -> None:
        """A larger hash table with the buckets that are pending."""
        self.hash = np.full(rows, -1, dtype=np.int32)
        pending = self.heap[: self.globals[at.G_HEAP]]
        with np.errstate(over="ignore"):
            slots = ((pending[:, 0] * np.int64(-7046029254386353131)) >> 20) & (rows - 1)
        for slot, bucket in zip(slots.tolist(), pending[:, 1].tolist(), strict=True):
            self.buckets[bucket, 4] = self.hash[slot]
            self.hash[slot] = bucket

    def run(self) -> None:
        """Run to the end: until `status` is no longer RUNNING."""
        from astrasim_py.engine.compiled.kernel import advance

        while self.status in (at.UNBORN, at.RUNNING):
            self.grow()
            self.globals[at.G_STEPS] = STEPS
            advance(*self.arguments())


def _lines(shape: tuple[int, ...], dtype: type = np.int64, value: int | None = None) -> np.ndarray:
    """An array that begins with a line of the cache, so that a row of 64 bytes is in one; set to `value` if given.

    Memory from numpy begins anywhere: each row would be in two lines.
    """
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    # Zeros that nobody has touched take no memory.
    space = np.zeros(count + LINE, dtype=np.uint8) if value == 0 else np.empty(count + LINE, dtype=np.uint8)
    begin = -space.ctypes.data % LINE
    made = space[begin : begin + count].view(dtype).reshape(shape)
    if value:
        made[...] = value
    return made


def _power(least: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(int(least) - 1, 1).bit_length()


def _larger(array: np.ndarray, rows: int) -> np.ndarray:
    """A copy with more rows; the new ones are not set."""
    made = _lines((rows, *array.shape[1:]), array.dtype)
    made[: len(array)] = array
    return made
