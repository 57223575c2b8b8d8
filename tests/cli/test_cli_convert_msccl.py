"""`convert` from and to MSCCL-IR: what it keeps, what it says it drops, how it refuses; and injection by scenarios."""

from __future__ import annotations

import pytest
from worlds.msccl_programs import same

from astrasim_py.cli import convert
from astrasim_py.cli.main import main
from astrasim_py.engine.simulation import simulate
from astrasim_py.msccl.well_formed import RUNTIMES
from astrasim_py.msccl.xml_reader import read_program
from astrasim_py.preparation.prepare import prepare
from astrasim_py.program.files import read_algorithm
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan

HEAD = '<algo name="pair" proto="LL" nchannels="1" nchunksperloop="2" ngpus="2" coll="{coll}" inplace="1"{more}>\n'
GPU = (
    '<gpu id="{rank}" i_chunks="2" o_chunks="0" s_chunks="2">\n<tb id="0" send="{peer}" recv="{peer}" chan="0">\n'
    '<step s="0" type="s" srcbuf="i" srcoff="{peer}" dstbuf="i" dstoff="{peer}" {rest}\n'
    '<step s="1" type="rrcs" srcbuf="i" srcoff="{rank}" dstbuf="i" dstoff="{rank}" {rest}\n'
    '<step s="2" type="r" srcbuf="i" srcoff="{peer}" dstbuf="i" dstoff="{peer}" {rest}\n</tb>\n</gpu>\n'
)
REST = 'cnt="1" depid="-1" deps="-1" hasdep="0"/>'


def pair(coll: str = "allreduce", more: str = "", rest: str = REST) -> str:
    """An all_reduce of two ranks, as XML."""
    gpus = "".join(GPU.format(rank=rank, peer=1 - rank, rest=rest) for rank in range(2))
    return HEAD.format(coll=coll, more=more) + gpus + "</algo>\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.xml").write_text(pair(), "utf-8")
    return tmp_path


def converted(capsys, *argv) -> str:
    """What `convert` says of what it dropped."""
    code = main(["convert", *map(str, argv)])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return shown.out.splitlines()[-1]


@pytest.mark.parametrize("middle", ["a", "a.npz", "a.jsonl"])
def test_xml_comes_back_through_every_format(folder, middle, capsys):
    assert converted(capsys, "pair.xml", middle) == "dropped: nothing"
    assert converted(capsys, middle, "back.xml") == "dropped: nothing"
    assert same(read_program("back.xml"), read_program("pair.xml"))
    first = (folder / "back.xml").read_bytes()
    assert converted(capsys, "back.xml", "again.xml") == "dropped: nothing"
    assert (folder / "again.xml").read_bytes() == first


def test_what_is_not_read_is_named(folder, capsys):
    text = "<!-- mine -->\n" + pair(more=' maxcount="9"').replace("<gpu ", '<gpu colour="red" ') + "True\n"
    (folder / "b.xml").write_text(text.replace("</gpu>", "<note>x</note></gpu>"), "utf-8")
    assert converted(capsys, "b.xml", "b") == (
        'dropped: comments, what stands around the document, algo attribute "maxcount", gpu attribute "colour", '
        'element "note"'
    )
    (folder / "c.xml").write_text('<?xml version="1.0"?>\n' + pair(more=' nthreads="256"'), "utf-8")
    assert converted(capsys, "c.xml", "c") == "dropped: nothing"


def test_what_xml_cannot_say_is_named(folder, capsys):
    converted(capsys, "pair.xml", "sized", "--size", "1 MiB")
    assert converted(capsys, "sized", "b.xml") == "dropped: absolute sizes"
    for rank in range(2):
        (folder / f"x.{rank}.jsonl").unlink(missing_ok=True)
    converted(capsys, "pair.xml", "x.jsonl")
    path = folder / "x.0.jsonl"
    rows = path.read_text("utf-8").splitlines()
    rows[1] = rows[1].replace('"id":', '"name":"first","duration_micros":3,"id":', 1)
    path.write_text("\n".join(rows) + "\n", "utf-8")
    assert converted(capsys, "x.jsonl", "b.xml") == "dropped: names of nodes, durations"
    converted(capsys, "pair.xml", "both.xml")
    (folder / "o.xml").write_text(pair(more=' outofplace="1" minBytes="0" maxBytes="0"'), "utf-8")
    assert converted(capsys, "o.xml", "c.xml", "--dialect", "classic") == "dropped: outofplace"
    for options in ([], ["--dialect", "azure"]):
        assert converted(capsys, "o.xml", "c.xml", *options) == "dropped: nothing"
        assert 'outofplace="1" minBytes="0" maxBytes="0"' in (folder / "c.xml").read_text("utf-8")


def test_records_that_no_longer_fit_are_named_and_assigned_anew(folder, capsys):
    converted(capsys, "pair.xml", "x.jsonl")
    for rank in range(2):
        path = folder / f"x.{rank}.jsonl"
        path.write_text(path.read_text("utf-8").replace('"tb_prev"', '"tb_next"'), "utf-8")
    said = converted(capsys, "x.jsonl", "b.xml")
    assert "thread blocks and channels, which no longer fit the nodes" in said
    assert main(["verify", "b.xml"]) == 0


def test_sizes_are_stated_in_both_ways_or_in_one(folder, capsys):
    assert converted(capsys, "pair.xml", "both", "--size", "1 MiB") == "dropped: nothing"
    both = read_algorithm("both").traces[0]
    assert both.has_column("comm_size") and both.has_column("total_chunk_cnt")
    assert 2**19 in both.column("tensor_size").tolist()
    said = converted(capsys, "pair.xml", "bytes", "--size", "1 MiB", "--dialect", "absolute")
    assert said == "dropped: sizes in chunks, cells"
    assert not read_algorithm("bytes").traces[0].has_column("total_chunk_cnt")
    assert converted(capsys, "both", "chunks", "--dialect", "symbolic") == "dropped: absolute sizes"


def test_protocol_dialect_and_sizes_of_the_xml(folder, capsys):
    converted(capsys, "pair.xml", "b.xml", "--protocol", "LL128", "--dialect", "azure", "--max-bytes", "1 MiB")
    program = read_program("b.xml")
    assert (program.proto, program.outofplace) == ("LL128", 0)
    converted(capsys, "builder:ring:all_gather:4", "r.xml", "--protocol", "LL")
    assert read_program("r.xml").proto == "LL"
    converted(capsys, "builder:ring:all_gather:4", "r", "--protocol", "LL")
    assert read_algorithm("r").protocol == "LL"
    assert tuple(RUNTIMES) == convert._RUNTIMES


def test_a_custom_collective_is_named(folder, capsys):
    (folder / "mine.xml").write_text(pair("custom"), "utf-8")
    converted(capsys, "mine.xml", "mine")
    assert read_algorithm("mine").collective == "custom"
    converted(capsys, "mine.xml", "mine", "--collective", "all_reduce")
    assert read_algorithm("mine").collective == "all_reduce"
    assert converted(capsys, "mine", "mine.xml") == 'dropped: collective "all_reduce"'


def test_files_take_a_contract_along_and_xml_cannot(folder, capsys):
    (folder / "mine.xml").write_text(pair("custom"), "utf-8")
    (folder / "sum.yaml").write_text("{collective: all_reduce, ranks: 2, chunks: 2}\n", "utf-8")
    for target in ("mine", "mine.npz"):
        assert converted(capsys, "mine.xml", target, "--contract", "sum.yaml") == "dropped: nothing"
        assert main(["verify", target]) == 0
        assert "correct      yes" in capsys.readouterr().out
        assert converted(capsys, target, "back.xml") == "dropped: contract"


@pytest.mark.parametrize(
    ("text", "argv", "code", "said"),
    [
        (pair(rest=REST.replace('cnt="1"', 'cnt="99"')), (), 3, "a.xml:4: "),
        (pair().replace('type="rrcs"', 'type="ra"'), (), 3, "a.xml:5: "),
        (pair()[:-20], (), 3, "a.xml:"),
        ("<!DOCTYPE a>" + pair(), (), 3, "a.xml:1: "),
        (None, (), 3, "a.xml: cannot be read"),
        (pair("custom"), ("--collective", "broadcast"), 3, "broadcast has no root"),
        (pair(), ("--collective", "all_gather"), 3, "is made for all_reduce, not for all_gather"),
        (pair(), ("--dialect", "azure"), 2, "--dialect azure is for MSCCL-IR"),
        (pair(), ("--max-bytes", "1 MiB"), 2, "a range of sizes is for MSCCL-IR"),
        (pair(), ("--dialect", "absolute"), 3, "node 0 has no comm_size"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, text, argv, code, said):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "a.xml").write_text(text, "utf-8")
    before = sorted(tmp_path.iterdir())
    assert main(["convert", "a.xml", "out", *argv]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert said in shown.err
    assert sorted(tmp_path.iterdir()) == before


def test_sizes_say_nothing_to_xml(folder, capsys):
    assert main(["convert", "pair.xml", "b.xml", "--size", "1 MiB"]) == 2
    assert "MSCCL-IR states sizes in chunks" in capsys.readouterr().err
    assert not (folder / "b.xml").exists()


# ---------------------------------------------------------------------------------------------- injected

SCENARIO = (
    "name: demo\ntopologies: {r: {shape: ring, npus: 2, bandwidth: 50 GB/s, latency: 500 ns}}\n"
    "workload: [{all_reduce: {size: 1 MiB}}]\nalgorithms: {all_reduce: {file: FILE}}\n"
)


def prepared(folder, file: str):
    (folder / "s.yaml").write_text(SCENARIO.replace("FILE", file), "utf-8")
    return prepare(expand(load_scenario(folder / "s.yaml"))[0]).problem


def test_xml_is_injected_as_it_is(folder, capsys):
    times = set()
    for file in ("a", "a.npz", "pair.xml"):
        if file != "pair.xml":
            converted(capsys, "pair.xml", file)
        problem = prepared(folder, file)
        algorithm = problem.jobs[0].algorithms.select("all_reduce", 2**20, 2, "world")
        assert (algorithm.verdict, algorithm.protocol) == (True, "LL")
        times.add(simulate(problem).makespan)
        assert not problem.jobs[0].algorithms.notes.warnings
    assert len(times) == 1


def test_an_injected_xml_is_held_to_the_collective_and_to_its_folder(folder, capsys):
    (folder / "pair.xml").write_text(pair("allgather"), "utf-8")
    with pytest.raises(Exception, match="is made for all_gather, not for all_reduce"):
        make_plan(prepared(folder, "pair.xml"))
    (folder / "wrong.xml").write_text(pair().replace('type="rrcs"', 'type="rcs"'), "utf-8")
    with pytest.raises(Exception, match="is wrong"):
        make_plan(prepared(folder, "wrong.xml"))
    (folder / "ill.xml").write_text(pair(rest=REST.replace('cnt="1"', 'cnt="99"')), "utf-8")
    with pytest.raises(Exception, match=r"ill\.xml:4: "):
        make_plan(prepared(folder, "ill.xml"))
    with pytest.raises(Exception, match="leads out of the folder"):
        prepared(folder, "../pair.xml")


def test_a_changed_xml_is_read_again(folder):
    first = simulate(prepared(folder, "pair.xml")).makespan
    text = pair().replace('nchunksperloop="2"', 'nchunksperloop="4"').replace('i_chunks="2"', 'i_chunks="4"')
    text = text.replace('srcoff="1"', 'srcoff="2"').replace('dstoff="1"', 'dstoff="2"').replace('cnt="1"', 'cnt="2"')
    (folder / "pair.xml").write_text(text.replace('proto="LL"', 'proto="Simple"'), "utf-8")
    problem = prepared(folder, "pair.xml")
    assert problem.jobs[0].algorithms.select("all_reduce", 2**20, 2, "world").protocol == "Simple"
    assert simulate(problem).makespan == first
