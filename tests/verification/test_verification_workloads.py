"""Inlined workloads: what tiles wait for is right for every builder, and every edit that changes a value is found."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.tile_runs import outcomes
from worlds.tiles import with_nodes

from astrasim_py import algorithm, build_topology
from astrasim_py.builders.registry import ALGORITHMS, build, options_of
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AstraError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.inlining import inline
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.verification.verifier import Verdict
from astrasim_py.verification.workloads import verify_workload
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

EXAMPLES = min(300, settings().max_examples)
SERVED = sorted(
    (name, collective) for name, (served, _) in ALGORITHMS.items() for collective in served if collective != "barrier"
)


class Only:
    """An algorithm table of one."""

    def __init__(self, made: Algorithm) -> None:
        self.made = made

    def select(self, *_, **__):
        return self.made


def tiles_of(rng: random.Random, many: int) -> int:
    return rng.choice([k for k in range(1, 2 * many + 1) if many % k == 0 or k % many == 0])


def in_tiles(made: Algorithm, rng: random.Random, semantics: Semantics | None = None) -> tuple[ExecutionTrace, ...]:
    """An inlined call of an algorithm, which ranks consume and produce in tiles of their own numbers."""
    n, promise = made.ranks, promise_of(made.collective)
    # Where chunks are not of one size, ranks are planned one by one if reductions take time.
    size = rng.choice((1024 * n * made.chunks, 100_003))
    items = [Collective(type=made.collective, size=size, root=made.root or 0)]
    workload, traces = generate(items, n), []
    for _ in range(n):
        nodes, waits = [], []
        tiles = tiles_of(rng, promise.output_chunks(n, made.chunks))
        for tile in range(tiles) if rng.random() < 0.9 else ():
            use = {"consumes": 0, "consumes_tile": tile, "consumes_tiles": tiles}
            nodes.append({"deps": [0], "duration_ps": rng.randint(0, 3) * 10**6, **use})
        tiles = tiles_of(rng, promise.input_chunks(n, made.chunks))
        for tile in range(tiles) if rng.random() < 0.7 else ():
            waits.append(1 + len(nodes))
            use = {"produces": 0, "produces_tile": tile, "produces_tiles": tiles}
            nodes.append({"deps": [], "duration_ps": rng.randint(0, 3) * 10**6, **use})
        traces.append(with_nodes(workload.traces[0], nodes, {0: waits}) if nodes else workload.traces[0])
    topology = build_topology(shape="torus", dims=[n], bandwidth="100 GB/s", latency="1 us")
    job = Job(workload=replace(workload, traces=tuple(traces)), placement=tuple(range(n)), algorithms=Only(made))
    return inline(Problem(topology=topology, jobs=(job,), semantics=semantics or Semantics()))[0].traces


def built(name: str, collective: str, ranks: int, rng: random.Random) -> Algorithm | None:
    """A builder's algorithm with options drawn at random; None where it does not serve such a group."""
    options, known = {}, options_of(name)
    if promise_of(collective).rooted:
        options["root"] = rng.randrange(ranks)
    for key, value in (("chunks", rng.randint(1, 3)), ("channels", rng.randint(1, 2)), ("bidirectional", True)):
        if key in known and rng.random() < 0.4:
            options[key] = value
    if "dims" in known:
        options["dims"] = [ranks // 2, 2] if ranks % 2 == 0 and ranks > 2 else [ranks]
    try:
        return build(name, collective, ranks, **options)
    except AstraError:
        return None


@algorithm("all_gather", ranks=3, chunks=6, in_place=False)
def gather_apart(a):
    """Each rank copies its shard to its output, and sends it to all from there."""
    for r in range(3):
        a[r].output[2 * r : 2 * r + 2] = a[r].input[0:2]
        for q in range(3):
            if q != r:
                a[q].output[2 * r : 2 * r + 2] = a[r].output[2 * r : 2 * r + 2]


@algorithm("all_reduce", ranks=4, chunks=4, in_place=False)
def reduce_apart(a):
    """Chunk r is added up in the output of rank r, and sent to all others."""
    for r in range(4):
        a[r].output[r] = a[r].input[r]
        for q in range(4):
            if q != r:
                a[r].output[r] += a[q].input[r]
        for q in range(4):
            if q != r:
                a[q].output[r] = a[r].output[r]


@algorithm("reduce_scatter", ranks=3, chunks=6, in_place=False)
def scatter_apart(a):
    for r in range(3):
        a[r].output[0:2] = a[r].input[2 * r : 2 * r + 2]
        for q in range(3):
            if q != r:
                a[r].output[0:2] += a[q].input[2 * r : 2 * r + 2]


APART = (gather_apart, reduce_apart, scatter_apart)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SERVED), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_tiles_of_every_builder_wait_for_what_they_use(which, ranks, seed):
    rng = random.Random(seed)
    made = built(*which, ranks, rng)
    semantics = Semantics.native(gamma=rng.choice((0, "20 ns/MiB")))
    verdict = verify_workload(in_tiles(made, rng, semantics)) if made else Verdict(correct=True, race_free=True)
    assert (verdict.correct, verdict.race_free, verdict.problems) == (True, True, ())


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(APART), st.integers(0, 2**32 - 1))
def test_so_do_tiles_of_algorithms_out_of_place(make, seed):
    made, rng = make(), random.Random(seed)
    assert not made.in_place
    verdict = verify_workload(in_tiles(made, rng))
    assert (verdict.correct, verdict.race_free, verdict.problems) == (True, True, ())


# -- edits


def with_deps(trace: ExecutionTrace, deps: list[list[int]]) -> ExecutionTrace:
    ids = np.array([i for each in deps for i in each], dtype=np.uint64)
    return trace.replace(data_deps=Csr(np.cumsum([0, *map(len, deps)]), ids))


def deps_of(trace: ExecutionTrace) -> list[list[int]]:
    return [list(map(int, trace.data_deps.of(row))) for row in range(len(trace))]


def with_value(trace: ExecutionTrace, column: str, row: int, value: int) -> ExecutionTrace:
    values = trace.column(column).copy()
    values[row] = value
    return trace.replace(**{column: values})


def drop(trace, rng):
    """A node no longer waits for another."""
    deps = deps_of(trace)
    row, parent = rng.choice([(row, parent) for row, each in enumerate(deps) for parent in each] or [(0, -1)])
    if parent < 0:
        return None
    deps[row].remove(parent)
    return with_deps(trace, deps), [int(trace.node_id[row]), parent]


def move(trace, rng):
    """A node waits for another node than before, which may be its own child."""
    deps = deps_of(trace)
    row, parent = rng.choice([(row, parent) for row, each in enumerate(deps) for parent in each] or [(0, -1)])
    others = [int(i) for i in trace.node_id if int(i) not in (*deps[row], int(trace.node_id[row]))]
    if parent < 0 or not others:
        return None
    deps[row][deps[row].index(parent)] = rng.choice(others)
    return with_deps(trace, deps), [int(trace.node_id[row]), parent]


def retile(trace, rng):
    """A node consumes or produces another tile than before."""
    side = rng.choice(("consumes", "produces"))
    rows = np.flatnonzero(trace.column(f"{side}_tiles") > 1).tolist()
    if not rows:
        return None
    row = rng.choice(rows)
    tile, tiles = (int(trace.column(f"{side}_{part}")[row]) for part in ("tile", "tiles"))
    other = (tile + rng.randrange(1, tiles)) % tiles
    made = with_value(trace, f"{side}_tile", row, other)
    swapped = [r for r in rows if r != row and trace.column(f"{side}_tile")[r] == other]
    if side == "produces":
        made = with_value(made, f"{side}_tile", swapped[0], tile)
    return made, [int(trace.node_id[r]) for r in (row, *swapped[:1])]


def displace(trace, rng):
    """A step reads or writes other chunks than before."""
    side = rng.choice(("src_off", "dst_off"))
    rows = np.flatnonzero(trace.column(side) != MISSING).tolist()
    if not rows:
        return None
    row = rng.choice(rows)
    value = max(0, int(trace.column(side)[row]) + rng.choice((-1, 1)))
    return with_value(trace, side, row, value), [int(trace.node_id[row])]


def replace_sum(trace, rng):
    """A reduction becomes a copy."""
    rows = np.flatnonzero((trace.type == NodeType.COMP) & (trace.column("comp_op") == 1)).tolist()
    if not rows:
        return None
    row = rng.choice(rows)
    return with_value(trace, "comp_op", row, 2), [int(trace.node_id[row])]


EDITS = (drop, drop, drop, move, move, retile, retile, displace, replace_sum)


def survey(number: int, seed: int) -> tuple[Counter, list]:
    """Edit random sets; counts of what was found by edit, and edits that change a value and were not found."""
    rng, seen, slips = random.Random(seed), Counter(), []
    while sum(seen.values()) < number:
        ranks = rng.randint(2, 5)
        made = rng.choice(APART)() if rng.random() < 0.2 else built(*rng.choice(SERVED), ranks, rng)
        if made is None:
            continue
        traces = in_tiles(made, rng)
        for _ in range(4):
            rank, edit = rng.randrange(made.ranks), rng.choice(EDITS)
            edited = edit(traces[rank], rng)
            if edited is None:
                continue
            mutant = (*traces[:rank], edited[0], *traces[rank + 1 :])
            verdict, touched = verify_workload(mutant), [(rank, node) for node in edited[1]]
            if verdict.passes and not verdict.unknown:
                runs = outcomes(mutant, rng, touched)
                seen[edit.__name__, "harmless"] += 1
                if any(run is None or run for run in runs):
                    slips.append((edit.__name__, made, seed, touched, runs))
                continue
            shown = verdict.well_formed is False or verdict.terminates is False
            shown = shown or any(run is None or run for run in outcomes(mutant, rng, touched))
            seen[edit.__name__, "found" if shown else "found, and no run shows it"] += 1
    return seen, slips


@pytest.mark.parametrize(
    ("number", "seed"),
    [(60, 1), *(pytest.param(300, seed, marks=[pytest.mark.slow, pytest.mark.nightly]) for seed in (2026, 2027))],
)
def test_every_edit_that_changes_a_value_is_found(number, seed):
    """What passes is right in every order of running it. Some that are found change no value in the orders tried."""
    seen, slips = survey(number, seed)
    assert not slips, slips[0]
    assert {name for name, _ in seen} == {edit.__name__ for edit in EDITS}
    assert seen.total() - sum(n for (_, what), n in seen.items() if what == "found") < 0.5 * number
    assert sum(n for (_, what), n in seen.items() if what == "found, and no run shows it") < 0.1 * number


# -- counterexamples


def ring(items, nodes: list[dict], waits: dict[int, list[int]]) -> tuple[ExecutionTrace, ...]:
    """Inlined collectives of 4 ranks over a ring, with further nodes."""
    workload = generate([Collective(type=kind, size=4096) for kind in items], 4)
    trace = with_nodes(workload.traces[0], nodes, waits)

    class Ring:
        def select(self, collective, *_, **__):
            return build("ring", collective, 4)

    topology = build_topology(shape="torus", dims=[4], bandwidth="100 GB/s", latency="1 us")
    job = Job(workload=replace(workload, traces=(trace,) * 4), placement=(0, 1, 2, 3), algorithms=Ring())
    return inline(Problem(topology=topology, jobs=(job,)))[0].traces


@pytest.fixture(scope="module")
def layer() -> tuple[ExecutionTrace, ...]:
    """Tiles 2 to 5 consume an all_gather, steps 6 to 11, and produce a reduce_scatter, steps 12 to 20."""
    use = {"consumes": 0, "consumes_tiles": 4, "produces": 1, "produces_tiles": 4, "duration_ps": 10**6}
    nodes = [{"deps": [0], "consumes_tile": tile, "produces_tile": tile, **use} for tile in range(4)]
    return ring(["all_gather", "reduce_scatter"], nodes, {1: [2, 3, 4, 5]})


@pytest.fixture(scope="module")
def sums() -> tuple[ExecutionTrace, ...]:
    """Tiles 1 to 4 consume an all_reduce, steps 5 to 19."""
    use = {"consumes": 0, "consumes_tiles": 4, "duration_ps": 10**6}
    return ring(["all_reduce"], [{"deps": [0], "consumes_tile": tile, **use} for tile in range(4)], {})


def judged(traces, rank: int, trace: ExecutionTrace) -> Verdict:
    return verify_workload((*traces[:rank], trace, *traces[rank + 1 :]))


def rewired(trace: ExecutionTrace, node: int, old: int | None, new: int | None) -> ExecutionTrace:
    """A node that waits for another one than before."""
    deps = deps_of(trace)
    own = deps[trace.row(node)]
    if old is not None:
        own.remove(old)
    if new is not None:
        own.append(new)
    return with_deps(trace, deps)


def test_a_layer_is_right(layer, sums):
    for traces in (layer, sums):
        verdict = verify_workload(traces)
        assert verdict.passes and verdict.unknown == "" and verdict.terminates and verdict.race_free


def test_a_tile_that_does_not_wait_races_with_the_step_that_writes_it(layer):
    verdict = judged(layer, 2, rewired(layer[2], 3, 7, None))
    assert (verdict.race_free, verdict.races) == (False, 1)
    assert verdict.problem == (
        "race: rank 2 node 3 (consumes_tile 1 of 4 of all_gather, call 0) reads output chunk 1 (nothing defined), "
        "rank 2 node 7 (step 1 of all_gather, call 0) writes it (chunk 0 of rank 1), and nothing says which is first"
    )
    known = {"kind": "race", "rank": 2, "buffer": "output", "chunk": 1}
    assert known.items() <= verdict.counterexample.items()


def test_a_tile_of_another_number_reads_what_is_not_there(layer):
    row = layer[2].row(3)
    verdict = judged(layer, 2, with_value(layer[2], "consumes_tile", row, 3))
    assert "rank 2 node 3 (consumes_tile 3 of 4 of all_gather, call 0) reads output chunk 3" in verdict.problem


def test_a_send_that_does_not_wait_for_its_tile_is_found(layer):
    """Rank 0 sends chunk 3 first, which tile 3 makes."""
    verdict = judged(layer, 0, rewired(layer[0], 12, 5, None))
    assert verdict.problems == (
        "race: rank 0 node 5 (produces_tile 3 of 4 of reduce_scatter, call 1) writes input chunk 3 (chunk 3 of rank 0),"
        " rank 0 node 12 (step 0 of reduce_scatter, call 1) reads it (chunk 3 of rank 0), and nothing says which is "
        "first",
    )


def test_a_tile_made_after_a_step_that_uses_its_cell_is_found(layer):
    """Rank 0 adds to chunk 2 before tile 2 makes it."""
    verdict = judged(layer, 0, rewired(rewired(layer[0], 14, 4, None), 4, None, 15))
    assert (verdict.race_free, verdict.correct) == (True, False)
    assert verdict.problem == (
        "rank 0 node 14 (step 2 of reduce_scatter, call 1) reads input chunk 2, which holds nothing defined: "
        "rank 0 node 4 (produces_tile 2 of 4 of reduce_scatter, call 1) makes it later"
    )


def test_a_tile_made_after_a_receive_into_its_cell_destroys_what_came():
    """All tiles of rank 1 are made in place of the sums that it has received."""
    use = {"produces": 0, "produces_tiles": 4, "duration_ps": 10**6}
    nodes = [{"deps": [], "produces_tile": tile, **use} for tile in range(4)]
    traces = ring(["broadcast"], nodes, {0: [1, 2, 3, 4]})
    assert verify_workload(traces).passes
    after = with_deps(traces[1], [[], [6], [6], [6], [6], [0], [5]])
    verdict = judged(traces, 1, after)
    assert (verdict.race_free, verdict.wrong_cells) == (True, 4)
    assert verdict.problem == (
        "rank 1 input chunk 0 (part 1 of 4) of broadcast, call 0 holds chunk 0 of rank 1 at the end, "
        "not chunk 0 of rank 0: last written by rank 1 node 1 (produces_tile 0 of 4 of broadcast, call 0)"
    )


def test_a_tile_that_reads_a_partial_sum_is_told_what_it_holds(sums):
    """It reads after the first reduction, beside the step that writes the whole sum, or before it."""
    reads, writes = "rank 0 node 3 (consumes_tile 2 of 4 of all_reduce, call 0) reads input chunk 2", "rank 0 node 17"
    beside = rewired(sums[0], 3, 17, 7)
    assert judged(sums, 0, beside).problem == (
        f"race: {reads} (the sum of chunk 2 of ranks 0, 3), {writes} (step 12 of all_reduce, call 0) writes it "
        "(the sum of chunk 2 of ranks 0..3), and nothing says which is first"
    )
    before = judged(sums, 0, rewired(beside, 17, None, 3))
    assert before.race_free and before.problem == (
        f"{reads}, which holds the sum of chunk 2 of ranks 0, 3: "
        f"{writes} (step 12 of all_reduce, call 0) writes the sum of chunk 2 of ranks 0..3 later"
    )
    whole = "the sum of chunk 2 of ranks 0..3"
    expected = {"kind": "post-condition", "rank": 0, "buffer": "input", "chunk": 2, "expected": whole}
    assert expected.items() <= before.counterexample.items()


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda t: with_value(t, "consumes", t.row(3), 77), "rank 2 node 3 consumes node 77, which is not there"),
        (lambda t: with_value(t, "consumes", t.row(3), 2), "rank 2 node 3 consumes node 2, where no collective begins"),
        (lambda t: with_value(t, "tile_order", t.row(3), 1), "rank 2 node 3 has tile_order, which is an order of"),
        (
            lambda t: with_value(t, "produces_tiles", t.row(2), 2**31 - 1),
            "rank 2 node 2 uses one of 2147483647 tiles of the 4 chunks of reduce_scatter, call 1",
        ),
        (lambda t: with_value(t, "consumes_tile", t.row(3), 4), "rank 2 node 3 has consumes_tile 4 of 4"),
        (
            lambda t: with_value(t, "consumes_tiles", t.row(3), 3),
            "rank 2 node 3 uses one of 3 tiles of the 4 chunks of all_gather, call 0",
        ),
        (
            lambda t: with_value(t, "produces", t.row(3), MISSING),
            "rank 2 node 2 produces a tile of reduce_scatter, call 1, and none produces tile 1",
        ),
        (
            lambda t: with_value(t, "inlined_rank", t.row(0), 1),
            "call 0 does not begin once at each position of its group (inlined_rank)",
        ),
        (lambda t: with_value(t, "comm_tag", t.row(6), 99), "(tag 0) that is never sent"),
        (
            lambda t: with_value(t, "payload", t.row(14), 16),
            "rank 2 node 14 takes data of node 16, but does not wait for it",
        ),
        (
            lambda t: rewired(t, 7, 6, 8),
            "deadlock: it never ends: rank 2 node 8 (step 2 of all_gather, call 0) waits for rank 2 node 7",
        ),
    ],
)
def test_edits_that_cannot_be_run_are_named(layer, edit, problem):
    verdict = judged(layer, 2, edit(layer[2]))
    assert not verdict.passes and problem in verdict.problem, verdict.problem


def test_any_value_in_any_column_is_judged(layer):
    """Whatever a file holds, the answer is a verdict, and soon."""
    rng = random.Random(5)
    for _ in range(60):
        trace, name = layer[1], rng.choice([name for name in INT_COLUMNS if layer[1].has_column(name)])
        value = rng.choice((MISSING, -1, 0, 1, 7, 99, 2**31 - 1, 2**40, 2**62))
        rows = np.flatnonzero(trace.column(name) != MISSING).tolist()
        verdict = judged(layer, 1, with_value(trace, name, rng.choice(rows), value))
        assert verdict.passes or verdict.problem


def test_what_is_not_known_is_said(layer):
    bare = tuple(trace.replace(src_buf=MISSING) for trace in layer)
    verdict = verify_workload(bare)
    assert verdict.passes and (verdict.correct, verdict.race_free) == (None, None)
    assert verdict.unknown == "all_gather, call 0 does not state which cells its steps read and write"
