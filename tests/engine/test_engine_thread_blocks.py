"""Given programs, thread block by thread block: closed forms by hand, a second reckoning, and both engines."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle.step_times import Reckoning, Stuck
from worlds import small_problems
from worlds.programs import Blocks, thread_blocks

from astrasim_py.api import write_algorithm
from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AlgorithmError, ScenarioError, TopologyError
from astrasim_py.engine.simulation import simulate
from astrasim_py.engine.stuck import explanation
from astrasim_py.measured.rows import read_rows
from astrasim_py.msccl.lower import lower
from astrasim_py.msccl.to_traces import algorithm_of, read_algorithm
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.report.critical_path import CriticalPath
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import shapes
from astrasim_py.topology.hardware import preset_content, profile
from astrasim_py.topology.profile import LibraryProfile, ProgramProtocol
from astrasim_py.validation.measured import compare
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

GB = Fraction(10**9)
KB, NS, US = 1000, 1000, 10**6
#: 1 GB/s a block; links of 4 GB/s, of which messages reach half.
LL = ProgramProtocol(launch=5 * US, latency=1 * US, step=300 * NS, rate=GB, link=2 * GB, slice=16 * KB)
SIMPLE = LL.model_copy(update={"slice": 1000 * KB})


def but(costs: ProgramProtocol, **other) -> ProgramProtocol:
    """Costs with other values."""
    return costs.model_copy(update=other)


def network(costs: ProgramProtocol) -> NetworkModel:
    """A network under a profile of programs, the same under every protocol."""
    numbers = {"library": "L", "ranks": (2,), "sizes": (1, 2), "dtypes": ("half",), "channels": 1, "link": 4 * GB}
    return NetworkModel(profile=LibraryProfile(**numbers, programs=dict.fromkeys(("LL", "Simple"), costs)))


class Only:
    """An algorithm table of one."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def select(self, *_, **__):
        """The one."""
        return self.algorithm


def problem(algorithm, size, costs, *, workload=None, topology=None) -> Problem:
    """A call of an algorithm, or a workload, on links of 4 GB/s between all ranks."""
    n = algorithm.ranks
    return Problem(
        topology=topology or shapes.FullyConnected(npus=n, bandwidth=4 * GB, latency=7).build(),
        jobs=(
            Job(
                workload=workload or generate([Collective(type="all_reduce", size=size)], n),
                placement=tuple(range(n)),
                algorithms=Only(algorithm),
            ),
        ),
        network=network(costs),
    )


def took(blocks: Blocks, size: int, costs: ProgramProtocol) -> int:
    """Time of a program under LL, or Simple with its costs, after its launch, ps; the same of both engines."""
    protocol = "Simple" if costs.slice == SIMPLE.slice else "LL"
    records = simulate(problem(blocks.algorithm(protocol), size, costs), engine="both", level="messages")
    assert records.outcome.status == "done", explanation(records.outcome)
    return records.makespan - costs.launch


def once(*, fused=False) -> Blocks:
    """Rank 0 sends a chunk to rank 1, which passes it on to rank 2."""
    blocks = Blocks(3, 1)
    blocks.step(0, 0, give=(1, 0))
    if fused:
        blocks.step(1, 0, take=(0, 0), give=(2, 0))
    else:
        blocks.step(1, 0, take=(0, 0))
        blocks.step(1, 0, give=(2, 0))
    blocks.step(2, 0, take=(1, 0))
    return blocks


def test_message_of_ll_flows_through_while_it_is_sent():
    # Steps begin 300 ns after what they wait for; heads arrive 1 µs later; the last one takes 10 µs.
    assert took(once(fused=True), 10 * KB, LL) == 3 * 300 * NS + 2 * US + 10 * US


def test_receive_that_is_not_fused_makes_the_block_work_twice():
    # Rank 1 receives (300 ns, 10 µs) before it begins to send.
    assert took(once(), 10 * KB, LL) == 4 * 300 * NS + 2 * US + 2 * 10 * US


def test_simple_message_begins_to_be_received_after_half_of_its_step():
    assert took(once(fused=True), 10 * KB, SIMPLE) == 3 * 300 * NS + 2 * US + 2 * 5 * US + 10 * US
    costs = but(SIMPLE, rate=Fraction(10**12, 7), link=4000 * GB)  # 7 ps, and 4 until the head leaves
    assert took(once(fused=True), 1, costs) == 3 * 300 * NS + 2 * US + 4 + 4 + 7


def test_local_steps_take_the_rate_of_the_block():
    blocks = Blocks(2, 1)
    for _ in range(3):
        blocks.step(0, 0, reduce=True)
    assert took(blocks, 10 * KB, LL) == 3 * (300 * NS + 10 * US)


def test_blocks_of_a_rank_work_at_once_and_share_a_link():
    blocks = Blocks(2, 4)
    for block in range(4):
        blocks.step(0, block, give=(1, block))
        blocks.step(1, block, take=(0, block))
    # Four messages of 10 µs of a block are 5 µs each of the link: its half of 4 GB/s.
    assert took(blocks, 40 * KB, LL) == 300 * NS + 4 * 5 * US + 1 * US
    assert took(blocks, 40 * KB, but(LL, link=None)) == 2 * 300 * NS + 1 * US + 10 * US


def test_same_messages_on_other_thread_blocks_take_another_time():
    def program(blocks_of_sends):
        blocks = Blocks(3, 2)
        for to, block in zip((1, 2), blocks_of_sends, strict=True):
            blocks.step(0, block, give=(to, 0))
            blocks.step(to, 0, take=(0, 0))
        return blocks

    one, two = took(program((0, 0)), 20 * KB, LL), took(program((0, 1)), 20 * KB, LL)
    assert one == two + 300 * NS + 10 * US


def test_traces_that_keep_thread_blocks_take_the_time_of_the_file(tmp_path):
    program = lower(build("ring", "all_reduce", 4), protocol="LL")
    write_algorithm(tmp_path / "a.xml", algorithm_of(program))
    write_algorithm(tmp_path / "a", read_algorithm(tmp_path / "a.xml"))
    told = []
    for name in ("a.xml", "a"):
        records = simulate(problem(read_algorithm(tmp_path / name), 40 * KB, LL), level="nodes")
        told.append((records.makespan, records.node["end"].tolist(), records.node["name"].tolist()))
    assert told[0] == told[1]
    assert told[0][2].count("launch") == 4


def test_algorithm_without_thread_blocks_is_refused():
    with pytest.raises(ScenarioError, match="ring names no thread blocks"):
        simulate(problem(build("ring", "all_reduce", 4), 40 * KB, LL))


def test_every_pass_moves_one_slice():
    costs = but(LL, slice=4 * KB)  # 10 kB are slices of 4, 4 and 2 kB
    assert took(once(fused=True), 10 * KB, costs) == 3 * 300 * NS + 2 * US + 2 * (300 * NS) + 10 * US
    # Rank 1 receives and sends in turn, three times.
    assert took(once(), 10 * KB, costs) == 300 * NS + 1 * US + 6 * 300 * NS + 2 * 10 * US + 300 * NS + 1 * US


def test_slot_is_free_when_its_message_is_received():
    blocks = Blocks(2, 1)
    for _ in range(4):
        blocks.step(0, 0, give=(1, 0))
        blocks.step(1, 0, take=(0, 0))
    assert took(blocks, 0, LL) == 4 * 300 * NS + 1 * US + 300 * NS
    # Of two slots each is taken twice, there and back.
    assert took(blocks, 0, SIMPLE) == 2 * (300 * NS + 1 * US + 300 * NS) + 300 * NS


def test_dependency_on_another_block_holds_within_a_pass():
    blocks = Blocks(2, 1)
    done = blocks.step(0, 0, reduce=True)
    blocks.step(0, 1, reduce=True, after=[done])
    # The second block works on a slice while the first one has the next.
    assert took(blocks, 16 * KB, but(LL, slice=4 * KB)) == 5 * (300 * NS + 4 * US)


def random_costs(rng: random.Random, link: Fraction) -> ProgramProtocol:
    """Little of everything, so that it matters."""
    return ProgramProtocol(
        launch=rng.choice((0, 5000)),
        latency=rng.choice((0, 1000, 3333)),
        step=rng.choice((0, 300)),
        rate=rng.choice((GB, 3 * GB)),
        link=link,
        slice=rng.choice((3, 10, 1000)),
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_engine_agrees_with_the_equations(seed):
    rng = random.Random(seed)
    algorithm, nbytes = thread_blocks(rng), rng.choice((0, 1, 5, 11))
    costs = random_costs(rng, 10**6 * GB)
    records = simulate(problem(algorithm, nbytes * algorithm.chunks, costs), engine="simpy")
    try:
        wanted = Reckoning(algorithm, costs, nbytes).makespan()
    except Stuck:
        assert records.outcome.status == "stuck"
    else:
        assert (records.outcome.status, records.makespan) == ("done", wanted)


def beside_messages(rng: random.Random, ranks: int, size: int) -> Workload:
    """One or two calls at once, beside messages of the workload over the same links."""
    call = {"type": NodeType.COMM_COLL, "comm_type": 0, "comm_size": size}
    nodes = [[dict(call) for _ in range(calls)] for calls in [rng.randint(1, 2)] * ranks]
    for tag in range(rng.choice((0, 0, 6))):
        src, dst = rng.sample(range(ranks), 2)
        ends = {"comm_src": src, "comm_dst": dst, "comm_size": rng.choice((0, 8, 2000)), "comm_tag": tag}
        for rank, kind in ((src, NodeType.COMM_SEND), (dst, NodeType.COMM_RECV)):
            work = {"type": NodeType.COMP, "duration_ps": rng.choice((0, 4000, 9000))}
            nodes[rank] += [work, {"type": kind, "deps": [len(nodes[rank])], **ends}]
    return small_problems.workload(nodes)


@pytest.mark.slow
@settings(max_examples=300)
@given(seed=st.integers(0, 2**32))
@example(seed=1398)  # a message that waits for two links at once
def test_both_engines_give_the_same_records(seed):
    rng = random.Random(seed)
    algorithm = thread_blocks(rng)
    size = rng.choice((0, 1, 5, 11)) * algorithm.chunks + rng.randint(0, 3)
    costs = random_costs(rng, rng.choice((GB, 4 * GB, 40 * GB)))
    topology = rng.choice((None, shapes.Switch(npus=algorithm.ranks, bandwidth=GB, latency=7).build()))
    workload = beside_messages(rng, algorithm.ranks, size)
    beside = problem(algorithm, size, costs, workload=workload, topology=topology)
    records = simulate(beside, engine="both", level="messages")
    if records.outcome.status == "done":
        path = CriticalPath(records, {}, {}).walk()
        assert path[-1].end == records.makespan if path else not records.makespan
        assert all(before.end == after.start for before, after in pairwise(path))


def test_stuck_program_says_who_waits_for_a_slot_and_who_for_a_message():
    blocks = Blocks(2, 1)
    for rank in range(2):
        for _ in range(3):
            blocks.step(rank, 0, give=(1 - rank, 0))
        for _ in range(3):
            blocks.step(rank, 0, take=(1 - rank, 0))
    stuck = problem(blocks.algorithm("Simple"), 10, SIMPLE)
    text = "\n".join(explanation(simulate(stuck, engine="both").outcome))
    assert "a free slot to send 10 B to rank 1 on channel 0" in text, text
    blocks = Blocks(2, 1)
    for rank in range(2):
        blocks.step(rank, 0, take=(1 - rank, 0), give=(1 - rank, 0))
    text = "\n".join(explanation(simulate(problem(blocks.algorithm(), 10, LL), engine="both").outcome))
    assert "a message from rank 1" in text and "deadlock" in text, text


def test_unequal_bytes_are_refused():
    blocks = Blocks(2, 4)
    blocks.step(0, 0, give=(1, 0), count=2)
    blocks.step(1, 0, take=(0, 0))
    with pytest.raises(AlgorithmError, match="sends 20 B and rank 1 node 0 expects 10 B"):
        took(blocks, 40, LL)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_measured_times_of_programs_are_within_5_and_15_percent(golden, protocol):
    rows = read_rows([golden / "nccl" / "measured_public.csv"])
    rows = [row for row in rows if row.platform == "MI300X" and row.protocol == protocol]
    chosen = [row for row in rows if row.bytes in (2**12, 2**18, 2**22, 2**25)]
    errors = compare(chosen, programs=str(golden / "msccl" / "public")).group()
    assert errors.cases >= 20
    assert errors.median_rel_error <= 0.05
    assert errors.p90_rel_error <= 0.15


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"Simple": {"slice": "0 B"}}, "a slice of 0 bytes"), ({"Foo": {}}, '"Foo" is not a protocol')],
)
def test_wrong_costs_of_programs_are_refused(tmp_path, wrong, said):
    content = preset_content("mi300x")
    programs = content["collectives"]["programs"]
    programs |= {name: programs["Simple"] | given for name, given in wrong.items()}
    (tmp_path / "my.json").write_text(json.dumps(content), "utf-8")
    with pytest.raises(TopologyError, match=said):
        profile(str(tmp_path / "my.json"))
