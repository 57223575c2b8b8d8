"""What tiles of a workload wait for is verified, once for each algorithm and the tiles that it is used in.

An algorithm is inlined into a workload of its own, with a node for each tile, and that is verified. So what decides is
the cells of its steps, not the code that makes gates of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from astrasim_py.chakra.schema import MISSING, CommType, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AstraError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.scenario.expand import Point
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import from_keys

if TYPE_CHECKING:
    from astrasim_py.verification.verifier import Verdict

#: Nodes of an algorithm up to which it is verified again with its tiles.
MOST_NODES = 2**16

#: Tiles that a rank uses: whether it produces (1) or consumes (0) it, the tile, the number of tiles.
Uses = tuple[tuple[int, int, int], ...]


def check_tiles(plan: Plan, point: Point, warn: Callable[[str], None]) -> None:
    """Verify what the tiles of a plan wait for, under the point's ``verify``.

    Raises
    ------
    AlgorithmError
        A tile reads a cell before its final value, or a step uses one before the tile that makes it.
    """
    if point.spec.verify is False or not plan.tiles:
        return
    from astrasim_py.preparation.verdicts import Verdict, enforce, kept_verdict

    for algorithm, uses in tiled(plan):
        if algorithm.nodes > MOST_NODES:
            verdict = Verdict(well_formed=None, unknown=f"its {algorithm.nodes} nodes are too many")
        else:
            verdict = kept_verdict(("tiles", algorithm.digest(), uses), partial(verify_tiles, algorithm, uses))
        # What is unknown of builders' own algorithms is left to the tests of this package.
        if verdict.ok is not None or algorithm.source != "builder":
            enforce(point.spec, algorithm, verdict, point.place("algorithms"), warn, ", in tiles")


def tiled(plan: Plan) -> list[tuple[Algorithm, tuple[Uses, ...]]]:
    """The algorithms that are used in tiles, each once for what all of its ranks use."""
    found: dict[int, dict[int, set]] = {}
    for rank, gates in plan.tiles.items():
        calls = plan.workload[rank].instance
        for side, _, collective, tile, tiles, _ in gates.uses.tolist():
            found.setdefault(int(calls[collective]), {}).setdefault(rank, set()).add((side, tile, tiles))
    made: dict[tuple[Algorithm, tuple[Uses, ...]], None] = {}
    for number in sorted(found):
        instance = plan.instances[number]
        if instance.algorithm is not None:
            uses = tuple(tuple(sorted(found[number].get(rank, ()))) for rank in instance.members)
            made[instance.algorithm, uses] = None
    return list(made)


def verify_tiles(algorithm: Algorithm, uses: Sequence[Uses]) -> Verdict:
    """Verify one call of an algorithm, whose ranks use it in tiles (`uses`: by position); unknown where it cannot be
    inlined.
    """
    from astrasim_py.system.inlining import inline
    from astrasim_py.verification.verifier import Verdict, verify
    from astrasim_py.verification.workloads import verify_workload

    n = algorithm.ranks
    traces = {each: _trace(algorithm, each) for each in dict.fromkeys(uses)}
    topology = from_keys.build({"shape": "switch", "npus": n, "bandwidth": "1 GB/s", "latency": "1 us"}, "tiles")
    job = Job(
        workload=Workload(tuple(traces[each] for each in uses)),
        placement=tuple(range(n)),
        algorithms=AlgorithmTable({}, default=lambda *_: algorithm.with_verdict(None)),
    )
    try:
        workload = inline(Problem(topology=topology, jobs=(job,))).workload
    except AstraError as error:
        return Verdict(well_formed=None, unknown=str(error))
    # The order of addition is the algorithm's, and told with its own verdict.
    verdict = replace(verify_workload(workload.traces), order_consistent=None)
    if verdict.race_free is False and verify(algorithm).race_free:
        # The algorithm is right whatever the timing, so that what waits for it is wrong.
        return replace(verdict, correct=False)
    return verdict


def _trace(algorithm: Algorithm, uses: Uses) -> ExecutionTrace:
    """A rank with one collective, and a node for each tile that it uses."""
    side, tile, tiles = np.array(uses, dtype=np.int64).reshape(-1, 3).T
    count = len(uses)
    deps = [[1 + i for i in range(count) if side[i]], *([] if made else [0] for made in side)]
    columns = {}
    for number, verb in enumerate(("consumes", "produces")):
        own = np.append(False, side == number)
        for name, values in ((verb, np.zeros(count)), (f"{verb}_tile", tile), (f"{verb}_tiles", tiles)):
            columns[name] = np.where(own, np.append(0, values), MISSING).astype(np.int64)
    begins = np.arange(count + 1) == 0
    ids = np.array([i for each in deps for i in each], dtype=np.uint64)
    return ExecutionTrace.from_columns(
        node_id=np.arange(count + 1, dtype=np.uint64),
        type=np.where(begins, NodeType.COMM_COLL, NodeType.COMP).astype(np.int8),
        data_deps=Csr(np.cumsum([0, *map(len, deps)]), ids),
        comm_type=np.where(begins, CommType[algorithm.collective.upper()], MISSING),
        coll_size=np.where(begins, algorithm.chunks, MISSING),
        comm_root=np.where(begins, algorithm.root or 0, MISSING),
        duration_ps=np.where(begins, MISSING, 0),
        **columns,
    )
