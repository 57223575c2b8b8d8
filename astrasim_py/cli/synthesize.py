"""Synthesize an algorithm for a topology and a collective, with its distance from a lower bound.

TOPOLOGY is an edge list (.csv, .txt, .graphml, .json, .yaml; ",bandwidth=50 GB/s,latency=500 ns" behind it is for links
that name none), a YAML file that says what a scenario's `topology` says, a preset, or SHAPE:SIZE,KEY=VALUE,… as in
"torus:8x8,bandwidth=50 GB/s,latency=500 ns".
"""

import argparse

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import add, format_option
from astrasim_py.core.choices import MSCCL_DIALECTS, QUEUEING_MODELS


def arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is wanted")
    what.add_argument(
        "--topology", required=True, metavar="TOPOLOGY", help="edge list, YAML, preset, or SHAPE:SIZE,KEY=VALUE,…"
    )
    what.add_argument("--unwind", type=int, metavar="D", help="replace switches by direct links to D ports each")
    shared_options.add(what, "--collective", required=True)
    shared_options.add(what, "--size")
    what.add_argument("--blocks", metavar="FILE", help="of all_to_all, instead of --size: what each rank has for each")
    what.add_argument("--chunks", default="auto", metavar="N|auto", help="per shard, or of the buffer (default: auto)")
    shared_options.add(what, "--root", note="0")
    add(what, "--ranks", note="NPUs of the group, rank by rank; all by default")
    what.add_argument("--relays", action="store_true", help="NPUs outside the group may forward data")
    what.add_argument(
        "--occupied", action="append", default=[], metavar="FILE", help="links taken by another schedule; repeatable"
    )
    what.add_argument(
        "--model", choices=QUEUEING_MODELS, default="cut_through", help="model of the network (cut_through)"
    )
    what.add_argument("--link-busy", choices=("bytes", "latency+bytes"), default="bytes", help="holds a link for")
    how = parser.add_argument_group("how it is searched")
    shared_options.add(how, "--seed", default=1, note="1")
    how.add_argument("--rounds", type=int, default=200, metavar="N", help="runs at most (default: 200)")
    shared_options.add(how, "--budget")
    how.add_argument("--memory", metavar="SIZE", help='memory of the process at most, e.g. "2 GB"')
    how.add_argument("--exact", action="store_true", help="prove the result, or find a faster one: up to 16 ranks")
    how.add_argument("--exact-limit", metavar="T", help='wall-clock time for that (default: "60 s")')
    how.add_argument("--threads", type=int, metavar="N", help="threads of the search (one per core)")
    add(how, "--fresh")
    out = parser.add_argument_group("what is written")
    shared_options.add(out, "--output", note="X.npz, X.xml, X.json (MSCCL++), else a prefix of .et files")
    shared_options.add(out, "--dialect", choices=MSCCL_DIALECTS, note="classic")
    out.add_argument("--clock", choices=("auto", "always", "never"), default="auto", help="hold times by a clock")
    out.add_argument("--write-occupied", metavar="FILE", help="write when every link is held (.csv), for --occupied")
    out.add_argument("--figure", metavar="FILE", help="draw the schedule (.svg or .png)")
    out.add_argument("--count", action="store_true", help="only count the transfers: for the largest networks")
    add(out, "--quiet")
    format_option(out)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.cli.synthesize_run import run_synthesize

    return run_synthesize(args)
