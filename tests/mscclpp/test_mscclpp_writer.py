"""Algorithms written as plans are verified, keep the limits of executors, and no operation of theirs is superfluous."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.mscclpp_cells import Shape
from oracle.mscclpp_oracle import Oracle
from worlds.networks import synthesize
from worlds.scribbles import Scribble, scribbled
from worlds.small_problems import trace

from astrasim_py.api import build_topology
from astrasim_py.builders.dsl import algorithm
from astrasim_py.builders.registry import build
from astrasim_py.builders.split import split
from astrasim_py.chakra.schema import NodeType
from astrasim_py.collectives.chunks import Buffer, CompOp
from astrasim_py.core.errors import AlgorithmError, OutputError, UsageError
from astrasim_py.msccl.to_traces import algorithm_of, read_algorithm
from astrasim_py.msccl.xml_reader import parse_program
from astrasim_py.mscclpp import from_algorithm, to_traces
from astrasim_py.mscclpp.findings import find
from astrasim_py.mscclpp.from_algorithm import plan_document
from astrasim_py.mscclpp.reader import parse_plan
from astrasim_py.mscclpp.verify import verify_plan
from astrasim_py.mscclpp.writer import plan_text, write_plan
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.synthesis.emit.emitter import emit


@algorithm("all_reduce")
def scattered(a):
    """Every rank sums its chunk in scratch, and hands the sum to all."""
    for owner in range(a.n):
        for peer in range(a.n):
            if peer != owner:
                a[owner][owner] += a[peer][owner]
        for peer in range(a.n):
            if peer != owner:
                a[peer][owner] = a[owner][owner]


@cache
def synthesized(collective: str) -> Algorithm:
    mesh = build_topology(shape="mesh", dims=[2, 3], bandwidth="50 GB/s", latency="1 us")
    return emit(synthesize(mesh, collective, 6 * 2**20))


#: Two ranks swap a chunk.
SWAP = """
<algo name="swap" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="alltoall" inplace="1">
  <gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">
    <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="1" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb></gpu>
  <gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="0" recv="0" chan="0">
    <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
  </tb></gpu>
</algo>"""

#: Name: how it is made.
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "ring all_reduce": lambda: build("ring", "all_reduce", 8),
    "ring all_gather": lambda: build("ring", "all_gather", 8),
    "ring reduce_scatter": lambda: build("ring", "reduce_scatter", 5),
    "ring all_to_all": lambda: build("ring", "all_to_all", 4),
    "bidirectional ring": lambda: build("ring", "all_reduce", 6, bidirectional=True),
    "two rings": lambda: split(build("ring", "all_reduce", 4), 2),
    "all pairs all_reduce": lambda: build("direct", "all_reduce", 8),
    "all pairs all_gather": lambda: build("direct", "all_gather", 8),
    "all pairs reduce_scatter": lambda: build("direct", "reduce_scatter", 8),
    "all pairs all_to_all": lambda: build("direct", "all_to_all", 8),
    "pairwise all_to_all": lambda: build("pairwise", "all_to_all", 8),
    "halving and doubling": lambda: build("halving_doubling", "all_reduce", 8),
    "halving": lambda: build("halving_doubling", "reduce_scatter", 8),
    "recursive doubling": lambda: build("recursive_doubling", "all_reduce", 8),
    "bruck all_gather": lambda: build("bruck", "all_gather", 7),
    "bruck all_to_all": lambda: build("bruck", "all_to_all", 8),
    "two trees": lambda: build("double_binary_tree", "all_reduce", 8),
    "binomial tree": lambda: build("binomial_tree", "all_reduce", 8),
    "two levels all_reduce": lambda: build("hierarchical", "all_reduce", 16, dims=[8, 2]),
    "two levels all_gather": lambda: build("hierarchical", "all_gather", 16, dims=[8, 2]),
    "program": lambda: scattered(4),
    "synthesized all_reduce": lambda: synthesized("all_reduce"),
    "synthesized all_to_all": lambda: synthesized("all_to_all"),
    "swap": lambda: algorithm_of(parse_program(SWAP.encode())),
    "xml": lambda: read_algorithm("scenarios/algorithms/find_the_bug/right.xml"),
}
#: Small ones, whose plans are run thread by thread.
SMALL = [
    ("ring", "all_reduce", 3),
    ("direct", "all_reduce", 3),
    ("direct", "all_to_all", 3),
    ("bruck", "all_gather", 4),
]


def uneven(document) -> list:
    """The check of MSCCL++'s own language: so many signals as waits, for pairs of ranks and types of channels."""
    counts: Counter = Counter()
    for gpu in document["gpus"]:
        peers = {entry["channel_type"]: entry["connected_to"] for entry in gpu["channels"]}
        for block in gpu["threadblocks"]:
            numbers = {entry["channel_type"]: entry["channel_ids"] for entry in block["channels"]}
            for op in block["ops"]:
                for channel in op.get("channel_ids", ()):
                    kind, rank = op["channel_type"], gpu["id"]
                    peer = peers[kind][numbers[kind][channel]]
                    if op["name"] in ("signal", "rlxsignal", "pws", "pwsf"):
                        counts[rank, peer, kind] += 1
                    elif op["name"] in ("wait", "rlxwait"):
                        counts[peer, rank, kind] -= 1
    return [key for key, count in counts.items() if count]


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_plans_of_algorithms_are_right_on_one_node_and_several(name, protocol):
    program = ALGORITHMS[name]()
    kinds = []
    for npus_per_node in (None, program.ranks // 2):
        document = plan_document(program, protocol=protocol, npus_per_node=npus_per_node)
        text = plan_text(document)
        assert json.loads(text) == document
        assert plan_text(json.loads(text)) == text
        plan = parse_plan(text.encode())
        verdict = verify_plan(plan)
        assert (verdict.problems, verdict.warnings) == ((), ())
        assert (verdict.well_formed, verdict.terminates, verdict.correct, verdict.race_free) == (True,) * 4
        assert verdict.facts.cells == program.ranks * plan.gpus[0].chunks["o"]
        assert uneven(document) == []
        kinds.append({kind for gpu in plan.gpus for kind, peers in gpu.peers.items() if peers})
    assert kinds[0] == {"memory"}
    assert "port" in kinds[1]


@pytest.mark.parametrize(("builder", "collective", "ranks"), SMALL)
def test_plans_give_right_values_in_every_order_of_threads(builder, collective, ranks):
    for protocol in ("Simple", "LL"):
        for npus_per_node in (None, 2, 1):
            document = plan_document(build(builder, collective, ranks), protocol=protocol, npus_per_node=npus_per_node)
            for calls in (1, 3):
                outcomes = Oracle(document, Shape(3, 2, 2), calls=calls).outcomes(document, drawn=1)
                assert {outcome.kind for outcome in outcomes} == {"right"}


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_every_operation_of_a_ring_is_needed(protocol):
    """Beside the wait of the begin and the nop behind it, which the first wait for data makes superfluous in a ring."""
    document = plan_document(build("ring", "all_reduce", 3), protocol=protocol)
    runs = [Oracle(document, Shape(3, 2, 2), calls=calls) for calls in (1, 2)]
    (block,) = document["gpus"][0]["threadblocks"]
    superfluous = []
    for number, operation in enumerate(block["ops"]):
        edited = copy.deepcopy(document)
        del edited["gpus"][0]["threadblocks"][0]["ops"][number]
        if all({outcome.kind for outcome in run.outcomes(edited, until_bad=True)} == {"right"} for run in runs):
            superfluous.append((number, operation["name"]))
    assert superfluous == ([(1, "rlxwait"), (2, "nop")] if protocol == "Simple" else [])


def test_a_store_goes_into_cells_in_use_through_scratch():
    """Of an all_to_all in place every chunk that arrives replaces one that is still to be sent."""
    swapped = plan_document(algorithm_of(parse_program(SWAP.encode())))
    names = [op["name"] for op in swapped["gpus"][0]["threadblocks"][0]["ops"]]
    assert names == ["rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait", "nop", "copy"]
    assert swapped["gpus"][0]["scratch_chunks"] == 1
    gathered = plan_document(build("direct", "all_gather", 2))
    names = [op["name"] for op in gathered["gpus"][0]["threadblocks"][0]["ops"]]
    assert names == ["rlxsignal", "rlxwait", "nop", "put", "nop", "signal", "wait"]
    assert gathered["gpus"][0]["scratch_chunks"] == 0


def test_a_port_put_is_awaited_before_its_source_is_overwritten():
    """Though its signal could wait for the next put: the copy may come before that one ends."""
    program = Scribble(2, 2, in_place=True)
    for tag in range(2):
        send = program.add(0, NodeType.COMM_SEND, 1, reads=(Buffer.INPUT, tag), comm_dst=1, comm_tag=tag)
        data = program.held[0][send]
        program.add(1, NodeType.COMM_RECV, 1, writes=(Buffer.SCRATCH, tag), data=data, comm_src=0, comm_tag=tag)
    copied = {"reads": (Buffer.INPUT, 1), "writes": (Buffer.INPUT, 0), "comp_op": int(CompOp.COPY)}
    program.add(0, NodeType.COMP, 1, **copied)
    named = replace(program.algorithm(), collective="all_reduce", contract=None)
    plan = parse_plan(plan_text(plan_document(named, npus_per_node=1)).encode())
    puts = [op.name for block in plan.gpus[0].blocks for op in block.operations if op.targets]
    assert sorted(puts) == ["copy", "pwsf", "pwsf"]
    assert verify_plan(plan).facts.races == ()
    near = plan_document(named)
    names = [op["name"] for block in near["gpus"][0]["threadblocks"] for op in block["ops"]]
    assert (names.count("put"), names.count("signal")) == (1, 1)


def test_packets_need_no_signals_and_are_forwarded():
    document = plan_document(build("ring", "all_reduce", 4), protocol="LL")
    assert document["use_double_scratch_buffer"]
    names = {op["name"] for gpu in document["gpus"] for block in gpu["threadblocks"] for op in block["ops"]}
    assert names == {"ppkt", "respkt", "rppkt", "upkt"}
    across = plan_document(build("ring", "all_reduce", 4), protocol="LL", npus_per_node=1)
    names = {op["name"] for gpu in across["gpus"] for block in gpu["threadblocks"] for op in block["ops"]}
    # Proxies send packets that lie in scratch.
    assert names - {"nop"} == {"cpkt", "rppkt", "repkt", "upkt"}


def test_long_blocks_are_cut():
    document = plan_document(build("ring", "all_reduce", 16))
    blocks = [block for gpu in document["gpus"] for block in gpu["threadblocks"]]
    assert len(blocks) > 16
    assert max(len(block["ops"]) for block in blocks) <= 64
    verdict = verify_plan(parse_plan(plan_text(document).encode()))
    assert verdict.correct
    assert verdict.race_free


def test_blocks_serve_several_peers_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(from_algorithm, "MAX_BLOCKS", 4)
    for protocol in ("Simple", "LL"):
        for npus_per_node in (9, 3):
            program = build("direct", "all_reduce", 9)
            document = plan_document(program, protocol=protocol, npus_per_node=npus_per_node)
            assert {len(gpu["threadblocks"]) for gpu in document["gpus"]} == {4}
            verdict = verify_plan(parse_plan(plan_text(document).encode()))
            assert (verdict.problems, verdict.warnings, verdict.correct) == ((), (), True)


def test_refuses_more_blocks_than_run_at_once(monkeypatch):
    many = build("ring", "all_reduce", 8, chunks=64)
    with pytest.raises(AlgorithmError, match=r"needs \d+ thread blocks of a gpu, and at most 108 surely run at once"):
        plan_document(many)
    monkeypatch.setattr(from_algorithm, "MAX_STEPS", 14_335)
    with pytest.raises(AlgorithmError, match="has 14336 operations, and plans are written of 14335"):
        plan_document(many)


def test_a_window_of_sizes_is_written(tmp_path):
    path = tmp_path / "ring.json"
    document = write_plan(path, build("ring", "all_gather", 4), protocol="LL", min_bytes=1024, max_bytes=65536)
    plan = parse_plan(path.read_bytes())
    assert path.read_text() == plan_text(document)
    assert (plan.least, plan.most, plan.protocol, plan.collective) == (1024, 65536, "LL", "allgather")


def test_a_plan_that_was_read_comes_back_as_it_was(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    write_plan(first, build("ring", "all_reduce", 4), npus_per_node=2)
    program = to_traces.read_algorithm(first)
    assert write_plan(second, program) == json.loads(first.read_text())
    assert second.read_bytes() == first.read_bytes()
    windowed = write_plan(second, program, max_bytes=4096)
    assert windowed == json.loads(first.read_text()) | {"max_message_size": 4096}
    # Another protocol, or other nodes, need another plan.
    for options in ({"protocol": "LL"}, {"npus_per_node": 4}):
        again = parse_plan(plan_text(write_plan(second, program, **options)).encode())
        assert verify_plan(again).correct
        assert again.document != json.loads(first.read_text())


def test_public_plans_come_back_as_they_were(golden, tmp_path):
    read = 0
    for path in sorted((golden / "mscclpp" / "plans").glob("*.json")):
        with suppress(AlgorithmError):  # those that hang, or that executors refuse
            program = to_traces.read_algorithm(path)
            assert write_plan(tmp_path / "plan.json", program) == json.loads(path.read_text())
            read += 1
    assert read >= 36


def test_public_plans_are_written_for_other_protocols(golden):
    """Those that race, too: what is written is right."""
    for name in ("repo__reduce_tbg", "single_node__allreduce_pkt", "multi_node__allgather"):
        program = to_traces.read_algorithm(golden / "mscclpp" / "plans" / f"{name}.json")
        for protocol in ("Simple", "LL"):
            verdict = verify_plan(parse_plan(plan_text(plan_document(program, protocol=protocol)).encode()))
            assert (verdict.problems, verdict.warnings) == ((), ())


def test_says_what_plans_cannot_express(tmp_path):
    ring = build("ring", "all_reduce", 4)
    for program, options, error, problem in (
        (build("ring", "broadcast", 4), {}, AlgorithmError, "plans have no broadcast"),
        (build("nvls", "all_reduce", 4), {}, AlgorithmError, "switch s0 runs a part of it"),
        (ring, {"protocol": "LL128"}, UsageError, "plans have no LL128"),
        (ring, {"npus_per_node": 0}, UsageError, "0 is no number of NPUs"),
        (ring, {"min_bytes": 9, "max_bytes": 8}, UsageError, "9 to 8 bytes hold no size"),
    ):
        with pytest.raises(error, match=problem):
            plan_document(program, **options)
    rows = [{"type": NodeType.COMM_SEND, "comm_src": 0, "comm_dst": 1, "comm_tag": 0, "comm_size": 8}]
    back = [{"type": NodeType.COMM_RECV, "comm_src": 0, "comm_dst": 1, "comm_tag": 0, "comm_size": 8}]
    bytes_only = Algorithm(name="bytes", collective="all_reduce", ranks=2, traces=(trace(rows), trace(back)))
    with pytest.raises(AlgorithmError, match="does not state in chunks"):
        plan_document(bytes_only)
    with pytest.raises(OutputError):
        write_plan(tmp_path, ring)


@settings(max_examples=150)
@given(st.data())
@pytest.mark.slow
def test_any_algorithm_becomes_a_plan_that_does_the_same(data):
    ranks, chunks = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 5))
    program = scribbled(data.draw, ranks, chunks, data.draw(st.integers(1, 30)))
    if not program.nodes:
        return
    protocol = data.draw(st.sampled_from(["Simple", "LL"]))
    # Plans name no custom collective: only what it does counts, not what an all_reduce promises.
    named = replace(program, collective="all_reduce", contract=None)
    document = plan_document(named, protocol=protocol, npus_per_node=data.draw(st.integers(1, ranks)))
    plan = parse_plan(plan_text(document).encode())
    verdict = verify_plan(plan)
    facts = verdict.facts
    assert (verdict.well_formed, verdict.terminates) == (True, True)
    assert (facts.races, facts.entry, facts.exit_writes, facts.exit_reads) == ((), 0, 0, 0)
    if protocol == "Simple":
        # Two halves of scratch suffice for packets where every rank waits for all others, as in a collective.
        assert facts.later_races == ()
    run = find(plan).first
    for (rank, chunk), terms in program.contract.outputs.items():
        value = run.contents[run.cells.whole(rank, "o")[chunk]]
        assert dict(run.values.contributions(value)) == dict(terms)
