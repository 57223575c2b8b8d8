"""The reader of MSCCL-IR XML: the whole format, its dialects, and an error with its line for everything else."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.msccl_programs import same

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import STEP_TYPES, collective_of, steps_from
from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_reader import MAX_FILE, parse_program, read_program
from astrasim_py.program.steps import NEVER

#: Two ranks add up two chunks in place; tb 1 keeps a copy, after waiting for two steps of tb 0.
RANK = """\
<gpu id="{rank}" i_chunks="2" o_chunks="0" s_chunks="1">
<tb id="0" send="{peer}" recv="{peer}" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="{peer}" dstbuf="i" dstoff="{peer}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrc" srcbuf="i" srcoff="{rank}" dstbuf="i" dstoff="{rank}" cnt="1" depid="-1" deps="-1" hasdep="1"/>
<step s="2" type="s" srcbuf="i" srcoff="{rank}" dstbuf="i" dstoff="{rank}" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="3" type="r" srcbuf="i" srcoff="{peer}" dstbuf="i" dstoff="{peer}" cnt="1" depid="-1" deps="-1" hasdep="1"/>
</tb>
<tb id="1" send="-1" recv="-1" chan="0">
<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="0" deps="1" hasdep="0"/>
<step s="1" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="1" depid="0" deps="3" hasdep="0"/>
</tb>
</gpu>
"""
ALGO = (
    '<algo name="pair" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="allreduce" inplace="1" '
    'outofplace="0" minBytes="0" maxBytes="0">\n'
)
GOOD = ALGO + RANK.format(rank=0, peer=1) + RANK.format(rank=1, peer=0) + "</algo>\n"


def parse(text: str | bytes):
    return parse_program(text.encode() if isinstance(text, str) else text, "a.xml")


def refused(text: str | bytes) -> str:
    with pytest.raises(AlgorithmError) as caught:
        parse(text)
    (line,) = caught.value.lines()
    assert len(line) < 400
    return line


def edit(old: str, new: str, text: str = GOOD) -> str:
    """The text with the first occurrence of something replaced."""
    assert old in text
    return text.replace(old, new, 1)


# -- what is read ---------------------------------------------------------------------------------------------


def test_every_value_and_line_is_kept():
    program = parse(GOOD)
    assert program[:11] == ("pair", "LL", 1, 2, 2, "allreduce", 1, 0, 0, 0, None)
    assert (program.source, program.line, program.layout) == ("a.xml", 1, ())
    gpu = program.gpus[1]
    assert (gpu.id, gpu.i_chunks, gpu.o_chunks, gpu.s_chunks, gpu.line) == (1, 2, 0, 1, 14)
    assert gpu.tbs[0][:4] == (0, 0, 0, 0)
    assert gpu.tbs[1].steps[0] == (0, "nop", "i", -1, "o", -1, 0, 0, 1, 0, 22)
    assert gpu.tbs[0].steps[1] == (1, "rrc", "i", 1, "i", 1, 1, -1, -1, 1, 17)


@pytest.mark.parametrize("kind", STEP_TYPES)
def test_every_step_type_is_read(kind):
    assert parse(edit('type="rrc"', f'type="{kind}"')).gpus[0].tbs[0].steps[1].type == kind


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<!-- Copyright -->\n<!-- <algo> in a comment -->\n", ""),
        ("\ufeff", ""),
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n<!-- end -->\n"),
        ("Check(): chunk 3 is wrong < 4\nTrue\n", "\n[<class 'x'>]\nTrue\n"),
        ("\n\n", "\n" + GOOD.replace("pair", "another")),
        ("", "<!-- not closed"),
    ],
    ids=["comments", "BOM", "declaration", "stray text", "two documents", "open comment behind"],
)
def test_text_around_the_document_is_skipped_and_lines_stay_right(before, after):
    program = parse(before + GOOD + after)
    assert same(program, parse(GOOD))
    assert program.gpus[0].line == before.count("\n") + 2
    bad = before + edit('type="rrc"', 'type="rcc"') + after
    assert refused(bad).startswith(f"a.xml:{before.count(chr(10)) + 5}: ")


@pytest.mark.parametrize(
    "extra",
    [
        "<!-- a comment\nof two lines with <step> -->\n",
        "<?something <step ?>\n",
        "<![CDATA[<step/>\n]]>\n",
        '<unknown x="1"><step/><tb/></unknown>\n',
        "text\n",
    ],
    ids=["comment", "instruction", "CDATA", "unknown element", "text"],
)
def test_comments_in_the_document_are_skipped_and_lines_stay_right(extra):
    text = GOOD.replace("</tb>\n<tb", f"</tb>\n{extra}<tb", 1)
    program = parse(text)
    assert same(program, parse(GOOD))
    assert program.gpus[1].line == 14 + extra.count("\n")


def test_dialects_differ_in_attributes_only():
    azure = parse(edit('proto="LL"', 'proto="LL" maxcount="1" nthreadblocks="24" redop="nop" nthreads="512"'))
    assert azure.nthreads == 512
    classic = parse(edit(' outofplace="0" minBytes="0" maxBytes="0"', ""))
    assert (classic.outofplace, classic.min_bytes, classic.max_bytes, classic.nthreads) == (None,) * 4
    wide = parse(edit('maxBytes="0"', f'maxBytes="{2**63 - 1}"'))
    assert wide.max_bytes == 2**63 - 1


def test_lines_layout_and_order_of_ranks_do_not_make_programs_differ():
    head, first, second = GOOD.partition("<gpu id")[0], *GOOD.split("<gpu id")[1:]
    swapped = head + "<gpu id" + second.replace("</algo>\n", "") + "<gpu id" + first + "</algo>"
    program, other = (
        parse(GOOD),
        parse(swapped.replace("\n", "\n\n").replace('proto="', "proto='").replace('LL"', "LL'")),
    )
    assert other.layout and [gpu.id for gpu in other.gpus] == [1, 0]
    assert same(program, other)
    assert not same(program, parse(edit('cnt="1"', 'cnt="2"')))


def test_lines_beyond_65535_are_right():
    """libxml2 keeps 16 bits of a line number."""
    far = GOOD.replace("<gpu", "\n" * 70_000 + "<gpu")
    assert [gpu.line for gpu in parse(far).gpus] == [70_002, 140_014]
    assert refused(edit('type="rrc"', 'type="rcc"', far)).startswith("a.xml:70005: ")
    assert refused("\n" * 70_000 + GOOD.replace("</gpu>", "</tb>")).startswith("a.xml:70013: ")
    step = GOOD.splitlines()[3]
    many = [step.replace('s="0"', f's="{i}"') for i in range(70_000)]
    program = parse(GOOD.replace(step, "\n".join(many), 1))
    assert [each.line for each in program.gpus[0].tbs[0].steps[:70_000]] == list(range(4, 70_004))


def test_a_tag_of_several_lines_is_where_it_begins():
    assert parse(GOOD.replace(" ", "\n ", 40)).gpus[0].line == 12


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('type="rrc"', 'type="ra"', 5, '"ra" is parsed by one runtime and executed by none; write re'),
        ('type="rrc"', 'type="RRC"', 5, 'type="RRC", which is none of s, r, rcs.*; write type="rrc"'),
        ('<step s="1"', '<op step="1"', 5, "new format of msccl-tools, which no runtime reads"),
        (' hasdep="1"', "", 5, "<step> has no hasdep; write"),
        (' hasdep="1"', ' hasdep="yes"', 5, 'hasdep="yes", which is none of 0, 1'),
        (' srcbuf="i"', "", 4, "<step> has no srcbuf"),
        ('srcbuf="i"', 'srcbuf="x"', 4, 'srcbuf="x", which is none of i, o, s'),
        ('srcoff="1"', 'srcoff="1e9"', 4, 'srcoff="1e9", which is not a whole number'),
        ('srcoff="1"', 'srcoff=" 1"', 4, 'srcoff=" 1"'),
        ('srcoff="1"', 'srcoff="+1"', 4, 'srcoff="\\+1"'),
        ('srcoff="1"', 'srcoff="1_0"', 4, 'srcoff="1_0"'),
        ('srcoff="1"', 'srcoff="٣"', 4, "not a whole number"),
        ('srcoff="1"', 'srcoff="-2"', 4, 'srcoff="-2", which is not a whole number from -1'),
        ('srcoff="1"', f'srcoff="{10**400}"', 4, "0…., which is not a whole number"),
        ('cnt="1"', 'cnt="-1"', 4, 'cnt="-1"'),
        ('cnt="1"', 'cnt="2147483648"', 4, 'cnt="2147483648", which is not a whole number from 0 to 1048576'),
        (' s="0"', ' s="x"', 4, 's="x"'),
        ('depid="-1"', 'depid=""', 4, 'depid=""'),
        ('<tb id="0"', "<tb", 3, "<tb> has no id"),
        ('send="1"', 'send="one"', 3, 'send="one"'),
        (' chan="0"', "", 3, "<tb> has no chan"),
        ('i_chunks="2"', 'i_chunks="many"', 2, 'i_chunks="many"'),
        ('<gpu id="0"', "<gpu", 2, "<gpu> has no id"),
        ('<gpu id="1"', '<gpu id="0"', 14, 'gpu id="0" appears twice, first in line 2'),
        ('<gpu id="1"', '<gpu id="2"', 14, 'gpu id="2" is not one of 2 ranks'),
        ('ngpus="2"', 'ngpus="3"', 1, 'has 2 of ngpus="3" ranks: <gpu id="2"> is missing'),
        ('ngpus="2"', 'ngpus="0"', 1, 'ngpus="0", which is not a whole number from 1'),
        ('nchunksperloop="2"', 'nchunksperloop="0"', 1, "not a whole number from 1"),
        ('proto="LL"', 'proto="simple"', 1, 'proto="simple", which is none of Simple, LL, LL128; write proto="Simple"'),
        (' proto="LL"', "", 1, "<algo> has no proto"),
        (' coll="allreduce"', "", 1, "<algo> has no coll"),
        (' inplace="1"', "", 1, "<algo> has no inplace"),
        ('minBytes="0"', 'minBytes="1KB"', 1, 'minBytes="1KB"'),
        ('minBytes="0"', 'minBytes="9223372036854775808"', 1, "minBytes"),
        ('name="pair"', f'name="{"x" * 5000}"', 1, "name of <algo> has 5000 characters, more than 4096"),
        ('cnt="1"', 'cnt="1" cnt="1"', 4, "not well-formed XML: Attribute cnt redefined"),
        ("</algo>", "</tb></algo>", 26, "not well-formed XML: Opening and ending tag mismatch"),
        ("</tb>", "&amp", 8, "not well-formed XML"),
        ("</tb>", "&other;</tb>", 8, "not well-formed XML: Entity 'other' not defined"),
        ("</tb>", "\0</tb>", 8, "not well-formed XML: Invalid character"),
        ("<tb", '<step s="0"/><tb', 3, "<step> is at a wrong place; write it within <tb>"),
        ("</tb>", "<tb/></tb>", 8, "<tb> is at a wrong place; write it within <gpu>"),
        ("<gpu", "<algo><gpu", 2, "<algo> within <algo>"),
        ("<algo", '<algo xmlns="urn:x"', 1, "<{urn:x}algo> is not MSCCL-IR"),
        ("</algo>", "", 1, "<algo> is not closed"),
        ("</algo>", "<!-- </algo>", 26, "<!-- is not closed; close it with -->"),
        ("<algo", "<algorithm/>", 1, "has no <algo>: it is not MSCCL-IR XML"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(old, new, line, says):
    said = refused(edit(old, new))
    assert said.startswith(f"a.xml:{line}: "), said
    assert re.search(says, said) or says in said
    assert ";" in said, "says what to do instead"


def test_every_attribute_that_is_needed_is_asked_for():
    for old in GOOD.splitlines()[:4]:
        tag, *attributes = old.strip("</>").split()
        for attribute in attributes:
            name = attribute.partition("=")[0]
            text = GOOD.replace(old, old.replace(" " + attribute, "", 1), 1)
            if name in ("name", "outofplace", "minBytes", "maxBytes"):
                parse(text)
            else:
                assert f"<{tag}> has no {name}" in refused(text)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (GOOD.encode("utf-16"), "UTF-16"),
        (GOOD.encode("utf-16-le"), "UTF-16"),
        (GOOD.encode("utf-32"), "UTF-32"),
        (GOOD.replace("pair", "é").encode("latin-1"), "a.xml:1: byte 0xe9 is not UTF-8; save it as UTF-8"),
        (b'<?xml version="1.0" encoding="ISO-8859-1"?>' + GOOD.encode(), '"ISO-8859-1"; save it as UTF-8'),
        (b'<?xml version="1.0" encoding="UTF-16"?>' + GOOD.encode(), '"UTF-16"; save it as UTF-8'),
        (b"\x1f\x8b\x08\0\0\0", "is compressed; unzip it"),
        (b"", "has no <algo>"),
        (bytes(1000), "UTF-16"),
    ],
)
def test_other_encodings_are_refused(data, says):
    assert says in refused(data)


# -- files ----------------------------------------------------------------------------------------------------


def test_a_file_is_read_and_named(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(GOOD)
    program = read_program(path)
    assert program.source == str(path)
    assert same(program, parse(GOOD))


def test_other_files_are_refused(tmp_path):
    with pytest.raises(AlgorithmError, match=r"none\.xml: cannot be read: No such file"):
        read_program(tmp_path / "none.xml")
    with pytest.raises(AlgorithmError, match=r"is not a regular file|cannot be read"):
        read_program(tmp_path)
    with pytest.raises(AlgorithmError, match="is not a file name"):
        read_program("a\0b.xml")
    with open(tmp_path / "big.xml", "wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(AlgorithmError, match=rf"big\.xml: more than {MAX_FILE} bytes"):
        read_program(tmp_path / "big.xml")


def test_neither_files_nor_network_are_touched(tmp_path, monkeypatch):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")

    def never(*_, **__):
        raise AssertionError("no network")

    monkeypatch.setattr(socket.socket, "connect", never)
    for doctype in (
        f'<!DOCTYPE algo SYSTEM "{secret.as_uri()}">',
        f'<!DOCTYPE algo [<!ENTITY x SYSTEM "{secret.as_uri()}">]>',
        '<!DOCTYPE algo PUBLIC "-//x" "http://localhost:9/x.dtd">',
    ):
        assert "<!DOCTYPE is not read" in refused(doctype + GOOD.replace("pair", "&x;"))
    include = f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{secret.as_uri()}"/>'
    assert same(parse(edit("<gpu", include + "<gpu")), parse(GOOD))


def test_only_the_reader_loads_the_xml_parser():
    code = "import sys, astrasim_py.cli.main, astrasim_py.msccl.to_traces; sys.exit('lxml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the table ------------------------------------------------------------------------------------------------


def test_the_table_says_what_each_step_does_on_its_own_rank():
    steps = steps_from(parse(GOOD))
    assert len(steps) == 10
    assert steps.rank == [0] * 5 + [1] * 5
    assert steps.chain == [0, 0, 0, 0, 1, 2, 2, 2, 2, 3]
    assert steps.count == [1] * 10
    assert steps.takes[:5] == [-1, 1, -1, 1, -1]
    assert steps.gives[:5] == [0, -1, 0, -1, -1]
    assert steps.reduces[:5] == [False, True, False, False, False]
    assert list(zip(steps.read_buf, steps.read_off, strict=True))[:5] == [(1, 1), (1, 0), (1, 0), (-1, -1), (1, 0)]
    assert list(zip(steps.write_buf, steps.write_off, strict=True))[:5] == [
        (-1, -1),
        (1, 0),
        (-1, -1),
        (1, 1),
        (3, 0),
    ]
    assert steps.parents[:5] == [(), (0,), (1,), (2,), (1, 3)]
    assert steps.waits[:5] == [(), (), (), (), (1, 3)]
    assert [(c.source, c.target, c.channel, c.sends, c.receives) for c in steps.connections] == [
        (0, 1, 0, [0, 2], [6, 8]),
        (1, 0, 0, [5, 7], [1, 3]),
    ]
    assert (steps.place(9), steps.line[9], steps.source) == ("rank 1 tb 1 step 1", 23, "a.xml")
    assert (steps.collective, steps.root, steps.chunks, steps.inputs, steps.outputs) == ("all_reduce", None, 2, 2, 0)
    assert (steps.in_place, steps.protocol) == (True, "LL")


@pytest.mark.parametrize(
    ("kind", "takes", "gives", "reads", "writes", "reduces"),
    [
        ("s", 0, 1, 1, 0, 0),
        ("r", 1, 0, 0, 1, 0),
        ("rcs", 1, 1, 0, 1, 0),
        ("rrc", 1, 0, 1, 1, 1),
        ("rrs", 1, 1, 1, 0, 1),
        ("rrcs", 1, 1, 1, 1, 1),
        ("cpy", 0, 0, 1, 1, 0),
        ("re", 0, 0, 1, 1, 1),
    ],
)
def test_operands_of_every_type(kind, takes, gives, reads, writes, reduces):
    steps = steps_from(parse(edit('type="rrc"', f'type="{kind}"')))
    found = (steps.takes[1] >= 0, steps.gives[1] >= 0, steps.read_buf[1] > 0, steps.write_buf[1] > 0, steps.reduces[1])
    assert found == (takes, gives, reads, writes, reduces)


def test_a_wait_ends_with_the_next_step_that_is_published():
    steps = steps_from(parse(edit('depid="0" deps="3"', 'depid="0" deps="2"')))
    assert steps.waits[4] == (1, 3)
    for deps in ('depid="0" deps="4"', 'depid="7" deps="0"', 'depid="1" deps="0"'):
        steps = steps_from(parse(edit('depid="0" deps="3"', deps)))
        assert steps.waits[4] == (1, NEVER)
        assert steps.parents[4] == (1, NEVER)


def test_final_nops_and_peers_that_are_no_ranks_are_dropped():
    text = edit('type="cpy"', 'type="nop"')
    assert len(steps_from(parse(text))) == 9
    steps = steps_from(parse(edit('send="1" recv="1"', 'send="5" recv="0"')))
    assert [c.source for c in steps.connections] == [1, 0]
    assert steps.gives[:4] == steps.takes[:4] == [-1] * 4


@pytest.mark.parametrize(
    ("coll", "name", "collective", "root"),
    [
        ("allreduce", "x", "all_reduce", None),
        ("allgather", "x", "all_gather", None),
        ("reduce_scatter", "x", "reduce_scatter", None),
        ("reducescatter", "x", "reduce_scatter", None),
        ("alltoall", "x", "all_to_all", None),
        ("broadcast", "x", "broadcast", 0),
        ("reduce", "Reduce(n=2,root=1)-Ring", "reduce", 1),
        ("gather", "x", "gather", 0),
        ("custom", "Broadcast(n=2,root=1)-DGX1-steps=2", "broadcast", 1),
        ("custom", "Reduce(n=2,root=0)", "reduce", 0),
        ("custom", "Gather(n=2,root=1)", "gather", 1),
        ("custom", "Scatter(n=2,root=1)", "scatter", 1),
        ("custom", "Broadcast(n=4,root=1)", "custom", None),
        ("custom", "Broadcast(n=2,root=2)", "custom", None),
        ("custom", "allgather_ring", "custom", None),
        ("alltoallv", "x", "custom", None),
    ],
)
def test_collectives_are_known_by_all_their_names(coll, name, collective, root):
    program = parse(GOOD.replace("allreduce", coll).replace('"pair"', f'"{name}"'))
    assert collective_of(program) == (collective, root, None)


@pytest.mark.parametrize(
    ("name", "way"), [("alltonext-forward", -1), ("alltonext-forward_x2", -1), ("alltonext-backwards", 1)]
)
def test_to_next_has_a_contract(name, way):
    program = parse(GOOD.replace("allreduce", "custom").replace('"pair"', f'"{name}"'))
    collective, _, contract = collective_of(program)
    rank = 0 if way > 0 else 1
    assert collective == "custom"
    assert contract.outputs == {(rank, k): {(rank + way, k): 1} for k in range(2)}
    assert contract.inputs is None


# -- anything -------------------------------------------------------------------------------------------------


@st.composite
def _spoiled(draw) -> bytes:
    data = bytearray(GOOD.encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 40))
        piece = draw(
            st.one_of(
                st.binary(max_size=8),
                st.sampled_from(
                    [b"<", b">", b'"', b"<!--", b"-->", b"<![CDATA[", b"</algo>", b"<!ENTITY", b"&#0;", b"-1"]
                ),
                st.integers(-2, 80).map(lambda value: str(value).encode()),
                st.just(bytes(data[at : at + 100])),
            )
        )
        data[at : at + size] = piece
    return bytes(data)


@st.composite
def _other_values(draw) -> bytes:
    """The good program with other values: well-formed XML, seldom a well-formed program."""
    parts = GOOD.split('"')
    for _ in range(draw(st.integers(1, 6))):
        at = 2 * draw(st.integers(0, len(parts) // 2 - 1)) + 1
        parts[at] = draw(st.sampled_from(["-1", "0", "1", "2", "3", "71", "72", "100000", "i", "o", "s", *STEP_TYPES]))
    return '"'.join(parts).encode()


@given(st.one_of(_spoiled(), _other_values()))
def test_nothing_but_an_algorithm_error_comes_out(data):
    try:
        program = parse_program(data, "a.xml")
    except AlgorithmError as error:
        assert error.place.startswith("a.xml:")
        return
    found = findings(program)
    assert all(text.startswith("a.xml:") and "\n" not in text for text in found.problems + found.warnings)
    steps = steps_from(program)
    real = [step for gpu in program.gpus for tb in gpu.tbs for step in tb.steps if step.type != "nop"]
    assert len(steps) == len(real) == len(steps.parents) == len(steps.waits)
    assert all(parent == NEVER or 0 <= parent < len(steps) for each in steps.parents for parent in each)
