"""Run ASTRA-sim's own inputs: the same flags and files, the same lines and numbers, and why.

Whatever makes ASTRA-sim hang or crash is an error here; one warning tells of each of its quirks that was met, and
--corrected gives the physics instead.
"""

import argparse
import os
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from astrasim_py.astra_sim import ns3
from astrasim_py.cli.options import (
    add,
    complain,
    engine_option,
    engines_text,
    format_option,
    limits_of,
    look_text,
    record_options,
    terminal_width,
    timeline_of,
)
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import EXIT_OK, EXIT_USAGE, UsageError, worst
from astrasim_py.core.files import write_file

if TYPE_CHECKING:
    from astrasim_py.runs.astra_sim_point import AstraSimRequest

#: ASTRA-sim's flags that change nothing, there or here, and why.
IGNORED = {
    "--comm-scale": "ASTRA-sim accepts it and ignores it, too",
    "--compute-scale": "ASTRA-sim accepts it and ignores it, too",
    "--logging-configuration": "there are no log files here; --record says what is recorded",
    "--logging-folder": "there are no log files here; --out says where results go",
}


def arguments(parser: argparse.ArgumentParser) -> None:

    def flag(name: str, **keywords) -> None:
        under = "--" + name[2:].replace("-", "_")
        parser.add_argument(*dict.fromkeys((name, under)), **keywords)

    flag("--workload-configuration", required=True, metavar="PREFIX", help="of PREFIX.<rank>.et, one per NPU")
    flag("--system-configuration", required=True, metavar="FILE", help="system JSON")
    flag("--network-configuration", required=True, metavar="FILE", help="network YAML")
    flag("--remote-memory-configuration", metavar="FILE", help="remote memory JSON (none: no remote memory)")
    flag("--comm-group-configuration", metavar="FILE", default="empty", help="communicator groups JSON")
    flag("--num-queues-per-dim", default="1", metavar="N", help="queues of each dimension (1)")
    flag("--injection-scale", default="1", metavar="X", help="multiplies the endpoint delay (1)")
    flag("--rendezvous-protocol", nargs="?", const="true", default="false", metavar="BOOL", help="true or false")
    for name, reason in IGNORED.items():
        flag(name, metavar="X", help=f"no effect: {reason}")
    flag(ns3.LOGICAL, metavar="FILE", help="of ASTRA-sim's ns-3 binary alone, which is not run here")
    parser.add_argument("--to-scenario", metavar="FILE", help="write a scenario of the same times (.yaml), do not run")
    parser.add_argument(
        "--backend",
        choices=("congestion_unaware", "congestion_aware", "congestion_aware_multidim"),
        default="congestion_unaware",
        help="which of ASTRA-sim's analytical backends (congestion_unaware)",
    )
    parser.add_argument("--corrected", action="store_true", help="the physics instead of ASTRA-sim's numbers")
    engine_option(parser)
    record_options(parser, default="links")
    add(parser, "--quiet")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Run; ASTRA-sim's lines on stdout, warnings and errors on stderr."""
    from astrasim_py.report.result_table import summary_text
    from astrasim_py.results.store import RunOptions
    from astrasim_py.runs.astra_sim_point import AstraSimRequest, run_request
    from astrasim_py.runs.task import missing_timeline
    from astrasim_py.system.machine_models import Limits

    if args.logical_topology_configuration is not None:
        ns3.refuse_logical(args.logical_topology_configuration)
    limits = Limits(**limits_of(args))
    options = RunOptions(level=args.record, timeline=timeline_of(args), engine=args.engine, limits=limits)
    request = AstraSimRequest(
        workload=args.workload_configuration,
        system=args.system_configuration,
        network=args.network_configuration,
        memory=args.remote_memory_configuration,
        groups=args.comm_group_configuration,
        backend=args.backend,
        queues_per_dim=_whole("--num-queues-per-dim", args.num_queues_per_dim),
        injection_scale=_number("--injection-scale", args.injection_scale),
        rendezvous=_switch("--rendezvous-protocol", args.rendezvous_protocol),
        corrected=args.corrected,
    )
    if args.to_scenario is not None:
        return _write_scenario(args.to_scenario, request, args.format)
    ignored = [name for name in IGNORED if getattr(args, name[2:].replace("-", "_")) is not None]
    result, point = run_request(request, options, out=args.out)
    row, code = point.row, point.manifest.exit_code
    if not args.quiet:
        complain(f"warning: {name}: ignored: {IGNORED[name]}" for name in ignored)
        complain(f"warning: {text}" for text in result.warnings)
    complain(point.summary.explanation)
    if missing := missing_timeline(options, point.manifest):
        complain([missing])
        code = worst((code, EXIT_USAGE))
    extra_fields = {
        "backend": request.backend,
        "corrected": request.corrected,
        "finish_ns": list(result.finish_ns),
        "exposed_comm_ns_per_npu": list(result.exposed_ns),
        "cause": result.outcome.cause,
        "warnings": list(result.warnings),
        "results": str(point.folder),
    }
    if printed(args.format, {**row, **extra_fields}):
        return code
    for line in result.lines():
        print(line)
    if not args.quiet:
        print(f"\n{summary_text([row], terminal_width())}")
        print(f"\n{_backend_text(request)}\n{engines_text([row.engine])}results: {point.folder}")
        print(look_text(point.folder, args.out, [row]), end="")
    return code


def _backend_text(request: "AstraSimRequest") -> str:
    """What was modelled."""
    if request.corrected:
        return "backend: none of ASTRA-sim's: the physics of its files"
    return f"backend: {request.backend}, as ASTRA-sim's analytical network backend has it; ns-3 is not modelled"


def _write_scenario(target: str, request: "AstraSimRequest", form: str) -> int:
    from astrasim_py.astra_sim.to_scenario import scenario_text

    if not target.endswith((".yaml", ".yml")):
        raise UsageError("--to-scenario", f'"{target}" does not end in .yaml', "write e.g. --to-scenario same.yaml")
    request.inputs()  # its errors are those of a run
    write_file(target, scenario_text(request, target, corrected=request.corrected).encode(), make_folder=True)
    names = [
        os.path.relpath(file, os.path.dirname(target) or ".")
        for file in (request.workload, request.system, request.network)
    ]
    outside = " --allow-outside" if any(name.startswith("..") for name in names) else ""
    if not printed(form, {"files": [target]}):
        print(f"{target}: run it with astrasim-py {target}{outside}")
    return EXIT_OK


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(name, f'"{text[:40]}" is not a whole number', "write e.g. 1")
    return int(text)


def _number(name: str, text: str) -> str:
    try:
        value = Decimal(text) if len(text) < 40 else None
    except InvalidOperation:
        value = None
    if value is None or not value.is_finite() or not 0 <= value <= 10**9:
        raise UsageError(name, f'"{text[:40]}" is not a number in range', "write e.g. 1")
    return text


def _switch(name: str, text: str) -> bool:
    words = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
    if text.lower() not in words:
        raise UsageError(name, f'"{text[:40]}" is neither true nor false', "write true or false")
    return words[text.lower()]
