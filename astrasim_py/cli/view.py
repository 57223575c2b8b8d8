"""Write a page that plays a finished point: the network, the messages, the Gantt chart, the chunks.

The page is one HTML file with its data inside. It needs nothing from outside and can be sent to others.
"""

import argparse
import webbrowser
from pathlib import Path

from astrasim_py.cli.options import complain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results/SCENARIO, or the folder of a point in it")
    parser.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="KEY=VALUE,…",
        help='the point, e.g. "size=1 MiB,topology=ring"; twice: two points side by side, with one clock',
    )
    parser.add_argument("--out", default="page.html", metavar="FILE", help="the page; page.html by default")
    parser.add_argument("--open", action="store_true", help="open it in a browser")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.core.files import write_file
    from astrasim_py.study.view import view_page

    notes: list[str] = []
    page = view_page(args.folder, args.point, notes)
    complain(notes)
    path = write_file(args.out, page, make_folder=True)
    print(path)
    if args.open:
        webbrowser.open(Path(path).resolve().as_uri())
    return 0
