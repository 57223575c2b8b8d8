"""Algorithms in Python: they are what builders make, do what their statements say, and errors name the user's line."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.api import build_topology
from astrasim_py.builders.dsl import algorithm
from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.engine.simulation import simulate
from astrasim_py.msccl.ir import steps_from
from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_writer import program_of
from astrasim_py.preparation.from_python import collective
from astrasim_py.verification.verifier import verify

SIZES = range(2, 10)


# ------------------------------------------------------------------------------------ well-known algorithms


@algorithm("all_reduce")
def ring(a):
    for s in range(a.n - 1):
        for i in range(a.n):
            a[(i + s + 1) % a.n][i] += a[(i + s) % a.n][i]
    for s in range(a.n - 1):
        for i in range(a.n):
            a[(i + s) % a.n][i] = a[(i + s - 1) % a.n][i]


@algorithm("reduce_scatter")
def ring_reduce_scatter(a):
    for s in range(a.n - 1):
        for i in range(a.n):
            a[(i + s + 2) % a.n][i] += a[(i + s + 1) % a.n][i]


@algorithm("all_gather")
def ring_all_gather(a):
    for s in range(a.n - 1):
        for i in range(a.n):
            a[(i + s + 1) % a.n][i] = a[(i + s) % a.n][i]


@algorithm("all_reduce")
def all_pairs(a):
    for i in range(a.n):
        for k in range(1, a.n):
            a[i][i] += a[(i - k) % a.n][i]
        for k in range(1, a.n):
            a[(i + k) % a.n][i] = a[i][i]


@algorithm("all_to_all")
def direct_all_to_all(a):
    for r in range(a.n):
        for k in range(a.n):
            a[k].output[r] = a[r].input[k]


@algorithm("all_reduce", chunks=1)
def recursive_doubling(a):
    power = 1 << (a.n.bit_length() - 1)
    rest = a.n - power
    actual = [2 * v + 1 if v < rest else v + rest for v in range(power)]
    for v in range(rest):
        a[2 * v + 1][0] += a[2 * v][0]
    for k in range(power.bit_length() - 1):
        for v in range(power):
            a[actual[v]].scratch["theirs"][k] = a[actual[v ^ (1 << k)]][0]
        for v in range(power):
            a[actual[v]][0] += a[actual[v]].scratch["theirs"][k]
    for v in range(rest):
        a[2 * v][0] = a[2 * v + 1][0]


@algorithm("broadcast", chunks=1)
def binomial_broadcast(a):
    def halve(low, high):
        if high - low > 1:
            # The first keeps the smaller half.
            middle = low + (high - low) // 2
            a[(a.root + middle) % a.n][0] = a[(a.root + low) % a.n][0]
            halve(low, middle)
            halve(middle, high)

    halve(0, a.n)


def ring_of(a, ranks, blocks, reduces):
    """A ring reduce_scatter or all_gather among some ranks: block i is the shard of the i-th of them."""
    m = len(ranks)
    for s in range(m - 1):
        for i in range(m):
            near, far = ranks[(i + s + reduces) % m], ranks[(i + s + 1 + reduces) % m]
            for c in blocks[i]:
                if reduces:
                    a[far][c] += a[near][c]
                else:
                    a[far][c] = a[near][c]


@algorithm("all_reduce")
def hierarchical(a, local=2):
    nodes = a.n // local
    blocks = [range(i * nodes, (i + 1) * nodes) for i in range(local)]
    inner = [[node * local + i for i in range(local)] for node in range(nodes)]
    outer = [[node * local + i for node in range(nodes)] for i in range(local)]
    for ranks in inner:
        ring_of(a, ranks, blocks, True)
    for reduces in (True, False):
        for ranks, block in zip(outer, blocks, strict=True):
            ring_of(a, ranks, [[c] for c in block], reduces)
    for ranks in inner:
        ring_of(a, ranks, blocks, False)


def next_contract(n: int, chunks: int) -> Contract:
    """Every rank but the first gets what the one before has."""
    outputs = {(r, k): {(r - 1, k): 1} for r in range(1, n) for k in range(chunks)}
    return Contract(ranks=n, chunks=chunks, outputs=outputs)


@algorithm(chunks=3, contract=next_contract)
def all_to_next(a):
    for r in range(1, a.n):
        a[r].output[0:3] = a[r - 1].input[0:3]


def traffic(made) -> Counter:
    """(source, destination) -> [messages, share of the buffer]."""
    found: Counter = Counter()
    for rank, trace in enumerate(made.traces):
        sends = trace.type == NodeType.COMM_SEND
        counts = trace.column("msg_chunk_cnt")[sends].tolist()
        for target, count in zip(trace.column("comm_dst")[sends].tolist(), counts, strict=True):
            found[rank, target, "messages"] += 1
            found[rank, target, "bytes"] += Fraction(count, made.chunks)
    return found


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("definition", "built"),
    [
        (ring, ("ring", "all_reduce")),
        (ring_reduce_scatter, ("ring", "reduce_scatter")),
        (ring_all_gather, ("ring", "all_gather")),
        (all_pairs, ("direct", "all_reduce")),
        (direct_all_to_all, ("direct", "all_to_all")),
        (recursive_doubling, ("recursive_doubling", "all_reduce")),
    ],
    ids=lambda x: x[0] + "-" + x[1] if isinstance(x, tuple) else "",
)
def test_an_algorithm_is_what_the_builder_makes(definition, built, n):
    made = definition(n)
    assert made.verdict is True
    assert traffic(made) == traffic(build(*built, n))
    verdict = verify(made)
    assert verdict.race_free and verdict.min_slots == 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("root", [0, 1])
def test_a_broadcast_tree_works_from_any_root(n, root):
    made = binomial_broadcast(n, root=root)
    assert made.verdict is True
    assert traffic(made) == traffic(build("binomial_tree", "broadcast", n, root=root))


@pytest.mark.parametrize(("n", "local"), [(2, 2), (4, 2), (6, 2), (6, 3), (8, 4), (9, 3)])
def test_a_hierarchy_moves_what_the_builder_does(n, local):
    made = hierarchical(n, local=local)
    assert made.verdict is True and verify(made).race_free
    theirs = traffic(build("hierarchical", "all_reduce", n, dims=[local, n // local]))
    ours = traffic(made)
    assert {key: ours[key] for key in ours if key[2] == "bytes"} == {k: theirs[k] for k in theirs if k[2] == "bytes"}


@pytest.mark.parametrize("n", SIZES)
def test_a_custom_collective_is_held_to_its_contract(n):
    made = all_to_next(n)
    assert made.verdict is True and made.messages == n - 1 and made.chunks == 3
    wrong = Contract(ranks=n, chunks=3, outputs={(1, 0): {(0, 1): 1}})
    with pytest.raises(AlgorithmError, match="rank 1 chunk 0 lacks contribution of rank 0"):
        all_to_next(n, contract=wrong)
    assert all_to_next(n, contract=None).verdict is None


@pytest.mark.parametrize("shape", [{"shape": "ring", "npus": 8}, {"shape": "torus", "dims": [2, 4]}])
@pytest.mark.parametrize("model", ["cut_through", "store_and_forward"])
def test_a_ring_takes_as_long_as_the_overlapping_builder(shape, model):
    topology = build_topology(bandwidth="50 GB/s", latency="500 ns", **shape)
    built = build("ring", "all_reduce", 8, overlap=True)
    times = [
        simulate(collective("all_reduce", "1 MiB", topology, algorithm=made, model=model)).makespan
        for made in (ring(8), built)
    ]
    assert times[0] == times[1]


def test_an_algorithm_becomes_a_program_of_thread_blocks():
    for made in (ring(4), all_pairs(4), hierarchical(8, local=4), recursive_doubling(6), direct_all_to_all(3)):
        program = program_of(made)
        assert not findings(program).problems
        verdict = verify(steps_from(program))
        assert verdict.ok and verdict.passes


# ------------------------------------------------------------------------------------------ what a text means


@st.composite
def programs(draw, ranks=3, chunks=3):
    """Statements on an in-place and a scratch buffer: (adds, rank, scratch?, first, rank, scratch?, first, count)."""
    statements = []
    for _ in range(draw(st.integers(1, 9))):
        count = draw(st.integers(1, 2))
        first = st.integers(0, chunks - count)
        side = st.tuples(st.integers(0, ranks - 1), st.booleans(), first)
        statements.append((draw(st.booleans()), *draw(side), *draw(side), count))
    return statements


def meant(statements, ranks=3, chunks=3):
    """The statements that make sense, and what they leave in every cell: an interpreter of its own."""
    cells = {(r, False, k): Counter({(r, k): 1}) for r in range(ranks) for k in range(chunks)}
    kept = []
    for adds, to, into_scratch, into, of, from_scratch, start, count in statements:
        target = [(to, into_scratch, into + i) for i in range(count)]
        source = [(of, from_scratch, start + i) for i in range(count)]
        if any(cell not in cells for cell in source + target * adds) or set(source) & set(target):
            continue
        values = [cells[cell] + cells[own] if adds else cells[cell] for cell, own in zip(source, target, strict=True)]
        cells.update(zip(target, values, strict=True))
        kept.append((adds, to, into_scratch, into, of, from_scratch, start, count))
    return kept, {(r, k): dict(value) for (r, scratch, k), value in cells.items() if not scratch}


def carry_out(a, statements):
    """Run statements on the machine."""
    for adds, to, into_scratch, into, of, from_scratch, start, count in statements:
        source = (a[of].scratch["s"] if from_scratch else a[of])[start : start + count]
        target = a[to].scratch["s"] if into_scratch else a[to]
        if adds:
            target[into : into + count] += source
        else:
            target[into : into + count] = source


def compiled(statements, outputs, ranks=3, chunks=3):
    contract = Contract(ranks=ranks, chunks=chunks, outputs=outputs)
    return algorithm(contract=contract, in_place=True, name="any")(lambda a: carry_out(a, statements))()


@given(programs())
def test_a_program_does_what_its_statements_say_one_after_the_other(statements):
    statements, outputs = meant(statements)
    verdict = verify(compiled(statements, outputs))
    assert verdict.ok and verdict.race_free and verdict.min_slots == 1


@given(programs(), st.data())
def test_no_statement_can_be_left_out_unnoticed(statements, data):
    statements, outputs = meant(statements)
    if not statements:
        return
    gone = data.draw(st.integers(0, len(statements) - 1))
    fewer, left = meant(statements[:gone] + statements[gone + 1 :])
    if left == outputs:
        return
    with pytest.raises(AlgorithmError):
        compiled(fewer, outputs)


def test_no_dependency_is_there_twice_or_for_nothing():
    made = ring(8)
    # Per rank: 7 sends that wait for a sum or an arrival, but the first; sums wait for their message; arrivals of the
    # second half for the send of the first that read their cell.
    assert [len(t.parents()[1]) for t in made.traces] == [2 * 7 - 1 + 7 + 7] * 8


def test_bytes_follow_the_data_through_scratch():
    @algorithm("all_gather", chunks=lambda n: 2 * n)
    def detour(a):
        for r in range(a.n):
            for q in range(a.n):
                if q != r:
                    a[q].scratch["way"][2 * r : 2 * r + 2] = a[r][2 * r : 2 * r + 2]
                    a[q][2 * r : 2 * r + 2] = a[q].scratch["way"][2 * r : 2 * r + 2]

    made = detour(3)
    for trace in made.traces:
        index, offset = trace.column("msg_chunk_idx"), trace.column("dst_off")
        written = trace.column("dst_buf") == 2
        assert written.any() and (index[written] == offset[written]).all()
    size = 1000003
    sent = [made.message_bytes(r, size)[made.traces[r].type == NodeType.COMM_SEND] for r in range(3)]
    received = [made.message_bytes(r, size)[made.traces[r].type == NodeType.COMM_RECV] for r in range(3)]
    assert sum(map(np.sum, sent)) == sum(map(np.sum, received)) == 2 * size


def test_scratch_buffers_lie_side_by_side():
    @algorithm("all_reduce", ranks=2, chunks=1, scratch={"a": 4, "b": 2, "unused": 9})
    def two(a):
        for r in range(2):
            a[r].scratch["b"][1] = a[1 - r][0]
            a[r].scratch["a"][2] = a[r].scratch["b"][1]
        for r in range(2):
            a[r][0] += a[r].scratch["a"][2]

    trace = two().traces[0]
    scratch = trace.column("dst_off")[trace.column("dst_buf") == 3]
    assert sorted(scratch.tolist()) == [1, 4]


def test_channels_are_those_that_are_named():
    @algorithm("broadcast", ranks=3, chunks=2)
    def star(a):
        for r in (1, 2):
            a[r][0] = a[0][0]
            with a.channel(r):
                a[r][1] = a[0][1]
                with a.channel(7):
                    pass

    found = star()
    assert found.traces[0].column("channel").tolist() == [MISSING, 1, MISSING, 2]
    assert [found.traces[r].column("channel").tolist() for r in (1, 2)] == [[MISSING, 1], [MISSING, 2]]
    assert not ring(3).traces[0].has_column("channel")


def test_sums_are_copied_and_added():
    @algorithm("reduce", ranks=4, chunks=1, root=2)
    def tree(a):
        a[0][0] = a[0][0] + a[1][0]
        a[2][0] += a[3][0] + a[0][0]

    assert tree().verdict is True and tree().messages == 3

    @algorithm("reduce", ranks=3, chunks=1, in_place=False)
    def away(a):
        a[0].output[0] = a[0].input[0] + a[1].input[0] + a[2].input[0]

    assert away().verdict is True and away().messages == 2


def test_names_of_chunks_stand_for_them():
    @algorithm("all_reduce", ranks=2, chunks=2)
    def named(a):
        c = a[0][0]
        c += a[1][0]
        x = a[1]
        x[0] = c
        d = x[1]
        d += a[0][1]
        a[0][1] = d
        a[0][1] = a[0][1]  # is there already

    assert named().verdict is True and named().messages == 4


def test_numbers_may_be_numpys():
    @algorithm("all_reduce", ranks=np.int64(2), chunks=np.int64(2))
    def numbers(a):
        for i in np.arange(2):
            a[i][i] += a[1 - i][i]
            a[1 - i][i : i + 1] = a[i][i : i + 1]

    assert numbers().verdict is True


def test_in_place_parts_of_the_buffer_alias():
    @algorithm("all_gather", ranks=2, chunks=4)
    def gathers(a):
        assert (len(a[0].input), len(a[0].output), len(a[0]), a.shard) == (2, 4, 4, 2)
        for r in range(2):
            a[1 - r].output[2 * r : 2 * r + 2] = a[r].input[:]

    @algorithm("scatter", ranks=2, chunks=4, root=1)
    def scatters(a):
        assert (len(a[0].input), len(a[0].output)) == (4, 2)
        a[0].output[:] = a[1].input[0:2]

    assert gathers().verdict is True and scatters().verdict is True

    @algorithm("reduce_scatter", in_place=False)
    def away(a):
        assert (len(a[0].input), len(a[0].output)) == (a.n, 1)
        for r in range(a.n):
            a[r].output[0] = a[r].input[r]
            for k in range(1, a.n):
                a[r].output[0] += a[(r - k) % a.n].input[r]

    made = away(3)
    assert made.verdict is True and not made.in_place
    assert traffic(made) == traffic(build("direct", "reduce_scatter", 3))


# ------------------------------------------------------------------------------------------------- misuse

HERE = "# here"


def place_of(function) -> str:
    """``file:line`` of the line marked ``# here``."""
    lines, first = inspect.getsourcelines(function)
    (at,) = [i for i, line in enumerate(lines) if HERE in line]
    return f"{inspect.getsourcefile(function)}:{first + at}"


def _beyond(a):
    a[1][a.chunks] = a[0][0]  # here


def _negative(a):
    a[1][-1] = a[0][0]  # here


def _no_rank(a):
    a[a.n][0] = a[0][0]  # here


def _rank_before(a):
    a[0][0] = a[-1][0]  # here


def _half(a):
    a[0][0.5] = a[1][0]  # here


def _text(a):
    a["0"][0] = a[1][0]  # here


def _truth(a):
    a[0][True] = a[1][0]  # here


def _ranks(a):
    a[0:2][0] = a[1][0]  # here


def _step(a):
    a[0][0:2:2] = a[1][0:1]  # here


def _nothing(a):
    a[0][1:1] = a[1][1:1]  # here


def _over_the_end(a):
    a[0][1:9] = a[1][1:9]  # here


def _unequal(a):
    a[0][0:2] = a[1][0:1]  # here


def _undefined(a):
    a[0][0] = a[1].scratch["x"][0]  # here


def _undefined_sum(a):
    a[0].scratch["x"][0] += a[1][0]  # here


def _whole_rank(a):
    a[1] = a[0][0]  # here


def _whole_ranks(a):
    a[1] += a[0]  # here


def _rank_on_the_right(a):
    a[1][0] = a[0]  # here


def _everything(a):
    a[1][0] = a  # here


def _number(a):
    a[1][0] += 1  # here


def _whole_scratch(a):
    a[1].scratch["x"] = a[0][0]  # here


def _scratch_number(a):
    a[1].scratch[1][0] = a[0][0]  # here


def _stale(a):
    c = a[0][0]
    a[0][0] += a[1][0]
    a[1][0] = c  # here


def _stale_target(a):
    c = a[0][0]
    a[0][0] = a[1][0]
    c += a[1][1]  # here


def _stale_twice(a):
    c = d = a[0][0]
    c += a[1][0]
    d += a[1][1]  # here


def _overlap(a):
    a[0][0:2] = a[0][1:3]  # here


def _itself(a):
    a[0][0] += a[0][0]  # here


def _twice_itself(a):
    x = a[0][0]
    a[0][0] = x + x  # here


def _exception(a):
    a[0][0] = a[[][1]][0]  # here


def _division(a):
    a[1][0] = a[0][1 // (a.n - 3)]  # here


def _iteration(a):
    for c in a[0]:  # here
        a[1][0] = c


def _attribute(a):
    a[0].data[0] = a[1][0]  # here


def _channel(a):
    with a.channel(-1):  # here
        a[0][0] = a[1][0]


def _swallowed(a):
    try:
        a[0][9] = a[1][0]  # here
    except Exception:
        a[0][0] = a[1][0]


MISUSES = {
    _beyond: "a[1][3] is out of range; write 0 to 2",
    _negative: "a[1][-1] is out of range",
    _no_rank: "there is no rank 3; write 0 to 2, e.g. (…) % a.n",
    _rank_before: "there is no rank -1",
    _half: "0.5 is not an index",
    _text: "'0' is not a rank",
    _truth: "True is not an index",
    _ranks: "a[0:2] names several ranks",
    _step: "has a step",
    _nothing: "a[1][1:1] is empty",
    _over_the_end: "a[1][1:9] is out of range; write bounds of 0 to 3",
    _unequal: "a[0][0:2] and a[1][0] differ in length: 2 and 1 chunks",
    _undefined: 'a[1].scratch["x"][0] holds nothing yet',
    _undefined_sum: 'a[0].scratch["x"][0] holds nothing yet',
    _whole_rank: "assigns to a[1], a whole rank; write a[1][i] = …",
    _whole_ranks: "adds to a[1], which is no chunk; write a[1][i] += …",
    _rank_on_the_right: "assigns a[0], which is no chunk; write a[0][…]",
    _everything: "assigns a, which is no chunk",
    _number: "adds 1, which is no chunk",
    _whole_scratch: "assigns to a[1].scratch['x'], which is no chunk",
    _scratch_number: "scratch buffers have names",
    _stale: "a[0][0] was overwritten (line {before}) after this reference to it was made; write a[0][0] here",
    _stale_target: "a[0][0] was overwritten (line {before})",
    _stale_twice: "a[0][0] was overwritten (line {before})",
    _overlap: "a[0][1:3] is copied onto a[0][0:2], which overlaps it",
    _itself: "a[0][0] is added to a[0][0], which overlaps it",
    _twice_itself: "a[0][0] is added to a[0][0], which overlaps it",
    _exception: "IndexError: list index out of range",
    _division: "ZeroDivisionError",
    _iteration: "TypeError: 'Rank' object is not iterable",
    _attribute: "AttributeError: 'Rank' object has no attribute 'data'",
    _channel: "a.channel(-1) does not exist",
    _swallowed: "a[0][9] is out of range",
}


@pytest.mark.parametrize("function", MISUSES, ids=lambda f: f.__name__)
def test_misuse_is_told_at_its_line(function):
    with pytest.raises(AlgorithmError) as caught:
        algorithm("all_reduce")(function)(3)
    place = place_of(function)
    assert caught.value.place == place
    assert MISUSES[function].format(before=int(place.rpartition(":")[2]) - 1) in str(caught.value)
    assert len(caught.value.lines()) == 1


def _unnamed_buffer(a):
    a[0][0] = a[1].input[0]  # here


def _unnamed_on_the_right(a):
    a[0].output[0] = a[1][0]  # here


def _never_written(a):
    a[0].output[0] = a[1].output[0]  # here


def test_out_of_place_a_buffer_has_to_be_named():
    for function, text in (
        (_unnamed_buffer, "a[0][…] may be input or output; write a[0].input[…] or a[0].output[…]"),
        (_unnamed_on_the_right, "a[1][…] may be input or output"),
        (_never_written, "a[1].output[0] holds nothing yet"),
    ):
        with pytest.raises(AlgorithmError) as caught:
            algorithm("all_to_all")(function)(2)
        assert caught.value.place == place_of(function) and text in str(caught.value)


def _from_a_leaf(a):
    a[0][0] = a[1][0]  # here


def test_only_inputs_of_the_collective_are_defined():
    for define, text in (
        (algorithm("broadcast"), "a[1][0] holds nothing yet"),
        (algorithm("all_gather"), "a[1][0] holds nothing yet"),
        (
            algorithm(contract=Contract(ranks=2, chunks=2, outputs={}, inputs=frozenset({(0, 0)})), in_place=True),
            "a[1]",
        ),
    ):
        with pytest.raises(AlgorithmError) as caught:
            define(_from_a_leaf)(2)
        assert caught.value.place == place_of(_from_a_leaf) and text in str(caught.value)


def _ends_early(a):
    return a


def test_nothing_is_traced_after_the_function():
    kept = []

    @algorithm("all_reduce", verify=False)
    def leaks(a):
        kept.extend([a, a[0], a[1][0]])

    leaks(2)
    machine, rank, chunk = kept
    for use in (lambda: machine[0], lambda: rank.__setitem__(0, chunk), lambda: chunk.__iadd__(chunk)):
        with pytest.raises(AlgorithmError, match="after the function of the algorithm has returned") as caught:
            use()
        assert caught.value.place.startswith(__file__)

    @algorithm("all_reduce")
    def mixes(a):
        a[0][0] = chunk  # here

    with pytest.raises(AlgorithmError, match="a chunk of another run") as caught:
        mixes(2)
    assert caught.value.place == place_of(mixes.function)


def test_helpers_elsewhere_are_called_from_the_algorithm(tmp_path):
    helper = tmp_path / "helper.py"
    helper.write_text("def exchange(a, r, q):\n    a[r][0] += a[q][0]\n\n\ndef fail(a):\n    a[9][0] = a[0][0]\n")
    space: dict = {}
    exec(compile(helper.read_text(), str(helper), "exec"), space)
    exchange, fail = space["exchange"], space["fail"]

    @algorithm("reduce", ranks=2, chunks=1)
    def uses(a):
        exchange(a, 0, 1)  # here

    made = uses()
    line = int(place_of(uses.function).rpartition(":")[2])
    assert made.source == __file__
    assert {n for t in made.traces for n in t.column("source_line").tolist()} == {line}

    @algorithm("reduce", ranks=2, chunks=1)
    def fails(a):
        fail(a)

    with pytest.raises(AlgorithmError) as caught:
        fails()
    assert caught.value.place == f"{helper}:6"


# ----------------------------------------------------------------------------------------- wrong algorithms


def _swapped(a):
    for s in range(a.n - 1):
        for i in range(a.n):
            a[(i + s + 1) % a.n][i] += a[(i + s) % a.n][i]
    for s in reversed(range(a.n - 1)):
        for i in range(a.n):
            a[(i + s) % a.n][i] = a[(i + s - 1) % a.n][i]  # here


def _dropped(a):
    for s in range(a.n - 2):
        for i in range(a.n):
            a[(i + s + 1) % a.n][i] += a[(i + s) % a.n][i]
    for s in range(a.n):
        for i in range(a.n):
            a[(i + s - 1) % a.n][i] = a[(i + s - 2) % a.n][i]  # here


def _twice(a):
    for i in range(a.n):
        for r in (0, 0, 1, 2, 3):
            if r != i:
                a[i][i] += a[r][i]  # here
        for r in range(a.n):
            a[r][i] = a[i][i]  # or here


def _both_at_once(a):
    for k in (1, 2):
        for r in range(4):
            a[r][:] += a[r ^ k][:]  # here


def _unfinished(a):
    for i in range(a.n):
        for r in range(a.n):
            if r != i:
                a[i][i] += a[r][i]  # here


@pytest.mark.parametrize("function", [_swapped, _dropped, _twice, _both_at_once, _unfinished], ids=lambda f: f.__name__)
def test_wrong_algorithms_are_refused_at_the_line_that_wrote_what_is_wrong(function):
    with pytest.raises(AlgorithmError, match=f"{function.__name__} is no all_reduce: rank . chunk .") as caught:
        algorithm("all_reduce")(function)(4)
    file, _, line = caught.value.place.rpartition(":")
    lines, first = inspect.getsourcelines(function)
    assert file == __file__
    assert int(line) == first or "here" in lines[int(line) - first]
    made = algorithm("all_reduce", verify=False)(function)(4)
    assert made.verdict is None and verify(made).ok is False


def test_an_algorithm_that_does_nothing_is_told_where_it_begins():
    with pytest.raises(AlgorithmError) as caught:
        algorithm("broadcast", chunks=1)(_ends_early)(2)
    first = inspect.getsourcelines(_ends_early)[1]
    assert caught.value.place == f"{__file__}:{first}"


# --------------------------------------------------------------------------------------------- definitions


def test_a_definition_serves_any_number_of_ranks_and_scenarios():
    assert [ring(n).chunks for n in (1, 2, 5)] == [1, 2, 5]
    assert ring("all_reduce", 3).ranks == 3
    assert ring(3, name="mine", protocol="LL").name == "mine"
    assert hierarchical("allreduce", 6, local=3).verdict is True
    assert binomial_broadcast("broadcast", 4, root=3).root == 3
    assert ring(4).digest() == ring(4).digest()
    fixed = algorithm("all_reduce", ranks=4, chunks=4)(ring.function)
    assert fixed().ranks == fixed(4).ranks == 4
    assert fixed(2, 2).chunks == fixed(2, chunks=2).chunks == fixed(ranks=2, chunks=2).chunks == 2
    with pytest.raises(AlgorithmError, match="lacks contribution"):
        fixed(2, chunks=4)
    assert ring.__name__ == "ring" and "ring" in repr(ring)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ring(), "has no number of ranks; write ring(8), or ranks=8 above it"),
        (lambda: ring(0), "ranks is 0"),
        (lambda: ring("8"), '"8" is not a collective'),
        (lambda: ring("all_gather", 8), "is made for all_reduce, not for all_gather"),
        (lambda: ring(2, 2, 2), "takes ranks and chunks, not 3 values"),
        (lambda: ring(2, 0), "chunks is 0"),
        (lambda: ring(2, 1.5), "chunks is 1.5"),
        (lambda: ring(2, unknown=1), "TypeError: ring() got an unexpected keyword argument 'unknown'"),
        (lambda: ring(2, contract=next_contract), "all_reduce has a contract already"),
        (lambda: ring(2, chunks=lambda n: n // 0), "ZeroDivisionError"),
        (lambda: ring(2, protocol="Fast"), '"Fast" is not a protocol'),
        (lambda: ring_all_gather(4, 6), "6 chunks do not divide among 4 ranks"),
        (lambda: binomial_broadcast(2, root=2), "root 2 is not one of 2 ranks"),
        (lambda: all_to_next(2, contract=next_contract(3, 3)), "its contract is of 3 ranks and 3 chunks"),
        (lambda: algorithm("all_reduce", scratch={"x": 0})(_ends_early)(2), "scratch 'x' is 0"),
        (lambda: algorithm("all_reduce", ranks=8, chunks=8)(_ends_early)(4), "is written for 8 ranks and 8 chunks"),
        (lambda: algorithm("all_reduce")(print), "which is no Python function"),
        (lambda: ring(2, 2**21), "chunks is 2097152"),
        (lambda: algorithm("barrier")(_ends_early), "a barrier moves no chunks"),
        (lambda: algorithm("ring")(_ends_early), '"ring" is not a collective'),
        (lambda: algorithm("reduce")(lambda a, root: None), "its parameter root is an option of every algorithm"),
        (lambda: algorithm(_ends_early), 'write e.g. @algorithm("all_reduce")'),
        (lambda: algorithm("all_reduce")(lambda a: (yield a))(2), "yields or awaits"),
    ],
)
def test_wrong_definitions_are_one_clear_line(make, text):
    with pytest.raises(AlgorithmError) as caught:
        make()
    assert text in str(caught.value) and len(caught.value.lines()) == 1
    assert caught.value.place.startswith(__file__)


def _undeclared(a):
    a[0].scratch["y"][0] = a[1][0]  # here


def test_declared_scratch_is_all_there_is():
    with pytest.raises(AlgorithmError, match=r'a\[0\].scratch\["y"\] is not declared; declared: x') as caught:
        algorithm("all_reduce", scratch={"x": 1})(_undeclared)(2)
    assert caught.value.place == place_of(_undeclared)


@pytest.mark.slow
def test_texts_are_the_same_in_every_process():
    text = (
        "from astrasim_py.builders.registry import build\n"
        "import importlib.util as u, sys\n"
        f"spec = u.spec_from_file_location('t', {__file__!r})\n"
        "t = u.module_from_spec(spec); spec.loader.exec_module(t)\n"
        "print(t.hierarchical(6, local=3).split(2).digest())\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == hierarchical(6, local=3).split(2).digest()


def test_large_rings_stay_linear():
    # Counted, not timed: nodes and dependencies per step do not grow with the group.
    small, large = ring(16, verify=False), ring(64, verify=False)
    for made in (small, large):
        n = made.ranks
        assert made.nodes == 5 * n * (n - 1)
        assert sum(len(t.parents()[1]) for t in made.traces) == n * (4 * (n - 1) - 1)


@pytest.mark.parametrize("slip", ["a[0][0] == a[1][0]", "bool(a[0][0])", "a[0][0] < 1"])
def test_what_a_chunk_holds_is_no_condition(slip):
    @algorithm("all_reduce", ranks=2, chunks=2)
    def compares(a):
        eval(slip, {"a": a})

    with pytest.raises(AlgorithmError, match="is compared, or used as a condition"):
        compares()


def test_a_root_is_for_rooted_collectives():
    with pytest.raises(AlgorithmError, match="all_reduce takes no root"):
        algorithm("all_reduce", ranks=2, chunks=2, root=1)(lambda a: None)()


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_switches_take_part(slots):
    @algorithm("all_reduce", chunks=4)
    def star(a):
        leaf = a.switch("leaf0")
        for j in range(a.chunks):
            leaf[j % slots] = a[0][j]
            for rank in range(1, a.n):
                leaf[j % slots] += a[rank][j]
            for rank in range(a.n):
                a[rank][j] = leaf[j % slots]

    made = star(3)
    assert (made.ranks, made.actors, made.slots_of(0)) == (3, ("leaf0",), slots)
    assert verify(made).passes
    assert made.messages == 2 * 3 * 4


def test_a_tree_of_switches_named_by_numbers():
    @algorithm("all_reduce", chunks=1)
    def tree(a):
        top = a.switch("top")
        for k in range(2):
            a.switch(k)[0] = a[2 * k][0] + a[2 * k + 1][0]
        top[0] = a.switch(0)[0] + a.switch(1)[0]
        for rank in range(a.n):
            if rank % 2 == 0:
                a.switch(rank // 2)[0] = top[0]
            a[rank][0] = a.switch(rank // 2)[0]

    made = tree(4)
    assert made.actors == ("top", "s0", "s1")
    assert verify(made).passes


@pytest.mark.parametrize(
    ("write", "fault"),
    [
        (lambda a: a.switch("x")[0:1].__iadd__(a[0][0]), 'a.switch("x")[0] holds nothing yet'),
        (lambda a: a.switch(""), "a.switch('') is no switch; write a name"),
        (lambda a: a.switch("x").input[0], 'a.switch("x") has no input and no output; write a.switch("x")[i]'),
    ],
)
def test_mistakes_with_switches(write, fault):
    with pytest.raises(AlgorithmError, match=re.escape(fault)):
        algorithm("all_reduce", chunks=1)(lambda a: write(a) and None)(2)
