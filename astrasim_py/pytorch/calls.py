"""The communications of one rank, each combined from all records of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from astrasim_py.core.errors import UsageError
from astrasim_py.pytorch.facts import KINDS, MESSAGES, ROOTED, facts_of_args, kernel_kind, merged
from astrasim_py.pytorch.groups import Communicator, GroupTable
from astrasim_py.pytorch.pairing import pair
from astrasim_py.pytorch.recording import Category, Recording
from astrasim_py.pytorch.statements import NodeOf, ranges_around, sources_of


@dataclass(frozen=True)
class Call:
    """A communication of one rank."""

    row: int  # of the device operation, or of the backend's span, in the recording
    issued: int  # place in the order of issue of this rank
    kind: str  # one of `KINDS`
    in_bytes: int | None  # input and output of this rank; None where the recording does not say
    out_bytes: int | None
    group: Communicator
    peer: int | None = None  # global rank that a message goes to or comes from
    tag: int | None = None  # as recorded
    in_splits: tuple[int, ...] = ()  # shares of the input that go to each member; empty: equal shares
    out_splits: tuple[int, ...] = ()  # of the output that come from each
    root: int = 0  # place in the group
    seq: int | None = None  # number of the call in its group, as recorded

    @property
    def nbytes(self) -> int | None:
        """Bytes as Chakra counts them: the shard of an all_gather, of other collectives the full buffer."""
        members = len(self.members)
        if self.kind in ("gather", "scatter"):
            nbytes = self.in_bytes if self.kind == "gather" else self.out_bytes
            return nbytes * members if nbytes is not None and members else self.in_bytes
        if self.kind == "barrier":
            return 0
        if self.in_bytes is None and self.out_bytes is not None and members:
            scale = {"all_gather": (1, members), "reduce_scatter": (members, 1)}.get(self.kind, (1, 1))
            return self.out_bytes * scale[0] // scale[1]
        return self.in_bytes

    @property
    def size(self) -> int:
        """The same, 0 where the recording does not say."""
        return self.nbytes or 0

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of its group; empty where the recording does not say."""
        return self.group.members or ()

    def parts(self) -> list[int]:
        """Bytes of each member's part of the input."""
        shares = self.in_splits or (1,) * len(self.group.members or (1,))
        return [self.size * share // max(sum(shares), 1) for share in shares]

    def missing(self) -> list[str]:
        """Missing facts of the recording, in words."""
        lacks = [] if self.nbytes is not None else ["bytes"]
        lacks += [] if self.group.members else ["group"]
        return lacks + (["peer"] if self.kind in MESSAGES and self.peer is None else [])


def call_of(row: int, issued: int, facts: Mapping, table: GroupTable) -> Call | None:
    """The call of a row that facts describe; None where its kind is unknown."""
    kind = facts.get("kind") or facts.get("span")
    if not kind:
        return None
    group = table.find(facts)
    members = group.members or ()
    peer = facts.get("target" if kind == "send" else "source") if kind in MESSAGES else None
    if peer is None and kind in MESSAGES and isinstance(facts.get("peer"), int) and facts["peer"] < len(members):
        peer = members[facts["peer"]]
    call = Call(
        row,
        issued,
        kind,
        facts.get("in_bytes"),
        facts.get("out_bytes"),
        group,
        peer if peer is None or peer >= 0 else None,
        facts.get("tag") if kind in MESSAGES else None,
        facts.get("in_splits", ()),
        facts.get("out_splits", ()),
        _place_of_root(facts.get("root", 0), members) if kind in ROOTED else 0,
        facts.get("seq"),
    )
    fits = all(len(splits) in (0, len(members)) for splits in (call.in_splits, call.out_splits))
    return call if fits and kind == "all_to_all" else replace(call, in_splits=(), out_splits=())


def _place_of_root(root: int, members: Sequence[int]) -> int:
    """Place of a root in its group; some name its global rank."""
    return root if 0 <= root < len(members) else members.index(root) if root in members else 0


def kernel_rules(texts: Sequence[str]) -> list[tuple[re.Pattern, str, str]]:
    """`REGEX=KIND:GROUP` of ``--map-kernel``, taken apart.

    Raises UsageError: not of this form, a bad regular expression, or an unknown kind.
    """
    rules = []
    for text in texts:
        pattern, equals, rest = text.rpartition("=")
        kind, _, group = rest.partition(":")
        if not equals or not pattern or kind not in KINDS or kind in MESSAGES:
            known = ", ".join(kind for kind in KINDS if kind not in MESSAGES)
            raise UsageError("--map-kernel", f"{text!r} is not REGEX=KIND:GROUP", f"KIND is one of {known}")
        try:
            rules.append((re.compile(pattern), kind, group))
        except re.error as error:
            raise UsageError("--map-kernel", f"{pattern!r} is no regular expression: {error}", "fix it") from None
    return rules


class DeviceCalls(NamedTuple):
    """Communications that ran on the device, in order of issue; rows of kernels whose kind is unknown; notes on calls
    without a kernel and on kernels without a call."""

    calls: list[Call]
    unknown: list[int]
    notes: list[str]


def device_calls(
    recording: Recording, table: GroupTable, node_of: NodeOf, rules: Sequence[tuple[re.Pattern, str, str]] = ()
) -> DeviceCalls:
    """The communications of the device: kernels that a rule, their arguments, their names, or a call of the host say.

    A kernel that several calls share is each of them. `rules`: from `kernel_rules`.
    """
    events = recording.events
    kernels: dict[int, tuple[dict, str]] = {}
    kinds = [
        next(((kind, group) for rule, kind, group in rules if rule.search(name)), None) for name in recording.names
    ]
    by_name = [kernel_kind(name) for name in recording.names]
    for row in recording.work[events.category[recording.work] == Category.KERNEL].tolist():
        code = int(events.name[row])
        args = events.args.get(row, {})
        if (ruled := kinds[code]) is not None:
            kind, group = ruled
            kernels[row] = {"kind": kind, **({"group": group} if group else {})}, ""
        elif by_name[code] is not None or "Collective name" in args:
            # The kernel of a batch of messages has the name of an all_to_all.
            last = by_name[code] if by_name[code] != "all_to_all" or "Collective name" not in args else ""
            kernels[row] = facts_of_args(args), last or ""
    paired = pair(recording, node_of, {*kernels})
    kernels = {row: ({}, "") for row in paired.of} | kernels
    launches = {row: int(events.launch[row]) for row in kernels}
    points = [launch if launch >= 0 else row for row, launch in launches.items()]
    chains = dict(zip(kernels, ranges_around(recording, points, events.start[points].tolist()), strict=True))
    calls, unknown = [], []
    order = sorted(kernels, key=lambda row: (events.correlation[row], events.start[row], row))
    for issued, row in enumerate(order):
        facts, last = kernels[row]
        sets = [paired.said[number].facts for number in paired.of.get(row, ())]
        if len(sets) > 1:
            combined = [merged([stated, {"group": facts.get("group", "")}]) for stated in sets]
        else:
            chain = chains[row] if launches[row] >= 0 else []
            combined = [merged([facts, *sets, *sources_of(recording, chain, node_of), {"kind": last} if last else {}])]
        new_calls = [call_of(row, issued, fact_set, table) for fact_set in combined]
        calls += [call for call in new_calls if call is not None]
        if None in new_calls:
            unknown.append(row)
    return DeviceCalls(calls, unknown, list(paired.notes))
