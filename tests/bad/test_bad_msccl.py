"""Hostile MSCCL-IR XML: one line that says what is wrong, and no file, no network, little time and memory."""

from __future__ import annotations

import os
import re
import socket

import pytest

STEP = '<step s="{}" type="{}" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
ALGO = '<algo name="x" proto="LL" nchannels="1" nchunksperloop="1" ngpus="4" coll="allreduce" inplace="1">\n'
SIZES = 'i_chunks="1" o_chunks="0" s_chunks="0"'


def chain(*more: str) -> str:
    """Sums go from rank to rank and back, on 4 ranks; `more` follows the last thread block of rank 3."""
    ranks = []
    for rank in range(4):
        up, down = (rank + 1 if rank < 3 else -1), (rank - 1 if rank else -1)
        kinds = [("s", "r"), ("rrs", "rcs"), ("rrs", "rcs"), ("rrcs", "")][rank]
        first = (
            f'<tb id="0" send="{up if rank < 3 else down}" recv="{down}" chan="0">\n{STEP.format(0, kinds[0])}\n</tb>\n'
        )
        back = (
            f'<tb id="1" send="{down}" recv="{up}" chan="0">\n{STEP.format(0, kinds[1])}\n</tb>\n' if kinds[1] else ""
        )
        ranks.append(f'<gpu id="{rank}" {SIZES}>\n{first}{back}{"".join(more) if rank == 3 else ""}</gpu>\n')
    return ALGO + "".join(ranks) + "</algo>\n"


LAUGHS = '<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)

#: What is in the file, and what is said.
HOSTILE = {
    "billion laughs": (
        f"<!DOCTYPE algo [{LAUGHS}]>\n" + chain().replace('"x"', '"&j;"'),
        "xml:1: <!DOCTYPE is not read",
    ),
    "external entity": (
        '<!DOCTYPE algo [<!ENTITY x SYSTEM "SECRET">]>' + chain().replace('"x"', '"&x;"'),
        "xml:1: <!DOCTYPE is not read",
    ),
    "external DTD": ('<!DOCTYPE algo SYSTEM "http://localhost:9/a.dtd">' + chain(), "xml:1: <!DOCTYPE is not read"),
    "entity behind": (chain() + '<!ENTITY x "y">', r"xml:\d+: <!ENTITY is not read"),
    "entity nowhere": (chain().replace('"x"', '"&x;"'), "xml:1: is not well-formed XML: Entity 'x' not defined"),
    "deep": (ALGO + "<a>" * 10**6, "xml:1: more than 524288 elements"),
    "deep, but not too many": (ALGO + "<a>" * 10**5, "xml:1: <algo> is not closed"),
    "deep and closed": (
        ALGO + "<a>" * 10**5 + "</a>" * 10**5 + "</algo>",
        "xml:2: is not well-formed XML: elements too deep within each other",
    ),
    "deep documents": ("<algo>" * 10**5, "xml:1: <algo> within <algo>"),
    "many elements": (chain().replace("</tb>", "<a/>" * 2**20 + "</tb>", 1), "more than 524288 elements"),
    "many comments": (chain("<!---->" * 2**17), "more than 65536 comments"),
    "many attributes": (
        chain().replace("<gpu", "<gpu " + " ".join(f'a{i}=""' for i in range(10**6)), 1),
        "more than 32",
    ),
    "a long value": (chain().replace('"x"', f'"{"x" * 10**7}"'), "too long|has 10000000 characters"),
    "a long number": (chain().replace('cnt="1"', f'cnt="{"9" * 10**6}"', 1), "xml:4: cnt of <step> has 1000000 char"),
    "a large number": (chain().replace('cnt="1"', f'cnt="{10**400}"', 1), "xml:4: .* is not a whole number from 0 to"),
    "a comment without end": (chain().replace("<tb", "<!--" * 10**5 + "<tb", 1), "xml:3: <!-- is not closed"),
    "UTF-16": (chain().encode("utf-16"), "xml:1: is in UTF-16"),
    "Latin-1": (chain().replace('"x"', '"é"').encode("latin-1"), "xml:1: byte 0xe9 is not UTF-8"),
    "another encoding": ('<?xml version="1.0" encoding="EBCDIC-US"?>' + chain(), 'xml:1: is declared to be in "EBCDIC'),
    "NULs": (bytes(10**6), "xml:1: is in UTF-16"),
    "a NUL": (chain().replace("</tb>", "\0</tb>", 1), "xml:5: is not well-formed XML: Invalid character"),
    "nothing": ("", "xml:1: has no <algo>"),
    "cut": (chain()[:-30], "xml:1: <algo> is not closed"),
    "not MSCCL": ("<html><body/></html>", "xml:1: has no <algo>"),
    "ra": (chain().replace('"rrcs"', '"ra"'), r'xml:\d\d: type "ra" is parsed by one runtime and executed by none'),
    "new format": (chain().replace("<step", "<op"), "xml:4: <op> belongs to the new format of msccl-tools"),
    "a rank twice": (chain().replace('<gpu id="3"', '<gpu id="2"'), r'xml:\d\d: gpu id="2" appears twice'),
    "a rank that is missing": (chain().replace('ngpus="4"', 'ngpus="5"'), 'xml:1: has 4 of ngpus="5" ranks'),
}
#: Programs that can be read, but not be executed.
ILL_FORMED = {
    "a gap": (chain('<tb id="2" send="-1" recv="-1" chan="0"/>'), "rank 3 has thread block 2, but no 1; number"),
    "an id twice": (chain('<tb id="0" send="-1" recv="-1" chan="0"/>'), "rank 3 has thread block 0 twice"),
    "an owner too many": (
        chain('<tb id="1" send="2" recv="-1" chan="0"/>'),
        r"rank 3 tb 1 sends to rank 2 on channel 0, as tb 0 \(line \d+\) does; give each connection one thread block",
    ),
    "an owner too many of receives": (
        chain('<tb id="1" send="-1" recv="2" chan="0"/>'),
        "rank 3 tb 1 receives from rank 2 on channel 0, as tb 0",
    ),
    "a peer too far": (chain('<tb id="1" send="9" recv="-1" chan="0"/>'), "sends to rank 9, which is not one of 4"),
    "chunks too many": (chain().replace('cnt="1"', 'cnt="72"'), "moves 72 chunks; write 1 to 71"),
    "a step without a partner": (chain().replace('"rcs"', '"cpy"', 1), "sends, but"),
}


@pytest.fixture
def no_network(monkeypatch):
    """Nothing asks the network."""

    def refuse(*_, **__):
        raise AssertionError("nothing asks the network")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def scenario(cli, base):
    """A scenario that injects the file a.xml."""
    return cli.write("s.yaml", base + "algorithms: {all_reduce: {file: a.xml}}\n")


def write(cli, content) -> None:
    secret = cli.write("secret", "sentinel")
    cli.write("a.xml", content.replace("SECRET", secret.as_uri()) if isinstance(content, str) else content)


def test_the_program_that_is_spoiled_below_is_good(cli, scenario):
    write(cli, chain())
    assert cli("verify", "a.xml").code == 0
    assert cli("run", scenario, "--jobs", 1, "--quiet").code == 0


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", HOSTILE)
def test_row_20_hostile_xml_is_refused_in_one_line(cli, kind):
    content, says = HOSTILE[kind]
    write(cli, content)
    before = sorted(path.name for path in cli.folder.iterdir())
    ended = cli("verify", "a.xml")
    cli.refused(ended, 3, r"a\.xml:\d+: ", says)
    assert len(ended.lines) == 1
    assert "sentinel" not in ended.err
    assert sorted(path.name for path in cli.folder.iterdir()) == before


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", ["external entity", "deep", "Latin-1", "ra"])
@pytest.mark.parametrize("command", ["run", "convert"])
def test_row_20_every_command_refuses_hostile_xml(cli, scenario, kind, command):
    content, says = HOSTILE[kind]
    write(cli, content)
    ended = cli("run", scenario, "--jobs", 1) if command == "run" else cli("convert", "a.xml", "out")
    cli.refused(ended, 3, says)
    assert "sentinel" not in ended.err
    assert not list(cli.folder.glob("out*"))


@pytest.mark.parametrize("kind", ILL_FORMED)
def test_row_20_ill_formed_programs_are_refused_with_the_line(cli, scenario, kind):
    content, says = ILL_FORMED[kind]
    write(cli, content)
    ended = cli("verify", "a.xml")
    assert ended.code == 1
    assert re.search(rf"problem: a\.xml:\d+: .*{says}", ended.out), ended.out
    assert re.search(r"well-formed +NO", ended.out)
    cli.refused(cli("convert", "a.xml", "out"), 3, rf"a\.xml:\d+: .*{says}")
    cli.refused(cli("run", scenario, "--jobs", 1), 3, rf"a\.xml:\d+: .*{says}")
    assert not list(cli.folder.glob("out*"))


@pytest.mark.parametrize("kind", ["100 MB", "many elements", "billion laughs"])
def test_row_20_hostile_xml_costs_little_memory(cli, kind):
    if kind == "100 MB":
        with open(cli.folder / "a.xml", "wb") as file:
            file.write(chain().encode())
            file.truncate(100 * 10**6)
        says = "more than 67108864 bytes"
    else:
        content, says = HOSTILE[kind]
        write(cli, content)
    cli.refused(cli.process("verify", "a.xml"), 3, says)


@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "dangling", "none"])
def test_row_20_what_is_no_file_is_refused(cli, kind):
    path = cli.folder / "a.xml"
    if kind == "folder":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind in ("device", "dangling"):
        path.symlink_to("/dev/zero" if kind == "device" else "/nowhere/a.xml")
    cli.refused(cli("verify", "a.xml"), 3, "a.xml: (is not a regular file|cannot be read)")
