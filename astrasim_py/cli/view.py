"""Write a page that plays a finished point: the network, the messages, the Gantt chart, the chunks.

The page is one HTML file with its data inside. It needs nothing from outside and can be sent to others. With --serve it
is shown by this program instead, and sizes, algorithms, links and ranks can be changed in it; nothing is written.
"""

import argparse
import sys
import webbrowser
from pathlib import Path

from astrasim_py.cli.options import complain


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="results/SCENARIO, the scenario, or the folder of a point")
    parser.add_argument(
        "--point",
        action="append",
        default=[],
        metavar="KEY=VALUE,…",
        help='the point, e.g. "size=1 MiB,topology=ring"; twice: two points side by side, with one clock',
    )
    parser.add_argument("--out", metavar="FILE", help="the page; page.html by default")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.add_argument(
        "--serve", action="store_true", help="show the page over a live engine, on this machine only, until Ctrl-C"
    )
    parser.add_argument("--port", type=int, metavar="N", help="of --serve; by default any that is free")


def run(args: argparse.Namespace) -> int:
    from astrasim_py.core.errors import UsageError

    if args.serve:
        if args.out is not None:
            raise UsageError("--out", "names a file, and --serve writes none", "drop one of them")
        return _serve(args)
    if args.port is not None:
        raise UsageError("--port", "is of --serve", "add --serve, or drop it")

    from astrasim_py.core.files import write_file
    from astrasim_py.inspection.view import view_page

    notes: list[str] = []
    page = view_page(args.folder, args.point, notes)
    complain(notes)
    path = write_file(args.out or "page.html", page, make_folder=True)
    print(path)
    if args.open:
        webbrowser.open(Path(path).resolve().as_uri())
    return 0


def _serve(args: argparse.Namespace) -> int:
    from contextlib import closing

    from astrasim_py.live.view_live import LivePage

    notes: list[str] = []
    with closing(LivePage(args.folder, args.point, args.port or 0, notes)) as page:
        complain([*notes, "open this address in a browser on this machine; Ctrl-C ends it"])
        print(page.url)
        sys.stdout.flush()
        if args.open:
            webbrowser.open(page.url)
        try:
            page.serve()
        except KeyboardInterrupt:
            complain(["ended"])
    return 0
