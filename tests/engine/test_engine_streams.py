"""Streams in queues, counters, detached sends and the rendezvous: laws, and both engines event for event."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.replay import Replay
from worlds import small_problems
from worlds.programs import Planned, algorithm, random_planner

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.simulation import simulate
from astrasim_py.engine.stuck import explanation
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, PlannedChunk, PlannedPhase, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes

US = 1_000_000
COMP, SEND, RECV, COLL = NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL


def one_call(ranks: int, planner, *, calls: int = 1, network=None, semantics=None, npus: int = 0) -> Problem:
    """`calls` collectives of all ranks, at once, on a ring of 1 GB/s and 1 µs."""
    nodes = [{"type": COLL, "comm_type": 0, "comm_size": 1000} for _ in range(calls)]
    return Problem(
        topology=shapes.Ring(npus=npus or max(ranks, 2), bandwidth=small_problems.GB, latency=US).build(),
        jobs=(
            Job(
                workload=small_problems.workload([nodes] * ranks),
                placement=tuple(range(ranks)),
                algorithms=small_problems.Table("ring"),
                planner=planner,
            ),
        ),
        network=network or NetworkModel(),
        semantics=semantics or Semantics.native(),
    )


# -- both engines -----------------------------------------------------------------------------------------------


def same(problem: Problem) -> str:
    """Run both engines, hold them to each other; how it ended."""
    plan = make_plan(problem)
    records = simulate(plan, level="messages")
    other = Replay(plan).run()
    first, total = plan.first_row, plan.row_count
    expected = np.full((2, total), -1, dtype=np.int64)
    for (rank, index, node), (begin, done) in other.nodes.items():
        expected[:, first(rank, index) + node] = begin, -1 if done is None else done
    assert records.node["start"].tolist() == expected[0].tolist()
    assert records.node["end"].tolist() == expected[1].tolist()
    hops = list(zip(*(records.hop[c].tolist() for c in ("link", "requested", "start", "end")), strict=True))
    assert hops == [hop[:4] for hop in other.hops]
    done = records.outcome.status == "done"
    assert done == (-1 not in expected[1])
    names = list(zip(*(records.node[c].tolist() for c in ("rank", "instance", "node")), strict=True))
    assert len(set(names)) == len(names) == total
    if done and not problem.semantics.rendezvous_bytes:
        assert records.messages == plan.messages
    for rank_queue, most in other.most_running.items():
        assert 1 <= most <= problem.jobs[0].planner.capacity[rank_queue[1]]
    return records.outcome.status


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    small_problems.problems(),
    st.integers(0, 2**32),
    st.sampled_from([0, 0, 100]),
    st.sampled_from(["issued", "scheduled"]),
)
def test_both_engines_agree_on_random_planners(problem, seed, rendezvous, order):
    semantics = problem.semantics.model_copy(update={"rendezvous_bytes": rendezvous, "event_order": order})
    job = replace(problem.jobs[0], planner=random_planner(random.Random(seed)))
    same(replace(problem, jobs=(job,), semantics=semantics))


@pytest.mark.parametrize("seed", range(40))
def test_both_engines_agree_on_planned_collectives(seed):
    rng = random.Random(seed)
    network = NetworkModel(
        model=rng.choice(("cut_through", "store_and_forward", "analytical")),
        send_completes=rng.choice(("delivery", "injected")),
    )
    semantics = Semantics.native(
        event_order=rng.choice(("issued", "scheduled")), rendezvous_bytes=rng.choice((0, 100)), comm_slots=1
    )
    problem = one_call(rng.randint(2, 6), random_planner(rng), calls=3, network=network, semantics=semantics)
    same(problem)


def test_random_planners_finish_and_get_stuck():
    """So that the agreement above is of something."""
    ends = [same(one_call(4, random_planner(random.Random(seed)), calls=2)) for seed in range(30)]
    assert ends.count("done") > 5
    assert ends.count("stuck") > 5


# -- queues -----------------------------------------------------------------------------------------------------


def busy_planner(rng: random.Random, *, queues: int = 2, most: int = 2) -> Planned:
    """Every phase is one compute per rank, so that ranks do not depend on each other."""
    length = itertools.count(1)

    def make(call):
        def phase():
            nodes = [[{"type": COMP, "duration_ps": rng.randint(1, 5) * US + next(length)}] for _ in call.members]
            return PlannedPhase(queue=rng.randrange(queues), size=0, calls=((call.members, algorithm(nodes)),))

        return tuple(
            PlannedChunk(phases=tuple(phase() for _ in range(rng.randint(1, 3))), priority=rng.randint(0, 1))
            for _ in range(rng.randint(1, 5))
        )

    return Planned(tuple(rng.randint(1, most) for _ in range(queues)), make)


def visits(plan, records, rank):
    """(queue, stream priority, arrival, start, end) of every phase of one rank, by queue."""
    first = plan.first_row
    start, end = records.node["start"], records.node["end"]
    out: dict[int, list[tuple]] = {}
    for instance in plan.instances:
        for stream in instance.chunks:
            arrival = 0
            for visit in stream.phases:
                row = first(rank, visit.first + visit.call_of[rank])
                out.setdefault(visit.queue, []).append((stream.priority, arrival, int(start[row]), int(end[row])))
                arrival = int(end[row])
    return out


@pytest.mark.parametrize("seed", range(25))
def test_queues_keep_their_capacity_and_order(seed):
    planner = busy_planner(random.Random(seed))
    plan = make_plan(one_call(2, planner, calls=2))
    records = simulate(plan, level="nodes")
    assert records.outcome.status == "done"
    for rank in range(2):
        for queue, entries in visits(plan, records, rank).items():
            capacity = planner.capacity[queue]
            for _, arrival, start, _ in entries:
                running = sum(s <= start < e for _, _, s, e in entries)
                assert running <= capacity
                if start > arrival:  # it had to wait: the queue was full until then
                    assert sum(s < start <= e for _, _, s, e in entries) >= capacity
            for (p, a, s, _), (q, b, t, _) in itertools.permutations(entries, 2):
                if p == q and a < b:
                    assert s <= t, "arrival decides among equals"
                if p > q and a < t:
                    assert s <= t, "the higher priority goes first"


def test_of_equal_arrival_the_lower_chunk_goes_first():
    phases = [
        PlannedPhase(queue=0, size=0, calls=(((0, 1), algorithm([[{"type": COMP, "duration_ps": US}]] * 2)),))
        for _ in range(4)
    ]
    plan = make_plan(one_call(2, Planned((1,), lambda call: tuple(PlannedChunk(phases=(p,)) for p in phases))))
    records = simulate(plan, level="nodes")
    rows = records.node["instance"] >= 0
    assert records.node["start"][rows].tolist() == [0, US, 2 * US, 3 * US] * 2
    assert records.node["name"][rows].tolist()[:2] == ["chunk 0 phase 0", "chunk 1 phase 0"]
    assert records.node["node"][rows].tolist()[:4] == [0, 1, 2, 3]


def test_turns_hold_a_chunk_back_until_it_is_due():
    compute = algorithm([[{"type": COMP, "duration_ps": US}]] * 2)
    phase = PlannedPhase(queue=0, size=0, calls=(((0, 1), compute),))
    turns = (2, 0, 1)
    planner = Planned((2,), lambda call: tuple(PlannedChunk(phases=(phase,), turns=(t,)) for t in turns))
    plan = make_plan(one_call(2, planner))
    records = simulate(plan, level="nodes")
    start = records.node["start"][records.node["instance"] >= 0].tolist()
    assert start[:3] == [US, 0, 0]


def test_a_collective_without_streams_takes_no_time():
    records = simulate(one_call(3, Planned((1,), lambda call: ()), calls=2))
    assert (records.outcome.status, records.makespan) == ("done", 0)
    assert records.collective["end"].tolist() == [0, 0]


def test_chunks_pipeline_over_dimensions():
    """With two queues of one, C chunks of two equal phases take C + 1 times a phase."""
    compute = algorithm([[{"type": COMP, "duration_ps": US}]] * 2)
    phases = tuple(PlannedPhase(queue=q, size=0, calls=(((0, 1), compute),)) for q in (0, 1))
    records = simulate(one_call(2, Planned((1, 1), lambda call: (PlannedChunk(phases=phases),) * 5)))
    assert records.makespan == 6 * US


# -- the Plan ---------------------------------------------------------------------------------------------------


def ring_planner(sizes, chunks) -> Planned:
    """Reduce-scatter up and all-gather down the dimensions of a torus."""
    made: dict = {}

    def ring(collective, n):
        return made.setdefault((collective, n), replace(build("ring", collective, n), verdict=True))

    def rows(dim, ranks):
        stride = int(np.prod(sizes[:dim]))
        out: dict[int, list[int]] = {}
        for rank in range(ranks):
            out.setdefault(rank - rank // stride % sizes[dim] * stride, []).append(rank)
        return [tuple(row) for row in out.values()]

    def make(call):
        size, phases = call.size // chunks, []
        last = len(sizes) - 1
        order = [("reduce_scatter", d) for d in range(last)]
        for kind, dim in [*order, ("all_reduce", last), *(("all_gather", d) for _, d in reversed(order))]:
            size *= sizes[dim] if kind == "all_gather" else 1
            slices = tuple((row, ring(kind, sizes[dim])) for row in rows(dim, len(call.members)))
            phases.append(PlannedPhase(queue=dim, size=size, calls=slices))
            size //= sizes[dim] if kind == "reduce_scatter" else 1
        return (PlannedChunk(phases=tuple(phases)),) * chunks

    return Planned((1,) * len(sizes), make)


def torus_call(sizes, chunks, size) -> Problem:
    ranks = int(np.prod(sizes))
    problem = one_call(ranks, ring_planner(sizes, chunks))
    nodes = [{"type": COLL, "comm_type": 0, "comm_size": size}]
    job = replace(problem.jobs[0], workload=small_problems.workload([nodes] * ranks))
    return replace(
        problem, topology=shapes.Torus(dims=list(sizes), bandwidth=small_problems.GB, latency=US).build(), jobs=(job,)
    )


def test_bytes_are_conserved_over_dimensions():
    size = 12 * 8 * 8
    records = simulate(torus_call((2, 4), 3, size), level="messages")
    assert records.outcome.status == "done"
    chunk = size // 3
    # Each rank sends (n-1)/n of the chunk in the ring of each half, twice in the last dimension, once each way below.
    expected = 8 * 3 * (2 * (chunk // 2) + 2 * (chunk // 2) * 3 // 4)
    assert int(records.message["bytes"].sum()) == expected
    hops = records.message["bytes"] * records.message["hops"]
    assert int(records.link["bytes"].sum()) == int(hops.sum())
    assert records.collective["algorithm"].tolist() == ["ring"]


def test_programs_of_equal_chunks_are_shared():
    plan = make_plan(torus_call((4, 4, 4), 64, 2**20))
    assert len(plan.calls) == 64 * 5 * 16
    assert len({id(part) for part in plan.calls}) == 5 * 16
    assert len({id(p) for part in plan.calls for p in part.programs}) == 5 * 4
    assert plan.messages == 64 * 64 * (2 * 3 * 2 + 2 * 3)


@pytest.mark.parametrize(
    ("phase", "what"),
    [
        (lambda a: PlannedPhase(queue=1, size=0, calls=(((0, 1), a),)), "queue 1"),
        (lambda a: PlannedPhase(queue=0, size=0, calls=(((0, 0), a),)), "twice"),
        (lambda a: PlannedPhase(queue=0, size=0, calls=(((0, 1), a), ((1, 0), a))), "two calls"),
        (lambda a: PlannedPhase(queue=0, size=0, calls=()), "each member"),
        (lambda a: PlannedPhase(queue=0, size=0, calls=(((0,), a),)), "made for 2 ranks"),
    ],
)
def test_ill_made_phases_are_refused(phase, what):
    made = phase(algorithm([[{"type": COMP}]] * 2))
    with pytest.raises(AlgorithmError, match=what):
        make_plan(one_call(2, Planned((1,), lambda call: (PlannedChunk(phases=(made,)),))))


# -- counters and detached sends --------------------------------------------------------------------------------


def planned_once(per_rank, **more) -> Problem:
    made = algorithm(per_rank)
    members = tuple(range(len(per_rank)))
    phase = PlannedPhase(queue=0, size=0, calls=((members, made),))
    return one_call(len(per_rank), Planned((1,), lambda call: (PlannedChunk(phases=(phase,)),)), **more)


def comp(micros, **more) -> dict:
    return {"type": COMP, "duration_ps": micros * US, **more}


def test_a_count_releases_at_its_kth_completion():
    nodes = [comp(1, counter=0), comp(2, counter=0), comp(5, counter=0), comp(1, count_of=0, count_k=2)]
    records = simulate(planned_once([nodes, [comp(1)]]), level="nodes")
    mine = (records.node["instance"] == 0) & (records.node["rank"] == 0)
    assert records.node["start"][mine].tolist() == [0, 0, 0, 2 * US]
    rows = np.flatnonzero(mine)
    assert records.node["released_by"][rows[3]] == rows[1]


def test_a_count_from_a_node_excludes_it_and_everything_before():
    nodes = [
        comp(1, counter=0),
        comp(2, counter=0),
        comp(3, counter=0),
        comp(1, count_of=0, count_k=1, count_from=1),
        comp(1, deps={0}, count_of=0, count_k=1),
    ]
    records = simulate(planned_once([nodes, [comp(1)]]), level="nodes")
    mine = (records.node["instance"] == 0) & (records.node["rank"] == 0)
    assert records.node["start"][mine].tolist() == [0, 0, 0, 3 * US, 1 * US]


def test_counters_hold_in_workloads_too():
    nodes = [
        {"type": COMP, "duration_ps": US, "counter": 0},
        {"type": COMP, "is_cpu_op": 1, "duration_ps": 3 * US, "counter": 0},
        {"type": COMP, "duration_ps": US, "deps": {0}, "count_of": 0, "count_k": 1, "count_from": 0},
    ]
    problem = one_call(2, None)
    job = replace(problem.jobs[0], workload=small_problems.workload([nodes, nodes]))
    records = simulate(replace(problem, jobs=(job,)))
    assert records.finish.tolist() == [4 * US] * 2


def test_a_detached_send_ends_its_block_when_it_is_issued():
    """The first rank is done at once; the message arrives 2 µs later, in the middle of nothing of its sender."""
    message = {"comm_size": 1000}
    nodes = [[{"type": SEND, "peer": 1, "detached": 1, **message}], [{"type": RECV, "peer": 0, **message}]]
    for level in ("summary", "messages"):
        records = simulate(planned_once(nodes), level=level)
        assert records.outcome.status == "done"
        assert records.finish.tolist() == [0, 2 * US]
    assert records.node["end"][records.node["kind"] == "send"].tolist() == [2 * US]
    assert records.node["start"][records.node["kind"] == "send"].tolist() == [0]


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (comp(1, detached=1), "not a send"),
        (comp(1, count_of=0), "count_k"),
        (comp(1, count_k=1), "without count_of"),
        (comp(1, counter=-1), "negative counter"),
        (comp(1, count_of=0, count_k=1, count_from=9), "no node"),
        ({"type": SEND, "peer": 1, "comm_size": 1, "detached": 1, "counter": 0}, "counts in a counter"),
    ],
)
def test_what_counters_cannot_say_is_refused(node, what):
    nodes = [[comp(1), node], [{"type": RECV, "peer": 0, "comm_size": 1}] if node["type"] == SEND else [comp(1)]]
    with pytest.raises(AlgorithmError, match=what):
        make_plan(planned_once(nodes))


def test_nothing_depends_on_a_detached_send():
    nodes = [
        [{"type": SEND, "peer": 1, "comm_size": 1, "detached": 1}, comp(1, deps={0})],
        [{"type": RECV, "peer": 0, "comm_size": 1}],
    ]
    with pytest.raises(AlgorithmError, match="depend on it"):
        make_plan(planned_once(nodes))


def test_a_count_that_is_never_reached_is_explained():
    records = simulate(planned_once([[comp(1, counter=3), comp(1, count_of=3, count_k=2)], [comp(1)]]))
    assert records.outcome.status == "stuck"
    text = "\n".join(explanation(records.outcome))
    assert "counter 3 has 1 of the 2 completions" in text
    assert "chunk 0 phase 0" in text
    assert records.outcome.waiting[0].counter == 3


def test_a_chunk_that_waits_for_its_turn_is_explained():
    """Two ranks that serve two chunks in different orders wait for each other."""
    message = {"comm_size": 1}
    meets = algorithm([[{"type": SEND, "peer": 1, **message}, {"type": RECV, "peer": 1, **message}]] * 1 + [
        [{"type": SEND, "peer": 0, **message}, {"type": RECV, "peer": 0, **message}]
    ])  # fmt: skip
    skew = [algorithm([[comp(a)], [comp(b)]]) for a, b in ((1, 2), (2, 1))]
    before = [PlannedPhase(queue=0, size=0, calls=(((0, 1), made),)) for made in skew]
    meet = PlannedPhase(queue=1, size=0, calls=(((0, 1), meets),))
    planner = Planned((2, 1), lambda call: tuple(PlannedChunk(phases=(first, meet)) for first in before))
    records = simulate(one_call(2, planner))
    assert records.outcome.status == "stuck"
    text = "\n".join(explanation(records.outcome))
    assert "waits for its turn in queue 1 behind chunk 1 phase 1" in text
    assert records.outcome.cycle == (0, 1)


@pytest.mark.parametrize("match", ["instance", "bytes"])
def test_chunks_never_meet_messages_of_the_workload(match):
    """Both send 1 kB with tag 0 from rank 0 to rank 1; the workload's receive comes 5 µs later."""
    message = {"comm_size": 1000, "comm_tag": 0}
    made = algorithm([[{"type": SEND, "peer": 1, **message}], [{"type": RECV, "peer": 0, **message}]])
    phase = PlannedPhase(queue=0, size=0, calls=(((0, 1), made),))
    planner = Planned((1,), lambda call: (PlannedChunk(phases=(phase,)),))
    problem = one_call(2, planner, semantics=Semantics.native(message_match=match))
    collective = {"type": COLL, "comm_type": 0, "comm_size": 1000}
    ends = {"comm_src": 0, "comm_dst": 1, **message}
    sender = [{"type": COMP, "duration_ps": 3 * US}, {"type": SEND, "deps": {0}, **ends}, {**collective, "deps": {0}}]
    receiver = [collective, {"type": COMP, "duration_ps": 5 * US}, {"type": RECV, "deps": {1}, **ends}]
    job = replace(problem.jobs[0], workload=small_problems.workload([sender, receiver]))
    records = simulate(replace(problem, jobs=(job,)), level="messages")
    assert records.outcome.status == "done"
    pairs = zip(records.message["instance"].tolist(), records.message["recv_node"].tolist(), strict=True)
    assert {(i, int(records.node["instance"][row])) for i, row in pairs} == {(-1, -1), (0, 0)}


# -- rendezvous -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("late_send", "late_receive"), [(0, 0), (7, 0), (0, 7)])
def test_under_the_rendezvous_a_message_goes_when_it_is_asked_for(late_send, late_receive):
    """One link of 1 GB/s and 1 µs each way: 1 kB takes 2 µs, a request of 500 B 1.5 µs."""
    nodes = [
        [comp(late_send), {"type": SEND, "peer": 1, "comm_size": 1000, "deps": {0}}],
        [comp(late_receive), {"type": RECV, "peer": 0, "comm_size": 1000, "deps": {0}}],
    ]
    semantics = Semantics.native(rendezvous_bytes=500)
    records = simulate(planned_once(nodes, semantics=semantics), level="messages")
    assert records.outcome.status == "done"
    begin = max(late_send * US, late_receive * US + 1_500_000)
    assert records.finish.tolist() == [begin + 2 * US] * 2
    assert sorted(records.message["bytes"].tolist()) == [500, 1000]
    assert (records.message["recv_node"] >= 0).all()


def test_under_the_rendezvous_a_send_that_nobody_asks_for_is_explained():
    nodes = [{"type": SEND, "comm_src": 0, "comm_dst": 1, "comm_tag": 4, "comm_size": 9}]
    problem = one_call(2, None, semantics=Semantics.native(rendezvous_bytes=500))
    job = replace(problem.jobs[0], workload=small_problems.workload([nodes, [comp(1)]]))
    records = simulate(replace(problem, jobs=(job,)))
    assert records.outcome.status == "stuck"
    assert "rank 1 has not posted its receive" in "\n".join(explanation(records.outcome))
