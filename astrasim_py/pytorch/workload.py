"""Make a `Workload` of the graphs of all ranks: nodes of Chakra with communication matched across ranks."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from astrasim_py.chakra.schema import COLLECTIVE_CODES, NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.calls import Call
from astrasim_py.pytorch.facts import MESSAGES, ROOTED
from astrasim_py.pytorch.graph import Graph, NodeKind
from astrasim_py.pytorch.groups import MAX_MEMBERS, arithmetic, numbered
from astrasim_py.pytorch.nodes import Communication, rank_trace
from astrasim_py.pytorch.ranks import Instance, Meeting, RankCalls, meet

_NS = 1000  # picoseconds


class RankGraph(NamedTuple):
    """The graph of a rank, its calls in order of issue, and whether they ran on the device."""

    graph: Graph
    calls: Sequence[Call]
    device: bool


@dataclass(frozen=True)
class Options:
    """How recordings become a workload; each as the option of the command line of this name."""

    collectives: str = "network"
    skew: str = "keep"
    splits: str = "messages"
    gaps: str = "nodes"
    replicate: int = 0
    size_default: int | None = None


class Built(NamedTuple):
    """A workload. `problems`: why not to trust it; `warnings`: what is assumed of the calls; `kept`: calls that stay
    computation.
    """

    workload: Workload
    meeting: Meeting
    problems: list[str]
    notes: list[str]
    warnings: list[str]
    kept: int


def build_workload(
    ranks: Mapping[int, RankGraph],
    world: int | None,
    options: Options,
    name: str = "",
    metadata: Mapping[int, Mapping[str, object]] | None = None,
) -> Built:
    """Make the traces of all ranks, by global rank.

    `world`: number of ranks of the job; None: those given. `metadata`: of the trace of each. A call that lacks
    something, or members, stays a computation of its recorded time; ranks without a recording are left out and the
    others renumbered. Raises TraceError: calls without a size and no default; recordings that cannot be replicated.
    """
    world = max(world or 0, *(rank + 1 for rank in ranks), 1)
    ranks = {rank: _with_sizes(ranks[rank], options.size_default) for rank in sorted(ranks)}
    met = meet([timed(rank, record) for rank, record in ranks.items()], world)
    problems, notes = list(met.problems), list(met.notes)
    if options.replicate:
        _check_replicable(ranks)
        for instance in met.instances:
            instance.lacks = ()
        _least_durations(met, ranks)
        notes.append("one rank stands for all: times without waiting are upper bounds")
    else:
        called = [*met.groups.values(), *(i.lacks for i in met.instances if i.kind == "message")]
        absent = sorted(set(range(world)).union(*called) - ranks.keys())
        if absent:
            shown = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
            problems.append(f"{len(absent)} of {len(absent) + len(ranks)} ranks have no recording: {shown}")
    place = {rank: number for number, rank in enumerate(ranks)}
    roles: dict[str, list[str]] = {}
    if options.replicate:
        groups, roles = _replicated(met, world, options.replicate, next(iter(ranks.values())).graph.recording.source)
    else:
        complete = {key: members for key, members in met.groups.items() if ranks.keys() >= set(members)}
        groups = {key: tuple(place[rank] for rank in members) for key, members in complete.items()}
    planned, taken, warnings = _plan(ranks, met, options, place)
    kept = sum(len(record.calls) for record in ranks.values()) - taken
    problems += _lacking(ranks)
    begin = {rank: record.graph.recording.base_ns + met.shifts[rank] for rank, record in ranks.items()}
    moving: dict[int, dict[int, int]] = {rank: {} for rank in ranks}
    for instance in met.instances if options.collectives == "recorded" else ():
        for rank, index in instance.calls.items():
            row = ranks[rank].calls[index].row
            moving[rank][row] = max(instance.moving_ns, moving[rank].get(row, 0))
    traces = [
        rank_trace(
            record.graph,
            planned[rank],
            gaps=options.gaps,
            moving={row: ns for row, ns in moving[rank].items() if row in planned[rank]},
            skew_ns=begin[rank] - min(begin.values()) if options.skew == "keep" else 0,
            rank=place[rank],
            metadata=(metadata or {}).get(rank),
            declared={key: () if options.replicate == len(members) else members for key, members in groups.items()},
        )
        for rank, record in ranks.items()
    ]
    workload = Workload(tuple(traces) * max(options.replicate, 1), groups, name, roles)
    return Built(workload, met, problems, notes, warnings, kept)


def _with_sizes(rec: RankGraph, default: int | None) -> RankGraph:
    """The rank with inputs of known size: where only that of the output is recorded, the input follows from it."""
    unsized = [call for call in rec.calls if call.nbytes is None]
    if unsized and default is None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(call.kind for call in unsized).items())
        problem = f"the recording has no size for {len(unsized)} of {len(rec.calls)} calls ({kinds})"
        raise TraceError(
            rec.graph.recording.source, problem, "add the host's trace (--et), or give --size-default BYTES"
        )
    sized = [replace(call, in_bytes=default, out_bytes=default) if call.nbytes is None else call for call in rec.calls]
    sized = [replace(call, in_bytes=call.nbytes) if call.in_bytes is None else call for call in sized]
    return rec._replace(calls=sized)


def timed(rank: int, record: RankGraph) -> RankCalls:
    """The calls of a rank with their times, for `meet`."""
    graph = record.graph
    node_of = {int(row): node for node, row in enumerate(graph.row.tolist()) if graph.kind[node] != NodeKind.PIECE}
    start = [graph.recording.base_ns + int(graph.start[node_of[call.row]]) for call in record.calls]
    end = [begin + int(graph.duration[node_of[call.row]]) for begin, call in zip(start, record.calls, strict=True)]
    return RankCalls(rank, record.calls, start, end, record.device)


def _lacking(ranks: Mapping[int, RankGraph]) -> list[str]:
    lacks = Counter(
        (fact, call.kind) for r in ranks.values() for call in r.calls for fact in call.missing() if fact != "bytes"
    )
    return [f"the {fact} of {count} {kind} calls is not recorded" for (fact, kind), count in sorted(lacks.items())]


# -- communication ----------------------------------------------------------------------------------------------------


def _plan(
    ranks: Mapping[int, RankGraph], met: Meeting, options: Options, place: Mapping[int, int]
) -> tuple[dict[int, dict[int, list[Communication]]], int, list[str]]:
    """Communications made of complete calls, by rank and row; the number of these calls; and what is assumed."""
    planned: dict[int, dict[int, list[Communication]]] = {rank: {} for rank in ranks}
    tags = 1 + max((instance.tag for instance in met.instances if instance.kind == "message"), default=-1)
    unsplit = taken = 0
    for number, instance in enumerate(met.instances):
        if instance.lacks or not instance.kind:
            continue
        calls = {rank: ranks[rank].calls[index] for rank, index in instance.calls.items()}
        uneven = _uneven(calls.values())
        root = max(call.root for call in calls.values())  # not all members may say it
        parts = {rank: call.parts() for rank, call in calls.items()} if uneven else {}
        stated = not uneven or _told(calls, parts)
        unsplit += not stated
        for rank, call in calls.items():
            if call.peer is not None:
                nodes = [_message(call.kind, place[rank], place[call.peer], call.size, instance.tag)]
            elif not uneven:
                nodes = [_collective(call, instance.group, call.size, root)]
            elif stated and options.splits == "messages":
                nodes = list(_parts(rank, call.members, parts, place, tags + number))
            else:
                largest = max(map(max, parts.values()))
                nodes = [_collective(call, instance.group, largest * len(call.members), root)]
            planned[rank].setdefault(call.row, []).extend(nodes)
            taken += 1
    text = f"{unsplit} uneven all_to_all without recorded splits count as even, of the largest input"
    return planned, taken, [text] if unsplit else []


def _uneven(calls: Collection[Call]) -> bool:
    exchanges = [call for call in calls if call.kind == "all_to_all"]
    splits = [splits for call in exchanges for splits in (call.in_splits, call.out_splits)]
    sizes = {size for call in exchanges for size in (call.in_bytes, call.out_bytes) if size is not None}
    return any(len({*shares}) > 1 for shares in splits) or len(sizes) > 1


def _told(calls: Mapping[int, Call], parts: Mapping[int, list[int]]) -> bool:
    """Whether all members state their splits, or some do and they are consistent with even splits of the others."""
    stated = [bool(call.in_splits) for call in calls.values()]
    members = next(iter(calls.values())).members
    received = map(sum, zip(*(parts[rank] for rank in members), strict=True))
    return all(stated) or (any(stated) and [calls[rank].out_bytes for rank in members] == list(received))


def _message(kind: str, me: int, peer: int, size: int, tag: int) -> Communication:
    source, target = (me, peer) if kind == "send" else (peer, me)
    columns = {"comm_src": source, "comm_dst": target, "comm_size": size, "comm_tag": tag}
    return Communication(NodeType.COMM_SEND if kind == "send" else NodeType.COMM_RECV, columns)


def _collective(call: Call, group: str, size: int, root: int) -> Communication:
    columns = {"comm_type": COLLECTIVE_CODES[call.kind], "comm_size": size}
    return Communication(NodeType.COMM_COLL, columns | ({"comm_root": root} if call.kind in ROOTED else {}), group)


def _parts(
    rank: int, members: Sequence[int], parts: Mapping[int, list[int]], place: Mapping[int, int], tag: int
) -> Iterator[Communication]:
    """Messages of an uneven all_to_all, by what each rank says that it sends; nothing to itself."""
    position = members.index(rank)
    for peer, size in zip(members, parts[rank], strict=True):
        if peer != rank and size:
            yield _message("send", place[rank], place[peer], size, tag)
    for peer in members:
        if peer != rank and parts[peer][position]:
            yield _message("recv", place[rank], place[peer], parts[peer][position], tag)


# -- one rank for all -------------------------------------------------------------------------------------------------


def _check_replicable(ranks: Mapping[int, RankGraph]) -> None:
    source = next(iter(ranks.values())).graph.recording.source
    if len(ranks) > 1:
        raise TraceError(source, f"is one of {len(ranks)} recordings", "replicate one recording only")
    (only,) = ranks.values()
    messages = [call.kind for call in only.calls if call.kind in MESSAGES or _uneven([call])]
    if messages:
        problem = f"has {len(messages)} messages or uneven all_to_all, which differ between ranks"
        raise TraceError(source, problem, "record all ranks")


def _least_durations(met: Meeting, ranks: Mapping[int, RankGraph]) -> None:
    """Take the shortest of all calls of one kind, size and group as the time without waiting."""
    (only,) = ranks.values()

    def key(instance: Instance) -> tuple:
        call = only.calls[next(iter(instance.calls.values()))]
        return call.kind, call.nbytes, instance.group

    least: dict[tuple, int] = {}
    for instance in met.instances:
        least[key(instance)] = min(instance.moving_ns, least.get(key(instance), instance.moving_ns))
    for instance in met.instances:
        instance.moving_ns = least[key(instance)]


def _replicated(
    met: Meeting, world: int, copies: int, source: str
) -> tuple[dict[str, tuple[int, ...]], dict[str, list[str]]]:
    """Groups and roles of many ranks that all do the same: for each recorded group each has one like it, of as many
    ranks in equal distance. Calls name the roles from then on."""
    if copies * len(met.groups) > MAX_MEMBERS:
        problem = f"has {len(met.groups)} groups, too many for {copies} ranks"
        raise TraceError(source, problem, f"replicate to at most {MAX_MEMBERS // len(met.groups)} ranks")
    blocks: dict[str, tuple[int, int, dict[int, tuple]]] = {}
    for key, members in met.groups.items():
        size, stride = len(members), members[1] - members[0] if len(members) > 1 else 1
        if size == world:
            size, stride, members = copies, 1, tuple(range(copies))
        block = size * stride
        if (
            members != arithmetic(members[0], stride, size)
            or members[0] // block != members[-1] // block
            or copies % block
        ):
            problem = f"group {key} of ranks {', '.join(map(str, members[:8]))} cannot be repeated on {copies} ranks"
            raise TraceError(source, problem, "record all ranks, or replicate to a multiple of its ranks")
        firsts = (rank for rank in range(copies) if rank % block < stride)
        blocks[key] = block, stride, {first: (key, arithmetic(first, stride, size)) for first in firsts}
    names = numbered([group for _, _, alike in blocks.values() for group in alike.values()], copies)
    calls, roles = {}, {}
    for key, (block, stride, alike) in blocks.items():
        name_of = {first: names[group] for first, group in alike.items()}
        calls[key] = next(iter(name_of.values())) if len(name_of) == 1 else f"group {key}"
        if len(name_of) > 1:
            roles[calls[key]] = [name_of[rank // block * block + rank % stride] for rank in range(copies)]
    for instance in met.instances:
        instance.group = calls[instance.group]
    return {key: members for (_, members), key in names.items()}, roles
