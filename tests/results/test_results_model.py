"""The models of stored results are mappings of their columns, and read what they write."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from astrasim_py.core.exact_json import json_text, parse_json
from astrasim_py.core.records import Fold
from astrasim_py.results.model import (
    ROW_KEYS,
    Breakdown,
    File,
    JobRow,
    Manifest,
    Row,
    RunCost,
    Summary,
    is_sealed,
)

ROW = Row(scenario="s", point="p", sweep={"size": "1 KiB"}, time_ns=Decimal("1.5"), bound_ns=Decimal(1), status="done")
JOB = JobRow(point="p", job="a", ranks=2, arrival_ns=Decimal(0), time_ns=Decimal(3))
MANIFEST = Manifest(
    folder="f",
    status="done",
    exit_code=0,
    level="links",
    limits={"max_events": 5, "max_sim_time_ps": None},
    scenario="s",
    point="p",
    digest="d",
    sweep={"size": "1 KiB"},
    inputs={"a.et": "00"},
    resolved={"topology": {"npus": 4, "share": 0.5}},
    files={"link.csv": File(sha256="ab", bytes=3)},
)


def test_a_row_is_a_mapping_of_its_columns():
    assert tuple(ROW) == tuple(dict(ROW)) == ROW_KEYS and len(ROW) == len(ROW_KEYS)
    assert all(ROW[key] == getattr(ROW, key) for key in ROW) and dict(ROW) == ROW
    assert (ROW.time_ps, ROW.bound_ps, replace(ROW, bound_ns=None).bound_ps) == (1500, 1000, None)
    for name in ("seeds", "runs", "time_ps", "columns", "time"):
        assert name not in ROW and ROW.get(name) is None
    repeated = replace(ROW, seeds=3, seed="1", time_low_ns=Decimal(1), time_high_ns=Decimal(2), runs=(ROW,))
    assert tuple(repeated) == (*ROW_KEYS, "seeds", "seed", "time_low_ns", "time_high_ns")
    assert repeated.interval == "1 ns … 2 ns" and ROW.interval == ""


def test_the_row_of_a_job_has_its_time_and_no_bound():
    row = ROW.of_job(JOB)
    assert (row.time_ns, row.bound_ns, row.text_of("job"), row.meets({"job": "a", "size": "1 KiB"})) == (
        3,
        None,
        "a",
        True,
    )
    assert tuple(row) == ROW_KEYS and ROW.text_of("job") is None


@pytest.mark.parametrize(
    "record",
    [
        ROW,
        MANIFEST,
        replace(MANIFEST, timeline=(0, 3), repeat=2, front_end="astra_sim", collectives=False),
        RunCost(cpu_s=Decimal("0.25"), versions={"numpy": "2"}),
        Summary(row=ROW, makespan_ps=1500, events=3),
        Summary(
            row=ROW,
            makespan_ps=1500,
            events=3,
            breakdown=Breakdown(rank=0, compute_ns=Decimal(1), exposed_comm_ns=Decimal("0.5"), other_ns=Decimal(0)),
            busbw_factors=(("all_reduce", 4, "3/2"),),
            hop_latency_ps={0: 7},
            fold=Fold(ranks=1, copies=4, exact=True, deviation=0, text="exact"),
            jobs=(JOB,),
            qps=2,
        ),
    ],
)
def test_what_is_read_is_what_was_written(record):
    read = type(record).read(parse_json(json_text(record)))
    assert json_text(read) == json_text(record) and list(read) == list(record)
    assert {key: type(value) for key, value in read.items()} == {key: type(value) for key, value in record.items()}


def test_no_byte_of_a_manifest_can_change_unseen():
    content = MANIFEST.sealed()
    assert is_sealed(content) and Manifest.read(parse_json(content.decode())).files == MANIFEST.files
    for place in range(len(content)):
        assert not is_sealed(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]), place
        assert not is_sealed(content[:place] + content[place + 1 :]), place
