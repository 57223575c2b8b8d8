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

    Every part is a send or receive with the dependencies of the message; nodes that depend on the message depend
    on all its parts. `structure`: ``structure(kind, need, child, parent)`` makes the structure of the parts. Raises
    AlgorithmError: counters or detached sends, or too many parts; `place` names the program.
    """
    kind = program.structure.kind
    pieces = np.where((kind == SEND) | (kind == RECV), parts, 1).astype(np.int64)
    if int(pieces.sum()) == len(pieces):
        return program
    if program.counters is not None:
        refuse(SPLIT, {COUNTERS: True}, error=AlgorithmError, place=place)
    if int(pieces.sum()) > MAX_PIECES:
        problem = f"makes {int(pieces.sum()):,} parts of messages and operations of one rank, more than {MAX_PIECES:,}"
        raise AlgorithmError(place, problem, "write fewer qps, or leave split out of the network")
    first, origin = np.cumsum(pieces) - pieces, np.repeat(np.arange(len(pieces)), pieces)
    number = np.arange(len(origin)) - first[origin]
    parent = np.repeat(np.arange(len(pieces)), np.diff(program.structure.succ_ptr))
    child = program.structure.succ.astype(np.int64)
    edges = pieces[parent] * pieces[child]
    if int(edges.sum()) > 16 * MAX_PIECES:
        problem = f"makes {int(edges.sum()):,} dependencies between parts of messages of one rank"
        raise AlgorithmError(place, problem, "write fewer qps, or leave split out of the network")
    edge = np.repeat(np.arange(len(edges)), edges)
    of_parent, of_child = np.divmod(np.arange(len(edge)) - (np.cumsum(edges) - edges)[edge], pieces[child][edge])
    parent, child = first[parent][edge] + of_parent, first[child][edge] + of_child
    order = np.lexsort((parent, child))
    gates = program.structure.need - np.bincount(program.structure.succ, minlength=len(pieces))
    need = np.bincount(child, minlength=len(origin)) + gates[origin]
    names = ("rows", "node_id", "peer", "tag", "slot", "instance", "duration")
    return replace(
        program,
        structure=structure(kind[origin], need, child[order], parent[order]),
        nbytes=share(program.nbytes[origin], number, pieces[origin]),
        **{name: getattr(program, name)[origin] for name in names},
    )
