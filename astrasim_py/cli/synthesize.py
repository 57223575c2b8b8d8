"""Synthesize an algorithm for a topology and a collective, with its distance from a lower bound.

TOPOLOGY is an edge list (.csv, .yaml, .json), a YAML file that says what a scenario's `topology` says, a preset, or
SHAPE:SIZE,KEY=VALUE,… as in "torus:8x8,bandwidth=50 GB/s,latency=500 ns".
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from astrasim_py.core.errors import EXIT_OK, AlgorithmError, InternalError, OutputError, UsageError

if TYPE_CHECKING:
    from astrasim_py.collectives.algorithm import Algorithm
    from astrasim_py.study.synthesized import Found
    from astrasim_py.topology.model import Topology

#: Transfers up to which the algorithm itself is verified, too: it is executed step by step.
MAX_VERIFIED = 2**17
#: Transfers beyond which no .et files are written.
MAX_ET = 2**21
MAX_ROUNDS, MAX_CHUNKS, MAX_SEED = 10**6, 2**20, 2**31 - 1


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--topology", required=True, metavar="TOPOLOGY")
    parser.add_argument("--collective", required=True, help="all_gather, all_reduce, …")
    parser.add_argument("--size", required=True, metavar="S", help='of the full buffer, e.g. "64 MiB"')
    parser.add_argument("--chunks", default="1", metavar="N|auto", help="per shard, or of the buffer (default: 1)")
    parser.add_argument("--root", type=int, metavar="RANK", help="of a rooted collective (default: 0)")
    parser.add_argument("--npus", metavar="LIST", help="the group, rank by rank, e.g. 0-7,12 (default: all NPUs)")
    parser.add_argument("--relays", action="store_true", help="NPUs outside the group may hand data on")
    parser.add_argument(
        "--occupied", action="append", default=[], metavar="FILE", help="links taken by another schedule; repeatable"
    )
    parser.add_argument("--model", choices=("cut_through", "store_and_forward"), default="cut_through")
    parser.add_argument("--link-busy", choices=("bytes", "latency+bytes"), default="bytes", help="holds a link for")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, default=200, metavar="N", help="runs at most (default: 200)")
    parser.add_argument("--budget", metavar="T", help='wall-clock time at most, e.g. "30 s"')
    parser.add_argument("--jobs", type=int, metavar="N", help="threads (default: one per core)")
    parser.add_argument("--out", metavar="OUT", help="X.npz, X.xml (MSCCL-IR), else a prefix of .et files")
    parser.add_argument("--clock", choices=("auto", "always", "never"), default="auto", help="hold times by a clock")
    parser.add_argument("--schedule", metavar="FILE", help="write when every link is held (.csv), for --occupied")
    parser.add_argument("--count", action="store_true", help="only count the transfers: for the largest networks")
    parser.add_argument("--fresh", action="store_true", help="search although the same was searched before")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Synthesize; says on stdout what was found."""
    from astrasim_py.cli.topologies import npu_list, topology_of
    from astrasim_py.collectives.algorithm import CUSTOM, ROOTED, collective_name
    from astrasim_py.core.units import parse_size, parse_time
    from astrasim_py.synthesis.network import CostModel
    from astrasim_py.topology.model import placement

    for option, value, least, most in (
        ("--seed", args.seed, 0, MAX_SEED),
        ("--rounds", args.rounds, 1, MAX_ROUNDS),
        ("--jobs", 1 if args.jobs is None else args.jobs, 1, 1024),
    ):
        if not least <= value <= most:
            raise UsageError(option, f"{value} is out of range", f"write {least} to {most}")
    if args.count and (args.out or args.schedule):
        raise UsageError("--count", "what is only counted cannot be written", "drop --count, or --out and --schedule")
    try:
        collective = collective_name(args.collective, "--collective")
    except AlgorithmError as error:
        raise UsageError(*error.args) from None
    if collective in ("barrier", CUSTOM):
        raise UsageError("--collective", f"a {collective} cannot be synthesized", "name a collective that moves data")
    size = parse_size(args.size, "--size")
    chunks = _chunks(args.chunks)
    budget = None if args.budget is None else parse_time(args.budget, "--budget") / 10**12
    if args.root is not None and collective not in ROOTED:
        raise UsageError("--root", f"{collective} has no root", "drop it")
    topology = topology_of(args.topology)
    npus = placement(topology, "linear" if args.npus is None else npu_list(args.npus, "--npus"), place="--npus")
    root = (args.root or 0) if collective in ROOTED else None
    if root is not None and not 0 <= root < len(npus):
        raise UsageError("--root", f"{root} is not one of {len(npus)} ranks", f"write 0 to {len(npus) - 1}")
    _writable(args)
    from astrasim_py.study.synthesized import Request, facts_of, find

    request = Request(
        topology=topology,
        npus=npus,
        collective=collective,
        size=size,
        chunks=chunks,
        root=root,
        cost=CostModel(model=args.model, link_busy=args.link_busy),
        relays=args.relays,
        occupied=tuple(_occupied(file, topology) for file in args.occupied),
        seed=args.seed,
        rounds=args.rounds,
        budget=budget,
    )
    progress = _Progress(quiet=args.quiet)
    try:
        found = find(request, fresh=args.fresh, record=not args.count, jobs=args.jobs, progress=progress)
    finally:
        progress.end()
    if not args.quiet:
        _notes(found, topology)
    verified, out = _written(found, args)
    row = {"topology": topology.name, **facts_of(found)}
    row |= {"seconds": _seconds(found), "reused": found.reused, "verified": verified, "out": out}
    if args.format == "json":
        from astrasim_py.report.tables import json_text

        print(json_text(row))
    else:
        print(_text(row, found))
    return EXIT_OK


def _chunks(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_CHUNKS:
        raise UsageError("--chunks", f'"{text}" is no number of chunks', f"write 1 to {MAX_CHUNKS}, or auto")
    return int(text)


def _seconds(found: Found):
    from decimal import Decimal

    return Decimal(f"{found.schedule.search.seconds:.3f}")


def _notes(found: Found, topology: Topology) -> None:
    schedule = found.schedule
    lines = []
    if found.reused:
        lines.append("found before, and reused; --fresh searches again")
    if schedule.search.cut:
        lines.append("the search was cut by --budget: another machine may find another schedule")
    idle = schedule.network.idle_links
    if idle:
        lines.append(f"{topology.name}: {idle} parallel links carry nothing: a message takes the topology's route")
    for line in lines:
        print(f"astrasim-py: {line}", file=sys.stderr)


class _Progress:
    """Best time, bound and gap: a line that changes on a terminal, else a line whenever there is a better time."""

    def __init__(self, *, quiet: bool) -> None:
        try:
            self.watched = not quiet and sys.stderr.isatty()
        except (AttributeError, ValueError):
            self.watched = False
        self.quiet, self.best, self.told, self.shown = quiet, 0, 0.0, False

    def __call__(self, state) -> None:
        """A run has ended."""
        from astrasim_py.core.units import format_time

        now, better = time.monotonic(), state.best and state.best != self.best
        if self.quiet or not state.best or now - self.told < (0.1 if self.watched else 2.0):
            return
        if not self.watched and not better:
            return
        self.told, self.best = now, state.best
        text = (
            f"run {state.rounds}/{state.of}: best {format_time(state.best)}, bound {format_time(state.bound)}, "
            f"gap {state.gap:.1%}"
        )
        if self.watched:
            self.shown = True
            print(f"\r{text:<78}", end="", file=sys.stderr, flush=True)
        else:
            print(f"astrasim-py: {text}", file=sys.stderr)

    def end(self) -> None:
        """Leave the line."""
        if self.shown:
            print(file=sys.stderr)


# -- files ----------------------------------------------------------------------------------------------------------


def _writable(args: argparse.Namespace) -> None:
    """Make the folders of what is written, before anything is searched."""
    from pathlib import Path

    if args.schedule is not None and not args.schedule.endswith(".csv"):
        raise UsageError("--schedule", f'"{args.schedule}" is no .csv', "write e.g. schedule.csv")
    if args.out is not None and (not args.out or args.out.endswith("/")):
        raise UsageError("--out", f'"{args.out}" names no file', "write X.npz, X.xml, or the prefix of .et files")
    for target in filter(None, (args.out, args.schedule)):
        folder = Path(target).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(target, f"cannot make {folder}: {error.strerror}", "choose a writable place") from None


def _written(found: Found, args: argparse.Namespace) -> tuple[bool | None, str | None]:
    """Whether it was verified, and the file or prefix that was written."""
    schedule = found.schedule
    if not schedule.recorded:
        return None, None
    if args.schedule:
        _write_holds(args.schedule, found)
    out = args.out
    if out is None and schedule.transfers > MAX_VERIFIED:
        return True, None
    from astrasim_py.synthesis.emit import clock_needed, emit

    clock = {"auto": None, "always": True, "never": False}[args.clock]
    algorithm = emit(schedule, clock=clock)
    timed = clock_needed(schedule.network) if clock is None else clock
    if schedule.transfers <= MAX_VERIFIED:
        from astrasim_py.collectives.verify import verify

        verdict = verify(algorithm)
        if verdict.ok is False:
            raise InternalError(f"a synthesized algorithm is wrong: {verdict.problem}")
    if out is not None:
        out = _write(out, algorithm, schedule.transfers, timed and not args.quiet)
    return True, out


def _write(out: str, algorithm: Algorithm, transfers: int, timed: bool) -> str:
    from astrasim_py.api import write_algorithm

    said = []
    if not out.endswith((".npz", ".xml")) and transfers > MAX_ET:
        out = f"{out}.npz"
        said.append(f"{transfers} transfers are written as {out}, which every verb reads like .et files")
    if timed and out.endswith(".xml"):
        said.append("MSCCL-IR has no durations: the clock that holds the claimed times is left out")
    elif timed:
        said.append("sends are posted by a clock: the claimed times hold for this size")
    write_algorithm(out, algorithm)
    for line in said:
        print(f"astrasim-py: {line}", file=sys.stderr)
    return out


#: Columns of a file of holds: the link, its ends as vertices of the topology, the hold, and what it is for.
HOLDS = ("link", "src", "dst", "start_ps", "end_ps", "sender", "receiver", "chunk", "reduces")
#: Largest such file that is read, bytes.
MAX_HOLDS = 2**30


def _write_holds(path: str, found: Found) -> None:
    import numpy as np

    from astrasim_py.report.csv_io import csv_chunks
    from astrasim_py.study.store import write_file

    schedule = found.schedule
    topology, npus = schedule.network.topology, np.array(schedule.network.npus, dtype=np.int64)
    transfer, resource, start, end = schedule.holds()
    order = np.lexsort((resource, start))
    transfer, link = transfer[order], schedule.network.links[resource[order]].astype(np.int64)
    columns = (
        link, topology.src[link], topology.dst[link], start[order], end[order], npus[schedule.src[transfer]],
        npus[schedule.dst[transfer]], schedule.chunk[transfer], schedule.reduces[transfer],
    )  # fmt: skip
    table = {name: np.asarray(column, dtype=np.int64) for name, column in zip(HOLDS, columns, strict=True)}
    write_file(path, csv_chunks(table))


def _occupied(path: str, topology: Topology):
    """What a file says that another schedule holds."""
    import numpy as np

    from astrasim_py.core.files import read_regular
    from astrasim_py.report.csv_io import read_csv
    from astrasim_py.synthesis.network import Occupied

    data = read_regular(path, MAX_HOLDS, UsageError, what="a .csv of --schedule", remedy="occupy less")
    remedy = "give what --schedule wrote"
    try:
        table = read_csv(data)
        link, src, dst, start, end = (np.asarray(table[name], dtype=np.int64) for name in HOLDS[:5])
    except (KeyError, ValueError, TypeError, OverflowError, StopIteration):
        raise UsageError(path, f"does not have the columns {','.join(HOLDS[:5])} in whole numbers", remedy) from None
    if len(link) and not (link.min() >= 0 and link.max() < topology.links):
        raise UsageError(path, f"names a link that {topology.name} does not have", "give one of the same topology")
    if (topology.src[link] != src).any() or (topology.dst[link] != dst).any():
        raise UsageError(path, f"its links are not those of {topology.name}", "give one of the same topology")
    if (start < 0).any() or (end < start).any() or (end > 2**61).any():
        raise UsageError(path, "holds a link until before it begins, or beyond 2^61 ps", remedy)
    return Occupied(link, start, end)


# -- text -----------------------------------------------------------------------------------------------------------


def _text(row: dict, found: Found) -> str:
    from astrasim_py.core.units import format_size, format_time

    schedule = found.schedule
    search = schedule.search
    proof = "optimal: no schedule of these chunks is faster" if schedule.optimal else "not proven optimal"
    gap = f"efficiency {schedule.efficiency:.4f} ({proof})"
    cut = ", cut by --budget" if search.cut else ""
    lines = [
        f"{row['collective']} of {format_size(row['size_bytes'])} on {row['topology']}, {row['npus']} NPUs, "
        f"{found.chunks} chunk{'s' if found.chunks > 1 else ''}",
        f"  time        {format_time(schedule.time)}",
        f"  bound       {format_time(schedule.bound)}" + (f" ({schedule.bound_kind})" if schedule.bound_kind else ""),
        f"  {gap}",
        f"  transfers   {schedule.transfers}",
        f"  search      {search.rounds} runs, seed {search.seed}, {search.seconds:.2f} s{cut}",
    ]
    if row["verified"]:
        lines.append("  verified    yes")
    if row["out"]:
        lines.append(f"  written     {row['out']}")
    return "\n".join(lines)
