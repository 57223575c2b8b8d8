"""Queue pairs: several routes between two NPUs, and messages that are split over them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from astrasim_py.collectives.chunks import share
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.dialects.library.lower_connections import MAX_PIECES
from astrasim_py.system.compatible import COUNTERS, SPLIT, refuse
from astrasim_py.system.programs import RECV, SEND, RankProgram, Structure


def split_messages(program: RankProgram, parts: int, structure: Callable[..., Structure], place: str) -> RankProgram:
    """The program with every message split.

    Raises AlgorithmError: counters or detached sends, or too many parts; `place` names the program. `structure`: as for
    `in_parts`.
    """
    kind = program.structure.kind
    pieces = np.where((kind == SEND) | (kind == RECV), parts, 1).astype(np.int64)
    if int(pieces.sum()) > len(pieces) and program.counters is not None:
        refuse(SPLIT, {COUNTERS: True}, error=AlgorithmError, place=place)
    return in_parts(program, pieces, structure, place, "write fewer qps, or leave split out of the network")


def in_parts(
    program: RankProgram, pieces: np.ndarray, structure: Callable[..., Structure], place: str, remedy: str
) -> RankProgram:
    """The program with nodes in parts, each with the dependencies of the node; what depends on it depends on all parts.

    `pieces`: int64[n], parts of each node, 1 of those that count or are waited for by counters. `structure`:
    ``structure(kind, need, child, parent)`` makes the structure of the parts. Raises AlgorithmError: too many parts;
    `place` names the program.
    """
    if int(pieces.sum()) == len(pieces):
        return program
    kind, counters = program.structure.kind, program.counters
    if int(pieces.sum()) > MAX_PIECES:
        problem = f"makes {int(pieces.sum()):,} parts of messages and operations of one rank, more than {MAX_PIECES:,}"
        raise AlgorithmError(place, problem, remedy)
    first, origin = np.cumsum(pieces) - pieces, np.repeat(np.arange(len(pieces)), pieces)
    number = np.arange(len(origin)) - first[origin]
    parent = np.repeat(np.arange(len(pieces)), np.diff(program.structure.succ_ptr))
    child = program.structure.succ.astype(np.int64)
    edges = pieces[parent] * pieces[child]
    if int(edges.sum()) > 16 * MAX_PIECES:
        problem = f"makes {int(edges.sum()):,} dependencies between parts of messages of one rank"
        raise AlgorithmError(place, problem, remedy)
    edge = np.repeat(np.arange(len(edges)), edges)
    of_parent, of_child = np.divmod(np.arange(len(edge)) - (np.cumsum(edges) - edges)[edge], pieces[child][edge])
    parent, child = first[parent][edge] + of_parent, first[child][edge] + of_child
    order = np.lexsort((parent, child))
    gates = program.structure.need - np.bincount(program.structure.succ, minlength=len(pieces))
    need = np.bincount(child, minlength=len(origin)) + gates[origin]
    names = ("rows", "node_id", "peer", "tag", "slot", "instance", "duration")
    if counters is not None:
        start = np.where(counters.start >= 0, first[counters.start], -1).astype(np.int32)
        columns = {name: getattr(counters, name)[origin] for name in ("counts", "of", "k", "detached")}
        counters = replace(counters, start=start[origin], **columns)
    return replace(
        program,
        counters=counters,
        structure=structure(kind[origin], need, child[order], parent[order]),
        nbytes=share(program.nbytes[origin], number, pieces[origin]),
        **{name: getattr(program, name)[origin] for name in names},
    )
