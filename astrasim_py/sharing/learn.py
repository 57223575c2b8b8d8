"""Learn the repeated block of a workload, and its properties in every occurrence."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import lcm

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError
from astrasim_py.sharing.levels import Original, kind_of
from astrasim_py.sharing.motifs import LEAST_REPEATS, Motif, find_motif
from astrasim_py.sharing.skeleton import START, Skeleton
from astrasim_py.sharing.synthesis_model import Kind, Place, PlaceProgram, PlaceStep, RankModel, Wait, WorkloadModel

#: Calls that a call leads to from which on it has a chain of compute of its own.
_CHAIN = 3
_KINDS: dict[int, Kind] = {
    NodeType.COMM_COLL: "collective",
    NodeType.COMM_SEND: "send",
    NodeType.COMM_RECV: "recv",
    NodeType.MEM_LOAD: "load",
    NodeType.MEM_STORE: "store",
}
_SIZES = ("comm_size", "coll_size", "tensor_size")
_ATTRIBUTES = ("comm_type", "comm_root", "comm_priority")
#: Place and step that is waited for (-1: the last), and for how long after it, in ps.
_Wait = tuple[int, int, int]


@dataclass(slots=True)
class _Step:
    takes: int
    waits: list[_Wait]
    cpu: bool = False


@dataclass(slots=True)
class _Place:
    """What a rank executes; `row` of its trace, -1 the end."""

    row: int
    key: tuple = ()
    steps: list[_Step] = field(default_factory=list)


def learn(original: Original, *, nodes: bool | None = None) -> WorkloadModel:
    """Learn a workload.

    `nodes`: keep compute nodes, by the names of which blocks are found, in place of the skeleton; by default where a
    rank runs alone. Blocks must repeat on all ranks together, so that every call is in the same occurrence on all of
    them; otherwise all is prefix.
    """
    workload = original.workload
    nodes = workload.ranks == 1 if nodes is None else nodes
    like = range(workload.ranks) if nodes else original.like
    learned: dict[int, tuple[list[_Place], Motif | None]] = {}
    for rank in dict.fromkeys(like):
        trace = workload.traces[rank]
        places = (
            _of_nodes(trace, original.duration[trace], original.dependencies)
            if nodes
            else _of_calls(original.skeletons[rank])
        )
        _set_keys(places, trace, nodes)
        learned[rank] = places, find_motif([place.key for place in places])
    sequences, motifs = zip(*(learned[first] for first in like), strict=True)
    tagged = _together(workload, sequences, motifs)
    if not tagged:
        motifs = tuple(_steady(workload, sequences, motifs) or [None] * workload.ranks)
        tagged = None in motifs
    numbers = {name: str(number) for number, name in enumerate(workload.groups, 1)}
    groups_of = {numbers[name]: workload.members(name) for name in numbers}
    programs: dict[str, tuple[int, PlaceProgram]] = {}
    number_of: dict[int, int] = {}
    models = []
    for rank, (trace, places) in enumerate(zip(workload.traces, sequences, strict=True)):
        groups, peers = _rank_of(trace, places)
        if like[rank] == rank:
            program = _program(trace, places, motifs[rank], groups, peers, tagged)
            number_of[rank], _ = programs.setdefault(program.model_dump_json(), (len(programs), program))
        number = number_of[like[rank]]
        models.append(RankModel(program=number, groups=tuple(map(numbers.__getitem__, groups)), peers=tuple(peers)))
    simulated = original.simulate(original.with_skeletons(original.skeletons))
    nominal = max(int(ends.max(initial=0)) for _, ends in simulated)
    made_of = tuple(program for _, program in programs.values())
    return WorkloadModel(nominal_ps=nominal, groups=groups_of, ranks=tuple(models), programs=made_of)


# -- places ------------------------------------------------------------------------------------------------------------


def _of_calls(skeleton: Skeleton) -> list[_Place]:
    """The calls of a rank; where one leads to many, the paths are a chain, so that each is as long as its part."""
    places = [_Place(row) for row in skeleton.kept.tolist()]
    paths: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for source, target, ps in zip(
        skeleton.source.tolist(), skeleton.target.tolist(), skeleton.ps.tolist(), strict=True
    ):
        paths[source].append((target, ps))
    if skeleton.target.max(initial=-1) >= len(places):
        places.append(_Place(-1))
    waits: list[list[_Wait]] = [[] for _ in places]
    for source in sorted(paths, reverse=True):
        chained, last = 0, (source, -1, 0)
        for target, ps in sorted(paths[source]):
            if len(paths[source]) < _CHAIN or ps < chained:
                waits[target].append((source, -1, ps))
                continue
            places[target].steps.append(_Step(ps - chained, [last]))
            chained, last = ps, (target, len(places[target].steps) - 1, 0)
            waits[target].append(last)
    for place, place_waits in zip(places, waits, strict=True):
        place.steps.append(_Step(0, place_waits))
    return places


def _of_nodes(trace: ExecutionTrace, duration: np.ndarray, dependencies: str) -> list[_Place]:
    """The nodes of a rank: gaps are waits, nodes of the host steps that lead to the next, and all others places."""
    ptr, parents = (array.tolist() for array in trace.parents(dependencies))
    compute = trace.type == NodeType.COMP
    host = (compute & (trace.column("is_cpu_op") > 0)).tolist()
    gap = [c and kind_of(name) == "gap" for c, name in zip(compute.tolist(), trace.names, strict=True)]
    order = trace.order(dependencies).tolist()
    alone = all(host[row] or gap[row] for row in order)
    last = next((row for row in reversed(order) if not gap[row]), -1)
    takes = np.where(compute, duration, 0).tolist()
    ends: dict[int, dict[tuple[int, int], int]] = {}  # by row: the step whose end it is, and the time after it
    places: list[_Place] = []
    steps: list[_Step] = []
    for row in order:
        waits: dict[tuple[int, int], int] = {}
        for parent in parents[ptr[row] : ptr[row + 1]]:
            for end, ps in ends[parent].items():
                waits[end] = max(waits.get(end, 0), ps)
        if gap[row]:
            ends[row] = {end: ps + takes[row] for end, ps in (waits or {(START, -1): 0}).items()}
            continue
        steps.append(_Step(takes[row], [(*end, ps) for end, ps in waits.items()], host[row]))
        place = not host[row] or alone or row == last
        ends[row] = {(len(places), -1 if place else len(steps) - 1): 0}
        if place:
            places.append(_Place(row, steps=steps))
            steps = []
    return places


def _set_keys(places: Sequence[_Place], trace: ExecutionTrace, names: bool) -> None:
    """Key by which places are equal: the name of compute; kind, group and power of two of the size of calls."""
    codes, _ = trace.group_of()
    column = {name: trace.column(name) for name in ("comm_type", "comm_src", "comm_dst", *_SIZES)}
    for place in places:
        row = place.row
        if row < 0 or trace.type[row] == NodeType.COMP:
            place.key = ("", trace.names[row] if names and row >= 0 else row < 0)
        else:
            size = max(int(column["comm_size"][row]), int(column["tensor_size"][row]), 0).bit_length()
            call = (int(column[name][row]) for name in ("comm_type", "comm_src", "comm_dst"))
            place.key = (int(trace.type[row]), *call, int(codes[row]), size)


# -- ranks together ----------------------------------------------------------------------------------------------------


def _rank_of(trace: ExecutionTrace, places: Sequence[_Place]) -> tuple[list[str], list[int]]:
    """Groups and peers that a rank names, in the order in which it does."""
    codes, names = trace.group_of()
    groups: dict[str, None] = {}
    peers: dict[int, None] = {}
    for place in places:
        if place.row >= 0 and codes[place.row] >= 0 and names[codes[place.row]] not in ("", "0"):
            groups[names[codes[place.row]]] = None
        if place.row >= 0 and trace.type[place.row] in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            peer = _peer(trace, place.row)
            if peer < 0:
                raise TraceError(trace.place, f"node {trace.node_id[place.row]} lacks its peer", "see trace lint")
            peers[peer] = None
    return list(groups), list(peers)


def _peer(trace: ExecutionTrace, row: int) -> int:
    return int(trace.column("comm_dst" if trace.type[row] == NodeType.COMM_SEND else "comm_src")[row])


def _part(number: int, motif: Motif) -> int:
    """Occurrence of the block that a place is in; -1 before the first, `repeats` after the last."""
    return min(max((number - motif.start) // motif.period, -1), motif.repeats)


def _together(
    workload: Workload, sequences: Sequence[list[_Place]], motifs: Sequence[Motif | None], messages: bool = True
) -> bool:
    """Whether every call, `messages` included, is in the same occurrence on all ranks that take part in it."""
    blocks = [motif for motif in motifs if motif is not None]
    if len(blocks) < len(motifs) or len({motif.repeats for motif in blocks}) > 1:
        return False
    parts: dict[tuple, int] = {}
    for rank, (trace, places, motif) in enumerate(zip(workload.traces, sequences, blocks, strict=True)):
        codes, names = trace.group_of()
        tags = trace.column("comm_tag")
        seen: Counter = Counter()
        for number, place in enumerate(places):
            kind = trace.type[place.row] if place.row >= 0 else NodeType.COMP
            if kind == NodeType.COMM_COLL:
                group = names[codes[place.row]] if codes[place.row] >= 0 else ""
                key: tuple = ("" if group == "0" else group,)
            elif messages and kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                peer = _peer(trace, place.row)
                key = (*((rank, peer) if kind == NodeType.COMM_SEND else (peer, rank)), int(tags[place.row]))
            else:
                continue
            call = (*key, seen[key])
            seen[key] += 1
            if parts.setdefault(call, _part(number, motif)) != _part(number, motif):
                return False
    return True


def _steady(workload: Workload, sequences: Sequence[list[_Place]], motifs: Sequence[Motif | None]) -> list | None:
    """Blocks of a pipeline: stages are at different micro-batches, but each block has as many messages on both sides.

    Messages of a pair are then matched in order, without tags. None if they are in another order, or of several sizes,
    or collectives are in different occurrences.
    """
    sides: tuple[dict, dict] = defaultdict(list), defaultdict(list)  # by pair: (tag, size, place, rank), sent, received
    for rank, (trace, places) in enumerate(zip(workload.traces, sequences, strict=True)):
        tags, sizes = trace.column("comm_tag"), trace.column("comm_size")
        for number, place in enumerate(places):
            kind = trace.type[place.row] if place.row >= 0 else NodeType.COMP
            if kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                peer, sent = _peer(trace, place.row), kind == NodeType.COMM_SEND
                sides[not sent][(rank, peer) if sent else (peer, rank)].append(
                    (int(tags[place.row]), int(sizes[place.row]), number)
                )
    sent, received = sides
    blocks = [motif for motif in motifs if motif is not None]
    if len(blocks) < len(motifs) or not sent or sent.keys() != received.keys():
        return None
    if any([m[:2] for m in sent[pair]] != [m[:2] for m in received[pair]] for pair in sent):
        return None
    if any(len({size for _, size, _ in messages}) > 1 for messages in sent.values()):
        return None

    def many(motif: Motif, messages: list) -> int:
        return sum(motif.start <= number < motif.start + motif.period for *_, number in messages)

    most = [max(many(motif, side[pair]) for side, e in ((sent, 0), (received, 1)) for pair in side if pair[e] == rank)
            if any(rank in pair for pair in sent) else 0 for rank, motif in enumerate(blocks)]  # fmt: skip
    if 0 in most:
        return None
    times = [lcm(*most) // count for count in most]
    repeats = min(motif.repeats // factor for motif, factor in zip(blocks, times, strict=True))
    blocks = [Motif(motif.start, motif.period * factor, repeats) for motif, factor in zip(blocks, times, strict=True)]
    alike = all(many(blocks[pair[0]], sent[pair]) == many(blocks[pair[1]], received[pair]) for pair in sent)
    return blocks if repeats >= LEAST_REPEATS and alike and _together(workload, sequences, blocks, False) else None


# -- programs ----------------------------------------------------------------------------------------------------------


def _program(
    trace: ExecutionTrace,
    places: list[_Place],
    motif: Motif | None,
    groups: list[str],
    peers: list[int],
    tagged: bool,
) -> PlaceProgram:
    motif = motif or Motif(len(places), 1, 0)

    def part(first: int, stop: int, times: int) -> tuple[Place, ...]:
        period = stop - first
        rows = ([first + number + period * time for time in range(times)] for number in range(period))
        placed = (_place(trace, places, numbers, motif, groups, peers) for numbers in rows)
        return tuple(place if tagged else place.model_copy(update={"tags": (0,) * len(place.tags)}) for place in placed)

    return PlaceProgram(
        prefix=part(0, motif.start, 1),
        block=part(motif.start, motif.start + motif.period, motif.repeats) if motif.repeats else (),
        suffix=part(motif.end, len(places), 1),
        occurrences=motif.repeats,
    )


def _place(trace, places: list[_Place], numbers: list[int], motif: Motif, groups: list[str], peers: list[int]) -> Place:
    """One place of a part, from its occurrences `numbers`; its steps are counted from the last."""
    rows = [places[number].row for number in numbers]
    row = rows[0]
    kind: Kind = _KINDS.get(trace.type[row], "compute") if row >= 0 else "compute"
    codes, names = trace.group_of()
    group = names[codes[row]] if row >= 0 and codes[row] >= 0 else ""
    steps_of = [places[number].steps for number in numbers]
    most = max(map(len, steps_of))
    columns = zip(*([*([None] * (most - len(steps))), *steps] for steps in steps_of), strict=True)
    steps = tuple(_step(column, numbers, places, motif) for column in columns)

    def of_rows(columns: Sequence[str], value: Callable):
        return {name: value(trace.column(name)) for name in columns if kind != "compute" and row >= 0
                and trace.column(name)[row] != MISSING}  # fmt: skip

    message = kind in ("send", "recv")
    return Place(
        kind=kind,
        group=groups.index(group) if group in groups and kind == "collective" else None,
        peer=peers.index(_peer(trace, row)) if message else None,
        attributes=of_rows(_ATTRIBUTES, lambda column: int(column[row])),
        sizes=of_rows(_SIZES, lambda column: tuple(np.maximum(column[rows], 0).tolist())),
        tags=tuple(np.maximum(trace.column("comm_tag")[rows], 0).tolist()) if message else (),
        steps=steps,
    )


def _step(occurrences: Sequence[_Step | None], numbers: list[int], places: list[_Place], motif: Motif) -> PlaceStep:
    """A step from its occurrences, None where one lacks it."""
    waits_of: dict[tuple, list[int | None]] = {}
    for occurrence, (step, number) in enumerate(zip(occurrences, numbers, strict=True)):
        for source, index, ps in step.waits if step is not None else ():
            far = source < 0 or (number - source > 2 * motif.period and source < motif.start <= number)
            index -= len(places[source].steps) if index >= 0 else 0  # from the end
            key = ("at", source, index) if far else ("back", number - source, index)
            values = waits_of.setdefault(key, [None] * len(occurrences))
            values[occurrence] = max(values[occurrence] or 0, ps)
    takes = tuple(None if step is None else step.takes for step in occurrences)
    waits = tuple(Wait(**{way: far}, step=index, ps=tuple(ps)) for (way, far, index), ps in waits_of.items())
    cpu = any(step is not None and step.cpu for step in occurrences)
    return PlaceStep(takes_ps=takes if any(duration != 0 for duration in takes) else (), cpu=cpu, waits=waits)
