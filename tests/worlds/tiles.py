"""`in_tiles`: a random problem in which computations use collectives in tiles, of any problem."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np

from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import promise_of
from astrasim_py.engine.simulation import plan_for
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem


def with_nodes(trace: ExecutionTrace, nodes: list[dict], waits: dict[int, list[int]]) -> ExecutionTrace:
    """A trace with further COMP nodes (their columns, and `deps`: ids), for which nodes of it wait (`waits`, by id)."""
    first = int(trace.node_id.max()) + 1
    codes, names = trace.group_of()
    ptr, ids = trace.data_deps.ptr.tolist(), trace.data_deps.ids.tolist()
    deps = [ids[low:high] for low, high in pairwise(ptr)]
    for row, node in enumerate(trace.node_id.tolist()):
        deps[row] = deps[row] + waits.get(node, [])
    deps += [node.pop("deps") for node in nodes]
    keys = {key for node in nodes for key in node} | {name for name in INT_COLUMNS if trace.has_column(name)}
    columns = {
        name: np.append(trace.column(name), [node.get(name, MISSING) for node in nodes]).astype(np.int64)
        for name in sorted(keys)
    }
    return ExecutionTrace.from_columns(
        node_id=np.append(trace.node_id, np.arange(first, first + len(nodes))).astype(np.uint64),
        type=np.append(trace.type, np.full(len(nodes), NodeType.COMP)).astype(np.int8),
        data_deps=Csr(np.cumsum([0, *map(len, deps)]), np.array([i for each in deps for i in each], dtype=np.uint64)),
        duration_micros=np.append(trace.duration_micros, np.zeros(len(nodes), np.uint64)).astype(np.uint64),
        pg_name=(np.append(codes, np.full(len(nodes), -1)), names) if names else None,
        **columns,
    )


def _tiles(rng: random.Random, many: int) -> int:
    return rng.choice([k for k in range(2, 2 * many + 1) if many % k == 0 or k % many == 0] or [many])


def in_tiles(problem: Problem, seed: int) -> Problem:
    """The problem, in which computations are added beside some collectives that have one algorithm with cells."""
    rng, plan = random.Random(seed), plan_for(problem)
    jobs = []
    for number, job in enumerate(problem.jobs):
        traces = [
            _with_tiles(rng, plan, plan.first_rank[number] + rank, trace)
            for rank, trace in enumerate(job.workload.traces)
        ]
        jobs.append(replace(job, workload=replace(job.workload, traces=tuple(traces))))
    return replace(problem, jobs=tuple(jobs))


def _with_tiles(rng: random.Random, plan: Plan, rank: int, trace: ExecutionTrace) -> ExecutionTrace:
    program, nodes, waits = plan.workload[rank], [], {}
    first = int(trace.node_id.max()) + 1
    for at in np.flatnonzero(program.instance >= 0).tolist():
        call = plan.instances[int(program.instance[at])].only_call
        algorithm = call and call.algorithm
        # A group of one uses its collective in tiles, too.
        chunks, ranks = (algorithm.chunks, algorithm.ranks) if algorithm else (2, 1)
        whole = plan.instances[int(program.instance[at])].type in ("barrier", "custom")
        if whole or call is None or (algorithm and not algorithm.has_cells) or rng.random() < 0.3:
            continue
        node = int(program.node_id[at])
        promise = promise_of(plan.instances[int(program.instance[at])].type)
        if rng.random() < 0.7:
            tiles = _tiles(rng, promise.output_chunks(ranks, chunks))
            for tile in rng.sample(range(tiles), rng.randint(1, min(tiles, 6))):
                use = {"consumes": node, "consumes_tile": tile, "consumes_tiles": tiles}
                use["tile_order"] = rng.randint(0, 1)
                nodes.append({"deps": [node], "duration_ps": rng.randint(0, 3) * 500_000, **use})
        tiles = _tiles(rng, promise.input_chunks(ranks, chunks))
        if rng.random() < 0.7 and tiles <= 24:
            row = int(program.rows[at])
            before = trace.data_deps.ids[trace.data_deps.ptr[row] : trace.data_deps.ptr[row + 1]].tolist()
            by_order = rng.randint(0, 1)
            for tile in rng.sample(range(tiles), tiles):
                waits.setdefault(node, []).append(first + len(nodes))
                use = {"produces": node, "produces_tile": tile, "produces_tiles": tiles, "tile_order": by_order}
                nodes.append({"deps": before[:1], "duration_ps": rng.randint(0, 3) * 500_000, **use})
    return with_nodes(trace, nodes, waits) if nodes else trace
