"""Say where the time of a finished point went: the critical path across ranks, exposed communication by
collective, the busiest links.
"""

import argparse

from astrasim_py.cli.options import check_positive, complain, engines_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder of a point: results/SCENARIO/points/NUMBER-LABEL")
    parser.add_argument("--lines", type=int, default=None, metavar="N", help="rows of each table")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.report.explain import explanation_text
    from astrasim_py.report.jobs import jobs_text
    from astrasim_py.study.explain_and_plot import explain_folder

    check_positive(args, "lines")
    explained = explain_folder(args.folder)
    complain(explained.notes)
    more = {} if args.lines is None else {"lines": args.lines}
    print(f"{explained.point.manifest['scenario']}: {explained.point.manifest['point']}")
    if "repeat" in explained.point.manifest:
        print("seeds: " + ", ".join(f"{key} {seed}" for key, seed in explained.point.manifest["seeds"].items()))
    print(engines_text([explained.point.manifest.get("engine") or None]), end="")
    if explained.point.summary.get("jobs"):
        print(f"\n{jobs_text(explained.point.summary['jobs'])}\n")
    print(explanation_text(explained.explanation, **more))
    return 0
