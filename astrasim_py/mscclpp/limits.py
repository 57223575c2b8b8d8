"""What executors of plans refuse, and what they do wrong.

The limits and faults are those of microsoft/mscclpp at 1f5f065d (2026-08-20): `execution_plan.cc`, `executor.cc`,
`execution_common.hpp` and `execution_kernel.hpp`. Verification follows what a plan means, not these faults.
"""

from collections.abc import Iterator
from itertools import islice

from astrasim_py.core.fields import did_you_mean
from astrasim_py.mscclpp.cells import shared_chunks
from astrasim_py.mscclpp.ir import (
    COLLECTIVES,
    INPUT,
    MEMORY,
    OUTPUT,
    PORT,
    SCRATCH,
    Grouped,
    Local,
    Operation,
    Plan,
    Remote,
    group_of,
    reached,
    walk,
)
from astrasim_py.mscclpp.json_places import path_of, position_of
from astrasim_py.mscclpp.operations import KINDS

#: Operations of a thread block, pipelines and those in them counted once: the only limit that executors check.
MAX_OPERATIONS = 64
#: Lengths of arrays that nothing checks: channels and remote buffers of a type of a block; channels, sources, targets
#: and semaphores of an operation; barriers of a rank.
MAX_CHANNELS, MAX_REMOTE_BUFFERS = 16, 16
MAX_OPERATION_CHANNELS, MAX_SOURCES, MAX_TARGETS, MAX_SEMAPHORES = 8, 10, 10, 16
MAX_BARRIERS = 16
#: Lines about what is ill-formed.
MAX_PROBLEMS = 20


def place(plan: Plan, path: str) -> str:
    """``file:line:column: path``, without a file ``name: path``."""
    where = position_of(plan.text, path_of(path))
    return f"{plan.place}: {path}" if where is None else f"{plan.place}:{where[0]}:{where[1]}: {path}"


def ill_formed(plan: Plan) -> list[str]:
    """Why executors refuse a plan, or what leads beyond its buffers; a line for each of the first, with its place."""
    problems = list(islice(_problems(plan), MAX_PROBLEMS + 1))
    lines = [f"{place(plan, path)}: {problem}" for path, problem in problems[:MAX_PROBLEMS]]
    return [*lines, f"{plan.place}: and more"] if len(problems) > MAX_PROBLEMS else lines


def _problems(plan: Plan) -> Iterator[tuple[str, str]]:
    for *_, operation in walk(plan):
        if operation.name not in KINDS:
            remedy = (
                "write glres, which also stores" if operation.name == "glre" else did_you_mean(operation.name, KINDS)
            )
            yield operation.path, f"executors do not know {operation.name[:40]}, and refuse the plan; {remedy}"
    for rank, gpu in enumerate(plan.gpus):
        for number, block in enumerate(gpu.blocks):
            many = sum(1 + len(operation.inner) for operation in block.operations)
            if many > MAX_OPERATIONS:
                path = f"gpus[{rank}].threadblocks[{number}].ops"
                yield path, f"has {many} operations, and executors refuse more than {MAX_OPERATIONS}"
    yield from _misled(plan)
    yield from _beyond(plan)


def _misled(plan: Plan) -> Iterator[tuple[str, str]]:
    """Requests to a port channel of one rank for a buffer of another."""
    for rank, number, operation in walk(plan):
        gpu, block = plan.gpus[rank], plan.gpus[rank].blocks[number]
        if operation.channel_type != PORT:
            continue
        for position, target in zip(operation.channels, operation.targets, strict=False):
            peer = gpu.peers[PORT][block.channels[PORT][position]]
            if isinstance(target, Remote) and (owner := reached(gpu, block, PORT, target).rank) != peer:
                yield operation.path, f"{operation.name} writes to rank {owner} over a channel to rank {peer}"


def _beyond(plan: Plan) -> Iterator[tuple[str, str]]:
    for rank, number, operation in walk(plan):
        gpu, block = plan.gpus[rank], plan.gpus[rank].blocks[number]
        for reference in (*operation.sources, *operation.targets):
            if isinstance(reference, Local):
                owners = [(rank, reference.buffer)]
            elif isinstance(reference, Grouped):
                buffer, ranks = group_of(gpu, block, reference)
                owners = [(other, buffer) for other in ranks]
            else:
                owners = [reached(gpu, block, operation.channel_type, reference)]
            for owner, buffer in owners:
                there = plan.gpus[owner].chunks[buffer]
                if plan.in_place and buffer != SCRATCH:
                    there = max(there, shared_chunks(plan, owner))
                if reference.first + reference.size > there:
                    last = reference.first + reference.size - 1
                    words = {INPUT: "input", OUTPUT: "output", SCRATCH: "scratch"}[buffer]
                    reach = f"{operation.name} reaches {words} chunk {last} of rank {owner}, which has {there}"
                    yield operation.path, reach
                    break


def warnings(plan: Plan) -> list[str]:
    """What executors do otherwise than the plan means, and arrays that it overruns; a line for each kind."""
    said: dict[str, list[str]] = {}
    for what, path in (*_overruns(plan), *_faults(plan)):
        said.setdefault(what, []).append(path)
    lines = []
    for what, paths in said.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        lines.append(f"{place(plan, paths[0])}{more}: {what}")
    chunks = {(gpu.chunks[INPUT], gpu.chunks[OUTPUT]) for gpu in plan.gpus}
    if plan.collective in COLLECTIVES and any(not given or not needed for given, needed in chunks):
        lines.append(f"{plan.place}: executors divide by the chunks of input and output, of which one is 0")
    return lines


def _overruns(plan: Plan) -> Iterator[tuple[str, str]]:
    for rank, gpu in enumerate(plan.gpus):
        barriers = {operation.barrier for block in gpu.blocks for operation in block.operations} - {-1}
        if len(barriers) > MAX_BARRIERS or max(barriers, default=0) >= MAX_BARRIERS:
            yield f"executors have {MAX_BARRIERS} barriers", f"gpus[{rank}]"
        for number, block in enumerate(gpu.blocks):
            where = f"gpus[{rank}].threadblocks[{number}]"
            for kind, numbers in block.channels.items():
                if len(numbers) > MAX_CHANNELS:
                    yield f"executors overrun arrays of {MAX_CHANNELS} {kind} channels", where
            for kind, numbers in block.remote_buffers.items():
                if len(numbers) > MAX_REMOTE_BUFFERS:
                    yield f"executors overrun arrays of {MAX_REMOTE_BUFFERS} remote buffers ({kind})", where
    for *_, operation in walk(plan):
        for many, most, what in (
            (len(operation.channels), MAX_OPERATION_CHANNELS, "channels"),
            (len(operation.sources), MAX_SOURCES, "sources"),
            (len(operation.targets), MAX_TARGETS, "destinations"),
            (len(operation.semaphores), MAX_SEMAPHORES, "semaphores"),
        ):
            if many > most:
                yield f"executors overrun arrays of {most} {what} of an operation ({operation.name})", operation.path


def _faults(plan: Plan) -> Iterator[tuple[str, str]]:
    for rank, number, operation in walk(plan):
        name, path = operation.name, operation.path
        block = plan.gpus[rank].blocks[number]
        sources = [r.buffer for r in operation.sources if isinstance(r, Local)]
        if name == "flush":
            yield "flush does nothing in executors: write pwsf", path
        elif name == "get" and any(
            s.first != t.first for s, t in zip(operation.sources, operation.targets, strict=True)
        ):
            yield "executors exchange the offsets of get: it is wrong unless they are equal", path
        elif name == "put" and operation.channel_type == MEMORY and len(set(sources)) > 1:
            yield "executors take all sources of a put from the buffer of the first", path
        elif name == "copy" and len(operation.sources) > 1:
            yield "executors copy the first pair only", path
        elif name == "ppkt" and operation.channel_type == PORT:
            yield "executors take the source of ppkt over port channels from another buffer", path
        elif name == "rres" and plan.reuses and _remote_scratch(plan, rank, block, operation):
            yield "executors wrap reused scratch by the buffer of the destination", path
        if name == "pipeline":
            yield from _pipeline_faults(operation)


def _remote_scratch(plan: Plan, rank: int, block, operation: Operation) -> bool:
    buffers = [
        reached(plan.gpus[rank], block, operation.channel_type, reference).buffer
        for reference in operation.sources
        if not isinstance(reference, Local | Grouped)
    ]
    return SCRATCH in buffers


def _pipeline_faults(pipeline: Operation) -> Iterator[tuple[str, str]]:
    if pipeline.unit_bytes % 16:
        yield "executors go wrong at the end of units that are no multiple of 16 B", pipeline.path
    if pipeline.unit_bytes >= 2**32:
        yield "executors hold offsets of at most 4 GiB", pipeline.path
    for inner in pipeline.inner:
        if any(reference.size < pipeline.chunks for reference in (*inner.sources, *inner.targets)):
            yield "executors copy beyond operations that are shorter than their pipeline", inner.path
