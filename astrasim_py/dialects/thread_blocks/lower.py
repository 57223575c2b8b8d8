"""Given programs as their thread blocks run them (docs/dialects.md): one node for each step and pass over slices.

A pass moves one slice of every chunk. A thread block runs all its steps in a pass before it begins the next one;
dependencies between thread blocks hold within a pass. Messages of a connection follow each other pass after pass.
A step of c chunks moves c slices. A message holds a slot (2 under Simple, 8 under LL and LL128) until the receiving
step ends.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.units import transfer_ps
from astrasim_py.dialects.library.lower_connections import MessageNodes
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.table import Program
from astrasim_py.system.compatible import COUNTERS, THREAD_BLOCKS, refuse
from astrasim_py.system.programs import COMPUTE, LAUNCH_ROW, NO_SLOT, BlockCosts, BlockSteps, RankProgram, Structure

#: Most steps of all ranks and passes.
MAX_STEPS = 2**22


def has_thread_blocks(algorithm: Algorithm) -> bool:
    """Whether every node of an algorithm has a thread block, as in MSCCL-IR."""
    return any(map(len, algorithm.given)) and all((t.column("tb_id") >= 0).all() for t in algorithm.given)


def by_thread_blocks(
    algorithm: Algorithm, table: Program, costs: BlockCosts, kind: np.ndarray, nbytes: np.ndarray, peer: np.ndarray,
    tag: np.ndarray, structure: Callable[..., Structure],
) -> tuple[RankProgram, ...]:  # fmt: skip
    """The programs of all ranks, thread block by thread block.

    Parameters
    ----------
    algorithm, table
        The algorithm and the table of its nodes, which all name their thread blocks.
    costs : BlockCosts
        What a step costs.
    kind, nbytes, peer, tag : int[rows]
        Kinds, bytes, peers and tags of the nodes.
    structure
        ``structure(kind, need, child, parent)`` makes a structure (`RankPrograms.structure`).

    Raises
    ------
    AlgorithmError
        A message without send or receive, or of unequal bytes; a step of several receives or sends; counters or
        recorded durations; too many steps.
    """

    def error(problem: str, remedy: str) -> AlgorithmError:
        return AlgorithmError(algorithm.source or algorithm.name, problem, remedy)

    counters = any(map(table.has, ("counter", "count_of", "detached")))
    refuse(THREAD_BLOCKS, {COUNTERS: counters}, error=AlgorithmError, place=algorithm.source or algorithm.name)
    if table.duration_micros.any() or table.has("duration_ps"):
        raise error("states durations, which its thread blocks take from the profile", "leave them out")
    nodes = MessageNodes(algorithm, table, np.arange(len(table)), kind, peer, tag)
    sends, receives, _, begin, end = nodes.messages()
    wrong = np.flatnonzero(nbytes[sends] != nbytes[receives])
    if len(wrong):
        a, b = int(sends[wrong[0]]), int(receives[wrong[0]])
        problem = f"{table.node(a)} sends {nbytes[a]} B and {table.node(b)} expects {nbytes[b]} B"
        raise error(problem, "give both the same size")
    last = nodes.last_of_steps()
    first = np.flatnonzero(last >= 0)
    step = np.searchsorted(first, table.step)
    gives, takes = np.full((2, len(first)), -1, dtype=np.int64)
    gives[step[sends]], takes[step[receives]] = np.arange(len(sends)), np.arange(len(receives))
    # A step stands under its send, else its receive.
    row = np.where((gives < 0) & (takes >= 0), np.append(receives, 0)[takes], last[first])
    order = np.lexsort((table.node_id[row], table.rank[row]))
    number = np.argsort(order)
    row, first, gives, takes, step = row[order], first[order], gives[order], takes[order], number[step]

    count = np.maximum(table.column("msg_chunk_cnt")[row], 1)
    passes = max(1, -(-int((-(-nbytes[row] // count)).max(initial=0)) // costs.slice))
    if passes * len(row) > MAX_STEPS:
        problem = f"makes {passes * len(row):,} steps in {passes:,} passes over slices, more than {MAX_STEPS:,}"
        raise error(problem, "use a smaller size or larger slices")
    per_pass = (count * costs.slice)[:, None]
    amount = np.clip(nbytes[row][:, None] - per_pass * np.arange(passes), 0, per_pass).ravel()
    local = kind[row] == COMPUTE
    #: With the value of the launch.
    columns = {
        "rows": (row - table.bounds[table.rank[row]], LAUNCH_ROW),
        "node_id": (table.node_id[row], 0),
        "peer": (np.where(local, -1, peer[row]).astype(np.int32), -1),
        "tag": (np.where(local, 0, tag[row]), 0),
        "slot": (np.full(len(row), NO_SLOT, dtype=np.int8), NO_SLOT),
        "instance": (np.full(len(row), -1, dtype=np.int32), -1),
    }
    columns = {name: (np.repeat(column, passes), more) for name, (column, more) in columns.items()}
    kinds, local = np.repeat(kind[row], passes), np.repeat(local, passes)
    columns["nbytes"] = np.where(local, 0, amount), 0
    columns["duration"] = np.where(local, _local_ps(amount, costs), 0), costs.launch
    gives, given = _numbers(gives, begin, end, passes)
    messages = {
        "takes": _numbers(takes, begin, end, passes)[0],
        "gives": gives,
        "needs": np.where(given >= costs.slots, gives - costs.slots, -1),
    }
    child, parent = _edges(table, first, step, passes)
    bounds = np.searchsorted(table.rank[row], np.arange(table.ranks + 1)) * passes
    edges = np.searchsorted(child, bounds)
    programs = []
    for (low, high), (begins, ends) in zip(pairwise(bounds.tolist()), pairwise(edges.tolist()), strict=True):
        of_rank: dict[str, Any] = {name: _with(column[low:high], more) for name, (column, more) in columns.items()}
        program = RankProgram(
            structure=structure(*_launched(kinds[low:high], child[begins:ends] - low, parent[begins:ends] - low)),
            **of_rank,
            blocks=BlockSteps(
                costs, len(sends) * passes, **{name: _with(values[low:high], -1) for name, values in messages.items()}
            ),
        )
        if high > low:
            program.node_id[-1] = program.node_id[-2] + 1
        programs.append(program)
    return tuple(programs)


def _launched(kind: np.ndarray, child: np.ndarray, parent: np.ndarray) -> tuple[np.ndarray, ...]:
    """Kinds, needs and edges of a rank's steps and of the launch, a last node that those without parents wait for."""
    n = len(kind)
    roots = np.flatnonzero(np.bincount(child, minlength=n) == 0)
    child, parent = np.append(child, roots), np.append(parent, np.full(len(roots), n))
    order = np.argsort(child, kind="stable")
    return _with(kind, COMPUTE), np.bincount(child, minlength=n + 1), child[order], parent[order]


def _with(column: np.ndarray, more: int) -> np.ndarray:
    """A rank's column with a value for the launch."""
    return np.append(column, np.array(more, dtype=column.dtype))


def _local_ps(amount: np.ndarray, costs: BlockCosts) -> np.ndarray:
    """int64[n]: times of steps without messages, for sizes in bytes."""
    sizes, code = np.unique(amount, return_inverse=True)
    times = [costs.step + transfer_ps(nbytes, costs.rate) for nbytes in sizes.tolist()]
    return np.array(times, dtype=np.int64)[code]


def _numbers(message: np.ndarray, begin: np.ndarray, end: np.ndarray, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Messages of steps in all passes, and their numbers in their connections; -1 for none.

    `message`: of each step, -1 for none; `begin`, `end`: by message the first of its connection, and its end.
    """
    begin, length = np.append(begin, 0)[message, None], np.append(end - begin, 0)[message, None]
    number = np.arange(passes) * length + message[:, None] - begin
    none = message[:, None] < 0
    return np.where(none, -1, passes * begin + number).ravel(), np.where(none, -1, number).ravel()


def _edges(table: Program, first: np.ndarray, step: np.ndarray, passes: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges (child, parent) between the steps of all passes, ascending by child.

    `first`: first row of each step. `step`: of each row.
    """
    child, parent = step[table.child], step[table.parents]
    rank, block = table.rank[first], table.column("tb_id")[first]
    order = np.lexsort((table.place[first], block, rank))
    before, after = order[:-1], order[1:]
    same = (rank[before] == rank[after]) & (block[before] == block[after])
    pairs = np.stack([np.append(child, after[same]), np.append(parent, before[same])])
    child, parent = np.unique(pairs[:, pairs[0] != pairs[1]], axis=1)
    at = np.arange(passes)
    head, tail = (order[np.append(*ends)] for ends in (([True], ~same), (~same, [True])))
    child = np.append(child[:, None] * passes + at, head[:, None] * passes + at[1:])
    parent = np.append(parent[:, None] * passes + at, tail[:, None] * passes + at[:-1])
    order = np.lexsort((parent, child))
    return child[order], parent[order]
