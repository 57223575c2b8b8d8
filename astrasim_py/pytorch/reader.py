"""The reader of recordings of PyTorch: its options, known before anything that reads them is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from astrasim_py.core.fields import FileText
from astrasim_py.pytorch.edge_kinds import KINDS

if TYPE_CHECKING:
    from astrasim_py.workload.trace_readers import Conversion


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command line."""
    names = "files, tar archives, archive!member, or patterns with {rank} (else the first number that differs) and *"
    text = f"traces of the profiler: {names}"
    parser.add_argument("--kineto", type=FileText, nargs="+", required=True, metavar="FILE", help=text)
    text = "traces of ExecutionTraceObserver, in the same form"
    parser.add_argument("--et", type=FileText, nargs="+", default=(), metavar="FILE", help=text)
    parser.add_argument(
        "--step",
        default="median",
        metavar="N",
        help="an iteration, all, or median: of the first rank, but its first and last",
    )
    parser.add_argument(
        "--host", choices=("segments", "none"), default="segments", help="nodes of the CPU, or of devices alone"
    )
    parser.add_argument(
        "--gaps", choices=("nodes", "drop"), default="nodes", help="unexplained time: own nodes, or left out"
    )
    text = "time of data transfer: simulated, or as recorded"
    parser.add_argument("--collectives", choices=("network", "recorded"), default="network", help=text)
    parser.add_argument("--skew", choices=("keep", "drop"), default="keep", help="between the starts of ranks")
    parser.add_argument("--splits", choices=("messages", "pad"), default="messages", help="of uneven all_to_all")
    text = "one rank's trace for so many ranks"
    parser.add_argument("--replicate", type=int, default=0, metavar="RANKS", help=text)
    text = "kernels whose names match are communication"
    parser.add_argument("--map-kernel", action="append", default=[], metavar="REGEX=KIND:GROUP", help=text)
    text = f"edges to leave out, of {', '.join(KINDS)}"
    parser.add_argument("--without", default="", metavar="KIND,…", help=text)
    text = "size of calls without a recorded one"
    parser.add_argument("--size-default", type=int, metavar="BYTES", help=text)
    parser.add_argument("--replay", action="store_true", help="try the graph: with constants, with another step")


def read(args: argparse.Namespace, say: Callable[[str], None]) -> Conversion:
    """Convert the files of a command line."""
    from astrasim_py.pytorch.convert import convert_pytorch
    from astrasim_py.pytorch.workload import Options

    options = Options(
        **{name: getattr(args, name) for name in ("collectives", "skew", "splits", "gaps", "replicate", "size_default")}
    )
    return convert_pytorch(
        args.kineto,
        args.et,
        step=args.step,
        host=args.host,
        without=[kind for kind in args.without.split(",") if kind],
        map_kernel=args.map_kernel,
        replay=args.replay,
        options=options,
        say=say,
        warnings=[],  # they are in the report
    )
