"""Draw the figures of a finished scenario again; of the folder of one point, its links and a Gantt chart."""

import argparse

from astrasim_py.cli.options import complain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results/SCENARIO, or the folder of a point in it")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.inspection.stored_results import plot_folder

    drawing = plot_folder(args.folder)
    complain(drawing.notes)
    for path in drawing.figures:
        print(path)
    return 0
