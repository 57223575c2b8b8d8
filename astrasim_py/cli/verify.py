"""Verify algorithms: are they well-formed, do they terminate, are they correct, are they free of races?

ALGORITHM is MSCCL XML (X.xml), an MSCCL++ execution plan (X.json), a prefix of .et files, an .npz, or
builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…]; or a workload, of which every collective is verified, and what tiles
wait for: a scenario (X.yaml, of all its points, or X.yaml@key=value,…), or the prefix of what convert --inline wrote.
Exits with 1 if one of the four verdicts is no, and then shows a counterexample.
"""

import argparse
from dataclasses import replace
from typing import Any, NamedTuple

from astrasim_py.cli import shared_options
from astrasim_py.cli.names import names_of_files
from astrasim_py.cli.options import add, format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK, AstraError, ErrorList, UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.core.units import number_of

#: Keys of a verdict in JSON, in this order.
_KEYS = (
    "well_formed", "slots", "terminates", "min_slots", "min_slots_large", "max_safe_bytes", "correct",
    "wrong_cells", "race_free", "races", "order_consistent", "problems", "unknown", "warnings", "counterexample",
)  # fmt: skip
#: Options that workloads and plans do not take.
_OF_ALGORITHMS = ("--slots", "--switch-slots", "--collective", "--root", "--contract")
#: Slots that may be asked for.
MAX_SLOTS = 2**20


class _Subject(NamedTuple):
    """What a verdict says of a workload or a plan."""

    ranks: int
    collective: str = "inlined workload"
    chunks: int = 0
    protocol: str = ""
    actors: tuple[str, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    text = "a file, a prefix of .et files, builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…], or a scenario"
    parser.add_argument("sources", metavar="ALGORITHM", nargs="+", help=text)
    parser.add_argument(
        "--slots", type=int, metavar="S", help="messages that a connection holds (default: its protocol's, or 2)"
    )
    parser.add_argument("--switch-slots", type=int, metavar="A", help="cells that a switch has (default: all it needs)")
    shared_options.add(parser, "--collective", note="where the file does not say, or says custom")
    shared_options.add(parser, "--root", note="where the file does not say")
    shared_options.add(parser, "--contract")
    add(parser, "--set", "--allow-code")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    sources = names_of_files(args.sources)
    for option, value in (("--slots", args.slots), ("--switch-slots", args.switch_slots)):
        if value is not None and not 1 <= value <= MAX_SLOTS:
            raise UsageError(option, f"{value} is out of range", f"write 1 to {MAX_SLOTS}")
    for option, value in (("--set", args.set), ("--allow-code", args.allow_code)):
        if value and not all(map(_is_scenario, sources)):
            raise UsageError(option, "is for scenarios", "drop it")
    contract = None
    if args.contract:
        from astrasim_py.collectives.contract import read_contract

        contract = read_contract(args.contract)
    found, refused = [], []
    for source in sources:
        try:
            found += _scenario(source, args) if _is_scenario(source) else [_verified(str(source), args, contract)]
        except AstraError as error:
            if len(args.sources) == 1:
                raise
            # Verify the others all the same.
            refused.append(error)
    rows = [_row(*one) for one in found]
    several = len(args.sources) > 1 or len(rows) > 1
    if not printed(args.format, rows if several else rows[0]) and found:
        print("\n\n".join(_text(*one) for one in found))
    if refused:
        raise refused[0] if len(refused) == 1 else ErrorList(refused)
    return EXIT_OK if all(verdict.passes for *_, verdict in found) else EXIT_CHECK_FAILED


def _verified(source: str, args: argparse.Namespace, contract) -> tuple[str, object, Any]:
    """(source, what was verified, verdict)."""
    from astrasim_py.verification.verifier import verify

    if source.endswith(".json"):
        from astrasim_py.mscclpp.ir import COLLECTIVES
        from astrasim_py.mscclpp.reader import read_plan
        from astrasim_py.mscclpp.verify import verify_plan

        _check_options(args, "a plan")
        plan = read_plan(source)
        collective = COLLECTIVES.get(plan.collective, plan.collective)
        chunks = max(max(gpu.chunks["i"], gpu.chunks["o"]) for gpu in plan.gpus)
        return (
            source,
            _Subject(plan.ranks, collective, chunks, plan.protocol),
            verify_plan(plan),
        )
    if source.endswith(".xml"):
        from astrasim_py.msccl.ir import steps_from, window_text
        from astrasim_py.msccl.well_formed import findings
        from astrasim_py.msccl.xml_reader import read_program

        program = read_program(source)
        what = _renamed(steps_from(program), source, args)
        said = findings(program)
        warnings = said.warnings
        if window := window_text(program.min_bytes, program.max_bytes, program.outofplace):
            warnings += (f"{source}:{program.line}: runtimes take it for {window} only (minBytes, maxBytes)",)
        if program.inplace and program.outofplace:
            apart = replace(what, in_place=False)
            other = verify(apart, slots=args.slots, contract=contract)
            if not other.passes:
                warnings += (f"it says that it works out of place, too, where {other.problem}",)
        verdict = verify(what, slots=args.slots, contract=contract, problems=said.problems, warnings=warnings)
        return source, what, verdict
    from astrasim_py.cli.convert import read
    from astrasim_py.program.interchange import algorithm_from_traces
    from astrasim_py.verification.workloads import is_inlined, verify_workload

    traces, what, _ = read(source)
    if what is None and is_inlined(traces):
        _check_options(args)
        return source, _Subject(len(traces)), verify_workload(traces)
    if what is None:
        what = algorithm_from_traces(traces, args.collective, source=source, root=args.root)
    what = _renamed(what, source, args)
    verdict = verify(what, slots=args.slots, switch_slots=args.switch_slots, contract=contract)
    if any(trace.has_column("plan_role") for trace in what.traces):
        from astrasim_py.mscclpp.to_traces import recorded_plan
        from astrasim_py.mscclpp.verify import verify_plan

        recorded = recorded_plan(what)
        if recorded is not None and not (judged := verify_plan(recorded)).passes:
            verdict = replace(verdict, warnings=(*verdict.warnings, f"the plan that it is from: {judged.problem}"))
    return source, what, verdict


def _is_scenario(source: PointName) -> bool:
    return source.name.endswith((".yaml", ".yml"))


def _check_options(args: argparse.Namespace, subject: str = "a workload") -> None:
    """Refuse options of algorithms for something else."""
    for option in _OF_ALGORITHMS:
        if getattr(args, option.strip("-").replace("-", "_")) is not None:
            raise UsageError(option, f"is for algorithms, and this is {subject}", "drop it")


def _scenario(source: PointName, args: argparse.Namespace) -> list[tuple[str, object, Any]]:
    """What `_verified` gives, of the workloads of a scenario, inlined."""
    from astrasim_py.preparation.prepare import prepare
    from astrasim_py.runs.chosen_points import chosen_numbers
    from astrasim_py.scenario.expand import expand
    from astrasim_py.scenario.load import load_scenario
    from astrasim_py.system.inlining import inline
    from astrasim_py.verification.workloads import verify_workload

    _check_options(args)
    found: list[tuple[str, object, Any]] = []
    allowed = {"allow_outside": True, "allow_code": args.allow_code}
    expanded = expand(load_scenario(source.name, [*args.set, "verify=false"], **allowed))
    points = [expanded[number] for number in chosen_numbers(expanded, [source])]
    for point in points:
        prepared = prepare(point)
        for number, job in enumerate(prepared.problem.jobs):
            made = inline(prepared.problem, number)
            traces = made.workload.traces
            verdict = replace(
                verify_workload(traces, made.contracts), warnings=(*prepared.notes.warnings, *made.notes.warnings)
            )
            names = [source.name, point.name * (len(points) > 1), job.name * (len(prepared.problem.jobs) > 1)]
            found.append((" ".join(filter(None, names)), _Subject(len(traces)), verdict))
    return found


def _renamed(what, source: str, args: argparse.Namespace):
    """The same program for the collective and root of the command line."""
    from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM, collective_name, promise_of

    collective = what.collective
    if args.collective is not None:
        collective = CUSTOM if args.collective == CUSTOM else collective_name(args.collective, "--collective")
        if what.collective not in (CUSTOM, collective):
            problem = f"is made for {what.collective}, not for {collective}"
            raise UsageError(source, problem, "drop --collective")
    root = what.root if args.root is None else args.root
    rooted = [c.name for c in COLLECTIVES.values() if c.rooted]
    if args.root is not None and (not promise_of(collective).rooted or not 0 <= args.root < what.ranks):
        problem = f"{args.root} is no root of {collective} on {what.ranks} ranks"
        raise UsageError("--root", problem, f"write 0 to {what.ranks - 1}, for {', '.join(rooted)}")
    if promise_of(collective).rooted and root is None:
        raise UsageError(source, f"{collective} has no root", "add --root RANK")
    root = root if promise_of(collective).rooted else None
    if (collective, root) == (what.collective, what.root):
        return what
    return replace(what, collective=collective, root=root, contract=None)


def _row(source: str, what, verdict) -> dict[str, object]:
    known = {name: getattr(verdict, name) for name in _KEYS}
    known |= {name: list(known[name]) for name in ("problems", "warnings")}
    switches = {"switches": list(what.actors)} if what.actors else {}
    facts = {"facts": verdict.facts} if hasattr(verdict, "facts") else {}
    return {"file": source, "collective": what.collective, "ranks": what.ranks, **switches, **known, **facts}


def _text(source: str, what, verdict) -> str:
    from astrasim_py.program.table import counted

    known = [
        what.collective,
        counted(what.ranks, what.actors),
        number_of(what.chunks, "chunk") if what.chunks else "",
        what.protocol,
    ]
    rows = [
        ("well-formed", verdict.well_formed, ""),
        ("terminates", verdict.terminates, _slots(verdict)),
        ("correct", verdict.correct, _many(verdict.wrong_cells, "cell is wrong", "cells are wrong")),
        ("race-free", verdict.race_free, _many(verdict.races, "pair of steps races", "pairs of steps race")),
    ]
    words = {True: "yes", False: "NO", None: "unknown"}
    lines = [f"{source}: {', '.join(filter(None, known))}"]
    lines += [f"  {name:<12} {words[value]:<8} {note}".rstrip() for name, value, note in rows]
    if verdict.unknown:
        lines.append(f"unknown: {verdict.unknown}")
    lines += [f"warning: {warning}" for warning in verdict.warnings]
    # The counterexample of a deadlock says more than its one-line problem.
    lines += [f"problem: {problem}" for problem in verdict.problems if not problem.startswith("deadlock: ")]
    if verdict.counterexample is not None and verdict.counterexample["text"] not in verdict.problems:
        lines += ["counterexample:", *(f"  {line}" for line in verdict.counterexample["text"].splitlines())]
    return "\n".join(lines)


def _many(number: int | None, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}" if number else ""


def _slots(verdict) -> str:
    if not verdict.slots:
        return ""
    have = f"with {verdict.slots} slot{'s' if verdict.slots > 1 else ''} per connection"
    if verdict.min_slots is None:
        return have if verdict.terminates is None else "with any number of slots per connection"
    large = verdict.min_slots_large
    needs = f"{verdict.min_slots}" if large in (None, verdict.min_slots) else f"{verdict.min_slots}; {large} if large"
    return f"{have} (needs {needs})"
