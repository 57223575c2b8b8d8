"""Collectives: their names, and the state of every rank's buffer before and after them.

With T chunks, n ranks and per = T / n:

============== ============================= ==================================================
collective     input chunk k of rank r       required at output chunk k of rank r
============== ============================= ==================================================
all_reduce     (r, k)                        sum over q of (q, k)
all_gather     (r, k), k < per               (k div per, k mod per)
reduce_scatter (r, k)                        sum over q of (q, r·per + k), k < per
all_to_all     (r, k)                        (k div per, r·per + k mod per)
broadcast      (root, k) at the root only    (root, k)
reduce         (r, k)                        at the root: sum over q of (q, k)
gather         (r, k), k < per               at the root: (k div per, k mod per)
scatter        (root, k) at the root only    (root, r·per + k), k < per
barrier        nothing                       nothing
custom         its contract's                its contract's
============== ============================= ==================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from astrasim_py.core.errors import AlgorithmError

#: A collective of the producer's own, which only its contract describes.
CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """The promise of a collective. `from_root`, `to_root`: only the root has an input; only the root has an output."""

    name: str
    rooted: bool = False  # one rank, the root, is the only source or the only destination
    gathers: bool = False  # every rank contributes one shard; the result is the whole buffer
    scatters: bool = False  # the result on each rank is its own shard
    reduces: bool = False  # contributions of all ranks are added
    sharded: bool = False  # the full buffer consists of one shard per rank
    from_root: bool = False
    to_root: bool = False

    def shard(self, ranks: int, chunks: int) -> int:
        """Chunks of a shard, or of the whole buffer without shards."""
        return max(chunks // ranks, 1) if self.sharded else chunks

    def input_chunks(self, ranks: int, chunks: int) -> int:
        """Chunks of every rank's input."""
        return self.shard(ranks, chunks) if self.gathers else chunks

    def output_chunks(self, ranks: int, chunks: int) -> int:
        """Chunks of every rank's output."""
        return self.shard(ranks, chunks) if self.scatters else chunks

    def before(self, rank: int, ranks: int, chunks: int, root: int | None = None) -> range:
        """Chunks of a rank's input that are defined at the start.

        >>> COLLECTIVES["all_gather"].before(1, ranks=4, chunks=8)
        range(0, 2)
        """
        if self.name == "barrier" or (self.from_root and rank != root):
            return range(0)
        return range(self.input_chunks(ranks, chunks))

    def after(self, rank: int, ranks: int, chunks: int, root: int | None = None) -> list[tuple[range, int]]:
        """The required output of a rank: for each chunk the ranks whose inputs are summed, and the input chunk.

        If T chunks do not divide into shards, some of these ranks do not exist.

        >>> COLLECTIVES["reduce_scatter"].after(1, ranks=4, chunks=8)
        [(range(0, 4), 2), (range(0, 4), 3)]
        """
        if self.name == "barrier" or (self.to_root and rank != root):
            return []
        per = self.shard(ranks, chunks)
        first = rank * per
        if self.reduces:
            kept_chunks = range(first, first + per) if self.scatters else range(chunks)
            return [(range(ranks), k) for k in kept_chunks]
        if self.from_root:
            source = range(rank, rank) if root is None else range(root, root + 1)
            return [(source, first + k if self.scatters else k) for k in range(per)]
        # A gather takes whole shards; all_to_all takes shard `rank` of every rank.
        skip = 0 if self.gathers else first
        return [(range(k // per, k // per + 1), skip + k % per) for k in range(chunks)]


#: Collectives by the name that they have everywhere in the package.
COLLECTIVES: Mapping[str, Collective] = {
    c.name: c
    for c in (
        Collective(name="all_reduce", reduces=True),
        Collective(name="all_gather", gathers=True, sharded=True),
        Collective(name="reduce_scatter", scatters=True, reduces=True, sharded=True),
        Collective(name="all_to_all", sharded=True),
        Collective(name="broadcast", rooted=True, from_root=True),
        Collective(name="reduce", rooted=True, reduces=True, to_root=True),
        Collective(name="gather", rooted=True, gathers=True, sharded=True, to_root=True),
        Collective(name="scatter", rooted=True, scatters=True, sharded=True, from_root=True),
        Collective(name="barrier"),
    )
}
_CUSTOM = Collective(name=CUSTOM)


def promise_of(name: str) -> Collective:
    """The `Collective` of a name, also of `CUSTOM`, which promises nothing by itself."""
    return COLLECTIVES.get(name, _CUSTOM)


def busbw_factor(collective: str, ranks: int) -> Fraction | None:
    """Bus bandwidth per algorithm bandwidth (size / time), by nccl-tests' definition (PERFORMANCE.md).

    2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter; 1 for
    broadcast and reduce; 0 for barrier; None for custom, whose bytes are unknown.
    """
    if collective == CUSTOM:
        return None
    if collective == "barrier" or ranks < 1:
        return Fraction(0)
    if collective == "all_reduce":
        return Fraction(2 * (ranks - 1), ranks)
    promise = promise_of(collective)
    if promise.rooted and not promise.sharded:
        return Fraction(1)
    return Fraction(ranks - 1, ranks)


def collective_name(text: str, place: str = "") -> str:
    """Name of a collective, or `CUSTOM`, from other spellings: ``allreduce``, ``AllGather``."""
    squeezed = text.replace("_", "").replace("-", "").lower()
    for name in (*COLLECTIVES, CUSTOM):
        if squeezed == name.replace("_", ""):
            return name
    raise AlgorithmError(place, f'"{text}" is not a collective', f"write one of {', '.join(COLLECTIVES)}")
