"""What the host states decides which kernels communicate, whatever their names; what is left over is said."""

import gzip
import json
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import astrasim_py as ap
from astrasim_py.chakra.schema import NodeType
from astrasim_py.cli.main import main
from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.calls import device_calls
from astrasim_py.pytorch.groups import GroupTable
from astrasim_py.pytorch.kineto import read_recording
from astrasim_py.pytorch.recording import RecordedGroup
from astrasim_py.pytorch.workload import Options

NAMES = [
    "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "nccldevkernel_generic_4(x)",
    "NCCL_KERNEL",
    "mscclKernel_Sum_float_Simple_2(x)",
    "void mscclpp::collective::allreduceNvls<at::Half>(x)",
    "mscclpp::executionKernel<int>",
    "oneccl_allreduce_large_kernel",
    "hcom_allReduce_",
    "void vllm::cross_device_reduce_1stage<float, 2>(x)",
    "my_kernel_v2",
]
CALL = {"dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}


def says(kind="allreduce", elements=1048576, **more):
    return {"Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements, **CALL, **more}


class Rank:
    """Events of one rank as they are written down, in microseconds; launches are numbered."""

    def __init__(self):
        self.events, self.numbers = [], count(1)

    def host(self, name, start, end, args=(), thread=1, cat="cpu_op"):
        self.events.append((cat, name, start, end - start, thread, dict(args)))
        return self

    def kernel(self, name, launch, start, end, stream=20, thread=1, args=(), launched=True):
        linked = {"correlation": next(self.numbers)} | ({} if launched else {"correlation": -1})
        if launched:
            self.host("cudaLaunchKernel", launch, launch + 2, linked, thread, "cuda_runtime")
        self.events.append(
            ("kernel", name, start, end - start, stream, {**linked, "stream": stream, "device": 0, **dict(args)})
        )
        return self

    def content(self, rank, world, **header):
        keys = ("cat", "name", "ts", "dur", "tid", "args")
        events = [{"ph": "X", "pid": 1, **dict(zip(keys, event, strict=True))} for event in self.events]
        return {"distributedInfo": {"rank": rank, "world_size": world, **header}, "traceEvents": events}


def converted(folder, *ranks, world=None, options=None, **header):
    for rank, one in enumerate(ranks):
        (folder / f"k_{rank}.json").write_text(json.dumps(one.content(rank, world or len(ranks), **header)))
    warnings = []
    made = ap.convert_pytorch(str(folder / "k_{rank}.json"), options=options or Options(), warnings=warnings)
    assert list(made.warnings) == warnings == made.report["warnings"]
    return made, warnings


def call(made, kind=NodeType.COMM_COLL, rank=0):
    trace = made.workload.traces[rank]
    return trace.column("comm_size")[trace.type == kind].tolist()


def plain(name, args):
    """A computation, a call with a copy beside its kernel, and a computation behind it on the same stream."""
    rank = (
        Rank()
        .kernel("gemm", 5, 20, 60, stream=7)
        .host("c10d::allreduce_", 30, 60)
        .host("record_param_comms", 31, 58, args)
    )
    rank.kernel("void at::native::vectorized_elementwise_kernel<4>(x)", 35, 62, 65, stream=7)
    return rank.kernel(name, 40, 70, 110).kernel("gemm2", 70, 115, 200)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["text", "numbers"])
def test_the_kernel_launched_by_a_call_communicates_whatever_its_name(tmp_path, name, form):
    args = (
        says(elements="1048576", **{"Group size": "2"}) if form == "text" else says(**{"Process Group Ranks": [0, 1]})
    )
    made, warnings = converted(tmp_path, plain(name, args), plain(name, args))
    assert made.report["calls"] == {"all_reduce": 2} and not made.problems and not warnings
    assert call(made) == [4 << 20] and made.workload.groups == {"0": (0, 1)}
    assert "gemm2" in made.workload.traces[0].names and name not in made.workload.traces[0].names[:2]


def test_the_kind_of_the_host_counts_more_than_that_of_the_name(tmp_path):
    name = "ncclDevKernel_SendRecv(x)"
    made, _ = converted(tmp_path, *(plain(name, says("allgather", **{"Out msg nelems": 2097152})) for _ in range(2)))
    assert made.report["calls"] == {"all_gather": 2} and call(made) == [4 << 20]


def test_kernels_of_other_threads_and_without_launches_are_found(tmp_path):
    # By External id, where the launch is on a thread of the library; by order, where names tell; by the only stream.
    for said in (9, 8):
        ids = [Rank().host("c10d::allreduce_", 9, 21, {"External id": 8}) for _ in range(2)]
        for one in ids:
            one.host("record_param_comms", 10, 20, says() | {"External id": 9})
            one.kernel("worker_kernel", 25, 30, 60, thread=5, args={"External id": said})
            one.kernel("gemm", 50, 70, 90, stream=7, args={"External id": 12})
        assert converted(tmp_path, *ids)[0].report["calls"] == {"all_reduce": 2}
    for name in ("oneccl_kernel", "any_name"):
        ranks = []
        for _ in range(2):
            one = Rank().kernel("gemm", 2, 5, 9, stream=7)
            for at in (10, 100):
                one.host("record_param_comms", at, at + 5, says(elements=at))
                one.kernel(name, at, at + 10, at + 40, launched=False)
            ranks.append(one)
        made, warnings = converted(tmp_path, *ranks)
        assert made.report["calls"] == {"all_reduce": 4} and call(made) == [40, 400] and not warnings


def test_old_external_ids_that_are_correlations_mean_nothing(tmp_path):
    one = (
        Rank()
        .host("record_param_comms", 10, 20, says() | {"External id": 1})
        .kernel("gemm", 30, 40, 60, args={"External id": 1})
    )
    _, warnings = converted(tmp_path, one, one)
    assert warnings == [
        "2 ranks, rank 0 the first: 1 host call (1 all_reduce) found no kernel: it is not in the workload"
    ]


def test_what_has_no_counterpart_is_counted(tmp_path):
    one = Rank().host("record_param_comms", 10, 20, says()).host("record_param_comms", 30, 40, says("broadcast"))
    one.kernel("gemm", 50, 60, 90, stream=7).kernel("deep_ep::dispatch<8>", 95, 99, 120)
    one.host("record_param_comms", 130, 140, {}).kernel("who_knows", 135, 140, 160)
    made, warnings = converted(tmp_path, one, one)
    assert not made.report["calls"] and not made.problems and len(warnings) == 3
    assert "2 host calls (1 all_reduce, 1 broadcast) found no kernel" in warnings[0]
    assert "1 host call (record_param_comms) that launched kernels do not say what was called" in warnings[1]
    assert "1 kernel without a host call looks like communication (deep_ep::dispatch<8>)" in warnings[2]
    name = str(tmp_path / "k_{rank}.json")
    assert main(["trace", "convert", "pytorch", str(tmp_path / "a"), "--kineto", name]) == 0
    assert main(["trace", "convert", "pytorch", str(tmp_path / "b"), "--kineto", name, "--strict"]) == 1
    assert (tmp_path / "a.0.et").exists() and not (tmp_path / "b.0.et").exists()
    with pytest.warns(UserWarning) as told:
        ap.convert_pytorch(name)
    assert [str(one.message) for one in told] == warnings


def test_waits_gloo_and_groups_of_one_are_no_calls_without_a_kernel(tmp_path):
    one = Rank().kernel("gemm", 2, 5, 9, stream=7)
    one.host("c10d::barrier", 10, 40).host("record_param_comms", 11, 20, says("barrier"))
    one.kernel("any", 15, 22, 24).host("record_param_comms", 25, 39, says("wait"))
    one.host("record_param_comms", 50, 60, says(**{"Group size": 1, "Process Group Ranks": "[0]"}))
    one.host("c10d::allreduce_", 70, 80, {"Record function id": 4})
    one.host("gloo:all_reduce", 72, 90, {"Record function id": 5}, thread=3, cat="user_annotation")
    made, warnings = converted(tmp_path, one, one)
    assert made.report["calls"] == {"barrier": 2}
    assert [text.partition(": ")[2] for text in warnings] == [
        "1 transfers by threads of the host stay work of these threads"
    ]


def test_calls_issued_together_share_their_kernel(tmp_path):
    for name in ("ncclDevKernel_SendRecv(x)", "ncclDevKernel_Generic_4(x)"):
        ranks = []
        for rank in range(2):
            one = Rank().kernel("gemm", 2, 5, 9, stream=7)
            one.host("record_param_comms", 10, 20, says("send", 100, **{"Dst Rank": 1 - rank}))
            one.host("record_param_comms", 21, 30, says("recv", 100, **{"Src Rank": 1 - rank}))
            ranks.append(one.kernel(name, 31, 40, 60).kernel("gemm", 50, 61, 70))
        made, warnings = converted(tmp_path, *ranks)
        assert made.report["calls"] == {"recv": 2, "send": 2} and not made.problems and not warnings
        assert call(made, NodeType.COMM_SEND) == call(made, NodeType.COMM_RECV) == [400]
        assert made.report["calls_kept_as_computation"] == 0
    both = [Rank() for _ in range(2)]
    for one in both:
        for at, elements in ((10, 64), (20, 32)):
            one.host(
                "record_param_comms", at, at + 8, says("_allgather_base", elements, **{"Out msg nelems": 2 * elements})
            )
        one.kernel(
            "ncclDevKernel_AllGather_RING_LL(x)", 30, 40, 60, args=says("_allgather_base", 32, **{"Out msg nelems": 64})
        )
    made, warnings = converted(tmp_path, *both)
    assert made.report["calls"] == {"all_gather": 4} and call(made) == [256, 128] and not warnings


def test_marks_of_libraries_and_operations_state_calls_where_nothing_else_does(tmp_path):
    shapes = {"Input Dims": [[[256]]], "Input type": ["GenericList[Tensor(float)]"]}
    for name, args in (
        ("c10d::allreduce_", {"Input Dims": [[[256]]], "Input type": ["Tensor(float)"]}),
        ("xccl:all_reduce", shapes),
    ):
        one = Rank().kernel("gemm", 2, 5, 9, stream=7).host(name, 10, 20, args).kernel("any", 15, 30, 60)
        made, _ = converted(tmp_path, one, one, options=Options(size_default=1024))
        assert made.report["calls"] == {"all_reduce": 2} and call(made) == [1024]


def test_marks_that_outlive_their_calls_say_nothing_of_later_ones(tmp_path):
    one = Rank().host("record_param_comms", 10, 20, says(elements=64)).host("nccl:all_reduce", 12, 900)
    one.kernel("ncclDevKernel_Generic", 14, 30, 40).host("record_param_comms", 50, 60, says("broadcast", 32))
    one.kernel("ncclDevKernel_Generic", 70, 80, 90).kernel("gemm", 92, 95, 99)
    made, warnings = converted(tmp_path, one, one)
    assert made.report["calls"] == {"all_reduce": 2, "broadcast": 2} and call(made) == [256, 128] and not warnings


def test_a_device_that_was_not_recorded_is_an_error(tmp_path):
    one = Rank().host("c10d::allreduce_", 10, 20).host("record_param_comms", 11, 19, says())
    with pytest.raises(TraceError, match=r"k_0.json: has 2 calls of c10d, no work of a device.*ProfilerActivity.CUDA"):
        converted(tmp_path, one, one)


def test_several_groups_and_cut_lists(tmp_path):
    ranks = []
    for rank in range(4):
        one = Rank().kernel("gemm", 2, 5, 9, stream=7)
        own = [rank - rank % 2, rank - rank % 2 + 1]
        one.host("record_param_comms", 10, 20, says(**{"Process Group Ranks": str(own)})).kernel("a", 12, 30, 40)
        group = {"Process Group Name": "3", "Group size": 4, "Process Group Ranks": "[0, 1, ...]"}
        ranks.append(one.host("record_param_comms", 22, 28, says(**group)).kernel("a", 24, 41, 50))
    made, warnings = converted(tmp_path, *ranks)  # the two groups of two ranks have the same name
    assert (
        sorted(made.workload.groups.values()) == [(0, 1), (0, 1, 2, 3), (2, 3)] and not warnings and not made.problems
    )


def test_groups_of_one_name_are_told_apart_by_size_and_ranks():
    table = GroupTable(
        8,
        [
            RecordedGroup("tp", "", 2, (0, 1)),
            RecordedGroup("tp", "", 2, (2, 3)),
            RecordedGroup("tp", "", 4, (0, 2, 4, 6)),
        ],
    )
    assert table.find({"group": "tp", "size": 4}).members == (0, 2, 4, 6)
    assert table.find({"group": "tp", "size": 2, "ranks": "[2, ...]"}).members == (2, 3)
    assert table.find({"group": "tp", "size": 2}).members is None
    assert table.find({"group": "tp", "size": 2, "ranks": "[2, 3]"}).members == (2, 3)
    assert GroupTable(64, []).find({"group": "x", "size": 32, "ranks": "[0, 2, ...]"}).members == tuple(range(0, 64, 2))
    assert GroupTable(64, []).find({"group": "x", "size": 32, "ranks": "[0, 2, ..., 9]"}).members is None


PLACED = st.tuples(
    st.sampled_from(["mscclpp::x", "any", "at::native::fill", "oneccl_all_gather"]),
    st.sampled_from(["inside", "after", "other thread", "none", "absent"]),
    st.sampled_from(["allreduce", "send", "_allgather_base"]),
)


@given(st.lists(PLACED, max_size=8))
def test_every_stated_call_is_a_call_or_counted(tmp_path_factory, placed):
    one = Rank().kernel("gemm", 1, 2, 3, stream=7)
    for number, (name, where, kind) in enumerate(placed):
        at = 10 + 100 * number
        one.host("record_param_comms", at, at + 20, says(kind, **{"Dst Rank": 1}))
        if where != "absent":
            launch = at + (30 if where == "after" else 5)
            one.kernel(
                name, launch, at + 40, at + 60, thread=2 if where == "other thread" else 1, launched=where != "none"
            )
    path = tmp_path_factory.mktemp("placed") / "k.json"
    path.write_text(json.dumps(one.content(0, 2)))
    made = device_calls(read_recording(str(path)), GroupTable(2, ()), lambda row: None)
    found = [int(text.split()[0]) for text in made.notes if "found no kernel" in text]
    assert len(made.calls) + sum(found) == len(placed) and not made.unknown
    sure = sum(where == "inside" and name != "at::native::fill" for name, where, _ in placed)
    assert len(made.calls) >= sure


def test_a_run_prints_and_refuses_what_is_left_out(tmp_path, capsys):
    one = plain("any", says()).host("record_param_comms", 150, 160, says("broadcast"))
    converted(tmp_path, one, one)
    topology = "topologies: {r: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}}"
    text = f"name: s\n{topology}\nworkload: {{pytorch: {{kineto: 'k_{{rank}}.json'}}}}\n"
    (tmp_path / "s.yaml").write_text(text, "utf-8")
    argv = ["run", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "results")]
    assert main(argv) == 0
    assert "k_{rank}.json: 2 ranks, rank 0 the first: 1 host call (1 broadcast) found no kernel" in "".join(
        capsys.readouterr()
    )
    assert main([*argv, "--fresh", "--strict"]) != 0


def test_the_reported_recordings(golden):
    folder = golden / "reports/07-communication-as-computation"
    for kind in ("dev", "rccl_hostmeta"):
        made = ap.convert_pytorch(str(folder / f"{kind}_{{rank}}.json"), warnings=[])
        assert made.report["calls"] == {"all_reduce": 2} and call(made) == [4 << 20] and not made.warnings
    made = ap.convert_pytorch(str(folder / "rccl_nometa_{rank}.json"), warnings=[])
    assert not made.report["calls"] and len(made.problems) == len(made.warnings) == 1


@pytest.mark.parametrize(
    "file", ["hta_nccl_data/nccl_data", "hta_df_index/df_index_resolver", "tracelens/b200_eager_rank0of8"]
)
@pytest.mark.slow
def test_public_recordings_with_other_names_of_kernels_have_the_same_calls(golden, tmp_path, file):
    path = golden / f"pytorch/{file}.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    kept = ("device", "stream", "correlation", "External id", "external id")
    for event in content["traceEvents"]:
        if str(event.get("cat")).lower() == "kernel" and event["name"].startswith("nccl"):
            event["name"], event["args"] = (
                "kernel_17",
                {key: event["args"][key] for key in kept if key in event["args"]},
            )
    (tmp_path / "renamed.json").write_text(json.dumps(content))
    options = Options(size_default=1 << 20)
    one, other = (
        ap.convert_pytorch(str(name), options=options, warnings=[]) for name in (path, tmp_path / "renamed.json")
    )
    assert one.report["calls"] == other.report["calls"] and one.warnings == other.warnings
    assert call(one) == call(other)
