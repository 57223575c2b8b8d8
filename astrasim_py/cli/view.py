"""Write a page that plays a finished point: the network, the messages, the Gantt chart, the chunks.

The page is one HTML file with its data inside. It needs nothing from outside and can be sent to others. With --serve it
is shown by this program instead, and sizes, algorithms, links and ranks can be changed in it; nothing is written.

  view ring_vs_torus@topology=torus_2d,size="1 MiB",model=cut_through,placement=linear
  view ring_vs_torus@topology=torus_2d,size="1 MiB",model=cut_through,placement=linear @placement=snake
"""

import argparse
import sys
import webbrowser
from pathlib import Path

from astrasim_py.cli import shared_options
from astrasim_py.cli.names import NAME, NAME_HELP, point_names
from astrasim_py.cli.options import add, complain, format_option
from astrasim_py.cli.output import printed
from astrasim_py.cli.values import number_list


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="+",
        metavar=NAME,
        help=f"{NAME_HELP}. Two: side by side; @… alone is of the name before it, with its other values",
    )
    shared_options.add(parser, "--output", note="page.html")
    add(parser, "--out")
    add(parser, "--ranks", note="that have a row in the Gantt chart; all by default")
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.add_argument(
        "--serve", action="store_true", help="show the page over a live engine, on this machine only, until Ctrl-C"
    )
    parser.add_argument("--port", type=int, metavar="N", help="of --serve; by default any that is free")
    format_option(parser)


#: Options may stand between names.
MIXED = True


def run(args: argparse.Namespace) -> int:
    from astrasim_py.core.errors import UsageError

    if args.serve:
        if args.output is not None:
            raise UsageError("--output", "names a file, and --serve writes none", "drop one of them")
        if args.ranks is not None:
            raise UsageError("--ranks", "is of a page that is written", "drop --serve")
        return _serve(args)
    if args.output is not None and Path(args.output).suffix.lower() not in ("", ".html", ".htm"):
        remedy = "write a name that ends in .html; results plot draws figures"
        raise UsageError("--output", f"{args.output}: a page is HTML", remedy)
    if args.port is not None:
        raise UsageError("--port", "is of --serve", "add --serve, or drop it")

    from astrasim_py.core.files import write_file
    from astrasim_py.inspection.view import view_page

    notes: list[str] = []
    ranks = None if args.ranks is None else sorted(set(number_list(args.ranks, "--ranks")))
    page = view_page(point_names(args.names, args.out), args.out, notes, ranks)
    complain(notes)
    path = write_file(args.output or "page.html", page, make_folder=True)
    if not printed(args.format, {"files": [str(path)]}, [{"file": str(path)}]):
        print(path)
    if args.open:
        webbrowser.open(Path(path).resolve().as_uri())
    return 0


def _serve(args: argparse.Namespace) -> int:
    from contextlib import closing

    from astrasim_py.live.view_live import LivePage

    notes: list[str] = []
    names = point_names(args.names, args.out)
    with closing(LivePage(names, args.out, args.port or 0, notes)) as page:
        complain([*notes, "open this address in a browser on this machine; Ctrl-C ends it"])
        if not printed(args.format, {"url": page.url}):
            print(page.url)
        sys.stdout.flush()
        if args.open:
            webbrowser.open(page.url)
        try:
            page.serve()
        except KeyboardInterrupt:
            complain(["ended"])
    return 0
