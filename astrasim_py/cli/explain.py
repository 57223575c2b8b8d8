"""Say where the time of a finished point went: the critical path across ranks, exposed communication by collective, the
busiest links, and what would save most. Of two points: what differs.

  explain ring_vs_torus@size="1 MiB",model=cut_through,placement=linear,topology=torus_2d
  explain ring_vs_torus@size="1 MiB",model=cut_through,placement=linear,topology=ring @topology=torus_2d
"""

import argparse
from typing import TYPE_CHECKING, Any

from astrasim_py.cli.names import NAME, NAME_HELP, point_names
from astrasim_py.cli.options import add, check_positive, complain, engines_text, format_option, trainings_text
from astrasim_py.cli.output import printed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from astrasim_py.inspection.explained import Explained

#: Options may stand between names and values.
MIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar=NAME,
        help=f"{NAME_HELP}. Two: what differs; @… alone is of the name before it, with its other values",
    )
    parser.add_argument(
        "--worst",
        action="store_true",
        help="the point farthest from its bound; without bounds the slowest, of stuck ones the first",
    )
    add(parser, "--out")
    parser.add_argument("--lines", type=int, default=None, metavar="N", help="rows of each table")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.inspection.explained import difference_of, explain_chosen
    from astrasim_py.report.difference import difference_text
    from astrasim_py.report.explain import explanation_text
    from astrasim_py.report.jobs import jobs_text
    from astrasim_py.report.tables import time_text

    check_positive(args, "lines")
    names = point_names(args.names, args.out)
    explained = explain_chosen(names, args.out, worst=args.worst)
    for explanation in explained:
        complain(explanation.notes)
    if args.format != "text":
        _print_for_programs(args.format, explained)
        return 0
    if len(explained) == 2:
        print(engines_text([explanation.point.manifest.engine or None for explanation in explained]), end="")
        print(difference_text(difference_of(*explained)))
        return 0
    (point,) = explained
    options = {} if args.lines is None else {"lines": args.lines}
    manifest = point.point.manifest
    print(f"{manifest.scenario}: {manifest.point}")
    if manifest.repeat > 1:
        print("seeds: " + ", ".join(f"{key} {seed}" for key, seed in manifest.seeds.items()))
    print(engines_text([manifest.engine or None]), end="")
    print(trainings_text([point.point.row]), end="")
    if jobs := [point.point.row.of_job(job) for job in point.point.summary.jobs]:
        print(f"\n{jobs_text(jobs)}\n")
    if point.bound_by:
        print(f"bound {time_text(point.point.row.bound_ns)} by {point.bound_by}")
    print(explanation_text(point.explanation, **options))
    return 0


def _print_for_programs(form: str, explained: "Sequence[Explained]") -> None:
    """One object; of two points an object of both. Rows of CSV and Markdown: the critical path by category."""
    from astrasim_py.report.explain_document import category_rows, explanation_document

    documents: list[dict[str, Any]] = [
        {"scenario": manifest.scenario, "point": manifest.point, "engine": manifest.engine or None}
        | {"seeds": dict(manifest.seeds) if manifest.repeat > 1 else {}, **explanation_document(one.explanation)}
        | {"bound_ns": one.point.row.bound_ns, "bound_by": one.bound_by or None}
        | {"trainings": list(one.point.row.trainings)}
        | {"jobs": [one.point.row.of_job(job) for job in one.point.summary.jobs]}
        for one in explained
        for manifest in [one.point.manifest]
    ]
    if len(documents) == 1:
        printed(form, documents[0], documents[0]["categories"])
    else:
        printed(form, dict(zip("ab", documents, strict=True)), category_rows([one.explanation for one in explained]))
