"""Draw the figures of a finished scenario again; of points that are chosen, of each its links and a Gantt chart.

results plot ring_vs_torus
results plot ring_vs_torus@topology=torus_2d,size="1 MiB",model=cut_through,placement=linear
"""

import argparse

from astrasim_py.cli.names import NAME, NAME_HELP, point_names
from astrasim_py.cli.options import add, complain, format_option
from astrasim_py.cli.output import printed


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar=NAME, help=NAME_HELP)
    add(parser, "--out")
    format_option(parser)


#: Options may stand between names.
MIXED = True


def run(args: argparse.Namespace) -> int:
    from astrasim_py.inspection.point_choice import folders_named
    from astrasim_py.inspection.stored_results import plot_folder

    files: list[str] = []
    for name in point_names(args.names, args.out):
        for folder in folders_named(name, args.out):
            drawing = plot_folder(folder)
            complain(drawing.notes)
            files += map(str, drawing.figures)
    if not printed(args.format, {"files": files}, [{"file": file} for file in files]):
        print("\n".join(files))
    return 0
