"""Exposed communication of gradients and weights, and the cost of sharing links with it."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce

import numpy as np

from astrasim_py.training.prices import Constants, Transfer
from astrasim_py.training.strategy import Numbers
from astrasim_py.training.terms import (
    KINDS,
    BothPasses,
    Counts,
    Seconds,
    Spent,
    SpentByPass,
    Terms,
    chosen,
    mapped,
    on_rank,
    some,
    spent_on_rank,
    taken,
)

#: Less than any time that is not 0.
TINY = 1e-30


def exposed_once(
    priced: Terms, spent: Mapping[str, SpentByPass], counts: Counts, place: int, constants: Constants
) -> BothPasses:
    """Communication of gradients and weights once an iteration that the computation of a pipeline rank exposes, at
    its start and at its end.

    A layer of the first forward pass waits for its weights, and those of the layers below come before. The last
    backward pass is the reverse: the lower a layer, the less computation is left to overlap its gradients. A rank
    of several chunks passes p microbatches through one before it turns to the next. Where weight gradients are computed
    apart, only these hide their reductions. `place` of the rank, 2 the last: what is ahead in the pipeline hides more.
    """
    split = priced.split
    exposed: list[Seconds] = [0.0, 0.0]
    for way in (0, 1):
        streams = {kind: priced.gradients.once[kind][way] for kind in KINDS}
        alone = streams
        if way and np.any(queue := _queue(priced)):
            streams = {kind: stream + priced.gradients.each[kind].reduce * queue for kind, stream in streams.items()}
        if not any(np.any(stream.near) for stream in streams.values()):
            continue
        hidden = np.any(priced.hidden[0])
        width = len(Transfer._fields) if hidden else 3  # exposed, it meets nothing on its links
        stream = Transfer(
            *(on_rank({kind: comm_of[part] for kind, comm_of in streams.items()}, counts) for part in range(width))
        )
        comm = stream.seconds(constants.nic)
        if not hidden:
            exposed[way] = comm
            continue
        chains = {kind: spent[kind][way] for kind in KINDS}
        if way and np.any(split):
            chains = {kind: mapped(partial(chosen, split), spent[kind].weights, chains[kind]) for kind in KINDS}
        busy = on_rank({kind: chain.seconds for kind, chain in chains.items()}, counts)
        pace: Seconds = 1.0
        pace_of_comm: Seconds = 1.0
        shared = np.any(stream.on_tp) or np.any(stream.on_ep)
        if shared:
            chain = spent_on_rank(chains, counts, Spent._fields[:7])
            slowed, moved, _ = _together(stream, comm, chain)
            #: Of the computation, and of the communication, while both go on.
            pace, pace_of_comm = busy / np.maximum(slowed, TINY), moved / np.maximum(slowed, TINY)
        parts = _in_order(priced, counts, chains)
        hiding = sum(count * layer_seconds for _, count, layer_seconds in parts)
        left: Seconds = hiding
        behind: Seconds = 0.0
        longest = hiding
        for kind, count, layer_seconds in parts:
            layer_comm = streams[kind].seconds(constants.nic)
            for before in (count,) if np.max(count) <= 1 else (np.minimum(count, 1), count):
                ready, after = behind + before * layer_comm, left - np.maximum(before - 1, 0) * layer_seconds
                total = ready + after
                if shared:
                    rest = (comm - ready) / pace_of_comm * (1 - pace)
                    total = ready / pace_of_comm + np.minimum(after / pace, after + rest)
                longest = np.where(count > 0, np.maximum(longest, total), longest)
            behind, left = behind + count * layer_comm, left - count * layer_seconds
        ahead = (0, np.minimum(1, priced.stages - 1), priced.stages - 1)[place] * busy / priced.chunks
        beside = np.maximum(longest - hiding - np.where(split & (way > 0), 0.0, ahead), 0.0)
        if alone is not streams:  # that of the others is counted with every microbatch
            comm_alone = on_rank({kind: stream.seconds(constants.nic) for kind, stream in alone.items()}, counts)
        else:
            comm_alone = comm
        beside = beside + constants.interference * np.minimum(comm_alone, busy)
        exposed[way] = np.where(priced.hidden[0], beside, comm)
    return BothPasses(*exposed)


def _queue(priced: Terms) -> bool | np.ndarray:
    """Whether reductions with every microbatch follow each other beside all computation, as nothing waits for them;
    where weights are gathered, the next layer does.
    """
    gathers = reduce(np.logical_or, (np.asarray(both.gather.near) > 0 for both in priced.gradients.each.values()))
    return np.asarray(priced.hidden[1]) & ~gathers


def _in_order(priced: Terms, counts: Counts, chains: Mapping[str, Spent]) -> list[tuple[str, Seconds, Seconds]]:
    """Kinds of layers of a pipeline rank in the order of the first forward pass: how many, and the seconds of a layer.

    Those are of p microbatches in all chunks but the first: so long a rank computes before it turns to the next chunk.
    """
    chunks, pairs = priced.chunks, (("dense", counts.dense), ("moe", counts.moe))
    kinds = [(kind, count) for kind, count in pairs if np.any(count)]
    parts = [("embedding", counts.embedding, chains["embedding"].seconds)]
    parts += [(kind, count / chunks, chains[kind].seconds) for kind, count in kinds]
    passes: Numbers = 1
    if np.max(chunks) > 1:
        passes = np.where(np.asarray(chunks) > 1, priced.stages, 1)
        parts += [(kind, count * (1 - 1 / chunks), chains[kind].seconds * passes) for kind, count in kinds]
    parts.append(("logits", counts.logits, chains["logits"].seconds * passes))
    return [part for part in parts if np.any(part[1])]


def stalls(priced: Terms, spent: Mapping[str, SpentByPass], constants: Constants) -> list[BothPasses]:
    """Communication of gradients and weights with every microbatch that is exposed in the forward and in the backward
    pass of the first, the second and the last pipeline rank.
    """
    sends = priced.gradients.each
    mask = np.asarray(reduce(np.logical_or, (np.asarray(t.near) > 0 for both in sends.values() for t in both)))
    if not mask.any():
        return [BothPasses(0.0, 0.0)] * 3
    if not mask.all() and not any(map(np.ndim, constants.__dict__.values())):  # the others have none
        rows = np.flatnonzero(mask)
        all_of_them = np.zeros((3, 2, len(mask)))
        all_of_them[:, :, rows] = stalls(taken(priced, rows), some(spent, rows), constants)
        return [BothPasses(*both) for both in all_of_them]
    return [_exposed_chunks(priced, spent, counts, constants) for counts in priced.counts]


def _exposed_chunks(
    priced: Terms, spent: Mapping[str, SpentByPass], counts: Counts, constants: Constants
) -> BothPasses:
    """`_exposed_each` of the chunks of a pipeline rank, of which one has the embedding or the logits."""
    chunks = priced.chunks
    per_chunk = Counts(counts.dense / chunks, counts.moe / chunks, counts.embedding / 1, counts.logits / 1)
    first = _exposed_each(priced, spent, per_chunk, constants)
    if np.max(chunks) == 1:
        return first
    inner = _exposed_each(priced, spent, per_chunk._replace(embedding=0, logits=0), constants)
    return BothPasses(*(edge + (chunks - 1) * other for edge, other in zip(first, inner, strict=True)))


def _exposed_each(priced: Terms, spent: Mapping[str, SpentByPass], counts: Counts, constants: Constants) -> BothPasses:
    """Communication of gradients and weights with every microbatch that the computation of a pipeline rank exposes, in
    the forward and in the backward pass.

    Weights are gathered one layer ahead: while a layer computes forward, those of the next one, which is the first of
    the backward pass at the end; while it computes backward, those of the layer below, and the gradients of the layer
    above are reduced. Before and after come other microbatches.
    """
    count_of = counts._asdict()
    kinds = [kind for kind in ("embedding", "dense", "moe", "logits") if np.any(count_of[kind])]
    gather, reduced = ({kind: priced.gradients.each[kind][way] for kind in kinds} for way in (0, 1))
    if not any(np.any(comm.near) for comms in (gather, reduced) for comm in comms.values()):
        return BothPasses(0.0, 0.0)
    queue = _queue(priced)
    if np.all(queue):
        return _queued(priced, spent, counts, constants)

    def nearest(values: Mapping[str, Transfer], others: Sequence[str], default: Transfer) -> Transfer:
        """The value of the first of the other kinds that the rank has."""
        for kind in reversed(others):
            default = mapped(partial(chosen, np.asarray(count_of[kind]) > 0), values[kind], default)
        return default

    exposed: list[Seconds] = [0.0, 0.0]
    for place, kind in enumerate(kinds):
        above, below = kinds[place + 1 :], kinds[:place][::-1]
        gathered, after = gather[kind], reduced[kind]
        below_first = nearest(dict.fromkeys(kinds, Transfer()), below, after)  # the lowest layer: of the one before
        up, down = nearest(gather, above, gathered), nearest(gather, below, gathered)
        up_reduce = nearest(reduced, above, Transfer())
        passes = (
            (gathered + below_first, gathered, up, up + below_first),
            (gathered + up_reduce, gathered + after, down + after, down + up_reduce),
        )
        count = np.asarray(count_of[kind])
        for way, comms in enumerate(passes):
            beyond = partial(_beyond, chain=spent[kind][way], hidden=priced.hidden[1], constants=constants)
            several, alone = count > 1, (count > 0) & (count <= 1)
            if several.any():
                first, inner, last = map(beyond, comms[:3])
                exposed[way] = exposed[way] + several * (first + (count - 2) * inner + last)
            if alone.any():
                exposed[way] = exposed[way] + alone * beyond(comms[3])
    if np.any(queue):
        queued = _queued(priced, spent, counts, constants)
        exposed = [np.where(queue, *pair) for pair in zip(queued, exposed, strict=True)]
    return BothPasses(*exposed)


def _queued(priced: Terms, spent: Mapping[str, SpentByPass], counts: Counts, constants: Constants) -> BothPasses:
    """Reductions with every microbatch that take longer than all its computation; those of the last one are counted
    once an iteration.
    """
    reduced = {kind: both.reduce.seconds(constants.nic) for kind, both in priced.gradients.each.items()}
    backward = {kind: by_pass.backward.seconds for kind, by_pass in spent.items()}
    slowed = (
        on_rank({kind: np.minimum(reduced[kind], backward[kind]) for kind in KINDS}, counts) * constants.interference
    )
    forward = on_rank({kind: by_pass.forward.seconds for kind, by_pass in spent.items()}, counts)
    longer = on_rank(reduced, counts) - on_rank(backward, counts) - forward - slowed
    return BothPasses(0.0, np.maximum(longer, 0.0) * (1 - 1 / priced.microbatches) + slowed)


def _beyond(stream: Transfer, chain: Spent, hidden, constants: Constants) -> Seconds:
    """Time that communication adds to the computation beside it. Both begin at once."""
    comm, busy = stream.seconds(constants.nic), chain.seconds
    interference = constants.interference * np.minimum(comm, busy)
    apart = np.maximum(comm - busy, 0.0)
    meets = (np.asarray(stream.on_tp) > 0) | (np.asarray(stream.on_ep) > 0)
    if not meets.any():
        return np.where(hidden, apart + interference, comm)
    slowed, moved, factor = _together(stream, comm, chain)
    # Communication before the first computation, or that computation, comes first; the rest counts as mixed.
    count = np.maximum(stream.tp_turns, TINY)
    turn = chain.lead / np.maximum(chain.lead_steps, TINY) + stream.on_tp / count
    done = np.where(
        factor > 1, factor * chain.lead * comm / count / np.maximum(np.maximum(turn, comm / count), TINY), chain.lead
    )
    first = np.minimum(comm / np.maximum(done, TINY), 1.0) * chain.lead * (factor - 1)
    left = np.maximum(comm - done - chain.head, 0.0)
    slowed = slowed - chain.lead * factor - chain.head
    moved = np.maximum(moved - done - chain.head, TINY)
    rest = busy - chain.lead - chain.head
    shared = first + np.minimum(left / moved, 1.0) * (slowed - rest)
    mixed = shared + np.maximum(left - moved, 0.0)
    return np.where(hidden, np.where(meets, mixed, apart) + interference, comm)


def _together(stream: Transfer, comm: Seconds, chain: Spent) -> tuple[Seconds, Seconds, Seconds]:
    """Seconds of a pass while it shares links with a stream of `comm` seconds, and what the stream gets done meanwhile;
    and by which factor steps of tensor parallel collectives are slower.

    A link serves whole messages in turn. So a step of the pass waits for a step of the stream, and the stream waits for
    the pass if it returns before that step ends.
    """
    slowed = moved = chain.seconds
    factor: Seconds = 1.0
    ep = chain.ep, chain.ep_steps, stream.on_ep, stream.ep_turns
    tp = chain.tp, chain.tp_steps, stream.on_tp, stream.tp_turns
    for seconds, steps, shared, turns in (ep, tp):
        if not np.any(shared):
            factor = 1.0
            continue
        count = np.maximum(turns, TINY)
        period, turn = comm / count, shared / count
        longer = np.maximum(np.maximum(period, turn + seconds / np.maximum(steps, TINY)), TINY)
        meets = (steps > 0) & (turn > 0)
        factor = np.where(meets, 1 / (1 - np.minimum(turn / longer, 1 - 1e-9)), 1.0)
        slowed = slowed + seconds * (factor - 1)
        moved = moved + seconds * (np.where(meets, factor * period / longer, 1.0) - 1)
    return slowed, moved, factor
