"""Synthesize an algorithm for a topology and a collective, with its distance from a lower bound.

TOPOLOGY is an edge list (.csv, .yaml, .json), a YAML file that says what a scenario's `topology` says, a preset, or
SHAPE:SIZE,KEY=VALUE,… as in "torus:8x8,bandwidth=50 GB/s,latency=500 ns".
"""

import argparse

from astrasim_py.cli.options import format_option
from astrasim_py.core.choices import MSCCL_DIALECTS, QUEUEING_MODELS


def arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is wanted")
    what.add_argument("--topology", required=True, metavar="TOPOLOGY")
    what.add_argument("--unwind", type=int, metavar="D", help="replace switches by direct links to D ports each")
    what.add_argument("--collective", required=True, help="all_gather, all_reduce, …")
    what.add_argument("--size", metavar="S", help='of the full buffer, e.g. "64 MiB"')
    what.add_argument("--blocks", metavar="FILE", help="of all_to_all, instead of --size: what each rank has for each")
    what.add_argument("--chunks", default="1", metavar="N|auto", help="per shard, or of the buffer (default: 1)")
    what.add_argument("--root", type=int, metavar="RANK", help="of a rooted collective (default: 0)")
    what.add_argument("--npus", metavar="LIST", help="the group, rank by rank, e.g. 0-7,12 (default: all NPUs)")
    what.add_argument("--relays", action="store_true", help="NPUs outside the group may forward data")
    what.add_argument(
        "--occupied", action="append", default=[], metavar="FILE", help="links taken by another schedule; repeatable"
    )
    what.add_argument("--model", choices=QUEUEING_MODELS, default="cut_through")
    what.add_argument("--link-busy", choices=("bytes", "latency+bytes"), default="bytes", help="holds a link for")
    how = parser.add_argument_group("how it is searched")
    how.add_argument("--seed", type=int, default=1, metavar="N", help="another one searches elsewhere (default: 1)")
    how.add_argument("--rounds", type=int, default=200, metavar="N", help="runs at most (default: 200)")
    how.add_argument("--budget", metavar="T", help='wall-clock time at most, e.g. "30 s"')
    how.add_argument("--exact", action="store_true", help="prove the result, or find a faster one: up to 16 ranks")
    how.add_argument("--exact-limit", metavar="T", help='wall-clock time for that (default: "60 s")')
    how.add_argument("--jobs", type=int, metavar="N", help="threads (default: one per core)")
    how.add_argument("--fresh", action="store_true", help="search although the same was searched before")
    out = parser.add_argument_group("what is written")
    out.add_argument("--out", metavar="OUT", help="X.npz, X.xml (MSCCL-IR), else a prefix of .et files")
    out.add_argument(
        "--dialect", choices=MSCCL_DIALECTS, help="of X.xml: the runtime that it is for (default: classic)"
    )
    out.add_argument("--clock", choices=("auto", "always", "never"), default="auto", help="hold times by a clock")
    out.add_argument("--schedule", metavar="FILE", help="write when every link is held (.csv), for --occupied")
    out.add_argument("--figure", metavar="FILE", help="draw the schedule (.svg or .png)")
    out.add_argument("--count", action="store_true", help="only count the transfers: for the largest networks")
    out.add_argument("--quiet", action="store_true", help="no progress")
    format_option(out)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.cli.synthesize_run import run_synthesize

    return run_synthesize(args)
