"""Turn an algorithm or a workload into another format.

IN is MSCCL-IR (X.xml), an MSCCL++ execution plan (X.json), a set of .et files (its prefix, gzip'd or not), one .et or
.jsonl file, a set X.<rank>.jsonl (as X.jsonl), an .npz algorithm, or builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…].
OUT decides the format: *.npz, *.xml, *.json, X.jsonl (of several traces X.<rank>.jsonl), else a prefix of .et files.
"""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astrasim_py.cli import convert_inline, shared_options
from astrasim_py.cli.options import format_option
from astrasim_py.cli.spelling import quantity
from astrasim_py.cli.values import make_parent
from astrasim_py.core.choices import MSCCL_DIALECTS
from astrasim_py.core.errors import TraceError, UsageError
from astrasim_py.core.files import named, write_files
from astrasim_py.core.units import parse_size

#: Nodes that are searched for attributes which a format cannot hold.
_SEARCHED = 200_000
#: Dialects of .et files and of MSCCL-IR.
_SIZES, _RUNTIMES = ("symbolic", "absolute"), MSCCL_DIALECTS
#: Endings of files of algorithms.
_ALGORITHMS = (".npz", ".xml", ".json")
#: Attributes and elements that are named when they are not read.
_LISTED = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    text = "X.xml, X.json, X.npz, .et, .jsonl, a prefix of these, or builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…]"
    parser.add_argument("source", metavar="IN", help=text)
    parser.add_argument("target", metavar="OUT", help="X.npz, X.xml, X.json, X.jsonl, else a prefix of .et files")
    shared_options.add(parser, "--size", note="to state absolute sizes, too")
    shared_options.add(
        parser,
        "--dialect",
        choices=(*_SIZES, *_RUNTIMES),
        note="as it was read, else classic; of .et: symbolic, sizes in chunks only, or absolute, in bytes only",
    )
    shared_options.add(parser, "--collective", note="where the file does not say, or says custom")
    shared_options.add(parser, "--root", note="where the file does not say")
    shared_options.add(parser, "--contract")
    parser.add_argument(
        "--made-for",
        metavar="S",
        help="size for which absolute sizes of IN were made, or its pipelines are unrolled",
    )
    shared_options.add(parser, "--gzip")
    parser.add_argument("--protocol", choices=("Simple", "LL", "LL128"), help="that a runtime is to use")
    parser.add_argument("--min-bytes", metavar="S", help="least full buffer that a runtime uses the XML or plan for")
    parser.add_argument("--max-bytes", metavar="S", help="largest one")
    text = "ranks that share memory in a plan, others have port channels (all share it)"
    parser.add_argument("--npus-per-node", type=int, metavar="N", help=text)
    convert_inline.arguments(parser)
    format_option(parser)


def built(text: str):
    """The algorithm that ``builder:NAME:COLLECTIVE:RANKS[:OPTION=VALUE,…]`` names. ``builder:NAME:RANKS`` is the first
    collective that the builder is for.
    """
    from astrasim_py.builders.registry import BUILDERS, build

    parts = text.split(":", 4)
    if len(parts) == 3 and parts[1] in BUILDERS:
        parts.insert(2, BUILDERS[parts[1]][0][0])
    if len(parts) < 4 or not parts[3].isdecimal() or len(parts[3]) > 9:
        raise UsageError(text, "is no builder", "write e.g. builder:ring:all_reduce:64")
    options: dict[str, Any] = {}
    before = ""
    for setting in filter(None, parts[4].split(",") if len(parts) > 4 else ()):
        key, equals, value = setting.partition("=")
        if not equals:
            remedy = f"write {before}+{setting} for a list" if before else "write e.g. :window=4"
            raise UsageError(text, f'"{setting}" sets nothing', remedy)
        before = setting
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
    folder, base = named(prefix, TraceError).parent, Path(prefix).name
    pattern = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,9})\.jsonl")
    try:
        paths = {int(m[1]): p for p in folder.iterdir() if (m := pattern.fullmatch(p.name))}
    except OSError:
        return []
    missing = [rank for rank in range(max(paths, default=-1) + 1) if rank not in paths]
    if missing:
        raise TraceError(prefix, f"{base}.{missing[0]}.jsonl is missing", "provide one file for every rank")
    return [paths[rank] for rank in sorted(paths)]


def read(source: str, made_for: int | None = None) -> tuple:
    """Traces of IN, or its algorithm, and whether it is one single file; `made_for`: bytes, of pipelines of a plan."""
    if source.startswith("builder:"):
        return None, built(source), False
    if source.endswith(".json"):
        from astrasim_py.mscclpp.to_traces import read_algorithm as read_plan

        return None, read_plan(source, made_for=made_for), False
    if source.endswith((".npz", ".xml")):
        from astrasim_py.msccl.to_traces import read_algorithm

        return None, read_algorithm(source), False
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
    if args.inline:
        return convert_inline.run(args)
    unused = next(
        (name for name in ("algorithm", "set", "job", "allow-code") if getattr(args, name.replace("-", "_"))), None
    )
    if unused:
        raise UsageError(f"--{unused}", "goes with --inline", f"add --inline, or drop --{unused}")
    sizes = {
        name: quantity(parse_size, text, f"--{name.replace('_', '-')}", "1 MiB")
        for name in ("size", "made_for", "min_bytes", "max_bytes")
        if (text := getattr(args, name))
    }
    form = next((form for form in (*_ALGORITHMS, ".jsonl") if args.target.endswith(form)), ".et")
    _check_usage(args, form, sizes)
    traces, algorithm, single = read(args.source, sizes.get("made_for"))
    if args.source.endswith(".json"):
        sizes.pop("made_for", None)
    algorithm = _as_algorithm(args, traces, algorithm, form, sizes)
    dropped: list[str] = []
    if algorithm is not None:
        dropped = _lost(traces or algorithm.traces, form)
        if form in (".et", ".jsonl"):
            from astrasim_py.program.interchange import algorithm_traces

            traces = algorithm_traces(algorithm, sizes.get("size"))
    if args.source.endswith(".xml"):
        dropped = _unread(args.source) + dropped
    if form == ".et" and args.dialect is not None:
        dropped += _without(args.dialect, traces)
    make_parent(args.target)
    if form == ".npz":
        from astrasim_py.program.files import write_npz

        write_npz(args.target, algorithm)
        files = [Path(args.target)]
    elif form == ".xml":
        files = [Path(args.target)]
        dropped += _write_msccl(args, algorithm, sizes)
    elif form == ".json":
        files = [Path(args.target)]
        dropped += _write_plan(args, algorithm, sizes)
    else:
        files = _write(args, traces, single)
    count = sum(len(trace) for trace in (traces or algorithm.traces))
    warnings = []
    if algorithm is not None and "size" in sizes:
        from astrasim_py.msccl.ir import outside_window

        if outside := outside_window(algorithm, sizes["size"]):
            warnings.append(f"{args.source}: {outside}")
    convert_inline.say_converted(args, [*map(str, files)], count, [*dict.fromkeys(dropped)], warnings)
    return 0


def _check_usage(args: argparse.Namespace, form: str, sizes: dict[str, int]) -> None:
    """Refuse options that say nothing about this OUT, before anything is read."""
    if form in _ALGORITHMS and (args.dialect in _SIZES or "size" in sizes):
        language = "MSCCL-IR" if form == ".xml" else "a plan"
        problem = "an .npz keeps both dialects as they are" if form == ".npz" else f"{language} states sizes in chunks"
        raise UsageError(args.target, problem, "drop --size and --dialect")
    if form == ".jsonl" and args.dialect in _SIZES:
        raise UsageError(args.target, "JSON lines keep what a trace says", "convert to .et with --dialect first")
    if form != ".xml" and args.dialect in _RUNTIMES:
        raise UsageError(args.target, f"--dialect {args.dialect} is for MSCCL-IR", "write OUT as X.xml, or drop it")
    if form not in (".xml", ".json") and ("min_bytes" in sizes or "max_bytes" in sizes):
        problem = "a range of sizes is for MSCCL-IR and execution plans"
        raise UsageError(args.target, problem, "write OUT as X.xml or X.json, or drop it")
    if form != ".json" and args.npus_per_node is not None:
        raise UsageError(args.target, "--npus-per-node is for execution plans", "write OUT as X.json, or drop it")
    if args.dialect == "absolute" and "size" not in sizes and args.source.startswith("builder:"):
        raise UsageError("--dialect absolute", "needs a size", 'add e.g. --size "1 MiB"')


def _as_algorithm(args: argparse.Namespace, traces, algorithm, form: str, sizes: dict[str, int]):
    """The algorithm that is written, where OUT or an option needs one; else None."""
    promise = {"made_for": sizes.get("made_for"), "root": args.root}
    if algorithm is None:
        if form not in _ALGORITHMS and "size" not in sizes and not (args.protocol or args.contract):
            return None
        from astrasim_py.program.interchange import algorithm_from_traces

        algorithm = algorithm_from_traces(traces, args.collective, source=args.source, **promise)
    elif args.collective is not None or any(value is not None for value in promise.values()):
        from astrasim_py.program.interchange import promised

        algorithm = promised(algorithm, args.collective, **promise)
    if args.contract:
        from astrasim_py.collectives.contract import read_contract

        algorithm = replace(algorithm, contract=read_contract(args.contract))
    return algorithm if args.protocol is None else replace(algorithm, protocol=args.protocol)


def _write(args: argparse.Namespace, traces: Sequence, single: bool) -> list[Path]:
    from astrasim_py.chakra.et_io import write_prefix, write_trace

    if args.target.endswith(".jsonl"):
        from astrasim_py.chakra.text_io import jsonl_bytes

        base = args.target[: -len(".jsonl")]
        paths = [Path(args.target)] if single else [Path(f"{base}.{rank}.jsonl") for rank in range(len(traces))]
        write_files((path, jsonl_bytes(trace)) for path, trace in zip(paths, traces, strict=True))
        return paths
    if single and args.target.endswith((".et", ".et.gz")):
        write_trace(args.target, traces[0], gzip=args.gzip or args.target.endswith(".gz"), dialect=args.dialect)
        return [Path(args.target)]
    return write_prefix(args.target, traces, gzip=args.gzip, dialect=args.dialect)


def _write_msccl(args: argparse.Namespace, algorithm, sizes: dict[str, int]) -> list[str]:
    """Write MSCCL-IR; returns what it does not say of the algorithm."""
    from astrasim_py.msccl.from_traces import recorded_program
    from astrasim_py.msccl.ir import collective_of
    from astrasim_py.msccl.xml_writer import write_msccl

    window = {name: sizes.get(name) for name in ("min_bytes", "max_bytes")}
    program = write_msccl(args.target, algorithm, dialect=args.dialect, protocol=args.protocol, **window)
    lost = []
    if any(trace.has_column("tb_id") for trace in algorithm.traces) and recorded_program(algorithm) is None:
        lost.append("thread blocks and channels, which no longer fit the nodes")
    collective, root, contract = collective_of(program)
    if (collective, root) != (algorithm.collective, algorithm.root):
        lost.append(f'collective "{algorithm.collective}"')
    elif contract != algorithm.contract:
        lost.append("contract")
    if args.dialect == "classic" and program.outofplace is not None:
        lost.append("outofplace")
    return lost


def _write_plan(args: argparse.Namespace, algorithm, sizes: dict[str, int]) -> list[str]:
    """Write an MSCCL++ execution plan; returns what it does not say of the algorithm."""
    from astrasim_py.mscclpp.writer import write_plan

    window = {name: sizes.get(name) for name in ("min_bytes", "max_bytes")}
    write_plan(args.target, algorithm, protocol=args.protocol, npus_per_node=args.npus_per_node, **window)
    blocks = any(trace.has_column("tb_id") for trace in algorithm.traces)  # of MSCCL-IR
    return ["thread blocks and channels, which plans have of their own"] if blocks else []


def _without(dialect: str, traces: Sequence) -> list[str]:
    names = {"symbolic": ("comm_size",), "absolute": ("total_chunk_cnt", "src_buf", "dst_buf", "payload")}[dialect]
    words = {"comm_size": "absolute sizes", "total_chunk_cnt": "sizes in chunks"}
    lost = _clock(traces) if dialect == "absolute" else []
    return lost + list(
        dict.fromkeys(words.get(name, "cells") for name in names if any(t.has_column(name) for t in traces))
    )


def _clock(traces: Sequence) -> list[str]:
    """What readers of whole microseconds do not see of durations."""
    exact = [(t.column("duration_ps"), t.duration_micros) for t in traces if t.has_column("duration_ps")]
    nodes = sum(int(((ps >= 0) & (ps != micros.astype(ps.dtype) * 10**6)).sum()) for ps, micros in exact)
    waits = "wait is" if nodes == 1 else "waits are"
    return [f"the clock: {nodes} {waits} in duration_ps, which other tools do not read"] if nodes else []


#: Attributes of MSCCL-IR that are read, by element.
_KNOWN = {
    "algo": "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes nthreads",
    "gpu": "id i_chunks o_chunks s_chunks",
    "tb": "id send recv chan",
    "step": "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep",
}


def _unread(path: str) -> list[str]:
    with open(path, "rb") as file:
        text = file.read().decode("utf-8", "replace")
    bare = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    lost = ["comments"] if bare != text else []
    before, _, rest = bare.partition("<algo")
    document, _, after = rest.partition("</algo>")
    if re.sub(r"<\?.*?\?>|\ufeff", "", before, flags=re.DOTALL).strip() or after.strip():
        lost.append("what stands around the document")
    unread: dict[str, None] = {}
    for element, attributes in re.findall(r"<([A-Za-z_][\w.:-]*)([^<>]*)", "<algo" + document):
        attributes_known = _KNOWN.get(element)
        if attributes_known is None:
            unread.setdefault(f'element "{element}"')
            continue
        for name in re.findall(r"([\w.:-]+)\s*=", re.sub(r"\"[^\"]*\"|'[^']*'", "", attributes)):
            if name not in attributes_known.split():
                unread.setdefault(f'{element} attribute "{name}"')
    return lost + list(unread)[:_LISTED]


def _lost(traces: Sequence, form: str) -> list[str]:
    """Names of the parts of some traces that a format cannot hold."""
    from astrasim_py.chakra.schema import INT_COLUMNS, MISSING
    from astrasim_py.program.files import kept_metadata
    from astrasim_py.program.interchange import STATED

    names, attributes, tensors, budget = False, set(), False, _SEARCHED
    distinct = list(dict.fromkeys(traces))
    for trace in distinct if any(t.raw is not None or t.has_names for t in distinct) else ():
        rows = range(min(len(trace), budget))
        budget -= len(rows)
        for node in map(trace.node, rows):
            names = names or bool(node.name)
            tensors = tensors or node.HasField("inputs") or node.HasField("outputs")
            attributes |= {a.name for a in node.attr} - set(INT_COLUMNS)
    lost = ["names of nodes"] if names and form in _ALGORITHMS else []
    lost += ["inputs and outputs of nodes"] if tensors else []
    if form in (".xml", ".json"):
        if any(bool(t.duration_micros.any()) or t.has_column("duration_ps") for t in distinct):
            lost.append("durations")
        if any(t.has_column("comm_size") for t in distinct):
            lost.append("absolute sizes")
        attributes |= {
            name
            for name in _NOT_IN_MSCCL
            if any(t.has_column(name) and bool((t.column(name) != MISSING).any()) for t in distinct)
        }
        if form == ".xml" and any(t.has_column("plan_role") for t in distinct):
            lost.append("signals, nops, packets and proxies of the plan")
    lost += [f'attribute "{name}"' for name in sorted(attributes)]
    if form in _ALGORITHMS:
        names_read = {a.name for t in distinct for a in t.metadata if a.name not in STATED}
        names_kept = {a.name for t in distinct for a in t.metadata if kept_metadata(a)} if form == ".npz" else set()
        lost += [f'metadata "{name}"' for name in sorted(names_read - names_kept) if not name.startswith("msccl")]
    return lost


#: Attributes of nodes that mean something, and that MSCCL-IR and execution plans have no word for.
_NOT_IN_MSCCL = ("comm_priority", "num_ops", "tensor_loc")
