"""What lint finds, rule by rule, and that it never raises."""

from __future__ import annotations

import numpy as np
import pytest

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra import et_io
from astrasim_py.chakra.lint import lint, lint_prefix
from astrasim_py.chakra.lint_rules import Finding, lint_trace, worst_severity
from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.wire import varint


def build(types, deps=None, ctrl=None, **columns) -> ExecutionTrace:
    def csr(lists):
        if lists is None:
            return None
        ptr = np.concatenate(([0], np.cumsum([len(one) for one in lists]))).astype(np.int64)
        return Csr(ptr, np.array([i for one in lists for i in one], dtype=np.uint64))

    return ExecutionTrace.from_columns(
        node_id=range(len(types)), type=types, data_deps=csr(deps), ctrl_deps=csr(ctrl), **columns
    )


def rules(findings: list[Finding], severity: str = "") -> list[str]:
    return sorted({finding.rule for finding in findings if severity in ("", finding.severity)})


SEND = {"comm_size": 8, "comm_dst": 1, "comm_tag": 0}
RECV = {"comm_size": 8, "comm_src": 1, "comm_tag": 0}


@pytest.mark.parametrize(
    ("trace", "severity", "rule", "text"),
    [
        (build([4, 4], [[], [9]]), "error", "dangling-data-dep", "node 1: error: depends by data_deps on 9"),
        (build([4, 4], None, [[7], [8]]), "warning", "dangling-ctrl-dep", "(and 1 more such dependencies)"),
        (build([4, 4], [[1], [0]]), "error", "data-cycle", "2 of 2 nodes are in or behind a cycle of data_deps"),
        (build([4, 4, 4], [[], [0], [1]], [[1], [], []]), "warning", "ctrl-cycle", "0 → 1 → 0"),
        (build([5], comm_dst=1, comm_tag=0), "error", "missing-attribute", "COMM_SEND lacks comm_size"),
        (build([5], comm_size=1, comm_tag=0), "error", "missing-attribute", "COMM_SEND lacks comm_dst"),
        (build([5], comm_size=1, comm_dst=0), "error", "missing-attribute", "COMM_SEND lacks comm_tag"),
        (build([6, 6], comm_size=1, comm_tag=0), "error", "missing-attribute", "lacks comm_src (and 1 more nodes)"),
        (build([5], **SEND | {"comm_dst": -1}), "error", "bad-peer", "negative comm_dst"),
        (build([6], **RECV | {"comm_src": 3}), "warning", "self-message", "itself as comm_src"),
        (build([5], **SEND, comm_src=2), "warning", "foreign-endpoint", "comm_src is not the own rank 3"),
        (build([7], comm_size=1), "error", "missing-attribute", "COMM_COLL lacks comm_type"),
        (build([7], comm_type=0), "error", "missing-attribute", "COMM_COLL lacks comm_size"),
        (build([7], comm_type=10, comm_size=1), "error", "unknown-collective", "not one of 0..9"),
        (build([7], comm_type=2, comm_size=0), "warning", "zero-size", "comm_size 0"),
        (build([2]), "error", "missing-attribute", "memory node lacks tensor_size"),
        (build([5], **SEND, msg_chunk_cnt=1), "warning", "half-symbolic", "only one of"),
        (
            build([5], comm_dst=1, comm_tag=0, msg_chunk_idx=3, msg_chunk_cnt=2, total_chunk_cnt=4),
            "error",
            "bad-chunks",
            "not within 0..total_chunk_cnt",
        ),
        (
            build([5], **SEND, msg_chunk_idx=-1, msg_chunk_cnt=-1, total_chunk_cnt=-1),
            "warning",
            "bad-chunks",
            "not within",
        ),
        (build([5], **SEND, is_cpu_op=1), "warning", "cpu-comm", "is_cpu_op is true on a communication node"),
        (build([0]), "warning", "invalid-node", "INVALID"),
        (build([5], **SEND, comm_type=5), "info", "comm-type-on-message", "has no effect"),
        (build([4], metadata={"schema": "symbolic_tensor_network"}), "warning", "elements-not-bytes", "element"),
        (build([4, 4], [[], []], is_cpu_op=[0, 1]), "warning", "gpu-without-successors", "lost its synchronisation"),
        (build([]), "warning", "empty-trace", "has no nodes"),
    ],
)
def test_each_rule_fires(trace, severity, rule, text):
    findings = lint_trace(trace, 3)
    chosen = [finding for finding in findings if finding.rule == rule]
    assert [finding.severity for finding in chosen] == [severity]
    assert text in str(chosen[0])
    assert rules(findings) == [rule]


@pytest.mark.parametrize(
    "trace",
    [
        build([4, 4], [[], [0]], is_cpu_op=[0, 1]),
        build([7], comm_type=9),
        build([5, 6], comm_size=0, comm_dst=[1, MISSING], comm_src=[MISSING, 1], comm_tag=3),
        build([5], comm_dst=1, comm_tag=0, msg_chunk_idx=3, msg_chunk_cnt=1, total_chunk_cnt=4),
        build([2, 3], tensor_size=0),
    ],
)
def test_good_traces_have_no_findings(trace):
    assert lint_trace(trace, 0) == []


def pair(sends: list[tuple[int, int]], recvs: list[tuple[int, int]]) -> list[ExecutionTrace]:
    """Rank 0 sends (tag, size) messages, rank 1 receives."""
    return [
        build([5] * len(sends), comm_dst=1, comm_tag=[t for t, _ in sends], comm_size=[s for _, s in sends]),
        build([6] * len(recvs), comm_src=0, comm_tag=[t for t, _ in recvs], comm_size=[s for _, s in recvs]),
    ]


@pytest.mark.parametrize(
    ("sends", "recvs", "rule", "text"),
    [
        ([(0, 8)], [(0, 8)], None, ""),
        ([(0, 8), (1, 4), (0, 2)], [(1, 4), (0, 8), (0, 2)], None, ""),
        ([(0, 8)], [(0, 9)], "size-mismatch", "message 0 from rank 0 to rank 1 with tag 0: the send has comm_size 8"),
        ([(0, 8), (0, 2)], [(0, 2), (0, 8)], "size-mismatch", "(and 1 more messages)"),
        (
            [(0, 8), (0, 8)],
            [(0, 8)],
            "unmatched-send",
            "rank 0 sends 2 messages with tag 0 to rank 1, which receives 1",
        ),
        ([(0, 8)], [(0, 8), (0, 8)], "unmatched-receive", "which receives 2"),
        ([(7, 8)], [], "unmatched-send", "node 0"),
    ],
)
def test_messages_pair_in_order_of_source_destination_and_tag(sends, recvs, rule, text):
    errors = [finding for finding in lint(pair(sends, recvs)) if finding.severity == "error"]
    assert rules(errors) == ([] if rule is None else [rule])
    assert all(text in str(finding) for finding in errors)


def test_another_tag_leaves_both_ends_unmatched():
    (finding,) = lint(pair([(1, 8)], [(2, 8)]))
    assert finding.rule == "unmatched-send"
    assert "(and 1 more such triples)" in finding.message


def test_chunk_counts_of_both_ends_are_compared():
    first = build([5], comm_dst=1, comm_tag=0, msg_chunk_idx=0, msg_chunk_cnt=1, total_chunk_cnt=4)
    second = build([6], comm_src=0, comm_tag=0, msg_chunk_idx=1, msg_chunk_cnt=2, total_chunk_cnt=4)
    assert rules(lint([first, second])) == ["size-mismatch"]
    assert rules(lint([first, second.replace(msg_chunk_cnt=1)])) == []
    (finding,) = lint([first, second.replace(comm_size=7)])
    assert "the send has msg_chunk_cnt 1, its receive (node 0) 2" in finding.message


def test_peers_beyond_the_last_rank_are_told():
    (finding,) = lint([build([5], **SEND | {"comm_dst": 4}), build([4])])
    assert (finding.rule, finding.message) == ("bad-peer", "comm_dst 4 is not one of ranks 0..1")


def test_what_concerns_an_unreadable_rank_is_left_out():
    first, _ = pair([(0, 8)], [(0, 8)])
    assert lint([first, None]) == []


def calls(*items: tuple[int, int], group: str | None = None, chain: bool = True) -> ExecutionTrace:
    deps = [[i - 1] if i and chain else [] for i in range(len(items))]
    return build(
        [7] * len(items),
        deps,
        comm_type=[kind for kind, _ in items],
        comm_size=[size for _, size in items],
        pg_name=group,
    )


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ([(0, 8), (2, 4)], [(0, 8), (2, 4)], ""),
        (
            [(0, 8), (2, 4)],
            [(2, 4), (0, 8)],
            "collective 0 of the group of all ranks is all_reduce of 8 bytes on rank 0",
        ),
        (
            [(0, 8), (2, 4)],
            [(0, 8), (2, 5)],
            "collective 1 of the group of all ranks is all_gather of 4 bytes on rank 0",
        ),
        ([(0, 8)], [(0, 8), (2, 5)], "missing on rank 0 but all_gather of 5 bytes on rank 1"),
        ([(0, 8)], [], "missing on rank 1"),
    ],
)
def test_members_of_a_group_call_the_same_collectives(first, second, text):
    findings = lint([calls(*first), calls(*second)])
    findings = [finding for finding in findings if finding.rule != "empty-trace"]
    assert rules(findings) == (["collective-order"] if text else [])
    assert all(text in finding.message for finding in findings)


def test_the_rank_and_node_of_a_diverging_call_are_named():
    (finding,) = lint([calls((0, 8)), calls((0, 8)), calls((0, 9))])
    assert finding.place == "rank 0: node 0"
    assert finding.message.endswith("but all_reduce of 9 bytes on rank 2")


def test_independent_collectives_may_become_ready_in_another_order():
    first = calls((0, 8), (2, 4), chain=False)
    second = build([7, 7, 4], [[2], [], []], comm_type=[0, 2, MISSING], comm_size=[8, 4, MISSING])
    assert lint([first, second]) == []


def test_groups_are_checked_where_they_are_known():
    traces = [calls((0, 8), group="5"), calls((0, 9), group="5"), calls((0, 8), group="6")]
    assert rules(lint(traces)) == ["groups-unknown"]
    assert rules(lint(traces, {"5": (0, 2), "6": (2,)})) == ["collective-order", "not-a-member"]
    assert rules(lint(traces, {"5": (0, 2)})) == ["collective-order", "not-a-member", "unknown-group"]
    assert rules(lint(traces[:2], {"5": (0, 7)})) == ["bad-group", "not-a-member"]
    assert rules(lint([calls((0, 8), group="0"), calls((0, 8), group="")], {"0": (0,)})) == []


def test_hints_of_many_files_become_one_and_errors_stay_apart():
    traces = [build([5], **SEND | {"comm_dst": rank}, comm_type=5) for rank in (1, 1, 1)]
    infos = [finding for finding in lint(traces) if finding.severity == "info"]
    assert [finding.message for finding in infos] == ["comm_type has no effect on a send or receive (and 2 more files)"]
    lacking = [build([5], comm_tag=rank) for rank in range(3)]
    assert sum(finding.rule == "missing-attribute" for finding in lint(lacking)) == 6


def write(folder, name: str, *nodes: pb.Node) -> None:
    bodies = [node.SerializeToString() for node in nodes]
    (folder / name).write_bytes(b"\x00" + b"".join(varint(len(body)) + body for body in bodies))


def test_damaged_files_become_findings_and_the_others_are_checked(tmp_path):
    good = pb.Node(id=1, type=5)
    wrong = pb.Node(id=2, type=7)
    wrong.attr.add(name="comm_size", string_val="8")
    also = pb.Node(id=3, type=9)
    write(tmp_path, "w.0.et", good)
    write(tmp_path, "w.1.et", pb.Node(id=1, type=4), wrong, also)
    write(tmp_path, "w.2.et", pb.Node(id=1), pb.Node(id=1))
    (tmp_path / "w.3.et").write_bytes(b"\x00\x20\x08")
    (tmp_path / "w.4.et").write_bytes(b"{}")
    (tmp_path / "w.5.et").write_bytes(b"\x1f\x8b\x08 no gzip")
    (tmp_path / "w.6.et").mkdir()
    (tmp_path / "w.9.et").write_bytes(b"")
    findings = lint_prefix(tmp_path / "w", tmp_path / "no groups.json")
    by_file = {}
    for finding in findings:
        by_file.setdefault(finding.place.split(str(tmp_path))[-1].split(":")[0], []).append(finding.rule)
    assert by_file == {
        "/no groups.json": ["bad-group"],
        "/w": ["missing-rank"],
        "/w.1.et": ["ill-typed-attribute", "damaged"],
        "/w.2.et": ["duplicate-id"],
        "/w.3.et": ["framing"],
        "/w.4.et": ["framing"],
        "/w.5.et": ["unreadable"],
        "/w.6.et": ["unreadable"],
        "/w.0.et": ["missing-attribute"] * 3,
        "/w.9.et": ["empty-trace"],
    }
    assert worst_severity(findings) == "error"


@pytest.mark.parametrize("prefix", ["nothing", "no/such/folder/w", "nul\0byte"])
def test_a_set_that_is_not_there_is_a_finding(tmp_path, prefix):
    (finding,) = lint_prefix(f"{tmp_path}/{prefix}")
    assert (finding.severity, finding.rule) == ("error", "missing-rank")


def test_unusual_kinds_are_told(tmp_path):
    node = pb.Node(id=1, type=7)
    node.attr.add(name="is_cpu_op", int32_val=0)
    node.attr.add(name="comm_size", uint64_val=8)
    node.attr.add(name="comm_type", int64_val=0)
    node.attr.add(name="comm_group", int32_val=1)
    write(tmp_path, "w.0.et", node)
    messages = {finding.rule: finding.message for finding in lint_prefix(tmp_path / "w")}
    assert messages == {
        "unusual-kind": "is_cpu_op is int32_val on 1 nodes; some readers take bool_val only",
        "legacy-attribute": "1 nodes name their group by comm_group, which some readers ignore; use pg_name",
        "groups-unknown": "no members are known for 1 groups (1): give the groups as JSON to have their collectives "
        "checked",
    }


def test_shared_traces_are_told_once_and_know_no_rank(tmp_path):
    et_io.write_prefix(tmp_path / "w", [build([5], **SEND | {"comm_dst": 0})] * 2)
    findings = lint_prefix(tmp_path / "w")
    assert rules(findings) == ["unmatched-send"]


def test_no_findings_have_no_worst_severity():
    assert worst_severity([]) == ""
    assert worst_severity([Finding("info", "r", "p", "m")]) == "info"
