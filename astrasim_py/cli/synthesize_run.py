"""What `synthesize` does: check the arguments, search, write, simulate and say what was found."""

import argparse
from collections.abc import Mapping

from astrasim_py.api import write_algorithm
from astrasim_py.cli.options import complain
from astrasim_py.cli.output import printed
from astrasim_py.cli.spelling import quantity
from astrasim_py.cli.topologies import network_beside, topology_of
from astrasim_py.cli.values import make_parent, number_list
from astrasim_py.collectives.collective import CUSTOM, collective_name, promise_of
from astrasim_py.core.choices import MSCCL_DIALECTS
from astrasim_py.core.errors import EXIT_OK, AlgorithmError, InternalError, UsageError
from astrasim_py.core.files import write_file
from astrasim_py.core.units import PS_PER_S, format_size, format_time, parse_size, parse_time
from astrasim_py.engine.choose import better_in_network
from astrasim_py.engine.simulation import simulate
from astrasim_py.msccl.to_traces import read_algorithm
from astrasim_py.preparation.from_python import collective
from astrasim_py.preparation.link_occupancy import read_occupancy, write_occupancy
from astrasim_py.preparation.schedules import facts_in_network, facts_of, find
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.results.values import ns_number
from astrasim_py.runs.progress import progress_line
from astrasim_py.synthesis.emit.emitter import clock_needed, emit
from astrasim_py.synthesis.extras.exact import LIMIT, MAX_RANKS
from astrasim_py.synthesis.memory import PROCESS, OutOfMemory
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.request import MAX_TRANSFERS, Request, SynthesisResult
from astrasim_py.synthesis.search.multi_start import Progress
from astrasim_py.system.machine_models import NetworkKeys, NetworkModel
from astrasim_py.system.problem import Problem
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.topology.unwind import unwound
from astrasim_py.verification.bounds import may_reduce
from astrasim_py.verification.verifier import verify
from astrasim_py.workload.blocks import read_blocks

#: Transfers up to which the algorithm itself is verified, too: it is executed step by step.
MAX_VERIFIED = 2**17
#: Seconds and bytes that this takes per transfer (measured), and seconds beyond a budget that are for it.
_VERIFIED_S, _VERIFIED_BYTES, _SPARE_S = 2e-5, 2500, 0.5
#: Transfers beyond which no .et files are written.
MAX_ET = 2**21
#: Transfers beyond which a schedule is not kept in memory; and the collectives of which they can be counted only.
MAX_RECORDED = 2**26
COUNTED = ("all_gather", "reduce_scatter", "broadcast", "reduce")
MAX_CHUNKS = 2**20
#: Transfers of a link in the mean of which runtimes read MSCCL-IR, where the number of chunks is chosen.
_XML_TRANSFERS = 16
_RANGES = {"seed": (0, 2**31 - 1), "rounds": (1, 10**6), "threads": (1, 1024), "unwind": (1, 2**20)}


def run_synthesize(args: argparse.Namespace) -> int:
    _check(args)
    original = topology = topology_of(args.topology)
    if args.unwind is not None:
        topology = unwound(topology, args.unwind, place="--unwind")
    request = _request(args, topology)
    _writable(args)
    with progress_line(quiet=args.quiet, every=_EVERY) as line:
        line.show("searching")
        try:
            result = find(
                request,
                fresh=args.fresh,
                record=not args.count,
                jobs=args.threads,
                progress=lambda state: line.show(_standing(state)),
                best_so_far=True,
            )
        except OutOfMemory as error:
            raise UsageError(f"--memory {args.memory}", error.problem, error.remedy) from None
        line.show(_STAGES["write"])
        if not args.quiet:
            complain(_notes(result, topology, None if args.exact else request.budget))
            complain(_not_planned_for(args))
        seconds = round(result.schedule.search.seconds, 3)
        row = {"topology": topology.name, **facts_of(result), "seconds": seconds, "search_s": seconds}
        row |= {"reused": result.reused, "exact": args.exact, **_written(result, args, original, request)}
    if not printed(args.format, row):
        print(_text(row, result))
    return EXIT_OK


def _check(args: argparse.Namespace) -> None:
    for option, (least, limit) in _RANGES.items():
        value = getattr(args, option)
        if value is not None and not least <= value <= limit:
            raise UsageError(f"--{option}", f"{value} is out of range", f"write {least} to {limit}")
    if args.count and (args.output or args.write_occupied or args.figure):
        problem = "what is only counted can neither be written nor drawn"
        raise UsageError("--count", problem, "drop --count, or --output, --write-occupied and --figure")
    if args.count and args.exact:
        raise UsageError("--count", "what is only counted cannot be proven", "drop --count, or --exact")
    if args.exact_limit is not None and not args.exact:
        raise UsageError("--exact-limit", "nothing is to be proven", "add --exact")
    if args.size is None and args.blocks is None:
        raise UsageError("--size", "is missing", 'write the full buffer, e.g. --size "64 MiB"')
    if args.size is not None and args.blocks is not None:
        raise UsageError("--size", "is what --blocks says already", "keep one of them")


def _request(args: argparse.Namespace, topology: Topology) -> Request:
    if args.collective.lower().replace("_", "") == "alltoallv":
        if args.blocks is None:
            raise UsageError("--collective", "an all_to_allv has blocks of unequal size", "say them by --blocks FILE")
        args.collective = "all_to_all"
    try:
        kind = collective_name(args.collective, "--collective")
    except AlgorithmError as error:
        raise UsageError(*error.args) from None
    if kind in ("barrier", CUSTOM):
        raise UsageError("--collective", f"a {kind} cannot be synthesized", "name a collective that moves data")
    if args.blocks is not None and kind != "all_to_all":
        raise UsageError("--blocks", f"{kind} has no blocks of unequal size", "write --size")
    if args.root is not None and not promise_of(kind).rooted:
        raise UsageError("--root", f"{kind} has no root", "drop it")
    size = 0 if args.size is None else quantity(parse_size, args.size, "--size", "64 MiB")
    chunks = _chunks(args.chunks)
    budget = None if args.budget is None else quantity(parse_time, args.budget, "--budget", "30 s") / PS_PER_S
    memory = None if args.memory is None else quantity(parse_size, args.memory, "--memory", "2 GB")
    limit = LIMIT
    if args.exact_limit is not None:
        limit = quantity(parse_time, args.exact_limit, "--exact-limit", "60 s") / PS_PER_S
    npus = placement(topology, "linear" if args.ranks is None else number_list(args.ranks, "--ranks"), place="--ranks")
    if args.exact and len(npus) > MAX_RANKS:
        problem = f"{len(npus)} ranks are more than the {MAX_RANKS} of which the fastest schedule is searched"
        raise UsageError("--exact", problem, "leave it out, or choose a smaller group by --ranks")
    if not limit:
        raise UsageError("--exact-limit", "no time at all", 'write e.g. --exact-limit "60 s"')
    root = (args.root or 0) if promise_of(kind).rooted else None
    if root is not None and not 0 <= root < len(npus):
        raise UsageError("--root", f"{root} is not one of {len(npus)} ranks", f"write 0 to {len(npus) - 1}")
    parts = (chunks or 1) * (1 if kind in ("broadcast", "reduce") else len(npus))
    transfers = parts * (len(npus) - 1) * (2 if kind == "all_reduce" else 1)
    if transfers > MAX_RECORDED and not (args.count and kind in COUNTED):
        problem = f"about {transfers} transfers are more than {MAX_RECORDED}, which fit in memory"
        hint = ", or count them only (--count)" if kind in COUNTED else ""
        raise UsageError("--chunks" if parts > len(npus) else "--topology", problem, f"use fewer chunks or NPUs{hint}")
    occupied = tuple(read_occupancy(file, topology, "--occupied") for file in args.occupied)
    blocks = None if args.blocks is None else read_blocks(args.blocks, len(npus), "--blocks", UsageError)
    return Request(
        topology=topology, npus=npus, collective=kind, size=size, chunks=chunks, root=root,
        cost=CostModel(model=args.model, link_busy=args.link_busy), relays=args.relays, occupied=occupied,
        transfers=_XML_TRANSFERS * topology.links if _without_clock(args.output) else MAX_TRANSFERS,
        seed=args.seed, rounds=args.rounds, budget=budget, memory=memory,
        exact=limit if args.exact else None, blocks=blocks,
    )  # fmt: skip


def _chunks(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= MAX_CHUNKS:
        raise UsageError("--chunks", f'"{text}" is no number of chunks', f"write 1 to {MAX_CHUNKS}, or auto")
    return int(text)


def _notes(result: SynthesisResult, topology: Topology, budget: float | None) -> list[str]:
    schedule, search, lines = result.schedule, result.schedule.search, []
    if result.reused:
        lines.append("found before, and reused; --fresh searches again")
    if result.interrupted:
        lines.append("stopped by Ctrl-C: the best so far")
    elif search.cut and search.rounds <= 2 + (schedule.demand.collective == "all_reduce"):
        lines.append(f"the budget ended before any other search: the first schedule is given ({search.policy})")
    elif search.cut:
        lines.append("the search was cut by its limit of time: another machine may find another schedule")
        if budget is not None and search.seconds > 1.5 * budget + 1:
            took = f"{search.seconds:.1f} s instead of {budget:.1f} s"
            lines.append(f"it took {took}: a schedule of so large a problem is made, and checked, no sooner here")
    idle = schedule.network.idle_links
    if idle:
        lines.append(f"{topology.name}: {idle} links carry nothing: a message takes the topology's only route")
    return lines


def _not_planned_for(args: argparse.Namespace) -> list[str]:
    """What the file of the topology says of its network that the schedule does not follow."""
    beside, costs = network_beside(args.topology), {"model": args.model, "link_busy": args.link_busy}
    network = beside.get("network")
    if isinstance(network, Mapping):
        ignored = [f"network.{key}: {value}" for key, value in network.items() if value != costs.get(key)]
    else:
        ignored = ["network"] * bool(network)
    ignored += ["nic"] * ("nic" in beside)
    planned = f"the schedule is planned, and simulated, for {args.model}"
    return [f"warning: {args.topology}: {planned}, and not for {', '.join(ignored)}"] if ignored else []


#: Seconds between two lines of progress where stderr is no terminal.
_EVERY = 5.0
_STAGES = {
    "bound": "looking for bounds",
    "forest": "packing forests",
    "check": "checking the schedule",
    "write": "verifying, simulating, writing",
}


def _standing(state: Progress) -> str:
    best = f"best {format_time(state.best)}, " if state.best else ""
    bound = f"bound {format_time(state.bound)}" if state.bound else ""
    gap = f", gap {state.gap:.1%}" if state.best and state.bound else ""
    if state.stage:
        return f"{_STAGES[state.stage]}{': ' * bool(bound)}{best}{bound}{gap}"
    under_way = state.part is not None
    progress = f"{state.part:.1%} done, " if under_way else ""
    search = f"{state.search}, " if state.search else ""
    return f"{search}run {state.rounds + under_way}/{state.of}: {progress}{best}{bound}{gap}"


def _writable(args: argparse.Namespace) -> None:
    """Make the folders of what is written, before anything is searched."""
    for option, suffixes in (("write-occupied", (".csv",)), ("figure", (".svg", ".png"))):
        name = getattr(args, option.replace("-", "_"))
        if name is not None and not name.endswith(suffixes):
            problem = f'"{name}" does not end in {" or ".join(suffixes)}'
            raise UsageError(f"--{option}", problem, f"write e.g. schedule{suffixes[0]}")
    if args.output is not None and (not args.output or args.output.endswith("/")):
        raise UsageError("--output", f'"{args.output}" names no file', "write X.npz, X.xml, X.json, or a prefix of .et")
    plans = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    if (args.output or "").endswith(".json") and args.collective not in plans:
        problem = f"MSCCL++ plans have no {args.collective}"
        raise UsageError("--output", problem, f"write X.npz, or one of {', '.join(plans)}")
    if args.dialect is not None and not (args.output or "").endswith(".xml"):
        raise UsageError("--dialect", "is of MSCCL-IR, which is not written", "write e.g. -o X.xml, or drop it")
    targets = [target for target in (args.output, args.write_occupied, args.figure) if target]
    if len(set(targets)) < len(targets):
        raise UsageError("--out", "two files of one name", "name them differently")
    for target in targets:
        make_parent(target)


def _without_clock(output: str | None) -> bool:
    """Whether a file is of a format without durations: MSCCL-IR, or an MSCCL++ execution plan."""
    return (output or "").endswith((".xml", ".json"))


def _affordable(result: SynthesisResult, request: Request) -> bool:
    """Whether a checked schedule is also executed as an algorithm: it is small, and budget and memory allow that."""
    transfers, seconds = result.schedule.transfers, result.schedule.search.seconds
    left = None if request.budget is None else max(1.2 * request.budget - seconds, 0)
    left = 0 if result.interrupted else left
    late = left is not None and transfers * _VERIFIED_S > left + _SPARE_S
    large = request.memory is not None and PROCESS + transfers * _VERIFIED_BYTES > request.memory
    return transfers <= MAX_VERIFIED and not (late or large)


def _written(result: SynthesisResult, args: argparse.Namespace, original: Topology, request: Request) -> dict:
    """Check, write and simulate a schedule: the columns of the result that say so."""
    schedule = result.schedule
    names = ("checked", "verified", "clock", "simulated_ns", "difference_ns", "with_switches_ns", "engine")
    row: dict = dict.fromkeys(names) | {
        "out": None,
        "dialect": None,
        "schedule": args.write_occupied,
        "figure": args.figure,
    }
    if not schedule.recorded:
        return row
    # `find` raises if the checker refuses a schedule.
    row["checked"] = True
    picture = None if args.figure is None else _drawn(schedule, args.figure.rpartition(".")[2])
    small = _affordable(result, request)
    if schedule.transfers <= MAX_VERIFIED and not small and not args.quiet:
        complain(["the schedule was checked; its algorithm is not executed: that takes too long, or too much memory"])
    algorithm: Algorithm | None = None
    if args.output is not None or small:
        clock = {"auto": None, "always": True, "never": False}[args.clock]
        algorithm = emit(schedule, clock=clock)
        row["clock"] = clock_needed(schedule.network) if clock is None else clock
        row["verified"] = _verified(algorithm) if small else None
    if args.write_occupied is not None:
        write_occupancy(args.write_occupied, schedule)
    if picture is not None:
        write_file(args.figure, picture, make_folder=True)
    if args.output is not None and algorithm is not None:
        row["out"] = _write(args.output, algorithm, schedule.transfers, args.dialect)
        if args.output.endswith(".xml"):
            row["dialect"] = args.dialect or MSCCL_DIALECTS[0]
        if _without_clock(args.output):
            # The file has no durations: simulate what it says.
            algorithm = read_algorithm(args.output)
            row |= {"clock": False, "verified": _verified(algorithm) if row["verified"] else None}
    if row["verified"] and algorithm is not None:
        row |= _simulated(schedule, algorithm, original)
        if may_reduce(original) and not args.occupied:
            row |= _in_network(result, args, algorithm, original)
    if not args.quiet:
        complain(_differences(row, schedule))
    return row


def _in_network(result: SynthesisResult, args: argparse.Namespace, algorithm: Algorithm, topology: Topology) -> dict:
    """Columns of the result that differ where switches may reduce; an algorithm in the network that is faster is
    written instead, except as XML, which has none."""
    network, demand = result.schedule.network, result.schedule.demand
    model = NetworkModel(model=network.cost.model, link_busy=network.cost.link_busy)
    machine = Problem(topology=topology, jobs=(), network=model)
    better = better_in_network(simulate, machine, algorithm, demand.size, network.npus)
    if better is not None and _without_clock(args.output):
        complain([f"in the network {better[0].name} takes {ns_number(better[1])} ns; {args.output} has no switches"])
        better = None
    request = Request(
        topology=topology, npus=network.npus, collective=demand.collective, size=demand.size, root=demand.root
    )  # fmt: skip
    row = facts_in_network(facts_of(result), request, better)
    if better is None:
        return row
    if args.output is not None:
        _write(args.output, better[0], better[0].messages)
    return row | {"simulated_ns": row["time_ns"], "difference_ns": 0, "verified": _verified(better[0]), "clock": False}


def _verified(algorithm: Algorithm) -> bool:
    verdict = verify(algorithm)
    if verdict.ok is False:
        raise InternalError(f"a synthesized algorithm is wrong: {verdict.problem}")
    return bool(verdict.ok)


def _simulated(schedule: Schedule, algorithm: Algorithm, original: Topology) -> dict:
    """Simulate on the topology of the schedule and, if that was unwound, on the one with switches."""
    network, demand, times, engines = schedule.network, schedule.demand, [], []
    cost: NetworkKeys = {"model": network.cost.model, "link_busy": network.cost.link_busy}
    for topology in dict.fromkeys((network.topology, original)):
        problem = collective(
            algorithm.collective, demand.size, topology, algorithm=algorithm, root=demand.root or 0,
            npus=network.npus, **cost,
        )  # fmt: skip
        records = simulate(problem, level="summary")
        times.append(records.makespan if records.outcome.status == "done" else None)
        engines.append(records.engine)
    if times[0] is None:
        raise InternalError("a synthesized algorithm does not finish")
    row: dict[str, object] = {"simulated_ns": ns_number(times[0]), "difference_ns": ns_number(times[0] - schedule.time)}
    if len(times) > 1:
        row["with_switches_ns"] = None if times[1] is None else ns_number(times[1])
    return row | {"engine": ", ".join(dict.fromkeys(engines))}


def _drawn(schedule: Schedule, kind: str) -> bytes:
    from astrasim_py.report.schedule_plots import draw_schedule

    title = f"{schedule.demand.collective} of {format_size(schedule.demand.size)}"
    return draw_schedule(schedule, kind, f"{title} on {schedule.network.topology.name}: {format_time(schedule.time)}")


def _write(out: str, algorithm: Algorithm, transfers: int, dialect: str | None = None) -> str:
    if not out.endswith((".npz", ".xml", ".json")) and transfers > MAX_ET:
        out = f"{out}.npz"
        complain([f"{transfers} transfers are written as {out}, which every verb reads like .et files"])
    if out.endswith(".xml"):
        write_algorithm(out, algorithm, dialect=dialect or MSCCL_DIALECTS[0])
    else:
        write_algorithm(out, algorithm)
    return out


def _runtime(row: dict) -> str | None:
    """Which runtime the XML is for, and which ones do not take it."""
    if row["dialect"] is None:
        return None
    from astrasim_py.msccl.well_formed import RUNTIMES, refused_by
    from astrasim_py.msccl.xml_reader import read_program

    refusing = refused_by(read_program(row["out"]))
    others = [dialect for dialect, runtime in RUNTIMES.items() if runtime.name in refusing]
    name = RUNTIMES[row["dialect"]].name
    if not others:
        return f"{name}; all others take it, too"
    options = " or ".join(f"--dialect {dialect}" for dialect in others)
    return f"{name}; {' and '.join(refusing)} {'refuse' if len(others) > 1 else 'refuses'} it: write {options}"


def _differences(row: dict, schedule: Schedule) -> list[str]:
    """Lines about the times of the algorithm that differ from the claimed ones."""
    lines = []
    form = "a plan" if (row["out"] or "").endswith(".json") else "MSCCL-IR" if _without_clock(row["out"]) else ""
    took = "" if row["simulated_ns"] is None else f": it takes {row['simulated_ns']} ns"
    if row["clock"] and row["out"]:
        lines.append("sends are posted by a clock: the claimed times hold for this size")
    if form and clock_needed(schedule.network):
        lines.append(f"{form} has no durations, so the clock that holds the claimed times is left out{took}")
    elif row["difference_ns"] and form == "a plan":
        lines.append(f"signals and the begin and end of a plan take time, too{took}")
    elif row["difference_ns"] and form:
        lines.append(f"thread blocks and channels of MSCCL-IR order some transfers otherwise{took}")
    elif row["difference_ns"]:
        lines.append(f"without a clock the claimed times are not kept{took}")
    if row["with_switches_ns"] is not None:
        lines.append(f"on the switches that were unwound it takes {row['with_switches_ns']} ns")
    return lines


def _text(row: dict, result: SynthesisResult) -> str:
    search = result.schedule.search
    ended = ", stopped by Ctrl-C" if result.interrupted else ", cut by its limit of time" * search.cut
    proof = "optimal: no schedule of these chunks is faster" if row["optimal"] else f"gap {float(row['gap']):.2%}"
    kind = f" ({row['bound']})" if row["bound"] else ""
    off = f"{row['difference_ns']:+} ns" if row["difference_ns"] else "equal"
    facts = {
        "time": format_time(round(row["time_ns"] * 1000)),
        "bound": format_time(round(row["bound_ns"] * 1000)) + kind,
        "network": row["bound_by"],
        "efficiency": f"{float(row['efficiency']):.4f} ({proof})",
        "transfers": str(row["transfers"]),
        "search": f"{search.rounds} run{'s' * (search.rounds != 1)}, seed {search.seed}, {search.seconds:.2f} s"
        f"{', then exact' * row['exact']}{ended}",
        "policy": row["policy"],
        "checked": row["checked"] and f"schedule{', algorithm' * bool(row['verified'])}",
        "simulated": None if row["simulated_ns"] is None else f"{row['simulated_ns']} ns ({off})",
        "on switches": None if row["with_switches_ns"] is None else f"{row['with_switches_ns']} ns",
        "engine": row["engine"],
        "written": ", ".join(row[key] for key in ("out", "schedule", "figure") if row[key]),
        "for": _runtime(row),
    }
    title = (
        f"{row['collective']} of {format_size(row['size_bytes'])} on {row['topology']}, {row['npus']} NPUs, "
        f"{row['chunks']} chunk{'s' * (row['chunks'] > 1)}"
    )
    return "\n".join([title, *(f"  {name:<11} {fact}" for name, fact in facts.items() if fact)])
