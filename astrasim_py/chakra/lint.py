"""Lint: errors and unwise things in files of traces, and in sets of files.

A bad file raises nothing here: damage becomes a finding, and lint goes on with the other files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from astrasim_py.chakra.decode import IllTypedAttribute, damaged_nodes
from astrasim_py.chakra.et_io import find_prefix, parse_trace, read_bytes, read_traces, set_files
from astrasim_py.chakra.framing import frame
from astrasim_py.chakra.lint_ranks import check_collectives, check_messages
from astrasim_py.chakra.lint_rules import Finding, lint_trace
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload_io import groups_from_json
from astrasim_py.core.errors import TraceError

#: Damaged nodes of one file that are listed.
_MAX_DAMAGED = 20


def lint(traces: Sequence[ExecutionTrace | None], groups: Mapping[str, Sequence[int]] | None = None) -> list[Finding]:
    """Check the traces of all ranks, each by itself and against one another.

    `traces`: index is the rank; None for an unreadable one, which no finding concerns. `groups`: communicator groups;
    by default those that METADATA nodes declare.
    """
    found: list[Finding] = []
    ranks_of: dict[ExecutionTrace, list[int]] = {}
    for rank, trace in enumerate(traces):
        if trace is not None:
            ranks_of.setdefault(trace, []).append(rank)
    for trace, ranks in ranks_of.items():
        found.extend(lint_trace(trace, ranks[0] if len(ranks) == 1 else None))
    found = _merged(found)
    if ranks_of:
        found.extend(check_messages(traces))
        found.extend(check_collectives(traces, groups))
    return found


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """Hints that many files share become one, at the first of them; errors stay apart."""
    alike: dict[tuple, list[Finding]] = {}
    for number, finding in enumerate(found):
        key = number if finding.severity == "error" else finding.message
        alike.setdefault((finding.severity, finding.rule, key), []).append(finding)
    out = []
    for first, *others in alike.values():
        more = f" (and {len(others)} more files)" if others else ""
        out.append(Finding(first.severity, first.rule, first.place, first.message + more))
    return out


def lint_file(path: str | os.PathLike, rank: int | None = None) -> tuple[ExecutionTrace | None, list[Finding]]:
    """Read one file; returns its trace, None if it is unusable, and findings about the file.

    `lint_trace` checks the trace itself.
    """
    place = os.fspath(path)
    try:
        data = read_bytes(place)
        raw, _ = frame(data, place)
    except TraceError as error:
        return None, [_from_error(error, "framing" if ": byte " in error.place else "unreadable", place)]
    try:
        return parse_trace(data, place, rank), []
    except TraceError as error:
        errors = damaged_nodes(raw, place, _MAX_DAMAGED)
        if not errors:
            return None, [_from_error(error, "duplicate-id", place)]
    return None, [
        _from_error(e, "ill-typed-attribute" if isinstance(e, IllTypedAttribute) else "damaged", place) for e in errors
    ]


def _from_error(error: TraceError, rule: str, place: str) -> Finding:
    text = f"{error.problem}; {error.remedy}" if error.remedy else error.problem
    return Finding("error", rule, error.place or place, " ".join(text.split()))


def lint_prefix(
    prefix: str | os.PathLike, groups: str | os.PathLike | Mapping[str, Sequence[int]] | None = None
) -> list[Finding]:
    """Check a set `PREFIX.<rank>.et` (or `.et.gz`).

    `groups`: communicator groups, or a JSON file of them. Returns bad files become findings; nothing is raised for
    them.
    """
    place = os.fspath(prefix)
    found: list[Finding] = []
    if groups is not None and not isinstance(groups, Mapping):
        try:
            groups = groups_from_json(groups)
        except TraceError as error:
            found.append(_from_error(error, "bad-group", place))
            groups = None
    paths: dict[int, str] = {}
    try:
        paths = {rank: os.fspath(path) for rank, path in enumerate(find_prefix(place))}
    except TraceError as error:
        found.append(_from_error(error, "missing-rank", place))
        paths = _present(place)
    traces: list[ExecutionTrace | None] = [None] * (max(paths, default=-1) + 1)
    try:
        for rank, trace in zip(paths, read_traces(paths.values(), list(paths)), strict=True):
            traces[rank] = trace
    except TraceError:
        shared: dict[bytes, ExecutionTrace] = {}
        for rank, path in paths.items():
            trace, wrong = lint_file(path, rank)
            found.extend(wrong)
            traces[rank] = shared.setdefault(trace.raw.data, trace) if trace is not None else None
    return found + lint(traces, groups)


def _present(place: str) -> dict[int, str]:
    """Files of an incomplete set, by rank; of a rank that is there twice the first."""
    try:
        present = set_files(place)
    except (OSError, ValueError):
        return {}
    return {rank: os.path.join(os.path.dirname(place), names[0]) for rank, names in present.items() if rank < 2**20}
