"""Inlining: a workload in which every collective is replaced by the nodes of its algorithm.

A node of each call stands for the collective where it begins; the nodes of the algorithm follow it, and what waited for
the collective waits for those of them on which no other one waits. Ids ascend as the order of dispatch does: workload,
then calls. So the workload runs as with the collectives, event for event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra import et_def_pb2 as pb
from astrasim_py.chakra.schema import COLUMN_KINDS, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.notes import Notes
from astrasim_py.core.rows import pointers
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.call_sizes import size_notes
from astrasim_py.system.compatible import BY_DIMENSION, COUNTERS, INLINING, SWITCHES, refuse
from astrasim_py.system.durations import node_place
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.plan import CollectiveCall, Instance, Plan
from astrasim_py.system.plan_notes import source_notes
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import BEGINS, COLLECTIVE, ENDS, RECV, SEND, RankProgram

#: Columns of an algorithm's nodes that are kept.
_KEPT = ("comp_op", "src_buf", "src_off", "dst_buf", "dst_off", "msg_chunk_idx", "msg_chunk_cnt", "total_chunk_cnt")
_WORDS = ("compute", "send", "receive", "collective", "memory", "metadata")


class _InlinedCall(NamedTuple):
    """One rank's part of a call. `node`: of its workload; `first`: place of its first node among all of the rank."""

    number: int
    node: int
    call: CollectiveCall
    algorithm: Algorithm
    position: int
    program: RankProgram
    first: int

    @property
    def ends(self) -> np.ndarray:
        """Places of the nodes on which no other waits; of the workload's node where there are none."""
        ends = np.flatnonzero(np.diff(self.program.structure.succ_ptr) == 0)
        return self.first + ends if len(ends) else np.array([self.node])


class Inlined(NamedTuple):
    """A workload without collectives, whose traces have all their own columns and groups. `lost`: what it does not say
    of the problem. `notes`: what a person should know of its algorithms, and of the sizes of its calls.
    """

    workload: Workload
    lost: list[str]
    notes: Notes
    contracts: Mapping[int, Contract]  # of calls of custom collectives, by the number of the call


def inline(problem: Problem, job: int = 0) -> Inlined:
    """Replace the collectives of a job by the nodes of their algorithms.

    Raises
    ------
    ScenarioError
        Collectives that run dimension by dimension, slots of communication, switches that take part, algorithms with
        counters or detached sends, or more tags than 2^31.
    TraceError, AlgorithmError
        As `make_plan`.
    """
    network = problem.network
    lost = [
        f"{key}, which is a rule for collectives"
        for key, given in (("network.profile", network.profile), ("network.msccl", network.msccl))
        if given is not None
    ]
    bare = network.model_copy(update={"profile": None, "protocol": None, "msccl": None, "qps": 1, "split": False})
    jobs = tuple(replace(part, compute_speed={}) for part in problem.jobs)
    plan = make_plan(replace(problem, network=bare, jobs=jobs))
    _refuse(plan, job)
    made = _Inlining(plan, job)
    given = problem.jobs[job].workload
    traces: dict[str, ExecutionTrace] = {}
    ranks = [made.trace(rank) for rank in range(problem.jobs[job].ranks)]
    workload = Workload(tuple(traces.setdefault(t.digest(), t) for t in ranks), given.groups, given.name)
    notes = source_notes(plan)
    notes.warnings += size_notes(plan)
    contracts = {}
    for index in made.tags:
        algorithms = plan.instances[plan.instance_at(index)].algorithms
        if len(algorithms) == 1 and algorithms[0].contract is not None:
            contracts[index] = algorithms[0].contract
    return Inlined(workload, lost, notes, contracts)


def _refuse(plan: Plan, job: int) -> None:
    """Raise ScenarioError: what the nodes of a trace cannot say."""
    instances = [instance for instance in plan.instances.values if instance.job == job]
    counting = [
        algorithm.name
        for instance in instances
        for algorithm in instance.algorithms
        if instance.only_call is not None and any(p.counters is not None for p in instance.only_call.different)
    ]
    features = {
        SWITCHES: plan.ranks > plan.npu_ranks,
        BY_DIMENSION: next((instance.type for instance in instances if instance.only_call is None), None),
        COUNTERS: counting[0] if counting else None,
    }
    refuse(INLINING, features, place=plan.problem.jobs[job].name)
    refuse(INLINING, {"semantics": plan.problem.semantics})


class _Inlining:
    """The traces of the ranks of a job."""

    def __init__(self, plan: Plan, job: int) -> None:
        self.plan, self.job, self.first = plan, job, plan.first_rank[job]
        self.own = [i for i in range(len(plan.instances)) if plan.instances[i].job == job]
        #: By call: its first tag, and its tags.
        self.tags: dict[int, tuple[int, np.ndarray]] = {}
        used = [plan.workload[rank] for rank in range(self.first, self.first + plan.problem.jobs[job].ranks)]
        next_tag = 1 + max((int(p.tag.max(initial=-1, where=p.peer >= 0)) for p in used), default=-1)
        tags_of: dict[CollectiveCall, np.ndarray] = {}
        for number in self.own:
            index = int(plan.instances.first[number])
            call = plan.calls[index]
            if call not in tags_of:
                tags = [p.tag[p.peer >= 0] for p in call.different]
                tags_of[call] = np.unique(np.concatenate([np.zeros(0, np.int64), *tags]))
            self.tags[index] = next_tag, tags_of[call]
            next_tag += len(tags_of[call])
        if next_tag > 2**31:
            name = plan.problem.jobs[job].name
            raise ScenarioError(name, f"needs {next_tag} tags, more than 2^31", "inline fewer iterations")

    def trace(self, local: int) -> ExecutionTrace:
        """The trace of a rank."""
        rank, given = self.first + local, self.plan.problem.jobs[self.job].workload.trace(local)
        program = self.plan.workload[rank]
        calls = self.calls(rank, program)
        nodes = len(program) + sum(len(call.program) for call in calls)
        parents = self.parents(rank, program, calls)
        child = np.repeat(np.arange(nodes), [len(each) for each in parents])
        own = program.node_id.astype(np.uint64)
        last, more = int(own.max(initial=0)), nodes - len(program)
        if last + more >= 2**64:
            place = node_place(given, int(program.rows[own.argmax()]), f"rank {local}")
            raise ScenarioError(place, f"leaves no ids for {more} further nodes", "number the nodes from 0")
        ids = np.append(own, np.arange(1, more + 1, dtype=np.uint64) + np.uint64(last))
        every = np.concatenate([np.zeros(0, np.int64), *(np.asarray(each, dtype=np.int64) for each in parents)])
        deps = Csr(pointers(np.bincount(child, minlength=nodes)), ids[every])
        begins = program.structure.kind == COLLECTIVE
        for name in ("counter", "count_of"):
            rows = program.rows[begins]
            if (given.column(name)[rows] != MISSING).any():
                place = node_place(given, int(rows[given.column(name)[rows] != MISSING][0]), f"rank {local}")
                raise ScenarioError(place, f"is a collective with {name}", "let nodes depend on it instead")
        columns = {
            name: np.where(begins, MISSING, given.column(name)[program.rows])
            for name in COLUMN_KINDS
            if given.has_column(name)
        }
        columns["duration_ps"] = np.where(begins, 0, given.column("duration_ps")[program.rows])
        columns["slot_kind"] = np.where(begins, 0, given.column("slot_kind")[program.rows])
        columns["is_cpu_op"] = np.where(begins, 0, given.column("is_cpu_op")[program.rows])
        gates = self.plan.tiles.get(rank)
        if gates is not None:
            # What each node uses is said as it is: no collective is left whose order it could follow.
            columns["tile_order"] = np.full(len(program), MISSING)
            for side, name in enumerate(("consumes_tile", "produces_tile")):
                own = gates.uses[gates.uses[:, 0] == side]
                if len(own):
                    columns[name] = columns[name].copy()
                    columns[name][own[:, 1]] = own[:, 3]
        columns["inlined_call"] = np.where(begins, np.append(self.plan.instances.first, 0)[program.instance], MISSING)
        columns["inlined_rank"] = np.full(len(program), MISSING)
        rest, codes = list[bytes](), np.full(nodes, -1)
        parts = []
        for call in calls:
            instance = self.plan.instances[self.plan.instance_at(call.number)]
            columns["inlined_rank"][call.node] = call.position
            codes[call.node], codes[call.first : call.first + len(call.program)] = len(rest), len(rest) + 1
            rest += [_labels(instance, call.algorithm, begins=True), _labels(instance, call.algorithm, begins=False)]
            parts.append(self.columns(call, ids))
        names = {name for part in (columns, *parts) for name in part}
        lengths = [len(program), *(len(call.program) for call in calls)]
        joined = {
            name: np.concatenate(
                [part.get(name, np.full(n, MISSING)) for part, n in zip((columns, *parts), lengths, strict=True)]
            )
            for name in sorted(names)
        }
        group, groups = given.group_of()
        return ExecutionTrace.from_columns(
            node_id=ids,
            type=np.concatenate(
                [np.where(begins, NodeType.COMP, given.type[program.rows]), *(_types(call) for call in calls)]
            ).astype(np.int8),
            data_deps=deps,
            duration_micros=np.append(given.duration_micros[program.rows], np.zeros(more)).astype(np.uint64),
            names=[
                *(given.names[row] for row in program.rows.tolist()),
                *(self.name(given, program, call, int(kind)) for call in calls for kind in call.program.structure.kind),
            ],
            pg_name=(np.append(group[program.rows], np.full(more, -1)).astype(np.int32), groups) if groups else None,
            rest=(codes.astype(np.int32), tuple(rest)) if rest else None,
            metadata=given.metadata, place=given.place, rank=given.rank, **joined,
        )  # fmt: skip

    def calls(self, rank: int, program: RankProgram) -> list[_InlinedCall]:
        """The rank's calls, in the order in which their nodes are dispatched."""
        calls, first = list[_InlinedCall](), len(program)
        rows = np.flatnonzero(program.instance >= 0)
        for node in rows[np.argsort(program.instance[rows], kind="stable")].tolist():
            index = int(self.plan.instances.first[program.instance[node]])
            call = self.plan.calls[index]
            if call.algorithm is not None:
                position = self.plan.position(rank, index)
                calls.append(_InlinedCall(index, node, call, call.algorithm, position, call.programs[position], first))
                first += len(calls[-1].program)
        return calls

    def parents(self, rank: int, program: RankProgram, calls: Sequence[_InlinedCall]) -> list[list[int]]:
        """By node of the rank: the places of those that it waits for."""
        ends = {call.node: call.ends.tolist() for call in calls}
        first = {call.node: call.first for call in calls}
        lists: list[list[int]] = [[] for _ in range(len(program) + sum(len(call.program) for call in calls))]
        for part, begin in ((program, 0), *((call.program, call.first) for call in calls)):
            ptr, children = part.structure.succ_ptr.tolist(), part.structure.succ.tolist()
            for parent in range(len(part)):
                before = ends.get(parent, [parent]) if begin == 0 else [begin + parent]
                for child in children[ptr[parent] : ptr[parent + 1]]:
                    lists[begin + child] += before
        for call in calls:
            for root in call.program.structure.roots.tolist():
                lists[call.first + root].append(call.node)
        gates = self.plan.tiles.get(rank)
        if gates is not None:
            targets = list(zip(gates.collective.tolist(), gates.node.tolist(), strict=True))
            # A trace cannot say "the first of several": the collective begins with its other dependencies.
            all_of_them = gates.count == np.bincount(gates.triggers[:, 2], minlength=len(gates.count))
            for node, event, gate in gates.triggers[all_of_them[gates.triggers[:, 2]]].tolist():
                collective, held = targets[gate]
                target = held if collective < 0 else first[collective] + held
                ended = ends.get(node, [node]) if event == ENDS else [node if event == BEGINS else first[node] + event]
                lists[target] += ended
        return [sorted(set(each)) for each in lists]

    def columns(self, call: _InlinedCall, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the nodes of a call."""
        program, table = call.program, call.algorithm.program_of([call.position])
        kind, moves = program.structure.kind, program.peer >= 0
        first, tags = self.tags[call.number]
        members = np.asarray(call.call.members, dtype=np.int64) - self.first
        peer = np.where(moves, members[np.maximum(program.peer, 0)], MISSING)
        rows, none = program.rows, np.full(len(program), MISSING)
        kept_columns = {name: table.column(name)[rows] for name in _KEPT if table.has(name)}
        payload = table.column("payload")[rows]
        if (payload != MISSING).any():
            giver = np.searchsorted(program.node_id, np.maximum(payload, 0).astype(np.uint64))
            kept_columns["payload"] = np.where(
                payload == MISSING, MISSING, ids[call.first + giver % len(program)].astype(np.int64)
            )
        return kept_columns | {
            "comm_size": np.where(moves, program.nbytes, MISSING),
            "comm_dst": np.where(kind == SEND, peer, none),
            "comm_src": np.where(kind == RECV, peer, none),
            "comm_tag": np.where(moves, first + np.searchsorted(tags, program.tag), MISSING),
            "duration_ps": np.where(moves, MISSING, program.duration),
            "is_cpu_op": np.zeros(len(program), dtype=np.int64),
            "slot_kind": np.zeros(len(program), dtype=np.int64),
            "inlined_call": np.full(len(program), call.number),
            "inlined_node": program.node_id.astype(np.int64),
        }

    def name(self, given: ExecutionTrace, program: RankProgram, call: _InlinedCall, kind: int) -> str:
        label = given.names[int(program.rows[call.node])] or call.algorithm.collective
        return f"{label}: {_WORDS[kind]}"


def _types(call: _InlinedCall) -> np.ndarray:
    of = np.array([NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, 0, 0, NodeType.COMP])
    return of[call.program.structure.kind]


def _labels(instance: Instance, algorithm: Algorithm, *, begins: bool) -> bytes:
    """Attributes without columns: the collective and its algorithm; where it begins also how its cells are laid out."""
    node = pb.Node()
    node.attr.add(name="collective", string_val=instance.type)
    node.attr.add(name="algorithm", string_val=algorithm.name)
    if begins:
        node.attr.add(name="chunks", int64_val=algorithm.chunks)
        node.attr.add(name="in_place", bool_val=algorithm.in_place)
        node.attr.add(name="root", int64_val=instance.root)
    return node.SerializeToString(deterministic=True)
