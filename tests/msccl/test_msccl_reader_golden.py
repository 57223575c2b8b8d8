"""Real programs of six origins are read as they are, and are well-formed but one."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from astrasim_py.msccl.ir import collective_of, steps_from
from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_reader import read_program

#: 14 chunks do not divide by 8 ranks.
ILL_FORMED = "ns3_all2all.xml"


@pytest.fixture(scope="module")
def programs(golden):
    """What is recorded of each file, with its program."""
    rows = json.loads((golden / "msccl" / "verdicts.json").read_text())
    assert len(rows) == 92
    return [(row, read_program(golden / "msccl" / row["file"])) for row in rows]


def test_real_programs_have_the_recorded_shape(programs):
    for row, program in programs:
        tbs = [tb for gpu in program.gpus for tb in gpu.tbs]
        steps = [step for tb in tbs for step in tb.steps]
        assert {
            "ranks": len(program.gpus),
            "proto": program.proto,
            "channels": program.nchannels,
            "chunks": program.nchunksperloop,
            "coll": program.coll,
            "inplace": program.inplace,
            "steps": len(steps),
            "tbs": len(tbs),
            "max_steps_per_tb": max(len(tb.steps) for tb in tbs),
            "max_tbs_per_gpu": max(len(gpu.tbs) for gpu in program.gpus),
            "types": dict(Counter(step.type for step in steps)),
        }.items() <= row.items(), row["file"]
        assert program.layout == ()


def test_real_lines_are_those_of_their_tags(programs, golden):
    for row, program in programs[::7]:
        text = (golden / "msccl" / row["file"]).read_text().splitlines()
        for gpu in program.gpus:
            assert f'<gpu id="{gpu.id}"' in text[gpu.line - 1]
            for tb in gpu.tbs:
                assert f'<tb id="{tb.id}"' in text[tb.line - 1]
                assert all(f'<step s="{step.s}" type="{step.type}"' in text[step.line - 1] for step in tb.steps)


def test_real_programs_are_well_formed_but_one(programs):
    for row, program in programs:
        problems, warnings = findings(program)
        if row["file"].endswith(ILL_FORMED):
            (problem,) = problems
            assert 'nchunksperloop="14" does not divide by 8 ranks' in problem
        else:
            assert problems == (), row["file"]
        assert len(warnings) <= 3, warnings


def test_tables_of_real_programs_have_all_steps_and_pair_messages(programs):
    for row, program in programs:
        steps = steps_from(program)
        assert len(steps) == row["steps"] - row["types"].get("nop", 0)
        assert all(len(c.sends) == len(c.receives) > 0 for c in steps.connections)
        assert min((parent for each in steps.parents for parent in each), default=0) >= 0


def test_custom_collectives_are_known_by_name(programs):
    custom = {
        row["file"].split("/")[-1]: collective_of(program) for row, program in programs if program.coll == "custom"
    }
    assert len(custom) == 7
    known = {name: (collective, root) for name, (collective, root, contract) in custom.items() if contract is None}
    assert known == {
        "synth_Broadcast.n8.root0-DGX1-steps2.xml": ("broadcast", 0),
        "synth_Reduce.n4.root0-Ring.n4-steps2.xml": ("reduce", 0),
        "mt_simple_custom_collective.xml": ("custom", None),
    }
    assert all("alltonext" in name for name in custom.keys() - known.keys())
