"""An explained run for programs: what its text says, by keys with units."""

from collections.abc import Mapping, Sequence
from typing import Any

from astrasim_py.report.explain import Explanation
from astrasim_py.results.values import ns_number


def explanation_document(run: Explanation) -> dict[str, Any]:
    """The critical path by category and in order, exposed communication by collective, links, and advice.

    ``path`` has a row for each piece, from 0 to the makespan without gaps; null: of no rank, collective or link.
    """
    makespan = max(run.makespan, 1)
    return {
        "time_ns": ns_number(run.makespan),
        "categories": [
            {"category": category, "time_ns": ns_number(ps), "share": ps / makespan}
            for category, ps in run.totals.items()
        ],
        "communication": [
            {
                "instance": _known(call.instance),
                "name": call.name,
                "time_ns": ns_number(call.duration),
                "exposed_ns": ns_number(call.exposed),
                "rank": _known(call.rank),
                "on_path_ns": ns_number(call.on_path),
            }
            for call in run.exposures
        ],
        "links": [
            {
                "link": use["name"],
                "equal_links": use["alike"],
                "busy_ns": ns_number(use["busy"]),
                "share": use["busy"] / makespan,
                "bytes": use["bytes"],
                "messages": use["messages"],
                "queued_ns": ns_number(use["queued"]),
                "bandwidth_GBps": use["rate"] / 1e9 or None,
            }
            for use in run.links
        ],
        "path": [
            {
                "start_ns": ns_number(piece.start),
                "end_ns": ns_number(piece.end),
                "category": piece.category,
                "rank": _known(piece.rank),
                "instance": _known(piece.instance),
                "link": run.link_names.get(piece.link),
                "what": run.labels.get(piece.row),
            }
            for piece in run.path
        ],
        "job_paths": [
            {"job": job.job, "time_ns": ns_number(job.time), "categories_ns": _times(job.totals)} for job in run.jobs
        ],
        "advice": run.advice or None,
    }


def category_rows(runs: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Two runs: what each spent by category of its critical path."""
    a, b = runs
    return [
        {"category": name, "a_ns": ns_number(a.totals.get(name, 0)), "b_ns": ns_number(b.totals.get(name, 0))}
        for name in dict.fromkeys((*a.totals, *b.totals))
    ]


def _times(totals: Mapping[str, int]) -> dict[str, Any]:
    return {category: ns_number(ps) for category, ps in totals.items()}


def _known(number: int) -> int | None:
    return number if number >= 0 else None
