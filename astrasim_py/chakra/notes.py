"""Notes of the reader of workloads: what files say and a workload does not use, one line each."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from astrasim_py.chakra import control
from astrasim_py.chakra.attributes import unknown
from astrasim_py.chakra.groups import OTHER_NAMES, called_otherwise
from astrasim_py.chakra.lint_rules import counts_elements
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import kind_of
from astrasim_py.core.notes import Notes

#: Names that a line lists.
_MOST_NAMES = 8


@dataclass(frozen=True)
class Reading:
    """Traces as they are in files and as they are run, and as what they were read.

    `members`: ranks of each group, none for all. The rest: see `astrasim_py.chakra.workload.read_workload`.
    """

    traces: Sequence[ExecutionTrace]
    made: Sequence[ExecutionTrace]
    members: Mapping[str, Sequence[int]]
    groups: str | os.PathLike | Mapping | None
    size_unit: str
    macs: bool
    dependencies: str | None
    place: str

    @cached_property
    def ranks_of(self) -> Counter[ExecutionTrace]:
        """The files, each once, and how many ranks have it."""
        return Counter(self.traces)


def notes_of(read: Reading) -> Notes:
    """Lines about a workload that was read."""
    traces = list(dict.fromkeys(read.made))
    from astrasim_py.chakra.lint import doubts

    notes = Notes([*_units(read), *_durations(traces)])
    # Without the bytes of files, of which only hints are.
    bare = {trace: trace.without_raw() for trace in traces}
    findings = doubts([bare[trace] for trace in read.made])
    notes.warnings += [f"{finding.place}: {finding.message} (see trace lint)" for finding in findings]
    if read.dependencies is None:
        if kind_of(read.traces) == "data":
            if unused_edges := control.unused(read.traces):
                notes.warnings.append(": ".join(unused_edges))
        else:
            notes.hints.append(f"{read.place}: {control.TAKEN}")
    _groups(read, notes)
    extra = [f"{name} on {count} nodes" for name, count in unknown(read.ranks_of, OTHER_NAMES).items()]
    if extra:
        notes.hints.append(f"{read.place}: attributes that are not used: {_listed(extra)}")
    return notes


def _units(read: Reading) -> Iterator[str]:
    """Sizes and operations that are counted in other units than those said."""
    counted = next(filter(counts_elements, read.ranks_of), None)
    if counted is None:
        return
    missing = ["size_unit: elements and dtype_bytes: 2"] if read.size_unit == "bytes" else []
    missing += ["macs: true"] if not read.macs and any(map(_untimed, read.ranks_of)) else []
    if missing:
        counts = "counts elements, not bytes, and multiply-accumulates, not operations"
        yield f"{counted.place}: its producer {counts}; write {', '.join(missing)} beside trace"


def _untimed(trace: ExecutionTrace) -> bool:
    """Whether operations, and not durations, say what a compute node costs."""
    timed = (trace.duration_micros > 0) | (trace.column("duration_ps") != MISSING)
    return bool(((trace.type == NodeType.COMP) & (trace.column("num_ops") > 0) & ~timed).any())


def _durations(traces: Sequence[ExecutionTrace]) -> Iterator[str]:
    """Compute nodes of which none has a duration, or counted operations; not of nodes that hold no slot."""
    computing = [trace for trace in traces if ((trace.type == NodeType.COMP) & (trace.column("slot_kind") != 0)).any()]
    stated = ("duration_ps", "num_ops")
    if computing and not any(
        trace.duration_micros.any() or any((trace.column(name) > 0).any() for name in stated if trace.has_column(name))
        for trace in computing
    ):
        yield f"{traces[0].place}: no compute node has a duration: all compute takes no time"


def _groups(read: Reading, notes: Notes) -> None:
    """Groups that no node names, and names without groups."""
    if text_of_names := other_names(read.traces, read.made):
        why_not, advice = "and no group has members", "write groups: FILE.json beside trace"
        if read.members:
            why_not, advice = "which is not the name of one that has members", "write pg_name"
        notes.warnings.append(f"{text_of_names}, {why_not}: they are of all ranks; {advice}")
    place = os.fspath(read.groups) if isinstance(read.groups, (str, os.PathLike)) else read.place
    if read.members.get("0") and list(read.members["0"]) != list(range(len(read.made))):
        text = f'group "0" is all {len(read.made)} ranks in order, and its list of ranks is not used'
        notes.warnings.append(f"{place}: {text}; give the group another name")
    if read.groups is None:
        return
    large = [name for name, ranks in read.members.items() if len(ranks or read.made) > 1 and name != "0"]
    unused = unnamed(read.made, large)
    place = "groups" if isinstance(read.groups, Mapping) else place
    if large and len(unused) == len(large):
        text = "none of its groups is named by a collective, by pg_name or comm_group"
        notes.warnings.append(f"{place}: {text}; drop the groups, or name them")
    elif unused:
        verb = "is" if len(unused) == 1 else "are"
        notes.hints.append(f"{place}: {len(unused)} of its {len(read.members)} groups {verb} unused: {_listed(unused)}")


def other_names(traces: Sequence[ExecutionTrace], made: Sequence[ExecutionTrace]) -> str:
    """Place and number of the collectives that name a group by `OTHER_NAMES` and have none as `made`; empty if none do.

    `traces`, `made`: by rank, as they are in files and as they are run.
    """
    count, first, by = 0, "", ""
    for (trace, run), ranks in Counter(zip(traces, made, strict=True)).items():
        codes, names = run.group_of()
        for row, attribute, group in called_otherwise(trace):
            if group not in ("", "0") and not (codes[row] >= 0 and names[codes[row]]):
                first = first or f"{trace.place}: node {int(trace.node_id[row])}"
                count, by = count + ranks, by or attribute
    subject = "the collective names its group" if count == 1 else f"{count} collectives name their groups"
    return f"{first}: {subject} by {by}" if count else ""


def unnamed(traces: Sequence[ExecutionTrace], groups: Sequence[str]) -> list[str]:
    """Those of the groups that no collective names by ``pg_name``."""
    used: set[str] = set()
    for trace in dict.fromkeys(traces):
        codes, names = trace.group_of()
        used.update(names[code] for code in np.unique(codes[trace.type == NodeType.COMM_COLL]).tolist() if code >= 0)
    return [name for name in groups if name not in used]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(islice(names, _MOST_NAMES)) + (", …" if len(names) > _MOST_NAMES else "")
