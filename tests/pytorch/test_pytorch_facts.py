"""Every public recording, read and compared with facts that another script computed straight from the JSON."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.pytorch.kineto import read_recording
from astrasim_py.pytorch.recording import Category

FOLDER = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "pytorch"
FACTS = json.loads((FOLDER / "facts.json").read_text()) if (FOLDER / "facts.json").exists() else {}
KINETO = [name for name, facts in FACTS.items() if "gpu_ops" in facts]
LARGE = 5_000_000
pytestmark = pytest.mark.skipif(not FACTS, reason="needs ASTRASIM_GOLDEN")


def streams(recording, rows):
    """Number, busy time and order of the work in `rows`, by device and stream."""
    events, found = recording.events, {}
    rows = rows[np.lexsort((events.duration[rows], events.start[rows]))]
    for lane in sorted(set(zip(events.device[rows].tolist(), events.stream[rows].tolist(), strict=True))):
        own = rows[(events.device[rows] == lane[0]) & (events.stream[rows] == lane[1])]
        text = "\n".join(recording.names[name] for name in events.name[own])
        found["{}/{}".format(*lane)] = {
            "ops": len(own),
            "busy_us": round(int(events.duration[own].sum()) / 1000, 3),
            "order_sha": hashlib.sha256(text.encode()).hexdigest()[:12],
        }
    return found


def large(name):
    return pytest.param(name, marks=pytest.mark.slow) if FACTS[name]["json_bytes"] > LARGE else name


@pytest.mark.parametrize("name", [large(name) for name in KINETO])
def test_whole_recording_matches_facts(name):
    facts, recording = FACTS[name], read_recording(str(FOLDER / name), None)
    events = recording.events
    work = np.flatnonzero(events.on_device)
    assert len(work) == facts["gpu_ops"]
    assert int((events.category == Category.KERNEL).sum()) == facts["kernels"]
    assert int((events.launch[work] >= 0).sum()) == facts["linked_by_correlation"]
    assert int((events.category <= Category.ANNOTATION).sum()) == facts["host_ops"]
    assert (recording.rank, recording.world_size) == (facts["rank"], facts["world_size"])
    found = streams(recording, work)
    for lane in found.values():
        del lane["order_sha"]
    assert found == facts["streams"]
    assert [(s.name, (s.end - s.start) / 1000) for s in recording.steps] == [
        (s["name"], s["us"]) for s in facts["steps"]
    ]
    groups = [(g.name, g.size, list(g.ranks)) for g in recording.groups]
    assert groups == [(g["pg_name"], g["pg_size"], g["ranks"]) for g in facts["process_groups"]]


@pytest.mark.parametrize("name", [large(name) for name in KINETO if FACTS[name].get("per_step")])
def test_each_step_matches_facts(name):
    for step, facts in FACTS[name]["per_step"].items():
        recording = read_recording(str(FOLDER / name), step.removeprefix("ProfilerStep#"))
        assert streams(recording, recording.work) == facts["streams"]
        assert recording.span_ns == round(facts["span_us"] * 1000)


def test_work_launched_before_the_recording_is_left_over():
    name = "param_dlrm8/dlrm_kineto.tar.gz!dlrm_kineto/worker{}"
    left = {n: len(read_recording(str(FOLDER / n)).backlog) for n in KINETO if n.startswith("param_dlrm8")}
    found = [left[n] for rank in range(8) for n in left if n.startswith(name.format(rank))]
    assert found == [0, 64, 0, 64, 0, 0, 0, 0]
