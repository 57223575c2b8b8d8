"""Every rule of well-formedness, broken once: the sentence names the line and the rule."""

from __future__ import annotations

import re

import pytest

from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_reader import parse_program

STEP = (
    '<step s="{}" type="{}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="{}" depid="{}" deps="{}" hasdep="{}"/>'
)


def step(number, kind, src="i0", dst="i0", cnt=1, dep=(-1, -1), hasdep=0) -> str:
    """One step; cells as in ``i0``."""
    return STEP.format(number, kind, src[0], src[1:], dst[0], dst[1:], cnt, *dep, hasdep)


def nop(number, dep=(0, 0)) -> str:
    return step(number, "nop", "i-1", "o-1", 0, dep)


def tb(number, send, recv, *steps, chan=0) -> list[str]:
    return [f'<tb id="{number}" send="{send}" recv="{recv}" chan="{chan}">', *steps, "</tb>"]


def gpu(rank, *tbs, i=4, o=4, s=1) -> list[str]:
    inner = [line for each in tbs for line in each]
    return [f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">', *inner, "</gpu>"]


def algo(
    *gpus, coll="allreduce", chunks=4, channels=1, inplace=1, more='outofplace="0" minBytes="0" maxBytes="0"'
) -> str:
    """A program, one element per line: <algo> is line 1, the first <gpu> line 2, its first <tb> line 3."""
    head = (
        f'<algo name="made" proto="Simple" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{len(gpus)}" '
        f'coll="{coll}" inplace="{inplace}" {more}>'
    )
    return "\n".join([head, *(line for each in gpus for line in each), "</algo>"])


def found(text: str):
    return findings(parse_program(text.encode(), "a.xml"))


SEND, RECEIVE = step(0, "s"), step(0, "r")
#: A pair of ranks, of which the first is put into the place of rank 0.
OTHER = gpu(1, tb(0, -1, 0, RECEIVE))


def first(*tbs, **sizes) -> str:
    """A program whose rank 0 has these thread blocks; rank 1 receives one message on channel 0."""
    return algo(gpu(0, *tbs, **sizes), OTHER)


def waiting(*steps, by=1) -> str:
    """Rank 0's tb 0 sends once (and says so), and its tb 1 does as told."""
    return first(tb(0, 1, -1, step(0, "s", hasdep=1), step(1, "cpy", "i0", "s0")), tb(by, -1, -1, *steps))


def test_a_good_program_has_nothing():
    assert found(first(tb(0, 1, -1, SEND))) == ((), ())
    assert found(waiting(step(0, "cpy", "i0", "s0", dep=(0, 0)))) == ((), ())
    assert found(waiting(nop(0), step(1, "cpy", "i0", "s0", dep=(0, 0)))) == ((), ())


EMPTY = gpu(0), gpu(1)
PROBLEMS = {
    "gap": (first(tb(0, 1, -1, SEND), tb(2, -1, -1)), 6, "rank 0 has thread block 2, but no 1"),
    "twice": (first(tb(0, 1, -1, SEND), tb(0, -1, -1)), 6, "rank 0 has thread block 0 twice"),
    "peer": (first(tb(0, 1, -1, SEND), tb(1, -1, 2)), 6, "rank 0 tb 1 receives from rank 2, which is not one of 2"),
    "self": (first(tb(0, 1, -1, SEND), tb(1, 0, -1)), 6, "rank 0 tb 1 sends to its own rank"),
    "channel": (first(tb(0, 1, -1, SEND), tb(1, 1, -1, chan=-1)), 6, 'rank 0 tb 1 has a peer, but chan="-1"'),
    "owner": (
        first(tb(0, 1, -1, SEND), tb(1, 1, -1)),
        6,
        r"rank 0 tb 1 sends to rank 1 on channel 0, as tb 0 \(line 3\) does; give each connection one thread block",
    ),
    "owner of receives": (
        algo(gpu(0, tb(0, 1, -1, SEND)), gpu(1, tb(0, -1, 0, RECEIVE), tb(1, -1, 0))),
        11,
        r"rank 1 tb 1 receives from rank 0 on channel 0, as tb 0 \(line 8\) does",
    ),
    "no peer to send to": (first(tb(0, -1, 1, SEND)), 4, r"rank 0 tb 0 step 0 \(s\) sends, but .* no peer to send to"),
    "no peer to receive from": (
        first(tb(0, 1, -1, step(0, "rcs"))),
        4,
        r"rank 0 tb 0 step 0 \(rcs\) receives, but its thread block has no peer to receive from",
    ),
    "numbering": (first(tb(0, 1, -1, step(1, "s"))), 4, 'rank 0 tb 0 step 1 should have s="0"'),
    "same number": (
        first(tb(0, 1, -1, SEND, step(0, "cpy", "i0", "s0"))),
        5,
        'rank 0 tb 0 step 0 should have s="1"',
    ),
    "many steps": (
        first(tb(0, 1, -1, SEND, *(step(i, "cpy", "i0", "s0") for i in range(1, 257)))),
        3,
        "rank 0 tb 0 has 257 steps, more than 256",
    ),
    "no chunks": (first(tb(0, 1, -1, SEND, step(1, "cpy", cnt=0))), 5, "rank 0 tb 0 step 1 moves 0 chunks"),
    "many chunks": (
        first(tb(0, 1, -1, SEND, step(1, "cpy", dst="o0", cnt=72)), i=99, o=99),
        5,
        "rank 0 tb 0 step 1 moves 72 chunks; write 1 to 71",
    ),
    "no such thread block": (
        waiting(step(0, "cpy", "i0", "s0", dep=(5, 0))),
        8,
        "rank 0 tb 1 step 0 waits for tb 5 step 0, but its rank has no such thread block",
    ),
    "no such step": (
        waiting(step(0, "cpy", "i0", "s0", dep=(0, 2))),
        8,
        "waits for tb 0 step 2, but that thread block has steps 0 to 1",
    ),
    "no steps": (
        first(tb(0, 1, -1, step(0, "s", dep=(1, 0))), tb(1, -1, -1)),
        4,
        "waits for tb 1 step 0, but that thread block has no steps",
    ),
    "half a dependency": (waiting(step(0, "cpy", "i0", "s0", dep=(0, -1))), 8, "waits for tb 0 step -1, but"),
    "wait for a nop": (
        first(tb(0, 1, -1, step(0, "s", dep=(1, 0))), tb(1, -1, -1, nop(0), step(1, "cpy", "i0", "s0", dep=(0, 0)))),
        4,
        r"rank 0 tb 0 step 0 waits for tb 1 step 0, a nop \(line 7\), which is never published",
    ),
    "not published": (
        waiting(step(0, "cpy", "i0", "s0", dep=(0, 1))),
        8,
        r'rank 0 tb 1 step 0 waits for tb 0 step 1, which is not published; write hasdep="1" there \(line 5\)',
    ),
    "a nop waits for what is not published": (
        waiting(nop(0, (0, 1)), step(1, "cpy", "i0", "s0", dep=(0, 0))),
        8,
        "rank 0 tb 1 step 0 waits for tb 0 step 1",
    ),
    "chain": (
        waiting(nop(0), step(1, "cpy", "i0", "s0")),
        9,
        r"rank 0 tb 1 step 1 follows nops \(from line 8\), but has no dependency of its own",
    ),
    "reads beyond": (first(tb(0, 1, -1, step(0, "s", "i4"))), 4, r'rank 0 tb 0 step 0 reads i\[4\], but i_chunks="4"'),
    "reads partly beyond": (
        first(tb(0, 1, -1, step(0, "s", "i3", cnt=2))),
        4,
        r'rank 0 tb 0 step 0 reads i\[3\] to i\[4\], but i_chunks="4"',
    ),
    "writes beyond": (
        first(tb(0, 1, -1, SEND, step(1, "cpy", "i0", "s1"))),
        5,
        r'rank 0 tb 0 step 1 writes s\[1\], but s_chunks="1"',
    ),
    "no operand": (first(tb(0, 1, -1, step(0, "s", "i-1"))), 4, r"rank 0 tb 0 step 0 reads i\[-1\]"),
    "beyond what is shared": (
        algo(gpu(0, tb(0, 1, -1, step(0, "s", "o4")), i=4, o=0), OTHER),
        4,
        r'reads o\[4\], but o_chunks="0", 4 with what it shares with the other',
    ),
    "counts differ": (
        algo(gpu(0, tb(0, 1, -1, step(0, "s", cnt=2))), OTHER),
        9,
        r"rank 1 receives 1 chunks, but rank 0 \(line 4\) sends 2: cnt must be equal",
    ),
    "a send too many": (
        first(tb(0, 1, -1, SEND, step(1, "s"))),
        5,
        "channel 0 from rank 0 to rank 1 has 2 sends, but 1 receives",
    ),
    "a receive too many": (
        first(tb(0, 1, -1)),
        8,
        "channel 0 from rank 0 to rank 1 has 0 sends, but 1 receives",
    ),
    "another channel": (
        algo(gpu(0, tb(0, 1, -1, SEND, chan=1)), OTHER, channels=2),
        9,
        "channel 0 from rank 0 to rank 1 has 0 sends, but 1 receives",
    ),
    "too few channels": (
        algo(gpu(0, tb(0, 1, -1, SEND, chan=2)), gpu(1, tb(0, -1, 0, RECEIVE, chan=2)), channels=2),
        1,
        'nchannels="2", but channel 2 is used; write 3',
    ),
    "allgather": (algo(*EMPTY, coll="allgather", chunks=3), 1, 'nchunksperloop="3" does not divide by 2 ranks'),
    "reduce_scatter": (algo(*EMPTY, coll="reduce_scatter", chunks=3), 1, "does not divide by 2 ranks"),
    "reducescatter": (algo(*EMPTY, coll="reducescatter", chunks=3), 1, "does not divide by 2 ranks"),
    "alltoall": (algo(*EMPTY, coll="alltoall", chunks=3), 1, "does not divide by 2 ranks"),
    "collective": (
        algo(*EMPTY, coll="allredoce"),
        1,
        'coll="allredoce" is known to no runtime; write one of allgather,',
    ),
}


@pytest.mark.parametrize("rule", PROBLEMS)
def test_what_no_runtime_could_execute_is_a_problem_with_its_line(rule):
    text, line, says = PROBLEMS[rule]
    problems = found(text).problems
    assert problems, "it is ill-formed"
    assert any(each.startswith(f"a.xml:{line}: ") and re.search(says, each) for each in problems), problems
    assert len(problems) <= 2, problems


WARNINGS = {
    "channels that are not used": (algo(*EMPTY, channels=3), 1, 'nchannels="3", but only channels below 0 are used'),
    "nops at the end": (
        waiting(step(0, "cpy", "i0", "s0", dep=(0, 0)), nop(1), nop(2)),
        9,
        "rank 0 tb 1 step 1 and what follows are nops at the end of a thread block, which runtimes drop",
    ),
    "a nop without a dependency": (
        waiting(nop(0, (-1, -1)), step(1, "cpy", "i0", "s0")),
        8,
        "rank 0 tb 1 step 0 is a nop without a dependency",
    ),
    "deps without depid": (
        waiting(step(0, "cpy", "i0", "s0", dep=(-1, 3))),
        8,
        'rank 0 tb 1 step 0: deps="3" means nothing without a depid',
    ),
    "operands differ": (
        algo(gpu(0, tb(0, 1, -1, SEND)), gpu(1, tb(0, -1, 0, step(0, "rrc", "i1", "i0")))),
        9,
        r"rank 1 tb 0 step 0 \(rrc\) names i\[1\] and i\[0\]",
    ),
    "fused reductions": (
        waiting(step(0, "re", "s0", "i0", dep=(0, 0)), step(1, "re", "s0", "i0")),
        9,
        "reductions that runtimes fuse",
    ),
    "root": (algo(*EMPTY, coll="broadcast"), 1, "the root of broadcast is stated nowhere: rank 0 is taken"),
    "never selected": (algo(*EMPTY, inplace=0), 1, "it is never selected"),
    "window": (algo(*EMPTY, more='outofplace="1" minBytes="9" maxBytes="8"'), 1, "from 9 to 8 bytes is empty"),
    "RCCL's steps": (
        first(tb(0, 1, -1, SEND, *(step(i, "cpy", "i0", "s0") for i in range(1, 65)))),
        1,
        r"RCCL does not take it: 65 steps in a thread block \(at most 64\)",
    ),
    "thread blocks": (
        first(tb(0, 1, -1, SEND), *(tb(i, -1, -1) for i in range(1, 65))),
        1,
        r"RCCL does not take it: 65 thread blocks on rank 0 \(at most 64\)",
    ),
    "the classic runtime's thread blocks": (
        first(tb(0, 1, -1, SEND), *(tb(i, -1, -1) for i in range(1, 217))),
        1,
        r"the classic runtime does not take it: 217 thread blocks on rank 0 \(at most 216\)",
    ),
    "channels": (
        algo(gpu(0, tb(0, 1, -1, SEND, chan=32)), gpu(1, tb(0, -1, 0, RECEIVE, chan=32)), channels=33),
        1,
        r"classic runtime and Azure's runtime do not take it: 33 channels \(at most 32\)",
    ),
    "reduce_scatter": (algo(*EMPTY, coll="reduce_scatter"), 1, "Azure's runtime and RCCL do not take it: coll="),
    "reducescatter": (algo(*EMPTY, coll="reducescatter"), 1, 'the classic runtime does not take it: coll="reduce'),
    "custom": (algo(*EMPTY, coll="custom"), 1, 'Azure\'s runtime and RCCL do not take it: coll="custom"'),
    "attributes that Azure needs": (
        algo(*EMPTY, more='minBytes="0"'),
        1,
        "Azure's runtime and RCCL do not take it: no outofplace, maxBytes",
    ),
    "sizes that the classic runtime wants": (
        algo(gpu(0, i=3), gpu(1)),
        1,
        'the classic runtime does not take it: i_chunks="3" on rank 0 for nchunksperloop="4"',
    ),
    "elements": (
        first(
            tb(0, 1, -1, SEND), *(tb(i, -1, -1, *(step(n, "cpy", "i0", "s0") for n in range(64))) for i in range(1, 64))
        ),
        1,
        r"runtimes do not read 41\d\d elements for rank 0 \(at most 4096\)",
    ),
    "threads": (algo(*EMPTY, more='nthreads="100"'), 1, 'nthreads="100", no multiple of 32'),
    "attributes": (
        algo(*EMPTY, more=" ".join(f'x{i}="1"' for i in range(12))),
        1,
        r"runtimes do not read an element of more than 16 attributes \(line 1\)",
    ),
    "values": (algo(*EMPTY).replace("made", "m" * 256), 1, r"a value of more than 255 characters \(line 1\)"),
    "quotes": (algo(*EMPTY).replace('"made"', "'made'"), 1, "attributes that are not written name="),
    "blanks": (algo(*EMPTY).replace(" proto", "  proto"), 1, "attributes that are not set apart by one blank"),
}


@pytest.mark.parametrize("rule", WARNINGS)
def test_what_some_runtime_minds_is_a_warning_and_no_problem(rule):
    text, line, says = WARNINGS[rule]
    problems, warnings = found(text)
    assert problems == ()
    assert any(each.startswith(f"a.xml:{line}: ") and re.search(says, each) for each in warnings), warnings


def test_one_finding_stands_for_many_defects_of_one_kind():
    text = first(tb(0, 1, -1, SEND, *(step(i, "cpy", "i9", "s0") for i in range(1, 5))))
    (problem,) = found(text).problems
    assert problem == 'a.xml:5: rank 0 tb 0 step 1 reads i[9], but i_chunks="4" (and 3 more like it)'


def test_what_is_legal_and_looks_odd_is_not_mentioned():
    # A thread block without steps, larger buffers than are used, both peers the same rank, ids in any order.
    text = algo(
        gpu(0, tb(1, -1, -1), tb(0, 1, 1, SEND, step(1, "r")), s=9),
        gpu(1, tb(0, 0, 0, RECEIVE, step(1, "s")), s=9),
    )
    assert found(text) == ((), ())
    unused_half = step(0, "s", "i0", "i-1")
    assert found(first(tb(0, 1, -1, unused_half))) == ((), ())


@pytest.mark.parametrize(
    ("coll", "rank", "cell", "sizes", "good"),
    [
        ("allreduce", 1, "o3", (4, 0), True),
        ("allreduce", 1, "i3", (0, 4), True),
        ("allreduce", 1, "i4", (4, 4), False),
        ("custom", 1, "o3", (4, 0), True),
        ("allgather", 1, "i1", (0, 4), True),
        ("allgather", 1, "i2", (0, 4), False),
        ("allgather", 0, "i3", (0, 4), True),
        ("allgather", 1, "o3", (2, 0), True),
        ("reduce_scatter", 1, "o1", (4, 0), True),
        ("reduce_scatter", 1, "o2", (4, 0), False),
        ("reducescatter", 1, "i3", (0, 2), True),
    ],
)
def test_in_place_buffers_reach_as_far_as_what_they_share(coll, rank, cell, sizes, good):
    i, o = sizes
    mine = gpu(rank, tb(0, -1, -1, step(0, "cpy", cell, "s0")), i=i, o=o)
    other = gpu(1 - rank)
    for inplace in (1, 0):
        text = algo(mine, other, coll=coll, inplace=inplace)
        beyond = [each for each in found(text).problems if f" reads {cell[0]}[" in each]
        declared = int(cell[1:]) < {"i": i, "o": o}[cell[0]]
        assert bool(beyond) == (not good if inplace else not declared), beyond


def test_reductions_of_what_is_one_cell_by_two_names_are_not_warned_of():
    text = algo(
        gpu(0, tb(0, 1, -1, step(0, "s", "i3"))),
        gpu(1, tb(0, -1, 0, step(0, "rrc", "i3", "o1"))),
        coll="reduce_scatter",
    )
    assert not [each for each in found(text).warnings if "(rrc)" in each]
    assert [each for each in found(text.replace('inplace="1"', 'inplace="0"')).warnings if "(rrc)" in each]


@pytest.mark.parametrize(
    ("second", "fuses"),
    [
        (step(1, "re", "s0", "i0"), True),
        (step(1, "re", "s0", "i1"), False),
        (step(1, "re", "i1", "i0"), False),
        (step(1, "re", "s0", "i0", dep=(0, 0)), False),
        (step(1, "cpy", "s0", "i0"), False),
    ],
)
def test_what_is_fused(second, fuses):
    begin = step(0, "re", "s0", "i0", dep=(0, 0))
    assert any("fuse" in each for each in found(waiting(begin, second)).warnings) == fuses
    published = begin.replace('hasdep="0"', 'hasdep="1"')
    assert not any("fuse" in each for each in found(waiting(published, second)).warnings)
