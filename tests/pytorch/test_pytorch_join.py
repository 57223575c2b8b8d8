"""Operators and nodes of the host's trace: joined on true pairs, and told apart on a false one."""

import os
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.pytorch.host_trace import read_host_trace
from astrasim_py.pytorch.join import enclosing, join
from astrasim_py.pytorch.kineto import read_recording
from astrasim_py.pytorch.recording import Category
from astrasim_py.pytorch.sources import sources

FOLDER = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "pytorch"
CPU = [f"recorded_cpu/{name}_4" for name in ("ddp", "fsdp", "pp", "moe", "funcol")]
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs ASTRASIM_GOLDEN")


def joined(kineto, host, step="median"):
    recording = read_recording(str(FOLDER / kineto), step)
    return join(recording, read_host_trace(str(FOLDER / host)))


@pytest.mark.parametrize("folder", CPU)
def test_every_operator_joins_by_record_id(folder):
    found = joined(f"{folder}/kineto_1.json.gz", f"{folder}/et_1.json.gz")
    assert found.by_record_id
    assert found.joined == found.operators
    assert found.nodes - found.operators == {"fsdp": 5, "funcol": 4}.get(folder[13:-2], 3)  # process, threads, groups


def test_pairs_without_record_ids_join_by_names():
    archives = [str(FOLDER / f"param_dlrm8/dlrm_{kind}.tar.gz") for kind in ("kineto", "pytorch_et")]
    kineto, host = (
        {name[name.index(mark) + len(mark)]: name for name in sources(archive)}
        for archive, mark in zip(archives, ("worker", "eg_"), strict=True)
    )
    found = [joined(kineto[rank], host[rank]) for rank in "01234567"]
    assert [f.joined for f in found] == [1668, 1668, 1670, 1670, 1664, 1672, 1672, 1665]
    assert all(
        f.operators == 1673 and f.nodes == 1675 and f.rate > 0.994 and f.same_run and not f.strangers for f in found
    )
    assert joined("hta_simple_add/kineto.json.gz", "hta_simple_add/et.json.gz").joined == 36


@pytest.mark.slow
def test_two_runs_are_told_apart():
    found = joined("param_resnet/resnet_kineto.json.gz", "param_resnet/resnet_2gpu_et_1.1.0.json.gz")
    assert not found.same_run
    assert "not the same run" in str(found)
    program = joined("hta_nccl_data/nccl_data.json.gz", "param_resnet/resnet_2gpu_et_1.1.0.json.gz", None)
    assert program.joined >= 14_385 and program.strangers  # another run of the same program
    one = joined("param_linear/linear_kineto.json.gz", "param_linear/linear_et.json.gz")  # 1 of its 81 iterations
    assert one.same_run


@pytest.mark.parametrize("name", ["hta_amd/mi250_minitoy", "tracelens/h100_bert_small", "tracelens/h100_qwen1.5_0.5b"])
def test_innermost_operator_is_that_of_the_external_id(name):
    recording = read_recording(str(FOLDER / f"{name}.json.gz"), None)
    events = recording.events
    calls = np.flatnonzero((events.category == Category.CALL) & (events.external_id >= 0))
    around = enclosing(recording)[calls]
    both = around >= 0
    assert both.sum() > 10
    assert (events.external_id[around[both]] == events.external_id[calls[both]]).all()


GROUPS = [("0", 4, ()), ("2", 2, (1, 3)), ("4", 2, (2, 3))]
HOSTS = [
    ("hta_simple_add/et.json.gz", "1.0.1", 38, 0, []),
    ("param_resnet/resnet_1gpu_et_1.0.3.json.gz", "1.0.3-chakra.0.0.4", 14_391, 27, []),
    ("param_resnet/resnet_2gpu_et_1.1.0.json.gz", "1.1.0-chakra.0.0.4", 14_392, 27, [("0", 2, ())]),
    ("param_resnet/resnet_1gpu_et_1.1.1.json.tar.gz", "1.1.1-chakra.0.0.4", 14_392, 27, [("0", 1, ())]),
    ("recorded_cpu/funcol_4/et_3.json.gz", "1.1.1-chakra.0.0.4", 654, 0, GROUPS),
]


@pytest.mark.parametrize(("name", "schema", "nodes", "calls", "groups"), HOSTS)
def test_host_trace_of_every_schema(name, schema, nodes, calls, groups):
    host = read_host_trace(str(FOLDER / name))
    assert (host.schema, len(host)) == (schema, nodes)
    assert (np.diff(host.ids) > 0).all()
    assert (host.parents < np.arange(nodes)).all()
    comms = [host.names[host.name[row]] for row in host.communication]
    assert comms.count("record_param_comms") == calls
    assert [(g.name, g.size, g.ranks) for g in host.groups] == groups


def test_the_trace_of_a_like_rank_is_said_to_be_anothers():
    """Where all record ids fit, too, as they do where ranks do the same."""
    for folder, by_record_id in (("pp_4", False), ("moe_4", True)):
        recording = f"recorded_cpu/{folder}/kineto_1.json.gz"
        found = joined(recording, f"recorded_cpu/{folder}/et_0.json.gz")
        assert found.by_record_id == by_record_id and found.same_run and found.strangers
        assert "another rank or run" in str(found)
        assert "another" not in str(joined(recording, f"recorded_cpu/{folder}/et_1.json.gz"))
