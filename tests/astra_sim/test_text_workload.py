"""Text workloads of ASTRA-sim 1.0: every kind, its groups, what waits for what, and Chakra's own conversion."""

import os
from pathlib import Path

import pytest

from astrasim_py.astra_sim.text_file import KINDS
from astrasim_py.astra_sim.text_workload import text_workload
from astrasim_py.chakra.et_io import read_prefix
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.stats import workload_stats
from astrasim_py.cli.main import main
from astrasim_py.core.errors import TraceError
from astrasim_py.core.notes import Notes

GOLDEN = os.environ.get("ASTRASIM_GOLDEN")
#: Compute times 100, 20 and 3 in layer a, 400, 80 and 7 in layer b; no two sums are equal.
LAYERS = """2
a -1 100 {fwd} 800 20 {ig} 800 3 {wg} 1600 0
b -1 400 {fwd} 800 80 {ig} 800 7 {wg} 1600 0
"""


def write(folder: Path, head: str, *, fwd="ALLREDUCE", ig="ALLREDUCE", wg="ALLREDUCE", end="") -> str:
    text = LAYERS.format(fwd=fwd, ig=ig, wg=wg)
    lines = [text.splitlines()[0], *(line + end for line in text.splitlines()[1:])]
    path = folder / "workload.txt"
    path.write_text("\n".join([head, *lines]) + "\n")
    return str(path)


def collectives(workload, rank=0) -> list[tuple[str, tuple[int, ...]]]:
    """Name and members of each collective of a rank, in the order of the trace."""
    trace = workload.trace(rank)
    codes, names = trace.group_of()
    rows = [row for row in range(len(trace)) if trace.type[row] == NodeType.COMM_COLL]
    return [(trace.node(row).name, workload.members(names[codes[row]] if codes[row] >= 0 else None)) for row in rows]


HEADS = {
    "HYBRID_TRANSFORMER": "HYBRID_TRANSFORMER model_parallel_NPU_group: 2",
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoints: 1 0 "
    "checkpoint_initiates: 1 1",
    "HYBRID_DLRM": "HYBRID_DLRM DLRM_LAST_BOTTOM_LAYER: 0",
    "HYBRID_DLRM_ENHANCED": "HYBRID_DLRM_ENHANCED 0",
}
INNER, OUTER, ALL = (0, 1), (0, 2, 4, 6), tuple(range(8))
#: By kind: compute time of an iteration, and members of forward, input gradient and weight gradient collectives.
EXPECTED = {
    "DATA": (590, [], [], [ALL] * 2),
    "MODEL": (610, [ALL] * 2, [ALL], []),
    "HYBRID_DATA_MODEL": (610, [INNER] * 2, [INNER], [OUTER] * 2),
    "HYBRID_MODEL_DATA": (610, [OUTER] * 2, [OUTER], [INNER] * 2),
    "HYBRID_TRANSFORMER": (610, [INNER] * 2, [INNER] * 2, [OUTER] * 2),
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": (710, [INNER] * 3, [INNER] * 2, [OUTER] * 2),
    "HYBRID_DLRM": (590, [ALL], [ALL], [ALL] * 2),
    "HYBRID_DLRM_ENHANCED": (590, [ALL], [ALL], [ALL] * 2),
    "HYBRID_CUSTOMIZED": (610, [OUTER] * 2, [OUTER], [INNER] * 2),
    "MICRO": (0, [], [], [ALL] * 2),
    "DISTRIBUTED_INFERENCE": (500, [ALL] * 2, [], []),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_its_computations_groups_and_collectives(kind, tmp_path):
    recommendation = "DLRM" in kind
    path = write(
        tmp_path,
        HEADS.get(kind, kind),
        fwd="ALLTOALL" if recommendation else "ALLREDUCE",
        end=" HYBRID_MODEL_DATA" if kind == "HYBRID_CUSTOMIZED" else "",
    )
    time, *groups = EXPECTED[kind]
    made, left_out = text_workload(path, (2, 4))
    trace = made.trace(0)
    assert int(trace.column("duration_ps")[trace.type == NodeType.COMP].sum()) == time * 1000
    for phase, members in zip(("forward", "input_gradient", "weight_gradient"), groups, strict=True):
        found = [own for name, own in collectives(made) if f".{phase}." in name]
        assert found == members
        assert (left_out.get(phase, 0) > 0) == (len(found) < 2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_lints_clean_and_runs_on_both_engines(kind, tmp_path, capsys):
    end = " DATA" if kind == "HYBRID_CUSTOMIZED" else ""
    path = write(tmp_path, HEADS.get(kind, kind), fwd="ALLTOALL", end=end)
    out = str(tmp_path / "made")
    command = ["trace", "convert", "astra_sim_text", out, "--input", path, "--dims", "2x4", "--passes", "2"]
    assert main(command) == 0
    assert main(["trace", "lint", out]) == 0
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: s\ntopologies:\n  t: {shape: ring, npus: 8, bandwidth: 50 GB/s, latency: 1us}\n"
        "workload: {trace: made, groups: made.groups.json}\n"
    )
    assert main(["run", str(scenario), "--engine", "both", "--out", str(tmp_path / "results")]) == 0
    capsys.readouterr()


def test_updates_follow_collectives_and_hold_no_computation(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text("DATA\n1\na -1 10 NONE 0 10 NONE 0 10 ALLREDUCE 4096 250\n")
    trace = text_workload(str(path), (4,), passes=2, cycle=1000)[0].trace(0)
    rows = {trace.node(row).name: row for row in range(len(trace))}
    update, again = rows["a.weight_gradient.update pass 0"], rows["a.forward pass 1"]
    assert (trace.column("duration_ps")[update], trace.column("slot_kind")[update]) == (250_000, 0)
    assert update in trace.node(again).data_deps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no layers"),
        ("DATTA\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "no kind of parallelism"),
        ("DATA\n2\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "says 2 layers, and 1 follow"),
        ("DATA\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0\n", "has 11 words"),
        ("DATA\n1\na -1 1 ALLSUM 0 1 NONE 0 1 NONE 0 1\n", '"ALLSUM" is no collective'),
        ("DATA\n1\na -1 -1 NONE 0 1 NONE 0 1 NONE 0 1\n", '"-1" is not a compute time'),
        ("HYBRID_TRANSFORMER\n1\na -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 1\n", "txt:1: gives no model_parallel_NPU_group"),
        (
            "HYBRID_TRANSFORMER model_parallel_NPU_group: 3\n1\na -1 1 ALLREDUCE 8 1 NONE 0 1 NONE 0 1\n",
            "model_parallel_NPU_group 3 does not divide 8 NPUs",
        ),
        (
            "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 model_parallel_NPU_group: 4\n"
            "1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n",
            "gives model_parallel_NPU_group twice",
        ),
        ("HYBRID_TRANSFORMER checkpoint: 1 0\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", '"checkpoint" is no name'),
        ("HYBRID_TRANSFORMER checkpoints: 2 0\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "says 2, and 1 follow"),
        ("HYBRID_DLRM 1\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "names layer 1 of 1"),
        ("HYBRID_DLRM DLRM_LAST_BOTTOM_LAYER:\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "has 0 values"),
        ("HYBRID_CUSTOMIZED\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "txt:3: has 12 words"),
        (
            "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoint_initiates: 1 0\n"
            "1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n",
            "has no checkpoint before it",
        ),
        ("HYBRID_TRANSFORMER pp: 2\n1\na -1 1 NONE 0 1 NONE 0 1 NONE 0 1\n", "no part of ASTRA-sim 1.0"),
    ],
)
def test_bad_files_are_refused_with_their_line(text, said, tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        text_workload(str(path), (8,))


@pytest.mark.skipif(not GOLDEN, reason="needs ASTRASIM_GOLDEN")
@pytest.mark.parametrize(("name", "passes"), [("MLP_HybridParallel_Data_Model", 2), ("microAllReduce", 2)])
def test_like_chakra_equals_what_chakras_converter_wrote(name, passes, tmp_path):
    theirs = read_prefix(f"{GOLDEN}/chakra_samples/text/{name}")
    [text] = [attribute.value for attribute in theirs[0].metadata if attribute.name == "input_file"]
    (tmp_path / "workload.txt").write_text(text)
    made, _ = text_workload(str(tmp_path / "workload.txt"), (8,), passes=passes, cycle=10**6, like_chakra=True)
    ours, other = workload_stats([made.trace(rank) for rank in range(8)]), workload_stats(theirs)
    for what in (
        "nodes",
        "by_type",
        "by_collective",
        "by_group",
        "compute_micros",
        "critical_micros",
        "depth",
        "width",
    ):
        assert getattr(ours, what) == getattr(other, what), what


SIMAI = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 4 ga: 1 all_gpus: 8 "
SIMAI += "checkpoints: 0 checkpoint_initiates: 0"
#: Of 8 NPUs: two neighbours; every other one; of these, two neighbours that share experts; and those with the same.
TENSOR, DATA, EXPERTS, SAME = (2, 3), (0, 2, 4, 6), (4, 6), (2, 6)


@pytest.mark.parametrize("end", ["", "_EP", "_DP_EP"])
@pytest.mark.parametrize("kind", ["ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "ALLREDUCEALLTOALL"])
def test_simai_states_whole_buffers_and_names_groups_of_experts(kind, end, tmp_path):
    """Groups as in SimAI's MockNcclGroup.cc; sizes as its authors say (aliyun/SimAI#74)."""
    path = write(tmp_path, SIMAI, fwd=kind + end, ig=kind + end, wg=kind + end)
    made, left_out = text_workload(path, (8,), notes=Notes())
    assert not left_out
    found = {}
    for rank in (2, 6):
        trace = made.trace(rank)
        rows = trace.type == NodeType.COMM_COLL
        names = [trace.names[row].split(".")[1] for row in rows.nonzero()[0].tolist()]
        sizes = trace.column("coll_size")[rows].tolist()
        assert sizes == [1600 if name == "weight_gradient" else 800 for name in names]
        found[rank] = {name: members for name, (_, members) in zip(names, collectives(made, rank), strict=True)}
    groups = {"": (TENSOR, DATA), "_EP": ((0, 2), (0, 2)), "_DP_EP": (SAME, SAME)}[end]
    assert found[2] == {"forward": groups[0], "input_gradient": groups[0], "weight_gradient": groups[1]}
    assert found[6]["forward"] == {"": (6, 7), "_EP": EXPERTS, "_DP_EP": SAME}[end]


def test_a_mark_of_the_byte_order_is_no_part_of_the_kind(tmp_path):
    path = tmp_path / "workload.txt"
    path.write_text("DATA\n1\na -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 8 1\n", "utf-8-sig")
    assert text_workload(str(path), (2,), notes=Notes())[0].ranks == 2


def test_an_all_gather_of_simai_is_as_large_as_its_reduce_scatter_and_of_astra_sim_a_shard(tmp_path):
    """Whatever name of SimAI is there."""
    heads = {f"HYBRID_TRANSFORMER model_parallel_NPU_group: 8 {name}": 1 for name in (
        "vpp: 8", "ga: 4", "all_gpus: 8", "ep: 1", "pp: 1", "pp_comm 4096", "pp_comm: 4096.0"
    )}  # fmt: skip
    for head, shards in (heads | {"HYBRID_TRANSFORMER model_parallel_NPU_group: 8": 8}).items():
        path = write(tmp_path, head, fwd="ALLGATHER", ig="REDUCESCATTER", wg="NONE")
        trace = text_workload(path, (8,), notes=Notes())[0].trace(0)
        sizes = [size for size in trace.column("coll_size").tolist() if size > 0]
        assert sizes == [800 * shards] * 2 + [800] * 2, head


def test_what_a_file_says_and_a_workload_does_not_use_is_told(tmp_path, capsys):
    lines = ["# written by hand", SIMAI.replace("all_gpus: 8", "all_gpus: 16"), "3",
             "a 4 100 ALLREDUCE 800 20 NONE 64 3 NONE 0 100", "# a comment",
             "b -1 1 REDUCESCATTER 0 1 NONE 0 1 NONE 0 7",
             "c -1 1 NONE 0 1 NONE 0 1 ALLGATHER_DP_EP 96 0"]  # fmt: skip
    (tmp_path / "w.txt").write_text("\n".join(lines) + "\n")
    command = ["trace", "convert", "astra_sim_text", str(tmp_path / "out"), "--input", str(tmp_path / "w.txt")]
    assert main([*command, "--dims", "8"]) == 1
    said = capsys.readouterr()
    assert [line for line in said.out.splitlines() if line.startswith("not used: ")] == [
        "not used: comments, 2 lines",
        "not used: the second word of 1 layer",
        "not used: bytes without a collective, 1 time",
        "not used: collectives of 0 bytes, 1 time",
        "not used: vpp, ga of the first line",
        "not used: the update time of 1 layer without a collective",
    ]
    assert (
        "w.txt:2: all_gpus is 16, and the dimensions have 8 NPUs" in said.err and not (tmp_path / "out.0.et").exists()
    )
    assert main([*command, "--dims", "16"]) == 0 and (tmp_path / "out.15.et").exists()
    # Whatever the kind, the number of GPUs is compared.
    head = "DATA vpp: 8 all_gpus: 8"
    (tmp_path / "w.txt").write_text(f"{head}\n1\nc -1 1 NONE 0 1 NONE 0 1 ALLREDUCE 96 0\n")
    capsys.readouterr()
    command[3] = str(tmp_path / "other")
    assert main([*command, "--dims", "8"]) == 0 and "not used: vpp of the first line\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("head", "kind", "said"),
    [
        (SIMAI.replace("ep: 2 ", "ep: 3 "), "ALLTOALL_EP", "ep 3 does not divide 4 groups of model_parallel_NPU_group"),
        (SIMAI.replace("ep: 2 ", ""), "ALLTOALL_EP", "workload.txt:3: names a group of experts, and .* gives no ep"),
        ("MICRO", "ALLTOALL_DP_EP", "workload.txt:3: names a group of experts, and .* gives no ep"),
        (
            SIMAI.replace("pp: 1", "pp: 4"),
            "ALLREDUCE",
            "pp 4 is no part of ASTRA-sim 1.0: the layers are those of one stage",
        ),
        (SIMAI, "ALLTOALL_PP", '"ALLTOALL_PP" is no collective; write one of .* or with _EP or _DP_EP one of ALL'),
        (SIMAI, "BROADCAST_EP", '"BROADCAST_EP" is no collective'),
    ],
)
def test_groups_of_simai_that_cannot_be_made_are_refused(head, kind, said, tmp_path):
    with pytest.raises(TraceError, match=said):
        text_workload(write(tmp_path, head, fwd=kind), (8,), notes=Notes())
