"""Files that other producers wrote: read, checked, and written back byte for byte."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

from astrasim_py.chakra import et_io, stats, text_io
from astrasim_py.chakra.lint import lint, lint_prefix
from astrasim_py.chakra.lint_rules import lint_trace
from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace


def sets(folder: Path) -> list[Path]:
    """Prefixes of all sets below a folder."""
    return sorted(path.with_name(path.name[: -len(".0.et")]) for path in folder.rglob("*.0.et"))


def groups_of(prefix: Path) -> Path | None:
    file = prefix.with_name(prefix.name + ".json")
    return file if file.exists() else None


@pytest.fixture(scope="module")
def samples(golden) -> list[Path]:
    found = sets(golden / "chakra_samples")
    assert len(found) >= 20
    return found


@pytest.fixture(scope="module")
def gpt3(golden, tmp_path_factory) -> Path:
    """Prefix of the unpacked 64-rank set."""
    folder = tmp_path_factory.mktemp("gpt3")
    with tarfile.open(golden / "chakra_samples" / "stg_gpt3_64npus.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    (prefix,) = sets(folder)
    return prefix


def all_files(golden: Path) -> list[Path]:
    return sorted(golden.rglob("*.et"))


def test_every_file_is_written_back_byte_for_byte(golden):
    files = all_files(golden)
    assert len(files) > 500
    for path, trace in zip(files, et_io.read_traces(files), strict=True):
        assert et_io.encode_trace(trace) == path.read_bytes()


def test_every_sample_survives_the_text_form_byte_for_byte(golden):
    seen = set()
    for path in all_files(golden / "chakra_samples"):
        data = path.read_bytes()
        if data not in seen:
            seen.add(data)
            text = "\n".join(text_io.lines_of_bytes(data, str(path)))
            assert '"raw"' not in text
            assert text_io.bytes_of_lines(text.encode(), str(path)) == data


def test_every_sample_agrees_with_protobuf(samples):
    for prefix in samples:
        for trace in {id(t): t for t in et_io.read_prefix(prefix)}.values():
            columns = {name: trace.column(name) for name in INT_COLUMNS}
            codes, names = trace.group_of()
            step = max(1, len(trace) // 50)
            for row in range(0, len(trace), step):
                node = trace.node(row)
                assert (node.id, node.type, node.name) == (trace.node_id[row], trace.type[row], trace.names[row])
                for name, column in columns.items():
                    assert int(trace.attribute(row, name, MISSING)) == column[row]
                assert trace.attribute(row, "pg_name") == (names[codes[row]] if codes[row] >= 0 else None)
                begin, end = trace.data_deps.ptr[row : row + 2]
                assert node.data_deps == trace.data_deps.ids[begin:end].tolist()


def test_columns_alone_give_the_same_trace_again(samples):
    for prefix in samples:
        for trace in et_io.read_prefix(prefix):
            again = et_io.parse_trace(et_io.encode_trace(trace.without_raw()))
            assert again.digest() == trace.digest()
            assert again.metadata == trace.metadata


def test_complete_sets_have_no_errors(samples):
    for prefix in samples:
        errors = [f for f in lint_prefix(prefix, groups_of(prefix)) if f.severity == "error"]
        if prefix.name not in ("one_comm_send_node", "one_comm_recv_node"):
            assert errors == []


@pytest.mark.parametrize(("name", "peer"), [("one_comm_send_node", "comm_dst"), ("one_comm_recv_node", "comm_src")])
def test_messages_without_size_peer_and_tag_are_told(golden, name, peer):
    findings = lint_prefix(golden / "chakra_samples" / "chakra_generator" / name)
    kind = name[4:13].upper()
    for rank in range(4):
        mine = [f.message for f in findings if f"{name}.{rank}.et: node " in f.place]
        assert mine == [
            f"{kind} lacks comm_size (or chunk counts)",
            f"{kind} lacks {peer}",
            f"{kind} lacks comm_tag",
        ]


def test_injected_algorithms_have_no_errors(golden):
    for prefix in sets(golden / "astra_sim" / "custom"):
        if "_64" not in prefix.parent.name:
            assert [f for f in lint_prefix(prefix) if f.severity != "info"] == []


def test_element_counts_are_pointed_out(golden):
    for prefix in sets(golden / "chakra_samples" / "stg"):
        findings = lint_prefix(prefix, groups_of(prefix))
        assert [f.rule for f in findings if f.severity == "warning"] == ["elements-not-bytes"]


def test_identical_ranks_share_a_trace(golden):
    traces = et_io.read_prefix(golden / "chakra_samples" / "stg" / "gpt_dp8" / "w")
    assert len({id(trace) for trace in traces}) == 1


def test_all_kinds_of_attributes_are_kept(golden):
    trace = et_io.read_trace(golden / "chakra_samples" / "chakra_generator" / "one_metadata_node_all_types.0.et")
    kinds = {attribute.WhichOneof("value") for attribute in trace.node(0).attr}
    assert len(kinds) >= 28


def test_both_dialects_are_read(golden):
    folder = golden / "chakra_samples"
    symbolic = et_io.read_trace(folder / "collectiveapi" / "u_allreduce_ring.0.et")
    absolute = et_io.read_trace(folder / "astrasim_examples" / "custom_allreduce.0.et")
    for trace, has, lacks in ((symbolic, "msg_chunk_cnt", "comm_size"), (absolute, "comm_size", "msg_chunk_cnt")):
        sends = trace.type == NodeType.COMM_SEND
        assert (trace.column(has)[sends] > 0).all()
        assert not trace.has_column(lacks)
    assert set(symbolic.column("total_chunk_cnt")[symbolic.type == NodeType.COMM_SEND].tolist()) == {8}


def test_ring_sets_load_fast(golden):
    prefix = golden / "astra_sim" / "custom" / "custom_ring_1073741824_64" / "custom_ring_1073741824"
    before = time.process_time()
    traces = et_io.read_prefix(prefix)
    # 20,160 nodes take 0.07 s on a machine of 2024; the margin is for a busy one.
    assert time.process_time() - before < 10
    assert sum(map(len, traces)) == 20160


def test_the_large_set_loads_in_time_and_whole(gpt3):
    before = time.process_time()
    workload = read_workload(gpt3, groups=groups_of(gpt3))
    assert time.process_time() - before < 50
    assert workload.ranks == 64
    assert sum(map(len, workload.traces)) == 250_240
    for rank in (0, 31, 63):
        file = Path(f"{gpt3}.{rank}.et")
        assert et_io.encode_trace(workload.traces[rank]) == file.read_bytes()
        assert os.fspath(file) == workload.traces[rank].place


@pytest.mark.slow
def test_the_large_set_is_sound(gpt3):
    workload = read_workload(gpt3, groups=groups_of(gpt3))
    findings = lint(workload.traces, workload.groups)
    assert [f for f in findings if f.severity == "error"] == []
    total = stats.workload_stats(workload.traces)
    assert total.nodes == 250_240
    sent = sum(volume.count for volume in total.sent.values())
    assert sent == total.by_type["COMM_SEND"] == total.by_type["COMM_RECV"]


def test_units_of_the_large_producer(golden):
    prefix = golden / "chakra_samples" / "stg" / "gpt_tp8" / "w"
    plain = read_workload(prefix).traces[0]
    scaled = read_workload(prefix, size_unit="elements", dtype_bytes=2, macs=True).traces[0]
    for name in ("comm_size", "tensor_size"):
        values = plain.column(name)
        assert np.array_equal(scaled.column(name), np.where(values == MISSING, MISSING, values * 2))
    products = np.array([plain.attribute(row, "op_type") == "M" for row in range(len(plain))])
    assert products.any() and not products.all()
    ops = plain.column("num_ops")
    assert np.array_equal(scaled.column("num_ops"), np.where(products & (ops != MISSING), ops * 2, ops))
    again = et_io.parse_trace(et_io.encode_trace(scaled))
    assert again.digest() == scaled.digest()


def test_every_sample_can_be_shown_and_counted(samples):
    for prefix in samples:
        trace = et_io.read_prefix(prefix)[0]
        assert sum(line.startswith("node ") for line in stats.show(trace)) == len(trace)
        assert stats.trace_stats(trace).depth >= 1
        assert isinstance(trace, ExecutionTrace) and isinstance(lint_trace(trace, 0), list)
