"""Actions of `trace` that make a smaller or a shareable workload of one: skeleton."""

import argparse
from collections.abc import Callable

from astrasim_py.cli.options import make_parent
from astrasim_py.core.errors import EXIT_OK, TraceError, UsageError


def arguments(action: Callable[[str, str], argparse.ArgumentParser]) -> None:
    """Add the actions; `action` makes the parser of one."""
    skeleton = action(
        "skeleton", "keep the calls and the longest compute paths between them: the same on every network"
    )
    _input_options(skeleton)


def _input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="IN", help="prefix of a set of .et files")
    parser.add_argument("target", metavar="OUT", help="prefix of the set to write; groups go to OUT.groups.json")
    parser.add_argument("--groups", metavar="FILE", help="communicator groups, JSON of id: [ranks]")
    parser.add_argument("--dependencies", choices=("data", "data+ctrl"), default="data")
    parser.add_argument("--dtype-bytes", type=int, metavar="N", help="sizes count elements, of so many bytes")
    parser.add_argument("--macs", action="store_true", help="num_ops counts multiply-accumulates")
    parser.add_argument("--peak", metavar="RATE", help='price of operations, e.g. "312 TFLOP/s"')
    parser.add_argument("--memory-bandwidth", metavar="RATE", help='of the same roofline, e.g. "2 TB/s"')
    parser.add_argument("--unlimited-slots", action="store_true", help="any number of compute nodes run side by side")


def _read(args: argparse.Namespace) -> tuple:
    """The workload that is named, the compute model that prices it, and the rules that it runs by."""
    from astrasim_py.chakra.workload import read_workload
    from astrasim_py.system.machine_models import ComputeModel
    from astrasim_py.system.semantics import Semantics

    unit = {"size_unit": "elements", "dtype_bytes": args.dtype_bytes} if args.dtype_bytes is not None else {}
    workload = read_workload(args.trace, groups=args.groups, macs=args.macs, **unit)
    given = {"peak": args.peak, "memory_bandwidth": args.memory_bandwidth}
    if args.memory_bandwidth and not args.peak:
        raise UsageError("--memory-bandwidth", "is of a roofline without a peak", 'add e.g. --peak "312 TFLOP/s"')
    compute = ComputeModel.model_validate({key: value for key, value in given.items() if value is not None})
    slots = {"cpu_slots": None, "compute_slots": None} if args.unlimited_slots else {}
    _check_priced(workload, compute.roofline)
    return workload, compute, Semantics.native(dependencies=args.dependencies, **slots)


def _check_priced(workload, roofline: bool) -> None:
    """Refuse operations that have neither a duration nor a price."""
    from astrasim_py.chakra.schema import MISSING, NodeType

    for trace in dict.fromkeys(workload.traces):
        timed = (trace.column("duration_ps") != MISSING) | (trace.duration_micros > 0)
        counted = (trace.type == NodeType.COMP) & (trace.column("num_ops") > 0) & ~timed
        if not roofline and counted.any():
            problem = f"{int(counted.sum())} nodes count operations and state no duration"
            raise TraceError(trace.place, problem, 'price them: --peak "312 TFLOP/s"')


def _write(args: argparse.Namespace, workload, beside: dict[str, bytes] | None = None) -> None:
    import json

    from astrasim_py.chakra.et_io import write_prefix

    groups = {name: list(ranks) for name, ranks in workload.groups.items()}
    beside = dict(beside or {}) | ({".groups.json": json.dumps(groups).encode()} if groups else {})
    make_parent(args.target)
    write_prefix(args.target, workload.traces, beside=beside)


def run_skeleton(args: argparse.Namespace) -> int:
    """Write the skeleton of a set, and print how much smaller it is."""
    from astrasim_py.study.skeletons import skeleton_workload

    workload, compute, semantics = _read(args)
    made = skeleton_workload(workload, compute, semantics)
    _write(args, made)
    before, after = (sum(map(len, each.traces)) for each in (workload, made))
    if args.format == "json":
        import json

        print(json.dumps({"ranks": made.ranks, "nodes": before, "kept": after}))
    else:
        print(f"{made.ranks} ranks, {before} nodes -> {after}")
    return EXIT_OK
