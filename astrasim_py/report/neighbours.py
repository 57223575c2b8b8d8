"""Several jobs on one network: the critical path of each, and the jobs that it shares its links with."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from astrasim_py.core.records import Records
from astrasim_py.core.units import format_time
from astrasim_py.report.critical_path import CriticalPath
from astrasim_py.report.intervals import covered, union
from astrasim_py.report.tables import text_table


class Part(NamedTuple):
    """A job of a run. `arrival`: ps."""

    job: str
    ranks: range
    arrival: int


@dataclass(frozen=True, slots=True)
class JobPath:
    """The critical path of one job, from its arrival to the last node that it completed.

    `shared`: another job, a link, and how long messages of that job were on the link while the path sent a message over
    it, or waited to, ps; of each job the link with the longest time, the longest first.
    """

    job: str
    time: int  # ps
    totals: Mapping[str, int]  # category → ps; they add up to the time
    shared: tuple[tuple[str, str, int], ...]


def bytes_by_job(records: Records, parts: Sequence[Part], link: int) -> dict[str, int]:
    """Bytes that each job sent over a link."""
    message = records.message
    sent = records.hop["message"][records.hop["link"] == link]
    job = _job_of(parts)[message["src"][sent]]
    total = np.bincount(job, weights=message["bytes"][sent], minlength=len(parts))
    return {part.job: int(count) for part, count in zip(parts, total, strict=True) if count}


def job_paths(
    walker: CriticalPath, records: Records, parts: Sequence[Part], names: Mapping[int, str]
) -> Iterator[JobPath]:
    """The critical path of each job. `names`: of links."""
    hop, jobs = records.hop, len(parts)
    begin, end = hop["start"], hop["end"]
    # Hops by link and job: those of key link·jobs + job are order[first:last].
    key = hop["link"] * jobs + _job_of(parts)[records.message["src"][hop["message"]]]
    order = np.argsort(key, kind="stable")
    key = key[order]
    by_message = np.argsort(hop["message"], kind="stable")
    first_hop = np.searchsorted(hop["message"][by_message], np.arange(records.message.height + 1))
    for number, part in enumerate(parts):
        path = [replace(p, start=max(p.start, part.arrival)) for p in walker.walk(part.ranks) if p.end > part.arrival]
        totals: dict[str, int] = {}
        on_link: dict[int, list[tuple[int, int]]] = {}
        for piece in path:
            totals[piece.category] = totals.get(piece.category, 0) + piece.end - piece.start
            if piece.category in ("queueing", "serialization", "sharing"):
                route = hop["link"][by_message[first_hop[piece.message] : first_hop[piece.message + 1]]]
                for link in route.tolist():
                    on_link.setdefault(link, []).append((piece.start, piece.end))
        longest: dict[int, tuple[int, int]] = {}
        for link in sorted(on_link):
            busy = union(*np.array(on_link[link]).T)
            for neighbour in range(jobs):
                rows = order[slice(*np.searchsorted(key, (link * jobs + neighbour, link * jobs + neighbour + 1)))]
                occupied = union(begin[rows], end[rows])
                ps = int((covered(*occupied, busy[1]) - covered(*occupied, busy[0])).sum())
                if neighbour != number and ps > longest.get(neighbour, (0, -1))[0]:
                    longest[neighbour] = ps, link
        ordered = sorted(longest.items(), key=lambda item: (-item[1][0], item[0]))
        shared = tuple((parts[neighbour].job, names.get(link, f"link {link}"), ps) for neighbour, (ps, link) in ordered)
        yield JobPath(part.job, sum(totals.values()), totals, shared)


def _job_of(parts: Sequence[Part]) -> np.ndarray:
    return np.repeat(np.arange(len(parts)), [len(part.ranks) for part in parts])


def job_paths_text(paths: Sequence[JobPath]) -> str:
    """The paths of jobs as plain text."""
    rows = []
    for path in paths:
        parts = sorted(path.totals.items(), key=lambda item: -item[1])
        spent = ", ".join(f"{category} {format_time(ps)}" for category, ps in parts)
        shared = ", ".join(f"with {job} on {link} for {format_time(ps)}" for job, link, ps in path.shared[:3])
        rest = f", and {len(path.shared) - 3} more jobs" if path.shared[3:] else ""
        rows.append([path.job, format_time(path.time), spent, shared + rest])
    return text_table(["job", "time", "its critical path", "which shares links"], rows, [False, True, False, False])
