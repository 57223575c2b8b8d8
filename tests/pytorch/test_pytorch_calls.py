"""What calls are, whose they are, and which meet across ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.errors import TraceError, UsageError
from astrasim_py.pytorch.calls import Call, call_of, kernel_rules
from astrasim_py.pytorch.facts import (
    facts_of_args,
    facts_of_host,
    facts_of_node,
    kernel_kind,
    kind_of,
    merged,
    width_of,
)
from astrasim_py.pytorch.groups import Communicator, GroupTable, numbered
from astrasim_py.pytorch.host_trace import Arguments
from astrasim_py.pytorch.ranks import RankCalls, meet
from astrasim_py.pytorch.recording import RecordedGroup

WORLD = Communicator("0", (0, 1, 2, 3))
TABLE = GroupTable(8, [RecordedGroup("0", "default_pg", 8, ()), RecordedGroup("tp", "", 2, (2, 3))])


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        (
            "all_reduce",
            "allreduce ALLREDUCE nccl:all_reduce allreduce_ allreduce_coalesced_ all_reduce _allreduce_sparse",
        ),
        ("all_gather", "_allgather_base_ allgather_into_tensor_coalesced_ all_gather_into_tensor _all_gather_base"),
        ("reduce_scatter", "_reduce_scatter_base_ reduce_scatter_tensor_coalesced_ ReduceScatter"),
        ("all_to_all", "alltoall_base_ all_to_allv alltoall_ all_to_all_single"),
        ("broadcast", "broadcast_ _broadcast_oop Broadcast"),
        ("reduce", "reduce_ _reduce_oop"),
        ("gather", "gather_"),
        ("scatter", "scatter_"),
        ("barrier", "barrier monitored_barrier_"),
        ("send", "send isend"),
        ("recv", "recv_ recv_any_source_ irecv"),
        ("", "wait init coalesced"),
    ],
)
def test_kinds_have_many_spellings(kind, spellings):
    assert {kind_of(name) for name in spellings.split()} == {kind}


def test_a_kernel_name_gives_the_kind_only_where_it_does():
    assert kernel_kind("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)") == "all_reduce"
    assert (
        kernel_kind("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
        == "reduce_scatter"
    )
    assert kernel_kind("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)") == "all_to_all"
    assert kernel_kind("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)") == ""
    assert kernel_kind("nccldevkernel_allreduce_sum_f32_ring_ll(x)") == "all_reduce"
    for generic in ("void rcclGenericKernel<1, false>(x)", "mscclKernel_Sum_half_Simple_0(x)", "NCCL_KERNEL"):
        assert kernel_kind(generic) == ""
    for other in ("ampere_sgemm_128x64_nn", "void mscclpp::collective::allreduceNvls<half>(x)", "ncclInitStuff"):
        assert kernel_kind(other) is None


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (1, "Byte Bool Float8_e4m3fn c10::Float8_e5m2 unsigned_char"),
        (2, "Half BFloat16 c10::BFloat16 Short fp16 bf16"),
        (4, "Float Int float int"),
        (8, "Double Long long_int"),
        (0, "Object"),
    ],
)
def test_widths_of_element_types(width, names):
    assert {width_of(name.replace("_", " ")) for name in names.split()} == {width}


def test_arguments_of_a_kernel_are_taken_before_its_name():
    args = {
        "Collective name": "broadcast",
        "dtype": "Float",
        "In msg nelems": 53120,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
        "Group size": 2,
    }
    call = call_of(5, 0, merged([facts_of_args(args), {"kind": "all_reduce"}]), GroupTable(2, []))
    assert (call.kind, call.nbytes, call.group) == ("broadcast", 212480, Communicator("0", (0, 1)))


def test_messages_go_to_global_ranks():
    args = {"Collective name": "send", "dtype": "Half", "In msg nelems": 8, "Dst Rank": 3, "Rank": 1, "Seq": 4}
    call = call_of(0, 0, facts_of_args(args | {"Process Group Name": "tp"}), TABLE)
    assert (call.kind, call.peer, call.seq, call.nbytes) == ("send", 3, 4, 16)
    # An operation of c10d names the place in the group.
    op = {"Concrete Inputs": ["", "", "1", "7"], "Input Dims": [[[16, 2]], [], [], []], "Input type": ["TensorList"]}
    facts = merged([facts_of_host("c10d::recv_", op), {"group": "tp"}, {"width": 4}])
    call = call_of(0, 0, facts, TABLE)
    assert (call.kind, call.peer, call.tag, call.nbytes) == ("recv", 3, 7, 128)


def test_a_host_trace_knows_splits_pointers_and_lists_of_tensors():
    tensor = [1, 2, 0, 30, 4, "cuda:0"]
    inputs = [tensor, 150, 94594108284448, 0, "all_to_allv", [10, 20], [5, 5]]
    facts = facts_of_node("record_param_comms", Arguments(inputs, [], [], [], {}))
    assert facts["kind"] == "all_to_all" and facts["pointer"] == 94594108284448 and facts["in_bytes"] == 120
    assert facts["in_splits"] == (10, 20) and facts["out_splits"] == (5, 5)
    waiting = Arguments([33, ["", ""], 1, "wait", [], [], -1, -1, 1], [], [], [], {"collective_name": "wait"})
    assert "kind" not in facts_of_node("record_param_comms", waiting)
    listed = facts_of_node("c10d::allreduce_", Arguments([[tensor, tensor], "<Object>"], [], [], [], {}))
    assert listed["in_bytes"] == 240
    typed = {"Input Dims": [[[64], [32]], [[32], [16]]], "Input type": ["GenericList[Tensor(float)]"] * 2}
    assert facts_of_host("c10d::allgather_into_tensor_coalesced_", typed)["in_bytes"] == 192
    named = facts_of_node("_c10d_functional::all_reduce", Arguments([tensor, "sum", "3"], [], [], [], {}))
    assert named == {"kind": "all_reduce", "group": "3"}


def test_lists_of_ranks_that_are_cut_are_completed():
    cut = {"group": "9", "ranks": "[0, 2, 4, ..., 14]", "size": 8}
    assert TABLE.find(cut | {"start": 0, "stride": 2}).members == tuple(range(0, 16, 2))
    assert TABLE.find(cut).members == tuple(range(0, 16, 2))
    assert TABLE.find(cut | {"size": 9}).members is None  # the end does not fit
    assert TABLE.find({"group": "9", "ranks": "[0, 1, 5, ..., 14]", "size": 8}).members is None
    assert TABLE.find({"group": "tp", "ranks": "[2, ..., 3]"}).members == (2, 3)  # as declared
    assert TABLE.find({"group": "x", "ranks": "[0, ..., 9]", "size": 10**12, "start": 0, "stride": 1}).members is None
    assert TABLE.find({"group": "x", "ranks": "[-1, 0]", "size": 2}).members is None


def test_group_names_become_decimal():
    groups = [("3", (0, 1)), ("mesh_dp", (0, 2)), ("0", (0, 1, 2, 3)), ("7", (0, 1, 2, 3)), ("3", (2, 3))]
    names = numbered(groups, 4)
    assert names[groups[0]] == "3" and names[groups[2]] == "0" and names[groups[3]] == "7"
    assert len(set(names.values())) == 5 and all(name.isdecimal() for name in names.values())


def calls(*kinds_and_bytes, group=WORLD, **others):
    return [Call(i, i, kind, size, size, group, **others) for i, (kind, size) in enumerate(kinds_and_bytes)]


def rank(number, own, spans, **others):
    return RankCalls(number, own, [start for start, _ in spans], [end for _, end in spans], **others)


def test_moving_is_the_least_duration_and_clocks_are_aligned():
    pair = Communicator("", (0, 1))
    both = [calls(("all_reduce", 8), ("barrier", 0), group=pair) for _ in range(2)]
    # Rank 1's clock is 1 ms late; it comes 70 us later, and 20 us earlier.
    first = rank(0, both[0], [(0, 100_000), (200_000, 230_000)])
    second = rank(1, both[1], [(1_070_000, 1_100_000), (1_180_000, 1_230_000)])
    met = meet([first, second], 2)
    assert [instance.moving_ns for instance in met.instances] == [30_000, 30_000]
    assert met.shifts == {0: 0, 1: -1_000_000} and not met.problems


def test_messages_move_from_the_later_post_to_the_end():
    send, recv = (Call(0, 0, kind, 16, 16, WORLD, peer=peer) for kind, peer in (("send", 1), ("recv", 0)))
    met = meet([rank(0, [send], [(0, 90_000)]), rank(1, [recv], [(60_000, 95_000)])], 4)
    (message,) = met.instances
    assert (message.kind, message.moving_ns, message.lacks, message.tag) == ("message", 35_000, (), 0)


def test_the_first_difference_between_members_is_named():
    mine = calls(("all_reduce", 8), ("all_gather", 8), ("broadcast", 8))
    other = calls(("all_reduce", 8), ("reduce_scatter", 8), ("all_reduce", 8))
    spans = [(0, 9), (10, 19), (20, 29)]
    everyone = [rank(r, other if r == 2 else mine, spans) for r in range(4)]
    (problem,) = meet(everyone, 4).problems
    assert problem == "call 1 of group 0 is all_gather of 8 bytes on rank 0 but reduce_scatter of 8 bytes on rank 2"


def test_instances_without_all_members_are_listed():
    spans = [(0, 9), (10, 19)]
    full, short = calls(("all_reduce", 8), ("all_reduce", 8)), calls(("all_reduce", 8))
    met = meet([rank(0, full, spans), rank(1, short, spans[:1])], 4)
    assert [instance.lacks for instance in met.instances] == [(2, 3), (1, 2, 3)]
    assert met.problems == ["1 of 2 calls of group 0 lack members that were recorded: ranks 1"]


def test_recorded_numbers_of_calls_are_used():
    late = [Call(0, 0, "all_reduce", 8, 8, Communicator("0", (0, 1)), seq=6)]
    both = [Call(i, i, "all_reduce", 8, 8, Communicator("0", (0, 1)), seq=5 + i) for i in range(2)]
    met = meet([rank(0, both, [(0, 9), (10, 19)]), rank(1, late, [(10, 19)])], 2)
    assert [instance.lacks for instance in met.instances] == [(1,), ()]


def test_a_rule_for_kernels_must_be_complete():
    ((rule, kind, group),) = kernel_rules(["deep_ep::dispatch<.=1>=all_to_all:0"])
    assert (rule.pattern, kind, group) == ("deep_ep::dispatch<.=1>", "all_to_all", "0")
    for text in ("deep_ep", "deep_ep=shuffle:0", "(=all_reduce:0", "x=send:0"):
        with pytest.raises(UsageError):
            kernel_rules([text])


KEYS = [
    "Collective name",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
    "In split size",
    "Out split size",
    "Process Group Name",
    "Process Group Ranks",
    "Group size",
    "Global rank start",
    "Global rank stride",
    "Src Rank",
    "Dst Rank",
    "Seq",
    "Concrete Inputs",
    "Input Dims",
    "Input type",
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from(
        ["", "allreduce", "Float", "[0, 1, ..., 7]", "[1, 1e9]", "alltoall", "nan", "[" * 50, "send", "-1"]
    ),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)
NAMES = ["record_param_comms", "c10d::alltoall_base_", "c10d::alltoall_", "c10d::send", "c10d::recv_any_source_"]
NAMES += ["c10d::broadcast_", "_c10d_functional::all_reduce", "gloo:all_reduce", "nccl:send", "aten::add"]


@given(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_no_arguments_of_a_range_can_break_the_reading(name, args):
    call = call_of(0, 0, merged([facts_of_args(args), facts_of_host(name, args)]), TABLE)
    if call is not None:
        assert call.missing() is not None
        assert call.nbytes is None or 0 <= call.nbytes < 2**63
        meet([RankCalls(0, [call], [0], [5]), RankCalls(1, [call], [0], [5])], 8)


@given(st.sampled_from(NAMES), st.lists(VALUES, max_size=8), st.lists(VALUES, max_size=8), VALUES)
def test_no_node_of_a_host_trace_can_break_the_reading(name, inputs, shapes, attribute):
    attributes = {"collective_name": attribute, "in_msg_nelems": attribute, "pg_size": attribute, "dtype": "Float"}
    call_of(0, 0, merged([facts_of_node(name, Arguments(inputs, shapes, shapes, [], attributes))]), TABLE)


def test_equal_groups_are_held_once_and_their_ranks_bounded():
    everyone = [RecordedGroup(str(i), "", 100_000, ()) for i in range(200)]
    declared = GroupTable(100_000, everyone).declared
    assert len(declared) == 200
    assert len({id(members) for members in declared.values()}) == 1
    table = GroupTable(None, [])
    with pytest.raises(TraceError, match="groups of more than 4194304 ranks in all"):
        for size in range(2**20 - 9, 2**20):
            table.find({"group": str(size), "size": size, "start": 0, "stride": 1})
