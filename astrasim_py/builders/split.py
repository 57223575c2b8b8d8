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
    whole = OrderedProgram(algorithm, "split")
    n, total = algorithm.ranks, algorithm.chunks
    block = total // n if promise_of(algorithm.collective).sharded else 1 if algorithm.collective == CUSTOM else total
    segments, owner, start, length = _segments(whole, block)
    first, segment, size = np.cumsum(segments) - segments, ranges(segments)[1], len(owner)
    instance = np.arange(k).repeat(size)
    owner, start, length, segment = (np.tile(each, k) for each in (owner, start, length, segment))
    rank, kind = whole.rank[owner], whole.type[owner]
    given = {name: column[owner] for name, column in whole.columns.items()}
    scratch = np.zeros(n, dtype=np.int64)
    for side in ("src", "dst"):
        mine = given[f"{side}_buf"] == Buffer.SCRATCH
        np.maximum.at(scratch, rank[mine], (given[f"{side}_off"] + whole.count[owner])[mine])
    # Segments of a node take data of the same segments of others.
    payload, sender = (
        np.where(rows[owner] < 0, NONE, first[rows[owner]] + segment + instance * size)
        for rows in (whole.payload, whole.sender)
    )
    channel = np.maximum(given["channel"], 0) * k + instance
    sends, receives = np.flatnonzero(kind == NodeType.COMM_SEND), np.flatnonzero(sender >= 0)
    tag = np.full(len(owner), MISSING)
    tag[sends] = numbered(*(key[sends] for key in (whole.pair[owner], segment, whole.turn[owner], channel)))
    tag[receives] = tag[sender[receives]]

    def moved(chunk: np.ndarray) -> np.ndarray:
        """New places of chunks of the full buffer."""
        at = chunk + start
        return at // block * (block * k) + instance * block + at % block

    values: dict[str, Numbers] = {
        "type": kind,
        "rank": rank,
        "order": whole.at[owner],
        "payload": payload,
        "msg_chunk_idx": np.where(given["msg_chunk_idx"] < 0, MISSING, moved(given["msg_chunk_idx"])),
        "msg_chunk_cnt": np.where(given["msg_chunk_cnt"] < 0, MISSING, length),
        "channel": np.where(whole.message[owner], channel, MISSING),
        "comm_tag": tag,
        **{name: given[name] for name in ("comm_src", "comm_dst", "comp_op", "source_line")},
    }
    for side in ("src", "dst"):
        buffer, offset = given[f"{side}_buf"], given[f"{side}_off"]
        own = instance * scratch[rank] + offset + start
        at = np.where(buffer == Buffer.SCRATCH, own, moved(np.maximum(offset, 0)))
        values |= {f"{side}_buf": buffer, f"{side}_off": np.where(buffer < 0, MISSING, at)}
    draft = Draft(n, total * k)
    draft.extend(len(owner), values)
    _depend(draft, whole, segments, first, k, size)
    made = finish(
        draft, f"{algorithm.name}_x{k}", algorithm.collective, root=algorithm.root, in_place=algorithm.in_place,
        source=algorithm.source, protocol=algorithm.protocol,
        contract=algorithm.contract and spread(algorithm.contract, k),
    )  # fmt: skip
    return checked(made, place) if verify else made


def _segments(whole: OrderedProgram, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    count, columns = whole.count, whole.columns
    segments = np.ones(whole.size, dtype=np.int64)
    cuts: dict[int, set[int]] = {}
    group: list[int] = []
    for side in ("src", "dst"):
        buffer, offset = columns[f"{side}_buf"], columns[f"{side}_off"]
        lies = (buffer == Buffer.INPUT) | (buffer == Buffer.OUTPUT)
        crossing = np.flatnonzero(lies & (count > 1) & (offset // block != (offset + count - 1) // block))
        if len(crossing) and not group:
            group = _handed_on(whole)
        for g in crossing.tolist():
            begin = block - int(offset[g]) % block
            cuts.setdefault(group[g], set()).update(range(begin, int(count[g]), block))
    if not cuts:
        return segments, np.arange(whole.size), np.zeros(whole.size, dtype=np.int64), count
    bounds = {which: [0, *sorted(inner)] for which, inner in cuts.items()}
    cut = [g for g, which in enumerate(group) if which in bounds]
    segments[cut] = [len(bounds[group[g]]) for g in cut]
    owner = np.repeat(np.arange(whole.size), segments)
    first = np.cumsum(segments) - segments
    start, length = np.zeros(len(owner), dtype=np.int64), count[owner]
    for g in cut:
        begins = bounds[group[g]]
        rows = slice(int(first[g]), int(first[g]) + len(begins))
        start[rows] = begins
        length[rows] = np.diff([*begins, int(count[g])])
    return segments, owner, start, length


def _handed_on(whole: OrderedProgram) -> list[int]:
    """Group of each node: nodes between which data passes without a cell must be cut alike."""
    group = list(range(whole.size))
    # In the order of execution, data comes from nodes whose group is known.
    payload, sender = whole.payload.tolist(), whole.sender.tolist()
    for g in whole.sequence:
        giver = payload[g] if payload[g] >= 0 else sender[g]
        if giver >= 0:
            group[g] = group[giver]
    return group


def _depend(draft: Draft, whole: OrderedProgram, segments: np.ndarray, first: np.ndarray, k: int, size: int) -> None:
    """Every segment of a node waits for all segments of those before it, of its own instance."""
    child, parent = whole.child, whole.parent
    several = (segments[child] > 1) & (segments[parent] > 1)
    alike = several & (whole.payload[child] == parent)
    joined = several & ~alike
    edges = [_pairs(child[~several], parent[~several], segments, first)]
    row, step = ranges(segments[child[alike]])
    edges.append((first[child[alike]][row] + step, first[parent[alike]][row] + step))
    shift = np.arange(k)[:, None] * size
    for c, p in edges:
        draft.depend((c + shift).ravel(), (p + shift).ravel())
    if not joined.any():
        return
    # One node that waits for all of a node's segments, instead of as many edges as there are pairs of segments.
    waited, which = np.unique(parent[joined], return_inverse=True)
    below = child[joined]
    (above_row, above), (below_row, inner) = ranges(segments[waited]), ranges(segments[below])
    for j in range(k):
        joins = draft.join(whole.rank[waited], order=whole.at[waited])
        draft.depend(joins[above_row], first[waited][above_row] + above + j * size)
        draft.depend(first[below][below_row] + inner + j * size, joins[which][below_row])


def _pairs(child: np.ndarray, parent: np.ndarray, segments: np.ndarray, first: np.ndarray) -> tuple:
    wide = segments[parent]
    row, inner = ranges(segments[child] * wide)
    return first[child][row] + inner // wide[row], first[parent][row] + inner % wide[row]
