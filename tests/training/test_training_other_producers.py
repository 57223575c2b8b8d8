"""The same models as other producers' traces: the same collectives on the same groups, in the same order."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path

import pytest
from worlds.training import TINY, layout_of

from astrasim_py.chakra.et_io import read_trace
from astrasim_py.chakra.groups import groups_from_json
from astrasim_py.chakra.read_workload import read_workload, scale_sizes
from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, NodeType
from astrasim_py.training.traces import training_workload

GPT = TINY | {"layers": 4, "hidden": 1024, "ffn": 4096, "heads": 16, "vocab": 32000}


def calls(trace, members) -> list[tuple[str, str, tuple, int]]:
    """Name, kind, group or peer, and bytes of what a trace sends, in the order of its dependencies."""
    codes, names = trace.group_of()
    found = []
    for row in trace.order().tolist():
        kind, size = NodeType(trace.type[row]), int(trace.column("comm_size")[row])
        if kind == NodeType.COMM_COLL:
            group = tuple(sorted(members(names[codes[row]])))
            found.append((trace.names[row], COLLECTIVE_OF_CODE[int(trace.column("comm_type")[row])], group, size))
        elif kind == NodeType.COMM_SEND:
            found.append((trace.names[row], "send", (int(trace.column("comm_dst")[row]),), size))
    return found


def ours(layout, rank: int) -> list[tuple[str, tuple, int]]:
    """Calls of the layers and between stages, without gathers for weight gradients."""
    workload = training_workload(layout)
    found = calls(workload.trace(rank), workload.members)
    return [call[1:] for call in found if call[0][0] in "Ls" and "wgrad.all_gather" not in call[0]]


def theirs(trace, members, place=lambda rank: rank) -> list[tuple[str, tuple, int]]:
    """The same of a symbolic tensor graph, whose ranks `place` renumbers."""
    found = [call for call in calls(trace, members) if "_emb." not in call[0]]
    found = [call for call in found if "dwqkv" not in call[0] and "ffn.x01" not in call[0]]
    return [(kind, tuple(sorted(map(place, group))), size) for _, kind, group, size in found]


@pytest.fixture
def samples(golden) -> Path:
    return golden / "chakra_samples"


@pytest.mark.parametrize("name, keys", [("gpt_tp8", {"tp": 8, "mbs": 16}), ("gpt_dp8", {"dp": 8, "mbs": 2, "zero": 0})])
def test_tensor_and_data_parallel_layers(samples, name, keys):
    place = samples / "stg" / name
    workload = read_workload(place / "w", groups=place / "w.json", size_unit="elements", dtype_bytes=2)
    layout = layout_of(8, model=GPT, seq=512, microbatches=1, **keys)
    for rank in range(8):
        own, other = ours(layout, rank), theirs(workload.traces[rank], workload.members)
        assert own == other and len(own) == (32 if "tp" in keys else 4)


def test_pipeline_stages(samples):
    place = samples / "stg" / "gpt_pp4_mb4"
    workload = read_workload(place / "w", groups=place / "w.json", size_unit="elements", dtype_bytes=2)
    layout = layout_of(4, model=GPT, seq=512, mbs=4, pp=4, microbatches=4, schedule="gpipe")
    for rank in range(4):
        assert Counter(ours(layout, rank)) == Counter(theirs(workload.traces[rank], workload.members))


def test_gpt_3_on_64_ranks(samples, tmp_path):
    wanted = {"w.json", "w.0.et", "w.17.et", "w.63.et"}
    with tarfile.open(samples / "stg_gpt3_64npus.tar.xz") as archive:
        for entry in archive:
            if Path(entry.name).name in wanted:
                (tmp_path / Path(entry.name).name).write_bytes(archive.extractfile(entry).read())
    groups = groups_from_json(tmp_path / "w.json")
    layout = layout_of(
        64, model="gpt3-175b", seq=2048, mbs=8, microbatches=4, tp=8, pp=4, dp=2, zero=0, schedule="gpipe"
    )

    def place(rank: int) -> int:  # data parallel ranks are neighbours there
        return rank // 2 % 8 + 8 * (rank % 2 + 2 * (rank // 16))

    for rank in (0, 17, 63):
        other = Counter(theirs(scale_sizes(read_trace(tmp_path / f"w.{rank}.et"), 2), groups.__getitem__, place))
        own = Counter(ours(layout, place(rank)))
        # Gradients are reduced once, there with every microbatch.
        own = Counter({call: 4 * count if call[0] == "all_reduce" else count for call, count in own.items()})
        assert own == other
