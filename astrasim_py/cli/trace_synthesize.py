"""Actions of `trace` that make workloads of what is learned of others: learn, synthesize."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import check_positive
from astrasim_py.cli.output import printed
from astrasim_py.cli.trace_share import check_apart, read_set, rule_options, write_set
from astrasim_py.cli.values import make_parent
from astrasim_py.core.errors import EXIT_OK, TraceError, UnitError, UsageError
from astrasim_py.core.units import format_time

_NUMBER = re.compile(r"\d+(\.\d+)?")
_RULES = ("groups", "dtype_bytes", "macs", "peak", "memory_bandwidth", "unlimited_slots")


def arguments(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the actions; `action` makes the parser of one."""
    learn = action(
        "learn", "learn what workloads repeat, and how long and large it is, as a readable file without names"
    )
    learn.add_argument("corpus", metavar="CORPUS", help="prefix of a set of .et files, or a folder of sets")
    learn.add_argument("target", metavar="OUT.json", help="file to write")
    rule_options(learn)
    make = action(
        "synthesize", "make a workload of what is learned of others: blocks drawn from theirs, as many as wanted"
    )
    make.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
    shared_options.add(
        make, "--from", note="prefixes, folders of sets, files of trace learn; of several workloads, the seed takes one"
    )
    make.add_argument(
        "--want", nargs="+", default=[], metavar="KIND=NxSIZE",
        help="calls of a rank, e.g. all_reduce=64x40MB, and compute=TIME; takes the workload most like it",
    )  # fmt: skip
    make.add_argument("--repeats", type=int, metavar="N", help="blocks; else as many as there, and the same total time")
    make.add_argument("--size-factor", type=float, default=1.0, metavar="F", help="multiply sizes of calls")
    make.add_argument("--compute-factor", type=float, default=1.0, metavar="F", help="multiply times of compute")
    make.add_argument("--world-size", type=int, metavar="N", help="other ranks than there, where groups say how")
    shared_options.add(make, "--seed", default=0, note="0")
    rule_options(make)


def _sets(name: str) -> list[str]:
    """Prefixes of the sets that a name stands for."""
    if not os.path.isdir(name):
        return [name]
    found = sorted({str(path).partition(".0.et")[0] for path in Path(name).rglob("*.0.et*")})
    if not found:
        raise UsageError(name, "holds no set of .et files", "name a folder of PREFIX.<rank>.et")
    return found


def _learned(name: str, args: argparse.Namespace):
    """The model that a file holds, or that is learned of sets, and the rules that sets run by."""
    from astrasim_py.sharing.learn import learn
    from astrasim_py.sharing.price import Rules, original_of
    from astrasim_py.sharing.synthesis_model import SynthesisModel, read_model

    if name.endswith(".json"):
        return read_model(name)
    made = []
    for args.trace in _sets(name):
        workload, compute, semantics = read_set(args)
        made.append(learn(original_of(workload, Rules(compute=compute, semantics=semantics))))
    return SynthesisModel(workloads=tuple(made))


def run_learn(args: argparse.Namespace) -> int:
    """Write what is learned, and print what repeats."""

    from astrasim_py.core.files import write_file
    from astrasim_py.sharing.synthesis_model import write_model

    if not args.target.endswith(".json"):
        raise UsageError("OUT.json", f'"{args.target}" is no name of a model', f"write {args.target}.json")
    model = _learned(args.corpus, args)
    make_parent(args.target)
    write_file(args.target, [write_model(model)])
    rows = [
        {"ranks": len(each.ranks), "programs": len(each.programs), "repeats": each.repeats,
         "block": max(len(program.block) for program in each.programs), "has": _has(each)}
        for each in model.workloads
    ]  # fmt: skip
    for row in rows if args.format == "text" else ():
        told = f"{row['repeats']} x {row['block']} places" if row["repeats"] else "nothing repeats"
        print(f"{row['ranks']} ranks, {row['programs']} programs: {told}; {row['has']}")
    printed(args.format, rows)
    return EXIT_OK


def _has(model) -> str:
    """What `--want` says of a workload: calls of a rank, and compute."""
    from astrasim_py.sharing.price import Rules
    from astrasim_py.sharing.synthesize import synthesize, totals

    words = []
    for kind, (calls, size) in totals(model).items():
        each = f"{calls / len(model.ranks):.2f}".rstrip("0").rstrip(".")
        words.append(f"{kind}={each}x{round(size / calls)}B")
    compute = format_time(Rules().makespan(synthesize(model, None), free=True))
    return " ".join([*words, f"compute={compute.replace(' ', '')}"])


def _wanted(words: list[str]) -> dict:
    """Calls and compute of `--want`, as `Goal` has them."""
    from astrasim_py.core.units import parse_size, parse_time
    from astrasim_py.sharing.synthesize import KINDS

    made: dict = {"calls": {}}
    for word in words:
        kind, _, text = word.partition("=")
        count, times, size = text.partition("x")
        if kind == "compute":
            try:
                made["compute_ps"] = parse_time(text)
            except UnitError as error:
                raise UsageError("--want compute", error.problem, "write e.g. --want compute=3ms") from None
            continue
        if kind not in KINDS:
            raise UsageError("--want", f'"{kind}" is no kind of call', f"write compute, or one of {', '.join(KINDS)}")
        if not times or not _NUMBER.fullmatch(count) or not float(count):
            raise UsageError(f"--want {kind}", f'"{text}" is no number of calls and size of one', "write e.g. 64x40MB")
        try:
            made["calls"][kind] = float(count), parse_size(size)
        except UnitError as error:
            raise UsageError(f"--want {kind}", error.problem, f"write e.g. --want {kind}=64x40MB") from None
    return made


def run_synthesize(args: argparse.Namespace) -> int:
    """Write a set made of what is learned."""

    import numpy as np

    from astrasim_py.chakra.lint import lint
    from astrasim_py.sharing.price import Rules
    from astrasim_py.sharing.synthesis_model import SynthesisModel
    from astrasim_py.sharing.synthesize import Goal, choose, synthesize

    check_positive(args, "repeats", "world_size")
    for name in ("size_factor", "compute_factor"):
        if not 1e-6 <= getattr(args, name) <= 1e6:
            problem = f"{getattr(args, name)} is no factor"
            raise UsageError(f"--{name.replace('_', '-')}", problem, "write 1e-6 to 1e6, e.g. 2")
    given = [name for name in _RULES if getattr(args, name)]
    if given and all(name.endswith(".json") for name in args.sources):
        raise UsageError(
            f"--{given[0].replace('_', '-')}", "is of sets, not of what is learned", "give it to trace learn"
        )
    if args.seed < 0:
        raise UsageError("--seed", f"{args.seed} is negative", "write 0 or more")
    check_apart(args.target, *(prefix for name in args.sources for prefix in _sets(name)))
    model = SynthesisModel(workloads=tuple(each for name in args.sources for each in _learned(name, args).workloads))
    rng = np.random.default_rng(args.seed)
    names = ("repeats", "size_factor", "compute_factor")
    wanted = Goal(**{name: getattr(args, name) for name in names}, ranks=args.world_size, **_wanted(args.want))
    number, wanted = choose(model.workloads, wanted, rng)
    made = synthesize(model.workloads[number], rng, wanted, Rules().makespan)
    wrong = [each for each in lint(made.traces, made.groups) if each.severity == "error"]
    if wrong:
        raise TraceError(f"workload {number}", f"makes no valid set: {wrong[0].message}", "learn it anew")
    files = write_set(args, made)
    facts = {"ranks": made.ranks, "nodes": sum(map(len, made.traces)), "workload": number, "seed": args.seed}
    if not printed(args.format, facts | {"repeats": wanted.repeats, "files": files}):
        facts |= {"repeats": wanted.repeats} if args.want else {}
        print(", ".join(f"{key} {value}" for key, value in facts.items()))
    return EXIT_OK
