"""Levels of sharing: what they keep, what they remove, and that the same seed gives the same bytes."""

from __future__ import annotations

from functools import cache
from math import isclose

import numpy as np
import pytest
from worlds.small_problems import trace
from worlds.training import ByWork, layout_of

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.et_io import encode_trace, gzip_bytes, parse_trace
from astrasim_py.chakra.lint_rules import lint_trace
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.sharing.levels import kind_of, stripped
from astrasim_py.sharing.price import LEVELS, Rules, networks, original_of, price, share
from astrasim_py.sharing.secrets import Scales, edge_list, strings_of, surviving
from astrasim_py.topology.edge_list import read_csv
from astrasim_py.training.traces import training_workload

MODEL = {"layers": 2, "hidden": 1024, "ffn": 4096, "heads": 8, "vocab": 5120}
EXACT = ("strip", "hash", "skeleton")
FEW = [*networks(8).values()][1::4]


@cache
def original(**keys):
    keys = keys or {"tp": 2, "pp": 2}
    return original_of(training_workload(layout_of(8, model=MODEL, gbs=8, nodes="fine", **keys), ByWork()))


def encoded(workload) -> list[bytes]:
    return [encode_trace(each) for each in workload.traces]


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_seed_gives_the_same_bytes(level):
    first, again, other = (encoded(share(original(), level, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) == (level in ("strip",))


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_shared_lints_clean_and_runs_in_about_the_same_time(level):
    made = share(original(), level)
    assert not [found for each in dict.fromkeys(made.traces) for found in lint_trace(each) if found.severity == "error"]
    for topology in FEW:
        before, after = (Rules().run(each, topology).makespan for each in (original().workload, made))
        # Twins and bins are random: the tolerance is theirs, not a rounding.
        assert after == before if level in EXACT else isclose(after, before, rel_tol=0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_secret_scales_are_exact_on_a_network_scaled_alike(level):
    scales = Scales(3.7, 0.31)
    made, scaled = share(original(), level), share(original(), level, scales=scales)
    for topology in FEW:
        before = Rules().run(made, topology).makespan
        after = Rules().run(scaled, scales.topology(topology)).makespan
        assert isclose(after, before * 3.7, rel_tol=1e-4)  # sizes and times are whole numbers


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "strip"])
def test_no_string_of_the_input_survives(level):
    source = original().workload
    strings, _ = strings_of(source)
    assert len(strings) > 20
    made = share(original(), level)
    assert surviving(strings, {str(rank): data for rank, data in enumerate(encoded(made))}) == []
    assert all(name.isdecimal() for name in made.groups)


def test_a_string_is_found_in_a_file_and_in_its_gzip_members():
    files = {"a": b"...secret...", "b": b"\0\1" + gzip_bytes(b"my secret") + b"!", "c": b"sec", "d": b""}
    assert surviving(["secret", "sec", "none", "num_ops"], files) == [("secret", "a"), ("secret", "b")]


def test_strings_of_attributes_and_metadata_are_known():
    node = pb.Node(id=1, name="kernel_name", type=4)
    node.attr.add(name="odd_name", string_val="odd value", doc_string="what it is")
    node.attr.add(name="odd_bytes").bytes_list.values.extend([b"some bytes"])
    node.inputs.values = "[some inputs]"
    head = pb.GlobalMetadata(version="9.9.9-x")
    data = b"".join(bytes([len(part)]) + part for part in (head.SerializeToString(), node.SerializeToString()))
    found, names = strings_of(Workload((parse_trace(data),)))
    assert {"kernel_name", "odd value", "what it is", "some bytes", "[some inputs]", "9.9.9-x"} <= found
    assert names == {"odd_name", "odd_bytes"}


def test_stripping_leaves_kinds_of_kernels():
    names = ["ampere_fp16_s16816gemm", "flash_fwd", "gap 3", "vectorized_elementwise", "whatever"]
    assert [kind_of(name) for name in names] == ["gpu:gemm", "gpu:attn", "gap", "gpu:elem", "gpu:other"]
    named = ExecutionTrace.from_columns(
        node_id=np.arange(2), type=4, is_cpu_op=[1, 0], names=["aten::mm", "sgemm"], layer=3, metadata={"who": "me"}
    )
    made = stripped(named, "data")
    assert (made.names, made.has_column("layer"), made.metadata) == (("cpu", "gpu:gemm"), False, ())


def test_a_scaled_topology_has_no_names_and_scaled_links():
    text = "# npus 2\nsrc,dst,bandwidth,latency\n0,acme_tor,50 GB/s,500 ns\nacme_tor,1,50 GB/s,500 ns\n"
    text += "1,acme_tor,25 GB/s,1 us\nacme_tor,0,25 GB/s,1 us\n"
    made = edge_list(Scales(2.0, 4.0).topology(read_csv(text)))
    assert b"acme" not in made
    again = read_csv(made.decode())
    assert [int(rate) for rate in again.bandwidths] == [50 * 10**9, 100 * 10**9]
    assert again.latency_ps.tolist() == [1_000_000, 1_000_000, 2_000_000, 2_000_000]


@pytest.mark.parametrize("level", LEVELS)
def test_one_rank_and_remote_memory_are_shared_too(level):
    nodes = [{"type": 4, "micros": 7, "deps": ()}, {"type": 2, "tensor_size": 10**6, "deps": {0}}]
    made = original_of(Workload((trace([*nodes, {"type": 4, "micros": 3, "deps": {1}}]),)))
    scales = Scales(0.5, 2.0)
    paid = price(made, share(made, level, scales=scales), Rules(), scales)
    assert paid.largest <= (0 if level in EXACT else 1e-6)
