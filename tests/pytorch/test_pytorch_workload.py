"""Workloads made of recordings: clean, the same on both engines, and as long as what was recorded."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

import astrasim_py as ap
from astrasim_py.builders.registry import build, default_algorithm
from astrasim_py.chakra.groups import groups_from_metadata
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import NodeType
from astrasim_py.cli.main import main
from astrasim_py.core.errors import TraceError
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.pytorch.calls import device_calls
from astrasim_py.pytorch.convert import convert_pytorch
from astrasim_py.pytorch.cpu_backends import host_calls, host_graph, transfers
from astrasim_py.pytorch.graph import build_graph
from astrasim_py.pytorch.groups import GroupTable
from astrasim_py.pytorch.host_trace import read_host_trace
from astrasim_py.pytorch.join import join
from astrasim_py.pytorch.kineto import read_recording
from astrasim_py.pytorch.sources import sources
from astrasim_py.pytorch.together import replay_together
from astrasim_py.pytorch.workload import Options, RankGraph, build_workload, timed
from astrasim_py.system.problem import Job, Problem

HERE = Path(__file__).parent / "recorded"
GOLDEN = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "pytorch"
needs_golden = pytest.mark.skipif(not GOLDEN.exists(), reason="needs ASTRASIM_GOLDEN")
SETS = ["moe_4", "funcol_4", *(pytest.param(f"{name}_4", marks=needs_golden) for name in ("ddp", "fsdp", "pp"))]


def rank_graph(kineto, host=None):
    recording = read_recording(str(kineto))
    groups, node_of = recording.groups, lambda row: None
    if host:
        trace = read_host_trace(str(host))
        rows = join(recording, trace).host_row
        groups, node_of = groups + trace.groups, lambda row: trace.communication.get(int(rows[row]))
    table = GroupTable(recording.world_size, groups)
    calls, unknown, _ = device_calls(recording, table, node_of)
    assert not unknown
    if calls or len(recording.work):
        return RankGraph(build_graph(recording), calls, True)
    spans = transfers(recording, node_of)
    return RankGraph(host_graph(recording, spans), host_calls(recording, spans, table, node_of), False)


def recorded_set(name):
    folder = HERE / name if (HERE / name).exists() else GOLDEN / "recorded_cpu" / name
    return {r: rank_graph(folder / f"kineto_{r}.json.gz", folder / f"et_{r}.json.gz") for r in range(4)}


def dlrm(with_host=True):
    kineto, host = (sources(str(GOLDEN / f"param_dlrm8/dlrm_{kind}.tar.gz")) for kind in ("kineto", "pytorch_et"))
    kineto = {name[name.index("worker") + 6]: name for name in kineto}
    host = {name[name.rindex("eg_") + 3]: name for name in host}
    return {int(r): rank_graph(kineto[r], host[r] if with_host else None) for r in sorted(kineto)}


def simulate(workload, engine="both", bandwidth="1000000 GB/s", latency="0 ns"):
    topology = ap.build_topology(shape="fully_connected", npus=workload.ranks, bandwidth=bandwidth, latency=latency)
    table = AlgorithmTable({}, lambda kind, ranks, root: build(default_algorithm(kind), kind, ranks).with_verdict(True))
    job = Job(workload=workload, placement=tuple(range(workload.ranks)), algorithms=table)
    return ap.simulate(Problem(topology=topology, jobs=(job,)), engine=engine)


def recorded_ends(ranks):
    """End of each rank after the begin of the first, ps."""
    zero = min(one.graph.recording.base_ns for one in ranks.values())
    return np.array([1000 * (one.graph.recording.base_ns - zero + one.graph.makespan) for one in ranks.values()])


def counted(workload, kind):
    return sum(int((trace.type == kind).sum()) for trace in workload.traces)


@pytest.mark.parametrize("name", SETS)
def test_recordings_of_the_host_give_clean_workloads(name):
    ranks = recorded_set(name)
    for collectives in ("network", "recorded"):
        built = build_workload(ranks, 4, Options(collectives=collectives))
        workload = built.workload
        assert not built.problems and not built.kept
        assert not lint(workload.traces) and not lint(workload.traces, workload.groups)
        records = simulate(workload)  # on both engines, and every record compared
        assert records.outcome.status == "done"
    # Two busy cores ran four processes: what a call took beyond moving data differs between ranks.
    np.testing.assert_allclose(records.finish, recorded_ends(ranks), rtol=0.07)


def test_uneven_exchanges_become_messages_and_a_join():
    ranks = recorded_set("moe_4")
    workload = build_workload(ranks, 4, Options()).workload
    assert counted(workload, NodeType.COMM_SEND) == counted(workload, NodeType.COMM_RECV) == 2 * 4 * 3
    assert counted(workload, NodeType.COMM_COLL) == 3 * 4  # the even one, and two all_reduces
    sends = workload.traces[0].type == NodeType.COMM_SEND
    assert sorted(workload.traces[0].column("comm_size")[sends].tolist())[-3:] == [25 * 512, 27 * 512, 35 * 512]
    assert sum(name == "join" for name in workload.traces[0].names) == 2
    padded = build_workload(ranks, 4, Options(splits="pad")).workload
    assert counted(padded, NodeType.COMM_SEND) == 0
    sizes = padded.traces[0].column("comm_size")[padded.traces[0].type == NodeType.COMM_COLL].tolist()
    assert sizes == [32, 4 * 35 * 512, 4 * 35 * 512, 2048, 16]


def test_groups_are_declared_in_the_trace():
    workload = build_workload(recorded_set("funcol_4"), 4, Options()).workload
    assert workload.groups == {"1": (0, 2), "2": (1, 3), "3": (0, 1), "4": (2, 3)}
    assert all(groups_from_metadata(trace) == workload.groups for trace in workload.traces)
    assert [int(i) for i in workload.traces[0].node_id] == list(range(len(workload.traces[0])))


def test_ranks_without_a_recording_leave_their_calls_as_computation():
    ranks = recorded_set("funcol_4")
    built = build_workload({rank: ranks[rank] for rank in (2, 3)}, 4, Options())
    assert built.problems == ["2 of 4 ranks have no recording: 0, 1"]
    assert built.kept == 26 and built.workload.groups == {"4": (0, 1)}
    assert not lint(built.workload.traces, built.workload.groups)
    assert simulate(built.workload).outcome.status == "done"


@pytest.mark.parametrize(("said", "missing"), [
    ({"Collective name": "allreduce", "Process Group Ranks": "[0, 1, 2]", "Group size": 3}, "2 of 3 ranks"),
    ({"Collective name": "send", "Dst Rank": 9}, "1 of 2 ranks"),
])  # fmt: skip
def test_ranks_that_only_a_call_names_are_missed(said, missing, tmp_path):
    args = {"correlation": 1, "stream": 7, "dtype": "Float", "In msg nelems": 4, "Out msg nelems": 4} | said
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 1, "dur": 2, "args": args}
    (tmp_path / "k.json").write_text(json.dumps([kernel]))
    made = convert_pytorch(str(tmp_path / "k.json"))
    assert any(problem.startswith(f"{missing} have no recording: ") for problem in made.problems)


@pytest.mark.parametrize("copies", [4, 8])
def test_one_rank_may_stand_for_all(copies):
    built = build_workload({0: recorded_set("funcol_4")[0]}, 4, Options(replicate=copies))
    workload = built.workload
    assert not built.problems and workload.ranks == copies
    assert sorted(len(members) for members in workload.groups.values()) == [2] * copies
    assert not lint([workload.trace(rank) for rank in range(copies)], workload.groups)
    assert simulate(workload).outcome.status == "done"


@pytest.mark.parametrize(("name", "copies", "what"), [("moe_4", 4, "uneven all_to_all"), ("funcol_4", 6, "repeated")])
def test_what_differs_between_ranks_is_not_replicated(name, copies, what):
    with pytest.raises(TraceError, match=what):
        build_workload({0: recorded_set(name)[0]}, 4, Options(replicate=copies))


def test_ranks_start_together_if_asked():
    ranks = recorded_set("moe_4")
    kept, dropped = (build_workload(ranks, 4, Options(skew=skew)).workload for skew in ("keep", "drop"))
    assert sum("skew" in trace.names for trace in kept.traces) == 3
    assert not any("skew" in trace.names for trace in dropped.traces)


@needs_golden
@pytest.mark.slow
def test_calls_without_a_size_need_a_default():
    one = {1: rank_graph(GOLDEN / "hta_df_index/df_index_resolver.json.gz")}
    with pytest.raises(TraceError, match=r"no size for 404 of 404 calls \(404 all_reduce\)"):
        build_workload(one, 2, Options(replicate=2))
    workload = build_workload(one, 2, Options(replicate=2, size_default=4096)).workload
    calls = workload.traces[0].type == NodeType.COMM_COLL
    assert set(workload.traces[0].column("comm_size")[calls].tolist()) == {4096} and calls.sum() == 404


@needs_golden
@pytest.mark.slow
def test_eight_recorded_ranks_run_as_they_did():
    ranks = dlrm()
    built = build_workload(ranks, 8, Options(collectives="recorded"))
    workload = built.workload
    starts, stops = (
        np.array([one.start if side == 0 else one.end for one in map(timed, ranks, ranks.values())]) // 1000
        for side in (0, 1)
    )
    assert (starts.max(0) - starts.min(0)).tolist() == [7624, 1101, 168, 125, 223, 534, 584, 885]
    assert (stops.max(0) - stops.min(0)).min() >= 1 and (stops.max(0) - stops.min(0)).max() <= 7
    assert not built.problems and not built.notes and not built.warnings and not built.kept
    assert [instance.moving_ns for instance in built.meeting.instances] == [
        1000 * us for us in (10, 8, 7, 7, 86, 10, 20, 69)
    ]
    trace = workload.traces[0]
    calls = trace.type == NodeType.COMM_COLL
    assert trace.column("comm_size")[calls].tolist() == [24576, 192, 1536, 1576964, 24576, 448, 907840]
    sends = trace.type == NodeType.COMM_SEND
    assert trace.column("comm_size")[sends].tolist() == [4 * n for n in (224, 288, 1664, 592, 96, 192, 240)]
    assert not lint(workload.traces)
    records = simulate(workload)
    ends = recorded_ends(ranks)
    assert ends.max() == 20_823 * 10**6
    # Times are whole microseconds, and ends of one collective are up to 7 us apart.
    np.testing.assert_allclose(records.finish, ends, rtol=1e-4)
    # The same without a simulator; with three constants a rank; and what it takes to tell moving from waiting.
    assert errors(ranks, built)[0] == pytest.approx(records.finish.max() / ends.max() - 1, abs=1e-9)
    assert max(map(abs, errors(ranks, built, with_constants=True))) < 4e-4
    assert errors(ranks, built, waiting=True)[0] == pytest.approx(0.37, abs=0.005)
    # Edges that are left out leave blocked time in pieces and gaps.
    together = makespan(ranks, built, skew=False)
    assert together == 14_353_000
    for kind, too_long in (("sync", 0.387), ("handover", 0.291)):
        assert makespan(left_out(ranks, kind), built, skew=False) / together - 1 == pytest.approx(too_long, abs=5e-4)
    assert min(errors(left_out(ranks, "wait"), built, with_constants=True)) == pytest.approx(-0.117, abs=5e-4)


def left_out(ranks, kind):
    """The ranks with graphs without edges of a kind."""
    graphs = {rank: build_graph(one.graph.recording, without=(kind,)) for rank, one in ranks.items()}
    return {rank: one._replace(graph=graphs[rank]) for rank, one in ranks.items()}


def makespan(ranks, built, **options):
    return max(end for end, _ in replay_together(ranks, built.meeting, **options).values())


def errors(ranks, built, **options):
    """Relative errors of the makespan and of each rank's end, of all ranks replayed together."""
    found = replay_together(ranks, built.meeting, **options)
    replayed, recorded = np.array(list(found.values())).T
    return replayed.max() / recorded.max() - 1, *(replayed / recorded - 1)


@needs_golden
def test_sizes_are_known_without_the_host_trace():
    """Ranges of NCCL have a shape and a type where the arguments of the kernel have none; splits are not there."""
    built = build_workload(dlrm(with_host=False), 8, Options())
    assert not built.problems
    assert built.warnings == ["1 uneven all_to_all without recorded splits count as even, of the largest input"]
    trace = built.workload.traces[0]
    sizes = trace.column("comm_size")[trace.type == NodeType.COMM_COLL].tolist()
    assert sizes[:3] == [24576, 192, 1536] and sizes[4:] == [1576964, 24576, 448, 907840]


@needs_golden
def test_metadata_of_kernels_is_taken():
    one = rank_graph(GOLDEN / "hta_nccl_data/nccl_data.json.gz")
    elements = [(53120, 4), (53, 8), *((n, 4) for n in (2049000, 7875584, 6563840, 6637568, 2431040))]
    assert [call.kind for call in one.calls] == ["broadcast"] * 2 + ["all_reduce"] * 5
    assert [call.nbytes for call in one.calls] == [count * width for count, width in elements]
    assert {(call.group.name, call.group.members) for call in one.calls} == {("0", (0, 1))}
    (gather,) = rank_graph(GOLDEN / "tracelens/b200_eager_rank0of8.json.gz").calls
    assert (gather.kind, gather.nbytes, gather.group.name) == ("all_gather", 2 * 25136, "3")
    assert gather.group.members == tuple(range(8))


@needs_golden
@pytest.mark.parametrize(("name", "kinds"), [("pp_4", {"message": 24}), ("funcol_4", {"": 40})])
def test_every_call_meets_its_partners(name, kinds):
    met = build_workload(recorded_set(name), 4, Options()).meeting
    assert not any(instance.lacks for instance in met.instances)
    assert {len(instance.calls) for instance in met.instances} == {2}
    assert len(met.instances) == sum(kinds.values())


@needs_golden
def test_a_world_of_one_sends_nothing():
    one = rank_graph(GOLDEN / "hta_ns/rank-0.ns_resolution.json.gz")
    assert not one.calls and len(one.graph)


def test_messages_between_devices_and_mapped_kernels_meet(tmp_path):
    """What newer recordings say of sends and receives (no public one has it), and kernels that are no NCCL's."""
    for rank, (kind, start, end) in enumerate((("send", 100, 260), ("recv", 200, 262))):
        metadata = {"Collective name": kind, "dtype": "BFloat16", "In msg nelems": 512, "Out msg nelems": 512}
        metadata |= {"Process Group Name": "pp", "Process Group Ranks": "[0, 1]", "Group size": 2, "Seq": 3}
        metadata |= {"Src Rank": 0} if rank else {"Dst Rank": 1}
        events = [{"cat": "cpu_op", "name": "step", "ts": 0, "dur": 90, "tid": 1, "args": {}}]
        kernels = [("ncclDevKernel_SendRecv(args)", start, end, metadata), ("deep_ep::dispatch<8>", 300, 340, {})]
        for number, (name, begin, finish, args) in enumerate(kernels):
            linked = {"correlation": number + 1}
            events.append(
                {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20 * number, "tid": 1, "args": linked}
            )
            args = args | linked | {"device": rank, "stream": 7}
            events.append({"cat": "kernel", "name": name, "ts": begin, "dur": finish - begin, "tid": 7, "args": args})
        events = [{"ph": "X", "pid": 1, "dur": 5} | event for event in events]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"k_{rank}.json").write_text(json.dumps(header))
    options = Options(size_default=4096)
    made = ap.convert_pytorch(
        str(tmp_path / "k_{rank}.json"), map_kernel=["deep_ep::=all_to_all:0"], options=options, warnings=[]
    )
    assert not made.problems and not lint(made.workload.traces, made.workload.groups)
    assert [counted(made.workload, kind) for kind in (NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)] == [
        1,
        1,
        2,
    ]
    sent = made.workload.traces[0].type == NodeType.COMM_SEND
    assert made.workload.traces[0].column("comm_size")[sent].tolist() == [1024]
    assert simulate(made.workload).outcome.status == "done"


def test_the_order_of_events_in_a_file_does_not_matter(tmp_path):
    random, sets = np.random.default_rng(1), ("as_recorded", "shuffled")
    for name in ("kineto", "et"):
        for rank in range(4):
            content = json.loads(gzip.decompress((HERE / f"funcol_4/{name}_{rank}.json.gz").read_bytes()))
            for folder in sets:
                (tmp_path / folder).mkdir(exist_ok=True)
                (tmp_path / folder / f"{name}_{rank}.json").write_text(json.dumps(content))
                random.shuffle(content["traceEvents" if name == "kineto" else "nodes"])
    written = []
    for folder in sets:
        names = [str(tmp_path / folder / f"{name}_{{rank}}.json") for name in ("kineto", "et")]
        out = tmp_path / folder / "made"
        assert main(["trace", "convert", "pytorch", str(out), "--kineto", names[0], "--et", names[1]]) == 0
        written.append([out.with_name(f"made.{rank}.et").read_bytes() for rank in range(4)])
    assert written[0] == written[1]


PAIR = {"dtype": "Int", "Process Group Ranks": "[0, 1]", "Group size": 2}


def two_ranks(folder, said, durations=((1000,), (1000,)), group=PAIR, header=True):
    """Recordings of two ranks that communicate once a step.

    `said`: arguments of the kernels of each rank. `durations`: of the steps of each, us. `header`: says the rank.
    """
    for rank, metadata in enumerate(said):
        metadata = group | metadata
        events, at = [], 0
        for number, duration in enumerate(durations[rank]):
            linked, name = {"correlation": number}, f"ProfilerStep#{number}"
            events += [
                {"cat": "user_annotation", "name": name, "ts": at, "tid": 1, "dur": duration},
                {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1, "tid": 1, "args": linked},
                {"cat": "kernel", "name": "ncclDevKernel", "ts": at + 10, "tid": 7, "args": linked | metadata},
            ]
            at += duration
        content = {"distributedInfo": {"rank": rank, "world_size": 2}} if header else {}
        content["traceEvents"] = [{"ph": "X", "pid": 1, "dur": 5} | event for event in events]
        (folder / f"k_{rank}.json").write_text(json.dumps(content))
    return ap.convert_pytorch(str(folder / "k_{rank}.json"), warnings=[])


def test_all_ranks_take_the_step_that_is_the_median_of_the_first(tmp_path):
    said = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8}
    made = two_ranks(tmp_path, [said] * 2, ((90, 50, 70, 60, 90), (90, 60, 50, 70, 90)))
    assert [one["step"] for one in made.report["ranks"]] == ["ProfilerStep#3"] * 2
    assert not made.problems
    whole = (tmp_path / "k_0.json").read_text().replace("ProfilerStep#", "loop ")
    (tmp_path / "k_0.json").write_text(whole)
    (problem, *_) = ap.convert_pytorch(str(tmp_path / "k_{rank}.json")).problems
    assert problem == "ranks were recorded in different iterations (ProfilerStep#1, all); choose one by --step"


def test_calls_of_unknown_groups_are_of_all_ranks(tmp_path):
    said = {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8}
    made = two_ranks(tmp_path, [said] * 2, group={"dtype": "Int"}, header=False)
    assert made.workload.groups == {"0": (0, 1)} and not made.problems
    assert "calls of 2 ranks have no group, and count as calls of all ranks" in made.warnings
    one = str(tmp_path / "k_0.json")
    with pytest.warns(UserWarning, match="calls of 1 rank have no group"):
        assert len(ap.convert_pytorch(one, options=Options(replicate=4)).workload.groups["0"]) == 4
    assert ap.convert_pytorch(one).problems == ["the group of 1 all_reduce calls is not recorded"]


def exchanged(made):
    """Source, target and bytes of the messages sent."""
    found = []
    for trace in made.workload.traces:
        columns = [trace.column(f"comm_{name}")[trace.type == NodeType.COMM_SEND] for name in ("src", "dst", "size")]
        found += zip(*(column.tolist() for column in columns), strict=True)
    return found


@pytest.mark.parametrize(
    ("received", "sent"), [((30, 50), [(0, 1, 120), (1, 0, 80)]), ((40, 40), [])], ids=["fits", "does not fit"]
)
def test_a_member_without_splits_sends_even_parts_if_all_fits(received, sent, tmp_path):
    exchange = {"Collective name": "all_to_allv", "In msg nelems": 40}
    splits = ("[1, 3]", "[]")
    said = [exchange | {"In split size": splits[rank], "Out msg nelems": received[rank]} for rank in range(2)]
    made = two_ranks(tmp_path, said)
    assert exchanged(made) == sent
    assert ("count as even" in " ".join(made.warnings)) == (not sent)


def test_sizes_of_outputs_alone_are_enough(tmp_path):
    said = [{"Collective name": "send", "Dst Rank": 1}, {"Collective name": "recv", "Src Rank": 0}]
    assert exchanged(two_ranks(tmp_path, [one | {"Out msg nelems": 8} for one in said])) == [(0, 1, 32)]
    made = two_ranks(tmp_path, [{"Collective name": "all_to_allv", "Out msg nelems": count} for count in (40, 60)])
    assert not made.problems and not lint(made.workload.traces)


def test_replay_tells_ranks_begun_at_once_and_shared_correlations(tmp_path):
    metadata = PAIR | {"In msg nelems": 4, "Out msg nelems": 4, "Collective name": "allreduce"}
    for rank, end in enumerate((300, 150)):
        launches = [("cuda_runtime", "cudaLaunchKernel", at, at + 5, {"correlation": at}) for at in (0, 20)]
        place = {"device": rank, "stream": 7}
        kernels = [("kernel", "ncclDevKernel_AllReduce", 100, end, {"correlation": 0} | metadata | place)]
        kernels += [("kernel", name, at, at + 50, {"correlation": 20} | place) for name, at in (("a", 400), ("b", 450))]
        keys = ("cat", "name", "ts", "dur", "args")
        events = [
            {"ph": "X", "pid": 1, "tid": 1}
            | dict(zip(keys, (category, name, 150 * rank + at, to - at, args), strict=True))
            for category, name, at, to, args in launches + kernels
        ]
        header = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"k_{rank}.json").write_text(json.dumps(header))
    for skew, at_once in (("keep", {}), ("drop", {"at_once_us": 500.0})):
        made = ap.convert_pytorch(str(tmp_path / "k_{rank}.json"), replay=True, options=Options(skew=skew), warnings=[])
        errors = made.report["replay_errors"]
        assert errors == {"together": 0.0, "together_constants": errors["together_constants"]} | at_once
    note = "1 calls and operations have the correlation of another one; its first call counts"
    assert made.lines[-2:] == [
        "replay of all ranks begun at once: 500.000 µs",
        f"warning: 2 ranks, rank 0 the first: {note}",
    ]
