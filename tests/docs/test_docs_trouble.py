"""The pages of limits and of troubleshooting state what the program does."""

import re

import pytest

from astrasim_py.builders import registry
from astrasim_py.chakra import et_io, groups, wire
from astrasim_py.core import document, errors
from astrasim_py.dialects.thread_blocks import lower as thread_blocks
from astrasim_py.exploration import grid
from astrasim_py.live import live, worker
from astrasim_py.msccl import lower, xml_reader
from astrasim_py.mscclpp import cells, reader
from astrasim_py.program import steps
from astrasim_py.pytorch import convert, json_stream
from astrasim_py.report import page as page_report
from astrasim_py.report import timeline
from astrasim_py.scenario import schema, variables
from astrasim_py.synthesis.extras import exact
from astrasim_py.synthesis.model import demand
from astrasim_py.system import bound, machine_models, routes
from astrasim_py.topology import spec
from astrasim_py.workload import items

MIB, GIB = 2**20, 2**30
LIMITS = {
    "scenario": (document.MAX_BYTES // MIB, variables.MAX_POINTS, schema.MAX_REPEATS),
    "ranks of a builder": (registry.MAX_RANKS,),
    "tiles of an item": (items.MAX_TILES,),
    "queue pairs of two NPUs": (machine_models.MAX_QPS,),
    "dimensions of a topology": (spec.MAX_DIMS,),
    "routes in a table": (routes.MAX_ROUTE_LINKS,),
    "events of a point": (machine_models.MAX_EVENTS,),
    "`.et` file": (et_io.MAX_FILE // GIB, wire.MAX_NODES, wire.MAX_RECORD // MIB, et_io.MAX_GUNZIP // GIB, 500),
    "groups file": (groups.MAX_GROUP_FILE // MIB,),
    "MSCCL-IR": (xml_reader.MAX_FILE // MIB, xml_reader.MAX_ELEMENTS, lower.MAX_TRACE_NODES),
    "MSCCL++ plan": (reader.MAX_FILE // MIB, reader.MAX_OPERATIONS, reader.MAX_RANKS, cells.MAX_CELLS),
    "program by thread block": (thread_blocks.MAX_STEPS,),
    "verification": (steps.MAX_CELLS,),
    "lower bound along the workload": (bound.MAX_PATH_NODES,),
    "synthesis": (demand.MAX_CHUNKS, exact.MAX_RANKS),
    "`explore`": (grid.MAX_CONFIGURATIONS,),
    "recording of PyTorch": (json_stream.MAX_VALUE, convert.MAX_COPIES),
    "page": (page_report.MOST_HOPS, live.MOST_NPUS, live.MOST_HOPS, int(worker.MOST_SECONDS)),
    "timeline": (timeline.MOST_BYTES // 10**6,),
}


@pytest.fixture(scope="module")
def pages(repo):
    return {name: (repo / "docs" / f"{name}.md").read_text("utf-8") for name in ("limits", "troubleshooting")}


def listed(text: str) -> dict[str, str]:
    """The items of the lists of a text: what stands before the first colon → the rest."""
    items = (" ".join(item.split()) for item in re.findall(r"^\* (.*(?:\n  .*)*)", text, re.MULTILINE))
    return dict(item.split(": ", 1) for item in items)


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_those_of_the_code(pages, name):
    row = listed(pages["limits"].split("## Largest")[1])[name]
    assert not [number for number in LIMITS[name] if not re.search(rf"(?<![\d,]){number:,}(?!,?\d)", row)], row


def test_every_class_of_errors_has_its_row(pages):
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    rows = dict(re.findall(r"^\* `(\w+)` \((\d+)\): ", pages["troubleshooting"], re.MULTILINE))
    told = [error for error in classes if error not in (errors.AstraError, errors.ErrorList)]
    assert rows.keys() == {error.__name__ for error in told}
    assert all(int(rows[error.__name__]) == getattr(error, "exit_code", errors.EXIT_INTERNAL) for error in told)


def test_every_exit_code_has_its_row(pages):
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\* \*\*(\d+)\*\*: ", pages["troubleshooting"], re.MULTILINE)} == codes
    severity = ", ".join(str(code) for code in errors.SEVERITY if code)
    assert f"in the order {severity}" in pages["troubleshooting"]


def test_quoted_warnings_are_those_of_the_code(pages, repo):
    text = pages["troubleshooting"].split("## Warnings of a scenario")[1].split("## Slow runs")[0]
    quoted = [words for head in listed(text) for words in re.findall(r"`([^`]+)`", head) if " " in words]
    sources = "".join(path.read_text("utf-8") for path in sorted((repo / "astrasim_py").rglob("*.py")))
    assert len(quoted) > 10
    assert not [words for words in quoted if not all(part.strip() in sources for part in words.split("…"))]
