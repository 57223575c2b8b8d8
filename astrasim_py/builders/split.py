"""Several instances of an algorithm side by side."""

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, Numbers, check_nodes, finish
from astrasim_py.builders.ordered import OrderedProgram, checked, spread
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import numbered, ranges
from astrasim_py.program.algorithm import Algorithm, place_of


def split(algorithm: Algorithm, k: int, *, verify: bool = True) -> Algorithm:
    """k instances of an algorithm side by side, each on its part of every chunk's buffer and on channels of its own.

    The full buffer is cut into k·T chunks. Of a collective without shards, instance j has the j-th part of the buffer;
    with shards, the j-th part of each, so that every rank's shard stays whole; of a custom collective the j-th part
    of each chunk. Where a step covers chunks that then no longer lie side by side, it becomes several.

    Parameters
    ----------
    algorithm : Algorithm
    k : int
        Number of instances.
    verify : bool
        Verify the result.

    Returns
    -------
    Algorithm

    Raises
    ------
    AlgorithmError
        An algorithm that does not state its cells, or would become too large.

    Examples
    --------
    >>> from astrasim_py.builders.registry import build
    >>> split(build("ring", "all_reduce", 4), 2)
    Algorithm(ring_x2: all_reduce, 4 ranks, 8 chunks)
    """
    place = place_of(algorithm)
    if type(k) is not int or not 1 <= k <= 2**15:
        raise AlgorithmError(place, f"split({k!r}) is no number of instances", f"write 1 to {2**15}")
    if k == 1:
        return algorithm
    check_nodes(place, algorithm.nodes * k)
    if algorithm.chunks * k >= 2**31:
        raise AlgorithmError(place, f"split({k}) makes {algorithm.chunks * k} chunks", "take fewer instances")
    program = OrderedProgram(algorithm, "split")
    n, total = algorithm.ranks, algorithm.chunks
    block = total // n if promise_of(algorithm.collective).sharded else 1 if algorithm.collective == CUSTOM else total
    segments, owner, start, length = _segments(program, block)
    first, segment, size = np.cumsum(segments) - segments, ranges(segments)[1], len(owner)
    instance = np.arange(k).repeat(size)
    owner, start, length, segment = (np.tile(array, k) for array in (owner, start, length, segment))
    rank, kind = program.rank[owner], program.type[owner]
    columns = {name: column[owner] for name, column in program.columns.items()}
    scratch = np.zeros(n, dtype=np.int64)
    for side in ("src", "dst"):
        scratch_rows = columns[f"{side}_buf"] == Buffer.SCRATCH
        np.maximum.at(scratch, rank[scratch_rows], (columns[f"{side}_off"] + program.count[owner])[scratch_rows])
    # Segments of a node take data of the same segments of others.
    payload, sender = (
        np.where(rows[owner] < 0, NONE, first[rows[owner]] + segment + instance * size)
        for rows in (program.payload, program.sender)
    )
    channel = np.maximum(columns["channel"], 0) * k + instance
    sends, receives = np.flatnonzero(kind == NodeType.COMM_SEND), np.flatnonzero(sender >= 0)
    tag = np.full(len(owner), MISSING)
    tag[sends] = numbered(*(key[sends] for key in (program.pair[owner], segment, program.turn[owner], channel)))
    tag[receives] = tag[sender[receives]]

    def moved(chunk: np.ndarray) -> np.ndarray:
        """New places of chunks of the full buffer."""
        cell = chunk + start
        return cell // block * (block * k) + instance * block + cell % block

    values: dict[str, Numbers] = {
        "type": kind,
        "rank": rank,
        "order": program.at[owner],
        "payload": payload,
        "msg_chunk_idx": np.where(columns["msg_chunk_idx"] < 0, MISSING, moved(columns["msg_chunk_idx"])),
        "msg_chunk_cnt": np.where(columns["msg_chunk_cnt"] < 0, MISSING, length),
        "channel": np.where(program.message[owner], channel, MISSING),
        "comm_tag": tag,
        **{name: columns[name] for name in ("comm_src", "comm_dst", "comp_op", "source_line")},
    }
    for side in ("src", "dst"):
        buffer, offset = columns[f"{side}_buf"], columns[f"{side}_off"]
        own = instance * scratch[rank] + offset + start
        at = np.where(buffer == Buffer.SCRATCH, own, moved(np.maximum(offset, 0)))
        values |= {f"{side}_buf": buffer, f"{side}_off": np.where(buffer < 0, MISSING, at)}
    draft = Draft(n, total * k)
    draft.extend(len(owner), values)
    _depend(draft, program, segments, first, k, size)
    made = finish(
        draft, f"{algorithm.name}_x{k}", algorithm.collective, root=algorithm.root, in_place=algorithm.in_place,
        source=algorithm.source, protocol=algorithm.protocol,
        contract=algorithm.contract and spread(algorithm.contract, k),
    )  # fmt: skip
    return checked(made, place) if verify else made


def _segments(program: OrderedProgram, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    count, columns = program.count, program.columns
    segments = np.ones(program.size, dtype=np.int64)
    cuts: dict[int, set[int]] = {}
    group: list[int] = []
    for side in ("src", "dst"):
        buffer, offset = columns[f"{side}_buf"], columns[f"{side}_off"]
        lies = (buffer == Buffer.INPUT) | (buffer == Buffer.OUTPUT)
        crossing = np.flatnonzero(lies & (count > 1) & (offset // block != (offset + count - 1) // block))
        if len(crossing) and not group:
            group = _handed_on(program)
        for g in crossing.tolist():
            begin = block - int(offset[g]) % block
            cuts.setdefault(group[g], set()).update(range(begin, int(count[g]), block))
    if not cuts:
        return segments, np.arange(program.size), np.zeros(program.size, dtype=np.int64), count
    bounds = {group_of: [0, *sorted(inner)] for group_of, inner in cuts.items()}
    cut = [g for g, group_of in enumerate(group) if group_of in bounds]
    segments[cut] = [len(bounds[group[g]]) for g in cut]
    owner = np.repeat(np.arange(program.size), segments)
    first = np.cumsum(segments) - segments
    start, length = np.zeros(len(owner), dtype=np.int64), count[owner]
    for g in cut:
        begins = bounds[group[g]]
        rows = slice(int(first[g]), int(first[g]) + len(begins))
        start[rows] = begins
        length[rows] = np.diff([*begins, int(count[g])])
    return segments, owner, start, length


def _handed_on(program: OrderedProgram) -> list[int]:
    """Group of each node: nodes between which data passes without a cell must be cut alike."""
    group = list(range(program.size))
    # In the order of execution, data comes from nodes whose group is known.
    payload, sender = program.payload.tolist(), program.sender.tolist()
    for g in program.sequence:
        giver = payload[g] if payload[g] >= 0 else sender[g]
        if giver >= 0:
            group[g] = group[giver]
    return group


def _depend(draft: Draft, program: OrderedProgram, segments: np.ndarray, first: np.ndarray, k: int, size: int) -> None:
    """Every segment of a node waits for all segments of those before it, of its own instance."""
    child, parent = program.child, program.parent
    several = (segments[child] > 1) & (segments[parent] > 1)
    alike = several & (program.payload[child] == parent)
    merged = several & ~alike
    edges = [_pairs(child[~several], parent[~several], segments, first)]
    row, step = ranges(segments[child[alike]])
    edges.append((first[child[alike]][row] + step, first[parent[alike]][row] + step))
    shift = np.arange(k)[:, None] * size
    for c, p in edges:
        draft.depend((c + shift).ravel(), (p + shift).ravel())
    if not merged.any():
        return
    # One node that waits for all of a node's segments, instead of as many edges as there are pairs of segments.
    waited, code = np.unique(parent[merged], return_inverse=True)
    below = child[merged]
    (above_row, above), (below_row, inner) = ranges(segments[waited]), ranges(segments[below])
    for j in range(k):
        joins = draft.join(program.rank[waited], order=program.at[waited])
        draft.depend(joins[above_row], first[waited][above_row] + above + j * size)
        draft.depend(first[below][below_row] + inner + j * size, joins[code][below_row])


def _pairs(child: np.ndarray, parent: np.ndarray, segments: np.ndarray, first: np.ndarray) -> tuple:
    wide = segments[parent]
    row, inner = ranges(segments[child] * wide)
    return first[child][row] + inner // wide[row], first[parent][row] + inner % wide[row]
