"""Recursive doubling and halving: in every step a rank exchanges with the rank whose number differs in one bit.

Sources: Thakur, Rabenseifner & Gropp 2005 (§3.1, §4); Rabenseifner 2004 (halving, then doubling). Groups that are not a
power of two are folded as there: of the first 2·rem ranks the even ones send their part to the odd neighbour at first
and get the result at the end.
"""

from functools import partial

import numpy as np

from astrasim_py.builders.draft import NONE, Arguments, Draft, Place, check_nodes, finish, finish_rotated
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotation


def build(collective: str, ranks: int) -> Algorithm:
    """The whole buffer in log2 n steps: for small sizes. Takes two more for groups that are not a power of two.
    all_reduce sends the whole buffer in every step (few messages, many bytes: for small sizes), all_gather twice as
    much in each step as in the one before. A reduction waits for the own send of its step, since it overwrites what is
    being sent.
    """
    levels = ranks.bit_length() - 1
    if ranks == 1 << levels:
        # Partners differ in one bit.
        return finish_rotated(
            partial(_lay, collective, ranks), Rotation((2,) * levels), "recursive_doubling", collective
        )
    check_nodes(f"recursive_doubling {collective}", ranks * 3 * (levels + 2))
    return finish(_lay(collective, ranks), "recursive_doubling", collective)


def _lay(collective: str, n: int, which: np.ndarray | None = None) -> Draft:
    """All ranks of a group, or some of one that is a power of two."""
    levels = n.bit_length() - 1
    v = np.arange(1 << levels)
    rem = n - len(v)
    gathers, reduces, count = collective == "all_gather", collective == "all_reduce", int(collective != "barrier")
    draft = Draft(n if which is None else len(which), n if gathers else 1)
    # Rank of participant v, and the first shard it stands for; those of v..w-1 are start[v]..start[w]-1.
    actual = np.where(v < rem, 2 * v + 1, v + rem)
    start = np.append(np.where(v < rem, 2 * v, v + rem), n)
    who = {"rank": actual}
    if which is not None:
        v, who = which[:, None], {}
    folded, keeper = np.arange(0, 2 * rem, 2), np.arange(1, 2 * rem, 2)

    def moved(first, number) -> tuple[Arguments, Place | None]:
        """The chunks that a message moves, and their place: some shards, or the whole buffer."""
        if gathers:
            return {"idx": first, "cnt": number}, (Buffer.OUTPUT, first)
        return {"idx": 0, "cnt": count}, (Buffer.INPUT, 0) if count else None

    done, before = np.full((2, len(v) if rem else 1), NONE)
    what, cells = moved(folded, 1)
    if rem:
        draft.send(rank=folded, peer=keeper, tag=0, src=cells, **what)
        got = draft.recv(rank=keeper, peer=folded, tag=0, dst=cells if gathers else None, **what)
        before[:rem] = done[:rem] = got
    if rem and reduces:
        done[:rem] = draft.reduce(payload=got, rank=keeper, idx=0, src=cells, dst=cells)
    for k in range(levels):
        mine, size = v >> k << k, 1 << k
        theirs = mine ^ size
        sizes = [start[first + size] - start[first] if rem else size for first in (mine, theirs)]
        (what, source), (received, target) = moved(start[mine], sizes[0]), moved(start[theirs], sizes[1])
        span = {"peer": actual[v ^ size], "tag": 1 + k, **who}
        sent = draft.send(src=source, after=(done,), **span, **what)
        before = done = draft.recv(dst=target if gathers else None, after=(before,), **span, **received)
        if reduces:
            done = draft.reduce(payload=before, idx=0, src=source, dst=source, after=(sent,), **who)
    if not rem:
        return draft
    # Folded ranks get the result; of shards, those before and after their own.
    parts = [(0 * folded, folded), (keeper, 0 * keeper + n)] if gathers else [(folded, keeper)]
    for part, (low, high) in enumerate(parts):
        some = np.flatnonzero(high > low)
        what, cells = moved(low[some], (high - low)[some])
        span = {"tag": 1 + levels + part, **what}
        draft.send(rank=keeper[some], peer=folded[some], src=cells, after=(done[some],), **span)
        draft.recv(rank=folded[some], peer=keeper[some], dst=cells, **span)
    return draft


def halving_doubling(collective: str, ranks: int) -> Algorithm:
    """Halves, then doubles: log2 n steps, least bytes. reduce_scatter halves, all_gather doubles, all_reduce does both;
    takes log2(n) steps per half and moves (n-1)/n of the buffer in each half. Raises AlgorithmError where the number of
    ranks is not a power of two.
    """
    if ranks & (ranks - 1):
        raise AlgorithmError(
            f"halving_doubling {collective} over {ranks} ranks",
            f"{ranks} is not a power of two, which this algorithm needs",
            "use ring, or recursive_doubling, which folds the rest",
        )
    levels = ranks.bit_length() - 1
    lay = partial(_halve_and_double, collective, levels)
    return finish_rotated(lay, Rotation((2,) * levels), "halving_doubling", collective)


def _halve_and_double(collective: str, levels: int, ranks: np.ndarray) -> Draft:
    n = 1 << levels
    draft = Draft(len(ranks), n)
    buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
    r = ranks[:, None]
    halves = ("reduce_scatter", "all_gather") if collective == "all_reduce" else (collective,)
    done = before = np.array([NONE])
    for number, half in enumerate(halves):
        summed, gathers = done, half == "all_gather"
        for k in range(levels):
            distance = 1 << k if gathers else n >> (k + 1)
            home = r & ~(distance - 1)
            sent, target = (home, home ^ distance) if gathers else (home ^ distance, home)
            span = {"peer": r ^ distance, "tag": number * levels + k, "cnt": distance}
            cells = (buffer, target)
            draft.send(idx=sent, src=(buffer, sent), after=(summed, done), **span)
            before = draft.recv(idx=target, dst=cells if gathers else None, after=(before,), **span)
            # A reduction comes after the one before, which wrote the same cells and more.
            reduced: Arguments = {
                "payload": before,
                "idx": target,
                "cnt": distance,
                "src": cells,
                "dst": cells,
                "after": (done,),
            }
            done = before if gathers else draft.reduce(**reduced)
    return draft
