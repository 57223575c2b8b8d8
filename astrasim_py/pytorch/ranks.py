"""Matching of calls of several ranks: which belong together, how long they move data, and the differences of clocks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from astrasim_py.pytorch.calls import Call
from astrasim_py.pytorch.facts import MESSAGES
from astrasim_py.pytorch.groups import numbered

#: Clocks of ranks that are further apart are shifted, ns.
CLOCK_NS = 20_000


@dataclass(frozen=True)
class RankCalls:
    """The calls of one rank. `start`, `end`: absolute ns of each; `device`: they are kernels, which end together."""

    rank: int
    calls: Sequence[Call]
    start: Sequence[int]
    end: Sequence[int]
    device: bool = True


@dataclass
class Instance:
    """Calls of several ranks that meet: a collective of a group, or a send and its receive."""

    kind: str  # of the collective, or ``"message"``; empty where the members do not agree
    group: str  # decimal name; empty for a message
    calls: dict[int, int]  # place of the call among those of each rank
    lacks: tuple[int, ...] = ()  # ranks that should have called, too
    moving_ns: int = 0  # without waiting for the last one to come
    tag: int = 0  # of a message


@dataclass
class Meeting:
    """Result of `meet`. `problems`: why the result is not to be trusted; `notes`: what to know of it."""

    instances: list[Instance] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shifts: dict[int, int] = field(default_factory=dict)  # ns to add to a rank's times
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def meet(ranks: Sequence[RankCalls], world: int) -> Meeting:
    """Match the k-th call of a group on every member, and the k-th message from one rank to another with a tag.

    `ranks`: distinct ones below `world`; calls in order of issue.
    """
    by_rank = {calls_of.rank: calls_of for calls_of in ranks}
    meeting = Meeting()
    names, keys = _named(ranks, world)
    meeting.groups = {name: members for (_, members), name in names.items()}
    sequences: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    ends: dict[tuple, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: {"send": [], "recv": []})
    for calls_of in ranks:
        strange = 0
        for place, call in enumerate(calls_of.calls):
            if call.kind in MESSAGES and call.peer is not None:
                pair = (calls_of.rank, call.peer) if call.kind == "send" else (call.peer, calls_of.rank)
                ends[(*pair, call.tag)][call.kind].append((calls_of.rank, place))
            elif call.kind not in MESSAGES and calls_of.rank in (call.group.members or ()):
                sequences[names[keys[calls_of.rank, place]]][calls_of.rank].append(place)
            else:
                strange += bool(call.group.members)
        if strange:
            meeting.problems.append(f"rank {calls_of.rank} is not in the groups of {strange} of its calls")
    for group, places in sequences.items():
        _match_collectives(group, meeting.groups[group], places, by_rank, meeting)
    _match_messages(ends, by_rank, meeting)
    _clocks(by_rank, meeting)
    for instance in meeting.instances:
        instance.moving_ns = _moving(instance, by_rank, meeting.shifts)
    return meeting


def _named(ranks: Sequence[RankCalls], world: int) -> tuple[dict, dict]:
    """Decimal names of groups, and the group of each collective, as recorded name and members, by rank and place.

    Ranks may know different names, or none, of a group: where each calls only one group of these members, it is one.
    """
    labels: dict[tuple[int, ...], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for rank_calls in ranks:
        for call in rank_calls.calls:
            if call.kind not in MESSAGES and call.group.members:
                known = labels[call.group.members][rank_calls.rank]
                if call.group.name not in known:
                    known.append(call.group.name)
    keys = {}
    for rank_calls in ranks:
        for place, call in enumerate(rank_calls.calls):
            if call.kind in MESSAGES or not call.group.members:
                continue
            members, name = call.group.members, call.group.name
            by_rank = labels[members]
            first = by_rank[min(by_rank)]
            if name.startswith("pointer ") or all(len(of_rank) == 1 for of_rank in by_rank.values()):
                position = by_rank[rank_calls.rank].index(name)
                name = first[position] if position < len(first) else name
            keys[rank_calls.rank, place] = (name, members)
    return numbered(keys.values(), world), keys


def _match_collectives(
    group: str,
    members: tuple[int, ...],
    places: Mapping[int, list[int]],
    by_rank: Mapping[int, RankCalls],
    meeting: Meeting,
) -> None:
    numbers = {rank: _numbers(by_rank[rank], rank_places) for rank, rank_places in places.items()}
    if not all(numbers.values()):
        numbers = {rank: list(range(len(rank_places))) for rank, rank_places in places.items()}
    instances: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, rank_places in places.items():
        for number, place in zip(numbers[rank], rank_places, strict=True):
            instances[number][rank] = place
    agreed = True
    for number, calls in sorted(instances.items()):
        texts = {rank: _text(by_rank[rank].calls[place]) for rank, place in sorted(calls.items())}
        first, other = next(iter(texts)), next((rank for rank in texts if texts[rank] != texts[min(texts)]), None)
        if agreed and other is not None:
            text = f"{texts[first]} on rank {first} but {texts[other]} on rank {other}"
            meeting.problems.append(f"call {number} of group {group} is {text}")
        agreed &= other is None
        lacks = tuple(rank for rank in members if rank not in calls)
        kind = by_rank[first].calls[calls[first]].kind if other is None else ""
        meeting.instances.append(Instance(kind, group, dict(sorted(calls.items())), lacks))
    absent = [[r for r in i.lacks if r in by_rank] for i in meeting.instances if i.group == group]
    absent_ranks = sorted({rank for ranks in absent for rank in ranks})
    if absent_ranks:
        text = (
            f"{sum(map(bool, absent))} of {len(absent)} calls of group {group} lack members that were recorded: ranks"
        )
        meeting.problems.append(f"{text} {_ranks(absent_ranks)}")


def _numbers(calls: RankCalls, places: list[int]) -> list[int]:
    """Recorded numbers of calls; empty unless each has one of its own."""
    numbers = [seq for place in places if (seq := calls.calls[place].seq) is not None]
    return numbers if len(set(numbers)) == len(places) else []


def _text(call: Call) -> str:
    """Values that must be equal on all members."""
    free = call.kind in ("all_to_all", "barrier") or call.nbytes is None
    return call.kind if free else f"{call.kind} of {call.nbytes} bytes"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")


def _match_messages(ends: Mapping[tuple, dict], by_rank: Mapping[int, RankCalls], meeting: Meeting) -> None:
    counts: dict[tuple[int, int], int] = defaultdict(int)
    left = 0
    for (source, target, tag), sides in sorted(ends.items(), key=str):
        for place in range(max(len(sides["send"]), len(sides["recv"]))):
            pair = {kind: side[place] for kind, side in sides.items() if place < len(side)}
            lacks = tuple(rank for kind, rank in (("send", source), ("recv", target)) if kind not in pair)
            left += any(rank in by_rank for rank in lacks)
            number = counts[source, target]
            counts[source, target] += 1
            sizes = {by_rank[rank].calls[index].in_bytes for rank, index in pair.values()}
            kind = "message" if len(sizes) == 1 else ""
            instance = Instance(kind, "", dict(pair.values()), lacks, tag=number if tag is None else tag)
            meeting.instances.append(instance)
            if not kind:
                text = f"message {place} from rank {source} to rank {target} has {max(sizes)} bytes on one side"
                meeting.problems.append(f"{text} and {min(sizes)} on the other")
    if left:
        meeting.problems.append(f"{left} messages lack their other side, which was recorded")


def _clocks(by_rank: Mapping[int, RankCalls], meeting: Meeting) -> None:
    """Shift ranks to the clock of the first, by the median difference of the ends of common calls.

    The kernels of a collective end together. Spans of the host end together only roughly: they are shifted only where
    one rank ends before another one begins.
    """
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    impossible = set()
    for instance in meeting.instances:
        (a, index), *others = instance.calls.items()
        if instance.kind == "message" and not by_rank[a].device:
            continue  # a send of the host may end long after its receive
        for b, place in others:
            apart = by_rank[a].end[index] - by_rank[b].end[place]
            differences[a, b].append(apart)
            differences[b, a].append(-apart)
            for x, i, y, j in ((a, index, b, place), (b, place, a, index)):
                if by_rank[x].end[i] < by_rank[y].start[j]:
                    impossible |= {(a, b), (b, a)}
    shifts: dict[int, int] = {}
    for root in sorted(by_rank):
        reached = [root] if root not in shifts else []
        shifts.setdefault(root, 0)
        for a in reached:
            for b in sorted(by_rank):
                if b in shifts or (a, b) not in differences:
                    continue
                apart = int(median(differences[a, b]))
                needed = abs(apart) > CLOCK_NS and (by_rank[a].device or (a, b) in impossible)
                shifts[b] = shifts[a] + (apart if needed else 0)
                reached.append(b)
    meeting.shifts = shifts
    moved = {rank: shift for rank, shift in shifts.items() if shift}
    if moved:
        far = max(moved, key=lambda rank: abs(moved[rank]))
        meeting.notes.append(f"clocks of {len(moved)} ranks were shifted, of rank {far} by {moved[far] / 1000:.3f} µs")


def _moving(instance: Instance, by_rank: Mapping[int, RankCalls], shifts: Mapping[int, int]) -> int:
    spans = [
        (by_rank[r].start[place] + shifts[r], by_rank[r].end[place] + shifts[r], by_rank[r].calls[place].kind)
        for r, place in instance.calls.items()
    ]
    if instance.kind != "message" or len(spans) == 1:
        return min(end - start for start, end, _ in spans)
    later = max(start for start, _, _ in spans)
    return max(0, next(end for _, end, kind in spans if kind == "recv") - later)
