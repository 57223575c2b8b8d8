"""Turn an algorithm or a workload into another format.

IN is a set of .et files (its prefix, gzip'd or not), one .et or .jsonl file, a set X.<rank>.jsonl (as X.jsonl), an
.npz algorithm, or builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…]. OUT decides the format: *.npz, X.jsonl (of several
traces X.<rank>.jsonl), else a prefix of .et files.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from astrasim_py.core.errors import OutputError, TraceError, UsageError

#: Nodes of a trace that are searched for attributes which a format cannot hold.
_SEARCHED = 20_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT")
    parser.add_argument("--size", metavar="S", help='write absolute sizes for a full buffer of e.g. "1 MiB"')
    parser.add_argument("--dialect", choices=("symbolic", "absolute"), help="how sizes are written (.et)")
    parser.add_argument("--collective", help="of IN, where the files do not say")
    parser.add_argument("--made-for", metavar="S", help="size for which the absolute sizes of IN were made")
    parser.add_argument("--gzip", action="store_true", help="compress .et files")


def built(text: str):
    """The algorithm that ``builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…]`` names.

    ``builder:NAME:RANKS`` is the first collective that the builder is for.
    """
    from astrasim_py.collectives.builders import ALGORITHMS, build

    parts = text.split(":", 4)
    if len(parts) == 3 and parts[1] in ALGORITHMS:
        parts.insert(2, ALGORITHMS[parts[1]][0][0])
    if len(parts) < 4 or not parts[3].isdecimal() or len(parts[3]) > 9:
        raise UsageError(text, "is no builder", "write e.g. builder:ring:all_reduce:64")
    options: dict[str, object] = {}
    for setting in filter(None, parts[4].split(",") if len(parts) > 4 else ()):
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(text, f'"{setting}" sets nothing', "write e.g. :window=4")
        options[key] = _value(value)
    return build(parts[1], parts[2], int(parts[3]), **options)


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if "+" in text:
        return [_value(part) for part in text.split("+")]
    return text


def _jsonl_set(prefix: str) -> list[Path]:
    folder, base = Path(prefix).parent, Path(prefix).name
    pattern = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,9})\.jsonl")
    try:
        found = {int(m[1]): p for p in folder.iterdir() if (m := pattern.fullmatch(p.name))}
    except OSError:
        return []
    missing = [rank for rank in range(max(found, default=-1) + 1) if rank not in found]
    if missing:
        raise TraceError(prefix, f"{base}.{missing[0]}.jsonl is missing", "provide one file for every rank")
    return [found[rank] for rank in sorted(found)]


def read(source: str) -> tuple:
    """Traces of IN, or its algorithm, and whether it is one single file."""
    if source.startswith("builder:"):
        return None, built(source), False
    if source.endswith(".npz"):
        from astrasim_py.collectives.algorithm import read_algorithm

        return None, read_algorithm(source), False
    if source.endswith(".xml"):
        raise UsageError(source, "MSCCL XML is not read by this version", "give .et, .jsonl or .npz")
    from astrasim_py.chakra.et_io import read_prefix, read_trace
    from astrasim_py.chakra.text_io import read_jsonl

    if source.endswith(".jsonl"):
        lines = [] if os.path.exists(source) else _jsonl_set(source[: -len(".jsonl")])
        if lines:
            return tuple(read_jsonl(path, rank) for rank, path in enumerate(lines)), None, False
        return (read_jsonl(source),), None, True
    if source.endswith((".et", ".et.gz")):
        return (read_trace(source),), None, True
    return read_prefix(source), None, False


def run(args: argparse.Namespace) -> int:
    """Convert; says on stdout what was written and what could not be kept."""
    from astrasim_py.core.units import parse_size

    size = parse_size(args.size, "--size") if args.size else None
    made_for = parse_size(args.made_for, "--made-for") if args.made_for else None
    dialect = args.dialect or ("absolute" if size is not None else None)
    if dialect == "absolute" and size is None and args.source.startswith("builder:"):
        raise UsageError("--dialect absolute", "needs a size", 'add e.g. --size "1 MiB"')
    traces, algorithm, single = read(args.source)
    dropped: list[str] = []
    to_npz = args.target.endswith(".npz")
    _make_folder(args.target)
    if algorithm is None and (to_npz or size is not None):
        from astrasim_py.collectives.algorithm import algorithm_from_traces

        algorithm = algorithm_from_traces(traces, args.collective, source=args.source, made_for=made_for)
        if to_npz or size is not None:
            dropped = _lost(traces)
    if to_npz:
        if size is not None or args.dialect is not None:
            raise UsageError(args.target, "an .npz keeps both dialects as they are", "drop --size and --dialect")
        from astrasim_py.collectives.npz import write_npz

        write_npz(args.target, algorithm)
        written = [Path(args.target)]
    else:
        if algorithm is not None:
            from astrasim_py.collectives.algorithm import algorithm_traces

            traces = algorithm_traces(algorithm, size)
        written = _write(args, traces, single, dialect)
    count = sum(len(trace) for trace in (traces or algorithm.traces))
    print(f"{args.source} -> {written[0]}" + (f" … {written[-1].name}" if len(written) > 1 else ""))
    print(f"{len(written)} file{'s' if len(written) > 1 else ''}, {count} nodes")
    print(f"dropped: {', '.join(dropped)}" if dropped else "dropped: nothing")
    return 0


def _make_folder(target: str) -> None:
    folder = Path(target).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(target, f"cannot make {folder}: {error.strerror}", "choose a writable place") from None


def _write(args: argparse.Namespace, traces: Sequence, single: bool, dialect: str | None) -> list[Path]:
    if args.target.endswith(".jsonl"):
        from astrasim_py.chakra.text_io import write_jsonl

        if dialect is not None:
            raise UsageError(args.target, "JSON lines keep what a trace says", "convert to .et with --dialect first")
        base = args.target[: -len(".jsonl")]
        paths = [Path(args.target)] if single else [Path(f"{base}.{rank}.jsonl") for rank in range(len(traces))]
        for path, trace in zip(paths, traces, strict=True):
            write_jsonl(path, trace)
        return paths
    from astrasim_py.chakra.et_io import write_prefix, write_trace

    if single and args.target.endswith((".et", ".et.gz")):
        write_trace(args.target, traces[0], gzip=args.gzip or args.target.endswith(".gz"), dialect=dialect)
        return [Path(args.target)]
    return write_prefix(args.target, traces, gzip=args.gzip, dialect=dialect)


def _lost(traces: Sequence) -> list[str]:
    """What the columns of an algorithm do not hold."""
    from astrasim_py.chakra.trace import INT_COLUMNS

    names, attributes, tensors = False, set(), False
    for trace in {id(t): t for t in traces}.values():
        for row in range(min(len(trace), _SEARCHED)):
            node = trace.node(row)
            names = names or bool(node.name)
            tensors = tensors or node.inputs is not None or node.outputs is not None
            attributes |= {a.name for a in node.attributes} - set(INT_COLUMNS)
    lost = ["names of nodes"] if names else []
    lost += ["inputs and outputs of nodes"] if tensors else []
    lost += [f'attribute "{name}"' for name in sorted(attributes)]
    return lost
