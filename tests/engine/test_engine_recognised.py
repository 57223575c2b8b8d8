"""Algorithms given rank by rank: a rotation among them is found exactly where there is one, and changes no record."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import AlgorithmError, AstraError
from astrasim_py.core.records import Records
from astrasim_py.engine.compare import differences
from astrasim_py.engine.simulation import simulate
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import read_algorithm, write_npz
from astrasim_py.program.interchange import algorithm_from_traces, algorithm_traces
from astrasim_py.program.rotation import rotation_of
from astrasim_py.program.traces import Traces
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

RATE = Fraction(10**10)
BY_BYTES = Semantics.native(message_match="bytes")


def declared(ranks: int) -> list[Algorithm]:
    found = [build("hierarchical", "all_reduce", ranks, dims=[2, ranks // 2], chunks=2)] if ranks in (6, 8) else []
    for name, (collectives, _) in ALGORITHMS.items():
        for collective in collectives:
            try:
                found.append(build(name, collective, ranks))
            except AlgorithmError:
                continue
    return [algorithm for algorithm in found if algorithm.rotation is not None]


def with_fields(trace: ExecutionTrace, **fields) -> ExecutionTrace:
    return dataclasses.replace(trace, _cache={}, **fields)


def given_by_rank(algorithm: Algorithm, size: int | None = None) -> Algorithm:
    """As files give it: every rank's trace by itself, with a name and a file of its own."""
    traces = []
    for rank, trace in enumerate(algorithm_traces(algorithm, size)):
        names = [f"{rank}:{row}" for row in range(len(trace))]
        traces.append(with_fields(trace, names=names, place=f"a.{rank}.et"))
    return algorithm_from_traces(traces, algorithm.collective, source="a")


def apart(algorithm: Algorithm) -> Algorithm:
    """The same, nothing being looked for among its traces."""
    return replace(algorithm, traces=tuple(algorithm.traces))


def problem_of(algorithm: Algorithm, size: int, **more) -> Problem:
    class Table:
        def select(self, *_, **__):
            return algorithm

    n = algorithm.ranks
    kind = "all_reduce" if algorithm.collective == "barrier" else algorithm.collective
    job = Job(
        workload=generate([Collective(type=kind, size=size, root=algorithm.root or 0)], n),
        placement=tuple(reversed(range(n))),
        algorithms=Table(),
    )
    return Problem(topology=shapes.Ring(npus=n, bandwidth=RATE, latency=500_000).build(), jobs=(job,), **more)


def outcome(problem: Problem, engine: str):
    """Records, or the line that refuses them."""
    try:
        return simulate(problem, engine=engine, level="messages")
    except AstraError as error:
        return str(error)


def same(one, other) -> bool:
    return one == other if isinstance(one, str) or isinstance(other, str) else differences(one, other) == []


@pytest.mark.parametrize("ranks", [2, 3, 6, 8])
def test_what_a_builder_declares_is_found_in_its_traces(ranks):
    algorithms = declared(ranks)
    assert {"ring", "direct", "bruck"} <= {algorithm.name for algorithm in algorithms}
    for algorithm in algorithms:
        given = given_by_rank(algorithm)
        assert given.traces.searched and given.rotation is None
        if algorithm.messages == 0:
            continue
        found = given.rotated
        assert found is not None, algorithm.name
        ours, theirs = found.rotation, algorithm.rotation
        base = algorithm.traces[0]
        peers = np.maximum(base.column("comm_dst"), base.column("comm_src"))[base.type != NodeType.COMP]
        every = np.arange(ranks)[:, None]
        assert np.array_equal(ours.shift(peers, every), theirs.shift(peers, every))
        assert all(a is b for a, b in zip(found.traces, given.traces, strict=True))
        assert all(found.traces[rank] is given.traces[rank] for rank in range(ranks))
        for size in (1000 * max(algorithm.chunks, 1), 1001):
            each = np.stack([given.message_bytes(rank, size) for rank in range(ranks)])
            assert np.array_equal(found.bytes_of_ranks(range(ranks), size), each)
        assert given.with_verdict(True).rotated.traces is found.traces, "what was found is looked for again"
        assert pickle.loads(pickle.dumps(given)).rotated.rotation == found.rotation


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "verbatim"), [(4, True), (6, False), (6, True), (8, False)])
def test_records_are_those_of_traces_planned_one_by_one(ranks, verbatim):
    semantics = Semantics(injected_sizes="verbatim", gamma=Fraction(3)) if verbatim else Semantics()
    turned = 0
    for i, algorithm in enumerate(declared(ranks)):
        size = 48 * max(algorithm.chunks, 1) + i % 2 * 7
        given = given_by_rank(algorithm, size if verbatim else None)
        problem, plain = (problem_of(each, size, semantics=semantics) for each in (given, apart(given)))
        plan = make_plan(problem)
        turned += plan.calls[0].rotation is not None
        assert make_plan(plain).calls[0].rotation is None
        for rank in range(ranks):
            place = plan.position(rank, 0)
            assert plan.trace(rank, 0) is given.traces[place]
        for engine in ("simpy", "compiled"):
            assert same(outcome(problem, engine), outcome(plain, engine)), algorithm.name
    assert turned >= 6


def other_peer(trace: ExecutionTrace, rank: int, ranks: int) -> dict:
    row = int(np.flatnonzero(trace.type == NodeType.COMM_SEND)[0])
    column = trace.column("comm_dst").copy()
    column[row] = next(p for p in range(ranks) if p not in (rank, column[row]))
    return {"comm_dst": column}


def other_value(name: str, kind: NodeType):
    def change(trace: ExecutionTrace, rank: int, ranks: int) -> dict:
        row = int(np.flatnonzero(trace.type == kind)[-1])
        column = trace.column(name).copy()
        column[row] = 2 if column[row] == MISSING else column[row] + 1
        return {name: column}

    return change


def no_chunk(trace: ExecutionTrace, rank: int, ranks: int) -> dict:
    column = trace.column("msg_chunk_idx").copy()
    column[0] = MISSING
    return {"msg_chunk_idx": column, "comm_size": np.where(column == MISSING, 64, MISSING)}


def longer(trace: ExecutionTrace, rank: int, ranks: int) -> dict:
    micros = trace.duration_micros.copy()
    micros[trace.type == NodeType.COMP] += 1
    return {"duration_micros": micros}


def fewer_dependencies(trace: ExecutionTrace, rank: int, ranks: int) -> dict:
    ptr, ids = trace.data_deps
    ptr = ptr.copy()
    ptr[-1] -= 1
    assert ptr[-1] >= ptr[-2]
    return {"data_deps": (ptr, ids[:-1])}


def other_kind(trace: ExecutionTrace, rank: int, ranks: int) -> dict:
    kinds = trace.type.copy()
    kinds[np.flatnonzero(kinds == NodeType.COMP)[0]] = NodeType.METADATA
    return {"type": kinds}


CHANGES = {
    "peer": other_peer,
    "tag": other_value("comm_tag", NodeType.COMM_SEND),
    "chunk count": other_value("msg_chunk_cnt", NodeType.COMM_RECV),
    "size": other_value("comm_size", NodeType.COMM_SEND),
    "duration": longer,
    "exact duration": other_value("duration_ps", NodeType.COMP),
    "operation": other_value("comp_op", NodeType.COMP),
    "counter": other_value("counter", NodeType.COMP),
    "no chunk": no_chunk,
    "dependency": fewer_dependencies,
    "kind": other_kind,
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_one_difference_on_one_rank_is_no_rotation(what, rank):
    whole = given_by_rank(build("ring", "all_reduce", 5, chunks=2))
    assert whole.rotated is not None
    trace = whole.traces[rank]
    changed = CHANGES[what](trace, rank, 5)
    other = with_fields(trace, **changed) if "type" in changed else trace.replace(**changed)
    traces = [other if r == rank else each for r, each in enumerate(whole.traces)]
    try:
        given = algorithm_from_traces(traces, "all_reduce", source="a")
    except AlgorithmError:
        given = replace(whole, traces=Traces.of(traces, searched=True))
    assert given.rotated is None
    for engine in ("simpy", "compiled"):
        found = outcome(problem_of(given, 1003), engine)
        assert same(found, outcome(problem_of(apart(given), 1003), engine))


def test_where_data_lie_is_each_ranks_own():
    whole = given_by_rank(build("ring", "all_reduce", 5))
    trace = whole.traces[3]
    moved = {name: np.where(trace.column(name) == MISSING, MISSING, 1) for name in ("msg_chunk_idx", "src_off")}
    traces = [trace.replace(**moved) if r == 3 else each for r, each in enumerate(whole.traces)]
    given = algorithm_from_traces(traces, "all_reduce", source="a")
    assert given.rotated is not None
    for size in (1000, 1003):
        for engine in ("simpy", "compiled"):
            one, other = (outcome(problem_of(each, size), engine) for each in (given, apart(given)))
            assert same(one, other)


def test_algorithms_that_do_not_turn_are_not_recognised():
    for name, collective in (("double_binary_tree", "all_reduce"), ("linear", "broadcast"), ("ring", "broadcast")):
        algorithm = build(name, collective, 8)
        assert algorithm.rotation is None and rotation_of(tuple(algorithm.traces)) is None


@pytest.mark.parametrize("form", ["et", "npz"])
def test_files_are_recognised_and_stay_what_they_are(form, tmp_path):
    algorithm = build("hierarchical", "all_reduce", 12, dims=[3, 4])
    prefix = tmp_path / "a"
    if form == "npz":
        prefix = tmp_path / "a.npz"
        write_npz(prefix, apart(algorithm))
    else:
        write_prefix(prefix, algorithm_traces(algorithm))
    given = read_algorithm(prefix)
    assert given.rotation is None and given.rotated.rotation.dims == (3, 4)
    assert given.digest() == algorithm.digest()
    if form == "et":
        write_prefix(tmp_path / "b", given.rotated.traces)
        for rank in range(12):
            assert (tmp_path / f"b.{rank}.et").read_bytes() == (tmp_path / f"a.{rank}.et").read_bytes()
            assert given.rotated.traces[rank].place.endswith(f"a.{rank}.et")


def test_files_of_a_rotation_fold_to_the_records_of_all_ranks():
    given = given_by_rank(build("ring", "all_reduce", 6))
    problem = problem_of(given, 6000)
    job = replace(problem.jobs[0], placement=tuple(range(6)))
    problem = replace(problem, jobs=(job,))
    assert make_plan(problem).calls[0].rotation is not None
    assert differences(simulate(problem, engine="simpy", fold=True), simulate(problem, engine="compiled")) == []


# -- matching by bytes: a collective whose ranks exchange nothing else is planned as one program --------------------


def is_turned(problem: Problem) -> bool:
    return any(part.rotation is not None for part in make_plan(problem).calls)


def assert_as_apart(algorithm: Algorithm, size: int, semantics: Semantics = BY_BYTES, status: str = "done") -> None:
    """Nothing shows of how it is planned, in either engine."""
    assert not is_turned(problem_of(apart(algorithm), size, semantics=semantics))
    for engine in ("simpy", "compiled"):
        found, reference = (
            outcome(problem_of(each, size, semantics=semantics), engine) for each in (algorithm, apart(algorithm))
        )
        assert isinstance(found, Records) and found.outcome.status == status and found.messages
        assert same(found, reference)


@pytest.mark.parametrize("ranks", [3, 6])
def test_it_is_planned_as_one_where_bytes_tell_no_messages_apart(ranks):
    for algorithm in declared(ranks):
        given = given_by_rank(algorithm)
        assert is_turned(problem_of(given, 7200, semantics=BY_BYTES)), algorithm.name
        assert_as_apart(given, 7200)


def test_a_second_call_shares_its_channels():
    algorithm = build("ring", "all_reduce", 4)
    problem = problem_of(algorithm, 4096, semantics=BY_BYTES)
    calls = [Collective(type="all_reduce", size=4096)] * 2
    twice = replace(problem, jobs=(replace(problem.jobs[0], workload=generate(calls, 4)),))
    assert is_turned(problem) and not is_turned(twice)


def test_members_of_unequal_bytes_are_planned_one_by_one():
    assert not is_turned(problem_of(given_by_rank(build("ring", "all_reduce", 4)), 4097, semantics=BY_BYTES))


@pytest.mark.parametrize("received, status", [((10, 20), "done"), ((10, 21), "stuck")])
def test_two_sizes_under_one_tag_are_told_apart(received, status):
    traces = []
    for trace in algorithm_from_traces(list(build("ring", "all_gather", 3).traces), "all_gather", source="a").traces:
        size = np.full(len(trace), MISSING, dtype=np.int64)
        size[trace.type == NodeType.COMM_SEND] = (10, 20)
        size[trace.type == NodeType.COMM_RECV] = received
        nothing = np.full(len(trace), MISSING, dtype=np.int64)
        chunks = dict.fromkeys(("msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt"), nothing)
        tag = np.where(size == MISSING, MISSING, 0)
        traces.append(trace.replace(comm_size=size, comm_tag=tag, **chunks))
    given = algorithm_from_traces(traces, "all_gather", source="a")
    assert given.rotated is not None
    assert not is_turned(problem_of(given, 4096, semantics=BY_BYTES))
    assert_as_apart(given, 4096, status=status)


def test_verbatim_sizes_hold_for_all_ranks_and_chunks_need_their_number():
    given = replace(given_by_rank(build("ring", "all_reduce", 5), 1000), chunks=0)
    verbatim = Semantics.native(message_match="bytes", injected_sizes="verbatim")
    assert given.rotated is not None
    for semantics, size, turned in ((verbatim, 1000, True), (BY_BYTES, 1000, True), (BY_BYTES, 1003, False)):
        assert is_turned(problem_of(given, size, semantics=semantics)) == turned
        assert_as_apart(given, size, semantics)
