"""Laws of making algorithms of algorithms: instances side by side, and one after the other."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrasim_py.api import build_topology
from astrasim_py.builders.compose import compose
from astrasim_py.builders.dsl import algorithm
from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.builders.split import split
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.collective import promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.simulation import simulate
from astrasim_py.msccl.ir import steps_from
from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_writer import program_of
from astrasim_py.preparation.from_python import collective
from astrasim_py.verification.verifier import verify

CASES = [(name, kind) for name, (kinds, _) in ALGORITHMS.items() for kind in kinds if kind != "barrier"]
#: What two collectives in a row are.
SUMS = {
    ("reduce_scatter", "all_gather"): "all_reduce",
    ("reduce", "broadcast"): "all_reduce",
    ("all_reduce", "broadcast"): "all_reduce",
    ("scatter", "all_gather"): "broadcast",
    ("gather", "broadcast"): "all_gather",
    ("reduce_scatter", "gather"): "reduce",
    ("reduce", "scatter"): "reduce_scatter",
}


def made(name: str, kind: str, n: int):
    """A builder's algorithm, in a group that it can serve."""
    n = 1 << (n.bit_length() - 1) if name == "halving_doubling" else n
    options = {"dims": [2, n // 2]} if name == "hierarchical" else {}
    return build(name, kind, n, root=n // 2 if promise_of(kind).rooted else None, **options)


def bytes_of(algorithm_, size: int) -> Counter:
    """(source, destination) -> bytes."""
    found: Counter = Counter()
    for rank, trace in enumerate(algorithm_.traces):
        sends = trace.type == NodeType.COMM_SEND
        moved = algorithm_.message_bytes(rank, size)[sends].tolist()
        for target, count in zip(trace.column("comm_dst")[sends].tolist(), moved, strict=True):
            found[rank, target] += count
    return found


def tags(algorithm_) -> Counter:
    """(source, destination, tag) -> sends."""
    found: Counter = Counter()
    for rank, trace in enumerate(algorithm_.traces):
        for kind, target, tag in zip(trace.type, trace.column("comm_dst"), trace.column("comm_tag"), strict=True):
            if kind == NodeType.COMM_SEND:
                found[rank, int(target), int(tag)] += 1
    return found


# --------------------------------------------------------------------------------------------------- split


@pytest.mark.parametrize(("name", "kind"), CASES, ids=lambda x: x)
@pytest.mark.parametrize(("n", "k"), [(4, 3), (6, 2)])
def test_instances_do_what_one_does_with_the_same_bytes(name, kind, n, k):
    one = made(name, kind, n)
    several = one.split(k)
    assert several.verdict is True and verify(several).race_free
    assert (several.collective, several.chunks, several.in_place) == (one.collective, k * one.chunks, one.in_place)
    size = one.chunks * k * 64
    assert bytes_of(several, size) == bytes_of(one, size)
    assert set(tags(several).values()) <= {1}


@pytest.mark.parametrize(("name", "kind"), [("ring", "all_reduce"), ("ring", "broadcast"), ("direct", "all_to_all")])
def test_instances_have_channels_of_their_own(name, kind):
    several = made(name, kind, 4).split(3)
    messages = 0
    for trace in several.traces:
        message = (trace.type == NodeType.COMM_SEND) | (trace.type == NodeType.COMM_RECV)
        channel = trace.column("channel")
        assert (channel[~message] == MISSING).all()
        # Dependencies stay within an instance.
        own = np.where(message, channel, MISSING)
        ptr, parents = trace.parents()
        child = np.repeat(np.arange(len(trace)), np.diff(ptr))
        both = (own[child] != MISSING) & (own[parents] != MISSING)
        assert (own[child] == own[parents])[both].all()
        messages += sum(message)
        assert sorted(np.unique(channel[message])) == [0, 1, 2]
    assert messages == 2 * several.messages == 6 * made(name, kind, 4).messages


def test_hinted_channels_stay_apart():
    @algorithm("broadcast", ranks=2, chunks=2)
    def two(a):
        a[1][0] = a[0][0]
        with a.channel(1):
            a[1][1] = a[0][1]

    trace = two().split(2).traces[0]
    found = dict(zip(trace.column("src_off").tolist(), trace.column("channel").tolist(), strict=True))
    assert found == {0: 0, 2: 1, 1: 2, 3: 3}


@pytest.mark.parametrize("model", ["cut_through", "store_and_forward"])
@pytest.mark.parametrize("shape", ["ring", "fully_connected"])
def test_instances_share_links_and_pipeline(shape, model):
    topology = build_topology(shape=shape, npus=4, bandwidth="50 GB/s", latency="0 ns")
    one = build("ring", "all_reduce", 4, overlap=True)
    records = [
        simulate(collective("all_reduce", "1 MiB", topology, algorithm=x, model=model)) for x in (one, one.split(4))
    ]
    assert records[0].link["bytes"].tolist() == records[1].link["bytes"].tolist()
    # Links of the ring never rest in either.
    assert records[0].makespan == pytest.approx(records[1].makespan, rel=1e-6)


def test_instances_of_a_tree_pipeline():
    topology = build_topology(shape="fully_connected", npus=4, bandwidth="50 GB/s", latency="0 ns")
    one = build("ring", "broadcast", 4)
    times = [simulate(collective("broadcast", "1 MiB", topology, algorithm=one.split(k))).makespan for k in (1, 2, 8)]
    # A chain of three hops: (k + 2) parts of S/k each, one after the other on the first link.
    assert times[0] > times[1] > times[2]
    assert times[1] / times[0] == pytest.approx(4 / 6, rel=1e-3)


def test_ranges_across_shards_come_apart_and_only_these():
    gathers = made("recursive_doubling", "all_gather", 8)
    several = gathers.split(2)
    assert several.messages == 2 * 8 * 7  # log2(8) ranges of 1, 2, 4 shards, each shard on its own
    reduces = made("halving_doubling", "all_reduce", 8)
    assert reduces.split(2).messages == 2 * reduces.messages  # no shards: parts of the buffer, ranges as before

    @algorithm("all_gather", chunks=lambda n: 4 * n)
    def halves(a):
        for r in range(a.n):
            for q in range(a.n):
                if q != r:
                    for start in (4 * r, 4 * r + 2):
                        a[q][start : start + 2] = a[r][start : start + 2]

    assert halves(3).split(5).messages == 5 * halves(3).messages


@pytest.mark.parametrize("k", [1, 2, 5])
def test_programs_of_instances_do_the_same(k):
    for one in (build("ring", "all_reduce", 4), build("bruck", "all_gather", 5), build("pairwise", "all_to_all", 4)):
        program = program_of(one.split(k))
        assert not findings(program).problems
        assert verify(steps_from(program)).passes


@pytest.mark.parametrize("k", [0, -1, True, 1.5, 2**15 + 1])
def test_numbers_of_instances_are_whole(k):
    with pytest.raises(AlgorithmError, match="is no number of instances"):
        build("ring", "all_reduce", 4).split(k)


def test_what_states_no_cells_is_neither_split_nor_composed():
    blind = build("ring", "all_reduce", 3)
    blind = replace(blind, traces=tuple(t.replace(src_buf=MISSING, src_off=MISSING) for t in blind.traces))
    for subject, text in ((blind, "does not state the cells"), (build("ring", "barrier", 3), "moves no chunks")):
        for act in (lambda x: x.split(2), lambda x: x + x):
            with pytest.raises(AlgorithmError, match=text):
                act(subject)


def test_instances_of_one_that_never_ends_are_refused():
    one = build("ring", "all_reduce", 3)
    traces = list(one.traces)
    traces[0] = traces[0].replace(
        comm_tag=np.where(traces[0].type == NodeType.COMM_SEND, 99, traces[0].column("comm_tag"))
    )
    with pytest.raises(AlgorithmError, match=r"ring: rank 1 .* is never sent, so it cannot be split"):
        replace(one, traces=tuple(traces)).split(2)


# -------------------------------------------------------------------------------------------- composition


@pytest.mark.parametrize(("first", "second"), SUMS, ids=lambda x: x)
@pytest.mark.parametrize("barrier", [False, True])
def test_collectives_in_a_row_are_one(first, second, barrier):
    used = 0
    for one in ("ring", "direct", "double_binary_tree"):
        for two in ("ring", "binomial_tree", "recursive_doubling"):
            if first in ALGORITHMS[one][0] and second in ALGORITHMS[two][0]:
                a, b = made(one, first, 3), made(two, second, 3)
                both = compose(a, b, barrier=barrier)
                assert (both.collective, both.contract, both.verdict) == (SUMS[first, second], None, True)
                assert verify(both).race_free
                assert both.messages == a.messages + b.messages
                size = 4 * both.chunks
                assert bytes_of(both, size) == bytes_of(a, size) + bytes_of(b, size)
                assert set(tags(both).values()) <= {1}
                used += 1
    assert used >= 2


def test_the_second_begins_where_the_first_is_done():
    halves = [build("ring", kind, 8, overlap=True) for kind in ("reduce_scatter", "all_gather")]
    whole = build("ring", "all_reduce", 8, overlap=True)
    topology = build_topology(shape="torus", dims=[2, 4], bandwidth="50 GB/s", latency="500 ns")
    times = [
        simulate(collective("all_reduce", "1 MiB", topology, algorithm=x)).makespan
        for x in (whole, compose(*halves), compose(*halves, barrier=True))
    ]
    assert times[0] == times[1] < times[2]


def test_chunks_are_cut_to_a_common_number():
    first, second = build("ring", "reduce", 3, chunks=2), build("ring", "broadcast", 3, chunks=3)
    both = first + second
    assert (both.collective, both.chunks, both.verdict) == ("all_reduce", 6, True)


def test_composition_is_associative():
    parts = [build("direct", "scatter", 4), build("ring", "all_gather", 4), build("direct", "all_reduce", 4)]
    left, right = (parts[0] + parts[1]) + parts[2], parts[0] + (parts[1] + parts[2])
    assert left.collective == right.collective == "custom"
    assert left.contract == right.contract and left.verdict is right.verdict is True
    assert left.contract.outputs[2, 1] == {(0, 1): 4}
    assert left.contract.inputs == {(0, k) for k in range(4)}


def test_out_of_place_the_first_hands_over_in_scratch():
    twice = build("direct", "all_to_all", 3) + build("pairwise", "all_to_all", 3)
    assert twice.verdict is True and not twice.in_place and verify(twice).race_free
    # Blocks that travel back to where they came from.
    assert twice.contract.outputs == {(r, k): {(r, k): 1} for r in range(3) for k in range(3)}
    assert {int(b) for t in twice.traces for b in t.column("dst_buf") if b > 0} == {2, 3}


def test_scratch_of_both_stays_apart():
    @algorithm("all_reduce", chunks=1)
    def by_way_of_scratch(a):
        for r in range(1, a.n):
            a[0].scratch["x"][r] = a[r][0]
            a[0][0] += a[0].scratch["x"][r]
        for r in range(1, a.n):
            a[r].scratch["y"][0] = a[0][0]
            a[r][0] = a[r].scratch["y"][0]

    both = by_way_of_scratch(3) + by_way_of_scratch(3)
    assert both.contract.outputs[1, 0] == {(r, 0): 3 for r in range(3)} and both.verdict is True
    assert max(both.traces[0].column("src_off")) == 2 + 3


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (("direct", "reduce", 0), ("direct", "broadcast", 1), "rank 1 chunk 0: the broadcast of direct needs it"),
        (
            ("direct", "reduce_scatter", None),
            ("direct", "all_reduce", None),
            "rank 1 chunk 0: the all_reduce of direct",
        ),
        (("direct", "gather", 0), ("direct", "all_to_all", None), "direct is in place and direct is not in place"),
    ],
)
def test_what_does_not_fit_is_told(first, second, text):
    one, two = (build(name, kind, 3, root=root) for name, kind, root in (first, second))
    with pytest.raises(AlgorithmError) as caught:
        one + two
    assert text in str(caught.value)


def test_what_does_not_fit_is_told_with_both_lines():
    @algorithm("reduce", chunks=1)
    def to_one(a):
        for r in range(a.n):
            if r != a.root:
                a[a.root][0] += a[r][0]  # first

    @algorithm("broadcast", chunks=1)
    def from_one(a):
        for r in range(a.n):
            if r != a.root:
                a[r][0] = a[a.root][0]  # second

    assert (to_one(3, root=2) + from_one(3, root=2)).collective == "all_reduce"
    with pytest.raises(AlgorithmError) as caught:
        to_one(3) + from_one(3, root=2)
    lines, first = inspect.getsourcelines(from_one.function)
    line = first + next(i for i, text in enumerate(lines) if "# second" in text)
    assert f"rank 2 chunk 0: the broadcast of from_one needs it ({__file__}:{line})" in str(caught.value)
    assert "the reduce of to_one does not promise it" in str(caught.value)

    @algorithm(in_place=True, chunks=1, contract=lambda n, c: Contract(ranks=n, chunks=c, outputs={}))
    def promises_nothing(a):
        a[2][0] += a[1][0]  # third

    lines, first = inspect.getsourcelines(promises_nothing.function)
    line = first + next(i for i, text in enumerate(lines) if "# third" in text)
    with pytest.raises(AlgorithmError, match="does not promise it") as caught:
        promises_nothing(3) + from_one(3, root=2)
    assert f"(last written at {__file__}:{line})" in str(caught.value)


def test_groups_of_unequal_size_are_not_composed():
    with pytest.raises(AlgorithmError, match="has 3 ranks, then 4"):
        build("ring", "reduce_scatter", 3) + build("ring", "all_gather", 4)
    with pytest.raises(AlgorithmError, match="custom, and nothing says what it promises"):
        algorithm(chunks=1, in_place=True)(lambda a: None)(3) + build("ring", "broadcast", 3)
    with pytest.raises(TypeError):
        build("ring", "broadcast", 3) + 1


def test_lines_stay_with_what_they_are_of():
    @algorithm("reduce_scatter")
    def scattered(a):
        for i in range(a.n):
            for k in range(1, a.n):
                a[i][i] += a[(i + k) % a.n][i]

    both = scattered(3) + build("ring", "all_gather", 3)
    assert both.source == __file__ and both.name == "scattered+ring"
    lines = Counter(int(line) for t in both.traces for line in t.column("source_line"))
    assert lines[MISSING] == build("ring", "all_gather", 3).nodes and len(lines) == 2


# ------------------------------------------------------------------------------------------------- groups


# ---------------------------------------------------------------------------------- laws on random programs


@st.composite
def programs(draw, ranks=3, chunks=4):
    """Copies and reductions of one or two chunks in one buffer."""
    statements = []
    for _ in range(draw(st.integers(1, 7))):
        count = draw(st.integers(1, 2))
        side = st.tuples(st.integers(0, ranks - 1), st.integers(0, chunks - count))
        (to, into), (of, start) = draw(side), draw(side)
        if to != of or abs(into - start) >= count:
            statements.append((draw(st.booleans()), to, into, of, start, count))
    return statements


def meant(statements, ranks=3, chunks=4) -> dict:
    """What statements leave in every cell."""
    cells = {(r, k): Counter({(r, k): 1}) for r in range(ranks) for k in range(chunks)}
    for adds, to, into, of, start, count in statements:
        values = [cells[of, start + i] + (cells[to, into + i] if adds else Counter()) for i in range(count)]
        cells.update({(to, into + i): value for i, value in enumerate(values)})
    return {cell: dict(value) for cell, value in cells.items()}


def compiled(statements, ranks=3, chunks=4):
    @algorithm(contract=Contract(ranks=ranks, chunks=chunks, outputs=meant(statements)), in_place=True)
    def any_(a):
        for adds, to, into, of, start, count in statements:
            if adds:
                a[to][into : into + count] += a[of][start : start + count]
            else:
                a[to][into : into + count] = a[of][start : start + count]

    return any_()


@settings(max_examples=40)
@given(programs(), st.integers(2, 3))
def test_any_program_can_be_split(statements, k):
    one = compiled(statements)
    several = split(one, k)
    verdict = verify(several)
    assert verdict.ok and verdict.race_free
    assert bytes_of(several, 4 * k * 8) == bytes_of(one, 4 * k * 8)
    assert several.contract.outputs[1, 2 * k + 1] == {
        (q, c * k + 1): times for (q, c), times in one.contract.outputs[1, 2].items()
    }


@settings(max_examples=40)
@given(programs(), programs(), st.booleans())
def test_any_two_programs_are_as_one_text(one, two, barrier):
    both = compose(compiled(one), compiled(two), barrier=barrier)
    verdict = verify(both)
    assert verdict.ok and verdict.race_free
    outputs = meant(one + two)
    assert (both.contract.outputs if both.contract else outputs) == outputs


@settings(max_examples=20)
@given(programs(), programs(), st.integers(2, 3))
def test_splitting_and_composing_commute(one, two, k):
    first, second = compiled(one), compiled(two)
    a, b = split(compose(first, second), k), compose(split(first, k), split(second, k))
    assert a.contract == b.contract
    assert bytes_of(a, 96) == bytes_of(b, 96)
