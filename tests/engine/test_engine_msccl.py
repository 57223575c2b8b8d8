"""The link model of MSCCL-style runtimes: slots, pace and latency of connections."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle.replay import Replay
from worlds import small_problems
from worlds.bounds import problem_bound
from worlds.programs import Blocks, slots_model, thread_blocks

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.collectives.chunks import MAX_CHUNKS_PER_MESSAGE, max_count
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.dialects.library.lower_connections import messages_of_steps
from astrasim_py.engine.simulation import simulate
from astrasim_py.engine.stuck import explanation
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.steps import steps_of
from astrasim_py.report.explain import explain
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import MscclModel, NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.programs import SEND
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes
from astrasim_py.verification.termination import Flow
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

GB = Fraction(10**9)
KIB, MIB = 2**10, 2**20
relaxed = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=60)


class Only:
    """An algorithm table of one."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def select(self, *_, **__):
        """The one."""
        return self.algorithm


def problem(algorithm, size, msccl, *, topology=None, calls=1, semantics=None, **network) -> Problem:
    """`algorithm` on a fully connected topology of 1 GB/s links of 1 ns."""
    n = algorithm.ranks
    return Problem(
        topology=topology or shapes.FullyConnected(npus=n, bandwidth=GB, latency=1000).build(),
        jobs=(
            Job(
                workload=generate([Collective(type="all_reduce", size=size) for _ in range(calls)], n),
                placement=tuple(range(n)),
                algorithms=Only(algorithm),
            ),
        ),
        network=NetworkModel(msccl=msccl, **{"send_completes": "injected", **network}),
        semantics=semantics or Semantics.native(),
    )


def ring(ranks: int, *, fused: bool, steps: int | None = None) -> Algorithm:
    """Each rank sends to the next, passes on what it gets, and receives at last: one thread block a rank."""
    blocks = Blocks(ranks, ranks)
    for rank in range(ranks):
        to, of = ((rank + 1) % ranks, 0), ((rank - 1) % ranks, 0)
        blocks.step(rank, 0, give=to)
        for _ in range(ranks - 2 if steps is None else steps):
            if fused:
                blocks.step(rank, 0, take=of, give=to)
            else:
                blocks.step(rank, 0, take=of)
                blocks.step(rank, 0, give=to)
        blocks.step(rank, 0, take=of)
    return blocks.algorithm()


programs = st.randoms(use_true_random=False).map(thread_blocks)
models = st.randoms(use_true_random=False).map(slots_model)


#: Full buffers of which chunks fit in a slot as a whole, in pieces, and not at all.
SIZES = (64, 100 * KIB, 64 * MIB)


def same_records(problem: Problem) -> bool:
    """Both engines leave the same records; whether the run was done."""
    plan = make_plan(problem)
    records = simulate(plan, level="messages")
    other = Replay(plan).run()
    first, total = plan.first_row, plan.row_count
    expected_start, expected_end = [-1] * total, [-1] * total
    for (rank, index, node), (begin, done) in other.nodes.items():
        expected_start[first(rank, index) + node] = begin
        expected_end[first(rank, index) + node] = -1 if done is None else done
    assert records.node["start"].tolist() == expected_start
    assert records.node["end"].tolist() == expected_end
    hops = list(zip(*(records.hop[c].tolist() for c in ("link", "requested", "start", "end")), strict=True))
    assert hops == [hop[:4] for hop in other.hops]
    assert (records.outcome.status == "done") == (-1 not in expected_end)
    return records.outcome.status == "done"


network_choices = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["cut_through", "store_and_forward", "analytical"]),
        "link_busy": st.sampled_from(["bytes", "latency+bytes"]),
        "send_completes": st.sampled_from(["injected", "injected", "delivery"]),
    }
)


@relaxed
@given(programs, models, st.sampled_from(SIZES), st.integers(1, 2), network_choices, st.data())
def test_both_engines_agree_on_thread_blocks(algorithm, model, size, calls, network, data):
    topology = data.draw(small_problems.topologies(algorithm.ranks))
    semantics = Semantics.native(gamma=data.draw(st.sampled_from([Fraction(0), Fraction(1, 10**9)])))
    same_records(problem(algorithm, size, model, topology=topology, calls=calls, semantics=semantics, **network))


@pytest.mark.slow
@relaxed
@given(small_problems.problems(), models)
def test_both_engines_agree_on_any_problem_and_beat_no_bound(made, model):
    free = make_plan(made)
    made = dataclasses.replace(made, network=made.network.model_copy(update={"msccl": model}))
    done = same_records(made)
    plan = make_plan(made)
    bound = problem_bound(plan)
    assert bound == problem_bound(free)
    assert [i.bound for i in plan.instances] == [i.bound for i in free.instances]
    if done and bound is not None:
        records = simulate(plan)
        assert bound <= records.makespan
        assert (records.collective["bound"] <= records.collective["end"] - records.collective["start"]).all()


@pytest.mark.slow
@settings(relaxed, max_examples=120)
@given(programs, st.sampled_from([None, 1, 2, 3]), st.sampled_from(SIZES))
def test_a_run_is_stuck_exactly_if_the_program_needs_more_slots(algorithm, slots, size):
    model = MscclModel(slots=slots)
    flow = Flow(steps_of(algorithm))
    assert flow.ends
    most = max_count(algorithm.protocol or "Simple", size, algorithm.chunks)
    blocked = flow.run(model.slots_for(algorithm.protocol), flow.split(most))
    outcome = simulate(problem(algorithm, size, model)).outcome
    assert (outcome.status == "stuck") == (blocked is not None)
    if blocked:
        assert outcome.cycle
        assert any(w.slots for w in outcome.waiting)


@relaxed
@given(programs, models, st.sampled_from(SIZES), network_choices)
def test_no_byte_is_lost_and_every_start_has_its_cause(algorithm, model, size, network):
    free = problem(algorithm, size, None, **network)
    limited = dataclasses.replace(free, network=free.network.model_copy(update={"msccl": model}))
    records = simulate(limited, level="messages")
    if records.outcome.status == "done":
        totals = explain(records).totals
        assert sum(totals.values()) == records.makespan
        bytes_free = simulate(free).link["bytes"].sum()
        assert records.link["bytes"].sum() == bytes_free
    node, cause = records.node, records.node["released_by"]
    for row in np.flatnonzero((cause >= 0) & (node["start"] >= 0)).tolist():
        # What let a node start ended then, or is a fused step's send that was accepted then.
        before = int(cause[row])
        began, ended = int(node["start"][before]), int(node["end"][before])
        assert node["start"][row] in (began, ended)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_ring_of_fused_steps_needs_two_slots_and_one_of_single_steps_one(ranks):
    for fused in (True, False):
        status = [
            simulate(problem(ring(ranks, fused=fused, steps=ranks), 64, MscclModel(slots=s))).outcome.status
            for s in (1, 2)
        ]
        assert status == (["stuck", "done"] if fused else ["done", "done"])


def test_slots_do_not_depend_on_how_messages_are_matched():
    for slots, status in ((1, "stuck"), (2, "done")):
        made = [
            simulate(problem(ring(4, fused=True), 64, MscclModel(slots=slots), semantics=semantics), level="nodes")
            for semantics in (Semantics.native(), Semantics.native(message_match="bytes"))
        ]
        assert [records.outcome.status for records in made] == [status] * 2
        assert made[0].node["start"].tolist() == made[1].node["start"].tolist()


def test_slots_are_those_of_the_protocol_unless_stated():
    model = MscclModel()
    assert [model.slots_for(p) for p in ("", "Simple", "LL", "LL128")] == [2, 2, 8, 8]
    assert MscclModel(protocol="LL").slots_for("Simple") == 8
    assert MscclModel(protocol="LL", slots=3).slots_for("") == 3
    model = MscclModel(latency_ps={"LL": 7})
    assert [model.latency_for(p) for p in ("", "LL")] == [0, 7]


@pytest.mark.parametrize(
    ("protocol", "size", "chunks", "expected"),
    [
        ("Simple", 0, 4, MAX_CHUNKS_PER_MESSAGE),
        ("Simple", 4, 4, MAX_CHUNKS_PER_MESSAGE),
        ("Simple", 8 * MIB, 4, 1),
        ("Simple", 8 * MIB, 8, 2),
        ("Simple", 8 * MIB + 1, 8, 1),
        ("Simple", 2**40, 1, 1),
        ("LL", 64 * KIB, 8, 4),
        ("LL128", 576_000, 2, 2),
        ("LL128", 576_001, 2, 1),
    ],
)
def test_a_slot_holds_as_many_whole_chunks_as_fit(protocol, size, chunks, expected):
    assert max_count(protocol, size, chunks) == expected


def sender(count: int, chunks: int, messages: int = 1) -> Algorithm:
    """Rank 0 sends `messages` steps of `count` chunks to rank 1, in one thread block each."""
    blocks = Blocks(2, chunks)
    for _ in range(messages):
        blocks.step(0, 0, give=(1, 0), count=count)
        blocks.step(1, 0, take=(0, 0), count=count)
    return blocks.algorithm()


def messages_of(algorithm: Algorithm, size: int, model: MscclModel) -> int:
    """Messages of one call on a full buffer of `size` bytes."""
    most = model.max_count_for(algorithm, size)
    program = algorithm.program
    return int(messages_of_steps(program, most)[program.type == NodeType.COMM_SEND].sum())


def test_a_step_of_many_chunks_is_several_messages_and_loses_no_byte():
    algorithm, size = sender(7, 10), 100 * MIB + 3
    model = MscclModel(protocol="Simple")
    plan = make_plan(problem(algorithm, size, model))
    program = plan.calls[0].programs[0]
    assert plan.messages == messages_of(algorithm, size, model) == 7
    assert program.nbytes.sum() == 7 * size // 10
    assert np.ptp(program.nbytes) <= 1
    assert program.node_id.tolist() == [0] * 7
    assert make_plan(problem(algorithm, 64, model)).messages == 1
    records = simulate(plan, level="messages")
    assert records.outcome.status == "done"
    assert (np.diff(records.node["start"][records.node["kind"] == "send"]) > 0).all()
    assert (records.message["recv_node"] >= 0).all()


def test_pieces_of_a_fused_step_receive_and_send_on_in_turn():
    blocks = Blocks(3, 4)
    blocks.step(0, 0, give=(1, 0), count=4)
    blocks.step(1, 0, take=(0, 0), reduce=True, give=(2, 0), count=4)
    blocks.step(2, 0, take=(1, 0), count=4)
    algorithm = blocks.algorithm()
    made = problem(algorithm, 64 * MIB, MscclModel(slots=2), semantics=Semantics.native(gamma=Fraction(1, 10**9)))
    plan = make_plan(made)
    middle = plan.calls[0].programs[1]
    assert middle.node_id.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    records = simulate(plan, level="nodes")
    rows = np.flatnonzero((records.node["rank"] == 1) & (records.node["instance"] == 0))
    start, end = (records.node[c][rows].reshape(3, 4) for c in ("start", "end"))
    assert (start[1:] >= end[:-1]).all()  # receive, reduce, send of one message
    assert (start[0][1:] == end[2][:-1]).all()  # the next message once this one is on its way
    whole = make_plan(dataclasses.replace(made, network=NetworkModel(send_completes="injected")))
    assert sum(middle.duration) == whole.calls[0].programs[1].duration.sum() > 0


def test_a_sender_runs_ahead_by_its_slots_and_no_further():
    blocks = Blocks(2, 8)
    for _ in range(8):
        blocks.step(0, 0, give=(1, 0))
    wait = blocks.step(1, 0, take=(0, 1))
    for _ in range(8):
        blocks.step(1, 0, take=(0, 0))
    blocks.step(0, 1, give=(1, 1), after=(3,))  # sent once the fourth message is in: only with four slots or more
    assert wait == 0
    algorithm = blocks.algorithm()
    status = {s: simulate(problem(algorithm, 8, MscclModel(slots=s))).outcome for s in (3, 4)}
    assert [o.status for o in status.values()] == ["stuck", "done"]
    lines = explanation(status[3])
    assert lines[0] == "deadlock: ranks wait for each other in a ring, 0→1→0; 1 send waits for a free slot"
    waiting = next(w for w in status[3].waiting if w.slots)
    assert (waiting.rank, waiting.dst, waiting.channel, waiting.slots, waiting.kind) == (0, 1, 0, 3, "send")
    assert waiting.since > 0
    assert any(
        "a free slot to send 1 B to rank 1 on channel 0" in line and "3 slots hold messages that rank 1 has not" in line
        for line in lines
    )


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical"])
def test_a_connection_is_paced_and_others_share_its_link(model):
    size = 8_000_000  # 8 chunks of 1 MB: 1 ms each at 1 GB/s, 4 ms at the pace of the channel
    paced = MscclModel(slots=8, channel_bandwidth=GB / 4)
    one = simulate(problem(sender(1, 8, 3), size, paced, model=model))
    assert one.makespan == 12 * 10**9 + 1000
    blocks = Blocks(2, 8)
    for channel in range(4):
        for _ in range(3):
            blocks.step(0, channel, give=(1, channel))
            blocks.step(1, channel, take=(0, channel))
    four = simulate(problem(blocks.algorithm(), size, paced, model=model))
    # Four channels fill the link: each message holds it for its bytes alone.
    assert four.link["busy"].max() == 12 * 10**9
    late = 0 if model == "analytical" else 3 * 10**9  # the first messages ask for the link at one instant
    assert four.makespan == 12 * 10**9 + late + 1000
    free = simulate(problem(sender(1, 8, 3), size, MscclModel(slots=8, channel_bandwidth=2 * GB), model=model))
    assert free.makespan == 3 * 10**9 + 1000


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical"])
def test_every_hop_takes_the_latency_of_the_protocol_longer(model):
    blocks = Blocks(5, 1)
    blocks.step(0, 0, give=(2, 0))
    blocks.step(2, 0, take=(0, 0))
    line = shapes.Mesh(dims=[5], bandwidth=GB, latency=1000).build()
    times = [
        simulate(problem(blocks.algorithm(own), 1000, MscclModel(latency_ps={"LL": 300}), topology=line, model=model))
        for own in ("Simple", "LL")
    ]
    assert times[1].makespan - times[0].makespan == 2 * 300


def test_messages_between_ranks_of_the_workload_have_no_slots():
    nodes = [[], []]
    for _ in range(6):
        nodes[0].append({"type": NodeType.COMM_SEND, "comm_dst": 1, "comm_size": 8, "comm_tag": 0})
        nodes[1].append({"type": NodeType.COMM_RECV, "comm_src": 0, "comm_size": 8, "comm_tag": 0})
    job = Job(workload=small_problems.workload(nodes), placement=(0, 1), algorithms=Only(None))
    made = Problem(topology=shapes.Ring(npus=2, bandwidth=GB, latency=0).build(), jobs=(job,))
    slow = NetworkModel(msccl=MscclModel(slots=1, channel_bandwidth=GB / 100, latency_ps={"Simple": 10**6}))
    assert simulate(dataclasses.replace(made, network=slow)).makespan == simulate(made).makespan


def test_builders_are_done_with_the_slots_of_every_protocol():
    for name in ("ring", "direct"):
        algorithm = build(name, "all_reduce", 5)
        for protocol in ("Simple", "LL"):
            records = simulate(problem(algorithm, 10 * MIB, MscclModel(protocol=protocol)))
            assert records.outcome.status == "done"
            assert records.messages == messages_of(algorithm, 10 * MIB, MscclModel(protocol=protocol))


def test_programs_that_no_runtime_could_run_are_refused():
    blocks = Blocks(2, 1)
    blocks.step(0, 0, give=(1, 0))
    blocks.step(1, 0, take=(0, 0))
    blocks.nodes[1][0]["channel"] = 1
    with pytest.raises(AlgorithmError, match="sends on channel 0, tag 0, and rank 1 does not receive it so"):
        make_plan(problem(blocks.algorithm(), 8, MscclModel()))
    blocks = Blocks(2, 1)
    for _ in range(2):
        blocks.step(0, 0, give=(1, 0))
        blocks.step(1, 0, take=(0, 0))
    for node in blocks.nodes[1]:
        node["fused"] = 0
    with pytest.raises(AlgorithmError, match="node 0 begins a fused step of several receives"):
        make_plan(problem(blocks.algorithm(), 8, MscclModel()))
    with pytest.raises(AlgorithmError, match="messages and operations of one rank, more than"):
        make_plan(problem(sender(2**30, 2**30), 2**50, MscclModel()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "simple"},
        {"slots": 0},
        {"channel_bandwidth": Fraction(0)},
        {"latency_ps": {"LL256": 1}},
        {"latency_ps": {"LL": -1}},
    ],
)
def test_models_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ScenarioError):
        MscclModel(**wrong)


def test_without_the_model_nothing_is_planned_for_it():
    plan = make_plan(problem(ring(3, fused=True), 64, None))
    assert plan.instances[0].only_call.connections is None
    assert (plan.calls[0].programs[0].structure.kind == SEND).sum() == 2


def test_the_order_of_a_hash_set_is_refused():
    semantics = Semantics.astra_sim(event_order="scheduled", issue_order="hash_set")
    problem = Problem(
        topology=shapes.Ring(npus=4, bandwidth=Fraction(10**9), latency=0).build(), jobs=(),
        network=NetworkModel(msccl=MscclModel()), semantics=semantics,
    )  # fmt: skip
    with pytest.raises(ScenarioError, match="issue_order: hash_set: does not support network"):
        make_plan(problem)
