"""Train a model on a cluster: simulate one iteration, or write its traces.

MODEL is a name (list models) or keys such as "{base: llama3-70b, layers: 40}". Keys of a scenario's `training:` are
options; the aliases of Megatron, TorchTitan and DeepSpeed go with --set. Recommendation models take --gbs, --dtype and
--grad-dtype, and their other keys as --set recommendation.KEY=VALUE.
"""

import argparse
import os
import re
from pathlib import Path

from astrasim_py.cli import shared_options
from astrasim_py.cli.options import (
    add,
    check_positive,
    complain,
    engine_option,
    engines_text,
    fold_text,
    format_option,
    limits_of,
    look_text,
    record_options,
    terminal_width,
    timeline_of,
)
from astrasim_py.cli.output import printed
from astrasim_py.cli.spelling import retold, spelled
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.units import number_of

#: Keys of `training` that are options of their own; True: a flag.
KEYS = {
    "seq": "tokens of a sequence",
    "gbs": "sequences of an iteration",
    "mbs": "sequences of a microbatch",
    "microbatches": "of an iteration, in place of --gbs",
    "tp": "tensor parallel ranks",
    "pp": "pipeline stages",
    "cp": "context parallel ranks",
    "ep": "expert parallel ranks",
    "etp": "tensor parallel ranks of an expert",
    "dp": "data parallel ranks; what is left by default",
    "vp": "chunks of layers per pipeline rank",
    "zero": "ZeRO stage, 0 to 3",
    "zero_group": "ranks that share one copy of what ZeRO cuts",
    "recompute": "none, light, attn, half, selective_op, full, or a part such as 0.2",
    "schedule": "gpipe, 1f1b, interleaved, zb_h1, zb_h2 or zbv",
    "dtype": "bf16, fp16, fp8, fp4 or fp32",
    "attention": "auto, eager, fa1, fa2, fa3 or cudnn",
    "grad_dtype": "bf16, fp32 or bf16+fp32",
    "bucket": 'gradients go in messages of e.g. "25 MiB"',
    "nodes": "coarse: two nodes a layer and pass; fine: one an operation",
}


#: Options by the keys of a training for which they stand; of others by --set.
_OPTIONS = {key: f"--{key.replace('_', '-')}" for key in KEYS} | {
    "model": "MODEL",
    "sp": "--sp",
    "memory": "--ignore-memory",
    "overlap": '--set "training.overlap={value}"',
    "nodes": "--detail",
    "software": "--software",
    "state": "--state",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help='of list models, or keys: "{base: llama3-70b, layers: 40}"')
    parser.add_argument("--on", default="dgx_h100", metavar="MACHINE", help="list presets; dgx_h100 by default")
    parser.add_argument("--gpus", type=int, metavar="N", help="tp x pp x cp x dp by default, or 8")
    for key, text in KEYS.items():
        parser.add_argument(_OPTIONS[key], dest=key, metavar=_OPTIONS[key][2].upper(), help=text)
    parser.add_argument("--sp", action=argparse.BooleanOptionalAction, help="sequence parallel; with tp by default")
    parser.add_argument(
        "--overlap", metavar="KINDS", help="communication beside computation: tp,dp,ep, or tp=tiles,dp=buckets,ep=tiles"
    )
    parser.add_argument(
        "--software", metavar="NAME", help='list software; or "{base: pytorch, gemm: 1.1}"; pytorch by default'
    )
    parser.add_argument(
        "--state", metavar="STATE", help="of the machine: sound (default), degraded, or a FILE of nccl-tests"
    )
    shared_options.add(parser, "--algorithm")
    add(parser, "--set")
    parser.add_argument("--ignore-memory", action="store_true", help="also what does not fit")
    shared_options.add(parser, "--output", metavar="PREFIX", note="PREFIX.<rank>.et and PREFIX.groups.json")
    shared_options.add(parser, "--gzip", "--explain")
    add(parser, "--fold")
    engine_option(parser)
    record_options(parser)
    add(parser, "--fresh", "--quiet")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Write traces, explain, or simulate."""
    try:
        return _run(args)
    except AstraError as error:
        raise retold(error, _place, _spelled) from None


def _run(args: argparse.Namespace) -> int:
    from astrasim_py.scenario.expand import expand

    check_positive(args, "gpus")
    scenario, kind = _scenario(args)
    if args.explain and kind != "training":
        problem = "a recommendation model has no closed form here"
        raise UsageError("--explain", problem, "drop it, to simulate an iteration")
    if args.explain and args.output:
        raise UsageError("--explain", "is not for traces, which -o writes", "write one of the two")
    if args.output:
        return _write(args, expand(scenario)[0])
    if args.explain:
        return _explain(args, expand(scenario)[0])
    return _simulate(args, scenario)


def _scenario(args: argparse.Namespace) -> tuple:
    """The scenario that the options stand for, and the key of its workload.

    Raises UsageError: a wrong option. Raises ErrorList: a wrong --set.
    """
    import yaml
    from pydantic import ValidationError

    from astrasim_py.cli.values import algorithms_of
    from astrasim_py.core.document import parse_document
    from astrasim_py.core.strict_model import mistakes, tuples
    from astrasim_py.scenario.load import check_document
    from astrasim_py.scenario.overrides import apply_override
    from astrasim_py.scenario.schema import Scenario
    from astrasim_py.topology.hardware import machine
    from astrasim_py.training.models import recommendation_names
    from astrasim_py.training.recommendation import Recommendation
    from astrasim_py.training.strategy import Training

    model = _plain(args.model)
    shape = model if isinstance(model, dict) else {"base": model}
    recommends = "tables" in shape or shape.get("base") in recommendation_names()
    kind = "recommendation" if recommends else "training"
    spec: type[Recommendation | Training] = Recommendation if recommends else Training
    keys = {"model": model}
    keys |= {key: _plain(text) for key in KEYS if (text := getattr(args, key)) is not None}
    keys |= {} if args.sp is None else {"sp": args.sp}
    if args.overlap:
        kinds = (kind.partition("=") for kind in args.overlap.split(","))
        keys["overlap"] = {kind: _plain(value) if equals else True for kind, equals, value in kinds}
    override = parse_document(yaml.safe_dump({kind: keys}, sort_keys=False), "train")
    for text in args.set:
        if text.startswith(f"{kind}."):
            override = apply_override(override, text, (kind,))
    document = override.plain()
    keys = document[kind] if isinstance(document, dict) else {}
    try:
        strategy = spec.model_validate(tuples(keys), context={"written": True})
    except ValidationError as error:
        mistake = next(mistakes(error))
        key = mistake.path("")
        place = f"train: {_OPTIONS.get(key, '--' + key.replace('_', '-'))}" if key else "train"
        problem = re.sub(r'^"(\w+)" is missing', _missing, mistake.problem)
        raise UsageError(place, problem, mistake.remedy) from None
    npus = args.gpus or 8
    if args.gpus is None and isinstance(strategy, Training):
        npus = strategy.tp * strategy.pp * strategy.cp * (1 if isinstance(strategy.dp, str) else strategy.dp)
    name = keys["model"] if isinstance(keys["model"], str) else "own_model"
    plain = {
        "name": f"train-{name}",
        "topologies": {args.on: machine(args.on, npus)},
        "compute": {"preset": args.on},
        "workload": {kind: keys, "memory": "ignore" if args.ignore_memory else "fit", **_costs(args, kind)},
        "algorithms": algorithms_of(args.algorithm),
        "record": args.record or "summary",
    }
    document = parse_document(yaml.safe_dump(plain, sort_keys=False), "train")
    for text in args.set:
        if not text.startswith(f"{kind}."):
            document = apply_override(document, text, tuple(Scenario.model_fields))
    return check_document(document, Path("train"), allow_outside=True), kind


def _costs(args: argparse.Namespace, kind: str) -> dict[str, object]:
    """Keys of the workload for the software and the state of the machine. Raises UsageError: a wrong state."""
    from astrasim_py.training.machine_states import state_names

    costs: dict[str, object] = {
        key: getattr(args, key) for key in ("software", "state") if getattr(args, key) is not None
    }
    if costs and kind != "training":
        option = f"--{next(iter(costs))}"
        raise UsageError(option, "a recommendation model has none: its machine is ideal", "drop it")
    if args.state is not None and args.state not in state_names():
        if not os.path.isfile(args.state):
            remedy = f"write {', '.join(state_names())}, or a file of what all_gather_perf printed"
            raise UsageError("--state", f'"{args.state}" is no state and no file', remedy)
        costs["state"] = {"nccl_tests": args.state}
    return costs | ({"software": _plain(args.software)} if "software" in costs else {})


def _missing(match: re.Match) -> str:
    return f"{_OPTIONS.get(match[1], match[1])} is missing"


def _as_option(note: str) -> str:
    """A note with the algorithms that it advises as the option that sets them."""
    return re.sub(r"algorithms: (\{.*\})$", r'--set "algorithms=\1"', note)


def _place(text: str) -> str:
    """A place in the scenario that the options stand for, without its lines, which nobody has written."""
    text = re.sub(r"^train:\d+:\d+: workload\.(software|state)\b", r"--\1", text)
    return re.sub(r"^train:\d+:\d+(: workload\.\w+)?", "train", text)


def _spelled(text: str) -> str:
    """A remedy, or a line with one, in the words of this verb."""
    before, divided, remedy = text.rpartition("; ")
    return before + divided + spelled(remedy, _OPTIONS)


def _plain(text: str) -> object:
    from astrasim_py.core.document import parse_document

    return parse_document(text, "train").plain()


def _write(args: argparse.Namespace, point) -> int:
    from astrasim_py.chakra.et_io import write_prefix
    from astrasim_py.chakra.groups import groups_json
    from astrasim_py.cli.values import make_parent
    from astrasim_py.preparation.prepare import prepare

    make_parent(args.output)
    workload = prepare(point).problem.jobs[0].workload
    traces = (workload.trace(rank) for rank in range(workload.ranks))
    beside = {".groups.json": groups_json(workload.groups)}
    paths = write_prefix(args.output, traces, ranks=workload.ranks, gzip=args.gzip, beside=beside)
    nodes = sum(len(trace) for trace in workload.traces)
    groups = f"{args.output}.groups.json"
    if not printed(args.format, {"ranks": len(paths), "nodes": nodes, "files": [*map(str, paths), groups]}):
        print(f"{number_of(len(paths), 'trace')}, {number_of(nodes, 'node')}: {paths[0]} …, groups: {groups}")
    return 0


def _explain(args: argparse.Namespace, point) -> int:
    from astrasim_py.core.notes import Notes
    from astrasim_py.preparation.prepare import estimate
    from astrasim_py.report.training import explain_text

    notes = Notes()
    terms = estimate(point, notes)
    complain(() if args.quiet else map(_spelled, notes.warnings))
    if not printed(args.format, terms):
        print(explain_text(terms))
    return 0


def _simulate(args: argparse.Namespace, scenario) -> int:
    from astrasim_py.preparation.prepare import estimate, estimate_exclusions
    from astrasim_py.report.result_table import summary_text
    from astrasim_py.report.training import step_text
    from astrasim_py.runs.plan import options_for
    from astrasim_py.runs.progress import on_terminal
    from astrasim_py.runs.sweep import run_scenario
    from astrasim_py.scenario.expand import expand
    from astrasim_py.scenario.workload_models import TrainingWorkload

    keywords = {"engine": args.engine, "fold": args.fold, "timeline": timeline_of(args), **limits_of(args)}
    progress = on_terminal(scenario.name, quiet=args.quiet)
    options = options_for(scenario, **keywords)
    result = run_scenario(scenario, options, out=args.out, fresh=args.fresh, progress=progress)
    for failure in result.failures:
        complain(_spelled(_place(line)) for line in failure.lines)
    complain(() if args.quiet else map(_as_option, result.notes))
    if not result.rows or result.rows[0]["status"] != "done":
        printed(args.format, [{**row, "estimate": None} for row in result.rows])
        return result.exit_code
    point, row = expand(scenario)[0], result.rows[0]
    priced = isinstance(point.spec.workload, TrainingWorkload) and point.spec.workload.times == "model"
    terms = estimate(point) if priced and not any(estimate_exclusions(point)) else None
    if not printed(args.format, [{**row, "estimate": terms}]):
        print(step_text(terms, row) if terms else summary_text(result.rows, terminal_width()))
        print(engines_text(row.get("engine") for row in result.rows), end="")
        print(fold_text(result.rows, result.summaries), end="")
        print(f"results: {result.folder}")
        print("" if args.quiet else look_text(result.folder, args.out, result.rows), end="")
    return result.exit_code
